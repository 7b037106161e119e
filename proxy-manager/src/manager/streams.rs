//! Streams that exist before their session, or without one.
//!
//! Whoever appends to an id that no session has begins its stream. The first event may be the action that asks for the session, which
//! then goes on with that stream. What else is asked for before is told as failed. All of it is durable before the append returns, and done
//! once, as on the stream of a session.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use ipc_protocol::{AgentSessionConfig, Event, SessionId};
use serde::Serialize;
use tokio::{sync::oneshot, time::timeout};

use super::{
    ManagerInner, ProxyManager,
    append::{INTERRUPTED, NewEvent, RequestedAction, UnfinishedActions, find_undone_in},
};
use crate::{
    actions::{ActionVerb, SessionAction},
    blocking::READING,
    error::{Error, Result},
    history::{SessionHistory, StreamContext, Subscription},
    session::{ActionQueue, EventToAppend, name_of},
};

/// Consumer whose cursor tells a stream that began without a session from those of sessions whose record is gone.
const FREE: &str = "free";

/// Most streams without a session.
const MAX_STREAMS: usize = 10_000;

/// Attempts at an append whose session starts or goes meanwhile.
const ATTEMPTS: usize = 8;

/// Error of an action that only a session could do.
const NO_SESSION: &str = "no session has this stream yet: ask for one first, with an action session-create";

/// Stream without a session.
#[derive(derive_more::Debug)]
#[debug("FreeStream({id})")]
pub(super) struct FreeStream {
    id: Arc<SessionId>,
    history: Arc<SessionHistory>,
    action_queue: Arc<ActionQueue>,
    /// True once a session has it. Locked while events get their offsets.
    is_taken: Mutex<bool>,
}

impl FreeStream {
    fn new(id: &SessionId, streams: &StreamContext) -> Self {
        let id = Arc::new(id.clone());
        let (history, mut log) = SessionHistory::new(id.clone(), streams);
        log.keep_open();
        Self { id, history, action_queue: Arc::default(), is_taken: Mutex::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends events; the result is the offset of the last one, once they are durable.
    ///
    /// # Errors
    /// [`Error::Ended`] if a session has the stream.
    fn write(&self, events: Vec<EventToAppend>) -> Result<oneshot::Receiver<Result<u64>>> {
        let is_taken = self.lock();
        if *is_taken {
            return Err(Error::Ended { session: self.id.as_ref().clone(), reason: "a session has its stream".into() });
        }
        let mut log = self.history.reopen();
        log.keep_open();
        // The error may stem from an earlier append whose caller has stopped waiting.
        drop(log.push_failure());
        if self.history.assigned() == 0 {
            log.move_cursor(FREE, 1);
        }
        for EventToAppend { event, metadata, .. } in events {
            log.push_with(0, metadata, event);
        }
        let (reply, answer) = oneshot::channel();
        // A caller that has gone misses nothing.
        log.commit_then(move |kept| _ = reply.send(kept.map_err(Error::from)));
        Ok(answer)
    }

    async fn append(&self, events: Vec<EventToAppend>) -> Result<u64> {
        let gone = || Error::Ended { session: self.id.as_ref().clone(), reason: "its stream is closed".into() };
        self.write(events)?.await.unwrap_or_else(|_| Err(gone()))
    }
}

/// All streams without a session.
#[derive(Debug, Default)]
pub(super) struct FreeStreams(Mutex<HashMap<SessionId, Arc<FreeStream>>>);

impl FreeStreams {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<FreeStream>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, id: &SessionId) -> Option<Arc<FreeStream>> {
        self.lock().get(id).cloned()
    }

    /// History of a stream.
    pub(super) fn history(&self, id: &SessionId) -> Option<Arc<SessionHistory>> {
        self.get(id).map(|stream| stream.history.clone())
    }

    /// Ends the streams for their readers.
    pub(super) fn close(&self) {
        self.lock().values().for_each(|stream| stream.history.close());
    }

    /// Gives a stream to the session that is about to have it.
    pub(super) fn take(&self, id: &SessionId) -> Option<(Arc<SessionHistory>, Arc<ActionQueue>)> {
        let stream = self.lock().remove(id)?;
        *stream.lock() = true;
        Some((stream.history.clone(), stream.action_queue.clone()))
    }

    /// Returns the stream of this id, which begins with this.
    ///
    /// # Errors
    /// [`Error::Busy`] if there are too many.
    fn get_or_begin(&self, id: &SessionId, streams: &StreamContext) -> Result<Arc<FreeStream>> {
        let mut all = self.lock();
        if let Some(known) = all.get(id) {
            return Ok(known.clone());
        }
        if all.len() >= MAX_STREAMS {
            // Those that nobody wrote to or reads.
            all.retain(|_, stream| stream.history.assigned() > 0 || Arc::strong_count(&stream.history) > 1);
        }
        if all.len() >= MAX_STREAMS {
            return Err(Error::Busy { session: id.clone(), permission: None });
        }
        let stream = Arc::new(FreeStream::new(id, streams));
        all.insert(id.clone(), stream.clone());
        Ok(stream)
    }
}

/// Stream without a session, as it is listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FreeStreamInfo {
    /// Id of the stream: that of the session that may have it.
    pub event_stream_id: SessionId,
    /// Offset of its last event. 20 decimal digits in JSON.
    #[serde(serialize_with = "ipc_protocol::offset_text::serialize")]
    #[cfg_attr(feature = "openapi", schemars(with = "ipc_protocol::json_schema::OffsetText"))]
    pub last_offset: u64,
}

