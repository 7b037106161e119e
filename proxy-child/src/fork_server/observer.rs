//! Observer of all processes of all sessions, by the kernel's proc connector; it reports them to the host.
//!
//! One subscription covers all sessions and is read in the fork server's loop, so a wedged proxy hides nothing. The observer works in
//! slices: forks and kills never wait for it. It is paused while there is no session.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use ipc_protocol::{Event, Pid, SessionId, message::FromForkServer};
use registry::{Lineage, LineageEvent, LineageRoot, ProcConnector, ProcFs, ReadOutcome, UnavailableFeature};
use rustix::time::{ClockId, clock_gettime};

use super::{READY_AFTER, control::HostChannel};

/// Longest turn of the observer on the fork server's one thread.
const SLICE: Duration = Duration::from_millis(2);
/// Longest time that reading is postponed for the sake of starts.
const LONGEST_DELAY: Duration = Duration::from_millis(5);
/// Time for which events other than execs gather after a read. A wake-up for each would take the processors from the processes that
/// start and end: an agent starts its tools by the dozen, and a kill ends them by the thousand.
const BATCH_DELAY: Duration = Duration::from_millis(5);
/// Same time while a session starts: its agent starts its threads one after the other, and keeps the processors busy.
const START_BATCH_DELAY: Duration = Duration::from_millis(20);
/// Least time between two batches of events to the host. Each batch wakes the host, its log and its subscribers, while an agent that
/// starts its tools by the dozen needs the processors. An event after a time of silence is sent at once.
const NOTIFY_INTERVAL: Duration = Duration::from_millis(5);
/// Most events that wait for a host that does not read; further ones are counted and lost.
const MAX_WAITING: usize = 8192;
/// Most packets in the socket's own queue: the rest waits here, where it is counted.
const MAX_UNSENT: usize = 64;
/// Least time between two resynchronizations: each one scans every process of every session.
const RESYNC_INTERVAL: Duration = Duration::from_millis(100);
/// Time for which the end of a session waits for its last process events: a process can be reaped before the kernel reports its end.
const FINAL_EVENTS_TIMEOUT: Duration = Duration::from_millis(20);
/// Largest disorder of events in nanoseconds: they come from several processors, almost in the order of their times.
const MAX_REORDER_NANOS: u64 = 1_000_000;

/// Observer of all sessions.
pub(crate) struct ProcessObserver {
    /// Source of events, or the reason why the connector does not work.
    source: Result<ConnectorSource, UnavailableFeature>,
    /// Roots by proxy, living or dead, of sessions that have not ended.
    roots: BTreeMap<Pid, LineageRoot>,
    ended_sessions: VecDeque<EndedSession>,
    queue: HostQueue,
    /// Earliest time of the next read, since a session starts.
    not_before: Instant,
    last_read: Instant,
}

/// Session that has ended, with the message that follows its last process event.
struct EndedSession {
    root: LineageRoot,
    session: SessionId,
    message: FromForkServer,
    /// End of the session in monotonic nanoseconds. Everything before it has to be read first.
    ended_at: u64,
    /// Time after which missing events are not waited for.
    deadline: Instant,
}

