//! Snapshot of all processes of the machine, with what tells where each comes from and what it is.
//!
//! For judgments on processes that are nobody's here (`agent-proxy orphans`). Facts that may not be read, or that are gone by
//! the time they are read, are absent.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    time::{Duration, SystemTime},
};

use ipc_protocol::{Pid, ProcessId};

use crate::{proc, procfs, stat::ProcStat};

/// Bytes read of an environment at most. A process can move the bounds of its environment and show gigabytes at no cost.
const MAX_ENVIRONMENT: u64 = 256 << 10;
/// The kernel's flag of its own threads.
const PF_KTHREAD: u32 = 0x0020_0000;
/// Bit of SIGHUP in the masks of `/proc/PID/status`.
const HANGUP: u64 = 1 << (libc::SIGHUP - 1);

/// Process in a snapshot of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineProcess {
    /// Identity of the process.
    pub id: ProcessId,
    /// Pid of its parent; 0 where that is in another PID namespace.
    pub ppid: Pid,
    /// POSIX session.
    pub sid: Pid,
    /// True if it has a controlling terminal. The kernel takes it away when the terminal closes.
    pub has_terminal: bool,
    /// Effective user.
    pub uid: u32,
    /// True for the first process of a PID namespace.
    pub is_namespace_init: bool,
    /// Name of its first thread, at most 15 bytes: `systemd`, `tmux: server`.
    pub name: String,
    /// Path of the program; `None` where it may not be seen.
    pub program: Option<String>,
    /// Command line, word by word.
    pub argv: Vec<String>,
    /// Variables of its environment at its start: those that were asked for.
    pub env: BTreeMap<String, String>,
    /// Path of its cgroup; `None` where systemd has none for it.
    pub cgroup: Option<String>,
    /// True if its standard input is a pipe or a socket.
    pub has_piped_stdin: bool,
    /// True if it ignores SIGHUP, as under `nohup`.
    pub ignores_hangup: bool,
    /// Memory that its end frees, swap included, in bytes: pages of files and shared memory are not.
    pub memory_bytes: u64,
    /// CPU time used.
    pub cpu_time: Duration,
    /// Time of its start.
    pub started_at: SystemTime,
}

/// Lists every live process of the machine but the kernel's own, with these variables of its environment.
///
/// One look does not show a single moment: a process forked meanwhile may be missed, and a parent may be gone. Environments that
/// this process may not read are empty.
///
/// # Errors
/// `/proc` cannot be listed.
pub fn machine_processes(variables: &[&str]) -> io::Result<Vec<MachineProcess>> {
    let pids = procfs::numbers_in_proc(".", usize::MAX)?;
    Ok(pids.into_iter().filter_map(|pid| read_process(pid, variables)).collect())
}

fn read_process(pid: Pid, variables: &[&str]) -> Option<MachineProcess> {
    let stat = proc::stat(pid).ok().filter(|stat| !proc::is_dead(stat) && stat.flags & PF_KTHREAD == 0)?;
    let status = StatusFacts::parse(&proc::status(pid).ok()?);
    let process = MachineProcess {
        id: ProcessId { pid, start_time: stat.starttime },
        ppid: stat.ppid.unsigned_abs(),
        sid: stat.session.unsigned_abs(),
        has_terminal: stat.tty_nr != 0,
        uid: status.uid?,
        is_namespace_init: pid == 1 || status.is_namespace_init,
        name: status.name,
        program: procfs::read_link(&format!("{pid}/exe")).ok().map(|path| path.to_string_lossy().into_owned()),
        argv: words_of(pid),
        env: environment(pid, variables),
        cgroup: procfs::read_text(&format!("{pid}/cgroup")).ok().as_deref().and_then(cgroup_path),
        has_piped_stdin: procfs::read_link(&format!("{pid}/fd/0")).is_ok_and(|link| {
            let link = link.to_string_lossy();
            link.starts_with("pipe:") || link.starts_with("socket:")
        }),
        ignores_hangup: status.ignored & HANGUP != 0,
        memory_bytes: status.memory_bytes,
        cpu_time: proc::cpu_time(&stat),
        started_at: proc::started_at(stat.starttime),
    };
    // The pid may have become another process's between two files.
    is_still(&stat, pid).then_some(process)
}

fn is_still(stat: &ProcStat, pid: Pid) -> bool {
    proc::stat(pid).is_ok_and(|now| now.starttime == stat.starttime)
}

/// The command line. Of a title that a program has set, what it leaves of its arguments is blank: these words are dropped.
fn words_of(pid: Pid) -> Vec<String> {
    let mut words = proc::command_line(pid).unwrap_or_default();
    while words.last().is_some_and(|word| word.trim().is_empty()) {
        words.pop();
    }
    words
}

