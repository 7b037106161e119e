//! What a durable log costs, beside its floors.
//!
//! ```sh
//! bench/log             # a table
//! bench/log --check     # exit code 1 when a bar is not reached
//! ```

mod floors;
mod ours;

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    process::ExitCode,
};

/// Rounds; every figure is the median of them.
const ROUNDS: usize = 3;

/// What the benches return.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// One figure: its name, its unit's decimals, and what it has to reach.
struct Figure {
    name: &'static str,
    decimals: usize,
    bar: Option<Bar>,
    samples: Vec<f64>,
}

#[derive(Clone, Copy)]
enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

/// All figures, in the order in which they came.
#[derive(Default)]
struct Report(Vec<Figure>);

impl Report {
    fn add(&mut self, name: &'static str, decimals: usize, bar: Option<Bar>, sample: f64) {
        match self.0.iter_mut().find(|figure| figure.name == name) {
            Some(figure) => figure.samples.push(sample),
            None => self.0.push(Figure { name, decimals, bar, samples: vec![sample] }),
        }
    }
}

impl Figure {
    fn median(&self) -> f64 {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    }

    /// Whether its bar is reached; `None` where there is none.
    fn reached(&self) -> Option<bool> {
        self.bar.map(|bar| match bar {
            Bar::AtLeast(least) => self.median() >= least,
            Bar::AtMost(most) => self.median() <= most,
        })
    }

    fn line(&self) -> String {
        let decimals = self.decimals;
        let low = self.samples.iter().copied().fold(f64::INFINITY, f64::min);
        let high = self.samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let spread = format!("({low:.decimals$} .. {high:.decimals$})");
        let mut line = format!("{:<58} {:>12.decimals$} {spread:>26}", self.name, self.median());
        let bar = match self.bar {
            None => return line,
            Some(Bar::AtLeast(least)) => format!(">= {least}"),
            Some(Bar::AtMost(most)) => format!("<= {most}"),
        };
        let word = if self.reached() == Some(true) { "ok" } else { "NOT REACHED" };
        // Writing to a string does not fail.
        let _ = write!(line, "  {bar:>10}  {word}");
        line
    }
}

fn main() -> ExitCode {
    let check = std::env::args().any(|arg| arg == "--check");
    let mut report = Report::default();
    let result = (0..ROUNDS).try_for_each(|_| {
        ours::many_streams(&mut report)?;
        ours::one_stream(&mut report)?;
        ours::replay(&mut report)
    });
    let mut out = io::stdout().lock();
    let written = report.0.iter().try_for_each(|figure| writeln!(out, "{}", figure.line()));
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let facts = writeln!(out, "\nmedians of {ROUNDS} rounds (lowest .. highest); load {}", load.trim());
    if let Err(error) = result.and(written.map_err(Into::into)).and(facts.map_err(Into::into)) {
        // Nobody is left to tell when standard error is closed.
        let _ = writeln!(io::stderr(), "log: {error}");
        return ExitCode::FAILURE;
    }
    let missed = report.0.iter().any(|figure| figure.reached() == Some(false));
    if check && missed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
