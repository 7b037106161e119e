//! Sessions that end their processes and keep their conversation: suspended, resumed, restarted, handed over.

use std::{future::Future, path::Path, sync::Arc};

use api_types::{ResumeOptions, SessionSnapshot};
use ipc_protocol::{
    AgentSessionConfig, EndReason, Event, KillOptions, McpServer, OnMissing, ResumeFallback, ResumeFrom, ResumeRequest,
    SessionId, terminal::TerminalConfig,
};
use tokio::{sync::MutexGuard, time::timeout};

use super::{
    ManagerInner, ProxyManager, session_commands::after_end_of, session_records::write_notice, start::StartKind,
};
use crate::{
    blocking::{READING, blocking},
    deadlines::Deadlines,
    description::SessionState,
    error::{Error, Result},
    homes::HomeTenancy,
    launch::check_recording,
    manager::SessionHandle,
    session::{ManagedSession, SessionIncarnations, SessionView, TranscriptCounts, transcript_of},
    session_store::{RecordState, SessionRecord, SessionStatus, SessionStore},
    state,
};

/// Describes a suspended session for its resume.
fn snapshot_of(session: &ManagedSession, secrets: Vec<String>) -> Result<SessionSnapshot> {
    let info = session.info();
    let (Some(config), Some(native_session_id)) = (session.config(), info.conversation.native_session_id) else {
        return Err(no_conversation(session));
    };
    let receipt = info.state.stopped_by().and_then(|(_, receipt)| receipt.cloned()).map(Box::new);
    Ok(SessionSnapshot {
        config: Box::new(AgentSessionConfig { cwd: Some(info.metadata.cwd), ..config.without_secrets() }),
        native_session_id,
        home: info.metadata.home,
        turns: info.turns,
        last_offset: info.last_offset,
        secrets,
        receipt,
    })
}

/// Returns true if the options have the secret of this name. A part that a server or address lacks is done without.
fn has_secret(options: &ResumeOptions, secret: &str) -> bool {
    let is_of = |server: &McpServer| {
        let part = secret.strip_prefix("mcpServers.").and_then(|part| part.strip_prefix(&server.name));
        part.is_some_and(|part| part.starts_with('.'))
    };
    options.env.0.contains_key(secret)
        || options.mcp_servers.iter().any(is_of)
        || (secret == "endpoint" && options.endpoint.is_some())
}

/// Adds what a resume gives to the configuration of the session.
fn merge_options(
    options: ResumeOptions,
    given: &Arc<AgentSessionConfig>,
    visit: Option<TerminalConfig>,
) -> Arc<AgentSessionConfig> {
    let was_visit = given.terminal.as_ref().is_some_and(|terminal| terminal.visit);
    if (ResumeOptions { on_missing: ResumeFallback::Fail, ..options.clone() }) == ResumeOptions::default()
        && !was_visit
        && visit.is_none()
    {
        return given.clone();
    }
    let mut config = given.as_ref().clone();
    if visit.is_some() || was_visit {
        config.terminal = visit.map(|terminal| TerminalConfig { visit: true, observed: true, ..terminal });
    }
    config.env.0.extend(options.env.0);
    config.not_secret.extend(options.not_secret);
    for server in options.mcp_servers {
        match config.mcp_servers.iter_mut().find(|known| known.name == server.name) {
            Some(known) => *known = server,
            None => config.mcp_servers.push(server),
        }
    }
    config.endpoint = options.endpoint.or(config.endpoint);
    Arc::new(config)
}

/// Imported session whose record exists: the record is removed again, unless the import succeeds.
struct TakingIn<'a> {
    session_store: &'a SessionStore,
    id: &'a SessionId,
    is_adopted: bool,
}

impl Drop for TakingIn<'_> {
    fn drop(&mut self) {
        if !self.is_adopted {
            self.session_store.forget(self.id);
        }
    }
}

/// A suspended session that is being resumed.
pub(super) struct ResumeContext<'a> {
    pub(super) session: &'a ManagedSession,
    /// Event that reports the resume.
    pub(super) event: Event,
    /// Configuration from now on.
    pub(super) new_config: Arc<AgentSessionConfig>,
}

