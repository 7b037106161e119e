//! What can go wrong, as the embedder sees it.

use std::{io, path::PathBuf, time::Duration};

use crate::{Answer, SessionBound};
use ipc_protocol::{BudgetExceeded, Containment, InvalidId, Pid, ProcessId, Receipt, SessionId, WireError};

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
    /// The session has not ended.
    #[error("session {session} has not ended: kill it first")]
    NotEnded {
        /// The session.
        session: SessionId,
    },
    /// The session is suspended.
    #[error("session {session} is suspended: resume it")]
    Suspended {
        /// The session.
        session: SessionId,
    },
    /// The session is not suspended, or is being resumed by somebody else.
    #[error("session {session} is not suspended: there is nothing to resume")]
    NotSuspended {
        /// The session.
        session: SessionId,
    },
    /// The session was started with secrets, which are in no record, and they were not given again.
    #[error(
        "session {session} was started with {}, which is kept nowhere: resume it with the same again (variables by `env`, MCP \
         servers by `mcpServers`, an address by `endpoint`; a model configuration needs its key), empty to do without",
        names.join(", ")
    )]
    SecretsMissing {
        /// The session.
        session: SessionId,
        /// What is missing, as [`AgentSessionConfig::secrets`](ipc_protocol::AgentSessionConfig::secrets) calls it;
        /// `modelConfig.key` for the key of its model configuration.
        names: Vec<String>,
    },
    /// Its conversation is somebody else's for now.
    #[error("session {session} was handed over: whoever has it uses the agent itself; take it back first")]
    HandedOver {
        /// The session.
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
    /// No such profile.
    #[error("no profile is called {profile:?}: {}", known_as(known))]
    UnknownProfile {
        /// As asked for.
        profile: String,
        /// What there is.
        known: Vec<String>,
    },
    /// No such model configuration.
    #[error("no model configuration is called {model:?}: {}", known_as(known))]
    UnknownModel {
        /// As asked for.
        model: String,
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
    /// The state directory is another manager's.
    #[error("state directory {directory:?} is in use by {owner}: stop that manager, or name another directory")]
    StateDirInUse {
        /// Which.
        directory: PathBuf,
        /// Who has it, for people.
        owner: String,
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
    /// A turn is running, the queue of prompts is full, or too much that was asked for on the stream waits to be done.
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
    /// There are as many sessions as there may be.
    #[error("the limit of {limit} running sessions {bound} is reached, and {}: end one, or try again later", queue_like(*waiting, *waited))]
    TooManySessions {
        /// Which bound.
        bound: SessionBound,
        /// What it is set to.
        limit: usize,
        /// Starts that wait for a place.
        waiting: usize,
        /// How long this one has waited; `None` where it was refused at once.
        waited: Option<Duration>,
    },
    /// The session has used up a budget.
    #[error("session {session} has used up its budget, {exceeded}: start another one")]
    BudgetExceeded {
        /// The session.
        session: SessionId,
        /// Which, and how much was taken.
        exceeded: BudgetExceeded,
    },
    /// The manager lets running turns end, and begins nothing new.
    #[error("the manager is draining: what runs may end, nothing new begins; ask another one")]
    Draining,
    /// The turn did not end well.
    #[error("the turn of session {session} failed: {reason}")]
    TurnFailed {
        /// The session.
        session: SessionId,
        /// Why.
        reason: String,
        /// What was answered up to then.
        answer: Box<Answer>,
    },
    /// The agent cannot do that.
    #[error("agent {agent:?} cannot {operation}")]
    Unsupported {
        /// Its catalog id.
        agent: String,
        /// What was asked.
        operation: String,
    },
    /// The conversation to go on with is not there, or broken.
    #[error(
        "agent {agent:?} cannot go on with conversation {id:?}: {reason}; start anew, or give it the history (on_missing)"
    )]
    NativeSessionMissing {
        /// Its catalog id.
        agent: String,
        /// The agent's id of the conversation; `the most recent` where none was named.
        id: String,
        /// What the agent said.
        reason: String,
    },
    /// Another session has that conversation open, of this manager or of another one of this user's.
    #[error(
        "conversation {id:?} of agent {agent:?} is open in session {session}{}: end that first, or fork it",
        manager.map_or_else(String::new, |pid| format!(" of another manager (process {pid})"))
    )]
    NativeSessionBusy {
        /// Its catalog id.
        agent: String,
        /// The agent's id of the conversation.
        id: String,
        /// Who has it.
        session: SessionId,
        /// The process of that manager, where it is another one; of the session's proxy, if it is dead.
        manager: Option<Pid>,
    },
    /// A copy is wanted of the conversation of a session that runs in a home of its own.
    #[error(
        "session {session} runs in a home of its own, in which a second agent would get in its way: suspend it or let it end, then \
         fork its conversation; sessions in the shared home can be forked while they run"
    )]
    HomeBusy {
        /// Which.
        session: SessionId,
    },
    /// The agent refused what was asked.
    #[error("agent {agent:?} refused: {reason}")]
    AgentRefused {
        /// Its catalog id.
        agent: String,
        /// What it said.
        reason: String,
    },
    /// Sessions inside sessions inside sessions.
    #[error("a session {depth} deep was asked for and {max} is allowed: an agent may be starting itself again")]
    TooDeep {
        /// How deep it would be.
        depth: u32,
        /// How deep it may be.
        max: u32,
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
    #[error("{}", match .0.doubt() {
        None => format!("{} processes of session {} survived the kill: {:?}", .0.survivors.len(), .0.session_id, .0.survivors),
        Some(doubt) => format!("whether anything of session {} survived the kill is not provable: {doubt}", .0.session_id),
    })]
    Survivors(Box<Receipt>),
    /// The manager was shut down.
    #[error("the manager was shut down")]
    ShutDown,
    /// The event log cannot do what it has to.
    #[error(transparent)]
    Log(#[from] event_log::LogError),
    /// The system refused something that it should not.
    #[error("{operation} failed: {reason}")]
    System {
        /// What was tried.
        operation: String,
        /// The system's word for it.
        reason: String,
    },
}

fn queue_like(waiting: usize, waited: Option<Duration>) -> String {
    match (waiting, waited) {
        (_, Some(waited)) => format!("none ended within {waited:?}"),
        (0, None) => "none may wait".to_owned(),
        (waiting, None) => format!("{waiting} wait already"),
    }
}

fn humantime_like(after: Duration) -> String {
    format!("{after:?}")
}

impl From<InvalidId> for Error {
    fn from(error: InvalidId) -> Self {
        Self::InvalidConfig { field: "session id", reason: error.to_string() }
    }
}

fn known_as(known: &[String]) -> String {
    if known.is_empty() { "there are none".to_owned() } else { format!("there are {}", known.join(", ")) }
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
            WireError::NativeSessionMissing { agent, id, reason } => Self::NativeSessionMissing { agent, id, reason },
            WireError::AgentRefused { agent, reason } => Self::AgentRefused { agent, reason },
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
