//! Random histories, beside a model that keeps everything in a list.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use event_log::{EventLog, LogError, MemoryLimits, ReadLimit, Retention};
use ipc_protocol::{Envelope, Event, OffsetGap};
use proptest::{collection::vec, option::of, prelude::*};

use crate::common::{append, batch_of, done, id, open};

#[derive(Clone, Debug)]
enum Step {
    /// `shift` other than 0: at an offset that is not the next.
    Append {
        stream: u8,
        count: u64,
        shift: i64,
        source: u64,
        cursor: Option<u64>,
    },
    SetCursor {
        stream: u8,
        offset: u64,
    },
    Read {
        stream: u8,
        from: u64,
        limit: usize,
    },
    Close {
        stream: u8,
    },
    Delete {
        stream: u8,
    },
    Retain {
        events: u64,
    },
    /// Goes on reading all streams together.
    Follow {
        limit: usize,
    },
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let stream = || 0..3_u8;
    let shift = prop_oneof![6 => Just(0), 1 => -2..3_i64];
    prop_oneof![
        10 => (stream(), 0..6_u64, shift, 0..50_u64, of(0..40_u64))
            .prop_map(|(stream, count, shift, source, cursor)| Step::Append { stream, count, shift, source, cursor }),
        2 => (stream(), 0..40_u64).prop_map(|(stream, offset)| Step::SetCursor { stream, offset }),
        5 => (stream(), 0..60_u64, 1..12_usize).prop_map(|(stream, from, limit)| Step::Read { stream, from, limit }),
        1 => stream().prop_map(|stream| Step::Close { stream }),
        1 => stream().prop_map(|stream| Step::Delete { stream }),
        2 => (0..30_u64).prop_map(|events| Step::Retain { events }),
        5 => (1..12_usize).prop_map(|limit| Step::Follow { limit }),
        2 => Just(Step::Reopen),
    ]
}

/// What a stream should be.
#[derive(Debug, Default)]
struct Model {
    /// Its batches; in a log in memory each event is one.
    batches: VecDeque<Vec<Arc<Envelope>>>,
    last: u64,
    closed: bool,
    source: u64,
    cursor: u64,
}

impl Model {
    fn events(&self) -> impl Iterator<Item = &Arc<Envelope>> {
        self.batches.iter().flatten()
    }

    fn retain(&mut self, events: u64) {
        while self.batches.len() > 1 && self.events().count() as u64 > events {
            self.batches.pop_front();
        }
    }

    fn first(&self) -> u64 {
        self.events().next().map_or(self.last + 1, |event| event.offset)
    }
}

/// Where the history is played: in memory, or in a file.
struct Stage {
    dir: Option<tempfile::TempDir>,
    log: Option<EventLog>,
    streams: BTreeMap<u8, Model>,
    /// So that no event is like another of a stream that had the same name before.
    made: u64,
    /// What was appended to any of them, in that order.
    appended: Vec<Arc<Envelope>>,
    /// What somebody heard who followed all of them together, and up to which position.
    heard: Vec<Arc<Envelope>>,
    position: u64,
}

impl Stage {
    fn new(in_file: bool) -> Self {
        let dir = in_file.then(|| tempfile::tempdir().expect("a directory"));
        let log = dir.as_ref().map_or_else(|| EventLog::memory(MemoryLimits::default()), open);
        let streams = BTreeMap::new();
        Self { dir, log: Some(log), streams, made: 0, appended: Vec::new(), heard: Vec::new(), position: 0 }
    }

    fn log(&self) -> &EventLog {
        self.log.as_ref().expect("it is open")
    }

