//! What is done to a member, and what must be true then.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::{Duration, Instant},
};

use proxy_manager::{
    ChildProgram, Containment, ContainmentLayer, Deadlines, EndReason, Error, Event, KillOptions, ManagerBuilder,
    ObserverKind, OnAgentExit, ProcessId, ProcessStatus, ProxyManager, Receipt, RecoveredSession, SessionHandle,
    Signal, Subscription,
};
use registry::PidFd;
use zoo::{Attack, Member, Refusal};

use super::{
    Agent, Bystander, Run, STARTING, groups_of,
    host::{Host, Victim},
};
use crate::system::DEADLINE;

/// Set on a machine whose processor is emulated.
const SLOW: &str = "AGENT_PROXY_ZOO_SLOW";

/// What is done to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// `list_processes`, then `kill_session` with a short grace.
    Kill,
    /// The same with SIGKILL at once.
    KillNow,
    /// The agent exits, and its session ends with it.
    Exit,
    /// The agent exits, its processes are kept, and the session is killed.
    ExitKept,
    /// SIGKILL of the agent.
    Agent,
    /// SIGKILL of the proxy.
    Proxy,
    /// SIGKILL of the fork server.
    ForkServer,
    /// SIGKILL of the host.
    Host,
    /// SIGKILL of host and proxy.
    HostAndProxy,
    /// SIGKILL of host, proxy and fork server.
    AllThree,
}

impl Arm {
    /// Every arm, with its name.
    pub const ALL: [(Self, &'static str); 10] = [
        (Self::Kill, "kill"),
        (Self::KillNow, "kill-now"),
        (Self::Exit, "agent-exits"),
        (Self::ExitKept, "agent-exits-kept"),
        (Self::Agent, "sigkill-agent"),
        (Self::Proxy, "sigkill-proxy"),
        (Self::ForkServer, "sigkill-fork-server"),
        (Self::Host, "sigkill-host"),
        (Self::HostAndProxy, "sigkill-host-and-proxy"),
        (Self::AllThree, "sigkill-all-three"),
    ];

    /// Whether it makes sense for this member.
    pub fn suits(self, member: &Member) -> bool {
        match member.attack {
            Attack::None => true,
            // It ends its session itself.
            Attack::Kill => matches!(self, Self::Kill | Self::ExitKept),
            // What its proxy would do is not done then.
            Attack::Stop => matches!(self, Self::Kill | Self::KillNow | Self::Proxy | Self::Host | Self::HostAndProxy),
        }
    }
}

/// How a run ended that did not fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As it must.
    Passed,
    /// The machine does not offer it; with the reason.
    NotRun(String),
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Something is alive that must not be.
    Survivors(String),
    /// The member did not start, or not all of it.
    NotStarted(String),
    /// A list or a receipt is wrong, a bystander was hit, a group is left, …
    Wrong(String),
}

type Checked<T = ()> = Result<T, Failure>;

fn wrong(text: impl Into<String>) -> Failure {
    Failure::Wrong(text.into())
}

/// A grace long enough for signal handlers to run.
const GRACE: KillOptions = KillOptions::grace(Duration::from_millis(50));

/// The managers of all runs.
pub fn builder(child: &str) -> ManagerBuilder {
    // So that a stopped proxy does not cost each of its runs two seconds. One that is only slow, on a machine with much to do, is
    // to tell itself how it ended.
    let deadlines = Deadlines { wedged: Duration::from_secs(1), ..Deadlines::default() };
    ProxyManager::builder(ChildProgram::Path(child.into()))
        .base_env([("PATH", "/usr/bin:/bin")].into_iter().collect())
        .deadlines(deadlines)
}

