//! State machine of a session's end: the parties that were asked, their reports, and when these suffice. No I/O.
//!
//! Asked to end, the proxy says how (`Ended`) and exits; the fork server then reports it gone, with what it left. A proxy
//! that does not answer in time is wedged: the fork server is asked instead. If the fork server is dead the proxy ends the
//! session by itself. If it is dead too, or does not do it in time, the host sweeps the session in the fork server's place.
//!
//! ```text
//!   request: AskProxy (ProxyCommand::Kill) -----------> FromProxy::Ended: said ------------------------------------+
//!      | it has not answered after grace + wedged: tick    | it does not exit within 500 ms: tick                  |
//!      v                                                   v                                                       v
//!   ask_fork_server: AskForkServer (ToForkServer::Kill) -------------> Word::Gone: gone ------------------> verdict: both have
//!      | the fork server is dead: guard_dead                                                                       ^ reported, or
//!      v                                                                                                           | give_up is over
//!   Sweep::Due, in 1.2 s: sweep_if_due: Step::Sweep -> SessionEffect::Sweep -> ForkServer::sweep --> swept --------+
//! ```

use std::time::Duration;

use ipc_protocol::{EndReason, KillCause, KillOptions, Proof, Receipt};
use tokio::time::Instant;

use crate::fork_server::ProxyGone;

/// Next action of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EndingStep {
    Nothing,
    /// Send `Shutdown` to the proxy.
    AskProxy(KillOptions, EndReason),
    /// Send `Kill` to the fork server.
    AskForkServer(KillOptions),
    /// Sweep the session: nobody else can end it any more.
    Sweep,
}

/// Time that a proxy that has lost its fork server may take to end its session, which it does with a grace of 300 ms.
const LONELY_PROXY: Duration = Duration::from_millis(1200);

/// Time that a proxy may take to exit once it has reported its end: its fork server looks for the session's marker then.
const EXIT_PATIENCE: Duration = Duration::from_millis(500);

/// True if the host sweeps the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SweepProgress {
    /// There is no need, or the session is not known well enough.
    No,
    /// The fork server is dead: at this time, unless the proxy proves the end before.
    Due(Instant),
    /// The sweep is under way.
    Running,
    /// The sweep has ended.
    Done,
}

/// The end of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionEnd {
    pub(crate) reason: EndReason,
    pub(crate) receipt: Option<Box<Receipt>>,
}

#[derive(Debug)]
struct RequestedKill {
    options: KillOptions,
    reason: EndReason,
    /// Instant at which the proxy counts as wedged; `None` is never.
    wedged_at: Option<Instant>,
    /// True if the fork server was asked.
    escalated: bool,
}

/// State of the session's end.
#[derive(Debug)]
pub(crate) struct SessionEnding {
    wedged: Duration,
    report_timeout: Duration,
    kill: Option<RequestedKill>,
    report: Option<(EndReason, Box<Receipt>)>,
    /// True if the proxy has reported its end.
    has_report: bool,
    gone: Option<ProxyGone>,
    is_guard_dead: bool,
    sweep: SweepProgress,
    closed: bool,
    /// Instant at which the fork server is to end the proxy that has reported, and does not exit.
    exit_due: Option<Instant>,
    /// Instant at which missing reports are given up.
    abandon_at: Option<Instant>,
}

impl SessionEnding {
    /// `wedged` is the time after its grace that a proxy may take. `report_timeout` is the wait for one party's report after
    /// another party's.
    pub(crate) fn new(wedged: Duration, report_timeout: Duration) -> Self {
        Self {
            wedged,
            report_timeout,
            kill: None,
            report: None,
            has_report: false,
            gone: None,
            is_guard_dead: false,
            sweep: SweepProgress::No,
            closed: false,
            exit_due: None,
            abandon_at: None,
        }
    }

