//! Argv, environment and files of Gemini CLI.
//!
//! A policy in the session's folder makes Gemini ask for every tool, in any home: with `--admin-policy` it precedes the user's and the
//! project's own policies. Even then Gemini does not ask for shell commands that it considers harmless (`echo`, `ls`, …), and it ignores
//! the flag where the machine has policies in `/etc/gemini-cli/policies`: those decide.
//!
//! A session's own home contains its settings, and the key of a model configuration (`.env`: the key is in Gemini's memory, and Gemini's
//! own redaction removes it from the environment of the tools). MCP servers and modes go over the protocol.
//!
//! Its `model.maxSessionTurns` bounds the model replies of all prompts together, so it is left alone: the proxy counts those of each.

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

/// Gemini's directory, relative to the session's home.
const DIRECTORY: &str = ".gemini";
/// Versions that Gemini itself adds to an address.
const VERSIONS: [&str; 3] = ["/v1beta", "/v1alpha", "/v1"];

/// Name of [`ASK`] in the session's folder.
const POLICY: &str = "gemini-ask.toml";
/// Policy that makes Gemini ask. Plan mode has rules of its own: it refuses most tools without asking.
const ASK: &str = r#"[[rule]]
toolName = "*"
decision = "ask_user"
priority = 100
modes = ["default", "autoEdit"]
"#;

/// Policy of its own screen that lets Gemini ask for nothing.
const ALLOW: &str = r#"[[rule]]
toolName = "*"
decision = "allow"
priority = 100
"#;
/// Hooks of its own screen that report. (Its end is not among them: Gemini prints that such a hook runs.)
const REPORTING: [&str; 4] = ["SessionStart", "BeforeAgent", "AfterTool", "AfterAgent"];
/// Hook that can refuse a call.
const BEFORE_TOOL: &str = "BeforeTool";

/// Gemini CLI.
pub(crate) const FAMILY: AgentFamily = AgentFamily {
    name: "gemini",
    provision,
    sandbox: FamilySandbox::Settings("settings.json", sandboxed),
    storage: ConversationStorage {
        roots: &[("GEMINI_CLI_HOME", DIRECTORY), ("HOME", DIRECTORY)],
        format: StorageFormat::LineFiles("tmp"),
        pid_records: None,
    },
};

/// Returns whether a user's settings switch the sandbox on.
pub(super) fn sandboxed(settings: &Value) -> bool {
    let set = settings.pointer("/tools/sandbox").or_else(|| settings.get("sandbox"));
    set.is_some_and(|value| value.as_bool().unwrap_or_else(|| value.is_string() || value.is_object()))
}

/// Adds to `provision`, which already has the row's own argv and environment; the session's `command` is appended later.
fn provision(spec: &AgentSpec, request: &ProvisionRequest<'_>, provision: &mut Provision) -> Result<()> {
    if request.config.terminal.is_some()
        && let Some(resume) = request.resume
    {
        provision.argv.extend(["--resume".to_owned(), resume.id.clone().unwrap_or_else(|| "latest".to_owned())]);
    }
    if super::asks(request.config) {
        let policy = super::shim_file(spec, request, POLICY, ASK, provision)?;
        provision.argv.extend(["--admin-policy".to_owned(), policy]);
    } else if request.config.terminal.is_some() && super::allows_all(request.config) {
        let policy = super::shim_file(spec, request, POLICY, ALLOW, provision)?;
        provision.argv.extend(["--admin-policy".to_owned(), policy]);
    }
    // The protocol accepts any name, so the model is an argument.
    if let Some(model) = provision.model.take() {
        provision.argv.extend(["-m".to_owned(), model]);
    }
    let Some(home) = request.home else {
        let wanted = [
            (request.model.is_some(), "a model configuration"),
            (!request.config.tools.is_empty(), "the list of its tools"),
            (
                request.config.terminal.is_some()
                    && super::is_bound(request.config)
                    && !super::allows_all(request.config),
                "the hooks that hold its own screen to a policy",
            ),
        ];
        return match wanted.iter().find(|(wanted, _)| *wanted) {
            Some((_, what)) => Err(ProvisionError::NeedsHome { agent: spec.id.clone(), what }),
            None => Ok(()),
        };
    };
    provision.env.0.insert("GEMINI_CLI_HOME".to_owned(), home.to_string_lossy().into_owned());
    if let Some(model) = request.model {
        access(spec, model, provision)?;
    }
    let mut settings = settings(request);
    if let Some(commands) = hooks::commands(request, provision) {
        settings["hooks"] = screen_hooks(&commands, super::is_bound(request.config));
    }
    file("settings.json", settings.to_string(), provision);
    Ok(())
}

