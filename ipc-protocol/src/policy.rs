//! Who answers an agent's permission requests, and when its silence is too long.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ResolvedBy;

/// Who answers an agent's permission requests, where no rule does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PermissionMode {
    /// Each becomes an event; `respond_permission` answers it.
    #[default]
    Ask,
    /// Each is allowed, once.
    Allow,
    /// Each is rejected.
    Deny,
    /// What only reads is allowed, once; anything else is rejected.
    ReadOnly,
}

/// What a rule says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Decision {
    Ask,
    Allow,
    Deny,
}

/// A rule: what is given has to match, all of it. The first rule that matches decides. Of a request that asks for several things
/// (`fetch+other`) each is decided: it is denied where one of them is, and allowed where all are.
///
/// `*` matches anything within a tool's name or a command; in a path `*` stays within a directory and `**` does not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PermissionRule {
    /// Glob on the tool's machine name, or on its kind (`execute`, `edit`, `read`, …).
    #[serde(default)]
    pub tool: Option<String>,
    /// Glob on the whole command line. A rule that allows never matches a command that a shell would take apart (`;`, `&&`,
    /// `$(`, …), unless the glob has the same.
    #[serde(default)]
    pub command: Option<String>,
    /// Glob on the paths, made absolute. A rule that allows has to match all of them, one that does not any.
    #[serde(default)]
    pub path: Option<String>,
    /// What then.
    pub decision: Decision,
}

/// How a session's permission requests are answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct PermissionPolicy {
    /// The first that matches decides; where none does, the session's [`PermissionMode`].
    pub rules: Vec<PermissionRule>,
    /// How long a request may wait for an answer, in milliseconds; `null` for as long as it likes.
    pub deadline_ms: Option<u64>,
    /// Whether it is allowed then; else it is rejected.
    pub allow_at_deadline: bool,
}

/// The sandbox that an agent puts around its own tools: none of ours. Agents differ in what they have; one that cannot have the one
/// asked for refuses the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AgentSandbox {
    /// Tools write nowhere and reach no network, unless that was allowed.
    ReadOnly,
    /// Tools write to the working directory and reach no network, unless more was allowed.
    WorkspaceWrite,
    /// No sandbox: tools reach whatever the user can.
    None,
}

impl fmt::Display for AgentSandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReadOnly => "read-only",
            Self::WorkspaceWrite => "workspace-write",
            Self::None => "none",
        })
    }
}

/// Reaction to a tool call that bypassed the permission policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BypassAction {
    /// Only the event.
    Warn,
    /// The turn is aborted.
    AbortTurn,
}

/// A tool call that ran although nobody decided on it. Detection is late: the call has begun or ended by then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PermissionBypassed {
    /// The call.
    pub tool_call_id: String,
    /// Its tool's machine name.
    pub tool: String,
    /// Its kind.
    pub kind: String,
    /// One line for people.
    pub title: String,
    /// The rule or mode that denies it; `null` where its agent should have asked, and did not.
    pub denied_by: Option<ResolvedBy>,
    /// What is done.
    pub action: BypassAction,
}

/// Which clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TimeoutKind {
    /// From the start to the agent's being ready.
    Start,
    /// From the prompt to the first sign of an answer.
    FirstResponse,
    /// From one sign of life to the next.
    Inactivity,
    /// From the beginning of the turn to its end.
    Turn,
    /// From one sign of life to the next while a tool call is in flight.
    Tool,
}

impl fmt::Display for TimeoutKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Start => "start",
            Self::FirstResponse => "first response",
            Self::Inactivity => "inactivity",
            Self::Turn => "turn",
            Self::Tool => "tool call",
        })
    }
}

/// What is done when a clock runs out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TimeoutAction {
    /// Only the event.
    Warn,
    /// The turn is aborted; an agent that does not end it then is killed with its session. A start that is not over is ended.
    #[default]
    AbortTurn,
    /// The session is killed. One that was being resumed is suspended again.
    KillSession,
}

/// A session's clocks, in milliseconds; `null` stops one (of the start: 0). While a tool runs or a permission request is open those of a turn
/// stand still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Timeouts {
    /// To the agent's being ready; `null` for the manager's own, 0 for none. When it runs out the start fails and is ended, unless
    /// the action is [`TimeoutAction::Warn`]: then it goes on for as long as somebody waits for it.
    pub start_ms: Option<u64>,
    /// 30 s by default.
    pub first_response_ms: Option<u64>,
    /// 120 s by default.
    pub inactivity_ms: Option<u64>,
    /// 300 s by default.
    pub turn_ms: Option<u64>,
    /// While a tool call is in flight, of which nothing is heard. 30 min by default.
    pub tool_ms: Option<u64>,
    /// What then.
    pub action: TimeoutAction,
    /// Silence of this length in a turn is a `session:silent` event. 3 s by default.
    pub silence_ms: Option<u64>,
    /// And again each time after this long. 5 s by default.
    pub silence_repeat_ms: Option<u64>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            start_ms: None,
            first_response_ms: Some(30_000),
            inactivity_ms: Some(120_000),
            turn_ms: Some(300_000),
            tool_ms: Some(1_800_000),
            action: TimeoutAction::default(),
            silence_ms: Some(3_000),
            silence_repeat_ms: Some(5_000),
        }
    }
}

impl Timeouts {
    /// No clock at all.
    pub const NONE: Self = Self {
        start_ms: Some(0),
        first_response_ms: None,
        inactivity_ms: None,
        turn_ms: None,
        tool_ms: None,
        action: TimeoutAction::Warn,
        silence_ms: None,
        silence_repeat_ms: None,
    };
}
