//! Export and import of streams, as public JSON envelopes, one a line.

use std::{
    io::{self, BufRead, Read as _, Write},
    sync::{Arc, mpsc},
    time::{Duration, SystemTime},
};

use ipc_protocol::{Envelope, ErrorCause, Event, OffsetGap, SessionId};

use crate::{
    EventBatch, ExportSummary, ImportSummary, LogError, OnCommit, QueueFull, ReadLimit, Result, line,
    store::{BatchTarget, LogChange, LogStore},
    types::ReadBound,
};

/// Longest line accepted by an import, in bytes: an envelope around the longest stored line.
const MAX_LINE: u64 = line::MAX_BYTES as u64 + 4096;
/// Bounds of one appended batch.
const BATCH_EVENTS: usize = 4096;
const BATCH_BYTES: usize = 4 * 1024 * 1024;
/// Time that one step waits for the writer.
const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) fn export(
    store: &dyn LogStore,
    session: &SessionId,
    bound: ReadBound,
    out: &mut dyn Write,
) -> Result<ExportSummary> {
    let mut exported = ExportSummary::default();
    let mut from = 0;
    let write = |out: &mut dyn Write, bytes: &[u8]| out.write_all(bytes).map_err(|error| io_error("write", error));
    loop {
        match store.read_lines(session, from, ReadLimit::default(), bound) {
            Ok(lines) if lines.events == 0 => break,
            Ok(lines) => {
                write(out, &lines.bytes)?;
                exported.events += lines.events as u64;
                from = lines.next;
            }
            Err(LogError::Corrupt { lost: Some(lost), .. }) => {
                write(out, gap_line(session, lost).as_bytes())?;
                exported.lost.push(lost);
                from = lost.to;
            }
            Err(error) => return Err(error),
        }
    }
    out.flush().map_err(|error| io_error("write", error))?;
    Ok(exported)
}

/// Returns the `session:gap` line, as a public JSON envelope, for events that cannot be read, at the offset of the last one lost.
pub fn gap_line(session: &SessionId, lost: OffsetGap) -> String {
    let created_at = SystemTime::now();
    let session = Arc::new(session.clone());
    let envelope =
        Envelope { offset: lost.to, created_at, session, turn: None, metadata: None, event: Event::SessionGap(lost) };
    envelope.to_json().map_or_else(|_| String::new(), |json| format!("{json}\n"))
}

fn io_error(operation: &'static str, error: io::Error) -> LogError {
    LogError::Io { path: "(the exported stream)".into(), operation, cause: ErrorCause::new(error) }
}

/// Import in progress; invisible until it is complete.
pub(crate) struct PendingImport<'a> {
    store: &'a dyn LogStore,
    line: u64,
    stream: Option<IncomingBatch>,
}

struct IncomingBatch {
    session: Arc<SessionId>,
    first: u64,
    /// Offset of the next event.
    next: u64,
    /// First offset of the batch in the making.
    begin: u64,
    events: Vec<Arc<Envelope>>,
    bytes: usize,
    ended: bool,
}

impl<'a> PendingImport<'a> {
    pub(crate) fn new(store: &'a dyn LogStore) -> Self {
        Self { store, line: 0, stream: None }
    }

    /// Reads all lines. Calls `claim` once, as soon as the session is known.
    pub(crate) fn run(
        mut self,
        input: &mut dyn BufRead,
        claim: impl FnOnce(&SessionId) -> Result<()>,
    ) -> Result<ImportSummary> {
        let mut claim = Some(claim);
        let mut taken = Ok(());
        let mut text = Vec::new();
        while taken.is_ok() && self.next_line(input, &mut text)? {
            taken = self.envelope(&text).and_then(|envelope| {
                if let Some(claim) = claim.take() {
                    claim(&envelope.session)?;
                }
                self.take(envelope)
            });
        }
        let Some(stream) = self.stream.take() else {
            taken?;
            return Err(LogError::Import { line: 1, detail: "there is no event; nothing was imported".into() });
        };
        let imported = ImportSummary { session: (*stream.session).clone(), first: stream.first, last: stream.next - 1 };
        let session = imported.session.clone();
        let ended = stream.ended;
        taken
            .and_then(|()| self.send(stream))
            .and_then(|()| self.change(LogChange::Publish(session.clone(), ended)))
            .map(|()| imported)
            .inspect_err(|_| drop(self.change(LogChange::Discard(session))))
    }

