//! Connection to the engine.

use std::{path::PathBuf, time::Duration};

use async_nats::{
    Client, ConnectOptions, Event,
    jetstream::{Context, context::ContextBuilder},
};
use tokio::time::{Instant, sleep};

use crate::{
    error::{EngineError, JoinError},
    names::NodeName,
};

/// Time for the first connection.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// Time for an answer of the engine. What takes longer has an unknown outcome, and is tried again.
const ENGINE_TIME: Duration = Duration::from_secs(2);
/// Time between two looks whether the engine is ready.
const READY_PAUSE: Duration = Duration::from_millis(250);
/// Time between pings; the connection is made anew after two without an answer.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// Servers of the engine, and what a node shows them to be let in.
#[derive(Clone, Debug, Default)]
pub struct EngineAddress {
    /// Addresses: `nats://HOST:4222`, `tls://HOST:4222`.
    pub servers: Vec<String>,
    /// File with a user's JWT and its key, as `nsc` and `nats auth` write them.
    pub credentials: Option<PathBuf>,
    /// File with the seed of an nkey.
    pub nkey: Option<PathBuf>,
    /// Certificate of the authority that signed the servers' certificates, in PEM; else those of the system count.
    pub tls_ca: Option<PathBuf>,
    /// Certificate of this node and its key, in PEM, for servers that ask for one.
    pub tls_identity: Option<(PathBuf, PathBuf)>,
}

/// Connects to the engine.
pub(crate) async fn connect(address: &EngineAddress, node: &NodeName) -> Result<(Client, Context), JoinError> {
    let servers = address.servers.join(",");
    let mut options = ConnectOptions::new()
        .name(format!("agent-proxy {node}"))
        .custom_inbox_prefix(inbox_prefix(node))
        .ping_interval(PING_INTERVAL)
        .connection_timeout(CONNECT_TIME / 2)
        .request_timeout(Some(ENGINE_TIME))
        .event_callback(report);
    if let Some(path) = &address.credentials {
        options = options.credentials_file(path).await.map_err(|source| file(path, source))?;
    }
    if let Some(path) = &address.nkey {
        let seed = tokio::fs::read_to_string(path).await.map_err(|source| file(path, source))?;
        options = options.nkey(seed.trim().to_owned());
    }
    if let Some(path) = &address.tls_ca {
        // Read by the client at each connection: a file that is not there is told here.
        tokio::fs::metadata(path).await.map_err(|source| file(path, source))?;
        options = options.add_root_certificates(path.clone()).require_tls(true);
    }
    if let Some((certificate, key)) = &address.tls_identity {
        options = options.add_client_certificate(certificate.clone(), key.clone()).require_tls(true);
    }
    let unreachable = |source| JoinError::Unreachable { servers: servers.clone(), within: CONNECT_TIME, source };
    let connected = tokio::time::timeout(CONNECT_TIME, options.connect(&address.servers)).await;
    let client = match connected {
        Ok(Ok(client)) => client,
        Ok(Err(error)) => return Err(unreachable(Some(error.into()))),
        Err(_) => return Err(unreachable(None)),
    };
    let version = client.server_info().version;
    if !client.is_server_compatible(2, 12, 0) {
        return Err(JoinError::TooOld { version });
    }
    let context = ContextBuilder::new().timeout(ENGINE_TIME).build(client.clone());
    let deadline = Instant::now() + CONNECT_TIME;
    loop {
        match context.query_account().await {
            Ok(_) => return Ok((client, context)),
            // Servers that were just started elect their leader first.
            Err(error) if Instant::now() < deadline => {
                tracing::debug!(%error, "the fleet's engine is not ready");
                sleep(READY_PAUSE).await;
            }
            Err(error) => {
                let target = format!("node {node} within {CONNECT_TIME:?} (start nats-server with -js)");
                return Err(EngineError::new("offer JetStream to", target, error).into());
            }
        }
    }
}

/// Beginning of the subjects on which a node hears answers, which its rights name.
pub(crate) fn inbox_prefix(node: &NodeName) -> String {
    format!("_INBOX.{node}")
}

fn file(path: &std::path::Path, source: std::io::Error) -> JoinError {
    JoinError::File { path: path.to_owned(), source }
}

/// Logs what becomes of the connection. A refused subscription is told here and nowhere else.
async fn report(event: Event) {
    match event {
        Event::Connected => tracing::info!("connected to the fleet's engine"),
        Event::Disconnected => tracing::warn!("the connection to the fleet's engine is lost: it is made anew"),
        Event::ServerError(error) => tracing::error!(%error, "the fleet's engine refused something"),
        Event::ClientError(error) => tracing::warn!(%error, "the connection to the fleet's engine failed"),
        Event::SlowConsumer(subscription) => {
            tracing::error!(subscription, "a message of the fleet was dropped: this node reads too slowly");
        }
        Event::LameDuckMode => tracing::info!("a server of the fleet's engine is about to end"),
        Event::Draining | Event::Closed => {}
    }
}
