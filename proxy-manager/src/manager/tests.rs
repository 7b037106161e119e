//! A manager whose fork server and proxies the test plays, and whose log fails or stands still.

use std::{fs, sync::mpsc};

use api_types::{ResumeOptions, SessionSnapshot};
use event_log::{EventBatch, LogError, LogOptions};
use ipc_protocol::{
    AgentSessionConfig, Containment, Envelope, Event, Home, Lifecycle, OnMissing, Restart, ResumeFrom, ResumeRequest,
    Usage,
    message::{FromProxy, ProxyCommand, ToProxy},
};
use tempfile::TempDir;
use tokio::time::{Instant, timeout};

use super::*;
use crate::{
    description::{SessionState, TurnUsage},
    session::tests::{FakeForkServer, FakeProxy, HOST, fork_server, guard_receipt, patient, receipt, soon, stall},
    session_store::{RecordState, SessionRecord},
};

/// What there is of a manager without its fork server.
struct Place {
    log: Option<EventLog>,
    state: StateDir,
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        Self::with(Some(LogOptions::default()))
    }

    fn with(log: Option<LogOptions>) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let state = StateDir::open(&folder.path().join("state"), HOST).expect("a state directory");
        let log = log.map(|options| EventLog::open(folder.path().join("log.sqlite"), options).expect("a log"));
        Self { log, state, folder }
    }

    fn inner(&self, deadlines: Deadlines) -> (ManagerInner, FakeForkServer) {
        let (fork_server, played) = fork_server();
        let directory = Arc::new(SessionTable::new(10));
        let log = LogHandle::new(self.log.clone());
        let roster = Arc::new(SessionStore::open(log.clone()).expect("read"));
        let streams = StreamContext {
            all_sessions_waker: directory.all_sessions_waker().clone(),
            log,
            ..StreamContext::default()
        };
        let containing = ContainmentResolver::probe(Containment::Baseline, Some(Path::new("/nowhere")), HOST);
        let inner = ManagerInner {
            workspaces: None,
            session_table: directory,
            fork_servers: Arc::new(ForkServers::new(fork_server, ChildProgram::Path("/nowhere".into()), deadlines)),
            host: HOST,
            adopted_servers: Mutex::default(),
            reattached: Mutex::default(),
            agent_defaults: Mutex::new(Arc::new(AgentDefaults {
                cwd: "/".to_owned(),
                max_depth: 3,
                ..AgentDefaults::default()
            })),
            deadlines,
            streams,
            roster,
            containment: Arc::new(containing.expect("no layer is asked for")),
            homes: Arc::new(SessionHomes::persistent(self.state.directory(HOMES).expect("made"), [])),
            records: Arc::new(
                ConversationRecords::open(self.state.directory("conversations").expect("made")).expect("opened"),
            ),
            conversation_locks: Arc::default(),
            admission: Arc::new(Admission::new(crate::supervision::SessionBounds::default())),
            warm_pool: Arc::new(WarmPool::new(Vec::new(), Duration::ZERO)),
            has_swept_containers: AtomicBool::default(),
            descriptors: crate::supervision::DescriptorReserve::new(0),
            state: Mutex::default(),
            recovered: Vec::new(),
            rules: [].into(),
            key_locks: KeyLocks::default(),
            requests: super::requests::NamedRequests::default(),
            free_streams: super::streams::FreeStreams::default(),
            stream_wakers: super::StreamWakers::default(),
            after_end_turns: tokio::sync::Semaphore::new(super::session_commands::MAX_AFTER_END),
            stream_mapper: super::StreamMapper::new(false),
            idle_suspend_ms: 0,
            runtime: crate::runtime::HomeRuntime::current(),
            shutdown: tokio::sync::Mutex::default(),
        };
        (inner, played)
    }

    fn manager(&self, deadlines: Deadlines) -> Playing {
        let (inner, fork_server) = self.inner(deadlines);
        Playing { manager: ProxyManager { inner: Arc::new(inner) }, fork_server }
    }

    async fn stall(&self) -> mpsc::Sender<()> {
        stall(self.log.as_ref().expect("there")).await
    }
}

struct Playing {
    manager: ProxyManager,
    fork_server: FakeForkServer,
}

impl Playing {
    async fn started(&mut self, config: AgentSessionConfig) -> (SessionHandle, FakeProxy) {
        let (started, proxy) = tokio::join!(soon(self.manager.start_session(config)), begins(&mut self.fork_server));
        (started.expect("started"), proxy)
    }

