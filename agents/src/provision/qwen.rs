//! Argv, environment and files of Qwen Code.
//!
//! A session's own home contains its settings: the model with its address and key, its tools, and the rules that make Qwen ask for every
//! tool. In the shared home these rules are in the session's folder, as the system's defaults: Qwen unites them with the user's rules, and
//! a rule to ask precedes one that allows. The key is in no variable: Qwen passes its environment on to its tools. MCP servers, modes and
//! levels of thinking go over the protocol.

use serde_json::{Value, json};

use super::{Provision, ProvisionError, ProvisionFile, ProvisionRequest, Result, gemini};
use crate::{
    AgentSpec, ModelApi, ModelConfig,
    conversations::{ConversationStorage, StorageFormat},
    family::{AgentFamily, FamilySandbox},
};

/// Qwen's directory, relative to the session's home.
const DIRECTORY: &str = ".qwen";
/// Version of the form of its settings.
const VERSION: u32 = 4;
/// Name of the system's defaults in the session's folder.
const DEFAULTS: &str = "qwen-ask.json";
/// Tools that a list of tools leaves unless they are denied.
const EXTRA_TOOLS: [&str; 16] = [
    "agent",
    "ask_user_question",
    "enter_plan_mode",
    "enter_worktree",
    "exit_plan_mode",
    "exit_worktree",
    "get_goal",
    "list_agents",
    "record_artifact",
    "report_findings",
    "send_message",
    "skill",
    "task_stop",
    "tool_call",
    "tool_search",
    "update_goal",
];

/// Rules that make Qwen ask for every tool. Without a pattern it asks for no shell command that it considers harmless.
const ASK: [&str; 11] =
    ["Agent", "Bash(*)", "Edit", "Glob", "Grep", "ListFiles", "Read", "Skill", "WebFetch", "WebSearch", "Write"];

/// Qwen Code.
pub(crate) const FAMILY: AgentFamily = AgentFamily {
    name: "qwen",
    provision,
    sandbox: FamilySandbox::Settings("settings.json", gemini::sandboxed),
    storage: ConversationStorage {
        roots: &[("QWEN_HOME", ""), ("HOME", DIRECTORY)],
        format: StorageFormat::LineFiles("projects"),
        pid_records: None,
    },
};

/// Adds to `provision`, which already has the row's own argv and environment; the session's `command` is appended later.
fn provision(spec: &AgentSpec, request: &ProvisionRequest<'_>, provision: &mut Provision) -> Result<()> {
    let config = request.config;
    if config.ephemeral && request.resume.is_some() {
        return Err(ProvisionError::unsupported(spec, "keep nothing of a conversation that it goes on with"));
    }
    if config.terminal.is_some()
        && let Some(resume) = request.resume
    {
        provision.argv.extend(match &resume.id {
            Some(id) => vec!["--resume".to_owned(), id.clone()],
            None => vec!["--continue".to_owned()],
        });
    }
    if config.ephemeral {
        provision.argv.push("--chat-recording=false".to_owned());
    }
    // The protocol offers the models of the settings only.
    if let Some(model) = provision.model.take() {
        provision.argv.extend(["--model".to_owned(), model]);
    }
    if !config.mcp_servers.is_empty() {
        // Otherwise the first prompts go without the tools of servers that are still starting.
        provision.env.0.insert("QWEN_CODE_LEGACY_MCP_BLOCKING".to_owned(), "1".to_owned());
    }
    let Some(home) = request.home else {
        let wanted =
            [(request.model.is_some(), "a model configuration"), (!config.tools.is_empty(), "the list of its tools")];
        if let Some((_, what)) = wanted.iter().find(|(wanted, _)| *wanted) {
            return Err(ProvisionError::NeedsHome { agent: spec.id.clone(), what });
        }
        return ask_in_shared_home(spec, request, provision);
    };
    let directory = home.join(DIRECTORY);
    provision.env.0.insert("QWEN_HOME".to_owned(), directory.to_string_lossy().into_owned());
    let contents = settings(spec, request)?.to_string().into();
    provision.files.push(ProvisionFile { path: [DIRECTORY, "settings.json"].iter().collect(), contents });
    Ok(())
}

