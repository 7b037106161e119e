//! Wait of the fork server: all descriptors in one place, for one thread.

use std::{
    os::fd::AsFd,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, ppoll},
    sys::time::TimeSpec,
};

use super::{Door, ForkServer, Guard};

/// With a second thread, which may take SIGCHLD and drop it, the dead are looked for this often.
const THREADED_TICK: Duration = Duration::from_millis(20);

/// Result of a wait: descriptors that are not ready are not read, each time the fork server is woken.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ready {
    pub(super) signals: bool,
    pub(super) control: bool,
    pub(super) host: bool,
    pub(super) door: bool,
    pub(super) events: bool,
}

impl ForkServer<'_> {
    /// Waits for a packet, a death, the host's death, or the next step of a kill.
    pub(super) fn wait(&mut self) -> std::io::Result<Ready> {
        let nudges = self.proxies.has_polling().then(|| self.newcomers.next());
        let guards = self.guards.iter().map(Guard::next);
        // The last look at the children has left some.
        let more = self.children_changed.then(Instant::now);
        let mut next = guards.chain(self.observer.next()).chain(nudges).chain(self.proxies.next()).chain(more).min();
        next = next
            .into_iter()
            .chain(self.marker_looks.next(&self.guards))
            .chain(self.door.as_ref().and_then(Door::next))
            .min();
        if !registry::is_single_threaded() {
            self.children_changed = true;
            if !self.proxies.is_empty() || !self.leaving.is_empty() {
                let tick = Instant::now() + THREADED_TICK;
                next = Some(next.map_or(tick, |next| next.min(tick)));
            }
        }
        if self.spare.is_none() && self.control.is_some() && !self.is_adopted {
            next = Some(next.map_or(self.spare_due, |next| next.min(self.spare_due)));
        }
        let timeout = next.map(|next| TimeSpec::from_duration(next.saturating_duration_since(Instant::now())));
        let mut fds = vec![PollFd::new(self.sigchld.as_fd(), PollFlags::POLLIN)];
        if let Some(control) = &self.control {
            let write = if control.unsent() > 0 { PollFlags::POLLOUT } else { PollFlags::empty() };
            fds.push(PollFd::new(control.as_fd(), PollFlags::POLLIN | write));
            fds.push(PollFd::new(self.host.as_fd(), PollFlags::POLLIN));
        }
        let doors = fds.len();
        fds.extend(self.door.iter().flat_map(Door::fds).map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        let events = fds.len();
        fds.extend(self.observer.as_fd().map(|events| PollFd::new(events, PollFlags::POLLIN)));
        let polled = match ppoll(&mut fds, timeout, None) {
            // More than the limit on open files, which somebody has lowered.
            Err(Errno::EINVAL) if self.own_limits.restore() => ppoll(&mut fds, timeout, None),
            polled => polled,
        };
        let is_ready = |fds: &[PollFd<'_>]| fds.iter().any(|fd| fd.any().unwrap_or(true));
        match polled {
            Ok(_) => Ok(Ready {
                signals: is_ready(&fds[..1]),
                control: is_ready(&fds[1..doors.min(2)]),
                host: is_ready(&fds[doors.min(2)..doors]),
                door: is_ready(&fds[doors..events]),
                events: is_ready(&fds[events..]),
            }),
            Err(Errno::EINTR) => Ok(Ready::default()),
            Err(error) => Err(error.into()),
        }
    }
}