    /// Requests the end on behalf of the host.
    pub(crate) fn request(&mut self, options: KillOptions, reason: EndReason, now: Instant) -> EndingStep {
        let patience = now.checked_add(options.grace.saturating_add(self.wedged));
        match &mut self.kill {
            Some(kill) if kill.escalated => return self.ask_fork_server(),
            Some(kill) if options.grace < kill.options.grace => {
                kill.options = options;
                kill.wedged_at = match (kill.wedged_at, patience) {
                    (Some(old), Some(new)) => Some(old.min(new)),
                    (old, new) => old.or(new),
                };
            }
            Some(_) => return EndingStep::Nothing,
            None => {
                self.kill =
                    Some(RequestedKill { options, reason: reason.clone(), wedged_at: patience, escalated: false })
            }
        }
        if self.closed || self.report.is_some() || self.gone.is_some() {
            return EndingStep::Nothing;
        }
        EndingStep::AskProxy(options, reason)
    }

    /// Has the fork server end the session, since the proxy cannot be reached. The connection counts as closed.
    pub(crate) fn force(&mut self, options: KillOptions, reason: EndReason, now: Instant) -> EndingStep {
        self.kill = Some(RequestedKill { options, reason, wedged_at: None, escalated: true });
        self.closed = true;
        // The fork server's kill takes up to the grace; only then its report can be expected.
        self.abandon_at = now.checked_add(options.grace.saturating_add(self.report_timeout));
        if self.is_guard_dead { self.sweep_if_due(now) } else { self.ask_fork_server() }
    }

    fn ask_fork_server(&mut self) -> EndingStep {
        let Some(kill) = &mut self.kill else { return EndingStep::Nothing };
        if self.gone.is_some() || self.is_guard_dead {
            return EndingStep::Nothing;
        }
        kill.escalated = true;
        EndingStep::AskForkServer(kill.options)
    }

    /// Records the proxy's report that the session is over.
    pub(crate) fn record_report(&mut self, reason: EndReason, receipt: Box<Receipt>, now: Instant) {
        if receipt.unmarked.is_none() && self.gone.is_none() {
            self.exit_due = now.checked_add(EXIT_PATIENCE);
        }
        self.report = Some((reason, receipt));
        self.has_report = true;
        self.start_report_timeout(now);
    }

    /// Records the fork server's report that the proxy is gone.
    pub(crate) fn record_gone(&mut self, gone: ProxyGone, now: Instant) {
        self.gone = Some(gone);
        self.start_report_timeout(now);
    }

    /// The fork server is dead. `can_sweep`: the host knows enough of the session to end it in its place.
    pub(crate) fn record_guard_death(&mut self, can_sweep: bool, now: Instant) -> EndingStep {
        self.is_guard_dead = true;
        self.start_report_timeout(now);
        if can_sweep && self.gone.is_none() && self.sweep == SweepProgress::No {
            // A proxy that did not do it when it was asked will not do it now.
            let is_wedged = self.kill.as_ref().is_some_and(|kill| kill.escalated);
            self.sweep = SweepProgress::Due(if is_wedged { now } else { now + LONELY_PROXY });
        }
        self.sweep_if_due(now)
    }

    /// The connection to the proxy is at its end.
    pub(crate) fn record_close(&mut self, now: Instant) -> EndingStep {
        self.closed = true;
        self.start_report_timeout(now);
        self.sweep_if_due(now)
    }

    /// The sweep has ended; without a receipt it could not be done.
    pub(crate) fn swept(&mut self, receipt: Option<Box<Receipt>>, now: Instant) {
        self.sweep = SweepProgress::Done;
        self.gone = receipt.map(|receipt| ProxyGone { exit: None, receipt });
        // The proxy is dead by now: what it wrote is read, and no more is waited for.
        self.abandon_at = Some(now + self.report_timeout);
    }

    /// Returns whether the proxy has proven that nothing is left.
    fn has_proven(&self) -> bool {
        self.report.as_ref().is_some_and(|(_, receipt)| receipt.is_empty() && receipt.unmarked.is_some())
    }

    fn sweep_if_due(&mut self, now: Instant) -> EndingStep {
        let SweepProgress::Due(due) = self.sweep else { return EndingStep::Nothing };
        if self.has_proven() || !(self.closed || due <= now) {
            return EndingStep::Nothing;
        }
        self.sweep = SweepProgress::Running;
        EndingStep::Sweep
    }

