//! Many sessions one after the other: `tests/full` runs it and shows its figures.

use std::{
    fs,
    time::{Duration, Instant},
};

use agent_proxy_tests::sessions::{builder, fake, soon};
use proxy_manager::{KillOptions, PromptMode, ProxyManager, StopReason};

/// Sessions before the first measurement: what they leave allocated for good is no leak.
const WARM_UP: usize = 20;
/// Sessions that are measured.
const SESSIONS: usize = 1000;
/// Memory that host and fork server may have more after [`SESSIONS`] than after [`WARM_UP`], in KiB each.
const GROWTH_KIB: u64 = 4096;

fn open_fds() -> usize {
    fs::read_dir("/proc/self/fd").expect("own fds").count()
}

/// Resident memory of a process, in KiB.
fn rss_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("process status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").parse().expect("a number of KiB")
}

/// A session from start to receipt; it leaves a daemon to the kill.
async fn one_session(manager: &ProxyManager) -> Duration {
    let begin = Instant::now();
    let session = soon("start", manager.start_session(fake())).await.expect("session");
    let turn =
        soon("prompt", session.prompt("daemon exec sleep 300\nsay hello", PromptMode::Refuse)).await.expect("turn");
    let end = soon("turn", turn.wait()).await.expect("end of the turn");
    assert_eq!(end.stop_reason, Some(StopReason::EndTurn), "{end:?}");
    let receipt = soon("kill", session.kill(KillOptions::NOW)).await.expect("an empty receipt");
    assert!(receipt.is_empty() && receipt.processes.len() >= 2, "{receipt:#?}");
    begin.elapsed()
}

#[tokio::test]
async fn sessions_leave_nothing_in_the_host() {
    let builder = builder(env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent")).ended_sessions(WARM_UP);
    let manager = soon("the fork server", builder.build()).await.expect("manager");
    let fork_server = manager.fork_server().pid;
    for _ in 0..WARM_UP {
        one_session(&manager).await;
    }
    let memory = || (rss_kib(std::process::id()), rss_kib(fork_server));
    let (fds, before) = (open_fds(), memory());
    let mut times = Vec::with_capacity(SESSIONS);
    for _ in 0..SESSIONS {
        times.push(one_session(&manager).await);
    }
    let after = memory();
    times.sort_unstable();
    println!(
        "soak: {SESSIONS} sessions, start to receipt median {:?}, 99 % {:?}, slowest {:?}; \
         host {} -> {} KiB, fork server {} -> {} KiB",
        times[SESSIONS / 2],
        times[SESSIONS * 99 / 100],
        times[SESSIONS - 1],
        before.0,
        after.0,
        before.1,
        after.1,
    );
    assert_eq!(open_fds(), fds, "fds of the host");
    assert!(after.0 <= before.0 + GROWTH_KIB && after.1 <= before.1 + GROWTH_KIB, "{before:?} -> {after:?} KiB");
    soon("shutdown", manager.shutdown()).await;
}
