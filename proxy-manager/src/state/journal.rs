//! Journal of a session, from which a later manager ends the session if all of its supervisors die at once.
//!
//! Each batch is one `write`, never synced: written data survives the death of every process, and after a reboot there
//! is nothing to end.
//!
//! A disk can hang all the same, so a thread writes: one for all journals of a state directory, in the order in which the
//! writes were handed over. A journal has one write under way; what changes meanwhile is the next batch. A write that is
//! not done in [`LATE`] counts as failed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    future::pending,
    io::{self, Write},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use ipc_protocol::{ErrorChain, Event, Pid, ProcessId};
use rustix::{
    fs::{AtFlags, Mode, OFlags},
    io::Errno,
};
use tokio::{sync::oneshot, time::timeout_at};

use super::{
    JournalDir,
    record::{JournalHeader, JournalLine, JournalRecord, PosixSession},
};

/// Length in bytes from which a journal is rewritten, if most of it concerns dead processes.
const MAX_BYTES: usize = 1 << 20;
/// Pause before retrying after a failure.
const RETRY: Duration = Duration::from_secs(5);
/// Time after which a write that is still under way counts as failed.
const LATE: Duration = Duration::from_secs(5);
/// Number of live processes above which they are checked: an end can be missed.
const MIN_CHECK_AT: usize = 8192;

/// Greatest age of the number of forks that a POSIX session is noted with.
const FORKS_AGE: Duration = Duration::from_millis(100);
/// Time before a sweep by this manager in which nobody may have watched: a proxy that has lost its fork server is waited for first.
const UNWATCHED: Duration = Duration::from_secs(3);

/// Forks on the machine until now, or a moment ago: an older number is the safe one. It is dear to ask for.
fn forks() -> Option<u64> {
    static LAST: Mutex<Option<(Instant, u64)>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if last.is_none_or(|(at, _)| at.elapsed() > FORKS_AGE) {
        *last = registry::forks_since_boot().map(|forks| (Instant::now(), forks));
    }
    last.map(|(_, forks)| forks)
}

/// Processes that adopt the orphans of the supervisors, and their cgroup.
#[derive(Debug, Default)]
struct OrphanDestinations {
    /// The ancestors of this process; one of them adopts it.
    reapers: Vec<ProcessId>,
    /// The cgroup (version 2) of this process.
    cgroup: Option<String>,
}

impl OrphanDestinations {
    /// Of this process. They are looked at once: an ancestor that dies later leaves it to another one of these.
    fn here() -> Arc<Self> {
        static HERE: OnceLock<Arc<OrphanDestinations>> = OnceLock::new();
        HERE.get_or_init(|| Arc::new(Self::look())).clone()
    }

    fn look() -> Self {
        let mut reapers = Vec::new();
        let adopts = adopts_orphans();
        let mut next = registry::find_process(std::process::id()).ok().flatten();
        while let Some(process) = next {
            if adopts || process.id.pid != std::process::id() {
                reapers.push(process.id);
            }
            next = registry::find_process(process.ppid).ok().flatten().filter(|parent| parent.id.pid != process.id.pid);
        }
        Self { reapers, cgroup: cgroup_of("self") }
    }
}

/// Returns whether this process adopts what its descendants leave: it is a subreaper, or the first of its PID namespace.
pub(super) fn adopts_orphans() -> bool {
    std::process::id() == 1 || nix::sys::prctl::get_child_subreaper().unwrap_or(false)
}

/// The cgroup (version 2) of a process.
pub(super) fn cgroup_of(process: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::").map(str::to_owned))
}

/// The file of a journal. Only jobs of its directory touch it.
#[derive(Debug)]
struct JournalFile {
    sessions: Arc<JournalDir>,
    /// `None` before the first write.
    name: Option<String>,
    file: Option<File>,
}

/// Result of a write, or of a removal.
pub(crate) type JournalResult = oneshot::Receiver<io::Result<()>>;

/// Write that is under way.
#[derive(Debug)]
struct JournalWrite {
    result: JournalResult,
    /// Instant from which it counts as failed.
    due: tokio::time::Instant,
    is_late: bool,
}

