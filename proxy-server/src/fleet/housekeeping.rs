//! What keeps the fleet's rows of this node's sessions true: claims, removals, the load, and kills that were asked for while it was silent;
//! and what goes on with sessions of others.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use fleet::{RememberedKill, SessionFacts, SessionPhase, SessionToTake, SessionsToTake};
use ipc_protocol::ErrorChain;
use proxy_manager::{KillOptions, SessionFilter, SessionId, SessionRecord, SessionState, SessionStatus};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use super::{FleetGateway, counters::count, placing::key_of};
use crate::access::RememberedCall;

/// Least time between two looks.
const PAUSE: Duration = Duration::from_millis(200);
/// Times that a session which was taken over is tried to be resumed: it stays suspended then.
const MAX_RESUMES: u32 = 20;
/// Sessions that are taken at once.
const MAX_TAKES: usize = 8;

/// Looks at this node's sessions after each change here, and at every beat; at kills after each change of a row.
pub(super) async fn run(gateway: FleetGateway) {
    let beat = gateway.member().times().beat;
    let mut rows = gateway.member().session_changes();
    let (mut takeovers, mut kills) = (TakeoverQueue::default(), RememberedKills::default());
    loop {
        let sessions = u32::try_from(living(&gateway)).unwrap_or(u32::MAX);
        gateway.member().set_load(sessions, gateway.backlog().0);
        match gateway.member().reconcile(|| local_sessions(&gateway)).await {
            Ok(foreign) => fence(&gateway, foreign).await,
            Err(error) => {
                tracing::warn!(error = %ErrorChain(&error), "the fleet's rows of this node's sessions may be out of date");
            }
        }
        takeovers.begin(&gateway);
        sleep(PAUSE).await;
        let until_look = gateway.member().until_take_over().map_or(beat, |time| time.min(beat));
        let next = Instant::now() + until_look;
        loop {
            kills.carry_out(&gateway, beat).await;
            tokio::select! {
                () = gateway.0.changed.notified() => break,
                () = sleep_until(next) => break,
                Some(done) = takeovers.running.join_next() => {
                    takeovers.ended(done);
                    // One that failed waits for the next look.
                    if std::mem::take(&mut takeovers.is_full) {
                        break;
                    }
                }
                _ = rows.changed() => {}
            }
        }
        if gateway.member().has_left() {
            return;
        }
    }
}

/// Ends sessions here that another node has by now.
async fn fence(gateway: &FleetGateway, foreign: Vec<SessionId>) {
    for session in foreign {
        if gateway.0.manager.replicated_stream(&session).is_none() {
            tracing::error!(%session, "two nodes have a session of one id: kill or delete one of them");
            continue;
        }
        match gateway.0.manager.fence(&session).await {
            Ok(fenced) => {
                count(&gateway.0.counters.fenced);
                tracing::warn!(%session, put_aside = fenced.put_aside, "another node has the session: it is over here")
            }
            Err(error) => {
                tracing::error!(%session, error = %ErrorChain(&error), "a session of another node did not end")
            }
        }
    }
}

/// Way in which a session comes here.
#[derive(Clone, Copy, Debug)]
enum Takeover {
    /// Another node has given it to this one.
    Given,
    /// Its node is dead; true if it ran there.
    OfDead(bool),
    /// It was taken, and did not go on at so many attempts.
    Again(u32),
}

/// Sessions of other nodes that are being taken.
#[derive(Debug, Default)]
struct TakeoverQueue {
    running: JoinSet<(SessionId, Option<u32>)>,
    under_way: HashSet<SessionId>,
    /// Those that were taken and do not run yet, with the number of attempts.
    unresumed: BTreeMap<SessionId, u32>,
    /// Those that no node fits, of which the log has told.
    nowhere: HashSet<SessionId>,
    /// True if some had no room at the last look.
    is_full: bool,
}

