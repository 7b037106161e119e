//! Sessions that outlive their processes: suspended, resumed, handed over, started again.

use std::{fs, time::Duration};

use agent_proxy_tests::{
    sessions::{self, event, said, soon},
    system::is_alive,
};
use proxy_manager::{
    AgentSessionConfig, AgentSpec, Budget, Builder, EndReason, EnvVars, Envelope, Error, Event, ExitStatus, Home,
    KillOptions, Lifecycle, ModelConfig, NOT_KEPT, Profile, Profiles, PromptMode, ProxyManager, Restart, ResumeOptions,
    Retention, SessionFilter, SessionHandle, SessionId, SessionInfo, SessionState, SessionStatus, Signal, Snapshot,
    Subscription,
};
use serde_json::{Value, json};
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

    async fn manager(scratch: &TempDir) -> ProxyManager {
        Self::builder(scratch).build().await.expect("built")
    }

    fn builder(scratch: &TempDir) -> Builder {
        Self::without_state(scratch).state_dir(scratch.path().join("state"))
    }

    /// One that keeps events in memory only.
    fn without_state(scratch: &TempDir) -> Builder {
        let home = scratch.path().join("home").to_str().expect("UTF-8").to_owned();
        let env = [("PATH", "/usr/bin:/bin"), ("HOME", &home)].into_iter().collect();
        let mut kept = AgentSpec::new("kept", "acp", &[FAKE, "--store", "chats", "--modes"]);
        kept.session_config.session_dir_template = "{home}/chats".to_owned();
        kept.env = [("KEPT_KEY", "{key}")].into_iter().collect();
        kept.session_config.attach_command = ["kept", "--resume", "{id}"].map(str::to_owned).to_vec();
        let mut passing = AgentSpec { id: "passing".to_owned(), ..kept.clone() };
        passing.session_config.can_recover = Some(false);
        sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), FAKE).base_env(env).agent(kept).agent(passing)
    }

    async fn start(&self, lifecycle: Lifecycle) -> SessionHandle {
        let config = AgentSessionConfig { cwd: Some("/".into()), lifecycle, ..AgentSessionConfig::new("kept") };
        self.manager.start_session(config).await.expect("started")
    }

    fn info(&self, session: &SessionHandle) -> SessionInfo {
        self.manager.session(session.id()).expect("known").info()
    }

    /// What the agent says to a prompt of one line, whichever life of the session it is.
    async fn ask(&self, session: &SessionHandle, prompt: &str) -> String {
        let mut events = self.manager.subscribe_from(session.id(), self.info(session).last_offset).expect("known");
        let turn = self.manager.send_prompt(session.id(), prompt, PromptMode::Refuse).await.expect("prompted");
        let answer = said(&mut events, "").await.trim().to_owned();
        soon("the turn's end", turn.wait()).await.expect("ended");
        answer
    }
}

impl Place {
    /// Two of the agent's variables.
    async fn env(&self, session: &SessionHandle) -> String {
        let mut events = self.manager.subscribe_from(session.id(), self.info(session).last_offset).expect("known");
        let prompt = r#"run printf '%s %s' "$API_KEY" "$COLOUR""#;
        let turn = self.manager.send_prompt(session.id(), prompt, PromptMode::Refuse).await.expect("prompted");
        let output = event(&mut events, "the output", |envelope| match &envelope.event {
            Event::ToolEnd(end) => Some(end.output.trim().to_owned()),
            _ => None,
        });
        let output = output.await;
        soon("the turn's end", turn.wait()).await.expect("ended");
        output
    }
}

fn agent(info: &SessionInfo) -> u32 {
    info.agent_process.expect("it had one").pid
}

fn is_suspended(info: &SessionInfo) -> bool {
    matches!(info.state, SessionState::Suspended { .. })
}

async fn resumed(events: &mut Subscription) -> String {
    event(events, "a resumption", |envelope| match &envelope.event {
        Event::SessionResumed { by, .. } => Some(by.clone()),
        _ => None,
    })
    .await
}

async fn idle(events: &mut Subscription) {
    event(events, "idle", |envelope| matches!(envelope.event, Event::SessionIdle {}).then_some(())).await;
}

async fn suspended(events: &mut Subscription) -> EndReason {
    event(events, "a suspension", |envelope| match &envelope.event {
        Event::SessionSuspended { reason, .. } => Some(reason.clone()),
        _ => None,
    })
    .await
}

#[tokio::test]
async fn a_suspended_session_goes_on_with_its_conversation_and_its_events() {
    let place = Place::new().await;
    for home in [None, Some(Home::Own)] {
        let config = AgentSessionConfig { cwd: Some("/".into()), home, ..AgentSessionConfig::new("kept") };
        let first = place.manager.start_session(config).await.expect("started");
        let mut events = first.subscribe();
        assert_eq!(place.ask(&first, "history").await, "0 before");
        let snapshot = place.manager.suspend_session(first.id(), KillOptions::NOW).await.expect("suspended");
        let before = place.info(&first);
        assert!(is_suspended(&before) && !is_alive(agent(&before)), "{before:?}");
        assert_eq!(Some(snapshot.native_session_id), before.native_session_id);
        assert!(snapshot.receipt.expect("there was something to end").is_empty());
        assert_eq!((snapshot.turns, snapshot.last_offset), (1, before.last_offset));
        // Twice is once; and nobody can do anything with it meanwhile.
        place.manager.suspend_session(first.id(), KillOptions::NOW).await.expect("suspended");
        assert!(matches!(first.prompt("history", PromptMode::Refuse).await, Err(Error::Suspended { .. })));
        assert!(first.processes().await.expect("none").is_empty());
        let second = place.manager.resume_session(first.id()).await.expect("resumed");
        assert!(matches!(place.manager.resume_session(first.id()).await, Err(Error::NotSuspended { .. })));
        assert_eq!(place.ask(&first, "history").await, "1 before");
        let now = second.info();
        assert_eq!((now.turns, now.native_session_id, now.home), (2, before.native_session_id, before.home));
        assert_eq!(now.started_at, before.started_at);
        // One who listened from the first on hears all of it, without a hole.
        second.kill(KillOptions::NOW).await.expect("killed");
        let all = sessions::all(&mut events).await;
        let offsets: Vec<_> = all.iter().map(|envelope| envelope.offset).collect();
        assert_eq!(offsets, (1..=now.last_offset.max(offsets.len() as u64)).collect::<Vec<_>>());
        let is = |wanted: fn(&Event) -> bool| all.iter().filter(|envelope| wanted(&envelope.event)).count();
        assert_eq!(is(|event| matches!(event, Event::SessionStarted { .. })), 2);
        assert_eq!(is(|event| matches!(event, Event::SessionSuspended { .. })), 1);
        assert_eq!(is(|event| matches!(event, Event::SessionEnded { .. })), 1);
        place.manager.delete_session(first.id()).await.expect("deleted");
    }
    place.manager.shutdown().await;
}

