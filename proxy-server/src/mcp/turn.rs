//! Waits for the end of a turn, as its events tell it.

use std::time::Duration;

use rmcp::{
    RoleServer,
    model::{ProgressNotificationParam, ProgressToken},
    service::{Peer, RequestContext},
};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use crate::{
    ProblemDetails,
    api_client::{ApiClient, LineStream, session_path},
    requests::RouteResult,
};

/// Member of a prompt's metadata by which a message is known as the call's own.
pub(super) const MESSAGE: &str = "mcpMessage";

/// Most bytes of an answer that a result has: its end. Models read no more, and clients take less.
const LONGEST_TEXT: usize = 256 << 10;

/// Most errors that a result has.
const MOST_ERRORS: usize = 100;

/// Longest text of a progress notification, in characters.
const LONGEST_PROGRESS: usize = 200;

/// Least time between two progress notifications: a client draws each.
const PROGRESS_PAUSE: Duration = Duration::from_millis(200);

/// Turn that is waited for.
pub(super) struct TurnWait<'a> {
    pub(super) api: &'a ApiClient,
    /// Whole id of the session.
    pub(super) session: &'a str,
    /// Number of the turn; `None` for whichever runs.
    pub(super) turn: Option<u64>,
    /// Message that the turn is of, as its prompt's metadata names it, where this call has sent it.
    pub(super) message: Option<&'a str>,
    /// Offset after which its events come.
    pub(super) from: u64,
    /// True for a turn that has ended: what the session was before it is read as well.
    pub(super) is_past: bool,
    pub(super) deadline: Instant,
}

/// What became of a turn.
#[derive(Default)]
pub(super) struct TurnReport {
    text: String,
    /// Bytes of the answer before `text`.
    omitted: usize,
    turn: Option<u64>,
    stop_reason: Value,
    usage: Value,
    errors: Vec<Value>,
    tool_calls: u64,
    last_offset: u64,
}

/// Why waiting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitEnd {
    Completed,
    NeedsPermission,
    SessionOver,
    StillRunning,
}

impl WaitEnd {
    fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::NeedsPermission => "waitingForPermission",
            Self::SessionOver => "sessionOver",
            Self::StillRunning => "running",
        }
    }
}

