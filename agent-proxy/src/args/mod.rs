//! Command line.

mod ask;
mod budget;
mod catalog;
mod clocks;
mod container;
mod containment;
#[cfg(feature = "engine")]
mod engine;
mod event_type;
mod fleet;
pub(crate) mod help;
mod lifecycle;
mod listing;
mod login_link;
pub(crate) mod mcp;
pub(crate) mod operations;
pub(crate) mod persistence;
mod rules;
mod sandbox;
mod session;
mod several;
mod since;
mod terminal;
mod watch;
mod webhooks;
mod workspaces;

use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum, builder::ArgAction, error::ErrorKind};
use clap_complete::Shell;
use ipc_protocol::{HostDeath, KillOptions, SessionId};

use crate::daemon_address::AddressFlags;

pub(crate) use ask::AskArgs;
pub(crate) use catalog::{
    AgentsArgs, ChangeProfileArgs, CreateModelArgs, CreateProfileArgs, ModelsArgs, ModelsCommand, ProfileField,
    ProfilesArgs, ProfilesCommand,
};
#[cfg(feature = "engine")]
pub(crate) use engine::*;
#[cfg(feature = "engine")]
pub(crate) use fleet::AccountsArgs;
pub(crate) use fleet::{DrainArgs, FleetCommand, FleetCommandArgs, ForgetArgs, MoveArgs, PlacementArgs};
pub(crate) use help::HelpArgs;
pub(crate) use listing::{FormatArgs, ListingFormat, TemplatePart};
pub(crate) use login_link::LoginLinkArgs;
use operations::{CompactArgs, DeleteArgs, NativeArgs, SessionArgs, SetArgs, SteerArgs};
use persistence::{
    AppendArgs, ArchiveArgs, AttachCommandArgs, ExportArgs, ImportArgs, RenameArgs, ResumeArgs, SessionsArgs,
    SuspendArgs, TagArgs, TakeBackArgs,
};
pub(crate) use session::AgentArgs;
pub(crate) use several::SeveralArgs;
pub(crate) use terminal::{AttachArgs, ShellArgs, StartTerminalArgs};
pub(crate) use watch::{LogsArgs, PruneArgs, StatusArgs, TopArgs, TopSort, WaitArgs, WaitState};
pub(crate) use webhooks::WebhooksArgs;
pub(crate) use workspaces::{WorkspaceDiffArgs, WorkspacesArgs};

/// Examples of `--help`.
#[cfg(feature = "engine")]
const EXAMPLES: &str = "Examples:\n  \
    agent-proxy demo                         a session from prompt to proven kill\n  \
    agent-proxy run 'fix the failing test'   one turn of an agent, in the terminal\n  \
    agent-proxy ask 'what does this do?'     question and answer, for scripts\n  \
    agent-proxy doctor                       what this system offers\n  \
    agent-proxy leaktest COMMAND             what a command leaves behind\n\n\
    With a daemon:\n  \
    agent-proxy serve --detach\n  \
    agent-proxy start --id s-1 --agent command -- cat\n  \
    agent-proxy ps s-1\n  \
    agent-proxy kill s-1";
/// Examples of `--help`.
#[cfg(not(feature = "engine"))]
const EXAMPLES: &str = "This is the client alone: the engine runs on Linux. With a daemon at AGENT_PROXY_URL, or --url:\n  \
    agent-proxy start --id s-1 --agent command -- cat\n  \
    agent-proxy ps s-1\n  \
    agent-proxy kill s-1";

/// Runs AI coding agents in sessions of their own, shows every process they start, and proves them gone.
#[derive(Debug, Parser)]
#[command(name = "agent-proxy", version, propagate_version = true)]
#[command(arg_required_else_help = true, disable_help_subcommand = true)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// Command to run.
    #[command(subcommand)]
    pub(crate) command: CliCommand,
    /// Flags of all commands.
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
}

