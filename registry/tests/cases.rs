//! The registry against real processes. It reaps every child of its process, so each case runs in a process of its own:
//! this binary, started again with `--case NAME`.

use std::{
    io::{Read, Write},
    os::fd::{AsFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use ipc_protocol::{
    ExitStatus, KillOptions, ProcessId, ProcessOutcome, ProcessStatus, Proof, ReapedBy, SessionId, Signal, WireError,
};
use libtest_mimic::{Arguments, Failed, Trial};
use registry::{
    PidFd, ProcessRegistry, ReapOutcome, RegistryEvent, SpawnInput, SpawnOutput, SpawnRequest, SpawnedProcess,
};

type Case = fn();

const CASES: &[(&str, Case)] = &[
    ("a_program_gets_only_what_it_is_given", a_program_gets_only_what_it_is_given),
    ("a_program_has_a_session_of_its_own", a_program_has_a_session_of_its_own),
    ("what_cannot_be_started_says_why_and_leaves_nothing", what_cannot_be_started_says_why_and_leaves_nothing),
    ("standard_streams_are_connected", standard_streams_are_connected),
    ("a_listing_sees_daemons_and_other_sessions", a_listing_sees_daemons_and_other_sessions),
    ("an_endless_command_line_is_cut", an_endless_command_line_is_cut),
    ("a_kill_ends_everything_and_proves_it", a_kill_ends_everything_and_proves_it),
    ("a_polite_process_ends_within_its_grace", a_polite_process_ends_within_its_grace),
    ("a_stopped_process_is_ended", a_stopped_process_is_ended),
    ("one_process_can_be_ended_alone", one_process_can_be_ended_alone),
    ("strangers_and_recycled_pids_are_not_signalled", strangers_and_recycled_pids_are_not_signalled),
    ("a_pid_that_was_recycled_is_a_strangers", a_pid_that_was_recycled_is_a_strangers),
    ("events_tell_of_spawns_exits_and_kills", events_tell_of_spawns_exits_and_kills),
    ("finished_entries_are_cleaned_up", finished_entries_are_cleaned_up),
    ("a_forked_child_has_only_its_descriptors", a_forked_child_has_only_its_descriptors),
    ("a_fork_is_refused_with_a_second_thread", a_fork_is_refused_with_a_second_thread),
];

fn main() -> std::process::ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if let [_, flag, name] = args.as_slice()
        && flag == "--case"
    {
        let case = CASES.iter().find(|(known, _)| known == name).expect("a known case").1;
        case();
        let left = registry::own_children().expect("readable");
        assert!(left.is_empty(), "processes left behind: {left:?}");
        return std::process::ExitCode::SUCCESS;
    }
    let trials = CASES.iter().map(|(name, _)| Trial::test(*name, move || run_apart(name))).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

#[expect(clippy::disallowed_methods, reason = "the registry under test shall not start its own test")]
fn run_apart(name: &str) -> Result<(), Failed> {
    let exe = std::env::current_exe()?;
    let output = std::process::Command::new(exe).args(["--case", name]).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{}\n{}", output.status, String::from_utf8_lossy(&output.stderr)).into())
}

// ---- helpers

const DEADLINE: Duration = Duration::from_secs(20);

fn new_registry() -> ProcessRegistry {
    ProcessRegistry::new("case".parse::<SessionId>().expect("a valid id")).expect("a subreaper")
}

fn shell(script: &str) -> SpawnRequest {
    SpawnRequest {
        argv: vec!["sh".into(), "-c".into(), script.into()],
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        stdout: SpawnOutput::Pipe,
        ..SpawnRequest::new("/bin/sh")
    }
}

/// Reads all that comes until the other side closes.
fn read_all(fd: OwnedFd) -> String {
    rustix::io::ioctl_fionbio(&fd, false).expect("blocking");
    let mut text = String::new();
    std::fs::File::from(fd).read_to_string(&mut text).expect("text");
    text
}

/// Waits for the line `ready`.
fn wait_ready(spawned: &mut SpawnedProcess) {
    let fd = spawned.stdout.take().expect("a pipe");
    rustix::io::ioctl_fionbio(&fd, false).expect("blocking");
    let mut file = std::fs::File::from(fd);
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"ready\n") {
        assert_eq!(file.read(&mut byte).expect("read"), 1, "it ended before it was ready");
        text.push(byte[0]);
    }
}

/// Looks again and again until `found` is satisfied.
fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = found() {
            return value;
        }
        assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}");
        std::thread::yield_now();
    }
}

