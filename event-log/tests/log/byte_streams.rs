//! Byte streams: what the protocol's own tests, which see them over HTTP, do not.

use std::{
    sync::mpsc,
    time::{Duration, SystemTime},
};

use event_log::{
    ByteStreamAppend, ByteStreamChange, ByteStreamOutcome, ByteStreamRefusal, EventLog, LogError, MemoryLimits,
    NewByteStream, ProducerSequence, StreamContent, StreamFork, StreamLifetime,
};

use crate::common::{DEADLINE, done, open};

fn change(log: &EventLog, change: ByteStreamChange) -> Result<ByteStreamOutcome, LogError> {
    let (tell, told) = mpsc::channel();
    log.change_byte_stream(change, Box::new(move |outcome| drop(tell.send(outcome))));
    told.recv_timeout(DEADLINE).expect("an answer")
}

fn new(path: &str, content_type: &str) -> NewByteStream {
    NewByteStream {
        path: path.to_owned(),
        content_type: Some(content_type.to_owned()),
        lifetime: StreamLifetime::Unbounded,
        is_closed: false,
        content: StreamContent::default(),
        fork: None,
        has_rules: false,
    }
}

fn create(log: &EventLog, new: NewByteStream) {
    let outcome = change(log, ByteStreamChange::Create(Box::new(new))).expect("taken");
    assert!(matches!(outcome, ByteStreamOutcome::Created(_)), "{outcome:?}");
}

fn append(log: &EventLog, path: &str, content: StreamContent, producer: Option<(u64, u64)>) -> ByteStreamOutcome {
    let content_type = log.byte_stream(path).expect("a stream").content_type.to_string();
    let producer = producer.map(|(epoch, seq)| ProducerSequence { id: "p".into(), epoch, seq });
    let append = ByteStreamAppend { path: path.to_owned(), content_type, content, closes: false, seq: None, producer };
    change(log, ByteStreamChange::Append(Box::new(append))).expect("taken")
}

fn all(log: &EventLog, path: &str, most: usize) -> Vec<u8> {
    let (mut bytes, mut from) = (Vec::new(), 0);
    loop {
        let page = log.read_byte_stream(path, from, most).expect("a page");
        if page.next == from {
            return bytes;
        }
        (from, bytes) = (page.next, [bytes, page.bytes].concat());
    }
}

#[test]
fn forks_of_forks_are_read_through_their_sources_a_page_at_a_time() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(&dir);
    create(&log, new("a", "text/plain"));
    // Longer than a row.
    let long: Vec<u8> = (0..600_000_u32).map(|index| b'a' + (index % 26) as u8).collect();
    append(&log, "a", StreamContent::bytes(long.clone()), None);
    let fork = |path: &str, source: &str, at: u64| NewByteStream {
        fork: Some(StreamFork { source: source.into(), at: Some(at), beyond: 0, copied: None }),
        ..new(path, "text/plain")
    };
    create(&log, fork("b", "a", 300_001));
    append(&log, "b", StreamContent::bytes(b"of b".to_vec()), None);
    create(&log, fork("c", "b", 300_003));
    append(&log, "c", StreamContent::bytes(b"of c".to_vec()), None);
    append(&log, "a", StreamContent::bytes(b"later".to_vec()), None);
    let delete = |path: &str| change(&log, ByteStreamChange::Delete(path.into())).expect("taken");
    assert_eq!((delete("a"), delete("b")), (ByteStreamOutcome::Deleted, ByteStreamOutcome::Deleted));
    drop(log);
    let log = open(&dir);
    let wanted = [&long[..300_001], b"ofof c"].concat();
    for most in [1, 100_000, usize::MAX] {
        assert!(all(&log, "c", most) == wanted, "pages of {most}");
    }
    assert!(log.byte_stream("a").is_some_and(|info| info.is_deleted));
    change(&log, ByteStreamChange::Delete("c".into())).expect("taken");
    assert!(["a", "b", "c"].iter().all(|path| log.byte_stream(path).is_none()), "nobody needs them");
    done(|done| log.retain(event_log::Retention::default(), done)).expect("their rows are gone");
    drop(log);
    let file = rusqlite::Connection::open(dir.path().join("log.sqlite")).expect("the file");
    let left = |table: &str| file.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0));
    assert_eq!((left("byte_rows"), left("byte_streams")), (Ok(0), Ok(0)));
}

