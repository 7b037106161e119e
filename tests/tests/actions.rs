//! Things asked for on the stream: appended by anyone, done at most once.

use std::{fs, path::Path};

use agent_proxy_tests::{
    detach::{Host, asked_of_nobody, hold, kept},
    sessions::{self, all, event, fake, soon},
    system::until,
};
use event_log::{EventLog, Options};
use proxy_manager::{
    ActionRule, AgentSessionConfig, AgentSpec, Envelope, Error, Event, Json, KillOptions, PromptMode, ProxyManager,
    SessionHandle, SessionId, SessionState, Subscription,
};
use serde_json::{Value, json};
use tempfile::TempDir;

const FAKE: &str = env!("CARGO_BIN_EXE_fake-agent");

fn builder() -> proxy_manager::Builder {
    sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), FAKE)
}

async fn append(manager: &ProxyManager, session: &SessionHandle, kind: &str, payload: Value) -> u64 {
    soon("the append", manager.append_event(session.id(), kind, 1, Json::from(&payload))).await.expect("appended")
}

async fn text(events: &mut Subscription, wanted: &str) {
    event(events, wanted, |envelope| match &envelope.event {
        Event::Text { text } if text.trim() == wanted => Some(()),
        _ => None,
    })
    .await;
}

async fn failure(events: &mut Subscription) -> (String, String) {
    event(events, "a failure", |envelope| match &envelope.event {
        Event::ActionFailed { action, error } => Some((action.clone(), error.clone())),
        _ => None,
    })
    .await
}

#[tokio::test]
async fn who_may_append_may_prompt_abort_and_end() {
    let manager = builder().build().await.expect("built");
    let session = manager.start_session(fake()).await.expect("started");
    let mut events = session.subscribe();
    let first = append(&manager, &session, "agent:action:prompt:called", json!({"content": "say one"})).await;
    append(&manager, &session, "iterate:agent:action:send-user-message:called", json!({"text": "say two\nwait"})).await;
    text(&mut events, "one").await;
    text(&mut events, "two").await;
    append(&manager, &session, "agent:action:abort:called", Value::Null).await;
    event(&mut events, "the end of the turn", |envelope| {
        matches!(envelope.event, Event::Complete { .. }).then_some(())
    })
    .await;
    append(&manager, &session, "agent:action:session-create:called", json!({"config": {"agent": "fake"}})).await;
    let created = event(&mut events, "another session", |envelope| match &envelope.event {
        Event::SessionStatus { status, detail } if status == "sessionCreated" => Some(detail.clone()),
        _ => None,
    })
    .await;
    let created = manager.session(&created.parse().expect("an id")).expect("started");
    append(&manager, &created, "harness:fake:action:session-destroy:called", json!({"graceMs": 0})).await;
    all(&mut created.subscribe()).await;
    // What was asked for is on the stream, before what came of it.
    let history = manager.session(session.id()).expect("known").subscribe_from(first - 1).next().await.expect("kept");
    let asked =
        matches!(&history.event, Event::External { kind, version: 1, .. } if &**kind == "agent:action:prompt:called");
    assert!(asked && history.offset == first, "{history:?}");
    manager.shutdown().await;
}

#[tokio::test]
async fn what_cannot_be_done_is_told_and_what_is_nobodys_passes() {
    let manager = builder().build().await.expect("built");
    let session = manager.start_session(fake()).await.expect("started");
    let mut events = session.subscribe();
    let at = append(&manager, &session, "agent:action:prompt:called", json!({"nothing": 1})).await;
    let (action, error) = failure(&mut events).await;
    assert_eq!(action, format!("agent:action:prompt:called at {at:020}"));
    assert!(error.contains("does not fit"), "{error}");
    append(&manager, &session, "agent:action:dance:called", json!({})).await;
    assert!(failure(&mut events).await.1.contains("there are prompt"));
    append(&manager, &session, "harness:pi:action:abort:called", json!({})).await;
    assert!(failure(&mut events).await.1.contains("\"pi\""));
    append(&manager, &session, "agent:action:permission-respond:called", json!({"id": "x", "answer": "allow"})).await;
    assert!(failure(&mut events).await.1.contains("\"x\""));
    append(&manager, &session, "slack:webhook-received", json!({"text": "hi"})).await;
    let passed = |envelope: &Envelope| match &envelope.event {
        Event::External { kind, payload, .. } if &**kind == "slack:webhook-received" => Some(payload.value()),
        _ => None,
    };
    assert_eq!(event(&mut events, "it", passed).await, json!({"text": "hi"}));
    // Nobody appends what only we say.
    for kind in ["session:ended", "stream:text", "harness:pi:event-received", "", "two words"] {
        let refused = manager.append_event(session.id(), kind, 1, Json::null()).await;
        assert!(matches!(refused, Err(Error::InvalidConfig { field: "type", .. })), "{kind}: {refused:?}");
    }
    session.kill(KillOptions::NOW).await.expect("killed");
    let late = manager.append_event(session.id(), "x:y", 1, Json::null()).await;
    assert!(matches!(late, Err(Error::Ended { .. })), "{late:?}");
    manager.shutdown().await;
}

