//! Conversations that agents keep on disk: their location, search, damage, backup and repair.
//!
//! What differs between agents is data: the `AgentFamily` has a [`ConversationStorage`], and the catalog
//! row names the directory to back up. Adapters do no I/O, so nothing here is theirs: everything but [`ConversationStorage`] blocks on
//! the file system. The host calls it from its blocking pool, and decides when.

mod backup;
mod database;
mod lines;
mod location;
mod search;

use std::{
    io,
    path::{Path, PathBuf},
};

use ipc_protocol::NativeResume;

pub use self::{
    backup::{BACKUP_PREFIX, ConversationBackup, recover_backups},
    location::{ConversationLocation, ConversationStorage, StorageFormat},
    search::find_conversation,
};
use crate::AgentSpec;

/// Conversation that a session resumes, as its agent keeps it on disk.
#[derive(Clone, Debug)]
pub struct ResumedConversation {
    agent: String,
    /// The agent's id of the conversation; `None` for the most recent one.
    id: Option<String>,
    /// Working directory of the session, by which the most recent conversation is found.
    cwd: String,
    location: ConversationLocation,
    /// Directory to back up before the agent loads the conversation.
    backed_up: Option<PathBuf>,
}

/// Damage that keeps an agent from resuming a conversation.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("agent {agent:?} cannot resume conversation {id}: {reason}")]
pub struct DamagedConversation {
    /// Catalog id of the agent.
    pub agent: String,
    /// The agent's id of the conversation; `the most recent` where none was named.
    pub id: String,
    /// Damaged file, and where it is damaged.
    pub reason: String,
}

/// Failure to save or to move an agent's files.
#[derive(Debug, thiserror::Error)]
#[error("{operation} failed")]
pub struct ConversationError {
    /// Operation, and the path.
    pub operation: String,
    /// Error of the system.
    pub source: io::Error,
}

impl ResumedConversation {
    /// Describes the conversation that an agent of `spec`, which works in `cwd`, resumes.
    pub fn new(spec: &AgentSpec, resume: &NativeResume, cwd: &str, location: ConversationLocation) -> Self {
        let (agent, id, cwd) = (spec.id.clone(), resume.id.clone(), cwd.to_owned());
        let backed_up = backup::directory(spec, location.home(), &cwd);
        Self { agent, id, cwd, location, backed_up }
    }

    /// Returns whether there is anything to check or to save before the agent starts.
    pub fn needs_disk(&self) -> bool {
        self.backed_up.is_some() || self.location.has_line_files()
    }

    /// Describes damage of its file or database at `path`.
    fn damaged(&self, kind: &str, path: &Path, damage: &str) -> DamagedConversation {
        let id = self.id.clone().unwrap_or_else(|| "the most recent".to_owned());
        let reason = format!("its {kind} {} is {damage}", path.display());
        DamagedConversation { agent: self.agent.clone(), id, reason }
    }
}