#[tokio::test]
async fn a_prompt_resumes_a_session_that_was_idle_for_too_long() {
    let place = Place::new().await;
    let session = place.start(Lifecycle { idle_suspend_ms: Some(1), ..Lifecycle::default() }).await;
    let mut events = session.subscribe();
    assert_eq!(suspended(&mut events).await, EndReason::Suspended);
    assert!(!is_alive(agent(&place.info(&session))), "it is there no more");
    // As often as it is suspended; two at once get one agent.
    let (one, two) = tokio::join!(
        place.manager.send_prompt(session.id(), "history", PromptMode::Queue),
        place.manager.send_prompt(session.id(), "history", PromptMode::Queue)
    );
    for turn in [one, two] {
        soon("the turn's end", turn.expect("prompted").wait()).await.expect("ended");
    }
    assert_eq!(resumed(&mut events).await, "prompt");
    assert_eq!(suspended(&mut events).await, EndReason::Suspended);
    place.manager.shutdown().await;
}

/// Agents make the file of a conversation with the first prompt.
#[tokio::test]
async fn a_session_that_was_told_nothing_goes_on_where_its_agent_has_kept_nothing() {
    let place = Place::new().await;
    let session = place.start(Lifecycle::default()).await;
    let forget = async || {
        place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
        fs::remove_dir_all(place.scratch.path().join("home/chats")).expect("removed");
    };
    let first = session.info();
    forget().await;
    assert_eq!(place.ask(&session, "history").await, "0 before");
    let mut events = place.manager.subscribe_from(session.id(), first.last_offset).expect("known");
    event(&mut events, "that it begins anew", |envelope| match &envelope.event {
        Event::SessionStatus { status, .. } => (status == "resumeFailed").then_some(()),
        _ => None,
    })
    .await;
    assert_ne!(place.info(&session).native_session_id, first.native_session_id);
    // Now there is something to lose.
    forget().await;
    let missing = place.manager.resume_session(session.id()).await.expect_err("missing");
    assert!(matches!(missing, Error::NativeSessionMissing { .. }), "{missing}");
    place.manager.shutdown().await;
}

/// Suspended it would be lost.
#[tokio::test]
async fn a_conversation_that_ends_with_its_process_is_not_suspended() {
    let mut place = Place::new().await;
    let lifecycle = || Lifecycle { idle_suspend_ms: Some(1), ..Lifecycle::default() };
    let with = |agent: &str| AgentSessionConfig {
        cwd: Some("/".into()),
        lifecycle: lifecycle(),
        ..AgentSessionConfig::new(agent)
    };
    // It can load none, as it says; and its row says so.
    let mut sessions = Vec::new();
    for agent in ["fake", "passing"] {
        let session = place.manager.start_session(with(agent)).await.expect("started");
        assert!(session.info().native_session_id.is_some());
        sessions.push(session);
    }
    let mut events = sessions[0].subscribe();
    event(&mut events, "that it is not kept", |envelope| match &envelope.event {
        Event::SessionStatus { status, .. } => (status == NOT_KEPT).then_some(()),
        _ => None,
    })
    .await;
    // One that is kept was idle for no longer than these.
    let kept = place.start(lifecycle()).await;
    assert_eq!(suspended(&mut kept.subscribe()).await, EndReason::Suspended);
    for session in &sessions {
        let turn = session.prompt("say hello", PromptMode::Refuse).await.expect("prompted");
        soon("the turn's end", turn.wait()).await.expect("ended");
        let id = session.id();
        let refused = place.manager.suspend_session(id, KillOptions::NOW).await.expect_err("it would be lost");
        assert!(matches!(&refused, Error::Unsupported { agent, .. } if *agent == session.info().agent), "{refused}");
        let refused = place.manager.hand_over(id, KillOptions::NOW).await.expect_err("it would be lost");
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        let info = place.info(session);
        assert!(info.state == SessionState::Idle && !info.resumable && is_alive(agent(&info)), "{info:?}");
    }
    // Nor does it pretend to outlive its host.
    place.manager.shutdown().await;
    place.again().await;
    for session in &sessions {
        let record = place.manager.record(session.id()).expect("kept");
        assert!(record.status == SessionStatus::Terminated && !record.resumable, "{record:?}");
    }
    assert_eq!(place.manager.record(kept.id()).expect("kept").status, SessionStatus::Suspended);
    place.manager.shutdown().await;
}

#[tokio::test]
async fn a_question_resumes_it_too() {
    let place = Place::new().await;
    let session = place.start(Lifecycle::default()).await;
    place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
    let awake = place.manager.awake(session.id()).await.expect("resumed");
    assert_eq!(awake.ask("history").await.expect("answered").reply.trim(), "0 before");
    place.manager.shutdown().await;
}

#[tokio::test]
async fn one_that_does_not_want_to_be_resumed_by_a_prompt_refuses_it() {
    let place = Place::new().await;
    let session = place.start(Lifecycle { resume_on_prompt: false, ..Lifecycle::default() }).await;
    place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
    let refused = place.manager.send_prompt(session.id(), "history", PromptMode::Refuse).await;
    assert!(matches!(refused, Err(Error::Suspended { .. })), "{refused:?}");
    assert!(matches!(
        place.manager.awake(session.id()).await.expect("known").ask("history").await,
        Err(Error::Suspended { .. })
    ));
    // A kill ends it for good.
    let receipt = place.manager.kill_session(session.id(), KillOptions::NOW).await.expect("ended");
    assert!(receipt.is_empty());
    assert!(matches!(place.info(&session).state, SessionState::Ended { reason: EndReason::Killed, .. }));
    assert!(matches!(place.manager.resume_session(session.id()).await, Err(Error::NotSuspended { .. })));
    place.manager.shutdown().await;
}

#[tokio::test]
async fn one_whose_conversation_is_gone_stays_suspended() {
    let place = Place::new().await;
    let session = place.start(Lifecycle::default()).await;
    assert_eq!(place.ask(&session, "history").await, "0 before");
    place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
    let chats = place.scratch.path().join("home/chats");
    fs::rename(&chats, place.scratch.path().join("elsewhere")).expect("moved");
    let error = place.manager.resume_session(session.id()).await.expect_err("gone");
    assert!(matches!(error, Error::NativeSessionMissing { .. }), "{error}");
    assert!(is_suspended(&place.info(&session)));
    fs::remove_dir_all(&chats).ok();
    fs::rename(place.scratch.path().join("elsewhere"), &chats).expect("moved back");
    place.manager.resume_session(session.id()).await.expect("resumed");
    assert_eq!(place.ask(&session, "history").await, "1 before");
    place.manager.shutdown().await;
}

/// More than a proxy can be sent.
fn too_long() -> EnvVars {
    [("LONG", "x".repeat(17 << 20))].into_iter().collect()
}