impl ProcessObserver {
    /// Subscribes and checks that events arrive, which takes about 0.5 ms.
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        let source = ProcConnector::open().map(ConnectorSource::new);
        let (roots, ended_sessions, queue) = (BTreeMap::new(), VecDeque::new(), HostQueue::new(now));
        Self { source, roots, ended_sessions, queue, not_before: now, last_read: now }
    }

    /// Returns whether it will observe a session that starts now. Must be called before anything of that session runs. Reading is
    /// postponed by `delay`, so that the start itself has the processors.
    pub(crate) fn prepare(&mut self, delay: Duration) -> bool {
        let Ok(source) = &mut self.source else { return false };
        let now = Instant::now();
        if matches!(source.reading, ReadingSchedule::Paused) {
            if source.connector.resume().is_err() {
                return false;
            }
            source.reading = ReadingSchedule::Following;
            self.last_read = now;
        }
        self.not_before = (now + delay).min(self.last_read + LONGEST_DELAY);
        source.starting_until = now + READY_AFTER;
        true
    }

    /// Adds the session of this proxy. Must be called before the next [`ProcessObserver::poll`]. `since` is after the proxy's fork and before
    /// anything that the proxy does for the session.
    pub(crate) fn add(&mut self, session: &SessionId, proxy: Pid, since: u64) {
        if let Ok(source) = &mut self.source {
            self.roots.insert(proxy, source.lineage.add(session.clone(), proxy, since));
        }
    }

    /// Queues another event of this session for the host, in order.
    pub(crate) fn notify(&mut self, session: &SessionId, event: Event) {
        self.queue.event(session, event);
    }

    /// Removes the session of `proxy`, which has ended. `message`, which reports that, is sent after its last process event.
    pub(crate) fn end(&mut self, proxy: Pid, session: SessionId, message: FromForkServer) {
        match (self.roots.remove(&proxy), &self.source) {
            (Some(root), Ok(_)) => {
                let (at, until) = (monotonic(), Instant::now() + FINAL_EVENTS_TIMEOUT);
                self.ended_sessions.push_back(EndedSession { root, session, message, ended_at: at, deadline: until });
            }
            _ => self.queue.message(&session, message),
        }
    }

    /// Drops everything, since the host is gone.
    pub(crate) fn stop(&mut self) {
        if let Ok(source) = &mut self.source {
            source.pause();
        }
        self.roots.clear();
        self.ended_sessions.clear();
        self.queue = HostQueue::new(Instant::now());
    }

    fn is_deferred(&self, now: Instant) -> bool {
        self.ended_sessions.is_empty() && now < self.not_before
    }

    fn is_batching(&self, now: Instant) -> bool {
        self.ended_sessions.is_empty() && self.source.as_ref().is_ok_and(|source| source.is_batching(now))
    }

    /// Returns the descriptor to poll for reading, if any.
    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        let (source, now) = (self.source.as_ref().ok()?, Instant::now());
        let connector = matches!(source.reading, ReadingSchedule::Following).then_some(&source.connector)?;
        let fd = if self.is_batching(now) { connector.exec_fd() } else { connector.as_fd() };
        (!self.is_deferred(now)).then_some(fd)
    }

    /// Returns the time at which [`ProcessObserver::poll`] is due even with nothing to read.
    pub(crate) fn next(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let (is_put_off, gathers) = (self.is_deferred(now), self.is_batching(now));
        let source = self.source.as_mut().ok()?;
        let read = match &source.reading {
            ReadingSchedule::Paused => None,
            ReadingSchedule::Lost { .. } => Some(source.resync_due()),
            ReadingSchedule::Resynchronizing { .. } => Some(now),
            ReadingSchedule::Following if is_put_off => Some(self.not_before),
            ReadingSchedule::Following if gathers => Some(source.batching_until),
            ReadingSchedule::Following if source.has_more => Some(now),
            ReadingSchedule::Following => {
                let quiet = source.lineage.due().map(|due| now + Duration::from_nanos(due.saturating_sub(monotonic())));
                quiet.into_iter().chain(self.ended_sessions.front().map(|over| over.deadline)).min()
            }
        };
        read.into_iter().chain(self.queue.due).min()
    }

    /// Reads events for one slice and sends their results. `is_ready` says whether the polled descriptor is readable.
    pub(crate) fn poll(&mut self, control: &mut HostChannel, is_ready: bool) {
        let now = Instant::now();
        if !self.is_deferred(now) && (is_ready || !self.is_batching(now)) {
            self.last_read = now;
            self.read(now);
            self.finish_ended();
        }
        self.queue.flush(control, Instant::now());
    }

    fn read(&mut self, began: Instant) {
        let Ok(source) = &mut self.source else { return };
        let mut told = LineageEvent::new();
        let result = source.step(began, &mut told);
        if let Err(error) = &result {
            for root in source.lineage.roots() {
                let reason = format!("the kernel's proc connector failed ({error}): no process event comes any more");
                told.push((root, Event::SessionLossy { reason }));
            }
        }
        for (root, event) in told {
            if let Some(session) = source.lineage.session(root) {
                self.queue.event(session, event);
            }
        }
        if let Err(error) = result {
            self.source = Err(UnavailableFeature {
                what: "the kernel's proc connector".into(),
                why: format!("reading it failed: {error}"),
                advice: "start another manager".into(),
            });
            for over in std::mem::take(&mut self.ended_sessions) {
                self.queue.message(&over.session, over.message);
            }
        }
    }

    /// Removes the ended sessions whose last process event was sent, or will not come.
    fn finish_ended(&mut self) {
        let Ok(source) = &mut self.source else { return };
        while let Some(over) = self.ended_sessions.front()
            && source.has_read_until(over.ended_at)
            && (source.lineage.is_empty(over.root) || over.deadline <= Instant::now())
            && let Some(over) = self.ended_sessions.pop_front()
        {
            let mut told = LineageEvent::new();
            source.lineage.remove(over.root, &mut ProcFs, &mut told);
            for (_, event) in told {
                self.queue.event(&over.session, event);
            }
            self.queue.message(&over.session, over.message);
        }
        if source.lineage.roots().next().is_none() {
            source.pause();
        }
    }
}

