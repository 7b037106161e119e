//! A session's journal: what a later manager needs to end the session if all of its supervisors die at once.
//!
//! It is written with one `write` for what came together and never synced: what is written survives the death of every
//! process, and a reboot leaves nothing that would have to be ended.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Write},
    sync::Arc,
    time::{Duration, Instant},
};

use ipc_protocol::{Event, ProcessId};
use rustix::{
    fs::{AtFlags, Mode, OFlags},
    io::Errno,
};

use super::{
    Sessions,
    record::{Header, Line, Record},
};

/// A journal is written anew when it is longer than this and most of it is of the dead, in bytes.
const LONG: usize = 1 << 20;
/// After a failure it is tried anew this often.
const RETRY: Duration = Duration::from_secs(5);
/// Living processes beyond which it is checked that they do live: ends can be missed.
const MANY: usize = 8192;

/// The one writer of a journal.
#[derive(Debug)]
pub(crate) struct Journal {
    sessions: Arc<Sessions>,
    header: Header,
    /// Before the first write there is none.
    name: Option<String>,
    proxy: Option<ProcessId>,
    living: BTreeSet<ProcessId>,
    /// How many of them are looked after before they are checked.
    many: usize,
    file: Option<File>,
    batch: String,
    written: usize,
    /// What is on disk is not whole; when to write it anew.
    broken: Option<Instant>,
    /// The failure was told.
    told: bool,
}

impl Journal {
    /// The journal of a session that is about to start. Nothing is written yet.
    pub(crate) fn new(sessions: Arc<Sessions>, header: Header) -> Self {
        Self {
            sessions,
            header,
            name: None,
            proxy: None,
            living: BTreeSet::new(),
            many: MANY,
            file: None,
            batch: String::new(),
            written: 0,
            broken: None,
            told: false,
        }
    }

    /// The journal that an earlier host of the session left under this name.
    pub(crate) fn taken_over(sessions: Arc<Sessions>, name: String, record: Record, host: ProcessId) -> Self {
        let Record { header, proxy, living, .. } = record;
        Self { name: Some(name), proxy, living, ..Self::new(sessions, Header { host, ..header }) }
    }

    /// Whether the session has this process.
    pub(crate) fn has(&self, process: ProcessId) -> bool {
        self.living.contains(&process)
    }

    /// A journal of the same session, which is about to start once more.
    pub(crate) fn renewed(&self) -> Self {
        Self::new(self.sessions.clone(), self.header.clone())
    }

    /// The session has this proxy.
    pub(crate) fn proxy(&mut self, process: ProcessId) {
        if self.proxy.replace(process) != Some(process) {
            Line::Proxy(process).write(&mut self.batch);
        }
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

    /// Takes note of the processes that an event is about.
    pub(crate) fn note(&mut self, event: &Event) {
        match event {
            Event::ProcessSpawned(info) => self.spawned(info.id),
            Event::ProcessExited { process, .. } if self.living.remove(process) => {
                Line::Exited(*process).write(&mut self.batch);
            }
            _ => {}
        }
    }

    /// Writes what was noted. A failure is returned once, and tried to be made good later.
    pub(crate) fn commit(&mut self) -> Option<io::Error> {
        let result = match (&mut self.file, self.broken) {
            (_, Some(retry)) if retry > Instant::now() => return None,
            (Some(_), None) if self.batch.is_empty() => return None,
            (Some(_), None) if self.written > LONG.max(64 * self.living.len()) => self.rewrite(),
            (Some(file), None) => file.write_all(self.batch.as_bytes()),
            _ => self.rewrite(),
        };
        match result {
            Ok(()) => {
                self.written += self.batch.len();
                self.batch.clear();
                if self.broken.take().is_some() {
                    tracing::info!(session = %self.header.session, "the session's journal is whole again");
                }
                None
            }
            Err(error) => {
                // What is lost is in `living`, which is written whole next time.
                self.batch.clear();
                self.broken = Some(Instant::now() + RETRY);
                tracing::warn!(session = %self.header.session, %error, "the session's journal cannot be written");
                (!std::mem::replace(&mut self.told, true)).then_some(error)
            }
        }
    }

    /// Writes all that is known to another file, which takes the place of this one.
    fn rewrite(&mut self) -> io::Result<()> {
        let mut text = self.header.line();
        for line in self.proxy.map(Line::Proxy).into_iter().chain(self.living.iter().copied().map(Line::Spawned)) {
            line.write(&mut text);
        }
        // It has a name of its own from the start: a journal that an earlier session of that id left is not replaced.
        let name = match &self.name {
            Some(name) => name.clone(),
            None => self.sessions.free_name(&self.header)?,
        };
        let draft = format!("{name}.draft");
        let flags =
            OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mut file = File::from(rustix::fs::openat(&self.sessions.dir, &draft, flags, Mode::from_raw_mode(0o600))?);
        let written = file
            .write_all(text.as_bytes())
            .and_then(|()| Ok(rustix::fs::renameat(&self.sessions.dir, &draft, &self.sessions.dir, &name)?));
        if let Err(error) = written {
            // What it fails with is no worse than the failure itself.
            let _ = rustix::fs::unlinkat(&self.sessions.dir, &draft, AtFlags::empty());
            return Err(error);
        }
        self.name = Some(name);
        self.batch.clear();
        self.written = text.len();
        self.file = Some(file);
        Ok(())
    }

    /// Nothing is left of the session: nor shall be of its journal.
    pub(crate) fn remove(self) {
        let Some(name) = self.name else { return };
        match rustix::fs::unlinkat(&self.sessions.dir, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            // The next manager finds it, and that nothing is left.
            Err(error) => tracing::warn!(session = %self.header.session, %error, "the session's journal stays"),
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
        Journal::new(state.sessions.clone(), header)
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
        let mut journal = journal(&state, "..", "one");
        assert!(state.sessions.journals().expect("listed").is_empty(), "nothing before the first write");
        assert!(journal.commit().is_none());
        assert_eq!(read(&state, "...journal").living, [].into());
        journal.proxy(id(1));
        [2, 3, 4].into_iter().for_each(|pid| journal.spawned(id(pid)));
        journal.note(&exited(3));
        journal.note(&exited(99));
        assert!(journal.commit().is_none());
        let record = read(&state, "...journal");
        assert_eq!((record.proxy, record.living, record.damaged), (Some(id(1)), [id(2), id(4)].into(), 0));
        // Another of that id does not take its place.
        let mut second = self::journal(&state, "..", "two");
        assert!(second.commit().is_none());
        assert_eq!(state.sessions.journals().expect("listed"), ["...journal", "...two.journal"]);
        journal.remove();
        assert_eq!(state.sessions.journals().expect("listed"), ["...two.journal"]);
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
