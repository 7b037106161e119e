//! Requests to the server, and those of them that wait for an answer.

use ipc_protocol::message::RequestId;
use serde_json::Value;

use crate::{
    Action, HttpEvent, HttpPatience, HttpRequest,
    kit::{choices::AgentChoices, pending::PendingRequests},
};

/// Longest accepted answer, in bytes.
const MAX_ANSWER: usize = 8 * 1024 * 1024;

/// Paths whose answers are emitted as raw lines. The server's answers about its configuration and providers contain keys.
const RAW_PATHS: &[&str] = &["/agent", "/command", "/permission", "/question", "/session"];

/// Purpose of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OpenCodeRequestPurpose {
    /// Opening of the conversation.
    Open(OpeningStep),
    /// The first prompt of the turn.
    Prompt,
    /// First prompt of this turn, which calls a command of the server.
    Command(u64),
    /// Prompt that steers the turn.
    Steer,
    /// Removal of the last prompt from the conversation, so that it can be sent again.
    Forget,
    /// Abort that ends the turn.
    Abort,
    /// Answer to a permission request or a question.
    Answer,
    /// List of models, for the sizes of their context windows.
    Models,
    /// List of slash commands.
    Commands,
    /// Query of what was missed while the event stream was cut.
    Resync(ResyncStep),
    /// Step of an operation.
    Operation(RequestId, OperationStep),
}

/// Step before the agent is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpeningStep {
    MostRecent,
    Resume,
    Fork,
    Create,
    Permit,
    CheckMode,
    CheckThinking,
    DefaultModel,
}

/// Step of a resync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResyncStep {
    Messages,
    Permissions,
    Questions,
    /// Status query; the number counts the queries before it.
    Status(u8),
}

/// Step of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OperationStep {
    /// The unchanged answer is the reply.
    Raw,
    List,
    Native,
    /// Check that the server has this model.
    Model(String),
    /// Check that the server has this mode.
    Mode(String),
    /// Setting of the mode's rules.
    ModeRules(String),
    /// Check that the model has this thinking level.
    Thinking(String),
    /// Query of the models to choose from, and then of the modes.
    Models,
    /// Query of the modes to choose from, beside these.
    Modes(AgentChoices),
    /// Query of the model that compacts the conversation.
    CompactModel,
    Compact,
}

/// Complete answer: its status and its body, or the reason why there is none.
pub(super) type OpenCodeResponse = Result<(u16, Vec<u8>), String>;

#[derive(Debug)]
struct PendingCall {
    purpose: OpenCodeRequestPurpose,
    what: String,
    status: u16,
    body: Vec<u8>,
    too_long: bool,
}

/// Requests that wait for an answer.
#[derive(Debug, Default)]
pub(super) struct PendingCalls {
    pending: PendingRequests<PendingCall>,
}

impl PendingCalls {
    /// Sends a request whose answer is collected.
    pub(super) fn send(
        &mut self,
        purpose: OpenCodeRequestPurpose,
        method: &'static str,
        path: String,
        body: Option<Vec<u8>>,
        out: &mut Vec<Action>,
    ) {
        let patience = match &purpose {
            OpenCodeRequestPurpose::Operation(_, OperationStep::Compact | OperationStep::Native)
            | OpenCodeRequestPurpose::Command(_) => HttpPatience::Long,
            _ => HttpPatience::Short,
        };
        let what = format!("{method} {}", path.split('?').next().unwrap_or_default());
        let id = self.pending.add(PendingCall { purpose, what, status: 0, body: Vec::new(), too_long: false });
        request(id, method, path, body, patience, out);
    }

    /// Sends a request for a stream and returns its id.
    pub(super) fn stream(&mut self, path: String, out: &mut Vec<Action>) -> u64 {
        let id = self.pending.fresh_id();
        request(id, "GET", path, None, HttpPatience::Stream, out);
        id
    }

    /// Handles an event of request `id`. Returns its purpose, its description and its answer once that is complete.
    pub(super) fn take(
        &mut self,
        id: u64,
        event: HttpEvent<'_>,
    ) -> Option<(OpenCodeRequestPurpose, String, OpenCodeResponse)> {
        let pending = self.pending.get_mut(id)?;
        let answer = match event {
            HttpEvent::Head(status) => {
                pending.status = status;
                return None;
            }
            HttpEvent::Body(bytes) => {
                pending.too_long |= pending.body.len() + bytes.len() > MAX_ANSWER;
                if !pending.too_long {
                    pending.body.extend_from_slice(bytes);
                }
                return None;
            }
            HttpEvent::End if pending.too_long => Err(format!("its answer is longer than {MAX_ANSWER} bytes")),
            HttpEvent::End => Ok((pending.status, std::mem::take(&mut pending.body))),
            HttpEvent::Failed(why) => Err(why.to_owned()),
        };
        let PendingCall { purpose, what, .. } = self.pending.take(id)?;
        Some((purpose, what, answer))
    }

    /// Counts the open requests whose purpose satisfies `is`.
    pub(super) fn count(&self, is: impl Fn(&OpenCodeRequestPurpose) -> bool) -> usize {
        self.pending.count(|pending| is(&pending.purpose))
    }

    /// Removes all requests and returns the operations among them.
    pub(super) fn close(&mut self) -> Vec<RequestId> {
        let of_operation = |pending: PendingCall| match pending.purpose {
            OpenCodeRequestPurpose::Operation(request, _) => Some(request),
            _ => None,
        };
        self.pending.drain().filter_map(of_operation).collect()
    }
}

fn request(
    id: u64,
    method: &'static str,
    path: String,
    body: Option<Vec<u8>>,
    patience: HttpPatience,
    out: &mut Vec<Action>,
) {
    let told = emits_raw(&path);
    out.push(Action::Http(HttpRequest { id, method, path, body, patience, emits_raw: told }));
}

/// Returns whether the answer to a request for `path` may be emitted. A path that can lead elsewhere is excluded.
fn emits_raw(path: &str) -> bool {
    let path = path.split('?').next().unwrap_or_default();
    RAW_PATHS.iter().any(|of| path.starts_with(of)) && !path.contains("..") && !path.contains('%')
}

/// Describes an unsuccessful answer in one line.
pub(super) fn refusal(status: u16, body: &[u8]) -> String {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    let said = ["/data/message", "/message", "/name", "/_tag"].iter().find_map(|at| value.pointer(at)?.as_str());
    match said {
        Some(said) => format!("status {status}: {}", crate::kit::bounds::words(said)),
        None => format!("status {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_keys_in_it_is_not_told() {
        for path in
            ["/session", "/command", "/session/ses_1/message?directory=%2Fa..", "/permission", "/question", "/agent?x"]
        {
            assert!(emits_raw(path), "{path}");
        }
        for path in
            ["/config/providers", "/config", "/provider/auth", "/session/../config", "/session/%2e./config", "/"]
        {
            assert!(!emits_raw(path), "{path}");
        }
    }

    #[test]
    fn a_refusal_says_what_the_server_said() {
        let body = br#"{"name":"NotFoundError","data":{"message":"Session not found: x"}}"#;
        assert_eq!(refusal(404, body), "status 404: Session not found: x");
        assert_eq!(refusal(401, b""), "status 401");
    }
}
