//! Orphans for people, in 80 columns, and for programs.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::unistd::{Uid, User};
use registry::MachineProcess;
use serde::Serialize;

use super::judge::{OrphanKind, OrphanTree};
use crate::{
    render::{bytes, count, table},
    term::{TermStyle, clip, printable},
};

/// Processes shown below an orphan; JSON has all.
const MAX_SHOWN: usize = 6;
/// Depth from which a tree is not indented any further.
const MAX_INDENT: usize = 6;
/// Columns where there is no terminal.
const COLUMNS: usize = 80;

/// Orphan for programs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListedOrphan {
    pid: u32,
    start_time: u64,
    /// `agent`, `script` (a shell that runs an agent), `mcp-server`, `mcp-browser`, `child` (started by an agent) or `session`.
    kind: &'static str,
    /// Agent that it is, runs, or was started by; name of the MCP server; id of the session.
    name: Option<String>,
    /// Agent whose variables it carries.
    started_by: Option<String>,
    user: String,
    command: String,
    started_at: String,
    age_seconds: u64,
    /// Of the whole tree.
    memory_bytes: u64,
    /// Of the whole tree.
    cpu_seconds: u64,
    adopted_by: ListedAdopter,
    /// Reason why it may be in use all the same; `null` for none.
    doubt: Option<String>,
    /// The whole tree, the orphan first.
    processes: Vec<ListedMember>,
}

/// Process that has adopted an orphan.
#[derive(Debug, Serialize)]
struct ListedAdopter {
    pid: u32,
    name: String,
}

/// Process of a tree.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ListedMember {
    pid: u32,
    start_time: u64,
    ppid: u32,
    command: String,
    memory_bytes: u64,
}

impl From<&OrphanTree> for ListedOrphan {
    fn from(orphan: &OrphanTree) -> Self {
        let root = orphan.members.first().map(|(_, process)| process);
        let (kind, name) = match &orphan.kind {
            OrphanKind::Agent(id) => ("agent", Some(id)),
            OrphanKind::Wrapper(id) => ("script", Some(id)),
            OrphanKind::McpServer(name) => ("mcp-server", Some(name)),
            OrphanKind::McpBrowser => ("mcp-browser", None),
            OrphanKind::AgentChild(id) => ("child", Some(id)),
            OrphanKind::Session(id) => ("session", Some(id)),
        };
        let started_at = root.map_or(UNIX_EPOCH, |root| root.started_at);
        let member = |(_, process): &(usize, MachineProcess)| ListedMember {
            pid: process.id.pid,
            start_time: process.id.start_time,
            ppid: process.ppid,
            command: process.argv.join(" "),
            memory_bytes: process.memory_bytes,
        };
        Self {
            pid: orphan.root.pid,
            start_time: orphan.root.start_time,
            kind,
            name: name.cloned(),
            started_by: orphan.started_by.clone(),
            user: user_name(orphan.uid),
            command: root.map(|root| root.argv.join(" ")).unwrap_or_default(),
            started_at: humantime::format_rfc3339_seconds(started_at).to_string(),
            age_seconds: age(started_at).as_secs(),
            memory_bytes: orphan.memory_bytes(),
            cpu_seconds: orphan.members.iter().map(|(_, process)| process.cpu_time).sum::<Duration>().as_secs(),
            adopted_by: ListedAdopter { pid: orphan.adopter.0, name: orphan.adopter.1.clone() },
            doubt: orphan.doubt.clone(),
            processes: orphan.members.iter().map(member).collect(),
        }
    }
}

/// Formats the orphans, each with the processes below it, and what they hold in all.
pub(super) fn render(orphans: &[OrphanTree], with_users: bool, style: TermStyle, width: Option<usize>) -> String {
    let mut rows: Vec<[String; 5]> = Vec::new();
    for orphan in orphans {
        let shown = orphan.members.iter().take(MAX_SHOWN + 1);
        for (at, (depth, process)) in shown.enumerate() {
            let lead =
                if *depth == 0 { String::new() } else { format!("{}└ ", "  ".repeat(depth.min(&MAX_INDENT) - 1)) };
            let what = if at == 0 { label(orphan, with_users) } else { String::new() };
            let memory = if at == 0 { orphan.memory_bytes() } else { process.memory_bytes };
            let room = usize::MAX;
            rows.push([
                process.id.pid.to_string(),
                what,
                short_age(age(process.started_at)),
                bytes(memory),
                format!("{lead}{}", command_of(process, room)),
            ]);
        }
        let more = orphan.members.len().saturating_sub(MAX_SHOWN + 1);
        if more > 0 {
            rows.push([String::new(), String::new(), String::new(), String::new(), format!("└ and {more} more")]);
        }
    }
    let widest = |column: usize, heading: usize| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0).max(heading) + 2
    };
    let taken = widest(0, 3) + widest(1, 4) + widest(2, 3) + widest(3, 6);
    let room = width.unwrap_or(COLUMNS).saturating_sub(taken).max(12);
    let rows = rows.into_iter().map(|mut row| {
        row[4] = clip(&row[4], room);
        row.to_vec()
    });
    let mut text = table(style, &["PID", "WHAT", "AGE", "MEMORY", "COMMAND"], &[0, 2, 3], rows.collect());
    text.push_str(&totals(orphans));
    for orphan in orphans {
        if let Some(doubt) = &orphan.doubt {
            text.push_str(&format!(
                "{} {}\n",
                style.yellow(format_args!("{}?", orphan.root.pid)),
                printable(doubt, false)
            ));
        }
    }
    text
}

