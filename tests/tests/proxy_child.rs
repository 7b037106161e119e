//! Fork server and proxy, message by message, without a manager.

use std::{fs, path::Path};

use agent_proxy_tests::{
    raw::{RawForkServer, RawProxy, enclosure, sigkill},
    system::{self, until},
};
use ipc_protocol::{
    EndReason, Event, ExitStatus, Json, KillOptions, KillScope, LimitAction, LimitForm, LimitKind, Limits,
    ProcessOutcome, Proof, ReapedBy, Receipt, SessionId, Signal, WireError,
    message::{FromForkServer, FromProxy, Hello, ProxyCommand, ToForkServer, ToProxy, VERSION},
};

fn child() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_proxy-child"))
}

fn fresh() -> SessionId {
    SessionId::mint()
}

fn ended(proxy: &mut RawProxy) -> (EndReason, Receipt) {
    proxy.receive("the end", |message| match message {
        FromProxy::Ended { reason, receipt } => Some((reason, *receipt)),
        _ => None,
    })
}

fn proxy_gone(server: &mut RawForkServer) -> (SessionId, Option<ExitStatus>, Receipt) {
    match server.receive() {
        FromForkServer::ProxyGone { session, exit, receipt, .. } => (session, exit, *receipt),
        other => panic!("{other:?}"),
    }
}

fn fds_of(pid: u32, numbers: std::ops::Range<u32>) -> Vec<String> {
    let target = |number| fs::read_link(format!("/proc/{pid}/fd/{number}")).ok();
    numbers.filter_map(target).map(|to| to.to_string_lossy().into_owned()).collect()
}

/// A list of so many files takes more than the proxy's turn for it, and the next one begins at once: whatever waited for the end of
/// the lists would wait for ever.
#[test]
fn a_kill_does_not_wait_for_a_list_of_very_many_files() {
    let directory = tempfile::tempdir().expect("a directory");
    for number in 0..20_000 {
        fs::write(directory.path().join(format!("{number}.jsonl")), "head").expect("written");
    }
    let mut server = RawForkServer::start(child());
    let session = fresh();
    let (mut proxy, _) = server.fork(&session);
    proxy.greet();
    let cwd = directory.path().to_str().expect("text");
    let agent = proxy.start_shell_of(&session, "lister", cwd, "read line");
    proxy.receive("a list", |message| {
        matches!(&message, FromProxy::Event { event: Event::Text { text }, .. } if text == "1000 files").then_some(())
    });
    proxy.send(&ToProxy::Request { request: 2, command: ProxyCommand::Ping });
    proxy.receive("an answer", |message| matches!(message, FromProxy::Done { request: 2 }).then_some(()));
    let kill = ProxyCommand::Kill { scope: KillScope::Session, options: KillOptions::NOW, reason: EndReason::Killed };
    proxy.send(&ToProxy::Request { request: 3, command: kill });
    let (reason, receipt) = ended(&mut proxy);
    assert_eq!(reason, EndReason::Killed);
    assert!(receipt.is_empty() && receipt.processes.iter().any(|entry| entry.id == agent), "{receipt}");
}

#[test]
fn a_session_from_start_to_shutdown() {
    let mut server = RawForkServer::start(child());
    let session = fresh();
    let (mut proxy, process) = server.fork(&session);
    assert_eq!(proxy.greet(), process.id());
    let seconds = system::unique_seconds();
    let agent = proxy
        .start_shell(&session, &format!("setsid sleep {seconds} & echo up; read line; echo \"got $line\"; read line"));
    proxy.receive("the agent is up", |m| {
        matches!(&m, FromProxy::Event { event: Event::Text { text }, .. } if text == "up\n").then_some(())
    });
    proxy.send(&ToProxy::Request { request: 2, command: ProxyCommand::Prompt { turn: 1, prompt: "hello".into() } });
    proxy.receive("the prompt is taken", |m| matches!(m, FromProxy::Done { request: 2 }).then_some(()));
    proxy.receive("the answer", |m| {
        matches!(&m, FromProxy::Event { turn: 0, event: Event::Text { text } } if text == "got hello\n").then_some(())
    });
    until("the sleeper sleeps", || (!system::sleeping(&seconds).is_empty()).then_some(()));
    proxy.send(&ToProxy::Request { request: 3, command: ProxyCommand::ListProcesses });
    let list = proxy.receive("the list", |m| match m {
        FromProxy::Processes { request: 3, processes } => Some(processes),
        _ => None,
    });
    let sleeper = list.iter().find(|info| info.args == [seconds.clone()]).expect("listed").clone();
    assert_ne!(sleeper.sid, agent.pid);
    proxy.send(&ToProxy::Request { request: 4, command: ProxyCommand::Ping });
    proxy.receive("the pong", |m| matches!(m, FromProxy::Done { request: 4 }).then_some(()));
    proxy.send(&ToProxy::Request {
        request: 9,
        command: ProxyCommand::Kill {
            scope: KillScope::Session,
            options: KillOptions::default(),
            reason: EndReason::Killed,
        },
    });
    let (reason, receipt) = ended(&mut proxy);
    assert_eq!(reason, EndReason::Killed);
    assert!(receipt.is_empty() && receipt.proof == Proof::NoChildren, "{receipt:?}");
    assert!(receipt.processes.iter().any(|entry| entry.id == sleeper.id), "{receipt:?}");
    assert_eq!(proxy.try_receive(), None);
    let (of, exit, rest) = proxy_gone(&mut server);
    assert_eq!((of, exit), (session.clone(), Some(ExitStatus::Code(0))));
    assert!(rest.is_empty() && rest.processes.is_empty(), "{rest:?}");
    assert!(system::with_marker(session.as_str()).is_empty());
    server.join();
}

