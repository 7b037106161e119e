//! Records of all sessions, past and present: in memory, and with a state directory in the event log's file.

mod record;

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use event_log::{Heartbeat, LogDamage, LogError};
use ipc_protocol::SessionId;

pub(crate) use self::record::{MODEL_KEY, own_config};
pub(crate) use self::record::{RecordState, SessionFilter, SessionRecord, SessionStatus};
use crate::{
    error::{Error, Result},
    history::LogHandle,
};

/// Maximum length of a title, key and tag, in bytes.
const MAX_NAME: usize = 256;
/// Maximum number of tags of a session.
const MAX_TAGS: usize = 64;

/// Callback called when a write is durable, or with the error.
type OnDurable = event_log::OnCommit;

/// All records of a manager. `Debug` omits the sessions' configurations.
#[derive(derive_more::Debug, Default)]
pub(crate) struct SessionStore {
    #[debug("{}", self.records().len())]
    records: Mutex<BTreeMap<SessionId, SessionRecord>>,
    log: LogHandle,
    /// Identifies this run of the host.
    execution: String,
    /// Time at which the sessions of this run were last known to live.
    last_heartbeat: Mutex<Option<SystemTime>>,
    /// Records that are text and are not understood: their sessions are not listed.
    damage: Vec<LogDamage>,
}

impl SessionStore {
    /// Reads the records of the log. Records that cannot be parsed are left alone. Blocks.
    ///
    /// # Errors
    /// [`Error::Log`].
    pub(crate) fn open(log: LogHandle) -> Result<Self> {
        let mut records = BTreeMap::new();
        let mut damage = Vec::new();
        let beat = match log.get().map(|log| log.last_heartbeat()).transpose() {
            Ok(beat) => beat.flatten(),
            Err(error @ LogError::Corrupt { .. }) => {
                let detail = format!("when sessions were last known to live: {error}");
                tracing::error!(detail, "a part of the event log is damaged");
                damage.push(LogDamage::Other { detail });
                None
            }
            Err(error) => return Err(error.into()),
        };
        for (id, text) in log.get().map(|log| log.sessions()).transpose()?.unwrap_or_default() {
            match serde_json::from_str::<SessionRecord>(&text) {
                Ok(mut record) => {
                    record::catch_up(&mut record, beat.as_ref());
                    records.insert(id, record);
                }
                Err(error) => {
                    tracing::error!(session = %id, %error, "the record of a session is not understood");
                    damage.push(LogDamage::Record { id: id.to_string(), detail: error.to_string() });
                }
            }
        }
        let execution = SessionId::mint().to_string();
        Ok(Self { records: Mutex::new(records), log, execution, last_heartbeat: Mutex::default(), damage })
    }

    /// Returns the damage that was found when the log was opened.
    pub(crate) fn damage(&self) -> &[LogDamage] {
        &self.damage
    }

    /// Writes a heartbeat for all live sessions of this run, as one row. Returns true if there are any, or if the log could not be written:
    /// this shows whether it can be again.
    pub(crate) fn record_heartbeat(&self, now: SystemTime) -> bool {
        let lives = |record: &SessionRecord| record.status().is_live() && record.host_execution_id == self.execution;
        let fails = || self.log.get().is_some_and(|log| log.metrics().last_error.is_some());
        if !self.records().values().any(lives) && !fails() {
            return false;
        }
        *self.lock_heartbeat() = Some(now);
        if let Some(log) = self.log.get() {
            let done = |result| {
                if let Err(error) = result {
                    tracing::warn!(%error, "failed to write the heartbeat");
                }
            };
            log.put_heartbeat(Heartbeat { host: self.execution.clone(), at: now }, Box::new(done));
        }
        true
    }

    fn lock_heartbeat(&self) -> MutexGuard<'_, Option<SystemTime>> {
        self.last_heartbeat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copy of a record with the latest heartbeat applied.
    fn with_heartbeat(&self, record: &SessionRecord) -> SessionRecord {
        let mut record = record.clone();
        let beat = self.lock_heartbeat().map(|at| Heartbeat { host: self.execution.clone(), at });
        record::catch_up(&mut record, beat.as_ref());
        record
    }

