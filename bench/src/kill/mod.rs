//! Time from a kill to the proof that nothing is left, for trees of several sizes and each layer, beside the cost
//! of the kernel alone.

pub(crate) mod method;
pub(crate) mod raw;
pub(crate) mod session;
pub(crate) mod tree;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io::{self, Write},
    process::ExitCode,
};

use comfy_table::{Cell, CellAlignment, Table, presets};
use serde_json::json;

use self::method::KillMethod;
use crate::{
    contestant::{Contestant, MeasureRequest},
    error::{Error, Result},
    facts,
    ours::RuntimeFlavor,
    programs,
    stats::median,
};

/// Children of the tree's root.
const SIZES: [u32; 5] = [0, 1, 10, 100, 1000];
/// Number of alternations; every figure is their median.
const ROUNDS: u32 = 5;

/// Results of one method at one size.
#[derive(Debug, Default)]
struct KillSamples {
    kill_ms: Vec<f64>,
    left: f64,
}

/// Measures everything and prints the result.
///
/// # Errors
/// When anything but a missing layer fails.
pub(crate) fn run(as_json: bool, check: bool, runtime: RuntimeFlavor) -> Result<ExitCode> {
    let own = programs::own()?.into_os_string();
    let start = |name, args: Vec<OsString>| Contestant::start(name, &own, &args);
    let (Some(mut raw), Some(mut ours)) =
        (start("floor", vec!["floor".into()])?, start("ours", vec!["ours".into(), runtime.name().into()])?)
    else {
        return Err(Error::answer("this executable", "is gone"));
    };
    let mut samples: BTreeMap<(u32, KillMethod), KillSamples> = BTreeMap::new();
    let mut absent: BTreeMap<KillMethod, String> = BTreeMap::new();
    for _ in 0..ROUNDS {
        for count in SIZES {
            for (method, _) in KillMethod::ALL {
                if absent.contains_key(&method) {
                    continue;
                }
                let contestant = if method.is_ours() { &mut ours } else { &mut raw };
                match contestant.ask(&MeasureRequest::Kill { method, count }) {
                    Ok(figures) => {
                        let samples = samples.entry((count, method)).or_default();
                        samples.kill_ms.extend(figures.get("kill_ms"));
                        samples.left = figures.get("left").copied().unwrap_or(0.0);
                    }
                    // Every system has the baseline and killpg: their failure ends the run.
                    Err(error) if matches!(method, KillMethod::Killpg | KillMethod::Baseline) => return Err(error),
                    Err(error) => drop(absent.insert(method, error.to_string())),
                }
            }
        }
    }
    let figure = |count, method| samples.get(&(count, method)).and_then(|samples| median(&samples.kill_ms));
    let bars = bars(figure);
    let mut out = io::stdout().lock();
    let written = if as_json {
        let rows: Vec<_> = samples
            .iter()
            .map(|((count, method), samples)| {
                let ms = median(&samples.kill_ms);
                json!({ "children": count, "method": method, "kill_ms": ms, "left": samples.left })
            })
            .collect();
        let bars: Vec<_> = bars.iter().map(|(text, reached)| json!({ "bar": text, "reached": reached })).collect();
        writeln!(out, "{}", json!({ "kill": rows, "bars": bars, "absent": absent }))
    } else {
        writeln!(out, "{}\n", table(&samples))
            .and_then(|()| absent.values().try_for_each(|why| writeln!(out, "NOT RUN: {why}")))
            .and_then(|()| bars.iter().try_for_each(|(text, _)| writeln!(out, "{text}")))
            .and_then(|()| {
                writeln!(out, "\nmedians of {ROUNDS} alternations; a third of each tree has left its session")
            })
            .and_then(|()| writeln!(out, "{}", facts::line()))
    };
    written.map_err(Error::system("printing"))?;
    let missed = bars.iter().any(|(_, reached)| *reached == Some(false));
    Ok(if check && missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns the text of each bar and the verdict on it; `None` where there is nothing to compare.
fn bars(figure: impl Fn(u32, KillMethod) -> Option<f64>) -> Vec<(String, Option<bool>)> {
    let times = |limit: f64, count: u32, ours: KillMethod, floor: KillMethod| {
        let ratio = figure(count, ours).zip(figure(count, floor)).map(|(ours, floor)| ours / floor);
        let shown = ratio.map_or("not measured".into(), |ratio| format!("{ratio:.2} x"));
        let text = format!("tree of {count}, cgroup layer, at most {limit} x raw cgroup.kill: {shown}");
        (text, ratio.map(|ratio| ratio <= limit))
    };
    let at_most = |text: &str, limit: f64, value: Option<f64>| {
        let shown = value.map_or("not measured".into(), |value| format!("{value:.1} ms"));
        (format!("{text}, at most {limit} ms: {shown}"), value.map(|value| value <= limit))
    };
    let beyond = |method| figure(0, method).zip(figure(0, KillMethod::Killpg)).map(|(ours, floor)| ours - floor);
    vec![
        times(1.5, 1000, KillMethod::Cgroup, KillMethod::CgroupKill),
        at_most("tree of 1000, baseline layer", 250.0, figure(1000, KillMethod::Baseline)),
        at_most("one process, baseline, beyond killpg's own", 5.0, beyond(KillMethod::Baseline)),
        at_most("one process, cgroup, beyond killpg's own", 5.0, beyond(KillMethod::Cgroup)),
        at_most("one process, strict, beyond killpg's own", 5.0, beyond(KillMethod::Strict)),
    ]
}

fn table(samples: &BTreeMap<(u32, KillMethod), KillSamples>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let heads = SIZES.map(|count| format!("1 + {count}"));
    table.set_header(std::iter::once("kill to gone, ms (left)".to_owned()).chain(heads));
    for (method, name) in KillMethod::ALL {
        let cells = SIZES.map(|count| {
            let text = samples.get(&(count, method)).map_or("-".into(), |samples| {
                let ms = median(&samples.kill_ms).unwrap_or(f64::NAN);
                format!("{ms:.2} ({})", samples.left)
            });
            Cell::new(text).set_alignment(CellAlignment::Right)
        });
        table.add_row(std::iter::once(Cell::new(name)).chain(cells));
    }
    table
}
