//! Records of sessions' conversations, from which a later manager resumes them.
//!
//! ```text
//! STATE/conversations/ID.json    from the agent's being ready until the session is deleted
//! ```
//!
//! The log's roster has the same, but losing the log must lose neither a conversation nor the knowledge of which homes
//! hold keys. Without a state directory there are no records.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use ipc_protocol::SessionId;
use rustix::{
    fs::{AtFlags, Mode, OFlags},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use crate::{
    blocking::blocking,
    error::{Error, Result},
    homes::{RecordedHome, files},
};

/// Records without a home of their own that are retained; the oldest go first. (Homes go only with their sessions.)
const MAX_RECORDS: usize = 1000;
/// Ending of a record's name.
const EXTENSION: &str = ".json";
/// Upper bound of a record, in bytes; records are far shorter.
const MAX_BYTES: u64 = 64 * 1024;

/// Record of a session's conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConversationRecord {
    pub(crate) agent: String,
    pub(crate) native_session_id: String,
    pub(crate) cwd: String,
    /// The session's own home, if any.
    pub(crate) home: Option<PathBuf>,
    /// The model configuration that was named.
    pub(crate) model_config: Option<String>,
    /// Files in that home that hold its key; empty when the session is over.
    pub(crate) keys: Vec<PathBuf>,
}

/// The directory of the records, if any.
#[derive(Debug, Default)]
pub(crate) struct ConversationRecords(Option<(PathBuf, OwnedFd)>);

impl ConversationRecords {
    /// Opens the records in this directory, which exists and is this user's alone. Blocks.
    ///
    /// # Errors
    /// [`Error::System`].
    pub(crate) fn open(path: PathBuf) -> Result<Self> {
        let opened = files::open(&path).and_then(|directory| {
            prune(&path)?;
            Ok(directory)
        });
        let directory = opened.map_err(|error| Error::system(format!("opening {}", path.display()), error))?;
        Ok(Self(Some((path, directory))))
    }

    /// Writes the record of a session. Blocks. A failure is logged, and does not fail the session.
    pub(crate) fn write(&self, session: &SessionId, record: &ConversationRecord) {
        let Some((_, directory)) = &self.0 else { return };
        let written = serde_json::to_vec(record)
            .map_err(io::Error::from)
            .and_then(|text| files::write(directory, Path::new(&name(session)), &text));
        if let Err(error) = written {
            tracing::warn!(%session, %error, "failed to write the record of a session's conversation");
        }
    }

    /// Records a session's conversation, if it has one.
    pub(crate) async fn record_session(self: &Arc<Self>, session: &SessionId, record: Option<ConversationRecord>) {
        let (Some(record), true) = (record, self.0.is_some()) else { return };
        let (records, id) = (self.clone(), session.clone());
        if let Err(error) = blocking("recording a conversation", move || records.write(&id, &record)).await {
            tracing::warn!(%session, %error, "failed to start writing the record of a session's conversation");
        }
    }

    /// Reads the record of a session; `None` also where it cannot be parsed.
    pub(crate) fn read(&self, session: &SessionId) -> Option<ConversationRecord> {
        let (_, directory) = self.0.as_ref()?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(directory, name(session), flags, Mode::empty()).ok()?);
        let mut text = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Sessions with a home of their own, with that home and the files with keys that may be left in it. Blocks.
    ///
    /// # Errors
    /// [`Error::System`].
    pub(crate) fn homes(&self) -> Result<Vec<RecordedHome>> {
        let Some((path, _)) = &self.0 else { return Ok(Vec::new()) };
        let failed = |error: io::Error| Error::system(format!("reading {}", path.display()), error);
        let mut homes = Vec::new();
        for entry in fs::read_dir(path).map_err(failed)? {
            let file = entry.map_err(failed)?.file_name();
            let id = file.to_str().and_then(|file| file.strip_suffix(EXTENSION)?.parse::<SessionId>().ok());
            if let Some(id) = id
                && let Some(ConversationRecord { home: Some(home), keys, .. }) = self.read(&id)
            {
                homes.push(RecordedHome { session: id, home, keys });
            }
        }
        Ok(homes)
    }

    /// Removes a session's record; returns true if there was one.
    ///
    /// # Errors
    /// [`Error::System`].
    pub(crate) fn remove(&self, session: &SessionId) -> Result<bool> {
        let Some((path, directory)) = &self.0 else { return Ok(false) };
        match rustix::fs::unlinkat(directory, name(session), AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(Error::system(format!("removing {}", path.join(name(session)).display()), error.into())),
        }
    }
}

fn name(session: &SessionId) -> String {
    format!("{session}{EXTENSION}")
}

/// Removes the oldest records beyond the bound, except those of sessions with a home on disk.
fn prune(directory: &Path) -> io::Result<()> {
    let mut found: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_file() {
            found.push((metadata.modified()?, entry.path()));
        }
    }
    found.sort();
    let many = found.len().saturating_sub(MAX_RECORDS);
    for (_, path) in found.into_iter().take(many) {
        let record = fs::read(&path).ok().and_then(|text| serde_json::from_slice::<ConversationRecord>(&text).ok());
        if record.is_none_or(|record| record.home.is_none()) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(home: Option<&str>) -> ConversationRecord {
        ConversationRecord {
            agent: "claude-code".into(),
            native_session_id: "n-1".into(),
            cwd: "/work".into(),
            home: home.map(PathBuf::from),
            model_config: None,
            keys: vec![".codex/auth.json".into()],
        }
    }

    #[test]
    fn they_outlive_the_manager_until_they_are_removed() {
        let scratch = tempfile::tempdir().expect("a directory");
        let session: SessionId = "...".parse().expect("a valid id");
        let records = ConversationRecords::open(scratch.path().to_owned()).expect("opened");
        assert_eq!(records.read(&session), None);
        for record in [record(None), record(Some("/homes/x"))] {
            records.write(&session, &record);
            let later = ConversationRecords::open(scratch.path().to_owned()).expect("opened");
            let homes = record.home.iter().map(|home| RecordedHome {
                session: session.clone(),
                home: home.clone(),
                keys: record.keys.clone(),
            });
            assert_eq!(later.homes().expect("read"), homes.collect::<Vec<_>>());
            assert_eq!(later.read(&session), Some(record));
        }
        fs::write(scratch.path().join("odd.json"), "{").expect("written");
        assert_eq!(records.read(&"odd".parse().expect("a valid id")), None);
        assert!(records.remove(&session).expect("removed"));
        assert!(!records.remove(&session).expect("nothing to remove"));
        let none = ConversationRecords::default();
        none.write(&session, &record(None));
        assert!(none.read(&session).is_none() && !none.remove(&session).expect("nothing"));
    }

    #[test]
    fn only_so_many_are_kept_but_those_with_homes() {
        let scratch = tempfile::tempdir().expect("a directory");
        let records = ConversationRecords::open(scratch.path().to_owned()).expect("opened");
        for n in 0..MAX_RECORDS + 3 {
            let home = (n % 2 == 0).then_some("/homes/x");
            records.write(&format!("s-{n}").parse().expect("a valid id"), &record(home));
        }
        ConversationRecords::open(scratch.path().to_owned()).expect("opened");
        let left = fs::read_dir(scratch.path()).expect("listed").count();
        assert!((MAX_RECORDS..MAX_RECORDS + 3).contains(&left), "{left}");
        let first = records.read(&"s-0".parse().expect("a valid id"));
        assert!(first.is_some(), "it has a home");
    }
}
