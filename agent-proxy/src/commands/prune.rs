//! Command `prune`.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use api_types::{ProblemDetails, SessionRecord, SessionStatus, WorkspaceInfo};
use ipc_protocol::SessionId;

use super::several::SelectedSessions;
use crate::{args::PruneArgs, client::DaemonClient, command_failure::CommandFailure, render::count, term};

/// Forgets sessions that have ended, and prints their ids.
pub(super) async fn run(client: &DaemonClient, args: &PruneArgs, as_json: bool) -> Result<(), CommandFailure> {
    let records: Vec<SessionRecord> = client.get("/v1/records").await?;
    let now = SystemTime::now();
    let mut ids: Vec<SessionId> = records
        .into_iter()
        .filter(|record| is_due(record, args.older_than, now))
        .map(|record| record.session_id)
        .collect();
    if args.dry_run && !args.force {
        let workspaces: Vec<WorkspaceInfo> = client.get("/v1/workspaces").await?;
        let changed = workspaces.iter().filter(|workspace| workspace.changed_files != Some(0));
        let changed: BTreeSet<_> = changed.map(|workspace| &workspace.session_id).collect();
        ids.retain(|id| !changed.contains(id));
    }
    if args.dry_run || ids.is_empty() {
        if as_json {
            return term::json(&ids);
        }
        let many = count(ids.len(), "session", "sessions");
        term::error_line(if args.dry_run {
            format!("{many} would be forgotten")
        } else {
            "nothing to forget".to_owned()
        });
        return term::out(ids.iter().map(|id| format!("{id}\n")).collect::<String>());
    }
    let mut forgotten = Vec::new();
    let force = if args.force { "?force=true" } else { "" };
    let delete = move |client: DaemonClient, id: SessionId| async move {
        match client.delete(&format!("/v1/sessions/{id}{force}")).await {
            // Somebody else was faster.
            Err(problem) if problem.kind == "unknown-session" => Ok(()),
            done => done,
        }
    };
    let report = |id: &SessionId, deleted: Result<(), ProblemDetails>| {
        deleted?;
        forgotten.push(id.clone());
        if as_json { Ok(()) } else { term::line(id) }
    };
    let done = SelectedSessions { ids, several: true }.each(client, as_json, delete, report).await;
    if as_json {
        term::json(&forgotten)?;
    }
    done
}

fn is_due(record: &SessionRecord, older_than: Option<Duration>, now: SystemTime) -> bool {
    let age = now.duration_since(record.updated_at).unwrap_or_default();
    record.state.status() == SessionStatus::Ended && !record.archived && older_than.is_none_or(|least| age >= least)
}
