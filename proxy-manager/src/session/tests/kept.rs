//! Sessions whose event log fails, or stands still.

use std::{collections::BTreeSet, future::poll_fn, path::PathBuf, pin::pin, task::Poll};

use event_log::{EventBatch, EventLog, LogError, LogOptions, ReadLimit};
use ipc_protocol::{Envelope, OffsetGap};
use tokio::sync::{mpsc::unbounded_channel, oneshot};

use super::*;
use crate::{
    history::{LogFailure, LogHandle, Subscription},
    session_store::{RecordState, SessionRecord, SessionStore},
};

/// Turns of the runtime after which nothing more comes of what was written.
const TURNS: usize = 10_000;

/// A log in a file.
pub(super) struct Place {
    pub(super) streams: StreamContext,
    log: EventLog,
    folder: tempfile::TempDir,
}

impl Place {
    pub(super) fn new(options: LogOptions, log_failure: LogFailure) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let log = EventLog::open(folder.path().join("log.sqlite"), options).expect("a log");
        let streams = StreamContext { log: LogHandle::new(Some(log.clone())), log_failure, ..StreamContext::default() };
        Self { streams, log, folder }
    }

    /// The log's file.
    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().join("log.sqlite")
    }

    /// One with a small disk.
    fn small(log_failure: LogFailure) -> Self {
        Self::new(LogOptions { max_pages: Some(100), ..LogOptions::default() }, log_failure)
    }

    /// A session that is ready, and all of whose events are in the log.
    pub(super) async fn running(&self) -> Running {
        self.running_with(quick()).await
    }

    async fn running_with(&self, deadlines: Deadlines) -> Running {
        let launch = plan(AgentSessionConfig::new("acp"), &Arc::default()).expect("valid");
        let Starting { handle, ready, mut proxy, fork_server } = launched_in(launch, deadlines, &self.streams).await;
        proxy.start_as("n-1").await;
        soon(ready).await.expect("an answer").expect("ready");
        soon(handle.session().wait_published()).await.expect("in time");
        Running { handle, proxy, fork_server }
    }

    /// A suspended one.
    async fn suspended(&self) -> SessionHandle {
        let Running { handle, proxy, fork_server } = self.running().await;
        handle.session().request_end(KillOptions::NOW, EndReason::Suspended);
        assert_eq!(end(proxy, fork_server, handle.id()).await, EndReason::Suspended);
        soon(handle.session().wait_settled()).await.expect("settled");
        handle
    }

    /// Another stream takes all the room there is.
    async fn fill(&self) {
        let session = Arc::new(other());
        let mut offset = self.log.head(&session).map_or(1, |head| head.last + 1);
        for length in [30_000, 1000, 1] {
            loop {
                let created_at = std::time::SystemTime::now();
                let event = Event::Text { text: "x".repeat(length) };
                let event = Arc::new(Envelope {
                    offset,
                    created_at,
                    session: session.clone(),
                    turn: None,
                    metadata: None,
                    event,
                });
                let batch = EventBatch {
                    session: session.clone(),
                    created_at,
                    first: offset,
                    events: vec![event],
                    source: 0,
                    cursor: None,
                };
                match told(|done| self.log.append(batch, done).expect("room in the queue")).await {
                    Ok(()) => offset += 1,
                    Err(error) => break assert!(matches!(error, LogError::DiskFull { .. }), "{error}"),
                }
            }
        }
    }

    async fn make_room(&self) {
        // In one commit with what there is no room for, it fails with that.
        soon(async { while told(|done| self.log.delete(&other(), done)).await.is_err() {} }).await;
    }

    /// What the log has of a session: the events, and what it says to lack.
    fn kept(&self, id: &SessionId) -> (Vec<Arc<Envelope>>, Vec<OffsetGap>) {
        let (mut events, mut gaps) = (Vec::new(), Vec::new());
        loop {
            let from = events.last().map_or(0, |event: &Arc<Envelope>| event.offset);
            let page = self.log.read(id, from, ReadLimit::default()).expect("read");
            if page.events.is_empty() {
                return (events, gaps);
            }
            gaps.extend(page.events.iter().filter_map(|event| match &event.event {
                Event::SessionGap(gap) => Some(*gap),
                _ => None,
            }));
            events.extend(page.events);
        }
    }
}