impl TurnWait<'_> {
    /// Follows the turn to its end, to a permission request that nobody has answered, or to the deadline. A client that cancels has the turn
    /// aborted, or its message dropped while that waits.
    pub(super) async fn follow(self, context: &RequestContext<RoleServer>) -> RouteResult<Value> {
        let path = format!("/v1/sessions/{}/events?follow=true&raw=false&from={}", self.session, self.from);
        let mut events = self.api.lines(&path).await?;
        let mut report = TurnReport { last_offset: self.from, ..TurnReport::default() };
        let mut progress = Progress::new(context);
        let end = tokio::select! {
            end = timeout_at(self.deadline, self.read(&mut events, &mut report, &mut progress)) => {
                end.unwrap_or(Ok(WaitEnd::StillRunning))?
            }
            () = context.ct.cancelled() => {
                // Nobody reads the result.
                if let Err(problem) = self.give_up().await {
                    tracing::debug!(why = problem.detail, "a turn that a client gave up could not be aborted");
                }
                WaitEnd::StillRunning
            }
        };
        let permissions = match end {
            WaitEnd::NeedsPermission => self.open_permissions().await?,
            _ => Vec::new(),
        };
        Ok(json!({
            "session_id": self.session,
            "turn": report.turn.or(self.turn),
            "status": end.name(),
            "text": report.shown_text(self.from),
            "stop_reason": report.stop_reason,
            "usage": report.usage,
            "tool_calls": report.tool_calls,
            "errors": report.errors,
            "permissions": permissions,
            "next_offset": report.last_offset,
        }))
    }

    async fn read(
        &self,
        events: &mut LineStream,
        report: &mut TurnReport,
        progress: &mut Progress,
    ) -> RouteResult<WaitEnd> {
        while let Some(event) = events.next().await? {
            if let Some(offset) = event["offset"].as_str().and_then(|offset| offset.parse().ok()) {
                report.last_offset = offset;
            }
            let turn = event["metadata"]["turn"].as_u64();
            let is_ours = match (turn, self.turn) {
                (Some(turn), Some(wanted)) => turn == wanted,
                (Some(_), None) => true,
                (None, _) => false,
            };
            match event["type"].as_str().unwrap_or_default() {
                // It was resumed since then, for the turn.
                "session:suspended" if report.turn.is_none() && (self.is_past || !self.is_over().await?) => {}
                "session:ended" | "session:suspended" => return Ok(WaitEnd::SessionOver),
                // A turn after ours: ours has ended, or was dropped.
                "turn:started" if turn > self.turn && self.turn.is_some() => return Ok(WaitEnd::Completed),
                "session:idle" if is_ours => return Ok(WaitEnd::Completed),
                "permission:requested" if is_ours && self.is_open(&event["payload"]["id"]).await? => {
                    return Ok(WaitEnd::NeedsPermission);
                }
                kind if is_ours => {
                    report.turn = turn;
                    report.add(kind, &event["payload"]);
                    progress.tell(kind, &event["payload"]).await;
                }
                _ => {}
            }
        }
        match self.is_over().await? {
            true => Ok(WaitEnd::SessionOver),
            false => Err(ProblemDetails::new("no-daemon", "the daemon has ended")),
        }
    }

    /// Returns true if the session has ended, or is suspended now.
    async fn is_over(&self) -> RouteResult<bool> {
        match self.api.get(&session_path(self.session, "")).await {
            Ok(session) => Ok(session["status"] == "ended" || session["status"] == "suspended"),
            Err(problem) if problem.status == 404 => Ok(true),
            Err(problem) => Err(problem),
        }
    }

    /// Drops the message while it waits, or aborts the turn while it runs; a turn of somebody else goes on.
    async fn give_up(&self) -> RouteResult<()> {
        // Its turn may begin before, and is aborted then.
        if let Some(offset) = self.message_offset().await?
            && self.api.delete(&session_path(self.session, &format!("/queue/{offset}"))).await.is_ok()
        {
            return Ok(());
        }
        let session = self.api.get(&session_path(self.session, "")).await?;
        if self.turn.is_none() || session["state"]["busy"]["turn"].as_u64() == self.turn {
            self.api.post(&session_path(self.session, "/abort"), &json!({})).await?;
        }
        Ok(())
    }

    /// Returns the offset at which the message was accepted.
    async fn message_offset(&self) -> RouteResult<Option<u64>> {
        let Some(message) = self.message else { return Ok(None) };
        let path = format!("/events?raw=false&type=agent:action:prompt:called&from={}", self.from);
        let mut events = self.api.lines(&session_path(self.session, &path)).await?;
        while let Some(event) = events.next().await? {
            if event["metadata"][MESSAGE] == message {
                return Ok(event["offset"].as_str().and_then(|offset| offset.parse().ok()));
            }
        }
        Ok(None)
    }

    async fn open_permissions(&self) -> RouteResult<Vec<Value>> {
        match self.api.get(&format!("/v1/sessions/{}/permissions", self.session)).await? {
            Value::Array(open) => Ok(open),
            _ => Ok(Vec::new()),
        }
    }

    /// Returns true if the request waits for an answer: a policy may have given one.
    async fn is_open(&self, request: &Value) -> RouteResult<bool> {
        Ok(self.open_permissions().await?.iter().any(|open| open["id"] == *request))
    }
}

impl TurnReport {
    fn add(&mut self, kind: &str, payload: &Value) {
        match kind {
            "stream:text" if payload["parent"].is_null() => {
                self.text.push_str(payload["text"].as_str().unwrap_or_default());
                // Now and then: each time takes as long as the text.
                if self.text.len() > 2 * LONGEST_TEXT {
                    self.bound_text();
                }
            }
            "stream:voided" => {
                let voided = usize::try_from(payload["textBytes"].as_u64().unwrap_or(0)).unwrap_or(usize::MAX);
                let left = self.text.len().saturating_sub(voided);
                self.omitted = self.omitted.saturating_sub(voided.saturating_sub(self.text.len()));
                self.text.truncate(self.text.floor_char_boundary(left));
            }
            "stream:tool_start" => self.tool_calls += 1,
            "stream:error" if self.errors.len() < MOST_ERRORS => self.errors.push(payload.clone()),
            "stream:complete" => {
                self.stop_reason = payload["stopReason"].clone();
                self.usage = payload["usage"].clone();
            }
            _ => {}
        }
    }

