//! What happens in a session, in one vocabulary for every agent.

use std::{sync::Arc, time::SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{ExitStatus, Json, LimitExceeded, LimitKind, Measures, ProcessId, ProcessInfo, Receipt, SessionId};

/// Why a session ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EndReason {
    /// It was killed on request.
    Killed,
    /// Its agent exited by itself; with the status, where it is known.
    AgentExited(Option<ExitStatus>),
    /// It could not start, or its agent broke its protocol.
    Failed(String),
    /// Its proxy died.
    ProxyDied(Option<ExitStatus>),
    /// The fork server died, so no guard was left.
    ForkServerDied,
    /// The host died or closed the connection.
    HostDied,
    /// It passed this limit, whose action is to end it.
    LimitExceeded(LimitKind),
    /// The manager was shut down or dropped.
    Shutdown,
}

impl std::fmt::Display for EndReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Killed => f.write_str("killed"),
            Self::AgentExited(Some(status)) => write!(f, "the agent exited ({status})"),
            Self::AgentExited(None) => f.write_str("the agent exited"),
            Self::Failed(why) => write!(f, "failed: {why}"),
            Self::ProxyDied(Some(status)) => write!(f, "its proxy died ({status})"),
            Self::ProxyDied(None) => f.write_str("its proxy died"),
            Self::ForkServerDied => f.write_str("the fork server died"),
            Self::HostDied => f.write_str("the host died"),
            Self::LimitExceeded(limit) => write!(f, "it passed its limit on {limit}"),
            Self::Shutdown => f.write_str("the manager was shut down"),
        }
    }
}

/// Tokens (and cost) of a turn. `null` where the agent does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    /// Tokens read.
    pub input_tokens: Option<u64>,
    /// Tokens written.
    pub output_tokens: Option<u64>,
    /// Input tokens that came from a cache.
    pub cache_read_tokens: Option<u64>,
    /// Input tokens put into a cache.
    pub cache_write_tokens: Option<u64>,
    /// In US dollars.
    pub cost_usd: Option<f64>,
}

/// Why a turn ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StopReason {
    /// The agent was done.
    EndTurn,
    /// It was aborted.
    Cancelled,
    /// The model refused.
    Refusal,
    /// A token limit was reached.
    MaxTokens,
    /// The agent's own limit of model requests was reached.
    MaxRequests,
    /// What the agent said, where it is none of the above.
    Other(String),
}

/// Where a tool call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ToolStatus {
    /// Not begun: its input still comes, or it waits for permission.
    Pending,
    /// Running.
    InProgress,
    /// Done.
    Completed,
    /// Failed, or was rejected.
    Failed,
}

/// A tool call begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolStart {
    /// Names the call within the session.
    pub id: String,
    /// The tool's machine name, where the agent gives one; else its kind.
    pub name: String,
    /// One line for people.
    pub title: String,
    /// `read`, `edit`, `delete`, `move`, `search`, `execute`, `think`, `fetch`, `other`, …
    pub kind: String,
    /// Its input as the agent gave it; `null` if it did not.
    pub input: Json,
    /// Where it is.
    pub status: ToolStatus,
}

/// A tool call changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolUpdate {
    /// Which call.
    pub id: String,
    /// A new title.
    pub title: Option<String>,
    /// A new status.
    pub status: Option<ToolStatus>,
    /// Its input, where that changed: many agents begin a call before they know its input.
    pub input: Option<Json>,
    /// Output so far, as text.
    pub output: Option<String>,
}

/// A tool call ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolEnd {
    /// Which call.
    pub id: String,
    /// `completed` or `failed`.
    pub status: ToolStatus,
    /// Its output as text.
    pub output: String,
}

/// One step of an agent's plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanEntry {
    /// What is to be done.
    pub content: String,
    /// The agent's word for its state: `pending`, `in_progress`, `completed`.
    pub status: String,
    /// The agent's word for its priority: `high`, `medium`, `low`.
    pub priority: String,
}

/// What an option of a permission request means. Ids differ from agent to agent: match by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum PermissionOptionKind {
    AllowOnce,
    AllowAlways,
    RejectOnce,
    RejectAlways,
    Other,
}

/// One way to answer a permission request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PermissionOption {
    /// The agent's id of it.
    pub id: String,
    /// For people.
    pub name: String,
    /// What it means.
    pub kind: PermissionOptionKind,
}

/// The agent asks whether it may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PermissionRequest {
    /// Names the request within the session.
    pub id: String,
    /// The tool call it is about, where the agent says.
    pub tool_call_id: Option<String>,
    /// One line for people.
    pub title: String,
    /// Details as the agent gave them; `null` if it did not.
    pub input: Json,
    /// The ways to answer.
    pub options: Vec<PermissionOption>,
}

