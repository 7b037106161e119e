//! Open permission requests and questions.
//!
//! A bare `reject` ends the turn. A `reject` with a message lets the turn go on, unless it rejects others with it: the server rejects
//! all open requests of a session when one of them is rejected. An `always` answers every request that it covers. The server reports
//! the requests that it answers so, and events show them as answered by the agent.

use std::collections::HashSet;

use ipc_protocol::{
    PermissionAnswer, PermissionOption, PermissionOptionKind, PermissionRequest, ResolvedBy, WireError,
};
use serde_json::{Value, json};

use super::{
    content::{CallInfo, kind},
    wire::{PermissionAsked, QuestionAsked},
};
use crate::{
    Action, Result,
    kit::bounds::{self, MAX_ID},
    permission::{self, AnswerChoice, OpenRequest, OpenRequests, plain_request},
    uri::encode,
};

/// Most answers of a question that become options.
const MAX_OPTIONS: usize = 64;
/// Most paths of a request; `MAX_PATH` is the longest path in bytes. A policy has to know all paths, so a request beyond is refused.
const MAX_PATHS: usize = 1000;
const MAX_PATH: usize = 4096;
/// Id of the option that rejects.
const REJECT: &str = "reject";

/// Texts of a question's parts, and the labels of its options; `None` for a permission request.
type QuestionChoices = Option<(Vec<String>, Vec<String>)>;

/// Answer to the server: path, and body if there is one.
pub(super) type ServerCall = (String, Option<Value>);

/// Open requests, by the server's ids.
#[derive(Debug, Default)]
pub(super) struct OpenCodePermissions(OpenRequests<QuestionChoices>);

/// Context of a request that the request itself does not contain.
pub(super) struct PermissionContext<'a> {
    pub(super) call: Option<CallInfo<'a>>,
    /// Tool call of the sub-agent that asks, if one does.
    pub(super) parent: Option<String>,
    /// Directory that the paths are relative to.
    pub(super) root: &'a str,
}

impl OpenCodePermissions {
    pub(super) fn is_open(&self, id: &str) -> bool {
        self.0.get(id).is_ok()
    }

    pub(super) fn ids(&self) -> Vec<String> {
        self.0.iter().map(|open| open.id.clone()).collect()
    }

    /// Opens a request. Returns the refusal if it breaks a bound.
    pub(super) fn open_permission(
        &mut self,
        asked: PermissionAsked,
        about: PermissionContext<'_>,
        out: &mut Vec<Action>,
    ) -> Option<ServerCall> {
        if self.is_open(&asked.id) {
            return None;
        }
        let reject = (reply_path(&asked.id), Some(json!({ "reply": "reject", "message": "too many open requests" })));
        if self.0.is_full() || asked.id.len() > MAX_ID || asked.permission.len() > MAX_ID {
            return Some(reject);
        }
        let option = |id: &str, name: String, kind| PermissionOption { id: id.to_owned(), name, kind };
        let always = match asked.always.join(", ") {
            all if all.is_empty() || all == "*" => format!("Always allow {}", asked.permission),
            some => format!("Always allow {}", some.chars().take(200).collect::<String>()),
        };
        let options = vec![
            option("once", "Allow once".into(), PermissionOptionKind::AllowOnce),
            option("always", always, PermissionOptionKind::AllowAlways),
            option(REJECT, "Reject".into(), PermissionOptionKind::RejectOnce),
        ];
        let text_of = |key: &str| {
            let input = about.call.as_ref().and_then(|call| call.input);
            asked.metadata.get(key).or_else(|| input?.get(key)).and_then(Value::as_str).map(str::to_owned)
        };
        let tool = about.call.as_ref().map_or(asked.permission.as_str(), |call| call.name);
        // A permission other than the tool's own serves the tool's purpose, so it has the tool's kind.
        let kind = match asked.permission.as_str() {
            "external_directory" | "doom_loop" => kind(tool),
            permission => kind(permission),
        };
        let command = text_of("command").filter(|_| kind == "execute");
        let Some(paths) = paths(&asked, text_of("filePath"), text_of("path"), about.root) else {
            let message = format!("more than {MAX_PATHS} paths, or one of more than {MAX_PATH} bytes");
            return Some((reply_path(&asked.id), Some(json!({ "reply": REJECT, "message": message }))));
        };
        let title = command.clone().unwrap_or_else(|| {
            let what = paths.first().map_or_else(|| asked.patterns.join(", "), Clone::clone);
            format!("{} {what}", asked.permission)
        });
        let input = match about.call.as_ref().and_then(|call| call.input) {
            Some(input) => input.to_string(),
            None => asked.metadata.to_string(),
        };
        let title = title.lines().next().unwrap_or_default().chars().take(200).collect();
        let request = PermissionRequest {
            id: asked.id,
            tool_call_id: about.call.as_ref().map(|call| call.id.to_owned()),
            command,
            paths,
            options,
            parent: about.parent,
            ..plain_request(tool, kind, title, bounds::document(&input))
        };
        self.0.ask(request, None, out);
        None
    }

