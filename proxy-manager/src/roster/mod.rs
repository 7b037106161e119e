//! Which sessions there are and were: in memory, and, with a state directory, in the event log's file.

mod record;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use ipc_protocol::SessionId;

pub use self::record::{SessionFilter, SessionRecord, SessionStatus};
use crate::{Error, Result, history::Log, session::Session};

/// Longest title, key and tag, in bytes.
const LONGEST: usize = 256;
/// Tags of a session at most.
const MOST_TAGS: usize = 64;

/// What is done when something is durable.
type Then = Box<dyn FnOnce() + Send>;

/// All records of a manager.
#[derive(Default)]
pub(crate) struct Roster {
    records: Mutex<BTreeMap<SessionId, SessionRecord>>,
    log: Log,
    /// Names this run of the host.
    execution: String,
}

impl Roster {
    /// The records of the log. Those that are not ours to understand are left alone. Blocks.
    ///
    /// # Errors
    /// [`Error::Log`].
    pub(crate) fn open(log: Log) -> Result<Self> {
        let mut records = BTreeMap::new();
        for (id, text) in log.get().map(|log| log.sessions()).transpose()?.unwrap_or_default() {
            match serde_json::from_str(&text) {
                Ok(record) => _ = records.insert(id, record),
                Err(error) => tracing::warn!(session = %id, %error, "the record of a session is not understood"),
            }
        }
        Ok(Self { records: Mutex::new(records), log, execution: SessionId::mint().to_string() })
    }

    fn records(&self) -> MutexGuard<'_, BTreeMap<SessionId, SessionRecord>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down what a session shows of itself. `then` is called when that is done, or cannot be.
    pub(crate) fn note(&self, session: &Session, then: Option<Then>) {
        let mut records = self.records();
        let record = SessionRecord::of(session, &self.execution, records.get(session.id()));
        let then = match record {
            Some(record) => self.put(&mut records, record, then),
            None => then,
        };
        drop(records);
        if let Some(then) = then {
            then();
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
        self.records().get(id).cloned()
    }

    /// All records that a filter fits, by id.
    pub(crate) fn list(&self, filter: &SessionFilter) -> Vec<SessionRecord> {
        self.records().values().filter(|record| filter.matches(record)).cloned().collect()
    }

    /// The session with this key: the one that changed last, where there are several.
    pub(crate) fn with_key(&self, key: &str) -> Option<SessionRecord> {
        let records = self.records();
        let with_key = records.values().filter(|record| record.config.lifecycle.key.as_deref() == Some(key));
        // One that can be gone on with comes before one that cannot.
        with_key.max_by_key(|record| (record.status != SessionStatus::Terminated, record.updated_at)).cloned()
    }

    /// Changes a record.
    ///
    /// # Errors
    /// [`Error::UnknownSession`], and what `change` says.
    pub(crate) fn change(
        &self,
        id: &SessionId,
        change: impl FnOnce(&mut SessionRecord) -> Result<()>,
    ) -> Result<SessionRecord> {
        let mut records = self.records();
        let known = records.get(id).cloned();
        let mut record = known.ok_or_else(|| Error::UnknownSession { session: id.clone() })?;
        change(&mut record)?;
        record.updated_at = SystemTime::now();
        self.put(&mut records, record.clone(), None);
        Ok(record)
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
        if let Err(error) = result {
            tracing::error!(session = %id, %error, "what is known of a session is not written down");
        }
        if let Some(then) = then {
            then();
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
pub(crate) fn check_names(key: Option<&str>, title: Option<&str>, tags: &[String]) -> Result<()> {
    let check = |field: &'static str, text: &str| match text.len() {
        1..=LONGEST if !text.chars().any(char::is_control) => Ok(()),
        _ => Err(Error::InvalidConfig {
            field,
            reason: format!("{text:?} must have 1 to {LONGEST} bytes and no control characters"),
        }),
    };
    key.map_or(Ok(()), |key| check("key", key))?;
    title.map_or(Ok(()), |title| check("title", title))?;
    tags.iter().try_for_each(|tag| check("tag", tag))?;
    if tags.len() > MOST_TAGS {
        let reason = format!("{} tags are too many: {MOST_TAGS} at the most", tags.len());
        return Err(Error::InvalidConfig { field: "tags", reason });
    }
    Ok(())
}