    fn start_report_timeout(&mut self, now: Instant) {
        if self.abandon_at.is_none() {
            self.abandon_at = now.checked_add(self.report_timeout);
        }
    }

    /// Returns true if the proxy itself has reported the session's end and its receipt.
    pub(crate) fn has_report(&self) -> bool {
        self.has_report
    }

    /// Returns true if the connection to the proxy has ended or was given up.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns true if the fork server is known to be dead.
    pub(crate) fn is_guard_dead(&self) -> bool {
        self.is_guard_dead
    }

    /// Instant at which [`SessionEnding::tick`] is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        let patience = self.kill.as_ref().filter(|kill| !kill.escalated && self.report.is_none());
        let give_up = self.abandon_at.filter(|_| self.sweep != SweepProgress::Running);
        let sweep =
            if let SweepProgress::Due(due) = self.sweep { Some(due).filter(|_| !self.has_proven()) } else { None };
        [patience.and_then(|kill| kill.wedged_at), give_up, sweep, self.exit_due].into_iter().flatten().min()
    }

    /// Advances the time.
    pub(crate) fn tick(&mut self, now: Instant) -> EndingStep {
        if let EndingStep::Sweep = self.sweep_if_due(now) {
            return EndingStep::Sweep;
        }
        if self.exit_due.take_if(|due| *due <= now).is_some() && self.gone.is_none() && !self.is_guard_dead {
            // The fork server's look for the marker is missing. It begins with the proxy's death.
            self.abandon_at = now.checked_add(self.report_timeout);
            return EndingStep::AskForkServer(KillOptions::NOW);
        }
        let late = |kill: &RequestedKill| !kill.escalated && kill.wedged_at.is_some_and(|patience| patience <= now);
        if self.report.is_some() || !self.kill.as_ref().is_some_and(late) {
            return EndingStep::Nothing;
        }
        if let Some(kill) = &mut self.kill {
            // The proxy's time is up, even if the fork server can no longer be asked.
            kill.escalated = true;
        }
        self.ask_fork_server()
    }

    /// Returns the end, once enough is known.
    pub(crate) fn outcome(&mut self, now: Instant) -> Option<SessionEnd> {
        if self.sweep == SweepProgress::Running {
            return None;
        }
        let late = self.abandon_at.is_some_and(|give_up| give_up <= now);
        let enough = match (&self.gone, self.is_guard_dead) {
            // The proxy's report comes before the end of its connection.
            (Some(_), _) => self.closed || self.report.is_some(),
            // A proxy that has said so closes once its host has all of it; else it would leave it to the next host as unheard.
            (None, true) => self.closed && (!matches!(self.sweep, SweepProgress::Due(_)) || self.has_proven()),
            (None, false) => false,
        };
        if !enough && !late {
            return None;
        }
        let forced = self.kill.take().filter(|kill| kill.escalated || matches!(kill.reason, EndReason::Failed(_)));
        let exit = self.gone.as_ref().and_then(|gone| gone.exit);
        let left = self.gone.take().map(|gone| gone.receipt);
        let (reason, receipt) = match (self.report.take(), left) {
            (Some((reason, mut receipt)), left) => {
                match left {
                    Some(left) => receipt.merge(*left),
                    // The fork server died, or stands still, before it had looked for the session's marker.
                    None if receipt.unmarked.is_none() => receipt.proof = Proof::None,
                    None => {}
                }
                (reason, Some(receipt))
            }
            (None, left) => match forced {
                Some(kill) => {
                    // The fork server does not know the reason.
                    let cause = KillCause::of(&kill.reason);
                    (kill.reason, left.map(|left| Box::new(Receipt { cause, ..*left })))
                }
                None if self.is_guard_dead => (EndReason::ForkServerDied, left),
                // The fork server has ended it by itself: the lease on the host's sessions was over, as if the host had died.
                None if left.as_ref().is_some_and(|left| left.cause == KillCause::Lease) => (EndReason::HostDied, left),
                None => (EndReason::ProxyDied(exit), left),
            },
        };
        Some(SessionEnd { reason, receipt })
    }
}
