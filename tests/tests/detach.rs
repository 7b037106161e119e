//! Sessions that outlive their hosts: each host is killed with SIGKILL, and another one goes on.

use std::{
    fs::Permissions,
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::CommandExt,
    },
    path::Path,
    time::{Duration, Instant},
};

use agent_proxy_tests::{
    detach::{Host, State, asked_of_nobody, claim_all},
    sessions::{self, event, said, soon},
    system::{self, until},
};
use ipc_protocol::{Json, message::VERSION, reattach::AdoptResponse};
use proxy_manager::{
    AgentSessionConfig, Deadlines, EndReason, Envelope, Event, HistoryLimits, HostDeath, LogError, PermissionAnswer,
    PromptMode, ProxyManager, RecoveryOutcome, SessionHandle, SessionState, Subscription,
};
use registry::PidFd;
use serde_json::Value;

fn host(state: &State) -> Host {
    let [host, child, fake] =
        [env!("CARGO_BIN_EXE_detach-host"), env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent")];
    Host::start(host, child, fake, &state.path())
}

/// The next host of the sessions in `state`.
async fn next(state: &State) -> ProxyManager {
    next_of(state, Deadlines::default()).await
}

async fn next_of(state: &State, deadlines: Deadlines) -> ProxyManager {
    let builder = sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent"));
    let builder = builder.deadlines(deadlines);
    let all = HistoryLimits { events: 1 << 20, bytes: 1 << 30 };
    let builder = builder.state_dir(state.path()).history(all);
    soon("the state directory is free", async {
        loop {
            match builder.clone().build().await {
                Ok(manager) => return manager,
                // What a dropped manager has is given back by its sessions, one after the other.
                Err(
                    proxy_manager::Error::Log(LogError::Locked { .. }) | proxy_manager::Error::StateDirInUse { .. },
                ) => tokio::task::yield_now().await,
                Err(error) => panic!("{error}"),
            }
        }
    })
    .await
}

/// One that a failed test leaves ends itself soon.
const FETCHED: HostDeath = HostDeath::Detach { fetch_within_ms: 60_000, spool_bytes: 64 << 20 };

fn detached(config: AgentSessionConfig) -> AgentSessionConfig {
    AgentSessionConfig { on_host_death: FETCHED, verbatim: Some(false), ..config }
}

/// Counts, so many a second.
fn ticker(per_second: u32, count: u32) -> AgentSessionConfig {
    let command = [env!("CARGO_BIN_EXE_ticker").to_owned(), per_second.to_string(), count.to_string()];
    detached(AgentSessionConfig { command: command.into(), ..AgentSessionConfig::new("command") })
}

fn kill(pid: u32) {
    let process = PidFd::open(registry::identify(pid).expect("alive")).expect("alive");
    process.signal(proxy_manager::Signal::Kill).expect("signalled");
}

fn only(manager: &ProxyManager) -> SessionHandle {
    let reattached = manager.reattached();
    assert_eq!(reattached.len(), 1, "{reattached:?}");
    manager.session(&reattached[0]).expect("it is there")
}

/// What a ticker, or a flood, counts.
fn number(text: &str) -> Option<u64> {
    text.trim_end().trim_end_matches('.').trim_start_matches("tick ").parse().ok()
}

/// Offset and number of a count that a killed host has shown.
fn shown(line: &Value, id: &str) -> Option<(u64, u64)> {
    let text = (line["eventStreamId"] == id).then(|| line["payload"]["text"].as_str()).flatten()?;
    Some((line["offset"].as_str()?.parse().ok()?, number(text)?))
}

fn counted(envelope: &Envelope) -> Option<(u64, u64)> {
    if let Event::Text { text } = &envelope.event { Some((envelope.offset, number(text)?)) } else { None }
}

/// Nothing is lost or doubled: the stream of the next host has every count once and in order, with offsets that have no holes,
/// and what the dead host has shown is where that has shown it.
fn goes_on(before: &[(u64, u64)], after: &[std::sync::Arc<Envelope>]) {
    let offsets: Vec<_> = after.iter().map(|envelope| envelope.offset).collect();
    assert!(offsets.iter().zip(1..).all(|(offset, wanted)| *offset == wanted), "offsets have no holes");
    let counts: std::collections::BTreeMap<u64, u64> = after.iter().filter_map(|envelope| counted(envelope)).collect();
    let wrong = counts.values().zip(0..).find(|(count, wanted)| *count != wanted);
    assert_eq!(wrong, None, "a count and what it should be");
    assert!(!before.is_empty());
    let moved = before.iter().find(|(offset, count)| counts.get(offset) != Some(count));
    assert_eq!(moved, None, "what the dead host has shown");
}

/// The events of a session from its first until its count is `last`.
async fn until_count(session: &SessionHandle, last: u64) -> Vec<std::sync::Arc<Envelope>> {
    let mut events = session.subscribe();
    let mut all = Vec::new();
    soon("the last count", async {
        while let Some(envelope) = events.next().await {
            let done = counted(&envelope).is_some_and(|(_, n)| n == last);
            all.push(envelope);
            if done {
                return;
            }
        }
        panic!("the stream ended");
    })
    .await;
    all
}

#[tokio::test]
async fn an_idle_session_goes_on() {
    let state = State::new();
    let mut host = host(&state);
    let config = AgentSessionConfig { user_id: Some("user-1".into()), ..detached(sessions::fake()) };
    let id = config.session_id.to_string();
    let proxy = host.session(&config);
    host.prompt(&id, "say one");
    host.line("the turn's end", |line| (line["type"] == "session:idle" && line["metadata"]["turn"] == 1).then_some(()));
    let fork_server = host.fork_server;
    host.kill();
    let manager = next(&state).await;
    let session = only(&manager);
    let info = session.info();
    assert_eq!((info.metadata.session_id, info.metadata.user_id, info.turns), (config.session_id, config.user_id, 1));
    assert_eq!(
        (info.state, info.metadata.agent.as_str(), info.processes.proxy.expect("known").pid),
        (SessionState::Idle, "fake", proxy)
    );
    assert!(info.conversation.native_session_id.is_some() && info.processes.agent_process.is_some());
    assert_ne!(manager.fork_server().pid, fork_server);
    let mut events = session.subscribe();
    let turn = session.prompt("say two", PromptMode::Refuse).await.expect("prompted");
    assert_eq!(said(&mut events, "two").await.trim(), "");
    assert_eq!(soon("the turn's end", turn.wait()).await.expect("ended").turn, Some(2));
    assert!(session.processes().await.expect("a list").len() == 1);
    let receipts = manager.shutdown().await;
    assert!(receipts.iter().all(proxy_manager::Receipt::is_empty) && receipts.len() == 1, "{receipts:?}");
    state.nothing_left(&id, &[proxy, fork_server]);
}

#[tokio::test]
async fn what_a_dead_host_had_no_time_for_is_done_by_the_next_and_once() {
    let state = State::new();
    let mut first = host(&state);
    let config = detached(sessions::fake());
    let id = config.session_id.to_string();
    first.session(&config);
    first.kill();
    asked_of_nobody(&state.path(), &config.session_id, "say late");
    let second = host(&state);
    second.line("late", |line| (line["payload"]["text"].as_str()?.trim() == "late").then_some(()));
    second.line("its end", |line| (line["type"] == "session:idle" && line["metadata"]["turn"] == 1).then_some(()));
    second.kill();
    // The third does what it is asked for after what it finds undone.
    let manager = next(&state).await;
    let payload = Json::from(&serde_json::json!({"content": "say after"}));
    manager.append_event(&config.session_id, "agent:action:prompt:called", 1, payload).await.expect("appended");
    let mut events = only(&manager).subscribe();
    let mut said = Vec::new();
    event(&mut events, "after", |envelope| {
        let Event::Text { text } = &envelope.event else { return None };
        said.push(text.trim().to_owned());
        (text.trim() == "after").then_some(())
    })
    .await;
    assert_eq!(said, ["late", "after"]);
    manager.shutdown().await;
    state.nothing_left(&id, &[]);
}

/// A session of the fake agent, which does not start before the file `go` is there.
fn late(go: &Path) -> AgentSessionConfig {
    let script = format!("while ! test -e {}; do :; done; exec {}", go.display(), env!("CARGO_BIN_EXE_fake-agent"));
    let command = ["/bin/sh".to_owned(), "-c".to_owned(), script].into();
    detached(AgentSessionConfig { command, ..AgentSessionConfig::new("acp") })
}

#[tokio::test]
async fn it_is_done_also_where_the_manager_is_built_before_the_agent_is_ready() {
    let state = State::new();
    let mut host = host(&state);
    let go = state.path().join("go");
    let config = late(&go);
    let id = config.session_id.to_string();
    host.begin(&config);
    until("the agent is about to start", || (!system::with_marker(&id).is_empty()).then_some(()));
    host.kill();
    asked_of_nobody(&state.path(), &config.session_id, "say late");
    let deadlines = Deadlines { control: Duration::from_secs(2), ..Deadlines::default() };
    let manager = next_of(&state, deadlines).await;
    assert_eq!(manager.reattached(), [], "it was not waited for");
    let session = manager.session(&config.session_id).expect("it is there");
    let mut events = session.subscribe();
    // What is asked for now is done after it.
    let payload = Json::from(&serde_json::json!({ "content": "say later" }));
    manager.append_event(session.id(), "agent:action:prompt:called", 1, payload).await.expect("appended");
    std::fs::write(&go, "").expect("written");
    event_of_turn(&mut events, "late").await;
    event_of_turn(&mut events, "later").await;
    assert_eq!(manager.reattached(), [config.session_id]);
    manager.shutdown().await;
    state.nothing_left(&id, &[]);
}

/// Waits until it was told what a turn took by now.
async fn usage_of(events: &mut Subscription, turn: u64) {
    event(events, "what a turn took", |envelope| {
        (matches!(envelope.event, Event::Usage(_)) && envelope.turn == Some(turn)).then_some(())
    })
    .await;
}

/// What a session has cost, in cents.
fn cents(session: &SessionHandle) -> Option<u32> {
    session.info().metrics.usage.cost_usd.map(|cost| (cost * 100.0).round() as u32)
}

/// A host in this process, a session of its that outlives it, and the pid of that one's proxy.
async fn first(state: &State) -> (ProxyManager, SessionHandle, u32) {
    let manager = next(state).await;
    let session = manager.start_session(detached(sessions::fake())).await.expect("started");
    let proxy = session.info().processes.proxy.expect("it runs").pid;
    (manager, session, proxy)
}

#[tokio::test]
async fn what_was_written_down_in_the_middle_of_a_turn_is_not_counted_again() {
    let state = State::new();
    let go = state.path().join("go");
    let (manager, session, proxy) = first(&state).await;
    let (id, mut events) = (session.id().clone(), session.subscribe());
    let script = format!("cost 25\nrun while ! test -e {}; do :; done\ncost 5", go.display());
    session.prompt(script.as_str(), PromptMode::Refuse).await.expect("prompted");
    usage_of(&mut events, 1).await;
    // Its record is written at each change.
    session.set_model("fake-2").await.expect("set");
    drop((events, session, manager));
    let manager = next(&state).await;
    let session = only(&manager);
    assert_eq!(cents(&session), Some(25));
    let mut events = session.subscribe_from(session.info().last_offset);
    std::fs::write(&go, "").expect("written");
    usage_of(&mut events, 1).await;
    assert_eq!(cents(&session), Some(30));
    manager.shutdown().await;
    state.nothing_left(id.as_str(), &[proxy]);
}

#[tokio::test]
async fn a_turn_is_counted_once_however_many_hosts_see_it() {
    let state = State::new();
    let go = state.path().join("go");
    let (manager, session, proxy) = first(&state).await;
    let (id, mut events) = (session.id().clone(), session.subscribe());
    let turn = session.prompt("cost 10\ntokens 1 2", PromptMode::Refuse).await.expect("prompted");
    soon("the first turn's end", turn.wait()).await.expect("ended");
    let script = format!("say so\ncost 25\nrun while ! test -e {}; do :; done\ncost 5\ntokens 30 4", go.display());
    session.prompt(script.as_str(), PromptMode::Refuse).await.expect("prompted");
    usage_of(&mut events, 2).await;
    let taken = |session: &SessionHandle| {
        let metrics = session.info().metrics;
        (cents(session), metrics.usage.input_tokens, metrics.messages)
    };
    let seen = taken(&session);
    assert_eq!(seen, (Some(35), Some(1), 3));
    drop((events, session, manager));
    // The first of them finds a record of before that, the second one that was written in the middle of the turn.
    for host in 0..2 {
        let manager = next(&state).await;
        assert_eq!(taken(&only(&manager)), seen, "host {host}");
    }
    let manager = next(&state).await;
    let session = only(&manager);
    let mut events = session.subscribe_from(session.info().last_offset);
    std::fs::write(&go, "").expect("written");
    event(&mut events, "the turn's end", |envelope| {
        (envelope.event == Event::SessionIdle {} && envelope.turn == Some(2)).then_some(())
    })
    .await;
    let (cost, tokens, _) = taken(&session);
    assert_eq!((cost, tokens), (Some(40), Some(31)));
    manager.shutdown().await;
    let manager = next(&state).await;
    assert_eq!(manager.record(&id).expect("a record").usage.input_tokens, Some(31));
    manager.shutdown().await;
    state.nothing_left(id.as_str(), &[proxy]);
}

/// Waits until the agent says this.
async fn event_of_turn(events: &mut Subscription, wanted: &str) {
    event(events, wanted, |envelope| match &envelope.event {
        Event::Text { text } if text.trim() == wanted => Some(()),
        _ => None,
    })
    .await;
}

#[tokio::test]
async fn a_turn_goes_on_under_a_flood_and_nothing_is_lost_or_doubled() {
    const COUNT: u64 = 100_000;
    let state = State::new();
    let mut host = host(&state);
    let config = detached(sessions::fake());
    let id = config.session_id.to_string();
    let proxy = host.session(&config);
    host.prompt(&id, &format!("flood {COUNT} 16"));
    host.line("some of it", |line| shown(line, &id).filter(|(_, n)| *n > 20_000));
    let fork_server = host.fork_server;
    let before: Vec<_> = host.kill().iter().filter_map(|line| shown(line, &id)).collect();
    let manager = next(&state).await;
    let session = only(&manager);
    let after = until_count(&session, COUNT - 1).await;
    goes_on(&before, &after);
    let mut events = session.subscribe();
    event(&mut events, "the turn's end", |envelope| {
        (envelope.event == Event::SessionIdle {} && envelope.turn == Some(1)).then_some(())
    })
    .await;
    assert_eq!(session.info().state, SessionState::Idle);
    manager.shutdown().await;
    state.nothing_left(&id, &[proxy, fork_server]);
}

#[tokio::test]
async fn three_hosts_one_after_the_other() {
    const COUNT: u32 = 30_000;
    let state = State::new();
    let mut first = host(&state);
    let config = ticker(10_000, COUNT);
    let id = config.session_id.to_string();
    let proxy = first.session(&config);
    let fork_server = first.fork_server;
    first.line("some of it", |line| shown(line, &id).filter(|(_, n)| *n > 5_000));
    let before: Vec<_> = first.kill().iter().filter_map(|line| shown(line, &id)).collect();
    let second = host(&state);
    second.line("more of it", |line| shown(line, &id).filter(|(_, n)| *n > 12_000));
    let lines: Vec<_> = second.kill();
    let events = lines.iter().filter(|line| line["eventStreamId"] == id.as_str());
    let after: Vec<_> = events.map(|line| Envelope::from_json(line.clone()).expect("an event").into()).collect();
    goes_on(&before, &after);
    let before: Vec<_> = lines.iter().filter_map(|line| shown(line, &id)).collect();
    let began = Instant::now();
    let manager = next(&state).await;
    let session = only(&manager);
    let mut events = session.subscribe_from(session.info().last_offset);
    event(&mut events, "a new event", counted).await;
    let took = began.elapsed();
    // For people: the bar is 300 ms, and a busy machine proves nothing.
    writeln(&format!("from the build of a manager to the first new event under 10,000 events/s: {took:?}"));
    goes_on(&before, &until_count(&session, u64::from(COUNT) - 1).await);
    manager.shutdown().await;
    state.nothing_left(&id, &[proxy, fork_server]);
}

fn writeln(line: &str) {
    use std::io::Write;
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).expect("written");
}

