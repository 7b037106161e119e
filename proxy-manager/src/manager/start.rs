//! Start of a session, and deletion of an ended one.

use std::{
    future::{Future, poll_fn},
    sync::{Arc, PoisonError},
    task::Poll,
    time::Duration,
};

use ipc_protocol::{
    AgentSessionConfig, Containment, ContainmentSpec, EndReason, Lifecycle, ProcessId, ResumeFallback, SandboxMode,
    SessionId,
};
use tokio::time::timeout;

use super::{
    ManagerInner, ProxyManager,
    replication::SessionClaim,
    session_commands::{self, CommandPoint},
    suspend::ResumeContext,
};
use crate::{
    blocking::blocking,
    error::{Error, Result},
    homes::SessionHomes,
    launch::{AgentDefaults, SessionLaunch, StartAftermath, check_recording},
    manager::SessionHandle,
    records::ConversationRecords,
    session::{ForkRequest, ManagedSession, SessionTask, WarmStart, sockets},
    session_store::{MODEL_KEY, RecordState, SessionStatus, check_names},
    state::{JournalContainer, JournalHeader, SessionJournal},
    supervision::SlotClaim,
    workspaces::WorkspacePlan,
};

/// Longest wait of a failed start for the event log to delete what it has of the session. It does so later, else.
const FORGET_TIMEOUT: Duration = Duration::from_secs(1);

impl ProxyManager {
    /// Starts a session and returns when its agent is ready. If the start fails, or this future is dropped, everything
    /// started is ended, and nothing is kept of the session: its id is free again. (Unless something survived: the
    /// session then stays listed, with its receipt.) A start whose fork server dies begins once more, with the next one.
    ///
    /// # Errors
    /// [`Error::DuplicateSession`] (also if a session with that id has left a home: delete it; [`Lifecycle::replace`]
    /// does so for an ended one),
    /// [`Error::UnknownAgent`], [`Error::UnknownProfile`], [`Error::UnknownModel`], [`Error::InvalidConfig`],
    /// [`Error::Unsupported`] (a part of the configuration is not supported), [`Error::NativeSessionMissing`],
    /// [`Error::NativeSessionBusy`], [`Error::HandedOver`], [`Error::TooDeep`], [`Error::TooManySessions`],
    /// [`Error::ContainmentUnavailable`] (a requested layer is never silently left out), [`Error::ProgramNotFound`],
    /// [`Error::CwdMissing`], [`Error::FdsExhausted`], [`Error::Deadline`] (the agent did not become ready, or that
    /// could not be recorded), [`Error::AgentDied`], [`Error::ProxyDied`], [`Error::ForkServerDied`],
    /// [`Error::Protocol`], [`Error::Ended`] (killed during the start), [`Error::System`], [`Error::ShutDown`],
    /// [`Error::RuntimeEnded`].
    ///
    /// # Cancel safety
    /// Dropping the future ends everything that the start has begun, in the background. Its id is free again once that is done: until then
    /// another start with the same id may fail with [`Error::DuplicateSession`]; try it again, or leave the id to
    /// [`AgentSessionConfig::new`], which chooses a fresh one.
    pub async fn start_session(&self, config: AgentSessionConfig) -> Result<SessionHandle> {
        self.start_new(config, false).await
    }

    /// Starts like [`ProxyManager::start_session`], or hands out a warm session ([`ManagerBuilder::warm`](crate::ManagerBuilder::warm))
    /// whose agent is ready and was started with the same configuration. That session has an id of its own: the one in `config` is not used.
    ///
    /// # Errors
    /// As [`ProxyManager::start_session`].
    ///
    /// # Cancel safety
    /// As [`ProxyManager::start_session`].
    pub async fn start_or_claim(&self, config: AgentSessionConfig) -> Result<SessionHandle> {
        self.start_new(config, true).await
    }

