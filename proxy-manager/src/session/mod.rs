//! Session of a manager: its shared state, and calls to the task that owns the rest.

mod action_queue;
mod calls;
mod clocks;
mod container;
mod core;
mod driver;
mod incarnations;
mod meter;
mod metrics;
mod native_file;
mod outcome;
mod pending_requests;
mod process_listings;
mod prompts;
mod pulse;
mod record;
mod session_ending;
mod startup;
mod table;
mod task;
mod transcript;
mod transcript_counts;
mod turn;
mod warm;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use event_log::LogError;
use ipc_protocol::{
    AgentSessionConfig, ContainmentStatus, EndReason, HostDeath, Json, KillOptions, Prompt, Receipt, SessionId,
    message::ProxyCommand, terminal::Surface,
};
use tokio::sync::{SetOnce, mpsc, oneshot, watch};

use crate::{
    deadlines::Deadlines,
    description::{
        AgentStatus, NativeConversation, OpenPermission, SessionDescription, SessionMetadata, SessionRemains,
        SessionSettings, SessionState, SupervisedProcesses, TurnUsage,
    },
    error::Result,
    fork_server::ForkServer,
    history::{HistoryWriter, SessionHistory, StreamContext, Subscription},
    launch::MAX_HISTORY,
    session_store::{RecordState, SessionRecord, SessionStore, own_config},
};

pub(crate) use api_types::{ProcessUse, PromptMode, QueuedPrompt, SessionInfo, SessionMetrics};

pub(crate) use self::core::SessionRules;
use self::core::lifecycle::CrashHistory;
pub(crate) use action_queue::ActionQueue;
pub(crate) use driver::SessionAdoption;
pub(crate) use incarnations::SessionIncarnations;
use metrics::UsageCounters;
pub(crate) use pending_requests::{PendingAnswer, SettingChange};
pub(crate) use prompts::{AcceptedPrompt, ActionClass, BEGUN, ENDED, EventToAppend, PromptQueue, name_of};
pub(crate) use table::LiveSessions;
use table::TablePlace;
pub(crate) use task::{ForkRequest, SessionTask, sockets};
use transcript::TranscriptWriter;
pub(crate) use transcript_counts::TranscriptCounts;
use turn::TurnTicket;
pub use turn::{PromptOptions, Turn, TurnEnd};
pub(crate) use warm::{WarmClaim, WarmStart};

/// Commands of each lane that may wait for the session's task.
const LANE_CAPACITY: usize = 64;

/// Sender of a call's answer.
pub(crate) type ReplySender<T> = oneshot::Sender<Result<T>>;

/// Command to a session's task. There are two lanes: an urgent one, for requests that overtake waiting prompts, and an
/// ordered one. A kill of the session is in neither: see [`DesiredState`].
pub(crate) enum SessionCommand {
    /// Carries a command to the proxy, with its caller.
    Request { command: ProxyCommand, waiting: PendingAnswer },
    /// Begins a turn, or queues it; `accepted` if the prompt is in the log already.
    Prompt {
        prompt: Prompt,
        mode: PromptMode,
        accepted: Option<AcceptedPrompt>,
        metadata: Option<Json>,
        reply: ReplySender<TurnTicket>,
    },
    /// Appends events together, and replies with the offset of the last.
    Append { events: Vec<EventToAppend>, reply: ReplySender<u64> },
    /// Hands a warm session to the caller of a start.
    Claim { claim: Box<WarmClaim>, reply: ReplySender<()> },
    /// Emits the title that a caller gave the session; `None` if it was removed.
    Rename { title: Option<String>, reply: ReplySender<()> },
}

impl SessionCommand {
    fn is_urgent(&self) -> bool {
        matches!(self, Self::Request { command, .. } if command.is_urgent())
    }
}

/// Desired state of the session as a whole. A level, not a queue: it waits behind nothing, and a repeated request has
/// no effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum DesiredState {
    /// The session lives.
    #[default]
    Run,
    /// The session ends.
    End { options: KillOptions, reason: EndReason, asked: u32 },
    /// The task detaches at once, since the manager is gone.
    Detach,
}