fn reap_all(registry: &mut ProcessRegistry) {
    until("no child left", || (registry.reap(64).expect("reaped") == ReapOutcome::None).then_some(()));
}

fn is_there(id: ProcessId) -> bool {
    registry::identify(id.pid).is_ok_and(|now| now == id)
}

// ---- cases

fn a_program_gets_only_what_it_is_given() {
    let mut registry = new_registry();
    // A descriptor that a careless program leaves open across exec, a blocked and an ignored signal.
    let _careless = rustix::io::dup(rustix::stdio::stderr()).expect("dup");
    let mut mask = nix::sys::signal::SigSet::empty();
    mask.add(nix::sys::signal::Signal::SIGTERM);
    mask.thread_block().expect("blocked");
    // Rust's own runtime ignores SIGPIPE in this very process.
    let script = "echo /proc/self/fd/*; env; grep -E 'Sig(Ign|Blk)' /proc/self/status; pwd";
    let spawned = registry
        .spawn(SpawnRequest { env: vec![("ONLY".into(), "this".into())], cwd: Some("/".into()), ..shell(script) })
        .expect("started");
    let text = read_all(spawned.stdout.expect("a pipe"));
    let mut lines = text.lines();
    // The glob itself opens the directory, as descriptor 3.
    assert_eq!(lines.next(), Some("/proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 /proc/self/fd/3"), "{text}");
    let env: Vec<_> = lines.by_ref().take_while(|line| !line.starts_with("Sig")).collect();
    for var in &env {
        // A shell exports these by itself.
        assert!(["ONLY=this", "PWD=/", "SHLVL=0", "_=/usr/bin/env", "OLDPWD=/"].contains(var), "{var} in {text}");
    }
    assert!(env.contains(&"ONLY=this"), "{text}");
    assert!(text.contains("SigBlk:\t0000000000000000"), "{text}");
    assert!(text.contains("SigIgn:\t0000000000000000"), "{text}");
    assert!(text.ends_with("\n/\n"), "{text}");
    reap_all(&mut registry);
}

fn a_program_has_a_session_of_its_own() {
    let mut registry = new_registry();
    let mut spawned = registry.spawn(shell("echo ready; exec sleep 1000")).expect("started");
    wait_ready(&mut spawned);
    let list = registry.list();
    let pid = spawned.id().pid;
    assert_eq!((list[0].id, list[0].pgid, list[0].sid), (spawned.id(), pid, pid), "{list:?}");
    assert!(registry.kill_all(KillOptions::NOW).is_empty());
}

fn what_cannot_be_started_says_why_and_leaves_nothing() {
    let mut registry = new_registry();
    let path = || vec![("PATH".into(), "/usr/bin:/bin".into())];
    let error =
        registry.spawn(SpawnRequest { env: path(), ..SpawnRequest::new("no-such-program") }).expect_err("not there");
    assert!(
        matches!(&error, WireError::ProgramNotFound { searched, .. } if searched.contains("/usr/bin:/bin")),
        "{error}"
    );
    let error = registry.spawn(SpawnRequest::new("/no/such/program")).expect_err("not there");
    assert!(matches!(error, WireError::ProgramNotFound { .. }), "{error}");
    for env in [Vec::new(), vec![("PATH".into(), "".into())]] {
        let error = registry.spawn(SpawnRequest { env, ..SpawnRequest::new("sh") }).expect_err("no PATH");
        assert!(
            matches!(&error, WireError::ProgramNotFound { searched, .. } if searched == ipc_protocol::EMPTY_PATH),
            "{error}"
        );
    }
    let error = registry.spawn(SpawnRequest { cwd: Some("/no/such/dir".into()), ..shell("true") }).expect_err("no cwd");
    assert!(matches!(&error, WireError::CwdMissing { cwd, .. } if cwd == "/no/such/dir"), "{error}");
    // It is there, which is another thing to say.
    let in_path = SpawnRequest { env: vec![("PATH".into(), "/etc".into())], ..SpawnRequest::new("passwd") };
    for program in [SpawnRequest::new("/etc/passwd"), in_path] {
        let error = registry.spawn(program).expect_err("no program");
        let WireError::Spawn { program, step, reason } = &error else { panic!("{error}") };
        assert_eq!((program.as_str(), step.as_str()), ("/etc/passwd", "exec"));
        assert!(reason.contains("not executable"), "{error}");
    }
    assert_eq!(registry.reap(8).expect("reaped"), ReapOutcome::None);
    assert!(registry.list().is_empty());
}

