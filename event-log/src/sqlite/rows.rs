//! Conversion of a batch to rows, on the caller's thread, so that the writer only writes.

use std::{path::Path, sync::Arc};

use ipc_protocol::{Event, SessionId};

use super::system;
use crate::{EventBatch, LogError, Result, line};

/// Size at which a body is cut: readers and retention handle whole rows.
const BODY_BYTES: usize = 64 * 1024;
/// Number of offsets at which a body is cut.
pub(super) const BODY_EVENTS: u64 = 1024;

/// Row of `batches`.
#[derive(Debug)]
pub(super) struct BatchRow {
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) created_ms: i64,
    pub(super) body: Vec<u8>,
}

/// Batch, ready to be stored.
#[derive(Debug)]
pub(super) struct EncodedBatch {
    pub(super) session: Arc<SessionId>,
    /// First offset of the batch. `next` is the first one after it: the same for a batch without events.
    pub(super) first: u64,
    pub(super) next: u64,
    pub(super) events: u64,
    pub(super) bytes: u64,
    pub(super) source: u64,
    pub(super) cursor: Option<(String, u64)>,
    pub(super) rows: Vec<BatchRow>,
}

/// Returns whether a stream may have these as its first and last offset.
pub(super) fn is_sound(first: u64, last: u64) -> bool {
    first > 0 && last < i64::MAX as u64 && first <= last + 1
}

/// Computes a row's checksum. It detects flipped bits, which SQLite does not.
pub(super) fn checksum(first: u64, last: u64, created_ms: i64, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&first.to_le_bytes());
    hasher.update(&last.to_le_bytes());
    hasher.update(&created_ms.to_le_bytes());
    hasher.update(body);
    hasher.finalize()
}

impl EncodedBatch {
    /// Converts a batch to rows.
    ///
    /// # Errors
    /// [`LogError::Order`] where the batch's offsets are not consecutive, [`LogError::TooLarge`] for an event that
    /// is too long.
    pub(super) fn of(batch: &EventBatch, path: &Path) -> Result<Self> {
        let order = |expected, found| LogError::Order { session: (*batch.session).clone(), expected, found };
        let created_ms = line::millis(batch.created_at);
        let mut entry = Self {
            session: Arc::clone(&batch.session),
            first: batch.first,
            next: batch.first,
            events: batch.events.len() as u64,
            bytes: 0,
            source: batch.source,
            cursor: batch.cursor.clone(),
            rows: Vec::new(),
        };
        let mut body = Vec::with_capacity(batch.events.len().min(64) * 128);
        let mut first = batch.first;
        for (index, envelope) in batch.events.iter().enumerate() {
            let offset = envelope.offset;
            let tells_of_gap =
                || index == 0 && matches!(&envelope.event, Event::SessionGap(gap) if gap.from == batch.first);
            if offset != entry.next && !(offset > entry.next && tells_of_gap()) || offset >= i64::MAX as u64 {
                return Err(order(entry.next, offset));
            }
            let before = body.len();
            line::write(&mut body, envelope, created_ms)
                .map_err(|error| system(path, "encode an event for", error.into()))?;
            let bytes = body.len() - before;
            if bytes > line::MAX_BYTES {
                return Err(LogError::TooLarge { session: (*batch.session).clone(), offset, bytes });
            }
            entry.next = offset + 1;
            if body.len() >= BODY_BYTES || entry.next - first >= BODY_EVENTS {
                entry.push(first, created_ms, std::mem::take(&mut body));
                first = entry.next;
            }
        }
        if !body.is_empty() {
            entry.push(first, created_ms, body);
        }
        Ok(entry)
    }

    fn push(&mut self, first: u64, created_ms: i64, body: Vec<u8>) {
        self.bytes += body.len() as u64;
        self.rows.push(BatchRow { first, last: self.next - 1, created_ms, body });
    }
}