fn environment(pid: Pid, variables: &[&str]) -> BTreeMap<String, String> {
    let mut bytes = Vec::new();
    let Ok(file) = procfs::open_proc_file(&format!("{pid}/environ")) else { return BTreeMap::new() };
    // What could be read counts.
    let _ = file.take(MAX_ENVIRONMENT).read_to_end(&mut bytes);
    let mut found = BTreeMap::new();
    for variable in bytes.split(|byte| *byte == 0) {
        let Some(at) = variable.iter().position(|byte| *byte == b'=') else { continue };
        let (name, value) = (String::from_utf8_lossy(&variable[..at]), &variable[at + 1..]);
        if variables.contains(&&*name) {
            found.entry(name.into_owned()).or_insert_with(|| String::from_utf8_lossy(value).into_owned());
        }
    }
    found
}

/// The path in version 2's hierarchy, or in systemd's own of version 1.
fn cgroup_path(text: &str) -> Option<String> {
    let path = |prefix: &str| {
        text.lines().find_map(|line| line.split_once(':')?.1.strip_prefix(prefix)).filter(|path| *path != "/")
    };
    path(":").or_else(|| path("name=systemd:")).map(str::to_owned)
}

/// Facts in `/proc/PID/status`.
#[derive(Debug, Default, PartialEq, Eq)]
struct StatusFacts {
    name: String,
    uid: Option<u32>,
    is_namespace_init: bool,
    ignored: u64,
    memory_bytes: u64,
}

impl StatusFacts {
    fn parse(text: &str) -> Self {
        let mut facts = Self::default();
        for (key, value) in text.lines().filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            let kilobytes = || value.split_ascii_whitespace().next().and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0);
            match key {
                "Name" => facts.name = value.to_owned(),
                "Uid" => facts.uid = value.split_ascii_whitespace().nth(1).and_then(|uid| uid.parse().ok()),
                "NSpid" => facts.is_namespace_init = value.split_ascii_whitespace().last() == Some("1"),
                "SigIgn" => facts.ignored = u64::from_str_radix(value, 16).unwrap_or(0),
                "RssAnon" | "VmSwap" => facts.memory_bytes = facts.memory_bytes.saturating_add(kilobytes() << 10),
                _ => {}
            }
        }
        facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PidFd, SpawnInput, SpawnRequest};

    #[test]
    fn a_status_is_parsed() {
        let text = "Name:\ttmux: server\nUid:\t1000\t1001\t1000\t1000\nNSpid:\t4711\t1\nVmRSS:\t  9 kB\n\
                    RssAnon:\t     100 kB\nVmSwap:\t      28 kB\nSigIgn:\t0000000000001001\n";
        let facts = StatusFacts::parse(text);
        assert_eq!((facts.name.as_str(), facts.uid, facts.memory_bytes), ("tmux: server", Some(1001), 128 << 10));
        assert!(facts.is_namespace_init && facts.ignored & HANGUP != 0, "{facts:?}");
        assert!(!StatusFacts::parse("NSpid:\t4711\t12\nSigIgn:\t1000").is_namespace_init);
    }

    #[test]
    fn a_cgroup_is_found_in_either_version() {
        for (text, path) in [
            ("0::/user.slice/session-3.scope\n", Some("/user.slice/session-3.scope")),
            ("9:name=systemd:/system.slice/a.service\n8:pids:/x\n0::/\n", Some("/system.slice/a.service")),
            ("9:name=systemd:/\n4:memory:/x\n0::/\n", None),
            ("", None),
        ] {
            assert_eq!(cgroup_path(text).as_deref(), path, "{text}");
        }
    }

    #[test]
    fn a_process_is_read_with_the_variables_that_were_asked_for() {
        let mark = format!("mark-{}", std::process::id());
        let env = vec![("A".into(), "b".into()), ("MACHINE_MARK".into(), mark.clone().into())];
        let argv = vec!["a title".into(), "300".into()];
        let stdin = SpawnInput::Pipe;
        let spawned =
            crate::spawn(SpawnRequest { argv, env, stdin, ..SpawnRequest::new("/bin/sleep") }).expect("started");
        let id = spawned.id();
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        let read = loop {
            // An exec is confirmed a moment before its environment is in place.
            let all = machine_processes(&["MACHINE_MARK"]).expect("a look");
            let own = std::process::id();
            assert!(all.iter().any(|seen| seen.id.pid == own && seen.env.is_empty() && seen.memory_bytes > 0));
            match all.into_iter().find(|seen| seen.id == id && !seen.env.is_empty()) {
                Some(read) => break read,
                None => assert!(std::time::Instant::now() < deadline, "never seen"),
            }
        };
        assert_eq!(
            (&read.argv, read.ppid, read.sid),
            (&vec!["a title".into(), "300".into()], std::process::id(), id.pid)
        );
        assert_eq!(read.env, [("MACHINE_MARK".to_owned(), mark)].into());
        assert!(read.program.as_deref().is_some_and(|program| program.starts_with('/')), "{read:?}");
        assert!(read.has_piped_stdin && !read.has_terminal && !read.is_namespace_init, "{read:?}");
        PidFd::open(id).and_then(|process| process.signal(ipc_protocol::Signal::Kill)).expect("ours");
        while spawned.process.try_reap().expect("our child").is_none() {
            std::thread::yield_now();
        }
        assert!(machine_processes(&[]).expect("a look").iter().all(|seen| seen.id != id));
    }
}
