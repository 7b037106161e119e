//! Discovery of installed agents and their versions. Only sessions may start programs, so agents are asked for
//! their versions in sessions.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use agents::{
    AgentSpec, Catalog, KnownVersions,
    discovery::{self, FoundAgent, ProgramVersion},
};
use ipc_protocol::ErrorChain;
use proxy_manager::{AgentSessionConfig, ChildProgram, EnvVars, Event, KillOptions, ProxyManager, Timeouts};
use proxy_server::ProblemDetails;
use serde::Serialize;
use tokio::task::JoinSet;

use crate::{command_failure::CommandFailure, configuration::places, environment};

/// Longest time for a program to print its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(15);
/// Number of programs asked concurrently.
const MAX_CONCURRENT: usize = 4;
/// Bytes of a program's output that are examined.
const MAX_OUTPUT: usize = 4096;

/// Agent of the catalog, with the results of its discovery.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InstalledAgent {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) description: String,
    pub(crate) enabled: bool,
    pub(crate) protocol: String,
    /// True if it runs any program, which the session's command names.
    pub(crate) any_program: bool,
    /// True if a session of it can be started.
    pub(crate) usable: bool,
    /// True if its program was found.
    pub(crate) found: bool,
    /// Path of the program.
    pub(crate) path: Option<PathBuf>,
    pub(crate) version: Option<String>,
    /// The versions that its row was tried with.
    pub(crate) tried: Vec<String>,
    /// Warning about a version that was not tried; `null` for one that was, or that is not known.
    pub(crate) untried: Option<String>,
    /// Requirements that the agent cannot start without.
    pub(crate) missing: Vec<String>,
    /// Command that installs it.
    pub(crate) install: Option<String>,
    /// Files that show that it is set up.
    pub(crate) files: Vec<PathBuf>,
    /// Files with its configured MCP servers.
    pub(crate) mcp_config_files: Vec<PathBuf>,
    pub(crate) default_model: Option<String>,
    pub(crate) capabilities: Vec<String>,
    pub(crate) supports: AgentSupport,
}

/// Capabilities stated in the catalog row; `null` where it states none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AgentSupport {
    pub(crate) mcp: Option<bool>,
    pub(crate) session_resume: Option<bool>,
    pub(crate) shell: Option<bool>,
    pub(crate) workspace_only: Option<bool>,
}

impl AgentSupport {
    fn of(row: &AgentSpec) -> Self {
        let said = &row.discovery.discovery_capabilities;
        Self {
            mcp: row.discovery.supports_mcp,
            // Either field may state it.
            session_resume: if row.cannot_resume().is_some() { Some(false) } else { said.supports_session_resume },
            shell: said.supports_shell,
            workspace_only: said.supports_workspace_only,
        }
    }
}

/// Looks for all agents of the catalog. Unless `child` is `None`, starts those whose version is in no file, to ask
/// for it.
///
/// # Errors
/// The manager's, when it cannot be started for that.
pub(crate) async fn installed(
    catalog: &Catalog,
    child: Option<ChildProgram>,
) -> Result<Vec<InstalledAgent>, CommandFailure> {
    let places = places();
    let found: Vec<(&AgentSpec, FoundAgent)> =
        catalog.rows().iter().map(|row| (row, discovery::discover(row, &places))).collect();
    let commands: BTreeSet<Vec<String>> =
        found.iter().flat_map(|(_, found)| [found.version_command.clone(), node_command(found)]).flatten().collect();
    let versions = match child {
        Some(child) => Some(run_version_commands(child, commands).await?),
        None => None,
    };
    let env = environment::all();
    Ok(found.into_iter().map(|(row, found)| one(row, found, &env, versions.as_ref())).collect())
}

/// Builds the command that prints the version of the Node.js that would run the agent.
fn node_command(found: &FoundAgent) -> Option<Vec<String>> {
    let program = found.node.as_ref()?.program.as_ref()?;
    Some(vec![program.to_string_lossy().into_owned(), "--version".to_owned()])
}

