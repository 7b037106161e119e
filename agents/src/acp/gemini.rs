//! Conversations of Gemini CLI. Its protocol does not list them: they are files in its home.
//!
//! `session/load` first creates a file for the conversation, named by the minute and the beginning of the id, and then reads the
//! conversation from the existing files. A conversation that was created in the same minute already has a file of that name: Gemini
//! empties it, and there is nothing to load. So the adapter first renames the conversation's file to another minute.
//!
//! The continued conversation stays in the old file, and the new file stays empty. The next Gemini that starts there deletes empty
//! files, and with each of them every file named by the same beginning of an id, which would delete the conversation. So the adapter
//! renames the empty file to a name that Gemini does not look at.
//!
//! Into a broken file Gemini would write the beginning of a new conversation, and would continue that one the next time. The
//! adapter does not ask Gemini to load a broken file.

use ipc_protocol::{Json, message::RequestId};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Action, ListedFile};

/// Prefix of the names of Gemini's conversation files.
const SESSION: &str = "session-";
/// Minute in the new name of a file that is about to be loaded. (Gemini reads the time in the file, not the one in its name.)
const LONG_AGO: &str = "1970-01-01T00-00";
/// Latest time that can be written, in milliseconds since 1970: the end of the year 9999.
const MAX_TIME_MS: u64 = 253_402_300_799_999;
/// Longest title of a conversation, in characters.
const MAX_TITLE: usize = 200;

/// Purpose of a search for conversations.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LookupPurpose {
    /// Loads this conversation, or the most recent one.
    Load(Option<String>),
    /// Renames the empty files of this conversation, which was loaded.
    Tidy(String),
    /// Answers an operation.
    List(RequestId),
}

/// Search in two steps: first for the project's directory, then for its conversations.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ConversationLookup {
    /// Id of the file list that the search waits for.
    pub(super) id: u64,
    pub(super) purpose: LookupPurpose,
    /// Directory `.gemini` in the agent's home.
    directory: String,
    has_project: bool,
}

/// Result of a file list.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LookupStep {
    /// The search goes on with another list.
    More(ConversationLookup),
    /// The conversations, newest first.
    All(LookupPurpose, Vec<GeminiConversation>),
    /// Only a broken file exists for the conversation: its id and the file's path.
    Broken(String, String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GeminiConversation {
    pub(super) id: String,
    title: Option<String>,
    modified_ms: u64,
    path: String,
    /// True if nobody has prompted in it.
    is_empty: bool,
}

/// The first line of a conversation's file.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConversationHead {
    session_id: String,
}

impl ConversationLookup {
    /// Starts a search for the conversations of the Gemini CLI whose home is `home`.
    pub(super) fn begin(id: u64, purpose: LookupPurpose, home: &str, out: &mut Vec<Action>) -> Self {
        let directory = format!("{}/.gemini", home.trim_end_matches('/'));
        out.push(Action::List { id, directory: directory.clone(), suffix: "projects.json" });
        Self { id, purpose, directory, has_project: false }
    }

    /// Handles the files that a list found.
    pub(super) fn take(mut self, files: &[ListedFile], cwd: &str, out: &mut Vec<Action>) -> LookupStep {
        if self.has_project {
            let mut found: Vec<_> = files.iter().filter_map(conversation).collect();
            if let LookupPurpose::Load(Some(id)) = &self.purpose
                && found.iter().all(|conversation| conversation.id != *id)
                && let Some(file) = files.iter().find(|file| is_named(file, id) && conversation(file).is_none())
            {
                return LookupStep::Broken(id.clone(), file.path.clone());
            }
            // A continued conversation has several files; the first is complete.
            found.sort_by_key(|conversation| std::cmp::Reverse(conversation.modified_ms));
            return LookupStep::All(self.purpose, found);
        }
        let Some(project) = files.iter().find_map(|file| project(&file.head, cwd)) else {
            return LookupStep::All(self.purpose, Vec::new());
        };
        self.has_project = true;
        let directory = format!("{}/tmp/{project}/chats", self.directory);
        out.push(Action::List { id: self.id, directory, suffix: ".jsonl" });
        LookupStep::More(self)
    }
}

/// Returns Gemini's name for the project in `cwd`, from the beginning of its list of projects.
fn project(head: &[u8], cwd: &str) -> Option<String> {
    let text = String::from_utf8_lossy(head);
    let key = Value::from(cwd).to_string();
    // The list may be longer than the part that was read, so it cannot be parsed as a whole.
    let (_, rest) = text.split_once(&format!("{key}:")).or_else(|| text.split_once(&format!("{key} :")))?;
    let name: String = serde_json::Deserializer::from_str(rest).into_iter().next()?.ok()?;
    (!name.is_empty() && !name.contains('/') && name != "." && name != "..").then_some(name)
}

/// Returns whether a file's name contains the beginning of `id`.
fn is_named(file: &ListedFile, id: &str) -> bool {
    let name = file.path.rsplit('/').next().unwrap_or_default();
    name.starts_with(SESSION) && id.get(..8).is_some_and(|beginning| name.contains(beginning))
}