#[tokio::test]
async fn a_permission_request_waits_for_the_next_host() {
    let state = State::new();
    let mut host = host(&state);
    let config = detached(sessions::fake());
    let id = config.session_id.to_string();
    let proxy = host.session(&config);
    host.prompt(&id, "ask may I");
    let request = host.line("the request", |line| {
        (line["type"] == "permission:requested").then(|| line["payload"]["id"].as_str().map(str::to_owned)).flatten()
    });
    let fork_server = host.fork_server;
    host.kill();
    let manager = next(&state).await;
    let session = only(&manager);
    assert_eq!(session.info().state, SessionState::Busy { turn: 1 });
    let mut events = session.subscribe();
    soon("an answer", session.respond_permission(&request, PermissionAnswer::Allow)).await.expect("answered");
    assert_eq!(said(&mut events, "permission: ").await.trim(), "allow-once");
    event(&mut events, "idle", |envelope| (envelope.event == Event::SessionIdle {}).then_some(())).await;
    manager.shutdown().await;
    state.nothing_left(&id, &[proxy, fork_server]);
}

#[tokio::test]
async fn what_ends_without_a_host_is_heard_by_the_next() {
    let state = State::new();
    let mut host = host(&state);
    let config = detached(sessions::shell("read line; echo over"));
    let id = config.session_id.to_string();
    let proxy = host.session(&config);
    let fork_server = host.fork_server;
    let agent = until("its agent", || system::with_marker(&id).first().copied());
    host.kill();
    kill(agent);
    until("it has ended", || system::with_marker(&id).is_empty().then_some(()));
    let manager = next(&state).await;
    let session = manager.session(&config.session_id).expect("it is there");
    let events = sessions::all(&mut session.subscribe()).await;
    match &events.last().expect("a last event").event {
        Event::SessionEnded { reason, receipt } => {
            assert!(matches!(reason, proxy_manager::EndReason::AgentExited(_)), "{reason}");
            assert!(receipt.as_ref().is_some_and(|receipt| receipt.is_empty()));
        }
        other => panic!("{other:?}"),
    }
    manager.shutdown().await;
    state.nothing_left(&id, &[proxy, fork_server]);
}

