//! Kills a host by SIGKILL while its session writes, and continues the session with another host.

use std::{
    io::{self, BufRead, BufReader, Write},
    path::Path,
    process::Child,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use proxy_child::ChildToken;
use proxy_manager::{AgentSessionConfig, Envelope, Event, HostDeath, KillOptions, SessionHandle};

use super::host;
use crate::{
    contestant::MeasuredFigures,
    error::{Error, Result},
    programs,
    stats::median,
};

/// Number of hosts that die, each with a state directory of its own.
const ROUNDS: u32 = 5;
/// Lines that the agent writes in a second.
const PER_SECOND: u64 = 10_000;
/// Interval at which the agent writes the lines that are due.
const BEAT: Duration = Duration::from_millis(5);
/// Number of the last line shown, at least, when the first host is killed.
const BEFORE: u64 = 20_000;
/// Further lines that the next host must show.
const AFTER: u64 = 20_000;
/// Longest wait for the next lines.
const PATIENCE: Duration = Duration::from_secs(20);
/// Policy under which the session ends soon by itself, should the bench be killed.
const FETCHED: HostDeath = HostDeath::Detach { fetch_within_ms: 30_000, spool_bytes: 64 << 20 };

/// Line of the agent.
#[derive(Clone, Copy)]
struct TickLine {
    number: u64,
    /// Time at which the line was written, since 1970.
    at: Duration,
}

impl TickLine {
    fn of(envelope: &Envelope) -> Option<Self> {
        let Event::Text { text } = &envelope.event else { return None };
        let (number, at) = text.trim_end().split_once(' ')?;
        Some(Self { number: number.parse().ok()?, at: Duration::from_micros(at.parse().ok()?) })
    }
}

/// Result of one host's death.
struct ReattachRound {
    first_ms: f64,
    per_s: f64,
    lost: u64,
    doubled: u64,
}

/// # Errors
/// When the session is missing, or writes nothing more.
pub(super) async fn measure(token: ChildToken) -> Result<MeasuredFigures> {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push(round(token).await?);
    }
    let of = |figure: fn(&ReattachRound) -> f64| rounds.iter().map(figure).collect::<Vec<_>>();
    let firsts = of(|round| round.first_ms);
    let figures = [
        ("first_new_ms", median(&firsts).unwrap_or(f64::NAN)),
        ("slowest_ms", firsts.into_iter().fold(f64::NAN, f64::max)),
        ("lost", of(|round| round.lost as f64).iter().sum()),
        ("doubled", of(|round| round.doubled as f64).iter().sum()),
        ("agent_per_s", of(|round| round.per_s).into_iter().fold(f64::NAN, f64::min)),
    ];
    Ok(figures.map(|(name, figure)| (name.to_owned(), figure)).into())
}

async fn round(token: ChildToken) -> Result<ReattachRound> {
    let folder = tempfile::tempdir().map_err(Error::system("making a state directory"))?;
    let state = folder.path().join("state");
    let first = {
        let state = state.clone();
        tokio::task::spawn_blocking(move || first_host(&state))
    };
    let shown = first.await.map_err(Error::system("joining the first host"))??;
    let killed = since_1970();
    let builder = host::builder(token, &state)?;
    let began = Instant::now();
    let manager = builder.build().await?;
    // Lines from now on were written while the new host runs.
    let there = since_1970();
    let missing = || Error::answer("the next host", "has not got the session");
    let session = manager.session(manager.reattached().first().ok_or_else(missing)?)?;
    let news = session.info().last_offset;
    read(&session, news, |_, tick| tick.at >= there).await?;
    let first_ms = began.elapsed().as_secs_f64() * 1e3;
    let (mut ticks, until) = (Vec::new(), shown.1 + AFTER);
    let mut next = 1;
    let mut in_place = false;
    read(&session, 0, |offset, tick| {
        in_place |= (offset, tick.number) == shown;
        ticks.push(tick);
        tick.number >= until
    })
    .await?;
    let mut lost = u64::from(!in_place);
    let mut doubled = 0;
    for tick in &ticks {
        lost += (tick.number + 1).saturating_sub(next);
        doubled += u64::from(tick.number + 1 < next);
        next = next.max(tick.number + 2);
    }
    session.kill(KillOptions::NOW).await?;
    manager.shutdown().await;
    let after: Vec<_> = ticks.iter().filter(|tick| tick.at >= killed).collect();
    let per_s = match (after.first(), after.last()) {
        (Some(from), Some(to)) => {
            to.number.saturating_sub(from.number) as f64 / to.at.saturating_sub(from.at).as_secs_f64()
        }
        _ => 0.0,
    };
    Ok(ReattachRound { first_ms, per_s, lost, doubled })
}

