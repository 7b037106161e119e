//! How a manager is made.

use std::{path::PathBuf, time::Duration};

use agents::{AgentSpec, Catalog, ModelConfig, Profiles};
use ipc_protocol::{Containment, EnvVars};
use proxy_child::ChildToken;

use event_log::Retention;

use crate::{
    ActionRule, Deadlines, Error, HistoryLimits, LogFailure, ProxyManager, Result, launch::Kit,
    supervision::SessionBounds,
};

/// Descriptors that are kept for everything but sessions.
const DESCRIPTOR_RESERVE: u64 = 32;
/// How long sessions may be idle where they are kept.
const IDLE_SUSPEND: Duration = Duration::from_secs(300);

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
    pub(crate) kit: Kit,
    pub(crate) deadlines: Deadlines,
    /// `None`: what suits, with an event log or without.
    pub(crate) history: Option<HistoryLimits>,
    pub(crate) ended_sessions: usize,
    pub(crate) containment: Containment,
    pub(crate) cgroup_parent: Option<PathBuf>,
    pub(crate) state_dir: Option<PathBuf>,
    pub(crate) bounds: SessionBounds,
    /// `None`: what suits, with a state directory or without.
    pub(crate) idle_suspend: Option<Duration>,
    pub(crate) log_failure: LogFailure,
    pub(crate) retention: Retention,
    pub(crate) rules: Vec<ActionRule>,
    pub(crate) descriptor_reserve: u64,
}

impl Builder {
    pub(crate) fn new(child: Child) -> Self {
        Self {
            child,
            kit: Kit { max_depth: 3, ..Kit::default() },
            deadlines: Deadlines::default(),
            history: None,
            ended_sessions: 100,
            containment: Containment::default(),
            cgroup_parent: None,
            state_dir: None,
            bounds: SessionBounds::default(),
            idle_suspend: None,
            log_failure: LogFailure::default(),
            retention: Retention::default(),
            rules: Vec::new(),
            descriptor_reserve: DESCRIPTOR_RESERVE,
        }
    }

    /// Environment of every agent (PATH, HOME, …), beneath the catalog's and the session's. Empty by default: nothing is
    /// inherited.
    #[must_use]
    pub fn base_env(mut self, env: EnvVars) -> Self {
        self.kit.base_env = env;
        self
    }

    /// Adds an agent to the catalog, or replaces the one of that id.
    #[must_use]
    pub fn agent(mut self, spec: AgentSpec) -> Self {
        self.kit.catalog.add(spec);
        self
    }

    /// The agents there are, in place of the built-in ones.
    #[must_use]
    pub fn catalog(mut self, catalog: Catalog) -> Self {
        self.kit.catalog = catalog;
        self
    }

    /// The profiles that sessions may name (`AgentSessionConfig::profile`). None by default.
    #[must_use]
    pub fn profiles(mut self, profiles: Profiles) -> Self {
        self.kit.profiles = profiles;
        self
    }

    /// The model configurations that sessions may name (`AgentSessionConfig::model_config`): where a model is, and the key to
    /// it. None by default.
    #[must_use]
    pub fn models(mut self, models: impl IntoIterator<Item = ModelConfig>) -> Self {
        self.kit.models = models.into_iter().map(|model| (model.name.clone(), model)).collect();
        self
    }

    /// How many sessions deep a session may be, where agents start sessions themselves
    /// (`AgentSessionConfig::depth` + 1). 3 by default.
    #[must_use]
    pub fn max_depth(mut self, sessions: u32) -> Self {
        self.kit.max_depth = sessions;
        self
    }

    /// How long a session may be idle before it is suspended: its processes end, and its conversation is kept, for
    /// [`ProxyManager::resume_session`] or the next prompt. Only sessions with a conversation that can be gone on with are.
    /// Zero is never. By default 300 seconds with a [`Builder::state_dir`], and never without one, where a suspended session
    /// would go with the manager; a session may say it for itself (`Lifecycle::idle_suspend_ms`).
    #[must_use]
    pub fn idle_suspend(mut self, after: Duration) -> Self {
        self.idle_suspend = Some(after);
        self
    }

    /// The same for a session that does not say it, in milliseconds; 0 for never.
    pub(crate) fn idle_suspend_ms(&self) -> u64 {
        let usual = if self.state_dir.is_some() { IDLE_SUSPEND } else { Duration::ZERO };
        self.idle_suspend.unwrap_or(usual).as_millis().try_into().unwrap_or(u64::MAX)
    }