fn standard_streams_are_connected() {
    let mut registry = new_registry();
    let program = SpawnRequest {
        stdin: SpawnInput::Pipe,
        stderr: SpawnOutput::Pipe,
        ..shell("read line; echo \"out $line\"; echo \"err $line\" >&2")
    };
    let spawned = registry.spawn(program).expect("started");
    let stdin = spawned.stdin.expect("a pipe");
    rustix::io::write(&stdin, b"hello\n").expect("written");
    assert_eq!(read_all(spawned.stdout.expect("a pipe")), "out hello\n");
    assert_eq!(read_all(spawned.stderr.expect("a pipe")), "err hello\n");
    reap_all(&mut registry);
    assert_eq!(registry.exit_of(spawned.process.id()), Some(ExitStatus::Code(0)));
}

/// A plain child, one in a session of its own, and a daemon that was re-parented; each sleeps for a time of its own.
const FAMILY: &str = "sleep 1001 & setsid sleep 1002 & (setsid sleep 1003 &) ; echo ready; exec sleep 1000";

fn family(registry: &mut ProcessRegistry) -> SpawnedProcess {
    let mut spawned = registry.spawn(shell(FAMILY)).expect("started");
    wait_ready(&mut spawned);
    until("all four sleep", || {
        let sleeping = |info: &&ipc_protocol::ProcessInfo| info.command.as_deref() == Some("sleep");
        (registry.list().iter().filter(sleeping).count() == 4).then_some(())
    });
    spawned
}

fn a_listing_sees_daemons_and_other_sessions() {
    let mut registry = new_registry();
    let spawned = family(&mut registry);
    let list = registry.list();
    let of = |seconds: &str| list.iter().find(|info| info.args == [seconds]).expect("listed").clone();
    let (agent, plain, other, daemon) = (of("1000"), of("1001"), of("1002"), of("1003"));
    assert!(agent.tracked && !plain.tracked && !daemon.tracked);
    assert_eq!((plain.ppid, plain.sid), (agent.id.pid, agent.sid));
    assert_eq!(agent.id, spawned.id());
    assert_ne!(other.sid, agent.sid);
    // Re-parented to this subreaper, in a session of its own.
    assert_eq!(daemon.ppid, std::process::id());
    assert_ne!(daemon.sid, agent.sid);
    for info in [agent, plain, other, daemon] {
        assert_eq!(info.status, ProcessStatus::Running);
        assert!(info.rss_bytes.is_some_and(|bytes| bytes > 0), "{info:?}");
        assert!(info.cpu_percent.is_some(), "{info:?}");
        assert!(info.cwd.is_some() && info.started_at.elapsed().expect("in the past") < DEADLINE, "{info:?}");
    }
    // A guard's, which measures nothing.
    let mut guard = ProcessRegistry::guard(registry.session().clone());
    guard.set_roots_below(std::process::id());
    let bare = guard.list_unmeasured();
    assert!(list.iter().all(|info| bare.iter().any(|bare| bare.id == info.id && bare.args == info.args)), "{bare:?}");
    assert!(bare.iter().all(|info| info.cpu_percent.is_none() && info.rss_bytes.is_none()), "{bare:?}");
    assert!(registry.kill_all(KillOptions::NOW).is_empty());
}

fn an_endless_command_line_is_cut() {
    let mut registry = new_registry();
    let mut program = shell("echo ready; read line");
    program.stdin = SpawnInput::Pipe;
    program.argv.push("x".repeat(100_000).into());
    let mut spawned = registry.spawn(program).expect("started");
    wait_ready(&mut spawned);
    let info = registry.list().remove(0);
    let len: usize = info.args.iter().map(String::len).sum();
    assert!(len <= ipc_protocol::ProcessInfo::MAX_COMMAND_LINE + '…'.len_utf8(), "{len}");
    assert!(info.args.last().is_some_and(|last| last.starts_with('x') && last.ends_with('…')));
    assert!(registry.kill_all(KillOptions::NOW).is_empty());
}

