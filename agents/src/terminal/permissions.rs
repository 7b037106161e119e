//! Permission requests of an agent's own screen.
//!
//! Claude Code shows its dialog while a hook waits, and the first answer wins: each request is open until somebody answers it, here or
//! there. Codex shows its dialog afterwards, and a hook of Gemini CLI can only refuse. So their hooks get the decision of the session's
//! rules and mode at once, and what these leave open is asked on the screen alone.

use ipc_protocol::{
    PermissionAnswer, PermissionOption, PermissionOptionKind, PermissionRequest, ResolvedBy, WireError,
};
use serde_json::{Value, json};

use super::{reports::ToolReport, tools};
use crate::{
    Action, Result,
    claude::NOT_ALLOWED,
    kit::bounds::{self, words},
    permission::{AnswerChoice, CompiledPolicy, OpenRequests, PolicyVerdict, plain_request},
};

const ALLOW: &str = "allow";
const REJECT: &str = "reject";
const REJECT_AND_STOP: &str = "rejectAndStop";

/// Way in which an agent's hooks answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HookDialect {
    /// Claude Code, whose dialog is shown while its hook waits.
    Claude,
    Codex,
    Gemini,
}

/// Moment at which a hook asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HookMoment {
    /// Before each call of a tool.
    Call,
    /// Before the agent's own dialog.
    Dialog,
}

/// Data that answering a request needs.
#[derive(Debug)]
struct HookReplyTo {
    hook: u64,
    moment: HookMoment,
    /// Tool call that the request is about.
    call: Option<String>,
}

/// Open requests of the screen, and the policy that decides on them.
#[derive(Debug)]
pub(super) struct ScreenPermissions {
    open: OpenRequests<HookReplyTo>,
    policy: CompiledPolicy,
    dialect: HookDialect,
    /// True while the agent reports that its dialog waits, unless that is one answered here.
    is_blocked: bool,
}

impl ScreenPermissions {
    pub(super) fn new(policy: CompiledPolicy, dialect: HookDialect) -> Self {
        Self { open: OpenRequests::default(), policy, dialect, is_blocked: false }
    }

    /// Returns true if a request about a tool call is open.
    pub(super) fn is_about(&self, call: &str) -> bool {
        self.open.iter().any(|open| open.context.call.as_deref() == Some(call))
    }

    /// Refuses a tool call before it is made, if the policy does. Returns `None` if the hook has nothing to say.
    pub(super) fn check_call(
        &mut self,
        hook: u64,
        tool: &ToolReport,
        call: String,
        out: &mut Vec<Action>,
    ) -> Option<()> {
        let request = self.request(tool, Some(&call));
        if !matches!(self.policy.decide(&request), PolicyVerdict::Deny(_)) {
            return None;
        }
        self.open(request, HookReplyTo { hook, moment: HookMoment::Call, call: Some(call) }, out)
    }

    /// Opens a request. Returns `None` if it is left to the screen alone.
    pub(super) fn ask(
        &mut self,
        hook: u64,
        tool: &ToolReport,
        call: Option<String>,
        out: &mut Vec<Action>,
    ) -> Option<()> {
        let request = self.request(tool, call.as_deref());
        let waits = self.dialect == HookDialect::Claude;
        if !waits && self.policy.decide(&request) == PolicyVerdict::Ask {
            return None;
        }
        self.open(request, HookReplyTo { hook, moment: HookMoment::Dialog, call }, out)
    }

    fn open(&mut self, request: PermissionRequest, reply_to: HookReplyTo, out: &mut Vec<Action>) -> Option<()> {
        // More than an agent ever asks at once: those are asked on the screen.
        if self.open.is_full() {
            return None;
        }
        self.open.ask(request, reply_to, out);
        Some(())
    }

    fn request(&self, tool: &ToolReport, call: Option<&str>) -> PermissionRequest {
        let ToolReport { tool_name: name, tool_input: input, .. } = tool;
        let kind = tools::kind(name);
        let option = |id: &str, name: &str, kind| PermissionOption { id: id.to_owned(), name: name.to_owned(), kind };
        let mut options = Vec::new();
        // A question has no answer here but a refusal.
        if kind != "question" {
            options.push(option(ALLOW, "Allow", PermissionOptionKind::AllowOnce));
        }
        options.push(option(REJECT, "Reject", PermissionOptionKind::RejectOnce));
        if self.dialect == HookDialect::Claude {
            options.push(option(REJECT_AND_STOP, "Reject, and end the turn", PermissionOptionKind::Other));
        }
        PermissionRequest {
            tool_call_id: call.map(str::to_owned),
            command: tools::command(name, input),
            paths: tools::paths(name, input),
            options,
            ..plain_request(name, kind, tools::title(name, input), bounds::json(input))
        }
    }

