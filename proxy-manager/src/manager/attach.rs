//! Adopts sessions that outlived an earlier host of the same state directory, while the manager is built.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Arc, PoisonError},
};

use ipc_protocol::{
    AgentSessionConfig, EnvVars, ErrorChain, HostDeath, ProcessId, SessionId,
    message::{DetachSpec, DetachedSession},
};
use tokio::{sync::oneshot, time::timeout};

use super::{
    ManagerInner, ProxyManager,
    append::{UnfinishedActions, act_on_missed, find_undone_in},
    session_records::read_stream,
};
use crate::{
    blocking::blocking,
    error::{Error, Result},
    fork_server::ForkServer,
    launch::{ConversationOrigin, HandoffRecord, OpenConversation, StartAftermath},
    session::{ForkRequest, ManagedSession, SessionAdoption, SessionRules, SessionTask, TranscriptCounts, sockets},
    session_store::{SessionRecord, own_config},
    state::{
        self, JournalHeader, JournalRecord, RecoveredSession, SessionJournal, StateDir,
        detached_search::{self, AdoptedForkServer, DetachedSearch},
    },
    supervision::SlotClaim,
};

/// Maximum number of newest events counted after a session's last record. A record is written at the beginning and the
/// end of a turn.
const MAX_COUNTED: u64 = 2_000;

/// Live sessions that an earlier host left.
#[derive(Debug, Default)]
pub(super) struct OutlivedSessions {
    found: Vec<AdoptedForkServer>,
    /// Journals by session.
    journals: BTreeMap<SessionId, SessionJournal>,
    /// Names of all live sessions, including those that another host has.
    living: BTreeSet<String>,
    /// True if another host has some.
    has_others: bool,
}

impl OutlivedSessions {
    /// Adopts live sessions, and ends what the others left. Blocks.
    pub(super) fn find(
        state: &StateDir,
        engine_env: &EnvVars,
        directory: &Path,
        host: ProcessId,
    ) -> (Self, Vec<RecoveredSession>) {
        let DetachedSearch { found, others } = detached_search::find(directory, host);
        let lives = |session: &SessionId, server: ProcessId| {
            let server = found.iter().find(|found| found.process == server);
            server.is_some_and(|server| server.sessions.iter().any(|detached| detached.session == *session))
        };
        let mut journals = BTreeMap::new();
        let mut spared = BTreeSet::new();
        let mut recovered = state::recover(state, engine_env, &mut |name: &str, record: &mut JournalRecord| {
            let JournalHeader { session, fork_server, .. } = &record.header;
            if others.contains(fork_server) {
                spared.insert(session.to_string());
                return true;
            }
            let lives = lives(session, *fork_server);
            if lives {
                let record = record.clone();
                let journal = SessionJournal::adopt(state.sessions.clone(), name.to_owned(), record, host);
                journals.insert(session.clone(), journal);
            } else if found.iter().any(|found| found.process == *fork_server) {
                // This fork server ends this session, and guards others.
                record.fork_server = None;
            }
            lives
        });
        let names = found.iter().flat_map(|found| &found.sessions).map(|detached| detached.session.to_string());
        spared.extend(names);
        detached_search::take_end_records(directory, |session| spared.contains(session), &mut recovered);
        let has_others = !others.is_empty();
        (Self { found, journals, living: spared, has_others }, recovered)
    }

    /// Returns true if a live session has this home, or may have it: its keys stay.
    pub(super) fn is_home_in_use(&self, home: &Path) -> bool {
        let sessions = self.found.iter().flat_map(|found| &found.sessions);
        let descriptions = sessions.map(|detached| HandoffRecord::read(&detached.card).description(&detached.session));
        self.has_others
            || descriptions
                .into_iter()
                .any(|one| one.metadata.home.as_deref().is_some_and(|used| Path::new(used) == home))
    }

    /// Returns true if a session with that name lives, or may live.
    pub(super) fn may_be_living(&self, session: &str) -> bool {
        self.has_others || self.living.contains(session)
    }

    /// Returns true if a session lives, and is not to be restored from its record.
    pub(super) fn is_living(&self, session: &SessionId) -> bool {
        self.living.contains(session.as_str())
    }
}

/// Session that is being adopted.
struct IncomingSession {
    session: Arc<ManagedSession>,
    aftermath: Arc<StartAftermath>,
    ready: oneshot::Receiver<Result<()>>,
    /// Actions that earlier hosts accepted and did not do.
    undone: UnfinishedActions,
}

