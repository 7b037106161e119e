//! Byte streams: named streams of bytes, or of JSON messages, beside the event streams of sessions. Their rules are those of the Durable
//! Streams protocol; each change is decided by the writer, one after the other, and is on the disk when it is reported.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::Result;

/// Most byte streams in a log, with those that forks still need.
pub const MAX_BYTE_STREAMS: usize = 100_000;

/// Callback with the outcome of a change. Called once, on the writer's thread: keep it short.
pub type OnStreamChange = Box<dyn FnOnce(Result<ByteStreamOutcome>) + Send>;

/// Content to append.
#[derive(Clone, Default, derive_more::Debug, PartialEq, Eq)]
#[debug("{units} in {} bytes", bytes.len())]
pub struct StreamContent {
    bytes: Vec<u8>,
    units: u64,
}

impl StreamContent {
    /// Bytes of a stream that is not in JSON mode: each is a position.
    pub fn bytes(bytes: Vec<u8>) -> Self {
        let units = bytes.len() as u64;
        Self { bytes, units }
    }

    /// JSON messages, one a line: each is a position. A line break within a message becomes a space: JSON has it between tokens alone.
    pub fn messages<'a>(messages: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut content = Self::default();
        for message in messages {
            let space = |byte: &u8| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte };
            content.bytes.extend(message.iter().map(space));
            content.bytes.push(b'\n');
            content.units += 1;
        }
        content
    }

    /// Returns true if there is nothing to append.
    pub fn is_empty(&self) -> bool {
        self.units == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Cuts the content into rows of about `most` bytes, each with its number of positions.
    pub(crate) fn rows(&self, is_json: bool, most: usize) -> Vec<(u64, &[u8])> {
        let (mut rows, mut rest, mut left) = (Vec::new(), &self.bytes[..], self.units);
        while rest.len() > most {
            let end = match is_json {
                false => most,
                true => memchr::memchr(b'\n', &rest[most - 1..]).map_or(rest.len(), |at| most + at),
            };
            let (row, after) = rest.split_at(end);
            let units = if is_json { memchr::memchr_iter(b'\n', row).count() as u64 } else { row.len() as u64 };
            rows.push((units, row));
            (rest, left) = (after, left.saturating_sub(units));
        }
        if !rest.is_empty() {
            rows.push((left, rest));
        }
        rows
    }
}

/// Life of a byte stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamLifetime {
    /// Until it is deleted.
    #[default]
    Unbounded,
    /// For so long after the last read or write. Opening the log counts as one.
    Idle(Duration),
    /// Until then.
    Until(SystemTime),
}

/// Beginning of a stream in another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamFork {
    /// Name of the source.
    pub source: String,
    /// Position at which the fork goes its own way; by default the source's end.
    pub at: Option<u64>,
    /// Positions more than that, within the row that begins there.
    pub beyond: u64,
    /// Messages up to `at` with their positions, where the source is no byte stream: they are copied. A position without one is a gap.
    pub copied: Option<Vec<(u64, Vec<u8>)>>,
}

/// Byte stream to create.
#[derive(Clone, Debug)]
pub struct NewByteStream {
    /// Name.
    pub path: String,
    /// Media type; by default that of the source, or `application/octet-stream`.
    pub content_type: Option<String>,
    /// Life; by default that of the source.
    pub lifetime: StreamLifetime,
    /// True to create it closed.
    pub is_closed: bool,
    /// First content.
    pub content: StreamContent,
    /// Source, of a fork.
    pub fork: Option<StreamFork>,
    /// True if rules are applied to what is appended.
    pub has_rules: bool,
}

/// Number of a producer's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerSequence {
    /// Id of the producer.
    pub id: String,
    /// Run of the producer.
    pub epoch: u64,
    /// Number of the request in that run.
    pub seq: u64,
}

/// Content for a byte stream, or its end.
#[derive(Clone, Debug)]
pub struct ByteStreamAppend {
    /// Name of the stream.
    pub path: String,
    /// Media type of the content.
    pub content_type: String,
    /// Content; empty to close the stream alone.
    pub content: StreamContent,
    /// True to close the stream behind the content.
    pub closes: bool,
    /// Writer's own sequence, which has to grow.
    pub seq: Option<String>,
    /// Producer, by whose numbers a repeated request is recognised.
    pub producer: Option<ProducerSequence>,
}

