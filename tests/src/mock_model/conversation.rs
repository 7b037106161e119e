//! What a request says, in one form for all dialects, and which of its texts are the person's.

use serde_json::Value;

/// A request.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Conversation {
    /// What was said so far, oldest first.
    pub(super) entries: Vec<Entry>,
    /// The tools on offer.
    pub(super) tools: Vec<Tool>,
    /// The JSON Schema that the answer has to fit; `null` if there is none.
    pub(super) schema: Value,
}

/// Something that was said.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Entry {
    /// By the user, or by the agent in the user's name: the texts of one message.
    User(Vec<String>),
    /// By the model: a text.
    Said,
    /// By the model: a call of a tool.
    Call,
    /// By a tool.
    Output(String),
}

/// A tool on offer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tool {
    /// Its name.
    pub(super) name: String,
    /// The JSON Schema of its arguments.
    pub(super) parameters: Value,
}

/// What is to be answered.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Asked<'a> {
    /// The last prompt.
    pub(super) prompt: String,
    /// What tools gave since then.
    pub(super) outputs: Vec<&'a str>,
    /// Prompts before it that are still open, newest first.
    pub(super) before: Vec<String>,
}

impl Conversation {
    /// What is to be answered.
    pub(super) fn asked(&self) -> Asked<'_> {
        let mut asked = Asked::default();
        let mut answered = false;
        for entry in self.entries.iter().rev() {
            match entry {
                Entry::Output(output) if asked.prompt.is_empty() => asked.outputs.insert(0, output),
                Entry::Said => answered = true,
                Entry::User(texts) => {
                    let prompt = prompt_of(texts);
                    if prompt.is_empty() {
                        continue;
                    }
                    if asked.prompt.is_empty() {
                        asked.prompt = prompt;
                    } else if !answered || prompt.starts_with("slow:") {
                        asked.before.push(prompt);
                    } else {
                        break;
                    }
                    answered = false;
                }
                Entry::Output(_) | Entry::Call => {}
            }
        }
        asked
    }

    /// Returns whether the agent has the model go on with an answer that broke off.
    pub(super) fn is_continuation(&self) -> bool {
        matches!(self.entries.last(), Some(Entry::User(texts)) if texts.iter().any(|text| text.starts_with(CONTINUATION)))
    }

    /// Whether the agent asks for itself and not for the person: for a title of the conversation, which needs no tool, or
    /// (Claude Code) for what the person might say next.
    pub(super) fn is_aside(&self) -> bool {
        let suggestion = |text: &String| text.starts_with("[SUGGESTION MODE:");
        self.tools.is_empty() || matches!(self.entries.last(), Some(Entry::User(texts)) if texts.iter().any(suggestion))
    }
}

/// Beginning of the words by which Qwen Code has the model go on with an answer that broke off.
const CONTINUATION: &str = "The connection dropped mid-response.";

/// The person's words among the texts of a message, one a line.
fn prompt_of(texts: &[String]) -> String {
    let prompts: Vec<&str> = texts.iter().map(|text| said_by_person(text)).filter(|text| !text.is_empty()).collect();
    prompts.join("\n")
}

/// `text` without what agents put around the person's words: blocks of mark-up before them, and the notes of Claude Code.
fn said_by_person(text: &str) -> &str {
    let mut rest = text.trim();
    while let Some(after) = after_block(rest).or_else(|| after_note(rest)) {
        rest = after.trim_start();
    }
    if rest.starts_with(CONTINUATION) {
        return "";
    }
    match rest.strip_prefix("The user sent a new message while you were working:\n") {
        Some(steered) => steered.split("\n\nThis is how Claude Code ").next().unwrap_or_default().trim(),
        None => rest,
    }
}

/// `text` after the block of mark-up that it begins with, if it does.
fn after_block(text: &str) -> Option<&str> {
    let (tag, inside) = text.strip_prefix('<')?.split_once('>')?;
    let name = tag.split_whitespace().next()?;
    let (_, after) = inside.split_once(&format!("</{name}>"))?;
    Some(after)
}

/// `text` after the note of an abort that it begins with, if it does.
fn after_note(text: &str) -> Option<&str> {
    text.strip_prefix("[Request interrupted by user")?.split_once(']').map(|(_, after)| after)
}

/// The text of a message's content: a string, or parts with a `text`.
pub(super) fn texts_of(content: &Value) -> Vec<String> {
    match content {
        Value::String(text) => vec![text.clone()],
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

/// The elements of an array; none if it is not one.
pub(super) fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The text at `value`; empty if it is none.
pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn user(texts: &[&str]) -> Entry {
        Entry::User(texts.iter().map(|text| (*text).into()).collect())
    }

    fn conversation(entries: &[Entry]) -> Conversation {
        let tools = vec![Tool { name: "bash".into(), parameters: json!({}) }];
        Conversation { entries: entries.to_vec(), tools, schema: Value::Null }
    }

    #[test]
    fn what_agents_add_is_not_the_persons() {
        for (texts, prompt) in [
            (&["<system-reminder>\nbe <b>bold</b>\n</system-reminder>\n", "shell: ls"][..], "shell: ls"),
            (&["<a x=\"1\">y</a>\n<b>z</b> \n hi <c>there</c>"], "hi <c>there</c>"),
            (&["<environment_context/>", "<a>"], "<environment_context/>\n<a>"),
            (&["[Request interrupted by user for tool use]\n", "and now"], "and now"),
            (
                &["The user sent a new message while you were working:\nfaster\n\nThis is how Claude Code says so."],
                "faster",
            ),
            (&["<turn_aborted>1</turn_aborted>", ""], ""),
        ] {
            assert_eq!(conversation(&[user(texts)]).asked().prompt, prompt);
        }
    }

    #[test]
    fn context_after_a_tools_output_is_no_new_prompt() {
        let outputs = [Entry::Call, Entry::Output("a".into()), Entry::Output("b".into())];
        let context = user(&["<system-reminder>be brief</system-reminder>"]);
        let entries = [&[user(&["shell: ls"])], &outputs[..], &[context]].concat();
        let expected = Asked { prompt: "shell: ls".into(), outputs: vec!["a", "b"], before: Vec::new() };
        assert_eq!(conversation(&entries).asked(), expected);
    }

    #[test]
    fn prompts_before_the_last_are_open_until_answered() {
        let entries = [user(&["one"]), Entry::Said, user(&["slow: 9"]), Entry::Said, user(&["two"]), user(&["three"])];
        let conversation = conversation(&entries);
        let asked = conversation.asked();
        assert_eq!((asked.prompt.as_str(), asked.before), ("three", vec!["two".to_owned(), "slow: 9".into()]));
    }

    #[test]
    fn titles_and_suggestions_are_asides() {
        let mut asked = conversation(&[user(&["hi"])]);
        assert!(!asked.is_aside());
        asked.entries.push(user(&["[SUGGESTION MODE: what might come next]"]));
        assert!(asked.is_aside());
        asked = Conversation { tools: Vec::new(), ..conversation(&[user(&["hi"])]) };
        assert!(asked.is_aside());
    }
}
