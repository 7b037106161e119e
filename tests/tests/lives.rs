//! The lives of a session, as its record tells them: what a later manager knows of it, how long it may be idle, and what becomes of
//! it after a crash.

use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, SystemTime},
};

use agent_proxy_tests::{
    sessions::{self, event, soon},
    system::with_marker,
};
use proxy_manager::{
    AgentSessionConfig, AgentSpec, Budget, Builder, EndReason, Envelope, Error, Event, ExitStatus, KillOptions,
    Lifecycle, Limits, PermissionMode, ProcessId, PromptMode, ProxyManager, Restart, SessionFilter, SessionHandle,
    SessionRecord, SessionState, SessionStatus, Signal, Subscription, Timeouts,
};
use serde_json::{Value, json};
use tempfile::TempDir;

const FAKE: &str = env!("CARGO_BIN_EXE_fake-agent");

/// A manager in this directory, with an agent that keeps its conversations there.
fn builder(scratch: &TempDir) -> Builder {
    let home = scratch.path().join("home");
    fs::create_dir_all(&home).expect("made");
    let env = [("PATH", "/usr/bin:/bin"), ("HOME", home.to_str().expect("UTF-8"))].into_iter().collect();
    let mut kept = AgentSpec::new("kept", "acp", &[FAKE, "--store", "chats", "--modes"]);
    kept.session_config.session_dir_template = "{home}/chats".to_owned();
    sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), FAKE).base_env(env).agent(kept)
}

/// One that keeps sessions, in the state directory of the one before.
async fn keeping(scratch: &TempDir) -> ProxyManager {
    builder(scratch).state_dir(scratch.path().join("state")).build().await.expect("built")
}

async fn start(manager: &ProxyManager, lifecycle: Lifecycle) -> SessionHandle {
    let config = AgentSessionConfig { cwd: Some("/".into()), lifecycle, ..AgentSessionConfig::new("kept") };
    manager.start_session(config).await.expect("started")
}

async fn said(session: &SessionHandle, prompt: &str) {
    let turn = session.prompt(prompt, PromptMode::Refuse).await.expect("prompted");
    soon("the turn's end", turn.wait()).await.expect("ended");
}

fn kill(process: Option<ProcessId>) {
    let process = process.expect("it has one");
    registry::PidFd::open(process).and_then(|process| process.signal(Signal::Kill)).expect("signalled");
}