    /// Suspends it as it is asked to.
    async fn suspended(&self, session: &SessionId, proxy: FakeProxy) -> SessionSnapshot {
        let suspended = self.manager.suspend_session(session, KillOptions::NOW);
        let (snapshot, reason) = tokio::join!(soon(suspended), ends(&self.fork_server, proxy, session));
        assert_eq!(reason, EndReason::Suspended);
        snapshot.expect("suspended")
    }
}

/// The next proxy, whose agent is ready.
async fn begins(fork_server: &mut FakeForkServer) -> FakeProxy {
    let mut proxy = fork_server.fork().await;
    proxy.start_as("n-1").await;
    proxy
}

/// Ends a session as it is told to. For what reason that is.
async fn ends(fork_server: &FakeForkServer, mut proxy: FakeProxy, session: &SessionId) -> EndReason {
    let reason = is_told_to_end(&mut proxy).await;
    has_ended(fork_server, proxy, session, reason).await
}

async fn is_told_to_end(proxy: &mut FakeProxy) -> EndReason {
    match proxy.receive().await {
        Some(ToProxy::Request { command: ProxyCommand::Kill { reason, .. }, .. }) => reason,
        other => panic!("no shutdown: {other:?}"),
    }
}

async fn has_ended(
    fork_server: &FakeForkServer,
    mut proxy: FakeProxy,
    session: &SessionId,
    reason: EndReason,
) -> EndReason {
    proxy.send(FromProxy::Ended { reason: reason.clone(), receipt: Box::new(receipt(session)) }).await;
    drop(proxy);
    fork_server.gone(session, guard_receipt(session));
    reason
}

fn id(id: &str) -> SessionId {
    id.parse().expect("a valid id")
}

fn config(session: &str) -> AgentSessionConfig {
    AgentSessionConfig { session_id: id(session), command: vec!["agent".into()], ..AgentSessionConfig::new("acp") }
}

fn with_home(session: &str) -> AgentSessionConfig {
    AgentSessionConfig { home: Some(Home::Own), ..config(session) }
}

#[tokio::test]
async fn a_snapshot_that_cannot_be_taken_in_leaves_its_home_to_who_has_it() {
    let (theirs, ours) = (Place::new(), Place::new());
    let mut first = theirs.manager(patient());
    let (session, proxy) = first.started(with_home("s")).await;
    let id = session.id();
    let snapshot = first.suspended(id, proxy).await;
    let home = PathBuf::from(snapshot.home.clone().expect("its own"));
    fs::write(home.join("chat"), "").expect("written");
    let forged = ours.folder.path().join("s-photos");
    fs::rename(&home, &forged).expect("moved");
    let mut second = ours.manager(Deadlines { control: Duration::from_millis(10), ..patient() });
    let taken_in = |home: &Path| {
        let home = home.to_str().map(str::to_owned);
        soon(second.manager.resume_snapshot(SessionSnapshot { home, ..snapshot.clone() }, ResumeOptions::default()))
    };
    let refused = taken_in(&forged).await;
    assert!(matches!(refused, Err(Error::InvalidConfig { field: "home", .. })), "{refused:?}");
    let refused = taken_in(&home).await;
    assert!(matches!(refused, Err(Error::InvalidConfig { field: "home", .. })), "{refused:?}");
    fs::rename(&forged, &home).expect("moved back");
    let stall = ours.stall().await;
    let refused = taken_in(&home).await;
    assert!(matches!(refused, Err(Error::Deadline { .. })), "{refused:?}");
    // Nothing of it is this one's.
    let unknown = second.manager.delete_session(id).await;
    assert!(matches!(unknown, Err(Error::UnknownSession { .. })), "{unknown:?}");
    assert!(home.join("chat").exists());
    // Nor of one that nobody waits for.
    let dropped = timeout(Duration::ZERO, taken_in(&home)).await;
    assert!(dropped.is_err(), "{dropped:?}");
    assert!(second.manager.records(&crate::session_store::SessionFilter::default()).is_empty());
    drop(stall);
    ours.log.as_ref().expect("there").flush(FLUSH_TIMEOUT).expect("written");
    drop(second);
    // Once it can be, it is this one's, and goes with it.
    second = ours.manager(patient());
    assert!(second.manager.records(&crate::session_store::SessionFilter::default()).is_empty());
    let resumed = second.manager.resume_snapshot(snapshot, ResumeOptions::default());
    let (resumed, proxy) = tokio::join!(soon(resumed), begins(&mut second.fork_server));
    resumed.expect("resumed");
    let kill = second.manager.kill_session(id, KillOptions::NOW);
    let (killed, _) = tokio::join!(soon(kill), ends(&second.fork_server, proxy, id));
    killed.expect("a receipt");
    soon(second.manager.delete_session(id)).await.expect("deleted");
    assert!(!home.exists());
}

