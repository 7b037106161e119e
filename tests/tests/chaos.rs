//! Random starts, prompts, kills, and SIGKILLs of any of our processes, also in the midst of a turn, a start and a kill: no
//! process, descriptor, group or file may be left. `tests/full` runs it.
//!
//! `AGENT_PROXY_CHAOS_STEPS` (10,000) and `AGENT_PROXY_CHAOS_SEED` (from the clock) choose the run; both are printed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use agent_proxy_tests::{
    sessions::{builder, event, fake, soon},
    system::{cgroups_of, is_alive, sleeping, unique_seconds, until, with_marker},
};
use proxy_manager::{
    AbortPolicy, AgentSessionConfig, Containment, Deadlines, Error, Event, KillOptions, KillScope, ProcessId,
    PromptMode, ProxyManager, Receipt, SessionHandle, SessionState, Signal, Turn,
};
use registry::{PidFd, SpawnInput, SpawnOutput, SpawnRequest};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use tokio::task::JoinHandle;

/// Sessions alive at once, at most.
const SESSIONS: usize = 10;
/// Longest time of a kill beyond its grace.
const CALL: Duration = Duration::from_secs(3);

/// What may happen beside what users do, by its share of 1,000 steps. Others can be added here: see [`Chaos::fault`].
const FAULTS: &[(usize, Fault)] = &[
    (70, Fault::Strike(&[(Whom::Proxy, How::Kill)])),
    (60, Fault::Strike(&[(Whom::Agent, How::Kill)])),
    (30, Fault::Strike(&[(Whom::Proxy, How::Kill), (Whom::Agent, How::Kill)])),
    (20, Fault::Kill(&[(Whom::Proxy, How::Stop)])),
    (10, Fault::Kill(&[(Whom::ForkServer, How::Stop)])),
    (10, Fault::Kill(&[(Whom::ForkServer, How::Stop), (Whom::Proxy, How::Stop)])),
    (8, Fault::Strike(&[(Whom::ForkServer, How::Stop), (Whom::Proxy, How::Kill)])),
    (15, Fault::Kill(&[(Whom::Proxy, How::Limit)])),
    (15, Fault::Strike(&[(Whom::ForkServer, How::Limit), (Whom::Proxy, How::Kill)])),
    (8, Fault::Kill(&[(Whom::Proxy, How::IntoGroup)])),
    (
        8,
        Fault::Kill(&[(Whom::Proxy, How::IntoGroup), (Whom::ForkServer, How::IntoGroup), (Whom::Host, How::IntoGroup)]),
    ),
    (8, Fault::Kill(&[(Whom::Proxy, How::Freeze)])),
    (4, Fault::Strike(&[(Whom::ForkServer, How::Freeze), (Whom::Proxy, How::Kill)])),
    (4, Fault::LoseForkServer(&[(Whom::ForkServer, How::Kill)])),
    (6, Fault::LoseForkServer(&[(Whom::ForkServer, How::Kill), (Whom::Proxy, How::Kill)])),
    (3, Fault::LoseForkServer(&[(Whom::ForkServer, How::Kill), (Whom::AllProxies, How::Kill)])),
    (3, Fault::LoseForkServer(&[(Whom::ForkServer, How::HardLimit), (Whom::Proxy, How::Kill)])),
    (2, Fault::LoseHost),
];

/// Whom something happens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whom {
    Agent,
    Proxy,
    AllProxies,
    ForkServer,
    /// This process.
    Host,
}

/// What happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Kill,
    Stop,
    /// A soft limit is lowered, as any process of the user may.
    Limit,
    /// The hard limit too.
    HardLimit,
    /// Root moves it into the session's own cgroup. Nothing happens where there is none.
    IntoGroup,
    /// The same, and the cgroup is frozen.
    Freeze,
}

/// Resources that are limited, and how far.
const LIMITS: [(Resource, u64); 5] =
    [(Resource::Nofile, 0), (Resource::Nofile, 4), (Resource::Cpu, 0), (Resource::Fsize, 0), (Resource::Nproc, 0)];

