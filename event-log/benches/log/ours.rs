//! The log itself.

use std::{
    sync::{Arc, mpsc},
    time::{Duration, Instant, SystemTime},
};

use event_log::{EventBatch, EventLog, LogError, LogOptions, QueueFull, ReadLimit, Retention};
use ipc_protocol::{Envelope, Event, SessionId};

use crate::{
    Bar, Report, Result,
    floors::{self, Shape},
};

/// Streams of the crowd.
const STREAMS: usize = 64;
/// Events of a stream of the crowd that wait at once, each a batch of its own.
const WINDOW: usize = 4;
/// Events of the crowd.
const CROWD_EVENTS: usize = 150_000;
/// Events of the busy stream, and of a batch of it.
const BUSY_EVENTS: usize = 600_000;
const BUSY_BATCH: usize = 128;
/// Batches of the busy stream that wait at once.
const BUSY_WINDOW: usize = 8;
/// Events that are replayed.
const REPLAYED: usize = 1_000_000;
/// Longer than anything takes that works.
const DEADLINE: Duration = Duration::from_secs(60);

fn id(number: usize) -> Result<Arc<SessionId>> {
    Ok(Arc::new(format!("s-{number}").parse()?))
}

/// Events of 64 bytes of text.
fn batch(session: &Arc<SessionId>, first: u64, count: usize) -> EventBatch {
    let created_at = SystemTime::now();
    let envelope = |offset: u64| {
        let event = Event::Text { text: format!("{offset:064}") };
        Arc::new(Envelope { offset, created_at, session: Arc::clone(session), turn: Some(1), metadata: None, event })
    };
    let events = (first..).take(count).map(envelope).collect();
    EventBatch { session: Arc::clone(session), created_at, first, events, source: first, cursor: None }
}

fn open(dir: &tempfile::TempDir) -> Result<EventLog> {
    Ok(EventLog::open(dir.path().join("log.sqlite"), LogOptions::default())?)
}

type Told = (usize, Instant, std::result::Result<(), LogError>);

/// Has `total` events appended to `streams` streams, in batches of `size`, `window` of each stream at once. Gives the time that
/// it took, and the times from append to acknowledgement, sorted.
fn append(
    log: &EventLog,
    streams: usize,
    total: usize,
    size: usize,
    window: usize,
) -> Result<(Duration, Vec<Duration>)> {
    let sessions = (0..streams).map(id).collect::<Result<Vec<_>>>()?;
    let mut next = vec![1_u64; streams];
    let mut times = Vec::with_capacity(total / size);
    let (tell, told) = mpsc::channel::<Told>();
    let begin = Instant::now();
    let mut one = |stream: usize| {
        let mut batch = batch(&sessions[stream], next[stream], size);
        next[stream] += size as u64;
        let at = Instant::now();
        loop {
            let tell = tell.clone();
            let done = move |result| drop(tell.send((stream, at, result)));
            match log.append(batch, Box::new(done)) {
                Ok(()) => return,
                Err(QueueFull { batch: again, .. }) => batch = again,
            }
            std::thread::yield_now();
        }
    };
    let mut started = 0;
    for _ in 0..window {
        (0..streams).for_each(&mut one);
        started += streams;
    }
    while times.len() < started {
        let (stream, at, result) = told.recv_timeout(DEADLINE)?;
        times.push(at.elapsed());
        result?;
        if started * size < total {
            one(stream);
            started += 1;
        }
    }
    let took = begin.elapsed();
    times.sort_unstable();
    Ok((took, times))
}

fn percentile(times: &[Duration], percent: usize) -> f64 {
    times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e3
}

pub(crate) fn many_streams(report: &mut Report) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let log = open(&dir)?;
    let (took, times) = append(&log, STREAMS, CROWD_EVENTS, 1, WINDOW)?;
    let metrics = log.metrics();
    let shape = Shape { events: CROWD_EVENTS, per_commit: CROWD_EVENTS / metrics.commits as usize };
    let rate = |took: Duration| CROWD_EVENTS as f64 / took.as_secs_f64();
    report.add("64 streams, a batch each event: events/s", 0, Some(Bar::AtLeast(30e3)), rate(took));
    report.add("  append to acknowledgement, p50, ms", 2, None, percentile(&times, 50));
    report.add("  append to acknowledgement, p99, ms", 2, Some(Bar::AtMost(25.0)), percentile(&times, 99));
    report.add("  append to acknowledgement, longest, ms", 2, None, percentile(&times, 100));
    report.add("  events a commit", 0, None, shape.per_commit as f64);
    let begin = Instant::now();
    for number in 0..STREAMS {
        let session = id(number)?;
        typed(&log, &session)?;
    }
    report.add("  replay of them, a row each event, events/s", 0, None, rate(begin.elapsed()));
    report.add("  floor: write + fdatasync, events/s", 0, None, rate(floors::file(&shape)?));
    report.add("  floor: a row each event, rusqlite, events/s", 0, None, rate(floors::rows(&shape, STREAMS)?));
    Ok(())
}