impl ProxyManager {
    /// Adopts the sessions that were found. A session that cannot be adopted is left alone, for a later manager.
    pub(super) async fn reattach(&self, outlived: OutlivedSessions, host: ProcessId) {
        let OutlivedSessions { found, mut journals, .. } = outlived;
        let mut coming = Vec::new();
        for AdoptedForkServer { process, control, wire, sessions } in found {
            let server = match ForkServer::adopt(process, host, control, wire, &self.inner.deadlines) {
                Ok(server) => server,
                Err(error) => {
                    tracing::warn!(fork_server = %process, error = %error.chain(), "failed to adopt detached sessions");
                    continue;
                }
            };
            for detached in sessions {
                let (id, journal) = (detached.session.clone(), journals.remove(&detached.session));
                let before = match self.inner.roster.get(&id) {
                    Some(record) => {
                        let count = self.inner.restore_counts(&record).await;
                        Some((record, count))
                    }
                    None => None,
                };
                let undone = match self.inner.streams.log.get() {
                    Some(log) => {
                        let last = log.head(&id).map_or(0, |head| head.last);
                        find_undone_in(log, &id, last).await.unwrap_or_else(|error| {
                            tracing::warn!(session = %id, error = %error.chain(), "actions may be missed");
                            UnfinishedActions::default()
                        })
                    }
                    None => UnfinishedActions::default(),
                };
                match self.adopt_session(&server, detached, journal, before, undone).await {
                    Ok(session) => coming.push(self.finish_adoption(session).await),
                    Err(error) => {
                        tracing::warn!(session = %id, error = %error.chain(), "failed to adopt a detached session")
                    }
                }
            }
            self.inner.adopted_servers.lock().unwrap_or_else(PoisonError::into_inner).push(server);
        }
        let all = async {
            for came in coming {
                // A session that has ended is not waited for.
                let _ = came.await;
            }
        };
        let patience = self.inner.deadlines.control;
        if timeout(patience, all).await.is_err() {
            tracing::warn!("timed out adopting detached sessions after {patience:?}: the rest may follow");
        }
    }

