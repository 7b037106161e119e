use std::sync::Arc;

use agents::{ModelConfig, Profile, Profiles, ResourceLimits};
use ipc_protocol::{Budget, Limits, ResumeFrom, ResumeRequest, Timeouts, Usd};

use super::*;

fn kit() -> AgentDefaults {
    let base_env = [("PATH", "/bin"), ("LANG", "C"), ("HOME", "/root"), (SESSION_MARKER, "forged")];
    let base_env = base_env.into_iter().collect();
    AgentDefaults { base_env, cwd: "/home".to_owned(), max_depth: 3, ..AgentDefaults::default() }
}

fn plan_with(kit: &AgentDefaults, config: AgentSessionConfig) -> Result<SessionLaunch> {
    let homes = SessionHomes::persistent("/state/homes".into(), []);
    let around = LaunchContext {
        defaults: kit,
        homes: &homes,
        workspaces: None,
        locks: &Arc::default(),
        past_session: &|_| None,
    };
    SessionLaunch::plan(config, &around)
}

fn plan(config: AgentSessionConfig) -> Result<SessionLaunch> {
    plan_with(&kit(), config)
}

fn cat() -> AgentSessionConfig {
    AgentSessionConfig { command: vec!["cat".into()], ..AgentSessionConfig::new("command") }
}

#[test]
fn what_makes_a_session_useless_from_the_start_is_refused() {
    let budget = |budget| AgentSessionConfig { budget, ..AgentSessionConfig::new("claude-code") };
    let none = Some(0);
    for (config, refused) in [
        (AgentSessionConfig { max_prompts: Some(0), ..cat() }, "maxPrompts"),
        (budget(Budget { input_tokens: none, ..Budget::default() }), "budget.inputTokens"),
        (budget(Budget { output_tokens: none, ..Budget::default() }), "budget.outputTokens"),
        (budget(Budget { total_tokens: none, ..Budget::default() }), "budget.totalTokens"),
        (budget(Budget { cost_usd: Some(Usd::from_millionths(0)), ..Budget::default() }), "budget.costUsd"),
    ] {
        let Err(error) = plan(config) else { panic!("{refused} is accepted") };
        assert!(matches!(&error, Error::InvalidConfig { field, .. } if *field == refused), "{refused}: {error}");
        assert!(error.to_string().ends_with(": leave this out"), "{error}");
    }
}

#[test]
fn layers_of_the_environment() {
    let env = [("LANG", "de"), ("KEY", "v")].into_iter().collect();
    let launch = plan(AgentSessionConfig { env, ..cat() }).expect("valid");
    let id = launch.id().to_string();
    let expected: EnvVars = [
        ("PATH", "/bin"),
        ("HOME", "/root"),
        ("LANG", "de"),
        ("KEY", "v"),
        (DEPTH_MARKER, "1"),
        (SESSION_MARKER, &id),
        (MARKER, &launch.enclosure.marker),
    ]
    .into_iter()
    .collect();
    assert_eq!(launch.attempt.command.env, expected);
    assert_eq!(
        (launch.description.metadata.cwd.as_str(), launch.attempt.config.cwd.as_deref()),
        ("/home", Some("/home"))
    );
    assert!(!launch.needs_disk());
}

#[test]
fn a_home_of_its_own_is_all_that_the_agent_sees() {
    let config = AgentSessionConfig { home: Some(Home::Own), ..cat() };
    let id = config.session_id.clone();
    let launch = plan(config).expect("valid");
    let home = format!("/state/homes/s-{id}");
    let env = &launch.attempt.command.env.0;
    assert_eq!((env["HOME"].as_str(), env["XDG_CACHE_HOME"].clone()), (home.as_str(), format!("{home}/.cache")));
    assert_eq!(
        (launch.description.metadata.home.as_deref(), &launch.home_place),
        (Some(home.as_str()), &HomePlace::Own)
    );
    assert!(launch.needs_disk());
}

