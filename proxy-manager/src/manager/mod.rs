//! `ProxyManager`: the embedder's entry point.

mod append;
mod ask;
mod attach;
mod byte_streams;
mod dead_containers;
mod drain;
mod handle;
mod heartbeat;
mod keys;
mod past;
mod replication;
mod requests;
mod retention;
mod session_commands;
mod session_records;
mod start;
mod stream_rules;
mod streams;
mod suspend;
mod warm;
mod workspaces;

pub use self::append::NewEvent;
pub use self::byte_streams::ByteStreamWatch;
pub use self::requests::{RequestGuard, RequestStart};
pub use self::streams::FreeStreamInfo;
use self::{byte_streams::StreamWakers, requests::NamedRequests, stream_rules::StreamMapper, streams::FreeStreams};

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, atomic::AtomicBool},
    time::Duration,
};

use agents::{Catalog, ModelConfig, PriceTable, Profiles};
use event_log::{EventLog, LogMetrics, ReadLimit};
use ipc_protocol::{
    AbortPolicy, EndReason, Envelope, ErrorChain, KillOptions, ProcessId, ProcessInfo, Prompt, Proof, Receipt, SHAPES,
    SessionId,
};

pub use drain::DrainProgress;
pub use handle::SessionHandle;

use self::{attach::OutlivedSessions, keys::KeyLocks};
use crate::{
    actions::ActionRule,
    blocking::{READING, blocking, spawn_blocking},
    builder::ManagerBuilder,
    containment::{Capabilities, ContainmentResolver},
    conversation_locks::{ConversationLocks, SharedLocks},
    deadlines::Deadlines,
    error::{Error, Result},
    fork_server::{ChildProgram, ForkServer, ForkServers},
    history::{EventFeed, FeedStart, HistoryLimits, InUse, LogHandle, StreamContext, Subscription},
    homes::SessionHomes,
    launch::AgentDefaults,
    records::ConversationRecords,
    replication::ReplicationState,
    runtime::{self, HomeRuntime},
    session::{ManagedSession, PromptMode, PromptOptions, SessionInfo, Turn},
    session_store::SessionStore,
    session_table::SessionTable,
    state::{HOMES, RecoveredSession, StateDir, detached_search::remove_door},
    supervision::{Admission, DescriptorReserve, Occupancy, WarmPool},
    workspaces::WorkspaceStore,
};

/// Runs agent sessions, each in a process of its own. Cheap to clone. Dropping the last clone tears everything down,
/// without waiting and without receipts; [`ProxyManager::shutdown`] provides both. Sessions that may outlive their host
/// ([`AgentSessionConfig::on_host_death`](ipc_protocol::AgentSessionConfig::on_host_death)) then continue, as if the
/// host had died.
///
/// Calls about one session fail with [`Error::UnknownSession`] for an unknown (or forgotten) id, and with
/// [`Error::ShutDown`] after a shutdown. [`SessionHandle`] documents the rest at the call of the same name.
///
/// Calls that need a tokio runtime fail with [`Error::NoRuntime`] outside one. Those without a `Result` then run in the
/// runtime that the manager was built in, or return nothing if that has ended.
///
/// The tasks of the manager and of all its sessions run in the runtime that it was built in. When that ends, its sessions do, and calls
/// from another runtime fail with [`Error::RuntimeEnded`]: a manager that tests share needs a runtime that they share, too.
///
/// ```no_run
/// # async fn example(manager: proxy_manager::ProxyManager) -> proxy_manager::Result<()> {
/// use proxy_manager::{AgentSessionConfig, PromptMode};
///
/// let session = manager.start_session(AgentSessionConfig::new("claude-code")).await?;
/// manager.send_prompt(session.id(), "what does this project do?", PromptMode::Refuse).await?.wait().await?;
/// for receipt in manager.shutdown().await {
///     println!("{receipt}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ProxyManager {
    inner: Arc<ManagerInner>,
}

/// Maximum number of resumes for one prompt.
const MAX_RESUMES: usize = 3;
/// Wait for the event log to commit everything at the end.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