    /// What becomes of a session whose events cannot be written to the event log. It goes on by default.
    #[must_use]
    pub fn log_failure(mut self, failure: LogFailure) -> Self {
        self.log_failure = failure;
        self
    }

    /// What of the event log is kept. Everything by default, until its session is deleted.
    #[must_use]
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Rules by which events that others append become actions. None by default. One that fails its check fails the build.
    #[must_use]
    pub fn rules(mut self, rules: impl IntoIterator<Item = ActionRule>) -> Self {
        self.rules = rules.into_iter().collect();
        self
    }

    /// How long calls may take.
    #[must_use]
    pub fn deadlines(mut self, deadlines: Deadlines) -> Self {
        self.deadlines = deadlines;
        self
    }

    /// How much of each session's events is kept in memory. [`HistoryLimits::default`] without a state directory,
    /// [`HistoryLimits::BESIDE_LOG`] with one.
    #[must_use]
    pub fn history(mut self, limits: HistoryLimits) -> Self {
        self.history = Some(limits);
        self
    }

    /// How many ended sessions are remembered with their events and receipts; the one that ended longest ago is
    /// forgotten first. 100 by default.
    #[must_use]
    pub fn ended_sessions(mut self, keep: usize) -> Self {
        self.ended_sessions = keep;
        self
    }

    /// How many sessions there may be at once, those that start among them. Without bound by default. A start beyond it waits
    /// in the [`Builder::queue`], or is refused ([`Error::TooManySessions`]).
    #[must_use]
    pub fn max_sessions(mut self, sessions: usize) -> Self {
        self.bounds.total = Some(sessions);
        self
    }

    /// How many of them may be of one user (`AgentSessionConfig::user_id`). Those that name none are not counted.
    #[must_use]
    pub fn max_sessions_per_user(mut self, sessions: usize) -> Self {
        self.bounds.per_user = Some(sessions);
        self
    }

    /// How many of them may be of one agent.
    #[must_use]
    pub fn max_sessions_per_agent(mut self, sessions: usize) -> Self {
        self.bounds.per_agent = Some(sessions);
        self
    }

    /// How many starts may wait for a place, and for how long each. None by default. Users take turns, each one's starts keep
    /// their order, and a start that waits for a bound of its user or agent holds up no other.
    #[must_use]
    pub fn queue(mut self, starts: usize, longest_wait: Duration) -> Self {
        self.bounds.queue = starts;
        self.bounds.longest_wait = longest_wait;
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
    ///
    /// The sessions' own homes are there too, with what keys were written to them, until the sessions are deleted
    /// ([`ProxyManager::delete_session`]). Without a state directory they are in a temporary one (`TMPDIR` of the base
    /// environment, else `/tmp`), for this user only, and go with the manager: unless it is killed.
    #[must_use]
    pub fn state_dir(mut self, directory: PathBuf) -> Self {
        self.state_dir = Some(directory);
        self
    }

    /// How many of this process's file descriptors no session is to take, so that listing, reading and ending sessions always
    /// works; at most a quarter of the soft limit. A start that would leave fewer fails with [`Error::FdsExhausted`]. 32 by
    /// default.
    ///
    /// A session takes two to four descriptors of this process. The library leaves the limit as it is:
    /// [`raise_descriptor_limit`](crate::raise_descriptor_limit) raises it, for this process and not for agents. The fork server
    /// raises its own.
    #[must_use]
    pub fn descriptor_reserve(mut self, descriptors: u64) -> Self {
        self.descriptor_reserve = descriptors;
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
    /// [`Error::StateDirInUse`] if the state directory is another manager's, [`Error::InvalidConfig`] if it is not safe to use;
    /// [`Error::FdsExhausted`], [`Error::System`]. No process is left then.
    pub async fn build(self) -> Result<ProxyManager> {
        let cwd = std::env::current_dir().map_err(|error| Error::system("reading the working directory", &error))?;
        let cwd = cwd.into_os_string().into_string().map_err(|cwd| Error::InvalidConfig {
            field: "cwd",
            reason: format!("the host's working directory {cwd:?} is not UTF-8: change to another one first"),
        })?;
        ProxyManager::start(self, cwd).await
    }
}
