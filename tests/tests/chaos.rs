//! Random starts, prompts, kills, and SIGKILLs of any of our processes: nothing may be left. `tests/full` runs it.
//!
//! `AGENT_PROXY_CHAOS_STEPS` (10,000) and `AGENT_PROXY_CHAOS_SEED` (from the clock) choose the run; both are printed.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use agent_proxy_tests::{
    sessions::{all, builder, fake, soon},
    system::{cgroups_of, sleeping, unique_seconds, until, with_marker},
};
use proxy_manager::{
    AbortPolicy, AgentSessionConfig, Containment, Deadlines, EndReason, Event, KillOptions, ProcessId, PromptMode,
    ProxyManager, SessionHandle, Signal,
};
use registry::{Input, Output, PidFd, Spawn};

/// Sessions alive at once, at most.
const SESSIONS: usize = 10;
/// How long a proxy that lost host or guard may take to end its session.
const LONELY: Duration = Duration::from_secs(5);

/// SplitMix64: the same seed, the same run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % bound as u64).expect("small")
    }
}

struct Live {
    session: SessionHandle,
    /// What its processes sleep for; no other session's do.
    seconds: String,
}

struct Chaos {
    random: Random,
    state_dir: PathBuf,
    manager: Option<ProxyManager>,
    /// What this machine offers.
    layers: Vec<Containment>,
    live: Vec<Live>,
    counts: BTreeMap<&'static str, u32>,
    ids: Vec<String>,
}

