//! Deliveries to one receiver: from the event log, in the order of each session, at least once.
//!
//! What waits is in the log; a bounded part of it is in memory. A session's next message goes when the one before was taken or given up,
//! and that is on the disk first. So a daemon that is killed sends at most the messages again that were on their way, with their ids.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use ipc_protocol::ErrorChain;
use proxy_manager::{Envelope, EventFeed, FeedStart, Json, NewEvent, ProxyManager, SessionId};
use serde_json::json;
use tokio::{
    sync::watch,
    task::{JoinHandle, JoinSet, spawn_blocking},
    time::sleep,
};

use super::{
    DeliveryCounts, WebhookRequest, WebhookSend,
    command::{self, is_command_session},
    config::{OutgoingHook, RetryPolicy, SessionLabels, WebhookEvent, WebhookTarget, check_url},
    cursor::{CursorFile, DeliveryCursor},
    links::PermissionLinks,
    message::{self, WebhookMessage},
    signature::{WebhookKey, seconds_since_epoch},
};

/// Events that are read at once.
const PAGE: usize = 256;
/// Messages of a receiver in memory.
const MAX_WAITING: usize = 1000;
/// Sessions whose messages are on their way to one receiver at once.
const MAX_RUNNING: usize = 16;
/// Longest pause between two tries.
const MAX_PAUSE: Duration = Duration::from_secs(5 * 60);
/// Pause after a failure of the event log, or of the cursor's file.
const LOG_PAUSE: Duration = Duration::from_secs(1);
/// Positions without a message after which the cursor is written.
const MAX_UNWRITTEN: u64 = 10_000;

/// What a receiver gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Receiver {
    /// Events of a kind, of sessions with labels.
    Hook { target: WebhookTarget, events: Vec<WebhookEvent>, labels: SessionLabels },
    /// Answers of asks, at the addresses that these name.
    Callbacks { hosts: Vec<String>, key: WebhookKey },
}

impl Receiver {
    /// Takes a receiver as it is configured.
    pub(super) fn of(hook: OutgoingHook) -> (Self, RetryPolicy) {
        let OutgoingHook { name: _, target, events, labels, retry } = hook;
        (Self::Hook { target, events, labels }, retry)
    }

    /// Returns its kind, as it is listed.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Hook { target: WebhookTarget::Command(_), .. } => "command",
            Self::Hook { .. } | Self::Callbacks { .. } => "url",
        }
    }

    fn wants(&self, manager: &ProxyManager, envelope: &Envelope) -> bool {
        let Some(kind) = WebhookEvent::of(envelope) else { return false };
        match self {
            Self::Hook { events, labels, .. } => {
                let is_plain = *labels == SessionLabels::default();
                events.contains(&kind)
                    && (is_plain || labels.match_session(manager.record(&envelope.session).ok().as_ref()))
            }
            // A session that ends ends its turn.
            Self::Callbacks { .. } => matches!(kind, WebhookEvent::TurnEnded | WebhookEvent::SessionEnded),
        }
    }
}

/// Parts that all deliveries share.
#[derive(Clone)]
pub(super) struct DeliveryContext {
    pub(super) name: String,
    pub(super) receiver: Arc<Receiver>,
    pub(super) retry: RetryPolicy,
    pub(super) links: Option<Arc<PermissionLinks>>,
    pub(super) send: WebhookSend,
    pub(super) counts: DeliveryCounts,
}

/// Message on its way, or one that waits.
type WaitingEvent = (u64, Arc<Envelope>);

/// Worker of a receiver.
struct DeliveryWorker {
    context: DeliveryContext,
    manager: ProxyManager,
    feed: EventFeed,
    file: CursorFile,
    cursor: DeliveryCursor,
    /// Position that is on the disk.
    written: u64,
    /// Messages of a session in their order; the first is on its way, or about to be.
    lanes: HashMap<SessionId, VecDeque<WaitingEvent>>,
    /// Sessions whose first message is not on its way.
    ready: VecDeque<SessionId>,
    /// Positions of all messages that wait.
    open: BTreeSet<u64>,
    /// Each with true once its message was taken or given up.
    running: JoinSet<(SessionId, u64, bool)>,
    stop: watch::Receiver<()>,
}

