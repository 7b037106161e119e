//! What Codex is started with.

use std::path::Path;

use agents::{
    AgentSpec, ModelApi, ModelConfig, Secret,
    provision::{Provision, ProvisionError, ProvisionRequest, provision},
};
use ipc_protocol::{AgentSandbox, AgentSessionConfig, PermissionMode, terminal::Surface};

const KEY: &str = "sk-dummy-secret";

fn spec(protocol: &str) -> AgentSpec {
    let mut spec = AgentSpec::new("codex", protocol, &["codex", "app-server"]);
    spec.protocol_config = serde_json::from_value(serde_json::json!({ "config": "codex" })).expect("an object");
    spec
}

fn model(provider: &str, base_url: Option<&str>, api: Option<ModelApi>) -> ModelConfig {
    ModelConfig {
        name: "fast".into(),
        provider: provider.into(),
        api,
        base_url: base_url.map(str::to_owned),
        model: Some("gpt-5.5".into()),
        key: Some(Secret::from(KEY.to_owned())),
    }
}

fn provisioned(
    protocol: &str,
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
        shim_dir: Some(Path::new("/folder")),
        resume: None,
        fresh_id: "0193a5a8-0000-7000-8000-000000000000",
        fresh_secret: &Secret::from("fresh".to_owned()),
    };
    provision(&spec(protocol), &request)
}

fn files(provision: &Provision) -> String {
    let file =
        |file: &agents::provision::ProvisionFile| format!("{}:\n{}\n", file.path.display(), file.contents.expose());
    provision.files.iter().map(file).collect()
}

#[test]
fn without_a_home_of_its_own_nothing_is_changed() {
    let plain = provisioned("codex", &AgentSessionConfig::new("codex"), None, None).expect("provisioned");
    assert_eq!(plain.argv, ["codex", "app-server"]);
    assert_eq!((plain.env.0.len(), plain.files.len()), (0, 0));
    let needs = provisioned("codex", &AgentSessionConfig::new("codex"), Some(&model("openai", None, None)), None);
    assert!(matches!(needs, Err(ProvisionError::NeedsHome { .. })), "{needs:?}");
}

#[test]
fn a_home_of_its_own_is_told_by_the_environment() {
    let own = provisioned("codex", &AgentSessionConfig::new("codex"), None, Some("/homes/s-1")).expect("provisioned");
    assert_eq!(own.env.0["CODEX_HOME"], "/homes/s-1/.codex");
    insta::assert_snapshot!("own-home", files(&own));
}

#[test]
fn the_key_is_in_files_only() {
    let config = AgentSessionConfig::new("codex");
    let compatible = Some(ModelApi::OpenaiResponses);
    for (name, model) in [
        ("openai", model("openai", None, None)),
        ("openai-elsewhere", model("openai", Some("https://proxy.example/v1"), None)),
        ("compatible", model("acme \"quoted\"", Some("http://127.0.0.1:8080/v1"), compatible)),
    ] {
        let provisioned = provisioned("codex", &config, Some(&model), Some("/homes/s-1")).expect("provisioned");
        assert!(!format!("{:?}", provisioned.argv).contains(KEY), "{name}: in an argument");
        assert!(!provisioned.env.0.values().any(|value| value.contains(KEY)), "{name}: its tools would see it");
        assert!(!format!("{provisioned:?}").contains(KEY), "{name}: Debug shows it");
        assert!(files(&provisioned).contains(KEY), "{name}: nowhere");
        insta::assert_snapshot!(name, files(&provisioned));
    }
}

#[test]
fn models_that_codex_cannot_speak_with_are_refused() {
    let config = AgentSessionConfig::new("codex");
    for model in [
        model("anthropic", None, None),
        model("acme", Some("https://acme.example/v1"), None),
        model("acme", None, Some(ModelApi::OpenaiResponses)),
    ] {
        let refused = provisioned("codex", &config, Some(&model), Some("/homes/s-1"));
        assert!(matches!(refused, Err(ProvisionError::Unsupported { .. })), "{refused:?}");
    }
}

