//! Events as a response's body: JSON lines or server-sent events, written as they come and no faster than the client reads.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use hyper::body::Frame;
use proxy_manager::{
    AnswerChunk, Envelope, Event, EventFeed, FeedStart, OffsetGap, Prompt, ProxyManager, SessionHandle, StreamHandler,
    StreamInfo, StreamOptions, Subscription, TurnStep, TurnStream,
};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use crate::{
    ProblemDetails,
    api::{NDJSON, StopProgressLine, call, notice},
    event_filter::EventSelection,
    metrics::CountedReader,
};

/// Number of chunks that wait for a slow client. Behind them the subscription waits, which delays nobody else.
const CHUNKS: usize = 4;

/// Number of events of all sessions read at once.
const PAGE: usize = 1024;

/// Channel for a task that writes the body. A failed send means that the client has left.
pub(crate) type BodySender = mpsc::Sender<Bytes>;

/// Pause after which a reader of server-sent events, or the holder of a session, gets a sign of life.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(15);

/// Media type of server-sent events.
pub(crate) const EVENT_STREAM: &str = "text/event-stream";

/// Form in which events are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventFormat {
    /// JSON lines.
    Lines,
    /// Server-sent events: `id:` is the offset, or of all sessions' events the position, in decimal.
    ServerSent,
    /// One JSON object with the events of a page.
    Page,
}

impl EventFormat {
    /// Returns the form that a request accepts; JSON lines where it accepts any.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut kinds =
            accepted.flat_map(|value| value.split(',')).map(|kind| kind.split(';').next().unwrap_or("").trim());
        let known = kinds.find_map(|kind| match kind {
            EVENT_STREAM => Some(Self::ServerSent),
            "application/json" => Some(Self::Page),
            NDJSON => Some(Self::Lines),
            _ => None,
        });
        known.unwrap_or(Self::Lines)
    }

    fn content_type(self) -> &'static str {
        match self {
            Self::Lines => NDJSON,
            Self::ServerSent => EVENT_STREAM,
            Self::Page => "application/json",
        }
    }
}

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
pub(crate) fn events(
    mut subscription: Subscription,
    range: EventRange,
    selection: EventSelection,
    format: EventFormat,
    reader: Option<CountedReader>,
) -> Response {
    let EventRange { from, last, until } = range;
    let (sender, response) = response(format.content_type());
    tokio::spawn(async move {
        let mut body = EventBody::new(sender, selection, format, from);
        let mut batch = Vec::new();
        loop {
            if last.is_some_and(|last| body.seen >= last) {
                body.flush();
            }
            let done = until.is_some_and(|until| body.seen >= until);
            if !done && body.text.is_empty() {
                let more = tokio::select! {
                    more = subscription.next_batch(&mut batch) => more,
                    alive = body.idle() => if alive { continue } else { return },
                };
                if !more {
                    body.end().await;
                    return;
                }
                if let Some(until) = until {
                    clip(&mut batch, until);
                }
                // Events after `until` were dropped above; they only end the loop.
                body.seen = batch.last().map_or(u64::MAX, |envelope| envelope.offset);
                batch.drain(..).for_each(|envelope| body.push(&envelope, None));
            }
            if !body.send().await || done {
                return;
            }
            advance(reader.as_ref(), &body);
        }
    });
    response
}

/// Streams the events that a fleet's log has of a session: to the last one, or with the reader's patience for good, to the session's end.
#[cfg(feature = "fleet")]
pub(crate) fn logged_events(
    mut log: fleet::FleetLogReader,
    range: EventRange,
    selection: EventSelection,
    format: EventFormat,
) -> Response {
    let EventRange { from, until, .. } = range;
    let last = log.last();
    let (sender, response) = response(format.content_type());
    tokio::spawn(async move {
        let mut body = EventBody::new(sender, selection, format, from);
        let mut has_ended = false;
        loop {
            if body.seen >= last {
                body.flush();
            }
            let done = until.is_some_and(|until| body.seen >= until);
            if !done && !has_ended && body.text.is_empty() {
                let batch = tokio::select! {
                    batch = log.next() => batch.map_err(crate::fleet::unreachable).and_then(|lines| logged_batch(&lines)),
                    alive = body.idle() => if alive { continue } else { return },
                };
                let batch = match batch {
                    Ok(batch) => batch,
                    Err(problem) => return body.fail_with(&problem).await,
                };
                for envelope in batch {
                    // The first message may begin before what was asked for.
                    if envelope.offset > body.seen && until.is_none_or(|until| envelope.offset <= until) {
                        gap_before(&envelope, body.seen).iter().for_each(|gap| body.push(gap, None));
                        body.push(&envelope, None);
                        body.seen = envelope.offset;
                        has_ended = matches!(envelope.event, Event::SessionEnded { .. }) && body.seen >= last;
                    }
                }
                continue;
            }
            if !body.send().await {
                return;
            }
            if done || has_ended {
                return body.end().await;
            }
        }
    });
    response
}

