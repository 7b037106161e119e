//! Commands of the builds with the engine, and their arguments.

mod daemon;
mod durability;
mod fleet;
mod hooks;
mod log;
mod network;
mod orphans;
mod supervision;
mod warm;

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use proxy_manager::terminal::TerminalConfig;
use proxy_server::ProblemDetails;

use super::{AgentArgs, AttachmentArgs, containment::ContainmentArgs, terminal};

pub(crate) use daemon::{
    ConfigArgs, ConfigCheckArgs, ConfigCommand, ConfigShowArgs, LogFormat, RestartArgs, SWITCH_VALUE, serve_definition,
    with_switch_values,
};
pub(crate) use durability::DurabilityArgs;
pub(crate) use fleet::FleetArgs;
pub(crate) use hooks::{HooksAgent, HooksAgentArgs, HooksArgs, HooksCommand, HooksEventsArgs};
pub(crate) use log::{LogArgs, LogCommand};
pub(crate) use network::{CreateTokenArgs, NetworkArgs, TokensArgs, TokensCommand};
pub(crate) use orphans::{NamedOrphan, OrphansArgs, OrphansCommand, OrphansKillArgs, OrphansListArgs};
pub(crate) use supervision::SupervisionArgs;
pub(crate) use warm::WarmArgs;

/// Commands that run agents, or look at this machine.
#[derive(Debug, Subcommand)]
pub(crate) enum EngineCommand {
    /// Show a session from prompt to proven kill; needs no model
    Demo,
    /// Run one turn of an agent in this terminal, or without a prompt one after the other
    ///
    /// The first Ctrl-C aborts the turn, a second one kills the session and prints the receipt. The end of the input (Ctrl-D)
    /// ends the session.
    Run(RunArgs),
    /// Run the daemon
    ///
    /// SIGTERM lets running turns finish (--drain) and begins nothing new; Ctrl-C, or a second signal, does not wait. Then every
    /// session is ended, and it prints how. Only one daemon has a socket; the socket is 0600, and its
    /// directory is created 0700, so it is yours alone. Agents get PATH, HOME, USER, SHELL, LANG, LC_*, TZ and TMPDIR of
    /// the daemon's environment, and what `start --env` adds. SIGHUP, as when a terminal is closed, ends nothing: the daemon opens
    /// --log-file anew and reads its configuration and its webhooks again.
    Serve(ServeArgs),
    /// Start the daemon again with the same flags; detached sessions live on
    Restart(RestartArgs),
    /// Check or show the daemon's configuration: a file with a key for each flag of `serve`
    Config(ConfigArgs),
    /// List, create or revoke tokens of callers over the network
    Tokens(TokensArgs),
    /// Check or salvage the event log's file; needs no daemon
    Log(LogArgs),
    /// Record what an agent does outside of agent-proxy, by hooks in your settings of it
    Hooks(HooksArgs),
    /// Be an agent for an editor: any agent of the catalog, by the Agent Client Protocol on standard input and output
    ///
    /// Each of the editor's sessions is one of ours: in the daemon if one answers, else in this process. When the editor ends, sessions
    /// whose conversation can go on are suspended, so that it can load them again, and the others are killed.
    Acp(AcpArgs),
    /// Serve a client of the Model Context Protocol on standard input and output
    ///
    /// Its tools start sessions and talk to them: in the daemon if one answers, else in this process, whose sessions end with the client.
    Mcp(McpArgs),
    /// Find agent processes that other tools left behind, and end those you name
    Orphans(OrphansArgs),
    /// Run a command as a session, and report what it leaves behind
    Leaktest(LeaktestArgs),
    /// Test what this system offers, and name what is missing
    Doctor,
}

/// Arguments of `acp`.
#[derive(Debug, Args)]
pub(crate) struct AcpArgs {
    /// Agent to start for each session [default: the profile's, else the first that is found]
    #[arg(long)]
    pub(crate) agent: Option<String>,
    #[command(flatten)]
    pub(crate) start: AgentArgs,
}

