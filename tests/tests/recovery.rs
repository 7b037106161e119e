//! All supervisors die at once; the next manager ends what they left, and nothing else.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use agent_proxy_tests::{
    sessions::{self, event, shell, soon},
    system::{self, until},
};
use proxy_manager::{
    AgentSessionConfig, Containment, ContainmentLayer, Error, Event, KillCause, KillOptions, LogError, MARKER,
    ManagerBuilder, ProcessId, ProxyManager, ReapedBy, Receipt, RecoveredSession, RecoveryOutcome, Signal,
};
use registry::{PidFd, SpawnInput, SpawnOutput, SpawnRequest, SpawnedProcess};

fn builder() -> ManagerBuilder {
    sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent"))
}

/// A directory of a test's own, removed with its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("agent-proxy-recovery-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("a scratch directory");
        Self(path)
    }

    fn journals(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.0.join("sessions")) else { return Vec::new() };
        entries.map(|entry| entry.expect("readable").path()).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn identify(pid: u32) -> ProcessId {
    registry::identify(pid).expect("alive")
}

fn signal(id: ProcessId, signal: Signal) {
    PidFd::open(id).expect("alive").signal(signal).expect("signalled");
}

/// A sleeping child of this test, ended with it.
struct Bystander(SpawnedProcess);

impl Bystander {
    fn new(env: &[(&str, &str)]) -> Self {
        let seconds = system::unique_seconds();
        let env = env.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let sleep = SpawnRequest { argv: vec!["sleep".into(), seconds.into()], env, ..SpawnRequest::new("/bin/sleep") };
        Self(registry::spawn(sleep).expect("started"))
    }

    fn id(&self) -> ProcessId {
        self.0.id()
    }

    fn is_alive(&self) -> bool {
        self.0.process.try_reap().expect("our child").is_none()
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        if self.0.process.signal(Signal::Kill).is_ok() {
            until("the bystander is dead", || self.0.process.try_reap().expect("our child"));
        }
    }
}

/// A host with sessions in a process of its own, whose supervisors this test kills.
struct Host {
    process: SpawnedProcess,
    /// Of the fork server and the proxies.
    supervisors: Vec<ProcessId>,
    /// What its sessions sleep for.
    seconds: String,
    /// What sleeps.
    sleeping: BTreeSet<u32>,
}

/// Processes of each session that sleep.
const EACH: usize = 5;

impl Host {
    fn start(count: usize, state: Option<&Path>, containment: Containment, parent: Option<&Path>) -> Self {
        let seconds = system::unique_seconds();
        Self::run(count, EACH, &seconds, Self::script(&seconds), state, containment, parent)
    }

    fn script(seconds: &str) -> String {
        // A child, one in a session of its own, a daemon, a daemon without environment, and the agent's own.
        format!(
            "sleep {seconds} & setsid sleep {seconds} & (setsid sleep {seconds} &) ; (env -i setsid sleep {seconds} &) ; \
             trap '' TERM; while :; do sleep {seconds}; done"
        )
    }

    /// Of sessions that run `script`, until `each` of them has so many processes that sleep for `seconds`.
    fn run(
        count: usize,
        each: usize,
        seconds: &str,
        script: String,
        state: Option<&Path>,
        containment: Containment,
        parent: Option<&Path>,
    ) -> Self {
        let program = env!("CARGO_BIN_EXE_test-host");
        let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        let mut argv =
            vec![program.to_owned(), env!("CARGO_BIN_EXE_proxy-child").to_owned(), count.to_string(), script];
        argv.extend([state.map(text).unwrap_or_default(), containment.to_string()]);
        argv.extend(parent.map(text));
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
        let supervisors: Vec<_> = line.split_whitespace().map(|pid| identify(pid.parse().expect("a pid"))).collect();
        assert_eq!(supervisors.len(), count + 1);
        let sleeping = until("all sleep", || {
            let sleeping: BTreeSet<_> = system::sleeping(seconds).into_iter().collect();
            (sleeping.len() == count * each).then_some(sleeping)
        });
        Self { process, supervisors, seconds: seconds.to_owned(), sleeping }
    }

    /// Waits until the journals name all that sleeps.
    fn recorded(&self, state: &Scratch) {
        until("all is written down", || {
            let text: String = state.journals().iter().filter_map(|path| fs::read_to_string(path).ok()).collect();
            self.sleeping.iter().all(|pid| text.contains(&format!("\n+{pid}@"))).then_some(())
        });
    }

