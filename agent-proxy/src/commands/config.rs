//! Configuration of a session from the command line.

use std::collections::BTreeSet;

use agents::Profile;
use api_types::ProblemDetails;
use ipc_protocol::{AgentSessionConfig, ConfigSetting};

use crate::{
    args::{AgentArgs, mcp},
    environment,
};

/// Variable with the nesting depth of sessions around a process.
const DEPTH: &str = "AGENT_PROXY_DEPTH";

/// Builds the configuration of a session of `agent` (`None` for the profile's) from `args`.
///
/// # Errors
/// `usage` for invalid values.
pub(super) fn session(agent: Option<&str>, args: AgentArgs) -> Result<AgentSessionConfig, ProblemDetails> {
    let agent = agent.unwrap_or_default();
    let (lifecycle, resume) = (args.lifecycle, args.resume);
    let has_key = lifecycle.has_key();
    let mut config = AgentSessionConfig {
        command: args.argv,
        cwd: Some(environment::cwd(args.cwd.as_deref())?),
        env: environment::parse(&args.env)?,
        not_secret: args.not_secret.into_iter().collect(),
        tools: args.surroundings.tools,
        mcp_servers: args.surroundings.mcp.as_deref().map(mcp::read).transpose()?.unwrap_or_default(),
        home: args.surroundings.home.map(Into::into),
        home_copy: args.surroundings.home_copy,
        agent_sandbox: args.surroundings.agent_sandbox.and_then(Into::into),
        endpoint: args.surroundings.endpoint,
        ephemeral: args.surroundings.ephemeral,
        verbatim: args.surroundings.no_verbatim.then_some(false),
        runtime_context: args.surroundings.runtime_context,
        max_turns: args.max_turns,
        lifecycle: lifecycle.lifecycle(resume.fallback()),
        resume: resume.resume(has_key)?,
        on_usage_limit: args.budget.on_usage_limit(),
        budget: args.budget.budget(),
        depth: depth(),
        ..AgentSessionConfig::new(agent)
    };
    let mut flags = Profile { agent: agent.to_owned(), ..Profile::default() };
    args.choice.apply_to(&mut flags)?;
    flags.apply(&mut config)?;
    // What a flag asks for is not left out without a sandbox, as a profile's paths are: a profile may give one, else the start fails.
    (config.sandbox.read, config.sandbox.write) = (flags.sandbox.read.clone(), flags.sandbox.write.clone());
    config.explicit = explicit(&flags);
    agents::permission::check(&config.permissions).map_err(|error| ProblemDetails::usage(error.to_string()))?;
    config.profile = args.profile;
    args.measures.apply(&mut config);
    Ok(config)
}

/// Collects the given flags that have a default: a profile would override a value that equals it.
fn explicit(flags: &Profile) -> BTreeSet<ConfigSetting> {
    let Profile { permissions, limits, timeouts, .. } = flags;
    let given = [
        (ConfigSetting::PermissionMode, permissions.mode.is_some()),
        (ConfigSetting::OnLimit, limits.on_limit.is_some()),
        (ConfigSetting::StartMs, timeouts.start_ms.is_some()),
        (ConfigSetting::FirstResponseMs, timeouts.first_response_ms.is_some()),
        (ConfigSetting::InactivityMs, timeouts.inactivity_ms.is_some()),
        (ConfigSetting::TurnMs, timeouts.turn_ms.is_some()),
        (ConfigSetting::ToolMs, timeouts.tool_ms.is_some()),
        (ConfigSetting::SilenceMs, timeouts.silence_ms.is_some()),
        (ConfigSetting::SilenceRepeatMs, timeouts.silence_repeat_ms.is_some()),
        (ConfigSetting::Action, timeouts.action.is_some()),
    ];
    given.into_iter().filter_map(|(setting, is_given)| is_given.then_some(setting)).collect()
}

/// Returns the number of sessions around this process.
pub(super) fn depth() -> u32 {
    parse_depth(std::env::var(DEPTH).ok().as_deref())
}

