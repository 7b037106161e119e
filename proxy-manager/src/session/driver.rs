//! Driver of a session's core. It holds what the core must not touch (event log, journal, lease, slot, clock), gives the core
//! its inputs, and carries out the effects that come out, in their order.
//!
//! Nothing here blocks. Two effects need the disk; threads do that work, and its result is an input:
//! * **The journal.** No process shall run unrecorded: while the journal is behind, the order to fork is held back, and so
//!   is all that keeps its order on the way to the proxy (start, prompts, steering, operations). The urgent lane (kills,
//!   aborts, pings, answers) goes out at all times, and so do timers: these start nothing. A session that is to end before
//!   its order to fork was sent is forked all the same, for its receipt; its proxy never gets the start. A write that
//!   hangs for five seconds counts as failed: the stream reports that, and the session goes on.
//! * **The lease of a conversation** that another session may have. Messages of the proxy are left unread meanwhile, since
//!   they follow the switch; once the session is ending they are read all the same.

use std::{
    collections::{BTreeSet, VecDeque},
    future::pending,
    io,
    pin::Pin,
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};

use agents::conversations::ResumedConversation;
use event_log::LogError;
use ipc_protocol::{
    ContainmentSpec, Envelope, ErrorChain, ProcessId, Receipt,
    codec::{Inbox, Outbox},
    message::ToForkServer,
    reattach::{ReceivedMessage, WireFormat},
};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};

use super::{
    AcceptedPrompt, ManagedSession, SessionCommand,
    core::{
        AgentStart, CallerReply, CoreSetup, HostConditions, HostHandover, LeasePurpose, SessionCore, SessionEffect,
        SessionPast, SessionRules,
    },
};
use crate::{
    blocking::blocking,
    conversation_locks::LockKeeper,
    description::NativeConversation,
    error::{Error, Result},
    fork_server::ForkServerEvent,
    history::{FleetNotice, HeldCommit, HistoryWriter, RETRY},
    launch::{LaunchAttempt, NewLease, OpenConversation, SessionLaunch},
    prices::SharedPrices,
    state::{JournalRecord, JournalResult, SessionJournal},
    supervision::SessionSlot,
};

/// Facts about a session that another host started.
#[derive(Debug)]
pub(crate) struct SessionAdoption {
    /// Directory in which its agent keeps the files of conversations.
    pub(crate) native_files: Option<std::path::PathBuf>,
    pub(crate) proxy: ProcessId,
    /// Process of this host.
    pub(crate) host: ProcessId,
    /// Number of its proxy's last message that is in the stream.
    pub(crate) after_seq: u64,
    pub(crate) wire: WireFormat,
    pub(crate) started_at: SystemTime,
    pub(crate) rules: SessionRules,
    pub(crate) enclosure: ContainmentSpec,
    pub(crate) conversation: OpenConversation,
    pub(crate) journal: Option<SessionJournal>,
    /// Number in the log from which the proxy's message numbers continue.
    pub(crate) source_base: u64,
    pub(crate) slot: SessionSlot,
    /// What an earlier host began and did not see the end of, and the number of its turn.
    pub(crate) interrupted: Option<(AcceptedPrompt, u64)>,
    pub(crate) prices: SharedPrices,
}

/// Receiver of a start's result.
type StartResult = oneshot::Receiver<Result<()>>;

/// Number of messages in a chunk, after which the task yields, so that readers on the same thread do not fall behind.
pub(super) const LARGE: usize = 128;
/// Longest wait for the journal of a session that is over.
const JOURNAL_END: Duration = Duration::from_secs(2);

/// Name of the operation, for errors.
const LEASING: &str = "leasing a conversation";

/// Lease that a thread takes.
struct PendingLease {
    id: String,
    purpose: LeasePurpose,
    lease: Pin<Box<dyn Future<Output = Result<NewLease>> + Send>>,
}

/// Result of work that a thread did for the driver.
pub(crate) enum ThreadResult {
    /// The journal was written, or not.
    Journal(Option<io::Error>),
    /// The lease was taken, or not.
    Lease(Result<NewLease>),
}

