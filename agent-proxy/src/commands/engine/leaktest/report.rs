//! Report of a leak test, for people and as JSON.

use std::{collections::HashSet, time::Duration};

use proxy_manager::{ContainmentStatus, EscapeMark, ExitStatus, Pid, ProcessId, ProcessInfo, ProcessStatus, Receipt};
use serde::Serialize;

use super::record::{LeakRecord, RecordedProcess};
use crate::{
    render::{
        self, count, duration, table,
        tree::{self, TreeNode},
    },
    term::{TermStyle, filled, printable},
};

/// Most processes shown to people.
const MAX_LINES: usize = 100;

/// Finished leak test.
#[derive(Debug)]
pub(super) struct LeakReport {
    /// Command that was run.
    pub(super) command: Vec<String>,
    /// True if the command exited by itself within its time.
    pub(super) exited: bool,
    /// Running time of the command, to its exit or to its timeout.
    pub(super) ran: Duration,
    /// Time granted to the started processes after its exit.
    pub(super) settle: Duration,
    /// Record of everything observed.
    pub(super) record: LeakRecord,
    /// Receipt of the kill.
    pub(super) receipt: Receipt,
}

/// Result of a leak test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum LeakVerdict {
    /// The command exited, and nothing was left.
    Clean,
    /// The command exited, and left processes that had to be killed.
    Leaks,
    /// The command itself had to be killed.
    TimedOut,
    /// Processes survived the kill, or that could not be disproved.
    Survivors,
}

/// JSON form of the report. Times are in microseconds.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LeakReportJson<'a> {
    command: &'a [String],
    verdict: LeakVerdict,
    exited: bool,
    /// Exit status of the command, where known.
    exit: Option<ExitStatus>,
    ran_us: u64,
    /// Measures in force for the session.
    measures: Option<&'a ContainmentStatus>,
    /// Reasons why the report may be incomplete.
    doubts: &'a [String],
    /// Number of processes the command started, at any depth, without itself.
    spawned: u64,
    /// Number of these known by their events only, because they were gone before any listing.
    only_events: usize,
    left_group: usize,
    left_session: usize,
    re_parented: usize,
    /// Processes that were alive when the kill began: after the command's exit and the time to settle, or at its
    /// timeout.
    left: Vec<ProcessId>,
    /// Duration of the kill.
    kill_us: u64,
    /// All processes, the command first.
    processes: Vec<LeakProcessJson<'a>>,
    /// Number of processes that are counted and in no list.
    omitted: u64,
    receipt: &'a Receipt,
}

/// Process in the JSON report.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct LeakProcessJson<'a> {
    id: ProcessId,
    ppid: Pid,
    pgid: Pid,
    sid: Pid,
    command: Option<&'a str>,
    args: &'a [String],
    exit: Option<ExitStatus>,
    marks: Vec<EscapeMark>,
    seen_alive: bool,
    left: bool,
}

impl<'a> LeakProcessJson<'a> {
    fn of(known: &'a RecordedProcess) -> Self {
        let info = &known.info;
        Self {
            id: info.id,
            ppid: info.ppid,
            pgid: info.pgid,
            sid: info.sid,
            command: info.command.as_deref(),
            args: &info.args,
            exit: info.exit,
            marks: known.marks.iter().copied().collect(),
            seen_alive: known.seen_alive,
            left: known.alive_at_kill,
        }
    }
}

impl LeakReport {
    /// Returns the result.
    pub(super) fn verdict(&self) -> LeakVerdict {
        if !self.receipt.is_empty() {
            LeakVerdict::Survivors
        } else if !self.exited {
            LeakVerdict::TimedOut
        } else if self.left().next().is_some() || self.receipt.omitted > 0 {
            LeakVerdict::Leaks
        } else {
            LeakVerdict::Clean
        }
    }

    fn left(&self) -> impl Iterator<Item = &RecordedProcess> {
        self.record.spawned().filter(|known| known.alive_at_kill)
    }

    fn spawned(&self) -> u64 {
        u64::try_from(self.record.spawned().count()).unwrap_or(u64::MAX).saturating_add(self.record.omitted())
    }

    fn only_events(&self) -> usize {
        self.record.spawned().filter(|known| !known.seen_alive).count()
    }

    fn marked(&self, mark: EscapeMark) -> usize {
        self.record.spawned().filter(|known| known.marks.contains(&mark)).count()
    }

    /// Number of processes whose parent ended before them: while the command ran, or since then if they were left.
    fn lost_parent(&self) -> usize {
        let parents: HashSet<Pid> = self.left().map(|known| known.info.id.pid).collect();
        let is_orphan = |known: &RecordedProcess| {
            let outlived = known.alive_at_kill && self.exited && !parents.contains(&known.info.ppid);
            outlived || known.marks.contains(&EscapeMark::Reparented)
        };
        self.record.spawned().filter(|known| is_orphan(known)).count()
    }