#[tokio::test]
async fn a_resume_that_is_refused_before_it_begins_leaves_it_suspended_and_its_stream_open() {
    for is_durable in [true, false] {
        let scratch = tempfile::tempdir().expect("a directory");
        fs::create_dir(scratch.path().join("home")).expect("made");
        let builder = if is_durable { Place::builder(&scratch) } else { Place::without_state(&scratch) };
        let place = Place { manager: builder.max_sessions(1).build().await.expect("built"), scratch };
        let own =
            AgentSessionConfig { cwd: Some("/".into()), home: Some(Home::Own), ..AgentSessionConfig::new("kept") };
        let session = place.manager.start_session(own).await.expect("started");
        assert_eq!(place.ask(&session, "history").await, "0 before");
        let (manager, id) = (&place.manager, session.id());
        let last = manager.suspend_session(id, KillOptions::NOW).await.expect("suspended").last_offset;
        let mut events = manager.subscribe_from(id, last).expect("known");
        let is_as_it_was = || {
            let info = place.info(&session);
            assert!(is_suspended(&info) && info.last_offset == last, "{info:?}");
        };
        let other = place.start(Lifecycle::default()).await;
        let full = manager.resume_session(id).await;
        assert!(matches!(full, Err(Error::TooManySessions { .. })), "{full:?}");
        is_as_it_was();
        other.kill(KillOptions::NOW).await.expect("killed");
        let home = place.info(&session).home.expect("its own");
        fs::rename(&home, format!("{home}-moved")).expect("moved");
        manager.resume_session(id).await.expect_err("its home is gone");
        is_as_it_was();
        fs::rename(format!("{home}-moved"), &home).expect("moved back");
        let long = ResumeOptions { env: too_long(), ..ResumeOptions::default() };
        let long = manager.resume_session_with(id, long).await;
        assert!(matches!(long, Err(Error::InvalidConfig { .. })), "{long:?}");
        is_as_it_was();
        // The next one is heard by who has listened all the time.
        assert_eq!(place.ask(&session, "history").await, "1 before");
        let first = soon("an event", events.next()).await.expect("the stream is open");
        assert_eq!(first.offset, last + 1);
        assert!(matches!(first.event, Event::SessionResumed { .. }), "{first:?}");
        manager.kill_session(id, KillOptions::NOW).await.expect("killed");
        let rest = sessions::all(&mut events).await;
        let is_at_rest = |event: &Event| matches!(event, Event::SessionSuspended { .. } | Event::SessionEnded { .. });
        assert_eq!(rest.iter().filter(|envelope| is_at_rest(&envelope.event)).count(), 1, "{rest:?}");
        manager.shutdown().await;
    }
}

#[tokio::test]
async fn a_start_that_is_refused_before_it_begins_leaves_its_id_free() {
    let place = Place::new().await;
    let config = AgentSessionConfig {
        session_id: "mine".parse().expect("a valid id"),
        cwd: Some("/".into()),
        home: Some(Home::Own),
        ..AgentSessionConfig::new("kept")
    };
    let long = AgentSessionConfig { env: too_long(), ..config.clone() };
    let refused = place.manager.start_session(long).await;
    assert!(matches!(refused, Err(Error::InvalidConfig { .. })), "{refused:?}");
    assert_eq!(place.manager.list_sessions(), []);
    let session = place.manager.start_session(config).await.expect("its id is free");
    assert_eq!(session.subscribe().next().await.expect("an event").offset, 1);
    place.manager.shutdown().await;
}

#[tokio::test]
async fn what_is_handed_over_takes_no_prompt_until_it_is_taken_back() {
    let mut place = Place::new().await;
    let session = place.start(Lifecycle::default()).await;
    let mut events = session.subscribe();
    // Somebody prompts it as soon as it is suspended.
    let at_once = async {
        suspended(&mut events).await;
        place.manager.send_prompt(session.id(), "history", PromptMode::Refuse).await
    };
    let (command, prompted) = tokio::join!(place.manager.hand_over(session.id(), KillOptions::NOW), at_once);
    let command = command.expect("handed over");
    let record = place.left_of(&session);
    assert!(record["handedOver"] == true, "{record}");
    // It came before the mark, or behind it.
    assert!(matches!(prompted, Err(Error::HandedOver { .. } | Error::Suspended { .. })), "{prompted:?}");
    let info = place.info(&session);
    assert_eq!(command, ["kept", "--resume", info.native_session_id.as_deref().expect("known")]);
    assert!(info.handed_over && is_suspended(&info));
    let refused = place.manager.send_prompt(session.id(), "history", PromptMode::Refuse).await;
    assert!(matches!(refused, Err(Error::HandedOver { .. })), "{refused:?}");
    assert!(matches!(place.manager.resume_session(session.id()).await, Err(Error::HandedOver { .. })));
    // A later manager keeps it so.
    place.again().await;
    let refused = place.manager.send_prompt(session.id(), "history", PromptMode::Refuse).await;
    assert!(matches!(refused, Err(Error::HandedOver { .. })), "{refused:?}");
    place.manager.take_back(session.id()).await.expect("taken back");
    assert!(!place.info(&session).handed_over);
    assert_eq!(place.ask(&session, "history").await, "0 before");
    place.manager.shutdown().await;
}

fn kill(process: Option<proxy_manager::ProcessId>) {
    let process = process.expect("it has one");
    registry::PidFd::open(process).and_then(|process| process.signal(Signal::Kill)).expect("signalled");
}

#[tokio::test]
async fn a_session_that_crashes_is_started_again_until_it_crashes_too_often() {
    let place = Place::new().await;
    let restart = Restart::OnCrash { max: 2, backoff_ms: 1 };
    let session = place.start(Lifecycle { restart, ..Lifecycle::default() }).await;
    let mut events = session.subscribe();
    idle(&mut events).await;
    assert_eq!(place.ask(&session, "history").await, "0 before");
    idle(&mut events).await;
    // Its agent first, then its proxy.
    kill(place.info(&session).agent_process);
    assert_eq!(suspended(&mut events).await, EndReason::AgentExited(Some(ExitStatus::Signal(9))));
    assert_eq!(resumed(&mut events).await, "restart");
    idle(&mut events).await;
    assert_eq!(place.ask(&session, "history").await, "1 before");
    kill(place.info(&session).proxy);
    assert!(matches!(suspended(&mut events).await, EndReason::ProxyDied(_)));
    assert_eq!(resumed(&mut events).await, "restart");
    idle(&mut events).await;
    kill(place.info(&session).agent_process);
    let rest = sessions::all(&mut events).await;
    let gave_up = |envelope: &Envelope| matches!(&envelope.event, Event::ActionFailed { error, .. } if error == "it crashed 3 times");
    assert!(rest.iter().any(|envelope| gave_up(envelope)), "{rest:?}");
    assert!(matches!(rest.last().expect("an end").event, Event::SessionEnded { .. }));
    place.manager.shutdown().await;
}

