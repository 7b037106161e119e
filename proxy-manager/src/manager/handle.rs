//! Handle of one session, for the embedder.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use api_types::ProcessDetails;
use ipc_protocol::{
    AbortPolicy, EndReason, Json, KillOptions, KillScope, Operation, PermissionAnswer, ProcessId, ProcessInfo,
    ProcessStatus, Prompt, Receipt, SessionId, SignalNumber, message::ProxyCommand,
};
use registry::PidFd;

use super::append::check_metadata;
use crate::{
    answer::Answer,
    ask::{self, SilentHandler, StreamHandler, StreamOptions},
    blocking::{LOOKING, READING},
    error::{Error, Result},
    history::Subscription,
    session::{
        ManagedSession, PendingAnswer, ProcessUse, PromptMode, PromptOptions, QueuedPrompt, SessionCommand,
        SessionInfo, SettingChange, Turn, transcript_of,
    },
};
#[cfg(doc)]
use crate::{description::SessionState, manager::ProxyManager};
#[cfg(doc)]
use ipc_protocol::OnMissing;

/// Handle of a session. Cheap to clone. It does not keep the manager alive: when the last [`ProxyManager`] is dropped,
/// the session ends.
///
/// Unless documented otherwise a call fails with [`Error::Deadline`] when the proxy does not answer in time; with
/// [`Error::AgentDied`], [`Error::ProxyDied`] or [`Error::ForkServerDied`] if one of them dies meanwhile; with
/// [`Error::Ended`] when the session is over; with [`Error::ShutDown`] when the manager is gone; with
/// [`Error::NoRuntime`] outside a tokio runtime; and with [`Error::RuntimeEnded`] after the end of the runtime that the manager was built
/// in. A call whose future is dropped may still take effect.
///
/// ```no_run
/// # async fn example(session: proxy_manager::SessionHandle) -> proxy_manager::Result<()> {
/// use proxy_manager::{KillOptions, PromptMode};
///
/// let turn = session.prompt("fix the failing test", PromptMode::Refuse).await?;
/// println!("{:?}", turn.wait().await?.stop_reason);
/// for process in session.processes().await? {
///     println!("{} {}", process.id.pid, process.command_line());
/// }
/// let receipt = session.kill(KillOptions::default()).await?;
/// assert!(receipt.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SessionHandle {
    session: Arc<ManagedSession>,
}

impl SessionHandle {
    pub(crate) fn new(session: Arc<ManagedSession>) -> Self {
        Self { session }
    }

    pub(crate) fn session(&self) -> &Arc<ManagedSession> {
        &self.session
    }

    /// Id of the session.
    pub fn id(&self) -> &SessionId {
        self.session.id()
    }

    /// Total resource use of the session's processes now. Zero when the session has ended.
    ///
    /// # Errors
    /// See [`SessionHandle`].
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    pub async fn process_use(&self) -> Result<ProcessUse> {
        Ok(ProcessUse::of(&self.processes().await?))
    }

    /// Current state and facts of the session.
    pub fn info(&self) -> SessionInfo {
        self.session.info()
    }

    /// Sends a prompt to the agent. Returns a ticket for its turn as soon as the agent has it or, with
    /// [`PromptMode::Queue`] while another turn runs, as soon as it is queued. In a fleet the fleet has it too.
    ///
    /// # Errors
    /// [`Error::Busy`] while a turn runs or the agent starts, depending on `mode`; [`Error::MaxPrompts`]; in a fleet
    /// [`Error::Fenced`], and [`Error::Deadline`] for a prompt that the agent has and the fleet does not, yet;
    /// [`Error::Unsupported`] if the agent cannot be steered, or cannot accept a picture or file of the prompt;
    /// [`Error::InvalidConfig`] for a prompt of more than 16 MiB, or one without any part. Else see [`SessionHandle`].
    ///
    /// # Cancel safety
    /// Not cancel safe: the agent may have the prompt when the future is dropped, and its turn then runs without a
    /// ticket. Its events are in the stream.
    pub async fn prompt(&self, prompt: impl Into<Prompt>, mode: PromptMode) -> Result<Turn> {
        self.prompt_with(prompt, PromptOptions::from(mode)).await
    }

