//! Caller of a route, with the sessions that it sees.

use axum::{
    extract::{FromRef, FromRequestParts},
    http::request::Parts,
};
use proxy_manager::{AgentSessionConfig, ProxyManager, SessionFilter, SessionHandle, SessionId};

use super::{Identity, Role};
use crate::{
    ApiState, ConfigurationReloader, DoctorProbe, InstancePool, LoadedConfiguration, ProblemDetails,
    api::DaemonDescription, metrics::ReaderTable, requests::RouteResult, session_ids::resolve,
};

/// Caller of a route, and the manager behind it.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) manager: ProxyManager,
    pub(crate) identity: Identity,
    /// The program around the router.
    pub(crate) daemon: Option<DaemonDescription>,
    /// Readers of event streams, where they are counted.
    pub(crate) readers: Option<ReaderTable>,
    configuration: Option<ConfigurationReloader>,
    pub(crate) doctor: Option<DoctorProbe>,
    pub(crate) instances: Option<InstancePool>,
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
        let readers = state.metrics.as_ref().map(|metrics| metrics.readers().clone());
        let ApiState { manager, configuration, doctor, instances, daemon, .. } = state;
        Ok(Self { manager, identity, daemon, readers, configuration, doctor, instances })
    }
}

impl Caller {
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
            Ok(id)
        } else {
            // The same as for one that is not there: ids of others are nobody's business.
            Err(proxy_manager::Error::UnknownSession { session: id }.into())
        }
    }

    /// Finds the session with this id, or with an id of this unique beginning.
    pub(crate) fn find(&self, id: &str) -> RouteResult<SessionHandle> {
        Ok(self.manager.session(&self.session_id(id)?)?)
    }

    /// Passes changes of the configuration files to the manager.
    pub(crate) async fn refresh(&self) -> RouteResult<()> {
        match &self.configuration {
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
        match &self.configuration {
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
