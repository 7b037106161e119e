//! Streams that are replicated: what is acknowledged, what is not, and what becomes of that.

use std::{collections::BTreeMap, sync::Arc};

use event_log::{EventLog, LogError, MemoryLimits, ReadLimit, Retention, StreamOwnership};
use ipc_protocol::{Envelope, Event, SessionId};
use proptest::{collection::vec, prelude::*};
use serde_json::Value;

use crate::common::{append, batch, batch_of, done, id, open, read_all};

fn own(log: &EventLog, session: &SessionId, epoch: u64, tail: u64, keeps_tail: bool) -> Result<(), LogError> {
    done(|done| log.continue_from(session, StreamOwnership { epoch, tail, keeps_tail }, done))
}

fn acknowledge(log: &EventLog, session: &SessionId, through: u64) -> Result<(), LogError> {
    done(|done| log.acknowledge(session, through, done))
}

fn put_aside(log: &EventLog, session: &SessionId, from: u64) -> Result<(), LogError> {
    done(|done| log.put_aside(session, from, done))
}

fn offsets(events: &[Arc<Envelope>]) -> Vec<u64> {
    events.iter().map(|event| event.offset).collect()
}

/// Offsets of the events of a session that were put aside.
fn aside(log: &EventLog, session: &SessionId) -> Vec<u64> {
    let lines = log.read_put_aside(session).expect("read");
    let text = String::from_utf8(lines).expect("text");
    let offset = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(line["eventStreamId"], session.as_str(), "{line}");
        line["offset"].as_str().expect("a text").parse().expect("a number")
    };
    text.lines().map(offset).collect()
}

/// Runs a test with a log in memory, then with one in a file.
fn both(test: impl Fn(&EventLog)) {
    test(&EventLog::memory(MemoryLimits::default()));
    let dir = tempfile::tempdir().expect("a directory");
    test(&open(&dir));
}

#[test]
fn readers_see_what_is_acknowledged_and_the_rest_waits() {
    both(|log| {
        let (own_stream, local) = (id("own"), id("local"));
        own(log, &own_stream, 1, 0, true).expect("owned");
        append(log, batch(&own_stream, 1, 10)).expect("appended");
        append(log, batch(&local, 1, 2)).expect("appended");
        let shown = log.acknowledged();
        assert!(read_all(&shown, &own_stream, 0).is_empty());
        assert_eq!(offsets(&read_all(log, &own_stream, 0)), (1..=10).collect::<Vec<_>>());
        // A stream that is not replicated waits for nobody, but for the order of all.
        assert_eq!(offsets(&read_all(&shown, &local, 0)), [1, 2]);
        let all = |from| shown.read_all(from, ReadLimit::default()).expect("read");
        assert!(all(0).is_empty(), "the first one is not acknowledged");
        // In the middle of a row.
        acknowledge(log, &own_stream, 4).expect("acknowledged");
        assert_eq!(offsets(&read_all(&shown, &own_stream, 0)), [1, 2, 3, 4]);
        let lines = shown.read_lines(&own_stream, 2, ReadLimit::default()).expect("read");
        assert_eq!((lines.events, lines.next, lines.last), (2, 4, 4));
        let seen = all(0);
        assert_eq!(seen.len(), 4);
        let position = seen.last().expect("some").0;
        assert!(all(position).is_empty());
        // Who begins at the end misses nothing that was not shown yet.
        let end = shown.end().expect("read");
        acknowledge(log, &own_stream, 2).expect("it stays acknowledged");
        acknowledge(log, &own_stream, 10).expect("acknowledged");
        assert_eq!((all(position).len(), all(end).len()), (6 + 2, 6 + 2));
        let head = log.head(&own_stream).expect("a stream");
        assert_eq!((head.epoch, head.acknowledged, head.last, head.readable()), (1, 10, 10, 10));
        assert_eq!(log.head(&local).map(|head| (head.epoch, head.readable())), Some((0, 2)));
        let mut exported = Vec::new();
        append(log, batch(&own_stream, 11, 1)).expect("appended");
        assert_eq!(shown.export(&own_stream, &mut exported).expect("exported").events, 10);
    });
}