    /// Sends a prompt like [`SessionHandle::prompt`], with `options`.
    ///
    /// # Errors
    /// As [`SessionHandle::prompt`].
    ///
    /// # Cancel safety
    /// As [`SessionHandle::prompt`].
    pub async fn prompt_with(&self, prompt: impl Into<Prompt>, options: PromptOptions) -> Result<Turn> {
        check_metadata(options.metadata.as_ref())?;
        let (prompt, accepted) = (prompt.into(), None);
        let (mode, metadata) = (options.mode, options.metadata.clone());
        let queues = (mode == PromptMode::Queue).then(|| prompt.clone());
        let command = |reply| SessionCommand::Prompt { prompt, mode, accepted, metadata, reply };
        match (self.session.call("prompting", Duration::ZERO, command).await, queues) {
            // One that has to wait is appended first, as the action that it is from then on.
            (Err(Error::Busy { .. }), Some(prompt)) => self.session.enqueue(prompt, options).await,
            (prompted, _) => {
                let ticket = prompted?;
                self.session.wait_acknowledged().await?;
                Ok(ticket.into_turn(&self.session))
            }
        }
    }

    /// Sends a prompt to the agent and waits for the answer. The turn continues if the future is dropped.
    ///
    /// # Errors
    /// As [`SessionHandle::prompt`]; [`Error::TurnFailed`] with the answer so far if the turn failed or took too long;
    /// [`Error::Unsupported`] for an agent without turns.
    ///
    /// # Cancel safety
    /// Dropping the future loses the answer only: the turn continues, and its events are in the stream.
    pub async fn ask(&self, prompt: impl Into<Prompt>) -> Result<Answer> {
        self.stream(prompt, &mut SilentHandler).await
    }

    /// Sends a prompt like [`SessionHandle::ask`], and notifies `handler` while the answer grows.
    ///
    /// # Errors
    /// As [`SessionHandle::ask`].
    ///
    /// # Cancel safety
    /// As [`SessionHandle::ask`].
    pub async fn stream<H: StreamHandler>(&self, prompt: impl Into<Prompt>, handler: &mut H) -> Result<Answer> {
        self.stream_with(prompt, handler, StreamOptions::default()).await
    }

    /// Sends a prompt like [`SessionHandle::stream`], with `options`.
    ///
    /// # Errors
    /// As [`SessionHandle::ask`].
    ///
    /// # Cancel safety
    /// As [`SessionHandle::ask`].
    pub async fn stream_with<H: StreamHandler>(
        &self,
        prompt: impl Into<Prompt>,
        handler: &mut H,
        options: StreamOptions,
    ) -> Result<Answer> {
        self.session.require("prompting in")?;
        let prompt = prompt.into();
        let text = prompt.text();
        let sent = PromptOptions { mode: options.mode, by: options.by.clone(), metadata: options.metadata.clone() };
        ask::stream(&self.session, text, self.prompt_with(prompt, sent), handler, options).await
    }

    /// Sends a steering prompt to the agent in the running turn. It is no turn of its own.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent cannot be steered or no turn runs. Else see [`SessionHandle`].
    ///
    /// # Cancel safety
    /// A dropped future may still take effect: the agent may have the request.
    pub async fn steer(&self, prompt: impl Into<Prompt>) -> Result<()> {
        self.session.request(ProxyCommand::Steer { prompt: prompt.into() }, PendingAnswer::Done).await
    }

    /// Sends an operation to the agent, in order with prompts. The agent decides whether it can run during a turn.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent cannot do it; [`Error::AgentRefused`] with its reason; [`Error::Busy`] while
    /// the agent starts, or if it does this between turns only; [`Error::Deadline`] after `Deadlines::operation`
    /// (`compact` for that operation). Else see [`SessionHandle`].
    ///
    /// # Cancel safety
    /// A dropped future may still take effect: the agent may have the request.
    pub async fn operate(&self, operation: Operation) -> Result<Json> {
        let change = SettingChange::of(&operation);
        let waiting = |caller| PendingAnswer::Operation { change, caller, given_up: false };
        self.session.request(ProxyCommand::Operate { operation }, waiting).await
    }

