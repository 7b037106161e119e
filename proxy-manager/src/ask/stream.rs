//! Stream handlers, notified at their own pace while an answer grows. A slow handler delays nobody: it is called less
//! often, each time with everything so far.

use std::{collections::VecDeque, future::Future, sync::Arc, time::Duration};

use ipc_protocol::{Envelope, Event, Json, PermissionAnswer, SessionId, message::ProxyCommand};
use serde::Serialize;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::{
    TurnStep, TurnStream,
    reply::{ASK_ACTOR, GrowingReply},
};
use crate::{
    answer::{Answer, ToolCall},
    error::{Error, Result},
    session::{ManagedSession, PendingAnswer, PromptMode, Turn, TurnEnd},
};

/// Longest interval between two chunks: for ever.
const LONGEST_INTERVAL: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Bytes of events that may wait for a slow handler. Beyond that, events wait in the session's history.
const MAX_WAITING_BYTES: usize = 4 * 1024 * 1024;

/// Stream that a handler is called for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StreamInfo {
    /// The session.
    pub session_id: SessionId,
    /// Catalog id of the session's agent.
    pub agent: String,
    /// The prompt as text.
    pub prompt: String,
}

/// An answer so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AnswerChunk<'a> {
    /// Full text so far.
    pub text: &'a str,
    /// Full thinking so far.
    pub thinking: &'a str,
    /// The tool calls so far, with their current state.
    pub tool_calls: &'a [ToolCall],
    /// Number of events lost before they were read; if not 0, text may be missing.
    pub missed_events: u64,
    /// True if the answer is complete.
    pub is_final: bool,
}

/// Receives an answer while it grows. The handler itself carries the context: anything a callback needs is a field of
/// it.
///
/// Calls never overlap. While one runs the answer is still read; the next call gets everything that came meanwhile.
///
/// ```no_run
/// # async fn example(session: proxy_manager::SessionHandle) -> proxy_manager::Result<()> {
/// use proxy_manager::answers::{AnswerChunk, StreamHandler};
///
/// struct Printer;
///
/// impl StreamHandler for Printer {
///     async fn on_chunk(&mut self, chunk: &AnswerChunk<'_>) {
///         println!("{} bytes so far", chunk.text.len());
///     }
/// }
///
/// let answer = session.stream("hello", &mut Printer).await?;
/// println!("{}", answer.reply);
/// # Ok(())
/// # }
/// ```
pub trait StreamHandler: Send {
    /// Called before the prompt is sent.
    fn on_stream_start(&mut self, stream: &StreamInfo) -> impl Future<Output = ()> + Send {
        let _ = stream;
        async {}
    }

    /// Called when the answer has grown. The last call of a turn that ended well has `is_final`.
    fn on_chunk(&mut self, chunk: &AnswerChunk<'_>) -> impl Future<Output = ()> + Send;

    /// Something went wrong and the turn goes on, or ends with it: an error (with its attempt where the agent asks again), an answer
    /// that broke off, a usage limit, a clock that ran out. Or nothing happens: the agent has been silent for a while. What was voided is
    /// not in the next chunk any more.
    fn on_notice(&mut self, event: &Event) -> impl Future<Output = ()> + Send {
        let _ = event;
        async {}
    }

    /// The turn ended.
    fn on_complete(&mut self, answer: &Answer) -> impl Future<Output = ()> + Send {
        let _ = answer;
        async {}
    }

    /// Called when the turn failed, or the prompt was not accepted. [`Error::TurnFailed`] has the answer up to then.
    fn on_failed(&mut self, error: &Error) -> impl Future<Output = ()> + Send {
        let _ = error;
        async {}
    }
}

/// A handler that ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct SilentHandler;

impl StreamHandler for SilentHandler {
    async fn on_chunk(&mut self, _: &AnswerChunk<'_>) {}
}

/// Options of waiting for an answer and notifying its handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamOptions {
    /// Treatment of the prompt while a turn runs.
    pub mode: PromptMode,
    /// Name of who sends the prompt, as in [`PromptOptions`](crate::PromptOptions).
    pub by: Option<String>,
    /// Metadata of the prompt, as in [`PromptOptions`](crate::PromptOptions).
    pub metadata: Option<Json>,
    /// Shortest time from the end of one `on_chunk` to the next. 50 ms by default.
    pub interval: Duration,
    /// Longest time that a call of the handler may take; the handler is not called again after that. 30 s by default.
    pub longest_call: Duration,
    /// Bytes of text, thinking and tool calls that are retained; bytes left out are counted. 16 MiB by default.
    pub longest: usize,
    /// Answer to permission requests that the session's policy leaves to users. `None` leaves them to those users; it
    /// is the default of calls on a session that others may know. [`ProxyManager::ask`](crate::ProxyManager::ask) rejects, since nobody else is
    /// there to answer.
    pub unanswered: Option<PermissionAnswer>,
    /// True if a session that [`ProxyManager::ask_with`](crate::ProxyManager::ask_with) started continues afterwards. A session with a key always
    /// does.
    pub keep: bool,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            mode: PromptMode::Refuse,
            by: None,
            metadata: None,
            interval: Duration::from_millis(50),
            longest_call: Duration::from_secs(30),
            longest: 16 * 1024 * 1024,
            unanswered: None,
            keep: false,
        }
    }
}

