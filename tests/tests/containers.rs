//! Sessions in containers: what they see, and that nothing of them is left, whoever dies. They take root, podman, runc and busybox.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    path::Path,
};

use agent_proxy_tests::{
    containers::{IMAGE, PodmanStore, ordinary},
    namespaces::is_apart,
    sessions::{self, all, event, said, soon},
    system::{is_alive, sleeping, unique_seconds, until},
};
use proxy_manager::{
    AgentSessionConfig, AgentSpec, ContainerEngine, EndReason, Error, Event, ExitStatus, Home, HostDeath, KillCause,
    KillOptions, ManagerBuilder, NetworkAccess, ProcessId, PromptMode, ProxyManager, Receipt, RecoveryOutcome,
    SandboxMode, SessionContainer, SessionHandle, SessionId, Signal, Subscription,
    terminal::{FromTerminal, TerminalConfig, TerminalSize, ToTerminal},
};
use registry::{PidFd, SpawnInput, SpawnOutput, SpawnRequest, SpawnedProcess};

fn builder(store: &PodmanStore) -> ManagerBuilder {
    sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent")).engine_env(store.env())
}

/// Sleepers of all kinds, and the container's first process.
fn script(seconds: &str) -> String {
    format!(
        "sleep {seconds} & setsid sleep {seconds} & (setsid sleep {seconds} &); echo ready; trap '' TERM; while :; do sleep {seconds}; done"
    )
}

/// Processes of a session of [`script`] that sleep.
const EACH: usize = 4;

fn asleep(seconds: &str) -> Vec<u32> {
    until("all sleep", || Some(sleeping(seconds)).filter(|pids| pids.len() == EACH))
}

fn kill(pid: u32) {
    let process = PidFd::open(registry::identify(pid).expect("alive")).expect("alive");
    process.signal(Signal::Kill).expect("signalled");
}

/// Checks that the receipt has everything, and that nothing is left.
fn ended_all(store: &PodmanStore, receipt: &Receipt, sleepers: &[u32], seconds: &str) {
    assert!(receipt.is_empty(), "{receipt:?}");
    let named: Vec<u32> = receipt.processes.iter().map(|entry| entry.id.pid).collect();
    assert!(sleepers.iter().all(|pid| named.contains(pid)), "{sleepers:?}: {receipt:?}");
    let container = receipt.container.as_ref().expect("it had a container");
    assert!(container.is_removed && container.name.starts_with("agent-proxy-"), "{container:?}");
    assert_eq!(sleeping(seconds), Vec::<u32>::new());
    store.assert_empty();
}

/// The reason and the receipt of the session's end.
async fn end(events: &mut Subscription) -> (EndReason, Receipt) {
    let events = all(events).await;
    match &events.last().expect("a last event").event {
        Event::SessionEnded { reason, receipt } => (reason.clone(), *receipt.clone().expect("a receipt")),
        other => panic!("{other:?}"),
    }
}

async fn start(manager: &ProxyManager, store: &PodmanStore, seconds: &str) -> (SessionHandle, Vec<u32>) {
    let session = soon("the start", manager.start_session(store.shell(&script(seconds)))).await.expect("started");
    said(&mut session.subscribe(), "ready").await;
    (session, asleep(seconds))
}