/// An answer to a permission request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PermissionAnswer {
    /// The request's `allowOnce` option, or `allowAlways` where there is no other.
    Allow,
    /// The request's `rejectOnce` option, or `rejectAlways` where there is no other.
    Deny,
    /// The option with this id.
    Option(String),
    /// No answer: the turn is being cancelled.
    Cancelled,
}

/// Who answered a permission request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ResolvedBy {
    /// `respond_permission`.
    User,
    /// The session's permission mode.
    Mode,
    /// An abort, or the end of the turn.
    Abort,
}

/// A hole in the stream: these events were there, and are not to be had any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gap {
    /// Offset of the first event lost.
    #[serde(with = "offset_text")]
    pub from: u64,
    /// Offset of the last event lost.
    #[serde(with = "offset_text")]
    pub to: u64,
}

/// One thing that happened. Its JSON form is an [`Envelope`]'s `type` and `payload`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all_fields = "camelCase")]
pub enum Event {
    /// The agent is ready.
    #[serde(rename = "session:started")]
    SessionStarted {
        /// Catalog id.
        agent: String,
        /// The agent's process.
        process: ProcessId,
        /// The proxy's process.
        proxy: ProcessId,
        /// The agent's own id of this session, where its protocol has one.
        native_session_id: Option<String>,
        /// What holds it, sees it and limits it.
        measures: Box<Measures>,
    },
    /// It waits for a prompt.
    #[serde(rename = "session:idle")]
    SessionIdle {},
    /// A turn runs.
    #[serde(rename = "session:busy")]
    SessionBusy {},
    /// Something about the session that is none of the other events.
    #[serde(rename = "session:status")]
    SessionStatus {
        /// A word: `agentExited`, `configOption`, …
        status: String,
        /// For people.
        detail: String,
    },
    /// It is over. Always the last event.
    #[serde(rename = "session:ended")]
    SessionEnded {
        /// Why.
        reason: EndReason,
        /// What was ended, and the proof that nothing is left. `null` if nobody could tell.
        receipt: Option<Box<Receipt>>,
    },
    /// Events are missing here.
    #[serde(rename = "session:gap")]
    SessionGap(Gap),
    /// From here on process events may be missing.
    #[serde(rename = "session:lossy")]
    SessionLossy {
        /// Why.
        reason: String,
    },
    /// A prompt was taken.
    #[serde(rename = "turn:started")]
    TurnStarted {
        /// What was asked.
        prompt: String,
    },
    /// Text of the answer.
    #[serde(rename = "stream:text")]
    Text {
        /// A piece of it, as the agent sent it.
        text: String,
    },
    /// The model's thinking.
    #[serde(rename = "stream:thinking")]
    Thinking {
        /// A piece of it.
        text: String,
    },
    /// A tool call begins.
    #[serde(rename = "stream:tool_start")]
    ToolStart(Box<ToolStart>),
    /// A tool call changed.
    #[serde(rename = "stream:tool_update")]
    ToolUpdate(Box<ToolUpdate>),
    /// A tool call ended.
    #[serde(rename = "stream:tool_end")]
    ToolEnd(Box<ToolEnd>),
    /// The agent's plan, whole.
    #[serde(rename = "stream:plan")]
    Plan {
        /// Its steps.
        entries: Vec<PlanEntry>,
    },
    /// Tokens so far.
    #[serde(rename = "stream:usage")]
    Usage(Box<Usage>),
    /// How full the context window is.
    #[serde(rename = "stream:context_window")]
    ContextWindow {
        /// Tokens in it.
        used: u64,
        /// Tokens it holds.
        size: u64,
    },
    /// The turn is over.
    #[serde(rename = "stream:complete")]
    Complete {
        /// Why.
        stop_reason: StopReason,
        /// Tokens of the turn, where the agent says.
        usage: Option<Box<Usage>>,
    },
    /// Something went wrong. Where it ended the turn, `session:idle` or `session:ended` follows.
    #[serde(rename = "stream:error")]
    Error {
        /// A word or number of the agent's or ours.
        code: String,
        /// For people.
        message: String,
        /// Whether the same may work later.
        retryable: bool,
    },
    /// The agent asks whether it may.
    #[serde(rename = "permission:requested")]
    PermissionRequested(Box<PermissionRequest>),
    /// A permission request was answered.
    #[serde(rename = "permission:resolved")]
    PermissionResolved {
        /// Which.
        id: String,
        /// The chosen option's id; `null` for none.
        option: Option<String>,
        /// By whom.
        by: ResolvedBy,
    },
    /// A process was seen for the first time.
    #[serde(rename = "process:spawned")]
    ProcessSpawned(Box<ProcessInfo>),
    /// A process is gone.
    #[serde(rename = "process:exited")]
    ProcessExited {
        /// Which.
        process: ProcessId,
        /// First word of its command line, where it was ever read.
        command: Option<String>,
        /// How it ended, where that is known.
        exit: Option<ExitStatus>,
    },
    /// The session passed one of its limits. Said once for each time it is passed.
    #[serde(rename = "limit:exceeded")]
    LimitExceeded(Box<LimitExceeded>),
    /// Something we were asked to do, or had to do, failed.
    #[serde(rename = "action:failed")]
    ActionFailed {
        /// What.
        action: String,
        /// Why.
        error: String,
    },
    /// A line that is not part of the protocol, such as the agent's standard error.
    #[serde(rename = "log")]
    Log {
        /// `stderr`, or `stdout` for a line that is not the protocol's.
        stream: String,
        /// The line, with its newline.
        text: String,
    },
}

