//! State of one process of a session.

use std::{fmt, time::SystemTime};

use serde::{Deserialize, Serialize};

use crate::{Pid, ProcessId, SessionId};

/// End of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ExitStatus {
    /// The process exited with this code.
    Code(i32),
    /// A signal of this number ended the process.
    Signal(i32),
}

impl ExitStatus {
    /// Returns true for exit code 0.
    pub fn success(self) -> bool {
        self == Self::Code(0)
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(number) => match crate::Signal::ALL.iter().find(|(_, _, n)| n == number) {
                Some((_, name, _)) => write!(f, "SIG{name}"),
                None => write!(f, "signal {number}"),
            },
        }
    }
}

/// Lifecycle state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ProcessStatus {
    /// The process is alive (a zombie that nobody has reaped counts as completed).
    Running,
    /// The process ended by itself with code 0, or its exit status is unknown.
    Completed,
    /// A signal ended the process.
    Killed,
    /// The process ended with a code other than 0.
    Error,
}

impl ProcessStatus {
    /// Returns the status for an exit; `None` where the parent reaped the process and the exit status is unknown.
    pub fn of_exit(exit: Option<ExitStatus>) -> Self {
        match exit {
            None | Some(ExitStatus::Code(0)) => Self::Completed,
            Some(ExitStatus::Code(_)) => Self::Error,
            Some(ExitStatus::Signal(_)) => Self::Killed,
        }
    }
}

/// Numbers of the signals that a process gets for its own faults: ILL, TRAP, ABRT, BUS, FPE, SEGV, SYS.
const CRASHES: [i32; 7] = [4, 5, 6, 7, 8, 11, 31];

impl ExitStatus {
    /// Returns the error of a process that ended this way, unless it succeeded or was killed from outside.
    pub fn error(self) -> Option<String> {
        match self {
            Self::Code(0) => None,
            Self::Signal(number) if !CRASHES.contains(&number) => None,
            failed => Some(failed.to_string()),
        }
    }
}

/// Process of a session, as read from `/proc` at the time of the request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessInfo {
    /// Identity of the process.
    pub id: ProcessId,
    /// Pid of the parent; 0 where the parent is outside the PID namespace or gone.
    pub ppid: Pid,
    /// Process group.
    pub pgid: Pid,
    /// Session in the POSIX sense (`setsid`), not the agent session.
    pub sid: Pid,
    /// Agent session that started the process.
    pub session_id: SessionId,
    /// First word of the command line, of which at most [`ProcessInfo::MAX_COMMAND_LINE`] bytes are kept; `null`
    /// where it could not be read (the process was gone, or is a kernel thread).
    pub command: Option<String>,
    /// Other words of the command line.
    pub args: Vec<String>,
    /// Working directory; `null` where it could not be read.
    pub cwd: Option<String>,
    /// Start time, to the clock tick (10 ms).
    #[serde(with = "crate::millis::time")]
    #[cfg_attr(feature = "openapi", schemars(with = "crate::json_schema::TimeText"))]
    pub started_at: SystemTime,
    /// Running, or the way it ended.
    pub status: ProcessStatus,
    /// Exit status, where known.
    pub exit: Option<ExitStatus>,
    /// Error of a process that ended badly by itself: its exit code or the signal of its crash, with the last line that the agent wrote
    /// to its standard error. `null` for one that was killed on request. (A program that cannot be started is no process: the start of
    /// its session fails with the error.)
    pub error: Option<String>,
    /// CPU in percent of one core since the last listing; since the process's start in the first one. `null` where
    /// not sampled.
    pub cpu_percent: Option<f32>,
    /// Resident memory in bytes; `null` where not sampled.
    pub rss_bytes: Option<u64>,
    /// True if the registry started the process itself; false for a discovered descendant.
    pub tracked: bool,
}

impl ProcessInfo {
    /// Bytes of a command line that are kept; `…` replaces the rest.
    pub const MAX_COMMAND_LINE: usize = 4096;

    /// Formats the command line as one line, for people.
    pub fn command_line(&self) -> String {
        let Some(command) = &self.command else { return "[unreadable]".to_owned() };
        let mut line = command.clone();
        for arg in &self.args {
            line.push(' ');
            line.push_str(arg);
        }
        line
    }
}

/// Protocol of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum SocketProtocol {
    /// TCP.
    Tcp,
    /// UDP, without a peer.
    Udp,
}

impl fmt::Display for SocketProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

/// Socket on which a process listens, in its network namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ListeningSocket {
    /// Protocol of the socket.
    pub protocol: SocketProtocol,
    /// Address, without brackets; `0.0.0.0` and `::` are all of the machine.
    pub address: String,
    /// Port.
    pub port: u16,
}

impl fmt::Display for ListeningSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { protocol, address, port } = self;
        if address.contains(':') {
            write!(f, "{protocol} [{address}]:{port}")
        } else {
            write!(f, "{protocol} {address}:{port}")
        }
    }
}
