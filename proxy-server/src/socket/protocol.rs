//! Requests of a connection, and the HTTP requests that they stand for.

use axum::http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{ProblemDetails, api::path_segment, requests::RouteResult};

/// Longest id of a request, in bytes of JSON.
const LONGEST_ID: usize = 256;

/// Methods with the routes that they stand for, below `/v1/sessions/{id}/`.
const METHODS: [(&str, Method, &str, Order); 7] = [
    ("prompt", Method::POST, "prompt", Order::AsSent),
    ("steer", Method::POST, "steer", Order::AsSent),
    ("append", Method::POST, "events", Order::AsSent),
    ("ask", Method::POST, "ask", Order::AtOnce),
    ("abort", Method::POST, "abort", Order::AtOnce),
    ("kill", Method::POST, "kill", Order::AtOnce),
    ("processes", Method::GET, "processes", Order::AtOnce),
];

/// Methods without a row in the table, for errors.
const OTHERS: [&str; 6] = ["subscribe", "unsubscribe", "answer", "signal", "call", "ping"];

/// When a request is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// After those before it.
    AsSent,
    /// Overtakes others.
    AtOnce,
}

/// Request of a client.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct SocketRequest {
    /// Number or text, which the reply has.
    pub(super) id: Value,
    method: String,
    session: Option<String>,
    #[serde(default)]
    params: Map<String, Value>,
    idempotency_key: Option<String>,
}

/// HTTP request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HttpCall {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) body: Vec<u8>,
    pub(super) idempotency_key: Option<String>,
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SocketCall {
    Ping,
    Subscribe(HttpCall),
    Unsubscribe(u64),
    /// After the others of this kind.
    InOrder(HttpCall),
    AtOnce(HttpCall),
}

impl SocketRequest {
    /// Parses a message.
    ///
    /// # Errors
    /// `usage`, with the id if there is one.
    pub(super) fn parse(text: &str) -> Result<Self, Box<(Value, ProblemDetails)>> {
        let usage = |detail: String| ProblemDetails::usage(detail);
        let value: Value = serde_json::from_str(text)
            .map_err(|error| Box::new((Value::Null, usage(format!("the message is no JSON: {error}")))))?;
        let id = value.get("id").cloned().unwrap_or_default();
        if !(id.is_string() || id.is_number()) || id.to_string().len() > LONGEST_ID {
            let detail = format!("id of a request is a number, or a text of at most {LONGEST_ID} bytes");
            return Err(Box::new((Value::Null, usage(detail))));
        }
        serde_json::from_value(value)
            .map_err(|error| Box::new((id, usage(format!("the request does not fit: {error}")))))
    }

    /// Returns what the request asks for; `session` is the session of one that names none.
    ///
    /// # Errors
    /// `usage`.
    pub(super) fn into_call(self, session: Option<&str>) -> RouteResult<SocketCall> {
        let Self { method, session: named, mut params, idempotency_key, .. } = self;
        let session = named.as_deref().or(session);
        let path = |rest: &str| -> RouteResult<String> {
            let session = session.ok_or_else(|| {
                ProblemDetails::usage(format!(
                    "{method} needs a session: name one in `session`, as in \"session\":\"s-1\""
                ))
            })?;
            Ok(format!("/v1/sessions/{}/{rest}", path_segment(session)))
        };
        let call = |method: Method, path: String, params: Map<String, Value>| HttpCall {
            body: if method == Method::GET { Vec::new() } else { Value::Object(params).to_string().into_bytes() },
            method,
            path,
            idempotency_key: idempotency_key.clone(),
        };
        if let Some((_, verb, route, order)) = METHODS.into_iter().find(|(name, ..)| *name == method) {
            let call = call(verb, path(route)?, params);
            return Ok(if order == Order::AsSent { SocketCall::InOrder(call) } else { SocketCall::AtOnce(call) });
        }
        match method.as_str() {
            "ping" => Ok(SocketCall::Ping),
            "subscribe" => {
                let query = query(params)?;
                let path = if session.is_some() { path("events")? } else { "/v1/events".to_owned() };
                Ok(SocketCall::Subscribe(call(Method::GET, format!("{path}?follow=true{query}"), Map::new())))
            }
            "unsubscribe" => {
                let number = params.get("subscription").and_then(Value::as_u64);
                let number = number.ok_or_else(|| ProblemDetails::usage("params.subscription is the number to end"))?;
                Ok(SocketCall::Unsubscribe(number))
            }
            "answer" => {
                let request = text(&mut params, "request")?;
                let path = path(&format!("permissions/{}", path_segment(&request)))?;
                Ok(SocketCall::AtOnce(call(Method::POST, path, params)))
            }
            "signal" => {
                let pid = params.remove("pid").and_then(|pid| pid.as_u64());
                let pid = pid.ok_or_else(|| ProblemDetails::usage("params.pid is the pid of the process, a number"))?;
                Ok(SocketCall::AtOnce(call(Method::POST, path(&format!("processes/{pid}/signal"))?, params)))
            }
            "call" => {
                let verb = text(&mut params, "method")?;
                let verb = Method::from_bytes(verb.as_bytes())
                    .map_err(|_| ProblemDetails::usage(format!("params.method {verb:?} is no method of HTTP")))?;
                let path = text(&mut params, "path")?;
                if !path.starts_with('/') {
                    return Err(ProblemDetails::usage(format!("params.path {path:?} has to begin with /v1")));
                }
                let body = params.remove("body").map_or_else(Vec::new, |body| body.to_string().into_bytes());
                check_empty(&params)?;
                Ok(SocketCall::AtOnce(HttpCall { method: verb, path, body, idempotency_key }))
            }
            other => {
                let known: Vec<&str> = METHODS.iter().map(|(name, ..)| *name).chain(OTHERS).collect();
                Err(ProblemDetails::usage(format!("there is no method {other:?}: {}", known.join(", "))))
            }
        }
    }
}

