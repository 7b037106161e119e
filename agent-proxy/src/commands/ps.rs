//! `ps`.

use proxy_manager::{ProcessInfo, ProcessStatus, SessionId};
use serde_json::Value;

use super::sessions::parse;
use crate::{
    api::{SessionView, StateView},
    args::PsArgs,
    client::Client,
    problem::Failure,
    render,
    term::{self, Style},
};

/// Shows the processes of one session, or of all that have not ended.
pub(super) async fn run(client: &Client, args: &PsArgs, as_json: bool) -> Result<(), Failure> {
    let sessions: Vec<SessionView> = match &args.id {
        Some(id) => vec![client.get(&format!("/v1/sessions/{id}")).await?],
        None => client.get("/v1/sessions").await?,
    };
    let named = args.id.is_some();
    let mut listings = Vec::new();
    for session in sessions {
        if !named && matches!(session.state, StateView::Ended { .. }) {
            continue;
        }
        match processes(client, &session.session_id, args.all).await {
            Ok(listing) => listings.push((session, listing)),
            // It ended and was forgotten since the list was made.
            Err(Failure::Problem(problem)) if !named && problem.kind == "unknown-session" => {}
            Err(failure) => return Err(failure),
        }
    }
    if as_json {
        let all: Vec<&Value> = listings.iter().flat_map(|(_, listing)| listing).collect();
        return term::json(&all);
    }
    let mut text = String::new();
    for (session, listing) in listings {
        let listing: Vec<ProcessInfo> = parse(Value::Array(listing))?;
        if args.pids {
            text.extend(listing.iter().map(|process| format!("{}\n", process.id.pid)));
        } else {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&tree(&session, &listing));
        }
    }
    if text.is_empty() && !named && !args.pids {
        term::note("no sessions: start one with `agent-proxy start`");
    }
    term::out(text)
}

/// The live processes of a session, and with `all` the ended ones that are known.
async fn processes(client: &Client, id: &SessionId, all: bool) -> Result<Vec<Value>, Failure> {
    let mut processes: Vec<Value> = client.get(&format!("/v1/sessions/{id}/processes")).await?;
    let running = serde_json::to_value(ProcessStatus::Running).unwrap_or_default();
    processes.retain(|process| all || process.get("status") == Some(&running));
    Ok(processes)
}

fn tree(session: &SessionView, processes: &[ProcessInfo]) -> String {
    let style = Style::stdout();
    let mut text = render::sessions::heading(session, style);
    text.push('\n');
    if !processes.is_empty() {
        text.push_str(&render::tree::render(processes, style, term::columns()));
    } else if let StateView::Ended { receipt: Some(receipt), .. } = &session.state {
        text.push_str(&render::receipt::verdict(receipt, style));
    } else {
        text.push_str("no processes\n");
    }
    text
}
