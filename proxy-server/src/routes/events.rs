//! Events: read, append, import.

use std::{fs::File, io::BufReader};

use axum::{
    extract::{Path, Query},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use proxy_manager::{FeedStart, ImportSummary, NewEvent, ProxyManager, SessionId, SessionState, Subscription};

use crate::{
    ApiState, ProblemDetails,
    access::Caller,
    api::{AppendRequest, AppendResponse, ImportRequest, ImportResponse},
    event_filter::{EventSelection, EventsQuery},
    event_page,
    requests::{Body, JsonBody, RouteResult, UrlQuery, parse, to_the_end},
    route_table::api_routes,
    stream::{self, EventFormat, EventRange},
    webhooks::check_metadata,
};

api_routes! { "Events", ApiState;
    /// Reads a session's events.
    ///
    /// `Accept` chooses the form: JSON lines to the last event there is, or with `follow` to the session's end; server-sent events, always to
    /// the session's end, with the offset in decimal as `id`; or a page of JSON. An event that is missing is replaced by a `session:gap`.
    get "/v1/sessions/{id}/events" list:
        query::<EventsQuery>() header("Last-Event-ID", LAST_EVENT_ID)
        lines::<proxy_manager::Envelope>(200, "The events, in the form that was asked for.") server_sent::<proxy_manager::Envelope>(200, "")
        json::<crate::api::EventPage>(200, "") empty(204, "The session has ended, and a reader of server-sent events has all of it.")
        problems(SESSION);
    /// Appends an event to a session's stream.
    post "/v1/sessions/{id}/events" append:
        body::<AppendRequest>() json::<AppendResponse>(201, "The event is in the stream.")
        problems(SESSION) problems(PROXY) problems(&["invalid-config"]);
    /// Lists the streams that have events and no session.
    get "/v1/streams" list_streams: json::<Vec<proxy_manager::FreeStreamInfo>>(200, "The streams.") problems(&["refused"]);
    /// Reads the events of a stream, which need not have a session, nor an event yet.
    ///
    /// As the events of a session. A reader that follows goes on with the events of the session that gets the stream.
    get "/v1/streams/{stream}/events" list_stream:
        query::<EventsQuery>() header("Last-Event-ID", LAST_EVENT_ID)
        lines::<proxy_manager::Envelope>(200, "The events, in the form that was asked for.") server_sent::<proxy_manager::Envelope>(200, "")
        json::<crate::api::EventPage>(200, "") empty(204, "The session has ended, and a reader of server-sent events has all of it.")
        problems(SESSION) problems(&["refused", "busy"]);
    /// Appends an event to a stream, which need not have a session.
    ///
    /// The action `session-create` starts the session that goes on with the stream.
    post "/v1/streams/{stream}/events" append_to_stream:
        body::<AppendRequest>() json::<AppendResponse>(201, "The event is in the stream.")
        problems(SESSION) problems(PROXY) problems(&["invalid-config", "refused", "busy"]);
    /// Reads the events of all sessions, in one order.
    ///
    /// As the events of one session; `from` and `id` are positions in that order, which exists where the server has a state directory.
    get "/v1/events" list_all:
        query::<EventsQuery>() header("Last-Event-ID", LAST_EVENT_ID)
        lines::<proxy_manager::Envelope>(200, "The events, in the form that was asked for.") server_sent::<proxy_manager::Envelope>(200, "")
        json::<crate::api::EventPage>(200, "") problems(MANAGER) problems(&["usage", "unsupported", "refused"]);
    /// Imports the events of a file as a session.
    post "/v1/import" import:
        body::<ImportRequest>() json::<ImportResponse>(200, "The events are in the log.")
        problems(MANAGER) problems(&["duplicate-session", "unsupported", "refused", "state-dir-in-use"]);
}

/// Events that are looked at for one of the last, at first; so many times more each time that these are too few.
const TAIL_WINDOW: u64 = 8;

/// Description of the header with which a browser comes back.
#[cfg(feature = "openapi")]
const LAST_EVENT_ID: &str = "Offset after which events are sent. It counts more than `from`.";

/// Streams a session's events: as JSON lines, to the last one or with `follow` to the session's end; as server-sent events, always to
/// the session's end; or as one page of JSON.
async fn list(
    caller: Caller,
    Path(id): Path<String>,
    query: UrlQuery<EventsQuery>,
    headers: HeaderMap,
) -> RouteResult<Response> {
    let id = caller.session_id(&id)?;
    read_events(&caller, &id, query, &headers, EventSource::Session, ProxyManager::subscribe_from).await
}

/// What events are read of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventSource {
    Session,
    /// Stream of a session.
    Stream,
    /// Stream without a session.
    FreeStream,
}

