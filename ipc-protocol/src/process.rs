//! What is known of one process of a session.

use std::{fmt, time::SystemTime};

use serde::{Deserialize, Serialize};

use crate::{Pid, ProcessId, SessionId};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ExitStatus {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl ExitStatus {
    /// Whether it exited with code 0.
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

/// Where a process is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProcessStatus {
    /// It is alive (a zombie that nobody has reaped counts as completed).
    Running,
    /// It ended by itself with code 0, or nobody could see how it ended.
    Completed,
    /// A signal ended it.
    Killed,
    /// It ended with a code other than 0.
    Error,
}

impl ProcessStatus {
    /// The status that an exit leads to; `None` where its parent reaped it and the status is not known.
    pub fn of_exit(exit: Option<ExitStatus>) -> Self {
        match exit {
            None | Some(ExitStatus::Code(0)) => Self::Completed,
            Some(ExitStatus::Code(_)) => Self::Error,
            Some(ExitStatus::Signal(_)) => Self::Killed,
        }
    }
}

/// One process of a session, as read from `/proc` at the moment of asking.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessInfo {
    /// Which process.
    pub id: ProcessId,
    /// Its parent's pid; 0 where the parent is outside the PID namespace or gone.
    pub ppid: Pid,
    /// Its process group.
    pub pgid: Pid,
    /// Its session in the POSIX sense (`setsid`), not the agent session.
    pub sid: Pid,
    /// The agent session that started it.
    pub session_id: SessionId,
    /// First word of its command line, of which at most [`ProcessInfo::MAX_COMMAND_LINE`] bytes are kept; `null` where it could not be read (it was gone, or a kernel thread).
    pub command: Option<String>,
    /// The other words of its command line.
    pub args: Vec<String>,
    /// Its working directory; `null` where it could not be read.
    pub cwd: Option<String>,
    /// When it started, to the clock tick (10 ms).
    #[serde(with = "crate::millis::time")]
    pub started_at: SystemTime,
    /// Running, or how it ended.
    pub status: ProcessStatus,
    /// How it ended, where that is known.
    pub exit: Option<ExitStatus>,
    /// CPU in percent of one core since the last listing; since its start in the first one. `null` where not sampled.
    pub cpu_percent: Option<f32>,
    /// Resident memory in bytes; `null` where not sampled.
    pub rss_bytes: Option<u64>,
    /// Whether the registry started it itself; else it is a descendant that was found.
    pub tracked: bool,
}

impl ProcessInfo {
    /// Bytes of a command line that are kept; `…` stands for the rest.
    pub const MAX_COMMAND_LINE: usize = 4096;

    /// The command line in one line, for people.
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
