//! The way out of a session with a network of its own: an HTTP proxy, and answers to questions for addresses, in that network.
//!
//! The listening sockets are in the session's network namespace, where nobody else can connect to them. Connections to hosts are made
//! by the proxy outside. All of it ends with the proxy.
//!
//! | in the session | does |
//! |---|---|
//! | `127.0.0.1:61080` | HTTP proxy: `CONNECT`, and requests with a whole address; variables name it |
//! | `127.0.0.1:53` | answers for allowed names with an address of 198.18.0.0/15, which is the session's own; refuses others |
//! | ports 80 and 443 of those | for programs that know of no proxy: lead to the name that has the address |
//! | a port of `127.0.0.1` | leads to that port outside, where a rule allows it by address |
//! | `127.0.0.1:61081` | the session's model, whose key is put into each request |
//!
//! A tunnel to port 443 begins with a TLS greeting that names the allowed host. A plain request goes alone through its connection, with
//! the allowed host as its `Host`. So a redirect is a request of its own, and what a connection asks for is what was allowed.

mod addresses;
mod answer;
mod client_hello;
mod dns;
mod model;
mod request_head;
#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4},
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use ipc_protocol::{
    Event, MODEL_PORT, ModelUpstream, NetworkConnection, NetworkRefusal, NetworkRule, ProcessId, normal_host,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::{Notify, Semaphore},
    task::JoinSet,
    time::timeout,
};

use self::{
    answer::AnswerFilter,
    client_hello::{HelloVerdict, parse_hello},
    dns::NameTable,
    model::ModelGateway,
    request_head::{Authority, BodyLength, RequestHead, parse_authority, parse_head},
};

/// Port of the HTTP proxy in the session.
pub(crate) const PROXY_PORT: u16 = ipc_protocol::EGRESS_PORT;
/// Most connections at a time.
const MAX_CONNECTIONS: usize = 256;
/// Most names that are looked up at a time.
const MAX_LOOKUPS: usize = 8;
/// Most events that wait to be sent; further ones are counted.
const MAX_EVENTS: usize = 512;
/// Most addresses of a name that are tried.
const MAX_ADDRESSES: usize = 4;
/// Time for a client to send its request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for a name to be looked up, and for each address to answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time without a byte in either direction after which a connection ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Bytes of a copy.
const CHUNK: usize = 32 * 1024;
/// Longest question for an address.
const MAX_QUESTION: usize = 1232;

/// Sockets that the proxy needs in the session's network, in the order of [`SessionEgress::start`].
#[derive(Debug)]
pub(crate) struct EgressSockets {
    pub(crate) tcp: Vec<SocketAddrV4>,
    pub(crate) udp: Vec<SocketAddrV4>,
}

impl EgressSockets {
    pub(crate) fn new(rules: &[NetworkRule], has_model: bool) -> Self {
        let local = |port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        let any = |port| SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port);
        let mut tcp = vec![local(PROXY_PORT), any(80), any(443), local(53)];
        tcp.extend(has_model.then_some(local(MODEL_PORT)));
        let taken = [53, 80, 443, PROXY_PORT, MODEL_PORT];
        tcp.extend(rules.iter().filter_map(local_port).filter(|port| !taken.contains(port)).map(local));
        Self { tcp, udp: vec![local(53)] }
    }
}

/// Port of a rule about this machine's own loopback address.
fn local_port(rule: &NetworkRule) -> Option<u16> {
    let is_local = rule.address().is_some_and(|address| address == IpAddr::V4(Ipv4Addr::LOCALHOST));
    rule.port().filter(|_| is_local)
}

/// Kind of a listening socket.
#[derive(Clone, Copy, Debug)]
enum EgressDoor {
    Proxy,
    Http,
    Tls,
    Dns,
    Model,
    Forward(u16),
}