/// Core of a session, with what its effects are carried out on.
pub(crate) struct SessionDriver {
    core: SessionCore,
    session: Arc<ManagedSession>,
    log: HistoryWriter,
    /// While present, events are committed with the record that follows them.
    together: Option<HeldCommit>,
    /// Successful answers, sent when the state they report is durable.
    answers: Vec<CallerReply>,
    /// Set by the log once it has the beginning of a prompt.
    written: Option<Arc<OnceLock<std::result::Result<(), LogError>>>>,
    /// Journal of its processes, if there is one.
    journal: Option<SessionJournal>,
    /// Last write to the journal, or its removal, once it is released.
    journal_end: Option<JournalResult>,
    /// True until the order to fork is free to be sent.
    holds_fork: bool,
    /// True if the proxy was requested unrecorded, in order to be ended: nothing is to be started in it.
    is_withheld: bool,
    conversation: OpenConversation,
    pending_lease: Option<PendingLease>,
    /// Leases to take after that one.
    next_leases: VecDeque<(String, LeasePurpose)>,
    /// True if the inbox may have complete messages: the last chunk was full, or they wait for the lease.
    has_unread: bool,
    /// Place among the sessions, until the session is over.
    slot: Option<SessionSlot>,
    /// Attempt for when the agent cannot resume the conversation.
    fallback: Option<Box<LaunchAttempt>>,
    /// Conversation whose database may be broken, which would keep the agent from any conversation.
    resumed: Option<ResumedConversation>,
    orders: VecDeque<ToForkServer>,
    /// Session to be swept by the host, in the place of a dead fork server.
    sweep: Option<JournalRecord>,
    /// Prices of models.
    prices: SharedPrices,
}

impl SessionDriver {
    /// Creates the driver of a session that is about to start.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if the configuration is too long to be sent: nothing was emitted then.
    pub(crate) fn start(
        session: Arc<ManagedSession>,
        mut log: HistoryWriter,
        launch: SessionLaunch,
        host: ProcessId,
    ) -> Result<(Box<Self>, StartResult)> {
        let SessionLaunch { attempt, fallback, resumed, enclosure, conversation, journal, slot, .. } = launch;
        let SessionLaunch { detach, prices, .. } = launch;
        let source_base = detach.map(|_| log.source());
        let rules = SessionRules::of(&attempt.config);
        let can_sweep = journal.is_some();
        let setup = CoreSetup { can_sweep, source_base, ..setup(&session, &log, host, rules, enclosure, &prices) };
        match SessionCore::new(setup, start_of(attempt), Instant::now()) {
            Ok((core, ready)) => {
                let mut driver = Self::new(core, session, log, conversation, journal, slot);
                (driver.fallback, driver.resumed, driver.holds_fork) = (fallback, resumed, true);
                driver.prices = prices;
                driver.carry_out(Instant::now());
                Ok((driver, ready))
            }
            Err(error) => {
                log.discard();
                Err(error)
            }
        }
    }

    /// Creates the driver of a session that another host started, and whose proxy is about to be handed over.
    ///
    /// # Errors
    /// None expected: the first message is short.
    pub(crate) fn adopt(
        session: Arc<ManagedSession>,
        log: HistoryWriter,
        adoption: SessionAdoption,
    ) -> Result<(Box<Self>, StartResult)> {
        let SessionAdoption { host, wire, rules, enclosure, started_at, after_seq, interrupted, .. } = adoption;
        let SessionAdoption { journal, conversation, slot, source_base, prices, .. } = adoption;
        let (can_sweep, source_base) = (journal.is_some(), Some(source_base));
        let setup =
            CoreSetup { wire, can_sweep, source_base, ..setup(&session, &log, host, rules, enclosure, &prices) };
        let now = Instant::now();
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let handover = HostHandover {
            after_seq,
            started: now.checked_sub(started_at.elapsed().unwrap_or_default()),
            processes: journal.as_ref().map_or_else(BTreeSet::new, |journal| journal.living().clone()),
            interrupted,
            last_request: u64::try_from(since.as_micros()).unwrap_or(u64::MAX >> 1),
        };
        let (core, ready) = SessionCore::adopt(setup, handover, now)?;
        let mut driver = Self::new(core, session, log, conversation, journal, Some(slot));
        driver.prices = prices;
        Ok((driver, ready))
    }

    /// Boxed: it is moved several times before it runs.
    fn new(
        core: SessionCore,
        session: Arc<ManagedSession>,
        log: HistoryWriter,
        conversation: OpenConversation,
        journal: Option<SessionJournal>,
        slot: Option<SessionSlot>,
    ) -> Box<Self> {
        if core.is_acknowledging() {
            log.notify_of_all();
        }
        Box::new(Self {
            core,
            session,
            log,
            together: None,
            answers: Vec::new(),
            written: None,
            journal,
            journal_end: None,
            holds_fork: false,
            is_withheld: false,
            conversation,
            pending_lease: None,
            next_leases: VecDeque::new(),
            has_unread: false,
            slot,
            fallback: None,
            resumed: None,
            orders: VecDeque::new(),
            sweep: None,
            prices: SharedPrices::default(),
        })
    }

