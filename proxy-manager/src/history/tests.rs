use std::future::Future;

use proptest::prelude::*;

use super::*;

fn history(events: usize, bytes: usize) -> (Arc<SessionHistory>, HistoryWriter) {
    let id = Arc::new("s".parse().expect("a valid id"));
    SessionHistory::new(id, &StreamContext { limits: HistoryLimits { events, bytes }, ..StreamContext::default() })
}

fn text(n: u64) -> Event {
    Event::Text { text: n.to_string() }
}

fn drain(subscription: &mut Subscription) -> Vec<Arc<Envelope>> {
    let mut out = Vec::new();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    while std::pin::pin!(subscription.next_batch(&mut out)).poll(&mut context) == std::task::Poll::Ready(true) {}
    out
}

/// What a subscriber got: events as single offsets, gaps as ranges, which must be whole and in order.
fn ranges(envelopes: &[Arc<Envelope>]) -> Vec<(u64, u64)> {
    let range = |envelope: &Arc<Envelope>| match envelope.event {
        Event::SessionGap(gap) => {
            assert_eq!(envelope.offset, gap.to);
            (gap.from, gap.to)
        }
        _ => (envelope.offset, envelope.offset),
    };
    envelopes.iter().map(range).collect()
}

#[tokio::test]
async fn readers_at_their_own_pace() {
    let (history, mut log) = history(1000, usize::MAX);
    let mut early = Subscription::one(history.clone(), 1);
    for n in 0..700 {
        log.push(n % 2, text(n));
        if n % 7 == 0 {
            log.commit();
        }
    }
    log.commit();
    let mut late = Subscription::one(history.clone(), 691);
    drop(log);
    let mut batch = Vec::new();
    assert!(early.next_batch(&mut batch).await);
    assert_eq!(batch.len(), 256);
    assert_eq!(early.next().await.map(|envelope| envelope.offset), Some(257));
    let mut rest = 257;
    while let Some(envelope) = early.next().await {
        rest += 1;
        assert_eq!((envelope.offset, envelope.turn), (rest, (rest % 2 == 0).then_some(1)));
    }
    assert_eq!(rest, 700);
    assert_eq!(drain(&mut late).len(), 10);
    assert!(!late.next_batch(&mut batch).await);
    assert!(late.next().await.is_none());
}

#[test]
fn polls_and_calls_alternate_and_lose_nothing() {
    use futures_core::Stream;
    use std::{
        pin::Pin,
        task::{Context, Poll, Waker},
    };

    let (history, mut log) = history(1000, usize::MAX);
    let mut events = Subscription::one(history, 1);
    let mut context = Context::from_waker(Waker::noop());
    for n in 1..=10 {
        // Leaves a fill behind.
        assert_eq!(Pin::new(&mut events).poll_next(&mut context), Poll::Pending);
        log.push(0, text(n));
        log.commit();
        let next = match n % 2 {
            0 => std::pin::pin!(events.next()).poll(&mut context),
            _ => Pin::new(&mut events).poll_next(&mut context),
        };
        assert!(matches!(next, Poll::Ready(Some(envelope)) if envelope.offset == n));
    }
    drop(log);
    assert_eq!(Pin::new(&mut events).poll_next(&mut context), Poll::Ready(None));
    assert_eq!(std::pin::pin!(events.next()).poll(&mut context), Poll::Ready(None));
}

#[tokio::test]
async fn bytes_are_bounded_but_the_last_event_stays() {
    let (history, mut log) = history(1000, 1000);
    log.push(0, Event::Text { text: "x".repeat(100_000) });
    log.commit();
    assert_eq!(drain(&mut Subscription::one(history.clone(), 1)).len(), 1);
    for n in 0..10 {
        log.push(0, text(n));
    }
    log.commit();
    let kept = drain(&mut Subscription::one(history.clone(), 1));
    assert_eq!(ranges(&kept[..1]), [(1, 11 - kept.len() as u64 + 1)]);
    assert!(kept[1..].iter().map(|envelope| envelope.event.weight()).sum::<usize>() <= 1000);
    assert_eq!(history.first_offset(), 11 - kept.len() as u64 + 2);
}

#[tokio::test]
async fn a_waiting_reader_is_woken_by_a_commit_and_by_the_end() {
    let (history, mut log) = history(10, usize::MAX);
    let mut subscription = Subscription::one(history, 1);
    let reader = tokio::spawn(async move {
        let first = subscription.next().await.map(|envelope| envelope.offset);
        (first, subscription.next().await)
    });
    tokio::task::yield_now().await;
    log.push(0, text(1));
    log.commit();
    tokio::task::yield_now().await;
    drop(log);
    let (first, second) = reader.await.expect("the reader ends");
    assert_eq!((first, second), (Some(1), None));
}

proptest! {
    /// Whatever is appended, dropped and read in whatever order: each offset comes exactly once, as an event or in a gap.
    #[test]
    fn no_event_is_both_delivered_and_in_a_gap_and_none_is_missing(
        limit in 1usize..40,
        from in 0u64..60,
        steps in prop::collection::vec((0usize..30, any::<bool>()), 1..60),
    ) {
        let (history, mut log) = history(limit, usize::MAX);
        let mut subscription = Subscription::one(history.clone(), from + 1);
        let mut got = Vec::new();
        for (events, read) in steps {
            for n in 0..events {
                log.push(0, text(n as u64));
            }
            log.commit();
            if read {
                got.extend(drain(&mut subscription));
            }
        }
        got.extend(drain(&mut subscription));
        let mut next = from + 1;
        for (first, last) in ranges(&got) {
            prop_assert_eq!(first, next);
            prop_assert!(last >= first);
            next = last + 1;
        }
        prop_assert_eq!(next, (history.last_offset() + 1).max(from + 1));
    }
}