fn a_kill_ends_everything_and_proves_it() {
    let mut registry = new_registry();
    family(&mut registry);
    // One that ignores SIGTERM and starts another whenever it is asked to go.
    let mut stubborn =
        registry.spawn(shell("trap 'sleep 1005 &' TERM; echo ready; while :; do sleep 1004; done")).expect("started");
    wait_ready(&mut stubborn);
    let receipt = registry.kill_all(KillOptions::grace(Duration::from_millis(100)));
    assert!(receipt.is_empty(), "{receipt:?}");
    assert_eq!(receipt.proof, Proof::NoChildren);
    let end_of = |words: &str| receipt.processes.iter().find(|e| e.command.as_deref() == Some(words)).expect("listed");
    for sleeper in ["sleep 1000", "sleep 1001", "sleep 1002", "sleep 1003"] {
        assert_eq!(end_of(sleeper).outcome, ProcessOutcome::Ended(ExitStatus::Signal(15)), "{sleeper}: {receipt:?}");
    }
    assert_eq!(end_of("sleep 1003").reaped_by, Some(ReapedBy::Proxy));
    let shell = receipt.processes.iter().find(|entry| entry.id == stubborn.id()).expect("listed");
    assert_eq!(shell.outcome, ProcessOutcome::Ended(ExitStatus::Signal(9)), "{receipt:?}");
    assert!(receipt.processes.iter().all(|entry| !is_there(entry.id)));
    assert!(registry.is_empty());
    assert!(receipt.duration() >= Duration::from_millis(100), "{receipt:?}");
}

fn a_polite_process_ends_within_its_grace() {
    let mut registry = new_registry();
    let mut spawned =
        registry.spawn(shell("trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done")).expect("started");
    wait_ready(&mut spawned);
    let receipt = registry.kill_all(KillOptions::grace(DEADLINE));
    let entry = receipt.processes.iter().find(|entry| entry.id == spawned.id()).expect("listed");
    assert_eq!(entry.outcome, ProcessOutcome::Ended(ExitStatus::Code(7)));
    assert!(receipt.duration() < DEADLINE, "{receipt:?}");
}

fn a_stopped_process_is_ended() {
    let mut registry = new_registry();
    let mut spawned = registry.spawn(shell("echo ready; kill -STOP $$; exit 5")).expect("started");
    wait_ready(&mut spawned);
    let receipt = registry.kill_all(KillOptions::grace(DEADLINE));
    assert!(receipt.is_empty(), "{receipt:?}");
}

fn one_process_can_be_ended_alone() {
    let mut registry = new_registry();
    let agent = family(&mut registry).id();
    let one = registry.list().iter().find(|info| info.args == ["1002"]).expect("listed").id;
    let receipt = registry.kill_process(one, KillOptions::default());
    assert!(receipt.is_empty(), "{receipt:?}");
    assert_eq!(receipt.proof, Proof::ProcessGone);
    assert_eq!(receipt.processes.len(), 1, "{receipt:?}");
    // Its parent does not reap, so it stays as a zombie: dead, and known to be.
    let ended = registry.list().into_iter().find(|info| info.id == one).expect("remembered");
    let status = ended.status;
    assert_eq!(ended.error, None, "it was killed on request");
    assert_eq!(
        (status, receipt.processes[0].outcome),
        (ProcessStatus::Killed, ProcessOutcome::Ended(ExitStatus::Signal(15)))
    );
    assert!(is_there(agent));
    registry.kill(agent, Signal::Kill).expect("signalled");
    assert!(registry.kill_all(KillOptions::NOW).is_empty());
}

fn strangers_and_recycled_pids_are_not_signalled() {
    let mut registry = new_registry();
    let mut spawned = registry.spawn(shell("echo ready; exec sleep 1000")).expect("started");
    wait_ready(&mut spawned);
    // The pid is right and the process another one: what a recycled pid looks like.
    let recycled = ProcessId { start_time: spawned.id().start_time - 1, ..spawned.id() };
    assert_eq!(PidFd::open(recycled).expect_err("another process").kind(), std::io::ErrorKind::NotFound);
    assert_eq!(registry.kill(recycled, Signal::Kill).expect_err("unknown").kind(), std::io::ErrorKind::NotFound);
    let receipt = registry.kill_process(recycled, KillOptions::NOW);
    assert!(receipt.processes.is_empty(), "{receipt:?}");
    let stranger = registry::identify(std::os::unix::process::parent_id()).expect("alive");
    assert_eq!(registry.kill(stranger, Signal::Kill).expect_err("unknown").kind(), std::io::ErrorKind::NotFound);
    assert!(is_there(spawned.id()) && is_there(stranger));
    assert!(registry.kill_all(KillOptions::NOW).is_empty());
}

