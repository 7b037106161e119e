//! Processes of a session, with what the host adds to the proxy's list.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use ipc_protocol::{ListeningSocket, ProcessId, ProcessInfo, ProcessStatus};
use serde::{Deserialize, Serialize};

use crate::escape_marks::{EscapeMark, EscapeMarks};

/// Process of a session, with its age, what it has left, and the ports on which it listens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessDetails {
    /// The process. In JSON its fields are among these.
    #[serde(flatten)]
    pub process: ProcessInfo,
    /// Milliseconds since its start; `null` once it has ended.
    #[serde(default)]
    pub age_ms: Option<u64>,
    /// Ways in which it has left the agent that started it.
    #[serde(default)]
    pub marks: Vec<EscapeMark>,
    /// Sockets on which it listens, at most 256; empty where they cannot be read.
    #[serde(default)]
    pub listening: Vec<ListeningSocket>,
}

impl ProcessDetails {
    /// Adds to a complete list of a session's processes.
    pub fn of(
        processes: Vec<ProcessInfo>,
        mut listening: BTreeMap<ProcessId, Vec<ListeningSocket>>,
        now: SystemTime,
    ) -> Vec<Self> {
        // Computed from all processes: the agent may have ended.
        let marks = EscapeMarks::of(&processes);
        let details = |process: ProcessInfo| {
            let age = (process.status == ProcessStatus::Running)
                .then(|| now.duration_since(process.started_at).unwrap_or_default());
            Self {
                age_ms: age.map(|age: Duration| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
                marks: marks.get(process.id).to_vec(),
                listening: listening.remove(&process.id).unwrap_or_default(),
                process,
            }
        };
        processes.into_iter().map(details).collect()
    }
}