/// Describes one agent. `versions` has the results of the version commands; `None` if none were run.
fn one(
    row: &AgentSpec,
    found: FoundAgent,
    env: &EnvVars,
    versions: Option<&BTreeMap<Vec<String>, ProgramVersion>>,
) -> InstalledAgent {
    let version = |command: Option<Vec<String>>| versions.and_then(|versions| versions.get(&command?)).copied();
    let mut missing = Vec::new();
    match (row.cmd.first(), &found.start_program, &found.program) {
        (Some(_), None, _) if let Some(file) = &found.not_executable => {
            missing.push(format!("{} is not executable: allow it (chmod +x)", file.display()));
        }
        (Some(program), None, None) => missing.push(format!("{program} is not in PATH")),
        (Some(program), None, Some(other)) => {
            let other = other.display();
            missing.push(format!(
                "{program}, which sessions start, is not in PATH (found: {other}): put it into the row's cmd"
            ));
        }
        _ => {}
    }
    missing.extend(row.missing_env(env).into_iter().map(|name| format!("{name} is not in the environment")));
    if let Some(node) = found.node.as_ref().filter(|node| versions.is_some() || node.program.is_none()) {
        missing.extend(node.missing(version(node_command(&found))));
    }
    let asked = version(found.version_command.clone()).map(|version| version.to_string());
    let version = found.version.or(asked);
    let package = found.package.as_deref().unwrap_or(&row.discovery.npm_package);
    let program = version.as_ref().map(|version| format!("{package} {version}"));
    let tried = row.discovery.tried.clone();
    InstalledAgent {
        id: row.id.clone(),
        title: row.title().to_owned(),
        description: row.description.clone(),
        enabled: row.enabled,
        protocol: row.protocol.clone(),
        any_program: row.cmd.is_empty(),
        usable: row.enabled && missing.is_empty(),
        found: found.program.is_some(),
        path: found.program,
        version,
        untried: KnownVersions { tried: tried.clone(), program }.untried(),
        tried,
        missing,
        install: Some(row.install.clone()).filter(|install| !install.is_empty()),
        files: found.files,
        mcp_config_files: found.mcp_files,
        default_model: row.default_model().map(str::to_owned),
        capabilities: row.capabilities.clone(),
        supports: AgentSupport::of(row),
    }
}

/// Runs each command in a session of its own, and parses the version from its output. Some programs write to their
/// home even for that, so they get a temporary one.
async fn run_version_commands(
    child: ChildProgram,
    commands: BTreeSet<Vec<String>>,
) -> Result<BTreeMap<Vec<String>, ProgramVersion>, CommandFailure> {
    if commands.is_empty() {
        return Ok(BTreeMap::new());
    }
    let home = tempfile::tempdir().map_err(|error| {
        ProblemDetails::failed(format!("making a temporary directory for the agents failed: {error}"))
    })?;
    let mut env = environment::base();
    env.0.insert("HOME".to_owned(), home.path().to_string_lossy().into_owned());
    let manager = ProxyManager::builder(child).base_env(env).build().await?;
    let mut versions = BTreeMap::new();
    let mut running = JoinSet::new();
    let mut waiting = commands.into_iter();
    loop {
        while running.len() < MAX_CONCURRENT
            && let Some(command) = waiting.next()
        {
            let manager = manager.clone();
            running.spawn(async move { (command.clone(), printed_version(&manager, command).await) });
        }
        match running.join_next().await {
            Some(Ok((command, version))) => versions.extend(version.map(|version| (command, version))),
            // Only a bug in the task causes this; the version is unknown then.
            Some(Err(error)) => tracing::warn!("version query task failed: {error}"),
            None => break,
        }
    }
    manager.shutdown().await;
    Ok(versions)
}

/// Returns the first version that a command prints within [`PATIENCE`].
async fn printed_version(manager: &ProxyManager, command: Vec<String>) -> Option<ProgramVersion> {
    let config = AgentSessionConfig {
        command,
        cwd: Some("/".into()),
        verbatim: Some(false),
        // Keep the usual deadline for the start only.
        timeouts: Timeouts { start_ms: None, ..Timeouts::NONE },
        ..AgentSessionConfig::new("command")
    };
    let session = manager.start_session(config).await.ok()?;
    let mut events = session.subscribe_from(0);
    let mut text = String::new();
    let read = async {
        while let Some(envelope) = events.next().await {
            match &envelope.event {
                Event::Text { text: piece } => text.push_str(piece),
                Event::SessionEnded { .. } => break,
                _ => {}
            }
            if text.len() > MAX_OUTPUT {
                break;
            }
        }
    };
    // Use the output received before a timeout.
    let _ = tokio::time::timeout(VERSION_TIMEOUT, read).await;
    if let Err(error) = session.kill(KillOptions::NOW).await {
        tracing::warn!(error = %ErrorChain(&error), "failed to end a version query session");
    }
    ProgramVersion::parse(&text)
}