#[test]
fn a_closed_stream_ends_for_readers_behind_its_last_acknowledged_event() {
    both(|log| {
        let session = id("s");
        own(log, &session, 1, 0, true).expect("owned");
        append(log, batch(&session, 1, 2)).expect("appended");
        done(|done| log.close(&session, done)).expect("closed");
        let closed = || log.acknowledged().read(&session, 0, ReadLimit::default()).expect("read").closed;
        acknowledge(log, &session, 1).expect("acknowledged");
        assert!(!closed(), "there is more to come");
        acknowledge(log, &session, 2).expect("acknowledged");
        assert!(closed());
        own(log, &session, 2, 2, true).expect("owned");
        append(log, batch(&session, 3, 1)).expect("it goes on");
    });
}

#[test]
fn a_stream_goes_on_behind_a_hole() {
    both(|log| {
        let (session, new) = (id("s"), id("new"));
        own(log, &new, 3, 41, true).expect("owned");
        append(log, batch(&new, 42, 2)).expect("appended");
        let head = log.head(&new).expect("a stream");
        assert_eq!((head.first, head.last, head.acknowledged, head.epoch), (42, 43, 41, 3));
        let page = log.read(&new, 0, ReadLimit::default()).expect("read");
        assert_eq!((page.first_kept, offsets(&page.events)), (42, vec![42, 43]));
        // It was here, went elsewhere, and comes back.
        own(log, &session, 1, 0, true).expect("owned");
        append(log, batch(&session, 1, 8)).expect("appended");
        done(|done| log.set_cursor("consumer", &session, 7, done)).expect("stored");
        acknowledge(log, &session, 5).expect("acknowledged");
        own(log, &session, 3, 20, false).expect("owned");
        assert_eq!(aside(log, &session), [6, 7, 8]);
        assert_eq!(log.cursor("consumer", &session).expect("read"), 5, "what comes in their place is not consumed");
        let head = log.head(&session).expect("a stream");
        assert_eq!((head.first, head.last, head.acknowledged, head.closed), (21, 20, 20, false));
        assert!(matches!(append(log, batch(&session, 6, 1)), Err(LogError::Order { expected: 21, .. })));
        append(log, batch(&session, 21, 1)).expect("appended");
        assert_eq!(offsets(&read_all(log, &session, 0)), [21]);
        // An epoch does not go back.
        let refused = own(log, &session, 2, 21, true);
        assert!(matches!(refused, Err(LogError::Replication { .. })), "{refused:?}");
        assert!(matches!(own(log, &session, 0, 0, true), Err(LogError::Replication { .. })));
        assert_eq!(log.head(&session).map(|head| (head.epoch, head.last)), Some((3, 21)));
    });
}

#[test]
fn an_owner_that_comes_back_keeps_its_tail_and_one_that_was_replaced_does_not() {
    both(|log| {
        let session = id("s");
        own(log, &session, 1, 0, true).expect("owned");
        append(log, batch(&session, 1, 6)).expect("appended");
        acknowledge(log, &session, 2).expect("acknowledged");
        // Two more came to the fleet, and their acknowledgement was lost.
        own(log, &session, 2, 4, true).expect("owned");
        let head = log.head(&session).expect("a stream");
        assert_eq!((head.acknowledged, head.last), (4, 6));
        // The fleet's log has lost its tail: it is shipped again.
        own(log, &session, 3, 1, true).expect("owned");
        assert_eq!(log.head(&session).map(|head| (head.acknowledged, head.last)), Some((1, 6)));
        acknowledge(log, &session, 3).expect("acknowledged");
        own(log, &session, 4, 3, false).expect("owned");
        assert_eq!(aside(log, &session), [4, 5, 6]);
        append(log, batch_of(&session, 4, vec![Event::Text { text: "another's".into() }])).expect("appended");
        acknowledge(log, &session, 4).expect("acknowledged");
        let all = read_all(&log.acknowledged(), &session, 0);
        assert_eq!(offsets(&all), [1, 2, 3, 4]);
        assert_eq!(all[3].event, Event::Text { text: "another's".into() });
    });
}