/// Events that share a message of a fleet's log, at the most: a position in the log is that of the message, and the place in it.
#[cfg(feature = "fleet")]
const PLACES: u64 = 8192;

/// Reader of the events of all sessions that a fleet's log has, with their positions.
#[cfg(feature = "fleet")]
pub(crate) struct FeedReader {
    feed: fleet::FleetFeed,
    /// Position of the last event that was read.
    pub(crate) seen: u64,
    /// True if the log had no other event when the last one was read.
    pub(crate) is_at_end: bool,
}

#[cfg(feature = "fleet")]
impl FeedReader {
    /// Begins after a position.
    ///
    /// # Errors
    /// `fleet-unreachable`.
    pub(crate) async fn begin(log: &fleet::FleetLog, start: FeedStart) -> Result<Self, ProblemDetails> {
        let failed = crate::fleet::unreachable;
        let seen = match start {
            FeedStart::After(position) => position,
            FeedStart::Latest => (log.last_sequence().await.map_err(failed)? + 1).saturating_mul(PLACES),
        };
        let sequence = seen / PLACES;
        let is_at_end = !log.has_from(sequence).await.map_err(failed)?;
        Ok(Self { feed: log.read_all(sequence).await.map_err(failed)?, seen, is_at_end })
    }

    /// Returns the events of the next message after the position. Waits for one at the end of the log.
    ///
    /// # Errors
    /// `fleet-unreachable`; `failed` for what is no event of this release.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is lost.
    pub(crate) async fn next(&mut self) -> Result<Vec<(u64, Envelope)>, ProblemDetails> {
        let batch = self.feed.next().await.map_err(crate::fleet::unreachable)?;
        let events = logged_batch(&batch.lines)?;
        self.is_at_end = batch.is_last;
        let first = batch.sequence.saturating_mul(PLACES);
        let positions = (1..PLACES).map(|place| first + place);
        let after = self.seen;
        let events: Vec<_> = positions.zip(events).filter(|(position, _)| *position > after).collect();
        self.seen = events.last().map_or(self.seen, |(position, _)| *position);
        Ok(events)
    }
}

/// Streams the selected events of all sessions that a fleet's log has: to the last one that exists, or with `follows` for good.
#[cfg(feature = "fleet")]
pub(crate) fn feed_events(
    mut feed: FeedReader,
    selection: EventSelection,
    format: EventFormat,
    follows: bool,
) -> Response {
    let (sender, response) = response(format.content_type());
    tokio::spawn(async move {
        let mut body = EventBody::new(sender, selection, format, feed.seen);
        loop {
            if feed.is_at_end {
                body.flush();
                if !follows {
                    return body.end().await;
                }
            }
            if !body.send().await {
                return;
            }
            let events = tokio::select! {
                events = feed.next() => events,
                alive = body.idle() => if alive { continue } else { return },
            };
            match events {
                Ok(events) => events.iter().for_each(|(position, envelope)| {
                    body.push(envelope, Some(*position));
                    body.seen = *position;
                }),
                Err(problem) => return body.fail_with(&problem).await,
            }
        }
    });
    response
}

/// Returns the event that stands for those which a fleet's log has no more: between `seen` and the next one.
#[cfg(feature = "fleet")]
pub(crate) fn gap_before(next: &Envelope, seen: u64) -> Option<Envelope> {
    if next.offset <= seen + 1 || matches!(next.event, Event::SessionGap(_)) {
        return None;
    }
    let (from, to) = (seen + 1, next.offset - 1);
    Some(Envelope { offset: to, event: Event::SessionGap(OffsetGap { from, to }), ..next.clone() })
}

