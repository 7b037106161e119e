//! The product's kill: time from `kill` to its receipt.

use std::time::{Duration, Instant};

use proxy_manager::{AgentSessionConfig, Containment, Event, KillOptions, ObserverKind, PromptMode, ProxyManager};
use tokio::time::timeout;

use super::{method::KillMethod, tree::READY};
use crate::{
    contestant::MeasuredFigures,
    error::{Error, Result},
    programs,
};

/// Longest time for a tree to start.
const DEADLINE: Duration = Duration::from_secs(20);

/// Kills a session whose agent is the root of a tree of `count`. `kill_ms` is the time until its receipt, which
/// must be proven and name all processes.
///
/// # Errors
/// The manager's: where the layer is missing, or something survives.
pub(crate) async fn measure(manager: &ProxyManager, method: KillMethod, count: u32) -> Result<MeasuredFigures> {
    let containment = match method {
        KillMethod::Cgroup => Containment::Cgroup,
        KillMethod::Strict => Containment::Strict,
        _ => Containment::Baseline,
    };
    let own = programs::own()?.display().to_string();
    let config = AgentSessionConfig {
        command: vec![own, "tree".into(), count.to_string()],
        containment: Some(containment),
        ..AgentSessionConfig::new("command")
    };
    let session = manager.start_session(config).await?;
    let mut events = session.subscribe();
    session.prompt("go", PromptMode::Refuse).await?;
    // Wait until the tree reports ready and the observer has reported all of it: its births are not measured.
    let ready = async {
        let (mut is_ready, mut wanted, mut told) = (false, 0, 0);
        while let Some(envelope) = events.next().await {
            match &envelope.event {
                Event::SessionStarted { measures, .. } if measures.observer == ObserverKind::Connector => {
                    wanted = count + 1
                }
                Event::ProcessSpawned(_) => told += 1,
                Event::Text { text } => is_ready |= text.trim() == READY,
                _ => {}
            }
            if is_ready && told >= wanted {
                return true;
            }
        }
        false
    };
    match timeout(DEADLINE, ready).await {
        Ok(true) => {}
        Ok(false) => return Err(Error::answer("the session", "ended before its tree was there")),
        Err(_) => return Err(Error::Deadline { operation: format!("growing a tree of {count}"), after: DEADLINE }),
    }
    let begin = Instant::now();
    let receipt = session.kill(KillOptions::NOW).await?;
    let kill_ms = begin.elapsed().as_secs_f64() * 1e3;
    let (named, all) = (receipt.processes.len(), count as usize + 1);
    if named != all {
        return Err(Error::answer("the receipt", format!("names {named} of {all} processes")));
    }
    Ok(MeasuredFigures::from([("kill_ms".to_owned(), kill_ms), ("left".to_owned(), receipt.survivors.len() as f64)]))
}
