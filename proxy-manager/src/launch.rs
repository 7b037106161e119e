//! What a session is started with: checked here, before anything is forked.

use agents::{Catalog, CatalogError};
use ipc_protocol::{AgentSessionConfig, Enclosure, EnvVars, LimitKind, MARKER, SessionId, message::AgentCommand};

use crate::{Error, Result, containment::Held, session::Labels, state::Journal};

/// Variable that every process of a session carries in its environment, with the session's id.
pub const SESSION_MARKER: &str = "AGENT_PROXY_SESSION";

/// A checked configuration.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) config: AgentSessionConfig,
    pub(crate) command: AgentCommand,
    pub(crate) enclosure: Enclosure,
    pub(crate) labels: Labels,
    /// Where its processes are written down, if they are.
    pub(crate) journal: Option<Journal>,
}

impl Launch {
    /// Checks `config`, fills in the defaults, and resolves its agent.
    pub(crate) fn plan(
        mut config: AgentSessionConfig,
        catalog: &Catalog,
        base_env: &EnvVars,
        default_cwd: &str,
    ) -> Result<Self> {
        let (spec, argv) = catalog.resolve(&config.agent, &config.command).map_err(|error| match error {
            CatalogError::Unknown { agent, known } => Error::UnknownAgent { agent, known },
            CatalogError::NoCommand { .. } => invalid("command", error.to_string()),
        })?;
        if let Some((kind, _)) = config.limits.set().find(|(_, value)| *value == 0) {
            return Err(invalid(limit_field(kind), format!("a limit of 0 on {kind} leaves nothing: leave it out")));
        }
        if argv.iter().any(|arg| arg.contains('\0')) {
            return Err(invalid("command", "an argument holds a NUL byte".into()));
        }
        let cwd = config.cwd.get_or_insert_with(|| default_cwd.to_owned()).clone();
        if !cwd.starts_with('/') || cwd.contains('\0') {
            return Err(invalid("cwd", format!("{cwd:?} is no absolute path")));
        }
        let mut env = base_env.clone();
        env.0.extend(spec.env.0.clone());
        env.0.extend(config.env.0.clone());
        env.0.insert(SESSION_MARKER.to_owned(), config.session_id.to_string());
        // Ids can be chosen, and two managers can choose the same: this is of this one run.
        let enclosure = Enclosure { marker: SessionId::mint().to_string(), ..Enclosure::default() };
        env.0.insert(MARKER.to_owned(), enclosure.marker.clone());
        let unfit =
            |(name, value): &(&String, &String)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0');
        if let Some((name, _)) = env.0.iter().find(unfit) {
            return Err(invalid("env", format!("variable {name:?}: no name is empty or holds '=', nothing holds NUL")));
        }
        let command = AgentCommand {
            agent: spec.id.clone(),
            protocol: spec.protocol.clone(),
            argv,
            env,
            steer_by_prompt: spec.steer_by_prompt,
        };
        let labels = Labels {
            agent: spec.id.clone(),
            agent_type: config.agent_type.clone(),
            user_id: config.user_id.clone(),
            workspace_id: config.workspace_id.clone(),
            cwd,
        };
        Ok(Self { config, command, enclosure, labels, journal: None })
    }

    /// What holds the session, as it was resolved.
    pub(crate) fn hold(&mut self, Held { cgroup, strict }: Held) {
        (self.enclosure.cgroup, self.enclosure.strict) = (cgroup, strict);
    }
}

/// The field of a configuration that holds a limit.
fn limit_field(kind: LimitKind) -> &'static str {
    match kind {
        LimitKind::Memory => "limits.memoryBytes",
        LimitKind::Processes => "limits.processes",
        LimitKind::CpuTime => "limits.cpuTimeMs",
        LimitKind::CpuPercent => "limits.cpuPercent",
        LimitKind::OpenFiles => "limits.openFiles",
        LimitKind::FileSize => "limits.fileSizeBytes",
        LimitKind::WallClock => "limits.wallClockMs",
    }
}

fn invalid(field: &'static str, reason: String) -> Error {
    Error::InvalidConfig { field, reason }
}

#[cfg(test)]
mod tests {
    use ipc_protocol::Limits;

    use super::*;

    fn plan(config: AgentSessionConfig) -> Result<Launch> {
        let base = [("PATH", "/bin"), ("LANG", "C"), (SESSION_MARKER, "forged")].into_iter().collect();
        Launch::plan(config, &Catalog::default(), &base, "/home")
    }

    fn cat() -> AgentSessionConfig {
        AgentSessionConfig { command: vec!["cat".into()], ..AgentSessionConfig::new("command") }
    }

    #[test]
    fn layers_of_the_environment() {
        let env = [("LANG", "de"), ("KEY", "v")].into_iter().collect();
        let launch = plan(AgentSessionConfig { env, ..cat() }).expect("valid");
        let id = launch.config.session_id.to_string();
        let expected: EnvVars =
            [("PATH", "/bin"), ("LANG", "de"), ("KEY", "v"), (SESSION_MARKER, &id), (MARKER, &launch.enclosure.marker)]
                .into_iter()
                .collect();
        assert_eq!(launch.command.env, expected);
        assert_eq!((launch.labels.cwd.as_str(), launch.config.cwd.as_deref()), ("/home", Some("/home")));
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
    }
}
