//! What OpenCode is started with.

use std::path::Path;

use agents::{
    AgentSpec, Catalog, ModelApi, ModelConfig, Secret,
    provision::{Provision, ProvisionError, ProvisionRequest, provision},
};
use ipc_protocol::{AgentSessionConfig, McpServer, McpTransport, PermissionMode};
use serde_json::{Value, json};

const KEY: &str = "sk-dummy-secret";
const PASSWORD: &str = "fresh-secret";

fn spec(id: &str) -> AgentSpec {
    Catalog::default().rows().iter().find(|spec| spec.id == id).expect("a built-in row").clone()
}

fn model(provider: &str, api: Option<ModelApi>, base_url: Option<&str>) -> ModelConfig {
    ModelConfig {
        name: "fast".into(),
        provider: provider.into(),
        api,
        base_url: base_url.map(str::to_owned),
        model: Some("some-model".into()),
        key: Some(Secret::from(KEY.to_owned())),
    }
}

fn provisioned(
    id: &str,
    config: &AgentSessionConfig,
    model: Option<&ModelConfig>,
    home: Option<&str>,
) -> Result<Provision, ProvisionError> {
    let request = ProvisionRequest {
        config,
        model,
        home: home.map(Path::new),
        shared_home: Some(Path::new("/home/user")),
        user_settings: None,
        shim_dir: Some(Path::new("/folders/s-1")),
        resume: None,
        fresh_id: "0193a5a8-0000-7000-8000-000000000000",
        fresh_secret: &Secret::from(PASSWORD.to_owned()),
    };
    provision(&spec(id), &request)
}

fn open_config(provision: &Provision) -> Value {
    serde_json::from_str(&provision.env.0["OPENCODE_CONFIG_CONTENT"]).expect("JSON")
}

fn file(provision: &Provision, name: &str) -> String {
    let path = Path::new(".config/opencode").join(name);
    let file = provision.files.iter().find(|file| file.path == path);
    file.unwrap_or_else(|| panic!("no {name}: {:?}", provision.files)).contents.expose().to_owned()
}

fn programs(provision: &Provision) -> Vec<&str> {
    provision.programs.iter().filter_map(|program| program.path.to_str()).collect()
}

fn config() -> AgentSessionConfig {
    AgentSessionConfig { cwd: Some("/work".into()), ..AgentSessionConfig::new("opencode") }
}

#[test]
fn everything_of_a_home_of_its_own_is_as_reviewed() {
    let config = AgentSessionConfig { thinking: Some("high".into()), ..config() };
    let model = model("mock", None, Some("http://127.0.0.1:1/v1"));
    let provision = provisioned("opencode", &config, Some(&model), Some("/homes/s-1")).expect("provisioned");
    let mut text = format!("argv: {:?}\nmodel: {:?}\n", provision.argv, provision.model);
    for (name, value) in &provision.env.0 {
        text += &match serde_json::from_str::<Value>(value) {
            Ok(json @ Value::Object(_)) => format!("{name} = {json:#}\n"),
            _ => format!("{name} = {value}\n"),
        };
    }
    for file in &provision.files {
        text += &format!("--- {}\n{}\n", file.path.display(), file.contents.expose());
    }
    for program in &provision.programs {
        text += &format!("--- program {}\n{}\n", program.path.display(), program.contents.expose());
    }
    insta::assert_snapshot!("own-home", text);
}

#[test]
fn the_key_is_in_a_file_and_nowhere_else() {
    let provision =
        provisioned("opencode", &config(), Some(&model("openai", None, None)), Some("/h")).expect("provisioned");
    assert!(file(&provision, "opencode.json").contains(KEY));
    assert!(!format!("{:?} {:?}", provision.argv, provision.env.0).contains(KEY));
    assert!(!format!("{provision:?}").contains(KEY) && !format!("{provision:?}").contains(PASSWORD));
    assert_eq!(provision.env.0["OPENCODE_SERVER_PASSWORD"], PASSWORD);
    let endpoint = provision.endpoint.expect("an endpoint");
    assert_eq!(
        (endpoint.url, endpoint.user.as_str(), endpoint.password.as_deref()),
        (None, "opencode", Some(PASSWORD))
    );
}

