//! The recovery matrix: whoever dies, and whatever the session did then, its events are found and its conversation goes on.
//! `AGENT_PROXY_MATRIX=N` does each row N times.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    path::Path,
};

use agent_proxy_tests::{
    lasting::{SESSION, builder, config, mode_prompt},
    sessions::{all, event, said, soon},
    system::{is_alive, until},
};
use proxy_manager::{
    EndReason, Envelope, Error, Event, KillOptions, Lifecycle, ProcessId, PromptMode, ProxyManager, Restart, SessionId,
    SessionStatus, Signal,
};
use registry::{Input, Output, PidFd, Spawn};
use tempfile::TempDir;

const CHILD: &str = env!("CARGO_BIN_EXE_proxy-child");
const FAKE: &str = env!("CARGO_BIN_EXE_fake-agent");
const MODES: [&str; 3] = ["idle", "turn", "tool"];

fn times() -> usize {
    std::env::var("AGENT_PROXY_MATRIX").ok().map_or(1, |times| times.parse().expect("a number"))
}

fn id() -> SessionId {
    SESSION.parse().expect("an id")
}

fn place() -> TempDir {
    let scratch = tempfile::tempdir().expect("a directory");
    fs::create_dir(scratch.path().join("home")).expect("made");
    scratch
}

async fn manager(scratch: &TempDir) -> ProxyManager {
    soon("a manager", builder(CHILD, FAKE, scratch.path()).build()).await.expect("built")
}

fn kill(process: ProcessId) {
    PidFd::open(process).and_then(|process| process.signal(Signal::Kill)).expect("signalled");
}

/// Whom of a host with its session to kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Host,
    ForkServer,
    Proxy,
    Agent,
}

/// A host in a process of its own comes to where `mode` says, and then these die.
fn host_dies(dir: &Path, mode: &str, victims: &[Victim]) {
    let program = env!("CARGO_BIN_EXE_lasting-host");
    let argv = [program, CHILD, FAKE, dir.to_str().expect("UTF-8"), mode].map(Into::into).to_vec();
    let mut host = registry::spawn(Spawn {
        argv,
        stdin: Input::Pipe,
        stdout: Output::Pipe,
        stderr: Output::Inherit,
        ..Spawn::new(program)
    })
    .expect("started");
    let mut line = String::new();
    let stdout = host.stdout.take().expect("a pipe");
    rustix::io::ioctl_fionbio(&stdout, false).expect("blocking");
    BufReader::new(File::from(stdout)).read_line(&mut line).expect("a line");
    let pids: Vec<_> = line.split_whitespace().map(|pid| pid.parse().expect("a pid")).collect();
    let ids: Vec<_> = pids.iter().map(|pid| registry::identify(*pid).expect("alive")).collect();
    let [fork_server, proxy, agent] = ids.as_slice() else { panic!("{line:?}") };
    for victim in victims {
        match victim {
            Victim::Host => host.process.signal(Signal::Kill).expect("signalled"),
            Victim::ForkServer => kill(*fork_server),
            Victim::Proxy => kill(*proxy),
            Victim::Agent => kill(*agent),
        }
    }
    until("the host's end", || host.process.try_reap().expect("our child"));
    if !victims.contains(&Victim::ForkServer) {
        // It ends what the host left, before another manager has to.
        until("the end of its fork server", || (!is_alive(fork_server.pid)).then_some(()));
    }
}

/// All events of the session, which have no hole.
async fn events(manager: &ProxyManager) -> Vec<Event> {
    let session = manager.session(&id()).expect("known");
    let last = session.info().last_offset;
    let mut events = manager.subscribe(&id()).expect("known");
    let mut found = Vec::new();
    while (found.len() as u64) < last {
        let envelope = soon("an event", events.next()).await.expect("there are more");
        assert_eq!(envelope.offset, found.len() as u64 + 1);
        found.push(envelope.event.clone());
    }
    found
}

async fn ask(manager: &ProxyManager, prompt: &str) -> String {
    let last = manager.session(&id()).expect("known").info().last_offset;
    let mut events = manager.subscribe_from(&id(), last).expect("known");
    let turn = soon("the prompt", manager.send_prompt(&id(), prompt, PromptMode::Refuse)).await.expect("prompted");
    let answer = said(&mut events, "").await.trim().to_owned();
    soon("the turn's end", turn.wait()).await.expect("ended");
    answer
}

