//! Sessions that are started ahead: who gets one, what it is from then on, and what becomes of those that nobody wants.

use std::{fs, path::Path, time::Duration};

use agent_proxy_tests::{
    sessions::{self, FAKE, soon},
    system::is_alive,
};
use proxy_manager::{
    AgentSessionConfig, AgentSpec, Error, Event, KillOptions, ManagerBuilder, Profile, Profiles, PromptMode, Proof,
    ProxyManager, SessionBound, SessionFilter, SessionId, SessionInfo, SessionState, WarmTarget,
};

/// Profile of the fake agent.
const PROFILE: &str = "quick";

fn profiles(model: Option<&str>) -> Profiles {
    let mut profiles = Profiles::default();
    profiles.add(Profile {
        name: PROFILE.into(),
        agent: FAKE.into(),
        model: model.map(str::to_owned),
        ..Profile::default()
    });
    profiles
}

/// A start of the profile.
fn start() -> AgentSessionConfig {
    AgentSessionConfig { profile: Some(PROFILE.into()), cwd: Some("/".into()), ..AgentSessionConfig::new(FAKE) }
}

fn builder(sessions: usize) -> ManagerBuilder {
    let builder = sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent"));
    builder.profiles(profiles(None)).warm([WarmTarget { config: start(), sessions }])
}

/// Waits until so many sessions are warm, and returns these.
async fn warm(manager: &ProxyManager, sessions: usize) -> Vec<SessionInfo> {
    let are_warm = async {
        while manager.warm_sessions() != sessions {
            tokio::task::yield_now().await;
        }
    };
    soon("the warm sessions", are_warm).await;
    let warm: Vec<_> = manager.list_sessions().into_iter().filter(|session| session.warm).collect();
    assert!(warm.len() >= sessions && warm.iter().all(|session| session.metadata.user_id.is_none()), "{warm:?}");
    warm
}

async fn warm_one(manager: &ProxyManager) -> SessionInfo {
    warm(manager, 1).await.pop().expect("one")
}

/// Waits until nothing is known of a session.
async fn forgotten(manager: &ProxyManager, session: &SessionInfo) {
    let is_forgotten = async {
        while manager.session(&session.metadata.session_id).is_ok() {
            tokio::task::yield_now().await;
        }
    };
    soon("the end of a warm session", is_forgotten).await;
    assert!(!is_alive(pid(session)));
}

fn pid(session: &SessionInfo) -> u32 {
    session.processes.agent_process.expect("an agent").pid
}

#[tokio::test]
async fn a_start_has_a_warm_session_as_its_own() {
    let scratch = tempfile::tempdir().expect("a directory");
    let manager = builder(1).state_dir(scratch.path().join("state")).build().await.expect("built");
    let waiting = warm_one(&manager).await;
    assert_eq!((waiting.state.clone(), waiting.turns), (SessionState::Idle, 0));
    let mut config = AgentSessionConfig {
        user_id: Some("ada".into()),
        workspace_id: Some("w-1".into()),
        agent_type: Some("plan".into()),
        ..start()
    };
    config.lifecycle.key = Some("chat".into());
    config.lifecycle.title = Some("Plums".into());
    config.lifecycle.tags = vec!["red".into()];
    let session = manager.start_or_claim(config.clone()).await.expect("started");
    let info = session.info();
    assert_eq!(info.metadata.session_id, waiting.metadata.session_id, "it has the id that it was started with");
    assert_eq!((pid(&info), info.warm), (pid(&waiting), false));
    let labels = (&info.metadata.user_id, &info.metadata.workspace_id, &info.metadata.agent_type, &info.title);
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(labels, (&text("ada"), &text("w-1"), &text("plan"), &text("Plums")));
    assert!(info.metadata.started_at > waiting.metadata.started_at, "the call, and not what came before it");
    let record = manager.record(session.id()).expect("kept");
    assert!(!record.warm);
    assert_eq!(record.config.lifecycle, {
        let mut lifecycle = config.lifecycle.clone();
        lifecycle.idle_suspend_ms = record.config.lifecycle.idle_suspend_ms;
        lifecycle
    });
    assert_eq!(record.config.user_id.as_deref(), Some("ada"));
    // Its stream begins with the start of the agent, and says from where on it is somebody's.
    let mut events = session.subscribe();
    let mut kinds = Vec::new();
    loop {
        let envelope = soon("an event", events.next()).await.expect("more");
        assert_eq!(envelope.offset, kinds.len() as u64 + 1);
        kinds.push(envelope.event.kind().into_owned());
        if let Event::SessionClaimed { user_id, workspace_id, agent_type, .. } = &envelope.event {
            assert_eq!((user_id, workspace_id, agent_type), (&text("ada"), &text("w-1"), &text("plan")));
            break;
        }
    }
    assert!(kinds.contains(&"session:started".to_owned()), "{kinds:?}");
    let turn = session.prompt("say hello", PromptMode::Refuse).await.expect("prompted");
    soon("the turn", turn.wait()).await.expect("ended");
    // Another one takes its place, and a start with the same key goes on with the first.
    assert_ne!(warm_one(&manager).await.metadata.session_id, *session.id());
    let again = manager.start_or_claim(config).await.expect("there");
    assert_eq!(again.id(), session.id());
    let next = warm_one(&manager).await;
    let receipts = manager.shutdown().await;
    assert_eq!(receipts.len(), 2, "each that lived has one");
    assert!(receipts.iter().all(|receipt| receipt.is_empty() && receipt.proof != Proof::None), "{receipts:?}");
    assert!(!is_alive(pid(&next)));
    drop(manager);
    // What was nobody's leaves nothing.
    let manager = builder(1).warm([]).state_dir(scratch.path().join("state")).build().await.expect("built");
    let records = manager.records(&SessionFilter::default());
    let ids: Vec<_> = records.iter().map(|record| &record.session_id).collect();
    assert_eq!(ids, [session.id()]);
    manager.shutdown().await;
}

