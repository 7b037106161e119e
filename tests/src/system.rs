//! Ground truth, read from `/proc` and not from the code under test.

use std::{
    fs,
    io::Write as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use ipc_protocol::{ProcessId, Signal};

/// How long a test waits for what must happen.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// Says what this machine or this user cannot have, past the capture of what tests print.
pub fn not_run(what: impl std::fmt::Display) {
    // Lost only with the terminal itself.
    let _ = writeln!(std::io::stdout(), "NOT RUN: {what}");
}

/// Looks again and again until `found` is satisfied; panics with `what` after [`DEADLINE`].
pub fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = found() {
            return value;
        }
        assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}");
        std::thread::yield_now();
    }
}

fn pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("/proc is readable");
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// State letter of a process, `None` when it is gone.
pub fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Whether a process is there and not dead.
pub fn is_alive(pid: u32) -> bool {
    state(pid).is_some_and(|state| state != 'Z' && state != 'X')
}

/// Keeps a process stopped, whoever continues it, until it is gone or this is dropped.
pub struct Stopper {
    process: ProcessId,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Stopper {
    /// Stops it; returns when it stands still.
    pub fn new(process: ProcessId) -> Self {
        let pidfd = registry::PidFd::open(process).expect("alive");
        let is_over = Arc::new(AtomicBool::new(false));
        let until_over = is_over.clone();
        let thread = std::thread::spawn(move || {
            // Without a pause: the fork server continues it.
            while !until_over.load(Ordering::Relaxed) && pidfd.signal(Signal::Stop).is_ok() {}
        });
        until("it stands still", || (state(process.pid) == Some('T')).then_some(()));
        Self { process, is_over, thread: Some(thread) }
    }
}

impl Drop for Stopper {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
        // It fails only for one that is gone.
        let _ = registry::PidFd::open(self.process).and_then(|process| process.signal(Signal::Cont));
    }
}

/// The living processes that have `word` among the words of their command line.
pub fn with_word(word: &str) -> Vec<u32> {
    let has = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|b| *b == 0).any(|arg| arg == word.as_bytes()) && is_alive(*pid)
    };
    pids().into_iter().filter(has).collect()
}

/// The living processes that run `sleep SECONDS`: not what is about to, such as a shell before its exec.
pub fn sleeping(seconds: &str) -> Vec<u32> {
    let line = format!("sleep\0{seconds}\0");
    let sleeps = |pid: &u32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|bytes| bytes == line.as_bytes());
    pids().into_iter().filter(sleeps).collect()
}

/// The living processes that carry the marker of `session` in their environment.
pub fn with_marker(session: &str) -> Vec<u32> {
    let marker = format!("AGENT_PROXY_SESSION={session}");
    let has = |pid: &u32| {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environ.split(|b| *b == 0).any(|var| var == marker.as_bytes()) && is_alive(*pid)
    };
    pids().into_iter().filter(has).collect()
}

/// The cgroup directories of managers in the process `host`, wherever version 2 is mounted.
pub fn cgroups_of(host: u32) -> Vec<std::path::PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("readable");
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let path = words.next()?;
        (words.next()? == "cgroup2").then(|| path.to_owned())
    });
    let own = fs::read_to_string("/proc/self/cgroup").expect("readable");
    let own = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/").trim_start_matches('/').to_owned();
    let prefix = format!("agent-proxy.{host}.");
    let in_directory = |path: std::path::PathBuf| fs::read_dir(path).into_iter().flatten().flatten();
    mounts
        .flat_map(|mount| {
            // A manager's directory is in its own group or in one above.
            let own = std::path::Path::new(&mount).join(&own);
            own.ancestors().map(std::path::Path::to_owned).collect::<Vec<_>>()
        })
        .flat_map(in_directory)
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
        .map(|entry| entry.path())
        .collect()
}

/// A number of seconds that no other test sleeps for: names a sleeping process by its command line.
pub fn unique_seconds() -> String {
    use std::sync::atomic::AtomicU32;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{}{:03}", 100_000 + std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}
