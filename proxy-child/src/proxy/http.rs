//! The client of an agent's own server: HTTP/1.1 over TCP to this machine, and nowhere else.
//!
//! Each request has a connection and a task of its own, on the proxy's one thread. What comes of them arrives in one bounded
//! queue: who does not take from it holds up the tasks, which then read no further, and so the server.

use std::{
    collections::VecDeque,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use agents::{HttpEvent, HttpRequest, Patience};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request, Uri,
    body::{Bytes, Incoming},
    client::conn::http1,
    header::{self, HeaderValue},
};
use hyper_util::rt::TokioIo;
use ipc_protocol::Endpoint;
use tokio::{
    net::TcpStream,
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::timeout_at,
};

/// Requests under way at once; more wait for one of them to end.
const CONCURRENT: usize = 32;
/// Requests under way and waiting; more are refused.
const MAX_REQUESTS: usize = 256;
/// Pieces of answers that wait to be taken.
const QUEUE: usize = 4;
/// What is read at a time, and kept of what was read.
const CHUNK: usize = 64 * 1024;
/// Longest answer that is no stream, in bytes.
const MAX_BODY: usize = 8 * 1024 * 1024;
/// From a request to the end of its answer; to the beginning of a stream.
const DEADLINE: Duration = Duration::from_secs(30);
/// The same of one that may take longer: of an operation, which nobody waits for any more then.
const LONG_DEADLINE: Duration = super::operations::PATIENCE;
/// A server that refuses a connection for its stream is asked again this often, for this long: it may be starting again. One
/// that has died is seen dead by then.
const ASK_AGAIN: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(1);
/// What an agent's server said before it died is waited for this long.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What became of a request: an [`HttpEvent`] that owns its bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Head(u16),
    Body(Bytes),
    End,
    Failed(String),
}

impl Outcome {
    /// As an adapter takes it.
    pub(crate) fn event(&self) -> HttpEvent<'_> {
        match self {
            Self::Head(status) => HttpEvent::Head(*status),
            Self::Body(bytes) => HttpEvent::Body(bytes),
            Self::End => HttpEvent::End,
            Self::Failed(why) => HttpEvent::Failed(why),
        }
    }
}

/// A piece of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answered {
    /// Of the request.
    pub(crate) id: u64,
    /// Whether the answer is a stream, whose bytes are the agent's own lines.
    pub(crate) stream: bool,
    /// Whether it is told as it is.
    pub(crate) told: bool,
    pub(crate) outcome: Outcome,
}

/// Where the server is, and what proves who we are.
#[derive(Clone, Debug)]
struct Target {
    address: SocketAddr,
    host: HeaderValue,
    authorization: Option<HeaderValue>,
}

/// The client. Nothing is allocated before the first [`Http::connect`]; dropping it drops all connections.
#[derive(Debug, Default)]
pub(crate) struct Http {
    client: Option<Box<Client>>,
}

#[derive(Debug)]
struct Client {
    target: Result<Target, String>,
    deadline: Duration,
    long_deadline: Duration,
    permits: Arc<Semaphore>,
    /// Of those that may take longer: they hold up nobody else.
    long_permits: Arc<Semaphore>,
    tasks: JoinSet<()>,
    sender: mpsc::Sender<Answered>,
    receiver: mpsc::Receiver<Answered>,
    /// Received, or refused at once, and not yet taken.
    ready: VecDeque<Answered>,
    /// Connections that there are.
    connected: Arc<AtomicUsize>,
    /// When the agent was first seen dead.
    dead_since: Option<Instant>,
}

impl Http {
    /// From now on requests go there. An endpoint that is not on this machine makes each of them fail.
    pub(crate) fn connect(&mut self, endpoint: &Endpoint) {
        let target = target(endpoint);
        match &mut self.client {
            Some(client) => client.target = target,
            None => self.client = Some(Box::new(Client::new(target, DEADLINE))),
        }
    }

    /// Begins a request.
    pub(crate) fn request(&mut self, request: HttpRequest) {
        let no_target = || Box::new(Client::new(Err("no server is known yet".into()), DEADLINE));
        self.client.get_or_insert_with(no_target).request(request);
    }

    /// When [`Http::take`] has something. May be dropped and called again.
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

    /// The next piece of an answer that is here.
    pub(crate) fn take(&mut self) -> Option<Answered> {
        let client = self.client.as_mut()?;
        client.ready.pop_front().or_else(|| client.receiver.try_recv().ok())
    }

    /// Until when the last words of a dead agent are worth waiting for; `None` where there will be none. What they were is
    /// then for [`Http::take`].
    pub(crate) fn last_words_until(&mut self) -> Option<Instant> {
        let client = self.client.as_mut().filter(|client| client.may_say_more())?;
        let until = *client.dead_since.get_or_insert_with(Instant::now) + LAST_WORDS;
        (Instant::now() < until).then_some(until)
    }

    /// When [`Http::last_words_until`] is to be asked again.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let client = self.client.as_ref().filter(|client| client.may_say_more())?;
        client.dead_since.map(|since| since + LAST_WORDS).filter(|due| Instant::now() < *due)
    }

    /// Drops all connections, and what came of them.
    pub(crate) fn close(&mut self) {
        self.client = None;
    }
}

