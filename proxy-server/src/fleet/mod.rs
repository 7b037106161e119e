//! A node's API as one of its fleet: a request about a session goes to the session's owner, a start to the node that suits it, and lists have
//! the members of all nodes.
//!
//! Nodes believe each other who calls: a node says of a request that it passes on whose it is, and the owner checks that caller's role and
//! policy as its own. So a fleet's engine has to admit nodes alone.

mod all_events;
mod counters;
mod forwarding;
mod housekeeping;
mod lists;
mod logged_events;
mod moving;
mod placing;
mod target;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::to_bytes,
    extract::{Request, State},
    http::{HeaderName, HeaderValue, Method, Uri, uri::PathAndQuery},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse as _, Response},
};
use fleet::{EngineError, ExchangeError, FleetMember, NodeName, NodePresence, OwnedSession, exchange::ExchangeHandler};
use futures_util::{FutureExt as _, future::join_all};
use ipc_protocol::ErrorChain;
use proxy_manager::{ProxyManager, SessionId};
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tower::ServiceExt as _;

use self::{
    counters::{FleetCounters, count},
    forwarding::{OutgoingRequest, PassedOn, decode, decode_answer, encode_answer},
    target::{FleetList, NamedSession, RequestTarget, is_kill},
};
use crate::{
    ProblemDetails,
    access::{AuditLog, Identity, Role, changes},
    api::{self, KillRequest},
    requests::{JsonBody, MAX_BODY, RouteResult},
    session_ids::{MAX_CANDIDATES, ambiguous_id},
    websocket::is_websocket,
};

/// Header of an answer with the node that gave it.
const NODE: HeaderName = HeaderName::from_static("agent-proxy-node");
/// Header of a list with the nodes that did not answer, whose members it lacks.
const SILENT_NODES: HeaderName = HeaderName::from_static(api::SILENT_NODES);
/// Longest list of one node.
const MAX_LIST: usize = 64 * 1024 * 1024;

/// A node's place in its fleet. A clone is the same.
#[derive(Clone, Debug)]
pub struct FleetGateway(Arc<Gateway>);

#[derive(Debug)]
struct Gateway {
    member: FleetMember,
    manager: ProxyManager,
    /// Wakes the housekeeping: something may have changed.
    changed: Notify,
    /// Held while a session is taken over, by session: it may be asked for twice.
    taking: Mutex<HashMap<SessionId, Arc<tokio::sync::Mutex<()>>>>,
    /// Sessions that come or go: what would change them waits; kills too, where true.
    moving: watch::Sender<HashMap<SessionId, bool>>,
    /// Sessions that came here, and whose workspace was not brought yet, with the node that had it.
    without_workspace: Mutex<HashMap<SessionId, Option<NodeName>>>,
    counters: FleetCounters,
    /// Log of who changes what.
    audit: OnceLock<AuditLog>,
    settings: FleetSettings,
}

/// Settings of a node that its own server carries out.
#[derive(Clone, Debug, Default)]
pub struct FleetSettings {
    /// Most sessions of one user that run on all nodes together.
    pub max_per_user: Option<usize>,
    /// Shell command that brings the workspace of a session that goes on here.
    pub workspace_hook: Option<String>,
    /// True if this node's events are in the fleet's log.
    pub ships_events: bool,
}

impl FleetGateway {
    /// Creates the gateway of a member, whose sessions are this manager's.
    pub fn new(member: FleetMember, manager: ProxyManager, settings: FleetSettings) -> Self {
        let (changed, taking, counters) = (Notify::new(), Mutex::default(), FleetCounters::default());
        let (moving, audit) = (watch::Sender::default(), OnceLock::new());
        let without_workspace = Mutex::default();
        Self(Arc::new(Gateway {
            member,
            manager,
            changed,
            taking,
            moving,
            without_workspace,
            counters,
            audit,
            settings,
        }))
    }

    /// Records in an audit log what this node does by itself for callers.
    pub(crate) fn audit_in(&self, audit: &AuditLog) {
        // A second call changes nothing: a gateway is in front of one server.
        let _ = self.0.audit.set(audit.clone());
    }

