//! Damage in a log's file, and the result of an inspection.

use ipc_protocol::OffsetGap;
use serde::Serialize;

/// Something in a log's file that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "part")]
#[non_exhaustive]
pub enum LogDamage {
    /// Fault of the file as a whole, found by SQLite.
    Database {
        /// In SQLite's words.
        detail: String,
    },
    /// A session's record: the session is not listed. Its events are another part.
    Record {
        /// The session, as far as its id can be read.
        id: String,
        /// Fault that was found.
        detail: String,
    },
    /// Head or name of a stream. The stream is kept, and nobody can read it under a name that is none.
    Stream {
        /// Number of its row.
        row: i64,
        /// Name of the stream, as far as it can be read.
        name: String,
        /// Fault that was found.
        detail: String,
    },
    /// Events of a stream: a `session:gap` stands for them.
    Events {
        /// Session of the stream.
        session: String,
        /// Offsets of the events.
        gap: OffsetGap,
    },
    /// Smaller things: how far a consumer has come, who had the log.
    Other {
        /// Fault that was found.
        detail: String,
    },
}

impl std::fmt::Display for LogDamage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Database { detail } => write!(f, "the database: {detail}"),
            Self::Record { id, detail } => write!(f, "the record of session {id}: {detail}"),
            Self::Stream { row, name, detail } => write!(f, "stream {row} ({name:?}): {detail}"),
            Self::Events { session, gap: OffsetGap { from, to } } => {
                write!(f, "events {from} to {to} of session {session}")
            }
            Self::Other { detail } => f.write_str(detail),
        }
    }
}

/// Result of an inspection of a log's file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LogInspection {
    /// Streams that can be read.
    pub streams: u64,
    /// Rows of events that are whole.
    pub rows: u64,
    /// Events in them.
    pub events: u64,
    /// Records of sessions that are whole.
    pub records: u64,
    /// Parts that are not whole.
    pub damage: Vec<LogDamage>,
}