/// State of the session that everyone may see.
#[derive(Clone, Debug)]
pub(crate) struct SessionView {
    pub(crate) state: SessionState,
    pub(crate) processes: SupervisedProcesses,
    pub(crate) measures: Option<ContainmentStatus>,
    pub(crate) turns: u64,
    pub(crate) conversation: NativeConversation,
    /// Address of the agent's own server.
    pub(crate) endpoint: Option<String>,
    pub(crate) settings: SessionSettings,
    pub(crate) agent_status: AgentStatus,
    /// True if its agent has turns, as far as is known.
    pub(crate) has_turns: bool,
    pub(crate) open_permissions: Vec<OpenPermission>,
    pub(crate) screen_status: Option<String>,
    /// True while the session waits for a start that claims it.
    pub(crate) is_warm: bool,
}

/// The shared side of a session. It remains when the session has ended. `Debug` omits the events, which include prompts.
#[derive(derive_more::Debug)]
#[debug("Session {{ id: {id}, agent: {}, state: {:?} }}", self.metadata().agent, view.borrow().state)]
pub(crate) struct ManagedSession {
    id: Arc<SessionId>,
    description: SessionDescription,
    deadlines: Deadlines,
    history: Arc<SessionHistory>,
    session_store: Arc<SessionStore>,
    /// Place in the manager's table.
    place: TablePlace,
    /// Configuration as the caller gave it, and the names of the secrets that it lacks since it is from a record.
    config: OnceLock<(Arc<AgentSessionConfig>, Vec<String>)>,
    /// Set if it was started for the warm pool.
    warm: OnceLock<WarmStart>,
    /// Set once a start has claimed it.
    claim: OnceLock<WarmClaim>,
    /// True if this is not the first incarnation.
    is_resumed: bool,
    /// True if its stream was there before it.
    has_earlier_stream: bool,
    /// True if the session is in the state in which an earlier manager left it.
    is_restored: bool,
    incarnations: Arc<SessionIncarnations>,
    action_queue: Arc<ActionQueue>,
    queue: Arc<PromptQueue>,
    crashes: Arc<Mutex<CrashHistory>>,
    view: watch::Sender<SessionView>,
    /// Set when all clean-up after the session's end is done.
    settled: SetOnce<()>,
    /// Counters over all its incarnations with this manager.
    counters: Arc<Mutex<UsageCounters>>,
    /// True if no prompt is accepted any more.
    draining: AtomicBool,
    /// The task ends: no call can be answered any more.
    is_closing: AtomicBool,
    /// Fork server of the running incarnation.
    fork_server: Mutex<Weak<ForkServer>>,
    desired_state: watch::Sender<DesiredState>,
    urgent: mpsc::Sender<SessionCommand>,
    ordered: mpsc::Sender<SessionCommand>,
}

impl SessionView {
    /// Returns true if the session waits for a prompt.
    fn is_idle(&self) -> bool {
        matches!(self.state, SessionState::Idle)
    }

    /// Shows the state after an incarnation. A first one that ends before it is ready leaves nothing.
    fn end(&mut self, state: SessionState, is_first: bool) {
        let was_ready = !matches!(self.state, SessionState::Starting);
        self.state = state;
        if let SessionState::Ended { remains, .. } = &mut self.state
            && is_first
            && !was_ready
        {
            *remains = SessionRemains::Nothing;
        }
    }
}

/// The task's ends of a [`ManagedSession`]'s channels.
#[derive(Debug)]
pub(crate) struct SessionInlets {
    pub(crate) desired_state: watch::Receiver<DesiredState>,
    pub(crate) urgent: mpsc::Receiver<SessionCommand>,
    pub(crate) ordered: mpsc::Receiver<SessionCommand>,
}