/// As [`ends`], for what is ended since the log does not come to it.
async fn ends_at_a_deadline(
    manager: &ProxyManager,
    fork_server: &FakeForkServer,
    mut proxy: FakeProxy,
    session: &SessionId,
) -> EndReason {
    let mut view = manager.inner.session_table.get(session).expect("it begins").watch();
    drop(soon(view.wait_for(|view| matches!(view.state, SessionState::Idle))).await.expect("ready"));
    // Nobody does anything now: the next deadline is due at once.
    tokio::time::pause();
    let reason = is_told_to_end(&mut proxy).await;
    tokio::time::resume();
    has_ended(fork_server, proxy, session, reason).await
}

#[tokio::test]
async fn a_start_that_cannot_be_written_down_in_time_leaves_nothing() {
    let place = Place::new();
    let Playing { manager, mut fork_server } = place.manager(patient());
    let id = id("s");
    let stall = place.stall().await;
    let plays = async {
        let proxy = begins(&mut fork_server).await;
        ends_at_a_deadline(&manager, &fork_server, proxy, &id).await
    };
    let (started, reason) = tokio::join!(manager.start_session(with_home("s")), plays);
    assert!(matches!(started, Err(Error::Deadline { .. })), "{started:?}");
    assert_eq!(reason, EndReason::Killed);
    assert!(manager.session(&id).is_err() && manager.record(&id).is_err(), "it is listed");
    assert_eq!(manager.occupancy().running, 0);
    let homes = manager.inner.homes.directory().expect("there");
    assert_eq!(fs::read_dir(homes).expect("listed").count(), 0);
    assert!(manager.inner.records.read(&id).is_none());
    // Its id is free, although the log has yet to write and to delete what was queued of it.
    let again = async {
        let (started, _stall) = tokio::join!(soon(manager.start_session(with_home("s"))), async { drop(stall) });
        started
    };
    let (again, _proxy) = tokio::join!(again, begins(&mut fork_server));
    let again = again.expect("started");
    let log = place.log.as_ref().expect("there");
    log.flush(FLUSH_TIMEOUT).expect("written");
    assert_eq!(again.subscribe().next().await.expect("an event").offset, 1);
    assert_eq!(log.head(&id).map(|head| head.first), Some(1), "what the failed start had queued is gone");
}

#[tokio::test]
async fn a_resume_that_cannot_be_written_down_in_time_leaves_it_suspended() {
    let place = Place::new();
    let mut playing = place.manager(patient());
    let (session, proxy) = playing.started(with_home("s")).await;
    let id = session.id();
    playing.suspended(id, proxy).await;
    let stall = place.stall().await;
    let Playing { manager, mut fork_server } = playing;
    let plays = async {
        let proxy = begins(&mut fork_server).await;
        ends_at_a_deadline(&manager, &fork_server, proxy, id).await
    };
    let (resumed, reason) = tokio::join!(manager.resume_session(id), plays);
    assert!(matches!(resumed, Err(Error::Deadline { .. })), "{resumed:?}");
    assert_eq!(reason, EndReason::Suspended);
    let state = manager.session(id).expect("known").info().state;
    assert!(matches!(state, SessionState::Suspended { reason: EndReason::Suspended, .. }), "{state:?}");
    drop(stall);
    let (resumed, _proxy) = tokio::join!(soon(manager.resume_session(id)), begins(&mut fork_server));
    resumed.expect("resumed");
}

#[tokio::test]
async fn a_deletion_that_the_log_does_not_come_to_has_a_deadline() {
    let place = Place::new();
    let mut playing = place.manager(patient());
    let (session, proxy) = playing.started(config("s")).await;
    let id = session.id();
    playing.suspended(id, proxy).await;
    let stall = place.stall().await;
    let manager = &playing.manager;
    // It takes no thread: nothing else moves the clock.
    tokio::time::pause();
    let forgotten = soon(manager.inner.forget(id)).await;
    tokio::time::resume();
    assert!(matches!(forgotten, Err(Error::Deadline { .. })), "{forgotten:?}");
    drop(stall);
    let log = place.log.as_ref().expect("there");
    log.flush(FLUSH_TIMEOUT).expect("written");
    assert!(log.head(id).is_none() && log.sessions().expect("read").iter().all(|(known, _)| known != id));
}

