//! Programs in cgroups, namespaces, landlock domains and resource limits, against the kernel. As in `cases.rs`, each case
//! runs in a process of its own. What this machine or this user cannot have is printed as `NOT RUN`.

#![expect(clippy::print_stdout, reason = "what is not run is said there")]

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    os::fd::OwnedFd,
    path::PathBuf,
    time::{Duration, Instant},
};

use ipc_protocol::{ExitStatus, KillOptions, ProcessId, SessionId, Signal, WireError};
use libtest_mimic::{Arguments, Failed, Trial};
use registry::{
    LandlockScope, MountView, PidFd, ProcessRegistry, ReapOutcome, SessionNamespace, SpawnInput, SpawnOutput,
    SpawnRequest, SpawnedProcess,
};
use rustix::process::Resource;

type Case = fn();

const CASES: &[(&str, Case)] = &[
    ("a_program_starts_in_its_cgroup", a_program_starts_in_its_cgroup),
    ("what_cannot_be_started_in_a_cgroup_leaves_nothing", what_cannot_be_started_in_a_cgroup_leaves_nothing),
    ("limits_hold", limits_hold),
    ("a_landlock_domain_holds_signals_back", a_landlock_domain_holds_signals_back),
    ("a_namespace_is_closed", a_namespace_is_closed),
    ("everything_ends_with_the_init", everything_ends_with_the_init),
    ("a_namespace_ends_with_who_made_it", a_namespace_ends_with_who_made_it),
    ("a_program_in_a_namespace_is_like_any_other", a_program_in_a_namespace_is_like_any_other),
    ("what_cannot_be_started_in_a_namespace_leaves_only_the_init", what_cannot_be_started_in_a_namespace),
    ("all_enclosures_go_together", all_enclosures_go_together),
    ("probes_leave_nothing_in_a_process_with_threads", probes_leave_nothing_in_a_process_with_threads),
    ("not_to_be_dumpable_hides_a_process", not_to_be_dumpable_hides_a_process),
    ("a_view_shows_the_own_group_alone", a_view_shows_the_own_group_alone),
    ("a_private_directory_is_of_one_namespace", a_private_directory_is_of_one_namespace),
    ("what_may_not_be_signalled_is_named", what_may_not_be_signalled_is_named),
    ("what_is_older_than_a_session_is_moved_out", what_is_older_than_a_session_is_moved_out),
];

fn main() -> std::process::ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if let [_, flag, name] = args.as_slice()
        && flag == "--case"
    {
        let case = CASES.iter().find(|(known, _)| known == name).expect("a known case").1;
        // What a failed case leaves is ended with it.
        let failed = std::panic::catch_unwind(case).is_err();
        if failed {
            assert!(new_registry().kill_all(KillOptions::NOW).is_empty());
            return std::process::ExitCode::FAILURE;
        }
        let left = registry::own_children().expect("readable");
        assert!(left.is_empty(), "processes left behind: {left:?}");
        return std::process::ExitCode::SUCCESS;
    }
    let trials = CASES.iter().map(|(name, _)| Trial::test(*name, move || run_apart(name))).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

#[expect(clippy::disallowed_methods, reason = "the code under test shall not start its own test")]
fn run_apart(name: &str) -> Result<(), Failed> {
    let exe = std::env::current_exe()?;
    let output = std::process::Command::new(exe).args(["--case", name]).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    for line in said.lines().filter(|line| line.starts_with("NOT RUN")) {
        println!("{line} ({name})");
    }
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

/// The lines a program writes.
fn lines(spawned: &mut SpawnedProcess) -> impl FnMut() -> String + use<> {
    let fd = spawned.stdout.take().expect("a pipe");
    rustix::io::ioctl_fionbio(&fd, false).expect("blocking");
    let mut reader = BufReader::new(File::from(fd));
    move || {
        let mut line = String::new();
        reader.read_line(&mut line).expect("text");
        line.trim_end().to_owned()
    }
}

/// All that a program writes.
fn output(mut spawned: SpawnedProcess) -> String {
    let fd = spawned.stdout.take().expect("a pipe");
    rustix::io::ioctl_fionbio(&fd, false).expect("blocking");
    let mut text = String::new();
    File::from(fd).read_to_string(&mut text).expect("text");
    text
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

/// The effective capabilities of this process, as bits.
fn capabilities() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("readable");
    let bits = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).expect("listed");
    u64::from_str_radix(bits, 16).expect("a number")
}

