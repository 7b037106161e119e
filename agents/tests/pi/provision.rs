//! What Pi is started with.

use std::path::Path;

use agents::{
    AgentSpec, ModelApi, ModelConfig, Secret,
    provision::{Provision, ProvisionError, ProvisionRequest, provision},
};
use ipc_protocol::{
    AgentSessionConfig, McpServer, McpTransport, NativeResume, PermissionMode, PermissionPolicy, PermissionRule,
    RuleDecision,
    terminal::{Surface, TerminalConfig},
};

const KEY: &str = "!sk-$dummy-secret";

fn model(provider: &str, base_url: Option<&str>, api: Option<ModelApi>) -> ModelConfig {
    ModelConfig {
        name: "fast".into(),
        provider: provider.into(),
        api,
        base_url: base_url.map(str::to_owned),
        model: Some("m-1".into()),
        key: Some(Secret::from(KEY.to_owned())),
    }
}

fn provisioned(
    config: &AgentSessionConfig,
    model: Option<&ModelConfig>,
    home: Option<&str>,
    resume: Option<&NativeResume>,
) -> Result<Provision, ProvisionError> {
    let mut spec = AgentSpec::new("pi", "pi", &["pi"]);
    spec.protocol_config = serde_json::from_value(serde_json::json!({ "config": "pi" })).expect("an object");
    let request = ProvisionRequest {
        config,
        model,
        home: home.map(Path::new),
        shared_home: Some(Path::new("/home/user")),
        user_settings: None,
        shim_dir: Some(Path::new("/run-s-1")),
        resume,
        fresh_id: "0193a5a8-0000-7000-8000-000000000000",
        fresh_secret: &Secret::from("fresh".to_owned()),
    };
    provision(&spec, &request)
}

fn allowed() -> AgentSessionConfig {
    AgentSessionConfig { permission_mode: PermissionMode::Allow, ..AgentSessionConfig::new("pi") }
}

fn files(provision: &Provision) -> String {
    let file =
        |file: &agents::provision::ProvisionFile| format!("{}:\n{}\n", file.path.display(), file.contents.expose());
    provision.files.iter().map(file).collect()
}

const HOME: Option<&str> = Some("/homes/s-1");

#[test]
fn mcp_servers_are_an_extension_s_in_the_session_s_folder() {
    let stdio = McpTransport::Stdio {
        command: "/bin/orchard".into(),
        args: vec!["a b".into()],
        env: [("KEY", "hunter2")].into_iter().collect(),
    };
    let headers = [("authorization", "Bearer hunter3")].into_iter().collect();
    let http = McpTransport::Http { url: "http://127.0.0.1:1/mcp".into(), headers };
    let server = |name: &str, transport| McpServer { name: name.into(), transport };
    let config = AgentSessionConfig { mcp_servers: vec![server("o", stdio), server("w", http)], ..allowed() };
    let spec = agents::Catalog::default().get("pi").expect("its row").clone();
    let secret = Secret::from("fresh".to_owned());
    let request = |shim_dir| ProvisionRequest {
        config: &config,
        model: None,
        home: None,
        shared_home: None,
        user_settings: None,
        shim_dir,
        resume: None,
        fresh_id: "id",
        fresh_secret: &secret,
    };
    let provided = provision(&spec, &request(Some(Path::new("/run-s")))).expect("provided");
    assert!(provided.argv.windows(2).any(|words| words == ["--extension", "/run-s/pi-mcp.js"]), "{:?}", provided.argv);
    let open = format!("{:?} {:?}", provided.argv, provided.env.0);
    assert!(!open.contains("hunter") && !format!("{provided:?}").contains("hunter"), "{open}");
    let list = provided.programs.iter().find(|file| file.path == Path::new("pi-mcp.json")).expect("the list");
    let list: serde_json::Value = serde_json::from_str(list.contents.expose()).expect("JSON");
    let expected = serde_json::json!([
        { "name": "o", "command": "/bin/orchard", "args": ["a b"], "env": { "KEY": "hunter2" } },
        { "name": "w", "url": "http://127.0.0.1:1/mcp", "headers": { "authorization": "Bearer hunter3" } },
    ]);
    assert_eq!(list, expected);
    assert!(agents::provision::needs_shim_dir(&spec, &config));
    let refused = provision(&spec, &request(None)).expect_err("it has no folder");
    assert!(matches!(refused, ProvisionError::Unsupported { .. }), "{refused}");
    let without = AgentSessionConfig { mcp_servers: Vec::new(), ..config.clone() };
    assert_eq!(provisioned(&without, None, None, None).expect("provided").programs, []);
}