#[tokio::test]
async fn only_a_start_of_the_same_settings_has_one() {
    let manager = builder(1).build().await.expect("built");
    let waiting = warm_one(&manager).await;
    let other_directory = AgentSessionConfig { cwd: Some("/tmp".into()), ..start() };
    let without_profile = AgentSessionConfig { profile: None, ..start() };
    let deeper = AgentSessionConfig { depth: 1, ..start() };
    for config in [start().with_env("TZ", "UTC"), other_directory, without_profile, deeper] {
        let session = manager.start_or_claim(config.clone()).await.expect("started");
        assert_eq!(*session.id(), config.session_id, "it was started for this");
    }
    let named = AgentSessionConfig { session_id: "mine".parse().expect("an id"), ..start() };
    assert_eq!(manager.start_session(named).await.expect("started").id().as_str(), "mine");
    assert_eq!(warm_one(&manager).await.metadata, waiting.metadata);
    manager.shutdown().await;
}

#[tokio::test]
async fn two_starts_never_have_the_same_one() {
    let manager = builder(2).build().await.expect("built");
    let waiting: Vec<_> = warm(&manager, 2).await.into_iter().map(|session| session.metadata.session_id).collect();
    let of = |user: &str| AgentSessionConfig { user_id: Some(user.into()), ..start() };
    let (ada, bob) = tokio::join!(manager.start_or_claim(of("ada")), manager.start_or_claim(of("bob")));
    let (ada, bob) = (ada.expect("started"), bob.expect("started"));
    assert!(ada.id() != bob.id() && waiting.contains(ada.id()) && waiting.contains(bob.id()));
    let user = |session: &proxy_manager::SessionHandle| session.info().metadata.user_id;
    assert_eq!((user(&ada).as_deref(), user(&bob).as_deref()), (Some("ada"), Some("bob")));
    manager.shutdown().await;
}

#[tokio::test]
async fn the_bounds_of_users_hold() {
    let manager = builder(1).max_sessions_per_user(1).build().await.expect("built");
    let of_ada = || AgentSessionConfig { user_id: Some("ada".into()), ..start() };
    warm_one(&manager).await;
    let first = manager.start_or_claim(of_ada()).await.expect("started");
    let waiting = warm_one(&manager).await;
    let refused = manager.start_or_claim(of_ada()).await.expect_err("one too many");
    assert!(
        matches!(&refused, Error::TooManySessions { bound: SessionBound::User(user), limit: 1, .. } if user == "ada"),
        "{refused:?}"
    );
    assert_eq!(warm_one(&manager).await.metadata, waiting.metadata, "it is still there");
    soon("the end", first.kill(KillOptions::NOW)).await.expect("killed");
    let second = manager.start_or_claim(of_ada()).await.expect("started");
    assert_eq!(*second.id(), waiting.metadata.session_id);
    manager.shutdown().await;
}

#[tokio::test]
async fn a_start_without_a_place_takes_that_of_a_warm_session() {
    let manager = builder(1).max_sessions(1).build().await.expect("built");
    let waiting = warm_one(&manager).await;
    let other = AgentSessionConfig { cwd: Some("/tmp".into()), ..start() };
    let session = manager.start_or_claim(other).await.expect("started, and not refused");
    assert_ne!(*session.id(), waiting.metadata.session_id);
    forgotten(&manager, &waiting).await;
    assert_eq!(manager.occupancy().running, 1);
    manager.shutdown().await;
}

#[tokio::test]
async fn old_ones_are_replaced() {
    let manager = builder(1).warm_age(Duration::from_millis(200)).build().await.expect("built");
    let first = warm_one(&manager).await;
    forgotten(&manager, &first).await;
    let second = warm_one(&manager).await;
    assert_ne!(second.metadata.session_id, first.metadata.session_id);
    manager.shutdown().await;
}

