//! What becomes of a turn that meets the usage limit of the agent's account.

use std::time::{Duration, SystemTime};

use ipc_protocol::{Event, OnUsageLimit, Prompt, StopReason, message::ProxyCommand};
use tokio::time::Instant;

use super::{RunningTurn, SessionCore, SessionPhase, TimerKind};
use crate::session::pending_requests::PendingAnswer;

/// Longest wait for a reset. Weekly limits are the longest that there are.
const LONGEST: Duration = Duration::from_secs(8 * 24 * 3600);
/// Shortest wait, doubled with each in a row: a reset that was announced may not have come.
const SHORTEST: Duration = Duration::from_secs(1);
const MOST_DOUBLINGS: u32 = 10;

/// The waits of a turn.
#[derive(Debug, Default)]
pub(super) struct UsageWait {
    /// What is asked again; none where nobody waits.
    prompt: Option<Prompt>,
    /// For how long to wait when the turn has failed.
    pause: Option<Duration>,
    waits: u32,
}

impl UsageWait {
    /// Of a turn with this prompt.
    pub(super) fn new(on_limit: OnUsageLimit, prompt: &Prompt) -> Self {
        Self { prompt: (on_limit == OnUsageLimit::Wait).then(|| prompt.clone()), ..Self::default() }
    }

    /// Takes what the agent says of a limit. Whether the turn waits for its reset.
    fn limited(&mut self, resets_at: Option<u64>, wall_clock: SystemTime) -> bool {
        self.pause = resets_at.filter(|_| self.prompt.is_some()).and_then(|resets_at| {
            let now = wall_clock.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let left = Duration::from_millis(resets_at).saturating_sub(now);
            (left <= LONGEST).then(|| left.max(SHORTEST * 2_u32.pow(self.waits.min(MOST_DOUBLINGS))))
        });
        self.pause.is_some()
    }
}

impl SessionCore {
    /// The running turn has this event. What the agent says of a usage limit is completed.
    pub(super) fn note_usage_limit(&mut self, event: &mut Event) {
        if let (Event::UsageLimited { resets_at, waits, .. }, SessionPhase::Busy(busy)) = (event, &mut self.phase) {
            *waits = busy.usage_wait.limited(*resets_at, self.conditions.wall_clock);
        }
    }

    /// The agent's turn is over. Whether the session's waits for the reset of a usage limit.
    pub(super) fn waits_for_usage(&mut self, turn: u64, now: Instant) -> bool {
        let SessionPhase::Busy(busy) = &mut self.phase else { return false };
        let failed = busy.turn == turn && busy.end.error.is_some() && busy.end.timed_out.is_none();
        let Some(pause) = busy.usage_wait.pause.take().filter(|_| failed && self.closing.is_none()) else {
            return false;
        };
        busy.usage_wait.waits += 1;
        // No clock of the agent's runs: it is not asked for anything.
        self.stop_clocks();
        self.timers.set(TimerKind::Usage, now.checked_add(pause));
        self.commit_log();
        true
    }

    /// Asks again, since the limit is reset.
    pub(super) fn ask_again(&mut self, now: Instant) {
        let SessionPhase::Busy(busy) = &mut self.phase else { return };
        let RunningTurn { turn, usage_wait, end, .. } = &mut **busy;
        let (turn, Some(prompt)) = (*turn, usage_wait.prompt.clone()) else { return };
        end.error = None;
        let detail = "the usage limit is reset: the prompt is asked again".to_owned();
        self.push(turn, Event::SessionStatus { status: "usageLimitReset".to_owned(), detail });
        self.begin_clocks(now);
        let waiting = PendingAnswer::Prompt { turn, caller: None };
        // What cannot be sent fails the turn: the next look at it would find the same.
        if self.send(waiting, ProxyCommand::Prompt { turn, prompt }).is_none() {
            self.turn_ended(turn, now);
        }
        self.commit_log();
    }

    /// Somebody aborts the turn. One that waits has nobody else to end it.
    pub(super) fn abort_usage_wait(&mut self, now: Instant) {
        let SessionPhase::Busy(busy) = &mut self.phase else { return };
        if !self.timers.cancel(TimerKind::Usage) {
            return;
        }
        let turn = busy.turn;
        busy.end.error = None;
        busy.end.stop_reason = Some(StopReason::Cancelled);
        self.push(turn, Event::Complete { stop_reason: StopReason::Cancelled, usage: None });
        self.turn_ended(turn, now);
    }
}
