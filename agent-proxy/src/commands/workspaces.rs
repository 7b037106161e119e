//! Commands `workspaces`, `diff`, `apply` and `drop`: of the daemon's sessions, and of those that ran in a terminal.

use proxy_manager::{Event, SessionId, WorkspaceDiff, WorkspaceInfo, WorkspaceStore};
use proxy_server::{ProblemDetails, api::WorkspaceResult};
use serde_json::{Value, json};

use super::client;
use crate::{
    args::{GlobalArgs, ListingFormat, WorkspaceDiffArgs},
    command_failure::CommandFailure,
    environment,
    render::{self, count},
    term,
};

/// Workspaces of sessions that ran in a terminal; `None` where the environment names no place for them.
pub(super) fn local_store() -> Option<WorkspaceStore> {
    environment::workspaces().map(|directory| WorkspaceStore::new(directory, environment::base()))
}

/// Returns the local store if it has the workspace of this session.
fn local_store_of(session: &SessionId) -> Option<WorkspaceStore> {
    local_store().filter(|store| store.find(session).is_some())
}

/// Tells on standard error what a session that ran in this terminal has left in its workspace. One without changes is removed.
pub(super) fn report(session: &SessionId) {
    let Some(store) = local_store_of(session) else { return };
    match store.find(session).and_then(|workspace| workspace.changed_files) {
        Some(0) => drop(store.remove(session)),
        changed => {
            let files = changed
                .map_or_else(String::new, |files| count(usize::try_from(files).unwrap_or(usize::MAX), "file", "files"));
            term::error_line(format_args!(
                "workspace: {files} changed; `agent-proxy diff {session}` shows it, `agent-proxy apply {session}` or `drop {session}` \
                 settles it"
            ));
        }
    }
}

/// Lists the workspaces.
pub(super) async fn list(global: &GlobalArgs, form: &ListingFormat) -> Result<(), CommandFailure> {
    let mut workspaces = local_store().map_or_else(Vec::new, |store| store.list());
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
    let diff: WorkspaceDiff = match local_store_of(id) {
        Some(store) => store.diff(id)?,
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
    let result = match local_store_of(id) {
        Some(store) => {
            let event = store.apply(id)?;
            // Its session is over: nothing else will be changed.
            store.remove(id)?;
            result(&event)
        }
        None => client(global)?.post(&format!("/v1/sessions/{id}/workspace/apply"), &json!({})).await?,
    };
    tell("applied to", &result, as_json)
}

/// Removes a workspace with the changes in it.
pub(super) async fn remove(global: &GlobalArgs, id: &SessionId, as_json: bool) -> Result<(), CommandFailure> {
    let result = match local_store_of(id) {
        Some(store) => result(&store.remove(id)?),
        None => client(global)?.delete_json(&format!("/v1/sessions/{id}/workspace")).await?,
    };
    tell("dropped, made of", &result, as_json)
}

fn result(event: &Event) -> WorkspaceResult {
    match event {
        Event::SessionWorkspace { source, files, .. } => WorkspaceResult { source: source.clone(), files: *files },
        _ => WorkspaceResult::default(),
    }
}

fn tell(what: &str, result: &WorkspaceResult, as_json: bool) -> Result<(), CommandFailure> {
    if as_json {
        return term::json(&serde_json::to_value(result).unwrap_or(Value::Null));
    }
    let files = count(usize::try_from(result.files).unwrap_or(usize::MAX), "file", "files");
    term::error_line(format_args!("{files} {what} {}", result.source));
    Ok(())
}