/// Journal of a session: the processes that are known, and their file.
#[derive(Debug)]
pub(crate) struct SessionJournal {
    /// `None` without a state directory: then the journal is for this manager alone.
    file: Option<(Arc<JournalDir>, Arc<Mutex<JournalFile>>)>,
    header: JournalHeader,
    proxy: Option<ProcessId>,
    living: BTreeSet<ProcessId>,
    /// The POSIX sessions that they are in, or were.
    posix: BTreeMap<Pid, PosixSession>,
    surroundings: Arc<OrphanDestinations>,
    /// Number of them at which they are checked.
    check_at: usize,
    write: Option<JournalWrite>,
    batch: String,
    /// True if the file has all but the batch once the write under way is done. Else it is rewritten.
    is_whole: bool,
    written: usize,
    /// Set while the file on disk is incomplete: the instant to rewrite it.
    broken: Option<Instant>,
    /// True if the failure was reported.
    failure_reported: bool,
}

impl SessionJournal {
    /// The journal of a session that is about to start. Nothing is written yet.
    pub(crate) fn new(sessions: Option<Arc<JournalDir>>, header: JournalHeader) -> Self {
        Self::of_file(sessions, None, header)
    }

    fn of_file(sessions: Option<Arc<JournalDir>>, name: Option<String>, header: JournalHeader) -> Self {
        let file = sessions.map(|sessions| {
            let file = JournalFile { sessions: sessions.clone(), name, file: None };
            (sessions, Arc::new(Mutex::new(file)))
        });
        Self {
            file,
            header,
            proxy: None,
            living: BTreeSet::new(),
            posix: BTreeMap::new(),
            surroundings: OrphanDestinations::here(),
            check_at: MIN_CHECK_AT,
            write: None,
            batch: String::new(),
            is_whole: false,
            written: 0,
            broken: None,
            failure_reported: false,
        }
    }

    /// Continues the journal that an earlier host of the session left under this name.
    pub(crate) fn adopt(sessions: Arc<JournalDir>, name: String, record: JournalRecord, host: ProcessId) -> Self {
        let JournalRecord { header, proxy, living, posix, .. } = record;
        let header = JournalHeader { host, ..header };
        Self { proxy, living, posix, ..Self::of_file(Some(sessions), Some(name), header) }
    }

    /// Returns the record of the session, as it would be read back.
    pub(crate) fn record(&self) -> JournalRecord {
        let OrphanDestinations { reapers, cgroup } = &*self.surroundings;
        JournalRecord {
            proxy: self.proxy,
            living: self.living.clone(),
            posix: self.posix.clone(),
            reapers: reapers.clone(),
            host_cgroup: cgroup.clone(),
            unwatched_since: registry::ticks_ago(UNWATCHED).max(self.header.since),
            ..JournalRecord::new(self.header.clone(), Some(self.header.fork_server))
        }
    }

    /// Its living processes.
    pub(crate) fn living(&self) -> &BTreeSet<ProcessId> {
        &self.living
    }

    /// Begins anew for the same session, which starts once more: nothing is left of the processes before. The file is
    /// replaced with the next write.
    pub(crate) fn begin_again(&mut self) {
        (self.proxy, self.is_whole) = (None, false);
        self.living.clear();
        self.posix.clear();
    }

    /// Records the session's proxy.
    pub(crate) fn proxy(&mut self, process: ProcessId) {
        if self.proxy.replace(process) != Some(process) {
            JournalLine::Proxy(process).write(&mut self.batch);
        }
    }

    /// The session is known from now on, and has this proxy: nothing of it is older.
    pub(crate) fn began_with(&mut self, proxy: ProcessId) {
        self.header.since = self.header.since.min(proxy.start_time);
        self.proxy(proxy);
    }

    /// The session has this process.
    pub(crate) fn spawned(&mut self, process: ProcessId) {
        if self.living.insert(process) {
            JournalLine::Spawned(process).write(&mut self.batch);
        }
        if self.living.len() > self.check_at {
            self.living.retain(|id| registry::identify(id.pid).is_ok_and(|now| now == *id));
            self.check_at = MIN_CHECK_AT.max(2 * self.living.len());
        }
    }

    /// Notes that a process of the session is in this POSIX session.
    fn in_posix_session(&mut self, sid: Pid, since: u64) {
        // What has not left that of its proxy yet is in that of all proxies.
        if sid == 0 || sid == self.header.fork_server.pid || self.posix.contains_key(&sid) {
            return;
        }
        let Some(forks) = forks() else { return };
        if self.posix.len() >= MIN_CHECK_AT
            && let Some(oldest) = self.posix.values().min_by_key(|posix| posix.since).map(|posix| posix.sid)
        {
            self.posix.remove(&oldest);
        }
        let posix = PosixSession { sid, since, forks };
        self.posix.insert(sid, posix);
        JournalLine::Posix(posix).write(&mut self.batch);
    }