/// Deliveries to one receiver. Dropping it begins no further try; the tries that run come to their end.
#[derive(Debug)]
pub(super) struct DeliveryTask {
    /// None once it is to end.
    stop: Option<watch::Sender<()>>,
    task: JoinHandle<()>,
}

impl DeliveryTask {
    /// Delivers from a place on.
    pub(super) fn start(context: DeliveryContext, manager: ProxyManager, place: FeedPlace) -> Self {
        let (stop, stopped) = watch::channel(());
        Self { stop: Some(stop), task: tokio::spawn(DeliveryWorker::new(context, manager, place, stopped).run()) }
    }

    /// Delivers to a receiver that is configured anew: its cursor is read once `before` has written it.
    pub(super) fn replace(before: Self, context: DeliveryContext, manager: ProxyManager, file: CursorFile) -> Self {
        let (stop, mut stopped) = watch::channel(());
        let deliver = async move {
            before.end().await;
            let place = loop {
                match FeedPlace::find(&manager, file.clone()).await {
                    Ok(place) => break place,
                    Err(error) => {
                        tracing::warn!(hook = context.name, %error, "failed to go on with a webhook");
                        context.counts.set_error(&context.name, &error.to_string());
                    }
                }
                if is_stopped_within(LOG_PAUSE, &mut stopped).await {
                    return;
                }
            };
            DeliveryWorker::new(context, manager, place, stopped).run().await;
        };
        Self { stop: Some(stop), task: tokio::spawn(deliver) }
    }

    /// Begins no further try.
    pub(super) fn begin_end(&mut self) {
        self.stop = None;
    }

    /// Returns true once no try runs, and the cursor says so.
    pub(super) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Waits until the tries that run have ended, each in its own time, and the cursor says so.
    async fn end(mut self) {
        self.begin_end();
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the deliveries of a webhook broke off");
        }
    }
}

/// Returns true if there is to be no further try, and false after a pause.
async fn is_stopped_within(pause: Duration, stop: &mut watch::Receiver<()>) -> bool {
    tokio::select! {
        // Nothing is ever sent: its sender was dropped.
        _ = stop.changed() => true,
        () = sleep(pause) => false,
    }
}

/// Place of a receiver in the events of all sessions.
#[derive(Debug)]
pub(super) struct FeedPlace {
    feed: EventFeed,
    file: CursorFile,
    cursor: DeliveryCursor,
}

/// Reason why a receiver has no place.
#[derive(Debug, thiserror::Error)]
#[error("{operation} of a webhook failed: {cause}")]
pub(super) struct FeedPlaceError {
    operation: &'static str,
    cause: String,
}

impl FeedPlace {
    /// Reads the cursor in a file. A receiver that has none gets what comes from now on.
    ///
    /// # Errors
    /// The file cannot be read or written, or is none; the events cannot be read.
    pub(super) async fn find(manager: &ProxyManager, file: CursorFile) -> Result<Self, FeedPlaceError> {
        let reading = file.clone();
        let known = on_disk("reading the cursor", move || reading.read()).await?;
        let start = known.as_ref().map_or(FeedStart::Latest, |cursor| FeedStart::After(cursor.position));
        let feed =
            manager.follow_all(start).await.map_err(|error| FeedPlaceError::new("following the events", &error))?;
        let cursor = match known {
            Some(cursor) => cursor,
            None => {
                // What is configured now gets what comes from now on, whenever that is delivered.
                let cursor = DeliveryCursor { position: feed.position(), ..DeliveryCursor::default() };
                let (new, first) = (file.clone(), cursor.clone());
                on_disk("writing the cursor", move || new.write(&first)).await?;
                cursor
            }
        };
        Ok(Self { feed, file, cursor })
    }
}

async fn on_disk<T: Send + 'static>(
    operation: &'static str,
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, FeedPlaceError> {
    let done = spawn_blocking(work).await.map_err(|error| FeedPlaceError::new(operation, &error))?;
    done.map_err(|error| FeedPlaceError::new(operation, &error))
}

impl FeedPlaceError {
    fn new(operation: &'static str, error: &(dyn std::error::Error + 'static)) -> Self {
        Self { operation, cause: ErrorChain(error).to_string() }
    }
}