/// The next manager finds all that was said, and goes on.
async fn goes_on(scratch: &TempDir, mode: &str, row: &str) {
    let manager = manager(scratch).await;
    assert!(manager.recovered().iter().all(proxy_manager::Recovered::is_empty), "{row}: {:?}", manager.recovered());
    let record = manager.record(&id()).expect("kept");
    assert_eq!((record.status, record.turns), (SessionStatus::Suspended, if mode == "idle" { 1 } else { 2 }), "{row}");
    let found = events(&manager).await;
    let has = |wanted: &dyn Fn(&Event) -> bool| found.iter().any(wanted);
    assert!(has(&|event| matches!(event, Event::Text { text } if text.contains("before"))), "{row}: {found:?}");
    if let Some((_, is_there)) = mode_prompt(mode) {
        assert!(has(&|event| is_there(event)), "{row}: {found:?}");
    }
    assert!(matches!(found.last(), Some(Event::SessionSuspended { .. })), "{row}: {found:?}");
    // By its key, as whoever had it does.
    let session = soon("a resume", manager.start_session(config("another"))).await.expect("resumed");
    assert_eq!(session.id(), &id(), "{row}");
    let answer = ask(&manager, "history").await;
    assert!(answer.ends_with(" before") && answer != "0 before", "{row}: {answer}");
    let receipt = session.kill(KillOptions::NOW).await.expect("killed");
    assert!(receipt.is_empty(), "{row}");
    manager.shutdown().await;
}

async fn row(victims: &[Victim]) {
    for mode in MODES {
        for _ in 0..times() {
            let scratch = place();
            let dir = scratch.path().to_owned();
            let killed = victims.to_vec();
            tokio::task::spawn_blocking(move || host_dies(&dir, mode, &killed)).await.expect("no panic");
            goes_on(&scratch, mode, &format!("{victims:?} while {mode}")).await;
        }
    }
}

#[tokio::test]
async fn the_host_dies() {
    row(&[Victim::Host]).await;
}

#[tokio::test]
async fn host_and_proxy_die() {
    row(&[Victim::Proxy, Victim::Host]).await;
}

#[tokio::test]
async fn host_and_fork_server_die() {
    row(&[Victim::ForkServer, Victim::Host]).await;
}

#[tokio::test]
async fn all_die() {
    row(&[Victim::ForkServer, Victim::Proxy, Victim::Agent, Victim::Host]).await;
}

/// With a living host the session is started again where it is asked for.
async fn restarts(victim: Victim) {
    for mode in MODES {
        for _ in 0..times() {
            let scratch = place();
            let manager = manager(&scratch).await;
            let mut config = config(SESSION);
            config.lifecycle = Lifecycle { restart: Restart::OnCrash { max: 1, backoff_ms: 1 }, ..config.lifecycle };
            let session = manager.start_session(config).await.expect("started");
            assert_eq!(ask(&manager, "say before").await, "before");
            let mut events = session.subscribe();
            if let Some((prompt, is_there)) = mode_prompt(mode) {
                session.prompt(prompt, PromptMode::Refuse).await.expect("prompted");
                event(&mut events, "it is there", |envelope| is_there(&envelope.event).then_some(())).await;
            }
            let info = session.info();
            kill(if victim == Victim::Proxy { info.proxy } else { info.agent_process }.expect("it runs"));
            event(&mut events, "a restart", |envelope| {
                matches!(&envelope.event, Event::SessionResumed { by, .. } if by == "restart").then_some(())
            })
            .await;
            event(&mut events, "ready", |envelope| matches!(envelope.event, Event::SessionIdle {}).then_some(())).await;
            let answer = ask(&manager, "history").await;
            assert!(answer.ends_with(" before") && answer != "0 before", "{victim:?} while {mode}: {answer}");
            manager.shutdown().await;
        }
    }
}

#[tokio::test]
async fn the_proxy_dies() {
    restarts(Victim::Proxy).await;
}

#[tokio::test]
async fn the_agent_dies() {
    restarts(Victim::Agent).await;
}

