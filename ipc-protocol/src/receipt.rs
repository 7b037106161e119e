//! Receipts: the processes that a kill ended, and the proof that nothing is left.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{ContainerRemoval, EndReason, ExitStatus, Pid, ProcessId, SessionId};

/// Options of a kill.
///
/// ```
/// use std::time::Duration;
///
/// use ipc_protocol::KillOptions;
///
/// assert_eq!(KillOptions::default().grace, Duration::from_secs(2));
/// let patient = KillOptions::grace(Duration::from_secs(10));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KillOptions {
    /// Time between SIGTERM + SIGCONT and SIGKILL; zero sends SIGKILL at once. Milliseconds on the wire.
    #[serde(rename = "graceMs", with = "crate::millis::duration")]
    pub grace: Duration,
}

impl KillOptions {
    /// SIGKILL at once.
    pub const NOW: Self = Self { grace: Duration::ZERO };

    /// Creates options for SIGTERM, and SIGKILL after `grace`.
    pub const fn grace(grace: Duration) -> Self {
        Self { grace }
    }
}

impl Default for KillOptions {
    fn default() -> Self {
        Self::grace(Duration::from_secs(2))
    }
}

/// Processes that a kill ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum KillScope {
    /// All of them, and with them the session.
    Session,
    /// All but the agent: everything it started.
    AllButAgent,
    /// One process.
    Process {
        /// Pid of the process.
        pid: u32,
        /// True to end its descendants too. After the grace all of them are stopped before any is killed, so that none
        /// escapes while its parent dies. Processes that left the tree before (daemons) are not included.
        tree: bool,
    },
}

/// Cause of a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum KillCause {
    /// `kill_session`: all processes, and the session.
    KillSession,
    /// `kill_all`: all processes but the agent.
    KillAll,
    /// `kill_process`: one process.
    KillProcess,
    /// The agent exited; the processes it left were ended.
    AgentExit,
    /// The session could not start, its agent broke its protocol, or its proxy did not respond.
    Failed,
    /// The manager was shut down or dropped.
    Shutdown,
    /// The session was suspended.
    Suspend,
    /// The host died.
    HostDied,
    /// The proxy died; the fork server ended the remaining processes.
    ProxyDied,
    /// The fork server died; the proxy ended its session.
    ForkServerDied,
    /// A turn was aborted, and the processes it started were ended.
    AbortTurn,
    /// A limit, clock or budget ran out.
    Limit,
    /// All supervisors of the session had died, or all but the host; it or a later manager ended what they left.
    Recovery,
    /// The lease of this machine on its sessions was over: another machine may have them.
    Lease,
}

impl KillCause {
    /// Returns the cause for the kill of a session that ends for `reason`.
    pub fn of(reason: &EndReason) -> Self {
        match reason {
            EndReason::Killed => Self::KillSession,
            EndReason::AgentExited(_) => Self::AgentExit,
            EndReason::Failed(_) => Self::Failed,
            EndReason::ProxyDied(_) => Self::ProxyDied,
            EndReason::ForkServerDied => Self::ForkServerDied,
            EndReason::HostDied => Self::HostDied,
            EndReason::LimitExceeded(_) | EndReason::TimedOut(_) | EndReason::BudgetExceeded(_) => Self::Limit,
            EndReason::Unresponsive(_) => Self::Failed,
            EndReason::Shutdown => Self::Shutdown,
            EndReason::Suspended => Self::Suspend,
        }
    }
}

/// Layer that contains a session's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ContainmentLayer {
    /// Process group, subreaper, kill loop to a proof, fork-server guard.
    Baseline,
    /// Cgroup (version 2) for the session alone.
    Cgroup,
    /// PID and mount namespace for the session alone: the kernel ends it with the proxy.
    Strict,
}

