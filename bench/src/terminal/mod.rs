//! Cost of a session's terminal, beside a bare pseudo-terminal and tmux: from a keystroke to its echo, throughput, memory and
//! start.

mod cases;
mod client;
mod contestant;

use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use comfy_table::{Cell, CellAlignment, Table, presets};
use serde_json::{Map, Value, json};

use self::{
    cases::CASES,
    contestant::{ReadyTerminal, TerminalStage, TerminalWay},
};
use crate::{
    error::{Error, Result},
    facts,
    stats::median,
};

/// Keys of a batch that are typed one by one.
const KEYS: usize = 20;
/// Time between two of them.
const KEY_INTERVAL: Duration = Duration::from_millis(50);
/// Keys of a burst.
const BURST: usize = 8;
/// Time between two of them.
const BURST_INTERVAL: Duration = Duration::from_millis(4);
/// Batches of keys and bursts of a round.
const BATCHES: usize = 3;
/// Starts of a round.
const STARTS: usize = 10;
/// Megabytes that are printed before anything is measured: they fill the scrollback.
const WARM_UP: u64 = 4;
/// First of the characters that are typed: none of a terminal's sequences has them, and a row of 120 shows each once.
const FIRST_KEY: u32 = 0x100;
/// Number of different characters.
const DIFFERENT_KEYS: u32 = 128;
/// Most that the terminal's process may grow.
const FLAT_MIB: f64 = 2.0;

/// Figure of the report.
struct TerminalMetric {
    key: String,
    title: String,
    decimals: usize,
    /// True for the 95th percentile of the samples, false for their median.
    is_tail: bool,
    bars: Vec<TerminalBar>,
}

/// Bar for ours.
#[derive(Clone, Copy, Debug)]
enum TerminalBar {
    /// At most what tmux has.
    AtMostPeer,
    /// At least what tmux has.
    AtLeastPeer,
    /// At most this much beyond the floor.
    BeyondFloor(f64),
    /// At most this figure.
    AtMost(f64),
}

/// Samples, by way and figure.
#[derive(Default)]
struct TerminalSamples(BTreeMap<(TerminalWay, String), Vec<f64>>);

