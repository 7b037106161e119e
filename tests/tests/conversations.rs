//! Conversations that are gone on with, asked about and changed, through `ProxyManager`, with the fake agent.

use std::{fs, os::unix::fs::symlink};

use agent_proxy_tests::sessions::{self, event, said, soon};
use proxy_manager::{
    AgentSessionConfig, AgentSpec, EndReason, Error, Event, Home, Json, KillOptions, OnMissing, Operation,
    PermissionMode, Prompt, PromptMode, PromptPart, ProxyManager, ResumeFrom, ResumeRequest, SessionHandle, SessionId,
    SessionState, TimeoutAction, TimeoutKind, Timeouts,
};
use serde_json::json;
use tempfile::TempDir;

const FAKE: &str = env!("CARGO_BIN_EXE_fake-agent");

struct Place {
    manager: ProxyManager,
    scratch: TempDir,
}

impl Place {
    async fn new() -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        fs::create_dir(scratch.path().join("home")).expect("made");
        Self { manager: Self::manager(&scratch).await, scratch }
    }

    /// Another manager with the same directories.
    async fn again(&mut self) {
        self.manager = Self::manager(&self.scratch).await;
    }

    async fn manager(scratch: &TempDir) -> ProxyManager {
        let path = |name| scratch.path().join(name).to_str().expect("UTF-8").to_owned();
        let (home, state) = (path("home"), path("state"));
        let env = [("PATH", "/usr/bin:/bin"), ("HOME", &home)].into_iter().collect();
        let guarded = json!({ "steerByPrompt": true, "backupBeforeLoad": "{home}/chats" });
        let destroyer = AgentSpec {
            protocol_config: guarded,
            ..AgentSpec::new("destroyer", "acp", &[FAKE, "--store", "chats", "--destructive-load"])
        };
        let builder = sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), FAKE).base_env(env).state_dir(state.into());
        let builder = builder.agent(AgentSpec::new("kept", "acp", &[FAKE, "--store", "chats", "--modes"]));
        builder.agent(destroyer).build().await.expect("built")
    }

    async fn start(&self, config: AgentSessionConfig) -> SessionHandle {
        self.manager.start_session(config).await.expect("started")
    }

    /// The files of the shared conversations.
    fn chats(&self) -> Vec<String> {
        let entries = fs::read_dir(self.scratch.path().join("home/chats")).into_iter().flatten();
        entries.map(|entry| entry.expect("listed").file_name().into_string().expect("UTF-8")).collect()
    }
}

fn kept() -> AgentSessionConfig {
    AgentSessionConfig { cwd: Some("/".into()), ..AgentSessionConfig::new("kept") }
}

fn resuming(from: ResumeFrom, on_missing: OnMissing) -> AgentSessionConfig {
    AgentSessionConfig { resume: Some(ResumeRequest { from, fork: false, on_missing }), ..kept() }
}

fn of(session: &SessionHandle) -> ResumeFrom {
    ResumeFrom::Session { id: session.id().clone() }
}

/// What the agent says to a prompt of one line.
async fn ask(session: &SessionHandle, prompt: impl Into<Prompt>) -> String {
    let mut events = session.subscribe_from(session.info().last_offset);
    let turn = session.prompt(prompt, PromptMode::Refuse).await.expect("prompted");
    let answer = said(&mut events, "").await.trim().to_owned();
    soon("the turn's end", turn.wait()).await.expect("ended");
    answer
}

async fn end(session: &SessionHandle) {
    session.kill(KillOptions::NOW).await.expect("killed");
}

#[tokio::test]
async fn a_conversation_goes_on_in_a_new_process() {
    let place = Place::new().await;
    for home in [None, Some(Home::Own)] {
        let first = place.start(AgentSessionConfig { home, ..kept() }).await;
        let native = first.info().conversation.native_session_id.expect("it has one");
        assert_eq!(ask(&first, "history").await, "0 before");
        // Nobody else gets it while it is open.
        for from in [of(&first), ResumeFrom::Native { id: native.clone() }] {
            let by_id = matches!(from, ResumeFrom::Native { .. });
            if by_id && home.is_some() {
                continue;
            }
            let busy = place.manager.start_session(resuming(from, OnMissing::StartAnew)).await.expect_err("open");
            assert!(matches!(&busy, Error::NativeSessionBusy { session, .. } if session == first.id()), "{busy}");
        }
        end(&first).await;
        let second = place.start(resuming(of(&first), OnMissing::Fail)).await;
        let info = second.info();
        assert_eq!(
            (info.conversation.native_session_id.as_deref(), info.metadata.home),
            (Some(native.as_str()), first.info().metadata.home)
        );
        assert_eq!(ask(&second, "history").await, "1 before");
        // Its home stays as long as one of them is there.
        place.manager.delete_session(first.id()).await.expect("deleted");
        end(&second).await;
        let third = place.start(resuming(of(&second), OnMissing::Fail)).await;
        assert_eq!(ask(&third, "history").await, "2 before");
        end(&third).await;
        let home = third.info().metadata.home;
        for session in [second, third] {
            place.manager.delete_session(session.id()).await.expect("deleted");
        }
        assert!(home.is_none_or(|home| !fs::exists(home).expect("known")));
    }
    place.manager.shutdown().await;
}