fn text(params: &mut Map<String, Value>, name: &str) -> RouteResult<String> {
    match params.remove(name) {
        Some(Value::String(text)) => Ok(text),
        other => Err(ProblemDetails::usage(format!("params.{name} is a text, not {}", other.unwrap_or_default()))),
    }
}

fn check_empty(params: &Map<String, Value>) -> RouteResult<()> {
    match params.keys().next() {
        None => Ok(()),
        Some(name) => Err(ProblemDetails::usage(format!("there is no params.{name}: method, path, body"))),
    }
}

/// Writes a subscription's parameters as the query that they stand for.
fn query(params: Map<String, Value>) -> RouteResult<String> {
    let mut query = String::new();
    for (name, value) in params {
        let value = match (name.as_str(), value) {
            ("from" | "type" | "since", Value::String(text)) => text,
            ("from" | "tail", Value::Number(number)) => number.to_string(),
            ("raw", Value::Bool(raw)) => raw.to_string(),
            ("type", Value::Array(types)) => {
                let words: Option<Vec<&str>> = types.iter().map(Value::as_str).collect();
                words.ok_or_else(|| ProblemDetails::usage("params.type is a text, or an array of texts"))?.join(",")
            }
            ("from" | "type" | "since" | "tail" | "raw", value) => {
                return Err(ProblemDetails::usage(format!("params.{name} does not fit: {value}")));
            }
            _ => {
                let detail = format!("there is no params.{name}: from, type, since, tail, raw");
                return Err(ProblemDetails::usage(detail));
            }
        };
        query.push_str(&format!("&{name}={}", utf8_percent_encode(&value, NON_ALPHANUMERIC)));
    }
    Ok(query)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(text: &str) -> Result<SocketCall, String> {
        let request = SocketRequest::parse(text).map_err(|refused| refused.1.detail)?;
        request.into_call(Some("s-1")).map_err(|problem| problem.detail)
    }

    fn http(method: Method, path: &str, body: &str) -> HttpCall {
        HttpCall { method, path: path.into(), body: body.into(), idempotency_key: None }
    }

    #[test]
    fn requests_stand_for_routes() {
        for (text, expected) in [
            (
                r#"{"id":1,"method":"prompt","params":{"text":"hi"}}"#,
                SocketCall::InOrder(http(Method::POST, "/v1/sessions/s-1/prompt", r#"{"text":"hi"}"#)),
            ),
            (
                r#"{"id":"a","method":"kill","session":"b/c"}"#,
                SocketCall::AtOnce(http(Method::POST, "/v1/sessions/b%2Fc/kill", "{}")),
            ),
            (
                r#"{"id":1,"method":"answer","params":{"request":"permission-1","answer":"allow"}}"#,
                SocketCall::AtOnce(http(
                    Method::POST,
                    "/v1/sessions/s-1/permissions/permission-1",
                    r#"{"answer":"allow"}"#,
                )),
            ),
            (
                r#"{"id":1,"method":"subscribe","params":{"from":7,"type":["stream:*","log"]}}"#,
                SocketCall::Subscribe(http(
                    Method::GET,
                    "/v1/sessions/s-1/events?follow=true&from=7&type=stream%3A%2A%2Clog",
                    "",
                )),
            ),
            (
                r#"{"id":1,"method":"call","params":{"method":"DELETE","path":"/v1/sessions/s-1/queue"}}"#,
                SocketCall::AtOnce(http(Method::DELETE, "/v1/sessions/s-1/queue", "")),
            ),
            (r#"{"id":1,"method":"unsubscribe","params":{"subscription":2}}"#, SocketCall::Unsubscribe(2)),
            (r#"{"id":1,"method":"ping"}"#, SocketCall::Ping),
        ] {
            assert_eq!(call(text), Ok(expected), "{text}");
        }
        let all = SocketRequest::parse(r#"{"id":1,"method":"subscribe"}"#).expect("parses").into_call(None);
        assert_eq!(all, Ok(SocketCall::Subscribe(http(Method::GET, "/v1/events?follow=true", ""))));
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        for (text, words) in [
            ("", "no JSON"),
            ("[]", "id of a request"),
            (r#"{"method":"ping"}"#, "id of a request"),
            (r#"{"id":{},"method":"ping"}"#, "id of a request"),
            (r#"{"id":1}"#, "missing field `method`"),
            (r#"{"id":1,"method":"dance"}"#, "there is no method \"dance\": prompt"),
            (r#"{"id":1,"method":"prompt","colour":"red"}"#, "unknown field `colour`"),
            (r#"{"id":1,"method":"subscribe","params":{"limit":1}}"#, "there is no params.limit"),
            (r#"{"id":1,"method":"subscribe","params":{"raw":1}}"#, "params.raw does not fit"),
            (r#"{"id":1,"method":"call","params":{"method":"GET","path":"v1"}}"#, "has to begin with /v1"),
            (r#"{"id":1,"method":"signal","params":{"pid":"x"}}"#, "params.pid"),
        ] {
            let refused = call(text).expect_err("refused");
            assert!(refused.contains(words), "{text}: {refused}");
        }
        let nobody = SocketRequest::parse(r#"{"id":1,"method":"kill"}"#).expect("parses").into_call(None);
        assert!(nobody.expect_err("no session").detail.contains("kill needs a session"));
    }
}
