//! How a manager is made.

use std::path::PathBuf;

use agents::{AgentSpec, Catalog};
use ipc_protocol::EnvVars;
use proxy_child::ChildToken;

use crate::{Deadlines, Error, HistoryLimits, ProxyManager, Result};

/// Which program is started as the fork server. It must call `proxy_child::run_if_child` first in `main`.
#[derive(Clone, Debug)]
pub enum Child {
    /// This file.
    Path(PathBuf),
    /// This very executable. The token proves that it can be one.
    Current(ChildToken),
}

impl Child {
    /// The path to start.
    pub(crate) fn program(&self) -> PathBuf {
        match self {
            // A bare name is a file here, not something to be looked up in a PATH.
            Self::Path(path) => std::path::absolute(path).unwrap_or_else(|_| path.clone()),
            // Works even if the file was replaced or removed since.
            Self::Current(_) => PathBuf::from("/proc/self/exe"),
        }
    }
}

/// What a [`ProxyManager`] is made from.
#[derive(Clone, Debug)]
pub struct Builder {
    pub(crate) child: Child,
    pub(crate) base_env: EnvVars,
    pub(crate) catalog: Catalog,
    pub(crate) deadlines: Deadlines,
    pub(crate) history: HistoryLimits,
    pub(crate) ended_sessions: usize,
}

impl Builder {
    pub(crate) fn new(child: Child) -> Self {
        Self {
            child,
            base_env: EnvVars::default(),
            catalog: Catalog::default(),
            deadlines: Deadlines::default(),
            history: HistoryLimits::default(),
            ended_sessions: 100,
        }
    }

    /// Environment of every agent (PATH, HOME, …), beneath the catalog's and the session's. Empty by default: nothing is
    /// inherited.
    #[must_use]
    pub fn base_env(mut self, env: EnvVars) -> Self {
        self.base_env = env;
        self
    }

    /// Adds an agent to the catalog, or replaces the one of that id.
    #[must_use]
    pub fn agent(mut self, spec: AgentSpec) -> Self {
        self.catalog.add(spec);
        self
    }

    /// How long calls may take.
    #[must_use]
    pub fn deadlines(mut self, deadlines: Deadlines) -> Self {
        self.deadlines = deadlines;
        self
    }

    /// How much of each session's events is kept in memory.
    #[must_use]
    pub fn history(mut self, limits: HistoryLimits) -> Self {
        self.history = limits;
        self
    }

    /// How many ended sessions are remembered with their events and receipts; the one that ended longest ago is
    /// forgotten first. 100 by default.
    #[must_use]
    pub fn ended_sessions(mut self, keep: usize) -> Self {
        self.ended_sessions = keep;
        self
    }

    /// Starts the fork server and checks that it is one. The directory that the host is in now is the sessions' default.
    ///
    /// Must be called in a tokio runtime with I/O and time enabled; the manager's tasks live in it.
    ///
    /// # Errors
    /// [`Error::ChildUnusable`] if the child binary is missing or does not answer as one, [`Error::VersionMismatch`] if
    /// it is of another build, [`Error::FdsExhausted`], [`Error::System`]. No process is left then.
    pub async fn build(self) -> Result<ProxyManager> {
        let cwd = std::env::current_dir().map_err(|error| Error::system("reading the working directory", &error))?;
        let cwd = cwd.into_os_string().into_string().map_err(|cwd| Error::InvalidConfig {
            field: "cwd",
            reason: format!("the host's working directory {cwd:?} is not UTF-8: change to another one first"),
        })?;
        ProxyManager::start(self, cwd).await
    }
}
