//! The sandbox that an agent puts around its own tools.
//!
//! Ours holds processes; which files a tool writes and which hosts it reaches is for the agent's own to hold. It stays as its user has
//! set it. Codex alone has one that can be asked for; Claude Code and Gemini CLI have one in their user's settings; the others have none.

use std::path::{Path, PathBuf};

use ipc_protocol::{AgentSandbox, AgentSessionConfig, EnvVars, PermissionMode, RuleDecision};
use serde_json::Value;

use super::{ProvisionError, ProvisionRequest, Result};
use crate::{AgentSpec, Secret, family::FamilySandbox};

/// No sandbox, in words.
const NONE: &str = "none";
/// A sandbox that an agent's settings switch on.
const SETTINGS: &str = "as its settings say";

/// The file with the settings of the user's own for the agent of `spec`, in the home directory `home`, where neither `env`, the session's
/// own, nor the row names another.
pub fn settings_file(spec: &AgentSpec, env: &EnvVars, home: &Path) -> Option<PathBuf> {
    let mut all = spec.inherited.clone();
    all.0.insert("HOME".to_owned(), home.to_string_lossy().into_owned());
    all.0.extend(env.0.clone());
    spec.agent_family()?.settings_file(&all)
}

/// The sandbox that a session which asks for none, in the shared home with these settings, would have; in words.
pub fn default_sandbox(spec: &AgentSpec, user_settings: Option<&str>) -> Option<String> {
    let request = ProvisionRequest {
        config: &AgentSessionConfig::new(&*spec.id),
        model: None,
        home: None,
        shared_home: None,
        user_settings,
        shim_dir: None,
        resume: None,
        fresh_id: "",
        fresh_secret: &Secret::from(String::new()),
    };
    sandbox(spec, &request).ok()?.1
}

/// The program that the sandbox (in words) of `program`, `NAME VERSION`, is made with, where it does not come with it.
pub fn sandbox_program(program: &str, sandbox: Option<&str>) -> Option<&'static str> {
    let sandboxed = sandbox.is_some_and(|sandbox| sandbox != NONE);
    (sandboxed && program.starts_with("@zed-industries/codex-acp ")).then_some("bwrap")
}

/// The sandbox that the agent is asked for, and the one that will be in force, in words.
///
/// # Errors
/// [`ProvisionError::Unsupported`] where the agent has no such sandbox.
pub(super) fn sandbox(
    spec: &AgentSpec,
    request: &ProvisionRequest<'_>,
) -> Result<(Option<AgentSandbox>, Option<String>)> {
    let asked = request.config.agent_sandbox;
    let is_on = match (spec.agent_family().map(|family| &family.sandbox), asked) {
        (Some(FamilySandbox::Codex(_)), _) => return Ok(of_codex(spec, request)),
        (Some(FamilySandbox::Settings(_, is_on)), _) => is_on(&json(request)),
        (Some(FamilySandbox::Absent), _) => false,
        (None, None) => return Ok((None, None)),
        (None, Some(asked)) => return Err(unsupported(spec, asked)),
    };
    match asked {
        Some(asked @ (AgentSandbox::ReadOnly | AgentSandbox::WorkspaceWrite)) => Err(unsupported(spec, asked)),
        Some(AgentSandbox::None) if is_on => {
            Err(ProvisionError::unsupported(spec, "be started without the sandbox that its user's settings switch on"))
        }
        _ if is_on => Ok((None, Some(SETTINGS.to_owned()))),
        _ => Ok((None, Some(NONE.to_owned()))),
    }
}

fn unsupported(spec: &AgentSpec, asked: AgentSandbox) -> ProvisionError {
    ProvisionError::unsupported(
        spec,
        format!("have the sandbox {asked}: it has none of its own that could be asked for"),
    )
}

