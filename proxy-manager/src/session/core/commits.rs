//! Batches of a session's events: what is appended to one, and when it is committed.

use std::time::Duration;

use ipc_protocol::{EndReason, Event, Json, KillOptions};
use tokio::time::Instant;

use super::{SessionCore, SessionEffect, SessionPhase, TimerKind};

/// Longest delay of event log commits while the agent starts. Agents then sync files of their own, tens of them, and
/// start tools by the dozen: each of our commits would make them wait for the disk and for a processor. Most are ready
/// within this time.
const START_COMMITS: Duration = Duration::from_millis(250);
/// Number of events from which a commit is not delayed.
const MAX_EVENTS_AT_START: usize = 256;

impl SessionCore {
    /// Appends an event to the batch. `turn` 0 means none.
    pub(super) fn push(&mut self, turn: u64, event: Event) {
        self.batched += 1;
        self.effects.push_back(SessionEffect::Append { turn, event });
    }

    /// Appends the beginning of a turn.
    pub(super) fn push_turn(&mut self, turn: u64, event: Event, metadata: Option<Json>) {
        match metadata {
            None => self.push(turn, event),
            Some(metadata) => {
                self.batched += 1;
                self.effects.push_back(SessionEffect::AppendTurn { turn, event, metadata });
            }
        }
    }

    pub(super) fn move_cursor(&mut self, consumer: &'static str, offset: u64) {
        self.effects.push_back(SessionEffect::MoveCursor { consumer, offset });
    }

    /// Commits the batched events, unless that is delayed.
    pub(crate) fn commit(&mut self, now: Instant) {
        let is_few = (1..MAX_EVENTS_AT_START).contains(&self.batched);
        if is_few && self.delays_commits() && self.timers.is_set(TimerKind::Commit) {
            return;
        }
        if self.batched > 0 {
            self.delay_commits(now);
            self.has_new_commit = true;
            if matches!(self.phase, SessionPhase::Starting { .. }) {
                self.commit_together();
            }
        }
        self.commit_log();
    }

    /// Returns true if a change of the visible state is to be recorded now. While the agent starts, records are written
    /// with the events.
    pub(crate) fn must_record(&mut self) -> bool {
        std::mem::take(&mut self.has_new_commit) || !self.delays_commits()
    }

    /// Commits to memory are never delayed.
    pub(super) fn delays_commits(&self) -> bool {
        matches!(self.phase, SessionPhase::Starting { .. }) && self.closing.is_none() && self.conditions.is_durable
    }

    /// Delays the next commit, while the agent starts.
    pub(super) fn delay_commits(&mut self, now: Instant) {
        let at = self.delays_commits().then(|| now + START_COMMITS);
        self.timers.set(TimerKind::Commit, at);
    }

    pub(super) fn commit_log(&mut self) {
        self.batched = 0;
        self.effects.push_back(SessionEffect::Commit);
    }

    /// Commits events appended from now on together with the record that follows.
    pub(super) fn commit_together(&mut self) {
        self.effects.push_back(SessionEffect::CommitTogether);
    }

    /// Answers a caller once everything appended and shown so far is durable: after any crash the caller finds what it
    /// was answered.
    pub(super) fn reply_durably(&mut self, answer: impl FnOnce() + Send + 'static) {
        self.effects.push_back(SessionEffect::ReplyDurably(Box::new(answer)));
    }

    /// Handles a failure of the event log. `ends`: the session ends for it.
    pub(crate) fn log_failed(&mut self, error: &str, ends: bool, now: Instant) {
        if ends && self.closing.is_none() {
            self.end(KillOptions::default(), EndReason::Failed(error.to_owned()), now);
        }
        self.commit_log();
    }

    /// Handles a failure to write the journal.
    pub(crate) fn journal_failed(&mut self, error: &str) {
        let action = "writing down the session's processes in the state directory".to_owned();
        self.push(0, Event::ActionFailed { action, error: error.to_owned() });
        // The failure may be found on the way to the next wait, behind which nobody commits.
        self.commit_log();
    }
}