    /// Kills host, fork server and proxies: none of them can do anything between the first kill and the last.
    fn kill_all_supervisors(&self) {
        let all: Vec<_> = [self.process.id()].iter().chain(&self.supervisors).copied().collect();
        for id in &all {
            signal(*id, Signal::Stop);
        }
        until("all stand still", || all.iter().all(|id| system::state(id.pid) == Some('T')).then_some(()));
        // The proxies first: a fork server's death continues them.
        for id in all.iter().rev() {
            signal(*id, Signal::Kill);
        }
        self.reap();
        until("the supervisors are dead", || (!all.iter().any(|id| system::is_alive(id.pid))).then_some(()));
    }

    fn reap(&self) {
        until("the host's status is there", || self.process.process.try_reap().expect("our child"));
    }

    fn survivors(&self) -> BTreeSet<u32> {
        system::sleeping(&self.seconds).into_iter().collect()
    }
}

impl Drop for Host {
    /// Whatever a failed test left.
    fn drop(&mut self) {
        for entry in fs::read_dir("/proc").expect("readable").flatten() {
            let Some(id) = entry.file_name().to_str().and_then(|name| registry::identify(name.parse().ok()?).ok())
            else {
                continue;
            };
            let line = registry::command_line(id.pid).unwrap_or_default();
            if line.iter().any(|word| word.contains(&self.seconds)) || self.supervisors.contains(&id) {
                let _ = PidFd::open(id).and_then(|process| process.signal(Signal::Kill));
            }
        }
        let _ = self.process.process.try_reap();
    }
}

/// What became of each session, which must have been ended in whole.
fn receipts(recovered: &[RecoveredSession]) -> Vec<&Receipt> {
    fn receipt(recovered: &RecoveredSession) -> &Receipt {
        let RecoveryOutcome::Ended(receipt) = &recovered.outcome else { panic!("{recovered:?}") };
        assert_eq!((recovered.session_id.as_ref(), recovered.damaged_lines), (Some(&receipt.session_id), 0));
        assert!(receipt.is_empty(), "{receipt:?}");
        assert_eq!((receipt.cause, receipt.unmarked), (KillCause::Recovery, Some(true)));
        assert!(receipt.processes.iter().all(|entry| entry.reaped_by == Some(ReapedBy::System)), "{receipt:?}");
        receipt
    }
    recovered.iter().map(receipt).collect()
}

/// The recovered sessions of `host`: all that slept is in their receipts, and nothing of anybody else.
fn ended_all(host: &Host, recovered: &[RecoveredSession]) {
    let receipts = receipts(recovered);
    let entries = receipts.iter().flat_map(|receipt| &receipt.processes);
    let pids: BTreeSet<_> = entries.clone().map(|entry| entry.id.pid).collect();
    assert!(host.sleeping.is_subset(&pids), "{:?} of {receipts:#?}", host.sleeping);
    for entry in entries {
        assert!(entry.command.as_ref().is_some_and(|line| line.contains(&host.seconds)), "a stranger: {entry:?}");
    }
    assert_eq!(host.survivors(), BTreeSet::new());
}

async fn next_manager(state: &Scratch) -> ProxyManager {
    soon("the next manager", builder().state_dir(state.0.clone()).containment(Containment::Baseline).build())
        .await
        .expect("built")
}

#[tokio::test]
async fn what_all_supervisors_leave_is_ended_by_the_next_manager() {
    let state = Scratch::new();
    let host = Host::start(2, Some(&state.0), Containment::Baseline, None);
    let (bystander, marked) = (Bystander::new(&[]), Bystander::new(&[(MARKER, "of another session")]));
    host.recorded(&state);
    host.kill_all_supervisors();
    assert_eq!(host.survivors(), host.sleeping, "this is what the state directory is for");
    let manager = next_manager(&state).await;
    assert_eq!(manager.recovered().len(), 2);
    ended_all(&host, manager.recovered());
    assert_eq!(state.journals(), [] as [PathBuf; 0]);
    assert!(bystander.is_alive() && marked.is_alive());
    // It works as any other, and leaves nothing to be recovered.
    let session = manager.start_session(shell("cat")).await.expect("started");
    assert_eq!(state.journals().len(), 1);
    session.kill(KillOptions::NOW).await.expect("killed");
    until("its journal is removed", || state.journals().is_empty().then_some(()));
    manager.start_session(shell("cat")).await.expect("started");
    manager.shutdown().await;
    assert_eq!(state.journals(), [] as [PathBuf; 0]);
    let manager = next_manager(&state).await;
    assert_eq!(manager.recovered(), []);
    manager.shutdown().await;
}