impl Place {
    /// What a SIGKILL would leave now of a session's record.
    fn left_of(&self, session: &SessionHandle) -> Value {
        self.left(session.id()).expect("a record")
    }

    fn left(&self, session: &SessionId) -> Option<Value> {
        let left = tempfile::tempdir().expect("a directory");
        for file in ["log.sqlite", "log.sqlite-wal"] {
            fs::copy(self.scratch.path().join("state").join(file), left.path().join(file)).expect("copied");
        }
        let log = event_log::EventLog::open(left.path().join("log.sqlite"), event_log::Options::default());
        let record = log.expect("a log").session(session).expect("read")?;
        Some(serde_json::from_str(&record).expect("JSON"))
    }

    /// Another manager with the same directories.
    async fn again(&mut self) {
        self.manager.shutdown().await;
        self.manager = Self::manager(&self.scratch).await;
    }
}

fn key(key: &str) -> Lifecycle {
    Lifecycle { key: Some(key.into()), ..Lifecycle::default() }
}

async fn keyed(manager: &ProxyManager, name: &str) -> SessionHandle {
    let config = AgentSessionConfig { cwd: Some("/".into()), lifecycle: key(name), ..AgentSessionConfig::new("kept") };
    manager.start_session(config).await.expect("started")
}

#[tokio::test]
async fn a_budget_is_counted_over_managers() {
    let mut place = Place::new().await;
    let budget = Budget { total_tokens: Some(100), ..Budget::default() };
    let config = AgentSessionConfig { cwd: Some("/".into()), budget, ..AgentSessionConfig::new("kept") };
    let session = place.manager.start_session(config).await.expect("started");
    place.ask(&session, "say one\ntokens 40 20").await;
    place.again().await;
    place.ask(&session, "say two\ntokens 30 10").await;
    for _ in 0..2 {
        let refused = place.manager.send_prompt(session.id(), "history", PromptMode::Refuse).await;
        let Err(Error::BudgetExceeded { exceeded, .. }) = &refused else { panic!("{refused:?}") };
        assert_eq!((exceeded.value, exceeded.measured), (100, 100));
        // Nor by the next one.
        place.again().await;
    }
    place.manager.shutdown().await;
}

/// Two managers that see the same files, each with a state directory of its own.
#[tokio::test]
async fn a_snapshot_goes_on_in_another_manager() {
    let place = Place::new().await;
    let state = place.scratch.path().join("other");
    let other = Place::builder(&place.scratch).state_dir(state.clone()).build().await.expect("built");
    for home in [None, Some(Home::Own)] {
        let env = [("API_KEY", "hunter2")].into_iter().collect();
        let config = AgentSessionConfig { cwd: Some("/".into()), home, env, ..AgentSessionConfig::new("kept") };
        let first = place.manager.start_session(config).await.expect("started");
        assert_eq!(place.ask(&first, "history").await, "0 before");
        let snapshot = place.manager.suspend_session(first.id(), KillOptions::NOW).await.expect("suspended");
        let text = serde_json::to_string(&snapshot).expect("JSON");
        assert!(!text.contains("hunter2") && snapshot.secrets == ["API_KEY"], "{text}");
        let snapshot: Snapshot = serde_json::from_str(&text).expect("a snapshot");
        let missing = other.resume_snapshot(snapshot.clone(), ResumeOptions::default()).await;
        assert!(matches!(missing, Err(Error::SecretsMissing { .. })), "{missing:?}");
        let env = [("API_KEY", "hunter3")].into_iter().collect();
        let options = ResumeOptions { env, ..ResumeOptions::default() };
        let second = other.resume_snapshot(snapshot.clone(), options).await.expect("resumed");
        let info = second.info();
        assert_eq!((second.id(), info.turns, info.home), (first.id(), 1, snapshot.home.clone()));
        let mut events = second.subscribe();
        assert_eq!(resumed(&mut events).await, "resume");
        let turn = second.prompt("history", PromptMode::Refuse).await.expect("prompted");
        assert_eq!(said(&mut events, "").await.trim(), "1 before");
        assert_eq!(soon("the turn's end", turn.wait()).await.expect("ended").turn, Some(2));
        let again = other.resume_snapshot(snapshot.clone(), ResumeOptions::default()).await;
        assert!(matches!(again, Err(Error::NotSuspended { .. })), "{again:?}");
        // Whoever writes snapshots does not name what is removed with a session.
        let mut forged = snapshot;
        forged.config.session_id = "forged".parse().expect("an id");
        forged.home = Some(place.scratch.path().to_str().expect("UTF-8").to_owned());
        let refused = other.resume_snapshot(forged, ResumeOptions::default()).await;
        assert!(matches!(refused, Err(Error::InvalidConfig { field: "home", .. })), "{refused:?}");
    }
    other.shutdown().await;
    // It is the other one's, over its end too.
    let other = Place::builder(&place.scratch).state_dir(state).build().await.expect("built");
    assert_eq!(other.records(&SessionFilter::default()).len(), 2);
    other.shutdown().await;
    place.manager.shutdown().await;
}

#[tokio::test]
async fn the_same_key_is_the_same_conversation_across_managers() {
    let mut place = Place::new().await;
    let first = keyed(&place.manager, "chat-1").await;
    assert_eq!(place.ask(&first, "history").await, "0 before");
    // While it runs it is the one; two at once get one.
    let (one, two) = tokio::join!(keyed(&place.manager, "chat-1"), keyed(&place.manager, "chat-1"));
    assert_eq!((one.id(), two.id()), (first.id(), first.id()));
    let other = keyed(&place.manager, "chat-2").await;
    assert_ne!(other.id(), first.id());
    place.again().await;
    let record = place.manager.record(first.id()).expect("kept");
    assert_eq!((record.status, record.turns), (SessionStatus::Suspended, 1));
    assert_eq!(record.reason, Some(EndReason::Shutdown));
    let again = keyed(&place.manager, "chat-1").await;
    assert_eq!(again.id(), first.id());
    assert_eq!(place.ask(&again, "history").await, "1 before");
    // One that was killed is over, and its conversation goes on in another one.
    place.manager.kill_session(again.id(), KillOptions::NOW).await.expect("killed");
    place.again().await;
    assert_eq!(place.manager.record(first.id()).expect("kept").status, SessionStatus::Terminated);
    let third = keyed(&place.manager, "chat-1").await;
    assert_ne!(third.id(), first.id());
    assert_eq!(place.ask(&third, "history").await, "2 before");
    place.manager.shutdown().await;
}

