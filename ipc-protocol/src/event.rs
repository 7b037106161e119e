//! Events of a session, in one vocabulary for all agents.

mod envelope;
mod looks;
mod shape;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use self::{
    envelope::{Envelope, EnvelopeError},
    looks::{CostSource, DiffHunk, FileChange, FileDiff, ImageOutput, SettingSource, SlashCommand, Usage},
    shape::{EventShape, SHAPES},
};
use crate::{
    BudgetExceeded, BudgetKind, ContainmentStatus, ExitStatus, FileRefusal, Json, LimitExceeded, LimitKind,
    NetworkConnection, NetworkRefusal, PermissionBypassed, PermissionMode, ProcessId, ProcessInfo, RawLine, Receipt,
    TimeoutAction, TimeoutKind, WorkspaceKind, WorkspaceStep, terminal::Surface,
};

/// Status of an [`Event::SessionStatus`] with the address of the session's own server in `detail`.
pub const SERVER_LISTENS: &str = "serverListens";

/// Reason for the end of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum EndReason {
    /// The session was killed on request.
    Killed,
    /// The agent exited by itself; with the exit status, where known.
    AgentExited(Option<ExitStatus>),
    /// The session could not start, or its agent broke its protocol.
    Failed(String),
    /// The proxy died.
    ProxyDied(Option<ExitStatus>),
    /// The fork server died, so no guard was left.
    ForkServerDied,
    /// The host died or closed the connection.
    HostDied,
    /// The session passed this limit, whose action is to end it.
    LimitExceeded(LimitKind),
    /// This clock of the session ran out, whose action is to end it.
    TimedOut(TimeoutKind),
    /// The manager was shut down or dropped.
    Shutdown,
    /// The session used up this budget, whose action is to end it.
    BudgetExceeded(BudgetKind),
    /// The proxy did not answer this many pings in a row.
    Unresponsive(u32),
    /// The processes were ended, to be started again later: the conversation is kept.
    Suspended,
}

impl std::fmt::Display for EndReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Killed => f.write_str("killed"),
            Self::AgentExited(Some(status)) => write!(f, "the agent exited ({status})"),
            Self::AgentExited(None) => f.write_str("the agent exited"),
            Self::Failed(why) => write!(f, "failed: {why}"),
            Self::ProxyDied(Some(status)) => write!(f, "its proxy died ({status})"),
            Self::ProxyDied(None) => f.write_str("its proxy died"),
            Self::ForkServerDied => f.write_str("the fork server died"),
            Self::HostDied => f.write_str("the host died"),
            Self::LimitExceeded(limit) => write!(f, "it passed its limit on {limit}"),
            Self::TimedOut(clock) => write!(f, "its {clock} took too long"),
            Self::Shutdown => f.write_str("the manager was shut down"),
            Self::BudgetExceeded(budget) => write!(f, "it used up its budget of {budget}"),
            Self::Unresponsive(pings) => write!(f, "its proxy did not answer {pings} pings in a row"),
            Self::Suspended => f.write_str("suspended"),
        }
    }
}

/// Reason for the end of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum StopReason {
    /// The agent finished.
    EndTurn,
    /// The turn was aborted.
    Cancelled,
    /// The model refused.
    Refusal,
    /// A token limit was reached.
    MaxTokens,
    /// The limit of model replies for a prompt was reached: the session's, or the agent's own.
    MaxRequests,
    /// Another reason, in the agent's words.
    Other(String),
}

/// State of a tool call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ToolStatus {
    /// Pending: its input is still arriving, or it waits for permission.
    Pending,
    /// The call runs.
    InProgress,
    /// The call has ended well.
    Completed,
    /// Failed, or was rejected.
    Failed,
}

