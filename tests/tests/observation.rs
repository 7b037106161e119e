//! Every process of a session is told of, once, with how it ended: by the kernel's proc connector where there is one, by
//! polling else.

use std::{
    collections::BTreeMap,
    io::Read,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use agent_proxy_tests::{
    sessions::{self, all, event, shell, soon},
    system::{DEADLINE, is_alive, not_run, sleeping, unique_seconds, until},
};
use proxy_manager::{
    AgentSessionConfig, Containment, Envelope, Event, ExitStatus, KillOptions, ObserverKind, ProcessId, ProcessInfo,
    ProcessStatus, PromptMode, ProxyManager, SessionHandle, Signal, Subscription,
};
use registry::{PidFd, ProcConnector, SpawnInput, SpawnOutput, SpawnRequest, UnavailableFeature};

const GAMES: &str = env!("CARGO_BIN_EXE_thread-games");

fn builder() -> proxy_manager::ManagerBuilder {
    sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent"))
}

/// A manager whose fork server observes; `None`, with the reason printed, where the machine has no connector.
async fn observing() -> Option<ProxyManager> {
    match tokio::task::spawn_blocking(ProcConnector::probe).await.expect("no panic") {
        Ok(()) => Some(builder().build().await.expect("built")),
        Err(error) => {
            not_run(error);
            None
        }
    }
}

fn id(info: &ProcessInfo) -> ProcessId {
    info.id
}

/// What a stream told of processes.
#[derive(Default)]
struct Told {
    spawned: Vec<ProcessInfo>,
    exited: Vec<(ProcessId, Option<ExitStatus>)>,
    lossy: Vec<String>,
    observer: Option<ObserverKind>,
}

impl Told {
    fn of(events: &[Arc<Envelope>]) -> Self {
        let mut told = Self::default();
        for envelope in events {
            match &envelope.event {
                Event::ProcessSpawned(info) => told.spawned.push((**info).clone()),
                Event::ProcessExited { process, exit, .. } => {
                    assert!(told.spawned.iter().any(|info| info.id == *process), "{process} ended before it started");
                    told.exited.push((*process, *exit));
                }
                Event::SessionLossy { reason } => told.lossy.push(reason.clone()),
                Event::SessionStarted { measures, .. } => told.observer = Some(measures.observer),
                Event::SessionGap(gap) => panic!("{gap:?}"),
                _ => {}
            }
        }
        told
    }

    /// Each process once, with its end, and nothing lost.
    fn assert_whole(&self) {
        assert!(!self.spawned.is_empty(), "nothing was told");
        assert_eq!(self.observer, Some(ObserverKind::Connector));
        assert_eq!(self.lossy, [""; 0]);
        let mut spawned: Vec<_> = self.spawned.iter().map(id).collect();
        let mut exited: Vec<_> = self.exited.iter().map(|(id, _)| *id).collect();
        spawned.sort_unstable();
        exited.sort_unstable();
        assert!(spawned.windows(2).all(|pair| pair[0] != pair[1]), "told of twice");
        assert_eq!(spawned, exited);
    }

    /// The ends of the children of `parent`, in order.
    fn ends_below(&self, parent: u32) -> Vec<ExitStatus> {
        let parents: BTreeMap<_, _> = self.spawned.iter().map(|info| (info.id, info.ppid)).collect();
        let below = self.exited.iter().filter(|(id, _)| parents[id] == parent);
        below.map(|(id, exit)| exit.unwrap_or_else(|| panic!("how {id} ended is not known"))).collect()
    }
}

/// Runs a script as a session to its end.
async fn run(manager: &ProxyManager, script: &str) -> (SessionHandle, Told) {
    let session = manager.start_session(shell(script)).await.expect("started");
    let events = all(&mut session.subscribe()).await;
    let told = Told::of(&events);
    (session, told)
}

fn agent(session: &SessionHandle) -> u32 {
    session.info().processes.agent_process.expect("it ran").pid
}

#[tokio::test]
async fn a_thousand_that_only_fork() {
    let Some(manager) = observing().await else { return };
    let (session, told) =
        run(&manager, "i=0; while [ $i -lt 1000 ]; do (exit $((i%100))); i=$((i+1)); done; exit 7").await;
    told.assert_whole();
    let expected: Vec<_> = (0..1000).map(|i| ExitStatus::Code(i % 100)).collect();
    assert_eq!(told.ends_below(agent(&session)), expected);
    assert_eq!((told.spawned.len(), told.exited.last().expect("the agent").1), (1001, Some(ExitStatus::Code(7))));
    assert!(told.spawned[0].tracked && told.spawned[0].id.pid == agent(&session), "{:?}", told.spawned[0]);
    manager.shutdown().await;
}

#[tokio::test]
async fn a_thousand_that_execute() {
    let Some(manager) = observing().await else { return };
    let script = "i=0; while [ $i -lt 1000 ]; do sh -c \"exit $((i%100))\"; i=$((i+1)); done";
    let (session, told) = run(&manager, script).await;
    told.assert_whole();
    let expected: Vec<_> = (0..1000).map(|i| ExitStatus::Code(i % 100)).collect();
    assert_eq!(told.ends_below(agent(&session)), expected);
    // What was read of a command line is that of the exec, not of the fork.
    let read: Vec<_> = told.spawned[1..].iter().filter(|info| info.command.is_some()).collect();
    for info in &read {
        assert!(info.command.as_deref() == Some("sh") && info.args[1].starts_with("exit "), "{info:?}");
    }
    println!("{} of 1000 command lines were read in time", read.len());
    assert!(!read.is_empty(), "no command line was read");
    manager.shutdown().await;
}

#[tokio::test]
async fn deaths_by_signal() {
    let Some(manager) = observing().await else { return };
    let (session, told) = run(&manager, "for s in KILL TERM INT HUP; do sh -c \"kill -$s \\$\\$\"; done").await;
    told.assert_whole();
    assert_eq!(told.ends_below(agent(&session)), [9, 15, 2, 1].map(ExitStatus::Signal));
    manager.shutdown().await;
}

#[tokio::test]
async fn a_daemon_stays_with_its_session_and_sessions_do_not_mix() {
    let Some(manager) = observing().await else { return };
    let mut running = Vec::new();
    for _ in 0..2 {
        let seconds = unique_seconds();
        let script = format!("cd /; (setsid sh -c 'sleep {seconds} & exit 3' &); exec cat");
        running.push((manager.start_session(shell(&script)).await.expect("started"), seconds));
    }
    for (session, seconds) in &running {
        let info = event(&mut session.subscribe(), "the daemon is told of", |envelope| match &envelope.event {
            Event::ProcessSpawned(info) if info.args == [seconds.clone()] => Some(info.clone()),
            _ => None,
        })
        .await;
        assert_eq!((info.command.as_deref(), info.cwd.as_deref()), (Some("sleep"), Some("/")), "{info:?}");
        assert_eq!((info.session_id.as_str(), info.status), (session.id().as_str(), ProcessStatus::Running));
        assert_ne!(info.sid, agent(session), "it has left the agent's session: {info:?}");
        until("it sleeps", || (sleeping(seconds) == [info.id.pid]).then_some(()));
    }
    let mut pids = Vec::new();
    for (session, seconds) in &running {
        let mut events = session.subscribe();
        let receipt = session.kill(KillOptions::NOW).await.expect("killed");
        assert!(receipt.is_empty(), "{receipt:?}");
        let told = Told::of(&all(&mut events).await);
        told.assert_whole();
        // Agent, subshell, setsid's shell, daemon; and nobody of the other session.
        assert_eq!(told.spawned.len(), 4, "{:#?}", told.spawned);
        assert!(told.spawned.iter().all(|info| info.session_id == *session.id()));
        let daemon = told.spawned.iter().find(|info| info.args == [seconds.clone()]).expect("the daemon").id;
        assert!(told.exited.contains(&(daemon, Some(ExitStatus::Signal(9)))), "{:?}", told.exited);
        pids.push(told.spawned.iter().map(id).collect::<Vec<_>>());
    }
    assert!(pids[0].iter().all(|id| !pids[1].contains(id)));
    manager.shutdown().await;
}

#[tokio::test]
async fn an_exec_by_a_thread_is_one_process() {
    let Some(manager) = observing().await else { return };
    let (session, told) = run(&manager, &format!("{GAMES} exec 42; {GAMES} exec 43; {GAMES} storm 50; true")).await;
    told.assert_whole();
    assert_eq!(told.ends_below(agent(&session)), [42, 43, 0].map(ExitStatus::Code));
    assert_eq!(told.spawned.len(), 4);
    manager.shutdown().await;
}

#[tokio::test]
async fn a_process_that_stays_without_an_exec_is_told_of_while_it_lives() {
    let Some(manager) = observing().await else { return };
    let session = manager.start_session(shell("(read line; exit 5); echo $?; exec cat")).await.expect("started");
    let mut events = session.subscribe();
    let forked = event(&mut events, "the subshell is told of", |envelope| match &envelope.event {
        Event::ProcessSpawned(info) if info.ppid == agent(&session) => Some(info.clone()),
        _ => None,
    })
    .await;
    assert!(is_alive(forked.id.pid) && forked.command.as_deref() == Some("/bin/sh"), "{forked:?}");
    session.prompt("go on", PromptMode::Refuse).await.expect("said");
    event(&mut events, "its end", |envelope| {
        matches!(&envelope.event, Event::ProcessExited { process, exit: Some(ExitStatus::Code(5)), .. } if *process == forked.id)
            .then_some(())
    })
    .await;
    manager.shutdown().await;
}

/// In namespaces of its own a session is told of as anywhere: host pids, and nothing of what the proxy makes for itself.
#[tokio::test]
async fn a_strict_session_is_told_of_in_host_pids_and_without_its_init() {
    let Some(manager) = observing().await else { return };
    if let Err(missing) = registry::strict_is_available() {
        not_run(missing);
        return;
    }
    let seconds = unique_seconds();
    let script = format!("(exit 3); setsid sh -c 'exec sleep {seconds}' & exec cat");
    let config = AgentSessionConfig { containment: Some(Containment::Strict), ..shell(&script) };
    let session = manager.start_session(config).await.expect("started");
    let sleeper = event(&mut session.subscribe(), "the sleeper is told of", |envelope| match &envelope.event {
        Event::ProcessSpawned(info)
            if info.args.iter().any(|arg| arg.contains(&seconds)) && info.ppid == agent(&session) =>
        {
            Some(info.id.pid)
        }
        _ => None,
    })
    .await;
    until("it sleeps", || (sleeping(&seconds) == [sleeper]).then_some(()));
    assert!(session.kill(KillOptions::NOW).await.expect("killed").is_empty());
    let told = Told::of(&all(&mut session.subscribe()).await);
    told.assert_whole();
    // Agent, subshell, sleeper.
    assert_eq!(told.spawned.len(), 3, "{:#?}", told.spawned);
    assert_eq!(told.spawned[0].id.pid, agent(&session));
    assert_eq!(told.ends_below(agent(&session)), [ExitStatus::Code(3), ExitStatus::Signal(9)]);
    manager.shutdown().await;
}

/// Events of a turn say so.
#[tokio::test]
async fn what_a_turn_starts_carries_its_number() {
    let Some(manager) = observing().await else { return };
    let session = manager.start_session(sessions::fake()).await.expect("started");
    let mut events = session.subscribe();
    let seconds = unique_seconds();
    let turn = session.prompt(format!("run sleep 0.{seconds}"), PromptMode::Refuse).await.expect("prompted");
    let (number, seen) = (turn.number(), format!("0.{seconds}"));
    let of = event(&mut events, "the turn's process", |envelope| match &envelope.event {
        Event::ProcessSpawned(info) if info.args.iter().any(|arg| arg.contains(&seen)) => Some(envelope.turn),
        _ => None,
    })
    .await;
    assert_eq!(of, number);
    soon("the turn's end", turn.wait()).await.expect("ended");
    manager.shutdown().await;
}

/// Continues a stopped process, whatever becomes of the test.
struct Stopped(PidFd);

impl Stopped {
    fn new(process: ProcessId) -> Self {
        let process = PidFd::open(process).expect("alive");
        process.signal(Signal::Stop).expect("stopped");
        let stopped = Self(process);
        until("it has stopped", || (agent_proxy_tests::system::state(process_id(&stopped)) == Some('T')).then_some(()));
        stopped
    }
}

fn process_id(stopped: &Stopped) -> u32 {
    stopped.0.id().pid
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // Fails only if it is gone.
        let _ = self.0.signal(Signal::Cont);
    }
}

