//! Bodies of the daemon's requests and answers, besides sessions, records and events.

use std::{collections::BTreeMap, path::PathBuf, time::SystemTime};

use ipc_protocol::{
    AbortPolicy, Event, Json, PermissionAnswer, ProcessId, Prompt, PromptPart, Receipt, SessionId, SignalNumber,
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{OpenPermission, PromptMode, ResumeOptions, Role, SessionSnapshot, SessionStatus};

/// Header of a list that lacks what some nodes of a fleet have: their names, `, ` between them.
pub const SILENT_NODES: &str = "agent-proxy-silent-nodes";
/// Protocol of a session's terminal, in the header `Upgrade`.
pub const TERMINAL_PROTOCOL: &str = "agent-proxy-terminal";

/// Media type of a stream of JSON lines.
pub const NDJSON: &str = "application/x-ndjson";

/// Most events that `tail` asks for: the daemon holds so many in memory for a client.
pub const MAX_TAIL: u32 = 10_000;

/// Body of `POST /v1/sessions/{id}/prompt`, and of `…/ask`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PromptRequest {
    /// Text of the prompt, or of the first of its parts.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Parts of the prompt: `[{"text":"…"},{"image":{"mimeType":"image/png","data":"…"}},{"file":{"path":"/…"}}]`.
    #[serde(default)]
    pub parts: Vec<PromptPart>,
    /// Handling of the prompt while a turn runs.
    #[serde(default)]
    pub mode: PromptMode,
    /// True to answer with the turn's events, to its end, as JSON lines; else with the record of its turn at once.
    #[serde(default)]
    pub wait: bool,
    /// For an ask: true to answer with the calls of a stream handler, as JSON lines; else with the answer alone.
    /// The lines are `{"call":"start",…}`, `{"call":"chunk",…}` and, last, `{"call":"complete","answer":{…}}` or
    /// `{"call":"failed","error":{…}}`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stream: bool,
    /// For an ask: address that is called when its turn has ended, with `context` in it, as a webhook. The server's configuration names the
    /// hosts that may be called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<String>,
    /// For an ask with a callback: the caller's own, any JSON. With the metadata it has at most 16 KiB.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub context: Value,
    /// Name of who sends it, for the list of those that wait; by default the caller's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Metadata of the caller's, which the prompt's events have: a JSON object of at most 16 KiB, without the member `turn`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<serde_json::Map<String, Value>>"))]
    pub metadata: Option<Json>,
}

impl From<PromptRequest> for Prompt {
    fn from(request: PromptRequest) -> Self {
        prompt_of(request.text, request.parts)
    }
}

/// Adds the name of a stream handler's call to its line.
pub fn call(name: &str, mut what: Value) -> Value {
    what["call"] = name.into();
    what
}

/// The call that tells a handler of an event: something went wrong.
pub fn notice(event: &Event) -> Value {
    let parts = match serde_json::to_value(event) {
        Ok(Value::Object(parts)) => parts.into_iter().next(),
        _ => None,
    };
    let (kind, payload) = parts.unwrap_or_default();
    call("notice", json!({ "type": kind, "payload": payload }))
}

/// Answer to a prompt that is not waited for.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PromptAccepted {
    /// Number of the turn; of a queued prompt, its future one. `null` if the agent has no turns.
    pub turn: Option<u64>,
}

/// Body of `POST /v1/sessions/{id}/steer`.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SteerRequest {
    /// Text for the running turn, or for the first of the parts.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Parts for the running turn, as in [`PromptRequest`].
    #[serde(default)]
    pub parts: Vec<PromptPart>,
}

impl From<SteerRequest> for Prompt {
    fn from(request: SteerRequest) -> Self {
        prompt_of(request.text, request.parts)
    }
}

/// Joins text and parts to a prompt.
fn prompt_of(text: String, parts: Vec<PromptPart>) -> Prompt {
    let words = Some(text).filter(|text| !text.is_empty()).map(PromptPart::Text);
    words.into_iter().chain(parts).collect::<Vec<_>>().into()
}

/// Body of `POST /v1/sessions/{id}/abort`: `{}`, `{"policy":"killTurnProcesses"}`. The answer to the second is a receipt.
#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct AbortRequest {
    /// Effect on processes.
    pub policy: AbortPolicy,
}

