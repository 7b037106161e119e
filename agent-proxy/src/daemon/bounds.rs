//! Bounds of what clients may have the daemon hold: connections, heads and bodies of requests, and how long each may take.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Extension, Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
    serve::Listener as _,
};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tower::Layer as _;

use super::{
    network::NetworkListener,
    peers::{self, ClientStream},
    socket::BoundSocket,
};
use proxy_server::{MAX_BODY, Peer, ProblemDetails};

/// Connections at once, at most.
const CONNECTIONS: u64 = 1024;
/// Descriptors kept for what clients ask for: files and sockets that are open for a moment.
const FOR_REQUESTS: u64 = 32;
/// Time for the whole head of a request to arrive.
const HEAD_TIME: Duration = Duration::from_secs(20);
/// Longest head of a request.
const MAX_HEAD: usize = 64 << 10;
/// Time for the body of a request to arrive.
const BODY_TIME: Duration = Duration::from_secs(30);
/// Bytes of all bodies together that are read or wait to be parsed, beyond [`SMALL_BODY`] of each.
const BODIES: usize = 128 << 20;
/// Bytes of each body that are not counted: a kill gets through, whatever others send.
const SMALL_BODY: usize = 64 << 10;
/// Bytes that one permit stands for.
const UNIT: usize = 1 << 10;

/// Returns the bound on connections under this limit on open files.
fn connections(limit: u64) -> u64 {
    (limit / 8).clamp(8, CONNECTIONS)
}

/// Descriptors that no session is to take, under this limit on open files.
pub(super) fn descriptor_reserve(limit: u64) -> u64 {
    connections(limit) + FOR_REQUESTS
}

/// Bounds that all listeners share, and the connections that are open.
#[derive(Clone, Debug)]
pub(super) struct ConnectionBounds {
    most: usize,
    room: Arc<Semaphore>,
    bodies: BodyBudget,
    refused: Arc<Semaphore>,
    addresses: AddressCounts,
    /// Addresses that may have all connections: proxies in front of the daemon.
    unbounded: Arc<[IpAddr]>,
}

impl ConnectionBounds {
    /// Makes the bounds under this limit on open files.
    pub(super) fn new(limit: u64, unbounded: &[IpAddr]) -> Self {
        let most = usize::try_from(connections(limit)).unwrap_or(usize::MAX);
        let bodies = BodyBudget(Arc::new(Semaphore::new(BODIES / UNIT)));
        Self {
            most,
            room: Arc::new(Semaphore::new(most)),
            bodies,
            refused: peers::refusals(),
            addresses: AddressCounts::default(),
            unbounded: unbounded.into(),
        }
    }

    /// Serves the local socket until `stopped` says so, and then until the connections that have a request are done with it.
    pub(super) async fn serve_local(self, mut listener: BoundSocket, router: Router, stopped: watch::Receiver<()>) {
        let mut server = self.server(router, stopped);
        while let Some(stream) = server.next(listener.accept()).await {
            let (stream, peer) = stream;
            match server.place_of(None) {
                Some(place) => server.spawn(place, std::future::ready(Some((stream, peer)))),
                None => server.refuse(stream),
            }
        }
        drop(listener);
        server.finish().await;
    }

    /// Serves an address in the same way.
    pub(super) async fn serve_network(
        self,
        listener: NetworkListener,
        tls: Option<TlsAcceptor>,
        router: Router,
        stopped: watch::Receiver<()>,
    ) {
        let mut server = self.server(router, stopped);
        while let Some(client) = server.next(listener.accept()).await {
            let from = client.stream.peer_addr().ok().map(|address| address.ip().to_canonical());
            match (server.place_of(from), &tls) {
                (Some(place), Some(tls)) => server.spawn(place, client.admit_encrypted(tls.clone())),
                (Some(place), None) => server.spawn(place, client.admit()),
                (None, _) => server.refuse(client.stream),
            }
        }
        drop(listener);
        server.finish().await;
    }

    fn server(self, router: Router, stopped: watch::Receiver<()>) -> BoundedServer {
        let router = router.layer(axum::middleware::from_fn_with_state(self.bodies.clone(), bounded));
        BoundedServer { bounds: self, router, stopped, open: JoinSet::new() }
    }
}

