//! Calls of a fleet: see [`crate::replication`].

use std::{
    collections::BTreeSet,
    future::Future,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use agents::{AgentSpec, conversations::ConversationLocation};
use event_log::{LogError, OnCommit, ReadLimit, StreamOwnership, StreamPosition, gap_line};
use ipc_protocol::{EndReason, Envelope, Event, KillOptions, Receipt, SessionId};
use tokio::{
    sync::oneshot,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    ManagerInner, ProxyManager, SessionHandle, append::UnfinishedActions, session_commands::after_end_of,
    session_records::write_notice,
};
use crate::{
    blocking::{READING, blocking},
    description::SessionState,
    error::{Error, Result},
    history::{FleetNotice, SessionHistory},
    homes::HomeTenancy,
    replication::{
        ClaimError, ClaimPurpose, ConversationFile, Epoch, FencedSession, FleetChange, LeaseDeadline, ReplicatedStream,
        ReplicationState, SessionExport, TakeOver, UnacknowledgedEvents, conversation,
    },
    session::{ManagedSession, TranscriptCounts},
    session_store::{RecordState, SessionRecord, SessionStatus},
};

/// Longest wait, at the end of a manager, for the fleet to have the last events of its sessions.
const LAST_SHIPPING: Duration = Duration::from_secs(5);
/// Time between two looks at that.
const SHIPPING_PAUSE: Duration = Duration::from_millis(20);

/// Most events that are encoded again for the fleet, in the place of a look into the log.
const FEW_EVENTS: u64 = 64;

/// Encodes consecutive events for the fleet; `None` for what cannot be encoded.
fn lines_of(epoch: Epoch, first: u64, events: &[Arc<Envelope>]) -> Option<UnacknowledgedEvents> {
    let mut lines = Vec::new();
    for event in events {
        serde_json::to_writer(&mut lines, event.as_ref()).ok()?;
        lines.push(b'\n');
    }
    let count = events.len();
    Some(UnacknowledgedEvents { epoch, first, last: first + count as u64 - 1, lines, events: count })
}

/// Claim of a session that is about to start. Unless it is used, the session is forgotten again.
pub(super) struct SessionClaim {
    inner: Arc<ManagerInner>,
    id: SessionId,
    is_new: bool,
    is_used: bool,
}

impl SessionClaim {
    /// The session is in the manager's table: who removes it from there forgets it.
    pub(super) fn used(mut self) {
        self.is_used = true;
    }
}

impl Drop for SessionClaim {
    fn drop(&mut self) {
        if self.is_used || !self.is_new {
            return;
        }
        if let Some(log) = self.inner.streams.log.get()
            && log.head(&self.id).is_some_and(|head| head.last == 0)
        {
            log.delete(&self.id, Box::new(drop));
        }
        self.inner.notify_forgotten(&self.id);
    }
}

fn stream_of(session: SessionId, head: StreamPosition) -> Option<ReplicatedStream> {
    let StreamPosition { first, last, epoch, acknowledged, .. } = head;
    (epoch > 0).then_some(ReplicatedStream { session, epoch: Epoch(epoch), first, acknowledged, last })
}

impl ProxyManager {
    fn replication(&self) -> Result<&Arc<ReplicationState>> {
        self.ensure_ready("replicating sessions")?;
        self.inner.streams.replication.as_ref().ok_or_else(|| Error::InvalidConfig {
            field: "replication",
            reason: "this manager is in no fleet: build it with replication".to_owned(),
        })
    }

    /// The fleet, for calls that ship what there is: also while this manager ends.
    fn shipping(&self) -> Result<&Arc<ReplicationState>> {
        match self.replication() {
            Err(Error::ShutDown) => self.inner.streams.replication.as_ref().ok_or(Error::ShutDown),
            replication => replication,
        }
    }

    /// Waits until the fleet has the last events of all sessions, a while at most, and only while it answers. Those that it has not
    /// then are shipped by the next manager.
    pub(super) async fn finish_shipping(&self) {
        let Some(replication) = &self.inner.streams.replication else { return };
        self.flush_log().await;
        let is_shipped = || self.replicated_streams().iter().all(|stream| stream.acknowledged >= stream.last);
        let shipped = async {
            while !is_shipped() && !replication.is_out() {
                sleep(SHIPPING_PAUSE).await;
            }
        };
        if timeout(LAST_SHIPPING, shipped).await.is_err() || !is_shipped() {
            tracing::warn!(
                "the fleet does not have the last events of all sessions: they are shipped by the next start"
            );
        }
    }

    /// Lists the streams of sessions that were claimed here. Events of those with `acknowledged` below `last` are to be shipped.
    pub fn replicated_streams(&self) -> Vec<ReplicatedStream> {
        let log = self.inner.streams.log.get();
        let streams = log.map_or_else(Vec::new, |log| log.streams());
        streams.into_iter().filter_map(|(session, head)| stream_of(session, head)).collect()
    }

    /// Returns the stream of a session, if it was claimed here.
    pub fn replicated_stream(&self, session: &SessionId) -> Option<ReplicatedStream> {
        let head = self.inner.streams.log.get()?.head(session)?;
        stream_of(session.clone(), head)
    }

    /// Reads the events of a session that are committed and not acknowledged, from the first on: up to `events`, and about `bytes`
    /// bytes, and one where there is one. None of a session that was fenced.
    ///
    /// # Errors
    /// [`Error::Log`] for a session without a stream, and for one that cannot be read. Else see [`ProxyManager`].
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    pub async fn read_unacknowledged(
        &self,
        session: &SessionId,
        events: usize,
        bytes: usize,
    ) -> Result<UnacknowledgedEvents> {
        self.shipping()?;
        let log = self.inner.streams.log.get().ok_or(Error::ShutDown)?;
        let head = log.head(session).ok_or_else(|| LogError::Unknown { session: session.clone() })?;
        let history = self.inner.history_of(session);
        let is_fenced = history.as_ref().is_some_and(|history| history.is_fenced());
        let epoch = Epoch(head.epoch);
        if is_fenced || !head.is_unacknowledged() {
            return Ok(UnacknowledgedEvents { epoch, ..UnacknowledgedEvents::default() });
        }
        let (id, from) = (session.clone(), head.acknowledged);
        // A few that have just been committed are in memory still. Of many the log has the lines as they are.
        if head.last - from <= FEW_EVENTS
            && let Some(waiting) = history.and_then(|history| history.waiting_events(from + 1, events, bytes))
            && let Some(waiting) = lines_of(epoch, from + 1, &waiting)
        {
            return Ok(waiting);
        }
        let read = move || log.read_lines(&id, from, ReadLimit { events, bytes });
        let page = match READING.run("reading events for the fleet", read).await? {
            // The marker goes in their place, and what follows after it.
            Err(LogError::Corrupt { lost: Some(lost), .. }) => {
                let (last, lines) = (lost.to, gap_line(session, lost).into_bytes());
                return Ok(UnacknowledgedEvents { epoch, first: from + 1, last, lines, events: 1 });
            }
            page => page?,
        };
        // What retention took from the beginning is part of the range.
        Ok(UnacknowledgedEvents { epoch, first: from + 1, last: page.next, lines: page.bytes, events: page.events })
    }

    /// Notes that the fleet has the events of a session up to this offset: on return they are readable, and who waits for them is
    /// answered.
    ///
    /// # Errors
    /// [`Error::Log`] for a session that is not replicated, or has no such event; [`Error::Deadline`]. Else see [`ProxyManager`].
    ///
    /// # Cancel safety
    /// A dropped future may still take effect; call it again then.
    pub async fn acknowledge(&self, session: &SessionId, through: u64) -> Result<()> {
        self.shipping()?;
        let id = session.clone();
        self.inner.change_stream("acknowledging events", move |log, done| log.acknowledge(&id, through, done)).await?;
        match self.inner.history_of(session) {
            Some(history) => history.acknowledged(through),
            // Its events are read from the log only.
            None => self.inner.streams.all_sessions_waker.send_replace(()),
        }
        Ok(())
    }

    /// Tells whether the fleet can be reached, and why not. Sessions are degraded once it has been unavailable for
    /// [`Replication::degrade_after`](crate::replication::Replication::degrade_after).
    ///
    /// # Errors
    /// See [`ProxyManager`].
    pub fn set_fleet_available(&self, available: std::result::Result<(), String>) -> Result<()> {
        let replication = self.shipping()?;
        match replication.set_available(available) {
            FleetChange::None => {}
            FleetChange::OutageBegan(number) => {
                let (inner, after) = (Arc::downgrade(&self.inner), replication.settings().degrade_after);
                self.inner.runtime.handle().spawn(async move {
                    sleep(after).await;
                    let Some(inner) = inner.upgrade() else { return };
                    let degraded = inner.streams.replication.as_ref().and_then(|fleet| fleet.degrade(number));
                    if let Some((reason, ends)) = degraded {
                        tracing::error!(reason, ends, "sessions are degraded");
                        inner.notice(&FleetNotice::Degraded { reason, ends });
                    }
                });
            }
            FleetChange::Recovered(after) => {
                tracing::info!(?after, "sessions have recovered: the fleet is available");
                self.inner.notice(&FleetNotice::Recovered { after });
            }
        }
        Ok(())
    }

    /// Extends the lease on this manager's sessions. With the first call the fork server gets a dead man's switch: once the
    /// deadline has passed it ends all sessions, also while this process stands still, and starts none until the lease is extended.
    pub fn renew_lease(&self, deadline: LeaseDeadline) {
        self.inner.fork_servers.renew_lease(deadline);
        let adopted = self.inner.adopted_servers.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        adopted.iter().for_each(|server| server.renew_lease(deadline));
    }

    /// Gives a session up, since another manager of the fleet may have it. From the call on no event of it is offered, acknowledged
    /// or shown here; callers that wait for one get an error. Its processes are killed. Then its events that were never acknowledged
    /// are put aside (see `event_log::EventLog::read_put_aside`), and the session is forgotten. Its home is retained, until the
    /// session is deleted or taken over.
    ///
    /// # Errors
    /// [`Error::UnknownSession`]; [`Error::Survivors`] if processes survived the kill, [`Error::Deadline`] if that takes too long:
    /// call it again. [`Error::Log`].
    ///
    /// # Cancel safety
    /// Do not drop the future half-way: run it in a task of its own (`tokio::spawn`). Call it again if that happens.
    pub async fn fence(&self, session: &SessionId) -> Result<FencedSession> {
        self.replication()?;
        let known = self.inner.session_table.get(session).ok();
        let mut receipt = None;
        if let Some(known) = &known {
            known.history().fence();
            receipt = end_fenced(known).await?;
            // With its last events.
            self.flush_log().await;
        }
        let id = session.clone();
        let head = self.inner.streams.log.get().and_then(|log| log.head(session)).filter(|head| head.epoch > 0);
        if known.is_none() && head.is_none() && self.inner.roster.get(session).is_none() {
            return Err(Error::UnknownSession { session: id });
        }
        let put_aside = match head {
            Some(head) if head.is_unacknowledged() => {
                let from = head.acknowledged + 1;
                self.inner
                    .change_stream("putting events aside", move |log, done| log.put_aside(&id, from, done))
                    .await?;
                head.last - head.acknowledged
            }
            _ => 0,
        };
        self.inner.roster.forget(session);
        self.inner.session_table.remove(session);
        // Events of other sessions may have waited behind those.
        self.inner.streams.all_sessions_waker.send_replace(());
        tracing::warn!(%session, put_aside, "a session was fenced: another machine may have it");
        Ok(FencedSession { session: session.clone(), receipt, put_aside })
    }

    /// Fences all sessions of this manager at once, as [`ProxyManager::fence`] does: their kills run together.
    ///
    /// # Errors
    /// See [`ProxyManager::fence`], for each session.
    ///
    /// # Cancel safety
    /// As [`ProxyManager::fence`].
    pub async fn fence_all(&self) -> Vec<Result<FencedSession>> {
        let streams = self.replicated_streams().into_iter().map(|stream| stream.session);
        let sessions: BTreeSet<SessionId> =
            streams.filter(|session| self.inner.session_table.get(session).is_ok()).collect();
        let mut fencing = JoinSet::new();
        for session in sessions {
            let manager = self.clone();
            fencing.spawn(async move { manager.fence(&session).await });
        }
        fencing.join_all().await
    }

    /// Exports what another machine needs to go on with a session: its record, and the files of its conversation if they are in a
    /// home of its own. Best between turns: see [`Replicator::turn_ended`](crate::replication::Replicator::turn_ended).
    ///
    /// # Errors
    /// [`Error::UnknownSession`]; [`Error::UnknownAgent`]; [`Error::System`] for a home that cannot be read. Else see
    /// [`ProxyManager`].
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    pub async fn export_session(&self, session: &SessionId) -> Result<SessionExport> {
        let max_bytes = self.replication()?.settings().max_conversation_bytes;
        let known = self.inner.session_table.get(session)?;
        let (epoch, offset) =
            (self.replicated_stream(session).map_or(Epoch(0), |stream| stream.epoch), known.history().assigned());
        let record = Box::new(self.record(session)?);
        let own = {
            let (homes, id) = (self.inner.homes.clone(), session.clone());
            let home = record.home.clone().map(PathBuf::from);
            blocking("looking for a session's home", move || {
                homes.path(&id).map(|own| home.filter(|home| *home == own).map(|home| (homes.keys(&home), home)))
            })
            .await??
        };
        let Some((mut keys, home)) = own else {
            let reason = "the session has no home of its own, so its conversation stays on this machine".to_owned();
            return Ok(SessionExport { record, epoch, offset, conversation: Vec::new(), incomplete: Some(reason) });
        };
        let spec = self.agent_defaults().agent(&record.config)?.clone();
        let (records, id) = (self.inner.records.clone(), session.clone());
        let read = move || {
            let below = conversation_below(&spec, &home);
            keys.extend(records.read(&id).map(|record| record.keys).unwrap_or_default());
            conversation::read(&home, &below, &keys, max_bytes)
                .map_err(|error| Error::system(format!("reading the conversation in {}", home.display()), error))
        };
        let found = blocking("reading a session's conversation", read).await??;
        Ok(SessionExport { record, epoch, offset, conversation: found.files, incomplete: found.incomplete })
    }

    /// Takes over a session that another manager of the fleet had: its record, its conversation, and its stream from `tail + 1` on.
    /// Afterwards the session is suspended here, and its stream has a `session:suspended` that the fleet has acknowledged: so this
    /// returns only once the fleet's log took an event under the new epoch. Then call
    /// [`ProxyManager::resume_session`](ProxyManager::resume_session).
    ///
    /// # Errors
    /// [`Error::DuplicateSession`] if this manager has the session: fence it first; [`Error::InvalidConfig`] for one that has ended,
    /// and for a conversation with paths that lead out of its home; [`Error::System`]; [`Error::Log`], also for an epoch that is
    /// less than the stream's; [`Error::Deadline`] if the fleet does not acknowledge the event: the session is fenced then, as it is
    /// by [`ProxyManager::fence`] meanwhile ([`Error::Fenced`]).
    ///
    /// # Cancel safety
    /// Do not drop the future half-way: run it in a task of its own (`tokio::spawn`).
    pub async fn take_over(&self, taken: TakeOver) -> Result<SessionHandle> {
        self.replication()?;
        let ManagerInner { session_table, roster, streams, deadlines, .. } = &*self.inner;
        let TakeOver { export, epoch, tail, keeps_local_tail, recent_events } = taken;
        let SessionExport { record, conversation, .. } = export;
        let mut record = *record;
        let id = record.session_id.clone();
        let reserved = session_table.reserve(&id)?;
        if let Some(known) = roster.get(&id) {
            return Err(Error::DuplicateSession { session: id, status: known.status() });
        }
        if record.status() == SessionStatus::Ended {
            let reason = format!("session {id} has ended: there is nothing to go on with");
            return Err(Error::InvalidConfig { field: "session export", reason });
        }
        let tenancy = match record.home {
            Some(_) => Some(self.place_conversation(&id, conversation).await?),
            None => None,
        };
        record.home = tenancy.as_ref().map(|tenancy| tenancy.path().display().to_string());
        let reason = record.state.reason().cloned().unwrap_or(EndReason::HostDied);
        settle_record(&mut record, &reason, tail);
        let ownership = StreamOwnership { epoch: epoch.0, tail, keeps_tail: keeps_local_tail };
        let of = id.clone();
        self.inner
            .change_stream("taking over a stream", move |log, done| log.continue_from(&of, ownership, done))
            .await?;
        let (then, written) = write_notice();
        roster.add(record.clone(), then);
        let state = SessionState::suspended(reason.clone(), None);
        let count = TranscriptCounts::from_record(&record);
        let session = Arc::new(ManagedSession::restored(&record, state, &count, *deadlines, streams, roster));
        let written = self.await_written(&id, written).await;
        if let Err(error) = written.and_then(|()| session_table.insert(&session)) {
            roster.forget(&id);
            return Err(error);
        }
        tenancy.iter().for_each(HomeTenancy::retain);
        UnfinishedActions::of_last_owner(&recent_events).load(&session);
        let mut log = session.history().reopen();
        log.push(0, Event::SessionSuspended { reason, receipt: None });
        log.keep_open();
        drop((log, reserved));
        let history = session.history();
        let shown = timeout(deadlines.control, history.wait_readable(history.assigned())).await;
        if shown.is_err() && !history.is_fenced() {
            // Nobody knows whether the fleet took the event.
            self.fence(&id).await?;
            let operation = format!("having the fleet acknowledge that session {id} goes on here");
            return Err(Error::Deadline { operation, after: deadlines.control });
        }
        if history.is_fenced() {
            return Err(Error::Fenced { session: id });
        }
        self.inner.runtime.handle().spawn(after_end_of(Arc::downgrade(&self.inner), session.clone()));
        Ok(SessionHandle::new(session))
    }

    /// Makes the home of a session that is taken over, with its conversation. One that it left here earlier is removed.
    async fn place_conversation(&self, id: &SessionId, conversation: Vec<ConversationFile>) -> Result<HomeTenancy> {
        let (homes, id) = (self.inner.homes.clone(), id.clone());
        let place = move || {
            homes.delete(&id)?;
            let tenancy = homes.make(&id)?;
            conversation::write(tenancy.path(), &conversation).map_err(|error| {
                Error::system(format!("writing the conversation to {}", tenancy.path().display()), error)
            })?;
            Ok(tenancy)
        };
        blocking("writing a session's conversation", place).await?
    }

    /// Claims a session that is about to start, or to be resumed. `None` without a fleet.
    ///
    /// # Errors
    /// [`Error::NotOwner`], [`Error::FleetUnavailable`]; [`Error::Log`].
    pub(super) async fn claim(&self, id: &SessionId, before: Option<&ManagedSession>) -> Result<Option<SessionClaim>> {
        let Some(replication) = &self.inner.streams.replication else { return Ok(None) };
        let after = self.inner.deadlines.control;
        let purpose = if before.is_some() { ClaimPurpose::Resume } else { ClaimPurpose::Start };
        let claimed = timeout(after, replication.replicator().claim(id, purpose)).await;
        let Epoch(epoch) = match claimed {
            Err(_) => return Err(Error::Deadline { operation: format!("claiming session {id}"), after }),
            Ok(Ok(epoch)) => epoch,
            Ok(Err(ClaimError::Owned { owner })) => return Err(Error::NotOwner { session: id.clone(), owner }),
            Ok(Err(ClaimError::Unavailable { reason })) => return Err(Error::FleetUnavailable { reason }),
        };
        let claim =
            SessionClaim { inner: self.inner.clone(), id: id.clone(), is_new: before.is_none(), is_used: false };
        let head = self.inner.streams.log.get().and_then(|log| log.head(id)).unwrap_or_default();
        if head.epoch == epoch {
            return Ok(Some(claim));
        }
        // What was written before the session was replicated is the fleet's from now on.
        let tail = if head.epoch == 0 { 0 } else { head.acknowledged };
        let history = before.map(|before| before.history().clone()).or_else(|| self.inner.history_of(id));
        if let Some(history) = &history {
            history.replicate(tail);
        }
        let (of, ownership) = (id.clone(), StreamOwnership { epoch, tail, keeps_tail: true });
        self.inner.change_stream("claiming a stream", move |log, done| log.continue_from(&of, ownership, done)).await?;
        if head.last > tail {
            replication.replicator().committed(id, head.last);
        }
        Ok(Some(claim))
    }
}

impl ManagerInner {
    /// Has the fleet know that a session is about to be deleted.
    ///
    /// # Errors
    /// [`Error::FleetUnavailable`], [`Error::Deadline`].
    pub(super) async fn announce_deletion(&self, session: &SessionId) -> Result<()> {
        let head = self.streams.log.get().and_then(|log| log.head(session));
        let replicated = self.streams.replication.as_ref().filter(|_| head.is_some_and(|head| head.epoch > 0));
        let Some(replication) = replicated else { return Ok(()) };
        let after = self.deadlines.control;
        match timeout(after, replication.replicator().forgetting(session)).await {
            Err(_) => {
                Err(Error::Deadline { operation: format!("announcing the deletion of session {session}"), after })
            }
            // What another manager has is left to it.
            Ok(Ok(()) | Err(ClaimError::Owned { .. })) => Ok(()),
            Ok(Err(ClaimError::Unavailable { reason })) => Err(Error::FleetUnavailable { reason }),
        }
    }

    /// Notes that a session is known here no longer.
    pub(super) fn notify_forgotten(&self, session: &SessionId) {
        if let Some(replication) = &self.streams.replication {
            replication.replicator().forgotten(session);
        }
    }

    /// History of a session or a stream without one, as readers have it.
    fn history_of(&self, session: &SessionId) -> Option<Arc<SessionHistory>> {
        let of_session = self.session_table.get(session).ok().map(|session| session.history().clone());
        of_session.or_else(|| self.free_streams.history(session))
    }

    fn notice(&self, notice: &FleetNotice) {
        let living = self.session_table.all().into_iter().filter(|session| session.ended().is_none());
        living.for_each(|session| session.history().notice(notice.clone()));
    }

    /// Changes a stream in the log, and waits until that is durable.
    fn change_stream(
        &self,
        operation: &str,
        change: impl FnOnce(&event_log::EventLog, OnCommit),
    ) -> impl Future<Output = Result<()>> {
        let (done, changed) = oneshot::channel();
        let log = self.streams.log.get();
        if let Some(log) = &log {
            // The caller may have stopped waiting.
            change(log, Box::new(move |result| _ = done.send(result)));
        }
        let (after, operation) = (self.deadlines.control, operation.to_owned());
        async move {
            match timeout(after, changed).await {
                Ok(Ok(result)) => Ok(result?),
                // The log is closed.
                Ok(Err(_)) => Err(Error::ShutDown),
                Err(_) => Err(Error::Deadline { operation, after }),
            }
        }
    }
}

/// Ends what a fenced session has of processes, at once, and those of a resume in progress.
async fn end_fenced(session: &Arc<ManagedSession>) -> Result<Option<Box<Receipt>>> {
    session.give_up_queue(&Error::Fenced { session: session.id().clone() });
    let after = session.longest_kill(KillOptions::NOW);
    let stopped = |latest: &ManagedSession| match latest.is_suspended() {
        true => Ok(None),
        false => Ok(latest.ended().and_then(|(_, receipt)| receipt)),
    };
    let ended = session.end_current(KillOptions::NOW, &EndReason::Killed, stopped);
    let late = |_| Error::Deadline { operation: format!("ending session {}, which was fenced", session.id()), after };
    let receipt = timeout(after, ended).await.map_err(late)??;
    if let Some(receipt) = receipt.as_ref().filter(|receipt| !receipt.is_empty()) {
        return Err(Error::Survivors(receipt.clone()));
    }
    session.wait_settled().await?;
    Ok(receipt)
}

/// Path of the agent's conversations below the session's own home. Blocks.
fn conversation_below(spec: &AgentSpec, home: &Path) -> PathBuf {
    let shown = home.display().to_string();
    let env = [("HOME", shown.as_str())].into_iter().collect();
    let location = ConversationLocation::new(spec, &env, home);
    // In its canonical spelling, or in the one that is given.
    let canonical = home.canonicalize().unwrap_or_else(|_| home.to_owned());
    let files = location.files();
    let below = files.and_then(|files| files.strip_prefix(&canonical).or_else(|_| files.strip_prefix(home)).ok());
    // An agent that does not say where: all of its home.
    below.map_or_else(PathBuf::new, Path::to_owned)
}

/// Changes the record of another machine's session to that of a suspended one here.
fn settle_record(record: &mut SessionRecord, reason: &EndReason, tail: u64) {
    let handed_over = record.state.is_handed_over();
    record.state = RecordState::Suspended { reason: reason.clone(), handed_over };
    record.processes = Default::default();
    record.endpoint = record.config.endpoint.clone();
    // A path on the other machine.
    record.conversation.native_session_file = None;
    (record.waiting_for, record.queued, record.last_offset) = (None, 0, tail);
    record.updated_at = SystemTime::now();
}