#[tokio::test]
async fn rules_make_actions_of_what_others_append() {
    let rule: ActionRule = serde_json::from_value(
        json!({"on": "slack:*", "action": "prompt", "payload": {"content": "say {user}: {text}"}}),
    )
    .expect("a rule");
    let manager = builder().rules([rule]).build().await.expect("built");
    let session = manager.start_session(fake()).await.expect("started");
    let mut events = session.subscribe();
    append(&manager, &session, "slack:webhook-received", json!({"user": "ada", "text": "hello"})).await;
    text(&mut events, "ada: hello").await;
    append(&manager, &session, "mail:received", json!({"text": "nobody's"})).await;
    manager.shutdown().await;
}

#[tokio::test]
async fn who_may_append_may_steer_and_answer() {
    let manager = builder().build().await.expect("built");
    let session = manager.start_session(fake()).await.expect("started");
    let mut events = session.subscribe();
    append(&manager, &session, "agent:action:prompt:called", json!({"content": "ask may I\nsay there\nwait"})).await;
    let request = event(&mut events, "a request", |envelope| match &envelope.event {
        Event::PermissionRequested(request) => Some(request.id.clone()),
        _ => None,
    })
    .await;
    let answer = json!({"id": request, "answer": "allow"});
    append(&manager, &session, "agent:action:permission-respond:called", answer).await;
    text(&mut events, "permission: allow-once").await;
    text(&mut events, "there").await;
    append(&manager, &session, "agent:action:steer:called", json!({"content": "left"})).await;
    text(&mut events, "steered: left").await;
    manager.shutdown().await;
}

/// An agent whose conversations last, and a state directory.
async fn lasting(scratch: &TempDir) -> ProxyManager {
    let env = [("PATH", "/usr/bin:/bin"), ("HOME", scratch.path().to_str().expect("UTF-8"))].into_iter().collect();
    let kept = AgentSpec::new("kept", "acp", &[FAKE, "--store", "chats"]);
    builder().agent(kept).base_env(env).state_dir(scratch.path().join("state")).build().await.expect("built")
}

async fn start(manager: &ProxyManager) -> SessionHandle {
    let config = AgentSessionConfig { cwd: Some("/".into()), ..AgentSessionConfig::new("kept") };
    manager.start_session(config).await.expect("started")
}

/// What the agent has said since the session began, up to this.
async fn said_until(manager: &ProxyManager, session: &SessionHandle, last: &str) -> Vec<String> {
    let mut said = Vec::new();
    event(&mut manager.subscribe_from(session.id(), 0).expect("known"), last, |envelope| {
        let Event::Text { text } = &envelope.event else { return None };
        said.push(text.trim().to_owned());
        (text.trim() == last).then_some(())
    })
    .await;
    said
}

/// What was appended to a suspended session resumes it; and is done once, whoever dies.
#[tokio::test]
async fn an_action_is_done_once_across_managers() {
    let scratch = tempfile::tempdir().expect("a directory");
    let manager = lasting(&scratch).await;
    let session = start(&manager).await;
    manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
    let mut events = manager.subscribe(session.id()).expect("known");
    append(&manager, &session, "agent:action:prompt:called", json!({"content": "history"})).await;
    text(&mut events, "0 before").await;
    manager.shutdown().await;
    let manager = lasting(&scratch).await;
    let info = manager.session(session.id()).expect("kept").info();
    assert!(matches!(info.state, SessionState::Suspended { .. }));
    append(&manager, &session, "agent:action:prompt:called", json!({"content": "history"})).await;
    assert_eq!(said_until(&manager, &session, "1 before").await, ["0 before", "1 before"]);
    manager.shutdown().await;
}

/// Asked of a session at rest, by whoever died before it was done.
#[tokio::test]
async fn what_is_asked_of_a_session_at_rest_is_done_by_the_next_manager_and_once() {
    let scratch = tempfile::tempdir().expect("a directory");
    let manager = lasting(&scratch).await;
    let session = start(&manager).await;
    manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
    manager.shutdown().await;
    asked_of_nobody(&scratch.path().join("state"), session.id(), "history");
    let manager = lasting(&scratch).await;
    said_until(&manager, &session, "0 before").await;
    manager.shutdown().await;
    let manager = lasting(&scratch).await;
    append(&manager, &session, "agent:action:prompt:called", json!({"content": "history"})).await;
    assert_eq!(said_until(&manager, &session, "1 before").await, ["0 before", "1 before"]);
    manager.shutdown().await;
}