    /// Discards an incarnation that does not begin: it emits nothing, and a suspended session stays suspended.
    pub(crate) fn call_off(&mut self) {
        self.log.discard();
        self.core.cancel();
    }

    pub(crate) fn core(&self) -> &SessionCore {
        &self.core
    }

    /// Bytes for the proxy.
    pub(crate) fn outbox(&mut self) -> &mut Outbox {
        self.core.outbox()
    }

    /// Returns true if bytes are to be written to the proxy now.
    pub(crate) fn has_output(&mut self) -> bool {
        let is_held = self.is_withheld || self.is_unrecorded();
        let outbox = self.core.outbox();
        if is_held { outbox.has_control() } else { !outbox.is_empty() }
    }

    fn is_unrecorded(&self) -> bool {
        self.journal.as_ref().is_some_and(SessionJournal::is_behind)
    }

    /// Returns true if orders for the fork server are to be sent now.
    pub(crate) fn sends_orders(&mut self) -> bool {
        if self.holds_fork && self.is_unrecorded() {
            if !self.core.is_ending() {
                return false;
            }
            self.is_withheld = true;
        }
        self.holds_fork = false;
        true
    }

    /// Takes the next order for the fork server.
    pub(crate) fn order(&mut self) -> Option<ToForkServer> {
        self.orders.pop_front()
    }

    /// Takes the session, if it is to be swept now.
    pub(crate) fn take_sweep(&mut self) -> Option<JournalRecord> {
        self.sweep.take()
    }