impl ManagedSession {
    pub(crate) fn new(
        description: SessionDescription,
        deadlines: Deadlines,
        streams: &StreamContext,
        roster: &Arc<SessionStore>,
    ) -> (Arc<Self>, SessionInlets, HistoryWriter) {
        let id = Arc::new(description.metadata.session_id.clone());
        let (history, log) = SessionHistory::new(id.clone(), streams);
        let (session, inlets) = Self::with_history(id, description, deadlines, history, roster.clone());
        (Arc::new(session), inlets, log)
    }

    /// Creates a session like [`ManagedSession::new`], which goes on with a stream that was there before it.
    pub(crate) fn on_stream(
        description: SessionDescription,
        deadlines: Deadlines,
        (history, action_queue): (Arc<SessionHistory>, Arc<ActionQueue>),
        roster: &Arc<SessionStore>,
    ) -> (Arc<Self>, SessionInlets, HistoryWriter) {
        let id = Arc::new(description.metadata.session_id.clone());
        let log = history.reopen();
        let (mut session, inlets) = Self::with_history(id, description, deadlines, history, roster.clone());
        (session.action_queue, session.has_earlier_stream) = (action_queue, true);
        (Arc::new(session), inlets, log)
    }

    /// Returns true if its stream was there before it: a start that fails leaves the stream.
    pub(crate) fn has_earlier_stream(&self) -> bool {
        self.has_earlier_stream
    }

    /// Creates the next incarnation of the suspended session `before`, with the same events.
    pub(crate) fn resumed(
        before: &Self,
        mut description: SessionDescription,
        deadlines: Deadlines,
    ) -> (Arc<Self>, SessionInlets, HistoryWriter) {
        description.metadata.started_at = before.metadata().started_at;
        let history = before.history.clone();
        let log = history.reopen();
        let (mut session, inlets) =
            Self::with_history(before.id.clone(), description, deadlines, history, before.session_store.clone());
        session.crashes = before.crashes.clone();
        session.counters = before.counters.clone();
        // The next proxy reports nothing of earlier turns.
        session.count(|tally| tally.turn = TurnUsage::default());
        (session.incarnations, session.action_queue) = (before.incarnations.clone(), before.action_queue.clone());
        session.queue = before.queue.clone();
        session.is_resumed = true;
        let (turns, conversation, agent_status) = {
            let view = before.view.borrow();
            (view.turns, view.conversation.clone(), view.agent_status.clone())
        };
        session.update_view(|view| {
            (view.turns, view.agent_status) = (turns, agent_status);
            view.conversation = NativeConversation { resumable: view.conversation.resumable, ..conversation };
        });
        (Arc::new(session), inlets, log)
    }

    /// Restores a session of an earlier manager, which has no processes, from its record.
    pub(crate) fn restored(
        record: &SessionRecord,
        state: SessionState,
        count: &TranscriptCounts,
        deadlines: Deadlines,
        streams: &StreamContext,
        roster: &Arc<SessionStore>,
    ) -> Self {
        let id = Arc::new(record.session_id.clone());
        let (history, mut log) = SessionHistory::new(id.clone(), streams);
        log.keep_open();
        let (mut session, _) =
            Self::with_history(id, SessionDescription::from(record), deadlines, history, roster.clone());
        (session.is_resumed, session.is_restored) = (true, true);
        let (config, absent) = own_config(record);
        session.set_config(config, absent);
        session.restore_state(record, count);
        session.update_view(|view| (view.turns, view.state) = (record.turns, state));
        session.settle();
        session
    }

    /// Restores the conversation and the counters from the record of an earlier manager.
    pub(crate) fn restore_state(&self, record: &SessionRecord, count: &TranscriptCounts) {
        self.count(|tally| count.restore_into(tally));
        self.update_view(|view| {
            view.conversation.clone_from(&record.conversation);
            view.endpoint.clone_from(&record.endpoint);
            view.agent_status.clone_from(count.agent_status());
        });
    }

    /// Records the file of conversation `id`.
    fn set_native_file(&self, id: &str, file: &str) {
        self.update_view(|view| {
            if view.conversation.native_session_id.as_deref() == Some(id) {
                view.conversation.native_session_file = Some(file.to_owned());
            }
        });
        // The session's next host may have written its record already.
        if !self.is_detached() {
            self.session_store.set_native_file(&self.id, id, file);
        }
    }

