//! Appending, reading, closing, deleting, retention; in memory and in a file.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::{Duration, UNIX_EPOCH},
};

use crate::common::{DEADLINE, append, batch, batch_of, done, id, open, read_all, text};
use event_log::{
    EventLog, Heartbeat, LogError, LogOptions, MemoryLimits, QueueFull, ReadLimit, Retention, StreamPosition,
};
use ipc_protocol::{Event, OffsetGap};

/// Runs `test` on each store.
fn on_both(test: impl Fn(&EventLog)) {
    let dir = tempfile::tempdir().expect("a directory");
    test(&EventLog::memory(MemoryLimits::default()));
    test(&open(&dir));
}

#[test]
fn what_was_appended_survives_a_reopening() {
    let dir = tempfile::tempdir().expect("a directory");
    let (a, b) = (id("a"), id("b"));
    let log = open(&dir);
    let mut expected = Vec::new();
    for first in [1, 11, 21] {
        let batch = batch(&a, first, 10);
        expected.extend(batch.events.clone());
        append(&log, batch).expect("appended");
    }
    append(&log, batch(&b, 1, 1)).expect("appended");
    assert_eq!(read_all(&log, &a, 0), expected);
    drop(log);
    let log = open(&dir);
    assert_eq!(read_all(&log, &a, 0), expected);
    assert_eq!(read_all(&log, &a, 13), expected[13..]);
    append(&log, batch(&a, 31, 1)).expect("appended");
    assert_eq!(log.head(&a).expect("a stream").last, 31);
    assert_eq!(log.head(&b).expect("a stream").last, 1);
}

#[test]
fn offsets_have_no_holes() {
    on_both(|log| {
        let a = id("a");
        let order = |batch, expected, found| match append(log, batch) {
            Err(LogError::Order { expected: e, found: f, .. }) => assert_eq!((e, f), (expected, found)),
            other => panic!("not refused: {other:?}"),
        };
        order(batch(&a, 2, 1), 1, 2);
        assert_eq!(log.head(&a), None, "a refused batch leaves no stream");
        append(log, batch(&a, 1, 3)).expect("appended");
        order(batch(&a, 3, 1), 4, 3);
        order(batch(&a, 5, 1), 4, 5);
        let mut with_hole = batch(&a, 4, 3);
        with_hole.events.remove(1);
        order(with_hole, 5, 6);
        append(log, batch(&a, 4, 1)).expect("appended");
        assert_eq!(read_all(log, &a, 0).len(), 4);
    });
}

#[test]
fn a_gap_may_stand_for_what_is_missing() {
    on_both(|log| {
        let a = id("a");
        append(log, batch(&a, 1, 3)).expect("appended");
        let mut with_gap = batch_of(&a, 9, vec![Event::SessionGap(OffsetGap { from: 4, to: 9 }), text(10)]);
        with_gap.first = 4;
        let expected = with_gap.events.clone();
        append(log, with_gap).expect("appended");
        append(log, batch(&a, 11, 1)).expect("appended");
        assert_eq!(read_all(log, &a, 3)[..2], expected);
        assert_eq!(read_all(log, &a, 6)[..2], expected);
        assert_eq!(read_all(log, &a, 0).len(), 6);
    });
}

#[test]
fn a_page_is_bounded_and_never_empty() {
    on_both(|log| {
        let a = id("a");
        append(log, batch(&a, 1, 100)).expect("appended");
        let offsets = |from, limit| {
            let page = log.read(&a, from, limit).expect("a page");
            assert_eq!((page.first_kept, page.last, page.closed), (1, 100, false));
            page.events.iter().map(|event| event.offset).collect::<Vec<_>>()
        };
        assert_eq!(offsets(0, ReadLimit { events: 3, bytes: 1 << 20 }), [1, 2, 3]);
        assert_eq!(offsets(97, ReadLimit { events: 3, bytes: 1 << 20 }), [98, 99, 100]);
        assert_eq!(offsets(40, ReadLimit { events: 100, bytes: 1 }), [41]);
        assert!(offsets(100, ReadLimit::default()).is_empty());
        assert!(offsets(u64::MAX, ReadLimit::default()).is_empty());
        assert!(matches!(log.read(&id("b"), 0, ReadLimit::default()), Err(LogError::Unknown { .. })));
    });
}