#[test]
fn what_makes_no_sense_is_refused_with_the_field() {
    let field = |config| match plan(config) {
        Err(Error::InvalidConfig { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(field(AgentSessionConfig::new("command")), "command");
    assert_eq!(field(AgentSessionConfig { command: vec!["a\0".into()], ..cat() }), "command");
    assert_eq!(field(AgentSessionConfig { cwd: Some("here".into()), ..cat() }), "cwd");
    assert_eq!(field(AgentSessionConfig { env: [("A=B", "c")].into_iter().collect(), ..cat() }), "env");
    assert!(matches!(plan(AgentSessionConfig::new("nobody")), Err(Error::UnknownAgent { .. })));
    let limits = Limits { processes: Some(0), ..Limits::default() };
    assert_eq!(field(AgentSessionConfig { limits, ..cat() }), "limits.processes");
    let limits = Limits { processes: Some(3), ..Limits::default() };
    assert!(plan(AgentSessionConfig { limits, ..cat() }).is_ok());
    let timeouts = Timeouts { silence_repeat_ms: Some(0), ..Timeouts::default() };
    assert_eq!(field(AgentSessionConfig { timeouts, ..cat() }), "timeouts.silenceRepeatMs");
    let profile = plan(AgentSessionConfig { profile: Some("p".into()), ..cat() });
    assert!(matches!(profile, Err(Error::UnknownProfile { profile, known }) if profile == "p" && known.is_empty()));
    let model = plan(AgentSessionConfig { model_config: Some("m".into()), ..cat() });
    assert!(matches!(model, Err(Error::UnknownModel { model, .. }) if model == "m"));
    let rule = ipc_protocol::PermissionRule {
        tool: Some("[".into()),
        command: None,
        path: None,
        decision: ipc_protocol::RuleDecision::Allow,
    };
    let permissions = ipc_protocol::PermissionPolicy { rules: vec![rule], ..Default::default() };
    assert_eq!(field(AgentSessionConfig { permissions, ..cat() }), "permissions");
}

/// What a row limits holds for its sessions, where they say nothing of their own.
#[test]
fn the_limits_of_a_row_are_those_of_its_sessions() {
    let mut kit = kit();
    let mut spec = AgentSpec::new("small", "command", &["cat"]);
    spec.resource_limits =
        ResourceLimits { memory_mb: Some(64), timeout_seconds: Some(5), ..ResourceLimits::default() };
    kit.catalog.add(spec);
    let limits = |config| plan_with(&kit, config).expect("valid").attempt.config.limits;
    let row = limits(AgentSessionConfig::new("small"));
    assert_eq!((row.memory_bytes, row.wall_clock_ms), (Some(64 << 20), Some(5000)));
    let own = Limits { memory_bytes: Some(1 << 30), ..Limits::default() };
    let own = limits(AgentSessionConfig { limits: own, ..AgentSessionConfig::new("small") });
    assert_eq!((own.memory_bytes, own.wall_clock_ms), (Some(1 << 30), Some(5000)));
}

#[test]
fn sessions_within_sessions_are_counted() {
    assert_eq!(plan(AgentSessionConfig { depth: 2, ..cat() }).expect("deep enough").description.metadata.depth, 3);
    for depth in [3, u32::MAX] {
        match plan(AgentSessionConfig { depth, ..cat() }) {
            Err(Error::TooDeep { depth: would_be, max }) => assert_eq!((would_be, max), (depth.saturating_add(1), 3)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_profile_and_a_model_configuration_are_filled_in() {
    let mut kit = kit();
    let mut spec = AgentSpec::new("fake", "acp", &["fake"]);
    spec.env = [("FAKE_KEY", "{key}"), ("FAKE_MODEL", "{model}")].into_iter().collect();
    kit.catalog.add(spec);
    let mut profiles = Profiles::default();
    profiles.add(Profile {
        name: "quick".into(),
        agent: "fake".into(),
        mode: Some("plan".into()),
        model_config: Some("mock".into()),
        ..Profile::default()
    });
    kit.profiles = profiles;
    let json = r#"{"name":"mock","provider":"openai","model":"small","key":"hunter2"}"#;
    let model: ModelConfig = serde_json::from_str(json).expect("parses");
    kit.models.insert(model.name.clone(), model);
    let launch = plan_with(&kit, AgentSessionConfig { profile: Some("quick".into()), ..AgentSessionConfig::new("") });
    let launch = launch.expect("valid");
    let SessionDescription { metadata, settings, .. } = &launch.description;
    assert_eq!((metadata.agent.as_str(), metadata.profile.as_deref()), ("fake", Some("quick")));
    assert_eq!((settings.model.as_deref(), settings.mode.as_deref()), (Some("small"), Some("plan")));
    assert_eq!(launch.attempt.command.env.0["FAKE_KEY"], "hunter2");
    assert_eq!(launch.home_place, HomePlace::Own, "where there may be a key");
    assert!(!format!("{launch:?} {kit:?}").contains("hunter2"));
}

#[test]
fn a_conversation_is_where_its_agent_keeps_it_and_not_where_home_is() {
    let (kit, homes, leases) = (kit(), SessionHomes::persistent("/state/homes".into(), []), Arc::default());
    let resume = |home: &str, codex_home: &str| {
        let from = ResumeFrom::Native { id: "n-1".into() };
        let config = AgentSessionConfig {
            env: [("HOME", home), ("CODEX_HOME", codex_home)].into_iter().collect(),
            resume: Some(ResumeRequest { from, fork: false, on_missing: OnMissing::Fail }),
            ..AgentSessionConfig::new("codex")
        };
        SessionLaunch::plan(
            config,
            &LaunchContext { defaults: &kit, homes: &homes, workspaces: None, locks: &leases, past_session: &|_| None },
        )
    };
    let _open = resume("/nowhere/h", "/nowhere/c").expect("free");
    let other = resume("/nowhere/h", "/nowhere/other");
    assert!(other.is_ok(), "{other:?}");
    let busy = resume("/nowhere/other", "/nowhere/c/");
    assert!(matches!(busy, Err(Error::NativeSessionBusy { .. })), "{busy:?}");
}

#[test]
fn a_broken_file_is_refused_or_a_new_conversation_takes_its_place() {
    const ID: &str = "0f1e2d3c-aaaa-7000-8000-000000000000";
    let scratch = tempfile::tempdir().expect("a directory");
    let directory = scratch.path().join("sessions/2026/01/02");
    std::fs::create_dir_all(&directory).expect("made");
    std::fs::write(directory.join(format!("rollout-1-{ID}.jsonl")), "{}\nwhat\nwhat\n").expect("written");
    let (kit, homes, leases) = (kit(), SessionHomes::persistent("/state/homes".into(), []), Arc::default());
    let whole = |on_missing| {
        let from = ResumeFrom::Native { id: ID.into() };
        let config = AgentSessionConfig {
            env: [("CODEX_HOME", &*scratch.path().to_string_lossy())].into_iter().collect(),
            resume: Some(ResumeRequest { from, fork: false, on_missing }),
            ..AgentSessionConfig::new("codex")
        };
        let launch = SessionLaunch::plan(
            config,
            &LaunchContext { defaults: &kit, homes: &homes, workspaces: None, locks: &leases, past_session: &|_| None },
        );
        let launch = launch.expect("planned");
        assert!(launch.needs_disk() && launch.attempt.command.resume.is_some());
        launch.check_conversation_file()
    };
    match whole(OnMissing::Fail) {
        Err(Error::NativeSessionMissing { id, reason, .. }) => {
            assert!(id == ID && reason.ends_with(".jsonl is broken at line 2"), "{id}: {reason}");
        }
        other => panic!("{other:?}"),
    }
    let anew = whole(OnMissing::StartAnew).expect("a new one");
    assert_eq!((anew.attempt.command.resume, anew.attempt.config.resume), (None, None));
    assert!(anew.fallback.is_none() && anew.attempt.restart_reason.is_some_and(|why| why.contains("broken at line 2")));
}