    /// Updates the session's record.
    pub(crate) fn save_record(&self) {
        self.record_then(drop);
    }

    /// Updates the session's record. `then` is called when the record, and every event before it, is durable, or with
    /// the error.
    pub(crate) fn record_then(&self, then: impl FnOnce(Result<(), LogError>) + Send + 'static) {
        // The session's next host may have updated it already.
        if self.is_detached() {
            return then(Ok(()));
        }
        self.session_store.update(&self.id, Some(Box::new(then)), |before, execution| self.record(before, execution));
    }

    /// Subscribes to changes of the visible state.
    pub(crate) fn watch(&self) -> watch::Receiver<SessionView> {
        self.view.subscribe()
    }

    fn with_history(
        id: Arc<SessionId>,
        description: SessionDescription,
        deadlines: Deadlines,
        history: Arc<SessionHistory>,
        roster: Arc<SessionStore>,
    ) -> (Self, SessionInlets) {
        let view = SessionView {
            state: SessionState::Starting,
            processes: SupervisedProcesses::default(),
            measures: None,
            turns: 0,
            conversation: NativeConversation { resumable: description.resumable, ..NativeConversation::default() },
            endpoint: None,
            settings: description.settings.clone(),
            agent_status: AgentStatus::default(),
            has_turns: true,
            open_permissions: Vec::new(),
            screen_status: None,
            is_warm: false,
        };
        let (demand, demand_inlet) = watch::channel(DesiredState::Run);
        let (urgent, urgent_inlet) = mpsc::channel(LANE_CAPACITY);
        let (ordered, ordered_inlet) = mpsc::channel(LANE_CAPACITY);
        let session = Self {
            id,
            description,
            deadlines,
            history,
            session_store: roster,
            place: TablePlace::default(),
            config: OnceLock::new(),
            warm: OnceLock::new(),
            claim: OnceLock::new(),
            is_resumed: false,
            has_earlier_stream: false,
            is_restored: false,
            incarnations: Arc::default(),
            action_queue: Arc::default(),
            queue: Arc::default(),
            crashes: Arc::default(),
            view: watch::Sender::new(view),
            settled: SetOnce::new(),
            counters: Arc::new(Mutex::new(UsageCounters::new())),
            draining: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            fork_server: Mutex::default(),
            desired_state: demand,
            urgent,
            ordered,
        };
        (session, SessionInlets { desired_state: demand_inlet, urgent: urgent_inlet, ordered: ordered_inlet })
    }

    /// Configuration at the start; `None` in tests.
    pub(crate) fn config(&self) -> Option<&Arc<AgentSessionConfig>> {
        let claimed = self.claim.get().map(|claim| &claim.config);
        claimed.or_else(|| self.config.get().map(|(config, _)| config))
    }

    /// Returns true if the session continues without its host.
    pub(crate) fn may_outlive_host(&self) -> bool {
        self.config().is_some_and(|config| matches!(config.on_host_death, HostDeath::Detach { .. }))
    }

    /// Names of the secrets that a resume has to be given again.
    pub(crate) fn absent_secrets(&self) -> &[String] {
        self.config.get().map_or(&[], |(_, absent)| absent)
    }

    /// Records that the session was added to `table`.
    pub(crate) fn set_table_entry(&self, table: Arc<dyn LiveSessions>, serial: u64) {
        self.place.set(&table, serial);
    }

    /// Records in the manager's table that the session has ended.
    pub(crate) fn leave_table(&self) {
        self.place.ended();
    }

    /// Returns true if a prompt resumes the session.
    pub(crate) fn resumes_on_prompt(&self) -> bool {
        self.config().is_some_and(|config| config.lifecycle.resume_on_prompt)
    }