    /// Instant at which [`SessionCore::tick`] is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        let log = self.log.is_held().then(|| Instant::now() + RETRY);
        self.core.next().into_iter().chain(log).min()
    }

    /// Returns true if too much waits for the event log to read more from the proxy.
    pub(crate) fn is_behind(&self) -> bool {
        self.log.is_behind()
    }

    /// Gives the core an input, and carries out what it decides.
    pub(crate) fn feed(&mut self, input: impl FnOnce(&mut SessionCore, Instant)) {
        let now = self.observe();
        input(&mut self.core, now);
        self.carry_out(now);
    }

    /// Gives the core a command of the host's, after what the log has written by now.
    pub(crate) fn command(&mut self, command: SessionCommand) {
        self.report_written();
        self.feed(|core, now| core.command(command, now));
    }

    /// Gives the core a word of the fork server's.
    pub(crate) fn word(&mut self, word: Option<ForkServerEvent>) {
        self.feed(|core, now| match word {
            Some(word) => core.fork_server_event(word, now),
            None => core.guard_died(now),
        });
    }

    /// Gives the core the messages of its proxy that `inbox` has, a chunk at most. Returns their number.
    pub(crate) fn receive(&mut self, inbox: &mut Inbox) -> usize {
        let now = self.observe();
        let mut messages = 0;
        self.has_unread = true;
        while messages < LARGE && self.core.is_listening() && !self.waits_for_lease() {
            match self.core.next_message(inbox) {
                Ok(Some(ReceivedMessage::Understood(message))) => self.core.message(message, now),
                Ok(Some(ReceivedMessage::Unknown(text))) => self.core.unknown_message(&text),
                Ok(None) => {
                    self.has_unread = false;
                    break;
                }
                Err(error) => self.core.broken(ErrorChain(&error).to_string(), now),
            }
            self.carry_out(now);
            messages += 1;
        }
        self.commit();
        messages
    }

    /// Returns true while the proxy's messages are left unread for a lease.
    pub(crate) fn waits_for_lease(&self) -> bool {
        self.pending_lease.is_some() && !self.core.is_ending()
    }

    /// Returns true if the inbox may have messages that the last [`SessionDriver::receive`] left there.
    pub(crate) fn has_unread(&self) -> bool {
        self.has_unread
    }

    /// Records that this host leaves the proxy's messages unread: a silence is then not the proxy's.
    pub(crate) fn pause_health_check(&mut self) {
        self.core.pause_health_check();
    }

    /// Commits the batched events, unless that is delayed.
    pub(crate) fn commit(&mut self) {
        self.feed(SessionCore::commit);
        self.acknowledge();
    }

    /// Retries events for which the event log had no room, and reports its failure.
    pub(crate) fn look_at_log(&mut self) {
        if let Some(error) = self.log.push_failure() {
            tracing::error!(error = %ErrorChain(&error), "failed to append events to the log");
            let ends = self.log.ends_on_failure();
            self.feed(|core, now| core.log_failed(&ErrorChain(&error).to_string(), ends, now));
        } else if let Some(notice) = self.log.push_fleet_notice() {
            let (reason, ends) = match notice {
                FleetNotice::Degraded { reason, ends } => (reason, ends),
                FleetNotice::Recovered { .. } => (String::new(), false),
            };
            self.feed(|core, now| core.log_failed(&reason, ends, now));
        } else if self.log.is_held() {
            self.log.commit();
        }
        self.acknowledge();
    }

    fn acknowledge(&mut self) {
        if self.core.is_acknowledging() {
            self.core.acknowledge(self.log.durable_source());
        }
    }

    /// Reports to the core that the beginning of a prompt is in the log, if it is.
    pub(crate) fn report_written(&mut self) {
        self.feed(|_, _| {});
    }

    /// Has the changed processes written to the journal. Called before anything is sent.
    pub(crate) fn write_journal(&mut self) {
        if let Some(error) = self.journal.as_mut().and_then(SessionJournal::start_write) {
            self.thread_result(ThreadResult::Journal(Some(error)));
        }
    }

    /// Waits for the result of work that a thread does.
    pub(crate) async fn next_thread_result(&mut self) -> ThreadResult {
        let (journal, lease) = (&mut self.journal, &mut self.pending_lease);
        let written = async {
            match journal {
                Some(journal) => journal.written().await,
                None => pending().await,
            }
        };
        let leased = async {
            match lease {
                Some(pending) => pending.lease.as_mut().await,
                None => pending().await,
            }
        };
        tokio::select! {
            error = written => ThreadResult::Journal(error),
            lease = leased => ThreadResult::Lease(lease),
        }
    }

    /// Gives the core the result of work that a thread did.
    pub(crate) fn thread_result(&mut self, result: ThreadResult) {
        match result {
            ThreadResult::Journal(None) => {}
            ThreadResult::Journal(Some(error)) => {
                self.feed(|core, _| core.journal_failed(&ErrorChain(&error).to_string()));
            }
            ThreadResult::Lease(lease) => {
                let Some(PendingLease { id, purpose, .. }) = self.pending_lease.take() else { return };
                let leased = lease.map(|lease| self.conversation.leased(lease));
                let now = self.observe();
                self.leased(id, purpose, leased, now);
                while self.pending_lease.is_none()
                    && let Some((id, purpose)) = self.next_leases.pop_front()
                {
                    self.take_lease(id, purpose, now);
                }
                self.carry_out(now);
            }
        }
    }

    /// Waits until the journal of a session that is over is written or removed, or for [`JOURNAL_END`].
    pub(crate) async fn journal_ended(&mut self) {
        let Some(end) = self.journal_end.take() else { return };
        let session = self.session.id();
        match timeout(JOURNAL_END, end).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => {
                tracing::warn!(%session, error = %ErrorChain(&error), "failed to write or remove the journal of a session that is over");
            }
            Ok(Err(_)) => {
                tracing::warn!(%session, "dropped the journal of a session that is over: its thread panicked")
            }
            Err(_) => tracing::warn!(%session, "timed out waiting for the journal: the next manager may find it"),
        }
    }

    /// Takes the answers that wait for the record. Writes are committed with the answers' events while the guard is
    /// held.
    pub(crate) fn take_answers(&mut self) -> (Vec<CallerReply>, Option<HeldCommit>) {
        (std::mem::take(&mut self.answers), self.together.take())
    }

    /// Returns true if a change of the visible state is to be recorded now.
    pub(crate) fn is_to_be_noted(&mut self) -> bool {
        self.core.must_record()
    }

    /// Takes the attempt without the conversation, if it is due.
    pub(crate) fn next_attempt(&mut self) -> Option<Box<LaunchAttempt>> {
        let error = self.core.take_retry()?;
        self.carry_out(Instant::now());
        let mut attempt = self.fallback.take()?;
        attempt.restart_reason = Some(error.chain());
        Some(attempt)
    }

    /// Begins the second attempt, for a proxy that is forked now.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if the configuration is too long to be sent.
    pub(crate) fn begin_again(&mut self, attempt: LaunchAttempt) -> Result<()> {
        self.orders.clear();
        self.journal.iter_mut().for_each(SessionJournal::begin_again);
        (self.holds_fork, self.is_withheld) = (true, false);
        let now = self.observe();
        self.core.begin_retry(start_of(attempt), now)?;
        self.carry_out(now);
        Ok(())
    }

    fn observe(&mut self) -> Instant {
        self.core.observe(conditions(&self.session, &self.log, &self.prices));
        Instant::now()
    }

    fn carry_out(&mut self, now: Instant) {
        loop {
            while let Some(effect) = self.core.next_effect() {
                self.perform(effect, now);
            }
            let Some(written) = self.written.take_if(|written| written.get().is_some()) else { return };
            let written = written.get().cloned().unwrap_or(Ok(()));
            self.core.prompt_written(written.map_err(Error::from), now);
        }
    }

    fn perform(&mut self, effect: SessionEffect, now: Instant) {
        match effect {
            SessionEffect::Append { turn, event } => self.log.push(turn, event),
            SessionEffect::AppendTurn { turn, event, metadata } => self.log.push_with(turn, Some(metadata), event),
            SessionEffect::Record { turn, surface, event } => {
                self.journal.iter_mut().for_each(|journal| journal.record_event(&event));
                self.session.count(|tally| tally.record(&event));
                self.log.push_with(turn, surface.map(Envelope::metadata_of), event);
            }
            SessionEffect::AppendActions { turn, events, has_accepted_turn, reply } => {
                // A caller that has gone misses nothing.
                let tell = |kept: std::result::Result<u64, LogError>| _ = reply.send(kept.map_err(Error::from));
                self.session.queue().append(&mut self.log, turn, events, has_accepted_turn, tell);
            }
            SessionEffect::MoveCursor { consumer, offset } => self.log.move_cursor(consumer, offset),
            SessionEffect::MarkSource(source) => self.log.set_source(source),
            SessionEffect::CommitTogether => self.together = self.together.take().or_else(|| self.log.hold_commits()),
            SessionEffect::Commit => self.log.commit(),
            SessionEffect::CommitPrompt => {
                let written = Arc::new(OnceLock::new());
                self.written = Some(written.clone());
                self.log.commit_then(move |kept| _ = written.set(kept.map(drop)));
            }
            SessionEffect::LeaveOpen => self.log.keep_open(),
            SessionEffect::NoteProxy(process) => {
                self.journal.iter_mut().for_each(|journal| journal.proxy(process));
            }
            SessionEffect::NoteAgent(process) => {
                self.journal.iter_mut().for_each(|journal| journal.spawned(process));
            }
            SessionEffect::Show(change) => self.session.update_view(change),
            SessionEffect::Tally(change) => self.session.count(change),
            SessionEffect::Heard(at) => {
                self.session.count(|tally| (tally.last_heard, tally.metrics.missed_pings) = (at, 0));
            }
            SessionEffect::Close => self.session.closes(),
            SessionEffect::Reply(reply) => reply(),
            SessionEffect::ReplyDurably(reply) => self.answers.push(reply),
            SessionEffect::Lease { id, purpose } if self.pending_lease.is_some() => {
                self.next_leases.push_back((id, purpose));
            }
            SessionEffect::Lease { id, purpose } => self.take_lease(id, purpose, now),
            SessionEffect::KeepLease { proxy, outlives } => {
                self.conversation.set_keeper(LockKeeper { proxy, may_outlive_host: outlives })
            }
            SessionEffect::DropLease => self.conversation.reset_to_new(),
            SessionEffect::Diagnose(error) => {
                let error = self.diagnose(error);
                self.core.start_failed(error, self.fallback.is_some(), now);
            }
            SessionEffect::Order(order) => self.orders.push_back(order),
            SessionEffect::Claim { claim, reply } => {
                let assigned = self.slot.as_mut().map_or(Ok(()), |slot| slot.assign(claim.user()));
                match assigned {
                    Ok(()) => {
                        let event = claim.event();
                        self.session.set_claim(*claim);
                        self.core.claimed(event, reply, now);
                    }
                    // A caller that has gone misses nothing.
                    Err(error) => _ = reply.send(Err(error)),
                }
            }
            SessionEffect::FreeProxy => self.session.free_proxy(),
            SessionEffect::Sweep => self.sweep = self.journal.as_ref().map(SessionJournal::record),
            SessionEffect::KeepCrashes(crashes) => *self.session.crashes() = crashes,
            SessionEffect::Release { is_left, is_clean } => self.release(is_left, is_clean),
        }
    }

    /// Takes the lease of a conversation: at once where nobody else is to be asked, else in a thread.
    fn take_lease(&mut self, id: String, purpose: LeasePurpose, now: Instant) {
        match self.conversation.request_lease(&id) {
            None => self.leased(id, purpose, Ok(()), now),
            Some(request) => {
                let taken = blocking(LEASING, move || request.take());
                let after = self.session.deadlines().control;
                // A lease that is taken later is dropped, and so released.
                let lease = Box::pin(async move {
                    let late = |_| Error::Deadline { operation: LEASING.to_owned(), after };
                    timeout(after, taken).await.map_err(late)??
                });
                self.pending_lease = Some(PendingLease { id, purpose, lease });
            }
        }
    }

    fn leased(&mut self, id: String, purpose: LeasePurpose, leased: Result<()>, now: Instant) {
        match (purpose, leased) {
            (LeasePurpose::Start, leased) => self.core.leased_at_start(leased, now),
            (LeasePurpose::Switch, leased) => self.core.leased_by_agent(id, leased, now),
            // The session has the conversation regardless.
            (LeasePurpose::Adoption, Err(error)) => {
                tracing::warn!(%error, "failed to lease a conversation: it is open twice");
            }
            (LeasePurpose::Adoption, Ok(())) => {}
        }
    }

    /// Replaces the error of a start if a broken database caused it. The second attempt then renames the database, unless
    /// another session has it open.
    fn diagnose(&mut self, error: Error) -> Error {
        let (Some(resumed), Error::AgentDied { reason, .. }) = (self.resumed.take(), &error) else { return error };
        let Some(mut damaged) = resumed.database_damage(reason) else { return error };
        match self.conversation.neighbour() {
            None => {
                if let Some(attempt) = &mut self.fallback {
                    attempt.broken_database = Some(resumed);
                }
            }
            Some(other) => {
                self.fallback = None;
                damaged.reason.push_str(&format!(", and session {other} has it open: end that first"));
            }
        }
        damaged.into()
    }

    fn release(&mut self, is_left: bool, is_clean: bool) {
        if is_left {
            self.conversation.detach();
        } else {
            self.conversation.close();
        }
        self.slot = None;
        self.journal_end = match self.journal.take() {
            Some(journal) if is_clean => journal.remove(),
            Some(journal) => journal.close(),
            None => None,
        };
    }

    /// Records the end of the sweep. `None` where it could not be done.
    pub(crate) fn swept(&mut self, receipt: Option<Receipt>) {
        self.feed(|core, now| core.swept(receipt, now));
    }
}