    async fn start_new(&self, mut config: AgentSessionConfig, takes_warm: bool) -> Result<SessionHandle> {
        self.ensure_ready("starting a session")?;
        let Lifecycle { key, title, tags, .. } = &config.lifecycle;
        let names = [
            ("key", key.as_deref()),
            ("title", title.as_deref()),
            ("agentType", config.agent_type.as_deref()),
            ("userId", config.user_id.as_deref()),
            ("workspaceId", config.workspace_id.as_deref()),
        ];
        check_names(&names, tags)?;
        session_commands::check_id(&config.session_id)?;
        // Two at once with one key shall get one session.
        let _one_at_a_time = match key {
            Some(key) => Some(self.inner.key_locks.lock(key).await),
            None => None,
        };
        if let Some(session) = self.resume_by_key(&mut config).await? {
            return Ok(session);
        }
        // Both are of this start, and no business of a resume.
        config.lifecycle.on_missing = ResumeFallback::default();
        if std::mem::take(&mut config.lifecycle.replace) {
            self.delete_ended(&config.session_id).await?;
        }
        if self.inner.streams.log.get().is_some_and(|log| log.head(&config.session_id).is_some())
            && self.inner.free_streams.get(&config.session_id).is_none()
            && self.inner.roster.get(&config.session_id).is_none_or(|record| record.last_offset > 0)
        {
            let status = self.inner.roster.get(&config.session_id).map(|record| record.status());
            let status = status.unwrap_or(SessionStatus::Ended);
            return Err(Error::DuplicateSession { session: config.session_id, status });
        }
        // Reserved before anything is created: a refused start must not touch another session's files.
        let _reserved = self.inner.session_table.reserve(&config.session_id)?;
        // An earlier stream goes to the first try, which closes it.
        let again = self.inner.free_streams.get(&config.session_id).is_none().then(|| config.clone());
        // Boxed: callers join several starts, and unoptimized code copies a future whenever it is moved.
        let begun = Box::pin(self.begin_with_commands(config, takes_warm)).await;
        match (begun, again) {
            (Err(error), Some(again)) if self.is_worth_another_try(&error, &again.session_id) => {
                Box::pin(self.begin_with_commands(again, takes_warm)).await
            }
            (begun, _) => begun,
        }
    }

    /// Returns true if a start failed because its fork server died, nothing of it is left, and another one takes its place.
    fn is_worth_another_try(&self, error: &Error, id: &SessionId) -> bool {
        matches!(error, Error::ForkServerDied)
            && self.inner.fork_servers.can_be_replaced()
            && self.inner.session_table.get(id).is_err()
            && self.inner.streams.log.get().is_none_or(|log| log.head(id).is_none())
    }