#[test]
fn without_a_home_of_its_own_only_arguments_are_added() {
    let config = AgentSessionConfig {
        model: Some("anthropic/x".into()),
        thinking: Some("high".into()),
        tools: vec!["read".into(), "grep".into()],
        system_prompt: Some("Be brief.".into()),
        ephemeral: true,
        ..allowed()
    };
    let plain = provisioned(&config, None, None, None).expect("provisioned");
    let expected = [
        "pi",
        "--model",
        "anthropic/x",
        "--thinking",
        "high",
        "--tools",
        "read,grep",
        "--append-system-prompt",
        "Be brief.",
        "--no-session",
    ];
    assert_eq!(plain.argv, expected);
    assert_eq!((plain.files.len(), plain.env.0.get("PI_CODING_AGENT_DIR")), (0, None));
    assert_eq!(plain.env.0["PI_OFFLINE"], "1");
}

#[test]
fn a_home_of_its_own_has_what_is_written() {
    let config = AgentSessionConfig { system_prompt: Some("Be brief.".into()), ..AgentSessionConfig::new("pi") };
    let own = provisioned(&config, None, HOME, None).expect("provisioned");
    assert_eq!(own.env.0["PI_CODING_AGENT_DIR"], "/homes/s-1/.pi/agent");
    let expected =
        ["pi", "--append-system-prompt", "/homes/s-1/.pi/system-prompt.md", "--extension", "/run-s-1/permissions.js"];
    assert_eq!(own.argv, expected);
    let written: Vec<_> = own.files.iter().map(|file| file.path.display().to_string()).collect();
    assert_eq!(written, [".pi/system-prompt.md"]);
}

/// In the shared home too: with its user's own login it starts in every mode.
#[test]
fn whoever_may_be_asked_has_the_extension_in_the_sessions_folder() {
    let is_given = |config: &AgentSessionConfig, home| {
        let provision = provisioned(config, None, home, None).expect("provisioned");
        let flag = ["--extension".to_owned(), "/run-s-1/permissions.js".to_owned()];
        let named = provision.argv.windows(2).any(|words| words == flag);
        let written: Vec<_> = provision.programs.iter().map(|file| file.path.display().to_string()).collect();
        assert_eq!(written, if named { vec!["permissions.js"] } else { vec![] });
        assert!(home.is_some() || provision.files.is_empty(), "the user's home is left alone");
        named
    };
    let rule = PermissionRule { tool: None, command: Some("rm *".into()), path: None, decision: RuleDecision::Deny };
    let permissions = PermissionPolicy { rules: vec![rule], ..PermissionPolicy::default() };
    for home in [None, HOME] {
        for mode in [PermissionMode::Ask, PermissionMode::Deny, PermissionMode::ReadOnly] {
            assert!(is_given(&AgentSessionConfig { permission_mode: mode, ..allowed() }, home), "{mode:?}");
        }
        assert!(is_given(&AgentSessionConfig { permissions: permissions.clone(), ..allowed() }, home));
        assert!(!is_given(&allowed(), home));
    }
    let needs =
        provisioned(&allowed(), Some(&model("openai", None, None)), None, None).expect_err("a key is kept in a file");
    assert!(matches!(needs, ProvisionError::NeedsHome { .. }), "{needs:?}");
    assert!(needs.to_string().contains("--home own"), "{needs}");
}