#[test]
fn a_stream_of_before_is_replicated_from_its_beginning() {
    both(|log| {
        let session = id("s");
        append(log, batch(&session, 1, 3)).expect("appended");
        assert!(matches!(acknowledge(log, &session, 1), Err(LogError::Replication { .. })));
        assert!(matches!(put_aside(log, &session, 1), Err(LogError::Replication { .. })));
        assert_eq!(read_all(&log.acknowledged(), &session, 0).len(), 3);
        own(log, &session, 1, 0, true).expect("owned");
        assert_eq!(read_all(&log.acknowledged(), &session, 0).len(), 0);
        assert_eq!(log.head(&session).map(|head| (head.acknowledged, head.last)), Some((0, 3)));
    });
}

#[test]
fn only_what_was_never_acknowledged_is_put_aside() {
    both(|log| {
        let (session, nobody) = (id("s"), id("nobody"));
        own(log, &session, 1, 0, true).expect("owned");
        append(log, batch(&session, 1, 9)).expect("appended");
        acknowledge(log, &session, 3).expect("acknowledged");
        let refused = put_aside(log, &session, 3);
        assert!(matches!(refused, Err(LogError::Replication { .. })), "{refused:?}");
        assert!(matches!(acknowledge(log, &session, 10), Err(LogError::Replication { .. })));
        for unknown in [put_aside(log, &nobody, 1), acknowledge(log, &nobody, 1)] {
            assert!(matches!(unknown, Err(LogError::Unknown { .. })), "{unknown:?}");
        }
        put_aside(log, &session, 7).expect("put aside");
        put_aside(log, &session, 7).expect("there is nothing more");
        put_aside(log, &session, 4).expect("put aside");
        assert_eq!(aside(log, &session), [7, 8, 9, 4, 5, 6]);
        assert!(aside(log, &nobody).is_empty());
        let head = log.head(&session).expect("a stream");
        assert_eq!((head.last, head.acknowledged), (3, 3));
        append(log, batch(&session, 4, 1)).expect("the stream goes on in their place");
        assert_eq!(offsets(&read_all(log, &session, 0)), [1, 2, 3, 4]);
    });
}

#[test]
fn retention_leaves_what_is_not_acknowledged() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(&dir);
    let session = id("s");
    own(&log, &session, 1, 0, true).expect("owned");
    for first in [1, 3, 5, 7] {
        append(&log, batch(&session, first, 2)).expect("appended");
    }
    acknowledge(&log, &session, 3).expect("acknowledged");
    for retention in [
        Retention { max_events_per_session: Some(1), ..Retention::default() },
        Retention { max_events_total: Some(1), ..Retention::default() },
        Retention { max_age: Some(std::time::Duration::ZERO), ..Retention::default() },
    ] {
        done(|done| log.retain(retention, done)).expect("a pass");
        assert_eq!(offsets(&read_all(&log, &session, 0)), [3, 4, 5, 6, 7, 8], "{retention:?}");
    }
}

#[test]
fn a_salvaged_log_is_as_far_acknowledged_as_the_one_before() {
    let dir = tempfile::tempdir().expect("a directory");
    let (session, to) = (id("s"), dir.path().join("new.sqlite"));
    {
        let log = open(&dir);
        own(&log, &session, 7, 0, true).expect("owned");
        append(&log, batch(&session, 1, 6)).expect("appended");
        acknowledge(&log, &session, 3).expect("acknowledged");
        put_aside(&log, &session, 6).expect("put aside");
    }
    let inspection = event_log::salvage(&dir.path().join("log.sqlite"), &to, &|_| Ok(())).expect("salvaged");
    assert!(inspection.damage.is_empty(), "{:?}", inspection.damage);
    let log = EventLog::open(&to, event_log::LogOptions::default()).expect("opened");
    let head = log.head(&session).expect("a stream");
    assert_eq!((head.epoch, head.acknowledged, head.last), (7, 3, 5));
    assert_eq!(aside(&log, &session), [6]);
}

