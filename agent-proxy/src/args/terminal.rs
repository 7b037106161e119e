//! Arguments for terminals.

use std::path::{Path, PathBuf};

use api_types::ProblemDetails;
use clap::{Args, ValueEnum};
use ipc_protocol::{
    SessionId,
    terminal::{DetachKeys, KeyboardWish, OnDetach, Surface, TerminalConfig},
};

use crate::environment;

/// Keys that detach, as in docker.
const DETACH_KEYS: &str = "ctrl-p,ctrl-q";
/// Variable with other ones.
const DETACH_KEYS_VARIABLE: &str = "AGENT_PROXY_DETACH_KEYS";

/// Terminal of a session of the daemon.
#[derive(Debug, Args)]
#[command(next_help_heading = "Terminal")]
pub(crate) struct StartTerminalArgs {
    /// Run the program in a terminal, which `attach` shows; Codex, OpenCode and Pi stay driven by prompts too (`--surface both`)
    #[arg(long)]
    tty: bool,
    /// Ways to drive the agent: its protocol, its own screen, or both at once
    #[arg(long, value_name = "WAY", value_enum)]
    surface: Option<SurfaceArg>,
    /// Record the terminal into this new file, as asciicast (asciinema plays it)
    #[arg(long, value_name = "FILE", requires = "tty")]
    record: Option<PathBuf>,
    /// Keep or end the session when nobody views its terminal any more
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnDetachArg::Keep, requires = "tty")]
    on_detach: OnDetachArg,
}

impl StartTerminalArgs {
    /// Builds the terminal's configuration, if there is to be one.
    ///
    /// # Errors
    /// `usage` for a path that cannot be made absolute.
    pub(crate) fn config(&self) -> Result<Option<TerminalConfig>, ProblemDetails> {
        let on_detach = self.on_detach.into();
        (self.tty || self.surface == Some(SurfaceArg::Terminal))
            .then(|| Ok(TerminalConfig { on_detach, observed: true, ..config(self.record.as_deref())? }))
            .transpose()
    }

    /// Returns the surface to ask for. A terminal is the screen of an agent that goes with its protocol, where there is one.
    pub(crate) fn surface(&self) -> Option<Surface> {
        match self.surface {
            Some(surface) => Some(surface.into()),
            None => self.tty.then_some(Surface::Both),
        }
    }
}

/// Ways to drive an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SurfaceArg {
    /// Prompts alone
    Machine,
    /// The screen alone
    Terminal,
    /// Both at once: Codex, OpenCode, Pi
    Both,
}

impl From<SurfaceArg> for Surface {
    fn from(arg: SurfaceArg) -> Self {
        match arg {
            SurfaceArg::Machine => Self::Machine,
            SurfaceArg::Terminal => Self::Terminal,
            SurfaceArg::Both => Self::Both,
        }
    }
}

/// Builds the configuration of a terminal that is recorded into this file.
///
/// # Errors
/// `usage` for a path that cannot be made absolute.
pub(super) fn config(record: Option<&Path>) -> Result<TerminalConfig, ProblemDetails> {
    let record = record.map(environment::absolute).transpose()?;
    Ok(TerminalConfig { record, ..TerminalConfig::default() })
}

/// Arguments of `attach`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy start --tty --id s-1 --agent command -- bash\n  \
    agent-proxy attach s-1               # ctrl-p ctrl-q leaves it running\n  \
    agent-proxy attach s-1 --read-only   # watch; Ctrl-C leaves\n  \
    agent-proxy attach s-2 --native      # an agent's own screen\n\n\
    One viewer at a time has the keyboard. The terminal has the size of the one who\n\
    typed last; the others see a part of it.\n")]
pub(crate) struct AttachArgs {
    /// The session's id
    pub(crate) id: SessionId,
    /// Visit the agent's own screen (TUI) on the session's conversation; when it ends, the session goes on as before
    #[arg(long, conflicts_with_all = ["read_only", "take"])]
    pub(crate) native: bool,
    /// Only watch
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Take the keyboard from who has it; else it comes when that one leaves
    #[arg(long, conflicts_with = "read_only")]
    pub(crate) take: bool,
    /// Keys that leave the terminal and let the session go on
    /// [default: $AGENT_PROXY_DETACH_KEYS, else ctrl-p,ctrl-q]
    #[arg(long, value_name = "KEYS")]
    detach_keys: Option<DetachKeys>,
}

impl AttachArgs {
    /// Returns the keys that detach.
    ///
    /// # Errors
    /// `usage` for a variable that names none.
    pub(crate) fn detach_keys(&self) -> Result<DetachKeys, ProblemDetails> {
        if let Some(keys) = &self.detach_keys {
            return Ok(keys.clone());
        }
        let keys = std::env::var(DETACH_KEYS_VARIABLE).unwrap_or_else(|_| DETACH_KEYS.to_owned());
        keys.parse().map_err(|error| ProblemDetails::usage(format!("{DETACH_KEYS_VARIABLE}: {error}")))
    }

    pub(crate) fn keyboard(&self) -> KeyboardWish {
        match self {
            Self { read_only: true, .. } => KeyboardWish::Watch,
            Self { take: true, .. } => KeyboardWish::Take,
            _ => KeyboardWish::Type,
        }
    }
}

/// Arguments of `shell`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy shell s-1                     # your shell, where the agent is\n  \
    agent-proxy shell s-1 -- env | sort       # no terminal: its output as it is\n  \
    agent-proxy shell s-1 -- git status\n\n\
    It has the agent's directory, environment (with its keys), limits and containment.\n\
    `ps` shows it, and it ends with the session. When this command ends, it gets\n\
    SIGHUP; what it left running on purpose stays the session's.\n")]
pub(crate) struct ShellArgs {
    /// The session's id
    pub(crate) id: SessionId,
    /// Program and arguments [default: $SHELL of the session, else /bin/sh]
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// Effect of the last viewer's leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnDetachArg {
    /// The session goes on
    Keep,
    /// The session is ended
    End,
}

impl From<OnDetachArg> for OnDetach {
    fn from(arg: OnDetachArg) -> Self {
        match arg {
            OnDetachArg::Keep => Self::Keep,
            OnDetachArg::End => Self::End,
        }
    }
}
