//! Readers behind the writer: one that stops while a million events pass, and one that begins at the first event.

use std::time::{Duration, Instant};

use proxy_manager::{AgentSessionConfig, KillOptions, PromptMode, SessionHandle, Subscription};
use tokio::time::sleep_until;

use super::host::{DurableHost, PeakMemory};
use crate::{
    contestant::MeasuredFigures,
    error::{Error, Result},
    flood, ours,
    stats::median,
    text::NumberedTexts,
};

/// Events of one prompt.
const PROMPTED: u64 = 50_000;
/// Prompts whose events both readers read, so that a busy session's memory is allocated.
const BEFORE: u32 = 10;
/// Prompts whose events pass while one reader is stalled: a million events.
const PASSING: u32 = 20;
/// Time for which that reader is stalled.
const STALL: Duration = Duration::from_secs(30);
/// Number of replays; the figure is their median.
const REPLAYS: u32 = 3;

/// Reader that checks its events: no text is missing, and none comes twice.
struct CheckedReader {
    subscription: Subscription,
    /// Offset of the last text.
    offset: u64,
}

impl CheckedReader {
    fn new(session: &SessionHandle) -> Self {
        Self { subscription: session.subscribe(), offset: 0 }
    }

    /// Receives all events of `prompts` prompts.
    ///
    /// # Errors
    /// When an event is lost.
    async fn read(&mut self, prompts: u32) -> Result<()> {
        let (texts, count) = (NumberedTexts::plain().again_every(PROMPTED), u64::from(prompts) * PROMPTED);
        let offset = &mut self.offset;
        ours::receive(&mut self.subscription, texts, count, |envelope, _| *offset = envelope.offset).await
    }
}

async fn send(session: &SessionHandle) -> Result<()> {
    session.prompt(PROMPTED.to_string(), PromptMode::Refuse).await?;
    Ok(())
}

/// # Errors
/// When an event is lost.
pub(super) async fn measure(host: &DurableHost) -> Result<MeasuredFigures> {
    let session = host.manager.start_session(AgentSessionConfig::new(flood::PROTOCOL)).await?;
    let (mut awake, mut stalled) = (CheckedReader::new(&session), CheckedReader::new(&session));
    let cold = PeakMemory::watch()?;
    let begin = Instant::now();
    for _ in 0..BEFORE {
        tokio::try_join!(send(&session), awake.read(1), stalled.read(1))?;
    }
    let both = begin.elapsed();
    let both_grown = cold.grown_mib()?;

    let memory = PeakMemory::watch()?;
    let (begin, mut others) = (Instant::now(), Duration::ZERO);
    for round in 1..=PASSING {
        let asked = Instant::now();
        tokio::try_join!(send(&session), awake.read(1))?;
        others += asked.elapsed();
        sleep_until((begin + STALL * round / PASSING).into()).await;
    }
    let grown = memory.grown_mib()?;

    let begin = Instant::now();
    stalled.read(PASSING).await?;
    let late = begin.elapsed();
    let all_grown = cold.grown_mib()?;
    if stalled.offset != awake.offset {
        let what = format!("ends at offset {}, the other at {}", stalled.offset, awake.offset);
        return Err(Error::answer("the stalled reader", what));
    }
    drop((memory, cold));

    session.kill(KillOptions::NOW).await?;
    let total = u64::from(BEFORE + PASSING) * PROMPTED;
    let (mut rates, mut firsts) = (Vec::new(), Vec::new());
    for _ in 0..REPLAYS {
        let begin = Instant::now();
        let mut subscription = host.manager.subscribe_from(session.id(), 0)?;
        let mut first = None;
        let seen = |_: &_, _| {
            first.get_or_insert_with(|| begin.elapsed());
        };
        ours::receive(&mut subscription, NumberedTexts::plain().again_every(PROMPTED), total, seen).await?;
        rates.push(total as f64 / begin.elapsed().as_secs_f64());
        firsts.extend(first.map(|first| first.as_secs_f64() * 1e3));
    }
    let nothing = || Error::answer("a replay", "has no event");
    let of = |prompts: u32, took: Duration| (u64::from(prompts) * PROMPTED) as f64 / took.as_secs_f64();
    let figures = [
        ("both_per_s", of(BEFORE, both)),
        ("both_grown_mib", both_grown),
        ("others_per_s", of(PASSING, others)),
        ("grown_mib", grown),
        ("late_per_s", of(PASSING, late)),
        ("all_grown_mib", all_grown),
        ("replay_per_s", median(&rates).ok_or_else(nothing)?),
        ("first_ms", median(&firsts).ok_or_else(nothing)?),
    ];
    Ok(figures.map(|(name, figure)| (name.to_owned(), figure)).into())
}