#[tokio::test]
async fn a_host_and_a_proxy_at_once() {
    let state = State::new();
    let mut host = host(&state);
    let config = detached(sessions::shell("setsid sleep 1000 & cat"));
    let id = config.session_id.to_string();
    let (proxy, fork_server) = (host.session(&config), host.fork_server);
    kill(proxy);
    host.kill();
    until("nothing is left", || (system::with_marker(&id).is_empty() && !system::is_alive(fork_server)).then_some(()));
    let manager = next(&state).await;
    assert_eq!(manager.reattached(), []);
    let recovered: Vec<_> =
        manager.recovered().iter().filter(|one| one.session_id == Some(config.session_id.clone())).collect();
    assert!(recovered.len() == 1 && recovered[0].is_empty(), "{recovered:?}");
    manager.shutdown().await;
    state.nothing_left(&id, &[proxy, fork_server]);
}

#[tokio::test]
async fn without_its_fork_server_it_ends() {
    let state = State::new();
    let (mut host, seconds) = (host(&state), system::unique_seconds());
    let config = detached(sessions::shell(&format!("setsid sleep {seconds} & cat")));
    let id = config.session_id.to_string();
    let (proxy, fork_server) = (host.session(&config), host.fork_server);
    until("it runs", || (!system::sleeping(&seconds).is_empty()).then_some(()));
    host.kill();
    kill(fork_server);
    until("nothing is left", || (system::with_marker(&id).is_empty() && !system::is_alive(proxy)).then_some(()));
    let manager = next(&state).await;
    assert_eq!(manager.reattached(), []);
    let ours = Some(config.session_id.clone());
    let recovered: Vec<_> = manager.recovered().iter().filter(|one| one.session_id == ours).collect();
    assert!(recovered.len() == 1 && recovered[0].is_empty(), "{recovered:?}");
    let RecoveryOutcome::Ended(receipt) = &recovered[0].outcome else { panic!("{recovered:?}") };
    assert!(receipt.processes.len() >= 2, "{receipt:?}");
    manager.shutdown().await;
    state.nothing_left(&id, &[proxy, fork_server]);
}

