//! Table of the living proxies, with indexes of those that need attention.
//!
//! Every process of the machine wakes the fork server. The cost of a turn of its loop depends on what has happened, not on the number
//! of sessions: proxies that poll, that were stopped, or that lost their host have indexes of their own.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::OwnedFd,
    time::Instant,
};

use ipc_protocol::{Event, Pid, SessionId};

use super::{LivingProxy, stopped_proxy::StoppedProxy};

#[derive(Default)]
pub(super) struct ProxyTable {
    living: BTreeMap<Pid, LivingProxy>,
    /// Proxies that have to scan for their processes themselves.
    polling: BTreeSet<Pid>,
    /// Proxies that somebody has stopped, kept for a while.
    stopped: BTreeMap<Pid, StoppedProxy>,
    /// Deadlines of the proxies whose host is gone, soonest first.
    abandon_deadlines: BTreeSet<(Instant, Pid)>,
    /// Number of accesses to proxies.
    #[cfg(test)]
    visits: std::cell::Cell<usize>,
}

impl ProxyTable {
    pub(super) fn insert(&mut self, proxy: LivingProxy) {
        self.living.insert(proxy.process.id().pid, proxy);
    }

    /// Removes a dead proxy.
    pub(super) fn remove(&mut self, pid: Pid) -> Option<LivingProxy> {
        let proxy = self.living.remove(&pid)?;
        self.polling.remove(&pid);
        self.stopped.remove(&pid);
        // Its entry among the forsaken is skipped when it is due: nothing is forked meanwhile.
        Some(proxy)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.living.is_empty()
    }

    pub(super) fn contains(&self, pid: Pid) -> bool {
        self.living.contains_key(&pid)
    }

    pub(super) fn get(&self, pid: Pid) -> Option<&LivingProxy> {
        self.living.get(&pid).inspect(|_| self.count_visit())
    }

    /// Iterates over all proxies, which is too expensive for every turn.
    pub(super) fn all(&self) -> impl Iterator<Item = &LivingProxy> {
        self.living.values().inspect(|_| self.count_visit())
    }

    /// Returns the proxy of a session.
    pub(super) fn by_session(&self, session: &SessionId) -> Option<&LivingProxy> {
        self.all().find(|proxy| proxy.session == *session)
    }

    fn count_visit(&self) {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
    }

    /// Returns the number of accesses to proxies.
    #[cfg(test)]
    pub(super) fn visits(&self) -> usize {
        self.visits.get()
    }

    /// Returns the time at which [`ProxyTable::continue_stopped`] or [`ProxyTable::take_abandoned`] has work.
    pub(super) fn next(&self) -> Option<Instant> {
        let forsaken = self.abandon_deadlines.first().map(|(at, _)| *at);
        self.stopped.values().map(StoppedProxy::next).chain(forsaken).min()
    }

    /// Records that the proxy has to scan for its processes from now on.
    pub(super) fn enable_polling(&mut self, pid: Pid) {
        self.polling.insert(pid);
    }

    pub(super) fn has_polling(&self) -> bool {
        !self.polling.is_empty()
    }

    /// Returns the handover sockets of the polling proxies among `concerned`, or of all polling proxies for `None`.
    pub(super) fn handover_sockets(&self, concerned: Option<BTreeSet<Pid>>) -> impl Iterator<Item = &OwnedFd> {
        let nudged = match concerned {
            Some(concerned) => concerned.intersection(&self.polling).copied().collect(),
            None => self.polling.clone(),
        };
        nudged.into_iter().filter_map(move |pid| self.get(pid)?.handover.as_ref())
    }

    /// Records that this child was stopped. Returns `false` if it is no proxy.
    pub(super) fn mark_stopped(&mut self, pid: Pid) -> bool {
        let is_one = self.contains(pid);
        if is_one {
            self.stopped.entry(pid).or_insert_with(StoppedProxy::new).record_stop();
        }
        is_one
    }

    /// Continues the proxies that were stopped, and enforces the limits of those that are stopped again and again. A proxy that
    /// `is_ended` is left as it is. `tell` sends events to the host.
    pub(super) fn continue_stopped(
        &mut self,
        now: Instant,
        is_ended: impl Fn(Pid) -> bool,
        mut tell: impl FnMut(&SessionId, Event),
    ) {
        self.stopped.retain(|pid, stopped| {
            if stopped.next() > now {
                return true;
            }
            let Some(proxy) = self.living.get(pid) else { return false };
            #[cfg(test)]
            self.visits.set(self.visits.get() + 1);
            if is_ended(*pid) || stopped.is_settled(now) {
                return false;
            }
            let told = stopped.step(&proxy.session, &proxy.limits, &proxy.process);
            told.into_iter().for_each(|event| tell(&proxy.session, event));
            true
        });
    }

