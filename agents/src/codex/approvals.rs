//! Permission requests, questions, and forms of MCP servers.
//!
//! Each option holds the complete answer, so that answering is the same for every kind of request.

use ipc_protocol::{Json, PermissionAnswer, PermissionOptionKind as Kind, PermissionRequest, ResolvedBy, WireError};
use serde_json::{Value, json, value::RawValue};

use super::{
    items::{self, CodexToolCalls},
    wire,
};
use crate::{
    Action, Result,
    kit::bounds::{self, MAX_ID, title},
    permission::{AnswerChoice, OpenRequests, PreparedOption, plain_request},
};

/// Most options of a request.
const MAX_OPTIONS: usize = 64;

/// Handling of an answer with input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InputForm {
    /// Such an answer is refused.
    None,
    /// The input is the complete answer.
    Whole,
    /// The input is the content of a form.
    Content,
}

/// Data that answering a request needs.
#[derive(Debug)]
struct CodexReplyTo {
    agent_id: Box<RawValue>,
    thread: String,
    turn: Option<String>,
    /// Answer of each option, in the order of the options.
    answers: Vec<Value>,
    cancelled: Value,
    input: InputForm,
}

/// Request with its answers.
struct ApprovalPrompt {
    request: PermissionRequest,
    choices: Vec<PreparedOption>,
    cancelled: Value,
    input: InputForm,
}

/// Reason of a denial, which is sent to the model separately from the answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RefusalReason {
    pub(super) thread: String,
    pub(super) turn: String,
    pub(super) message: String,
}

/// Open requests of the session.
#[derive(Debug, Default)]
pub(super) struct CodexApprovals(OpenRequests<CodexReplyTo>);

impl CodexApprovals {
    /// Opens a request of the agent, or returns the reason why it is refused.
    pub(super) fn ask(
        &mut self,
        agent_id: &RawValue,
        method: &str,
        params: &Value,
        calls: &CodexToolCalls,
        parent: Option<&str>,
        out: &mut Vec<Action>,
    ) -> Result<(), &'static str> {
        let asked = match method {
            "item/commandExecution/requestApproval" => command(params),
            "item/fileChange/requestApproval" => file_change(params, calls),
            "item/permissions/requestApproval" => permissions(params),
            "item/tool/requestUserInput" => questions(params),
            "mcpServer/elicitation/request" => elicitation(params, calls),
            _ => return Err("not supported by this client"),
        };
        let ApprovalPrompt { mut request, choices, cancelled, input } = asked;
        let texts = [agent_id.get(), text(params, "threadId"), text(params, "turnId"), text(params, "itemId")];
        if texts.iter().any(|id| id.len() > MAX_ID) {
            return Err("an id of more than 1024 bytes");
        }
        if self.0.is_full() || choices.len() > MAX_OPTIONS {
            return Err("too many open requests, or too many options");
        }
        let answers;
        (request.options, answers) =
            choices.into_iter().map(|PreparedOption { option, answer }| (option, answer)).unzip();
        request.parent = parent.map(str::to_owned);
        request.tool_call_id = request.tool_call_id.or_else(|| params["itemId"].as_str().map(str::to_owned));
        let about = CodexReplyTo {
            agent_id: agent_id.to_owned(),
            thread: text(params, "threadId").to_owned(),
            turn: params["turnId"].as_str().map(str::to_owned),
            answers,
            cancelled,
            input,
        };
        self.0.ask(request, about, out);
        Ok(())
    }

    /// Answers the request `id`. Codex takes no reason with an answer: the caller sends the returned reason to the model afterwards.
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
    ) -> Result<Option<RefusalReason>> {
        let open = self.0.get(id)?;
        let about = &open.context;
        let reason = match (answer, &about.turn) {
            (PermissionAnswer::DenyWith { message }, Some(turn)) => {
                Some(RefusalReason { thread: about.thread.clone(), turn: turn.clone(), message: message.clone() })
            }
            (PermissionAnswer::DenyWith { .. }, None) => {
                return Err(unsupported(agent, "be told a reason outside a turn"));
            }
            _ => None,
        };
        // The answer cannot contain a reason.
        let plain = if reason.is_some() { &PermissionAnswer::Deny } else { answer };
        let (option, value) = match (open.choose(plain, &by)?, answer) {
            (AnswerChoice::Option(at), _) => (open.option(at), about.answers[at].clone()),
            (AnswerChoice::More, PermissionAnswer::AllowWith { input }) => {
                (None, with_input(about.input, agent, input)?)
            }
            (AnswerChoice::More | AnswerChoice::Cancelled, _) => (None, about.cancelled.clone()),
        };
        let reply = |about: CodexReplyTo, out: &mut Vec<Action>| wire::RPC.reply(&about.agent_id, &value, out);
        self.0.resolve(id, option, by, reply, out);
        Ok(reason)
    }

    /// Closes a request that the agent no longer waits for.
    pub(super) fn resolved(&mut self, agent_id: &Value, out: &mut Vec<Action>) {
        let text = agent_id.to_string();
        self.0.close(&ResolvedBy::Agent, |about| about.agent_id.get() == text, |_, _| {}, out);
    }

    /// Answers all open requests with a cancellation, since the turn is being interrupted.
    pub(super) fn cancel_all(&mut self, out: &mut Vec<Action>) {
        let cancelled =
            |about: CodexReplyTo, out: &mut Vec<Action>| wire::RPC.reply(&about.agent_id, &about.cancelled, out);
        self.0.close(&ResolvedBy::Abort, |_| true, cancelled, out);
    }

    /// Closes the requests of `thread`, since its turn has ended and no answer is awaited.
    pub(super) fn close_thread(&mut self, thread: &str, out: &mut Vec<Action>) {
        self.0.close(&ResolvedBy::Abort, |about| about.thread == thread, |_, _| {}, out);
    }

    /// Closes all open requests, since the agent has ended.
    pub(super) fn close_all(&mut self, out: &mut Vec<Action>) {
        self.0.close_all(&ResolvedBy::Agent, out);
    }
}

