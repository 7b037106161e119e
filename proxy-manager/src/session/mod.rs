//! Session of a manager: its shared state, and calls to the task that owns the rest.

mod beginning;
mod calls;
mod clocks;
mod core;
mod count;
mod driver;
mod ending;
mod info;
mod listing;
mod lives;
mod meter;
mod metrics;
mod native_file;
mod outcome;
mod pending;
mod prompts;
mod pulse;
mod record;
mod row;
mod table;
mod task;
mod transcript;
mod turn;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use event_log::LogError;
use ipc_protocol::{
    AgentSessionConfig, EndReason, KillOptions, Measures, Prompt, Receipt, SessionId, message::ProxyCommand,
};
use tokio::sync::{SetOnce, mpsc, oneshot, watch};

use crate::{
    deadlines::Deadlines,
    description::{
        NativeConversation, SessionDescription, SessionMetadata, SessionRemains, SessionSettings, SessionState,
        SupervisedProcesses, TurnUsage,
    },
    error::Result,
    history::{History, Streams, Subscription, Writer},
    launch::LONGEST_HISTORY,
    roster::{Roster, SessionRecord},
};

pub(crate) use self::core::SessionRules;
use self::core::lasting::Crashes;
pub(crate) use count::Count;
pub(crate) use driver::Adoption;
pub use info::SessionInfo;
pub(crate) use lives::Lives;
use metrics::Tally;
pub use metrics::{ProcessUse, SessionMetrics};
pub(crate) use pending::{Change, Waiting};
pub use prompts::QueuedPrompt;
pub(crate) use prompts::{Accepted, Appending, BEGUN, Class, ENDED, PromptQueue, name_of};
use row::Row;
pub(crate) use table::SessionTable;
use table::TablePlace;
pub(crate) use task::{Fork, Task, sockets};
use transcript::Transcript;
use turn::TurnTicket;
pub use turn::{PromptMode, Turn, TurnEnd};

/// Commands of each lane that may wait for the session's task.
const LANE: usize = 64;

/// Sender of a call's answer.
pub(crate) type Reply<T> = oneshot::Sender<Result<T>>;

/// Command to a session's task. There are two lanes: an urgent one, for requests that overtake waiting prompts, and an
/// ordered one. A kill of the session is in neither: see [`Demand`].
pub(crate) enum SessionCommand {
    /// Carries a command to the proxy, with its caller.
    Request { command: ProxyCommand, waiting: Waiting },
    /// Begins a turn, or queues it; `accepted` if the prompt is in the log already.
    Prompt { prompt: Prompt, mode: PromptMode, accepted: Option<Accepted>, reply: Reply<TurnTicket> },
    /// Appends events together, and replies with the offset of the last.
    Append { events: Vec<Appending>, reply: Reply<u64> },
}

impl SessionCommand {
    fn is_urgent(&self) -> bool {
        matches!(self, Self::Request { command, .. } if command.is_urgent())
    }
}

/// Desired state of the session as a whole. A level, not a queue: it waits behind nothing, and a repeated request has
/// no effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Demand {
    /// The session lives.
    #[default]
    Live,
    /// The session ends.
    End { options: KillOptions, reason: EndReason, asked: u32 },
    /// The task detaches at once, since the manager is gone.
    LetGo,
}

/// State of the session that everyone may see.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) state: SessionState,
    pub(crate) processes: SupervisedProcesses,
    pub(crate) measures: Option<Measures>,
    pub(crate) turns: u64,
    pub(crate) conversation: NativeConversation,
    /// Address of the agent's own server.
    pub(crate) endpoint: Option<String>,
    pub(crate) settings: SessionSettings,
    /// True if its agent has turns, as far as is known.
    pub(crate) has_turns: bool,
}

/// The shared side of a session. It remains when the session has ended. `Debug` omits the events, which include prompts.
#[derive(derive_more::Debug)]
#[debug("Session {{ id: {id}, agent: {}, state: {:?} }}", self.metadata().agent, view.borrow().state)]
pub(crate) struct Session {
    id: Arc<SessionId>,
    description: SessionDescription,
    deadlines: Deadlines,
    history: Arc<History>,
    roster: Arc<Roster>,
    /// Place in the manager's table.
    place: TablePlace,
    /// Configuration as the caller gave it, and the names of the secrets that it lacks since it is from a record.
    config: OnceLock<(Arc<AgentSessionConfig>, Vec<String>)>,
    /// True if this is not the first incarnation.
    has_been: bool,
    /// True if the session is in the state in which an earlier manager left it.
    is_restored: bool,
    lives: Arc<Lives>,
    row: Arc<Row>,
    queue: Arc<PromptQueue>,
    crashes: Arc<Mutex<Crashes>>,
    view: watch::Sender<View>,
    /// Set when all clean-up after the session's end is done.
    settled: SetOnce<()>,
    /// Counters over all its incarnations with this manager.
    tally: Arc<Mutex<Tally>>,
    /// True if no prompt is accepted any more.
    drains: AtomicBool,
    /// The task ends: no call can be answered any more.
    is_closing: AtomicBool,
    demand: watch::Sender<Demand>,
    urgent: mpsc::Sender<SessionCommand>,
    ordered: mpsc::Sender<SessionCommand>,
}