#[test]
fn a_proxy_has_only_its_descriptors_and_its_title() {
    let mut server = RawForkServer::start(child());
    let (first, second) = (fresh(), fresh());
    let (mut a, first_process) = server.fork(&first);
    // Forked later, so that it could have inherited the first one's.
    let (mut b, second_process) = server.fork(&second);
    a.greet();
    b.greet();
    b.start_shell(&second, "read line");
    // It is not dumpable, so only root can look.
    if fs::read_dir(format!("/proc/{}/fd", second_process.id().pid)).is_ok() {
        assert!(nix::unistd::geteuid().is_root(), "a proxy shows its descriptors to its user");
        // Whatever it shares, standard streams aside, would be a leak: each socket end and pipe end has a number of its own.
        let shareable = |pid| {
            let standard = fds_of(pid, 0..3);
            let numbered =
                |to: &String| (to.starts_with("socket:") || to.starts_with("pipe:")) && !standard.contains(to);
            fds_of(pid, 3..1024).into_iter().filter(numbered).collect::<Vec<_>>()
        };
        let own = shareable(second_process.id().pid);
        assert!(own.len() >= 4, "its socket and its agent's streams: {own:?}");
        for other in [server.process.id().pid, first_process.id().pid] {
            let theirs = shareable(other);
            assert!(!theirs.is_empty());
            assert!(!own.iter().any(|fd| theirs.contains(fd)), "{own:?} and {theirs:?}");
        }
        let pidfds = fds_of(second_process.id().pid, 3..1024).iter().filter(|to| to.contains("pidfd")).count();
        assert_eq!(pidfds, 2, "its guard and its agent");
    } else {
        system::not_run("only root can see the descriptors of a proxy");
    }
    let title = fs::read_to_string(format!("/proc/{}/cmdline", second_process.id().pid)).expect("readable");
    assert_eq!(title.trim_end_matches('\0'), format!("agent-proxy: session {second}"));
    let name = fs::read_to_string(format!("/proc/{}/comm", second_process.id().pid)).expect("readable");
    assert!(second.as_str().ends_with(name.trim().trim_start_matches("ap ")), "{name}");
    drop((a, b));
    server.join();
}

#[test]
fn another_version_is_refused_on_both_sockets() {
    let mut server = RawForkServer::start(child());
    let session = fresh();
    let (mut proxy, process) = server.fork(&session);
    proxy.send(&ToProxy::Hello(Hello { version: VERSION + 1, process: process.id() }));
    assert!(matches!(proxy.try_receive(), Some(FromProxy::Hello(_))));
    let (reason, receipt) = ended(&mut proxy);
    assert!(matches!(&reason, EndReason::Failed(why) if why.contains("version")), "{reason}");
    assert!(receipt.is_empty());
    assert_eq!(proxy_gone(&mut server).0, session);
    server.send(&ToForkServer::Hello(Hello { version: VERSION + 1, process: process.id() }), None);
    server.join();
}

