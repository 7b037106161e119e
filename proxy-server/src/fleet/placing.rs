//! Starts of sessions: the node that suits one, and its claim there.

use std::collections::BTreeMap;

use axum::{
    body::Body,
    extract::{Query, Request},
    http::{HeaderMap, Uri, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use fleet::{
    ClaimError, NodeName, PlacementError, PlacementRequest, SessionClaim, SessionFacts, SessionPhase, StartKeyRecord,
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use proxy_manager::{AgentSessionConfig, ResumeFrom, SessionId};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::{FleetGateway, forwarding::OutgoingRequest, outgoing, unreachable, with_path};
use crate::{
    ProblemDetails,
    access::{Identity, Peer, role_for},
    api::PlacementQuery,
    idempotency,
    requests::RouteResult,
};

/// Header of a refusal that any node would give: a bound over the fleet, or what the fleet has.
const FLEET_BOUND: &str = "agent-proxy-fleet-bound";
/// Nodes that are tried for one start.
const MAX_ATTEMPTS: usize = 3;

/// Starts a session on the node that suits it, or on this one where another has chosen it.
pub(super) async fn start(
    gateway: &FleetGateway,
    request: Request,
    next: Next,
    is_passed_on: bool,
) -> RouteResult<Response> {
    // Nothing is claimed or written for a caller who may not start sessions: the route refuses it.
    let role = request.extensions().get::<Identity>().map(|identity| identity.role);
    if role.is_some_and(|role| role < role_for(request.method(), "/v1/sessions")) {
        return Ok(next.run(request).await);
    }
    let mut request = outgoing(request).await?;
    let placement = Query::<PlacementQuery>::try_from_uri(&request.uri);
    let Query(placement) = placement.map_err(|error| ProblemDetails::usage(error.to_string()))?;
    let labels = parse_labels(&placement.label)?;
    // The route itself knows nothing of it.
    request.uri = with_path(&Uri::from_static("/v1/sessions"), str::to_owned);
    // What does not parse is told by the route.
    let parsed: Option<(Map<String, Value>, AgentSessionConfig)> =
        serde_json::from_slice(&request.body).ok().and_then(|fields: Map<String, Value>| {
            let config = serde_json::from_value(Value::Object(fields.clone())).ok()?;
            Some((fields, config))
        });
    let Some((fields, config)) = parsed else { return Ok(next.run(incoming(request)?).await) };
    if is_passed_on {
        return start_here(gateway.clone(), config, labels, request, next).await;
    }
    let start = PlacedStart { gateway, placement, labels, fields, config };
    start.run(request, next).await
}

/// Start that this node looks for a place for.
struct PlacedStart<'a> {
    gateway: &'a FleetGateway,
    placement: PlacementQuery,
    /// Labels that its node has to have.
    labels: BTreeMap<String, String>,
    /// Body as it came, with the id of the session once that is known.
    fields: Map<String, Value>,
    config: AgentSessionConfig,
}

impl PlacedStart<'_> {
    async fn run(mut self, mut request: OutgoingRequest, next: Next) -> RouteResult<Response> {
        let identity = request.extensions.get::<Identity>().cloned();
        self.set_depth(&request)?;
        let placement = self.placement_request(identity.as_ref()).await?;
        let gateway = self.gateway;
        let member = gateway.member();
        let choose = |excluded: &[NodeName]| member.place(&placement, excluded).map_err(no_node);
        let mut node = choose(&[])?;
        let key = request_key(identity.as_ref(), &request.headers);
        let has_id = self.fields.contains_key("sessionId");
        if let Some(key) = &key {
            let start = StartKeyRecord { node, session: self.config.session_id.clone() };
            let known = member.remember_start(key, &start).await.map_err(unreachable)?;
            node = known.node;
            if !has_id {
                self.config.session_id = known.session;
            }
        }
        self.fields.insert("sessionId".into(), self.config.session_id.as_str().into());
        request.body = serde_json::to_vec(&self.fields).unwrap_or_default();
        // The node writes them to the session's row.
        let labels = utf8_percent_encode(&self.placement.label, NON_ALPHANUMERIC).to_string();
        let for_node = with_path(&Uri::from_static("/v1/sessions"), |path| match labels.is_empty() {
            true => path.to_owned(),
            false => format!("{path}?label={labels}"),
        });
        let mut next = Some(next);
        let mut refused: Vec<NodeName> = Vec::new();
        loop {
            let answer = match next.take_if(|_| node == *member.name()) {
                Some(next) => {
                    start_here(gateway.clone(), self.config.clone(), self.labels.clone(), request.clone(), next).await
                }
                None => {
                    let request = OutgoingRequest { uri: for_node.clone(), ..request.clone() };
                    let answer = gateway.send(&node, request).await;
                    answer.map_err(|problem| self.explain_key(&node, problem))
                }
            };
            // What counts over the fleet is the same on every node.
            let is_full = match &answer {
                Ok(answer) => answer.status() == 429 && !answer.headers().contains_key(FLEET_BOUND),
                Err(problem) => problem.status == 429,
            };
            refused.push(node);
            // One with a key stays where it was first sent.
            if !is_full || key.is_some() || refused.len() >= MAX_ATTEMPTS {
                return answer;
            }
            match choose(&refused) {
                // This node's own turn is over.
                Ok(other) if other == *member.name() && next.is_none() => return answer,
                Ok(other) => node = other,
                Err(_) => return answer,
            }
        }
    }

    /// Says what to do where the node of a key is silent.
    fn explain_key(&self, node: &NodeName, mut problem: ProblemDetails) -> ProblemDetails {
        if let Some(key) = self.config.lifecycle.key.as_deref().filter(|_| problem.kind == "node-silent") {
            problem.detail.push_str(&format!(
                ". The conversation of the key {key:?} is there: wait for that node, start with another key, or, where it never comes back, \
                 `agent-proxy fleet forget {node}` gives up its sessions and their keys"
            ));
        }
        problem
    }

    /// Notes how deep a session is that one of this node's own sessions starts: no other node can tell.
    fn set_depth(&mut self, request: &OutgoingRequest) -> RouteResult<()> {
        let Some(Peer { is_in_session: true, pid: Some(pid), .. }) = request.extensions.get::<Peer>() else {
            return Ok(());
        };
        let depth = self.gateway.0.manager.depth_of_process(*pid);
        let unknown =
            |why| ProblemDetails::new("refused", format!("depth: that of the caller's session is unknown: {why}"));
        let depth = self.config.depth.max(depth.map_err(unknown)?);
        self.fields.insert("depth".into(), depth.into());
        self.config.depth = depth;
        Ok(())
    }

    /// Finds what the start asks of its node. One that goes on with a conversation goes to where that is.
    async fn placement_request(&self, identity: Option<&Identity>) -> RouteResult<PlacementRequest> {
        let node = self.placement.node.as_deref().map(str::parse::<NodeName>).transpose();
        let node = node.map_err(|error| ProblemDetails::usage(error.to_string()))?;
        let mut placement = PlacementRequest {
            agent: self.fields.contains_key("agent").then(|| self.config.agent.clone()),
            node,
            labels: self.labels.clone(),
            ..PlacementRequest::default()
        };
        let owner = match &self.config.resume {
            Some(resume) => match &resume.from {
                ResumeFrom::Session { id } => self.owner_of(id, identity),
                ResumeFrom::Native { .. } | ResumeFrom::MostRecent => None,
            },
            None => None,
        };
        let member = self.gateway.member();
        let held = match (owner, &self.config.lifecycle.key) {
            (Some(owner), _) => Some(owner),
            (None, Some(key)) => {
                let user = identity.and_then(|identity| identity.user.as_deref()).or(self.config.user_id.as_deref());
                let key = key_of(user, key);
                let node = match member.session_with_key(&key) {
                    // Whether it is there, or fits, is that node's to say.
                    Some(owned) => owned.record.node,
                    None => {
                        let node = member.place(&placement, &[]).map_err(no_node)?;
                        member.node_with_key(&key, &node).await.map_err(unreachable)?
                    }
                };
                Some(node)
            }
            (None, None) => None,
        };
        match (&placement.node, held) {
            (Some(asked), Some(held)) if *asked != held => {
                let detail =
                    format!("node: the conversation is on node {held}, and {asked} is asked for: leave it out");
                Err(ProblemDetails::usage(detail))
            }
            (_, Some(held)) => {
                placement.node = Some(held);
                Ok(placement)
            }
            (_, None) => Ok(placement),
        }
    }

    /// Finds the node of a session that the caller sees.
    fn owner_of(&self, session: &SessionId, identity: Option<&Identity>) -> Option<NodeName> {
        let user = identity.and_then(|identity| identity.user.as_deref());
        self.gateway.find_visible(session.as_str(), user).map(|owned| owned.record.node)
    }
}

/// Parses labels with commas between them: `gpu=1,disk=ssd`.
fn parse_labels(text: &str) -> RouteResult<BTreeMap<String, String>> {
    let parse = |part: &str| match part.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(ProblemDetails::usage(format!("label {part:?} is not KEY=VALUE"))),
    };
    text.split(',').filter(|part| !part.is_empty()).map(parse).collect()
}