#[test]
fn a_large_batch_is_read_in_pieces() {
    on_both(|log| {
        let a = id("a");
        let large = batch_of(&a, 1, vec![Event::Text { text: "ä".repeat(40_000) }; 50]);
        let mut expected = large.events.clone();
        append(log, large).expect("appended");
        let many = batch(&a, 51, 5000);
        expected.extend(many.events.clone());
        append(log, many).expect("appended");
        assert_eq!(read_all(log, &a, 0), expected);
        assert_eq!(read_all(log, &a, 4321), expected[4321..]);
    });
}

#[test]
fn a_closed_stream_takes_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let a = id("a");
    let close = |log: &EventLog| {
        append(log, batch(&a, 1, 1)).expect("appended");
        done(|done| log.close(&a, done)).expect("closed");
        assert!(matches!(append(log, batch(&a, 2, 1)), Err(LogError::Closed { .. })));
        assert!(matches!(done(|done| log.close(&id("b"), done)), Err(LogError::Unknown { .. })));
        assert!(log.read(&a, 0, ReadLimit::default()).expect("a page").closed);
    };
    close(&EventLog::memory(MemoryLimits::default()));
    let log = open(&dir);
    close(&log);
    drop(log);
    let log = open(&dir);
    assert!(log.head(&a).expect("a stream").closed);
    assert!(matches!(append(&log, batch(&a, 2, 1)), Err(LogError::Closed { .. })));
}

#[test]
fn a_deleted_stream_can_begin_anew() {
    on_both(|log| {
        let a = id("a");
        let mut first = batch(&a, 1, 2000);
        first.cursor = Some(("c".into(), 7));
        append(log, first).expect("appended");
        assert_eq!(log.cursor("c", &a).expect("a cursor"), 7);
        done(|done| log.delete(&a, done)).expect("deleted");
        assert_eq!((log.head(&a), log.cursor("c", &a).expect("a cursor")), (None, 0));
        assert!(matches!(done(|done| log.delete(&a, done)), Err(LogError::Unknown { .. })));
        append(log, batch(&a, 1, 1)).expect("appended");
        assert_eq!(read_all(log, &a, 0).len(), 1);
    });
}

#[test]
fn cursors_and_sources_come_with_a_batch_or_not_at_all() {
    on_both(|log| {
        let a = id("a");
        let mut good = batch(&a, 1, 2);
        (good.cursor, good.source) = (Some(("c".into(), 1)), 40);
        append(log, good).expect("appended");
        let mut bad = batch(&a, 9, 2);
        (bad.cursor, bad.source) = (Some(("c".into(), 2)), 50);
        append(log, bad).expect_err("refused");
        assert_eq!(log.cursor("c", &a).expect("a cursor"), 1);
        let mut empty = batch(&a, 3, 0);
        (empty.cursor, empty.source) = (Some(("d".into(), 2)), 41);
        append(log, empty).expect("stored");
        done(|done| log.set_cursor("c", &a, 2, done)).expect("stored");
        assert_eq!((log.cursor("c", &a).expect("c"), log.cursor("d", &a).expect("d")), (2, 2));
        assert_eq!(log.head(&a).map(|head| (head.last, head.source)), Some((2, 41)));
        assert!(matches!(done(|done| log.set_cursor("c", &id("b"), 2, done)), Err(LogError::Unknown { .. })));
    });
}

