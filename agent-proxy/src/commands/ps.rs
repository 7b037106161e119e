//! Command `ps`.

use std::time::Duration;

use api_types::{ProcessDetails, SessionInfo, SessionState};
use ipc_protocol::{ProcessStatus, SessionId};
use serde_json::Value;

use super::sessions::parse;
use crate::{
    args::{ListingFormat, PsArgs},
    client::DaemonClient,
    command_failure::CommandFailure,
    render::{
        self,
        listing::{Column, ColumnFit, Listing, ListingRow, short_ids},
    },
    term::{self, TermStyle},
};

/// Shortest time between two looks of `--watch`: each reads `/proc`.
const SHORTEST_WATCH: Duration = Duration::from_millis(200);

/// Shows the processes of one session, or of all that have not ended; with `--watch` again and again.
pub(super) async fn run(client: &DaemonClient, args: &PsArgs, as_json: bool) -> Result<(), CommandFailure> {
    let Some(pause) = args.watch else { return show(client, args, as_json).await };
    let mut looks = tokio::time::interval(pause.max(SHORTEST_WATCH));
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        if !as_json && term::columns().is_some() {
            // The screen is cleared from its top, and nothing of the scroll-back.
            term::out("\x1b[H\x1b[2J")?;
        }
        show(client, args, as_json).await?;
    }
}

async fn show(client: &DaemonClient, args: &PsArgs, as_json: bool) -> Result<(), CommandFailure> {
    let listings = fetch(client, args).await?;
    let named = args.id.is_some();
    let form = match &args.format {
        Some(form) => form.clone(),
        None if as_json => ListingFormat::Json,
        None => ListingFormat::Table,
    };
    // As ever, pids of JSON are in its objects.
    if form != ListingFormat::Table {
        let rows = listings.into_iter().flat_map(|(_, listing)| listing.rows()).collect();
        return Listing { columns: COLUMNS, rows }.print(&form, "");
    }
    let ids: Vec<&str> = listings.iter().map(|(session, _)| session.metadata.session_id.as_str()).collect();
    let short = short_ids(&ids);
    let mut text = String::new();
    for ((session, listing), short) in listings.into_iter().zip(short) {
        if args.pids {
            text.extend(listing.processes.iter().map(|listed| format!("{}\n", listed.process.id.pid)));
        } else {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&tree(&session, &short, &listing));
        }
    }
    if text.is_empty() && !named && !args.pids {
        term::error_line("no sessions: start one with `agent-proxy start`");
    }
    term::out(text)
}

/// Fetches the processes of the session that is named, or of all that have not ended.
async fn fetch(client: &DaemonClient, args: &PsArgs) -> Result<Vec<(SessionInfo, ProcessListing)>, CommandFailure> {
    let sessions: Vec<SessionInfo> = match &args.id {
        Some(id) => vec![client.get(&format!("/v1/sessions/{id}")).await?],
        None => client.get_list("/v1/sessions?archived=true").await?,
    };
    let named = args.id.is_some();
    let mut listings = Vec::new();
    for session in sessions {
        if !named && session.state.stopped_by().is_some() {
            continue;
        }
        match ProcessListing::fetch(client, &session.metadata.session_id, args.all).await {
            Ok(listing) => listings.push((session, listing)),
            // The session ended and was deleted since the list was made.
            Err(CommandFailure::Problem(problem))
                if !named && matches!(problem.kind.as_str(), "unknown-session" | "ended") => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(listings)
}

/// Columns of a process, for templates: the table is a tree.
const COLUMNS: &[Column] = &[
    Column { key: "pid", heading: "PID", fit: ColumnFit::Number, from: 0 },
    Column { key: "session", heading: "SESSION", fit: ColumnFit::Id, from: 0 },
    Column { key: "cpu", heading: "CPU%", fit: ColumnFit::Number, from: 0 },
    Column { key: "rss", heading: "RSS", fit: ColumnFit::Number, from: 0 },
    Column { key: "ports", heading: "PORTS", fit: ColumnFit::End, from: 0 },
    Column { key: "command", heading: "COMMAND", fit: ColumnFit::End, from: 0 },
];

/// Processes of a session.
struct ProcessListing {
    processes: Vec<ProcessDetails>,
    /// JSON of the same processes as the daemon sent it.
    json: Vec<Value>,
}

impl ProcessListing {
    /// Fetches the live processes, and with `all` the known ended ones.
    async fn fetch(client: &DaemonClient, id: &SessionId, all: bool) -> Result<Self, CommandFailure> {
        let mut json: Vec<Value> = client.get(&format!("/v1/sessions/{id}/processes")).await?;
        let mut processes: Vec<ProcessDetails> = parse(Value::Array(json.clone()))?;
        let shown = |listed: &ProcessDetails| all || listed.process.status == ProcessStatus::Running;
        let mut keep = processes.iter().map(shown).collect::<Vec<_>>().into_iter();
        json.retain(|_| keep.next().unwrap_or(false));
        processes.retain(shown);
        Ok(Self { processes, json })
    }

    fn rows(self) -> impl Iterator<Item = ListingRow> {
        let cells = |ProcessDetails { process, listening, .. }: &ProcessDetails| {
            let ports: Vec<String> = listening.iter().map(ToString::to_string).collect();
            vec![
                process.id.pid.to_string(),
                process.session_id.to_string(),
                process.cpu_percent.map_or_else(String::new, |cpu| format!("{cpu:.1}")),
                process.rss_bytes.map_or_else(String::new, render::bytes),
                ports.join(", "),
                term::printable(&process.command_line(), false),
            ]
        };
        self.processes
            .into_iter()
            .zip(self.json)
            .map(move |(process, json)| ListingRow { cells: cells(&process), json })
    }
}

fn tree(session: &SessionInfo, short: &str, listing: &ProcessListing) -> String {
    let style = TermStyle::stdout();
    let mut text = render::sessions::heading(session, short, style, term::columns());
    text.push('\n');
    if !listing.processes.is_empty() {
        text.push_str(&render::tree::render_details(&listing.processes, style, term::columns()));
    } else if let SessionState::Ended { receipt: Some(receipt), .. } = &session.state {
        text.push_str(&term::filled(&render::receipt::verdict(receipt, style), term::columns()));
    } else {
        text.push_str("no processes\n");
    }
    text
}
