//! Instances of an agent that is a server itself, one for each model configuration: started when somebody asks for one, stopped when
//! nobody does for a while, and at most so many at once. Each is a session with a home of its own.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use proxy_manager::{
    AgentSessionConfig, Error, Home, KillOptions, ProxyManager, ResumeOptions, SessionId, SessionInfo, SessionState,
};
use serde::{Deserialize, Serialize};

use crate::{ProblemDetails, access::Caller, requests::RouteResult};

/// Beginning of the sessions' ids.
const PREFIX: &str = "instance-";

/// Longest pause between two looks for instances that nobody uses.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Settings of instances.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InstanceOptions {
    /// Configuration that each instance begins with. Its agent is a server: `opencode`.
    pub config: AgentSessionConfig,
    /// True if an instance's name is that of its model configuration.
    pub names_model: bool,
    /// Time without use after which an instance is stopped.
    pub idle_timeout: Duration,
    /// Most instances at once.
    pub max_instances: usize,
}

impl InstanceOptions {
    /// Creates options for an agent of the catalog: five minutes without use, five instances.
    pub fn new(agent: &str) -> Self {
        let config = AgentSessionConfig { home: Some(Home::Own), ..AgentSessionConfig::new(agent) };
        Self { config, names_model: true, idle_timeout: Duration::from_secs(300), max_instances: 5 }
    }

    /// Sets the time without use after which an instance is stopped.
    #[must_use]
    pub fn with_idle_timeout(self, idle_timeout: Duration) -> Self {
        Self { idle_timeout, ..self }
    }

    /// Sets the most instances at once.
    #[must_use]
    pub fn with_max_instances(self, max_instances: usize) -> Self {
        Self { max_instances, ..self }
    }

    /// Names instances as one likes: they have no model configuration.
    #[must_use]
    pub fn without_models(self) -> Self {
        Self { names_model: false, ..self }
    }
}

/// State of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum InstanceStatus {
    /// It is being started.
    Starting,
    /// It answers on its port.
    Ready,
    /// It does not run.
    Stopped,
}

/// Instance of an agent's own server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AgentInstance {
    /// Name: that of its model configuration.
    pub id: String,
    /// Port on loopback where the agent's server answers; `null` while it does not, or for an agent that is none.
    pub port: Option<u16>,
    /// State of the instance.
    pub status: InstanceStatus,
    /// Session of the instance.
    pub session_id: SessionId,
    /// Milliseconds since somebody asked for it, or it had a turn.
    pub idle_ms: u64,
}

/// Instances of one manager.
#[derive(Clone, Debug)]
pub struct InstancePool(Arc<PoolState>);

#[derive(Debug)]
struct PoolState {
    manager: ProxyManager,
    options: InstanceOptions,
    /// Times of the last use, by name.
    used: Mutex<HashMap<String, Instant>>,
    /// One start or stop at a time, so that the bound holds.
    changes: tokio::sync::Mutex<()>,
}

impl InstancePool {
    /// Creates a pool. Needs a tokio runtime, on which it looks for instances that nobody uses.
    pub fn start(manager: &ProxyManager, options: InstanceOptions) -> Self {
        let pool = Arc::new(PoolState {
            manager: manager.clone(),
            options,
            used: Mutex::default(),
            changes: tokio::sync::Mutex::default(),
        });
        tokio::spawn(reap(Arc::downgrade(&pool)));
        Self(pool)
    }

    /// Returns the instance of this name, started if it does not run. The start goes on if the caller leaves.
    ///
    /// # Errors
    /// `usage` for a name that cannot be one; `too-many-sessions`; `refused` beyond the policy; those of a start.
    pub(crate) async fn ready(&self, caller: Caller, name: &str) -> RouteResult<AgentInstance> {
        let (pool, name) = (self.0.clone(), name.to_owned());
        let id = session_id(&name)?;
        let started = tokio::spawn(async move {
            let _one_at_a_time = pool.changes.lock().await;
            pool.note_use(&name);
            pool.start(&caller, &name, &id).await?;
            pool.note_use(&name);
            pool.manager.session(&id).map(|session| pool.describe(&name, &session.info())).map_err(ProblemDetails::from)
        });
        started.await.map_err(|error| ProblemDetails::failed(format!("the start broke off: {error}")))?
    }

    /// Lists the instances that run, by name.
    pub(crate) fn list(&self) -> Vec<AgentInstance> {
        let mut instances: Vec<AgentInstance> =
            self.0.running().iter().map(|(name, info)| self.0.describe(name, info)).collect();
        instances.sort_by(|one, other| one.id.cmp(&other.id));
        instances
    }

    /// Stops an instance, and retains its conversations where the agent can go on with them.
    ///
    /// # Errors
    /// `unknown-session` if no such instance runs; those of a kill.
    pub(crate) async fn stop(&self, name: &str) -> RouteResult<AgentInstance> {
        let (pool, name) = (self.0.clone(), name.to_owned());
        let id = session_id(&name)?;
        let stopped = tokio::spawn(async move {
            let _one_at_a_time = pool.changes.lock().await;
            let session = pool.manager.session(&id)?;
            if !runs(&session.info().state) {
                return Err(Error::UnknownSession { session: id }.into());
            }
            pool.stop(&id).await?;
            pool.used().remove(&name);
            Ok(pool.describe(&name, &session.info()))
        });
        stopped.await.map_err(|error| ProblemDetails::failed(format!("the stop broke off: {error}")))?
    }
}