/// The session's way out. Dropping it ends all connections.
#[derive(Debug)]
pub(crate) struct SessionEgress {
    shared: Arc<EgressShared>,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct EgressShared {
    rules: Vec<NetworkRule>,
    model: Option<ModelGateway>,
    names: Mutex<NameTable>,
    events: Mutex<VecDeque<Event>>,
    lost: AtomicU64,
    wake: Arc<Notify>,
    connections: Arc<Semaphore>,
    lookups: Semaphore,
    /// Name of the session's network namespace, by which processes are found.
    network: String,
}

impl SessionEgress {
    /// Serves on sockets made for [`EgressSockets::new`]. `wake` is notified when there are events.
    ///
    /// # Errors
    /// When a socket cannot be watched.
    pub(crate) fn start(
        (rules, model): (Vec<NetworkRule>, Option<ModelUpstream>),
        (tcp, udp): (Vec<OwnedFd>, Vec<OwnedFd>),
        network: String,
        wake: Arc<Notify>,
    ) -> io::Result<Self> {
        let model = model.map(ModelGateway::new);
        let shared = Arc::new(EgressShared { model, ..EgressShared::new(rules, network, wake) });
        let mut tasks = JoinSet::new();
        for socket in tcp {
            let listener = std::net::TcpListener::from(socket);
            listener.set_nonblocking(true)?;
            let door = match listener.local_addr()?.port() {
                PROXY_PORT => EgressDoor::Proxy,
                80 => EgressDoor::Http,
                443 => EgressDoor::Tls,
                53 => EgressDoor::Dns,
                MODEL_PORT => EgressDoor::Model,
                port => EgressDoor::Forward(port),
            };
            tasks.spawn(shared.clone().accept(TcpListener::from_std(listener)?, door));
        }
        for socket in udp {
            let socket = std::net::UdpSocket::from(socket);
            socket.set_nonblocking(true)?;
            tasks.spawn(shared.clone().answer_questions(UdpSocket::from_std(socket)?));
        }
        Ok(Self { shared, _tasks: tasks })
    }

    /// Takes the events so far.
    pub(crate) fn take_events(&self) -> Vec<Event> {
        let mut events: Vec<Event> = self.shared.events().drain(..).collect();
        let lost = self.shared.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            events.push(Event::SessionLossy { reason: format!("{lost} events of the session's network were dropped") });
        }
        events
    }
}

/// Bytes of a connection.
#[derive(Debug, Default)]
struct ByteCounts {
    sent: AtomicU64,
    received: AtomicU64,
}