    /// Returns the lock of a session that is taken over.
    fn taking(&self, session: &SessionId) -> Arc<tokio::sync::Mutex<()>> {
        let mut taking = self.0.taking.lock().unwrap_or_else(PoisonError::into_inner);
        taking.retain(|_, lock| Arc::strong_count(lock) > 1);
        taking.entry(session.clone()).or_default().clone()
    }

    /// Answers other nodes with these routes, and keeps the rows of this node's sessions true, until [`FleetGateway::leave`].
    ///
    /// # Errors
    /// `fleet-unreachable`.
    pub async fn serve(&self, router: Router) -> Result<(), ProblemDetails> {
        let handler: ExchangeHandler = Arc::new(move |request| {
            let router = router.clone();
            async move {
                match decode(request) {
                    Ok(request) => {
                        let method = request.method().clone();
                        // The router never fails.
                        encode_answer(&method, router.oneshot(request).await.unwrap_or_else(|never| match never {}))
                    }
                    Err(problem) => encode_answer(&Method::GET, problem.into_response()),
                }
            }
            .boxed()
        });
        self.0.member.serve(handler).await.map_err(unreachable)?;
        tokio::spawn(housekeeping::run(self.clone()));
        Ok(())
    }

    /// Takes no more sessions of the fleet, as before the end.
    pub fn drain(&self) {
        self.0.member.set_draining(true);
    }

    /// Leaves the fleet. Sessions stay this node's, where they are there when it is started again.
    pub async fn leave(&self, keeps_sessions: bool) {
        if !keeps_sessions && let Err(error) = self.0.member.reconcile(Vec::new).await {
            tracing::warn!(error = %ErrorChain(&error), "sessions that are gone are still this node's");
        }
        self.0.member.leave().await;
    }

    /// This node's membership.
    pub fn member(&self) -> &FleetMember {
        &self.0.member
    }

    /// Puts the gateway in front of routes.
    pub(crate) fn in_front_of(self, router: Router) -> Router {
        router.layer(from_fn_with_state(self, dispatch))
    }

    /// Returns true if this node's manager knows the session.
    fn is_here(&self, session: &SessionId) -> bool {
        self.0.manager.session(session).is_ok() || self.0.manager.record(session).is_ok()
    }

    /// Finds the owner of the session that a path names; `None` where it is this node, or nobody: the route says what there is to say.
    async fn find_owner(&self, named: &NamedSession, identity: Option<&Identity>) -> RouteResult<Option<OwnedSession>> {
        let Ok(session) = named.id.parse::<SessionId>() else { return Ok(None) };
        let user = identity.and_then(|identity| identity.user.as_deref());
        let sees = |owned: &OwnedSession| user.is_none() || owned.record.facts.user.as_deref() == user;
        let is_elsewhere = |owned: &OwnedSession| owned.record.node != *self.0.member.name();
        if let Some(owned) = self.0.member.owner(&session) {
            return Ok(Some(owned).filter(|owned| is_elsewhere(owned) && sees(owned)));
        }
        if self.is_here(&session) || !named.may_be_beginning {
            return Ok(None);
        }
        let candidates = self.0.member.sessions_beginning_with(&named.id, MAX_CANDIDATES + 1);
        let mut candidates: Vec<OwnedSession> = candidates.into_iter().filter(sees).collect();
        if candidates.len() > 1 {
            let more = if candidates.len() > MAX_CANDIDATES { " and more" } else { "" };
            return Err(ambiguous_id(&named.id, candidates.iter().map(|owned| owned.session.as_str()), more));
        }
        if let Some(owned) = candidates.pop() {
            return Ok(Some(owned).filter(is_elsewhere));
        }
        // One that was started elsewhere a moment ago.
        let owned = self.0.member.owner_now(&session).await.map_err(unreachable)?;
        Ok(owned.filter(|owned| is_elsewhere(owned) && sees(owned)))
    }

    /// Finds the session of this node that a path names, if another node had it before.
    fn taken_session(&self, named: &NamedSession, identity: Option<&Identity>) -> Option<SessionId> {
        let user = identity.and_then(|identity| identity.user.as_deref());
        let owned = self.find_visible(&named.id, user)?;
        let is_taken = owned.record.epoch > 1 && owned.record.node == *self.0.member.name();
        is_taken.then_some(owned.session)
    }