fn other() -> SessionId {
    "other".parse().expect("a valid id")
}

async fn told(start: impl FnOnce(event_log::OnCommit)) -> Result<(), LogError> {
    let (done, is_done) = oneshot::channel();
    start(Box::new(move |result| _ = done.send(result)));
    soon(is_done).await.expect("told")
}

pub(super) fn text(n: u64) -> Event {
    Event::Text { text: format!("{n} {}", "x".repeat(1000)) }
}

pub(super) fn number(event: &Event) -> Option<u64> {
    if let Event::Text { text } = event { text.split(' ').next()?.parse().ok() } else { None }
}

pub(super) fn external() -> Event {
    Event::External { kind: "test:noted".into(), version: 1, payload: ipc_protocol::Json::null() }
}

/// The same, as what asks for something.
fn asks() -> Vec<EventToAppend> {
    vec![EventToAppend { event: external(), metadata: None, class: Some(ActionClass::Immediate) }]
}

/// Appends until that is durable. Its offset.
async fn append_again(session: &ManagedSession) -> u64 {
    soon(async {
        loop {
            match session.append(external()).await {
                Ok(offset) => return offset,
                Err(error) => assert!(matches!(error, Error::Log(LogError::DiskFull { .. })), "{error}"),
            }
        }
    })
    .await
}

/// The events up to this offset, of a subscriber who may have missed none.
async fn up_to(events: &mut Subscription, last: u64) -> Vec<Arc<Envelope>> {
    let mut all: Vec<Arc<Envelope>> = Vec::new();
    while all.last().is_none_or(|event| event.offset < last) {
        all.push(soon(events.next()).await.expect("an event"));
    }
    assert!(all.iter().map(|event| event.offset).eq(1..=last), "{all:?}");
    all
}

pub(super) fn degraded(events: &[Arc<Envelope>]) -> Vec<&str> {
    fn reason(event: &Event) -> Option<&str> {
        if let Event::SessionDegraded { reason } = event { Some(reason) } else { None }
    }
    events.iter().filter_map(|event| reason(&event.event)).collect()
}

/// Each event is in the log, or in what it says to lack.
pub(super) fn nothing_is_missing(place: &Place, id: &SessionId, all: &[Arc<Envelope>]) {
    let (events, gaps) = place.kept(id);
    assert!(!gaps.is_empty());
    let offsets = events.iter().map(|event| event.offset).chain(gaps.iter().flat_map(|gap| gap.from..=gap.to));
    let told: BTreeSet<u64> = offsets.collect();
    assert!(told.into_iter().eq(1..=all.len() as u64), "{gaps:?}");
    assert!(events.len() < all.len());
    for event in &events {
        let shown = &all[event.offset as usize - 1];
        assert_eq!((&event.event, event.offset), (&shown.event, shown.offset));
    }
}