#[tokio::test]
async fn secrets_are_given_again_to_a_later_manager_or_it_says_which_are_missing() {
    let mut place = Place::new().await;
    let env = |vars: &[(&str, &str)]| vars.iter().copied().collect();
    let config = AgentSessionConfig {
        cwd: Some("/".into()),
        env: env(&[("API_KEY", "hunter2"), ("COLOUR", "red"), ("OTHER_TOKEN", "x")]),
        lifecycle: key("chat"),
        ..AgentSessionConfig::new("kept")
    };
    let session = place.manager.start_session(config.clone()).await.expect("started");
    let id = session.id();
    assert_eq!(place.env(&session).await, "hunter2 red");
    // The manager that started it has them.
    place.manager.suspend_session(id, KillOptions::NOW).await.expect("suspended");
    assert_eq!(place.env(&session).await, "hunter2 red");
    place.again().await;
    place.manager.tag_session(id, &["kept".into()], &[]).await.expect("tagged");
    let secrets = ["API_KEY", "OTHER_TOKEN"].map(str::to_owned).to_vec();
    assert_eq!(place.manager.record(id).expect("kept").secrets, secrets);
    let is_missing = |error: Error, expected: &[String]| {
        assert!(expected.iter().all(|name| error.to_string().contains(name)), "{error}");
        assert!(matches!(&error, Error::SecretsMissing { names, .. } if names == expected), "{error}");
    };
    is_missing(place.manager.resume_session(id).await.expect_err("without any"), &secrets);
    let prompted = place.manager.send_prompt(id, "say x", PromptMode::Refuse).await;
    is_missing(prompted.expect_err("without any"), &secrets);
    let half = ResumeOptions { env: env(&[("API_KEY", "hunter3")]), ..ResumeOptions::default() };
    is_missing(place.manager.resume_session_with(id, half).await.expect_err("one is missing"), &secrets[1..]);
    assert!(is_suspended(&place.info(&session)));
    // One can be done without, by saying so.
    let all = ResumeOptions { env: env(&[("API_KEY", "hunter3"), ("OTHER_TOKEN", "")]), ..ResumeOptions::default() };
    assert!(!format!("{all:?}").contains("hunter3"));
    place.manager.resume_session_with(id, all).await.expect("resumed");
    assert_eq!(place.env(&session).await, "hunter3 red");
    // They are this manager's now, and still in no record.
    place.manager.suspend_session(id, KillOptions::NOW).await.expect("suspended");
    assert_eq!(place.env(&session).await, "hunter3 red");
    let record = place.manager.record(id).expect("kept");
    assert!(record.secrets == secrets && !serde_json::to_string(&record).expect("JSON").contains("hunter"));
    place.again().await;
    // A start with its key brings what it is started with.
    let again = place.manager.start_session(config).await.expect("resumed");
    assert_eq!(again.id(), id);
    assert_eq!(place.env(&session).await, "hunter2 red");
    place.manager.shutdown().await;
}

#[tokio::test]
async fn the_key_of_a_model_configuration_is_missed_too() {
    let mut place = Place::new().await;
    let model = |key: Option<&str>| -> ModelConfig {
        let json = serde_json::json!({ "name": "mock", "provider": "openai", "model": "fake-1", "key": key });
        serde_json::from_value(json).expect("a model configuration")
    };
    place.manager.set_models([model(Some("hunter2"))]);
    let config = AgentSessionConfig {
        cwd: Some("/".into()),
        model_config: Some("mock".into()),
        ..AgentSessionConfig::new("kept")
    };
    let session = place.manager.start_session(config).await.expect("started");
    place.ask(&session, "say x").await;
    place.again().await;
    let id = session.id();
    place.manager.set_models([model(None)]);
    let error = place.manager.resume_session(id).await.expect_err("without its key");
    assert!(matches!(&error, Error::SecretsMissing { names, .. } if *names == ["modelConfig.key"]), "{error}");
    place.manager.set_models([model(Some("hunter3"))]);
    place.manager.resume_session(id).await.expect("resumed");
    place.manager.shutdown().await;
}

#[tokio::test]
async fn events_outlive_the_manager() {
    let mut place = Place::new().await;
    let session = place.start(Lifecycle::default()).await;
    place.ask(&session, "say one").await;
    place.again().await;
    let id = session.id();
    place.manager.resume_session(id).await.expect("resumed");
    place.ask(&session, "say two").await;
    place.manager.kill_session(id, KillOptions::NOW).await.expect("killed");
    place.again().await;
    // Nobody remembers it but the log.
    assert!(matches!(place.manager.session(id), Err(Error::UnknownSession { .. })));
    let mut events = place.manager.subscribe(id).expect("kept");
    let all = sessions::all(&mut events).await;
    let offsets: Vec<_> = all.iter().map(|envelope| envelope.offset).collect();
    assert_eq!(offsets, (1..=offsets.len() as u64).collect::<Vec<_>>());
    let texts: Vec<_> = all
        .iter()
        .filter_map(|envelope| match &envelope.event {
            Event::Text { text } => Some(text.trim()),
            _ => None,
        })
        .collect();
    assert_eq!(texts, ["one", "two"]);
    assert!(matches!(all.last().expect("some").event, Event::SessionEnded { reason: EndReason::Killed, .. }));
    let mut rest = place.manager.subscribe_from(id, offsets.len() as u64 - 2).expect("kept");
    assert_eq!(sessions::all(&mut rest).await.len(), 2);
    // Its id is taken until it is deleted.
    let config =
        AgentSessionConfig { session_id: id.clone(), cwd: Some("/".into()), ..AgentSessionConfig::new("kept") };
    let taken = place.manager.start_session(config.clone()).await;
    assert!(matches!(taken, Err(Error::DuplicateSession { .. })), "{taken:?}");
    place.manager.delete_session(id).await.expect("deleted");
    assert!(matches!(place.manager.subscribe(id), Err(Error::UnknownSession { .. })));
    let anew = place.manager.start_session(config).await.expect("started");
    assert_eq!(anew.subscribe().next().await.expect("an event").offset, 1);
    place.manager.shutdown().await;
}