/// State held only by managers: its drop ends the last one.
#[derive(Debug)]
struct ManagerInner {
    session_table: Arc<SessionTable>,
    fork_servers: Arc<ForkServers>,
    /// This process.
    host: ProcessId,
    /// Fork servers of earlier managers, with the sessions that outlived them.
    adopted_servers: Mutex<Vec<Arc<ForkServer>>>,
    reattached: Mutex<Vec<SessionId>>,
    /// Replaced as a whole: a start continues with the kit that it began with.
    agent_defaults: Mutex<Arc<AgentDefaults>>,
    deadlines: Deadlines,
    streams: StreamContext,
    roster: Arc<SessionStore>,
    containment: Arc<ContainmentResolver>,
    homes: Arc<SessionHomes>,
    /// `None` where there is no place for them.
    workspaces: Option<WorkspaceStore>,
    records: Arc<ConversationRecords>,
    conversation_locks: Arc<ConversationLocks>,
    admission: Arc<Admission>,
    warm_pool: Arc<WarmPool>,
    /// True once containers of dead hosts were looked for.
    has_swept_containers: AtomicBool,
    descriptors: DescriptorReserve,
    /// `None` without one, and after a shutdown.
    state: Mutex<Option<StateDir>>,
    recovered: Vec<RecoveredSession>,
    rules: Arc<[ActionRule]>,
    key_locks: KeyLocks,
    requests: NamedRequests,
    free_streams: FreeStreams,
    stream_wakers: StreamWakers,
    stream_mapper: StreamMapper,
    /// Turns of commands after the ends of sessions.
    after_end_turns: tokio::sync::Semaphore,
    /// Default idle time before suspension, 0 for never.
    idle_suspend_ms: u64,
    /// Runtime that the manager was built in, with its tasks and those of its sessions.
    runtime: HomeRuntime,
    /// Locks out concurrent shutdowns, which wait for the first.
    shutdown: tokio::sync::Mutex<()>,
}

impl ManagerBuilder {
    /// Tries what sessions can be held by, ends what dead managers left, starts the fork server and checks that it is one. The directory that the host is in now is the sessions' default.
    ///
    /// Usually takes some milliseconds; up to some ten seconds where processes resist being killed. Call it in a tokio
    /// runtime with I/O and time enabled; the manager's tasks run there.
    ///
    /// # Errors
    /// [`Error::ChildUnusable`] if the child binary is missing or does not answer as one, [`Error::VersionMismatch`] if
    /// it is of another build; [`Error::ContainmentUnavailable`] if the [`ManagerBuilder::containment`] asked for cannot be had;
    /// [`Error::StateDirInUse`] if the state directory is another manager's, [`Error::InvalidConfig`] if it is not safe to use;
    /// [`Error::ChildInRuntime`] if the child binary calls `run_if_child` inside a runtime; [`Error::NoRuntime`] if this is called
    /// outside one, [`Error::RuntimeIncomplete`] in one without I/O or time (tokio tells of that by a panic, which is caught: with
    /// `panic = "abort"` the program ends there); [`Error::FdsExhausted`], [`Error::System`]. No process is left then.
    ///
    /// # Cancel safety
    /// A dropped future ends the fork server; but where that is dropped while the strict layer is tried, only the runtime's end does.
    pub async fn build(self) -> Result<ProxyManager> {
        runtime::require_io()?;
        let cwd = std::env::current_dir().map_err(|error| Error::system("reading the working directory", error))?;
        let cwd = cwd.into_os_string().into_string().map_err(|cwd| Error::InvalidConfig {
            field: "cwd",
            reason: format!("the host's working directory {cwd:?} is not UTF-8: change to another one first"),
        })?;
        ProxyManager::start(self, cwd).await
    }
}

impl ProxyManager {
    /// Creates a builder for a manager whose fork server is `child`.
    pub fn builder(child: ChildProgram) -> ManagerBuilder {
        ManagerBuilder::new(child)
    }