/// Starts a session on this node, whose claim comes first. Goes on if the client leaves.
async fn start_here(
    gateway: FleetGateway,
    config: AgentSessionConfig,
    labels: BTreeMap<String, String>,
    request: OutgoingRequest,
    next: Next,
) -> RouteResult<Response> {
    let work = tokio::spawn(async move {
        let member = gateway.member();
        let session = config.session_id;
        let identity = request.extensions.get::<Identity>();
        let user = identity.and_then(|identity| identity.user.clone()).or(config.user_id);
        let facts = SessionFacts {
            key: config.lifecycle.key.as_deref().map(|key| key_of(user.as_deref(), key)),
            user,
            agent: Some(config.agent).filter(|agent| !agent.is_empty()),
            phase: SessionPhase::Running,
        };
        check_key(&gateway, &facts)?;
        let _starting = member.begin_start(&session);
        let is_here = gateway.is_here(&session);
        check_given(&gateway, &session, is_here)?;
        let claimed = match is_here {
            true => member.claim(&session, &facts, &labels).await,
            false => member.claim_start(&session, &facts, &labels).await,
        };
        let claim = claimed.map_err(|error| refused_claim(&session, error))?;
        let response = match check_started(&gateway, &session, &facts, claim).await {
            Ok(()) => next.run(incoming(request)?).await,
            Err(problem) => ([(FLEET_BOUND, "true")], problem).into_response(),
        };
        // A row that was there is another start's, or a session's.
        if !response.status().is_success()
            && claim.is_new
            && !gateway.is_here(&session)
            && let Err(error) = member.release(&session).await
        {
            tracing::warn!(%session, %error, "a session that did not start is still this node's");
        }
        gateway.0.changed.notify_one();
        Ok(response)
    });
    work.await.unwrap_or_else(|error| Err(ProblemDetails::failed(format!("the work broke off: {error}"))))
}