/// Line of the answer to `GET /v1/sessions/{id}/hold`: `{"held":true}` at once, and last `{"held":false}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct HoldLine {
    /// False once the session has ended: there is nothing left to hold.
    pub held: bool,
}

/// Body of `POST /v1/sessions/{id}/kill`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct KillRequest {
    /// Only this process, or `null` for the session.
    pub pid: Option<u32>,
    /// True to kill everything below `pid` too.
    pub tree: bool,
    /// True to kill only processes that the agent started; the agent and the session continue.
    pub keep_agent: bool,
    /// Milliseconds between SIGTERM and SIGKILL; 2000 by default, 0 sends SIGKILL at once.
    pub grace_ms: Option<u64>,
}

/// Body of `POST /v1/sessions/{id}/processes/{pid}/signal`: `{"signal":"SIGINT"}`.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SignalRequest {
    /// Signal to send: a name, as in `SIGINT`, or a number from 1 to 64.
    pub signal: SignalNumber,
    /// Start time of the process, as a listing has it: a process that got the pid later is not signalled. Without it the process that
    /// has the pid now is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<u64>,
}

/// Answer to a signal.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct SignalResponse {
    /// Process that was signalled.
    pub process: ProcessId,
    /// The signal.
    pub signal: SignalNumber,
}

/// Body of `POST /v1/sessions/{id}/permissions/{request}`: `{"answer":"allow"}`, `{"answer":{"option":"ID"},"by":"alice"}`.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PermissionReply {
    /// Answer to the request.
    pub answer: PermissionAnswer,
    /// Name of the user who answers, for `permission:resolved`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// Body of `POST /v1/sessions/{id}/suspend` and `…/hand-over`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct SuspendRequest {
    /// Milliseconds between SIGTERM and SIGKILL; 2000 by default, 0 sends SIGKILL at once.
    pub grace_ms: Option<u64>,
}

/// Body of `POST /v1/resume`: a session that another daemon has suspended.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema), schemars(rename = "SnapshotResume"))]
#[serde(deny_unknown_fields)]
pub struct ResumeRequest {
    /// Answer of `POST /v1/sessions/{id}/suspend` there.
    pub snapshot: SessionSnapshot,
    /// Values missing from the snapshot.
    #[serde(default)]
    pub options: ResumeOptions,
}

/// Answer to `GET /v1/sessions/{id}/attach-command` and `POST …/hand-over`.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct AttachCommandResponse {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Working directory for the command.
    pub cwd: String,
    /// Required value of HOME; `null` to leave it unchanged.
    pub home: Option<String>,
}

/// Answer to `GET /v1/sessions/{id}/events` and `GET /v1/events` with `Accept: application/json`.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct EventPage {
    /// Events, as each line of the stream has one.
    #[cfg_attr(feature = "openapi", schemars(with = "Vec<ipc_protocol::Envelope>"))]
    pub events: Vec<Value>,
    /// Offset, or position among those of all sessions, to give as `from` for the next page: 20 decimal digits.
    pub next: String,
    /// True if there are more now.
    pub more: bool,
}

/// Body of `POST /v1/sessions/{id}/events`: an event to append.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AppendRequest {
    /// Type of the event: `slack:webhook-received`, `agent:action:prompt:called`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// Version of the payload's shape; 1 by default.
    #[serde(default = "first_version")]
    pub version: u32,
    /// Any JSON; `null` by default.
    #[serde(default = "Json::null")]
    pub payload: Json,
    /// Metadata of the caller's, such as correlation ids, which come back to every reader: a JSON object of at most 16 KiB, without the
    /// member `turn`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<serde_json::Map<String, Value>>"))]
    pub metadata: Option<Json>,
}

fn first_version() -> u32 {
    1
}

/// Answer to an append.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct AppendResponse {
    /// Offset of the event: 20 decimal digits, as in events.
    pub offset: String,
}

/// Body of `POST /v1/import`.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ImportRequest {
    /// Absolute path of a file of JSON lines that the daemon can read.
    pub path: PathBuf,
}

/// Answer to an import; offsets are 20 decimal digits.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ImportResponse {
    /// Session of the events.
    pub session_id: SessionId,
    /// Offset of the first.
    pub first: String,
    /// Offset of the last.
    pub last: String,
}