impl PoolState {
    fn used(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_use(&self, name: &str) {
        self.used().insert(name.to_owned(), Instant::now());
    }

    /// Sessions of instances that run, by name.
    fn running(&self) -> Vec<(String, SessionInfo)> {
        let sessions = self.manager.list_sessions().into_iter().filter(|session| runs(&session.state));
        let named = |session: SessionInfo| {
            let name = session.metadata.session_id.as_str().strip_prefix(PREFIX)?.to_owned();
            Some((name, session))
        };
        sessions.filter_map(named).collect()
    }

    /// Starts the instance for a caller, or resumes it, unless it runs.
    async fn start(&self, caller: &Caller, name: &str, id: &SessionId) -> RouteResult<()> {
        let state = self.manager.session(id).ok().map(|session| session.info().state);
        if state.as_ref().is_some_and(runs) {
            return Ok(());
        }
        let running = self.running().len();
        if running >= self.options.max_instances {
            let detail = format!("{running} instances run, and there may be no more: stop one, or try again later");
            return Err(ProblemDetails::new("too-many-sessions", detail));
        }
        if state.as_ref().is_some_and(SessionState::is_suspended) {
            caller.check_resume(id, &ResumeOptions::default())?;
            self.manager.resume_session(id).await?;
            caller.has_started(id);
            return Ok(());
        }
        let mut config = self.options.config.clone();
        config.session_id = id.clone();
        config.lifecycle.replace = true;
        // Whoever speaks to the agent's server is unknown to the session: this pool says what is idle.
        config.lifecycle.idle_suspend_ms = Some(0);
        if self.options.names_model {
            config.model_config = Some(name.to_owned());
        }
        caller.apply_policy(&mut config)?;
        self.manager.start_session(config).await?;
        caller.has_started(id);
        Ok(())
    }

    async fn stop(&self, id: &SessionId) -> RouteResult<()> {
        // One whose conversation cannot be gone on with is ended.
        if self.manager.suspend_session(id, KillOptions::default()).await.is_err() {
            self.manager.kill_session(id, KillOptions::default()).await?;
        }
        Ok(())
    }

    fn describe(&self, name: &str, info: &SessionInfo) -> AgentInstance {
        let id = &info.metadata.session_id;
        let is_running = runs(&info.state);
        let endpoint = self.manager.record(id).ok().and_then(|record| record.endpoint).filter(|_| is_running);
        let idle = self.used().get(name).map_or(Duration::ZERO, Instant::elapsed);
        AgentInstance {
            id: name.to_owned(),
            port: endpoint.as_deref().and_then(port),
            status: match (is_running, &info.state) {
                (_, SessionState::Starting) => InstanceStatus::Starting,
                (true, _) => InstanceStatus::Ready,
                (false, _) => InstanceStatus::Stopped,
            },
            session_id: id.clone(),
            idle_ms: u64::try_from(idle.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Stops instances that nobody uses. One in a turn is in use.
    async fn reap(&self) {
        let running = self.running();
        let is_running = |name: &String| running.iter().any(|(known, _)| known == name);
        self.used().retain(|name, _| is_running(name));
        for (name, info) in &running {
            let used = match info.state {
                SessionState::Busy { .. } | SessionState::Starting => None,
                _ => self.used().get(name).copied(),
            };
            match used {
                // It is of an earlier server, or in use.
                None => self.note_use(name),
                Some(used) if used.elapsed() >= self.options.idle_timeout => self.stop_if_idle(name, info).await,
                Some(_) => {}
            }
        }
    }

    async fn stop_if_idle(&self, name: &str, info: &SessionInfo) {
        let _one_at_a_time = self.changes.lock().await;
        // Somebody may have asked for it meanwhile.
        if self.used().get(name).is_some_and(|used| used.elapsed() < self.options.idle_timeout) {
            return;
        }
        tracing::info!(instance = name, "stopping an instance that nobody uses");
        if let Err(problem) = self.stop(&info.metadata.session_id).await {
            tracing::warn!(instance = name, problem = problem.detail, "failed to stop an instance");
        }
    }
}

/// Looks for instances that nobody uses, for as long as the pool is there.
async fn reap(pool: Weak<PoolState>) {
    loop {
        let Some(idle) = pool.upgrade().map(|pool| pool.options.idle_timeout) else { return };
        tokio::time::sleep((idle / 4).clamp(Duration::from_millis(10), LONGEST_PAUSE)).await;
        match pool.upgrade() {
            Some(pool) => pool.reap().await,
            None => return,
        }
    }
}

fn runs(state: &SessionState) -> bool {
    matches!(state, SessionState::Starting | SessionState::Idle | SessionState::Busy { .. })
}

/// Returns the session of an instance.
fn session_id(name: &str) -> RouteResult<SessionId> {
    let invalid = |_| {
        ProblemDetails::usage(format!("{name:?} is no name of an instance: up to 55 characters of A-Z a-z 0-9 . _ -"))
    };
    format!("{PREFIX}{name}").parse().map_err(invalid).and_then(|id: SessionId| match name.is_empty() {
        true => Err(ProblemDetails::usage("an instance has a name")),
        false => Ok(id),
    })
}

/// Returns the port in an address such as `http://127.0.0.1:4097`.
fn port(endpoint: &str) -> Option<u16> {
    let (_, after) = endpoint.trim_end_matches('/').rsplit_once(':')?;
    after.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_names() {
        assert_eq!(port("http://127.0.0.1:4097"), Some(4097));
        assert_eq!(port("http://[::1]:80/"), Some(80));
        assert_eq!(port("http://127.0.0.1:4097/api"), Some(4097));
        assert_eq!(port("unix"), None);
        assert_eq!(session_id("5").map(|id| id.to_string()), Ok("instance-5".into()));
        assert!(session_id("a/b").is_err() && session_id("").is_err() && session_id(&"x".repeat(60)).is_err());
    }
}
