//! Errors of this crate, for the embedder.

use std::{fmt, io, path::PathBuf, time::Duration};

use agents::conversations::{ConversationError, DamagedConversation};

use crate::{answer::Answer, session_store::SessionStatus};
use ipc_protocol::{
    BudgetExceeded, Containment, EMPTY_PATH, ErrorCause, ErrorChain, InvalidId, Pid, Receipt, SessionId, WireError,
    errno::is_out_of_descriptors,
};

/// Result of a manager's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Failure of a call. Each message names what was tried, on what, and what to do. The causes of an error are its sources:
/// [`Error::chain`] is the whole text, and so is `Debug`, which a `main` that returns the error prints.
///
/// ```
/// use proxy_manager::{Error, SessionId};
///
/// let error = Error::UnknownSession { session: "s-1".parse::<SessionId>()? };
/// assert_eq!(format!("{error:?}"), "no session s-1: list the sessions to see which there are");
/// assert_eq!(error.chain(), error.to_string());
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A session with that id exists already.
    #[error("session {session} {}", match status {
        SessionStatus::Ended => "has ended and keeps its id: delete it, replace it (`lifecycle.replace`), or choose another id",
        SessionStatus::Suspended => "exists already and is suspended: resume it, or choose another id",
        _ => "exists already: choose another id, or leave it out for a fresh one",
    })]
    DuplicateSession {
        /// The id in use.
        session: SessionId,
        /// Status of the session that has it.
        status: SessionStatus,
    },
    /// No session has that id.
    #[error("no session {session}: list the sessions to see which there are")]
    UnknownSession {
        /// The unknown id.
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
    /// The session is not suspended, or another caller resumes it now.
    #[error("session {session} is not suspended: there is nothing to resume")]
    NotSuspended {
        /// The session.
        session: SessionId,
    },
    /// The session was started with secrets, which no record keeps, and the resume did not give them again.
    #[error(
        "session {session} was started with {}, which is kept nowhere: resume it with the same again (variables by `env`, MCP \
         servers by `mcpServers`, an address by `endpoint`; a model configuration needs its key), empty to do without; \
         what a start names in `notSecret` is kept",
        names.join(", ")
    )]
    SecretsMissing {
        /// The session.
        session: SessionId,
        /// Names of the missing secrets, as in
        /// [`AgentSessionConfig::secrets`](ipc_protocol::AgentSessionConfig::secrets); `modelConfig.key` for the key of
        /// its model configuration.
        names: Vec<String>,
    },
    /// The session's conversation is handed over for now.
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
    /// The session has no such prompt in its queue.
    #[error("session {session} has no prompt {offset} that waits: list its queue to see which there are")]
    UnknownPrompt {
        /// The session.
        session: SessionId,
        /// Offset of the event that a prompt was accepted with.
        offset: u64,
    },
    /// The prompt was dropped from the session's queue before its turn.
    #[error("the prompt was dropped from the queue of session {session}")]
    PromptDropped {
        /// The session.
        session: SessionId,
    },
    /// No such agent in the catalog.
    #[error("no agent is called {agent:?}: there are {}", known.join(", "))]
    UnknownAgent {
        /// Name that was asked for.
        agent: String,
        /// Agents in the catalog.
        known: Vec<String>,
    },
    /// No such profile.
    #[error("no profile is called {profile:?}: {}", describe_known(known))]
    UnknownProfile {
        /// Name that was asked for.
        profile: String,
        /// Existing profiles.
        known: Vec<String>,
    },
    /// No such model configuration.
    #[error("no model configuration is called {model:?}: {}", describe_known(known))]
    UnknownModel {
        /// Name that was asked for.
        model: String,
        /// Existing model configurations.
        known: Vec<String>,
    },
    /// No such permission request is open, or the request has no such option.
    #[error("permission request {id:?} of session {session}: {reason}")]
    UnknownPermission {
        /// The session.
        session: SessionId,
        /// The request.
        id: String,
        /// Fault of the answer.
        reason: String,
    },
    /// The configuration is invalid.
    #[error("invalid {field}: {reason}")]
    InvalidConfig {
        /// Field that is invalid.
        field: &'static str,
        /// Fault of the value, and what would be right.
        reason: String,
    },
    /// The state directory is another manager's.
    #[error("state directory {directory:?} is in use by {owner}: stop that manager, or name another directory")]
    StateDirInUse {
        /// The state directory.
        directory: PathBuf,
        /// Description of the owner, for people.
        owner: String,
    },
    /// The agent's program was not found.
    #[error("program {program:?} was not found in {searched}: {}, or give its full path", match install {
        _ if searched == EMPTY_PATH => "set PATH in the `env` of the session, or for all in `ManagerBuilder::base_env`".to_owned(),
        Some(command) => format!("install it ({command})"),
        None => "install it".to_owned(),
    })]
    ProgramNotFound {
        /// Program as it was asked for.
        program: String,
        /// Places that were searched.
        searched: String,
        /// Command that installs the agent, from its row in the catalog.
        install: Option<String>,
    },
    /// The working directory cannot be used.
    #[error("working directory {cwd:?} cannot be used ({reason}): create it, or name another")]
    CwdMissing {
        /// Directory as it was asked for.
        cwd: String,
        /// Reason given by the system.
        reason: String,
    },
    /// The child binary does not answer the handshake.
    #[error(
        "{child:?} is not usable as child binary: {reason}; it must call run_if_child() (of agent_proxy_sdk, or proxy_child) first in main"
    )]
    ChildUnusable {
        /// Path of the binary.
        child: String,
        /// Description of the failure.
        reason: String,
    },
    /// The child binary calls `run_if_child` inside a tokio runtime, where it can be no fork server.
    #[error(
        "{child:?} calls run_if_child() inside a tokio runtime, which is too late for a fork server: write, in place of \
         #[tokio::main] async fn main,\n\n\
         fn main() {{\n    let token = agent_proxy_sdk::run_if_child(); // or proxy_child::run_if_child()\n    \
         tokio::runtime::Runtime::new().expect(\"a runtime\").block_on(run(token));\n}}\n"
    )]
    ChildInRuntime {
        /// Path of the binary.
        child: String,
    },
    /// The call was made outside a tokio runtime, which it needs for its tasks and deadlines.
    #[error("called outside a tokio runtime: call it from a task, or by Runtime::block_on")]
    NoRuntime,
    /// The runtime in which the manager was built has ended, and with it the tasks of the manager and of its sessions. What these ran is
    /// being ended by their proxies.
    #[error(
        "{operation}: the tokio runtime in which the manager was built has ended, and the manager's sessions with it; build another \
         manager, in a runtime that lives for as long as the manager is used (each `#[tokio::test]` has one of its own)"
    )]
    RuntimeEnded {
        /// Operation that was tried.
        operation: String,
    },
    /// The tokio runtime has no I/O, or no timers.
    #[error(
        "the tokio runtime has no {missing} driver, which a manager needs: build it with `enable_all()`, as `Runtime::new()` does"
    )]
    RuntimeIncomplete {
        /// `I/O` or `time`.
        missing: &'static str,
    },
    /// The process has no file descriptor left.
    #[error("out of file descriptors while {operation}: raise the limit (ulimit -n) or run fewer sessions")]
    FdsExhausted {
        /// Operation that failed.
        operation: String,
    },
    /// A turn is running, the queue of prompts is full, or too many actions appended to the stream wait.
    #[error("session {session} {}", match permission {
        None => "is busy: wait for its turn to end, queue the prompt, or steer it".to_owned(),
        Some(request) => format!("is waiting for {request}: answer that permission request, queue the prompt, or steer the turn"),
    })]
    Busy {
        /// The session.
        session: SessionId,
        /// The permission request that its turn waits for, if any.
        permission: Option<String>,
    },
    /// The session has taken all its prompts.
    #[error("session {session} has taken its {max_prompts} prompts: start another one")]
    MaxPrompts {
        /// The session.
        session: SessionId,
        /// Limit given at the start.
        max_prompts: u32,
    },
    /// The number of sessions has reached a bound.
    #[error("the limit of {limit} running sessions {bound} is reached, and {}: end one, or try again later", queue_like(*waiting, *waited))]
    TooManySessions {
        /// Bound that was reached.
        bound: SessionBound,
        /// Value of the bound.
        limit: usize,
        /// Starts that wait for a place.
        waiting: usize,
        /// Time that this start waited; `None` where it was refused at once.
        waited: Option<Duration>,
    },
    /// The session has used up a budget.
    #[error("session {session} has used up its budget, {exceeded}: start another one")]
    BudgetExceeded {
        /// The session.
        session: SessionId,
        /// Budget that was exceeded, and the amount used.
        exceeded: BudgetExceeded,
    },
    /// The manager is draining: running turns may end, and nothing new begins.
    #[error("the manager is draining: what runs may end, nothing new begins; ask another one")]
    Draining,
    /// The turn failed.
    #[error("the turn of session {session} failed: {reason}")]
    TurnFailed {
        /// The session.
        session: SessionId,
        /// Reason for the failure.
        reason: String,
        /// Answer up to the failure.
        answer: Box<Answer>,
    },
    /// The agent does not support the operation.
    #[error("agent {agent:?} cannot {operation}")]
    Unsupported {
        /// Catalog id of the agent.
        agent: String,
        /// Operation that was asked for.
        operation: String,
    },
    /// The conversation to resume is missing or broken.
    #[error(
        "agent {agent:?} cannot go on with conversation {id:?}: {reason}; `onMissing` (of a start: `resume.onMissing`) can have it begin \
         another one, and tell it what was said"
    )]
    NativeSessionMissing {
        /// Catalog id of the agent.
        agent: String,
        /// The agent's id of the conversation; `the most recent` where none was named.
        id: String,
        /// Reason given by the agent.
        reason: String,
    },
    /// The session has no workspace.
    #[error("session {session} has no workspace: list the workspaces to see which there are")]
    UnknownWorkspace {
        /// The session.
        session: SessionId,
    },
    /// Another call looks at the workspace or changes it.
    #[error("the workspace of session {session} is in use by another call: try again when that is done")]
    WorkspaceBusy {
        /// The session.
        session: SessionId,
    },
    /// The command before the session's start, or after its end, failed.
    #[error("the command that runs as session {session} failed: {outcome}{}", if output.is_empty() { String::new() } else { format!(", after it said\n{output}") })]
    CommandFailed {
        /// The command's session.
        session: SessionId,
        /// End of the command.
        outcome: String,
        /// Last lines of its output.
        output: String,
        /// True if it exited by itself.
        exited: bool,
    },
    /// The session cannot be deleted without its workspace, which has changes that are not applied.
    #[error(
        "the workspace of session {session} has {files} changed files that are not applied: apply or drop them first, or force it"
    )]
    WorkspaceUnapplied {
        /// The session.
        session: SessionId,
        /// Number of changed files.
        files: u64,
    },
    /// The user's tree has changed in the same places as the workspace.
    #[error(
        "the changes of session {session} do not fit {source_tree}, which has changed since at {}, and nothing was applied: undo or \
         move these, or apply the patch by hand",
        if paths.is_empty() { message.trim().to_owned() } else { paths.join(", ") }
    )]
    WorkspaceConflict {
        /// The session.
        session: SessionId,
        /// The user's tree.
        source_tree: String,
        /// Paths at which it has changed.
        paths: Vec<String>,
        /// Message of git.
        message: String,
    },
    /// Another session, of this manager or of another one of this user, has that conversation open.
    #[error(
        "conversation {id:?} of agent {agent:?} is open in session {session}{}: end that first, or fork it",
        manager.map_or_else(String::new, |pid| format!(" of another manager (process {pid})"))
    )]
    NativeSessionBusy {
        /// Catalog id of the agent.
        agent: String,
        /// The agent's id of the conversation.
        id: String,
        /// Session that has it open.
        session: SessionId,
        /// Process of that manager, where it is another one; the session's proxy, if that manager is dead.
        manager: Option<Pid>,
    },
    /// A copy is wanted of the conversation of a session that runs in a home of its own.
    #[error(
        "session {session} runs in a home of its own, in which a second agent would get in its way: suspend it or let it end, then \
         fork its conversation; sessions in the shared home can be forked while they run"
    )]
    HomeBusy {
        /// Session that runs in that home.
        session: SessionId,
    },
    /// The agent refused what was asked.
    #[error("agent {agent:?} refused: {reason}")]
    AgentRefused {
        /// Catalog id of the agent.
        agent: String,
        /// Reason given by the agent.
        reason: String,
    },
    /// Sessions are nested too deep.
    #[error("a session {depth} deep was asked for and {max} is allowed: an agent may be starting itself again")]
    TooDeep {
        /// Depth that was asked for.
        depth: u32,
        /// Maximum depth.
        max: u32,
    },
    /// This machine cannot provide the containment that was asked for.
    #[error("containment {containment} was asked for and cannot be had: {reason}")]
    ContainmentUnavailable {
        /// Containment that was asked for.
        containment: Containment,
        /// Missing feature, and what to do about it.
        reason: String,
    },
    /// The call exceeded its deadline.
    #[error("{operation} took longer than {}", humantime_like(*after))]
    Deadline {
        /// Operation that was running.
        operation: String,
        /// The deadline.
        after: Duration,
    },
    /// The agent has died.
    #[error("the agent of session {session} has died: {reason}")]
    AgentDied {
        /// The session.
        session: SessionId,
        /// Description of its death.
        reason: String,
    },
    /// The proxy has died.
    #[error("the proxy of session {session} has died: {reason}; what it ran was ended")]
    ProxyDied {
        /// The session.
        session: SessionId,
        /// Description of its death.
        reason: String,
    },
    /// The fork server has died, and another one has not taken its place yet.
    #[error("the fork server has died: its sessions were ended; another one is being started: try again")]
    ForkServerDied,
    /// The session has ended.
    #[error("session {session} has ended: {reason}")]
    Ended {
        /// The session.
        session: SessionId,
        /// Reason for its end.
        reason: String,
    },
    /// Host and child binary have different protocol versions.
    #[error("protocol version {ours} here, {theirs} in the child binary: build both together")]
    VersionMismatch {
        /// Version of the host.
        ours: u32,
        /// Version of the child.
        theirs: u32,
    },
    /// The other side, or the agent, violated its protocol.
    #[error("protocol error")]
    Protocol {
        /// Violation.
        source: ErrorCause,
    },
    /// Something outlived the kill.
    #[error("{}", api_types::survivors_text(.0))]
    Survivors(Box<Receipt>),
    /// Another manager of the fleet has the session.
    #[error("session {session} is not this machine's: {owner} has it; ask there")]
    NotOwner {
        /// The session.
        session: SessionId,
        /// The owner, and since when it is silent, if it is.
        owner: String,
    },
    /// The fleet cannot be asked.
    #[error("the fleet cannot be asked: {reason}; try again once it can be reached")]
    FleetUnavailable {
        /// What was tried, and the error.
        reason: String,
    },
    /// The session was taken from this manager: another machine may have it.
    #[error("session {session} was taken from this machine: another one may have it; ask there")]
    Fenced {
        /// The session.
        session: SessionId,
    },
    /// The manager was shut down.
    #[error("the manager was shut down")]
    ShutDown,
    /// The event log failed.
    #[error(transparent)]
    Log(#[from] event_log::LogError),
    /// An unexpected failure of a system call.
    #[error("{operation} failed")]
    System {
        /// Operation that was tried.
        operation: String,
        /// Error of the system.
        source: ErrorCause,
    },
}

