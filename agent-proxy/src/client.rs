//! Client of the daemon: one HTTP/1 request per connection, over the local socket or the network.

#[cfg(feature = "engine")]
mod forwarding;

use std::{future::Future, pin::pin, time::Duration};

use api_types::{
    ProblemDetails,
    api::{SILENT_NODES, TERMINAL_PROTOCOL},
};
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Frame, Incoming},
    client::conn::http1::SendRequest,
    header,
    upgrade::Upgraded,
};
use hyper_util::rt::TokioIo;
use ipc_protocol::SessionId;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{command_failure::CommandFailure, daemon_address::DaemonAddress, engine, term};

/// Time after which the client checks the daemon's health, again and again. The request itself may take any time:
/// its work has deadlines of its own in the daemon, some set by the session.
const HEALTH_INTERVAL: Duration = Duration::from_secs(3);
/// Time for the answer to a check, unless the daemon is seen to be stopped.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(30);

/// Silence of a stream after which the client checks the daemon's health.
const SILENCE: Duration = Duration::from_secs(30);
/// Longest line of a stream: the longest message of a proxy, and the overhead of JSON.
const MAX_LINE: usize = 128 * 1024 * 1024;

/// Connects to the daemon at one address.
#[derive(Clone, Debug)]
pub(crate) struct DaemonClient {
    address: DaemonAddress,
}

impl DaemonClient {
    /// Creates a client of the daemon at `address`. Does not connect yet.
    pub(crate) fn new(address: impl Into<DaemonAddress>) -> Self {
        Self { address: address.into() }
    }

