//! Cost of sessions that survive crashes: the events, the readers and the idle sessions of a manager with a state
//! directory. Each part runs in a separate process, so that its memory is measured alone.

mod events;
mod host;
mod idle;
mod readers;
pub(crate) mod reattach;
mod scale;

use std::{
    ffi::OsString,
    io::{self, Read, Write},
    process::ExitCode,
    time::Duration,
};

use clap::ValueEnum;
use proxy_child::ChildToken;
use serde_json::json;

use self::host::DurableHost;
use crate::{
    contestant::MeasuredFigures,
    error::{Error, Result},
    facts, programs,
    report::RequiredFigure,
    stats::median,
};

/// Longest time for one part, without the end of its sessions.
const DEADLINE: Duration = Duration::from_secs(150);

/// Part that can be measured alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DurablePart {
    /// Many sessions that all speak.
    Crowd,
    /// A single session that emits as fast as it can.
    Busy,
    /// A reader that stops, and one that comes late.
    Readers,
    /// Many sessions that do nothing.
    Idle,
    /// A session that outlives its host.
    Reattach,
    /// Short sessions beside many, and the end of many.
    Scale,
}

/// Figure, with the bar it has to reach.
struct DurableMetric {
    part: DurablePart,
    key: &'static str,
    title: &'static str,
    decimals: usize,
    bar: Option<RequiredFigure>,
}

const fn metric(
    part: DurablePart,
    key: &'static str,
    title: &'static str,
    decimals: usize,
    bar: Option<RequiredFigure>,
) -> DurableMetric {
    DurableMetric { part, key, title, decimals, bar }
}

const METRICS: [DurableMetric; 36] = [
    metric(
        DurablePart::Crowd,
        "events_per_s",
        "64 sessions: events/s, proxy to subscriber",
        0,
        Some(RequiredFigure::AtLeast(30e3)),
    ),
    metric(DurablePart::Crowd, "flood_p50_ms", "the same: append to subscriber, p50, ms", 0, None),
    metric(DurablePart::Crowd, "flood_p99_ms", "the same: append to subscriber, p99, ms", 0, None),
    metric(DurablePart::Crowd, "paced_per_s", "64 sessions, paced: events/s", 0, Some(RequiredFigure::AtLeast(30e3))),
    metric(DurablePart::Crowd, "paced_p50_ms", "the same: append to subscriber, p50, ms", 0, None),
    metric(
        DurablePart::Crowd,
        "paced_p99_ms",
        "the same: append to subscriber, p99, ms",
        0,
        Some(RequiredFigure::AtMost(25.0)),
    ),
    metric(
        DurablePart::Busy,
        "events_per_s",
        "one session: events/s, proxy to subscriber",
        0,
        Some(RequiredFigure::AtLeast(150e3)),
    ),
    metric(DurablePart::Busy, "slowest_per_s", "the same, in its slowest tenth", 0, None),
    metric(
        DurablePart::Busy,
        "grown_mib",
        "the same: host's memory grows by at most, MiB",
        1,
        Some(RequiredFigure::AtMost(64.0)),
    ),
    metric(DurablePart::Readers, "both_per_s", "two readers, none stalled: events/s", 0, None),
    metric(DurablePart::Readers, "both_grown_mib", "the same: host's memory grows by at most, MiB", 1, None),
    metric(
        DurablePart::Readers,
        "others_per_s",
        "one stalled for 30 s: events/s of the other",
        0,
        Some(RequiredFigure::AtLeast(150e3)),
    ),
    metric(
        DurablePart::Readers,
        "grown_mib",
        "the same: host's memory grows by at most, MiB",
        1,
        Some(RequiredFigure::AtMost(16.0)),
    ),
    metric(DurablePart::Readers, "late_per_s", "the stalled reader then: events/s", 0, None),
    metric(DurablePart::Readers, "all_grown_mib", "all that while, from the first event on, MiB", 1, None),
    metric(
        DurablePart::Readers,
        "replay_per_s",
        "replay of 1 M events: events/s",
        0,
        Some(RequiredFigure::AtLeast(1e6)),
    ),
    metric(DurablePart::Readers, "first_ms", "the same: to the first event, ms", 2, Some(RequiredFigure::AtMost(5.0))),
    metric(
        DurablePart::Idle,
        "starts_per_s",
        "1,000 sessions: starts/s, 32 at a time",
        0,
        Some(RequiredFigure::AtLeast(500.0)),
    ),
    metric(
        DurablePart::Idle,
        "pss_mib",
        "the same: PSS of all but the agents, MiB",
        1,
        Some(RequiredFigure::AtMost(400.0)),
    ),
    metric(DurablePart::Idle, "host_pss_mib", "the same: PSS of the host, MiB", 1, None),
    metric(
        DurablePart::Idle,
        "idle_percent",
        "the same: processor time, % of a core",
        2,
        Some(RequiredFigure::AtMost(1.0)),
    ),
    metric(DurablePart::Idle, "fork_server_percent", "of that the fork server, %", 2, None),
    metric(DurablePart::Idle, "machine_forks_per_s", "meanwhile, elsewhere on the machine: forks/s", 0, None),
    metric(
        DurablePart::Reattach,
        "first_new_ms",
        "host killed: from a new one to a new event, ms",
        1,
        Some(RequiredFigure::AtMost(300.0)),
    ),
    metric(DurablePart::Reattach, "slowest_ms", "the same, at the slowest, ms", 1, None),
    metric(
        DurablePart::Reattach,
        "agent_per_s",
        "the agent writes meanwhile, lines/s",
        0,
        Some(RequiredFigure::AtLeast(9.5e3)),
    ),
    metric(DurablePart::Reattach, "lost", "of its lines are lost", 0, Some(RequiredFigure::AtMost(0.0))),
    metric(DurablePart::Reattach, "doubled", "and doubled", 0, Some(RequiredFigure::AtMost(0.0))),
    metric(DurablePart::Scale, "alone_per_s", "short sessions/s, 8 at a time, no other", 0, None),
    metric(DurablePart::Scale, "beside_per_s", "the same beside 1,000 others", 0, None),
    metric(
        DurablePart::Scale,
        "beside_percent",
        "the same, % of those with no other",
        0,
        Some(RequiredFigure::AtLeast(70.0)),
    ),
    metric(DurablePart::Scale, "alone_in_a_row_per_s", "short sessions/s, one after the other, no other", 0, None),
    metric(DurablePart::Scale, "beside_in_a_row_per_s", "the same beside 1,000 others", 0, None),
    metric(
        DurablePart::Scale,
        "beside_in_a_row_percent",
        "the same, % of those with no other",
        0,
        Some(RequiredFigure::AtLeast(70.0)),
    ),
    metric(DurablePart::Scale, "end_all_s", "1,000 sessions end at once, s", 2, Some(RequiredFigure::AtMost(3.0))),
    metric(DurablePart::Scale, "left", "processes left of them", 0, Some(RequiredFigure::AtMost(0.0))),
];