/// Flags of all commands.
#[derive(Clone, Debug, Args)]
pub(crate) struct GlobalArgs {
    /// The daemon's socket [default: see `agent-proxy help environment`]
    #[arg(long, global = true, value_name = "PATH", hide_short_help = true)]
    pub(crate) socket: Option<PathBuf>,
    /// A daemon on the network: https://HOST, or http:// on this machine [default: $AGENT_PROXY_URL]
    #[arg(long, global = true, value_name = "URL", conflicts_with = "socket", hide_short_help = true)]
    pub(crate) url: Option<String>,
    /// File with the token for --url [default: see `agent-proxy help environment`]
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    pub(crate) token_file: Option<PathBuf>,
    /// Print JSON, and errors as problem objects on stderr
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Directory with agents, profiles and models [default: see `agent-proxy help environment`]
    #[arg(long, global = true, value_name = "DIR", hide_short_help = true)]
    pub(crate) config_dir: Option<PathBuf>,
    /// Log more on stderr; twice for much more (RUST_LOG wins)
    #[arg(short, long, global = true, action = ArgAction::Count, hide_short_help = true)]
    pub(crate) verbose: u8,
}

impl GlobalArgs {
    /// Returns what was said of the daemon's address.
    pub(crate) fn address(&self) -> AddressFlags<'_> {
        AddressFlags {
            socket: self.socket.as_deref(),
            url: self.url.as_deref(),
            token_file: self.token_file.as_deref(),
            config_dir: self.config_dir.as_deref(),
        }
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// One of the engine's.
    #[cfg(feature = "engine")]
    #[command(flatten)]
    Engine(EngineCommand),
    /// Ask an agent, and print its reply
    ///
    /// Ctrl-C ends the session that was started for the question.
    Ask(AskArgs),
    /// End the daemon with all its sessions; print how each ended
    ///
    /// Running turns may finish, for as long as the daemon allows (`serve --drain`). Waits until the daemon is gone.
    Stop(StopArgs),
    /// Show the daemon's state, or a session's: processes, usage, last events
    Status(StatusArgs),
    /// Start a session; prints its id when the agent is ready
    Start(StartArgs),
    /// Show a session's terminal in this one, and type there
    Attach(AttachArgs),
    /// List the sessions: those of this daemon, or all that are kept
    Sessions(SessionsArgs),
    /// List the prompts of a session that wait for their turn or for its resume, or drop some
    ///
    /// The first column is what --drop takes. A prompt that is dropped is never begun, and who waits for its turn is told so.
    Queue(QueueArgs),
    /// Show the processes of a session, or of all, as a tree
    Ps(PsArgs),
    /// Watch sessions and their processes live; answer, signal, kill
    Top(TopArgs),
    /// Send a signal to one process of a session
    ///
    /// It reaches the process that has the pid now, and no other. `kill --pid` ends one, and sees that it is gone.
    Signal(SignalArgs),
    /// Open a shell beside a session's agent, or run a command there
    Shell(ShellArgs),
    /// Send a prompt, print the answer, wait for the end of the turn
    Prompt(PromptArgs),
    /// Print a session's events, or those of all
    Events(EventsArgs),
    /// Print what a session said and did, as text; -f follows it
    Logs(LogsArgs),
    /// Wait until sessions have ended, or are idle; the exit code says how
    Wait(WaitArgs),
    /// Cancel the running turn of a session
    Abort(AbortArgs),
    /// End sessions and all they started, or one process; print the receipt
    Kill(KillArgs),
    /// Answer an agent's permission request, or list those that are open
    Permit(PermitArgs),
    /// Send a message to the agent in the running turn
    Steer(SteerArgs),
    /// Change an agent's model, mode or thinking level
    Set(SetArgs),
    /// Compact the conversation that the agent's model sees
    Compact(CompactArgs),
    /// Print the state that an agent reports
    State(SessionArgs),
    /// Print the conversation as the agent has it
    Messages(SessionArgs),
    /// Print the conversation as text, from the session's events
    Transcript(SessionArgs),
    /// List the agent's own conversations of the session's directory
    Conversations(SessionArgs),
    /// Send a command of the agent's own protocol, and print the reply
    Native(NativeArgs),
    /// Stop sessions' processes but keep their conversations for a later resume
    Suspend(SuspendArgs),
    /// Resume a suspended session; prints its id when the agent is ready
    Resume(ResumeArgs),
    /// Print the command that continues a session's conversation in the agent itself
    AttachCommand(AttachCommandArgs),
    /// Resume a session that was handed over (`attach-command --hand-over`)
    TakeBack(TakeBackArgs),
    /// Append an event of your own to a session's stream; prints its offset
    Append(AppendArgs),
    /// Write a session's events as JSON lines
    Export(ExportArgs),
    /// Import the events of a session from elsewhere; prints its id
    Import(ImportArgs),
    /// Set the title of a session
    Rename(RenameArgs),
    /// Add tags to a session, or remove some
    Tag(TagArgs),
    /// Archive sessions: only `sessions --archived` lists them
    Archive(ArchiveArgs),
    /// Forget sessions that have ended or are suspended, with their events
    ///
    /// A home of the session's own is removed too, with the agent's conversation in it.
    Delete(DeleteArgs),
    /// Forget all sessions that have ended, or that ended some time ago
    Prune(PruneArgs),
    /// List the agents: found or not, where, which version, what is missing
    Agents(AgentsArgs),
    /// Manage profiles: named settings for the start of sessions
    Profiles(ProfilesArgs),
    /// Manage model configurations: providers, addresses and keys by name
    Models(ModelsArgs),
    /// List the daemon's webhooks with what they have carried, and the last failure of each
    Webhooks(WebhooksArgs),
    /// List the workspaces: trees of their own in which agents work (--workspace)
    Workspaces(WorkspacesArgs),
    /// Print what changed in a session's workspace, as a patch
    Diff(WorkspaceDiffArgs),
    /// Write the changes of a session's workspace to your tree: all of them, or none
    ///
    /// Where your tree has changed in the same places since, these are named, and nothing is written. A session that goes on keeps its
    /// workspace, and later changes can be applied in turn.
    Apply(SessionArgs),
    /// Remove a session's workspace, with the changes in it
    Drop(SessionArgs),
    /// Print a link that logs a browser in, once
    LoginLink(LoginLinkArgs),
    /// List the nodes of the daemon's fleet, or who has which session
    Fleet(FleetCommandArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Write the man pages into a folder
    #[command(hide = true)]
    Man(ManArgs),
    /// Explain a command or a topic
    Help(HelpArgs),
}

/// Arguments of `abort`.
#[derive(Debug, Args)]
pub(crate) struct AbortArgs {
    /// The session's id
    pub(crate) id: SessionId,
    /// End the processes that the turn started too, and print the receipt
    ///
    /// What ran before the turn began goes on. What ignores SIGTERM gets SIGKILL after 2 s.
    #[arg(long)]
    pub(crate) kill_turn: bool,
}

/// Arguments of `stop`.
#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// Do not wait for running turns
    #[arg(long)]
    pub(crate) now: bool,
    /// Let sessions of `start --on-host-death detach` run on, for the next daemon
    #[arg(long)]
    pub(crate) detach: bool,
    /// Time to wait for the daemon's end; it ends all the same after that
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "2m")]
    pub(crate) timeout: Duration,
}