impl ProxyManager {
    /// Ends the processes of a session, and a running turn, and retains its conversation. A suspended session stays
    /// suspended: a resume in progress is cancelled and fails with [`Error::Suspended`], and a scheduled restart is
    /// cancelled.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the session has no conversation to resume (yet), or one that ends with its process
    /// (`resumable` of its description), [`Error::Ended`] if it is over,
    /// [`Error::Survivors`] if processes survived the kill, [`Error::Deadline`]. Else see [`ProxyManager`].
    ///
    /// # Cancel safety
    /// Do not drop the future half-way: run it in a task of its own (`tokio::spawn`), and the session is never left
    /// between two states.
    pub async fn suspend_session(&self, session: &SessionId, options: KillOptions) -> Result<SessionSnapshot> {
        self.ensure_ready("suspending a session")?;
        self.suspend(session, options, false).await
    }

    async fn suspend(&self, id: &SessionId, options: KillOptions, hand_over: bool) -> Result<SessionSnapshot> {
        let session = self.inner.session_table.get(id)?;
        conversation(&session)?;
        session.suspend(options, hand_over).await?;
        // The suspension may have ended a later incarnation.
        let session = self.inner.session_table.get(id)?;
        session.wait_published().await?;
        // Afterwards its record is updated too.
        session.wait_settled().await?;
        let secrets = self.inner.roster.get(session.id()).map_or_else(Vec::new, |record| record.secrets);
        snapshot_of(&session, secrets)
    }

    /// Resumes a suspended session: its agent starts again with the conversation, and its events continue.
    ///
    /// # Errors
    /// [`Error::NotSuspended`], [`Error::HandedOver`]; [`Error::Suspended`] if another caller suspends it before its
    /// agent is ready; [`Error::SecretsMissing`] for a session of an earlier manager that had secrets: see
    /// [`ProxyManager::resume_session_with`]; errors of [`ProxyManager::start_session`]. The session then stays
    /// suspended.
    ///
    /// # Cancel safety
    /// Do not drop the future half-way: run it in a task of its own (`tokio::spawn`), and the session is never left
    /// between two states.
    pub async fn resume_session(&self, session: &SessionId) -> Result<SessionHandle> {
        self.resume_session_with(session, ResumeOptions::default()).await
    }

    /// Resumes a suspended session with secrets that no record keeps, or although its conversation is gone
    /// ([`ResumeOptions::on_missing`]).
    ///
    /// # Errors
    /// As [`ProxyManager::resume_session`].
    ///
    /// # Cancel safety
    /// Do not drop the future half-way: run it in a task of its own (`tokio::spawn`), and the session is never left
    /// between two states.
    pub async fn resume_session_with(&self, session: &SessionId, options: ResumeOptions) -> Result<SessionHandle> {
        self.resume(session, "resume", false, options).await
    }

    /// Resumes a session that another manager has suspended, and does not resume itself. Both managers see the same
    /// files, and have state directories of their own. The session has its id, its turns and its own home here; its
    /// events begin anew. Once imported, it stays suspended here if it cannot be resumed. A session that this manager
    /// has already is resumed as it is here.
    ///
    /// # Errors
    /// [`Error::DuplicateSession`] if this manager has records or events of another session with that id;
    /// [`Error::InvalidConfig`] for a home that no manager made; [`Error::System`] for a home that does not exist. Else
    /// see [`ProxyManager::resume_session_with`].
    ///
    /// # Cancel safety
    /// Do not drop the future half-way: run it in a task of its own (`tokio::spawn`), and the session is never left
    /// between two states.
    pub async fn resume_snapshot(&self, snapshot: SessionSnapshot, options: ResumeOptions) -> Result<SessionHandle> {
        self.ensure_ready("resuming a session")?;
        let id = snapshot.config.session_id.clone();
        if let Err(Error::UnknownSession { .. }) = self.inner.session_table.get(&id) {
            self.import_snapshot(snapshot).await?;
        }
        self.resume_session_with(&id, options).await
    }

