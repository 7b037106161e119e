//! Events as a response's body: JSON lines, written as they come and no faster than the client reads.

use std::{convert::Infallible, sync::Arc};

use axum::{
    body::{Body, Bytes},
    http::header,
    response::{IntoResponse, Response},
};
use hyper::body::Frame;
use proxy_manager::{
    AnswerChunk, Envelope, Event, OffsetGap, Prompt, ProxyManager, SessionHandle, StreamHandler, StreamInfo,
    StreamOptions, Subscription, TurnStep, TurnStream,
};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use crate::{
    ProblemDetails,
    api::{NDJSON, StopProgressLine, call, notice},
    event_filter::EventSelection,
};

/// Number of chunks that wait for a slow client. Behind them the subscription waits, which delays nobody else.
const CHUNKS: usize = 4;

/// Number of events of all sessions read at once.
const PAGE: usize = 1024;

/// Channel for a task that writes the body. A failed send means that the client has left.
type BodySender = mpsc::Sender<Bytes>;

/// Range of a session's events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventRange {
    /// Offset after which events are sent.
    pub(crate) from: u64,
    /// Offset of the last event that exists; `None` if the stream has an end.
    pub(crate) last: Option<u64>,
    /// Offset of the last event to send; `None` to continue to the session's end.
    pub(crate) until: Option<u64>,
}

/// Streams the events of a session that the reader selects.
pub(crate) fn events(mut subscription: Subscription, range: EventRange, mut selection: EventSelection) -> Response {
    let EventRange { from, last, until } = range;
    let (sender, response) = response();
    tokio::spawn(async move {
        let mut seen = from;
        let mut batch = Vec::new();
        loop {
            let mut text = Vec::new();
            let has_all = last.is_some_and(|last| seen >= last);
            if has_all {
                selection.flush(&mut text);
            }
            let done = until.is_some_and(|until| seen >= until);
            if !done && text.is_empty() {
                let more = tokio::select! {
                    more = subscription.next_batch(&mut batch) => more,
                    // Ends the task of a client that left while nothing happens.
                    () = sender.closed() => return,
                };
                if !more {
                    selection.flush(&mut text);
                    // Fails for a client that has left.
                    let _ = sender.send(text.into()).await;
                    return;
                }
                if let Some(until) = until {
                    clip(&mut batch, until);
                }
                // Events after `until` were dropped above; they only end the loop.
                seen = batch.last().map_or(u64::MAX, |envelope| envelope.offset);
                batch.drain(..).for_each(|envelope| line(&mut text, &envelope, None, &mut selection));
            }
            if !text.is_empty() && sender.send(text.into()).await.is_err() || done {
                return;
            }
        }
    });
    response
}

/// Removes what is after `until` from a batch. A gap that reaches beyond it is cut there.
fn clip(batch: &mut Vec<Arc<Envelope>>, until: u64) {
    batch.retain_mut(|envelope| {
        if envelope.offset <= until {
            return true;
        }
        // The offset of a gap is that of its last event.
        let Event::SessionGap(OffsetGap { from, .. }) = envelope.event else { return false };
        *envelope = Arc::new(Envelope {
            offset: until,
            event: Event::SessionGap(OffsetGap { from, to: until }),
            ..envelope.as_ref().clone()
        });
        from <= until
    });
}

/// Streams the selected events of all sessions after position `from`, to the last one that exists. After an error a
/// problem is the last line.
pub(crate) async fn all_events(
    manager: ProxyManager,
    from: u64,
    mut selection: EventSelection,
) -> Result<Response, ProblemDetails> {
    let mut page = manager.read_all(from, PAGE).await?;
    let (sender, response) = response();
    tokio::spawn(async move {
        while let Some((last, _)) = page.last() {
            let from = *last;
            let mut text = Vec::with_capacity(page.len() * 256);
            page.iter().for_each(|(position, envelope)| line(&mut text, envelope, Some(*position), &mut selection));
            if !text.is_empty() && sender.send(text.into()).await.is_err() {
                return;
            }
            page = match manager.read_all(from, PAGE).await {
                Ok(page) => page,
                Err(error) => {
                    // Fails for a client that has left.
                    let _ = sender.send(problem_line(&ProblemDetails::from(error))).await;
                    return;
                }
            };
        }
        let mut text = Vec::new();
        selection.flush(&mut text);
        let _ = sender.send(text.into()).await;
    });
    Ok(response)
}

/// Streams the events of one turn, to its end; if that is an error, a problem is the last line.
pub(crate) fn turn(mut turn: TurnStream) -> Response {
    let (sender, response) = response();
    tokio::spawn(async move {
        loop {
            let step = tokio::select! {
                step = turn.next() => step,
                () = sender.closed() => None,
            };
            let bytes = match step {
                Some(TurnStep::Event(envelope)) => lines(&[envelope]),
                Some(TurnStep::End(Err(error))) => problem_line(&ProblemDetails::from(error)),
                Some(TurnStep::End(Ok(_))) | None => break,
            };
            if sender.send(bytes).await.is_err() {
                break;
            }
        }
    });
    response
}

