//! HTTP/1.1 client for the agent's own server, over TCP to this machine and nowhere else.
//!
//! Each request has a connection and a task of its own, on the proxy's one thread. The results arrive in one bounded queue. If nobody
//! takes from the queue the tasks stop reading, and so the server has to wait.

use std::{
    collections::VecDeque,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use agents::{HttpEvent, HttpPatience, HttpRequest};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request, Uri,
    body::{Bytes, Incoming},
    client::conn::http1,
    header::{self, HeaderValue},
};
use hyper_util::rt::TokioIo;
use ipc_protocol::{AgentEndpoint, ErrorChain};
use registry::SessionNetwork;
use tokio::{
    net::{TcpSocket, TcpStream},
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::timeout_at,
};

/// Most requests in progress; more wait for one of them to end.
const CONCURRENT: usize = 32;
/// Most requests in progress and waiting; more are refused.
const MAX_REQUESTS: usize = 256;
/// Most pieces of answers in the queue.
const QUEUE: usize = 4;
/// Most bytes of one read, and of the buffer.
const CHUNK: usize = 64 * 1024;
/// Longest answer that is no stream, in bytes.
const MAX_BODY: usize = 8 * 1024 * 1024;
/// Time from a request to the end of its answer, or to the beginning of a stream.
const DEADLINE: Duration = Duration::from_secs(30);
/// Same time for a request that may take longer: an operation, whose caller gives up after it.
const LONG_DEADLINE: Duration = super::operations::OPERATION_TIMEOUT;
/// Time between attempts to connect for a stream while the server refuses; [`CONNECT_TIMEOUT`] is the total time. The server may be
/// restarting. A server that has died is known to be dead by then.
const CONNECT_RETRY_INTERVAL: Duration = Duration::from_millis(50);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for which the last answers of a server are read after it died.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Result of a request: an [`HttpEvent`] that owns its bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HttpOutcome {
    Head(u16),
    Body(Bytes),
    End,
    Failed(String),
}

impl HttpOutcome {
    /// Returns the result as an adapter takes it.
    pub(crate) fn event(&self) -> HttpEvent<'_> {
        match self {
            Self::Head(status) => HttpEvent::Head(*status),
            Self::Body(bytes) => HttpEvent::Body(bytes),
            Self::End => HttpEvent::End,
            Self::Failed(why) => HttpEvent::Failed(why),
        }
    }
}

/// Piece of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ResponsePiece {
    /// Id of the request.
    pub(crate) id: u64,
    /// True if the answer is a stream, whose bytes are the agent's own lines.
    pub(crate) stream: bool,
    /// True if the answer is emitted as raw lines.
    pub(crate) emits_raw: bool,
    pub(crate) outcome: HttpOutcome,
}

/// Address of the server, with our credentials.
#[derive(Clone, Debug)]
struct ServerTarget {
    address: SocketAddr,
    host: HeaderValue,
    authorization: Option<HeaderValue>,
    network: Option<Arc<SessionNetwork>>,
}

/// HTTP client. Nothing is allocated before the first [`HttpClients::connect`]; dropping the client drops all connections.
#[derive(Debug, Default)]
pub(crate) struct HttpClients {
    client: Option<Box<HttpClient>>,
    /// Network of the session's own, in which the server is.
    network: Option<Arc<SessionNetwork>>,
}

#[derive(Debug)]
struct HttpClient {
    target: Result<ServerTarget, String>,
    deadline: Duration,
    long_deadline: Duration,
    permits: Arc<Semaphore>,
    /// Permits of requests that may take longer, so that they do not delay others.
    long_permits: Arc<Semaphore>,
    tasks: JoinSet<()>,
    sender: mpsc::Sender<ResponsePiece>,
    receiver: mpsc::Receiver<ResponsePiece>,
    /// Pieces that were received, or refused at once, and not yet taken.
    ready: VecDeque<ResponsePiece>,
    /// Number of open connections.
    connected: Arc<AtomicUsize>,
    /// Time at which the agent was first seen dead.
    dead_since: Option<Instant>,
}