#[test]
fn records_of_sessions_are_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let beat = |second| Heartbeat { host: format!("h-{second}"), at: UNIX_EPOCH + Duration::from_secs(second) };
    let put = |log: &EventLog| {
        for (name, record) in [("b", "{}"), ("a", r#"{"n":1}"#), ("a", r#"{"n":2}"#), ("c", "3")] {
            done(|done| log.put_session(&id(name), record.into(), done)).expect("stored");
        }
        done(|done| log.delete_session(&id("c"), done)).expect("deleted");
        assert_eq!(log.last_heartbeat().expect("read"), None);
        for second in [1, 2] {
            done(|done| log.put_heartbeat(beat(second), done)).expect("stored");
        }
    };
    let check = |log: &EventLog| {
        let all = log.sessions().expect("the records");
        let all: Vec<_> = all.iter().map(|(id, record)| (id.as_str(), record.as_str())).collect();
        assert_eq!(all, [("a", r#"{"n":2}"#), ("b", "{}")]);
        assert_eq!(log.session(&id("b")).expect("a record").as_deref(), Some("{}"));
        assert_eq!(log.session(&id("c")).expect("no record"), None);
        assert_eq!(log.last_heartbeat().expect("read"), Some(beat(2)));
    };
    let memory = EventLog::memory(MemoryLimits::default());
    put(&memory);
    check(&memory);
    let log = open(&dir);
    put(&log);
    check(&log);
    drop(log);
    check(&open(&dir));
}

#[test]
fn retention_removes_the_oldest_batches() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(&dir);
    let (a, b) = (id("a"), id("b"));
    let retain = |retention| done(|done| log.retain(retention, done)).expect("a pass");
    for first in (1..=500).step_by(5) {
        append(&log, batch(&a, first, 5)).expect("appended");
        append(&log, batch(&b, first, 5)).expect("appended");
    }
    retain(Retention::default());
    assert_eq!(log.metrics().removed, 0);
    retain(Retention { max_events_per_session: Some(102), ..Retention::default() });
    assert_eq!(log.head(&a).map(|head| (head.first, head.last)), Some((401, 500)));
    let page = log.read(&a, 0, ReadLimit::default()).expect("a page");
    assert_eq!((page.events[0].offset, page.first_kept), (401, 401));
    assert_eq!(page.gap(0), Some(OffsetGap { from: 1, to: 400 }));
    let bytes = log.head(&b).expect("a stream").bytes;
    retain(Retention { max_bytes_per_session: Some(bytes / 2), ..Retention::default() });
    let head = log.head(&b).expect("a stream");
    assert!(head.bytes <= bytes / 2 && head.bytes > bytes / 2 - 2000, "{head:?}");
    append(&log, batch(&a, 501, 10)).expect("appended");
    let total = |log: &EventLog| log.streams().iter().map(|(_, head)| head.bytes).sum::<u64>();
    retain(Retention { max_bytes_total: Some(bytes / 4), ..Retention::default() });
    assert!(total(&log) <= bytes / 4);
    assert_eq!(log.head(&a).map(|head| head.last), Some(510));
    // One batch stays of each stream, however small the bound.
    append(&log, batch(&b, 501, 10)).expect("appended");
    retain(Retention { max_events_per_session: Some(1), ..Retention::default() });
    assert_eq!(log.head(&b).map(|head| (head.first, head.last)), Some((501, 510)));
    // Age spares nothing, and the offsets go on.
    retain(Retention { max_age: Some(Duration::ZERO), ..Retention::default() });
    drop(log);
    let log = open(&dir);
    if let Some(StreamPosition { first, .. }) = log.head(&b).filter(|head| head.first <= head.last) {
        // Made in this very millisecond, it is not older than now.
        assert_eq!(first, 501);
    }
    append(&log, batch(&b, 511, 1)).expect("appended");
    assert_eq!(read_all(&log, &b, 510).len(), 1);
}

#[test]
fn a_bound_on_all_events_together_takes_the_oldest_whosever_they_are() {
    on_both(|log| {
        let ids = ["a", "b", "c"].map(id);
        for first in (1..=100).step_by(5) {
            for (session, minutes) in ids.iter().zip(0..) {
                let mut batch = batch(session, first, 5);
                batch.created_at += Duration::from_secs(3600 * first + 60 * minutes);
                let at = |event: &Arc<ipc_protocol::Envelope>| {
                    Arc::new(ipc_protocol::Envelope { created_at: batch.created_at, ..(**event).clone() })
                };
                batch.events = batch.events.iter().map(at).collect();
                append(log, batch).expect("appended");
            }
        }
        let retain = |max| {
            let retention = Retention { max_events_total: Some(max), ..Retention::default() };
            done(|done| log.retain(retention, done)).expect("a pass");
        };
        let kept = |session: &Arc<ipc_protocol::SessionId>| log.head(session).map(|head| head.last + 1 - head.first);
        retain(300);
        assert_eq!(ids.each_ref().map(kept), [Some(100); 3], "it is not too much");
        // 20 of each, and of the first its next batch.
        retain(235);
        assert_eq!(ids.each_ref().map(kept), [Some(75), Some(80), Some(80)]);
        retain(15);
        assert_eq!(ids.each_ref().map(kept), [Some(5); 3]);
        assert_eq!(log.metrics().removed, 285);
    });
}

/// The order in which events of all streams were acknowledged is that of the file.
#[test]
fn streams_have_one_order_together() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(&dir);
    let ids = ["a", "b", "c"].map(id);
    let (told, acknowledged) = mpsc::channel();
    // Some wait together, and are committed together.
    for n in 1..=60_u32 {
        for session in &ids {
            let (told, name) = (told.clone(), session.to_string());
            let done = Box::new(move |result: Result<(), LogError>| {
                result.expect("stored");
                told.send((name, n)).expect("heard");
            });
            log.append(batch(session, n.into(), 1), done).expect("room");
        }
    }
    let acknowledged: Vec<_> = (0..180).map(|_| acknowledged.recv_timeout(DEADLINE).expect("acknowledged")).collect();
    drop(log);
    let file = rusqlite::Connection::open(dir.path().join("log.sqlite")).expect("opened");
    let sql = "SELECT streams.name, batches.first FROM batches JOIN streams ON streams.id = stream ORDER BY gid";
    let mut query = file.prepare(sql).expect("prepared");
    let rows = query.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, u32>(1)?))).expect("queried");
    let stored: Vec<_> = rows.collect::<Result<_, _>>().expect("read");
    assert_eq!(stored, acknowledged);
}

