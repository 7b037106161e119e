//! Warm sessions: started ahead with nobody's labels, and handed to the caller of a start.

use std::{sync::Arc, time::Duration};

use ipc_protocol::{AgentSessionConfig, Event, HostDeath, WorkspaceKind};

use super::ManagedSession;
use crate::{
    description::{SessionDescription, SessionMetadata},
    error::{Error, Result},
    launch::{AgentDefaults, SessionLaunch},
};

/// What a warm session was started from.
#[derive(Debug)]
pub(crate) struct WarmStart {
    /// Configuration with its profile and all defaults.
    config: AgentSessionConfig,
    /// Catalog, profiles and models of that moment.
    defaults: Arc<AgentDefaults>,
}

/// What a warm session is from its hand-out on.
#[derive(Debug)]
pub(crate) struct WarmClaim {
    pub(super) description: SessionDescription,
    /// Configuration as the claimant gave it.
    pub(super) config: Arc<AgentSessionConfig>,
    /// Time since the agent was ready.
    waited: Duration,
}

impl WarmStart {
    /// Checks that a session can wait for its caller.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for what belongs to one start, or has a clock that would run meanwhile.
    pub(crate) fn new(launch: &SessionLaunch, defaults: Arc<AgentDefaults>) -> Result<Self> {
        let config = &launch.attempt.config;
        let refused = |reason: &str| Err(Error::InvalidConfig { field: "warm", reason: reason.to_owned() });
        if config.workspace.unwrap_or_default() != WorkspaceKind::Off {
            return refused("a workspace has the tree as it is at the start: no session that has one can be warm");
        }
        if config.lifecycle.before_start.is_some() || config.lifecycle.after_end.is_some() {
            return refused(
                "commands before the start and after the end are of one session: none that has them can be warm",
            );
        }
        if config.limits.wall_clock_ms.is_some() {
            return refused(
                "the limit of the session's time would run while it waits: no session that has it can be warm",
            );
        }
        if matches!(config.on_host_death, HostDeath::Detach { .. })
            || config.resume.is_some()
            || config.endpoint.is_some()
        {
            return refused("a session that resumes a conversation, detaches or joins a server cannot be warm");
        }
        Ok(Self { config: config.clone(), defaults })
    }

    /// Returns true if the session is what a start would make of `wanted`, but for labels.
    fn serves(&self, wanted: &AgentSessionConfig, defaults: &Arc<AgentDefaults>) -> bool {
        let mut same = wanted.clone();
        let AgentSessionConfig {
            session_id, user_id, workspace_id, agent_type, explicit, not_secret, lifecycle, ..
        } = self.config.clone();
        (same.session_id, same.user_id, same.workspace_id, same.agent_type) =
            (session_id, user_id, workspace_id, agent_type);
        (same.explicit, same.not_secret) = (explicit, not_secret);
        (same.lifecycle.key, same.lifecycle.title, same.lifecycle.tags) =
            (lifecycle.key, lifecycle.title, lifecycle.tags);
        Arc::ptr_eq(&self.defaults, defaults) && same == self.config
    }
}

impl WarmClaim {
    /// Makes `session` the one that `launch` would start, from the configuration that its caller gave.
    pub(crate) fn new(
        session: &ManagedSession,
        launch: &SessionLaunch,
        given: &AgentSessionConfig,
        waited: Duration,
    ) -> Self {
        let session_id = session.id().clone();
        let own = session.metadata();
        let metadata = SessionMetadata {
            session_id: session_id.clone(),
            home: own.home.clone(),
            ..launch.description.metadata.clone()
        };
        let description = SessionDescription { metadata, ..launch.description.clone() };
        Self { description, config: Arc::new(AgentSessionConfig { session_id, ..given.clone() }), waited }
    }

    /// User of the session.
    pub(super) fn user(&self) -> Option<&str> {
        self.description.metadata.user_id.as_deref()
    }

    /// Event that reports the hand-out.
    pub(super) fn event(&self) -> Event {
        let SessionMetadata { user_id, workspace_id, agent_type, .. } = self.description.metadata.clone();
        let warm_ms = u64::try_from(self.waited.as_millis()).unwrap_or(u64::MAX);
        Event::SessionClaimed { warm_ms, user_id, workspace_id, agent_type }
    }
}

impl ManagedSession {
    /// Marks a session that is about to start as warm.
    pub(crate) fn set_warm(&self, start: WarmStart) {
        // Set once.
        let _ = self.warm.set(start);
        self.update_view(|view| view.is_warm = true);
    }

    /// Returns true while a start may claim it, as far as is known here.
    pub(crate) fn is_claimable(&self) -> bool {
        let view = self.view.borrow();
        view.is_warm && view.is_idle()
    }

    /// Returns true while it waits for a start that claims it.
    pub(crate) fn is_warm(&self) -> bool {
        self.view.borrow().is_warm
    }

    /// Returns true if it was started from the agents, profiles and models that there are now.
    pub(crate) fn is_current(&self, defaults: &Arc<AgentDefaults>) -> bool {
        self.warm.get().is_some_and(|warm| Arc::ptr_eq(&warm.defaults, defaults))
    }

    /// Returns true if a start with this configuration may have it.
    pub(crate) fn serves(&self, wanted: &AgentSessionConfig, defaults: &Arc<AgentDefaults>) -> bool {
        self.is_claimable() && self.warm.get().is_some_and(|warm| warm.serves(wanted, defaults))
    }

    /// Makes it its claimant's.
    pub(super) fn set_claim(&self, claim: WarmClaim) {
        // Set once.
        let _ = self.claim.set(claim);
    }

    /// Waits until it can be claimed no more.
    pub(crate) async fn wait_unclaimable(&self) {
        // Fails only with the session.
        let _ = self.watch().wait_for(|view| !(view.is_warm && view.is_idle())).await;
    }
}
