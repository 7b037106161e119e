//! Byte streams: their state in memory, changed by the writer alone after each commit, and the work of a change within a transaction.

use std::{
    collections::HashMap,
    sync::{
        Arc, RwLock,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, SystemTime},
};

use rusqlite::{Connection, OptionalExtension as _, Row, Statement, params, types::Type};

use super::{read_lock, reader::ReaderPool, rows::checksum};
use crate::{
    BytePage, ByteStreamAppend, ByteStreamChange, ByteStreamInfo, ByteStreamOutcome, ByteStreamRefusal, LogDamage,
    LogError, MAX_BYTE_STREAMS, NewByteStream, ProducerSequence, Result, StreamContent, StreamFork, StreamLifetime,
    byte_streams::media_type, line,
};

/// Size at which content is cut into rows.
const ROW_BYTES: usize = 256 * 1024;
/// Media type of a stream that was created without.
const NO_TYPE: &str = "application/octet-stream";

/// State of a stream.
#[derive(Clone, Debug)]
pub(super) struct ByteStreamHead {
    info: ByteStreamInfo,
    path: Arc<str>,
    /// Time of the last use, in milliseconds since 1970.
    touched: Arc<AtomicI64>,
    /// Stream that has the content before `fork_at`.
    source: Option<i64>,
    fork_at: u64,
    /// Source as it was asked for, and how far beyond `fork_at` of that.
    fork_path: Option<Arc<str>>,
    fork_beyond: u64,
    /// Number of forks that have their beginning here.
    forks: u32,
    seq: Option<String>,
    /// Request that closed it, as text.
    closer: Option<String>,
}

impl ByteStreamHead {
    fn is_expired(&self, now: i64) -> bool {
        match self.info.lifetime {
            StreamLifetime::Unbounded => false,
            StreamLifetime::Idle(idle) => {
                let idle = i64::try_from(idle.as_millis()).unwrap_or(i64::MAX);
                self.touched.load(Ordering::Relaxed).saturating_add(idle) <= now
            }
            StreamLifetime::Until(until) => line::millis(until) <= now,
        }
    }

    fn touch(&self, now: i64) {
        self.touched.fetch_max(now, Ordering::Relaxed);
    }

    /// Returns true if `asked` would make this stream.
    fn is_asked_for(&self, asked: &NewByteStream) -> bool {
        let ours = media_type(&self.info.content_type);
        let same_type = match &asked.content_type {
            Some(content_type) => media_type(content_type) == ours,
            None => self.fork_path.is_some() || ours == NO_TYPE,
        };
        let is_inherited = self.fork_path.is_some() && asked.lifetime == StreamLifetime::Unbounded;
        let same_fork = match &asked.fork {
            None => self.fork_path.is_none(),
            Some(fork) => {
                Some(fork.source.as_str()) == self.fork_path.as_deref()
                    && fork.beyond == self.fork_beyond
                    && fork.at.is_none_or(|at| at.checked_add(fork.beyond) == Some(self.fork_at))
            }
        };
        same_type
            && same_fork
            && asked.is_closed == self.info.is_closed
            && (is_inherited || asked.lifetime == self.info.lifetime)
    }
}

/// All streams.
#[derive(Debug, Default)]
pub(super) struct ByteStreamHeads {
    streams: HashMap<i64, ByteStreamHead>,
    paths: HashMap<Arc<str>, i64>,
}