    /// Sends a `GET` request and returns the JSON answer.
    ///
    /// # Errors
    /// `no-daemon`, `deadline`, or the daemon's problem.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ProblemDetails> {
        self.while_healthy(async { self.json(self.exchange(Method::GET, path, None).await?).await }).await
    }

    /// As [`Self::get`], for a list to print: says on standard error which nodes of a fleet it lacks.
    ///
    /// # Errors
    /// Same as [`Self::get`].
    pub(crate) async fn get_list<T: DeserializeOwned>(&self, path: &str) -> Result<T, ProblemDetails> {
        self.while_healthy(async {
            let response = self.exchange(Method::GET, path, None).await?;
            if let Some(silent) = response.headers().get(SILENT_NODES).and_then(|names| names.to_str().ok()) {
                let silent = term::printable(silent, false);
                term::error_line(format_args!("what these nodes have is missing, for they do not answer: {silent}"));
            }
            self.json(response).await
        })
        .await
    }

    /// Sends a `POST` request with JSON and returns the JSON answer.
    ///
    /// # Errors
    /// Same as [`DaemonClient::get`].
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ProblemDetails> {
        self.send_json(Method::POST, path, body).await
    }

    /// Sends a `PUT` request with JSON and returns the JSON answer.
    ///
    /// # Errors
    /// Same as [`DaemonClient::get`].
    pub(crate) async fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ProblemDetails> {
        self.send_json(Method::PUT, path, body).await
    }

    async fn send_json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ProblemDetails> {
        let body = serde_json::to_vec(body).map_err(|error| ProblemDetails::failed(format!("JSON: {error}")))?;
        self.while_healthy(async { self.json(self.exchange(method, path, Some(body)).await?).await }).await
    }

    /// Sends a `DELETE` request.
    ///
    /// # Errors
    /// Same as [`DaemonClient::get`].
    pub(crate) async fn delete(&self, path: &str) -> Result<(), ProblemDetails> {
        self.while_healthy(async { self.json(self.exchange(Method::DELETE, path, None).await?).await }).await
    }

    /// Sends a `DELETE` request and returns the JSON answer.
    ///
    /// # Errors
    /// Same as [`DaemonClient::get`].
    pub(crate) async fn delete_json<T: DeserializeOwned>(&self, path: &str) -> Result<T, ProblemDetails> {
        self.while_healthy(async { self.json(self.exchange(Method::DELETE, path, None).await?).await }).await
    }

    /// Asks the daemon for the id that `id` is, or is the beginning of.
    ///
    /// # Errors
    /// Same as [`DaemonClient::get`].
    pub(crate) async fn whole_id(&self, id: &SessionId) -> Result<String, ProblemDetails> {
        let record: Value = self.get(&format!("/v1/records/{id}")).await?;
        Ok(record["sessionId"].as_str().unwrap_or(id.as_str()).to_owned())
    }

    /// Sends a `GET` request and returns a stream of JSON lines.
    ///
    /// # Errors
    /// Same as [`DaemonClient::get`].
    pub(crate) async fn get_lines(&self, path: &str) -> Result<JsonLineStream, ProblemDetails> {
        let response = self.while_healthy(self.exchange(Method::GET, path, None)).await?;
        Ok(self.lines(response))
    }

    /// Sends a `POST` request with JSON and returns a stream of JSON lines.
    ///
    /// # Errors
    /// Same as [`DaemonClient::get`].
    pub(crate) async fn post_lines(&self, path: &str, body: &impl Serialize) -> Result<JsonLineStream, ProblemDetails> {
        let body = serde_json::to_vec(body).map_err(|error| ProblemDetails::failed(format!("JSON: {error}")))?;
        let response = self.while_healthy(self.exchange(Method::POST, path, Some(body))).await?;
        Ok(self.lines(response))
    }

    /// Returns true for a daemon on this machine.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.address, DaemonAddress::Socket(_))
    }

    /// Connects to a session's terminal.
    ///
    /// # Errors
    /// Same as [`DaemonClient::get`].
    pub(crate) async fn view_terminal(&self, id: &str) -> Result<TokioIo<Upgraded>, ProblemDetails> {
        self.connect_viewer(&format!("/v1/sessions/{id}/terminal")).await
    }

    /// Connects to start a shell in a session.
    ///
    /// # Errors
    /// Same as [`DaemonClient::get`].
    pub(crate) async fn shell(&self, id: &str) -> Result<TokioIo<Upgraded>, ProblemDetails> {
        self.connect_viewer(&format!("/v1/sessions/{id}/shell")).await
    }

    async fn connect_viewer(&self, path: &str) -> Result<TokioIo<Upgraded>, ProblemDetails> {
        let response = self.while_healthy(self.send(Method::GET, path, None, Some(TERMINAL_PROTOCOL))).await?;
        let upgraded = hyper::upgrade::on(response).await.map_err(|error| lost(&self.address, &error))?;
        Ok(TokioIo::new(upgraded))
    }

    fn lines(&self, response: Response<Incoming>) -> JsonLineStream {
        JsonLineStream { body: response.into_body(), buffer: Vec::new(), at: 0, client: self.clone() }
    }

    /// Waits for an answer while the daemon responds to health checks.
    async fn while_healthy<T>(
        &self,
        answer: impl Future<Output = Result<T, ProblemDetails>>,
    ) -> Result<T, ProblemDetails> {
        let mut answer = pin!(answer);
        loop {
            if let Ok(answer) = tokio::time::timeout(HEALTH_INTERVAL, &mut answer).await {
                return answer;
            }
            tokio::select! {
                biased;
                answer = &mut answer => return answer,
                health = self.check_health() => health?,
            }
        }
    }

    /// Waits until the daemon says that it is well.
    ///
    /// # Errors
    /// `deadline`; the daemon's problem.
    async fn check_health(&self) -> Result<(), ProblemDetails> {
        let mut health = pin!(self.exchange(Method::GET, "/v1/health", None));
        if let Ok(health) = tokio::time::timeout(HEALTH_INTERVAL, &mut health).await {
            return health.map(drop);
        }
        // One that is stopped will not answer; one that is busy may.
        let daemon = engine::silent_daemon(self).await;
        if daemon.is_some_and(|daemon| daemon.is_stopped) {
            return Err(silence(&self.address, daemon));
        }
        match tokio::time::timeout(HEALTH_TIMEOUT, health).await {
            Ok(health) => health.map(drop),
            Err(_) => Err(silence(&self.address, daemon)),
        }
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Response<Incoming>, ProblemDetails> {
        self.send(method, path, body, None).await
    }

    /// Sends a request, which may ask for another protocol afterwards.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        protocol: Option<&str>,
    ) -> Result<Response<Incoming>, ProblemDetails> {
        let mut sender = self.handshake().await?;
        let mut request = Request::builder();
        if let Some(protocol) = protocol {
            request = request.header(header::CONNECTION, "upgrade").header(header::UPGRADE, protocol);
        }
        if let Some(authorization) = self.address.authorization() {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = request
            .method(method)
            .uri(self.address.target(path))
            .header(header::HOST, self.address.host())
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(|error| ProblemDetails::failed(format!("request {path}: {error}")))?;
        let response = sender.send_request(request).await.map_err(|error| lost(&self.address, &error))?;
        if response.status().is_success() || response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response);
        }
        Err(self.problem(response).await)
    }

    /// Connects for one request.
    async fn handshake<B>(&self) -> Result<SendRequest<B>, ProblemDetails>
    where
        B: hyper::body::Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let stream = TokioIo::new(self.address.connect().await?);
        let connected = hyper::client::conn::http1::handshake(stream).await;
        let (sender, connection) = connected.map_err(|error| lost(&self.address, &error))?;
        // The task ends with the response's body.
        tokio::spawn(connection.with_upgrades());
        Ok(sender)
    }

    async fn body(&self, response: Response<Incoming>) -> Result<Bytes, ProblemDetails> {
        let body = response.into_body().collect().await.map_err(|error| lost(&self.address, &error))?;
        Ok(body.to_bytes())
    }

    async fn json<T: DeserializeOwned>(&self, response: Response<Incoming>) -> Result<T, ProblemDetails> {
        let no_content = response.status() == StatusCode::NO_CONTENT;
        let body = self.body(response).await?;
        let body: &[u8] = if no_content { b"null" } else { &body };
        serde_json::from_slice(body).map_err(|error| {
            ProblemDetails::failed(format!(
                "the daemon on {} answered something else ({error}): is it of another version?",
                self.address
            ))
        })
    }

    async fn problem(&self, response: Response<Incoming>) -> ProblemDetails {
        let status = response.status();
        let body = match self.body(response).await {
            Ok(body) => body,
            Err(problem) => return problem,
        };
        serde_json::from_slice(&body).unwrap_or_else(|_| {
            ProblemDetails::failed(format!("the daemon on {} answered {status} without saying why", self.address))
        })
    }
}