/// It has to be in the environment of the server; who has it can allow itself anything.
#[test]
fn no_tool_has_the_servers_password() {
    for home in [None, Some("/h")] {
        let provision = provisioned("opencode", &config(), None, home).expect("provisioned");
        assert_eq!(open_config(&provision)["shell"], "/folders/s-1/bash");
        let script = provision.programs[0].contents.expose();
        assert!(script.starts_with("#!/bin/sh\nunset OPENCODE_SERVER_PASSWORD\n"), "{script}");
    }
    let running = AgentSessionConfig { endpoint: Some("http://127.0.0.1:4096".into()), ..config() };
    assert!(provisioned("opencode", &running, None, None).expect("provisioned").programs.is_empty());
}

#[test]
fn modes_of_the_agent_bound_its_model_replies() {
    for (mode, home, bounds) in
        [(Some("build"), None, true), (None, Some("/h"), true), (None, None, false), (Some("mine"), Some("/h"), false)]
    {
        let config = AgentSessionConfig { max_turns: Some(300), mode: mode.map(str::to_owned), ..config() };
        let provision = provisioned("opencode", &config, None, home).expect("provisioned");
        assert_eq!(provision.bounds_turns, bounds, "{mode:?} in {home:?}");
        let open = open_config(&provision);
        assert_eq!((&open["agent"]["build"]["steps"], &open["agent"]["plan"]["steps"]), (&json!(300), &json!(300)));
        assert_eq!(open["agent"].get("mine"), None, "no mode is made");
    }
    let running = AgentSessionConfig { endpoint: Some("http://127.0.0.1:4096".into()), max_turns: Some(3), ..config() };
    assert!(!provisioned("opencode", &running, None, None).expect("provisioned").bounds_turns);
    let unbounded = provisioned("opencode", &config(), None, Some("/h")).expect("provisioned");
    assert_eq!((open_config(&unbounded)["agent"].get("build"), unbounded.bounds_turns), (None, false));
}

#[test]
fn a_model_configuration_is_the_only_provider() {
    for (provider, api, id, npm) in [
        ("anthropic", None, "anthropic", "@ai-sdk/anthropic"),
        ("openai", None, "openai", "@ai-sdk/openai"),
        ("gemini", None, "google", "@ai-sdk/google"),
        ("elsewhere", None, "elsewhere", "@ai-sdk/openai-compatible"),
        ("elsewhere", Some(ModelApi::AnthropicMessages), "elsewhere", "@ai-sdk/anthropic"),
    ] {
        let model = model(provider, api, None);
        let provision = provisioned("opencode", &config(), Some(&model), Some("/h")).expect("provisioned");
        let name = format!("{id}/some-model");
        assert_eq!(provision.model.as_deref(), Some(name.as_str()));
        let open = open_config(&provision);
        assert_eq!(
            (&open["model"], &open["small_model"], &open["enabled_providers"]),
            (&json!(name), &json!(name), &json!([id]))
        );
        let written: Value = serde_json::from_str(&file(&provision, "opencode.json")).expect("JSON");
        assert_eq!(written["provider"][id]["npm"], npm);
        // What is known of a known model is not said otherwise.
        assert_eq!(written["provider"][id]["models"], json!({ "some-model": {} }));
        let named = AgentSessionConfig { model: Some(format!("{id}/other")), ..config() };
        let provision = provisioned("opencode", &named, Some(&model), Some("/h")).expect("provisioned");
        assert_eq!(provision.model, Some(format!("{id}/other")), "the session's wins, with its provider or without");
    }
}