#[tokio::test]
async fn a_record_says_where_the_conversation_is_and_what_the_session_took() {
    let mut place = Place::new().await;
    let session = place.start(Lifecycle::default()).await;
    let id = session.id();
    let ready = place.manager.record(id).expect("kept");
    assert_eq!((ready.native_session_file, ready.messages), (None, 0), "it is made with the first prompt");
    let info = place.info(&session);
    assert!(info.proxy.is_some() && info.agent_process.is_some(), "{info:?}");
    assert_eq!(
        (ready.status, ready.proxy, ready.agent_process),
        (SessionStatus::Running, info.proxy, info.agent_process)
    );
    assert!(!ready.host_execution_id.is_empty());
    place.ask(&session, "say one\ntokens 7 3").await;
    place.manager.suspend_session(id, KillOptions::NOW).await.expect("suspended");
    let record = place.manager.record(id).expect("kept");
    let native = record.native_session_id.clone().expect("known");
    let file = place.scratch.path().join(format!("home/chats/{native}.json"));
    assert!(file.exists());
    assert_eq!(record.native_session_file.as_deref(), file.to_str());
    assert_eq!(place.info(&session).native_session_file, record.native_session_file);
    assert_eq!((record.turns, record.messages), (1, 2));
    assert_eq!((record.status, record.proxy, record.agent_process), (SessionStatus::Suspended, None, None));
    assert_eq!((record.usage.input_tokens, record.usage.output_tokens), (Some(7), Some(3)));
    assert!(record.heartbeat >= ready.heartbeat && record.heartbeat <= record.updated_at);
    place.again().await;
    let later = place.manager.record(id).expect("kept");
    assert_eq!(later.native_session_file, record.native_session_file);
    let lost = record.heartbeat.duration_since(later.heartbeat).expect("not later");
    assert!(lost < Duration::from_millis(1), "it is kept to the millisecond");
    // The next life counts on.
    place.ask(&session, "say two\ntokens 7 3").await;
    place.manager.suspend_session(id, KillOptions::NOW).await.expect("suspended");
    let record = place.manager.record(id).expect("kept");
    assert_eq!((record.turns, record.messages, record.usage.input_tokens), (2, 4, Some(14)));
    assert_ne!(record.host_execution_id, ready.host_execution_id, "another run has it");
    assert!(record.heartbeat > later.heartbeat);
    place.manager.shutdown().await;
}

/// What a SIGKILL at any moment would leave is what the record is for: so it is looked at in the log.
#[tokio::test]
async fn a_session_that_starts_has_a_record_that_says_so() {
    let scratch = tempfile::tempdir().expect("a directory");
    fs::create_dir(scratch.path().join("home")).expect("made");
    // It never says that it is ready.
    let mut profiles = Profiles::default();
    profiles.add(Profile { name: "quiet".into(), agent: "mute".into(), ..Profile::default() });
    let builder = Place::builder(&scratch).agent(AgentSpec::new("mute", "acp", &["/bin/sleep", "1000"]));
    let place = Place { manager: builder.profiles(profiles).build().await.expect("built"), scratch };
    let config = AgentSessionConfig {
        session_id: "mine".parse().expect("an id"),
        cwd: Some("/".into()),
        profile: Some("quiet".into()),
        ..AgentSessionConfig::new("")
    };
    let id = config.session_id.clone();
    let mut start = Box::pin(place.manager.start_session(config));
    let is_kept = async {
        while place.manager.record(&id).is_err() || place.manager.subscribe(&id).is_err() {
            tokio::task::yield_now().await;
        }
        loop {
            // It is written behind the back of who looks.
            if let Some(left) = place.left(&id) {
                break left;
            }
            tokio::task::yield_now().await;
        }
    };
    let left = tokio::select! {
        started = &mut start => panic!("it is not ready: {started:?}"),
        left = soon("its record", is_kept) => left,
    };
    let kept = ["status", "agentProcess", "reason"].map(|field| left[field].clone());
    assert_eq!(kept, [json!("starting"), json!(null), json!(null)], "{left}");
    assert_eq!((&left["config"]["profile"], &left["config"]["agent"]), (&json!("quiet"), &json!("mute")));
    let record = place.manager.record(&id).expect("kept");
    assert_eq!((record.status, record.config.profile.as_deref()), (SessionStatus::Starting, Some("quiet")));
    let (killed, started) = tokio::join!(place.manager.kill_session(&id, KillOptions::NOW), start);
    assert!(killed.expect("a receipt").is_empty());
    assert!(matches!(started, Err(Error::Ended { .. })), "{started:?}");
    assert_eq!(place.manager.record(&id).expect("kept").status, SessionStatus::Terminated);
    place.manager.shutdown().await;
}

#[tokio::test]
async fn a_session_of_a_profile_is_one_of_its_agent_for_later_managers_too() {
    let mut place = Place::new().await;
    let profiles = || {
        let mut profiles = Profiles::default();
        profiles.add(Profile { name: "p".into(), agent: "kept".into(), ..Profile::default() });
        profiles
    };
    let config = || AgentSessionConfig {
        cwd: Some("/".into()),
        profile: Some("p".into()),
        lifecycle: key("chat"),
        ..AgentSessionConfig::new("")
    };
    place.manager.set_profiles(profiles());
    let session = place.manager.start_session(config()).await.expect("started");
    assert_eq!(place.ask(&session, "history").await, "0 before");
    place.again().await;
    place.manager.set_profiles(profiles());
    let of_agent = SessionFilter { agent: Some("kept".into()), ..SessionFilter::default() };
    let found = place.manager.records(&of_agent);
    assert_eq!(found.iter().map(|record| record.config.profile.as_deref()).collect::<Vec<_>>(), [Some("p")]);
    assert_eq!(place.info(&session).agent, "kept");
    assert_eq!(place.manager.attach_command(session.id()).expect("it has one")[0], "kept");
    assert_eq!(place.ask(&session, "history").await, "1 before");
    // One that is over goes on in the next of its key.
    place.manager.kill_session(session.id(), KillOptions::NOW).await.expect("killed");
    let next = place.manager.start_session(config()).await.expect("started");
    assert_ne!(next.id(), session.id());
    assert_eq!(place.ask(&next, "history").await, "2 before");
    // Another agent has no part in that.
    next.kill(KillOptions::NOW).await.expect("killed");
    let mut profiles = Profiles::default();
    profiles.add(Profile { name: "p".into(), agent: "passing".into(), ..Profile::default() });
    place.manager.set_profiles(profiles);
    let another = place.manager.start_session(config()).await.expect("started");
    assert_eq!(place.info(&another).agent, "passing");
    assert_eq!(place.ask(&another, "history").await, "0 before");
    place.manager.shutdown().await;
}

#[tokio::test]
async fn sessions_are_named_tagged_put_aside_and_found() {
    let mut place = Place::new().await;
    let red = place.start(Lifecycle { tags: vec!["red".into()], ..Lifecycle::default() }).await;
    let blue = place.start(Lifecycle { title: Some("Blue".into()), ..Lifecycle::default() }).await;
    place.manager.tag_session(blue.id(), &["blue".into()], &[]).await.expect("tagged");
    place.manager.tag_session(red.id(), &["warm".into()], &["red".into()]).await.expect("tagged");
    place.manager.rename_session(red.id(), Some("Rouge".into())).await.expect("named");
    let left = place.left_of(&red);
    assert_eq!(left["config"]["lifecycle"]["title"], "Rouge", "{left}");
    let bad = place.manager.rename_session(red.id(), Some("two\nlines".into())).await;
    assert!(matches!(bad, Err(Error::InvalidConfig { field: "title", .. })), "{bad:?}");
    place.ask(&red, "history").await;
    place.again().await;
    let found = |filter: SessionFilter| -> Vec<_> {
        place.manager.records(&filter).into_iter().map(|record| record.session_id).collect()
    };
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(found(SessionFilter { text: text("rouge"), ..Default::default() }), [red.id().clone()]);
    assert_eq!(found(SessionFilter { tag: text("warm"), ..Default::default() }), [red.id().clone()]);
    assert_eq!(found(SessionFilter { tag: text("red"), ..Default::default() }), []);
    assert_eq!(found(SessionFilter { tag: text("blue"), ..Default::default() }), [blue.id().clone()]);
    place.manager.archive_session(blue.id(), true).await.expect("archived");
    assert_eq!(found(SessionFilter::default()), [red.id().clone()]);
    assert_eq!(found(SessionFilter { archived: true, ..Default::default() }).len(), 2);
    place.manager.shutdown().await;
}