    pub(crate) async fn start(builder: ManagerBuilder, cwd: String) -> Result<Self> {
        let child = builder.child.clone();
        let (deadlines, history, ended_sessions) = (builder.deadlines, builder.history, builder.ended_sessions);
        let admission = Arc::new(Admission::new(builder.bounds));
        let warm_pool = Arc::new(WarmPool::new(builder.warm.clone(), builder.warm_age));
        let descriptors = DescriptorReserve::new(builder.descriptor_reserve);
        let mut kit = AgentDefaults { cwd, ..builder.agent_defaults.clone() };
        kit.hidden.extend(builder.state_dir.clone());
        let idle_suspend_ms = builder.idle_suspend_ms();
        let (log_failure, retention) = (builder.log_failure, builder.retention);
        let looks_for_containers = builder.looks_for_containers;
        let replication = builder.replication.clone().map(|replication| Arc::new(ReplicationState::new(replication)));
        if replication.is_some() && builder.state_dir.is_none() {
            let reason = "events can be shipped to a fleet where they are kept: name a state directory".to_owned();
            return Err(Error::InvalidConfig { field: "state_dir", reason });
        }
        let rules: Arc<[ActionRule]> = builder.rules.clone().into();
        let PreparedManager {
            containment: containing,
            state,
            log,
            session_store: roster,
            homes,
            workspaces,
            records,
            recovered,
            outlived,
        } = blocking("preparing the manager", move || PreparedManager::new(&builder)).await??;
        let fork_server = ForkServer::start(&child, &deadlines, containing.groups()).await?;
        let home = HomeRuntime::current();
        let directory = Arc::new(SessionTable::new(ended_sessions).in_runtime(home.clone()));
        let usual = if log.is_open() { HistoryLimits::BESIDE_LOG } else { HistoryLimits::default() };
        let limits = history.unwrap_or(usual);
        let everyone = directory.all_sessions_waker().clone();
        let streams =
            StreamContext { limits, all_sessions_waker: everyone, log, log_failure, shapes: SHAPES, replication };
        if let Err(error) = containing.require_default(&fork_server).await {
            fork_server.finish(deadlines.shutdown, true).await;
            return Err(error);
        }
        let host = fork_server.host();
        let claims = SharedLocks::new(host, fork_server.id());
        let inner = ManagerInner {
            session_table: directory,
            fork_servers: Arc::new(ForkServers::new(fork_server, child, deadlines)),
            host,
            adopted_servers: Mutex::default(),
            reattached: Mutex::default(),
            agent_defaults: Mutex::new(Arc::new(kit)),
            deadlines,
            streams,
            roster,
            containment: containing,
            homes: Arc::new(homes),
            workspaces,
            records: Arc::new(records),
            conversation_locks: Arc::new(ConversationLocks::new(claims)),
            admission,
            warm_pool,
            has_swept_containers: AtomicBool::default(),
            descriptors,
            state: Mutex::new(state),
            recovered,
            stream_mapper: StreamMapper::new(!rules.is_empty()),
            rules,
            key_locks: KeyLocks::default(),
            requests: NamedRequests::default(),
            free_streams: FreeStreams::default(),
            stream_wakers: StreamWakers::default(),
            after_end_turns: tokio::sync::Semaphore::new(session_commands::MAX_AFTER_END),
            idle_suspend_ms,
            runtime: home,
            shutdown: tokio::sync::Mutex::default(),
        };
        let resting = inner.restore(&|session| outlived.is_living(session)).await;
        let free = inner.restore_streams().await;
        let manager = Self { inner: Arc::new(inner) };
        manager.inner.keep_a_fork_server();
        retention::start(&manager.inner, retention);
        heartbeat::start(&manager.inner);
        manager.flush_log().await;
        manager.reattach(outlived, host).await;
        for session in resting {
            manager.resume_for_missed(session).await;
        }
        for stream in free {
            manager.resume_stream(stream).await;
        }
        manager.start_mapping().await;
        warm::start(&manager.inner);
        if looks_for_containers {
            dead_containers::start(&manager.inner);
        }
        // In a fleet nothing can start before the node has joined.
        if manager.inner.streams.replication.is_none() {
            manager.resume_commands();
        }
        Ok(manager)
    }

    /// Returns the session with that id, alive or ended.
    ///
    /// # Errors
    /// [`Error::UnknownSession`], [`Error::ShutDown`].
    pub fn session(&self, session: &SessionId) -> Result<SessionHandle> {
        self.ensure_open()?;
        self.inner.session_table.get(session).map(SessionHandle::new)
    }

