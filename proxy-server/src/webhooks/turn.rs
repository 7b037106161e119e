//! The turn that an event has ended, from the events of its session.

use std::{sync::Arc, time::Duration};

use proxy_manager::{Envelope, Event, Json, ProxyManager, SessionId, StopReason};
use tokio::time::timeout;

/// Numbers of events before the end that are looked through, one after the other.
const WINDOWS: [u64; 4] = [256, 4096, 65_536, u64::MAX];
/// Longest text of an answer, in bytes.
const MAX_TEXT: usize = 64 * 1024;
/// Time for reading.
const READ_TIME: Duration = Duration::from_secs(30);

/// Turn that has ended.
#[derive(Clone, Debug, Default)]
pub(super) struct EndedTurn {
    pub(super) number: u64,
    /// Metadata of its prompt.
    pub(super) metadata: Option<Json>,
    /// The reason that the agent gave; none for a turn that failed.
    pub(super) stop_reason: Option<StopReason>,
    /// Last error.
    pub(super) error: Option<String>,
    /// Text of the answer.
    pub(super) text: String,
    /// True if the answer was longer.
    pub(super) is_cut: bool,
}

impl EndedTurn {
    fn apply(&mut self, event: &Event) {
        match event {
            Event::Text { text } => {
                let fits = text.floor_char_boundary(MAX_TEXT.saturating_sub(self.text.len()));
                self.text.push_str(&text[..fits]);
                self.is_cut |= fits < text.len();
            }
            Event::Voided { text_bytes, .. } if !self.is_cut => {
                let bytes = usize::try_from(*text_bytes).unwrap_or(usize::MAX);
                let left = self.text.floor_char_boundary(self.text.len().saturating_sub(bytes));
                self.text.truncate(left);
            }
            Event::Error { message, .. } => self.error = Some(message.clone()),
            Event::Complete { stop_reason, .. } => self.stop_reason = Some(stop_reason.clone()),
            _ => {}
        }
    }
}

/// Finds the turn that the event at an offset has ended; `None` if it has ended none.
pub(super) async fn find(manager: &ProxyManager, session: &SessionId, end: u64) -> Option<EndedTurn> {
    for window in WINDOWS {
        let from = end.saturating_sub(window);
        match timeout(READ_TIME, read(manager, session, from, end)).await {
            Ok(LookResult::Found(turn)) => return Some(turn),
            Ok(LookResult::Nothing) => return None,
            Ok(LookResult::FurtherBack) if from > 0 => {}
            Ok(LookResult::FurtherBack) | Err(_) => break,
        }
    }
    tracing::warn!(%session, offset = end, "the turn of an event is not found");
    None
}

enum LookResult {
    Found(EndedTurn),
    /// No turn was running.
    Nothing,
    FurtherBack,
}

async fn read(manager: &ProxyManager, session: &SessionId, from: u64, end: u64) -> LookResult {
    let Ok(mut events) = manager.subscribe_from(session, from) else { return LookResult::Nothing };
    let (mut batch, mut turn, mut is_idle) = (Vec::<Arc<Envelope>>::new(), None::<EndedTurn>, false);
    while events.next_batch(&mut batch).await {
        for envelope in batch.drain(..) {
            if envelope.offset >= end {
                return match turn {
                    Some(turn) => LookResult::Found(turn),
                    None if is_idle => LookResult::Nothing,
                    None => LookResult::FurtherBack,
                };
            }
            match (&envelope.event, &mut turn) {
                (Event::TurnStarted { .. }, _) => {
                    let (number, metadata) = (envelope.turn.unwrap_or(0), envelope.metadata.clone());
                    turn = Some(EndedTurn { number, metadata, ..EndedTurn::default() });
                }
                // Another turn's end.
                (Event::SessionIdle {}, _) => (turn, is_idle) = (None, true),
                (event, Some(turn)) if envelope.turn == Some(turn.number) => turn.apply(event),
                _ => {}
            }
        }
    }
    LookResult::FurtherBack
}
