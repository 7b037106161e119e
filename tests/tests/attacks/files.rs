//! What root's agents do by files: mounts over `/proc`, cgroup files. Ordinary users have no right to any of it, outside of
//! what is theirs anyway.

use std::{fs, path::PathBuf};

use agent_proxy_tests::{
    sessions::{all, event, said, shell, soon},
    system::{self, until},
};
use proxy_manager::{
    AgentSessionConfig, Containment, ContainmentStatus, EndReason, Event, KillOptions, ProxyManager, SessionHandle,
    Signal, Subscription,
};

use super::{builder, is_root, last};

/// Says so where a case is not run.
fn needs_root() -> bool {
    if !is_root() {
        println!("NOT RUN: it takes root to mount, or to write to cgroup files");
    }
    is_root()
}

async fn manager() -> ProxyManager {
    soon("a manager", builder().build()).await.expect("built")
}

async fn start(manager: &ProxyManager, containment: Containment, script: &str) -> (SessionHandle, Subscription) {
    let config = AgentSessionConfig { containment: Some(containment), cwd: Some("/".into()), ..shell(script) };
    let session = soon("a start", manager.start_session(config)).await.expect("started");
    let events = session.subscribe();
    (session, events)
}

/// Whether the containment can be had; says so if not.
async fn is_there(manager: &ProxyManager, containment: Containment) -> bool {
    let config = AgentSessionConfig { containment: Some(containment), cwd: Some("/".into()), ..shell("exec cat") };
    match soon("a start", manager.start_session(config)).await {
        Ok(session) => soon("a kill", session.kill(KillOptions::NOW)).await.is_ok_and(|receipt| receipt.is_empty()),
        Err(error) => {
            println!("NOT RUN: {containment:?}: {error}");
            false
        }
    }
}

fn is_there_by_pid(pid: u32) -> bool {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a pid");
    rustix::process::test_kill_process(pid).is_ok()
}

async fn measures(events: &mut Subscription) -> ContainmentStatus {
    event(events, "the start", |envelope| match &envelope.event {
        Event::SessionStarted { measures, .. } => Some((**measures).clone()),
        _ => None,
    })
    .await
}

/// With its directory in `/proc` hidden a child is found, listed and ended all the same.
pub(crate) async fn a_mount_hides_no_process() {
    if !needs_root() {
        return;
    }
    let manager = manager().await;
    let seconds = system::unique_seconds();
    let script =
        format!("setsid sleep {seconds} & child=$!; mount -t tmpfs none /proc/$child && echo hidden $child; exec cat");
    let (session, mut events) = start(&manager, Containment::Baseline, &script).await;
    let child: u32 = said(&mut events, "hidden ").await.trim().parse().expect("a pid");
    assert!(is_there_by_pid(child) && !fs::exists(format!("/proc/{child}/stat")).expect("readable"));
    let listed = soon("a list", session.processes()).await.expect("listed");
    assert!(listed.iter().any(|process| process.id.pid == child), "{listed:?}");
    let receipt = soon("a kill", session.kill(KillOptions::NOW)).await.expect("killed");
    assert!(receipt.is_empty(), "{receipt:?}");
    assert!(receipt.processes.iter().any(|entry| entry.id.pid == child), "{receipt:?}");
    assert!(!is_there_by_pid(child));
    soon("the manager's end", manager.shutdown()).await;
}

/// A script that says of each cgroup hierarchy whether a group can be made in it, and then waits.
const TRIES_EVERYWHERE: &str = "\
    while read -r line; do
        case $line in *' - cgroup '*|*' - cgroup2 '*) ;; *) continue ;; esac
        set -- $line; at=$5; kind=v1
        case $line in *' - cgroup2 '*) kind=v2 ;; esac
        if mkdir \"$at/agent-proxy-tried-$$\" 2>/dev/null; then rmdir \"$at/agent-proxy-tried-$$\"; echo \"writable $kind $at\"; fi
    done </proc/self/mountinfo
    cat /proc/self/cgroup | grep ^0:: ; echo tried; exec cat";