/// One way for things to go wrong.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// A session ends by what happens, in the order given, and is told.
    Strike(&'static [(Whom, How)]),
    /// A session is killed by its user after that.
    Kill(&'static [(Whom, How)]),
    /// The fork server ends by it, and all sessions with it; another one takes its place.
    LoseForkServer(&'static [(Whom, How)]),
    /// Another host dies, alone or with all that it has.
    LoseHost,
}

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

/// Tells which step it was that panics.
struct TellStep(String);

impl Drop for TellStep {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "chaos: in step {:?}", self.0);
        }
    }
}

struct Live {
    session: SessionHandle,
    /// What its processes sleep for; no other session's do.
    seconds: String,
    /// One that was left open: it ends when it is aborted, or with the session.
    turn: Option<Turn>,
}

type Starting = JoinHandle<proxy_manager::Result<SessionHandle>>;
type Killing = JoinHandle<proxy_manager::Result<Receipt>>;

struct Chaos {
    random: Random,
    state_dir: PathBuf,
    manager: Option<ProxyManager>,
    /// What this machine offers.
    layers: Vec<Containment>,
    live: Vec<Live>,
    /// Nobody waits for these yet.
    starting: Vec<Starting>,
    /// Something happened to the fork server since the first of these began.
    is_fork_server_struck: bool,
    killing: Vec<(Killing, Live)>,
    /// Every process of ours that there was: proxies and fork servers carry no marker.
    ours: Vec<ProcessId>,
    /// Of the manager's fork server, without a session; as root.
    fds: Option<usize>,
    counts: BTreeMap<String, u32>,
    ids: Vec<String>,
    /// The longest kill, and in which step.
    longest: (Duration, String),
    /// Receipts without proof, since strangers' processes may have been the session's.
    doubtful: u32,
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

/// Moves a process into the cgroup of another's session, and freezes that where it is asked for. `false` where the session has none of
/// its own, or the kernel refuses.
fn move_to_group_of(victim: ProcessId, agent: ProcessId, how: How) -> bool {
    let group = |pid: u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("0::/")).map(str::to_owned)
    };
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("readable");
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 ")).and_then(|line| line.split(' ').nth(4));
    let (Some(mount), Some(own)) = (mount, group(agent.pid).filter(|own| own.contains("/s-"))) else { return false };
    let own = Path::new(mount).join(own);
    let moved = fs::write(own.join("cgroup.procs"), victim.pid.to_string()).is_ok();
    moved && (how != How::Freeze || fs::write(own.join("cgroup.freeze"), "1").is_ok())
}

impl Chaos {
    fn manager(&self) -> &ProxyManager {
        self.manager.as_ref().expect("a manager")
    }

    async fn step(&mut self) {
        // The users' own steps come first; the rest is faults.
        let faults: usize = FAULTS.iter().map(|(share, _)| share).sum();
        let at = self.random.below(1000);
        if at >= 1000 - faults && !self.live.is_empty() {
            let mut left = at - (1000 - faults);
            let fault = FAULTS.iter().find(|(share, _)| {
                let is_it = left < *share;
                left = left.saturating_sub(*share);
                is_it
            });
            let (_, fault) = fault.expect("the shares add up");
            let name = format!("{fault:?}");
            *self.counts.entry(name.clone()).or_default() += 1;
            let _told = TellStep(name.clone());
            self.fault(*fault, &name).await;
        } else {
            self.use_it(at * 750 / (1000 - faults)).await;
        }
        self.gather(false).await;
    }