/// A cgroup of this process's, removed with this.
struct Group(PathBuf);

impl Group {
    /// Below this process's own group, where that can be written to.
    fn make() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("readable");
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?.split(' ').nth(4)?.to_owned();
        let own = fs::read_to_string("/proc/self/cgroup").expect("readable");
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
        let path = PathBuf::from(mount).join(own).join(format!("agent-proxy-test.{}", std::process::id()));
        match fs::create_dir(&path) {
            Ok(()) => Some(Self(path)),
            Err(error) => {
                println!("NOT RUN: no cgroup can be made at {}: {error}", path.display());
                None
            }
        }
    }

    fn fd(&self) -> OwnedFd {
        File::open(&self.0).expect("it is there").into()
    }

    fn members(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.0.join("cgroup.procs")).expect("readable");
        text.lines().map(|pid| pid.parse().expect("a pid")).collect()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.0) {
            println!("the cgroup is not empty: {error}, {:?}", self.members());
            std::process::abort();
        }
    }
}

fn landlock() -> Option<LandlockScope> {
    if let Err(why) = registry::landlock_scope_is_available() {
        println!("NOT RUN: {why}");
        return None;
    }
    Some(LandlockScope::create().expect("it is available"))
}

fn namespace(group: Option<&Group>) -> Option<SessionNamespace> {
    if let Err(why) = registry::strict_is_available() {
        println!("NOT RUN: {why}");
        return None;
    }
    let group = group.map(Group::fd);
    Some(SessionNamespace::create(group.as_ref().map(std::os::fd::AsFd::as_fd)).expect("it is available"))
}

// ---- cases

fn a_program_starts_in_its_cgroup() {
    let Some(group) = Group::make() else { return };
    let mut registry = new_registry();
    let program = SpawnRequest {
        group: Some(group.fd()),
        ..shell("sleep 1000 & setsid sleep 1001 & echo ready; exec sleep 1002")
    };
    let mut spawned = registry.spawn(program).expect("started");
    assert!(group.members().contains(&spawned.id().pid));
    assert_eq!(lines(&mut spawned)(), "ready");
    assert_eq!(group.members().len(), 3);
    assert!(!group.members().contains(&std::process::id()));
    assert!(registry.kill_all(KillOptions::NOW).is_empty());
}

fn what_cannot_be_started_in_a_cgroup_leaves_nothing() {
    let Some(group) = Group::make() else { return };
    let mut registry = new_registry();
    let start = |registry: &mut ProcessRegistry, program: SpawnRequest| {
        registry.spawn(SpawnRequest { group: Some(group.fd()), ..program }).expect_err("it cannot be started")
    };
    let error = start(&mut registry, SpawnRequest::new("/no/such/program"));
    assert!(matches!(error, WireError::ProgramNotFound { .. }), "{error}");
    let error = start(&mut registry, SpawnRequest { cwd: Some("/no/such/dir".into()), ..shell("true") });
    assert!(matches!(error, WireError::CwdMissing { .. }), "{error}");
    let no_group = File::open("/").expect("a directory").into();
    let error = registry.spawn(SpawnRequest { group: Some(no_group), ..shell("true") }).expect_err("no cgroup");
    assert!(matches!(error, WireError::Spawn { .. }), "{error}");
    assert_eq!(registry.reap(8).expect("reaped"), ReapOutcome::None);
    assert!(group.members().is_empty());
}

fn limits_hold() {
    let mut registry = new_registry();
    let program = SpawnRequest {
        rlimits: vec![(Resource::Nofile, 17), (Resource::Fsize, 4096), (Resource::Core, 0)],
        ..shell("ulimit -n; ulimit -Hn; ulimit -f; ulimit -Hf; ulimit -c")
    };
    let text = output(registry.spawn(program).expect("started"));
    // Files are counted in blocks of 512 bytes.
    assert_eq!(text.split_whitespace().collect::<Vec<_>>(), ["17", "17", "8", "8", "0"]);
    // What is more than this process may give is what it may give.
    let most = rustix::process::getrlimit(Resource::Nofile).maximum;
    let program = SpawnRequest { rlimits: vec![(Resource::Nofile, u64::MAX)], ..shell("ulimit -n") };
    let text = output(registry.spawn(program).expect("started"));
    assert_eq!(text.trim(), most.map_or("unlimited".into(), |most| most.to_string()));
    reap_all(&mut registry);
}

