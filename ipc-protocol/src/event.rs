//! What happens in a session, in one vocabulary for every agent.

mod envelope;
mod shape;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use self::{
    envelope::{Envelope, EnvelopeError},
    shape::{SHAPES, Shape},
};
use crate::{
    BudgetExceeded, BudgetKind, ExitStatus, Json, LimitExceeded, LimitKind, Measures, PermissionBypassed,
    PermissionMode, ProcessId, ProcessInfo, Receipt, TimeoutAction, TimeoutKind, Verbatim,
};

/// The word of [`Event::SessionStatus`] that says where the session's own server listens: `detail` is its address.
pub const SERVER_LISTENS: &str = "serverListens";

/// Why a session ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EndReason {
    /// It was killed on request.
    Killed,
    /// Its agent exited by itself; with the status, where it is known.
    AgentExited(Option<ExitStatus>),
    /// It could not start, or its agent broke its protocol.
    Failed(String),
    /// Its proxy died.
    ProxyDied(Option<ExitStatus>),
    /// The fork server died, so no guard was left.
    ForkServerDied,
    /// The host died or closed the connection.
    HostDied,
    /// It passed this limit, whose action is to end it.
    LimitExceeded(LimitKind),
    /// This clock of it ran out, whose action is to end it.
    TimedOut(TimeoutKind),
    /// The manager was shut down or dropped.
    Shutdown,
    /// It used up this budget, whose action is to end it.
    BudgetExceeded(BudgetKind),
    /// Its proxy did not answer so many pings in a row.
    Unresponsive(u32),
    /// Its processes were ended to be started again some time: the conversation is kept.
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

/// Tokens (and cost) of a turn. `null` where the agent does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    /// Tokens read.
    pub input_tokens: Option<u64>,
    /// Tokens written.
    pub output_tokens: Option<u64>,
    /// Input tokens that came from a cache.
    pub cache_read_tokens: Option<u64>,
    /// Input tokens put into a cache.
    pub cache_write_tokens: Option<u64>,
    /// In US dollars.
    pub cost_usd: Option<f64>,
}

/// Why a turn ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StopReason {
    /// The agent was done.
    EndTurn,
    /// It was aborted.
    Cancelled,
    /// The model refused.
    Refusal,
    /// A token limit was reached.
    MaxTokens,
    /// The agent's own limit of model requests was reached.
    MaxRequests,
    /// What the agent said, where it is none of the above.
    Other(String),
}

/// Where a tool call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ToolStatus {
    /// Not begun: its input still comes, or it waits for permission.
    Pending,
    /// Running.
    InProgress,
    /// Done.
    Completed,
    /// Failed, or was rejected.
    Failed,
}

/// A tool call begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolStart {
    /// Names the call within the session.
    pub id: String,
    /// The tool's machine name, where the agent gives one; else its kind.
    pub name: String,
    /// One line for people.
    pub title: String,
    /// `read`, `edit`, `delete`, `move`, `search`, `execute`, `think`, `fetch`, `other`, …
    pub kind: String,
    /// Its input as the agent gave it; `null` if it did not.
    pub input: Json,
    /// Where it is.
    pub status: ToolStatus,
    /// The tool call of the agent that made this one, where that is a sub-agent.
    pub parent: Option<String>,
}

/// A tool call changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolUpdate {
    /// Which call.
    pub id: String,
    /// A new title.
    pub title: Option<String>,
    /// A new status.
    pub status: Option<ToolStatus>,
    /// Its input, where that changed: many agents begin a call before they know its input.
    pub input: Option<Json>,
    /// All of its output so far, as text; where that is long, its end.
    pub output: Option<String>,
}

/// A tool call ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolEnd {
    /// Which call.
    pub id: String,
    /// `completed` or `failed`.
    pub status: ToolStatus,
    /// Its output as text.
    pub output: String,
}

/// One step of an agent's plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanEntry {
    /// What is to be done.
    pub content: String,
    /// The agent's word for its state: `pending`, `in_progress`, `completed`.
    pub status: String,
    /// The agent's word for its priority: `high`, `medium`, `low`.
    pub priority: String,
}

/// What an option of a permission request means. Ids differ from agent to agent: match by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum PermissionOptionKind {
    AllowOnce,
    AllowAlways,
    RejectOnce,
    RejectAlways,
    Other,
}

