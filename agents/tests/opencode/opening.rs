//! From the server's address to a conversation that is ready.

use agents::{Action, AdapterSetup, HttpEvent, opencode};
use ipc_protocol::{AgentEndpoint, AgentSessionConfig, Event, NativeResume, WireError, message::AgentFact};
use serde_json::{Value, json};

use crate::replay::{Replay, config, ready, requests, setup};

const LISTENING: &[u8] = b"opencode server listening on http://127.0.0.1:4096\n";

fn opened(setup: AdapterSetup) -> Replay {
    let mut replay = Replay::new(setup);
    replay.stdout(LISTENING);
    replay.event("server.connected", json!({}));
    replay
}

fn failure(replay: &Replay) -> &WireError {
    let fail = |action: &'_ Action| matches!(action, Action::Fail(_));
    match replay.actions.iter().find(|action| fail(action)) {
        Some(Action::Fail(error)) => error,
        _ => panic!("it did not fail: {:?}", replay.actions),
    }
}

fn body_of(replay: &Replay, method: &str, path: &str) -> Value {
    let all = requests(&replay.actions);
    let found = all.iter().find(|(of, at, _)| *of == method && at.starts_with(path));
    found.unwrap_or_else(|| panic!("no {method} {path}: {all:?}")).2.clone()
}

/// What is asked for before `server.connected` would be answered without its events.
#[test]
fn trap_nothing_is_asked_for_before_server_connected() {
    let mut replay = Replay::new(setup(config()));
    assert_eq!(replay.actions, []);
    replay.stdout(b"Warning: something\nopencode server listening on http://127.0");
    assert!(matches!(&replay.actions[..], [Action::Event(Event::Log { stream, .. })] if stream == "stdout"));
    replay.adapter.stderr(b"a warning\n", &mut replay.actions);
    let warning = Event::Log { stream: "stderr".into(), text: "a warning\n".into() };
    assert_eq!(replay.actions.pop(), Some(Action::Event(warning)));
    replay.stdout(b".0.1:4096\n");
    let listens = AgentFact::ServerListens { address: "http://127.0.0.1:4096".into() };
    assert_eq!(replay.actions.get(1), Some(&Action::Fact(listens)));
    let Some(Action::Connect(endpoint)) = replay.actions.get(2) else { panic!("{:?}", replay.actions) };
    let url = Some("http://127.0.0.1:4096".to_owned());
    assert_eq!(*endpoint, AgentEndpoint { url, user: "opencode".into(), password: Some("pw".into()) });
    assert_eq!(requests(&replay.actions), [("GET", "/event?directory=%2Fsrv%2Fexample%2Fwork".into(), Value::Null)]);
    // An event that comes before the server says that it is connected opens nothing.
    replay.event("session.idle", json!({ "sessionID": "ses_1" }));
    assert_eq!(requests(&replay.actions).len(), 1);
    replay.event("server.connected", json!({}));
    assert!(replay.actions.contains(&Action::Ready { native_session_id: Some("ses_1".into()) }));
    // Said again it opens nothing again.
    let before = replay.actions.len();
    replay.stdout(LISTENING);
    replay.event("server.connected", json!({}));
    assert_eq!(requests(&replay.actions[before..]), []);
}

#[test]
fn a_server_that_runs_already_is_connected_to() {
    let endpoint = AgentEndpoint { url: Some("http://127.0.0.1:1".into()), user: String::new(), password: None };
    let replay = Replay::new(AdapterSetup { endpoint: Some(endpoint), ..setup(config()) });
    let Some(Action::Connect(endpoint)) = replay.actions.first() else { panic!("{:?}", replay.actions) };
    assert_eq!((endpoint.url.as_deref(), endpoint.user.as_str()), (Some("http://127.0.0.1:1"), "opencode"));
}

