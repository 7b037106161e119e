//! Workspaces of sessions: listing, comparing, applying, dropping.

use ipc_protocol::{Event, SessionId};

use super::ProxyManager;
use crate::{
    blocking::blocking,
    error::{Error, Result},
    launch::SessionLaunch,
    session_store::RecordState,
    workspaces::{NewWorkspace, WorkspaceDiff, WorkspaceInfo, WorkspaceStore},
};

impl ProxyManager {
    /// Lists the workspaces of all sessions, living and past, by id.
    ///
    /// # Errors
    /// See [`ProxyManager`].
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    pub async fn workspaces(&self) -> Result<Vec<WorkspaceInfo>> {
        self.ensure_ready("listing workspaces")?;
        let Some(store) = self.inner.workspaces.clone() else { return Ok(Vec::new()) };
        blocking("looking at workspaces", move || store.list()).await
    }

    /// Describes the workspace of a session.
    ///
    /// # Errors
    /// [`Error::UnknownWorkspace`]. Else see [`ProxyManager`].
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    pub async fn workspace(&self, session: &SessionId) -> Result<WorkspaceInfo> {
        self.with_workspaces(session, "looking at a workspace", |store, id| {
            store.find(id).ok_or_else(|| Error::UnknownWorkspace { session: id.clone() })
        })
        .await
    }

    /// Returns the changes in a session's workspace that are not applied. While a turn runs they are those of the moment.
    ///
    /// # Errors
    /// [`Error::UnknownWorkspace`], [`Error::WorkspaceBusy`]; [`Error::System`] and [`Error::Deadline`] of git. Else see [`ProxyManager`].
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    pub async fn workspace_diff(&self, session: &SessionId) -> Result<WorkspaceDiff> {
        self.with_workspaces(session, "comparing a workspace", WorkspaceStore::diff).await
    }

    /// Writes the changes of a session's workspace to the user's tree: all of them, or none. The workspace stays; later changes in it can be
    /// applied in turn. Returns the event about it, which a session that has not ended has in its stream too.
    ///
    /// # Errors
    /// [`Error::WorkspaceConflict`] if the user's tree has changed in the same places; else as [`ProxyManager::workspace_diff`].
    ///
    /// # Cancel safety
    /// A dropped future may still take effect.
    pub async fn apply_workspace(&self, session: &SessionId) -> Result<Event> {
        let event = self.with_workspaces(session, "applying a workspace", WorkspaceStore::apply).await?;
        self.emit_workspace_event(session, event.clone()).await;
        Ok(event)
    }

    /// Removes the workspace of a session that has ended or is suspended, with all changes in it. A resume begins another one. Returns the event
    /// about it, which a suspended session has in its stream too.
    ///
    /// # Errors
    /// [`Error::NotEnded`] while the session's agent works in it; else as [`ProxyManager::workspace_diff`].
    ///
    /// # Cancel safety
    /// A dropped future may still take effect.
    pub async fn drop_workspace(&self, session: &SessionId) -> Result<Event> {
        if let Ok(known) = self.inner.session_table.get(session)
            && RecordState::from(&known.info().state).status().is_live()
        {
            return Err(Error::NotEnded { session: session.clone() });
        }
        let event = self.with_workspaces(session, "removing a workspace", WorkspaceStore::remove).await?;
        self.emit_workspace_event(session, event.clone()).await;
        Ok(event)
    }

    async fn with_workspaces<T: Send + 'static>(
        &self,
        session: &SessionId,
        operation: &str,
        call: impl FnOnce(&WorkspaceStore, &SessionId) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.ensure_ready(operation)?;
        let id = session.clone();
        let store = self.inner.workspaces.clone().ok_or_else(|| Error::UnknownWorkspace { session: id.clone() })?;
        blocking(operation, move || call(&store, &id)).await?
    }

    async fn emit_workspace_event(&self, session: &SessionId, event: Event) {
        let Ok(known) = self.inner.session_table.get(session) else { return };
        if let Err(error) = known.append_with(event, None).await {
            tracing::debug!(%session, error = %error.chain(), "event of a workspace not emitted");
        }
    }

    /// Makes the workspace of a session that is about to start. `None` if it has none, or has it already.
    pub(super) async fn make_workspace(&self, launch: &SessionLaunch) -> Result<Option<NewWorkspace>> {
        let (Some(plan), Some(store)) = (launch.workspace.clone(), self.inner.workspaces.clone()) else {
            return Ok(None);
        };
        if plan.exists {
            return Ok(None);
        }
        blocking("making a workspace", move || store.make(&plan).map(Some)).await?
    }

    /// Refuses to go on with a session whose workspace has changes that are not applied.
    pub(super) async fn check_unapplied(&self, session: &SessionId, force: bool) -> Result<()> {
        if force || self.inner.workspaces.is_none() {
            return Ok(());
        }
        match self.with_workspaces(session, "looking at a workspace", WorkspaceStore::changed_files).await? {
            0 => Ok(()),
            files => Err(Error::WorkspaceUnapplied { session: session.clone(), files }),
        }
    }

    /// Removes the workspace of a session that is deleted; returns true if there was one.
    pub(super) async fn remove_workspace(&self, session: &SessionId) -> Result<bool> {
        if self.inner.workspaces.is_none() {
            return Ok(false);
        }
        match self.with_workspaces(session, "removing a workspace", WorkspaceStore::remove).await {
            Ok(_) => Ok(true),
            Err(Error::UnknownWorkspace { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