/// Reads a session's lines, with their offsets, until `is_last`. Checks that the offsets of all events have no
/// holes.
async fn read(session: &SessionHandle, from: u64, mut is_last: impl FnMut(u64, TickLine) -> bool) -> Result<()> {
    let (mut events, mut batch, mut last) = (session.subscribe_from(from), Vec::new(), from);
    loop {
        let late = |_| Error::Deadline { operation: "the next lines".to_owned(), after: PATIENCE };
        if !tokio::time::timeout(PATIENCE, events.next_batch(&mut batch)).await.map_err(late)? {
            return Err(Error::answer("the session", "ended"));
        }
        for envelope in batch.drain(..) {
            if envelope.offset != last + 1 || matches!(envelope.event, Event::SessionGap(_)) {
                return Err(Error::answer("the stream", format!("has {envelope:?} behind offset {last}")));
            }
            last = envelope.offset;
            if TickLine::of(&envelope).is_some_and(|tick| is_last(envelope.offset, tick)) {
                return Ok(());
            }
        }
    }
}

/// Starts a host with a session, and kills it while the session writes. Returns offset and number of the last line
/// that the host showed.
fn first_host(state: &Path) -> Result<(u64, u64)> {
    let args = ["reattach-host".into(), state.as_os_str().to_owned()];
    let child = programs::start(programs::own()?.as_os_str(), &args).map_err(Error::system("starting a host"))?;
    let mut child = KilledOnDrop(child);
    let mut shown = None;
    if let Some(stdout) = child.0.stdout.take() {
        let mut is_killed = false;
        for line in BufReader::new(stdout).lines() {
            let line = line.map_err(Error::system("reading what a host shows"))?;
            let parsed =
                line.split_once(' ').and_then(|(offset, number)| Some((offset.parse().ok()?, number.parse().ok()?)));
            // The last line may be cut off.
            let Some((offset, number)) = parsed else { continue };
            shown = Some((offset, number));
            if number >= BEFORE && !std::mem::replace(&mut is_killed, true) {
                child.0.kill().map_err(Error::system("killing a host"))?;
            }
        }
    }
    child.0.wait().map_err(Error::system("waiting for a host"))?;
    shown.ok_or_else(|| Error::answer("the first host", "has shown nothing"))
}

/// Child that is killed and reaped when dropped.
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // Fails only for a child that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the host that is killed: prints offset and number of the last line of each batch that it receives.
///
/// # Errors
/// Any failure; when nobody reads the output any more.
pub(crate) fn serve_host(token: ChildToken, state: &Path) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(Error::system("making a runtime"))?.block_on(async {
        let manager = host::builder(token, state)?.build().await?;
        let command = programs::ticks_argv(PER_SECOND)?;
        let config = AgentSessionConfig {
            command,
            on_host_death: FETCHED,
            verbatim: Some(false),
            ..AgentSessionConfig::new("command")
        };
        let session = manager.start_session(config).await?;
        let (mut events, mut batch) = (session.subscribe(), Vec::new());
        let mut out = io::stdout().lock();
        while events.next_batch(&mut batch).await {
            let last = batch
                .drain(..)
                .filter_map(|envelope| Some((envelope.offset, TickLine::of(&envelope)?.number)))
                .next_back();
            if let Some((offset, number)) = last {
                writeln!(out, "{offset} {number}").map_err(Error::system("telling what was shown"))?;
            }
        }
        Ok(())
    })
}

/// Runs the agent: writes `per_second` lines a second, each with its number and time. Catches up after a delay.
/// Ends when nobody reads its output.
///
/// # Errors
/// When the output is closed.
pub(crate) fn serve_ticks(per_second: u64) -> Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let (began, mut told) = (Instant::now(), 0);
    // Few lines come one by one.
    let beat = Duration::from_secs(1).checked_div(u32::try_from(per_second).unwrap_or(u32::MAX)).unwrap_or(BEAT);
    let beat = if beat < Duration::from_millis(1) { BEAT } else { beat };
    loop {
        let due = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX).saturating_mul(per_second) / 1_000_000;
        let at = since_1970().as_micros();
        for number in told..due {
            writeln!(out, "{number} {at}").map_err(Error::system("writing lines"))?;
        }
        told = due;
        out.flush().map_err(Error::system("writing lines"))?;
        thread::sleep(beat);
    }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