#[test]
fn trap_without_the_password_it_answers_401() {
    let mut replay = Replay::new(setup(config()));
    replay.stdout(LISTENING);
    let stream = replay.stream.expect("a stream");
    replay.adapter.http(stream, HttpEvent::Head(401), &mut replay.actions);
    assert!(failure(&replay).to_string().contains("password is wrong"), "{}", failure(&replay));
}

#[test]
fn a_server_that_is_not_there_fails_the_start() {
    let mut replay = Replay::new(setup(config()));
    replay.stdout(LISTENING);
    let stream = replay.stream.expect("a stream");
    replay.adapter.http(stream, HttpEvent::Failed("no connection"), &mut replay.actions);
    assert!(matches!(failure(&replay), WireError::AgentDied { reason } if reason.contains("no connection")));
}

#[test]
fn a_session_is_made_with_its_rules() {
    let rules = |config: AgentSessionConfig| {
        let body = body_of(&ready(config), "POST", "/session?directory=%2Fsrv%2Fexample%2Fwork");
        let rule = |rule: &Value| {
            [&rule["permission"], &rule["pattern"], &rule["action"]]
                .map(|word| word.as_str().expect("a word"))
                .join(" ")
        };
        body["permission"].as_array().expect("rules").iter().map(rule).collect::<Vec<_>>()
    };
    assert_eq!(rules(config()), ["* * ask", "todowrite * allow", "question * allow"]);
    // The mode's own denials are below the session's rules: they are said again.
    assert_eq!(
        rules(AgentSessionConfig { mode: Some("plan".into()), ..config() })[3..],
        ["edit * deny", "edit .opencode/plans/*.md ask", "task general deny"]
    );
    assert_eq!(
        rules(AgentSessionConfig { mode: Some("review".into()), ..config() })[3..],
        ["* * ask", "bash * deny", "todowrite * allow"]
    );
    let tools = vec!["read".into(), "write".into(), "todowrite".into()];
    assert_eq!(
        rules(AgentSessionConfig { tools, ..config() }),
        ["* * deny", "read * ask", "edit * ask", "todowrite * allow", "external_directory * ask", "doom_loop * ask"]
    );
}

#[test]
fn what_goes_with_each_prompt() {
    let config = AgentSessionConfig {
        mode: Some("plan".into()),
        thinking: Some("high".into()),
        system_prompt: Some("be brief".into()),
        ..config()
    };
    let mut replay = ready(config);
    replay.prompt("hi").expect("taken");
    assert_eq!(
        body_of(&replay, "POST", "/session/ses_1/prompt_async"),
        json!({ "parts": [{ "type": "text", "text": "hi" }], "agent": "plan", "variant": "high", "system": "be brief",
            "model": { "providerID": "mock", "modelID": "mock-model" } })
    );
}

#[test]
fn pictures_and_files_are_parts() {
    use ipc_protocol::PromptPart::{File, Image, Text};
    let mut replay = ready(config());
    let parts = vec![
        Text("look".into()),
        Image { mime_type: "image/png".into(), data: "aGk=".into() },
        File { path: "src/a b.rs".into() },
        File { path: "/pics/x.PNG".into() },
        File { path: "/srv/".into() },
    ];
    replay.adapter.prompt(&parts.into(), &mut replay.actions).expect("taken");
    let body = body_of(&replay, "POST", "/session/ses_1/prompt_async");
    assert_eq!(
        body["parts"],
        json!([
            { "type": "text", "text": "look" },
            { "type": "file", "mime": "image/png", "filename": "image.png", "url": "data:image/png;base64,aGk=" },
            { "type": "file", "mime": "text/plain", "filename": "a b.rs", "url": "file:///srv/example/work/src/a%20b.rs" },
            { "type": "file", "mime": "image/png", "filename": "x.PNG", "url": "file:///pics/x.PNG" },
            { "type": "file", "mime": "application/x-directory", "filename": "srv", "url": "file:///srv/" },
        ])
    );
}

