//! Requests of extensions. Our own extension asks for permission before each tool call; a request of any other is a question.

use ipc_protocol::{Json, PermissionAnswer, PermissionOptionKind as Kind, PermissionRequest, ResolvedBy, WireError};
use serde_json::{Value, json};

use super::{tools, wire};
use crate::{
    Action, Result,
    kit::bounds::{self, MAX_ID, title, words},
    permission::{AnswerChoice, OpenRequests, PreparedOption, plain_request},
};

/// Most options of a request.
const MAX_OPTIONS: usize = 64;

/// Form of an answer with input or with a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DialogForm {
    /// JSON in a string, for our extension.
    Permission,
    /// Plain text.
    Text,
    /// None: only the options are accepted.
    Options,
}

/// Data that answering a dialog needs.
#[derive(Debug)]
struct PiReplyTo {
    dialog: String,
    /// Answer of each option, in the order of the options.
    answers: Vec<Value>,
    form: DialogForm,
}

/// Open dialogs of the session.
#[derive(Debug, Default)]
pub(super) struct PiDialogs(OpenRequests<PiReplyTo>);

impl PiDialogs {
    /// Handles `extension_ui_request`. `dismiss` means that nobody is to be asked any more. Returns `false` if it is no dialog.
    pub(super) fn ask(&mut self, params: &Value, dismiss: bool, out: &mut Vec<Action>) -> bool {
        let Some((request, choices, form)) = parse_dialog(params) else { return false };
        let Some(dialog) = params["id"].as_str().filter(|id| id.len() <= MAX_ID) else { return false };
        // Too many dialogs, or nobody to ask: the agent needs an answer all the same.
        if self.0.is_full() || dismiss {
            self::dismiss(dialog, out);
            return true;
        }
        let (options, answers) = choices.into_iter().map(|PreparedOption { option, answer }| (option, answer)).unzip();
        let about = PiReplyTo { dialog: dialog.to_owned(), answers, form };
        self.0.ask(PermissionRequest { options, ..request }, about, out);
        true
    }

    /// Answers the request `id`.
    ///
    /// # Errors
    /// [`WireError::UnknownPermission`], [`WireError::UnknownOption`], [`WireError::Unsupported`]; the request then stays open.
    pub(super) fn answer(
        &mut self,
        agent: &str,
        id: &str,
        answer: &PermissionAnswer,
        by: ResolvedBy,
        out: &mut Vec<Action>,
    ) -> Result<()> {
        let open = self.0.get(id)?;
        let (option, value) = match (open.choose(answer, &by)?, answer, open.context.form) {
            (AnswerChoice::Option(at), ..) => (open.option(at), open.context.answers[at].clone()),
            (AnswerChoice::Cancelled, ..) => (None, cancelled()),
            (_, PermissionAnswer::AllowWith { input }, DialogForm::Permission) => {
                (Some("allow".to_owned()), verdict(&json!({ "decision": "allow", "input": input.value() })))
            }
            (_, PermissionAnswer::DenyWith { message }, DialogForm::Permission) => {
                (Some("deny".to_owned()), verdict(&json!({ "decision": "deny", "reason": message })))
            }
            (_, PermissionAnswer::AllowWith { input }, DialogForm::Text) => (None, json!({ "value": plain(input) })),
            (AnswerChoice::More, ..) => {
                let operation = "take such an answer to what it asks".to_owned();
                return Err(WireError::Unsupported { agent: agent.to_owned(), operation });
            }
        };
        let reply = |about: PiReplyTo, out: &mut Vec<Action>| wire::dialog(&about.dialog, &value, out);
        self.0.resolve(id, option, by, reply, out);
        Ok(())
    }

    /// Closes a dialog that was answered on the agent's screen.
    pub(super) fn answered_elsewhere(&mut self, dialog: &str, option: &str, out: &mut Vec<Action>) {
        let Some(open) = self.0.iter().find(|open| open.context.dialog == dialog) else { return };
        let (id, option) = (open.id.clone(), Some(option.to_owned()).filter(|option| open.has(option)));
        self.0.resolve(&id, option, ResolvedBy::Agent, |_, _| {}, out);
    }

