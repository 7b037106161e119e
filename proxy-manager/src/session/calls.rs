//! Calls to a session: each is sent to the task that owns the session, and waits for the answer.

use std::{future::Future, sync::Arc, time::Duration};

use ipc_protocol::{
    AbortPolicy, EndReason, Event, Json, KillOptions, Operation, Prompt, Receipt, SessionId, Signal,
    message::ProxyCommand,
};
use tokio::{
    sync::{OwnedSemaphorePermit, oneshot},
    time::{Instant, timeout},
};

use super::{
    AcceptedPrompt, ActionClass, DesiredState, EventToAppend, ManagedSession, PromptMode, PromptOptions, ReplySender,
    SessionCommand, Turn,
    pending_requests::PendingAnswer,
    prompts::{QUEUED, WaitingPrompt},
};
use crate::{
    blocking::READING,
    deadlines::Deadlines,
    description::{AfterSuspension, SessionState},
    error::{Error, Result},
    history::HistoryWriter,
    runtime,
};

/// Wait for a proxy's answer before checking whether somebody has stopped the proxy.
const WAKE_AFTER: Duration = Duration::from_millis(500);
/// Longest wait of a kill for the event log, once all has ended.
const TELLING: Duration = Duration::from_secs(2);

impl ManagedSession {
    /// Appends a prompt, and then has it wait for its turn.
    pub(crate) async fn enqueue(self: &Arc<Self>, prompt: Prompt, options: PromptOptions) -> Result<Turn> {
        let room = self.queue.room(&self.id)?;
        let PromptOptions { by, metadata, .. } = options;
        let mut payload = serde_json::json!({ "prompt": prompt, "mode": PromptMode::Queue });
        if let Some(by) = &by {
            payload["by"] = by.as_str().into();
        }
        let payload = Json::from(&payload);
        let event = Event::External { kind: QUEUED.into(), version: 1, payload };
        let noted = metadata.clone();
        let (tell, placed) = oneshot::channel();
        let session = self.clone();
        let act = move |offset| async move {
            let accepted = AcceptedPrompt::new(QUEUED, offset, Some(room)).by(by).with_metadata(noted);
            let name = accepted.name.clone();
            let turn = session.place(prompt, PromptMode::Queue, accepted).await;
            if let Err(error) = &turn {
                session.tell_unplaced(offset, name, error).await;
            }
            // Nobody waits any more: then nobody is told.
            let _ = tell.send(turn);
        };
        self.append_and_act(None, vec![EventToAppend { event, metadata, class: Some(ActionClass::Queued) }], act)
            .await?;
        // It is the task that answers, at once.
        let placed = async {
            match placed.await {
                Ok(placed) => placed,
                Err(_) => Err(self.gone_error().await),
            }
        };
        self.await_append(placed).await
    }

    /// Has a prompt that is in the log wait for its turn, or begin it. From then on the session tells what becomes of it.
    pub(crate) async fn place(&self, prompt: Prompt, mode: PromptMode, accepted: AcceptedPrompt) -> Result<Turn> {
        let (accepted, metadata) = (Some(accepted), None);
        let ticket = self.exchange(|reply| SessionCommand::Prompt { prompt, mode, accepted, metadata, reply }).await?;
        Ok(ticket.into_turn(self))
    }

    /// The same in a session that is suspended: it waits for the resume. Says `None` of any other.
    pub(crate) fn place_at_rest(&self, prompt: Prompt, accepted: AcceptedPrompt) -> Option<()> {
        let _still = self.incarnations.lock_writes();
        if !self.is_suspended() || !self.incarnations.is_latest(self) {
            return None;
        }
        self.queue.push(WaitingPrompt { accepted, prompt, turn: None, ticket: None });
        Some(())
    }

    /// Tells of what was accepted and is not done, unless the next manager does it.
    pub(crate) async fn tell_unplaced(&self, offset: u64, name: String, error: &Error) {
        if !matches!(error, Error::ShutDown | Error::Draining) && self.queue.is_outstanding(offset) {
            self.report_failed(name, error.chain()).await;
            self.queue.settle(offset);
        }
    }