#[tokio::test]
async fn an_agent_works_in_its_container() {
    let Some(store) = PodmanStore::new() else { return };
    let manager = builder(&store).build().await.expect("a manager");
    let other = tempfile::tempdir().expect("a directory");
    fs::write(other.path().join("given"), "a gift").expect("written");
    let script = "read word; echo \"word=$word\"; echo \"pwd=$(pwd)\"; echo \"var=$VAR\"; echo \"home=$HOME\"; touch made; \
                  echo \"gift=$(cat /other/given)\"; touch /other/new 2>/dev/null || echo read-only=yes; \
                  echo \"links=$(ls /sys/class/net | wc -l)\"; echo \"host=$(ls /root /home /usr 2>/dev/null | wc -l)\"; \
                  echo \"first=$$\"; exit 3";
    let mut config = store.shell(script).with_env("VAR", "a  b\nc").with_env("PATH", "/bin");
    config.container.mounts = vec![format!("{}:/other:ro", other.path().display()).parse().expect("a mount")];
    let session = soon("the start", manager.start_session(config)).await.expect("started");
    let mut events = session.subscribe();
    let status = event(&mut events, "the start", |envelope| match &envelope.event {
        Event::SessionStarted { measures, .. } => Some(measures.container.clone()),
        _ => None,
    })
    .await
    .expect("a container");
    assert_eq!((status.image.as_str(), status.engine, status.network_off), (IMAGE, ContainerEngine::Podman, true));
    let work = store.work();
    let mounts: Vec<String> = status.mounts.iter().map(ToString::to_string).collect();
    let expected = [format!("{0}:{0}", work.display()), format!("{}:/other:ro", other.path().display())];
    assert_eq!(mounts, expected);
    session.prompt("hello\n", proxy_manager::PromptMode::Refuse).await.expect("sent");
    let (reason, receipt) = end(&mut session.subscribe()).await;
    let everything = all(&mut session.subscribe()).await;
    let text: String = everything
        .iter()
        .filter_map(|envelope| match &envelope.event {
            Event::Text { text } => Some(text.clone()),
            _ => None,
        })
        .collect();
    for line in [
        "word=hello".to_owned(),
        format!("pwd={}", work.display()),
        "var=a  b\nc".to_owned(),
        "gift=a gift".to_owned(),
        "read-only=yes".to_owned(),
        "links=1".to_owned(),
        "host=0".to_owned(),
        "first=1".to_owned(),
    ] {
        assert!(text.contains(&format!("{line}\n")), "{line:?} in {text}");
    }
    assert!(!text.contains(&format!("home={}", store.env().0["HOME"])), "the engine's home is not the agent's: {text}");
    assert!(work.join("made").exists(), "the working directory is the user's");
    assert_eq!(reason, EndReason::AgentExited(Some(ExitStatus::Code(3))));
    assert!(
        receipt.is_empty() && receipt.container.as_ref().is_some_and(|container| container.is_removed),
        "{receipt:?}"
    );
    store.assert_empty();
    manager.shutdown().await;
}

#[tokio::test]
async fn a_kill_ends_the_container_with_all_in_it() {
    let Some(store) = PodmanStore::new() else { return };
    let manager = builder(&store).build().await.expect("a manager");
    let seconds = unique_seconds();
    let (session, sleepers) = start(&manager, &store, &seconds).await;
    let listed: Vec<u32> = session.processes().await.expect("listed").iter().map(|info| info.id.pid).collect();
    assert!(sleepers.iter().all(|pid| listed.contains(pid)), "{listed:?}");
    assert_eq!(store.containers().len(), 1);
    let receipt = soon("the kill", session.kill(KillOptions::NOW)).await.expect("proven");
    ended_all(&store, &receipt, &sleepers, &seconds);
    // With a grace that its first process ignores.
    let (session, sleepers) = start(&manager, &store, &seconds).await;
    let grace = KillOptions::grace(std::time::Duration::from_millis(50));
    let receipt = soon("the kill", session.kill(grace)).await.expect("proven");
    ended_all(&store, &receipt, &sleepers, &seconds);
    manager.shutdown().await;
}

/// Podman of an ordinary user has a process that holds its namespaces, which the kill of a session leaves to the others.
#[tokio::test]
async fn sessions_of_an_ordinary_user_end_one_by_one() {
    if !is_apart(ordinary, "sessions_of_an_ordinary_user_end_one_by_one") {
        return;
    }
    let Some(store) = PodmanStore::of_this_user() else { return };
    let manager = builder(&store).build().await.expect("a manager");
    let seconds = [unique_seconds(), unique_seconds()];
    let (first, first_sleepers) = start(&manager, &store, &seconds[0]).await;
    let (second, second_sleepers) = start(&manager, &store, &seconds[1]).await;
    let receipt = soon("the kill", first.kill(KillOptions::NOW)).await.expect("proven");
    assert!(receipt.is_empty() && receipt.container.is_some_and(|container| container.is_removed));
    assert!(first_sleepers.iter().all(|pid| !is_alive(*pid)));
    assert_eq!((asleep(&seconds[1]), store.containers().len()), (second_sleepers.clone(), 1));
    let receipt = soon("the kill", second.kill(KillOptions::NOW)).await.expect("proven");
    ended_all(&store, &receipt, &second_sleepers, &seconds[1]);
    // As a user who has ended that process would find it: what podman believes to run does not.
    let (third, sleepers) = start(&manager, &store, &seconds[0]).await;
    store.end_pause();
    let receipt = soon("the kill", third.kill(KillOptions::NOW)).await.expect("proven");
    ended_all(&store, &receipt, &sleepers, &seconds[0]);
    manager.shutdown().await;
}

