//! Cost of the HTTP server: live streams, a reader that stalls, lists, and a session's whole life beside sandbox-agent.

mod http;
mod lists;
mod live;
mod peer;
mod served;

use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Args, ValueEnum};
use serde_json::json;

use crate::{
    error::{Error, Result},
    facts, programs,
    stats::median,
};

/// Figures by name.
type Measured = BTreeMap<String, f64>;

/// Variable with the number of sessions that live while pages are read.
const LIVE: &str = "AGENT_PROXY_BENCH_LIVE";
/// Number of them where nobody says another.
const MOST_LIVE: usize = 1000;

/// Part that can be measured alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServerPart {
    /// Many readers of one session, and one that stalls.
    Live,
    /// A session's life beside sandbox-agent.
    Peer,
    /// Pages of long lists.
    Lists,
}

/// Settings of a run.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServerOptions {
    /// Parts to measure [default: all]
    parts: Vec<ServerPart>,
    /// The agent-proxy that is measured [default: the one beside this program]
    #[arg(long)]
    program: Option<PathBuf>,
    /// The sandbox-agent beside which it is measured
    #[arg(long)]
    peer: Option<PathBuf>,
    /// Alternations of the part `peer`; the figures are medians
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Readers of the session
    #[arg(long, default_value_t = 200)]
    subscribers: usize,
    /// Its events in a second
    #[arg(long, default_value_t = 500)]
    rate: u64,
    /// Time for which the readers are measured, and for which one of them stalls
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Sessions in the log
    #[arg(long, default_value_t = 10_000)]
    sessions: usize,
    /// Of these, sessions that live [default: AGENT_PROXY_BENCH_LIVE, or 1000]
    #[arg(long)]
    live: Option<usize>,
}

impl ServerOptions {
    /// Returns the number of sessions that live.
    ///
    /// # Errors
    /// The variable has no number.
    fn live(&self) -> Result<usize> {
        match (self.live, std::env::var(LIVE)) {
            (Some(live), _) => Ok(live),
            (None, Err(_)) => Ok(MOST_LIVE),
            (None, Ok(text)) => {
                text.parse().map_err(|_| Error::answer(LIVE, format!("is {text:?}: no number of sessions")))
            }
        }
    }
}

/// Figure, with the bar it has to reach.
struct ServerMetric {
    key: &'static str,
    title: &'static str,
    decimals: usize,
    bar: ServerBar,
}

/// Bar of a figure.
#[derive(Clone, Copy, Debug)]
enum ServerBar {
    /// It is stated.
    None,
    /// At most this figure.
    AtMost(f64),
    /// Less than the peer's, or as little where that is nothing.
    LessThanPeer,
    /// More than the peer's.
    MoreThanPeer,
}

const fn metric(key: &'static str, title: &'static str, decimals: usize, bar: ServerBar) -> ServerMetric {
    ServerMetric { key, title, decimals, bar }
}

const METRICS: [ServerMetric; 24] = [
    metric("live_per_s", "events/s that each reader was sent", 0, ServerBar::None),
    metric("live_lost", "of these events lost, all readers", 0, ServerBar::AtMost(0.0)),
    metric("live_doubled", "doubled, or replaced by a gap", 0, ServerBar::AtMost(0.0)),
    metric("live_cores", "processor time of the server, cores", 2, ServerBar::AtMost(1.0)),
    metric("live_all_cores", "the same with fork server and proxies, cores", 2, ServerBar::None),
    metric("live_p50_ms", "agent's writing to reader, median, ms", 2, ServerBar::AtMost(5.0)),
    metric("live_p99_ms", "the same, p99, ms", 2, ServerBar::None),
    metric("live_memory_mib", "memory of the server, MiB", 1, ServerBar::None),
    metric("stalled_grown_mib", "one reader stalls: memory grows by, MiB", 2, ServerBar::AtMost(4.0)),
    metric("stalled_lost", "events it lacks without one gap", 0, ServerBar::AtMost(0.0)),
    metric("stalled_doubled", "events it was sent twice", 0, ServerBar::AtMost(0.0)),
    metric("stalled_gaps", "gaps it was sent", 0, ServerBar::AtMost(1.0)),
    metric("start_ms", "create to ready, ms", 2, ServerBar::LessThanPeer),
    metric("events_per_s", "events/s of a flood, SSE", 0, ServerBar::MoreThanPeer),
    metric("events_lost", "of 50,000 events lost", 0, ServerBar::LessThanPeer),
    metric("kill_ms", "kill to its answer, ms", 1, ServerBar::LessThanPeer),
    metric("survivors", "processes that survive it", 0, ServerBar::LessThanPeer),
    metric("gone_ms", "kill to nothing left, ms", 1, ServerBar::LessThanPeer),
    metric("memory_mib", "memory without agents, one session, MiB PSS", 1, ServerBar::None),
    metric("lists_live", "sessions that live", 0, ServerBar::None),
    metric("sessions_ms", "page of 100 sessions, median, ms", 2, ServerBar::AtMost(20.0)),
    metric("latest_ms", "the same, the latest first", 2, ServerBar::AtMost(20.0)),
    metric("records_ms", "page of 100 records, median, ms", 2, ServerBar::AtMost(20.0)),
    metric("lists_grown_mib", "memory that 300 lists add, MiB", 2, ServerBar::AtMost(1.0)),
];

