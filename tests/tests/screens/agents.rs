//! The agents with screens of their own: what each is started with, and what it shows.

use std::{fs, io, path::Path};

use serde_json::json;

/// Agent with a screen of its own.
#[derive(Debug)]
pub(crate) struct ScreenAgent {
    /// Catalog id.
    pub(crate) id: &'static str,
    /// Command line by itself, with what a session adds to it.
    pub(crate) bare: &'static str,
    /// The same, without what a session adds.
    pub(crate) command: &'static str,
    /// Text that stands on the screen once it takes prompts.
    pub(crate) ready: &'static str,
    /// Prompt for a tool call, and what it asks then; empty where it asks nothing.
    pub(crate) tool: &'static str,
    pub(crate) asks: &'static str,
    /// Words that end it.
    pub(crate) quit: &'static str,
    /// Words on lines that differ from start to start, and what they are.
    pub(crate) varies: &'static [(&'static str, &'static str)],
    /// Ends of lines whose colours differ from start to start.
    pub(crate) colored_anew: &'static [&'static str],
    /// The same of its titles.
    pub(crate) titles: &'static [(&'static str, &'static str)],
}

const TOUCH: &str = "shell: touch made.txt";

pub(crate) const SCREEN_AGENTS: &[ScreenAgent] = &[
    ScreenAgent {
        id: "claude-code",
        bare: "claude",
        command: "claude",
        ready: "❯",
        tool: TOUCH,
        asks: "Do you want to proceed?",
        quit: "/exit",
        varies: &[
            ("s · done ", "time of a turn"),
            ("claude --resume ", "id to resume"),
            ("A command of the script", "blinking dot"),
            (" manual mode on · ", "hints, which go some time after the start"),
        ],
        colored_anew: &[],
        titles: &[],
    },
    ScreenAgent {
        id: "codex",
        bare: "codex --no-daemon",
        command: "codex",
        ready: "›",
        tool: r#"call: exec_command {"cmd":"touch made.txt","sandbox_permissions":"require_escalated","justification":"why"}"#,
        asks: "Would you like to run",
        quit: "/quit",
        varies: &[
            ("  Worked for ", "time of a turn"),
            ("codex resume ", "id to resume"),
            ("Running touch", "moving light"),
        ],
        colored_anew: &["mock"],
        titles: &[("[ . ]", "[ ! ]")],
    },
    ScreenAgent {
        id: "opencode",
        bare: "opencode",
        command: "opencode",
        ready: "Ask anything",
        tool: TOUCH,
        asks: "Permission required",
        quit: "/exit",
        varies: &[
            ("Ask anything…", "example of a prompt"),
            ("▣  Build · mock-model", "time of a turn"),
            ("opencode -s ses_", "id to resume"),
        ],
        colored_anew: &[],
        titles: &[],
    },
    ScreenAgent {
        id: "pi",
        bare: "pi",
        command: "pi",
        ready: "mock-model",
        tool: TOUCH,
        asks: "",
        quit: "/quit",
        varies: &[("Took ", "time of a tool"), ("pi --session ", "id to resume")],
        colored_anew: &[],
        titles: &[],
    },
    ScreenAgent {
        id: "gemini",
        bare: "gemini --skip-trust",
        command: "gemini",
        ready: "Type your message",
        tool: TOUCH,
        asks: "Allow execution",
        quit: "/quit",
        varies: &[
            ("Session ID:", "id"),
            ("gemini --resume ", "id to resume"),
            ("Wall Time:", "time"),
            ("Agent Active:", "time"),
            ("API Time:", "time"),
            ("Tool Time:", "time"),
        ],
        colored_anew: &[],
        titles: &[],
    },
];