/// Arguments of `start`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy start --agent command -- cat\n  \
    agent-proxy start --id build-7 --agent codex --cwd ~/src --permission allow\n  \
    agent-proxy start --profile review --timeout turn=10m --permission-timeout 60s\n  \
    agent-proxy start --agent acp --env API_KEY --user user-1 -- my-agent --acp\n  \
    agent-proxy start --agent codex --limit memory=2GiB --limit pids=200\n  \
    agent-proxy start --agent pi --key chat-7 --idle-suspend 5m")]
pub(crate) struct StartArgs {
    /// Name of the session: 1 to 64 characters of A-Z a-z 0-9 . _ - [default: a fresh UUIDv7]
    #[arg(long, alias = "session-id")]
    pub(crate) id: Option<SessionId>,
    /// Delete the ended session that has the id of --id first
    #[arg(long, requires = "id")]
    pub(crate) replace: bool,
    /// The agent: see `agent-proxy agents` [default: that of --profile]
    #[arg(long, value_name = "NAME", required_unless_present = "profile")]
    pub(crate) agent: Option<String>,
    /// Its terminal.
    #[command(flatten)]
    pub(crate) terminal: StartTerminalArgs,
    /// Options of the start.
    #[command(flatten)]
    pub(crate) start: AgentArgs,
    /// Prompts that the session takes in all; what is prompted after them is refused [default: any number]
    #[arg(long, value_name = "N")]
    pub(crate) max_prompts: Option<u32>,
    /// Kill or keep the processes that the agent leaves when it exits by itself
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnExit::Kill)]
    pub(crate) on_agent_exit: OnExit,
    /// Kill the session when the daemon dies, or detach it; `detach` needs a daemon with --state-dir
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnHostDeath::Kill)]
    pub(crate) on_host_death: OnHostDeath,
    /// Time that a detached session waits for the next daemon before it ends itself
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "24h")]
    pub(crate) fetch_within: Duration,
    /// Label: for whom it runs
    #[arg(long, value_name = "LABEL")]
    pub(crate) user: Option<String>,
    /// Label: in which workspace
    #[arg(long, value_name = "LABEL")]
    pub(crate) workspace_label: Option<String>,
    /// Label: what it is for (execution, plan, …)
    #[arg(long = "type", value_name = "LABEL")]
    pub(crate) agent_type: Option<String>,
    /// Its node, in a fleet.
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
}