/// The same under a living host, which tells it. (What has a conversation rests instead: tests/matrix.rs.)
#[tokio::test]
async fn without_its_fork_server_it_ends_with_a_host_too() {
    let state = State::new();
    let manager = next(&state).await;
    let fork_server = manager.fork_server().pid;
    let config = detached(sessions::shell("setsid sleep 1000 & echo there; cat"));
    let session = manager.start_session(config).await.expect("started");
    let (id, proxy) = (session.id().to_string(), session.info().processes.proxy.expect("it runs").pid);
    let mut events = session.subscribe();
    said(&mut events, "there").await;
    kill(fork_server);
    let events = sessions::all(&mut events).await;
    match &events.last().expect("a last event").event {
        Event::SessionEnded { reason: EndReason::ForkServerDied, receipt: Some(receipt) } => {
            assert!(receipt.is_empty() && receipt.processes.len() >= 2, "{receipt:?}");
        }
        other => panic!("{other:?}"),
    }
    assert!(system::with_marker(&id).is_empty());
    manager.shutdown().await;
    let manager = next(&state).await;
    assert_eq!(manager.reattached(), []);
    // Groups of hosts that other tests have killed may be swept, too.
    let told: Vec<_> = manager.recovered().iter().filter(|one| one.session_id.as_ref() == Some(session.id())).collect();
    assert!(told.is_empty(), "{told:?}");
    manager.shutdown().await;
    state.nothing_left(&id, &[proxy, fork_server]);
}