impl ProxyManager {
    /// Appends an event to the stream of this id, as [`ProxyManager::append`] does for that of a session. Where there is no such session,
    /// the stream begins, or goes on, without one: the action `session-create` starts the session that goes on with it, and any other action
    /// is told as failed.
    ///
    /// # Errors
    /// As [`ProxyManager::append`]; [`Error::Busy`] if there are 10,000 streams without a session.
    ///
    /// # Cancel safety
    /// As [`ProxyManager::append`].
    pub async fn append_to_stream(&self, id: &SessionId, event: NewEvent) -> Result<u64> {
        self.ensure_ready("appending an event")?;
        for _ in 0..ATTEMPTS {
            match self.append(id, event.clone()).await {
                Err(Error::UnknownSession { .. }) => {}
                appended => return appended,
            }
            self.check_free(id)?;
            let stream = self.inner.free_streams.get_or_begin(id, &self.inner.streams)?;
            match self.append_free(&stream, event.clone()).await {
                // Its session has started since.
                Err(Error::Ended { .. }) if *stream.lock() => {}
                appended => return appended,
            }
        }
        Err(Error::Busy { session: id.clone(), permission: None })
    }

    /// Subscribes to the stream of this id, as [`ProxyManager::subscribe_from`] does, also where it has no session, or not yet an event.
    /// The subscription goes on with the events of the session that gets the stream.
    ///
    /// # Errors
    /// As [`ProxyManager::append_to_stream`].
    pub fn subscribe_to_stream(&self, id: &SessionId, from: u64) -> Result<Subscription> {
        let stream = match self.inner.free_streams.get(id) {
            Some(stream) => stream,
            None => match self.subscribe_from(id, from) {
                Err(Error::UnknownSession { .. }) => {
                    self.ensure_open()?;
                    self.inner.free_streams.get_or_begin(id, &self.inner.streams)?
                }
                known => return known,
            },
        };
        Ok(Subscription::one(stream.history.clone(), from.saturating_add(1)))
    }

    /// Offset of the last event of a stream that goes on: of a session of this manager, or without a session.
    ///
    /// # Errors
    /// [`Error::UnknownSession`].
    pub fn last_offset(&self, id: &SessionId) -> Result<u64> {
        match self.session(id) {
            Ok(session) => Ok(session.info().last_offset),
            Err(error) => self.inner.free_streams.get(id).map(|stream| stream.history.last_offset()).ok_or(error),
        }
    }

    /// Lists the streams that have events and no session, by id.
    pub fn streams(&self) -> Vec<FreeStreamInfo> {
        let info = |stream: &Arc<FreeStream>| FreeStreamInfo {
            event_stream_id: stream.id.as_ref().clone(),
            last_offset: stream.history.last_offset(),
        };
        let mut listed: Vec<FreeStreamInfo> = self.inner.free_streams.lock().values().map(info).collect();
        listed.retain(|stream| stream.last_offset > 0);
        listed.sort_by(|one, other| one.event_stream_id.cmp(&other.event_stream_id));
        listed
    }

    /// Checks that no other session's events have this id.
    fn check_free(&self, id: &SessionId) -> Result<()> {
        let head = self.inner.streams.log.get().and_then(|log| log.head(id));
        if head.is_some() && self.inner.free_streams.get(id).is_none() {
            let reason = "it is of an earlier manager".to_owned();
            return Err(Error::Ended { session: id.clone(), reason });
        }
        Ok(())
    }

    async fn append_free(&self, stream: &Arc<FreeStream>, event: NewEvent) -> Result<u64> {
        let (events, asked) = self.requested(event)?;
        let ours = events.len() as u64;
        let room = match asked.iter().any(Option::is_some) {
            true => Some(stream.action_queue.room(&stream.id)?),
            false => None,
        };
        let append = {
            let stream = stream.clone();
            async move { stream.append(events).await }
        };
        let (manager, of) = (Arc::downgrade(&self.inner), stream.id.as_ref().clone());
        let act = move |last: u64| async move {
            for (offset, ask) in (last + 1 - ours..).zip(asked) {
                // If there is a manager still.
                if let (Some(ask), Some(inner)) = (ask, Weak::upgrade(&manager)) {
                    Box::pin(Self { inner }.act_on_stream(&of, offset, ask)).await;
                }
            }
        };
        let after = self.inner.deadlines.control;
        let late = |_| Error::Deadline { operation: format!("appending an event to stream {}", stream.id), after };
        let appended = timeout(after, stream.action_queue.join_with(room, append, act)).await.map_err(late)?;
        Ok(appended? + 1 - ours)
    }

