//! Conversations of the agent on disk: `projects/<working directory>/<id>.jsonl` in its configuration directory.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};

use crate::ListedFile;

/// Suffix of the conversation files.
pub(super) const SUFFIX: &str = ".jsonl";
/// Longest directory name that consists of the path alone. Longer ones are cut and end in a hash that only the agent computes.
const MAX_SLUG: usize = 200;
/// Bytes of a file that are read; a shorter head is the complete file.
const HEAD_BYTES: usize = 4096;
/// Longest title, in characters.
const MAX_TITLE: usize = 200;

/// Returns the directory of the conversations of `cwd`, or `None` if it cannot be known.
pub(super) fn directory(directories: &BTreeMap<String, String>, cwd: &str) -> Option<String> {
    let set = |name: &str| directories.get(name).filter(|value| value.starts_with('/'));
    let config = match set("CLAUDE_CONFIG_DIR") {
        Some(config) => config.trim_end_matches('/').to_owned(),
        None => format!("{}/.claude", set("HOME")?.trim_end_matches('/')),
    };
    let letter = |unit: u16| u8::try_from(unit).ok().filter(u8::is_ascii_alphanumeric).map_or('-', char::from);
    let slug: String = cwd.encode_utf16().map(letter).collect();
    (slug.len() <= MAX_SLUG).then(|| format!("{config}/projects/{slug}"))
}

/// Returns the id of a conversation: the name of its file.
pub(super) fn id(file: &ListedFile) -> Option<&str> {
    let name = file.path.rsplit('/').next()?.strip_suffix(SUFFIX)?;
    (!name.is_empty()).then_some(name)
}

/// Describes the conversation in a file. Returns `None` if nobody has prompted in it.
pub(super) fn describe(file: &ListedFile) -> Option<Value> {
    let id = id(file)?;
    let line = |line: &[u8]| serde_json::from_slice::<Value>(line).ok().or_else(|| cut_off(line));
    let lines = file.head.split(|byte| *byte == b'\n').filter_map(line);
    let (mut title, mut asked, mut cwd) = (None, None, None);
    for line in lines {
        let text = |key: &str| line.get(key).and_then(Value::as_str).map(str::to_owned);
        cwd = cwd.or_else(|| text("cwd"));
        match line.get("type").and_then(Value::as_str) {
            Some("custom-title") => title = text("customTitle").or(title),
            Some("ai-title") => title = title.or_else(|| text("aiTitle")),
            Some("summary") => title = title.or_else(|| text("summary")),
            Some("user") => {
                let set = |key: &str| line.get(key).and_then(Value::as_bool) == Some(true);
                if set("isSidechain") {
                    return None;
                }
                if !set("isMeta") {
                    asked = asked.or_else(|| user_text(&line["message"]["content"]));
                }
            }
            _ => {}
        }
    }
    let title = title.or(asked);
    if title.is_none() && file.head.len() < HEAD_BYTES {
        return None;
    }
    let updated = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(file.modified_ms))?;
    let mut conversation = json!({
        "id": id,
        "updatedAt": humantime::format_rfc3339_millis(updated).to_string(),
    });
    if let Some(title) = title {
        conversation["title"] = title.chars().take(MAX_TITLE).collect::<String>().into();
    }
    if let Some(cwd) = cwd {
        conversation["cwd"] = cwd.into();
    }
    Some(conversation)
}