impl ByteStreamHeads {
    /// Reads them, and the ids of those that are to be removed. A row that cannot be read is left as it is, and told.
    pub(super) fn load(conn: &Connection, damage: &mut Vec<LogDamage>) -> rusqlite::Result<(Self, Vec<i64>)> {
        let (mut heads, mut doomed) = (Self::default(), Vec::new());
        let now = line::millis(SystemTime::now());
        let mut last = conn.prepare("SELECT last FROM byte_rows WHERE stream = ? ORDER BY last DESC LIMIT 1")?;
        let sql = "SELECT id, path, content_type, closed, deleted, idle_s, until_ms, source, fork_at, fork_path, fork_beyond, seq,
            closer, mapped FROM byte_streams";
        let mut query = conn.prepare(sql)?;
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            let id: i64 = row.get(0)?;
            match read_head(row, &mut last, now) {
                Ok(Some(head)) => {
                    heads.paths.insert(Arc::clone(&head.path), id);
                    heads.streams.insert(id, head);
                }
                Ok(None) => doomed.push(id),
                Err(error) => {
                    let name = row.get(1).unwrap_or_default();
                    damage.push(LogDamage::Stream { row: id, name, detail: format!("of a byte stream: {error}") });
                }
            }
        }
        let sources: Vec<i64> = heads.streams.values().filter_map(|head| head.source).collect();
        for source in sources {
            if let Some(head) = heads.streams.get_mut(&source) {
                head.forks += 1;
            }
        }
        Ok((heads, doomed))
    }

    fn find(&self, path: &str) -> Option<&ByteStreamHead> {
        self.streams.get(self.paths.get(path)?)
    }

    /// Returns the state of a stream whose life is not over.
    pub(super) fn info(&self, path: &str) -> Option<ByteStreamInfo> {
        let now = line::millis(SystemTime::now());
        // One that forks need is deleted by then; nobody has asked yet.
        self.find(path).filter(|head| !head.is_expired(now) || head.info.is_deleted).map(|head| head.info.clone())
    }

    pub(super) fn touch(&self, path: &str) {
        if let Some(head) = self.find(path) {
            head.touch(line::millis(SystemTime::now()));
        }
    }

    /// Names of the streams whose life is over.
    pub(super) fn expired(&self) -> Vec<String> {
        let now = line::millis(SystemTime::now());
        let over = self.streams.values().filter(|head| !head.info.is_deleted && head.is_expired(now));
        over.map(|head| head.path.to_string()).collect()
    }

    /// Names of the JSON streams with messages to which rules were not applied.
    pub(super) fn unmapped(&self) -> Vec<String> {
        let is_behind = |info: &ByteStreamInfo| info.is_json() && info.mapped.is_some_and(|mapped| mapped < info.tail);
        let behind = self.streams.values().filter(|head| !head.info.is_deleted && is_behind(&head.info));
        behind.map(|head| head.path.to_string()).collect()
    }

    /// Stream that has the content at `from`, and the position up to which it has it.
    fn owner(&self, path: &str, from: u64) -> Option<(i64, u64, bool)> {
        let mut head = self.find(path)?;
        let mut end = head.info.tail;
        while let Some(source) = head.source
            && from < head.fork_at
        {
            end = end.min(head.fork_at);
            head = self.streams.get(&source)?;
        }
        Some((head.info.id, end, head.info.is_json()))
    }
}

/// Reads a stream's row; `None` for one without a path.
fn read_head(row: &Row<'_>, last: &mut Statement<'_>, now: i64) -> rusqlite::Result<Option<ByteStreamHead>> {
    let id: i64 = row.get(0)?;
    let Some(path) = row.get::<_, Option<Arc<str>>>(1)? else { return Ok(None) };
    let lifetime = match (row.get::<_, Option<i64>>(5)?, row.get::<_, Option<i64>>(6)?) {
        (Some(seconds), _) => StreamLifetime::Idle(Duration::from_secs(seconds.unsigned_abs())),
        (None, Some(until)) => StreamLifetime::Until(line::time(until)),
        (None, None) => StreamLifetime::Unbounded,
    };
    let fork_at = row.get::<_, i64>(8)?.cast_unsigned();
    let end: Option<i64> = last.query_row([id], |row| row.get(0)).optional()?;
    Ok(Some(ByteStreamHead {
        info: ByteStreamInfo {
            id,
            content_type: row.get(2)?,
            tail: end.map_or(fork_at, |end| end.cast_unsigned().max(fork_at)),
            is_closed: row.get(3)?,
            lifetime,
            is_deleted: row.get(4)?,
            mapped: row.get::<_, Option<i64>>(13)?.map(i64::cast_unsigned),
        },
        path,
        touched: Arc::new(AtomicI64::new(now)),
        source: row.get(7)?,
        fork_at,
        fork_path: row.get(9)?,
        fork_beyond: row.get::<_, i64>(10)?.cast_unsigned(),
        forks: 0,
        seq: row.get(11)?,
        closer: row.get(12)?,
    }))
}