    /// Starts like [`ProxyManager::start_session`], for a reserved id.
    pub(super) async fn begin(&self, mut config: AgentSessionConfig, kind: StartKind<'_>) -> Result<SessionHandle> {
        let (takes_warm, is_warm) =
            (matches!(kind, StartKind::New { takes_warm: true }), matches!(kind, StartKind::Warm));
        let ends = matches!(kind, StartKind::Command(CommandPoint::AfterEnd));
        let before = if let StartKind::Resume(before) = kind { Some(before) } else { None };
        let defaults = self.agent_defaults();
        let ManagerInner {
            session_table: directory,
            fork_servers,
            deadlines,
            streams,
            roster,
            containment: containing,
            homes,
            records,
            admission,
            ..
        } = &*self.inner;
        fork_servers.check_lease()?;
        let descriptors = self.inner.descriptors.claim()?;
        config.lifecycle.idle_suspend_ms.get_or_insert(self.inner.idle_suspend_ms);
        let given = before.as_ref().map_or_else(|| Arc::new(config.clone()), |before| before.new_config.clone());
        let mut launch = self.plan_beside_attempt(config, &defaults).await?;
        // Its profile may become another agent's, and the conversation does not.
        let given = match given.agent.is_empty() {
            true => Arc::new(AgentSessionConfig {
                agent: launch.description.metadata.agent.clone(),
                ..given.as_ref().clone()
            }),
            false => given,
        };
        if before.as_ref().is_some_and(|before| before.session.description().has_model_key)
            && !launch.description.has_model_key
        {
            let names = vec![MODEL_KEY.to_owned()];
            return Err(Error::SecretsMissing { session: launch.id().clone(), names });
        }
        check_recording(launch.attempt.config.terminal.as_ref()).await?;
        if takes_warm && let Some(session) = self.claim_warm(&launch, &given, &defaults).await {
            return Ok(SessionHandle::new(session));
        }
        let warm = is_warm.then(|| WarmStart::new(&launch, defaults)).transpose()?;
        let claim = SlotClaim {
            user: launch.description.metadata.user_id.clone(),
            agent: launch.description.metadata.agent.clone(),
        };
        launch.slot = match &warm {
            _ if ends => None,
            Some(_) => Some(admission.admit_now(claim)?),
            None => {
                self.make_room(&claim).await;
                Some(admission.admit(claim).await?)
            }
        };
        let claimed = self.claim(launch.id(), before.as_ref().map(|before| before.session)).await?;
        let fork_server = fork_servers.living().await?;
        // An overlay is mounted in the namespace of a strict session.
        let strict = launch.enclosure.overlay.as_ref().map(|_| Containment::Strict);
        let wanted = strict.or(launch.attempt.config.containment);
        let held = match &launch.enclosure.sandbox {
            // The engine is not contained: what it starts is, by the engine.
            _ if launch.enclosure.container.is_some() => {
                containing.resolve(Some(Containment::Baseline), launch.id(), &fork_server).await?
            }
            None => containing.resolve(wanted, launch.id(), &fork_server).await?,
            Some(sandbox) => {
                containing.resolve_sandbox(wanted, sandbox.network.is_own(), launch.id(), &fork_server).await?
            }
        };
        launch.set_containment(held, homes)?;
        launch.detach = self.detach_spec(&launch.attempt.config).await?;
        launch.journal = Some(self.journal_of(launch.id().clone(), &launch.enclosure, fork_server.id()));
        let new_workspace = self.make_workspace(&launch).await?;
        let made = launch.workspace.as_ref().filter(|_| new_workspace.is_some()).map(WorkspacePlan::made);
        let (launch, aftermath) = prepare_disk(launch, homes, records).await?;
        let (ours, theirs) = {
            let _entered = self.inner.runtime.enter();
            sockets()?
        };
        let description = launch.description.clone();
        let goes_on = before.is_some();
        // Locked until the new incarnation is the latest: nobody appends to the suspended one meanwhile.
        let still = before.as_ref().map(|before| before.session.lives().lock_writes());
        if before.as_ref().is_some_and(|before| before.session.history().is_fenced()) {
            drop(still);
            aftermath.dropped().await;
            return Err(Error::Fenced { session: description.metadata.session_id });
        }
        let (session, inlets, mut log) = match before {
            None => match self.inner.free_streams.take(&description.metadata.session_id) {
                Some(stream) => ManagedSession::on_stream(description, *deadlines, stream, roster),
                None => ManagedSession::new(description, *deadlines, streams, roster),
            },
            Some(ResumeContext { session: before, event: resumed, .. }) => {
                let (session, inlets, mut log) = ManagedSession::resumed(before, description, *deadlines);
                log.push(0, resumed);
                (session, inlets, log)
            }
        };
        if let Some(made) = made {
            log.push(0, made);
        }
        session.set_config(given, Vec::new());
        warm.into_iter().for_each(|warm| session.set_warm(warm));
        let host = fork_server.host();
        let task = SessionTask::new(session.clone(), inlets, log, launch, ours, host, aftermath.clone());
        let placed = task.and_then(|(task, ready)| {
            let placed = match (goes_on, ends) {
                (true, _) => directory.replace(&session),
                (false, false) => directory.insert(&session),
                (false, true) => directory.insert_command(&session),
            };
            match placed {
                Ok(()) => Ok((task, ready)),
                Err(error) => {
                    task.cancel();
                    Err(error)
                }
            }
        });
        let (task, ready) = match placed {
            Ok(placed) => placed,
            Err(error) => {
                drop(still);
                aftermath.dropped().await;
                return Err(error);
            }
        };
        claimed.into_iter().for_each(SessionClaim::used);
        session.lives().begin(&session);
        drop(still);
        // A resume that fails leaves the session suspended.
        let reason = if goes_on { EndReason::Suspended } else { EndReason::Killed };
        let abandoned = AbandonedStart(Some((&session, reason.clone())));
        let fork = ForkRequest { server: fork_server, socket: theirs };
        let mut running = Box::pin(self.run_incarnation(task.run(fork), &session));
        // The first poll runs the beginning of the task here, including the order to fork: waking another thread takes
        // longer. Its timers are those of the manager's runtime all the same: a caller's may end earlier.
        let over = poll_fn(|context| {
            let _entered = self.inner.runtime.enter();
            Poll::Ready(running.as_mut().poll(context).is_ready())
        })
        .await;
        drop(descriptors);
        if !over {
            self.inner.runtime.handle().spawn(running);
        }
        // The conversation is recorded while the first events are written.
        let (begun, ()) = tokio::join!(session.wait_started(ready, reason), session.note_when_ready(&aftermath));
        match begun {
            Ok(()) => {
                aftermath.started().await;
                // From here on the caller has it: nothing is waited for any more.
                if let Some(workspace) = new_workspace {
                    workspace.keep();
                }
                abandoned.disarm();
                Ok(SessionHandle::new(session))
            }
            Err(error) => {
                // Waits for the end of what was started, so that the caller's error comes when nothing is left.
                let longest = session.longest_kill(SessionTask::FAILED);
                if let Err(ending) = session.end_within(longest).await {
                    tracing::debug!(session = %session.id(), %ending, "failed to end a session that did not start");
                }
                aftermath.failed(&session.outcome()).await;
                if let Some(workspace) = new_workspace {
                    blocking("removing a workspace", move || workspace.remove()).await?;
                }
                if !goes_on {
                    self.forget_failed_start(&session).await;
                }
                Err(self.with_install_command(error, &session.metadata().agent))
            }
        }
    }

