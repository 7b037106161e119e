//! Metrics, their bars, and the output of a run.

use std::collections::BTreeMap;

use comfy_table::{Cell, CellAlignment, Table, presets};
use serde_json::{Map, Value, json};

use crate::stats::median;

/// Contestant with the cost of the kernel and the codec alone.
const FLOOR: &str = "floor";
/// Contestant with Node's `child_process.fork`.
pub(crate) const PEER: &str = "peer";
/// Contestant with the product.
const OURS: &str = "ours";

/// The contestants, in the order in which they alternate.
pub(crate) const CONTESTANTS: [&str; 3] = [FLOOR, PEER, OURS];

/// Suffix of a figure taken on any CPU, where the same was also taken on one.
pub(crate) const ANY_CPU: &str = "_any_cpu";

/// Figure that must be reached.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RequiredFigure {
    /// At most this many times the floor.
    FloorTimes(f64),
    /// This many times better than the peer.
    BetterThanPeer(f64),
    /// At most this figure.
    AtMost(f64),
    /// At least this figure.
    AtLeast(f64),
}

/// Description of a measured figure.
#[derive(Debug)]
pub(crate) struct CompareMetric {
    /// Name in JSON.
    pub(crate) key: &'static str,
    /// Name for people, with its unit.
    title: &'static str,
    /// Number of meaningful decimals.
    decimals: usize,
    /// True when less is better.
    less: bool,
    /// True for a figure in the table only.
    aside: bool,
    /// Bars that must be reached.
    bars: &'static [RequiredFigure],
}

/// All metrics, in the order of the report.
pub(crate) const METRICS: [CompareMetric; 8] = [
    CompareMetric {
        key: "start_ms",
        title: "session start to ready, baseline layer, ms",
        decimals: 3,
        less: true,
        aside: false,
        bars: &[RequiredFigure::FloorTimes(3.0), RequiredFigure::BetterThanPeer(15.0)],
    },
    CompareMetric {
        key: "start_default_ms",
        title: "session start to ready, default layer, ms",
        decimals: 3,
        less: true,
        aside: true,
        bars: &[],
    },
    CompareMetric {
        key: "idle_pss_kib",
        title: "idle memory, mean PSS of 20, KiB",
        decimals: 0,
        less: true,
        aside: false,
        bars: &[RequiredFigure::AtMost(512.0), RequiredFigure::BetterThanPeer(15.0)],
    },
    CompareMetric {
        key: "rtt_us",
        title: "round trip on one CPU, µs",
        decimals: 1,
        less: true,
        aside: false,
        bars: &[RequiredFigure::FloorTimes(4.0)],
    },
    CompareMetric {
        key: "rtt_us_any_cpu",
        title: "round trip on any CPU, µs",
        decimals: 1,
        less: true,
        aside: true,
        bars: &[],
    },
    CompareMetric {
        key: "events_per_s_proxy",
        title: "events/s, proxy to subscriber, 64 B",
        decimals: 0,
        less: false,
        aside: false,
        bars: &[RequiredFigure::AtLeast(1e6), RequiredFigure::BetterThanPeer(4.0)],
    },
    CompareMetric {
        key: "events_per_s_stdout",
        title: "events/s, agent's line to subscriber, 64 B",
        decimals: 0,
        less: false,
        aside: false,
        bars: &[],
    },
    CompareMetric {
        key: "fork_server_pss_kib",
        title: "fork server, PSS, KiB",
        decimals: 0,
        less: true,
        aside: false,
        bars: &[],
    },
];

