//! The agents, and what is known of each that matters to a scenario.

use std::{fs, io, path::Path};

use agents::{ModelApi, ModelConfig, Secret};
use proxy_manager::{AgentSandbox, AgentSessionConfig, AgentSpec, Catalog, EnvVars, Home, PermissionMode};

/// The name of the model configuration.
pub(super) const MODEL: &str = "mock";

/// A real agent, and what it cannot by itself.
#[derive(Debug)]
pub struct Agent {
    /// Catalog id.
    pub id: &'static str,
    /// The provider of its model configuration.
    pub provider: &'static str,
    /// How it speaks with the model.
    pub api: ModelApi,
    /// The model of its model configuration, and one of a session's own.
    pub models: [&'static str; 2],
    /// The model that a session is changed to: in the agent's own spelling, and what the request says of it.
    pub set_model: [&'static str; 2],
    /// The modes that a session begins in and is changed to.
    pub modes: [&'static str; 2],
    /// What it tells the model of each of them, and not of the other.
    pub modes_told: [&'static str; 2],
    /// Tokens of one answer of the mock's, as the agent counts them; `None` where it does not tell.
    pub usage: Option<Counted>,
    /// Whether it tells what a turn costs.
    pub tells_cost: bool,
    /// Whether it tells how full the context window is.
    pub tells_window: bool,
    /// Whether it tells what a tool is given and what it says.
    pub tells_tools: bool,
    /// What it does with an error of the model's.
    pub retries: Retries,
    /// Whether its turn goes on after a permission was denied.
    pub goes_on_after_deny: bool,
    /// Whether it asks for all calls of an answer at once, and not for one after the other.
    pub asks_at_once: bool,
    /// Whether a tool runs for as long as anything has its output.
    pub waits_for_output: bool,
    /// An id of a conversation that is not there, in its own form where that is no UUID.
    pub absent: Option<&'static str>,
    /// The name of a tool of its own that is no shell.
    pub tool: &'static str,
    /// Arguments beside what it is provisioned with. They only make its retries few.
    pub args: &'static [&'static str],
    /// Files in the cell's folder for the same.
    pub files: &'static [(&'static str, &'static str)],
    /// Variables for the same.
    pub env: &'static [(&'static str, &'static str)],
    /// The row of the newest version of its wrapper, where that is another program.
    pub has_next: bool,
    /// What people look at and it does not tell, by scenario, with the reason.
    pub untold: &'static [(&'static str, &'static str)],
    /// Scenarios that it cannot, with the reason. Each has to end with a typed `Unsupported`.
    pub cannot: &'static [(&'static str, &'static str)],
}

/// Input, output, read from and written to the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted(pub Option<u64>, pub Option<u64>, pub Option<u64>, pub Option<u64>);

/// What an agent does with an error of the model's.
#[derive(Clone, Copy, Debug)]
pub struct Retries {
    /// Whether it asks again after 429.
    pub rate_limit: bool,
    /// Whether it asks again after a connection that broke.
    pub cut: bool,
    /// Whether it does so for ever.
    pub for_ever: bool,
    /// Whether it does so for longer than a turn may take to begin.
    pub patient: bool,
    /// Whether it has the model go on with the half of an answer that broke off.
    pub continues: bool,
    /// Whether it tells that it does.
    pub told: bool,
    /// Whether it tells that an answer broke off, so that what was said of it is voided.
    pub voided: bool,
    /// Whether what it says of an error shows if that may go away.
    pub judged: bool,
}

const RETRIES: Retries = Retries {
    rate_limit: true,
    cut: true,
    for_ever: false,
    patient: false,
    continues: false,
    told: true,
    voided: true,
    judged: true,
};

/// Codex asks 30 times in 25 s by default.
const CODEX: &[&str] =
    &["-c", "model_providers.session.request_max_retries=1", "-c", "model_providers.session.stream_max_retries=1"];

/// Why a session has no screen beside its protocol.
const NO_BOTH: &str = "its screen and its protocol exclude each other";
/// Why it cannot be visited.
const NO_SCREEN: &str = "it has no screen of its own";
/// Why it tells no cost.
const NO_COST: &str = "it tells no cost: a user's prices give it";
/// Why it tells no title.
const NO_TITLE: &str = "it gives none by itself";
/// Why it tells no sub-agents.
const NO_SUBAGENTS: &str = "it has no sub-agents";
/// Why it tells no text of sub-agents.
const SUBAGENT_CALLS: &str = "of a sub-agent it tells the tool calls; its text is what its call says";
/// Why it tells no output of a tool that runs.
const NO_LIVE: &str = "a tool's output comes at its end";
const NO_INSTRUCTIONS: &str = "it takes no instructions for it";

/// How large the mock model's context window is: of a model that it does not know OpenCode has to be told, to tell how full it is.
const OPENCODE: &[(&str, &str)] = &[(
    "work/opencode.json",
    r#"{"provider":{"mock":{"models":{"mock-model":{"limit":{"context":200000,"output":32000}}}}}}"#,
)];

/// Id of the row of the newest version of an agent's wrapper.
pub(super) const NEXT: &str = "next";

/// All of them, in the order of the table.
pub const AGENTS: &[Agent] = &[
    Agent {
        id: "claude-code",
        provider: "mock",
        api: ModelApi::AnthropicMessages,
        models: ["mock-model", "mock-model-2"],
        set_model: ["mock-model", "mock-model"],
        modes: ["plan", "build"],
        modes_told: ["Plan mode is active", "You have exited plan mode"],
        usage: Some(Counted(Some(1417), Some(23), Some(1009), Some(307))),
        tells_cost: true,
        tells_window: true,
        tells_tools: true,
        retries: RETRIES,
        goes_on_after_deny: true,
        asks_at_once: false,
        waits_for_output: false,
        absent: None,
        tool: "Read",
        args: &[],
        files: &[],
        env: &[("CLAUDE_CODE_MAX_RETRIES", "1")],
        has_next: false,
        untold: &[
            ("title", "it gives none where it is driven by its stream"),
            ("subagents", SUBAGENT_CALLS),
            ("live output", NO_LIVE),
            ("thinking in use", "it does not tell how hard it thinks"),
        ],
        cannot: &[
            ("screen", NO_BOTH),
            ("messages", "it has no request for the conversation, which it keeps in a file"),
        ],
    },
    Agent {
        id: "codex",
        provider: "mock",
        api: ModelApi::OpenaiResponses,
        models: ["mock-model", "mock-model-2"],
        set_model: ["mock-model", "mock-model"],
        modes: ["plan", "build"],
        modes_told: ["# Plan Mode", "# Collaboration Mode: Default"],
        usage: Some(Counted(Some(1110), Some(23), Some(1009), Some(0))),
        tells_cost: false,
        tells_window: true,
        tells_tools: true,
        retries: Retries { rate_limit: false, ..RETRIES },
        goes_on_after_deny: true,
        asks_at_once: true,
        waits_for_output: false,
        absent: None,
        tool: "",
        args: CODEX,
        files: &[],
        env: &[],
        has_next: false,
        untold: &[
            ("commands", "its app server offers none"),
            ("title", NO_TITLE),
            ("cost", NO_COST),
            ("mode in use", "it tells it once it is changed"),
            ("thinking in use", "it tells it once it is changed"),
        ],
        cannot: &[("compact by words", NO_INSTRUCTIONS), ("tools", "it has no way to restrict its tools")],
    },
    Agent {
        id: "opencode",
        provider: "mock",
        api: ModelApi::OpenaiChat,
        models: ["mock-model", "mock-model-2"],
        set_model: ["mock/mock-model", "mock-model"],
        modes: ["plan", "build"],
        modes_told: ["# Plan Mode - System Reminder", "has changed from plan to build"],
        usage: Some(Counted(Some(1110), Some(23), Some(1009), Some(0))),
        tells_cost: false,
        tells_window: true,
        tells_tools: true,
        retries: Retries { for_ever: true, ..RETRIES },
        goes_on_after_deny: false,
        asks_at_once: true,
        waits_for_output: true,
        absent: Some("ses_e0039582effefTjZ3q6Xxsmt9g"),
        tool: "read",
        args: &[],
        files: OPENCODE,
        env: &[],
        has_next: false,
        untold: &[("thinking in use", "it tells it once it is changed")],
        cannot: &[("compact by words", NO_INSTRUCTIONS)],
    },
    Agent {
        id: "pi",
        provider: "mock",
        api: ModelApi::OpenaiChat,
        models: ["mock-model", "mock-model-2"],
        set_model: ["session/mock-model", "mock-model"],
        modes: ["plan", "build"],
        modes_told: ["", ""],
        usage: Some(Counted(Some(1110), Some(23), Some(1009), Some(0))),
        tells_cost: false,
        tells_window: true,
        tells_tools: true,
        retries: RETRIES,
        goes_on_after_deny: true,
        asks_at_once: false,
        waits_for_output: false,
        absent: None,
        tool: "read",
        // Its settings are the project's, which it has to trust.
        args: &["--approve"],
        files: &[("work/.pi/settings.json", r#"{"retry":{"maxRetries":1,"baseDelayMs":100}}"#)],
        env: &[],
        has_next: false,
        untold: &[
            ("title", NO_TITLE),
            ("plan", "it makes no plans"),
            ("subagents", NO_SUBAGENTS),
            ("mode in use", "it has no modes"),
        ],
        cannot: &[("mode", "it has no modes")],
    },
    Agent {
        id: "gemini",
        provider: "google",
        api: ModelApi::Gemini,
        models: ["gemini-2.5-flash", "gemini-2.5-pro"],
        set_model: ["gemini-2.5-flash", "gemini-2.5-flash"],
        modes: ["plan", "build"],
        modes_told: ["ONLY FOR PLANS", "To run a command in the background, set"],
        usage: Some(Counted(Some(1110), Some(23), None, None)),
        tells_cost: false,
        tells_window: false,
        tells_tools: false,
        retries: Retries { cut: false, told: false, ..RETRIES },
        goes_on_after_deny: true,
        asks_at_once: false,
        waits_for_output: false,
        absent: None,
        tool: "read_file",
        args: &[],
        files: &[("work/.gemini/settings.json", r#"{"general":{"maxAttempts":2}}"#)],
        env: &[("GEMINI_CLI_TRUST_WORKSPACE", "true")],
        has_next: false,
        untold: &[
            ("title", NO_TITLE),
            ("plan", "it does not tell its plans"),
            ("subagents", "its own policy lets it start none"),
            ("live output", "it does not tell what a tool says"),
            ("cost", NO_COST),
            ("thinking in use", "it does not tell how hard it thinks"),
        ],
        cannot: &[
            ("screen", NO_BOTH),
            ("compact by words", NO_INSTRUCTIONS),
            ("steer", "a prompt while it works cancels the first"),
            ("fork", "it cannot copy a conversation"),
            ("set thinking", "it has no request for it"),
            ("ephemeral", "it always keeps its conversations"),
            ("messages", "it has no request for the conversation"),
            ("compact", "it compacts by itself only"),
        ],
    },
    Agent {
        id: "qwen",
        provider: "mock",
        api: ModelApi::OpenaiChat,
        models: ["mock-model", "mock-model-2"],
        set_model: ["mock-model", "mock-model"],
        modes: ["plan", "build"],
        modes_told: ["Plan mode is active. The user", "Plan mode is no longer active"],
        usage: Some(Counted(Some(1110), Some(23), Some(1009), None)),
        tells_cost: false,
        tells_window: true,
        tells_tools: true,
        retries: Retries { patient: true, continues: true, told: false, voided: false, ..RETRIES },
        goes_on_after_deny: false,
        asks_at_once: false,
        waits_for_output: false,
        absent: None,
        tool: "read_file",
        args: &[],
        files: &[],
        env: &[],
        has_next: false,
        untold: &[
            ("title", NO_TITLE),
            ("plan", "it offers its model no tool for plans"),
            ("live output", NO_LIVE),
            ("cost", NO_COST),
        ],
        cannot: &[
            ("screen", NO_BOTH),
            ("compact by words", NO_INSTRUCTIONS),
            ("steer", "a prompt while it works cancels the first"),
            ("fork", "it cannot copy a conversation"),
            ("set model", "it offers the model that it began with"),
            ("messages", "it has no request for the conversation"),
        ],
    },
    Agent {
        id: "opencode-acp",
        provider: "mock",
        api: ModelApi::OpenaiChat,
        models: ["mock-model", "mock-model-2"],
        set_model: ["mock/mock-model", "mock-model"],
        modes: ["plan", "build"],
        modes_told: ["# Plan Mode - System Reminder", "has changed from plan to build"],
        usage: Some(Counted(Some(1110), Some(23), Some(1009), None)),
        tells_cost: false,
        tells_window: true,
        tells_tools: true,
        retries: Retries { for_ever: true, told: false, voided: false, judged: false, ..RETRIES },
        goes_on_after_deny: false,
        asks_at_once: false,
        waits_for_output: true,
        absent: Some("ses_e0039582effefTjZ3q6Xxsmt9g"),
        tool: "read",
        args: &[],
        files: OPENCODE,
        env: &[],
        has_next: false,
        untold: &[
            ("title", "it does not tell its titles"),
            ("plan", "it does not tell its plans"),
            ("subagents", "it tells nothing of them, and what they ask for reaches nobody"),
            ("thinking in use", "it tells it once it is changed"),
        ],
        cannot: &[
            ("screen", NO_BOTH),
            ("visit", NO_SCREEN),
            ("compact by words", NO_INSTRUCTIONS),
            ("messages", "it has no request for the conversation"),
        ],
    },
    Agent {
        id: "claude-agent-acp",
        provider: "mock",
        api: ModelApi::AnthropicMessages,
        models: ["mock-model", "mock-model-2"],
        set_model: ["haiku", "haiku"],
        modes: ["plan", "build"],
        modes_told: ["Plan mode is active", "You have exited plan mode"],
        usage: Some(Counted(Some(1417), Some(23), Some(1009), Some(307))),
        tells_cost: true,
        tells_window: true,
        tells_tools: true,
        retries: RETRIES,
        goes_on_after_deny: true,
        asks_at_once: false,
        waits_for_output: false,
        absent: None,
        tool: "Read",
        args: &[],
        files: &[],
        env: &[("CLAUDE_CODE_MAX_RETRIES", "1")],
        has_next: true,
        untold: &[("subagents", SUBAGENT_CALLS), ("live output", NO_LIVE)],
        cannot: &[("screen", NO_BOTH), ("visit", NO_SCREEN), ("messages", "it has no request for the conversation")],
    },
    Agent {
        id: "codex-acp",
        provider: "mock",
        api: ModelApi::OpenaiResponses,
        models: ["mock-model", "mock-model-2"],
        set_model: ["gpt-5.4", "gpt-5.4"],
        modes: ["read-only", "auto"],
        modes_told: ["is `read-only`", "is `workspace-write`"],
        usage: None,
        tells_cost: false,
        tells_window: true,
        tells_tools: true,
        retries: Retries { rate_limit: false, judged: false, ..RETRIES },
        goes_on_after_deny: false,
        asks_at_once: false,
        waits_for_output: false,
        absent: None,
        tool: "",
        args: CODEX,
        files: &[],
        env: &[],
        has_next: true,
        untold: &[
            ("title", NO_TITLE),
            ("subagents", NO_SUBAGENTS),
            ("live output", NO_LIVE),
            ("cost", "it tells no usage, which prices would need"),
            ("input tokens", "it tells no usage"),
            ("thinking in use", "it tells it of models that it knows"),
        ],
        cannot: &[
            ("screen", NO_BOTH),
            ("visit", NO_SCREEN),
            ("compact by words", NO_INSTRUCTIONS),
            ("fork", "it cannot copy a conversation"),
            ("tools", "it has no way to restrict its tools"),
            ("ephemeral", "it always keeps its conversations"),
            ("messages", "it has no request for the conversation"),
        ],
    },
];

impl Agent {
    /// The agent of this catalog id.
    pub fn named(id: &str) -> Option<&'static Self> {
        AGENTS.iter().find(|agent| agent.id == id)
    }

    /// Its row in the built-in catalog.
    ///
    /// # Errors
    /// There is none.
    pub fn row(&self) -> Result<AgentSpec, String> {
        Ok(Catalog::default().get(self.id).map_err(|error| error.to_string())?.clone())
    }

    /// Makes in `folder` what [`Agent::base_env`] and [`Agent::config`] speak of.
    ///
    /// # Errors
    /// The system's.
    pub fn furnish(&self, folder: &Path) -> io::Result<()> {
        for below in ["work", "base", "tmp"] {
            fs::create_dir_all(folder.join(below))?;
        }
        for (path, contents) in self.files {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap_or(folder))?;
            fs::write(path, contents)?;
        }
        Ok(())
    }

    /// The model configuration that points it at the mock model with this root URL.
    pub fn configuration(&self, root_url: &str, key: &str) -> ModelConfig {
        let below = if self.api == ModelApi::Gemini { "v1beta" } else { "v1" };
        ModelConfig {
            name: MODEL.into(),
            provider: self.provider.into(),
            api: Some(self.api),
            base_url: Some(format!("{root_url}/{below}")),
            model: Some(self.models[0].into()),
            key: Some(Secret::from(key.to_owned())),
        }
    }

    /// A manager's base environment: the programs are in `programs`.
    pub fn base_env(&self, programs: &Path, folder: &Path) -> EnvVars {
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", programs.display());
        let [base, temporary] = ["base", "tmp"].map(|below| folder.join(below).to_string_lossy().into_owned());
        let variables =
            [("PATH", path.as_str()), ("HOME", &base), ("TMPDIR", &temporary), ("LANG", "C.UTF-8"), ("TERM", "dumb")];
        variables.into_iter().collect()
    }

    /// A session in a home of its own that allows everything. Codex has full access: in its own sandbox a tool ends with all that it
    /// started, and what a session leaves is shown of tools that can leave something.
    pub fn config(&self, folder: &Path) -> AgentSessionConfig {
        AgentSessionConfig {
            cwd: Some(folder.join("work").to_string_lossy().into_owned()),
            command: self.args.iter().map(|arg| (*arg).to_owned()).collect(),
            permission_mode: PermissionMode::Allow,
            agent_sandbox: Some(AgentSandbox::None),
            env: self.env.iter().copied().collect(),
            model_config: Some(MODEL.to_owned()),
            home: Some(Home::Own),
            ..AgentSessionConfig::new(self.id)
        }
    }

    /// Whether it does not tell what `scenario` shows.
    pub fn leaves_out(&self, scenario: &str) -> bool {
        self.untold.iter().any(|(name, _)| *name == scenario)
    }

    /// Why it cannot do `scenario`, if that is known.
    pub fn cannot(&self, scenario: &str) -> Option<&'static str> {
        self.cannot.iter().find(|(name, _)| *name == scenario).map(|(_, reason)| *reason)
    }
}
