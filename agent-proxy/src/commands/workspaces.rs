//! Commands `workspaces`, `diff`, `apply` and `drop`: of the daemon's sessions, and of those that ran in a terminal.

use api_types::{ProblemDetails, WorkspaceDiff, WorkspaceInfo, api::WorkspaceResult};
use ipc_protocol::SessionId;
use serde_json::{Value, json};

use super::client;
use crate::{
    args::{GlobalArgs, ListingFormat, WorkspaceDiffArgs},
    command_failure::CommandFailure,
    engine,
    render::{self, count},
    term,
};

/// Lists the workspaces.
pub(super) async fn list(global: &GlobalArgs, form: &ListingFormat) -> Result<(), CommandFailure> {
    let mut workspaces = engine::workspaces::list();
    match client(global)?.get::<Vec<WorkspaceInfo>>("/v1/workspaces").await {
        Ok(of_daemon) => workspaces.extend(of_daemon),
        Err(problem) if problem.kind == "no-daemon" => {}
        Err(problem) => return Err(problem.into()),
    }
    render::workspaces::listing(&workspaces)?.print(form, "no workspaces")
}

/// Prints the changes of a workspace as a patch.
pub(super) async fn diff(global: &GlobalArgs, args: &WorkspaceDiffArgs, as_json: bool) -> Result<(), CommandFailure> {
    let id = &args.id;
    let diff: WorkspaceDiff = match engine::workspaces::diff(id)? {
        Some(diff) => diff,
        None => client(global)?.get(&format!("/v1/sessions/{id}/workspace/diff")).await?,
    };
    if as_json {
        return term::json(&diff);
    }
    for path in &diff.left_out {
        term::error_line(format_args!(
            "{path} is a repository of its own: changes in it are neither shown nor applied"
        ));
    }
    if args.stat {
        return term::out(render::workspaces::changed_files(&diff.files));
    }
    match diff.patch {
        Some(patch) => term::out(patch),
        None => Err(ProblemDetails::failed("the patch is longer than 16 MiB: `diff --stat` lists the files").into()),
    }
}

/// Writes the changes of a workspace to the user's tree.
pub(super) async fn apply(global: &GlobalArgs, id: &SessionId, as_json: bool) -> Result<(), CommandFailure> {
    let result = match engine::workspaces::apply(id)? {
        Some(applied) => applied,
        None => client(global)?.post(&format!("/v1/sessions/{id}/workspace/apply"), &json!({})).await?,
    };
    tell("applied to", &result, as_json)
}

/// Removes a workspace with the changes in it.
pub(super) async fn remove(global: &GlobalArgs, id: &SessionId, as_json: bool) -> Result<(), CommandFailure> {
    let result = match engine::workspaces::remove(id)? {
        Some(removed) => removed,
        None => client(global)?.delete_json(&format!("/v1/sessions/{id}/workspace")).await?,
    };
    tell("dropped, made of", &result, as_json)
}

fn tell(what: &str, result: &WorkspaceResult, as_json: bool) -> Result<(), CommandFailure> {
    if as_json {
        return term::json(&serde_json::to_value(result).unwrap_or(Value::Null));
    }
    let files = count(usize::try_from(result.files).unwrap_or(usize::MAX), "file", "files");
    term::error_line(format_args!("{files} {what} {}", result.source));
    Ok(())
}