impl Event {
    /// Roughly how much memory the event takes, in bytes: what the bound of a ring counts.
    pub fn weight(&self) -> usize {
        const FIXED: usize = 160;
        FIXED
            + match self {
                Self::Text { text } | Self::Thinking { text } | Self::Log { text, .. } => text.len(),
                Self::TurnStarted { prompt } => prompt.len(),
                Self::ToolStart(t) => t.input.as_str().len() + t.title.len() + 200,
                Self::ToolUpdate(t) => {
                    t.output.as_ref().map_or(0, String::len) + t.input.as_ref().map_or(0, |i| i.as_str().len()) + 100
                }
                Self::ToolEnd(t) => t.output.len() + 100,
                Self::PermissionRequested(p) => p.input.as_str().len() + 400,
                Self::ProcessSpawned(p) => p.args.iter().map(|a| a.len() + 24).sum::<usize>() + 300,
                Self::Plan { entries } => entries.iter().map(|e| e.content.len() + 80).sum(),
                Self::SessionEnded { receipt: Some(r), .. } => r.processes.len() * 150,
                _ => 100,
            }
    }

    /// The event as `(type, payload)`.
    ///
    /// # Errors
    /// Never for an event this crate made; serde's error otherwise.
    fn to_parts(&self) -> Result<(String, Value), serde_json::Error> {
        match serde_json::to_value(self)? {
            Value::Object(map) => {
                map.into_iter().next().ok_or_else(|| serde::ser::Error::custom("an event has a type"))
            }
            other => Err(serde::ser::Error::custom(format!("an event is an object, not {other}"))),
        }
    }
}

/// JSON that is no [`Envelope`].
#[derive(Debug, thiserror::Error)]
pub enum EnvelopeError {
    /// A field is missing or of the wrong type.
    #[error("event envelope without a usable {0:?}")]
    Field(&'static str),
    /// The payload does not fit the type.
    #[error("event of type {kind:?} does not parse")]
    Payload {
        /// The envelope's `type`.
        kind: String,
        /// What serde said.
        #[source]
        source: serde_json::Error,
    },
}

/// An event at its place in a session's stream.
///
/// ```json
/// {"offset":"00000000000000000007","type":"stream:text","version":1,"createdAt":"2026-01-02T03:04:05.678Z",
///  "eventStreamId":"s-1","payload":{"text":"hi"},"metadata":{"turn":1}}
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Envelope {
    /// Place in the stream; the first is 1.
    pub offset: u64,
    /// When the host appended it.
    pub created_at: SystemTime,
    /// The stream: the session.
    pub session: Arc<SessionId>,
    /// The turn it belongs to, if any; the first is 1.
    pub turn: Option<u64>,
    /// What happened.
    pub event: Event,
}

impl Envelope {
    /// Version of the envelope.
    pub const VERSION: u64 = 1;

    /// The envelope as JSON.
    ///
    /// # Errors
    /// Never for an event this crate made; serde's error otherwise.
    pub fn to_json(&self) -> Result<Value, serde_json::Error> {
        let (kind, payload) = self.event.to_parts()?;
        let mut map = Map::new();
        map.insert("offset".into(), format_offset(self.offset).into());
        map.insert("type".into(), kind.into());
        map.insert("version".into(), Self::VERSION.into());
        map.insert("createdAt".into(), humantime::format_rfc3339_millis(self.created_at).to_string().into());
        map.insert("eventStreamId".into(), self.session.as_str().into());
        map.insert("payload".into(), payload);
        if let Some(turn) = self.turn {
            map.insert("metadata".into(), json!({ "turn": turn }));
        }
        Ok(Value::Object(map))
    }

