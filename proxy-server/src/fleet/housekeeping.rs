//! What keeps the fleet's rows of this node's sessions true: claims, removals, the load, and kills that were asked for while it was silent;
//! and what goes on with sessions of others.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use fleet::{NodeName, RememberedKill, SessionFacts, SessionPhase, SessionToTake, SessionsToTake};
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
    let mut takes = TakeOvers::default();
    loop {
        let sessions = u32::try_from(living(&gateway)).unwrap_or(u32::MAX);
        gateway.member().set_load(sessions, gateway.backlog().0);
        match gateway.member().reconcile(|| local_sessions(&gateway)).await {
            Ok(foreign) => fence(&gateway, foreign).await,
            Err(error) => {
                tracing::warn!(error = %ErrorChain(&error), "the fleet's rows of this node's sessions may be out of date");
            }
        }
        takes.begin(&gateway);
        sleep(PAUSE).await;
        let until_look = gateway.member().until_take_over().map_or(beat, |time| time.min(beat));
        let next = Instant::now() + until_look;
        loop {
            carry_out_kills(&gateway).await;
            tokio::select! {
                () = gateway.0.changed.notified() => break,
                () = sleep_until(next) => break,
                Some(done) = takes.running.join_next() => {
                    takes.ended(done);
                    // One that failed waits for the next look.
                    if std::mem::take(&mut takes.is_full) {
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

/// Session that was taken from a dead node, and is to be resumed.
#[derive(Debug)]
struct Unresumed {
    from: NodeName,
    attempts: u32,
}

/// Way in which a session comes here.
enum Take {
    /// Another node has given it to this one.
    Given,
    /// Its node is dead.
    OfDead { from: NodeName, resume: bool },
    /// It was taken, and did not go on.
    Resume(Unresumed),
}

/// Sessions of other nodes that are being taken.
#[derive(Debug, Default)]
struct TakeOvers {
    running: JoinSet<(SessionId, Option<Unresumed>)>,
    under_way: HashSet<SessionId>,
    /// Those that were taken and do not run yet.
    unresumed: BTreeMap<SessionId, Unresumed>,
    /// Those that no node fits, of which the log has told.
    nowhere: HashSet<SessionId>,
    /// True if some had no room at the last look.
    is_full: bool,
}

impl TakeOvers {
    /// Begins with as many as may be taken at once: those that were given to this node, and those of nodes that died.
    fn begin(&mut self, gateway: &FleetGateway) {
        while let Some(done) = self.running.try_join_next() {
            self.ended(done);
        }
        self.unresumed.retain(|session, _| is_own(gateway, session));
        for (session, Unresumed { from, attempts }) in std::mem::take(&mut self.unresumed) {
            self.spawn(gateway, session, Take::Resume(Unresumed { from, attempts: attempts + 1 }));
        }
        let given = gateway.member().given_sessions().into_iter().filter(|session| !gateway.is_here(session));
        for session in given {
            self.spawn(gateway, session, Take::Given);
        }
        let SessionsToTake { here, nowhere } = gateway.member().sessions_to_take();
        for SessionToTake { session, from, resume } in here {
            self.spawn(gateway, session, Take::OfDead { from, resume });
        }
        for (session, error) in &nowhere {
            if self.nowhere.insert(session.clone()) {
                tracing::warn!(%session, %error, "a session of a dead node waits for a node that fits");
            }
        }
        self.nowhere.retain(|session| nowhere.iter().any(|(waiting, _)| waiting == session));
    }

    fn spawn(&mut self, gateway: &FleetGateway, session: SessionId, take: Take) {
        if self.under_way.contains(&session) {
            return;
        }
        self.is_full = self.running.len() >= MAX_TAKES;
        if self.is_full {
            if let Take::Resume(unresumed) = take {
                self.unresumed.insert(session, unresumed);
            }
            return;
        }
        self.under_way.insert(session.clone());
        let gateway = gateway.clone();
        self.running.spawn(async move {
            let unresumed = match take {
                Take::Given => take_given(&gateway, &session).await,
                Take::OfDead { from, resume } => take_of_dead(&gateway, &session, from, resume).await,
                Take::Resume(unresumed) => go_on(&gateway, &session, true, unresumed).await,
            };
            (session, unresumed)
        });
    }

    fn ended(&mut self, done: Result<(SessionId, Option<Unresumed>), tokio::task::JoinError>) {
        match done {
            Ok((session, unresumed)) => {
                self.under_way.remove(&session);
                self.unresumed.extend(unresumed.map(|unresumed| (session, unresumed)));
            }
            Err(error) => tracing::error!(%error, "taking a session over broke off"),
        }
        if self.running.is_empty() {
            self.under_way.clear();
        }
    }
}

async fn take_given(gateway: &FleetGateway, session: &SessionId) -> Option<Unresumed> {
    if let Err(problem) = gateway.take_session(session, false, None).await {
        tracing::warn!(%session, why = problem.detail, "a session that was given to this node waits");
    }
    None
}

/// Takes a session of a node that is dead, which may have run there. Returns it if it is to be resumed later.
async fn take_of_dead(gateway: &FleetGateway, session: &SessionId, from: NodeName, resume: bool) -> Option<Unresumed> {
    match gateway.member().take(session).await {
        Ok(false) => None,
        Ok(true) => {
            tracing::warn!(%session, %from, resume, "the node of a session is dead: it goes on here");
            go_on(gateway, session, resume, Unresumed { from, attempts: 0 }).await
        }
        Err(error) => {
            tracing::warn!(%session, error = %ErrorChain(&error), "a session of a dead node waits");
            None
        }
    }
}

/// Has a session go on that was taken. Returns it if that is to be tried again: the engine may be away for a moment.
async fn go_on(gateway: &FleetGateway, session: &SessionId, resume: bool, taken: Unresumed) -> Option<Unresumed> {
    let problem = match gateway.take_session(session, resume, Some(taken.from.clone())).await {
        Ok(()) => {
            count(&gateway.0.counters.taken);
            return None;
        }
        Err(problem) => problem,
    };
    match problem.kind.as_ref() {
        // A prompt has resumed it meanwhile.
        "not-suspended" => {
            count(&gateway.0.counters.taken);
            None
        }
        // Without its workspace it stays suspended.
        kind if resume && kind != "command-failed" && taken.attempts < MAX_RESUMES && is_own(gateway, session) => {
            tracing::warn!(%session, why = problem.detail, "a session of a dead node does not go on: it is tried again");
            Some(taken)
        }
        _ => {
            count(&gateway.0.counters.not_taken);
            tracing::error!(%session, why = problem.detail, "a session of a dead node does not go on");
            None
        }
    }
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

async fn carry_out_kills(gateway: &FleetGateway) {
    for (session, kill) in gateway.member().remembered_kills() {
        let RememberedKill { by, at_node, .. } = &kill;
        tracing::info!(%session, by, %at_node, "carrying out a kill that was asked for while this node was silent");
        if let Err(error) = carry_out(gateway, &session, &kill).await {
            tracing::warn!(%session, error, "a remembered kill failed: it is tried again");
        }
    }
}

async fn carry_out(gateway: &FleetGateway, session: &SessionId, kill: &RememberedKill) -> Result<(), String> {
    let call =
        gateway.0.audit.get().map(|audit| RememberedCall::of_kill(audit, session, &kill.by, kill.at_node.as_str()));
    // As any kill: its event comes before the end.
    if let Some(call) = &call {
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
            if let Some(call) = &call {
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