    /// Answers the request `id`.
    ///
    /// # Errors
    /// [`WireError::UnknownPermission`], [`WireError::UnknownOption`], [`WireError::Unsupported`] for an answer with another input.
    pub(super) fn answer(
        &mut self,
        agent: &str,
        id: &str,
        answer: &PermissionAnswer,
        by: ResolvedBy,
        out: &mut Vec<Action>,
    ) -> Result<()> {
        let open = self.open.get(id)?;
        let (option, message) = match (open.choose(answer, &by)?, answer) {
            (AnswerChoice::Option(at), _) => (open.option(at), None),
            (AnswerChoice::More, PermissionAnswer::DenyWith { message }) => {
                (Some(REJECT.to_owned()), Some(words(message)))
            }
            (AnswerChoice::More, _) => {
                let operation = "be given another input on its own screen".to_owned();
                return Err(WireError::Unsupported { agent: agent.to_owned(), operation });
            }
            (AnswerChoice::Cancelled, _) => (None, None),
        };
        let moment = open.context.moment;
        let text =
            option.as_deref().map(|option| self.reply(moment, option, message.as_deref().unwrap_or(NOT_ALLOWED)));
        let answer = text.map(|text| text.to_string().into_bytes()).unwrap_or_default();
        // The dialog goes, and the status with it.
        self.is_blocked &= answer.is_empty();
        let reply = |reply_to: HookReplyTo, out: &mut Vec<Action>| {
            out.push(Action::AnswerHook { id: reply_to.hook, answer });
        };
        self.open.resolve(id, option, by, reply, out);
        Ok(())
    }

    /// Makes the text of an answer.
    fn reply(&self, moment: HookMoment, option: &str, message: &str) -> Value {
        let is_allowed = option == ALLOW;
        match (self.dialect, moment, is_allowed) {
            (HookDialect::Gemini, _, true) => json!({ "decision": "allow" }),
            (HookDialect::Gemini, _, false) => json!({ "decision": "deny", "reason": message }),
            (_, HookMoment::Call, _) => {
                let decision = if is_allowed { "allow" } else { "deny" };
                json!({ "hookSpecificOutput": {
                    "hookEventName": "PreToolUse", "permissionDecision": decision, "permissionDecisionReason": message,
                } })
            }
            (_, HookMoment::Dialog, _) => {
                let mut decision = json!({ "behavior": if is_allowed { "allow" } else { "deny" } });
                if !is_allowed {
                    decision["message"] = message.into();
                }
                if option == REJECT_AND_STOP {
                    decision["interrupt"] = true.into();
                }
                json!({ "hookSpecificOutput": { "hookEventName": "PermissionRequest", "decision": decision } })
            }
        }
    }

    /// Closes the requests about a call that has ended: they were answered on the screen.
    pub(super) fn end_of_call(&mut self, call: &str, out: &mut Vec<Action>) {
        self.close(|reply_to| reply_to.call.as_deref() == Some(call), out);
    }

    /// Closes the request of a hook that has ended without an answer: the agent needs none any more.
    pub(super) fn hook_ended(&mut self, hook: u64, out: &mut Vec<Action>) {
        self.close(|reply_to| reply_to.hook == hook, out);
    }

    /// Handles a status of the program: when its dialog has gone, the requests were answered there.
    pub(super) fn status(&mut self, status: &str, out: &mut Vec<Action>) {
        let was_blocked = std::mem::replace(&mut self.is_blocked, status == "blocked");
        if was_blocked && !self.is_blocked {
            self.leave_to_screen(out);
        }
    }

    /// Closes all requests, since they are answered on the screen.
    pub(super) fn leave_to_screen(&mut self, out: &mut Vec<Action>) {
        self.close(|_| true, out);
    }

    fn close(&mut self, meant: impl Fn(&HookReplyTo) -> bool, out: &mut Vec<Action>) {
        let reply = |reply_to: HookReplyTo, out: &mut Vec<Action>| {
            out.push(Action::AnswerHook { id: reply_to.hook, answer: Vec::new() });
        };
        self.open.close(&ResolvedBy::Terminal, meant, reply, out);
    }

    /// Closes all requests without an answer, since the agent has ended.
    pub(super) fn close_all(&mut self, out: &mut Vec<Action>) {
        self.open.close_all(&ResolvedBy::Abort, out);
    }
}