#[test]
fn garbage_ends_the_session_and_no_other() {
    let mut server = RawForkServer::start(child());
    let (good, bad) = (fresh(), fresh());
    let (mut good_proxy, _) = server.fork(&good);
    let (mut bad_proxy, _) = server.fork(&bad);
    good_proxy.greet();
    bad_proxy.greet();
    let seconds = system::unique_seconds();
    bad_proxy.start_shell(&bad, &format!("sleep {seconds} & exec sleep {seconds}"));
    bad_proxy.send_bytes(&[0xff; 64]);
    assert_eq!(proxy_gone(&mut server).0, bad);
    assert!(system::with_word(&seconds).is_empty());
    good_proxy.send(&ToProxy::Request { request: 9, command: ProxyCommand::Ping });
    good_proxy.receive("the pong", |m| matches!(m, FromProxy::Done { request: 9 }).then_some(()));
    drop(good_proxy);
    server.join();
}

#[test]
fn what_cannot_start_says_why() {
    let mut server = RawForkServer::start(child());
    let session = fresh();
    let (mut proxy, _) = server.fork(&session);
    proxy.greet();
    let command = ipc_protocol::message::AgentCommand {
        private: Vec::new(),
        agent: "command".into(),
        protocol: "command".into(),
        argv: vec!["no-such-agent".into()],
        env: [("PATH", "/usr/bin:/bin")].into_iter().collect(),
        cwd: None,
        protocol_config: Json::null(),
        fresh_id: "0193a5a8-0000-7000-8000-000000000000".into(),
        resume: None,
        endpoint: None,
        max_turns: None,
        asking: ipc_protocol::message::PermissionSupport::default(),
        companion: Vec::new(),
        socket: None,
        upstream: None,
    };
    let config = ipc_protocol::AgentSessionConfig::new("command");
    let (config, command, enclosure) = (Box::new(config), Box::new(command), Box::new(enclosure(&session)));
    proxy.send(&ToProxy::Request { request: 1, command: ProxyCommand::Start { config, command, enclosure } });
    let error = proxy.receive("the failure", |m| match m {
        FromProxy::Failed { request: 1, error } => Some(error),
        _ => None,
    });
    assert!(matches!(&error, WireError::ProgramNotFound { program, .. } if program == "no-such-agent"), "{error}");
    assert!(ended(&mut proxy).1.is_empty());
    assert_eq!(proxy_gone(&mut server).0, session);
    server.join();
}

/// Leaves behind a plain child, one in another session, and a daemon.
fn family(seconds: &str) -> String {
    format!("sleep {seconds} & setsid sleep {seconds} & (setsid sleep {seconds} &) ; exec sleep {seconds}")
}

fn start_family(server: &mut RawForkServer) -> (SessionId, RawProxy, registry::PidFd, String) {
    let session = fresh();
    let (mut proxy, process) = server.fork(&session);
    proxy.greet();
    let seconds = system::unique_seconds();
    proxy.start_shell(&session, &family(&seconds));
    until("the family sleeps", || (system::sleeping(&seconds).len() == 4).then_some(()));
    (session, proxy, process, seconds)
}

#[test]
fn what_a_dead_proxy_leaves_is_ended_by_its_guard() {
    let mut server = RawForkServer::start(child());
    let (session, _proxy, process, seconds) = start_family(&mut server);
    sigkill(&process).expect("killed");
    let (of, exit, receipt) = proxy_gone(&mut server);
    assert_eq!((of, exit), (session, Some(ExitStatus::Signal(9))));
    assert!(receipt.is_empty(), "{receipt:?}");
    let sleepers = receipt.processes.iter().filter(|e| e.command.as_deref() == Some(&format!("sleep {seconds}")));
    assert_eq!(sleepers.clone().count(), 4, "{receipt:?}");
    assert!(sleepers.clone().all(|entry| matches!(entry.outcome, ProcessOutcome::Ended(_))), "{receipt:?}");
    assert!(system::with_word(&seconds).is_empty());
    server.join();
}

#[test]
fn two_proxies_that_die_at_once_leave_nothing_and_mix_nothing_up() {
    let mut server = RawForkServer::start(child());
    let (first, _a, first_process, first_seconds) = start_family(&mut server);
    let (second, _b, second_process, second_seconds) = start_family(&mut server);
    sigkill(&first_process).expect("killed");
    sigkill(&second_process).expect("killed");
    for _ in 0..2 {
        let (of, _, receipt) = proxy_gone(&mut server);
        let (own, other) =
            if of == first { (&first_seconds, &second_seconds) } else { (&second_seconds, &first_seconds) };
        assert!(of == first || of == second);
        assert!(receipt.is_empty(), "{receipt:?}");
        let has =
            |seconds: &str| receipt.processes.iter().any(|e| e.command.as_deref() == Some(&format!("sleep {seconds}")));
        assert!(has(own) && !has(other), "{receipt:?}");
    }
    assert!(system::with_word(&first_seconds).is_empty() && system::with_word(&second_seconds).is_empty());
    server.join();
}