#[tokio::test]
async fn the_fork_server_dies() {
    for mode in MODES {
        for _ in 0..times() {
            let scratch = place();
            let first = manager(&scratch).await;
            let session = first.start_session(config(SESSION)).await.expect("started");
            assert_eq!(ask(&first, "say before").await, "before");
            let mut events = session.subscribe();
            if let Some((prompt, is_there)) = mode_prompt(mode) {
                session.prompt(prompt, PromptMode::Refuse).await.expect("prompted");
                event(&mut events, "it is there", |envelope| is_there(&envelope.event).then_some(())).await;
            }
            kill(first.fork_server());
            let reason = event(&mut events, "its end", |envelope| match &envelope.event {
                Event::SessionSuspended { reason, .. } => Some(reason.clone()),
                _ => None,
            })
            .await;
            assert_eq!(reason, EndReason::ForkServerDied);
            first.shutdown().await;
            goes_on(&scratch, mode, &format!("the fork server while {mode}")).await;
        }
    }
}

/// After a reboot nothing of the session runs, and its numbers are other processes'.
#[tokio::test]
async fn the_machine_boots_anew() {
    let scratch = place();
    let dir = scratch.path().to_owned();
    let killed = [Victim::ForkServer, Victim::Proxy, Victim::Agent, Victim::Host];
    tokio::task::spawn_blocking(move || host_dies(&dir, "turn", &killed)).await.expect("no panic");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("readable");
    let mut changed = 0;
    for entry in fs::read_dir(scratch.path().join("state/sessions")).expect("there").flatten() {
        let text = fs::read_to_string(entry.path()).expect("a journal");
        if text.contains(boot.trim()) {
            fs::write(entry.path(), text.replace(boot.trim(), "00000000-0000-4000-8000-000000000000"))
                .expect("written");
            changed += 1;
        }
    }
    assert_eq!(changed, 1, "one journal says when the machine was booted");
    goes_on(&scratch, "turn", "another boot").await;
}

#[tokio::test]
async fn the_conversation_is_gone() {
    let scratch = place();
    let dir = scratch.path().to_owned();
    tokio::task::spawn_blocking(move || host_dies(&dir, "idle", &[Victim::Host])).await.expect("no panic");
    fs::remove_dir_all(scratch.path().join("home/chats")).expect("removed");
    let manager = manager(&scratch).await;
    let error = manager.resume_session(&id()).await.expect_err("gone");
    assert!(matches!(error, Error::NativeSessionMissing { .. }), "{error}");
    // Its events are there all the same.
    assert!(events(&manager).await.iter().any(|event| matches!(event, Event::Text { .. })));
    manager.shutdown().await;
}

#[tokio::test]
async fn the_store_is_gone() {
    let scratch = place();
    let dir = scratch.path().to_owned();
    tokio::task::spawn_blocking(move || host_dies(&dir, "idle", &[Victim::Host])).await.expect("no panic");
    for entry in fs::read_dir(scratch.path().join("state")).expect("there").flatten() {
        if entry.file_name().to_string_lossy().starts_with("log.sqlite") {
            fs::remove_file(entry.path()).expect("removed");
        }
    }
    let manager = manager(&scratch).await;
    assert!(matches!(manager.record(&id()), Err(Error::UnknownSession { .. })));
    assert!(matches!(manager.subscribe(&id()), Err(Error::UnknownSession { .. })));
    // Which conversation it had is known all the same.
    let mut config = config("next");
    config.resume = Some(proxy_manager::Resume {
        from: proxy_manager::ResumeFrom::Session { id: id() },
        fork: false,
        on_missing: proxy_manager::OnMissing::Fail,
    });
    let session = manager.start_session(config).await.expect("started");
    session.prompt("history", PromptMode::Refuse).await.expect("prompted");
    let history = said(&mut session.subscribe(), "").await;
    assert_eq!(history.trim(), "1 before");
    session.kill(KillOptions::NOW).await.expect("killed");
    let ended = all(&mut session.subscribe()).await;
    assert!(ended.iter().map(|envelope: &std::sync::Arc<Envelope>| envelope.offset).eq(1..=ended.len() as u64));
    manager.shutdown().await;
}