    /// Sees to a session once it is ready, however long that takes, and then does what its last host had no time for: that comes
    /// before anything that this one is asked for. What is given back resolves in between, or when it has ended.
    async fn finish_adoption(
        &self,
        IncomingSession { session, aftermath, ready, undone }: IncomingSession,
    ) -> oneshot::Receiver<()> {
        let (tell, came) = oneshot::channel();
        let manager = Arc::downgrade(&self.inner);
        let row = session.clone();
        let welcome = async move {
            match ready.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    return tracing::warn!(session = %session.id(), error = %error.chain(), "detached session ended before its adoption");
                }
                Err(_) => return tracing::warn!(session = %session.id(), "detached session ended before its adoption"),
            }
            session.note_when_ready(&aftermath).await;
            aftermath.started().await;
            let id = session.id().clone();
            // Its task holds the session: a session detached meanwhile is not held here.
            drop(session);
            let Some(inner) = manager.upgrade() else { return };
            inner.reattached.lock().unwrap_or_else(PoisonError::into_inner).push(id.clone());
            drop(inner);
            // The build may have stopped waiting.
            let _ = tell.send(());
            act_on_missed(&manager, &id, undone).await;
        };
        row.row().run_first(welcome).await;
        came
    }

    async fn adopt_session(
        &self,
        server: &Arc<ForkServer>,
        detached: DetachedSession,
        journal: Option<SessionJournal>,
        before: Option<(SessionRecord, TranscriptCounts)>,
        mut undone: UnfinishedActions,
    ) -> Result<IncomingSession> {
        let ManagerInner {
            session_table: directory,
            deadlines,
            streams,
            roster,
            homes,
            records,
            conversation_locks: leases,
            ..
        } = &*self.inner;
        let DetachedSession { session: id, process: proxy, card } = detached;
        let handoff = HandoffRecord::read(&card);
        let _reserved = directory.reserve(&id)?;
        let mut description = handoff.description(&id);
        let started_at = description.metadata.started_at;
        before.iter().for_each(|(record, _)| description.metadata.started_at = record.created_at);
        let metadata = description.metadata.clone();
        let find = {
            let (records, homes, id) = (records.clone(), homes.clone(), id.clone());
            let (home, keys) = (metadata.home.as_deref().map(PathBuf::from), handoff.keys.clone());
            move || {
                // Recorded once the session was ready; else the handoff record has them.
                let keys = records.read(&id).map_or(keys, |record| record.keys);
                StartAftermath::adopted(records, &homes, &id, home.as_deref(), keys)
            }
        };
        let aftermath = Arc::new(blocking("looking for the home of a detached session", find).await?);
        let (ours, theirs) = sockets()?;
        let head = streams.log.get().and_then(|log| log.head(&id)).unwrap_or_default();
        let (session, inlets, log) = ManagedSession::new(description, *deadlines, streams, roster);
        before.iter().for_each(|(record, count)| session.restore_state(record, count));
        let config = before.map(|(record, _)| own_config(&record));
        let lifecycle = config.as_ref().map(|(config, _)| config.lifecycle.clone()).unwrap_or_default();
        let budget = config.as_ref().map(|(config, _)| config.budget).unwrap_or_default();
        config.into_iter().for_each(|(config, absent)| session.set_config(config, absent));
        let claim = SlotClaim { user: metadata.user_id, agent: metadata.agent.clone() };
        let slot = self.inner.admission.take(claim);
        let conversation = OpenConversation::new(
            leases.clone(),
            handoff.family.clone(),
            handoff.store.clone(),
            metadata.agent,
            id,
            ConversationOrigin::Adopted,
        )
        .within(metadata.home.is_some());
        // Without its journal it is known from now on, by its marker and its proxy.
        let journal = journal.unwrap_or_else(|| {
            let mut journal = self.journal_of(session.id().clone(), &handoff.enclosure, server.id());
            journal.began_with(proxy);
            journal
        });
        let adoption = SessionAdoption {
            native_files: handoff.native_files.clone(),
            proxy,
            host: server.host(),
            after_seq: head.source.saturating_sub(handoff.source_base),
            wire: server.wire(),
            started_at,
            rules: SessionRules {
                max_prompts: handoff.max_prompts,
                limits: handoff.limits,
                timeouts: handoff.timeouts,
                lifecycle,
                budget,
                on_usage_limit: handoff.on_usage_limit,
                is_visit: session.is_visited(),
                surface: session.metadata().surface,
            },
            enclosure: handoff.enclosure,
            conversation,
            journal: Some(journal),
            source_base: handoff.source_base,
            slot,
            interrupted: undone.take_begun(),
            prices: self.agent_defaults().prices.clone(),
        };
        // Before its task is there: what waits comes before anything else.
        let undone = undone.load(&session);
        let (task, ready) = SessionTask::adopt(session.clone(), inlets, log, adoption, ours, aftermath.clone())?;
        session.update_view(|view| view.processes.proxy = Some(proxy));
        directory.insert(&session)?;
        let life = task.run(ForkRequest { server: server.clone(), socket: theirs });
        tokio::spawn(self.run_incarnation(life, &session));
        Ok(IncomingSession { session, aftermath, ready, undone })
    }

    /// Creates the detach settings of a session that may outlive this host.
    pub(super) async fn detach_spec(&self, config: &AgentSessionConfig) -> Result<Option<Box<DetachSpec>>> {
        let HostDeath::Detach { fetch_within_ms, spool_bytes } = config.on_host_death else { return Ok(None) };
        let refused = |reason: &str| Error::InvalidConfig { field: "onHostDeath", reason: reason.to_owned() };
        let state =
            self.inner.state.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|state| state.path.clone());
        let state = state.ok_or_else(|| {
            refused("a session can only outlive its host where the manager has a state directory: give it one")
        })?;
        let make = move || state::directory_in(&state, "detached");
        let directory = blocking("making the directory of detached sessions", make).await??;
        let directory = directory.into_os_string().into_string();
        let directory = directory.map_err(|_| refused("the state directory's path is not UTF-8: name another one"))?;
        Ok(Some(Box::new(DetachSpec { directory, fetch_within_ms, spool_bytes })))
    }

    /// Sessions that an earlier manager with this state directory started (`on_host_death`), and this one adopted.
    /// Those that take longer than [`Deadlines::control`](crate::Deadlines::control) appear after the build.
    pub fn reattached(&self) -> Vec<SessionId> {
        self.inner.reattached.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ManagerInner {
    /// Counts the activity of a session that lived with an earlier host: from its record, and the events appended after
    /// that.
    pub(super) async fn restore_counts(&self, record: &SessionRecord) -> TranscriptCounts {
        let mut count = TranscriptCounts::from_record(record);
        let Some(log) = self.streams.log.get() else { return count };
        let (id, recorded) = (record.session_id.clone(), record.last_offset);
        let counting = move || {
            let last = log.head(&id).map_or(0, |head| head.last);
            for envelope in read_stream(&log, &id, recorded.max(last.saturating_sub(MAX_COUNTED))) {
                match envelope {
                    Ok(envelope) => count.record(&envelope),
                    Err(error) => {
                        tracing::warn!(session = %id, error = %ErrorChain(&error), "failed to count the last events of a session");
                        break;
                    }
                }
            }
            count
        };
        blocking("counting what a session did", counting).await.unwrap_or_else(|error| {
            tracing::warn!(session = %record.session_id, error = %error.chain(), "failed to count the last events of a session");
            TranscriptCounts::from_record(record)
        })
    }
}