fn with_input(place: InputForm, agent: &str, input: &Json) -> Result<Value> {
    match place {
        InputForm::None => Err(unsupported(agent, "take another input with its permission")),
        InputForm::Whole => Ok(input.value()),
        InputForm::Content => Ok(json!({ "action": "accept", "content": input.value(), "_meta": null })),
    }
}

fn unsupported(agent: &str, operation: &str) -> WireError {
    WireError::Unsupported { agent: agent.to_owned(), operation: operation.to_owned() }
}

fn text<'a>(params: &'a Value, key: &str) -> &'a str {
    params[key].as_str().unwrap_or_default()
}

fn decision(id: &str, name: &str, kind: Kind) -> PreparedOption {
    PreparedOption::new(id, name, kind, json!({ "decision": id }))
}

/// Returns the decisions on a command or a change. Codex accepts all four, whatever it proposes.
fn decisions() -> Vec<PreparedOption> {
    vec![
        decision("accept", "Yes", Kind::AllowOnce),
        decision("acceptForSession", "Yes, for the whole session", Kind::AllowAlways),
        decision("decline", "No, and go on", Kind::RejectOnce),
        decision("cancel", "No, and interrupt the turn", Kind::Other),
    ]
}

fn request(tool: &str, kind: &str, title: &str, input: &Value) -> PermissionRequest {
    plain_request(tool, kind, self::title(title), bounds::json(input))
}

fn command(params: &Value) -> ApprovalPrompt {
    let mut choices = decisions();
    let proposed = params["availableDecisions"].as_array().map(Vec::as_slice).unwrap_or_default();
    // Proposed decisions that are objects change the rules of later sessions too.
    choices.extend(proposed.iter().filter_map(amendment).take(MAX_OPTIONS - choices.len()));
    let host = &params["networkApprovalContext"]["host"];
    let command = params["command"].as_str().map(items::script);
    let reason = params["reason"].as_str();
    let (tool, mut kinds, title) = match (host.as_str(), text(params, "kind")) {
        (Some(host), _) => ("network", vec!["fetch"], format!("connect to {host}")),
        (None, "writeStdin") => {
            ("writeStdin", vec!["execute"], reason.unwrap_or("write to a running command").to_owned())
        }
        _ => {
            let title = command.as_deref().or(reason).unwrap_or("run a command").to_owned();
            ("commandExecution", vec!["execute"], title)
        }
    };
    if command.is_some() && !kinds.contains(&"execute") {
        kinds.push("execute");
    }
    // Permissions of the command beyond its sandbox are granted with it.
    let (more, paths) = permitted(&params["additionalPermissions"]);
    kinds.extend(more.into_iter().filter(|kind| host.is_null() || *kind != "fetch"));
    ApprovalPrompt {
        request: PermissionRequest { command, paths, ..request(tool, &kinds.join("+"), &title, params) },
        choices,
        cancelled: json!({ "decision": "cancel" }),
        input: InputForm::None,
    }
}