/// Beginning of a tool call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolStart {
    /// Id of the call, unique in the session.
    pub id: String,
    /// Machine name of the tool, if the agent gives one; else its kind.
    pub name: String,
    /// Title for people, one line.
    pub title: String,
    /// `read`, `edit`, `delete`, `move`, `search`, `execute`, `think`, `fetch`, `other`, …
    pub kind: String,
    /// Input as the agent gave it; `null` if it did not.
    pub input: Json,
    /// State of the call.
    pub status: ToolStatus,
    /// Tool call of the agent that made this one, if that is a sub-agent.
    pub parent: Option<String>,
}

/// Change of a tool call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolUpdate {
    /// Id of the call.
    pub id: String,
    /// New title.
    pub title: Option<String>,
    /// New status.
    pub status: Option<ToolStatus>,
    /// New input: many agents begin a call before they know its input.
    pub input: Option<Json>,
    /// Complete output so far, as text; only its end, if it is long.
    pub output: Option<String>,
}

/// End of a tool call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolEnd {
    /// Id of the call.
    pub id: String,
    /// `completed` or `failed`.
    pub status: ToolStatus,
    /// Output as text.
    pub output: String,
}

/// Step of an agent's plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanEntry {
    /// Task of the step.
    pub content: String,
    /// State in the agent's words: `pending`, `in_progress`, `completed`.
    pub status: String,
    /// Priority in the agent's words: `high`, `medium`, `low`; `null` where the agent gives none.
    pub priority: Option<String>,
}

/// Meaning of a permission option. Ids differ from agent to agent: match by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum PermissionOptionKind {
    AllowOnce,
    AllowAlways,
    RejectOnce,
    RejectAlways,
    Other,
}

/// Possible answer to a permission request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PermissionOption {
    /// Agent's id of the option.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// Meaning of the option.
    pub kind: PermissionOptionKind,
}

/// Permission request of the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PermissionRequest {
    /// Id of the request, unique in the session.
    pub id: String,
    /// Tool call of the request, if the agent names it.
    pub tool_call_id: Option<String>,
    /// Title for people, one line.
    pub title: String,
    /// Machine name of the tool, if the agent gives one; else the kind.
    pub tool: String,
    /// Kind of action: `read`, `edit`, `delete`, `move`, `search`, `execute`, `fetch`, `question`, `other`, …;
    /// joined by `+` where one answer is for several (`fetch+other`).
    pub kind: String,
    /// Command line, if the action runs one.
    pub command: Option<String>,
    /// Paths that the action would touch, if the agent names them, in the agent's form.
    pub paths: Vec<String>,
    /// Details as the agent gave them; `null` if it did not.
    pub input: Json,
    /// Possible answers.
    pub options: Vec<PermissionOption>,
    /// Tool call of the agent that asks, if that is a sub-agent.
    pub parent: Option<String>,
}

/// Answer to a permission request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum PermissionAnswer {
    /// Takes the request's `allowOnce` option, or `allowAlways` if there is no other.
    Allow,
    /// Takes the request's `rejectOnce` option, or `rejectAlways` if there is no other.
    Deny,
    /// Takes the option with this id.
    Option(String),
    /// Allows the action with this input instead: an edited command, or the answers to a question.
    AllowWith {
        /// Complete input of the tool, in the agent's form.
        input: Json,
    },
    /// Rejects the action, with a reason for the model; the turn continues if the agent can do that.
    DenyWith {
        /// Reason for the model.
        message: String,
    },
    /// Gives no answer: the turn is being cancelled.
    Cancelled,
}

/// Source of the answer to a permission request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum ResolvedBy {
    /// A user, through `respond_permission`.
    User {
        /// Name of the user, if the caller gave one.
        name: Option<String>,
    },
    /// The session's permission mode.
    Mode(PermissionMode),
    /// A rule of the session's policy.
    Rule {
        /// Index of the rule; the first is 0.
        index: u32,
    },
    /// The deadline: no answer came in time.
    Deadline,
    /// An abort, or the end of the turn.
    Abort,
    /// The agent, which withdrew the request.
    Agent,
    /// Somebody at the agent's own screen.
    Terminal,
}