    /// Retains the configuration of the start, and the names of the secrets that it lacks.
    pub(crate) fn set_config(&self, config: Arc<AgentSessionConfig>, absent: Vec<String>) {
        // Set once.
        let _ = self.config.set((config, absent));
    }

    /// Queue of the actions appended to its stream.
    pub(crate) fn row(&self) -> &Arc<ActionQueue> {
        &self.action_queue
    }

    /// Returns the queue of prompts that were accepted and not done yet.
    pub(crate) fn queue(&self) -> &Arc<PromptQueue> {
        &self.queue
    }

    /// Returns the state that all incarnations share.
    pub(crate) fn lives(&self) -> &Arc<SessionIncarnations> {
        &self.incarnations
    }

    /// Returns true if this is not the first incarnation.
    pub(crate) fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    /// Crashes over all its incarnations.
    pub(crate) fn crashes(&self) -> MutexGuard<'_, CrashHistory> {
        self.crashes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pause before the session is restarted, if it is.
    pub(crate) fn restart_after(&self) -> Option<Duration> {
        self.view.borrow().state.restart_after()
    }

    /// The agent's own id of the conversation, if it is known.
    pub(crate) fn native_session_id(&self) -> Option<String> {
        self.view.borrow().conversation.native_session_id.clone()
    }

    /// The same id, if another process can resume the conversation, as far as is known.
    pub(crate) fn resumable_conversation(&self) -> Option<String> {
        self.view.borrow().conversation.resumable_id().map(str::to_owned)
    }

    /// Address of the agent's own server, if it has one and it is known.
    pub(crate) fn endpoint(&self) -> Option<String> {
        self.view.borrow().endpoint.clone()
    }

    /// Returns true if its agent has turns, as far as is known.
    pub(crate) fn has_turns(&self) -> bool {
        self.view.borrow().has_turns
    }

    /// Returns true if the session continues without this host.
    pub(crate) fn is_detached(&self) -> bool {
        matches!(self.view.borrow().state, SessionState::Ended { remains: SessionRemains::Detached, .. })
    }

    /// Returns true if its processes have ended and its conversation is retained.
    pub(crate) fn is_suspended(&self) -> bool {
        self.view.borrow().state.is_suspended()
    }

    /// Returns true if it is suspended and its conversation handed over.
    pub(crate) fn is_handed_over(&self) -> bool {
        self.view.borrow().state.is_handed_over()
    }

    /// Returns true if the clean-up after the session's end is done.
    pub(crate) fn is_settled(&self) -> bool {
        self.settled.initialized()
    }

    /// Marks the clean-up after the session's end as done.
    pub(crate) fn settle(&self) {
        // Set once.
        let _ = self.settled.set(());
    }

    pub(crate) fn id(&self) -> &SessionId {
        &self.id
    }

    pub(crate) fn shared_id(&self) -> Arc<SessionId> {
        self.id.clone()
    }

    pub(crate) fn description(&self) -> &SessionDescription {
        self.claim.get().map_or(&self.description, |claim| &claim.description)
    }

    pub(crate) fn metadata(&self) -> &SessionMetadata {
        &self.description().metadata
    }

    /// Returns true while its user visits the agent's own screen.
    pub(crate) fn is_visited(&self) -> bool {
        let visits = |config: &Arc<AgentSessionConfig>| config.terminal.as_ref().is_some_and(|terminal| terminal.visit);
        self.config().is_some_and(visits) && RecordState::from(&self.info().state).status().is_live()
    }

    /// Returns true if there is a screen to view.
    pub(crate) fn has_terminal(&self) -> bool {
        self.metadata().surface != Surface::Machine
    }

    /// Returns true if it is driven by its agent's protocol and on its screen at once.
    pub(crate) fn is_co_driven(&self) -> bool {
        self.metadata().surface == Surface::Both
    }

