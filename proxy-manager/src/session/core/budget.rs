//! Actions when the session has used up its budget.

use agents::ModelPrice;
use ipc_protocol::{BudgetAction, BudgetExceeded, EndReason, Event, KillOptions};
use tokio::time::Instant;

use super::{RunningTurn, SessionCore, SessionPhase};
use crate::{error::Error, session::prompts::WaitingPrompt};

impl SessionCore {
    /// Records usage of the model, and acts on the budgets that it used up.
    pub(super) fn metered(&mut self, turn: u64, passed: Vec<BudgetExceeded>, turn_is_over: bool, now: Instant) {
        let (total, of_turn) = (self.meter.total(), self.meter.turn());
        self.tally(move |tally| (tally.metrics.usage, tally.turn) = (total, of_turn));
        for passed in passed {
            tracing::debug!(%passed, action = ?passed.action, "a budget is used up");
            self.push(turn, Event::BudgetExceeded(Box::new(passed)));
            if self.closing.is_some() {
                continue;
            }
            let reason = EndReason::BudgetExceeded(passed.budget);
            let ends = matches!(passed.action, BudgetAction::EndTurn | BudgetAction::EndSession);
            let running = if turn_is_over || !ends { None } else { self.busy() };
            let is_running = running.map(|busy| busy.end.over_budget.get_or_insert(passed.budget)).is_some();
            match passed.action {
                BudgetAction::Warn | BudgetAction::RefusePrompts => {}
                BudgetAction::EndTurn => {
                    if is_running && self.abort_deadline.is_none() {
                        self.end_turn(reason, now);
                    }
                }
                BudgetAction::EndSession => self.end(KillOptions::default(), reason, now),
            }
        }
    }

    /// The user's price of the model in use.
    pub(super) fn price(&self) -> Option<ModelPrice> {
        let prices = self.conditions.prices.as_ref()?;
        let model = self.agent_status.current_model.as_ref().or(self.model.as_ref())?;
        prices.price(model).copied()
    }

    fn busy(&mut self) -> Option<&mut RunningTurn> {
        if let SessionPhase::Busy(busy) = &mut self.phase { Some(busy) } else { None }
    }

    /// Reason for refusing further prompts, if there is one.
    pub(super) fn refusal(&self) -> Option<Error> {
        let session = self.id.clone();
        if self.conditions.is_draining {
            return Some(Error::Draining);
        }
        self.meter.exhausted().map(|exceeded| Error::BudgetExceeded { session, exceeded })
    }

    /// Where no further prompt is taken, those that wait are told as failed; but at the end of this host they wait for the next.
    pub(super) fn refuse_waiting(&mut self) {
        let Some(error) = self.refusal() else { return };
        self.fail_tickets(self.queue.take_tickets(), &error);
        if self.conditions.is_draining {
            return;
        }
        while let Some(WaitingPrompt { accepted, .. }) = self.queue.pop() {
            self.queue.settle(accepted.offset);
            self.push(0, Event::ActionFailed { action: accepted.name, error: error.chain() });
            self.commit_log();
        }
    }
}
