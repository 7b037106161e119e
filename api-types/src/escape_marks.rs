//! Marks of processes that have left the agent that started them, out of reach of an ordinary kill.

use std::{
    collections::{HashMap, HashSet},
    fmt,
};

use ipc_protocol::{Pid, ProcessId, ProcessInfo};
use serde::{Deserialize, Serialize};

/// Way in which a process has left the agent that started it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum EscapeMark {
    /// The process is in another process group: a signal to the agent's group does not reach it.
    LeftGroup,
    /// The process is in another POSIX session, and so in another group too.
    LeftSession,
    /// The parent of the process is gone: the process is no descendant of the agent any more.
    #[serde(rename = "reParented")]
    Reparented,
}

impl fmt::Display for EscapeMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LeftGroup => "left group",
            Self::LeftSession => "left session",
            Self::Reparented => "re-parented",
        })
    }
}

/// Ids of a session's agent, for comparison with the other processes.
#[derive(Clone, Copy, Debug)]
pub struct AgentPosition {
    id: ProcessId,
    ppid: Pid,
    pgid: Pid,
    sid: Pid,
}

impl AgentPosition {
    /// Finds the agent among the processes of a session: the one that was started, not discovered.
    pub fn among(processes: &[ProcessInfo]) -> Option<Self> {
        processes.iter().find(|process| process.tracked).map(Self::from)
    }

    /// Returns true if `process` is the agent's parent. In a PID namespace that is its init, which is listed with
    /// the session.
    pub fn is_above(&self, process: ProcessId) -> bool {
        process.pid == self.ppid
    }

    /// Returns the marks of a process with this parent, group and POSIX session. `known` tests if a pid is of the
    /// session.
    pub fn marks(&self, process: ProcessId, ids: [Pid; 3], known: impl Fn(Pid) -> bool) -> Vec<EscapeMark> {
        let [ppid, pgid, sid] = ids;
        if process == self.id || self.is_above(process) {
            return Vec::new();
        }
        // 0 is an id that could not be read any more.
        let differs = |id: Pid, agent: Pid| id != 0 && id != agent;
        let mut marks = Vec::new();
        if differs(sid, self.sid) {
            marks.push(EscapeMark::LeftSession);
        } else if differs(pgid, self.pgid) {
            marks.push(EscapeMark::LeftGroup);
        }
        if ppid != 0 && (ppid == self.ppid || !known(ppid)) {
            marks.push(EscapeMark::Reparented);
        }
        marks
    }
}

impl From<&ProcessInfo> for AgentPosition {
    fn from(process: &ProcessInfo) -> Self {
        Self { id: process.id, ppid: process.ppid, pgid: process.pgid, sid: process.sid }
    }
}

/// Marks of a session's processes.
#[derive(Clone, Debug, Default)]
pub struct EscapeMarks(HashMap<ProcessId, Vec<EscapeMark>>);

impl EscapeMarks {
    /// Computes the marks of a complete listing with ended processes, which has the agent even if that has ended.
    pub fn of(processes: &[ProcessInfo]) -> Self {
        let Some(agent) = AgentPosition::among(processes) else { return Self::default() };
        let pids: HashSet<Pid> = processes.iter().map(|process| process.id.pid).collect();
        let marks = |process: &ProcessInfo| {
            let ids = [process.ppid, process.pgid, process.sid];
            (process.id, agent.marks(process.id, ids, |pid| pids.contains(&pid)))
        };
        Self(processes.iter().map(marks).collect())
    }

    /// Returns the marks of one process.
    pub fn get(&self, process: ProcessId) -> &[EscapeMark] {
        self.0.get(&process).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipc_protocol::ProcessStatus;

    fn process(pid: u32, ppid: u32, pgid: u32, sid: u32) -> ProcessInfo {
        ProcessInfo {
            id: ProcessId { pid, start_time: u64::from(pid) },
            ppid,
            pgid,
            sid,
            session_id: "s-1".parse().expect("a valid id"),
            command: None,
            args: Vec::new(),
            cwd: None,
            started_at: std::time::SystemTime::UNIX_EPOCH,
            status: ProcessStatus::Running,
            exit: None,
            error: None,
            cpu_percent: None,
            rss_bytes: None,
            tracked: pid == 10,
        }
    }

    /// An agent (10) with a child and grandchild, one with a session of its own, and a re-parented daemon (14).
    fn family() -> Vec<ProcessInfo> {
        vec![
            process(14, 2, 13, 13),
            process(12, 11, 10, 10),
            process(11, 10, 10, 10),
            process(10, 2, 10, 10),
            process(13, 10, 13, 13),
        ]
    }

    fn pids(marks: &EscapeMarks, wanted: EscapeMark) -> Vec<Pid> {
        let mut pids: Vec<_> =
            marks.0.iter().filter(|(_, marks)| marks.contains(&wanted)).map(|(id, _)| id.pid).collect();
        pids.sort_unstable();
        pids
    }

    #[test]
    fn who_left_what() {
        let mut family = family();
        family.push(process(15, 10, 15, 10));
        // A process that was gone before it could be read.
        family.push(process(16, 0, 0, 0));
        let marks = EscapeMarks::of(&family);
        assert_eq!(pids(&marks, EscapeMark::LeftSession), [13, 14]);
        assert_eq!(
            pids(&marks, EscapeMark::LeftGroup),
            [15],
            "who left the session is not said to have left the group too"
        );
        assert_eq!(pids(&marks, EscapeMark::Reparented), [14]);
    }

    #[test]
    fn the_init_of_a_namespace_adopts_and_has_left_nothing() {
        let init = process(2, 99, 2, 2);
        let marks = EscapeMarks::of(&[family(), vec![init]].concat());
        assert_eq!(pids(&marks, EscapeMark::Reparented), [14]);
        assert_eq!(pids(&marks, EscapeMark::LeftSession), [13, 14]);
    }

    #[test]
    fn without_an_agent_nothing_is_claimed() {
        assert!(EscapeMarks::of(&[process(5, 4, 5, 5)]).get(ProcessId { pid: 5, start_time: 5 }).is_empty());
    }
}
