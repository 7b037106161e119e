//! Sessions whose processes end and whose conversation stays: suspended, resumed, started again, handed over.

use std::{fmt, future::Future, path::Path, sync::Arc};

use ipc_protocol::{
    AgentSessionConfig, EndReason, EnvVars, Event, KillOptions, McpServer, OnMissing, Receipt, Resume, ResumeFrom,
    SessionId,
};
use serde::{Deserialize, Serialize};
use tokio::{sync::MutexGuard, time::timeout};

use super::{Inner, ProxyManager, roster::written};
use crate::{
    Deadlines, Error, Result, SessionHandle, SessionRecord, SessionState,
    blocking::blocking,
    homes::Tenancy,
    roster::Roster,
    session::{Count, Lives, Session},
    state,
};

/// A suspended session: what is needed to go on with it, here or in another manager that sees the same files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// What it was started with; without secrets, so what they were must be given again.
    pub config: Box<AgentSessionConfig>,
    /// The agent's own id of the conversation.
    pub native_session_id: String,
    /// Its own home directory, if it has one: the conversation is in it.
    pub home: Option<String>,
    /// Turns so far.
    pub turns: u64,
    /// Offset of its last event.
    pub last_offset: u64,
    /// Names of the secrets that it was started with, as in [`SessionRecord::secrets`](crate::SessionRecord::secrets).
    #[serde(default)]
    pub secrets: Vec<String>,
    /// What was ended for it, with the proof.
    pub receipt: Option<Box<Receipt>>,
}

impl Snapshot {
    fn of(session: &Session, secrets: Vec<String>) -> Result<Self> {
        let info = session.info();
        let (Some(config), Some(native_session_id)) = (session.config(), info.native_session_id) else {
            return Err(no_conversation(session));
        };
        let receipt = info.state.at_rest().and_then(|(_, receipt)| receipt.cloned()).map(Box::new);
        Ok(Self {
            config: Box::new(AgentSessionConfig { cwd: Some(info.cwd), ..config.without_secrets() }),
            native_session_id,
            home: info.home,
            turns: info.turns,
            last_offset: info.last_offset,
            secrets,
            receipt,
        })
    }
}

/// What a session is resumed with, beside what it was started with: secrets are in no record, so one that an earlier manager
/// started needs its own again. Kept for as long as the manager lives. `Debug` shows no values.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ResumeOptions {
    /// Variables, each in the place of the one of its name.
    pub env: EnvVars,
    /// MCP servers, each in the place of the one of its name.
    pub mcp_servers: Vec<McpServer>,
    /// Address of the running server, in the place of the one before.
    pub endpoint: Option<String>,
}

impl fmt::Debug for ResumeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { env, mcp_servers, endpoint } = self;
        let mut shown = f.debug_struct("ResumeOptions");
        shown.field("env", env).field("mcp_servers", mcp_servers);
        // There may be a login in it.
        shown.field("has_endpoint", &endpoint.is_some()).finish()
    }
}

impl ResumeOptions {
    fn onto(self, given: &Arc<AgentSessionConfig>) -> Arc<AgentSessionConfig> {
        if self == Self::default() {
            return given.clone();
        }
        let mut config = given.as_ref().clone();
        config.env.0.extend(self.env.0);
        for server in self.mcp_servers {
            match config.mcp_servers.iter_mut().find(|known| known.name == server.name) {
                Some(known) => *known = server,
                None => config.mcp_servers.push(server),
            }
        }
        config.endpoint = self.endpoint.or(config.endpoint);
        Arc::new(config)
    }
}

/// A session from elsewhere whose record is there: it is forgotten again, unless it is taken in.
struct TakingIn<'a> {
    roster: &'a Roster,
    id: &'a SessionId,
    is_in: bool,
}

impl Drop for TakingIn<'_> {
    fn drop(&mut self) {
        if !self.is_in {
            self.roster.forget(self.id);
        }
    }
}

