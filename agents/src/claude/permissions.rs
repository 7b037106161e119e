//! Open permission requests (`can_use_tool`).
//!
//! The agent also suggests rules that would allow the same without asking. Rules are written to files (`.claude/settings.local.json`
//! in the working directory, as a rule) and hold for every later session there. So the adapter returns a rule only when a user
//! chooses the option for it.

use ipc_protocol::{
    Event, PermissionAnswer, PermissionOption, PermissionOptionKind, PermissionRequest, ResolvedBy, WireError,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};

use super::{tools, wire};
use crate::{
    Action, Result,
    kit::bounds::{self, MAX_ID, words},
    permission::{AnswerChoice, OpenRequest, OpenRequests},
};

/// Most bytes of all open requests. The input is kept, since the answer contains it.
const MAX_BYTES: usize = 32 * 1024 * 1024;
/// Most answers of a question that become options.
const MAX_CHOICES: usize = 16;

const ALLOW: &str = "allow";
const ALLOW_ALWAYS: &str = "allowAlways";
const REJECT: &str = "reject";
const REJECT_AND_STOP: &str = "rejectAndStop";
/// Prefix of the options that answer a question; the answer follows.
const CHOOSE: &str = "choose:";

/// Text for the model when a denial has no reason.
pub(crate) const NOT_ALLOWED: &str = "This was not allowed. Go on without it, or say what you need it for.";

/// Contents of a `can_use_tool` request.
#[derive(Debug, Deserialize)]
pub(super) struct CanUseTool<'a> {
    tool_name: String,
    #[serde(borrow, default)]
    input: Option<&'a RawValue>,
    #[serde(borrow, default)]
    permission_suggestions: Option<&'a RawValue>,
    #[serde(default)]
    suppress_always_allow_rule: bool,
    tool_use_id: Option<String>,
    title: Option<String>,
    /// Sub-agent that asks.
    pub(super) agent_id: Option<String>,
}

/// Data that answering a request needs.
#[derive(Debug)]
struct ClaudeReplyTo {
    agent_id: String,
    input: Box<RawValue>,
    suggestions: Option<Box<RawValue>>,
}

impl ClaudeReplyTo {
    fn bytes(&self) -> usize {
        self.input.get().len() + self.suggestions.as_ref().map_or(0, |suggestions| suggestions.get().len())
    }
}

/// Answer in the agent's form.
#[derive(Serialize)]
#[serde(tag = "behavior", rename_all = "lowercase", rename_all_fields = "camelCase")]
enum PermissionResult<'a> {
    Allow {
        updated_input: &'a RawValue,
        #[serde(skip_serializing_if = "Option::is_none")]
        updated_permissions: Option<&'a RawValue>,
    },
    Deny {
        message: &'a str,
        /// True if the turn is to end.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        interrupt: bool,
    },
}

/// Decision about a request.
struct ClaudeDecision {
    /// Option that the decision corresponds to.
    option: Option<String>,
    allowed: bool,
    /// Replacement for the tool's input.
    input: Option<Box<RawValue>>,
    message: Option<String>,
    interrupt: bool,
    always: bool,
}

impl ClaudeDecision {
    fn allow(option: &str) -> Self {
        let option = Some(option.to_owned());
        Self { option, allowed: true, input: None, message: None, interrupt: false, always: false }
    }

    fn deny(option: Option<&str>, interrupt: bool) -> Self {
        let option = option.map(str::to_owned);
        Self { option, allowed: false, input: None, message: None, interrupt, always: false }
    }
}

/// Open requests of the session.
#[derive(Debug, Default)]
pub(super) struct ClaudePermissions(OpenRequests<ClaudeReplyTo>);

