//! Arguments for the start of a session.

use std::path::PathBuf;

use agents::{Profile, ProfileRule};
use clap::{Args, ValueEnum};
use ipc_protocol::{
    AgentSandbox, Home, HomePart, OnMissing, PermissionMode, ResumeFallback, ResumeFrom, ResumeRequest, WorkspaceKind,
};

use super::{
    budget::BudgetArgs,
    clocks::{PermissionTimeout, TimeoutArg},
    container::ContainerArgs,
    containment::{LimitArgs, MeasureArgs},
    lifecycle::LifecycleArgs,
    rules::RuleArgs,
    sandbox::SandboxArgs,
};
use api_types::ProblemDetails;

/// Arguments for the start of an agent.
#[derive(Debug, Args)]
pub(crate) struct AgentArgs {
    /// Profile with the settings that are not given here: see `agent-proxy profiles`
    #[arg(long, value_name = "NAME")]
    pub(crate) profile: Option<String>,
    /// The agent's working directory [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<PathBuf>,
    /// Environment variable of the agent; K alone takes the caller's value. Repeatable
    #[arg(long = "env", value_name = "K=V")]
    pub(crate) env: Vec<String>,
    /// Part of --env, --mcp or --endpoint that is no secret: a variable's name, mcpServers.NAME.args, …. Records keep it, so that a
    /// later daemon resumes the session without being given it again. Repeatable
    #[arg(long = "not-secret", value_name = "NAME")]
    pub(crate) not_secret: Vec<String>,
    /// Settings that a profile can have too.
    #[command(flatten)]
    pub(crate) choice: ChoiceArgs,
    /// Tools, home and traces of the agent.
    #[command(flatten)]
    pub(crate) surroundings: SurroundingsArgs,
    /// Conversation to continue.
    #[command(flatten)]
    pub(crate) resume: ConversationArgs,
    /// Lifecycle beyond the agent's process.
    #[command(flatten)]
    pub(crate) lifecycle: LifecycleArgs,
    /// Containment and hardening.
    #[command(flatten)]
    pub(crate) measures: MeasureArgs,
    /// Budget of tokens and cost.
    #[command(flatten)]
    pub(crate) budget: BudgetArgs,
    /// Model replies for one prompt; at the bound the turn ends [default: the agent's own bound]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = None::<&'static str>)]
    pub(crate) max_turns: Option<u32>,
    /// Program and arguments of the agents `command` and `acp`; added to the arguments of others
    #[arg(last = true, value_name = "ARGV", help_heading = None::<&'static str>)]
    pub(crate) argv: Vec<String>,
}

/// Settings that a profile can have too.
#[derive(Debug, Default, Args)]
pub(crate) struct ChoiceArgs {
    /// Model, in the agent's own spelling
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// Model configuration (provider, address, key): see `agent-proxy models`
    #[arg(long, value_name = "NAME")]
    pub(crate) model_config: Option<String>,
    /// Mode to work in: build, plan, or one of the agent's own
    #[arg(long)]
    pub(crate) mode: Option<String>,
    /// Thinking level: off, low, medium, high, or one of the agent's own
    #[arg(long, value_name = "LEVEL")]
    pub(crate) thinking: Option<String>,
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    pub(crate) system_prompt: Option<String>,
    /// Answer to permission requests that no rule decides [default: ask]
    #[arg(long, value_name = "MODE", value_enum, help_heading = "Permissions")]
    pub(crate) permission: Option<PermissionArg>,
    /// Rules about them.
    #[command(flatten, next_help_heading = "Permissions")]
    pub(crate) rules: RuleArgs,
    /// Time that a request waits for an answer; then it is rejected, or with `,allow` allowed [default: for ever]
    #[arg(long, value_name = "DURATION[,allow]", help_heading = "Permissions")]
    pub(crate) permission_timeout: Option<PermissionTimeout>,
    /// The clocks, as in first=30s,inactivity=2m,turn=off,action=kill
    ///
    /// start: to the agent's being ready (30s). first: to the first sign of an answer (30s). inactivity: from one sign of life to
    /// the next (120s). turn: the whole turn (300s). Each is a duration or `off`; they stand still while a tool runs or a
    /// permission request is open. tool: while a tool runs and nothing is heard of it (30m). action: warn, abort (the turn, or the start), kill (the session). silence and repeat: when to say that
    /// nothing is heard (3s, and then every 5s).
    #[arg(long, value_name = "CLOCK=DURATION,…", help_heading = "Containment and limits")]
    pub(crate) timeout: Option<TimeoutArg>,
    /// Limits on resources.
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    /// Files in reach.
    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
    /// Container of the agent.
    #[command(flatten)]
    pub(crate) container: ContainerArgs,
    /// Tree that the agent works in [default: off, your own]; `diff`, `apply` and `drop` settle its changes
    ///
    /// copy: a copy of the repository, or of the directory where there is none. worktree: a git worktree with your uncommitted changes,
    /// without ignored files. overlay: your tree with a layer over it that gets the changes, in the session's own mounts. Nothing in your tree changes until you apply what changed there.
    #[arg(long, value_name = "KIND", value_parser = super::workspaces::kind(), help_heading = "Containment and limits")]
    pub(crate) workspace: Option<WorkspaceKind>,
}