#[tokio::test]
async fn what_nobody_fetches_ends_itself() {
    let state = State::new();
    let (mut host, seconds) = (host(&state), system::unique_seconds());
    let on_host_death = HostDeath::Detach { fetch_within_ms: 300, spool_bytes: 1 << 20 };
    let config = AgentSessionConfig { on_host_death, ..sessions::shell(&format!("setsid sleep {seconds} & cat")) };
    let id = config.session_id.to_string();
    let (proxy, fork_server) = (host.session(&config), host.fork_server);
    until("it runs", || (!system::sleeping(&seconds).is_empty()).then_some(()));
    host.kill();
    until("nothing is left", || {
        let alive = [proxy, fork_server].into_iter().any(system::is_alive);
        (!alive && system::with_marker(&id).is_empty()).then_some(())
    });
    let manager = next(&state).await;
    assert_eq!(manager.reattached(), []);
    let ours = Some(config.session_id.clone());
    let recovered: Vec<_> = manager.recovered().iter().filter(|one| one.session_id == ours).collect();
    assert!(recovered.len() == 1 && recovered[0].is_empty(), "{recovered:?}");
    let RecoveryOutcome::Ended(receipt) = &recovered[0].outcome else { panic!("{recovered:?}") };
    assert!(receipt.processes.len() >= 2, "{receipt:?}");
    manager.shutdown().await;
    state.nothing_left(&id, &[]);
}