/// Of all hierarchies the agent can write to its own group's alone, and still makes groups there.
pub(crate) async fn cgroup_files_outside_are_out_of_reach() {
    if !needs_root() {
        return;
    }
    let manager = manager().await;
    for containment in [Containment::Cgroup, Containment::Strict] {
        if !is_there(&manager, containment).await {
            continue;
        }
        let (session, mut events) = start(&manager, containment, TRIES_EVERYWHERE).await;
        assert!(measures(&mut events).await.own_cgroups_only, "{containment:?}");
        let mut lines = Vec::new();
        loop {
            let text = event(&mut events, "what was tried", |envelope| match &envelope.event {
                Event::Text { text } => Some(text.trim_end().to_owned()),
                _ => None,
            });
            match text.await {
                end if end == "tried" => break,
                line => lines.push(line),
            }
        }
        // By what is said of itself it is at the top; what it can write to is its own group.
        let writable: Vec<_> = lines.iter().filter(|line| line.starts_with("writable")).collect();
        if containment == Containment::Cgroup {
            assert!(matches!(&writable[..], [own] if own.starts_with("writable v2 ")), "{lines:?}");
            assert!(lines.iter().any(|line| line == "0::/"), "{lines:?}");
        }
        assert!(writable.iter().all(|line| line.starts_with("writable v2 ")), "{lines:?}");
        let receipt = soon("a kill", session.kill(KillOptions::NOW)).await.expect("killed");
        assert!(receipt.is_empty(), "{receipt:?}");
    }
    soon("the manager's end", manager.shutdown()).await;
}

/// Supervisors that were moved into the session's group are none of what its kill ends.
pub(crate) async fn supervisors_in_the_sessions_group() {
    if !needs_root() {
        return;
    }
    let manager = manager().await;
    if !is_there(&manager, Containment::Cgroup).await {
        return;
    }
    let (bystander, _events) = start(&manager, Containment::Cgroup, "exec cat").await;
    let others =
        [manager.fork_server().pid, bystander.info().processes.proxy.expect("it runs").pid, std::process::id()];
    let own = group_of(std::process::id());
    let pids = others.map(|pid| pid.to_string()).join(" ");
    let script = format!(
        "at=$(while read -r _ _ _ _ at rest; do case $rest in *' - cgroup2 '*) echo $at; break ;; esac; done </proc/self/mountinfo)
         for pid in $PPID {pids}; do echo $pid >$at/cgroup.procs || echo refused $pid; done; echo moved; exec cat"
    );
    let (session, mut events) = start(&manager, Containment::Cgroup, &script).await;
    let proxy = session.info().processes.proxy.expect("it runs").pid;
    said(&mut events, "moved").await;
    let group = group_of(session.info().processes.agent_process.expect("it runs").pid);
    let moved = others.into_iter().chain([proxy]).filter(|pid| group_of(*pid) == group).count();
    if moved == 0 {
        println!("NOT RUN: the kernel refuses to move processes into the session's group (nsdelegate)");
    }
    let receipt = soon("a kill", session.kill(KillOptions::grace(super::GRACE))).await.expect("killed");
    assert!(receipt.is_empty(), "{receipt:?}");
    assert!(receipt.processes.iter().all(|entry| !others.contains(&entry.id.pid)), "{receipt:?}");
    let (reason, _) = last(&mut events).await;
    assert_eq!(reason, EndReason::Killed);
    for pid in others {
        assert_eq!(group_of(pid), own, "process {pid} is back in its group");
    }
    soon("an answer", bystander.ping()).await.expect("the bystander works on");
    soon("the manager's end", manager.shutdown()).await;
}

fn group_of(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// A group of the freezer of version 1, thawed and removed in the end.
struct Freezer(PathBuf);

impl Freezer {
    fn new() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("readable");
        let freezer = mounts.lines().find(|line| line.contains(" - cgroup ") && line.contains("freezer"))?;
        let path = PathBuf::from(freezer.split(' ').nth(4)?).join(format!("agent-proxy-test-{}", std::process::id()));
        fs::create_dir(&path).ok().map(|()| Self(path))
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("freezer.state"), "THAWED");
        until("the group is empty", || fs::remove_dir(&self.0).is_ok().then_some(()));
    }
}