/// What a session was until it goes on.
pub(super) struct Before<'a> {
    pub(super) session: &'a Session,
    /// What is told of it.
    pub(super) resumed: Event,
    /// What it is started with from now on.
    pub(super) given: Arc<AgentSessionConfig>,
}

impl ProxyManager {
    /// Ends the processes of a session and keeps its conversation; a running turn is ended too. A session that is suspended
    /// already stays so: a resume that is under way is given up, and fails with [`Error::Suspended`], and so is a restart that is
    /// to come.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it has no conversation to go on with (yet), or one that ends with its process
    /// ([`SessionInfo::resumable`](crate::SessionInfo::resumable)), [`Error::Ended`] if it is over,
    /// [`Error::Survivors`] if something outlived the kill, [`Error::Deadline`]. Else as [`ProxyManager`] says.
    pub async fn suspend_session(&self, session: &SessionId, options: KillOptions) -> Result<Snapshot> {
        self.open()?;
        self.suspend(session, options, false).await
    }

    async fn suspend(&self, id: &SessionId, options: KillOptions, hand_over: bool) -> Result<Snapshot> {
        let session = self.inner.directory.get(id)?;
        conversation(&session)?;
        session.suspend(options, hand_over).await?;
        // That may have been a later life.
        let session = self.inner.directory.get(id)?;
        session.published().await?;
        // Its record says so too.
        session.settled().await?;
        let secrets = self.inner.streams.roster.get(session.id()).map_or_else(Vec::new, |record| record.secrets);
        Snapshot::of(&session, secrets)
    }

    /// Goes on with a suspended session: its agent is started again with the conversation, and its events go on where they
    /// ended.
    ///
    /// # Errors
    /// [`Error::NotSuspended`], [`Error::HandedOver`]; [`Error::Suspended`] if somebody has it suspended before its agent is ready;
    /// [`Error::SecretsMissing`] for one of an earlier manager that had some: see
    /// [`ProxyManager::resume_session_with`]; what [`ProxyManager::start_session`] says. It is suspended still then.
    pub async fn resume_session(&self, session: &SessionId) -> Result<SessionHandle> {
        self.resume_session_with(session, ResumeOptions::default()).await
    }

    /// The same, with what no record keeps.
    ///
    /// # Errors
    /// As [`ProxyManager::resume_session`].
    pub async fn resume_session_with(&self, session: &SessionId, options: ResumeOptions) -> Result<SessionHandle> {
        self.resume(session, "resume", false, options).await
    }

    /// Goes on with a session that was suspended by another manager, which does not go on with it too: both see the same files, and
    /// have state directories of their own. It has its id, its turns and its own home here; its events begin anew. Once it is taken
    /// in, it is suspended here if it cannot be resumed. One that this manager has is resumed as it is here.
    ///
    /// # Errors
    /// [`Error::DuplicateSession`] where something else of that id is kept; [`Error::InvalidConfig`] for a home that no manager made;
    /// [`Error::System`] for one that is not there. Else as [`ProxyManager::resume_session_with`].
    pub async fn resume_snapshot(&self, snapshot: Snapshot, options: ResumeOptions) -> Result<SessionHandle> {
        self.open()?;
        let id = snapshot.config.session_id.clone();
        if let Err(Error::UnknownSession { .. }) = self.inner.directory.get(&id) {
            self.take_in(snapshot).await?;
        }
        self.resume_session_with(&id, options).await
    }

