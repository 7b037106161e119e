//! Events of a session whose owner is silent, from the fleet's log.

use axum::{
    extract::Query,
    http::{HeaderMap, Method, Uri},
    response::{IntoResponse as _, Response},
};
use fleet::FleetMember;
use proxy_manager::{FeedStart, SessionId};

use super::unreachable;
use crate::{
    ProblemDetails,
    event_filter::EventsQuery,
    event_page,
    requests::{JsonBody, RouteResult},
    routes::last_event_id,
    stream::{self, EventFormat, EventRange},
};

/// Returns true for a request for a session's events.
pub(super) fn is_asked_for(method: &Method, path: &str) -> bool {
    *method == Method::GET && path.ends_with("/events")
}

/// Returns true for a reader that begins before the event with offset `first`.
pub(super) fn begins_before(uri: &Uri, headers: &HeaderMap, first: u64) -> bool {
    let start = Query::<EventsQuery>::try_from_uri(uri).ok().map(|Query(query)| query.start(last_event_id(headers)));
    matches!(start, Some(Ok(FeedStart::After(from))) if from + 1 < first)
}

/// Answers with the events that the log has; `None` where it has none of the session.
pub(super) async fn read(
    member: &FleetMember,
    session: &SessionId,
    uri: &Uri,
    headers: &HeaderMap,
) -> RouteResult<Option<Response>> {
    let query = Query::<EventsQuery>::try_from_uri(uri);
    let Query(query) = query.map_err(|error| ProblemDetails::usage(error.to_string()))?;
    let tail = member.log().tail(session).await.map_err(unreachable)?;
    if tail.last == 0 {
        return Ok(None);
    }
    let from = match query.start(last_event_id(headers))? {
        FeedStart::After(from) => from,
        FeedStart::Latest => tail.last,
    };
    let log = member.log().read(session, from).await.map_err(unreachable)?;
    let format = EventFormat::of(headers);
    let last = log.last();
    if format == EventFormat::Page {
        let page = event_page::of_log(log, from, last, query.selection()?, query.page_limit()?).await?;
        return Ok(Some(JsonBody(page).into_response()));
    }
    let follows = query.follow || format == EventFormat::ServerSent;
    let range = EventRange { from, last: Some(last), until: (!follows).then_some(last) };
    Ok(Some(stream::logged_events(log, range, query.selection()?, format)))
}