    fn agent_defaults(&self) -> Arc<AgentDefaults> {
        self.inner.agent_defaults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change_agent_defaults(&self, change: impl FnOnce(&mut AgentDefaults)) {
        change(Arc::make_mut(&mut self.inner.agent_defaults.lock().unwrap_or_else(PoisonError::into_inner)));
        // Sessions that were started from what was there before are started again.
        self.inner.warm_pool.changed.notify_one();
    }

    /// Returns the profiles that sessions may name.
    pub fn profiles(&self) -> Profiles {
        self.agent_defaults().profiles.clone()
    }

    /// Replaces the profiles that sessions may name. Sessions that have started are not affected.
    pub fn set_profiles(&self, profiles: Profiles) {
        self.change_agent_defaults(|kit| kit.profiles = profiles);
    }

    /// Replaces the model configurations that sessions may name. Sessions that have started are not affected.
    pub fn set_models(&self, models: impl IntoIterator<Item = ModelConfig>) {
        let models = models.into_iter().map(|model| (model.name.clone(), model)).collect();
        self.change_agent_defaults(|kit| kit.models = models);
    }

    /// Replaces the prices of models, for sessions that have started, too: from the next usage on that an agent tells.
    pub fn set_prices(&self, prices: PriceTable) {
        self.agent_defaults().prices.replace(prices);
    }

    /// Replaces agents, profiles and model configurations at once. Sessions that have started are not affected.
    pub fn configure(&self, catalog: Catalog, profiles: Profiles, models: impl IntoIterator<Item = ModelConfig>) {
        let models = models.into_iter().map(|model| (model.name.clone(), model)).collect();
        self.change_agent_defaults(|kit| (kit.catalog, kit.profiles, kit.models) = (catalog, profiles, models));
    }

    /// Sends a prompt as [`SessionHandle::prompt`] does. Resumes a suspended session, unless its configuration rules
    /// that out (`Lifecycle::resume_on_prompt`).
    ///
    /// # Errors
    /// See [`SessionHandle::prompt`], [`ProxyManager::resume_session`] and [`ProxyManager`].
    ///
    /// # Cancel safety
    /// Do not drop the future half-way: run it in a task of its own (`tokio::spawn`), and the session is never left
    /// between two states. As [`SessionHandle::prompt`] for a session that is not suspended.
    pub async fn send_prompt(&self, session: &SessionId, prompt: impl Into<Prompt>, mode: PromptMode) -> Result<Turn> {
        self.send_prompt_with(session, prompt, PromptOptions::from(mode)).await
    }

    /// Sends a prompt like [`ProxyManager::send_prompt`], with `options`.
    ///
    /// # Errors
    /// As [`ProxyManager::send_prompt`].
    ///
    /// # Cancel safety
    /// As [`ProxyManager::send_prompt`].
    pub async fn send_prompt_with(
        &self,
        session: &SessionId,
        prompt: impl Into<Prompt>,
        options: PromptOptions,
    ) -> Result<Turn> {
        self.ensure_ready("prompting in a session")?;
        let prompt = prompt.into();
        // An idle session can be suspended between the look at it and the prompt.
        for _ in 0..MAX_RESUMES {
            let handle = self.awake(session).await?;
            match handle.prompt_with(prompt.clone(), options.clone()).await {
                Err(Error::Suspended { .. }) if handle.session().resumes_on_prompt() => {
                    let session = handle.session();
                    // The receipt does not matter here.
                    let _ = session.end_within(session.longest_kill(KillOptions::default())).await;
                }
                prompted => return prompted,
            }
        }
        Err(Error::Suspended { session: session.clone() })
    }

    /// See [`SessionHandle::abort`].
    ///
    /// # Errors
    /// See [`SessionHandle::abort`] and [`ProxyManager`].
    ///
    /// # Cancel safety
    /// As [`SessionHandle::abort`].
    pub async fn abort_session(&self, session: &SessionId, policy: AbortPolicy) -> Result<Option<Receipt>> {
        self.session(session)?.abort(policy).await
    }

    /// See [`SessionHandle::kill`].
    ///
    /// # Errors
    /// See [`SessionHandle::kill`] and [`ProxyManager`].
    ///
    /// # Cancel safety
    /// As [`SessionHandle::kill_scope`].
    pub async fn kill_session(&self, session: &SessionId, options: KillOptions) -> Result<Receipt> {
        self.session(session)?.kill(options).await
    }

    /// See [`SessionHandle::processes`].
    ///
    /// # Errors
    /// See [`SessionHandle::processes`] and [`ProxyManager`].
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    pub async fn list_processes(&self, session: &SessionId) -> Result<Vec<ProcessInfo>> {
        self.session(session)?.processes().await
    }

    /// Lists every session in starting order; ended ones as long as they are remembered.
    pub fn list_sessions(&self) -> Vec<SessionInfo> {
        self.inner.session_table.all().iter().map(|session| session.info()).collect()
    }

    /// Lists every session with the current resource use of its processes. A session that does not answer in time has
    /// none.
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    pub async fn measured_sessions(&self) -> Vec<SessionInfo> {
        let manager = self.clone();
        let measured = runtime::run_in(&self.inner.runtime, async move { manager.measure_sessions().await }).await;
        measured.unwrap_or_default()
    }

    async fn measure_sessions(&self) -> Vec<SessionInfo> {
        let measured = self.inner.session_table.all().into_iter().map(|session| {
            tokio::spawn(async move {
                let process_use = SessionHandle::new(session.clone()).process_use().await.ok();
                SessionInfo { process_use, ..session.info() }
            })
        });
        let measured: Vec<_> = measured.collect();
        let mut sessions = Vec::with_capacity(measured.len());
        for session in measured {
            // Fails only with the runtime.
            sessions.extend(session.await);
        }
        sessions
    }

    /// Number of sessions that have not ended, and of starts that wait for a place.
    pub fn occupancy(&self) -> Occupancy {
        self.inner.admission.occupancy()
    }

    /// Subscribes as [`SessionHandle::subscribe_from`] does, also to an ended session of an earlier manager, of which
    /// there is no handle.
    ///
    /// # Errors
    /// See [`ProxyManager`].
    pub fn subscribe_from(&self, session: &SessionId, from: u64) -> Result<Subscription> {
        match self.session(session) {
            Err(error @ Error::UnknownSession { .. }) => {
                let history = self.inner.past_history(session).ok_or(error)?;
                Ok(Subscription::one(history, from.saturating_add(1)))
            }
            known => Ok(known?.subscribe_from(from)),
        }
    }

    /// Subscribes to the events of all sessions, remembered and future ones, each from its first event. Order holds
    /// within a session, not between sessions. A session that ended and was forgotten before the subscription reached
    /// it yields one `session:gap`.
    pub fn subscribe_all(&self) -> Subscription {
        Subscription::all(self.inner.session_table.clone(), false)
    }

    /// Subscribes as [`ProxyManager::subscribe_all`] does, without the events of earlier managers.
    pub fn subscribe_own(&self) -> Subscription {
        Subscription::all(self.inner.session_table.clone(), true)
    }

    /// Returns counts of the event log's work; `None` without a state directory.
    pub fn log_metrics(&self) -> Option<LogMetrics> {
        self.inner.streams.log.get().map(|log| log.metrics())
    }

    /// Reads the events of all sessions together, including those of earlier managers, in the order of the event log:
    /// up to `most` at positions greater than `from` (0 for all). Each has its position, from which reading continues.
    /// Positions grow, with holes, and are never reused. Removed events are missing, which the offsets of their session
    /// show; a `session:gap` replaces damaged ones. Imported events appear at the positions where they were written,
    /// once the import is complete: a reader that is past some of these positions by then does not get those events.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] without a state directory; [`Error::Log`] for a log that is damaged too much. Else see
    /// [`ProxyManager`].
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    pub async fn read_all(&self, from: u64, most: usize) -> Result<Vec<(u64, Arc<Envelope>)>> {
        let (log, is_replicated) = (self.event_log()?, self.inner.streams.replication.is_some());
        let limit = ReadLimit { events: most, ..ReadLimit::default() };
        let read = move || match is_replicated {
            true => log.acknowledged().read_all(from, limit),
            false => log.read_all(from, limit),
        };
        Ok(READING.run("reading all events", read).await??)
    }

    /// Reads the events of all sessions together as [`ProxyManager::read_all`] does, and then those that follow.
    ///
    /// # Errors
    /// As [`ProxyManager::read_all`].
    ///
    /// # Cancel safety
    /// A dropped future has read nothing that the next call does not read.
    pub async fn follow_all(&self, start: FeedStart) -> Result<EventFeed> {
        let from = match start {
            FeedStart::After(from) => from,
            FeedStart::Latest => {
                let (log, is_replicated) = (self.event_log()?, self.inner.streams.replication.is_some());
                let end = move || if is_replicated { log.acknowledged().end() } else { log.end() };
                READING.run("reading the end of all events", end).await??
            }
        };
        self.event_log()?;
        let wake = self.inner.session_table.all_sessions_waker().subscribe();
        Ok(EventFeed::new(self.clone(), wake, from))
    }

    fn event_log(&self) -> Result<InUse> {
        self.ensure_open()?;
        self.inner.streams.log.get().ok_or_else(|| Error::InvalidConfig {
            field: "state_dir",
            reason: "events of all sessions have one order where they are kept: name a state directory".to_owned(),
        })
    }

    /// Ends every session, with the default grace, then the fork server. Returns one receipt for each session that was
    /// alive; a failed kill yields a receipt with survivors or without proof ([`Receipt::is_empty`] is false). Every
    /// later call fails with [`Error::ShutDown`]; a second shutdown waits for the first and returns nothing.
    ///
    /// # Cancel safety
    /// Dropping the future loses the receipts: sessions end nevertheless, and the rest with the last clone of the
    /// manager.
    pub async fn shutdown(&self) -> Vec<Receipt> {
        self.shutdown_with(ShutdownScope::Everything).await
    }

    /// Ends the manager as [`ProxyManager::shutdown`] does, but for sessions that may outlive their host
    /// ([`AgentSessionConfig::on_host_death`](ipc_protocol::AgentSessionConfig::on_host_death)): these run on, and the next manager
    /// with the same state directory adopts them. Returns receipts of the others.
    ///
    /// # Cancel safety
    /// As [`ProxyManager::shutdown`].
    pub async fn shutdown_detaching(&self) -> Vec<Receipt> {
        self.shutdown_with(ShutdownScope::Attached).await
    }

    async fn shutdown_with(&self, scope: ShutdownScope) -> Vec<Receipt> {
        let manager = self.clone();
        let receipts = runtime::run_in(&self.inner.runtime, async move { manager.end_all(scope).await }).await;
        receipts.unwrap_or_default()
    }

    /// Sessions that outlive this host when it is ended by [`ProxyManager::shutdown_detaching`].
    pub fn detachable_sessions(&self) -> Vec<SessionId> {
        let sessions = self.inner.session_table.all();
        let living = sessions.iter().filter(|session| session.ended().is_none() && session.may_outlive_host());
        living.map(|session| session.id().clone()).collect()
    }

    async fn end_all(&self, scope: ShutdownScope) -> Vec<Receipt> {
        let ManagerInner { session_table: directory, fork_servers, deadlines, shutdown, .. } = &*self.inner;
        directory.close();
        self.inner.warm_pool.close();
        self.inner.admission.close(Error::ShutDown);
        let _one_at_a_time = shutdown.lock().await;
        let options = KillOptions::default();
        // Commands after the end of sessions have their time.
        let lives =
            |session: &Arc<ManagedSession>| session.ended().is_none() && !session_commands::is_after_end(session);
        let alive = directory.all().into_iter().filter(lives);
        let (leaving, alive): (Vec<_>, Vec<_>) = alive.partition(|session| scope.spares(session));
        for session in &leaving {
            session.detach();
        }
        let warm: Vec<_> = alive.iter().filter(|session| session.is_warm()).cloned().collect();
        for session in &alive {
            // A session that is nobody's is not suspended.
            let reason = if session.is_warm() { EndReason::Killed } else { EndReason::Shutdown };
            session.request_end(options, reason);
        }
        let mut receipts = Vec::with_capacity(alive.len());
        for session in &alive {
            // Sessions end concurrently; only their answers are collected one at a time.
            receipts.push(match session.end_within(session.longest_kill(options)).await {
                Ok(receipt) => receipt,
                Err(Error::Survivors(receipt)) => *receipt,
                Err(error) => {
                    tracing::warn!(session = %session.id(), error = %error.chain(), "failed to get a session's receipt");
                    session.detach();
                    Receipt::begin(session.id().clone(), ipc_protocol::KillCause::Shutdown)
                }
            });
        }
        for session in alive.iter().chain(&leaving) {
            // Its records are then written: the next manager may be built at once.
            if let Err(error) = session.wait_settled().await {
                tracing::warn!(session = %session.id(), error = %error.chain(), "timed out waiting for the records of a session's end");
            }
        }
        for session in &warm {
            self.inner.forget_warm(session).await;
        }
        self.finish_commands().await;
        self.inner.conversation_locks.settled().await;
        let proven = receipts.iter().all(|receipt| receipt.proof != Proof::None);
        let adopted = std::mem::take(&mut *self.inner.adopted_servers.lock().unwrap_or_else(PoisonError::into_inner));
        for fork_server in std::iter::once(fork_servers.close()).chain(adopted) {
            if self.inner.runtime.has_ended() {
                fork_server.finish_unsupervised(deadlines.shutdown).await;
            } else if leaving.is_empty() {
                fork_server.finish(deadlines.shutdown, proven).await;
            } else {
                // It stays for as long as it has a session that outlives this host.
                fork_server.close();
            }
        }
        // Releases the cgroup, and later the state directory, for the next manager.
        self.inner.containment.close();
        let homes = self.inner.homes.clone();
        if let Err(error) = blocking("removing the sessions' homes", move || homes.close()).await {
            tracing::warn!(%error, "failed to remove temporary homes");
        }
        self.finish_shipping().await;
        for session in self.inner.session_table.all() {
            // This manager appends nothing more to a suspended session.
            session.history().close();
        }
        self.inner.free_streams.close();
        self.finish_log().await;
        *self.inner.state.lock().unwrap_or_else(PoisonError::into_inner) = None;
        receipts
    }

    /// Waits until the event log has committed everything.
    async fn flush_log(&self) {
        let Some(log) = self.inner.streams.log.get() else { return };
        match blocking("writing the event log", move || log.flush(FLUSH_TIMEOUT)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(error = %ErrorChain(&error), "failed to flush the event log"),
            Err(error) => tracing::error!(error = %error.chain(), "failed to wait for the event log"),
        }
    }

    /// Waits until the event log has committed everything, and closes it.
    async fn finish_log(&self) {
        let Some(log) = self.inner.streams.log.get() else { return };
        let all = self.inner.streams.log.clone();
        let finish = move || {
            let finished = log.flush(FLUSH_TIMEOUT);
            drop(log);
            all.close();
            finished
        };
        match blocking("finishing the event log", finish).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::error!(error = %ErrorChain(&error), "failed to flush the last events to the event log");
            }
            Err(error) => tracing::error!(error = %error.chain(), "failed to close the event log"),
        }
    }

    /// Sessions found when the manager was built whose supervisors had all died before them, and their outcomes. Empty
    /// without a state directory and cgroups.
    pub fn recovered(&self) -> &[RecoveredSession] {
        &self.inner.recovered
    }

    /// Containment that this machine offers to sessions, with reasons for what is missing. Tries what was not tried
    /// yet; that takes some milliseconds, and processes below the fork server: this process gets no child.
    ///
    /// # Errors
    /// [`Error::ForkServerDied`]; [`Error::Deadline`]; [`Error::System`]. Else see [`ProxyManager`].
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    pub async fn capabilities(&self) -> Result<Capabilities> {
        self.ensure_ready("trying what the machine offers")?;
        self.inner.containment.capabilities(&*self.inner.fork_servers.living().await?).await
    }

    /// The fork server's process. When it dies another one takes its place.
    pub fn fork_server(&self) -> ProcessId {
        self.inner.fork_servers.latest().id()
    }

    /// Lists the failures that this manager has now, each with its cause; empty if all is well. Without a fork server sessions cannot be
    /// started; what the event log cannot take is lost with this manager. That it can be written again shows within 30 seconds.
    pub fn trouble(&self) -> Vec<String> {
        let unwritten = self.log_metrics().and_then(|log| log.last_error).map(|error| ErrorChain(&error).to_string());
        self.inner.fork_servers.trouble().into_iter().chain(unwritten).collect()
    }

    /// Processes that are ancestors of everything that sessions start: the fork server, and those of earlier managers
    /// whose sessions outlived them.
    pub fn fork_servers(&self) -> Vec<ProcessId> {
        let adopted = self.inner.adopted_servers.lock().unwrap_or_else(PoisonError::into_inner);
        let adopted = adopted.iter().filter(|server| !server.is_dead()).map(|server| server.id());
        [self.fork_server()].into_iter().chain(adopted).collect()
    }

    /// Returns the depth of the session that the process `pid` belongs to.
    ///
    /// # Errors
    /// The reason why that is unknown: the process is in no living session, or is gone.
    pub fn depth_of_process(&self, pid: u32) -> std::result::Result<u32, String> {
        let sessions = self.list_sessions();
        let proxies: Vec<(ProcessId, u32)> =
            sessions.iter().filter_map(|info| Some((info.processes.proxy?, info.metadata.depth))).collect();
        let tops: Vec<ProcessId> = proxies.iter().map(|(proxy, _)| *proxy).collect();
        let top = registry::top_of(pid, &tops)?;
        let depth = proxies.iter().find(|(proxy, _)| Some(*proxy) == top).map(|(_, depth)| *depth);
        depth.ok_or_else(|| format!("the process {pid} is in no session that lives"))
    }

    /// Checks that a call can be served: in a runtime, by a manager that was not shut down and whose own runtime lives.
    fn ensure_ready(&self, operation: &str) -> Result<()> {
        runtime::require()?;
        self.ensure_open()?;
        self.inner.runtime.check(operation)
    }

    fn ensure_open(&self) -> Result<()> {
        if self.inner.session_table.is_closed() { Err(Error::ShutDown) } else { Ok(()) }
    }
}