/// Hole in the stream: events that existed and are no longer available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OffsetGap {
    /// Offset of the first event lost.
    #[serde(with = "offset_text")]
    pub from: u64,
    /// Offset of the last event lost.
    #[serde(with = "offset_text")]
    pub to: u64,
}

/// `session:status` of an agent whose version this release was not tried with: what it asks for, and how, is not known.
pub const UNTRIED_VERSION: &str = "untriedVersion";

/// `session:status` of a turn that is aborted because the agent has used all the model replies of
/// [`AgentSessionConfig::max_turns`](crate::AgentSessionConfig::max_turns).
pub const MAX_TURNS_REACHED: &str = "maxTurnsReached";

/// `session:status` of a terminal whose program does not read: what was typed beyond a bound is dropped.
pub const TERMINAL_INPUT_DROPPED: &str = "terminalInputDropped";

/// `session:status` of an agent that says that no other process can go on with its conversation: its session is not suspended.
pub const CONVERSATION_NOT_KEPT: &str = "conversationNotKept";

/// Event of a session. Its JSON form is an [`Envelope`]'s `type` and `payload`.
///
/// ```
/// use ipc_protocol::Event;
///
/// fn show(event: &Event) {
///     match event {
///         Event::Text { text } => print!("{text}"),
///         Event::SessionEnded { reason, .. } => println!("ended: {reason}"),
///         _ => {}
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum Event {
    /// The agent is ready.
    #[serde(rename = "session:started")]
    SessionStarted {
        /// Catalog id of the agent.
        agent: String,
        /// Process of the agent.
        process: ProcessId,
        /// Process of the proxy.
        proxy: ProcessId,
        /// Agent's own id of this session, if its protocol has one.
        native_session_id: Option<String>,
        /// Containment, observation and limits of the session.
        measures: Box<ContainmentStatus>,
        /// Ways in which the session is driven.
        #[serde(default)]
        surface: Surface,
    },
    /// The session waits for a prompt.
    #[serde(rename = "session:idle")]
    SessionIdle {},
    /// A turn is running.
    #[serde(rename = "session:busy")]
    SessionBusy {},
    /// A fact about the session without an event of its own.
    #[serde(rename = "session:status")]
    SessionStatus {
        /// Keyword: `agentExited`, `configOption`, [`CONVERSATION_NOT_KEPT`], [`SERVER_LISTENS`], …
        status: String,
        /// Text for people.
        detail: String,
    },
    /// The session has ended. Always the last event.
    #[serde(rename = "session:ended")]
    SessionEnded {
        /// Reason of the end.
        reason: EndReason,
        /// Receipt for the ended processes, with the proof that nothing is left. `null` if nobody could make one.
        receipt: Option<Box<Receipt>>,
    },
    /// Events are missing here.
    #[serde(rename = "session:gap")]
    SessionGap(OffsetGap),
    /// Events from here on are lost when this host ends: their log cannot be written.
    #[serde(rename = "session:degraded")]
    SessionDegraded {
        /// Cause, and advice on what to do.
        reason: String,
    },
    /// The processes have ended and the conversation is kept: a resume continues it, and this stream.
    #[serde(rename = "session:suspended")]
    SessionSuspended {
        /// Reason of the suspension.
        reason: EndReason,
        /// Receipt for the ended processes, with the proof that nothing is left. `null` if nobody could make one.
        receipt: Option<Box<Receipt>>,
    },
    /// The session continues, with a new agent or a new host.
    #[serde(rename = "session:resumed")]
    SessionResumed {
        /// Keyword: `resume`, `prompt`, `restart`, `reattach`, `takeBack`.
        by: String,
        /// Text for people.
        detail: String,
    },
    /// Process events may be missing from here on.
    #[serde(rename = "session:lossy")]
    SessionLossy {
        /// Cause of the loss.
        reason: String,
    },
    /// A prompt was accepted.
    #[serde(rename = "turn:started")]
    TurnStarted {
        /// Text of the prompt.
        prompt: String,
        /// Other parts of the prompt, one line each: an image's type and size, a file's path.
        attachments: Vec<String>,
    },
    /// Somebody views the session's terminal.
    #[serde(rename = "terminal:attached")]
    TerminalAttached {
        /// Number of the viewer: 1, 2, …
        viewer: u64,
        /// Rows of the viewer.
        rows: u16,
        /// Columns of the viewer.
        columns: u16,
    },
    /// A viewer of the terminal has left.
    #[serde(rename = "terminal:detached")]
    TerminalDetached {
        /// Number of the viewer.
        viewer: u64,
    },
    /// Somebody has prompted the agent on its own screen, or as another client of its server.
    #[serde(rename = "terminal:prompted")]
    TerminalPrompted {
        /// Text of the prompt.
        text: String,
    },
    /// The program in the terminal has reported its status (OSC 7501).
    #[serde(rename = "terminal:status")]
    TerminalStatus {
        /// Status in the program's own words: `idle`, `working`, `blocked`, `done`, …
        status: String,
        /// What it says beside it.
        detail: Option<String>,
    },
    /// Text of the answer.
    #[serde(rename = "stream:text")]
    Text {
        /// Piece of the text, as the agent sent it.
        text: String,
    },
    /// Thinking of the model.
    #[serde(rename = "stream:thinking")]
    Thinking {
        /// Piece of the text.
        text: String,
    },
    /// A tool call begins.
    #[serde(rename = "stream:tool_start")]
    ToolStart(Box<ToolStart>),
    /// A tool call changed.
    #[serde(rename = "stream:tool_update")]
    ToolUpdate(Box<ToolUpdate>),
    /// A tool call ended.
    #[serde(rename = "stream:tool_end")]
    ToolEnd(Box<ToolEnd>),
    /// Complete plan of the agent.
    #[serde(rename = "stream:plan")]
    Plan {
        /// Steps of the plan.
        entries: Vec<PlanEntry>,
    },
    /// Tokens so far.
    #[serde(rename = "stream:usage")]
    Usage(Box<Usage>),
    /// Use of the context window.
    #[serde(rename = "stream:context_window")]
    ContextWindow {
        /// Number of tokens in it.
        used: u64,
        /// Number of tokens it can hold.
        size: u64,
        /// Number of tokens that still fit.
        remaining: u64,
        /// Share of the window that is in use, in percent, to two decimals: 7.5.
        #[serde(default)]
        context_efficiency: f64,
    },
    /// The turn has ended.
    #[serde(rename = "stream:complete")]
    Complete {
        /// Reason of the end.
        stop_reason: StopReason,
        /// Tokens of the turn, if the agent reports them.
        usage: Option<Box<Usage>>,
    },
    /// An error occurred. If it ended the turn, `session:idle` or `session:ended` follows.
    #[serde(rename = "stream:error")]
    Error {
        /// Code, from the agent or from us: a word or number.
        code: String,
        /// Message for people.
        message: String,
        /// True if the same may succeed later.
        retryable: bool,
        /// Number of the failed attempt, if the agent retries by itself; the first is 1.
        attempt: Option<u32>,
        /// Time until the agent tries again, in milliseconds, where the agent says so.
        delay_ms: Option<u64>,
    },
    /// The agent requests a permission.
    #[serde(rename = "permission:requested")]
    PermissionRequested(Box<PermissionRequest>),
    /// A permission request was answered.
    #[serde(rename = "permission:resolved")]
    PermissionResolved {
        /// Id of the request.
        id: String,
        /// Id of the chosen option; `null` for none.
        option: Option<String>,
        /// Source of the answer.
        by: ResolvedBy,
    },
    /// A clock of the session ran out. Emitted once for each time.
    #[serde(rename = "timeout:fired")]
    TimeoutFired {
        /// Kind of the clock.
        clock: TimeoutKind,
        /// Setting of the clock, in milliseconds.
        after_ms: u64,
        /// Action taken.
        action: TimeoutAction,
        /// Last failure: the last `stream:error` of the turn, else the last lines of the agent's standard error.
        last_words: Option<String>,
    },
    /// A turn is running and the agent has sent nothing for a while: a sign of life for anyone waiting.
    #[serde(rename = "session:silent")]
    SessionSilent {
        /// Length of the silence so far, in milliseconds.
        for_ms: u64,
    },
    /// Output of the agent itself, byte for byte. In JSON its type is `harness:<agent>:event-received`.
    #[serde(rename = "harness:event-received")]
    Harness {
        /// Catalog id of the agent.
        agent: Box<str>,
        /// Line with its end, or a piece of one.
        payload: RawLine,
    },
    /// A process was seen for the first time.
    #[serde(rename = "process:spawned")]
    ProcessSpawned(Box<ProcessInfo>),
    /// A process has ended.
    #[serde(rename = "process:exited")]
    ProcessExited {
        /// Identity of the process.
        process: ProcessId,
        /// First word of the command line, if it was ever read.
        command: Option<String>,
        /// Exit status, where known.
        exit: Option<ExitStatus>,
    },
    /// The session passed one of its limits. Emitted once for each time.
    #[serde(rename = "limit:exceeded")]
    LimitExceeded(Box<LimitExceeded>),
    /// The session used up a budget. Emitted once for each.
    #[serde(rename = "budget:exceeded")]
    BudgetExceeded(Box<BudgetExceeded>),
    /// An action that was requested or required failed.
    #[serde(rename = "action:failed")]
    ActionFailed {
        /// Name of the action.
        action: String,
        /// Cause of the failure.
        error: String,
    },
    /// A line outside the protocol, such as the agent's standard error.
    #[serde(rename = "log")]
    Log {
        /// `stderr`, or `stdout` for a line that is not the protocol's.
        stream: String,
        /// Line, with its newline.
        text: String,
    },
    /// An appended event of a type that is none of the above. In JSON it has its own type.
    #[serde(rename = "external")]
    External {
        /// Type of the event: `slack:webhook-received`, `agent:action:prompt:called`, …
        kind: Box<str>,
        /// Version of the payload's shape; 1 for most.
        version: u32,
        /// Content of the event.
        payload: Json,
    },
    /// The model's answer broke off, and the agent asks for all of it again: the end of what the turn has said so far is void.
    #[serde(rename = "stream:voided")]
    Voided {
        /// Bytes (UTF-8) to take off the end of the turn's `stream:text`.
        text_bytes: u64,
        /// Bytes to take off the end of its `stream:thinking`.
        thinking_bytes: u64,
    },
    /// The account's usage limit is reached: the provider answers no further request until it is reset.
    #[serde(rename = "usage:limited")]
    UsageLimited {
        /// The agent's word for the limit: `five_hour`, `usageLimitExceeded`, …
        limit: String,
        /// For people.
        message: String,
        /// When the limit is reset, in milliseconds since 1970, where the agent says so; in JSON a time in UTC.
        #[serde(with = "moment_text")]
        resets_at: Option<u64>,
        /// True if the prompt waits for that, and is asked again then.
        waits: bool,
    },
    /// A tool call ran although nobody decided on it, and the policy would not have allowed it.
    #[serde(rename = "permission:bypassed")]
    PermissionBypassed(Box<PermissionBypassed>),
    /// A connection to a host ended, of a session with a network of its own.
    #[serde(rename = "network:connection")]
    NetworkConnection(Box<NetworkConnection>),
    /// A session with a network of its own was refused a host.
    #[serde(rename = "network:refused")]
    NetworkRefused(Box<NetworkRefusal>),
    /// Change of a file by a tool call. A later one of the same call and path replaces it.
    #[serde(rename = "stream:diff")]
    Diff(Box<FileDiff>),
    /// Text of a sub-agent. It is no part of the answer.
    #[serde(rename = "stream:subagent_text")]
    SubagentText {
        /// Tool call that started the sub-agent.
        parent: String,
        /// Piece of the text.
        text: String,
    },
    /// Thinking of a sub-agent.
    #[serde(rename = "stream:subagent_thinking")]
    SubagentThinking {
        /// Tool call that started the sub-agent.
        parent: String,
        /// Piece of the text.
        text: String,
    },
    /// Picture in the agent's answer, or in the output of a tool call.
    #[serde(rename = "stream:image")]
    Image(Box<ImageOutput>),
    /// Slash commands that the agent offers: all of them, each time.
    #[serde(rename = "session:commands")]
    SessionCommands {
        /// Commands, in the agent's order.
        commands: Vec<SlashCommand>,
    },
    /// The conversation has another title.
    #[serde(rename = "session:title")]
    SessionTitle {
        /// Title, one line.
        title: String,
        /// Source of the title. One that a caller gave stays the session's, whatever the agent calls it.
        by: SettingSource,
    },
    /// The session works with this model from now on.
    #[serde(rename = "session:model")]
    SessionModel {
        /// Model, in the agent's own spelling.
        model: String,
        /// Source of the change.
        by: SettingSource,
    },
    /// The session works in this mode from now on.
    #[serde(rename = "session:mode")]
    SessionMode {
        /// Mode, in the agent's own spelling.
        mode: String,
        /// Source of the change.
        by: SettingSource,
    },
    /// The session thinks at this level from now on.
    #[serde(rename = "session:thinking")]
    SessionThinking {
        /// Level, in the agent's own spelling.
        level: String,
        /// Source of the change.
        by: SettingSource,
    },
    /// The session's workspace was made, applied to the user's tree, or dropped.
    #[serde(rename = "session:workspace")]
    SessionWorkspace {
        /// Step in its life.
        step: WorkspaceStep,
        /// Kind of the workspace.
        kind: WorkspaceKind,
        /// Tree of the user's that it was made from.
        source: String,
        /// Tree that the agent works in.
        path: String,
        /// Number of changed files: those that were applied, or dropped without.
        files: u64,
    },
    /// A warm session was handed to the caller of a start: from here on it is that caller's.
    #[serde(rename = "session:claimed")]
    SessionClaimed {
        /// Time since its agent was ready, in milliseconds.
        warm_ms: u64,
        /// Label of its user.
        user_id: Option<String>,
        /// Label of its workspace.
        workspace_id: Option<String>,
        /// Label: purpose of the agent.
        agent_type: Option<String>,
    },
    /// A session in a sandbox was refused a file, and the kernel said so.
    #[serde(rename = "file:refused")]
    FileRefused(Box<FileRefusal>),
}

