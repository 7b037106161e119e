//! What a row alone says about a start.

use std::path::Path;

use agents::{
    AgentSpec, Catalog, FileFormat, ModelConfig, PROTOCOLS, PermissionSetting, Secret,
    provision::{Provision, ProvisionError, ProvisionRequest, provision},
};
use ipc_protocol::{
    AgentSessionConfig, EnvVars, McpServer, McpTransport, NativeResume, PermissionMode, PermissionRule, RuleDecision,
    terminal::TerminalConfig,
};

/// What a start of `spec` is made from.
struct Start {
    spec: AgentSpec,
    config: AgentSessionConfig,
    model: Option<ModelConfig>,
    resume: Option<NativeResume>,
}

impl Start {
    fn new(spec: AgentSpec) -> Self {
        let config = AgentSessionConfig { cwd: Some("/work dir".into()), ..AgentSessionConfig::new(spec.id.clone()) };
        Self { spec, config, model: None, resume: None }
    }

    /// The sample's row.
    fn sample() -> Self {
        let mut catalog = Catalog::default();
        catalog.load(include_str!("sample.json"), FileFormat::Json, &PROTOCOLS, "sample.json").expect("it loads");
        catalog.inherit(|name| (name == "GOOGLE_API_KEY").then(|| "callers-key".to_owned()));
        Self::new(catalog.get("gemini").expect("its row").clone())
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn provision(&self) -> Result<Provision, ProvisionError> {
        let secret = Secret::from("s".to_owned());
        let request = ProvisionRequest {
            config: &self.config,
            model: self.model.as_ref(),
            home: None,
            shared_home: Some(Path::new("/home/x")),
            user_settings: None,
            shim_dir: Some(Path::new("/folders/s-1")),
            resume: self.resume.as_ref(),
            fresh_id: "fresh",
            fresh_secret: &secret,
        };
        provision(&self.spec, &request)
    }

    #[track_caller]
    fn argv(&self) -> Vec<String> {
        self.provision().expect("it can be started").argv
    }
}

fn model() -> ModelConfig {
    ModelConfig {
        name: "m".into(),
        provider: "openai".into(),
        api: None,
        base_url: Some("http://127.0.0.1:1/v1".into()),
        model: Some("small".into()),
        key: Some("secret-key".to_owned().into()),
    }
}

/// Agents with an option for it get it; the replies of all others are counted.
#[test]
fn no_agent_refuses_a_bound_on_its_model_replies() {
    let rows = Catalog::default();
    let of = |spec: &AgentSpec, max_turns| {
        let start = Start::new(spec.clone()).with(|start| {
            start.config.max_turns = Some(max_turns);
            start.config.mode = (spec.family() == Some("opencode")).then(|| "build".to_owned());
            start.config.command = vec!["agent".into()];
            // Pi asks by an extension of ours, which needs a home.
            start.config.permission_mode = PermissionMode::Allow;
        });
        start.provision()
    };
    let bound = rows.rows().iter().filter(|spec| of(spec, 300).expect("it can be started").bounds_turns);
    let bound: Vec<&str> = bound.map(|spec| spec.id.as_str()).collect();
    assert_eq!(bound, ["claude-code", "opencode", "opencode-acp", "claude-agent-acp"]);
    let refused = rows.rows().iter().map(|spec| of(spec, 0).expect_err("no turn at all").to_string());
    assert!(refused.into_iter().all(|error| error.contains("max_turns of 1 or more")));
}

#[test]
fn the_sample_s_flags() {
    let start = Start::sample();
    let usual = ["gemini-cli", "--output-format=json", "--non-interactive", "--workspace", "/work dir", "--model"];
    assert_eq!(start.argv(), [&usual[..], &["gemini-2.0-flash"]].concat());
    let provision = start.provision().expect("it can be started");
    assert_eq!((provision.model, provision.cwd), (None, None), "the protocol is not to set the model again");
    assert_eq!(provision.env, [("GOOGLE_API_KEY", "callers-key")].into_iter().collect());

    let resume = |fork, id: Option<&str>| NativeResume { id: id.map(str::to_owned), fork };
    let start = Start::sample().with(|start| {
        start.config.model = Some("a b".into());
        start.config.command = vec!["--more".into()];
        start.resume = Some(resume(false, Some("id-1")));
    });
    assert_eq!(start.argv(), [&usual[..], &["a b", "--resume", "id-1", "--more"]].concat());
    assert_eq!(start.provision().expect("it can be started").resume, None);
    for (resume, part) in [(resume(true, Some("x")), "a copy"), (resume(false, None), "most recent")] {
        let error = Start::sample().with(|start| start.resume = Some(resume)).provision().expect_err("refused");
        assert!(matches!(&error, ProvisionError::Unsupported { operation, .. } if operation.contains(part)), "{error}");
    }
}

#[test]
fn what_a_row_says_its_agent_cannot_is_unsupported() {
    let server = McpServer {
        name: "m".into(),
        transport: McpTransport::Stdio { command: "m".into(), args: vec![], env: EnvVars::default() },
    };
    let with_server = |spec| Start::new(spec).with(|start| start.config.mcp_servers = vec![server.clone()]);
    let resumed =
        |spec| Start::new(spec).with(|start| start.resume = Some(NativeResume { id: Some("n-1".into()), fork: false }));
    let row = |change: fn(&mut AgentSpec)| {
        let mut spec = AgentSpec::new("x", "acp", &["x"]);
        change(&mut spec);
        spec
    };
    for (start, operation, field) in [
        (with_server(row(|row| row.discovery.supports_mcp = Some(false))), "use MCP servers", "discovery.supports_mcp"),
        (with_server(Start::sample().spec), "use MCP servers", "discovery.supports_mcp"),
        (
            resumed(row(|row| row.session_config.can_recover = Some(false))),
            "go on with a conversation",
            "session_config.can_recover",
        ),
        (
            resumed(row(|row| row.discovery.discovery_capabilities.supports_session_resume = Some(false))),
            "go on with a conversation",
            "supports_session_resume",
        ),
        (
            resumed(row(|row| row.session_config.native_session_resume = Some(false))),
            "go on with a conversation",
            "session_config.native_session_resume",
        ),
    ] {
        match start.provision() {
            Err(ProvisionError::Unsupported { agent, operation: refused }) => {
                assert_eq!(agent, start.spec.id);
                assert!(refused.starts_with(operation) && refused.contains(field), "{refused}");
            }
            other => panic!("{field}: {other:?}"),
        }
    }
    // Nothing is refused where nothing is said, or where it is said that it can.
    let says_all = row(|row| {
        (row.discovery.supports_mcp, row.session_config.can_recover) = (Some(true), Some(true));
        row.session_config.native_session_resume = Some(true);
        row.discovery.discovery_capabilities.supports_session_resume = Some(true);
    });
    for spec in [AgentSpec::new("x", "acp", &["x"]), says_all] {
        with_server(spec.clone()).provision().expect("it takes servers");
        assert!(resumed(spec).provision().expect("it goes on").resume.is_some(), "its protocol does it");
    }
}

#[test]
fn auto_approval_is_only_switched_on_where_everything_is_allowed() {
    let has = |mode, rules: Vec<PermissionRule>, default| {
        let start = Start::sample().with(|start| {
            start.config.permission_mode = mode;
            start.config.permissions.rules = rules;
            start.spec.permission_settings.get_mut("auto_approve").expect("it has it").on = default;
        });
        start.argv().contains(&"--auto-approve".to_owned())
    };
    let rule = || vec![PermissionRule { tool: None, command: None, path: None, decision: RuleDecision::Ask }];
    assert!(has(PermissionMode::Allow, vec![], false));
    assert!(has(PermissionMode::Ask, vec![], true), "the row says so");
    for (mode, rules, default) in [
        (PermissionMode::Ask, vec![], false),
        (PermissionMode::Allow, rule(), true),
        (PermissionMode::Ask, rule(), true),
        (PermissionMode::Deny, vec![], true),
        (PermissionMode::ReadOnly, vec![], true),
    ] {
        assert!(!has(mode, rules.clone(), default), "{mode:?} {rules:?} {default}");
    }
}

#[test]
fn flags_are_words_as_in_a_shell() {
    let spec = AgentSpec {
        model_flag: "-c 'model=\"{model}\"'".into(),
        workspace_flag: "--root={workspace}".into(),
        ..AgentSpec::new("x", "acp", &["x"])
    };
    let mut start = Start::new(spec).with(|start| start.config.model = Some("big; rm".into()));
    assert_eq!(start.argv(), ["x", "--root=/work dir", "-c", "model=\"big; rm\""]);
    start.spec.permission_config.permission_flag = "--ask {tool}:user".into();
    start.spec.permission_config.tools_requiring_permission = vec!["sh".into(), "edit".into()];
    let argv = start.argv();
    assert_eq!(argv[2..6], ["--ask", "sh:user", "--ask", "edit:user"]);
    start.config.permission_mode = PermissionMode::Allow;
    assert!(!start.argv().contains(&"--ask".to_owned()));
    let plain =
        PermissionSetting { supported: false, on: true, cli_flag: "--no".into(), ..PermissionSetting::default() };
    start.spec.permission_settings.insert("x".into(), plain);
    assert!(!start.argv().contains(&"--no".to_owned()), "it is not supported");
}

#[test]
fn a_program_of_the_session_s_comes_before_the_flags() {
    let spec = AgentSpec { model_flag: "-m {model}".into(), ..AgentSpec::new("any", "acp", &[]) };
    let start = Start::new(spec).with(|start| {
        start.config.command = vec!["mine".into(), "--acp".into()];
        start.config.model = Some("big".into());
    });
    assert_eq!(start.argv(), ["mine", "--acp", "-m", "big"]);
    let none = Start::new(AgentSpec::new("any", "acp", &[])).provision();
    assert_eq!(none, Err(ProvisionError::NoCommand { agent: "any".into() }));
}

#[test]
fn a_conversation_and_a_model_are_left_to_the_protocol_where_no_flag_has_them() {
    let resume = NativeResume { id: None, fork: true };
    let mut start = Start::new(AgentSpec::new("x", "acp", &["x"]));
    (start.config.model, start.resume) = (Some("big".into()), Some(resume.clone()));
    let provision = start.provision().expect("it can be started");
    assert_eq!(
        (provision.argv, provision.model, provision.resume),
        (vec!["x".into()], Some("big".into()), Some(resume))
    );
    start.spec.session_config.resume_flag = "--resume".into();
    start.spec.session_config.native_session_resume = Some(true);
    assert!(start.provision().expect("it can be started").resume.is_some(), "the protocol does it");
}

#[test]
fn the_environment_is_what_the_row_lists() {
    let spec = AgentSpec {
        env: [("A", "b"), ("HERE", "${THERE}"), ("GONE", "${MISSING}"), ("K", "Bearer {key}"), ("U", "{base_url}")]
            .into_iter()
            .collect(),
        required_env: vec!["OTHER_KEY".into()],
        inherited: [("THERE", "t"), ("OTHER_KEY", "o"), ("NOT_LISTED", "n")].into_iter().collect(),
        ..AgentSpec::new("x", "acp", &["x"])
    };
    let mut start = Start::new(spec);
    let env = start.provision().expect("it can be started").env;
    assert_eq!(env, [("A", "b"), ("HERE", "t"), ("OTHER_KEY", "o")].into_iter().collect());
    start.model = Some(model());
    let provision = start.provision().expect("it can be started");
    let expected = [("A", "b"), ("HERE", "t"), ("K", "Bearer secret-key"), ("U", "http://127.0.0.1:1/v1")];
    assert_eq!(provision.env, expected.into_iter().collect(), "the model configuration stands in for the caller's key");
    assert_eq!(provision.model.as_deref(), Some("small"));
    assert!(!format!("{provision:?}").contains("secret-key"));
}

#[test]
fn a_model_configuration_needs_a_place_in_the_row() {
    let start = Start::new(AgentSpec::new("x", "acp", &["x"])).with(|start| start.model = Some(model()));
    let error = start.provision().expect_err("refused");
    assert!(error.to_string().contains("{key} in `env`"), "{error}");
    let only_a_name = ModelConfig { base_url: None, key: None, ..model() };
    let start = start.with(|start| start.model = Some(only_a_name));
    assert_eq!(start.provision().expect("the model's name is enough").model.as_deref(), Some("small"));
}

#[test]
fn where_it_starts() {
    let cwd = |dir: &str| {
        let spec = AgentSpec { working_dir: dir.into(), ..AgentSpec::new("x", "acp", &["x"]) };
        Start::new(spec).provision().expect("it can be started").cwd
    };
    assert_eq!(cwd("{workspace}"), None);
    assert_eq!(cwd("{workspace}/sub").as_deref(), Some("/work dir/sub"));
    assert_eq!(cwd("{home}/x").as_deref(), Some("/home/x/x"));
    assert_eq!(cwd("/srv").as_deref(), Some("/srv"));
}

#[test]
fn a_running_server_is_connected_to_and_not_started() {
    let server = || AgentSpec {
        protocol_config: serde_json::json!({ "server": true }),
        ..AgentSpec::new("x", "opencode", &["x", "serve"])
    };
    let at = |spec: AgentSpec, url: &str| {
        Start::new(spec).with(|start| start.config.endpoint = Some(url.into())).provision()
    };
    let provision = at(server(), "http://me:pw@127.0.0.1:4096/").expect("it can be reached");
    let endpoint = provision.endpoint.expect("there");
    assert!(provision.argv.is_empty());
    assert_eq!(endpoint.url.as_deref(), Some("http://127.0.0.1:4096"));
    assert_eq!((endpoint.user.as_str(), endpoint.password.as_deref()), ("me", Some("pw")));
    let endpoint = at(server(), "http://localhost:1").expect("it can be reached").endpoint.expect("there");
    assert_eq!((endpoint.user.as_str(), endpoint.password), ("", None));
    for url in ["https://127.0.0.1:1", "127.0.0.1:1", "http://", "http://a/b", "http://user@"] {
        assert!(matches!(at(server(), url), Err(ProvisionError::Unsupported { .. })), "{url}");
    }
    assert!(at(AgentSpec::new("x", "acp", &["x"]), "http://127.0.0.1:1").is_err(), "it has no server");
}

/// Its mode `ask` holds whether or not anybody has named it. A terminal that a user has started has the user's own settings.
#[test]
fn a_visit_asks_as_its_session_does() {
    for (agent, mark) in [
        ("claude-code", "--permission-mode=default"),
        ("codex", "approval_policy=\"untrusted\""),
        ("gemini", "--admin-policy"),
        ("opencode", "\"permission\""),
        ("pi", "--extension"),
        ("qwen", "--approval-mode"),
    ] {
        let asks = |terminal: TerminalConfig, mode| {
            let start = Start::new(Catalog::default().get(agent).expect("its row").clone());
            let start = start.with(|start| {
                (start.config.terminal, start.config.permission_mode) = (Some(terminal), mode);
            });
            let Provision { argv, env, .. } = start.provision().expect("it can be started");
            argv.iter().any(|word| word == mark) || env.0.values().any(|value| value.contains(mark))
        };
        let visit = || TerminalConfig { visit: true, ..TerminalConfig::default() };
        assert!(asks(visit(), PermissionMode::Ask), "{agent}");
        assert!(!asks(TerminalConfig::default(), PermissionMode::Ask), "{agent}");
        if agent == "claude-code" {
            assert!(!asks(visit(), PermissionMode::Allow), "{agent}");
        }
    }
}