async fn manager(state_dir: &Path) -> ProxyManager {
    let deadlines = Deadlines { wedged: Duration::from_millis(100), ..Deadlines::default() };
    let builder = builder(env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent")).deadlines(deadlines);
    soon("a manager", builder.ended_sessions(4).state_dir(state_dir.into()).build()).await.expect("a manager")
}

/// Sends a signal to a process of ours, if it is still that process.
fn signal(process: Option<ProcessId>, signal: Signal) {
    if let Some(process) = process.and_then(|id| PidFd::open(id).ok()) {
        // It may have ended in this very moment.
        let _ = process.signal(signal);
    }
}

impl Chaos {
    fn manager(&self) -> &ProxyManager {
        self.manager.as_ref().expect("a manager")
    }

    async fn step(&mut self) {
        let name = match self.random.below(1000) {
            _ if self.live.is_empty() => "start",
            0..300 if self.live.len() < SESSIONS => "start",
            0..560 => "prompt",
            560..600 => "abort",
            600..800 => "kill",
            800..870 => "SIGKILL proxy",
            870..930 => "SIGKILL agent",
            930..960 => "SIGSTOP proxy, kill",
            960..990 => "SIGKILL proxy and agent",
            990..997 => "kill all",
            997..999 => "SIGKILL fork server",
            _ => "SIGKILL host and all",
        };
        *self.counts.entry(name).or_default() += 1;
        let at = self.random.below(self.live.len().max(1));
        match name {
            "start" => self.start().await,
            "prompt" => self.prompt(at).await,
            "abort" => self.abort(at).await,
            "kill all" => {
                let Live { session, seconds } = &self.live[at];
                let receipt = soon("kill_all", session.kill_all(KillOptions::NOW)).await.expect("proven");
                let left = sleeping(seconds);
                assert!(receipt.is_empty() && left.is_empty(), "{left:?} after {receipt:?}");
            }
            "SIGKILL fork server" => self.lose_the_fork_server().await,
            "SIGKILL host and all" => self.lose_a_host().await,
            name => {
                let live = self.live.swap_remove(at);
                let info = live.session.info();
                match name {
                    "SIGKILL proxy" => signal(info.proxy, Signal::Kill),
                    "SIGKILL agent" => signal(info.agent_process, Signal::Kill),
                    "SIGKILL proxy and agent" => {
                        signal(info.proxy, Signal::Kill);
                        signal(info.agent_process, Signal::Kill);
                    }
                    _ => {
                        if name.starts_with("SIGSTOP") {
                            signal(info.proxy, Signal::Stop);
                        }
                        soon("the kill", live.session.kill(KillOptions::NOW)).await.expect("proven");
                    }
                }
                see_off(&live).await;
            }
        }
    }

    async fn start(&mut self) {
        let containment = Some(self.layers[self.random.below(self.layers.len())]);
        let config = AgentSessionConfig { containment, ..fake() };
        let session = soon("a start", self.manager().start_session(config)).await.expect("started");
        self.ids.push(session.id().to_string());
        self.live.push(Live { session, seconds: unique_seconds() });
    }

    async fn prompt(&mut self, at: usize) {
        let kinds = ["spawn exec", "setsid exec", "daemon exec", "ignore-term", "run true #"];
        let kind = kinds[self.random.below(kinds.len())];
        let Live { session, seconds } = &self.live[at];
        let script = format!("{kind} sleep {seconds}");
        let turn = soon("a prompt", session.prompt(script, PromptMode::Refuse)).await.expect("prompted");
        soon("its turn", turn.wait()).await.expect("ended");
    }

    async fn abort(&mut self, at: usize) {
        let Live { session, seconds } = &self.live[at];
        let before = sleeping(seconds);
        let script = format!("daemon exec sleep {seconds}\nwait");
        let turn = soon("a prompt", session.prompt(script, PromptMode::Refuse)).await.expect("prompted");
        soon("the abort", session.abort(AbortPolicy::KillTurnProcesses)).await.expect("proven");
        soon("the turn's end", turn.wait()).await.expect("ended");
        let after = sleeping(seconds);
        assert!(before.iter().all(|pid| after.contains(pid)), "{before:?} before, {after:?} after the abort");
    }

    /// Another host, and all of its supervisors, are gone at once; what they leave is its successor's to end.
    async fn lose_a_host(&mut self) {
        let (seconds, directory) = (unique_seconds(), self.state_dir.join("host"));
        let script = format!("setsid sleep {seconds} & sleep {seconds} & echo; wait");
        let layer = self.layers[self.random.below(self.layers.len())].to_string();
        let path = directory.display().to_string();
        let words = ["test-host", env!("CARGO_BIN_EXE_proxy-child"), "3", &script, &path, &layer];
        let program = Spawn {
            argv: words.map(Into::into).to_vec(),
            stdin: Input::Pipe,
            stdout: Output::Pipe,
            stderr: Output::Inherit,
            ..Spawn::new(env!("CARGO_BIN_EXE_test-host"))
        };
        let host = registry::spawn(program).expect("started");
        let stdout = host.stdout.expect("piped");
        rustix::io::ioctl_fionbio(&stdout, false).expect("blocking");
        let mut line = String::new();
        BufReader::new(fs::File::from(stdout)).read_line(&mut line).expect("its pids");
        let supervisors = line.split_whitespace().map(|pid| registry::identify(pid.parse().expect("a pid")));
        let supervisors: Vec<_> = supervisors.map(|id| id.expect("alive")).chain([host.process.id()]).collect();
        until("all of it runs", || (sleeping(&seconds).len() == 6).then_some(()));
        for way in [Signal::Stop, Signal::Kill] {
            supervisors.iter().for_each(|id| signal(Some(*id), way));
        }
        until("the host's end", || host.process.try_reap().expect("our child"));
        let successor = manager(&directory).await;
        let left = sleeping(&seconds);
        assert!(left.is_empty(), "{left:?} of {layer} after {:?}", successor.recovered());
        soon("the shutdown", successor.shutdown()).await;
        drop(successor);
        fs::remove_dir_all(&directory).expect("removed");
    }

    /// The manager is of no use then: another takes its place, and its state directory.
    async fn lose_the_fork_server(&mut self) {
        let old = self.manager.take().expect("a manager");
        signal(Some(old.fork_server()), Signal::Kill);
        for live in std::mem::take(&mut self.live) {
            see_off(&live).await;
        }
        soon("the shutdown", old.shutdown()).await;
        drop(old);
        self.manager = Some(manager(&self.state_dir).await);
    }
}

/// Waits for a session's end, which leaves nothing.
async fn see_off(live: &Live) {
    let events = all(&mut live.session.subscribe()).await;
    let last = events.last().expect("the end");
    let Event::SessionEnded { reason, receipt } = &last.event else { panic!("no end: {last:?}") };
    match receipt {
        Some(receipt) => assert!(receipt.is_empty(), "{reason}: {receipt:?}"),
        None => assert!(matches!(reason, EndReason::ForkServerDied), "{reason}"),
    }
    let began = Instant::now();
    while !sleeping(&live.seconds).is_empty() {
        // Without a receipt its proxy may still be at it.
        assert!(receipt.is_none() && began.elapsed() < LONELY, "{reason}: {receipt:?}");
        tokio::task::yield_now().await;
    }
}

async fn layers(manager: &ProxyManager) -> Vec<Containment> {
    let offered = manager.capabilities().await.expect("probed");
    let mut layers = vec![Containment::Baseline];
    layers.extend(offered.cgroup.is_ok().then_some(Containment::Cgroup));
    layers.extend(offered.strict.is_ok().then_some(Containment::Strict));
    layers
}

fn open_fds() -> usize {
    fs::read_dir("/proc/self/fd").expect("own fds").count()
}

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.flatten().map(|entry| entry.path()).collect()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[tokio::test]
async fn nothing_is_left_whatever_dies() {
    let steps = number("AGENT_PROXY_CHAOS_STEPS").unwrap_or(10_000);
    let clock = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
    let seed = number("AGENT_PROXY_CHAOS_SEED").unwrap_or_else(clock);
    println!("chaos: seed {seed}, {steps} steps");
    let state_dir = std::env::temp_dir().join(format!("agent-proxy-chaos-{}", std::process::id()));
    // The first manager opens what stays open.
    let first = manager(&state_dir).await;
    let layers = layers(&first).await;
    first.shutdown().await;
    drop(first);
    let fds = open_fds();
    let began = Instant::now();
    let mut chaos = Chaos {
        random: Random(seed),
        layers,
        manager: Some(manager(&state_dir).await),
        state_dir,
        live: Vec::new(),
        counts: BTreeMap::new(),
        ids: Vec::new(),
    };
    for _ in 0..steps {
        chaos.step().await;
    }
    let Chaos { state_dir, manager, live, counts, ids, .. } = chaos;
    let manager = manager.expect("a manager");
    for receipt in soon("the shutdown", manager.shutdown()).await {
        assert!(receipt.is_empty(), "{receipt:?}");
    }
    for live in &live {
        see_off(live).await;
    }
    drop((live, manager));
    let marked: Vec<_> = ids.iter().rev().take(500).filter(|id| !with_marker(id).is_empty()).collect();
    assert!(marked.is_empty(), "sessions with processes: {marked:?}");
    assert_eq!(open_fds(), fds, "descriptors");
    let journals = files_below(&state_dir.join("sessions"));
    assert!(journals.is_empty(), "{journals:?}");
    fs::remove_dir_all(&state_dir).expect("removed");
    let groups = cgroups_of(std::process::id());
    assert!(groups.is_empty(), "{groups:?}");
    println!("chaos: {} sessions in {:?}; {counts:?}; nothing left", ids.len(), began.elapsed());
}