/// Returns the hooks of its own screen.
fn screen_hooks(HookCommands { report, ask }: &HookCommands, is_bound: bool) -> Value {
    let hook = |command: &str, timeout: u64| {
        let hook = json!({ "type": "command", "name": "agent-proxy", "command": command, "timeout": timeout * 1000 });
        json!([{ "hooks": [hook] }])
    };
    let reporting = hook(report, hooks::REPORT_TIMEOUT);
    let mut hooks: Map<_, _> = REPORTING.iter().map(|event| ((*event).to_owned(), reporting.clone())).collect();
    let before = if is_bound { hook(ask, hooks::ASK_TIMEOUT) } else { reporting };
    hooks.insert(BEFORE_TOOL.to_owned(), before);
    hooks.into()
}

fn file(name: &str, contents: String, provision: &mut Provision) {
    provision.files.push(ProvisionFile { path: [DIRECTORY, name].iter().collect(), contents: contents.into() });
}

/// Returns the settings for a session's own home: Gemini neither looks anything up nor reports anything.
fn settings(request: &ProvisionRequest<'_>) -> Value {
    let mut settings = json!({
        "general": {
            "disableAutoUpdate": true,
            "disableUpdateNag": true,
            "enableAutoUpdate": false,
            // Gemini deletes conversations that it considers old or broken.
            "sessionRetention": { "enabled": false },
        },
        "privacy": { "usageStatisticsEnabled": false },
        "telemetry": { "enabled": false },
        "security": {
            "auth": { "selectedType": "gemini-api-key" },
            "environmentVariableRedaction": { "enabled": true },
        },
    });
    if request.has_login_copy() {
        settings["security"]["auth"]["selectedType"] = json!("oauth-personal");
    }
    if !request.config.tools.is_empty() {
        settings["tools"] = json!({ "core": request.config.tools });
    }
    settings
}

