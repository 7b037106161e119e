//! Workspaces of sessions: list, compare, apply, drop.

use axum::extract::Path;
use proxy_manager::{Event, SessionId, WorkspaceDiff, WorkspaceInfo};

use crate::{
    ApiState,
    access::Caller,
    api::WorkspaceResult,
    requests::{JsonBody, RouteResult, to_the_end},
    route_table::api_routes,
};

api_routes! { "Workspaces", ApiState;
    /// Lists the workspaces of sessions, living and past.
    get "/v1/workspaces" list: json::<Vec<WorkspaceInfo>>(200, "The workspaces.") problems(MANAGER);
    /// Describes the workspace of a session.
    get "/v1/sessions/{id}/workspace" read: json::<WorkspaceInfo>(200, "The workspace.") problems(SESSION) problems(&["unknown-workspace"]);
    /// Compares a workspace with what it was made of, or last applied.
    get "/v1/sessions/{id}/workspace/diff" diff:
        json::<WorkspaceDiff>(200, "The changes.") problems(SESSION) problems(&["unknown-workspace", "workspace-busy", "system", "deadline", "invalid-config"]);
    /// Writes the changes of a workspace to the user's tree: all of them, or none.
    post "/v1/sessions/{id}/workspace/apply" apply:
        json::<WorkspaceResult>(200, "They are applied.")
        problems(SESSION) problems(&["unknown-workspace", "workspace-busy", "workspace-conflict", "system", "deadline", "invalid-config"]);
    /// Removes the workspace of a session that has ended or is suspended, with all changes in it.
    delete "/v1/sessions/{id}/workspace" remove:
        json::<WorkspaceResult>(200, "It is removed.") problems(SESSION) problems(&["unknown-workspace", "workspace-busy", "not-ended", "system"]);
}

/// Resolves the id of a workspace whose user the caller may see; its session may be of another host.
async fn find(caller: &Caller, id: &str) -> RouteResult<SessionId> {
    match caller.session_id(id) {
        Ok(id) => Ok(id),
        Err(unknown) => {
            let Ok(id) = id.parse::<SessionId>() else { return Err(unknown) };
            match caller.manager.workspace(&id).await {
                Ok(workspace) if caller.sees(workspace.user_id.as_deref()) => Ok(id),
                _ => Err(unknown),
            }
        }
    }
}

async fn list(caller: Caller) -> RouteResult<JsonBody<Vec<WorkspaceInfo>>> {
    let mut workspaces = caller.manager.workspaces().await?;
    workspaces.retain(|workspace| caller.sees(workspace.user_id.as_deref()));
    Ok(JsonBody(workspaces))
}

async fn read(caller: Caller, Path(id): Path<String>) -> RouteResult<JsonBody<WorkspaceInfo>> {
    Ok(JsonBody(caller.manager.workspace(&find(&caller, &id).await?).await?))
}

async fn diff(caller: Caller, Path(id): Path<String>) -> RouteResult<JsonBody<WorkspaceDiff>> {
    Ok(JsonBody(caller.manager.workspace_diff(&find(&caller, &id).await?).await?))
}

async fn apply(caller: Caller, Path(id): Path<String>) -> RouteResult<JsonBody<WorkspaceResult>> {
    let id = find(&caller, &id).await?;
    let event = to_the_end(async move { caller.manager.apply_workspace(&id).await }).await?;
    Ok(JsonBody(match event {
        Event::SessionWorkspace { source, files, .. } => WorkspaceResult { source, files: Some(files) },
        _ => WorkspaceResult::default(),
    }))
}

async fn remove(caller: Caller, Path(id): Path<String>) -> RouteResult<JsonBody<WorkspaceResult>> {
    let id = find(&caller, &id).await?;
    let removed = to_the_end(async move {
        // The event has a number in any case.
        let files = caller.manager.workspace(&id).await.ok().and_then(|workspace| workspace.changed_files);
        Ok((caller.manager.drop_workspace(&id).await?, files))
    });
    Ok(JsonBody(match removed.await? {
        (Event::SessionWorkspace { source, .. }, files) => WorkspaceResult { source, files },
        _ => WorkspaceResult::default(),
    }))
}