/// The kernel keeps only so much for a fork server that does not read.
#[tokio::test]
async fn after_an_overrun_the_session_says_so_and_the_table_is_right() {
    let Some(first) = observing().await else { return };
    first.shutdown().await;
    // Nobody continues its fork server.
    let deadlines = proxy_manager::Deadlines { fork_server: None, ..Default::default() };
    let manager = builder().deadlines(deadlines).build().await.expect("built");
    let (killed, stays, new) = (unique_seconds(), unique_seconds(), unique_seconds());
    let script = format!("sleep {killed} & first=$!; sleep {stays} & while read line; do eval \"$line\"; done");
    let session = manager.start_session(shell(&script)).await.expect("started");
    let mut events = session.subscribe();
    let sleeper = async |events: &mut Subscription, seconds: &String| {
        event(events, "a sleeper is told of", |envelope| match &envelope.event {
            Event::ProcessSpawned(info) if info.args == [seconds.clone()] => Some(info.id),
            _ => None,
        })
        .await
    };
    let killed = sleeper(&mut session.subscribe(), &killed).await;
    let stays = sleeper(&mut session.subscribe(), &stays).await;
    let stopped = Stopped::new(manager.fork_server());
    // Two events a thread; 16 MiB hold some 44,000.
    let orders = format!("{GAMES} storm 30000; kill -9 $first; wait $first; sleep {new} & echo done");
    session.prompt(orders, PromptMode::Refuse).await.expect("said");
    sessions::said(&mut events, "done").await;
    until("the new one sleeps", || (sleeping(&new).len() == 1).then_some(()));
    drop(stopped);

    let reason = event(&mut events, "the loss", |envelope| match &envelope.event {
        Event::SessionLossy { reason } => Some(reason.clone()),
        _ => None,
    })
    .await;
    println!("{reason}");
    sleeper(&mut session.subscribe(), &new).await;
    assert!(session.kill(KillOptions::NOW).await.expect("killed").is_empty());
    let told = Told::of(&all(&mut session.subscribe()).await);
    assert_eq!(told.lossy.len(), 1, "{:?}", told.lossy);
    let mut spawned: Vec<_> = told.spawned.iter().map(id).collect();
    let mut exited: Vec<_> = told.exited.iter().map(|(id, _)| *id).collect();
    spawned.sort_unstable();
    exited.sort_unstable();
    assert_eq!(spawned, exited, "each once");
    let exit = |wanted: ProcessId| told.exited.iter().find(|(id, _)| *id == wanted).expect("it ended").1;
    assert_eq!((exit(killed), exit(stays)), (None, Some(ExitStatus::Signal(9))));
    manager.shutdown().await;
}

