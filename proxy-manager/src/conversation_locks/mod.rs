//! Locks on agents' conversations: each conversation has one living process.

mod local;
mod shared;

use std::path::PathBuf;

use ipc_protocol::ProcessId;

pub(crate) use self::{
    local::{ConversationLock, ConversationLocks},
    shared::SharedLocks,
};

/// Identity of a conversation: the agent family, the directory of its files, and the agent's id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConversationKey {
    /// Family of agents that read each other's conversations.
    pub(crate) family: String,
    /// Directory of the conversation in canonical spelling, if known.
    pub(crate) store: Option<PathBuf>,
    /// True if other managers can open the conversation.
    pub(crate) is_shared: bool,
    pub(crate) id: String,
}

/// Proxy that keeps a session's agent alive, once the agent is ready.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockKeeper {
    pub(crate) proxy: ProcessId,
    /// True if the session may outlive its host.
    pub(crate) may_outlive_host: bool,
}