/// Reads a stream.
///
/// # Errors
/// As [`crate::EventLog::read_byte_stream`].
pub(super) fn read(
    readers: &ReaderPool,
    heads: &RwLock<ByteStreamHeads>,
    path: &str,
    from: u64,
    most: usize,
) -> Result<BytePage> {
    let mut page = BytePage { bytes: Vec::new(), next: from };
    loop {
        let owner = read_lock(heads).owner(path, page.next);
        let Some((id, end, is_json)) = owner else { return Err(LogError::NoStream { path: path.to_owned() }) };
        if page.next >= end || page.bytes.len() >= most {
            return Ok(page);
        }
        let before = page.next;
        let is_whole = readers.with(|conn| read_rows(conn, id, end, is_json, most, &mut page))?;
        if !is_whole {
            return Ok(page);
        }
        if page.next == before {
            // Positions without content: a gap at the end of what was copied.
            page.next = end;
        }
    }
}

/// Adds rows to a page. Returns false if a damaged row is behind what the page has: the next page begins with it, and fails.
fn read_rows(
    conn: &Connection,
    id: i64,
    end: u64,
    is_json: bool,
    most: usize,
    page: &mut BytePage,
) -> rusqlite::Result<bool> {
    let sql = "SELECT first, last, sum, body FROM byte_rows WHERE stream = ? AND last > ? ORDER BY last";
    let mut query = conn.prepare_cached(sql)?;
    let mut rows = query.query(params![id, page.next.cast_signed()])?;
    while page.next < end
        && page.bytes.len() < most
        && let Some(row) = rows.next()?
    {
        let (first, last) = (row.get::<_, i64>(0)?.cast_unsigned(), row.get::<_, i64>(1)?.cast_unsigned());
        let body = row.get_ref(3)?.as_blob()?;
        if row.get::<_, i64>(2)? != i64::from(checksum(first, last, id, body)) {
            if !page.bytes.is_empty() {
                return Ok(false);
            }
            let why = format!("the content after position {} is not what was written", page.next);
            return Err(rusqlite::Error::FromSqlConversionFailure(3, Type::Blob, why.into()));
        }
        let until = last.min(end);
        if is_json {
            let lines = memchr::memchr_iter(b'\n', body).count() as u64;
            let mut begin = 0;
            for (newline, position) in memchr::memchr_iter(b'\n', body).zip((last + 1).saturating_sub(lines)..) {
                if position > page.next && position <= until {
                    page.bytes.extend_from_slice(&body[begin..=newline]);
                }
                begin = newline + 1;
            }
        } else {
            let at = |position: u64| usize::try_from(position.saturating_sub(first)).unwrap_or(usize::MAX);
            page.bytes.extend_from_slice(body.get(at(page.next)..at(until)).unwrap_or_default());
        }
        page.next = until;
    }
    Ok(true)
}

/// Changes of streams within a transaction.
#[derive(Debug)]
pub(super) struct ByteStreamTransaction<'a> {
    conn: &'a Connection,
    heads: &'a RwLock<ByteStreamHeads>,
    changed: HashMap<i64, Option<ByteStreamHead>>,
    paths: HashMap<Arc<str>, Option<i64>>,
    removed: Vec<i64>,
    created: usize,
}

/// Changes of a transaction that is committed.
#[derive(Debug, Default)]
pub(super) struct ByteStreamChanges {
    changed: HashMap<i64, Option<ByteStreamHead>>,
    paths: HashMap<Arc<str>, Option<i64>>,
    /// Streams whose content is to be removed.
    pub(super) removed: Vec<i64>,
}