    /// Finds the session that an id names, or its beginning if it is the only one, among those that a user sees.
    fn find_visible(&self, id: &str, user: Option<&str>) -> Option<OwnedSession> {
        let sees = |owned: &OwnedSession| user.is_none() || owned.record.facts.user.as_deref() == user;
        let whole = id.parse::<SessionId>().ok().and_then(|session| self.0.member.owner(&session));
        if let Some(owned) = whole {
            return Some(owned).filter(sees);
        }
        let mut candidates = self.0.member.sessions_beginning_with(id, MAX_CANDIDATES + 1).into_iter().filter(sees);
        candidates.next().filter(|_| candidates.next().is_none())
    }

    /// Sends a request to another node, and returns its answer, whatever that is.
    async fn send(&self, node: &NodeName, request: OutgoingRequest) -> RouteResult<Response> {
        let is_change = changes(&request.method, request.uri.path());
        let counters = &self.0.counters;
        if self.0.member.node(node).is_none_or(|node| node.presence != NodePresence::Alive) {
            count(&counters.silent);
            return Err(self.silent(node, "its answer is not waited for"));
        }
        let answer = self.0.member.send(node, &request.encode()?).await;
        count(match &answer {
            Ok(_) => &counters.forwarded,
            Err(ExchangeError::NobodyListens { .. } | ExchangeError::NoAnswer { .. }) => &counters.silent,
            Err(ExchangeError::Refused { .. } | ExchangeError::TooLong { .. }) => &counters.refused,
            Err(ExchangeError::BrokenOff { .. } | ExchangeError::Engine(_)) => &counters.failed,
        });
        let mut response = decode_answer(answer.map_err(|error| self.exchange_problem(node, error, is_change))?)?;
        if let Ok(value) = HeaderValue::from_str(node.as_str()) {
            response.headers_mut().insert(NODE, value);
        }
        Ok(response)
    }

    fn exchange_problem(&self, node: &NodeName, error: ExchangeError, is_change: bool) -> ProblemDetails {
        match error {
            ExchangeError::NobodyListens { .. } => self.silent(node, "it did not get this request"),
            ExchangeError::NoAnswer { within, .. } => {
                let outcome = match is_change {
                    true => {
                        "it may have carried this request out, or do so later: send it again with an Idempotency-Key"
                    }
                    false => "try again",
                };
                self.silent(node, &format!("it gave no answer within {within:?}; {outcome}"))
            }
            ExchangeError::TooLong { bytes, most } => {
                let detail = format!(
                    "the request has {bytes} bytes, and one to another node has {most} at the most: send it to node {node} itself{}",
                    self.addresses(node)
                );
                ProblemDetails::new("body-too-large", detail)
            }
            ExchangeError::Refused { .. } => {
                let detail = format!(
                    "{error}: nothing was done; try again, or follow its sessions at that node itself{}",
                    self.addresses(node)
                );
                ProblemDetails::new("overloaded", detail)
            }
            ExchangeError::BrokenOff { .. } => ProblemDetails::failed(error.to_string()),
            ExchangeError::Engine(error) => unreachable(error),
        }
    }

    /// Describes the silence of a node that a request is for.
    fn silent(&self, node: &NodeName, consequence: &str) -> ProblemDetails {
        let known = self.0.member.node(node);
        let since = match &known {
            None => "is none that this one has seen since it joined".to_owned(),
            Some(known) if known.presence == NodePresence::Left => {
                format!("has left the fleet, {} s after its last beat", known.silent_seconds)
            }
            Some(known) => {
                let since = std::time::SystemTime::now() - Duration::from_secs(known.silent_seconds);
                format!("does not answer, and its last beat was at {}", humantime::format_rfc3339_seconds(since))
            }
        };
        let here = match self.0.member.is_lease_held() {
            true => "",
            false => "; this node itself has lost the fleet's engine",
        };
        let detail = format!("node {node}, which has the session, {since}{here}: {consequence}");
        ProblemDetails::new("node-silent", detail)
    }

    /// Tells where a node is reached directly.
    fn addresses(&self, node: &NodeName) -> String {
        let addresses = self.0.member.node(node).map(|node| node.record.addresses).unwrap_or_default();
        if addresses.is_empty() { String::new() } else { format!(", at {}", addresses.join(" or ")) }
    }
}

