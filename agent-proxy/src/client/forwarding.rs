//! What servers need of the client: requests passed on to a daemon, and the daemon's process.

use std::fmt;

use axum::body::Body;
use hyper::{
    Request, Response, StatusCode,
    header::{self, HeaderValue},
};
use hyper_util::rt::TokioIo;
use interprocess::local_socket::tokio::Stream;
use nix::sys::socket::{getsockopt, sockopt};
use proxy_server::{ApiService, ProblemDetails, api::HealthResponse};
use registry::PidFd;

use super::{DaemonClient, SilentDaemon, lost};
use crate::daemon_address::{DaemonAddress, DaemonStream};

impl DaemonClient {
    /// Returns the process of the daemon; `None` if it cannot be seen from here, as from another PID namespace or over the network.
    ///
    /// # Errors
    /// `no-daemon`.
    pub(crate) async fn daemon_process(&self) -> Result<Option<PidFd>, ProblemDetails> {
        let Some(mut pid) = self.listener().await? else { return Ok(None) };
        // A service manager has made it for the daemon. Pids of another namespace are not ours: the fork server tells.
        match self.get::<HealthResponse>("/v1/health").await {
            Ok(health) if registry::identify(health.fork_server.pid).is_ok_and(|found| found == health.fork_server) => {
                pid = health.pid;
            }
            Err(problem) if problem.kind == "deadline" => return Err(problem),
            _ => {}
        }
        Ok(registry::identify(pid).and_then(PidFd::open).ok())
    }

    /// Returns the process of a daemon that does not answer; `None` if it cannot be seen from here, or another program has made its socket.
    pub(crate) async fn silent_daemon(&self) -> Option<SilentDaemon> {
        let pid = self.listener().await.ok().flatten()?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let is_ours = field("Name:").is_some_and(|name| name.starts_with("agent-proxy"));
        is_ours.then(|| SilentDaemon {
            pid,
            is_stopped: field("State:").is_some_and(|state| state.starts_with(['T', 't'])),
        })
    }

    /// Returns the pid of the process that made the daemon's socket; `None` for one that cannot be seen.
    async fn listener(&self) -> Result<Option<u32>, ProblemDetails> {
        let DaemonStream::Local(Stream::UdSocket(socket)) = self.address.connect().await? else { return Ok(None) };
        let pid = getsockopt(&socket, sockopt::PeerCredentials).map_or(0, |peer| peer.pid());
        Ok(u32::try_from(pid).ok().filter(|pid| *pid != 0))
    }

    /// Returns the daemon's routes as a service.
    pub(crate) fn service(&self) -> ApiService {
        let client = self.clone();
        ApiService::new(tower::service_fn(move |request| {
            let client = client.clone();
            async move { client.while_healthy(client.forward(request)).await }
        }))
    }

    /// Returns true for a daemon that a URL names.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self.address, DaemonAddress::Network(_))
    }

    /// Passes a request on to the daemon, whatever its answer is, and a connection of another protocol after it.
    ///
    /// # Errors
    /// Same as [`DaemonClient::get`].
    pub(crate) async fn pass_on(&self, mut request: Request<Body>) -> Result<Response<Body>, ProblemDetails> {
        let upgrade = request.headers().contains_key(header::UPGRADE).then(|| hyper::upgrade::on(&mut request));
        let mut response = self.while_healthy(self.forward(request)).await?;
        if let Some(of_client) = upgrade.filter(|_| response.status() == StatusCode::SWITCHING_PROTOCOLS) {
            let of_daemon = hyper::upgrade::on(&mut response);
            tokio::spawn(async move {
                let (Ok(client), Ok(daemon)) = tokio::join!(of_client, of_daemon) else { return };
                // Either end may go at any time.
                let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(daemon)).await;
            });
        }
        Ok(response)
    }

    /// Passes a request on to the daemon, whatever its answer is.
    async fn forward(&self, mut request: Request<Body>) -> Result<Response<Body>, ProblemDetails> {
        self.address.complete(&mut request)?;
        let mut sender = self.handshake().await?;
        let response = sender.send_request(request).await.map_err(|error| lost(&self.address, &error))?;
        Ok(response.map(Body::new))
    }
}

impl DaemonAddress {
    /// Adds to a request for a path of the API what this address needs.
    ///
    /// # Errors
    /// `failed` for a path that is none.
    fn complete<B>(&self, request: &mut Request<B>) -> Result<(), ProblemDetails> {
        let Self::Network(_) = self else { return Ok(()) };
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let failed = |error: &dyn fmt::Display| ProblemDetails::failed(format!("request {path}: {error}"));
        let target = self.target(path).parse().map_err(|error| failed(&error))?;
        let host = HeaderValue::from_str(self.host()).map_err(|error| failed(&error))?;
        *request.uri_mut() = target;
        request.headers_mut().insert(header::HOST, host);
        request.headers_mut().extend(self.authorization().map(|value| (header::AUTHORIZATION, value)));
        Ok(())
    }
}
