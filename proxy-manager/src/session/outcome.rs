//! Answers of a session to the clean-up of its start.

use std::path::PathBuf;

use super::ManagedSession;
use crate::{
    description::SessionDescription,
    launch::{LaunchOutcome, StartAftermath},
    records::ConversationRecord,
};

impl ManagedSession {
    /// Records the session's conversation once its agent is ready.
    pub(crate) async fn note_when_ready(&self, aftermath: &StartAftermath) {
        if self.wait_ready().await {
            aftermath.record_conversation(self.id(), self.conversation_record()).await;
        }
    }

    /// The session's end, or its detachment.
    pub(crate) fn outcome(&self) -> LaunchOutcome {
        LaunchOutcome {
            session: self.id().clone(),
            is_detached: self.is_detached(),
            is_stillborn: self.is_stillborn(),
            record: self.conversation_record(),
        }
    }

    /// Record of the session's conversation, without keys; `None` while its id is unknown.
    fn conversation_record(&self) -> Option<ConversationRecord> {
        let SessionDescription { metadata, model_config, .. } = self.description().clone();
        Some(ConversationRecord {
            agent: metadata.agent,
            native_session_id: self.native_session_id()?,
            cwd: metadata.cwd,
            home: metadata.home.map(PathBuf::from),
            model_config,
            keys: Vec::new(),
        })
    }
}
