//! Answers of a session to the clean-up of its start.

use std::path::PathBuf;

use super::Session;
use crate::{
    description::SessionDescription,
    launch::{Aftermath, LaunchOutcome},
    records::Record,
};

impl Session {
    /// Records the session's conversation once its agent is ready.
    pub(crate) async fn note_when_ready(&self, aftermath: &Aftermath) {
        if self.gets_ready().await {
            aftermath.note(self.id(), self.conversation_record()).await;
        }
    }

    /// The session's end, or its detachment.
    pub(crate) fn outcome(&self) -> LaunchOutcome {
        LaunchOutcome {
            session: self.id().clone(),
            is_detached: self.is_let_go(),
            is_stillborn: self.is_stillborn(),
            record: self.conversation_record(),
        }
    }

    /// Record of the session's conversation, without keys; `None` while its id is unknown.
    fn conversation_record(&self) -> Option<Record> {
        let SessionDescription { metadata, model_config, .. } = self.description().clone();
        Some(Record {
            agent: metadata.agent,
            native_session_id: self.native_session_id()?,
            cwd: metadata.cwd,
            home: metadata.home.map(PathBuf::from),
            model_config,
            keys: Vec::new(),
        })
    }
}
