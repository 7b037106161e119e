//! Errors that cross the wire.

use serde::{Deserialize, Serialize};

use crate::Receipt;

/// Failure of a request to a proxy or the fork server.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq, Serialize, Deserialize)]
pub enum WireError {
    /// The program does not exist.
    #[error("program {program:?} was not found in {searched}: install it, or give its full path")]
    ProgramNotFound {
        /// Program as requested.
        program: String,
        /// Value of PATH that was searched, or `the file system` for a path.
        searched: String,
    },
    /// The working directory does not exist or cannot be used.
    #[error("working directory {cwd:?} cannot be used ({reason}): create it, or name another")]
    CwdMissing {
        /// Directory as requested.
        cwd: String,
        /// Error of the system.
        reason: String,
    },
    /// The program exists but cannot be started.
    #[error("starting {program:?} failed at {step}: {reason}")]
    Spawn {
        /// Full path of the program.
        program: String,
        /// System call that failed.
        step: String,
        /// Error of the system.
        reason: String,
    },
    /// No file descriptor is left.
    #[error("out of file descriptors while {operation}: raise the limit (ulimit -n) or run fewer sessions")]
    FdsExhausted {
        /// Operation in progress.
        operation: String,
    },
    /// A turn is running.
    #[error("a turn is running: wait for it, queue the prompt, or steer it")]
    Busy,
    /// The agent does not support the operation.
    #[error("agent {agent:?} cannot {operation}")]
    Unsupported {
        /// Catalog id of the agent.
        agent: String,
        /// Operation that was requested.
        operation: String,
    },
    /// The session has no such process.
    #[error("the session has no process {pid}: list its processes")]
    UnknownProcess {
        /// Pid that was requested.
        pid: u32,
    },
    /// No such permission request is open.
    #[error("no permission request {id:?} is open: it was answered, or its turn has ended")]
    UnknownPermission {
        /// Id that was answered.
        id: String,
    },
    /// The permission request has no such option.
    #[error("permission request {id:?} has no option {option:?}: it has {options:?}")]
    UnknownOption {
        /// Id of the request.
        id: String,
        /// Option that was chosen.
        option: String,
        /// Options that exist.
        options: Vec<String>,
    },
    /// The operation took too long.
    #[error("{operation} took longer than {after_ms} ms")]
    Deadline {
        /// Operation in progress.
        operation: String,
        /// Deadline in milliseconds.
        after_ms: u64,
    },
    /// The agent has died.
    #[error("the agent has died: {reason}")]
    AgentDied {
        /// Description of its end.
        reason: String,
    },
    /// The conversation to continue is missing or broken.
    #[error("agent {agent:?} cannot go on with conversation {id:?}: {reason}")]
    NativeSessionMissing {
        /// Catalog id of the agent.
        agent: String,
        /// Agent's id of the conversation; `the most recent` where none was named.
        id: String,
        /// Message of the agent.
        reason: String,
    },
    /// The agent refused the request.
    #[error("agent {agent:?} refused: {reason}")]
    AgentRefused {
        /// Catalog id of the agent.
        agent: String,
        /// Message of the agent.
        reason: String,
    },
    /// The agent violated its protocol, or refused the handshake.
    #[error("agent {agent:?} broke its protocol: {reason}")]
    AgentProtocol {
        /// Catalog id of the agent.
        agent: String,
        /// Description of the violation.
        reason: String,
    },
    /// The other side violated this protocol.
    #[error("protocol error: {reason}")]
    Protocol {
        /// Description of the violation.
        reason: String,
    },
    /// The two sides are of different builds.
    #[error("protocol version {ours} here, {theirs} there: the child binary and the host must be of one build")]
    VersionMismatch {
        /// Version of this side.
        ours: u32,
        /// Version of the other side.
        theirs: u32,
    },
    /// Something outlived the kill.
    #[error("{}", match .0.doubt() {
        None => format!("{} processes survived the kill", .0.survivors.len()),
        Some(doubt) => format!("whether anything survived the kill is not provable: {doubt}"),
    })]
    Survivors(Box<Receipt>),
    /// A system call failed unexpectedly.
    #[error("{operation} failed: {reason}")]
    System {
        /// Operation that was tried.
        operation: String,
        /// Error of the system.
        reason: String,
    },
}