    fn records(&self) -> MutexGuard<'_, BTreeMap<SessionId, SessionRecord>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the record of a session by the one that `record` creates from it and the id of this run of the host.
    /// `then` is called when the record is written, or with the error.
    pub(crate) fn update(
        &self,
        id: &SessionId,
        then: Option<OnDurable>,
        record: impl FnOnce(Option<&SessionRecord>, &str) -> Option<SessionRecord>,
    ) {
        let mut records = self.records();
        let then = match record(records.get(id), &self.execution) {
            Some(record) => self.put(&mut records, record, then),
            None => then,
        };
        drop(records);
        if let Some(then) = then {
            then(Ok(()));
        }
    }

    /// Adds the record of a session that has ended. An existing record stays unchanged.
    pub(crate) fn add(&self, record: SessionRecord, then: OnDurable) {
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

    /// Stores a record. Returns the callback if it could not be handed to the log.
    fn put(
        &self,
        records: &mut BTreeMap<SessionId, SessionRecord>,
        record: SessionRecord,
        then: Option<OnDurable>,
    ) -> Option<OnDurable> {
        let id = record.session_id.clone();
        let left = match (self.log.get(), serde_json::to_string(&record)) {
            (Some(log), Ok(text)) => {
                log.put_session(&id, text, on_commit(&id, then));
                None
            }
            (None, _) => then,
            (Some(_), Err(error)) => {
                tracing::error!(session = %id, %error, "failed to serialize a session's record");
                then
            }
        };
        records.insert(id, record);
        left
    }

    /// Returns the record of a session.
    pub(crate) fn get(&self, id: &SessionId) -> Option<SessionRecord> {
        self.records().get(id).map(|record| self.with_heartbeat(record))
    }

    /// Returns whether a user archived the session, and the title that a caller gave it.
    pub(crate) fn marks(&self, id: &SessionId) -> (bool, Option<String>) {
        let records = self.records();
        records.get(id).map_or((false, None), |record| (record.archived, record.config.lifecycle.title.clone()))
    }

    /// Lists the records that match a filter, by id.
    pub(crate) fn list(&self, filter: &SessionFilter) -> Vec<SessionRecord> {
        self.records()
            .values()
            .filter(|record| filter.matches(record))
            .map(|record| self.with_heartbeat(record))
            .collect()
    }

    /// Lists up to `most` of the records that match a filter and whose ids come after `after`, by id.
    pub(crate) fn list_after(&self, filter: &SessionFilter, after: &str, most: usize) -> Vec<SessionRecord> {
        let records = self.records();
        let later = records.values().skip_while(|record| record.session_id.as_str() <= after);
        later.filter(|record| filter.matches(record)).take(most).map(|record| self.with_heartbeat(record)).collect()
    }

    /// Returns the session with this key; where there are several, the one that changed last.
    pub(crate) fn with_key(&self, key: &str) -> Option<SessionRecord> {
        let records = self.records();
        let with_key = records.values().filter(|record| record.config.lifecycle.key.as_deref() == Some(key));
        // Sessions that can be resumed come before those that cannot.
        with_key.max_by_key(|record| (record.status() != SessionStatus::Ended, record.updated_at)).cloned()
    }

    /// Changes a record. `then` is called when the change is durable, or with the error of the write; it is not called
    /// if this returns an error.
    ///
    /// # Errors
    /// [`Error::UnknownSession`], and errors of `change`.
    pub(crate) fn change(
        &self,
        id: &SessionId,
        then: Option<OnDurable>,
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

    /// Records the file in which the agent keeps conversation `native`. Nothing is written if the session has been
    /// forgotten meanwhile.
    pub(crate) fn set_native_file(&self, id: &SessionId, native: &str, file: &str) {
        let found = self.change(id, None, |record| {
            if record.conversation.native_session_id.as_deref() == Some(native) {
                record.conversation.native_session_file = Some(file.to_owned());
            }
            Ok(())
        });
        if let Err(error) = found {
            tracing::debug!(%error, "conversation file dropped: its session is no longer known");
        }
    }

    /// Removes a session's record; returns true if there was one.
    pub(crate) fn forget(&self, id: &SessionId) -> bool {
        self.forget_then(id, None)
    }

    /// Removes a record like [`SessionStore::forget`]. `then` is called when that is durable, or with the error of the write; it is
    /// not called without a log.
    pub(crate) fn forget_then(&self, id: &SessionId, then: Option<OnDurable>) -> bool {
        // Locked before: a change in between would be written behind the deletion.
        let mut records = self.records();
        if let Some(log) = self.log.get() {
            log.delete_session(id, on_commit(id, then));
        }
        records.remove(id).is_some()
    }
}

fn on_commit(id: &SessionId, then: Option<OnDurable>) -> event_log::OnCommit {
    let id = id.clone();
    Box::new(move |result| {
        if let Err(error) = &result {
            tracing::error!(session = %id, %error, "failed to write the record of a session");
        }
        if let Some(then) = then {
            then(result);
        }
    })
}

/// Validates a session's key, title and tags.
///
/// # Errors
/// [`Error::InvalidConfig`].
pub(crate) fn check_names(names: &[(&'static str, Option<&str>)], tags: &[String]) -> Result<()> {
    let check = |field: &'static str, text: &str| match text.len() {
        1..=MAX_NAME if !text.chars().any(char::is_control) => Ok(()),
        _ => Err(Error::InvalidConfig {
            field,
            // It may be megabytes long: the error has no more than a line of it.
            reason: format!(
                "{:?} must have 1 to {MAX_NAME} bytes and no control characters",
                text.chars().take(80).collect::<String>()
            ),
        }),
    };
    names.iter().try_for_each(|(field, name)| name.map_or(Ok(()), |name| check(field, name)))?;
    tags.iter().try_for_each(|tag| check("tag", tag))?;
    if tags.len() > MAX_TAGS {
        let reason = format!("{} tags are too many: {MAX_TAGS} at the most", tags.len());
        return Err(Error::InvalidConfig { field: "tags", reason });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use event_log::{EventLog, LogOptions};
    use ipc_protocol::{AgentSessionConfig, EndReason};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn record() -> SessionRecord {
        let state = RecordState::Suspended { reason: EndReason::Suspended, handed_over: false };
        let at = |millis| UNIX_EPOCH + Duration::from_millis(millis);
        let (created_at, updated_at, heartbeat) = (at(1_234), at(5_678), at(5_000));
        SessionRecord { created_at, updated_at, heartbeat, ..SessionRecord::new(AgentSessionConfig::new("pi"), state) }
    }

    #[test]
    fn one_beat_is_that_of_all_sessions_that_live_and_a_later_manager_knows_it() {
        let scratch = tempfile::tempdir().expect("a directory");
        let open = || {
            let log = EventLog::open(scratch.path().join("log.sqlite"), LogOptions::default()).expect("opened");
            let log = LogHandle::new(Some(log));
            (SessionStore::open(log.clone()).expect("read"), log)
        };
        let written_records = |log: &LogHandle| log.get().expect("there").sessions().expect("read");
        let flush = |log: &LogHandle| log.get().expect("there").flush(PATIENCE).expect("written");
        let put = |roster: &SessionStore, n: usize, state| {
            let mut record = record();
            record.session_id = format!("s-{n}").parse().expect("valid");
            (record.state, record.host_execution_id) = (state, roster.execution.clone());
            roster.put(&mut roster.records(), record, None);
        };
        let heartbeat =
            |roster: &SessionStore, id: &str| roster.get(&id.parse().expect("valid")).expect("kept").heartbeat;
        let (roster, log) = open();
        let (written, beat) = (record().heartbeat, UNIX_EPOCH + Duration::from_secs(100));
        put(&roster, 0, record().state);
        assert!(!roster.record_heartbeat(beat), "nobody lives");
        for n in 1..=1000 {
            put(&roster, n, RecordState::Idle);
        }
        flush(&log);
        let before = written_records(&log);
        assert!(roster.record_heartbeat(beat));
        flush(&log);
        assert!(written_records(&log) == before, "it is one row, and none of theirs");
        for (id, expected) in [("s-0", written), ("s-1", beat), ("s-1000", beat)] {
            assert_eq!(heartbeat(&roster, id), expected, "{id}");
        }
        drop(roster);
        log.close();
        let (roster, _log) = open();
        for (id, expected) in [("s-0", written), ("s-1", beat), ("s-1000", beat)] {
            assert_eq!(heartbeat(&roster, id), expected, "{id}");
        }
        // Those sessions are not of this run.
        assert!(!roster.record_heartbeat(beat + PATIENCE));
    }
}