/// While its proxy stands still a session can be listed.
#[tokio::test]
async fn a_session_with_a_stopped_proxy_is_listed() {
    let manager = builder().build().await.expect("built");
    let seconds = unique_seconds();
    let session = manager.start_session(shell(&format!("sleep {seconds} & exec cat"))).await.expect("started");
    until("it sleeps", || (sleeping(&seconds).len() == 1).then_some(()));
    let stopped = agent_proxy_tests::system::Stopper::new(session.info().processes.proxy.expect("it runs"));
    let list = soon("a list", session.processes()).await.expect("listed");
    let mut pids: Vec<_> = list.iter().map(|info| info.id.pid).collect();
    let mut expected = [agent(&session), sleeping(&seconds)[0]];
    pids.sort_unstable();
    expected.sort_unstable();
    assert_eq!(pids, expected, "{list:#?}");
    drop(stopped);
    soon("a ping", session.ping()).await.expect("it goes on");
    assert!(session.kill(KillOptions::NOW).await.expect("killed").is_empty());
    manager.shutdown().await;
}

/// What is in a pipe.
fn contents(fd: Option<OwnedFd>) -> String {
    let mut bytes = Vec::new();
    // It ends in "would block" where somebody else still has the other end.
    let _ = std::fs::File::from(fd.expect("a pipe")).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Runs `argv` to its end: whether it succeeded, and what it said.
fn outcome(argv: &[&str]) -> (bool, String) {
    let program = SpawnRequest {
        argv: argv.iter().map(Into::into).collect(),
        env: std::env::vars_os().collect(),
        stdin: SpawnInput::Null,
        stdout: SpawnOutput::Pipe,
        stderr: SpawnOutput::Pipe,
        ..SpawnRequest::new(argv[0])
    };
    let spawned = registry::spawn(program).expect("started");
    let exit = until("its status", || spawned.process.try_reap().expect("our child"));
    (exit.success(), contents(spawned.stdout) + &contents(spawned.stderr))
}

/// Runs the ignored test `name` of this program, started by `with`.
fn run_with(with: &[&str], name: &str) {
    let exe = std::env::current_exe().expect("its path");
    let inner = [exe.to_str().expect("text"), "--ignored", "--exact", name, "--nocapture"];
    let (passed, text) = outcome(&[with, &inner].concat());
    assert!(passed && text.contains("1 passed"), "{text}");
}

#[test]
fn without_the_connector_there_is_polling() {
    let user: &[&str] = if nix::unistd::geteuid().is_root() { &[] } else { &["--user", "--map-root-user"] };
    let unshare = [&["/usr/bin/unshare"], user, &["--pid", "--fork", "--mount-proc", "--kill-child"]].concat();
    let (possible, why) = outcome(&[&unshare[..], &["/bin/true"]].concat());
    if !possible {
        not_run(format_args!("no PID namespace to be had: {}", why.trim()));
        return;
    }
    run_with(&unshare, "inside_a_namespace");
}

#[tokio::test]
#[ignore = "runs in a PID namespace, started by without_the_connector_there_is_polling"]
async fn inside_a_namespace() {
    polls("namespace").await;
}

/// The self-test is all that can tell where the kernel takes the subscription and then says nothing.
#[test]
fn where_the_connector_says_nothing_there_is_polling() {
    let without = [zoo::PROGRAM, ":without", "connector"];
    let (possible, why) = outcome(&[&without[..], &["/bin/true"]].concat());
    if !possible {
        not_run(format_args!("no filter of system calls to be had: {}", why.trim()));
        return;
    }
    run_with(&without, "beside_a_silent_connector");
}

#[tokio::test]
#[ignore = "runs without the connector, started by where_the_connector_says_nothing_there_is_polling"]
async fn beside_a_silent_connector() {
    // The kernel's numbers of the first ones: in others the namespace is the reason.
    let is_first = [("pid", 4026531836_u64), ("user", 4026531837)].iter().all(|(name, number)| {
        let here = std::fs::read_link(format!("/proc/self/ns/{name}")).expect("readable");
        here.to_str() == Some(&format!("{name}:[{number}]"))
    });
    polls(if is_first { "were not told" } else { "namespace" }).await;
}

/// There is no connector here, for this reason, and a session's processes are told of all the same.
async fn polls(reason: &str) {
    let Err(UnavailableFeature { why, .. }) =
        tokio::task::spawn_blocking(ProcConnector::probe).await.expect("no panic")
    else {
        panic!("the connector works here")
    };
    assert!(why.contains(reason), "{why}");
    let manager = builder().build().await.expect("built");
    let seconds = unique_seconds();
    let session = manager.start_session(shell(&format!("sleep {seconds} & exec cat"))).await.expect("started");
    let mut events = session.subscribe();
    let sleeper = event(&mut events, "the sleeper is told of", |envelope| match &envelope.event {
        Event::ProcessSpawned(info) if info.args == [seconds.clone()] => Some(info.clone()),
        _ => None,
    })
    .await;
    says_when_it_started(&sleeper);
    assert!(session.kill(KillOptions::NOW).await.expect("killed").is_empty());
    let told = Told::of(&all(&mut session.subscribe()).await);
    assert_eq!((told.observer, told.lossy.len()), (Some(ObserverKind::Polling), 1), "{:?}", told.lossy);
    // What a poll sees of a process on the way to its exec is not its parent's command line.
    let names: Vec<_> = told.spawned.iter().filter_map(|info| info.command.as_deref()).collect();
    assert_eq!(names, ["/bin/sh", "sleep"]);
    assert_eq!(told.exited.len(), 2);
    manager.shutdown().await;
}

/// What was told of a living process has the start time that the kernel says it has: in ticks since the start of the
/// machine, and on the clock.
fn says_when_it_started(info: &ProcessInfo) {
    let read = |path: &str| std::fs::read_to_string(path).expect("readable");
    let stat = read(&format!("/proc/{}/stat", info.id.pid));
    // Field 22; the name before the last parenthesis may hold anything.
    let (_, rest) = stat.rsplit_once(") ").expect("a stat line");
    let ticks: u64 = rest.split(' ').nth(19).and_then(|word| word.parse().ok()).expect("a number");
    assert_eq!(info.id.start_time, ticks, "{info:?}");
    let boot = read("/proc/stat");
    let boot: u64 = boot.lines().find_map(|line| line.strip_prefix("btime ")?.parse().ok()).expect("a number");
    let started = Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second());
    let kernels = UNIX_EPOCH + Duration::from_secs(boot) + started;
    // The start of the machine is told in whole seconds.
    let (before, after) = (kernels - Duration::from_millis(500), kernels + Duration::from_millis(1500));
    assert!(before <= info.started_at && info.started_at <= after, "{info:?} started at {kernels:?}");
}