impl View {
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

/// The task's ends of a [`Session`]'s channels.
#[derive(Debug)]
pub(crate) struct Inlets {
    pub(crate) demand: watch::Receiver<Demand>,
    pub(crate) urgent: mpsc::Receiver<SessionCommand>,
    pub(crate) ordered: mpsc::Receiver<SessionCommand>,
}

impl Session {
    pub(crate) fn new(
        description: SessionDescription,
        deadlines: Deadlines,
        streams: &Streams,
        roster: &Arc<Roster>,
    ) -> (Arc<Self>, Inlets, Writer) {
        let id = Arc::new(description.metadata.session_id.clone());
        let (history, log) = History::new(id.clone(), streams);
        let (session, inlets) = Self::with_history(id, description, deadlines, history, roster.clone());
        (Arc::new(session), inlets, log)
    }

    /// Creates the next incarnation of the suspended session `before`, with the same events.
    pub(crate) fn again(
        before: &Self,
        mut description: SessionDescription,
        deadlines: Deadlines,
    ) -> (Arc<Self>, Inlets, Writer) {
        description.metadata.started_at = before.metadata().started_at;
        let history = before.history.clone();
        let log = history.reopen();
        let (mut session, inlets) =
            Self::with_history(before.id.clone(), description, deadlines, history, before.roster.clone());
        session.crashes = before.crashes.clone();
        session.tally = before.tally.clone();
        // The next proxy reports nothing of earlier turns.
        session.tally(|tally| tally.turn = TurnUsage::default());
        (session.lives, session.row) = (before.lives.clone(), before.row.clone());
        session.queue = before.queue.clone();
        session.has_been = true;
        let (turns, conversation) = {
            let view = before.view.borrow();
            (view.turns, view.conversation.clone())
        };
        session.show(|view| {
            view.turns = turns;
            view.conversation = NativeConversation { resumable: view.conversation.resumable, ..conversation };
        });
        (Arc::new(session), inlets, log)
    }

    /// Restores a session of an earlier manager, which has no processes, from its record.
    pub(crate) fn restored(
        record: &SessionRecord,
        state: SessionState,
        count: &Count,
        deadlines: Deadlines,
        streams: &Streams,
        roster: &Arc<Roster>,
    ) -> Self {
        let id = Arc::new(record.session_id.clone());
        let (history, mut log) = History::new(id.clone(), streams);
        log.leave_open();
        let (mut session, _) = Self::with_history(id, record.description(), deadlines, history, roster.clone());
        (session.has_been, session.is_restored) = (true, true);
        let (config, absent) = record.own_config();
        session.keep_config(config, absent);
        session.took_before(record, count);
        session.show(|view| (view.turns, view.state) = (record.turns, state));
        session.settle();
        session
    }

    /// Restores the conversation and the counters from the record of an earlier manager.
    pub(crate) fn took_before(&self, record: &SessionRecord, count: &Count) {
        self.tally(|tally| count.tell(tally));
        self.show(|view| {
            view.conversation.clone_from(&record.conversation);
            view.endpoint.clone_from(&record.endpoint);
        });
    }

    /// Records the file of conversation `id`.
    fn found_file(&self, id: &str, file: &str) {
        self.show(|view| {
            if view.conversation.native_session_id.as_deref() == Some(id) {
                view.conversation.native_session_file = Some(file.to_owned());
            }
        });
        // The session's next host may have written its record already.
        if !self.is_let_go() {
            self.roster.found_file(&self.id, id, file);
        }
    }

    /// Updates the session's record.
    pub(crate) fn note(&self) {
        self.note_and(drop);
    }

    /// Updates the session's record. `then` is called when the record, and every event before it, is durable, or with
    /// the error.
    pub(crate) fn note_and(&self, then: impl FnOnce(Result<(), LogError>) + Send + 'static) {
        // The session's next host may have updated it already.
        if self.is_let_go() {
            return then(Ok(()));
        }
        self.roster.update(&self.id, Some(Box::new(then)), |before, execution| self.record(before, execution));
    }

    /// Subscribes to changes of the visible state.
    pub(crate) fn watch(&self) -> watch::Receiver<View> {
        self.view.subscribe()
    }