impl DeliveryWorker {
    fn new(context: DeliveryContext, manager: ProxyManager, place: FeedPlace, stop: watch::Receiver<()>) -> Self {
        let FeedPlace { feed, file, cursor } = place;
        let written = cursor.position;
        let (lanes, ready, open, running) = Default::default();
        Self { context, manager, feed, file, cursor, written, lanes, ready, open, running, stop }
    }

    /// Delivers until the manager is shut down, or it is stopped and no try runs.
    async fn run(mut self) {
        // Another configuration may have come while this one waited for the one before it.
        let mut is_stopped = self.stop.has_changed().is_err();
        loop {
            if !is_stopped {
                self.start_deliveries();
            } else if self.running.is_empty() {
                return;
            }
            self.context.counts.set_waiting(&self.context.name, self.open.len());
            tokio::select! {
                // First of all: a page that is there begins no further try.
                biased;
                _ = self.stop.changed(), if !is_stopped => is_stopped = true,
                Some(done) = self.running.join_next() => match done {
                    Ok((session, position, true)) => self.finish(session, position).await,
                    // Whoever comes next sends it.
                    Ok((_, _, false)) => {}
                    Err(error) => {
                        tracing::error!(hook = self.context.name, %error, "a delivery broke off: none follows until the next start");
                        return;
                    }
                },
                page = self.feed.next_page(PAGE), if !is_stopped && self.open.len() < MAX_WAITING => match page {
                    Ok(page) => self.take(page).await,
                    Err(proxy_manager::Error::ShutDown) => return,
                    Err(error) => {
                        tracing::warn!(hook = self.context.name, error = %ErrorChain(&error), "failed to read events for a webhook");
                        sleep(LOG_PAUSE).await;
                    }
                },
            }
        }
    }

    async fn take(&mut self, page: Vec<(u64, Arc<Envelope>)>) {
        for (position, envelope) in page {
            let session = envelope.session.as_ref();
            let is_wanted = !is_command_session(session)
                && !self.cursor.covers(session, position)
                && self.context.receiver.wants(&self.manager, &envelope);
            if !is_wanted {
                continue;
            }
            self.open.insert(position);
            let lane = self.lanes.entry(session.clone()).or_default();
            if lane.is_empty() {
                self.ready.push_back(session.clone());
            }
            lane.push_back((position, envelope));
        }
        if self.done_up_to() > self.written + MAX_UNWRITTEN {
            self.cursor.move_to(self.done_up_to());
            self.write_cursor().await;
        }
    }

    /// Position up to which nothing waits.
    fn done_up_to(&self) -> u64 {
        self.open.first().map_or(self.feed.position(), |first| first - 1)
    }

    fn start_deliveries(&mut self) {
        while self.running.len() < MAX_RUNNING
            && let Some(session) = self.ready.pop_front()
        {
            let Some((position, envelope)) = self.lanes.get(&session).and_then(VecDeque::front).cloned() else {
                continue;
            };
            let (context, manager, mut stop) = (self.context.clone(), self.manager.clone(), self.stop.clone());
            self.running.spawn(async move {
                let is_done = context.deliver(&manager, position, &envelope, &mut stop).await;
                (session, position, is_done)
            });
        }
    }

    async fn finish(&mut self, session: SessionId, position: u64) {
        self.open.remove(&position);
        self.cursor.advance(&session, position, self.done_up_to());
        // Before the next one of the session goes.
        self.write_cursor().await;
        if let Some(lane) = self.lanes.get_mut(&session) {
            lane.pop_front();
            if lane.is_empty() {
                self.lanes.remove(&session);
            } else {
                self.ready.push_back(session);
            }
        }
    }

    async fn write_cursor(&mut self) {
        loop {
            let (file, cursor) = (self.file.clone(), self.cursor.clone());
            match spawn_blocking(move || file.write(&cursor)).await {
                Ok(Ok(())) => break self.written = self.cursor.position,
                Ok(Err(error)) => {
                    tracing::warn!(hook = self.context.name, %error, "failed to write the cursor of a webhook");
                    if is_stopped_within(LOG_PAUSE, &mut self.stop).await {
                        break;
                    }
                }
                // The runtime ends.
                Err(_) => break,
            }
        }
    }
}