    /// What users do.
    async fn use_it(&mut self, share: usize) {
        let name = match share {
            _ if self.live.is_empty() => "start",
            0..200 if self.all() < SESSIONS => "start",
            200..300 if self.all() < SESSIONS => "start, not awaited",
            300..320 if self.all() < SESSIONS => "start, SIGKILL proxy",
            0..450 => "prompt",
            450..560 => "prompt, not awaited",
            560..600 => "abort",
            600..690 => "kill",
            690..720 => "kill, not awaited",
            720..745 => "kill, SIGKILL proxy",
            _ => "kill all",
        };
        *self.counts.entry(name.to_owned()).or_default() += 1;
        let _told = TellStep(name.to_owned());
        let at = self.random.below(self.live.len().max(1));
        match name {
            "start" => self.start().await,
            "start, not awaited" => {
                let start = self.begin_start();
                self.starting.push(start);
                // It gets as far as it gets.
                self.linger().await;
            }
            "start, SIGKILL proxy" => self.lose_a_starting_proxy().await,
            "prompt" => self.prompt(at, false).await,
            "prompt, not awaited" => self.prompt(at, true).await,
            "kill, not awaited" => {
                let live = self.live.swap_remove(at);
                self.killing.push((begin_kill(&live), live));
                self.linger().await;
            }
            "kill, SIGKILL proxy" => {
                let live = self.live.swap_remove(at);
                let kill = begin_kill(&live);
                self.linger().await;
                signal(live.session.info().processes.proxy, Signal::Kill);
                soon("the kill", kill).await.expect("no panic").expect("proven");
                self.see_off(live).await;
            }
            "abort" => self.abort(at).await,
            "kill all" => {
                let Live { session, seconds, .. } = &self.live[at];
                let receipt = soon("kill_all", session.kill_scope(KillScope::AllButAgent, KillOptions::NOW))
                    .await
                    .expect("proven");
                let left = sleeping(seconds);
                assert!(receipt.is_empty() && left.is_empty(), "{left:?} after {receipt:?}");
            }
            _ => self.kill(at, name).await,
        }
    }

    /// What goes wrong.
    async fn fault(&mut self, fault: Fault, name: &str) {
        let at = self.random.below(self.live.len());
        match fault {
            Fault::Strike(strokes) => {
                let live = self.live.swap_remove(at);
                self.strike(strokes, &live);
                self.see_off(live).await;
            }
            Fault::Kill(strokes) => {
                let live = self.live.swap_remove(at);
                self.strike(strokes, &live);
                self.live.push(live);
                self.kill(self.live.len() - 1, name).await;
            }
            Fault::LoseForkServer(strokes) => self.lose_the_fork_server(strokes).await,
            Fault::LoseHost => self.lose_a_host().await,
        }
    }

    /// Kills a session, and takes the time.
    async fn kill(&mut self, at: usize, step: &str) {
        let live = self.live.swap_remove(at);
        let began = Instant::now();
        match soon("the kill", live.session.kill(KillOptions::NOW)).await {
            Ok(_) => {}
            Err(Error::Survivors(receipt)) => assert!(is_only_doubtful(&receipt), "{receipt:?}"),
            Err(error) => panic!("{error}"),
        }
        let took = began.elapsed();
        if took > self.longest.0 {
            self.longest = (took, step.to_owned());
        }
        self.see_off(live).await;
    }

    /// Has all of this happen, one after the other without a pause.
    fn strike(&mut self, strokes: &[(Whom, How)], live: &Live) {
        let info = live.session.info();
        self.is_fork_server_struck |= strokes.iter().any(|(whom, _)| *whom == Whom::ForkServer);
        for (whom, how) in strokes {
            let victims: Vec<ProcessId> = match whom {
                Whom::Agent => info.processes.agent_process.into_iter().collect(),
                Whom::Proxy => info.processes.proxy.into_iter().collect(),
                Whom::AllProxies => {
                    let others = self.live.iter().filter_map(|live| live.session.info().processes.proxy);
                    info.processes.proxy.into_iter().chain(others).collect()
                }
                Whom::ForkServer => vec![self.manager().fork_server()],
                Whom::Host => registry::identify(std::process::id()).into_iter().collect(),
            };
            let (resource, to) = LIMITS[self.random.below(LIMITS.len())];
            for victim in victims {
                match how {
                    How::Kill => signal(Some(victim), Signal::Kill),
                    How::Stop => signal(Some(victim), Signal::Stop),
                    How::Limit => limit(victim, resource, to, getrlimit(resource).maximum),
                    // Of the others it may not notice before it is to do something.
                    How::HardLimit => limit(victim, Resource::Nofile, 0, Some(0)),
                    How::IntoGroup | How::Freeze => {
                        let moved =
                            info.processes.agent_process.is_some_and(|agent| move_to_group_of(victim, agent, *how));
                        *self.counts.entry(format!("of these, {whom:?} {how:?}")).or_default() += u32::from(moved);
                    }
                }
            }
        }
    }

