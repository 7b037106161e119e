//! Our requests to the server, and which of them wait for an answer.

use std::collections::BTreeMap;

use ipc_protocol::message::RequestId;
use serde_json::Value;

use crate::{Action, HttpEvent, HttpRequest, Patience};

/// Longest answer that is taken, in bytes.
const MAX_ANSWER: usize = 8 * 1024 * 1024;

/// Answers about these are told as they are. What the server says of its configuration and of providers has their keys in it.
const TOLD: &[&str] = &["/agent", "/permission", "/question", "/session"];

/// What a request is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To open the conversation.
    Open(Opening),
    /// The first prompt of the turn.
    Prompt,
    /// A prompt that steers it.
    Steer,
    /// To take the last prompt out of the conversation, so that it can be said again.
    Forget,
    /// The abort that ends the turn.
    Abort,
    /// The answer to a permission request or a question.
    Answer,
    /// Which models there are, for the size of their context windows.
    Models,
    /// What was said while the event stream was cut.
    Resync(Resync),
    /// For an operation.
    Operation(RequestId, Operating),
}

/// A step before the agent is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    MostRecent,
    Resume,
    Fork,
    Create,
    Permit,
    CheckMode,
    CheckThinking,
    DefaultModel,
}

/// A step of finding out what was missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resync {
    Messages,
    Permissions,
    Questions,
    /// After so many looks.
    Status(u8),
}

/// A step of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Operating {
    /// The answer is passed on as it stands.
    Raw,
    List,
    Native,
    /// Whether there is this model.
    Model(String),
    /// Whether there is this mode.
    Mode(String),
    /// The rules of the mode were set.
    ModeRules(String),
    /// Whether the model can think so.
    Thinking(String),
    /// Which model shortens the conversation.
    CompactModel,
    Compact,
}

/// A whole answer: its status and its body; or why there is none.
pub(super) type Answer = Result<(u16, Vec<u8>), String>;

#[derive(Debug)]
struct Pending {
    purpose: Purpose,
    what: String,
    status: u16,
    body: Vec<u8>,
    too_long: bool,
}

/// The requests that wait for an answer.
#[derive(Debug, Default)]
pub(super) struct Calls {
    last: u64,
    pending: BTreeMap<u64, Pending>,
}

impl Calls {
    /// A request whose answer is collected.
    pub(super) fn send(
        &mut self,
        purpose: Purpose,
        method: &'static str,
        path: String,
        body: Option<Vec<u8>>,
        out: &mut Vec<Action>,
    ) {
        let patience = match &purpose {
            Purpose::Operation(_, Operating::Compact | Operating::Native) => Patience::Long,
            _ => Patience::Short,
        };
        let what = format!("{method} {}", path.split('?').next().unwrap_or_default());
        let id = self.request(method, path, body, patience, out);
        self.pending.insert(id, Pending { purpose, what, status: 0, body: Vec::new(), too_long: false });
    }

    /// A request for a stream, by its id.
    pub(super) fn stream(&mut self, path: String, out: &mut Vec<Action>) -> u64 {
        self.request("GET", path, None, Patience::Stream, out)
    }

    fn request(
        &mut self,
        method: &'static str,
        path: String,
        body: Option<Vec<u8>>,
        patience: Patience,
        out: &mut Vec<Action>,
    ) -> u64 {
        self.last += 1;
        let told = is_told(&path);
        out.push(Action::Http(HttpRequest { id: self.last, method, path, body, patience, told }));
        self.last
    }

    /// Takes what became of request `id`; its purpose, what it was, and its answer once that is whole.
    pub(super) fn take(&mut self, id: u64, event: HttpEvent<'_>) -> Option<(Purpose, String, Answer)> {
        let pending = self.pending.get_mut(&id)?;
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
        let Pending { purpose, what, .. } = self.pending.remove(&id)?;
        Some((purpose, what, answer))
    }

    /// How many requests wait for one whose purpose `is` that.
    pub(super) fn count(&self, is: impl Fn(&Purpose) -> bool) -> usize {
        self.pending.values().filter(|pending| is(&pending.purpose)).count()
    }

    /// Forgets all; those that are for operations.
    pub(super) fn close(&mut self) -> Vec<RequestId> {
        let of_operation = |pending: Pending| match pending.purpose {
            Purpose::Operation(request, _) => Some(request),
            _ => None,
        };
        std::mem::take(&mut self.pending).into_values().filter_map(of_operation).collect()
    }
}

/// Whether the answer to a request for `path` is told. One that can lead elsewhere is not.
fn is_told(path: &str) -> bool {
    let path = path.split('?').next().unwrap_or_default();
    TOLD.iter().any(|of| path.starts_with(of)) && !path.contains("..") && !path.contains('%')
}

/// What an answer says that is no success, in one line.
pub(super) fn refusal(status: u16, body: &[u8]) -> String {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    let said = ["/data/message", "/message", "/name", "/_tag"].iter().find_map(|at| value.pointer(at)?.as_str());
    match said {
        Some(said) => format!("status {status}: {}", crate::jsonl::words(said)),
        None => format!("status {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_keys_in_it_is_not_told() {
        for path in ["/session", "/session/ses_1/message?directory=%2Fa..", "/permission", "/question", "/agent?x"] {
            assert!(is_told(path), "{path}");
        }
        for path in
            ["/config/providers", "/config", "/provider/auth", "/session/../config", "/session/%2e./config", "/"]
        {
            assert!(!is_told(path), "{path}");
        }
    }

    #[test]
    fn a_refusal_says_what_the_server_said() {
        let body = br#"{"name":"NotFoundError","data":{"message":"Session not found: x"}}"#;
        assert_eq!(refusal(404, body), "status 404: Session not found: x");
        assert_eq!(refusal(401, b""), "status 401");
    }
}