fn json(request: &ProvisionRequest<'_>) -> Value {
    request.user_settings.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// The one that is asked for by name; where nothing may be changed, the one that holds that too; the row's; the user's; the one that
/// lets Codex work in its directory.
fn of_codex(spec: &AgentSpec, request: &ProvisionRequest<'_>) -> (Option<AgentSandbox>, Option<String>) {
    let config = request.config;
    let refuses = matches!(config.permission_mode, PermissionMode::Deny | PermissionMode::ReadOnly);
    let allows = config.permissions.rules.iter().any(|rule| rule.decision != RuleDecision::Deny);
    let by_mode = (refuses && !allows && config.mode.is_none()).then_some(AgentSandbox::ReadOnly);
    let row = spec.protocol_config["sandbox"].as_str().map(str::to_owned);
    let set = match config.agent_sandbox.or(by_mode) {
        Some(asked) => Ok(asked),
        None => row.or_else(|| users(request)).map_or(Ok(AgentSandbox::WorkspaceWrite), Err),
    };
    match set {
        Ok(asked) => (Some(asked), Some(asked.to_string())),
        Err(users) => {
            let words = if users == FULL_ACCESS { NONE.to_owned() } else { users };
            (None, Some(words))
        }
    }
}

/// Codex's word for no sandbox.
const FULL_ACCESS: &str = "danger-full-access";

/// The sandbox that the user of Codex has set: a mode, or the name of a profile of permissions.
fn users(request: &ProvisionRequest<'_>) -> Option<String> {
    let settings: toml::Table = request.user_settings?.parse().ok()?;
    let text = |table: &toml::Table, key: &str| table.get(key)?.as_str().map(str::to_owned);
    let profile = || {
        let name = settings.get("profile")?.as_str()?;
        text(settings.get("profiles")?.as_table()?.get(name)?.as_table()?, "sandbox_mode")
    };
    profile().or_else(|| text(&settings, "sandbox_mode")).or_else(|| text(&settings, "default_permissions"))
}

#[cfg(test)]
mod tests {
    use ipc_protocol::{PermissionPolicy, PermissionRule};

    use super::*;
    use crate::Catalog;

    fn of(agent: &str, config: AgentSessionConfig, settings: Option<&str>) -> Result<Option<String>, ProvisionError> {
        let secret = Secret::from(String::new());
        let request = ProvisionRequest {
            config: &config,
            model: None,
            home: None,
            shared_home: None,
            user_settings: settings,
            shim_dir: None,
            resume: None,
            fresh_id: "",
            fresh_secret: &secret,
        };
        sandbox(Catalog::default().get(agent).expect("built in"), &request).map(|(_, words)| words)
    }

    fn plain(agent: &str, settings: Option<&str>) -> Option<String> {
        default_sandbox(Catalog::default().get(agent).expect("built in"), settings)
    }

    #[test]
    fn it_stays_as_its_user_has_set_it() {
        for (agent, settings, words) in [
            ("codex", None, "workspace-write"),
            ("codex-acp", Some(""), "workspace-write"),
            ("codex", Some("sandbox_mode = \"read-only\""), "read-only"),
            ("codex-acp", Some("sandbox_mode = \"danger-full-access\""), "none"),
            (
                "codex",
                Some("profile = \"p\"\nsandbox_mode = \"read-only\"\n[profiles.p]\nsandbox_mode = \"workspace-write\""),
                "workspace-write",
            ),
            ("codex", Some("default_permissions = \":read-only\""), ":read-only"),
            ("claude-code", None, "none"),
            ("claude-code", Some(r#"{"sandbox":{"enabled":true}}"#), SETTINGS),
            ("gemini", Some(r#"{"tools":{"sandbox":"docker"}}"#), SETTINGS),
            ("gemini", Some(r#"{"tools":{"sandbox":false}}"#), "none"),
            ("opencode", None, "none"),
            ("pi", None, "none"),
        ] {
            assert_eq!(plain(agent, settings).as_deref(), Some(words), "{agent} {settings:?}");
        }
        assert_eq!(plain("command", None), None, "nobody knows");
    }

    #[test]
    fn a_wrapper_without_bubblewrap_needs_that_of_the_system() {
        let needed = |program, sandbox| sandbox_program(program, Some(sandbox));
        assert_eq!(needed("@zed-industries/codex-acp 0.16.0", "workspace-write"), Some("bwrap"));
        assert_eq!(needed("@zed-industries/codex-acp 0.16.0", "none"), None);
        assert_eq!(needed("@agentclientprotocol/codex-acp 2.6.0", "workspace-write"), None);
    }

    #[test]
    fn the_settings_are_where_the_agent_looks_for_them() {
        let file = |agent: &str, env: &[(&str, &str)]| {
            let env = env.iter().copied().collect();
            settings_file(Catalog::default().get(agent).expect("built in"), &env, Path::new("/home/u"))
        };
        assert_eq!(file("codex-acp", &[]), Some("/home/u/.codex/config.toml".into()));
        assert_eq!(file("codex", &[("CODEX_HOME", "/c")]), Some("/c/config.toml".into()));
        assert_eq!(file("gemini", &[("HOME", "/h")]), Some("/h/.gemini/settings.json".into()));
        assert_eq!(file("claude-code", &[]), Some("/home/u/.claude/settings.json".into()));
        assert_eq!(file("pi", &[]), None);
    }

    #[test]
    fn full_access_is_asked_for_by_name() {
        let asked = |agent: &str, sandbox| {
            of(agent, AgentSessionConfig { agent_sandbox: Some(sandbox), ..AgentSessionConfig::new(agent) }, None)
        };
        assert_eq!(asked("codex", AgentSandbox::None), Ok(Some("none".into())));
        assert_eq!(asked("codex-acp", AgentSandbox::ReadOnly), Ok(Some("read-only".into())));
        assert_eq!(asked("pi", AgentSandbox::None), Ok(Some("none".into())));
        for agent in ["pi", "claude-code", "gemini", "opencode", "command"] {
            let refused = asked(agent, AgentSandbox::WorkspaceWrite);
            assert!(matches!(refused, Err(ProvisionError::Unsupported { .. })), "{agent}: {refused:?}");
        }
    }

    #[test]
    fn where_nothing_may_be_changed_the_sandbox_holds_that_too() {
        let rule = |decision| PermissionRule { tool: None, command: Some("make".into()), path: None, decision };
        for (mode, rules, words) in [
            (PermissionMode::Deny, vec![], "read-only"),
            (PermissionMode::ReadOnly, vec![rule(RuleDecision::Deny)], "read-only"),
            (PermissionMode::Deny, vec![rule(RuleDecision::Allow)], "workspace-write"),
            (PermissionMode::Ask, vec![], "workspace-write"),
            (PermissionMode::Allow, vec![], "workspace-write"),
        ] {
            let permissions = PermissionPolicy { rules, ..PermissionPolicy::default() };
            let config = AgentSessionConfig { permission_mode: mode, permissions, ..AgentSessionConfig::new("codex") };
            assert_eq!(of("codex", config, None), Ok(Some(words.into())), "{mode:?}");
        }
    }
}