#[tokio::test]
async fn what_finds_no_room_is_counted_in_its_place() {
    const COUNT: u64 = 100_000;
    let state = State::new();
    let mut host = host(&state);
    let config = AgentSessionConfig {
        on_host_death: HostDeath::Detach { fetch_within_ms: 60_000, spool_bytes: 64 * 1024 },
        ..detached(sessions::fake())
    };
    let id = config.session_id.to_string();
    let (proxy, fork_server) = (host.session(&config), host.fork_server);
    let go = state.path().join("go");
    host.prompt(&id, &format!("run while ! test -e {}; do :; done\nflood {COUNT} 16", go.display()));
    host.kill();
    std::fs::write(&go, "").expect("written");
    // The last word of a turn is kept whatever else is lost.
    let manager = next_when_idle(&state, &id).await;
    let session = only(&manager);
    let mut events = session.subscribe();
    let (mut counts, mut lost) = (0, 0);
    soon("the turn's end", async {
        while let Some(envelope) = events.next().await {
            match &envelope.event {
                Event::SessionLossy { reason } => {
                    lost += reason.split_once("no room for ").map_or(0, |(_, rest)| {
                        rest.split(' ').next().expect("a word").parse::<u64>().expect("a number")
                    });
                }
                Event::Text { .. } if counted(&envelope).is_some() => counts += 1,
                Event::SessionIdle {} if envelope.turn == Some(1) => break,
                _ => {}
            }
        }
    })
    .await;
    assert!(lost > 0 && counts > 0);
    // What ends the turn is an event too.
    assert!((COUNT..COUNT + 3).contains(&(counts + lost)), "{counts} told, {lost} lost");
    manager.shutdown().await;
    state.nothing_left(&id, &[proxy, fork_server]);
}