    /// Imports a session that was suspended elsewhere.
    async fn import_snapshot(&self, snapshot: SessionSnapshot) -> Result<()> {
        let ManagerInner { session_table: directory, streams, roster, homes, deadlines, .. } = &*self.inner;
        let SessionSnapshot { config, native_session_id, home, turns, secrets, receipt, .. } = snapshot;
        let id = config.session_id.clone();
        let _reserved = directory.reserve(&id)?;
        if roster.get(&id).is_some() || streams.log.get().is_some_and(|log| log.head(&id).is_some()) {
            let status = roster.get(&id).map_or(SessionStatus::Ended, |record| record.status());
            return Err(Error::DuplicateSession { session: id, status });
        }
        let reason = EndReason::Suspended;
        let state = RecordState::Suspended { reason: reason.clone(), handed_over: false };
        let mut record = SessionRecord::new(AgentSessionConfig { resume: None, ..*config }, state);
        record.conversation.native_session_id = Some(native_session_id);
        (record.home, record.turns, record.secrets) = (home.clone(), turns, secrets);
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
        let mut taking = TakingIn { session_store: roster, id: &id, is_adopted: false };
        let (then, written) = write_notice();
        roster.add(record.clone(), then);
        self.await_written(&id, written).await?;
        let state = SessionState::suspended(reason.clone(), receipt.clone());
        let count = TranscriptCounts::from_record(&record);
        let session = Arc::new(ManagedSession::restored(&record, state, &count, *deadlines, streams, roster));
        directory.insert(&session)?;
        let mut log = session.history().reopen();
        log.push(0, Event::SessionSuspended { reason, receipt });
        log.keep_open();
        taking.is_adopted = true;
        tenancy.iter().for_each(HomeTenancy::retain);
        Ok(())
    }

    /// Starts the agent's own screen on the session's conversation, in the session's terminal, for its user: see
    /// [`SessionHandle::view_terminal`]. The agent's other process ends first, between turns. When the screen's program has
    /// ended, the session goes on as before, by itself. Meanwhile prompts are refused ([`Error::HandedOver`]) or wait
    /// ([`PromptMode::Queue`](crate::PromptMode::Queue)); [`ProxyManager::take_back`] ends the visit.
    ///
    /// A session whose surface is [`Surface::Both`](crate::terminal::Surface::Both) has its screen beside the protocol: it is left as it is, or resumed, and its
    /// first viewer starts the screen.
    ///
    /// # Errors
    /// [`Error::Busy`] while a turn runs; [`Error::Unsupported`] if the agent has no screen of its own, or one that cannot be
    /// started as the session is configured; [`Error::HandedOver`] if somebody visits it. Else see
    /// [`ProxyManager::suspend_session`] and [`ProxyManager::resume_session`]. The session then goes on as before.
    ///
    /// # Cancel safety
    /// Do not drop the future half-way: run it in a task of its own (`tokio::spawn`), and the session is never left
    /// between two states.
    pub async fn visit(&self, session: &SessionId, terminal: TerminalConfig) -> Result<SessionHandle> {
        self.ensure_ready("visiting a session")?;
        let handle = self.session(session)?;
        if handle.session().is_visited() {
            return Err(Error::HandedOver { session: handle.id().clone() });
        }
        if handle.session().is_co_driven() && !handle.session().is_handed_over() {
            return match handle.session().is_suspended() {
                true => self.resume(session, "visit", false, ResumeOptions::default()).await,
                false => Ok(handle),
            };
        }
        if let SessionState::Busy { .. } = handle.info().state {
            return Err(Error::Busy { session: handle.id().clone(), permission: None });
        }
        // Before anything of the session ends.
        check_recording(Some(&terminal)).await?;
        if !handle.session().is_suspended() {
            self.suspend(session, KillOptions::default(), true).await?;
        }
        match self.resume_as(session, "visit", true, ResumeOptions::default(), Some(terminal)).await {
            Ok(visited) => {
                tokio::spawn(end_visit(Arc::downgrade(&self.inner), visited.session().clone()));
                Ok(visited)
            }
            Err(error) => {
                // It stays as it is: suspended, if it cannot go on either.
                let _ = self.resume(session, "takeBack", true, ResumeOptions::default()).await;
                Err(error)
            }
        }
    }