fn amendment(decision: &Value) -> Option<PreparedOption> {
    let (id, detail) = decision.as_object()?.iter().next()?;
    let answer = json!({ "decision": decision });
    let network = &detail["network_policy_amendment"];
    if let Some(host) = network["host"].as_str() {
        let (word, kind) = match network["action"].as_str()? {
            "deny" => ("never", Kind::RejectAlways),
            _ => ("always", Kind::AllowAlways),
        };
        return Some(PreparedOption::new(&format!("{id}:{word}"), &format!("{word} connect to {host}"), kind, answer));
    }
    let prefix =
        detail["execpolicy_amendment"].as_array()?.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ");
    Some(PreparedOption::new(id, &format!("Yes, and always what begins with {prefix}"), Kind::AllowAlways, answer))
}

fn file_change(params: &Value, calls: &CodexToolCalls) -> ApprovalPrompt {
    let tool = calls.tool(text(params, "itemId"));
    let (title, kind, input, paths) = match tool {
        Some(tool) => (tool.title.clone(), tool.kind, tool.input.clone(), tool.paths.clone()),
        // The files are unknown: see `permitted`.
        None => (String::new(), "edit", params.clone(), vec!["unknown://change".to_owned()]),
    };
    let paths = paths.into_iter().chain(params["grantRoot"].as_str().map(str::to_owned)).collect();
    let title = if title.is_empty() { "change files".to_owned() } else { format!("{kind} {title}") };
    ApprovalPrompt {
        request: PermissionRequest { paths, ..request("fileChange", kind, &title, &input) },
        choices: decisions(),
        cancelled: json!({ "decision": "cancel" }),
        input: InputForm::None,
    }
}

fn permissions(params: &Value) -> ApprovalPrompt {
    let granted = |scope: &str| {
        let asked = params["permissions"].as_object().cloned().unwrap_or_default();
        let given: serde_json::Map<_, _> = asked.into_iter().filter(|(_, value)| !value.is_null()).collect();
        json!({ "permissions": given, "scope": scope })
    };
    let none = json!({ "permissions": {}, "scope": "turn" });
    let (kinds, paths) = permitted(&params["permissions"]);
    let kind = if kinds.is_empty() { "other".to_owned() } else { kinds.join("+") };
    let title = params["reason"].as_str().unwrap_or("more permissions");
    ApprovalPrompt {
        request: PermissionRequest { paths, ..request("requestPermissions", &kind, title, &params["permissions"]) },
        choices: vec![
            PreparedOption::new("accept", "Yes, for this turn", Kind::AllowOnce, granted("turn")),
            PreparedOption::new(
                "acceptForSession",
                "Yes, for the whole session",
                Kind::AllowAlways,
                granted("session"),
            ),
            PreparedOption::new("decline", "No", Kind::RejectOnce, none.clone()),
        ],
        cancelled: none,
        input: InputForm::Whole,
    }
}

