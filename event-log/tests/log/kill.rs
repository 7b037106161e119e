//! What was acknowledged survives `kill -9`. `EVENT_LOG_KILLS` says how often: 10, or 200 for `tests/full`.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, RandomState},
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use crate::common::{id, read_all};
use event_log::{EventLog, LogOptions};
use ipc_protocol::Event;

const THREADS: u64 = 3;

/// A number below `bound`.
fn random(bound: u64) -> u64 {
    RandomState::new().hash_one(bound) % bound
}

/// Starts a writer, kills it at a random moment, and gives what it had acknowledged.
fn killed_writer(path: &Path) -> BTreeMap<String, u64> {
    #[expect(clippy::disallowed_methods, reason = "a child of the test's own, killed and reaped here")]
    let mut command = Command::new(env!("CARGO_BIN_EXE_log-writer"));
    let mut child = command.arg(path).arg(THREADS.to_string()).stdout(Stdio::piped()).spawn().expect("a writer");
    let mut lines = BufReader::new(child.stdout.take().expect("its stdout"));
    let mut acknowledged = BTreeMap::new();
    let mut line = String::new();
    let (mut seen, kill_after) = (0, 1 + random(400));
    while {
        line.clear();
        lines.read_line(&mut line).expect("a line")
    } > 0
    {
        // The last line may be cut: then nobody has read it.
        if let Some((stream, last)) = line.strip_suffix('\n').and_then(|line| line.split_once(' ')) {
            acknowledged.insert(stream.to_owned(), last.parse().expect("an offset"));
            seen += 1;
        }
        if seen == kill_after {
            // Anywhere in what the writer does between two acknowledgements.
            std::thread::sleep(Duration::from_micros(random(4000)));
            child.kill().expect("killed");
        }
    }
    assert!(!child.wait().expect("reaped").success(), "the writer ended by itself");
    assert!(seen >= kill_after, "the writer ended after {seen} acknowledgements");
    acknowledged
}

#[test]
fn what_was_acknowledged_survives() {
    let kills = std::env::var("EVENT_LOG_KILLS").map_or(10, |text| text.parse().expect("EVENT_LOG_KILLS: a number"));
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("log.sqlite");
    let mut verified: BTreeMap<String, u64> = BTreeMap::new();
    for round in 0..kills {
        let acknowledged = killed_writer(&path);
        let log = EventLog::open(&path, LogOptions::default()).expect("a log");
        for (name, head) in log.streams() {
            let session = id(name.as_str());
            let known = verified.entry(name.to_string()).or_default();
            // All of them in the last round, else the new ones.
            let from = if round + 1 == kills { 0 } else { *known };
            let events = read_all(&log, &session, from);
            for (envelope, offset) in events.iter().zip(from + 1..) {
                assert_eq!(envelope.offset, offset, "a hole or a doubled event in {name}, round {round}");
                assert_eq!(envelope.event, Event::Text { text: format!("{name} {offset}") });
            }
            let last = events.last().map_or(from, |event| event.offset);
            assert_eq!(last, head.last, "{name}, round {round}");
            assert!(last >= *known, "{name} lost events that an earlier round had seen, round {round}");
            // A batch is whole or not there, and its cursor and source with it.
            assert_eq!((head.source, log.cursor("consumer", &session).expect("a cursor")), (last, last));
            *known = last;
        }
        for (name, last) in acknowledged {
            assert!(verified.get(&name).is_some_and(|kept| *kept >= last), "{name} {last} was lost, round {round}");
        }
        drop(log);
        let file = rusqlite::Connection::open(&path).expect("the file");
        let check: String = file.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("a check");
        assert_eq!(check, "ok", "round {round}");
    }
    assert_eq!(verified.len() as u64, THREADS * 2);
}