    /// Takes note of the processes that an event is about.
    pub(crate) fn record_event(&mut self, event: &Event) {
        match event {
            Event::ProcessSpawned(info) => {
                self.spawned(info.id);
                self.in_posix_session(info.sid, info.id.start_time);
            }
            Event::ProcessExited { process, .. } if self.living.remove(process) => {
                JournalLine::Exited(*process).write(&mut self.batch);
            }
            _ => {}
        }
    }

    /// Returns true while changes are not in the file, and that is not reported as a failure.
    pub(crate) fn is_behind(&self) -> bool {
        let has_changes = !self.is_whole || !self.batch.is_empty();
        self.file.is_some() && self.broken.is_none() && (self.write.is_some() || has_changes)
    }

    /// Hands the recorded changes over to be written, if no write is under way. A failure is returned once, and retried
    /// later.
    pub(crate) fn start_write(&mut self) -> Option<io::Error> {
        if self.file.is_none() || self.broken.is_some_and(|retry| retry > Instant::now()) {
            // A rewrite has them all.
            self.batch.clear();
            return None;
        }
        if self.write.is_none() {
            return self.hand_over();
        }
        if self.batch.len() > MAX_BYTES {
            self.batch.clear();
            self.is_whole = false;
        }
        None
    }

    /// Waits for the write that is under way, and returns a failure that is to be reported.
    pub(crate) async fn written(&mut self) -> Option<io::Error> {
        let Some(write) = &mut self.write else { return pending().await };
        let result = if write.is_late {
            (&mut write.result).await
        } else {
            let Ok(result) = timeout_at(write.due, &mut write.result).await else {
                write.is_late = true;
                let error = format!("it is not written after {} s: the disk hangs", LATE.as_secs());
                return self.fail(io::Error::new(io::ErrorKind::TimedOut, error));
            };
            result
        };
        let was_late = self.write.take().is_some_and(|write| write.is_late);
        match result.unwrap_or_else(|_| Err(io::Error::other("the thread that writes it panicked"))) {
            // Changes since then were dropped: it is rewritten when that is due.
            Ok(()) if was_late => None,
            Ok(()) => {
                if self.broken.take().is_some() {
                    tracing::info!(session = %self.header.session, "rewrote the session's journal after a failure");
                }
                None
            }
            Err(error) => self.fail(error),
        }
    }

    /// Removes the journal, since nothing is left of the session. If that fails, the next manager finds it, and that nothing is left.
    pub(crate) fn remove(self) -> Option<JournalResult> {
        self.job("removing the journal", JournalFile::remove)?.ok()
    }

    /// Writes the last changes, and leaves the journal to the next manager.
    pub(crate) fn close(mut self) -> Option<JournalResult> {
        // Nobody waits for the write that is under way: this one makes up for it where it fails.
        self.is_whole &= self.write.is_none();
        // Failures were logged.
        let _ = self.hand_over();
        self.write.map(|write| write.result)
    }

    fn hand_over(&mut self) -> Option<io::Error> {
        if self.is_whole && self.batch.is_empty() {
            return None;
        }
        let is_long = self.written > MAX_BYTES.max(64 * (self.living.len() + self.posix.len()));
        let header = (!self.is_whole || is_long).then(|| self.header.clone());
        let text = if header.is_some() { self.whole() } else { std::mem::take(&mut self.batch) };
        self.batch.clear();
        self.written = text.len() + if header.is_some() { 0 } else { self.written };
        self.is_whole = true;
        let handed_over = self.job("writing the journal", move |file| match header {
            Some(header) => file.replace(&header, &text),
            None => file.append(&text),
        })?;
        match handed_over {
            Ok(result) => {
                let due = tokio::time::Instant::now() + LATE;
                self.write = Some(JournalWrite { result, due, is_late: false });
                None
            }
            Err(error) => self.fail(error),
        }
    }

