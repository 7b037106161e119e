//! A session's configuration from the command line.

use agents::Catalog;
use proxy_manager::AgentSessionConfig;

use crate::{args::AgentArgs, environment, problem::Problem};

/// A session of `agent`, started as `args` say.
///
/// # Errors
/// `usage` for values that make no sense.
pub(super) fn session(agent: &str, args: AgentArgs) -> Result<AgentSessionConfig, Problem> {
    let mut config = AgentSessionConfig {
        command: args.argv,
        cwd: Some(environment::cwd(args.cwd.as_deref())?),
        env: environment::parse(&args.env)?,
        model: args.model,
        system_prompt: args.system_prompt,
        permission_mode: args.permission.into(),
        ..AgentSessionConfig::new(agent)
    };
    args.measures.apply(&mut config)?;
    Ok(config)
}

/// The first agent of the catalog whose program is in PATH.
///
/// # Errors
/// `unknown-agent` when there is none, with how to name one.
pub(super) fn default_agent() -> Result<String, Problem> {
    first_agent(|program| environment::in_path(program).is_some())
}

fn first_agent(in_path: impl Fn(&str) -> bool) -> Result<String, Problem> {
    let catalog = Catalog::default();
    let real: Vec<(&str, &str)> =
        catalog.rows().iter().filter_map(|row| Some((row.id.as_str(), row.argv.first()?.as_str()))).collect();
    let found = real.iter().find(|(_, program)| in_path(program));
    found.map(|(id, _)| (*id).to_owned()).ok_or_else(|| {
        let programs: Vec<&str> = real.iter().map(|(_, program)| *program).collect();
        Problem::new(
            "unknown-agent",
            format!(
                "none of the agents {} is in PATH: install one, or name any that speaks ACP with --agent acp … -- PROGRAM",
                programs.join(", ")
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_agent_there_is() {
        assert_eq!(first_agent(|_| true).expect("found"), "codex-acp");
        assert_eq!(first_agent(|program| program == "opencode").expect("found"), "opencode");
        let problem = first_agent(|_| false).expect_err("none");
        assert!(problem.kind == "unknown-agent" && problem.detail.contains("--agent acp"), "{}", problem.detail);
    }
}
