//! The fork server: forks proxies, guards them, outlives the host to clean up.
//!
//! One thread, no runtime, no random numbers: all that it is, every proxy becomes a copy of.

mod abandoned_sessions;
mod adopt_listener;
mod control;
mod detachment;
mod guard;
mod lease;
mod marker_looks;
mod observer;
mod probe;
mod proc_change_detector;
mod proxies;
mod stopped_proxy;
mod wait;

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    time::{Duration, Instant},
};

use agents::Adapters;
use ipc_protocol::{
    ContainmentSpec, ErrorChain, ExitStatus, Json, KillCause, KillOptions, Limits, Pid, SessionId, Signal, WireError,
    codec::encode_packets,
    message::{DetachSpec, FromForkServer, Hello, ProxyHandover, ToForkServer, VERSION},
    packet::{packet_pair, send_packet},
    reattach::WireFormat,
};
use nix::sys::{
    signal::{SigSet, Signal as NixSignal},
    signalfd::{SfdFlags, SignalFd},
};
use registry::{
    DescriptorUse, PidFd, ProcessRegistry, ProcessTitle, ReapOutcome, ReapedProcess, SessionHold, SpawnInput,
    SpawnOutput, SpawnRequest,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::{
    abandoned_sessions::AbandonedSessions, adopt_listener::AdoptListener, control::HostChannel, guard::SessionGuard,
    lease::SessionLease, marker_looks::MarkerLooks, observer::ProcessObserver,
    proc_change_detector::ProcChangeDetector, proxies::ProxyTable, wait::WaitResult,
};
pub(crate) use self::{probe::main as probe, proc_change_detector::POLL_INTERVAL};
use crate::{PROBE_ARG, PROXY_ARG, own_limits::OwnLimits, padded_argv, proxy};

/// Grace of what a dead proxy leaves.
const ORPHAN_GRACE: Duration = Duration::from_millis(300);
/// After the host's death the proxies end their sessions by themselves (with a grace of [`ORPHAN_GRACE`]); a proxy that
/// has not by then is wedged.
const HOST_DEATH_PATIENCE: Duration = Duration::from_millis(800);
/// After a start, until what its agent does is looked at: the start itself shall have the processors, and on a busy machine
/// it may take so long.
const CONNECTOR_DELAY: Duration = Duration::from_millis(1);
/// Time after which a new session is taken to be ready. Agents that need 0.1 to 0.2 s have both processors busy until then, and
/// whatever else is done makes them take longer. So the next proxy is forked ahead after it (a start that comes sooner has its own
/// forked for it), and until then what the kernel tells of is read less often.
const READY_AFTER: Duration = Duration::from_millis(400);
/// After a proxy could not be forked ahead.
const SPARE_RETRY: Duration = Duration::from_secs(1);
/// Descriptors that no proxy takes, at most a quarter of the limit.
const DESCRIPTOR_RESERVE: u64 = 32;
/// Dead children reaped at a time.
const REAP_BOUND: usize = 256;

/// A living proxy.
struct LivingProxy {
    session: SessionId,
    enclosure: ContainmentSpec,
    limits: Limits,
    process: PidFd,
    /// Forks on this machine before its own.
    forks: Option<u64>,
    /// Socket on which the proxy learns of new processes, of viewers, and of another host.
    handover: Option<OwnedFd>,
    /// If it outlives its host.
    detach: Option<Box<DetachSpec>>,
    /// Record that the session's host wrote for the next one.
    handoff_record: Json,
}

/// A proxy that was forked ahead and waits for its session: a start then costs no fork.
struct SpareProxy {
    process: PidFd,
    handover: OwnedFd,
    /// Forks on this machine before its own.
    forks: Option<u64>,
}

struct ForkServer<'a> {
    adapters: &'a Adapters,
    own_limits: OwnLimits,
    /// A pidfd of this very process, for the proxies: readable when their guard is gone.
    own: PidFd,
    title: ProcessTitle,
    control: Option<HostChannel>,
    host: OwnedFd,
    /// Directories whose locks are held until host and fork server are both gone.
    held_locks: Vec<OwnedFd>,
    sigchld: SignalFd,
    /// Something may have become of a child. To ask the kernel takes as long as there are children, so nobody asks without
    /// that.
    children_changed: bool,
    spare: Option<SpareProxy>,
    /// When the next spare is to be forked: not while the last one is starting its agent.
    spare_due: Instant,
    /// Proxies that will never have a session: to be reaped, and no one's orphans.
    retired: Vec<Pid>,
    proxies: ProxyTable,
    guards: Vec<SessionGuard>,
    marker_looks: MarkerLooks,
    abandoned_sessions: AbandonedSessions,
    observer: ProcessObserver,
    change_detector: ProcChangeDetector,
    /// When the host died, or closed its end.
    host_gone: Option<Instant>,
    /// Socket at which another host finds the sessions that outlive this one, once there is one.
    adopt_listener: Option<AdoptListener>,
    /// True if the host is another than the first: it forks nothing here.
    is_adopted: bool,
    /// Until when the sessions may go on.
    lease: SessionLease,
    /// Dead proxies of sessions that could have outlived the host, and the directory where they left what they had to say.
    detach_dirs: BTreeMap<Pid, String>,
}

