//! Selection of events for a reader: by type, by time, and the last ones.

use std::{collections::VecDeque, time::SystemTime};

use proxy_manager::{Envelope, Event, FeedStart};
use serde::Deserialize;

use crate::{ProblemDetails, api::MAX_TAIL, requests::RouteResult};

/// Events of a page for which no limit is given.
const DEFAULT_PAGE: u32 = 1000;

/// Query of the routes of events.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct EventsQuery {
    /// Offset after which events are sent, or `latest` for those to come; for the events of all sessions their position.
    #[cfg_attr(feature = "openapi", schemars(regex(pattern = "^(0*[0-9]{1,19}|latest)$")))]
    from: Option<String>,
    /// True to continue to the end of the session; else the response ends with the last existing event.
    pub(crate) follow: bool,
    /// Types or groups with commas between them: `stream:text,session,slack:*`. Empty for all.
    #[serde(rename = "type")]
    types: String,
    /// Moment (RFC 3339) before which events are left out.
    #[cfg_attr(feature = "openapi", schemars(with = "Option<ipc_protocol::json_schema::TimeText>"))]
    since: Option<String>,
    /// Number of events to send of those that exist; the last ones.
    #[cfg_attr(feature = "openapi", schemars(range(min = 1, max = 10_000)))]
    tail: Option<u32>,
    /// False to leave out the lines of the agent's own protocol, unless `type` names them.
    raw: bool,
    /// Most events of a page, which `Accept: application/json` asks for.
    #[cfg_attr(feature = "openapi", schemars(range(min = 1, max = 10_000)))]
    limit: Option<u32>,
}

impl Default for EventsQuery {
    fn default() -> Self {
        Self { from: None, follow: false, types: String::new(), since: None, tail: None, raw: true, limit: None }
    }
}

impl Default for EventSelection {
    /// Everything.
    fn default() -> Self {
        Self { types: Vec::new(), since: None, raw: true, tail: None }
    }
}

impl EventsQuery {
    /// Returns where to begin; `last` is the `Last-Event-ID` of a reader that comes back, which counts more.
    ///
    /// # Errors
    /// `usage` for what is no offset.
    pub(crate) fn start(&self, last: Option<&str>) -> RouteResult<FeedStart> {
        let (name, given) = match (last, &self.from) {
            (Some(last), _) => ("Last-Event-ID", last),
            (None, Some(from)) => ("from", from.as_str()),
            (None, None) => return Ok(FeedStart::After(0)),
        };
        match given {
            "latest" => Ok(FeedStart::Latest),
            number => number.parse().map(FeedStart::After).map_err(|_| {
                ProblemDetails::usage(format!("{name} {given:?} is no offset: give a decimal number, or latest"))
            }),
        }
    }

    /// Returns the most events of a page.
    ///
    /// # Errors
    /// `usage` for a number that is too small or too large.
    pub(crate) fn page_limit(&self) -> RouteResult<usize> {
        let limit = self.limit.unwrap_or(DEFAULT_PAGE);
        if limit == 0 || limit > MAX_TAIL {
            return Err(ProblemDetails::usage(format!("limit is 1 to {MAX_TAIL}, and {limit} was given")));
        }
        Ok(usize::try_from(limit).unwrap_or(usize::MAX))
    }

    /// Returns the selection.
    ///
    /// # Errors
    /// `usage` for a moment or a number that makes no sense.
    pub(crate) fn selection(&self) -> RouteResult<EventSelection> {
        let moment = |text: &String| {
            humantime::parse_rfc3339(text).map_err(|error| ProblemDetails::usage(format!("since={text}: {error}")))
        };
        if self.tail.is_some_and(|tail| tail == 0 || tail > MAX_TAIL) {
            return Err(ProblemDetails::usage(format!("tail is 1 to {MAX_TAIL}")));
        }
        Ok(EventSelection {
            types: self.types.split(',').filter(|kind| !kind.is_empty()).map(str::to_owned).collect(),
            since: self.since.as_ref().map(moment).transpose()?,
            raw: self.raw,
            tail: self
                .tail
                .map(|most| EventTail { most: usize::try_from(most).unwrap_or(usize::MAX), lines: VecDeque::new() }),
        })
    }
}

/// Selection of events, and the last ones while more may come.
#[derive(Debug)]
pub(crate) struct EventSelection {
    types: Vec<String>,
    since: Option<SystemTime>,
    raw: bool,
    tail: Option<EventTail>,
}

/// The last lines of events that exist.
#[derive(Debug)]
struct EventTail {
    most: usize,
    lines: VecDeque<Vec<u8>>,
}

