//! Group commit: what waits is committed together.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use event_log::{EventLog, LogError};
use ipc_protocol::SessionId;

use crate::common::{DEADLINE, batch, id, open, read_all};

const SESSIONS: u64 = 64;
/// Batches of each.
const BATCHES: u64 = 100;

/// The log's writer stands still until what comes back is told, or dropped.
fn stall(log: &EventLog) -> mpsc::Sender<()> {
    let (release, held) = mpsc::channel();
    let (tell, told) = mpsc::channel();
    let hold = move |_| {
        tell.send(()).expect("told");
        let _ = held.recv_timeout(DEADLINE);
    };
    log.put_session(&id("other"), String::new(), Box::new(hold));
    told.recv_timeout(DEADLINE).expect("it stands still");
    release
}

#[test]
fn what_many_sessions_append_at_once_is_one_commit() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(&dir);
    let sessions: Vec<Arc<SessionId>> = (0..SESSIONS).map(|n| id(&format!("s-{n}"))).collect();
    let (tell, told) = mpsc::channel::<(u64, Result<(), LogError>, u64)>();
    let release = stall(&log);
    let before = log.metrics();
    thread::scope(|scope| {
        for (n, session) in (0..).zip(&sessions) {
            let (log, tell) = (&log, tell.clone());
            scope.spawn(move || {
                for first in 1..=BATCHES {
                    let (tell, seen) = (tell.clone(), log.clone());
                    let done = move |result| tell.send((n, result, seen.metrics().commits)).expect("heard");
                    log.append(batch(session, first, 1), Box::new(done)).expect("room");
                }
            });
        }
    });
    drop(tell);
    assert!(told.try_recv().is_err(), "nothing is told before it is committed");
    release.send(()).expect("it waits");
    let mut counts = [0; SESSIONS as usize];
    for _ in 0..SESSIONS * BATCHES {
        let (n, result, commits) = told.recv_timeout(DEADLINE).expect("told");
        result.expect("appended");
        // All of them by the first commit: there is no other.
        assert_eq!(commits, before.commits + 1);
        counts[usize::try_from(n).expect("few")] += 1;
    }
    assert_eq!(counts, [BATCHES; SESSIONS as usize]);
    let after = log.metrics();
    assert_eq!((after.commits, after.events), (before.commits + 1, before.events + SESSIONS * BATCHES));
    for session in &sessions {
        let offsets: Vec<_> = read_all(&log, session, 0).iter().map(|event| event.offset).collect();
        assert_eq!(offsets, (1..=BATCHES).collect::<Vec<_>>(), "{session}");
    }
}

#[test]
fn what_is_put_together_is_one_commit() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(&dir);
    let session = id("s");
    let mut at_once = 0;
    for offset in 1..=BATCHES {
        let (before, begun) = (log.metrics().commits, Instant::now());
        let (tell, told) = mpsc::channel();
        let hear = || {
            let tell = tell.clone();
            Box::new(move |result| tell.send(result).expect("heard"))
        };
        let together = log.hold_commits();
        log.append(batch(&session, offset, 1), hear()).expect("room");
        thread::yield_now();
        log.put_session(&session, offset.to_string(), hear());
        drop(together);
        // But for one that was held up about as long as the log waits.
        let is_at_once = begun.elapsed() < Duration::from_millis(10);
        for _ in 0..2 {
            told.recv_timeout(DEADLINE).expect("told").expect("written");
        }
        if is_at_once {
            assert_eq!(log.metrics().commits - before, 1, "batch {offset}");
            at_once += 1;
        }
    }
    assert!(at_once > 0, "none of {BATCHES} was put together at once");
}

#[test]
fn who_never_lets_go_holds_up_nobody_for_long() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(&dir);
    let together = log.hold_commits();
    log.flush(DEADLINE).expect("written");
    drop(together);
}
