//! A fleet as this node sees it: its nodes, and who has which session.

use axum::{
    extract::{Path, Query, State},
    http::StatusCode,
};
use fleet::{FleetNode, ForgetError, NodeName, NodePresence};
use proxy_manager::SessionId;
use serde::Deserialize;

use crate::{
    ApiState, FleetGateway, ProblemDetails,
    access::Caller,
    api::{DrainedNode, FleetSession, ForgottenNode, MoveRequest, MovedSession, StayingSession},
    requests::{Body, JsonBody, RouteResult, parse},
    route_table::api_routes,
};

api_routes! { "Fleet", ApiState;
    /// Lists the nodes of the fleet, as the one that answers sees them.
    ///
    /// One that has left or is silent is listed for as long as that node knows of it.
    get "/v1/fleet/nodes" nodes: json::<Vec<FleetNode>>(200, "The nodes.") problems(&["unsupported"]);
    /// Lists the sessions of the fleet with their owners, those of silent nodes too.
    get "/v1/fleet/sessions" sessions: json::<Vec<FleetSession>>(200, "The sessions.") problems(&["unsupported"]);
    /// Moves a session to another node, with its conversation; its events go on where they are.
    ///
    /// It is suspended here and resumed there. A turn that runs is ended. The agent's conversation has to be in a home of the session's own.
    post "/v1/fleet/sessions/{id}/move" move_session:
        body::<MoveRequest>() json::<MovedSession>(200, "It has moved.")
        problems(SESSION) problems(&["unsupported", "no-node", "survivors"]);
    /// Takes over a session that another node has given to this one. For nodes.
    post "/v1/fleet/sessions/{id}/take" take_session:
        query::<TakeQuery>() empty(204, "It is here.") problems(SESSION) problems(&["unsupported"]);
    /// Moves all sessions away from a node that can move, and has it take no new ones until it is started again.
    post "/v1/fleet/nodes/{node}/drain" drain:
        json::<DrainedNode>(200, "What became of its sessions.") problems(&["unsupported", "usage", "node-silent"]);
    /// Gives up what the fleet has of a node that is gone for good: its sessions with their events, conversations and keys.
    post "/v1/fleet/nodes/{node}/forget" forget:
        json::<ForgottenNode>(200, "Its sessions, which are gone.") problems(&["unsupported", "usage", "refused", "not-ended"]);
}

/// Query of a takeover.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
struct TakeQuery {
    /// True to resume the session.
    resume: bool,
}

async fn move_session(
    caller: Caller,
    State(state): State<ApiState>,
    Path(id): Path<String>,
    body: Body,
) -> RouteResult<JsonBody<MovedSession>> {
    let MoveRequest { to } = parse(body)?;
    let (gateway, id) = (gateway(&state)?.clone(), caller.session_id(&id)?);
    let work = tokio::spawn(async move { gateway.move_session(&id, to).await });
    let moved = work.await.unwrap_or_else(|error| Err(ProblemDetails::failed(format!("the work broke off: {error}"))));
    match moved? {
        (moved, None) => Ok(JsonBody(moved)),
        (_, Some(problem)) => Err(problem),
    }
}

async fn take_session(
    caller: Caller,
    State(state): State<ApiState>,
    Path(id): Path<SessionId>,
    Query(TakeQuery { resume }): Query<TakeQuery>,
) -> RouteResult<StatusCode> {
    caller.check_all_users("a session that another node gave to this one")?;
    gateway(&state)?.take_session(&id, resume).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn drain(caller: Caller, State(state): State<ApiState>) -> RouteResult<JsonBody<DrainedNode>> {
    caller.check_all_users("a node")?;
    let gateway = gateway(&state)?.clone();
    let work = tokio::spawn(async move { gateway.drain_sessions().await });
    let outcomes = work.await.map_err(|error| ProblemDetails::failed(format!("the work broke off: {error}")))?;
    let (mut moved, mut stay) = (Vec::new(), Vec::new());
    for (session_id, outcome) in outcomes {
        match outcome {
            Ok((session, _)) => moved.push(session),
            Err(problem) => stay.push(StayingSession { session_id, reason: problem.detail }),
        }
    }
    Ok(JsonBody(DrainedNode { moved, stay }))
}

async fn forget(
    caller: Caller,
    State(state): State<ApiState>,
    Path(node): Path<String>,
) -> RouteResult<JsonBody<ForgottenNode>> {
    caller.check_all_users("a node")?;
    let node: NodeName = node.parse().map_err(|error| ProblemDetails::usage(format!("{error}")))?;
    let gateway = gateway(&state)?.clone();
    if gateway.member().node(&node).is_some_and(|known| known.presence == NodePresence::Alive) {
        let detail = format!("node {node} is alive: only one that is gone for good can be forgotten: stop it first");
        return Err(ProblemDetails::new("not-ended", detail));
    }
    let work = tokio::spawn(async move { gateway.member().forget_node(&node).await });
    let forgotten = work.await.map_err(|error| ProblemDetails::failed(format!("the work broke off: {error}")))?;
    let sessions = forgotten.map_err(|error| match error {
        ForgetError::NotOver { .. } => ProblemDetails::new("not-ended", error.to_string()),
        ForgetError::Engine(error) => crate::fleet::unreachable(error),
    })?;
    Ok(JsonBody(ForgottenNode { sessions }))
}

async fn nodes(State(state): State<ApiState>) -> RouteResult<JsonBody<Vec<FleetNode>>> {
    Ok(JsonBody(gateway(&state)?.member().nodes()))
}

async fn sessions(caller: Caller, State(state): State<ApiState>) -> RouteResult<JsonBody<Vec<FleetSession>>> {
    let member = gateway(&state)?.member();
    let owned = member.sessions().into_iter().filter(|owned| caller.sees(owned.record.facts.user.as_deref()));
    let described = owned.map(|owned| {
        let node = member.node(&owned.record.node);
        FleetSession {
            session_id: owned.session,
            node: owned.record.node,
            presence: node.as_ref().map(|node| node.presence),
            silent_seconds: node.map(|node| node.silent_seconds),
            epoch: owned.record.epoch,
            phase: owned.record.facts.phase,
            agent: owned.record.facts.agent,
            labels: owned.record.labels,
            user_id: owned.record.facts.user,
            snapshot: owned.record.snapshot,
            kill: owned.record.kill,
        }
    });
    Ok(JsonBody(described.collect()))
}

fn gateway(state: &ApiState) -> RouteResult<&FleetGateway> {
    state.fleet.as_ref().ok_or_else(|| {
        ProblemDetails::new("unsupported", "this server is in no fleet: start it with `serve --fleet nats://HOST:4222`")
    })
}