impl EgressShared {
    fn new(rules: Vec<NetworkRule>, network: String, wake: Arc<Notify>) -> Self {
        Self {
            rules,
            model: None,
            names: Mutex::default(),
            events: Mutex::default(),
            lost: AtomicU64::new(0),
            wake,
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            lookups: Semaphore::new(MAX_LOOKUPS),
            network,
        }
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn names(&self) -> MutexGuard<'_, NameTable> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn emit(&self, event: Event) {
        let mut events = self.events();
        if events.len() < MAX_EVENTS {
            events.push_back(event);
        } else {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        self.wake.notify_one();
    }

    fn refuse(&self, host: &str, port: u16, reason: &str, process: Option<ProcessId>) {
        let refusal = NetworkRefusal { host: host.to_owned(), port, reason: reason.to_owned(), process };
        self.emit(Event::NetworkRefused(Box::new(refusal)));
    }

    async fn accept(self: Arc<Self>, listener: TcpListener, door: EgressDoor) {
        let mut tasks = JoinSet::new();
        loop {
            while tasks.try_join_next().is_some() {}
            let Ok(permit) = self.connections.clone().acquire_owned().await else { return };
            match listener.accept().await {
                Ok((client, from)) => {
                    let shared = self.clone();
                    tasks.spawn(async move {
                        shared.serve(client, from, door).await;
                        drop(permit);
                    });
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    async fn serve(&self, client: TcpStream, from: SocketAddr, door: EgressDoor) {
        let Ok(to) = client.local_addr() else { return };
        if let EgressDoor::Dns = door {
            return self.answer_stream(client).await;
        }
        let process = registry::tcp_client_of(&self.network, from, to);
        let asked = match door {
            EgressDoor::Forward(port) => Some(Authority { host: to.ip().to_string(), port }),
            EgressDoor::Http | EgressDoor::Tls => self.authority_of(to),
            EgressDoor::Proxy | EgressDoor::Model | EgressDoor::Dns => None,
        };
        match (door, asked) {
            (EgressDoor::Proxy, _) => self.serve_proxy(client, process).await,
            (EgressDoor::Model, _) => self.serve_model(client, process).await,
            (EgressDoor::Forward(_), Some(asked)) => self.tunnel(client, Vec::new(), asked, process).await,
            (EgressDoor::Http, Some(asked)) => self.serve_request(client, Vec::new(), Some(asked), process).await,
            (EgressDoor::Tls, Some(asked)) => self.tunnel(client, Vec::new(), asked, process).await,
            _ => self.refuse(&to.ip().to_string(), to.port(), "nothing has that address", process),
        }
    }

    /// The place that an address of the session's network stands for.
    fn authority_of(&self, to: SocketAddr) -> Option<Authority> {
        let IpAddr::V4(address) = to.ip().to_canonical() else { return None };
        let host = if address.is_loopback() {
            Some(address.to_string()).filter(|host| self.is_allowed(host, to.port()))
        } else {
            self.names().name(address).map(str::to_owned)
        };
        host.map(|host| Authority { host, port: to.port() })
    }

    fn is_allowed(&self, host: &str, port: u16) -> bool {
        self.rules.iter().any(|rule| rule.allows(host, port))
    }

    async fn serve_proxy(&self, mut client: TcpStream, process: Option<ProcessId>) {
        let mut bytes = Vec::new();
        let head = match read_head(&mut client, &mut bytes).await {
            Ok(Some(head)) => head,
            Ok(None) => return,
            Err(why) => return reply(&mut client, "400 Bad Request", why).await,
        };
        if head.method != "CONNECT" {
            return self.serve_request(client, bytes, None, process).await;
        }
        let Some(asked) = parse_authority(&head.target, None) else {
            return reply(&mut client, "400 Bad Request", "CONNECT names no host and port").await;
        };
        if let Err(reason) = self.check(&asked, process) {
            return reply(&mut client, "403 Forbidden", &reason).await;
        }
        let rest = bytes.split_off(head.length);
        if client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.is_err() {
            return;
        }
        match asked.port {
            80 => self.serve_request(client, rest, Some(asked), process).await,
            _ => self.tunnel(client, rest, asked, process).await,
        }
    }

    /// Checks a place, and reports where it is refused.
    fn check(&self, asked: &Authority, process: Option<ProcessId>) -> Result<(), String> {
        if self.is_allowed(&asked.host, asked.port) {
            return Ok(());
        }
        let reason = if self.rules.is_empty() { "the network is off" } else { "no rule allows it" };
        self.refuse(&asked.host, asked.port, reason, process);
        Err(format!("{}:{}: {reason}", asked.host, asked.port))
    }

    /// Serves one plain request: to `asked`, or to what it names itself.
    async fn serve_request(
        &self,
        mut client: TcpStream,
        mut bytes: Vec<u8>,
        asked: Option<Authority>,
        process: Option<ProcessId>,
    ) {
        let head = match read_head(&mut client, &mut bytes).await {
            Ok(Some(head)) => head,
            Ok(None) => return,
            Err(why) => return reply(&mut client, "400 Bad Request", why).await,
        };
        let (asked, path) = match asked {
            None => match head.absolute() {
                Some(found) => found,
                None => {
                    return reply(&mut client, "400 Bad Request", "a request to a proxy names a whole http:// address")
                        .await;
                }
            },
            Some(asked) => {
                let path = head.absolute().map_or_else(|| head.target.clone(), |(_, path)| path);
                if !head.is_for(&asked.host) {
                    let reason = "the request names another host than its connection";
                    self.refuse(&asked.host, asked.port, reason, process);
                    return reply(&mut client, "403 Forbidden", reason).await;
                }
                (asked, path)
            }
        };
        if let Err(reason) = self.check(&asked, process) {
            return reply(&mut client, "403 Forbidden", &reason).await;
        }
        let begun = Instant::now();
        let counts = ByteCounts::default();
        let server = match self.connect(&asked).await {
            Ok(server) => server,
            Err(reason) => {
                self.refuse(&asked.host, asked.port, &reason, process);
                return reply(&mut client, "502 Bad Gateway", &reason).await;
            }
        };
        let shown = if asked.host.contains(':') { format!("[{}]", asked.host) } else { asked.host.clone() };
        let authority = if asked.port == 80 { shown } else { format!("{shown}:{}", asked.port) };
        forward(client, server, &head, &authority, &path, bytes.split_off(head.length), &counts).await;
        self.finish(asked, &counts, begun, process);
    }

    fn finish(&self, asked: Authority, counts: &ByteCounts, begun: Instant, process: Option<ProcessId>) {
        let connection = NetworkConnection {
            host: asked.host,
            port: asked.port,
            sent: counts.sent.load(Ordering::Relaxed),
            received: counts.received.load(Ordering::Relaxed),
            duration_ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            process,
        };
        self.emit(Event::NetworkConnection(Box::new(connection)));
    }

    /// Passes bytes on in both directions, once the client has named the host that was allowed.
    async fn tunnel(&self, mut client: TcpStream, mut bytes: Vec<u8>, asked: Authority, process: Option<ProcessId>) {
        let begun = Instant::now();
        let is_own = is_loopback(&asked.host);
        // With any other port the server may be the first to send.
        let checked = match asked.port {
            443 if !is_own => read_greeting(&mut client, &mut bytes, &asked.host, true).await,
            _ => Ok(()),
        };
        if let Err(reason) = checked {
            return self.refuse(&asked.host, asked.port, reason, process);
        }
        let server = match self.connect(&asked).await {
            Ok(server) => server,
            Err(reason) => return self.refuse(&asked.host, asked.port, &reason, process),
        };
        let counts = ByteCounts::default();
        let gate = (asked.port != 443 || is_own).then_some(asked.host.as_str());
        if let Err(reason) = exchange(client, server, bytes, gate, &counts).await {
            self.refuse(&asked.host, asked.port, reason, process);
        }
        self.finish(asked, &counts, begun, process);
    }

    /// Connects to an allowed place.
    async fn connect(&self, asked: &Authority) -> Result<TcpStream, String> {
        let is_exact = self.rules.iter().any(|rule| !rule.is_wildcard() && rule.allows(&asked.host, asked.port));
        self.connect_to(asked, is_exact).await
    }

    /// Connects to a place whose host was named as such (`is_exact`), or is below one that was.
    async fn connect_to(&self, asked: &Authority, is_exact: bool) -> Result<TcpStream, String> {
        let addresses: Vec<SocketAddr> = match asked.host.parse::<IpAddr>() {
            // A rule names it.
            Ok(address) => vec![SocketAddr::new(address, asked.port)],
            Err(_) => self.look_up(asked, is_exact).await?,
        };
        let mut last = format!("{} has no address that may be used", asked.host);
        for address in addresses.into_iter().take(MAX_ADDRESSES) {
            match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Ok(Err(error)) => last = format!("connecting to {} failed: {error}", asked.host),
                Err(_) => last = format!("connecting to {} took more than {CONNECT_TIMEOUT:?}", asked.host),
            }
        }
        Err(last)
    }

    async fn look_up(&self, asked: &Authority, is_exact: bool) -> Result<Vec<SocketAddr>, String> {
        let failed = |why: String| format!("looking up {} failed: {why}", asked.host);
        let _turn = self.lookups.acquire().await.map_err(|error| failed(error.to_string()))?;
        let found = timeout(CONNECT_TIMEOUT, tokio::net::lookup_host((asked.host.as_str(), asked.port))).await;
        let found = found.map_err(|_| failed(format!("no answer in {CONNECT_TIMEOUT:?}")))?;
        let found = found.map_err(|error| failed(error.to_string()))?;
        // Its own name of this machine says what it leads to.
        let is_local = asked.host == "localhost";
        Ok(found.filter(|address| is_local || addresses::may_lead_to(address.ip(), is_exact)).collect())
    }

    async fn answer_questions(self: Arc<Self>, socket: UdpSocket) {
        let mut message = vec![0; MAX_QUESTION];
        loop {
            match socket.recv_from(&mut message).await {
                Ok((length, from)) => {
                    if let Some(answer) = self.answer(&message[..length]) {
                        let _ = socket.try_send_to(&answer, from);
                    }
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    async fn answer_stream(&self, mut client: TcpStream) {
        while let Ok(Ok(length)) = timeout(HEAD_TIMEOUT, client.read_u16()).await {
            let mut message = vec![0; usize::from(length)];
            let Ok(Ok(_)) = timeout(HEAD_TIMEOUT, client.read_exact(&mut message)).await else { return };
            let Some(answer) = self.answer(&message) else { return };
            let framed = [&u16::try_from(answer.len()).unwrap_or(0).to_be_bytes()[..], &answer].concat();
            let Ok(Ok(())) = timeout(HEAD_TIMEOUT, client.write_all(&framed)).await else { return };
        }
    }

    fn answer(&self, message: &[u8]) -> Option<Vec<u8>> {
        let Some(question) = dns::parse_question(message) else { return dns::refusal(message, None) };
        let name = normal_host(&question.name);
        if !self.rules.iter().any(|rule| rule.names(&name)) {
            let reason = if self.rules.is_empty() { "the network is off" } else { "no rule allows it" };
            self.refuse(&name, 0, reason, None);
            return dns::refusal(message, Some(&question));
        }
        let address = self.names().address(&name);
        Some(dns::answer(message, &question, address))
    }
}

/// Reads until there is a whole head. `Ok(None)`: the client has gone.
async fn read_head(client: &mut TcpStream, bytes: &mut Vec<u8>) -> Result<Option<RequestHead>, &'static str> {
    let read = async {
        loop {
            if let Some(head) = parse_head(bytes)? {
                return Ok(Some(head));
            }
            if client.read_buf(bytes).await.unwrap_or(0) == 0 {
                return Ok(None);
            }
        }
    };
    timeout(HEAD_TIMEOUT, read).await.unwrap_or(Ok(None))
}

/// Reads until a client's greeting names `host`; what is none of TLS is refused where it has to be that.
async fn read_greeting(
    client: &mut (impl AsyncRead + Unpin),
    bytes: &mut Vec<u8>,
    host: &str,
    is_required: bool,
) -> Result<(), &'static str> {
    let read = async {
        loop {
            match parse_hello(bytes) {
                HelloVerdict::Incomplete => {}
                HelloVerdict::NotTls if is_required => {
                    return Err("a connection to port 443 begins with a TLS greeting");
                }
                // Somebody else may understand it otherwise.
                HelloVerdict::NotTls if bytes.starts_with(&[0x16, 3]) => {
                    return Err("the TLS greeting cannot be understood");
                }
                HelloVerdict::NotTls => return Ok(()),
                HelloVerdict::Hello { is_encrypted: true, .. } => return Err("the TLS greeting hides a name"),
                HelloVerdict::Hello { name, .. } => return check_name(name.as_deref(), host),
            }
            if client.read_buf(bytes).await.unwrap_or(0) == 0 {
                return Err("the client has sent no whole TLS greeting");
            }
        }
    };
    timeout(HEAD_TIMEOUT, read).await.unwrap_or(Err("the client has sent no whole TLS greeting"))
}

fn is_loopback(host: &str) -> bool {
    host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn check_name(name: Option<&str>, host: &str) -> Result<(), &'static str> {
    match name {
        Some(name) if normal_host(name) == host || is_loopback(host) && normal_host(name) == "localhost" => Ok(()),
        Some(_) => Err("the TLS greeting names another host"),
        // Of an address there is no name to send.
        None if host.parse::<IpAddr>().is_ok() => Ok(()),
        None => Err("the TLS greeting names no host"),
    }
}

async fn reply(client: &mut TcpStream, status: &str, text: &str) {
    let body = format!("agent-proxy: {text}\n");
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let _ = timeout(HEAD_TIMEOUT, async {
        client.write_all(head.as_bytes()).await?;
        client.write_all(body.as_bytes()).await?;
        client.shutdown().await
    })
    .await;
}

/// Sends one request and its body, and passes the answer back.
async fn forward(
    client: TcpStream,
    server: impl AsyncRead + AsyncWrite,
    head: &RequestHead,
    authority: &str,
    path: &str,
    rest: Vec<u8>,
    counts: &ByteCounts,
) {
    let mut first = head.write(authority, path).into_bytes();
    let (client_read, client_write) = client.into_split();
    let (server_read, mut server_write) = tokio::io::split(server);
    let upload = async {
        let left = match head.body {
            BodyLength::Known(length) => length,
            BodyLength::Chunked => u64::MAX,
        };
        // What comes after the body is another request, which is none of this connection.
        let rest = &rest[..usize::try_from(left).unwrap_or(usize::MAX).min(rest.len())];
        first.extend_from_slice(rest);
        if timeout(IDLE_TIMEOUT, server_write.write_all(&first)).await.is_ok_and(|sent| sent.is_ok()) {
            counts.sent.fetch_add(first.len() as u64, Ordering::Relaxed);
            let left = left - rest.len() as u64;
            let _ = copy(client_read.take(left), &mut server_write, &counts.sent).await;
        }
        // The server ends the connection: without its answer there is nothing to wait for.
        std::future::pending::<()>().await;
    };
    let download = async {
        let mut client_write = client_write;
        let _ = copy(server_read, &mut client_write, &counts.received).await;
        let _ = client_write.shutdown().await;
    };
    tokio::select! {
        () = upload => {}
        () = download => {}
    }
}

/// Passes bytes on until both sides have ended, or neither sends anything for long. `gate` is the host that a TLS greeting has to name.
async fn exchange(
    client: TcpStream,
    server: TcpStream,
    mut first: Vec<u8>,
    gate: Option<&str>,
    counts: &ByteCounts,
) -> Result<(), &'static str> {
    let (mut client_read, mut client_write) = client.into_split();
    let (server_read, mut server_write) = server.into_split();
    let upload = async {
        if let Some(host) = gate {
            if first.is_empty() && client_read.read_buf(&mut first).await.unwrap_or(0) == 0 {
                let _ = server_write.shutdown().await;
                return Ok(());
            }
            read_greeting(&mut client_read, &mut first, host, false).await?;
        }
        if server_write.write_all(&first).await.is_ok() {
            counts.sent.fetch_add(first.len() as u64, Ordering::Relaxed);
            let _ = copy(client_read, &mut server_write, &counts.sent).await;
        }
        let _ = server_write.shutdown().await;
        Ok(())
    };
    let download = async {
        let _ = copy(server_read, &mut client_write, &counts.received).await;
        let _ = client_write.shutdown().await;
        Ok(())
    };
    let idle = async {
        let total = || counts.sent.load(Ordering::Relaxed) + counts.received.load(Ordering::Relaxed);
        let mut before = None;
        while before != Some(total()) {
            before = Some(total());
            tokio::time::sleep(IDLE_TIMEOUT).await;
        }
        Ok(())
    };
    tokio::select! {
        ended = async { tokio::try_join!(upload, download) } => ended.map(|_| ()),
        ended = idle => ended,
    }
}

/// Sends one request, of which `first` has come and the rest of its body is to come (`left`), and passes the answer back. Returns whether the
/// client can go on with another one, if it wants to (`goes_on`).
async fn forward_once(
    client: &mut TcpStream,
    server: impl AsyncRead + AsyncWrite,
    (method, mut first, left): (&str, Vec<u8>, u64),
    goes_on: bool,
    counts: &ByteCounts,
) -> bool {
    let (client_read, mut client_write) = client.split();
    let (mut server_read, mut server_write) = tokio::io::split(server);
    let is_sent = AtomicBool::new(false);
    let upload = async {
        if timeout(IDLE_TIMEOUT, server_write.write_all(&first)).await.is_ok_and(|sent| sent.is_ok()) {
            counts.sent.fetch_add(first.len() as u64, Ordering::Relaxed);
            first.clear();
            let mut body = client_read.take(left);
            let copied = copy(&mut body, &mut server_write, &counts.sent).await;
            is_sent.store(copied.is_ok() && body.limit() == 0, Ordering::Relaxed);
        }
        // The server ends the connection: without its answer there is nothing to wait for.
        std::future::pending::<()>().await;
    };
    let download = async {
        let mut filter = AnswerFilter::new(method, goes_on);
        let (mut chunk, mut out) = (vec![0; CHUNK], Vec::new());
        while !filter.is_over() {
            // A connection that fails has ended, too.
            let length = server_read.read(&mut chunk).await.unwrap_or(0);
            match length {
                0 => filter.end(&mut out),
                length => filter.pass(&chunk[..length], &mut out),
            }
            counts.received.fetch_add(length as u64, Ordering::Relaxed);
            if client_write.write_all(&out).await.is_err() || length == 0 {
                return false;
            }
            out.clear();
        }
        filter.is_done()
    };
    let is_done = tokio::select! {
        () = upload => false,
        is_done = download => is_done,
    };
    goes_on && is_done && is_sent.load(Ordering::Relaxed)
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    to: &mut (impl AsyncWrite + Unpin),
    count: &AtomicU64,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let length = from.read(&mut chunk).await?;
        if length == 0 {
            return Ok(());
        }
        to.write_all(&chunk[..length]).await?;
        count.fetch_add(length as u64, Ordering::Relaxed);
    }
}
