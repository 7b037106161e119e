//! Actions when the session's proxy does not answer.

use ipc_protocol::{EndReason, Event, KillOptions, message::ProxyCommand};
use tokio::time::Instant;

use super::{SessionCore, SessionEffect};
use crate::session::{pending_requests::PendingAnswer, pulse::PulseAction};

impl SessionCore {
    /// Advances the health check.
    pub(super) fn check_pulse(&mut self, now: Instant) {
        if self.closing.is_some() {
            return;
        }
        let beat = self.pulse.tick(&mut self.timers, now);
        let missed = self.pulse.missed();
        self.tally(move |tally| tally.metrics.missed_pings = missed);
        if missed > 0 {
            self.effects.push_back(SessionEffect::FreeProxy);
        }
        match beat {
            PulseAction::Nothing => {}
            PulseAction::Ping => _ = self.send(PendingAnswer::Pulse, ProxyCommand::Ping),
            PulseAction::Unresponsive(missed) => {
                tracing::warn!(missed, "proxy is unresponsive");
                let detail = format!("its proxy did not answer {missed} pings in a row");
                let turn = self.turn();
                self.push(turn, Event::SessionStatus { status: "unresponsive".to_owned(), detail });
                self.commit_log();
                if self.pulse.ends_session() {
                    // Bypasses the proxy, which is the party that does not answer.
                    self.force_for(KillOptions::default(), EndReason::Unresponsive(missed), now);
                }
            }
        }
    }

    /// Records that this host does not read from the proxy: its log is behind, or a lease is waited for.
    pub(crate) fn pause_health_check(&mut self) {
        self.pulse.pause();
    }

    /// Records a message of the proxy.
    pub(super) fn record_activity(&mut self, now: Instant) {
        self.effects.push_back(SessionEffect::Heard(now));
        if self.pulse.record_activity(now) && self.closing.is_none() {
            let detail = "its proxy answers again".to_owned();
            let turn = self.turn();
            self.push(turn, Event::SessionStatus { status: "responsive".to_owned(), detail });
        }
    }
}