/// Follows the turn of `prompt`, which `send` sends, notifies `handler`, and returns the answer.
pub(crate) async fn stream<H: StreamHandler>(
    session: &Arc<ManagedSession>,
    prompt: String,
    send: impl Future<Output = Result<Turn>>,
    handler: &mut H,
    options: StreamOptions,
) -> Result<Answer> {
    let mut audience = HandlerAudience { max_call_time: options.longest_call, stopped: None };
    let stream = StreamInfo { session_id: session.id().clone(), agent: session.info().metadata.agent, prompt };
    audience.notify("on_stream_start", handler.on_stream_start(&stream)).await;
    let answered = follow(session, send, handler, &mut audience, options).await;
    match &answered {
        Ok(answer) => audience.notify("on_complete", handler.on_complete(answer)).await,
        Err(error) => audience.notify("on_failed", handler.on_failed(error)).await,
    }
    answered.map(|answer| Answer { handler_stopped: audience.stopped, ..answer })
}

async fn follow<H: StreamHandler>(
    session: &Arc<ManagedSession>,
    send: impl Future<Output = Result<Turn>>,
    handler: &mut H,
    audience: &mut HandlerAudience,
    options: StreamOptions,
) -> Result<Answer> {
    let unsupported = |operation: &str| {
        let (agent, operation) = (session.info().metadata.agent, operation.to_owned());
        Error::Unsupported { agent, operation }
    };
    if !session.has_turns() {
        let operation = "answer: it has no turns, so nobody knows when it has; prompt it and read its events";
        return Err(unsupported(operation));
    }
    let turn = TurnStream::of(session.clone(), send).await?;
    let Some(number) = turn.number() else {
        return Err(unsupported("answer: it has no turns; the prompt was sent, read its events"));
    };
    let mut feed = TurnFeed::new(turn, session.clone(), options.unanswered);
    let mut reply = GrowingReply::new(options.longest);
    let mut earliest = Instant::now();
    let end = loop {
        feed.wait_for_events().await;
        feed.read_until(earliest).await;
        let (is_news, notices) = feed.take(&mut reply);
        for notice in notices {
            feed.read_during(audience.notify("on_notice", handler.on_notice(&notice.event))).await;
        }
        if let Some(end) = feed.end.take() {
            break end;
        }
        if is_news {
            feed.read_during(audience.notify("on_chunk", handler.on_chunk(&chunk(&reply, false)))).await;
            earliest = Instant::now() + options.interval.min(LONGEST_INTERVAL);
        }
    };
    let failed = match &end {
        Ok(TurnEnd { timed_out: Some(clock), last_words, .. }) => {
            let words = last_words.as_ref().map_or_else(String::new, |words| format!("; what it said last: {words}"));
            Some(format!("its {clock} took too long{words}"))
        }
        Ok(TurnEnd { over_budget: Some(budget), .. }) => Some(format!("it used up the session's budget of {budget}")),
        Ok(end) => {
            let bypassed = reply.bypassed.as_ref();
            let why = |call| format!("the agent ran {call:?} without asking, which is denied");
            end.error.clone().or_else(|| bypassed.map(why))
        }
        Err(error) => Some(error.chain()),
    };
    if failed.is_none() {
        audience.notify("on_chunk", handler.on_chunk(&chunk(&reply, true))).await;
    }
    let answer = Answer {
        reply: reply.text,
        session_id: session.id().clone(),
        turn: number,
        tool_calls: reply.tool_calls,
        usage: reply.usage,
        stop_reason: reply.stop_reason,
        timed_out: end.as_ref().ok().and_then(|end| end.timed_out),
        over_budget: end.as_ref().ok().and_then(|end| end.over_budget),
        unanswered: reply.unanswered,
        missed_events: reply.missed_events,
        cut_bytes: reply.cut_bytes,
        handler_stopped: None,
        receipt: None,
    };
    match (end, failed) {
        // The session's own error says more than a failed turn.
        (Err(error), _) => Err(error),
        (Ok(_), Some(reason)) => {
            let session = session.id().clone();
            Err(Error::TurnFailed { session, reason, answer: Box::new(answer) })
        }
        (Ok(_), None) => Ok(answer),
    }
}