    /// A session that was suspended elsewhere is one of ours from now on.
    async fn take_in(&self, snapshot: Snapshot) -> Result<()> {
        let Inner { directory, streams, homes, deadlines, .. } = &*self.inner;
        let Snapshot { config, native_session_id, home, turns, secrets, receipt, .. } = snapshot;
        let id = config.session_id.clone();
        let _reserved = directory.reserve(&id)?;
        if streams.roster.get(&id).is_some() || streams.log.get().is_some_and(|log| log.head(&id).is_some()) {
            return Err(Error::DuplicateSession { session: id });
        }
        let record = SessionRecord::suspended(*config, native_session_id, home.clone(), turns, secrets)?;
        let tenancy = match home {
            Some(home) => {
                let (homes, id) = (homes.clone(), id.clone());
                let borrow = move || {
                    let home = Path::new(&home);
                    check_home(home)?;
                    homes.borrow(home, &id)
                };
                Some(blocking("looking for a session's home", borrow).await??)
            }
            None => None,
        };
        let mut taking = TakingIn { roster: &streams.roster, id: &id, is_in: false };
        let (then, written) = written();
        streams.roster.add(record.clone(), then);
        self.await_written(&id, written).await?;
        let session = Arc::new(Session::restored(&record, &Count::going_on(&record), *deadlines, streams));
        let reason = EndReason::Suspended;
        session.show(|view| {
            view.state = SessionState::Suspended { reason: reason.clone(), receipt: receipt.clone() };
        });
        directory.insert(&session)?;
        let mut log = session.history().reopen();
        log.push(0, Event::SessionSuspended { reason, receipt });
        log.leave_open();
        taking.is_in = true;
        tenancy.iter().for_each(Tenancy::keep);
        Ok(())
    }

    /// Suspends a session for somebody to go on with it by the agent itself: the command for that. Until it is taken back
    /// ([`ProxyManager::take_back`]) it takes no prompt, and no other session is started with its conversation, but for a copy
    /// (`Resume::fork`); with a state directory no later manager lets it have one either.
    ///
    /// # Errors
    /// As [`ProxyManager::suspend_session`], [`Error::Unsupported`] also if the agent has no such command; [`Error::Log`] or
    /// [`Error::Deadline`] if the mark is not durable: it holds here all the same.
    pub async fn hand_over(&self, session: &SessionId, options: KillOptions) -> Result<Vec<String>> {
        let command = self.attach_command(session)?;
        self.suspend(session, options, true).await?;
        let session = self.inner.directory.get(session)?;
        let (then, written) = written();
        session.note_and(then);
        self.await_written(session.id(), written).await?;
        Ok(command)
    }

    /// Goes on with a session that was handed over.
    ///
    /// # Errors
    /// As [`ProxyManager::resume_session`].
    pub async fn take_back(&self, session: &SessionId) -> Result<SessionHandle> {
        self.take_back_with(session, ResumeOptions::default()).await
    }

    /// The same, with what no record keeps.
    ///
    /// # Errors
    /// As [`ProxyManager::resume_session`].
    pub async fn take_back_with(&self, session: &SessionId, options: ResumeOptions) -> Result<SessionHandle> {
        self.resume(session, "takeBack", true, options).await
    }

    /// The command by which the agent itself goes on with the session's conversation: program and arguments, to be run in
    /// the session's working directory. For a session that is connected to a running server, on that server, whose password is not in
    /// it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent has none, the session no conversation yet, or a home of its own: there the command would
    /// find the conversation, but not the address and the key of the session's model, and send it to somebody else. Else as [`ProxyManager`] says.
    pub fn attach_command(&self, session: &SessionId) -> Result<Vec<String>> {
        self.open()?;
        let session = self.inner.directory.get(session)?;
        let id = conversation(&session)?;
        let kit = self.kit();
        let config = session.config().ok_or_else(|| no_conversation(&session))?;
        // Whoever runs it knows the server's password.
        let endpoint = config.without_secrets().endpoint;
        if endpoint.is_none() && session.labels().home.is_some() {
            return Err(Error::Unsupported {
                agent: session.labels().agent.clone(),
                operation: "be attached to in a home of the session's own: its command would go on without the address and the key of \
                            the session's model, and send the conversation elsewhere; prompt the session here, or start it with the \
                            shared home"
                    .to_owned(),
            });
        }
        kit.agent(config)?.attach_command(&id, endpoint.as_deref()).ok_or_else(|| Error::Unsupported {
            agent: session.labels().agent.clone(),
            operation: "be attached to: its row in the catalog has no command for it".to_owned(),
        })
    }

