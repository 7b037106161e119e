//! How a manager is made.

use std::path::PathBuf;

use agents::{AgentSpec, Catalog};
use ipc_protocol::{Containment, EnvVars};
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
    pub(crate) containment: Containment,
    pub(crate) cgroup_parent: Option<PathBuf>,
    pub(crate) state_dir: Option<PathBuf>,
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
            containment: Containment::default(),
            cgroup_parent: None,
            state_dir: None,
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

    /// Which layers hold sessions that do not say it themselves (`AgentSessionConfig::containment`). By default a cgroup
    /// where one can be had, else the baseline.
    #[must_use]
    pub fn containment(mut self, containment: Containment) -> Self {
        self.containment = containment;
        self
    }

    /// Where the manager makes its cgroups: a directory of a cgroup v2 tree that this user may write to, absolute. By
    /// default it looks for one: its own cgroup first, then those above.
    #[must_use]
    pub fn cgroup_parent(mut self, directory: PathBuf) -> Self {
        self.cgroup_parent = Some(directory);
        self
    }

    /// A directory in which the manager writes down which processes its sessions have. If host, fork server and proxies
    /// are all killed at once, the next manager with the same directory ends what they left, in [`Builder::build`], and
    /// tells in [`ProxyManager::recovered`]. It is made (for this user only) where there is none; one manager at a time has
    /// it. Without one, only what is in a cgroup is found again.
    #[must_use]
    pub fn state_dir(mut self, directory: PathBuf) -> Self {
        self.state_dir = Some(directory);
        self
    }

    /// Tries what sessions can be held by, ends what dead managers left, starts the fork server and checks that it is one. The directory that the host is in now is the sessions' default.
    ///
    /// Usually some milliseconds; up to some ten seconds where there are processes to be ended that do not want to.
    /// Must be called in a tokio runtime with I/O and time enabled; the manager's tasks live in it.
    ///
    /// # Errors
    /// [`Error::ChildUnusable`] if the child binary is missing or does not answer as one, [`Error::VersionMismatch`] if
    /// it is of another build; [`Error::ContainmentUnavailable`] if the [`Builder::containment`] asked for cannot be had;
    /// [`Error::InvalidConfig`] if the state directory is another manager's or not safe to use; [`Error::FdsExhausted`],
    /// [`Error::System`]. No process is left then.
    pub async fn build(self) -> Result<ProxyManager> {
        let cwd = std::env::current_dir().map_err(|error| Error::system("reading the working directory", &error))?;
        let cwd = cwd.into_os_string().into_string().map_err(|cwd| Error::InvalidConfig {
            field: "cwd",
            reason: format!("the host's working directory {cwd:?} is not UTF-8: change to another one first"),
        })?;
        ProxyManager::start(self, cwd).await
    }
}
