//! Watchdog of the fork server. One that somebody has stopped is continued. One that is stopped again and again, or frozen, is
//! given up: nobody but the host can end its sessions then.
//!
//! A stop is read from `/proc`, so it is seen of adopted fork servers too, and no status of any child is taken from the embedding
//! program. A frozen process looks like one that sleeps; but it does not answer, and neither runs nor waits for a processor.

use std::{
    future::{Future, pending},
    io,
    pin::Pin,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use ipc_protocol::{ExitStatus, SessionId, Signal, message::ToForkServer};
use registry::{ProcFs, ProcLookup, ProcessSight};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::ForkServer;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(250);
/// Longest time without a question, while there are sessions.
const QUESTION: Duration = Duration::from_secs(1);
/// So many times as patient with one that wants to run, or is in the kernel and cannot be interrupted: processor or disk may be slow.
const SLOW: u32 = 10;

/// State of the fork server, as the receiving side sees it.
#[derive(Debug, Default)]
pub(super) struct ForkServerHeartbeat {
    /// Something was sent since the last look.
    was_asked: AtomicBool,
    /// Something was received since the last question.
    has_answered: AtomicBool,
    /// All that has come was taken: what is missing has not come.
    waits: AtomicBool,
}

impl ForkServerHeartbeat {
    pub(super) fn was_asked(&self) {
        self.was_asked.store(true, Ordering::Relaxed);
    }

    pub(super) fn answered(&self) {
        self.has_answered.store(true, Ordering::Relaxed);
    }

    pub(super) fn waits(&self, waits: bool) {
        self.waits.store(waits, Ordering::Relaxed);
    }
}

/// Result of one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ForkServerCondition {
    /// The fork server answers, or may yet.
    Fine,
    /// The fork server was stopped, and is to be continued.
    Stopped,
    /// The fork server is given up, for this reason.
    GivenUp(&'static str),
}

/// Judges looks. No I/O.
#[derive(Debug)]
struct HealthJudge {
    /// Looks in a row that find it stopped, or silent and asleep, after which it is given up.
    patience: u32,
    stops: u32,
    silence: u32,
    cpu_time: Duration,
}

impl HealthJudge {
    fn new(patience: Duration) -> Self {
        let looks = patience.as_millis().div_ceil(LOOK.as_millis());
        Self {
            patience: u32::try_from(looks).unwrap_or(u32::MAX).max(1),
            stops: 0,
            silence: 0,
            cpu_time: Duration::ZERO,
        }
    }

    /// Looks once more. `is_silent`: a question was not answered.
    fn look(&mut self, sight: &ProcessSight, is_stopped: bool, is_silent: bool) -> ForkServerCondition {
        self.stops = if is_stopped { self.stops + 1 } else { 0 };
        let has_run = std::mem::replace(&mut self.cpu_time, sight.cpu_time) != sight.cpu_time;
        self.silence = if is_silent && !is_stopped && !has_run { self.silence + 1 } else { 0 };
        let patience = if sight.is_runnable { self.patience.saturating_mul(SLOW) } else { self.patience };
        if self.stops >= self.patience {
            return ForkServerCondition::GivenUp("it is stopped again and again");
        }
        if self.silence >= patience {
            return ForkServerCondition::GivenUp("it does not answer and does not run: it may be frozen");
        }
        if is_stopped { ForkServerCondition::Stopped } else { ForkServerCondition::Fine }
    }
}

impl ForkServer {
    /// Resolves when the process is to be given up, with the reason.
    pub(super) async fn stands_still(&self) -> &'static str {
        let (Some(process), Some(patience)) = (&self.process, self.patience) else { return pending().await };
        let (id, mut judge) = (process.id(), HealthJudge::new(patience));
        let (mut asked, mut looks) = (None::<Instant>, interval(LOOK));
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            // One that is gone is seen by its pidfd; one that cannot be looked at is as it was.
            let Ok(sight) = ProcFs.lookup(id.pid) else { continue };
            if sight.start_time != id.start_time || sight.is_dead {
                continue;
            }
            let is_stopped = registry::find_process(id.pid).is_ok_and(|seen| seen.is_some_and(|seen| seen.is_stopped));
            let has_answered = self.heartbeat.has_answered.load(Ordering::Relaxed);
            let is_silent = asked.is_some() && !has_answered && self.heartbeat.waits.load(Ordering::Relaxed);
            match judge.look(&sight, is_stopped, is_silent) {
                ForkServerCondition::Fine => {}
                ForkServerCondition::Stopped => {
                    tracing::warn!(fork_server = %id, "the fork server was stopped by somebody: it is continued");
                    self.continue_if_stopped();
                }
                ForkServerCondition::GivenUp(reason) => return reason,
            }
            if judge.silence > 0 {
                registry::free_supervisor(id.pid);
            }
            let is_due = asked.is_none_or(|at| has_answered && at.elapsed() >= QUESTION);
            let was_asked = self.heartbeat.was_asked.swap(false, Ordering::Relaxed);
            if (is_due || (was_asked && has_answered)) && self.has_sessions() {
                self.ask();
                asked = Some(Instant::now());
            } else if !self.has_sessions() {
                asked = None;
            }
        }
    }

    fn has_sessions(&self) -> bool {
        self.watchers().as_ref().is_some_and(|watchers| !watchers.is_empty())
    }

    /// Asks for the processes of no session, which every release answers. Where there is no room for it there is enough to answer.
    fn ask(&self) {
        let Ok(nobody) = "agent-proxy-watchdog".parse::<SessionId>() else { return };
        self.heartbeat.has_answered.store(false, Ordering::Relaxed);
        if let Ok(mut order) = self.encode(&ToForkServer::List { session: nobody }, None) {
            // An error other than a full socket is a death, which is seen elsewhere.
            let _ = self.try_send(&mut order);
        }
        self.heartbeat.was_asked.store(false, Ordering::Relaxed);
    }

    /// Kills the process until it is dead: SIGKILL does not reach what is frozen in a freezer of version 1.
    pub(super) async fn kill_and_reap(
        &self,
        death: &mut Pin<&mut impl Future<Output = Option<ExitStatus>>>,
    ) -> Option<ExitStatus> {
        loop {
            if let Some(process) = &self.process {
                match process.signal(Signal::Kill) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        tracing::error!(fork_server = %self.id, %error, "the fork server cannot be killed");
                    }
                    _ => registry::thaw_v1(self.id.pid),
                }
            }
            tokio::select! {
                exit = death.as_mut() => return exit,
                () = sleep(LOOK) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sight(cpu_ms: u64, is_runnable: bool) -> ProcessSight {
        ProcessSight {
            parent: 1,
            pgid: 2,
            sid: 2,
            start_time: 3,
            has_execed: true,
            is_runnable,
            cpu_time: Duration::from_millis(cpu_ms),
            leader_is_dead: false,
            is_dead: false,
        }
    }

    fn looks(times: u32, mut look: impl FnMut(u32) -> ForkServerCondition) -> Vec<ForkServerCondition> {
        (0..times).map(&mut look).collect()
    }

    #[test]
    fn one_that_is_stopped_is_continued_and_given_up_if_that_does_not_help() {
        let mut judge = HealthJudge::new(Duration::from_secs(1));
        assert_eq!(judge.look(&sight(0, false), true, true), ForkServerCondition::Stopped);
        assert_eq!(judge.look(&sight(0, false), false, false), ForkServerCondition::Fine);
        let found = looks(4, |_| judge.look(&sight(0, false), true, true));
        assert_eq!(found[..3], [ForkServerCondition::Stopped; 3]);
        assert!(matches!(found[3], ForkServerCondition::GivenUp(_)));
    }

    #[test]
    fn one_that_is_slow_is_not_given_up() {
        let mut judge = HealthJudge::new(Duration::from_secs(1));
        // It runs, or answers now and then.
        assert_eq!(
            looks(50, |at| judge.look(&sight(u64::from(at) * 10, true), false, true)),
            [ForkServerCondition::Fine; 50]
        );
        assert_eq!(looks(52, |at| judge.look(&sight(0, false), false, at % 4 != 3)), [ForkServerCondition::Fine; 52]);
        // It waits for the disk.
        assert_eq!(looks(39, |_| judge.look(&sight(0, true), false, true)), [ForkServerCondition::Fine; 39]);
        assert!(matches!(judge.look(&sight(0, true), false, true), ForkServerCondition::GivenUp(_)));
    }

    #[test]
    fn one_that_neither_answers_nor_runs_is_frozen() {
        let mut judge = HealthJudge::new(Duration::from_secs(1));
        judge.look(&sight(10, false), false, false);
        let found = looks(4, |_| judge.look(&sight(10, false), false, true));
        assert_eq!(found[..3], [ForkServerCondition::Fine; 3]);
        assert!(matches!(found[3], ForkServerCondition::GivenUp(_)));
    }
}
