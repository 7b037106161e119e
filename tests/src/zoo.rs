//! A member of the zoo under a session, and the truth about it, read from `/proc` and not from the code under test.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use proxy_manager::{AgentSessionConfig, Containment, OnAgentExit, Pid, ProcessId, Signal};
use registry::PidFd;
use zoo::Member;

pub mod arms;
mod bystander;
pub mod host;

pub use bystander::Bystander;

/// What a kill, or a supervisor's death, may take until nothing is left.
pub const BOUND: Duration = Duration::from_secs(2);

/// Held while a program is copied and while processes are started: a fork in between would inherit the open copy, and the
/// copy could not be executed.
pub static STARTING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Whether the agent stays once all are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agent {
    /// It stays.
    Stays,
    /// It exits, and these are the session's orders for that.
    Exits(OnAgentExit),
}

/// One run of a member, with a folder of its own. Dropping it ends whatever is left, and removes folder and groups.
pub struct Run {
    /// Which member.
    pub member: &'static Member,
    folder: PathBuf,
    /// Its name is unique.
    name: String,
    mark: File,
    /// Device and inode of the copy.
    copy: (u64, u64),
    /// No process of the run is older.
    since: u64,
}

impl Run {
    /// Makes the folder. To be called under [`STARTING`].
    ///
    /// # Errors
    /// The system's.
    pub fn new(member: &'static Member) -> io::Result<Self> {
        let name = format!("zoo-{}", uuid::Uuid::now_v7());
        let folder = std::env::temp_dir().join(&name);
        fs::create_dir(&folder)?;
        // Members that become another user look in too.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
        let copy = folder.join("zoo");
        fs::copy(zoo::PROGRAM, &copy)?;
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
        let mut mark = File::options().read(true).write(true).create_new(true).open(folder.join("mark"))?;
        mark.write_all(&[0; 4096])?;
        mark.set_permissions(fs::Permissions::from_mode(0o666))?;
        let metadata = fs::metadata(&copy)?;
        let since = registry::identify(std::process::id())?.start_time;
        Ok(Self { member, folder, name, mark, copy: (metadata.dev(), metadata.ino()), since })
    }

