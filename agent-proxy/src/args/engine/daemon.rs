//! Arguments of commands on the daemon itself: its configuration, its state, its end.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Arg, ArgAction, Args, Command, CommandFactory as _, Subcommand, ValueEnum, builder::BoolishValueParser};

use crate::args::{Cli, FormatArgs};

/// Name of a switch's value, by which it is known as one.
pub(crate) const SWITCH_VALUE: &str = "BOOL";

/// Form of the daemon's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// Arguments of `config`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy config show\n  \
    agent-proxy config check && agent-proxy restart\n  \
    agent-proxy config example > ~/.config/agent-proxy/config.toml\n\n\
    The file config.toml in the configuration directory has a key for each flag of `serve`. A flag wins over the variable \
    AGENT_PROXY_KEY, that over the file, the file over the default.")]
pub(crate) struct ConfigArgs {
    /// Command [default: show]
    #[command(subcommand)]
    pub(crate) command: Option<ConfigCommand>,
}

/// Commands on the daemon's configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check the file and the environment, and name each fault with its line
    Check(ConfigCheckArgs),
    /// Print the values that count, and where each comes from
    Show(ConfigShowArgs),
    /// Print the path of the file
    Path,
    /// Print a file with every key, its default and what it does
    Example,
}

/// `config check`.
#[derive(Debug, Args)]
pub(crate) struct ConfigCheckArgs {
    /// File [default: config.toml in the configuration directory]
    pub(crate) file: Option<PathBuf>,
}

/// `config show`.
#[derive(Debug, Default, Args)]
pub(crate) struct ConfigShowArgs {
    /// Form of the list.
    #[command(flatten)]
    pub(crate) format: FormatArgs,
    /// Flags of `serve` to count in, after --
    #[arg(last = true, value_name = "FLAG")]
    pub(crate) flags: Vec<OsString>,
}

/// Arguments of `restart`.
#[derive(Debug, Args)]
#[command(
    after_help = "The new daemon has the flags, the environment and the directory of the old one, and reads config.toml \
    again. Sessions of `start --on-host-death detach` run on, and it has them again; the others are ended, and those with a \
    state directory and a conversation are suspended. It runs in the background."
)]
pub(crate) struct RestartArgs {
    /// Do not wait for running turns of sessions that are ended
    #[arg(long)]
    pub(crate) now: bool,
    /// Time to wait for the old daemon's end
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "2m")]
    pub(crate) timeout: Duration,
}

/// Returns `serve` as it is parsed: each switch takes a value too, so that a flag can overrule a file that switches it on.
pub(crate) fn serve_definition() -> Command {
    let root = Cli::command();
    let serve = root.find_subcommand("serve").cloned().unwrap_or_else(|| Command::new("serve"));
    with_switch_values(serve)
}

/// Lets switches take a value: `--allow-sessions=false`.
pub(crate) fn with_switch_values(serve: Command) -> Command {
    serve.mut_args(|arg| if matches!(arg.get_action(), ArgAction::SetTrue) { switch(arg) } else { arg })
}

fn switch(arg: Arg) -> Arg {
    arg.action(ArgAction::Set)
        .num_args(0..=1)
        .require_equals(true)
        .value_name(SWITCH_VALUE)
        .value_parser(BoolishValueParser::new())
        .default_value("false")
        .default_missing_value("true")
        .hide_default_value(true)
        .hide_possible_values(true)
}