#[tokio::test]
async fn a_conversation_outlives_the_manager() {
    let mut place = Place::new().await;
    for home in [None, Some(Home::Own)] {
        let first = place.start(AgentSessionConfig { home, ..kept() }).await;
        assert_eq!(ask(&first, "history").await, "0 before");
        place.manager.shutdown().await;
        place.again().await;
        let second = place.start(resuming(of(&first), OnMissing::Fail)).await;
        assert_eq!(ask(&second, "history").await, "1 before");
        assert_eq!(second.info().metadata.home, first.info().metadata.home);
        end(&second).await;
        // The next one knows of both what home they have, whichever is deleted first.
        place.manager.shutdown().await;
        place.again().await;
        for session in [&first, &second] {
            let home = session.info().metadata.home;
            assert!(home.is_none_or(|home| fs::exists(home).expect("known")));
            place.manager.delete_session(session.id()).await.expect("deleted");
        }
        assert!(first.info().metadata.home.is_none_or(|home| !fs::exists(home).expect("known")));
        let unknown = place.manager.delete_session(first.id()).await.expect_err("forgotten");
        assert!(matches!(unknown, Error::UnknownSession { .. }), "{unknown}");
    }
    place.manager.shutdown().await;
}

/// The same files are the same conversation, however the way to them is spelled.
#[tokio::test]
async fn a_conversation_is_open_by_whatever_path() {
    let place = Place::new().await;
    let first = place.start(kept()).await;
    ask(&first, "say hello").await;
    let native = ResumeFrom::Native { id: first.info().conversation.native_session_id.expect("it has one") };
    let path = |name: &str| place.scratch.path().join(name).to_str().expect("UTF-8").to_owned();
    symlink(path("home"), path("link")).expect("linked");
    for home in ["home/", "link", "./home"] {
        let env = [("HOME", path(home))].into_iter().collect();
        let config = AgentSessionConfig { env, ..resuming(native.clone(), OnMissing::Fail) };
        let busy = place.manager.start_session(config).await.expect_err("open");
        assert!(matches!(&busy, Error::NativeSessionBusy { session, .. } if session == first.id()), "{busy}");
    }
    place.manager.shutdown().await;
}

#[tokio::test]
async fn the_most_recent_one_is_found() {
    let place = Place::new().await;
    let first = place.start(kept()).await;
    ask(&first, "say hello").await;
    let listed = first.native_sessions().await.expect("listed").value();
    let native = first.info().conversation.native_session_id.expect("it has one");
    assert_eq!(listed[0]["id"], native.as_str(), "{listed}");
    let busy = place.manager.start_session(resuming(ResumeFrom::MostRecent, OnMissing::Fail)).await.expect_err("open");
    assert!(matches!(busy, Error::NativeSessionBusy { .. }), "{busy}");
    end(&first).await;
    let second = place.start(resuming(ResumeFrom::MostRecent, OnMissing::Fail)).await;
    assert_eq!(second.info().conversation.native_session_id, Some(native));
    place.manager.shutdown().await;
}

/// Why an agent exits before it is ready is its adapter's to say, where it knows.
#[tokio::test]
async fn an_agent_that_exits_for_want_of_its_conversation_says_so() {
    let scratch = tempfile::tempdir().expect("a directory");
    let state = scratch.path().join("state");
    let quitter = |id: &str, words: &str| AgentSpec {
        protocol_config: json!({ "config": "pi" }),
        ..AgentSpec::new(id, "pi", &["/bin/sh", "-c", &format!("echo {words} >&2; exit 1")])
    };
    let builder = sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), FAKE).state_dir(state);
    let builder =
        builder.agent(quitter("quitter", "No session found matching n-1")).agent(quitter("keyless", "no key"));
    let manager = builder.build().await.expect("built");
    let plain = AgentSessionConfig {
        cwd: Some("/".into()),
        permission_mode: PermissionMode::Allow,
        ..AgentSessionConfig::new("quitter")
    };
    let from = ResumeFrom::Native { id: "n-1".into() };
    let resume = Some(ResumeRequest { from, fork: false, on_missing: OnMissing::Fail });
    let resumed = AgentSessionConfig { resume, session_id: SessionId::mint(), ..plain.clone() };
    let missing = manager.start_session(resumed.clone()).await.expect_err("missing");
    let says = |reason: &str| reason == "No session found matching n-1";
    assert!(matches!(&missing, Error::NativeSessionMissing { reason, .. } if says(reason)), "{missing}");
    // Another death is no missing conversation: it would be begun anew where that is allowed.
    let keyless = AgentSessionConfig { agent: "keyless".into(), session_id: SessionId::mint(), ..resumed.clone() };
    let died = manager.start_session(keyless).await.expect_err("dead");
    assert!(matches!(died, Error::AgentDied { .. }), "{died}");
    // Without one it has just died, and its last words are told.
    let died = manager.start_session(plain).await.expect_err("dead");
    assert!(died.to_string().contains("No session found") && matches!(died, Error::AgentDied { .. }), "{died}");
    manager.shutdown().await;
}

