//! Command `orphans`: finds agent processes that other tools left behind, and ends those that the user names.

mod judge;
#[cfg(test)]
mod judge_tests;
mod known_programs;
mod report;

use std::{
    io::{self, BufRead, IsTerminal},
    path::Path,
};

use agents::{
    AgentSpec,
    marks::{self, ProcessFacts},
};
use ipc_protocol::{KillCause, KillOptions, MARKER, ProcessId, Proof, Receipt, SessionId};
use proxy_manager::SESSION_MARKER;
use proxy_server::ProblemDetails;

use self::{
    judge::{OrphanReport, OrphanTree, OrphanViewer, SeenProgram, SpareReason, find_orphans},
    report::{ListedOrphan, command_of},
};
use crate::{
    args::{ListingFormat, NamedOrphan, OrphansArgs, OrphansCommand, OrphansKillArgs, OrphansListArgs},
    command_failure::CommandFailure,
    configuration,
    render::{self, listing::Listing},
    term::{self, TermStyle},
};

/// Lists the orphans, or ends some.
pub(super) async fn run(args: OrphansArgs, directory: Option<&Path>, as_json: bool) -> Result<(), CommandFailure> {
    let configuration = configuration::read(directory)?;
    let rows = configuration.catalog.rows().to_vec();
    let work = move || match args.command {
        None => list(&rows, &args.list, as_json),
        Some(OrphansCommand::List(args)) => list(&rows, &args, as_json),
        Some(OrphansCommand::Kill(args)) => kill(&rows, &args, as_json),
    };
    // It reads /proc, waits for an answer, and sleeps between the rounds of a kill.
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(ProblemDetails::failed(format!("looking for orphans: {error}")).into()))
}

fn list(rows: &[AgentSpec], args: &OrphansListArgs, as_json: bool) -> Result<(), CommandFailure> {
    let look = MachineLook::new(rows, args.all_users)?;
    let orphans = &look.report.orphans;
    if args.quiet {
        let ids = orphans.iter().filter(|orphan| orphan.doubt.is_none());
        return term::out(
            ids.map(|orphan| format!("{}@{}\n", orphan.root.pid, orphan.root.start_time)).collect::<String>(),
        );
    }
    if let Some(form) = args.format.clone().or(as_json.then_some(ListingFormat::Json))
        && form != ListingFormat::Table
    {
        let rows: Result<Vec<_>, _> =
            orphans.iter().map(|orphan| serde_json::to_value(ListedOrphan::from(orphan))).collect();
        let rows = rows.map_err(|error| ProblemDetails::failed(format!("an orphan is no JSON: {error}")))?;
        return Listing::of_json(rows).print(&form, "");
    }
    if orphans.is_empty() {
        return term::line("no orphans");
    }
    term::out(report::render(orphans, args.all_users, TermStyle::stdout(), term::columns()))?;
    if io::stderr().is_terminal() {
        term::error_line("end one: agent-proxy orphans kill PID; all: agent-proxy orphans kill --all");
    }
    Ok(())
}

fn kill(rows: &[AgentSpec], args: &OrphansKillArgs, as_json: bool) -> Result<(), CommandFailure> {
    let look = MachineLook::new(rows, args.all_users)?;
    let chosen: Vec<&OrphanTree> = if args.all {
        look.report.orphans.iter().filter(|orphan| orphan.doubt.is_none()).collect()
    } else {
        let chosen: Result<Vec<_>, _> = args.pids.iter().map(|named| look.named(*named)).collect();
        let mut chosen = chosen?;
        chosen.sort_by_key(|orphan| orphan.root);
        chosen.dedup_by_key(|orphan| orphan.root);
        chosen
    };
    if chosen.is_empty() {
        if as_json {
            return term::json(&Vec::<Receipt>::new());
        }
        return match look.report.orphans.len() {
            0 => term::line("no orphans"),
            some => {
                let some = render::count(some, "orphan", "orphans");
                term::line(format_args!("{some}, each with a ?: name the pid of one to end it"))
            }
        };
    }
    let freed = chosen.iter().map(|orphan| orphan.memory_bytes()).sum();
    let mut roots: Vec<ProcessId> = chosen.iter().map(|orphan| orphan.root).collect();
    if args.all {
        if !as_json {
            let shown: Vec<_> = chosen.into_iter().cloned().collect();
            term::out(report::render(&shown, args.all_users, TermStyle::stdout(), term::columns()))?;
        }
        if !args.yes {
            confirm(roots.len())?;
            // Somebody thought about it meanwhile.
            let again = MachineLook::new(rows, args.all_users)?;
            let is_still = |root: &ProcessId| {
                again.report.orphans.iter().any(|orphan| orphan.root == *root && orphan.doubt.is_none())
            };
            roots.retain(is_still);
        }
    }
    let receipts = registry::kill_trees(&roots, KillOptions::grace(args.grace), |id| orphan_name(id.pid));
    report_receipts(&receipts, freed, as_json)
}

