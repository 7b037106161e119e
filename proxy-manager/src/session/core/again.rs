//! Second attempt to start the agent, without the conversation that it could not resume: in the same session, with
//! another proxy.

use agents::conversations::ResumedConversation;
use ipc_protocol::{EndReason, Receipt, codec::Outbox};
use tokio::time::Instant;

use super::{Core, Phase, attach::Outliving, limits::Overseer, witness::Witness};
use crate::{
    error::{Error, Result},
    launch::Attempt,
    session::{Task, ending::Ending, listing::Listing},
};

/// Fallback for a first attempt that fails for lack of the conversation.
#[derive(Debug, Default)]
pub(super) struct Retry {
    pub(super) fallback: Option<Box<Attempt>>,
    /// Conversation whose database may be broken, which would keep the agent from any conversation.
    pub(super) resumed: Option<ResumedConversation>,
    /// Error of the first attempt, while that attempt is being ended.
    pub(super) missing: Option<Error>,
    /// True if the first attempt is over, and nothing is left of it.
    pub(super) is_due: bool,
}

impl Retry {
    /// Returns true if the end of the first attempt is not the end of the session.
    pub(super) fn is_coming(&self) -> bool {
        self.missing.is_some()
    }
}

impl Core {
    /// Handles a start that failed.
    pub(super) fn start_failed(&mut self, error: Error, now: Instant) {
        let error = self.broken_database(error);
        let reason = EndReason::Failed(error.to_string());
        // An agent that cannot resume any conversation is treated like one that lost this one.
        let is_missing = matches!(error, Error::NativeSessionMissing { .. } | Error::Unsupported { .. });
        if !is_missing || self.retry.fallback.is_none() || self.closing.is_some() {
            self.stop(error);
            return self.end(Task::FAILED, reason, now);
        }
        self.retry.missing = Some(error);
        let step = self.ending.request(Task::FAILED, reason, now);
        self.take(step, now);
    }

    /// Replaces `error` if a broken database caused it. The second attempt then renames the database, unless another
    /// session has it open.
    fn broken_database(&mut self, error: Error) -> Error {
        let (Some(resumed), Error::AgentDied { reason, .. }) = (self.retry.resumed.take(), &error) else {
            return error;
        };
        let Some(mut damaged) = resumed.database_damage(reason) else { return error };
        match self.conversation.neighbour() {
            None => {
                if let Some(attempt) = &mut self.retry.fallback {
                    attempt.broken = Some(resumed);
                }
            }
            Some(other) => {
                self.retry.fallback = None;
                damaged.reason.push_str(&format!(", and session {other} has it open: end that first"));
            }
        }
        damaged.into()
    }

    /// Decides after the first attempt whether a second one follows.
    pub(super) fn tries_again(&mut self, receipt: Option<&Receipt>) -> bool {
        if !self.retry.is_coming() {
            return false;
        }
        if receipt.is_some_and(Receipt::is_empty) {
            self.retry.is_due = true;
            return true;
        }
        // Two attempts must not run at once.
        if let Some(error) = self.retry.missing.take() {
            self.stop(error);
        }
        false
    }

    /// Returns true if the second attempt is due.
    pub(crate) fn is_to_be_started_again(&self) -> bool {
        self.retry.is_due
    }

    /// Takes the second attempt, if it is due.
    pub(crate) fn next_attempt(&mut self) -> Option<Box<Attempt>> {
        if !std::mem::take(&mut self.retry.is_due) {
            return None;
        }
        let error = self.retry.missing.take()?;
        let mut attempt = self.retry.fallback.take()?;
        tracing::info!(%error, "agent failed to resume: starting a new conversation");
        attempt.anew = Some(error.to_string());
        // These requests were for the proxy that is gone.
        self.pending.fail_all(&error);
        Some(attempt)
    }

    /// Begins the second attempt, for a proxy that is forked now.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if the configuration is too long to be sent.
    pub(crate) fn begin_again(&mut self, attempt: Attempt, now: Instant) -> Result<()> {
        let deadlines = *self.session.deadlines();
        (self.outbox, self.listing, self.witness) = (Outbox::default(), Listing::default(), Witness::default());
        self.orders.clear();
        self.ending = Ending::new(deadlines.wedged, deadlines.kill);
        self.limits = Overseer::new(attempt.config.limits.clone(), deadlines.wedged);
        self.proxy = None;
        // The new proxy counts from one.
        self.outliving.iter_mut().for_each(Outliving::begin_again);
        if let Phase::Starting { deadline, .. } = &mut self.phase {
            *deadline = self.start.and_then(|start| now.checked_add(start));
        }
        if let Some(journal) = self.journal.take() {
            let fresh = journal.renewed();
            // Nothing is left of the processes it recorded.
            journal.remove();
            self.journal = Some(fresh);
        }
        self.begin(attempt)
    }

    /// Ends the session, since the second attempt failed.
    pub(crate) fn cannot_begin_again(&mut self, error: Error) {
        let reason = EndReason::Failed(error.to_string());
        self.stop(error);
        self.finish(super::End { reason, receipt: None });
    }
}