/// Arguments of `ps`.
#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// The session's id [default: all sessions]
    pub(crate) id: Option<SessionId>,
    /// Print the pids of live processes only, one a line
    #[arg(short = 'q', long, conflicts_with = "format")]
    pub(crate) pids: bool,
    /// Include processes that have ended
    #[arg(long, conflicts_with = "pids")]
    pub(crate) all: bool,
    /// Show it again and again, at this interval, until Ctrl-C [default: 2s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, num_args = 0..=1, default_missing_value = "2s")]
    #[arg(require_equals = true, conflicts_with_all = ["pids", "format"])]
    pub(crate) watch: Option<Duration>,
    /// Form of the list: table (the tree), json, jsonl, or a template such as '{pid}\t{command}'; see `help output`
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<ListingFormat>,
}

/// Arguments of `queue`.
#[derive(Debug, Args)]
pub(crate) struct QueueArgs {
    /// The session's id
    pub(crate) id: SessionId,
    /// Drop this prompt, by its number in the list; repeatable
    #[arg(long, value_name = "N", conflicts_with = "drop_all")]
    pub(crate) drop: Vec<u64>,
    /// Drop all that wait, and print them
    #[arg(long)]
    pub(crate) drop_all: bool,
    /// How the prompts are listed; their ids are their numbers.
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

/// Arguments of `signal`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy signal s-1 4711 INT\n  \
    agent-proxy signal s-1 4711 SIGWINCH\n  \
    agent-proxy signal s-1 4711 34")]
pub(crate) struct SignalArgs {
    /// The session's id
    pub(crate) id: SessionId,
    /// Pid of the process, as `ps` lists it
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pid: u32,
    /// The signal: a name, or a number from 1 to 64
    pub(crate) signal: ipc_protocol::SignalNumber,
}

/// Arguments of `prompt`.
#[derive(Debug, Args)]
#[command(
    after_help = "Ctrl-C ends the waiting, not the turn: `agent-proxy abort ID` cancels that. To an agent without turns (`command`) the \
    prompt is a line on its standard input, and there is nothing to wait for."
)]
pub(crate) struct PromptArgs {
    /// The session's id
    pub(crate) id: SessionId,
    /// Prompt; `-` reads it from standard input
    pub(crate) text: String,
    /// Files beside the prompt.
    #[command(flatten)]
    pub(crate) attachments: AttachmentArgs,
    /// Return as soon as the agent has the prompt
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// While a turn runs: wait for its end, then begin
    #[arg(long, conflicts_with = "steer")]
    pub(crate) queue: bool,
    /// While a turn runs: send this into that turn
    #[arg(long)]
    pub(crate) steer: bool,
    /// Metadata that comes back with the prompt's events, such as correlation ids: a JSON object
    #[arg(long, value_name = "JSON")]
    pub(crate) metadata: Option<String>,
}

