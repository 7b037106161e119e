//! Events that others append, and what they ask for.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use event_log::{EventLog, Limit, LogError, Page};
use ipc_protocol::{AbortPolicy, Event, Json, SessionId};
use tokio::{
    sync::{Semaphore, oneshot},
    time::timeout,
};

use super::{Inner, ProxyManager};
use crate::{
    Error, Result,
    actions::{self, Action, Verb},
    blocking::blocking,
};

/// Longest type of an event, and longest payload, in bytes.
const LONGEST_TYPE: usize = 256;
const LONGEST_PAYLOAD: usize = 1024 * 1024;
/// Who has come to which action, in the event log.
const CONSUMER: &str = "actions";
/// Which action is being done, there too; 0 for none.
const DOING: &str = "doing";
/// How far back a manager looks for actions that its predecessor had no time for, in events, where none of the stream was ever
/// claimed.
const LOOK_BACK: u64 = 10_000;
/// How many sessions are looked through at a time: there may be thousands, and each read is a thread.
static LOOKING: Semaphore = Semaphore::const_new(4);

impl ProxyManager {
    /// Appends an event of somebody else's to a session's stream, and says its offset: with a state directory it is durable
    /// then. If its type asks for something (`agent:action:prompt:called`, …), that is done after it, at most once, in the order
    /// appended; what fails is told by an `action:failed`, and so is what was being done when its host was killed: by the next
    /// manager, which does not do it again. What the rules ([`crate::Builder::rules`]) make of it is done in the same way.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if the type is one of ours, or the event too long; [`Error::Ended`] if the session is over;
    /// [`Error::Busy`] if it asks for something and 64 things wait to be done already: it is not appended then. [`Error::Log`] if
    /// the event log cannot take it: it is not durable then, and nothing that it asks for is done, though who subscribes may
    /// have seen it. [`Error::Deadline`] if the log takes too long: it may be kept yet, and what it asks for is done then. Else as
    /// [`ProxyManager`] says.
    pub async fn append_event(&self, session: &SessionId, kind: &str, version: u32, payload: Json) -> Result<u64> {
        check(kind, &payload)?;
        let offset = self.append_and_act(session, kind, version, payload.clone()).await?;
        for rule in &*self.inner.rules {
            if let Some((kind, payload)) = rule.apply(kind, &payload) {
                self.append_and_act(session, &kind, 1, payload).await?;
            }
        }
        Ok(offset)
    }

    async fn append_and_act(&self, id: &SessionId, kind: &str, version: u32, payload: Json) -> Result<u64> {
        self.open()?;
        let session = self.inner.directory.get(id)?;
        let action = actions::parse(kind, &payload);
        let event = Event::External { kind: kind.into(), version, payload };
        let Some(action) = action else { return session.append(event).await };
        let (manager, id, kind) = (Arc::downgrade(&self.inner), id.clone(), kind.to_owned());
        let act = move |offset| async move {
            // If there is a manager still.
            if let Some(inner) = Weak::upgrade(&manager) {
                // Large, and moved about while it waits.
                Box::pin(Self { inner }.act_once(&id, offset, &kind, action)).await;
            }
        };
        session.append_and_act(event, act).await
    }

    /// Does what was asked for, or tells why not. While the manager is shut down it does nothing: what was not claimed is done by the
    /// next one.
    async fn act_once(&self, id: &SessionId, offset: u64, kind: &str, action: Result<Action, String>) {
        let Ok(session) = self.open().and_then(|()| self.inner.directory.get(id)) else { return };
        let name = name_of(kind, offset);
        // Before it is claimed: of what is claimed it is known whether it was begun.
        self.note_doing(id, offset);
        let done = match self.claim(id, offset).await {
            Ok(()) => match action {
                Ok(action) => self.act(id, &name, action).await.map_err(|error| error.to_string()),
                Err(why) => Err(why),
            },
            Err(error) => Err(error.to_string()),
        };
        let is_told = match done {
            Ok(()) => true,
            Err(error) => session.tell_failed(name, error).await,
        };
        if is_told {
            self.note_doing(id, 0);
        }
    }

    /// Notes which action is being done; nobody waits for that.
    fn note_doing(&self, id: &SessionId, offset: u64) {
        if let Some(log) = self.inner.streams.log.get() {
            log.set_cursor(DOING, id, offset, Box::new(|_| {}));
        }
    }

    /// Notes that an action is about to be done: whatever happens now, it is not done again.
    async fn claim(&self, id: &SessionId, offset: u64) -> Result<()> {
        let Some(log) = self.inner.streams.log.get() else { return Ok(()) };
        claim_in(&log, id, offset, self.inner.deadlines.control).await
    }