/// Refuses a start with a key whose session has moved, as this node knows better than the one that sent the start here.
fn check_key(gateway: &FleetGateway, facts: &SessionFacts) -> RouteResult<()> {
    let owned = facts.key.as_deref().and_then(|key| gateway.member().session_with_key(key));
    match owned {
        Some(owned) if owned.record.node != *gateway.member().name() => {
            let detail = format!(
                "session {}, which has the key, has moved to node {}: send the start again",
                owned.session, owned.record.node
            );
            Err(ProblemDetails::new("other-node", detail))
        }
        _ => Ok(()),
    }
}

/// Refuses the id of a session that another node has given to this one, and that goes on here in a moment.
fn check_given(gateway: &FleetGateway, session: &SessionId, is_here: bool) -> RouteResult<()> {
    if !gateway.member().is_given(session, is_here) {
        return Ok(());
    }
    let detail = format!(
        "a session {session} exists: it was given to node {}, and goes on there in a moment: give this one another id",
        gateway.member().name()
    );
    Err(ProblemDetails::new("duplicate-session", detail))
}

/// Checks what counts over the whole fleet, once the session's row is there: of two starts at once the later one sees the other.
async fn check_started(
    gateway: &FleetGateway,
    session: &SessionId,
    facts: &SessionFacts,
    claim: SessionClaim,
) -> RouteResult<()> {
    // Its row may have come since the first look.
    check_given(gateway, session, gateway.is_here(session))?;
    let (Some(most), Some(user)) = (gateway.0.settings.max_per_user, facts.user.as_deref()) else { return Ok(()) };
    // One that runs already counts once.
    if !claim.is_new {
        return Ok(());
    }
    let running = gateway.member().count_of_user(user, claim, session).await.map_err(unreachable)?;
    if running < most {
        return Ok(());
    }
    let detail = format!(
        "user {user} has {running} sessions on the nodes of the fleet, and may have {most}: end one; `serve --max-per-user` sets the limit"
    );
    Err(ProblemDetails::new("too-many-sessions", detail))
}

