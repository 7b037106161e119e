//! Argv, environment and files of Claude Code, and of its ACP wrapper (`claude-agent-acp`).
//!
//! No argument contains a secret. The key of a model configuration is in a file of the session's own home, and the agent reads it
//! with its `apiKeyHelper`. So the key is not in the environment either, which the agent passes on to the commands that it runs.
//! System prompt, MCP servers and thinking level go over the protocol.
//!
//! The wrapper accepts none of Claude Code's arguments; its own protocol contains the rest, the rules that make it ask included. In a home
//! of the session's own these are in its settings too, for other wrappers.

use std::path::Path;

use ipc_protocol::{AgentSessionConfig, PermissionMode};
use serde_json::{Map, Value, json};

use super::{
    Provision, ProvisionError, ProvisionFile, ProvisionRequest, Result,
    hooks::{self, HookCommands},
};
use crate::{
    AgentSpec, ModelApi, ModelConfig,
    conversations::{ConversationStorage, StorageFormat},
    family::{AgentFamily, FamilySandbox},
};

/// Configuration directory, relative to the session's home.
const CONFIG_DIR: &str = ".claude";
/// File with the key, relative to the configuration directory.
const KEY_FILE: &str = "model.key";

/// Permission modes of the agent, besides `build` and `plan`.
const MODES: [&str; 7] = ["acceptEdits", "auto", "bypassPermissions", "default", "dontAsk", "manual", "plan"];

/// Tools that touch anything outside the conversation: their calls need permission.
const OUTSIDE_TOOLS: [&str; 16] = [
    "Bash",
    "CronCreate",
    "Edit",
    "EnterWorktree",
    "Glob",
    "Grep",
    "Monitor",
    "NotebookEdit",
    "PowerShell",
    "Read",
    "Skill",
    "WebFetch",
    "WebSearch",
    "Workflow",
    "Write",
    "mcp__*",
];

/// Claude Code and its ACP wrapper.
pub(crate) const FAMILY: AgentFamily = AgentFamily {
    name: "claude",
    provision,
    sandbox: FamilySandbox::Settings("settings.json", |settings| {
        settings.pointer("/sandbox/enabled") == Some(&Value::Bool(true))
    }),
    storage: ConversationStorage {
        roots: &[("CLAUDE_CONFIG_DIR", ""), ("HOME", CONFIG_DIR)],
        format: StorageFormat::LineFiles("projects"),
        pid_records: Some("sessions"),
    },
};

/// Adds to `provision`, which already has the row's own argv and environment; the session's `command` is appended later.
fn provision(spec: &AgentSpec, request: &ProvisionRequest<'_>, provision: &mut Provision) -> Result<()> {
    let wrapped = spec.protocol != "claude-code";
    // The wrapper takes it with the session, from its adapter.
    provision.bounds_turns = request.config.max_turns.is_some();
    if let Some(home) = request.home {
        own_home(home, provision);
    }
    let mut settings = Map::new();
    if let Some(model) = request.model {
        endpoint(spec, request, model, &mut settings, provision)?;
    }
    if wrapped {
        if let Some(model) = provision.model.take() {
            // The wrapper's protocol offers known models only; a variable takes any.
            provision.env.0.insert("ANTHROPIC_MODEL".to_owned(), model);
        }
        for (name, value) in permission_settings(request.config) {
            match (settings.get_mut(&name), value) {
                // It has the key's file to deny already.
                (Some(Value::Object(known)), Value::Object(more)) => known.extend(more),
                (_, value) => drop(settings.insert(name, value)),
            }
        }
    } else {
        arguments(spec, request, provision)?;
    }
    if request.config.terminal.is_some() {
        on_screen(request, provision);
    }
    if request.home.is_some() && !settings.is_empty() {
        file("settings.json", Value::Object(settings).to_string(), provision);
    }
    Ok(())
}

fn file(name: &str, contents: String, provision: &mut Provision) {
    provision.files.push(ProvisionFile { path: [CONFIG_DIR, name].iter().collect(), contents: contents.into() });
}

/// Sets the environment for a session's own home: the agent neither looks anything up nor reports anything.
fn own_home(home: &Path, provision: &mut Provision) {
    let config_dir = home.join(CONFIG_DIR).to_string_lossy().into_owned();
    let set = [
        ("CLAUDE_CONFIG_DIR", config_dir.as_str()),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
        ("DISABLE_AUTOUPDATER", "1"),
    ];
    provision.env.0.extend(set.map(|(name, value)| (name.to_owned(), value.to_owned())));
}

/// Sets the model's address and key.
fn endpoint(
    spec: &AgentSpec,
    request: &ProvisionRequest<'_>,
    model: &ModelConfig,
    settings: &mut Map<String, Value>,
    provision: &mut Provision,
) -> Result<()> {
    if model.api() != ModelApi::AnthropicMessages {
        let operation = format!("use model configuration {:?}: it speaks only with Anthropic's Messages", model.name);
        return Err(ProvisionError::unsupported(spec, operation));
    }
    if let Some(url) = &model.base_url {
        // The agent adds the version itself.
        let url = url.trim_end_matches('/');
        let root = url.strip_suffix("/v1").unwrap_or(url).to_owned();
        provision.env.0.insert("ANTHROPIC_BASE_URL".to_owned(), root);
    }
    let Some(key) = &model.key else { return Ok(()) };
    let Some(home) = request.home else {
        return Err(ProvisionError::NeedsHome { agent: spec.id.clone(), what: "the key of a model configuration" });
    };
    file(KEY_FILE, key.expose().to_owned(), provision);
    let path = home.join(CONFIG_DIR).join(KEY_FILE);
    settings.insert("apiKeyHelper".to_owned(), format!("cat {}", hooks::quoted(&path.to_string_lossy())).into());
    // The agent's tools and known commands do not show the file to the model. A program that the model writes could.
    settings.insert("permissions".to_owned(), json!({ "deny": [format!("Read(~/{CONFIG_DIR}/{KEY_FILE})")] }));
    Ok(())
}

