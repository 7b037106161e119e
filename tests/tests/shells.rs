//! Shells beside a session's agent: what holds the agent holds them, and they end with their viewer or with the session.

use agent_proxy_tests::{
    sessions::{self, fake, shell, soon},
    system::until,
};
use proxy_manager::{
    AgentSessionConfig, Containment, ExitStatus, KillOptions, Limits, ProcessStatus, ProxyManager, SessionHandle,
    terminal::{FromTerminal, TerminalConfig, TerminalSize, TerminalViewer, ToTerminal, WireError},
};

async fn manager() -> ProxyManager {
    let builder = sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent"));
    builder.build().await.expect("built")
}

/// A session that waits, with a variable of its own.
fn waiting() -> AgentSessionConfig {
    let mut config = AgentSessionConfig { cwd: Some("/usr".into()), ..shell("exec sleep 1000") };
    config.env.0.insert("FLAVOUR".into(), "mint".into());
    config
}

async fn open(session: &SessionHandle, argv: &[&str], terminal: bool) -> TerminalViewer {
    let mut viewer = session.shell().await.expect("connected");
    let config = TerminalConfig { size: TerminalSize::default(), ..TerminalConfig::default() };
    let argv = argv.iter().map(|word| (*word).to_owned()).collect();
    let first = ToTerminal::Shell { argv, terminal: terminal.then(|| Box::new(config)), in_place: false };
    viewer.send(&first).await.expect("sent");
    viewer
}

/// What a program without a terminal writes until its end.
async fn output(viewer: &mut TerminalViewer) -> (String, Option<ExitStatus>) {
    let mut text = Vec::new();
    loop {
        match soon("a message", viewer.next()).await {
            Some(FromTerminal::Output { bytes, .. }) => text.extend(bytes),
            Some(FromTerminal::Ended { exit, .. }) => return (String::from_utf8(text).expect("text"), exit),
            other => panic!("{other:?}"),
        }
    }
}

async fn run(session: &SessionHandle, script: &str) -> String {
    let (text, exit) = output(&mut open(session, &["/bin/sh", "-c", script], false).await).await;
    assert_eq!(exit, Some(ExitStatus::Code(0)), "{text}");
    text
}

/// Waits for a shell's first output, with its pid.
async fn pid(viewer: &mut TerminalViewer) -> u32 {
    let mut text = String::new();
    loop {
        match soon("the pid", viewer.next()).await {
            Some(FromTerminal::Output { bytes, .. }) => text.push_str(&String::from_utf8_lossy(&bytes)),
            Some(FromTerminal::Frame { bytes, .. }) => text.push_str(&String::from_utf8_lossy(&bytes)),
            Some(FromTerminal::Attached { .. } | FromTerminal::Keyboard { .. }) => {}
            other => panic!("{other:?}"),
        }
        if let Some((_, rest)) = text.split_once("pid=")
            && let Some((pid, _)) = rest.split_once(';')
        {
            return pid.parse().expect("a pid");
        }
    }
}

fn is_gone(pid: u32) {
    until("the shell is gone", || registry::identify(pid).is_err().then_some(()));
}

#[tokio::test]
async fn a_shell_is_where_the_agent_is() {
    let manager = manager().await;
    let session = manager.start_session(waiting()).await.expect("started");
    let agent = session.info().processes.agent_process.expect("it runs").pid;
    let read = |what: &str| std::fs::read_to_string(format!("/proc/{agent}/{what}")).expect("it lives");
    assert_eq!(run(&session, "cat /proc/self/cgroup").await.lines().count(), read("cgroup").lines().count());
    // Its own view of cgroups hides the path: look from outside.
    let mut other = open(&session, &["/bin/sh", "-c", "echo \"pid=$$;\"; exec sleep 1000"], false).await;
    let number = pid(&mut other).await;
    assert_eq!(std::fs::read_to_string(format!("/proc/{number}/cgroup")).expect("it lives"), read("cgroup"));
    let listed = session.processes().await.expect("listed");
    let found = listed.iter().find(|process| process.id.pid == number).expect("it is listed");
    assert_eq!((&found.status, found.tracked), (&ProcessStatus::Running, true));
    assert_eq!(run(&session, "echo $FLAVOUR; pwd").await, "mint\n/usr\n");
    let receipt = session.kill(KillOptions::default()).await.expect("killed");
    assert!(receipt.is_empty() && receipt.processes.iter().any(|entry| entry.id.pid == number), "{receipt:?}");
    assert!(matches!(output(&mut other).await.1, Some(ExitStatus::Signal(_))));
    manager.shutdown().await;
}

