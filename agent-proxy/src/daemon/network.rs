//! Listeners of the network. Each request there needs a token; processes of our own sessions are refused as on the local socket.

use std::{io, net::SocketAddr, time::Duration};

use proxy_server::{Peer, ProblemDetails};
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::peers::PeerGuard;

/// Pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(50);
/// Time for a TLS handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// Listening end of an address.
#[derive(Debug)]
pub(super) struct NetworkListener {
    listener: TcpListener,
    guard: PeerGuard,
}

impl NetworkListener {
    /// Binds an address, whose clients the guard checks.
    ///
    /// # Errors
    /// `usage` for an address that others than this machine reach, unless it is encrypted or that is said to be wanted; `failed` where it cannot be
    /// bound.
    pub(super) async fn bind(
        address: SocketAddr,
        tls: bool,
        insecure: bool,
        guard: PeerGuard,
    ) -> Result<Self, ProblemDetails> {
        if !address.ip().is_loopback() && !tls && !insecure {
            return Err(ProblemDetails::usage(format!(
                "{address} can be reached from other machines, and what is sent there is not encrypted: listen on 127.0.0.1 behind \
                 a proxy with TLS, give --tls-cert and --tls-key, or say --insecure"
            )));
        }
        let failed = |error: io::Error| ProblemDetails::failed(format!("cannot listen on {address}: {error}"));
        Ok(Self { listener: TcpListener::bind(address).await.map_err(failed)?, guard })
    }

    /// Address with the port that was bound.
    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Waits for the next client.
    ///
    /// # Cancel safety
    /// Cancel safe: no client is lost.
    pub(super) async fn accept(&self) -> NetworkClient {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => return NetworkClient { stream, guard: self.guard.clone() },
                Err(error) => {
                    // Out of descriptors, or the client is gone already: neither ends the daemon.
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

/// Client that was not looked at yet.
#[derive(Debug)]
pub(super) struct NetworkClient {
    pub(super) stream: TcpStream,
    guard: PeerGuard,
}

impl NetworkClient {
    /// Returns the connection if the client is admitted; else it gets the reason.
    pub(super) async fn admit(self) -> Option<(TcpStream, Peer)> {
        // An answer waits for no second packet.
        let _ = self.stream.set_nodelay(true);
        self.guard.admit_network(self.stream).await
    }

    /// Returns the connection, encrypted, if the client is admitted.
    pub(super) async fn admit_encrypted(self, acceptor: TlsAcceptor) -> Option<(TlsStream<TcpStream>, Peer)> {
        let (stream, peer) = self.admit().await?;
        match timeout(HANDSHAKE_TIME, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => Some((stream, peer)),
            Ok(Err(error)) => {
                tracing::debug!(%error, "a TLS handshake failed");
                None
            }
            Err(_) => {
                tracing::debug!("a TLS handshake took longer than {HANDSHAKE_TIME:?}");
                None
            }
        }
    }
}