fn a_landlock_domain_holds_signals_back() {
    let Some(landlock) = landlock() else { return };
    let mut registry = new_registry();
    let outside = registry.spawn(shell("exec sleep 1000")).expect("started");
    let script = format!(
        "for signal in 0 STOP TERM KILL; do kill -$signal $PPID {} 2>/dev/null && echo $signal; done; \
         (: < /proc/{}/mem) 2>/dev/null && echo memory; readlink /proc/{}/fd/1 && echo descriptor; \
         sleep 1001 & kill -0 $! && kill $! && echo own; setsid sh -c 'kill -0 '$$ && echo session; \
         grep NoNewPrivs /proc/self/status; echo done; exec sleep 1002",
        outside.id().pid,
        outside.id().pid,
        outside.id().pid
    );
    let mut spawned = registry.spawn(SpawnRequest { landlock: Some(landlock), ..shell(&script) }).expect("started");
    let mut line = lines(&mut spawned);
    assert_eq!(line(), "own");
    assert_eq!(line(), "session");
    // Who has CAP_SYS_ADMIN keeps setuid programs; others can only have the domain without.
    let is_admin = capabilities() & (1 << 21) != 0;
    assert_eq!(line(), format!("NoNewPrivs:\t{}", u8::from(!is_admin)));
    assert_eq!(line(), "done");
    assert!(is_there(outside.id()));
    // From outside it is signalled as ever.
    registry.kill(spawned.id(), Signal::Kill).expect("signalled");
    registry.kill(outside.id(), Signal::Kill).expect("signalled");
    reap_all(&mut registry);
    assert_eq!(registry.exit_of(spawned.id()), Some(ExitStatus::Signal(9)));
}

fn a_namespace_is_closed() {
    let Some(namespace) = namespace(None) else { return };
    let mut registry = new_registry();
    let init = namespace.init().id();
    let script = "echo $$ $PPID; readlink /proc/self/ns/pid; ls -d /proc/[0-9]*/exe | wc -l; kill -KILL 1; kill -STOP 1; \
                  cat /proc/1/comm; id -u; grep CapEff /proc/self/status; pwd; echo /proc/self/fd/*; exec sleep 1000";
    let mut spawned = registry
        .spawn(SpawnRequest { namespace: Some(namespace), cwd: Some("/usr".into()), ..shell(script) })
        .expect("started");
    let mut line = lines(&mut spawned);
    // Its parent is not in there.
    let words = line();
    let (inside, parent) = words.split_once(' ').expect("two pids");
    assert_eq!(parent, "0");
    assert_ne!(inside, spawned.id().pid.to_string());
    let outside = fs::read_link("/proc/self/ns/pid").expect("readable");
    assert_ne!(line(), outside.to_string_lossy());
    // The init, the shell, and ls; perhaps wc.
    assert!(["3", "4"].contains(&line().as_str()));
    assert_eq!(line(), "ap init");
    assert_eq!(line(), nix::unistd::geteuid().as_raw().to_string());
    // What it takes to enter a user namespace is gone with the exec.
    assert_eq!(line(), format!("CapEff:\t{:016x}", capabilities()));
    assert_eq!(line(), "/usr");
    assert_eq!(line(), "/proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 /proc/self/fd/3");
    let status = fs::read_to_string(format!("/proc/{}/status", spawned.id().pid)).expect("alive");
    assert!(status.contains(&format!("NSpid:\t{}\t{inside}\n", spawned.id().pid)), "{status}");
    assert!(status.contains(&format!("PPid:\t{}\n", std::process::id())), "{status}");
    assert!(is_there(init));
    assert!(registry.kill_all(KillOptions::NOW).is_empty());
    assert!(!is_there(init));
}

fn everything_ends_with_the_init() {
    let Some(namespace) = namespace(None) else { return };
    let mut registry = new_registry();
    let init = namespace.init().try_clone().expect("a copy");
    let script = "sleep 1000 & setsid sleep 1001 & (setsid sleep 1002 &) ; trap '' TERM; echo ready; while :; do sleep 1003; done";
    let mut spawned = registry.spawn(SpawnRequest { namespace: Some(namespace), ..shell(script) }).expect("started");
    assert_eq!(lines(&mut spawned)(), "ready");
    let inside = until("the family is there", || {
        let list = registry.list();
        (list.iter().filter(|info| info.command.as_deref() == Some("sleep")).count() == 4).then_some(list)
    });
    // The daemon's parent is the init, and all pids are those out here.
    let daemon = inside.iter().find(|info| info.args == ["1002"]).expect("listed");
    assert_eq!(daemon.ppid, init.id().pid);
    init.signal(Signal::Kill).expect("signalled");
    reap_all(&mut registry);
    assert!(inside.iter().all(|info| !is_there(info.id)), "{inside:?}");
    assert_eq!(registry.exit_of(spawned.id()), Some(ExitStatus::Signal(9)));
}

