//! `ProxyManager`: the embedder's entry point.

use std::{
    future::{Future, poll_fn},
    sync::{Arc, Mutex, PoisonError},
    task::Poll,
};

use agents::Catalog;
use ipc_protocol::{
    AbortPolicy, AgentSessionConfig, EndReason, EnvVars, KillOptions, PermissionAnswer, ProcessId, ProcessInfo, Proof,
    Receipt, SessionId, packet,
};

use crate::{
    Builder, Capabilities, Child, Deadlines, Error, HistoryLimits, PromptMode, Recovered, Result, SessionHandle,
    SessionInfo, Subscription, Turn,
    blocking::blocking,
    containment::Containing,
    directory::Directory,
    fork_server::ForkServer,
    launch::Launch,
    session::{Fork, Session, Task},
    state::{self, Header, Journal, StateDir},
};

/// Runs agent sessions, each in a process of its own. Cheap to clone. When the last clone is dropped everything is torn
/// down: without a wait and without receipts; call [`ProxyManager::shutdown`] to have both.
///
/// Calls about one session say [`Error::UnknownSession`] for an id that is not there (or was forgotten), and
/// [`Error::ShutDown`] after a shutdown. What else they do is said at the same call of [`SessionHandle`].
#[derive(Clone, Debug)]
pub struct ProxyManager {
    inner: Arc<Inner>,
}

/// What only managers hold: its drop is the end of the last one.
#[derive(Debug)]
struct Inner {
    directory: Arc<Directory>,
    fork_server: Arc<ForkServer>,
    catalog: Catalog,
    base_env: EnvVars,
    deadlines: Deadlines,
    history: HistoryLimits,
    cwd: String,
    containing: Arc<Containing>,
    /// `None` without one, and after a shutdown.
    state: Mutex<Option<StateDir>>,
    recovered: Vec<Recovered>,
    /// One shutdown at a time; the others wait for it.
    shutdown: tokio::sync::Mutex<()>,
}

impl ProxyManager {
    /// Begins to build a manager whose fork server is `child`.
    pub fn builder(child: Child) -> Builder {
        Builder::new(child)
    }

