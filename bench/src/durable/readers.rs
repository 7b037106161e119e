//! Readers that are not where the writer is: one that stops while a million events pass, and one that begins at the first.

use std::time::Instant;

use proxy_manager::{AgentSessionConfig, KillOptions, PromptMode};

use super::host::{Host, Memory};
use crate::{
    contestant::Figures,
    error::{Error, Result},
    flood, ours,
    stats::median,
    text::Texts,
};

/// Events that all read before: then what a session that speaks has in memory (its ring) is there.
const BEFORE: u64 = 500_000;
/// Events that pass.
const PASSING: u64 = 1_000_000;
/// Replays; the figure is the median of them.
const REPLAYS: u32 = 3;

/// # Errors
/// When an event is lost.
pub(super) async fn measure(host: &Host) -> Result<Figures> {
    let session = host.manager.start_session(AgentSessionConfig::new(flood::PROTOCOL)).await?;
    let (mut awake, mut stalled) = (session.subscribe(), session.subscribe());
    let ignore = |_: &_, _| {};
    let cold = Memory::watch()?;
    let prompt = async { session.prompt(BEFORE.to_string(), PromptMode::Refuse).await.map_err(Error::from) };
    let awake_reads = ours::receive(&mut awake, Texts::plain(), BEFORE, ignore);
    let other_reads = ours::receive(&mut stalled, Texts::plain(), BEFORE, ignore);
    tokio::try_join!(prompt, awake_reads, other_reads)?;
    let ring = cold.grown_mib()?;

    let memory = Memory::watch()?;
    let begin = Instant::now();
    let prompt = async { session.prompt(PASSING.to_string(), PromptMode::Refuse).await.map_err(Error::from) };
    tokio::try_join!(prompt, ours::receive(&mut awake, Texts::plain(), PASSING, ignore))?;
    let others = begin.elapsed();
    let grown = memory.grown_mib()?;

    let begin = Instant::now();
    ours::receive(&mut stalled, Texts::plain(), PASSING, ignore).await?;
    let late = begin.elapsed();
    let late_grown = memory.grown_mib()?;
    let all_grown = cold.grown_mib()?;
    drop((memory, cold));

    session.kill(KillOptions::NOW).await?;
    let (mut rates, mut firsts) = (Vec::new(), Vec::new());
    for _ in 0..REPLAYS {
        let begin = Instant::now();
        let mut subscription = host.manager.subscribe_from(session.id(), 0)?;
        let mut first = None;
        let seen = |_: &_, _| {
            first.get_or_insert_with(|| begin.elapsed());
        };
        ours::receive(&mut subscription, Texts::plain().again_after(BEFORE), BEFORE + PASSING, seen).await?;
        rates.push((BEFORE + PASSING) as f64 / begin.elapsed().as_secs_f64());
        firsts.extend(first.map(|first| first.as_secs_f64() * 1e3));
    }
    let nothing = || Error::answer("a replay", "has no event");
    let figures = [
        ("others_per_s", PASSING as f64 / others.as_secs_f64()),
        ("ring_mib", ring),
        ("grown_mib", grown),
        ("late_per_s", PASSING as f64 / late.as_secs_f64()),
        ("late_grown_mib", late_grown),
        ("all_grown_mib", all_grown),
        ("replay_per_s", median(&rates).ok_or_else(nothing)?),
        ("first_ms", median(&firsts).ok_or_else(nothing)?),
    ];
    Ok(figures.map(|(name, figure)| (name.to_owned(), figure)).into())
}