/// Samples of a run, by contestant and metric.
#[derive(Debug, Default)]
pub(crate) struct CompareSamples(BTreeMap<(&'static str, String), Vec<f64>>);

impl CompareSamples {
    /// Adds a sample.
    pub(crate) fn add(&mut self, contestant: &'static str, metric: String, sample: f64) {
        self.0.entry((contestant, metric)).or_default().push(sample);
    }

    fn of(&self, contestant: &'static str, metric: &CompareMetric) -> &[f64] {
        self.0.get(&(contestant, metric.key.to_owned())).map_or(&[], Vec::as_slice)
    }

    fn median(&self, contestant: &'static str, metric: &CompareMetric) -> Option<f64> {
        median(self.of(contestant, metric))
    }

    /// Returns the medians as one object; `null` where a contestant has no figure.
    pub(crate) fn json(&self) -> Value {
        let of_metric = |metric: &CompareMetric| -> Value {
            let one = |name: &'static str| (name.to_owned(), json!(self.median(name, metric).map(round)));
            Value::Object(CONTESTANTS.into_iter().map(one).collect::<Map<_, _>>())
        };
        Value::Object(
            METRICS
                .iter()
                .filter(|metric| !metric.aside)
                .map(|metric| (metric.key.to_owned(), of_metric(metric)))
                .collect(),
        )
    }

    /// Returns the medians beside each other, each with its spread.
    pub(crate) fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["", "floor", "Node fork", "ours", "ours / floor", "vs Node"]);
        for metric in &METRICS {
            let show = |name| self.show(name, metric);
            let [floor, peer, ours] = CONTESTANTS.map(|name| self.median(name, metric));
            let ratio =
                |a: Option<f64>, b: Option<f64>| a.zip(b).map_or("-".into(), |(a, b)| format!("{:.2} x", a / b));
            let better = if metric.less { ratio(peer, ours) } else { ratio(ours, peer) };
            let cells = [show(FLOOR), show(PEER), show(OURS), ratio(ours, floor), better];
            let cells = cells.map(|text| Cell::new(text).set_alignment(CellAlignment::Right));
            table.add_row([Cell::new(metric.title)].into_iter().chain(cells));
        }
        table
    }

    fn show(&self, contestant: &'static str, metric: &CompareMetric) -> String {
        let samples = self.of(contestant, metric);
        let Some(median) = median(samples) else { return "-".into() };
        let low = samples.iter().copied().fold(f64::INFINITY, f64::min);
        let high = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let decimals = metric.decimals;
        format!("{median:.decimals$}\n({low:.decimals$} .. {high:.decimals$})")
    }

    /// Returns one line per bar, and the verdict on it; `None` where the peer is missing.
    pub(crate) fn bars(&self) -> Vec<(String, Option<bool>)> {
        let lines = METRICS.iter().flat_map(|metric| metric.bars.iter().map(move |bar| self.bar(metric, *bar)));
        lines.collect()
    }

    fn bar(&self, metric: &CompareMetric, bar: RequiredFigure) -> (String, Option<bool>) {
        let [floor, peer, ours] = CONTESTANTS.map(|name| self.median(name, metric));
        let at_most = |n: f64, figure: Option<f64>| (figure, figure.map(|figure| figure <= n));
        let at_least = |n: f64, figure: Option<f64>| (figure, figure.map(|figure| figure >= n));
        let quotient = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a / b);
        let (asked, (figure, reached)) = match bar {
            RequiredFigure::FloorTimes(n) => (format!("<= {n} x floor"), at_most(n, quotient(ours, floor))),
            RequiredFigure::BetterThanPeer(n) => {
                let ratio = if metric.less { quotient(peer, ours) } else { quotient(ours, peer) };
                (format!(">= {n} x better than Node"), at_least(n, ratio))
            }
            RequiredFigure::AtMost(n) => (format!("<= {n}"), at_most(n, ours)),
            RequiredFigure::AtLeast(n) => (format!(">= {n}"), at_least(n, ours)),
        };
        let word = reached.map_or("nothing to compare with", |reached| if reached { "ok" } else { "NOT REACHED" });
        let figure = figure.map_or("-".into(), |figure| format!("{:.2}", round(figure)));
        (format!("{:<44} {asked:<26} {figure:>12}   {word}", metric.title), reached)
    }
}

/// Rounds to four decimals: more are noise.
fn round(figure: f64) -> f64 {
    (figure * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_there_or_null() {
        let mut samples = CompareSamples::default();
        for sample in [3.0, 1.0, 2.0] {
            samples.add(OURS, "start_ms".into(), sample);
        }
        let json = samples.json();
        assert_eq!(json["start_ms"], json!({"floor": null, "peer": null, "ours": 2.0}));
        assert_eq!(json.as_object().expect("an object").len(), 6);
    }

    #[test]
    fn bars_know_which_way_is_better() {
        let mut samples = CompareSamples::default();
        for (name, figure) in [(FLOOR, 1.0), (PEER, 60.0), (OURS, 2.0)] {
            samples.add(name, "start_ms".into(), figure);
        }
        for (name, figure) in [(FLOOR, 4e6), (PEER, 2e5), (OURS, 7e5)] {
            samples.add(name, "events_per_s_proxy".into(), figure);
        }
        let reached: Vec<_> = samples.bars().into_iter().map(|(_, reached)| reached).collect();
        let (start, memory, rtt, events) = ([Some(true); 2], [None; 2], [None], [Some(false), Some(false)]);
        assert_eq!(reached, [&start[..], &memory, &rtt, &events].concat());
    }
}
