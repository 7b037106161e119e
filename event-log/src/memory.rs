//! The store without a file: each stream's newest events.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use ipc_protocol::{Envelope, Event, SessionId};

use crate::{
    EventBatch, EventPage, EventRing, Heartbeat, LinePage, LogError, LogMetrics, MAX_PUT_ASIDE, MAX_REQUESTS,
    MemoryLimits, OnCommit, QueueFull, ReadLimit, Result, Retention, StreamOwnership, StreamPosition,
    store::{BatchTarget, LogChange, LogStore},
    types::ReadBound,
};

/// Writes an event as a public JSON line.
fn write_line(out: &mut Vec<u8>, event: &Envelope) -> Result<()> {
    let written = event.to_json().and_then(|json| serde_json::to_writer(&mut *out, &json));
    written.map_err(|error| LogError::Io {
        path: "(memory)".into(),
        operation: "encode an event of",
        cause: ipc_protocol::ErrorCause::new(error),
    })?;
    out.push(b'\n');
    Ok(())
}

/// Store in memory. Everything runs on the caller's thread, `done` included.
#[derive(Debug)]
pub(crate) struct MemoryStore {
    limits: MemoryLimits,
    state: Mutex<MemoryState>,
}

#[derive(Debug, Default)]
struct MemoryState {
    streams: HashMap<SessionId, MemoryStream>,
    imports: HashMap<SessionId, MemoryStream>,
    sessions: BTreeMap<SessionId, String>,
    heartbeat: Option<Heartbeat>,
    requests: HashMap<String, String>,
    /// Names of `requests`, the oldest first.
    request_names: VecDeque<String>,
    /// Events that were put aside, the oldest first, and their weight.
    put_aside: EventRing,
    /// Position of the last event appended to any stream.
    position: u64,
    metrics: LogMetrics,
}

#[derive(Debug, Default)]
struct MemoryStream {
    events: EventRing,
    /// Positions of `events`, in the same order.
    positions: VecDeque<u64>,
    last: u64,
    source: u64,
    closed: bool,
    cursors: HashMap<String, u64>,
    epoch: u64,
    acknowledged: u64,
}

impl MemoryStream {
    fn head(&self) -> StreamPosition {
        let first = self.events.first().map_or(self.last + 1, |event| event.offset);
        StreamPosition {
            first,
            last: self.last,
            closed: self.closed,
            source: self.source,
            bytes: self.events.bytes() as u64,
            epoch: self.epoch,
            acknowledged: self.acknowledged,
        }
    }

    /// Removes and returns the events from an offset on.
    fn cut(&mut self, from: u64) -> Vec<Arc<Envelope>> {
        let mut tail = Vec::new();
        while self.events.last().is_some_and(|event| event.offset >= from) {
            tail.extend(self.events.pop_last());
            self.positions.pop_back();
        }
        tail.reverse();
        self.last = self.last.min(from - 1);
        self.acknowledged = self.acknowledged.min(self.last);
        let last = self.last;
        self.cursors.values_mut().for_each(|offset| *offset = (*offset).min(last));
        tail
    }

    fn append(
        &mut self,
        batch: EventBatch,
        target: BatchTarget,
        limits: MemoryLimits,
        position: &mut u64,
    ) -> Result<u64> {
        let session = &batch.session;
        if self.closed {
            return Err(LogError::Closed { session: (**session).clone() });
        }
        let anywhere = target == BatchTarget::Import && self.last == 0;
        let mut expected = if anywhere { batch.first } else { self.last + 1 };
        let order = |expected, found| Err(LogError::Order { session: (**session).clone(), expected, found });
        if !batch.events.is_empty() && batch.first != expected {
            return order(expected, batch.first);
        }
        for (index, envelope) in batch.events.iter().enumerate() {
            let tells_of_gap =
                index == 0 && matches!(&envelope.event, Event::SessionGap(gap) if gap.from == batch.first);
            if envelope.offset != expected && !(envelope.offset > expected && tells_of_gap) {
                return order(expected, envelope.offset);
            }
            expected = envelope.offset + 1;
        }
        let before = self.events.bytes();
        for envelope in batch.events {
            self.last = envelope.offset;
            self.events.push(envelope);
            *position += 1;
            self.positions.push_back(*position);
        }
        let added = self.events.bytes() - before;
        self.source = self.source.max(batch.source);
        if let Some((consumer, offset)) = batch.cursor {
            self.cursors.insert(consumer, offset);
        }
        while self.events.evict(limits.events, limits.bytes).is_some() {
            self.positions.pop_front();
        }
        Ok(added as u64)
    }