impl Client {
    fn new(target: Result<Target, String>, deadline: Duration) -> Self {
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

    fn may_say_more(&self) -> bool {
        self.connected.load(Ordering::Relaxed) > 0 || !self.ready.is_empty() || !self.receiver.is_empty()
    }

    fn request(&mut self, request: HttpRequest) {
        while self.tasks.try_join_next().is_some() {}
        let (id, stream, told) = (request.id, request.patience == Patience::Stream, request.told);
        let target = match &self.target {
            _ if self.tasks.len() >= MAX_REQUESTS => Err(format!("{MAX_REQUESTS} requests are under way")),
            target => target.clone(),
        };
        let target = match target {
            Ok(target) => target,
            Err(why) => return self.ready.push_back(Answered { id, stream, told, outcome: Outcome::Failed(why) }),
        };
        let (sender, connected) = (self.sender.clone(), Arc::clone(&self.connected));
        let (deadline, permits) = match request.patience {
            Patience::Long => (self.long_deadline, Arc::clone(&self.long_permits)),
            Patience::Short | Patience::Stream => (self.deadline, Arc::clone(&self.permits)),
        };
        let until = tokio::time::Instant::now() + deadline;
        let exchange = Exchange { id, stream, told, sender, connected, deadline, until };
        self.tasks.spawn(async move {
            // Never closed: an error cannot be.
            let permit = exchange.in_time(async { Ok(permits.acquire().await) }).await;
            let done = match &permit {
                Ok(_) => exchange.run(&target, request).await,
                Err(why) => Err(why.clone()),
            };
            exchange.tell(done.map_or_else(Outcome::Failed, |()| Outcome::End)).await;
        });
    }
}

/// A request, from its beginning to the end of its answer. Only the server is waited for with a deadline: who takes the
/// pieces may be busy.
struct Exchange {
    id: u64,
    stream: bool,
    told: bool,
    sender: mpsc::Sender<Answered>,
    connected: Arc<AtomicUsize>,
    deadline: Duration,
    /// When that is over.
    until: tokio::time::Instant,
}

/// One that is counted, as long as it is there.
struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Exchange {
    /// Waits until there is room; nobody is left to be told once the client is dropped.
    async fn tell(&self, outcome: Outcome) {
        let _ = self.sender.send(Answered { id: self.id, stream: self.stream, told: self.told, outcome }).await;
    }

    /// What `work` comes to, if that is in time.
    async fn in_time<T>(&self, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        let too_late = |_| Err(format!("no answer within {} ms", self.deadline.as_millis()));
        timeout_at(self.until, work).await.unwrap_or_else(too_late)
    }

    async fn run(&self, target: &Target, request: HttpRequest) -> Result<(), String> {
        let patience = request.patience;
        let request = message(target, request)?;
        let until = (patience == Patience::Stream).then(|| Instant::now() + PATIENCE);
        let (mut sender, connection) = self.in_time(connect(target, until)).await?;
        self.connected.fetch_add(1, Ordering::Relaxed);
        let _counted = Counted(&self.connected);
        let answer = async { sender.send_request(request).await.map_err(|error| describe(&error)) };
        let exchange = async {
            if patience == Patience::Stream {
                let answer = self.in_time(answer).await?;
                self.tell(Outcome::Head(answer.status().as_u16())).await;
                return self.stream(answer.into_body()).await;
            }
            let whole = async {
                let answer = answer.await?;
                Ok((answer.status().as_u16(), whole(answer.into_body()).await?))
            };
            let (status, body) = self.in_time(whole).await?;
            self.tell(Outcome::Head(status)).await;
            self.tell(Outcome::Body(body)).await;
            Ok(())
        };
        tokio::select! {
            done = exchange => done,
            // What it came to, the exchange is told.
            () = async { let _ = connection.await; std::future::pending().await } => Ok(()),
        }
    }

    async fn stream(&self, mut body: Incoming) -> Result<(), String> {
        while let Some(frame) = body.frame().await {
            if let Ok(bytes) = frame.map_err(|error| describe(&error))?.into_data() {
                self.tell(Outcome::Body(bytes)).await;
            }
        }
        Ok(())
    }
}

type Connection = http1::Connection<TokioIo<TcpStream>, Full<Bytes>>;

/// A server that refuses is asked again until then.
async fn connect(
    target: &Target,
    until: Option<Instant>,
) -> Result<(http1::SendRequest<Full<Bytes>>, Connection), String> {
    let tcp = loop {
        match TcpStream::connect(target.address).await {
            Ok(tcp) => break tcp,
            Err(error) => {
                let refused = error.kind() == std::io::ErrorKind::ConnectionRefused;
                if !refused || until.is_none_or(|until| until <= Instant::now()) {
                    return Err(format!("no connection to {}: {error}", target.address));
                }
                tokio::time::sleep(ASK_AGAIN).await;
            }
        }
    };
    // Small requests that wait for their answers.
    let _ = tcp.set_nodelay(true);
    let handshake = http1::Builder::new().max_buf_size(CHUNK).handshake(TokioIo::new(tcp)).await;
    handshake.map_err(|error| describe(&error))
}

/// All of `body`.
async fn whole(mut body: Incoming) -> Result<Bytes, String> {
    let mut all = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(bytes) = frame.map_err(|error| describe(&error))?.into_data() else { continue };
        if all.len() + bytes.len() > MAX_BODY {
            return Err(format!("its answer is longer than {MAX_BODY} bytes"));
        }
        all.extend_from_slice(&bytes);
    }
    Ok(all.into())
}

/// Where `endpoint` is. Names are not looked up (that starts threads): there is only `localhost`.
fn target(endpoint: &Endpoint) -> Result<Target, String> {
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
    Ok(Target { address, host, authorization: authorization.transpose()? })
}

/// `request` as hyper takes it.
fn message(target: &Target, request: HttpRequest) -> Result<Request<Full<Bytes>>, String> {
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

/// An error of hyper's and what is behind it, in one line.
fn describe(error: &hyper::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}

#[cfg(test)]
mod tests;