    /// Sets the deadlines of all proxies, since the host is gone: `at` returns the deadline, or `None` for never.
    pub(super) fn schedule_abandon(&mut self, at: impl Fn(&LivingProxy) -> Option<Instant>) {
        let forsaken = self.all().filter_map(|proxy| Some((at(proxy)?, proxy.process.id().pid))).collect();
        self.abandon_deadlines = forsaken;
    }

    /// Clears the deadlines, since there is a host again.
    pub(super) fn cancel_abandon(&mut self) {
        self.abandon_deadlines.clear();
    }

    /// Returns a proxy whose deadline has passed, each one once.
    pub(super) fn take_abandoned(&mut self, now: Instant) -> Option<&LivingProxy> {
        while self.abandon_deadlines.first().is_some_and(|(at, _)| *at <= now)
            && let Some((_, pid)) = self.abandon_deadlines.pop_first()
        {
            if self.contains(pid) {
                return self.get(pid);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::tests::proxy, *};

    const FIRST: Pid = 5_000_000;

    fn crowd() -> ProxyTable {
        let mut proxies = ProxyTable::default();
        (0..100).for_each(|number| proxies.insert(proxy(number)));
        proxies
    }

    #[test]
    fn the_forsaken_are_ended_in_order_and_each_once() {
        let (mut proxies, now) = (crowd(), Instant::now());
        let at = |pid: Pid| now + Duration::from_secs(u64::from(pid - FIRST));
        // The first of the proxies has no deadline.
        proxies.schedule_abandon(|proxy| (proxy.process.id().pid > FIRST).then(|| at(proxy.process.id().pid)));
        let looks = proxies.visits();
        assert_eq!(proxies.next(), Some(at(FIRST + 1)));
        assert!(proxies.take_abandoned(now).is_none());
        assert!(proxies.remove(FIRST + 2).is_some(), "it is dead");
        let mut taken = Vec::new();
        while let Some(proxy) = proxies.take_abandoned(at(FIRST + 4)) {
            taken.push(proxy.process.id().pid - FIRST);
        }
        assert_eq!((taken, proxies.next()), (vec![1, 3, 4], Some(at(FIRST + 5))));
        assert_eq!(proxies.visits() - looks, 3);
        proxies.cancel_abandon();
        assert!(proxies.next().is_none() && proxies.take_abandoned(at(FIRST + 200)).is_none());
    }

    #[test]
    fn who_is_dead_is_neither_nudged_nor_continued() {
        let mut proxies = crowd();
        assert!(!proxies.has_polling() && proxies.next().is_none());
        for pid in [FIRST + 1, FIRST + 2, FIRST + 3] {
            let (handover, _) = ipc_protocol::packet::packet_pair().expect("a pair");
            proxies.insert(LivingProxy { handover: Some(handover), ..proxy(pid - FIRST) });
            proxies.enable_polling(pid);
            assert!(proxies.mark_stopped(pid));
        }
        assert!(!proxies.mark_stopped(FIRST + 1000), "it is none of them");
        assert!(proxies.remove(FIRST + 1).is_some());
        let concerned = [FIRST + 1, FIRST + 2, FIRST + 9].into();
        assert_eq!(proxies.handover_sockets(Some(concerned)).count(), 1);
        assert_eq!(proxies.handover_sockets(None).count(), 2);
        assert_eq!(proxies.visits(), 3);
        let mut told = Vec::new();
        let is_ended = |pid| pid == FIRST + 3;
        proxies.continue_stopped(Instant::now(), is_ended, |session, _| told.push(session.to_string()));
        assert_eq!(told, ["s2"]);
        assert_eq!(proxies.stopped.keys().copied().collect::<Vec<_>>(), [FIRST + 2]);
        for pid in [FIRST + 2, FIRST + 3] {
            assert!(proxies.remove(pid).is_some());
        }
        assert!(!proxies.has_polling() && proxies.next().is_none());
    }
}
