//! The Durable Streams protocol at `/v1/streams/{path}`: free streams of bytes or JSON messages, which are stored in the event log, and the
//! stream of each session, to read and to fork.
//!
//! `/v1/streams` and `/v1/streams/{stream}/events` are other routes ([`crate::routes`]): no free stream has a name `NAME/events`.

mod append;
mod create;
mod headers;
mod messages;
mod page;
mod read;
mod server_sent;
mod source;

use axum::{
    Router,
    extract::{FromRequestParts, MatchedPath, RawPathParams, Request},
    http::{HeaderValue, Method, StatusCode, header, request::Parts},
    middleware::{Next, from_fn},
    response::{IntoResponse as _, Response},
    routing::{MethodRouter, get},
};

use self::headers::{ALLOWED_HEADERS, ALLOWED_METHODS, EXPOSED_HEADERS};
use crate::{ApiState, ProblemDetails, access::Caller, requests::RouteResult};

/// Patterns of the routes: names of one segment, and of several, of which `/v1/streams/{stream}/events` is another route.
const ROUTES: [&str; 2] = ["/v1/streams/{stream}", "/v1/streams/{stream}/{*more}"];
/// Beginning of the path of each stream.
const ROOT: &str = "/v1/streams/";
/// First segment of the protocol's own control routes.
const CONTROL: &str = "__ds";
/// Longest name of a stream, in bytes.
const MAX_PATH: usize = 1024;

/// Name of the stream in a request's path.
struct StreamPath(String);

impl<S: Send + Sync> FromRequestParts<S> for StreamPath {
    type Rejection = ProblemDetails;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ProblemDetails> {
        let parameters = RawPathParams::from_request_parts(parts, state).await;
        let parameters =
            parameters.map_err(|error| ProblemDetails::usage(format!("the stream's name is none: {error}")))?;
        let segments: Vec<&str> =
            parameters.iter().filter(|(name, _)| ["stream", "more"].contains(name)).map(|(_, of)| of).collect();
        Ok(Self(segments.join("/")))
    }
}

/// Builds the routes.
pub(crate) fn routes() -> Router<ApiState> {
    let methods: MethodRouter<ApiState> = get(read::read)
        .head(read::head)
        .put(create::create)
        .post(append::append)
        .delete(append::delete)
        .options(async || StatusCode::NO_CONTENT);
    let [one, more] = ROUTES;
    Router::new().route(one, methods.clone()).route(more, methods).route_layer(from_fn(add_headers))
}

/// Returns true for the question of a browser whether a page of another origin may send a request to a stream.
pub(crate) fn is_preflight(method: &Method, path: &str) -> bool {
    *method == Method::OPTIONS && path.contains(ROOT)
}

/// Adds what browsers need to every answer. The origin was checked before, where it has to be.
async fn add_headers(request: Request, next: Next) -> Response {
    let origin = request.headers().get(header::ORIGIN).cloned();
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("cross-origin"));
    headers.insert(header::VARY, HeaderValue::from_static("origin"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.unwrap_or(HeaderValue::from_static("*")));
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(ALLOWED_METHODS));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(ALLOWED_HEADERS));
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED_HEADERS));
    response
}

/// Problem of a request to a path that is another route's.
pub(crate) fn wrong_method(request: &Request) -> ProblemDetails {
    let is_events = request.extensions().get::<MatchedPath>().is_some_and(|path| {
        let path = path.as_str();
        path.contains(ROOT) && path.ends_with("/events")
    });
    let detail = if is_events {
        "NAME/events is reserved: these are the events of the stream NAME, to read and to append to; give a free stream another name"
    } else {
        "this route has another method"
    };
    ProblemDetails::new("method-not-allowed", detail)
}

/// Checks the name of a free stream.
///
/// # Errors
/// `usage`; `unsupported` for the protocol's control routes.
pub(crate) fn check_path(path: &str) -> RouteResult<()> {
    let segments = || path.split('/');
    let usage = |why: &str| Err(ProblemDetails::usage(format!("the stream's name {path:?} cannot be used: {why}")));
    if segments().next() == Some(CONTROL) {
        let detail =
            "names that begin with __ds are the protocol's own, for subscriptions, which this server does not offer";
        return Err(ProblemDetails::new("unsupported", detail));
    }
    match () {
        () if path.is_empty() || path.len() > MAX_PATH => usage("it has to have 1 to 1024 bytes"),
        () if segments().any(|segment| matches!(segment, "" | "." | "..")) => {
            usage("a segment is empty, or is dots alone")
        }
        () if path.chars().any(char::is_control) => usage("it has control characters"),
        () if segments().count() == 2 && path.ends_with("/events") => {
            usage("NAME/events is reserved for the events of the stream NAME")
        }
        () => Ok(()),
    }
}

/// Name of a free stream in a request, for a caller who may use free streams.
///
/// # Errors
/// `usage`, `unsupported`, `refused`.
fn free_path(caller: &Caller, path: &str) -> RouteResult<()> {
    check_path(path)?;
    caller.check_all_users("a stream without a session")
}

/// Converts an error of the event log.
pub(crate) fn log_problem(error: proxy_manager::Error) -> ProblemDetails {
    use proxy_manager::{Error, LogError};
    match &error {
        Error::Log(LogError::InMemory) => ProblemDetails::new(
            "unsupported",
            "free streams are stored in the event log, and this server has none: start it with --state-dir DIRECTORY",
        ),
        Error::Log(LogError::Busy { .. }) => {
            ProblemDetails::new("overloaded", "more is to be written than the event log can take: send it again later")
        }
        Error::Log(LogError::NoStream { path }) => unknown(path),
        _ => error.into(),
    }
}

fn unknown(path: &str) -> ProblemDetails {
    ProblemDetails::new("unknown-stream", format!("there is no stream {path:?}: create it with PUT {ROOT}{path}"))
}

fn deleted(path: &str) -> ProblemDetails {
    let detail = format!("the stream {path:?} was deleted: forks of it still have its content");
    ProblemDetails::new("stream-deleted", detail)
}

/// Refusal with headers of its own.
fn with_headers<const N: usize>(problem: ProblemDetails, headers: [(&'static str, String); N]) -> Response {
    let mut response = problem.into_response();
    headers::insert(&mut response, headers);
    response
}