impl TakeoverQueue {
    /// Begins with as many as may be taken at once: those that were given to this node, and those of nodes that died.
    fn begin(&mut self, gateway: &FleetGateway) {
        while let Some(done) = self.running.try_join_next() {
            self.ended(done);
        }
        self.unresumed.retain(|session, _| is_own(gateway, session));
        for (session, attempts) in std::mem::take(&mut self.unresumed) {
            self.spawn(gateway, session, Takeover::Again(attempts));
        }
        let given = gateway.member().given_sessions().into_iter().filter(|session| !gateway.is_here(session));
        for session in given {
            self.spawn(gateway, session, Takeover::Given);
        }
        let SessionsToTake { here, nowhere } = gateway.member().sessions_to_take();
        for SessionToTake { session, resume } in here {
            self.spawn(gateway, session, Takeover::OfDead(resume));
        }
        for (session, error) in &nowhere {
            if self.nowhere.insert(session.clone()) {
                tracing::warn!(%session, %error, "a session of a dead node waits for a node that fits");
            }
        }
        self.nowhere.retain(|session| nowhere.iter().any(|(waiting, _)| waiting == session));
    }

    fn spawn(&mut self, gateway: &FleetGateway, session: SessionId, takeover: Takeover) {
        if self.under_way.contains(&session) {
            return;
        }
        self.is_full = self.running.len() >= MAX_TAKES;
        if self.is_full {
            if let Takeover::Again(attempts) = takeover {
                self.unresumed.insert(session, attempts);
            }
            return;
        }
        self.under_way.insert(session.clone());
        let gateway = gateway.clone();
        self.running.spawn(async move {
            let unresumed = match takeover {
                Takeover::Given => take_given(&gateway, &session).await,
                Takeover::OfDead(resume) => take_of_dead(&gateway, &session, resume).await,
                Takeover::Again(attempts) => go_on(&gateway, &session, true, attempts).await,
            };
            (session, unresumed)
        });
    }

    fn ended(&mut self, done: Result<(SessionId, Option<u32>), tokio::task::JoinError>) {
        match done {
            Ok((session, unresumed)) => {
                self.under_way.remove(&session);
                self.unresumed.extend(unresumed.map(|attempts| (session, attempts)));
            }
            Err(error) => tracing::error!(%error, "taking a session over broke off"),
        }
        if self.running.is_empty() {
            self.under_way.clear();
        }
    }
}

async fn take_given(gateway: &FleetGateway, session: &SessionId) -> Option<u32> {
    if let Err(problem) = gateway.take_session(session, false).await {
        tracing::warn!(%session, why = problem.detail, "a session that was given to this node waits");
    }
    None
}

/// Takes a session of a node that is dead. Returns the number of attempts if it is to be resumed later.
async fn take_of_dead(gateway: &FleetGateway, session: &SessionId, resume: bool) -> Option<u32> {
    match gateway.member().take(session).await {
        Ok(false) => None,
        Ok(true) => {
            tracing::warn!(%session, resume, "the node of a session is dead: it goes on here");
            go_on(gateway, session, resume, 0).await
        }
        Err(error) => {
            tracing::warn!(%session, error = %ErrorChain(&error), "a session of a dead node waits");
            None
        }
    }
}

/// Has a session go on that was taken. Returns the number of attempts if that is to be tried again: the engine may be away for a moment, or
/// this node full.
async fn go_on(gateway: &FleetGateway, session: &SessionId, resume: bool, attempts: u32) -> Option<u32> {
    let Err(problem) = gateway.take_session(session, resume).await else {
        count(&gateway.0.counters.taken);
        return None;
    };
    let attempts = match problem.kind.as_ref() {
        // It waits for room.
        "too-many-sessions" => attempts,
        // Nobody but its user can mend that: it stays suspended.
        "command-failed" | "secrets-missing" => MAX_RESUMES,
        _ => attempts + 1,
    };
    if resume && attempts < MAX_RESUMES && is_own(gateway, session) {
        tracing::warn!(%session, why = problem.detail, "a session of a dead node does not go on: it is tried again");
        return Some(attempts);
    }
    count(&gateway.0.counters.not_taken);
    tracing::error!(%session, why = problem.detail, "a session of a dead node does not go on");
    None
}

fn is_own(gateway: &FleetGateway, session: &SessionId) -> bool {
    gateway.member().owner(session).is_some_and(|owned| owned.record.node == *gateway.member().name())
}

