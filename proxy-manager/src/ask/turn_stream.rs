//! Follows a prompt to the end of its turn.

use std::{collections::VecDeque, sync::Arc};

use ipc_protocol::{Envelope, Event};
use tokio::sync::oneshot;

use crate::{
    error::{Error, Result},
    history::Subscription,
    session::{Session, Turn, TurnEnd},
};

/// The events of one turn as they come, followed by its end.
#[derive(Debug)]
pub struct TurnStream {
    session: Arc<Session>,
    events: Subscription,
    ready: VecDeque<Arc<Envelope>>,
    /// Offset of the last event taken from `events`.
    seen: u64,
    /// Number of the turn; `None` for an agent without turns.
    turn: Option<u64>,
    end: End,
}

/// Progress of the turn.
#[derive(Debug)]
enum End {
    Awaited(oneshot::Receiver<Result<TurnEnd>>),
    /// The turn is over; events up to this offset may still belong to it.
    At(u64, Option<Result<TurnEnd>>),
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
    pub(crate) async fn of(session: Arc<Session>, send: impl Future<Output = Result<Turn>>) -> Result<Self> {
        // Subscribes first: the turn may be over before its events are read.
        let seen = session.history().last_offset();
        let events = session.subscribe_from(seen);
        let turn = send.await?;
        let number = turn.number();
        Ok(Self { session, events, ready: VecDeque::new(), seen, turn: number, end: End::Awaited(wait(turn)) })
    }

    /// Number of the turn, as in [`Turn::number`].
    pub fn number(&self) -> Option<u64> {
        self.turn
    }

    /// Returns the next item; `None` after the end. Cancel-safe: dropping it while it waits loses nothing.
    pub async fn next(&mut self) -> Option<TurnStep> {
        loop {
            while let Some(envelope) = self.ready.pop_front() {
                if self.is_ours(&envelope) {
                    return Some(TurnStep::Event(envelope));
                }
            }
            let mut batch = Vec::new();
            match &mut self.end {
                End::Awaited(end) => tokio::select! {
                    biased;
                    result = end => {
                        let result = result.unwrap_or(Err(Error::ShutDown));
                        self.end = End::At(self.session.history().last_offset(), Some(result));
                    }
                    more = self.events.next_batch(&mut batch) => {
                        if !more && let End::Awaited(end) = &mut self.end {
                            let result = end.await.unwrap_or(Err(Error::ShutDown));
                            self.end = End::At(0, Some(result));
                        }
                    }
                },
                End::At(last, result) => {
                    if self.seen >= *last || !self.events.next_batch(&mut batch).await {
                        return result.take().map(TurnStep::End);
                    }
                }
            }
            self.seen = batch.last().map_or(self.seen, |envelope| envelope.offset);
            self.ready.extend(batch);
        }
    }

    fn is_ours(&self, envelope: &Envelope) -> bool {
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
