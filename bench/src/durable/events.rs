//! Sessions that write: from their proxies to subscribers, which receive only committed events.

use std::time::{Duration, Instant, SystemTime};

use proxy_manager::{AgentSessionConfig, KillOptions, PromptMode, SessionHandle};
use tokio::task::JoinSet;

use super::host::{DurableHost, PeakMemory};
use crate::{
    contestant::MeasuredFigures,
    error::{Error, Result},
    flood, ours, programs,
    text::{self, NumberedTexts},
};

/// Number of sessions in the crowd.
const CROWD: u32 = 64;
/// Events of each session at full speed.
const FLOOD: u64 = 8_000;
/// Lines that each session writes at once when paced, and the interval in ms: 35 k events a second altogether.
const PACE: (u64, u64) = (11, 20);
/// Events of each session when paced: some 9 s.
const PACED: u64 = 5_000;
/// Events of the busy session.
const BUSY: u64 = 6_000_000;
/// First events of the busy session, which are not counted.
const WARM_UP: u64 = 100_000;

/// Measures the crowd at full speed, and paced, where the time from append to subscriber is meaningful.
///
/// # Errors
/// When an event is lost.
pub(super) async fn crowd(host: &DurableHost) -> Result<MeasuredFigures> {
    let flood = || Ok(AgentSessionConfig::new(flood::PROTOCOL));
    let (flood_rate, flooded) = together(host, flood, &NumberedTexts::plain(), FLOOD).await?;
    let paced = || {
        let command = programs::paced_argv(PACE.0, PACE.1)?;
        Ok(AgentSessionConfig { command, ..AgentSessionConfig::new("command") })
    };
    let (paced_rate, paced) = together(host, paced, &NumberedTexts::lines(text::LEN), PACED).await?;
    let figures = [
        ("events_per_s", flood_rate),
        ("flood_p50_ms", percentile(&flooded, 50)),
        ("flood_p99_ms", percentile(&flooded, 99)),
        ("paced_per_s", paced_rate),
        ("paced_p50_ms", percentile(&paced, 50)),
        ("paced_p99_ms", percentile(&paced, 99)),
    ];
    Ok(figures.map(|(name, figure)| (name.to_owned(), figure)).into())
}

/// Returns events a second of all sessions together, and the times from append to subscriber in ms, sorted.
async fn together(
    host: &DurableHost,
    config: impl Fn() -> Result<AgentSessionConfig>,
    texts: &NumberedTexts,
    each: u64,
) -> Result<(f64, Vec<f64>)> {
    let mut sessions = Vec::new();
    for _ in 0..CROWD {
        sessions.push(host.manager.start_session(config()?).await?);
    }
    let begin = Instant::now();
    let mut readers = JoinSet::new();
    for session in &sessions {
        readers.spawn(speak(session.clone(), texts.clone(), each));
    }
    let mut times = Vec::new();
    while let Some(read) = readers.join_next().await {
        times.extend(read.map_err(Error::system("joining a reader"))??);
    }
    let rate = (u64::from(CROWD) * each) as f64 / begin.elapsed().as_secs_f64();
    times.sort_by(f64::total_cmp);
    for session in &sessions {
        session.kill(KillOptions::NOW).await?;
    }
    Ok((rate, times))
}

/// Requests `count` events and receives them. Returns the time of each from its append. An envelope's time is in
/// whole milliseconds, so these are up to 1 ms too long.
async fn speak(session: SessionHandle, texts: NumberedTexts, count: u64) -> Result<Vec<f64>> {
    let mut subscription = session.subscribe();
    let mut times = Vec::with_capacity(usize::try_from(count).unwrap_or(0));
    let prompt = async { session.prompt(count.to_string(), PromptMode::Refuse).await.map_err(Error::from) };
    let receive = ours::receive(&mut subscription, texts, count, |envelope, _| {
        let took = SystemTime::now().duration_since(envelope.created_at).unwrap_or_default();
        times.push(took.as_secs_f64() * 1e3);
    });
    tokio::try_join!(prompt, receive)?;
    Ok(times)
}

/// Measures one session, with each event examined.
///
/// # Errors
/// When an event is lost.
pub(super) async fn busy(host: &DurableHost) -> Result<MeasuredFigures> {
    let session = host.manager.start_session(AgentSessionConfig::new(flood::PROTOCOL)).await?;
    let mut subscription = session.subscribe();
    let memory = PeakMemory::watch()?;
    let (mut seconds, mut slowest) = (0.0, Duration::ZERO);
    for count in [WARM_UP, BUSY] {
        let begin = Instant::now();
        let (mut last, tenth) = (begin, count / 10);
        slowest = Duration::ZERO;
        let prompt = async { session.prompt(count.to_string(), PromptMode::Refuse).await.map_err(Error::from) };
        let receive = ours::receive(&mut subscription, NumberedTexts::plain(), count, |_, taken| {
            if taken % tenth == 0 {
                slowest = slowest.max(last.elapsed());
                last = Instant::now();
            }
        });
        tokio::try_join!(prompt, receive)?;
        seconds = begin.elapsed().as_secs_f64();
    }
    let figures = [
        ("events_per_s", BUSY as f64 / seconds),
        ("slowest_per_s", (BUSY / 10) as f64 / slowest.as_secs_f64()),
        ("grown_mib", memory.grown_mib()?),
    ];
    Ok(figures.map(|(name, figure)| (name.to_owned(), figure)).into())
}

fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}
