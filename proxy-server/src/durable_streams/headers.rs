//! Headers of the protocol.

use std::time::{Duration, SystemTime};

use axum::{
    http::{HeaderMap, HeaderValue},
    response::Response,
};
use proxy_manager::{ProducerSequence, StreamLifetime};

use crate::{ProblemDetails, requests::RouteResult};

pub(super) const NEXT_OFFSET: &str = "stream-next-offset";
pub(super) const UP_TO_DATE: &str = "stream-up-to-date";
pub(super) const CLOSED: &str = "stream-closed";
pub(super) const CURSOR: &str = "stream-cursor";
pub(super) const TTL: &str = "stream-ttl";
pub(super) const EXPIRES_AT: &str = "stream-expires-at";
pub(super) const SEQ: &str = "stream-seq";
pub(super) const FORKED_FROM: &str = "stream-forked-from";
pub(super) const FORK_OFFSET: &str = "stream-fork-offset";
pub(super) const FORK_SUB_OFFSET: &str = "stream-fork-sub-offset";
pub(super) const DATA_ENCODING: &str = "stream-sse-data-encoding";
pub(super) const PRODUCER_ID: &str = "producer-id";
pub(super) const PRODUCER_EPOCH: &str = "producer-epoch";
pub(super) const PRODUCER_SEQ: &str = "producer-seq";
pub(super) const EXPECTED_SEQ: &str = "producer-expected-seq";
pub(super) const RECEIVED_SEQ: &str = "producer-received-seq";

pub(super) const ALLOWED_METHODS: &str = "GET, POST, PUT, DELETE, HEAD, OPTIONS";
pub(super) const ALLOWED_HEADERS: &str = "content-type, authorization, if-none-match, stream-seq, stream-ttl, stream-expires-at, stream-closed, \
    stream-forked-from, stream-fork-offset, stream-fork-sub-offset, producer-id, producer-epoch, producer-seq";
pub(super) const EXPOSED_HEADERS: &str = "stream-next-offset, stream-cursor, stream-up-to-date, stream-closed, stream-ttl, stream-expires-at, \
    stream-sse-data-encoding, producer-epoch, producer-seq, producer-expected-seq, producer-received-seq, etag, location";

/// Largest number that every client can handle: 2^53 - 1.
const MAX_SAFE: u64 = (1 << 53) - 1;

/// Beginning of a stream, as an offset.
pub(super) const START: &str = "-1";
/// The same as the reference server names it: tools that were written against that fork there.
const REFERENCE_START: &str = "0000000000000000_0000000000000000";
/// End of a stream, as an offset.
pub(super) const NOW: &str = "now";

/// Formats a position.
pub(super) fn offset(position: u64) -> String {
    format!("{position:020}")
}

/// Parses a position.
pub(super) fn parse_offset(text: &str) -> RouteResult<u64> {
    if text == REFERENCE_START {
        return Ok(0);
    }
    let is_one = text.len() == 20 && text.bytes().all(|byte| byte.is_ascii_digit());
    let position = text.parse::<u64>().ok().filter(|position| is_one && i64::try_from(*position).is_ok());
    let detail = || format!("{text:?} is no offset: give one that {NEXT_OFFSET} had, or {START} or {NOW}");
    position.ok_or_else(|| ProblemDetails::usage(detail()))
}

/// Returns a header that is text.
pub(super) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Returns true if the request closes the stream.
pub(super) fn closes(headers: &HeaderMap) -> bool {
    text(headers, CLOSED).is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// Parses digits without a leading zero.
pub(super) fn number(text: &str) -> Option<u64> {
    let is_plain = text == "0" || !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_plain && !text.is_empty())
}