/// Runs until the host and all sessions are gone, and keeps `held` more descriptors open till then; the result is the exit
/// code.
pub(crate) fn main(adapters: &Adapters, held: usize) -> u8 {
    let run = |mut server: ForkServer<'_>| {
        server.run()?;
        // One that fails leaves it to its host, which lives.
        server.remove_held_dirs();
        Ok(())
    };
    match ForkServer::new(adapters, held).and_then(run) {
        Ok(()) => 0,
        Err(error) => {
            // Standard error is the host's; nobody else is there to be told.
            let text = format_args!("agent-proxy fork server: {}\n", ErrorChain(&error));
            let _ = std::io::Write::write_fmt(&mut std::io::stderr(), text);
            1
        }
    }
}

impl<'a> ForkServer<'a> {
    fn new(adapters: &'a Adapters, held: usize) -> std::io::Result<Self> {
        let mut fds = registry::inherited_fds(2 + held)?.into_iter();
        let (Some(control), Some(host)) = (fds.next(), fds.next()) else {
            return Err(std::io::Error::other("started without its descriptors"));
        };
        nix::sys::prctl::set_child_subreaper(true)?;
        registry::protect_from_oom();
        registry::remember_own_group();
        // Else any process of the same user, a session's among them, can take its descriptors and its memory.
        registry::set_dumpable(false)?;
        let mut mask = SigSet::empty();
        mask.add(NixSignal::SIGCHLD);
        mask.add(NixSignal::SIGPIPE);
        // Of limits that somebody has lowered: see `own_limits`.
        mask.add(NixSignal::SIGXCPU);
        mask.add(NixSignal::SIGXFSZ);
        mask.thread_block()?;
        let title = ProcessTitle::locate()?;
        // Its sessions' proxies and their /proc take descriptors. With the limit that it was given it has fewer, and says so.
        let _ = registry::raise_descriptor_limit();
        title.set("ap fork server", "agent-proxy: fork server")?;
        Self::with(adapters, title, control, host, fds.collect())
    }

