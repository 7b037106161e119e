//! Cost of sessions beside a thousand others: short ones, and the end of all.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use proxy_manager::{KillOptions, ProxyManager, Receipt, SessionHandle};
use tokio::{sync::Semaphore, task::JoinSet};

use super::host::DurableHost;
use crate::{
    contestant::MeasuredFigures,
    error::{Error, Result},
    ours,
};

/// Sessions beside which the short ones run.
const SESSIONS: usize = 1000;
/// Starts at once.
const AT_ONCE: usize = 32;
/// Short sessions at once, where not one follows the other.
const SHORT_AT_ONCE: usize = 8;
/// Time for which short sessions are counted, each time.
const COUNTED: Duration = Duration::from_secs(4);
/// Before they are counted, so that what starts 1,000 sessions has come to rest.
const SETTLE: Duration = Duration::from_secs(1);

/// Counts short sessions, with none beside them and with a thousand, and ends the thousand at once.
///
/// # Errors
/// When a session cannot be started or ended.
pub(super) async fn measure(host: &DurableHost) -> Result<MeasuredFigures> {
    let manager = &host.manager;
    // Warms up.
    short(manager, SHORT_AT_ONCE, SETTLE).await?;
    let (alone, alone_in_a_row) = (short(manager, SHORT_AT_ONCE, COUNTED).await?, short(manager, 1, COUNTED).await?);
    let sessions = crowd(manager).await?;
    tokio::time::sleep(SETTLE).await;
    let (beside, beside_in_a_row) = (short(manager, SHORT_AT_ONCE, COUNTED).await?, short(manager, 1, COUNTED).await?);
    let begin = Instant::now();
    let mut kills = JoinSet::new();
    for session in sessions {
        kills.spawn(async move { session.kill(KillOptions::NOW).await });
    }
    let mut left = 0;
    while let Some(receipt) = kills.join_next().await {
        left += left_of(&receipt.map_err(Error::system("joining a kill"))??);
    }
    let seconds = begin.elapsed().as_secs_f64();
    let figures = [
        ("alone_per_s", alone),
        ("beside_per_s", beside),
        ("beside_percent", 100.0 * beside / alone),
        ("alone_in_a_row_per_s", alone_in_a_row),
        ("beside_in_a_row_per_s", beside_in_a_row),
        ("beside_in_a_row_percent", 100.0 * beside_in_a_row / alone_in_a_row),
        ("end_all_s", seconds),
        ("left", left as f64),
    ];
    Ok(figures.map(|(name, figure)| (name.to_owned(), figure)).into())
}

/// Processes of a session that live after its kill; at least one where the kill has no proof.
fn left_of(receipt: &Receipt) -> usize {
    let lives = |id: &_| registry::find_process(*id).is_ok_and(|seen| seen.is_some());
    let living = receipt.processes.iter().filter(|entry| lives(&entry.id.pid)).count();
    living.max(usize::from(!receipt.is_empty()))
}

/// Starts and kills sessions, `at_once` of them at a time; returns how many a second.
async fn short(manager: &ProxyManager, at_once: usize, counted: Duration) -> Result<f64> {
    let begin = Instant::now();
    let mut workers = JoinSet::new();
    for _ in 0..at_once {
        let manager = manager.clone();
        workers.spawn(async move {
            let mut count = 0;
            while begin.elapsed() < counted {
                let session = manager.start_session(ours::cat()?).await?;
                let receipt = session.kill(KillOptions::NOW).await?;
                if !receipt.is_empty() {
                    return Err(Error::answer("a kill", receipt.to_string()));
                }
                count += 1;
            }
            Ok(count)
        });
    }
    let mut total = 0;
    while let Some(count) = workers.join_next().await {
        total += count.map_err(Error::system("joining short sessions"))??;
    }
    Ok(f64::from(total) / begin.elapsed().as_secs_f64())
}

/// Starts the sessions that stay.
async fn crowd(manager: &ProxyManager) -> Result<Vec<SessionHandle>> {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let mut starts = JoinSet::new();
    for _ in 0..SESSIONS {
        let (manager, config, room) = (manager.clone(), ours::cat()?, room.clone());
        starts.spawn(async move {
            let _place = room.acquire().await;
            manager.start_session(config).await
        });
    }
    let mut sessions = Vec::new();
    while let Some(started) = starts.join_next().await {
        sessions.push(started.map_err(Error::system("joining a start"))??);
    }
    Ok(sessions)
}