impl HttpClients {
    /// Sets the network in which servers are.
    pub(crate) fn enter(&mut self, network: Option<Arc<SessionNetwork>>) {
        self.network = network;
    }

    /// Sets the server of all further requests. An endpoint that is not on this machine makes each of them fail.
    pub(crate) fn connect(&mut self, endpoint: &AgentEndpoint) {
        let target = target(endpoint).map(|target| ServerTarget { network: self.network.clone(), ..target });
        match &mut self.client {
            Some(client) => client.target = target,
            None => self.client = Some(Box::new(HttpClient::new(target, DEADLINE))),
        }
    }

    /// Starts a request.
    pub(crate) fn request(&mut self, request: HttpRequest) {
        let no_target = || Box::new(HttpClient::new(Err("no server is known yet".into()), DEADLINE));
        self.client.get_or_insert_with(no_target).request(request);
    }

    /// Waits until [`HttpClients::take`] has something. The future may be dropped and created again.
    pub(crate) async fn readable(&mut self) {
        match &mut self.client {
            None => std::future::pending().await,
            Some(client) => {
                if client.ready.is_empty()
                    && let Some(answered) = client.receiver.recv().await
                {
                    client.ready.push_back(answered);
                }
            }
        }
    }

    /// Returns the next piece of an answer that has arrived.
    pub(crate) fn take(&mut self) -> Option<ResponsePiece> {
        let client = self.client.as_mut()?;
        client.ready.pop_front().or_else(|| client.receiver.try_recv().ok())
    }

    /// Returns the time until which the last answers of a dead agent are awaited, or `None` if there will be none. [`HttpClients::take`]
    /// returns the answers that have arrived.
    pub(crate) fn drain_deadline(&mut self) -> Option<Instant> {
        let client = self.client.as_mut().filter(|client| client.has_pending_output())?;
        let until = *client.dead_since.get_or_insert_with(Instant::now) + DRAIN_TIMEOUT;
        (Instant::now() < until).then_some(until)
    }

    /// Returns the time at which [`HttpClients::drain_deadline`] changes.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let client = self.client.as_ref().filter(|client| client.has_pending_output())?;
        client.dead_since.map(|since| since + DRAIN_TIMEOUT).filter(|due| Instant::now() < *due)
    }

    /// Drops all connections and their results.
    pub(crate) fn close(&mut self) {
        self.client = None;
    }
}

impl HttpClient {
    fn new(target: Result<ServerTarget, String>, deadline: Duration) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        Self {
            target,
            deadline,
            long_deadline: LONG_DEADLINE,
            permits: Arc::new(Semaphore::new(CONCURRENT)),
            long_permits: Arc::new(Semaphore::new(CONCURRENT)),
            tasks: JoinSet::new(),
            sender,
            receiver,
            ready: VecDeque::new(),
            connected: Arc::default(),
            dead_since: None,
        }
    }

    fn has_pending_output(&self) -> bool {
        self.connected.load(Ordering::Relaxed) > 0 || !self.ready.is_empty() || !self.receiver.is_empty()
    }

    fn request(&mut self, request: HttpRequest) {
        while self.tasks.try_join_next().is_some() {}
        let (id, stream, told) = (request.id, request.patience == HttpPatience::Stream, request.emits_raw);
        let target = match &self.target {
            _ if self.tasks.len() >= MAX_REQUESTS => Err(format!("{MAX_REQUESTS} requests are under way")),
            target => target.clone(),
        };
        let target = match target {
            Ok(target) => target,
            Err(why) => {
                return self.ready.push_back(ResponsePiece {
                    id,
                    stream,
                    emits_raw: told,
                    outcome: HttpOutcome::Failed(why),
                });
            }
        };
        let (sender, connected) = (self.sender.clone(), Arc::clone(&self.connected));
        let (deadline, permits) = match request.patience {
            HttpPatience::Long => (self.long_deadline, Arc::clone(&self.long_permits)),
            HttpPatience::Short | HttpPatience::Stream => (self.deadline, Arc::clone(&self.permits)),
        };
        let until = tokio::time::Instant::now() + deadline;
        let exchange = HttpExchange { id, stream, emits_raw: told, sender, connected, deadline, until };
        self.tasks.spawn(async move {
            // The semaphore is never closed, so this cannot fail.
            let permit = exchange.with_deadline(async { Ok(permits.acquire().await) }).await;
            let done = match &permit {
                Ok(_) => exchange.run(&target, request).await,
                Err(why) => Err(why.clone()),
            };
            exchange.emit(done.map_or_else(HttpOutcome::Failed, |()| HttpOutcome::End)).await;
        });
    }
}