    /// Returns the fork server of the running incarnation.
    pub(crate) fn fork_server(&self) -> Option<Arc<ForkServer>> {
        self.fork_server.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    pub(crate) fn set_fork_server(&self, server: &Arc<ForkServer>) {
        *self.fork_server.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(server);
    }

    pub(crate) fn deadlines(&self) -> &Deadlines {
        &self.deadlines
    }

    pub(crate) fn history(&self) -> &Arc<SessionHistory> {
        &self.history
    }

    /// Changes the visible state.
    pub(crate) fn update_view(&self, change: impl FnOnce(&mut SessionView)) {
        self.view.send_modify(change);
    }

    /// Updates the counters.
    pub(crate) fn count(&self, count: impl FnOnce(&mut UsageCounters)) {
        count(&mut self.counters.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Refuses prompts from now on.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// From now on no call can be answered.
    pub(crate) fn closes(&self) {
        self.is_closing.store(true, Ordering::Release);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Activity so far.
    pub(crate) fn metrics(&self) -> SessionMetrics {
        let events = self.history.last_offset();
        self.counters.lock().unwrap_or_else(PoisonError::into_inner).metrics(events)
    }

    /// Part of its usage that belongs to the turn counted last.
    pub(crate) fn turn_usage(&self) -> TurnUsage {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner).turn
    }

    /// Returns true if the session ended without ever being ready.
    pub(crate) fn is_stillborn(&self) -> bool {
        matches!(self.view.borrow().state, SessionState::Ended { remains: SessionRemains::Nothing, .. })
    }

    /// Returns true if a process of the ended session is alive, or may be.
    pub(crate) fn left_survivors(&self) -> bool {
        let view = self.view.borrow();
        match view.state.stopped_by() {
            Some((_, Some(receipt))) => !receipt.is_empty(),
            // Nobody could tell.
            _ => view.processes.proxy.is_some(),
        }
    }

    /// Reason and receipt of its end or suspension; `None` while it lives.
    pub(crate) fn ended(&self) -> Option<(EndReason, Option<Box<Receipt>>)> {
        let view = self.view.borrow();
        view.state.stopped_by().map(|(reason, receipt)| (reason.clone(), receipt.cloned().map(Box::new)))
    }

    pub(crate) fn info(&self) -> SessionInfo {
        let (archived, title) = self.session_store.marks(&self.id);
        let info = self.snapshot();
        SessionInfo { archived, title: title.or_else(|| info.agent_status.agent_title.clone()), ..info }
    }

    /// Snapshot without what only the session's record has. For the record itself, which is locked while it is made.
    fn snapshot(&self) -> SessionInfo {
        let view = self.view.borrow().clone();
        let SessionView { state, processes, measures, turns, conversation, settings, agent_status, .. } = view;
        let is_live = state.stopped_by().is_none();
        let (metadata, metrics) = (self.metadata().clone(), self.metrics());
        let silence = Duration::from_millis(metrics.silent_ms);
        SessionInfo {
            heartbeat: SystemTime::now().checked_sub(silence).unwrap_or(metadata.started_at),
            metadata,
            settings,
            title: None,
            agent_status,
            conversation,
            ending: is_live && self.is_end_wanted(),
            open_permissions: if is_live { view.open_permissions } else { Vec::new() },
            screen_status: view.screen_status.filter(|_| is_live),
            degraded: if is_live { self.history.degraded() } else { None },
            archived: false,
            warm: is_live && view.is_warm,
            state,
            processes,
            measures,
            turns,
            queued: self.queue.list(),
            last_offset: self.history.last_offset(),
            metrics,
            process_use: None,
        }
    }

    pub(crate) fn subscribe(&self) -> Subscription {
        Subscription::one(self.history.clone(), self.history.first_offset())
    }

    pub(crate) fn subscribe_from(&self, from: u64) -> Subscription {
        Subscription::one(self.history.clone(), from.saturating_add(1))
    }
}

/// The conversation in a session's events, as plain text. Blocks where events are in the log.
pub(crate) fn transcript_of(history: &SessionHistory) -> String {
    let mut transcript = TranscriptWriter::new(MAX_HISTORY);
    history.read(|event| transcript.record(event));
    transcript.text()
}

#[cfg(test)]
pub(crate) mod tests;