/// Makes Qwen ask although the home, with its settings, is the user's.
fn ask_in_shared_home(spec: &AgentSpec, request: &ProvisionRequest<'_>, provision: &mut Provision) -> Result<()> {
    if !super::asks(request.config) {
        return Ok(());
    }
    let defaults = json!({ "$version": VERSION, "permissions": { "ask": ASK } }).to_string();
    let path = super::shim_file(spec, request, DEFAULTS, &defaults, provision)?;
    provision.env.0.insert("QWEN_CODE_SYSTEM_DEFAULTS_PATH".to_owned(), path);
    // The user's settings may name a mode in which nothing is asked.
    provision.argv.extend(["--approval-mode".to_owned(), "default".to_owned()]);
    Ok(())
}

/// Returns the settings for a session's own home: Qwen connects to nothing but the model.
fn settings(spec: &AgentSpec, request: &ProvisionRequest<'_>) -> Result<Value> {
    let config = request.config;
    let mut settings = json!({
        "$version": VERSION,
        "general": { "enableAutoUpdate": false },
        "privacy": { "usageStatisticsEnabled": false },
        "telemetry": { "enabled": false },
        "ui": { "enableFollowupSuggestions": false },
        "memory": { "enableManagedAutoMemory": false, "enableManagedAutoDream": false },
        "tools": { "approvalMode": "default" },
    });
    if !super::allows_all(config) {
        settings["permissions"]["ask"] = json!(ASK);
    }
    if !config.tools.is_empty() {
        let is_denied = |tool: &&str| !config.tools.iter().any(|given| given == tool);
        settings["tools"]["core"] = json!(config.tools);
        settings["permissions"]["deny"] = EXTRA_TOOLS.into_iter().filter(is_denied).collect();
    }
    if !config.mcp_servers.is_empty() {
        // The model would have to search for their tools.
        settings["tools"]["toolSearch"]["enabled"] = json!(false);
    }
    if request.has_login_copy() {
        settings["security"]["auth"]["selectedType"] = json!("qwen-oauth");
    }
    if let Some(model) = request.model {
        access(spec, request, model, &mut settings)?;
    }
    Ok(settings)
}