    /// Sessions that are there, or may be.
    fn all(&self) -> usize {
        self.live.len() + self.starting.len() + self.killing.len()
    }

    /// Lets others go on, for a while that differs.
    async fn linger(&mut self) {
        for _ in 0..self.random.below(20) {
            tokio::task::yield_now().await;
        }
    }

    fn begin_start(&mut self) -> Starting {
        let containment = Some(self.layers[self.random.below(self.layers.len())]);
        let config = AgentSessionConfig { containment, ..fake() };
        let manager = self.manager().clone();
        tokio::spawn(async move { manager.start_session(config).await })
    }

    fn started(&mut self, session: SessionHandle) {
        self.ids.push(session.id().to_string());
        let info = session.info();
        self.ours.extend(info.processes.proxy.into_iter().chain(info.processes.agent_process));
        self.live.push(Live { session, seconds: unique_seconds(), turn: None });
    }

    async fn start(&mut self) {
        let session = soon("a start", self.begin_start()).await.expect("no panic").expect("started");
        self.started(session);
    }

    /// A start either comes to a session, which then ends, or fails. It is given the proxy that waits for one: that one dies.
    async fn lose_a_starting_proxy(&mut self) {
        self.gather(true).await;
        let fork_server = self.manager().fork_server().pid;
        let spare = soon("a proxy that waits", async {
            loop {
                let spare = children(fork_server).into_iter().find(|pid| is_spare(*pid));
                if let Some(spare) = spare.and_then(|pid| registry::identify(pid).ok()) {
                    return spare;
                }
                tokio::task::yield_now().await;
            }
        });
        let spare = spare.await;
        self.ours.push(spare);
        let start = self.begin_start();
        self.linger().await;
        signal(Some(spare), Signal::Kill);
        if let Ok(session) = soon("a start", start).await.expect("no panic") {
            self.started(session);
            self.kill(self.live.len() - 1, "start, SIGKILL proxy").await;
        }
    }

    /// Takes in what has come of that which nobody waited for; with `all`, waits for it.
    async fn gather(&mut self, all: bool) {
        for start in std::mem::take(&mut self.starting) {
            if all || start.is_finished() {
                match soon("a start", start).await.expect("no panic") {
                    Ok(session) => self.started(session),
                    // Its proxy was forked by a fork server that something had happened to.
                    Err(Error::ProxyDied { .. }) if self.is_fork_server_struck => {
                        *self.counts.entry("start, told as failed".to_owned()).or_default() += 1;
                    }
                    Err(error) => panic!("{error}"),
                }
            } else {
                self.starting.push(start);
            }
        }
        self.is_fork_server_struck &= !self.starting.is_empty();
        for (kill, live) in std::mem::take(&mut self.killing) {
            if all || kill.is_finished() {
                soon("the kill", kill).await.expect("no panic").expect("proven");
                self.see_off(live).await;
            } else {
                self.killing.push((kill, live));
            }
        }
    }

    /// Without a turn that was left open.
    async fn end_turn(&mut self, at: usize) {
        if let Some(turn) = self.live[at].turn.take() {
            soon("the abort", self.live[at].session.abort(AbortPolicy::KillTurnProcesses)).await.expect("proven");
            soon("the turn's end", turn.wait()).await.expect("ended");
        }
    }