#[derive(Clone, Debug)]
enum Step {
    Append {
        stream: u8,
        count: u64,
    },
    /// The owner claims the stream again, or for the first time.
    Claim {
        stream: u8,
    },
    Acknowledge {
        stream: u8,
        count: u64,
    },
    /// Somebody else had it, and appended so many.
    Return {
        stream: u8,
        others: u64,
    },
    PutAside {
        stream: u8,
    },
    /// Goes on reading all streams together.
    Follow {
        limit: usize,
    },
    Read {
        stream: u8,
        from: u64,
        limit: usize,
    },
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let stream = || 0..3_u8;
    prop_oneof![
        8 => (stream(), 1..8_u64).prop_map(|(stream, count)| Step::Append { stream, count }),
        2 => stream().prop_map(|stream| Step::Claim { stream }),
        6 => (stream(), 0..9_u64).prop_map(|(stream, count)| Step::Acknowledge { stream, count }),
        1 => (stream(), 0..4_u64).prop_map(|(stream, others)| Step::Return { stream, others }),
        1 => stream().prop_map(|stream| Step::PutAside { stream }),
        4 => (1..9_usize).prop_map(|limit| Step::Follow { limit }),
        3 => (stream(), 0..40_u64, 1..9_usize).prop_map(|(stream, from, limit)| Step::Read { stream, from, limit }),
        1 => Just(Step::Reopen),
    ]
}

/// What a stream should be.
#[derive(Debug, Default)]
struct Model {
    events: Vec<Arc<Envelope>>,
    last: u64,
    acknowledged: u64,
    epoch: u64,
    aside: usize,
}

impl Model {
    fn readable(&self) -> u64 {
        if self.epoch == 0 { self.last } else { self.acknowledged }
    }

    fn cut(&mut self) {
        let kept = self.events.iter().filter(|event| event.offset <= self.acknowledged).count();
        self.aside += self.events.len() - kept;
        self.events.truncate(kept);
        self.last = self.acknowledged;
    }
}

struct Stage {
    dir: Option<tempfile::TempDir>,
    log: Option<EventLog>,
    streams: BTreeMap<u8, Model>,
    made: u64,
    heard: Vec<Arc<Envelope>>,
    position: u64,
}

impl Stage {
    fn new(in_file: bool) -> Self {
        let dir = in_file.then(|| tempfile::tempdir().expect("a directory"));
        let log = dir.as_ref().map_or_else(|| EventLog::memory(MemoryLimits::default()), open);
        Self { dir, log: Some(log), streams: BTreeMap::new(), made: 0, heard: Vec::new(), position: 0 }
    }

    fn log(&self) -> EventLog {
        self.log.clone().expect("it is open")
    }