/// A host is killed that has been asked for things of a session at rest: one of them is being done, the others wait; or some are done.
#[tokio::test]
async fn what_is_asked_of_a_session_at_rest_is_done_once_though_the_host_is_killed_meanwhile() {
    const PROMPT: &str = "agent:action:prompt:called";
    for is_held in [true, false] {
        let scratch = tempfile::tempdir().expect("a directory");
        let state = scratch.path().join("state");
        let mut host = Host::start(env!("CARGO_BIN_EXE_detach-host"), env!("CARGO_BIN_EXE_proxy-child"), FAKE, &state);
        let config = AgentSessionConfig { cwd: Some("/".into()), ..AgentSessionConfig::new("kept") };
        let id = config.session_id.clone();
        host.session(&config);
        host.suspend(&id);
        if is_held {
            fs::write(hold(&state), "").expect("written");
        }
        let asked: Vec<_> = (1..=4)
            .map(|n| {
                let prompt = format!("say {n}");
                (host.append(&id, PROMPT, &json!({ "content": prompt })), prompt)
            })
            .collect();
        if !is_held {
            host.line("a turn", |line| (line["payload"]["prompt"] == "say 2").then_some(()));
        }
        host.kill();
        let claimed = claimed_by_the_dead(&state, &id);
        if is_held {
            assert_eq!(claimed, asked[0].0, "the first is being done, the others wait for it");
            fs::remove_file(hold(&state)).expect("removed");
        }
        let env = [("PATH", "/usr/bin:/bin")].into_iter().collect();
        let kept = kept(FAKE, state.to_str().expect("UTF-8"));
        let manager = builder().agent(kept).base_env(env).state_dir(state).build().await.expect("built");
        let mut events = manager.subscribe_from(&id, 0).expect("known");
        let last = json!({ "content": "say last" });
        soon("the append", manager.append_event(&id, PROMPT, 1, Json::from(&last))).await.expect("appended");
        let mut turns = Vec::new();
        event(&mut events, "the last turn", |envelope| {
            let Event::TurnStarted { prompt, .. } = &envelope.event else { return None };
            turns.push(prompt.clone());
            (prompt == "say last").then_some(())
        })
        .await;
        for (offset, prompt) in &asked {
            let times = turns.iter().filter(|turn| *turn == prompt).count();
            assert!(times <= 1 && (times == 1 || *offset <= claimed), "{prompt} at {offset}: {turns:?}, {claimed}");
        }
        manager.shutdown().await;
    }
}

/// Up to where a host that is dead has done, or begun to do, what was asked of a session.
fn claimed_by_the_dead(state: &Path, id: &SessionId) -> u64 {
    let log = until("the log is free", || EventLog::open(state.join("log.sqlite"), Options::default()).ok());
    log.cursor("actions", id).expect("read")
}

#[tokio::test]
async fn what_waits_at_a_shutdown_is_done_by_the_next_manager() {
    let scratch = tempfile::tempdir().expect("a directory");
    let manager = lasting(&scratch).await;
    let session = start(&manager).await;
    // This test has one thread: nothing is done between the append and the beginning of the shutdown.
    append(&manager, &session, "agent:action:prompt:called", json!({"content": "history"})).await;
    manager.shutdown().await;
    let manager = lasting(&scratch).await;
    assert_eq!(said_until(&manager, &session, "0 before").await, ["0 before"]);
    manager.shutdown().await;
}

#[tokio::test]
async fn a_prompt_that_waits_for_its_turn_in_vain_is_told() {
    let scratch = tempfile::tempdir().expect("a directory");
    let manager = lasting(&scratch).await;
    let session = start(&manager).await;
    let mut events = session.subscribe();
    session.prompt("say one\nwait", PromptMode::Refuse).await.expect("prompted");
    text(&mut events, "one").await;
    let at = append(&manager, &session, "agent:action:prompt:called", json!({"content": "say two"})).await;
    // What is asked for next is done after it was taken.
    append(&manager, &session, "agent:action:dance:called", json!({})).await;
    failure(&mut events).await;
    manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
    let (action, error) = failure(&mut events).await;
    assert_eq!(action, format!("agent:action:prompt:called at {at:020}"), "{error}");
    manager.shutdown().await;
}
