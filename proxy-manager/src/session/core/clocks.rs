//! Actions when the agent takes too long.

use std::time::Duration;

use ipc_protocol::{AbortPolicy, EndReason, Event, KillOptions, TimeoutAction, TimeoutKind, message::ProxyCommand};
use tokio::time::Instant;

use super::{FAILURE, SessionCore, SessionPhase, TimerKind, attach::ATTACH_TIMEOUT};
use crate::{
    error::Error,
    session::{clocks::ClockDue, pending_requests::PendingAnswer},
};

/// Longest last words, in characters.
const MAX_WORDS: usize = 1000;

/// What went wrong last in a turn.
#[derive(Debug, Default)]
pub(super) struct LastWords {
    error: Option<String>,
    stderr: Option<String>,
}

impl LastWords {
    pub(super) fn note(&mut self, event: &Event) {
        let bounded = |text: &str| Some(text.trim().chars().take(MAX_WORDS).collect());
        match event {
            Event::Error { code, message, attempt: Some(attempt), .. } => {
                self.error = bounded(&format!("{message} ({code}, attempt {attempt})"));
            }
            Event::Error { code, message, .. } => self.error = bounded(&format!("{message} ({code})")),
            Event::Log { stream, text } if stream == "stderr" && !text.trim().is_empty() => {
                self.stderr = bounded(text);
            }
            // What went wrong before it was no end.
            Event::Text { .. } | Event::ToolEnd(_) => *self = Self::default(),
            _ => {}
        }
    }

    fn text(&self) -> Option<String> {
        self.error.as_ref().or(self.stderr.as_ref()).cloned()
    }
}

impl SessionCore {
    /// Ends the session, since the turn has not ended though it was aborted.
    pub(super) fn abort_took_too_long(&mut self, now: Instant) {
        if let Some(why) = self.abort_deadline.take() {
            self.end(KillOptions::default(), why, now);
        }
    }

    /// Advances the clocks.
    pub(super) fn check_clocks(&mut self, now: Instant) {
        let turn = self.turn();
        for due in self.clocks.tick(now) {
            match due {
                ClockDue::Silent(silence) => self.push(turn, Event::SessionSilent { for_ms: millis(silence) }),
                ClockDue::Fired(clock, after) => {
                    let action = self.clocks.action();
                    let last_words =
                        if let SessionPhase::Busy(busy) = &self.phase { busy.last_words.text() } else { None };
                    self.push(turn, Event::TimeoutFired { clock, after_ms: millis(after), action, last_words });
                    if action != TimeoutAction::Warn {
                        self.act(clock, action, now);
                        break;
                    }
                }
            }
        }
        self.timers.set(TimerKind::Turn, self.clocks.next());
        self.commit_log();
    }

    /// Starts the clocks of a turn.
    pub(super) fn begin_clocks(&mut self, now: Instant) {
        self.clocks.begin(now);
        self.timers.set(TimerKind::Turn, self.clocks.next());
    }

    /// Stops the clocks, since the turn is over or is being ended.
    pub(super) fn stop_clocks(&mut self) {
        self.end_clocks();
        self.abort_deadline = None;
        self.timers.cancel(TimerKind::Abort);
        self.timers.cancel(TimerKind::Usage);
    }

    fn end_clocks(&mut self) {
        self.clocks.end();
        self.timers.cancel(TimerKind::Turn);
    }

    /// Handles an agent that is not ready in time. There is no turn to abort yet: the start is aborted.
    pub(super) fn start_timed_out(&mut self, now: Instant) {
        if !matches!(self.phase, SessionPhase::Starting { .. }) {
            return;
        }
        // A proxy that does not report its state is not waited for, however long its agent may take.
        let is_agents = !self.awaits_attached();
        let after = if is_agents { self.start.unwrap_or_default() } else { ATTACH_TIMEOUT };
        let action = match self.clocks.action() {
            TimeoutAction::Warn if is_agents => TimeoutAction::Warn,
            _ => TimeoutAction::KillSession,
        };
        let clock = TimeoutKind::Start;
        self.push(0, Event::TimeoutFired { clock, after_ms: millis(after), action, last_words: None });
        if action == TimeoutAction::Warn {
            return self.commit_log();
        }
        let operation = format!("starting the agent of session {}", &self.id);
        self.stop(Error::Deadline { operation, after }, now);
        self.end(FAILURE, EndReason::TimedOut(clock), now);
    }

    /// Ends the turn, or the session, because a clock has run out.
    fn act(&mut self, clock: TimeoutKind, action: TimeoutAction, now: Instant) {
        tracing::debug!(%clock, ?action, "took too long");
        self.end_clocks();
        if let SessionPhase::Busy(busy) = &mut self.phase {
            busy.end.timed_out = Some(clock);
            busy.end.last_words = busy.last_words.text();
        }
        if action == TimeoutAction::KillSession {
            return self.end(KillOptions::default(), EndReason::TimedOut(clock), now);
        }
        self.end_turn(EndReason::TimedOut(clock), now);
    }

    /// Aborts the turn; if that does not end it, the session ends for this reason.
    pub(super) fn end_turn(&mut self, why: EndReason, now: Instant) {
        self.end_clocks();
        let (policy, options) = (AbortPolicy::LeaveProcesses, KillOptions::default());
        let sent = self.send(PendingAnswer::EndTurn(why.clone()), ProxyCommand::Abort { policy, options }).is_some();
        // The turn has to end even if the abort was not sent.
        let patience = if sent { self.deadlines.control } else { Duration::ZERO };
        let deadline = now.checked_add(patience);
        self.abort_deadline = deadline.map(|_| why);
        self.timers.set(TimerKind::Abort, deadline);
    }

    /// Handles an agent that cannot abort a turn that must end.
    pub(super) fn abort_failed(&mut self, why: EndReason, error: &Error, now: Instant) {
        let action = format!("aborting the turn ({why})");
        self.push(0, Event::ActionFailed { action, error: error.chain() });
        if self.abort_deadline.is_some() {
            self.end(KillOptions::default(), why, now);
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