    async fn prompt(&mut self, at: usize, leave_open: bool) {
        self.end_turn(at).await;
        let kinds = ["spawn exec", "setsid exec", "daemon exec", "ignore-term", "run true #"];
        let kind = kinds[self.random.below(kinds.len())];
        let Live { session, seconds, turn: open } = &mut self.live[at];
        let script = format!("{kind} sleep {seconds}{}", if leave_open { "\nwait" } else { "" });
        let turn = soon("a prompt", session.prompt(script, PromptMode::Refuse)).await.expect("prompted");
        if leave_open {
            *open = Some(turn);
            self.linger().await;
        } else {
            soon("its turn", turn.wait()).await.expect("ended");
        }
    }

    async fn abort(&mut self, at: usize) {
        self.end_turn(at).await;
        let Live { session, seconds, .. } = &self.live[at];
        let before = sleeping(seconds);
        let script = format!("daemon exec sleep {seconds}\nwait");
        let turn = soon("a prompt", session.prompt(script, PromptMode::Refuse)).await.expect("prompted");
        soon("the abort", session.abort(AbortPolicy::KillTurnProcesses)).await.expect("proven");
        soon("the turn's end", turn.wait()).await.expect("ended");
        let after = sleeping(seconds);
        assert!(before.iter().all(|pid| after.contains(pid)), "{before:?} before, {after:?} after the abort");
    }

    /// Another host is gone: alone, and its supervisors end what it had; or at once with all of them, and what they leave is
    /// its successor's to end.
    async fn lose_a_host(&mut self) {
        let alone = self.random.below(2) == 0;
        *self.counts.entry("of these, the host alone".to_owned()).or_default() += u32::from(alone);
        let (seconds, directory) = (unique_seconds(), self.state_dir.join("host"));
        let script = format!("setsid sleep {seconds} & sleep {seconds} & echo; wait");
        let layer = self.layers[self.random.below(self.layers.len())].to_string();
        let path = directory.display().to_string();
        let words = ["test-host", env!("CARGO_BIN_EXE_proxy-child"), "3", &script, &path, &layer];
        let program = SpawnRequest {
            argv: words.map(Into::into).to_vec(),
            stdin: SpawnInput::Pipe,
            stdout: SpawnOutput::Pipe,
            stderr: SpawnOutput::Inherit,
            ..SpawnRequest::new(env!("CARGO_BIN_EXE_test-host"))
        };
        let host = registry::spawn(program).expect("started");
        let stdout = host.stdout.expect("piped");
        rustix::io::ioctl_fionbio(&stdout, false).expect("blocking");
        let mut line = String::new();
        BufReader::new(fs::File::from(stdout)).read_line(&mut line).expect("its pids");
        let supervisors = line.split_whitespace().map(|pid| registry::identify(pid.parse().expect("a pid")));
        let supervisors: Vec<_> = supervisors.map(|id| id.expect("alive")).chain([host.process.id()]).collect();
        until("all of it runs", || (sleeping(&seconds).len() == 6).then_some(()));
        if alone {
            signal(Some(host.process.id()), Signal::Kill);
        } else {
            for way in [Signal::Stop, Signal::Kill] {
                supervisors.iter().for_each(|id| signal(Some(*id), way));
            }
        }
        until("the host's end", || host.process.try_reap().expect("our child"));
        if alone {
            until("its supervisors end all of it", || sleeping(&seconds).is_empty().then_some(()));
        }
        until("their end", || supervisors.iter().all(|id| is_gone(*id)).then_some(()));
        let successor = manager(&directory).await;
        let left = sleeping(&seconds);
        assert!(left.is_empty(), "{left:?} of {layer} after {:?}", successor.recovered());
        self.ours.push(successor.fork_server());
        soon("the shutdown", successor.shutdown()).await;
        drop(successor);
        let groups = cgroups_of(host.process.id().pid);
        assert!(groups.is_empty(), "{groups:?} of {layer}");
        fs::remove_dir_all(&directory).expect("removed");
    }

