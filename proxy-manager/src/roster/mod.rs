//! Which sessions there are and were: in memory, and, with a state directory, in the event log's file.

mod record;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use event_log::{Beat, Damage, LogError};
use ipc_protocol::SessionId;

pub(crate) use self::record::MODEL_KEY;
pub use self::record::{SessionFilter, SessionRecord, SessionStatus};
use crate::{Error, Result, history::Log, session::Session};

/// Longest title, key and tag, in bytes.
const LONGEST: usize = 256;
/// Tags of a session at most.
const MOST_TAGS: usize = 64;

/// Told when something is durable, or why it is not.
type Then = event_log::Done;

/// All records of a manager.
#[derive(Default)]
pub(crate) struct Roster {
    records: Mutex<BTreeMap<SessionId, SessionRecord>>,
    log: Log,
    /// Names this run of the host.
    execution: String,
    /// When the sessions of this run were last known to live.
    beat: Mutex<Option<SystemTime>>,
    /// Records that are text and are not understood: their sessions are not listed.
    damage: Vec<Damage>,
}

impl Roster {
    /// The records of the log. Those that are not ours to understand are left alone. Blocks.
    ///
    /// # Errors
    /// [`Error::Log`].
    pub(crate) fn open(log: Log) -> Result<Self> {
        let mut records = BTreeMap::new();
        let mut damage = Vec::new();
        let beat = match log.get().map(|log| log.last_beat()).transpose() {
            Ok(beat) => beat.flatten(),
            Err(error @ LogError::Corrupt { .. }) => {
                let detail = format!("when sessions were last known to live: {error}");
                tracing::error!(detail, "a part of the event log is damaged");
                damage.push(Damage::Other { detail });
                None
            }
            Err(error) => return Err(error.into()),
        };
        for (id, text) in log.get().map(|log| log.sessions()).transpose()?.unwrap_or_default() {
            match serde_json::from_str::<SessionRecord>(&text) {
                Ok(mut record) => {
                    record.catch_up(beat.as_ref());
                    records.insert(id, record);
                }
                Err(error) => {
                    tracing::error!(session = %id, %error, "the record of a session is not understood");
                    damage.push(Damage::Record { id: id.to_string(), detail: error.to_string() });
                }
            }
        }
        let execution = SessionId::mint().to_string();
        Ok(Self { records: Mutex::new(records), log, execution, beat: Mutex::default(), damage })
    }

    /// What could not be read of the log when this was opened.
    pub(crate) fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// All sessions of this run live, that are not at rest. One row for all of them. Says whether there are any.
    pub(crate) fn beat(&self, now: SystemTime) -> bool {
        let lives = |record: &SessionRecord| record.status.is_live() && record.host_execution_id == self.execution;
        if !self.records().values().any(lives) {
            return false;
        }
        *self.last_beat() = Some(now);
        if let Some(log) = self.log.get() {
            let done = |result| {
                if let Err(error) = result {
                    tracing::warn!(%error, "that the sessions live is not written down");
                }
            };
            log.put_beat(Beat { host: self.execution.clone(), at: now }, Box::new(done));
        }
        true
    }

    fn last_beat(&self) -> MutexGuard<'_, Option<SystemTime>> {
        self.beat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As it is to be shown.
    fn shown(&self, record: &SessionRecord) -> SessionRecord {
        let mut record = record.clone();
        let beat = self.last_beat().map(|at| Beat { host: self.execution.clone(), at });
        record.catch_up(beat.as_ref());
        record
    }

    fn records(&self) -> MutexGuard<'_, BTreeMap<SessionId, SessionRecord>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down what a session shows of itself. `then` is told when that is done, or why it is not.
    pub(crate) fn note(&self, session: &Session, then: Option<Then>) {
        let mut records = self.records();
        let record = SessionRecord::of(session, &self.execution, records.get(session.id()));
        let then = match record {
            Some(record) => self.put(&mut records, record, then),
            None => then,
        };
        drop(records);
        if let Some(then) = then {
            then(Ok(()));
        }
    }

    /// A session that is over already. One that is known stays as it is.
    pub(crate) fn add(&self, record: SessionRecord, then: Then) {
        let mut records = self.records();
        let then = match records.contains_key(&record.session_id) {
            true => Some(then),
            false => self.put(&mut records, record, Some(then)),
        };
        drop(records);
        if let Some(then) = then {
            then(Ok(()));
        }
    }

    /// Gives back whom it could not tell.
    fn put(
        &self,
        records: &mut BTreeMap<SessionId, SessionRecord>,
        record: SessionRecord,
        then: Option<Then>,
    ) -> Option<Then> {
        let id = record.session_id.clone();
        let left = match (self.log.get(), serde_json::to_string(&record)) {
            (Some(log), Ok(text)) => {
                log.put_session(&id, text, tell(&id, then));
                None
            }
            (None, _) => then,
            (Some(_), Err(error)) => {
                tracing::error!(session = %id, %error, "a record cannot be written");
                then
            }
        };
        records.insert(id, record);
        left
    }

    /// The record of a session.
    pub(crate) fn get(&self, id: &SessionId) -> Option<SessionRecord> {
        self.records().get(id).map(|record| self.shown(record))
    }

    /// All records that a filter fits, by id.
    pub(crate) fn list(&self, filter: &SessionFilter) -> Vec<SessionRecord> {
        self.records().values().filter(|record| filter.matches(record)).map(|record| self.shown(record)).collect()
    }