    /// With these descriptors, in a process that has been prepared.
    fn with(
        adapters: &'a Adapters,
        title: ProcessTitle,
        control: OwnedFd,
        host: OwnedFd,
        held: Vec<OwnedFd>,
    ) -> std::io::Result<Self> {
        let mut chld = SigSet::empty();
        chld.add(NixSignal::SIGCHLD);
        let sigchld = SignalFd::with_flags(&chld, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        let own = PidFd::open(registry::identify(std::process::id())?)?;
        // Before the hello, so that the first session is observed.
        let observer = ProcessObserver::new();
        let mut control = HostChannel::new(control, WireFormat::Bincode);
        control.send(&FromForkServer::Hello(Hello { version: VERSION, process: own.id() }));
        Ok(Self {
            adapters,
            own_limits: OwnLimits::note(),
            own,
            title,
            control: Some(control),
            host,
            held_locks: held,
            sigchld,
            children_changed: false,
            spare: None,
            spare_due: Instant::now(),
            retired: Vec::new(),
            proxies: ProxyTable::default(),
            guards: Vec::new(),
            marker_looks: MarkerLooks::default(),
            abandoned_sessions: AbandonedSessions::default(),
            observer,
            change_detector: ProcChangeDetector::new(),
            host_gone: None,
            adopt_listener: None,
            is_adopted: false,
            lease: SessionLease::default(),
            detach_dirs: BTreeMap::new(),
        })
    }

    fn run(&mut self) -> std::io::Result<()> {
        self.ensure_spare();
        loop {
            let ready = self.wait()?;
            // Before a request each time: a session that it began with too little would end with it.
            let is_fine =
                if ready.control { self.own_limits.restore() } else { self.own_limits.restore_now_and_then() };
            if !is_fine {
                // Without it the proxies end their sessions, and the host those of dead proxies; it starts another one.
                return Err(std::io::Error::other("somebody lowered its resource limits, and they cannot be raised"));
            }
            self.run_once(ready);
            self.ensure_spare();
            let idle = self.proxies.is_empty() && self.guards.is_empty() && self.retired.is_empty();
            if (self.host_gone.is_some() || self.is_adopted) && idle {
                return Ok(());
            }
        }
    }

    /// Does what is to be done now.
    fn run_once(&mut self, ready: WaitResult) {
        while ready.signals && matches!(self.sigchld.read_signal(), Ok(Some(_))) {
            self.children_changed = true;
        }
        if std::mem::take(&mut self.children_changed) {
            self.reap();
            self.record_stopped();
        }
        self.continue_stopped();
        if ready.control || self.control.as_ref().is_some_and(HostChannel::is_broken) {
            self.receive_requests();
        }
        self.watch_host(ready.host);
        self.enforce_lease();
        if ready.adopt_listener
            || self.adopt_listener.as_ref().and_then(AdoptListener::next).is_some_and(|due| due <= Instant::now())
        {
            self.poll_adopt_listener();
        }
        self.step_guards();
        self.marker_looks.turn(&mut self.guards);
        if let Some(control) = &mut self.control {
            control.flush();
            self.observer.poll(control, ready.events);
        }
        self.nudge_proxies();
    }

    /// Removes what it held the lock of, if it is empty: a host that was killed never will.
    fn remove_held_dirs(&self) {
        for directory in &self.held_locks {
            let path = std::fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd()));
            // Gone with the host's end already, or not empty: then the next manager sweeps it.
            let _ = path.and_then(std::fs::remove_dir);
        }
    }

    /// Takes the host's requests.
    fn receive_requests(&mut self) {
        // Bounded, so that a host that only talks cannot keep the dead from being seen to.
        for _ in 0..64 {
            let Some(control) = &mut self.control else { return };
            match control.receive() {
                Ok(Some((ToForkServer::Hello(hello), _))) if hello.version == VERSION || control.wire().is_json() => {}
                Ok(Some((ToForkServer::Fork { session, enclosure, limits, detach, card }, Some(socket)))) => {
                    self.fork(session, *enclosure, limits, (detach, card), &socket);
                }
                Ok(Some((ToForkServer::Fork { session, .. }, None))) => {
                    // Hosts always send one: the table of this process was full when it came.
                    let error = WireError::FdsExhausted { operation: "receiving a proxy's socket".into() };
                    control.send(&FromForkServer::ForkFailed { session, error });
                }
                Ok(Some((ToForkServer::Kill { session, options }, _))) => self.kill(&session, options),
                // It looks through a whole session: one in a turn.
                Ok(Some((ToForkServer::List { session }, _))) => return self.list(session),
                Ok(Some((ToForkServer::Adopt { session, after_seq }, socket))) => {
                    self.adopt(&session, after_seq, socket.as_ref());
                }
                Ok(Some((ToForkServer::Lease { until_ms }, _))) => self.lease.renew(Duration::from_millis(until_ms)),
                // The end of the socket says that it could not be viewed.
                Ok(Some((ToForkServer::View { session }, socket))) => self.add_viewer(&session, socket.as_ref()),
                // The end of the socket says that it could not be tried.
                Ok(Some((ToForkServer::Probe, socket))) => drop(socket.map(|socket| self.probe(socket))),
                Ok(None) => return,
                // The host has closed, or is of another build (it has our Hello and knows), or talks nonsense: either
                // way there is no host any more.
                Ok(Some((ToForkServer::Hello(_), _))) | Err(_) => return self.handle_host_loss(),
            }
        }
    }

    fn handle_host_loss(&mut self) {
        self.control = None;
        self.observer.stop();
        let gone = *self.host_gone.get_or_insert_with(Instant::now);
        self.proxies.schedule_abandon(|proxy| detachment::abandon_at(gone, proxy));
        self.detach_sessions();
        if let Some(spare) = self.spare.take() {
            self.retire(spare);
        }
    }

    /// Sees to the host's death: a child that it forked can keep its socket open, but not its pidfd unreadable.
    fn watch_host(&mut self, is_ready: bool) {
        if is_ready && self.control.is_some() && is_readable(&self.host) {
            self.handle_host_loss();
        }
        let now = Instant::now();
        while let Some(proxy) = self.proxies.take_abandoned(now) {
            let (process, cause) = (proxy.process.id(), KillCause::HostDied);
            if !self.guards.iter().any(|guard| guard.guards_proxy(process.pid)) {
                let (origin, options) = ((process, proxy.forks), KillOptions::NOW);
                self.guards.push(SessionGuard::of_proxy(&proxy.session, &proxy.enclosure, origin, cause, options));
            }
        }
    }

    fn fork(
        &mut self,
        session: SessionId,
        enclosure: ContainmentSpec,
        limits: Limits,
        (detach, card): (Option<Box<DetachSpec>>, Json),
        socket: &OwnedFd,
    ) {
        self.spare_due = Instant::now() + READY_AFTER;
        let started = self
            .check_lease()
            .and_then(|()| self.open_adopt_listener(detach.as_deref()))
            .and_then(|()| self.start_proxy(&session, detach.clone(), socket));
        let answer = match started {
            Ok((SpareProxy { process, handover, forks }, polls)) => {
                let id = process.id();
                registry::add_supervisor(id);
                let message = FromForkServer::Forked { session: session.clone(), process: id };
                self.proxies.insert(LivingProxy {
                    session,
                    enclosure,
                    limits,
                    process,
                    forks,
                    handover: Some(handover),
                    detach,
                    handoff_record: card,
                });
                if polls {
                    self.proxies.enable_polling(id.pid);
                }
                message
            }
            Err(error) => FromForkServer::ForkFailed { session, error },
        };
        if let Some(control) = &mut self.control {
            control.send(&answer);
        }
    }

    /// A proxy with its session, and whether it has to look for its processes itself.
    fn start_proxy(
        &mut self,
        session: &SessionId,
        detach: Option<Box<DetachSpec>>,
        socket: &OwnedFd,
    ) -> Result<(SpareProxy, bool), WireError> {
        if let Ok(DescriptorUse { limit, free }) = registry::descriptors()
            && free < DESCRIPTOR_RESERVE.min(limit / 4)
        {
            // What is left is for looking at processes that are to be ended.
            let operation = format!("forking a proxy: {free} of {limit} of the fork server's are left");
            return Err(WireError::FdsExhausted { operation });
        }
        let observed = self.observer.prepare(CONNECTOR_DELAY);
        let message = ProxyHandover::Session { session: session.clone(), observed, detach };
        let (spare, since) = self.assign_session(&message, socket)?;
        if observed {
            self.observer.add(session, spare.process.id().pid, since);
        }
        Ok((spare, !observed))
    }

    /// Gives a proxy its session; says when, on the observer's clock. Nothing of the session happened before, and the proxy
    /// was there by then.
    fn assign_session(&mut self, message: &ProxyHandover, socket: &OwnedFd) -> Result<(SpareProxy, u64), WireError> {
        let packets = encode_packets(message).map_err(|error| not_forked(&std::io::Error::other(error)))?;
        // A session's name and a path are short: there is one packet.
        let packet = packets.first().map(Vec::as_slice).unwrap_or_default();
        let hand_over = |spare: &SpareProxy| {
            let now = observer::monotonic();
            send_packet(&spare.handover, packet, Some(socket.as_fd())).map(|()| now)
        };
        if let Some(spare) = self.spare.take() {
            if let Ok(since) = hand_over(&spare) {
                return Ok((spare, since));
            }
            self.retire(spare);
        }
        let spare = self.fork_spare()?;
        match hand_over(&spare) {
            Ok(since) => Ok((spare, since)),
            Err(error) => {
                self.retire(spare);
                Err(not_forked(&error))
            }
        }
    }

    /// Has those proxies look that have to look themselves, and below which something came or went.
    fn nudge_proxies(&mut self) {
        if !self.proxies.has_polling() || self.change_detector.next() > Instant::now() {
            return;
        }
        let concerned = self.change_detector.detect(|pid| self.proxies.contains(pid));
        for nudge in self.proxies.handover_sockets(concerned) {
            // It fails for one that is dead, or has so many nudges waiting that one more makes no difference.
            let _ = send_packet(nudge, b"!", None);
        }
    }

    /// Ends a proxy that nobody had yet: it has nothing to clean up.
    fn retire(&mut self, spare: SpareProxy) {
        // It can only fail for one that is dead already.
        let _ = spare.process.signal(Signal::Kill);
        self.retired.push(spare.process.id().pid);
    }

    /// Sees to it that a proxy waits. One that cannot be had is tried for again later.
    fn ensure_spare(&mut self) {
        if self.spare.is_none() && self.control.is_some() && !self.is_adopted && self.spare_due <= Instant::now() {
            self.spare = self.fork_spare().ok();
            self.spare_due = Instant::now() + SPARE_RETRY;
        }
    }

    fn fork_spare(&mut self) -> Result<SpareProxy, WireError> {
        // The new process may get a pid that a guard still has on its list.
        self.guards.iter_mut().for_each(SessionGuard::record_fork);
        // The proxy has those of this process.
        self.own_limits.restore();
        let forks = self.marker_looks.forks();
        let (handover, theirs) = packet_pair().map_err(|error| not_forked(&error))?;
        let own = self.own.as_fd().try_clone_to_owned().map_err(|error| not_forked(&error))?;
        let fds = vec![theirs, own];
        if registry::is_single_threaded() {
            let pid = registry::fork_child(fds, |fds| proxy::main(self.title, fds, self.adapters));
            let pid = pid.map_err(|error| not_forked(&error))?;
            let process = PidFd::of_child(pid).map_err(|error| {
                // It ends by itself, its end of the handover being closed.
                self.retired.push(pid);
                not_forked(&error)
            })?;
            return Ok(SpareProxy { process, handover, forks });
        }
        // Something started a thread before main: a fork would copy its locks but not it.
        let program = SpawnRequest {
            argv: padded_argv("agent-proxy", &[PROXY_ARG]),
            stdin: SpawnInput::Null,
            stderr: SpawnOutput::Inherit,
            fds,
            ..SpawnRequest::new("/proc/self/exe")
        };
        let process = registry::spawn(program)?.process;
        Ok(SpareProxy { process, handover, forks })
    }

    /// Has a process try what the machine offers.
    ///
    /// # Errors
    /// Where there can be no process.
    fn probe(&mut self, socket: OwnedFd) -> Result<(), WireError> {
        self.guards.iter_mut().for_each(SessionGuard::record_fork);
        let fds = vec![socket];
        let pid = if registry::is_single_threaded() {
            registry::fork_child(fds, probe).map_err(|error| not_forked(&error))?
        } else {
            let argv = padded_argv("agent-proxy", &[PROBE_ARG]);
            let program =
                SpawnRequest { argv, stderr: SpawnOutput::Inherit, fds, ..SpawnRequest::new("/proc/self/exe") };
            registry::spawn(program)?.process.id().pid
        };
        self.retired.push(pid);
        Ok(())
    }

    /// Lists a session whose proxy does not answer. What measures has random numbers, which every later proxy would share.
    fn list(&mut self, session: SessionId) {
        let proxy = self.proxies.by_session(&session);
        let processes = proxy.map_or_else(Vec::new, |proxy| {
            let mut registry = ProcessRegistry::guard(session.clone());
            let pid = proxy.process.id().pid;
            let init = if proxy.enclosure.strict { registry::init_below(pid) } else { None };
            registry.set_hold(SessionHold { init, ..SessionHold::default() });
            registry.set_roots_below(pid);
            registry.list_unmeasured()
        });
        if let Some(control) = &mut self.control {
            control.send(&FromForkServer::Listed { session, processes });
        }
    }

    /// Ends a session whose proxy does not answer.
    fn kill(&mut self, session: &SessionId, options: KillOptions) {
        let Some(proxy) = self.proxies.by_session(session) else {
            // Gone already; the host has been or is being told.
            return;
        };
        let process = proxy.process.id();
        match self.guards.iter_mut().find(|guard| guard.guards_proxy(process.pid)) {
            Some(guard) => guard.shorten_grace(options),
            None => {
                let (origin, cause) = ((process, proxy.forks), KillCause::KillSession);
                self.guards.push(SessionGuard::of_proxy(&proxy.session, &proxy.enclosure, origin, cause, options));
            }
        }
    }

    /// Reaps proxies and orphans.
    fn reap(&mut self) {
        let mut dead = Vec::new();
        // It has no error on Linux; were there one, the next death would be another chance, and to give up would end
        // every session.
        let left = registry::reap_children(REAP_BOUND, |reaped| dead.push(reaped));
        self.children_changed |= matches!(left, Ok(ReapOutcome::MoreDead));
        for reaped in dead {
            let pid = reaped.id.pid;
            if let Some(proxy) = self.proxies.remove(pid) {
                registry::remove_supervisor(proxy.process.id());
                self.handle_proxy_exit(&proxy, reaped.exit);
            } else if self.is_without_session(pid) {
                self.spare.take_if(|spare| spare.process.id().pid == pid);
                self.retired.retain(|leaving| *leaving != pid);
            } else {
                self.handle_orphan_exit(&reaped);
            }
        }
    }

    /// Takes note of what somebody has stopped.
    fn record_stopped(&mut self) {
        // As with the dead, an error is no reason to give up.
        let stopped = registry::stopped_children(REAP_BOUND).unwrap_or_default();
        self.children_changed |= stopped.len() >= REAP_BOUND;
        for pid in stopped {
            if !self.proxies.mark_stopped(pid)
                && let Some(spare) = self.spare.as_ref().filter(|spare| spare.process.id().pid == pid)
            {
                // It fails only for one that is dead.
                let _ = spare.process.signal(Signal::Cont);
            }
        }
    }

    /// Continues the proxies that somebody has stopped, and sees to the limits of those that are stopped again and again.
    fn continue_stopped(&mut self) {
        // One that has a guard is being ended as it is.
        let is_ended = |pid| self.guards.iter().any(|guard| guard.guards_proxy(pid));
        let tell = |session: &SessionId, event| self.observer.notify(session, event);
        self.proxies.continue_stopped(Instant::now(), is_ended, tell);
    }

    fn is_without_session(&self, pid: Pid) -> bool {
        self.retired.contains(&pid) || self.spare.as_ref().is_some_and(|spare| spare.process.id().pid == pid)
    }

    fn handle_proxy_exit(&mut self, proxy: &LivingProxy, exit: ExitStatus) {
        let pid = proxy.process.id().pid;
        // Who ends one session may start another at once.
        self.spare_due = self.spare_due.min(Instant::now());
        if let Some(detach) = &proxy.detach {
            self.detach_dirs.insert(pid, detach.directory.clone());
        }
        match self.guards.iter_mut().find(|guard| guard.guards_proxy(pid)) {
            Some(guard) => guard.proxy_died(exit),
            None => self.guards.push(SessionGuard::of_orphans(
                &proxy.session,
                &proxy.enclosure,
                (proxy.process.id(), proxy.forks),
                exit,
                KillOptions::grace(ORPHAN_GRACE),
            )),
        }
    }

    /// A process that was re-parented to us and has died. Whose it was, only a guard that saw it alive can say; one
    /// guard alone needs no telling, unless it was seen to be of a session whose end was told before.
    fn handle_orphan_exit(&mut self, reaped: &ReapedProcess) {
        let by_sight = self.guards.iter().position(|guard| guard.has_seen(reaped.id));
        if self.abandoned_sessions.remove(reaped.id) && by_sight.is_none() {
            return;
        }
        let alone = || (self.guards.iter().filter(|guard| guard.has_orphans()).count() == 1).then_some(());
        let owner = by_sight.or_else(|| alone().and_then(|()| self.guards.iter().position(SessionGuard::has_orphans)));
        match owner {
            Some(at) => self.guards[at].record_reaped(reaped),
            None => self.guards.iter_mut().filter(|g| g.has_orphans()).for_each(|g| g.record_unattributed(reaped)),
        }
    }

    fn step_guards(&mut self) {
        let now = Instant::now();
        if self.guards.iter().any(|guard| guard.has_orphans() && guard.next() <= now) {
            let proxies = &self.proxies;
            let has_dead_proxy = |marker: &str| {
                proxies.all().any(|proxy| proxy.enclosure.marker == marker && registry::is_exiting(proxy.process.id()))
            };
            let (spare, leaving) = (self.spare.as_ref().map(|spare| spare.process.id().pid), &self.retired);
            let is_proxy = |pid| proxies.contains(pid) || spare == Some(pid) || leaving.contains(&pid);
            guard::assign_orphans(&mut self.guards, &mut self.abandoned_sessions, is_proxy, has_dead_proxy);
        }
        let mut at = 0;
        while at < self.guards.len() {
            let guard = &mut self.guards[at];
            if guard.next() <= now {
                guard.step(|pid| self.proxies.get(pid).map(|proxy| &proxy.process));
            }
            match guard.take_end() {
                None => at += 1,
                Some((process, exit, receipt)) => {
                    let (session, marker) = self.guards.swap_remove(at).into_session();
                    self.abandoned_sessions.record(marker, &receipt.survivors);
                    if let Some(directory) = self.detach_dirs.remove(&process.pid) {
                        detachment::clean_up_detached(&directory, &session, exit, &receipt, self.control.is_some());
                    }
                    if self.control.is_some() {
                        let (exit, receipt) = (Some(exit), Box::new(receipt));
                        let message = FromForkServer::ProxyGone { session: session.clone(), process, exit, receipt };
                        self.observer.end(process.pid, session, message);
                    }
                }
            }
        }
    }
}