    /// Suspends a session so that a user can continue its conversation with the agent itself, and returns the command
    /// for that. Until it is taken back ([`ProxyManager::take_back`]) the session accepts no prompt, and no other
    /// session resumes its conversation, except as a fork (`Resume::fork`). With a state directory later managers
    /// enforce this too.
    ///
    /// # Errors
    /// See [`ProxyManager::suspend_session`]; [`Error::Unsupported`] also if the agent has no such command;
    /// [`Error::Log`] or [`Error::Deadline`] if the mark is not durable: it still holds in this manager.
    ///
    /// # Cancel safety
    /// Do not drop the future half-way: run it in a task of its own (`tokio::spawn`), and the session is never left
    /// between two states.
    pub async fn hand_over(&self, session: &SessionId, options: KillOptions) -> Result<Vec<String>> {
        self.ensure_ready("handing a session over")?;
        let command = self.attach_command(session)?;
        self.suspend(session, options, true).await?;
        let session = self.inner.session_table.get(session)?;
        let (then, written) = write_notice();
        session.record_then(then);
        self.await_written(session.id(), written).await?;
        Ok(command)
    }

    /// Resumes a session that was handed over.
    ///
    /// # Errors
    /// As [`ProxyManager::resume_session`].
    ///
    /// # Cancel safety
    /// Do not drop the future half-way: run it in a task of its own (`tokio::spawn`), and the session is never left
    /// between two states.
    pub async fn take_back(&self, session: &SessionId) -> Result<SessionHandle> {
        self.take_back_with(session, ResumeOptions::default()).await
    }

    /// Resumes a session that was handed over, with secrets that no record keeps.
    ///
    /// # Errors
    /// As [`ProxyManager::resume_session`].
    ///
    /// # Cancel safety
    /// Do not drop the future half-way: run it in a task of its own (`tokio::spawn`), and the session is never left
    /// between two states.
    pub async fn take_back_with(&self, session: &SessionId, options: ResumeOptions) -> Result<SessionHandle> {
        if self.session(session)?.session().is_visited() {
            self.suspend(session, KillOptions::default(), true).await?;
        }
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
        self.ensure_open()?;
        let session = self.inner.session_table.get(session)?;
        let id = conversation(&session)?;
        let kit = self.agent_defaults();
        let config = session.config().ok_or_else(|| no_conversation(&session))?;
        // The user who runs it knows the server's password.
        let endpoint = config.without_secrets().endpoint;
        if endpoint.is_none() && session.metadata().home.is_some() {
            return Err(Error::Unsupported {
                agent: session.metadata().agent.clone(),
                operation: "be attached to in a home of the session's own: its command would go on without the address and the key of \
                            the session's model, and send the conversation elsewhere; prompt the session here, or start it with the \
                            shared home"
                    .to_owned(),
            });
        }
        kit.agent(config)?.attach_command(&id, endpoint.as_deref()).ok_or_else(|| Error::Unsupported {
            agent: session.metadata().agent.clone(),
            operation: "be attached to: its row in the catalog has no command for it".to_owned(),
        })
    }

