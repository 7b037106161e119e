//! Handshake of WebSockets (RFC 6455), and the connection behind it.

use std::time::Duration;

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::Response,
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
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

/// Beginning of the subprotocol that carries a token, in base64url without padding. A browser sends no header of a page's own with a
/// WebSocket, and an address ends up in logs. The answer names [`SUBPROTOCOL`] alone.
const TOKEN_SUBPROTOCOL: &str = "agent-proxy.bearer.";

/// Longest time that a client may take to read one message.
const LONGEST_WRITE: Duration = Duration::from_secs(300);

/// Bytes that are gathered before they are sent.
const WRITE_BUFFER: usize = 64 * 1024;

/// Returns true if the request asks for a WebSocket.
pub(crate) fn is_websocket(headers: &HeaderMap) -> bool {
    has_word(headers, header::UPGRADE, "websocket")
}

/// Returns the token that a WebSocket's handshake has among its subprotocols.
pub(crate) fn subprotocol_token(headers: &HeaderMap) -> Option<String> {
    if !is_websocket(headers) {
        return None;
    }
    let encoded =
        words(headers, header::SEC_WEBSOCKET_PROTOCOL).find_map(|word| word.strip_prefix(TOKEN_SUBPROTOCOL))?;
    // A token that cannot be read is a wrong one, not none.
    let token = URL_SAFE_NO_PAD.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    Some(token.unwrap_or_default())
}

/// Takes the token out of a WebSocket's handshake.
pub(crate) fn remove_subprotocol_token(headers: &mut HeaderMap) {
    let kept: Vec<&str> =
        words(headers, header::SEC_WEBSOCKET_PROTOCOL).filter(|word| !word.starts_with(TOKEN_SUBPROTOCOL)).collect();
    let kept = HeaderValue::from_str(&kept.join(", ")).ok().filter(|kept| !kept.is_empty());
    headers.remove(header::SEC_WEBSOCKET_PROTOCOL);
    headers.extend(kept.map(|kept| (header::SEC_WEBSOCKET_PROTOCOL, kept)));
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
    words(headers, name).any(|given| given.eq_ignore_ascii_case(word))
}

/// Iterates over the words of a header's list.
fn words(headers: &HeaderMap, name: header::HeaderName) -> impl Iterator<Item = &str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(upgrade: Option<&str>, protocols: &[&str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        if let Some(upgrade) = upgrade {
            headers.insert(header::UPGRADE, upgrade.parse().expect("a value"));
        }
        for protocol in protocols {
            headers.append(header::SEC_WEBSOCKET_PROTOCOL, protocol.parse().expect("a value"));
        }
        subprotocol_token(&headers)
    }

    #[test]
    fn a_token_comes_with_a_handshake_alone() {
        let encoded = format!("{TOKEN_SUBPROTOCOL}{}", URL_SAFE_NO_PAD.encode("ab/c+d"));
        let with = format!("{SUBPROTOCOL}, {encoded}");
        assert_eq!(token(Some("websocket"), &[&with]).as_deref(), Some("ab/c+d"));
        assert_eq!(token(Some("WebSocket"), &[SUBPROTOCOL, &encoded]).as_deref(), Some("ab/c+d"));
        assert_eq!(token(None, &[&with]), None, "no handshake");
        assert_eq!(token(Some("agent-proxy-terminal"), &[&with]), None, "no WebSocket");
        assert_eq!(token(Some("websocket"), &[SUBPROTOCOL]), None);
        for wrong in ["", "****", "_w"] {
            let wrong = format!("{TOKEN_SUBPROTOCOL}{wrong}");
            assert_eq!(token(Some("websocket"), &[&wrong]).as_deref(), Some(""), "{wrong}");
        }
    }
}