/// The next host, when the flood is over: its agent does nothing any more.
async fn next_when_idle(state: &State, id: &str) -> ProxyManager {
    let spool = state.detached().join(format!("{id}.spool"));
    let mut last = (0, Instant::now());
    until("the spool is full", || {
        let len = std::fs::metadata(&spool).map_or(0, |found| found.len());
        if len != last.0 {
            last = (len, Instant::now());
        }
        (len > 60_000 && last.1.elapsed().as_millis() > 500).then_some(())
    });
    next(state).await
}

#[tokio::test]
async fn of_eight_hosts_one_is_the_owner_and_seven_are_told_so() {
    let state = State::new();
    let mut host = host(&state);
    let config = detached(sessions::fake());
    let id = config.session_id.to_string();
    let (proxy, fork_server) = (host.session(&config), host.fork_server);
    let early = claim_all(&state.detached(), VERSION);
    assert!(
        early.iter().all(|(verdict, _)| matches!(verdict, AdoptResponse::Busy { .. })) && early.len() == 1,
        "{early:?}"
    );
    host.kill();
    let directory = state.detached();
    let race = (0..8).map(|_| {
        let directory = directory.clone();
        std::thread::spawn(move || claim_all(&directory, VERSION).remove(0))
    });
    let race: Vec<_> = race.collect::<Vec<_>>().into_iter().map(|racer| racer.join().expect("an answer")).collect();
    let owners =
        race.iter().filter(|(verdict, _)| matches!(verdict, AdoptResponse::Owner { described: false, .. })).count();
    let busy = race.iter().filter(|(verdict, _)| matches!(verdict, AdoptResponse::Busy { .. })).count();
    assert_eq!((owners, busy), (1, 7), "{race:?}");
    // The owner goes without having taken anything over.
    drop(race);
    let manager = next(&state).await;
    only(&manager).ping().await.expect("it lives");
    manager.shutdown().await;
    state.nothing_left(&id, &[proxy, fork_server]);
}

#[tokio::test]
async fn a_session_cannot_be_its_own_host() {
    let state = State::new();
    let mut host = host(&state);
    let go = state.path().join("go");
    let script = format!(
        "while ! test -e {}; do :; done; exec {} {}",
        go.display(),
        env!("CARGO_BIN_EXE_claimer"),
        state.detached().display()
    );
    let config = detached(sessions::shell(&script));
    let id = config.session_id.to_string();
    let (proxy, fork_server) = (host.session(&config), host.fork_server);
    host.kill();
    std::fs::write(&go, "").expect("written");
    let spool = state.detached().join(format!("{id}.spool"));
    until("its answer is kept", || std::fs::read(&spool).is_ok_and(|text| !text.is_empty()).then_some(()));
    let manager = next(&state).await;
    let session = only(&manager);
    let mut events = session.subscribe();
    let answer = said(&mut events, "{\"refused\"").await;
    assert!(answer.contains("belongs to one of these sessions"), "{answer}");
    manager.shutdown().await;
    state.nothing_left(&id, &[proxy, fork_server]);
}

