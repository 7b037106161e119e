//! Journal of a session, from which a later manager ends the session if all of its supervisors die at once.
//!
//! Each batch is one `write`, never synced: written data survives the death of every process, and after a reboot there
//! is nothing to end.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, Write},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use ipc_protocol::{Event, Pid, ProcessId};
use rustix::{
    fs::{AtFlags, Mode, OFlags},
    io::Errno,
};

use super::{
    Sessions,
    record::{Header, Line, PosixSession, Record},
};

/// Length in bytes from which a journal is rewritten, if most of it concerns dead processes.
const LONG: usize = 1 << 20;
/// Pause before retrying after a failure.
const RETRY: Duration = Duration::from_secs(5);
/// Number of live processes above which they are checked: an end can be missed.
const MANY: usize = 8192;

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
struct Surroundings {
    /// The ancestors of this process; one of them adopts it.
    reapers: Vec<ProcessId>,
    /// The cgroup (version 2) of this process.
    cgroup: Option<String>,
}

impl Surroundings {
    /// Of this process. They are looked at once: an ancestor that dies later leaves it to another one of these.
    fn here() -> Arc<Self> {
        static HERE: OnceLock<Arc<Surroundings>> = OnceLock::new();
        HERE.get_or_init(|| Arc::new(Self::look())).clone()
    }