/// What is read of all streams together after a position: the next one, and of each event its stream and offset.
fn all_after(log: &EventLog, mut from: u64) -> (u64, Vec<String>) {
    let mut found = Vec::new();
    loop {
        let page = log.read_all(from, ReadLimit { events: 3, bytes: 1 << 20 }).expect("a page");
        let Some((last, _)) = page.last() else { return (from, found) };
        from = *last;
        found.extend(page.iter().map(|(_, event)| format!("{} {}", event.session, event.offset)));
    }
}

#[test]
fn all_streams_are_read_together_whatever_was_removed_meanwhile() {
    on_both(|log| {
        let [a, b] = ["a", "b"].map(id);
        assert_eq!(all_after(log, 0), (0, vec![]));
        for (session, first, count) in [(&a, 1, 2), (&b, 1, 2), (&a, 3, 1), (&b, 3, 2)] {
            append(log, batch(session, first, count)).expect("appended");
        }
        let (end, all) = all_after(log, 0);
        assert_eq!(all, ["a 1", "a 2", "b 1", "b 2", "a 3", "b 3", "b 4"]);
        let one = log.read_all(0, ReadLimit { events: 9, bytes: 1 }).expect("a page");
        assert_eq!(one.len(), 1, "at least one, however small the limit is");
        // From within a batch, too.
        assert_eq!(all_after(log, one[0].0).1, all[1..]);
        let keep = Retention { max_events_per_session: Some(2), ..Retention::default() };
        done(|done| log.retain(keep, done)).expect("a pass");
        // In memory `a` has kept one more: there each event is a batch.
        let kept: Vec<_> = all_after(log, 0).1.into_iter().filter(|event| event != "a 2").collect();
        assert_eq!(kept, ["a 3", "b 3", "b 4"]);
        assert_eq!(all_after(log, end), (end, vec![]), "nothing has moved");
        done(|done| log.delete(&a, done)).expect("deleted");
        append(log, batch(&b, 5, 1)).expect("appended");
        assert_eq!(all_after(log, 0).1, ["b 3", "b 4", "b 5"]);
        assert_eq!(all_after(log, end).1, ["b 5"]);
    });
}

#[test]
fn no_position_is_given_twice() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(&dir);
    let [a, b] = ["a", "b"].map(id);
    append(&log, batch(&a, 1, 1)).expect("appended");
    append(&log, batch(&b, 1, 4)).expect("appended");
    let (end, _) = all_after(&log, 0);
    // The last ones of all go, and then all.
    for gone in [&b, &a] {
        done(|done| log.delete(gone, done)).expect("deleted");
    }
    // A pass begins when what is deleted is gone.
    done(|done| log.retain(Retention::default(), done)).expect("a pass");
    drop(log);
    let log = open(&dir);
    assert_eq!(all_after(&log, 0), (0, vec![]));
    append(&log, batch(&a, 1, 1)).expect("appended");
    let (now, new) = all_after(&log, end);
    assert_eq!(new, ["a 1"]);
    let old = Retention { max_age: Some(Duration::ZERO), ..Retention::default() };
    while log.head(&a).is_some_and(|head| head.bytes > 0) {
        done(|done| log.retain(old, done)).expect("a pass");
    }
    drop(log);
    let log = open(&dir);
    append(&log, batch(&a, 2, 1)).expect("appended");
    assert_eq!(all_after(&log, now).1, ["a 2"]);
}