fn a_namespace_ends_with_who_made_it() {
    if namespace(None).map(|namespace| namespace.init().signal(Signal::Kill)).is_none() {
        return;
    }
    let mut registry = new_registry();
    reap_all(&mut registry);
    let (read, write) = rustix::pipe::pipe().expect("a pipe");
    let pid = registry::fork_child(vec![write], |fds| {
        let namespace = SessionNamespace::create(None).expect("it is available");
        let init = namespace.init().id().pid;
        let program = SpawnRequest { namespace: Some(namespace), ..shell("setsid sleep 1000 & exec sleep 1001") };
        let mut spawned = new_registry().spawn(program).expect("started");
        let mut file = File::from(fds.into_iter().next().expect("the pipe"));
        writeln!(file, "{init} {}", spawned.id().pid).expect("written");
        spawned.process.try_reap().expect("a child");
        lines(&mut spawned)();
        0
    })
    .expect("forked");
    let mut line = String::new();
    BufReader::new(File::from(read)).read_line(&mut line).expect("text");
    let inside: Vec<_> =
        line.split_whitespace().map(|pid| registry::identify(pid.parse().expect("a pid")).expect("alive")).collect();
    PidFd::of_child(pid).expect("unreaped").signal(Signal::Kill).expect("signalled");
    // What is orphaned comes here, dead.
    reap_all(&mut registry);
    assert!(inside.iter().all(|id| !is_there(*id)), "{inside:?}");
}

fn a_program_in_a_namespace_is_like_any_other() {
    let Some(namespace) = namespace(None) else { return };
    let mut registry = new_registry();
    let init = namespace.init().try_clone().expect("a copy");
    let program = SpawnRequest {
        namespace: Some(namespace),
        stdin: SpawnInput::Pipe,
        env: vec![("ONLY".into(), "this".into())],
        ..shell("read line; echo \"$line $ONLY\"; pwd; exit 7")
    };
    let spawned = registry.spawn(program).expect("started");
    let id = spawned.id();
    let list = registry.list();
    let info = list.iter().find(|info| info.id == id).expect("listed");
    assert_eq!((info.pgid, info.sid, info.ppid), (id.pid, id.pid, std::process::id()), "{list:?}");
    let here = std::env::current_dir().expect("there is one");
    assert_eq!(info.cwd.as_deref(), here.to_str());
    rustix::io::write(spawned.stdin.as_ref().expect("a pipe"), b"hello\n").expect("written");
    assert_eq!(output(spawned), format!("hello this\n{}\n", here.display()));
    until("it exits", || {
        registry.reap(8).expect("reaped");
        registry.exit_of(id)
    });
    assert_eq!(registry.exit_of(id), Some(ExitStatus::Code(7)));
    init.signal(Signal::Kill).expect("signalled");
    reap_all(&mut registry);
}

fn what_cannot_be_started_in_a_namespace() {
    let Some(namespace) = namespace(None) else { return };
    let mut registry = new_registry();
    let init = namespace.init().try_clone().expect("a copy");
    let error = registry
        .spawn(SpawnRequest { namespace: Some(namespace), ..SpawnRequest::new("/no/such/program") })
        .expect_err("there is no such program");
    assert!(matches!(error, WireError::ProgramNotFound { .. }), "{error}");
    assert_eq!(registry::own_children().expect("readable"), [init.id().pid]);
    init.signal(Signal::Kill).expect("signalled");
    reap_all(&mut registry);
}