/// Proxies, then the fork server too, stand in a freezer in which even SIGKILL waits: kills go on all the same.
pub(crate) async fn supervisors_in_a_freezer() {
    if !needs_root() {
        return;
    }
    let Some(freezer) = Freezer::new() else {
        println!("NOT RUN: there is no freezer of version 1");
        return;
    };
    for with_fork_server in [false, true] {
        let manager = manager().await;
        let at = freezer.0.display();
        let fork_server = if with_fork_server { manager.fork_server().pid.to_string() } else { String::new() };
        let script = format!(
            "for pid in $PPID {fork_server}; do echo $pid >{at}/cgroup.procs; done; sleep 1000 & echo frozen; exec cat"
        );
        let (session, _events) = start(&manager, Containment::Baseline, &script).await;
        let proxy = session.info().processes.proxy.expect("it runs").pid;
        until("the proxy is in the freezer", || is_in(proxy, &freezer).then_some(()));
        fs::write(freezer.0.join("freezer.state"), "FROZEN").expect("frozen");
        let began = std::time::Instant::now();
        let receipt = soon("a kill", session.kill(KillOptions::NOW)).await.expect("killed");
        assert!(receipt.is_empty() && receipt.processes.len() >= 2, "{receipt:?}");
        assert!(began.elapsed() < super::LONGEST_CALL, "{:?}", began.elapsed());
        let began = std::time::Instant::now();
        soon("the manager's end", manager.shutdown()).await;
        assert!(began.elapsed() < super::LONGEST_CALL, "{:?}", began.elapsed());
    }
}

fn is_in(pid: u32, freezer: &Freezer) -> bool {
    let procs = fs::read_to_string(freezer.0.join("cgroup.procs")).expect("readable");
    procs.lines().any(|line| line == pid.to_string())
}

/// For want of memory the kernel takes an agent, and whatever it has started, before a supervisor.
pub(crate) async fn agents_are_ended_first_for_want_of_memory() {
    let of = |pid: u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("readable");
        text.trim().parse::<i32>().expect("a number")
    };
    let manager = manager().await;
    for containment in [Containment::Baseline, Containment::Strict] {
        if !is_there(&manager, containment).await {
            continue;
        }
        let seconds = system::unique_seconds();
        let script = format!("setsid sleep {seconds} & exec cat");
        let (session, _events) = start(&manager, containment, &script).await;
        let child = until("the child", || system::sleeping(&seconds).first().copied());
        let info = session.info();
        let supervisors = [manager.fork_server().pid, info.processes.proxy.expect("it runs").pid].map(of);
        let theirs = [info.processes.agent_process.expect("it runs").pid, child].map(of);
        let least = theirs.iter().min().expect("two");
        assert!(supervisors.iter().all(|value| value + 200 <= *least), "{supervisors:?} {theirs:?}");
        let most = if may_lower_oom_score() { -500 } else { of(std::process::id()) };
        assert!(supervisors.iter().all(|value| *value <= most), "{supervisors:?} {most}");
        let receipt = soon("a kill", session.kill(KillOptions::NOW)).await.expect("killed");
        assert!(receipt.is_empty(), "{receipt:?}");
    }
    soon("the manager's end", manager.shutdown()).await;
}

/// Whether this process has CAP_SYS_RESOURCE.
fn may_lower_oom_score() -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("readable");
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("capabilities");
    u64::from_str_radix(effective.trim(), 16).expect("a number") & 1 << 24 != 0
}

/// Whoever ends the session of a killed proxy tells the exits that the proxy would have told.
pub(crate) async fn exits_are_told_without_the_proxy() {
    let manager = manager().await;
    let seconds = system::unique_seconds();
    let script = format!("setsid sleep {seconds} & exec cat");
    let (session, mut events) = start(&manager, Containment::Baseline, &script).await;
    let mut spawned = Vec::new();
    event(&mut events, "both processes", |envelope| {
        if let Event::ProcessSpawned(info) = &envelope.event {
            spawned.push(info.id);
        }
        (spawned.len() >= 2).then_some(())
    })
    .await;
    let proxy = registry::PidFd::open(session.info().processes.proxy.expect("it runs")).expect("alive");
    proxy.signal(Signal::Kill).expect("killed");
    let rest = all(&mut events).await;
    let exited = rest.iter().filter_map(|envelope| match &envelope.event {
        Event::ProcessExited { process, .. } => Some(*process),
        _ => None,
    });
    let mut exited: Vec<_> = exited.collect();
    exited.sort_unstable();
    spawned.sort_unstable();
    assert_eq!(exited, spawned, "{rest:#?}");
    assert!(matches!(&rest.last().expect("an end").event, Event::SessionEnded { .. }), "{rest:#?}");
    soon("the manager's end", manager.shutdown()).await;
}