#[test]
fn keys_need_a_home() {
    let model = model("openai", None, None);
    let needs = provisioned("opencode", &config(), Some(&model), None);
    assert!(matches!(needs, Err(ProvisionError::NeedsHome { what: "a model configuration", .. })), "{needs:?}");
    let server = |env: &[(&str, &str)]| {
        let env = env.iter().copied().collect();
        let transport = McpTransport::Stdio { command: "tool".into(), args: vec!["x".into()], env };
        AgentSessionConfig { mcp_servers: vec![McpServer { name: "m".into(), transport }], ..config() }
    };
    let needs = provisioned("opencode", &server(&[("K", "v")]), None, None);
    assert!(matches!(needs, Err(ProvisionError::NeedsHome { what: "the keys of MCP servers", .. })), "{needs:?}");
    let provision = provisioned("opencode", &server(&[]), None, None).expect("no secret in it");
    let local = json!({ "type": "local", "command": ["tool", "x"], "environment": {}, "enabled": true });
    assert_eq!(open_config(&provision)["mcp"], json!({ "m": local }));
    let provision = provisioned("opencode", &server(&[("K", "v")]), None, Some("/h")).expect("provisioned");
    assert_eq!(open_config(&provision)["mcp"], Value::Null);
    assert!(file(&provision, "opencode.json").contains("\"K\":\"v\""));
    let transport = McpTransport::Http { url: "http://x".into(), headers: [("A", "b")].into_iter().collect() };
    let remote = AgentSessionConfig { mcp_servers: vec![McpServer { name: "r".into(), transport }], ..config() };
    let provision = provisioned("opencode", &remote, None, Some("/h")).expect("provisioned");
    let written: Value = serde_json::from_str(&file(&provision, "opencode.json")).expect("JSON");
    let expected =
        json!({ "type": "remote", "url": "http://x", "headers": { "A": "b" }, "enabled": true, "oauth": false });
    assert_eq!(written["mcp"]["r"], expected);
}

/// The rules stand above those of the modes: what these forbid is forbidden again, whatever the session's own mode.
#[test]
fn it_asks_for_everything_and_its_modes_stay_what_they_are() {
    for permission_mode in [PermissionMode::Ask, PermissionMode::Allow, PermissionMode::Deny, PermissionMode::ReadOnly]
    {
        let config = AgentSessionConfig { permission_mode, ..config() };
        let open = open_config(&provisioned("opencode", &config, None, None).expect("provisioned"));
        let rules = open["permission"].as_object().expect("rules");
        let allowed: Vec<_> =
            rules.iter().filter(|(_, action)| *action != "ask").map(|(tool, _)| tool.as_str()).collect();
        assert_eq!((rules["*"].as_str(), allowed), (Some("ask"), vec!["question", "todowrite"]));
        // The last rule that matches decides, in the order in which they are written.
        assert_eq!(rules.keys().next().map(String::as_str), Some("*"));
        assert_eq!(open["agent"]["plan"]["permission"]["edit"]["*"], "deny");
        assert_eq!(open["agent"]["explore"]["permission"]["*"], "deny");
    }
}

#[test]
fn a_shared_home_stays_as_it_is() {
    let provision = provisioned("opencode", &config(), None, None).expect("provisioned");
    assert_eq!(provision.files, []);
    assert_eq!(programs(&provision), ["bash"], "nor does the user's home have the shell");
    let names: Vec<_> = provision.env.0.keys().map(String::as_str).collect();
    assert_eq!(names, ["OPENCODE_CONFIG_CONTENT", "OPENCODE_DISABLE_AUTOUPDATE", "OPENCODE_SERVER_PASSWORD"]);
    assert_eq!((open_config(&provision)["model"].clone(), provision.model), (Value::Null, None));
}

#[test]
fn an_ephemeral_conversation_is_kept_in_memory() {
    let config = AgentSessionConfig { ephemeral: true, ..config() };
    let provision = provisioned("opencode", &config, None, None).expect("provisioned");
    assert_eq!(provision.env.0["OPENCODE_DB"], ":memory:");
    assert_eq!(open_config(&provision)["snapshot"], false);
}

