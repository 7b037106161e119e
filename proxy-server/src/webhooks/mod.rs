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
    collections::{BTreeMap, HashMap},
    fmt,
    fs::DirBuilder,
    future::Future,
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use api_types::api::WebhookStatus;
use axum::response::Response;
use proxy_manager::{Json, ProxyManager};
use serde_json::{Map, Value};
use tokio::{sync::Mutex as AsyncMutex, task::spawn_blocking};

pub use self::{
    config::{WebhookConfig, WebhookFile},
    signature::WebhookSender,
};
use self::{
    cursor::CursorFile,
    links::PermissionLinks,
    message::{AskCallback, CALLBACK_MEMBER},
    outgoing::{DeliveryContext, DeliveryTask, FeedPlace, Receiver},
};
pub(crate) use self::{incoming::MAX_DELIVERY, links::LinkForm};
use crate::{ProblemDetails, ServerMetrics, access::RateBucket, requests::RouteResult};

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
    /// Folder of cursors and keys; `None` without a state directory.
    folder: Option<PathBuf>,
    send: WebhookSend,
    counts: DeliveryCounts,
    active: Mutex<Arc<ActiveWebhooks>>,
    /// Rates of the senders.
    rates: Mutex<HashMap<String, RateBucket>>,
    /// One reload at a time has them.
    tasks: AsyncMutex<DeliveryTasks>,
}

/// Deliveries by the receiver's name.
#[derive(Debug, Default)]
struct DeliveryTasks {
    /// To receivers that are configured.
    active: HashMap<String, DeliveryTask>,
    /// To those that are configured no more, whose tries still run: who has such a name next goes on after them.
    ending: HashMap<String, DeliveryTask>,
}

/// Configuration that is in use.
#[derive(Debug, Default)]
struct ActiveWebhooks {
    config: WebhookConfig,
    links: Option<Arc<PermissionLinks>>,
}

impl fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhooks").finish_non_exhaustive()
    }
}

/// Counts of deliveries, for the list and the metrics.
#[derive(Clone, Debug, Default)]
pub(super) struct DeliveryCounts {
    statuses: Arc<Mutex<BTreeMap<(bool, String), WebhookStatus>>>,
    metrics: Option<ServerMetrics>,
}

impl DeliveryCounts {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(bool, String), WebhookStatus>> {
        lock(&self.statuses)
    }