    /// A handle that takes prompts: a suspended session is resumed, unless it does not want to be
    /// (`Lifecycle::resume_on_prompt`), and one that is being resumed is waited for.
    ///
    /// # Errors
    /// As [`ProxyManager::resume_session`], but that it is suspended is no error here, and as [`ProxyManager`] says.
    pub async fn awake(&self, session: &SessionId) -> Result<SessionHandle> {
        let handle = self.session(session)?;
        if handle.info().state == SessionState::Starting {
            // Whoever resumes it has this until it is ready, or suspended again.
            drop(self.alone(session, handle.session().lives()).await?);
        }
        let handle = self.session(session)?;
        if !handle.session().is_suspended() || !handle.session().resumes_on_prompt() {
            return Ok(handle);
        }
        match self.resume(handle.id(), "prompt", false, ResumeOptions::default()).await {
            // Somebody else was quicker.
            Err(Error::NotSuspended { .. }) => self.session(handle.id()),
            resumed => resumed,
        }
    }

    pub(super) async fn resume(
        &self,
        id: &SessionId,
        by: &str,
        take_back: bool,
        options: ResumeOptions,
    ) -> Result<SessionHandle> {
        self.open()?;
        let session = self.inner.directory.get(id)?;
        // What earlier managers accepted comes first.
        session.queue().loaded(self.inner.deadlines.control).await;
        let _one_at_a_time = self.alone(id, session.lives()).await?;
        let resumed = self.resume_alone(id, by, take_back, options).await;
        if let Err(error @ Error::NativeSessionMissing { .. }) = &resumed {
            // It never will be.
            self.inner.directory.get(id)?.give_up_queue(error);
        }
        resumed
    }

    /// [`Lives::alone`], within the time that somebody else's resume has.
    ///
    /// # Errors
    /// [`Error::Deadline`].
    async fn alone<'a>(&self, id: &SessionId, lives: &'a Lives) -> Result<MutexGuard<'a, ()>> {
        let Deadlines { start, control, .. } = self.inner.deadlines;
        let after = self.inner.admission.longest_wait().saturating_add(start).saturating_add(control);
        let operation = || format!("waiting for session {id}, which is being resumed");
        timeout(after, lives.alone()).await.map_err(|_| Error::Deadline { operation: operation(), after })
    }

    /// As [`ProxyManager::resume`], for whom nobody else is at it: who has [`Lives::alone`].
    async fn resume_alone(
        &self,
        id: &SessionId,
        by: &str,
        take_back: bool,
        options: ResumeOptions,
    ) -> Result<SessionHandle> {
        self.open()?;
        self.ends_if_ending(id).await;
        let (_reserved, before) = self.inner.directory.reserve_suspended(id)?;
        let lives = before.lives();
        if before.is_handed_over() && !take_back {
            return Err(Error::HandedOver { session: id.clone() });
        }
        before.settled().await?;
        let info = before.info();
        let given = options.onto(before.config().ok_or_else(|| no_conversation(&before))?);
        // Whether a key is there is known when its model configuration is.
        self.require_secrets(id, &given, true)?;
        let labels = before.labels();
        // What was changed since its start.
        let changed = |now: Option<String>, then: &Option<String>, given: &Option<String>| {
            if now == *then { given.clone() } else { now }
        };
        // Agents keep a conversation from its first prompt on: of one without, nothing is lost.
        let said_nothing = info.turns == 0 && given.resume.is_none() && !take_back;
        let on_missing = if said_nothing { OnMissing::StartAnew } else { OnMissing::Fail };
        let resume = Resume { from: ResumeFrom::Session { id: id.clone() }, fork: false, on_missing };
        let config = AgentSessionConfig {
            cwd: Some(info.cwd),
            model: changed(info.model, &labels.model, &given.model),
            mode: changed(info.mode, &labels.mode, &given.mode),
            thinking: changed(info.thinking, &labels.thinking, &given.thinking),
            resume: Some(resume),
            ..given.as_ref().clone()
        };
        let resumed = Event::SessionResumed { by: by.to_owned(), detail: String::new() };
        // A future in itself: a restart is within the life of the session that it restarts.
        let begun = Box::pin(self.begin(config, Some(Before { session: &before, resumed, given })));
        tokio::select! {
            biased;
            // Nothing was started for it yet. Later the kill ends what was.
            reason = lives.unwanted(&before) => Err(match reason {
                EndReason::Suspended => Error::Suspended { session: id.clone() },
                reason => Error::Ended { session: id.clone(), reason: reason.to_string() },
            }),
            begun = begun => begun,
        }
    }

    /// A session that was started with secrets is not to go on without them.
    ///
    /// # Errors
    /// [`Error::SecretsMissing`].
    pub(super) fn require_secrets(
        &self,
        id: &SessionId,
        config: &AgentSessionConfig,
        has_model_key: bool,
    ) -> Result<()> {
        let record = self.inner.streams.roster.get(id);
        let names = record.map_or_else(Vec::new, |record| record.missing_secrets(config, has_model_key));
        if names.is_empty() { Ok(()) } else { Err(Error::SecretsMissing { session: id.clone(), names }) }
    }

    /// A session's life, and the next one if it crashes and wants one.
    pub(super) fn lives(
        &self,
        life: impl Future<Output = ()> + Send + 'static,
        session: &Arc<Session>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (manager, session) = (Arc::downgrade(&self.inner), session.clone());
        async move {
            life.await;
            let Some(pause) = session.restart_after() else { return };
            tracing::info!(session = %session.id(), ?pause, "it crashed, and is started again");
            tokio::time::sleep(pause).await;
            let Some(inner) = manager.upgrade() else { return };
            restart(Self { inner }, session).await;
        }
    }
}