#[test]
fn a_stopped_proxy_is_no_obstacle() {
    let mut server = RawForkServer::start(child());
    let (session, _proxy, process, seconds) = start_family(&mut server);
    let _stopped = system::Stopper::new(process.id());
    server.send(&ToForkServer::Kill { session: session.clone(), options: KillOptions::default() }, None);
    let (of, exit, receipt) = proxy_gone(&mut server);
    assert_eq!((of, exit), (session, Some(ExitStatus::Signal(9))));
    assert!(receipt.is_empty(), "{receipt:?}");
    let named = receipt.processes.iter().filter(|e| e.command.as_deref() == Some(&format!("sleep {seconds}"))).count();
    assert_eq!(named, 4, "{receipt:?}");
    assert!(receipt.processes.iter().all(|e| e.reaped_by == Some(ReapedBy::ForkServer)), "{receipt:?}");
    assert!(system::with_word(&seconds).is_empty());
    server.join();
}

/// The proxy itself was given no limit here: what is seen and done is the fork server's.
#[test]
fn the_limits_of_a_stopped_proxy_are_looked_after() {
    let mut server = RawForkServer::start(child());
    let session = fresh();
    let limits = Limits { processes: Some(3), on_limit: LimitAction::KillProcess, ..Limits::default() };
    let (mut proxy, process) = server.fork_limited(&session, limits);
    proxy.greet();
    let seconds = system::unique_seconds();
    let agent = proxy.start_shell(&session, &family(&seconds));
    until("the family sleeps", || (system::sleeping(&seconds).len() == 4).then_some(()));
    let stopped = system::Stopper::new(process.id());
    let exceeded = server.observed("limit:exceeded", |event| match event {
        Event::LimitExceeded(exceeded) => Some(exceeded),
        _ => None,
    });
    assert_eq!((exceeded.limit, exceeded.value, exceeded.measured), (LimitKind::Processes, 3, 4));
    assert_eq!((exceeded.form, exceeded.action), (LimitForm::Watchdog, LimitAction::KillProcess));
    assert!(exceeded.process.is_some_and(|ended| ended != agent), "{exceeded:?}");
    until("one is ended", || (system::sleeping(&seconds).len() == 3).then_some(()));
    assert!(system::is_alive(agent.pid));
    drop(stopped);
    server.send(&ToForkServer::Kill { session: session.clone(), options: KillOptions::NOW }, None);
    assert!(proxy_gone(&mut server).2.is_empty());
    server.join();
}

#[test]
fn a_host_that_closes_leaves_nothing() {
    let mut server = RawForkServer::start(child());
    let (_, proxy, _, seconds) = start_family(&mut server);
    drop(proxy);
    server.join();
    assert!(system::with_word(&seconds).is_empty());
}

#[test]
fn a_host_that_closes_leaves_no_stopped_proxy_either() {
    let mut server = RawForkServer::start(child());
    let (_, proxy, process, seconds) = start_family(&mut server);
    let _stopped = system::Stopper::new(process.id());
    drop(proxy);
    server.join();
    assert!(system::with_word(&seconds).is_empty());
}

#[test]
fn a_proxy_without_its_guard_ends_its_session() {
    let mut server = RawForkServer::start(child());
    let (_, mut proxy, _, seconds) = start_family(&mut server);
    sigkill(&server.process).expect("killed");
    let (reason, receipt) = ended(&mut proxy);
    assert_eq!(reason, EndReason::ForkServerDied);
    assert!(receipt.is_empty(), "{receipt:?}");
    assert!(system::with_word(&seconds).is_empty());
    until("its status is there", || server.process.try_reap().expect("our child"));
}

