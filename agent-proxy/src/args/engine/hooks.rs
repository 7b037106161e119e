//! Arguments of `hooks`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Arguments of `hooks`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy hooks install claude-code\n  \
    agent-proxy hooks                     # installed? what was recorded?\n  \
    agent-proxy hooks events 3f0c --follow\n  \
    agent-proxy hooks uninstall claude-code\n\n\
    The hooks record what a plain `claude` does: prompts, text and tool calls. Each\n\
    conversation has a stream of its own, in $XDG_STATE_HOME/agent-proxy/outside, else\n\
    ~/.local/state/agent-proxy/outside. Sessions of agent-proxy are not recorded\n\
    there: their events have it.\n")]
pub(crate) struct HooksArgs {
    /// Command [default: list]
    #[command(subcommand)]
    pub(crate) command: Option<HooksCommand>,
}

/// Commands on hooks.
#[derive(Debug, Subcommand)]
pub(crate) enum HooksCommand {
    /// Add the hooks to your settings of an agent; a copy of the file is kept beside it
    Install(HooksAgentArgs),
    /// Remove the hooks from your settings of an agent
    ///
    /// If nothing else was changed, the file is as it was before the installation, byte for byte.
    Uninstall(HooksAgentArgs),
    /// List where hooks are installed, and the conversations that were recorded
    List,
    /// Print what was recorded of a conversation
    Events(HooksEventsArgs),
}

/// Agent, and the file with its settings.
#[derive(Debug, Args)]
pub(crate) struct HooksAgentArgs {
    /// The agent
    #[arg(value_enum)]
    pub(crate) agent: HooksAgent,
    /// Its settings [default: $CLAUDE_CONFIG_DIR/settings.json, else ~/.claude/settings.json]
    #[arg(long, value_name = "FILE")]
    pub(crate) settings: Option<PathBuf>,
}

/// Agent that has hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HooksAgent {
    /// Claude Code
    ClaudeCode,
}

impl HooksAgent {
    /// Returns the agent's catalog id.
    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::ClaudeCode => "claude-code",
        }
    }
}

/// Arguments of `hooks events`.
#[derive(Debug, Args)]
pub(crate) struct HooksEventsArgs {
    /// The agent's id of the conversation, or a unique beginning of it
    #[arg(value_name = "CONVERSATION")]
    pub(crate) id: String,
    /// Print what comes, until interrupted
    #[arg(short, long)]
    pub(crate) follow: bool,
}
