//! List of the agent's conversations, which comes in pages.

use agent_client_protocol_schema::v1::{ListSessionsRequest, ListSessionsResponse};
use ipc_protocol::Json;
use serde_json::{Value, json};

/// Most conversations in a reply.
const MAX_SESSIONS: usize = 1000;
/// Most pages that are requested of them.
const MAX_PAGES: u32 = 20;

/// Conversations of the agent, as far as they have arrived.
#[derive(Debug, Default)]
pub(super) struct ConversationPages {
    conversations: Vec<ListedConversation>,
    pages: u32,
}

#[derive(Debug)]
struct ListedConversation {
    id: String,
    title: Option<String>,
    updated_at: Option<String>,
    cwd: String,
}

impl ConversationPages {
    /// Makes the request for the next page. `cursor` is the one of the page before.
    pub(super) fn request(cwd: &str, cursor: Option<String>) -> ListSessionsRequest {
        ListSessionsRequest::new().cwd(std::path::PathBuf::from(cwd)).cursor(cursor)
    }

    /// Adds a page. Returns the cursor of the next page, if there is one.
    pub(super) fn page(&mut self, result: &str) -> Result<Option<String>, String> {
        let page: ListSessionsResponse = serde_json::from_str(result)
            .map_err(|error| format!("its list of conversations does not parse: {error}"))?;
        self.pages += 1;
        let found = page.sessions.into_iter().map(|session| ListedConversation {
            id: session.session_id.0.as_ref().to_owned(),
            title: session.title,
            updated_at: session.updated_at,
            cwd: session.cwd.to_string_lossy().into_owned(),
        });
        self.conversations.extend(found);
        self.conversations.truncate(MAX_SESSIONS);
        Ok(page.next_cursor.filter(|_| self.pages < MAX_PAGES && self.conversations.len() < MAX_SESSIONS))
    }

    /// Returns the conversations of `cwd`, newest first. (One agent writes all its times in one form.)
    fn sorted(mut self, cwd: &str) -> Vec<ListedConversation> {
        // An agent that ignores the directory lists all conversations. An agent that filters may use another path for it.
        if self.conversations.iter().any(|found| found.cwd == cwd) {
            self.conversations.retain(|found| found.cwd == cwd);
        }
        self.conversations.sort_by(|a, b| b.updated_at.cmp(&a.updated_at));
        self.conversations
    }

    /// Returns the id of the conversation that was used last.
    pub(super) fn most_recent(self, cwd: &str) -> Option<String> {
        self.sorted(cwd).into_iter().next().map(|found| found.id)
    }

    pub(super) fn reply(self, cwd: &str) -> Json {
        let session = |found: ListedConversation| json!({"id": found.id, "title": found.title, "updatedAt": found.updated_at, "cwd": found.cwd});
        Json::from(&Value::from(self.sorted(cwd).into_iter().map(session).collect::<Vec<_>>()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversations_are_of_the_directory_and_the_newest_comes_first() {
        let session = |id: &str, cwd: &str, at: &str| json!({"sessionId": id, "cwd": cwd, "updatedAt": at});
        let mut list = ConversationPages::default();
        let first = json!({"sessions": [session("a", "/w", "2026-01-01"), session("x", "/other", "2026-01-09")], "nextCursor": "p"});
        assert_eq!(list.page(&first.to_string()), Ok(Some("p".into())));
        let second =
            json!({"sessions": [session("b", "/w", "2026-01-02"), {"sessionId": "c", "cwd": "/w", "title": "t"}]});
        assert_eq!(list.page(&second.to_string()), Ok(None));
        let reply = list.reply("/w").value();
        let ids: Vec<_> = reply.as_array().expect("an array").iter().map(|session| session["id"].as_str()).collect();
        assert_eq!(ids, [Some("b"), Some("a"), Some("c")]);
        assert_eq!(ConversationPages::default().most_recent("/w"), None);
        assert!(ConversationPages::default().page("[").is_err());
    }

    #[test]
    fn an_endless_list_has_an_end() {
        let mut list = ConversationPages::default();
        let page = json!({"sessions": [], "nextCursor": "again"}).to_string();
        let pages = std::iter::from_fn(|| list.page(&page).expect("a page")).count();
        assert_eq!(pages, 19);
    }
}