/// Request from its start to the end of its answer. The deadline applies to the server only: the taker of the pieces may be busy.
struct HttpExchange {
    id: u64,
    stream: bool,
    emits_raw: bool,
    sender: mpsc::Sender<ResponsePiece>,
    connected: Arc<AtomicUsize>,
    deadline: Duration,
    /// End of the deadline.
    until: tokio::time::Instant,
}

/// Guard that counts an open connection while it exists.
struct CountGuard<'a>(&'a AtomicUsize);

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl HttpExchange {
    /// Sends a piece once there is room. After the client was dropped there is no receiver.
    async fn emit(&self, outcome: HttpOutcome) {
        let _ = self
            .sender
            .send(ResponsePiece { id: self.id, stream: self.stream, emits_raw: self.emits_raw, outcome })
            .await;
    }

    /// Runs `work` with the deadline.
    async fn with_deadline<T>(&self, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        let too_late = |_| Err(format!("no answer within {} ms", self.deadline.as_millis()));
        timeout_at(self.until, work).await.unwrap_or_else(too_late)
    }

    async fn run(&self, target: &ServerTarget, request: HttpRequest) -> Result<(), String> {
        let patience = request.patience;
        let request = message(target, request)?;
        let until = (patience == HttpPatience::Stream).then(|| Instant::now() + CONNECT_TIMEOUT);
        let (mut sender, connection) = self.with_deadline(connect(target, until)).await?;
        self.connected.fetch_add(1, Ordering::Relaxed);
        let _counted = CountGuard(&self.connected);
        let answer = async { sender.send_request(request).await.map_err(|error| ErrorChain(&error).to_string()) };
        let exchange = async {
            if patience == HttpPatience::Stream {
                let answer = self.with_deadline(answer).await?;
                self.emit(HttpOutcome::Head(answer.status().as_u16())).await;
                return self.stream(answer.into_body()).await;
            }
            let whole = async {
                let answer = answer.await?;
                Ok((answer.status().as_u16(), read_body(answer.into_body()).await?))
            };
            let (status, body) = self.with_deadline(whole).await?;
            self.emit(HttpOutcome::Head(status)).await;
            self.emit(HttpOutcome::Body(body)).await;
            Ok(())
        };
        tokio::select! {
            done = exchange => done,
            // The exchange gets the result of the connection.
            () = async { let _ = connection.await; std::future::pending().await } => Ok(()),
        }
    }

    async fn stream(&self, mut body: Incoming) -> Result<(), String> {
        while let Some(frame) = body.frame().await {
            if let Ok(bytes) = frame.map_err(|error| ErrorChain(&error).to_string())?.into_data() {
                self.emit(HttpOutcome::Body(bytes)).await;
            }
        }
        Ok(())
    }
}

type HttpConnection = http1::Connection<TokioIo<TcpStream>, Full<Bytes>>;

/// Opens a TCP connection to the server, in its network.
async fn open_stream(target: &ServerTarget) -> std::io::Result<TcpStream> {
    let Some(network) = &target.network else { return TcpStream::connect(target.address).await };
    let socket = std::net::TcpStream::from(network.tcp_socket()?);
    socket.set_nonblocking(true)?;
    TcpSocket::from_std_stream(socket).connect(target.address).await
}

