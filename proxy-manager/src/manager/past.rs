//! Facts about sessions whose conversations are to be resumed.

use std::{path::PathBuf, sync::Arc};

use ipc_protocol::{AgentSessionConfig, SessionId};

use super::{Inner, ProxyManager};
use crate::{
    blocking::blocking,
    conversation_locks::Leases,
    directory::Directory,
    error::Result,
    homes::Homes,
    launch::{Around, Kit, Launch, Past},
    records::{Record, Records},
    roster::Roster,
};

/// Places that know of past sessions.
struct PastSessions {
    directory: Arc<Directory>,
    homes: Arc<Homes>,
    records: Arc<Records>,
    roster: Arc<Roster>,
}

impl PastSessions {
    fn of(Inner { directory, homes, records, roster, .. }: &Inner) -> Self {
        let (directory, homes) = (directory.clone(), homes.clone());
        Self { directory, homes, records: records.clone(), roster: roster.clone() }
    }

    /// Facts about a session. Blocks.
    fn find(&self, id: &SessionId) -> Option<Past> {
        let Ok(session) = self.directory.get(id) else { return self.find_record(id) };
        let info = session.info();
        Some(Past {
            agent: info.metadata.agent,
            native_session_id: info.conversation.native_session_id,
            home: info.metadata.home.map(PathBuf::from),
            cwd: info.metadata.cwd,
            // A restored session may lack its own configuration if it resumed another session's conversation.
            model_config: session.description().model_config.clone().or_else(|| self.records.read(id)?.model_config),
            has_ended: info.state.at_rest().is_some(),
            is_handed_over: info.state.is_handed_over(),
        })
    }

    /// Facts about a session that this manager does not remember.
    fn find_record(&self, id: &SessionId) -> Option<Past> {
        let Record { agent, native_session_id, cwd, home, model_config, .. } = self.records.read(id)?;
        // The home belongs to that session, whoever resumes it: homes know their records from the start.
        let home = match home {
            Some(home) => Some(self.homes.recorded(&home)?),
            None => None,
        };
        Some(Past {
            agent,
            native_session_id: Some(native_session_id),
            home,
            cwd,
            model_config,
            has_ended: true,
            is_handed_over: self.roster.get(id).is_some_and(|record| record.state.is_handed_over()),
        })
    }
}

impl ProxyManager {
    /// Facts about a session whose conversation is to be resumed.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if no thread can be had to look.
    pub(super) async fn past(&self, id: &SessionId) -> Result<Option<Past>> {
        let (past, id) = (PastSessions::of(&self.inner), id.clone());
        blocking("looking for a past session", move || past.find(&id)).await
    }

    /// Plans a start, in a thread: programs, settings and conversations are looked for on the disk.
    ///
    /// # Errors
    /// Those of [`Launch::plan`].
    pub(super) async fn plan(&self, config: AgentSessionConfig) -> Result<Launch> {
        let past = PastSessions::of(&self.inner);
        let (kit, leases): (Arc<Kit>, Arc<Leases>) = (self.kit(), self.inner.leases.clone());
        let plan = move || {
            let around = Around { kit: &kit, homes: &past.homes, leases: &leases, past: &|id| past.find(id) };
            Launch::plan(config, &around)
        };
        blocking("planning a session's start", plan).await?
    }
}