impl ClaudePermissions {
    /// Opens a request of the agent, or refuses it if it breaks a bound. `parent` is the tool call of the sub-agent that asks.
    pub(super) fn ask(&mut self, agent_id: &str, asked: CanUseTool<'_>, parent: Option<String>, out: &mut Vec<Action>) {
        let bytes: usize = self.0.iter().map(|open| open.context.bytes()).sum();
        let empty = || RawValue::from_string("{}".to_owned()).unwrap_or_default();
        let about = ClaudeReplyTo {
            agent_id: agent_id.to_owned(),
            input: asked.input.map_or_else(empty, RawValue::to_owned),
            suggestions: asked.permission_suggestions.map(RawValue::to_owned),
        };
        let ids = [Some(agent_id), Some(asked.tool_name.as_str()), asked.tool_use_id.as_deref()];
        if self.0.is_full()
            || bytes + about.bytes() > MAX_BYTES
            || ids.into_iter().flatten().any(|id| id.len() > MAX_ID)
        {
            let message = "too many or too large permission requests are open, or an id is too long";
            out.push(Action::Event(Event::error("permission", message, false)));
            return wire::reply(agent_id, PermissionResult::Deny { message, interrupt: false }, out);
        }
        let input = tools::value(Some(&about.input));
        let suggestions = tools::value(asked.permission_suggestions.filter(|_| !asked.suppress_always_allow_rule));
        let request = PermissionRequest {
            id: String::new(),
            tool_call_id: asked.tool_use_id,
            title: asked.title.as_deref().map_or_else(|| tools::title(&asked.tool_name, &input), words),
            kind: tools::kind(&asked.tool_name).to_owned(),
            command: tools::command(&asked.tool_name, &input),
            paths: tools::paths(&asked.tool_name, &input),
            options: options(&asked.tool_name, &input, &suggestions),
            tool: asked.tool_name,
            input: bounds::bounded(asked.input),
            parent,
        };
        self.0.ask(request, about, out);
    }

    /// Answers the request `id`.
    ///
    /// # Errors
    /// [`WireError::UnknownPermission`], [`WireError::UnknownOption`]; the request then stays open.
    pub(super) fn answer(
        &mut self,
        id: &str,
        answer: &PermissionAnswer,
        by: ResolvedBy,
        out: &mut Vec<Action>,
    ) -> Result<()> {
        let open = self.0.get(id)?;
        let decision = decide(open, answer, open.choose(answer, &by)?, &by)?;
        let reply = |about: ClaudeReplyTo, out: &mut Vec<Action>| {
            let response = if decision.allowed {
                PermissionResult::Allow {
                    updated_input: decision.input.as_deref().unwrap_or(&about.input),
                    updated_permissions: about.suggestions.as_deref().filter(|_| decision.always),
                }
            } else {
                let message = decision.message.as_deref().unwrap_or(NOT_ALLOWED);
                PermissionResult::Deny { message, interrupt: decision.interrupt }
            };
            wire::reply(&about.agent_id, response, out);
        };
        self.0.resolve(id, decision.option, by, reply, out);
        Ok(())
    }

    /// Closes a request that the agent has withdrawn.
    pub(super) fn withdraw(&mut self, agent_id: &str, by: &ResolvedBy, out: &mut Vec<Action>) {
        self.0.close(by, |about| about.agent_id == agent_id, |_, _| {}, out);
    }

    /// Closes all open requests without an answer, since the agent has ended.
    pub(super) fn close_all(&mut self, out: &mut Vec<Action>) {
        self.0.close_all(&ResolvedBy::Abort, out);
    }
}

/// Returns the options of a request.
fn options(tool: &str, input: &Value, suggestions: &Value) -> Vec<PermissionOption> {
    let option = |id: &str, name: String, kind| PermissionOption { id: id.to_owned(), name, kind };
    let mut options = vec![option(ALLOW, "Allow".into(), PermissionOptionKind::AllowOnce)];
    let always = suggested(suggestions);
    if !always.is_empty() {
        options.push(option(ALLOW_ALWAYS, format!("Allow, and {always}"), PermissionOptionKind::AllowAlways));
    }
    options.push(option(REJECT, "Reject".into(), PermissionOptionKind::RejectOnce));
    options.push(option(REJECT_AND_STOP, "Reject, and end the turn".into(), PermissionOptionKind::Other));
    if tool == "AskUserQuestion" {
        let labels = choices(input).map(|(_, labels)| labels).unwrap_or_default();
        let chosen = labels.into_iter().take(MAX_CHOICES);
        options.extend(
            chosen.map(|label| option(&format!("{CHOOSE}{label}"), label.to_owned(), PermissionOptionKind::Other)),
        );
    }
    options
}

