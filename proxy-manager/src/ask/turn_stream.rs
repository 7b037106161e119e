//! Follows a prompt to the end of its turn.

use std::{collections::VecDeque, sync::Arc};

use ipc_protocol::{Envelope, Event};
use tokio::sync::oneshot;

use crate::{
    error::{Error, Result},
    history::Subscription,
    session::{ManagedSession, Turn, TurnEnd},
};

/// The events of one turn as they come, followed by its end.
///
/// ```no_run
/// # async fn example(session: proxy_manager::SessionHandle) -> proxy_manager::Result<()> {
/// use proxy_manager::{
///     PromptMode,
///     answers::{TurnStep, TurnStream},
/// };
///
/// let mut turn = TurnStream::follow(session.clone(), session.prompt("hello", PromptMode::Refuse)).await?;
/// while let Some(step) = turn.next().await {
///     match step {
///         TurnStep::Event(envelope) => println!("{:?}", envelope.event),
///         TurnStep::End(end) => println!("{:?}", end?.stop_reason),
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TurnStream {
    session: Arc<ManagedSession>,
    events: Subscription,
    ready: VecDeque<Arc<Envelope>>,
    /// Offset of the last event taken from `events`.
    last_offset: u64,
    /// Number of the turn; `None` for an agent without turns.
    turn: Option<u64>,
    end: TurnProgress,
}

/// Progress of the turn.
#[derive(Debug)]
enum TurnProgress {
    Pending(oneshot::Receiver<Result<TurnEnd>>),
    /// The turn is over; events up to this offset may still belong to it.
    Reached(u64, Option<Result<TurnEnd>>),
}

/// Item of a [`TurnStream`].
#[derive(Debug)]
pub enum TurnStep {
    /// An event of the turn.
    Event(Arc<Envelope>),
    /// The turn's end; nothing follows.
    End(Result<TurnEnd>),
}

impl TurnStream {
    /// Follows the turn of the prompt that `send` sends to the session, and perhaps resumes the session for.
    ///
    /// # Errors
    /// Those of `send`, when the prompt was not accepted.
    pub(crate) async fn of(session: Arc<ManagedSession>, send: impl Future<Output = Result<Turn>>) -> Result<Self> {
        // Subscribes first: the turn may be over before its events are read.
        let seen = session.history().last_offset();
        let events = session.subscribe_from(seen);
        let turn = send.await?;
        let number = turn.number();
        Ok(Self {
            session,
            events,
            ready: VecDeque::new(),
            last_offset: seen,
            turn: number,
            end: TurnProgress::Pending(wait(turn)),
        })
    }

    /// Number of the turn, as in [`Turn::number`].
    pub fn number(&self) -> Option<u64> {
        self.turn
    }

    /// Returns the next item; `None` after the end. Cancel-safe: dropping it while it waits loses nothing.
    ///
    /// # Cancel safety
    /// Cancel safe: no step is lost.
    pub async fn next(&mut self) -> Option<TurnStep> {
        loop {
            while let Some(envelope) = self.ready.pop_front() {
                if self.belongs_to_turn(&envelope) {
                    return Some(TurnStep::Event(envelope));
                }
            }
            let mut batch = Vec::new();
            match &mut self.end {
                TurnProgress::Pending(end) => tokio::select! {
                    biased;
                    result = end => {
                        let result = result.unwrap_or(Err(Error::ShutDown));
                        self.end = TurnProgress::Reached(self.session.history().last_offset(), Some(result));
                    }
                    more = self.events.next_batch(&mut batch) => {
                        if !more && let TurnProgress::Pending(end) = &mut self.end {
                            let result = end.await.unwrap_or(Err(Error::ShutDown));
                            self.end = TurnProgress::Reached(0, Some(result));
                        }
                    }
                },
                TurnProgress::Reached(last, result) => {
                    if self.last_offset >= *last || !self.events.next_batch(&mut batch).await {
                        return result.take().map(TurnStep::End);
                    }
                }
            }
            self.last_offset = batch.last().map_or(self.last_offset, |envelope| envelope.offset);
            self.ready.extend(batch);
        }
    }

    fn belongs_to_turn(&self, envelope: &Envelope) -> bool {
        // The session's end, and a gap in its events, concern every turn.
        matches!(envelope.event, Event::SessionEnded { .. } | Event::SessionGap(_))
            || (self.turn.is_some() && envelope.turn == self.turn)
    }
}

/// Converts a turn's end to a receiver, which can be awaited by reference.
fn wait(turn: Turn) -> oneshot::Receiver<Result<TurnEnd>> {
    let (sender, receiver) = oneshot::channel();
    tokio::spawn(async move { sender.send(turn.wait().await) });
    receiver
}