    /// Opens a question. Returns the refusal if it breaks a bound.
    pub(super) fn open_question(
        &mut self,
        question: QuestionAsked,
        about: PermissionContext<'_>,
        out: &mut Vec<Action>,
    ) -> Option<ServerCall> {
        if self.is_open(&question.id) {
            return None;
        }
        if self.0.is_full() || question.id.len() > MAX_ID {
            return Some((question_path(&question.id, "reject"), None));
        }
        let asked: Vec<&Value> = question.questions.as_array().into_iter().flatten().take(MAX_OPTIONS).collect();
        let texts: Vec<String> = asked.iter().map(|one| text(one, "question").to_owned()).collect();
        // Options can express a single choice; several choices, or a text of one's own, need an answer with input.
        let labels: Vec<String> = match asked[..] {
            [one] if one["multiple"] != true => {
                let options = one["options"].as_array().into_iter().flatten().take(MAX_OPTIONS);
                options.map(|option| text(option, "label").to_owned()).collect()
            }
            _ => Vec::new(),
        };
        let choice = |(at, label): (usize, &String)| PermissionOption {
            id: format!("answer-{}", at + 1),
            name: label.chars().take(200).collect(),
            kind: PermissionOptionKind::Other,
        };
        let mut options: Vec<PermissionOption> = labels.iter().enumerate().map(choice).collect();
        let kind = PermissionOptionKind::RejectOnce;
        options.push(PermissionOption { id: REJECT.into(), name: "Do not answer".into(), kind });
        let title = texts.first().map_or("question", String::as_str).chars().take(200).collect();
        let input = json!({ "questions": question.questions });
        let request = PermissionRequest {
            id: question.id,
            tool_call_id: about.call.as_ref().map(|call| call.id.to_owned()),
            options,
            parent: about.parent,
            ..plain_request("question", "question", title, bounds::document(&input.to_string()))
        };
        self.0.ask(request, Some((texts, labels)), out);
        None
    }

    /// Answers the request `id` and returns the message to send.
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
    ) -> Result<ServerCall> {
        let open = self.0.get(id)?;
        let choice = open.choose(answer, &by)?;
        let (option, send) = match &open.context {
            None => permission_reply(agent, open, choice, answer)?,
            Some((texts, labels)) => question_reply(agent, open, texts, labels, choice, answer)?,
        };
        self.0.resolve(id, option, by, |_, _| {}, out);
        Ok(send)
    }

    /// Handles an answer to `id` that the server has from elsewhere.
    pub(super) fn replied(&mut self, id: &str, reply: Option<String>, out: &mut Vec<Action>) {
        let Ok(open) = self.0.get(id) else { return };
        let option = reply.filter(|reply| open.has(reply));
        self.0.resolve(id, option, ResolvedBy::Agent, |_, _| {}, out);
    }

    /// Rejects all open requests and returns the messages to send. The server would list them even after the abort of their turn.
    pub(super) fn reject_all(&mut self, out: &mut Vec<Action>) -> Vec<ServerCall> {
        let sends = self.0.iter().map(reject).collect();
        self.0.close_all(&ResolvedBy::Abort, out);
        sends
    }
}