/// Describes the rules that the agent would write for "always".
fn suggested(suggestions: &Value) -> String {
    let one = |suggestion: &Value| {
        let text = |key: &str| suggestion.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let place = match text("destination").as_str() {
            "localSettings" => " in .claude/settings.local.json".to_owned(),
            "projectSettings" => " in .claude/settings.json".to_owned(),
            "userSettings" => " in the user's settings".to_owned(),
            "session" => " for this session".to_owned(),
            other => format!(" in {other}"),
        };
        let rules = suggestion.get("rules").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let rule = |rule: &Value| {
            let name = rule.get("toolName").and_then(Value::as_str).unwrap_or_default();
            match rule.get("ruleContent").and_then(Value::as_str) {
                Some(content) => format!("{name}({content})"),
                None => name.to_owned(),
            }
        };
        let listed = rules.iter().take(8).map(rule).collect::<Vec<_>>().join(", ");
        let directories =
            suggestion.get("directories").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let directories = directories.iter().take(8).filter_map(Value::as_str).collect::<Vec<_>>().join(", ");
        match text("type").as_str() {
            "addRules" => format!("always {} {listed}{place}", text("behavior")),
            "setMode" => format!("change to mode {}{place}", text("mode")),
            "addDirectories" => format!("work in {directories} too{place}"),
            other => format!("{other}{place}"),
        }
    };
    let all = suggestions.as_array().map(Vec::as_slice).unwrap_or_default();
    words(&all.iter().take(8).map(one).collect::<Vec<_>>().join("; "))
}

/// Returns the question and its answers, for a single question with a single answer.
fn choices(input: &Value) -> Option<(&str, Vec<&str>)> {
    let [question] = input.get("questions")?.as_array()?.as_slice() else { return None };
    if question.get("multiSelect").and_then(Value::as_bool) == Some(true) {
        return None;
    }
    let labels = question.get("options")?.as_array()?.iter().filter_map(|option| option.get("label")?.as_str());
    Some((question.get("question")?.as_str()?, labels.filter(|label| label.len() <= MAX_ID).collect()))
}

fn decide(
    open: &OpenRequest<ClaudeReplyTo>,
    answer: &PermissionAnswer,
    choice: AnswerChoice,
    by: &ResolvedBy,
) -> Result<ClaudeDecision> {
    let option = match (choice, answer) {
        (AnswerChoice::Option(at), _) => open.option(at).unwrap_or_default(),
        (AnswerChoice::Cancelled, _) => return Ok(ClaudeDecision::deny(None, true)),
        (AnswerChoice::More, PermissionAnswer::AllowWith { input }) => {
            // Serialized again, so that it is one line in any case.
            let value = input.value();
            if !value.is_object() {
                let reason = "the input of a tool is an object, and the answer has something else".to_owned();
                return Err(WireError::Protocol { reason });
            }
            return Ok(ClaudeDecision { input: raw(&value), ..ClaudeDecision::allow(ALLOW) });
        }
        (AnswerChoice::More, PermissionAnswer::DenyWith { message }) => {
            return Ok(ClaudeDecision { message: Some(message.clone()), ..ClaudeDecision::deny(Some(REJECT), false) });
        }
        (AnswerChoice::More, _) => return Ok(ClaudeDecision::deny(None, false)),
    };
    Ok(match option.as_str() {
        // Only a person decides which requests later sessions skip.
        ALLOW_ALWAYS if matches!(by, ResolvedBy::User { .. }) => {
            ClaudeDecision { always: true, ..ClaudeDecision::allow(ALLOW_ALWAYS) }
        }
        ALLOW | ALLOW_ALWAYS => ClaudeDecision::allow(ALLOW),
        REJECT => ClaudeDecision::deny(Some(REJECT), false),
        REJECT_AND_STOP => ClaudeDecision::deny(Some(REJECT_AND_STOP), true),
        chosen => ClaudeDecision { input: chosen_input(&open.context, chosen), ..ClaudeDecision::allow(chosen) },
    })
}

/// Returns a question's input with the answer that the option `chosen` stands for.
fn chosen_input(open: &ClaudeReplyTo, chosen: &str) -> Option<Box<RawValue>> {
    let mut input = tools::value(Some(&open.input));
    let question = choices(&input)?.0.to_owned();
    input["answers"] = json!({ question: chosen.strip_prefix(CHOOSE)? });
    raw(&input)
}

fn raw(value: &Value) -> Option<Box<RawValue>> {
    RawValue::from_string(value.to_string()).ok()
}