/// Change of a byte stream.
#[derive(Clone, Debug)]
pub enum ByteStreamChange {
    /// Create it, unless it is there.
    Create(Box<NewByteStream>),
    /// Append to it, or close it.
    Append(Box<ByteStreamAppend>),
    /// Delete it. While forks need it, its content stays for them.
    Delete(String),
    /// Delete it if its life is over.
    Expire(String),
    /// Note up to where rules have been applied to the stream of this number.
    SetMapped(String, i64, u64),
    /// Begin to apply rules to all streams, from their ends where there were none before; or end it.
    HaveRules(bool),
}

impl ByteStreamChange {
    /// Bytes of content.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Create(new) => {
                let copied = new.fork.as_ref().and_then(|fork| fork.copied.as_deref()).unwrap_or_default();
                new.content.len() + copied.iter().map(|(_, message)| message.len()).sum::<usize>()
            }
            Self::Append(append) => append.content.len(),
            Self::Delete(_) | Self::Expire(_) | Self::SetMapped(..) | Self::HaveRules(_) => 0,
        }
    }
}

/// State of a byte stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByteStreamInfo {
    /// Number of the stream, which no other stream of the log ever has.
    pub id: i64,
    /// Media type.
    pub content_type: Arc<str>,
    /// Position behind the last.
    pub tail: u64,
    /// True if nothing comes behind it.
    pub is_closed: bool,
    /// Life.
    pub lifetime: StreamLifetime,
    /// True if it was deleted, and only forks have its content.
    pub is_deleted: bool,
    /// Position up to which rules have been applied, where there are some.
    pub mapped: Option<u64>,
}

impl ByteStreamInfo {
    /// Returns true for a stream of JSON messages.
    pub fn is_json(&self) -> bool {
        is_json(&self.content_type)
    }
}

/// Result of a change that reached the writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ByteStreamOutcome {
    /// The stream was created.
    Created(ByteStreamInfo),
    /// It was there, as it was to be created.
    Exists(ByteStreamInfo),
    /// The content is in the stream.
    Appended(ByteStreamInfo),
    /// It was in the stream already: the producer sends it again. With the newest number of the producer.
    Duplicate(ByteStreamInfo, u64),
    /// The stream is deleted.
    Deleted,
    /// What was to be noted is noted.
    Noted,
    /// Nothing was changed.
    Refused(ByteStreamRefusal),
}

/// Reason why a change was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ByteStreamRefusal {
    /// There is no such stream.
    #[error("there is no such stream: create it with PUT")]
    Unknown,
    /// It was deleted, and forks need it.
    #[error("the stream was deleted, and forks of it still have its content: delete those to use the name again")]
    Deleted,
    /// It is there, and is another.
    #[error("there is a stream of that name with another configuration: delete it, or use another name")]
    OtherConfiguration,
    /// There is no such source.
    #[error("there is no stream to fork by that name")]
    UnknownSource,
    /// The source was deleted.
    #[error("the stream to fork was deleted")]
    DeletedSource,
    /// The media type is not the stream's, or its source's.
    #[error("the stream's content type is {0:?}: send that")]
    ContentType(Arc<str>),
    /// The source does not go as far.
    #[error("the stream to fork has no such position")]
    ForkPosition,
    /// The stream is closed.
    #[error("the stream is closed")]
    Closed(u64),
    /// The writer's sequence has not grown.
    #[error("the sequence has to be greater than that of the last append, {0:?}")]
    Sequence(String),
    /// A later run of the producer has begun.
    #[error("the producer's epoch is {0} by now: begin a greater one")]
    StaleEpoch(u64),
    /// A new run begins with another number than 0.
    #[error("a new epoch of a producer begins with sequence 0")]
    EpochStart,
    /// A request of the producer is missing.
    #[error("the producer's next sequence is {0}: send that first")]
    SequenceGap(u64),
    /// There are too many streams.
    #[error("there are {MAX_BYTE_STREAMS} streams, the most that may be: delete some")]
    TooMany,
}

/// Part of a byte stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BytePage {
    /// Content: bytes, or JSON messages, one a line.
    pub bytes: Vec<u8>,
    /// Position behind it.
    pub next: u64,
}

/// Returns the media type without its parameters, in lower case.
pub(crate) fn media_type(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Returns true for the media type of JSON.
pub fn is_json(content_type: &str) -> bool {
    media_type(content_type) == "application/json"
}