impl ByteStreamChanges {
    /// Publishes the new states.
    pub(super) fn publish(&mut self, heads: &RwLock<ByteStreamHeads>) {
        if self.changed.is_empty() && self.paths.is_empty() {
            return;
        }
        let mut heads = super::write_lock(heads);
        for (id, head) in self.changed.drain() {
            match head {
                Some(head) => drop(heads.streams.insert(id, head)),
                None => drop(heads.streams.remove(&id)),
            }
        }
        for (path, id) in self.paths.drain() {
            match id {
                Some(id) => drop(heads.paths.insert(path, id)),
                None => drop(heads.paths.remove(&path)),
            }
        }
    }
}

type ChangeResult = rusqlite::Result<ByteStreamOutcome>;

fn refused(refusal: ByteStreamRefusal) -> ChangeResult {
    Ok(ByteStreamOutcome::Refused(refusal))
}

impl<'a> ByteStreamTransaction<'a> {
    pub(super) fn new(conn: &'a Connection, heads: &'a RwLock<ByteStreamHeads>) -> Self {
        Self { conn, heads, changed: HashMap::new(), paths: HashMap::new(), removed: Vec::new(), created: 0 }
    }

    pub(super) fn finish(self) -> ByteStreamChanges {
        ByteStreamChanges { changed: self.changed, paths: self.paths, removed: self.removed }
    }

    pub(super) fn apply(&mut self, change: &ByteStreamChange) -> ChangeResult {
        let now = line::millis(SystemTime::now());
        match change {
            ByteStreamChange::Create(new) => self.create(new, now),
            ByteStreamChange::Append(append) => self.append(append, now),
            ByteStreamChange::Delete(path) => match self.find(path, now)? {
                None => refused(ByteStreamRefusal::Unknown),
                Some(head) if head.info.is_deleted => refused(ByteStreamRefusal::Deleted),
                Some(head) => self.remove(head).map(|()| ByteStreamOutcome::Deleted),
            },
            // Looking removes it.
            ByteStreamChange::Expire(path) => self.find(path, now).map(|_| ByteStreamOutcome::Deleted),
            ByteStreamChange::SetMapped(path, id, position) => {
                if let Some(mut head) = self.find(path, now)?.filter(|head| head.info.id == *id) {
                    let sql = "UPDATE byte_streams SET mapped = ? WHERE id = ?";
                    self.conn.prepare_cached(sql)?.execute(params![position.cast_signed(), id])?;
                    head.info.mapped = Some(*position);
                    self.set(head);
                }
                Ok(ByteStreamOutcome::Noted)
            }
            ByteStreamChange::HaveRules(has_rules) => self.have_rules(*has_rules),
        }
    }

    /// Begins to apply rules to all streams, or ends it. Called before anything is appended.
    fn have_rules(&mut self, has_rules: bool) -> ChangeResult {
        let streams: Vec<ByteStreamHead> = read_lock(self.heads).streams.values().cloned().collect();
        for mut head in streams.into_iter().filter(|head| head.info.mapped.is_some() != has_rules) {
            head.info.mapped = has_rules.then_some(head.info.tail);
            let mapped = head.info.mapped.map(u64::cast_signed);
            let sql = "UPDATE byte_streams SET mapped = ? WHERE id = ?";
            self.conn.prepare_cached(sql)?.execute(params![mapped, head.info.id])?;
            self.set(head);
        }
        Ok(ByteStreamOutcome::Noted)
    }

    fn get(&self, id: i64) -> Option<ByteStreamHead> {
        match self.changed.get(&id) {
            Some(head) => head.clone(),
            None => read_lock(self.heads).streams.get(&id).cloned(),
        }
    }

    fn set(&mut self, head: ByteStreamHead) {
        self.changed.insert(head.info.id, Some(head));
    }

    /// Finds a stream. One whose life is over is removed.
    fn find(&mut self, path: &str, now: i64) -> rusqlite::Result<Option<ByteStreamHead>> {
        let id = match self.paths.get(path) {
            Some(id) => *id,
            None => read_lock(self.heads).paths.get(path).copied(),
        };
        let Some(head) = id.and_then(|id| self.get(id)) else { return Ok(None) };
        if head.info.is_deleted || !head.is_expired(now) {
            return Ok(Some(head));
        }
        let id = head.info.id;
        self.remove(head)?;
        Ok(self.get(id))
    }