#[tokio::test]
async fn without_room_a_session_is_degraded_once_and_its_log_tells_what_it_lacks() {
    const TEXTS: u64 = 20;
    let place = Place::small(LogFailure::Degrade);
    let Running { handle, mut proxy, fork_server: _guard } = place.running().await;
    let mut events = handle.subscribe_from(0);
    place.fill().await;
    for n in 0..TEXTS {
        proxy.send(FromProxy::Event { turn: 0, event: text(n) }).await;
        // Each in a commit of its own.
        round_trip(&handle, &mut proxy).await;
    }
    // What is not durable is no success, though it can be read.
    let error = soon(handle.session().append(external())).await.expect_err("no room");
    assert!(matches!(error, Error::Log(LogError::DiskFull { .. })), "{error}");
    assert!(error.to_string().ends_with("the disk is full; make room"), "{error}");
    let shown = handle.info().degraded;
    assert!(shown.as_deref().is_some_and(|why| why.contains("the disk is full")), "{shown:?}");
    place.make_room().await;
    let last = append_again(handle.session()).await;
    assert_eq!(handle.info().degraded, None);
    let all = up_to(&mut events, last).await;
    assert!(all.iter().filter_map(|event| number(&event.event)).eq(0..TEXTS), "{all:?}");
    assert_eq!(degraded(&all).len(), 1, "{all:?}");
    assert!(degraded(&all)[0].contains("the disk is full"), "{all:?}");
    nothing_is_missing(&place, handle.id(), &all);
    assert_eq!(handle.info().state, SessionState::Idle);
    // It is as before: another failure is told again.
    soon(async {
        // What was deleted may give back some more room meanwhile.
        while handle.session().append(external()).await.is_ok() {
            place.fill().await;
        }
    })
    .await;
    soon(async { while !matches!(events.next().await.expect("more").event, Event::SessionDegraded { .. }) {} }).await;
}

#[tokio::test]
async fn without_room_a_session_ends_where_that_is_wanted() {
    let place = Place::small(LogFailure::End);
    let Running { handle, mut proxy, fork_server } = place.running().await;
    let mut events = handle.subscribe_from(0);
    place.fill().await;
    proxy.send(FromProxy::Event { turn: 0, event: text(0) }).await;
    let reason = end(proxy, fork_server, handle.id()).await;
    let EndReason::Failed(why) = &reason else { panic!("{reason}") };
    assert!(why.contains("the disk is full"), "{why}");
    let mut all = Vec::new();
    while let Some(event) = soon(events.next()).await {
        all.push(event);
    }
    assert!(all.iter().any(|event| number(&event.event) == Some(0)), "{all:?}");
    assert_eq!(degraded(&all), [why], "{all:?}");
    let Event::SessionEnded { reason: told, .. } = &all.last().expect("some").event else { panic!("{all:?}") };
    assert_eq!(told, &reason);
    assert!(matches!(handle.info().state, SessionState::Ended { reason: EndReason::Failed(_), .. }));
}

#[tokio::test]
async fn what_is_appended_to_a_suspended_session_is_durable_or_an_error() {
    for log_failure in [LogFailure::Degrade, LogFailure::End] {
        let place = Place::small(log_failure);
        let handle = place.suspended().await;
        let session = handle.session();
        let mut events = handle.subscribe_from(0);
        place.fill().await;
        for _ in 0..2 {
            let error = soon(session.append(external())).await.expect_err("no room");
            assert!(matches!(error, Error::Log(LogError::DiskFull { .. })), "{error}");
        }
        place.make_room().await;
        let last = append_again(session).await;
        let all = up_to(&mut events, last).await;
        assert_eq!(degraded(&all).len(), 1, "{all:?}");
        nothing_is_missing(&place, handle.id(), &all);
        assert!(session.is_suspended(), "nothing of it ran, and nothing is to be ended");
    }
}

/// Polls it once, and drops it.
async fn begun(append: impl Future<Output = crate::error::Result<u64>>) {
    let mut append = pin!(append);
    let appended = poll_fn(|context| Poll::Ready(append.as_mut().poll(context))).await;
    assert!(appended.is_pending(), "{appended:?}");
}

#[tokio::test]
async fn what_fails_when_nobody_waits_for_it_any_more_is_told_by_who_appends_next() {
    let place = Place::small(LogFailure::Degrade);
    let handle = place.suspended().await;
    let session = handle.session();
    place.fill().await;
    let before = session.history().assigned();
    let mut events = handle.subscribe_from(before);
    let stalled = stall(&place.log).await;
    begun(session.append(external())).await;
    drop(stalled);
    soon(session.history().wait_readable(before + 1)).await;
    soon(session.append(external())).await.expect_err("no room");
    let mut told = Vec::new();
    for _ in 0..4 {
        told.push(soon(events.next()).await.expect("an event"));
    }
    // The log's hole has its marker in between.
    assert!(told[0].event == external() && told[3].event == external(), "{told:?}");
    assert_eq!(degraded(&told).len(), 1, "{told:?}");
}