/// Measures `parts` (all, if none is named), each in a separate process, `rounds` times, and prints the result.
///
/// # Errors
/// When a part fails.
pub(crate) fn run(as_json: bool, check: bool, parts: &[DurablePart], rounds: u32) -> Result<ExitCode> {
    let parts = if parts.is_empty() { DurablePart::value_variants() } else { parts };
    let mut measured: Vec<(&DurableMetric, Vec<f64>)> =
        METRICS.iter().filter(|metric| parts.contains(&metric.part)).map(|metric| (metric, Vec::new())).collect();
    for _ in 0..rounds.max(1) {
        for part in parts {
            let figures = apart(*part)?;
            for (metric, samples) in measured.iter_mut().filter(|(metric, _)| metric.part == *part) {
                samples.extend(figures.get(metric.key));
            }
        }
    }
    let mut out = io::stdout().lock();
    let written = if as_json {
        let rows = measured.iter().map(|(metric, samples)| {
            let reached = metric.reached(samples);
            json!({ "figure": metric.title, "median": median(samples), "samples": samples, "reached": reached })
        });
        writeln!(out, "{}", json!({ "durable": rows.collect::<Vec<_>>(), "load": load() }))
    } else {
        let mut lines = measured.iter().map(|(metric, samples)| metric.line(samples));
        lines
            .try_for_each(|line| writeln!(out, "{line}"))
            .and_then(|()| writeln!(out, "\nmedians of {rounds} (lowest .. highest); load {}", load()))
            .and_then(|()| writeln!(out, "{}", facts::line()))
    };
    written.map_err(Error::system("printing"))?;
    let missed = measured.iter().any(|(metric, samples)| metric.reached(samples) == Some(false));
    Ok(if check && missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Runs the process of one part: prints its figures.
///
/// # Errors
/// Any failure; [`Error::Deadline`].
pub(crate) fn serve(token: ChildToken, part: DurablePart) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(Error::system("making a runtime"))?;
    let figures = runtime.block_on(async {
        let host = DurableHost::new(token).await?;
        let measure = async {
            match part {
                DurablePart::Crowd => events::crowd(&host).await,
                DurablePart::Busy => events::busy(&host).await,
                DurablePart::Readers => readers::measure(&host).await,
                DurablePart::Idle => idle::measure(&host).await,
                DurablePart::Reattach => reattach::measure(token).await,
                DurablePart::Scale => scale::measure(&host).await,
            }
        };
        let late = |_| Error::Deadline { operation: format!("the part {part:?}"), after: DEADLINE };
        let figures = tokio::time::timeout(DEADLINE, measure).await.map_err(late);
        host.manager.shutdown().await;
        figures?
    });
    // A late part may still have a thread that reads; it ends with this process.
    runtime.shutdown_background();
    let figures = figures?;
    let figures = serde_json::to_string(&figures).map_err(Error::system("writing figures"))?;
    writeln!(io::stdout().lock(), "{figures}").map_err(Error::system("printing"))
}

/// Measures a part in a separate process.
fn apart(part: DurablePart) -> Result<MeasuredFigures> {
    let name = part.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let args: [OsString; 2] = ["durable-host".into(), name.clone().into()];
    let mut child = programs::start(programs::own()?.as_os_str(), &args).map_err(Error::system("starting a part"))?;
    let mut said = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut said).map_err(Error::system(format!("reading the figures of {name}")))?;
    }
    let status = child.wait().map_err(Error::system(format!("waiting for {name}")))?;
    if !status.success() {
        return Err(Error::answer(name, format!("failed: {status}")));
    }
    serde_json::from_str(&said).map_err(|_| Error::answer(name, format!("says {said:?}: no figures")))
}

