//! Sessions whose agent is a server: what the proxy's HTTP client does for them.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::Stdio,
};

use agent_proxy_tests::{
    sessions::{all, event, soon},
    system::{until, with_marker},
};
use proxy_manager::{
    AgentSessionConfig, AgentSpec, Catalog, ChildProgram, EndReason, Event, ExitStatus, Json, KillOptions, PromptMode,
    ProxyManager, SessionId, StopReason, Timeouts,
};

/// A file that goes away with its value.
struct Log(PathBuf);

impl Drop for Log {
    fn drop(&mut self) {
        // Where the agent never started there is none.
        let _ = fs::remove_file(&self.0);
    }
}

/// A server that nobody's session has started.
struct Running {
    process: std::process::Child,
    address: String,
    _log: Log,
}

impl Running {
    #[expect(clippy::disallowed_methods, reason = "it is no part of a session")]
    fn start() -> Self {
        let log = Log(std::env::temp_dir().join(format!("agent-proxy-http-{}", SessionId::mint())));
        let mut server = std::process::Command::new(env!("CARGO_BIN_EXE_fake-server"))
            .env_clear()
            .envs([("OPENCODE_SERVER_PASSWORD", "secret".as_ref()), ("FAKE_LOG", log.0.as_os_str())])
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut line = String::new();
        BufReader::new(server.stdout.take().expect("its output")).read_line(&mut line).expect("its address");
        let address = line.trim().split("http://").nth(1).expect("an address").to_owned();
        Self { process: server, address, _log: log }
    }