impl DeliveryContext {
    /// Delivers one message, or gives it up. Returns false if it was stopped before.
    async fn deliver(
        &self,
        manager: &ProxyManager,
        position: u64,
        envelope: &Envelope,
        stop: &mut watch::Receiver<()>,
    ) -> bool {
        let (target, message) = match &*self.receiver {
            Receiver::Hook { target, .. } => {
                let Some(kind) = WebhookEvent::of(envelope) else { return true };
                (target.clone(), message::of_event(manager, self.links.as_deref(), kind, position, envelope).await)
            }
            Receiver::Callbacks { hosts, key } => {
                let Some((url, message)) = message::of_callback(manager, position, envelope).await else { return true };
                // It was checked when it was asked for; the configuration may be another now.
                if !check_url(&url).is_ok_and(|host| hosts.contains(&host)) {
                    let why = "callbacks to its host are not allowed any more";
                    self.give_up(manager, envelope, &message, why).await;
                    return true;
                }
                (WebhookTarget::Url(url, key.clone()), message)
            }
        };
        let (began, mut pause) = (Instant::now(), self.retry.first);
        loop {
            let failure = match self.attempt(manager, &target, &message).await {
                Ok(()) => {
                    self.counts.count(&self.name, "delivered");
                    return true;
                }
                Err(failure) => failure,
            };
            self.counts.set_error(&self.name, &failure.why);
            if failure.is_final || began.elapsed() + pause > self.retry.give_up_after {
                self.give_up(manager, envelope, &message, &failure.why).await;
                return true;
            }
            tracing::info!(
                hook = self.name,
                message = message.id,
                why = failure.why,
                ?pause,
                "a webhook is tried again"
            );
            self.counts.count(&self.name, "retried");
            if is_stopped_within(pause, stop).await {
                return false;
            }
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    async fn attempt(
        &self,
        manager: &ProxyManager,
        target: &WebhookTarget,
        message: &WebhookMessage,
    ) -> Result<(), DeliveryFailure> {
        match target {
            WebhookTarget::Url(url, key) => {
                let timestamp = seconds_since_epoch(std::time::SystemTime::now());
                let request = WebhookRequest {
                    url: url.clone(),
                    id: message.id.clone(),
                    timestamp,
                    signature: key.sign_message(&message.id, timestamp, &message.body),
                    body: message.body.clone(),
                    timeout: self.retry.timeout,
                };
                match (self.send)(request).await {
                    Ok(200..=299) => Ok(()),
                    Ok(status) => Err(DeliveryFailure::of_status(status)),
                    Err(error) => Err(DeliveryFailure { why: error.to_string(), is_final: false }),
                }
            }
            WebhookTarget::Command(argv) => command::run(manager, argv, &message.body, self.retry.timeout)
                .await
                .map_err(|why| DeliveryFailure { why, is_final: false }),
        }
    }

    /// Leaves a message out, with a marker in the log, in the metrics, and in the stream of a session that goes on.
    async fn give_up(&self, manager: &ProxyManager, envelope: &Envelope, message: &WebhookMessage, why: &str) {
        tracing::error!(hook = self.name, message = message.id, session = %envelope.session, why, "a webhook is given up");
        self.counts.count(&self.name, "abandoned");
        let payload = json!({
            "hook": self.name, "id": message.id, "offset": format!("{:020}", envelope.offset), "error": why,
        });
        let payload = Json::from(&payload);
        let event = NewEvent { kind: "webhook:abandoned".to_owned(), version: 1, payload, metadata: None };
        if let Err(error) = manager.append(&envelope.session, event).await {
            tracing::debug!(session = %envelope.session, error = %ErrorChain(&error), "the stream has no marker of a webhook");
        }
    }
}

/// Reason why a try failed.
struct DeliveryFailure {
    why: String,
    /// True if no further try can succeed.
    is_final: bool,
}

impl DeliveryFailure {
    /// Takes an answer. One that is about the message is final; one about access, load or the receiver itself may change.
    fn of_status(status: u16) -> Self {
        let is_final = matches!(status, 400 | 405 | 406 | 410 | 411 | 413..=417 | 422);
        Self { why: format!("the receiver answered {status}"), is_final }
    }
}
