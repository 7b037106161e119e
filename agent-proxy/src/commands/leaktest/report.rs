//! What a leak test found, for people and as JSON.

use std::time::Duration;

use proxy_manager::{ExitStatus, Measures, Pid, ProcessId, ProcessInfo, ProcessStatus, Receipt};
use serde::Serialize;

use super::record::{Known, Record};
use crate::{
    render::{
        self, count, duration,
        marks::Mark,
        table,
        tree::{self, Node},
    },
    term::{Style, printable},
};

/// Most processes shown to people.
const MAX_LINES: usize = 100;

/// A finished leak test.
#[derive(Debug)]
pub(super) struct Report {
    /// What was run.
    pub(super) command: Vec<String>,
    /// Whether it exited by itself within its time.
    pub(super) exited: bool,
    /// How long it ran, to its exit or to its timeout.
    pub(super) ran: Duration,
    /// How long what it started was allowed to outlive it.
    pub(super) settle: Duration,
    /// Everything seen.
    pub(super) record: Record,
    /// Of the kill.
    pub(super) receipt: Receipt,
}

/// How it came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Verdict {
    /// It exited, and nothing was left.
    Clean,
    /// It exited, and left something that had to be killed.
    Leaks,
    /// It had to be killed itself.
    TimedOut,
    /// Something outlived the kill, or that could not be disproved.
    Survivors,
}

/// The report as JSON. Times are in microseconds.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Json<'a> {
    command: &'a [String],
    verdict: Verdict,
    exited: bool,
    /// How the command ended, where that is known.
    exit: Option<ExitStatus>,
    ran_us: u64,
    /// What held and saw it.
    measures: Option<&'a Measures>,
    /// Why something may not have been seen.
    doubts: &'a [String],
    /// Processes it started, at any depth; itself not counted.
    spawned: u64,
    /// Of these: seen by their events only, because they were gone before anybody looked.
    only_events: usize,
    left_group: usize,
    left_session: usize,
    re_parented: usize,
    /// Pids that were alive when the kill began: after its exit and the time to settle, or at its timeout.
    left: Vec<ProcessId>,
    /// How long the kill took.
    kill_us: u64,
    /// Every process, the command first.
    processes: Vec<Process<'a>>,
    /// Processes that are counted and in no list.
    omitted: u64,
    receipt: &'a Receipt,
}

/// A process in the JSON report.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Process<'a> {
    id: ProcessId,
    ppid: Pid,
    pgid: Pid,
    sid: Pid,
    command: Option<&'a str>,
    args: &'a [String],
    exit: Option<ExitStatus>,
    marks: Vec<Mark>,
    seen_alive: bool,
    left: bool,
}

impl<'a> Process<'a> {
    fn of(known: &'a Known) -> Self {
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
            left: known.left,
        }
    }
}

impl Report {
    /// How it came out.
    pub(super) fn verdict(&self) -> Verdict {
        if !self.receipt.is_empty() {
            Verdict::Survivors
        } else if !self.exited {
            Verdict::TimedOut
        } else if self.left().next().is_some() || self.receipt.omitted > 0 {
            Verdict::Leaks
        } else {
            Verdict::Clean
        }
    }

    fn left(&self) -> impl Iterator<Item = &Known> {
        self.record.spawned().filter(|known| known.left)
    }

    fn spawned(&self) -> u64 {
        u64::try_from(self.record.spawned().count()).unwrap_or(u64::MAX).saturating_add(self.record.omitted())
    }

    fn only_events(&self) -> usize {
        self.record.spawned().filter(|known| !known.seen_alive).count()
    }

    fn marked(&self, mark: Mark) -> usize {
        self.record.spawned().filter(|known| known.marks.contains(&mark)).count()
    }

    /// The report as JSON.
    pub(super) fn json(&self) -> Json<'_> {
        Json {
            command: &self.command,
            verdict: self.verdict(),
            exited: self.exited,
            exit: self.record.agent_exit(),
            ran_us: u64::try_from(self.ran.as_micros()).unwrap_or(u64::MAX),
            measures: self.record.measures(),
            doubts: self.record.doubts(),
            spawned: self.spawned(),
            only_events: self.only_events(),
            left_group: self.marked(Mark::LeftGroup),
            left_session: self.marked(Mark::LeftSession),
            re_parented: self.marked(Mark::Reparented),
            left: self.left().map(|known| known.info.id).collect(),
            kill_us: self.receipt.duration_us,
            processes: self.record.processes().iter().map(Process::of).collect(),
            omitted: self.record.omitted(),
            receipt: &self.receipt,
        }
    }

    /// The report for people, clipped to `width` columns.
    pub(super) fn text(&self, style: Style, width: Option<usize>) -> String {
        let mut text = self.tree(style, width);
        text.push('\n');
        text.push_str(&format!("{}\n", self.end()));
        let spawned = usize::try_from(self.spawned()).unwrap_or(usize::MAX);
        text.push_str(&format!(
            "it started {} ({} gone before anybody looked): {} left its session, {} its group, {} lost its parent\n",
            count(spawned, "process", "processes"),
            self.only_events(),
            self.marked(Mark::LeftSession),
            self.marked(Mark::LeftGroup),
            self.marked(Mark::Reparented),
        ));
        if let Some(measures) = self.record.measures() {
            text.push_str(&style.dim(format_args!("held by {}\n", render::event::measures(measures))));
        }
        for doubt in self.record.doubts() {
            text.push_str(&style.yellow(format_args!("not all may have been seen: {}\n", printable(doubt, false))));
        }
        text.push_str(&self.conclusion(style));
        if self.verdict() != Verdict::Clean {
            text.push_str(&render::receipt::verdict(&self.receipt, style));
        }
        text
    }

    fn end(&self) -> String {
        let ran = duration(self.ran);
        match (self.exited, self.record.agent_exit()) {
            (true, Some(exit)) => format!("it ended by itself after {ran}: {exit}"),
            (true, None) => format!("it ended by itself after {ran}"),
            (false, _) => format!("it still ran after {ran}"),
        }
    }

    fn conclusion(&self, style: Style) -> String {
        let left = self.left().count();
        let processes = count(left, "process", "processes");
        match self.verdict() {
            Verdict::Clean => style.green("CLEAN: nothing was left after its exit\n"),
            Verdict::Leaks => {
                let settle = duration(self.settle);
                style.red(format_args!("LEAKS: {processes} left {settle} after its exit, and killed:\n"))
            }
            Verdict::TimedOut => {
                style.red(format_args!("TIMED OUT: it was killed, with {processes} that it had started:\n"))
            }
            Verdict::Survivors => style.red("SURVIVORS: the kill did not end everything, or could not prove it:\n"),
        }
    }

    /// Every process under the one that started it, and how each ended.
    fn tree(&self, style: Style, width: Option<usize>) -> String {
        let processes: Vec<ProcessInfo> = self.record.processes().iter().map(|known| known.info.clone()).collect();
        let nodes = tree::arrange(&processes);
        let room = width.map(|width| width.saturating_sub(7 + 2 + 12 + 2).max(20));
        let row = |node: &Node<'_>| {
            let id = node.process.id;
            let known = self.record.known(id);
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

    fn notes(&self, known: Option<&Known>) -> Vec<String> {
        let Some(known) = known else { return Vec::new() };
        let mut notes: Vec<String> = known.marks.iter().map(ToString::to_string).collect();
        if known.survived {
            notes.push("SURVIVED".into());
        } else if known.left && self.exited {
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