    /// Does what was asked for on a stream that began without a session, or tells why not.
    async fn act_on_stream(&self, id: &SessionId, offset: u64, asked: RequestedAction) {
        if self.ensure_open().is_err() {
            return;
        }
        let name = name_of(&asked.kind, offset);
        if let Ok(session) = self.inner.session_table.get(id) {
            session.queue().accept(offset, name);
            return self.act_once(id, offset, asked).await;
        }
        // Before it is claimed: of what is claimed it is known whether it was begun.
        self.record_in_progress(id, offset);
        let done = match self.claim_action(id, offset).await {
            Ok(()) => match asked.action {
                Ok(SessionAction { agent, verb: ActionVerb::Create { config, is_named } }) => {
                    let created = self.create_on_stream(id, agent, *config, is_named).await;
                    created.map_err(|error| error.chain())
                }
                Ok(_) => Err(NO_SESSION.to_owned()),
                Err(why) => Err(why),
            },
            Err(error) => Err(error.chain()),
        };
        let is_told = match done {
            Ok(()) => true,
            Err(error) => self.tell_on_stream(id, Event::ActionFailed { action: name, error }).await,
        };
        if is_told {
            self.record_in_progress(id, 0);
        }
    }

    /// Starts the session that goes on with a stream, or another one that is asked for by its id.
    async fn create_on_stream(
        &self,
        id: &SessionId,
        agent: Option<String>,
        mut config: AgentSessionConfig,
        is_named: bool,
    ) -> Result<()> {
        if let Some(agent) = agent {
            if !config.agent.is_empty() && config.agent != agent {
                let reason = format!("it is for agent {agent:?}, and the session is to have {:?}", config.agent);
                return Err(Error::InvalidConfig { field: "type", reason });
            }
            config.agent = agent;
        }
        if !is_named {
            config.session_id = id.clone();
        }
        let created = self.start_session(config).await?;
        if created.id() != id {
            let (status, detail) = ("sessionCreated".to_owned(), created.id().to_string());
            self.tell_on_stream(id, Event::SessionStatus { status, detail }).await;
        }
        Ok(())
    }

    /// Appends an event of ours. Returns true if it is durable.
    async fn tell_on_stream(&self, id: &SessionId, event: Event) -> bool {
        let appended = match (self.inner.session_table.get(id), self.inner.free_streams.get(id)) {
            (Ok(session), _) => session.append(event).await,
            (_, Some(stream)) => stream.append(vec![EventToAppend { event, metadata: None, class: None }]).await,
            (Err(error), None) => Err(error),
        };
        if let Err(error) = &appended {
            tracing::warn!(stream = %id, error = %error.chain(), "failed to tell what became of an action");
        }
        appended.is_ok()
    }
}

impl ManagerInner {
    /// Finds the streams that earlier managers left without a session.
    pub(super) async fn restore_streams(&self) -> Vec<SessionId> {
        let Some(log) = self.streams.log.get() else { return Vec::new() };
        let known = |id: &SessionId| self.roster.get(id).is_some() || self.session_table.get(id).is_ok();
        let open: Vec<SessionId> =
            log.streams().into_iter().filter(|(id, head)| !head.closed && !known(id)).map(|(id, _)| id).collect();
        if open.is_empty() {
            return Vec::new();
        }
        let look = move || open.into_iter().filter(|id| log.cursor(FREE, id).is_ok_and(|free| free > 0)).collect();
        let free: Vec<SessionId> = READING.run("looking for streams", look).await.unwrap_or_default();
        for id in &free {
            if let Err(error) = self.free_streams.get_or_begin(id, &self.streams) {
                tracing::warn!(stream = %id, error = %error.chain(), "failed to go on with a stream");
            }
        }
        free
    }
}

impl ProxyManager {
    /// Does what an earlier manager accepted on a stream without a session and did not do.
    pub(super) async fn resume_stream(&self, id: SessionId) {
        let Some(stream) = self.inner.free_streams.get(&id) else { return };
        let (manager, last) = (Arc::downgrade(&self.inner), stream.history.last_offset());
        let missed = async move {
            let Some(manager) = manager.upgrade().map(|inner| Self { inner }) else { return };
            let Some(log) = manager.inner.streams.log.get() else { return };
            let undone = match find_undone_in(log, &id, last).await {
                Ok(undone) => undone,
                Err(error) => {
                    tracing::warn!(stream = %id, error = %error.chain(), "actions may be missed");
                    UnfinishedActions::default()
                }
            };
            let (interrupted, missed) = undone.into_requests();
            for name in interrupted {
                let event = Event::ActionFailed { action: name, error: INTERRUPTED.to_owned() };
                if manager.tell_on_stream(&id, event).await {
                    manager.record_in_progress(&id, 0);
                }
            }
            for (offset, asked) in missed {
                Box::pin(manager.act_on_stream(&id, offset, asked)).await;
            }
        };
        stream.action_queue.run_first(missed).await;
    }
}