/// Parses a user message whose end is not in the head of the file.
fn cut_off(line: &[u8]) -> Option<Value> {
    let line = String::from_utf8_lossy(line);
    let message = &line[line.find(r#""type":"user""#)?..];
    if line.contains(r#""isSidechain":true"#) {
        return None;
    }
    let begins =
        [r#""text":""#, r#""content":""#].into_iter().filter_map(|key| Some(message.find(key)? + key.len())).min()?;
    let words = &message[begins..];
    let mut escaped = false;
    let closed = words.find(|c| {
        let quote = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        quote
    });
    let words = &words[..closed.unwrap_or(words.len())];
    // The cut may be in the middle of an escape.
    let ends = (0..12).filter_map(|less| words.get(..words.len().checked_sub(less)?));
    let whole = |words: &str| serde_json::from_str::<String>(&format!("\"{words}\"")).ok();
    let text = ends.into_iter().find_map(whole)?;
    Some(json!({ "type": "user", "message": { "content": text } }))
}

/// Returns the first line of a message that a person wrote: not the text in `<…>` that the agent adds.
fn user_text(content: &Value) -> Option<String> {
    let own = |text: &str| {
        let text = text.trim();
        (!text.is_empty() && !text.starts_with('<')).then(|| text.lines().next().unwrap_or_default().to_owned())
    };
    match content {
        Value::String(text) => own(text),
        Value::Array(blocks) => blocks.iter().find_map(|block| own(block.get("text")?.as_str()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(head: &str) -> ListedFile {
        let path = "/h/.claude/projects/-w/0d5c.jsonl".to_owned();
        ListedFile { path, modified_ms: 1_767_323_045_678, head: head.as_bytes().to_vec() }
    }

    #[test]
    fn the_directory_is_named_after_the_working_directory() {
        let home = BTreeMap::from([("HOME".to_owned(), "/h/".to_owned())]);
        assert_eq!(directory(&home, "/srv/a_b.c").as_deref(), Some("/h/.claude/projects/-srv-a-b-c"));
        let own = BTreeMap::from([("CLAUDE_CONFIG_DIR".to_owned(), "/own".to_owned())]);
        assert_eq!(directory(&own, "/").as_deref(), Some("/own/projects/-"));
        assert_eq!(directory(&BTreeMap::new(), "/"), None);
        assert_eq!(directory(&home, &"/x".repeat(200)), None);
    }

    #[test]
    fn a_conversation_has_an_id_and_what_else_its_file_tells() {
        let head = concat!(
            "{\"type\":\"mode\",\"mode\":\"normal\"}\n",
            "{\"type\":\"user\",\"isMeta\":true,\"message\":{\"content\":\"meta\"},\"cwd\":\"/w\"}\n",
            "{\"type\":\"user\",\"message\":{\"content\":[{\"type\":\"text\",\"text\":\"<a>no</a>\"},",
            "{\"type\":\"text\",\"text\":\"fix it\\nplease\"}]},\"cwd\":\"/w\"}\n{\"type\":\"assi",
        );
        let told = describe(&file(head)).expect("a conversation");
        assert_eq!(
            told,
            json!({ "id": "0d5c", "title": "fix it", "updatedAt": "2026-01-02T03:04:05.678Z", "cwd": "/w" })
        );
        let long = format!(
            "{{\"isSidechain\":false,\"type\":\"user\",\"message\":{{\"content\":[{{\"type\":\"text\",\"text\":\"fix \\\"it\\\" {}\\u00",
            "ä".repeat(900)
        );
        let told = describe(&file(&long)).expect("a conversation whose first message is long");
        assert!(told["title"].as_str().is_some_and(|title| title.starts_with("fix \"it\" ä")), "{told}");
        let closed = "{\"type\":\"user\",\"message\":{\"content\":\"a \\\"b\\\"\"},\"uuid\":\"01";
        assert_eq!(describe(&file(closed)).expect("a conversation")["title"], "a \"b\"");
        let unseen = describe(&file(&" ".repeat(HEAD_BYTES))).expect("who knows what comes after that");
        assert_eq!((&unseen["id"], unseen.get("title")), (&json!("0d5c"), None));
        let sidechain = "{\"type\":\"user\",\"isSidechain\":true,\"message\":{\"content\":\"x\"}}\n";
        assert_eq!((describe(&file(sidechain)), describe(&file("")), describe(&file("\0{"))), (None, None, None));
    }
}