/// Arguments of `mcp`.
#[derive(Debug, Args)]
pub(crate) struct McpArgs {
    /// List the tools as `coding_agent.NAME`, not `coding_agent_NAME`: some model APIs refuse a dot. Calls may use either name
    #[arg(long)]
    pub(crate) dotted_names: bool,
}

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Run in the background: print the pid once the daemon answers, and return
    ///
    /// It has a session of its own, so that it outlives the terminal, and a log: --log-file, else beside the socket, with the ending
    /// .log. A start that fails says why. `agent-proxy stop` ends it.
    #[arg(long)]
    pub(crate) detach: bool,
    /// Write to this file instead of the terminal; SIGHUP opens it anew
    #[arg(long, value_name = "FILE")]
    pub(crate) log_file: Option<PathBuf>,
    /// Form of the log: text, or json with one object a line
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
    /// Layers of containment for sessions that name none.
    #[command(flatten)]
    pub(crate) containment: ContainmentArgs,
    /// Keep sessions and events here, and a record of the processes, for the next daemon
    ///
    /// The next `serve` with the same directory has the sessions (`sessions --all`) with their events (`events`); those whose
    /// conversation can be gone on with are suspended, and a prompt, `resume` or `start --key` goes on with them. If daemon,
    /// guard and proxies are all killed at once, it ends what they left and says so. It has those again that outlived this one
    /// (`start --on-host-death detach`). One daemon at a time has the directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Durability of sessions and events.
    #[command(flatten)]
    pub(crate) durability: DurabilityArgs,
    /// Prices of models, for costs that an agent does not tell [default: prices.toml of the configuration]
    ///
    /// A table [models."NAME"] for each model, with `input`, `output`, and where they differ `cached_input` and `cache_write`: US
    /// dollars for a million tokens. The file is read again when it changes.
    #[arg(long, value_name = "FILE")]
    pub(crate) prices: Option<PathBuf>,
    /// Make the sessions' cgroups below this one [default: the daemon's own, or the nearest above it that is writable]
    #[arg(long, value_name = "DIR")]
    pub(crate) cgroup_parent: Option<PathBuf>,
    /// Deepest nesting of sessions, where agents start sessions themselves
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) max_depth: u32,
    /// Bounds on the number of sessions.
    #[command(flatten)]
    pub(crate) supervision: SupervisionArgs,
    /// Sessions started ahead.
    #[command(flatten)]
    pub(crate) warm: WarmArgs,
    /// Listeners on the network.
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
    /// Membership of a fleet.
    #[command(flatten)]
    pub(crate) fleet: FleetArgs,
    /// Answer processes of the daemon's own sessions too
    ///
    /// They are refused otherwise: an agent that can reach the socket could drive its own manager.
    #[arg(long)]
    pub(crate) allow_sessions: bool,
    /// Send spans of sessions, turns and tool calls to this collector of OpenTelemetry; takes a build with the feature otlp
    ///
    /// OTLP over HTTP as JSON, as in http://127.0.0.1:4318/v1/traces. Headers are those of OTEL_EXPORTER_OTLP_HEADERS. No text of
    /// prompts, answers or tools is sent.
    #[arg(long, value_name = "URL")]
    pub(crate) otlp_endpoint: Option<String>,
}

/// Arguments of `leaktest`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy leaktest my-agent --one-shot 'run the tests'\n  \
    agent-proxy leaktest --timeout 1h --json npm test\n  \
    agent-proxy leaktest sh -c 'setsid sleep 300 & true'      # leaks: exits 1\n\n\
    The command runs in your environment and directory. Its standard input stays open and silent; what it prints goes to \
    standard error, the report to standard output.\n\n\
    Exit codes: 0 it left nothing behind after its own exit; 1 it leaks: something had to be killed, itself if it ran into \
    the timeout; 5 something survived the kill.")]
pub(crate) struct LeaktestArgs {
    /// Layers of containment.
    #[command(flatten)]
    pub(crate) containment: ContainmentArgs,
    /// Time limit of the command; at the limit it is killed with all it started
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "10m")]
    pub(crate) timeout: Duration,
    /// Time for its children to exit after it; what runs longer counts as a leak
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "200ms")]
    pub(crate) settle: Duration,
    /// Time between SIGTERM and SIGKILL for what it leaves
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "2s")]
    pub(crate) grace: Duration,
    /// The command
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy run 'what does this project do?'\n  \
    agent-proxy run --agent codex --permission allow 'run the tests'\n  \
    agent-proxy run --allow \"tool=Bash,command='git *'\" --image page.png 'fix it'\n  \
    agent-proxy run --continue 'and now the documentation'\n  \
    agent-proxy run --agent pi               # asks for one prompt after the other\n  \
    agent-proxy run --agent acp 'hello' -- my-agent --acp\n  \
    agent-proxy run --agent command 'uptime; exit' -- sh\n\n\
    The session is killed at the end, with all that the agent left running; the receipt is summarised on stderr. An agent \
    without turns (`command`) runs until it exits.")]
pub(crate) struct RunArgs {
    /// The agent [default: that of --profile, else the first of `agent-proxy agents` that is found]
    #[arg(long, value_name = "NAME")]
    pub(crate) agent: Option<String>,
    /// Prompt; `-` reads it from standard input. Without one, each line that you type is a prompt
    #[arg(value_name = "PROMPT")]
    pub(crate) prompt: Option<String>,
    /// Files beside the prompt.
    #[command(flatten)]
    pub(crate) attachments: AttachmentArgs,
    /// Its terminal.
    #[command(flatten)]
    pub(crate) terminal: ForegroundTerminalArgs,
    /// Prices of models, for costs that the agent does not tell [default: prices.toml of the configuration]
    #[arg(long, value_name = "FILE")]
    pub(crate) prices: Option<PathBuf>,
    /// Options of the start.
    #[command(flatten)]
    pub(crate) start: AgentArgs,
}

/// Terminal of a session in the foreground.
#[derive(Debug, Args)]
pub(crate) struct ForegroundTerminalArgs {
    /// Run the program in this terminal as it is
    ///
    /// Without another option it gets what it would get from the shell: arguments, environment, home, settings. At its end nothing of it is
    /// left, and its exit code is that of this command. A program that the catalog knows is that agent.
    #[arg(long, conflicts_with_all = ["prompt", "images", "files"])]
    pub(crate) tty: bool,
    /// Record the terminal into this new file, as asciicast (asciinema plays it)
    #[arg(long, value_name = "FILE", requires = "tty")]
    record: Option<PathBuf>,
}

impl ForegroundTerminalArgs {
    /// Builds the terminal's configuration.
    ///
    /// # Errors
    /// `usage` for a path that cannot be made absolute.
    pub(crate) fn config(&self) -> Result<TerminalConfig, ProblemDetails> {
        terminal::config(self.record.as_deref())
    }
}

impl AttachmentArgs {
    /// Returns true if there are no attachments.
    pub(crate) fn is_empty(&self) -> bool {
        self.images.is_empty() && self.files.is_empty()
    }
}
