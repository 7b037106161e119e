//! Arguments for agents, profiles and model configurations.

use std::path::PathBuf;

use agents::ModelApi;
use clap::{
    Args, Subcommand, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};

use crate::args::{FormatArgs, session::ChoiceArgs};

/// Arguments of `agents`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy agents\n  \
    agent-proxy agents --json | jq '.[] | select(.usable) | .id'\n  \
    agent-proxy agents --schema > agents.schema.json\n\n\
    More agents are rows in agents.toml or agents.json, or in files of agents.d/, in the configuration directory: \
    --config-dir, else $AGENT_PROXY_CONFIG_DIR, else $XDG_CONFIG_HOME/agent-proxy, else ~/.config/agent-proxy. A row of a \
    built-in agent's id takes its place. A row is:\n\
    \n  \
    [[agents]]\n  \
    id = \"mine\"\n  \
    protocol = \"acp\"\n  \
    cmd = [\"my-agent\", \"--acp\"]")]
pub(crate) struct AgentsArgs {
    /// Print the JSON Schema of a file of agents
    #[arg(long)]
    pub(crate) schema: bool,
    /// Do not run the agents: only what files tell is known then
    #[arg(long)]
    pub(crate) no_run: bool,
    /// Form of the list.
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

/// Arguments of `profiles`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy profiles create review --agent claude-code --mode plan\n  \
    agent-proxy profiles change review --deny bash --limit memory=2GiB\n  \
    agent-proxy run --profile review 'what does this project do?'\n\n\
    They are tables in profiles.toml in the configuration directory (see `agents --help`). Each agent that is found has a \
    profile of its own name, until you make one of that name. A daemon reads them again, when they have changed, at the \
    next start of a session.")]
pub(crate) struct ProfilesArgs {
    /// Command [default: list]
    #[command(subcommand)]
    pub(crate) command: Option<ProfilesCommand>,
}

/// Commands on profiles.
#[derive(Debug, Subcommand)]
pub(crate) enum ProfilesCommand {
    /// List all by name
    List(FormatArgs),
    /// Print a profile
    Show(NameArgs),
    /// Create a new one
    Create(CreateProfileArgs),
    /// Change what is given; the rest stays
    Change(ChangeProfileArgs),
    /// Delete it
    Delete(NameArgs),
}

/// Arguments of commands that only take a name.
#[derive(Debug, Args)]
pub(crate) struct NameArgs {
    /// Name of the profile or model configuration
    pub(crate) name: String,
}

/// `profiles create`.
#[derive(Debug, Args)]
pub(crate) struct CreateProfileArgs {
    /// Name: 1 to 64 characters of A-Z a-z 0-9 . _ -
    pub(crate) name: String,
    /// The agent: see `agent-proxy agents`
    #[arg(long, value_name = "NAME")]
    pub(crate) agent: String,
    /// Description for people
    #[arg(long, value_name = "TEXT")]
    pub(crate) description: Option<String>,
    /// Settings of the profile.
    #[command(flatten)]
    pub(crate) choice: ChoiceArgs,
}

/// `profiles change`.
#[derive(Debug, Args)]
pub(crate) struct ChangeProfileArgs {
    /// Name of the profile or model configuration
    pub(crate) name: String,
    /// The agent
    #[arg(long, value_name = "NAME")]
    pub(crate) agent: Option<String>,
    /// Description for people
    #[arg(long, value_name = "TEXT")]
    pub(crate) description: Option<String>,
    /// Remove this setting; repeatable, and done before anything is set
    #[arg(long, value_name = "WHAT", value_enum)]
    pub(crate) unset: Vec<ProfileField>,
    /// New settings. Given rules replace all the rules there were.
    #[command(flatten)]
    pub(crate) choice: ChoiceArgs,
}

/// Setting that a profile can leave open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProfileField {
    Description,
    Model,
    ModelConfig,
    Mode,
    Thinking,
    SystemPrompt,
    Permission,
    Rules,
    PermissionTimeout,
    Limits,
    Timeouts,
}

/// Arguments of `models`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy models create work --provider anthropic --key-env WORK_API_KEY\n  \
    pass show key | agent-proxy models create main --provider openai --key-stdin\n  \
    agent-proxy models create local --provider ollama --model qwen3 \\\n      \
    --base-url http://127.0.0.1:11434/v1\n  \
    agent-proxy run --agent pi --model-config local 'hello'\n\n\
    They are tables in models.toml (mode 0600) in the configuration directory (see `agents --help`). Each agent gets one \
    in its own form, in a home directory of the session's own. Keys are never taken from the command line, and never \
    shown. A daemon reads them again, when they have changed, at the next start of a session.")]
pub(crate) struct ModelsArgs {
    /// Command [default: list]
    #[command(subcommand)]
    pub(crate) command: Option<ModelsCommand>,
}

/// Commands on model configurations.
#[derive(Debug, Subcommand)]
pub(crate) enum ModelsCommand {
    /// List all by name
    List(FormatArgs),
    /// Print one, without its key
    Show(NameArgs),
    /// Create a new one
    Create(CreateModelArgs),
    /// Delete it
    Delete(NameArgs),
}

/// `models create`.
#[derive(Debug, Args)]
pub(crate) struct CreateModelArgs {
    /// Name: 1 to 64 characters of A-Z a-z 0-9 . _ -
    pub(crate) name: String,
    /// Provider of the models: anthropic, openai, google, or any other word
    #[arg(long)]
    pub(crate) provider: String,
    /// API of the models [default: the provider's, else openai-chat]
    #[arg(long, value_name = "API", value_parser = api())]
    pub(crate) api: Option<ModelApi>,
    /// Address of the API with its version, as in http://127.0.0.1:8080/v1 [default: the provider's]
    #[arg(long, value_name = "URL")]
    pub(crate) base_url: Option<String>,
    /// The model, in the provider's spelling; a session's --model wins
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// Take the key from this variable of the environment, each time
    #[arg(long, value_name = "VARIABLE", group = "key")]
    pub(crate) key_env: Option<String>,
    /// Take the key from this file (mode 0600), each time
    #[arg(long, value_name = "FILE", group = "key")]
    pub(crate) key_file: Option<PathBuf>,
    /// Read the key from standard input, and store it
    #[arg(long, group = "key")]
    pub(crate) key_stdin: bool,
}

fn api() -> impl TypedValueParser<Value = ModelApi> {
    let parse = |name: String| ModelApi::ALL.iter().find(|(_, known)| *known == name).map(|(api, _)| *api);
    PossibleValuesParser::new(ModelApi::ALL.map(|(_, name)| name)).try_map(move |name| parse(name).ok_or("no such API"))
}