impl ScreenAgent {
    pub(crate) fn named(id: &str) -> Option<&'static Self> {
        SCREEN_AGENTS.iter().find(|agent| agent.id == id)
    }

    /// Writes the settings of a user who has set it up, with the mock model at `root_url`.
    pub(crate) fn furnish(&self, home: &Path, work: &Path, root_url: &str) -> io::Result<()> {
        for (path, contents) in self.files(work, root_url) {
            let path = home.join(path);
            fs::create_dir_all(path.parent().unwrap_or(home))?;
            fs::write(path, contents)?;
        }
        Ok(())
    }

    fn files(&self, work: &Path, root_url: &str) -> Vec<(&'static str, String)> {
        match self.id {
            "claude-code" => claude(work, root_url),
            "codex" => vec![(".codex/config.toml", codex(work, root_url))],
            "opencode" => opencode(root_url),
            "pi" => pi(root_url),
            _ => gemini(root_url),
        }
    }
}

fn claude(work: &Path, root_url: &str) -> Vec<(&'static str, String)> {
    let settings = json!({
        "model": "mock-model",
        "apiKeyHelper": "echo dummy",
        "spinnerTipsEnabled": false,
        "env": {
            "ANTHROPIC_BASE_URL": root_url, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1",
        },
        "permissions": { "ask": ["Bash"], "defaultMode": "default" },
    });
    let project = json!({ "hasTrustDialogAccepted": true });
    let state = json!({ "hasCompletedOnboarding": true, "projects": { work.to_string_lossy(): project } });
    vec![(".claude/settings.json", settings.to_string()), (".claude.json", state.to_string())]
}

fn codex(work: &Path, root_url: &str) -> String {
    format!(
        "model = \"mock-model\"\nmodel_provider = \"mock\"\napproval_policy = \"on-request\"\nsandbox_mode = \"read-only\"\n\
         check_for_update_on_startup = false\n[tui]\nshow_tooltips = false\n[analytics]\nenabled = false\n\
         [projects.{:?}]\ntrust_level = \"trusted\"\n[model_providers.mock]\nname = \"mock\"\n\
         base_url = \"{root_url}/v1\"\nwire_api = \"responses\"\nsupports_websockets = false\n\
         experimental_bearer_token = \"dummy\"\n",
        work.to_string_lossy()
    )
}

fn opencode(root_url: &str) -> Vec<(&'static str, String)> {
    let config = json!({
        "model": "mock/mock-model",
        "small_model": "mock/mock-model",
        "autoupdate": false,
        "permission": { "bash": "ask" },
        "provider": { "mock": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "mock",
            "options": { "baseURL": format!("{root_url}/v1"), "apiKey": "dummy" },
            "models": { "mock-model": { "name": "mock-model", "tool_call": true } },
        } },
    });
    // It has run here before, and has its plugin library, which is 90 MB from the network.
    let lock = json!({ "packages": { "": { "dependencies": { "@opencode-ai/plugin": "*" } } } });
    vec![
        (".config/opencode/opencode.json", config.to_string()),
        (".config/opencode/node_modules/.keep", String::new()),
        (".config/opencode/package-lock.json", lock.to_string()),
        // A tip is another one at each start.
        (".local/state/opencode/kv.json", json!({ "tips_hidden": true }).to_string()),
    ]
}

fn pi(root_url: &str) -> Vec<(&'static str, String)> {
    let provider = json!({
        "baseUrl": format!("{root_url}/v1"), "api": "openai-completions", "apiKey": "dummy",
        "models": [{ "id": "mock-model" }],
    });
    vec![
        (".pi/agent/models.json", json!({ "providers": { "mock": provider } }).to_string()),
        (".pi/agent/settings.json", json!({ "defaultProvider": "mock", "defaultModel": "mock-model" }).to_string()),
    ]
}

fn gemini(root_url: &str) -> Vec<(&'static str, String)> {
    let settings = json!({
        "general": { "disableAutoUpdate": true, "enableAutoUpdate": false },
        "privacy": { "usageStatisticsEnabled": false },
        "telemetry": { "enabled": false },
        "ui": { "hideTips": true },
        "security": { "auth": { "selectedType": "gemini-api-key" } },
        "model": { "name": "gemini-2.5-flash" },
    });
    vec![
        (".gemini/.env", format!("GEMINI_API_KEY='dummy'\nGOOGLE_GEMINI_BASE_URL='{root_url}'\n")),
        (".gemini/settings.json", settings.to_string()),
    ]
}