    /// An envelope from its JSON.
    ///
    /// # Errors
    /// [`EnvelopeError`] names the field or type that does not fit.
    pub fn from_json(value: Value) -> Result<Self, EnvelopeError> {
        let text = |field: &'static str| value.get(field).and_then(Value::as_str).ok_or(EnvelopeError::Field(field));
        let offset = parse_offset(text("offset")?).ok_or(EnvelopeError::Field("offset"))?;
        let created_at = humantime::parse_rfc3339(text("createdAt")?).map_err(|_| EnvelopeError::Field("createdAt"))?;
        let session = text("eventStreamId")?.parse().map_err(|_| EnvelopeError::Field("eventStreamId"))?;
        let kind = text("type")?.to_owned();
        let turn = value.pointer("/metadata/turn").and_then(Value::as_u64);
        let payload = value.get("payload").cloned().unwrap_or(Value::Null);
        let event = serde_json::from_value(json!({ kind.clone(): payload }))
            .map_err(|source| EnvelopeError::Payload { kind, source })?;
        Ok(Self { offset, created_at, session: Arc::new(session), turn, event })
    }
}

/// An offset as text: 20 decimal digits, so that text sorts as numbers do.
fn format_offset(offset: u64) -> String {
    format!("{offset:020}")
}

fn parse_offset(text: &str) -> Option<u64> {
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

/// Offsets in payloads: text in JSON, numbers on our wire.
mod offset_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(offset: &u64, s: S) -> Result<S::Ok, S::Error> {
        if s.is_human_readable() { s.serialize_str(&super::format_offset(*offset)) } else { s.serialize_u64(*offset) }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
        if d.is_human_readable() {
            let text = String::deserialize(d)?;
            return super::parse_offset(&text).ok_or_else(|| D::Error::custom(format!("{text:?} is no offset")));
        }
        u64::deserialize(d)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn envelope(event: Event) -> Envelope {
        Envelope {
            offset: 7,
            created_at: UNIX_EPOCH + Duration::from_millis(1_767_323_045_678),
            session: Arc::new("s-1".parse().expect("a valid id")),
            turn: Some(1),
            event,
        }
    }

    #[test]
    fn the_envelope_is_what_its_doc_shows() {
        let json = envelope(Event::Text { text: "hi".into() }).to_json().expect("serializes");
        assert_eq!(
            json,
            json!({"offset": "00000000000000000007", "type": "stream:text", "version": 1,
                   "createdAt": "2026-01-02T03:04:05.678Z", "eventStreamId": "s-1",
                   "payload": {"text": "hi"}, "metadata": {"turn": 1}})
        );
    }

    #[test]
    fn envelopes_come_back_from_json() {
        let receipt = Receipt::begin("s-1".parse().expect("a valid id"), crate::KillCause::KillSession);
        for event in [
            Event::SessionIdle {},
            Event::SessionGap(Gap { from: 3, to: u64::MAX }),
            Event::SessionEnded {
                reason: EndReason::AgentExited(Some(ExitStatus::Code(3))),
                receipt: Some(Box::new(receipt)),
            },
            Event::Complete { stop_reason: StopReason::Other("odd".into()), usage: Some(Box::default()) },
            Event::ToolStart(Box::new(ToolStart {
                id: "1".into(),
                name: "shell".into(),
                title: "ls".into(),
                kind: "execute".into(),
                input: Json::new(r#"{"command":["ls"]}"#).expect("valid JSON"),
                status: ToolStatus::Pending,
            })),
        ] {
            let sent = envelope(event);
            let json = sent.to_json().expect("serializes");
            assert_eq!(Envelope::from_json(json.clone()).expect("parses"), sent, "{json}");
        }
    }

    #[test]
    fn what_is_no_envelope_says_which_field() {
        let good = envelope(Event::SessionIdle {}).to_json().expect("serializes");
        for field in ["offset", "createdAt", "eventStreamId", "type"] {
            let mut bad = good.clone();
            bad[field] = json!(-1);
            let error = Envelope::from_json(bad).expect_err("a broken field");
            assert!(error.to_string().contains(field), "{error}");
        }
        let mut bad = good;
        bad["type"] = json!("session:unheard-of");
        assert!(Envelope::from_json(bad).is_err());
    }

    #[test]
    fn an_event_stays_small() {
        assert!(size_of::<Event>() <= 96, "{}", size_of::<Event>());
    }
}