#[test]
fn an_agent_that_exits_takes_its_family_along() {
    let mut server = RawForkServer::start(child());
    let session = fresh();
    let (mut proxy, _) = server.fork(&session);
    proxy.greet();
    let seconds = system::unique_seconds();
    proxy.start_shell(&session, &format!("setsid sleep {seconds} & read line; echo last words; exit 7"));
    until("the sleeper sleeps", || (!system::sleeping(&seconds).is_empty()).then_some(()));
    proxy.send(&ToProxy::Request { request: 2, command: ProxyCommand::Prompt { turn: 1, prompt: "go".into() } });
    proxy.receive("its last words", |m| {
        matches!(&m, FromProxy::Event { event: Event::Text { text }, .. } if text == "last words\n").then_some(())
    });
    let (reason, receipt) = ended(&mut proxy);
    assert_eq!(reason, EndReason::AgentExited(Some(ExitStatus::Code(7))));
    assert!(receipt.processes.iter().any(|e| e.command.as_deref() == Some(&format!("sleep {seconds}"))), "{receipt:?}");
    assert!(system::with_word(&seconds).is_empty());
    assert_eq!(proxy_gone(&mut server).0, session);
    server.join();
}

#[test]
fn a_fork_server_with_a_second_thread_starts_proxies_by_exec() {
    let mut server = RawForkServer::start(Path::new(env!("CARGO_BIN_EXE_threaded-child")));
    let threads = fs::read_dir(format!("/proc/{}/task", server.process.id().pid)).expect("readable").count();
    assert!(threads > 1, "the test needs a fork server with threads");
    let (session, mut proxy, process, seconds) = start_family(&mut server);
    let threads = fs::read_dir(format!("/proc/{}/task", process.id().pid)).expect("readable").count();
    assert!(threads > 1, "it was forked: a fork has one thread, a program of this binary two");
    proxy.send(&ToProxy::Request {
        request: 9,
        command: ProxyCommand::Kill { scope: KillScope::Session, options: KillOptions::NOW, reason: EndReason::Killed },
    });
    assert!(ended(&mut proxy).1.is_empty());
    assert!(system::with_word(&seconds).is_empty());
    assert_eq!(proxy_gone(&mut server).0, session);
    server.join();
}

/// The proxy that waits for its session.
fn spare(server: &RawForkServer) -> registry::PidFd {
    let fork_server = server.process.id().pid;
    let waits = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with("agent-proxy: waits"))
    };
    let pid = until("a proxy waits", || {
        let children =
            fs::read_to_string(format!("/proc/{fork_server}/task/{fork_server}/children")).expect("readable");
        children.split_whitespace().map(|pid| pid.parse().expect("a pid")).find(waits)
    });
    registry::PidFd::open(registry::identify(pid).expect("alive")).expect("alive")
}

#[test]
fn a_session_is_handed_to_the_proxy_that_waits() {
    let mut server = RawForkServer::start(child());
    let waiting = spare(&server);
    let (mut proxy, process) = server.fork(&fresh());
    assert_eq!(process.id(), waiting.id());
    assert_eq!(proxy.greet(), waiting.id());
    assert_ne!(spare(&server).id(), waiting.id(), "another one waits");
    drop(proxy);
    server.join();
}

#[test]
fn a_proxy_that_died_waiting_is_no_obstacle() {
    let mut server = RawForkServer::start(child());
    let waiting = spare(&server);
    sigkill(&waiting).expect("killed");
    until("it is dead", || (!system::is_alive(waiting.id().pid)).then_some(()));
    let (mut proxy, process) = server.fork(&fresh());
    assert_eq!(proxy.greet(), process.id());
    drop(proxy);
    server.join();
}

#[test]
fn a_stopped_proxy_that_waits_is_not_left_behind() {
    let server = RawForkServer::start(child());
    let waiting = spare(&server);
    waiting.signal(Signal::Stop).expect("stopped");
    server.join();
    assert!(!system::is_alive(waiting.id().pid));
}

#[test]
fn a_host_that_goes_in_the_middle_of_a_flood_leaves_nothing() {
    let mut server = RawForkServer::start(child());
    let session = fresh();
    let (mut proxy, process) = server.fork(&session);
    proxy.greet();
    let seconds = system::unique_seconds();
    // It writes for ever, so that the proxy is always writing when its host goes.
    proxy.start_shell(&session, &format!("setsid sleep {seconds} & exec yes"));
    until("the sleeper sleeps", || (!system::sleeping(&seconds).is_empty()).then_some(()));
    drop(proxy);
    let (of, _, receipt) = proxy_gone(&mut server);
    assert_eq!(of, session);
    assert!(receipt.is_empty(), "{receipt:?}");
    assert!(!system::is_alive(process.id().pid));
    assert!(system::sleeping(&seconds).is_empty() && system::with_marker(session.as_str()).is_empty());
    server.join();
}
