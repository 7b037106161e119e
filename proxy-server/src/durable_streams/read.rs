//! Reading: what there is, and by long poll what comes.

use std::time::Duration;

use axum::{
    extract::Query,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use proxy_manager::is_json;
use tokio::time::{Instant, timeout_at};

use super::{
    StreamPath,
    headers::{self, CLOSED, CURSOR, NEXT_OFFSET, NOW, START, UP_TO_DATE},
    messages, page, server_sent,
    source::{self, StreamSource, StreamState},
    unknown,
};
use crate::{
    ProblemDetails,
    access::Caller,
    requests::{RouteResult, UrlQuery},
};

/// Longest wait of a long poll.
const LONG_POLL: Duration = Duration::from_secs(20);
/// Content that nothing is appended to any more, or that is followed by more: it stays as it is.
const CACHED: &str = "private, max-age=60, stale-while-revalidate=300";
/// Content at the end of a stream.
const ASKED_AGAIN: &str = "private, no-cache";

/// Way of reading.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LiveMode {
    No,
    LongPoll,
    ServerSent,
}

/// Beginning of what is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadStart {
    First,
    Now,
    At(u64),
}

/// Query of a read.
struct ReadQuery {
    start: Option<ReadStart>,
    live: LiveMode,
    cursor: Option<String>,
}

impl ReadQuery {
    fn of(query: UrlQuery<Vec<(String, String)>>) -> RouteResult<Self> {
        let Query(pairs) = query.map_err(|error| ProblemDetails::usage(error.to_string()))?;
        let mut read = Self { start: None, live: LiveMode::No, cursor: None };
        for (name, value) in pairs {
            match name.as_str() {
                "offset" if read.start.is_some() => {
                    return Err(ProblemDetails::usage("there are several offsets: give one"));
                }
                "offset" => {
                    read.start = Some(match value.as_str() {
                        START => ReadStart::First,
                        NOW => ReadStart::Now,
                        offset => ReadStart::At(headers::parse_offset(offset)?),
                    });
                }
                "live" => {
                    read.live = match value.as_str() {
                        "long-poll" => LiveMode::LongPoll,
                        "sse" => LiveMode::ServerSent,
                        _ => return Err(ProblemDetails::usage(format!("live is {value:?}: give long-poll or sse"))),
                    }
                }
                "cursor" => read.cursor = Some(value),
                _ => {}
            }
        }
        if read.live != LiveMode::No && read.start.is_none() {
            return Err(ProblemDetails::usage("a live read needs an offset: give -1 for all, or now"));
        }
        Ok(read)
    }
}

pub(super) async fn head(caller: Caller, StreamPath(path): StreamPath) -> RouteResult<Response> {
    let state = source::find(&caller, &path)?.state().ok_or_else(|| unknown(&path))?;
    let mut response = StatusCode::OK.into_response();
    headers::insert(
        &mut response,
        [
            ("content-type", state.content_type.to_string()),
            (NEXT_OFFSET, headers::offset(state.tail)),
            ("cache-control", "no-store".to_owned()),
            ("etag", page::etag(&state.tag, None, state.tail, state.is_closed)),
        ],
    );
    if let Some(life) = state.life {
        headers::insert(&mut response, [life]);
    }
    if state.is_closed {
        headers::insert(&mut response, [(CLOSED, "true".to_owned())]);
    }
    Ok(response)
}

pub(super) async fn read(
    caller: Caller,
    StreamPath(path): StreamPath,
    query: UrlQuery<Vec<(String, String)>>,
    headers: HeaderMap,
) -> RouteResult<Response> {
    let stream = source::find(&caller, &path)?;
    let query = ReadQuery::of(query)?;
    let state = stream.state().ok_or_else(|| unknown(&path))?;
    let from = match query.start {
        None | Some(ReadStart::First) => 0,
        Some(ReadStart::Now) => state.tail,
        Some(ReadStart::At(at)) if at <= state.tail => at,
        Some(ReadStart::At(at)) => {
            let (at, end) = (headers::offset(at), headers::offset(state.tail));
            let detail =
                format!("the stream {path:?} ends at {end}, and the offset is {at}: was the stream created anew?");
            return Err(ProblemDetails::usage(detail));
        }
    };
    stream.touch();
    match query.live {
        LiveMode::ServerSent => server_sent::stream(&path, stream, from, query.cursor),
        LiveMode::LongPoll => long_poll(&path, &stream, from, query.cursor.as_deref()).await,
        LiveMode::No if query.start == Some(ReadStart::Now) => Ok(now(&state)),
        LiveMode::No => {
            let content = if from < state.tail {
                stream.reader(from)?.next(from, state.tail).await?.unwrap_or((Vec::new(), from))
            } else {
                (Vec::new(), from)
            };
            let (etag, response) = answer(&path, &stream, query.start, content)?;
            let known = headers::text(&headers, header::IF_NONE_MATCH.as_str());
            if known.is_some_and(|known| page::is_known(known, &etag)) {
                let mut response = StatusCode::NOT_MODIFIED.into_response();
                headers::insert(&mut response, [("etag", etag)]);
                return Ok(response);
            }
            Ok(response)
        }
    }
}

