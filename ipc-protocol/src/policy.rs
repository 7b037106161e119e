//! Policies for permission requests and for timeouts.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ResolvedBy;

/// Answer to an agent's permission requests that no rule decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum PermissionMode {
    /// Emits each as an event; `respond_permission` answers it.
    #[default]
    Ask,
    /// Allows each, once.
    Allow,
    /// Rejects each.
    Deny,
    /// Allows read-only actions, once; rejects all others.
    ReadOnly,
}

/// Decision of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum RuleDecision {
    Ask,
    Allow,
    Deny,
}

/// Permission rule: all of its given patterns must match. The first rule that matches decides. If a request asks
/// for several things (`fetch+other`), each is decided: the request is denied if one of them is, and allowed if all
/// are.
///
/// `*` matches anything within a tool's name or a command; in a path `*` stays within a directory and `**` does not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PermissionRule {
    /// Glob on the tool's machine name, or on its kind (`execute`, `edit`, `read`, …).
    pub tool: Option<String>,
    /// Glob on the whole command line. A rule that allows never matches a command that a shell would split (`;`,
    /// `&&`, `$(`, …), unless the glob has the same.
    pub command: Option<String>,
    /// Glob on the paths, made absolute. A rule that allows must match all of them, any other rule at least one.
    pub path: Option<String>,
    /// Decision if the rule matches.
    pub decision: RuleDecision,
}

/// Answers to a session's permission requests.
///
/// ```
/// use ipc_protocol::{PermissionPolicy, PermissionRule, RuleDecision};
///
/// let git = PermissionRule {
///     tool: Some("bash".into()),
///     command: Some("git *".into()),
///     path: None,
///     decision: RuleDecision::Allow,
/// };
/// let mut policy = PermissionPolicy::default();
/// policy.rules.push(git);
/// policy.deadline_ms = Some(60_000);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct PermissionPolicy {
    /// Rules, of which the first that matches decides; if none does, the session's [`PermissionMode`].
    pub rules: Vec<PermissionRule>,
    /// Longest wait of a request for an answer, in milliseconds; `null` for no bound.
    pub deadline_ms: Option<u64>,
    /// True to allow the request at the deadline; else it is rejected.
    pub allow_at_deadline: bool,
}

/// The sandbox that an agent puts around its own tools: none of ours. Agents differ in what they have; one that cannot have the one
/// asked for refuses the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
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
    /// Machine name of the tool.
    pub tool: String,
    /// Kind of the tool.
    pub kind: String,
    /// Title for people, one line.
    pub title: String,
    /// The rule or mode that denies it; `null` where its agent should have asked, and did not.
    pub denied_by: Option<ResolvedBy>,
    /// Action that was taken.
    pub action: BypassAction,
}

/// Clock that ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum TimeoutKind {
    /// Time from the start until the agent is ready.
    Start,
    /// Time from the prompt to the first sign of an answer.
    FirstResponse,
    /// Time from one sign of life to the next.
    Inactivity,
    /// Time from the beginning of the turn to its end.
    Turn,
    /// Time from one sign of life to the next while a tool call is in flight.
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

/// Action when a clock runs out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum TimeoutAction {
    /// Emits the event only.
    Warn,
    /// Aborts the turn; an agent that does not end it then is killed with its session. Ends a start in progress.
    #[default]
    AbortTurn,
    /// Kills the session. Suspends a session again that was being resumed.
    KillSession,
}

/// Clocks of a session, in milliseconds; `null` stops one (of the start: 0). The clocks of a turn stand still while
/// a tool runs or a permission request is open.
///
/// ```
/// use ipc_protocol::{TimeoutAction, Timeouts};
///
/// let mut clocks = Timeouts::default();
/// assert_eq!(clocks.first_response_ms, Some(30_000));
/// clocks.turn_ms = None;
/// clocks.action = TimeoutAction::KillSession;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Timeouts {
    /// Time until the agent is ready; `null` for the manager's own, 0 for none. When it runs out the start fails
    /// and is ended, unless the action is [`TimeoutAction::Warn`]: then it continues for as long as somebody waits
    /// for it.
    pub start_ms: Option<u64>,
    /// Time to the first sign of an answer. 30 s by default.
    pub first_response_ms: Option<u64>,
    /// Time between two signs of life. 120 s by default.
    pub inactivity_ms: Option<u64>,
    /// Time for the whole turn. 300 s by default.
    pub turn_ms: Option<u64>,
    /// Time without a sign of life while a tool call is in flight. 30 min by default.
    pub tool_ms: Option<u64>,
    /// Action when one runs out.
    pub action: TimeoutAction,
    /// Length of silence in a turn that causes a `session:silent` event. 3 s by default.
    pub silence_ms: Option<u64>,
    /// Interval at which that event is repeated. 5 s by default.
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
    /// No clocks at all.
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