    pub(crate) async fn start(builder: Builder, cwd: String) -> Result<Self> {
        let Builder { child, base_env, catalog, deadlines, history, ended_sessions, .. } = &builder;
        let (child, base_env, catalog) = (child.clone(), base_env.clone(), catalog.clone());
        let (deadlines, history, ended_sessions) = (*deadlines, *history, *ended_sessions);
        let Prepared { containing, state, recovered } =
            blocking("preparing the manager", move || Prepared::new(&builder)).await??;
        let fork_server = ForkServer::start(&child, &deadlines, containing.groups()).await?;
        let inner = Inner {
            directory: Arc::new(Directory::new(ended_sessions)),
            fork_server,
            catalog,
            base_env,
            deadlines,
            history,
            cwd,
            containing,
            state: Mutex::new(state),
            recovered,
            shutdown: tokio::sync::Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Starts a session and returns when its agent is ready. If the start fails, or this future is dropped, whatever was
    /// started is ended; the session then stays listed as ended, and its id is free again.
    ///
    /// # Errors
    /// [`Error::DuplicateSession`], [`Error::UnknownAgent`], [`Error::InvalidConfig`], [`Error::Unsupported`] (something
    /// in the configuration cannot be done), [`Error::ContainmentUnavailable`] (the layer asked for cannot be had; there is
    /// no silent step down), [`Error::ProgramNotFound`], [`Error::CwdMissing`], [`Error::FdsExhausted`],
    /// [`Error::Deadline`] (the agent did not get ready), [`Error::AgentDied`], [`Error::ProxyDied`],
    /// [`Error::ForkServerDied`], [`Error::Protocol`], [`Error::Ended`] (killed while it started), [`Error::System`],
    /// [`Error::ShutDown`].
    pub async fn start_session(&self, config: AgentSessionConfig) -> Result<SessionHandle> {
        let Inner { directory, fork_server, catalog, base_env, deadlines, history, cwd, containing, .. } = &*self.inner;
        self.open()?;
        if fork_server.is_dead() {
            return Err(Error::ForkServerDied);
        }
        let mut launch = Launch::plan(config, catalog, base_env, cwd)?;
        let held = containing.hold(launch.config.containment, &launch.config.session_id).await?;
        launch.hold(held);
        launch.journal = self.journal_of(&launch);
        let (ours, theirs) = packet::stream_pair().map_err(|error| Error::system("making a proxy's socket", &error))?;
        let id = launch.config.session_id.clone();
        let labels = launch.labels.clone();
        let (session, inlets, log) = Session::new(id, labels, *deadlines, *history, directory.everyone().clone());
        let (task, ready) = Task::new(session.clone(), inlets, log, launch, ours, fork_server.host())?;
        let serial = directory.insert(&session)?;
        let abandoned = EndIfDropped(Some(&session));
        let fork = Fork { server: fork_server.clone(), socket: theirs };
        let mut running = Box::pin(task.run(directory.clone(), serial, fork));
        // What it begins with, sending the order to fork, is done here and now: waking another thread takes longer.
        let over = poll_fn(|context| Poll::Ready(running.as_mut().poll(context).is_ready())).await;
        if !over {
            tokio::spawn(running);
        }
        match ready.await.unwrap_or(Err(Error::ShutDown)) {
            Ok(()) => {
                abandoned.disarm();
                Ok(SessionHandle::new(session))
            }
            Err(error) => {
                // What the start left is being ended; the caller learns why it failed, with nothing left of it.
                let longest = session.longest_kill(Task::FAILED);
                if let Err(ending) = session.end_within(longest).await {
                    tracing::debug!(session = %session.id(), %ending, "end of a session that did not start");
                }
                Err(error)
            }
        }
    }

    /// The session of that id, alive or ended.
    ///
    /// # Errors
    /// [`Error::UnknownSession`], [`Error::ShutDown`].
    pub fn session(&self, session: &SessionId) -> Result<SessionHandle> {
        self.open()?;
        self.inner.directory.get(session).map(SessionHandle::new)
    }

    /// See [`SessionHandle::prompt`].
    ///
    /// # Errors
    /// As there, and as [`ProxyManager`] says.
    pub async fn send_prompt(&self, session: &SessionId, text: impl Into<String>, mode: PromptMode) -> Result<Turn> {
        self.session(session)?.prompt(text, mode).await
    }

    /// See [`SessionHandle::steer`].
    ///
    /// # Errors
    /// As there, and as [`ProxyManager`] says.
    pub async fn steer(&self, session: &SessionId, text: impl Into<String>) -> Result<()> {
        self.session(session)?.steer(text).await
    }

    /// See [`SessionHandle::abort`].
    ///
    /// # Errors
    /// As there, and as [`ProxyManager`] says.
    pub async fn abort_session(&self, session: &SessionId, policy: AbortPolicy) -> Result<Option<Receipt>> {
        self.session(session)?.abort(policy).await
    }

    /// See [`SessionHandle::kill`].
    ///
    /// # Errors
    /// As there, and as [`ProxyManager`] says.
    pub async fn kill_session(&self, session: &SessionId, options: KillOptions) -> Result<Receipt> {
        self.session(session)?.kill(options).await
    }

    /// See [`SessionHandle::kill_all`].
    ///
    /// # Errors
    /// As there, and as [`ProxyManager`] says.
    pub async fn kill_all(&self, session: &SessionId, options: KillOptions) -> Result<Receipt> {
        self.session(session)?.kill_all(options).await
    }

    /// See [`SessionHandle::kill_process`].
    ///
    /// # Errors
    /// As there, and as [`ProxyManager`] says.
    pub async fn kill_process(&self, session: &SessionId, pid: u32, options: KillOptions) -> Result<Receipt> {
        self.session(session)?.kill_process(pid, options).await
    }

    /// See [`SessionHandle::kill_tree`].
    ///
    /// # Errors
    /// As there, and as [`ProxyManager`] says.
    pub async fn kill_tree(&self, session: &SessionId, pid: u32, options: KillOptions) -> Result<Receipt> {
        self.session(session)?.kill_tree(pid, options).await
    }

    /// See [`SessionHandle::processes`].
    ///
    /// # Errors
    /// As there, and as [`ProxyManager`] says.
    pub async fn list_processes(&self, session: &SessionId) -> Result<Vec<ProcessInfo>> {
        self.session(session)?.processes().await
    }

    /// Every session, in the order of their start; ended ones as long as they are remembered.
    pub fn list_sessions(&self) -> Vec<SessionInfo> {
        self.inner.directory.all().iter().map(|session| session.info()).collect()
    }

    /// See [`SessionHandle::subscribe`].
    ///
    /// # Errors
    /// As [`ProxyManager`] says.
    pub fn subscribe(&self, session: &SessionId) -> Result<Subscription> {
        Ok(self.session(session)?.subscribe())
    }

    /// See [`SessionHandle::subscribe_from`].
    ///
    /// # Errors
    /// As [`ProxyManager`] says.
    pub fn subscribe_from(&self, session: &SessionId, from: u64) -> Result<Subscription> {
        Ok(self.session(session)?.subscribe_from(from))
    }

    /// Events of all sessions, those remembered and those to come, each from its first event. Order holds within a
    /// session, not between two. Of a session that ended and was forgotten before the subscription came to it, all that
    /// comes is one `session:gap`.
    pub fn subscribe_all(&self) -> Subscription {
        Subscription::all(self.inner.directory.clone())
    }

    /// See [`SessionHandle::respond_permission`].
    ///
    /// # Errors
    /// As there, and as [`ProxyManager`] says.
    pub async fn respond_permission(&self, session: &SessionId, request: &str, answer: PermissionAnswer) -> Result<()> {
        self.session(session)?.respond_permission(request, answer).await
    }

    /// See [`SessionHandle::ping`].
    ///
    /// # Errors
    /// As there, and as [`ProxyManager`] says.
    pub async fn ping(&self, session: &SessionId) -> Result<()> {
        self.session(session)?.ping().await
    }

    /// Ends every session, with the default grace, then the fork server. Returns one receipt for each session that was
    /// alive; where a kill failed it is one with survivors or without proof ([`Receipt::is_empty`] is false). Every
    /// later call fails with [`Error::ShutDown`]; a second shutdown waits for the first and returns nothing.
    pub async fn shutdown(&self) -> Vec<Receipt> {
        let Inner { directory, fork_server, deadlines, shutdown, .. } = &*self.inner;
        directory.close();
        let _one_at_a_time = shutdown.lock().await;
        let options = KillOptions::default();
        let alive: Vec<_> = directory.all().into_iter().filter(|session| session.ended().is_none()).collect();
        for session in &alive {
            session.demand_end(options, EndReason::Shutdown);
        }
        let mut receipts = Vec::with_capacity(alive.len());
        for session in &alive {
            // They end side by side; only their answers are collected one after the other.
            receipts.push(match session.end_within(session.longest_kill(options)).await {
                Ok(receipt) => receipt,
                Err(Error::Survivors(receipt)) => *receipt,
                Err(error) => {
                    tracing::warn!(session = %session.id(), %error, "a session ended without a receipt");
                    session.let_go();
                    Receipt::begin(session.id().clone(), ipc_protocol::KillCause::Shutdown)
                }
            });
        }
        let proven = receipts.iter().all(|receipt| receipt.proof != Proof::None);
        fork_server.finish(deadlines.shutdown, proven).await;
        // What the next manager may have: the state directory, and no cgroup of ours.
        self.inner.containing.close();
        *self.inner.state.lock().unwrap_or_else(PoisonError::into_inner) = None;
        receipts
    }

    /// What was found when the manager was built of sessions whose supervisors had all died before them, and what became
    /// of it. Empty without a state directory and cgroups.
    pub fn recovered(&self) -> &[Recovered] {
        &self.inner.recovered
    }

    /// What this machine offers to sessions, and why not the rest. What was not tried yet is tried now, which takes some
    /// milliseconds.
    ///
    /// # Errors
    /// [`Error::System`] where no thread can be had for it.
    pub async fn capabilities(&self) -> Result<Capabilities> {
        let containing = self.inner.containing.clone();
        blocking("trying what the machine offers", move || containing.capabilities()).await
    }

    /// The journal of a session that is about to start, if there is a place for it.
    fn journal_of(&self, launch: &Launch) -> Option<Journal> {
        let state = self.inner.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = state.as_ref()?;
        let header = Header {
            session: launch.config.session_id.clone(),
            marker: launch.enclosure.marker.clone(),
            place: state.place.clone(),
            since: registry::now_in_ticks(),
            strict: launch.enclosure.strict,
            host: self.inner.fork_server.host(),
            fork_server: self.inner.fork_server.id(),
            cgroup: launch.enclosure.cgroup.clone(),
        };
        Some(Journal::new(state.sessions.clone(), header))
    }

    /// The fork server's process.
    pub fn fork_server(&self) -> ProcessId {
        self.inner.fork_server.id()
    }

    fn open(&self) -> Result<()> {
        if self.inner.directory.is_closed() { Err(Error::ShutDown) } else { Ok(()) }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.directory.close();
        for session in self.directory.all() {
            session.let_go();
        }
        self.fork_server.close();
    }
}

/// What there is before the fork server.
struct Prepared {
    containing: Arc<Containing>,
    state: Option<StateDir>,
    recovered: Vec<Recovered>,
}

impl Prepared {
    /// Looks at the machine, takes the state directory, and ends what dead managers left. Blocks.
    fn new(builder: &Builder) -> Result<Self> {
        let host =
            registry::identify(std::process::id()).map_err(|error| Error::system("looking at this process", &error))?;
        let state = builder.state_dir.as_deref().map(|path| StateDir::open(path, host)).transpose()?;
        let containing = Containing::probe(builder.containment, builder.cgroup_parent.as_deref(), host)?;
        let mut recovered = state.as_ref().map_or_else(Vec::new, state::recover);
        // What has a journal is ended by that; the rest by its cgroup.
        recovered.extend(containing.sweep());
        for recovered in &recovered {
            if recovered.is_empty() {
                tracing::info!(?recovered, "a session whose supervisors had died");
            } else {
                tracing::warn!(?recovered, "of a session whose supervisors had died something is left");
            }
        }
        Ok(Self { containing: Arc::new(containing), state, recovered })
    }
}

/// Ends a session if its start is not waited for to the end.
struct EndIfDropped<'a>(Option<&'a Session>);

impl EndIfDropped<'_> {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for EndIfDropped<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.0 {
            session.demand_end(Task::FAILED, EndReason::Killed);
        }
    }
}
