//! Moves of sessions from one node to another, with their conversation. Their events go on in the fleet's log.
//!
//! The owner suspends the session, ships all of its events, stores its conversation, and gives its row to the other node, in one
//! compare-and-set. From then on it is the other node's, which takes it over from what was stored, also if it was told of it by the row alone.

use std::{
    collections::HashMap,
    sync::{MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    http::{Extensions, HeaderMap, Method, Uri},
    response::Response,
};
use fleet::{EngineError, NodeName, OwnedSession, OwnershipRecord, SessionFacts};
use futures_util::StreamExt as _;
use ipc_protocol::{Envelope, ErrorChain};
use proxy_manager::{
    KillOptions, SessionId, SessionStatus,
    replication::{Epoch, SessionExport, TakeOver},
};
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use super::{
    FleetGateway, counters::count, forwarding::OutgoingRequest, housekeeping::phase, placing::no_node,
    target::NamedSession, unreachable,
};
use crate::{ProblemDetails, api::MovedSession, requests::RouteResult};

/// Time for the last events of a session to be in the fleet's log.
const SHIPPING_TIME: Duration = Duration::from_secs(30);
/// Newest events of a session among which prompts that wait are looked for, and the time for it.
const MAX_RECENT: u64 = 2000;
const RECENT_TIME: Duration = Duration::from_secs(5);
/// Sessions of a node that moves all of its own which move at once.
const MOVES_AT_ONCE: usize = 4;
/// Time for which a request waits for a session to have moved.
const MOVE_TIME: Duration = Duration::from_secs(60);
/// Time between two looks at that.
const PAUSE: Duration = Duration::from_millis(20);
/// Variables of the hook that brings a workspace: the node that had the session, where that is known, and this one.
const FROM_NODE: &str = "AGENT_PROXY_FROM_NODE";
const TO_NODE: &str = "AGENT_PROXY_TO_NODE";

/// Session that is another node's, with the reason why it does not run there yet, if it does not.
pub(crate) type MoveOutcome = (MovedSession, Option<ProblemDetails>);

impl FleetGateway {
    /// Moves a session of this node to another one: the one named, or the one that suits it.
    ///
    /// # Errors
    /// `no-node`; `busy` while it is moved already; `ended`; `unsupported` for a session whose conversation cannot leave this machine.
    pub(crate) async fn move_session(&self, session: &SessionId, to: Option<NodeName>) -> RouteResult<MoveOutcome> {
        let moved = self.give_away(session, to).await;
        count(if moved.is_ok() { &self.0.counters.moved } else { &self.0.counters.not_moved });
        moved
    }

    async fn give_away(&self, session: &SessionId, to: Option<NodeName>) -> RouteResult<MoveOutcome> {
        let (member, manager) = (&self.0.member, &self.0.manager);
        // A prompt would resume it here.
        let moving = self.begin_move(session)?;
        let record = manager.record(session)?;
        let owned = member.owner_now(session).await.map_err(unreachable)?;
        let owned = owned.filter(|owned| owned.record.node == *member.name()).ok_or_else(|| {
            ProblemDetails::failed(format!("session {session} is not node {}'s: try again", member.name()))
        })?;
        let facts = SessionFacts {
            agent: Some(record.config.agent.clone()).filter(|agent| !agent.is_empty()),
            phase: phase(record.status()),
            ..owned.record.facts
        };
        let owned = OwnershipRecord { facts, ..owned.record };
        let to = member.place_elsewhere(&owned, to).map_err(no_node)?;
        let resume = match record.status() {
            SessionStatus::Ended => return Err(ended(session)),
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
            // From here on a kill waits too, and is the other node's; one that was faster has ended the session.
            moving.hold_kills();
            if self.has_ended(session) {
                return Err(ended(session));
            }
            member.hand_over(session, &to, &object).await.map_err(unreachable)
        };
        let epoch = match moved.await {
            Ok(epoch) => epoch,
            Err(problem) => {
                // It is here still.
                if resume
                    && !self.has_ended(session)
                    && let Err(error) = manager.resume_session(session).await
                {
                    tracing::warn!(%session, error = %ErrorChain(&error), "a session that did not move is suspended");
                }
                return Err(problem);
            }
        };
        // A kill that was on its way before they waited.
        let was_killed = self.has_ended(session);
        manager.fence(session).await?;
        let from = member.name().clone();
        let taken = async {
            self.ask(&to, format!("/v1/fleet/sessions/{session}/take?resume={}", resume && !was_killed)).await?;
            match was_killed {
                true => self.ask(&to, format!("/v1/sessions/{session}/kill")).await,
                false => Ok(()),
            }
        };
        // It is the other node's from here on, whatever that makes of it.
        let problem = taken.await.err();
        let reason = problem.as_ref().map(|problem| problem.detail.clone());
        Ok((MovedSession { session_id: session.clone(), from, to, epoch, problem: reason }, problem))
    }

    fn has_ended(&self, session: &SessionId) -> bool {
        self.0.manager.record(session).is_ok_and(|record| record.status() == SessionStatus::Ended)
    }

    /// Has another node do something with a session that it has now.
    async fn ask(&self, node: &NodeName, path: String) -> RouteResult<()> {
        let uri: Uri =
            path.parse().map_err(|error| ProblemDetails::failed(format!("the request makes no sense: {error}")))?;
        let request = OutgoingRequest {
            method: Method::POST,
            uri,
            headers: HeaderMap::new(),
            extensions: Extensions::new(),
            body: Vec::new(),
        };
        refused(self.send(node, request).await?).await
    }

    /// Moves all sessions away that can move, and takes no new ones. Returns what became of each.
    pub(crate) async fn drain_sessions(&self) -> Vec<(SessionId, RouteResult<MoveOutcome>)> {
        self.drain();
        let sessions = self.0.manager.list_sessions().into_iter();
        let living = sessions.filter(|session| SessionStatus::from(&session.state) != SessionStatus::Ended);
        let moves = living.map(|session| session.metadata.session_id).map(|session| async move {
            let outcome = self.move_session(&session, None).await;
            (session, outcome)
        });
        futures_util::stream::iter(moves).buffered(MOVES_AT_ONCE).collect().await
    }

    /// Takes over a session whose row another node has given to this one.
    ///
    /// # Errors
    /// `failed` for a row that does not say what is to be taken; `command-failed` where its workspace was not brought, and it is suspended
    /// here; the manager's.
    pub(crate) async fn take_session(&self, session: &SessionId, resume: bool) -> RouteResult<()> {
        let (gateway, session) = (self.clone(), session.clone());
        // Half of it is none of it.
        let work = tokio::spawn(async move {
            let taken = gateway.take_whole(&session, resume).await;
            // One that failed waits for the next look.
            if taken.is_ok() {
                gateway.0.changed.notify_one();
            }
            taken
        });
        work.await.unwrap_or_else(|error| Err(ProblemDetails::failed(format!("the work broke off: {error}"))))
    }

    async fn take_whole(&self, session: &SessionId, resume: bool) -> RouteResult<()> {
        let (member, manager) = (&self.0.member, &self.0.manager);
        let _starting = member.begin_start(session);
        let taking = self.taking(session);
        let _one_at_a_time = taking.lock().await;
        // A prompt would resume it before its workspace is here.
        let _moving = self.begin_move(session)?;
        if !self.is_here(session) {
            let owned = member.owner_now(session).await.map_err(unreachable)?;
            // One that was deleted has its row for a moment.
            let is_given = |owned: &OwnedSession| owned.record.node == *member.name() && !owned.record.is_deleted;
            let owned = owned.filter(|owned| is_given(owned) && !member.is_forgotten(session));
            let owned = owned.map(|owned| owned.record);
            let Some((epoch, object, from)) = owned.and_then(|row| Some((row.epoch, row.snapshot?, row.from))) else {
                let detail =
                    format!("session {session} was not given to node {}: its row says another one", member.name());
                return Err(ProblemDetails::failed(detail));
            };
            let bytes = member.snapshot(&object).await.map_err(unreachable)?;
            let export = SessionExport::from_bytes(&bytes)?;
            let tail = member.log().tail(session).await.map_err(unreachable)?.last;
            let recent_events = self.recent_events(session, tail).await;
            let taken = TakeOver { export, epoch: Epoch(epoch), tail, keeps_local_tail: false, recent_events };
            manager.take_over(taken).await?;
            self.without_workspace().insert(session.clone(), from);
        }
        // Also where the hook has failed before.
        let from = self.without_workspace().get(session).cloned();
        if let Some(from) = from {
            self.bring_workspace(session, from.as_ref()).await?;
            self.without_workspace().remove(session);
        }
        if resume {
            match manager.resume_session(session).await {
                // A prompt was as fast.
                Ok(_) | Err(proxy_manager::Error::NotSuspended { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads the newest events of a session from the fleet's log: prompts that wait are among them. None where that takes too long.
    async fn recent_events(&self, session: &SessionId, tail: u64) -> Vec<Envelope> {
        let from = tail.saturating_sub(MAX_RECENT);
        let read = async {
            let mut reader = self.0.member.log().read(session, from).await?;
            let mut events: Vec<Envelope> = Vec::new();
            while events.last().map_or(from, |event| event.offset) < tail {
                let batch = reader.next().await?;
                let lines = batch.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
                events.extend(lines.filter_map(|line: Value| Envelope::from_json(line).ok()));
            }
            Ok(events)
        };
        match timeout(RECENT_TIME, read).await {
            Ok(Ok(mut events)) => {
                events.retain(|event| event.offset > from && event.offset <= tail);
                events
            }
            Ok(Err(error)) => {
                let error: EngineError = error;
                tracing::warn!(%session, error = %ErrorChain(&error), "prompts that wait in a session's queue may be missed");
                Vec::new()
            }
            Err(_) => {
                tracing::warn!(%session, "prompts that wait in a session's queue may be missed: its events are not read in time");
                Vec::new()
            }
        }
    }

    /// Has what would change a session wait from now on, kills aside.
    ///
    /// # Errors
    /// `busy` while it comes or goes already.
    fn begin_move(&self, session: &SessionId) -> RouteResult<MoveGuard> {
        let begun = self.0.moving.send_if_modified(|moving| match moving.contains_key(session) {
            true => false,
            false => moving.insert(session.clone(), false).is_none(),
        });
        begun
            .then(|| MoveGuard { gateway: self.clone(), session: session.clone() })
            .ok_or_else(|| being_moved(session.as_str()))
    }

    /// Waits while a session moves from this node or to it; a kill only while its owner changes. Returns true if there was a wait.
    ///
    /// # Errors
    /// `busy` where that takes too long.
    pub(super) async fn wait_for_move(&self, named: &NamedSession, is_kill: bool) -> RouteResult<bool> {
        let is_it = |(session, holds_kills): (&SessionId, &bool)| {
            let is_named = match named.may_be_beginning {
                true => session.as_str() == named.id || session.is_minted() && session.as_str().starts_with(&named.id),
                false => session.as_str() == named.id,
            };
            is_named && (*holds_kills || !is_kill)
        };
        let mut moving = self.0.moving.subscribe();
        if !moving.borrow().iter().any(is_it) {
            return Ok(false);
        }
        let moved = timeout(MOVE_TIME, moving.wait_for(|moving| !moving.iter().any(is_it))).await;
        moved.map(|_| true).map_err(|_| being_moved(&named.id))
    }

    /// Sessions that are here without their workspace, with the node that had it, where that is known.
    fn without_workspace(&self) -> MutexGuard<'_, HashMap<SessionId, Option<NodeName>>> {
        self.0.without_workspace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings the workspace of a session that has come here, with the hook if there is one.
    async fn bring_workspace(&self, session: &SessionId, from: Option<&NodeName>) -> RouteResult<()> {
        let Some(command) = &self.0.settings.workspace_hook else { return Ok(()) };
        let from = from.map_or("", NodeName::as_str);
        let variables = [(FROM_NODE, from), (TO_NODE, self.0.member.name().as_str())];
        Ok(self.0.manager.bring_workspace(session, command, &variables).await?)
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

/// Session that moves: as long as this lives, what would change it waits.
struct MoveGuard {
    gateway: FleetGateway,
    session: SessionId,
}

impl MoveGuard {
    /// Has kills wait too.
    fn hold_kills(&self) {
        self.gateway.0.moving.send_modify(|moving| _ = moving.insert(self.session.clone(), true));
    }
}

impl Drop for MoveGuard {
    fn drop(&mut self) {
        self.gateway.0.moving.send_modify(|moving| {
            moving.remove(&self.session);
        });
    }
}

fn being_moved(session: &str) -> ProblemDetails {
    ProblemDetails::new(
        "busy",
        format!("session {session} is being moved: wait until that is done, then send it again"),
    )
}

fn ended(session: &SessionId) -> ProblemDetails {
    ProblemDetails::new("ended", format!("session {session} has ended: only one that goes on can move"))
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