    fn drop_oldest(&mut self) {
        self.positions.pop_front();
        self.events.pop();
    }

    /// Returns the events at positions greater than `from`.
    fn after_position(&self, from: u64) -> impl Iterator<Item = (u64, &Arc<Envelope>)> {
        let begin = self.positions.partition_point(|position| *position <= from);
        self.positions.range(begin..).copied().zip(self.events.range(begin))
    }

    /// Returns the events after `from`, up to the limit.
    fn after_offset(&self, from: u64, limit: ReadLimit) -> impl Iterator<Item = &Arc<Envelope>> {
        let mut bytes = 0;
        self.events.since(from.saturating_add(1)).take(limit.events.max(1)).take_while(move |event| {
            let more = bytes == 0 || bytes < limit.bytes;
            bytes += event.weight();
            more
        })
    }

    fn retain(&mut self, retention: Retention, now: SystemTime) -> u64 {
        let oldest = retention.max_age.and_then(|age| now.checked_sub(age));
        let mut removed = 0;
        while let Some(event) = self.events.first() {
            let too_old = oldest.is_some_and(|oldest| event.created_at < oldest);
            let too_many = retention.max_events_per_session.is_some_and(|max| self.events.len() as u64 > max);
            let too_large = retention.max_bytes_per_session.is_some_and(|max| self.events.bytes() as u64 > max);
            if !(too_old || self.events.len() > 1 && (too_many || too_large)) {
                break;
            }
            self.drop_oldest();
            removed += 1;
        }
        removed
    }
}

impl MemoryState {
    fn stream(&self, session: &SessionId) -> Result<&MemoryStream> {
        self.streams.get(session).ok_or_else(|| LogError::Unknown { session: session.clone() })
    }

    /// Returns the last position within the bound.
    fn end(&self, bound: ReadBound) -> u64 {
        let waiting = self.streams.values().filter(|stream| bound == ReadBound::Acknowledged && stream.epoch > 0);
        let first = waiting.filter_map(|stream| {
            let index = stream.events.range(0).position(|event| event.offset > stream.acknowledged)?;
            stream.positions.get(index)
        });
        first.min().map_or(self.position, |position| position - 1)
    }

    fn append(&mut self, batch: EventBatch, target: BatchTarget, limits: MemoryLimits) -> Result<()> {
        let events = batch.events.len() as u64;
        let map = match target {
            BatchTarget::Stream => &mut self.streams,
            BatchTarget::Import => &mut self.imports,
        };
        // A batch that is refused leaves no stream behind.
        let bytes = match map.get_mut(&batch.session) {
            Some(stream) => stream.append(batch, target, limits, &mut self.position)?,
            None => {
                let (session, mut stream) = ((*batch.session).clone(), MemoryStream::default());
                let bytes = stream.append(batch, target, limits, &mut self.position)?;
                map.insert(session, stream);
                bytes
            }
        };
        self.metrics.commits += 1;
        self.metrics.events += events;
        self.metrics.bytes += bytes;
        Ok(())
    }

