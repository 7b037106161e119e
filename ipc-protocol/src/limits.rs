//! Limits of a session, and what happens when one is passed.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{KillOptions, ProcessId};

/// What is done when a limit is passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitAction {
    /// The event only.
    Warn,
    /// The process that takes most of it is ended. A limit that no process takes (the wall clock) ends the session.
    KillProcess,
    /// The session is ended.
    #[default]
    KillSession,
}

impl LimitAction {
    /// Every value, with its name.
    pub const ALL: [(Self, &'static str); 3] =
        [(Self::Warn, "warn"), (Self::KillProcess, "kill_process"), (Self::KillSession, "kill_session")];
}

impl fmt::Display for LimitAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL[*self as usize].1)
    }
}

/// Text that names no [`LimitAction`].
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown action {0:?}: use one of warn kill_process kill_session")]
pub struct UnknownAction(pub String);

impl FromStr for LimitAction {
    type Err = UnknownAction;

    fn from_str(text: &str) -> Result<Self, UnknownAction> {
        let known = Self::ALL.iter().find(|(_, name)| *name == text);
        known.map(|(value, _)| *value).ok_or_else(|| UnknownAction(text.chars().take(80).collect()))
    }
}

/// Limits of a session: none by default, but for core dumps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Limits {
    /// Memory of all its processes together, in bytes (what is theirs alone: resident, less shared pages; what a fork has
    /// in common with its parent counts in both). Where a cgroup enforces it, the kernel counts, page cache included.
    pub memory_bytes: Option<u64>,
    /// Processes alive at once, the agent among them. Threads are none; but where a cgroup enforces it, the kernel counts
    /// them too.
    pub processes: Option<u64>,
    /// CPU time of all its processes together, in milliseconds.
    pub cpu_time_ms: Option<u64>,
    /// CPU of all its processes together, in percent of one core, over at least a second. Where a cgroup enforces it,
    /// they are held at the limit, and it counts as passed when they want more for a second.
    pub cpu_percent: Option<u64>,
    /// Descriptors that one process may have open. The kernel refuses the next (EMFILE), whatever the action is; a process
    /// that has as many counts as having passed the limit. One that has them for a moment only (less than 50 ms) can be
    /// missed: then nothing is said and done beyond that.
    pub open_files: Option<u64>,
    /// Bytes that one file may grow to. Unless the action is `warn` the kernel stops the write there, and ends who goes on
    /// with SIGXFSZ. Without the proc connector that end can be missed where the process has another parent than the proxy
    /// and lives shorter than two looks apart: then it is stopped all the same, but there is no event. Neither is there one
    /// for who ignores SIGXFSZ and closes the file between two looks (10 ms while a turn runs, else 250 ms): it is told
    /// EFBIG, and the file has no byte more than it may.
    pub file_size_bytes: Option<u64>,
    /// Wall clock since the agent's start, in milliseconds.
    pub wall_clock_ms: Option<u64>,
    /// Whether a crash may leave a core file. Off by default.
    pub core_dumps: bool,
    /// What is done when one is passed.
    pub on_limit: LimitAction,
}

impl Limits {
    /// Each limit that is set, with its value in the unit of its field.
    pub fn set(&self) -> impl Iterator<Item = (LimitKind, u64)> + use<> {
        [
            (LimitKind::Memory, self.memory_bytes),
            (LimitKind::Processes, self.processes),
            (LimitKind::CpuTime, self.cpu_time_ms),
            (LimitKind::CpuPercent, self.cpu_percent),
            (LimitKind::OpenFiles, self.open_files),
            (LimitKind::FileSize, self.file_size_bytes),
            (LimitKind::WallClock, self.wall_clock_ms),
        ]
        .into_iter()
        .filter_map(|(kind, value)| Some((kind, value?)))
    }
}

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LimitKind {
    /// Bytes.
    Memory,
    /// Processes.
    Processes,
    /// Milliseconds.
    CpuTime,
    /// Percent of one core.
    CpuPercent,
    /// Descriptors of one process.
    OpenFiles,
    /// Bytes of one file. What the kernel stops is seen by the end of the writer (SIGXFSZ), or by the file while that is open:
    /// see [`Limits::file_size_bytes`] for who is stopped without being seen.
    FileSize,
    /// Milliseconds.
    WallClock,
}

impl LimitKind {
    /// Every kind, with its name for people and the command line.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Memory, "memory"),
        (Self::Processes, "pids"),
        (Self::CpuTime, "cpu-time"),
        (Self::CpuPercent, "cpu"),
        (Self::OpenFiles, "open-files"),
        (Self::FileSize, "file-size"),
        (Self::WallClock, "wall-clock"),
    ];

    /// The grace of what is ended for passing it: a runaway goes on meanwhile, so only an agent whose time is over has one,
    /// to put its affairs in order.
    pub fn grace(self) -> KillOptions {
        match self {
            Self::WallClock => KillOptions::grace(Duration::from_millis(500)),
            _ => KillOptions::NOW,
        }
    }
}

impl fmt::Display for LimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL[*self as usize].1)
    }
}

/// What enforces a limit, the strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LimitForm {
    /// A cgroup controller: the kernel, for the whole session.
    Cgroup,
    /// A resource limit: the kernel, for each process.
    Rlimit,
    /// The proxy's clock.
    Clock,
    /// The proxy samples the whole tree: what is short enough can pass for a moment.
    Watchdog,
}

/// A limit and what enforces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitInForce {
    /// What is limited.
    pub limit: LimitKind,
    /// To how much, in the unit of its kind.
    pub value: u64,
    /// By what.
    pub form: LimitForm,
}

/// A limit was passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitExceeded {
    /// Which.
    pub limit: LimitKind,
    /// What was allowed, in the unit of its kind.
    pub value: u64,
    /// What was measured; the allowed value where the kernel stopped it there.
    pub measured: u64,
    /// What noticed.
    pub form: LimitForm,
    /// What is done about it.
    pub action: LimitAction,
    /// The process that takes most of it, or took one step too many; `null` where that is not known.
    pub process: Option<ProcessId>,
}