#[tokio::test]
async fn what_is_handed_over_is_no_other_session_s_until_it_is_taken_back() {
    let place = Place::new();
    let mut playing = place.manager(patient());
    let (session, proxy) = playing.started(config("s")).await;
    let handed_over = session.session().suspend(KillOptions::NOW, true);
    let (handed_over, _) = tokio::join!(soon(handed_over), ends(&playing.fork_server, proxy, session.id()));
    handed_over.expect("handed over");
    // Another is known from the roster and its record alone.
    let ManagerInner { roster, records, .. } = &*playing.manager.inner;
    let state = RecordState::Suspended { reason: EndReason::Suspended, handed_over: true };
    roster.add(SessionRecord::new(config("t"), state), Box::new(drop));
    let conversation = crate::records::ConversationRecord {
        agent: "acp".into(),
        native_session_id: "n-2".into(),
        cwd: "/".into(),
        home: None,
        model_config: None,
        keys: Vec::new(),
    };
    records.write(&id("t"), &conversation);
    for known in [session.id().clone(), id("t")] {
        let from = ResumeFrom::Session { id: known };
        let resume = Some(ResumeRequest { from, fork: false, on_missing: OnMissing::StartAnew });
        let other = AgentSessionConfig { resume, ..config("other") };
        let refused = soon(playing.manager.start_session(other)).await;
        assert!(matches!(refused, Err(Error::HandedOver { .. })), "{refused:?}");
    }
    let taken_back = playing.manager.take_back(session.id());
    let (taken_back, _proxy) = tokio::join!(soon(taken_back), begins(&mut playing.fork_server));
    taken_back.expect("taken back");
}

#[tokio::test]
async fn where_sessions_last_one_that_says_nothing_of_it_is_suspended_after_five_minutes() {
    const HOUR: Duration = Duration::from_secs(3600);
    let builder = ManagerBuilder::new(ChildProgram::Path("/nowhere".into()));
    for (builder, after) in [
        (builder.clone().state_dir("/nowhere".into()), Some(300)),
        (builder.clone(), None),
        (builder.clone().idle_suspend(Duration::from_secs(60)), Some(60)),
        (builder.state_dir("/nowhere".into()).idle_suspend(Duration::ZERO), None),
    ] {
        let place = Place::with(None);
        let (mut inner, fork_server) = place.inner(patient());
        inner.idle_suspend_ms = builder.idle_suspend_ms();
        let mut playing = Playing { manager: ProxyManager { inner: Arc::new(inner) }, fork_server };
        // It is idle from some time between these on. What is started takes threads, for which a stopped clock does not wait.
        let before = Instant::now();
        let (session, mut proxy) = playing.started(config("s")).await;
        tokio::time::pause();
        let idle = Instant::now();
        match (timeout(HOUR, proxy.next()).await, after.map(Duration::from_secs)) {
            (Ok(Some(ToProxy::Request { command: ProxyCommand::Kill { reason, .. }, .. })), Some(after)) => {
                assert_eq!(reason, EndReason::Suspended);
                let now = Instant::now();
                // To the millisecond, as the clock goes.
                assert!(before + after <= now && now <= idle + after + Duration::from_millis(1), "{:?}", now - idle);
            }
            (Err(_), None) => assert_eq!(session.info().state, SessionState::Idle),
            (said, after) => panic!("{after:?}: {said:?}"),
        }
        tokio::time::resume();
    }
}