/// Reads the conversation in a file.
fn conversation(file: &ListedFile) -> Option<GeminiConversation> {
    let text = String::from_utf8_lossy(&file.head);
    let mut lines = text.lines();
    let ConversationHead { session_id } = serde_json::from_str(lines.next()?).ok()?;
    let said = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok()).find(|line| line["type"] == "user");
    // The part before the first prompt may be longer than the part that was read.
    let is_cut = !file.head.ends_with(b"\n");
    let title = said.as_ref().and_then(|line| line["content"][0]["text"].as_str());
    Some(GeminiConversation {
        id: session_id,
        title: title.map(|title| title.chars().take(MAX_TITLE).collect()),
        modified_ms: file.modified_ms,
        path: file.path.clone(),
        is_empty: said.is_none() && !is_cut,
    })
}

impl GeminiConversation {
    /// Returns the name of the conversation's file without the common prefix.
    fn name(&self) -> Option<&str> {
        self.path.rsplit('/').next()?.strip_prefix(SESSION)
    }
}

/// Returns the most recent conversation that has a prompt.
pub(super) fn most_recent(conversations: &[GeminiConversation]) -> Option<String> {
    conversations.iter().find(|conversation| !conversation.is_empty).map(|newest| newest.id.clone())
}

/// Renames the files of the conversation `id` to another minute, so that Gemini can load it.
pub(super) fn make_loadable(id: &str, conversations: &[GeminiConversation], out: &mut Vec<Action>) {
    for conversation in conversations.iter().filter(|conversation| conversation.id == id && !conversation.is_empty) {
        if let Some(rest) = conversation.name().and_then(|name| name.get(LONG_AGO.len()..))
            && !conversation.path.contains(LONG_AGO)
        {
            let name = format!("{SESSION}{LONG_AGO}{rest}");
            out.push(Action::Rename { path: conversation.path.clone(), name });
        }
    }
}

/// Renames the empty files of the conversation `id`, so that Gemini does not look at them. `fresh` is a word that no other session
/// has.
pub(super) fn tidy(id: &str, conversations: &[GeminiConversation], fresh: &str, out: &mut Vec<Action>) {
    for conversation in conversations.iter().filter(|conversation| conversation.id == id && conversation.is_empty) {
        if let Some(rest) = conversation.name() {
            out.push(Action::Rename { path: conversation.path.clone(), name: format!("empty-{fresh}-{rest}") });
        }
    }
}