    /// Another fork server takes its place. What it had ends with it.
    async fn lose_the_fork_server(&mut self, strokes: &[(Whom, How)]) {
        let old = self.manager().fork_server();
        let at = self.random.below(self.live.len());
        let live = self.live.swap_remove(at);
        self.strike(strokes, &live);
        self.live.push(live);
        until("its end", || is_gone(old).then_some(()));
        for start in std::mem::take(&mut self.starting) {
            // Too late for it, or not.
            if let Ok(session) = soon("a start", start).await.expect("no panic") {
                self.started(session);
            }
        }
        for (kill, live) in std::mem::take(&mut self.killing) {
            // Whatever it says, it ends.
            let _ = soon("the kill", kill).await.expect("no panic");
            self.live.push(live);
        }
        for live in std::mem::take(&mut self.live) {
            if live
                .session
                .info()
                .processes
                .proxy
                .is_some_and(|proxy| parent(proxy.pid) == Some(self.manager().fork_server().pid))
            {
                // It began with the next.
                self.live.push(live);
            } else {
                self.see_off(live).await;
            }
        }
        self.begin_with_fork_server().await;
        assert_ne!(self.manager().fork_server(), old);
    }

    async fn new_manager(&mut self) {
        self.manager = Some(manager(&self.state_dir).await);
        self.begin_with_fork_server().await;
    }

    /// What it opens once stays open.
    async fn begin_with_fork_server(&mut self) {
        let manager = self.manager().clone();
        let first = soon("a start", manager.start_session(fake())).await.expect("started");
        soon("its end", first.kill(KillOptions::NOW)).await.expect("proven");
        self.ids.push(first.id().to_string());
        self.ours.push(manager.fork_server());
        self.fds = fds_of(manager.fork_server().pid);
    }

    /// Waits for a session's end, which leaves nothing.
    async fn see_off(&mut self, live: Live) {
        if let Some(turn) = live.turn {
            // By itself, or with the session.
            let _ = soon("the open turn's end", turn.wait()).await;
        }
        let mut events = live.session.subscribe();
        let (reason, receipt) = event(&mut events, "the session's end", |envelope| match &envelope.event {
            Event::SessionEnded { reason, receipt } => Some((reason.clone(), receipt.clone())),
            // With its manager, or with the fork server: its conversation is kept.
            Event::SessionSuspended { reason, receipt } => Some((reason.clone(), receipt.clone())),
            _ => None,
        })
        .await;
        let receipt = receipt.unwrap_or_else(|| panic!("{reason}: no receipt"));
        self.doubtful += u32::from(is_only_doubtful(&receipt));
        assert!(receipt.is_empty() || is_only_doubtful(&receipt), "{reason}: {receipt:?}");
        let left = sleeping(&live.seconds);
        assert!(left.is_empty(), "{left:?} after {reason}: {receipt:?}");
        if matches!(live.session.info().state, SessionState::Suspended { .. }) {
            // Nobody goes on with it.
            let _ = soon("a kill", live.session.kill(KillOptions::NOW)).await;
        }
    }
}

fn begin_kill(live: &Live) -> Killing {
    let session = live.session.clone();
    tokio::spawn(async move { session.kill(KillOptions::NOW).await })
}

fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().expect("a pid")).collect()
}

/// Whether it is a proxy that waits for a session.
fn is_spare(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|title| title.starts_with(b"agent-proxy: waits for a session"))
}

/// Whether it is dead: reaped, or about to be.
fn is_gone(id: ProcessId) -> bool {
    registry::identify(id.pid).map_or(true, |now| now != id) || !is_alive(id.pid)
}

/// `None` for whom these are not to be seen.
fn fds_of(pid: u32) -> Option<usize> {
    fs::read_dir(format!("/proc/{pid}/fd")).ok().map(Iterator::count)
}