impl DurableMetric {
    /// Compares with the bar; `None` without a bar or a figure.
    fn reached(&self, samples: &[f64]) -> Option<bool> {
        match (self.bar?, median(samples)?) {
            (RequiredFigure::AtLeast(least), figure) => Some(figure >= least),
            // One round above a bar of zero misses it, whatever the others are.
            (RequiredFigure::AtMost(0.0), _) => Some(samples.iter().all(|figure| *figure <= 0.0)),
            (RequiredFigure::AtMost(most), figure) => Some(figure <= most),
            (RequiredFigure::FloorTimes(_) | RequiredFigure::BetterThanPeer(_), _) => None,
        }
    }

    fn line(&self, samples: &[f64]) -> String {
        let Self { title, decimals, .. } = *self;
        let low = samples.iter().copied().fold(f64::INFINITY, f64::min);
        let high = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let middle = median(samples).unwrap_or(f64::NAN);
        let spread = format!("({low:.decimals$} .. {high:.decimals$})");
        let bar = match self.bar {
            Some(RequiredFigure::AtLeast(least)) => format!(">= {least}"),
            Some(RequiredFigure::AtMost(most)) => format!("<= {most}"),
            _ => String::new(),
        };
        let word = match self.reached(samples) {
            Some(true) => "ok",
            Some(false) => "NOT REACHED",
            None => "",
        };
        format!("{title:<50} {middle:>10.decimals$} {spread:>22}  {bar:>10}  {word}").trim_end().to_owned()
    }
}

/// Returns the load of the whole machine.
fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_held_against_its_bar() {
        let of = |key| METRICS.iter().find(|metric| metric.key == key).expect("there is one");
        assert_eq!(of("first_ms").reached(&[7.0, 1.0, 4.0]), Some(true));
        assert_eq!(of("replay_per_s").reached(&[9e5]), Some(false));
        assert_eq!(of("late_per_s").reached(&[1.0]), None);
        assert_eq!(of("first_ms").reached(&[]), None);
        assert!(of("replay_per_s").line(&[9e5]).ends_with("NOT REACHED"));
    }

    #[test]
    fn each_part_has_its_names_once() {
        for (at, one) in METRICS.iter().enumerate() {
            assert!(METRICS[..at].iter().all(|other| (other.part, other.key) != (one.part, one.key)), "{}", one.key);
        }
    }
}
