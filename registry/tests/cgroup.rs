//! Cgroups against the real ones of this machine. Where there are none to be had, that is printed as NOT RUN, after a look
//! at the error that says so. What changes a whole process (its user, its mounts) runs in one of its own: this binary,
//! started again with `--case NAME`.

#![expect(clippy::print_stdout, reason = "what this machine does not offer is told of")]

use std::{
    fs,
    io::{self, Read},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use ipc_protocol::{LimitAction, LimitKind, ProcessId, SessionId};
use libtest_mimic::{Arguments, Failed, Trial};
use registry::{
    CgroupControllers, ManagerCgroup, SessionCgroup, SessionNamespace, SpawnOutput, SpawnRequest, UnavailableFeature,
};

const TESTS: &[(&str, fn())] = &[
    ("what_cannot_be_had_says_why", what_cannot_be_had_says_why),
    ("managers_and_sessions_have_directories", managers_and_sessions_have_directories),
    ("ids_that_clash_have_groups_too", ids_that_clash_have_groups_too),
    ("members_are_found_at_any_depth", members_are_found_at_any_depth),
    ("a_kill_reaches_frozen_sub_groups", a_kill_reaches_frozen_sub_groups),
    ("threaded_sub_groups_are_seen_and_killed", threaded_sub_groups_are_seen_and_killed),
    ("a_group_that_is_gone_has_nobody", a_group_that_is_gone_has_nobody),
    ("a_group_with_processes_is_not_taken_over", a_group_with_processes_is_not_taken_over),
    ("controllers_are_as_the_files_say", controllers_are_as_the_files_say),
    ("what_a_dead_manager_left_is_swept", what_a_dead_manager_left_is_swept),
    ("a_dead_leader_with_living_threads_is_swept", a_dead_leader_with_living_threads_is_swept),
    ("a_lock_outlives_the_manager_that_took_it", a_lock_outlives_the_manager_that_took_it),
    ("making_and_sweeping_do_not_meet", making_and_sweeping_do_not_meet),
    ("an_ordinary_user_without_delegation_is_told_so", || apart("undelegated", &[])),
    ("an_ordinary_user_has_a_delegated_subtree", || apart("delegated", &[])),
    ("programs_start_in_a_group_where_clone3_is_unknown", || {
        apart("uncloned", &[zoo::PROGRAM, ":without", "clone3-unknown"])
    }),
    ("programs_start_in_a_group_where_clone3_is_refused", || {
        apart("unclonable", &[zoo::PROGRAM, ":without", "clone3-refused"])
    }),
    ("nothing_behind_a_mount_is_touched", || apart("mounted", &["unshare", "--mount", "--propagation", "private"])),
];

type Case = fn(&Path);

const CASES: &[(&str, Case)] = &[
    ("undelegated", undelegated),
    ("delegated", delegated),
    ("uncloned", without_clone3),
    ("unclonable", without_clone3),
    ("mounted", mounted),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if let [_, flag, name, area] = args.as_slice()
        && flag == "--case"
    {
        let case = CASES.iter().find(|(known, _)| known == name).expect("a known case").1;
        case(Path::new(area));
        return ExitCode::SUCCESS;
    }
    let trial = |(name, test): &(&str, fn())| {
        let test = *test;
        Trial::test(*name, move || {
            test();
            Ok::<(), Failed>(())
        })
    };
    libtest_mimic::run(&Arguments::from_args(), TESTS.iter().map(trial).collect()).exit_code()
}

// ---- helpers

const DEADLINE: Duration = Duration::from_secs(20);

fn me() -> ProcessId {
    registry::identify(std::process::id()).expect("alive")
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// A directory for one test, with nothing else in it, below the place that a manager would choose.
struct Area(PathBuf);

impl Area {
    /// `None` where no cgroup can be had; that has been printed then.
    fn new(name: &str) -> Option<Self> {
        let groups = match ManagerCgroup::create(None, me()) {
            Ok(groups) => groups,
            Err(unavailable) => {
                println!("NOT RUN: {name}: {unavailable}");
                check(&unavailable);
                return None;
            }
        };
        let path = groups.path().with_file_name(format!("agent-proxy-test.{}.{name}", std::process::id()));
        fs::create_dir(&path).expect("a fresh cgroup");
        Some(Self(path))
    }

    fn groups(&self) -> ManagerCgroup {
        ManagerCgroup::create(Some(&self.0), me()).expect("what was possible beside it is possible in it")
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        let removed = SessionCgroup::open(&self.0).and_then(|group| group.remove());
        if !std::thread::panicking() {
            removed.expect("nobody left in it");
        }
    }
}

/// Whether an error is of any use.
fn check(unavailable: &UnavailableFeature) {
    assert_eq!(unavailable.what, "a cgroup");
    assert!(!unavailable.why.is_empty(), "{unavailable}");
    let advice = if is_root() { "mount" } else { "systemd-run --user --scope -p Delegate=yes" };
    assert!(unavailable.advice.contains(advice), "{unavailable}");
}

/// A program of ours in a cgroup; it ends with the test.
struct Member(Child);

impl Member {
    #[expect(clippy::disallowed_methods, reason = "the registry under test shall not start its own test")]
    fn start(program: &str, args: &[&str]) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Self)
    }

    fn sleeping_in(directory: &Path) -> Self {
        let member = Self::start("sleep", &["1000"]).expect("started");
        let command_line = format!("/proc/{}/cmdline", member.pid());
        until("its command line", || (fs::read(&command_line).ok()? == b"sleep\x001000\0").then_some(()));
        member.move_to(directory, "cgroup.procs");
        member
    }

    fn move_to(&self, directory: &Path, file: &str) {
        fs::write(directory.join(file), self.pid().to_string()).expect("moved");
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn is_alive(&mut self) -> bool {
        self.0.try_wait().expect("a child").is_none()
    }

    /// Waits for its end by SIGKILL.
    fn assert_killed(&mut self) {
        let status = until("a member's end", || self.0.try_wait().expect("a child"));
        assert_eq!(status.signal(), Some(9), "{status}");
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
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

fn id(text: &str) -> SessionId {
    text.parse().expect("a valid id")
}

fn members(group: &SessionCgroup) -> Vec<u32> {
    let mut pids = Vec::new();
    group.members(&mut pids).expect("readable");
    pids
}

fn wait_empty(group: &SessionCgroup) {
    until("an empty group", || (!group.is_populated().expect("readable")).then_some(()));
}

fn make(path: PathBuf) -> PathBuf {
    fs::create_dir_all(&path).expect("made");
    path
}

// ---- tests

fn what_cannot_be_had_says_why() {
    let gone = ManagerCgroup::create(Some(Path::new("/no/such/cgroup")), me()).expect_err("not there");
    assert!(gone.to_string().contains("/no/such/cgroup"), "{gone}");
    check(&gone);
    // Where there is no cgroup at all, that is the reason.
    let error = ManagerCgroup::create(Some(&std::env::temp_dir()), me()).expect_err("no cgroup");
    assert!(error.why.contains("not a directory of a cgroup v2") || error.why.contains("mounted nowhere"), "{error}");
    let error = SessionCgroup::open(&std::env::temp_dir()).expect_err("no cgroup");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
}

fn managers_and_sessions_have_directories() {
    let Some(area) = Area::new("directories") else { return };
    let (first, second) = (area.groups(), area.groups());
    let name = format!("agent-proxy.{}.{}", me().pid, me().start_time);
    assert_eq!(first.path(), area.0.join(&name));
    // Of the same process.
    assert_eq!(second.path(), area.0.join(format!("{name}.1")));
    assert_eq!(first.session(&id("one")), first.path().join("s-one"));
    let group = SessionCgroup::create(&first.session(&id("one"))).expect("made");
    assert!(!group.is_populated().expect("readable"));
    let mut member = Member::sleeping_in(group.path());
    assert_eq!(members(&group), [member.pid()]);
    assert!(group.is_populated().expect("readable"));
    assert_eq!(group.remove().expect_err("populated").kind(), io::ErrorKind::ResourceBusy);
    group.kill().expect("killed");
    member.assert_killed();
    wait_empty(&group);
    group.remove().expect("removed");
    group.remove().expect("no error, though gone");
    let paths = [first.path().to_owned(), second.path().to_owned()];
    drop((first, second));
    assert!(paths.iter().all(|path| !path.exists()), "{paths:?}");
}

fn ids_that_clash_have_groups_too() {
    let Some(area) = Area::new("ids") else { return };
    let groups = area.groups();
    for text in ["...", "cgroup.procs", "cgroup.kill", "memory.max", "-", "s-x", "x", "probe"] {
        let group = SessionCgroup::create(&groups.session(&id(text))).expect(text);
        assert_eq!(group.path().parent(), Some(groups.path()));
    }
    let made = fs::read_dir(groups.path()).expect("readable").flatten();
    assert_eq!(made.filter(|entry| entry.path().is_dir()).count(), 8);
    // The longest there is.
    SessionCgroup::create(&groups.session(&id(&"x".repeat(SessionId::MAX_LEN)))).expect("made");
    SessionCgroup::open(groups.path()).and_then(|all| all.remove()).expect("removed");
}

fn members_are_found_at_any_depth() {
    let Some(area) = Area::new("depth") else { return };
    let groups = area.groups();
    let group = SessionCgroup::create(&groups.session(&id("deep"))).expect("made");
    let deep = make((0..100).fold(group.path().to_owned(), |path, _| path.join("d")));
    (0..50).for_each(|n| drop(make(group.path().join(format!("wide-{n}")))));
    let mut tree = [
        Member::sleeping_in(group.path()),
        Member::sleeping_in(&deep),
        Member::sleeping_in(&group.path().join("wide-7")),
    ];
    let mut expected: Vec<_> = tree.iter().map(Member::pid).collect();
    expected.sort_unstable();
    assert_eq!(members(&group), expected);
    let mut out = vec![0];
    group.members(&mut out).expect("readable");
    assert_eq!((out.len(), out[0]), (4, 0), "what was there stays");
    group.kill().expect("killed");
    tree.iter_mut().for_each(Member::assert_killed);
    wait_empty(&group);
    assert!(members(&group).is_empty());
    group.remove().expect("removed, the deepest first");
    assert!(!group.path().exists());
}

fn a_kill_reaches_frozen_sub_groups() {
    let Some(area) = Area::new("frozen") else { return };
    let groups = area.groups();
    let group = SessionCgroup::create(&groups.session(&id("frozen"))).expect("made");
    let inner = make(group.path().join("mine/inner"));
    let mut tree = [Member::sleeping_in(&inner), Member::sleeping_in(&group.path().join("mine"))];
    fs::write(group.path().join("mine/cgroup.freeze"), "1").expect("frozen");
    fs::write(inner.join("cgroup.freeze"), "1").expect("frozen");
    until("a frozen group", || {
        fs::read_to_string(inner.join("cgroup.events")).expect("readable").contains("frozen 1").then_some(())
    });
    assert_eq!(members(&group).len(), 2);
    group.kill().expect("killed");
    tree.iter_mut().for_each(Member::assert_killed);
    wait_empty(&group);
    group.remove().expect("removed");
}

fn threaded_sub_groups_are_seen_and_killed() {
    let Some(area) = Area::new("threaded") else { return };
    let groups = area.groups();
    let group = SessionCgroup::create(&groups.session(&id("threaded"))).expect("made");
    let mut member = Member::sleeping_in(group.path());
    let inner = make(group.path().join("threads"));
    if let Err(error) = fs::write(inner.join("cgroup.type"), "threaded") {
        // With the memory controller in it, a group can have no threaded ones.
        assert!(groups.controllers().memory, "{error}");
        println!("NOT RUN: threaded: {error}");
    } else {
        member.move_to(&inner, "cgroup.threads");
        assert!(fs::read_to_string(inner.join("cgroup.procs")).is_err(), "a threaded group lists no processes");
        assert_eq!(members(&group), [member.pid()], "once");
        assert_eq!(members(&SessionCgroup::open(&inner).expect("there")), [member.pid()]);
    }
    group.kill().expect("killed");
    member.assert_killed();
    wait_empty(&group);
    group.remove().expect("removed");
}

fn a_group_that_is_gone_has_nobody() {
    let Some(area) = Area::new("gone") else { return };
    let groups = area.groups();
    let path = groups.session(&id("gone"));
    let group = SessionCgroup::create(&path).expect("made");
    group.remove().expect("removed");
    assert!(members(&group).is_empty());
    assert!(!group.is_populated().expect("no error"));
    group.kill().expect("no error");
    group.remove().expect("no error");
    assert_eq!(SessionCgroup::open(&path).expect_err("gone").kind(), io::ErrorKind::NotFound);
    // One of the same name is another one.
    let other = SessionCgroup::create(&path).expect("made");
    let mut member = Member::sleeping_in(other.path());
    assert!(members(&group).is_empty());
    group.kill().expect("no error");
    assert!(member.is_alive());
    other.kill().expect("killed");
    member.assert_killed();
    wait_empty(&other);
    other.remove().expect("removed");
}

fn a_group_with_processes_is_not_taken_over() {
    let Some(area) = Area::new("taken") else { return };
    let groups = area.groups();
    let path = groups.session(&id("taken"));
    let group = SessionCgroup::create(&path).expect("made");
    // Empty ones below are no reason.
    make(path.join("empty/inner"));
    let again = SessionCgroup::create(&path).expect("an empty one is made anew");
    let mut member = Member::sleeping_in(again.path());
    assert_eq!(SessionCgroup::create(&path).expect_err("populated").kind(), io::ErrorKind::ResourceBusy);
    assert!(member.is_alive());
    assert!(members(&group).is_empty(), "the first one is gone");
    again.kill().expect("killed");
    member.assert_killed();
    wait_empty(&again);
    again.remove().expect("removed");
}

fn controllers_are_as_the_files_say() {
    let Some(area) = Area::new("controllers") else { return };
    let groups = area.groups();
    let group = SessionCgroup::create(&groups.session(&id("limited"))).expect("made");
    let has = |file: &str| group.path().join(file).exists();
    let files = CgroupControllers { memory: has("memory.max"), pids: has("pids.max"), cpu: has("cpu.max") };
    assert_eq!(groups.controllers(), files);
    assert_eq!(groups.lacking().is_none(), files == CgroupControllers::ALL, "{:?}", groups.lacking());
    for (kind, there, value) in [
        (LimitKind::Memory, files.memory, 1 << 30),
        (LimitKind::Processes, files.pids, 100),
        (LimitKind::CpuPercent, files.cpu, 50),
    ] {
        assert_eq!(group.limit(kind, value, LimitAction::KillSession).expect("no error"), there, "{kind}");
        if !there {
            println!("NOT RUN: a limit of {kind} in a cgroup: {}", groups.lacking().expect("a reason"));
        }
    }
    let usage = group.usage();
    assert_eq!((usage.memory_bytes.is_some(), usage.tasks.is_some()), (files.memory, files.pids), "{usage:?}");
    // The kernel counts this without a controller.
    assert!(usage.cpu_time_us.is_some(), "{usage:?}");
    group.remove().expect("removed");
}

fn what_a_dead_manager_left_is_swept() {
    let Some(area) = Area::new("stale") else { return };
    let groups = area.groups();
    let session = make(area.0.join("agent-proxy.1.1/s-left"));
    let inner = make(session.join("inner"));
    let mut left = [Member::sleeping_in(&session), Member::sleeping_in(&inner)];
    fs::write(inner.join("cgroup.freeze"), "1").expect("frozen");
    // A living manager's, and what is no manager's.
    let other = area.groups();
    let mut living = Member::sleeping_in(&make(other.session(&id("living"))));
    let mut stranger = Member::sleeping_in(&make(area.0.join("agent-proxy.service")));
    let swept = groups.sweep_stale();
    let [swept] = swept.as_slice() else { panic!("{swept:?}") };
    assert_eq!(swept.path, area.0.join("agent-proxy.1.1"));
    assert_eq!((&swept.failure, swept.left.as_slice()), (&None, [].as_slice()), "{swept:?}");
    for member in &left {
        let ended = swept.ended.iter().find(|(id, _)| id.pid == member.pid()).expect("told of");
        assert_eq!(ended.1.as_deref(), Some("sleep 1000"), "{swept:?}");
    }
    assert_eq!(swept.ended.len(), 2, "{swept:?}");
    left.iter_mut().for_each(Member::assert_killed);
    assert!(!swept.path.exists());
    assert!(living.is_alive() && stranger.is_alive());
    assert!(groups.sweep_stale().is_empty());
    for (member, path) in
        [(&mut living, other.session(&id("living"))), (&mut stranger, area.0.join("agent-proxy.service"))]
    {
        let group = SessionCgroup::open(&path).expect("there");
        group.kill().expect("killed");
        member.assert_killed();
        wait_empty(&group);
        group.remove().expect("removed");
    }
}

fn a_dead_leader_with_living_threads_is_swept() {
    // Its leader dies in the group that it is told to move to, if any. Its thread has a name that is no UTF-8.
    const SCRIPT: &str = "\
import ctypes, os, sys, threading, time
for group in sys.argv[2:]:
    open(group + '/cgroup.procs', 'w').write(str(os.getpid()))
libc, named = ctypes.CDLL(None), threading.Event()
def run(): libc.prctl(15, b'\\xff\\xfe'), named.set(), time.sleep(1000)
threading.Thread(target=run).start()
named.wait()
libc.syscall(int(sys.argv[1]), 0)";
    let Some(area) = Area::new("leader") else { return };
    let groups = area.groups();
    let session = make(area.0.join("agent-proxy.1.1/s-left"));
    let (before, after) = (make(session.join("before")), make(session.join("after")));
    let exit = nix::libc::SYS_exit.to_string();
    let start = |groups: &[&str]| Member::start("python3", &[&["-c", SCRIPT, &exit], groups].concat());
    let mut tree = match start(&[]) {
        Err(error) => {
            println!("NOT RUN: leader: python3: {error}");
            assert_eq!(groups.sweep_stale().len(), 1);
            return;
        }
        member => [member.expect("started"), start(&[before.to_str().expect("text")]).expect("started")],
    };
    for member in &mut tree {
        let stat = format!("/proc/{}/stat", member.pid());
        until("a dead leader", || fs::read_to_string(&stat).expect("there").contains(") Z ").then_some(()));
        assert!(member.is_alive(), "its thread lives");
    }
    let [thread_only, whole] = &mut tree;
    // The leader stays behind: it is dead.
    thread_only.move_to(&after, "cgroup.procs");
    assert_eq!(members(&SessionCgroup::open(&before).expect("there")), [whole.pid()]);
    assert_eq!(members(&SessionCgroup::open(&after).expect("there")), [thread_only.pid()]);
    let swept = groups.sweep_stale();
    let [swept] = swept.as_slice() else { panic!("{swept:?}") };
    assert_eq!((&swept.failure, swept.ended.len()), (&None, 2), "{swept:?}");
    for member in &mut tree {
        until("its end", || member.0.try_wait().expect("a child"));
    }
    assert!(!swept.path.exists());
}

fn a_lock_outlives_the_manager_that_took_it() {
    let Some(area) = Area::new("lock") else { return };
    let (groups, dead) = (area.groups(), area.groups());
    let guard = dead.lock().try_clone_to_owned().expect("a duplicate");
    let mut member = Member::sleeping_in(&make(dead.session(&id("guarded"))));
    let path = dead.path().to_owned();
    drop(dead);
    assert!(groups.sweep_stale().is_empty(), "its guard lives");
    assert!(member.is_alive() && path.exists());
    drop(guard);
    // A program that another test starts has a duplicate too, until its exec.
    let swept = until("a free lock", || groups.sweep_stale().pop());
    assert_eq!(swept.path, path);
    member.assert_killed();
    assert!(!path.exists());
}

fn making_and_sweeping_do_not_meet() {
    let Some(area) = Area::new("race") else { return };
    let groups = area.groups();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                for swept in groups.sweep_stale() {
                    assert!(swept.ended.is_empty(), "{swept:?}");
                }
            }
        });
        for _ in 0..100 {
            let made = ManagerCgroup::create(Some(&area.0), me());
            let session = made.as_ref().map(|made| SessionCgroup::create(&made.session(&id("race"))));
            let is_right = matches!(&session, Ok(Ok(group)) if group.remove().is_ok());
            if !is_right {
                done.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            assert!(is_right, "{made:?} {session:?}");
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

// ---- cases in a process of their own, started by root

const NOBODY: u32 = 65534;

#[expect(clippy::disallowed_methods, reason = "the registry under test shall not start its own test")]
fn apart(name: &str, wrapper: &[&str]) {
    if !is_root() {
        println!("NOT RUN: {name}: takes root to set up");
        return;
    }
    let Some(area) = Area::new(name) else { return };
    let exe = std::env::current_exe().expect("known");
    let words = wrapper.iter().map(std::ffi::OsString::from).chain([exe.into(), "--case".into(), name.into()]);
    let words: Vec<_> = words.chain([area.0.clone().into()]).collect();
    let output = match Command::new(&words[0]).args(&words[1..]).output() {
        Err(error) if !wrapper.is_empty() => {
            println!("NOT RUN: {name}: {}: {error}", words[0].display());
            return;
        }
        output => output.expect("started"),
    };
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    print!("{out}");
    assert!(output.status.success(), "{}\n{err}", output.status);
}

fn become_nobody() {
    nix::unistd::setgroups(&[]).expect("no further groups");
    nix::unistd::setgid(NOBODY.into()).expect("another group");
    nix::unistd::setuid(NOBODY.into()).expect("another user");
}

/// Hands a directory over, as an administrator does.
fn delegate(directory: &Path) {
    for file in ["", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"] {
        std::os::unix::fs::chown(directory.join(file), Some(NOBODY), Some(NOBODY)).expect("handed over");
    }
}

fn undelegated(area: &Path) {
    let handed = make(area.join("handed"));
    delegate(&handed);
    become_nobody();
    let error = ManagerCgroup::create(None, me()).expect_err("nothing is ours");
    check(&error);
    let error = ManagerCgroup::create(Some(area), me()).expect_err("not ours");
    check(&error);
    // A directory of ours, but we are not in it: to move a process there takes a right above it.
    let error = ManagerCgroup::create(Some(&handed), me()).expect_err("no way in");
    assert!(error.why.contains("cgroup.procs") && error.why.contains("ermission denied"), "{error}");
    check(&error);
    assert_eq!(fs::read_dir(&handed).expect("readable").flatten().filter(|entry| entry.path().is_dir()).count(), 0);
}

fn delegated(area: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let handed = make(area.join("handed"));
    delegate(&handed);
    fs::write(handed.join("cgroup.procs"), "0").expect("moved");
    let home = fs::read_to_string("/proc/self/cgroup").expect("readable");
    assert!(home.contains("handed"), "{home}");
    become_nobody();
    {
        let groups = ManagerCgroup::create(None, me()).expect("ours");
        assert_eq!(groups.path().parent(), Some(handed.as_path()));
        assert_eq!(groups.controllers(), CgroupControllers::default(), "this very process is in the way");
        let group = SessionCgroup::create(&groups.session(&id("one"))).expect("made");
        let inner = make(group.path().join("inner"));
        let mut tree = [Member::sleeping_in(group.path()), Member::sleeping_in(&inner)];
        // What a hostile member of the same user can do.
        for path in [inner.join("cgroup.procs"), inner, group.path().join("cgroup.kill"), group.path().to_owned()] {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o0)).expect("taken away");
        }
        assert_eq!(members(&group).len(), 2);
        group.kill().expect("killed");
        tree.iter_mut().for_each(Member::assert_killed);
        wait_empty(&group);
        group.remove().expect("removed");
        // With a leftover of the same user, and one of root's.
        let stale = make(handed.join("agent-proxy.1.1/s-left"));
        let mut left = Member::sleeping_in(&stale);
        assert_eq!(groups.sweep_stale().len(), 1);
        left.assert_killed();
    }
    let left: Vec<_> =
        fs::read_dir(&handed).expect("readable").flatten().filter(|entry| entry.path().is_dir()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A filter of system calls lets no process begin in a group: it joins before its program is executed.
fn without_clone3(area: &Path) {
    let status = fs::read_to_string("/proc/self/status").expect("readable");
    assert!(status.contains("\nSeccomp:\t2\n"), "there is no filter: {status}");
    let groups = ManagerCgroup::create(Some(area), me()).expect("ours");
    let group = SessionCgroup::create(&groups.session(&id("one"))).expect("made");
    let directory = || Some(group.as_fd().try_clone_to_owned().expect("a descriptor"));
    let program = |argv: &[&str]| SpawnRequest {
        argv: argv.iter().map(Into::into).collect(),
        group: directory(),
        stdout: SpawnOutput::Pipe,
        ..SpawnRequest::new(argv[0])
    };
    let first = registry::spawn(program(&["/bin/cat", "/proc/self/cgroup"])).expect("started");
    let exit = until("its end", || first.process.try_reap().expect("our child"));
    assert!(exit.success(), "{exit:?}");
    let mut said = String::new();
    // Nobody else has the other end.
    fs::File::from(first.stdout.expect("a pipe")).read_to_string(&mut said).expect("text");
    let name = group.path().strip_prefix(area).expect("below it").to_str().expect("text");
    assert!(said.lines().any(|line| line.starts_with("0::") && line.ends_with(name)), "{said}");

    let sleeper = registry::spawn(program(&["/bin/sleep", "1000"])).expect("started");
    let mut expected = vec![sleeper.id().pid];
    assert_eq!(members(&group), expected);
    let namespace = match registry::strict_is_available() {
        Ok(()) => Some(SessionNamespace::create(Some(group.as_fd())).expect("it is available")),
        Err(why) => {
            println!("NOT RUN: a namespace without clone3: {why}");
            None
        }
    };
    if let Some(namespace) = namespace {
        // The init, and what is started beside it.
        expected.extend(members(&group).into_iter().find(|pid| !expected.contains(pid)));
        let inside = SpawnRequest { namespace: Some(namespace), ..program(&["/bin/sleep", "1000"]) };
        expected.push(registry::spawn(inside).expect("started").id().pid);
        expected.sort_unstable();
        let mut found = members(&group);
        found.sort_unstable();
        assert_eq!((found.len(), found), (3, expected));
    }
    group.kill().expect("killed");
    wait_empty(&group);
    group.remove().expect("removed");
}

#[expect(clippy::disallowed_methods, reason = "the registry under test shall not start its own test")]
fn mounted(area: &Path) {
    let run = |program: &str, args: &[&Path]| {
        let status = Command::new(program).args(args).status().expect("started");
        assert!(status.success(), "{program} {args:?}: {status}");
    };
    let groups = ManagerCgroup::create(Some(area), me()).expect("ours");
    let group = SessionCgroup::create(&groups.session(&id("one"))).expect("made");
    let inner = make(group.path().join("inner"));
    let elsewhere = make(area.join("elsewhere"));
    let kept = make(elsewhere.join("kept"));
    let mut stranger = Member::sleeping_in(&elsewhere);
    let mut member = Member::sleeping_in(&inner);
    let bind = Path::new("--bind");
    run("mount", &[bind, &elsewhere, &inner]);
    assert_eq!(members(&group), Vec::<u32>::new(), "neither the stranger, nor what is covered");
    assert!(group.is_populated().expect("readable"), "which is counted");
    // A list of strangers over the list of members.
    let list = area.join("elsewhere/cgroup.procs");
    run("mount", &[bind, &list, &group.path().join("cgroup.procs")]);
    let mut pids = Vec::new();
    group.members(&mut pids).expect_err("not to be trusted");
    assert!(pids.is_empty(), "{pids:?}");
    group.kill().expect("killed");
    member.assert_killed();
    wait_empty(&group);
    group.remove().expect_err("something is mounted in it");
    assert!(kept.exists() && stranger.is_alive());
    run("umount", &[&group.path().join("cgroup.procs")]);
    run("umount", &[&inner]);
    group.remove().expect("removed");
    // Over a dead manager's directory.
    let stale = make(area.join("agent-proxy.1.1"));
    run("mount", &[bind, &elsewhere, &stale]);
    let swept = groups.sweep_stale();
    assert!(swept.iter().all(|swept| swept.failure.is_some() && swept.ended.is_empty()), "{swept:?}");
    assert!(kept.exists() && stranger.is_alive());
    run("umount", &[&stale]);
}