fn chunk(reply: &GrowingReply, is_final: bool) -> AnswerChunk<'_> {
    AnswerChunk {
        text: &reply.text,
        thinking: &reply.thinking,
        tool_calls: &reply.tool_calls,
        missed_events: reply.missed_events,
        is_final,
    }
}

/// The handler's caller, which stops after a call that takes too long.
struct HandlerAudience {
    max_call_time: Duration,
    stopped: Option<String>,
}

impl HandlerAudience {
    async fn notify(&mut self, what: &str, call: impl Future<Output = ()>) {
        if self.stopped.is_none() && timeout(self.max_call_time, call).await.is_err() {
            tracing::warn!(what, "stopped calling a stream handler: a call took too long");
            self.stopped = Some(format!("its {what} took longer than {:?}", self.max_call_time));
        }
    }
}

/// Events of the turn that the handler has not received yet, and the turn's end.
struct TurnFeed {
    turn: TurnStream,
    session: Arc<ManagedSession>,
    unanswered: Option<PermissionAnswer>,
    waiting: VecDeque<Arc<Envelope>>,
    weight: usize,
    end: Option<Result<TurnEnd>>,
}

impl TurnFeed {
    fn new(turn: TurnStream, session: Arc<ManagedSession>, unanswered: Option<PermissionAnswer>) -> Self {
        Self { turn, session, unanswered, waiting: VecDeque::new(), weight: 0, end: None }
    }

    /// Waits for events or the end of the turn.
    async fn wait_for_events(&mut self) {
        while self.waiting.is_empty() && self.end.is_none() {
            self.read().await;
        }
    }

    /// Runs `future`, and keeps reading meanwhile, as far as there is room.
    async fn read_during<T>(&mut self, future: impl Future<Output = T>) -> T {
        tokio::pin!(future);
        loop {
            let reads = self.end.is_none() && self.weight < MAX_WAITING_BYTES;
            tokio::select! {
                biased;
                done = &mut future => return done,
                () = self.read(), if reads => {}
            }
        }
    }

    /// Reads until the instant `then`, or to the end of the turn.
    async fn read_until(&mut self, then: Instant) {
        while self.end.is_none() && Instant::now() < then {
            if self.weight >= MAX_WAITING_BYTES {
                return sleep_until(then).await;
            }
            if timeout_at(then, self.read()).await.is_err() {
                return;
            }
        }
    }

    /// Reads the next step of the turn. Cancel-safe: dropping it while it waits loses nothing.
    async fn read(&mut self) {
        match self.turn.next().await {
            Some(TurnStep::Event(envelope)) if is_relevant(&envelope.event) => {
                if let (Event::PermissionRequested(request), Some(answer)) = (&envelope.event, &self.unanswered) {
                    let (session, id, answer) = (self.session.clone(), request.id.clone(), answer.clone());
                    // A request that the policy has decided is no longer open, and refuses this answer.
                    let by = Some(ASK_ACTOR.to_owned());
                    let command = ProxyCommand::Permission { id, answer, by };
                    tokio::spawn(async move { session.request(command, PendingAnswer::Done).await });
                }
                self.weight += envelope.event.weight();
                self.waiting.push_back(envelope);
            }
            Some(TurnStep::Event(_)) => {}
            Some(TurnStep::End(end)) => self.end = Some(end),
            None => self.end = Some(Err(Error::ShutDown)),
        }
    }

    /// Gives `reply` what waits. Whether that changed it, and what else is to be told.
    fn take(&mut self, reply: &mut GrowingReply) -> (bool, Vec<Arc<Envelope>>) {
        self.weight = 0;
        let mut is_news = false;
        for envelope in &self.waiting {
            is_news |= reply.apply(&envelope.event);
        }
        let notices = self.waiting.drain(..).filter(|envelope| is_notice(&envelope.event)).collect();
        (is_news, notices)
    }
}

/// Returns whether it says that something went wrong, or that nothing happens.
fn is_notice(event: &Event) -> bool {
    matches!(
        event,
        Event::Error { .. }
            | Event::Voided { .. }
            | Event::UsageLimited { .. }
            | Event::TimeoutFired { .. }
            | Event::SessionSilent { .. }
    )
}

/// Returns whether it says something about the answer.
fn is_relevant(event: &Event) -> bool {
    is_notice(event)
        || matches!(
            event,
            Event::Text { .. }
                | Event::Thinking { .. }
                | Event::ToolStart(_)
                | Event::ToolUpdate(_)
                | Event::ToolEnd(_)
                | Event::Usage(_)
                | Event::Complete { .. }
                | Event::SessionGap(_)
                | Event::PermissionRequested(_)
                | Event::PermissionResolved { .. }
        )
}
