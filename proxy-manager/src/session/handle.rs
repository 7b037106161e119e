//! The embedder's grip on one session.

use std::{fmt, sync::Arc};

use ipc_protocol::{AbortPolicy, EndReason, KillOptions, PermissionAnswer, ProcessInfo, Receipt, SessionId};

use super::{PromptMode, Session, SessionInfo, Turn};
#[cfg(doc)]
use crate::{Error, ProxyManager, SessionState};
use crate::{Result, Subscription};

/// A session. Cheap to clone; does not keep the manager alive: when the last [`ProxyManager`] goes, the session ends.
///
/// Unless said otherwise a call fails with [`Error::Deadline`] when the proxy does not answer in time, with
/// [`Error::AgentDied`], [`Error::ProxyDied`] or [`Error::ForkServerDied`] if one of them dies meanwhile, with
/// [`Error::Ended`] when the session is over, and with [`Error::ShutDown`] when the manager is gone. A call whose
/// future is dropped may still take effect.
#[derive(Clone)]
pub struct SessionHandle {
    session: Arc<Session>,
}

impl fmt::Debug for SessionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.session.fmt(f)
    }
}

impl SessionHandle {
    pub(crate) fn new(session: Arc<Session>) -> Self {
        Self { session }
    }

    /// Its id.
    pub fn id(&self) -> &SessionId {
        self.session.id()
    }

    /// What it is and where it stands.
    pub fn info(&self) -> SessionInfo {
        self.session.info()
    }

    /// Gives the agent a prompt. Returns a ticket for its turn as soon as the agent has it, or, with
    /// [`PromptMode::Queue`] while another turn runs, as soon as it waits.
    ///
    /// # Errors
    /// [`Error::Busy`] while a turn runs or the agent starts, as `mode` says; [`Error::MaxTurns`]; [`Error::Unsupported`]
    /// where the agent cannot be steered; [`Error::InvalidConfig`] for a prompt of more than 16 MiB. Else see
    /// [`SessionHandle`].
    pub async fn prompt(&self, text: impl Into<String>, mode: PromptMode) -> Result<Turn> {
        self.session.prompt(text.into(), mode).await
    }

    /// Says `text` to the agent in the running turn. It is no turn of its own.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the agent cannot be steered or no turn runs. Else see [`SessionHandle`].
    pub async fn steer(&self, text: impl Into<String>) -> Result<()> {
        self.session.steer(text.into()).await
    }

    /// Cancels the running turn through the agent's protocol; without one, nothing. Queued prompts stay queued. Returns
    /// when the agent was told; the turn's end follows as events. An agent without turns gets SIGINT.
    ///
    /// With [`AbortPolicy::KillTurnProcesses`] everything that started since the turn began is ended too (2 s after
    /// SIGTERM it gets SIGKILL), whoever started it; what was there before stays. The receipt is of that.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the agent cannot; [`Error::Survivors`] with the receipt. Else see [`SessionHandle`].
    pub async fn abort(&self, policy: AbortPolicy) -> Result<Option<Receipt>> {
        self.session.abort(policy).await
    }

    /// Ends the session and everything it started, at any depth, and proves it. Works at any time, also while the agent
    /// starts, when it is stopped, and when its proxy is. On an ended session: what was ended then.
    ///
    /// # Errors
    /// [`Error::Survivors`] with the receipt if something is left or that cannot be proven; [`Error::Deadline`] when
    /// neither proxy nor fork server could do it in time (twice the grace, and the deadlines `wedged` and `kill`);
    /// [`Error::Ended`] or [`Error::ShutDown`] if the session ended and nobody could tell how.
    pub async fn kill(&self, options: KillOptions) -> Result<Receipt> {
        self.session.kill(options, EndReason::Killed).await
    }

    /// Ends everything the agent started, but not the agent.
    ///
    /// # Errors
    /// [`Error::Survivors`] with the receipt. Else see [`SessionHandle`].
    pub async fn kill_all(&self, options: KillOptions) -> Result<Receipt> {
        self.session.kill_all(options).await
    }

    /// Ends one process of the session.
    ///
    /// # Errors
    /// [`Error::UnknownProcess`] if none of that pid is alive in it; [`Error::Survivors`] with the receipt. Else see
    /// [`SessionHandle`].
    pub async fn kill_process(&self, pid: u32, options: KillOptions) -> Result<Receipt> {
        self.session.kill_process(pid, false, options).await
    }

    /// Ends one process of the session and everything below it. After the grace all of them are stopped before any is
    /// killed, so that none slips away while its parent dies. What has left the tree before (a daemon) is not of it.
    ///
    /// # Errors
    /// As [`SessionHandle::kill_process`].
    pub async fn kill_tree(&self, pid: u32, options: KillOptions) -> Result<Receipt> {
        self.session.kill_process(pid, true, options).await
    }

    /// Every process of the session, running and finished. Empty when the session has ended.
    ///
    /// # Errors
    /// See [`SessionHandle`].
    pub async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        self.session.processes().await
    }

    /// Its events, from the first still kept.
    pub fn subscribe(&self) -> Subscription {
        self.session.subscribe()
    }

    /// Its events with an offset greater than `from`; 0 is all. What is no longer kept is a `session:gap`.
    pub fn subscribe_from(&self, from: u64) -> Subscription {
        self.session.subscribe_from(from)
    }

    /// Answers the permission request `request` (the id in its event).
    ///
    /// # Errors
    /// [`Error::UnknownPermission`] if it is not open or has no such option. Else see [`SessionHandle`].
    pub async fn respond_permission(&self, request: &str, answer: PermissionAnswer) -> Result<()> {
        self.session.respond_permission(request, answer).await
    }

    /// A round trip through the proxy.
    ///
    /// # Errors
    /// See [`SessionHandle`].
    pub async fn ping(&self) -> Result<()> {
        self.session.ping().await
    }
}