fn reject(open: &OpenRequest<QuestionChoices>) -> ServerCall {
    match open.context {
        None => (reply_path(&open.id), Some(json!({ "reply": REJECT }))),
        Some(_) => (question_path(&open.id, "reject"), None),
    }
}

fn permission_reply(
    agent: &str,
    open: &OpenRequest<QuestionChoices>,
    choice: AnswerChoice,
    answer: &PermissionAnswer,
) -> Result<(Option<String>, ServerCall)> {
    match (choice, answer) {
        // The option's id is the server's word for the answer.
        (AnswerChoice::Option(at), _) => {
            let reply = open.option(at);
            Ok((reply.clone(), (reply_path(&open.id), Some(json!({ "reply": reply })))))
        }
        (AnswerChoice::More, PermissionAnswer::DenyWith { message }) => {
            let body = json!({ "reply": REJECT, "message": message });
            Ok((Some(REJECT.into()), (reply_path(&open.id), Some(body))))
        }
        (AnswerChoice::More, _) => {
            let operation = "take another input for a tool: allow or reject it as it is".to_owned();
            Err(WireError::Unsupported { agent: agent.to_owned(), operation })
        }
        (AnswerChoice::Cancelled, _) => Ok((None, reject(open))),
    }
}

fn question_reply(
    agent: &str,
    open: &OpenRequest<QuestionChoices>,
    texts: &[String],
    labels: &[String],
    choice: AnswerChoice,
    answer: &PermissionAnswer,
) -> Result<(Option<String>, ServerCall)> {
    let (option, answers) = match (choice, answer) {
        (AnswerChoice::Cancelled, _) => return Ok((None, reject(open))),
        (AnswerChoice::Option(at), _) => match labels.get(at) {
            Some(label) => (open.option(at), json!([[label]])),
            None => return Ok((open.option(at), reject(open))),
        },
        (AnswerChoice::More, PermissionAnswer::AllowWith { input }) => {
            let answers = answers(&input.value(), texts);
            (None, answers.ok_or_else(|| open.unknown_option("an input without answers"))?)
        }
        (AnswerChoice::More, _) => {
            let operation = "be told why a question is not answered: reject it, or answer it in words".to_owned();
            return Err(WireError::Unsupported { agent: agent.to_owned(), operation });
        }
    };
    Ok((option, (question_path(&open.id, "reply"), Some(json!({ "answers": answers })))))
}

/// Converts `answers` of an input to the server's form, one list of texts for each question. The input may have that form, or be
/// an object keyed by the texts of the questions.
fn answers(input: &Value, texts: &[String]) -> Option<Value> {
    let list = |value: &Value| match value {
        Value::String(_) => Some(json!([value])),
        Value::Array(all) if all.iter().all(Value::is_string) => Some(value.clone()),
        _ => None,
    };
    match &input["answers"] {
        Value::Array(all) => all.iter().map(list).collect::<Option<Vec<_>>>().map(Value::from),
        Value::Object(by_text) => {
            let one = |text: &String| by_text.get(text).map_or_else(|| Some(json!([])), list);
            texts.iter().map(one).collect::<Option<Vec<_>>>().map(Value::from)
        }
        _ => None,
    }
}

/// Returns the refusal of a request or a question of which only the beginning arrived, or `None` for other events.
pub(super) fn refusal(event: &str, id: &str) -> Option<ServerCall> {
    let message = "the request is longer than what is taken";
    match event {
        "permission.asked" => Some((reply_path(id), Some(json!({ "reply": REJECT, "message": message })))),
        "question.asked" => Some((question_path(id, "reject"), None)),
        _ => None,
    }
}

fn reply_path(id: &str) -> String {
    format!("/permission/{}/reply", encode(id))
}