    fn refuse<T>(&self, detail: impl Into<String>) -> Result<T> {
        Err(LogError::Import { line: self.line, detail: detail.into() })
    }

    /// Reads the next line that is not empty. Returns false at the end.
    fn next_line(&mut self, input: &mut dyn BufRead, text: &mut Vec<u8>) -> Result<bool> {
        loop {
            text.clear();
            self.line += 1;
            let read = input.take(MAX_LINE).read_until(b'\n', text).map_err(|error| io_error("read", error));
            let read = match read {
                Ok(read) => read,
                Err(error) => {
                    self.give_up();
                    return Err(error);
                }
            };
            if read == 0 {
                return Ok(false);
            }
            if !text.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    fn give_up(&mut self) {
        if let Some(stream) = self.stream.take() {
            drop(self.change(LogChange::Discard((*stream.session).clone())));
        }
    }

    fn envelope(&self, text: &[u8]) -> Result<Envelope> {
        let json = match line::parse_deep(text) {
            Ok(json) => json,
            Err(error) => return self.refuse(format!("it is no JSON: {error}")),
        };
        Envelope::from_json(json).or_else(|error| {
            let source = std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
            self.refuse(format!("{error}{source}"))
        })
    }

    fn take(&mut self, envelope: Envelope) -> Result<()> {
        let Envelope { offset, session, event, .. } = &envelope;
        if *offset == 0 || *offset >= i64::MAX as u64 {
            return self.refuse(format!("{offset} is no offset of an event"));
        }
        let stream = self.stream.get_or_insert_with(|| IncomingBatch {
            session: Arc::clone(session),
            first: *offset,
            next: *offset,
            begin: *offset,
            events: Vec::new(),
            bytes: 0,
            ended: false,
        });
        if stream.session != *session {
            let detail =
                format!("it is of session {session}, those before are of {}; import one at a time", stream.session);
            return self.refuse(detail);
        }
        let expected = stream.next;
        if *offset != expected {
            // A gap may replace missing events: it begins a batch then.
            if !(*offset > expected && matches!(event, Event::SessionGap(gap) if gap.from == expected)) {
                return self.refuse(format!("its offset is {offset}, {expected} comes next"));
            }
            self.send_some()?;
        }
        let Some(stream) = &mut self.stream else { return Ok(()) };
        stream.next = *offset + 1;
        stream.ended = matches!(event, Event::SessionEnded { .. });
        stream.bytes += envelope.weight();
        stream.events.push(Arc::new(envelope));
        if stream.events.len() >= BATCH_EVENTS || stream.bytes >= BATCH_BYTES { self.send_some() } else { Ok(()) }
    }

    fn send_some(&mut self) -> Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        let batch = stream.batch();
        self.append(batch)
    }

    fn send(&self, mut stream: IncomingBatch) -> Result<()> {
        self.append(stream.batch())
    }

    fn append(&self, mut batch: EventBatch) -> Result<()> {
        if batch.events.is_empty() {
            return Ok(());
        }
        let (tell, told) = mpsc::channel();
        loop {
            let tell = tell.clone();
            match self.store.append(batch, BatchTarget::Import, Box::new(move |result| drop(tell.send(result)))) {
                Ok(()) => break,
                Err(QueueFull { batch: again, .. }) => batch = again,
            }
            self.store.flush(DEADLINE)?;
        }
        drop(tell);
        wait(&told)
    }

    fn change(&self, change: LogChange) -> Result<()> {
        let (tell, told) = mpsc::channel();
        let done: OnCommit = Box::new(move |result| drop(tell.send(result)));
        self.store.change(change, done);
        wait(&told)
    }
}

fn wait(told: &mpsc::Receiver<Result<()>>) -> Result<()> {
    told.recv_timeout(DEADLINE).unwrap_or(Err(LogError::Deadline { operation: "import into", after: DEADLINE }))
}

impl IncomingBatch {
    /// Takes the events since the last batch.
    fn batch(&mut self) -> EventBatch {
        let events = std::mem::take(&mut self.events);
        let first = std::mem::replace(&mut self.begin, self.next);
        self.bytes = 0;
        let created_at = events.first().map_or(SystemTime::UNIX_EPOCH, |event| event.created_at);
        EventBatch { session: Arc::clone(&self.session), created_at, first, events, source: 0, cursor: None }
    }
}