    /// Returns a handle that accepts prompts. Resumes a suspended session, unless its configuration rules that out
    /// (`Lifecycle::resume_on_prompt`), and waits for a resume in progress.
    ///
    /// # Errors
    /// See [`ProxyManager::resume_session`] and [`ProxyManager`]; a session that is not suspended is no error here.
    ///
    /// # Cancel safety
    /// Do not drop the future half-way: run it in a task of its own (`tokio::spawn`), and the session is never left
    /// between two states.
    pub async fn awake(&self, session: &SessionId) -> Result<SessionHandle> {
        self.ensure_ready("resuming a session")?;
        let handle = self.session(session)?;
        if handle.session().is_visited() {
            // Its user may have left the agent's own screen: it rests in a moment, and goes on.
            handle.session().ends_if_ending().await;
        }
        let handle = self.session(session)?;
        if handle.info().state == SessionState::Starting {
            // A resume in progress holds this lock until the session is ready, or suspended again.
            drop(self.lock_resume(session, handle.session().lives()).await?);
        }
        let handle = self.session(session)?;
        if !handle.session().is_suspended() || !handle.session().resumes_on_prompt() {
            return Ok(handle);
        }
        match self.resume(handle.id(), "prompt", false, ResumeOptions::default()).await {
            // Another caller resumed it first.
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
        self.resume_as(id, by, take_back, options, None).await
    }

    /// Resumes a session, in a terminal for a visit of the agent's own screen.
    async fn resume_as(
        &self,
        id: &SessionId,
        by: &str,
        take_back: bool,
        options: ResumeOptions,
        visit: Option<TerminalConfig>,
    ) -> Result<SessionHandle> {
        self.ensure_ready("resuming a session")?;
        let session = self.inner.session_table.get(id)?;
        // What earlier managers accepted comes first.
        session.queue().loaded(self.inner.deadlines.control).await;
        // A suspension that is about to return, its event having been read, would cancel this. One that takes longer does.
        let _ = timeout(self.inner.deadlines.control, session.lives().wait_no_end_requested()).await;
        let _one_at_a_time = self.lock_resume(id, session.lives()).await?;
        let mut resumed = self.resume_locked(id, by, take_back, options.clone(), visit.clone()).await;
        let is_clean = || self.inner.session_table.get(id).is_ok_and(|latest| !latest.left_survivors());
        if matches!(resumed, Err(Error::ForkServerDied)) && self.inner.fork_servers.can_be_replaced() && is_clean() {
            resumed = self.resume_locked(id, by, take_back, options, visit).await;
        }
        if let Err(error @ Error::NativeSessionMissing { .. }) = &resumed {
            // It never will be.
            self.inner.session_table.get(id)?.give_up_queue(error);
        }
        resumed
    }

    /// Calls [`SessionIncarnations::lock_resume`] with the deadline of another caller's resume.
    ///
    /// # Errors
    /// [`Error::Deadline`].
    async fn lock_resume<'a>(&self, id: &SessionId, lives: &'a SessionIncarnations) -> Result<MutexGuard<'a, ()>> {
        let Deadlines { start, control, .. } = self.inner.deadlines;
        let after = self.inner.admission.longest_wait().saturating_add(start).saturating_add(control);
        let operation = || format!("waiting for session {id}, which is being resumed");
        timeout(after, lives.lock_resume()).await.map_err(|_| Error::Deadline { operation: operation(), after })
    }

    /// Resumes a session like [`ProxyManager::resume`]. The caller holds the lock of [`SessionIncarnations::lock_resume`].
    async fn resume_locked(
        &self,
        id: &SessionId,
        by: &str,
        take_back: bool,
        options: ResumeOptions,
        visit: Option<TerminalConfig>,
    ) -> Result<SessionHandle> {
        self.ensure_open()?;
        self.ends_if_ending(id).await;
        let (_reserved, before) = self.inner.session_table.reserve_suspended(id)?;
        let lives = before.lives();
        if before.is_handed_over() && !take_back {
            return Err(Error::HandedOver { session: id.clone() });
        }
        before.wait_settled().await?;
        let info = before.info();
        let names: Vec<_> =
            before.absent_secrets().iter().filter(|name| !has_secret(&options, name)).cloned().collect();
        if !names.is_empty() {
            return Err(Error::SecretsMissing { session: id.clone(), names });
        }
        let fallback = options.on_missing;
        let given = merge_options(options, before.config().ok_or_else(|| no_conversation(&before))?, visit);
        let settings = &before.description().settings;
        // Settings changed since the start override the given ones.
        let changed = |now: Option<String>, then: &Option<String>, given: &Option<String>| {
            if now == *then { given.clone() } else { now }
        };
        // Agents keep a conversation from its first prompt on: without one, nothing is lost.
        let said_nothing = info.turns == 0 && given.resume.is_none() && !take_back;
        let on_missing = match fallback {
            ResumeFallback::Fail if !said_nothing => OnMissing::Fail,
            ResumeFallback::Fail | ResumeFallback::New => OnMissing::StartAnew,
            ResumeFallback::History => {
                let history = before.history().clone();
                OnMissing::Inject {
                    history: READING.run("reading a conversation", move || transcript_of(&history)).await?,
                }
            }
        };
        let resume = ResumeRequest { from: ResumeFrom::Session { id: id.clone() }, fork: false, on_missing };
        let config = AgentSessionConfig {
            cwd: Some(info.metadata.cwd),
            model: changed(info.settings.model, &settings.model, &given.model),
            mode: changed(info.settings.mode, &settings.mode, &given.mode),
            thinking: changed(info.settings.thinking, &settings.thinking, &given.thinking),
            resume: Some(resume),
            ..given.as_ref().clone()
        };
        let resumed = Event::SessionResumed { by: by.to_owned(), detail: String::new() };
        // Boxed because of recursion: a restart is part of the session that it restarts.
        let context = ResumeContext { session: &before, event: resumed, new_config: given };
        let begun = Box::pin(self.begin(config, StartKind::Resume(context)));
        tokio::select! {
            biased;
            // Nothing has been started for the new incarnation yet; later a kill ends what has.
            reason = lives.wait_end_requested(&before) => Err(match reason {
                EndReason::Suspended => Error::Suspended { session: id.clone() },
                reason => Error::Ended { session: id.clone(), reason: reason.to_string() },
            }),
            begun = begun => begun,
        }
    }

    /// Runs a session's incarnation, and restarts the session if it crashed and its configuration asks for that.
    pub(super) fn run_incarnation(
        &self,
        life: impl Future<Output = ()> + Send + 'static,
        session: &Arc<ManagedSession>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (manager, session) = (Arc::downgrade(&self.inner), session.clone());
        async move {
            life.await;
            if session.is_stillborn() {
                if let Some(inner) = manager.upgrade() {
                    Self { inner }.forget_abandoned_start(&session).await;
                }
                return;
            }
            let Some(pause) = session.restart_after() else { return after_end_of(manager, session).await };
            tracing::info!(session = %session.id(), ?pause, "restarting a crashed session");
            tokio::time::sleep(pause).await;
            let Some(inner) = manager.upgrade() else { return };
            restart(Self { inner }, session.clone()).await;
            // Unless another incarnation goes on, it rests or has ended.
            after_end_of(manager, session).await;
        }
    }
}

