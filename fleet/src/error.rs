//! Errors.

use std::time::Duration;

use crate::names::NodeName;

/// Error of the engine: what was tried, on what, and its answer.
#[derive(Debug, thiserror::Error)]
#[error("the fleet's engine did not {operation} {target}")]
pub struct EngineError {
    operation: &'static str,
    target: String,
    #[source]
    source: async_nats::Error,
}

impl EngineError {
    pub(crate) fn new(
        operation: &'static str,
        target: impl Into<String>,
        source: impl Into<async_nats::Error>,
    ) -> Self {
        Self { operation, target: target.into(), source: source.into() }
    }
}

/// Refusal of a change that expected another last state, or its failure.
#[derive(Debug, thiserror::Error)]
pub enum CompareAndSetError {
    /// Somebody else has changed it.
    #[error("somebody else has changed it")]
    Changed,
    /// The outcome is unknown.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Error of forgetting a node that is gone for good.
#[derive(Debug, thiserror::Error)]
pub enum ForgetError {
    /// The node may be alive.
    #[error("the lease of node {node} is not over: stop it, or wait until that is over, then forget it")]
    NotOver {
        /// Name of the node.
        node: crate::NodeName,
    },
    /// The engine did not do it.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Error of joining a fleet.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// A file cannot be read.
    #[error("failed to read {0}", .path.display())]
    File {
        /// Path of the file.
        path: std::path::PathBuf,
        /// Error of the read.
        #[source]
        source: std::io::Error,
    },
    /// No server answers.
    #[error(
        "no server of the fleet's engine answers at {servers} within {within:?}: is nats-server running there, with JetStream (-js)?"
    )]
    Unreachable {
        /// Addresses that were tried.
        servers: String,
        /// Time that they had.
        within: Duration,
        /// Error of the last attempt, if there was one.
        #[source]
        source: Option<async_nats::Error>,
    },
    /// The server is too old.
    #[error("the fleet's engine has version {version}, and needs 2.12 or later: take another nats-server")]
    TooOld {
        /// Version of the server.
        version: String,
    },
    /// Another node has the name.
    #[error("node {node} is in the fleet already, and alive: give this one another name (--node)")]
    NameTaken {
        /// The name.
        node: NodeName,
    },
    /// A step failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Error of a request to another node.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// Nobody listens for the node, so that it did not get the request.
    #[error("nobody answers for node {node}")]
    NobodyListens {
        /// The node.
        node: NodeName,
    },
    /// No answer came in time: the outcome is unknown.
    #[error("node {node} has not answered within {within:?}")]
    NoAnswer {
        /// The node.
        node: NodeName,
        /// Time that it had.
        within: Duration,
    },
    /// The request does not fit in a message.
    #[error("the request has {bytes} bytes, and a request to another node {most} at the most")]
    TooLong {
        /// Size of the request.
        bytes: usize,
        /// Size of the longest one.
        most: usize,
    },
    /// The other node has refused the request, and changed nothing.
    #[error("node {node} has no room for the request: {reason}")]
    Refused {
        /// The node.
        node: NodeName,
        /// What it said.
        reason: String,
    },
    /// The other node broke the answer off.
    #[error("node {node} broke its answer off: {reason}")]
    BrokenOff {
        /// The node.
        node: NodeName,
        /// What it said.
        reason: String,
    },
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Refusal of a claim.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another node has a session of that id.
    #[error("node {node} has a session of that id")]
    Owned {
        /// The node.
        node: NodeName,
    },
    /// This node's own lease is over.
    #[error("this node's lease is over: the fleet's engine has acknowledged no beat for {} s", .silence.as_secs())]
    LeaseOver {
        /// Time since the last acknowledged beat was sent.
        silence: Duration,
    },
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}
