//! The embedder's grip on one session.

use std::{fmt, sync::Arc};

use ipc_protocol::{
    AbortPolicy, EndReason, Json, KillOptions, Operation, PermissionAnswer, ProcessInfo, Prompt, Receipt, SessionId,
};

use super::{ProcessUse, PromptMode, Session, SessionInfo, Turn};
use crate::{Answer, Quiet, Result, StreamHandler, StreamOptions, Subscription, ask, blocking::blocking};
#[cfg(doc)]
use crate::{Error, OnMissing, ProxyManager, SessionState};

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

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Its id.
    pub fn id(&self) -> &SessionId {
        self.session.id()
    }

    /// What its processes take now, all together. Nothing when the session has ended.
    ///
    /// # Errors
    /// See [`SessionHandle`].
    pub async fn process_use(&self) -> Result<ProcessUse> {
        Ok(ProcessUse::of(&self.processes().await?))
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
    /// where the agent cannot be steered, or cannot take a picture or file of the prompt; [`Error::InvalidConfig`] for a
    /// prompt of more than 16 MiB, or one without any part. Else see [`SessionHandle`].
    pub async fn prompt(&self, prompt: impl Into<Prompt>, mode: PromptMode) -> Result<Turn> {
        self.session.prompt(prompt.into(), mode).await
    }

    /// Gives the agent a prompt and waits for what it answers. If the future is dropped the turn goes on.
    ///
    /// # Errors
    /// As [`SessionHandle::prompt`]; [`Error::TurnFailed`] with what was answered up to then if the turn failed or took too
    /// long; [`Error::Unsupported`] for an agent without turns.
    pub async fn ask(&self, prompt: impl Into<Prompt>) -> Result<Answer> {
        self.stream(prompt, &mut Quiet).await
    }

    /// The same, with a handler that is told of the answer as it grows.
    ///
    /// # Errors
    /// As [`SessionHandle::ask`].
    pub async fn stream<H: StreamHandler>(&self, prompt: impl Into<Prompt>, handler: &mut H) -> Result<Answer> {
        self.stream_with(prompt, handler, StreamOptions::default()).await
    }

    /// The same, as `options` say.
    ///
    /// # Errors
    /// As [`SessionHandle::ask`].
    pub async fn stream_with<H: StreamHandler>(
        &self,
        prompt: impl Into<Prompt>,
        handler: &mut H,
        options: StreamOptions,
    ) -> Result<Answer> {
        ask::stream(self, prompt.into(), handler, options).await
    }

    /// Says this to the agent in the running turn. It is no turn of its own.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the agent cannot be steered or no turn runs. Else see [`SessionHandle`].
    pub async fn steer(&self, prompt: impl Into<Prompt>) -> Result<()> {
        self.session.steer(prompt.into()).await
    }

    /// Asks something else of the agent, in its order with prompts; whether it can be done while a turn runs is the
    /// agent's to say.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the agent cannot; [`Error::AgentRefused`] with its reason; [`Error::Busy`] while the
    /// agent starts, or where it does this between turns only; [`Error::Deadline`] after `Deadlines::operation`
    /// (`compact` of it). Else see [`SessionHandle`].
    pub async fn operate(&self, operation: Operation) -> Result<Json> {
        self.session.operate(operation).await
    }

    /// Has the agent use this model (in its own spelling) from now on.
    ///
    /// # Errors
    /// See [`SessionHandle::operate`].
    pub async fn set_model(&self, model: impl Into<String>) -> Result<()> {
        self.operate(Operation::SetModel { model: model.into() }).await.map(drop)
    }

    /// Has the agent work in this mode from now on: `build`, `plan`, or one of its own.
    ///
    /// # Errors
    /// See [`SessionHandle::operate`].
    pub async fn set_mode(&self, mode: impl Into<String>) -> Result<()> {
        self.operate(Operation::SetMode { mode: mode.into() }).await.map(drop)
    }

    /// Has the agent think this hard from now on: `off`, `low`, `medium`, `high`, or one of its own.
    ///
    /// # Errors
    /// See [`SessionHandle::operate`].
    pub async fn set_thinking(&self, level: impl Into<String>) -> Result<()> {
        self.operate(Operation::SetThinking { level: level.into() }).await.map(drop)
    }

    /// Has the agent shorten the conversation that its model sees, and says what the agent says to that.
    ///
    /// # Errors
    /// See [`SessionHandle::operate`].
    pub async fn compact(&self) -> Result<Json> {
        self.operate(Operation::Compact).await
    }

    /// What the agent says of its own state, as it says it.
    ///
    /// # Errors
    /// See [`SessionHandle::operate`].
    pub async fn state(&self) -> Result<Json> {
        self.operate(Operation::GetState).await
    }

    /// The conversation so far, as the agent gives it. See [`SessionHandle::transcript`] for one from the events.
    ///
    /// # Errors
    /// See [`SessionHandle::operate`].
    pub async fn messages(&self) -> Result<Json> {
        self.operate(Operation::GetMessages).await
    }

    /// The agent's own conversations of the working directory, newest first: an array of objects with `id`, and `title`,
    /// `updatedAt` and `cwd` where the agent tells them.
    ///
    /// # Errors
    /// See [`SessionHandle::operate`].
    pub async fn native_sessions(&self) -> Result<Json> {
        self.operate(Operation::ListSessions).await
    }

    /// Passes a command of the agent's own protocol on as it stands, and its reply back.
    ///
    /// # Errors
    /// See [`SessionHandle::operate`].
    pub async fn native(&self, message: Json) -> Result<Json> {
        self.operate(Operation::Native { message }).await
    }

    /// Cancels the running turn through the agent's protocol; without one, nothing. Queued prompts stay queued. Returns
    /// when the agent was told; the turn's end follows as events. An agent without turns gets SIGINT.
    ///
    /// With [`AbortPolicy::KillTurnProcesses`] everything that started since the turn began is ended too (2 s after
    /// SIGTERM it gets SIGKILL), whoever started it; what was there before stays. The receipt is of that, and
    /// the next prompt waits for it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the agent cannot; [`Error::Survivors`] with the receipt. Else see [`SessionHandle`].
    pub async fn abort(&self, policy: AbortPolicy) -> Result<Option<Receipt>> {
        self.session.abort(policy).await
    }

    /// Ends the session and everything it started, at any depth, and proves it. Works at any time, also while the agent
    /// starts, when it is stopped, and when its proxy is. On an ended session: what was ended then. A suspended session is over
    /// afterwards, and what is said is what was ended when it was suspended, by an earlier manager too; one that was resumed, or is
    /// about to be, is ended whichever handle of it this is.
    ///
    /// # Errors
    /// [`Error::Survivors`] with the receipt if something is left or that cannot be proven; [`Error::Deadline`] when
    /// neither proxy nor fork server could do it in time (twice the grace, and the deadlines `wedged` and `kill`);
    /// [`Error::Ended`] or [`Error::ShutDown`] if the session ended and nobody could tell how; [`Error::UnknownSession`] if it
    /// was resumed since this handle was had, and is forgotten.
    pub async fn kill(&self, options: KillOptions) -> Result<Receipt> {
        self.session.kill(options, EndReason::Killed).await
    }

    /// Ends everything the agent started, but not the agent. Where that ends by itself meanwhile, this goes on to its receipt.
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

    /// The conversation as plain text, from the events that are still kept: what was asked, what was answered, which tools
    /// were used. The last 4 MiB of it; empty where nothing was said. It is what [`OnMissing::Inject`] takes.
    ///
    /// # Errors
    /// [`Error::System`] where no thread can be had to read it.
    pub async fn transcript(&self) -> Result<String> {
        let history = self.session.history().clone();
        blocking("reading a conversation", move || super::transcript_of(&history)).await
    }

    /// Answers the permission request `request` (the id in its event).
    ///
    /// # Errors
    /// [`Error::UnknownPermission`] if it is not open or has no such option. Else see [`SessionHandle`].
    pub async fn respond_permission(&self, request: &str, answer: PermissionAnswer) -> Result<()> {
        self.session.respond_permission(request, answer, None).await
    }

    /// As [`SessionHandle::respond_permission`], in the name of `by`, which `permission:resolved` then tells.
    ///
    /// # Errors
    /// As there.
    pub async fn respond_permission_as(&self, by: &str, request: &str, answer: PermissionAnswer) -> Result<()> {
        self.session.respond_permission(request, answer, Some(by)).await
    }

    /// A round trip through the proxy.
    ///
    /// # Errors
    /// See [`SessionHandle`].
    pub async fn ping(&self) -> Result<()> {
        self.session.ping().await
    }
}