/// Pictures and files beside the words of a prompt.
#[derive(Debug, Default, Args)]
pub(crate) struct AttachmentArgs {
    /// Show the agent this picture (png, jpg, gif, webp); repeatable
    #[arg(long = "image", value_name = "FILE")]
    pub(crate) images: Vec<PathBuf>,
    /// Point the agent at this file; repeatable
    #[arg(long = "file", value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
}

/// Arguments of `events`.
#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// The session's id
    #[arg(required_unless_present = "all")]
    pub(crate) id: Option<SessionId>,
    /// Print the events of all sessions in one order; each has a position in it
    #[arg(long, conflicts_with_all = ["id", "follow"])]
    pub(crate) all: bool,
    /// Only events after this offset, with --all after this position; 0 is everything
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) from: u64,
    /// Follow new events until the session ends
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Only events of this type or group, as in stream:text, session or 'slack:*'; repeatable
    ///
    /// Several may stand with commas between them. Types of your own have a colon or an asterisk: slack:message, 'note*'. A session:gap,
    /// which stands for lost events, is shown all the same.
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',', value_parser = event_type::parse)]
    pub(crate) types: Vec<String>,
    /// Only the last events, so many
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(api_types::api::MAX_TAIL)))]
    pub(crate) tail: Option<u32>,
    /// Only events since then: a time ago, as in 10m, or a moment in UTC, as in 2026-01-31 or '2026-01-31 14:00'
    ///
    /// RFC 3339 may name another zone: 2026-01-31T14:00:00+01:00.
    #[arg(long, value_name = "WHEN", value_parser = since::parse)]
    pub(crate) since: Option<SystemTime>,
    /// Include the lines of the agent's own protocol; --json has them always
    #[arg(long)]
    pub(crate) raw: bool,
}

/// Arguments of `kill`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exits 0 only when nothing is left, and that is proven (with --pid: when that process is gone), and 5 when something \
    survived. The receipt says what was ended, how, and on what proof."
)]
pub(crate) struct KillArgs {
    /// Sessions to end.
    #[command(flatten)]
    pub(crate) sessions: SeveralArgs,
    /// End only this process of the session; the session goes on
    #[arg(long, conflicts_with = "every")]
    pub(crate) pid: Option<u32>,
    /// With --pid: everything below it too
    #[arg(long, requires = "pid")]
    pub(crate) tree: bool,
    /// TERM ends politely and sends SIGKILL after the grace; KILL sends that at once
    #[arg(long, value_name = "TERM|KILL", value_parser = kill_signal, default_value = "TERM")]
    pub(crate) signal: KillSignal,
    /// Time between SIGTERM and SIGKILL, as in 300ms or 5s
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "2s")]
    pub(crate) grace: Duration,
}