/// Lists this node's sessions, living and past, with what is known of them.
fn local_sessions(gateway: &FleetGateway) -> Vec<(SessionId, SessionFacts)> {
    let manager = &gateway.0.manager;
    let every = SessionFilter { archived: true, ..SessionFilter::default() };
    let recorded = manager.records(&every).into_iter();
    let mut sessions: BTreeMap<SessionId, SessionFacts> =
        recorded.map(|record| (record.session_id.clone(), facts_of(&record))).collect();
    for session in manager.list_sessions() {
        let facts = sessions.entry(session.metadata.session_id).or_insert_with(|| SessionFacts {
            user: session.metadata.user_id,
            agent: Some(session.metadata.agent),
            ..SessionFacts::default()
        });
        facts.phase = phase(SessionStatus::from(&session.state));
    }
    sessions.into_iter().collect()
}

fn facts_of(record: &SessionRecord) -> SessionFacts {
    let config = &record.config;
    SessionFacts {
        user: config.user_id.clone(),
        agent: Some(config.agent.clone()).filter(|agent| !agent.is_empty()),
        key: config.lifecycle.key.as_deref().map(|key| key_of(config.user_id.as_deref(), key)),
        phase: phase(record.status()),
    }
}

pub(super) fn phase(status: SessionStatus) -> SessionPhase {
    match status {
        SessionStatus::Starting | SessionStatus::Idle | SessionStatus::Busy => SessionPhase::Running,
        SessionStatus::Suspended => SessionPhase::Suspended,
        SessionStatus::Ended => SessionPhase::Ended,
    }
}

/// Counts the sessions that run or start, without those that are warm: they make room for a start.
fn living(gateway: &FleetGateway) -> usize {
    let sessions = gateway.0.manager.list_sessions();
    sessions
        .iter()
        .filter(|session| {
            !session.warm && !matches!(session.state, SessionState::Ended { .. } | SessionState::Suspended { .. })
        })
        .count()
}

/// Kills that were asked for while this node was silent.
#[derive(Debug, Default)]
struct RememberedKills {
    /// Those that failed, with the time of the next attempt: their callers are told of once.
    failed: BTreeMap<SessionId, Instant>,
}

impl RememberedKills {
    async fn carry_out(&mut self, gateway: &FleetGateway, pause: Duration) {
        let asked = gateway.member().remembered_kills();
        self.failed.retain(|session, _| asked.iter().any(|(asked, _)| asked == session));
        for (session, kill) in asked {
            let failed = self.failed.get(&session).copied();
            if failed.is_some_and(|next| Instant::now() < next) {
                continue;
            }
            let RememberedKill { by, at_node, .. } = &kill;
            tracing::info!(%session, by, %at_node, "carrying out a kill that was asked for while this node was silent");
            match carry_out(gateway, &session, &kill, failed.is_none()).await {
                Ok(()) => drop(self.failed.remove(&session)),
                Err(error) => {
                    tracing::warn!(%session, error, "a remembered kill failed: it is tried again");
                    self.failed.insert(session, Instant::now() + pause);
                }
            }
        }
    }
}

async fn carry_out(
    gateway: &FleetGateway,
    session: &SessionId,
    kill: &RememberedKill,
    is_first: bool,
) -> Result<(), String> {
    let call =
        gateway.0.audit.get().map(|audit| RememberedCall::of_kill(audit, session, &kill.by, kill.at_node.as_str()));
    // As any kill: its event comes before the end.
    if let Some(call) = call.as_ref().filter(|_| is_first) {
        call.announce(&gateway.0.manager).await;
    }
    match gateway.0.manager.kill_session(session, KillOptions::default()).await {
        Ok(receipt) => tracing::info!(%session, survivors = receipt.survivors.len(), "the session is killed"),
        // It ended by itself, or is suspended, with no process.
        Err(
            proxy_manager::Error::UnknownSession { .. }
            | proxy_manager::Error::Ended { .. }
            | proxy_manager::Error::Suspended { .. },
        ) => {}
        Err(error) => {
            let error = ErrorChain(&error).to_string();
            if let Some(call) = call.filter(|_| is_first) {
                call.record(false).await;
            }
            return Err(error);
        }
    }
    let forgotten = gateway.member().forget_kill(session).await;
    // Once, also where it has to be tried again.
    if let Some(call) = call.filter(|_| forgotten.is_ok()) {
        call.record(true).await;
    }
    forgotten.map(drop).map_err(|error| ErrorChain(&error).to_string())
}
