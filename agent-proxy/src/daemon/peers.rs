//! Admission of clients: everybody who reaches the daemon's socket, except the processes of its own sessions. An
//! agent with access would be its own manager.
//!
//! A connection has the pid of the process that made it. Everything that a session starts stays below the fork
//! server, so the ancestors of that process decide. A process that is gone, or whose ancestors cannot be read, is
//! refused too.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use interprocess::local_socket::tokio::Stream;
use proxy_manager::ProcessId;
use registry::{DescriptorUse, local_socket::SocketPeer};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
};

use proxy_server::{Peer, ProblemDetails};

/// Connection of a client.
pub(super) trait ClientStream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> ClientStream for T {}

/// Number of refused clients that get an answer concurrently. Others are disconnected silently: a session must not
/// use up descriptors.
const MAX_REFUSALS: usize = 16;

/// Longest time to send a refused client its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest request head read from a refused client.
const MAX_HEAD: usize = 16 * 1024;

/// The fork servers of now: one that dies is replaced.
type ForkServers = Arc<dyn Fn() -> Vec<ProcessId> + Send + Sync>;

/// Tells processes of our sessions from all others.
#[derive(Clone, derive_more::Debug)]
pub(super) struct PeerGuard {
    #[debug("{:?}", fork_servers())]
    fork_servers: ForkServers,
    /// False where processes of sessions are answered, too.
    refuses: bool,
    refusals: Arc<Semaphore>,
}

impl PeerGuard {
    /// Refuses what is below these fork servers, or notes it.
    pub(super) fn new(fork_servers: impl Fn() -> Vec<ProcessId> + Send + Sync + 'static, refuses: bool) -> Self {
        Self { fork_servers: Arc::new(fork_servers), refuses, refusals: refusals() }
    }

    /// Lists the fork servers whose processes are refused.
    fn refused_tops(&self) -> Vec<ProcessId> {
        if self.refuses { (self.fork_servers)() } else { Vec::new() }
    }

    /// Describes a client that is admitted.
    fn peer(&self, address: Option<SocketAddr>, pid: Option<u32>, user: Option<u32>) -> Peer {
        let tops = if self.refuses { Vec::new() } else { (self.fork_servers)() };
        // Who cannot be looked at may be in one.
        let is_in_session = pid.is_some_and(|pid| !tops.is_empty() && registry::is_below(pid, &tops).unwrap_or(true));
        Peer { address, pid, user, is_in_session }
    }

    /// Returns the connection with its client, if that is admitted; else answers with the reason, and closes it.
    pub(super) fn admit(&self, stream: Stream) -> Option<(Stream, Peer)> {
        let Stream::UdSocket(socket) = &stream;
        let judged = SocketPeer::of(socket).and_then(|peer| {
            let (pid, user) = (peer.pid, peer.user);
            peer.outside(&self.refused_tops(), "this daemon's own sessions").map(|_| (pid, user))
        });
        let why = match judged {
            Ok((pid, user)) => return Some((stream, self.peer(None, Some(pid), Some(user)))),
            Err(why) => why,
        };
        refuse(&self.refusals, stream, refusal(&why));
        None
    }

    /// Returns the connection over the network in the same way.
    pub(super) async fn admit_network(&self, stream: TcpStream) -> Option<(TcpStream, Peer)> {
        let ends = stream.peer_addr().and_then(|client| Ok((client, stream.local_addr()?)));
        let judged = match ends {
            Ok((client, server)) => {
                let (tops, guard) = (self.refused_tops(), self.clone());
                let look = move || {
                    let pid = registry::check_tcp_client(client, server, &tops, "this daemon's own sessions")?;
                    Ok(guard.peer(Some(client), pid, None))
                };
                tokio::task::spawn_blocking(look).await.unwrap_or_else(|error| Err(error.to_string()))
            }
            Err(error) => Err(error.to_string()),
        };
        match judged {
            Ok(peer) => Some((stream, peer)),
            Err(why) => {
                refuse(&self.refusals, stream, refusal(&why));
                None
            }
        }
    }
}