/// A process without environment that forks itself anew and ends, again and again: none of those that were recorded lives any more.
/// In the POSIX session that was recorded it is found; in one of its own each time it is not, and then nobody says that nothing is
/// left.
#[tokio::test]
async fn what_forks_while_nobody_watches_is_found_or_not_denied() {
    for leaves in [false, true] {
        let state = Scratch::new();
        let seconds = format!("0.3{}", system::unique_seconds());
        let (hop, enough) = (state.0.join("hop"), state.0.join("enough"));
        let own = if leaves { "setsid" } else { "" };
        let (path, end) = (hop.display(), enough.display());
        // It ends by itself after half a minute.
        let text = format!(
            "[ $1 -lt 100 ] && ! [ -e {end} ] || exit\nPATH=/usr/bin:/bin\nsleep {seconds}\n{own} /bin/sh {path} $(($1 + 1)) &\nexit\n",
        );
        fs::write(&hop, text).expect("written");
        let script = format!("env -i /bin/sh {path} 0 & exec cat");
        let host = Host::run(1, 1, &seconds, script, Some(&state.0), Containment::Baseline, None);
        until("it is written down", || {
            let text: String = state.journals().iter().filter_map(|path| fs::read_to_string(path).ok()).collect();
            (text.matches("\n+").count() >= 2).then_some(())
        });
        host.kill_all_supervisors();
        // Some hops that nobody sees.
        let mut seen = BTreeSet::new();
        until("it hops", || {
            seen.extend(host.survivors());
            (seen.len() >= 4).then_some(())
        });
        let manager = next_manager(&state).await;
        let hops = || system::with_word(&hop.display().to_string());
        let RecoveryOutcome::Ended(receipt) = &manager.recovered()[0].outcome else {
            panic!("{:?}", manager.recovered())
        };
        if leaves {
            assert!(!receipt.is_empty() && !manager.recovered()[0].is_empty(), "{receipt:?}");
            let named = |entry: &&proxy_manager::ReceiptEntry| {
                entry.command.as_ref().is_some_and(|line| line.contains(&*hop.to_string_lossy()))
            };
            assert!(receipt.unattributed.iter().any(|entry| named(&entry)), "{receipt:?}");
            assert!(receipt.to_string().contains("unknown origin"), "{receipt}");
        } else {
            assert_eq!((hops(), host.survivors()), (Vec::new(), BTreeSet::new()), "{receipt:?}");
            assert!(receipt.survivors.is_empty() && !receipt.processes.is_empty(), "{receipt:?}");
        }
        assert_eq!(state.journals(), [] as [PathBuf; 0], "all is told that can be known");
        fs::write(&enough, "").expect("written");
        until("its end", || hops().is_empty().then_some(()));
        manager.shutdown().await;
    }
}

#[tokio::test]
async fn supervisors_that_only_stand_still_are_ended_too() {
    let state = Scratch::new();
    let host = Host::start(2, Some(&state.0), Containment::Baseline, None);
    host.recorded(&state);
    // It would continue the fork server.
    signal(host.process.id(), Signal::Stop);
    for supervisor in &host.supervisors {
        signal(*supervisor, Signal::Stop);
    }
    until("they stand still", || host.supervisors.iter().all(|id| system::state(id.pid) == Some('T')).then_some(()));
    signal(host.process.id(), Signal::Kill);
    host.reap();
    let manager = next_manager(&state).await;
    ended_all(&host, manager.recovered());
    let ended: BTreeSet<_> = manager.recovered().iter().flat_map(|recovered| &recovered.supervisors).collect();
    assert!(host.supervisors.iter().all(|supervisor| ended.contains(supervisor)), "{ended:?}");
    assert!(!host.supervisors.iter().any(|supervisor| system::is_alive(supervisor.pid)));
    manager.shutdown().await;
}

#[tokio::test]
async fn supervisors_that_live_end_their_sessions_in_order_before_the_next_manager_begins() {
    let state = Scratch::new();
    let host = Host::start(1, Some(&state.0), Containment::Baseline, None);
    signal(host.process.id(), Signal::Kill);
    host.reap();
    let manager = next_manager(&state).await;
    assert_eq!(receipts(manager.recovered()).len(), 1);
    assert!(manager.recovered()[0].supervisors.is_empty(), "{:?}", manager.recovered());
    assert_eq!(host.survivors(), BTreeSet::new());
    manager.shutdown().await;
}