    /// Dismisses all open dialogs: the turn is being aborted, and the agent reads no abort while it waits for an answer.
    pub(super) fn cancel_all(&mut self, out: &mut Vec<Action>) {
        let cancel = |about: PiReplyTo, out: &mut Vec<Action>| dismiss(&about.dialog, out);
        self.0.close(&ResolvedBy::Abort, |_| true, cancel, out);
    }

    /// Closes all open dialogs, since no answer is awaited any more.
    pub(super) fn close_all(&mut self, by: &ResolvedBy, out: &mut Vec<Action>) {
        self.0.close_all(by, out);
    }
}

/// Dismisses a dialog without asking anybody.
pub(super) fn dismiss(dialog: &str, out: &mut Vec<Action>) {
    wire::dialog(dialog, &cancelled(), out);
}

fn cancelled() -> Value {
    json!({ "cancelled": true })
}

/// Makes the answer that our extension reads.
fn verdict(verdict: &Value) -> Value {
    json!({ "value": verdict.to_string() })
}

/// Returns a text as it is, and anything else as JSON.
fn plain(input: &Json) -> String {
    match input.value() {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

/// Converts a dialog to a request without id and options. Returns `None` for a message that needs no answer.
fn parse_dialog(params: &Value) -> Option<(PermissionRequest, Vec<PreparedOption>, DialogForm)> {
    let method = params["method"].as_str()?;
    let asked = params["title"].as_str().unwrap_or_default();
    if let Some(permission) = (method == "select").then(|| parse_permission(asked)).flatten() {
        return Some(permission);
    }
    let mut choices = Vec::new();
    let form = match method {
        "select" => {
            let options = params["options"].as_array()?.iter().filter_map(Value::as_str);
            choices.extend(
                options
                    .filter(|option| option.len() <= MAX_ID)
                    .take(MAX_OPTIONS - 1)
                    .map(|option| PreparedOption::new(option, option, Kind::Other, json!({ "value": option }))),
            );
            DialogForm::Options
        }
        "confirm" => {
            choices.push(PreparedOption::new("yes", "Yes", Kind::AllowOnce, json!({ "confirmed": true })));
            choices.push(PreparedOption::new("no", "No", Kind::RejectOnce, json!({ "confirmed": false })));
            DialogForm::Options
        }
        "input" | "editor" => DialogForm::Text,
        _ => return None,
    };
    if method != "confirm" {
        choices.push(PreparedOption::new("cancel", "No answer", Kind::RejectOnce, cancelled()));
    }
    let message = params["message"].as_str().map(|message| format!(": {message}")).unwrap_or_default();
    let title = title(&format!("{asked}{message}"));
    let request = plain_request(method, "question", title, bounds::json(params));
    Some((request, choices, form))
}

/// Parses a request of our extension: its title is JSON.
fn parse_permission(asked: &str) -> Option<(PermissionRequest, Vec<PreparedOption>, DialogForm)> {
    let asked = serde_json::from_str::<Value>(asked).ok().filter(|asked| asked["agentProxy"] == "permission")?;
    let (tool, input) = (asked["tool"].as_str()?, &asked["input"]);
    let request = PermissionRequest {
        tool_call_id: asked["toolCallId"].as_str().map(words),
        command: tools::command(tool, input),
        paths: tools::paths(tool, input),
        ..plain_request(tool, tools::kind(tool), tools::describe(tool, input), bounds::json(input))
    };
    let choices = vec![
        PreparedOption::new("allow", "Yes", Kind::AllowOnce, verdict(&json!({ "decision": "allow" }))),
        PreparedOption::new("deny", "No", Kind::RejectOnce, verdict(&json!({ "decision": "deny" }))),
    ];
    Some((request, choices, DialogForm::Permission))
}
