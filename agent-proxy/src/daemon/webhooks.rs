//! Webhooks of the daemon: the file in its configuration directory, and what sends them.

use std::{io, path::Path, sync::Arc};

use agents::ConfigDir;
use hyper::{Method, Request};
use proxy_manager::ProxyManager;
use proxy_server::{ProblemDetails, ServerMetrics, WebhookConfig, WebhookFile, WebhookRequest, WebhookSend, Webhooks};

use super::http_address::HttpAddress;

/// Name of the file.
const FILE: &str = "webhooks.toml";
/// Longest answer of a receiver, of which nothing is used.
const MAX_ANSWER: usize = 64 << 10;

/// Reads the file, and the secrets that it names. Without a file there are no webhooks. Blocks.
///
/// # Errors
/// `invalid-config` with the place.
pub(super) fn read(directory: &ConfigDir) -> Result<WebhookConfig, ProblemDetails> {
    let path = directory.path().join(FILE);
    let wrong =
        |why: &dyn std::fmt::Display| ProblemDetails::new("invalid-config", format!("{}: {why}", path.display()));
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(WebhookConfig::default()),
        Err(error) => return Err(wrong(&error)),
    };
    let file: WebhookFile = toml::from_str(&text).map_err(|error| wrong(&error))?;
    file.resolve(directory, |name| std::env::var(name).ok())
}

/// Begins to take and send webhooks.
///
/// # Errors
/// As [`Webhooks::start`].
pub(super) async fn start(
    manager: &ProxyManager,
    config: WebhookConfig,
    state_dir: Option<&Path>,
    metrics: ServerMetrics,
) -> Result<Webhooks, ProblemDetails> {
    let send: WebhookSend = Arc::new(|request| Box::pin(post(request)));
    Webhooks::start(manager, config, state_dir, send, Some(metrics)).await
}

/// Reads the file again. Returns what is different now.
///
/// # Errors
/// As [`read`] and [`Webhooks::reload`]: the webhooks stay as they were.
pub(super) async fn reload(
    webhooks: &Webhooks,
    manager: &ProxyManager,
    directory: &ConfigDir,
) -> Result<Vec<String>, ProblemDetails> {
    let directory = directory.clone();
    let read = tokio::task::spawn_blocking(move || read(&directory)).await;
    let config = read.map_err(|error| ProblemDetails::failed(format!("reading {FILE} broke off: {error}")))??;
    webhooks.reload(manager, config).await
}

async fn post(request: WebhookRequest) -> io::Result<u16> {
    let WebhookRequest { url, id, timestamp, signature, body, timeout } = request;
    // Certificates are read from files.
    let address = tokio::task::spawn_blocking(move || HttpAddress::parse(&url)).await.map_err(io::Error::other)??;
    let head = Request::builder()
        .method(Method::POST)
        .header("content-type", "application/json")
        .header("user-agent", concat!("agent-proxy/", env!("CARGO_PKG_VERSION")))
        .header("webhook-id", id)
        .header("webhook-timestamp", timestamp)
        .header("webhook-signature", signature);
    let (status, _) = address.send(head, body, MAX_ANSWER, timeout).await?;
    Ok(status.as_u16())
}
