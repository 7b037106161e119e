//! Files of all releases: the code that had schema N has written `old/schema-N.sql`. Each has what `fill` writes. A migration itself is
//! tested in `src/sqlite/schema.rs`, with a made-up second schema.

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use event_log::{EventBatch, EventLog, Heartbeat, LogError, ReadLimit, Retention};
use ipc_protocol::{EndReason, Envelope, Event, Json, OffsetGap, RawLine};
use rusqlite::{Connection, types::ValueRef};
use serde_json::json;

use crate::common::{append, batch, done, id, open, read_all};

/// Every schema that a release had.
const FILES: [(i64, &str); 4] = [
    (1, include_str!("old/schema-1.sql")),
    (2, include_str!("old/schema-2.sql")),
    (3, include_str!("old/schema-3.sql")),
    (4, include_str!("old/schema-4.sql")),
];

fn ms(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

/// What is appended, in this order. An event each millisecond.
fn batches() -> Vec<EventBatch> {
    let made = |at, name, offset, turn, events: Vec<Event>| {
        let session = id(name);
        let envelope = |(n, event)| {
            let (offset, created_at) = (offset + n, ms(at + n));
            Arc::new(Envelope { offset, created_at, session: Arc::clone(&session), turn, metadata: None, event })
        };
        let events = (0..).zip(events).map(envelope).collect();
        EventBatch { session: Arc::clone(&session), created_at: ms(at), first: offset, events, source: 0, cursor: None }
    };
    let text = |text: &str| Event::Text { text: text.into() };
    let cursor = |consumer: &str, offset| Some((consumer.to_owned(), offset));
    let begun = Event::SessionStatus { status: "begun".into(), detail: "it's \"one\"\n".into() };
    let prompt = Event::TurnStarted { prompt: "hällo".into(), attachments: vec![] };
    let payload = Json::from(&json!({ "content": ["go on", 1.5, null] }));
    let called = Event::External { kind: "agent:action:prompt:called".into(), version: 3, payload };
    let line = br#"{ "type": "x", "deep": {"er":[]}}"#;
    let harness = Event::Harness { agent: "pi".into(), payload: RawLine::from(&line[..]) };
    let ended = Event::SessionEnded { reason: EndReason::Killed, receipt: None };
    let gap = made(
        1_700_000_006_000,
        "two",
        6,
        Some(1),
        vec![Event::SessionGap(OffsetGap { from: 3, to: 6 }), text("two 7")],
    );
    let called = made(1_700_000_005_000, "one", 4, None, vec![called]);
    let aged = made(1_700_000_008_000, "aged", 4, None, vec![text("aged 4")]);
    let deleted = made(1_700_000_009_000, "deleted", 1, None, vec![text("deleted 1")]);
    vec![
        made(1_700_000_001_000, "one", 1, None, vec![begun]),
        EventBatch { source: 7, ..made(1_700_000_002_000, "one", 2, Some(1), vec![prompt, text("one 3")]) },
        EventBatch { source: 3, ..made(1_700_000_003_000, "two", 1, Some(1), vec![text("two 1"), text("two 2")]) },
        made(1, "aged", 1, None, vec![text("aged 1"), text("aged 2"), text("aged 3")]),
        EventBatch { source: 9, cursor: cursor("actions", 4), ..called },
        EventBatch { first: 3, source: 8, cursor: cursor("reader", 7), ..gap },
        made(1_700_000_007_000, "over", 1, Some(2), vec![Event::SessionIdle {}, ended]),
        EventBatch { cursor: cursor("reader", 2), ..aged },
        EventBatch { cursor: cursor("reader", 1), ..deleted },
        EventBatch { source: 12, ..made(1_700_000_010_000, "one", 5, Some(2), vec![harness, text("one 6")]) },
        made(1_700_000_011_000, "last", 1, None, vec![text("last 1")]),
    ]
}

/// Of a stream that is deleted, or so old that retention takes it.
fn is_removed(batch: &EventBatch) -> bool {
    ["deleted", "last"].contains(&batch.session.as_str()) || batch.created_at == ms(1)
}

fn beat() -> Heartbeat {
    Heartbeat { host: "1@boot".into(), at: ms(1_700_000_050_123) }
}

/// What each of the files is the work of.
fn fill(log: &EventLog) {
    for batch in batches() {
        append(log, batch).expect("appended");
    }
    done(|done| log.close(&id("over"), done)).expect("closed");
    for name in ["deleted", "last"] {
        done(|done| log.delete(&id(name), done)).expect("deleted");
    }
    done(|done| log.set_cursor("reader", &id("one"), 2, done)).expect("stored");
    let two = r#"{"title":"it's two"}"#;
    for (name, record) in [("one", "{}"), ("two", two), ("one", r#"{"title":"one","turns":2}"#), ("gone", "{}")] {
        done(|done| log.put_session(&id(name), record.into(), done)).expect("stored");
    }
    done(|done| log.delete_session(&id("gone"), done)).expect("deleted");
    let years = Duration::from_secs(30 * 365 * 24 * 60 * 60);
    done(|done| log.retain(Retention { max_age: Some(years), ..Retention::default() }, done)).expect("retained");
    done(|done| log.put_heartbeat(beat(), done)).expect("stored");
}

/// All that `fill` has left is there, where it was.
fn has_everything(log: &EventLog) {
    let kept: Vec<_> =
        batches().into_iter().filter(|batch| !is_removed(batch)).flat_map(|batch| batch.events).collect();
    let all = log.read_all(0, ReadLimit::default()).expect("read");
    assert!(all.is_sorted_by(|(before, _), (after, _)| before < after), "{all:?}");
    assert_eq!(all.into_iter().map(|(_, event)| event).collect::<Vec<_>>(), kept);
    let mut streams = log.streams();
    streams.sort_by(|(a, _), (b, _)| a.as_str().cmp(b.as_str()));
    let shown = streams.iter().map(|(session, head)| {
        let of = kept.iter().filter(|event| event.session.as_str() == session.as_str());
        assert_eq!(read_all(log, &id(session.as_str()), 0), of.cloned().collect::<Vec<_>>());
        (session.as_str(), head.first, head.last, head.closed, head.source, head.bytes)
    });
    let wanted = [
        ("aged", 4, 4, false, 0, 40),
        ("one", 1, 6, false, 12, 471),
        ("over", 1, 2, true, 0, 103),
        ("two", 1, 7, false, 8, 235),
    ];
    assert_eq!(shown.collect::<Vec<_>>(), wanted);
    let cursors = [("actions", "one", 4), ("reader", "one", 2), ("reader", "two", 7), ("reader", "aged", 2)];
    for (consumer, session, offset) in cursors {
        assert_eq!(log.cursor(consumer, &id(session)).expect("read"), offset, "{consumer} of {session}");
    }
    let records = [("one", r#"{"title":"one","turns":2}"#), ("two", r#"{"title":"it's two"}"#)];
    let found = log.sessions().expect("read");
    assert_eq!(found.iter().map(|(id, record)| (id.as_str(), &**record)).collect::<Vec<_>>(), records);
    assert_eq!(log.last_heartbeat().expect("read"), Some(beat()));
}

/// A file as its release has left it.
fn load(path: &Path, sql: &str) {
    Connection::open(path).and_then(|file| file.execute_batch(sql)).expect("made");
}

fn number(file: &Connection, name: &str) -> i64 {
    file.pragma_query_value(None, name, |row| row.get(0)).expect("a number")
}

/// The version of the schema, and the schema.
fn schema(path: &Path) -> (i64, Vec<(String, Option<String>)>) {
    let file = Connection::open(path).expect("the file");
    let mut all = file.prepare("SELECT name, sql FROM sqlite_schema ORDER BY name").expect("a query");
    let all = all.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).expect("rows");
    (number(&file, "user_version"), all.collect::<Result<_, _>>().expect("rows"))
}

/// That of a file which this release has made.
fn schema_now() -> (i64, Vec<(String, Option<String>)>) {
    let dir = tempfile::tempdir().expect("a directory");
    drop(open(&dir));
    schema(&dir.path().join("log.sqlite"))
}

/// The place of the newest event of all streams.
fn newest(log: &EventLog) -> u64 {
    log.read_all(0, ReadLimit::default()).expect("read").last().expect("an event").0
}

#[test]
fn it_is_read_and_gone_on_with() {
    for (version, sql) in FILES {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("log.sqlite");
        load(&path, sql);
        assert_eq!(schema(&path).0, version);
        // What is brought up to date is opened again as it is.
        for _ in 0..2 {
            has_everything(&open(&dir));
            assert_eq!(schema(&path), schema_now(), "from schema {version}");
        }
        let log = open(&dir);
        let before = newest(&log);
        append(&log, batch(&id("one"), 7, 2)).expect("appended");
        assert!(matches!(append(&log, batch(&id("over"), 3, 1)), Err(LogError::Closed { .. })));
        append(&log, batch(&id("aged"), 5, 1)).expect("appended");
        // Its name is free. It is the newest, and no other has its place when it is removed again.
        append(&log, batch(&id("last"), 1, 1)).expect("appended");
        let all = log.read_all(before, ReadLimit::default()).expect("read");
        let all: Vec<_> = all.iter().map(|(_, event)| (event.session.as_str(), event.offset)).collect();
        assert_eq!(all, [("one", 7), ("one", 8), ("aged", 5), ("last", 1)]);
        let place = newest(&log);
        done(|done| log.delete(&id("last"), done)).expect("deleted");
        done(|done| log.retain(Retention::default(), done)).expect("its rows are gone");
        append(&log, batch(&id("two"), 8, 1)).expect("appended");
        assert!(newest(&log) > place);
        done(|done| log.set_cursor("actions", &id("aged"), 5, done)).expect("stored");
        done(|done| log.put_heartbeat(beat(), done)).expect("stored");
        drop(log);
        let log = open(&dir);
        for (name, last) in [("one", 8), ("two", 8), ("aged", 5), ("over", 2)] {
            assert_eq!(log.head(&id(name)).expect("a stream").last, last);
        }
        assert_eq!(log.cursor("actions", &id("aged")).expect("read"), 5);
        assert_eq!(log.last_heartbeat().expect("read"), Some(beat()));
    }
}

/// A change of the schema needs a file of it, for the change after it.
#[test]
fn there_is_a_file_of_each_schema() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("log.sqlite");
    let log = open(&dir);
    fill(&log);
    has_everything(&log);
    drop(log);
    let version = schema(&path).0;
    if FILES.iter().map(|(version, _)| *version).eq(1..=version) {
        return;
    }
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("schema-{version}.sql"));
    fs::write(&kept, dump(&path)).expect("written");
    panic!("The schema is {version}. Put {} beside those of the others, and name it in FILES.", kept.display());
}

/// A file as text that makes it again.
fn dump(path: &Path) -> String {
    let file = Connection::open(path).expect("the file");
    let rows = |sql: &str, write: &mut dyn FnMut(&rusqlite::Row<'_>)| {
        let mut query = file.prepare(sql).expect("a query");
        let mut rows = query.query([]).expect("rows");
        while let Some(row) = rows.next().expect("a row") {
            write(row);
        }
    };
    let quoted = |text: &[u8]| format!("'{}'", str::from_utf8(text).expect("UTF-8").replace('\'', "''"));
    let value = |value: ValueRef<'_>| match value {
        ValueRef::Null => "NULL".to_owned(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Real(number) => number.to_string(),
        ValueRef::Text(text) => quoted(text),
        ValueRef::Blob(bytes) => format!("CAST({} AS BLOB)", quoted(bytes)),
    };
    let mut sql = format!("-- What an event log has written whose schema is {}.\n", number(&file, "user_version"));
    // The size of pages and what is done with free ones are for an empty file.
    for name in ["page_size", "auto_vacuum", "application_id", "user_version"] {
        writeln!(sql, "PRAGMA {name} = {};", number(&file, name)).expect("a string takes it");
    }
    sql += "PRAGMA journal_mode = WAL;\nBEGIN;\n";
    let mut tables = Vec::new();
    let made =
        "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name <> 'sqlite_sequence' ORDER BY rowid";
    rows(made, &mut |row| {
        sql += &format!("{};\n", row.get::<_, String>(2).expect("text"));
        tables.extend((row.get_ref(0).expect("text").as_str() == Ok("table")).then(|| row.get(1).expect("text")));
    });
    // Which has a row for each table with numbers that are not given again.
    tables.push("sqlite_sequence".to_owned());
    for table in tables {
        if table == "sqlite_sequence" {
            sql += "DELETE FROM sqlite_sequence;\n";
        }
        rows(&format!("SELECT * FROM {table}"), &mut |row| {
            let columns = row.as_ref().column_count();
            let values: Vec<_> = (0..columns).map(|index| value(row.get_ref(index).expect("a value"))).collect();
            sql += &format!("INSERT INTO {table} VALUES ({});\n", values.join(", "));
        });
    }
    sql + "COMMIT;\n"
}
