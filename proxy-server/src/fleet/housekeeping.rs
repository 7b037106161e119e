//! What keeps the fleet's rows of this node's sessions true: claims, removals, the load, and kills that were asked for while it was silent.

use std::time::Duration;

use fleet::RememberedKill;
use ipc_protocol::ErrorChain;
use proxy_manager::{KillOptions, SessionFilter, SessionId, SessionState};
use tokio::time::{Instant, sleep, sleep_until};

use super::FleetGateway;

/// Least time between two looks.
const PAUSE: Duration = Duration::from_millis(200);

/// Looks at this node's sessions after each change here, and at every beat; at kills after each change of a row.
pub(super) async fn run(gateway: FleetGateway) {
    let beat = gateway.member().times().beat;
    let mut rows = gateway.member().session_changes();
    loop {
        gateway.member().set_load(u32::try_from(living(&gateway)).unwrap_or(u32::MAX));
        match gateway.member().reconcile(|| sessions(&gateway)).await {
            Ok(foreign) => fence(&gateway, foreign).await,
            Err(error) => {
                tracing::warn!(error = %ErrorChain(&error), "the fleet's rows of this node's sessions may be out of date");
            }
        }
        take_over(&gateway).await;
        sleep(PAUSE).await;
        let begin = Instant::now();
        loop {
            carry_out_kills(&gateway).await;
            tokio::select! {
                () = gateway.0.changed.notified() => break,
                () = sleep_until(begin + beat) => break,
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
                tracing::warn!(%session, put_aside = fenced.put_aside, "another node has the session: it is over here")
            }
            Err(error) => {
                tracing::error!(%session, error = %ErrorChain(&error), "a session of another node did not end")
            }
        }
    }
}

/// Goes on with sessions of nodes that died.
async fn take_over(gateway: &FleetGateway) {
    let given = gateway.member().given_sessions().into_iter().filter(|session| !gateway.is_here(session));
    for session in given {
        if let Err(problem) = gateway.take_session(&session, false).await {
            tracing::warn!(%session, why = problem.detail, "a session that was given to this node waits");
        }
    }
    let agent = |_: &SessionId| None;
    for session in gateway.member().sessions_to_take(agent) {
        match gateway.member().take(&session).await {
            Ok(false) => {}
            Ok(true) => {
                tracing::warn!(%session, "the node of a session is dead: it goes on here");
                if let Err(problem) = gateway.take_session(&session, true).await {
                    tracing::error!(%session, why = problem.detail, "a session of a dead node does not go on");
                }
            }
            Err(error) => tracing::warn!(%session, error = %ErrorChain(&error), "a session of a dead node waits"),
        }
    }
}

/// Lists this node's sessions, living and past, with their users.
fn sessions(gateway: &FleetGateway) -> Vec<(SessionId, Option<String>)> {
    let manager = &gateway.0.manager;
    let every = SessionFilter { archived: true, ..SessionFilter::default() };
    let remembered = manager.list_sessions().into_iter().map(|session| session.metadata);
    let remembered = remembered.map(|session| (session.session_id, session.user_id));
    let recorded = manager.records(&every).into_iter();
    remembered.chain(recorded.map(|record| (record.session_id, record.config.user_id))).collect()
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
    for (session, RememberedKill { by, at_node }) in gateway.member().remembered_kills() {
        tracing::info!(%session, by, %at_node, "carrying out a kill that was asked for while this node was silent");
        if let Err(error) = carry_out(gateway, &session).await {
            tracing::warn!(%session, error, "a remembered kill failed: it is tried again");
        }
    }
}

async fn carry_out(gateway: &FleetGateway, session: &SessionId) -> Result<(), String> {
    match gateway.0.manager.kill_session(session, KillOptions::default()).await {
        Ok(receipt) => tracing::info!(%session, survivors = receipt.survivors.len(), "the session is killed"),
        // It ended by itself, or is suspended, with no process.
        Err(
            proxy_manager::Error::UnknownSession { .. }
            | proxy_manager::Error::Ended { .. }
            | proxy_manager::Error::Suspended { .. },
        ) => {}
        Err(error) => return Err(ErrorChain(&error).to_string()),
    }
    gateway.member().forget_kill(session).await.map(drop).map_err(|error| ErrorChain(&error).to_string())
}