#[cfg(test)]
mod tests {
    use agents::discovery::NodeRuntime;
    use serde_json::json;

    use super::*;

    fn row() -> AgentSpec {
        let mut row = AgentSpec::new("x", "acp", &["x", "acp"]);
        row.required_env = vec!["SET".into(), "UNSET".into()];
        row
    }

    #[test]
    fn what_is_missing_is_said() {
        let env = [("SET", "1")].into_iter().collect();
        let min = ProgramVersion::parse("22.19.0").expect("a version");
        let node = NodeRuntime { min, program: Some("/bin/node".into()) };
        let found = FoundAgent { node: Some(node), ..FoundAgent::default() };
        let said = |text: &str| {
            let version = ProgramVersion::parse(text).expect("a version");
            BTreeMap::from([(vec!["/bin/node".to_owned(), "--version".to_owned()], version)])
        };
        let missing = |versions: Option<&_>| one(&row(), found.clone(), &env, versions).missing;
        let usual = ["x is not in PATH", "UNSET is not in the environment"];
        assert_eq!(missing(None), usual, "nobody asked node");
        assert_eq!(missing(Some(&said("v22.20.0"))), usual);
        let old = "Node.js 22.19.0 or later: /bin/node is 20.1.0";
        assert_eq!(missing(Some(&said("v20.1.0"))), [usual[0], usual[1], old]);
        assert!(missing(Some(&BTreeMap::new()))[2].contains("does not tell its version"));
    }

    #[test]
    fn what_a_row_says_of_its_agent_is_listed() {
        let found = FoundAgent { mcp_files: vec!["/home/x/.mcp".into()], ..FoundAgent::default() };
        let listed = |row: &AgentSpec| serde_json::to_value(one(row, found.clone(), &EnvVars::default(), None));
        let json = listed(&row()).expect("serializes");
        let unsaid = json!({ "mcp": null, "sessionResume": null, "shell": null, "workspaceOnly": null });
        assert_eq!((&json["supports"], &json["mcpConfigFiles"]), (&unsaid, &json!(["/home/x/.mcp"])));
        let mut row = row();
        row.discovery.supports_mcp = Some(false);
        row.session_config.can_recover = Some(false);
        row.discovery.discovery_capabilities.supports_shell = Some(true);
        row.discovery.discovery_capabilities.supports_workspace_only = Some(false);
        let said = json!({ "mcp": false, "sessionResume": false, "shell": true, "workspaceOnly": false });
        assert_eq!(listed(&row).expect("serializes")["supports"], said);
    }

    #[test]
    fn what_can_be_started() {
        let program = Some("/bin/x".into());
        let here = FoundAgent {
            start_program: program.clone(),
            program,
            version: Some("1.2.3".into()),
            ..FoundAgent::default()
        };
        let env = [("SET", "1"), ("UNSET", "2")].into_iter().collect();
        let usable = |row: &AgentSpec, found: &FoundAgent| one(row, found.clone(), &env, None).usable;
        assert!(usable(&row(), &here) && !usable(&row(), &FoundAgent::default()));
        assert!(!usable(&AgentSpec { enabled: false, ..row() }, &here));
        let other = FoundAgent { program: Some("/bin/y".into()), ..FoundAgent::default() };
        let missing = one(&row(), other, &env, None).missing;
        assert!(missing[0].starts_with("x, which sessions start,") && missing[0].contains("/bin/y"), "{missing:?}");
        assert!(usable(&AgentSpec::new("command", "command", &[]), &FoundAgent::default()));
    }

    #[test]
    fn a_version_that_was_not_tried_is_listed_as_such() {
        let mut row = row();
        row.discovery.npm_package = "@x/x".into();
        row.discovery.tried = vec!["@x/x 1.2.0 - 1.2.3".into(), "@y/x 2.0.0".into()];
        let untried = |version: &str, package: Option<&str>| {
            let (version, package) = (Some(version.to_owned()), package.map(str::to_owned));
            one(&row, FoundAgent { version, package, ..FoundAgent::default() }, &EnvVars::default(), None).untried
        };
        assert_eq!((untried("1.2.3", Some("@x/x")), untried("2.0.0", Some("@y/x"))), (None, None));
        assert_eq!(untried("1.2.3", None), None, "as it says itself");
        let text = untried("2.0.0", Some("@x/x")).expect("not tried");
        assert!(text.starts_with("@x/x 2.0.0 was not tried with this release"), "{text}");
    }
}