/// Types of the events above, except [`Event::Harness`] and [`Event::External`].
const KINDS: &[&str] = &[
    "session:started",
    "session:idle",
    "session:busy",
    "session:status",
    "session:ended",
    "session:gap",
    "session:degraded",
    "session:suspended",
    "session:resumed",
    "session:lossy",
    "turn:started",
    "terminal:attached",
    "terminal:detached",
    "terminal:prompted",
    "terminal:status",
    "stream:text",
    "stream:thinking",
    "stream:tool_start",
    "stream:tool_update",
    "stream:tool_end",
    "stream:plan",
    "stream:usage",
    "stream:context_window",
    "stream:complete",
    "stream:error",
    "permission:requested",
    "permission:resolved",
    "permission:bypassed",
    "timeout:fired",
    "session:silent",
    "process:spawned",
    "process:exited",
    "limit:exceeded",
    "budget:exceeded",
    "action:failed",
    "log",
    "stream:voided",
    "usage:limited",
    "network:connection",
    "network:refused",
    "stream:diff",
    "stream:subagent_text",
    "stream:subagent_thinking",
    "stream:image",
    "session:commands",
    "session:title",
    "session:model",
    "session:mode",
    "session:thinking",
    "session:workspace",
    "session:claimed",
    "file:refused",
];

