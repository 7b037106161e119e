//! What Claude Code is started with.

use std::path::Path;

use agents::{
    AgentSpec, Catalog, ModelApi, ModelConfig, Secret,
    provision::{Provision, ProvisionError, ProvisionRequest, provision},
};
use ipc_protocol::{AgentSessionConfig, NativeResume, PermissionMode, PermissionPolicy, PermissionRule, RuleDecision};

const KEY: &str = "sk-hunter2";
const FRESH: &str = "0d5c2a34-0000-4000-8000-000000000000";
const HOME: &str = "/state/it's a home";

fn row(id: &str) -> AgentSpec {
    Catalog::default().rows().iter().find(|row| row.id == id).expect("a built-in row").clone()
}

fn model() -> ModelConfig {
    ModelConfig {
        name: "proxy".into(),
        provider: "anthropic".into(),
        api: None,
        base_url: Some("http://127.0.0.1:8080/v1/".into()),
        model: Some("some-model".into()),
        key: Some(KEY.to_owned().into()),
    }
}

/// A session of `agent`, in a home of its own where it has a model configuration.
struct Asked<'a> {
    agent: &'a str,
    config: AgentSessionConfig,
    model: Option<ModelConfig>,
    resume: Option<NativeResume>,
    home: bool,
}

impl Asked<'_> {
    fn of(config: impl FnOnce(&mut AgentSessionConfig)) -> Self {
        let mut asked = Asked {
            agent: "claude-code",
            config: AgentSessionConfig { cwd: Some("/srv/work".into()), ..AgentSessionConfig::new("claude-code") },
            model: None,
            resume: None,
            home: false,
        };
        config(&mut asked.config);
        asked
    }

    fn provision(&self) -> Result<Provision, ProvisionError> {
        let secret: Secret = "secret".to_owned().into();
        let request = ProvisionRequest {
            config: &self.config,
            model: self.model.as_ref(),
            home: self.home.then_some(Path::new(HOME)),
            shared_home: Some(Path::new("/home/u")),
            user_settings: None,
            shim_dir: None,
            resume: self.resume.as_ref(),
            fresh_id: FRESH,
            fresh_secret: &secret,
        };
        provision(&row(self.agent), &request)
    }

    /// The arguments beyond the row's own and the settings.
    fn arguments(&self) -> Vec<String> {
        let provision = self.provision().expect("supported");
        let row = row(self.agent).cmd.len();
        provision.argv[row..].iter().filter(|argument| !argument.starts_with("--settings=")).cloned().collect()
    }

    fn settings(&self) -> String {
        let provision = self.provision().expect("supported");
        let settings = provision.argv.iter().find_map(|argument| argument.strip_prefix("--settings="));
        settings.expect("settings").to_owned()
    }

    fn refused(&self) -> String {
        self.provision().expect_err("unsupported").to_string()
    }
}

#[test]
fn a_new_conversation_has_the_name_that_the_host_gives_it() {
    let asked = Asked::of(|_| ());
    assert_eq!(asked.arguments(), [format!("--session-id={FRESH}")]);
    let provision = asked.provision().expect("supported");
    assert_eq!((provision.files.len(), provision.env.0.len()), (0, 0), "the user's own environment and home");
}

#[test]
fn what_the_session_asks_for_is_an_argument() {
    let asked = Asked::of(|config| {
        config.model = Some("--opus".into());
        config.mode = Some("plan".into());
        config.tools = vec!["Bash".into(), "Read".into()];
        config.ephemeral = true;
        config.command = vec!["--add-dir".into(), "/more".into()];
        config.system_prompt = Some("not for everybody to see".into());
    });
    let session = format!("--session-id={FRESH}");
    let expected = [
        "--model=--opus",
        "--permission-mode=plan",
        "--tools=Bash,Read",
        &session,
        "--no-session-persistence",
        "--add-dir",
        "/more",
    ];
    assert_eq!(asked.arguments(), expected);
    assert_eq!(asked.provision().expect("supported").model, None, "the protocol does not set it again");
    assert_eq!(Asked::of(|config| config.mode = Some("build".into())).arguments()[0], "--permission-mode=default");
}

#[test]
fn the_bound_on_model_replies_is_an_argument() {
    let asked = Asked::of(|config| config.max_turns = Some(300));
    assert_eq!(asked.arguments(), [format!("--session-id={FRESH}"), "--max-turns=300".to_owned()]);
    assert!(asked.provision().expect("supported").bounds_turns);
    assert!(!Asked::of(|_| ()).provision().expect("supported").bounds_turns);
}

#[test]
fn a_conversation_is_gone_on_with() {
    let resumed = |id: Option<&str>, fork| {
        let resume = Some(NativeResume { id: id.map(str::to_owned), fork });
        Asked { resume, ..Asked::of(|_| ()) }.arguments()
    };
    assert_eq!(resumed(Some("an-id"), false), ["--resume=an-id"]);
    let fresh = format!("--session-id={FRESH}");
    assert_eq!(resumed(Some("-p"), true), ["--resume=-p", "--fork-session", &fresh]);
    assert_eq!(resumed(None, false), ["--continue"]);
    assert_eq!(resumed(None, true), ["--continue", "--fork-session", &fresh]);
}