fn refused_claim(session: &SessionId, error: ClaimError) -> ProblemDetails {
    match error {
        ClaimError::Owned { node } => {
            let detail = format!("a session {session} exists, on node {node}: give this one another id");
            ProblemDetails::new("duplicate-session", detail)
        }
        ClaimError::LeaseOver { .. } => {
            ProblemDetails::new("fleet-unreachable", format!("session {session} is not started: {error}"))
        }
        ClaimError::Engine(error) => unreachable(error),
    }
}

pub(super) fn no_node(error: PlacementError) -> ProblemDetails {
    let advice = "`agent-proxy fleet nodes` shows what there is";
    ProblemDetails::new("no-node", format!("no node for the session: {error}: {advice}"))
}

/// Name of a user's key in the rows of sessions.
pub(super) fn key_of(user: Option<&str>, key: &str) -> String {
    hash(&[user.unwrap_or_default().as_bytes(), key.as_bytes()])
}

/// Name of a start that may be sent again: its caller's key.
fn request_key(identity: Option<&Identity>, headers: &HeaderMap) -> Option<String> {
    let key = headers.get(idempotency::KEY)?;
    let caller = identity.map_or("host", |identity| identity.name.as_str());
    Some(hash(&[caller.as_bytes(), key.as_bytes()]))
}

fn hash(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Makes a request for this node's own routes.
fn incoming(request: OutgoingRequest) -> RouteResult<Request> {
    let OutgoingRequest { method, uri, headers, extensions, body } = request;
    let built = Request::builder().method(method).uri(uri).body(Body::from(body));
    let mut request = built.map_err(|error| ProblemDetails::failed(format!("the request makes no sense: {error}")))?;
    *request.headers_mut() = headers;
    // The body may be another than the one that came.
    request.headers_mut().remove(header::CONTENT_LENGTH);
    *request.extensions_mut() = extensions;
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_pairs() {
        let labels = parse_labels("gpu=1,disk=ssd,empty=").expect("pairs");
        assert_eq!(
            labels.into_iter().collect::<Vec<_>>(),
            [("disk", "ssd"), ("empty", ""), ("gpu", "1")].map(|(key, value)| (key.to_owned(), value.to_owned()))
        );
        assert!(parse_labels("gpu").is_err() && parse_labels("=1").is_err());
        assert!(parse_labels("").expect("none").is_empty());
    }

    #[test]
    fn keys_of_two_callers_are_two() {
        let mut headers = HeaderMap::new();
        assert_eq!(request_key(None, &headers), None);
        headers.insert(idempotency::KEY, "k".parse().expect("a value"));
        let of = |name: &str| request_key(Some(&Identity::new(name, crate::Role::Operate)), &headers);
        assert_ne!(of("ada"), of("bob"));
        assert_eq!(of("host"), request_key(None, &headers));
    }
}
