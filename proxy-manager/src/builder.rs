//! Configuration of a manager before it is built.

use std::{path::PathBuf, time::Duration};

use agents::{AgentSpec, Catalog, ModelConfig, PriceTable, Profiles};
use ipc_protocol::{Containment, EnvVars};

use event_log::Retention;

use crate::{
    actions::ActionRule,
    deadlines::Deadlines,
    fork_server::ChildProgram,
    history::{HistoryLimits, LogFailure},
    launch::AgentDefaults,
    replication::Replication,
    supervision::{SessionBounds, WarmTarget},
};

/// Descriptors that are kept for everything but sessions.
const DESCRIPTOR_RESERVE: u64 = 32;
/// Time that sessions may be idle where they are kept.
const IDLE_SUSPEND: Duration = Duration::from_secs(300);
/// Age at which a warm session is replaced.
const WARM_AGE: Duration = Duration::from_secs(600);

/// Configuration from which a [`ProxyManager`](crate::ProxyManager) is built.
///
/// ```no_run
/// # async fn example(child: proxy_manager::ChildProgram) -> proxy_manager::Result<()> {
/// use std::time::Duration;
///
/// use proxy_manager::ProxyManager;
///
/// let manager = ProxyManager::builder(child)
///     .base_env([("PATH", "/usr/bin:/bin")].into_iter().collect())
///     .state_dir("/var/lib/my-program".into())
///     .max_sessions(8)
///     .queue(100, Duration::from_secs(60))
///     .build()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ManagerBuilder {
    pub(crate) child: ChildProgram,
    pub(crate) agent_defaults: AgentDefaults,
    pub(crate) deadlines: Deadlines,
    /// `None`: the default, which depends on whether there is an event log.
    pub(crate) history: Option<HistoryLimits>,
    pub(crate) ended_sessions: usize,
    pub(crate) containment: Containment,
    pub(crate) cgroup_parent: Option<PathBuf>,
    pub(crate) hidden_files: Vec<PathBuf>,
    pub(crate) state_dir: Option<PathBuf>,
    pub(crate) workspaces: Option<PathBuf>,
    pub(crate) bounds: SessionBounds,
    pub(crate) warm: Vec<WarmTarget>,
    pub(crate) warm_age: Duration,
    /// `None`: the default, which depends on whether there is a state directory.
    pub(crate) idle_suspend: Option<Duration>,
    pub(crate) log_failure: LogFailure,
    pub(crate) retention: Retention,
    pub(crate) rules: Vec<ActionRule>,
    pub(crate) descriptor_reserve: u64,
    pub(crate) replication: Option<Replication>,
    pub(crate) looks_for_containers: bool,
}

impl ManagerBuilder {
    pub(crate) fn new(child: ChildProgram) -> Self {
        Self {
            child,
            agent_defaults: AgentDefaults { max_depth: 3, ..AgentDefaults::default() },
            deadlines: Deadlines::default(),
            history: None,
            ended_sessions: 100,
            containment: Containment::default(),
            cgroup_parent: None,
            hidden_files: Vec::new(),
            state_dir: None,
            workspaces: None,
            bounds: SessionBounds::default(),
            warm: Vec::new(),
            warm_age: WARM_AGE,
            idle_suspend: None,
            log_failure: LogFailure::default(),
            retention: Retention::default(),
            rules: Vec::new(),
            descriptor_reserve: DESCRIPTOR_RESERVE,
            replication: None,
            looks_for_containers: false,
        }
    }

    /// Sets the environment of every agent (PATH, HOME, …); the catalog's and the session's variables override it.
    /// Empty by default: agents inherit nothing.
    #[must_use]
    pub fn base_env(mut self, env: EnvVars) -> Self {
        self.agent_defaults.base_env = env;
        self
    }

    /// Sets the environment of container engines (PATH, HOME, `XDG_RUNTIME_DIR`, `DOCKER_HOST`, …). By default it is that of every agent.
    #[must_use]
    pub fn engine_env(mut self, env: EnvVars) -> Self {
        self.agent_defaults.engine_env = Some(env);
        self
    }

    /// Adds an agent to the catalog, or replaces the one with that id.
    #[must_use]
    pub fn agent(mut self, spec: AgentSpec) -> Self {
        self.agent_defaults.catalog.add(spec);
        self
    }

    /// Replaces the built-in agents.
    #[must_use]
    pub fn catalog(mut self, catalog: Catalog) -> Self {
        self.agent_defaults.catalog = catalog;
        self
    }