impl ChoiceArgs {
    /// Sets the given values in `profile`.
    ///
    /// # Errors
    /// `usage` for a limit that is given twice.
    pub(crate) fn apply_to(self, profile: &mut Profile) -> Result<(), ProblemDetails> {
        for (given, field) in [
            (self.model, &mut profile.model),
            (self.model_config, &mut profile.model_config),
            (self.mode, &mut profile.mode),
            (self.thinking, &mut profile.thinking),
            (self.system_prompt, &mut profile.system_prompt),
        ] {
            if given.is_some() {
                *field = given;
            }
        }
        let permissions = &mut profile.permissions;
        permissions.mode = self.permission.map(PermissionMode::from).or(permissions.mode);
        if !self.rules.0.is_empty() {
            permissions.rules = self.rules.0.into_iter().map(ProfileRule::from).collect();
        }
        if let Some(PermissionTimeout { after, allow }) = self.permission_timeout {
            permissions.deadline_ms = Some(u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
            permissions.allow_at_deadline = Some(allow);
        }
        if let Some(TimeoutArg(given)) = self.timeout {
            let clocks = &mut profile.timeouts;
            clocks.start_ms = given.start_ms.or(clocks.start_ms);
            clocks.first_response_ms = given.first_response_ms.or(clocks.first_response_ms);
            clocks.inactivity_ms = given.inactivity_ms.or(clocks.inactivity_ms);
            clocks.turn_ms = given.turn_ms.or(clocks.turn_ms);
            clocks.tool_ms = given.tool_ms.or(clocks.tool_ms);
            clocks.silence_ms = given.silence_ms.or(clocks.silence_ms);
            clocks.silence_repeat_ms = given.silence_repeat_ms.or(clocks.silence_repeat_ms);
            clocks.action = given.action.or(clocks.action);
        }
        self.sandbox.apply_to(&mut profile.sandbox)?;
        self.container.apply_to(&mut profile.container)?;
        profile.workspace = self.workspace.or(profile.workspace);
        self.limits.apply_to(&mut profile.limits)
    }
}

/// Arguments for tools, home and traces of an agent.
#[derive(Debug, Args)]
#[command(next_help_heading = None::<&'static str>)]
pub(crate) struct SurroundingsArgs {
    /// A tool the agent may use, in its own spelling; repeatable [default: those it has]
    #[arg(long = "tool", value_name = "NAME")]
    pub(crate) tools: Vec<String>,
    /// MCP servers for the agent: a JSON file with `mcpServers`
    #[arg(long, value_name = "FILE")]
    pub(crate) mcp: Option<PathBuf>,
    /// Home directory of the agent [default: its own with --model-config, else shared]
    #[arg(long, value_name = "WHOSE", value_enum)]
    pub(crate) home: Option<HomeArg>,
    /// Begin its own home with a part of yours: login, skills, or a path below your home; repeatable
    #[arg(long, value_name = "PART")]
    pub(crate) home_copy: Vec<HomePart>,
    /// The agent's own sandbox around its tools [default: as you have set it; workspace-write for Codex]
    #[arg(long, value_name = "WHICH", value_enum, help_heading = "Permissions")]
    pub(crate) agent_sandbox: Option<SandboxArg>,
    /// Connect to this running server instead of starting one, as in http://127.0.0.1:4096
    #[arg(long, value_name = "URL")]
    pub(crate) endpoint: Option<String>,
    /// Keep nothing of the conversation
    #[arg(long)]
    pub(crate) ephemeral: bool,
    /// Omit the agent's own lines from the events
    #[arg(long)]
    pub(crate) no_verbatim: bool,
    /// Tell the agent in its first prompt in which session it runs, and not to start itself again
    #[arg(long)]
    pub(crate) runtime_context: bool,
}

/// Arguments for the conversation to continue.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Conversation")]
pub(crate) struct ConversationArgs {
    /// Continue this conversation: the agent's own id of it, or session:ID for the one that session had
    #[arg(long, value_name = "ID")]
    resume: Option<String>,
    /// Continue the most recent conversation of the working directory
    #[arg(long = "continue", conflicts_with = "resume")]
    most_recent: bool,
    /// Continue a copy, and leave the original as it is; with --resume or --continue
    #[arg(long)]
    fork: bool,
    /// If the conversation of --resume, --continue or --key is not there: fail, or begin a new one
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnMissingArg::Fail)]
    on_missing: OnMissingArg,
    /// If it is not there, begin a new one with the text of this file before the first prompt
    #[arg(long, value_name = "FILE", conflicts_with = "on_missing")]
    history: Option<PathBuf>,
}