/// Parses the variable's value; 0 without one, and the greatest depth for an invalid one.
fn parse_depth(value: Option<&str>) -> u32 {
    value.map_or(0, |text| text.parse().unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use agents::{ProfileLimits, ProfilePermissions, ProfileTimeouts};
    use clap::Parser;
    use ipc_protocol::{LimitAction, OnMissing, PermissionMode, ResumeFrom, ResumeRequest, TimeoutAction, Timeouts};

    use super::*;
    use crate::args::{Cli, CliCommand};

    #[test]
    fn a_flag_wins_over_a_profile_also_where_it_is_the_default() {
        let timeout = "first=30s,inactivity=120s,turn=300s,tool=30m,silence=3s,repeat=5s,start=off,action=abort";
        let all = ["--permission", "ask", "--on-limit", "kill_session", "--timeout", timeout];
        let profile = Profile {
            name: "p".into(),
            agent: "acp".into(),
            permissions: ProfilePermissions { mode: Some(PermissionMode::Allow), ..ProfilePermissions::default() },
            limits: ProfileLimits { on_limit: Some(LimitAction::Warn), ..ProfileLimits::default() },
            timeouts: ProfileTimeouts {
                start_ms: Some(1),
                first_response_ms: Some(1),
                inactivity_ms: Some(1),
                turn_ms: Some(1),
                tool_ms: Some(1),
                silence_ms: Some(1),
                silence_repeat_ms: Some(1),
                action: Some(TimeoutAction::Warn),
            },
            ..Profile::default()
        };
        let with = |flags: &[&str]| {
            let line = [&["agent-proxy", "start", "--profile", "p"], flags].concat();
            let CliCommand::Start(args) = Cli::try_parse_from(line).expect("parses").command else {
                panic!("not start")
            };
            let mut config = session(None, args.start).expect("valid");
            profile.apply(&mut config).expect("no other agent");
            (config.permission_mode, config.limits.on_limit, config.timeouts)
        };
        let clocks = Timeouts { start_ms: Some(0), ..Timeouts::default() };
        assert_eq!(with(&all), (PermissionMode::default(), LimitAction::default(), clocks));
        let (mode, on_limit, clocks) = with(&["--timeout", "turn=300s"]);
        assert_eq!((mode, on_limit), (PermissionMode::Allow, LimitAction::Warn));
        assert_eq!((clocks.turn_ms, clocks.inactivity_ms), (Some(300_000), Some(1)));
    }

    /// Checks the effect of each flag on the configuration, with and without the flag.
    #[test]
    fn flags_come_to_what_they_say() {
        let dir = tempfile::tempdir().expect("a directory");
        let (history, mcp) = (dir.path().join("history"), dir.path().join("mcp.json"));
        std::fs::write(&history, "once upon a time").expect("written");
        std::fs::write(&mcp, r#"{"mcpServers":{"fruit":{"url":"http://127.0.0.1:1/"}}}"#).expect("written");
        let (history, mcp) = (history.to_str().expect("words"), mcp.to_str().expect("words"));
        let with = |flags: &[&str]| {
            let line = [&["agent-proxy", "start", "--agent", "acp"], flags].concat();
            let CliCommand::Start(args) = Cli::try_parse_from(line).expect("parses").command else {
                panic!("not start")
            };
            session(Some("acp"), args.start).expect("valid")
        };
        let resume = |flags: &[&str]| with(flags).resume.expect("it goes on");
        let native = || ResumeFrom::Native { id: "n".into() };
        let expected = |from, fork, on_missing| ResumeRequest { from, fork, on_missing };
        let most_recent = || ResumeFrom::MostRecent;
        let told = OnMissing::Inject { history: "once upon a time".into() };
        assert_eq!(resume(&["--resume", "n"]), expected(native(), false, OnMissing::Fail));
        assert_eq!(resume(&["--resume", "n", "--fork"]), expected(native(), true, OnMissing::Fail));
        assert_eq!(resume(&["--continue"]), expected(most_recent(), false, OnMissing::Fail));
        assert_eq!(resume(&["--continue", "--fork"]), expected(most_recent(), true, OnMissing::Fail));
        assert_eq!(
            resume(&["--continue", "--on-missing", "new"]),
            expected(most_recent(), false, OnMissing::StartAnew)
        );
        assert_eq!(resume(&["--resume", "n", "--history", history]), expected(native(), false, told));
        let of = ResumeFrom::Session { id: "before".parse().expect("an id") };
        assert_eq!(resume(&["--resume", "session:before"]), expected(of, false, OnMissing::Fail));

        let plain = with(&[]);
        assert_eq!((plain.resume, plain.system_prompt, plain.endpoint, plain.verbatim), (None, None, None, None));
        assert!(plain.tools.is_empty() && plain.mcp_servers.is_empty() && !plain.runtime_context && !plain.ephemeral);
        assert_eq!(with(&["--tool", "read", "--tool", "ls"]).tools, ["read", "ls"]);
        assert_eq!(with(&["--system-prompt", "be brief"]).system_prompt.as_deref(), Some("be brief"));
        assert_eq!(with(&["--endpoint", "http://127.0.0.1:2"]).endpoint.as_deref(), Some("http://127.0.0.1:2"));
        assert_eq!(with(&["--no-verbatim"]).verbatim, Some(false));
        let switched = |config: AgentSessionConfig| (config.runtime_context, config.ephemeral);
        assert_eq!(switched(with(&["--runtime-context"])), (true, false));
        assert_eq!(switched(with(&["--ephemeral"])), (false, true));
        let servers = with(&["--mcp", mcp]).mcp_servers;
        assert_eq!((servers.len(), servers[0].name.as_str()), (1, "fruit"));
        assert_eq!(with(&["--home", "own"]).home, Some(ipc_protocol::Home::Own));
        assert_eq!(with(&["--home", "shared"]).home, Some(ipc_protocol::Home::Shared));
        let parts = with(&["--home-copy", "login", "--home-copy", "~/.config/tool"]).home_copy;
        assert_eq!(parts, [ipc_protocol::HomePart::Login, ipc_protocol::HomePart::Path(".config/tool".into())]);
        assert_eq!(with(&["--agent-sandbox", "none"]).agent_sandbox, Some(ipc_protocol::AgentSandbox::None));
        assert_eq!(with(&["--agent-sandbox", "user"]).agent_sandbox, None);
    }

    #[test]
    fn how_deep_we_are() {
        assert_eq!((parse_depth(None), parse_depth(Some("3")), parse_depth(Some("x"))), (0, 3, u32::MAX));
    }
}