#[tokio::test]
async fn what_is_missing_is_never_begun_anew_in_silence() {
    let place = Place::new().await;
    let first = place.start(kept()).await;
    ask(&first, "say the answer is 42").await;
    end(&first).await;
    let history = first.transcript().await.expect("read");
    assert_eq!(history, "User: say the answer is 42\n\nAssistant: the answer is 42");
    fs::remove_dir_all(place.scratch.path().join("home/chats")).expect("removed");

    let missing = place.manager.start_session(resuming(of(&first), OnMissing::Fail)).await.expect_err("missing");
    assert!(matches!(missing, Error::NativeSessionMissing { .. }), "{missing}");
    let inject =
        AgentSessionConfig { runtime_context: true, home: None, ..resuming(of(&first), OnMissing::Inject { history }) };
    let second = place.start(inject).await;
    let mut events = second.subscribe();
    let status = event(&mut events, "what became of it", |envelope| match &envelope.event {
        Event::SessionStatus { status, detail } if status == "resumeFailed" => Some(detail.clone()),
        _ => None,
    })
    .await;
    assert!(status.contains("cannot go on with conversation"), "{status}");
    assert_ne!(second.info().conversation.native_session_id, first.info().conversation.native_session_id);
    let before = ask(&second, "system").await;
    assert!(before.contains(&format!("session {}", second.id())), "{before}");
    assert!(before.contains("the answer is 42"), "{before}");
    assert_eq!(ask(&second, "blocks").await, "text", "once");
    // One agent after the other: nothing is left of the first.
    let receipt = second.kill(KillOptions::NOW).await.expect("killed");
    assert!(receipt.is_empty());
    // Nor is there a word of it where the session is not even known.
    let unknown = ResumeFrom::Session { id: "unheard-of".parse().expect("a valid id") };
    let missing = place.manager.start_session(resuming(unknown.clone(), OnMissing::Fail)).await.expect_err("missing");
    assert!(matches!(missing, Error::NativeSessionMissing { .. }), "{missing}");
    let third = place.start(resuming(unknown, OnMissing::StartAnew)).await;
    let first_event = soon("an event", third.subscribe().next()).await.expect("an event");
    assert!(
        matches!(&first_event.event, Event::SessionStatus { status, .. } if status == "resumeFailed"),
        "{first_event:?}"
    );
    place.manager.shutdown().await;
}

#[tokio::test]
async fn a_conversation_that_its_agent_destroys_is_brought_back() {
    let place = Place::new().await;
    let first = place.start(kept()).await;
    ask(&first, "say precious").await;
    let native = first.info().conversation.native_session_id.expect("it has one");
    end(&first).await;
    let file = place.chats();
    assert_eq!(file, [format!("{native}.json")]);
    for on_missing in [OnMissing::Fail, OnMissing::StartAnew] {
        let from = ResumeFrom::Native { id: native.clone() };
        let config = AgentSessionConfig { agent: "destroyer".into(), ..resuming(from, on_missing) };
        match place.manager.start_session(config).await {
            Ok(session) => end(&session).await,
            Err(error) => assert!(matches!(error, Error::NativeSessionMissing { .. }), "{error}"),
        }
        assert!(place.chats().contains(&file[0]), "{:?}", place.chats());
    }
    let again = place.start(resuming(ResumeFrom::Native { id: native }, OnMissing::Fail)).await;
    assert_eq!(ask(&again, "history").await, "1 before");
    let left: Vec<_> = fs::read_dir(place.scratch.path().join("state/homes")).expect("listed").collect();
    assert!(left.is_empty(), "no copy is left: {left:?}");
    place.manager.shutdown().await;
}