    /// The session with this key: the one that changed last, where there are several.
    pub(crate) fn with_key(&self, key: &str) -> Option<SessionRecord> {
        let records = self.records();
        let with_key = records.values().filter(|record| record.config.lifecycle.key.as_deref() == Some(key));
        // One that can be gone on with comes before one that cannot.
        with_key.max_by_key(|record| (record.status != SessionStatus::Terminated, record.updated_at)).cloned()
    }

    /// Changes a record. `then` is told when that is durable, or why it is not; it is not called where there is an error.
    ///
    /// # Errors
    /// [`Error::UnknownSession`], and what `change` says.
    pub(crate) fn change(
        &self,
        id: &SessionId,
        then: Option<Then>,
        change: impl FnOnce(&mut SessionRecord) -> Result<()>,
    ) -> Result<SessionRecord> {
        let mut records = self.records();
        let known = records.get(id).cloned();
        let mut record = known.ok_or_else(|| Error::UnknownSession { session: id.clone() })?;
        change(&mut record)?;
        record.updated_at = SystemTime::now();
        let then = self.put(&mut records, record.clone(), then);
        drop(records);
        if let Some(then) = then {
            then(Ok(()));
        }
        Ok(record)
    }

    /// The file in which the agent keeps conversation `native` was found. Of a session that is forgotten meanwhile nothing is written.
    pub(crate) fn found_file(&self, id: &SessionId, native: &str, file: &str) {
        let found = self.change(id, None, |record| {
            if record.native_session_id.as_deref() == Some(native) {
                record.native_session_file = Some(file.to_owned());
            }
            Ok(())
        });
        if let Err(error) = found {
            tracing::debug!(%error, "a conversation's file was found too late");
        }
    }

    /// Forgets a session; says whether it was known.
    pub(crate) fn forget(&self, id: &SessionId) -> bool {
        if let Some(log) = self.log.get() {
            log.delete_session(id, tell(id, None));
        }
        self.records().remove(id).is_some()
    }
}

fn tell(id: &SessionId, then: Option<Then>) -> event_log::Done {
    let id = id.clone();
    Box::new(move |result| {
        if let Err(error) = &result {
            tracing::error!(session = %id, %error, "what is known of a session is not written down");
        }
        if let Some(then) = then {
            then(result);
        }
    })
}

impl fmt::Debug for Roster {
    /// Without what sessions were started with.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Roster").field("records", &self.records().len()).finish_non_exhaustive()
    }
}

/// Checks what a caller calls a session.
///
/// # Errors
/// [`Error::InvalidConfig`].
pub(crate) fn check_names(names: &[(&'static str, Option<&str>)], tags: &[String]) -> Result<()> {
    let check = |field: &'static str, text: &str| match text.len() {
        1..=LONGEST if !text.chars().any(char::is_control) => Ok(()),
        _ => Err(Error::InvalidConfig {
            field,
            // It may be megabytes long: the error has no more than a line of it.
            reason: format!(
                "{:?} must have 1 to {LONGEST} bytes and no control characters",
                text.chars().take(80).collect::<String>()
            ),
        }),
    };
    names.iter().try_for_each(|(field, name)| name.map_or(Ok(()), |name| check(field, name)))?;
    tags.iter().try_for_each(|tag| check("tag", tag))?;
    if tags.len() > MOST_TAGS {
        let reason = format!("{} tags are too many: {MOST_TAGS} at the most", tags.len());
        return Err(Error::InvalidConfig { field: "tags", reason });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use event_log::{EventLog, Options};

    use super::*;
    use crate::roster::record::tests::record;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn one_beat_is_that_of_all_sessions_that_live_and_a_later_manager_knows_it() {
        let scratch = tempfile::tempdir().expect("a directory");
        let open = || {
            let log = EventLog::open(scratch.path().join("log.sqlite"), Options::default()).expect("opened");
            let log = Log::new(Some(log));
            (Roster::open(log.clone()).expect("read"), log)
        };
        let written_records = |log: &Log| log.get().expect("there").sessions().expect("read");
        let flush = |log: &Log| log.get().expect("there").flush(PATIENCE).expect("written");
        let put = |roster: &Roster, n: usize, status| {
            let mut record = record();
            record.session_id = format!("s-{n}").parse().expect("valid");
            (record.status, record.host_execution_id) = (status, roster.execution.clone());
            roster.put(&mut roster.records(), record, None);
        };
        let heartbeat = |roster: &Roster, id: &str| roster.get(&id.parse().expect("valid")).expect("kept").heartbeat;
        let (roster, log) = open();
        let (written, beat) = (record().heartbeat, UNIX_EPOCH + Duration::from_secs(100));
        put(&roster, 0, SessionStatus::Suspended);
        assert!(!roster.beat(beat), "nobody lives");
        for n in 1..=1000 {
            put(&roster, n, SessionStatus::Running);
        }
        flush(&log);
        let before = written_records(&log);
        assert!(roster.beat(beat));
        flush(&log);
        assert!(written_records(&log) == before, "it is one row, and none of theirs");
        for (id, expected) in [("s-0", written), ("s-1", beat), ("s-1000", beat)] {
            assert_eq!(heartbeat(&roster, id), expected, "{id}");
        }
        drop(roster);
        log.give_back();
        let (roster, _log) = open();
        for (id, expected) in [("s-0", written), ("s-1", beat), ("s-1000", beat)] {
            assert_eq!(heartbeat(&roster, id), expected, "{id}");
        }
        // Those sessions are not of this run.
        assert!(!roster.beat(beat + PATIENCE));
    }
}