fn all_enclosures_go_together() {
    let group = Group::make();
    let Some(namespace) = namespace(group.as_ref()) else { return };
    let landlock = landlock();
    let with_landlock = landlock.is_some();
    let mut registry = new_registry();
    let init = namespace.init().id();
    let program = SpawnRequest {
        group: group.as_ref().map(Group::fd),
        namespace: Some(namespace),
        rlimits: vec![(Resource::Core, 0)],
        landlock,
        ..shell("setsid sleep 1000 & kill -0 1 2>/dev/null && echo init; kill -0 $! && echo ready; exec sleep 1001")
    };
    let mut spawned = registry.spawn(program).expect("started");
    let mut line = lines(&mut spawned);
    let said = line();
    if said == "init" {
        assert!(!with_landlock);
        assert_eq!(line(), "ready");
    } else {
        assert_eq!(said, "ready");
    }
    if let Some(group) = &group {
        let members = group.members();
        assert_eq!(members.len(), 3, "{members:?}");
        assert!(members.contains(&init.pid) && members.contains(&spawned.id().pid), "{members:?}");
    }
    assert!(registry.kill_all(KillOptions::NOW).is_empty());
}

fn probes_leave_nothing_in_a_process_with_threads() {
    let (send, receive) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || receive.recv());
    let open = || fs::read_dir("/proc/self/fd").expect("readable").count();
    // The `/proc` that this process reads is opened once.
    registry::own_children().expect("readable");
    let before = open();
    for _ in 0..20 {
        let strict = registry::strict_is_available();
        let landlock = registry::landlock_scope_is_available();
        assert!(registry::own_children().expect("readable").is_empty(), "{strict:?} {landlock:?}");
    }
    assert_eq!(open(), before);
    for result in [registry::strict_is_available(), registry::landlock_scope_is_available()] {
        if let Err(why) = result {
            println!("NOT RUN: {why}");
        }
    }
    drop(send);
    let _ = thread.join();
}

fn not_to_be_dumpable_hides_a_process() {
    let mut registry = new_registry();
    if nix::unistd::geteuid().is_root() {
        println!("NOT RUN: root sees processes that are not dumpable");
        return;
    }
    registry::set_dumpable(false).expect("set");
    let script = "cat /proc/$PPID/environ >/dev/null 2>&1 || echo hidden; cat /proc/$$/environ >/dev/null && echo own";
    let text = output(registry.spawn(shell(script)).expect("started"));
    assert_eq!(text, "hidden\nown\n");
    reap_all(&mut registry);
}

/// Whatever is mounted there again, root sees no group of version 2 but its own.
fn a_view_shows_the_own_group_alone() {
    /// CAP_SYS_ADMIN.
    const ADMIN: u64 = 1 << 21;
    let Some(group) = Group::make() else { return };
    if capabilities() & ADMIN == 0 {
        return println!("NOT RUN: it takes the right to mount");
    }
    let mounts = || fs::read_to_string("/proc/self/mountinfo").expect("readable");
    let before = mounts();
    let mut registry = new_registry();
    let view = MountView::plan(Some(&registry::SessionCgroup::open(&group.0).expect("it is there"))).expect("planned");
    let script = "
        cat /proc/self/cgroup | grep ^0::
        at=$(mktemp -d); mount -t cgroup2 none $at || exit; ls $at/cgroup.type >/dev/null && echo not the root
        mkdir $at/below && echo 0 >$at/below/cgroup.procs && grep ^0:: /proc/self/cgroup
        umount -l $at; rmdir $at
        [ -e $1 ] && echo the hierarchy; mount | grep -c ' type cgroup2 '; read end";
    let argv = ["sh", "-c", script, "sh"].map(Into::into).into_iter().chain([group.0.clone().into()]).collect();
    let program =
        SpawnRequest { group: Some(group.fd()), view: Some(view), argv, stdin: SpawnInput::Pipe, ..shell("") };
    let mut spawned = registry.spawn(program).expect("started");
    assert!(spawned.view_failure.is_none(), "{:?}", spawned.view_failure);
    let mut line = lines(&mut spawned);
    for expected in ["0::/", "not the root", "0::/below", "1"] {
        assert_eq!(line(), expected);
    }
    assert_eq!(mounts(), before);
    assert!(registry.kill_all(KillOptions::NOW).is_empty());
    fs::remove_dir(group.0.join("below")).expect("it was made, and is empty");
}

