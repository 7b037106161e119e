//! Table of the manager's sessions.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ipc_protocol::SessionId;

use crate::{
    error::{Error, Result},
    history::{AddedHistories, AllSessionsWaker, ForgottenHistory, HistoryTable},
    runtime::HomeRuntime,
    session::{LiveSessions, ManagedSession},
    session_store::{RecordState, SessionStatus},
};

/// All sessions of a manager, alive and ended, in starting order.
#[derive(Debug)]
pub(crate) struct SessionTable {
    entries: Mutex<TableEntries>,
    all_sessions_waker: AllSessionsWaker,
    /// Number of ended sessions that are remembered.
    max_ended: usize,
    /// Runtime of its manager; `None` in tests.
    runtime: Option<HomeRuntime>,
}

#[derive(Debug, Default)]
struct TableEntries {
    closed: bool,
    last: u64,
    sessions: BTreeMap<u64, Arc<ManagedSession>>,
    by_id: HashMap<Arc<SessionId>, u64>,
    /// Ids of sessions about to be added or being deleted.
    reserved: HashSet<SessionId>,
    ended: VecDeque<u64>,
    forgotten: VecDeque<ForgottenHistory>,
}

/// Reservation of an id: nobody else starts or deletes a session with it while this lives.
#[derive(Debug)]
pub(crate) struct IdReservation {
    directory: Arc<SessionTable>,
    id: SessionId,
}

impl Drop for IdReservation {
    fn drop(&mut self) {
        self.directory.entries().reserved.remove(&self.id);
    }
}

/// Maximum number of forgotten sessions that are remembered by id.
const MAX_FORGOTTEN: usize = 10_000;

impl TableEntries {
    fn forget(&mut self, serial: u64) {
        let Some(session) = self.sessions.remove(&serial) else { return };
        if self.by_id.get(session.id()) == Some(&serial) {
            self.by_id.remove(session.id());
        }
        let last_offset = session.history().last_offset();
        self.forgotten.push_back(ForgottenHistory { serial, session: session.shared_id(), last_offset });
        if self.forgotten.len() > MAX_FORGOTTEN {
            self.forgotten.pop_front();
        }
    }
}

/// Creates the error for the id of `known`, which is in use.
fn duplicate(known: &ManagedSession) -> Error {
    Error::DuplicateSession { session: known.id().clone(), status: RecordState::from(&known.info().state).status() }
}

impl SessionTable {
    pub(crate) fn new(max_ended: usize) -> Self {
        Self { entries: Mutex::default(), all_sessions_waker: AllSessionsWaker::default(), max_ended, runtime: None }
    }

    /// Sets the runtime of the sessions' tasks.
    pub(crate) fn in_runtime(self, runtime: HomeRuntime) -> Self {
        Self { runtime: Some(runtime), ..self }
    }

    fn entries(&self) -> MutexGuard<'_, TableEntries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves an id for a session that is about to be added.
    ///
    /// # Errors
    /// [`Error::DuplicateSession`] if a session with that id exists, unless it never became ready; [`Error::ShutDown`].
    pub(crate) fn reserve(self: &Arc<Self>, id: &SessionId) -> Result<IdReservation> {
        self.reserve_in(self.open_entries()?, id)
    }

    /// Reserves an id like [`SessionTable::reserve`], also in a table that is closed.
    ///
    /// # Errors
    /// [`Error::DuplicateSession`].
    pub(crate) fn reserve_for_command(self: &Arc<Self>, id: &SessionId) -> Result<IdReservation> {
        self.reserve_in(self.entries(), id)
    }

