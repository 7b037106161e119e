//! Prompts that wait for their turn, and all that was accepted on the session's stream and is not done yet.
//!
//! Accepted is what is in the log: an appended action, or a prompt that was queued, which is appended as an action too. So the log is
//! the queue, and this is what a manager has in memory of it, over all lives of the session. A prompt is *begun* by one commit of its
//! `turn:started` and the consumer [`BEGUN`], before the agent gets it; at the end of the turn the consumer [`ENDED`] follows with the
//! last events. A manager that finds [`BEGUN`] ahead of [`ENDED`] tells that prompt as failed: nobody knows how far it came.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use api_types::QueuedPrompt;
use event_log::LogError;
use ipc_protocol::{Event, Json, Prompt, SessionId};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::timeout,
};

use super::turn::TurnSender;
use crate::{
    error::{Error, Result},
    history::HistoryWriter,
};

/// Prompts that may wait.
pub(crate) const MOST_QUEUED: usize = 64;
/// The last accepted prompt whose turn was begun. Those behind it wait, but for what was told as failed.
pub(crate) const BEGUN: &str = "prompts:begun";
/// The last accepted prompt whose turn has ended, or was told as failed.
pub(crate) const ENDED: &str = "prompts:ended";
/// Type of the event that a queued prompt is appended as.
pub(crate) const QUEUED: &str = "agent:action:prompt:called";
/// Longest text of a waiting prompt that is shown, in characters.
const SHOWN: usize = 200;

/// Class of an accepted action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ActionClass {
    /// A prompt that may wait for its turn.
    Queued,
    /// Anything else: done at once.
    Immediate,
}

/// An event to be appended, and what it asks for.
#[derive(Clone, Debug)]
pub(crate) struct EventToAppend {
    pub(crate) event: Event,
    /// Metadata of who appends it.
    pub(crate) metadata: Option<Json>,
    /// `None` where it asks for nothing.
    pub(crate) class: Option<ActionClass>,
}

/// A prompt that is in the log.
#[derive(Clone, Debug)]
pub(crate) struct AcceptedPrompt {
    /// Of its event.
    pub(crate) offset: u64,
    /// As failures name it.
    pub(crate) name: String,
    pub(crate) at: SystemTime,
    /// Who sent it, where that is known.
    pub(crate) by: Option<String>,
    /// Metadata of its event, which its turn has too.
    pub(crate) metadata: Option<Json>,
    /// Place among those that may wait; `None` for one that has begun, or that an earlier manager accepted.
    pub(crate) _room: Option<Arc<OwnedSemaphorePermit>>,
}

impl AcceptedPrompt {
    /// An action of this type at this offset.
    pub(crate) fn new(kind: &str, offset: u64, room: Option<OwnedSemaphorePermit>) -> Self {
        Self {
            offset,
            name: name_of(kind, offset),
            at: SystemTime::now(),
            by: None,
            metadata: None,
            _room: room.map(Arc::new),
        }
    }

    /// The same, of this sender.
    pub(crate) fn by(self, by: Option<String>) -> Self {
        Self { by, ..self }
    }

    /// The same, without a place among those that may wait.
    pub(crate) fn without_room(self) -> Self {
        Self { _room: None, ..self }
    }

    /// The same, with this metadata.
    pub(crate) fn with_metadata(self, metadata: Option<Json>) -> Self {
        Self { metadata, ..self }
    }
}

/// Names an action, for its failure.
pub(crate) fn name_of(kind: &str, offset: u64) -> String {
    format!("{kind} at {offset:020}")
}

/// A prompt that waits.
pub(crate) struct WaitingPrompt {
    pub(crate) accepted: AcceptedPrompt,
    pub(crate) prompt: Prompt,
    /// Number of its turn, as whoever sent it was told.
    pub(crate) turn: Option<u64>,
    /// Prompt that waits for its turn.
    pub(crate) ticket: Option<TurnSender>,
}

/// The queue of one session, over all its lives.
#[derive(derive_more::Debug)]
#[debug("PromptQueue({:?})", self.state().outstanding)]
pub(crate) struct PromptQueue {
    room: Arc<Semaphore>,
    state: Mutex<PromptQueueState>,
    /// True if what earlier managers accepted is here.
    is_loaded: watch::Sender<bool>,
}

#[derive(Default)]
struct PromptQueueState {
    waiting: VecDeque<WaitingPrompt>,
    /// Names by offset of prompts in the log that are neither begun nor failed.
    outstanding: BTreeMap<u64, String>,
}

impl Default for PromptQueue {
    fn default() -> Self {
        let room = Arc::new(Semaphore::new(MOST_QUEUED));
        Self { room, state: Mutex::default(), is_loaded: watch::Sender::new(true) }
    }
}

impl PromptQueue {
    fn state(&self) -> MutexGuard<'_, PromptQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more prompt: taken before its event is appended, so that none meets a full queue after that.
    ///
    /// # Errors
    /// [`Error::Busy`].
    pub(crate) fn room(&self, session: &SessionId) -> Result<OwnedSemaphorePermit> {
        self.room.clone().try_acquire_owned().map_err(|_| Error::Busy { session: session.clone(), permission: None })
    }

    /// Prompts that wait.
    pub(crate) fn len(&self) -> u64 {
        self.state().waiting.len() as u64
    }

    pub(crate) fn push(&self, prompt: WaitingPrompt) {
        self.state().waiting.push_back(prompt);
    }

