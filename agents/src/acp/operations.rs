//! Operations: requests to the agent other than prompts, and the meaning of their answers.

use agent_client_protocol_schema::v1::{ListSessionsRequest, ListSessionsResponse};
use ipc_protocol::{Json, Operation, WireError, message::RequestId};
use serde_json::{Value, json};

use super::{
    errors,
    gemini::Wanted,
    offer::{self, Setting},
    session::{Activity, Session, State},
    wire::{self, Answer},
};
use crate::Action;

/// Most operations that wait for the agent.
const MAX_WAITING: usize = 256;
/// Most conversations in a reply.
const MAX_SESSIONS: usize = 1000;
/// Most pages that are requested of them.
const MAX_PAGES: u32 = 20;

/// Request that an answer belongs to.
#[derive(Debug)]
pub(super) enum Asked {
    Set(Setting, offer::Request),
    /// Page of the conversation list, with the pages before it.
    List(List),
    Native,
}

/// An operation that waits for the agent.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) operation: RequestId,
    /// Id of the request to the agent.
    pub(super) id: i64,
    pub(super) asked: Asked,
}

/// Conversations of the agent, as far as they have arrived.
#[derive(Debug, Default)]
pub(super) struct List {
    found: Vec<Found>,
    pages: u32,
}

#[derive(Debug)]
struct Found {
    id: String,
    title: Option<String>,
    updated_at: Option<String>,
    cwd: String,
}

impl List {
    /// Makes the request for the next page. `cursor` is the one of the page before.
    pub(super) fn request(cwd: &str, cursor: Option<String>) -> ListSessionsRequest {
        ListSessionsRequest::new().cwd(std::path::PathBuf::from(cwd)).cursor(cursor)
    }

    /// Adds a page. Returns the cursor of the next page, if there is one.
    pub(super) fn page(&mut self, result: &str) -> Result<Option<String>, String> {
        let page: ListSessionsResponse = serde_json::from_str(result)
            .map_err(|error| format!("its list of conversations does not parse: {error}"))?;
        self.pages += 1;
        let found = page.sessions.into_iter().map(|session| Found {
            id: session.session_id.0.as_ref().to_owned(),
            title: session.title,
            updated_at: session.updated_at,
            cwd: session.cwd.to_string_lossy().into_owned(),
        });
        self.found.extend(found);
        self.found.truncate(MAX_SESSIONS);
        Ok(page.next_cursor.filter(|_| self.pages < MAX_PAGES && self.found.len() < MAX_SESSIONS))
    }

    /// Returns the conversations of `cwd`, newest first. (One agent writes all its times in one form.)
    fn sorted(mut self, cwd: &str) -> Vec<Found> {
        // An agent that ignores the directory lists all conversations. An agent that filters may use another path for it.
        if self.found.iter().any(|found| found.cwd == cwd) {
            self.found.retain(|found| found.cwd == cwd);
        }
        self.found.sort_by(|a, b| b.updated_at.cmp(&a.updated_at));
        self.found
    }

    /// Returns the id of the conversation that was used last.
    pub(super) fn most_recent(self, cwd: &str) -> Option<String> {
        self.sorted(cwd).into_iter().next().map(|found| found.id)
    }

    pub(super) fn reply(self, cwd: &str) -> Json {
        let session = |found: Found| json!({"id": found.id, "title": found.title, "updatedAt": found.updated_at, "cwd": found.cwd});
        Json::from(&Value::from(self.sorted(cwd).into_iter().map(session).collect::<Vec<_>>()))
    }
}

/// Message of the agent's own protocol, as an operation gives it.
#[derive(Debug, PartialEq)]
pub(super) struct Native {
    pub(super) method: String,
    pub(super) params: Value,
    /// True for `"id": null`: no answer is expected.
    pub(super) is_notification: bool,
}