/// Formats the conversations as an operation's reply.
pub(super) fn reply(conversations: &[GeminiConversation], cwd: &str) -> Json {
    let mut told: Vec<Value> = Vec::new();
    for GeminiConversation { id, title, modified_ms, .. } in conversations.iter().filter(|it| !it.is_empty) {
        if !told.iter().any(|session| session["id"] == id.as_str()) {
            let updated = std::time::UNIX_EPOCH + std::time::Duration::from_millis((*modified_ms).min(MAX_TIME_MS));
            let updated = humantime::format_rfc3339_millis(updated).to_string();
            told.push(json!({ "id": id, "title": title, "updatedAt": updated, "cwd": cwd }));
        }
    }
    Json::from(&Value::from(told))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, modified_ms: u64, head: &str) -> ListedFile {
        ListedFile { path: format!("/h/.gemini/tmp/w/chats/{name}"), modified_ms, head: head.into() }
    }

    fn chat(id: &str, said: &str) -> String {
        let context = json!({"$set": {"messages": [{"type": "user", "content": [{"text": "<session_context>"}]}]}});
        let said = match said {
            "" => String::new(),
            said => format!("{}\n", json!({"id": "m", "type": "user", "content": [{"text": said}]})),
        };
        format!("{}\n{context}\n{said}", json!({"sessionId": id, "kind": "main"}))
    }

    #[test]
    fn conversations_are_found_by_the_project() {
        let mut out = Vec::new();
        let look = ConversationLookup::begin(7, LookupPurpose::Load(None), "/h/", &mut out);
        let list = |directory: &str, suffix| Action::List { id: 7, directory: directory.into(), suffix };
        assert_eq!(out, [list("/h/.gemini", "projects.json")]);
        out.clear();
        let projects = json!({"projects": {"/other": "o", "/w \"q\"": "w"}});
        let projects = file("projects.json", 0, &serde_json::to_string_pretty(&projects).expect("JSON"));
        let LookupStep::More(look) = look.take(&[projects], "/w \"q\"", &mut out) else { panic!("it goes on") };
        assert_eq!(out, [list("/h/.gemini/tmp/w/chats", ".jsonl")]);
        let long = chat("long", "x").replace("<session_context>", &"y".repeat(5000));
        let files = [
            file("session-2026-01-01T00-00-aaaaaaaa.jsonl", 2, &chat("aaaaaaaa-1", "hello")),
            file("session-2026-01-01T00-01-bbbbbbbb.jsonl", 9, &chat("bbbbbbbb-1", "")),
            file("session-2026-01-01T00-02-cccccccc.jsonl", 5, &long[..4096]),
            file("session-2026-01-01T00-03-dddddddd.jsonl", 5, "garbage"),
        ];
        let LookupStep::All(LookupPurpose::Load(None), found) = look.take(&files, "/w", &mut out) else {
            panic!("that is all")
        };
        let told: Vec<_> = found.iter().map(|it| (it.id.as_str(), it.title.as_deref(), it.is_empty)).collect();
        assert_eq!(told, [("bbbbbbbb-1", None, true), ("long", None, false), ("aaaaaaaa-1", Some("hello"), false)]);
        assert_eq!(most_recent(&found).as_deref(), Some("long"));
        assert_eq!(reply(&found, "/w").value().as_array().map(Vec::len), Some(2), "an empty one is none");
    }

    /// Gemini would write to the file, and take it for a new conversation the next time.
    #[test]
    fn trap_a_broken_file_is_not_loaded() {
        let seen = |id: &str, files: &[ListedFile]| {
            let wanted = LookupPurpose::Load(Some(id.to_owned()));
            let look = ConversationLookup { id: 1, purpose: wanted, directory: "/h/.gemini".into(), has_project: true };
            look.take(files, "/w", &mut Vec::new())
        };
        let broken = file("session-2026-01-01T00-03-dddddddd.jsonl", 5, "garbage");
        let whole = file("session-1970-01-01T00-00-dddddddd.jsonl", 5, &chat("dddddddd-1", "hello"));
        let is_broken = LookupStep::Broken("dddddddd-1".into(), broken.path.clone());
        assert_eq!(seen("dddddddd-1", std::slice::from_ref(&broken)), is_broken);
        assert!(matches!(seen("eeeeeeee-1", std::slice::from_ref(&broken)), LookupStep::All(..)), "another one");
        assert!(matches!(seen("dddddddd-1", &[broken, whole]), LookupStep::All(..)), "there is a whole one");
    }

    #[test]
    fn a_project_is_found_in_a_list_that_was_cut() {
        assert_eq!(project(br#"{"projects":{"/w":"w-1","/other":"#, "/w").as_deref(), Some("w-1"));
        for text in [r#"{"/w":"../x"}"#, r#"{"/w":".."}"#, r#"{"/w":""}"#, r#"{"/w":1}"#, r#"{"/w"}"#, "{\"/w\":\"w"] {
            assert_eq!(project(text.as_bytes(), "/w"), None, "{text}");
        }
    }

    /// Gemini would empty a file of the same minute.
    #[test]
    fn trap_a_conversation_is_loaded_from_a_file_of_another_minute() {
        let conversations: Vec<_> = [
            file("session-2026-01-01T00-00-aaaaaaaa.jsonl", 2, &chat("aaaaaaaa-1", "hello")),
            file("session-1970-01-01T00-00-aaaaaaaa.jsonl", 1, &chat("aaaaaaaa-1", "hello")),
            file("session-2026-01-01T00-00-bbbbbbbb.jsonl", 2, &chat("bbbbbbbb-1", "hello")),
            file("short.jsonl", 2, &chat("aaaaaaaa-1", "hello")),
        ]
        .iter()
        .filter_map(conversation)
        .collect();
        let mut out = Vec::new();
        make_loadable("aaaaaaaa-1", &conversations, &mut out);
        let path = "/h/.gemini/tmp/w/chats/session-2026-01-01T00-00-aaaaaaaa.jsonl".to_owned();
        assert_eq!(out, [Action::Rename { path, name: "session-1970-01-01T00-00-aaaaaaaa.jsonl".to_owned() }]);
        assert_eq!(reply(&conversations, "/w").value().as_array().map(Vec::len), Some(2), "each once");
    }

    /// Gemini deletes an empty file, and every file with a similar name.
    #[test]
    fn trap_an_empty_file_would_take_the_conversation_with_it() {
        let conversations: Vec<_> = [
            file("session-2026-01-01T00-09-aaaaaaaa.jsonl", 9, &chat("aaaaaaaa-1", "")),
            file("session-1970-01-01T00-00-aaaaaaaa.jsonl", 1, &chat("aaaaaaaa-1", "hello")),
            file("session-2026-01-01T00-00-bbbbbbbb.jsonl", 2, &chat("bbbbbbbb-1", "")),
        ]
        .iter()
        .filter_map(conversation)
        .collect();
        let mut out = Vec::new();
        tidy("aaaaaaaa-1", &conversations, "f", &mut out);
        let path = "/h/.gemini/tmp/w/chats/session-2026-01-01T00-09-aaaaaaaa.jsonl".to_owned();
        assert_eq!(out, [Action::Rename { path, name: "empty-f-2026-01-01T00-09-aaaaaaaa.jsonl".to_owned() }]);
    }
}
