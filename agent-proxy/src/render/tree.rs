//! Tree of a session's processes.

use std::collections::{HashMap, HashSet};

use api_types::{EscapeMark, ProcessDetails};
use ipc_protocol::{ListeningSocket, ProcessId, ProcessInfo, ProcessStatus};

use super::{bytes, table};
use crate::term::{TermStyle, clip, printable};

/// Depth from which the tree is not indented any further.
const MAX_INDENT: usize = 24;

/// Process at its place in the tree.
#[derive(Clone, Debug)]
pub(crate) struct TreeNode<'a> {
    /// Process of the node.
    pub(crate) process: &'a ProcessInfo,
    /// Lines that lead to the process.
    pub(crate) lead: String,
    /// Lines that lead on to its children.
    below: String,
}

/// Arranges the processes, parents before their children, siblings by age. The agent's own tree comes first.
pub(crate) fn arrange(processes: &[ProcessInfo]) -> Vec<TreeNode<'_>> {
    let pids: HashSet<u32> = processes.iter().map(|p| p.id.pid).collect();
    let (mut roots, inner): (Vec<_>, Vec<_>) = processes.iter().partition(|p| !pids.contains(&p.ppid));
    let mut children: HashMap<u32, Vec<&ProcessInfo>> = HashMap::new();
    for process in inner {
        children.entry(process.ppid).or_default().push(process);
    }
    roots.sort_by_key(|p| (!p.tracked, p.id.start_time, p.id.pid));
    for siblings in children.values_mut() {
        siblings.sort_by_key(|p| (p.id.start_time, p.id.pid));
    }
    let root = |process| TreeNode { process, lead: String::new(), below: String::new() };
    let mut waiting: Vec<TreeNode<'_>> = roots.into_iter().rev().map(root).collect();
    let mut nodes = Vec::with_capacity(processes.len());
    while let Some(node) = waiting.pop() {
        // Removed from the map, so that a listing torn by a recycled pid causes no loop.
        let siblings = children.remove(&node.process.id.pid).unwrap_or_default();
        let indent = node.below.chars().count() < 3 * MAX_INDENT;
        for (at, process) in siblings.iter().enumerate().rev() {
            let (branch, trunk) = if at + 1 == siblings.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            let below = if indent { format!("{}{trunk}", node.below) } else { node.below.clone() };
            waiting.push(TreeNode { process, lead: format!("{}{branch}", node.below), below });
        }
        nodes.push(node);
    }
    // A loop of parents has no root; only a torn listing has one, and it is shown flat.
    nodes.extend(children.into_values().flatten().map(root));
    nodes
}

/// Formats the tree with pid, CPU and memory, one process a line, clipped to `width` columns. Marks processes that
/// left the agent's group or session, or lost their parent.
#[cfg(any(test, feature = "engine"))]
pub(crate) fn render(processes: &[ProcessInfo], style: TermStyle, width: Option<usize>) -> String {
    let marks = api_types::EscapeMarks::of(processes);
    render_with(processes, |id| marks.get(id).iter().map(ToString::to_string).collect(), style, width)
}

/// Formats like [`render`], with the daemon's marks, and the ports on which each process listens.
pub(crate) fn render_details(listed: &[ProcessDetails], style: TermStyle, width: Option<usize>) -> String {
    let processes: Vec<ProcessInfo> = listed.iter().map(|listed| listed.process.clone()).collect();
    let noted: HashMap<ProcessId, Vec<String>> =
        listed.iter().map(|listed| (listed.process.id, notes_of(listed))).collect();
    render_with(&processes, |id| noted.get(&id).cloned().unwrap_or_default(), style, width)
}

/// Lists the marks of a process, and where it listens.
pub(crate) fn notes_of(ProcessDetails { marks, listening, .. }: &ProcessDetails) -> Vec<String> {
    let ports: Vec<String> = listening.iter().map(ListeningSocket::to_string).collect();
    let ports = (!ports.is_empty()).then(|| format!("listens on {}", ports.join(" and ")));
    marks.iter().map(EscapeMark::to_string).chain(ports).collect()
}

fn render_with(
    processes: &[ProcessInfo],
    noted: impl Fn(ProcessId) -> Vec<String>,
    style: TermStyle,
    width: Option<usize>,
) -> String {
    let nodes = arrange(processes);
    let pid_width = nodes.iter().map(|node| node.process.id.pid.to_string().len()).max().unwrap_or(0).max(3);
    // PID, CPU% and RSS with the space between them.
    let room = width.map(|width| width.saturating_sub(pid_width + 2 + 5 + 2 + 9 + 2));
    let rows = nodes
        .iter()
        .map(|node| {
            let process = node.process;
            vec![
                process.id.pid.to_string(),
                process.cpu_percent.map_or_else(|| "-".into(), |cpu| format!("{cpu:.1}")),
                process.rss_bytes.map_or_else(|| "-".into(), bytes),
                describe(node, notes(process, noted(process.id)), style, room),
            ]
        })
        .collect();
    table(style, &["PID", "CPU%", "RSS", "COMMAND"], &[0, 1, 2], rows)
}

