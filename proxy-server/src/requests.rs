//! Requests and answers of all routes: bodies in, JSON or a problem object (RFC 9457) out.

use axum::{
    body::Bytes,
    extract::{
        Query,
        rejection::{BytesRejection, QueryRejection},
    },
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::{ProblemDetails, json_node::JsonNode};

/// Longest body of a request, in bytes: twice the longest message to a proxy, for what JSON adds to it.
pub const MAX_BODY: usize = 32 * 1024 * 1024;

pub(crate) type RouteResult<T> = Result<T, ProblemDetails>;

/// Body of a request, as a route takes it.
pub(crate) type Body = Result<Bytes, BytesRejection>;

/// Query of a request, as a route takes it.
pub(crate) type UrlQuery<T> = Result<Query<T>, QueryRejection>;

/// JSON with its content type.
#[derive(Debug)]
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: Serialize> IntoResponse for JsonBody<T> {
    fn into_response(self) -> Response {
        axum::Json(self.0).into_response()
    }
}

/// Parses a request's body as JSON; an empty one counts as `{}`.
pub(crate) fn parse<T: DeserializeOwned>(body: Body) -> RouteResult<T> {
    let body = body.map_err(|error| {
        let kind = if error.status() == StatusCode::PAYLOAD_TOO_LARGE { "body-too-large" } else { "usage" };
        ProblemDetails::new(kind, format!("reading the request failed: {error} (at most {MAX_BODY} bytes)"))
    })?;
    let body: &[u8] = if body.is_empty() { b"{}" } else { &body };
    let no_json = |error: serde_json::Error| ProblemDetails::usage(format!("the request's body is no JSON: {error}"));
    let node: JsonNode = serde_json::from_slice(body).map_err(no_json)?;
    serde_path_to_error::deserialize(node).map_err(|error| match error.path().to_string() {
        // The whole of it.
        path if path == "." => ProblemDetails::usage(format!("the request's body does not fit: {}", error.inner())),
        path => ProblemDetails::usage(format!("the request's body does not fit in {path}: {}", error.inner())),
    })
}

/// Parses a merge patch (RFC 7396) of an object.
pub(crate) fn parse_patch(body: Body) -> RouteResult<Map<String, Value>> {
    match parse(body)? {
        Value::Object(patch) => Ok(patch),
        _ => Err(ProblemDetails::usage("the request's body does not fit: a patch is an object".to_owned())),
    }
}

/// Runs a kill, or other work that must not stop half-way when its client leaves, in a task of its own.
pub(crate) async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = proxy_manager::Result<T>> + Send + 'static,
) -> RouteResult<T> {
    let done =
        tokio::spawn(work).await.map_err(|error| ProblemDetails::failed(format!("the work broke off: {error}")))?;
    Ok(done?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::KillRequest;

    #[test]
    fn a_body_that_does_not_fit_names_its_field() {
        let detail = |json: &'static str| parse::<KillRequest>(Ok(json.into())).expect_err("refused").detail;
        assert!(detail(r#"{"graceMs":"soon"}"#).contains("in graceMs: invalid type: string \"soon\", expected u64"));
        assert!(
            detail(r#"{"grace":1}"#).contains("grace: unknown field `grace`, expected one of `pid`"),
            "{}",
            detail(r#"{"grace":1}"#)
        );
        assert!(detail("{} {}").contains("trailing characters") && detail("{").contains("EOF"));
    }
}