#[test]
fn it_is_made_to_ask() {
    let settings = |mode, rules: bool| {
        let rule =
            PermissionRule { tool: Some("Bash".into()), command: None, path: None, decision: RuleDecision::Allow };
        let rules = if rules { vec![rule] } else { Vec::new() };
        Asked::of(|config| {
            config.permission_mode = mode;
            config.permissions = PermissionPolicy { rules, ..PermissionPolicy::default() };
        })
        .settings()
    };
    let all = r#"{"permissions":{"ask":["*"]},"useAutoModeDuringPlan":false}"#;
    for (mode, rules) in [
        (PermissionMode::Deny, false),
        (PermissionMode::ReadOnly, false),
        (PermissionMode::Ask, true),
        (PermissionMode::Allow, true),
    ] {
        assert_eq!(settings(mode, rules), all);
    }
    assert_eq!(settings(PermissionMode::Allow, false), r#"{"useAutoModeDuringPlan":false}"#);
    insta::assert_snapshot!("settings", settings(PermissionMode::Ask, false));
}

#[test]
fn the_key_is_in_a_file_and_nowhere_else() {
    for agent in ["claude-code", "claude-agent-acp"] {
        let asked = Asked { agent, model: Some(model()), home: true, ..Asked::of(|_| ()) };
        let provision = asked.provision().expect("supported");
        assert!(!format!("{:?}", provision.argv).contains(KEY));
        assert!(!provision.env.0.values().any(|value| value.contains(KEY)));
        assert!(!format!("{provision:?}").contains(KEY), "Debug hides it");
        assert_eq!(provision.env.0["ANTHROPIC_BASE_URL"], "http://127.0.0.1:8080");
        assert_eq!(provision.env.0["CLAUDE_CONFIG_DIR"], format!("{HOME}/.claude"));
        let mut files = String::new();
        for file in &provision.files {
            files += &format!("{}: {}\n", file.path.display(), file.contents.expose());
        }
        insta::assert_snapshot!(format!("files-of-{agent}"), files);
    }
}

/// It puts `/v1` behind what it is given itself; other agents want it there.
#[test]
fn trap_the_base_url_is_without_v1() {
    for agent in ["claude-code", "claude-agent-acp"] {
        for url in ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"] {
            let model = ModelConfig { base_url: Some(url.to_owned()), ..model() };
            let asked = Asked { agent, model: Some(model), home: true, ..Asked::of(|_| ()) };
            assert_eq!(
                asked.provision().expect("supported").env.0["ANTHROPIC_BASE_URL"],
                "http://h:1",
                "{agent} {url}"
            );
        }
    }
}

#[test]
fn what_runs_it_gets_none_of_its_arguments() {
    let asked = Asked { agent: "claude-agent-acp", model: Some(model()), home: true, ..Asked::of(|_| ()) };
    let provision = asked.provision().expect("supported");
    assert_eq!(provision.argv, ["claude-agent-acp"]);
    assert_eq!((provision.env.0["ANTHROPIC_MODEL"].as_str(), provision.model), ("some-model", None));
}

/// It is made to ask by its protocol, so that its user's home is left alone.
#[test]
fn what_runs_it_takes_every_policy_in_any_home() {
    let rule = PermissionRule { tool: Some("Bash".into()), command: None, path: None, decision: RuleDecision::Deny };
    for (mode, rules) in [
        (PermissionMode::Ask, vec![]),
        (PermissionMode::Allow, vec![]),
        (PermissionMode::Deny, vec![]),
        (PermissionMode::ReadOnly, vec![]),
        (PermissionMode::Ask, vec![rule.clone()]),
        (PermissionMode::Allow, vec![rule]),
    ] {
        let config = |config: &mut AgentSessionConfig| {
            config.permission_mode = mode;
            config.permissions.rules.clone_from(&rules);
        };
        let shared = Asked { agent: "claude-agent-acp", ..Asked::of(config) }.provision().expect("supported");
        assert!(shared.files.is_empty() && shared.programs.is_empty(), "{mode:?}");
        Asked { agent: "claude-agent-acp", home: true, ..Asked::of(config) }.provision().expect("supported");
        Asked::of(config).provision().expect("the agent itself has an argument");
    }
}

#[test]
fn what_it_cannot_is_refused() {
    let tools = |tool: &str| Asked::of(|config| config.tools = vec![tool.to_owned()]).refused();
    assert!(tools("Bash(git *)").contains("patterns"), "a pattern would be left out without a word");
    assert!(tools("").contains("restrict its tools"));
    assert!(Asked::of(|config| config.mode = Some("yolo".into())).refused().contains("acceptEdits"));
    let shared = Asked { model: Some(model()), ..Asked::of(|_| ()) };
    assert!(matches!(shared.provision(), Err(ProvisionError::NeedsHome { .. })));
    let keyless = ModelConfig { key: None, ..model() };
    let keyless = Asked { model: Some(keyless), ..Asked::of(|_| ()) }.provision().expect("nothing to hide");
    assert_eq!(keyless.env.0["ANTHROPIC_BASE_URL"], "http://127.0.0.1:8080");
    let other = ModelConfig { api: Some(ModelApi::OpenaiChat), ..model() };
    let other = Asked { model: Some(other), home: true, ..Asked::of(|_| ()) };
    assert!(other.refused().contains("Messages"));
}

/// In a home of a session's own it would look for updates and send what it likes.
#[test]
fn trap_it_updates_itself_and_talks_to_others() {
    let own = Asked { home: true, ..Asked::of(|_| ()) }.provision().expect("supported");
    assert_eq!(own.env.0["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"], "1");
    assert_eq!(own.env.0["DISABLE_AUTOUPDATER"], "1");
}
