//! Second attempt to start the agent, without the conversation that it could not resume: in the same session, with
//! another proxy.

use ipc_protocol::{EndReason, Receipt, codec::Outbox};
use tokio::time::Instant;

use super::{
    AgentStart, FAILURE, SessionCore, SessionEnd, SessionTimers, attach::DetachState,
    exit_status_collector::ExitStatusCollector, limits::LimitSupervisor,
};
use crate::{
    error::{Error, Result},
    session::{process_listings::ProcessListings, session_ending::SessionEnding},
};

/// Whether a second attempt follows the first.
#[derive(Debug, Default)]
pub(super) struct LaunchRetry {
    /// Error of the first attempt, while that attempt is being ended.
    pub(super) first_error: Option<Error>,
    /// True if the first attempt is over, and nothing is left of it.
    pub(super) is_due: bool,
}

impl LaunchRetry {
    /// Returns true if the end of the first attempt is not the end of the session.
    pub(super) fn is_pending(&self) -> bool {
        self.first_error.is_some()
    }
}

impl SessionCore {
    /// Handles a start that failed with `error`. `has_fallback`: the agent can be started without the conversation.
    pub(crate) fn start_failed(&mut self, error: Error, has_fallback: bool, now: Instant) {
        let reason = EndReason::Failed(error.chain());
        // An agent that cannot resume any conversation is treated like one that lost this one.
        let is_missing = matches!(error, Error::NativeSessionMissing { .. } | Error::Unsupported { .. });
        if !is_missing || !has_fallback || self.closing.is_some() {
            self.stop(error, now);
            return self.end(FAILURE, reason, now);
        }
        self.retry.first_error = Some(error);
        let step = self.ending.request(FAILURE, reason, now);
        self.perform(step, now);
    }

    /// Decides after the first attempt whether a second one follows.
    pub(super) fn will_retry(&mut self, receipt: Option<&Receipt>, now: Instant) -> bool {
        if !self.retry.is_pending() {
            return false;
        }
        if receipt.is_some_and(Receipt::is_empty) {
            self.retry.is_due = true;
            return true;
        }
        // Two attempts must not run at once.
        if let Some(error) = self.retry.first_error.take() {
            self.stop(error, now);
        }
        false
    }

    /// Returns true if the second attempt is due.
    pub(crate) fn is_retry_due(&self) -> bool {
        self.retry.is_due
    }

    /// Takes the reason for a second attempt, if one is due.
    pub(crate) fn take_retry(&mut self) -> Option<Error> {
        if !std::mem::take(&mut self.retry.is_due) {
            return None;
        }
        let error = self.retry.first_error.take()?;
        tracing::info!(error = %error.chain(), "agent failed to resume: starting a new conversation");
        // These requests were for the proxy that is gone.
        self.fail_pending(&error);
        Some(error)
    }

    /// Begins the second attempt, for a proxy that is forked now.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if the configuration is too long to be sent.
    pub(crate) fn begin_retry(&mut self, start: AgentStart, now: Instant) -> Result<()> {
        let deadlines = self.deadlines;
        (self.outbox, self.listing, self.exit_statuses) =
            (Outbox::default(), ProcessListings::default(), ExitStatusCollector::default());
        self.ending = SessionEnding::new(deadlines.wedged, deadlines.kill);
        self.limits = LimitSupervisor::new(start.config.limits.clone(), deadlines.wedged);
        self.proxy = None;
        // The new proxy counts from one.
        self.detach_state.iter_mut().for_each(DetachState::reset);
        self.timers = SessionTimers::default();
        self.arm_start(now);
        self.begin(start, now)
    }

    /// Ends the session, since the second attempt failed.
    pub(crate) fn fail_retry(&mut self, error: Error, now: Instant) {
        let reason = EndReason::Failed(error.chain());
        self.stop(error, now);
        self.finish(SessionEnd { reason, receipt: None }, false, now);
    }
}