    /// Switches the agent to this model (in its own spelling).
    ///
    /// # Errors
    /// See [`SessionHandle::operate`].
    ///
    /// # Cancel safety
    /// A dropped future may still take effect: the agent may have the request.
    pub async fn set_model(&self, model: impl Into<String>) -> Result<()> {
        self.operate(Operation::SetModel { model: model.into() }).await.map(drop)
    }

    /// Switches the agent to this mode: `build`, `plan`, or one of its own.
    ///
    /// # Errors
    /// See [`SessionHandle::operate`].
    ///
    /// # Cancel safety
    /// A dropped future may still take effect: the agent may have the request.
    pub async fn set_mode(&self, mode: impl Into<String>) -> Result<()> {
        self.operate(Operation::SetMode { mode: mode.into() }).await.map(drop)
    }

    /// Sets the agent's thinking level: `off`, `low`, `medium`, `high`, or one of its own.
    ///
    /// # Errors
    /// See [`SessionHandle::operate`].
    ///
    /// # Cancel safety
    /// A dropped future may still take effect: the agent may have the request.
    pub async fn set_thinking(&self, level: impl Into<String>) -> Result<()> {
        self.operate(Operation::SetThinking { level: level.into() }).await.map(drop)
    }

    /// Makes the agent shorten the conversation that its model sees, and returns the agent's reply.
    ///
    /// # Errors
    /// See [`SessionHandle::operate`].
    ///
    /// # Cancel safety
    /// A dropped future may still take effect: the agent may have the request.
    pub async fn compact(&self) -> Result<Json> {
        self.operate(Operation::Compact).await
    }

    /// Makes the agent shorten the conversation by these instructions for the summary, and returns the agent's reply.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an agent that takes none; else see [`SessionHandle::operate`].
    ///
    /// # Cancel safety
    /// A dropped future may still take effect: the agent may have the request.
    pub async fn compact_with(&self, instructions: impl Into<String>) -> Result<Json> {
        self.operate(Operation::CompactWith { instructions: instructions.into() }).await
    }

    /// The agent's own state, verbatim.
    ///
    /// # Errors
    /// See [`SessionHandle::operate`].
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    pub async fn state(&self) -> Result<Json> {
        self.operate(Operation::GetState).await
    }

    /// The conversation so far, as the agent reports it. See [`SessionHandle::transcript`] for one from the events.
    ///
    /// # Errors
    /// See [`SessionHandle::operate`].
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    pub async fn messages(&self) -> Result<Json> {
        self.operate(Operation::GetMessages).await
    }

    /// The agent's own conversations of the working directory, newest first: an array of objects with `id`, and
    /// `title`, `updatedAt` and `cwd` if the agent reports them.
    ///
    /// # Errors
    /// See [`SessionHandle::operate`].
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    pub async fn native_sessions(&self) -> Result<Json> {
        self.operate(Operation::ListSessions).await
    }

    /// Sends a command of the agent's own protocol verbatim, and returns its reply.
    ///
    /// # Errors
    /// See [`SessionHandle::operate`].
    ///
    /// # Cancel safety
    /// A dropped future may still take effect: the agent may have the request.
    pub async fn native(&self, message: Json) -> Result<Json> {
        self.operate(Operation::Native { message }).await
    }

    /// Cancels the running turn through the agent's protocol; does nothing if no turn runs. Queued prompts stay queued.
    /// Returns once the agent has received it; the turn's end follows as events. An agent without turns gets SIGINT.
    ///
    /// [`AbortPolicy::KillTurnProcesses`] also ends every process that started since the turn began (SIGTERM, and
    /// SIGKILL after 2 s), regardless of its parent; older processes stay. The receipt is of that kill, and the next
    /// prompt waits for it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent cannot; [`Error::Survivors`] with the receipt. Else see [`SessionHandle`].
    ///
    /// # Cancel safety
    /// A dropped future may still take effect: what has begun goes on, and only its receipt is lost.
    pub async fn abort(&self, policy: AbortPolicy) -> Result<Option<Receipt>> {
        let command = ProxyCommand::Abort { policy, options: KillOptions::default() };
        match policy {
            AbortPolicy::LeaveProcesses => self.session.request(command, PendingAnswer::Done).await.map(|()| None),
            AbortPolicy::KillTurnProcesses => self.session.request_receipt(command).await.map(Some),
        }
    }