/// Returns the settings that make the agent ask, in any home. By itself it asks seldom, and in its modes `plan` and `auto` its own
/// classifier answers in place of a user. A rule to ask overrides its modes and any rule to allow, of the user's settings too.
pub(crate) fn permission_settings(config: &AgentSessionConfig) -> Map<String, Value> {
    let mut settings = Map::new();
    let rules = !config.permissions.rules.is_empty();
    let ask: &[&str] = match config.permission_mode {
        PermissionMode::Allow if !rules => &[],
        PermissionMode::Ask if !rules => &OUTSIDE_TOOLS,
        // The session's rules or its mode apply to every tool.
        _ => &["*"],
    };
    if !ask.is_empty() {
        settings.insert("permissions".to_owned(), json!({ "ask": ask }));
    }
    settings.insert("useAutoModeDuringPlan".to_owned(), false.into());
    settings
}

/// Hooks that report.
const REPORTING: [&str; 8] = [
    "SessionStart",
    "SessionEnd",
    "UserPromptSubmit",
    "MessageDisplay",
    "PreToolUse",
    "PostToolUse",
    "PostToolUseFailure",
    "Stop",
];
/// Hook that asks, while the dialog is shown.
const ASKING: &str = "PermissionRequest";

/// Returns the hooks of its own screen.
fn screen_hooks(HookCommands { report, ask }: HookCommands) -> Value {
    let hook = |command: &str, timeout: u64| json!([{ "hooks": [{ "type": "command", "command": command, "timeout": timeout }] }]);
    let reporting = hook(&report, hooks::REPORT_TIMEOUT);
    let reporting = REPORTING.iter().map(|event| ((*event).to_owned(), reporting.clone()));
    reporting.chain([(ASKING.to_owned(), hook(&ask, hooks::ASK_TIMEOUT))]).collect::<Map<_, _>>().into()
}

/// Adds what its own screen needs beside the arguments: no dialog comes first in a home of the session's own, and where a policy is asked
/// for it asks its user. (By itself it begins in the mode `auto`, in which a classifier answers.)
fn on_screen(request: &ProvisionRequest<'_>, provision: &mut Provision) {
    let config = request.config;
    if super::asks(config) && config.mode.is_none() {
        provision.argv.push("--permission-mode=default".to_owned());
    }
    if let Some(prompt) = &config.system_prompt {
        provision.argv.push(format!("--append-system-prompt={prompt}"));
    }
    if request.home.is_some() && !request.has_login_copy() {
        let projects = json!({ config.cwd.clone().unwrap_or_default(): { "hasTrustDialogAccepted": true } });
        let state = json!({ "hasCompletedOnboarding": true, "projects": projects });
        file(".claude.json", state.to_string(), provision);
    }
}

/// Adds model, mode, tools, settings and the conversation. Each is one word, so that no value is taken for a flag.
fn arguments(spec: &AgentSpec, request: &ProvisionRequest<'_>, provision: &mut Provision) -> Result<()> {
    let config = request.config;
    let mut flags = Vec::new();
    let mut settings = Map::new();
    if super::asks(config) || config.terminal.is_none() {
        settings = permission_settings(config);
    }
    if let Some(commands) = hooks::commands(request, provision) {
        settings.insert("hooks".to_owned(), screen_hooks(commands));
        settings.insert("disableAllHooks".to_owned(), false.into());
    }
    if !settings.is_empty() || config.terminal.is_none() {
        flags.push(format!("--settings={}", Value::Object(settings)));
    }
    if let Some(model) = provision.model.take() {
        flags.push(format!("--model={model}"));
    }
    if let Some(mode) = &config.mode {
        let mode = if mode == "build" { "default" } else { mode };
        if !MODES.contains(&mode) {
            let operation = format!("work in mode {mode:?}: it has build, {}", MODES.join(", "));
            return Err(ProvisionError::unsupported(spec, operation));
        }
        flags.push(format!("--permission-mode={mode}"));
    }
    if !config.tools.is_empty() {
        // The agent would silently ignore a pattern or a list here.
        if let Some(tool) = config.tools.iter().find(|tool| tool.is_empty() || tool.contains(['(', ',', ' '])) {
            let operation =
                format!("restrict its tools to {tool:?}: it takes names; patterns are for permission rules");
            return Err(ProvisionError::unsupported(spec, operation));
        }
        flags.push(format!("--tools={}", config.tools.join(",")));
    }
    let resume = request.resume;
    match resume.map(|resume| &resume.id) {
        Some(Some(id)) => flags.push(format!("--resume={id}")),
        Some(None) => flags.push("--continue".to_owned()),
        None => {}
    }
    let forked = resume.is_some_and(|resume| resume.fork);
    if forked {
        flags.push("--fork-session".to_owned());
    }
    // Words of a user's own may name a conversation.
    let is_own = config.terminal.is_some() && !config.command.is_empty();
    if !is_own && (resume.is_none() || forked) {
        flags.push(format!("--session-id={}", request.fresh_id));
    }
    if let Some(turns) = config.max_turns {
        flags.push(format!("--max-turns={turns}"));
    }
    if config.ephemeral {
        flags.push("--no-session-persistence".to_owned());
    }
    provision.argv.extend(flags);
    Ok(())
}