#[tokio::test]
async fn a_living_owner_keeps_its_sessions() {
    let state = Scratch::new();
    let host = Host::start(1, Some(&state.0), Containment::Baseline, None);
    host.recorded(&state);
    let refused = builder().state_dir(state.0.clone()).build().await;
    let holder = format!("process {}", host.process.id().pid);
    match refused {
        Err(Error::StateDirInUse { directory, owner }) => assert_eq!((directory, owner), (state.0.clone(), holder)),
        other => panic!("{other:?}"),
    }
    assert_eq!(host.survivors(), host.sleeping);
    host.kill_all_supervisors();
    let manager = next_manager(&state).await;
    ended_all(&host, manager.recovered());
    manager.shutdown().await;
}

/// A journal of a session that never was, less its lines of processes.
async fn forged(state: &Scratch, change: impl FnOnce(&str) -> String) -> (PathBuf, String) {
    let manager = next_manager(state).await;
    let session = manager.start_session(shell("cat")).await.expect("started");
    let path = state.journals().pop().expect("a journal");
    let text = fs::read_to_string(&path).expect("readable");
    session.kill(KillOptions::NOW).await.expect("killed");
    manager.shutdown().await;
    (path, change(text.lines().next().expect("a header")))
}

#[tokio::test]
async fn strangers_with_a_recorded_pid_are_not_touched() {
    let state = Scratch::new();
    const MARKED: &str = "a-marker-that-is-older-than-its-session";
    let old = Bystander::new(&[(MARKER, MARKED)]);
    // Start times count in ticks of 10 ms: the session begins a later one than that, and the stranger a later one again.
    let later = |than: u64| until("a later tick", || Some(registry::now_in_ticks()).filter(|now| *now > than));
    let since = later(old.id().start_time);
    let (path, header) = forged(&state, |header| {
        let forge = |word: &str| match word.split_once('=') {
            Some(("marker", _)) => format!("marker={MARKED}"),
            Some(("since", _)) => format!("since={since}"),
            _ => word.to_owned(),
        };
        header.split(' ').map(forge).collect::<Vec<_>>().join(" ")
    })
    .await;
    later(since + 1);
    let stranger = Bystander::new(&[]);
    let ProcessId { pid, start_time } = stranger.id();
    // The pid, with start times that a process before it may have had.
    let lines = format!("proxy {pid}@{}\n+{pid}@{}\n+{pid}@{}\n", start_time - 1, start_time - 1, start_time + 1);
    fs::write(&path, format!("{header}\n{lines}")).expect("written");
    let manager = next_manager(&state).await;
    let [recovered] = manager.recovered() else { panic!("{:?}", manager.recovered()) };
    let RecoveryOutcome::Ended(receipt) = &recovered.outcome else { panic!("{recovered:?}") };
    // What was recorded is gone, so that there is no proof while other tests have orphans: only what it ended counts here.
    assert_eq!((receipt.processes.as_slice(), receipt.survivors.as_slice()), (&[][..], &[][..]));
    assert!(stranger.is_alive() && old.is_alive());
    manager.shutdown().await;
    // The very process, as another PID namespace or another boot may have numbered it.
    for (own, others) in [("pidns=pid:[", "pidns=pid:[9"), ("boot=", "boot=0")] {
        fs::write(&path, format!("{}\n+{pid}@{start_time}\n", header.replace(own, others))).expect("written");
        let manager = next_manager(&state).await;
        assert_eq!(manager.recovered().len(), 1);
        assert!(stranger.is_alive(), "{:?}", manager.recovered());
        assert_eq!(state.journals(), [] as [PathBuf; 0]);
        manager.shutdown().await;
    }
}

#[tokio::test]
async fn a_log_that_cannot_be_used_is_told_and_nothing_is_started() {
    let state = Scratch::new();
    next_manager(&state).await.shutdown().await;
    let log = state.0.join("log.sqlite");
    let whole = fs::read(&log).expect("a log");
    let mut torn = whole.clone();
    torn[100..2000].fill(0xa5);
    for (bytes, says) in [(b"# Notes\n".repeat(400), "it is no event log"), (torn, "move the file away")] {
        fs::write(&log, &bytes).expect("written");
        let error = builder().state_dir(state.0.clone()).build().await.expect_err("refused");
        assert!(matches!(error, Error::Log(LogError::Corrupt { .. })), "{error}");
        let text = error.to_string();
        assert!(text.contains(log.to_str().expect("UTF-8")) && text.contains(says), "{text}");
    }
    // The directory is free again, and so is what it was good for.
    fs::write(&log, whole).expect("written");
    next_manager(&state).await.shutdown().await;
}