    fn change(&mut self, change: LogChange) -> Result<()> {
        let unknown = |session: SessionId| LogError::Unknown { session };
        match change {
            LogChange::Barrier => {}
            LogChange::Close(session) => match self.streams.get_mut(&session) {
                Some(stream) => stream.closed = true,
                None => return Err(unknown(session)),
            },
            LogChange::Delete(session) => match self.streams.remove(&session) {
                Some(stream) => self.metrics.removed += stream.events.len() as u64,
                None => return Err(unknown(session)),
            },
            LogChange::SetCursor { consumer, session, offset } => match self.streams.get_mut(&session) {
                Some(stream) => drop(stream.cursors.insert(consumer, offset)),
                None => return Err(unknown(session)),
            },
            LogChange::PutSession(id, record) => drop(self.sessions.insert(id, record)),
            LogChange::DeleteSession(id) => drop(self.sessions.remove(&id)),
            LogChange::Heartbeat(beat) => self.heartbeat = Some(beat),
            LogChange::PutRequest(name, None) => {
                self.requests.remove(&name);
                self.request_names.retain(|known| *known != name);
            }
            LogChange::PutRequest(name, Some(record)) => {
                if self.requests.insert(name.clone(), record).is_none() {
                    self.request_names.push_back(name);
                }
                while self.request_names.len() as u64 > MAX_REQUESTS
                    && let Some(oldest) = self.request_names.pop_front()
                {
                    self.requests.remove(&oldest);
                }
            }
            LogChange::Publish(session, closed) => {
                if self.streams.contains_key(&session) {
                    return Err(LogError::Exists { session });
                }
                let Some(mut stream) = self.imports.remove(&session) else { return Err(unknown(session)) };
                stream.closed = closed;
                self.streams.insert(session, stream);
            }
            LogChange::Discard(session) => drop(self.imports.remove(&session)),
            LogChange::Acknowledge(session, through) => match self.streams.get_mut(&session) {
                Some(stream) if stream.epoch == 0 || through > stream.last => {
                    let detail = format!("it is not replicated, or has no event {through}");
                    return Err(LogError::Replication { session, operation: "acknowledge", detail });
                }
                Some(stream) => stream.acknowledged = stream.acknowledged.max(through),
                None => return Err(unknown(session)),
            },
            LogChange::ContinueFrom(session, StreamOwnership { epoch, tail, keeps_tail }) => {
                let before = self.streams.get(&session).map_or(0, |stream| stream.epoch);
                if epoch == 0 || epoch < before || tail >= i64::MAX as u64 - 1 {
                    let detail = format!("epoch {epoch} from event {tail} cannot follow epoch {before}");
                    return Err(LogError::Replication { session, operation: "continue", detail });
                }
                let stream = self.streams.entry(session).or_default();
                let cut = if keeps_tail { Vec::new() } else { stream.cut(stream.acknowledged.min(tail) + 1) };
                if stream.last < tail {
                    stream.events = EventRing::default();
                    stream.positions.clear();
                    stream.last = tail;
                }
                (stream.closed, stream.epoch, stream.acknowledged) = (false, epoch, tail);
                self.retain_put_aside(cut);
            }
            LogChange::PutAside(session, from) => {
                let Some(stream) = self.streams.get_mut(&session) else { return Err(unknown(session)) };
                if stream.epoch == 0 || from <= stream.acknowledged {
                    let detail = format!("event {from} is not replicated, or is acknowledged");
                    return Err(LogError::Replication { session, operation: "put aside events of", detail });
                }
                let cut = stream.cut(from);
                self.retain_put_aside(cut);
            }
        }
        Ok(())
    }
}

impl MemoryState {
    fn retain_put_aside(&mut self, events: Vec<Arc<Envelope>>) {
        events.into_iter().for_each(|event| self.put_aside.push(event));
        while self.put_aside.evict(usize::MAX, MAX_PUT_ASIDE as usize).is_some() {}
    }
}

