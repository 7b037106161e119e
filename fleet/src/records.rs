//! Values of the engine's buckets, as JSON.

use std::collections::BTreeMap;

use ipc_protocol::SessionId;
use serde::{Deserialize, Serialize};

use crate::names::NodeName;

/// Row of a node in the bucket `nodes`: what its last beat said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NodeRecord {
    /// Name of the node.
    pub node: NodeName,
    /// One run of its program.
    pub incarnation: String,
    /// Place of its sessions, which one program has at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// Version of its program.
    pub version: String,
    /// Addresses at which its API is reached directly, as in `https://10.0.0.7:8480`; none without `--listen`.
    pub addresses: Vec<String>,
    /// Labels, for placement.
    pub labels: BTreeMap<String, String>,
    /// Sessions that it may have at once; `null` for any number.
    pub capacity: Option<u32>,
    /// Sessions that it has now: those that run or start.
    pub sessions: u32,
    /// Catalog ids of the agents of which it can start a session.
    pub agents: Vec<String>,
    /// True if its sessions end before its lease does, so that others may go on with them.
    #[serde(default)]
    pub takes_over: bool,
    /// True if it takes no new sessions.
    pub draining: bool,
    /// Layers of containment that its machine can do.
    #[serde(default)]
    pub layers: Vec<String>,
    /// Events of its sessions that the fleet's log did not have at its last beat.
    #[serde(default)]
    pub backlog: u64,
}

/// What is known of a session besides its owner: what placing it elsewhere and counting it takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionFacts {
    /// User of the session.
    pub user: Option<String>,
    /// Catalog id of its agent, once that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Name of its `--key`, as a hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Whether it runs.
    pub phase: SessionPhase,
}

impl SessionFacts {
    /// Returns these facts, with those of `before` where they say nothing.
    #[must_use]
    pub(crate) fn or(&self, before: &Self) -> Self {
        let either = |now: &Option<String>, before: &Option<String>| now.as_ref().or(before.as_ref()).cloned();
        Self {
            user: either(&self.user, &before.user),
            agent: either(&self.agent, &before.agent),
            key: either(&self.key, &before.key),
            phase: self.phase,
        }
    }
}

/// Whether a session runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum SessionPhase {
    /// It runs, or starts.
    #[default]
    Running,
    /// Its processes have ended, and it can be resumed.
    Suspended,
    /// It is over.
    Ended,
}

/// Row of a session in the bucket `sessions`: who has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnershipRecord {
    /// Node that has it.
    pub node: NodeName,
    /// Run of that node's program that took it.
    pub incarnation: String,
    /// Number of times that it changed hands.
    pub epoch: u64,
    /// What is known of the session. In JSON its fields are among these.
    #[serde(flatten)]
    pub facts: SessionFacts,
    /// Labels that its node has to have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Object with the conversation, of one that was given to this node by another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Kill that was asked for while the owner was silent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kill: Option<RememberedKill>,
    /// Node that had it before: it has given it to this one, or is dead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<NodeName>,
    /// True once its owner deletes it: nobody goes on with it, also if the owner dies before all of it is gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_deleted: bool,
}

/// Kill of a session whose owner was silent: the owner carries it out when it is back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RememberedKill {
    /// Name of the caller.
    pub by: String,
    /// Node at which it was asked for.
    pub at_node: NodeName,
}

/// Row of an `Idempotency-Key` in the bucket `keys`: where the session of a start is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StartKeyRecord {
    /// Node that the start was sent to.
    pub node: NodeName,
    /// Id of its session.
    pub session: SessionId,
}