/// Connects to the server. While the server refuses, it tries again until `until`.
async fn connect(
    target: &ServerTarget,
    until: Option<Instant>,
) -> Result<(http1::SendRequest<Full<Bytes>>, HttpConnection), String> {
    let tcp = loop {
        match open_stream(target).await {
            Ok(tcp) => break tcp,
            Err(error) => {
                let refused = error.kind() == std::io::ErrorKind::ConnectionRefused;
                if !refused || until.is_none_or(|until| until <= Instant::now()) {
                    return Err(format!("no connection to {}: {error}", target.address));
                }
                tokio::time::sleep(CONNECT_RETRY_INTERVAL).await;
            }
        }
    };
    // The requests are small and wait for their answers.
    let _ = tcp.set_nodelay(true);
    let handshake = http1::Builder::new().max_buf_size(CHUNK).handshake(TokioIo::new(tcp)).await;
    handshake.map_err(|error| ErrorChain(&error).to_string())
}

/// Collects all of `body`.
async fn read_body(mut body: Incoming) -> Result<Bytes, String> {
    let mut all = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(bytes) = frame.map_err(|error| ErrorChain(&error).to_string())?.into_data() else { continue };
        if all.len() + bytes.len() > MAX_BODY {
            return Err(format!("its answer is longer than {MAX_BODY} bytes"));
        }
        all.extend_from_slice(&bytes);
    }
    Ok(all.into())
}

/// Parses the address of `endpoint`. Names are not resolved (that would start threads): only `localhost` is known.
fn target(endpoint: &AgentEndpoint) -> Result<ServerTarget, String> {
    let url = endpoint.url.as_deref().unwrap_or_default();
    let refused = |why: &str| format!("{url:?} {why}: it takes http://127.0.0.1:PORT");
    let uri: Uri = url.parse().map_err(|_| refused("is no address of a server"))?;
    let authority = uri.authority().ok_or_else(|| refused("is no address of a server"))?;
    if uri.scheme_str() != Some("http") || uri.path() != "/" || uri.query().is_some() {
        return Err(refused("is not a plain http address"));
    }
    if authority.as_str().contains('@') {
        return Err("the address of a server holds a user or password: they have a place of their own".into());
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let ip = match host {
        "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        host => host.parse().map_err(|_| refused("has no numeric address"))?,
    };
    if !ip.is_loopback() {
        return Err(refused("is not on this machine"));
    }
    let address = SocketAddr::new(ip, authority.port_u16().unwrap_or(80));
    let authorization = endpoint.password.as_ref().map(|password| {
        let token = STANDARD.encode(format!("{}:{password}", endpoint.user));
        let mut value = HeaderValue::try_from(format!("Basic {token}"))
            .map_err(|_| "the password does not fit in a header".to_owned())?;
        value.set_sensitive(true);
        Ok::<_, String>(value)
    });
    let host = HeaderValue::try_from(authority.as_str()).map_err(|_| refused("is no address of a server"))?;
    Ok(ServerTarget { address, host, authorization: authorization.transpose()?, network: None })
}

/// Converts `request` to hyper's form.
fn message(target: &ServerTarget, request: HttpRequest) -> Result<Request<Full<Bytes>>, String> {
    let mut builder = Request::builder()
        .method(request.method)
        .uri(request.path.as_str())
        .header(header::HOST, target.host.clone())
        .header(header::CONNECTION, "close");
    if let Some(authorization) = &target.authorization {
        builder = builder.header(header::AUTHORIZATION, authorization.clone());
    }
    if request.body.is_some() {
        builder = builder.header(header::CONTENT_TYPE, "application/json");
    }
    if !request.path.starts_with('/') {
        return Err(format!("a path begins with a slash: {:?}", request.path));
    }
    let body = Full::new(Bytes::from(request.body.unwrap_or_default()));
    builder.body(body).map_err(|error| format!("{} {:?} cannot be asked: {error}", request.method, request.path))
}

#[cfg(test)]
mod tests;
