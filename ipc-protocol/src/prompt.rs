//! Prompts for an agent.

use serde::{Deserialize, Serialize};

/// Part of a prompt. `Debug` hides texts and images: they may contain secrets, or megabytes.
///
/// In JSON `{"text":"…"}`, `{"image":{"mimeType":"image/png","data":"…"}}`, `{"file":{"path":"/…"}}`.
#[derive(Clone, derive_more::Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum PromptPart {
    /// Plain text.
    #[debug("Text({} bytes)", _0.len())]
    Text(String),
    /// Picture as bytes.
    #[debug("Image({mime_type}, {} bytes)", data.len())]
    Image {
        /// MIME type, such as `image/png`.
        mime_type: String,
        /// Content of the image, in base64.
        data: String,
    },
    /// Reference to a file for the agent; its content is not read here.
    File {
        /// Path, absolute or relative to the session's working directory.
        path: String,
    },
}

/// Prompt of at least one part.
///
/// ```
/// use ipc_protocol::{Prompt, PromptPart};
///
/// let words = Prompt::from("what does this file do?".to_owned());
/// let with_file = Prompt {
///     parts: vec![
///         PromptPart::Text("what does this file do?".into()),
///         PromptPart::File { path: "src/lib.rs".into() },
///     ],
/// };
/// assert_eq!(words.text(), with_file.text());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Prompt {
    /// Parts, in order.
    pub parts: Vec<PromptPart>,
}

impl Prompt {
    /// Returns the text parts, joined by newlines.
    pub fn text(&self) -> String {
        let texts = self.parts.iter().filter_map(|part| match part {
            PromptPart::Text(text) => Some(text.as_str()),
            _ => None,
        });
        texts.collect::<Vec<_>>().join("\n")
    }

    /// Describes the parts other than text, one line each: `image/png (1234 bytes)`, a path.
    pub fn attachments(&self) -> Vec<String> {
        let names = self.parts.iter().filter_map(|part| match part {
            PromptPart::Text(_) => None,
            PromptPart::Image { mime_type, data } => Some(format!("{mime_type} ({} bytes)", data.len() / 4 * 3)),
            PromptPart::File { path } => Some(path.clone()),
        });
        names.collect()
    }

    /// Returns the bytes of all parts.
    pub fn len(&self) -> usize {
        let lens = self.parts.iter().map(|part| match part {
            PromptPart::Text(text) => text.len(),
            PromptPart::Image { mime_type, data } => mime_type.len() + data.len(),
            PromptPart::File { path } => path.len(),
        });
        lens.sum()
    }

    /// Returns true if the prompt has no content.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Self {
        Self { parts: vec![PromptPart::Text(text)] }
    }
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<&String> for Prompt {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

impl From<Vec<PromptPart>> for Prompt {
    fn from(parts: Vec<PromptPart>) -> Self {
        Self { parts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_in_json() {
        let json = r#"[{"text":"look"},{"image":{"mimeType":"image/png","data":"aGkh"}},{"file":{"path":"/a"}}]"#;
        let prompt: Prompt = serde_json::from_str(json).expect("parses");
        assert_eq!(
            (prompt.text(), prompt.attachments()),
            ("look".into(), vec!["image/png (3 bytes)".into(), "/a".into()])
        );
        assert_eq!(serde_json::to_string(&prompt).expect("serializes"), json);
        assert!(!format!("{prompt:?}").contains("look"));
    }
}