    fn open_entries(&self) -> Result<MutexGuard<'_, TableEntries>> {
        let entries = self.entries();
        if entries.closed { Err(Error::ShutDown) } else { Ok(entries) }
    }

    fn reserve_in(
        self: &Arc<Self>,
        mut entries: MutexGuard<'_, TableEntries>,
        id: &SessionId,
    ) -> Result<IdReservation> {
        let known = entries.by_id.get(id).and_then(|serial| entries.sessions.get(serial));
        if let Some(known) = known.filter(|known| !known.is_stillborn()) {
            return Err(duplicate(known));
        }
        if !entries.reserved.insert(id.clone()) {
            return Err(Error::DuplicateSession { session: id.clone(), status: SessionStatus::Starting });
        }
        Ok(IdReservation { directory: self.clone(), id: id.clone() })
    }

    /// Reserves the id of a session whose start failed, while its remains are deleted. `None` if another caller has
    /// reserved it, or another session has it by now.
    pub(crate) fn reserve_failed(self: &Arc<Self>, session: &Arc<ManagedSession>) -> Option<IdReservation> {
        let mut entries = self.entries();
        let known = entries.by_id.get(session.id()).and_then(|serial| entries.sessions.get(serial));
        let is_it = known.is_some_and(|known| Arc::ptr_eq(known, session) && known.is_stillborn());
        let reserves = is_it && entries.reserved.insert(session.id().clone());
        reserves.then(|| IdReservation { directory: self.clone(), id: session.id().clone() })
    }

    /// Reserves an id while the remains of its session are deleted. Also returns that session, if it is remembered.
    ///
    /// # Errors
    /// [`Error::NotEnded`] if the session has not ended, or one with that id is about to start.
    pub(crate) fn reserve_ended(
        self: &Arc<Self>,
        id: &SessionId,
    ) -> Result<(IdReservation, Option<Arc<ManagedSession>>)> {
        let mut entries = self.entries();
        let known = entries.by_id.get(id).and_then(|serial| entries.sessions.get(serial)).cloned();
        let lives = known.as_ref().is_some_and(|known| known.ended().is_none());
        if lives || !entries.reserved.insert(id.clone()) {
            return Err(Error::NotEnded { session: id.clone() });
        }
        Ok((IdReservation { directory: self.clone(), id: id.clone() }, known))
    }

    /// Reserves the id of a suspended session that is about to be resumed or ended.
    ///
    /// # Errors
    /// [`Error::UnknownSession`]; [`Error::NotSuspended`] if the session lives, has ended, or another caller has
    /// reserved it; [`Error::ShutDown`].
    pub(crate) fn reserve_suspended(self: &Arc<Self>, id: &SessionId) -> Result<(IdReservation, Arc<ManagedSession>)> {
        let mut entries = self.open_entries()?;
        let known = entries.by_id.get(id).and_then(|serial| entries.sessions.get(serial)).cloned();
        let known = known.ok_or_else(|| Error::UnknownSession { session: id.clone() })?;
        if !known.is_suspended() || !entries.reserved.insert(id.clone()) {
            return Err(Error::NotSuspended { session: id.clone() });
        }
        Ok((IdReservation { directory: self.clone(), id: id.clone() }, known))
    }

    /// Replaces a suspended session by its resumed one.
    ///
    /// # Errors
    /// [`Error::UnknownSession`], [`Error::ShutDown`].
    pub(crate) fn replace(self: &Arc<Self>, session: &Arc<ManagedSession>) -> Result<()> {
        let mut entries = self.open_entries()?;
        let serial = entries.by_id.get(session.id()).copied();
        let serial = serial.ok_or_else(|| Error::UnknownSession { session: session.id().clone() })?;
        entries.sessions.insert(serial, session.clone());
        session.set_table_entry(self.clone(), serial);
        Ok(())
    }

    /// Adds a session. Replaces a session with that id that never became ready.
    pub(crate) fn insert(self: &Arc<Self>, session: &Arc<ManagedSession>) -> Result<()> {
        self.insert_in(self.open_entries()?, session)
    }

    /// Adds a session like [`SessionTable::insert`], also to a table that is closed.
    ///
    /// # Errors
    /// [`Error::DuplicateSession`].
    pub(crate) fn insert_command(self: &Arc<Self>, session: &Arc<ManagedSession>) -> Result<()> {
        self.insert_in(self.entries(), session)
    }

    fn insert_in(
        self: &Arc<Self>,
        mut entries: MutexGuard<'_, TableEntries>,
        session: &Arc<ManagedSession>,
    ) -> Result<()> {
        if let Some(serial) = entries.by_id.get(session.id()).copied() {
            if let Some(known) = entries.sessions.get(&serial).filter(|known| !known.is_stillborn()) {
                return Err(duplicate(known));
            }
            entries.forget(serial);
        }
        entries.last += 1;
        let serial = entries.last;
        entries.sessions.insert(serial, session.clone());
        entries.by_id.insert(session.shared_id(), serial);
        session.set_table_entry(self.clone(), serial);
        drop(entries);
        self.all_sessions_waker.send_replace(());
        Ok(())
    }

    /// Forgets a session that has ended.
    pub(crate) fn delete(&self, id: &SessionId) {
        let mut entries = self.entries();
        let Some(serial) = entries.by_id.get(id).copied() else { return };
        if entries.sessions.get(&serial).is_some_and(|session| session.ended().is_some()) {
            entries.forget(serial);
        }
    }

    /// Forgets a session, in whatever state it is.
    pub(crate) fn remove(&self, id: &SessionId) {
        let mut entries = self.entries();
        if let Some(serial) = entries.by_id.get(id).copied() {
            entries.forget(serial);
        }
    }

    pub(crate) fn get(&self, id: &SessionId) -> Result<Arc<ManagedSession>> {
        let entries = self.entries();
        let session = entries.by_id.get(id).and_then(|serial| entries.sessions.get(serial));
        session.cloned().ok_or_else(|| Error::UnknownSession { session: id.clone() })
    }

    /// All sessions, in starting order.
    pub(crate) fn all(&self) -> Vec<Arc<ManagedSession>> {
        self.entries().sessions.values().cloned().collect()
    }

    /// Refuses new sessions from now on.
    pub(crate) fn close(&self) {
        self.entries().closed = true;
        self.all_sessions_waker.send_replace(());
    }

    /// Notifies readers of all sessions.
    pub(crate) fn all_sessions_waker(&self) -> &AllSessionsWaker {
        &self.all_sessions_waker
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.entries().closed
    }
}