#[test]
fn nothing_is_left_of_an_ordinary_user_when_the_host_is_killed() {
    if !is_apart(ordinary, "nothing_is_left_of_an_ordinary_user_when_the_host_is_killed") {
        return;
    }
    let Some(store) = PodmanStore::of_this_user() else { return };
    let seconds = unique_seconds();
    let host = Host::start(&store, None, &seconds);
    asleep(&seconds);
    host.kill();
    until("its supervisors end", || (!is_alive(host.proxy.pid) && !is_alive(host.fork_server.pid)).then_some(()));
    assert_eq!(sleeping(&seconds), Vec::<u32>::new());
    store.assert_empty();
}

/// The process of the store whose program is `name`.
fn process_of(store: &PodmanStore, name: &str) -> u32 {
    let is_it = |pid: u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name);
    until(name, || store.processes().into_iter().map(|(pid, _)| pid).find(|pid| is_it(*pid)))
}

#[tokio::test]
async fn nothing_is_left_when_the_engine_is_killed() {
    let Some(store) = PodmanStore::new() else { return };
    let manager = builder(&store).build().await.expect("a manager");
    let seconds = unique_seconds();
    let (session, sleepers) = start(&manager, &store, &seconds).await;
    kill(process_of(&store, "podman"));
    let (_, receipt) = end(&mut session.subscribe()).await;
    ended_all(&store, &receipt, &sleepers, &seconds);
    manager.shutdown().await;
}

#[tokio::test]
async fn nothing_is_left_when_the_monitor_is_killed() {
    let Some(store) = PodmanStore::new() else { return };
    let manager = builder(&store).build().await.expect("a manager");
    let seconds = unique_seconds();
    let (session, sleepers) = start(&manager, &store, &seconds).await;
    let monitor = process_of(&store, "conmon");
    kill(monitor);
    until("it is dead", || (!is_alive(monitor)).then_some(()));
    // Without its monitor the engine may have ended, and the session with it.
    let _ = soon("the kill", session.kill(KillOptions::NOW)).await;
    let (_, receipt) = end(&mut session.subscribe()).await;
    ended_all(&store, &receipt, &sleepers, &seconds);
    manager.shutdown().await;
}

#[tokio::test]
async fn nothing_is_left_when_the_proxy_is_killed() {
    let Some(store) = PodmanStore::new() else { return };
    let manager = builder(&store).build().await.expect("a manager");
    let seconds = unique_seconds();
    let (session, sleepers) = start(&manager, &store, &seconds).await;
    kill(session.info().processes.proxy.expect("it runs").pid);
    let (_, receipt) = end(&mut session.subscribe()).await;
    assert_eq!(receipt.cause, KillCause::ProxyDied);
    ended_all(&store, &receipt, &sleepers, &seconds);
    manager.shutdown().await;
}

#[tokio::test]
async fn nothing_is_left_when_the_fork_server_is_killed() {
    let Some(store) = PodmanStore::new() else { return };
    let manager = builder(&store).build().await.expect("a manager");
    let seconds = unique_seconds();
    let (session, sleepers) = start(&manager, &store, &seconds).await;
    kill(manager.fork_server().pid);
    let (_, receipt) = end(&mut session.subscribe()).await;
    ended_all(&store, &receipt, &sleepers, &seconds);
    manager.shutdown().await;
}

/// A host with a session in a container, in a process of its own.
struct Host {
    process: SpawnedProcess,
    fork_server: ProcessId,
    proxy: ProcessId,
}

impl Host {
    fn start(store: &PodmanStore, state: Option<&Path>, seconds: &str) -> Self {
        let program = env!("CARGO_BIN_EXE_config-host");
        let json = |value: serde_json::Result<String>| value.expect("JSON");
        let argv = [
            program.to_owned(),
            env!("CARGO_BIN_EXE_proxy-child").to_owned(),
            state.map_or("-", |state| state.to_str().expect("UTF-8")).to_owned(),
            json(serde_json::to_string(&store.env())),
            json(serde_json::to_string(&store.shell(&script(seconds)))),
        ];
        let mut process = registry::spawn(SpawnRequest {
            argv: argv.into_iter().map(Into::into).collect(),
            stdin: SpawnInput::Pipe,
            stdout: SpawnOutput::Pipe,
            stderr: SpawnOutput::Inherit,
            ..SpawnRequest::new(program)
        })
        .expect("started");
        let stdout = process.stdout.take().expect("a pipe");
        rustix::io::ioctl_fionbio(&stdout, false).expect("blocking");
        let mut line = String::new();
        BufReader::new(File::from(stdout)).read_line(&mut line).expect("the host's line");
        let pids: Vec<_> = line.split_whitespace().map(|pid| pid.parse().expect("a pid")).collect();
        let [fork_server, proxy] = pids[..] else { panic!("{line:?}") };
        let identify = |pid| registry::identify(pid).expect("alive");
        Self { process, fork_server: identify(fork_server), proxy: identify(proxy) }
    }