/// Why a client is refused.
fn refusal(why: &str) -> ProblemDetails {
    match registry::descriptors() {
        // To look at it takes one, so nothing was seen.
        Ok(DescriptorUse { limit, free: 0 }) => ProblemDetails::new(
            "fds-exhausted",
            format!(
                "all {limit} file descriptors of the daemon are open: raise the limit (ulimit -n), end sessions or close connections"
            ),
        ),
        _ => {
            let advice = "such clients are refused: start the daemon with `serve --allow-sessions` to answer them";
            ProblemDetails::new("refused", format!("{why}, and {advice}"))
        }
    }
}

/// Room for refused clients.
pub(super) fn refusals() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MAX_REFUSALS))
}

/// Answers whatever a client asks with this, if there is room for one more, and closes the connection.
pub(super) fn refuse(refusals: &Arc<Semaphore>, stream: impl ClientStream, problem: ProblemDetails) {
    tracing::info!(why = problem.detail, "a client is refused");
    if let Ok(place) = refusals.clone().try_acquire_owned() {
        tokio::spawn(async move {
            // Whether it has listened is not our concern.
            let _ = tokio::time::timeout(REQUEST_TIMEOUT, send_refusal(stream, &problem)).await;
            drop(place);
        });
    }
}

/// Answers whatever is asked with the problem.
async fn send_refusal(mut stream: impl ClientStream, problem: &ProblemDetails) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|bytes| bytes == b"\r\n\r\n") && head.len() < MAX_HEAD {
        if stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let body = serde_json::to_string(problem)?;
    let reason = axum::http::StatusCode::from_u16(problem.status).ok().and_then(|status| status.canonical_reason());
    let reason = reason.unwrap_or_default();
    let answer = format!(
        "HTTP/1.1 {} {reason}\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        problem.status,
        body.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    // A close with unread data would be a reset, which can overtake the answer.
    while stream.read(&mut [0; 4096]).await? > 0 {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use interprocess::local_socket::{
        GenericFilePath, ListenerOptions, ToFsName,
        tokio::Listener,
        traits::tokio::{Listener as _, Stream as _},
    };

    use super::*;

    /// Listener that refuses all clients: the tests' own process plays the fork server.
    struct Refusing {
        path: std::path::PathBuf,
        listener: Listener,
        guard: PeerGuard,
    }

    impl Refusing {
        fn new(test: &str) -> Self {
            let path = std::env::temp_dir().join(format!("agent-proxy-peers-{test}-{}", std::process::id()));
            let name = path.as_path().to_fs_name::<GenericFilePath>().expect("a name");
            let listener = ListenerOptions::new().name(name).create_tokio().expect("binds");
            let ourselves = registry::identify(std::process::id()).expect("alive");
            Self { path, listener, guard: PeerGuard::new(move || vec![ourselves], true) }
        }

        /// Returns a client's end of a refused connection.
        async fn connect(&self) -> Stream {
            let name = self.path.as_path().to_fs_name::<GenericFilePath>().expect("a name");
            let (client, server) = tokio::join!(Stream::connect(name), self.listener.accept());
            assert!(self.guard.admit(server.expect("accepted")).is_none());
            client.expect("connected")
        }
    }

    #[tokio::test]
    async fn a_refused_client_is_told_how_to_be_answered() {
        let refusing = Refusing::new("told");
        let mut client = refusing.connect().await;
        client.write_all(b"GET /v1/sessions HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("written");
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n") && answer.contains("--allow-sessions"), "{answer}");
    }

    #[tokio::test]
    async fn silent_clients_keep_no_more_than_so_many_connections() {
        let refusing = Refusing::new("silent");
        let mut told = Vec::new();
        for _ in 0..MAX_REFUSALS {
            told.push(refusing.connect().await);
        }
        let mut cut_off = refusing.connect().await;
        assert_eq!(cut_off.read(&mut [0; 1]).await.expect("its end"), 0);
        assert_eq!(refusing.guard.refusals.available_permits(), 0, "the others may still ask");
    }
}