#[tokio::test]
async fn what_is_asked_for_is_done_once_it_is_kept_whoever_waits_still() {
    let place = Place::new(LogOptions::default(), LogFailure::Degrade);
    let handle = place.suspended().await;
    let before = handle.session().history().assigned();
    let (acts, mut acted) = unbounded_channel();
    let act = || {
        let acts = acts.clone();
        |offset| async move { acts.send(offset).expect("heard") }
    };
    let session = handle.session();
    let stalled = stall(&place.log).await;
    begun(session.append_and_act(None, asks(), act())).await;
    // What was not begun is not appended when its caller has gone.
    begun(session.append_and_act(None, asks(), act())).await;
    drop(stalled);
    assert_eq!(soon(acted.recv()).await, Some(before + 1));
    assert_eq!(soon(session.append_and_act(None, asks(), act())).await.expect("kept"), before + 2);
    assert_eq!(soon(acted.recv()).await, Some(before + 2));
}

#[tokio::test]
async fn a_queued_prompt_is_given_to_the_agent_once_the_log_has_its_turn() {
    let place = Place::new(LogOptions::default(), LogFailure::Degrade);
    let Running { handle, mut proxy, fork_server: _guard } = place.running_with(patient()).await;
    let (first, _) = tokio::join!(handle.prompt("one", PromptMode::Refuse), proxy.take_prompt("one"));
    first.expect("taken");
    let queued = handle.prompt("two", PromptMode::Queue).await.expect("queued");
    let at = handle.info().queued[0].offset;
    assert_eq!((handle.info().queued.len(), handle.info().queued[0].text.as_str()), (1, "two"));
    let cursor = |consumer| place.log.cursor(consumer, handle.id()).expect("read");
    assert_eq!(cursor(BEGUN), at - 1);
    let stalled = stall(&place.log).await;
    proxy.end_turn(1).await;
    round_trip(&handle, &mut proxy).await;
    assert_eq!((handle.info().state, handle.info().queued.len()), (SessionState::Busy { turn: 2 }, 0));
    // What is to cancel it comes behind it.
    let abort = tokio::spawn({
        let handle = handle.clone();
        async move { handle.abort(AbortPolicy::LeaveProcesses).await }
    });
    round_trip(&handle, &mut proxy).await;
    drop(stalled);
    assert_eq!(soon(proxy.take_prompt("two")).await, 2);
    assert_eq!((cursor(BEGUN), cursor(ENDED)), (at, 0));
    match proxy.receive().await {
        Some(ToProxy::Request { request, command: ProxyCommand::Abort { .. } }) => {
            proxy.send(FromProxy::Done { request }).await
        }
        other => panic!("no abort: {other:?}"),
    }
    soon(abort).await.expect("no panic").expect("aborted");
    proxy.end_turn(2).await;
    soon(queued.wait()).await.expect("ended");
    assert_eq!(cursor(ENDED), at);
}

#[tokio::test]
async fn a_failed_action_holds_up_nobody_where_the_log_cannot_take_it() {
    let place = Place::small(LogFailure::Degrade);
    // Its end would be waited for as long as this.
    let patient = Deadlines { kill: 100 * PATIENCE, ..quick() };
    let Running { handle, proxy: _proxy, fork_server: _guard } = place.running_with(patient).await;
    let mut events = handle.subscribe_from(handle.info().last_offset);
    place.fill().await;
    soon(handle.session().report_failed("x".into(), "y".into())).await;
    let told = soon(events.next()).await.expect("an event");
    assert_eq!(told.event, Event::ActionFailed { action: "x".into(), error: "y".into() });
}