/// Resumes a visited session when the visit is over.
async fn end_visit(manager: std::sync::Weak<ManagerInner>, visited: Arc<ManagedSession>) {
    let is_over = |view: &SessionView| !RecordState::from(&view.state).status().is_live();
    if visited.watch().wait_for(is_over).await.is_err() || visited.wait_settled().await.is_err() {
        return;
    }
    let Some(inner) = manager.upgrade() else { return };
    let manager = ProxyManager { inner };
    // Else somebody has taken it back, killed it, or the manager ends.
    let is_over = visited.is_suspended() && !visited.is_handed_over() && visited.lives().is_latest(&visited);
    if is_over && let Err(error) = manager.resume(visited.id(), "visitEnded", false, ResumeOptions::default()).await {
        tracing::warn!(session = %visited.id(), error = %error.chain(), "failed to resume a session after a visit");
    }
}

/// Restarts a session. Boxed, as a session's run is part of it.
fn restart(manager: ProxyManager, crashed: Arc<ManagedSession>) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        // Otherwise another caller suspended the session, or resumed it.
        let is_wanted = || crashed.restart_after().is_some() && crashed.lives().is_latest(&crashed);
        if !is_wanted() {
            return;
        }
        let _one_at_a_time = crashed.lives().lock_resume().await;
        if !is_wanted() {
            return;
        }
        match manager.resume_locked(crashed.id(), "restart", false, ResumeOptions::default(), None).await {
            // Another caller resumed, suspended, killed or deleted it meanwhile.
            Ok(_)
            | Err(
                Error::NotSuspended { .. }
                | Error::Suspended { .. }
                | Error::Ended { .. }
                | Error::UnknownSession { .. }
                | Error::ShutDown,
            ) => {}
            Err(error) => {
                tracing::warn!(session = %crashed.id(), error = %error.chain(), "failed to restart a crashed session");
            }
        }
    })
}

/// Checks the home of a snapshot, which comes from outside: homes are removed with their session, so a home that no
/// manager made is refused. Blocks.
fn check_home(home: &Path) -> Result<()> {
    let shown = home.display();
    if home.symlink_metadata().is_ok() && state::is_home(home) {
        return Ok(());
    }
    let reason = format!(
        "{shown} is no home that a manager made: homes/s-ID in a state directory, a directory that only you can use"
    );
    Err(Error::InvalidConfig { field: "home", reason })
}

/// Returns the conversation that another process could resume.
fn conversation(session: &ManagedSession) -> Result<String> {
    session.resumable_conversation().ok_or_else(|| match session.native_session_id() {
        None => no_conversation(session),
        Some(_) => Error::Unsupported {
            agent: session.metadata().agent.clone(),
            operation: "be gone on with in another process: this conversation ends with its own".to_owned(),
        },
    })
}

fn no_conversation(session: &ManagedSession) -> Error {
    let operation = "be gone on with: it has said no id of its conversation".to_owned();
    Error::Unsupported { agent: session.metadata().agent.clone(), operation }
}