    /// Ends the session and everything it started, at any depth, and proves it: [`SessionHandle::kill_scope`] with
    /// [`KillScope::Session`].
    ///
    /// # Errors
    /// See [`SessionHandle::kill_scope`].
    ///
    /// # Cancel safety
    /// As [`SessionHandle::kill_scope`].
    pub async fn kill(&self, options: KillOptions) -> Result<Receipt> {
        self.kill_scope(KillScope::Session, options).await
    }

    /// Ends the processes in `scope`, and proves it.
    ///
    /// [`KillScope::Session`] ends the session with them. It works at any time: also while the agent starts, and when the
    /// agent or the proxy is stopped. For an ended session, returns the receipt of its end. A suspended session is over
    /// afterwards, and the receipt is that of its suspension, by an earlier manager too. A session that was resumed, or is
    /// about to be, is ended through any handle of it. With any other scope, if the session ends by itself meanwhile, this
    /// waits for its receipt.
    ///
    /// # Errors
    /// [`Error::Survivors`] with the receipt if something is left or its absence cannot be proven;
    /// [`Error::UnknownProcess`] if the session has no live process with the scope's pid. Of a session:
    /// [`Error::Deadline`] when neither proxy nor fork server finished in time (twice the grace, and the deadlines `wedged`
    /// and `kill`); [`Error::Ended`] or [`Error::ShutDown`] if the session ended and nobody could tell how;
    /// [`Error::UnknownSession`] if it was resumed after this handle was obtained, and has been forgotten. Else see
    /// [`SessionHandle`].
    ///
    /// # Cancel safety
    /// Dropping the future stops no kill that has begun: it goes on to its proof. The receipt of a session is in its
    /// last event.
    pub async fn kill_scope(&self, scope: KillScope, options: KillOptions) -> Result<Receipt> {
        self.session.require("killing")?;
        if scope == KillScope::Session {
            // The session's end waits behind nothing, and needs no proxy.
            return self.session.kill(options).await;
        }
        self.session.request_receipt(ProxyCommand::Kill { scope, options, reason: EndReason::Killed }).await
    }