/// Text before the agent in the type of [`Event::Harness`]; [`RECEIVED_SUFFIX`] follows the agent.
const HARNESS_PREFIX: &str = "harness:";
const RECEIVED_SUFFIX: &str = ":event-received";

impl Event {
    /// Returns the types of all events, except [`Event::Harness`] and [`Event::External`].
    pub fn kinds() -> &'static [&'static str] {
        KINDS
    }

    /// Estimates the event's memory in bytes, for the bound of a ring.
    pub fn weight(&self) -> usize {
        const FIXED: usize = 160;
        FIXED
            + match self {
                Self::Text { text } | Self::Thinking { text } | Self::Log { text, .. } => text.len(),
                Self::Harness { payload, .. } => payload.as_bytes().len(),
                Self::TurnStarted { prompt, attachments } => {
                    prompt.len() + attachments.iter().map(|line| line.len() + 24).sum::<usize>() + 100
                }
                Self::ToolStart(t) => t.input.as_str().len() + t.title.len() + 200,
                Self::ToolUpdate(t) => {
                    t.output.as_ref().map_or(0, String::len) + t.input.as_ref().map_or(0, |i| i.as_str().len()) + 100
                }
                Self::ToolEnd(t) => t.output.len() + 100,
                Self::PermissionRequested(p) => {
                    let paths = p.paths.iter().map(|path| path.len() + 24).sum::<usize>();
                    p.input.as_str().len() + p.command.as_ref().map_or(0, String::len) + paths + 400
                }
                Self::ProcessSpawned(p) => p.args.iter().map(|a| a.len() + 24).sum::<usize>() + 300,
                Self::Plan { entries } => entries.iter().map(|e| e.content.len() + 80).sum(),
                Self::SessionEnded { receipt: Some(r), .. } | Self::SessionSuspended { receipt: Some(r), .. } => {
                    r.processes.len() * 150
                }
                Self::External { kind, payload, .. } => kind.len() + payload.as_str().len(),
                Self::TimeoutFired { last_words, .. } => 100 + last_words.as_ref().map_or(0, String::len),
                Self::SubagentText { parent, text } | Self::SubagentThinking { parent, text } => {
                    parent.len() + text.len()
                }
                Self::Diff(diff) => diff.weight(),
                Self::Image(image) => image.data.as_ref().map_or(0, String::len) + 200,
                Self::SessionCommands { commands } => commands.iter().map(SlashCommand::weight).sum(),
                _ => 100,
            }
    }

    /// Returns the event's `type` in JSON: `stream:text`, `harness:codex:event-received`, …
    pub fn kind(&self) -> Cow<'_, str> {
        match self {
            Self::Harness { agent, .. } => format!("{HARNESS_PREFIX}{agent}{RECEIVED_SUFFIX}").into(),
            Self::External { kind, .. } => kind.as_ref().into(),
            event => serde_variant::to_variant_name(event).unwrap_or_default().into(),
        }
    }

    /// Creates an error that is not a retry.
    pub fn error(code: impl Into<String>, message: impl Into<String>, retryable: bool) -> Self {
        Self::Error { code: code.into(), message: message.into(), retryable, attempt: None, delay_ms: None }
    }

    /// An error after which the agent tries again by itself.
    pub fn retry(
        code: impl Into<String>,
        message: impl Into<String>,
        attempt: Option<u32>,
        delay_ms: Option<u64>,
    ) -> Self {
        let attempt = attempt.or(Some(1));
        Self::Error { code: code.into(), message: message.into(), retryable: true, attempt, delay_ms }
    }

    /// Creates the event for a context window of `size` tokens with `used` in it.
    pub fn context_window(used: u64, size: u64) -> Self {
        let hundredths =
            (u128::from(used) * 10_000 + u128::from(size) / 2).checked_div(size.into()).unwrap_or_default();
        let context_efficiency = f64::from(u32::try_from(hundredths).unwrap_or(u32::MAX)) / 100.0;
        Self::ContextWindow { used, size, remaining: size.saturating_sub(used), context_efficiency }
    }

    /// Returns the version of the payload's shape. A change of one of our events raises it.
    pub fn version(&self) -> u32 {
        if let Self::External { version, .. } = self {
            return *version;
        }
        SHAPES.iter().find(|shape| (shape.matches)(self)).map_or(1, |shape| shape.version)
    }

    /// Builds an event from `type`, version and payload. A type that is not ours, or a shape of another release,
    /// becomes [`Event::External`].
    fn from_parts(kind: &str, version: u32, payload: Value) -> Result<Self, serde_json::Error> {
        if let Some(agent) = kind.strip_prefix(HARNESS_PREFIX).and_then(|rest| rest.strip_suffix(RECEIVED_SUFFIX)) {
            return Ok(Self::Harness { agent: agent.into(), payload: serde_json::from_value(payload)? });
        }
        let known = SHAPES.iter().find(|shape| shape.kind == kind).map_or(1, |shape| shape.version);
        if !Self::is_reserved_kind(kind) || version != known {
            return Ok(Self::External { kind: kind.into(), version, payload: Json::from(&payload) });
        }
        serde_json::from_value(json!({ kind: payload }))
    }

    /// Returns true for a `type` that only this program creates: users cannot append it.
    pub fn is_reserved_kind(kind: &str) -> bool {
        KINDS.contains(&kind) || (kind.starts_with(HARNESS_PREFIX) && kind.ends_with(RECEIVED_SUFFIX))
    }

    /// Splits the event into `(type, payload)`.
    ///
    /// # Errors
    /// Never for an event this crate made; serde's error otherwise.
    fn to_parts(&self) -> Result<(String, Value), serde_json::Error> {
        if let Self::Harness { agent, payload } = self {
            return Ok((format!("{HARNESS_PREFIX}{agent}{RECEIVED_SUFFIX}"), serde_json::to_value(payload)?));
        }
        if let Self::External { kind, payload, .. } = self {
            return Ok((kind.to_string(), payload.value()));
        }
        match serde_json::to_value(self)? {
            Value::Object(map) => {
                map.into_iter().next().ok_or_else(|| serde::ser::Error::custom("an event has a type"))
            }
            other => Err(serde::ser::Error::custom(format!("an event is an object, not {other}"))),
        }
    }
}