#[tokio::test]
async fn a_restart_that_waits_while_it_is_given_up_is_none() {
    const PAUSE: Duration = Duration::from_secs(60);
    let place = Place::with(None);
    let mut playing = place.manager(patient());
    let restart = Restart::OnCrash { max: 3, backoff_ms: PAUSE.as_millis().try_into().expect("few") };
    let lifecycle = Lifecycle { restart, ..Lifecycle::default() };
    let (session, proxy) = playing.started(AgentSessionConfig { lifecycle, ..config("s") }).await;
    let (session, id) = (session.session(), session.id());
    drop(proxy);
    playing.fork_server.gone(id, guard_receipt(id));
    drop(soon(session.watch().wait_for(|view| view.state.restart_after().is_some())).await.expect("it crashes"));
    soon(session.wait_settled()).await.expect("settled");
    // Somebody is at it. The suspension waits for that first, and then the restart.
    let at_it = session.lives().lock_resume().await;
    tokio::time::pause();
    tokio::time::advance(PAUSE - Duration::from_secs(1)).await;
    let manager = playing.manager.clone();
    let suspending = tokio::spawn({
        let id = id.clone();
        async move { manager.suspend_session(&id, KillOptions::NOW).await }
    });
    assert_eq!(session.lives().wait_end_requested(session).await, EndReason::Suspended);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    tokio::time::advance(Duration::from_secs(2)).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    tokio::time::resume();
    drop(at_it);
    soon(suspending).await.expect("it does not panic").expect("suspended");
    // It comes behind the restart.
    let resumed = playing.manager.resume_session(id);
    let (resumed, _proxy) = tokio::join!(soon(resumed), begins(&mut playing.fork_server));
    let mut events = resumed.expect("resumed").subscribe();
    let by = soon(async {
        loop {
            if let Event::SessionResumed { by, .. } = &events.next().await.expect("more").event {
                return by.clone();
            }
        }
    });
    assert_eq!(by.await, "resume");
}

#[tokio::test]
async fn nobody_waits_without_an_end_for_another_s_resume() {
    let place = Place::new();
    let mut playing = place.manager(patient());
    let (session, proxy) = playing.started(config("s")).await;
    playing.suspended(session.id(), proxy).await;
    let _at_it = session.session().lives().lock_resume().await;
    tokio::time::pause();
    let refused = playing.manager.resume_session(session.id()).await;
    let Err(Error::Deadline { operation, after }) = refused else { panic!("{refused:?}") };
    assert!(operation.contains("which is being resumed"), "{operation}");
    assert!(after >= patient().start, "another start has its time");
}

#[tokio::test]
async fn what_the_turn_took_that_a_host_died_in_is_counted_for_what_rests_too() {
    let place = Place::new();
    let log = place.log.as_ref().expect("there");
    let took = |input| Usage { input_tokens: Some(input), ..Usage::default() };
    let told = |input| Event::Usage(Box::new(took(input)));
    // Of each the record knows of the first turn, and that the second has begun.
    let turns = [(1, told(100)), (2, Event::SessionBusy {}), (2, told(30)), (2, told(70))];
    for (session, native) in [("suspended", Some("n-1")), ("over", None)] {
        let session = Arc::new(id(session));
        let created_at = std::time::SystemTime::now();
        let events = (1..).zip(turns.clone()).map(|(offset, (turn, event))| {
            Arc::new(Envelope { offset, created_at, session: session.clone(), turn: Some(turn), metadata: None, event })
        });
        let events = events.collect();
        let batch = EventBatch { session: session.clone(), created_at, first: 1, events, source: 0, cursor: None };
        log.append(batch, Box::new(drop)).expect("room in the queue");
        let config = config(session.as_str());
        let mut record = SessionRecord::new(config, RecordState::Idle);
        record.conversation.native_session_id = native.map(str::to_owned);
        (record.turns, record.last_offset, record.usage) = (2, 2, took(100));
        record.turn_usage = TurnUsage { turn: 1, usage: took(100) };
        log.put_session(&session, serde_json::to_string(&record).expect("JSON"), Box::new(drop));
    }
    log.flush(FLUSH_TIMEOUT).expect("written");
    let (inner, _fork_server) = place.inner(patient());
    assert_eq!(soon(inner.restore(&|_| false)).await, [id("suspended")]);
    let metrics = inner.session_table.get(&id("suspended")).expect("restored").metrics();
    assert_eq!(metrics.usage.input_tokens, Some(170));
    for session in ["suspended", "over"] {
        let record = inner.roster.get(&id(session)).expect("kept");
        assert_eq!(record.usage.input_tokens, Some(170), "{record:?}");
    }
}