    /// Removes a stream, or marks it as deleted while forks need it. With the last fork of a source that is deleted, that goes too.
    fn remove(&mut self, mut head: ByteStreamHead) -> rusqlite::Result<()> {
        loop {
            let id = head.info.id;
            if head.forks > 0 {
                head.info.is_deleted = true;
                self.conn.prepare_cached("UPDATE byte_streams SET deleted = 1 WHERE id = ?")?.execute([id])?;
                self.set(head);
                return Ok(());
            }
            self.conn.prepare_cached("UPDATE byte_streams SET path = NULL WHERE id = ?")?.execute([id])?;
            self.changed.insert(id, None);
            self.paths.insert(Arc::clone(&head.path), None);
            self.removed.push(id);
            let Some(mut source) = head.source.and_then(|id| self.get(id)) else { return Ok(()) };
            source.forks = source.forks.saturating_sub(1);
            if source.forks > 0 || !source.info.is_deleted {
                self.set(source);
                return Ok(());
            }
            head = source;
        }
    }

    fn create(&mut self, new: &NewByteStream, now: i64) -> ChangeResult {
        if let Some(head) = self.find(&new.path, now)? {
            return match head {
                head if head.info.is_deleted => refused(ByteStreamRefusal::Deleted),
                head if head.is_asked_for(new) => {
                    head.touch(now);
                    Ok(ByteStreamOutcome::Exists(head.info))
                }
                _ => refused(ByteStreamRefusal::OtherConfiguration),
            };
        }
        if read_lock(self.heads).streams.len() + self.created >= MAX_BYTE_STREAMS {
            return refused(ByteStreamRefusal::TooMany);
        }
        let (mut lifetime, mut content_type) = (new.lifetime, new.content_type.as_deref().map(Arc::from));
        let (mut source, mut fork_at) = (None, 0);
        if let Some(fork) = &new.fork {
            let from = match fork.copied {
                Some(_) => None,
                None => match self.find(&fork.source, now)? {
                    None => return refused(ByteStreamRefusal::UnknownSource),
                    Some(head) if head.info.is_deleted => return refused(ByteStreamRefusal::DeletedSource),
                    Some(head) => Some(head),
                },
            };
            match from {
                None => fork_at = fork.at.unwrap_or(0),
                Some(from) => {
                    let wanted = content_type.get_or_insert_with(|| Arc::clone(&from.info.content_type));
                    if media_type(wanted) != media_type(&from.info.content_type) {
                        return refused(ByteStreamRefusal::ContentType(from.info.content_type));
                    }
                    match self.fork_position(&from, fork)? {
                        Some(at) => fork_at = at,
                        None => return refused(ByteStreamRefusal::ForkPosition),
                    }
                    if lifetime == StreamLifetime::Unbounded {
                        lifetime = from.info.lifetime;
                    }
                    source = Some(from.info.id);
                }
            }
        }
        let content_type = content_type.unwrap_or_else(|| NO_TYPE.into());
        let fork_path: Option<Arc<str>> = new.fork.as_ref().map(|fork| fork.source.as_str().into());
        let fork_beyond = new.fork.as_ref().map_or(0, |fork| fork.beyond);
        let (idle, until) = match lifetime {
            StreamLifetime::Unbounded => (None, None),
            StreamLifetime::Idle(idle) => (Some(i64::try_from(idle.as_secs()).unwrap_or(i64::MAX)), None),
            StreamLifetime::Until(until) => (None, Some(line::millis(until))),
        };
        let sql = "INSERT INTO byte_streams (path, content_type, closed, idle_s, until_ms, source, fork_at, fork_path, fork_beyond, mapped)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
        let id = self.conn.prepare_cached(sql)?.insert(params![
            new.path,
            content_type,
            new.is_closed,
            idle,
            until,
            source,
            fork_at.cast_signed(),
            fork_path,
            fork_beyond.cast_signed(),
            new.has_rules.then_some(fork_at.cast_signed()),
        ])?;
        let copied = new.fork.as_ref().and_then(|fork| fork.copied.as_deref());
        self.copy(id, copied.unwrap_or_default(), fork_at)?;
        let path: Arc<str> = new.path.as_str().into();
        let info = ByteStreamInfo {
            id,
            content_type,
            tail: fork_at,
            is_closed: new.is_closed,
            lifetime,
            is_deleted: false,
            mapped: new.has_rules.then_some(fork_at),
        };
        let mut head = ByteStreamHead {
            info,
            path: Arc::clone(&path),
            touched: Arc::new(AtomicI64::new(now)),
            source,
            fork_at,
            fork_path,
            fork_beyond,
            forks: 0,
            seq: None,
            closer: None,
        };
        self.insert(&mut head, &new.content)?;
        if let Some(mut source) = source.and_then(|id| self.get(id)) {
            source.forks += 1;
            self.set(source);
        }
        self.created += 1;
        self.paths.insert(path, Some(id));
        let info = head.info.clone();
        self.set(head);
        Ok(ByteStreamOutcome::Created(info))
    }

