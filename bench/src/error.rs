//! What makes a run invalid.

use std::{io, time::Duration};

use ipc_protocol::codec::CodecError;

/// What the benches return.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The system refused something.
    #[error("{operation} failed: {source}")]
    System {
        /// What was tried, on what.
        operation: String,
        /// The system's word for it.
        #[source]
        source: io::Error,
    },
    /// The manager refused something.
    #[error("{0}")]
    Manager(#[from] proxy_manager::Error),
    /// Bytes that are no message.
    #[error("{0}")]
    Codec(#[from] CodecError),
    /// An event did not come, or not in its order.
    #[error("text {expected} is lost: {came:?} came instead, so the rate is invalid")]
    Lost {
        /// Number of the text that should have come.
        expected: u64,
        /// What came.
        came: String,
    },
    /// It took too long.
    #[error("{operation} took longer than {after:?}")]
    Deadline {
        /// What.
        operation: String,
        /// The deadline.
        after: Duration,
    },
    /// The other side of a measurement ended, or said what it should not.
    #[error("{who} {what}")]
    Answer {
        /// Which side.
        who: String,
        /// What it did.
        what: String,
    },
}

impl Error {
    /// For `map_err`: what was tried.
    pub(crate) fn system<E: Into<io::Error>>(operation: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |source| Self::System { operation: operation.into(), source: source.into() }
    }

    /// The other side did something else than it should.
    pub(crate) fn answer(who: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Answer { who: who.into(), what: what.into() }
    }
}