/// Measures, and prints the result.
///
/// # Errors
/// A server does not start, or refuses what it should do.
pub(crate) fn run(as_json: bool, check: bool, options: &ServerOptions) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let samples = runtime.map_err(Error::system("making a runtime"))?.block_on(measure(options))?;
    let metrics: Vec<&ServerMetric> = METRICS.iter().filter(|metric| samples.contains_key(metric.key)).collect();
    let mut out = io::stdout().lock();
    let written = if as_json {
        let rows = metrics.iter().map(|metric| {
            let (ours, peer) = metric.figures(&samples);
            json!({ "figure": metric.title, "ours": finite(ours), "peer": peer.map(finite), "reached": metric.verdict(&samples).reached() })
        });
        writeln!(out, "{}", json!({ "server": rows.collect::<Vec<_>>(), "load": load() }))
    } else {
        let head = format!("{:<46} {:>11} {:>14}  bar", "", "agent-proxy", "sandbox-agent");
        let mut lines = metrics.iter().map(|metric| metric.line(&samples));
        writeln!(out, "{head}")
            .and_then(|()| lines.try_for_each(|line| writeln!(out, "{line}")))
            .and_then(|()| {
                let ServerOptions { subscribers, rate, seconds, sessions, rounds, .. } = options;
                writeln!(
                    out,
                    "\n{subscribers} readers at {rate} events/s for {seconds} s; {sessions} sessions in the log; \
                     {rounds} alternations; load {}",
                    load()
                )
            })
            .and_then(|()| match options.peer {
                None => writeln!(out, "NOT RUN: sandbox-agent is not there: bench/server installs it with npm"),
                Some(_) => Ok(()),
            })
            .and_then(|()| writeln!(out, "{}", facts::line()))
    };
    written.map_err(Error::system("printing"))?;
    let missed = metrics.iter().any(|metric| metric.verdict(&samples) == BarVerdict::Missed);
    Ok(if check && missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Samples by name.
type ServerSamples = BTreeMap<String, Vec<f64>>;

async fn measure(options: &ServerOptions) -> Result<ServerSamples> {
    let program = match &options.program {
        Some(program) => program.clone(),
        None => programs::own()?.with_file_name("agent-proxy"),
    };
    let parts = if options.parts.is_empty() { ServerPart::value_variants() } else { &options.parts };
    let mut samples = ServerSamples::new();
    let mut add = |figures: Measured| {
        figures.into_iter().for_each(|(name, figure)| samples.entry(name).or_default().push(figure));
    };
    for part in parts {
        match part {
            ServerPart::Live => add(live::measure(&program, options).await?),
            ServerPart::Lists => add(lists::measure(&program, options).await?),
            ServerPart::Peer => {
                for round in 0..options.rounds.max(1) {
                    add(peer::measure(&program, options.peer.as_deref(), round).await?);
                }
            }
        }
    }
    Ok(samples)
}

/// Figure beside its bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BarVerdict {
    None,
    Reached,
    /// Within a tenth of it.
    Close,
    Missed,
}

