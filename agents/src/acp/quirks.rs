//! Deviations of some agents from the protocol, by the name that the agent gives itself.

/// The mode in which Claude Code and Qwen Code ask.
pub(super) const ASKING_MODE: &str = "default";

/// The quirks of one agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AcpQuirks {
    /// The agent takes options of the Claude Agent SDK in `_meta`.
    pub(super) claude_options: bool,
    /// Where nobody names a mode it may begin in `auto`, in which a model decides what is asked.
    pub(super) begins_in_auto: bool,
    /// A warning about a model that it does not know comes as text of the answer, before it.
    pub(super) warns_in_text: bool,
    /// A change of mode comes as text of the answer: `[MODE_UPDATE] plan`.
    pub(super) mode_in_text: bool,
    /// The replay of a loaded conversation goes on after the answer to `session/load`, up to the list of commands.
    pub(super) replays_late: bool,
    /// The agent sends nothing more about a tool call that was rejected.
    pub(super) drops_rejected: bool,
    /// The conversations are files, which the protocol does not list and may destroy.
    pub(super) keeps_files: bool,
    /// A request to the model that failed and is made again is told of in its standard error alone.
    pub(super) retries_in_stderr: bool,
    /// What is executed is named by the title alone.
    pub(super) title_is_command: bool,
}

impl AcpQuirks {
    /// Returns the quirks of the agent that calls itself `name`.
    pub(super) fn of(name: &str) -> Self {
        match name {
            "@agentclientprotocol/claude-agent-acp" => {
                Self { claude_options: true, begins_in_auto: true, ..Self::default() }
            }
            "codex-acp" | "@agentclientprotocol/codex-acp" => {
                Self { warns_in_text: true, retries_in_stderr: true, ..Self::default() }
            }
            "gemini-cli" => Self {
                mode_in_text: true,
                replays_late: true,
                drops_rejected: true,
                keeps_files: true,
                title_is_command: true,
                ..Self::default()
            },
            "qwen-code" => Self { begins_in_auto: true, ..Self::default() },
            _ => Self::default(),
        }
    }

    /// Returns whether a text may be something else than text.
    pub(super) fn text(&self) -> bool {
        self.warns_in_text || self.mode_in_text
    }

    /// Returns the status and detail that a piece of text really is.
    pub(super) fn status_in<'a>(&self, text: &'a str) -> Option<(&'static str, &'a str)> {
        if self.mode_in_text
            && let Some(mode) = text.strip_prefix("[MODE_UPDATE] ")
            && !mode.is_empty()
            && !mode.contains(char::is_whitespace)
        {
            return Some(("mode", mode));
        }
        let warns = self.warns_in_text
            && text.strip_prefix("Warning: ").unwrap_or(text).starts_with("Model metadata for `")
            && text.contains("` not found. Defaulting to fallback metadata");
        warns.then_some(("warning", text))
    }
}