impl HistoryTable for SessionTable {
    fn everyone(&self) -> &AllSessionsWaker {
        self.all_sessions_waker()
    }

    fn is_closed(&self) -> bool {
        self.is_closed()
    }

    fn added_since(&self, seen: &mut u64) -> AddedHistories {
        let entries = self.entries();
        if *seen == entries.last {
            return AddedHistories::default();
        }
        let later = *seen + 1;
        let histories = entries.sessions.range(later..).map(|(_, session)| session.history().clone()).collect();
        let forgotten = entries.forgotten.iter().filter(|forgotten| forgotten.serial >= later).cloned().collect();
        *seen = entries.last;
        AddedHistories { histories, forgotten }
    }
}

impl LiveSessions for SessionTable {
    fn is_closed(&self) -> bool {
        self.is_closed()
    }

    fn runtime(&self) -> Option<HomeRuntime> {
        self.runtime.clone()
    }

    /// Also forgets the sessions that ended longest ago. A suspended session stays.
    fn mark_ended(&self, serial: u64) {
        let mut entries = self.entries();
        if entries.sessions.get(&serial).is_some_and(|session| session.is_suspended()) {
            return;
        }
        entries.ended.push_back(serial);
        while entries.ended.len() > self.max_ended
            && let Some(oldest) = entries.ended.pop_front()
        {
            entries.forget(oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ipc_protocol::{EndReason, Event, OffsetGap};
    use tokio::time::timeout;

    use super::*;
    use crate::{
        deadlines::Deadlines,
        description::{SessionDescription, SessionRemains, SessionState},
        history::{HistoryWriter, StreamContext, Subscription},
    };

    fn session(directory: &Arc<SessionTable>, id: &str) -> (Arc<ManagedSession>, HistoryWriter) {
        let description = SessionDescription::new(id.parse().expect("a valid id"), "a".into(), "/".into());
        let streams =
            StreamContext { all_sessions_waker: directory.all_sessions_waker().clone(), ..StreamContext::default() };
        let (session, _, log) = ManagedSession::new(description, Deadlines::default(), &streams, &Arc::default());
        (session, log)
    }

    async fn next(all: &mut Subscription) -> Option<(String, u64, Option<OffsetGap>)> {
        let envelope = timeout(Duration::from_secs(10), all.next()).await.expect("in time")?;
        let gap = if let Event::SessionGap(gap) = envelope.event { Some(gap) } else { None };
        Some((envelope.session.to_string(), envelope.offset, gap))
    }

    #[tokio::test]
    async fn one_subscription_sees_all_sessions_and_what_it_missed() {
        let directory = Arc::new(SessionTable::new(1));
        let (first, mut first_log) = session(&directory, "first");
        directory.insert(&first).expect("free");
        first_log.push(0, Event::SessionIdle {});
        first_log.commit();
        let mut all = Subscription::all(directory.clone(), false);
        assert_eq!(next(&mut all).await, Some(("first".into(), 1, None)));
        // Two more begin and end before it looks again; only one ended session is remembered.
        for id in ["second", "third"] {
            let (session, mut log) = session(&directory, id);
            directory.insert(&session).expect("free");
            log.push(0, Event::SessionIdle {});
            log.push(0, Event::SessionIdle {});
            drop(log);
            session.leave_table();
        }
        drop(first_log);
        first.leave_table();
        directory.close();
        let mut rest = Vec::new();
        while let Some(got) = next(&mut all).await {
            rest.push(got);
        }
        rest.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
        let gap = Some(OffsetGap { from: 1, to: 2 });
        assert_eq!(rest, [("second".to_owned(), 2, gap), ("third".to_owned(), 2, gap)]);
        assert_eq!(directory.all().len(), 1);
    }

    #[tokio::test]
    async fn ids_are_free_again_only_where_a_session_never_was_ready() {
        let directory = Arc::new(SessionTable::new(10));
        let (failed, _log) = session(&directory, "s");
        directory.insert(&failed).expect("free");
        let (again, _log) = session(&directory, "s");
        assert!(matches!(directory.insert(&again), Err(Error::DuplicateSession { .. })), "it still starts");
        let remains = SessionRemains::Nothing;
        failed
            .update_view(|view| view.state = SessionState::Ended { reason: EndReason::Killed, receipt: None, remains });
        directory.insert(&again).expect("the first never was ready");
        assert_eq!(directory.all().len(), 1);
        again.update_view(|view| view.state = SessionState::ended(EndReason::Killed, None));
        let (third, _log) = session(&directory, "s");
        assert!(matches!(directory.insert(&third), Err(Error::DuplicateSession { .. })));
        directory.close();
        let (late, _log) = session(&directory, "t");
        assert!(matches!(directory.insert(&late), Err(Error::ShutDown)));
    }
}