/// Passes a request on to where it belongs.
async fn dispatch(State(gateway): State<FleetGateway>, request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let target = RequestTarget::of(&method, &path);
    let is_passed_on = request.extensions().get::<PassedOn>().is_some();
    let answered = match target {
        RequestTarget::Start => placing::start(&gateway, request, next, is_passed_on).await,
        RequestTarget::List(list) if !is_passed_on => list_all(&gateway, list, request, next).await,
        RequestTarget::AllEvents if !is_passed_on => all_events::read(&gateway, request, next).await,
        RequestTarget::Session(named) => {
            // Who looks does not wait.
            let moved = match changes(&method, &path) {
                true => gateway.wait_for_move(&named, is_kill(&method, &path)).await,
                false => Ok(false),
            };
            match moved {
                Err(problem) => Err(problem),
                Ok(has_moved) if is_passed_on && !has_moved => answer_here(&gateway, &named, request, next).await,
                Ok(_) => to_owner(&gateway, &named, request, next).await,
            }
        }
        RequestTarget::Node(node) if !is_passed_on && node != gateway.0.member.name().as_str() => {
            to_node(&gateway, &node, request).await
        }
        _ => Ok(next.run(request).await),
    };
    if changes(&method, &path) {
        gateway.0.changed.notify_one();
    }
    answered.unwrap_or_else(ProblemDetails::into_response)
}

/// Has a session's owner answer.
async fn to_owner(gateway: &FleetGateway, named: &NamedSession, request: Request, next: Next) -> RouteResult<Response> {
    let identity = request.extensions().get::<Identity>().cloned();
    let Some(OwnedSession { session, record, .. }) = gateway.find_owner(named, identity.as_ref()).await? else {
        return answer_here(gateway, named, request, next).await;
    };
    if is_websocket(request.headers()) || request.headers().contains_key(axum::http::header::UPGRADE) {
        let detail = format!(
            "node {} has session {session}, and terminals, shells and WebSockets are not passed on: connect to that node{}",
            record.node,
            gateway.addresses(&record.node)
        );
        return Err(ProblemDetails::new("other-node", detail));
    }
    let is_kill = is_kill(request.method(), request.uri().path());
    let reads_events = logged_events::is_asked_for(request.method(), request.uri().path());
    let mut request = outgoing(request).await?;
    let (uri, headers) = (request.uri.clone(), request.headers.clone());
    request.uri = with_path(&request.uri, |path| {
        let (before, after) = (&path[..named.place.start], &path[named.place.end..]);
        format!("{before}{session}{after}")
    });
    // Its owner cannot say whether the caller may.
    let may_kill = identity.as_ref().is_none_or(|identity| identity.role >= Role::Operate);
    let is_whole_kill = is_kill && may_kill && is_of_whole_session(&request.body);
    match gateway.send(&record.node, request).await {
        Err(mut problem) if problem.kind == "node-silent" && is_whole_kill => {
            let by = identity.map_or_else(|| "host".to_owned(), |identity| identity.name);
            if gateway.0.member.remember_kill(&session, &by).await.map_err(unreachable)? {
                problem.detail.push_str("; the kill is remembered, and that node carries it out when it is back");
            }
            Err(problem)
        }
        // The fleet's log goes on where its owner does not.
        Err(problem) if problem.kind == "node-silent" && reads_events => {
            let logged = logged_events::read(gateway.member(), &session, &uri, &headers).await?;
            logged.ok_or(problem)
        }
        answered => answered,
    }
}

/// Answers a request about a session of this node. The beginning of a session that another node had before is in the fleet's log alone.
async fn answer_here(
    gateway: &FleetGateway,
    named: &NamedSession,
    request: Request,
    next: Next,
) -> RouteResult<Response> {
    let (uri, headers) = (request.uri(), request.headers());
    if logged_events::is_asked_for(request.method(), uri.path())
        && let Some(session) = gateway.taken_session(named, request.extensions().get())
        && let Some(stream) = gateway.0.manager.replicated_stream(&session)
        && logged_events::begins_before(uri, headers, stream.first)
        && let Some(logged) = logged_events::read(gateway.member(), &session, uri, headers).await?
    {
        return Ok(logged);
    }
    Ok(next.run(request).await)
}