#[test]
fn a_server_that_runs_already_is_taken_as_it_is() {
    let config = AgentSessionConfig {
        endpoint: Some("http://127.0.0.1:4096".into()),
        model: Some("mock/m".into()),
        env: [("OPENCODE_SERVER_PASSWORD", "pw")].into_iter().collect(),
        ..config()
    };
    let provision = provisioned("opencode", &config, None, Some("/h")).expect("provisioned");
    let endpoint = provision.endpoint.expect("an endpoint");
    assert_eq!(
        (endpoint.url.as_deref(), endpoint.user.as_str(), endpoint.password.as_deref()),
        (Some("http://127.0.0.1:4096"), "opencode", Some("pw"))
    );
    assert_eq!((provision.files.len(), provision.argv.len(), provision.model.as_deref()), (0, 0, Some("mock/m")));
    let named = AgentSessionConfig { endpoint: Some("http://me:mine@127.0.0.1:1".into()), ..config.clone() };
    let endpoint = provisioned("opencode", &named, None, None).expect("provisioned").endpoint.expect("an endpoint");
    assert_eq!((endpoint.user.as_str(), endpoint.password.as_deref()), ("me", Some("mine")));

    let refused = |config: &AgentSessionConfig, model: Option<&ModelConfig>| match provisioned(
        "opencode",
        config,
        model,
        Some("/h"),
    ) {
        Err(ProvisionError::Unsupported { operation, .. }) => operation,
        other => panic!("{other:?}"),
    };
    assert!(refused(&config, Some(&model("openai", None, None))).contains("model configuration"));
    assert!(refused(&AgentSessionConfig { ephemeral: true, ..config.clone() }, None).contains("keep nothing"));
    let transport = McpTransport::Http { url: "http://x".into(), headers: Default::default() };
    let servers = vec![McpServer { name: "r".into(), transport }];
    assert!(refused(&AgentSessionConfig { mcp_servers: servers, ..config.clone() }, None).contains("MCP servers"));
}

/// Over ACP the protocol sets MCP servers, and there is no server to have a password.
#[test]
fn over_acp_the_model_is_in_the_configuration() {
    let model = model("mock", None, Some("http://127.0.0.1:1/v1"));
    let transport = McpTransport::Http { url: "http://x".into(), headers: Default::default() };
    let config = AgentSessionConfig { mcp_servers: vec![McpServer { name: "r".into(), transport }], ..config() };
    let provision = provisioned("opencode-acp", &config, Some(&model), Some("/h")).expect("provisioned");
    assert_eq!((provision.model.as_ref(), provision.endpoint.as_ref()), (None, None));
    let open = open_config(&provision);
    assert_eq!((&open["model"], &open["mcp"]), (&json!("mock/some-model"), &Value::Null));
    assert!(!provision.env.0.contains_key("OPENCODE_SERVER_PASSWORD"));
    assert!(programs(&provision).is_empty() && open["shell"].is_null());
    assert!(file(&provision, "opencode.json").contains(KEY));
}

/// Over ACP the rules of the configuration are all that restricts its tools.
#[test]
fn over_acp_other_tools_are_denied_in_every_mode() {
    let tools = vec!["read".into(), "write".into(), "todowrite".into(), "orchard_pick".into()];
    let config = AgentSessionConfig { tools, ..config() };
    let open = open_config(&provisioned("opencode-acp", &config, None, Some("/h")).expect("provisioned"));
    let left = json!({
        "*": "deny", "doom_loop": "ask", "edit": "ask", "external_directory": "ask", "orchard_pick": "ask", "read": "ask",
        "todowrite": "allow",
    });
    assert_eq!(open["permission"], left);
    let first = open["permission"].as_object().and_then(|rules| rules.keys().next());
    assert_eq!(first.map(String::as_str), Some("*"), "the last that matches decides");
    let plan = json!({ "edit": { "*": "deny", ".opencode/plans/*.md": "ask" } });
    assert_eq!(open["agent"]["plan"]["permission"], plan, "a task is no tool of it any more");
    let explore = json!({ "*": "deny", "external_directory": "ask", "read": "ask" });
    assert_eq!(open["agent"]["explore"]["permission"], explore);
    let mode = |mode: &str| {
        let config = AgentSessionConfig { mode: Some(mode.into()), ..config.clone() };
        provisioned("opencode-acp", &config, None, Some("/h"))
    };
    assert!(mode("plan").is_ok() && mode("build").is_ok());
    assert!(matches!(mode("mine"), Err(ProvisionError::Unsupported { .. })), "its rules stand above these");
    let server = open_config(&provisioned("opencode", &config, None, Some("/h")).expect("provisioned"));
    assert_eq!(server["permission"]["*"], "ask", "there the session's own rules say it");
}
