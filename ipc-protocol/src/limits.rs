//! Limits of a session, and the actions when one is passed.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{KillOptions, ProcessId};

/// Action when a limit is passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LimitAction {
    /// Emits the event only.
    Warn,
    /// Ends the process that uses most. A limit that no process uses (the wall clock) ends the session.
    KillProcess,
    /// Ends the session.
    #[default]
    KillSession,
}

impl LimitAction {
    /// All values, each with its name.
    pub const ALL: [(Self, &'static str); 3] =
        [(Self::Warn, "warn"), (Self::KillProcess, "kill_process"), (Self::KillSession, "kill_session")];
}

impl fmt::Display for LimitAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL[*self as usize].1)
    }
}

/// Error for text that names no [`LimitAction`].
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

/// Limits of a session: none by default, except that core dumps are off.
///
/// ```
/// use ipc_protocol::{LimitAction, Limits};
///
/// let mut limits = Limits::default();
/// limits.memory_bytes = Some(2 << 30);
/// limits.processes = Some(200);
/// limits.on_limit = LimitAction::KillSession;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Limits {
    /// Memory of all its processes together, in bytes (private memory: resident, less shared pages; memory that a
    /// fork shares with its parent counts in both). If a cgroup enforces it, the kernel counts, page cache
    /// included.
    pub memory_bytes: Option<u64>,
    /// Processes alive at once, the agent included. Threads do not count, unless a cgroup enforces the limit: the
    /// kernel counts them too.
    pub processes: Option<u64>,
    /// CPU time of all its processes together, in milliseconds.
    pub cpu_time_ms: Option<u64>,
    /// CPU of all its processes together, in percent of one core, over at least a second. If a cgroup enforces it,
    /// they are held at the limit, and the limit counts as passed when they want more for a second.
    pub cpu_percent: Option<u64>,
    /// Descriptors that one process may have open. The kernel refuses the next one (EMFILE), whatever the action
    /// is; a process at the limit counts as having passed it. A process that is there only for a moment (less than
    /// 50 ms) can be missed: then there is neither an event nor an action.
    pub open_files: Option<u64>,
    /// Bytes that one file may grow to. Unless the action is `warn` the kernel stops the write there, and ends a
    /// process that continues with SIGXFSZ. Without the proc connector that end can be missed, if the process has
    /// another parent than the proxy and lives for less than a polling interval: it is stopped all the same, but
    /// there is no event. Nor is there one for a process that ignores SIGXFSZ and closes the file between two polls
    /// (10 ms while a turn runs, else 250 ms): it gets EFBIG, and the file does not exceed the limit.
    pub file_size_bytes: Option<u64>,
    /// Wall clock since the agent's start, in milliseconds.
    pub wall_clock_ms: Option<u64>,
    /// True if a crash may leave a core file. Off by default.
    pub core_dumps: bool,
    /// Action when a limit is passed.
    pub on_limit: LimitAction,
}

impl Limits {
    /// Iterates over the limits that are set, each with its value in the unit of its field.
    pub fn iter_set(&self) -> impl Iterator<Item = (LimitKind, u64)> + use<> {
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

/// Limited resource, with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum LimitKind {
    /// Amount in bytes.
    Memory,
    /// Number of processes.
    Processes,
    /// Time in milliseconds.
    CpuTime,
    /// Percent of one core.
    CpuPercent,
    /// Descriptors of one process.
    OpenFiles,
    /// Bytes of one file. A write that the kernel stops is noticed by the end of the writer (SIGXFSZ), or by the
    /// size of the file while it is open: see [`Limits::file_size_bytes`] for the cases without notice.
    FileSize,
    /// Time in milliseconds.
    WallClock,
}

impl LimitKind {
    /// All kinds, each with its name for people and the command line.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Memory, "memory"),
        (Self::Processes, "pids"),
        (Self::CpuTime, "cpu-time"),
        (Self::CpuPercent, "cpu"),
        (Self::OpenFiles, "open-files"),
        (Self::FileSize, "file-size"),
        (Self::WallClock, "wall-clock"),
    ];

    /// Returns the grace for a process that is ended for passing it. Only the wall clock has one, so that the agent
    /// can clean up: other runaways would continue during it.
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

/// Enforcement of a limit, the strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum LimitForm {
    /// Cgroup controller: the kernel, for the whole session.
    Cgroup,
    /// Resource limit: the kernel, for each process.
    Rlimit,
    /// Clock of the proxy.
    Clock,
    /// Sampling of the whole tree by the proxy: a short excess can be missed.
    Watchdog,
}

/// Limit, with its enforcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LimitInForce {
    /// Limited resource.
    pub limit: LimitKind,
    /// Allowed value, in the unit of its kind.
    pub value: u64,
    /// Way of enforcing the limit.
    pub form: LimitForm,
}

/// Report of a limit that was passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitExceeded {
    /// Limited resource.
    pub limit: LimitKind,
    /// Allowed value, in the unit of its kind.
    pub value: u64,
    /// Measured value; the allowed value where the kernel stopped the process there.
    pub measured: u64,
    /// Enforcement that noticed.
    pub form: LimitForm,
    /// Action taken.
    pub action: LimitAction,
    /// Process that uses most, or went beyond the limit; `null` where unknown.
    pub process: Option<ProcessId>,
}