/// State of the reading.
enum ReadingSchedule {
    /// There are no sessions.
    Paused,
    /// Events are read as they come.
    Following,
    /// Events were lost. The kernel sends none until `/proc` is scanned.
    Lost { since: Instant },
    /// Resynchronizing: `todo` are the sessions still to be scanned.
    Resynchronizing { todo: Vec<LineageRoot> },
}

/// Proc connector, with the lineage that its events build.
struct ConnectorSource {
    connector: ProcConnector,
    lineage: Lineage,
    reading: ReadingSchedule,
    last_resync: Option<Instant>,
    /// True if the last read left events.
    has_more: bool,
    /// Until this time only an exec is read at once.
    batching_until: Instant,
    /// Until this time a session counts as starting.
    starting_until: Instant,
    /// Time up to which everything was read, in monotonic nanoseconds.
    read_until: u64,
}

impl ConnectorSource {
    fn new(connector: ProcConnector) -> Self {
        Self {
            connector,
            lineage: Lineage::default(),
            reading: ReadingSchedule::Paused,
            last_resync: None,
            has_more: false,
            batching_until: Instant::now(),
            starting_until: Instant::now(),
            read_until: 0,
        }
    }

    fn pause(&mut self) {
        // This fails only for a socket that is unusable, which the next resume reports.
        let _ = self.connector.pause();
        self.reading = ReadingSchedule::Paused;
    }

    fn resync_due(&self) -> Instant {
        match (&self.reading, self.last_resync) {
            (ReadingSchedule::Lost { since }, None) => *since,
            (_, last) => last.map_or_else(Instant::now, |last| last + RESYNC_INTERVAL),
        }
    }

    fn is_batching(&self, now: Instant) -> bool {
        matches!(self.reading, ReadingSchedule::Following) && !self.has_more && now < self.batching_until
    }

    fn has_read_until(&self, at: u64) -> bool {
        matches!(self.reading, ReadingSchedule::Following) && self.read_until >= at
    }

    /// Does one slice of the work that is due.
    fn step(&mut self, began: Instant, told: &mut LineageEvent) -> io::Result<()> {
        match &mut self.reading {
            ReadingSchedule::Paused => {}
            ReadingSchedule::Following => self.follow(began, told)?,
            ReadingSchedule::Lost { .. } => {
                if self.resync_due() <= began {
                    self.last_resync = Some(began);
                    // Events arrive again from here on, also for changes that the scan of /proc will show.
                    self.connector.resume()?;
                    self.reading = ReadingSchedule::Resynchronizing { todo: self.lineage.roots().collect() };
                }
            }
            ReadingSchedule::Resynchronizing { todo } => {
                while let Some(root) = todo.pop() {
                    self.lineage.resynchronize(root, &mut ProcFs, told);
                    let reason = "the kernel told more than could be read in time: of the processes that came and went \
                                  just now some are missing";
                    told.push((root, Event::SessionLossy { reason: reason.into() }));
                    if began.elapsed() >= SLICE {
                        break;
                    }
                }
                if todo.is_empty() {
                    self.reading = ReadingSchedule::Following;
                    self.has_more = true;
                }
            }
        }
        Ok(())
    }

    fn follow(&mut self, began: Instant, told: &mut LineageEvent) -> io::Result<()> {
        let slept = nanoseconds(ClockId::Boottime).saturating_sub(monotonic());
        self.lineage.set_boot_clock_offset(slept);
        loop {
            let before = monotonic();
            let mut last = 0;
            let lineage = &mut self.lineage;
            let drained = self.connector.read(|event| {
                last = event.at();
                lineage.apply(event, &mut ProcFs, told);
            })?;
            if last > 0 {
                self.batching_until = began + if began < self.starting_until { START_BATCH_DELAY } else { BATCH_DELAY };
            }
            match drained {
                ReadOutcome::All => {
                    (self.has_more, self.read_until) = (false, before);
                    self.lineage.tick(before, &mut ProcFs, told);
                    return Ok(());
                }
                ReadOutcome::More => {
                    self.read_until = self.read_until.max(last.saturating_sub(MAX_REORDER_NANOS));
                    if began.elapsed() >= SLICE {
                        self.has_more = true;
                        return Ok(());
                    }
                }
                ReadOutcome::Overrun => {
                    self.connector.pause()?;
                    self.has_more = false;
                    self.reading = ReadingSchedule::Lost { since: began };
                    return Ok(());
                }
            }
        }
    }
}