/// Process that collected the exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ReapedBy {
    /// The session's proxy.
    Proxy,
    /// The fork server, after the proxy's death.
    ForkServer,
    /// Own parent of the process (or the init of its PID namespace), before it was reparented to us.
    Parent,
    /// The system's own reaper: the supervisors were dead.
    System,
}

/// End of a process that was alive when the kill began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ProcessOutcome {
    /// The process ended with this status: reaped by us, or as reported by the kernel.
    Ended(ExitStatus),
    /// The process ended; its own parent took the status, and nobody reported it.
    Gone,
    /// The process is still alive.
    Survived,
}

/// Process in a receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReceiptEntry {
    /// Identity of the process.
    pub id: ProcessId,
    /// Parent when the process was first seen.
    pub ppid: Pid,
    /// Process group when the process was first seen.
    pub pgid: Pid,
    /// POSIX session when the process was first seen.
    pub sid: Pid,
    /// Command line; `null` where the process was gone before it could be read, or to keep the receipt short
    /// enough.
    pub command: Option<String>,
    /// End of the process.
    pub outcome: ProcessOutcome,
    /// Process that reaped it; `null` for a survivor.
    pub reaped_by: Option<ReapedBy>,
}

/// Proof that nothing is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Proof {
    /// The kernel answered the subreaper's `waitpid(-1, __WALL)` with ECHILD: it has no child. Every process that
    /// the session started is a descendant, and the last descendant is always a child.
    NoChildren,
    /// The fork server, which has other children, saw this many rounds with no unknown child and nothing unknown
    /// reaped.
    QuietRounds(u32),
    /// The requested processes are gone, as their pidfds show, and three rounds found nothing new below them.
    ProcessGone,
    /// None: something survived, the kill ran out of time, or all supervisors had died and a process may be the session's
    /// ([`Receipt::unattributed`]).
    None,
}

/// Result of a kill. [`Receipt::is_empty`] is true if it is proven.
///
/// ```
/// use ipc_protocol::Receipt;
///
/// fn report(receipt: &Receipt) {
///     match receipt.is_empty() {
///         true => println!("proven empty: {:?}", receipt.proof),
///         false => println!("left: {:?}", receipt.survivors),
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    /// Session of the processes.
    pub session_id: SessionId,
    /// Cause of the kill.
    pub cause: KillCause,
    /// All processes seen alive from the start of the kill, in the order seen, survivors included.
    pub processes: Vec<ReceiptEntry>,
    /// Containment layers used.
    pub layers: Vec<ContainmentLayer>,
    /// Number of rounds of the kill loop.
    pub rounds: u32,
    /// Time from the first signal to the proof, in microseconds.
    pub duration_us: u64,
    /// Processes that may belong to another session whose proxy died at the same moment. Those that live ([`ProcessOutcome::Survived`]) may
    /// be strangers: all supervisors of the session had died, nobody saw where they come from, and they were left alone.
    pub unattributed: Vec<ReceiptEntry>,
    /// Processes that are still alive. Empty unless the kill failed.
    pub survivors: Vec<ProcessId>,
    /// Number of deaths left out of `processes`, because there were too many.
    pub omitted: u64,
    /// Proof of the result.
    pub proof: Proof,
    /// True if the session's cgroup is empty; `null` where it has no cgroup, or the kill was not of everything.
    pub cgroup_empty: Option<bool>,
    /// True if no process has the session's marker in its environment; `null` where the kill was not of all, or of a proxy's
    /// receipt, whose session's fork server looks after it.
    pub unmarked: Option<bool>,
    /// Removal of the agent's container; `null` where it has none, or the kill was not of everything.
    #[serde(default)]
    pub container: Option<ContainerRemoval>,
}

impl Receipt {
    /// Creates a receipt before the first signal.
    pub fn begin(session_id: SessionId, cause: KillCause) -> Self {
        Self {
            session_id,
            cause,
            processes: Vec::new(),
            layers: vec![ContainmentLayer::Baseline],
            rounds: 0,
            duration_us: 0,
            unattributed: Vec::new(),
            survivors: Vec::new(),
            omitted: 0,
            proof: Proof::None,
            cgroup_empty: None,
            unmarked: None,
            container: None,
        }
    }