/// Returns the kinds of access that `permissions` would open (`fetch` for the network, `other` for anything else), and the files'
/// paths. One answer grants all of it. So anything else in it, and anything not understood, is represented by an unknown path: no rule
/// on paths allows an unknown path, and every rule that denies paths matches it.
fn permitted(permissions: &Value) -> (Vec<&'static str>, Vec<String>) {
    let unknown = |what: &str| format!("unknown://{what}");
    let asked: Vec<_> = permissions.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()).collect();
    let mut paths = Vec::new();
    for (key, files) in permissions["fileSystem"].as_object().into_iter().flatten() {
        match (key.as_str(), files) {
            // Depth to which a glob in the entries is followed.
            (_, Value::Null) | ("globScanMaxDepth", _) => {}
            ("read" | "write" | "entries", Value::Array(all)) => paths.extend(all.iter().map(|one| {
                let path = match (&one["path"], key.as_str()) {
                    (place, "entries") if place["type"] == "path" => place["path"].as_str(),
                    (place, "entries") => place.as_str(),
                    _ => one.as_str(),
                };
                path.map_or_else(|| unknown(key), str::to_owned)
            })),
            _ => paths.push(unknown(key)),
        }
    }
    for (key, value) in &asked {
        match (key.as_str(), value) {
            ("fileSystem", Value::Object(_)) => {}
            // Network access alone concerns no files.
            ("network", _) if paths.is_empty() => {}
            _ => paths.push(unknown(key)),
        }
    }
    if !permissions.is_object() && !permissions.is_null() {
        return (vec!["other"], vec![unknown("permissions")]);
    }
    let mut kinds: Vec<_> = asked.iter().map(|(key, _)| if *key == "network" { "fetch" } else { "other" }).collect();
    kinds.sort_unstable();
    kinds.dedup();
    (kinds, paths)
}

