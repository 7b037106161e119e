//! Workspaces of sessions that ran in a terminal.

use proxy_manager::{Error, Event, SessionId, WorkspaceDiff, WorkspaceInfo, WorkspaceStore};
use proxy_server::{ProblemDetails, api::WorkspaceResult, resolve_among};

use crate::{environment, render::count, term};

/// Workspaces of sessions that ran in a terminal; `None` where the environment names no place for them.
fn local_store() -> Option<WorkspaceStore> {
    environment::workspaces().map(|directory| WorkspaceStore::new(directory, environment::base()))
}

/// Returns the local store if it has the workspace of this session.
fn local_store_of(session: &SessionId) -> Option<WorkspaceStore> {
    local_store().filter(|store| store.find(session).is_some())
}

/// Resolves the beginning of an id of a session whose workspace is here. What is none stays as it is.
///
/// # Errors
/// `ambiguous-id`.
pub(crate) fn resolve(session: &SessionId) -> Result<SessionId, ProblemDetails> {
    let known = local_store().map_or_else(Vec::new, |store| store.sessions());
    if known.contains(session) {
        return Ok(session.clone());
    }
    resolve_among(session.clone(), known.into_iter())
}

/// Lists the workspaces.
pub(crate) fn list() -> Vec<WorkspaceInfo> {
    local_store().map_or_else(Vec::new, |store| store.list())
}

/// Returns the changes of a workspace, if it is here.
///
/// # Errors
/// As [`WorkspaceStore::diff`].
pub(crate) fn diff(session: &SessionId) -> Result<Option<WorkspaceDiff>, Error> {
    local_store_of(session).map(|store| store.diff(session)).transpose()
}

/// Writes the changes of a workspace to the user's tree, and removes it, if it is here.
///
/// # Errors
/// As [`WorkspaceStore::apply`].
pub(crate) fn apply(session: &SessionId) -> Result<Option<WorkspaceResult>, Error> {
    let Some(store) = local_store_of(session) else { return Ok(None) };
    let event = store.apply(session)?;
    // Its session is over: nothing else will be changed.
    store.remove(session)?;
    Ok(Some(match event {
        Event::SessionWorkspace { source, files, .. } => WorkspaceResult { source, files: Some(files) },
        _ => WorkspaceResult::default(),
    }))
}

/// Removes a workspace with the changes in it, if it is here.
///
/// # Errors
/// As [`WorkspaceStore::remove`].
pub(crate) fn remove(session: &SessionId) -> Result<Option<WorkspaceResult>, Error> {
    let Some(store) = local_store_of(session) else { return Ok(None) };
    // The event has a number in any case.
    let files = store.find(session).and_then(|workspace| workspace.changed_files);
    Ok(Some(match store.remove(session)? {
        Event::SessionWorkspace { source, .. } => WorkspaceResult { source, files },
        _ => WorkspaceResult::default(),
    }))
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