    /// Hands work with the file over, which is done after that before it. `None` without a file.
    fn job(
        &self,
        operation: &str,
        work: impl FnOnce(&mut JournalFile) -> io::Result<()> + Send + 'static,
    ) -> Option<io::Result<JournalResult>> {
        let (sessions, file) = self.file.clone()?;
        let (done, result) = oneshot::channel();
        let handed_over = sessions.work.push(operation, move || {
            let result = work(&mut file.lock().unwrap_or_else(PoisonError::into_inner));
            // A session that is over may not wait for it.
            let _ = done.send(result);
        });
        Some(handed_over.map(|()| result).map_err(|error| io::Error::other(error.chain())))
    }

    /// Has the file rewritten later: lost changes are in what is known.
    fn fail(&mut self, error: io::Error) -> Option<io::Error> {
        self.batch.clear();
        self.is_whole = false;
        self.broken = Some(Instant::now() + RETRY);
        tracing::warn!(session = %self.header.session, error = %ErrorChain(&error), "failed to write the session's journal");
        (!std::mem::replace(&mut self.failure_reported, true)).then_some(error)
    }

    /// Returns the text of a file with all that is known.
    fn whole(&self) -> String {
        let mut text = self.header.line();
        let OrphanDestinations { reapers, cgroup } = &*self.surroundings;
        let container = self.header.container.clone().map(JournalLine::Container);
        let around = reapers.iter().copied().map(JournalLine::Reaper);
        let around = around.chain(cgroup.clone().map(JournalLine::HostCgroup)).chain(container);
        let processes =
            self.proxy.map(JournalLine::Proxy).into_iter().chain(self.living.iter().copied().map(JournalLine::Spawned));
        for line in around.chain(processes).chain(self.posix.values().copied().map(JournalLine::Posix)) {
            line.write(&mut text);
        }
        text
    }
}