#[tokio::test]
async fn model_mode_and_thinking_can_be_set_and_commands_passed_on() {
    let place = Place::new().await;
    let config = AgentSessionConfig { mode: Some("plan".into()), ..kept() };
    let session = place.start(config).await;
    assert_eq!(ask(&session, "mode").await, "plan");
    session.set_model("fake-2").await.expect("set");
    session.set_mode("build").await.expect("set");
    session.set_thinking("high").await.expect("set");
    assert_eq!(ask(&session, "model").await, "fake-2");
    assert_eq!(ask(&session, "mode").await, "build");
    assert_eq!(ask(&session, "thinking").await, "high");
    let info = session.info();
    let shown = (info.settings.model.as_deref(), info.settings.mode.as_deref(), info.settings.thinking.as_deref());
    assert_eq!(shown, (Some("fake-2"), Some("build"), Some("high")));

    let native = Json::from(&json!({ "method": "session/list", "params": {} }));
    let reply = session.native(native).await.expect("a reply").value();
    assert!(reply["result"]["sessions"].is_array(), "{reply}");
    assert!(session.state().await.expect("its state").value().is_object());
    let instructions = "retain the plum".to_owned();
    for operation in [Operation::Compact, Operation::CompactWith { instructions }, Operation::GetMessages] {
        let refused = session.operate(operation).await.expect_err("it cannot");
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    }
    let refused = session.set_model("unheard-of").await.expect_err("no such model");
    assert!(matches!(refused, Error::Unsupported { .. } | Error::AgentRefused { .. }), "{refused}");
    assert_eq!(session.info().settings.model.as_deref(), Some("fake-2"), "it was not changed");
    place.manager.shutdown().await;
}

#[tokio::test]
async fn a_prompt_holds_pictures_and_files() {
    let place = Place::new().await;
    let session = place.start(kept()).await;
    let parts = vec![
        PromptPart::Image { mime_type: "image/png".into(), data: "aGkh".into() },
        PromptPart::File { path: "/etc/hosts".into() },
        PromptPart::Text("blocks".into()),
    ];
    let answer = ask(&session, parts).await;
    assert_eq!(answer, "image/png:aGkh file:///etc/hosts text");
    place.manager.shutdown().await;
}

#[tokio::test]
async fn an_agent_that_takes_too_long_is_aborted_or_ended() {
    let place = Place::new().await;
    let timeouts = |action| Timeouts {
        first_response_ms: Some(1000),
        inactivity_ms: Some(1000),
        silence_ms: Some(50),
        action,
        ..Timeouts::default()
    };
    // It lets itself be aborted.
    let session = place.start(AgentSessionConfig { timeouts: timeouts(TimeoutAction::AbortTurn), ..kept() }).await;
    let turn = session.prompt("wait", PromptMode::Refuse).await.expect("prompted");
    let ended = soon("the turn's end", turn.wait()).await.expect("ended");
    assert_eq!(ended.timed_out, Some(TimeoutKind::FirstResponse));
    let mut events = session.subscribe();
    event(&mut events, "its silence", |envelope| matches!(envelope.event, Event::SessionSilent { .. }).then_some(()))
        .await;
    event(&mut events, "the clock", |envelope| {
        let fired = matches!(
            &envelope.event,
            Event::TimeoutFired {
                clock: TimeoutKind::FirstResponse,
                after_ms: 1000,
                action: TimeoutAction::AbortTurn,
                ..
            }
        );
        (fired).then_some(())
    })
    .await;
    // A tool may take its time.
    let turn = session.prompt("run sleep 1.5", PromptMode::Refuse).await.expect("prompted");
    assert_eq!(soon("the turn's end", turn.wait()).await.expect("ended").timed_out, None);
    end(&session).await;
    // One that does not is ended with all that it has.
    let config = AgentSessionConfig { timeouts: timeouts(TimeoutAction::KillSession), ..kept() };
    let session = place.start(config).await;
    let turn = session.prompt("say hm\nspawn exec sleep 300\nhang", PromptMode::Refuse).await.expect("prompted");
    // Its output ends before it does, or not.
    match soon("the session's end", turn.wait()).await {
        Ok(end) => assert_eq!(end.timed_out, Some(TimeoutKind::Inactivity)),
        Err(error) => assert!(matches!(error, Error::Ended { .. }), "{error}"),
    }
    let receipt = soon("the receipt", session.kill(KillOptions::NOW)).await.expect("killed");
    assert!(receipt.is_empty() && receipt.processes.len() >= 2, "{receipt:?}");
    let SessionState::Ended { reason, .. } = session.info().state else { panic!("{:?}", session.info()) };
    assert_eq!(reason, EndReason::TimedOut(TimeoutKind::Inactivity));
    place.manager.shutdown().await;
}