/// Whether sessions can be held so here.
///
/// # Errors
/// Whatever is not the machine's lack of a layer: it is none to pass over.
pub async fn probe(child: &str, containment: Containment) -> Checked<Verdict> {
    let manager = builder(child).build().await.map_err(|error| wrong(format!("building a manager: {error}")))?;
    let config = proxy_manager::AgentSessionConfig { containment: Some(containment), ..crate::sessions::shell("cat") };
    let session = match manager.start_session(config).await {
        Ok(session) => session,
        Err(error @ Error::ContainmentUnavailable { .. }) => {
            let offered = manager.capabilities().await.map_err(|error| wrong(format!("what there is: {error}")))?;
            manager.shutdown().await;
            let is_offered = match layer_of(containment) {
                // Every machine has it.
                ContainmentLayer::Baseline => true,
                ContainmentLayer::Cgroup => offered.cgroup.is_ok(),
                ContainmentLayer::Strict => offered.strict.is_ok(),
            };
            if is_offered {
                return Err(wrong(format!("the manager says that it offers {containment}, and: {error}")));
            }
            return Ok(Verdict::NotRun(error.to_string()));
        }
        Err(error) => return Err(Failure::NotStarted(format!("a first session: {error}"))),
    };
    let killed = session.kill(KillOptions::NOW).await;
    let receipt = killed.map_err(|error| wrong(format!("killing a first session: {error}")))?;
    manager.shutdown().await;
    if !receipt.layers.contains(&layer_of(containment)) {
        return Err(wrong(format!("a session with {containment} was taken, and held by something else: {receipt}")));
    }
    Ok(Verdict::Passed)
}

fn layer_of(containment: Containment) -> ContainmentLayer {
    match containment {
        Containment::Auto | Containment::Baseline => ContainmentLayer::Baseline,
        Containment::Cgroup => ContainmentLayer::Cgroup,
        Containment::Strict => ContainmentLayer::Strict,
    }
}

/// Runs one member through one arm. `child` is the child binary.
///
/// # Errors
/// What is not as it must be.
pub async fn run(child: &str, member: &'static Member, containment: Containment, arm: Arm) -> Checked<Verdict> {
    match arm {
        Arm::Host => kill_host(child, member, containment, &[Victim::Host]).await,
        Arm::HostAndProxy => kill_host(child, member, containment, &[Victim::Proxy, Victim::Host]).await,
        Arm::AllThree => {
            kill_host(child, member, containment, &[Victim::ForkServer, Victim::Proxy, Victim::Host]).await
        }
        _ => {
            for _ in 0..3 {
                if let Some(scene) = Scene::set(child, member, containment, arm).await? {
                    return scene.play(arm).await;
                }
            }
            Err(Failure::NotStarted("it killed its proxy before that had said that it started, three times".into()))
        }
    }
}

/// A member in a session of a manager in this process.
struct Scene {
    run: Run,
    bystander: Bystander,
    manager: ProxyManager,
    session: SessionHandle,
    events: Subscription,
    layer: ContainmentLayer,
    /// Processes that have ended so far.
    exited: BTreeSet<ProcessId>,
}

/// What a session came to.
enum Settled {
    Yes,
    Unavailable(String),
    ProxyStopped,
    Ended(EndReason, Option<Box<Receipt>>),
}

impl Scene {
    /// `None` for a member that killed its proxy before the start was answered: nothing is left of it.
    async fn set(child: &str, member: &'static Member, containment: Containment, arm: Arm) -> Checked<Option<Self>> {
        let agent = match arm {
            Arm::Exit => Agent::Exits(OnAgentExit::Kill),
            Arm::ExitKept => Agent::Exits(OnAgentExit::Keep),
            _ => Agent::Stays,
        };
        let starting = STARTING.lock().await;
        let run = Run::new(member).map_err(|error| wrong(format!("making a run: {error}")))?;
        let bystander = Bystander::start().map_err(|error| wrong(format!("starting a bystander: {error}")))?;
        let manager = builder(child).build().await.map_err(|error| wrong(error.to_string()))?;
        drop(starting);
        let session = match manager.start_session(run.session(containment, agent)).await {
            Ok(session) => session,
            Err(Error::ProxyDied { .. }) if member.attack == Attack::Kill => {
                run.nothing_left().map_err(Failure::Survivors)?;
                manager.shutdown().await;
                return Ok(None);
            }
            Err(error) => return Err(Failure::NotStarted(error.to_string())),
        };
        let (events, layer) = (session.subscribe(), layer_of(containment));
        Ok(Some(Self { run, bystander, manager, session, events, layer, exited: BTreeSet::new() }))
    }