/// Connections of each address of another machine.
#[derive(Clone, Debug, Default)]
struct AddressCounts(Arc<Mutex<HashMap<IpAddr, usize>>>);

impl AddressCounts {
    /// Counts one more, up to `most`.
    fn take(&self, address: IpAddr, most: usize) -> Option<CountedAddress> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(CountedAddress { counts: self.clone(), address })
    }
}

/// A connection that is counted until this is dropped.
#[derive(Debug)]
struct CountedAddress {
    counts: AddressCounts,
    address: IpAddr,
}

impl Drop for CountedAddress {
    fn drop(&mut self) {
        let mut counts = self.counts.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

/// Place of a connection.
#[derive(Debug)]
struct ConnectionPlace {
    _room: OwnedSemaphorePermit,
    _of_address: Option<CountedAddress>,
}

/// Server of one listener.
struct BoundedServer {
    bounds: ConnectionBounds,
    router: Router,
    stopped: watch::Receiver<()>,
    open: JoinSet<()>,
}

impl BoundedServer {
    /// Waits for the next client; `None` once the daemon ends.
    async fn next<C>(&mut self, accept: impl Future<Output = C>) -> Option<C> {
        let mut accept = std::pin::pin!(accept);
        loop {
            tokio::select! {
                client = accept.as_mut() => return Some(client),
                _ = self.stopped.changed() => return None,
                Some(_) = self.open.join_next() => {}
            }
        }
    }

    /// Takes a place among the connections, if there is one. An address of another machine has a part of them.
    fn place_of(&self, address: Option<IpAddr>) -> Option<ConnectionPlace> {
        let address = address.filter(|address| !address.is_loopback() && !self.bounds.unbounded.contains(address));
        let of_address = match address {
            Some(address) => Some(self.bounds.addresses.take(address, (self.bounds.most / 4).max(4))?),
            None => None,
        };
        let room = self.bounds.room.clone().try_acquire_owned().ok()?;
        Some(ConnectionPlace { _room: room, _of_address: of_address })
    }

    /// Serves a client that is admitted.
    fn spawn<S: ClientStream>(
        &mut self,
        place: ConnectionPlace,
        admitted: impl Future<Output = Option<(S, Peer)>> + Send + 'static,
    ) {
        let (router, stopped) = (self.router.clone(), self.stopped.clone());
        self.open.spawn(async move {
            if let Some((stream, peer)) = admitted.await {
                connection(stream, router, peer, place, stopped).await;
            }
        });
    }

    fn refuse(&self, stream: impl ClientStream) {
        let detail = format!("{} connections are open, which is all there may be: close some", self.bounds.most);
        peers::refuse(&self.bounds.refused, stream, ProblemDetails::new("overloaded", detail));
    }

    async fn finish(mut self) {
        while self.open.join_next().await.is_some() {}
    }
}

async fn connection(
    stream: impl ClientStream,
    router: Router,
    peer: Peer,
    place: ConnectionPlace,
    mut stopped: watch::Receiver<()>,
) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(MAX_HEAD);
    let connection = builder
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(Extension(peer).layer(router)))
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stopped.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke off");
    }
    drop(place);
}

/// Room for bodies.
#[derive(Clone, Debug)]
struct BodyBudget(Arc<Semaphore>);