    /// Kills host, fork server and proxy, none of which has time for the others' end.
    fn kill_all(&self) {
        let supervisors = [self.process.process.id(), self.fork_server, self.proxy];
        for signal in [Signal::Stop, Signal::Kill] {
            // The proxy first: a fork server's death continues it.
            for id in supervisors.into_iter().rev() {
                PidFd::open(id).expect("alive").signal(signal).expect("signalled");
            }
        }
        self.kill();
    }

    fn kill(&self) {
        // It is dead already where all were killed at once.
        let _ = self.process.process.signal(Signal::Kill);
        until("the host's status is there", || self.process.process.try_reap().expect("our child"));
    }
}

impl Drop for Host {
    /// Whatever a failed test left: supervisors end their session when the host is dead.
    fn drop(&mut self) {
        let _ = self.process.process.signal(Signal::Kill);
        let _ = self.process.process.try_reap();
    }
}

/// Containers of a killed host that no journal names are removed by their labels, by a manager that looks for them at its start, and by
/// one that starts a session in a container.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn nothing_is_left_without_a_state_directory_when_all_supervisors_are_killed() {
    let Some(store) = PodmanStore::new() else { return };
    for looks in [true, false] {
        let seconds = unique_seconds();
        let host = Host::start(&store, None, &seconds);
        asleep(&seconds);
        host.kill_all();
        assert_eq!(store.containers().len(), 1, "nobody was left to remove it");
        let builder = if looks { builder(&store).remove_dead_containers() } else { builder(&store) };
        let manager = builder.build().await.expect("a manager");
        let (other, other_seconds) = (store.containers(), unique_seconds());
        let session = match looks {
            true => None,
            false => Some(start(&manager, &store, &other_seconds).await),
        };
        let is_gone = || store.containers().iter().all(|name| !other.contains(name));
        until("the dead host's container is removed", || is_gone().then_some(()));
        until("all sleepers end", || sleeping(&seconds).is_empty().then_some(()));
        // That of a living host is left alone.
        if let Some((session, sleepers)) = session {
            assert_eq!((sleeping(&other_seconds).len(), store.containers().len()), (EACH, 1));
            let receipt = soon("the kill", session.kill(KillOptions::NOW)).await.expect("proven");
            ended_all(&store, &receipt, &sleepers, &other_seconds);
        }
        store.assert_empty();
        manager.shutdown().await;
    }
}

#[test]
fn nothing_is_left_when_the_host_is_killed() {
    let Some(store) = PodmanStore::new() else { return };
    let state = tempfile::tempdir().expect("a directory");
    let seconds = unique_seconds();
    let host = Host::start(&store, Some(state.path()), &seconds);
    asleep(&seconds);
    host.kill();
    until("its supervisors end", || (!is_alive(host.proxy.pid) && !is_alive(host.fork_server.pid)).then_some(()));
    assert_eq!(sleeping(&seconds), Vec::<u32>::new());
    store.assert_empty();
}

#[tokio::test]
async fn nothing_is_left_after_the_next_start_when_all_supervisors_are_killed() {
    let Some(store) = PodmanStore::new() else { return };
    let state = tempfile::tempdir().expect("a directory");
    let seconds = unique_seconds();
    let host = Host::start(&store, Some(state.path()), &seconds);
    let sleepers = asleep(&seconds);
    host.kill_all();
    assert_eq!(store.containers().len(), 1, "nobody was left to remove it");
    let manager = builder(&store).state_dir(state.path().to_owned()).build().await.expect("a manager");
    let recovered = manager.recovered();
    let [session] = recovered else { panic!("{recovered:?}") };
    let RecoveryOutcome::Ended(receipt) = &session.outcome else { panic!("{session:?}") };
    ended_all(&store, receipt, &sleepers, &seconds);
    manager.shutdown().await;
}