/// Returns whether a pidfd says that its process is dead.
fn is_readable(pidfd: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&Timespec::default())), Ok(ready) if ready > 0)
}

fn not_forked(error: &std::io::Error) -> WireError {
    WireError::system("forking a proxy", error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a process that cannot be: no pid is as great. What is sent to it is sent to this very process.
    pub(super) fn proxy(number: Pid) -> LivingProxy {
        let own = PidFd::open(registry::identify(std::process::id()).expect("alive")).expect("alive");
        let fd = own.as_fd().try_clone_to_owned().expect("a descriptor");
        let id = ipc_protocol::ProcessId { pid: 5_000_000 + number, start_time: 1 };
        LivingProxy {
            session: format!("s{number}").parse().expect("an id"),
            enclosure: ContainmentSpec::default(),
            limits: Limits::default(),
            process: PidFd::from_parts(fd, id),
            forks: None,
            handover: None,
            detach: None,
            handoff_record: Json::null(),
        }
    }

    /// A turn for which nothing has happened looks at no session and at no child; one for which something happened to one
    /// looks at that.
    #[test]
    fn a_turn_looks_at_what_something_happened_to() {
        let adapters = Adapters::default();
        let (ours, theirs) = packet_pair().expect("a pair");
        let own = PidFd::open(registry::identify(std::process::id()).expect("alive")).expect("alive");
        let host = own.as_fd().try_clone_to_owned().expect("a descriptor");
        let title = ProcessTitle::locate().expect("a title");
        let mut server = ForkServer::with(&adapters, title, theirs, host, Vec::new()).expect("a fork server");
        for number in 0..200 {
            server.proxies.insert(proxy(number));
        }
        let child = registry::spawn(SpawnRequest { argv: vec!["true".into()], ..SpawnRequest::new("/bin/true") })
            .expect("started");
        while !is_readable(&child.process) {
            std::thread::yield_now();
        }
        let all = WaitResult { signals: true, control: true, host: true, adopt_listener: true, events: true };
        for _ in 0..10 {
            server.run_once(all);
        }
        assert_eq!(server.proxies.visits(), 0);
        assert!(child.process.try_reap().expect("nobody has looked for the dead").is_some());
        assert!(server.proxies.mark_stopped(5_000_007));
        server.run_once(all);
        assert_eq!(server.proxies.visits(), 1);
        drop(ours);
    }
}