/// Measures everything and prints the result.
///
/// # Errors
/// When a program does not start, or does not show what it should.
pub(crate) fn run(as_json: bool, check: bool, rounds: u32, percent: u64, program: Option<PathBuf>) -> Result<ExitCode> {
    let begin = Instant::now();
    let stage = TerminalStage::new(program)?;
    let ways: Vec<_> = TerminalWay::ALL.into_iter().filter(|way| stage.has(*way)).collect();
    let mut samples = TerminalSamples::default();
    for _ in 0..rounds.max(1) {
        starts(&stage, &ways, &mut samples)?;
        echoes(&stage, &ways, &mut samples)?;
    }
    throughput(&stage, &ways, rounds, percent, &mut samples)?;
    drop(stage);
    let metrics = metrics(percent);
    let bars: Vec<_> =
        metrics.iter().flat_map(|metric| metric.bars.iter().flat_map(|bar| samples.bar(metric, *bar))).collect();
    let mut out = io::stdout().lock();
    let written = if as_json {
        let bars: Vec<_> = bars.iter().map(|(text, reached)| json!({ "bar": text, "reached": reached })).collect();
        writeln!(out, "{}", json!({ "terminal": samples.json(&metrics), "bars": bars }))
    } else {
        writeln!(out, "{}\n", samples.table(&metrics))
            .and_then(|()| bars.iter().try_for_each(|(text, _)| writeln!(out, "{text}")))
            .and_then(|()| {
                let seconds = begin.elapsed().as_secs();
                writeln!(out, "\n{rounds} alternations, {seconds} s; load {}", load())
            })
            .and_then(|()| writeln!(out, "{}", facts::line()))
    };
    written.map_err(Error::system("printing"))?;
    let missed = bars.iter().any(|(_, reached)| *reached == Some(false));
    Ok(if check && missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Measures from the start of a program that ends at once to its end.
fn starts(stage: &TerminalStage, ways: &[TerminalWay], samples: &mut TerminalSamples) -> Result<()> {
    for _ in 0..STARTS {
        for way in ways.iter().filter(|way| **way != TerminalWay::Attached) {
            let begin = Instant::now();
            stage.start(*way)?.wait()?;
            samples.add(*way, "start_ms", begin.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok(())
}

/// Measures from a key to its echo.
fn echoes(stage: &TerminalStage, ways: &[TerminalWay], samples: &mut TerminalSamples) -> Result<()> {
    let mut terminals = ways.iter().map(|way| Ok((*way, stage.echo(*way)?))).collect::<Result<Vec<_>>>()?;
    let mut keys = (FIRST_KEY..FIRST_KEY + DIFFERENT_KEYS).cycle().filter_map(char::from_u32);
    for _ in 0..BATCHES {
        let single: Vec<char> = keys.by_ref().take(KEYS).collect();
        let burst: Vec<char> = keys.by_ref().take(BURST).collect();
        for (way, terminal) in &mut terminals {
            for key in &single {
                std::thread::sleep(KEY_INTERVAL);
                let took = terminal.client.echo(&[*key], KEY_INTERVAL)?;
                samples.add_times(*way, "echo", &took);
            }
            std::thread::sleep(KEY_INTERVAL);
            let took = terminal.client.echo(&burst, BURST_INTERVAL)?;
            samples.add_times(*way, "burst", &took);
        }
    }
    Ok(())
}

/// Measures how fast output is taken, until the last of it is shown, and the memory of the process that takes it.
fn throughput(
    stage: &TerminalStage,
    ways: &[TerminalWay],
    rounds: u32,
    percent: u64,
    samples: &mut TerminalSamples,
) -> Result<()> {
    let warm_up = stage.path().join("warm-up");
    CASES[0].write(&warm_up, WARM_UP).map_err(Error::system("writing output"))?;
    let mut files = Vec::new();
    for case in &CASES {
        let file = stage.path().join(case.key);
        let megabytes = (case.megabytes * percent / 100).max(1);
        let bytes = case.write(&file, megabytes).map_err(Error::system("writing output"))?;
        files.push((case.key, file, bytes as f64 / 1e6));
    }
    let mut terminals = Vec::new();
    for way in ways {
        let mut terminal = stage.print(*way)?;
        print_file(&mut terminal, &warm_up, "warm")?;
        let memory = HolderMemory::begin(&terminal)?;
        terminals.push((*way, terminal, memory));
    }
    for round in 0..rounds.max(1) {
        for (key, file, megabytes) in &files {
            for (way, terminal, _) in &mut terminals {
                let took = print_file(terminal, file, &format!("round-{round}"))?;
                samples.add(*way, key, megabytes / took.as_secs_f64());
            }
        }
    }
    for (way, terminal, memory) in terminals.iter().filter(|(way, ..)| *way != TerminalWay::Floor) {
        let now = memory_mib(terminal.holder, "VmRSS:")?;
        samples.add(*way, "memory_before_mib", memory.before);
        samples.add(*way, "memory_after_mib", now);
        samples.add(*way, "memory_grown_mib", memory_mib(terminal.holder, "VmHWM:")? - memory.before);
    }
    Ok(())
}

/// Lets the program print a file; returns the time until its end is shown.
fn print_file(terminal: &mut ReadyTerminal, file: &Path, round: &str) -> Result<Duration> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let mark = format!("<{name}:{round}>");
    let begin = Instant::now();
    terminal.client.write(format!("{} {mark}\n", file.display()).as_bytes())?;
    terminal.client.read_until(mark.as_bytes())?;
    Ok(begin.elapsed())
}

/// Memory of the process that has the other end of a program's terminal.
struct HolderMemory {
    before: f64,
}

impl HolderMemory {
    /// Reads it, and lets its peak begin anew, where that is allowed.
    fn begin(terminal: &ReadyTerminal) -> Result<Self> {
        let _ = std::fs::write(format!("/proc/{}/clear_refs", terminal.holder), "5");
        Ok(Self { before: memory_mib(terminal.holder, "VmRSS:")? })
    }
}

fn memory_mib(pid: u32, line: &str) -> Result<f64> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).map_err(Error::system(format!("reading {path}")))?;
    let kib =
        status.lines().find_map(|found| found.strip_prefix(line)?.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    Ok(kib.ok_or_else(|| Error::answer(path, format!("has no {line}")))? / 1024.0)
}

/// Returns the load of the whole machine.
fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned()
}

fn metrics(percent: u64) -> Vec<TerminalMetric> {
    let metric = |key: &str, title: &str, decimals, is_tail, bars: &[TerminalBar]| TerminalMetric {
        key: key.to_owned(),
        title: title.to_owned(),
        decimals,
        is_tail,
        bars: bars.to_vec(),
    };
    let echo = [TerminalBar::AtMostPeer, TerminalBar::BeyondFloor(3000.0)];
    let mut metrics = vec![
        metric("echo_us", "a key to its echo, 50 ms apart, µs", 0, false, &echo),
        metric("echo_p95_us", "the same, p95", 0, true, &[]),
        metric("burst_us", "a key to its echo, 8 keys 4 ms apart, µs", 0, false, &[]),
        metric("burst_p95_us", "the same, p95", 0, true, &[]),
    ];
    for case in &CASES {
        let title = format!("{}, {} MB, MB/s", case.title, (case.megabytes * percent / 100).max(1));
        metrics.push(metric(case.key, &title, 1, false, &[TerminalBar::AtLeastPeer]));
    }
    metrics.push(metric("memory_before_mib", "memory of its process before, MiB", 1, false, &[]));
    metrics.push(metric("memory_after_mib", "and after all of that", 1, false, &[]));
    metrics.push(metric("memory_grown_mib", "and at most, beyond before", 1, false, &[TerminalBar::AtMost(FLAT_MIB)]));
    metrics.push(metric("start_ms", "start to end of `true`, ms", 1, false, &[]));
    metrics
}

impl TerminalMetric {
    /// Returns the name of its samples.
    fn samples(&self) -> &str {
        match &*self.key {
            "echo_us" | "echo_p95_us" => "echo",
            "burst_us" | "burst_p95_us" => "burst",
            key => key,
        }
    }
}

impl TerminalSamples {
    fn add(&mut self, way: TerminalWay, name: &str, sample: f64) {
        self.0.entry((way, name.to_owned())).or_default().push(sample);
    }

    fn add_times(&mut self, way: TerminalWay, name: &str, times: &[Duration]) {
        times.iter().for_each(|time| self.add(way, name, time.as_secs_f64() * 1e6));
    }

    fn figure(&self, way: TerminalWay, metric: &TerminalMetric) -> Option<f64> {
        let samples = self.0.get(&(way, metric.samples().to_owned()))?;
        if metric.is_tail { tail(samples) } else { median(samples) }
    }

    /// Returns the figures as one object; `null` where a way has none.
    fn json(&self, metrics: &[TerminalMetric]) -> Value {
        let of_metric = |metric: &TerminalMetric| -> Value {
            let one = |way: TerminalWay| {
                (way.name().to_owned(), json!(self.figure(way, metric).map(|figure| (figure * 100.0).round() / 100.0)))
            };
            Value::Object(TerminalWay::ALL.into_iter().map(one).collect::<Map<_, _>>())
        };
        Value::Object(metrics.iter().map(|metric| (metric.key.clone(), of_metric(metric))).collect())
    }

    fn table(&self, metrics: &[TerminalMetric]) -> Table {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["", "bare PTY", "tmux", "run --tty", "attach"]);
        for metric in metrics {
            let decimals = metric.decimals;
            let cells = TerminalWay::ALL.map(|way| {
                let text = self.figure(way, metric).map_or("-".into(), |figure| format!("{figure:.decimals$}"));
                Cell::new(text).set_alignment(CellAlignment::Right)
            });
            table.add_row(std::iter::once(Cell::new(&metric.title)).chain(cells));
        }
        table
    }

    /// Returns a line for each of ours, and the verdict on it; `None` where there is nothing to compare.
    fn bar(&self, metric: &TerminalMetric, bar: TerminalBar) -> [(String, Option<bool>); 2] {
        let [floor, peer] = [TerminalWay::Floor, TerminalWay::Peer].map(|way| self.figure(way, metric));
        [(TerminalWay::Ours, "run --tty"), (TerminalWay::Attached, "attach")].map(|(way, name)| {
            let ours = self.figure(way, metric);
            let ratio = ours.zip(peer).map(|(ours, peer)| ours / peer);
            let (asked, figure, reached) = match bar {
                TerminalBar::AtMostPeer => ("<= 1 x tmux".to_owned(), ratio, ratio.map(|ratio| ratio <= 1.0)),
                TerminalBar::AtLeastPeer => (">= 1 x tmux".to_owned(), ratio, ratio.map(|ratio| ratio >= 1.0)),
                TerminalBar::BeyondFloor(most) => {
                    let beyond = ours.zip(floor).map(|(ours, floor)| ours - floor);
                    (format!("<= {most} beyond bare"), beyond, beyond.map(|beyond| beyond <= most))
                }
                TerminalBar::AtMost(most) => (format!("<= {most}"), ours, ours.map(|ours| ours <= most)),
            };
            let word = reached.map_or("nothing to compare with", |reached| if reached { "ok" } else { "NOT REACHED" });
            let figure = figure.map_or("-".into(), |figure| format!("{figure:.2}"));
            (format!("{:<52} {name:<10} {asked:<20} {figure:>8}   {word}", metric.title), reached)
        })
    }
}

/// Returns the 95th percentile; `None` without samples.
fn tail(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    sorted.get((last * 95).div_ceil(100)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_know_which_way_is_better() {
        let mut samples = TerminalSamples::default();
        for (way, echo, rate) in [(TerminalWay::Floor, 50.0, 200.0), (TerminalWay::Peer, 400.0, 30.0)] {
            samples.add(way, "echo", echo);
            samples.add(way, "lines_mb_s", rate);
        }
        samples.add(TerminalWay::Ours, "echo", 300.0);
        samples.add(TerminalWay::Ours, "lines_mb_s", 20.0);
        let metrics = metrics(100);
        let reached = |key: &str| {
            let metric = metrics.iter().find(|metric| metric.key == key).expect("a figure");
            metric.bars.iter().map(|bar| samples.bar(metric, *bar).map(|(_, reached)| reached)).collect::<Vec<_>>()
        };
        assert_eq!(reached("echo_us"), [[Some(true), None]; 2]);
        assert_eq!(reached("lines_mb_s"), [[Some(false), None]]);
        assert_eq!(samples.json(&metrics)["echo_us"]["attached"], Value::Null);
    }

    #[test]
    fn tails() {
        assert_eq!(tail(&[]), None);
        assert_eq!(tail(&[2.0, 1.0]), Some(2.0));
        assert_eq!(tail(&(0..=100).map(f64::from).collect::<Vec<_>>()), Some(95.0));
    }
}