fn question_path(id: &str, verb: &str) -> String {
    format!("/question/{}/{verb}", encode(id))
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the absolute paths of a request, each once, or `None` if there are too many or one is too long. The model may have
/// chosen `file` and `path`, so the server's own paths are always included.
fn paths(asked: &PermissionAsked, file: Option<String>, path: Option<String>, root: &str) -> Option<Vec<String>> {
    let said = asked.metadata["filepath"].as_str().map(str::to_owned);
    let directories = asked.metadata["directories"].as_array().into_iter().flatten();
    let directories: Vec<String> = directories.filter_map(|one| one.as_str()).map(str::to_owned).collect();
    let named = match asked.permission.as_str() {
        // A patch of several files; `filepath` is one text with all of them.
        "edit" if asked.metadata["files"].is_array() => patched(asked),
        "edit" | "read" => said.or(file).into_iter().chain(asked.patterns.iter().cloned()).collect(),
        "external_directory" if said.is_some() => said.into_iter().collect(),
        "external_directory" if !directories.is_empty() => directories,
        "external_directory" => asked.patterns.clone(),
        "glob" => {
            let beginnings =
                asked.patterns.iter().filter_map(|pattern| permission::beginning(pattern, path.as_deref()));
            let beginnings: Vec<String> = beginnings.collect();
            path.into_iter().chain(beginnings).collect()
        }
        "grep" | "list" => path.into_iter().collect(),
        _ => Vec::new(),
    };
    if named.iter().any(|path| path.len() > MAX_PATH) {
        return None;
    }
    let mut seen = HashSet::new();
    let absolute = named.into_iter().map(|path| permission::absolute(&path, root).unwrap_or(path));
    let paths: Vec<String> = absolute.filter(|path| seen.insert(path.clone())).collect();
    (paths.len() <= MAX_PATHS).then_some(paths)
}

/// Returns every file that a patch touches, and the targets of its moves.
fn patched(asked: &PermissionAsked) -> Vec<String> {
    let files = asked.metadata["files"].as_array().into_iter().flatten();
    let named = files.flat_map(|file| ["filePath", "movePath"].map(|key| text(file, key).to_owned()));
    named.chain(asked.patterns.iter().cloned()).filter(|path| !path.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_in_both_forms() {
        let texts = ["Which?".to_owned(), "And?".to_owned()];
        let by_text = json!({ "answers": { "And?": ["x", "y"], "Which?": "B" } });
        assert_eq!(answers(&by_text, &texts), Some(json!([["B"], ["x", "y"]])));
        assert_eq!(answers(&json!({ "answers": [["B"], []] }), &texts), Some(json!([["B"], []])));
        assert_eq!(answers(&json!({ "answers": [1] }), &texts), None);
        assert_eq!(answers(&json!({}), &texts), None);
    }

    #[test]
    fn a_patch_is_about_each_of_its_files() {
        let asked = json!({
            "id": "per_1", "sessionID": "ses_1", "permission": "edit", "patterns": ["a", ".env"],
            "metadata": { "filepath": "a, .env", "files": [
                { "filePath": "/w/a", "movePath": "/etc/a", "type": "move" },
                { "filePath": "/w/.env", "type": "update" },
            ] },
        });
        let asked: PermissionAsked = serde_json::from_value(asked).expect("parses");
        let all = paths(&asked, Some("a, .env".to_owned()), None, "/w").expect("few");
        for path in ["/w/a", "/etc/a", "/w/.env"] {
            assert!(all.contains(&path.to_owned()), "{all:?}");
        }
        assert!(!all.iter().any(|path| path.contains(',')), "{all:?}");
    }

    #[test]
    fn a_search_is_about_where_it_begins() {
        let paths_of = |permission: &str, pattern: &str, path: Option<&str>| {
            let asked = json!({ "id": "per_1", "sessionID": "ses_1", "permission": permission, "patterns": [pattern] });
            let asked: PermissionAsked = serde_json::from_value(asked).expect("parses");
            paths(&asked, None, path.map(str::to_owned), "/w").expect("few")
        };
        assert_eq!(paths_of("glob", "/etc/**", None), ["/etc"]);
        assert_eq!(paths_of("glob", "../*", Some("d")), ["/w/d", "/w"]);
        assert_eq!(paths_of("glob", "~/*", None), ["~"], "nobody knows where that is");
        assert_eq!(paths_of("grep", "/etc/.*", Some("d")), ["/w/d"]);
    }
}