    /// Position at which a fork goes its own way; `None` where its source has no such one.
    fn fork_position(&self, from: &ByteStreamHead, fork: &StreamFork) -> rusqlite::Result<Option<u64>> {
        let at = fork.at.unwrap_or(from.info.tail);
        let Some(position) = at.checked_add(fork.beyond).filter(|position| *position <= from.info.tail) else {
            return Ok(None);
        };
        if fork.beyond == 0 {
            return Ok(Some(position));
        }
        // The row that begins at the offset, or has it within, in the source or a source of that.
        let mut owner = from.clone();
        let mut end = from.info.tail;
        while at < owner.fork_at
            && let Some(source) = owner.source.and_then(|id| self.get(id))
        {
            end = end.min(owner.fork_at);
            owner = source;
        }
        let sql = "SELECT last FROM byte_rows WHERE stream = ? AND last > ? ORDER BY last LIMIT 1";
        let last = self
            .conn
            .prepare_cached(sql)?
            .query_row(params![owner.info.id, at.cast_signed()], |row| row.get::<_, i64>(0));
        Ok(last.optional()?.filter(|last| position <= last.cast_unsigned().min(end)).map(|_| position))
    }

    /// Stores messages that are copied, in a row each run of positions without a gap.
    fn copy(&self, id: i64, messages: &[(u64, Vec<u8>)], end: u64) -> rusqlite::Result<()> {
        let (mut first, mut body, mut last) = (0, Vec::new(), 0);
        for (position, message) in messages.iter().take_while(|(position, _)| *position <= end) {
            if !body.is_empty() && (*position != last + 1 || body.len() >= ROW_BYTES) {
                self.insert_row(id, first, last, &body)?;
                body.clear();
                first = last;
            }
            body.extend_from_slice(message);
            body.push(b'\n');
            last = *position;
        }
        if body.is_empty() { Ok(()) } else { self.insert_row(id, first, last, &body) }
    }

    fn insert_row(&self, id: i64, first: u64, last: u64, body: &[u8]) -> rusqlite::Result<()> {
        let sql = "INSERT INTO byte_rows (stream, first, last, sum, body) VALUES (?, ?, ?, ?, ?)";
        let sum = checksum(first, last, id, body);
        let mut insert = self.conn.prepare_cached(sql)?;
        insert.execute(params![id, first.cast_signed(), last.cast_signed(), sum, body])?;
        Ok(())
    }

    fn insert(&self, head: &mut ByteStreamHead, content: &StreamContent) -> rusqlite::Result<()> {
        for (units, body) in content.rows(head.info.is_json(), ROW_BYTES) {
            let last = head.info.tail + units;
            self.insert_row(head.info.id, head.info.tail, last, body)?;
            head.info.tail = last;
        }
        Ok(())
    }

