//! Errors as they cross the wire.

use serde::{Deserialize, Serialize};

use crate::{ProcessId, Receipt};

/// What a proxy or the fork server answers when it could not do what was asked.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq, Serialize, Deserialize)]
pub enum WireError {
    /// No such program.
    #[error("program {program:?} was not found in {searched}: install it, or give its full path")]
    ProgramNotFound {
        /// As it was asked for.
        program: String,
        /// The PATH that was searched, or `the file system` for a path.
        searched: String,
    },
    /// The working directory is not there.
    #[error("working directory {cwd:?} cannot be used ({reason}): create it, or name another")]
    CwdMissing {
        /// As it was asked for.
        cwd: String,
        /// The system's word for it.
        reason: String,
    },
    /// The program is there and cannot be started.
    #[error("starting {program:?} failed at {step}: {reason}")]
    Spawn {
        /// Its full path.
        program: String,
        /// Which system call.
        step: String,
        /// The system's word for it.
        reason: String,
    },
    /// No descriptor was left.
    #[error("out of file descriptors while {operation}: raise the limit (ulimit -n) or run fewer sessions")]
    FdsExhausted {
        /// What was going on.
        operation: String,
    },
    /// A turn is running.
    #[error("a turn is running: wait for it, queue the prompt, or steer it")]
    Busy,
    /// The agent cannot do that.
    #[error("agent {agent:?} cannot {operation}")]
    Unsupported {
        /// Its catalog id.
        agent: String,
        /// What was asked.
        operation: String,
    },
    /// The session has no such process.
    #[error("the session has no process {process}: list its processes")]
    UnknownProcess {
        /// Which was asked for.
        process: ProcessId,
    },
    /// No such permission request is open.
    #[error("no permission request {id:?} is open: it was answered, or its turn has ended")]
    UnknownPermission {
        /// Which was answered.
        id: String,
    },
    /// The permission request has no such option.
    #[error("permission request {id:?} has no option {option:?}: it has {options:?}")]
    UnknownOption {
        /// Which request.
        id: String,
        /// What was chosen.
        option: String,
        /// What there is.
        options: Vec<String>,
    },
    /// It took too long.
    #[error("{operation} took longer than {after_ms} ms")]
    Deadline {
        /// What was going on.
        operation: String,
        /// The deadline in milliseconds.
        after_ms: u64,
    },
    /// The agent is gone.
    #[error("the agent has died: {reason}")]
    AgentDied {
        /// How.
        reason: String,
    },
    /// The conversation to go on with is not there, or broken.
    #[error("agent {agent:?} cannot go on with conversation {id:?}: {reason}")]
    NativeSessionMissing {
        /// Its catalog id.
        agent: String,
        /// The agent's id of the conversation; `the most recent` where none was named.
        id: String,
        /// What the agent said.
        reason: String,
    },
    /// The agent refused what was asked.
    #[error("agent {agent:?} refused: {reason}")]
    AgentRefused {
        /// Its catalog id.
        agent: String,
        /// What it said.
        reason: String,
    },
    /// The agent said what its protocol does not allow, or refused the handshake.
    #[error("agent {agent:?} broke its protocol: {reason}")]
    AgentProtocol {
        /// Its catalog id.
        agent: String,
        /// What happened.
        reason: String,
    },
    /// The other side said what this protocol does not allow.
    #[error("protocol error: {reason}")]
    Protocol {
        /// What happened.
        reason: String,
    },
    /// The two sides are of different builds.
    #[error("protocol version {ours} here, {theirs} there: the child binary and the host must be of one build")]
    VersionMismatch {
        /// This side's.
        ours: u32,
        /// The other side's.
        theirs: u32,
    },
    /// Something outlived the kill.
    #[error("{}", match .0.doubt() {
        None => format!("{} processes survived the kill", .0.survivors.len()),
        Some(doubt) => format!("whether anything survived the kill is not provable: {doubt}"),
    })]
    Survivors(Box<Receipt>),
    /// A system call failed that should not.
    #[error("{operation} failed: {reason}")]
    System {
        /// What was tried.
        operation: String,
        /// The system's word for it.
        reason: String,
    },
}
