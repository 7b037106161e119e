//! Caller of a route, with the sessions that it sees.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use axum::{
    extract::{FromRef, FromRequestParts},
    http::request::Parts,
};

use proxy_manager::{
    AgentSessionConfig, Operation, ProxyManager, ResumeOptions, SessionFilter, SessionHandle, SessionId, SessionState,
    SessionStatus,
};

use super::{Identity, Peer, Role, UrlScheme, audit::AuditedSession, policy::LivingSessions};
use crate::{
    ApiState, DoctorProbe, InstancePool, LoadedConfiguration, ProblemDetails, ServerMetrics, api::DaemonDescription,
    metrics::ReaderTable, requests::RouteResult, session_ids::resolve, webhooks::callback_host,
};

/// Returns the error of a call to a session that ended under an earlier manager.
pub(crate) fn ended_before(manager: &ProxyManager, session: &SessionId) -> Option<proxy_manager::Error> {
    let is_unknown = matches!(manager.session(session), Err(proxy_manager::Error::UnknownSession { .. }));
    let record = is_unknown.then(|| manager.record(session).ok()).flatten()?;
    let reason = record.state.reason().map_or_else(|| "before this daemon".to_owned(), ToString::to_string);
    let ended = proxy_manager::Error::Ended { session: session.clone(), reason };
    (record.status() == SessionStatus::Ended).then_some(ended)
}

/// Caller of a route, and the manager behind it.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) manager: ProxyManager,
    pub(crate) identity: Identity,
    /// Scheme of the URL by which the caller reaches the server.
    pub(crate) scheme: &'static str,
    server: ApiState,
    audited: AuditedSession,
    peer: Peer,
}

impl<S: Sync> FromRequestParts<S> for Caller
where
    ApiState: FromRef<S>,
{
    type Rejection = ProblemDetails;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ProblemDetails> {
        let state = ApiState::from_ref(state);
        let identity = parts.extensions.get().cloned();
        let identity = identity.unwrap_or_else(|| Identity::new("host", Role::Admin));
        let audited = parts.extensions.get().cloned().unwrap_or_default();
        let peer = parts.extensions.get().copied().unwrap_or_default();
        let scheme = parts.extensions.get().map_or("http", |UrlScheme(scheme)| scheme);
        Ok(Self { audited, peer, scheme, ..Self::new(&state, identity) })
    }
}

impl Caller {
    /// Creates a caller of this identity.
    pub(crate) fn new(state: &ApiState, identity: Identity) -> Self {
        Self {
            manager: state.manager.clone(),
            identity,
            scheme: "http",
            server: state.clone(),
            audited: AuditedSession::default(),
            peer: Peer::default(),
        }
    }

    /// Returns the program around the router.
    pub(crate) fn daemon(&self) -> Option<DaemonDescription> {
        self.server.daemon.clone()
    }

    /// Returns the readers of event streams, where they are counted.
    pub(crate) fn readers(&self) -> Option<&ReaderTable> {
        self.server.metrics.as_ref().map(ServerMetrics::readers)
    }

    pub(crate) fn doctor(&self) -> Option<&DoctorProbe> {
        self.server.doctor.as_ref()
    }

    pub(crate) fn instances(&self) -> Option<&InstancePool> {
        self.server.instances.as_ref()
    }

    /// Checks a session that is about to start, and gives it the limits of the policy. One that is started from inside a session is deeper
    /// than that, whatever its caller says.
    ///
    /// # Errors
    /// `refused`: says which field, what was given and what is allowed.
    pub(crate) fn apply_policy(&self, config: &mut AgentSessionConfig) -> RouteResult<()> {
        if let (true, Some(pid)) = (self.peer.is_in_session, self.peer.pid) {
            let depth = self.manager.depth_of_process(pid);
            let unknown =
                |why| ProblemDetails::new("refused", format!("depth: that of the caller's session is unknown: {why}"));
            config.depth = config.depth.max(depth.map_err(unknown)?);
        }
        match &self.server.policy {
            Some(policy) => policy.apply(&self.identity, config, &self.manager.profiles(), self),
            None => Ok(()),
        }
    }

    /// Checks a session that is about to resume, with what the caller gives it for that.
    ///
    /// # Errors
    /// As [`Caller::apply_policy`].
    pub(crate) fn check_resume(&self, session: &SessionId, options: &ResumeOptions) -> RouteResult<()> {
        let Some(policy) = &self.server.policy else { return Ok(()) };
        // One without a record is an error of the resume.
        let Ok(record) = self.manager.record(session) else { return Ok(()) };
        let mut config = with_options(record.config, options);
        policy.apply(&self.identity, &mut config, &self.manager.profiles(), self)
    }

    /// Checks a session that a prompt or an action resumes, if it is suspended.
    ///
    /// # Errors
    /// As [`Caller::apply_policy`].
    pub(crate) fn check_wake(&self, session: &SessionId) -> RouteResult<()> {
        let is_suspended = self.server.policy.is_some()
            && self.manager.record(session).is_ok_and(|record| record.status() == SessionStatus::Suspended);
        if is_suspended { self.check_resume(session, &ResumeOptions::default()) } else { Ok(()) }
    }