    /// Deletes an ended session with its events, its receipt and its own home directory. A home whose conversation
    /// other sessions resumed is removed with the last of them. Also deletes a session of an earlier manager with the
    /// same state directory, if its home or conversation is still known.
    ///
    /// # Errors
    /// [`Error::NotEnded`]; [`Error::WorkspaceUnapplied`]; [`Error::UnknownSession`] if neither the session nor a home of it exists; [`Error::System`]
    /// if the home cannot be removed: the session is then still known; [`Error::Log`] if its events cannot be deleted:
    /// call it again; [`Error::Deadline`] if that takes too long: they are deleted once the event log continues; in a fleet
    /// [`Error::FleetUnavailable`], while others may go on with the session. Else
    /// see [`ProxyManager`].
    ///
    /// # Cancel safety
    /// A dropped future may still take effect.
    pub async fn delete_session(&self, session: &SessionId) -> Result<()> {
        self.delete_session_with(session, false).await
    }

    /// Deletes a session like [`ProxyManager::delete_session`]; with `force` together with changes of its workspace that are not applied.
    ///
    /// # Errors
    /// As [`ProxyManager::delete_session`]; [`Error::WorkspaceUnapplied`] without `force`.
    ///
    /// # Cancel safety
    /// A dropped future may still take effect.
    pub async fn delete_session_with(&self, session: &SessionId, force: bool) -> Result<()> {
        self.ensure_ready("deleting a session")?;
        let (_reserved, known) = self.inner.session_table.reserve_ended(session)?;
        self.check_unapplied(session, force).await?;
        // Before anything of it is gone: a node that goes on with it would have what is left.
        self.inner.announce_deletion(session).await?;
        if let Some(known) = &known {
            // Otherwise the records of its end would be written after its deletion.
            known.wait_settled().await?;
            // Its events go too: this is for who reads them now.
            let reason = "it is being deleted".to_owned();
            known.give_up_queue(&Error::Ended { session: session.clone(), reason });
        }
        let (homes, id) = (self.inner.homes.clone(), session.clone());
        let had_home = blocking("removing a session's home", move || homes.delete(&id)).await??;
        let had_workspace = self.remove_workspace(session).await?;
        let had_record = self.remove_record(session).await?;
        Box::pin(self.delete_commands(session)).await;
        self.inner.session_table.delete(session);
        let had_events = self.inner.forget(session).await?;
        if known.is_some() || had_home || had_workspace || had_record || had_events {
            Ok(())
        } else {
            Err(Error::UnknownSession { session: session.clone() })
        }
    }