#[tokio::test]
async fn it_is_told_when_a_process_has_started() {
    let Some(manager) = observing().await else { return };
    let session = manager.start_session(shell("read line; sleep 1000 & exec cat")).await.expect("started");
    let mut events = session.subscribe();
    let mut started = Vec::new();
    while started.len() < 2 {
        let next = event(&mut events, "a process is told of", |envelope| match &envelope.event {
            Event::ProcessSpawned(info) => Some(info.clone()),
            _ => None,
        });
        let info = next.await;
        says_when_it_started(&info);
        if started.is_empty() {
            // So that the second one starts at another tick than the first.
            let tick = Duration::from_millis(20);
            until("time passes", || (SystemTime::now() > info.started_at + 2 * tick).then_some(()));
            session.prompt("go on", PromptMode::Refuse).await.expect("said");
        }
        started.push(info);
    }
    assert!(started[0].id.start_time < started[1].id.start_time, "{started:?}");
    assert!(started[0].started_at < started[1].started_at, "{started:?}");
    manager.shutdown().await;
}

fn cpu_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("alive");
    Duration::from_nanos(stat.split(' ').next().and_then(|word| word.parse().ok()).expect("a number"))
}

/// What observing costs the fork server: 600 processes by four at a time, alone and with 50 idle sessions.
#[tokio::test]
#[ignore = "a measurement: run it alone, with --profile dist"]
async fn the_cost_of_observing() {
    let Some(manager) = observing().await else { return };
    let work =
        "i=0; while [ $i -lt 150 ]; do sh -c 'n=0; while [ $n -lt 3000 ]; do n=$((n+1)); done'; i=$((i+1)); done";
    let script = format!("({work})& ({work})& ({work})& ({work})& wait");
    let config = || AgentSessionConfig { cwd: Some("/".into()), ..shell(&script) };
    let mut idle = Vec::new();
    let mut shares = Vec::new();
    for sessions in [0, 50] {
        while idle.len() < sessions {
            idle.push(manager.start_session(shell("cat")).await.expect("started"));
        }
        let mut of_these = Vec::new();
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let (cpu, began) = (cpu_time(manager.fork_server().pid), Instant::now());
            let session = manager.start_session(config()).await.expect("started");
            let told = Told::of(&all(&mut session.subscribe()).await);
            let (cpu, took) = (cpu_time(manager.fork_server().pid) - cpu, began.elapsed());
            told.assert_whole();
            let with_command = told.spawned.iter().filter(|info| info.command.is_some()).count();
            of_these.push(100.0 * cpu.as_secs_f64() / took.as_secs_f64());
            println!(
                "{sessions} idle sessions: {} processes in {took:?}, fork server {cpu:?}: {:.1} % of a core, \
                 {with_command} command lines",
                told.spawned.len(),
                of_these[of_these.len() - 1]
            );
        }
        of_these.sort_by(f64::total_cmp);
        shares.push(of_these[1]);
    }
    manager.shutdown().await;
    // The medians.
    assert!(shares[0] <= 5.0 && shares[1] <= 1.5 * shares[0], "percent of a core, alone and with 50 idle: {shares:?}");
}

