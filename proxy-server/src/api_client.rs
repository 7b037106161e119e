//! Client of the API, whichever way its routes are reached: for servers of other protocols, whose requests become calls of it.

use std::time::Duration;

use axum::{
    Router,
    body::{Body, BodyDataStream, to_bytes},
    http::{HeaderName, Method, Request, header, request::Parts},
    response::Response,
};
use futures_util::StreamExt as _;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio::time::timeout;
use tower::{ServiceExt, util::BoxCloneSyncService};

use crate::{Peer, ProblemDetails, access::Identity, api::NDJSON, requests::RouteResult, stream::is_problem_line};

/// The routes of the API: a router in this process, or a daemon behind its socket.
pub type ApiService = BoxCloneSyncService<Request<Body>, Response, ProblemDetails>;

/// Longest answer of a request, in bytes.
const LONGEST_ANSWER: usize = 64 * 1024 * 1024;

/// Longest line of a stream, in bytes: the longest message of a proxy, and what JSON adds to it.
const LONGEST_LINE: usize = 128 * 1024 * 1024;

/// Silence of a stream after which the server is asked whether it is well.
const SILENCE: Duration = Duration::from_secs(30);

/// Client of the API, for one caller.
#[derive(Clone, derive_more::Debug)]
pub(crate) struct ApiClient {
    #[debug(skip)]
    service: ApiService,
    identity: Option<Identity>,
    peer: Option<Peer>,
    /// Number of sessions around the caller.
    pub(crate) depth: u32,
}

impl ApiClient {
    /// Creates a client for a caller who is the host.
    pub(crate) fn new(service: ApiService, depth: u32) -> Self {
        Self { service, identity: None, peer: None, depth }
    }

    /// Returns a client for whoever has sent this request.
    pub(crate) fn as_caller_of(&self, request: &Parts) -> Self {
        let (identity, peer) = (request.extensions.get().cloned(), request.extensions.get().copied());
        Self { identity, peer, ..self.clone() }
    }