    /// Checks a program of the caller's beside an agent.
    ///
    /// # Errors
    /// As [`Caller::apply_policy`].
    pub(crate) fn check_shell(&self, session: &SessionHandle) -> RouteResult<()> {
        match &self.server.policy {
            Some(policy) => policy.check_shell(&self.identity, session.info().metadata.user_id.as_deref()),
            None => Ok(()),
        }
    }

    /// Checks the address of an ask's callback.
    ///
    /// # Errors
    /// As [`Caller::apply_policy`]; `usage` for an address that is none.
    pub(crate) fn check_callback(&self, session: &SessionId, url: &str) -> RouteResult<()> {
        let host = callback_host(url)?;
        let Some(policy) = &self.server.policy else { return Ok(()) };
        let record = self.manager.record(session).ok();
        let user = record.as_ref().and_then(|record| record.config.user_id.as_deref());
        policy.check_callback(&self.identity, user, &host)
    }

    /// Checks a visit of an agent's own screen, where whoever types sets what the agent may do.
    ///
    /// # Errors
    /// As [`Caller::apply_policy`].
    pub(crate) fn check_visit(&self, session: &SessionId) -> RouteResult<()> {
        let Some(policy) = &self.server.policy else { return Ok(()) };
        let record = self.manager.record(session).ok();
        policy.check_visit(&self.identity, record.as_ref().and_then(|record| record.config.user_id.as_deref()))
    }

    /// Checks an operation on a session.
    ///
    /// # Errors
    /// As [`Caller::apply_policy`].
    pub(crate) fn check_operation(&self, session: &SessionHandle, operation: &Operation) -> RouteResult<()> {
        match &self.server.policy {
            Some(policy) => {
                policy.check_operation(&self.identity, session.info().metadata.user_id.as_deref(), operation)
            }
            None => Ok(()),
        }
    }

    /// Checks an event that is about to be appended: it may not pass for one of the server's own, nor start what the caller may not.
    ///
    /// # Errors
    /// `refused`.
    pub(crate) fn check_append(&self, kind: &str) -> RouteResult<()> {
        let refused = |why: &str| Err(ProblemDetails::new("refused", format!("type: given is {kind:?}, and {why}")));
        if super::is_reserved(kind) {
            return refused("types that begin with `audit:` are the server's own");
        }
        let starts = kind.ends_with(":action:session-create:called");
        if starts && (self.server.policy.is_some() || self.identity.user.is_some()) {
            return refused("a session is started with POST /v1/sessions, where the policy is checked");
        }
        Ok(())
    }

    /// Checks an event that is about to be appended to a session's stream: an action may resume the session.
    ///
    /// # Errors
    /// `refused`.
    pub(crate) fn check_action(&self, session: &SessionId, kind: &str) -> RouteResult<()> {
        if kind.contains("action:") { self.check_wake(session) } else { Ok(()) }
    }

    /// Notes the session that the request is about, and who has started it.
    pub(crate) fn has_started(&self, session: &SessionId) {
        self.audited.set(session);
        self.server.starters.add(session, &self.identity);
    }

    /// Returns the caller's name for a permission's answer that names nobody; `None` for the host itself.
    pub(crate) fn answers_as(&self) -> Option<String> {
        (self.identity.name != "host").then(|| self.identity.name.clone())
    }

    /// Returns true if the caller sees the sessions of this user.
    pub(crate) fn sees(&self, user: Option<&str>) -> bool {
        self.identity.user.is_none() || self.identity.user.as_deref() == user
    }

    /// Returns true if the caller sees the session. One that does not exist is seen by all: the call that follows says so.
    fn sees_session(&self, session: &SessionId) -> bool {
        match self.manager.session(session) {
            Ok(session) => self.sees(session.info().metadata.user_id.as_deref()),
            Err(_) => match self.manager.record(session) {
                Ok(record) => self.sees(record.config.user_id.as_deref()),
                // Events without a record have no user.
                Err(_) => self.identity.user.is_none() || self.manager.subscribe_from(session, 0).is_err(),
            },
        }
    }

    /// Resolves an id, or the beginning of one, among the sessions that the caller sees.
    ///
    /// # Errors
    /// `usage` for text that is no id; `ambiguous-id` with the candidates; `unknown-session` for one of another user.
    pub(crate) fn session_id(&self, text: &str) -> RouteResult<SessionId> {
        let id = resolve(&self.manager, text, |user| self.sees(user))?;
        if self.sees_session(&id) {
            self.audited.set(&id);
            Ok(id)
        } else {
            // The same as for one that is not there: ids of others are nobody's business.
            Err(proxy_manager::Error::UnknownSession { session: id }.into())
        }
    }