/// Messages that wait for the host, in order.
struct HostQueue {
    waiting: VecDeque<FromForkServer>,
    /// Number of events among them.
    events: usize,
    /// Events of each session that found no room.
    lost: BTreeMap<SessionId, u64>,
    /// Until this time events wait, unless another message is due.
    not_before: Instant,
    /// Time at which [`HostQueue::flush`] has work that neither a packet nor room for one announces.
    due: Option<Instant>,
}

impl HostQueue {
    fn new(now: Instant) -> Self {
        Self { waiting: VecDeque::new(), events: 0, lost: BTreeMap::new(), not_before: now, due: None }
    }

    fn event(&mut self, session: &SessionId, event: Event) {
        if self.events >= MAX_WAITING {
            match self.lost.get_mut(session) {
                Some(lost) => *lost += 1,
                None => drop(self.lost.insert(session.clone(), 1)),
            }
            return;
        }
        self.emit_loss_marker(session);
        self.push(session, event);
    }

    fn push(&mut self, session: &SessionId, event: Event) {
        self.events += 1;
        self.waiting.push_back(FromForkServer::Observed { session: session.clone(), event });
    }

    /// Queues the marker of a session's lost events, before further events of the session.
    fn emit_loss_marker(&mut self, session: &SessionId) {
        if let Some(lost) = self.lost.remove(session) {
            let reason = format!("the host did not read for a while, and {lost} process events were lost");
            self.push(session, Event::SessionLossy { reason });
        }
    }

    /// Queues the last message of a session, which is never lost.
    fn message(&mut self, session: &SessionId, message: FromForkServer) {
        self.emit_loss_marker(session);
        self.waiting.push_back(message);
    }

    fn flush(&mut self, control: &mut HostChannel, now: Instant) {
        self.due = None;
        if self.events == self.waiting.len() && now < self.not_before {
            self.due = (self.events > 0 || !self.lost.is_empty()).then_some(self.not_before);
            return;
        }
        loop {
            while control.unsent() < MAX_UNSENT {
                match self.waiting.pop_front() {
                    Some(message) => {
                        self.not_before = now + NOTIFY_INTERVAL;
                        self.events -= usize::from(matches!(message, FromForkServer::Observed { .. }));
                        control.queue(&message);
                    }
                    None => match self.lost.keys().next().cloned() {
                        Some(session) => self.emit_loss_marker(&session),
                        None => return control.flush(),
                    },
                }
            }
            control.flush();
            if control.unsent() > 0 {
                return;
            }
        }
    }
}