    /// Drops a prompt that waits: it is told as failed, and so never begun.
    pub(crate) async fn drop_queued(&self, offset: u64, by: Option<&str>) -> Result<()> {
        let session = self.id.clone();
        let Some(mut dropped) = self.queue.remove(offset) else {
            return Err(Error::UnknownPrompt { session: SessionId::clone(&session), offset });
        };
        let error =
            by.map_or_else(|| "dropped from the queue".to_owned(), |by| format!("dropped from the queue by {by:?}"));
        let told = self.append(Event::ActionFailed { action: dropped.accepted.name.clone(), error }).await;
        // A late log may take it yet; then it is not begun again either.
        if let Err(error) = told
            && !matches!(error, Error::Deadline { .. })
        {
            self.queue.put_back(dropped);
            return Err(error);
        }
        self.queue.settle(offset);
        if let Some(ticket) = dropped.ticket.take() {
            // A ticket that was dropped misses nothing.
            let _ = ticket.send(Err(Error::PromptDropped { session: SessionId::clone(&session) }));
        }
        Ok(())
    }

    /// A session that is suspended can never be resumed: what waits for that is told as failed.
    pub(crate) fn give_up_queue(&self, error: &Error) {
        let names = self.give_up_prompts(error);
        self.write_while_suspended(|log| {
            for action in names {
                log.push(0, Event::ActionFailed { action, error: error.chain() });
            }
        });
    }

    /// Takes the names of all that was accepted and is not done; who waits for a turn gets the error.
    fn give_up_prompts(&self, error: &Error) -> Vec<String> {
        for ticket in self.queue.take_tickets() {
            // A ticket that was dropped misses nothing.
            let _ = ticket.send(Err(error.clone()));
        }
        self.queue.give_up()
    }

    /// Appends an event that is not the agent's. Returns its offset when it is committed and readable. An event that
    /// cannot be committed may be readable nonetheless: the session is then degraded.
    pub(crate) async fn append(&self, event: Event) -> Result<u64> {
        self.append_with(event, None).await
    }

    /// The same, with metadata of who appends it.
    pub(crate) async fn append_with(&self, event: Event, metadata: Option<Json>) -> Result<u64> {
        self.await_append(self.append_unbounded(vec![EventToAppend { event, metadata, class: None }])).await
    }