/// The real thing: the kernel is made to give a dead process's pid to a stranger, while the registry still believes the
/// first one alive.
fn a_pid_that_was_recycled_is_a_strangers() {
    // Outside one the pids of everybody else would be played with.
    if std::env::var_os(IN_A_NAMESPACE).is_none() {
        return again_in_a_pid_namespace("a_pid_that_was_recycled_is_a_strangers");
    }
    let (mut told, tell) = std::io::pipe().expect("a pipe");
    let (go, mut say_go) = std::io::pipe().expect("a pipe");
    // The stranger shall be no child of the one that has the registry.
    let child = registry::fork_child(vec![tell.into(), go.into()], |fds| {
        let [tell, go] = <[OwnedFd; 2]>::try_from(fds).expect("two pipes");
        let (agent, mut registry) =
            (shell("sleep 1000 & echo $!; read word; kill -9 $!; wait; exec sleep 1000"), new_registry());
        let mut spawned = registry.spawn(SpawnRequest { stdin: SpawnInput::Pipe, ..agent }).expect("started");
        let agent = spawned.id();
        let old = until("the child", || {
            registry.scan();
            registry.living().find(|id| *id != agent)
        });
        let stdin = spawned.stdin.take().expect("piped");
        rustix::io::write(&stdin, b"go\n").expect("written");
        until("the child's end", || (!is_there(old)).then_some(()));
        rustix::io::write(&tell, format!("{} {}", old.pid, old.start_time).as_bytes()).expect("written");
        drop(tell);
        assert_eq!(rustix::io::read(&go, &mut [0; 1]).expect("read"), 1);
        let stranger = registry::identify(old.pid).expect("the stranger");
        assert_eq!(registry.find_living(old.pid), Some(old), "the registry has not looked since");
        assert!(PidFd::open(old).is_err());
        assert!(registry.kill(old, Signal::Kill).is_err());
        assert!(registry.kill_process(old, KillOptions::NOW).survivors.is_empty());
        let receipt = registry.kill_all(KillOptions::NOW);
        assert!(!receipt.processes.iter().any(|entry| entry.id == stranger), "{receipt:?}");
        u8::from(!receipt.is_empty())
    })
    .expect("forked");
    let mut old = String::new();
    told.read_to_string(&mut old).expect("read");
    let (pid, start_time) = old.split_once(' ').expect("two numbers");
    let old = ProcessId { pid: pid.parse().expect("a pid"), start_time: start_time.parse().expect("a time") };
    let mut stranger = until("the pid comes again", || stranger_with(old));
    say_go.write_all(b"!").expect("written");
    let child = PidFd::of_child(child).expect("our child");
    let exit = until("the registry's end", || child.try_reap().expect("our child"));
    assert_eq!(exit, ExitStatus::Code(0));
    assert!(stranger.try_wait().expect("our child").is_none(), "the stranger lives");
    stranger.kill().expect("ours");
    stranger.wait().expect("ours");
}

/// Set for a case that runs in a PID namespace of its own.
const IN_A_NAMESPACE: &str = "CASE_IN_A_NAMESPACE";

#[expect(clippy::disallowed_methods, reason = "the registry under test shall not start its own test")]
fn again_in_a_pid_namespace(case: &str) {
    let mut unshare = std::process::Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    let exe = std::env::current_exe().expect("this executable");
    let output = unshare.arg(exe).args(["--case", case]).env(IN_A_NAMESPACE, "1").output().expect("unshare");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if errors.starts_with("unshare: ") {
        let mut out = std::io::stdout();
        writeln!(out, "NOT RUN: {case}: pids cannot be chosen here, nor a PID namespace had: {errors}")
            .expect("written");
        return;
    }
    assert!(output.status.success(), "{}\n{errors}", output.status);
}

/// A process that is none of the registry's, with the pid of `old`, started in another tick; `None` if another got it.
#[expect(clippy::disallowed_methods, reason = "a stranger is what the registry did not start")]
fn stranger_with(old: ProcessId) -> Option<std::process::Child> {
    std::fs::write("/proc/sys/kernel/ns_last_pid", (old.pid - 1).to_string()).expect("writable");
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("started");
    let id = registry::identify(child.id()).expect("alive");
    if id.pid == old.pid && id.start_time != old.start_time {
        return Some(child);
    }
    child.kill().expect("ours");
    child.wait().expect("ours");
    None
}

