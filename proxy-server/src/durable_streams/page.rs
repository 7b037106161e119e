//! What answers with content say about it: its tag, its cursor.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::headers::{self, START};

/// Beginning of the intervals that cursors count: 2024-10-09.
const CURSOR_EPOCH: Duration = Duration::from_secs(1_728_432_000);
/// Length of an interval, in seconds.
const CURSOR_INTERVAL: u64 = 20;
/// Most intervals by which a cursor is ahead of its time: an hour.
const MAX_JITTER: u64 = 3600 / CURSOR_INTERVAL;

/// Returns the next cursor for a client that had `last`: it never comes back, so no cache answers for ever.
pub(super) fn cursor(last: Option<&str>) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let current = now.saturating_sub(CURSOR_EPOCH).as_secs() / CURSOR_INTERVAL;
    match last.and_then(|last| last.parse::<u64>().ok()).filter(|last| *last >= current) {
        Some(last) => last.saturating_add(1 + u64::from(now.subsec_nanos()) % MAX_JITTER),
        None => current,
    }
}

/// Tag of the content between two positions of a stream, and of whether it is the last.
pub(super) fn etag(tag: &str, from: Option<u64>, next: u64, is_end: bool) -> String {
    let from = from.map_or_else(|| START.to_owned(), headers::offset);
    let end = if is_end { ":c" } else { "" };
    format!("\"{tag}:{from}:{}{end}\"", headers::offset(next))
}

/// Returns true if a client that has the content of these tags has this one.
pub(super) fn is_known(known: &str, etag: &str) -> bool {
    known.split(',').map(str::trim).any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == etag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_never_comes_back() {
        let first = cursor(None);
        assert_eq!(cursor(Some("1")), first);
        for last in [first, first + 5, u64::MAX] {
            let next = cursor(Some(&last.to_string()));
            assert!(next > last || last == u64::MAX, "{last} {next}");
        }
        assert!(cursor(Some("no number")) >= first);
    }

    #[test]
    fn tags() {
        let tag = etag("7", None, 3, false);
        assert!(is_known(&tag, &tag) && is_known(&format!("\"x\", W/{tag}"), &tag) && is_known("*", &tag));
        assert!(!is_known(&tag, &etag("7", None, 3, true)) && !is_known(&tag, &etag("7", Some(0), 3, false)));
    }
}
