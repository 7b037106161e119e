//! Webhooks: those of others become messages of free streams, and ours tell receivers of permission requests, ends and budgets.

mod command;
mod config;
mod cursor;
mod incoming;
mod links;
mod message;
mod outgoing;
mod signature;
mod turn;

use std::{
    collections::BTreeMap,
    fmt,
    fs::DirBuilder,
    future::Future,
    io,
    os::unix::fs::DirBuilderExt as _,
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::response::Response;
use proxy_manager::{FeedStart, Json, ProxyManager};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::task::{JoinSet, spawn_blocking};

use self::{
    config::{RetryPolicy, WebhookTarget},
    cursor::{CursorFile, DeliveryCursor},
    links::PermissionLinks,
    message::{AskCallback, CALLBACK_MEMBER},
    outgoing::{DeliveryContext, DeliveryWorker, Receiver},
};
pub use self::{
    config::{WebhookConfig, WebhookFile},
    signature::WebhookSender,
};
pub(crate) use self::{incoming::MAX_DELIVERY, links::LinkForm};
use crate::{ProblemDetails, ServerMetrics, requests::RouteResult};

/// Folder of cursors and the key of links, in the state directory.
const FOLDER: &str = "webhooks";
/// Name of the receiver of callbacks. No configured one begins with a dot.
const CALLBACKS: &str = ".callbacks";

/// Request with a message of ours.
#[derive(Clone)]
pub struct WebhookRequest {
    /// Address, by `http` or `https`.
    pub url: String,
    /// Value of the header `webhook-id`.
    pub id: String,
    /// Value of the header `webhook-timestamp`.
    pub timestamp: u64,
    /// Value of the header `webhook-signature`.
    pub signature: String,
    /// JSON.
    pub body: Vec<u8>,
    /// Time for all of it.
    pub timeout: Duration,
}

impl fmt::Debug for WebhookRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An address may be a secret.
        f.debug_struct("WebhookRequest").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Sends a request by POST, follows no redirection, and returns the status of the answer.
pub type WebhookSend =
    Arc<dyn Fn(WebhookRequest) -> Pin<Box<dyn Future<Output = io::Result<u16>> + Send>> + Send + Sync>;

/// Webhooks of a server. Clones share them; with the last one the deliveries end.
#[derive(Clone)]
pub struct Webhooks(Arc<WebhookState>);

struct WebhookState {
    config: WebhookConfig,
    links: Option<Arc<PermissionLinks>>,
    counts: DeliveryCounts,
    /// Tasks of the receivers.
    _workers: JoinSet<()>,
}

impl fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhooks").finish_non_exhaustive()
    }
}

/// Receiver or sender, as it is listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WebhookStatus {
    /// Name in `webhooks.toml`.
    pub name: String,
    /// `in`, or `out`; `callbacks` for those of asks.
    pub direction: String,
    /// The sender, or `url` or `command`.
    pub kind: String,
    /// Deliveries since the server's start, by outcome: `accepted`, `duplicate`, `verified`, `refused`, `failed` of one that comes in;
    /// `delivered`, `retried`, `abandoned` of one that goes out.
    pub counts: BTreeMap<String, u64>,
    /// Messages that wait, as far as they are read.
    pub waiting: usize,
    /// The last failure.
    pub last_error: Option<String>,
}

/// Counts of deliveries, for the list and the metrics.
#[derive(Clone, Debug, Default)]
pub(super) struct DeliveryCounts {
    statuses: Arc<Mutex<BTreeMap<(bool, String), WebhookStatus>>>,
    metrics: Option<ServerMetrics>,
}

impl DeliveryCounts {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(bool, String), WebhookStatus>> {
        self.statuses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, name: &str, direction: &str, kind: &str) {
        let (name, direction, kind) = (name.to_owned(), direction.to_owned(), kind.to_owned());
        let status = WebhookStatus { name: name.clone(), direction, kind, ..WebhookStatus::default() };
        let key = (status.direction == "in", name);
        self.lock().insert(key, status);
    }