#[tokio::test]
async fn damaged_journals_are_told_and_what_they_still_say_is_done() {
    let state = Scratch::new();
    let host = Host::start(1, Some(&state.0), Containment::Baseline, None);
    host.recorded(&state);
    host.kill_all_supervisors();
    let path = state.journals().pop().expect("a journal");
    let mut bytes = fs::read(&path).expect("readable");
    let at = bytes.iter().position(|b| *b == b'\n').expect("a header") + 1;
    bytes.splice(at..at, *b"+nobody@\n\xff\xfe\0\n");
    bytes.extend(b"+12");
    fs::write(&path, bytes).expect("written");
    fs::write(state.0.join("sessions/garbage.journal"), [0; 4096]).expect("written");
    let manager = next_manager(&state).await;
    let [garbage, session] = manager.recovered() else { panic!("{:?}", manager.recovered()) };
    assert!(matches!(garbage.outcome, RecoveryOutcome::Dropped { .. }), "{garbage:?}");
    assert_eq!(session.damaged_lines, 3);
    assert!(session.is_empty() && host.survivors().is_empty(), "{session:?}");
    manager.shutdown().await;
}

#[tokio::test]
async fn a_session_goes_on_where_nothing_can_be_written_down() {
    let state = Scratch::new();
    let manager = next_manager(&state).await;
    fs::create_dir(state.0.join("sessions/s.journal.draft")).expect("in the way");
    let config = AgentSessionConfig { session_id: "s".parse().expect("valid"), ..shell("cat") };
    let session = manager.start_session(config).await.expect("started all the same");
    let mut events = session.subscribe();
    let told = event(&mut events, "the failure", |envelope| match &envelope.event {
        Event::ActionFailed { action, .. } => Some(action.clone()),
        _ => None,
    })
    .await;
    assert!(told.contains("state directory"), "{told}");
    session.ping().await.expect("it works");
    session.kill(KillOptions::NOW).await.expect("killed");
    manager.shutdown().await;
}

/// A directory for the groups of this test alone: other managers sweep what they find beside theirs.
struct CgroupParent(PathBuf);

impl CgroupParent {
    /// `None` where there are no cgroups to be had.
    async fn new(test: &str) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let manager = builder().build().await.expect("built");
        let cgroup = manager.capabilities().await.expect("tried").cgroup;
        manager.shutdown().await;
        match cgroup {
            Err(missing) => {
                system::not_run(format_args!("{test}: {missing}"));
                None
            }
            Ok(path) => {
                let name = format!("recovery-test.{}.{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
                let path = path.parent().expect("a parent").join(name);
                fs::create_dir(&path).expect("made");
                Some(Self(path))
            }
        }
    }

    fn managers(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.0).expect("readable").flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    }
}

impl Drop for CgroupParent {
    /// With whatever a failed test left.
    fn drop(&mut self) {
        for manager in self.managers() {
            let sessions = fs::read_dir(&manager).into_iter().flatten().flatten();
            for directory in sessions.map(|entry| entry.path()).filter(|path| path.is_dir()).chain([manager]) {
                let _ = fs::remove_dir(directory);
            }
        }
        let _ = fs::remove_dir(&self.0);
    }
}

#[tokio::test]
async fn groups_of_all_dead_supervisors_are_emptied_and_removed() {
    let Some(parent) = CgroupParent::new("groups of dead supervisors, with a state directory").await else { return };
    let state = Scratch::new();
    let host = Host::start(2, Some(&state.0), Containment::Cgroup, Some(&parent.0));
    let bystander = Bystander::new(&[]);
    host.kill_all_supervisors();
    assert_eq!(host.survivors(), host.sleeping);
    let builder = builder().state_dir(state.0.clone()).cgroup_parent(parent.0.clone());
    let manager = soon("the next manager", builder.build()).await.expect("built");
    let ours = manager.capabilities().await.expect("tried").cgroup.expect("it had one");
    assert_eq!(parent.managers(), [ours]);
    ended_all(&host, manager.recovered());
    for receipt in receipts(manager.recovered()) {
        assert_eq!((receipt.cgroup_empty, receipt.layers.contains(&ContainmentLayer::Cgroup)), (Some(true), true));
    }
    assert!(bystander.is_alive());
    manager.shutdown().await;
    assert_eq!(parent.managers(), [] as [PathBuf; 0]);
}