#[tokio::test]
async fn another_configuration_begins_them_anew() {
    let manager = builder(1).build().await.expect("built");
    let first = warm_one(&manager).await;
    manager.set_profiles(profiles(Some("fake-2")));
    // One that is still there is no longer what the profile says.
    let started = manager.start_or_claim(start()).await.expect("started");
    assert_ne!(*started.id(), first.metadata.session_id);
    forgotten(&manager, &first).await;
    let second = warm_one(&manager).await;
    assert_eq!(second.settings.model.as_deref(), Some("fake-2"));
    manager.shutdown().await;
}

#[tokio::test]
async fn one_that_ends_is_replaced_and_one_that_is_used_is_left_alone() {
    let manager = builder(1).build().await.expect("built");
    let killed = warm_one(&manager).await;
    manager.kill_session(&killed.metadata.session_id, KillOptions::NOW).await.expect("killed");
    let used = warm_one(&manager).await;
    assert_ne!(used.metadata.session_id, killed.metadata.session_id);
    let turn = manager.send_prompt(&used.metadata.session_id, "say hello", PromptMode::Refuse).await.expect("prompted");
    soon("the turn", turn.wait()).await.expect("ended");
    assert!(!manager.session(&used.metadata.session_id).expect("there").info().warm);
    let next = warm_one(&manager).await;
    let started = manager.start_or_claim(start()).await.expect("started");
    assert_eq!(*started.id(), next.metadata.session_id);
    assert!(is_alive(pid(&used)), "it is a session like any other");
    manager.shutdown().await;
}

/// Neither a program that is not there nor what cannot wait keeps another profile from its sessions.
#[tokio::test]
async fn failures_delay_nobody_else() {
    let target = |config| WarmTarget { config, sessions: 1 };
    let missing = AgentSessionConfig { cwd: Some("/".into()), ..AgentSessionConfig::new("missing") };
    let mut timed = start();
    timed.limits.wall_clock_ms = Some(60_000);
    let builder = builder(1).agent(AgentSpec::new("missing", "acp", &["/proc/none"]));
    let manager = builder.warm([target(missing), target(timed), target(start())]).build().await.expect("built");
    let waiting = warm(&manager, 1).await;
    assert!(waiting.iter().any(|session| session.metadata.agent == FAKE), "{waiting:?}");
    // Another start of the one whose program is missing may be under way.
    let started = manager.list_sessions().into_iter().filter(|info| info.metadata.agent == FAKE).count();
    assert_eq!(started, 1, "nothing is left of the one that failed");
    manager.shutdown().await;
}

#[tokio::test]
async fn nothing_is_left_of_one_whose_host_crashed() {
    let scratch = tempfile::tempdir().expect("a directory");
    let state = scratch.path().join("state");
    let manager = builder(1).state_dir(state.clone()).build().await.expect("built");
    let waiting = warm_one(&manager).await;
    let session = manager.start_or_claim(start()).await.expect("started").id().clone();
    assert_eq!(session, waiting.metadata.session_id);
    let next = warm_one(&manager).await;
    let copy = scratch.path().join("copy");
    copy_log(&state, &copy);
    manager.shutdown().await;
    // As the files were when all was alive.
    let manager = builder(1).warm([]).state_dir(copy).build().await.expect("built");
    let known = |id: &SessionId| manager.record(id).is_ok();
    assert!(known(&session), "a session of somebody's is known");
    assert!(!known(&next.metadata.session_id), "the other one was nobody's");
    manager.shutdown().await;
}

/// Copies the event log of a living manager: the files as a crash would leave them.
fn copy_log(state: &Path, copy: &Path) {
    use std::os::unix::fs::DirBuilderExt as _;
    fs::DirBuilder::new().mode(0o700).create(copy).expect("made");
    for entry in fs::read_dir(state).expect("read").flatten() {
        let name = entry.file_name();
        if name.to_string_lossy().starts_with("log.sqlite") {
            fs::copy(entry.path(), copy.join(name)).expect("copied");
        }
    }
}

#[tokio::test]
async fn a_drain_hands_none_out_and_ends_them() {
    let manager = builder(1).build().await.expect("built");
    let waiting = warm_one(&manager).await;
    let session = manager.start_session(start()).await.expect("started");
    let turn = session.prompt("wait", PromptMode::Refuse).await.expect("prompted");
    let (drained, refused) = tokio::join!(soon("the drain", manager.drain(Duration::from_secs(60), |_| {})), async {
        while manager.warm_sessions() != 0 {
            tokio::task::yield_now().await;
        }
        let refused = manager.start_or_claim(start()).await;
        session.kill(KillOptions::NOW).await.expect("killed");
        refused
    });
    assert!(matches!(refused, Err(Error::Draining)), "{refused:?}");
    drop(turn);
    assert!(drained.iter().any(|receipt| receipt.session_id == waiting.metadata.session_id), "{drained:?}");
    assert!(drained.iter().all(|receipt| receipt.is_empty()) && !is_alive(pid(&waiting)), "{drained:?}");
}