    fn play(&mut self, step: &Step) {
        let name = |stream: u8| id(&format!("s-{stream}"));
        let log = self.log();
        match *step {
            Step::Append { stream, count } => {
                self.made += 1;
                let model = self.streams.entry(stream).or_default();
                let text = |n| Event::Text { text: format!("{} {n}", self.made) };
                let batch = batch_of(&name(stream), model.last + 1, (0..count).map(text).collect());
                model.events.extend(batch.events.clone());
                model.last += count;
                append(&log, batch).expect("appended");
            }
            Step::Claim { stream } => {
                let model = self.streams.entry(stream).or_default();
                model.epoch += 1;
                own(&log, &name(stream), model.epoch, model.acknowledged, true).expect("owned");
            }
            Step::Acknowledge { stream, count } => {
                let Some(model) = self.streams.get_mut(&stream) else { return };
                let through = (model.acknowledged + count).min(model.last);
                let result = acknowledge(&log, &name(stream), through);
                assert_eq!(result.is_ok(), model.epoch > 0, "{result:?}");
                model.acknowledged = if model.epoch > 0 { through } else { 0 };
            }
            Step::Return { stream, others } => {
                let Some(model) = self.streams.get_mut(&stream).filter(|model| model.epoch > 0) else { return };
                model.epoch += 2;
                let tail = model.acknowledged + others;
                own(&log, &name(stream), model.epoch, tail, false).expect("owned");
                model.cut();
                if others > 0 {
                    model.events.clear();
                }
                (model.last, model.acknowledged) = (tail, tail);
            }
            Step::PutAside { stream } => {
                let Some(model) = self.streams.get_mut(&stream).filter(|model| model.epoch > 0) else { return };
                put_aside(&log, &name(stream), model.acknowledged + 1).expect("put aside");
                model.cut();
            }
            Step::Follow { limit } => drop(self.follow(limit)),
            Step::Read { stream, from, limit } => {
                let Some(model) = self.streams.get(&stream) else { return };
                let limit = ReadLimit { events: limit, bytes: 1 << 20 };
                let page = log.acknowledged().read(&name(stream), from, limit).expect("a page");
                let expected =
                    model.events.iter().filter(|event| event.offset > from && event.offset <= model.readable());
                assert_eq!(page.events, expected.take(limit.events).cloned().collect::<Vec<_>>());
                assert_eq!(page.last, model.readable());
            }
            Step::Reopen => {
                drop(log);
                if let Some(dir) = &self.dir {
                    drop(self.log.take());
                    self.log = Some(open(dir));
                }
            }
        }
    }

    /// Says whether there was anything. Nothing is heard that is not acknowledged.
    fn follow(&mut self, limit: usize) -> bool {
        let limit = ReadLimit { events: limit, bytes: 1 << 20 };
        let page = self.log().acknowledged().read_all(self.position, limit).expect("a page");
        for (position, event) in &page {
            assert!(*position > self.position, "{position} after {}", self.position);
            let model = self.streams.iter().find(|(stream, _)| format!("s-{stream}") == event.session.as_str());
            let model = model.expect("a stream").1;
            assert!(event.offset <= model.readable() && model.events.contains(event), "{event:?}");
            self.position = *position;
            self.heard.push(event.clone());
        }
        !page.is_empty()
    }

    fn check(&mut self) {
        for (stream, model) in &mut self.streams {
            let (log, session) = (self.log.clone().expect("open"), id(&format!("s-{stream}")));
            let head = log.head(&session).expect("a stream");
            assert_eq!((head.last, head.epoch, head.readable()), (model.last, model.epoch, model.readable()));
            assert_eq!(aside(&log, &session).len(), model.aside);
            assert_eq!(read_all(&log, &session, 0), model.events);
            if model.epoch > 0 {
                acknowledge(&log, &session, model.last).expect("acknowledged");
                model.acknowledged = model.last;
            }
        }
        // Once all is acknowledged, who has followed has heard all that is there, each once and in its order.
        while self.follow(5) {}
        for (stream, model) in &self.streams {
            let of = |event: &&Arc<Envelope>| event.session.as_str() == format!("s-{stream}");
            let heard: Vec<_> = self.heard.iter().filter(of).collect();
            assert!(model.events.iter().all(|event| heard.contains(&event)), "{stream}: not heard");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_replicated_log_in_memory_is_as_its_model(steps in vec(step(), 1..80)) {
        let mut stage = Stage::new(false);
        steps.iter().for_each(|step| stage.play(step));
        stage.check();
    }

    #[test]
    fn a_replicated_log_in_a_file_is_as_its_model(steps in vec(step(), 1..80)) {
        let mut stage = Stage::new(true);
        steps.iter().for_each(|step| stage.play(step));
        stage.play(&Step::Reopen);
        stage.check();
    }
}