    /// Lists every process of the session, running and finished. Empty when the session has ended.
    ///
    /// # Errors
    /// See [`SessionHandle`].
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    pub async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        self.session.require("listing processes of")?;
        let listed = self.session.request(ProxyCommand::ListProcesses, PendingAnswer::Processes).await;
        // A session that has ended meanwhile has none, and one that is about to end is waited for: nobody else knows what it has.
        if listed.is_err() && self.session.ends_if_ending().await { Ok(Vec::new()) } else { listed }
    }

    /// Lists every process like [`SessionHandle::processes`], with its age, its marks, and the ports on which it listens.
    ///
    /// # Errors
    /// As [`SessionHandle::processes`].
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    pub async fn process_details(&self) -> Result<Vec<ProcessDetails>> {
        let processes = self.processes().await?;
        let running = processes.iter().filter(|process| process.status == ProcessStatus::Running);
        let ids: Vec<ProcessId> = running.map(|process| process.id).collect();
        let listening = LOOKING.run("looking at sockets", move || registry::listening_sockets(&ids)).await?;
        Ok(ProcessDetails::of(processes, listening, SystemTime::now()))
    }

    /// Sends any signal to one process of the session, through a pidfd that is checked against its start time. With `start_time`, only
    /// to the process that began then. Returns the process. What the signal does is the process's business; to end one and see that it
    /// is gone, use [`SessionHandle::kill_scope`].
    ///
    /// # Errors
    /// [`Error::UnknownProcess`] if the session has no live process with this pid; [`Error::System`] if the signal cannot be sent. Else
    /// see [`SessionHandle`].
    ///
    /// # Cancel safety
    /// A dropped future may still take effect.
    pub async fn signal_process(&self, pid: u32, start_time: Option<u64>, signal: SignalNumber) -> Result<ProcessId> {
        let unknown = || Error::UnknownProcess { session: self.id().clone(), pid };
        let processes = self.processes().await?;
        let found = processes.iter().find(|process| process.id.pid == pid && process.status == ProcessStatus::Running);
        let id = found.map(|process| process.id).ok_or_else(unknown)?;
        if start_time.is_some_and(|start_time| start_time != id.start_time) {
            return Err(unknown());
        }
        let send = move || PidFd::open(id).and_then(|process| process.signal_number(signal));
        match LOOKING.run("sending a signal", send).await? {
            Ok(()) => Ok(id),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(unknown()),
            Err(error) => Err(Error::system(format!("sending {signal} to process {pid}"), error)),
        }
    }

    /// Lists the prompts that wait for their turn, or for the session's resume, in their order.
    pub fn queued_prompts(&self) -> Vec<QueuedPrompt> {
        self.session.queue().list()
    }

    /// Drops a prompt that waits, by the offset of the event that it was accepted with. It is told as failed (`action:failed`) in the
    /// name of `by`, and never begun, by a later manager either. Who waits for its turn gets [`Error::PromptDropped`].
    ///
    /// # Errors
    /// [`Error::UnknownPrompt`] if no such prompt waits: its turn may have begun. The event log's error, if that cannot take it: then the
    /// prompt waits again. Else see [`SessionHandle`].
    ///
    /// # Cancel safety
    /// Run it in a task of its own: dropped half-way, the prompt may be gone from the queue and come back after a restart.
    pub async fn drop_queued(&self, offset: u64, by: Option<&str>) -> Result<()> {
        self.session.drop_queued(offset, by).await
    }

    /// Drops all prompts that wait now, like [`SessionHandle::drop_queued`]. Returns those that were dropped.
    ///
    /// # Errors
    /// As [`SessionHandle::drop_queued`], but for prompts whose turn begins meanwhile.
    ///
    /// # Cancel safety
    /// As [`SessionHandle::drop_queued`].
    pub async fn drop_queue(&self, by: Option<&str>) -> Result<Vec<QueuedPrompt>> {
        let mut dropped = Vec::new();
        for prompt in self.queued_prompts() {
            match self.drop_queued(prompt.offset, by).await {
                Ok(()) => dropped.push(prompt),
                Err(Error::UnknownPrompt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(dropped)
    }

    /// Subscribes to the session's events, from the first one retained.
    pub fn subscribe(&self) -> Subscription {
        self.session.subscribe()
    }

    /// Subscribes to events with an offset greater than `from`; 0 means all. A `session:gap` replaces events no longer
    /// retained.
    pub fn subscribe_from(&self, from: u64) -> Subscription {
        self.session.subscribe_from(from)
    }

    /// The conversation as plain text, from the retained events: prompts, answers and names of tools used. The last 4
    /// MiB of it; empty if nothing was said. [`OnMissing::Inject`] accepts it.
    ///
    /// # Errors
    /// [`Error::System`] if no thread can be had to read it.
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    pub async fn transcript(&self) -> Result<String> {
        let history = self.session.history().clone();
        READING.run("reading a conversation", move || transcript_of(&history)).await
    }

    /// Answers the permission request `request` (the id in its event).
    ///
    /// # Errors
    /// [`Error::UnknownPermission`] if the request is not open or has no such option. Else see [`SessionHandle`].
    ///
    /// # Cancel safety
    /// A dropped future may still take effect; `permission:resolved` says so.
    pub async fn respond_permission(&self, request: &str, answer: PermissionAnswer) -> Result<()> {
        let command = ProxyCommand::Permission { id: request.to_owned(), answer, by: None };
        self.session.request(command, PendingAnswer::Done).await
    }

    /// Answers like [`SessionHandle::respond_permission`] in the name of `by`, which `permission:resolved` reports.
    ///
    /// # Errors
    /// As [`SessionHandle::respond_permission`].
    ///
    /// # Cancel safety
    /// As [`SessionHandle::respond_permission`].
    pub async fn respond_permission_as(&self, by: &str, request: &str, answer: PermissionAnswer) -> Result<()> {
        let command = ProxyCommand::Permission { id: request.to_owned(), answer, by: Some(by.to_owned()) };
        self.session.request(command, PendingAnswer::Done).await
    }

    /// Makes a round trip through the proxy.
    ///
    /// # Errors
    /// See [`SessionHandle`].
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    pub async fn ping(&self) -> Result<()> {
        self.session.request(ProxyCommand::Ping, PendingAnswer::Done).await
    }
}