    fn update(&self, is_in: bool, name: &str, update: impl FnOnce(&mut WebhookStatus)) {
        if let Some(status) = self.lock().get_mut(&(is_in, name.to_owned())) {
            update(status);
        }
    }

    fn count_in(&self, is_in: bool, name: &str, outcome: &str) {
        self.update(is_in, name, |status| *status.counts.entry(outcome.to_owned()).or_default() += 1);
        if let Some(metrics) = &self.metrics {
            metrics.count_webhook(if is_in { "in" } else { "out" }, name.trim_start_matches('.'), outcome);
        }
    }

    fn count(&self, name: &str, outcome: &str) {
        self.count_in(false, name, outcome);
    }

    fn set_waiting(&self, name: &str, waiting: usize) {
        self.update(false, name, |status| status.waiting = waiting);
    }

    fn set_error(&self, name: &str, error: &str) {
        self.update(false, name, |status| status.last_error = Some(error.to_owned()));
    }
}

impl Webhooks {
    /// Takes webhooks, and begins to send ours: with the events that come from now on, and those since the last start that were not
    /// delivered.
    ///
    /// # Errors
    /// `invalid-config` where ours are to be sent without a state directory; `failed` where its files cannot be used.
    pub async fn start(
        manager: &ProxyManager,
        config: WebhookConfig,
        state_dir: Option<&Path>,
        send: WebhookSend,
        metrics: Option<ServerMetrics>,
    ) -> Result<Self, ProblemDetails> {
        let counts = DeliveryCounts { metrics, ..DeliveryCounts::default() };
        for (name, hook) in &config.incoming {
            let sender = match hook.sender {
                WebhookSender::Github => "github",
                WebhookSender::Slack => "slack",
                WebhookSender::Hmac => "hmac",
            };
            counts.add(name, "in", sender);
        }
        let mut workers = JoinSet::new();
        let Some(state_dir) = state_dir else {
            if config.sends() || !config.incoming.is_empty() {
                let detail =
                    "webhooks.toml: webhooks are stored in the event log: start the server with --state-dir DIRECTORY";
                return Err(ProblemDetails::new("invalid-config", detail));
            }
            return Ok(Self(Arc::new(WebhookState { config, links: None, counts, _workers: workers })));
        };
        let folder = state_dir.join(FOLDER);
        let failed = |what: &str, error: &dyn fmt::Display| {
            ProblemDetails::failed(format!("webhooks: {what} in {} failed: {error}", folder.display()))
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .map_err(|error| failed("making a folder", &error))?;
        let links = config
            .links
            .base_url
            .clone()
            .map(|base| PermissionLinks::open(&folder.join("links.key"), base, config.links.life).map(Arc::new));
        let links = links.transpose().map_err(|error| failed("taking the key of links", &error))?;
        let mut receivers: Vec<(String, Receiver, RetryPolicy)> = Vec::new();
        for hook in config.outgoing.clone() {
            let kind = if matches!(hook.target, WebhookTarget::Url(..)) { "url" } else { "command" };
            counts.add(&hook.name, "out", kind);
            receivers.push(Receiver::of(hook));
        }
        if let Some(callbacks) = config.callbacks.clone() {
            counts.add(CALLBACKS, "callbacks", "url");
            let receiver = Receiver::Callbacks { hosts: callbacks.hosts, key: callbacks.key };
            receivers.push((CALLBACKS.to_owned(), receiver, callbacks.retry));
        }
        for (name, receiver, retry) in receivers {
            let file = CursorFile::new(folder.join(format!("{name}.json")));
            let reading = file.clone();
            let read =
                spawn_blocking(move || reading.read()).await.map_err(|error| failed("reading a cursor", &error))?;
            let known = read.map_err(|error| failed(&format!("reading the cursor of {name}"), &error))?;
            let start = known.as_ref().map_or(FeedStart::Latest, |cursor| FeedStart::After(cursor.position));
            let feed = manager.follow_all(start).await?;
            let cursor = match known {
                Some(cursor) => cursor,
                None => {
                    // What is configured now gets what comes from now on, whenever that is delivered.
                    let cursor = DeliveryCursor { position: feed.position(), ..DeliveryCursor::default() };
                    let (new, first) = (file.clone(), cursor.clone());
                    let written = spawn_blocking(move || new.write(&first)).await;
                    let written = written.map_err(|error| failed("writing a cursor", &error))?;
                    written.map_err(|error| failed(&format!("writing the cursor of {name}"), &error))?;
                    cursor
                }
            };
            let context = DeliveryContext {
                name,
                receiver: Arc::new(receiver),
                retry,
                links: links.clone(),
                send: send.clone(),
                counts: counts.clone(),
            };
            workers.spawn(DeliveryWorker::new(context, manager.clone(), feed, file, cursor).run());
        }
        Ok(Self(Arc::new(WebhookState { config, links, counts, _workers: workers })))
    }

    fn count_received(&self, name: &str, outcome: &str) {
        self.0.counts.count_in(true, name, outcome);
    }

    /// Lists senders and receivers.
    pub(crate) fn statuses(&self) -> Vec<WebhookStatus> {
        let mut statuses: Vec<_> = self.0.counts.lock().values().cloned().collect();
        for status in &mut statuses {
            status.name = status.name.trim_start_matches('.').to_owned();
        }
        statuses
    }

    /// Shows the page of a link.
    pub(crate) fn show_link(&self, manager: &ProxyManager, token: &str) -> Response {
        self.0.links.as_ref().map_or_else(links::unknown_link, |links| links.show(manager, token))
    }

    /// Answers by a link.
    pub(crate) async fn answer_link(&self, manager: &ProxyManager, token: &str) -> Response {
        match &self.0.links {
            Some(links) => links.answer(manager, token).await,
            None => links::unknown_link(),
        }
    }
}

/// Checks the address of an ask's callback. Returns what the metadata of its prompt says of it.
///
/// # Errors
/// `usage` for an address that is none; `refused` for a host that is not allowed.
pub(crate) fn callback_metadata(webhooks: Option<&Webhooks>, url: String, context: Value) -> RouteResult<Value> {
    let host = callback_host(&url)?;
    let callbacks = webhooks.and_then(|webhooks| webhooks.0.config.callbacks.as_ref());
    if !callbacks.is_some_and(|callbacks| callbacks.hosts.contains(&host)) {
        let detail = format!(
            "callback: this server calls no address of {host:?}: add it to `hosts` of [callbacks] in webhooks.toml, with the port if \
             the address names one"
        );
        return Err(ProblemDetails::new("refused", detail));
    }
    serde_json::to_value(AskCallback { url, context }).map_err(|error| ProblemDetails::failed(error.to_string()))
}

/// Returns the host of a callback's address, with the port if it names one.
///
/// # Errors
/// `usage`.
pub(crate) fn callback_host(url: &str) -> RouteResult<String> {
    config::check_url(url).map_err(|why| ProblemDetails::usage(format!("callback: {why}")))
}

/// Adds the callback of an ask to the metadata of its prompt.
///
/// # Errors
/// `usage` for metadata that is no object.
pub(crate) fn with_callback(metadata: Option<Json>, callback: Value) -> RouteResult<Json> {
    let mut metadata = metadata.map_or_else(|| Value::Object(Map::new()), |metadata| metadata.value());
    let Some(members) = metadata.as_object_mut() else {
        return Err(ProblemDetails::usage("metadata has to be a JSON object"));
    };
    members.insert(CALLBACK_MEMBER.to_owned(), callback);
    Ok(Json::from(&metadata))
}

/// Refuses metadata of a caller's that would be a callback: those are checked.
///
/// # Errors
/// `usage`.
pub(crate) fn check_metadata(metadata: Option<&Json>) -> RouteResult<()> {
    if metadata.is_some_and(|metadata| metadata.value().get(CALLBACK_MEMBER).is_some()) {
        let detail = format!("metadata: the member {CALLBACK_MEMBER} is the server's own: give `callback` to an ask");
        return Err(ProblemDetails::usage(detail));
    }
    Ok(())
}