    async fn act(&self, id: &SessionId, name: &str, Action { agent, verb }: Action) -> Result<()> {
        let session = self.inner.directory.get(id)?;
        if let Some(agent) = agent
            && agent != session.labels().agent
        {
            let reason = format!("it is for agent {agent:?}, and this session has {:?}", session.labels().agent);
            return Err(Error::InvalidConfig { field: "type", reason });
        }
        match verb {
            Verb::Prompt { text, mode } => {
                let (turn, name) = (self.send_prompt(id, text, mode).await?, name.to_owned());
                // One that waits for its turn may wait in vain.
                tokio::spawn(async move {
                    if let Err(error) = turn.wait().await {
                        session.tell_failed(name, error.to_string()).await;
                    }
                });
                Ok(())
            }
            Verb::Steer { text } => self.steer(id, text).await,
            Verb::Abort { kill } => {
                let policy = if kill { AbortPolicy::KillTurnProcesses } else { AbortPolicy::LeaveProcesses };
                self.abort_session(id, policy).await.map(drop)
            }
            Verb::Permission { request, answer } => self.respond_permission(id, &request, answer).await,
            Verb::Destroy(options) => self.kill_session(id, options).await.map(drop),
            Verb::Create(config) => {
                let created = self.start_session(*config).await?;
                let (status, detail) = ("sessionCreated".to_owned(), created.id().to_string());
                session.append(Event::SessionStatus { status, detail }).await.map(drop)
            }
        }
    }

    /// Does what the last manager was asked for in a session at rest, and had no time for, before anything that this one is asked
    /// for.
    pub(super) async fn wake_for_missed(&self, id: SessionId) {
        let head = self.inner.streams.log.get().and_then(|log| log.head(&id));
        let (Some(head), Ok(session)) = (head, self.inner.directory.get(&id)) else { return };
        let manager = Arc::downgrade(&self.inner);
        session.row().begin_with(async move { act_on_missed(&manager, &id, head.last).await }).await;
    }
}

/// Notes it in the log, which may stand still: what it takes too long for is not done, and may be noted yet.
async fn claim_in(log: &EventLog, id: &SessionId, offset: u64, after: Duration) -> Result<()> {
    let (done, claimed) = oneshot::channel();
    log.set_cursor(CONSUMER, id, offset, Box::new(move |result| _ = done.send(result)));
    match timeout(after, claimed).await {
        Ok(claimed) => claimed.unwrap_or(Ok(())).map_err(Error::from),
        Err(_) => {
            let operation = format!("noting that an action of session {id} is done");
            Err(Error::Deadline { operation, after })
        }
    }
}

/// Does what an earlier manager was asked for in a session's events up to `last`, and had no time for.
pub(super) async fn act_on_missed(manager: &Weak<Inner>, id: &SessionId, last: u64) {
    if last == 0 {
        return;
    }
    let (told, done) = (tell_interrupted(manager, id).await, do_missed(manager, id, last).await);
    if let Err(error) = told.and(done) {
        tracing::warn!(session = %id, %error, "actions may be missed");
    }
}

/// The same, a page of them at a time.
async fn do_missed(manager: &Weak<Inner>, id: &SessionId, last: u64) -> Result<()> {
    let mut from = None;
    while from.is_none_or(|from| from < last) {
        let Some(log) = manager.upgrade().and_then(|inner| inner.streams.log.get()) else { return Ok(()) };
        let of = id.clone();
        let read = move || page_of_missed(&log, &of, from, last);
        let page = {
            // It is never closed.
            let _turn = LOOKING.acquire().await;
            blocking("looking for what was asked for", read).await??
        };
        let Some(end) = page.events.last() else { return Ok(()) };
        from = Some(end.offset);
        for envelope in page.events.iter().filter(|envelope| envelope.offset <= last) {
            if let Event::External { kind, payload, .. } = &envelope.event
                && let Some(action) = actions::parse(kind, payload)
                && let Some(inner) = manager.upgrade()
            {
                Box::pin(ProxyManager { inner }.act_once(id, envelope.offset, kind, action)).await;
            }
        }
    }
    // What was looked through is not looked through again, by any manager. After a shutdown there may be some that were not done.
    match manager.upgrade().map(|inner| ProxyManager { inner }) {
        Some(manager) if manager.open().is_ok() => manager.claim(id, last).await,
        _ => Ok(()),
    }
}

fn name_of(kind: &str, offset: u64) -> String {
    format!("{kind} at {offset:020}")
}

/// Tells of the action that the last manager was killed in: nobody knows whether it was done.
async fn tell_interrupted(manager: &Weak<Inner>, id: &SessionId) -> Result<()> {
    let Some(log) = manager.upgrade().and_then(|inner| inner.streams.log.get()) else { return Ok(()) };
    let of = id.clone();
    let interrupted = {
        let _turn = LOOKING.acquire().await;
        blocking("looking for what was being done", move || interrupted(&log, &of)).await??
    };
    let (Some(name), Some(inner)) = (interrupted, manager.upgrade()) else { return Ok(()) };
    let manager = ProxyManager { inner };
    let session = manager.inner.directory.get(id)?;
    let error = "its host ended while it was being done: it may have been done, and is not done again".to_owned();
    if session.tell_failed(name, error).await {
        manager.note_doing(id, 0);
    }
    Ok(())
}

