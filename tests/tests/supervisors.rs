//! Each supervisor is killed with SIGKILL, and nothing of the session outlives it.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    time::{Duration, Instant},
};

use agent_proxy_tests::{
    sessions::{self, all, family, shell, soon},
    system::{self, until},
};
use proxy_manager::{
    EndReason, Error, Event, ExitStatus, KillOptions, ProcessId, PromptMode, Receipt, SessionHandle, SessionState,
    Signal, Subscription,
};
use registry::{PidFd, SpawnInput, SpawnOutput, SpawnRequest};

/// What each supervisor's death may take, from the signal to the last process's end.
const BOUND: Duration = Duration::from_secs(2);

fn builder() -> proxy_manager::ManagerBuilder {
    sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent"))
}

fn sigkill(process: ProcessId) -> Instant {
    let process = PidFd::open(process).expect("alive");
    let now = Instant::now();
    process.signal(Signal::Kill).expect("signalled");
    now
}

/// Waits until nothing sleeps for `seconds` and nothing carries the session's marker.
fn gone(killed: Instant, seconds: &str, sessions: &[&SessionHandle]) {
    until("nothing is left", || {
        let marked = sessions.iter().any(|session| !system::with_marker(session.id().as_str()).is_empty());
        (system::sleeping(seconds).is_empty() && !marked).then_some(())
    });
    let took = killed.elapsed();
    assert!(took < BOUND, "it took {took:?}");
}

async fn end(events: &mut Subscription) -> (EndReason, Option<Box<Receipt>>) {
    let events = all(events).await;
    match &events.last().expect("a last event").event {
        Event::SessionEnded { reason, receipt } => (reason.clone(), receipt.clone()),
        other => panic!("{other:?}"),
    }
}

fn names(receipt: &Receipt, seconds: &str) -> usize {
    let line = format!("sleep {seconds}");
    receipt.processes.iter().filter(|entry| entry.command.as_deref() == Some(&line)).count()
}

#[tokio::test]
async fn of_an_agent() {
    let manager = builder().build().await.expect("built");
    let session = manager.start_session(sessions::fake()).await.expect("started");
    let mut events = session.subscribe();
    let family = family(&session).await;
    let turn = session.prompt("hang", PromptMode::Refuse).await.expect("prompted");
    let killed = sigkill(session.info().processes.agent_process.expect("it runs"));
    let error = soon("the pending turn fails", turn.wait()).await.expect_err("its agent died");
    assert!(matches!(error, Error::AgentDied { .. }), "{error}");
    let (reason, receipt) = end(&mut events).await;
    assert_eq!(reason, EndReason::AgentExited(Some(ExitStatus::Signal(9))));
    let receipt = receipt.expect("a receipt");
    assert!(receipt.is_empty(), "{receipt:?}");
    assert_eq!(names(&receipt, &family.seconds), 4, "{receipt:?}");
    gone(killed, &family.seconds, &[&session]);
    manager.shutdown().await;
}

#[tokio::test]
async fn of_a_proxy() {
    let manager = builder().build().await.expect("built");
    let session = manager.start_session(sessions::fake()).await.expect("started");
    let other = manager.start_session(shell("cat")).await.expect("started");
    let mut events = session.subscribe();
    let family = family(&session).await;
    let turn = session.prompt("hang", PromptMode::Refuse).await.expect("prompted");
    let killed = sigkill(session.info().processes.proxy.expect("it runs"));
    let error = soon("the pending turn fails", turn.wait()).await.expect_err("its proxy died");
    assert!(matches!(error, Error::ProxyDied { .. }), "{error}");
    let (reason, receipt) = end(&mut events).await;
    assert_eq!(reason, EndReason::ProxyDied(Some(ExitStatus::Signal(9))));
    let receipt = receipt.expect("a receipt");
    assert!(receipt.is_empty(), "{receipt:?}");
    assert_eq!(names(&receipt, &family.seconds), 4, "{receipt:?}");
    gone(killed, &family.seconds, &[&session]);
    // An ended session still shows its receipt, and no process.
    assert_eq!(session.kill(KillOptions::NOW).await.expect("the stored receipt"), *receipt);
    assert!(session.processes().await.expect("a list").is_empty());
    other.ping().await.expect("the other session works on");
    manager.shutdown().await;
}

#[tokio::test]
async fn of_the_fork_server() {
    let manager = builder().build().await.expect("built");
    let session = manager.start_session(sessions::fake()).await.expect("started");
    let mut events = session.subscribe();
    let family = family(&session).await;
    let turn = session.prompt("hang", PromptMode::Refuse).await.expect("prompted");
    let killed = sigkill(manager.fork_server());
    let error = soon("the pending turn fails", turn.wait()).await.expect_err("the fork server died");
    assert!(matches!(error, Error::ForkServerDied), "{error}");
    let (reason, receipt) = end(&mut events).await;
    assert_eq!(reason, EndReason::ForkServerDied);
    let receipt = receipt.expect("a receipt");
    assert!(receipt.is_empty(), "{receipt:?}");
    assert_eq!(names(&receipt, &family.seconds), 4, "{receipt:?}");
    gone(killed, &family.seconds, &[&session]);
    assert!(matches!(session.info().state, SessionState::Ended { .. }));
    // Another fork server takes its place: see `takeover`.
    let next = soon("a start", manager.start_session(sessions::fake())).await.expect("started");
    assert!(next.kill(KillOptions::NOW).await.expect("killed").is_empty());
    manager.shutdown().await;
}