impl KillArgs {
    /// Converts to the library's form.
    pub(crate) fn options(&self) -> KillOptions {
        match self.signal {
            KillSignal::Term => KillOptions::grace(self.grace),
            KillSignal::Kill => KillOptions::NOW,
        }
    }
}

/// Arguments of `permit`.
#[derive(Debug, Args)]
pub(crate) struct PermitArgs {
    /// The session's id; alone, it lists the open requests
    pub(crate) id: SessionId,
    /// The request's id, as the list has it
    #[arg(requires = "answer")]
    pub(crate) request: Option<String>,
    /// allow, deny, or the id of one of the request's options
    pub(crate) answer: Option<String>,
    /// Name of the person who answers, for the event permission:resolved
    #[arg(long = "as", value_name = "NAME", requires = "answer")]
    pub(crate) by: Option<String>,
    /// With deny: a reason for the agent, where it takes one
    #[arg(long, value_name = "TEXT", requires = "answer")]
    pub(crate) reason: Option<String>,
    /// With allow: use this input instead, where the agent takes one: an edited command, the answers to a question
    #[arg(long, value_name = "JSON", conflicts_with = "reason", requires = "answer")]
    pub(crate) input: Option<String>,
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
#[command(after_help = "Put it where the shell reads it at its start (zsh: after compinit):\n  \
    bash echo 'source <(agent-proxy completions bash)' >> ~/.bashrc\n  \
    zsh  echo 'source <(agent-proxy completions zsh)' >> ~/.zshrc\n  \
    fish agent-proxy completions fish >~/.config/fish/completions/agent-proxy.fish\n\n\
    It completes commands and flags, and asks the program for ids of sessions, agents, profiles, models and\n\
    permission requests. Ids come from the daemon; without one there are none. Behind `--` it completes\n\
    programs and files.\n")]
pub(crate) struct CompletionsArgs {
    /// Shell to complete for
    pub(crate) shell: Shell,
}

#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// Folder for the files: agent-proxy.1, and one for each command
    pub(crate) folder: PathBuf,
}

/// First signal of a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KillSignal {
    /// SIGTERM, and SIGKILL after the grace.
    Term,
    /// SIGKILL at once.
    Kill,
}

fn kill_signal(text: &str) -> Result<KillSignal, String> {
    match text.parse::<ipc_protocol::Signal>() {
        Ok(ipc_protocol::Signal::Term) => Ok(KillSignal::Term),
        Ok(ipc_protocol::Signal::Kill) => Ok(KillSignal::Kill),
        _ => Err("a kill begins with TERM or KILL".to_owned()),
    }
}

/// `on_agent_exit` on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnExit {
    /// Kill them, and end the session
    Kill,
    /// Keep them until the session is killed
    Keep,
}

impl From<OnExit> for ipc_protocol::OnAgentExit {
    fn from(what: OnExit) -> Self {
        match what {
            OnExit::Kill => Self::Kill,
            OnExit::Keep => Self::Keep,
        }
    }
}

/// `on_host_death` on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnHostDeath {
    /// End the session
    Kill,
    /// Let the session run; the next daemon with the same --state-dir takes it over
    Detach,
}

impl OnHostDeath {
    /// Converts to the library's form.
    pub(crate) fn config(self, fetch_within: Duration) -> HostDeath {
        match (self, HostDeath::DETACH) {
            (Self::Detach, HostDeath::Detach { spool_bytes, .. }) => HostDeath::Detach {
                fetch_within_ms: u64::try_from(fetch_within.as_millis()).unwrap_or(u64::MAX),
                spool_bytes,
            },
            (Self::Kill | Self::Detach, _) => HostDeath::Kill,
        }
    }
}

/// Builds the complete command line, with its help arranged for this terminal.
pub(crate) fn command() -> clap::Command {
    let root = Cli::command();
    #[cfg(feature = "engine")]
    let root = root.mut_subcommand("serve", with_switch_values);
    help::arrange(root, help::width())
}

