//! Bounds of what an event holds: texts and documents of the agent, cut to fit.

use std::time::{Duration, UNIX_EPOCH};

use ipc_protocol::Json;
use serde_json::{Value, value::RawValue};

/// Longest id from the agent, in bytes.
pub(crate) const MAX_ID: usize = 1024;
/// Longest JSON document in an event, in bytes.
const MAX_JSON: usize = 1024 * 1024;
/// Longest tool output in an event, in bytes. Of longer output the end is kept.
const MAX_OUTPUT: usize = 1024 * 1024;
/// Longest word, title or error text from the agent, in characters.
pub(crate) const MAX_CHARS: usize = 2000;

/// Longest prompt of somebody else in an event, in characters.
const MAX_PROMPT: usize = 64 * 1024;

/// Returns the beginning of a prompt that somebody else has sent.
pub(crate) fn prompt_text(text: &str) -> String {
    text.chars().take(MAX_PROMPT).collect()
}

/// Returns `value`, or a note instead if the value is too large for an event.
pub(crate) fn json(value: &Value) -> Json {
    let json = Json::from(value);
    let len = json.as_str().len();
    if len <= MAX_JSON { json } else { Json::from(&Value::from(format!("left out: {len} bytes"))) }
}

/// Does the same for an undecoded document; `null` if there is none.
pub(crate) fn bounded(raw: Option<&RawValue>) -> Json {
    raw.map_or_else(Json::null, |raw| document(raw.get()))
}

/// Does the same for a text; `null` if the text is no JSON.
pub(crate) fn document(text: &str) -> Json {
    if text.len() > MAX_JSON {
        return Json::from(&Value::from(format!("left out: {} bytes", text.len())));
    }
    Json::new(text).unwrap_or_else(|_| Json::null())
}

/// Returns a time in milliseconds since 1970 in the form of RFC 3339, or `None` after the year 9999, which that form lacks.
pub(crate) fn rfc3339(milliseconds: u64) -> Option<String> {
    let time = UNIX_EPOCH + Duration::from_millis(Some(milliseconds).filter(|time| *time < 253_402_300_800_000)?);
    Some(humantime::format_rfc3339_millis(time).to_string())
}

/// Returns the beginning of `text`: at most [`MAX_CHARS`] characters.
pub(crate) fn words(text: &str) -> String {
    text.chars().take(MAX_CHARS).collect()
}

/// Shortens `text` to one line.
pub(crate) fn title(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    let more = if text.trim().lines().nth(1).is_some() { " …" } else { "" };
    words(line.trim_end()) + more
}

/// Returns the end of `text`: at most `max` bytes, from a character boundary on.
pub(crate) fn tail(text: &str, max: usize) -> &str {
    let from = text.len().saturating_sub(max);
    let from = (from..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    &text[from..]
}

/// Returns `text`, or its end if it is too long for a tool's output.
pub(crate) fn output(text: String) -> String {
    if text.len() <= MAX_OUTPUT {
        return text;
    }
    let end = tail(&text, MAX_OUTPUT);
    format!("[{} bytes left out]\n{end}", text.len() - end.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!((tail("añb", 2), tail("añb", 3), tail("añb", 9), tail("ñ", 1)), ("b", "ñb", "añb", ""));
        let long = "ñ".repeat(MAX_OUTPUT);
        let cut = output(long);
        assert!(cut.starts_with("[1048576 bytes left out]\nñ") && cut.len() == MAX_OUTPUT + 25, "{}", cut.len());
        assert_eq!(output("a".repeat(MAX_OUTPUT)).len(), MAX_OUTPUT);
        assert_eq!((title(" one \ntwo").as_str(), title("one").as_str(), title("").as_str()), ("one …", "one", ""));
    }
}