impl Native {
    pub(super) fn parse(message: &Json) -> Result<Self, WireError> {
        let wrong = || WireError::Protocol {
            reason: r#"a native message of ACP is {"method": …, "params": …}; with "id": null it is a notification"#
                .to_owned(),
        };
        let Value::Object(mut message) = message.value() else { return Err(wrong()) };
        let Some(Value::String(method)) = message.remove("method") else { return Err(wrong()) };
        let params = message.remove("params").unwrap_or_else(|| json!({}));
        Ok(Self { method, params, is_notification: message.get("id") == Some(&Value::Null) })
    }
}

impl Session {
    /// Starts an operation.
    pub(super) fn operate(
        &mut self,
        operation: RequestId,
        wanted: &Operation,
        out: &mut Vec<Action>,
    ) -> Result<(), WireError> {
        let State::Ready { session, activity } = &self.state else {
            return Err(self.unsupported(&format!("{}: its session is not ready, or over", wanted.describe())));
        };
        if self.waiting.len() + self.looks.len() >= MAX_WAITING {
            return Err(WireError::Busy);
        }
        let (session, is_idle) = (session.clone(), matches!(activity, Activity::Idle));
        let (id, asked) = match wanted {
            Operation::SetModel { model } => {
                return self.operate_setting(operation, Setting::Model(model.clone()), &session, out);
            }
            Operation::SetMode { mode } => {
                return self.operate_setting(operation, Setting::Mode(mode.clone()), &session, out);
            }
            Operation::SetThinking { level } => {
                return self.operate_setting(operation, Setting::Thinking(level.clone()), &session, out);
            }
            Operation::Compact => {
                let command = self.offer.compact(self.compact_command.as_deref()).map(|command| command.into_owned());
                let command = command.ok_or_else(|| self.unsupported(&wanted.describe()))?;
                if !is_idle {
                    return Err(WireError::Busy);
                }
                let request = self.send_blocks(&session, &[command.into()], out);
                let activity = Activity::Compacting { request, operation, said: String::new() };
                self.state = State::Ready { session, activity };
                return Ok(());
            }
            Operation::GetState => {
                out.push(Action::Reply {
                    request: operation,
                    reply: Ok(crate::jsonl::json(&self.offer.state(&session))),
                });
                return Ok(());
            }
            Operation::ListSessions if self.offer.capabilities.session_capabilities.list.is_some() => {
                let params = List::request(self.cwd(), None);
                (self.request("session/list", params, out), Asked::List(List::default()))
            }
            Operation::ListSessions if self.offer.quirks.keeps_files && self.home.is_some() => {
                self.look(Wanted::Tell(operation), out);
                return Ok(());
            }
            Operation::ListSessions | Operation::GetMessages => return Err(self.unsupported(&wanted.describe())),
            Operation::Native { message } => {
                let Native { method, params, is_notification } = Native::parse(message)?;
                if is_notification {
                    wire::call(None, &method, params, out);
                    out.push(Action::Reply { request: operation, reply: Ok(Json::null()) });
                    return Ok(());
                }
                (self.request(&method, params, out), Asked::Native)
            }
        };
        self.waiting.push(Waiting { operation, id, asked });
        Ok(())
    }

    fn operate_setting(
        &mut self,
        operation: RequestId,
        setting: Setting,
        session: &str,
        out: &mut Vec<Action>,
    ) -> Result<(), WireError> {
        match self.offer.request(&setting).map_err(|operation| self.unsupported(&operation))? {
            None => out.push(Action::Reply { request: operation, reply: Ok(Json::null()) }),
            Some(asked) => {
                let id = self.set(session, &asked, out);
                self.waiting.push(Waiting { operation, id, asked: Asked::Set(setting, asked) });
            }
        }
        Ok(())
    }