    /// Deletes the session with this id, if there is one and it has ended.
    ///
    /// # Errors
    /// [`Error::DuplicateSession`] if it has not ended. Else as [`ProxyManager::delete_session`].
    pub(super) async fn delete_ended(&self, id: &SessionId) -> Result<()> {
        self.ends_if_ending(id).await;
        if let Ok(known) = self.inner.session_table.get(id) {
            let status = RecordState::from(&known.info().state).status();
            if status != SessionStatus::Ended {
                return Err(Error::DuplicateSession { session: id.clone(), status });
            }
        }
        match self.delete_session(id).await {
            Ok(()) | Err(Error::UnknownSession { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Forgets a session whose start failed, unless something of it may have survived. The caller has reserved its id.
    async fn forget_failed_start(&self, session: &Arc<ManagedSession>) {
        let id = session.id();
        let warn = |error: Error| {
            tracing::warn!(session = %id, error = %error.chain(), "failed to remove what a failed start left");
        };
        if let Err(error) = self.remove_record(id).await {
            warn(error);
        }
        if !session.is_stillborn() || session.left_survivors() {
            return;
        }
        if let Err(error) = session.wait_settled().await {
            warn(error);
        }
        self.inner.session_table.delete(id);
        if session.has_earlier_stream() {
            // What was acknowledged before the start stays readable.
            return;
        }
        let forgotten = timeout(FORGET_TIMEOUT, self.inner.forget(id)).await;
        if let Ok(Err(error)) = forgotten {
            warn(error);
        }
    }

    /// Forgets a session whose start was abandoned, once it has ended.
    pub(super) async fn forget_abandoned_start(&self, session: &Arc<ManagedSession>) {
        if let Some(_reserved) = self.inner.session_table.reserve_failed(session) {
            self.forget_failed_start(session).await;
        }
    }

    /// As [`ProxyManager::plan`]; a session that has the conversation and is about to end is waited for.
    /// Plans the start. Where the session may need namespaces, these are tried meanwhile: the first attempt takes as long as the plan.
    async fn plan_beside_attempt(&self, config: AgentSessionConfig, defaults: &AgentDefaults) -> Result<SessionLaunch> {
        let profile = config.profile.as_ref().and_then(|name| defaults.profiles.get(name).ok());
        let is_on = config.sandbox.is_on()
            || profile.is_some_and(|profile| profile.sandbox.mode.is_some_and(|mode| mode != SandboxMode::Off));
        if !is_on && config.containment != Some(Containment::Strict) {
            return self.plan_after_end(config).await;
        }
        let attempt = async {
            let server = self.inner.fork_servers.latest();
            // A failure is told to whoever asks next.
            let _ = self.inner.containment.try_strict(&server).await;
        };
        tokio::join!(self.plan_after_end(config), attempt).0
    }

    async fn plan_after_end(&self, config: AgentSessionConfig) -> Result<SessionLaunch> {
        match self.plan(config.clone()).await {
            Err(Error::NativeSessionBusy { session, manager: None, .. }) if self.ends_if_ending(&session).await => {
                self.plan(config).await
            }
            planned => planned,
        }
    }

    /// Adds the command that installs the agent to the error of a start that did not find its program.
    fn with_install_command(&self, mut error: Error, agent: &str) -> Error {
        if let Error::ProgramNotFound { install, .. } = &mut error {
            let kit = self.agent_defaults();
            let row = kit.catalog.get(agent).ok();
            *install = row.map(|row| row.install.clone()).filter(|command| !command.is_empty());
        }
        error
    }

    /// Waits for the end of a session that is about to end. Whether it has ended.
    pub(super) async fn ends_if_ending(&self, session: &SessionId) -> bool {
        match self.inner.session_table.get(session) {
            Ok(session) => session.ends_if_ending().await,
            Err(_) => false,
        }
    }

    /// Removes the record of a session's conversation; returns true if there was one.
    async fn remove_record(&self, session: &SessionId) -> Result<bool> {
        let (records, id) = (self.inner.records.clone(), session.clone());
        blocking("removing the record of a conversation", move || records.remove(&id)).await?
    }

    /// The journal of a session: on disk with a state directory, else for this manager alone.
    pub(super) fn journal_of(
        &self,
        session: SessionId,
        enclosure: &ContainmentSpec,
        fork_server: ProcessId,
    ) -> SessionJournal {
        let state = self.inner.state.lock().unwrap_or_else(PoisonError::into_inner);
        let place = state.as_ref().map(|state| state.place.clone()).unwrap_or_default();
        let header = JournalHeader {
            session,
            marker: enclosure.marker.clone(),
            place,
            since: registry::now_in_ticks(),
            strict: enclosure.strict,
            host: self.inner.host,
            fork_server,
            cgroup: enclosure.cgroup.clone(),
            container: enclosure
                .container
                .as_deref()
                .map(|container| JournalContainer { name: container.name.clone(), program: container.program.clone() }),
        };
        SessionJournal::new(state.as_ref().map(|state| state.sessions.clone()), header)
    }
}

/// What a session is started for.
pub(super) enum StartKind<'a> {
    /// A caller; `takes_warm` if a session that is ready will do, under its own id.
    New { takes_warm: bool },
    /// The warm pool.
    Warm,
    /// A suspended session.
    Resume(ResumeContext<'a>),
    /// A command before the start of a session, or after its end.
    Command(CommandPoint),
}

/// Checks the conversation on the disk, and creates the files that the agent needs.
async fn prepare_disk(
    launch: SessionLaunch,
    homes: &Arc<SessionHomes>,
    records: &Arc<ConversationRecords>,
) -> Result<(SessionLaunch, Arc<StartAftermath>)> {
    let (homes, records) = (homes.clone(), records.clone());
    if !launch.needs_disk() {
        return Ok((launch, Arc::new(StartAftermath::new(records))));
    }
    let make = move || {
        let launch = launch.check_conversation_file()?;
        launch.prepare_disk(&homes, records).map(|after| (launch, after))
    };
    let made = blocking("looking at the conversation and making a session's home", make);
    made.await?.map(|(launch, aftermath)| (launch, Arc::new(aftermath)))
}

/// Ends a session whose start is dropped: nothing is kept of it.
struct AbandonedStart<'a>(Option<(&'a ManagedSession, EndReason)>);

impl AbandonedStart<'_> {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for AbandonedStart<'_> {
    fn drop(&mut self) {
        if let Some((session, reason)) = self.0.take() {
            session.abandon_start(reason);
        }
    }
}

/// Ends a session that nobody waits for any more.
pub(super) struct EndIfDropped<'a>(pub(super) Option<(&'a ManagedSession, EndReason)>);

impl EndIfDropped<'_> {
    pub(super) fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for EndIfDropped<'_> {
    fn drop(&mut self) {
        if let Some((session, reason)) = self.0.take() {
            session.request_end(SessionTask::FAILED, reason);
        }
    }
}
