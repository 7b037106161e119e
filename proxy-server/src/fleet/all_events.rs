//! Events of all sessions of all nodes, from the fleet's log, in the order in which it has them.

use axum::{
    extract::{Query, Request},
    middleware::Next,
    response::{IntoResponse as _, Response},
};

use tokio::time::timeout;

use super::FleetGateway;
use crate::{
    ProblemDetails,
    access::Identity,
    event_filter::EventsQuery,
    event_page,
    request_bounds::ANSWER_TIME,
    requests::{JsonBody, RouteResult},
    routes::last_event_id,
    stream::{self, EventFormat, FeedReader},
};

/// Answers a request for them. The route of this node alone answers where its events are not in the log, and refuses who may not read them.
pub(super) async fn read(gateway: &FleetGateway, request: Request, next: Next) -> RouteResult<Response> {
    let sees_all = request.extensions().get::<Identity>().is_none_or(|identity| identity.user.is_none());
    if !gateway.0.settings.ships_events || !sees_all {
        return Ok(next.run(request).await);
    }
    let query = Query::<EventsQuery>::try_from_uri(request.uri());
    let Query(query) = query.map_err(|error| ProblemDetails::usage(error.to_string()))?;
    let (format, selection) = (EventFormat::of(request.headers()), query.selection()?);
    let start = query.start(last_event_id(request.headers()))?;
    let late = |_| {
        let detail =
            format!("the events of all sessions: the fleet's log gave no answer within {ANSWER_TIME:?}: try again");
        ProblemDetails::new("deadline", detail)
    };
    let feed = timeout(ANSWER_TIME, FeedReader::begin(gateway.member().log(), start)).await.map_err(late)??;
    if format == EventFormat::Page {
        let page = event_page::of_feed(feed, selection, query.page_limit()?);
        let page = timeout(ANSWER_TIME, page).await.map_err(late)??;
        return Ok(JsonBody(page).into_response());
    }
    let follows = query.follow || format == EventFormat::ServerSent;
    Ok(stream::feed_events(feed, selection, format, follows))
}