/// Session id in an orphan's receipt.
fn orphan_name(pid: u32) -> SessionId {
    format!("orphan-{pid}").parse().unwrap_or_else(|_| SessionId::mint())
}

/// Asks on the terminal.
///
/// # Errors
/// `refused` if the answer is no; `usage` if nobody can be asked.
fn confirm(count: usize) -> Result<(), ProblemDetails> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(ProblemDetails::usage(
            "orphans kill --all asks on a terminal, and there is none: give --yes, or name the pids",
        ));
    }
    term::error_text(format_args!("End {}? [y/N] ", render::count(count, "orphan", "orphans")));
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    let is_yes = read.is_ok() && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes");
    if is_yes { Ok(()) } else { Err(ProblemDetails::new("refused", "nothing was signalled")) }
}

/// Prints the receipts.
///
/// # Errors
/// `survivors` if something is left.
fn report_receipts(receipts: &[Receipt], freed: u64, as_json: bool) -> Result<(), CommandFailure> {
    let whole = combined(receipts);
    if as_json {
        term::json(&receipts)?;
    } else {
        term::out(render::receipt::render(&whole, TermStyle::stdout(), term::columns()))?;
        if whole.is_empty() {
            term::line(format_args!("about {} freed", render::bytes(freed)))?;
        }
    }
    if whole.is_empty() {
        return Ok(());
    }
    let left = whole.survivors.iter().map(|id| id.pid.to_string()).collect::<Vec<_>>().join(", ");
    let advice = "another user's take root and --all-users; one in the kernel ends when that lets it go";
    Err(ProblemDetails::new("survivors", format!("these processes survived SIGKILL: {left} ({advice})")).into())
}

/// One receipt of all.
fn combined(receipts: &[Receipt]) -> Receipt {
    let mut whole = Receipt::begin("orphans".parse().unwrap_or_else(|_| SessionId::mint()), KillCause::KillProcess);
    whole.proof = Proof::ProcessGone;
    for receipt in receipts {
        whole.processes.extend(receipt.processes.iter().cloned());
        whole.survivors.extend(&receipt.survivors);
        whole.rounds = whole.rounds.max(receipt.rounds);
        whole.duration_us = whole.duration_us.max(receipt.duration_us);
        whole.omitted += receipt.omitted;
        if receipt.proof == Proof::None {
            whole.proof = Proof::None;
        }
    }
    whole
}

/// Look at the machine.
#[derive(Debug)]
struct MachineLook {
    processes: Vec<SeenProgram>,
    report: OrphanReport,
}