#[tokio::test]
async fn groups_are_found_without_a_state_directory_but_not_those_of_the_living() {
    let Some(parent) = CgroupParent::new("groups of dead supervisors, without a state directory").await else { return };
    let host = Host::start(1, None, Containment::Cgroup, Some(&parent.0));
    let living = Host::start(1, None, Containment::Cgroup, Some(&parent.0));
    // The fork server alone still has the lock.
    let (fork_server, proxy) = (host.supervisors[0], host.supervisors[1]);
    // The host first: it would continue the fork server.
    for id in [host.process.id(), fork_server, proxy] {
        signal(id, Signal::Stop);
    }
    signal(host.process.id(), Signal::Kill);
    host.reap();
    let next =
        || async { soon("the next manager", builder().cgroup_parent(parent.0.clone()).build()).await.expect("built") };
    let manager = next().await;
    assert_eq!(manager.recovered(), []);
    assert_eq!(host.survivors(), host.sleeping);
    manager.shutdown().await;
    // The fork server's death would continue it.
    for id in [proxy, fork_server] {
        signal(id, Signal::Kill);
    }
    until("both are dead", || (![fork_server, proxy].iter().any(|id| system::is_alive(id.pid))).then_some(()));
    let manager = next().await;
    let [recovered] = manager.recovered() else { panic!("{:?}", manager.recovered()) };
    let RecoveryOutcome::Swept { ended, .. } = &recovered.outcome else { panic!("{recovered:?}") };
    assert!(recovered.is_empty(), "{recovered:?}");
    let pids: BTreeSet<_> = ended.iter().map(|(id, _)| id.pid).collect();
    assert!(host.sleeping.is_subset(&pids), "{recovered:?}");
    assert_eq!(host.survivors(), BTreeSet::new());
    assert_eq!(living.survivors(), living.sleeping, "a living manager's");
    manager.shutdown().await;
    signal(living.process.id(), Signal::Kill);
    living.reap();
    until("the living one's sessions are ended", || living.survivors().is_empty().then_some(()));
    let fork_server = living.supervisors[0];
    until("its fork server is gone", || (!system::is_alive(fork_server.pid)).then_some(()));
    // It was the last to have the lock, and has removed the directory.
    assert_eq!(parent.managers(), [] as [PathBuf; 0]);
}

#[tokio::test]
async fn nothing_of_a_strict_session_outlives_its_supervisors() {
    let manager = builder().build().await.expect("built");
    let strict = manager.capabilities().await.expect("tried").strict;
    manager.shutdown().await;
    if let Err(missing) = strict {
        return system::not_run(format_args!("strict sessions after the death of all supervisors: {missing}"));
    }
    let state = Scratch::new();
    // Strict sessions have a group too, where there are any.
    let parent = CgroupParent::new("groups of strict sessions").await;
    let parent = parent.as_ref().map(|parent| parent.0.as_path());
    let host = Host::start(2, Some(&state.0), Containment::Strict, parent);
    host.kill_all_supervisors();
    until("nothing is left, before any other manager", || host.survivors().is_empty().then_some(()));
    let builder = builder().state_dir(state.0.clone()).containment(Containment::Baseline);
    let builder = parent.into_iter().fold(builder, |builder, parent| builder.cgroup_parent(parent.to_owned()));
    let manager = soon("the next manager", builder.build()).await.expect("built");
    assert_eq!(receipts(manager.recovered()).len(), 2);
    manager.shutdown().await;
}

#[tokio::test]
async fn what_cannot_be_had_is_an_error_and_never_a_step_down() {
    let scratch = Scratch::new();
    let nowhere = || builder().cgroup_parent(scratch.0.clone());
    let reason = |result: Result<_, Error>| match result {
        Err(Error::ContainmentUnavailable { containment: Containment::Cgroup, reason }) => {
            assert!(reason.contains(scratch.0.to_str().expect("UTF-8")), "{reason}");
        }
        Err(other) => panic!("{other:?}"),
        Ok(()) => panic!("a step down"),
    };
    reason(nowhere().containment(Containment::Cgroup).build().await.map(|_| ()));
    let manager = nowhere().build().await.expect("the baseline will do");
    let wanted = |containment| AgentSessionConfig { containment: Some(containment), ..shell("cat") };
    reason(manager.start_session(wanted(Containment::Cgroup)).await.map(|_| ()));
    assert!(manager.list_sessions().is_empty());
    manager.start_session(wanted(Containment::Auto)).await.expect("the baseline will do");
    manager.shutdown().await;
}