impl MemoryStore {
    pub(crate) fn new(limits: MemoryLimits) -> Self {
        Self { limits, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, MemoryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogStore for MemoryStore {
    fn append(&self, batch: EventBatch, target: BatchTarget, done: OnCommit) -> Result<(), QueueFull> {
        let result = self.state().append(batch, target, self.limits);
        done(result);
        Ok(())
    }

    fn change(&self, change: LogChange, done: OnCommit) {
        let result = self.state().change(change);
        done(result);
    }

    fn read(&self, session: &SessionId, from: u64, limit: ReadLimit, bound: ReadBound) -> Result<EventPage> {
        let state = self.state();
        let stream = state.stream(session)?;
        let head = stream.head().within(bound);
        let readable = stream.after_offset(from, limit).take_while(|event| event.offset <= head.last);
        let events = readable.cloned().collect();
        Ok(EventPage { events, first_kept: head.first, last: head.last, closed: head.closed })
    }

    fn read_lines(&self, session: &SessionId, from: u64, limit: ReadLimit, bound: ReadBound) -> Result<LinePage> {
        let page = self.read(session, from, limit, bound)?;
        let mut lines = LinePage { next: from, ..LinePage::default() };
        for event in &page.events {
            write_line(&mut lines.bytes, event)?;
            lines.events += 1;
            lines.next = event.offset;
        }
        (lines.first_kept, lines.last, lines.closed) = (page.first_kept, page.last, page.closed);
        Ok(lines)
    }

    fn read_all(&self, from: u64, limit: ReadLimit, bound: ReadBound) -> Result<Vec<(u64, Arc<Envelope>)>> {
        let state = self.state();
        let most = limit.events.max(1);
        let mut found: Vec<_> =
            state.streams.values().flat_map(|stream| stream.after_position(from).take(most)).collect();
        found.sort_unstable_by_key(|(position, _)| *position);
        let end = state.end(bound);
        let mut bytes = 0;
        let within =
            found.into_iter().take_while(|(position, _)| *position <= end).take(most).take_while(|(_, event)| {
                let more = bytes == 0 || bytes < limit.bytes;
                bytes += event.weight();
                more
            });
        Ok(within.map(|(position, event)| (position, event.clone())).collect())
    }

    fn end(&self, bound: ReadBound) -> Result<u64> {
        Ok(self.state().end(bound))
    }

    fn read_put_aside(&self, session: &SessionId) -> Result<Vec<u8>> {
        let mut lines = Vec::new();
        let state = self.state();
        let mut events = state.put_aside.range(0).filter(|event| *event.session == *session);
        events.try_for_each(|event| write_line(&mut lines, event))?;
        Ok(lines)
    }

    fn head(&self, session: &SessionId) -> Option<StreamPosition> {
        self.state().streams.get(session).map(MemoryStream::head)
    }

    fn streams(&self) -> Vec<(SessionId, StreamPosition)> {
        self.state().streams.iter().map(|(session, stream)| (session.clone(), stream.head())).collect()
    }

    fn session(&self, id: &SessionId) -> Result<Option<String>> {
        Ok(self.state().sessions.get(id).cloned())
    }

    fn sessions(&self) -> Result<Vec<(SessionId, String)>> {
        Ok(self.state().sessions.iter().map(|(id, record)| (id.clone(), record.clone())).collect())
    }

    fn last_heartbeat(&self) -> Result<Option<Heartbeat>> {
        Ok(self.state().heartbeat.clone())
    }

    fn request(&self, name: &str) -> Result<Option<String>> {
        Ok(self.state().requests.get(name).cloned())
    }

    fn cursor(&self, consumer: &str, session: &SessionId) -> Result<u64> {
        let state = self.state();
        Ok(state.streams.get(session).and_then(|stream| stream.cursors.get(consumer)).copied().unwrap_or(0))
    }

    fn retain(&self, retention: Retention, done: OnCommit) {
        let mut state = self.state();
        let now = SystemTime::now();
        let mut removed: u64 = state.streams.values_mut().map(|stream| stream.retain(retention, now)).sum();
        if retention.max_events_total.is_some() || retention.max_bytes_total.is_some() {
            let mut events: u64 = state.streams.values().map(|stream| stream.events.len() as u64).sum();
            let mut bytes: u64 = state.streams.values().map(|stream| stream.events.bytes() as u64).sum();
            while retention.max_events_total.is_some_and(|max| events > max)
                || retention.max_bytes_total.is_some_and(|max| bytes > max)
            {
                let with_events = state.streams.values_mut().filter(|stream| !stream.events.is_empty());
                let oldest = with_events.min_by_key(|stream| stream.events.first().map(|event| event.created_at));
                let Some(oldest) = oldest else { break };
                let before = oldest.events.bytes();
                oldest.drop_oldest();
                bytes -= (before - oldest.events.bytes()) as u64;
                events -= 1;
                removed += 1;
            }
        }
        state.metrics.removed += removed;
        drop(state);
        done(Ok(()));
    }

    fn metrics(&self) -> LogMetrics {
        self.state().metrics.clone()
    }

    fn flush(&self, _deadline: Duration) -> Result<()> {
        Ok(())
    }
}
