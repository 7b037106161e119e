//! What another machine needs to go on with a session, as one object of bytes.

use serde::{Deserialize, Serialize};

use super::Epoch;
use crate::{
    error::{Error, Result},
    session_store::SessionRecord,
};

/// What another machine needs to go on with a session.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionExport {
    /// Record of the session, without secrets.
    pub record: Box<SessionRecord>,
    /// Epoch under which it was made.
    pub epoch: Epoch,
    /// Offset of the session's last event before the conversation was read: the conversation has at least what is up to there.
    pub offset: u64,
    /// Files of the agent's conversation, in the order of their paths.
    pub conversation: Vec<ConversationFile>,
    /// Reason why `conversation` lacks files: the session has no home of its own, or they have more than
    /// [`Replication::max_conversation_bytes`](super::Replication::max_conversation_bytes).
    pub incomplete: Option<String>,
}

/// File of an agent's conversation.
#[derive(Clone, derive_more::Debug, PartialEq, Eq)]
pub struct ConversationFile {
    /// Path below the session's home, without `.` and `..`.
    pub path: String,
    /// Content.
    #[debug("{} bytes", content.len())]
    pub content: Vec<u8>,
}

/// First line of an export's bytes; the contents of its files follow in their order.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExportHeader {
    record: Box<SessionRecord>,
    epoch: Epoch,
    #[serde(with = "api_types::recorded_offset")]
    offset: u64,
    files: Vec<FileHeader>,
    #[serde(default)]
    incomplete: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct FileHeader {
    path: String,
    bytes: usize,
}

impl SessionExport {
    /// Returns the export as bytes: a line of JSON, then the contents of its files.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a record that is no JSON, which no manager makes.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let Self { record, epoch, offset, conversation, incomplete } = self;
        let files =
            conversation.iter().map(|file| FileHeader { path: file.path.clone(), bytes: file.content.len() }).collect();
        let (record, incomplete) = (record.clone(), incomplete.clone());
        let header = ExportHeader { record, epoch: *epoch, offset: *offset, files, incomplete };
        let mut bytes = serde_json::to_vec(&header).map_err(|error| invalid(format!("cannot be written: {error}")))?;
        bytes.push(b'\n');
        conversation.iter().for_each(|file| bytes.extend_from_slice(&file.content));
        Ok(bytes)
    }

    /// Reads an export from its bytes.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for bytes that are no export, or not all of one.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let end = bytes.iter().position(|byte| *byte == b'\n').ok_or_else(|| invalid("has no first line".into()))?;
        let header: ExportHeader =
            serde_json::from_slice(&bytes[..end]).map_err(|error| invalid(format!("has no header: {error}")))?;
        let ExportHeader { record, epoch, offset, files, incomplete } = header;
        let mut rest = &bytes[end + 1..];
        let mut conversation = Vec::with_capacity(files.len().min(1024));
        for FileHeader { path, bytes } in files {
            let (content, next) = rest.split_at_checked(bytes).ok_or_else(|| invalid(format!("ends in {path:?}")))?;
            conversation.push(ConversationFile { path, content: content.to_vec() });
            rest = next;
        }
        if !rest.is_empty() {
            return Err(invalid(format!("has {} bytes too many", rest.len())));
        }
        Ok(Self { record, epoch, offset, conversation, incomplete })
    }
}

fn invalid(reason: String) -> Error {
    Error::InvalidConfig {
        field: "session export",
        reason: format!("{reason}: it was not written by export_session, or was cut"),
    }
}