#[tokio::test]
async fn streams_and_exit_are_the_programs_own() {
    let manager = manager().await;
    let session = manager.start_session(fake()).await.expect("started");
    let mut viewer = open(&session, &["/bin/sh", "-c", "sort; echo oops >&2; exit 7"], false).await;
    for line in ["b\n", "a\n"] {
        viewer.send(&ToTerminal::Input(line.into())).await.expect("sent");
    }
    viewer.send(&ToTerminal::EndOfInput).await.expect("sent");
    let (text, exit) = output(&mut viewer).await;
    assert_eq!((text.as_str(), exit), ("a\nb\noops\n", Some(ExitStatus::Code(7))));
    let mut missing = open(&session, &["no-such-program"], false).await;
    let refused = soon("the refusal", missing.next()).await;
    assert!(matches!(refused, Some(FromTerminal::Refused(WireError::ProgramNotFound { .. }))), "{refused:?}");
    session.kill(KillOptions::NOW).await.expect("killed");
    manager.shutdown().await;
}

#[tokio::test]
async fn a_shell_ends_with_its_viewer_and_the_session_does_not() {
    let manager = manager().await;
    let session = manager.start_session(waiting()).await.expect("started");
    for terminal in [false, true] {
        let script = "echo \"pid=$$;\"; while :; do sleep 1000; done";
        let mut viewer = open(&session, &["/bin/sh", "-c", script], terminal).await;
        let number = pid(&mut viewer).await;
        // As of one that is killed: nobody says goodbye.
        drop(viewer);
        is_gone(number);
    }
    let script = "trap '' HUP; echo \"pid=$$;\"; exec sleep 1000";
    let mut viewer = open(&session, &["/bin/sh", "-c", script], true).await;
    let stays = pid(&mut viewer).await;
    drop(viewer);
    assert_eq!(run(&session, "echo still here").await, "still here\n");
    let receipt = session.kill(KillOptions::default()).await.expect("killed");
    assert!(receipt.is_empty() && receipt.processes.iter().any(|entry| entry.id.pid == stays), "{receipt:?}");
    manager.shutdown().await;
}

#[tokio::test]
async fn a_ninth_shell_is_refused_until_one_leaves() {
    let manager = manager().await;
    let session = manager.start_session(waiting()).await.expect("started");
    let script = ["/bin/sh", "-c", "echo \"pid=$$;\"; exec sleep 1000"];
    let mut open_shells = Vec::new();
    for _ in 0..8 {
        let mut viewer = open(&session, &script, true).await;
        let number = pid(&mut viewer).await;
        open_shells.push((viewer, number));
    }
    let mut ninth = open(&session, &script, true).await;
    let refused = soon("the refusal", ninth.next()).await;
    assert!(
        matches!(&refused, Some(FromTerminal::Refused(error)) if error.to_string().contains("8 shells")),
        "{refused:?}"
    );
    let (viewer, number) = open_shells.pop().expect("eight");
    drop(viewer);
    is_gone(number);
    run(&session, "true").await;
    assert!(session.kill(KillOptions::default()).await.expect("killed").is_empty());
    manager.shutdown().await;
}

#[tokio::test]
async fn a_limit_on_processes_counts_a_shell() {
    let manager = manager().await;
    let offered = manager.capabilities().await.expect("tried");
    if offered.cgroup.is_err() {
        eprintln!("skipped: no cgroups here");
        return;
    }
    let limits = Limits { processes: Some(4), ..Limits::default() };
    let session = manager.start_session(AgentSessionConfig { limits, ..waiting() }).await.expect("started");
    let script = "for i in 1 2 3 4 5 6 7 8; do sleep 1000 & done; wait";
    let _viewer = open(&session, &["/bin/sh", "-c", script], false).await;
    let mut events = session.subscribe();
    sessions::event(&mut events, "the limit", |envelope| {
        matches!(envelope.event, proxy_manager::Event::LimitExceeded(_)).then_some(())
    })
    .await;
    session.kill(KillOptions::NOW).await.expect("killed");
    manager.shutdown().await;
}

#[tokio::test]
async fn strict_containment_holds_a_shell_too() {
    if registry::strict_is_available().is_err() {
        eprintln!("skipped: no namespaces here");
        return;
    }
    let manager = manager().await;
    let config = AgentSessionConfig { containment: Some(Containment::Strict), ..waiting() };
    let session = manager.start_session(config).await.expect("started");
    let agent = session.info().processes.agent_process.expect("it runs").pid;
    for space in ["pid", "mnt"] {
        let own = run(&session, &format!("readlink /proc/self/ns/{space}")).await;
        let agents = std::fs::read_link(format!("/proc/{agent}/ns/{space}")).expect("it lives");
        assert_eq!(own.trim(), agents.to_str().expect("text"));
    }
    assert!(session.kill(KillOptions::default()).await.expect("killed").is_empty());
    manager.shutdown().await;
}