#[tokio::test]
async fn who_is_behind_gets_each_event_once_though_it_gives_up_waiting() {
    const EVENTS: u64 = 20_000;
    let folder = tempfile::tempdir().expect("a directory");
    let log = event_log::EventLog::open(folder.path().join("log.sqlite"), event_log::LogOptions::default());
    let streams = StreamContext {
        limits: HistoryLimits { events: 10, bytes: usize::MAX },
        log: LogHandle::new(Some(log.expect("a log"))),
        ..StreamContext::default()
    };
    let id = Arc::new("s".parse().expect("a valid id"));
    let (history, mut writer) = SessionHistory::new(id, &streams);
    for n in 1..=EVENTS {
        writer.push(0, text(n));
        if n % 100 == 0 {
            writer.commit();
        }
    }
    history.wait_readable(EVENTS).await;
    drop(writer);
    let mut subscription = Subscription::one(history.clone(), 1);
    let mut all = Vec::new();
    loop {
        // Polled once and dropped, the page that it began to read is not lost.
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let polled = std::pin::pin!(subscription.next_batch(&mut all)).poll(&mut context);
        let goes_on = match polled {
            std::task::Poll::Ready(goes_on) => goes_on,
            std::task::Poll::Pending => subscription.next_batch(&mut all).await,
        };
        if !goes_on {
            break;
        }
    }
    assert_eq!(ranges(&all), (1..=EVENTS).map(|n| (n, n)).collect::<Vec<_>>());
    drop(subscription);
    streams.log.close();
}

#[test]
fn both_shapes_of_an_event_in_transition_are_appended_the_older_first() {
    const KIND: &str = "made-up:named";
    // Version 2 has a first and a last name where version 1 had one text, and may have none.
    const SHAPES: &[EventShape] = &[EventShape {
        kind: KIND,
        matches: |event| matches!(event, Event::External { kind, version: 2, .. } if &**kind == KIND),
        version: 2,
        downgrade: Some(|payload| {
            let name = |field: &str| payload[field].as_str();
            Some(serde_json::json!({ "name": format!("{} {}", name("first")?, name("last")?) }))
        }),
    }];
    let json = |text: &str| ipc_protocol::Json::new(text.to_owned()).expect("JSON");
    let named = |version, payload: &str| Event::External { kind: KIND.into(), version, payload: json(payload) };
    let folder = tempfile::tempdir().expect("a directory");
    let log = event_log::EventLog::open(folder.path().join("log.sqlite"), event_log::LogOptions::default());
    for log in [LogHandle::default(), LogHandle::new(Some(log.expect("a log")))] {
        let streams = StreamContext { shapes: SHAPES, log, ..StreamContext::default() };
        let id: Arc<SessionId> = Arc::new("s".parse().expect("a valid id"));
        let (history, mut writer) = SessionHistory::new(id.clone(), &streams);
        let new = named(2, r#"{"first":"Ada","last":"Lovelace"}"#);
        writer.push(3, new.clone());
        writer.push(3, text(1));
        writer.push(0, named(2, "{}"));
        let (told, tells) = std::sync::mpsc::channel();
        writer.commit_then(move |kept| told.send(kept).expect("heard"));
        assert_eq!(tells.recv().expect("told").expect("kept"), 4);
        drop(writer);
        if let Some(log) = streams.log.get() {
            log.flush(Duration::from_secs(20)).expect("written");
        }
        let all: Vec<_> = drain(&mut Subscription::one(history, 1)).iter().map(|one| one.as_ref().clone()).collect();
        let got: Vec<_> = all.iter().map(|one| (one.offset, one.turn, one.event.clone())).collect();
        let old = named(1, r#"{"name":"Ada Lovelace"}"#);
        let expected = [(1, Some(3), old), (2, Some(3), new), (3, Some(3), text(1)), (4, None, named(2, "{}"))];
        assert_eq!(got, expected);
        if let Some(log) = streams.log.get() {
            let page = log.read(&id, 0, ReadLimit::default()).expect("read");
            let kept: Vec<_> = page.events.iter().map(|one| one.as_ref().clone()).collect();
            assert_eq!(kept, all, "it is what was appended");
        }
        streams.log.close();
    }
}

#[tokio::test]
async fn what_cannot_be_read_now_is_no_gap() {
    let folder = tempfile::tempdir().expect("a directory");
    let (path, away) = (folder.path().join("log.sqlite"), folder.path().join("away"));
    let log = event_log::EventLog::open(&path, event_log::LogOptions::default()).expect("a log");
    let limits = HistoryLimits { events: 1, bytes: usize::MAX };
    let streams = StreamContext { limits, log: LogHandle::new(Some(log)), ..StreamContext::default() };
    let (history, mut writer) = SessionHistory::new(Arc::new("s".parse().expect("a valid id")), &streams);
    (1..=3).for_each(|n| writer.push(0, text(n)));
    writer.commit();
    history.wait_readable(3).await;
    drop(writer);
    std::fs::rename(&path, &away).expect("moved");
    assert!(history.read_log(1).is_err());
    let mut subscription = Subscription::one(history, 1);
    // It is read, and fails; then it is read again.
    assert!(drain(&mut subscription).is_empty());
    std::fs::rename(&away, &path).expect("moved back");
    let mut all = Vec::new();
    while subscription.next_batch(&mut all).await {}
    assert_eq!(ranges(&all), [(1, 1), (2, 2), (3, 3)]);
    drop(subscription);
    streams.log.close();
}