    fn play(&mut self, step: &Step) {
        let name = |stream: u8| id(&format!("s-{stream}"));
        match *step {
            Step::Append { stream, count, shift, source, cursor } => {
                let known = self.streams.get(&stream);
                let next = known.map_or(1, |model| model.last + 1);
                let first = next.saturating_add_signed(shift);
                self.made += 1;
                let text = |n| Event::Text { text: format!("{} {n}", self.made) };
                let mut batch = batch_of(&name(stream), first, (0..count).map(text).collect());
                (batch.source, batch.cursor) = (source, cursor.map(|offset| ("c".to_owned(), offset)));
                let events = batch.events.clone();
                let result = append(self.log(), batch);
                if known.is_some_and(|model| model.closed) {
                    assert!(matches!(result, Err(LogError::Closed { .. })), "{result:?}");
                    return;
                }
                if count > 0 && first != next {
                    assert!(matches!(result, Err(LogError::Order { expected, .. }) if expected == next), "{result:?}");
                    return;
                }
                result.expect("appended");
                self.appended.extend(events.clone());
                let in_file = self.dir.is_some();
                let model = self.streams.entry(stream).or_default();
                model.last += count;
                model.source = model.source.max(source);
                model.cursor = cursor.unwrap_or(model.cursor);
                if in_file && count > 0 {
                    model.batches.push_back(events);
                } else {
                    model.batches.extend(events.into_iter().map(|event| vec![event]));
                }
            }
            Step::SetCursor { stream, offset } => {
                let result = done(|done| self.log().set_cursor("c", &name(stream), offset, done));
                match self.streams.get_mut(&stream) {
                    Some(model) => (model.cursor, _) = (offset, result.expect("stored")),
                    None => assert!(matches!(result, Err(LogError::Unknown { .. })), "{result:?}"),
                }
            }
            Step::Read { stream, from, limit } => {
                let result = self.log().read(&name(stream), from, ReadLimit { events: limit, bytes: 1 << 20 });
                let Some(model) = self.streams.get(&stream) else {
                    assert!(matches!(result, Err(LogError::Unknown { .. })), "{result:?}");
                    return;
                };
                let page = result.expect("a page");
                let expected: Vec<_> =
                    model.events().filter(|event| event.offset > from).take(limit).cloned().collect();
                assert_eq!(page.events, expected);
                assert_eq!((page.first_kept, page.last, page.closed), (model.first(), model.last, model.closed));
                let missing = (model.first() > from + 1).then(|| OffsetGap { from: from + 1, to: model.first() - 1 });
                assert_eq!(page.gap(from), missing);
            }
            Step::Close { stream } => {
                let result = done(|done| self.log().close(&name(stream), done));
                match self.streams.get_mut(&stream) {
                    Some(model) => (model.closed, _) = (true, result.expect("closed")),
                    None => assert!(matches!(result, Err(LogError::Unknown { .. })), "{result:?}"),
                }
            }
            Step::Delete { stream } => {
                let result = done(|done| self.log().delete(&name(stream), done));
                match self.streams.remove(&stream) {
                    Some(_) => result.expect("deleted"),
                    None => assert!(matches!(result, Err(LogError::Unknown { .. })), "{result:?}"),
                }
            }
            Step::Retain { events } => {
                let retention = Retention { max_events_per_session: Some(events), ..Retention::default() };
                done(|done| self.log().retain(retention, done)).expect("a pass");
                self.streams.values_mut().for_each(|model| model.retain(events));
            }
            Step::Follow { limit } => drop(self.follow(limit)),
            Step::Reopen => {
                if let Some(dir) = &self.dir {
                    drop(self.log.take());
                    self.log = Some(open(dir));
                }
            }
        }
    }

    /// Says whether there was anything.
    fn follow(&mut self, limit: usize) -> bool {
        let page = self.log().read_all(self.position, ReadLimit { events: limit, bytes: 1 << 20 }).expect("a page");
        assert!(page.len() <= limit);
        for (position, event) in &page {
            assert!(*position > self.position, "{position} after {}", self.position);
            self.position = *position;
            self.heard.push(event.clone());
        }
        !page.is_empty()
    }

    /// What is kept is in the order in which it came: for who reads it now, and for who has followed it all the time.
    fn check_order(&mut self) {
        let is_kept = |event: &&Arc<Envelope>| {
            self.streams.values().any(|model| model.events().any(|kept| Arc::ptr_eq(kept, event)))
        };
        let kept: Vec<_> = self.appended.iter().filter(is_kept).cloned().collect();
        let mut now = Vec::new();
        let mut from = 0;
        while let Some((last, _)) = {
            let page = self.log().read_all(from, ReadLimit { events: 5, bytes: 1 << 20 }).expect("a page");
            now.extend(page.iter().map(|(_, event)| event.clone()));
            page.last().cloned()
        } {
            from = last;
        }
        assert_eq!(now, kept);
        while self.follow(5) {}
        // Each event tells which one it is.
        let mut appended = self.appended.iter();
        assert!(self.heard.iter().all(|heard| appended.any(|event| event == heard)), "out of order, or twice");
        assert!(kept.iter().all(|event| self.heard.contains(event)), "not heard");
    }

    fn check(&mut self) {
        self.check_order();
        let mut heads = self.log().streams();
        heads.sort_by(|(a, _), (b, _)| a.cmp(b));
        let found: Vec<_> = heads.iter().map(|(id, _)| id.to_string()).collect();
        assert_eq!(found, self.streams.keys().map(|stream| format!("s-{stream}")).collect::<Vec<_>>());
        for ((id, head), model) in heads.iter().zip(self.streams.values()) {
            assert_eq!(
                (head.first, head.last, head.closed, head.source),
                (model.first(), model.last, model.closed, model.source)
            );
            assert_eq!(head.bytes == 0, model.batches.is_empty());
            assert_eq!(self.log().cursor("c", id).expect("a cursor"), model.cursor);
            let page = self.log().read(id, 0, ReadLimit::default()).expect("a page");
            assert!(page.events.iter().eq(model.events()), "{id}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_log_in_memory_is_as_its_model(steps in vec(step(), 1..80)) {
        let mut stage = Stage::new(false);
        steps.iter().for_each(|step| stage.play(step));
        stage.check();
    }

    #[test]
    fn a_log_in_a_file_is_as_its_model(steps in vec(step(), 1..80)) {
        let mut stage = Stage::new(true);
        steps.iter().for_each(|step| stage.play(step));
        stage.check();
        stage.play(&Step::Reopen);
        stage.check();
    }
}