impl Drop for SessionDriver {
    /// The task was dropped with its runtime.
    fn drop(&mut self) {
        self.feed(SessionCore::abandon);
    }
}

fn setup(
    session: &ManagedSession,
    log: &HistoryWriter,
    host: ProcessId,
    rules: SessionRules,
    enclosure: ContainmentSpec,
    prices: &SharedPrices,
) -> CoreSetup {
    CoreSetup {
        id: session.id().clone(),
        agent: session.metadata().agent.clone(),
        host,
        deadlines: *session.deadlines(),
        queue: session.queue().clone(),
        past: past(session, log),
        conditions: conditions(session, log, prices),
        rules,
        enclosure,
        wire: WireFormat::Bincode,
        can_sweep: false,
        is_warm: session.is_warm(),
        source_base: None,
    }
}

/// What earlier incarnations leave to this one.
fn past(session: &ManagedSession, log: &HistoryWriter) -> SessionPast {
    let (turns, native, is_kept, agent_status, model) = {
        let view = session.view.borrow();
        let NativeConversation { native_session_id, resumable, .. } = &view.conversation;
        let (status, model) = (view.agent_status.clone(), view.settings.model.clone());
        (view.turns, native_session_id.clone(), *resumable, status, model)
    };
    SessionPast {
        has_been: session.is_resumed(),
        turns,
        usage: session.metrics().usage,
        turn_usage: session.turn_usage(),
        crashes: session.crashes().clone(),
        native,
        is_kept,
        agent_status,
        model,
        batched: log.batched(),
    }
}

fn conditions(session: &ManagedSession, log: &HistoryWriter, prices: &SharedPrices) -> HostConditions {
    HostConditions {
        wall_clock: SystemTime::now(),
        is_draining: session.is_draining(),
        is_durable: log.is_durable(),
        prices: prices.table(),
    }
}

fn start_of(LaunchAttempt { config, command, preamble, restart_reason: anew, .. }: LaunchAttempt) -> AgentStart {
    AgentStart { config, command, preamble, anew }
}