    /// Sets the profiles that sessions may name (`AgentSessionConfig::profile`). None by default.
    #[must_use]
    pub fn profiles(mut self, profiles: Profiles) -> Self {
        self.agent_defaults.profiles = profiles;
        self
    }

    /// Sets the model configurations that sessions may name (`AgentSessionConfig::model_config`): a model's address and
    /// key. None by default.
    #[must_use]
    pub fn models(mut self, models: impl IntoIterator<Item = ModelConfig>) -> Self {
        self.agent_defaults.models = models.into_iter().map(|model| (model.name.clone(), model)).collect();
        self
    }

    /// Sets the prices of models: what a turn costs where its agent does not tell. None by default, and none is built in.
    #[must_use]
    pub fn prices(self, prices: PriceTable) -> Self {
        self.agent_defaults.prices.replace(prices);
        self
    }

    /// Adds a path that no session with a sandbox can read. The state directory is one anyway.
    #[must_use]
    pub fn hide(mut self, path: PathBuf) -> Self {
        self.agent_defaults.hidden.push(path);
        self
    }

    /// Sets the directory of workspaces (`AgentSessionConfig::workspace`), for a manager without a state directory: they stay there after
    /// its end. By default they are in the state directory, and without one there are none.
    #[must_use]
    pub fn workspaces(mut self, directory: PathBuf) -> Self {
        self.workspaces = Some(directory);
        self
    }

    /// Sets the maximum nesting of sessions, where agents start sessions themselves (`AgentSessionConfig::depth` + 1).
    /// 3 by default.
    #[must_use]
    pub fn max_depth(mut self, sessions: u32) -> Self {
        self.agent_defaults.max_depth = sessions;
        self
    }

    /// Sets the idle time after which a session is suspended: its processes end, and its conversation is retained for
    /// [`ProxyManager::resume_session`](crate::ProxyManager::resume_session) or the next prompt. Only sessions whose conversation can be resumed are
    /// suspended. Zero means never. Default: 300 seconds with a [`ManagerBuilder::state_dir`], and never without one, since a
    /// suspended session would be lost with the manager. A session may override it (`Lifecycle::idle_suspend_ms`).
    #[must_use]
    pub fn idle_suspend(mut self, after: Duration) -> Self {
        self.idle_suspend = Some(after);
        self
    }

    /// Idle time in milliseconds for a session that sets none; 0 for never.
    pub(crate) fn idle_suspend_ms(&self) -> u64 {
        let usual = if self.state_dir.is_some() { IDLE_SUSPEND } else { Duration::ZERO };
        self.idle_suspend.unwrap_or(usual).as_millis().try_into().unwrap_or(u64::MAX)
    }

    /// Sets the policy for a session whose events cannot be written to the event log. By default the session continues.
    #[must_use]
    pub fn log_failure(mut self, failure: LogFailure) -> Self {
        self.log_failure = failure;
        self
    }

    /// Sets the retention of the event log. By default all events are retained until their session is deleted.
    #[must_use]
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Sets the rules that turn events appended by others into actions. None by default. An invalid rule fails the
    /// build.
    #[must_use]
    pub fn rules(mut self, rules: impl IntoIterator<Item = ActionRule>) -> Self {
        self.rules = rules.into_iter().collect();
        self
    }

    /// Sets the deadlines of calls.
    #[must_use]
    pub fn deadlines(mut self, deadlines: Deadlines) -> Self {
        self.deadlines = deadlines;
        self
    }

    /// Bounds the events of each session that are kept in memory. [`HistoryLimits::default`] without a state directory,
    /// [`HistoryLimits::BESIDE_LOG`] with one.
    #[must_use]
    pub fn history(mut self, limits: HistoryLimits) -> Self {
        self.history = Some(limits);
        self
    }

    /// Sets the number of ended sessions that are remembered with their events and receipts. The session that ended
    /// longest ago is forgotten first. 100 by default.
    #[must_use]
    pub fn ended_sessions(mut self, keep: usize) -> Self {
        self.ended_sessions = keep;
        self
    }

    /// Bounds the number of concurrent sessions, starting ones included. Unbounded by default. A start beyond the bound
    /// waits in the [`ManagerBuilder::queue`], or is refused ([`Error::TooManySessions`](crate::Error::TooManySessions)).
    #[must_use]
    pub fn max_sessions(mut self, sessions: usize) -> Self {
        self.bounds.total = Some(sessions);
        self
    }