    /// Resolves an id as [`Caller::session_id`] does, for a call that takes a session that lives or can live again.
    ///
    /// # Errors
    /// The same; `ended` for one that ended under an earlier manager, of which there is a record alone.
    pub(crate) fn unended_id(&self, text: &str) -> RouteResult<SessionId> {
        let id = self.session_id(text)?;
        ended_before(&self.manager, &id).map_or(Ok(id), |error| Err(error.into()))
    }

    /// Finds the session with this id, or with an id of this unique beginning.
    ///
    /// # Errors
    /// Those of [`Caller::unended_id`].
    pub(crate) fn find(&self, id: &str) -> RouteResult<SessionHandle> {
        Ok(self.manager.session(&self.unended_id(id)?)?)
    }

    /// Passes changes of the configuration files to the manager.
    pub(crate) async fn refresh(&self) -> RouteResult<()> {
        match &self.server.configuration {
            Some(configuration) => configuration.refresh(&self.manager).await,
            None => Ok(()),
        }
    }

    /// Runs `work` on the configuration as its files have it now.
    ///
    /// # Errors
    /// `unsupported` for a server without configuration files; those of the files, and of `work`.
    pub(crate) async fn configured<T: Send + 'static>(
        &self,
        work: impl FnOnce(&LoadedConfiguration) -> RouteResult<T> + Send + 'static,
    ) -> RouteResult<T> {
        match &self.server.configuration {
            Some(configuration) => configuration.run(&self.manager, work).await,
            None => Err(ProblemDetails::new("unsupported", "this server has no configuration files")),
        }
    }

    /// Makes the caller's user the session's, where the caller has one.
    ///
    /// # Errors
    /// `refused` for another user's.
    pub(crate) fn own(&self, config: &mut AgentSessionConfig) -> RouteResult<()> {
        let Some(user) = &self.identity.user else { return Ok(()) };
        // A start with the key of a session goes on with that session.
        let of_key = SessionFilter { key: config.lifecycle.key.clone(), archived: true, ..SessionFilter::default() };
        if let Some(key) = &config.lifecycle.key
            && self.manager.records(&of_key).iter().any(|record| !self.sees(record.config.user_id.as_deref()))
        {
            return Err(ProblemDetails::new("refused", format!("the key {key:?} is that of another user's session")));
        }
        match config.user_id.get_or_insert_with(|| user.clone()) {
            own if own == user => Ok(()),
            other => Err(ProblemDetails::new(
                "refused",
                format!("{:?} is for the sessions of user {user:?} alone, and userId is {other:?}", self.identity.name),
            )),
        }
    }

    /// Checks that the caller sees the sessions of all users.
    ///
    /// # Errors
    /// `refused`.
    pub(crate) fn check_all_users(&self, what: &str) -> RouteResult<()> {
        match &self.identity.user {
            None => Ok(()),
            Some(user) => Err(ProblemDetails::new(
                "refused",
                format!("{:?} is for the sessions of user {user:?} alone, and {what} concerns all", self.identity.name),
            )),
        }
    }
}

/// Returns a session's configuration as these options of a resume make it.
pub(crate) fn with_options(mut config: AgentSessionConfig, options: &ResumeOptions) -> AgentSessionConfig {
    config.env.0.extend(options.env.0.clone());
    config.mcp_servers.extend(options.mcp_servers.clone());
    config.endpoint = options.endpoint.clone().or(config.endpoint);
    config
}

/// Callers who have started the sessions of this server.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionStarters(Arc<Mutex<HashMap<SessionId, (Role, String)>>>);

impl SessionStarters {
    fn add(&self, session: &SessionId, identity: &Identity) {
        super::audit::lock(&self.0).insert(session.clone(), (identity.role, identity.name.clone()));
    }
}

impl LivingSessions for Caller {
    fn of_user(&self, user: Option<&str>) -> usize {
        let living = living(&self.manager);
        living.filter(|(_, of)| user.is_none() || of.as_deref() == user).count()
    }

    fn of_caller(&self, role: Option<Role>, name: Option<&str>) -> usize {
        let living: Vec<SessionId> = living(&self.manager).map(|(id, _)| id).collect();
        let mut starters = super::audit::lock(&self.server.starters.0);
        // Only those that live are of interest.
        starters.retain(|session, _| living.contains(session));
        let fits =
            |(of, by): &(Role, String)| role.is_none_or(|role| role == *of) && name.is_none_or(|name| name == by);
        starters.values().filter(|starter| fits(starter)).count()
    }
}

fn living(manager: &ProxyManager) -> impl Iterator<Item = (SessionId, Option<String>)> {
    let sessions = manager.list_sessions().into_iter();
    let living = sessions.filter(|session| {
        let lives = matches!(session.state, SessionState::Starting | SessionState::Idle | SessionState::Busy { .. });
        // A warm one is nobody's.
        lives && !session.warm
    });
    living.map(|session| (session.metadata.session_id, session.metadata.user_id))
}