#[tokio::test]
async fn what_was_said_in_a_turn_can_be_read_at_its_end() {
    let place = Place::new().await;
    let session = place.start(Lifecycle::default()).await;
    for number in 1..=20 {
        let before = place.info(&session).last_offset;
        let mut events = place.manager.subscribe_from(session.id(), before).expect("known");
        let turn = place.manager.send_prompt(session.id(), "say it", PromptMode::Refuse).await.expect("prompted");
        soon("the turn's end", turn.wait()).await.expect("ended");
        let last = place.info(&session).last_offset;
        let mut ends = Vec::new();
        for _ in before..last {
            let envelope = soon("an event", events.next()).await.expect("it is there");
            ends.extend(envelope.turn.filter(|_| matches!(envelope.event, Event::Complete { .. })));
        }
        assert_eq!(ends, [number]);
    }
    let snapshot = place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
    let mut last = place.manager.subscribe_from(session.id(), snapshot.last_offset - 1).expect("known");
    suspended(&mut last).await;
    assert_eq!(place.manager.record(session.id()).expect("kept").last_offset, snapshot.last_offset);
    place.manager.shutdown().await;
}

#[tokio::test]
async fn a_resume_that_nobody_waits_for_leaves_it_suspended() {
    let place = Place::new().await;
    let session = place.start(Lifecycle::default()).await;
    assert_eq!(place.ask(&session, "history").await, "0 before");
    loop {
        place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
        let mut events = place.manager.subscribe_from(session.id(), place.info(&session).last_offset).expect("known");
        let given_up = tokio::select! {
            biased;
            _ = resumed(&mut events) => true,
            done = place.manager.resume_session(session.id()) => {
                done.expect("resumed");
                false
            }
        };
        // The agent may be ready before anyone hears of it; then once more.
        if given_up {
            assert_eq!(suspended(&mut events).await, EndReason::Suspended);
            break;
        }
    }
    assert_eq!(place.ask(&session, "history").await, "1 before");
    place.manager.shutdown().await;
}

/// A suspended session, and another one that has the only place.
async fn crowded() -> (Place, SessionHandle, SessionHandle) {
    let scratch = tempfile::tempdir().expect("a directory");
    fs::create_dir(scratch.path().join("home")).expect("made");
    let builder = Place::builder(&scratch).max_sessions(1).queue(1, Duration::from_secs(60));
    let place = Place { manager: builder.build().await.expect("built"), scratch };
    let session = place.start(Lifecycle::default()).await;
    place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
    let other = place.start(Lifecycle::default()).await;
    (place, session, other)
}

/// Has `resume` wait for a place.
async fn waits(manager: &ProxyManager, resume: &mut (impl Future<Output = Result<SessionHandle, Error>> + Unpin)) {
    while manager.occupancy().waiting == 0 {
        tokio::select! {
            biased;
            resumed = &mut *resume => panic!("there is no room: {resumed:?}"),
            () = tokio::task::yield_now() => {}
        }
    }
}

#[tokio::test]
async fn a_resume_gives_up_for_who_wants_it_suspended() {
    let (place, session, other) = crowded().await;
    let (manager, id) = (place.manager.clone(), session.id().clone());
    let last = place.info(&session).last_offset;
    for hands_over in [false, true] {
        let mut resume = Box::pin(manager.resume_session(&id));
        waits(&manager, &mut resume).await;
        let suspend = async {
            if hands_over {
                manager.hand_over(&id, KillOptions::NOW).await.map(drop)
            } else {
                manager
                    .suspend_session(&id, KillOptions::NOW)
                    .await
                    .map(|snapshot| assert_eq!(snapshot.last_offset, last))
            }
        };
        let both = async { tokio::join!(suspend, resume) };
        let (suspended, resumed) = soon("both", both).await;
        suspended.expect("suspended");
        assert!(matches!(resumed, Err(Error::Suspended { .. })), "{resumed:?}");
        let info = place.info(&session);
        assert!(is_suspended(&info) && info.last_offset == last && info.handed_over == hands_over, "{info:?}");
        assert_eq!(manager.occupancy().waiting, 0);
    }
    other.kill(KillOptions::NOW).await.expect("killed");
    manager.take_back(&id).await.expect("resumed");
    assert_eq!(place.ask(&session, "history").await, "0 before");
    manager.shutdown().await;
}

#[tokio::test]
async fn one_that_is_suspended_before_it_is_started_again_stays_suspended() {
    let place = Place::new().await;
    let restart = Restart::OnCrash { max: 2, backoff_ms: 1000 };
    let start = || place.start(Lifecycle { restart, ..Lifecycle::default() });
    let (left, gone_on_with, last) = (start().await, start().await, start().await);
    for session in [&left, &gone_on_with, &last] {
        let mut events = session.subscribe();
        idle(&mut events).await;
        kill(place.info(session).agent_process);
        assert_eq!(suspended(&mut events).await, EndReason::AgentExited(Some(ExitStatus::Signal(9))));
        let id = session.id();
        if id == gone_on_with.id() {
            place.manager.resume_session(id).await.expect("resumed");
        }
        if id != last.id() {
            place.manager.suspend_session(id, KillOptions::NOW).await.expect("suspended");
        }
    }
    // This one's pause began after theirs.
    let mut events = place.manager.subscribe(last.id()).expect("known");
    assert_eq!(resumed(&mut events).await, "restart");
    idle(&mut events).await;
    for session in [&left, &gone_on_with] {
        let info = place.info(session);
        assert!(is_suspended(&info), "{info:?}");
    }
    place.manager.shutdown().await;
}

#[tokio::test]
async fn one_of_an_earlier_manager_is_suspended_already() {
    let mut place = Place::new().await;
    let (suspended, shut_down) = (place.start(Lifecycle::default()).await, place.start(Lifecycle::default()).await);
    place.manager.suspend_session(suspended.id(), KillOptions::NOW).await.expect("suspended");
    place.again().await;
    for session in [&suspended, &shut_down] {
        let snapshot = place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("it is");
        assert!(is_suspended(&place.info(session)) && snapshot.receipt.is_none());
        // It is not this manager that was shut down.
        let refused = place.manager.steer(session.id(), "say x").await;
        assert!(matches!(refused, Err(Error::Suspended { .. })), "{refused:?}");
    }
    place.manager.hand_over(shut_down.id(), KillOptions::NOW).await.expect("handed over");
    place.manager.shutdown().await;
}

