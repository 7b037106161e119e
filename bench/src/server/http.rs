//! Client of an HTTP API.

use std::{net::SocketAddr, time::Duration};

use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Incoming},
    client::conn::http1::{SendRequest, handshake},
    header,
};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{net::TcpStream, time::timeout};

use crate::error::{Error, Result};

/// Longest time for an answer's head, or for the whole of one that is no stream.
const ANSWER_TIME: Duration = Duration::from_secs(30);

/// Address of an API, with the token that it wants.
#[derive(Clone, Debug)]
pub(super) struct ApiAddress {
    pub(super) address: SocketAddr,
    pub(super) token: Option<String>,
}

/// Connection that carries one request after the other.
pub(super) struct ApiConnection {
    to: ApiAddress,
    sender: SendRequest<Full<Bytes>>,
}

impl ApiConnection {
    /// Connects.
    ///
    /// # Errors
    /// The system's.
    pub(super) async fn open(to: &ApiAddress) -> Result<Self> {
        let stream =
            TcpStream::connect(to.address).await.map_err(Error::system(format!("connecting to {}", to.address)))?;
        stream.set_nodelay(true).map_err(Error::system("configuring a connection"))?;
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| Error::answer("a connection", error.to_string()))?;
        tokio::spawn(connection);
        Ok(Self { to: to.clone(), sender })
    }

    /// Sends a request; returns the answer's head and the rest as it comes.
    ///
    /// # Errors
    /// No answer, or [`Error::Deadline`].
    pub(super) async fn send(
        &mut self,
        method: &str,
        path: &str,
        accept: &str,
        body: Option<&Value>,
    ) -> Result<Response<Incoming>> {
        let what = format!("{method} {path}");
        let failed = |error: &dyn std::fmt::Display| Error::answer(what.clone(), format!("failed: {error}"));
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, self.to.address.to_string());
        request = request.header(header::ACCEPT, accept);
        if let Some(token) = &self.to.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let text = match body {
            Some(body) => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                Bytes::from(body.to_string())
            }
            None => Bytes::new(),
        };
        let request = request.body(Full::new(text)).map_err(|error| failed(&error))?;
        let answer = async {
            self.sender.ready().await?;
            self.sender.send_request(request).await
        };
        let late = |_| Error::Deadline { operation: what.clone(), after: ANSWER_TIME };
        timeout(ANSWER_TIME, answer).await.map_err(late)?.map_err(|error| failed(&error))
    }

    /// Sends a request; returns its answer as JSON, `null` for an empty one.
    ///
    /// # Errors
    /// As of [`ApiConnection::send`]; a status that is no success.
    pub(super) async fn json(&mut self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let (text, status) = self.bytes(method, path, body).await?;
        let what = format!("{method} {path}");
        if !status.is_success() {
            return Err(Error::answer(what, format!("answers {status}: {}", String::from_utf8_lossy(&text))));
        }
        if text.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&text).map_err(|error| Error::answer(what, format!("answers no JSON: {error}")))
    }

    /// Sends a request; returns its whole answer.
    ///
    /// # Errors
    /// As of [`ApiConnection::send`].
    pub(super) async fn bytes(
        &mut self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(Bytes, StatusCode)> {
        let response = self.send(method, path, "application/json", body).await?;
        let status = response.status();
        let late = |_| Error::Deadline { operation: format!("{method} {path}"), after: ANSWER_TIME };
        let text = timeout(ANSWER_TIME, response.into_body().collect()).await.map_err(late)?;
        let text = text.map_err(|error| Error::answer(format!("{method} {path}"), format!("breaks off: {error}")))?;
        Ok((text.to_bytes(), status))
    }
}

/// Server-sent events of one answer.
pub(super) struct ServerSentEvents {
    body: Incoming,
    /// Beginning of a line whose end has not come.
    rest: Vec<u8>,
}

impl ServerSentEvents {
    /// Asks for a stream.
    ///
    /// # Errors
    /// As of [`ApiConnection::send`]; a status that is no success.
    pub(super) async fn open(to: &ApiAddress, path: &str) -> Result<Self> {
        let response = ApiConnection::open(to).await?.send("GET", path, "text/event-stream", None).await?;
        let status = response.status();
        if status != StatusCode::OK {
            return Err(Error::answer(format!("GET {path}"), format!("answers {status}")));
        }
        Ok(Self { body: response.into_body(), rest: Vec::new() })
    }

    /// Waits for the next part of the stream, and passes the data of each event in it to `take`. Returns false at its end.
    ///
    /// # Errors
    /// The stream breaks off.
    pub(super) async fn next(&mut self, mut take: impl FnMut(&[u8])) -> Result<bool> {
        let Some(frame) = self.body.frame().await else { return Ok(false) };
        let frame = frame.map_err(|error| Error::answer("a stream of events", format!("breaks off: {error}")))?;
        let Ok(mut data) = frame.into_data() else { return Ok(true) };
        if !self.rest.is_empty() {
            self.rest.extend_from_slice(&data);
            data = std::mem::take(&mut self.rest).into();
        }
        let end = memchr::memrchr(b'\n', &data).map_or(0, |at| at + 1);
        let (lines, rest) = data.split_at(end);
        self.rest.extend_from_slice(rest);
        lines.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"data: ")).for_each(&mut take);
        Ok(true)
    }
}
