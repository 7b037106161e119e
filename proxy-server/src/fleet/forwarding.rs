//! Requests and answers of the API as those of the fleet: a head in JSON, and the body.

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header},
    response::Response,
};
use fleet::exchange::{AnswerBody, ExchangeAnswer, ExchangeRequest, ReceivedAnswer};
use futures_util::StreamExt as _;
use hyper::body::Body as _;
use serde::{Deserialize, Serialize};

use crate::{ProblemDetails, access::PassedOnCaller, requests::RouteResult};

/// Headers of a connection, which are not those of a message, and what proves who calls.
const NOT_PASSED_ON: [HeaderName; 8] = [
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::CONTENT_LENGTH,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
    header::AUTHORIZATION,
    header::COOKIE,
];

/// Mark of a request that another node has passed on: it is answered here, whatever it is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct PassedOn;

#[derive(Serialize, Deserialize)]
struct RequestHead {
    method: String,
    uri: String,
    headers: Vec<(String, String)>,
    /// Who calls; `None` for the host itself.
    caller: Option<PassedOnCaller>,
}

#[derive(Serialize, Deserialize)]
struct AnswerHead {
    status: u16,
    headers: Vec<(String, String)>,
}

/// Parts of a request that are passed on.
#[derive(Clone, Debug)]
pub(super) struct OutgoingRequest {
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) extensions: axum::http::Extensions,
    pub(super) body: Vec<u8>,
}

impl OutgoingRequest {
    /// Encodes the request for another node.
    pub(super) fn encode(self) -> RouteResult<ExchangeRequest> {
        let head = RequestHead {
            method: self.method.to_string(),
            uri: self.uri.path_and_query().map_or("/", |of| of.as_str()).to_owned(),
            headers: texts(&self.headers)?,
            caller: PassedOnCaller::of(&self.extensions),
        };
        let head = serde_json::to_vec(&head)
            .map_err(|error| ProblemDetails::failed(format!("the request is no JSON: {error}")))?;
        Ok(ExchangeRequest { head, body: self.body })
    }
}

/// Headers as text. One that is none is refused, and not left out.
fn texts(headers: &HeaderMap) -> RouteResult<Vec<(String, String)>> {
    let passed = headers.iter().filter(|(name, _)| !NOT_PASSED_ON.contains(name));
    let text = |(name, value): (&HeaderName, &HeaderValue)| match value.to_str() {
        Ok(value) => Ok((name.to_string(), value.to_owned())),
        Err(_) => {
            Err(ProblemDetails::usage(format!("the header {name} is no text, and cannot be sent to another node")))
        }
    };
    passed.map(text).collect()
}

/// Decodes a request of another node.
pub(super) fn decode(request: ExchangeRequest) -> RouteResult<Request> {
    let garbled = |error: &dyn std::fmt::Display| {
        ProblemDetails::failed(format!("another node's request is none: {error}: are all nodes of one version?"))
    };
    let head: RequestHead = serde_json::from_slice(&request.head).map_err(|error| garbled(&error))?;
    let mut built = Request::builder().method(head.method.as_str()).uri(head.uri);
    for (name, value) in head.headers {
        built = built.header(name, value);
    }
    let mut request = built.body(Body::from(request.body)).map_err(|error| garbled(&error))?;
    if let Some(caller) = head.caller {
        caller.apply_to(request.extensions_mut());
    }
    request.extensions_mut().insert(PassedOn);
    Ok(request)
}

/// Encodes the answer to a request of another node.
pub(super) fn encode_answer(method: &Method, response: Response) -> ExchangeAnswer {
    let (parts, body) = response.into_parts();
    // One whose end is not known yet: events that are followed. What has changed something is never refused for want of room for its answer.
    let is_stream = *method == Method::GET && body.size_hint().exact().is_none();
    // A header that is no text is nobody's of ours.
    let headers = texts(&parts.headers).unwrap_or_default();
    let head = AnswerHead { status: parts.status.as_u16(), headers };
    let pieces = body.into_data_stream().map(|piece| piece.map(Vec::from).map_err(|error| error.to_string()));
    ExchangeAnswer { head: serde_json::to_vec(&head).unwrap_or_default(), is_stream, body: pieces.boxed() }
}