/// Formats the sum.
fn totals(orphans: &[OrphanTree]) -> String {
    let processes = orphans.iter().map(|orphan| orphan.members.len()).sum();
    let memory = orphans.iter().map(OrphanTree::memory_bytes).sum();
    let orphans = count(orphans.len(), "orphan", "orphans");
    format!("{orphans}, {}, {} in all\n", count(processes, "process", "processes"), bytes(memory))
}

/// Names what an orphan is, with a `?` where that may be in use.
fn label(orphan: &OrphanTree, with_users: bool) -> String {
    let what = match &orphan.kind {
        OrphanKind::Agent(id) | OrphanKind::Wrapper(id) => id.clone(),
        OrphanKind::McpServer(_) => "mcp server".to_owned(),
        OrphanKind::McpBrowser => "mcp browser".to_owned(),
        OrphanKind::AgentChild(id) => format!("by {id}"),
        OrphanKind::Session(id) => format!("session {id}"),
    };
    let user = if with_users { format!(" ({})", user_name(orphan.uid)) } else { String::new() };
    let mark = if orphan.doubt.is_some() { "?" } else { "" };
    // An id of ours has 36 characters.
    format!("{}{mark}{user}", clip(&printable(&what, false), 18))
}

/// The command line with its program's name for its path, and the ends of other long paths.
pub(super) fn command_of(process: &MachineProcess, room: usize) -> String {
    /// Longest path that is shown whole.
    const LONG: usize = 24;
    let Some((program, rest)) = process.argv.split_first() else { return format!("[{}]", process.name) };
    let name = program.rsplit('/').find(|part| !part.is_empty()).unwrap_or(program);
    let short = |word: &String| match word.rsplitn(3, '/').collect::<Vec<_>>()[..] {
        [last, before, _] if word.starts_with('/') && word.len() > LONG => format!("…/{before}/{last}"),
        _ => word.clone(),
    };
    let words: Vec<String> = std::iter::once(name.to_owned()).chain(rest.iter().map(short)).collect();
    clip(&printable(&words.join(" "), false), room)
}

fn user_name(uid: u32) -> String {
    User::from_uid(Uid::from_raw(uid)).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
}

fn age(since: SystemTime) -> Duration {
    SystemTime::now().duration_since(since).unwrap_or_default()
}

/// Formats an age in two units at most: `3d 4h`.
fn short_age(age: Duration) -> String {
    let minutes = age.as_secs() / 60;
    let (days, hours) = (minutes / 1440, minutes / 60 % 24);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{}s", age.as_secs()),
        (0, 0, minutes) => format!("{minutes}m"),
        (0, hours, minutes) => format!("{hours}h {}m", minutes % 60),
        (days, hours, _) => format!("{days}d {hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ipc_protocol::ProcessId;

    use super::*;

    fn process(pid: u32, ppid: u32, command: &str, megabytes: u64) -> MachineProcess {
        MachineProcess {
            id: ProcessId { pid, start_time: 7 },
            ppid,
            sid: 9,
            has_terminal: false,
            uid: 0,
            is_namespace_init: false,
            name: "x".into(),
            program: None,
            argv: command.split(' ').map(str::to_owned).collect(),
            env: BTreeMap::new(),
            cgroup: None,
            has_piped_stdin: false,
            ignores_hangup: false,
            memory_bytes: megabytes << 20,
            cpu_time: Duration::from_secs(5),
            started_at: SystemTime::now() - Duration::from_secs(90_000),
        }
    }

    fn orphan(kind: OrphanKind, members: Vec<(usize, MachineProcess)>, doubt: Option<&str>) -> OrphanTree {
        OrphanTree {
            root: members[0].1.id,
            kind,
            started_by: None,
            uid: 0,
            adopter: (1, "systemd".into()),
            members,
            doubt: doubt.map(str::to_owned),
        }
    }

    #[test]
    fn a_listing_fits_80_columns() {
        let long = format!("/usr/lib/node_modules/.bin/claude --resume {}", "x".repeat(200));
        let children = (0..9).map(|at| (1, process(4712 + at, 4711, "/bin/sh -c x", 1)));
        let members = std::iter::once((0, process(4711, 1, &long, 600))).chain(children).collect();
        let orphans = [
            orphan(OrphanKind::Agent("claude-code".into()), members, None),
            orphan(
                OrphanKind::McpServer("a".into()),
                vec![(0, process(9, 1, "npm exec a-mcp", 70))],
                Some("it may be used"),
            ),
        ];
        let text = render(&orphans, false, TermStyle::PLAIN, Some(80));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let expected =
            " PID  WHAT           AGE     MEMORY  COMMAND\n4711  claude-code  1d 1h  609.0 MiB  claude --resume x";
        assert!(text.starts_with(expected), "{text}");
        for part in
            ["└ sh -c x", "└ and 3 more", "mcp server?", "2 orphans, 11 processes, 679.0 MiB in all", "\n9? it may"]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn long_paths_are_shown_by_their_ends() {
        let command =
            "/usr/bin/node --flag /root/.cache/agents/node_modules/@google/gemini-cli/bundle/gemini.js /tmp/x";
        assert_eq!(command_of(&process(1, 1, command, 0), 99), "node --flag …/bundle/gemini.js /tmp/x");
    }

    #[test]
    fn ages() {
        for (seconds, text) in [(4, "4s"), (59 * 60, "59m"), (3600 * 5 + 60, "5h 1m"), (86_400 * 47, "47d 0h")] {
            assert_eq!(short_age(Duration::from_secs(seconds)), text);
        }
    }
}