pub(crate) fn one_stream(report: &mut Report) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let log = open(&dir)?;
    let (took, times) = append(&log, 1, BUSY_EVENTS, BUSY_BATCH, BUSY_WINDOW)?;
    let metrics = log.metrics();
    let shape = Shape { events: BUSY_EVENTS, per_commit: BUSY_EVENTS / metrics.commits as usize };
    let rate = |took: Duration| BUSY_EVENTS as f64 / took.as_secs_f64();
    report.add("one stream, batches of 128: events/s", 0, Some(Bar::AtLeast(150e3)), rate(took));
    report.add("  batch to acknowledgement, p99, ms", 2, None, percentile(&times, 99));
    report.add("  events of a commit", 0, None, shape.per_commit as f64);
    report.add("  floor of it: write + fdatasync, events/s", 0, None, rate(floors::file(&shape)?));
    report.add("  floor of it: a row each event, rusqlite, events/s", 0, None, rate(floors::rows(&shape, 1)?));
    Ok(())
}

/// Reads a whole stream. Gives the time to the first page.
fn typed(log: &EventLog, session: &SessionId) -> Result<Duration> {
    let total = log.head(session).ok_or("no stream")?.last;
    let begin = Instant::now();
    let (mut from, mut first) = (0, None);
    while from < total {
        let page = log.read(session, from, ReadLimit::default())?;
        first.get_or_insert_with(|| begin.elapsed());
        let in_order = page.events.iter().zip(from + 1..).all(|(event, offset)| event.offset == offset);
        from = page.events.last().filter(|_| in_order).ok_or("an event is missing")?.offset;
    }
    first.ok_or_else(|| "no event".into())
}

pub(crate) fn replay(report: &mut Report) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let log = open(&dir)?;
    append(&log, 1, REPLAYED, BUSY_BATCH, BUSY_WINDOW)?;
    drop(log);
    let log = open(&dir)?;
    let session = id(0)?;
    let total = log.head(&session).ok_or("no stream")?.last;
    let rate = |took: Duration| total as f64 / took.as_secs_f64();
    let ms = |took: Duration| took.as_secs_f64() * 1e3;

    let begin = Instant::now();
    let first = typed(&log, &session)?;
    report.add("replay of 1M events, typed: events/s", 0, Some(Bar::AtLeast(1e6)), rate(begin.elapsed()));
    report.add("  first event, with its connection, ms", 2, Some(Bar::AtMost(5.0)), ms(first));

    let begin = Instant::now();
    let (mut from, mut first, mut bytes) = (0, None, 0);
    while from < total {
        let lines = log.read_lines(&session, from, ReadLimit::default())?;
        first.get_or_insert_with(|| begin.elapsed());
        bytes += lines.bytes.len();
        if lines.next != from + lines.events as u64 || lines.events == 0 {
            return Err("a line is missing".into());
        }
        from = lines.next;
    }
    report.add("replay of 1M events, JSON lines: events/s", 0, Some(Bar::AtLeast(1e6)), rate(begin.elapsed()));
    report.add("  first line, ms", 2, Some(Bar::AtMost(5.0)), ms(first.unwrap_or_default()));
    report.add("  bytes a line", 0, None, bytes as f64 / total as f64);
    let (rows, bodies) = floors::bodies(&dir.path().join("log.sqlite"))?;
    report.add("  floor: the rows' bodies alone, newlines counted, events/s", 0, None, rate(bodies));
    report.add("  events a row", 0, None, total as f64 / rows as f64);

    // Most of it goes while others append.
    let (tell, told) = mpsc::channel();
    let keep = Retention { max_events_per_session: Some(1000), ..Retention::default() };
    let begin = Instant::now();
    log.retain(keep, Box::new(move |result| drop(tell.send(result))));
    let mut times = Vec::new();
    let other = id(1)?;
    loop {
        let (tell, appended) = mpsc::channel();
        let at = Instant::now();
        let one = batch(&other, times.len() as u64 + 1, 1);
        log.append(one, Box::new(move |result| drop(tell.send(result)))).map_err(|_| "no room")?;
        appended.recv_timeout(DEADLINE)??;
        times.push(at.elapsed());
        if let Ok(result) = told.try_recv() {
            result?;
            break;
        }
    }
    report.add("retention of 1M events, beside appends: events/s", 0, None, rate(begin.elapsed()));
    times.sort_unstable();
    report.add("  append to acknowledgement meanwhile, p99, ms", 2, None, percentile(&times, 99));
    report.add("  append to acknowledgement meanwhile, longest, ms", 2, None, percentile(&times, 100));
    Ok(())
}
