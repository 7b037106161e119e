//! Agents of the catalog, and what is found of them on this machine.

use std::collections::BTreeMap;

use agents::{
    AgentSpec, KnownVersions,
    discovery::{FoundAgent, ProgramVersion},
};
use api_types::{AgentSupport, InstalledAgent};
use ipc_protocol::EnvVars;

fn support(row: &AgentSpec) -> AgentSupport {
    let said = &row.discovery.discovery_capabilities;
    AgentSupport {
        mcp: row.discovery.supports_mcp,
        // Either field may state it.
        session_resume: if row.cannot_resume().is_some() { Some(false) } else { said.supports_session_resume },
        shell: said.supports_shell,
        workspace_only: said.supports_workspace_only,
    }
}

/// Answer of a program that was asked for its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionAnswer {
    /// Its version.
    Version(ProgramVersion),
    /// Nothing that is one, or nothing in time.
    Unclear,
    /// It does not run: why.
    Failed(String),
}

/// Builds the command that prints the version of the Node.js that would run the agent.
pub fn node_command(found: &FoundAgent) -> Option<Vec<String>> {
    let program = found.node.as_ref()?.program.as_ref()?;
    Some(vec![program.to_string_lossy().into_owned(), "--version".to_owned()])
}

/// Describes an agent of the catalog. `versions` has the results of the version commands; `None` if none were run.
pub fn describe(
    row: &AgentSpec,
    found: FoundAgent,
    env: &EnvVars,
    versions: Option<&BTreeMap<Vec<String>, VersionAnswer>>,
) -> InstalledAgent {
    let answer = |command: Option<Vec<String>>| versions.and_then(|versions| versions.get(&command?));
    let version = |command: Option<Vec<String>>| match answer(command) {
        Some(VersionAnswer::Version(version)) => Some(*version),
        _ => None,
    };
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
    // A program of a user's own row may know no such argument; that of a package does.
    if let (false, Some(command), Some(VersionAnswer::Failed(why))) =
        (row.discovery.npm_package.is_empty(), &found.version_command, answer(found.version_command.clone()))
    {
        let again =
            if row.install.is_empty() { String::new() } else { format!(": install it again with `{}`", row.install) };
        missing.push(format!("`{}` fails ({why}){again}", command.join(" ")));
    }
    let asked = || version(found.version_command.clone()).map(|version| version.to_string());
    let version = found.version.clone().or_else(asked);
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
        supports: support(row),
    }
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
            BTreeMap::from([(vec!["/bin/node".to_owned(), "--version".to_owned()], VersionAnswer::Version(version))])
        };
        let missing = |versions: Option<&_>| describe(&row(), found.clone(), &env, versions).missing;
        let usual = ["x is not in PATH", "UNSET is not in the environment"];
        assert_eq!(missing(None), usual, "nobody asked node");
        assert_eq!(missing(Some(&said("v22.20.0"))), usual);
        let old = "Node.js 22.19.0 or later: /bin/node is 20.1.0";
        assert_eq!(missing(Some(&said("v20.1.0"))), [usual[0], usual[1], old]);
        assert!(missing(Some(&BTreeMap::new()))[2].contains("does not tell its version"));
    }

    #[test]
    fn a_program_that_does_not_run_is_not_usable() {
        let program = Some("/bin/x".into());
        let command = vec!["/bin/x".to_owned(), "--version".to_owned()];
        let found = FoundAgent {
            start_program: program.clone(),
            program,
            version: Some("1.2.3".into()),
            version_command: Some(command.clone()),
            ..FoundAgent::default()
        };
        let mut row = AgentSpec { required_env: Vec::new(), install: "npm install x".into(), ..row() };
        let described = |row: &AgentSpec, answer: VersionAnswer| {
            let answers = BTreeMap::from([(command.clone(), answer)]);
            describe(row, found.clone(), &EnvVars::default(), Some(&answers))
        };
        let failed = || VersionAnswer::Failed("exit code 1: no part for this platform".into());
        assert!(described(&row, failed()).usable, "nobody says that it knows the argument");
        row.discovery.npm_package = "@x/x".into();
        let stub = described(&row, failed());
        assert!(stub.found && !stub.usable, "{stub:?}");
        let why =
            "`/bin/x --version` fails (exit code 1: no part for this platform): install it again with `npm install x`";
        assert_eq!((stub.missing, stub.version.as_deref()), (vec![why.to_owned()], Some("1.2.3")));
        assert!(described(&row, VersionAnswer::Unclear).usable, "it may tell its version to nobody");
    }

    #[test]
    fn what_a_row_says_of_its_agent_is_listed() {
        let found = FoundAgent { mcp_files: vec!["/home/x/.mcp".into()], ..FoundAgent::default() };
        let listed = |row: &AgentSpec| serde_json::to_value(describe(row, found.clone(), &EnvVars::default(), None));
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
        let usable = |row: &AgentSpec, found: &FoundAgent| describe(row, found.clone(), &env, None).usable;
        assert!(usable(&row(), &here) && !usable(&row(), &FoundAgent::default()));
        assert!(!usable(&AgentSpec { enabled: false, ..row() }, &here));
        let other = FoundAgent { program: Some("/bin/y".into()), ..FoundAgent::default() };
        let missing = describe(&row(), other, &env, None).missing;
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
            describe(&row, FoundAgent { version, package, ..FoundAgent::default() }, &EnvVars::default(), None).untried
        };
        assert_eq!((untried("1.2.3", Some("@x/x")), untried("2.0.0", Some("@y/x"))), (None, None));
        assert_eq!(untried("1.2.3", None), None, "as it says itself");
        let text = untried("2.0.0", Some("@x/x")).expect("not tried");
        assert!(text.starts_with("@x/x 2.0.0 was not tried with this release"), "{text}");
    }
}