    /// Handles the agent's answer to an operation's request.
    pub(super) fn operated(&mut self, waiting: Waiting, answer: Answer<'_>, line: &[u8], out: &mut Vec<Action>) {
        let Waiting { operation, asked, .. } = waiting;
        let refused = |reason: String| WireError::AgentRefused { agent: self.agent.clone(), reason };
        let reply = match (asked, answer) {
            // The caller checks whether the answer is an error.
            (Asked::Native, _) => Ok(crate::jsonl::json(&serde_json::from_slice(line).unwrap_or_default())),
            (Asked::Set(setting, _), Err(error)) => {
                Err(refused(format!("to {}: {}", setting.describe(), errors::describe(&error))))
            }
            (Asked::Set(_, asked), Ok(result)) => {
                self.offer.note_set(&asked);
                self.offer.note_answer(result);
                Ok(Json::null())
            }
            (Asked::List(_), Err(error)) => Err(refused(errors::describe(&error))),
            (Asked::List(mut list), Ok(result)) => match list.page(result) {
                Ok(Some(cursor)) => {
                    let params = List::request(self.cwd(), Some(cursor));
                    let id = self.request("session/list", params, out);
                    self.waiting.push(Waiting { operation, id, asked: Asked::List(list) });
                    return;
                }
                Ok(None) => Ok(list.reply(self.cwd())),
                Err(reason) => Err(WireError::AgentProtocol { agent: self.agent.clone(), reason }),
            },
        };
        out.push(Action::Reply { request: operation, reply });
    }

    /// Handles the answer to the prompt that compacts the conversation.
    pub(super) fn compacted(&self, operation: RequestId, said: String, answer: Answer<'_>, out: &mut Vec<Action>) {
        let reply = match answer {
            Ok(result) => {
                let result: Value = serde_json::from_str(result).unwrap_or_default();
                Ok(Json::from(&json!({ "text": said, "stopReason": result["stopReason"] })))
            }
            Err(error) => Err(WireError::AgentRefused { agent: self.agent.clone(), reason: errors::describe(&error) }),
        };
        out.push(Action::Reply { request: operation, reply });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_native_message_is_a_method_and_its_parameters() {
        let parse = |text: &str| Native::parse(&Json::new(text).expect("JSON"));
        let native = parse(r#"{"method":"a/b","params":{"x":1},"id":7}"#).expect("a message");
        assert_eq!((native.method.as_str(), native.params, native.is_notification), ("a/b", json!({"x": 1}), false));
        assert!(parse(r#"{"method":"a","id":null}"#).is_ok_and(|native| native.is_notification));
        for text in ["[]", "{}", r#"{"method":1}"#, "null"] {
            assert!(matches!(parse(text), Err(WireError::Protocol { .. })), "{text}");
        }
    }

    #[test]
    fn conversations_are_of_the_directory_and_the_newest_comes_first() {
        let session = |id: &str, cwd: &str, at: &str| json!({"sessionId": id, "cwd": cwd, "updatedAt": at});
        let mut list = List::default();
        let first = json!({"sessions": [session("a", "/w", "2026-01-01"), session("x", "/other", "2026-01-09")], "nextCursor": "p"});
        assert_eq!(list.page(&first.to_string()), Ok(Some("p".into())));
        let second =
            json!({"sessions": [session("b", "/w", "2026-01-02"), {"sessionId": "c", "cwd": "/w", "title": "t"}]});
        assert_eq!(list.page(&second.to_string()), Ok(None));
        let reply = list.reply("/w").value();
        let ids: Vec<_> = reply.as_array().expect("an array").iter().map(|session| session["id"].as_str()).collect();
        assert_eq!(ids, [Some("b"), Some("a"), Some("c")]);
        assert_eq!(List::default().most_recent("/w"), None);
        assert!(List::default().page("[").is_err());
    }

    #[test]
    fn an_endless_list_has_an_end() {
        let mut list = List::default();
        let page = json!({"sessions": [], "nextCursor": "again"}).to_string();
        let pages = std::iter::from_fn(|| list.page(&page).expect("a page")).count();
        assert_eq!(pages, 19);
    }
}