/// A body, and the room it takes until it was parsed.
struct BufferedBody {
    bytes: Vec<u8>,
    _room: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for BufferedBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads the body within its bounds, and sees to it that each refusal is a problem object.
async fn bounded(State(bodies): State<BodyBudget>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let read = timeout(BODY_TIME, bodies.read(body)).await.unwrap_or_else(|_| {
        let detail = format!("the request's body was not complete within {} s: send it again", BODY_TIME.as_secs());
        Err(ProblemDetails::new("request-timeout", detail))
    });
    match read {
        Ok(bytes) => problem(next.run(Request::from_parts(parts, Body::from(bytes))).await).await,
        Err(problem) => problem.into_response(),
    }
}

impl BodyBudget {
    async fn read(&self, body: Body) -> Result<Bytes, ProblemDetails> {
        let mut body = Limited::new(body, MAX_BODY);
        let mut held = BufferedBody { bytes: Vec::new(), _room: None };
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| match error.is::<LengthLimitError>() {
                true => {
                    ProblemDetails::new("body-too-large", format!("the request's body has more than {MAX_BODY} bytes"))
                }
                false => ProblemDetails::usage(format!("reading the request failed: {error}")),
            })?;
            let Ok(bytes) = frame.into_data() else { continue };
            let units = (held.bytes.len() + bytes.len()).saturating_sub(SMALL_BODY).div_ceil(UNIT);
            let more = units.saturating_sub(held._room.as_ref().map_or(0, OwnedSemaphorePermit::num_permits));
            if more > 0 {
                let room = self.0.clone().try_acquire_many_owned(u32::try_from(more).unwrap_or(u32::MAX));
                let room = room.map_err(|_| {
                    let detail = format!("the bodies of requests that are being sent have {BODIES} bytes: try again");
                    ProblemDetails::new("overloaded", detail)
                })?;
                match &mut held._room {
                    Some(held) => held.merge(room),
                    none => *none = Some(room),
                }
            }
            held.bytes.extend_from_slice(&bytes);
        }
        Ok(Bytes::from_owner(held))
    }
}

/// A refusal that is text, such as that of a path which is not UTF-8, becomes a problem object.
async fn problem(response: Response) -> Response {
    let is_text = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.to_str().is_ok_and(|kind| kind.starts_with("text/plain")));
    if response.status() != StatusCode::BAD_REQUEST || !is_text {
        return response;
    }
    let text = response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    ProblemDetails::usage(String::from_utf8_lossy(&text)).into_response()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use interprocess::local_socket::{
        GenericFilePath, ListenerOptions, ToFsName as _,
        tokio::Stream,
        traits::tokio::{Listener as _, Stream as _},
    };
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// The clock goes ahead whenever everybody waits.
    #[tokio::test(start_paused = true)]
    async fn who_never_asks_or_never_ends_is_not_waited_for() {
        let path = std::env::temp_dir().join(format!("agent-proxy-bounds-{}", std::process::id()));
        let name = || path.as_path().to_fs_name::<GenericFilePath>().expect("a name");
        let listener = ListenerOptions::new().name(name()).create_tokio().expect("binds");
        let bodies = BodyBudget(Arc::new(Semaphore::new(BODIES / UNIT)));
        let router = Router::new()
            .route("/", axum::routing::post(async |body: Bytes| body.len().to_string()))
            .layer(axum::middleware::from_fn_with_state(bodies.clone(), bounded));
        let (_stop, stopped) = watch::channel(());
        let began = Instant::now();
        for (said, answered) in [
            ("", ""),
            ("POST / HTTP/1.1\r\nhost: x\r\n", ""),
            ("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nab", "HTTP/1.1 408"),
            ("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc", "HTTP/1.1 200"),
        ] {
            let (client, server) = tokio::join!(Stream::connect(name()), listener.accept());
            let (mut client, server) = (client.expect("connected"), server.expect("accepted"));
            let room = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("room");
            let place = ConnectionPlace { _room: room, _of_address: None };
            tokio::spawn(connection(server, router.clone(), Peer::default(), place, stopped.clone()));
            client.write_all(said.as_bytes()).await.expect("written");
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.expect("its end");
            assert!(answer.starts_with(answered) && answer.is_empty() == answered.is_empty(), "{said:?}: {answer}");
        }
        assert!(began.elapsed() < HEAD_TIME, "on that clock, not on ours");
        assert_eq!(bodies.0.available_permits(), BODIES / UNIT);
    }

    #[test]
    fn an_address_has_a_part_of_the_connections() {
        let counts = AddressCounts::default();
        let address = |last| IpAddr::from([192, 0, 2, last]);
        let taken: Vec<_> = (0..3).map(|_| counts.take(address(1), 3).expect("room")).collect();
        assert!(counts.take(address(1), 3).is_none(), "no more of this one");
        let _other = counts.take(address(2), 3).expect("room for another");
        drop(taken);
        assert!(counts.take(address(1), 3).is_some(), "room again");
    }

    #[test]
    fn connections_leave_most_of_the_descriptors_to_sessions() {
        for (limit, most) in [(64, 8), (128, 16), (1024, 128), (1 << 20, 1024)] {
            assert_eq!(connections(limit), most);
        }
    }
}