/// The fork server itself stops a proxy whose session it ends.
#[tokio::test]
async fn of_the_fork_server_while_a_proxy_is_stopped() {
    let manager = builder().build().await.expect("built");
    let session = manager.start_session(sessions::fake()).await.expect("started");
    let mut events = session.subscribe();
    let family = family(&session).await;
    let proxy = session.info().processes.proxy.expect("it runs");
    // It would continue the proxy.
    let fork_server = PidFd::open(manager.fork_server()).expect("alive");
    fork_server.signal(Signal::Stop).expect("signalled");
    until("it is stopped", || (system::state(manager.fork_server().pid) == Some('T')).then_some(()));
    PidFd::open(proxy).expect("alive").signal(Signal::Stop).expect("signalled");
    until("it is stopped", || (system::state(proxy.pid) == Some('T')).then_some(()));
    let killed = sigkill(manager.fork_server());
    let (reason, receipt) = end(&mut events).await;
    assert_eq!(reason, EndReason::ForkServerDied);
    let receipt = receipt.expect("a receipt");
    assert!(receipt.is_empty(), "{receipt:?}");
    gone(killed, &family.seconds, &[&session]);
    manager.shutdown().await;
}

/// Starts a host of two sessions in a process of its own; what its sessions sleep for, and its descendants' pids.
fn host() -> (registry::SpawnedProcess, String, Vec<u32>) {
    let seconds = system::unique_seconds();
    let script = format!(
        "sleep {seconds} & setsid sleep {seconds} & (setsid sleep {seconds} &) ; trap '' TERM; while :; do sleep {seconds}; done"
    );
    let program = env!("CARGO_BIN_EXE_test-host");
    let mut host = registry::spawn(SpawnRequest {
        argv: [program, env!("CARGO_BIN_EXE_proxy-child"), "2", &script].map(Into::into).to_vec(),
        stdin: SpawnInput::Pipe,
        stdout: SpawnOutput::Pipe,
        stderr: SpawnOutput::Inherit,
        ..SpawnRequest::new(program)
    })
    .expect("started");
    let stdout = host.stdout.take().expect("a pipe");
    rustix::io::ioctl_fionbio(&stdout, false).expect("blocking");
    let mut line = String::new();
    BufReader::new(File::from(stdout)).read_line(&mut line).expect("the host's line");
    let pids = line.split_whitespace().map(|pid| pid.parse().expect("a pid")).collect();
    until("both families sleep", || (system::sleeping(&seconds).len() == 8).then_some(()));
    (host, seconds, pids)
}

fn nothing_left(killed: Instant, seconds: &str, pids: &[u32]) {
    gone(killed, seconds, &[]);
    until("the supervisors are gone", || (!pids.iter().any(|pid| system::is_alive(*pid))).then_some(()));
    let took = killed.elapsed();
    assert!(took < BOUND, "it took {took:?}");
}

#[test]
fn of_the_host() {
    let (host, seconds, pids) = host();
    assert_eq!(pids.len(), 3);
    let killed = sigkill(host.process.id());
    nothing_left(killed, &seconds, &pids);
    until("its status is there", || host.process.try_reap().expect("our child"));
}

#[test]
fn of_the_host_and_a_proxy_at_once() {
    let (host, seconds, pids) = host();
    let killed = sigkill(registry::identify(pids[1]).expect("alive"));
    sigkill(host.process.id());
    nothing_left(killed, &seconds, &pids);
    until("its status is there", || host.process.try_reap().expect("our child"));
}

#[test]
fn of_the_host_with_a_stopped_proxy() {
    let (host, seconds, pids) = host();
    let _stopped = system::Stopper::new(registry::identify(pids[1]).expect("alive"));
    let killed = sigkill(host.process.id());
    nothing_left(killed, &seconds, &pids);
    until("its status is there", || host.process.try_reap().expect("our child"));
}

#[tokio::test]
async fn a_dropped_manager_leaves_nothing() {
    let manager = builder().build().await.expect("built");
    let session = manager.start_session(sessions::fake()).await.expect("started");
    let family = family(&session).await;
    let fork_server = manager.fork_server();
    let second = manager.clone();
    drop(manager);
    session.ping().await.expect("one clone is enough");
    let dropped = Instant::now();
    drop(second);
    gone(dropped, &family.seconds, &[&session]);
    until("the fork server is gone", || (!system::is_alive(fork_server.pid)).then_some(()));
    let error = soon("a refusal", session.ping()).await.expect_err("there is no manager");
    assert!(matches!(error, Error::ShutDown | Error::Ended { .. }), "{error}");
}

#[tokio::test]
async fn a_fork_server_that_cannot_look_does_not_die_and_raises_its_limit_again() {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

    let manager = builder().build().await.expect("built");
    let session = manager.start_session(sessions::fake()).await.expect("started");
    let other = manager.start_session(shell("cat")).await.expect("started");
    let mut events = session.subscribe();
    let family = family(&session).await;
    // No descriptor is left to it, so that it could read nothing of /proc.
    let fork_server = manager.fork_server().pid;
    let pid = Pid::from_raw(fork_server.cast_signed());
    let limit = getrlimit(Resource::Nofile);
    prlimit(pid, Resource::Nofile, Rlimit { current: Some(3), ..limit }).expect("lowered");
    sigkill(session.info().processes.proxy.expect("it runs"));
    let error = soon("the proxy's death is seen", session.ping()).await.expect_err("its proxy died");
    assert!(matches!(error, Error::ProxyDied { .. } | Error::Ended { .. }), "{error}");
    other.ping().await.expect("the other session works on");
    let (reason, receipt) = end(&mut events).await;
    assert_eq!(reason, EndReason::ProxyDied(Some(ExitStatus::Signal(9))));
    assert!(receipt.expect("a receipt").is_empty());
    assert!(system::sleeping(&family.seconds).is_empty());
    assert_eq!(manager.fork_server().pid, fork_server);
    other.ping().await.expect("the other session works on");
    manager.shutdown().await;
}