    /// Returns the number of the last turn that was promised to one that waits.
    pub(crate) fn last_turn(&self) -> Option<u64> {
        self.state().waiting.iter().rev().find_map(|prompt| prompt.turn)
    }

    pub(crate) fn pop(&self) -> Option<WaitingPrompt> {
        self.state().waiting.pop_front()
    }

    /// Takes one out that has not begun.
    pub(crate) fn remove(&self, offset: u64) -> Option<WaitingPrompt> {
        let waiting = &mut self.state().waiting;
        let at = waiting.iter().position(|queued| queued.accepted.offset == offset)?;
        waiting.remove(at)
    }

    /// Puts one back that was taken out, at its place.
    pub(crate) fn put_back(&self, prompt: WaitingPrompt) {
        let waiting = &mut self.state().waiting;
        let at = waiting.iter().position(|queued| queued.accepted.offset > prompt.accepted.offset);
        waiting.insert(at.unwrap_or(waiting.len()), prompt);
    }

    /// Returns the prompts that wait, in their order.
    pub(crate) fn list(&self) -> Vec<QueuedPrompt> {
        let shown = |WaitingPrompt { accepted: AcceptedPrompt { offset, at, by, .. }, prompt, .. }: &WaitingPrompt| {
            let text = prompt.text().chars().take(SHOWN).collect();
            QueuedPrompt { offset: *offset, at: *at, text, by: by.clone() }
        };
        self.state().waiting.iter().map(shown).collect()
    }

    /// Takes the tickets of all that wait for a turn; the prompts stay.
    pub(crate) fn take_tickets(&self) -> Vec<TurnSender> {
        self.state().waiting.iter_mut().filter_map(|queued| queued.ticket.take()).collect()
    }

    /// Returns whether one that was accepted is neither begun nor told as failed.
    pub(crate) fn is_outstanding(&self, offset: u64) -> bool {
        self.state().outstanding.contains_key(&offset)
    }

    /// Notes an action that was accepted before the session had its stream.
    pub(crate) fn accept(&self, offset: u64, name: String) {
        self.state().outstanding.insert(offset, name);
    }

    /// Removes an accepted prompt that is begun, or has failed.
    pub(crate) fn settle(&self, offset: u64) {
        self.state().outstanding.remove(&offset);
    }

    /// Takes all that was accepted and neither begun nor told as failed: it is to be told now. The names, in the order accepted.
    pub(crate) fn give_up(&self) -> Vec<String> {
        let mut state = self.state();
        state.waiting.clear();
        std::mem::take(&mut state.outstanding).into_values().collect()
    }

    /// Events are appended by `log`, with what else is in its batch; `then` is told the offset of the last of them. What they ask
    /// for is outstanding from here on. `is_busy`: an accepted prompt has its turn.
    pub(crate) fn append(
        self: &Arc<Self>,
        log: &mut HistoryWriter,
        turn: u64,
        events: Vec<EventToAppend>,
        is_busy: bool,
        then: impl FnOnce(Result<u64, LogError>) + Send + 'static,
    ) {
        let (first, count) = (log.next_offset(), events.len() as u64);
        let mut accepted = BTreeMap::new();
        let mut first_queued = None;
        for (offset, EventToAppend { event, metadata, class }) in (first..).zip(events) {
            if let (Some(class), Event::External { kind, .. }) = (class, &event) {
                accepted.insert(offset, name_of(kind, offset));
                if class == ActionClass::Queued {
                    first_queued.get_or_insert(offset);
                }
            }
            log.push_with(turn, metadata, event);
        }
        {
            let mut state = self.state();
            // Nothing before it waits: the next manager need not look there.
            if let Some(offset) = first_queued.filter(|_| state.outstanding.is_empty() && !is_busy && self.is_loaded())
            {
                log.move_cursor(BEGUN, offset - 1);
            }
            state.outstanding.extend(accepted.clone());
        }
        let queue = self.clone();
        log.commit_then(move |kept| {
            if kept.as_ref().ok() != Some(&(first + count - 1)) {
                let mut state = queue.state();
                accepted.keys().for_each(|offset| _ = state.outstanding.remove(offset));
                // A marker for what the log lacks came before them.
                if let Ok(last) = &kept {
                    let shift = (last + 1).saturating_sub(first + count);
                    state.outstanding.extend(accepted.into_iter().map(|(offset, name)| (offset + shift, name)));
                }
            }
            then(kept);
        });
    }

    /// Notes that the prompts of earlier managers have yet to be looked for.
    pub(crate) fn loads(&self) {
        self.is_loaded.send_replace(false);
    }

    /// Adds the prompts that earlier managers accepted: they wait from here on.
    pub(crate) fn load(&self, prompts: Vec<(AcceptedPrompt, Prompt)>) {
        let mut state = self.state();
        for (accepted, prompt) in prompts.into_iter().rev() {
            state.outstanding.insert(accepted.offset, accepted.name.clone());
            state.waiting.push_front(WaitingPrompt { accepted, prompt, turn: None, ticket: None });
        }
        drop(state);
        self.is_loaded.send_replace(true);
    }

    fn is_loaded(&self) -> bool {
        *self.is_loaded.borrow()
    }

    /// Waits until what earlier managers accepted is here, or that takes too long.
    pub(crate) async fn loaded(&self, patience: Duration) {
        // It fails only without this.
        let _ = timeout(patience, self.is_loaded.subscribe().wait_for(|is_loaded| *is_loaded)).await;
    }
}