/// Makes the request for questions. A single question has its answers as options. Several questions are answered with input:
/// `{"answers": {ID: {"answers": ["…"]}}}`.
fn questions(params: &Value) -> ApprovalPrompt {
    let none = json!({ "answers": {} });
    let questions = params["questions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut choices = Vec::new();
    if let [question] = questions {
        let labels = question["options"].as_array().into_iter().flatten().filter_map(|option| option["label"].as_str());
        let id = text(question, "id");
        choices.extend(labels.filter(|label| label.len() <= MAX_ID).take(MAX_OPTIONS - 1).map(|label| {
            let answer = json!({ "answers": { id: { "answers": [label] } } });
            PreparedOption::new(label, label, Kind::Other, answer)
        }));
    }
    choices.push(PreparedOption::new("skip", "No answer", Kind::RejectOnce, none.clone()));
    let title = questions.iter().map(|question| text(question, "question")).collect::<Vec<_>>().join(" / ");
    ApprovalPrompt {
        request: request("requestUserInput", "question", &title, &params["questions"]),
        choices,
        cancelled: none,
        input: InputForm::Whole,
    }
}

fn elicitation(params: &Value, calls: &CodexToolCalls) -> ApprovalPrompt {
    let meta = &params["_meta"];
    let answer =
        |action: &str, content: Value, meta: Value| json!({ "action": action, "content": content, "_meta": meta });
    let none = answer("cancel", Value::Null, Value::Null);
    let decline =
        || PreparedOption::new("decline", "No", Kind::RejectOnce, answer("decline", Value::Null, Value::Null));
    let accept =
        |id: &str, name: &str, kind, meta| PreparedOption::new(id, name, kind, answer("accept", json!({}), meta));
    let message = text(params, "message");
    if meta["codex_approval_kind"] == "mcp_tool_call" {
        let mut choices = vec![accept("accept", "Yes", Kind::AllowOnce, Value::Null)];
        let persist = meta["persist"].as_array().into_iter().flatten().filter_map(Value::as_str);
        choices.extend(persist.filter(|word| word.len() <= MAX_ID).take(4).map(|word| {
            let meta = json!({ "persist": word });
            accept(&format!("accept:{word}"), &format!("Yes, and do not ask again ({word})"), Kind::AllowAlways, meta)
        }));
        choices.push(decline());
        let tool = items::mcp_tool(text(params, "serverName"), text(meta, "tool_name"));
        let request = request(&tool, "other", message, &meta["tool_params"]);
        // The request does not name its call.
        let tool_call_id = calls.latest(&tool).map(str::to_owned);
        return ApprovalPrompt {
            request: PermissionRequest { tool_call_id, ..request },
            choices,
            cancelled: none,
            input: InputForm::None,
        };
    }
    // A form with fields cannot be accepted without their values.
    let empty = params["requestedSchema"]["properties"].as_object().is_none_or(serde_json::Map::is_empty);
    let mut choices = vec![decline()];
    if empty {
        choices.insert(0, accept("accept", "Yes", Kind::AllowOnce, Value::Null));
    }
    let title = [text(params, "serverName"), message].join(": ");
    ApprovalPrompt {
        request: request("elicitation", "question", &title, params),
        choices,
        cancelled: none,
        input: InputForm::Content,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_granted_is_among_the_paths() {
        let entry = |path: Value| json!({ "fileSystem": { "entries": [{ "path": path, "access": "write" }] } });
        for (permissions, paths) in [
            (
                json!({ "fileSystem": { "read": ["/a"], "write": ["/b"], "entries": null }, "network": null }),
                vec!["/a", "/b"],
            ),
            (entry(json!("/etc")), vec!["/etc"]),
            (entry(json!({ "type": "path", "path": "/etc" })), vec!["/etc"]),
            (entry(json!({ "type": "glob_pattern", "pattern": "/src/*" })), vec!["unknown://entries"]),
            (
                entry(json!({ "type": "special", "value": { "kind": "root" }, "path": "/src" })),
                vec!["unknown://entries"],
            ),
            (json!({ "fileSystem": { "read": [7] } }), vec!["unknown://read"]),
            (json!({ "fileSystem": { "read": "/a", "more": ["/b"] } }), vec!["unknown://more", "unknown://read"]),
            (json!({ "fileSystem": { "read": ["/a"], "globScanMaxDepth": 3 } }), vec!["/a"]),
            (
                json!({ "fileSystem": { "read": ["/a"] }, "network": { "enabled": true } }),
                vec!["/a", "unknown://network"],
            ),
            (json!({ "network": { "enabled": true } }), vec![]),
            (json!({ "fileSystem": "all" }), vec!["unknown://fileSystem"]),
            (json!({ "later": {} }), vec!["unknown://later"]),
            (json!("all"), vec!["unknown://permissions"]),
        ] {
            let (_, mut found) = permitted(&permissions);
            found.sort();
            assert_eq!(found, paths, "{permissions}");
        }
    }

    #[test]
    fn each_kind_of_what_would_be_granted_is_said() {
        let (files, network) = (json!({ "write": ["/a"] }), json!({ "enabled": true }));
        for (asked, kind) in [
            (json!({ "network": network }), "fetch"),
            (json!({ "fileSystem": files, "network": null }), "other"),
            (json!({ "fileSystem": files, "network": network }), "fetch+other"),
            (json!({ "later": {}, "fileSystem": files, "network": network }), "fetch+other"),
            (json!({}), "other"),
        ] {
            assert_eq!(permissions(&json!({ "permissions": asked })).request.kind, kind, "{asked}");
        }
        let host = json!({ "host": "a.example" });
        for (params, kind) in [
            (json!({ "command": "ls" }), "execute"),
            (json!({ "networkApprovalContext": host }), "fetch"),
            (json!({ "networkApprovalContext": host, "command": "ls" }), "fetch+execute"),
            (json!({ "command": "ls", "additionalPermissions": null }), "execute"),
            (json!({ "command": "ls", "additionalPermissions": { "network": network } }), "execute+fetch"),
            (
                json!({ "command": "ls", "additionalPermissions": { "network": network, "fileSystem": files } }),
                "execute+fetch+other",
            ),
            (json!({ "networkApprovalContext": host, "additionalPermissions": { "network": network } }), "fetch"),
        ] {
            assert_eq!(command(&params).request.kind, kind, "{params}");
        }
        let beside = command(&json!({ "command": "ls", "additionalPermissions": { "fileSystem": files } })).request;
        assert_eq!(beside.paths, ["/a"]);
    }

    #[test]
    fn a_change_of_which_nothing_is_known_has_a_path_of_which_nothing_is() {
        let asked = file_change(&json!({ "itemId": "c", "grantRoot": "/src" }), &CodexToolCalls::default());
        assert_eq!(asked.request.paths, ["unknown://change", "/src"]);
    }
}
