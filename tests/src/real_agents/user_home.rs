//! The home of a user of each agent: the agent's own login and settings, written by hand. They point it at the mock model, and allow
//! whatever can be allowed there: a session's policy has to hold all the same.

use std::{fs, io, path::Path};

use serde_json::{Value, json};

/// Writes the files of a user of the agents of `family`, with the mock model at `root_url`, to `home`.
///
/// # Errors
/// The system's.
pub(super) fn furnish(family: &str, home: &Path, root_url: &str, key: &str) -> io::Result<()> {
    for (path, contents) in files(family, root_url, key) {
        let path = home.join(path);
        fs::create_dir_all(path.parent().unwrap_or(home))?;
        fs::write(path, contents)?;
    }
    Ok(())
}

fn files(family: &str, root_url: &str, key: &str) -> Vec<(&'static str, String)> {
    match family {
        "claude" => vec![(".claude/settings.json", claude(root_url, key).to_string())],
        "codex" => vec![(".codex/config.toml", codex(root_url, key))],
        "gemini" => gemini(root_url, key),
        "opencode" => opencode(root_url, key),
        "pi" => pi(root_url, key),
        "qwen" => vec![(".qwen/settings.json", qwen(root_url, key).to_string())],
        family => panic!("no agent of {family:?} is known"),
    }
}

fn claude(root_url: &str, key: &str) -> Value {
    json!({
        "model": "mock-model",
        "apiKeyHelper": format!("echo {key}"),
        "env": {
            "ANTHROPIC_BASE_URL": root_url, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1",
        },
        "permissions": { "allow": ["Bash", "Write"], "defaultMode": "acceptEdits" },
    })
}

fn codex(root_url: &str, key: &str) -> String {
    format!(
        "model = \"mock-model\"\nmodel_provider = \"mock\"\napproval_policy = \"never\"\nsandbox_mode = \"danger-full-access\"\n\
         check_for_update_on_startup = false\n[analytics]\nenabled = false\n[model_providers.mock]\nname = \"mock\"\n\
         base_url = \"{root_url}/v1\"\nwire_api = \"responses\"\nsupports_websockets = false\n\
         experimental_bearer_token = \"{key}\"\n"
    )
}

fn gemini(root_url: &str, key: &str) -> Vec<(&'static str, String)> {
    let settings = json!({
        "general": { "disableAutoUpdate": true, "enableAutoUpdate": false, "defaultApprovalMode": "auto_edit" },
        "privacy": { "usageStatisticsEnabled": false },
        "telemetry": { "enabled": false },
        "security": { "auth": { "selectedType": "gemini-api-key" } },
        "model": { "name": "gemini-2.5-flash" },
        "tools": { "allowed": ["run_shell_command", "write_file"] },
    });
    let allows = "[[rule]]\ntoolName = \"*\"\ndecision = \"allow\"\npriority = 999\n".to_owned();
    vec![
        (".gemini/.env", format!("GEMINI_API_KEY='{key}'\nGOOGLE_GEMINI_BASE_URL='{root_url}'\n")),
        (".gemini/settings.json", settings.to_string()),
        (".gemini/policies/mine.toml", allows),
    ]
}

fn opencode(root_url: &str, key: &str) -> Vec<(&'static str, String)> {
    let config = json!({
        "model": "mock/mock-model",
        "small_model": "mock/mock-model",
        "autoupdate": false,
        "permission": { "*": "allow", "bash": "allow", "edit": "allow" },
        "provider": { "mock": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "mock",
            "options": { "baseURL": format!("{root_url}/v1"), "apiKey": key },
            "models": { "mock-model": { "name": "mock-model", "tool_call": true, "cost": { "input": 1, "output": 2 } } },
        } },
    });
    // It has run here before, and has its plugin library, which is 90 MB from the network.
    let lock = json!({ "packages": { "": { "dependencies": { "@opencode-ai/plugin": "*" } } } });
    vec![
        (".config/opencode/opencode.json", config.to_string()),
        (".config/opencode/node_modules/.keep", String::new()),
        (".config/opencode/package-lock.json", lock.to_string()),
    ]
}

fn pi(root_url: &str, key: &str) -> Vec<(&'static str, String)> {
    let cost = json!({ "input": 1, "output": 2, "cacheRead": 1, "cacheWrite": 1 });
    let model = json!({ "id": "mock-model", "cost": cost });
    let provider = json!({
        "baseUrl": format!("{root_url}/v1"), "api": "openai-completions", "apiKey": key, "models": [model],
    });
    vec![
        (".pi/agent/models.json", json!({ "providers": { "mock": provider } }).to_string()),
        (".pi/agent/settings.json", json!({ "defaultProvider": "mock", "defaultModel": "mock-model" }).to_string()),
    ]
}

fn qwen(root_url: &str, key: &str) -> Value {
    let url = format!("{root_url}/v1");
    json!({
        "$version": 4,
        "general": { "enableAutoUpdate": false },
        "privacy": { "usageStatisticsEnabled": false },
        "telemetry": { "enabled": false },
        "modelProviders": { "openai": [{ "id": "mock-model", "baseUrl": url }] },
        "model": { "name": "mock-model" },
        "security": { "auth": { "selectedType": "openai", "baseUrl": url, "apiKey": key } },
        "tools": { "approvalMode": "yolo" },
        "permissions": { "allow": ["Bash", "Write", "Edit"] },
    })
}