/// Formats an offset as 20 decimal digits, so that the text sorts like the numbers.
fn format_offset(offset: u64) -> String {
    format!("{offset:020}")
}

fn parse_offset(text: &str) -> Option<u64> {
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

/// Format of offsets in payloads: text in JSON, numbers on our wire.
pub mod offset_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    /// Serializes the offset.
    ///
    /// # Errors
    /// Errors of the format.
    pub fn serialize<S: Serializer>(offset: &u64, s: S) -> Result<S::Ok, S::Error> {
        if s.is_human_readable() { s.serialize_str(&super::format_offset(*offset)) } else { s.serialize_u64(*offset) }
    }

    /// Deserializes the offset.
    ///
    /// # Errors
    /// Errors of the format, and text that is no offset.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
        if d.is_human_readable() {
            let text = String::deserialize(d)?;
            return super::parse_offset(&text).ok_or_else(|| D::Error::custom(format!("{text:?} is no offset")));
        }
        u64::deserialize(d)
    }
}

/// Moments in payloads: a time in UTC in JSON, milliseconds since 1970 on our wire.
mod moment_text {
    use std::time::{Duration, UNIX_EPOCH};

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

    /// The last moment that can be written: the end of the year 9999.
    const LAST: u64 = 253_402_300_799_999;

    pub(super) fn serialize<S: Serializer>(moment: &Option<u64>, s: S) -> Result<S::Ok, S::Error> {
        if !s.is_human_readable() {
            return moment.serialize(s);
        }
        let text = |ms: u64| humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms.min(LAST)));
        moment.map(|ms| text(ms).to_string()).serialize(s)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
        if !d.is_human_readable() {
            return Option::deserialize(d);
        }
        let Some(text) = Option::<String>::deserialize(d)? else { return Ok(None) };
        let moment = humantime::parse_rfc3339(&text).map_err(|_| D::Error::custom(format!("{text:?} is no time")))?;
        let since = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Some(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod documented;
#[cfg(test)]
mod tests;