    pub(crate) async fn get(&self, path: &str) -> RouteResult<Value> {
        self.call(Method::GET, path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> RouteResult<Value> {
        self.call(Method::POST, path, Some(body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> RouteResult<Value> {
        self.call(Method::DELETE, path, None).await
    }

    /// Begins a stream of JSON lines.
    pub(crate) async fn lines(&self, path: &str) -> RouteResult<LineStream> {
        let response = self.send(Method::GET, path, None, NDJSON).await?;
        Ok(LineStream { body: response.into_body().into_data_stream(), buffer: Vec::new(), at: 0, api: self.clone() })
    }

    /// Carries out a request. An empty answer is null.
    async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> RouteResult<Value> {
        let response = self.send(method, path, body, "application/json").await?;
        let bytes = read(response).await?;
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&bytes)
            .map_err(|error| ProblemDetails::failed(format!("the answer to {path} is no JSON: {error}")))
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>, accept: &str) -> RouteResult<Response> {
        let invalid = |error: axum::http::Error| ProblemDetails::usage(format!("the request makes no sense: {error}"));
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let headers: [(HeaderName, &str); 3] =
            [(header::ACCEPT, accept), (header::CONTENT_TYPE, "application/json"), (header::HOST, "agent-proxy")];
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let mut request = request.body(body).map_err(invalid)?;
        if let Some(identity) = &self.identity {
            request.extensions_mut().insert(identity.clone());
        }
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(peer);
        }
        let response = self.service.clone().oneshot(request).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body = read(response).await?;
        Err(serde_json::from_slice(&body)
            .unwrap_or_else(|_| ProblemDetails::failed(format!("{path} was answered with the status {status}"))))
    }
}

async fn read(response: Response) -> RouteResult<Vec<u8>> {
    let failed = |error: axum::Error| ProblemDetails::failed(format!("reading the answer failed: {error}"));
    Ok(to_bytes(response.into_body(), LONGEST_ANSWER).await.map_err(failed)?.into())
}

/// Stream of JSON lines.
pub(crate) struct LineStream {
    body: BodyDataStream,
    buffer: Vec<u8>,
    /// Place of the next line in the buffer.
    at: usize,
    api: ApiClient,
}

impl LineStream {
    /// Returns the next line; `None` at the end. May be dropped at any time: nothing is lost then.
    ///
    /// # Errors
    /// The problem that ended the stream.
    pub(crate) async fn next(&mut self) -> RouteResult<Option<Value>> {
        loop {
            let rest = &self.buffer[self.at..];
            if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line = &rest[..end];
                self.at += end + 1;
                if is_problem_line(line) {
                    return Err(
                        serde_json::from_slice(line).unwrap_or_else(|_| ProblemDetails::failed("the events broke off"))
                    );
                }
                if !line.is_empty() {
                    let line = serde_json::from_slice(line);
                    return line
                        .map(Some)
                        .map_err(|error| ProblemDetails::failed(format!("an event is no JSON: {error}")));
                }
                continue;
            }
            self.buffer.drain(..std::mem::take(&mut self.at));
            let chunk = match timeout(SILENCE, self.body.next()).await {
                Ok(chunk) => chunk,
                // It has nothing to say, or is stopped; then the answer fails.
                Err(_) => tokio::select! {
                    biased;
                    chunk = self.body.next() => chunk,
                    well = self.api.get("/v1/health") => {
                        well?;
                        continue;
                    }
                },
            };
            match chunk {
                None => return Ok(None),
                Some(Err(error)) => return Err(ProblemDetails::failed(format!("reading events failed: {error}"))),
                Some(Ok(chunk)) if self.buffer.len() + chunk.len() > LONGEST_LINE => {
                    return Err(ProblemDetails::failed(format!("an event is longer than {LONGEST_LINE} bytes")));
                }
                Some(Ok(chunk)) => self.buffer.extend_from_slice(&chunk),
            }
        }
    }
}

/// Path of a route of a session.
pub(crate) fn session_path(id: &str, route: &str) -> String {
    format!("/v1/sessions/{}{route}", encode(id))
}

/// Encodes a part of a path, or a value of a query.
pub(crate) fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Offset of a session's last event.
pub(crate) fn last_offset(session: &Value) -> u64 {
    let offset = &session["lastOffset"];
    offset.as_u64().or_else(|| offset.as_str()?.parse().ok()).unwrap_or(0)
}

/// Makes a service of a router in this process.
pub fn service_of(routes: Router) -> ApiService {
    // The router never fails.
    ApiService::new(ServiceExt::<Request<Body>>::map_err(routes, |never| match never {}))
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use serde_json::json;
    use tokio::time::sleep;
    use tower::service_fn;

    use super::*;

    /// A server whose only line comes after this time, and which says that it is well, or not.
    async fn next_line(after: Duration, is_well: bool) -> RouteResult<Option<Value>> {
        let line = move || async move {
            sleep(after).await;
            Ok::<_, std::io::Error>("{\"a\":1}\n")
        };
        let answer = service_fn(move |request: Request<Body>| {
            let answer = match (request.uri().path(), is_well) {
                ("/lines", _) => Ok(Response::new(Body::from_stream(stream::once(line())))),
                (_, true) => Ok(Response::new("{}".into())),
                (_, false) => Err(ProblemDetails::failed("it does not answer")),
            };
            std::future::ready(answer)
        });
        ApiClient::new(ApiService::new(answer), 0).lines("/lines").await.expect("begun").next().await
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_is_silent_for_as_long_as_its_server_is_well() {
        let hour = Duration::from_secs(3600);
        assert_eq!(next_line(hour, true).await.expect("a line"), Some(json!({ "a": 1 })));
        assert_eq!(next_line(SILENCE / 2, false).await.expect("a line"), Some(json!({ "a": 1 })));
        let problem = next_line(hour, false).await.expect_err("it is not well");
        assert_eq!(problem.detail, "it does not answer");
    }
}