    fn endpoint(&self) -> String {
        format!("http://opencode:secret@{}", self.address)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn manager() -> ProxyManager {
    let spec = AgentSpec {
        protocol_config: serde_json::from_value(serde_json::json!({ "config": "opencode", "server": true }))
            .expect("an object"),
        ..AgentSpec::new("server", "opencode", &[env!("CARGO_BIN_EXE_fake-server")])
    };
    let builder = ProxyManager::builder(ChildProgram::Path(env!("CARGO_BIN_EXE_proxy-child").into()));
    let builder = builder.base_env([("PATH", "/usr/bin:/bin")].into_iter().collect()).agent(spec);
    soon("the manager", builder.build()).await.expect("built")
}

fn config() -> (AgentSessionConfig, Log) {
    let session_id = SessionId::mint();
    let log = std::env::temp_dir().join(format!("agent-proxy-http-{session_id}"));
    let path = log.to_str().expect("the temporary directory's path is text").to_owned();
    let config = AgentSessionConfig {
        session_id,
        cwd: Some("/".into()),
        env: [("FAKE_LOG", path)].into_iter().collect(),
        timeouts: Timeouts::NONE,
        ..AgentSessionConfig::new("server")
    };
    (config, Log(log))
}

fn text<'a>(events: impl IntoIterator<Item = &'a Event>) -> String {
    let text = events.into_iter().filter_map(|event| match event {
        Event::Text { text } => Some(text.as_str()),
        _ => None,
    });
    text.collect()
}

/// What the server answered, as it was told: its lines have their ends, and these have none. Without its commands: nothing waits for them,
/// so they come at any time, or too late.
fn answers(events: &[&Event]) -> Vec<String> {
    let answer = |event: &&Event| match event {
        Event::Harness { payload, .. } if !payload.as_bytes().ends_with(b"\n") => {
            Some(String::from_utf8(payload.as_bytes().to_vec()).expect("text"))
        }
        _ => None,
    };
    events.iter().filter_map(answer).filter(|answer| answer != r#"[{"name":"review"}]"#).collect()
}

/// What the server answers is told as it was sent, before what became of it, but for what has keys in it.
#[tokio::test]
async fn the_answers_of_a_server_are_told_as_they_were_sent() {
    let manager = manager().await;
    for verbatim in [None, Some(false)] {
        let (config, _log) = config();
        let config = AgentSessionConfig { verbatim, ..config };
        let session = soon("the start", manager.start_session(config)).await.expect("started");
        let mut events = session.subscribe_from(0);
        let turn = session.prompt("words ü two", PromptMode::Refuse).await.expect("prompted");
        soon("the turn", turn.wait()).await.expect("ended");
        let ask = |path: &str| session.native(Json::from(&serde_json::json!({ "method": "GET", "path": path })));
        let messages = soon("the messages", ask("/session/ses_1/message")).await.expect("answered").value();
        let keys = soon("the models", ask("/config/providers")).await.expect("answered");
        assert!(keys.as_str().contains("a-key"), "{keys:?}");
        soon("the kill", session.kill(KillOptions::NOW)).await.expect("killed");
        let events = all(&mut events).await;
        let events: Vec<&Event> = events.iter().map(|envelope| &envelope.event).collect();
        let told = answers(&events);
        if verbatim.is_some() {
            assert_eq!(told, [""; 0]);
            continue;
        }
        assert_eq!(told, [r#"{"id":"ses_1"}"#.to_owned(), messages["body"].to_string()]);
        let at = |wanted: &dyn Fn(&Event) -> bool| events.iter().position(|event| wanted(event)).expect("told");
        let answered =
            at(&|event| matches!(event, Event::Harness { payload, .. } if payload.as_bytes().starts_with(b"{")));
        assert!(answered < at(&|event| matches!(event, Event::SessionStarted { .. })));
    }
    manager.shutdown().await;
}

/// Each line of the server's is told as it was sent, before what became of it; and what was sent is what was told.
#[tokio::test]
async fn the_lines_of_a_server_are_told_as_they_were_sent() {
    let manager = manager().await;
    let (config, log) = config();
    let session = soon("the start", manager.start_session(config)).await.expect("started");
    let (mut events, mut seen) = (session.subscribe(), session.subscribe());
    let prompts = ["words one two three", "words four ü five"];
    for prompt in prompts {
        let turn = session.prompt(prompt, PromptMode::Refuse).await.expect("prompted");
        let end = soon("the turn", turn.wait()).await.expect("ended");
        assert_eq!((end.stop_reason, end.error), (Some(StopReason::EndTurn), None));
    }
    // The last line of a turn comes after its end.
    let mut last_lines = 0;
    event(&mut seen, "the last line", |envelope| {
        let Event::Harness { payload, .. } = &envelope.event else { return None };
        last_lines += usize::from(String::from_utf8_lossy(payload.as_bytes()).contains("\"session.idle\""));
        (last_lines == prompts.len()).then_some(())
    })
    .await;
    let receipt = soon("the kill", session.kill(KillOptions::NOW)).await.expect("killed");
    assert!(receipt.is_empty(), "{receipt}");
    let events = all(&mut events).await;
    let events: Vec<&Event> = events.iter().map(|envelope| &envelope.event).collect();
    assert_eq!(text(events.iter().copied()), "one two threefour ü five");
    assert_eq!(answers(&events), [r#"{"id":"ses_1"}"#]);
    let told: Vec<u8> = events
        .iter()
        .filter_map(|event| match event {
            Event::Harness { agent, payload } if &**agent == "server" => Some(payload.as_bytes()),
            _ => None,
        })
        .filter(|line| line.ends_with(b"\n"))
        .flatten()
        .copied()
        .collect();
    let told = String::from_utf8(told).expect("text");
    let (listening, sent) = told.split_once('\n').expect("lines");
    assert!(listening.starts_with("opencode server listening on http://127.0.0.1:"), "{listening}");
    assert_eq!(sent, fs::read_to_string(&log.0).expect("the log"));
    assert_eq!(with_marker(session.id().as_str()), [0; 0]);
}

#[tokio::test]
async fn what_was_said_while_the_stream_was_cut_is_told_once() {
    let manager = manager().await;
    let (config, _log) = config();
    let session = soon("the start", manager.start_session(config)).await.expect("started");
    let mut events = session.subscribe();
    let turn = session.prompt("cut one two three", PromptMode::Refuse).await.expect("prompted");
    let end = soon("the turn", turn.wait()).await.expect("ended");
    assert_eq!((end.stop_reason, end.error), (Some(StopReason::EndTurn), None));
    let turn = session.prompt("words and four", PromptMode::Refuse).await.expect("prompted");
    soon("the turn", turn.wait()).await.expect("ended");
    soon("the kill", session.kill(KillOptions::NOW)).await.expect("killed");
    let events = all(&mut events).await;
    assert_eq!(text(events.iter().map(|envelope| &envelope.event)), "one two threeand four");
    let lossy = |event: &Event| matches!(event, Event::SessionLossy { reason } if reason.contains("event stream"));
    assert!(!events.iter().any(|envelope| lossy(&envelope.event)), "nothing is missing");
}

/// The server is started with its password; the shell that its tools are run with takes that away, and goes with the session.
#[tokio::test]
async fn no_tool_has_the_password_of_the_server() {
    let manager = manager().await;
    let (config, _log) = config();
    let session = soon("the start", manager.start_session(config)).await.expect("started");
    let pid = with_marker(session.id().as_str()).into_iter().next().expect("the agent");
    let env = fs::read(format!("/proc/{pid}/environ")).expect("its environment");
    let value = |name: &str| {
        let lines = env.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        lines.filter_map(|line| Some(line.strip_prefix(name)?.strip_prefix('=')?.to_owned())).next().expect("is set")
    };
    let open: serde_json::Value = serde_json::from_str(&value("OPENCODE_CONFIG_CONTENT")).expect("JSON");
    let shell = PathBuf::from(open["shell"].as_str().expect("a shell"));
    assert!(!value("OPENCODE_SERVER_PASSWORD").is_empty());
    #[expect(clippy::disallowed_methods, reason = "what the agent would do")]
    let output = std::process::Command::new(&shell)
        .args(["-c", "echo \"<$OPENCODE_SERVER_PASSWORD|$1|$OTHER>\"; exit 7", "x", "a  b"])
        .envs([("OPENCODE_SERVER_PASSWORD", "secret"), ("OTHER", "kept")])
        .output()
        .expect("run");
    assert_eq!((output.stdout.as_slice(), output.status.code()), (&b"<|a  b|kept>\n"[..], Some(7)));
    soon("the kill", session.kill(KillOptions::NOW)).await.expect("killed");
    let gone = move || until("the folder goes", || (!shell.exists()).then_some(()));
    tokio::task::spawn_blocking(gone).await.expect("gone");
}

/// A server that runs already: it is spoken with, and goes on when the session is over.
#[tokio::test]
async fn a_server_that_runs_already_outlives_its_session() {
    let server = Running::start();
    let manager = manager().await;
    let (config, _log) = config();
    let config = AgentSessionConfig { endpoint: Some(server.endpoint()), ..config };
    let session = soon("the start", manager.start_session(config)).await.expect("started");
    let mut events = session.subscribe();
    for prompt in ["words one two", "cut one three"] {
        let turn = session.prompt(prompt, PromptMode::Refuse).await.expect("prompted");
        let end = soon("the turn", turn.wait()).await.expect("ended");
        assert_eq!((end.stop_reason, end.error), (Some(StopReason::EndTurn), None));
    }
    assert_eq!(session.info().conversation.native_session_id.as_deref(), Some("ses_1"));
    let receipt = soon("the kill", session.kill(KillOptions::NOW)).await.expect("killed");
    assert!(receipt.is_empty(), "{receipt}");
    assert!(
        receipt.processes.iter().all(|entry| entry.id.pid != server.process.id()),
        "the server is none of its: {receipt}"
    );
    let events = all(&mut events).await;
    assert_eq!(text(events.iter().map(|envelope| &envelope.event)), "one twoone three");
    assert_eq!(with_marker(session.id().as_str()), [0; 0]);
    // It still answers.
    let (config, _log) = self::config();
    let config = AgentSessionConfig { endpoint: Some(server.endpoint()), ..config };
    let session = soon("the start", manager.start_session(config)).await.expect("started again");
    let turn = session.prompt("words four", PromptMode::Refuse).await.expect("prompted");
    let end = soon("the turn", turn.wait()).await.expect("ended");
    assert_eq!((end.stop_reason, end.error), (Some(StopReason::EndTurn), None));
    assert!(soon("the kill", session.kill(KillOptions::NOW)).await.expect("killed").is_empty());
}

/// The record says where the server is; and a person attaches to one that runs already, where the conversation is open.
#[tokio::test]
async fn a_server_is_known_by_its_address_and_attached_to_if_it_runs_already() {
    let server = Running::start();
    let builtin = Catalog::default();
    let row = builtin.get("opencode").expect("built in");
    let spec = AgentSpec { cmd: vec![env!("CARGO_BIN_EXE_fake-server").to_owned()], ..row.clone() };
    let builder = ProxyManager::builder(ChildProgram::Path(env!("CARGO_BIN_EXE_proxy-child").into()));
    let builder = builder.base_env([("PATH", "/usr/bin:/bin")].into_iter().collect()).agent(spec);
    let manager = soon("the manager", builder.build()).await.expect("built");
    for endpoint in [None, Some(server.endpoint())] {
        let (config, _log) = config();
        let config = AgentSessionConfig { agent: "opencode".into(), endpoint: endpoint.clone(), ..config };
        let session = soon("the start", manager.start_session(config)).await.expect("started");
        let mut events = session.subscribe_from(0);
        let address = match &endpoint {
            Some(_) => format!("http://{}", server.address),
            None => {
                let said =
                    agent_proxy_tests::sessions::event(&mut events, "its address", |envelope| match &envelope.event {
                        Event::Harness { payload, .. } => {
                            let line = String::from_utf8_lossy(payload.as_bytes());
                            line.split("listening on ").nth(1).map(|address| address.trim().to_owned())
                        }
                        _ => None,
                    });
                said.await
            }
        };
        let record = manager.record(session.id()).expect("kept");
        assert_eq!(record.endpoint.as_ref(), Some(&address));
        let command = match &endpoint {
            Some(_) => vec!["opencode", "attach", address.as_str(), "--dir", ".", "--session", "ses_1"],
            // Its own ends with it.
            None => vec!["opencode", "--session", "ses_1"],
        };
        assert_eq!(manager.attach_command(session.id()).expect("it has one"), command);
        let command_then = soon("the hand-over", manager.hand_over(session.id(), KillOptions::NOW)).await;
        assert_eq!(command_then.expect("handed over"), command);
        let record = manager.record(session.id()).expect("kept");
        assert_eq!(record.endpoint, endpoint.as_ref().map(|_| address));
        soon("the end", manager.kill_session(session.id(), KillOptions::NOW)).await.expect("ended");
        let text = serde_json::to_string(&record).expect("JSON").replace(r#""secrets":"#, "");
        assert!(!text.contains("secret"), "{text}");
        assert_eq!(with_marker(session.id().as_str()), [0; 0]);
    }
    // What a person would be attached to is there.
    std::net::TcpStream::connect(&server.address).expect("it listens");
    manager.shutdown().await;
}

/// What a server said last is on its way when it is seen dead.
#[tokio::test]
async fn the_last_words_of_a_server_are_heard() {
    let manager = manager().await;
    let (config, _log) = config();
    let session = soon("the start", manager.start_session(config)).await.expect("started");
    let mut events = session.subscribe();
    let words = "word ".repeat(5000) + "last";
    let _turn = session.prompt(format!("die {words}"), PromptMode::Refuse).await.expect("prompted");
    let events = all(&mut events).await;
    assert_eq!(text(events.iter().map(|envelope| &envelope.event)), words);
    let Some(Event::SessionEnded { reason, .. }) = events.last().map(|envelope| &envelope.event) else {
        panic!("no end")
    };
    assert_eq!(*reason, EndReason::AgentExited(Some(ExitStatus::Code(0))));
}

#[tokio::test]
async fn a_server_that_cannot_be_had_fails_the_start() {
    let manager = manager().await;
    let (first, _log) = config();
    let session = soon("the start", manager.start_session(first)).await.expect("started");
    let mut events = session.subscribe_from(0);
    let listening = agent_proxy_tests::sessions::event(&mut events, "its address", |envelope| match &envelope.event {
        Event::Harness { payload, .. } => {
            String::from_utf8_lossy(payload.as_bytes()).split("on ").nth(1).map(str::to_owned)
        }
        _ => None,
    });
    let address = listening.await.trim().to_owned();
    for (endpoint, why) in [
        (address.replace("http://", "http://opencode:wrong@"), "password is wrong"),
        (address, "password is wrong"),
        ("http://192.0.2.1:4096".to_owned(), "not on this machine"),
        ("http://127.0.0.1:1".to_owned(), "no connection"),
    ] {
        let (config, _log) = config();
        let config = AgentSessionConfig { endpoint: Some(endpoint.clone()), ..config };
        let error = soon("the refusal", manager.start_session(config)).await.expect_err("refused");
        let text = format!("{error}: {error:?}");
        assert!(text.contains(why), "{endpoint}: {text}");
    }
}
