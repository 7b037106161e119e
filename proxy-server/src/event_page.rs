//! Events as one JSON object: a page.

use proxy_manager::{Envelope, FeedStart, ProxyManager, Subscription};
use serde_json::Value;

use crate::{ProblemDetails, api::EventPage, event_filter::EventSelection, requests::RouteResult, stream::event_json};

/// Events read at once, of which the reader may select few.
const READ: usize = 1024;

/// Reads the selected events of a session after offset `from`, up to `limit` of them.
///
/// # Errors
/// If an event cannot be converted.
pub(crate) async fn of_session(
    subscription: &mut Subscription,
    from: u64,
    last: Option<u64>,
    selection: EventSelection,
    limit: usize,
) -> RouteResult<EventPage> {
    let (mut page, mut batch) = (PageReader::new(from, selection, limit), Vec::new());
    // Of a session that goes on, only what exists is read.
    while last.is_none_or(|last| page.next < last) && subscription.next_batch(&mut batch).await {
        for envelope in batch.drain(..) {
            if !page.push(&envelope, None)? {
                return Ok(page.done(true));
            }
        }
    }
    Ok(page.done(false))
}

/// Reads the selected events that a fleet's log has of a session after offset `from`, up to `limit` of them.
///
/// # Errors
/// If the log cannot be read, or an event cannot be converted.
#[cfg(feature = "fleet")]
pub(crate) async fn of_log(
    mut log: fleet::FleetLogReader,
    from: u64,
    last: u64,
    selection: EventSelection,
    limit: usize,
) -> RouteResult<EventPage> {
    let mut page = PageReader::new(from, selection, limit);
    while page.next < last {
        let lines = log.next().await.map_err(crate::fleet::unreachable)?;
        for envelope in crate::stream::logged_batch(&lines)? {
            if envelope.offset <= page.next {
                continue;
            }
            let gap = crate::stream::gap_before(&envelope, page.next);
            for event in gap.iter().chain([&envelope]) {
                if !page.push(event, None)? {
                    return Ok(page.done(true));
                }
            }
        }
    }
    Ok(page.done(false))
}

/// Reads the selected events of all sessions that a fleet's log has, up to `limit` of them.
///
/// # Errors
/// If the log cannot be read, or an event cannot be converted.
#[cfg(feature = "fleet")]
pub(crate) async fn of_feed(
    mut feed: crate::stream::FeedReader,
    selection: EventSelection,
    limit: usize,
) -> RouteResult<EventPage> {
    let mut page = PageReader::new(feed.seen, selection, limit);
    while !feed.is_at_end {
        for (position, envelope) in feed.next().await? {
            if !page.push(&envelope, Some(position))? {
                return Ok(page.done(true));
            }
        }
    }
    Ok(page.done(false))
}

/// Reads the selected events of all sessions, up to `limit` of them.
///
/// # Errors
/// As [`ProxyManager::read_all`].
pub(crate) async fn of_all(
    manager: &ProxyManager,
    start: FeedStart,
    selection: EventSelection,
    limit: usize,
) -> RouteResult<EventPage> {
    let from = manager.follow_all(start).await?.position();
    let mut page = PageReader::new(from, selection, limit);
    loop {
        let events = manager.read_all(page.next, READ).await?;
        if events.is_empty() {
            return Ok(page.done(false));
        }
        for (position, envelope) in events {
            if !page.push(&envelope, Some(position))? {
                return Ok(page.done(true));
            }
        }
    }
}

/// Page in the making.
struct PageReader {
    selection: EventSelection,
    limit: usize,
    events: Vec<Value>,
    /// Offset or position of the last event that was looked at.
    next: u64,
}

impl PageReader {
    fn new(from: u64, selection: EventSelection, limit: usize) -> Self {
        Self { selection, limit, events: Vec::new(), next: from }
    }

    fn is_full(&self) -> bool {
        self.events.len() >= self.limit
    }

    /// Takes an event if it is selected. Returns false if it belongs to the next page.
    fn push(&mut self, envelope: &Envelope, position: Option<u64>) -> RouteResult<bool> {
        if self.selection.keeps(envelope) {
            if self.is_full() {
                return Ok(false);
            }
            let json = event_json(envelope, position);
            self.events.push(json.map_err(|error| ProblemDetails::failed(format!("an event is no JSON: {error}")))?);
        }
        self.next = position.unwrap_or(envelope.offset);
        Ok(true)
    }

    fn done(self, more: bool) -> EventPage {
        EventPage { events: self.events, next: format!("{:020}", self.next), more }
    }
}