#[tokio::test]
async fn a_row_of_the_catalog_names_an_image() {
    let Some(store) = PodmanStore::new() else { return };
    let (image, tag) = IMAGE.split_once(':').expect("a tag");
    let spec = AgentSpec {
        image: image.to_owned(),
        tag: tag.to_owned(),
        ..AgentSpec::new("boxed", "command", &["sh", "-c", "echo \"first=$$ $0\"; cat"])
    };
    let manager = builder(&store).agent(spec).build().await.expect("a manager");
    let config = AgentSessionConfig {
        cwd: Some(store.work().display().to_string()),
        command: vec!["word".to_owned()],
        ..AgentSessionConfig::new("boxed")
    };
    let config = AgentSessionConfig { sandbox: store.shell("").sandbox, ..config };
    let session = soon("the start", manager.start_session(config)).await.expect("started");
    assert_eq!(said(&mut session.subscribe(), "first=1 ").await.trim(), "word");
    assert!(soon("the kill", session.kill(KillOptions::NOW)).await.expect("proven").is_empty());
    store.assert_empty();
    manager.shutdown().await;
}

#[tokio::test]
async fn what_contradicts_a_container_is_refused_before_anything_starts() {
    let Some(store) = PodmanStore::new() else { return };
    let state = tempfile::tempdir().expect("a directory");
    let manager = builder(&store).state_dir(state.path().to_owned()).build().await.expect("a manager");
    let with = |change: &dyn Fn(&mut AgentSessionConfig)| {
        let mut config = store.shell("true");
        change(&mut config);
        config
    };
    for (config, words) in [
        (with(&|c| c.sandbox.mode = Some(SandboxMode::Workspace)), "leave the sandbox out"),
        (
            with(&|c| c.sandbox.network = Some(NetworkAccess::Allow(vec!["example.com".parse().expect("a rule")]))),
            "`off` leaves it without a network",
        ),
        (with(&|c| c.containment = Some(proxy_manager::Containment::Strict)), "leave the containment out"),
        (with(&|c| c.hardening.landlock = Some(true)), "landlock"),
        (with(&|c| c.container.image = Some("-v/:/host".into())), "no name of an image"),
        (
            with(&|c| {
                c.container.image = None;
                c.container.engine = Some(ContainerEngine::Podman);
                c.sandbox.network = None;
            }),
            "without an image",
        ),
        (with(&|c| c.container.mounts = vec!["/nowhere/at/all:/x".parse().expect("a mount")]), "/nowhere/at/all"),
        (with(&|c| c.container.mounts = vec!["/etc:/".parse().expect("a mount")]), "root of the image"),
        (with(&|c| c.container.mounts = vec!["/etc:x".parse().expect("a mount")]), "no absolute path"),
        (
            with(&|c| {
                c.container.mounts = vec![format!("{}:/x", state.path().display()).parse().expect("a mount")];
            }),
            "hidden from every session",
        ),
        (
            with(&|c| {
                c.container.mounts = vec![format!("{}/log.db:/x", state.path().display()).parse().expect("a mount")];
            }),
            "container.mounts",
        ),
    ] {
        match manager.start_session(config).await {
            Err(Error::InvalidConfig { reason, field }) => {
                assert!(format!("{field}: {reason}").contains(words), "{field}: {reason}");
            }
            other => panic!("{words}: {other:?}"),
        }
    }
    let bare = sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent"))
        .engine_env([("PATH", "/nowhere")].into_iter().collect())
        .build()
        .await
        .expect("a manager");
    let error = bare.start_session(store.shell("true")).await.expect_err("no engine");
    assert!(error.to_string().contains("neither podman nor docker in PATH"), "{error}");
    store.assert_empty();
    bare.shutdown().await;
    manager.shutdown().await;
}

#[tokio::test]
async fn an_image_that_is_not_there_fails_the_start_with_the_engines_words() {
    let Some(store) = PodmanStore::new() else { return };
    let manager = builder(&store).build().await.expect("a manager");
    let mut config = store.shell("true");
    // Port 9 of this machine refuses.
    config.container.image = Some("127.0.0.1:9/no/such:1".to_owned());
    let session = soon("the start", manager.start_session(config)).await.expect("a command is ready at once");
    let mut events = session.subscribe();
    let said = event(&mut events, "podman's words", |envelope| match &envelope.event {
        Event::Log { text, .. } => text.lines().find(|line| line.starts_with("Error:")).map(str::to_owned),
        _ => None,
    })
    .await;
    assert!(said.contains("127.0.0.1:9/no/such:1"), "{said}");
    end(&mut session.subscribe()).await;
    store.assert_empty();
    manager.shutdown().await;
}