/// Whether nothing of the session is known to be left, and the proof is missing for strangers only.
fn is_only_doubtful(receipt: &Receipt) -> bool {
    receipt.survivors.is_empty() && !receipt.unattributed.is_empty() && receipt.cgroup_empty != Some(false)
}

fn parent(pid: u32) -> Option<u32> {
    registry::find_process(pid).ok()?.map(|seen| seen.ppid)
}

fn limit(process: ProcessId, resource: Resource, to: u64, maximum: Option<u64>) {
    let pid = Pid::from_raw(process.pid.cast_signed());
    // It may have ended in this very moment.
    let _ = prlimit(pid, resource, Rlimit { current: Some(to), maximum });
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
    let below = |path: PathBuf| if path.is_dir() { files_below(&path) } else { vec![path] };
    entries.flatten().flat_map(|entry| below(entry.path())).collect()
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
        manager: None,
        state_dir,
        live: Vec::new(),
        is_fork_server_struck: false,
        starting: Vec::new(),
        killing: Vec::new(),
        ours: Vec::new(),
        fds: None,
        counts: BTreeMap::new(),
        ids: Vec::new(),
        longest: Default::default(),
        doubtful: 0,
    };
    chaos.new_manager().await;
    for _ in 0..steps {
        chaos.step().await;
    }
    chaos.gather(true).await;
    // Some end one by one, and then the fork server has no more open than before.
    for live in std::mem::take(&mut chaos.live) {
        chaos.live.push(live);
        chaos.kill(chaos.live.len() - 1, "the end").await;
    }
    let fork_server = chaos.manager().fork_server().pid;
    soon("the fork server's descriptors are as before", async {
        while fds_of(fork_server) != chaos.fds {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // The others with the manager.
    chaos.start().await;
    chaos.start().await;
    chaos.prompt(0, true).await;
    let manager = chaos.manager().clone();
    for receipt in soon("the shutdown", manager.shutdown()).await {
        assert!(receipt.is_empty(), "{receipt:?}");
    }
    for live in std::mem::take(&mut chaos.live) {
        chaos.see_off(live).await;
    }
    let Chaos { state_dir, manager: last, counts, ids, ours, longest, doubtful, .. } = chaos;
    drop((manager, last));
    let alive: Vec<_> = ours.iter().filter(|id| !is_gone(**id)).collect();
    assert!(alive.is_empty(), "of {} processes of ours: {alive:?}", ours.len());
    let known: BTreeSet<&str> = ids.iter().map(String::as_str).collect();
    let marked: Vec<_> = ids.iter().rev().take(500).filter(|id| !with_marker(id).is_empty()).collect();
    assert!(marked.is_empty(), "sessions with processes: {marked:?}");
    assert_eq!(open_fds(), fds, "descriptors");
    // The lock and the log stay, and of a session what it takes to go on with its conversation, until it is deleted.
    let is_kept = |path: &Path| {
        let path = path.strip_prefix(&state_dir).expect("below").to_string_lossy().into_owned();
        let record = path.strip_prefix("conversations/").and_then(|name| name.strip_suffix(".json"));
        path == "lock" || path.starts_with("log.sqlite") || record.is_some_and(|id| known.contains(id))
    };
    let strays: Vec<_> = files_below(&state_dir).into_iter().filter(|path| !is_kept(path)).collect();
    assert!(strays.is_empty(), "{strays:?}");
    fs::remove_dir_all(&state_dir).expect("removed");
    let groups = cgroups_of(std::process::id());
    assert!(groups.is_empty(), "{groups:?}");
    let took = began.elapsed();
    let rate = steps as f64 / took.as_secs_f64();
    println!(
        "chaos: {} sessions, {steps} steps in {took:?} ({rate:.1} a second); {counts:#?}; nothing left",
        ids.len()
    );
    println!("chaos: longest kill {:?} (in {:?}); {doubtful} receipts without proof", longest.0, longest.1);
    assert!(longest.0 <= CALL, "a kill took {:?} in {:?}", longest.0, longest.1);
}