#[tokio::test]
async fn a_change_of_a_record_is_durable_or_an_error() {
    let place = Place::small(LogFailure::Degrade);
    let open = || SessionStore::open(place.streams.log.clone()).expect("read");
    let roster = open();
    let config = AgentSessionConfig::new("acp");
    let id = config.session_id.clone();
    let record = SessionRecord::new(config, RecordState::Idle);
    told(|done| roster.add(record, done)).await.expect("written");
    let title = Some("x".repeat(100_000));
    let name = |done| {
        let named = roster.change(&id, Some(done), |record| {
            record.config.lifecycle.title = title.clone();
            Ok(())
        });
        named.expect("known");
    };
    place.fill().await;
    let error = told(name).await.expect_err("no room");
    assert!(matches!(error, LogError::DiskFull { .. }), "{error}");
    place.make_room().await;
    told(name).await.expect("written");
    assert_eq!(open().get(&id).expect("kept").config.lifecycle.title, title);
}

#[tokio::test]
async fn a_log_that_stands_still_holds_up_the_agent_and_nothing_is_lost() {
    const EVENTS: u64 = 10_000;
    const MOST: usize = 4 * 1024 * 1024;
    let place = Place::new(LogOptions::default(), LogFailure::Degrade);
    let Running { handle, mut proxy, fork_server: _guard } = place.running().await;
    let mut events = handle.subscribe();
    let stalled = stall(&place.log).await;
    let mut bytes = Vec::new();
    for n in 0..EVENTS {
        codec::encode(&FromProxy::Event { turn: 0, event: text(n) }, &mut bytes).expect("encodes");
    }
    assert!(bytes.len() > 2 * MOST);
    let (mut taken, mut refused) = (0, 0);
    while refused < TURNS && taken < bytes.len() {
        match proxy.stream.try_write(&bytes[taken..]) {
            Ok(written) => (taken, refused) = (taken + written, 0),
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                refused += 1;
                tokio::task::yield_now().await;
            }
        }
    }
    assert!(taken < MOST, "{taken} bytes of {} were taken", bytes.len());
    // It is looked after all the same.
    let last = handle.info().last_offset;
    drop(stalled);
    // Each event has a deadline.
    let write = async { proxy.stream.write_all(&bytes[taken..]).await.expect("written") };
    let read = async {
        let mut expected = 0;
        while expected < EVENTS {
            let event = soon(events.next()).await.expect("an event");
            if let Some(n) = number(&event.event) {
                assert_eq!(n, expected);
                expected += 1;
            }
        }
    };
    tokio::join!(write, read);
    assert_eq!(handle.info().last_offset, last + EVENTS);
}

#[tokio::test]
async fn what_happens_while_the_agent_starts_comes_to_the_log_together() {
    const EVENTS: u64 = 20;
    let place = Place::new(LogOptions::default(), LogFailure::Degrade);
    let launch = plan(AgentSessionConfig::new("acp"), &Arc::default()).expect("valid");
    let Starting { handle, ready, mut proxy, fork_server } = launched_in(launch, quick(), &place.streams).await;
    let history = handle.session().history().clone();
    let request = proxy.hello().await;
    tokio::time::pause();
    for n in 1..=EVENTS {
        proxy.send(FromProxy::Event { turn: 0, event: text(n) }).await;
        for _ in 0..TURNS / 100 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(history.assigned(), 0, "they wait");
    // The clock of the runtime has milliseconds.
    tokio::time::advance(std::time::Duration::from_millis(252)).await;
    for _ in 0..TURNS / 100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(history.assigned(), EVENTS);
    proxy.send(FromProxy::Event { turn: 0, event: text(EVENTS + 1) }).await;
    tokio::time::resume();
    proxy.is_ready(request, Some("n-1"), true).await;
    soon(ready).await.expect("an answer").expect("ready");
    soon(handle.session().wait_published()).await.expect("in time");
    let (events, gaps) = place.kept(handle.id());
    assert_eq!(gaps, []);
    assert!(events.iter().filter_map(|event| number(&event.event)).eq(1..=EVENTS + 1));
    drop((proxy, fork_server));
}