/// Parses a batch of a fleet's log.
#[cfg(feature = "fleet")]
pub(crate) fn logged_batch(lines: &[u8]) -> Result<Vec<Envelope>, ProblemDetails> {
    let wrong = |error: &dyn std::fmt::Display| {
        ProblemDetails::failed(format!(
            "an event of the fleet's log cannot be read: {error}: are all nodes of one version?"
        ))
    };
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let parse = |line: &[u8]| {
        let json = serde_json::from_slice(line).map_err(|error| wrong(&error))?;
        Envelope::from_json(json).map_err(|error| wrong(&error))
    };
    lines.map(parse).collect()
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

/// Streams the selected events of all sessions after position `from`: to the last one that exists, or with `follows` for good.
/// After an error a problem is the last line.
pub(crate) async fn all_events(
    manager: ProxyManager,
    from: u64,
    selection: EventSelection,
    format: EventFormat,
    follows: bool,
    reader: Option<CountedReader>,
) -> Result<Response, ProblemDetails> {
    let mut page = manager.read_all(from, PAGE).await?;
    let (sender, response) = response(format.content_type());
    tokio::spawn(async move {
        let mut body = EventBody::new(sender, selection, format, from);
        while !page.is_empty() {
            body.push_page(&page);
            body.beat();
            if !body.send().await {
                return;
            }
            advance(reader.as_ref(), &body);
            page = match manager.read_all(body.seen, PAGE).await {
                Ok(page) => page,
                Err(error) => return body.fail(error).await,
            };
        }
        if !follows {
            return body.end().await;
        }
        body.flush();
        match manager.follow_all(FeedStart::After(body.seen)).await {
            Ok(feed) => follow_all(feed, body, reader).await,
            Err(error) => body.fail(error).await,
        }
    });
    Ok(response)
}

/// Notes how far a reader is.
fn advance(reader: Option<&CountedReader>, body: &EventBody) {
    if let Some(reader) = reader {
        reader.advance(body.seen);
    }
}

/// Sends events until the reader leaves, which stands among the readers for as long.
async fn follow_all(mut feed: EventFeed, mut body: EventBody, reader: Option<CountedReader>) {
    while body.send().await {
        advance(reader.as_ref(), &body);
        tokio::select! {
            page = feed.next_page(PAGE) => match page {
                Ok(page) => body.push_page(&page),
                Err(error) => return body.fail(error).await,
            },
            alive = body.idle() => if !alive { return },
        }
    }
}

/// Body of a response with events.
struct EventBody {
    sender: BodySender,
    selection: EventSelection,
    format: EventFormat,
    /// Offset or position of the last event that was looked at.
    seen: u64,
    /// What is sent next.
    text: Vec<u8>,
    /// Time at which the client last heard something.
    heard: Instant,
}

impl EventBody {
    fn new(sender: BodySender, selection: EventSelection, format: EventFormat, seen: u64) -> Self {
        Self { sender, selection, format, seen, text: Vec::new(), heard: Instant::now() }
    }

    /// Takes an event, with its position among those of all sessions if given.
    fn push(&mut self, envelope: &Envelope, position: Option<u64>) {
        if !self.selection.keeps(envelope) {
            return;
        }
        match event_text(envelope, position, self.format) {
            Ok(event) => self.selection.push(event, &mut self.text),
            Err(error) => tracing::error!(%error, offset = envelope.offset, "failed to convert an event to JSON"),
        }
    }

    fn push_page(&mut self, page: &[(u64, Arc<Envelope>)]) {
        page.iter().for_each(|(position, envelope)| self.push(envelope, Some(*position)));
        self.seen = page.last().map_or(self.seen, |(last, _)| *last);
    }

    /// Takes the last events that exist, where those alone were asked for.
    fn flush(&mut self) {
        self.selection.flush(&mut self.text);
    }

    /// Sends what was taken. Returns false for a client that has left.
    async fn send(&mut self) -> bool {
        if self.text.is_empty() {
            return true;
        }
        self.heard = Instant::now();
        self.sender.send(std::mem::take(&mut self.text).into()).await.is_ok()
    }

    /// Takes a sign of life if it is time: a client that has selected nothing of much hears nothing else.
    fn beat(&mut self) {
        if self.format == EventFormat::ServerSent && self.text.is_empty() && self.heard.elapsed() >= HEARTBEAT {
            self.text.extend_from_slice(b": heartbeat\n");
            self.push_seen();
        }
    }

    /// Waits while nothing happens: takes a sign of life from time to time. Returns false once the client has left.
    async fn idle(&mut self) -> bool {
        if self.format != EventFormat::ServerSent {
            self.sender.closed().await;
            return false;
        }
        tokio::select! {
            // Of what was not selected nothing was heard.
            () = tokio::time::sleep_until(self.heard + HEARTBEAT) => {
                self.beat();
                true
            }
            () = self.sender.closed() => false,
        }
    }

    /// Tells a reader of server-sent events which events it need not ask for again: those that it did not select, too.
    fn push_seen(&mut self) {
        self.text.extend_from_slice(format!("id: {}\n\n", self.seen).as_bytes());
    }

    /// Sends the rest. It fails for a client that has left.
    async fn end(mut self) {
        self.flush();
        if self.format == EventFormat::ServerSent && self.seen < u64::MAX {
            self.push_seen();
        }
        let _ = self.send().await;
    }

    /// Sends a problem as the last line. It fails for a client that has left.
    async fn fail(self, error: proxy_manager::Error) {
        self.fail_with(&ProblemDetails::from(error)).await;
    }

    async fn fail_with(mut self, problem: &ProblemDetails) {
        let line = problem_line(problem);
        match self.format {
            EventFormat::ServerSent => {
                self.text.extend_from_slice(b"event: problem\ndata: ");
                self.text.extend_from_slice(&line);
                self.text.push(b'\n');
            }
            _ => self.text.extend_from_slice(&line),
        }
        let _ = self.send().await;
    }
}

/// Converts an event to what readers get: with its position among those of all sessions, if given, and with the agent's own line as JSON
/// beside the exact line, where it is some.
///
/// # Errors
/// Never for an event that this release can make; serde's error otherwise.
pub(crate) fn event_json(envelope: &Envelope, position: Option<u64>) -> serde_json::Result<Value> {
    let mut json = envelope.to_json()?;
    if let Some(position) = position {
        json["position"] = format!("{position:020}").into();
    }
    if let Event::Harness { payload, .. } = &envelope.event
        && let Some(line) = payload.json()
    {
        json["payload"]["json"] = line;
    }
    Ok(json)
}

/// Formats an event.
fn event_text(envelope: &Envelope, position: Option<u64>, format: EventFormat) -> serde_json::Result<Vec<u8>> {
    let json = serde_json::to_vec(&event_json(envelope, position)?)?;
    Ok(match format {
        EventFormat::ServerSent => {
            let id = position.unwrap_or(envelope.offset);
            [format!("id: {id}\ndata: ").as_bytes(), &json, b"\n\n"].concat()
        }
        EventFormat::Lines | EventFormat::Page => [&json[..], b"\n"].concat(),
    })
}

/// Streams the events of one turn, to its end; if that is an error, a problem is the last line.
pub(crate) fn turn(mut turn: TurnStream) -> Response {
    let (sender, response) = response(NDJSON);
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
    let (sender, response) = response(NDJSON);
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
    let (sender, response) = response(NDJSON);
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

/// Makes a response whose body is what is sent.
pub(crate) fn response(content_type: &'static str) -> (BodySender, Response) {
    let (sender, receiver) = mpsc::channel(CHUNKS);
    // A proxy on the way must not hold events back.
    let headers = [(header::CONTENT_TYPE, content_type), (header::CACHE_CONTROL, "no-store")];
    let response = (headers, Body::new(BodyChunks(receiver))).into_response();
    (sender, response)
}

fn lines(envelopes: &[Arc<Envelope>]) -> Bytes {
    let event = |envelope: &Arc<Envelope>| event_text(envelope, None, EventFormat::Lines).unwrap_or_default();
    envelopes.iter().flat_map(event).collect::<Vec<_>>().into()
}

fn problem_line(problem: &ProblemDetails) -> Bytes {
    let mut text = serde_json::to_vec(problem).unwrap_or_default();
    text.push(b'\n');
    text.into()
}

/// Returns true if a line of a stream is a problem, and no event.
pub(crate) fn is_problem_line(line: &[u8]) -> bool {
    // Written from a struct: its first field comes first. The fields of an event are sorted, and there are earlier ones.
    line.starts_with(br#"{"type":"#)
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
        Arc::new(Envelope { offset, created_at: std::time::UNIX_EPOCH, session, turn: None, metadata: None, event })
    }

    /// A reader takes one that hears nothing for 45 s for dead.
    #[tokio::test(start_paused = true)]
    async fn a_reader_who_selects_nothing_of_much_hears_a_sign_of_life() {
        let (sender, _response) = response(EVENT_STREAM);
        let query: crate::event_filter::EventsQuery =
            serde_json::from_value(json!({ "type": "permission:requested" })).expect("a query");
        let selection = query.selection().expect("valid");
        let mut body = EventBody::new(sender, selection, EventFormat::ServerSent, 0);
        for offset in 1..=3 {
            assert!(body.send().await && body.text.is_empty(), "{offset}");
            let idle = tokio::time::timeout(Duration::from_secs(6), body.idle()).await;
            assert_eq!(idle.is_ok(), offset == 3, "{offset}");
            body.seen = offset;
            body.push(&envelope(offset, Event::SessionIdle {}), None);
        }
        assert_eq!(body.text, b": heartbeat\nid: 2\n\n");
        assert!(body.send().await && tokio::time::timeout(Duration::from_secs(14), body.idle()).await.is_err());
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
