//! Catalog of agents.

mod check;
mod load;
mod spec;

use std::sync::LazyLock;

pub use check::{PROTOCOLS, RowError};
#[cfg(feature = "catalog-files")]
pub use load::schema;
#[cfg(feature = "catalog-files")]
pub(crate) use load::typed;
pub use load::{FileFormat, LoadError};
pub use spec::{
    AgentSpec, ApplyMethod, ContainerMount, DiscoveryCapabilities, DiscoverySpec, HomeFile, HomeFiles, ModelSpec,
    ModelSpecs, PerPlatform, PermissionConfig, PermissionSetting, ProcessMarks, ResourceLimits, SessionConfig,
};

use crate::provision::caller_variable;

/// Built-in rows.
static BUILT_IN: LazyLock<Vec<AgentSpec>> = LazyLock::new(|| {
    load::rows(include_str!("builtin.toml"), FileFormat::Toml, &PROTOCOLS, "builtin.toml").expect("a test loads them")
});

/// Reason why an agent of the catalog cannot run.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum CatalogError {
    /// No row has that id.
    #[error("no agent is called {agent:?}: there are {}", known.join(", "))]
    Unknown {
        /// Id that was asked for.
        agent: String,
        /// Known ids.
        known: Vec<String>,
    },
    /// The row is disabled.
    #[error("agent {agent:?} is switched off in the catalog: set `enabled = true` in its row")]
    Disabled {
        /// Id of the row.
        agent: String,
    },
}

/// Agents that a manager knows.
///
/// ```
/// use agents::{AgentSpec, Catalog};
///
/// let mut catalog = Catalog::default();
/// catalog.add(AgentSpec::new("mine", "acp", &["my-agent", "--acp"]));
/// assert_eq!(catalog.get("mine").expect("it was added").protocol, "acp");
/// ```
#[derive(Clone, Debug)]
pub struct Catalog(Vec<AgentSpec>);

impl Default for Catalog {
    /// Returns the built-in rows: Claude Code, Codex, OpenCode (its server, and ACP), Pi, Gemini CLI, Qwen Code, the ACP wrappers of Claude Code
    /// and Codex; and `acp` and `command` for any program that the session names.
    fn default() -> Self {
        Self(BUILT_IN.clone())
    }
}

impl Catalog {
    /// Adds a row, or replaces the one with that id.
    pub fn add(&mut self, spec: AgentSpec) {
        match self.0.iter_mut().find(|known| known.id == spec.id) {
            Some(known) => *known = spec,
            None => self.0.push(spec),
        }
    }

    /// Adds the rows of a file; each replaces the row with its id. `protocols` are the names of the available adapters:
    /// [`PROTOCOLS`], and those that were linked in. `file` is the file's name, for errors.
    ///
    /// The text is one row, a list of rows, or a table or object `agents` of rows.
    ///
    /// # Errors
    /// [`LoadError`] names file, row and field. No row is added then.
    pub fn load(&mut self, text: &str, format: FileFormat, protocols: &[&str], file: &str) -> Result<(), LoadError> {
        load::rows(text, format, protocols, file)?.into_iter().for_each(|row| self.add(row));
        Ok(())
    }

    /// Fills in the variables of the caller's environment that rows use: `required_env`, and `${NAME}` in `env`.
    pub fn inherit(&mut self, variable: impl Fn(&str) -> Option<String>) {
        for row in &mut self.0 {
            let named = row.env.0.values().filter_map(|value| caller_variable(value));
            let names = row.required_env.iter().map(String::as_str).chain(named);
            row.inherited = names.filter_map(|name| Some((name, variable(name)?))).collect();
        }
    }

    /// Returns the rows, the built-in ones first.
    pub fn rows(&self) -> &[AgentSpec] {
        &self.0
    }

    /// Returns the row of `agent`, if a session of it can be started.
    ///
    /// # Errors
    /// [`CatalogError`] lists the known agents, or has the reason.
    pub fn get(&self, agent: &str) -> Result<&AgentSpec, CatalogError> {
        let spec = self.0.iter().find(|spec| spec.id == agent).ok_or_else(|| CatalogError::Unknown {
            agent: agent.to_owned(),
            known: self.0.iter().map(|spec| spec.id.clone()).collect(),
        })?;
        if !spec.enabled {
            return Err(CatalogError::Disabled { agent: agent.to_owned() });
        }
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_is_not_there_says_which_are() {
        let error = Catalog::default().get("claud").expect_err("unknown");
        assert!(error.to_string().contains("claude-code, codex, opencode"), "{error}");
    }

    #[cfg(all(feature = "acp", feature = "opencode"))]
    #[test]
    fn every_adapter_is_a_protocol() {
        let (mut adapters, mut protocols) =
            (crate::Adapters::default().names().collect::<Vec<_>>(), PROTOCOLS.to_vec());
        adapters.retain(|name| *name != crate::TERMINAL_PROTOCOL);
        adapters.sort_unstable();
        protocols.sort_unstable();
        assert_eq!(adapters, protocols, "and every protocol has one");
    }

    #[test]
    fn the_built_in_rows() {
        let catalog = Catalog::default();
        let ids: Vec<&str> = catalog.rows().iter().map(|row| row.id.as_str()).collect();
        let expected = [
            "claude-code",
            "codex",
            "opencode",
            "pi",
            "gemini",
            "qwen",
            "opencode-acp",
            "claude-agent-acp",
            "codex-acp",
            "acp",
            "command",
        ];
        assert_eq!(ids, expected);
        for row in catalog.rows() {
            assert!(!row.title().is_empty() && !row.description.is_empty(), "{}", row.id);
            assert_eq!(row.install.is_empty(), row.cmd.is_empty(), "{}: what has a program can be installed", row.id);
            assert!(
                row.env.0.values().all(|value| !value.contains("KEY")),
                "{}: keys are not taken from the caller",
                row.id
            );
        }
        let backed_up = catalog.rows().iter().filter(|row| row.protocol_config.get("backupBeforeLoad").is_some());
        assert_eq!(backed_up.map(|row| row.id.as_str()).collect::<Vec<_>>(), ["gemini"], "it may empty what it loads");
    }

    #[test]
    fn a_row_in_place_of_another_keeps_its_place() {
        let mut catalog = Catalog::default();
        catalog.add(AgentSpec::new("codex", "codex", &["/opt/codex"]));
        assert_eq!((catalog.rows()[1].id.as_str(), &catalog.rows()[1].cmd), ("codex", &vec!["/opt/codex".to_owned()]));
        assert_eq!(catalog.rows().len(), Catalog::default().rows().len());
    }

    #[test]
    fn what_cannot_be_started_says_why() {
        let mut catalog = Catalog::default();
        catalog.add(AgentSpec { enabled: false, ..AgentSpec::new("off", "acp", &["x"]) });
        assert_eq!(catalog.get("off"), Err(CatalogError::Disabled { agent: "off".into() }));
    }

    #[test]
    fn only_what_a_row_names_is_inherited() {
        let mut catalog = Catalog::default();
        catalog.add(AgentSpec {
            required_env: vec!["KEY".into(), "MISSING".into()],
            env: [("A", "${B}"), ("C", "D")].into_iter().collect(),
            ..AgentSpec::new("x", "acp", &["x"])
        });
        catalog.inherit(|name| (name != "MISSING").then(|| format!("{name}!")));
        let row = catalog.get("x").expect("there");
        assert_eq!(row.inherited, [("KEY", "KEY!"), ("B", "B!")].into_iter().collect());
        assert_eq!(row.missing_env(&row.inherited), ["MISSING"]);
    }
}