impl JournalFile {
    fn append(&mut self, text: &str) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Err(io::Error::other("the journal is not open")) };
        file.write_all(text.as_bytes())
    }

    /// Writes another file, which replaces this one.
    fn replace(&mut self, header: &JournalHeader, text: &str) -> io::Result<()> {
        let dir = &self.sessions.dir;
        // Uses a name of its own from the start: a journal left by an earlier session with that id is not replaced.
        let name = match &self.name {
            Some(name) => name.clone(),
            None => self.sessions.free_name(header)?,
        };
        let draft = format!("{name}.draft");
        let flags =
            OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mut file = File::from(rustix::fs::openat(dir, &draft, flags, Mode::from_raw_mode(0o600))?);
        let written = file.write_all(text.as_bytes()).and_then(|()| Ok(rustix::fs::renameat(dir, &draft, dir, &name)?));
        if let Err(error) = written {
            // What it fails with is no worse than the failure itself.
            let _ = rustix::fs::unlinkat(dir, &draft, AtFlags::empty());
            return Err(error);
        }
        (self.name, self.file) = (Some(name), Some(file));
        Ok(())
    }

    fn remove(&mut self) -> io::Result<()> {
        let Some(name) = self.name.take() else { return Ok(()) };
        match rustix::fs::unlinkat(&self.sessions.dir, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::state::{StateDir, record::JournalRecord, tests};

    /// Writes the changes, and waits for that.
    fn commit(journal: &mut SessionJournal) -> Option<io::Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let failed = journal.start_write();
        if journal.write.is_some() { runtime.block_on(journal.written()) } else { failed }
    }

    fn remove(journal: SessionJournal) {
        journal.remove().expect("handed over").blocking_recv().expect("done").expect("removed");
    }

    fn journal(state: &StateDir, session: &str, marker: &str) -> SessionJournal {
        let header = JournalHeader {
            session: session.parse().expect("valid"),
            marker: marker.into(),
            place: state.place.clone(),
            since: 0,
            strict: false,
            host: tests::own(),
            fork_server: tests::own(),
            cgroup: None,
            container: None,
        };
        SessionJournal::new(Some(state.sessions.clone()), header)
    }

    fn id(pid: u32) -> ProcessId {
        ProcessId { pid, start_time: 7 }
    }

    fn exited(pid: u32) -> Event {
        Event::ProcessExited { process: id(pid), command: None, exit: None }
    }

    fn read(state: &StateDir, name: &str) -> JournalRecord {
        JournalRecord::read(&state.sessions.read(name).expect("there")).expect("a header")
    }

    #[test]
    fn it_follows_the_session_and_goes_with_it() {
        let scratch = tests::Scratch::new();
        let state = StateDir::open(&scratch.0, tests::own()).expect("made");
        let mut journal = journal(&state, "...", "one");
        assert!(state.sessions.journals().expect("listed").is_empty(), "nothing before the first write");
        assert!(commit(&mut journal).is_none());
        assert_eq!(read(&state, "....journal").living, [].into());
        journal.proxy(id(1));
        [2, 3, 4].into_iter().for_each(|pid| journal.spawned(id(pid)));
        journal.record_event(&exited(3));
        journal.record_event(&exited(99));
        assert!(commit(&mut journal).is_none());
        let record = read(&state, "....journal");
        assert_eq!((record.proxy, record.living, record.damaged), (Some(id(1)), [id(2), id(4)].into(), 0));
        // Another of that id does not take its place.
        let mut second = self::journal(&state, "...", "two");
        assert!(commit(&mut second).is_none());
        assert_eq!(state.sessions.journals().expect("listed"), ["....journal", "....two.journal"]);
        remove(journal);
        assert_eq!(state.sessions.journals().expect("listed"), ["....two.journal"]);
        remove(second);
        assert_eq!(fs::read_dir(scratch.0.join("sessions")).expect("there").count(), 0);
    }

    #[test]
    fn its_length_is_bounded() {
        let scratch = tests::Scratch::new();
        let state = StateDir::open(&scratch.0, tests::own()).expect("made");
        let mut journal = journal(&state, "s", "m");
        journal.spawned(id(1));
        let path = scratch.0.join("sessions/s.journal");
        let mut longest = 0;
        for round in 0..2000 {
            for pid in 2..102 {
                journal.spawned(id(pid + round % 7));
                journal.record_event(&exited(pid + round % 7));
            }
            assert!(commit(&mut journal).is_none());
            longest = longest.max(fs::metadata(&path).expect("there").len());
        }
        assert!((MAX_BYTES as u64..2 * MAX_BYTES as u64).contains(&longest), "{longest}");
        let record = read(&state, "s.journal");
        assert_eq!((record.living, record.damaged), ([id(1)].into(), 0));
        // Ends that were missed do not pile up either.
        (2..20_000).for_each(|pid| journal.spawned(ProcessId { pid, start_time: u64::MAX }));
        assert!(journal.living.len() <= MIN_CHECK_AT + 1, "{}", journal.living.len());
    }

    #[test]
    fn the_last_write_makes_up_for_a_failure_of_the_one_that_nobody_waits_for() {
        let scratch = tests::Scratch::new();
        let state = StateDir::open(&scratch.0, tests::own()).expect("made");
        let mut journal = journal(&state, "s", "m");
        journal.spawned(id(1));
        assert!(commit(&mut journal).is_none());
        // The file cannot be appended to, and the session ends before anybody has heard of that.
        let (_, file) = journal.file.clone().expect("a file");
        file.lock().expect("no panic").file = Some(File::open("/dev/null").expect("read-only"));
        journal.spawned(id(2));
        assert!(journal.start_write().is_none());
        journal.spawned(id(3));
        journal.close().expect("a write").blocking_recv().expect("done").expect("written");
        assert_eq!(read(&state, "s.journal").living, [id(1), id(2), id(3)].into());
    }

    #[test]
    fn a_failure_is_told_once_and_made_good() {
        let scratch = tests::Scratch::new();
        let state = StateDir::open(&scratch.0, tests::own()).expect("made");
        let in_the_way = scratch.0.join("sessions/s.journal.draft");
        fs::create_dir(&in_the_way).expect("made");
        let mut journal = journal(&state, "s", "m");
        journal.spawned(id(1));
        assert!(commit(&mut journal).is_some());
        journal.spawned(id(2));
        assert!(commit(&mut journal).is_none(), "it is not due");
        journal.broken = Some(Instant::now());
        assert!(commit(&mut journal).is_none(), "it was told");
        assert!(journal.broken.is_some());
        fs::remove_dir(&in_the_way).expect("empty");
        journal.record_event(&exited(1));
        journal.spawned(id(3));
        journal.broken = Some(Instant::now());
        assert!(commit(&mut journal).is_none());
        assert_eq!(read(&state, "s.journal").living, [id(2), id(3)].into());
        remove(journal);
    }
}