    async fn play(mut self, arm: Arm) -> Checked<Verdict> {
        let mut ended = None;
        match self.settle().await? {
            Settled::Yes | Settled::ProxyStopped => {}
            Settled::Unavailable(why) => {
                let _ = self.manager.shutdown().await;
                return refused(self.run.member, why);
            }
            Settled::Ended(reason, receipt) => ended = Some((reason, receipt)),
        }
        if self.run.arrived() < self.run.member.least {
            let end =
                ended.map_or_else(String::new, |(reason, receipt)| format!("; it has ended: {reason:?}, {receipt:?}"));
            return Err(Failure::NotStarted(format!("{} processes have arrived{end}", self.run.arrived())));
        }
        let agent = self.session.info().processes.agent_process;
        let mut before = Vec::new();
        if arm != Arm::Exit && ended.is_none() {
            before = self.all_there(agent)?;
            if arm == Arm::ExitKept {
                self.await_exit(agent).await?;
            }
            if matches!(arm, Arm::ExitKept | Arm::Agent) {
                // Dead before the kill begins, so no receipt has it.
                before.retain(|id| Some(*id) != agent);
            }
            if matches!(arm, Arm::Kill | Arm::KillNow | Arm::ExitKept) && self.run.member.is_still {
                // Where its proxy stands still the fork server looks.
                self.check_list(agent).await?;
            }
        }
        let held: Vec<_> = before.iter().filter_map(|id| PidFd::open(*id).ok()).collect();
        let since = Instant::now();
        let receipt = match (ended, arm) {
            (Some((reason, receipt)), _) => *receipt.ok_or_else(|| without_receipt(&reason))?,
            (None, Arm::Kill | Arm::ExitKept) => self.kill(GRACE).await?,
            (None, Arm::KillNow) => self.kill(KillOptions::NOW).await?,
            (None, _) => {
                match arm {
                    Arm::Agent => sigkill(agent)?,
                    Arm::Proxy => sigkill(self.session.info().processes.proxy)?,
                    Arm::ForkServer => sigkill(Some(self.manager.fork_server()))?,
                    _ => {}
                }
                self.await_end().await?
            }
        };
        // Immediately: a receipt says that nothing is left.
        self.run.nothing_left().map_err(|who| Failure::Survivors(format!("after the receipt ({receipt}) {who}")))?;
        if matches!(arm, Arm::Agent | Arm::Proxy | Arm::ForkServer) {
            self.run.gone_soon(&held, since).map_err(Failure::Survivors)?;
        }
        if arm != Arm::ForkServer {
            // With the fork server goes who sees.
            self.check_events(&before).await?;
        }
        if arm == Arm::Proxy && self.layer == ContainmentLayer::Strict {
            // The kernel has ended them with the proxy, before anybody's kill began.
            before.clear();
        }
        self.check_receipt(&receipt, &before)?;
        self.check_rest().await?;
        Ok(Verdict::Passed)
    }

    /// Waits for the member's word, or the session's end; of a member that attacks its proxy, for what came of it.
    async fn settle(&mut self) -> Checked<Settled> {
        /// Between looks at the mark of a member that may silence its proxy.
        const LOOK: Duration = Duration::from_millis(5);
        let attack = self.run.member.attack;
        let deadline = Instant::now() + DEADLINE;
        let mut is_settled = false;
        loop {
            match (attack, self.run.outcome()) {
                (Attack::Stop, 1) => return Ok(Settled::ProxyStopped),
                (Attack::Stop | Attack::Kill, 2) if is_settled => return Ok(Settled::Yes),
                _ => {}
            }
            if Instant::now() > deadline {
                return Err(Failure::NotStarted(format!("only {} arrived in {DEADLINE:?}", self.run.arrived())));
            }
            let patience = if attack == Attack::None { DEADLINE } else { LOOK };
            let Ok(envelope) = tokio::time::timeout(patience, self.events.next()).await else { continue };
            let envelope = envelope.ok_or_else(|| wrong("the stream ended without its last event"))?;
            match &envelope.event {
                Event::Text { text } => match text.trim_end() {
                    "settled" if attack == Attack::None => return Ok(Settled::Yes),
                    "settled" => is_settled = true,
                    text => {
                        if let Some(why) = text.strip_prefix("unavailable: ") {
                            return Ok(Settled::Unavailable(why.to_owned()));
                        }
                        if text.starts_with("failed: ") {
                            return Err(Failure::NotStarted(text.to_owned()));
                        }
                    }
                },
                Event::SessionEnded { reason, receipt } => return Ok(Settled::Ended(reason.clone(), receipt.clone())),
                // It may be told before the last words of who ended.
                Event::ProcessExited { process, .. } => drop(self.exited.insert(*process)),
                _ => {}
            }
        }
    }