/// Returns the life that a stream is to have.
pub(super) fn lifetime(headers: &HeaderMap) -> RouteResult<StreamLifetime> {
    let usage = |detail: String| Err(ProblemDetails::usage(detail));
    match (headers.get(TTL), headers.get(EXPIRES_AT)) {
        (None, None) => Ok(StreamLifetime::Unbounded),
        (Some(_), Some(_)) => usage(format!("{TTL} and {EXPIRES_AT} exclude each other: send one")),
        (Some(seconds), None) => match seconds.to_str().ok().and_then(number).filter(|seconds| *seconds <= MAX_SAFE) {
            Some(seconds) => Ok(StreamLifetime::Idle(Duration::from_secs(seconds))),
            None => usage(format!("{TTL} is {seconds:?}: it has to be a number of seconds, in plain digits")),
        },
        (None, Some(until)) => match until.to_str().ok().and_then(parse_time) {
            Some(until) => Ok(StreamLifetime::Until(until)),
            None => usage(format!("{EXPIRES_AT} is {until:?}: it has to be a time as 2026-01-31T12:00:00Z")),
        },
    }
}

/// Parses a time of RFC 3339, with any offset from UTC.
fn parse_time(text: &str) -> Option<SystemTime> {
    if text.ends_with('Z') {
        return humantime::parse_rfc3339(text).ok();
    }
    let (local, zone) = text.split_at_checked(text.len().checked_sub(6)?)?;
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let (hours, minutes): (u64, u64) = (hours.parse().ok()?, minutes.parse().ok()?);
    let away = Duration::from_secs(hours * 3600 + minutes * 60);
    let local = humantime::parse_rfc3339(&format!("{local}Z")).ok()?;
    match zone.get(..1)? {
        "+" => local.checked_sub(away),
        "-" => local.checked_add(away),
        _ => None,
    }
}

/// Returns the producer's numbers, if the request has some.
pub(super) fn producer(headers: &HeaderMap) -> RouteResult<Option<ProducerSequence>> {
    let usage = |detail: &str| Err(ProblemDetails::usage(detail.to_owned()));
    let given = [PRODUCER_ID, PRODUCER_EPOCH, PRODUCER_SEQ].map(|name| headers.get(name));
    let [Some(id), Some(epoch), Some(seq)] = given else {
        let is_none = given.iter().all(Option::is_none);
        return if is_none { Ok(None) } else { usage("producer-id, producer-epoch and producer-seq come together") };
    };
    let whole = |value: &HeaderValue| {
        let text = value.to_str().ok()?;
        let is_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u64>().ok().filter(|number| is_digits && *number <= MAX_SAFE)
    };
    match (id.to_str(), whole(epoch), whole(seq)) {
        (Ok(id), Some(epoch), Some(seq)) if !id.is_empty() => {
            Ok(Some(ProducerSequence { id: id.to_owned(), epoch, seq }))
        }
        (Ok(id), ..) if !id.is_empty() => usage("producer-epoch and producer-seq have to be numbers up to 2^53 - 1"),
        _ => usage("producer-id has to be text, and not empty"),
    }
}

/// Adds headers to a response.
pub(super) fn insert<const N: usize>(response: &mut Response, headers: [(&'static str, String); N]) {
    for (name, value) in headers {
        if let Ok(value) = HeaderValue::try_from(value) {
            response.headers_mut().insert(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times() {
        for wrong in ["", "01", "+1", "1.0", "1e3", "-1", " 1"] {
            assert_eq!(number(wrong), None, "{wrong:?}");
        }
        assert_eq!((number("0"), number("3600")), (Some(0), Some(3600)));
        let utc = parse_time("2026-01-31T12:00:00Z");
        assert!(utc.is_some());
        for same in ["2026-01-31T13:30:00+01:30", "2026-01-31T10:00:00.000-02:00"] {
            assert_eq!(parse_time(same), utc, "{same}");
        }
        for wrong in ["", "soon", "2026-01-31T12:00:00", "2026-01-31T12:00:00+1:30é"] {
            assert_eq!(parse_time(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn offsets() {
        assert_eq!(parse_offset(&offset(7)).ok(), Some(7));
        for wrong in ["", "7", "0_0", "99999999999999999999", "0000000000000000000x", "+0000000000000000001"] {
            parse_offset(wrong).expect_err(wrong);
        }
    }
}