fn events_tell_of_spawns_exits_and_kills() {
    let mut registry = new_registry();
    let ends = registry.spawn(shell("exit 3")).expect("started").id();
    reap_all(&mut registry);
    let mut killed = registry.spawn(shell("echo ready; exec sleep 1000")).expect("started");
    wait_ready(&mut killed);
    registry.kill(killed.id(), Signal::Kill).expect("signalled");
    reap_all(&mut registry);
    let events: Vec<_> = std::iter::from_fn(|| registry.next_event()).collect();
    let [
        RegistryEvent::Spawned(first),
        RegistryEvent::Exited { process, exit, .. },
        RegistryEvent::Spawned(second),
        last,
    ] = events.as_slice()
    else {
        panic!("{events:?}");
    };
    assert_eq!((first.id, *process, *exit), (ends, ends, Some(ExitStatus::Code(3))));
    assert_eq!(second.id, killed.id());
    assert_eq!(*last, RegistryEvent::Killed { process: killed.id(), command: Some("sh".into()), signal: 9 });
}

fn finished_entries_are_cleaned_up() {
    let mut registry = new_registry();
    let ended = registry.spawn(shell("exit 1")).expect("started").id();
    reap_all(&mut registry);
    let mut lives = registry.spawn(shell("echo ready; exec sleep 1000")).expect("started");
    wait_ready(&mut lives);
    let list = registry.list();
    let finished = list.iter().find(|info| info.id == ended).expect("remembered");
    assert_eq!((finished.status, finished.exit), (ProcessStatus::Error, Some(ExitStatus::Code(1))));
    assert_eq!(finished.error.as_deref(), Some("exit code 1"));
    registry.explain_error(ended, "no such table");
    let error = |registry: &mut ProcessRegistry| {
        registry.list().into_iter().find(|info| info.id == ended).and_then(|info| info.error)
    };
    assert_eq!(error(&mut registry).as_deref(), Some("exit code 1: no such table"));
    registry.explain_error(lives.id(), "a living one has none");
    assert_eq!(registry.list().into_iter().find(|info| info.id == lives.id()).and_then(|info| info.error), None);
    assert_eq!(registry.cleanup(DEADLINE), 0);
    assert_eq!(registry.cleanup(Duration::ZERO), 1);
    assert_eq!(registry.list().iter().map(|info| info.id).collect::<Vec<_>>(), [lives.id()]);
    assert!(registry.kill_all(KillOptions::NOW).is_empty());
}

fn a_forked_child_has_only_its_descriptors() {
    let (read, write) = rustix::pipe::pipe().expect("a pipe");
    let keep = vec![write, rustix::io::dup(rustix::stdio::stderr()).expect("dup")];
    let pid = registry::fork_child(keep, |fds| {
        let mut open: Vec<_> =
            std::fs::read_dir("/proc/self/fd").expect("readable").flatten().map(|e| e.file_name()).collect();
        open.sort();
        let text = format!("{open:?}");
        rustix::io::write(&fds[0], text.as_bytes()).expect("written");
        7
    })
    .expect("forked");
    // 5 is the `/proc` that it reads, 6 the directory being read.
    assert_eq!(read_all(read), r#"["0", "1", "2", "3", "4", "5", "6"]"#);
    let child = PidFd::of_child(pid).expect("unreaped");
    assert_eq!(until("it exits", || child.try_reap().expect("a child")), ExitStatus::Code(7));

    let pid = registry::fork_child(Vec::new(), |_| std::panic::resume_unwind(Box::new(()))).expect("forked");
    let child = PidFd::of_child(pid).expect("unreaped");
    assert_eq!(until("it exits", || child.try_reap().expect("a child")), ExitStatus::Code(101));
    assert!(child.as_fd().try_clone_to_owned().is_ok());
}

fn a_fork_is_refused_with_a_second_thread() {
    let (send, receive) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || receive.recv());
    let result = catch_unwind(AssertUnwindSafe(|| registry::fork_child(Vec::new(), |_| 0)));
    drop(send);
    let _ = thread.join();
    assert_eq!(result.expect("no panic").expect_err("refused").kind(), std::io::ErrorKind::Unsupported);
}