/// Starts a session again. Boxed, as a session's life is part of it.
fn restart(manager: ProxyManager, crashed: Arc<Session>) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        // Else somebody has it stay suspended, or has gone on with it.
        let is_wanted = || crashed.restart_after().is_some() && crashed.lives().is_latest(&crashed);
        if !is_wanted() {
            return;
        }
        let _one_at_a_time = crashed.lives().alone().await;
        if !is_wanted() {
            return;
        }
        match manager.resume_alone(crashed.id(), "restart", false, ResumeOptions::default()).await {
            // Resumed, suspended, killed or deleted by somebody meanwhile.
            Ok(_)
            | Err(
                Error::NotSuspended { .. }
                | Error::Suspended { .. }
                | Error::Ended { .. }
                | Error::UnknownSession { .. }
                | Error::ShutDown,
            ) => {}
            Err(error) => {
                tracing::warn!(session = %crashed.id(), %error, "a session that crashed could not be started again");
            }
        }
    })
}

/// A snapshot comes from outside, and a home is removed with its session: one that no manager made is refused. Blocks.
fn check_home(home: &Path) -> Result<()> {
    let shown = home.display();
    home.symlink_metadata().map_err(|error| Error::system(&format!("going on in the home {shown}"), &error))?;
    if state::is_home(home) {
        return Ok(());
    }
    let reason = format!(
        "{shown} is no home that a manager made: homes/s-ID in a state directory, a directory that only you can use"
    );
    Err(Error::InvalidConfig { field: "home", reason })
}

/// The conversation that another process could go on with.
fn conversation(session: &Session) -> Result<String> {
    session.kept_conversation().ok_or_else(|| match session.native_session_id() {
        None => no_conversation(session),
        Some(_) => Error::Unsupported {
            agent: session.labels().agent.clone(),
            operation: "be gone on with in another process: this conversation ends with its own".to_owned(),
        },
    })
}

fn no_conversation(session: &Session) -> Error {
    let operation = "be gone on with: it has said no id of its conversation".to_owned();
    Error::Unsupported { agent: session.labels().agent.clone(), operation }
}