#[tokio::test]
async fn what_is_imported_without_a_record_is_not_imported() {
    const ROOM: usize = 400_000;
    let place = Place::with(Some(LogOptions { max_pages: Some(100), ..LogOptions::default() }));
    let Playing { manager, .. } = place.manager(patient());
    let log = place.log.as_ref().expect("there");
    let line = |agent: String| {
        let event = Event::SessionStarted {
            agent,
            process: HOST,
            proxy: HOST,
            native_session_id: None,
            measures: Box::default(),
            surface: crate::terminal::Surface::Machine,
        };
        let created_at = std::time::SystemTime::now();
        let envelope =
            Envelope { offset: 1, created_at, session: Arc::new(id("s")), turn: None, metadata: None, event };
        std::io::Cursor::new(envelope.to_json().expect("serializes").to_string())
    };
    // There is room for the event, and not for the agent's name once more.
    let import = |length| soon(manager.import_events(line("x".repeat(length))));
    let full = import(ROOM * 5 / 8).await;
    assert!(matches!(full, Err(Error::Log(LogError::DiskFull { .. }))), "{full:?}");
    assert!(log.head(&id("s")).is_none() && manager.record(&id("s")).is_err());
    assert!(log.sessions().expect("read").is_empty());
    // The id is free.
    soon(async {
        while let Err(error) = manager.import_events(line("x".to_owned())).await {
            assert!(matches!(error, Error::Log(LogError::DiskFull { .. })), "{error}");
        }
    })
    .await;
    assert_eq!(manager.record(&id("s")).expect("kept").config.agent, "x");
}

/// Answers are durable: what they wait for is one commit, with what the session's record shows of it.
#[tokio::test]
async fn events_and_the_record_of_them_are_one_commit() {
    let place = Place::new();
    let mut playing = place.manager(patient());
    let commits = || place.log.as_ref().expect("there").metrics().commits;
    for n in 0..20 {
        let (session, mut proxy) = playing.started(config(&format!("s-{n}"))).await;
        let (turn, number) = tokio::join!(soon(session.prompt("hi", PromptMode::Refuse)), proxy.take_prompt("hi"));
        proxy.end_turn(number).await;
        soon(turn.expect("taken").wait()).await.expect("over");
    }
    // That it begins, and is ready; that the agent is given the prompt, and has it; that the turn is over. Some are held up longer
    // than the log waits for what comes together.
    let commits = commits();
    assert!(commits <= 20 * 5 + 5, "{commits}");
}

#[tokio::test]
async fn what_a_starting_session_shows_is_written_down_with_its_events() {
    let place = Place::new();
    let Playing { manager, mut fork_server } = place.manager(patient());
    let (id, log) = (id("s"), place.log.as_ref().expect("there"));
    let has_proxy = || {
        log.flush(FLUSH_TIMEOUT).expect("written");
        let record = log.session(&id).expect("read").expect("it is there from the beginning");
        serde_json::from_str::<SessionRecord>(&record).expect("a record").processes.proxy.is_some()
    };
    let plays = async {
        let mut proxy = fork_server.fork().await;
        let request = proxy.hello().await;
        let mut view = manager.inner.session_table.get(&id).expect("it begins").watch();
        drop(soon(view.wait_for(|view| view.processes.proxy.is_some())).await.expect("shown"));
        assert!(!has_proxy(), "the agent would have to share the disk");
        proxy.is_ready(request, Some("n-1"), true).await;
        proxy
    };
    let (started, _proxy) = tokio::join!(soon(manager.start_session(config("s"))), plays);
    started.expect("started");
    assert!(has_proxy());
}

#[tokio::test]
async fn the_runtime_goes_on_while_a_start_waits_for_the_disk() {
    let place = Place::new();
    let mut playing = place.manager(patient());
    let home = place.folder.path().join("home");
    fs::create_dir_all(home.join(".codex")).expect("made");
    // As slow as its other end.
    let settings = home.join(".codex/config.toml");
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(rustix::fs::CWD, &settings, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
    let env = [("HOME", &*home.to_string_lossy())].into_iter().collect();
    playing.manager.change_agent_defaults(|kit| kit.base_env = env);
    let (release, released) = mpsc::channel::<()>();
    let opener = std::thread::spawn(move || {
        // Also where the runtime stands still.
        let _ = released.recv_timeout(Duration::from_secs(5));
        fs::File::options().write(true).open(settings).map(drop)
    });
    let manager = playing.manager.clone();
    let start = tokio::spawn(async move { manager.start_session(AgentSessionConfig::new("codex")).await });
    let began = Instant::now();
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(began.elapsed() < Duration::from_secs(4), "the runtime stood still for {:?}", began.elapsed());
    assert!(!start.is_finished(), "it waits for the settings");
    drop(release);
    let _proxy = soon(playing.fork_server.fork()).await;
    start.abort();
    opener.join().expect("no panic").expect("opened");
}