/// Adds the model, its address and its key.
fn access(spec: &AgentSpec, request: &ProvisionRequest<'_>, model: &ModelConfig, settings: &mut Value) -> Result<()> {
    let cannot =
        |why: &str| ProvisionError::unsupported(spec, format!("use model configuration {:?}: {why}", model.name));
    if model.api() != ModelApi::OpenaiChat {
        return Err(cannot("it speaks only with OpenAI's Chat Completions API"));
    }
    let name = request.model_name().ok_or_else(|| cannot("it names no model"))?;
    let mut entry = json!({ "id": name, "generationConfig": { "modalities": { "image": true } } });
    let mut auth = json!({ "selectedType": "openai" });
    if let Some(url) = &model.base_url {
        (entry["baseUrl"], auth["baseUrl"]) = (json!(url), json!(url));
    }
    if let Some(key) = &model.key {
        auth["apiKey"] = json!(key.expose());
    }
    if request.config.thinking.is_some() {
        // Qwen offers no levels for a model that it does not know.
        let efforts = ["low", "medium", "high", "xhigh"];
        let reasoning = json!({ "profile": "openai-effort", "efforts": efforts, "defaultEffort": "medium" });
        entry["capabilities"]["reasoning"] = reasoning;
    }
    settings["modelProviders"] = json!({ "openai": [entry] });
    settings["security"] = json!({ "auth": auth });
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ipc_protocol::{AgentSessionConfig, NativeResume, PermissionMode};

    use super::*;
    use crate::Catalog;

    fn run(
        config: &AgentSessionConfig,
        api: Option<&str>,
        home: Option<&Path>,
        resume: Option<&NativeResume>,
    ) -> Result<Provision, ProvisionError> {
        let model = api.map(|api| {
            let url = "http://127.0.0.1:9/v1";
            let model =
                json!({ "name": "m", "provider": "x", "api": api, "key": "sk-1", "model": "q", "base_url": url });
            serde_json::from_value::<ModelConfig>(model).expect("a model configuration")
        });
        let request = ProvisionRequest {
            config,
            model: model.as_ref(),
            home,
            shared_home: None,
            user_settings: None,
            shim_dir: Some(Path::new("/run-s")),
            resume,
            fresh_id: "",
            fresh_secret: &"".to_owned().into(),
        };
        super::super::provision(Catalog::default().get("qwen").expect("a row"), &request)
    }

    #[test]
    fn model_key_tools_and_rules_are_settings() {
        let config = AgentSessionConfig {
            tools: vec!["read_file".into(), "skill".into()],
            thinking: Some("low".into()),
            ephemeral: true,
            ..AgentSessionConfig::new("qwen")
        };
        let home = Some(Path::new("/home/own"));
        let provision = run(&config, Some("openai-chat"), home, None).expect("provided");
        assert_eq!(provision.argv, ["qwen", "--acp", "--chat-recording=false", "--model", "q"]);
        assert_eq!((provision.env.0["QWEN_HOME"].as_str(), provision.model), ("/home/own/.qwen", None));
        assert!(!provision.env.0.values().any(|value| value.contains("sk-1")));
        assert_eq!(provision.files.len(), 1);
        let settings: Value = serde_json::from_str(provision.files[0].contents.expose()).expect("JSON");
        insta::assert_snapshot!(format!("{settings:#}"));
    }

    #[test]
    fn what_it_cannot_use_is_refused() {
        let config = AgentSessionConfig { permission_mode: PermissionMode::Allow, ..AgentSessionConfig::new("qwen") };
        let home = Some(Path::new("/home/own"));
        run(&config, None, None, None).expect("as its user has set it up");
        assert!(matches!(run(&config, Some("openai-chat"), None, None), Err(ProvisionError::NeedsHome { .. })));
        assert!(matches!(run(&config, Some("gemini"), home, None), Err(ProvisionError::Unsupported { .. })));
        let tools = AgentSessionConfig { tools: vec!["read_file".into()], ..config.clone() };
        assert!(matches!(run(&tools, None, None, None), Err(ProvisionError::NeedsHome { .. })));
        let resume = NativeResume { id: Some("n-1".into()), fork: false };
        let ephemeral = AgentSessionConfig { ephemeral: true, ..config };
        assert!(matches!(run(&ephemeral, None, home, Some(&resume)), Err(ProvisionError::Unsupported { .. })));
    }

    #[test]
    fn it_is_made_to_ask_in_the_shared_home_too() {
        for mode in [PermissionMode::Ask, PermissionMode::Deny, PermissionMode::ReadOnly, PermissionMode::Allow] {
            let config = AgentSessionConfig { permission_mode: mode, ..AgentSessionConfig::new("qwen") };
            let provision = run(&config, None, None, None).expect("provided");
            assert!(provision.files.is_empty(), "the user's home is left alone: {mode:?}");
            let defaults = provision.env.0.get("QWEN_CODE_SYSTEM_DEFAULTS_PATH").map(String::as_str);
            if mode == PermissionMode::Allow {
                assert_eq!((provision.argv, defaults), (vec!["qwen".to_owned(), "--acp".to_owned()], None));
                continue;
            }
            assert_eq!(provision.argv, ["qwen", "--acp", "--approval-mode", "default"]);
            assert_eq!(defaults, Some("/run-s/qwen-ask.json"));
            let [file] = &provision.programs[..] else { panic!("{:?}", provision.programs) };
            let written: Value = serde_json::from_str(file.contents.expose()).expect("JSON");
            assert_eq!(
                (file.path.as_path(), &written["permissions"]["ask"]),
                (Path::new("qwen-ask.json"), &json!(ASK))
            );
        }
    }
}