    /// The member as an agent.
    pub fn command(&self, agent: Agent) -> Vec<String> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let then = if agent == Agent::Stays { "stay" } else { "exit" };
        vec![text(&self.folder.join("zoo")), self.member.name.into(), text(&self.folder), then.into()]
    }

    /// A session of the member.
    pub fn session(&self, layer: Containment, agent: Agent) -> AgentSessionConfig {
        AgentSessionConfig {
            command: self.command(agent),
            containment: Some(layer),
            on_agent_exit: match agent {
                Agent::Stays => OnAgentExit::Kill,
                Agent::Exits(then) => then,
            },
            ..AgentSessionConfig::new("command")
        }
    }

    /// A state directory of the run's own.
    pub fn state(&self) -> PathBuf {
        self.folder.join("state")
    }

    fn word(&self, index: u64) -> u32 {
        let mut bytes = [0; 4];
        // The file is as long as that.
        self.mark.read_exact_at(&mut bytes, index * 4).map_or(0, |()| u32::from_ne_bytes(bytes))
    }

    /// How many processes have arrived where the member wants them.
    pub fn arrived(&self) -> usize {
        self.word(0) as usize
    }

    /// What came of an attack on the proxy: 0 nothing yet, 1 it worked, 2 it was refused.
    pub fn outcome(&self) -> u32 {
        self.word(1)
    }

    /// How many processes its storms have started. What hops faster than `/proc` can be read is alive while this grows.
    pub fn hops(&self) -> u32 {
        self.word(3)
    }

    /// Every process of the run that is alive now, whatever it looks like.
    pub fn alive(&self) -> Vec<ProcessId> {
        let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<Pid>().ok());
        pids.filter_map(|pid| {
            let id = registry::identify(pid).ok()?;
            (id.start_time >= self.since && self.is_ours(pid)).then_some(id)
        })
        .collect()
    }

    fn is_ours(&self, pid: Pid) -> bool {
        let runs_copy = |path: PathBuf| fs::metadata(path).map(|exe| (exe.dev(), exe.ino()) == self.copy);
        let proc = PathBuf::from(format!("/proc/{pid}"));
        match runs_copy(proc.join("exe")) {
            Ok(true) => return true,
            Ok(false) => {}
            // A dead leader has none, and its threads have. One that may not be looked into still shows its command line.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            Err(_) => {
                let threads = fs::read_dir(proc.join("task")).into_iter().flatten().flatten();
                return threads.into_iter().any(|thread| runs_copy(thread.path().join("exe")).unwrap_or(false));
            }
        }
        let read = |file: &str| fs::read(proc.join(file)).unwrap_or_default();
        let has = |bytes: &[u8], what: &str| bytes.windows(what.len()).any(|part| part == what.as_bytes());
        // Runs something else: a file in memory, a deleted one. All map the mark. The state of a manager of the run is mapped by
        // its host, which may be this very process.
        let state = format!("{}/state/", self.name);
        read("maps").split(|byte| *byte == b'\n').any(|line| has(line, &self.name) && !has(line, &state))
            || (fs::metadata(proc.join("exe")).is_err() && has(&read("cmdline"), &self.name))
    }

    /// Checks that nothing is alive: in three looks nothing is seen, and nothing has hopped meanwhile.
    ///
    /// # Errors
    /// Who is alive.
    pub fn nothing_left(&self) -> Result<(), String> {
        let hops = self.hops();
        for _ in 0..3 {
            let alive = self.alive();
            if !alive.is_empty() {
                return Err(format!("{} alive: {}", alive.len(), self.describe(&alive)));
            }
        }
        match self.hops().wrapping_sub(hops) {
            0 => Ok(()),
            more => Err(format!("a storm is alive: it has started {more} processes during a look")),
        }
    }

    /// Waits until `before` are dead, and nothing else is alive either.
    ///
    /// # Errors
    /// Who is alive [`BOUND`] after `since`.
    pub fn gone_soon(&self, before: &[PidFd], since: Instant) -> Result<Duration, String> {
        let deadline = since + BOUND;
        for process in before {
            // Readable once it is dead. What is not in time is named below.
            let left = deadline.saturating_duration_since(Instant::now());
            wait_readable(process, left);
        }
        loop {
            let left = self.nothing_left();
            match left {
                Ok(()) => return Ok(since.elapsed()),
                Err(who) if Instant::now() > deadline => return Err(format!("after {BOUND:?}: {who}")),
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    /// What `processes` are, for a message.
    pub fn describe(&self, processes: &[ProcessId]) -> String {
        let mut text = String::new();
        for id in processes.iter().take(10) {
            let stat = fs::read_to_string(format!("/proc/{}/stat", id.pid)).unwrap_or_default();
            let after = stat.rsplit_once(") ").map_or("gone", |(_, after)| after);
            let short: Vec<_> = after.split(' ').take(4).collect();
            let line = fs::read(format!("/proc/{}/cmdline", id.pid)).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            text += &format!("\n  {} (state, ppid, pgid, sid: {}) {:.60}", id.pid, short.join(" "), line.trim());
        }
        if processes.len() > 10 {
            text += "\n  …";
        }
        text
    }

    /// Ends whatever is left, in a group that freezes too.
    fn sweep(&self) {
        let groups = groups_named(&self.name);
        let deadline = Instant::now() + BOUND;
        while Instant::now() < deadline {
            for group in &groups {
                // Which of the two it has depends on the version.
                let _ = fs::write(group.join("freezer.state"), "THAWED");
                let _ = fs::write(group.join("cgroup.freeze"), "0");
            }
            let alive = self.alive();
            if alive.is_empty() && self.nothing_left().is_ok() {
                break;
            }
            for id in alive {
                if let Ok(process) = PidFd::open(id) {
                    let _ = process.signal(Signal::Kill);
                }
            }
        }
        for group in groups {
            // The dead stay members until they are reaped, by their parent or by init.
            while fs::remove_dir(&group).is_err_and(|error| error.raw_os_error() == Some(16))
                && Instant::now() < deadline
            {
                std::thread::yield_now();
            }
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.sweep();
    }
}

/// Waits until `process` is dead, or the time is over.
pub fn wait_readable(process: &PidFd, at_most: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let timeout = Timespec::try_from(at_most).ok();
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    poll(&mut fds, timeout.as_ref()).is_ok_and(|ready| ready > 0)
}

/// The control groups of a session of any manager, in every hierarchy there is, those below first.
pub fn groups_of(session: &str) -> Vec<PathBuf> {
    groups_named(&format!("s-{session}"))
}

/// The control groups of that name, in every hierarchy there is, those below first.
pub fn groups_named(name: &str) -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut found = Vec::new();
    for line in mounts.lines() {
        let Some((head, tail)) = line.split_once(" - ") else { continue };
        if tail.starts_with("cgroup")
            && let Some(point) = head.split(' ').nth(4)
        {
            collect_groups(Path::new(point), name, false, 0, &mut found);
        }
    }
    found
}

fn collect_groups(folder: &Path, name: &str, inside: bool, depth: u32, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if depth < 8 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let ours = inside || entry.file_name() == name;
            collect_groups(&entry.path(), name, ours, depth + 1, found);
            if ours {
                found.push(entry.path());
            }
        }
    }
}