/// What 200 idle sessions cost where their proxies have to look for themselves.
#[tokio::test]
#[ignore = "a measurement: run it alone, with --profile dist, in a PID namespace"]
async fn the_cost_of_polling() {
    let manager = builder().build().await.expect("built");
    let mut sessions = Vec::new();
    for _ in 0..200 {
        sessions.push(manager.start_session(shell("sleep 1000 & exec cat")).await.expect("started"));
    }
    let proxies: Vec<_> = sessions.iter().map(|session| session.info().processes.proxy.expect("it runs").pid).collect();
    let fork_server = manager.fork_server().pid;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let cpu = || {
        let proxies = proxies.iter().map(|pid| cpu_time(*pid)).sum::<Duration>();
        [proxies, cpu_time(fork_server)].map(|time| time.as_secs_f64())
    };
    let before = cpu();
    tokio::time::sleep(DEADLINE / 2).await;
    let after = cpu();
    let percent = |at: usize| 100.0 * (after[at] - before[at]) / (DEADLINE / 2).as_secs_f64();
    println!("200 idle sessions: proxies {:.2} %, fork server {:.2} % of a core", percent(0), percent(1));
    manager.shutdown().await;
    assert!(percent(0) + percent(1) < 1.0, "percent of a core: {:.2} and {:.2}", percent(0), percent(1));
}
