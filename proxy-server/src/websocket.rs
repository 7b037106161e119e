//! Handshake of WebSockets (RFC 6455), and the connection behind it.

use std::time::Duration;

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::Response,
};
use futures_util::{SinkExt as _, stream::SplitSink};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        handshake::derive_accept_key,
        protocol::{Role, WebSocketConfig},
    },
};

use crate::{ProblemDetails, requests::RouteResult};

/// Connection to a client.
pub(crate) type WebSocket = WebSocketStream<TokioIo<Upgraded>>;

/// Sending half of a connection.
pub(crate) type WebSocketSender = SplitSink<WebSocket, Message>;

/// Subprotocol that is accepted, for clients that have to name one.
const SUBPROTOCOL: &str = "agent-proxy";

/// Longest time that a client may take to read one message.
const LONGEST_WRITE: Duration = Duration::from_secs(300);

/// Bytes that are gathered before they are sent.
const WRITE_BUFFER: usize = 64 * 1024;

/// Returns true if the request asks for a WebSocket.
pub(crate) fn is_websocket(headers: &HeaderMap) -> bool {
    has_word(headers, header::UPGRADE, "websocket")
}

/// Accepts a WebSocket whose messages have at most `longest` bytes, and has `serve` serve it.
///
/// # Errors
/// `usage` for a request that is no handshake.
pub(crate) fn accept<S: Future<Output = ()> + Send + 'static>(
    mut request: Request,
    longest: usize,
    serve: impl FnOnce(WebSocket) -> S + Send + 'static,
) -> RouteResult<Response> {
    let headers = request.headers();
    let missing = |what: &str| ProblemDetails::usage(format!("this route is a WebSocket: {what}"));
    if !is_websocket(headers) || !has_word(headers, header::CONNECTION, "upgrade") {
        return Err(missing("connect with the headers `Connection: upgrade` and `Upgrade: websocket`"));
    }
    if headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
        return Err(missing("its version is 13 (`Sec-WebSocket-Version`)"));
    }
    let key = headers.get(header::SEC_WEBSOCKET_KEY).ok_or_else(|| missing("it needs a `Sec-WebSocket-Key`"))?;
    let accepted = derive_accept_key(key.as_bytes());
    let names_protocol = has_word(headers, header::SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL);
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        match upgrade.await {
            Ok(client) => {
                let config = WebSocketConfig::default()
                    .read_buffer_size(16 * 1024)
                    .write_buffer_size(WRITE_BUFFER)
                    .max_message_size(Some(longest))
                    .max_frame_size(Some(longest));
                serve(WebSocketStream::from_raw_socket(TokioIo::new(client), Role::Server, Some(config)).await).await;
            }
            Err(error) => tracing::debug!(%error, "a WebSocket broke off in its handshake"),
        }
    });
    let response = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(header::CONNECTION, "upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_ACCEPT, accepted)
        .body(axum::body::Body::empty());
    let mut response = response.map_err(|error| ProblemDetails::failed(error.to_string()))?;
    if names_protocol {
        response.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
    }
    Ok(response)
}

/// Sends a message. Returns false for a client that has left, or does not read.
pub(crate) async fn send(sender: &mut WebSocketSender, message: Message) -> bool {
    matches!(tokio::time::timeout(LONGEST_WRITE, sender.send(message)).await, Ok(Ok(())))
}

/// Returns true if a header has this word in its list, in any case.
fn has_word(headers: &HeaderMap, name: header::HeaderName, word: &str) -> bool {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|given| given.trim().eq_ignore_ascii_case(word))
}