#[tokio::test]
async fn a_kill_ends_what_is_about_to_be_resumed() {
    let (place, session, other) = crowded().await;
    let (manager, id) = (place.manager.clone(), session.id().clone());
    let mut resume = Box::pin(manager.resume_session(&id));
    waits(&manager, &mut resume).await;
    let (killed, resumed) = tokio::join!(place.manager.kill_session(&id, KillOptions::NOW), resume);
    assert!(killed.expect("a receipt").is_empty());
    assert!(matches!(resumed, Err(Error::Ended { .. })), "{resumed:?}");
    other.kill(KillOptions::NOW).await.expect("killed");
    // Though there is room now, nothing is started any more.
    assert!(matches!(place.info(&session).state, SessionState::Ended { reason: EndReason::Killed, .. }));
    assert!(matches!(place.manager.resume_session(&id).await, Err(Error::NotSuspended { .. })));
    assert_eq!(place.manager.occupancy().running, 0);
    place.manager.shutdown().await;
}

/// Nothing of it runs: what was ended, and on what proof, the manager knew that suspended it.
#[tokio::test]
async fn a_kill_of_what_an_earlier_manager_left_suspended_says_what_was_ended_then() {
    let mut place = Place::new().await;
    let (asked, shut_down, told_of) = (
        place.start(Lifecycle::default()).await,
        place.start(Lifecycle::default()).await,
        place.start(Lifecycle::default()).await,
    );
    let mut agents = Vec::new();
    for session in [&asked, &shut_down, &told_of] {
        agents.push((session, agent(&place.info(session))));
    }
    for session in [&asked, &told_of] {
        place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
    }
    // What others append after that is not in the way.
    let payload = proxy_manager::Json::null();
    place.manager.append_event(told_of.id(), "slack:received", 1, payload).await.expect("appended");
    for _ in 0..2 {
        place.again().await;
    }
    for (session, agent) in agents {
        let receipt = place.manager.kill_session(session.id(), KillOptions::NOW).await.expect("a receipt");
        assert!(receipt.is_empty() && receipt.session_id == *session.id(), "{receipt}");
        assert!(receipt.processes.iter().any(|entry| entry.id.pid == agent), "{receipt}");
        assert!(matches!(place.info(session).state, SessionState::Ended { reason: EndReason::Killed, .. }));
        let mut events = place.manager.subscribe_from(session.id(), 0).expect("known");
        let told = event(&mut events, "the end", |envelope| match &envelope.event {
            Event::SessionEnded { receipt, .. } => Some(receipt.clone()),
            _ => None,
        });
        assert_eq!(told.await.as_deref(), Some(&receipt));
        // Twice is once.
        assert_eq!(place.manager.kill_session(session.id(), KillOptions::NOW).await.expect("a receipt"), receipt);
    }
    // What its stream does not say any more.
    let session = place.start(Lifecycle::default()).await;
    place.ask(&session, "history").await;
    place.manager.shutdown().await;
    let path = place.scratch.path().join("state/log.sqlite");
    let log = event_log::EventLog::open(path, event_log::Options::default()).expect("a log");
    let retention = Retention { max_age: Some(Duration::ZERO), ..Retention::default() };
    while log.head(session.id()).is_some_and(|head| head.first <= head.last) {
        let (done, over) = std::sync::mpsc::channel();
        log.retain(retention, Box::new(move |result| done.send(result).expect("heard")));
        over.recv().expect("a pass").expect("a pass");
    }
    drop(log);
    place.manager = Place::manager(&place.scratch).await;
    let untold = place.manager.kill_session(session.id(), KillOptions::NOW).await;
    assert!(matches!(untold, Err(Error::Ended { .. })), "{untold:?}");
    assert_eq!(place.manager.record(session.id()).expect("kept").status, SessionStatus::Terminated);
    place.manager.shutdown().await;
}

#[tokio::test]
async fn one_that_was_ended_while_it_was_suspended_is_over_for_the_next_manager_too() {
    let mut place = Place::new().await;
    let session = place.start(Lifecycle::default()).await;
    place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
    place.manager.kill_session(session.id(), KillOptions::NOW).await.expect("ended");
    assert_eq!(place.manager.record(session.id()).expect("kept").status, SessionStatus::Terminated);
    place.again().await;
    assert_eq!(place.manager.record(session.id()).expect("kept").status, SessionStatus::Terminated);
    place.manager.shutdown().await;
}

#[tokio::test]
async fn one_that_was_ended_while_it_was_suspended_is_forgotten_as_others_are() {
    let mut place = Place::new().await;
    place.manager.shutdown().await;
    place.manager = Place::builder(&place.scratch).ended_sessions(1).build().await.expect("built");
    let mut ids = Vec::new();
    for _ in 0..3 {
        let session = place.start(Lifecycle::default()).await;
        place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
        ids.push(session.id().clone());
    }
    assert_eq!(place.manager.list_sessions().len(), 3, "suspended ones stay");
    for id in &ids {
        place.manager.kill_session(id, KillOptions::NOW).await.expect("ended");
    }
    let left: Vec<_> = place.manager.list_sessions().into_iter().map(|info| info.session_id).collect();
    assert_eq!(left, ids[2..]);
    assert_eq!(place.manager.record(&ids[0]).expect("kept").status, SessionStatus::Terminated);
    place.manager.shutdown().await;
}

#[tokio::test]
async fn what_is_too_much_goes() {
    let place = Place::new().await;
    let session = place.start(Lifecycle::default()).await;
    for _ in 0..5 {
        place.ask(&session, "history").await;
    }
    let (id, last) = (session.id(), place.info(&session).last_offset);
    place.manager.shutdown().await;
    let retention = Retention { max_events_per_session: Some(3), ..Retention::default() };
    let manager = Place::builder(&place.scratch).retention(retention).build().await.expect("built");
    soon("the first pass", async {
        loop {
            let first = manager.subscribe(id).expect("kept").next().await.expect("the newest stay");
            if first.offset > 1 {
                break assert!(first.offset <= last + 1, "{first:?}");
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    // The conversation is the agent's, and goes on.
    let place = Place { manager, ..place };
    assert_eq!(place.ask(&session, "history").await, "5 before");
    place.manager.shutdown().await;
}

#[tokio::test]
async fn rules_that_do_nothing_are_refused() {
    let scratch = tempfile::tempdir().expect("a directory");
    let rule = serde_json::from_value(serde_json::json!({"on": "x", "action": "dance"})).expect("a rule");
    let refused = Place::builder(&scratch).rules([rule]).build().await;
    assert!(matches!(refused, Err(Error::InvalidConfig { field: "rule", .. })), "{refused:?}");
}