impl ManagerInner {
    /// Has another fork server started when this one dies, for as long as there is a manager.
    fn keep_a_fork_server(self: &Arc<Self>) {
        let (servers, inner) = (self.fork_servers.clone(), Arc::downgrade(self));
        let (containing, leases) = (inner.clone(), inner);
        let groups = move || containing.upgrade().map(|inner| inner.containment.groups());
        let replaced = move |dead, next| {
            if let Some(inner) = leases.upgrade() {
                inner.conversation_locks.guarded_by(next);
                let state = inner.state.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(state) = state.as_ref().map(|state| state.path.clone()) else { return };
                if let Err(error) =
                    spawn_blocking("removing the socket of a dead fork server", move || remove_door(&state, dead))
                {
                    tracing::warn!(%error, "failed to remove the socket of a dead fork server");
                }
            }
        };
        tokio::spawn(servers.keep(groups, replaced));
    }
}

impl Drop for ManagerInner {
    fn drop(&mut self) {
        self.session_table.close();
        self.warm_pool.close();
        let sessions = self.session_table.all();
        for session in &sessions {
            session.detach();
            if session.is_suspended() {
                session.history().close();
            }
        }
        self.free_streams.close();
        if sessions.iter().all(|session| session.is_settled()) {
            // Whoever still holds one of them does not keep it from the next manager.
            self.streams.log.release();
        }
        self.fork_servers.close().close();
        for fork_server in self.adopted_servers.get_mut().unwrap_or_else(PoisonError::into_inner) {
            fork_server.close();
        }
    }
}

