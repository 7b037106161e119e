//! Argv, environment and files of OpenCode, as a server and as `opencode acp`.
//!
//! Settings without secrets are in `OPENCODE_CONFIG_CONTENT`, which overrides the files of the user and of the project: so a project
//! cannot make the agent ask less. Keys are in `opencode.json` in the session's own home, so that no tool has them in its
//! environment.

use ipc_protocol::{AgentEndpoint, McpServer, McpTransport};
use serde_json::{Map, Value, json};

use super::{Provision, ProvisionError, ProvisionFile, ProvisionRequest, Result};
use crate::{
    AgentSpec, ModelApi, ModelConfig,
    conversations::{ConversationStorage, StorageFormat},
    family::{AgentFamily, FamilySandbox},
};

/// Configuration directory, relative to the session's home.
const CONFIG: &str = ".config/opencode";
/// Variable with the server's password; `USER` is the user name for it.
const PASSWORD: &str = "OPENCODE_SERVER_PASSWORD";
const USER: &str = "opencode";

/// Modes whose model replies the session bounds. (An entry for another mode would make that mode, where the user has none.)
const BOUNDED_MODES: [&str; 2] = ["build", "plan"];

/// Name of the shell that runs the tools, whatever shell the user has. It removes the server's password from the environment, since a
/// holder of the password can allow itself anything. OpenCode identifies shells by their names. (A plugin could remove the password
/// too, but with a plugin the agent first installs its plugin library, in the user's own home and from the network.)
///
/// This is no containment: any process of the same user can read the password in `/proc/PID/environ` of the server.
const SHELL: &str = "bash";
const SHELL_SCRIPT: &str = "\
#!/bin/sh
unset OPENCODE_SERVER_PASSWORD
command -v bash >/dev/null || exec sh \"$@\"
exec bash \"$@\"
";

/// OpenCode.
pub(crate) const FAMILY: AgentFamily = AgentFamily {
    name: "opencode",
    provision,
    sandbox: FamilySandbox::Absent,
    storage: ConversationStorage {
        roots: &[("XDG_DATA_HOME", "opencode"), ("HOME", ".local/share/opencode")],
        format: StorageFormat::Database { variable: "OPENCODE_DB", name: "opencode.db" },
        pid_records: None,
    },
};

/// Adds to `provision`, which already has the row's own argv and environment; the session's `command` is appended later.
fn provision(spec: &AgentSpec, request: &ProvisionRequest<'_>, provision: &mut Provision) -> Result<()> {
    if let Some(endpoint) = &mut provision.endpoint {
        running(spec, request, endpoint)?;
        provision.model = model_name(request);
        return Ok(());
    }
    let speaks_acp = spec.protocol == "acp";
    // For a server the session's own rules restrict the tools.
    let tools = if speaks_acp { &*request.config.tools } else { &[] };
    let mode = request.config.mode.as_deref();
    if !tools.is_empty() && mode.is_some_and(|mode| !matches!(mode, "plan" | "build")) {
        return Err(ProvisionError::unsupported(spec, "restrict its tools in a mode with rules of its own"));
    }
    let on_screen = request.config.terminal.is_some();
    let mut open = open_config(request, tools);
    if on_screen && !super::asks(request.config) {
        // Its user's own settings say what it asks for.
        open.remove("permission");
        open.remove("agent");
    }
    // Without a mode, the user's settings may name one that is not bounded.
    provision.bounds_turns =
        request.config.max_turns.is_some() && mode.map_or(request.home.is_some(), |mode| BOUNDED_MODES.contains(&mode));
    let mut keys = Map::new();
    if on_screen {
        conversation(request, provision);
    } else if !speaks_acp {
        server(spec, request, &mut open, provision)?;
    }
    if let Some(model) = request.model {
        provider(request, model, &mut open, &mut keys);
    }
    let model = model_name(request);
    if let Some(model) = &model {
        open.insert("model".into(), json!(model));
    }
    // The ACP protocol has a field for MCP servers, and would set the model again.
    provision.model = model.filter(|_| !speaks_acp);
    if !speaks_acp && !request.config.mcp_servers.is_empty() {
        let servers = &request.config.mcp_servers;
        let place = if servers.iter().any(has_secrets) { &mut keys } else { &mut open };
        place.insert("mcp".into(), mcp(servers));
    }
    match request.home {
        Some(home) => own_home(&home.to_string_lossy(), keys, provision),
        None if !keys.is_empty() => {
            let what = if request.model.is_some() { "a model configuration" } else { "the keys of MCP servers" };
            return Err(ProvisionError::NeedsHome { agent: spec.id.clone(), what });
        }
        None => {}
    }
    let mut env = |name: &str, value: &str| provision.env.0.insert(name.into(), value.into());
    env("OPENCODE_DISABLE_AUTOUPDATE", "1");
    if request.config.ephemeral {
        env("OPENCODE_DB", ":memory:");
    }
    env("OPENCODE_CONFIG_CONTENT", &Value::from(open).to_string());
    Ok(())
}