impl ConversationArgs {
    /// Returns what a start with a key does if the session with that key has lost its conversation.
    pub(crate) fn fallback(&self) -> ResumeFallback {
        self.on_missing.into()
    }

    /// Converts to the library's form; `has_key` says whether a key names a conversation too.
    ///
    /// # Errors
    /// `usage` if there is nothing to continue, or the file cannot be read.
    pub(crate) fn resume(self, has_key: bool) -> Result<Option<ResumeRequest>, ProblemDetails> {
        let from = match (self.resume, self.most_recent) {
            (Some(id), _) => match id.strip_prefix("session:") {
                Some(id) => ResumeFrom::Session {
                    id: id.parse().map_err(|error| ProblemDetails::usage(format!("--resume session:{id}: {error}")))?,
                },
                None if id.is_empty() => return Err(ProblemDetails::usage("--resume needs the id of a conversation")),
                None => ResumeFrom::Native { id },
            },
            (None, true) => ResumeFrom::MostRecent,
            (None, false) => {
                if self.fork || self.history.is_some() || self.on_missing != OnMissingArg::Fail && !has_key {
                    return Err(ProblemDetails::usage(
                        "--fork and --history are about --resume ID or --continue, and --on-missing about these or --key: give one",
                    ));
                }
                return Ok(None);
            }
        };
        let on_missing = match (self.history, self.on_missing) {
            (Some(path), _) => OnMissing::Inject {
                history: std::fs::read_to_string(&path)
                    .map_err(|error| ProblemDetails::usage(format!("reading {} failed: {error}", path.display())))?,
            },
            (None, OnMissingArg::New) => OnMissing::StartAnew,
            (None, OnMissingArg::History) => {
                return Err(ProblemDetails::usage(
                    "--on-missing history is for --key and for `resume`; with --resume or --continue give --history FILE: \
                     `transcript` prints one",
                ));
            }
            (None, OnMissingArg::Fail) => OnMissing::Fail,
        };
        Ok(Some(ResumeRequest { from, fork: self.fork, on_missing }))
    }
}

/// Value of `--on-missing`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnMissingArg {
    /// Refuse the start
    #[default]
    Fail,
    /// Begin a new conversation, and emit an event
    New,
    /// The same, and its first prompt begins with what was said in the session
    History,
}

impl From<OnMissingArg> for ResumeFallback {
    fn from(what: OnMissingArg) -> Self {
        match what {
            OnMissingArg::Fail => Self::Fail,
            OnMissingArg::New => Self::New,
            OnMissingArg::History => Self::History,
        }
    }
}

/// Value of `--home`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HomeArg {
    /// A home of the session's own, empty at first
    Own,
    /// Yours, with your settings, logins and conversations
    Shared,
}

impl From<HomeArg> for Home {
    fn from(whose: HomeArg) -> Self {
        match whose {
            HomeArg::Own => Self::Own,
            HomeArg::Shared => Self::Shared,
        }
    }
}

/// Value of `--agent-sandbox`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SandboxArg {
    /// As you have set it in the agent's own settings
    User,
    /// Tools write nowhere and reach no network, unless that was allowed
    ReadOnly,
    /// Tools write to the working directory and reach no network, unless more was allowed
    WorkspaceWrite,
    /// Full access: tools reach whatever you can
    None,
}

impl From<SandboxArg> for Option<AgentSandbox> {
    fn from(which: SandboxArg) -> Self {
        match which {
            SandboxArg::User => None,
            SandboxArg::ReadOnly => Some(AgentSandbox::ReadOnly),
            SandboxArg::WorkspaceWrite => Some(AgentSandbox::WorkspaceWrite),
            SandboxArg::None => Some(AgentSandbox::None),
        }
    }
}

/// [`PermissionMode`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PermissionArg {
    /// You answer each
    Ask,
    /// Each is allowed, once
    Allow,
    /// Each is rejected
    Deny,
    /// Reading is allowed, anything else is rejected
    ReadOnly,
}

impl From<PermissionArg> for PermissionMode {
    fn from(mode: PermissionArg) -> Self {
        match mode {
            PermissionArg::Ask => Self::Ask,
            PermissionArg::Allow => Self::Allow,
            PermissionArg::Deny => Self::Deny,
            PermissionArg::ReadOnly => Self::ReadOnly,
        }
    }
}
