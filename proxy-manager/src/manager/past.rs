//! Facts about sessions whose conversations are to be resumed.

use std::{path::PathBuf, sync::Arc};

use ipc_protocol::{AgentSessionConfig, SessionId};

use super::{ManagerInner, ProxyManager};
use crate::{
    blocking::blocking,
    conversation_locks::ConversationLocks,
    error::{Error, Result},
    homes::SessionHomes,
    launch::{AgentDefaults, LaunchContext, PastSession, SessionLaunch},
    records::{ConversationRecord, ConversationRecords},
    session_store::SessionStore,
    session_table::SessionTable,
};

/// Places that know of past sessions.
struct PastSessions {
    directory: Arc<SessionTable>,
    homes: Arc<SessionHomes>,
    records: Arc<ConversationRecords>,
    roster: Arc<SessionStore>,
}

impl PastSessions {
    fn of(ManagerInner { session_table: directory, homes, records, roster, .. }: &ManagerInner) -> Self {
        let (directory, homes) = (directory.clone(), homes.clone());
        Self { directory, homes, records: records.clone(), roster: roster.clone() }
    }

    /// Facts about a session. Blocks.
    fn find(&self, id: &SessionId) -> Option<PastSession> {
        let Ok(session) = self.directory.get(id) else { return self.find_record(id) };
        let info = session.info();
        let home = info.metadata.home.map(PathBuf::from);
        Some(PastSession {
            agent: info.metadata.agent,
            native_session_id: info.conversation.native_session_id,
            is_home_gone: home.as_ref().is_some_and(|home| home.symlink_metadata().is_err()),
            home,
            cwd: info.metadata.cwd,
            // A restored session may lack its own configuration if it resumed another session's conversation.
            model_config: session.description().model_config.clone().or_else(|| self.records.read(id)?.model_config),
            has_ended: info.state.stopped_by().is_some(),
            is_handed_over: info.state.is_handed_over(),
        })
    }

    /// Facts about a session that this manager does not remember.
    fn find_record(&self, id: &SessionId) -> Option<PastSession> {
        let ConversationRecord { agent, native_session_id, cwd, home, model_config, .. } = self.records.read(id)?;
        // The home belongs to that session, whoever resumes it: homes know their records from the start.
        let home = match home {
            Some(home) => Some(self.homes.find_recorded(&home)?),
            None => None,
        };
        Some(PastSession {
            agent,
            native_session_id: Some(native_session_id),
            home,
            cwd,
            model_config,
            has_ended: true,
            is_handed_over: self.roster.get(id).is_some_and(|record| record.state.is_handed_over()),
            is_home_gone: false,
        })
    }
}

impl ProxyManager {
    /// Facts about a session whose conversation is to be resumed.
    ///
    /// # Errors
    /// [`Error::System`] if no thread can be had to look.
    pub(super) async fn past(&self, id: &SessionId) -> Result<Option<PastSession>> {
        let (past, id) = (PastSessions::of(&self.inner), id.clone());
        blocking("looking for a past session", move || past.find(&id)).await
    }

    /// Plans a start, in a thread: programs, settings and conversations are looked for on the disk.
    ///
    /// # Errors
    /// Those of [`SessionLaunch::plan`].
    pub(super) async fn plan(&self, config: AgentSessionConfig) -> Result<SessionLaunch> {
        let past = PastSessions::of(&self.inner);
        let (kit, leases): (Arc<AgentDefaults>, Arc<ConversationLocks>) =
            (self.agent_defaults(), self.inner.conversation_locks.clone());
        let workspaces = self.inner.workspaces.clone();
        let plan = move || {
            let around = LaunchContext {
                defaults: &kit,
                homes: &past.homes,
                workspaces: workspaces.as_ref(),
                locks: &leases,
                past_session: &|id| past.find(id),
            };
            SessionLaunch::plan(config, &around)
        };
        let launch = blocking("planning a session's start", plan).await??;
        if let Some(container) = launch.enclosure.container.clone() {
            self.inner.remove_dead_containers();
            let prepare = move || registry::prepare_engine(&container.program, &container.env);
            blocking("preparing the container engine", prepare).await?.map_err(|failure| Error::InvalidConfig {
                field: "container.engine",
                reason: format!("the engine does not answer: {failure}; `agent-proxy doctor` says which one works"),
            })?;
        }
        Ok(launch)
    }
}