    /// Returns true if nothing is left, and that is proven.
    pub fn is_empty(&self) -> bool {
        self.survivors.is_empty()
            && self.proof != Proof::None
            && self.cgroup_empty != Some(false)
            && self.unmarked != Some(false)
            && self.container.as_ref().is_none_or(|container| container.is_removed)
    }

    /// Returns the reason why nothing is proven, where no survivor is named either.
    pub fn doubt(&self) -> Option<&'static str> {
        if !self.survivors.is_empty() || self.is_empty() {
            return None;
        }
        Some(match (self.cgroup_empty, self.unmarked) {
            (Some(false), _) => "its cgroup has members that cannot be seen",
            (_, Some(false)) => "a process carries its marker",
            _ if self.container.as_ref().is_some_and(|container| !container.is_removed) => {
                "its container could not be removed"
            }
            _ => "the kill ran out of time before a proof",
        })
    }

    /// Returns the duration of the kill.
    pub fn duration(&self) -> Duration {
        Duration::from_micros(self.duration_us)
    }

    /// Removes the command lines, to fit a long receipt into a message.
    #[must_use]
    pub fn without_commands(mut self) -> Self {
        for entry in self.processes.iter_mut().chain(&mut self.unattributed) {
            entry.command = None;
        }
        self
    }

    /// Adds the receipt of a later party (the fork server, after the proxy) for the same session.
    pub fn merge(&mut self, later: Receipt) {
        self.rounds += later.rounds;
        self.duration_us += later.duration_us;
        // If the later party found nothing more, the earlier proof is the better one.
        if self.proof == Proof::None || !later.processes.is_empty() || later.proof == Proof::None {
            self.proof = later.proof;
        }
        self.unattributed.extend(later.unattributed);
        self.survivors = later.survivors;
        self.omitted += later.omitted;
        self.cgroup_empty = later.cgroup_empty.or(self.cgroup_empty);
        self.unmarked = later.unmarked.or(self.unmarked);
        self.container = later.container.or(self.container.take());
        for layer in later.layers {
            if !self.layers.contains(&layer) {
                self.layers.push(layer);
            }
        }
        for entry in later.processes {
            match self.processes.iter_mut().find(|known| known.id == entry.id) {
                Some(known) => *known = entry,
                None => self.processes.push(entry),
            }
        }
    }
}

impl fmt::Display for Receipt {
    /// Writes one line for people: the number of ended processes, the time and the proof.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = self.processes.len() - self.survivors.len().min(self.processes.len());
        write!(f, "{ended} ended in {:.1} ms, ", self.duration_us as f64 / 1000.0)?;
        match self.doubt() {
            None => write!(f, "{} survivors", self.survivors.len())?,
            Some(doubt) => write!(f, "survivors not provable: {doubt}")?,
        }
        match self.proof {
            Proof::NoChildren => f.write_str(" (proof: the kernel says the subreaper has no child left)"),
            // Not of everything: the proxy makes these, and its agent goes on.
            Proof::QuietRounds(n) if matches!(self.cause, KillCause::AbortTurn | KillCause::KillAll) => {
                write!(f, " (proof: {n} quiet rounds; what it was not to end goes on)")
            }
            Proof::QuietRounds(n) => write!(f, " (proof: {n} quiet rounds of the fork server)"),
            Proof::ProcessGone => f.write_str(" (proof: its pidfd says it is gone)"),
            Proof::None => {
                let doubtful =
                    self.unattributed.iter().filter(|entry| entry.outcome == ProcessOutcome::Survived).count();
                match doubtful {
                    0 => f.write_str(" (NOT proven)"),
                    _ => write!(f, " (NOT proven: {doubtful} processes of unknown origin are alive)"),
                }
            }
        }
    }
}