    /// The member's processes; an error if they are too few.
    fn all_there(&self, agent: Option<ProcessId>) -> Checked<Vec<ProcessId>> {
        let deadline = Instant::now() + DEADLINE;
        let hops = self.run.hops();
        loop {
            let alive = self.run.alive();
            let others = alive.iter().filter(|id| Some(**id) != agent).count();
            // A storm may be too fast to be seen; its count tells that it is there.
            if others >= self.run.member.least || (!self.run.member.is_still && self.run.hops() != hops) {
                return Ok(alive);
            }
            if self.run.member.is_still || Instant::now() > deadline {
                let (least, who) = (self.run.member.least, self.run.describe(&alive));
                return Err(Failure::NotStarted(format!("{others} of {least} processes are there: {who}")));
            }
        }
    }

    async fn await_exit(&mut self, agent: Option<ProcessId>) -> Checked {
        if agent.is_some_and(|agent| self.exited.contains(&agent)) {
            return Ok(());
        }
        let exit = async {
            while let Some(envelope) = self.events.next().await {
                match &envelope.event {
                    Event::ProcessExited { process, .. } if Some(*process) == agent => return Ok(()),
                    Event::SessionEnded { reason, .. } => return Err(wrong(format!("not kept, it ended: {reason}"))),
                    _ => {}
                }
            }
            Err(wrong("the stream ended without its last event"))
        };
        tokio::time::timeout(DEADLINE, exit).await.unwrap_or_else(|_| Err(wrong("no event of the agent's exit")))
    }

    /// Compares the list with what lives. On a machine that is slow beyond all measure ([`SLOW`]) it may come to be right later.
    async fn check_list(&self, agent: Option<ProcessId>) -> Checked {
        let patience = if std::env::var_os(SLOW).is_some() { DEADLINE } else { Duration::ZERO };
        let deadline = Instant::now() + patience;
        loop {
            match self.compare_list(agent).await {
                Err(_) if Instant::now() < deadline => tokio::task::yield_now().await,
                compared => return compared,
            }
        }
    }

    async fn compare_list(&self, agent: Option<ProcessId>) -> Checked {
        let before: BTreeSet<_> = self.run.alive().into_iter().collect();
        let listed = self.session.processes().await.map_err(|error| wrong(format!("listing: {error}")))?;
        let after: BTreeSet<_> = self.run.alive().into_iter().collect();
        let listed: BTreeSet<_> =
            listed.iter().filter(|info| info.status == ProcessStatus::Running).map(|info| info.id).collect();
        let missed: Vec<_> = before.intersection(&after).filter(|id| !listed.contains(id)).copied().collect();
        let known = |id: &&ProcessId| before.contains(id) || after.contains(id) || Some(**id) == agent;
        let strangers: Vec<_> = listed.iter().filter(|id| !known(id)).copied().collect();
        if missed.is_empty() && strangers.is_empty() {
            return Ok(());
        }
        let (missed, strangers) = (self.run.describe(&missed), self.run.describe(&strangers));
        Err(wrong(format!("the list misses {missed}\nand shows strangers {strangers}")))
    }

    async fn kill(&self, options: KillOptions) -> Checked<Receipt> {
        self.session.kill(options).await.map_err(|error| {
            let alive = self.run.alive();
            Failure::Survivors(format!("{error:#}\n{} alive: {}", alive.len(), self.run.describe(&alive)))
        })
    }

    async fn await_end(&mut self) -> Checked<Receipt> {
        let end = async {
            while let Some(envelope) = self.events.next().await {
                if let Event::SessionEnded { reason, receipt } = &envelope.event {
                    return receipt.clone().map(|receipt| *receipt).ok_or_else(|| without_receipt(reason));
                }
            }
            Err(wrong("the stream ended without its last event"))
        };
        tokio::time::timeout(DEADLINE, end).await.unwrap_or_else(|_| {
            let alive = self.run.alive();
            let who = self.run.describe(&alive);
            Err(Failure::Survivors(format!("its session does not end; {} alive: {who}", alive.len())))
        })
    }