#[test]
fn what_is_imported_stands_where_that_began() {
    on_both(|log| {
        let [a, b] = ["a", "b"].map(id);
        let source = EventLog::memory(MemoryLimits::default());
        append(&source, batch(&b, 1, 2)).expect("appended");
        let mut exported = Vec::new();
        source.export(&b, &mut exported).expect("exported");
        append(log, batch(&a, 1, 1)).expect("appended");
        log.import(exported.as_slice()).expect("imported");
        append(log, batch(&a, 2, 1)).expect("appended");
        assert_eq!(all_after(log, 0).1, ["a 1", "b 1", "b 2", "a 2"]);
        // One that fails leaves nothing.
        log.import(&exported[..exported.len() - 9]).expect_err("it exists");
        assert_eq!(all_after(log, 0).1.len(), 4);
    });
}

#[test]
fn old_batches_go_and_the_offsets_go_on() {
    on_both(|log| {
        let a = id("a");
        let mut old = batch(&a, 1, 300);
        old.created_at -= Duration::from_secs(3600);
        let aged = |event: &Arc<ipc_protocol::Envelope>| {
            Arc::new(ipc_protocol::Envelope { created_at: old.created_at, ..(**event).clone() })
        };
        let events = old.events.iter().map(aged).collect();
        append(log, event_log::EventBatch { events, ..old.clone() }).expect("appended");
        let hour = Retention { max_age: Some(Duration::from_secs(1800)), ..Retention::default() };
        done(|done| log.retain(hour, done)).expect("a pass");
        let head = log.head(&a).expect("a stream");
        assert_eq!((head.first, head.last, head.bytes), (301, 300, 0));
        let page = log.read(&a, 0, ReadLimit::default()).expect("a page");
        assert_eq!((page.events.len(), page.gap(0)), (0, Some(OffsetGap { from: 1, to: 300 })));
        append(log, batch(&a, 301, 1)).expect("appended");
        done(|done| log.retain(hour, done)).expect("a pass");
        assert_eq!(read_all(log, &a, 0).len(), 1);
        assert_eq!(log.metrics().removed, 300);
    });
}

#[test]
fn a_deleted_stream_gives_its_room_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("log.sqlite");
    let log = open(&dir);
    let a = id("a");
    for first in (1..=20_000).step_by(2000) {
        let large = batch_of(&a, first, vec![Event::Text { text: "x".repeat(500) }; 2000]);
        append(&log, large).expect("appended");
    }
    drop(log);
    let before = std::fs::metadata(&path).expect("the file").len();
    assert!(before > 8 << 20, "{before}");
    let log = open(&dir);
    done(|done| log.delete(&a, done)).expect("deleted");
    // A pass of retention begins when what is deleted is gone.
    done(|done| log.retain(Retention::default(), done)).expect("a pass");
    // Slices of vacuum come one after the other while nobody appends: the file shrinks before the last handle is gone.
    let file = rusqlite::Connection::open(&path).expect("the file");
    let free = || file.pragma_query_value(None, "freelist_count", |row| row.get::<_, i64>(0)).expect("a count");
    let by = std::time::Instant::now() + DEADLINE;
    while free() > 256 {
        assert!(std::time::Instant::now() < by, "the file does not shrink");
        std::thread::yield_now();
    }
    drop((file, log));
    let after = std::fs::metadata(&path).expect("the file").len();
    assert!(after < before / 4, "{before} → {after}");
}