    fn append(&mut self, append: &ByteStreamAppend, now: i64) -> ChangeResult {
        let Some(mut head) = self.find(&append.path, now)? else { return refused(ByteStreamRefusal::Unknown) };
        if head.info.is_deleted {
            return refused(ByteStreamRefusal::Deleted);
        }
        let id = head.info.id;
        if head.info.is_closed {
            return match &append.producer {
                Some(producer) if head.closer.as_deref() == Some(&closer(producer)) => {
                    Ok(ByteStreamOutcome::Duplicate(head.info, producer.seq))
                }
                None if append.content.is_empty() && append.closes => Ok(ByteStreamOutcome::Appended(head.info)),
                _ => refused(ByteStreamRefusal::Closed(head.info.tail)),
            };
        }
        if !append.content.is_empty() && media_type(&append.content_type) != media_type(&head.info.content_type) {
            return refused(ByteStreamRefusal::ContentType(head.info.content_type));
        }
        if let Some(producer) = &append.producer {
            let sql = "SELECT epoch, seq FROM producers WHERE stream = ? AND id = ?";
            let known = self.conn.prepare_cached(sql)?.query_row(params![id, producer.id], |row| {
                Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get::<_, i64>(1)?.cast_unsigned()))
            });
            match known.optional()? {
                Some((epoch, _)) if producer.epoch < epoch => return refused(ByteStreamRefusal::StaleEpoch(epoch)),
                Some((epoch, _)) if producer.epoch > epoch && producer.seq != 0 => {
                    return refused(ByteStreamRefusal::EpochStart);
                }
                Some((epoch, seq)) if producer.epoch == epoch && producer.seq <= seq => {
                    head.touch(now);
                    return Ok(ByteStreamOutcome::Duplicate(head.info, seq));
                }
                Some((epoch, seq)) if producer.epoch == epoch && producer.seq > seq + 1 => {
                    return refused(ByteStreamRefusal::SequenceGap(seq + 1));
                }
                None if producer.seq != 0 => return refused(ByteStreamRefusal::SequenceGap(0)),
                _ => {}
            }
        }
        if let (Some(seq), Some(last)) = (&append.seq, &head.seq)
            && seq.as_bytes() <= last.as_bytes()
        {
            return refused(ByteStreamRefusal::Sequence(last.clone()));
        }
        if let Some(producer) = &append.producer {
            let sql = "INSERT INTO producers (stream, id, epoch, seq) VALUES (?, ?, ?, ?)
                ON CONFLICT (stream, id) DO UPDATE SET epoch = excluded.epoch, seq = excluded.seq";
            let [epoch, seq] = [producer.epoch, producer.seq].map(u64::cast_signed);
            self.conn.prepare_cached(sql)?.execute(params![id, producer.id, epoch, seq])?;
        }
        self.insert(&mut head, &append.content)?;
        if append.seq.is_some() || append.closes {
            head.seq = append.seq.clone().or(head.seq);
            head.info.is_closed |= append.closes;
            head.closer = append.producer.as_ref().filter(|_| append.closes).map(closer);
            let sql = "UPDATE byte_streams SET seq = ?, closed = ?, closer = ? WHERE id = ?";
            self.conn.prepare_cached(sql)?.execute(params![head.seq, head.info.is_closed, head.closer, id])?;
        }
        head.touch(now);
        let info = head.info.clone();
        self.set(head);
        Ok(ByteStreamOutcome::Appended(info))
    }
}

/// Names the request that closed a stream.
fn closer(producer: &ProducerSequence) -> String {
    format!("{} {} {}", producer.epoch, producer.seq, producer.id)
}

/// Removes some rows of a stream without a name, and finally the stream. Returns true once it is gone.
pub(super) fn purge(conn: &Connection, id: i64) -> rusqlite::Result<bool> {
    let sql = "DELETE FROM byte_rows WHERE gid IN (SELECT gid FROM byte_rows WHERE stream = ? LIMIT 16)";
    if conn.prepare_cached(sql)?.execute([id])? > 0 {
        return Ok(false);
    }
    conn.prepare_cached("DELETE FROM producers WHERE stream = ?")?.execute([id])?;
    conn.prepare_cached("DELETE FROM byte_streams WHERE id = ?")?.execute([id])?;
    Ok(true)
}