/// Reads the events of a session or a stream, to which `subscribe` subscribes.
async fn read_events(
    caller: &Caller,
    id: &SessionId,
    query: UrlQuery<EventsQuery>,
    headers: &HeaderMap,
    source: EventSource,
    subscribe: impl Fn(&ProxyManager, &SessionId, u64) -> proxy_manager::Result<Subscription>,
) -> RouteResult<Response> {
    let Query(query) = query.map_err(|error| ProblemDetails::usage(error.to_string()))?;
    let format = EventFormat::of(headers);
    let is_free = source == EventSource::FreeStream;
    let last = caller.manager.last_offset(id).ok();
    // Without a log a stream begins again with its daemon, and whoever has seen more of the one before gets all of it.
    let begins_again = source != EventSource::Session && caller.manager.log_metrics().is_none();
    let is_beyond = |from| last.or(is_free.then_some(0)).is_some_and(|last| from > last);
    let from = match query.start(last_event_id(headers))? {
        FeedStart::After(from) if begins_again && is_beyond(from) => 0,
        FeedStart::After(from) => from,
        // All events of a stream that has none yet are to come.
        FeedStart::Latest => last.unwrap_or(if is_free { 0 } else { u64::MAX - 1 }),
    };
    let selection = query.selection()?;
    let mut subscription = subscribe(&caller.manager, id, from)?;
    // A free stream without any event has nothing to wait for.
    let until = last.or(is_free.then_some(from));
    if format == EventFormat::Page {
        let limit = query.page_limit()?;
        return Ok(
            JsonBody(event_page::of_session(&mut subscription, from, until, selection, limit).await?).into_response()
        );
    }
    let follows = query.follow || format == EventFormat::ServerSent;
    // A session of an earlier daemon has an end by itself.
    let range = EventRange { from, last, until: until.filter(|_| !follows) };
    if format == EventFormat::ServerSent && is_over(&caller.manager, id, from) {
        // The one answer after which a browser does not connect again.
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let reader = caller.readers().filter(|_| follows).map(|readers| readers.enter(Some(id.clone()), from));
    let begin = tail_begin(&selection, from, last, |begin| subscribe(&caller.manager, id, begin)).await?;
    if begin > from {
        subscription = subscribe(&caller.manager, id, begin)?;
    }
    Ok(stream::events(subscription, range, selection, format, reader))
}

/// Returns the offset behind which a reader of the last events finds as many as it asks for: a few of many are not looked for among all.
async fn tail_begin(
    selection: &EventSelection,
    from: u64,
    last: Option<u64>,
    subscribe: impl Fn(u64) -> proxy_manager::Result<Subscription>,
) -> RouteResult<u64> {
    let (Some(most), Some(last)) = (selection.tail(), last) else { return Ok(from) };
    let mut window = most.saturating_mul(TAIL_WINDOW);
    loop {
        let begin = last.saturating_sub(window);
        if begin <= from {
            return Ok(from);
        }
        let (mut subscription, mut batch) = (subscribe(begin)?, Vec::new());
        let (mut seen, mut found) = (begin, 0);
        while seen < last && subscription.next_batch(&mut batch).await {
            seen = batch.last().map_or(last, |envelope| envelope.offset);
            found +=
                batch.drain(..).filter(|envelope| envelope.offset <= last && selection.keeps(envelope)).count() as u64;
        }
        if found >= most {
            return Ok(begin);
        }
        window = window.saturating_mul(TAIL_WINDOW);
    }
}

/// Returns true if the session has no event after `from`, and will have none.
fn is_over(manager: &ProxyManager, id: &SessionId, from: u64) -> bool {
    match manager.session(id) {
        Ok(session) => {
            let info = session.info();
            matches!(info.state, SessionState::Ended { .. }) && from >= info.last_offset
        }
        Err(_) => manager.record(id).is_ok_and(|record| from >= record.last_offset),
    }
}

/// Returns the offset after which a reader comes back.
pub(crate) fn last_event_id(headers: &HeaderMap) -> Option<&str> {
    headers.get("last-event-id").and_then(|value| value.to_str().ok()).filter(|value| !value.is_empty())
}

/// Streams the events of all sessions: as JSON lines, to the last one or with `follow` for good; as server-sent events, for good.
async fn list_all(caller: Caller, query: UrlQuery<EventsQuery>, headers: HeaderMap) -> RouteResult<Response> {
    let Query(query) = query.map_err(|error| ProblemDetails::usage(error.to_string()))?;
    caller.check_all_users("the events of all sessions")?;
    let (format, start) = (EventFormat::of(&headers), query.start(last_event_id(&headers))?);
    if format == EventFormat::Page {
        let (limit, selection) = (query.page_limit()?, query.selection()?);
        return Ok(JsonBody(event_page::of_all(&caller.manager, start, selection, limit).await?).into_response());
    }
    let follows = query.follow || format == EventFormat::ServerSent;
    let from = match start {
        FeedStart::After(from) => from,
        FeedStart::Latest => caller.manager.follow_all(start).await?.position(),
    };
    let reader = caller.readers().filter(|_| follows).map(|readers| readers.enter(None, from));
    stream::all_events(caller.manager, from, query.selection()?, format, follows, reader).await
}

async fn append(caller: Caller, Path(id): Path<String>, body: Body) -> RouteResult<Response> {
    let AppendRequest { kind, version, payload, metadata } = parse(body)?;
    check_metadata(metadata.as_ref())?;
    let id = caller.find(&id)?.id().clone();
    caller.check_append(&kind)?;
    caller.check_action(&id, &kind)?;
    let event = NewEvent { kind, version, payload, metadata };
    let offset = to_the_end(async move { caller.manager.append(&id, event).await }).await?;
    Ok((StatusCode::CREATED, JsonBody(AppendResponse { offset: format!("{offset:020}") })).into_response())
}

/// Parses the id of a stream, which a caller of one user's sessions has only where a session of that user has it.
fn stream_id(caller: &Caller, text: &str) -> RouteResult<SessionId> {
    let id: SessionId =
        text.parse().map_err(|error: ipc_protocol::InvalidId| ProblemDetails::usage(error.to_string()))?;
    if caller.manager.session(&id).is_err() && caller.manager.record(&id).is_err() {
        caller.check_all_users("a stream without a session")?;
        return Ok(id);
    }
    caller.session_id(text)
}

async fn list_streams(caller: Caller) -> RouteResult<JsonBody<Vec<proxy_manager::FreeStreamInfo>>> {
    caller.check_all_users("streams without a session")?;
    Ok(JsonBody(caller.manager.streams()))
}

async fn list_stream(
    caller: Caller,
    Path(id): Path<String>,
    query: UrlQuery<EventsQuery>,
    headers: HeaderMap,
) -> RouteResult<Response> {
    let id = stream_id(&caller, &id)?;
    let subscribe = |manager: &ProxyManager, id: &SessionId, from| match manager.last_offset(id) {
        // One that has no event yet begins where that comes.
        Err(_) if from == u64::MAX - 1 => manager.subscribe_to_stream(id, 0),
        _ => manager.subscribe_to_stream(id, from),
    };
    let source = if caller.manager.record(&id).is_err() { EventSource::FreeStream } else { EventSource::Stream };
    read_events(&caller, &id, query, &headers, source, subscribe).await
}

async fn append_to_stream(caller: Caller, Path(id): Path<String>, body: Body) -> RouteResult<Response> {
    let AppendRequest { kind, version, payload, metadata } = parse(body)?;
    check_metadata(metadata.as_ref())?;
    caller.check_append(&kind)?;
    let id = stream_id(&caller, &id)?;
    caller.check_action(&id, &kind)?;
    let event = NewEvent { kind, version, payload, metadata };
    let offset = to_the_end(async move { caller.manager.append_to_stream(&id, event).await }).await?;
    Ok((StatusCode::CREATED, JsonBody(AppendResponse { offset: format!("{offset:020}") })).into_response())
}

async fn import(caller: Caller, body: Body) -> RouteResult<JsonBody<ImportResponse>> {
    caller.check_all_users("an import")?;
    let ImportRequest { path } = parse(body)?;
    let opened = tokio::task::spawn_blocking(move || open(&path)).await;
    let file = opened.map_err(|error| ProblemDetails::failed(format!("opening the file broke off: {error}")))??;
    let imported = to_the_end(async move { caller.manager.import_events(BufReader::new(file)).await }).await?;
    let offset = |offset: u64| format!("{offset:020}");
    let ImportSummary { session, first, last } = imported;
    Ok(JsonBody(ImportResponse { session_id: session, first: offset(first), last: offset(last) }))
}

/// Opens a regular file; refuses anything that could block its reader.
fn open(path: &std::path::Path) -> RouteResult<File> {
    let failed = |what: String| ProblemDetails::usage(format!("opening {} failed: {what}", path.display()));
    let found = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?;
    if !found.is_file() {
        return Err(failed("it is no file".to_owned()));
    }
    File::open(path).map_err(|error| failed(error.to_string()))
}
