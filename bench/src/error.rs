//! Errors that make a run invalid.

use std::{io, time::Duration};

use ipc_protocol::codec::CodecError;

/// Result of the benches.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason for a missing figure.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The system refused something.
    #[error("{operation} failed")]
    System {
        /// Operation that was tried, and its target.
        operation: String,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// The manager refused something.
    #[error(transparent)]
    Manager(#[from] proxy_manager::Error),
    /// The bytes are no message.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// An event was lost, or came out of order.
    #[error("text {expected} is lost: {came:?} came instead, so the rate is invalid")]
    Lost {
        /// Number of the expected text.
        expected: u64,
        /// Received text.
        came: String,
    },
    /// An operation took too long.
    #[error("{operation} took longer than {after:?}")]
    Deadline {
        /// Operation that was tried.
        operation: String,
        /// Deadline that passed.
        after: Duration,
    },
    /// The other side of a measurement ended, or sent something unexpected.
    #[error("{who} {what}")]
    Answer {
        /// Name of that side.
        who: String,
        /// Description of the fault.
        what: String,
    },
}

impl Error {
    /// Makes a converter for `map_err` from the operation that was tried.
    pub(crate) fn system<E: Into<io::Error>>(operation: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |source| Self::System { operation: operation.into(), source: source.into() }
    }

    /// Reports unexpected behaviour of the other side.
    pub(crate) fn answer(who: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Answer { who: who.into(), what: what.into() }
    }
}