/// Sessions that a shutdown ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShutdownScope {
    Everything,
    /// Those that end with their host.
    Attached,
}

impl ShutdownScope {
    fn spares(self, session: &ManagedSession) -> bool {
        self == Self::Attached && session.may_outlive_host()
    }
}

/// State prepared before the fork server starts.
struct PreparedManager {
    containment: Arc<ContainmentResolver>,
    state: Option<StateDir>,
    log: LogHandle,
    session_store: Arc<SessionStore>,
    homes: SessionHomes,
    workspaces: Option<WorkspaceStore>,
    records: ConversationRecords,
    recovered: Vec<RecoveredSession>,
    outlived: OutlivedSessions,
}

impl PreparedManager {
    /// Probes the machine, takes the state directory, and ends what dead managers left. Blocks.
    fn new(builder: &ManagerBuilder) -> Result<Self> {
        let host =
            registry::identify(std::process::id()).map_err(|error| Error::system("looking at this process", error))?;
        let state = builder.state_dir.as_deref().map(|path| StateDir::open(path, host)).transpose()?;
        let log = state.as_ref().map(open_log).transpose()?;
        let log = LogHandle::new(log);
        builder.rules.iter().try_for_each(ActionRule::check)?;
        let containing = ContainmentResolver::probe(builder.containment, builder.cgroup_parent.as_deref(), host)?;
        let containing = containing.with_hidden(hidden_files(&builder.hidden_files)?);
        // Found before anything is ended: sessions that outlived their host must be spared.
        let (outlived, mut recovered) = match &state {
            Some(state) => {
                OutlivedSessions::find(state, builder.agent_defaults.engine_env(), &state.directory("detached")?, host)
            }
            None => Default::default(),
        };
        // Journals end the sessions that have one; cgroups end the rest.
        recovered.extend(containing.sweep());
        // Keys are removed once no session with that home runs.
        let (homes, records) = match &state {
            Some(state) => {
                let records = ConversationRecords::open(state.directory("conversations")?)?;
                let mut recorded = records.homes()?;
                recorded.iter_mut().filter(|one| outlived.is_home_in_use(&one.home)).for_each(|one| one.keys.clear());
                let homes = state.directory(HOMES)?;
                agents::conversations::recover_backups(&homes, |session| outlived.may_be_living(session));
                (SessionHomes::persistent(homes, recorded), records)
            }
            None => (SessionHomes::temporary(temporary(builder)), ConversationRecords::default()),
        };
        let workspaces = match &state {
            Some(state) => Some(state.directory("workspaces")?),
            None => builder.workspaces.clone(),
        };
        let workspaces =
            workspaces.map(|directory| WorkspaceStore::new(directory, builder.agent_defaults.base_env.clone()));
        if let Some(workspaces) = workspaces.as_ref().filter(|_| state.is_some()) {
            workspaces.recover();
        }
        for recovered in &recovered {
            if recovered.is_empty() {
                tracing::info!(?recovered, "recovered a session whose supervisors had died");
            } else {
                tracing::warn!(?recovered, "failed to end all processes of a session whose supervisors had died");
            }
        }
        let roster = Arc::new(SessionStore::open(log.clone())?);
        Ok(Self {
            containment: Arc::new(containing),
            state,
            log,
            session_store: roster,
            homes,
            workspaces,
            records,
            recovered,
            outlived,
        })
    }
}