    /// The same of events some of which ask for something, which `act` does after what was asked for before: also where the log
    /// takes too long for this to say so. They are appended together, or none of them is; what is said is the offset of the last.
    pub(crate) async fn append_and_act<A: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        room: Option<OwnedSemaphorePermit>,
        events: Vec<EventToAppend>,
        act: impl FnOnce(u64) -> A + Send + 'static,
    ) -> Result<u64> {
        let session = self.clone();
        let append = async move { session.append_unbounded(events).await };
        self.await_append(self.action_queue.join_with(room, append, act)).await
    }

    /// Waits for what is appended.
    async fn await_append<T>(&self, append: impl Future<Output = Result<T>>) -> Result<T> {
        let after = self.deadlines.control;
        within(after, append).await.unwrap_or_else(|| {
            Err(Error::Deadline { operation: format!("appending an event to session {}", self.id), after })
        })
    }

    /// The same, however long the log takes.
    async fn append_unbounded(&self, events: Vec<EventToAppend>) -> Result<u64> {
        loop {
            let later = self.incarnations.successor(self)?;
            let latest = later.as_deref().unwrap_or(self);
            if !latest.is_suspended() {
                return latest.exchange(|reply| SessionCommand::Append { events, reply }).await;
            }
            // Afterwards its last writer is gone.
            latest.wait_settled().await?;
            let (reply, answer) = oneshot::channel();
            let append = |log: &mut HistoryWriter| {
                // The error may stem from an earlier append whose caller has stopped waiting.
                drop(log.push_failure());
                let tell = |kept: Result<u64, event_log::LogError>| _ = reply.send(kept.map_err(Error::from));
                latest.queue.append(log, 0, events.clone(), false, tell);
            };
            if latest.write_while_suspended(append).is_none() {
                // The session was resumed, or has ended.
                continue;
            }
            let kept = answer.await.unwrap_or_else(|_| Err(self.ended_error()));
            if kept.is_err() {
                // A suspended session has no task to report the failure. A resumed one reports it itself.
                latest.write_while_suspended(|log| drop(log.push_failure()));
            }
            return kept;
        }
    }

    /// Emits an event that an action failed, if the session's stream still accepts one. Returns true if the event is
    /// committed, or may be.
    pub(crate) async fn report_failed(&self, action: String, error: String) -> bool {
        let event = Event::ActionFailed { action, error };
        let told = match self.append(event.clone()).await {
            // A late or failing log may still take the event.
            told @ (Ok(_) | Err(Error::Deadline { .. } | Error::Log(_))) => told,
            // The session is about to end or to be suspended.
            Err(_) => match self.wait_settled().await {
                Ok(()) => self.append(event).await,
                Err(error) => Err(error),
            },
        };
        if let Err(error) = told {
            tracing::warn!(session = %self.id, error = %error.chain(), "failed to emit the failure of an action");
            return false;
        }
        true
    }

    /// Writes to the stream of a suspended session, which has no task. Returns `None` for any other session.
    fn write_while_suspended(&self, write: impl FnOnce(&mut HistoryWriter)) -> Option<()> {
        let _still = self.incarnations.lock_writes();
        if !self.is_suspended() || !self.incarnations.is_latest(self) {
            return None;
        }
        let mut log = self.history().reopen();
        log.keep_open();
        write(&mut log);
        Some(())
    }

    /// Emits the title that a caller gave the session, if the session lives.
    pub(crate) async fn emit_title(&self, title: Option<String>) {
        if self.ended().is_none() {
            let emitted = self.exchange(|reply| SessionCommand::Rename { title, reply });
            if within(self.deadlines.control, emitted).await.is_none_or(|emitted| emitted.is_err()) {
                tracing::debug!(session = %self.id, "title not emitted: the session ends");
            }
        }
    }

    /// Has the proxy carry out `command`, and waits for the answer, for which `waiting` makes the place.
    pub(crate) async fn request<T>(
        &self,
        command: ProxyCommand,
        waiting: impl FnOnce(ReplySender<T>) -> PendingAnswer,
    ) -> Result<T> {
        let (operation, extra) = self.patience(&command);
        self.call(operation, extra, |reply| SessionCommand::Request { command, waiting: waiting(reply) }).await
    }

    /// Has the proxy carry out a command that ends processes, and returns the receipt.
    pub(crate) async fn request_receipt(&self, command: ProxyCommand) -> Result<Receipt> {
        self.require("killing processes of")?;
        proven(self.with_proxy_awake(self.request(command, PendingAnswer::Receipt)).await?)
    }

    /// Returns the name of a command, for errors, and the time for its answer beside the proxy's own.
    fn patience(&self, command: &ProxyCommand) -> (&'static str, Duration) {
        let Deadlines { control, operation: longest, compact, .. } = self.deadlines;
        match command {
            ProxyCommand::Start { .. } => ("starting the agent", Duration::ZERO),
            ProxyCommand::Prompt { .. } => ("prompting", Duration::ZERO),
            ProxyCommand::Steer { .. } => ("steering", Duration::ZERO),
            ProxyCommand::Operate { operation: Operation::Compact | Operation::CompactWith { .. } } => {
                ("compacting the conversation", compact.saturating_sub(control))
            }
            ProxyCommand::Operate { .. } => ("an operation of the agent's", longest.saturating_sub(control)),
            ProxyCommand::Abort { policy: AbortPolicy::LeaveProcesses, .. } => ("aborting the turn", Duration::ZERO),
            ProxyCommand::Abort { options, .. } => ("aborting the turn", options.grace),
            ProxyCommand::Permission { .. } => ("answering a permission request", Duration::ZERO),
            ProxyCommand::ListProcesses => ("listing processes", Duration::ZERO),
            ProxyCommand::Kill { options, .. } => ("killing processes", options.grace),
            ProxyCommand::Ping => ("pinging the proxy", Duration::ZERO),
        }
    }

    /// Waits for an answer that only the proxy can give: if somebody stops or freezes it, it is continued.
    async fn with_proxy_awake<T>(&self, answer: impl Future<Output = T>) -> T {
        let mut answer = std::pin::pin!(answer);
        loop {
            self.wake_proxy();
            // The answer has a deadline of its own.
            if let Ok(answer) = timeout(WAKE_AFTER, &mut answer).await {
                return answer;
            }
            self.free_proxy();
        }
    }

    /// Brings a proxy that does not answer out of a frozen group, where that is why.
    pub(crate) fn free_proxy(&self) {
        if let Some(proxy) = self.info().processes.proxy {
            registry::free_supervisor(proxy.pid);
        }
    }

    fn wake_proxy(&self) {
        let Some(proxy) = self.info().processes.proxy else { return };
        if registry::find_process(proxy.pid)
            .is_ok_and(|seen| seen.is_some_and(|seen| seen.is_stopped && seen.id == proxy))
        {
            tracing::warn!(%proxy, "proxy was stopped from outside: continued it");
            // Fails only for a proxy that is gone.
            let _ = registry::PidFd::open(proxy).and_then(|proxy| proxy.signal(Signal::Cont));
        }
    }

    /// Asks the session to end. It ends even if the caller stops waiting.
    pub(crate) fn request_end(&self, options: KillOptions, reason: EndReason) {
        self.desired_state.send_modify(|demand| match demand {
            DesiredState::Detach => {}
            DesiredState::Run => *demand = DesiredState::End { options, reason, asked: 1 },
            // The first reason stays; the shortest grace counts.
            DesiredState::End { options: known, asked, .. } => {
                known.grace = known.grace.min(options.grace);
                *asked = asked.wrapping_add(1);
            }
        });
    }

    /// Detaches the session's task, since the manager is gone.
    pub(crate) fn detach(&self) {
        self.desired_state.send_replace(DesiredState::Detach);
    }

    /// Ends the session's current incarnation, whichever one this handle is of, and returns the receipt. For an ended
    /// session, returns the receipt of its end. A session that is suspended, or is about to be, is over afterwards; its
    /// receipt is that of the suspension.
    pub(crate) async fn kill(&self, options: KillOptions) -> Result<Receipt> {
        self.require("killing")?;
        let (begun, longest, reason) = (Instant::now(), self.longest_kill(options), EndReason::Killed);
        let left = || longest.saturating_sub(begun.elapsed());
        // The stream is read for the receipt only: half of the time is left for the kill.
        self.load_receipt(longest / 2).await;
        let end = |latest: &Self| {
            if latest.is_suspended() {
                latest.end_suspended(&reason);
            }
            latest.receipt()
        };
        let ended = within(left(), self.end_current(options, &reason, end)).await;
        let ended = ended.unwrap_or_else(|| Err(self.kill_deadline_error(longest)));
        let ended = match ended {
            Err(error) => Err(self.explain(error).await),
            ended => ended,
        };
        // Whoever has the receipt finds the end among the events.
        let history = self.history();
        if within(left().min(TELLING), history.wait_readable(history.assigned())).await.is_none() {
            tracing::warn!(session = %self.id, "the session's end is not in the event log yet");
        }
        ended
    }

    /// Waits for the end of a session that is about to end: somebody wants it to, or its agent or its proxy is dead. Whether it has
    /// ended by now.
    pub(crate) async fn ends_if_ending(&self) -> bool {
        if self.ended().is_none() && self.is_ending() {
            let longest = self.longest_kill(KillOptions::default());
            // One that takes longer is refused as one that lives.
            within(longest, self.wait_stopped()).await;
        }
        self.ended().is_some()
    }

    /// Returns true if the session's end was requested, or has begun.
    pub(crate) fn is_end_wanted(&self) -> bool {
        self.is_closing() || *self.desired_state.borrow() != DesiredState::Run
    }

    fn is_ending(&self) -> bool {
        let supervised = {
            let view = self.view.borrow();
            [view.processes.agent_process, view.processes.proxy]
        };
        self.is_end_wanted() || supervised.into_iter().flatten().any(registry::is_doomed)
    }

    /// Loads the receipt of a session that an earlier manager left suspended from its stream. It stays unknown if the
    /// stream no longer has it, or cannot be read in time.
    async fn load_receipt(&self, deadline: Duration) {
        let is_unknown = |state: &SessionState| matches!(state, SessionState::Suspended { receipt: None, .. });
        if !self.is_restored || !is_unknown(&self.view.borrow().state) {
            return;
        }
        let history = self.history().clone();
        let read = READING.run("reading what was ended of a session", move || history.last_receipt());
        let Some(Ok(Some(receipt))) = within(deadline, read).await else { return };
        self.update_view(|view| {
            if is_unknown(&view.state)
                && let SessionState::Suspended { receipt: unknown, .. } = &mut view.state
            {
                *unknown = Some(receipt);
            }
        });
    }

    /// Ends the processes of the session's current incarnation, and retains its conversation, perhaps for a hand-over.
    /// Cancels a resume in progress and a scheduled restart.
    pub(crate) async fn suspend(&self, options: KillOptions, hand_over: bool) -> Result<()> {
        let keep = |latest: &Self| {
            if !latest.is_suspended() {
                return Err(latest.ended_error());
            }
            if let Some((_, Some(receipt))) = latest.ended() {
                proven(*receipt)?;
            }
            latest.update_view(|view| {
                let is_handed_over = hand_over || view.state.is_handed_over();
                if let SessionState::Suspended { next, .. } = &mut view.state {
                    *next = if is_handed_over { AfterSuspension::HandedOver } else { AfterSuspension::Resume };
                }
            });
            latest.save_record();
            Ok(())
        };
        let longest = self.longest_kill(options);
        let suspended = within(longest, self.end_current(options, &EndReason::Suspended, keep)).await;
        suspended.unwrap_or_else(|| Err(self.kill_deadline_error(longest)))
    }

    /// Ends the processes of the latest incarnation, then runs `then` on it. For a suspended one, `then` runs while no
    /// resume is in progress. The caller bounds the wait.
    pub(crate) async fn end_current<T>(
        &self,
        options: KillOptions,
        reason: &EndReason,
        then: impl Fn(&Self) -> Result<T>,
    ) -> Result<T> {
        let _wanted = self.incarnations.request_end(reason.clone());
        loop {
            let later = self.incarnations.successor(self)?;
            let latest = later.as_deref().unwrap_or(self);
            if latest.ended().is_none() {
                latest.request_end(options, reason.clone());
                latest.wait_stopped().await;
            }
            if !latest.is_suspended() {
                return then(latest);
            }
            // Afterwards its last writer is gone.
            latest.wait_settled().await?;
            // A resume holds the lock. It either gives up for this call, or succeeds; the resumed session is then
            // ended as others are.
            tokio::select! {
                _not_resumed = self.incarnations.lock_resume() => {
                    if self.incarnations.is_latest(latest) {
                        return then(latest);
                    }
                }
                () = self.incarnations.wait_superseded(latest) => {}
            }
        }
    }

    /// Ends a suspended session, which has neither processes nor task. The caller excludes a concurrent resume.
    fn end_suspended(&self, reason: &EndReason) {
        let receipt = self.ended().and_then(|(_, receipt)| receipt);
        let _still = self.incarnations.lock_writes();
        let mut log = self.history().reopen();
        let error = Error::Ended { session: self.id().clone(), reason: reason.to_string() };
        for action in self.give_up_prompts(&error) {
            log.push(0, Event::ActionFailed { action, error: error.chain() });
        }
        log.push(0, Event::SessionEnded { reason: reason.clone(), receipt: receipt.clone() });
        self.update_view(|view| view.state = SessionState::ended(reason.clone(), receipt));
        self.save_record();
        self.leave_table();
    }

    /// Longest time of a kill: the proxy's attempt, then the fork server's.
    pub(crate) fn longest_kill(&self, options: KillOptions) -> Duration {
        let Deadlines { wedged, kill, .. } = self.deadlines;
        options.grace.saturating_mul(2).saturating_add(wedged).saturating_add(kill)
    }

    /// Waits for an end that was requested.
    pub(crate) async fn end_within(&self, deadline: Duration) -> Result<Receipt> {
        within(deadline, self.wait_stopped()).await.ok_or_else(|| self.kill_deadline_error(deadline))?;
        self.receipt()
    }

    /// Resolves when the session's processes have ended, or nobody can learn of that any more.
    async fn wait_stopped(&self) {
        let mut view = self.view.subscribe();
        tokio::select! {
            biased;
            // Fails only without the session.
            _ = view.wait_for(|view| view.state.stopped_by().is_some()) => {}
            () = self.runtime_ended() => {}
        }
    }

    /// Resolves when the runtime of the session's task has ended; never if it is not known.
    pub(super) fn runtime_ended(&self) -> impl Future<Output = ()> + use<> {
        runtime::ended(self.place.runtime())
    }

    /// Checks that a call can be answered.
    ///
    /// # Errors
    /// [`Error::NoRuntime`], [`Error::RuntimeIncomplete`]; [`Error::RuntimeEnded`] unless the session has ended before its runtime.
    pub(crate) fn require(&self, operation: &str) -> Result<()> {
        runtime::require()?;
        match self.place.runtime() {
            Some(runtime) if self.is_lost() => runtime.check(&format!("{operation} session {}", self.id)),
            _ => Ok(()),
        }
    }

    /// Receipt of the session's end.
    fn receipt(&self) -> Result<Receipt> {
        match self.ended() {
            Some((_, Some(receipt))) => proven(*receipt),
            _ => Err(self.ended_error()),
        }
    }

    fn kill_deadline_error(&self, after: Duration) -> Error {
        Error::Deadline { operation: format!("killing session {}", self.id), after }
    }

    /// Waits until all appended events are readable.
    pub(crate) async fn wait_published(&self) -> Result<()> {
        let (after, history) = (self.deadlines.control, self.history());
        let published = within(after, history.wait_readable(history.assigned())).await;
        published
            .ok_or_else(|| Error::Deadline { operation: format!("writing the events of session {}", self.id), after })
    }

    /// Waits until the fleet has all appended events. Resolves at once for a session that is not replicated.
    ///
    /// # Errors
    /// [`Error::Deadline`]; [`Error::Fenced`].
    pub(crate) async fn wait_acknowledged(&self) -> Result<()> {
        if !self.history().is_replicated() {
            return Ok(());
        }
        self.wait_published().await?;
        match self.history().is_fenced() {
            true => Err(Error::Fenced { session: self.id().clone() }),
            false => Ok(()),
        }
    }

    /// Waits until the task of an ended session has cleaned up.
    pub(crate) async fn wait_settled(&self) -> Result<()> {
        let after = self.deadlines.kill;
        let settled = async {
            tokio::select! {
                biased;
                _ = self.settled.wait() => Ok(()),
                () = self.runtime_ended() => Err(self.runtime_error()),
            }
        };
        within(after, settled).await.unwrap_or_else(|| {
            Err(Error::Deadline { operation: format!("clearing up after session {}", self.id), after })
        })
    }

    /// Sends a command to the session's task and waits for the answer.
    pub(crate) async fn call<T>(
        &self,
        operation: &str,
        extra: Duration,
        command: impl FnOnce(ReplySender<T>) -> SessionCommand,
    ) -> Result<T> {
        self.require(&format!("{operation} in"))?;
        let after = self.deadlines.control.saturating_add(extra);
        within(after, self.exchange(command))
            .await
            .unwrap_or_else(|| Err(Error::Deadline { operation: format!("{operation} in session {}", self.id), after }))
    }

    /// Sends a command and waits for the answer, however long that takes.
    async fn exchange<T>(&self, command: impl FnOnce(ReplySender<T>) -> SessionCommand) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let command = command(reply);
        let lane = if command.is_urgent() { &self.urgent } else { &self.ordered };
        // Either fails only if the task is gone.
        if lane.send(command).await.is_err() {
            return Err(self.gone_error().await);
        }
        match answer.await {
            Ok(Err(error)) => Err(self.explain(error).await),
            Ok(answer) => answer,
            Err(_) => Err(self.gone_error().await),
        }
    }

    /// Returns true if the session's task is gone without a proof, as with its runtime or its manager.
    fn is_lost(&self) -> bool {
        matches!(self.ended(), None | Some((EndReason::Shutdown, None)))
    }

    /// Returns the error of a call; that of the runtime, where the session has ended with that.
    pub(super) async fn explain(&self, error: Error) -> Error {
        let is_end = matches!(error, Error::ShutDown | Error::Ended { .. } | Error::Suspended { .. });
        if is_end && self.is_lost() && self.place.has_lost_runtime().await { self.runtime_error() } else { error }
    }

    /// Error of a call to a session whose task is gone.
    pub(super) async fn gone_error(&self) -> Error {
        self.explain(self.ended_error()).await
    }

    fn runtime_error(&self) -> Error {
        Error::RuntimeEnded { operation: format!("waiting for session {}", self.id) }
    }

    /// Returns true unless the session was resumed after this incarnation.
    pub(crate) fn is_latest(&self) -> bool {
        self.incarnations.is_latest(self)
    }

    /// Error of a call to a session without processes.
    pub(crate) fn ended_error(&self) -> Error {
        let session = self.id().clone();
        // An earlier manager may have suspended the session in its shutdown.
        if let Some((EndReason::Shutdown, _)) = self.ended()
            && self.place.is_closed()
        {
            return Error::ShutDown;
        }
        if self.is_handed_over() {
            return Error::HandedOver { session };
        }
        if self.is_suspended() {
            return Error::Suspended { session };
        }
        match self.ended() {
            None => Error::ShutDown,
            Some((reason, _)) => Error::Ended { session, reason: reason.to_string() },
        }
    }
}

async fn within<T>(after: Duration, future: impl Future<Output = T>) -> Option<T> {
    timeout(after, future).await.ok()
}

/// Converts a receipt with survivors to an error.
fn proven(receipt: Receipt) -> Result<Receipt> {
    if receipt.is_empty() { Ok(receipt) } else { Err(Error::Survivors(Box::new(receipt))) }
}