/// Parses the command line.
///
/// # Errors
/// clap's, which include help and version.
pub(crate) fn parse<I, T>(args: I) -> Result<Cli, clap::Error>
where
    I: IntoIterator<Item = T>,
    T: Into<std::ffi::OsString> + Clone,
{
    let mut command = command();
    let matches = command.try_get_matches_from_mut(args)?;
    if let Some(("ask", given)) = matches.subcommand() {
        ask::check(given).map_err(|why| {
            let command = command.find_subcommand_mut("ask").expect("it was parsed");
            command.error(ErrorKind::ArgumentConflict, why)
        })?;
    }
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Cli, clap::Error> {
        parse(line.split_whitespace())
    }

    #[test]
    fn hosts_and_origins_that_no_request_has_are_refused() {
        for line in [
            "--origin https://ui.example/",
            "--origin ui.example",
            "--origin x",
            "--host http://x",
            "--host a.example:80",
        ] {
            let error = parsed(&format!("agent-proxy serve --listen 127.0.0.1:0 {line}"));
            assert!(error.is_err(), "{line}");
        }
        parsed("agent-proxy serve --listen 127.0.0.1:0 --origin https://ui.example:8443 --host agents.example")
            .expect("good");
    }

    #[test]
    fn what_contradicts_itself_shows_the_usage_of_its_command() {
        let error = parsed("agent-proxy ask s hello --context {}").expect_err("contradicts").to_string();
        assert!(error.contains("Usage: agent-proxy ask "), "{error}");
    }

    #[test]
    fn the_definition_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn the_help_has_the_exit_codes() {
        let help = parsed("agent-proxy --help").expect_err("help is no command").to_string();
        for part in ["130  interrupted", "  5  survivors", "agent-proxy start"] {
            assert!(help.contains(part), "{part} in {help}");
        }
        assert_eq!(help.contains("demo"), cfg!(feature = "engine"), "{help}");
        assert!(!help.contains("fake-agent"), "{help}");
    }

    #[test]
    fn what_follows_two_dashes_is_the_agent_s() {
        let cli = parsed("agent-proxy start --id a --agent command --env A=b -- sh -c --json").expect("parses");
        assert!(!cli.global.json);
        let CliCommand::Start(start) = cli.command else { panic!("{:?}", cli.command) };
        assert_eq!(start.start.argv, ["sh", "-c", "--json"]);
        assert_eq!(start.start.env, ["A=b"]);
    }

    #[test]
    fn kill_s_signal_and_grace() {
        for (line, grace) in [
            ("kill s", 2000),
            ("kill s --grace 300ms", 300),
            ("kill s --signal TERM --grace 5s", 5000),
            ("kill s --signal sigkill", 0),
            ("kill s --signal KILL --pid 7", 0),
        ] {
            let CliCommand::Kill(kill) = parsed(&format!("agent-proxy {line}")).expect("parses").command else {
                panic!("{line}")
            };
            assert_eq!(kill.options().grace, Duration::from_millis(grace), "{line}");
        }
        for line in ["kill s --signal INT", "kill s --grace soon", "kill s --pid x", "kill", "kill a/b"] {
            assert_eq!(parsed(&format!("agent-proxy {line}")).expect_err("refused").exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn offsets_may_be_given_as_events_print_them() {
        let cli =
            parsed("agent-proxy events s --from 00000000000000000007 --follow --type stream,log --tail 3 --since 10m")
                .expect("parses");
        assert!(matches!(cli.command, CliCommand::Events(EventsArgs { from: 7, follow: true, .. })));
    }

    #[test]
    fn global_flags_stand_anywhere() {
        for line in ["agent-proxy --json --socket /a/b ps", "agent-proxy ps --json --socket /a/b"] {
            let cli = parsed(line).expect("parses");
            assert!(cli.global.json && cli.global.socket.as_deref() == Some("/a/b".as_ref()), "{line}");
        }
    }
}