/// Returns the time of the kernel's events, in nanoseconds.
pub(super) fn monotonic() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use ipc_protocol::{
        ProcessId,
        codec::MessageAssembler,
        packet::{packet_pair, recv_packet},
    };

    use super::*;

    fn exited(pid: Pid) -> Event {
        Event::ProcessExited { process: ProcessId { pid, start_time: 0 }, command: None, exit: None }
    }

    /// A bounded number of events waits for a host that does not read. Further ones are counted and reported in their place, and the
    /// last message is not lost.
    #[test]
    fn what_a_host_does_not_read_is_bounded_and_counted() {
        let (ours, theirs) = packet_pair().expect("a pair");
        let mut control = HostChannel::new(theirs, ipc_protocol::reattach::WireFormat::Bincode);
        let now = Instant::now();
        let mut queue = HostQueue::new(now);
        let session: SessionId = "slow".parse().expect("an id");
        let most = Pid::try_from(MAX_WAITING).expect("it fits");
        for pid in 0..most + 100 {
            queue.event(&session, exited(pid));
        }
        assert_eq!(queue.waiting.len(), MAX_WAITING);
        let listed = FromForkServer::Listed { session: session.clone(), processes: Vec::new() };
        queue.message(&session, listed.clone());
        let mut heard = Vec::new();
        let (mut assembler, mut buffer) = (MessageAssembler::default(), Vec::new());
        while heard.last() != Some(&listed) {
            queue.flush(&mut control, now);
            assert!(control.unsent() <= MAX_UNSENT);
            control.flush();
            while let Ok(Some(_)) = recv_packet(&ours, &mut buffer) {
                heard.extend(assembler.frame(&buffer).expect("a message"));
            }
        }
        assert_eq!((heard.len(), queue.events, queue.lost.len()), (MAX_WAITING + 2, 0, 0));
        let FromForkServer::Observed { event: Event::SessionLossy { reason }, .. } = &heard[MAX_WAITING] else {
            panic!("{:?}", heard[MAX_WAITING])
        };
        assert!(reason.contains("100 process events"), "{reason}");
    }

    /// The first event after a silence is sent at once, those soon after it together, and a last message flushes the events before it.
    #[test]
    fn what_comes_in_a_burst_is_told_together() {
        let (ours, theirs) = packet_pair().expect("a pair");
        let mut control = HostChannel::new(theirs, ipc_protocol::reattach::WireFormat::Bincode);
        let began = Instant::now();
        let mut queue = HostQueue::new(began);
        let session: SessionId = "busy".parse().expect("an id");
        let heard = |queue: &mut HostQueue, control: &mut HostChannel, now| {
            queue.flush(control, now);
            let (mut assembler, mut buffer, mut messages) = (MessageAssembler::default(), Vec::new(), Vec::new());
            while let Ok(Some(_)) = recv_packet(&ours, &mut buffer) {
                messages.extend(assembler.frame::<FromForkServer>(&buffer).expect("a message"));
            }
            messages.len()
        };
        queue.event(&session, exited(1));
        assert_eq!((heard(&mut queue, &mut control, began), queue.due), (1, None));
        let soon = began + NOTIFY_INTERVAL / 2;
        for pid in 2..=4 {
            queue.event(&session, exited(pid));
            assert_eq!((heard(&mut queue, &mut control, soon), queue.due), (0, Some(began + NOTIFY_INTERVAL)));
        }
        assert_eq!((heard(&mut queue, &mut control, began + NOTIFY_INTERVAL), queue.due), (3, None));
        queue.event(&session, exited(5));
        assert_eq!(heard(&mut queue, &mut control, began + NOTIFY_INTERVAL), 0);
        queue.message(&session, FromForkServer::Listed { session: session.clone(), processes: Vec::new() });
        assert_eq!((heard(&mut queue, &mut control, began + NOTIFY_INTERVAL), queue.due), (2, None));
    }

    /// After a read only an exec is read at once, unless a session waits for its last process event.
    #[test]
    fn all_but_execs_gather() {
        let (_ours, theirs) = packet_pair().expect("a pair");
        let mut control = HostChannel::new(theirs, ipc_protocol::reattach::WireFormat::Bincode);
        let mut observer = ProcessObserver::new();
        if let Err(why) = &observer.source {
            return println!("NOT RUN: {why}");
        }
        assert!(observer.prepare(Duration::ZERO));
        let session: SessionId = "busy".parse().expect("an id");
        observer.add(&session, std::process::id(), monotonic());
        let polled = |observer: &ProcessObserver| observer.as_fd().map(|fd| fd.as_raw_fd());
        let (all, execs) = match &observer.source {
            Ok(ConnectorSource { connector, .. }) => (connector.as_fd().as_raw_fd(), connector.exec_fd().as_raw_fd()),
            Err(_) => unreachable!("it is there"),
        };
        assert_eq!(polled(&observer), Some(all), "nothing was read yet");
        // The connector reports the fork before `spawn` returns.
        let mut read = |observer: &mut ProcessObserver| {
            let child =
                registry::SpawnRequest { argv: vec!["true".into()], ..registry::SpawnRequest::new("/bin/true") };
            drop(registry::spawn(child).expect("started"));
            loop {
                observer.poll(&mut control, true);
                if observer.source.as_ref().is_ok_and(|source| !source.has_more) {
                    break;
                }
            }
        };
        let began = Instant::now();
        read(&mut observer);
        let Ok(source) = &mut observer.source else { panic!("it failed") };
        assert!(source.batching_until >= began + START_BATCH_DELAY, "its session starts");
        source.starting_until = began;
        read(&mut observer);
        let Ok(source) = &mut observer.source else { panic!("it failed") };
        assert!(
            (began + BATCH_DELAY..=Instant::now() + BATCH_DELAY).contains(&source.batching_until),
            "it has started"
        );
        // `read` treats everything before this time as due.
        let later = began + Duration::from_secs(3600);
        source.batching_until = later;
        // The delay of the queue is another matter.
        observer.queue = HostQueue::new(began);
        assert_eq!((polled(&observer), observer.next()), (Some(execs), Some(later)));
        let last = FromForkServer::Listed { session: session.clone(), processes: Vec::new() };
        observer.end(std::process::id(), session, last);
        assert_eq!(polled(&observer), Some(all));
    }
}