/// One way to answer a permission request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PermissionOption {
    /// The agent's id of it.
    pub id: String,
    /// For people.
    pub name: String,
    /// What it means.
    pub kind: PermissionOptionKind,
}

/// The agent asks whether it may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PermissionRequest {
    /// Names the request within the session.
    pub id: String,
    /// The tool call it is about, where the agent says.
    pub tool_call_id: Option<String>,
    /// One line for people.
    pub title: String,
    /// The tool's machine name, where the agent gives one; else the kind.
    pub tool: String,
    /// What it would do: `read`, `edit`, `delete`, `move`, `search`, `execute`, `fetch`, `question`, `other`, …; with `+`
    /// between them where one answer is for several things (`fetch+other`).
    pub kind: String,
    /// The command line, where it would run one.
    pub command: Option<String>,
    /// The paths that it would touch, where the agent says; as it says them.
    pub paths: Vec<String>,
    /// Details as the agent gave them; `null` if it did not.
    pub input: Json,
    /// The ways to answer.
    pub options: Vec<PermissionOption>,
    /// The tool call of the agent that asks, where that is a sub-agent.
    pub parent: Option<String>,
}

/// An answer to a permission request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum PermissionAnswer {
    /// The request's `allowOnce` option, or `allowAlways` where there is no other.
    Allow,
    /// The request's `rejectOnce` option, or `rejectAlways` where there is no other.
    Deny,
    /// The option with this id.
    Option(String),
    /// Allowed, with this input instead: an edited command, or the answers to a question.
    AllowWith {
        /// The whole input of the tool, in the agent's form.
        input: Json,
    },
    /// Rejected, with a reason that the model is told; the turn goes on where the agent can.
    DenyWith {
        /// The reason.
        message: String,
    },
    /// No answer: the turn is being cancelled.
    Cancelled,
}

/// Who or what answered a permission request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ResolvedBy {
    /// `respond_permission`; with who that was, where the caller said.
    User {
        /// The caller's word for it.
        name: Option<String>,
    },
    /// The session's permission mode.
    Mode(PermissionMode),
    /// A rule of the session's policy.
    Rule {
        /// Which; the first is 0.
        index: u32,
    },
    /// Nobody had answered in time.
    Deadline,
    /// An abort, or the end of the turn.
    Abort,
    /// The agent itself took it back.
    Agent,
}

/// A hole in the stream: these events were there, and are not to be had any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gap {
    /// Offset of the first event lost.
    #[serde(with = "offset_text")]
    pub from: u64,
    /// Offset of the last event lost.
    #[serde(with = "offset_text")]
    pub to: u64,
}

/// `session:status` of an agent whose version this release was not tried with: what it asks for, and how, is not known.
pub const UNTRIED_VERSION: &str = "untriedVersion";

/// `session:status` of an agent that says that no other process can go on with its conversation: its session is not suspended.
pub const NOT_KEPT: &str = "conversationNotKept";