    /// Converts the report to JSON.
    pub(super) fn json(&self) -> LeakReportJson<'_> {
        LeakReportJson {
            command: &self.command,
            verdict: self.verdict(),
            exited: self.exited,
            exit: self.record.agent_exit(),
            ran_us: u64::try_from(self.ran.as_micros()).unwrap_or(u64::MAX),
            measures: self.record.measures(),
            doubts: self.record.doubts(),
            spawned: self.spawned(),
            only_events: self.only_events(),
            left_group: self.marked(EscapeMark::LeftGroup),
            left_session: self.marked(EscapeMark::LeftSession),
            re_parented: self.lost_parent(),
            left: self.left().map(|known| known.info.id).collect(),
            kill_us: self.receipt.duration_us,
            processes: self.record.processes().iter().map(LeakProcessJson::of).collect(),
            omitted: self.record.omitted(),
            receipt: &self.receipt,
        }
    }

    /// Formats the report for people, clipped to `width` columns.
    pub(super) fn text(&self, style: TermStyle, width: Option<usize>) -> String {
        let tree = self.tree(style, width);
        let mut text = format!("{}\n", self.end());
        let spawned = usize::try_from(self.spawned()).unwrap_or(usize::MAX);
        text.push_str(&format!(
            "it started {} ({} gone before anybody looked): {} left its session, {} its group, {} lost its parent\n",
            count(spawned, "process", "processes"),
            self.only_events(),
            self.marked(EscapeMark::LeftSession),
            self.marked(EscapeMark::LeftGroup),
            self.lost_parent(),
        ));
        if let Some(measures) = self.record.measures() {
            text.push_str(&style.dim(format_args!("held by {}\n", render::event::measures(measures))));
        }
        for doubt in self.record.doubts() {
            text.push_str(&style.yellow(format_args!("not all may have been seen: {}\n", printable(doubt, false))));
        }
        text.push_str(&self.conclusion(style));
        if self.verdict() != LeakVerdict::Clean {
            text.push_str(&render::receipt::verdict(&self.receipt, style));
        }
        format!("{tree}\n{}", filled(&text, width))
    }

    fn end(&self) -> String {
        let ran = duration(self.ran);
        match (self.exited, self.record.agent_exit()) {
            (true, Some(exit)) => format!("it ended by itself after {ran}: {exit}"),
            (true, None) => format!("it ended by itself after {ran}"),
            (false, _) => format!("it still ran after {ran}"),
        }
    }

    fn conclusion(&self, style: TermStyle) -> String {
        let left = self.left().count();
        let processes = count(left, "process", "processes");
        match self.verdict() {
            LeakVerdict::Clean => style.green("CLEAN: nothing was left after its exit\n"),
            LeakVerdict::Leaks => {
                let settle = duration(self.settle);
                style.red(format_args!("LEAKS: {processes} left {settle} after its exit, and killed:\n"))
            }
            LeakVerdict::TimedOut => {
                style.red(format_args!("TIMED OUT: it was killed, with {processes} that it had started:\n"))
            }
            LeakVerdict::Survivors => style.red("SURVIVORS: the kill did not end everything, or could not prove it:\n"),
        }
    }

    /// Formats all processes as a tree, each under the one that started it, with its exit.
    fn tree(&self, style: TermStyle, width: Option<usize>) -> String {
        let processes: Vec<ProcessInfo> = self.record.processes().iter().map(|known| known.info.clone()).collect();
        let nodes = tree::arrange(&processes);
        let room = width.map(|width| width.saturating_sub(7 + 2 + 12 + 2).max(20));
        let row = |node: &TreeNode<'_>| {
            let id = node.process.id;
            let known = self.record.find(id);
            vec![id.pid.to_string(), ended_by(node.process), tree::describe(node, self.notes(known), style, room)]
        };
        let rows = nodes.iter().take(MAX_LINES).map(row).collect();
        let mut text = table(style, &["PID", "END", "COMMAND"], &[0], rows);
        let more = nodes.len().saturating_sub(MAX_LINES);
        if more > 0 {
            text.push_str(&style.dim(format_args!("and {more} more: --json has all of them\n")));
        }
        text
    }

    fn notes(&self, known: Option<&RecordedProcess>) -> Vec<String> {
        let Some(known) = known else { return Vec::new() };
        let mut notes: Vec<String> = known.marks.iter().map(ToString::to_string).collect();
        if known.survived {
            notes.push("SURVIVED".into());
        } else if known.alive_at_kill && self.exited {
            notes.push("LEAKED".into());
        }
        notes
    }
}

fn ended_by(process: &ProcessInfo) -> String {
    match (process.exit, process.status) {
        (Some(exit), _) => exit.to_string(),
        (None, ProcessStatus::Running) => "-".into(),
        (None, _) => "ended".into(),
    }
}