/// Body of `POST /v1/records/{id}`: changes, applied one after the other.
#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct RecordChange {
    /// Title for people; an empty one removes it.
    pub title: Option<String>,
    /// Labels to add.
    pub add_tags: Vec<String>,
    /// Labels to remove.
    pub remove_tags: Vec<String>,
    /// True to archive the record, false to restore it.
    pub archived: Option<bool>,
}

/// Body of `POST /v1/stop`: `{}`, `{"now":true}`. The answer is a stream of [`StopProgressLine`]s.
#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct StopRequest {
    /// True to end running turns; else they may finish, for as long as the daemon allows.
    pub now: bool,
    /// True to let sessions run on that were started with `onHostDeath: detach`: the next daemon has them again.
    pub detach: bool,
}

/// Line of the answer to `POST /v1/stop`: `{"call":"draining",…}` at each change, and last `{"call":"stopped",…}`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(tag = "call", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum StopProgressLine {
    /// Turns are running.
    Draining {
        /// Number of running turns.
        turns: usize,
        /// Longest time that they have, in milliseconds, from the first such line.
        longest_ms: u64,
    },
    /// All sessions have ended. The daemon exits.
    Stopped {
        /// Sessions that were alive.
        sessions: Vec<StoppedSession>,
        /// Sessions that run on, for the next daemon.
        #[serde(default)]
        detached: Vec<SessionId>,
    },
}

/// Session that a daemon's end has ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StoppedSession {
    /// Id of the session.
    pub session_id: SessionId,
    /// Its state now: `suspended` if the next daemon can resume it, else `ended`.
    pub status: SessionStatus,
    /// Receipt for its processes.
    pub receipt: Receipt,
}

/// Answer to `GET /v1/whoami`.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct WhoamiResponse {
    /// Name of the caller: of a token, a login, a user; `host` on the local socket.
    pub name: String,
    /// What the caller may do.
    pub role: Role,
    /// The one user whose sessions the caller sees; `null` for those of all.
    pub user: Option<String>,
}

/// Body of `POST /v1/login-links`.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LoginLinkRequest {
    /// What the page may do; no more than the caller.
    #[serde(default = "admin")]
    pub role: Role,
    /// The one user whose sessions the page shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

fn admin() -> Role {
    Role::Admin
}

/// Answer to `POST /v1/login-links`.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LoginLinkResponse {
    /// The link, at each address of the server. It works once.
    pub urls: Vec<String>,
    /// End of its life. RFC 3339 in JSON.
    #[serde(with = "ipc_protocol::time_text")]
    #[cfg_attr(feature = "openapi", schemars(with = "ipc_protocol::json_schema::TimeText"))]
    pub expires_at: SystemTime,
}

/// Permission request that is open, with its session.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SessionPermission {
    /// Session that waits for the answer.
    pub session_id: SessionId,
    /// The request. In JSON its fields are among these.
    #[serde(flatten)]
    pub request: OpenPermission,
}

/// Answer to `GET /v1/ready`.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ReadyResponse {
    /// True if sessions can be started, and their events be kept.
    pub ready: bool,
    /// Why not, a line each.
    pub degraded: Vec<String>,
}

/// Answer to `GET /v1/version`.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct VersionResponse {
    /// Version of the server.
    pub version: String,
}

/// Answer to `GET /v1/sessions/{id}/transcript`.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct TranscriptResponse {
    /// Conversation as text, from the events that are still kept.
    pub transcript: String,
}

/// Answer to `POST /v1/sessions/{id}/workspace/apply` and `DELETE /v1/sessions/{id}/workspace`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct WorkspaceResult {
    /// Tree of the user's that the workspace was made from.
    pub source: String,
    /// Number of changed files: those that were applied, or removed without; `null` where they cannot be counted.
    pub files: Option<u64>,
}

/// Answer to `GET /v1/health`.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HealthResponse {
    /// Version of the daemon.
    pub version: String,
    /// Pid of the daemon.
    pub pid: u32,
    /// Process of its fork server.
    pub fork_server: ProcessId,
    /// Sessions that have not ended.
    pub sessions: usize,
    /// Starts that wait for a free slot.
    #[serde(default)]
    pub waiting: usize,
    /// Damaged parts of the event log, a line each: the daemon goes on with the rest.
    #[serde(default)]
    pub damaged: Vec<String>,
    /// Failures that the daemon has now, each with its cause. Empty if all is well.
    #[serde(default)]
    pub degraded: Vec<String>,
    /// The program around the router, where it describes itself.
    #[serde(default)]
    pub daemon: Option<DaemonDescription>,
}

