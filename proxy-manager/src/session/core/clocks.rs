//! Actions when the agent takes too long.

use std::time::Duration;

use ipc_protocol::{AbortPolicy, EndReason, Event, KillOptions, TimeoutAction, TimeoutKind, message::ProxyCommand};
use tokio::time::Instant;

use super::{Core, Phase, attach::PATIENCE};
use crate::{
    error::Error,
    session::{Task, clocks::Due, pending::Waiting},
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

impl Core {
    /// Instant at which a clock is due.
    pub(super) fn next_clock(&self) -> Option<Instant> {
        [self.clocks.next(), self.overdue.as_ref().map(|(_, deadline)| *deadline)].into_iter().flatten().min()
    }

    /// Advances the clocks.
    pub(super) fn look_at_clocks(&mut self, now: Instant) {
        if let Phase::Starting { deadline: Some(deadline), .. } = self.phase
            && deadline <= now
        {
            return self.start_took_too_long(now);
        }
        if let Some((why, _)) = self.overdue.take_if(|(_, deadline)| *deadline <= now) {
            return self.end(KillOptions::default(), why, now);
        }
        let turn = self.turn();
        for due in self.clocks.tick(now) {
            match due {
                Due::Silent(silence) => self.log.push(turn, Event::SessionSilent { for_ms: millis(silence) }),
                Due::Fired(clock, after) => {
                    let action = self.clocks.action();
                    let last_words = if let Phase::Busy(busy) = &self.phase { busy.last_words.text() } else { None };
                    self.log.push(turn, Event::TimeoutFired { clock, after_ms: millis(after), action, last_words });
                    if action != TimeoutAction::Warn {
                        self.act(clock, action, now);
                        break;
                    }
                }
            }
        }
        self.log.commit();
    }

    /// Stops the clocks, since the turn is over or is being ended.
    pub(super) fn stop_clocks(&mut self) {
        self.clocks.end();
        self.overdue = None;
    }

    /// Handles an agent that is not ready in time. There is no turn to abort yet: the start is aborted.
    fn start_took_too_long(&mut self, now: Instant) {
        // A proxy that does not report its state is not waited for, however long its agent may take.
        let is_agents = !self.awaits_attached();
        let after = if is_agents { self.start.unwrap_or_default() } else { PATIENCE };
        let action = match self.clocks.action() {
            TimeoutAction::Warn if is_agents => TimeoutAction::Warn,
            _ => TimeoutAction::KillSession,
        };
        let clock = TimeoutKind::Start;
        self.log.push(0, Event::TimeoutFired { clock, after_ms: millis(after), action, last_words: None });
        if action == TimeoutAction::Warn {
            if let Phase::Starting { deadline, .. } = &mut self.phase {
                *deadline = None;
            }
            return self.log.commit();
        }
        let operation = format!("starting the agent of session {}", self.session.id());
        self.stop(Error::Deadline { operation, after });
        self.end(Task::FAILED, EndReason::TimedOut(clock), now);
    }

    /// Ends the turn, or the session, because a clock has run out.
    fn act(&mut self, clock: TimeoutKind, action: TimeoutAction, now: Instant) {
        tracing::debug!(%clock, ?action, "took too long");
        self.clocks.end();
        if let Phase::Busy(busy) = &mut self.phase {
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
        self.clocks.end();
        let (policy, options) = (AbortPolicy::LeaveProcesses, KillOptions::default());
        let sent = self.send(Waiting::EndTurn(why.clone()), ProxyCommand::Abort { policy, options }).is_some();
        // The turn has to end even if the abort was not sent.
        let patience = if sent { self.session.deadlines().control } else { Duration::ZERO };
        self.overdue = now.checked_add(patience).map(|deadline| (why, deadline));
    }

    /// Handles an agent that cannot abort a turn that must end.
    pub(super) fn abort_failed(&mut self, why: EndReason, error: &Error, now: Instant) {
        let action = format!("aborting the turn ({why})");
        self.log.push(0, Event::ActionFailed { action, error: error.to_string() });
        if self.overdue.is_some() {
            self.end(KillOptions::default(), why, now);
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