#[test]
fn the_key_is_in_files_only_and_taken_as_it_stands() {
    for (name, model) in [
        ("anthropic", model("anthropic", None, None)),
        ("anthropic-elsewhere", model("anthropic", Some("https://proxy.example/v1"), None)),
        ("chat", model("acme", Some("http://127.0.0.1:8080/v1"), None)),
        ("responses", model("acme", Some("http://127.0.0.1:8080/v1"), Some(ModelApi::OpenaiResponses))),
        ("gemini", model("google", Some("http://127.0.0.1:8080/v1beta"), None)),
    ] {
        let config = AgentSessionConfig { thinking: (name == "chat").then(|| "high".into()), ..allowed() };
        let provisioned = provisioned(&config, Some(&model), HOME, None).expect("provisioned");
        assert!(!format!("{:?}", provisioned.argv).contains("dummy-secret"), "{name}: in an argument");
        assert!(
            !provisioned.env.0.values().any(|value| value.contains("dummy-secret")),
            "{name}: its tools would see it"
        );
        assert!(!format!("{provisioned:?}").contains("dummy-secret"), "{name}: Debug shows it");
        // A command and a variable otherwise.
        assert!(files(&provisioned).contains("$!sk-$$dummy-secret"), "{name}: {}", files(&provisioned));
        insta::assert_snapshot!(name, format!("{}\n{}", provisioned.argv.join(" "), files(&provisioned)));
    }
}

#[test]
fn models_that_pi_cannot_find_are_refused() {
    for model in [model("acme", None, None), model("openai", None, Some(ModelApi::OpenaiChat))] {
        let refused = provisioned(&allowed(), Some(&model), HOME, None);
        assert!(matches!(refused, Err(ProvisionError::Unsupported { .. })), "{refused:?}");
    }
    let nameless = ModelConfig { model: None, ..model("acme", Some("http://127.0.0.1:1/v1"), None) };
    let refused = provisioned(&allowed(), Some(&nameless), HOME, None);
    assert!(matches!(refused, Err(ProvisionError::Unsupported { .. })), "{refused:?}");
}

#[test]
fn a_conversation_is_gone_on_with_by_its_own_flag() {
    for (id, fork, expected) in [
        (Some("x"), false, vec!["pi", "--session", "x"]),
        (Some("x"), true, vec!["pi", "--fork", "x"]),
        (None, false, vec!["pi", "--continue"]),
        // The adapter copies it then.
        (None, true, vec!["pi", "--continue"]),
    ] {
        let resume = NativeResume { id: id.map(str::to_owned), fork };
        assert_eq!(provisioned(&allowed(), None, None, Some(&resume)).expect("provisioned").argv, expected);
        let ephemeral = AgentSessionConfig { ephemeral: true, ..allowed() };
        let refused = provisioned(&ephemeral, None, None, Some(&resume));
        assert!(matches!(refused, Err(ProvisionError::Unsupported { .. })), "{refused:?}");
    }
}

#[test]
fn its_own_screen_speaks_through_pipes_in_the_sessions_folder() {
    let mut spec = AgentSpec::new("pi", "pi", &["pi", "--mode", "rpc"]);
    spec.protocol_config = serde_json::from_value(serde_json::json!({ "config": "pi" })).expect("an object");
    spec.terminal_cmd = vec!["pi".to_owned()];
    let provisioned = |permission_mode| {
        let config = AgentSessionConfig {
            permission_mode,
            surface: Some(Surface::Both),
            terminal: Some(TerminalConfig::default()),
            ..AgentSessionConfig::new("pi")
        };
        let request = ProvisionRequest {
            config: &config,
            model: None,
            home: None,
            shared_home: None,
            user_settings: None,
            shim_dir: Some(Path::new("/run-s-1")),
            resume: None,
            fresh_id: "0193a5a8-0000-7000-8000-000000000000",
            fresh_secret: &Secret::from("fresh".to_owned()),
        };
        provision(&spec, &request).expect("provisioned")
    };
    let asking = provisioned(PermissionMode::Ask);
    assert_eq!(asking.argv, ["pi", "--extension", "/run-s-1/screen.js"]);
    let pipes = (asking.reports.as_deref(), asking.commands.as_deref());
    assert_eq!(pipes, (Some("/run-s-1/screen-reports"), Some("/run-s-1/screen-commands")));
    assert_eq!(asking.env.0.get("AGENT_PROXY_PI_ASKS").map(String::as_str), Some("1"));
    assert!(!provisioned(PermissionMode::Allow).env.0.contains_key("AGENT_PROXY_PI_ASKS"));
}