/// Decodes the answer of another node.
pub(super) fn decode_answer(answer: ReceivedAnswer) -> RouteResult<Response> {
    let garbled = |error: &dyn std::fmt::Display| {
        ProblemDetails::failed(format!("another node's answer is none: {error}: are all nodes of one version?"))
    };
    let head: AnswerHead = serde_json::from_slice(&answer.head).map_err(|error| garbled(&error))?;
    let body = match answer.body {
        AnswerBody::Whole(body) => Body::from(body),
        AnswerBody::Pieces(pieces) => Body::from_stream(pieces.map(|piece| piece.map_err(std::io::Error::other))),
    };
    let status = StatusCode::from_u16(head.status).map_err(|error| garbled(&error))?;
    let mut built = Response::builder().status(status);
    for (name, value) in head.headers {
        built = built.header(name, value);
    }
    built.body(body).map_err(|error| garbled(&error))
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;

    use super::*;
    use crate::access::{Identity, Peer, Role};

    fn outgoing(headers: HeaderMap) -> OutgoingRequest {
        let mut extensions = axum::http::Extensions::new();
        extensions.insert(Identity::new("ada", Role::Operate).with_user("ada"));
        extensions.insert(Peer { pid: Some(7), is_in_session: true, ..Peer::default() });
        OutgoingRequest {
            method: Method::POST,
            uri: Uri::from_static("/v1/sessions/s-1/prompt?x=1"),
            headers,
            extensions,
            body: b"{}".to_vec(),
        }
    }

    #[tokio::test]
    async fn a_request_arrives_as_it_was_sent_with_its_caller_and_without_its_token() {
        let mut headers = HeaderMap::new();
        for (name, value) in [("authorization", "Bearer secret"), ("idempotency-key", "k"), ("connection", "close")] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let sent = outgoing(headers).encode().expect("encoded");
        assert!(!String::from_utf8_lossy(&sent.head).contains("secret"));
        let request = decode(sent).expect("decoded");
        assert_eq!(request.method(), Method::POST);
        assert_eq!(request.uri(), "/v1/sessions/s-1/prompt?x=1");
        assert_eq!(request.headers().len(), 1);
        let extensions = request.extensions();
        assert_eq!(extensions.get::<Identity>(), Some(&Identity::new("ada", Role::Operate).with_user("ada")));
        // A process of another machine is none of this one's sessions.
        assert_eq!(extensions.get::<Peer>().map(|peer| peer.is_in_session), Some(false));
        assert!(extensions.get::<PassedOn>().is_some());
        assert_eq!(&to_bytes(request.into_body(), 99).await.expect("a body")[..], b"{}");
    }

    #[test]
    fn a_header_that_is_no_text_is_refused() {
        let mut headers = HeaderMap::new();
        headers.insert("x-odd", HeaderValue::from_bytes(&[0xff]).expect("a value"));
        assert_eq!(outgoing(headers).encode().expect_err("refused").kind, "usage");
    }

    #[tokio::test]
    async fn an_answer_comes_back_with_status_headers_and_body() {
        let response = Response::builder().status(201).header("etag", "x").body(Body::from("hello")).expect("one");
        let ExchangeAnswer { head, mut body, .. } = encode_answer(&Method::GET, response);
        let mut whole = Vec::new();
        while let Some(piece) = body.next().await {
            whole.extend(piece.expect("a piece"));
        }
        let response = decode_answer(ReceivedAnswer { head, body: AnswerBody::Whole(whole) }).expect("decoded");
        assert_eq!((response.status().as_u16(), &response.headers()["etag"]), (201, &HeaderValue::from_static("x")));
        assert_eq!(&to_bytes(response.into_body(), 99).await.expect("a body")[..], b"hello");
    }

    #[test]
    fn only_what_is_read_is_a_stream_that_may_be_refused() {
        let endless = || Response::new(Body::from_stream(futures_util::stream::pending::<Result<Vec<u8>, String>>()));
        assert!(encode_answer(&Method::GET, endless()).is_stream);
        // A prompt is done by then.
        assert!(!encode_answer(&Method::POST, endless()).is_stream);
        assert!(!encode_answer(&Method::GET, Response::new(Body::from("whole"))).is_stream);
    }

    #[test]
    fn garbage_is_a_problem_that_names_versions() {
        let problem = decode(ExchangeRequest { head: b"{}".to_vec(), body: Vec::new() }).expect_err("refused");
        assert!(problem.detail.contains("version"), "{}", problem.detail);
    }
}
