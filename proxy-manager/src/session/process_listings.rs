//! Process lists requested from a proxy, with a deadline for proxies that do not answer. No I/O.

use std::{collections::VecDeque, time::Duration};

use ipc_protocol::message::RequestId;
use tokio::time::Instant;

/// Time for a proxy to list its processes before the fork server is asked.
const PROXY_TIMEOUT: Duration = Duration::from_secs(1);

/// Outstanding lists, oldest first.
#[derive(Debug, Default)]
pub(crate) struct ProcessListings {
    proxy_requests: VecDeque<(Instant, RequestId)>,
    fork_server_requests: Vec<RequestId>,
}

impl ProcessListings {
    /// Records a request to the proxy.
    pub(crate) fn record_request(&mut self, request: RequestId, now: Instant) {
        self.proxy_requests.push_back((now + PROXY_TIMEOUT, request));
    }

    /// Instant at which [`ProcessListings::is_late`] is to be checked.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.proxy_requests.front().map(|(deadline, _)| *deadline)
    }

    /// Returns true if the fork server has to be asked now for lists that the proxy owes.
    pub(crate) fn is_late(&mut self, now: Instant, is_waiting: impl Fn(RequestId) -> bool) -> bool {
        let before = self.fork_server_requests.len();
        while let Some((deadline, request)) = self.proxy_requests.front().copied() {
            let is_owed = is_waiting(request);
            if is_owed && deadline > now {
                break;
            }
            self.proxy_requests.pop_front();
            if is_owed {
                self.fork_server_requests.push(request);
            }
        }
        self.fork_server_requests.len() > before
    }

    /// Takes the requests that a list of the fork server answers.
    pub(crate) fn take_answered(&mut self) -> Vec<RequestId> {
        std::mem::take(&mut self.fork_server_requests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_proxy_owes_for_too_long_is_asked_elsewhere() {
        let mut listing = ProcessListings::default();
        let now = Instant::now();
        listing.record_request(1, now);
        listing.record_request(2, now);
        listing.record_request(3, now + PROXY_TIMEOUT);
        assert_eq!(listing.next(), Some(now + PROXY_TIMEOUT));
        assert!(!listing.is_late(now, |_| true));
        assert!(listing.is_late(now + PROXY_TIMEOUT, |request| request != 1));
        assert_eq!(listing.take_answered(), [2]);
        assert_eq!(listing.next(), Some(now + 2 * PROXY_TIMEOUT));
        assert!(!listing.is_late(now + 2 * PROXY_TIMEOUT, |_| false), "it has answered");
        assert!(listing.take_answered().is_empty() && listing.next().is_none());
    }
}