fn queue_like(waiting: usize, waited: Option<Duration>) -> String {
    match (waiting, waited) {
        (_, Some(Duration::ZERO)) | (0, None) => "none may wait".to_owned(),
        (_, Some(waited)) => format!("none ended within {}", humantime_like(waited)),
        (waiting, None) => format!("{waiting} wait already"),
    }
}

fn humantime_like(after: Duration) -> String {
    // No digits below the millisecond: nobody waits for so little, and `0ns` is no time that a person gives.
    let after = Duration::from_millis(u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
    if after.is_zero() { "0s".to_owned() } else { format!("{after:?}") }
}

impl From<InvalidId> for Error {
    fn from(error: InvalidId) -> Self {
        Self::InvalidConfig { field: "sessionId", reason: error.to_string() }
    }
}

fn describe_known(known: &[String]) -> String {
    if known.is_empty() { "there are none".to_owned() } else { format!("there are {}", known.join(", ")) }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&ErrorChain(self), f)
    }
}

impl Error {
    /// Converts the error of a system call.
    pub(crate) fn system(operation: impl Into<String>, error: io::Error) -> Self {
        let operation = operation.into();
        if is_out_of_descriptors(&error) {
            return Self::FdsExhausted { operation };
        }
        Self::System { operation, source: ErrorCause::new(error) }
    }

