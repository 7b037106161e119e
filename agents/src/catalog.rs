//! Which agents there are.

use ipc_protocol::EnvVars;

/// One agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentSpec {
    /// Its name in configurations, events and errors.
    pub id: String,
    /// Name of the protocol's adapter.
    pub protocol: String,
    /// Program and leading arguments; empty where the session's `command` gives them all.
    pub argv: Vec<String>,
    /// Environment that it needs, beneath the session's.
    pub env: EnvVars,
    /// Whether a prompt sent while a turn runs steers it. (Gemini cancels the first, codex-acp never answers the second.)
    pub steer_by_prompt: bool,
}

impl AgentSpec {
    /// An agent that needs no environment and cannot be steered.
    pub fn new(id: &str, protocol: &str, argv: &[&str]) -> Self {
        Self {
            id: id.to_owned(),
            protocol: protocol.to_owned(),
            argv: argv.iter().map(|arg| (*arg).to_owned()).collect(),
            env: EnvVars::default(),
            steer_by_prompt: false,
        }
    }
}

/// A configuration that names no runnable agent.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum CatalogError {
    /// No such row.
    #[error("no agent is called {agent:?}: there are {}", known.join(", "))]
    Unknown {
        /// As asked for.
        agent: String,
        /// What there is.
        known: Vec<String>,
    },
    /// The row leaves the program open and the session did not say.
    #[error("agent {agent:?} runs the program that the session's command names, and it names none")]
    NoCommand {
        /// The row.
        agent: String,
    },
}

/// The agents a manager knows.
#[derive(Clone, Debug)]
pub struct Catalog(Vec<AgentSpec>);

impl Default for Catalog {
    /// The built-in rows: `command` and `acp` (any program of the session's), `codex-acp`, `opencode`.
    fn default() -> Self {
        Self(vec![
            AgentSpec::new("command", "command", &[]),
            AgentSpec::new("acp", "acp", &[]),
            AgentSpec::new("codex-acp", "acp", &["codex-acp"]),
            AgentSpec { steer_by_prompt: true, ..AgentSpec::new("opencode", "acp", &["opencode", "acp"]) },
        ])
    }
}

impl Catalog {
    /// Adds a row, or replaces the one of that id.
    pub fn add(&mut self, spec: AgentSpec) {
        self.0.retain(|known| known.id != spec.id);
        self.0.push(spec);
    }

    /// The rows.
    pub fn rows(&self) -> &[AgentSpec] {
        &self.0
    }

    /// The row of `agent`, and the whole argv with the session's `command`.
    ///
    /// # Errors
    /// [`CatalogError`] says what there is.
    pub fn resolve(&self, agent: &str, command: &[String]) -> Result<(&AgentSpec, Vec<String>), CatalogError> {
        let spec = self.0.iter().find(|spec| spec.id == agent).ok_or_else(|| CatalogError::Unknown {
            agent: agent.to_owned(),
            known: self.0.iter().map(|spec| spec.id.clone()).collect(),
        })?;
        let argv: Vec<String> = spec.argv.iter().chain(command).cloned().collect();
        if argv.first().is_none_or(String::is_empty) {
            return Err(CatalogError::NoCommand { agent: agent.to_owned() });
        }
        Ok((spec, argv))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_resolve_to_an_argv() {
        let mut catalog = Catalog::default();
        catalog.add(AgentSpec::new("fake", "acp", &["/bin/fake", "acp"]));
        let (spec, argv) = catalog.resolve("fake", &["--slow".into()]).expect("known");
        assert_eq!((spec.protocol.as_str(), argv), ("acp", vec!["/bin/fake".into(), "acp".into(), "--slow".into()]));
        assert_eq!(catalog.resolve("command", &[]), Err(CatalogError::NoCommand { agent: "command".into() }));
        let error = catalog.resolve("claud", &[]).expect_err("unknown");
        assert!(error.to_string().contains("codex-acp"), "{error}");
    }
}
