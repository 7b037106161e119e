//! Identities: sessions, processes, signals.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Pid as numbered in the host's PID namespace.
pub type Pid = u32;

/// Permanent identity of a process: a pid alone is recycled, a pid with its start time is not.
///
/// ```
/// use ipc_protocol::ProcessId;
/// let id = ProcessId { pid: 4242, start_time: 991_337 };
/// assert_eq!(id.to_string(), "4242@991337");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessId {
    /// Pid of the process.
    pub pid: Pid,
    /// Start time in clock ticks since boot: field 22 of `/proc/PID/stat`.
    pub start_time: u64,
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.pid, self.start_time)
    }
}

/// Name of a session: 1 to 64 characters of `[A-Za-z0-9._-]`, but not `.` or `..`, which name directories.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SessionId(Box<str>);

impl SessionId {
    /// Longest id, in characters.
    pub const MAX_LEN: usize = 64;

    /// Creates a fresh id: a UUIDv7, so ids sort by creation time. Only the host mints ids: a forked process would
    /// repeat its parent's random numbers.
    pub fn mint() -> Self {
        Self(uuid::Uuid::now_v7().to_string().into())
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true for an id of the form that [`SessionId::mint`] makes. The beginning of one may stand for it; the beginning of an id that
    /// somebody has chosen, `job-1`, may be another one's whole id.
    pub fn is_minted(&self) -> bool {
        self.0.len() == 36 && uuid::Uuid::try_parse(&self.0).is_ok()
    }
}

/// Error for text that is not a [`SessionId`].
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("session id {0:?} is not 1 to 64 characters of A-Z a-z 0-9 . _ -, or is . or ..")]
pub struct InvalidId(pub String);

impl FromStr for SessionId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        let is_directory = matches!(text, "." | "..");
        if text.is_empty() || text.len() > Self::MAX_LEN || is_directory || !text.bytes().all(allowed) {
            // A hostile id may be megabytes long: the error carries no more than a line of it.
            return Err(InvalidId(text.chars().take(80).collect()));
        }
        Ok(Self(text.into()))
    }
}

impl TryFrom<String> for SessionId {
    type Error = InvalidId;

    fn try_from(text: String) -> Result<Self, InvalidId> {
        text.parse()
    }
}

impl From<SessionId> for String {
    fn from(id: SessionId) -> Self {
        id.0.into()
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Signal that may be sent to a process of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "the names are POSIX's")]
pub enum Signal {
    Hup,
    Int,
    Quit,
    Kill,
    Usr1,
    Usr2,
    Term,
    Cont,
    Stop,
}

impl Signal {
    /// All signals, each with its name without `SIG` and its number on Linux.
    pub const ALL: [(Signal, &'static str, i32); 9] = [
        (Signal::Hup, "HUP", 1),
        (Signal::Int, "INT", 2),
        (Signal::Quit, "QUIT", 3),
        (Signal::Kill, "KILL", 9),
        (Signal::Usr1, "USR1", 10),
        (Signal::Usr2, "USR2", 12),
        (Signal::Term, "TERM", 15),
        (Signal::Cont, "CONT", 18),
        (Signal::Stop, "STOP", 19),
    ];

    /// Returns the number on Linux.
    pub fn number(self) -> i32 {
        Self::ALL[self as usize].2
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL[*self as usize].1)
    }
}

/// Error for text that names no [`Signal`].
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown signal {0:?}: use one of HUP INT QUIT KILL USR1 USR2 TERM CONT STOP")]
pub struct UnknownSignal(pub String);

impl FromStr for Signal {
    type Err = UnknownSignal;

    fn from_str(text: &str) -> Result<Self, UnknownSignal> {
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        let known = Self::ALL.iter().find(|(_, n, number)| *n == name || number.to_string() == name);
        known.map(|(signal, ..)| *signal).ok_or_else(|| UnknownSignal(text.chars().take(80).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_checked() {
        for good in ["a", "exec-123", "A.b_c-9", "...", &"x".repeat(64)] {
            assert_eq!(good.parse::<SessionId>().map(String::from), Ok(good.to_owned()));
        }
        for bad in ["", ".", "..", "a b", "ü", "a/b", "a\0", &"x".repeat(65)] {
            assert!(bad.parse::<SessionId>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn every_signal_is_at_its_place_and_parses_back() {
        for (signal, name, number) in Signal::ALL {
            assert_eq!(signal.to_string(), name);
            assert_eq!(signal.number(), number);
            for text in [name.to_owned(), format!("SIG{name}"), name.to_lowercase(), number.to_string()] {
                assert_eq!(text.parse(), Ok(signal));
            }
        }
        assert!("TERMINATE".parse::<Signal>().is_err());
    }

    #[test]
    fn minted_ids_are_valid_and_differ() {
        let (a, b) = (SessionId::mint(), SessionId::mint());
        assert_ne!(a, b);
        assert!(a.is_minted() && !SessionId::from_str("s-1").expect("valid").is_minted());
        assert_eq!(a.as_str().parse(), Ok(a));
    }
}
