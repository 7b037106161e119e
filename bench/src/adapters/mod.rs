//! Speed of adapters on a stream of text: pieces of text per second on one core, beside a JSON parser alone and a
//! newline scan alone on the same bytes. Seconds are processor time, so that other load on the machine does not
//! count.

mod agent;
mod deltas;
mod protocols;

use std::{
    hint::black_box,
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use agents::Action;
use comfy_table::{Cell, CellAlignment, Table, presets};
use ipc_protocol::Event;
use nix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use self::{agent::BenchAgent, deltas::DeltaLines, protocols::BenchProtocol};
use crate::{
    affinity,
    error::{Error, Result},
    facts,
    stats::median,
};

/// Number of alternations; every figure is their median.
const ROUNDS: u32 = 7;
/// Pieces in one pass. Their bytes, some MiB, are made beforehand.
const PIECES: usize = 20_000;
/// Passes of one measurement.
const PASSES: u32 = 15;
/// Bytes given to the adapter at once: the capacity of a pipe.
const CHUNK: usize = 64 * 1024;
/// Pieces per second that an adapter has to reach.
const PER_SECOND: f64 = 1e6;

/// Pieces per second for each way of reading them.
#[derive(Debug, Default)]
struct PieceRates {
    scan: Vec<f64>,
    parse: Vec<f64>,
    adapter: Vec<f64>,
}

/// Protocol, with its measurements.
struct MeasuredProtocol {
    protocol: &'static BenchProtocol,
    deltas: DeltaLines,
    agent: BenchAgent,
    samples: PieceRates,
}

/// Measures everything and prints the result.
///
/// # Errors
/// When an adapter does not emit the text that it was given.
pub(crate) fn run(as_json: bool, check: bool) -> Result<ExitCode> {
    let measured = affinity::on_one_cpu(measure)??;
    let bars: Vec<_> = measured.iter().filter(|one| one.protocol.has_bar).flat_map(MeasuredProtocol::bars).collect();
    let mut out = io::stdout().lock();
    let written = if as_json {
        let rows: Vec<_> = measured.iter().map(MeasuredProtocol::json).collect();
        let bars: Vec<_> = bars.iter().map(|(text, reached)| json!({ "bar": text, "reached": reached })).collect();
        writeln!(out, "{}", json!({ "adapters": rows, "bars": bars }))
    } else {
        writeln!(out, "{}\n", table(&measured))
            .and_then(|()| bars.iter().try_for_each(|(text, _)| writeln!(out, "{text}")))
            .and_then(|()| {
                let pieces = PIECES * PASSES as usize;
                writeln!(
                    out,
                    "\nmedians of {ROUNDS} alternations (lowest .. highest) of {pieces} pieces each, one core"
                )
            })
            .and_then(|()| writeln!(out, "{}", facts::line()))
    };
    written.map_err(Error::system("printing"))?;
    let missed = bars.iter().any(|(_, reached)| !reached);
    Ok(if check && missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn measure() -> Result<Vec<MeasuredProtocol>> {
    let mut all = protocols::ALL.iter().map(MeasuredProtocol::new).collect::<Result<Vec<_>>>()?;
    for _ in 0..ROUNDS {
        for one in &mut all {
            one.round()?;
        }
    }
    Ok(all)
}

impl MeasuredProtocol {
    /// Brings the adapter to the point where its agent answers, and checks that it emits every piece of text
    /// unchanged.
    fn new(protocol: &'static BenchProtocol) -> Result<Self> {
        let deltas = DeltaLines::new(protocol.delta, PIECES);
        let mut agent = BenchAgent::start(protocol)?;
        let mut told = String::new();
        let mut count = 0;
        for chunk in deltas.bytes().chunks(CHUNK) {
            for action in agent.says(chunk) {
                let Action::Event(Event::Text { text }) = action else {
                    return Err(Error::answer(protocol.name, format!("made {action:?} of a piece of text")));
                };
                told.push_str(text);
                count += 1;
            }
        }
        if (count, told.as_str()) != (PIECES, deltas.text()) {
            return Err(Error::answer(protocol.name, format!("told {count} of {PIECES} pieces, or not as they stand")));
        }
        Ok(Self { protocol, deltas, agent, samples: PieceRates::default() })
    }

    fn round(&mut self) -> Result<()> {
        let Self { protocol, deltas, agent, samples } = self;
        let bytes = deltas.bytes();
        samples.scan.push(per_second(|| Ok(memchr::memchr_iter(b'\n', black_box(bytes)).count()))?);
        samples.parse.push(per_second(|| {
            let mut lines = bytes.split(|byte| *byte == b'\n').filter_map(|line| protocol.json(line));
            lines.try_fold(0, |count, line| {
                let value: Value = serde_json::from_slice(line).map_err(Error::system("parsing a recorded line"))?;
                black_box(value);
                Ok(count + 1)
            })
        })?);
        samples
            .adapter
            .push(per_second(|| Ok(bytes.chunks(CHUNK).map(|chunk| black_box(agent.says(chunk)).len()).sum()))?);
        Ok(())
    }

    fn medians(&self) -> [f64; 3] {
        let PieceRates { scan, parse, adapter } = &self.samples;
        [scan, parse, adapter].map(|samples| median(samples).unwrap_or(f64::NAN))
    }

    fn json(&self) -> Value {
        let [scan, parse, adapter] = self.medians().map(f64::round);
        json!({
            "protocol": self.protocol.name,
            "bytesPerPiece": self.bytes_per_piece(),
            "scanPerS": scan,
            "valuePerS": parse,
            "adapterPerS": adapter,
        })
    }

    fn bytes_per_piece(&self) -> usize {
        self.deltas.bytes().len() / PIECES
    }

    /// Returns the bars, and the verdict on each.
    fn bars(&self) -> [(String, bool); 2] {
        let [_, parse, adapter] = self.medians();
        let word = |reached| if reached { "ok" } else { "NOT REACHED" };
        let line = |asked: &str, figure: String, reached: bool| {
            (format!("{:<12} {asked:<34} {figure:>8}   {}", self.protocol.name, word(reached)), reached)
        };
        [
            line(">= 1 M pieces/s", format!("{:.2} M", adapter / 1e6), adapter >= PER_SECOND),
            line(">= 1 x serde_json::Value", format!("{:.2} x", adapter / parse), adapter >= parse),
        ]
    }
}

/// Measures pieces a second over [`PASSES`] passes of [`PIECES`] each.
fn per_second(mut pass: impl FnMut() -> Result<usize>) -> Result<f64> {
    let begin = processor_time()?;
    let mut count = 0;
    for _ in 0..PASSES {
        count += pass()?;
    }
    let took = processor_time()?.saturating_sub(begin);
    Ok(count as f64 / took.as_secs_f64())
}

/// Reads the processor time of this thread.
fn processor_time() -> Result<Duration> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_err(Error::system("reading this thread's clock"))?;
    Ok(time.into())
}

fn table(measured: &[MeasuredProtocol]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "M pieces of text/s",
        "bytes each",
        "newline scan",
        "serde_json::Value",
        "adapter",
        "adapter / Value",
    ]);
    for one in measured {
        let [_, parse, adapter] = one.medians();
        let PieceRates { scan, parse: parses, adapter: adapters } = &one.samples;
        let [scan, parses, adapters] = [scan, parses, adapters].map(|samples| show(samples));
        let cells = [one.bytes_per_piece().to_string(), scan, parses, adapters, format!("{:.2} x", adapter / parse)];
        let cells = cells.map(|text| Cell::new(text).set_alignment(CellAlignment::Right));
        table.add_row([Cell::new(one.protocol.name)].into_iter().chain(cells));
    }
    table
}

/// Median and spread, in millions.
fn show(samples: &[f64]) -> String {
    let low = samples.iter().copied().fold(f64::INFINITY, f64::min);
    let high = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let [median, low, high] = [median(samples).unwrap_or(f64::NAN), low, high].map(|figure| figure / 1e6);
    format!("{median:.2}\n({low:.2} .. {high:.2})")
}
