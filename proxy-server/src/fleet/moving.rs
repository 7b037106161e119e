//! Moves of sessions from one node to another, with their conversation. Their events go on in the fleet's log.
//!
//! The owner suspends the session, ships all of its events, stores its conversation, and gives its row to the other node, in one
//! compare-and-set. From then on it is the other node's, which takes it over from what was stored, also if it was told of it by the row alone.

use std::time::Duration;

use axum::{
    http::{Extensions, HeaderMap, Method, Uri},
    response::Response,
};
use fleet::{NodeName, PlacementRequest};
use ipc_protocol::ErrorChain;
use proxy_manager::{
    KillOptions, SessionId, SessionStatus,
    replication::{Epoch, SessionExport, TakeOver},
};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{FleetGateway, forwarding::OutgoingRequest, placing::no_node, unreachable};
use crate::{ProblemDetails, api::MovedSession, requests::RouteResult};

/// Time for the last events of a session to be in the fleet's log.
const SHIPPING_TIME: Duration = Duration::from_secs(30);
/// Time between two looks at that.
const PAUSE: Duration = Duration::from_millis(20);

impl FleetGateway {
    /// Moves a session of this node to another one: the one named, or the one that suits it.
    ///
    /// # Errors
    /// `no-node`; `unsupported` for a session whose conversation cannot leave this machine; `node-silent` where the other node did not take it
    /// at once: it is that node's all the same, and is suspended until it is resumed there.
    pub(crate) async fn move_session(&self, session: &SessionId, to: Option<NodeName>) -> RouteResult<MovedSession> {
        let (member, manager) = (&self.0.member, &self.0.manager);
        let record = manager.record(session)?;
        let request = PlacementRequest { agent: Some(record.config.agent.clone()), node: to, ..Default::default() };
        let to = member.place(&request, std::slice::from_ref(member.name())).map_err(no_node)?;
        let resume = match record.status() {
            SessionStatus::Ended => {
                let detail = format!("session {session} has ended: only one that goes on can move");
                return Err(ProblemDetails::new("ended", detail));
            }
            SessionStatus::Suspended => false,
            _ => {
                check_home(manager.export_session(session).await?)?;
                manager.suspend_session(session, KillOptions::default()).await?;
                true
            }
        };
        let moved = async {
            self.until_shipped(session).await?;
            let export = check_home(manager.export_session(session).await?)?;
            let object = format!("{session}/{}/{}", export.epoch, export.offset);
            let bytes = export.to_bytes()?;
            member.store_snapshot(&object, bytes).await.map_err(unreachable)?;
            member.hand_over(session, &to, &object).await.map_err(unreachable)
        };
        let epoch = match moved.await {
            Ok(epoch) => epoch,
            Err(problem) => {
                // It is here still.
                if resume && let Err(error) = manager.resume_session(session).await {
                    tracing::warn!(%session, error = %ErrorChain(&error), "a session that did not move is suspended");
                }
                return Err(problem);
            }
        };
        manager.fence(session).await?;
        let uri: Uri = format!("/v1/fleet/sessions/{session}/take?resume={resume}")
            .parse()
            .map_err(|error| ProblemDetails::failed(format!("the request makes no sense: {error}")))?;
        let request = OutgoingRequest {
            method: Method::POST,
            uri,
            headers: HeaderMap::new(),
            extensions: Extensions::new(),
            body: Vec::new(),
        };
        let answer = self.send(&to, request).await?;
        refused(answer).await?;
        Ok(MovedSession { session_id: session.clone(), from: member.name().clone(), to, epoch })
    }

    /// Moves all sessions away that can move, and takes no new ones. Returns what became of each.
    pub(crate) async fn drain_sessions(&self) -> Vec<(SessionId, RouteResult<MovedSession>)> {
        self.drain();
        let sessions = self.0.manager.list_sessions().into_iter();
        let living = sessions.filter(|session| SessionStatus::from(&session.state) != SessionStatus::Ended);
        let mut moved = Vec::new();
        for session in living.map(|session| session.metadata.session_id) {
            let outcome = self.move_session(&session, None).await;
            moved.push((session, outcome));
        }
        moved
    }

    /// Takes over a session whose row another node has given to this one.
    ///
    /// # Errors
    /// `failed` for a row that does not say what is to be taken; the manager's.
    pub(crate) async fn take_session(&self, session: &SessionId, resume: bool) -> RouteResult<()> {
        let (gateway, session) = (self.clone(), session.clone());
        // Half of it is none of it.
        let work = tokio::spawn(async move { gateway.take_whole(&session, resume).await });
        work.await.unwrap_or_else(|error| Err(ProblemDetails::failed(format!("the work broke off: {error}"))))
    }

    async fn take_whole(&self, session: &SessionId, resume: bool) -> RouteResult<()> {
        let (member, manager) = (&self.0.member, &self.0.manager);
        let _starting = member.begin_start(session);
        let _one_at_a_time = self.0.taking.lock().await;
        if !self.is_here(session) {
            let owned = member.owner_now(session).await.map_err(unreachable)?;
            // One that was deleted has its row for a moment.
            let owned = owned.filter(|owned| owned.record.node == *member.name() && !member.is_forgotten(session));
            let Some((epoch, object)) = owned.and_then(|owned| Some((owned.record.epoch, owned.record.snapshot?)))
            else {
                let detail =
                    format!("session {session} was not given to node {}: its row says another one", member.name());
                return Err(ProblemDetails::failed(detail));
            };
            let bytes = member.snapshot(&object).await.map_err(unreachable)?;
            let export = SessionExport::from_bytes(&bytes)?;
            let tail = member.log().tail(session).await.map_err(unreachable)?.last;
            let taken = TakeOver { export, epoch: Epoch(epoch), tail, keeps_local_tail: false };
            manager.take_over(taken).await?;
        }
        if resume {
            manager.resume_session(session).await?;
        }
        Ok(())
    }

    /// Waits until the fleet's log has all of a session's events.
    async fn until_shipped(&self, session: &SessionId) -> RouteResult<()> {
        let deadline = Instant::now() + SHIPPING_TIME;
        let is_shipped = || {
            let stream = self.0.manager.replicated_stream(session);
            stream.is_some_and(|stream| stream.acknowledged == stream.last)
        };
        while !is_shipped() {
            if Instant::now() > deadline {
                let detail =
                    format!("the events of session {session} are not in the fleet's log within {SHIPPING_TIME:?}");
                return Err(ProblemDetails::new("fleet-unreachable", detail));
            }
            sleep(PAUSE).await;
        }
        Ok(())
    }
}

/// Refuses a session whose conversation cannot leave this machine.
fn check_home(export: SessionExport) -> RouteResult<SessionExport> {
    match &export.incomplete {
        None => Ok(export),
        Some(reason) => {
            let session = &export.record.session_id;
            Err(ProblemDetails::new("unsupported", format!("session {session} cannot move: {reason}")))
        }
    }
}

/// Returns the problem of an answer that is one.
async fn refused(answer: Response) -> RouteResult<()> {
    if answer.status().is_success() {
        return Ok(());
    }
    let status = answer.status();
    let body = axum::body::to_bytes(answer.into_body(), 1024 * 1024).await.unwrap_or_default();
    let problem: Option<ProblemDetails> =
        serde_json::from_slice::<Value>(&body).ok().and_then(|json| serde_json::from_value(json).ok());
    Err(problem.unwrap_or_else(|| ProblemDetails::failed(format!("the other node answered with the status {status}"))))
}
