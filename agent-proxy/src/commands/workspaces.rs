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
    term::{self, printable},
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
    let id = &engine::workspaces::resolve(&args.id)?;
    let diff: WorkspaceDiff = match engine::workspaces::diff(id)? {
        Some(diff) => diff,
        None => client(global)?.get(&format!("/v1/sessions/{id}/workspace/diff")).await?,
    };
    if as_json {
        return term::json(&diff);
    }
    for path in &diff.left_out {
        term::error_line(format_args!(
            "{} is a repository of its own: changes in it are neither shown nor applied",
            printable(path, false)
        ));
    }
    if args.stat {
        return term::out(render::workspaces::changed_files(&diff.files));
    }
    match diff.patch {
        // `patch` gets the bytes; a terminal does not get what a file of the agent's makes it do.
        Some(patch) => term::out(term::for_stdout(&patch)),
        None => Err(ProblemDetails::failed("the patch is longer than 16 MiB: `diff --stat` lists the files").into()),
    }
}

/// Writes the changes of a workspace to the user's tree.
pub(super) async fn apply(global: &GlobalArgs, id: &SessionId, as_json: bool) -> Result<(), CommandFailure> {
    let id = &engine::workspaces::resolve(id)?;
    let result = match engine::workspaces::apply(id)? {
        Some(applied) => applied,
        None => client(global)?.post(&format!("/v1/sessions/{id}/workspace/apply"), &json!({})).await?,
    };
    tell(&result, as_json, applied)
}

/// Removes a workspace with the changes in it.
pub(super) async fn remove(global: &GlobalArgs, id: &SessionId, as_json: bool) -> Result<(), CommandFailure> {
    let id = &engine::workspaces::resolve(id)?;
    let result = match engine::workspaces::remove(id)? {
        Some(removed) => removed,
        None => client(global)?.delete_json(&format!("/v1/sessions/{id}/workspace")).await?,
    };
    tell(&result, as_json, dropped)
}

fn tell(result: &WorkspaceResult, as_json: bool, text: fn(&WorkspaceResult) -> String) -> Result<(), CommandFailure> {
    if as_json {
        return term::json(&serde_json::to_value(result).unwrap_or(Value::Null));
    }
    term::error_line(printable(&text(result), false));
    Ok(())
}

fn files_of(files: u64) -> String {
    count(usize::try_from(files).unwrap_or(usize::MAX), "file", "files")
}

fn applied(WorkspaceResult { source, files }: &WorkspaceResult) -> String {
    match files {
        Some(0) => {
            format!("nothing to apply: no file has changed since the workspace was made of {source}, or last applied")
        }
        files => format!("{} applied to {source}", files_of(files.unwrap_or_default())),
    }
}

fn dropped(WorkspaceResult { source, files }: &WorkspaceResult) -> String {
    match files {
        None => format!("workspace dropped, made of {source}; how many of its files had changed could not be counted"),
        Some(0) => format!("workspace dropped, made of {source}; it had no changes that were not applied"),
        Some(files) => format!("{} dropped, made of {source}", files_of(*files)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_with_the_changes() {
        let of = |files| WorkspaceResult { source: "/x".into(), files };
        assert_eq!(applied(&of(Some(2))), "2 files applied to /x");
        assert!(applied(&of(Some(0))).starts_with("nothing to apply"));
        assert_eq!(dropped(&of(Some(1))), "1 file dropped, made of /x");
        assert!(dropped(&of(Some(0))).contains("no changes that were not applied"));
        assert!(dropped(&of(None)).contains("could not be counted"));
    }
}