#[test]
fn a_full_queue_gives_the_batch_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = LogOptions { queue_bytes: 10_000, ..LogOptions::default() };
    let log = EventLog::open(dir.path().join("log.sqlite"), options).expect("a log");
    let (a, b) = (id("a"), id("b"));
    // A callback holds up the writer, so that what comes next waits.
    let (release, held) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    let begun = tell.clone();
    let hold = move |result: Result<(), LogError>| {
        begun.send(result).expect("told");
        let _ = held.recv_timeout(DEADLINE);
    };
    log.append(batch(&a, 1, 1), Box::new(hold)).expect("room");
    told.recv_timeout(DEADLINE).expect("told").expect("appended");
    let mut next = 1;
    let refused = loop {
        let tell = tell.clone();
        match log.append(batch(&b, next, 20), Box::new(move |result| tell.send(result).expect("told"))) {
            Ok(()) => next += 20,
            Err(full) => break full,
        }
        assert!(next < 10_000, "the queue has no bound");
    };
    let queued = log.metrics().queue_bytes;
    assert!((10_000..14_000).contains(&queued), "{queued}");
    release.send(()).expect("released");
    for _ in 0..(next / 20) {
        told.recv_timeout(DEADLINE).expect("told").expect("appended");
    }
    let QueueFull { batch, done } = refused;
    assert_eq!(batch.first, next);
    log.append(batch, done).expect("room again");
    told.recv_timeout(DEADLINE).expect("told").expect("appended");
    log.flush(DEADLINE).expect("flushed");
    assert_eq!((log.metrics().queue_bytes, read_all(&log, &b, 0).len() as u64), (0, next + 19));
}

/// Has the log's queue take nothing more: its writer stands still until what comes back is told, or dropped.
fn crowded(log: &EventLog) -> mpsc::Sender<()> {
    let (release, held) = mpsc::channel();
    let (tell, told) = mpsc::channel();
    let hold = move |_| {
        tell.send(()).expect("told");
        let _ = held.recv_timeout(DEADLINE);
    };
    log.put_heartbeat(beat(), Box::new(hold));
    told.recv_timeout(DEADLINE).expect("it stands still");
    let (tell, refused) = mpsc::channel();
    for n in 0.. {
        let tell = tell.clone();
        log.put_heartbeat(beat(), Box::new(move |result| _ = result.map_err(|error| tell.send(error))));
        match refused.try_recv() {
            Ok(LogError::Busy { .. }) => break,
            Ok(error) => panic!("{error}"),
            Err(_) => assert!(n < 10_000, "the queue has no bound"),
        }
    }
    release
}

fn beat() -> Heartbeat {
    Heartbeat { host: "h".into(), at: UNIX_EPOCH }
}

#[test]
fn a_stream_is_closed_behind_what_waits_however_much_that_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = LogOptions { queue_bytes: 10_000, ..LogOptions::default() };
    let log = EventLog::open(dir.path().join("log.sqlite"), options).expect("a log");
    let a = id("a");
    append(&log, batch(&a, 1, 1)).expect("appended");
    let release = crowded(&log);
    let (tell, told) = mpsc::channel();
    log.close(&a, Box::new(move |result| tell.send(result).expect("told")));
    assert!(told.try_recv().is_err(), "it waits with the rest");
    release.send(()).expect("it waits");
    told.recv_timeout(DEADLINE).expect("told").expect("closed");
    assert!(log.head(&a).expect("a stream").closed);
}

#[test]
fn the_newest_record_of_a_session_is_stored_however_much_waits() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = LogOptions { queue_bytes: 10_000, ..LogOptions::default() };
    let log = EventLog::open(dir.path().join("log.sqlite"), options).expect("a log");
    let (a, b, c) = (id("a"), id("b"), id("c"));
    for (session, record) in [(&a, "old"), (&b, "old"), (&c, "old")] {
        done(|done| log.put_session(session, record.into(), done)).expect("stored");
    }
    let release = crowded(&log);
    let queued = log.metrics().queue_bytes;
    let (tell, told) = mpsc::channel();
    let done = |n: usize| -> event_log::OnCommit {
        let tell = tell.clone();
        Box::new(move |result| tell.send((n, result)).expect("told"))
    };
    // The first of those that one takes the place of does not wait for ever.
    for n in 0..66 {
        log.put_session(&a, format!("a {n}"), done(n));
    }
    let (first, refused) = told.try_recv().expect("one is one too many");
    assert!(first == 0 && matches!(refused, Err(LogError::Busy { .. })), "{first}: {refused:?}");
    log.put_session(&b, "b".into(), done(100));
    log.delete_session(&b, done(101));
    log.delete_session(&c, done(102));
    log.put_session(&c, "c".into(), done(103));
    assert!(told.try_recv().is_err(), "they wait");
    assert_eq!(log.metrics().queue_bytes, queued, "and not in the queue");
    release.send(()).expect("it waits");
    let mut all: Vec<_> = (0..69)
        .map(|_| {
            let (n, result) = told.recv_timeout(DEADLINE).expect("told");
            result.expect("stored");
            n
        })
        .collect();
    all.sort_unstable();
    assert_eq!(all, (1..66).chain(100..104).collect::<Vec<_>>());
    let records: Vec<_> =
        log.sessions().expect("records").into_iter().map(|(id, text)| (id.to_string(), text)).collect();
    assert_eq!(records, [("a".to_owned(), "a 65".to_owned()), ("c".to_owned(), "c".to_owned())]);
    log.flush(DEADLINE).expect("there is room again");
}