    fn look() -> Self {
        let mut reapers = Vec::new();
        let adopts = adopts_orphans();
        let mut next = registry::look(std::process::id()).ok().flatten();
        while let Some(process) = next {
            if adopts || process.id.pid != std::process::id() {
                reapers.push(process.id);
            }
            next = registry::look(process.ppid).ok().flatten().filter(|parent| parent.id.pid != process.id.pid);
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

/// The one writer of a journal.
#[derive(Debug)]
pub(crate) struct Journal {
    /// File of the journal; `None` without a state directory: then it is for this manager alone.
    sessions: Option<Arc<Sessions>>,
    header: Header,
    /// `None` before the first write.
    name: Option<String>,
    proxy: Option<ProcessId>,
    living: BTreeSet<ProcessId>,
    /// The POSIX sessions that they are in, or were.
    posix: BTreeMap<Pid, PosixSession>,
    surroundings: Arc<Surroundings>,
    /// Number of them at which they are checked.
    many: usize,
    file: Option<File>,
    batch: String,
    written: usize,
    /// Set while the file on disk is incomplete: the instant to rewrite it.
    broken: Option<Instant>,
    /// True if the failure was reported.
    told: bool,
}

impl Journal {
    /// The journal of a session that is about to start. Nothing is written yet.
    pub(crate) fn new(sessions: Option<Arc<Sessions>>, header: Header) -> Self {
        Self {
            sessions,
            header,
            name: None,
            proxy: None,
            living: BTreeSet::new(),
            posix: BTreeMap::new(),
            surroundings: Surroundings::here(),
            many: MANY,
            file: None,
            batch: String::new(),
            written: 0,
            broken: None,
            told: false,
        }
    }

    /// Continues the journal that an earlier host of the session left under this name.
    pub(crate) fn taken_over(sessions: Arc<Sessions>, name: String, record: Record, host: ProcessId) -> Self {
        let Record { header, proxy, living, posix, .. } = record;
        Self { name: Some(name), proxy, living, posix, ..Self::new(Some(sessions), Header { host, ..header }) }
    }

    /// Returns the record of the session, as it would be read back.
    pub(crate) fn record(&self) -> Record {
        let Surroundings { reapers, cgroup } = &*self.surroundings;
        Record {
            proxy: self.proxy,
            living: self.living.clone(),
            posix: self.posix.clone(),
            reapers: reapers.clone(),
            host_cgroup: cgroup.clone(),
            unwatched_since: registry::ticks_ago(UNWATCHED).max(self.header.since),
            ..Record::new(self.header.clone(), Some(self.header.fork_server))
        }
    }

    /// Its living processes.
    pub(crate) fn living(&self) -> &BTreeSet<ProcessId> {
        &self.living
    }

    /// Creates a new journal of the same session, which is about to start once more.
    pub(crate) fn renewed(&self) -> Self {
        Self::new(self.sessions.clone(), self.header.clone())
    }

    /// Records the session's proxy.
    pub(crate) fn proxy(&mut self, process: ProcessId) {
        if self.proxy.replace(process) != Some(process) {
            Line::Proxy(process).write(&mut self.batch);
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
            Line::Spawned(process).write(&mut self.batch);
        }
        if self.living.len() > self.many {
            self.living.retain(|id| registry::identify(id.pid).is_ok_and(|now| now == *id));
            self.many = MANY.max(2 * self.living.len());
        }
    }

    /// Notes that a process of the session is in this POSIX session.
    fn in_posix_session(&mut self, sid: Pid, since: u64) {
        // What has not left that of its proxy yet is in that of all proxies.
        if sid == 0 || sid == self.header.fork_server.pid || self.posix.contains_key(&sid) {
            return;
        }
        let Some(forks) = forks() else { return };
        if self.posix.len() >= MANY
            && let Some(oldest) = self.posix.values().min_by_key(|posix| posix.since).map(|posix| posix.sid)
        {
            self.posix.remove(&oldest);
        }
        let posix = PosixSession { sid, since, forks };
        self.posix.insert(sid, posix);
        Line::Posix(posix).write(&mut self.batch);
    }

    /// Takes note of the processes that an event is about.
    pub(crate) fn note(&mut self, event: &Event) {
        match event {
            Event::ProcessSpawned(info) => {
                self.spawned(info.id);
                self.in_posix_session(info.sid, info.id.start_time);
            }
            Event::ProcessExited { process, .. } if self.living.remove(process) => {
                Line::Exited(*process).write(&mut self.batch);
            }
            _ => {}
        }
    }

    /// Writes the recorded changes. A failure is returned once, and retried later.
    pub(crate) fn commit(&mut self) -> Option<io::Error> {
        if self.sessions.is_none() {
            self.batch.clear();
            return None;
        }
        let result = match (&mut self.file, self.broken) {
            (_, Some(retry)) if retry > Instant::now() => return None,
            (Some(_), None) if self.batch.is_empty() => return None,
            (Some(_), None) if self.written > LONG.max(64 * (self.living.len() + self.posix.len())) => self.rewrite(),
            (Some(file), None) => file.write_all(self.batch.as_bytes()),
            _ => self.rewrite(),
        };
        match result {
            Ok(()) => {
                self.written += self.batch.len();
                self.batch.clear();
                if self.broken.take().is_some() {
                    tracing::info!(session = %self.header.session, "rewrote the session's journal after a failure");
                }
                None
            }
            Err(error) => {
                // Lost changes are in `living`, which the next attempt writes in full.
                self.batch.clear();
                self.broken = Some(Instant::now() + RETRY);
                tracing::warn!(session = %self.header.session, %error, "failed to write the session's journal");
                (!std::mem::replace(&mut self.told, true)).then_some(error)
            }
        }
    }

    /// Writes the full state to another file, which replaces this one.
    fn rewrite(&mut self) -> io::Result<()> {
        let Some(sessions) = &self.sessions else { return Ok(()) };
        let mut text = self.header.line();
        let Surroundings { reapers, cgroup } = &*self.surroundings;
        let around = reapers.iter().copied().map(Line::Reaper).chain(cgroup.clone().map(Line::HostCgroup));
        let processes = self.proxy.map(Line::Proxy).into_iter().chain(self.living.iter().copied().map(Line::Spawned));
        for line in around.chain(processes).chain(self.posix.values().copied().map(Line::Posix)) {
            line.write(&mut text);
        }
        // Uses a name of its own from the start: a journal left by an earlier session with that id is not replaced.
        let name = match &self.name {
            Some(name) => name.clone(),
            None => sessions.free_name(&self.header)?,
        };
        let draft = format!("{name}.draft");
        let flags =
            OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mut file = File::from(rustix::fs::openat(&sessions.dir, &draft, flags, Mode::from_raw_mode(0o600))?);
        let written = file
            .write_all(text.as_bytes())
            .and_then(|()| Ok(rustix::fs::renameat(&sessions.dir, &draft, &sessions.dir, &name)?));
        if let Err(error) = written {
            // What it fails with is no worse than the failure itself.
            let _ = rustix::fs::unlinkat(&sessions.dir, &draft, AtFlags::empty());
            return Err(error);
        }
        self.name = Some(name);
        self.batch.clear();
        self.written = text.len();
        self.file = Some(file);
        Ok(())
    }

    /// Removes the journal, since nothing is left of the session.
    pub(crate) fn remove(self) {
        let (Some(name), Some(sessions)) = (self.name, self.sessions) else { return };
        match rustix::fs::unlinkat(&sessions.dir, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            // The next manager finds the journal, and that nothing is left.
            Err(error) => tracing::warn!(session = %self.header.session, %error, "failed to remove the journal"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::state::{StateDir, record::Record, tests};

    fn journal(state: &StateDir, session: &str, marker: &str) -> Journal {
        let header = Header {
            session: session.parse().expect("valid"),
            marker: marker.into(),
            place: state.place.clone(),
            since: 0,
            strict: false,
            host: tests::own(),
            fork_server: tests::own(),
            cgroup: None,
        };
        Journal::new(Some(state.sessions.clone()), header)
    }

    fn id(pid: u32) -> ProcessId {
        ProcessId { pid, start_time: 7 }
    }

    fn exited(pid: u32) -> Event {
        Event::ProcessExited { process: id(pid), command: None, exit: None }
    }

    fn read(state: &StateDir, name: &str) -> Record {
        Record::read(&state.sessions.read(name).expect("there")).expect("a header")
    }

    #[test]
    fn it_follows_the_session_and_goes_with_it() {
        let scratch = tests::Scratch::new();
        let state = StateDir::open(&scratch.0, tests::own()).expect("made");
        let mut journal = journal(&state, "...", "one");
        assert!(state.sessions.journals().expect("listed").is_empty(), "nothing before the first write");
        assert!(journal.commit().is_none());
        assert_eq!(read(&state, "....journal").living, [].into());
        journal.proxy(id(1));
        [2, 3, 4].into_iter().for_each(|pid| journal.spawned(id(pid)));
        journal.note(&exited(3));
        journal.note(&exited(99));
        assert!(journal.commit().is_none());
        let record = read(&state, "....journal");
        assert_eq!((record.proxy, record.living, record.damaged), (Some(id(1)), [id(2), id(4)].into(), 0));
        // Another of that id does not take its place.
        let mut second = self::journal(&state, "...", "two");
        assert!(second.commit().is_none());
        assert_eq!(state.sessions.journals().expect("listed"), ["....journal", "....two.journal"]);
        journal.remove();
        assert_eq!(state.sessions.journals().expect("listed"), ["....two.journal"]);
        second.remove();
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
                journal.note(&exited(pid + round % 7));
            }
            assert!(journal.commit().is_none());
            longest = longest.max(fs::metadata(&path).expect("there").len());
        }
        assert!((LONG as u64..2 * LONG as u64).contains(&longest), "{longest}");
        let record = read(&state, "s.journal");
        assert_eq!((record.living, record.damaged), ([id(1)].into(), 0));
        // Ends that were missed do not pile up either.
        (2..20_000).for_each(|pid| journal.spawned(ProcessId { pid, start_time: u64::MAX }));
        assert!(journal.living.len() <= MANY + 1, "{}", journal.living.len());
    }

    #[test]
    fn a_failure_is_told_once_and_made_good() {
        let scratch = tests::Scratch::new();
        let state = StateDir::open(&scratch.0, tests::own()).expect("made");
        let in_the_way = scratch.0.join("sessions/s.journal.draft");
        fs::create_dir(&in_the_way).expect("made");
        let mut journal = journal(&state, "s", "m");
        journal.spawned(id(1));
        assert!(journal.commit().is_some());
        journal.spawned(id(2));
        assert!(journal.commit().is_none(), "it is not due");
        journal.broken = Some(Instant::now());
        assert!(journal.commit().is_none(), "it was told");
        assert!(journal.broken.is_some());
        fs::remove_dir(&in_the_way).expect("empty");
        journal.note(&exited(1));
        journal.spawned(id(3));
        journal.broken = Some(Instant::now());
        assert!(journal.commit().is_none());
        assert_eq!(read(&state, "s.journal").living, [id(2), id(3)].into());
        journal.remove();
    }
}