/// Runs a script by a shell beside the agent, to its end.
async fn shell_output(session: &SessionHandle, script: &str) -> (String, Option<ExitStatus>) {
    let mut viewer = session.shell().await.expect("connected");
    let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    viewer.send(&ToTerminal::Shell { argv, terminal: None, in_place: false }).await.expect("sent");
    let mut text = Vec::new();
    loop {
        match soon("a message", viewer.next()).await {
            Some(FromTerminal::Output { bytes, .. }) => text.extend(bytes),
            Some(FromTerminal::Ended { exit, .. }) => return (String::from_utf8(text).expect("text"), exit),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_shell_is_in_the_container_and_ends_with_it() {
    let Some(store) = PodmanStore::new() else { return };
    let manager = builder(&store).build().await.expect("a manager");
    let seconds = unique_seconds();
    let (session, sleepers) = start(&manager, &store, &seconds).await;
    let (text, exit) = shell_output(&session, "ls / | grep -c srv; pwd; exit 7").await;
    assert_eq!((text.as_str(), exit), (format!("0\n{}\n", store.work().display()).as_str(), Some(ExitStatus::Code(7))));
    let other = session.shell().await.expect("connected");
    let begun = async {
        let mut other = other;
        let argv = ["/bin/sh", "-c", &format!("setsid sleep {seconds} & echo begun; exec sleep {seconds}")];
        let argv = argv.map(str::to_owned).to_vec();
        other.send(&ToTerminal::Shell { argv, terminal: None, in_place: false }).await.expect("sent");
        assert!(matches!(soon("its word", other.next()).await, Some(FromTerminal::Output { .. })));
        other
    };
    let _other = begun.await;
    let all_sleepers = until("the shell sleeps too", || Some(sleeping(&seconds)).filter(|pids| pids.len() == EACH + 2));
    assert!(sleepers.iter().all(|pid| all_sleepers.contains(pid)));
    let receipt = session.kill(KillOptions::default()).await.expect("killed");
    ended_all(&store, &receipt, &all_sleepers, &seconds);
    manager.shutdown().await;
}

#[tokio::test]
async fn an_agent_in_a_container_has_its_terminal() {
    let Some(store) = PodmanStore::new() else { return };
    let manager = builder(&store).build().await.expect("a manager");
    let seconds = unique_seconds();
    let script = format!("[ -t 0 ] && [ -t 1 ] && touch is-terminal; exec sleep {seconds}");
    let terminal = Some(TerminalConfig { size: TerminalSize::default(), ..TerminalConfig::default() });
    let config = AgentSessionConfig { terminal, ..store.shell(&script) };
    let session = soon("the start", manager.start_session(config)).await.expect("started");
    let sleepers = until("it sleeps", || Some(sleeping(&seconds)).filter(|pids| pids.len() == 1));
    assert!(store.work().join("is-terminal").exists());
    let receipt = session.kill(KillOptions::default()).await.expect("killed");
    ended_all(&store, &receipt, &sleepers, &seconds);
    manager.shutdown().await;
}

#[tokio::test]
async fn a_container_outlives_its_host_and_the_next_one_ends_it() {
    let Some(store) = PodmanStore::new() else { return };
    let state = tempfile::tempdir().expect("a directory");
    let seconds = unique_seconds();
    let manager = builder(&store).state_dir(state.path().to_owned()).build().await.expect("a manager");
    let on_host_death = HostDeath::Detach { fetch_within_ms: 60_000, spool_bytes: 1 << 20 };
    let config = AgentSessionConfig { on_host_death, ..store.shell(&script(&seconds)) };
    let session = soon("the start", manager.start_session(config)).await.expect("started");
    let (id, sleepers) = (session.id().clone(), asleep(&seconds));
    assert_eq!(soon("the end of the host", manager.shutdown_detaching()).await, []);
    drop((session, manager));
    assert_eq!((sleeping(&seconds).len(), store.containers().len()), (EACH, 1), "it runs on");
    let manager = builder(&store).state_dir(state.path().to_owned()).build().await.expect("the next one");
    let session = manager.session(&id).expect("it has it");
    let receipt = soon("the kill", session.kill(KillOptions::default())).await.expect("killed");
    ended_all(&store, &receipt, &sleepers, &seconds);
    manager.shutdown().await;
}

/// A manager with the fake agent as the row `kept`, which keeps its conversations.
async fn keeping(store: &PodmanStore, state: &Path) -> ProxyManager {
    let kept = AgentSpec::new("kept", "acp", &[env!("CARGO_BIN_EXE_fake-agent"), "--store", "chats"]);
    builder(store).agent(kept).state_dir(state.to_owned()).build().await.expect("a manager")
}

/// What the agent says to a prompt, whichever container it is in.
async fn ask(manager: &ProxyManager, id: &SessionId, prompt: &str) -> String {
    let last = manager.session(id).expect("known").info().last_offset;
    let mut events = manager.subscribe_from(id, last).expect("known");
    let turn = soon("the prompt", manager.send_prompt(id, prompt, PromptMode::Refuse)).await.expect("prompted");
    let answer = said(&mut events, "").await.trim().to_owned();
    soon("the turn's end", turn.wait()).await.expect("ended");
    answer
}

#[tokio::test]
async fn a_session_in_a_container_is_suspended_and_goes_on_in_another() {
    let Some(store) = PodmanStore::new() else { return };
    let state = tempfile::tempdir().expect("a directory");
    let manager = keeping(&store, state.path()).await;
    // The agent is not static: this machine's libraries are mounted, with the folder that it is in.
    let programs = Path::new(env!("CARGO_BIN_EXE_fake-agent")).parent().expect("a folder");
    let places = [programs, Path::new("/lib"), Path::new("/lib64"), Path::new("/usr/lib")];
    let mount = |place: &Path| format!("{0}:{0}:ro", place.display()).parse().expect("a mount");
    let mounts = places.into_iter().filter(|place| place.exists()).map(mount).collect();
    let shell = store.shell("");
    let config = AgentSessionConfig {
        cwd: shell.cwd,
        sandbox: shell.sandbox,
        container: SessionContainer { mounts, ..shell.container },
        home: Some(Home::Own),
        ..AgentSessionConfig::new("kept")
    };
    let id = soon("the start", manager.start_session(config)).await.expect("started").id().clone();
    let first = store.containers();
    assert_eq!((first.len(), ask(&manager, &id, "history").await.as_str()), (1, "0 before"));
    soon("the suspension", manager.suspend_session(&id, KillOptions::NOW)).await.expect("suspended");
    store.assert_empty();
    soon("the resume", manager.resume_session(&id)).await.expect("resumed");
    let second = store.containers();
    assert!(second.len() == 1 && second != first, "{first:?} {second:?}");
    assert_eq!(ask(&manager, &id, "history").await, "1 before");

    // A prompt to the next manager resumes it, too.
    manager.shutdown().await;
    drop(manager);
    store.assert_empty();
    let manager = keeping(&store, state.path()).await;
    assert_eq!(ask(&manager, &id, "history").await, "2 before");
    assert_eq!(store.containers().len(), 1);
    let session = manager.session(&id).expect("it runs");
    let receipt = soon("the kill", session.kill(KillOptions::NOW)).await.expect("killed");
    assert!(receipt.is_empty() && receipt.container.as_ref().is_some_and(|gone| gone.is_removed), "{receipt:?}");
    store.assert_empty();
    manager.shutdown().await;
}

/// As `docs/containers.md` has it for a state directory that is lost.
#[test]
fn what_all_supervisors_left_is_found_and_ended_by_its_label() {
    let Some(store) = PodmanStore::new() else { return };
    let state = tempfile::tempdir().expect("a directory");
    let seconds = unique_seconds();
    let host = Host::start(&store, Some(state.path()), &seconds);
    asleep(&seconds);
    host.kill_all();
    let found = store.podman(&["ps", "--all", "--quiet", "--filter", "label=agent-proxy.session"]);
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    let [container] = found.lines().collect::<Vec<_>>()[..] else { panic!("{found:?}") };
    let removed = store.podman(&["rm", "--force", "--volumes", "--time", "0", container]);
    assert!(removed.status.success(), "{removed:?}");
    until("all sleepers end", || sleeping(&seconds).is_empty().then_some(()));
    store.assert_empty();
}
