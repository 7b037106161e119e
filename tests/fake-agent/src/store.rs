//! Conversations that outlive the agent: one file each.

use std::{
    fs, io,
    path::PathBuf,
    process,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

/// What was asked and answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Exchange {
    pub(crate) user: String,
    pub(crate) agent: String,
}

/// A conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Conversation {
    pub(crate) cwd: String,
    pub(crate) exchanges: Vec<Exchange>,
}

/// The directory of the conversations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Store(PathBuf);

impl Store {
    /// In `directory`; a relative one is below the home directory.
    pub(crate) fn new(directory: &str) -> Self {
        Self(PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(directory))
    }

    /// An id that no conversation has.
    pub(crate) fn fresh_id() -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        format!("fake-{now:x}-{}", process::id())
    }

    fn path(&self, id: &str) -> PathBuf {
        self.0.join(format!("{id}.json"))
    }

    pub(crate) fn load(&self, id: &str) -> io::Result<Conversation> {
        Ok(serde_json::from_slice(&fs::read(self.path(id))?)?)
    }

    pub(crate) fn save(&self, id: &str, conversation: &Conversation) -> io::Result<()> {
        fs::create_dir_all(&self.0)?;
        // Who is killed meanwhile leaves the old one or the new one, and not half of it.
        let beside = self.0.join(format!("{id}.new"));
        fs::write(&beside, serde_json::to_vec(conversation)?)?;
        fs::rename(beside, self.path(id))
    }

    /// As some agents do with what they cannot load.
    pub(crate) fn destroy(&self, id: &str) -> io::Result<()> {
        fs::remove_file(self.path(id))
    }

    /// The ids and conversations, the newest first.
    pub(crate) fn list(&self) -> Vec<(String, Conversation)> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let mut all: Vec<_> = entries
            .filter_map(|entry| {
                let id = entry.file_name().to_str()?.strip_suffix(".json")?.to_owned();
                Some((entry.metadata().ok()?.modified().ok()?, id.clone(), self.load(&id).ok()?))
            })
            .collect();
        all.sort_by(|a, b| b.0.cmp(&a.0).then(b.1.cmp(&a.1)));
        all.into_iter().map(|(_, id, conversation)| (id, conversation)).collect()
    }
}