/// Name of the action that a manager was killed in, if nothing is told of it. Blocks.
fn interrupted(log: &EventLog, id: &SessionId) -> std::result::Result<Option<String>, LogError> {
    let doing = log.cursor(DOING, id)?;
    // One that was not claimed is still to be done.
    if doing == 0 || doing > log.cursor(CONSUMER, id)? {
        return Ok(None);
    }
    let events = log.read(id, doing - 1, Limit::default())?.events;
    let name = events.first().filter(|asked| asked.offset == doing).and_then(|asked| match &asked.event {
        Event::External { kind, .. } => Some(name_of(kind, doing)),
        _ => None,
    });
    // It may have been killed just after it had told.
    let is_told = |name: &String| {
        let tells = |event: &Event| matches!(event, Event::ActionFailed { action, .. } if action == name);
        events.iter().any(|envelope| tells(&envelope.event))
    };
    Ok(name.filter(|name| !is_told(name)))
}

/// The events behind `from` among which there may be some that were missed; without that the first of them. Blocks.
fn page_of_missed(log: &EventLog, id: &SessionId, from: Option<u64>, last: u64) -> std::result::Result<Page, LogError> {
    // What was done is not done again.
    let done = log.cursor(CONSUMER, id)?;
    let from = from.unwrap_or_else(|| if done > 0 { done } else { last.saturating_sub(LOOK_BACK) });
    log.read(id, from.max(done), Limit::default())
}

fn check(kind: &str, payload: &Json) -> Result<()> {
    let invalid = |field, reason| Err(Error::InvalidConfig { field, reason });
    if kind.is_empty() || kind.len() > LONGEST_TYPE || kind.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return invalid("type", format!("{kind:?} must have 1 to {LONGEST_TYPE} bytes and no white space"));
    }
    if Event::is_ours(kind) {
        return invalid("type", format!("only the manager appends events of type {kind:?}: choose a type of your own"));
    }
    let length = payload.as_str().len();
    if length > LONGEST_PAYLOAD {
        return invalid("payload", format!("{length} bytes are too many: {LONGEST_PAYLOAD} at the most"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::SystemTime};

    use event_log::{Batch, MemoryLimits, Options};
    use ipc_protocol::Envelope;

    use super::*;

    #[test]
    fn what_was_missed_is_looked_for_from_where_it_is_known_to_be_done() {
        const LAST: u64 = 2 * LOOK_BACK;
        let log = EventLog::memory(MemoryLimits { events: usize::MAX, bytes: usize::MAX });
        let session: Arc<SessionId> = Arc::new("s".parse().expect("a valid id"));
        let created_at = SystemTime::now();
        let event = |offset| {
            let (session, event) = (session.clone(), Event::SessionIdle {});
            Arc::new(Envelope { offset, created_at, session, turn: None, event })
        };
        let events = (1..=LAST).map(event).collect();
        let batch = Batch { session: session.clone(), created_at, first: 1, events, source: 0, cursor: None };
        log.append(batch, Box::new(|result| result.expect("kept"))).expect("room");
        let first = |from| {
            let page = page_of_missed(&log, &session, from, LAST).expect("read");
            page.events.first().expect("some").offset
        };
        // There is a bound where nothing is known.
        assert_eq!(first(None), LAST - LOOK_BACK + 1);
        log.set_cursor(CONSUMER, &session, 5, Box::new(|result| result.expect("kept")));
        assert_eq!((first(None), first(Some(3)), first(Some(9))), (6, 6, 10));
    }

    #[tokio::test]
    async fn a_log_that_stands_still_holds_up_no_row_for_ever() {
        let folder = tempfile::tempdir().expect("a directory");
        let log = EventLog::open(folder.path().join("log.sqlite"), Options::default()).expect("a log");
        let session: SessionId = "s".parse().expect("a valid id");
        // The log's writer stands still in this.
        let (go_on, waits) = mpsc::channel::<()>();
        let (told, tells) = mpsc::channel();
        let stall = move |_| {
            told.send(()).expect("heard");
            _ = waits.recv();
        };
        log.put_session(&session, String::new(), Box::new(stall));
        tells.recv().expect("it stalls");
        let claim = claim_in(&log, &session, 1, Duration::from_millis(1));
        let claimed = timeout(Duration::from_secs(20), claim).await.expect("in time");
        assert!(matches!(claimed, Err(Error::Deadline { .. })), "{claimed:?}");
        go_on.send(()).expect("it waits");
    }
}
