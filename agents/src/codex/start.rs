//! Opening of a conversation: the requests to the app-server, and the meaning of its answers.

use ipc_protocol::{AgentSandbox, AgentSessionConfig, McpTransport, PermissionMode, PromptPart};
use serde_json::{Map, Value, json};

use crate::{Result, discovery::ProgramVersion, kit::refuse_asked};

/// Codex's word for no sandbox.
const FULL_ACCESS: &str = "danger-full-access";

/// Checks for configurations that are refused before the agent starts.
pub(super) fn check(setup: &crate::AdapterSetup) -> Result<()> {
    let config = &setup.config;
    let resumes = setup.resume.as_ref().is_some_and(|resume| !resume.fork);
    let refused = [
        (!config.tools.is_empty(), "restrict its tools"),
        (config.ephemeral && resumes, "keep nothing of a conversation that it goes on with: fork it"),
        (
            config.mode.as_deref().is_some_and(|mode| self::mode(mode).is_none()),
            "work in that mode: it has build and plan",
        ),
    ];
    refuse_asked(&setup.agent, &refused)
}

/// Returns Codex's word for a mode.
pub(super) fn mode(mode: &str) -> Option<&'static str> {
    match mode {
        "plan" => Some("plan"),
        "build" | "default" => Some("default"),
        _ => None,
    }
}

/// Codex's word for a sandbox.
pub(crate) fn sandbox(sandbox: AgentSandbox) -> &'static str {
    match sandbox {
        AgentSandbox::ReadOnly => "read-only",
        AgentSandbox::WorkspaceWrite => "workspace-write",
        AgentSandbox::None => FULL_ACCESS,
    }
}

/// Codex's word for how hard to think.
pub(crate) fn effort(thinking: &str) -> &str {
    if thinking == "off" { "none" } else { thinking }
}

/// Makes the first request. Without the experimental API an interrupted turn's processes cannot be ended.
pub(super) fn initialize() -> Value {
    json!({
        "clientInfo": { "name": "agent-proxy", "title": "agent-proxy", "version": env!("CARGO_PKG_VERSION") },
        "capabilities": { "experimentalApi": true, "requestAttestation": false },
    })
}

/// The program that answered [`initialize`]: it names its version behind our own name.
pub(super) fn program(answer: &Value) -> Option<String> {
    let version = ProgramVersion::parse(answer["userAgent"].as_str()?.split_once('/')?.1)?;
    Some(format!("@openai/codex {version}"))
}

/// What `thread/start`, `thread/resume` and `thread/fork` have in common.
pub(super) fn thread(config: &AgentSessionConfig, protocol_config: &Value) -> Map<String, Value> {
    // Where neither says it, the user's own settings do.
    let sandbox = config.agent_sandbox.map(self::sandbox).or_else(|| protocol_config["sandbox"].as_str());
    // Without rules, what is asked would be allowed anyway.
    let allowed = config.permission_mode == PermissionMode::Allow && config.permissions.rules.is_empty();
    let approval = match (allowed, sandbox) {
        (true, Some(FULL_ACCESS)) => "never",
        // Else nothing would ever leave the sandbox.
        (true, _) => "on-request",
        (false, _) => "untrusted",
    };
    let mut params = Map::new();
    let mut set = |key: &str, value: Value| params.insert(key.to_owned(), value);
    set("cwd", json!(config.cwd.as_deref().unwrap_or("/")));
    set("approvalPolicy", json!(approval));
    // Otherwise a reviewing model of Codex would answer.
    set("approvalsReviewer", json!("user"));
    if let Some(sandbox) = sandbox {
        set("sandbox", json!(sandbox));
    }
    if let Some(model) = &config.model {
        set("model", json!(model));
    }
    if let Some(prompt) = &config.system_prompt {
        set("developerInstructions", json!(prompt));
    }
    if !config.mcp_servers.is_empty() {
        set("config", json!({ "mcp_servers": mcp_servers(config) }));
    }
    params
}

fn mcp_servers(config: &AgentSessionConfig) -> Value {
    let server = |transport: &McpTransport| match transport {
        McpTransport::Stdio { command, args, env } => json!({ "command": command, "args": args, "env": env }),
        McpTransport::Http { url, headers } => json!({ "url": url, "http_headers": headers }),
    };
    config.mcp_servers.iter().map(|each| (each.name.clone(), server(&each.transport))).collect::<Map<_, _>>().into()
}

/// Makes the request for conversations of the working directory, newest first, from every kind of source.
pub(super) fn list(config: &AgentSessionConfig, limit: u32) -> Value {
    json!({
        "cwd": config.cwd.as_deref().unwrap_or("/"),
        "limit": limit,
        "sortKey": "updated_at",
        "modelProviders": [],
        "sourceKinds": ["cli", "vscode", "exec", "appServer"],
    })
}

/// Converts a prompt to Codex's input. The text names a file that is no picture: Codex reads it with its tools.
pub(super) fn input(parts: &[PromptPart], cwd: &str) -> Value {
    let words = |text: &str| json!({ "type": "text", "text": text, "text_elements": [] });
    let part = |part: &PromptPart| match part {
        PromptPart::Text(text) => words(text),
        PromptPart::Image { mime_type, data } => {
            json!({ "type": "image", "url": format!("data:{mime_type};base64,{data}") })
        }
        PromptPart::File { path } if is_picture(path) => {
            let path = std::path::Path::new(cwd).join(path);
            json!({ "type": "localImage", "path": path })
        }
        PromptPart::File { path } => words(&format!("@{path}")),
    };
    parts.iter().map(part).collect::<Vec<_>>().into()
}

fn is_picture(path: &str) -> bool {
    let extension = path.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    matches!(extension.as_deref(), Some("png" | "jpg" | "jpeg" | "gif" | "webp"))
}