/// Sets the model's address and key.
fn access(spec: &AgentSpec, model: &ModelConfig, provision: &mut Provision) -> Result<()> {
    let cannot =
        |why: &str| Err(ProvisionError::unsupported(spec, format!("use model configuration {:?}: {why}", model.name)));
    if model.api() != ModelApi::Gemini {
        return cannot("it speaks only with Gemini's API");
    }
    if let Some(url) = &model.base_url {
        let url = url.trim_end_matches('/');
        let root = VERSIONS.iter().find_map(|version| url.strip_suffix(version)).unwrap_or(url);
        provision.env.0.insert("GOOGLE_GEMINI_BASE_URL".to_owned(), root.to_owned());
    }
    if let Some(key) = &model.key {
        let key = key.expose();
        if key.chars().any(|char| char.is_control() || char == '\'') {
            return cannot("its key has characters that the agent's file for it cannot have");
        }
        file(".env", format!("GEMINI_API_KEY='{key}'\n"), provision);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ipc_protocol::{AgentSessionConfig, PermissionMode, PermissionRule, RuleDecision};

    use super::*;
    use crate::{Catalog, Secret};

    const KEY: &str = "AIza-dummy-key";

    fn model(api: &str, key: &str) -> ModelConfig {
        let config = json!({
            "name": "m", "provider": "google", "api": api, "key": key, "model": "gemini-2.5-flash",
            "base_url": "http://127.0.0.1:9/v1beta/",
        });
        serde_json::from_value(config).expect("a model configuration")
    }

    fn run(
        config: &AgentSessionConfig,
        model: Option<&ModelConfig>,
        home: Option<&Path>,
    ) -> Result<Provision, ProvisionError> {
        let catalog = Catalog::default();
        let request = ProvisionRequest {
            config,
            model,
            home,
            shared_home: None,
            user_settings: None,
            shim_dir: Some(Path::new("/run-s")),
            resume: None,
            fresh_id: "id",
            fresh_secret: &Secret::from("secret".to_owned()),
        };
        super::super::provision(catalog.get("gemini").expect("a row"), &request)
    }

    fn contents<'a>(provision: &'a Provision, path: &str) -> Option<&'a str> {
        let file = provision.files.iter().find(|file| file.path == Path::new(path))?;
        Some(file.contents.expose())
    }

    #[test]
    fn a_model_is_an_argument_and_its_key_is_not() {
        let allow = PermissionMode::Allow;
        let config = AgentSessionConfig { permission_mode: allow, ..AgentSessionConfig::new("gemini") };
        let model = model("gemini", KEY);
        let provision = run(&config, Some(&model), Some(Path::new("/home/own"))).expect("provided");
        assert_eq!(provision.argv, ["gemini", "--acp", "--skip-trust", "-m", "gemini-2.5-flash"]);
        assert_eq!(provision.model, None, "its protocol does not set it again");
        assert_eq!(provision.env.0["GOOGLE_GEMINI_BASE_URL"], "http://127.0.0.1:9");
        assert_eq!(provision.env.0["GEMINI_CLI_HOME"], "/home/own");
        assert_eq!(provision.env.0["GEMINI_CLI_NO_RELAUNCH"], "true");
        assert!(!provision.env.0.values().any(|value| value.contains(KEY)));
        assert_eq!(contents(&provision, ".gemini/.env"), Some("GEMINI_API_KEY='AIza-dummy-key'\n"));
        let settings: Value =
            serde_json::from_str(contents(&provision, ".gemini/settings.json").expect("settings")).expect("JSON");
        insta::assert_snapshot!(format!("{settings:#}"));
    }

    #[test]
    fn it_is_made_to_ask_in_any_home_unless_everything_is_allowed() {
        let rule = PermissionRule { tool: None, command: None, path: None, decision: RuleDecision::Deny };
        for (mode, rules, asks) in [
            (PermissionMode::Ask, vec![], true),
            (PermissionMode::Deny, vec![], true),
            (PermissionMode::ReadOnly, vec![], true),
            (PermissionMode::Allow, vec![rule], true),
            (PermissionMode::Allow, vec![], false),
        ] {
            let mut config = AgentSessionConfig { permission_mode: mode, ..AgentSessionConfig::new("gemini") };
            config.permissions.rules = rules;
            for home in [Some(Path::new("/home/own")), None] {
                let provision = run(&config, None, home).expect("provided");
                let flag = ["--admin-policy".to_owned(), "/run-s/gemini-ask.toml".to_owned()];
                assert_eq!(provision.argv.windows(2).any(|words| words == flag), asks, "{mode:?} {home:?}");
                let given = provision.programs.iter().map(|file| file.contents.expose()).collect::<Vec<_>>();
                assert_eq!(given, if asks { vec![ASK] } else { vec![] }, "{mode:?} {home:?}");
            }
        }
    }

    #[test]
    fn tools_are_a_setting() {
        let config = AgentSessionConfig { tools: vec!["read_file".into()], ..AgentSessionConfig::new("gemini") };
        let provision = run(&config, None, Some(Path::new("/home/own"))).expect("provided");
        assert!(
            contents(&provision, ".gemini/settings.json").is_some_and(|text| text.contains(r#""core":["read_file"]"#))
        );
        let refused = run(&config, None, None).expect_err("refused");
        assert!(matches!(refused, ProvisionError::NeedsHome { what: "the list of its tools", .. }), "{refused}");
    }

    #[test]
    fn what_it_cannot_use_is_refused() {
        let config = AgentSessionConfig::new("gemini");
        let home = Some(Path::new("/home/own"));
        for (model, home) in [
            (model("anthropic-messages", KEY), home),
            (model("gemini", "it's"), home),
            (model("gemini", "a\nb"), home),
            (model("gemini", KEY), None),
        ] {
            let refused = run(&config, Some(&model), home).expect_err("refused");
            assert!(!refused.to_string().contains(model.key.as_ref().map_or("", Secret::expose)), "{refused}");
        }
        assert_eq!(run(&config, None, None).expect("provided").files, [], "somebody's own home is left alone");
    }
}