    fn with_history(
        id: Arc<SessionId>,
        description: SessionDescription,
        deadlines: Deadlines,
        history: Arc<History>,
        roster: Arc<Roster>,
    ) -> (Self, Inlets) {
        let view = View {
            state: SessionState::Starting,
            processes: SupervisedProcesses::default(),
            measures: None,
            turns: 0,
            conversation: NativeConversation { resumable: description.resumable, ..NativeConversation::default() },
            endpoint: None,
            settings: description.settings.clone(),
            has_turns: true,
        };
        let (demand, demand_inlet) = watch::channel(Demand::Live);
        let (urgent, urgent_inlet) = mpsc::channel(LANE);
        let (ordered, ordered_inlet) = mpsc::channel(LANE);
        let session = Self {
            id,
            description,
            deadlines,
            history,
            roster,
            place: TablePlace::default(),
            config: OnceLock::new(),
            has_been: false,
            is_restored: false,
            lives: Arc::default(),
            row: Arc::default(),
            queue: Arc::default(),
            crashes: Arc::default(),
            view: watch::Sender::new(view),
            settled: SetOnce::new(),
            tally: Arc::new(Mutex::new(Tally::new())),
            drains: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            demand,
            urgent,
            ordered,
        };
        (session, Inlets { demand: demand_inlet, urgent: urgent_inlet, ordered: ordered_inlet })
    }

    /// Configuration at the start; `None` in tests.
    pub(crate) fn config(&self) -> Option<&Arc<AgentSessionConfig>> {
        self.config.get().map(|(config, _)| config)
    }

    /// Names of the secrets that a resume has to be given again.
    pub(crate) fn absent_secrets(&self) -> &[String] {
        self.config.get().map_or(&[], |(_, absent)| absent)
    }

    /// Records that the session was added to `table`.
    pub(crate) fn is_in(&self, table: Arc<dyn SessionTable>, serial: u64) {
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
    pub(crate) fn keep_config(&self, config: Arc<AgentSessionConfig>, absent: Vec<String>) {
        // Set once.
        let _ = self.config.set((config, absent));
    }

    /// Queue of the actions appended to its stream.
    pub(crate) fn row(&self) -> &Arc<Row> {
        &self.row
    }

    /// Returns the queue of prompts that were accepted and not done yet.
    pub(crate) fn queue(&self) -> &Arc<PromptQueue> {
        &self.queue
    }

    /// Returns the state that all incarnations share.
    pub(crate) fn lives(&self) -> &Arc<Lives> {
        &self.lives
    }

    /// Returns true if this is not the first incarnation.
    pub(crate) fn has_been(&self) -> bool {
        self.has_been
    }

    /// Crashes over all its incarnations.
    pub(crate) fn crashes(&self) -> MutexGuard<'_, Crashes> {
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
    pub(crate) fn kept_conversation(&self) -> Option<String> {
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
    pub(crate) fn is_let_go(&self) -> bool {
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
        &self.description
    }

    pub(crate) fn metadata(&self) -> &SessionMetadata {
        &self.description.metadata
    }

    pub(crate) fn deadlines(&self) -> &Deadlines {
        &self.deadlines
    }

    pub(crate) fn history(&self) -> &Arc<History> {
        &self.history
    }

    /// Changes the visible state.
    pub(crate) fn show(&self, change: impl FnOnce(&mut View)) {
        self.view.send_modify(change);
    }

    /// Updates the counters.
    pub(crate) fn tally(&self, count: impl FnOnce(&mut Tally)) {
        count(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Refuses prompts from now on.
    pub(crate) fn drain(&self) {
        self.drains.store(true, Ordering::Release);
    }

    /// From now on no call can be answered.
    pub(crate) fn closes(&self) {
        self.is_closing.store(true, Ordering::Release);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.drains.load(Ordering::Acquire)
    }

    /// Activity so far.
    pub(crate) fn metrics(&self) -> SessionMetrics {
        let events = self.history.last_offset();
        self.tally.lock().unwrap_or_else(PoisonError::into_inner).metrics(events)
    }

    /// Part of its usage that belongs to the turn counted last.
    pub(crate) fn turn_usage(&self) -> TurnUsage {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner).turn
    }

    /// Returns true if the session ended without ever being ready.
    pub(crate) fn is_stillborn(&self) -> bool {
        matches!(self.view.borrow().state, SessionState::Ended { remains: SessionRemains::Nothing, .. })
    }

    /// Reason and receipt of its end or suspension; `None` while it lives.
    pub(crate) fn ended(&self) -> Option<(EndReason, Option<Box<Receipt>>)> {
        let view = self.view.borrow();
        view.state.at_rest().map(|(reason, receipt)| (reason.clone(), receipt.cloned().map(Box::new)))
    }

    pub(crate) fn info(&self) -> SessionInfo {
        let View { state, processes, measures, turns, conversation, settings, .. } = self.view.borrow().clone();
        let (metadata, metrics) = (self.metadata().clone(), self.metrics());
        let silence = Duration::from_millis(metrics.silent_ms);
        SessionInfo {
            heartbeat: SystemTime::now().checked_sub(silence).unwrap_or(metadata.started_at),
            metadata,
            settings,
            conversation,
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
pub(crate) fn transcript_of(history: &History) -> String {
    let mut transcript = Transcript::new(LONGEST_HISTORY);
    history.read(|event| transcript.note(event));
    transcript.text()
}

#[cfg(test)]
pub(crate) mod tests;
