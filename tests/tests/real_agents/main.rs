//! The real agents × what they are put through, by `ProxyManager` alone: `tests/real-agents/run`, which says how.
//!
//! Without an installed agent its cells fail; none is ever skipped.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "its output is for whoever runs it")]

mod args;

use std::{
    collections::VecDeque,
    io::Write,
    num::NonZero,
    path::PathBuf,
    process::ExitCode,
    sync::{Mutex, PoisonError},
    thread,
    time::Instant,
};

use agent_proxy_tests::real_agents::{self, Agent, Cell, Outcome, Programs, Way, scenarios::Scenario};

use crate::args::{Args, Form};

/// The variable with the folder that `tests/real-agents/install` prints.
const AGENTS: &str = "AGENT_PROXY_AGENTS";
/// What a start through us may be of the agent's own.
const MOST: f64 = 1.05;
/// Longest start of a session that is warm, in milliseconds.
const MOST_WARM: f64 = 15.0;
/// Cells at once beside one for each processor: an agent that waits before it tries again leaves its processor to another. One
/// takes up to 370 MB.
const MORE_AT_ONCE: usize = 1;

fn main() -> ExitCode {
    let args = match Args::parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(usage) => {
            eprintln!("{usage}");
            return ExitCode::from(2);
        }
    };
    let Some(agents) = std::env::var_os(AGENTS) else {
        eprintln!("{AGENTS} is not set: it is the folder that tests/real-agents/install prints");
        return ExitCode::from(2);
    };
    let programs = Programs {
        child: PathBuf::from(env!("CARGO_BIN_EXE_proxy-child")),
        agents: PathBuf::from(agents).join("bin"),
        mcp: PathBuf::from(env!("CARGO_BIN_EXE_mcp-server")),
        relay: PathBuf::from(env!("CARGO_BIN_EXE_relay")),
    };
    if let Some(runs) = args.starts {
        return starts(&args.agents, &programs, runs);
    }
    real_agents::keep_logs();
    // What a cell says is told in the table.
    std::panic::set_hook(Box::new(|_| {}));
    let begin = Instant::now();
    let cells = run_all(&args, &programs);
    match args.form {
        Form::Plain => println!("{}", real_agents::plain(&cells)),
        Form::Markdown => println!("{}", real_agents::markdown(&cells)),
        Form::Json => println!("{:#}", real_agents::json(&cells)),
    }
    let count = |wanted: fn(&Outcome) -> bool| cells.iter().filter(|cell| wanted(&cell.outcome)).count();
    let fails = count(|outcome| matches!(outcome, Outcome::Fail(_)));
    eprintln!(
        "real agents: {} cells, {} pass, {} unsupported, {fails} FAIL, {:.0} s",
        cells.len(),
        count(|outcome| *outcome == Outcome::Pass),
        count(|outcome| matches!(outcome, Outcome::Unsupported(_))),
        begin.elapsed().as_secs_f64()
    );
    // The page's is then to be replaced by what is printed.
    let unlike = if args.form == Form::Markdown { Vec::new() } else { real_agents::unlike_page(&cells) };
    for line in &unlike {
        eprintln!("not as in docs/agents.md (--page prints it anew): {line}");
    }
    if fails == 0 && unlike.is_empty() && !cells.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the cells, a few at once; they come back in their order.
fn run_all(args: &Args, programs: &Programs) -> Vec<Cell> {
    let wanted: Vec<(&'static Agent, &'static Scenario)> =
        args.agents.iter().flat_map(|agent| args.scenarios.iter().map(move |scenario| (*agent, *scenario))).collect();
    let queue: Mutex<VecDeque<_>> = Mutex::new(wanted.into_iter().enumerate().collect());
    let at_once = || thread::available_parallelism().map_or(1, NonZero::get) + MORE_AT_ONCE;
    let done = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..args.at_once.unwrap_or_else(at_once) {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some((at, (agent, scenario))) = next else { return };
                    let cell = runtime().block_on(real_agents::run(agent, scenario, programs));
                    progress(&cell);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((at, cell));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, cell)| cell).collect()
}

/// Measures starts, one agent after the other.
fn starts(agents: &[&'static Agent], programs: &Programs, runs: usize) -> ExitCode {
    let [own, relay, ours] = ["itself ms", "by a relay", "through us"];
    println!("{:18}{own:>10}{relay:>14}{:>8}{ours:>12}{:>8}{:>10}", "agent", "ratio", "ratio", "warm ms");
    let mut all_good = true;
    let mut folders = Vec::new();
    for agent in agents {
        let measured = runtime().block_on(async {
            let starts = real_agents::measure(agent, programs, runs).await?;
            let warm = real_agents::measure_warm(agent, programs, runs).await;
            if warm.is_err() {
                real_agents::remove(&starts.folder)?;
            }
            Ok::<_, real_agents::Failure>((starts, warm? * 1000.0))
        });
        match measured {
            Ok((starts, warm)) => {
                let [own, relay, ours] = [Way::Itself, Way::Relay, Way::Us].map(|way| starts.time(way) * 1000.0);
                let [floor, ratio] = [Way::Relay, Way::Us].map(|way| starts.ratio(way));
                all_good &= ratio <= MOST && warm <= MOST_WARM;
                println!("{:18}{own:>10.1}{relay:>14.1}{floor:>8.3}{ours:>12.1}{ratio:>8.3}{warm:>10.2}", starts.agent);
                folders.push(starts.folder);
            }
            Err(failure) => {
                all_good = false;
                println!("{:18}FAIL: {failure:?}", agent.id);
            }
        }
    }
    println!(
        "medians of {runs} turns; a ratio is the median of the turns' own, and through us at most {MOST}; a warm one at most {MOST_WARM} ms"
    );
    for left in folders.iter().filter_map(|folder| real_agents::remove(folder).err()) {
        all_good = false;
        println!("{left}");
    }
    if all_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A runtime of a cell's own: what is left in it ends with it.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// A line for each cell that was run.
fn progress(cell: &Cell) {
    let word = match &cell.outcome {
        Outcome::Pass => "pass".to_owned(),
        Outcome::Unsupported(reason) => format!("unsupported: {reason}"),
        Outcome::Fail(what) => format!("FAIL: {what}"),
    };
    let line = format!("{:5.1} s  {} · {}: {word}", cell.took.as_secs_f64(), cell.agent, cell.scenario);
    // Lost only with the terminal itself.
    let _ = writeln!(std::io::stderr(), "{line}");
}