    fn check_receipt(&self, receipt: &Receipt, before: &[ProcessId]) -> Checked {
        if !receipt.is_empty() {
            return Err(wrong(format!("the receipt is not empty: {receipt:?}")));
        }
        if !receipt.layers.contains(&self.layer) {
            return Err(wrong(format!("layer {:?} was asked for, the receipt has {:?}", self.layer, receipt.layers)));
        }
        // What hops is other processes by the time of the kill.
        if !self.run.member.is_still || receipt.omitted > 0 {
            return Ok(());
        }
        let named: BTreeSet<_> = receipt.processes.iter().chain(&receipt.unattributed).map(|entry| entry.id).collect();
        let missed: Vec<_> = before.iter().filter(|id| !named.contains(id)).collect();
        if missed.is_empty() {
            return Ok(());
        }
        Err(wrong(format!("the receipt names {} processes and misses {missed:?}", named.len())))
    }

    /// Where the kernel tells of processes, each of `before` was told of once, and so was its end. The start time of one that was gone
    /// before it was looked at is that of the kernel's event, which may be a tick later.
    async fn check_events(&self, before: &[ProcessId]) -> Checked {
        let mut events = self.session.subscribe();
        let (mut spawned, mut exited) = (BTreeMap::<_, u32>::new(), BTreeMap::<_, u32>::new());
        let known = |told: ProcessId, command: &Option<String>| {
            let a_tick_before = ProcessId { start_time: told.start_time.saturating_sub(1), ..told };
            let is_late = command.is_none() && !before.contains(&told) && before.contains(&a_tick_before);
            if is_late { a_tick_before } else { told }
        };
        let whole = async {
            while let Some(envelope) = events.next().await {
                match &envelope.event {
                    Event::SessionStarted { measures, .. } if measures.observer != ObserverKind::Connector => {
                        return Ok(false);
                    }
                    Event::ProcessSpawned(info) => *spawned.entry(known(info.id, &info.command)).or_default() += 1,
                    Event::ProcessExited { process, command, .. } => {
                        *exited.entry(known(*process, command)).or_default() += 1;
                    }
                    Event::SessionLossy { reason } => {
                        return Err(wrong(format!("events of processes are lost: {reason}")));
                    }
                    Event::SessionEnded { .. } => return Ok(self.run.member.is_still),
                    _ => {}
                }
            }
            Err(wrong("the stream ended without its last event"))
        };
        let is_whole = tokio::time::timeout(DEADLINE, whole).await;
        if !is_whole.unwrap_or_else(|_| Err(wrong("no event of the session's end")))? {
            return Ok(());
        }
        let times = |told: &BTreeMap<ProcessId, u32>, id: &ProcessId| told.get(id).copied().unwrap_or(0);
        let told = |id: &&ProcessId| (times(&spawned, id), times(&exited, id)) != (1, 1);
        let off: Vec<_> = before.iter().filter(told).collect();
        if off.is_empty() {
            return Ok(());
        }
        let off: Vec<_> = off.iter().map(|id| (*id, times(&spawned, id), times(&exited, id))).collect();
        let told: Vec<_> = spawned.keys().filter(|told| off.iter().any(|(id, ..)| id.pid == told.pid)).collect();
        Err(wrong(format!(
            "not told of once, with one end (process, starts, ends): {off:?}; their pids were told as {told:?}"
        )))
    }

    async fn check_rest(mut self) -> Checked {
        let id = self.session.id().clone();
        let _ = self.manager.shutdown().await;
        drop(self.session);
        self.bystander.is_well().map_err(Failure::Wrong)?;
        let groups = groups_of(id.as_str());
        if !groups.is_empty() {
            return Err(wrong(format!("control groups of the session are left: {groups:?}")));
        }
        self.run.nothing_left().map_err(Failure::Survivors)
    }
}

fn without_receipt(reason: &EndReason) -> Failure {
    wrong(format!("it ended without a receipt: {reason}"))
}

fn sigkill(process: Option<ProcessId>) -> Checked {
    let process = process.ok_or_else(|| wrong("nothing is known of whom to kill"))?;
    let held = PidFd::open(process).map_err(|error| wrong(format!("opening {process}: {error}")))?;
    held.signal(Signal::Kill).map_err(|error| wrong(format!("killing {process}: {error}")))
}