#[test]
fn what_the_server_does_not_have_fails_the_start() {
    let fails = |config: AgentSessionConfig| failure(&opened(setup(config))).to_string();
    let mode = |mode: &str| fails(AgentSessionConfig { mode: Some(mode.into()), ..config() });
    assert!(mode("nope").contains(r#"there is no mode "nope": there are build, plan, review"#), "{}", mode("nope"));
    assert!(mode("general").contains("no mode"), "a sub-agent is none");
    let thinking = |model: Option<&str>, level: &str| {
        let model = model.map(str::to_owned);
        fails(AgentSessionConfig { model, thinking: Some(level.into()), ..AgentSessionConfig::new("opencode") })
    };
    assert!(thinking(Some("mock/mock-model"), "max").contains("it has high, low"));
    assert!(thinking(None, "max").contains("it has high, low"), "the server's default model");
    assert!(thinking(Some("mock/mock-two"), "high").contains("no levels"));
    assert!(thinking(Some("mock/other"), "high").contains("there is no model"));
    let model = Some("mock-model".to_owned());
    let error = opencode::make(setup(AgentSessionConfig { model, ..AgentSessionConfig::new("opencode") }));
    let error = error.err().expect("no provider");
    assert!(error.to_string().contains("PROVIDER/MODEL"), "{error}");
}

fn resume(id: Option<&str>, fork: bool) -> AdapterSetup {
    AdapterSetup { resume: Some(NativeResume { id: id.map(str::to_owned), fork }), ..setup(config()) }
}

#[test]
fn a_conversation_is_gone_on_with() {
    let replay = opened(resume(Some("ses_old"), false));
    assert_eq!(replay.session, "ses_old");
    let all = requests(&replay.actions);
    let steps: Vec<_> =
        all.iter().map(|(method, path, _)| (*method, path.split('?').next().expect("a path"))).collect();
    assert_eq!(
        steps,
        [
            ("GET", "/event"),
            ("GET", "/session/ses_old"),
            ("PATCH", "/session/ses_old"),
            ("GET", "/config/providers"),
            ("GET", "/command")
        ]
    );
    assert_eq!(opened(resume(Some("ses_old"), true)).session, "ses_2", "the copy");
}

#[test]
fn the_most_recent_conversation_is_gone_on_with() {
    let mut replay = Replay::new(resume(None, false));
    replay.hold("GET", "/session");
    replay.stdout(LISTENING);
    replay.event("server.connected", json!({}));
    let asked = requests(&replay.actions).pop().expect("a request");
    assert_eq!(asked.1, "/session?roots=true&limit=1&directory=%2Fsrv%2Fexample%2Fwork");
    replay.answer_to("GET", "/session", 200, r#"[{"id":"ses_new"}]"#);
    assert_eq!(replay.session, "ses_new");
}

#[test]
fn the_output_may_end_at_any_time() {
    let mut replay = Replay::new(setup(config()));
    replay.adapter.finish(&mut replay.actions);
    assert!(failure(&replay).to_string().contains("before it said where it listens"));
    let mut replay = Replay::new(setup(config()));
    replay.stdout(LISTENING);
    replay.adapter.finish(&mut replay.actions);
    assert!(failure(&replay).to_string().contains("before its event stream was open"));

    let mut replay = ready(config());
    replay.hold("GET", "/session/ses_1");
    let request = replay.operate(&ipc_protocol::Operation::GetState).expect("asked");
    replay.prompt("hi").expect("taken");
    let before = replay.actions.len();
    replay.adapter.finish(&mut replay.actions);
    assert!(matches!(replay.reply(request), Some(Err(WireError::AgentDied { .. }))));
    assert!(matches!(&replay.actions[before + 1..],
        [Action::Event(Event::Error { code, .. }), Action::TurnEnded] if code == "agent-exited"));
    let before = replay.actions.len();
    replay.adapter.finish(&mut replay.actions);
    replay.event("session.idle", json!({ "sessionID": "ses_1" }));
    assert!(replay.prompt("more").is_err());
    assert!(replay.actions[before..].iter().all(|action| matches!(action, Action::Event(Event::Log { .. }))));
}
