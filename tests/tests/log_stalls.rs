//! An event log that stands still, from the disk to the agent: who waits is the agent.

use std::{
    fs::{self, File},
    io::Write as _,
};

use agent_proxy_tests::{
    detach::{Host, State},
    sessions,
    system::{not_run, state, until, with_marker},
};
use nix::{
    sys::{
        ptrace,
        stat::Mode,
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, mkfifo},
};
use proxy_manager::AgentSessionConfig;
use serde_json::Value;

/// What the agent says while the log stands still: texts of so many bytes.
const TEXTS: u64 = 6000;
const TEXT_BYTES: u64 = 1000;
/// The most that an agent can write of it.
const MOST_WRITTEN: u64 = 4 * 1024 * 1024;
/// The most that its host grows by.
const MOST_GROWTH_KIB: u64 = 16 * 1024;
/// Looks, one after the other, at which nobody does anything.
const LOOKS: u32 = 100;

/// A thread of another process that stands still until this is dropped.
struct Halted(Pid);

impl Halted {
    /// # Errors
    /// Where that is not allowed.
    fn new(thread: u32) -> nix::Result<Self> {
        let thread = Pid::from_raw(thread.cast_signed());
        ptrace::seize(thread, ptrace::Options::empty())?;
        let halted = Self(thread);
        ptrace::interrupt(thread)?;
        until("it stands still", || {
            match waitpid(thread, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)).expect("it is ours") {
                WaitStatus::StillAlive => None,
                WaitStatus::PtraceEvent(..) => Some(()),
                other => panic!("{other:?}"),
            }
        });
        Ok(halted)
    }
}

impl Drop for Halted {
    fn drop(&mut self) {
        // It fails only for one that is gone.
        let _ = ptrace::detach(self.0, None);
    }
}

/// The thread of `process` that writes the event log, once it has nothing to do.
fn log_writer(process: u32) -> u32 {
    let threads = format!("/proc/{process}/task");
    until("the log's writer waits", || {
        let names = fs::read_dir(&threads).expect("threads").flatten().map(|entry| entry.file_name());
        let mut threads = names.filter_map(|name| name.to_str()?.parse().ok());
        let is_writer = |tid: &u32| {
            fs::read_to_string(format!("/proc/{process}/task/{tid}/comm"))
                .is_ok_and(|name| name.trim_end() == "event-log")
        };
        threads.find(is_writer).filter(|tid| state(*tid) == Some('S'))
    })
}

/// The number behind `name` in a file of `/proc/PID`.
fn number_in(pid: u32, file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).expect("readable");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("there");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Which text an event says.
fn said(line: &Value) -> Option<u64> {
    line["payload"]["text"].as_str()?.trim_end_matches('.').parse().ok()
}

fn offset(line: &Value) -> Option<u64> {
    line["offset"].as_str()?.parse().ok()
}

#[test]
fn an_agent_waits_while_the_log_stands_still_and_nothing_is_lost() {
    let (state_dir, scratch) = (State::new(), tempfile::tempdir().expect("a directory"));
    let [host, child, fake] =
        [env!("CARGO_BIN_EXE_detach-host"), env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent")];
    let mut host = Host::start(host, child, fake, &state_dir.path());
    let config = AgentSessionConfig { verbatim: Some(false), ..sessions::fake() };
    let id = config.session_id.to_string();
    let proxy = host.session(&config);
    // What it is told to do is durable, as everything is; it begins once it may.
    let gate = scratch.path().join("gate");
    mkfifo(&gate, Mode::S_IRUSR | Mode::S_IWUSR).expect("made");
    let mut gate = File::options().read(true).write(true).open(gate).expect("opened");
    let wait = format!("run head -c 1 {}/gate", scratch.path().display());
    let agents = with_marker(&id);
    let [agent] = agents[..] else { panic!("one agent: {agents:?}") };
    host.prompt(&id, &format!("{wait}\nflood {TEXTS} {TEXT_BYTES}"));
    host.line("the tool", |line| (line["type"] == "stream:tool_start").then_some(()));
    let halted = match Halted::new(log_writer(host.pid())) {
        Ok(halted) => halted,
        Err(error) => {
            host.kill();
            return not_run(format_args!("a log that stands still: its thread cannot be halted: {error}"));
        }
    };
    let measure = |host: &Host| (number_in(agent, "io", "wchar:"), number_in(host.pid(), "status", "VmRSS:"));
    let before = measure(&host);
    gate.write_all(b"x").expect("it is there");
    // Its write does not return, and nobody is about to read what it has written.
    let (mut looks, mut last) = (0, 0);
    let after = until("nobody does anything", || {
        let now = measure(&host);
        let is_still = [agent, proxy, host.pid()].iter().all(|pid| state(*pid) == Some('S'));
        looks = if is_still && now.0 == last && now.0 > before.0 { looks + 1 } else { 0 };
        last = now.0;
        (looks == LOOKS).then_some(now)
    });
    let (written, grown) = (after.0 - before.0, after.1.saturating_sub(before.1));
    assert!(written < MOST_WRITTEN, "{written} bytes were taken of the agent");
    assert!(grown < MOST_GROWTH_KIB, "the host has grown by {grown} KiB");
    drop(halted);
    // Each part of it has a deadline.
    for n in (0..TEXTS).step_by(1000) {
        host.line("the texts", |line| said(line).filter(|text| *text >= n));
    }
    host.line("the turn's end", |line| (line["type"] == "session:idle" && line["metadata"]["turn"] == 1).then_some(()));
    let lines = host.kill();
    assert!(lines.iter().all(|line| line["type"] != "session:gap" && line["type"] != "session:degraded"));
    let texts = lines.iter().filter_map(said).count();
    assert!(lines.iter().filter_map(said).eq(0..TEXTS), "{texts} texts");
    let others: Vec<_> = lines.iter().filter(|line| said(line).is_none()).collect();
    assert!(lines.iter().filter_map(offset).zip(1..).all(|(offset, wanted)| offset == wanted), "{others:?}");
    until("no process is left", || with_marker(&id).is_empty().then_some(()));
}