/// Process of a daemon on this machine that does not answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SilentDaemon {
    pub(crate) pid: u32,
    /// True if a signal has stopped it.
    pub(crate) is_stopped: bool,
}

fn silence(address: &DaemonAddress, daemon: Option<SilentDaemon>) -> ProblemDetails {
    let late = format!("does not say within {HEALTH_TIMEOUT:?} that it is well");
    let detail = match daemon {
        Some(SilentDaemon { pid, is_stopped: true }) => format!(
            "the daemon on {address} is stopped (process {pid}): `kill -CONT {pid}` lets it go on, `kill -KILL {pid}` ends it"
        ),
        Some(SilentDaemon { pid, is_stopped: false }) => {
            format!("the daemon on {address} (process {pid}) {late}: its log may say why; `kill -KILL {pid}` ends it")
        }
        None => format!("the daemon on {address} {late}: is it stopped?"),
    };
    ProblemDetails::new("deadline", detail)
}

fn lost(address: &DaemonAddress, error: &hyper::Error) -> ProblemDetails {
    ProblemDetails::new("no-daemon", format!("the daemon on {address} closed the connection ({error}): has it ended?"))
}

/// Stream of JSON lines.
#[derive(Debug)]
pub(crate) struct JsonLineStream {
    body: Incoming,
    buffer: Vec<u8>,
    /// Number of bytes of the buffer already returned.
    at: usize,
    client: DaemonClient,
}

impl JsonLineStream {
    /// Returns the same as [`Self::next_batch`], and ends silently once nobody reads standard output any more.
    ///
    /// # Errors
    /// Same as [`Self::next_batch`]; [`CommandFailure::Closed`].
    pub(crate) async fn next_batch_to_print(&mut self) -> Result<Option<Vec<Value>>, CommandFailure> {
        tokio::select! {
            batch = self.next_batch() => Ok(batch?),
            () = term::closed() => Err(CommandFailure::Closed),
        }
    }

    /// Returns all complete lines received so far, once there is at least one. `None` at the end.
    ///
    /// # Errors
    /// `no-daemon` when the connection breaks, `deadline` when the daemon does not say that it is well after a silence, or the problem in
    /// the daemon's last line.
    pub(crate) async fn next_batch(&mut self) -> Result<Option<Vec<Value>>, ProblemDetails> {
        loop {
            let mut values = Vec::new();
            while let Some(len) = self.buffer[self.at..].iter().position(|byte| *byte == b'\n') {
                let value: Value = serde_json::from_slice(&self.buffer[self.at..self.at + len]).map_err(|error| {
                    ProblemDetails::failed(format!("the daemon sent a line that is no JSON: {error}"))
                })?;
                // A problem is neither an event nor a call.
                if value.get("eventStreamId").or(value.get("call")).is_none() {
                    if values.is_empty() {
                        return Err(serde_json::from_value(value)
                            .unwrap_or_else(|_| ProblemDetails::failed("the daemon sent a line that is no event")));
                    }
                    // Leave the problem in the buffer for the next call: the lines before it are returned first.
                    break;
                }
                self.at += len + 1;
                values.push(value);
            }
            if !values.is_empty() {
                self.buffer.drain(..self.at);
                self.at = 0;
                return Ok(Some(values));
            }
            if self.buffer.len() > MAX_LINE {
                return Err(ProblemDetails::failed("the daemon sent a line without end"));
            }
            match self.frame().await? {
                Some(Ok(frame)) => self.buffer.extend(frame.into_data().unwrap_or_default()),
                Some(Err(error)) => return Err(lost(&self.client.address, &error)),
                None => return Ok(None),
            }
        }
    }

    async fn frame(&mut self) -> Result<Option<Result<Frame<Bytes>, hyper::Error>>, ProblemDetails> {
        loop {
            if let Ok(frame) = tokio::time::timeout(SILENCE, self.body.frame()).await {
                return Ok(frame);
            }
            tokio::select! {
                biased;
                frame = self.body.frame() => return Ok(frame),
                health = self.client.check_health() => health?,
            }
        }
    }
}
