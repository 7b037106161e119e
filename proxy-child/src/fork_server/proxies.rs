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

use super::{Proxy, stopped::Stopped};

#[derive(Default)]
pub(super) struct Proxies {
    living: BTreeMap<Pid, Proxy>,
    /// Proxies that have to scan for their processes themselves.
    polling: BTreeSet<Pid>,
    /// Proxies that somebody has stopped, kept for a while.
    stopped: BTreeMap<Pid, Stopped>,
    /// Deadlines of the proxies whose host is gone, soonest first.
    forsaken: BTreeSet<(Instant, Pid)>,
    /// Number of accesses to proxies.
    #[cfg(test)]
    looks: std::cell::Cell<usize>,
}

impl Proxies {
    pub(super) fn insert(&mut self, proxy: Proxy) {
        self.living.insert(proxy.process.id().pid, proxy);
    }

    /// Removes a dead proxy.
    pub(super) fn remove(&mut self, pid: Pid) -> Option<Proxy> {
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

    pub(super) fn get(&self, pid: Pid) -> Option<&Proxy> {
        self.living.get(&pid).inspect(|_| self.looked())
    }

    /// Iterates over all proxies, which is too expensive for every turn.
    pub(super) fn all(&self) -> impl Iterator<Item = &Proxy> {
        self.living.values().inspect(|_| self.looked())
    }

    /// Returns the proxy of a session.
    pub(super) fn of(&self, session: &SessionId) -> Option<&Proxy> {
        self.all().find(|proxy| proxy.session == *session)
    }

    fn looked(&self) {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
    }

    /// Returns the number of accesses to proxies.
    #[cfg(test)]
    pub(super) fn looks(&self) -> usize {
        self.looks.get()
    }

    /// Returns the time at which [`Proxies::continue_stopped`] or [`Proxies::take_forsaken`] has work.
    pub(super) fn next(&self) -> Option<Instant> {
        let forsaken = self.forsaken.first().map(|(at, _)| *at);
        self.stopped.values().map(Stopped::next).chain(forsaken).min()
    }

    /// Records that the proxy has to scan for its processes from now on.
    pub(super) fn poll(&mut self, pid: Pid) {
        self.polling.insert(pid);
    }

    pub(super) fn has_polling(&self) -> bool {
        !self.polling.is_empty()
    }

    /// Returns the handover sockets of the polling proxies among `concerned`, or of all polling proxies for `None`.
    pub(super) fn nudges(&self, concerned: Option<BTreeSet<Pid>>) -> impl Iterator<Item = &OwnedFd> {
        let nudged = match concerned {
            Some(concerned) => concerned.intersection(&self.polling).copied().collect(),
            None => self.polling.clone(),
        };
        nudged.into_iter().filter_map(move |pid| self.get(pid)?.handover.as_ref())
    }

    /// Records that this child was stopped. Returns `false` if it is no proxy.
    pub(super) fn was_stopped(&mut self, pid: Pid) -> bool {
        let is_one = self.contains(pid);
        if is_one {
            self.stopped.entry(pid).or_insert_with(Stopped::new).again();
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
            self.looks.set(self.looks.get() + 1);
            if is_ended(*pid) || stopped.is_over(now) {
                return false;
            }
            let told = stopped.step(&proxy.session, &proxy.limits, &proxy.process);
            told.into_iter().for_each(|event| tell(&proxy.session, event));
            true
        });
    }

    /// Sets the deadlines of all proxies, since the host is gone: `at` returns the deadline, or `None` for never.
    pub(super) fn forsake(&mut self, at: impl Fn(&Proxy) -> Option<Instant>) {
        let forsaken = self.all().filter_map(|proxy| Some((at(proxy)?, proxy.process.id().pid))).collect();
        self.forsaken = forsaken;
    }

    /// Clears the deadlines, since there is a host again.
    pub(super) fn be_adopted(&mut self) {
        self.forsaken.clear();
    }

    /// Returns a proxy whose deadline has passed, each one once.
    pub(super) fn take_forsaken(&mut self, now: Instant) -> Option<&Proxy> {
        while self.forsaken.first().is_some_and(|(at, _)| *at <= now)
            && let Some((_, pid)) = self.forsaken.pop_first()
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

    fn crowd() -> Proxies {
        let mut proxies = Proxies::default();
        (0..100).for_each(|number| proxies.insert(proxy(number)));
        proxies
    }

    #[test]
    fn the_forsaken_are_ended_in_order_and_each_once() {
        let (mut proxies, now) = (crowd(), Instant::now());
        let at = |pid: Pid| now + Duration::from_secs(u64::from(pid - FIRST));
        // The first of the proxies has no deadline.
        proxies.forsake(|proxy| (proxy.process.id().pid > FIRST).then(|| at(proxy.process.id().pid)));
        let looks = proxies.looks();
        assert_eq!(proxies.next(), Some(at(FIRST + 1)));
        assert!(proxies.take_forsaken(now).is_none());
        assert!(proxies.remove(FIRST + 2).is_some(), "it is dead");
        let mut taken = Vec::new();
        while let Some(proxy) = proxies.take_forsaken(at(FIRST + 4)) {
            taken.push(proxy.process.id().pid - FIRST);
        }
        assert_eq!((taken, proxies.next()), (vec![1, 3, 4], Some(at(FIRST + 5))));
        assert_eq!(proxies.looks() - looks, 3);
        proxies.be_adopted();
        assert!(proxies.next().is_none() && proxies.take_forsaken(at(FIRST + 200)).is_none());
    }

    #[test]
    fn who_is_dead_is_neither_nudged_nor_continued() {
        let mut proxies = crowd();
        assert!(!proxies.has_polling() && proxies.next().is_none());
        for pid in [FIRST + 1, FIRST + 2, FIRST + 3] {
            let (handover, _) = ipc_protocol::packet::packet_pair().expect("a pair");
            proxies.insert(Proxy { handover: Some(handover), ..proxy(pid - FIRST) });
            proxies.poll(pid);
            assert!(proxies.was_stopped(pid));
        }
        assert!(!proxies.was_stopped(FIRST + 1000), "it is none of them");
        assert!(proxies.remove(FIRST + 1).is_some());
        let concerned = [FIRST + 1, FIRST + 2, FIRST + 9].into();
        assert_eq!(proxies.nudges(Some(concerned)).count(), 1);
        assert_eq!(proxies.nudges(None).count(), 2);
        assert_eq!(proxies.looks(), 3);
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