fn a_private_directory_is_of_one_namespace() {
    if let Err(why) = registry::strict_is_available() {
        return println!("NOT RUN: {why}");
    }
    let directory = std::env::temp_dir().join(format!("agent-proxy-private-{}", std::process::id()));
    fs::create_dir(&directory).expect("made");
    fs::write(directory.join("outside"), "").expect("written");
    let path = directory.display().to_string();
    let mut registry = new_registry();
    let mut start = |name: &str| {
        let view = MountView::plan(None).expect("planned").with_private(std::slice::from_ref(&path));
        let namespace = SessionNamespace::create_with_view(None, view).expect("it is available");
        assert!(namespace.view_failure().is_none(), "{:?}", namespace.view_failure());
        let script = format!("ls {path} | wc -l; touch {path}/{name}; ls {path}; read end");
        let program = SpawnRequest { namespace: Some(namespace), stdin: SpawnInput::Pipe, ..shell(&script) };
        let mut spawned = registry.spawn(program).expect("started");
        let mut line = lines(&mut spawned);
        assert_eq!((line(), line()), ("0".to_owned(), name.to_owned()));
        spawned
    };
    // The init of each is a child of this process: one after the other is held.
    let _first = start("first");
    let _second = start("second");
    let outside: Vec<_> =
        fs::read_dir(&directory).expect("readable").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(outside, ["outside"]);
    let inits = registry::own_children()
        .expect("readable")
        .into_iter()
        .filter(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "ap init"));
    for init in inits {
        PidFd::of_child(init).and_then(|init| init.signal(Signal::Kill)).expect("signalled");
    }
    reap_all(&mut registry);
    fs::remove_dir_all(&directory).expect("removed");
}

/// Root can move anybody into a session's group; neither the walk over it nor a kill of it takes them for the session's.
fn what_is_older_than_a_session_is_moved_out() {
    let Some(group) = Group::make() else { return };
    let mut registry = new_registry();
    let own = registry::identify(std::process::id()).expect("alive");
    // Not below this process, and started before it.
    let bystander = nix::unistd::getppid().as_raw().unsigned_abs();
    let groups = |pid: u32| fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("readable");
    let before = [bystander, own.pid].map(groups);
    let held = registry::SessionCgroup::open(&group.0).expect("it is there");
    registry.set_hold(registry::SessionHold {
        group: Some(held),
        since: own.start_time,
        ..registry::SessionHold::default()
    });
    let spawned = registry
        .spawn(SpawnRequest { group: Some(group.fd()), ..shell("sleep 1000 & exec sleep 1001") })
        .expect("started");
    for pid in [bystander, own.pid] {
        fs::write(group.0.join("cgroup.procs"), pid.to_string()).expect("moved");
    }
    let receipt = registry.kill_all(KillOptions::NOW);
    assert!(receipt.is_empty() && receipt.processes.iter().any(|entry| entry.id == spawned.id()), "{receipt:?}");
    assert!(receipt.processes.iter().all(|entry| entry.id.pid != bystander), "{receipt:?}");
    assert_eq!([bystander, own.pid].map(groups), before);
    // The registry has removed the group: it is made again for who removes it here.
    fs::create_dir(&group.0).expect("made");
}

/// A child that a setuid program has made root's outlives the kill of an ordinary user, which says so before long.
fn what_may_not_be_signalled_is_named() {
    use std::os::unix::fs::PermissionsExt;
    const NOBODY: u32 = 65534;
    /// The call promises no more than 3 s beyond its grace.
    const LONGEST: Duration = Duration::from_secs(3);
    if !nix::unistd::geteuid().is_root() {
        return println!("NOT RUN: it takes root to make a setuid program");
    }
    let program = PathBuf::from(format!("/var/tmp/agent-proxy-setpriv-{}", std::process::id()));
    fs::copy("/usr/bin/setpriv", &program).expect("copied");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("permitted");
    let become_user = |user: u32| nix::unistd::seteuid(user.into()).expect("changed");
    nix::unistd::setresuid(NOBODY.into(), NOBODY.into(), 0.into()).expect("changed");
    let mut registry = new_registry();
    let script = format!("{} --reuid=0 --clear-groups sleep 1000 & exec sleep 1001", program.display());
    let agent = registry.spawn(shell(&script)).expect("started").id();
    let child = until("root's child", || {
        let mut list = registry.list().into_iter();
        list.find(|info| info.id != agent && info.command.as_deref() == Some("sleep")).map(|info| info.id)
    });
    let began = Instant::now();
    let receipt = registry.kill_all(KillOptions::NOW);
    let took = began.elapsed();
    become_user(0);
    nix::unistd::setresuid(0.into(), 0.into(), 0.into()).expect("changed");
    PidFd::open(child).and_then(|child| child.signal(Signal::Kill)).expect("signalled");
    reap_all(&mut registry);
    fs::remove_file(&program).expect("removed");
    assert_eq!(receipt.survivors, [child], "{receipt:?}");
    assert!(took < LONGEST, "{took:?}");
}