impl BarVerdict {
    fn reached(self) -> Option<bool> {
        match self {
            Self::None => None,
            Self::Reached | Self::Close => Some(true),
            Self::Missed => Some(false),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Reached => "ok",
            Self::Close => "within 10 %",
            Self::Missed => "NOT REACHED",
        }
    }
}

impl ServerMetric {
    /// Medians of both.
    fn figures(&self, samples: &ServerSamples) -> (f64, Option<f64>) {
        let of = |key: &str| samples.get(key).and_then(|figures| median(figures));
        (of(self.key).unwrap_or(f64::NAN), of(&format!("{}_peer", self.key)))
    }

    fn verdict(&self, samples: &ServerSamples) -> BarVerdict {
        let (ours, peer) = self.figures(samples);
        let at_most = |most: f64| match ours {
            ours if ours <= most => BarVerdict::Reached,
            ours if ours <= most * 1.1 => BarVerdict::Close,
            _ => BarVerdict::Missed,
        };
        match (self.bar, peer) {
            (ServerBar::None, _) | (ServerBar::LessThanPeer | ServerBar::MoreThanPeer, None) => BarVerdict::None,
            (ServerBar::AtMost(most), _) => at_most(most),
            (ServerBar::LessThanPeer, Some(peer)) => at_most(peer),
            (ServerBar::MoreThanPeer, Some(peer)) if ours >= peer => BarVerdict::Reached,
            (ServerBar::MoreThanPeer, Some(peer)) if ours * 1.1 >= peer => BarVerdict::Close,
            (ServerBar::MoreThanPeer, Some(_)) => BarVerdict::Missed,
        }
    }

    fn line(&self, samples: &ServerSamples) -> String {
        let (ours, peer) = self.figures(samples);
        let bar = match self.bar {
            ServerBar::None => String::new(),
            ServerBar::AtMost(most) => format!("<= {most}"),
            ServerBar::LessThanPeer => "<= peer".to_owned(),
            ServerBar::MoreThanPeer => ">= peer".to_owned(),
        };
        let (ours, peer) = (self.text(ours), peer.map_or_else(String::new, |peer| self.text(peer)));
        let word = self.verdict(samples).word();
        format!("{:<46} {ours:>11} {peer:>14}  {bar:<8} {word}", self.title).trim_end().to_owned()
    }

    fn text(&self, figure: f64) -> String {
        if figure.is_infinite() { "never".to_owned() } else { format!("{figure:.*}", self.decimals) }
    }
}

/// Number for JSON, which has no infinity: `null` is never.
fn finite(figure: f64) -> Option<f64> {
    figure.is_finite().then_some(figure)
}

/// Returns the load of the whole machine.
fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(figures: &[(&str, f64)]) -> ServerSamples {
        figures.iter().map(|(name, figure)| ((*name).to_owned(), vec![*figure])).collect()
    }

    #[test]
    fn a_figure_is_held_against_its_bar() {
        let of = |key: &str| METRICS.iter().find(|metric| metric.key == key).expect("there is one");
        let verdict = |key: &str, figures: &[(&str, f64)]| of(key).verdict(&samples(figures));
        assert_eq!(verdict("live_cores", &[("live_cores", 0.9)]), BarVerdict::Reached);
        assert_eq!(verdict("live_cores", &[("live_cores", 1.05)]), BarVerdict::Close);
        assert_eq!(verdict("live_lost", &[("live_lost", 1.0)]), BarVerdict::Missed);
        assert_eq!(verdict("kill_ms", &[("kill_ms", 20.0)]), BarVerdict::None);
        let never = [("kill_ms", 20.0), ("kill_ms_peer", f64::INFINITY)];
        assert_eq!(verdict("kill_ms", &never), BarVerdict::Reached);
        assert!(of("kill_ms").line(&samples(&never)).contains("never"));
        let slow = [("events_per_s", 10.0), ("events_per_s_peer", 20.0)];
        assert_eq!(verdict("events_per_s", &slow), BarVerdict::Missed);
    }

    #[test]
    fn each_figure_has_its_name_once() {
        for (at, one) in METRICS.iter().enumerate() {
            assert!(METRICS[..at].iter().all(|other| other.key != one.key), "{}", one.key);
        }
    }
}
