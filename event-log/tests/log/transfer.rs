//! Imports that are refused leave nothing behind.

use event_log::{EventLog, LogError, MemoryLimits};
use ipc_protocol::{EndReason, Event, OffsetGap};

use crate::common::{append, batch, batch_of, id, open, read_all};

/// The public lines of `count` events of session `a`.
fn exported(count: u64) -> String {
    let log = EventLog::memory(MemoryLimits::default());
    append(&log, batch(&id("a"), 1, count)).expect("appended");
    let mut lines = Vec::new();
    log.export(&id("a"), &mut lines).expect("exported");
    String::from_utf8(lines).expect("text")
}

fn on_both(test: impl Fn(&EventLog)) {
    let dir = tempfile::tempdir().expect("a directory");
    test(&EventLog::memory(MemoryLimits::default()));
    test(&open(&dir));
}

fn refused(log: &EventLog, lines: &str) -> (u64, String) {
    match log.import(lines.as_bytes()) {
        Err(LogError::Import { line, detail }) => (line, detail),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_stream_that_exists_is_not_imported_over() {
    on_both(|log| {
        let lines = exported(3);
        append(log, batch(&id("a"), 1, 1)).expect("appended");
        let error = log.import(lines.as_bytes()).expect_err("refused");
        assert!(matches!(error, LogError::Exists { .. }), "{error}");
        assert_eq!(error.to_string(), "import the stream of a: it exists; delete it first");
        assert_eq!(read_all(log, &id("a"), 0).len(), 1);
    });
}

#[test]
fn what_is_wrong_is_told_with_its_line() {
    on_both(|log| {
        let lines = exported(10_000);
        assert_eq!(refused(log, ""), (1, "there is no event; nothing was imported".to_owned()));
        assert_eq!(refused(log, "\n\nnonsense").0, 3);
        assert_eq!(refused(log, "{\"offset\":\"1\"}").0, 1);
        let bad_payload = lines.replacen("\"text\":\"event 9999\"", "\"txet\":\"event 9999\"", 1);
        let (line, detail) = refused(log, &bad_payload);
        assert_eq!((line, detail.contains("missing field `text`")), (9999, true), "{detail}");
        let hole: String = lines.split_inclusive('\n').filter(|line| !line.contains("event 7000\"")).collect();
        assert_eq!(refused(log, &hole), (7000, "its offset is 7001, 7000 comes next".to_owned()));
        let other = lines.replacen("\"eventStreamId\":\"a\"", "\"eventStreamId\":\"b\"", 1);
        let detail = "it is of session a, those before are of b; import one at a time".to_owned();
        assert_eq!(refused(log, &other), (2, detail));
        assert!(log.streams().is_empty());
        // Nothing is in the way of the next try.
        let imported = log.import(lines.as_bytes()).expect("imported");
        assert_eq!((imported.first, imported.last), (1, 10_000));
        assert_eq!(read_all(log, &id("a"), 9_990).len(), 10);
        append(log, batch(&id("a"), 10_001, 1)).expect("it goes on");
    });
}

#[test]
fn a_stream_may_begin_late_have_a_gap_and_be_over() {
    on_both(|log| {
        let ended = Event::SessionEnded { reason: EndReason::Killed, receipt: None };
        let gap = Event::SessionGap(OffsetGap { from: 8, to: 20 });
        let whole = batch_of(&id("a"), 6, vec![Event::SessionIdle {}, Event::SessionBusy {}]);
        let after = batch_of(&id("a"), 20, vec![gap, ended]);
        let events = [whole.events, after.events].concat();
        let lines: String = events.iter().map(|event| format!("{}\n", event.to_json().expect("JSON"))).collect();
        let imported = log.import(lines.as_bytes()).expect("imported");
        assert_eq!((imported.first, imported.last), (6, 21));
        assert_eq!(read_all(log, &id("a"), 0), events);
        let head = log.head(&id("a")).expect("a stream");
        assert_eq!((head.first, head.last, head.closed), (6, 21, true));
    });
}

#[test]
fn an_import_that_a_crash_cut_short_is_swept_away() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("log.sqlite");
    drop(open(&dir));
    let file = rusqlite::Connection::open(&path).expect("the file");
    file.execute_batch(
        "INSERT INTO streams (name) VALUES (NULL);
        INSERT INTO batches (stream, first, last, created_ms, source, bytes, sum, body) VALUES (1, 1, 1, 0, 0, 1, 0, 'x');",
    )
    .expect("the remains of an import");
    drop(file);
    let log = open(&dir);
    crate::common::done(|done| log.retain(event_log::Retention::default(), done)).expect("a pass");
    drop(log);
    let file = rusqlite::Connection::open(&path).expect("the file");
    let left: i64 = file
        .query_row("SELECT (SELECT count(*) FROM batches) + (SELECT count(*) FROM streams)", [], |row| row.get(0))
        .expect("a count");
    assert_eq!(left, 0);
}
