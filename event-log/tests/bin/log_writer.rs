//! Appends to a log until it is killed, and says what was acknowledged: `STREAM LAST` a line, for everything up to `LAST`.

use std::{
    io::{self, Write as _},
    process::ExitCode,
    sync::{Arc, mpsc},
    time::{SystemTime, UNIX_EPOCH},
};

use event_log::{EventBatch, EventLog, LogError, LogOptions, QueueFull};
use ipc_protocol::{Envelope, Event, SessionId};

/// Streams of each thread.
const STREAMS: usize = 2;
/// Batches of a stream that wait at once.
const IN_FLIGHT: usize = 4;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (Some(path), Some(Ok(threads))) = (args.next(), args.next().map(|text| text.parse::<usize>())) else {
        return ExitCode::from(2);
    };
    match EventLog::open(&path, LogOptions::default()).map_err(io::Error::other).and_then(|log| run(&log, threads)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to tell when standard error is closed.
            let _ = writeln!(io::stderr(), "log-writer: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(log: &EventLog, threads: usize) -> io::Result<()> {
    std::thread::scope(|scope| {
        let run = |thread| move || append_for_ever(log, thread);
        let all: Vec<_> = (0..threads).map(|thread| scope.spawn(run(thread))).collect();
        all.into_iter().try_for_each(|one| one.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))))
    })
}

fn append_for_ever(log: &EventLog, thread: usize) -> io::Result<()> {
    let (tell, told) = mpsc::channel::<Result<(), LogError>>();
    let mut streams = Vec::new();
    for number in 0..STREAMS {
        let session: SessionId = format!("s-{thread}-{number}").parse().map_err(io::Error::other)?;
        let next = log.head(&session).map_or(1, |head| head.last + 1);
        streams.push((Arc::new(session), next));
    }
    let mut waiting = 0;
    loop {
        for (session, next) in &mut streams {
            let mut batch = batch(session, *next);
            *next += batch.events.len() as u64;
            loop {
                let (tell, session, last) = (tell.clone(), Arc::clone(session), *next - 1);
                // On the writer's thread, like a fan-out to subscribers.
                let done = move |result: Result<(), LogError>| {
                    let said = result.map_or(Ok(()), |()| writeln!(io::stdout().lock(), "{session} {last}"));
                    drop(tell.send(said.map_err(|_| LogError::Busy { bytes: 0 })));
                };
                match log.append(batch, Box::new(done)) {
                    Ok(()) => break,
                    Err(QueueFull { batch: again, .. }) => batch = again,
                }
                log.flush(std::time::Duration::from_secs(60)).map_err(io::Error::other)?;
            }
            waiting += 1;
        }
        while waiting > IN_FLIGHT * STREAMS {
            told.recv().map_err(io::Error::other)?.map_err(io::Error::other)?;
            waiting -= 1;
        }
    }
}

/// One to seven events that say who and where they are; the last one's offset is the cursor of a consumer, and the `source`.
fn batch(session: &Arc<SessionId>, first: u64) -> EventBatch {
    let created_at = UNIX_EPOCH + SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let last = first + first % 7;
    let envelope = |offset| {
        let event = Event::Text { text: format!("{session} {offset}") };
        Arc::new(Envelope { offset, created_at, session: Arc::clone(session), turn: None, metadata: None, event })
    };
    let events = (first..=last).map(envelope).collect();
    let cursor = Some(("consumer".to_owned(), last));
    EventBatch { session: Arc::clone(session), created_at, first, events, source: last, cursor }
}
