//! Wait of the fork server: all descriptors in one place, for one thread.

use std::time::{Duration, Instant};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use super::{AdoptListener, ForkServer, SessionGuard};

/// With a second thread, which may take SIGCHLD and drop it, the dead are looked for this often.
const THREADED_TICK: Duration = Duration::from_millis(20);

/// Result of a wait: descriptors that are not ready are not read, each time the fork server is woken.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WaitResult {
    pub(super) signals: bool,
    pub(super) control: bool,
    pub(super) host: bool,
    pub(super) adopt_listener: bool,
    pub(super) events: bool,
}

impl ForkServer<'_> {
    /// Waits for a packet, a death, the host's death, or the next step of a kill.
    pub(super) fn wait(&mut self) -> std::io::Result<WaitResult> {
        let nudges = self.proxies.has_polling().then(|| self.change_detector.next());
        let guards = self.guards.iter().map(SessionGuard::next);
        // The last look at the children has left some.
        let more = self.children_changed.then(Instant::now);
        let mut next = guards.chain(self.observer.next()).chain(nudges).chain(self.proxies.next()).chain(more).min();
        next = next
            .into_iter()
            .chain(self.marker_looks.next(&self.guards))
            .chain(self.adopt_listener.as_ref().and_then(AdoptListener::next))
            .chain(self.next_lease_check())
            .min();
        if !registry::is_single_threaded() {
            self.children_changed = true;
            if !self.proxies.is_empty() || !self.retired.is_empty() {
                let tick = Instant::now() + THREADED_TICK;
                next = Some(next.map_or(tick, |next| next.min(tick)));
            }
        }
        if self.spare.is_none() && self.control.is_some() && !self.is_adopted {
            next = Some(next.map_or(self.spare_due, |next| next.min(self.spare_due)));
        }
        let left = next.map(|next| next.saturating_duration_since(Instant::now()));
        // Beyond the clock's range there is no next step.
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let mut fds = vec![PollFd::new(&self.sigchld, PollFlags::IN)];
        if let Some(control) = &self.control {
            let write = if control.unsent() > 0 { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::from_borrowed_fd(control.as_fd(), PollFlags::IN | write));
            fds.push(PollFd::new(&self.host, PollFlags::IN));
        }
        let doors = fds.len();
        fds.extend(
            self.adopt_listener
                .iter()
                .flat_map(AdoptListener::fds)
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)),
        );
        let events = fds.len();
        fds.extend(self.observer.as_fd().map(|events| PollFd::from_borrowed_fd(events, PollFlags::IN)));
        let polled = match poll(&mut fds, timeout.as_ref()) {
            // More than the limit on open files, which somebody has lowered.
            Err(Errno::INVAL) if self.own_limits.restore() => poll(&mut fds, timeout.as_ref()),
            polled => polled,
        };
        let is_ready = |fds: &[PollFd<'_>]| fds.iter().any(|fd| !fd.revents().is_empty());
        match polled {
            Ok(_) => Ok(WaitResult {
                signals: is_ready(&fds[..1]),
                control: is_ready(&fds[1..doors.min(2)]),
                host: is_ready(&fds[doors.min(2)..doors]),
                adopt_listener: is_ready(&fds[doors..events]),
                events: is_ready(&fds[events..]),
            }),
            Err(Errno::INTR) => Ok(WaitResult::default()),
            Err(error) => Err(error.into()),
        }
    }
}
