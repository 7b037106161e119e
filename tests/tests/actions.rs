//! Things asked for on the stream: appended by anyone, done at most once.

use std::{cell::Cell, fs, path::Path, sync::Arc};

use agent_proxy_tests::{
    detach::{Host, asked_of_nobody, hold, kept},
    sessions::{self, all, event, fake, soon},
    system::until,
};
use event_log::{EventLog, LogOptions};
use proxy_manager::{
    ActionRule, AgentSessionConfig, AgentSpec, Envelope, Error, Event, HostDeath, Json, KillOptions, PromptMode,
    ProxyManager, SessionFilter, SessionHandle, SessionId, SessionState, Subscription,
};
use serde_json::{Value, json};
use tempfile::TempDir;

const FAKE: &str = env!("CARGO_BIN_EXE_fake-agent");

fn builder() -> proxy_manager::ManagerBuilder {
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

/// Nothing is the turn's before there is one: all would be, the agent too.
#[tokio::test]
async fn an_abort_with_kill_leaves_the_agent_before_its_first_turn_and_in_one() {
    let manager = builder().build().await.expect("built");
    let session = manager.start_session(fake()).await.expect("started");
    let mut events = session.subscribe();
    let agent = session.info().processes.agent_process;
    let abort = json!({"killTurn": true});
    append(&manager, &session, "agent:action:abort:called", abort.clone()).await;
    append(&manager, &session, "agent:action:prompt:called", json!({"content": "spawn exec sleep 1000\nwait"})).await;
    event(&mut events, "the child", |envelope| match &envelope.event {
        Event::Text { text } if text.starts_with("spawn ") => Some(()),
        _ => None,
    })
    .await;
    let started = session.processes().await.expect("listed");
    let child = started.iter().find(|process| process.command.as_deref() == Some("sleep")).expect("it runs").id;
    append(&manager, &session, "agent:action:abort:called", abort).await;
    event(&mut events, "the end of what the turn started", |envelope| match &envelope.event {
        Event::ProcessExited { process, .. } if *process == child => Some(()),
        _ => None,
    })
    .await;
    append(&manager, &session, "agent:action:prompt:called", json!({"content": "say still here"})).await;
    text(&mut events, "still here").await;
    assert_eq!(session.info().processes.agent_process, agent);
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
    let mut events = manager.subscribe_from(session.id(), 0).expect("known");
    append(&manager, &session, "agent:action:prompt:called", json!({"content": "history"})).await;
    text(&mut events, "0 before").await;
    // The agent has kept it.
    event(&mut events, "the turn's end", |e| matches!(e.event, Event::Complete { .. }).then_some(())).await;
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
    // It waits for the resume, and is listed meanwhile.
    let listed = queued(&manager, session.id()).await;
    assert_eq!(listed, ["history"]);
    assert_eq!(manager.record(session.id()).expect("kept").queued, 1);
    soon("the resume", manager.resume_session(session.id())).await.expect("resumed");
    said_until(&manager, &session, "0 before").await;
    assert_eq!(queued(&manager, session.id()).await, [""; 0]);
    manager.shutdown().await;
    let manager = lasting(&scratch).await;
    append(&manager, &session, "agent:action:prompt:called", json!({"content": "history"})).await;
    assert_eq!(said_until(&manager, &session, "1 before").await, ["0 before", "1 before"]);
    manager.shutdown().await;
}

/// The prompts that wait in a session, once those of earlier managers are there.
async fn queued(manager: &ProxyManager, id: &SessionId) -> Vec<String> {
    // Behind what is looked for at the beginning.
    let event = manager.append_event(id, "agent:action:dance:called", 1, Json::null());
    let at = soon("the append", event).await.expect("appended");
    let name = format!(" at {at:020}");
    event_of(manager, id, |event| matches!(event, Event::ActionFailed { action, .. } if action.ends_with(&name))).await;
    let info = manager.session(id).expect("known").info();
    info.queued.into_iter().map(|prompt| prompt.text).collect()
}

async fn event_of(manager: &ProxyManager, id: &SessionId, is_it: impl Fn(&Event) -> bool) {
    let mut events = manager.subscribe_from(id, 0).expect("known");
    event(&mut events, "an event", |envelope| is_it(&envelope.event).then_some(())).await;
}

/// A host that can be killed, with a suspended session.
fn at_rest(state: &Path) -> (Host, SessionId) {
    let mut host = Host::start(env!("CARGO_BIN_EXE_detach-host"), env!("CARGO_BIN_EXE_proxy-child"), FAKE, state);
    let config = AgentSessionConfig { cwd: Some("/".into()), ..AgentSessionConfig::new("kept") };
    host.session(&config);
    host.suspend(&config.session_id);
    (host, config.session_id)
}

/// A host is killed that has been asked for things of a session at rest: one of them is being done, the others wait; or some are done.
#[tokio::test]
async fn what_is_asked_of_a_session_at_rest_is_done_once_though_the_host_is_killed_meanwhile() {
    const PROMPT: &str = "agent:action:prompt:called";
    for is_held in [true, false] {
        let scratch = tempfile::tempdir().expect("a directory");
        let state = scratch.path().join("state");
        let (mut host, id) = at_rest(&state);
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
        let begun = cursor_of_the_dead(&state, &id, "prompts:begun");
        if is_held {
            assert!(begun < asked[0].0, "the agent is not there, so none was begun: {begun}");
            fs::remove_file(hold(&state)).expect("removed");
        }
        let manager = next(&state).await;
        let mut events = manager.subscribe_from(&id, 0).expect("known");
        let last = json!({ "content": "say last" });
        soon("the append", manager.append_event(&id, PROMPT, 1, Json::from(&last))).await.expect("appended");
        let (mut turns, mut failed) = (Vec::new(), Vec::new());
        event(&mut events, "the last turn", |envelope| {
            match &envelope.event {
                Event::ActionFailed { action, .. } => failed.push(action.clone()),
                Event::TurnStarted { prompt, .. } => turns.push(prompt.clone()),
                _ => {}
            }
            (turns.last()? == "say last").then_some(())
        })
        .await;
        // Each has its turn, in order. One whose turn its host did not see the end of is told as failed beside that.
        let prompts: Vec<_> = asked.iter().map(|(_, prompt)| prompt.as_str()).chain(["say last"]).collect();
        assert_eq!(turns, prompts, "{begun}");
        let of_begun = |action: &String| action.ends_with(&format!(" at {begun:020}"));
        assert!(failed.iter().all(of_begun) && failed.len() <= 1, "{failed:?}, {begun}");
        manager.shutdown().await;
    }
}

/// What came of an action of which a manager tells the failure.
fn failures_at(all: &[Arc<Envelope>], at: u64) -> Vec<&str> {
    let end = format!(" at {at:020}");
    let failed = all.iter().filter_map(|envelope| match &envelope.event {
        Event::ActionFailed { action, error } if action.ends_with(&end) => Some(error.as_str()),
        _ => None,
    });
    failed.collect()
}

/// All of a session's events up to the one that `is_last`, or its end.
async fn until_event(
    manager: &ProxyManager,
    id: &SessionId,
    is_last: impl Fn(&Envelope) -> bool,
) -> Vec<Arc<Envelope>> {
    let (mut events, mut all) = (manager.subscribe_from(id, 0).expect("kept"), Vec::new());
    soon("the last of these events", async {
        while let Some(envelope) = events.next().await {
            let was_last = is_last(&envelope);
            all.push(envelope);
            if was_last {
                break;
            }
        }
    })
    .await;
    all
}

fn tagged(manager: &ProxyManager, tag: &str) -> usize {
    manager.records(&SessionFilter { tag: Some(tag.to_owned()), ..SessionFilter::default() }).len()
}

/// Each thing that can be asked for of a session at rest, or by it: what its host was doing when it was killed is told, the rest is
/// done by the next one, and nothing by the one after that.
#[tokio::test]
async fn everything_comes_to_one_end_though_the_host_is_killed_meanwhile() {
    // The host is killed while it does the first, or when so many ends of these were told.
    for ends in [0, 1, 2, 4] {
        let scratch = tempfile::tempdir().expect("a directory");
        let state = scratch.path().join("state");
        let (mut host, id) = at_rest(&state);
        if ends == 0 {
            fs::write(hold(&state), "").expect("written");
        }
        let create = |tag| json!({"config": {"agent": "kept", "cwd": "/", "lifecycle": {"tags": [tag]}}});
        let asked: Vec<_> = [
            ("session-create", create("one")),
            ("steer", json!({"content": "left"})),
            ("session-create", create("two")),
            ("abort", Value::Null),
            ("permission-respond", json!({"id": "x", "answer": "allow"})),
            ("session-create", create("three")),
            ("session-destroy", json!({"graceMs": 0})),
        ]
        .into_iter()
        .map(|(verb, payload)| (host.append(&id, &format!("agent:action:{verb}:called"), &payload), verb, payload))
        .collect();
        if ends > 0 {
            let told = Cell::new(0);
            host.line("an end", |line| {
                let is_end = line["type"] == "action:failed" || line["payload"]["status"] == "sessionCreated";
                told.set(told.get() + usize::from(is_end && line["eventStreamId"] == id.as_str()));
                (told.get() >= ends).then_some(())
            });
        }
        host.kill();
        let claimed = claimed_by_the_dead(&state, &id);
        if ends == 0 {
            assert_eq!(claimed, asked[0].0, "the first is being done, the others wait for it");
            fs::remove_file(hold(&state)).expect("removed");
        }
        let manager = next(&state).await;
        let last = asked[6].0;
        let is_last = |envelope: &Envelope| match &envelope.event {
            Event::ActionFailed { action, .. } => action.ends_with(&format!(" at {last:020}")),
            Event::SessionEnded { .. } => true,
            _ => false,
        };
        let all = until_event(&manager, &id, is_last).await;
        let told_of = |tag: &str| {
            let created = all.iter().filter_map(|envelope| match &envelope.event {
                Event::SessionStatus { status, detail } if status == "sessionCreated" => {
                    Some(detail.parse().expect("an id"))
                }
                _ => None,
            });
            created.filter(|id| manager.record(id).expect("kept").config.lifecycle.tags == [tag]).count()
        };
        let mut tags = Vec::new();
        for (at, verb, payload) in &asked {
            let (failed, what) =
                (failures_at(&all, *at), format!("{ends}: {verb} at {at}, claimed {claimed}: {all:?}"));
            let done = match *verb {
                "session-create" => {
                    let tag = payload["config"]["lifecycle"]["tags"][0].as_str().expect("a tag");
                    tags.push((tag, tagged(&manager, tag)));
                    assert!(tagged(&manager, tag) <= 1, "{what}");
                    told_of(tag)
                }
                "session-destroy" => all.iter().filter(|e| matches!(e.event, Event::SessionEnded { .. })).count(),
                _ => 0,
            };
            // What was begun by the dead may have been done before it could be told.
            let most = if *at == claimed { 2 } else { 1 };
            assert!((1..=most).contains(&(failed.len() + done)) && failed.len() <= 1 && done <= 1, "{what}");
            if *at > claimed && matches!(*verb, "session-create" | "session-destroy") {
                assert_eq!(done, 1, "{what}");
            }
            if *at == claimed && ends == 0 {
                assert!(failed.len() == 1 && failed[0].contains("its host ended"), "{what}");
            }
        }
        manager.shutdown().await;
        let manager = next(&state).await;
        for (tag, before) in tags {
            assert_eq!(tagged(&manager, tag), before, "{tag}");
        }
        let later = until_event(&manager, &id, is_last).await;
        for (at, ..) in &asked {
            assert_eq!(failures_at(&later, *at), failures_at(&all, *at));
        }
        manager.shutdown().await;
    }
}

/// What is asked of a turn that goes on without its host.
#[tokio::test]
async fn what_is_asked_of_a_turn_is_done_once_though_the_host_is_killed_meanwhile() {
    for last in ["abort", "session-destroy"] {
        // The host is killed when the agent has said this.
        for said in [None, Some("permission: allow-once"), Some("steered: left"), Some("steered: right")] {
            let scratch = tempfile::tempdir().expect("a directory");
            let state = scratch.path().join("state");
            let mut host =
                Host::start(env!("CARGO_BIN_EXE_detach-host"), env!("CARGO_BIN_EXE_proxy-child"), FAKE, &state);
            // One that a failed test leaves ends itself soon.
            let on_host_death = HostDeath::Detach { fetch_within_ms: 60_000, spool_bytes: 1 << 20 };
            let config = AgentSessionConfig { on_host_death, ..fake() };
            let id = config.session_id.clone();
            host.session(&config);
            host.prompt(id.as_str(), "ask may I\nwait");
            let request = host.line("the request", |line| {
                let is_it = line["type"] == "permission:requested" && line["eventStreamId"] == id.as_str();
                is_it.then(|| line["payload"]["id"].as_str().map(str::to_owned)).flatten()
            });
            let append = |host: &mut Host, verb: &str, payload: Value| {
                host.append(&id, &format!("agent:action:{verb}:called"), &payload)
            };
            let until_said = |host: &mut Host, said: &str| {
                host.line(said, |line| {
                    let text = line["payload"]["text"].as_str().unwrap_or_default();
                    (text.trim() == said && line["eventStreamId"] == id.as_str()).then_some(())
                });
            };
            let [answer, left, right] = [
                ("permission-respond", json!({"id": request, "answer": "allow"})),
                ("steer", json!({"content": "left"})),
                ("steer", json!({"content": "right"})),
            ]
            .map(|(verb, payload)| append(&mut host, verb, payload));
            // An agent that is ended may not have said what it was told before.
            let is_late = last == "session-destroy" && said.is_some();
            let early = (!is_late).then(|| append(&mut host, last, Value::Null));
            said.iter().for_each(|said| until_said(&mut host, said));
            let end = early.unwrap_or_else(|| append(&mut host, last, Value::Null));
            let asked = [answer, left, right, end];
            host.kill();
            let manager = next(&state).await;
            let all = until_event(&manager, &id, |envelope| match &envelope.event {
                Event::ActionFailed { action, .. } => action.ends_with(&format!(" at {end:020}")),
                Event::Complete { .. } => last == "abort",
                _ => false,
            })
            .await;
            let texts = |wanted: &str| {
                let is_it = |envelope: &&Arc<Envelope>| matches!(&envelope.event, Event::Text { text } if text.trim() == wanted);
                all.iter().filter(is_it).count()
            };
            let is_end = |envelope: &&Arc<Envelope>| match &envelope.event {
                Event::Complete { .. } => last == "abort",
                Event::SessionEnded { .. } => true,
                _ => false,
            };
            let done = [
                texts("permission: allow-once"),
                texts("steered: left"),
                texts("steered: right"),
                all.iter().filter(is_end).count(),
            ];
            for (done, at) in done.into_iter().zip(asked) {
                let failed = failures_at(&all, at);
                let what = format!("{last}, {said:?}: {at} was done {done} times, and failed: {failed:?}; {all:?}");
                assert!(done <= 1 && failed.len() <= 1, "{what}");
                // An agent that is killed may not have said yet what it was told.
                assert!(done + failed.len() >= 1 || (last == "session-destroy" && at != asked[3]), "{what}");
                assert!(failed.iter().all(|error| error.contains("its host ended")), "{what}");
            }
            manager.shutdown().await;
        }
    }
}

/// The next manager of what a killed host has left.
async fn next(state: &Path) -> ProxyManager {
    let env = [("PATH", "/usr/bin:/bin")].into_iter().collect();
    let kept = kept(FAKE, state.to_str().expect("UTF-8"));
    let builder = builder().agent(kept).base_env(env).state_dir(state.to_owned());
    until("the dead host's lock is free", || EventLog::open(state.join("log.sqlite"), LogOptions::default()).ok());
    builder.build().await.expect("built")
}

/// Up to where a host that is dead has done, or begun to do, what was asked of a session.
fn claimed_by_the_dead(state: &Path, id: &SessionId) -> u64 {
    cursor_of_the_dead(state, id, "actions")
}

fn cursor_of_the_dead(state: &Path, id: &SessionId, consumer: &str) -> u64 {
    let log = until("the log is free", || EventLog::open(state.join("log.sqlite"), LogOptions::default()).ok());
    log.cursor(consumer, id).expect("read")
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
    soon("the resume", manager.resume_session(session.id())).await.expect("resumed");
    assert_eq!(said_until(&manager, &session, "0 before").await, ["0 before"]);
    manager.shutdown().await;
}

/// A session whose turn runs, with a queued prompt and an appended one behind it; where the two are.
async fn with_queue(manager: &ProxyManager) -> (SessionHandle, [u64; 2]) {
    let session = start(manager).await;
    let mut events = session.subscribe();
    session.prompt("say one\nwait", PromptMode::Refuse).await.expect("prompted");
    text(&mut events, "one").await;
    session.prompt("say two", PromptMode::Queue).await.expect("queued");
    let at = append(manager, &session, "agent:action:prompt:called", json!({"content": "say three"})).await;
    assert_eq!(queued(manager, session.id()).await, ["say two", "say three"]);
    let first = session.info().queued[0].offset;
    (session, [first, at])
}

#[tokio::test]
async fn a_prompt_that_waits_for_its_turn_in_vain_is_told() {
    let scratch = tempfile::tempdir().expect("a directory");
    let manager = lasting(&scratch).await;
    let (session, [first, at]) = with_queue(&manager).await;
    manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
    // They wait for the resume, which never comes.
    assert_eq!(queued(&manager, session.id()).await, ["say two", "say three"]);
    manager.kill_session(session.id(), KillOptions::NOW).await.expect("ended");
    let all =
        until_event(&manager, session.id(), |envelope| matches!(envelope.event, Event::SessionEnded { .. })).await;
    assert_eq!((failures_at(&all, first).len(), failures_at(&all, at).len()), (1, 1), "{all:?}");
    manager.shutdown().await;
}

#[tokio::test]
async fn what_is_queued_is_done_in_order_at_the_next_resume_here_or_by_the_next_manager() {
    for is_next in [false, true] {
        let scratch = tempfile::tempdir().expect("a directory");
        let mut manager = lasting(&scratch).await;
        let (session, _) = with_queue(&manager).await;
        if is_next {
            manager.shutdown().await;
            manager = lasting(&scratch).await;
        } else {
            manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
        }
        // A prompt resumes it, and comes behind them.
        soon("the prompt", manager.send_prompt(session.id(), "say four", PromptMode::Queue)).await.expect("queued");
        assert_eq!(said_until(&manager, &session, "four").await, ["one", "two", "three", "four"]);
        manager.shutdown().await;
    }
}

#[tokio::test]
async fn deletion_tells_what_waits() {
    let scratch = tempfile::tempdir().expect("a directory");
    let manager = lasting(&scratch).await;
    let (session, [first, at]) = with_queue(&manager).await;
    manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
    let mut events = manager.subscribe_from(session.id(), at).expect("known");
    manager.delete_session(session.id()).await.expect("deleted");
    let mut failed = Vec::new();
    while !failed.iter().any(|action: &String| action.ends_with(&format!(" at {at:020}"))) {
        failed.push(failure(&mut events).await.0);
    }
    assert!(failed.iter().any(|action| action.ends_with(&format!(" at {first:020}"))), "{failed:?}");
    manager.shutdown().await;
}

#[tokio::test]
async fn a_rule_whose_action_finds_no_room_leaves_nothing_in_the_stream() {
    let rule: ActionRule =
        serde_json::from_value(json!({"on": "slack:*", "action": "prompt", "payload": {"content": "say {text}"}}))
            .expect("a rule");
    let manager = builder().rules([rule]).build().await.expect("built");
    let session = manager.start_session(fake()).await.expect("started");
    let mut events = session.subscribe();
    session.prompt("say one\nwait", PromptMode::Refuse).await.expect("prompted");
    text(&mut events, "one").await;
    for n in 0..64 {
        session.prompt(format!("say {n}"), PromptMode::Queue).await.expect("queued");
    }
    let before = session.info().last_offset;
    for _ in 0..2 {
        let refused = manager.append_event(session.id(), "slack:received", 1, Json::from(&json!({"text": "x"}))).await;
        assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    }
    assert_eq!(session.info().last_offset, before, "a retry doubles nothing");
    // With room the event and what is made of it are appended together; the offset is the event's.
    session.abort(ipc_protocol::AbortPolicy::LeaveProcesses).await.expect("aborted");
    text(&mut events, "0").await;
    let at = append(&manager, &session, "slack:received", json!({"text": "last"})).await;
    let mut two = session.subscribe_from(at - 1);
    for wanted in ["slack:received", "agent:action:prompt:called"] {
        let envelope = soon("an event", two.next()).await.expect("kept");
        assert!(matches!(&envelope.event, Event::External { kind, .. } if &**kind == wanted), "{envelope:?}");
    }
    text(&mut events, "last").await;
    manager.shutdown().await;
}