/// One thing that happened. Its JSON form is an [`Envelope`]'s `type` and `payload`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all_fields = "camelCase")]
pub enum Event {
    /// The agent is ready.
    #[serde(rename = "session:started")]
    SessionStarted {
        /// Catalog id.
        agent: String,
        /// The agent's process.
        process: ProcessId,
        /// The proxy's process.
        proxy: ProcessId,
        /// The agent's own id of this session, where its protocol has one.
        native_session_id: Option<String>,
        /// What holds it, sees it and limits it.
        measures: Box<Measures>,
    },
    /// It waits for a prompt.
    #[serde(rename = "session:idle")]
    SessionIdle {},
    /// A turn runs.
    #[serde(rename = "session:busy")]
    SessionBusy {},
    /// Something about the session that is none of the other events.
    #[serde(rename = "session:status")]
    SessionStatus {
        /// A word: `agentExited`, `configOption`, [`NOT_KEPT`], [`SERVER_LISTENS`], …
        status: String,
        /// For people.
        detail: String,
    },
    /// It is over. Always the last event.
    #[serde(rename = "session:ended")]
    SessionEnded {
        /// Why.
        reason: EndReason,
        /// What was ended, and the proof that nothing is left. `null` if nobody could tell.
        receipt: Option<Box<Receipt>>,
    },
    /// Events are missing here.
    #[serde(rename = "session:gap")]
    SessionGap(Gap),
    /// From here on events are not kept beyond this host's life: their log cannot be written.
    #[serde(rename = "session:degraded")]
    SessionDegraded {
        /// Why, and what to do.
        reason: String,
    },
    /// Its processes have ended and its conversation is kept: a resume goes on with it, and with this stream.
    #[serde(rename = "session:suspended")]
    SessionSuspended {
        /// Why.
        reason: EndReason,
        /// What was ended, and the proof that nothing is left. `null` if nobody could tell.
        receipt: Option<Box<Receipt>>,
    },
    /// It goes on: with a new agent, or a new host.
    #[serde(rename = "session:resumed")]
    SessionResumed {
        /// A word: `resume`, `prompt`, `restart`, `reattach`, `takeBack`.
        by: String,
        /// For people.
        detail: String,
    },
    /// From here on process events may be missing.
    #[serde(rename = "session:lossy")]
    SessionLossy {
        /// Why.
        reason: String,
    },
    /// A prompt was taken.
    #[serde(rename = "turn:started")]
    TurnStarted {
        /// What was asked, in words.
        prompt: String,
        /// What else it held, one line each: a picture's type and size, a file's path.
        attachments: Vec<String>,
    },
    /// Text of the answer.
    #[serde(rename = "stream:text")]
    Text {
        /// A piece of it, as the agent sent it.
        text: String,
    },
    /// The model's thinking.
    #[serde(rename = "stream:thinking")]
    Thinking {
        /// A piece of it.
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
    /// The agent's plan, whole.
    #[serde(rename = "stream:plan")]
    Plan {
        /// Its steps.
        entries: Vec<PlanEntry>,
    },
    /// Tokens so far.
    #[serde(rename = "stream:usage")]
    Usage(Box<Usage>),
    /// How full the context window is.
    #[serde(rename = "stream:context_window")]
    ContextWindow {
        /// Tokens in it.
        used: u64,
        /// Tokens it holds.
        size: u64,
        /// Tokens that still fit.
        remaining: u64,
    },
    /// The turn is over.
    #[serde(rename = "stream:complete")]
    Complete {
        /// Why.
        stop_reason: StopReason,
        /// Tokens of the turn, where the agent says.
        usage: Option<Box<Usage>>,
    },
    /// Something went wrong. Where it ended the turn, `session:idle` or `session:ended` follows.
    #[serde(rename = "stream:error")]
    Error {
        /// A word or number of the agent's or ours.
        code: String,
        /// For people.
        message: String,
        /// Whether the same may work later.
        retryable: bool,
        /// Which attempt failed, where the agent tries again by itself; the first is 1.
        attempt: Option<u32>,
        /// How long the agent waits before it tries again, in milliseconds, where it says so.
        delay_ms: Option<u64>,
    },
    /// The agent asks whether it may.
    #[serde(rename = "permission:requested")]
    PermissionRequested(Box<PermissionRequest>),
    /// A permission request was answered.
    #[serde(rename = "permission:resolved")]
    PermissionResolved {
        /// Which.
        id: String,
        /// The chosen option's id; `null` for none.
        option: Option<String>,
        /// By whom.
        by: ResolvedBy,
    },
    /// A clock of the session ran out. Said once for each time.
    #[serde(rename = "timeout:fired")]
    TimeoutFired {
        /// Which.
        clock: TimeoutKind,
        /// What it was set to, in milliseconds.
        after_ms: u64,
        /// What is done.
        action: TimeoutAction,
        /// What went wrong last: the last `stream:error` of the turn, else the last lines of the agent's standard error.
        last_words: Option<String>,
    },
    /// A turn runs, and nothing is heard of the agent: a sign of life for whoever waits.
    #[serde(rename = "session:silent")]
    SessionSilent {
        /// For how long by now, in milliseconds.
        for_ms: u64,
    },
    /// What the agent itself said, byte for byte. In JSON its type is `harness:<agent>:event-received`.
    #[serde(rename = "harness:event-received")]
    Harness {
        /// Catalog id.
        agent: Box<str>,
        /// A line with its end, or a piece of one.
        payload: Verbatim,
    },
    /// A process was seen for the first time.
    #[serde(rename = "process:spawned")]
    ProcessSpawned(Box<ProcessInfo>),
    /// A process is gone.
    #[serde(rename = "process:exited")]
    ProcessExited {
        /// Which.
        process: ProcessId,
        /// First word of its command line, where it was ever read.
        command: Option<String>,
        /// How it ended, where that is known.
        exit: Option<ExitStatus>,
    },
    /// The session passed one of its limits. Said once for each time it is passed.
    #[serde(rename = "limit:exceeded")]
    LimitExceeded(Box<LimitExceeded>),
    /// The session used up a budget. Said once for each.
    #[serde(rename = "budget:exceeded")]
    BudgetExceeded(Box<BudgetExceeded>),
    /// Something we were asked to do, or had to do, failed.
    #[serde(rename = "action:failed")]
    ActionFailed {
        /// What.
        action: String,
        /// Why.
        error: String,
    },
    /// A line that is not part of the protocol, such as the agent's standard error.
    #[serde(rename = "log")]
    Log {
        /// `stderr`, or `stdout` for a line that is not the protocol's.
        stream: String,
        /// The line, with its newline.
        text: String,
    },
    /// Something that somebody appended, of a type that is none of the above. In JSON its type is its own.
    #[serde(rename = "external")]
    External {
        /// Its type: `slack:webhook-received`, `agent:action:prompt:called`, …
        kind: Box<str>,
        /// Version of its payload's shape; 1 for most.
        version: u32,
        /// What it says.
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
        /// Whether the prompt waits for that, and is asked again then.
        waits: bool,
    },
    /// A tool call ran although nobody decided on it, and the policy would not have allowed it.
    #[serde(rename = "permission:bypassed")]
    PermissionBypassed(Box<PermissionBypassed>),
}

/// The types of the events above, but for [`Event::Harness`] and [`Event::External`].
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
];

