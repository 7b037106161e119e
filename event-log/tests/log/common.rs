//! What the tests of a log share.

use std::{
    io::Write as _,
    sync::{Arc, mpsc},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use event_log::{EventBatch, EventLog, LogError, LogOptions, ReadLimit};
use ipc_protocol::{Envelope, Event, SessionId};

/// Longer than anything takes that works.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Says what this machine or this user cannot have, past the capture of what tests print.
pub(crate) fn not_run(what: &str) {
    // Lost only with the terminal itself.
    let _ = writeln!(std::io::stdout(), "NOT RUN: {what}");
}

pub(crate) fn id(name: &str) -> Arc<SessionId> {
    Arc::new(name.parse().expect("a valid id"))
}

pub(crate) fn text(n: u64) -> Event {
    Event::Text { text: format!("event {n}") }
}

/// A time that milliseconds can say.
pub(crate) fn now() -> SystemTime {
    let millis = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
    UNIX_EPOCH + Duration::from_millis(millis.try_into().expect("fits"))
}

pub(crate) fn batch_of(session: &Arc<SessionId>, first: u64, events: Vec<Event>) -> EventBatch {
    let created_at = now();
    let envelope = |(offset, event)| {
        Arc::new(Envelope { offset, created_at, session: Arc::clone(session), turn: Some(1), metadata: None, event })
    };
    let events = (first..).zip(events).map(envelope).collect();
    EventBatch { session: Arc::clone(session), created_at, first, events, source: 0, cursor: None }
}

/// `count` pieces of text.
pub(crate) fn batch(session: &Arc<SessionId>, first: u64, count: u64) -> EventBatch {
    batch_of(session, first, (first..first + count).map(text).collect())
}

/// Has something done, and waits for what comes of it.
pub(crate) fn done(start: impl FnOnce(event_log::OnCommit)) -> Result<(), LogError> {
    let (tell, told) = mpsc::channel();
    start(Box::new(move |result| drop(tell.send(result))));
    told.recv_timeout(DEADLINE).expect("an answer")
}

pub(crate) fn append(log: &EventLog, batch: EventBatch) -> Result<(), LogError> {
    done(|done| log.append(batch, done).expect("room in the queue"))
}

pub(crate) fn open(dir: &tempfile::TempDir) -> EventLog {
    EventLog::open(dir.path().join("log.sqlite"), LogOptions::default()).expect("a log")
}

/// Everything of a stream after `from`, read a few events at a time.
pub(crate) fn read_all(log: &EventLog, session: &SessionId, mut from: u64) -> Vec<Arc<Envelope>> {
    let mut all = Vec::new();
    loop {
        let page = log.read(session, from, ReadLimit { events: 7, bytes: 4096 }).expect("a page");
        let Some(last) = page.events.last() else { return all };
        from = last.offset;
        all.extend(page.events);
    }
}