#[test]
fn what_waits_for_room_is_stored_by_a_log_that_is_closed() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = LogOptions { queue_bytes: 10_000, ..LogOptions::default() };
    let log = EventLog::open(dir.path().join("log.sqlite"), options).expect("a log");
    let release = crowded(&log);
    log.put_session(&id("a"), "new".into(), Box::new(|result| result.expect("stored")));
    release.send(()).expect("it waits");
    drop(log);
    assert_eq!(open(&dir).session(&id("a")).expect("readable").as_deref(), Some("new"));
}

#[test]
fn a_callback_that_panics_or_holds_the_last_handle_harms_nobody() {
    let dir = tempfile::tempdir().expect("a directory");
    let a = id("a");
    let log = open(&dir);
    log.append(batch(&a, 1, 1), Box::new(|_| panic!("a callback's own panic"))).expect("room");
    append(&log, batch(&a, 2, 1)).expect("appended");
    let (tell, told) = mpsc::channel();
    let last = log.clone();
    let (go, may_go) = mpsc::channel::<()>();
    let done = move |result| {
        let _ = may_go.recv_timeout(DEADLINE);
        drop(last);
        tell.send(result).expect("told");
    };
    log.append(batch(&a, 3, 1), Box::new(done)).expect("room");
    drop(log);
    go.send(()).expect("the callback waits");
    told.recv_timeout(DEADLINE).expect("told").expect("appended");
    // Its writer lets go of the file a moment later.
    let by = std::time::Instant::now() + DEADLINE;
    let log = loop {
        match EventLog::open(dir.path().join("log.sqlite"), LogOptions::default()) {
            Err(LogError::Locked { .. }) if std::time::Instant::now() < by => std::thread::yield_now(),
            opened => break opened.expect("a log"),
        }
    };
    assert_eq!(read_all(&log, &a, 0).len(), 3);
}

/// Sets its flag when it goes, if by a panic: else who looks at it would go on for ever.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn readers_see_no_hole_while_others_append_and_remove() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(&dir);
    let a = id("a");
    append(&log, batch(&a, 1, 3)).expect("appended");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let read = || {
            let mut pages = 0_u64;
            while !over.load(Ordering::Relaxed) || pages == 0 {
                let page = log.read(&a, 0, ReadLimit { events: 50, bytes: 1 << 20 }).expect("a page");
                let Some(first) = page.events.first().map(|event| event.offset) else {
                    // Everything was removed that there was when the reading began.
                    assert!(page.gap(0).is_some_and(|gap| gap.to >= page.last), "{page:?}");
                    continue;
                };
                assert!(page.events.iter().zip(first..).all(|(event, offset)| event.offset == offset));
                assert!(page.events.last().is_some_and(|event| event.offset <= page.last));
                let lines = log.read_lines(&a, page.last - 1, ReadLimit::default()).expect("lines");
                assert!(lines.next >= page.last || lines.first_kept > page.last, "{lines:?}");
                assert!(lines.first_kept <= lines.last + 1);
                pages += 1;
            }
        };
        let readers = [scope.spawn(read), scope.spawn(read)];
        let appending = Over(&over);
        for first in (4..3000).step_by(3) {
            log.append(batch(&a, first, 3), Box::new(|result| result.expect("appended"))).expect("room");
            if first % 5 == 0 {
                let keep = Retention { max_events_per_session: Some(20), ..Retention::default() };
                done(|done| log.retain(keep, done)).expect("a pass");
            }
        }
        drop(appending);
        readers.into_iter().for_each(|reader| reader.join().expect("a reader without a complaint"));
    });
    log.flush(DEADLINE).expect("flushed");
    assert_eq!(log.head(&a).map(|head| head.last), Some(3000));
}