/// The daemon's own part of `GET /v1/health`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DaemonDescription {
    /// Time of its start.
    #[serde(with = "ipc_protocol::time_text")]
    #[cfg_attr(feature = "openapi", schemars(with = "ipc_protocol::json_schema::TimeText"))]
    pub started_at: SystemTime,
    /// Its local socket.
    pub socket: PathBuf,
    /// Addresses that it answers on, as URLs.
    pub addresses: Vec<String>,
    /// State directory; `null` without one.
    pub state_dir: Option<PathBuf>,
    /// Log file; `null` where it logs on standard error.
    pub log_file: Option<PathBuf>,
    /// Name of the node that it is of a fleet; `null` without one.
    #[serde(default)]
    pub node: Option<String>,
}

/// Query of `POST /v1/sessions` in a fleet: what the session's node has to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct PlacementQuery {
    /// Name of the node; without it one is chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Labels that the node has to have, as in `gpu=1,disk=ssd`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub label: String,
}

/// Receiver or sender, as it is listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WebhookStatus {
    /// Name in `webhooks.toml`.
    pub name: String,
    /// `in`, or `out`; `callbacks` for those of asks.
    pub direction: String,
    /// The sender, or `url` or `command`.
    pub kind: String,
    /// Deliveries since the server's start, by outcome: `accepted`, `duplicate`, `verified`, `limited`, `refused`, `failed` of one that
    /// comes in; `delivered`, `retried`, `abandoned` of one that goes out.
    pub counts: BTreeMap<String, u64>,
    /// Messages that wait, as far as they are read.
    pub waiting: usize,
    /// The last failure.
    pub last_error: Option<String>,
}

/// Characters to escape in a segment. A dot too: a segment of dots alone means another path.
const RESERVED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');

/// Escapes `text` as one segment of a URL's path.
pub fn path_segment(text: &str) -> String {
    utf8_percent_encode(text, &RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_segments() {
        assert_eq!(path_segment("call_1-a"), "call_1-a");
        assert_eq!(path_segment("a/b ü?"), "a%2Fb%20%C3%BC%3F");
        assert_eq!(path_segment(".."), "%2E%2E");
    }

    #[test]
    fn bodies_in_json() {
        let prompt: PromptRequest = serde_json::from_str(r#"{"text":"hi","mode":"queue"}"#).expect("parses");
        assert!(!prompt.wait && prompt.mode == PromptMode::Queue);
        let said = |json| Prompt::from(serde_json::from_str::<PromptRequest>(json).expect("parses")).parts;
        let (words, file) = (|text: &str| PromptPart::Text(text.into()), PromptPart::File { path: "/a".into() });
        assert_eq!(said(r#"{"text":"hi"}"#), [words("hi")]);
        assert_eq!(said(r#"{"text":"hi","parts":[{"file":{"path":"/a"}}]}"#), [words("hi"), file.clone()]);
        assert_eq!(said(r#"{"parts":[{"file":{"path":"/a"}}]}"#), [file]);
        assert_eq!(said("{}"), [], "the manager refuses it");
        let kill: KillRequest = serde_json::from_str("{}").expect("parses");
        assert_eq!((kill.pid, kill.tree, kill.keep_agent, kill.grace_ms), (None, false, false, None));
        let abort = |json| serde_json::from_str::<AbortRequest>(json).expect("parses").policy;
        assert_eq!(abort("{}"), AbortPolicy::LeaveProcesses);
        assert_eq!(abort(r#"{"policy":"killTurnProcesses"}"#), AbortPolicy::KillTurnProcesses);
        let reply: PermissionReply = serde_json::from_str(r#"{"answer":{"option":"once"}}"#).expect("parses");
        assert_eq!(reply.answer, PermissionAnswer::Option("once".into()));
        assert!(serde_json::from_str::<KillRequest>(r#"{"grace":3}"#).is_err());
        let append: AppendRequest = serde_json::from_str(r#"{"type":"a:b"}"#).expect("parses");
        assert_eq!((append.kind.as_str(), append.version, append.payload.as_str()), ("a:b", 1, "null"));
    }
}