#[test]
fn a_producer_is_known_after_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(&dir);
    create(&log, new("a", "application/json"));
    let one = || StreamContent::messages([&b"{\n}"[..]]);
    assert!(matches!(append(&log, "a", one(), Some((1, 0))), ByteStreamOutcome::Appended(_)));
    drop(log);
    let log = open(&dir);
    assert!(matches!(append(&log, "a", one(), Some((1, 0))), ByteStreamOutcome::Duplicate(_, 0)));
    let refused = |numbers| match append(&log, "a", one(), Some(numbers)) {
        ByteStreamOutcome::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused((0, 1)), ByteStreamRefusal::StaleEpoch(1));
    assert_eq!(refused((1, 2)), ByteStreamRefusal::SequenceGap(1));
    assert_eq!(refused((2, 1)), ByteStreamRefusal::EpochStart);
    assert_eq!(all(&log, "a", 1), b"{ }\n");
}

#[test]
fn a_stream_whose_life_is_over_is_gone_with_its_content() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(&dir);
    let past = SystemTime::now() - Duration::from_secs(1);
    create(&log, NewByteStream { lifetime: StreamLifetime::Until(past), ..new("a", "text/plain") });
    assert!(log.byte_stream("a").is_none());
    log.expire_byte_streams();
    log.flush(DEADLINE).expect("done");
    create(&log, new("a", "application/json"));
    assert!(log.byte_stream("a").is_some_and(|info| info.is_json()));
}

#[test]
fn damage_is_told_and_the_rest_is_salvaged() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("log.sqlite");
    let log = open(&dir);
    create(&log, new("a", "application/json"));
    for message in [&b"1"[..], b"2", b"3"] {
        append(&log, "a", StreamContent::messages([message]), None);
    }
    drop(log);
    let file = rusqlite::Connection::open(&path).expect("the file");
    file.execute("UPDATE byte_rows SET body = CAST('7\n' AS BLOB) WHERE last = 2", []).expect("damaged");
    drop(file);
    let log = open(&dir);
    // What is before it is read.
    let page = log.read_byte_stream("a", 0, 100).expect("the beginning is whole");
    assert_eq!((&page.bytes[..], page.next), (&b"1\n"[..], 1));
    let damaged = log.read_byte_stream("a", 1, 100).expect_err("damaged");
    assert!(matches!(damaged, LogError::Corrupt { .. }), "{damaged}");
    assert!(
        damaged.to_string().contains("it is damaged (the content after position 1 is not what was written"),
        "{damaged}"
    );
    assert_eq!(log.read_byte_stream("a", 2, 100).expect("behind it").bytes, b"3\n");
    drop(log);
    let salvaged = tempfile::tempdir().expect("a directory");
    let found = event_log::salvage(&path, &salvaged.path().join("log.sqlite"), &|_| Ok(())).expect("salvaged");
    assert!(
        found.damage.iter().any(|damage| damage.to_string().contains("1 rows of the content")),
        "{:?}",
        found.damage
    );
    assert_eq!(all(&open(&salvaged), "a", 100), b"1\n3\n");
}

#[test]
fn a_log_in_memory_has_none() {
    let log = EventLog::memory(MemoryLimits::default());
    let refused = change(&log, ByteStreamChange::Create(Box::new(new("a", "text/plain"))));
    assert!(matches!(refused, Err(LogError::InMemory)), "{refused:?}");
}