/// Around the agent in the type of [`Event::Harness`].
const HARNESS: &str = "harness:";
const RECEIVED: &str = ":event-received";

impl Event {
    /// Roughly how much memory the event takes, in bytes: what the bound of a ring counts.
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
                _ => 100,
            }
    }

    /// An error that is no retry.
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

    /// A context window of `size` tokens with `used` in it.
    pub fn context_window(used: u64, size: u64) -> Self {
        Self::ContextWindow { used, size, remaining: size.saturating_sub(used) }
    }

    /// The version of the payload's shape. A change of one of ours raises it.
    pub fn version(&self) -> u32 {
        if let Self::External { version, .. } = self {
            return *version;
        }
        SHAPES.iter().find(|shape| (shape.is)(self)).map_or(1, |shape| shape.version)
    }

    /// The event of a `type`, its version and its payload. A type that is none of ours, or not of this release's shape, is
    /// [`Event::External`].
    fn from_parts(kind: &str, version: u32, payload: Value) -> Result<Self, serde_json::Error> {
        if let Some(agent) = kind.strip_prefix(HARNESS).and_then(|rest| rest.strip_suffix(RECEIVED)) {
            return Ok(Self::Harness { agent: agent.into(), payload: serde_json::from_value(payload)? });
        }
        let known = SHAPES.iter().find(|shape| shape.kind == kind).map_or(1, |shape| shape.version);
        if !Self::is_ours(kind) || version != known {
            return Ok(Self::External { kind: kind.into(), version, payload: Json::from(&payload) });
        }
        serde_json::from_value(json!({ kind: payload }))
    }

    /// Whether events of this `type` are made by us alone: nobody can append one.
    pub fn is_ours(kind: &str) -> bool {
        KINDS.contains(&kind) || (kind.starts_with(HARNESS) && kind.ends_with(RECEIVED))
    }

    /// The event as `(type, payload)`.
    ///
    /// # Errors
    /// Never for an event this crate made; serde's error otherwise.
    fn to_parts(&self) -> Result<(String, Value), serde_json::Error> {
        if let Self::Harness { agent, payload } = self {
            return Ok((format!("{HARNESS}{agent}{RECEIVED}"), serde_json::to_value(payload)?));
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

/// An offset as text: 20 decimal digits, so that text sorts as numbers do.
fn format_offset(offset: u64) -> String {
    format!("{offset:020}")
}

fn parse_offset(text: &str) -> Option<u64> {
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

/// Offsets in payloads: text in JSON, numbers on our wire.
mod offset_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(offset: &u64, s: S) -> Result<S::Ok, S::Error> {
        if s.is_human_readable() { s.serialize_str(&super::format_offset(*offset)) } else { s.serialize_u64(*offset) }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
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
mod tests;