/// Adds the exit of a process to what is noted of it.
fn notes(process: &ProcessInfo, mut notes: Vec<String>) -> Vec<String> {
    match (process.status, process.exit) {
        (ProcessStatus::Running, _) => {}
        (_, Some(exit)) => notes.push(exit.to_string()),
        (_, None) => notes.push("ended".into()),
    }
    notes
}

/// Formats the command at its place in the tree, with notes, in `room` columns.
pub(crate) fn describe(node: &TreeNode<'_>, notes: Vec<String>, style: TermStyle, room: Option<usize>) -> String {
    let notes = if notes.is_empty() { String::new() } else { format!("  [{}]", notes.join(", ")) };
    let command = printable(&node.process.command_line(), false);
    let command = match room {
        Some(room) => {
            let taken = node.lead.chars().count() + notes.chars().count();
            // The notes say more than the end of a long command line.
            clip(&command, room.saturating_sub(taken).max(12))
        }
        None => command,
    };
    format!("{}{command}{}", style.dim(&node.lead), style.dim(notes))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::SystemTime;

    use ipc_protocol::ProcessId;
    use ipc_protocol::SocketProtocol;

    use super::*;

    /// Creates a process for tests: `pgid` and `sid` as given, tracked if its parent is 1.
    pub(crate) fn process(pid: u32, ppid: u32, pgid: u32, sid: u32, command: &str) -> ProcessInfo {
        let mut words = command.split(' ').map(str::to_owned);
        ProcessInfo {
            id: ProcessId { pid, start_time: u64::from(pid) },
            ppid,
            pgid,
            sid,
            session_id: "s-1".parse().expect("a valid id"),
            command: words.next(),
            args: words.collect(),
            cwd: Some("/".into()),
            started_at: SystemTime::UNIX_EPOCH,
            status: ProcessStatus::Running,
            exit: None,
            error: None,
            cpu_percent: Some(0.25),
            rss_bytes: Some(1 << 20),
            tracked: ppid == 1,
        }
    }

    /// Creates an agent (10) with a child and grandchild, one with a session of its own, and a re-parented daemon
    /// (14).
    pub(crate) fn family() -> Vec<ProcessInfo> {
        vec![
            process(14, 2, 13, 13, "sleep 5"),
            process(12, 11, 10, 10, "sleep 1"),
            process(11, 10, 10, 10, "sh -c sleep\u{1b}"),
            ProcessInfo { tracked: true, ..process(10, 2, 10, 10, "agent") },
            process(13, 10, 13, 13, "sleep 2"),
        ]
    }

    /// Adds what a daemon adds; the process 12 listens.
    pub(crate) fn listed(processes: Vec<ProcessInfo>) -> Vec<ProcessDetails> {
        let marks = api_types::EscapeMarks::of(&processes);
        let socket = || ListeningSocket { protocol: SocketProtocol::Tcp, address: "127.0.0.1".into(), port: 8000 };
        let details = |process: ProcessInfo| ProcessDetails {
            age_ms: None,
            marks: marks.get(process.id).to_vec(),
            listening: if process.id.pid == 12 { vec![socket()] } else { Vec::new() },
            process,
        };
        processes.into_iter().map(details).collect()
    }

    #[test]
    fn a_family() {
        let text = render(&family(), TermStyle::PLAIN, None);
        let expected = "\
PID  CPU%      RSS  COMMAND
 10   0.2  1.0 MiB  agent
 11   0.2  1.0 MiB  ├─ sh -c sleep\\u{1b}
 12   0.2  1.0 MiB  │  └─ sleep 1
 13   0.2  1.0 MiB  └─ sleep 2  [left session]
 14   0.2  1.0 MiB  sleep 5  [left session, re-parented]
";
        assert_eq!(text, expected);
    }

    #[test]
    fn lines_fit_the_terminal() {
        let mut family = family();
        family[4].args = vec!["x".repeat(300)];
        let text = render(&family, TermStyle::PLAIN, Some(60));
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        assert!(text.contains("…  [left session]"), "{text}");
    }

    #[test]
    fn every_process_is_there_once_even_in_a_torn_listing() {
        let torn = vec![process(5, 6, 5, 5, "a"), process(6, 5, 5, 5, "b"), process(7, 7, 7, 7, "c")];
        assert_eq!(arrange(&torn).len(), torn.len());
        let deep: Vec<_> = (1..2000).map(|pid| process(pid + 1, pid, 2, 2, "p")).collect();
        let nodes = arrange(&deep);
        assert_eq!(nodes.len(), deep.len());
        assert!(nodes.iter().all(|node| node.lead.chars().count() <= 3 * (MAX_INDENT + 1)));
    }
}
