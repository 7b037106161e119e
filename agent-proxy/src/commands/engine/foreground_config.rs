//! Configuration of a session in the foreground.

use agents::discovery::{self, SearchPaths};
use proxy_manager::AgentSessionConfig;
use proxy_server::{LoadedConfiguration, ProblemDetails};

use crate::{args::AgentArgs, commands::config::session, configuration::places};

/// Builds the configuration of a foreground session: of `agent`, else of the profile's, else of the first that is
/// found.
///
/// # Errors
/// `usage` for invalid values; `unknown-agent`, `unknown-profile` and `unknown-model`.
pub(super) fn foreground(
    configuration: &LoadedConfiguration,
    agent: Option<String>,
    args: AgentArgs,
) -> Result<AgentSessionConfig, ProblemDetails> {
    let agent = match agent {
        Some(agent) => Some(agent),
        None if args.profile.is_some() => None,
        None => Some(default_agent(configuration)?),
    };
    let config = session(agent.as_deref(), args)?;
    if let Some(name) = &configuration.with_profile(&config)?.model_config {
        // A key that cannot be read is an error here; a daemon continues without it.
        configuration.model(name)?;
    }
    Ok(config)
}

/// Returns the first agent of the catalog that is found.
///
/// # Errors
/// `unknown-agent` when there is none, with advice on naming one.
fn default_agent(configuration: &LoadedConfiguration) -> Result<String, ProblemDetails> {
    first_agent(configuration, &places())
}

fn first_agent(configuration: &LoadedConfiguration, places: &SearchPaths) -> Result<String, ProblemDetails> {
    let mut rows = configuration.catalog.rows().iter().filter(|row| row.enabled && !row.cmd.is_empty());
    let found = rows.find(|row| discovery::discover(row, places).start_program.is_some());
    found.map(|row| row.id.clone()).ok_or_else(|| {
        let advice =
            "`agent-proxy agents` says how to install one; or name any that speaks ACP with --agent acp … -- PROGRAM";
        ProblemDetails::new("unknown-agent", format!("none of the agents is in PATH: {advice}"))
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_first_agent_there_is() {
        let configuration = crate::configuration::read(Some(Path::new("/proc/none"))).expect("the built-in agents");
        // A file that every system has plays an agent: all that counts is that it is found.
        let shell = |id: &str| agents::AgentSpec::new(id, "acp", &["/bin/sh"]);
        let mut with = configuration;
        let problem = first_agent(&with, &SearchPaths::default()).expect_err("none");
        assert!(problem.kind == "unknown-agent" && problem.detail.contains("--agent acp"), "{}", problem.detail);
        let mut renamed = agents::AgentSpec::new("renamed", "acp", &["/proc/none"]);
        renamed.discovery.executables.linux = vec!["/bin/sh".into()];
        with.catalog.add(renamed);
        assert!(
            first_agent(&with, &SearchPaths::default()).is_err(),
            "it is found, and a session of it would not start"
        );
        with.catalog.add(shell("mine"));
        assert_eq!(first_agent(&with, &SearchPaths::default()).expect("found"), "mine");
        with.catalog.add(shell("opencode"));
        assert_eq!(first_agent(&with, &SearchPaths::default()).expect("found"), "opencode", "built-in ones come first");
        with.catalog.add(agents::AgentSpec { enabled: false, ..shell("opencode") });
        assert_eq!(first_agent(&with, &SearchPaths::default()).expect("found"), "mine");
    }
}
