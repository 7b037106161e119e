//! Finds the file in which the agent keeps the session's conversation. Agents create it with the first prompt, or
//! later.

use std::{path::Path, sync::Arc};

use agents::conversations::find_conversation;

use super::ManagedSession;
use crate::blocking::blocking;

/// Number of searches while the session lives, each after one of its first turns.
const MAX_LOOKS: u32 = 4;

/// Searches `directory`, if it is known, until the file is found or the session has ended. Shows and records the file.
pub(super) async fn find(session: &Arc<ManagedSession>, directory: Option<&Path>) {
    let Some(directory) = directory else { return };
    let mut view = session.watch();
    let (mut left, mut looked_after) = (MAX_LOOKS, 0);
    loop {
        let (id, turns, is_idle, is_over) = {
            let view = view.borrow_and_update();
            let conversation = &view.conversation;
            let id = conversation.native_session_id.clone().filter(|_| conversation.native_session_file.is_none());
            (id, view.turns, view.is_idle(), view.state.stopped_by().is_some())
        };
        if let Some(id) = id
            && (is_over || (is_idle && turns > looked_after && left > 0))
        {
            (left, looked_after) = (left.saturating_sub(1), turns);
            find_once(session, directory, id).await;
        }
        if is_over || view.changed().await.is_err() {
            return;
        }
    }
}

async fn find_once(session: &Arc<ManagedSession>, directory: &Path, id: String) {
    let (session, directory) = (session.clone(), directory.to_owned());
    let look = move || match find_conversation(&directory, &id) {
        Ok(Some(file)) => {
            if let Ok(file) = file.into_os_string().into_string() {
                session.set_native_file(&id, &file);
            }
        }
        Ok(None) => {}
        Err(error) => tracing::debug!(?directory, %error, "failed to find the file of a conversation"),
    };
    if let Err(error) = blocking("looking for a conversation's file", look).await {
        tracing::debug!(%error, "failed to search for the file of a conversation");
    }
}
