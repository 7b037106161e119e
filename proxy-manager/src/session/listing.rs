//! Process lists requested from a proxy, with a deadline for proxies that do not answer. No I/O.

use std::{collections::VecDeque, time::Duration};

use ipc_protocol::message::RequestId;
use tokio::time::Instant;

/// Time for a proxy to list its processes before the fork server is asked.
const PATIENCE: Duration = Duration::from_secs(1);

/// Outstanding lists, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    of_proxy: VecDeque<(Instant, RequestId)>,
    of_fork_server: Vec<RequestId>,
}

impl Listing {
    /// Records a request to the proxy.
    pub(crate) fn asked(&mut self, request: RequestId, now: Instant) {
        self.of_proxy.push_back((now + PATIENCE, request));
    }

    /// Instant at which [`Listing::is_late`] is to be checked.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.of_proxy.front().map(|(deadline, _)| *deadline)
    }

    /// Returns true if the fork server has to be asked now for lists that the proxy owes.
    pub(crate) fn is_late(&mut self, now: Instant, is_waiting: impl Fn(RequestId) -> bool) -> bool {
        let before = self.of_fork_server.len();
        while let Some((deadline, request)) = self.of_proxy.front().copied() {
            let is_owed = is_waiting(request);
            if is_owed && deadline > now {
                break;
            }
            self.of_proxy.pop_front();
            if is_owed {
                self.of_fork_server.push(request);
            }
        }
        self.of_fork_server.len() > before
    }

    /// Takes the requests that a list of the fork server answers.
    pub(crate) fn answered(&mut self) -> Vec<RequestId> {
        std::mem::take(&mut self.of_fork_server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_proxy_owes_for_too_long_is_asked_elsewhere() {
        let mut listing = Listing::default();
        let now = Instant::now();
        listing.asked(1, now);
        listing.asked(2, now);
        listing.asked(3, now + PATIENCE);
        assert_eq!(listing.next(), Some(now + PATIENCE));
        assert!(!listing.is_late(now, |_| true));
        assert!(listing.is_late(now + PATIENCE, |request| request != 1));
        assert_eq!(listing.answered(), [2]);
        assert_eq!(listing.next(), Some(now + 2 * PATIENCE));
        assert!(!listing.is_late(now + 2 * PATIENCE, |_| false), "it has answered");
        assert!(listing.answered().is_empty() && listing.next().is_none());
    }
}
