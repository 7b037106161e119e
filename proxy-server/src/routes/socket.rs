//! WebSockets for renderers.

use axum::{
    Router,
    extract::{FromRef, Path, Request, State},
    response::Response,
};

use crate::{
    ApiState,
    access::{Caller, Identity, Peer},
    requests::{MAX_BODY, RouteResult},
    route_table::api_routes,
    socket,
    websocket::accept,
};

/// State of these routes: those of the API, to which requests are passed on.
#[derive(Clone, Debug)]
pub(super) struct SocketState {
    pub(super) api: ApiState,
    pub(super) routes: Router,
}

impl FromRef<SocketState> for ApiState {
    fn from_ref(state: &SocketState) -> Self {
        state.api.clone()
    }
}

impl FromRef<SocketState> for Router {
    fn from_ref(state: &SocketState) -> Self {
        state.routes.clone()
    }
}

api_routes! { "WebSockets", SocketState;
    /// Connects a WebSocket for events of any sessions, and for requests with their replies.
    ///
    /// Messages are JSON texts. Each request stands for a route, whose role it needs.
    get "/v1/socket" connect:
        header("Upgrade", "`websocket`") empty(101, "Messages follow, in both directions.") problems(&["usage"]);
    /// Connects a WebSocket for one session's events, and for requests with their replies.
    ///
    /// As `/v1/socket`; requests that name no session are for this one.
    get "/v1/sessions/{id}/socket" connect_to_session:
        header("Upgrade", "`websocket`") empty(101, "Messages follow, in both directions.") problems(SESSION);
}

async fn connect(State(routes): State<Router>, request: Request) -> RouteResult<Response> {
    serve(routes, request, None)
}

async fn connect_to_session(
    caller: Caller,
    State(routes): State<Router>,
    Path(id): Path<String>,
    request: Request,
) -> RouteResult<Response> {
    let id = caller.session_id(&id)?;
    serve(routes, request, Some(id.to_string()))
}

fn serve(routes: Router, request: Request, session: Option<String>) -> RouteResult<Response> {
    let caller = (request.extensions().get::<Identity>().cloned(), request.extensions().get::<Peer>().copied());
    accept(request, MAX_BODY, move |socket| socket::serve(socket, routes, caller, session))
}
