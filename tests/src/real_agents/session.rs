//! A session of a real agent, and what was told of a turn.

use std::{future::Future, sync::Arc};

use ipc_protocol::{PermissionRequest, StopReason, ToolEnd, ToolStart, Usage};
use proxy_manager::{
    Envelope, Event, Json, PermissionOption, Prompt, PromptMode, ResolvedBy, SessionHandle, Subscription, ToolUpdate,
    Turn, TurnEnd,
};

use super::{Failure, STEP};

/// How many events of a stream are shown where something is wrong.
const SHOWN: usize = 12;

/// A session, and its events as far as they were read.
#[derive(Debug)]
pub struct Session {
    /// The session itself.
    pub handle: SessionHandle,
    events: Subscription,
    /// All that was read.
    pub seen: Vec<Arc<Envelope>>,
    /// Where the turn that runs, or ran last, began in `seen`.
    begun: usize,
    turn: Option<Turn>,
}

/// A tool call of a turn.
#[derive(Clone, Debug)]
pub struct Call {
    /// How it began.
    pub start: ToolStart,
    /// How it changed.
    pub updates: Vec<ToolUpdate>,
    /// How it ended.
    pub end: Option<ToolEnd>,
}

impl Call {
    /// Its input, as it was last told.
    pub fn input(&self) -> &Json {
        self.updates.iter().rev().find_map(|update| update.input.as_ref()).unwrap_or(&self.start.input)
    }
}

/// What was told of a turn.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// The prompt, as it was taken.
    pub prompt: String,
    /// Its text.
    pub text: String,
    /// In how many pieces.
    pub pieces: usize,
    /// How often the end of it was voided.
    pub voided: usize,
    /// What it thought.
    pub thinking: String,
    /// Its tool calls, in the order of their starts.
    pub calls: Vec<Call>,
    /// What it asked for.
    pub asked: Vec<PermissionRequest>,
    /// What was answered: option, by whom.
    pub answered: Vec<(Option<String>, ResolvedBy)>,
    /// Usage: what `stream:complete` says, else the last `stream:usage`.
    pub usage: Option<Usage>,
    /// Tokens in the context window, its size, and what remains.
    pub window: Option<(u64, u64, u64)>,
    /// Errors: code, message, whether it may work later, attempt.
    pub errors: Vec<(String, String, bool, Option<u32>)>,
    /// How the stream says it ended.
    pub complete: Option<StopReason>,
    /// How the turn's ticket says it ended.
    pub end: TurnEnd,
}

/// `what` did not happen within [`STEP`].
pub(super) async fn within<T>(what: &str, future: impl Future<Output = T>) -> Result<T, Failure> {
    tokio::time::timeout(STEP, future).await.map_err(|_| Failure::Wrong(format!("not within {STEP:?}: {what}")))
}

impl Session {
    /// Of a session that has just begun.
    pub fn new(handle: SessionHandle) -> Self {
        Self { events: handle.subscribe(), handle, seen: Vec::new(), begun: 0, turn: None }
    }

    /// Begins a turn.
    pub async fn begin(&mut self, prompt: impl Into<Prompt>) -> Result<(), Failure> {
        let prompt = prompt.into();
        self.begun = self.seen.len();
        self.turn = Some(within("the prompt is taken", self.handle.prompt(prompt, PromptMode::Refuse)).await??);
        Ok(())
    }

    /// Queues a prompt behind the turn that runs.
    pub async fn queue(&mut self, prompt: impl Into<Prompt>) -> Result<Turn, Failure> {
        Ok(within("the prompt is queued", self.handle.prompt(prompt, PromptMode::Queue)).await??)
    }

    /// A turn of a queued prompt is the one that runs.
    pub fn follow(&mut self, turn: Turn) {
        self.begun = self.seen.len();
        self.turn = Some(turn);
    }

    /// A whole turn.
    pub async fn ask(&mut self, prompt: impl Into<Prompt>) -> Result<Told, Failure> {
        self.begin(prompt).await?;
        self.finish().await
    }

    /// What comes next is of no turn that was begun here.
    pub fn leave_turn(&mut self) {
        self.begun = self.seen.len();
    }

    /// The next event that `wanted` wants, of the turn that runs.
    pub async fn until<T>(&mut self, what: &str, mut wanted: impl FnMut(&Event) -> Option<T>) -> Result<T, Failure> {
        let deadline = tokio::time::Instant::now() + STEP;
        let mut started = self.seen[self.begun..].iter().any(|envelope| starts(envelope));
        loop {
            let next = tokio::time::timeout_at(deadline, self.events.next()).await;
            let envelope = match next {
                Ok(Some(envelope)) => envelope,
                Ok(None) => return Err(self.wrong(&format!("the stream ended before {what}"))),
                Err(_) => return Err(self.wrong(&format!("not within {STEP:?}: {what}"))),
            };
            self.seen.push(envelope.clone());
            if let Some(found) = wanted(&envelope.event) {
                return Ok(found);
            }
            started |= starts(&envelope);
            let over = matches!(envelope.event, Event::SessionIdle {}) && started;
            if over || matches!(envelope.event, Event::SessionEnded { .. }) {
                return Err(self.wrong(&format!("the turn was over before {what}")));
            }
        }
    }