/// Absolute paths of files that are hidden from sessions.
fn hidden_files(files: &[PathBuf]) -> Result<Vec<String>> {
    let path = |path: &PathBuf| {
        let refused =
            |reason: String| Error::InvalidConfig { field: "hidden files", reason: format!("{path:?} {reason}") };
        let absolute = std::path::absolute(path).map_err(|error| refused(format!("is no path: {error}")))?;
        absolute.into_os_string().into_string().map_err(|_| refused("is not UTF-8".into()))
    };
    files.iter().map(path).collect()
}

#[cfg(feature = "sqlite")]
fn open_log(state: &StateDir) -> Result<EventLog> {
    Ok(EventLog::open(state.path.join("log.sqlite"), event_log::LogOptions::default())?)
}

#[cfg(not(feature = "sqlite"))]
fn open_log(_: &StateDir) -> Result<EventLog> {
    let reason = "this build keeps no event log on a disk: build it with the feature `sqlite`, or name no directory";
    Err(Error::InvalidConfig { field: "state directory", reason: reason.into() })
}

/// Directory for temporary files, from the base environment.
fn temporary(builder: &ManagerBuilder) -> PathBuf {
    let named = builder.agent_defaults.base_env.0.get("TMPDIR").map(PathBuf::from).filter(|path| path.is_absolute());
    named.unwrap_or_else(|| Path::new("/tmp").to_owned())
}

#[cfg(test)]
mod tests;