/// All that a record has of one, by name; times to the millisecond, as they are kept.
fn fields(record: &SessionRecord) -> serde_json::Map<String, Value> {
    match serde_json::to_value(record).expect("JSON") {
        Value::Object(fields) => fields,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_later_manager_reads_what_an_earlier_one_has_written_down_field_by_field() {
    let scratch = tempfile::tempdir().expect("a directory");
    let cwd = scratch.path().join("work");
    fs::create_dir(&cwd).expect("made");
    let manager = keeping(&scratch).await;
    let given = |key: &str| AgentSessionConfig {
        agent_type: Some("plan".into()),
        user_id: Some("ada".into()),
        workspace_id: Some("w-1".into()),
        cwd: Some(cwd.to_str().expect("UTF-8").to_owned()),
        model: Some("fake-2".into()),
        system_prompt: Some("be brief".into()),
        env: [("COLOUR", "red"), ("API_KEY", "hunter2")].into_iter().collect(),
        permission_mode: PermissionMode::Allow,
        max_turns: Some(50),
        limits: Limits { open_files: Some(200), ..Limits::default() },
        mode: Some("plan".into()),
        thinking: Some("high".into()),
        verbatim: Some(false),
        timeouts: Timeouts { turn_ms: Some(123_000), ..Timeouts::default() },
        runtime_context: true,
        depth: 1,
        lifecycle: Lifecycle {
            key: Some(key.into()),
            title: Some("Rouge".into()),
            tags: vec!["red".into(), "warm".into()],
            idle_suspend_ms: Some(3_600_000),
            resume_on_prompt: false,
            restart: Restart::OnCrash { max: 3, backoff_ms: 250 },
        },
        budget: Budget { total_tokens: Some(1_000), ..Budget::default() },
        ..AgentSessionConfig::new("kept")
    };
    let (resting, running) = (given("resting"), given("running"));
    let began = SystemTime::now();
    let first = manager.start_session(resting.clone()).await.expect("started");
    let second = manager.start_session(running.clone()).await.expect("started");
    let started = SystemTime::now();
    for session in [&first, &second] {
        said(session, "say one\ntokens 7 3").await;
    }
    manager.suspend_session(first.id(), KillOptions::NOW).await.expect("suspended");
    manager.archive_session(first.id(), true).await.expect("archived");
    let written = [&first, &second].map(|session| manager.record(session.id()).expect("kept"));
    let info = first.info();
    let file = scratch.path().join(format!("home/chats/{}.json", info.native_session_id.clone().expect("known")));
    // Each field by its name: a new one is missed here.
    let SessionRecord {
        session_id,
        status,
        reason,
        archived,
        handed_over,
        config,
        secrets,
        native_session_id,
        native_session_file,
        resumable,
        endpoint,
        home,
        host_execution_id,
        proxy,
        agent_process,
        created_at,
        updated_at,
        heartbeat,
        turns,
        messages,
        usage,
        turn_usage,
        last_offset,
    } = written[0].clone();
    assert_eq!((&session_id, status, reason), (first.id(), SessionStatus::Suspended, Some(EndReason::Suspended)));
    assert_eq!((archived, handed_over, resumable), (true, false, true));
    assert_eq!(config, resting.without_secrets());
    assert_eq!(secrets, ["API_KEY"]);
    assert_eq!((native_session_id, native_session_file.as_deref()), (info.native_session_id, file.to_str()));
    assert_eq!((endpoint, home, proxy, agent_process), (None, None, None, None));
    assert!(!host_execution_id.is_empty());
    assert!(began <= created_at && created_at <= started && created_at <= heartbeat && heartbeat <= updated_at);
    assert_eq!((turns, messages, usage.input_tokens, usage.output_tokens), (1, 2, Some(7), Some(3)));
    assert_eq!((turn_usage.turn, turn_usage.usage), (1, usage));
    assert_eq!(last_offset, info.last_offset);
    manager.shutdown().await;

    let manager = keeping(&scratch).await;
    let [was_resting, was_running] = written.map(|record| fields(&record));
    let [rests, ran] = [&first, &second].map(|session| fields(&manager.record(session.id()).expect("kept")));
    assert_eq!(rests, was_resting);
    // The end of its host is all that has come to this one.
    let changes = |name: &&String| ran.get(*name) != was_running.get(*name);
    let changed: BTreeSet<_> = ran.keys().filter(changes).map(String::as_str).collect();
    let expected = ["agentProcess", "heartbeat", "lastOffset", "proxy", "reason", "status", "updatedAt"];
    assert_eq!(changed, expected.into(), "{ran:?}");
    assert_eq!(ran.len(), was_running.len());
    let now = ["agentProcess", "proxy", "reason", "status"].map(|name| ran[name].clone());
    assert_eq!(now, [json!(null), json!(null), json!("shutdown"), json!("suspended")]);
    assert_eq!(ran["config"], serde_json::to_value(running.without_secrets()).expect("JSON"));
    // It is what is listed too.
    let all = SessionFilter { user_id: Some("ada".into()), archived: true, ..SessionFilter::default() };
    assert_eq!(manager.records(&all).len(), 2);
    manager.shutdown().await;
}

/// Here it is told; when the time is over: proxy-manager/src/manager/tests.rs.
#[tokio::test]
async fn a_session_that_says_nothing_of_it_may_be_idle_for_five_minutes_where_it_is_kept() {
    for (is_kept, after) in [(true, 300_000), (false, 0)] {
        let scratch = tempfile::tempdir().expect("a directory");
        let manager = if is_kept { keeping(&scratch).await } else { builder(&scratch).build().await.expect("built") };
        let session = start(&manager, Lifecycle::default()).await;
        let record = manager.record(session.id()).expect("kept");
        assert_eq!(record.config.lifecycle.idle_suspend_ms, Some(after));
        manager.shutdown().await;
    }
}

#[tokio::test]
async fn a_session_that_is_not_to_be_started_again_ends_with_its_agent_or_its_proxy() {
    let scratch = tempfile::tempdir().expect("a directory");
    let mut manager = keeping(&scratch).await;
    let mut ended = Vec::new();
    for kills_agent in [true, false] {
        let session = start(&manager, Lifecycle { restart: Restart::Never, ..Lifecycle::default() }).await;
        let (id, mut events) = (session.id().clone(), session.subscribe());
        said(&session, "say one").await;
        let info = session.info();
        assert!(info.resumable && info.native_session_id.is_some(), "there is something to go on with: {info:?}");
        kill(if kills_agent { info.agent_process } else { info.proxy });
        // The stream ends with it.
        let all = sessions::all(&mut events).await;
        let is = |wanted: fn(&Event) -> bool| all.iter().filter(|envelope| wanted(&envelope.event)).count();
        let lives = is(|event| matches!(event, Event::SessionStarted { .. }));
        let rests = is(|event| matches!(event, Event::SessionSuspended { .. } | Event::SessionResumed { .. }));
        assert_eq!((lives, rests), (1, 0), "{all:?}");
        let Event::SessionEnded { reason, receipt } = &all.last().expect("an end").event else { panic!("{all:?}") };
        let is_of_it = match reason {
            EndReason::AgentExited(exit) => kills_agent && *exit == Some(ExitStatus::Signal(9)),
            EndReason::ProxyDied(_) => !kills_agent,
            _ => false,
        };
        assert!(is_of_it && receipt.as_ref().is_some_and(|receipt| receipt.is_empty()), "{reason}: {receipt:?}");
        assert!(matches!(session.info().state, SessionState::Ended { .. }));
        for resumed in [
            manager.resume_session(&id).await.map(drop),
            manager.send_prompt(&id, "say two", PromptMode::Refuse).await.map(drop),
        ] {
            assert!(matches!(resumed, Err(Error::NotSuspended { .. } | Error::Ended { .. })), "{resumed:?}");
        }
        assert_eq!((manager.occupancy().running, with_marker(id.as_str())), (0, vec![]));
        ended.push(id);
    }
    // Nor does a later manager go on with it.
    manager.shutdown().await;
    manager = keeping(&scratch).await;
    for id in ended {
        let record = manager.record(&id).expect("kept");
        assert_eq!((record.status, with_marker(id.as_str())), (SessionStatus::Terminated, vec![]), "{record:?}");
    }
    manager.shutdown().await;
}

/// When the next event like this was made.
async fn made(events: &mut Subscription, what: &str, wanted: fn(&Event) -> bool) -> SystemTime {
    let made = |envelope: &Envelope| wanted(&envelope.event).then_some(envelope.created_at);
    event(events, what, made).await
}

/// By the times that its events tell.
#[tokio::test]
async fn the_pause_before_a_restart_is_waited_and_doubles() {
    const FIRST: Duration = Duration::from_millis(300);
    let scratch = tempfile::tempdir().expect("a directory");
    let manager = keeping(&scratch).await;
    let restart = Restart::OnCrash { max: 3, backoff_ms: FIRST.as_millis().try_into().expect("few") };
    let session = start(&manager, Lifecycle { restart, ..Lifecycle::default() }).await;
    let mut events = session.subscribe();
    for crash in 0..3 {
        made(&mut events, "idle", |event| matches!(event, Event::SessionIdle {})).await;
        kill(manager.session(session.id()).expect("known").info().agent_process);
        let crashed = made(&mut events, "a crash", |event| matches!(event, Event::SessionSuspended { .. })).await;
        let again = made(&mut events, "a restart", |event| matches!(event, Event::SessionResumed { .. })).await;
        let pause = again.duration_since(crashed).expect("it is later");
        assert!(pause >= FIRST * (1 << crash), "{crash}: {pause:?}");
    }
    manager.shutdown().await;
}