/// Streams the calls of a stream handler for one answer; its result is the last line. The turn continues if the
/// client leaves.
pub(crate) fn calls(session: SessionHandle, prompt: Prompt, options: StreamOptions) -> Response {
    let (sender, response) = response();
    tokio::spawn(async move {
        let mut calls = HandlerCallSender(sender);
        let last = match session.stream_with(prompt, &mut calls, options).await {
            Ok(answer) => call("complete", json!({ "answer": answer })),
            Err(error) => call("failed", json!({ "error": ProblemDetails::from(error) })),
        };
        calls.line(&last).await;
    });
    response
}

/// Streams the progress of the daemon's end. The last line is of the sessions that it ended.
pub(crate) fn stop(mut latest: watch::Receiver<Option<StopProgressLine>>) -> Response {
    let (sender, response) = response();
    tokio::spawn(async move {
        loop {
            let progress = latest.borrow_and_update().clone();
            if let Some(progress) = &progress {
                let mut text = serde_json::to_vec(progress).unwrap_or_default();
                text.push(b'\n');
                if sender.send(text.into()).await.is_err() {
                    return;
                }
            }
            let is_last = matches!(progress, Some(StopProgressLine::Stopped { .. }));
            if is_last || latest.changed().await.is_err() {
                return;
            }
        }
    });
    response
}

/// Stream handler that sends each call as a line. The last line is sent elsewhere: a client that is too slow for
/// the others gets it all the same.
struct HandlerCallSender(BodySender);

impl HandlerCallSender {
    async fn line(&mut self, line: &Value) {
        let mut text = serde_json::to_vec(line).unwrap_or_default();
        text.push(b'\n');
        // Fails for a client that has left.
        let _ = self.0.send(text.into()).await;
    }
}

impl StreamHandler for HandlerCallSender {
    async fn on_stream_start(&mut self, stream: &StreamInfo) {
        self.line(&call("start", json!(stream))).await;
    }

    async fn on_chunk(&mut self, chunk: &AnswerChunk<'_>) {
        self.line(&call("chunk", json!(chunk))).await;
    }

    async fn on_notice(&mut self, event: &Event) {
        self.line(&notice(event)).await;
    }
}

fn response() -> (BodySender, Response) {
    let (sender, receiver) = mpsc::channel(CHUNKS);
    let response = ([(header::CONTENT_TYPE, NDJSON)], Body::new(BodyChunks(receiver))).into_response();
    (sender, response)
}

fn lines(envelopes: &[Arc<Envelope>]) -> Bytes {
    let mut text = Vec::with_capacity(envelopes.len() * 256);
    let mut all = EventSelection::default();
    envelopes.iter().for_each(|envelope| line(&mut text, envelope, None, &mut all));
    text.into()
}

/// Formats an event, with its position among those of all sessions if given, where it is selected.
fn line(text: &mut Vec<u8>, envelope: &Envelope, position: Option<u64>, selection: &mut EventSelection) {
    if !selection.keeps(envelope) {
        return;
    }
    let written = envelope.to_json().and_then(|mut json| {
        if let Some(position) = position {
            json["position"] = format!("{position:020}").into();
        }
        let mut line = serde_json::to_vec(&json)?;
        line.push(b'\n');
        Ok(line)
    });
    match written {
        Ok(line) => selection.push(line, text),
        Err(error) => tracing::error!(%error, offset = envelope.offset, "failed to convert an event to JSON"),
    }
}

fn problem_line(problem: &ProblemDetails) -> Bytes {
    let mut text = serde_json::to_vec(problem).unwrap_or_default();
    text.push(b'\n');
    text.into()
}

/// Receiving end of the channel, as a body.
struct BodyChunks(mpsc::Receiver<Bytes>);

impl hyper::body::Body for BodyChunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|chunk| chunk.map(|bytes| Ok(Frame::data(bytes))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope(offset: u64, event: Event) -> Arc<Envelope> {
        let session = Arc::new("s-1".parse().expect("a valid id"));
        Arc::new(Envelope { offset, created_at: std::time::UNIX_EPOCH, session, turn: None, event })
    }

    #[test]
    fn a_gap_that_ends_past_the_last_offset_asked_for_is_cut_there() {
        let gap = |from, to| envelope(to, Event::SessionGap(OffsetGap { from, to }));
        let idle = |offset| envelope(offset, Event::SessionStatus { status: "idle".into(), detail: String::new() });
        let clipped = |mut batch: Vec<_>, until| {
            clip(&mut batch, until);
            batch
        };
        assert_eq!(clipped(vec![idle(1), gap(2, 9)], 5), [idle(1), gap(2, 5)]);
        assert_eq!(clipped(vec![gap(1, 4), idle(5), idle(6)], 5), [gap(1, 4), idle(5)]);
        assert!(clipped(vec![gap(6, 9)], 5).is_empty());
    }
}
