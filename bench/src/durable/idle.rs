//! A thousand idle sessions.

use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use ipc_protocol::Pid;
use tokio::{sync::Semaphore, task::JoinSet};

use super::host::DurableHost;
use crate::{
    contestant::MeasuredFigures,
    error::{Error, Result},
    ours,
    stats::mean_pss_kib,
};

/// Number of sessions.
const SESSIONS: usize = 1000;
/// Number of concurrent starts.
const AT_ONCE: usize = 32;
/// Pause before resources are measured.
const SETTLE: Duration = Duration::from_secs(2);
/// Period over which processor time is measured.
const IDLE: Duration = Duration::from_secs(10);

/// # Errors
/// When a session does not start, or a process is gone.
pub(super) async fn measure(host: &DurableHost) -> Result<MeasuredFigures> {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let begin = Instant::now();
    let mut starts = JoinSet::new();
    for _ in 0..SESSIONS {
        let (manager, config, room) = (host.manager.clone(), ours::cat()?, room.clone());
        starts.spawn(async move {
            let _place = room.acquire().await;
            manager.start_session(config).await
        });
    }
    let mut proxies = Vec::new();
    while let Some(started) = starts.join_next().await {
        let session = started.map_err(Error::system("joining a start"))??;
        proxies.extend(session.info().processes.proxy.map(|proxy| proxy.pid));
    }
    let seconds = begin.elapsed().as_secs_f64();
    if proxies.len() != SESSIONS {
        return Err(Error::answer("a session", "has no proxy"));
    }
    tokio::time::sleep(SETTLE).await;
    let manager = std::process::id();
    let all = [&[manager, host.manager.fork_server().pid][..], &proxies].concat();
    let pss_mib = mean_pss_kib(&all)? * all.len() as f64 / 1024.0;
    let fork_server = &all[1..2];
    let (before, of_it, forks, since) =
        (processor_time(&all)?, processor_time(fork_server)?, forks_since_boot()?, Instant::now());
    tokio::time::sleep(IDLE).await;
    let spent = processor_time(&all)?.saturating_sub(before);
    let spent_by_it = processor_time(fork_server)?.saturating_sub(of_it);
    let forked = forks_since_boot()?.saturating_sub(forks);
    let seconds_idle = since.elapsed().as_secs_f64();
    let figures = [
        ("starts_per_s", SESSIONS as f64 / seconds),
        ("pss_mib", pss_mib),
        ("host_pss_mib", mean_pss_kib(&[manager])? / 1024.0),
        ("idle_percent", 100.0 * spent.as_secs_f64() / seconds_idle),
        ("fork_server_percent", 100.0 * spent_by_it.as_secs_f64() / seconds_idle),
        ("machine_forks_per_s", forked as f64 / seconds_idle),
    ];
    Ok(figures.map(|(name, figure)| (name.to_owned(), figure)).into())
}

/// Processes and threads that were started on this machine since its boot. The fork server hears of each.
fn forks_since_boot() -> Result<u64> {
    let text = fs::read_to_string("/proc/stat").map_err(Error::system("reading /proc/stat"))?;
    let count = text.lines().find_map(|line| line.strip_prefix("processes ")?.trim().parse().ok());
    count.ok_or_else(|| Error::answer("/proc/stat", "has no number of processes"))
}

/// Sums the processor time of all threads of these processes.
fn processor_time(pids: &[Pid]) -> Result<Duration> {
    let mut total = 0;
    for pid in pids {
        let tasks = format!("/proc/{pid}/task");
        for task in fs::read_dir(&tasks).map_err(Error::system(format!("reading {tasks}")))? {
            let path = task.map_err(Error::system(format!("reading {tasks}")))?.path().join("schedstat");
            // Skip a thread that has ended meanwhile.
            let Ok(text) = fs::read_to_string(&path) else { continue };
            let nanos = text.split(' ').next().and_then(|nanos| nanos.parse::<u64>().ok());
            total += nanos.ok_or_else(|| Error::answer(path.display().to_string(), "has no time"))?;
        }
    }
    Ok(Duration::from_nanos(total))
}
