//! Cost of a session, beside its floors and beside Node's `child_process.fork`.
//!
//! ```sh
//! bench/compare           # a table
//! bench/compare --json    # one object
//! bench/compare --check   # exit code 1 when a bar is not reached
//! bench/kill              # from a kill to its proof
//! bench/adapters          # text through each adapter
//! bench/durable           # sessions whose events are kept
//! bench/terminal          # a program in a terminal
//! bench/server            # the HTTP server
//! bench/streams           # appends to Durable Streams
//! bench/fleet             # a fleet of four nodes
//! ```

mod adapters;
mod affinity;
mod contestant;
mod durable;
mod error;
mod facts;
mod flood;
mod floor;
mod kill;
mod lines;
mod ours;
mod programs;
mod report;
mod server;
mod shipping;
mod stats;
mod streams;
mod terminal;
mod text;

use std::{
    ffi::OsString,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use agents::Adapters;
use clap::{Parser, Subcommand};
use proxy_child::ChildToken;

use crate::{
    contestant::{Contestant, MeasureRequest},
    error::{Error, Result},
    ours::RuntimeFlavor,
    report::{CONTESTANTS, CompareSamples, PEER},
};

/// Number of rounds; every figure is their median.
const ROUNDS: u32 = 5;
/// Script of the peer, from this package.
const PEER_SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/peer.js");

/// Measures what a session costs: beside the floor (what the kernel and the codec cost alone), and beside Node's
/// child_process.fork with process.send, alternating in one run.
#[derive(Debug, Parser)]
#[command(name = "compare")]
struct BenchArgs {
    /// Print one JSON object instead of a table.
    #[arg(long, global = true)]
    json: bool,
    /// Fail when a bar is not reached.
    #[arg(long, global = true)]
    check: bool,
    /// The tokio runtime of the host.
    #[arg(long, value_enum, default_value_t)]
    runtime: RuntimeFlavor,
    #[command(subcommand)]
    part: Option<BenchRole>,
}

/// Parts that the bench plays itself.
#[derive(Clone, Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
enum BenchRole {
    /// The contestant `floor`.
    #[command(hide = true)]
    Floor,
    /// The contestant `ours`.
    #[command(hide = true)]
    Ours {
        /// Runtime of the host.
        runtime: RuntimeFlavor,
    },
    /// From a kill to its proof, beside killpg and a raw cgroup.kill.
    Kill,
    /// Text through each adapter, beside a JSON parser and a newline scan.
    Adapters,
    /// Sessions whose events are kept in SQLite.
    Durable {
        /// Parts to measure [default: all]
        parts: Vec<durable::DurablePart>,
        /// Measurements of each; the figures are medians
        #[arg(long, default_value_t = 1)]
        rounds: u32,
    },
    /// A program in a terminal, beside a bare pseudo-terminal and tmux.
    Terminal {
        /// Measurements of each; the figures are medians
        #[arg(long, default_value_t = 3)]
        rounds: u32,
        /// Share of the output that is printed, in percent
        #[arg(long, default_value_t = 100)]
        percent: u64,
        /// The agent-proxy that is measured [default: the one beside this program]
        #[arg(long)]
        program: Option<PathBuf>,
    },
    /// The HTTP server: streams, lists, and a session's life beside sandbox-agent.
    Server(server::ServerOptions),
    /// Appends to Durable Streams, over HTTP.
    Streams(streams::StreamsOptions),
    /// Events on their way to a fleet's log, and back.
    Shipping(shipping::ShippingOptions),
    /// The host of one part of `durable`.
    #[command(hide = true)]
    DurableHost {
        /// Scenario to run.
        part: durable::DurablePart,
    },
    /// The host of a session that outlives it.
    #[command(hide = true)]
    ReattachHost {
        /// State directory of the run.
        state: PathBuf,
    },
    /// The agent that says when it wrote each line.
    #[command(hide = true)]
    Ticks {
        /// Lines a second.
        per_second: u64,
    },
    /// The tree that is killed.
    #[command(hide = true)]
    Tree {
        /// Children of its root.
        count: u32,
    },
    /// The agent that writes lines.
    #[command(hide = true)]
    Lines {
        /// Bytes of a line, its newline included.
        len: usize,
    },
    /// The agent that writes some lines every some milliseconds.
    #[command(hide = true)]
    Paced {
        /// Lines at once.
        lines: u64,
        /// Milliseconds between them.
        interval_ms: u64,
    },
}

fn main() -> ExitCode {
    let token = proxy_child::run_if_child_with(&Adapters::default().with(flood::PROTOCOL, flood::make));
    // Same as `agent-proxy` does.
    registry::bound_arenas();
    let args = BenchArgs::parse();
    run(&args, token).unwrap_or_else(|error| {
        // Ignore a closed standard error: there is nowhere else to report.
        let _ = writeln!(io::stderr(), "compare: {}", ipc_protocol::ErrorChain(&error));
        ExitCode::FAILURE
    })
}

fn run(args: &BenchArgs, token: ChildToken) -> Result<ExitCode> {
    match args.part.clone() {
        Some(BenchRole::Floor) => floor::serve()?,
        Some(BenchRole::Ours { runtime }) => ours::serve(token, runtime)?,
        Some(BenchRole::Lines { len }) => lines::serve(len)?,
        Some(BenchRole::Paced { lines, interval_ms }) => lines::serve_paced(lines, Duration::from_millis(interval_ms))?,
        Some(BenchRole::DurableHost { part }) => durable::serve(token, part)?,
        Some(BenchRole::ReattachHost { state }) => durable::reattach::serve_host(token, &state)?,
        Some(BenchRole::Ticks { per_second }) => durable::reattach::serve_ticks(per_second)?,
        Some(BenchRole::Durable { parts, rounds }) => return durable::run(args.json, args.check, &parts, rounds),
        Some(BenchRole::Terminal { rounds, percent, program }) => {
            return terminal::run(args.json, args.check, rounds, percent, program);
        }
        Some(BenchRole::Streams(options)) => return streams::run(args.json, args.check, &options),
        Some(BenchRole::Shipping(options)) => return shipping::run(token, args.json, args.check, &options),
        Some(BenchRole::Server(options)) => return server::run(args.json, args.check, &options),
        Some(BenchRole::Tree { count }) => kill::tree::serve(count)?,
        Some(BenchRole::Kill) => return kill::run(args.json, args.check, args.runtime),
        Some(BenchRole::Adapters) => return adapters::run(args.json, args.check),
        None => return compare(args),
    }
    Ok(ExitCode::SUCCESS)
}

fn compare(args: &BenchArgs) -> Result<ExitCode> {
    let begin = Instant::now();
    let mut samples = CompareSamples::default();
    let mut anywhere = contestants(args.runtime)?;
    rounds(&MEASURES, &mut anywhere, "", &mut samples)?;
    rounds(&ROUND_TRIPS, &mut anywhere, report::ANY_CPU, &mut samples)?;
    drop(anywhere);
    let mut on_one_cpu = affinity::on_one_cpu(|| contestants(args.runtime))??;
    rounds(&ROUND_TRIPS, &mut on_one_cpu, "", &mut samples)?;
    drop(on_one_cpu);
    let bars = samples.bars();
    let mut out = io::stdout().lock();
    let written = if args.json {
        writeln!(out, "{}", samples.json())
    } else {
        writeln!(out, "{}\n", samples.table())
            .and_then(|()| bars.iter().try_for_each(|(line, _)| writeln!(out, "{line}")))
            .and_then(|()| {
                let seconds = begin.elapsed().as_secs();
                let runtime = args.runtime.name();
                writeln!(out, "\nmedians of {ROUNDS} alternations (lowest .. highest), {seconds} s, host on {runtime}")
            })
            .and_then(|()| writeln!(out, "{}", facts::line()))
    };
    written.map_err(Error::system("printing"))?;
    let missed = bars.iter().any(|(_, reached)| *reached == Some(false));
    Ok(if args.check && missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Takes all `measures` in rounds: floor, peer, ours, floor, peer, ours, … Adds `suffix` to the figures' names.
fn rounds(
    measures: &[fn(bool) -> Result<MeasureRequest>],
    contestants: &mut [Contestant],
    suffix: &str,
    samples: &mut CompareSamples,
) -> Result<()> {
    for _ in 0..ROUNDS {
        for measure in measures {
            for contestant in &mut *contestants {
                let request = measure(contestant.name() == PEER)?;
                for (metric, figure) in contestant.ask(&request)? {
                    samples.add(contestant.name(), metric + suffix, figure);
                }
            }
        }
    }
    Ok(())
}

/// Starts the available contestants, in the order in which they alternate.
fn contestants(runtime: RuntimeFlavor) -> Result<Vec<Contestant>> {
    let own = programs::own()?.into_os_string();
    let programs: [(OsString, Vec<OsString>); 3] = [
        (own.clone(), vec!["floor".into()]),
        ("node".into(), vec![PEER_SCRIPT.into()]),
        (own, vec!["ours".into(), runtime.name().into()]),
    ];
    let start = |(name, (program, args)): (_, (OsString, Vec<OsString>))| Contestant::start(name, &program, &args);
    // A contestant whose program is missing is left out.
    CONTESTANTS.into_iter().zip(programs).map(start).filter_map(Result::transpose).collect()
}

/// Requests to each contestant in every round, with a warm-up where it matters. The peer gets less to do, so that
/// it takes about as long.
const MEASURES: [fn(peer: bool) -> Result<MeasureRequest>; 4] = [
    |peer| Ok(MeasureRequest::Start { count: if peer { 7 } else { 60 } }),
    |_| Ok(MeasureRequest::Idle { count: 20, settle_ms: 250 }),
    |peer| {
        let count = if peer { 100_000 } else { 500_000 };
        Ok(MeasureRequest::Events { count, warm_up: count / 5, length: text::LEN })
    },
    |peer| {
        let count = if peer { 300_000 } else { 500_000 };
        let program = programs::lines_argv(text::LEN)?;
        Ok(MeasureRequest::Stdout { count, warm_up: count / 5, length: text::LEN, program })
    },
];

/// Further requests, as in [`MEASURES`]. All processes run on one CPU for these. On two CPUs the figure includes
/// the wake-up of an idle CPU or not, as the scheduler likes, which costs more than all the rest. The table shows
/// both.
const ROUND_TRIPS: [fn(peer: bool) -> Result<MeasureRequest>; 1] = [|peer| {
    let count = if peer { 5_000 } else { 10_000 };
    Ok(MeasureRequest::Rtt { count, warm_up: count / 5 })
}];