    /// Creates the error for a violation of a protocol.
    pub(crate) fn protocol(violation: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Protocol { source: ErrorCause::new(violation) }
    }

    /// Returns the text of the error and of its causes, outermost first: `starting the agent failed: Permission denied`.
    pub fn chain(&self) -> String {
        ErrorChain(self).to_string()
    }

    /// Converts an error that a proxy or the fork server answered about `session`.
    pub(crate) fn from_wire(session: &SessionId, error: WireError) -> Self {
        let session = session.clone();
        match error {
            WireError::ProgramNotFound { program, searched } => {
                Self::ProgramNotFound { program, searched, install: None }
            }
            WireError::CwdMissing { cwd, reason } => Self::CwdMissing { cwd, reason },
            WireError::FdsExhausted { operation } => Self::FdsExhausted { operation },
            WireError::Busy => Self::Busy { session, permission: None },
            WireError::Unsupported { agent, operation } => Self::Unsupported { agent, operation },
            WireError::UnknownProcess { pid } => Self::UnknownProcess { session, pid },
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
            WireError::Protocol { reason } => Self::protocol(reason),
            WireError::AgentProtocol { .. } => Self::protocol(error),
            WireError::Spawn { .. } => {
                Self::System { operation: "starting the agent".into(), source: ErrorCause::new(error) }
            }
            WireError::System { operation, reason } => Self::System { operation, source: ErrorCause::new(reason) },
        }
    }
}

/// A bound on sessions, as named in errors.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionBound {
    /// Bound on all sessions of the manager.
    Total,
    /// Bound on sessions with this `userId`.
    User(String),
    /// Bound on sessions of this agent.
    Agent(String),
}

impl fmt::Display for SessionBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Total => f.write_str("in all"),
            Self::User(user) => write!(f, "of user {user:?}"),
            Self::Agent(agent) => write!(f, "of agent {agent:?}"),
        }
    }
}

impl From<DamagedConversation> for Error {
    fn from(DamagedConversation { agent, id, reason }: DamagedConversation) -> Self {
        Self::NativeSessionMissing { agent, id, reason }
    }
}

impl From<ConversationError> for Error {
    fn from(ConversationError { operation, source }: ConversationError) -> Self {
        Self::system(operation, source)
    }
}