impl MachineLook {
    fn new(rows: &[AgentSpec], all_users: bool) -> Result<Self, ProblemDetails> {
        let uid = nix::unistd::geteuid();
        if all_users && !uid.is_root() {
            return Err(ProblemDetails::new(
                "refused",
                "--all-users takes root: other users' processes may not be looked at",
            ));
        }
        let variables = [marks::variables(rows), vec![MARKER, SESSION_MARKER]].concat();
        let found = registry::machine_processes(&variables)
            .map_err(|error| ProblemDetails::new("system", format!("listing the processes in /proc: {error}")))?;
        let recognized = |process: registry::MachineProcess| {
            let facts = ProcessFacts { program: process.program.as_deref(), argv: &process.argv, env: &process.env };
            let mark = marks::recognize(rows, facts);
            SeenProgram { process, mark }
        };
        let processes: Vec<_> = found.into_iter().map(recognized).collect();
        let viewer = OrphanViewer { pid: std::process::id(), uid: uid.as_raw(), all_users };
        let report = find_orphans(&processes, viewer);
        Ok(Self { processes, report })
    }

    /// Finds the orphan that the user means.
    ///
    /// # Errors
    /// The reason why it is none.
    fn named(&self, named: NamedOrphan) -> Result<&OrphanTree, ProblemDetails> {
        let NamedOrphan { pid, start_time } = named;
        let Some(seen) = self.processes.iter().find(|seen| seen.process.id.pid == pid) else {
            return Err(ProblemDetails::new(
                "unknown-process",
                format!("there is no process {pid}; nothing was signalled"),
            ));
        };
        if start_time.is_some_and(|start_time| start_time != seen.process.id.start_time) {
            let detail = format!("process {pid} is another one by now ({}); nothing was signalled", seen.process.name);
            return Err(ProblemDetails::new("unknown-process", detail));
        }
        match self.report.tree_of(pid) {
            Some(orphan) if orphan.root.pid == pid => Ok(orphan),
            Some(orphan) => {
                let root = orphan.root.pid;
                let detail = format!("{pid} is below orphan {root}: name {root}, which is ended with all below it");
                Err(ProblemDetails::new("refused", format!("{detail}; nothing was signalled")))
            }
            None => {
                let detail = format!("{pid} ({}) is no orphan: {}", command_of(&seen.process, 60), self.reason(seen));
                Err(ProblemDetails::new("refused", format!("{detail}; nothing was signalled")))
            }
        }
    }

    fn reason(&self, seen: &SeenProgram) -> String {
        if let Some(reason) = self.report.spared.get(&seen.process.id.pid) {
            return describe(reason);
        }
        if seen.process.has_terminal {
            return describe(&SpareReason::Terminal);
        }
        if let Some(session) = seen.process.env.get(SESSION_MARKER) {
            return describe(&SpareReason::Session(Some(session.clone())));
        }
        let parent = self.processes.iter().find(|other| other.process.id.pid == seen.process.ppid);
        match (&seen.mark, parent) {
            (None, _) => "it carries no mark of an agent".to_owned(),
            (_, Some(parent)) => format!("its parent lives ({} {})", parent.process.name, parent.process.id.pid),
            (_, None) => "its parent cannot be seen".to_owned(),
        }
    }
}

fn describe(reason: &SpareReason) -> String {
    match reason {
        SpareReason::Terminal => "it has a terminal".to_owned(),
        SpareReason::Host(pid, name) => format!("{name} {pid}, which runs it, lives"),
        SpareReason::ShowsTerminal(pid, name) => format!("{name} {pid}, in its tree, shows a terminal"),
        SpareReason::UserProgram => "its user goes on using such a program".to_owned(),
        SpareReason::Daemon(id) => format!("it is a daemon of {id}, which is meant to go on"),
        SpareReason::Owner(pid) => format!("the agent that started it lives ({pid})"),
        SpareReason::Service(unit) => format!("it is of the service {unit}, which systemctl stops"),
        SpareReason::Application(unit) => format!("the desktop started it as an application ({unit})"),
        SpareReason::Standalone => "it is an MCP server that no agent started, as far as can be seen".to_owned(),
        SpareReason::Session(Some(id)) => {
            format!("it is of session {id} of agent-proxy, which lives (agent-proxy kill {id})")
        }
        SpareReason::Session(None) => "it is of a session of agent-proxy, which lives".to_owned(),
        SpareReason::OwnCommand => "this command runs below it".to_owned(),
        SpareReason::OtherUser => "it is another user's (root may with --all-users)".to_owned(),
    }
}