impl EventSelection {
    /// Returns true if the reader gets the event. What stands for lost events is always among them.
    pub(crate) fn keeps(&self, envelope: &Envelope) -> bool {
        if matches!(envelope.event, Event::SessionGap(_)) {
            return true;
        }
        let is_raw = matches!(envelope.event, Event::Harness { .. });
        let of_type = match self.types.as_slice() {
            [] => self.raw || !is_raw,
            types => {
                let kind = envelope.event.kind();
                types.iter().any(|wanted| is_of(&kind, wanted))
            }
        };
        of_type && self.since.is_none_or(|since| envelope.created_at >= since)
    }

    /// Number of events of those that exist that the reader gets, the last ones; `None` for all.
    pub(crate) fn tail(&self) -> Option<u64> {
        self.tail.as_ref().map(|tail| tail.most as u64)
    }

    /// Takes the line of an event: appends it to `text`, or retains it among the last ones.
    pub(crate) fn push(&mut self, line: Vec<u8>, text: &mut Vec<u8>) {
        let Some(EventTail { most, lines }) = &mut self.tail else { return text.extend(line) };
        if lines.len() == *most {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// Appends the last ones to `text`; from now on each event is sent at once.
    pub(crate) fn flush(&mut self, text: &mut Vec<u8>) {
        text.extend(self.tail.take().into_iter().flat_map(|tail| tail.lines).flatten());
    }
}

/// Returns true if a type is the wanted one, of its group (`session`), or begins as it does (`slack:web*`).
fn is_of(kind: &str, wanted: &str) -> bool {
    match wanted.strip_suffix('*') {
        Some(start) => kind.starts_with(start),
        None => kind.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with(':')),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::Arc,
        time::{Duration, UNIX_EPOCH},
    };

    use proxy_manager::OffsetGap;

    use super::*;

    fn keeps(query: &str, event: Event) -> bool {
        let query: EventsQuery = serde_json::from_str(query).expect("a query");
        let session = Arc::new("s-1".parse().expect("a valid id"));
        let created_at = UNIX_EPOCH + Duration::from_secs(10);
        query.selection().expect("a selection").keeps(&Envelope {
            offset: 1,
            created_at,
            session,
            turn: None,
            metadata: None,
            event,
        })
    }

    #[test]
    fn types_groups_and_beginnings() {
        for (kind, wanted, expected) in [
            ("stream:text", "stream:text", true),
            ("stream:text", "stream", true),
            ("stream:text", "str", false),
            ("stream:text", "str*", true),
            ("stream:text", "stream:te", false),
            ("log", "log", true),
            ("slack:web:in", "slack:web", true),
            ("anything", "*", true),
        ] {
            assert_eq!(is_of(kind, wanted), expected, "{kind} {wanted}");
        }
    }

    #[test]
    fn what_a_reader_gets() {
        let text = || Event::Text { text: "a".into() };
        let raw = || Event::Harness { agent: "x".into(), payload: b"{}".as_slice().into() };
        let gap = || Event::SessionGap(OffsetGap { from: 1, to: 2 });
        assert!(keeps("{}", raw()));
        assert!(!keeps(r#"{"raw":false}"#, raw()));
        assert!(keeps(r#"{"raw":false,"type":"harness"}"#, raw()), "it was named");
        assert!(keeps(r#"{"raw":false}"#, text()));
        assert!(!keeps(r#"{"type":"session,log"}"#, text()));
        assert!(keeps(r#"{"type":"log"}"#, gap()), "a loss is always shown");
        assert!(keeps(r#"{"since":"1970-01-01T00:00:10Z"}"#, text()));
        assert!(!keeps(r#"{"since":"1970-01-01T00:00:11Z"}"#, text()));
        for query in [r#"{"since":"noon"}"#, r#"{"tail":0}"#, r#"{"tail":10001}"#] {
            assert!(serde_json::from_str::<EventsQuery>(query).expect("a query").selection().is_err(), "{query}");
        }
    }

    #[test]
    fn the_last_ones_come_at_the_end_and_then_each_at_once() {
        let query: EventsQuery = serde_json::from_str(r#"{"tail":2}"#).expect("a query");
        let mut selection = query.selection().expect("a selection");
        let mut text = Vec::new();
        [b"a", b"b", b"c"].into_iter().for_each(|line| selection.push(line.to_vec(), &mut text));
        assert!(text.is_empty());
        selection.flush(&mut text);
        selection.push(b"d".to_vec(), &mut text);
        assert_eq!(text, b"bcd");
    }
}