    /// Leaves the beginning of the text out, where it is too long.
    fn bound_text(&mut self) {
        let excess = self.text.ceil_char_boundary(self.text.len().saturating_sub(LONGEST_TEXT));
        self.text.drain(..excess);
        self.omitted += excess;
    }

    /// Returns the answer, or its end and where the rest of it is: in the events after `from`.
    fn shown_text(&mut self, from: u64) -> String {
        self.bound_text();
        match self.omitted {
            0 => std::mem::take(&mut self.text),
            omitted => format!(
                "[the first {omitted} bytes are left out: coding_agent_read_events from {from} on has them]\n{}",
                self.text
            ),
        }
    }
}

/// Progress of a call, for a client that asked to hear of it.
struct Progress {
    token: Option<ProgressToken>,
    client: Peer<RoleServer>,
    count: u64,
    told: Option<Instant>,
    text: String,
}

impl Progress {
    fn new(context: &RequestContext<RoleServer>) -> Self {
        let (token, client) = (context.meta.get_progress_token(), context.peer.clone());
        Self { token, client, count: 0, told: None, text: String::new() }
    }

    /// Tells what the agent does: its text, and the tools that it calls.
    async fn tell(&mut self, kind: &str, payload: &Value) {
        let Some(token) = &self.token else { return };
        self.count += 1;
        let message = match kind {
            "stream:text" => {
                self.text.push_str(payload["text"].as_str().unwrap_or_default());
                self.text.trim_end().rsplit('\n').next().unwrap_or_default().to_owned()
            }
            "stream:tool_start" => {
                payload["title"].as_str().or(payload["name"].as_str()).unwrap_or("a tool call").to_owned()
            }
            "stream:thinking" => "thinking".to_owned(),
            _ => return,
        };
        // The last line is enough to go on from.
        if let Some(line) = self.text.rfind('\n') {
            self.text.drain(..=line);
        }
        let excess = self.text.len().saturating_sub(LONGEST_PROGRESS * 4);
        self.text.drain(..self.text.ceil_char_boundary(excess));
        let is_tool = kind == "stream:tool_start";
        if !is_tool && self.told.is_some_and(|told| told.elapsed() < PROGRESS_PAUSE) {
            return;
        }
        self.told = Some(Instant::now());
        let mut progress = ProgressNotificationParam::new(token.clone(), self.count as f64);
        progress.message = Some(message.chars().take(LONGEST_PROGRESS).collect());
        // A client that is gone gets no result either.
        let _ = self.client.notify_progress(progress).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_answer_is_its_end_and_says_so() {
        let mut report = TurnReport::default();
        let line = format!("{}\n", "ä".repeat(500));
        let lines = 5 * LONGEST_TEXT / line.len();
        for _ in 0..lines {
            report.add("stream:text", &json!({ "text": line }));
            assert!(report.text.len() <= 2 * LONGEST_TEXT);
        }
        report.add("stream:text", &json!({ "text": "the end, voided" }));
        report.add("stream:voided", &json!({ "textBytes": ", voided".len() }));
        for _ in 0..2 * MOST_ERRORS {
            report.add("stream:error", &json!({ "message": "no" }));
        }
        let text = report.shown_text(7);
        let omitted = lines * line.len() + "the end".len() - report.text.len();
        let first = format!("[the first {omitted} bytes are left out: coding_agent_read_events from 7 on has them]\n");
        assert!(text.starts_with(&first) && text.ends_with("\nthe end"), "{}", &text[..first.len()]);
        assert!(text.len() <= LONGEST_TEXT + first.len() && report.errors.len() == MOST_ERRORS);
    }

    #[test]
    fn a_short_answer_is_whole() {
        let mut report = TurnReport::default();
        report.add("stream:text", &json!({ "text": "done" }));
        assert_eq!(report.shown_text(0), "done");
    }
}