/// Answer to who asks for the end alone.
fn now(state: &StreamState) -> Response {
    let body: &[u8] = if is_json(&state.content_type) { b"[]" } else { b"" };
    let mut response = body.into_response();
    headers::insert(
        &mut response,
        [
            ("content-type", state.content_type.to_string()),
            (NEXT_OFFSET, headers::offset(state.tail)),
            (UP_TO_DATE, "true".to_owned()),
            ("cache-control", "no-store".to_owned()),
        ],
    );
    if state.is_closed {
        headers::insert(&mut response, [(CLOSED, "true".to_owned())]);
    }
    response
}

/// Answer with content, and its tag.
fn answer(
    path: &str,
    stream: &StreamSource,
    start: Option<ReadStart>,
    (content, next): (Vec<u8>, u64),
) -> RouteResult<(String, Response)> {
    // The end as it is now, after the content was read: what has come since is not in it.
    let state = stream.state().ok_or_else(|| unknown(path))?;
    let from = match start {
        Some(ReadStart::At(at)) => Some(at),
        _ => None,
    };
    let is_last = next >= state.tail;
    let etag = page::etag(&state.tag, from, next, is_last && state.is_closed);
    let body = if is_json(&state.content_type) { messages::array(content) } else { content };
    let mut response = body.into_response();
    headers::insert(
        &mut response,
        [
            ("content-type", state.content_type.to_string()),
            (NEXT_OFFSET, headers::offset(next)),
            ("etag", etag.clone()),
            ("cache-control", if is_last { ASKED_AGAIN } else { CACHED }.to_owned()),
        ],
    );
    if is_last {
        headers::insert(&mut response, [(UP_TO_DATE, "true".to_owned())]);
    }
    if is_last && state.is_closed {
        headers::insert(&mut response, [(CLOSED, "true".to_owned())]);
    }
    Ok((etag, response))
}

/// Waits for content after `from`.
async fn long_poll(path: &str, stream: &StreamSource, from: u64, cursor: Option<&str>) -> RouteResult<Response> {
    let until = Instant::now() + LONG_POLL;
    let mut reader = stream.reader(from)?;
    loop {
        let state = stream.state().ok_or_else(|| unknown(path))?;
        if state.is_closed && from >= state.tail {
            return Ok(nothing(&state, cursor));
        }
        let end = || stream.state().map(|state| StreamState { tail: from, ..state }).ok_or_else(|| unknown(path));
        match timeout_at(until, reader.next(from, state.tail)).await {
            Err(_) => return Ok(nothing(&end()?, cursor)),
            Ok(content) => match content? {
                Some(content) if content.1 > from => {
                    let (_, mut response) = answer(path, stream, Some(ReadStart::At(from)), content)?;
                    headers::insert(&mut response, [(CURSOR, page::cursor(cursor).to_string())]);
                    return Ok(response);
                }
                Some(_) => {}
                None if stream.may_go_on() => {
                    tokio::time::sleep_until(until).await;
                    return Ok(nothing(&end()?, cursor));
                }
                None => return Ok(nothing(&StreamState { is_closed: true, ..end()? }, cursor)),
            },
        }
    }
}

/// Answer to a long poll that came to the end of a stream, or of its time.
fn nothing(state: &StreamState, cursor: Option<&str>) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    headers::insert(
        &mut response,
        [
            (NEXT_OFFSET, headers::offset(state.tail)),
            (UP_TO_DATE, "true".to_owned()),
            (CURSOR, page::cursor(cursor).to_string()),
            ("cache-control", "no-store".to_owned()),
        ],
    );
    if state.is_closed {
        headers::insert(&mut response, [(CLOSED, "true".to_owned())]);
    }
    response
}