/// Has another node answer.
async fn to_node(gateway: &FleetGateway, node: &str, request: Request) -> RouteResult<Response> {
    let node: NodeName = node.parse().map_err(|error| ProblemDetails::usage(format!("{error}")))?;
    gateway.send(&node, outgoing(request).await?).await
}

/// Returns true for the body of a kill that is of the whole session, and not of some of its processes.
fn is_of_whole_session(body: &[u8]) -> bool {
    let body = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice::<KillRequest>(body).is_ok_and(|kill| kill.pid.is_none() && !kill.keep_agent)
}

/// Puts the lists of all nodes together.
async fn list_all(gateway: &FleetGateway, list: FleetList, request: Request, next: Next) -> RouteResult<Response> {
    let uri = request.uri().clone();
    let (parts, body) = request.into_parts();
    let copy = OutgoingRequest {
        method: parts.method.clone(),
        uri: parts.uri.clone(),
        headers: parts.headers.clone(),
        extensions: parts.extensions.clone(),
        body: Vec::new(),
    };
    let own = next.run(Request::from_parts(parts, body)).await;
    if !own.status().is_success() {
        return Ok(own);
    }
    let mut lists = vec![members(own).await?];
    let (alive, mut silent) = gateway.0.member.others();
    let asked = alive.iter().map(async |node| {
        let answer = gateway.send(node, copy.clone()).await?;
        match answer.status().is_success() {
            true => members(answer).await,
            false => Err(ProblemDetails::failed(format!("node {node} answered with the status {}", answer.status()))),
        }
    });
    for (node, list) in alive.iter().zip(join_all(asked).await) {
        match list {
            Ok(list) => lists.push(list),
            Err(problem) => {
                tracing::warn!(%node, why = problem.detail, "a list lacks what a node has");
                silent.push(node.clone());
            }
        }
    }
    let (mut headers, members) = lists::merge(list, &uri, lists)?;
    if !silent.is_empty() {
        let names = silent.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        headers.extend(HeaderValue::from_str(&names).ok().map(|names| (SILENT_NODES, names)));
    }
    Ok((headers, JsonBody(members)).into_response())
}

async fn members(response: Response) -> RouteResult<Vec<Value>> {
    let failed = |error: &dyn std::fmt::Display| ProblemDetails::failed(format!("a list cannot be read: {error}"));
    let body = to_bytes(response.into_body(), MAX_LIST).await.map_err(|error| failed(&error))?;
    serde_json::from_slice(&body).map_err(|error| failed(&error))
}

/// Reads a request whole, to send it to another node.
async fn outgoing(request: Request) -> RouteResult<OutgoingRequest> {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, MAX_BODY).await.map_err(|error| {
        ProblemDetails::new("body-too-large", format!("reading the request failed: {error} (at most {MAX_BODY} bytes)"))
    })?;
    let axum::http::request::Parts { method, uri, headers, extensions, .. } = parts;
    Ok(OutgoingRequest { method, uri, headers, extensions, body: body.into() })
}

/// Changes the path of a URI, and leaves its query.
fn with_path(uri: &Uri, change: impl FnOnce(&str) -> String) -> Uri {
    let path = change(uri.path());
    let whole = uri.query().map_or(path.clone(), |query| format!("{path}?{query}"));
    let Ok(whole) = whole.parse::<PathAndQuery>() else { return uri.clone() };
    Uri::from(whole)
}

/// Converts an error of the engine.
pub(crate) fn unreachable(error: EngineError) -> ProblemDetails {
    let detail = format!("{}: is it running, and does this node reach it?", ErrorChain(&error));
    ProblemDetails::new("fleet-unreachable", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_changes_and_the_query_stays() {
        let uri: Uri = "/v1/sessions/s/events?from=1".parse().expect("a URI");
        assert_eq!(with_path(&uri, |path| path.replace("/s/", "/s-1/")), "/v1/sessions/s-1/events?from=1");
    }

    #[test]
    fn only_a_kill_of_the_whole_session_is_remembered() {
        assert!(is_of_whole_session(b"") && is_of_whole_session(br#"{"graceMs":5,"pid":null}"#));
        assert!(!is_of_whole_session(br#"{"pid":7}"#) && !is_of_whole_session(br#"{"keepAgent":true}"#));
    }
}