    /// The permission request that comes next.
    pub async fn permission(&mut self) -> Result<PermissionRequest, Failure> {
        self.until("a permission request", |event| match event {
            Event::PermissionRequested(request) => Some((**request).clone()),
            _ => None,
        })
        .await
    }

    /// Waits until a slow answer of the model's is on its way. (Some agents say something of their own before.)
    pub async fn counting(&mut self) -> Result<(), Failure> {
        let mut text = String::new();
        self.until("the slow answer", |event| {
            if let Event::Text { text: more } = event {
                text.push_str(more);
            }
            text.contains("1 2 3 ").then_some(())
        })
        .await
    }

    /// Reads up to the end of the turn, and tells all of it.
    pub async fn finish(&mut self) -> Result<Told, Failure> {
        let mut started = self.seen[self.begun..].iter().any(|envelope| starts(envelope));
        self.until("the turn's end", |event| {
            started |= matches!(event, Event::TurnStarted { .. });
            (matches!(event, Event::SessionIdle {}) && started || matches!(event, Event::SessionEnded { .. }))
                .then_some(())
        })
        .await?;
        let turn = self.turn.take().ok_or("no turn was begun".to_owned())?;
        let end = match within("the end of the turn", turn.wait()).await? {
            Ok(end) => end,
            Err(error) => return Err(self.wrong(&error.to_string())),
        };
        Ok(self.told(end))
    }

    fn told(&self, end: TurnEnd) -> Told {
        let mut told = Told { end, ..Told::default() };
        for envelope in &self.seen[self.begun..] {
            told.add(&envelope.event);
        }
        told
    }

    /// Reads to the end of the stream. The session was ended.
    pub async fn drain(&mut self) -> Result<(), Failure> {
        while let Some(envelope) = within("the end of the stream", self.events.next()).await? {
            self.seen.push(envelope);
        }
        Ok(())
    }

    /// What the agent itself wrote, as far as it was read: a line an item, or an answer of its server's.
    pub fn verbatim(&self) -> Vec<Vec<u8>> {
        let payloads = self.seen.iter().filter_map(|envelope| match &envelope.event {
            Event::Harness { payload, .. } => Some(payload.as_bytes().to_vec()),
            _ => None,
        });
        payloads.collect()
    }

    /// A failure that shows the last events.
    pub fn wrong(&self, what: &str) -> Failure {
        let ours = |envelope: &&Arc<Envelope>| !matches!(envelope.event, Event::Harness { .. });
        let mut last: Vec<String> =
            self.seen.iter().filter(ours).rev().take(SHOWN).map(|envelope| shown(&envelope.event)).collect();
        last.reverse();
        Failure::Wrong(format!("{what}; the last events: {}", last.join(" · ")))
    }
}

fn starts(envelope: &Envelope) -> bool {
    matches!(envelope.event, Event::TurnStarted { .. })
}

/// An event in a line.
fn shown(event: &Event) -> String {
    format!("{event:?}").chars().take(400).collect()
}

impl Told {
    fn add(&mut self, event: &Event) {
        match event {
            Event::TurnStarted { prompt, .. } => self.prompt.clone_from(prompt),
            Event::Text { text } => {
                self.text.push_str(text);
                self.pieces += 1;
            }
            Event::Thinking { text } => self.thinking.push_str(text),
            Event::Voided { text_bytes, thinking_bytes } => {
                let rest =
                    |text: &str, bytes: u64| text.len().saturating_sub(usize::try_from(bytes).unwrap_or(usize::MAX));
                self.text.truncate(rest(&self.text, *text_bytes));
                self.thinking.truncate(rest(&self.thinking, *thinking_bytes));
                self.voided += 1;
            }
            Event::ToolStart(start) => {
                self.calls.push(Call { start: (**start).clone(), updates: Vec::new(), end: None });
            }
            Event::ToolUpdate(update) => {
                if let Some(call) = self.calls.iter_mut().find(|call| call.start.id == update.id) {
                    call.updates.push((**update).clone());
                }
            }
            Event::ToolEnd(end) => {
                if let Some(call) = self.calls.iter_mut().find(|call| call.start.id == end.id) {
                    call.end = Some((**end).clone());
                }
            }
            Event::PermissionRequested(request) => self.asked.push((**request).clone()),
            Event::PermissionResolved { option, by, .. } => self.answered.push((option.clone(), by.clone())),
            Event::Usage(usage) => self.usage = Some(**usage),
            Event::ContextWindow { used, size, remaining, .. } => self.window = Some((*used, *size, *remaining)),
            Event::Error { code, message, retryable, attempt, .. } => {
                self.errors.push((code.clone(), message.clone(), *retryable, *attempt));
            }
            Event::Complete { stop_reason, usage } => {
                self.complete = Some(stop_reason.clone());
                self.usage = usage.as_deref().copied().or(self.usage);
            }
            _ => {}
        }
    }

    /// The option of a request that was chosen in it.
    pub fn chosen(&self) -> Option<&PermissionOption> {
        let id = self.answered.last()?.0.as_ref()?;
        self.asked.iter().flat_map(|request| &request.options).find(|option| option.id == *id)
    }
}
