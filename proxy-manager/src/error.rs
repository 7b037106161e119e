//! What can go wrong, as the embedder sees it.

use std::{io, time::Duration};

use ipc_protocol::{Containment, InvalidId, ProcessId, Receipt, SessionId, WireError};

/// What a manager's calls return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed. Each says what was tried, on what, and what to do.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A session of that id is there already.
    #[error("session {session} exists already: choose another id, or leave it out for a fresh one")]
    DuplicateSession {
        /// The id.
        session: SessionId,
    },
    /// No session of that id.
    #[error("no session {session}: list the sessions to see which there are")]
    UnknownSession {
        /// The id.
        session: SessionId,
    },
    /// The session has no such process.
    #[error("session {session} has no process {pid}: list its processes to see which there are")]
    UnknownProcess {
        /// The session.
        session: SessionId,
        /// The pid.
        pid: u32,
    },
    /// No such agent in the catalog.
    #[error("no agent is called {agent:?}: there are {}", known.join(", "))]
    UnknownAgent {
        /// As asked for.
        agent: String,
        /// What there is.
        known: Vec<String>,
    },
    /// No such permission request is open, or it has no such option.
    #[error("permission request {id:?} of session {session}: {reason}")]
    UnknownPermission {
        /// The session.
        session: SessionId,
        /// The request.
        id: String,
        /// What is wrong with the answer.
        reason: String,
    },
    /// The configuration makes no sense.
    #[error("invalid {field}: {reason}")]
    InvalidConfig {
        /// Which part.
        field: &'static str,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// The agent's program is not there.
    #[error("program {program:?} was not found in {searched}: install it, or give its full path")]
    ProgramNotFound {
        /// As it was asked for.
        program: String,
        /// Where it was looked for.
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
    /// The child binary does not answer as one.
    #[error(
        "{child:?} is not usable as child binary: {reason}; it must call proxy_child::run_if_child() first in main"
    )]
    ChildUnusable {
        /// Its path.
        child: String,
        /// What happened.
        reason: String,
    },
    /// No descriptor was left.
    #[error("out of file descriptors while {operation}: raise the limit (ulimit -n) or run fewer sessions")]
    FdsExhausted {
        /// What was going on.
        operation: String,
    },
    /// A turn is running, or the queue of prompts is full.
    #[error("session {session} is busy: wait for its turn to end, queue the prompt, or steer it")]
    Busy {
        /// The session.
        session: SessionId,
    },
    /// The session has had its turns.
    #[error("session {session} has had its {max_turns} turns: start another one")]
    MaxTurns {
        /// The session.
        session: SessionId,
        /// The limit it was started with.
        max_turns: u32,
    },
    /// The agent cannot do that.
    #[error("agent {agent:?} cannot {operation}")]
    Unsupported {
        /// Its catalog id.
        agent: String,
        /// What was asked.
        operation: String,
    },
    /// The layer asked for cannot be had on this machine.
    #[error("containment {containment} was asked for and cannot be had: {reason}")]
    ContainmentUnavailable {
        /// As it was asked for.
        containment: Containment,
        /// What is missing, and what to do about it.
        reason: String,
    },
    /// It took too long.
    #[error("{operation} took longer than {}", humantime_like(*after))]
    Deadline {
        /// What was going on.
        operation: String,
        /// The deadline.
        after: Duration,
    },
    /// The agent is gone.
    #[error("the agent of session {session} has died: {reason}")]
    AgentDied {
        /// The session.
        session: SessionId,
        /// How.
        reason: String,
    },
    /// The proxy is gone.
    #[error("the proxy of session {session} has died: {reason}; what it ran was ended")]
    ProxyDied {
        /// The session.
        session: SessionId,
        /// How.
        reason: String,
    },
    /// The fork server is gone.
    #[error("the fork server has died: its sessions were ended; build another manager (a daemon: restart it)")]
    ForkServerDied,
    /// The session is over.
    #[error("session {session} has ended: {reason}")]
    Ended {
        /// The session.
        session: SessionId,
        /// Why.
        reason: String,
    },
    /// Host and child binary are of different builds.
    #[error("protocol version {ours} here, {theirs} in the child binary: build both together")]
    VersionMismatch {
        /// The host's.
        ours: u32,
        /// The child's.
        theirs: u32,
    },
    /// The other side, or the agent, said what its protocol does not allow.
    #[error("protocol error: {reason}")]
    Protocol {
        /// What happened.
        reason: String,
    },
    /// Something outlived the kill.
    #[error("{} processes of session {} survived the kill: {:?}", .0.survivors.len(), .0.session_id, .0.survivors)]
    Survivors(Box<Receipt>),
    /// The manager was shut down.
    #[error("the manager was shut down")]
    ShutDown,
    /// The system refused something that it should not.
    #[error("{operation} failed: {reason}")]
    System {
        /// What was tried.
        operation: String,
        /// The system's word for it.
        reason: String,
    },
}

fn humantime_like(after: Duration) -> String {
    format!("{after:?}")
}

impl From<InvalidId> for Error {
    fn from(error: InvalidId) -> Self {
        Self::InvalidConfig { field: "session id", reason: error.to_string() }
    }
}

impl Error {
    /// An error of a system call.
    pub(crate) fn system(operation: &str, error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(23 | 24) => Self::FdsExhausted { operation: operation.to_owned() },
            _ => Self::System { operation: operation.to_owned(), reason: error.to_string() },
        }
    }

    /// What a proxy or the fork server answered about `session`.
    pub(crate) fn from_wire(session: &SessionId, error: WireError) -> Self {
        let session = session.clone();
        match error {
            WireError::ProgramNotFound { program, searched } => Self::ProgramNotFound { program, searched },
            WireError::CwdMissing { cwd, reason } => Self::CwdMissing { cwd, reason },
            WireError::FdsExhausted { operation } => Self::FdsExhausted { operation },
            WireError::Busy => Self::Busy { session },
            WireError::Unsupported { agent, operation } => Self::Unsupported { agent, operation },
            WireError::UnknownProcess { process: ProcessId { pid, .. } } => Self::UnknownProcess { session, pid },
            WireError::UnknownPermission { ref id } | WireError::UnknownOption { ref id, .. } => {
                Self::UnknownPermission { session, id: id.clone(), reason: error.to_string() }
            }
            WireError::Deadline { operation, after_ms } => {
                Self::Deadline { operation, after: Duration::from_millis(after_ms) }
            }
            WireError::AgentDied { reason } => Self::AgentDied { session, reason },
            WireError::VersionMismatch { ours, theirs } => Self::VersionMismatch { ours, theirs },
            WireError::Survivors(receipt) => Self::Survivors(receipt),
            WireError::AgentProtocol { .. } | WireError::Protocol { .. } => {
                Self::Protocol { reason: error.to_string() }
            }
            WireError::Spawn { .. } => {
                Self::System { operation: "starting the agent".into(), reason: error.to_string() }
            }
            WireError::System { operation, reason } => Self::System { operation, reason },
        }
    }
}