    /// Lists these senders and receivers, with what was counted of them before.
    fn list(&self, senders: Vec<(&str, &str)>, receivers: Vec<(&str, &Receiver)>) {
        let mut statuses = self.lock();
        let mut known = std::mem::take(&mut *statuses);
        let mut add = |name: &str, direction: &str, kind: &str| {
            let key = (direction == "in", name.to_owned());
            let status = known.remove(&key).unwrap_or_default();
            let (name, direction, kind) = (name.to_owned(), direction.to_owned(), kind.to_owned());
            statuses.insert(key, WebhookStatus { name, direction, kind, ..status });
        };
        senders.into_iter().for_each(|(name, kind)| add(name, "in", kind));
        for (name, receiver) in receivers {
            add(name, if name == CALLBACKS { "callbacks" } else { "out" }, receiver.kind());
        }
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

impl WebhookState {
    /// Makes the folder, if the configuration needs one. Returns `None` if it does not, and there is no state directory.
    async fn prepare_folder(&self, config: &WebhookConfig) -> Result<Option<PathBuf>, ProblemDetails> {
        let Some(folder) = self.folder.clone() else {
            if !config.is_empty() {
                let detail =
                    "webhooks.toml: webhooks are stored in the event log: start the server with --state-dir DIRECTORY";
                return Err(ProblemDetails::new("invalid-config", detail));
            }
            return Ok(None);
        };
        let path = folder.clone();
        let make = move || DirBuilder::new().recursive(true).mode(0o700).create(path);
        spawn_blocking(make).await.map_err(io::Error::other).flatten().map_err(|error| failed(&folder, &error))?;
        Ok(Some(folder))
    }
}

fn failed(folder: &Path, error: &dyn fmt::Display) -> ProblemDetails {
    ProblemDetails::failed(format!("webhooks: the files in {} cannot be used: {error}", folder.display()))
}

fn cursor_file(folder: &Path, name: &str) -> CursorFile {
    CursorFile::new(folder.join(format!("{name}.json")))
}

async fn open_links(
    folder: &Path,
    config: &WebhookConfig,
    before: Option<Arc<PermissionLinks>>,
) -> Result<Option<Arc<PermissionLinks>>, ProblemDetails> {
    let Some(base) = config.links.base_url.clone() else { return Ok(None) };
    let (file, life) = (folder.join("links.key"), config.links.life);
    let open = move || PermissionLinks::open(&file, base, life, before.as_deref());
    let opened = spawn_blocking(open).await.map_err(io::Error::other).flatten();
    opened.map(|links| Some(Arc::new(links))).map_err(|error| failed(folder, &error))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Webhooks {
    /// Takes webhooks, and begins to send ours: with the events that come from now on, and those since the last start that were not
    /// delivered.
    ///
    /// # Errors
    /// `invalid-config` where webhooks are configured without a state directory; `failed` where its files cannot be used.
    pub async fn start(
        manager: &ProxyManager,
        config: WebhookConfig,
        state_dir: Option<&Path>,
        send: WebhookSend,
        metrics: Option<ServerMetrics>,
    ) -> Result<Self, ProblemDetails> {
        let webhooks = Self(Arc::new(WebhookState {
            folder: state_dir.map(|directory| directory.join(FOLDER)),
            send,
            counts: DeliveryCounts { metrics, ..DeliveryCounts::default() },
            active: Mutex::default(),
            rates: Mutex::default(),
            tasks: AsyncMutex::default(),
        }));
        webhooks.reload(manager, config).await?;
        Ok(webhooks)
    }

    /// Uses another configuration from now on, and returns what is different. Entries that are the same go on undisturbed. A receiver that
    /// changed goes on where it was, once the tries that run have ended.
    ///
    /// # Errors
    /// As [`Webhooks::start`]: the configuration before stays in use.
    pub async fn reload(&self, manager: &ProxyManager, config: WebhookConfig) -> Result<Vec<String>, ProblemDetails> {
        let state = &*self.0;
        let mut tasks = state.tasks.lock().await;
        let DeliveryTasks { active, ending } = &mut *tasks;
        let before = self.active();
        let changes = before.config.changes(&config);
        if changes.is_empty() {
            return Ok(changes);
        }
        let folder = state.prepare_folder(&config).await?;
        let same_links = before.config.links == config.links;
        let links = match (&folder, same_links) {
            (_, true) => before.links.clone(),
            (Some(folder), false) => open_links(folder, &config, before.links.clone()).await?,
            (None, false) => None,
        };
        let (old, new) = (before.config.receivers(), config.receivers());
        // Whatever can fail comes first.
        let mut places = HashMap::new();
        ending.retain(|_, task| !task.has_ended());
        for name in new.keys().filter(|name| !active.contains_key(*name) && !ending.contains_key(*name)) {
            let Some(folder) = &folder else { continue };
            let place = FeedPlace::find(manager, cursor_file(folder, name)).await;
            places.insert(name.clone(), place.map_err(|error| failed(folder, &error))?);
        }
        let incoming = config.incoming.iter().map(|(name, hook)| (name.as_str(), hook.sender.name()));
        state
            .counts
            .list(incoming.collect(), new.iter().map(|(name, (receiver, _))| (name.as_str(), receiver)).collect());
        lock(&state.rates).retain(|name, _| config.incoming.contains_key(name));
        *lock(&state.active) = Arc::new(ActiveWebhooks { config, links: links.clone() });
        for (name, mut task) in active.extract_if(|name, _| !new.contains_key(name)) {
            task.begin_end();
            ending.insert(name, task);
        }
        for (name, (receiver, retry)) in new {
            let is_same = same_links && old.get(&name).is_some_and(|old| *old == (receiver.clone(), retry));
            let context = DeliveryContext {
                name: name.clone(),
                receiver: Arc::new(receiver),
                retry,
                links: links.clone(),
                send: state.send.clone(),
                counts: state.counts.clone(),
            };
            let before = active.remove(&name).or_else(|| ending.remove(&name));
            let task = match (before, places.remove(&name), &folder) {
                (Some(task), ..) if is_same => task,
                (Some(before), _, Some(folder)) => {
                    DeliveryTask::replace(before, context, manager.clone(), cursor_file(folder, &name))
                }
                (None, Some(place), _) => DeliveryTask::start(context, manager.clone(), place),
                _ => continue,
            };
            active.insert(name, task);
        }
        Ok(changes)
    }

    fn active(&self) -> Arc<ActiveWebhooks> {
        lock(&self.0.active).clone()
    }

    /// Returns true if nothing is configured.
    pub(crate) fn is_empty(&self) -> bool {
        self.active().config.is_empty()
    }

    /// Counts a delivery of a sender.
    ///
    /// # Errors
    /// `rate-limited` with the time until the next one is taken.
    fn count_delivery(&self, name: &str, per_minute: u32) -> RouteResult<()> {
        let (now, most) = (Instant::now(), f64::from(per_minute));
        let mut rates = lock(&self.0.rates);
        let bucket = rates.entry(name.to_owned()).or_insert_with(|| RateBucket::full(most, now));
        bucket.take(most / 60.0, most, now).map_err(|after| {
            let detail = format!(
                "webhook {name:?}: more than {per_minute} deliveries a minute: send it again in {} s, or set per_minute of [in.{name}] in \
                 webhooks.toml",
                after.as_secs() + 1
            );
            ProblemDetails::rate_limited(detail, after)
        })
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
        self.active().links.as_ref().map_or_else(links::unknown_link, |links| links.show(manager, token))
    }

    /// Answers by a link.
    pub(crate) async fn answer_link(&self, manager: &ProxyManager, token: &str) -> Response {
        match &self.active().links {
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
    let active = webhooks.map(Webhooks::active).unwrap_or_default();
    if !active.config.callbacks.as_ref().is_some_and(|callbacks| callbacks.hosts.contains(&host)) {
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