/// Adds the conversation to continue, for its own screen.
fn conversation(request: &ProvisionRequest<'_>, provision: &mut Provision) {
    let Some(resume) = request.resume else { return };
    match &resume.id {
        Some(id) => provision.argv.extend(["--session".to_owned(), id.clone()]),
        None => provision.argv.push("--continue".to_owned()),
    }
    if resume.fork {
        provision.argv.push("--fork".to_owned());
    }
}

/// Adds a server of the session's own, and the shell that hides its password.
fn server(
    spec: &AgentSpec,
    request: &ProvisionRequest<'_>,
    open: &mut Map<String, Value>,
    provision: &mut Provision,
) -> Result<()> {
    let secret = request.fresh_secret.expose();
    provision.env.0.insert(PASSWORD.into(), secret.to_owned());
    let password = Some(secret.to_owned());
    provision.endpoint = Some(AgentEndpoint { url: None, user: USER.into(), password });
    let folder = request.shim_dir.ok_or_else(|| {
        let operation = "keep its server's password from its tools without a folder of the session's own";
        ProvisionError::unsupported(spec, operation)
    })?;
    open.insert("shell".into(), json!(folder.join(SHELL).to_string_lossy()));
    let contents = SHELL_SCRIPT.to_owned().into();
    provision.programs.push(ProvisionFile { path: SHELL.into(), contents });
    Ok(())
}

/// Fills in a server that already runs, and refuses settings that its configuration would have to contain.
fn running(spec: &AgentSpec, request: &ProvisionRequest<'_>, endpoint: &mut AgentEndpoint) -> Result<()> {
    let config = request.config;
    let refused = [
        (request.model.is_some(), "use a model configuration on a server that runs already"),
        (!config.mcp_servers.is_empty(), "use other MCP servers on a server that runs already"),
        (config.ephemeral, "keep nothing of a conversation on a server that runs already"),
    ];
    if let Some((_, operation)) = refused.iter().find(|(asked, _)| *asked) {
        return Err(ProvisionError::unsupported(spec, *operation));
    }
    if endpoint.user.is_empty() {
        endpoint.user = USER.into();
    }
    if endpoint.password.is_none() {
        endpoint.password = config.env.0.get(PASSWORD).cloned();
    }
    Ok(())
}

/// Returns the model in the agent's form: with its provider.
fn model_name(request: &ProvisionRequest<'_>) -> Option<String> {
    let name = request.model_name()?;
    Some(match request.model {
        Some(model) if !name.starts_with(&format!("{}/", provider_id(model))) => {
            format!("{}/{name}", provider_id(model))
        }
        _ => name.to_owned(),
    })
}

/// Returns the agent's name for a provider.
fn provider_id(model: &ModelConfig) -> &str {
    match model.provider.as_str() {
        "gemini" => "google",
        provider => provider,
    }
}

/// Returns the configuration without secrets. If `tools` names any, the model sees only those.
fn open_config(request: &ProvisionRequest<'_>, tools: &[String]) -> Map<String, Value> {
    // The order matters: the last rule that matches decides, and `*` comes first.
    let mut ask = json!({
        "*": "ask", "bash": "ask", "doom_loop": "ask", "edit": "ask", "external_directory": "ask", "glob": "ask",
        "grep": "ask", "list": "ask", "lsp": "ask", "read": "ask", "skill": "ask", "task": "ask", "webfetch": "ask",
        "websearch": "ask",
        // Both touch nothing: `todowrite` is the plan, which events show, and `question` asks by itself.
        "question": "allow", "todowrite": "allow",
    });
    // The rules above override those of the agent's own modes, so denials of the modes are repeated here.
    let mut modes = json!({
        "plan": { "permission": {
            "edit": { "*": "deny", ".opencode/plans/*.md": "ask" },
            "task": { "*": "ask", "general": "deny" },
        } },
        "general": { "permission": { "todowrite": "deny" } },
        "explore": { "permission": {
            "*": "deny", "bash": "ask", "external_directory": "ask", "glob": "ask", "grep": "ask", "list": "ask",
            "read": "ask", "webfetch": "ask", "websearch": "ask",
        } },
    });
    if let Some(turns) = request.config.max_turns {
        // At the bound the agent has the model answer in words, without tools.
        for mode in BOUNDED_MODES {
            modes[mode]["steps"] = json!(turns);
        }
    }
    if !tools.is_empty() {
        // The replacement keeps its place as the first rule.
        ask["*"] = json!("deny");
        restrict(&mut ask, tools);
        for mode in ["plan", "general", "explore"] {
            restrict(&mut modes[mode]["permission"], tools);
        }
        for tool in tools.iter().map(|tool| permission(tool)) {
            if ask.get(tool).is_none() {
                ask[tool] = json!("ask");
            }
        }
    }
    let mut config = Map::new();
    config.insert("permission".into(), ask);
    config.insert("agent".into(), modes);
    config.insert("autoupdate".into(), json!(false));
    config.insert("share".into(), json!("disabled"));
    if request.config.ephemeral {
        config.insert("snapshot".into(), json!(false));
    }
    config
}