/// Nobody.
const ORDINARY: u32 = 65534;

/// The way to a session is its user's only; and who comes to its end all the same is refused.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "the registry starts no program as another user")]
async fn no_other_user_becomes_its_host() {
    let state = State::new();
    let mut host = host(&state);
    let config = detached(sessions::fake());
    let (id, proxy) = (config.session_id.to_string(), host.session(&config));
    let fork_server = host.fork_server;
    host.kill();
    let only_ours = |path: &Path, mode: u32| {
        let metadata = std::fs::metadata(path).expect("it is there");
        let us = nix::unistd::geteuid().as_raw();
        assert_eq!((metadata.uid(), metadata.mode() & 0o7777), (us, mode), "{}", path.display());
    };
    only_ours(&state.detached(), 0o700);
    let sockets: Vec<_> =
        std::fs::read_dir(state.detached()).expect("readable").flatten().map(|at| at.path()).collect();
    let sockets: Vec<_> = sockets.iter().filter(|path| path.extension().is_some_and(|end| end == "sock")).collect();
    let [socket] = sockets[..] else { panic!("{sockets:?}") };
    only_ours(socket, 0o600);
    if nix::unistd::geteuid().is_root() {
        // Where others can run it. It is given up with the test's directory.
        let claimer = state.path().join("claimer");
        std::fs::copy(env!("CARGO_BIN_EXE_claimer"), &claimer).expect("copied");
        let ways =
            [(claimer.clone(), 0o755), (state.path(), 0o755), (state.detached(), 0o755), (socket.clone(), 0o666)];
        let before: Vec<_> =
            ways.iter().map(|(path, _)| std::fs::metadata(path).expect("there").permissions()).collect();
        for (path, mode) in &ways {
            std::fs::set_permissions(path, Permissions::from_mode(*mode)).expect("opened");
        }
        let mut command = std::process::Command::new(&claimer);
        let command = command.arg(state.detached()).uid(ORDINARY).gid(ORDINARY).current_dir("/").output();
        let claimed = command.expect("it runs");
        let said = String::from_utf8_lossy(&claimed.stdout);
        let verdicts: Vec<AdoptResponse> =
            said.lines().map(|line| serde_json::from_str(line).expect("a verdict")).collect();
        let [AdoptResponse::Refused { reason }] = &verdicts[..] else { panic!("{verdicts:?}: {claimed:?}") };
        assert!(reason.contains(&format!("you are user {ORDINARY}")), "{reason}");
        for ((path, _), before) in ways.iter().zip(before) {
            std::fs::set_permissions(path, before).expect("closed");
        }
    } else {
        system::not_run("another user at the socket of a detached session: takes root to be one");
    }
    // It is there still, for its own user.
    let manager = next(&state).await;
    only(&manager).ping().await.expect("it lives");
    manager.shutdown().await;
    state.nothing_left(&id, &[proxy, fork_server]);
}

#[tokio::test]
async fn a_dropped_manager_lets_go_of_what_outlives_it() {
    let state = State::new();
    let manager = next(&state).await;
    let fork_server = manager.fork_server().pid;
    let session = manager.start_session(detached(sessions::fake())).await.expect("started");
    let stays = session.info();
    let (id, proxy) = (stays.metadata.session_id.to_string(), stays.processes.proxy.expect("it runs").pid);
    let goes = manager.start_session(sessions::fake()).await.expect("started").info();
    drop((session, manager));
    let manager = next(&state).await;
    assert_eq!(only(&manager).info().processes.proxy.map(|proxy| proxy.pid), Some(proxy));
    until("the other has ended", || system::with_marker(goes.metadata.session_id.as_str()).is_empty().then_some(()));
    manager.shutdown().await;
    state.nothing_left(&id, &[proxy, fork_server]);
}

#[tokio::test]
async fn without_a_state_directory_it_is_refused() {
    let builder = sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent"));
    let manager = builder.build().await.expect("built");
    let error = manager.start_session(detached(sessions::fake())).await.expect_err("refused");
    assert!(error.to_string().contains("state directory"), "{error}");
    manager.shutdown().await;
}
