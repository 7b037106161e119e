//! Actions when the session's proxy does not answer.

use ipc_protocol::{EndReason, Event, KillOptions, message::ProxyCommand};
use tokio::time::Instant;

use super::{Core, SessionEffect};
use crate::session::{pending::Waiting, pulse::Beat};

impl Core {
    /// Advances the health check.
    pub(super) fn take_pulse(&mut self, now: Instant) {
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
            Beat::Nothing => {}
            Beat::Ping => _ = self.send(Waiting::Pulse, ProxyCommand::Ping),
            Beat::Unresponsive(missed) => {
                tracing::warn!(missed, "proxy is unresponsive");
                let detail = format!("its proxy did not answer {missed} pings in a row");
                let turn = self.turn();
                self.push(turn, Event::SessionStatus { status: "unresponsive".to_owned(), detail });
                self.commit_log();
                if self.pulse.ends() {
                    // Bypasses the proxy, which is the party that does not answer.
                    self.force_for(KillOptions::default(), EndReason::Unresponsive(missed), now);
                }
            }
        }
    }

    /// Records a message of the proxy.
    pub(super) fn heard(&mut self, now: Instant) {
        self.effects.push_back(SessionEffect::Heard(now));
        if self.pulse.hear(now) && self.closing.is_none() {
            let detail = "its proxy answers again".to_owned();
            let turn = self.turn();
            self.push(turn, Event::SessionStatus { status: "responsive".to_owned(), detail });
        }
    }
}
