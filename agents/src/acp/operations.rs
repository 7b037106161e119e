//! Operations: requests to the agent other than prompts, and the meaning of their answers.

use ipc_protocol::{Json, Operation, WireError, message::RequestId};
use serde_json::{Value, json};

use super::{
    errors,
    gemini::LookupPurpose,
    listing::ConversationPages,
    offer::AcpSetting,
    session::AcpSession,
    state::{AcpActivity, AcpOperationRequest, AcpPurpose, AcpState},
    wire::{self, AcpResponse},
};
use crate::{Action, Adapter as _, Result, kit::bounds};

/// Most operations that wait for the agent.
const MAX_WAITING: usize = 256;

/// Message of the agent's own protocol, as an operation gives it.
#[derive(Debug, PartialEq)]
pub(super) struct NativeRequest {
    pub(super) method: String,
    pub(super) params: Value,
    /// True for `"id": null`: no answer is expected.
    pub(super) is_notification: bool,
}

impl NativeRequest {
    pub(super) fn parse(message: &Json) -> Result<Self> {
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

impl AcpSession {
    /// Sends the request of an operation.
    pub(super) fn send_operation(
        &mut self,
        operation: RequestId,
        wanted: &Operation,
        out: &mut Vec<Action>,
    ) -> Result<()> {
        let AcpState::Ready { session, activity } = &self.state else {
            return Err(self.unsupported(&format!("{}: its session is not ready, or over", wanted.describe())));
        };
        let waiting = self.peer.pending.count(|purpose| matches!(purpose, AcpPurpose::Operation(..)));
        if waiting + self.lookups.len() >= MAX_WAITING {
            return Err(WireError::Busy);
        }
        let (session, is_idle) = (session.clone(), matches!(activity, AcpActivity::Idle));
        let (method, params, asked) = match wanted {
            Operation::SetModel { model } => {
                return self.operate_setting(operation, AcpSetting::Model(model.clone()), &session, out);
            }
            Operation::SetMode { mode } => {
                return self.operate_setting(operation, AcpSetting::Mode(mode.clone()), &session, out);
            }
            Operation::SetThinking { level } => {
                return self.operate_setting(operation, AcpSetting::Thinking(level.clone()), &session, out);
            }
            Operation::Compact | Operation::CompactWith { .. } => {
                let command = self.offer.compact(self.compact_command.as_deref()).map(|command| command.into_owned());
                let mut command = command.ok_or_else(|| self.unsupported(&Operation::Compact.describe()))?;
                if let Operation::CompactWith { instructions } = wanted {
                    if !self.offer.takes_input(&command) {
                        let operation = format!("{}: its command {command} takes none", wanted.describe());
                        return Err(self.unsupported(&operation));
                    }
                    command.push(' ');
                    command.push_str(instructions);
                }
                if !is_idle {
                    return Err(WireError::Busy);
                }
                self.send_blocks(&session, &[command.into()], AcpPurpose::Compact, out);
                let activity = AcpActivity::Compacting { operation, said: String::new() };
                self.state = AcpState::Ready { session, activity };
                return Ok(());
            }
            Operation::GetState => {
                out.push(Action::Reply { request: operation, reply: Ok(bounds::json(&self.offer.state(&session))) });
                return Ok(());
            }
            Operation::ListChoices => {
                out.push(Action::Reply { request: operation, reply: Ok(self.offer.choices().to_json()) });
                return Ok(());
            }
            Operation::ListSessions if self.offer.capabilities.session_capabilities.list.is_some() => {
                let params = json!(ConversationPages::request(self.cwd(), None));
                ("session/list".to_owned(), params, AcpOperationRequest::List(ConversationPages::default()))
            }
            Operation::ListSessions if self.offer.quirks.keeps_files && self.home.is_some() => {
                self.start_lookup(LookupPurpose::List(operation), out);
                return Ok(());
            }
            Operation::ListSessions | Operation::GetMessages => return Err(self.unsupported(&wanted.describe())),
            Operation::Native { message } => {
                let NativeRequest { method, params, is_notification } = NativeRequest::parse(message)?;
                if is_notification {
                    wire::RPC.notify(&method, Some(params), out);
                    out.push(Action::Reply { request: operation, reply: Ok(Json::null()) });
                    return Ok(());
                }
                (method, params, AcpOperationRequest::Native)
            }
        };
        self.peer.request(&method, Some(params), AcpPurpose::Operation(operation, asked), out);
        Ok(())
    }

    fn operate_setting(
        &mut self,
        operation: RequestId,
        setting: AcpSetting,
        session: &str,
        out: &mut Vec<Action>,
    ) -> Result<()> {
        match self.offer.request(&setting).map_err(|operation| self.unsupported(&operation))? {
            None => out.push(Action::Reply { request: operation, reply: Ok(Json::null()) }),
            Some(asked) => {
                let purpose = AcpPurpose::Operation(operation, AcpOperationRequest::Set(setting, asked.clone()));
                self.set(session, &asked, purpose, out);
            }
        }
        Ok(())
    }

    /// Handles the agent's answer to an operation's request.
    pub(super) fn operated(
        &mut self,
        operation: RequestId,
        asked: AcpOperationRequest,
        answer: AcpResponse<'_>,
        line: &[u8],
        out: &mut Vec<Action>,
    ) {
        let refused = |reason: String| WireError::AgentRefused { agent: self.agent.clone(), reason };
        let reply = match (asked, answer) {
            // The caller checks whether the answer is an error.
            (AcpOperationRequest::Native, _) => Ok(bounds::json(&serde_json::from_slice(line).unwrap_or_default())),
            (AcpOperationRequest::Set(setting, _), Err(error)) => {
                Err(refused(format!("to {}: {}", setting.describe(), errors::describe(&error))))
            }
            (AcpOperationRequest::Set(setting, asked), Ok(result)) => {
                self.offer.record_set(&asked);
                self.offer.record_answer(result);
                self.offer.emit_set(&setting, out);
                Ok(Json::null())
            }
            (AcpOperationRequest::List(_), Err(error)) => Err(refused(errors::describe(&error))),
            (AcpOperationRequest::List(mut list), Ok(result)) => match list.page(result) {
                Ok(Some(cursor)) => {
                    let params = ConversationPages::request(self.cwd(), Some(cursor));
                    let purpose = AcpPurpose::Operation(operation, AcpOperationRequest::List(list));
                    return self.peer.request("session/list", Some(params), purpose, out);
                }
                Ok(None) => Ok(list.reply(self.cwd())),
                Err(reason) => Err(WireError::AgentProtocol { agent: self.agent.clone(), reason }),
            },
        };
        out.push(Action::Reply { request: operation, reply });
    }

    /// Handles the answer to the prompt that compacts the conversation.
    pub(super) fn compacted(&self, operation: RequestId, said: String, answer: AcpResponse<'_>, out: &mut Vec<Action>) {
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
        let parse = |text: &str| NativeRequest::parse(&Json::new(text).expect("JSON"));
        let native = parse(r#"{"method":"a/b","params":{"x":1},"id":7}"#).expect("a message");
        assert_eq!((native.method.as_str(), native.params, native.is_notification), ("a/b", json!({"x": 1}), false));
        assert!(parse(r#"{"method":"a","id":null}"#).is_ok_and(|native| native.is_notification));
        for text in ["[]", "{}", r#"{"method":1}"#, "null"] {
            assert!(matches!(parse(text), Err(WireError::Protocol { .. })), "{text}");
        }
    }
}