    /// Bounds the concurrent sessions of one user (`AgentSessionConfig::user_id`). Sessions that name no user are not
    /// counted.
    #[must_use]
    pub fn max_sessions_per_user(mut self, sessions: usize) -> Self {
        self.bounds.per_user = Some(sessions);
        self
    }

    /// Bounds the concurrent sessions of one agent.
    #[must_use]
    pub fn max_sessions_per_agent(mut self, sessions: usize) -> Self {
        self.bounds.per_agent = Some(sessions);
        self
    }

    /// Sets the number of starts that may wait for a place, and the longest wait of each. None by default. Users take
    /// turns, and each user's starts keep their order. A start held back by the bound of its user or agent delays no
    /// other.
    #[must_use]
    pub fn queue(mut self, starts: usize, longest_wait: Duration) -> Self {
        self.bounds.queue = starts;
        self.bounds.longest_wait = longest_wait;
        self
    }

    /// Sets the sessions that are started ahead, so that [`ProxyManager::start_or_claim`](crate::ProxyManager::start_or_claim) has one at
    /// once. None by default. They count as sessions, for all bounds but that of users; a start that lacks a place ends one.
    #[must_use]
    pub fn warm(mut self, targets: impl IntoIterator<Item = WarmTarget>) -> Self {
        self.warm = targets.into_iter().collect();
        self
    }

    /// Sets the age at which a session that nobody has claimed is ended, and another one started. 10 minutes by default.
    #[must_use]
    pub fn warm_age(mut self, age: Duration) -> Self {
        self.warm_age = age;
        self
    }

    /// Sets the containment of sessions that name none (`AgentSessionConfig::containment`). By default a cgroup where
    /// one can be had, else the baseline.
    #[must_use]
    pub fn containment(mut self, containment: Containment) -> Self {
        self.containment = containment;
        self
    }

    /// Sets the directory for the manager's cgroups: absolute, in a cgroup v2 tree, writable by this user. By default
    /// the manager tries its own cgroup first, then those above.
    #[must_use]
    pub fn cgroup_parent(mut self, directory: PathBuf) -> Self {
        self.cgroup_parent = Some(directory);
        self
    }

    /// Hides files and directories from every session, besides the parts of them that are its own. What a server keeps its tokens,
    /// its log and its sockets in belongs here: with them an agent would be an operator. Sessions of root have a mount namespace and a
    /// landlock scope for it, those of others a user and mount namespace, in which sudo has no effect. Where these cannot be had
    /// rules of Landlock hide them; where those cannot either, no session starts.
    #[must_use]
    pub fn hidden_files(mut self, files: Vec<PathBuf>) -> Self {
        self.hidden_files = files;
        self
    }

    /// Sets the directory in which the manager records the processes of its sessions. If host, fork server and proxies
    /// are all killed at once, the next manager with the same directory ends the processes they left, in
    /// [`ManagerBuilder::build`], and reports them in [`ProxyManager::recovered`](crate::ProxyManager::recovered). A missing directory is created for this
    /// user only. One manager at a time owns it. Without a state directory, only processes in a cgroup are found again.
    ///
    /// The directory also has the sessions' own homes, with the keys written to them, until the sessions are deleted
    /// ([`ProxyManager::delete_session`](crate::ProxyManager::delete_session)). Without a state directory the homes are in a temporary directory (`TMPDIR`
    /// of the base environment, else `/tmp`), for this user only. They are removed with the manager, unless it is
    /// killed.
    #[must_use]
    pub fn state_dir(mut self, directory: PathBuf) -> Self {
        self.state_dir = Some(directory);
        self
    }

    /// Has the manager look at its start for containers whose host was killed together with all supervisors, and remove them, in the
    /// background. With the first session in a container it does so anyway. Off by default.
    #[must_use]
    pub fn remove_dead_containers(mut self) -> Self {
        self.looks_for_containers = true;
        self
    }

    /// Replicates the events of sessions to a fleet: see [`replication`](crate::replication). Needs a [`ManagerBuilder::state_dir`].
    /// Off by default.
    #[must_use]
    pub fn replication(mut self, replication: Replication) -> Self {
        self.replication = Some(replication);
        self
    }

    /// Reserves file descriptors of this process that no session may take, so that listing, reading and ending sessions always
    /// works; at most a quarter of the soft limit. A start that would leave fewer fails with [`Error::FdsExhausted`](crate::Error::FdsExhausted). 32 by
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
}