/// What the machine refused a member: only what may be refused is passed over.
fn refused(member: &Member, why: String) -> Checked<Verdict> {
    let allowed = match member.refusal {
        Refusal::Never => false,
        Refusal::Users => !is_the_machines_root(),
        Refusal::Anybody => true,
    };
    if allowed { Ok(Verdict::NotRun(why)) } else { Err(Failure::NotStarted(format!("refused: {why}"))) }
}

/// Whether this is a root who may become any user and make groups; in a container it mostly is not.
fn is_the_machines_root() -> bool {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let is_anybody = text("/proc/self/uid_map").split_whitespace().eq(["0", "0", "4294967295"]);
    let has_groups = text("/proc/self/mounts").lines().any(|mount| {
        let mut fields = mount.split(' ').skip(2);
        fields.next() == Some("cgroup2") && fields.next().is_some_and(|options| options.split(',').any(|o| o == "rw"))
    });
    nix::unistd::geteuid().is_root() && is_anybody && has_groups
}

/// A host of one session of the member in a process of its own, of which these are killed.
async fn kill_host(
    child: &str,
    member: &'static Member,
    containment: Containment,
    victims: &[Victim],
) -> Checked<Verdict> {
    let starting = STARTING.lock().await;
    let run = Run::new(member).map_err(|error| wrong(format!("making a run: {error}")))?;
    let mut bystander = Bystander::start().map_err(|error| wrong(format!("starting a bystander: {error}")))?;
    let host = Host::start(child, containment, &run.state(), &run.command(Agent::Stays));
    drop(starting);
    let mut host = host.map_err(Failure::NotStarted)?;
    // What stops its proxy may do so before its word is out.
    let word = if member.attack == Attack::Stop { await_outcome(&run) } else { host.word() };
    match word.map_err(Failure::NotStarted)?.as_str() {
        "settled" => {}
        word => match word.strip_prefix("unavailable: ") {
            Some(why) => return refused(member, why.to_owned()),
            None => return Err(Failure::NotStarted(word.to_owned())),
        },
    }
    let held: Vec<_> = run.alive().into_iter().filter_map(|id| PidFd::open(id).ok()).collect();
    if held.len() < member.least && member.is_still {
        return Err(Failure::NotStarted(format!("{} of {} processes are there", held.len(), member.least)));
    }
    let since = Instant::now();
    host.sigkill(victims).map_err(Failure::Wrong)?;
    host.gone(since).map_err(Failure::Survivors)?;
    let kernel_ends_it = containment == Containment::Strict && !member.needs_a_thaw();
    let has_guard = !victims.contains(&Victim::ForkServer);
    if has_guard || kernel_ends_it {
        run.gone_soon(&held, since).map_err(Failure::Survivors)?;
    }
    if !has_guard {
        // Only a later manager can end what the kernel does not, and remove groups.
        recover(child, &run, host.session()).await?;
    }
    bystander.is_well().map_err(Failure::Wrong)?;
    let groups = groups_of(host.session());
    if !groups.is_empty() {
        return Err(wrong(format!("control groups of the session are left: {groups:?}")));
    }
    run.nothing_left().map_err(Failure::Survivors)?;
    Ok(Verdict::Passed)
}

/// Starts another manager with the run's state directory: nothing is left once that is built, and it says so.
async fn recover(child: &str, run: &Run, session: &str) -> Checked {
    let starting = STARTING.lock().await;
    let manager = builder(child).state_dir(run.state()).build().await;
    drop(starting);
    let manager =
        manager.map_err(|error| wrong(format!("a manager with the state directory of a dead one: {error}")))?;
    run.nothing_left().map_err(Failure::Survivors)?;
    let of_session =
        |recovered: &&RecoveredSession| recovered.session_id.as_ref().is_some_and(|id| id.as_str() == session);
    let told = manager.recovered().iter().find(of_session).is_some_and(RecoveredSession::is_empty);
    let recovered = format!("{:?}", manager.recovered());
    let _ = manager.shutdown().await;
    if told {
        return Ok(());
    }
    Err(wrong(format!("session {session} is not among what was recovered and is gone: {recovered}")))
}

fn await_outcome(run: &Run) -> Result<String, String> {
    let deadline = Instant::now() + DEADLINE;
    while run.outcome() == 0 {
        if Instant::now() > deadline {
            return Err("it has not attacked its proxy".into());
        }
        std::thread::yield_now();
    }
    Ok("settled".into())
}