#[test]
fn over_acp_the_policy_is_in_the_arguments() {
    let config = AgentSessionConfig { model: Some("m\"x".into()), ..AgentSessionConfig::new("codex-acp") };
    let asked = provisioned("acp", &config, None, None).expect("provisioned");
    let expected = [
        "codex",
        "app-server",
        "-c",
        r#"model='m"x'"#,
        "-c",
        r#"approval_policy="untrusted""#,
        "-c",
        r#"sandbox_mode="workspace-write""#,
    ];
    assert_eq!(asked.argv, expected);
    let config = AgentSessionConfig { permission_mode: PermissionMode::Allow, ..AgentSessionConfig::new("codex-acp") };
    let allowed = provisioned("acp", &config, None, None).expect("provisioned");
    assert!(allowed.argv.contains(&r#"approval_policy="on-request""#.to_owned()), "{:?}", allowed.argv);
    let full = AgentSessionConfig { agent_sandbox: Some(AgentSandbox::None), ..config.clone() };
    let full = provisioned("acp", &full, None, None).expect("provisioned").argv;
    for said in [r#"approval_policy="never""#, r#"sandbox_mode="danger-full-access""#] {
        assert!(full.contains(&said.to_owned()), "{full:?}");
    }
    for (level, effort) in [("high", "high"), ("off", "none")] {
        let config = AgentSessionConfig { thinking: Some(level.into()), ..config.clone() };
        let argv = provisioned("acp", &config, None, None).expect("provisioned").argv;
        assert!(argv.contains(&format!("model_reasoning_effort={effort:?}")), "{argv:?}");
    }
    // A mode of Codex's is such a policy.
    let config = AgentSessionConfig { mode: Some("read-only".into()), ..AgentSessionConfig::new("codex-acp") };
    assert_eq!(provisioned("acp", &config, None, None).expect("provisioned").argv, ["codex", "app-server"]);
}

/// Its successor reads no argument, and none of its modes asks for all: it is told by variables, and a program of ours has Codex ask.
#[test]
fn the_newer_wrapper_is_told_by_variables() {
    let with = |mode, sandbox| {
        let config = AgentSessionConfig {
            permission_mode: mode,
            agent_sandbox: sandbox,
            thinking: Some("off".into()),
            ..AgentSessionConfig::new("codex-acp")
        };
        provisioned("acp", &config, None, None).expect("provisioned")
    };
    for (mode, sandbox, initial, asks) in [
        (PermissionMode::Ask, None, "workspace-write", true),
        (PermissionMode::Allow, None, "workspace-write", false),
        (PermissionMode::Allow, Some(AgentSandbox::None), "agent-full-access", false),
        (PermissionMode::Deny, None, "read-only", true),
        (PermissionMode::ReadOnly, Some(AgentSandbox::None), "agent-full-access", true),
    ] {
        let Provision { env, programs, .. } = with(mode, sandbox);
        assert_eq!(env.0["INITIAL_AGENT_MODE"], initial, "{mode:?}");
        assert_eq!(env.0["CODEX_CONFIG"], r#"{"model_reasoning_effort":"none"}"#);
        assert_eq!(env.0.get("CODEX_PATH").map(String::as_str), asks.then_some("/folder/codex-asking"), "{mode:?}");
        let names: Vec<_> = programs.iter().map(|program| program.path.display().to_string()).collect();
        assert_eq!(names, if asks { vec!["codex-asking", "codex-asking.cjs"] } else { vec![] }, "{mode:?}");
    }
}

/// A provider that speaks with others by WebSocket is tried so first, and a server that cannot is waited for.
#[test]
fn trap_websockets_are_tried_first() {
    let model = model("mine", Some("http://127.0.0.1:9/v1"), Some(ModelApi::OpenaiResponses));
    let own = provisioned("codex", &AgentSessionConfig::new("codex"), Some(&model), Some("/homes/s-1"));
    let own = files(&own.expect("provisioned"));
    assert!(own.contains("supports_websockets = false"), "{own}");
}

#[test]
fn with_its_screen_it_listens_on_a_socket_of_the_sessions_own() {
    let mut spec = spec("codex");
    spec.companion_cmd = ["codex", "--remote", "{endpoint}", "resume", "{id}"].map(str::to_owned).to_vec();
    let provisioned = |config: &AgentSessionConfig, folder: &str| {
        let request = ProvisionRequest {
            config,
            model: None,
            home: None,
            shared_home: None,
            user_settings: None,
            shim_dir: Some(Path::new(folder)),
            resume: None,
            fresh_id: "0193a5a8-0000-7000-8000-000000000000",
            fresh_secret: &Secret::from("fresh".to_owned()),
        };
        provision(&spec, &request)
    };
    let both = AgentSessionConfig { surface: Some(Surface::Both), ..AgentSessionConfig::new("codex") };
    let Provision { argv, socket, companion, .. } = provisioned(&both, "/folder").expect("provisioned");
    assert_eq!(argv, ["codex", "app-server", "--listen", "unix:///folder/codex.sock"]);
    assert_eq!(socket.as_deref(), Some("/folder/codex.sock"));
    assert_eq!(companion, ["codex", "--remote", "unix:///folder/codex.sock", "resume", "{id}"]);
    let refused = provisioned(&both, &format!("/{}", "x".repeat(100))).expect_err("too long");
    assert!(refused.to_string().contains("107 bytes"), "{refused}");
    let unkept = AgentSessionConfig { ephemeral: true, ..both };
    assert!(provisioned(&unkept, "/folder").is_err());
    let machine = provisioned(&AgentSessionConfig::new("codex"), "/folder").expect("provisioned");
    assert!(machine.socket.is_none() && machine.companion.is_empty() && machine.argv == ["codex", "app-server"]);
}