/// Returns the permission that a tool needs. Tools that change files share one.
fn permission(tool: &str) -> &str {
    if matches!(tool, "write" | "apply_patch" | "patch" | "multiedit") { "edit" } else { tool }
}

/// Removes the rules of all tools but `tools`.
fn restrict(rules: &mut Value, tools: &[String]) {
    let Some(rules) = rules.as_object_mut() else { return };
    rules.retain(|name, rule| {
        // These are no tools: the agent asks for them in addition to a tool.
        matches!(name.as_str(), "external_directory" | "doom_loop")
            || *rule == "deny"
            || tools.iter().any(|tool| permission(tool) == name)
    });
}

/// Adds the provider of a model configuration, the only provider of the session.
fn provider(
    request: &ProvisionRequest<'_>,
    model: &ModelConfig,
    open: &mut Map<String, Value>,
    keys: &mut Map<String, Value>,
) {
    let npm = match model.api() {
        ModelApi::AnthropicMessages => "@ai-sdk/anthropic",
        ModelApi::OpenaiResponses => "@ai-sdk/openai",
        ModelApi::OpenaiChat => "@ai-sdk/openai-compatible",
        ModelApi::Gemini => "@ai-sdk/google",
    };
    let id = provider_id(model);
    let mut options = Map::new();
    if let Some(base_url) = &model.base_url {
        options.insert("baseURL".into(), json!(base_url));
    }
    if let Some(key) = &model.key {
        options.insert("apiKey".into(), json!(key.expose()));
    }
    let mut models = Map::new();
    // A session that starts with another model can switch to the configuration's.
    for name in model_name(request).into_iter().chain(model.model.clone()) {
        let name = name.strip_prefix(&format!("{id}/")).unwrap_or(&name).to_owned();
        // The agent knows nothing about a model at a custom address, and would withhold pictures from it. The session says whether the
        // model has thinking levels: a model without them may refuse a request that names one.
        let known = if model.base_url.is_some() {
            json!({
                "name": name, "reasoning": request.config.thinking.is_some(), "attachment": true, "tool_call": true,
                "modalities": { "input": ["text", "image", "pdf"], "output": ["text"] },
            })
        } else {
            json!({})
        };
        models.insert(name, known);
    }
    open.insert("enabled_providers".into(), json!([id]));
    if let Some(name) = model_name(request) {
        // Titles would otherwise use a model of a provider without a key.
        open.insert("small_model".into(), json!(name));
    }
    let provider = json!({ id: { "npm": npm, "name": model.provider, "options": options, "models": models } });
    keys.insert("provider".into(), provider);
}

fn has_secrets(server: &McpServer) -> bool {
    match &server.transport {
        McpTransport::Stdio { env, .. } => !env.0.is_empty(),
        McpTransport::Http { headers, .. } => !headers.0.is_empty(),
    }
}

fn mcp(servers: &[McpServer]) -> Value {
    let one = |server: &McpServer| {
        let config = match &server.transport {
            McpTransport::Stdio { command, args, env } => {
                let command: Vec<&String> = std::iter::once(command).chain(args).collect();
                json!({ "type": "local", "command": command, "environment": env, "enabled": true })
            }
            McpTransport::Http { url, headers } => {
                json!({ "type": "remote", "url": url, "headers": headers, "enabled": true, "oauth": false })
            }
        };
        (server.name.clone(), config)
    };
    Value::from(servers.iter().map(one).collect::<Map<_, _>>())
}

/// Sets up a home of the session's own: nothing is downloaded for it.
fn own_home(home: &str, keys: Map<String, Value>, provision: &mut Provision) {
    let mut env = |name: &str, value: String| provision.env.0.insert(name.into(), value);
    for (name, folder) in [
        ("XDG_CONFIG_HOME", ".config"),
        ("XDG_DATA_HOME", ".local/share"),
        ("XDG_STATE_HOME", ".local/state"),
        ("XDG_CACHE_HOME", ".cache"),
    ] {
        env(name, format!("{}/{folder}", home.trim_end_matches('/')));
    }
    for what in ["MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS"] {
        env(&format!("OPENCODE_DISABLE_{what}"), "1".into());
    }
    let mut file = |path: &str, contents: String| {
        provision.files.push(ProvisionFile { path: format!("{CONFIG}/{path}").into(), contents: contents.into() });
    };
    file("opencode.json", Value::from(keys).to_string());
    // Otherwise the agent would install its plugin library here: 90 MB from the network before the first prompt. It takes these files
    // as a finished installation.
    file("node_modules/.keep", String::new());
    let lock = json!({ "packages": { "": { "dependencies": { "@opencode-ai/plugin": "*" } } } });
    file("package-lock.json", lock.to_string());
}
