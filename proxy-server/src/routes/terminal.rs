//! Routes `terminal` and `shell`: connect a client to a session's terminal, or to a new shell in the session.
//!
//! The connection is upgraded to the protocol of `ipc_protocol::terminal`, whose bytes the daemon passes on, or to a WebSocket for
//! browsers.

use axum::{
    extract::{Path, Query, Request},
    http::{StatusCode, header},
    response::Response,
};
use hyper_util::rt::TokioIo;
use proxy_manager::{
    SessionInfo,
    terminal::{Surface, TerminalViewer, ToTerminal},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::UnixStream,
};

use crate::{
    ApiState, ProblemDetails,
    access::Caller,
    api::TERMINAL_PROTOCOL,
    requests::{Body, JsonBody, RouteResult, UrlQuery, parse, to_the_end},
    route_table::api_routes,
    terminal_socket::{self, LONGEST_INPUT, TerminalQuery},
    websocket::{accept, is_websocket},
};

api_routes! { "Terminals", ApiState;
    /// Connects to a session's terminal.
    ///
    /// Needs the headers `Connection: upgrade` and `Upgrade: agent-proxy-terminal`, or a WebSocket's, for which the query is. Where the session has a screen beside its protocol, this starts it.
    get "/v1/sessions/{id}/terminal" terminal:
        query::<TerminalQuery>() header("Upgrade", "`agent-proxy-terminal`, or `websocket`") empty(101, "Messages of the terminal follow, in both directions.") problems(SESSION) problems(PROXY);
    /// Starts a program beside the agent, and connects to it.
    ///
    /// As the terminal.
    get "/v1/sessions/{id}/shell" shell:
        query::<TerminalQuery>() header("Upgrade", "`agent-proxy-terminal`, or `websocket`") empty(101, "Messages of the terminal follow, in both directions.") problems(SESSION) problems(PROXY);
    /// Starts the agent's own screen in the session's terminal.
    ///
    /// The session goes on as before when that program has ended.
    post "/v1/sessions/{id}/visit" visit:
        body::<proxy_manager::terminal::TerminalConfig>() json::<SessionInfo>(200, "The session.")
        problems(SESSION) problems(START) problems(&["busy", "suspended", "handed-over", "not-suspended"]);
}

/// Starts the agent's own screen in the session's terminal. The session goes on as before when its program has ended.
async fn visit(caller: Caller, Path(id): Path<String>, body: Body) -> RouteResult<JsonBody<SessionInfo>> {
    let (id, terminal) = (caller.session_id(&id)?, parse(body)?);
    caller.check_wake(&id)?;
    caller.check_visit(&id)?;
    let visited = to_the_end(async move { caller.manager.visit(&id, terminal).await }).await?;
    Ok(JsonBody(visited.info()))
}

async fn terminal(
    caller: Caller,
    Path(id): Path<String>,
    query: UrlQuery<TerminalQuery>,
    request: Request,
) -> RouteResult<Response> {
    if is_websocket(request.headers()) {
        let Query(query) = query.map_err(|error| ProblemDetails::usage(error.to_string()))?;
        return show(request, view(&caller, &id).await?, query.attach(), query);
    }
    check_upgrade(&request)?;
    upgrade(request, view(&caller, &id).await?)
}

/// Connects to a session's terminal. A screen beside the protocol is a visit that lasts: the first viewer starts it.
async fn view(caller: &Caller, id: &str) -> RouteResult<TerminalViewer> {
    let session = caller.find(id)?;
    if session.info().metadata.surface == Surface::Both {
        caller.check_visit(session.id())?;
    }
    Ok(session.view_terminal().await?)
}

async fn shell(
    caller: Caller,
    Path(id): Path<String>,
    query: UrlQuery<TerminalQuery>,
    request: Request,
) -> RouteResult<Response> {
    if is_websocket(request.headers()) {
        let Query(query) = query.map_err(|error| ProblemDetails::usage(error.to_string()))?;
        let session = caller.find(&id)?;
        caller.check_shell(&session)?;
        return show(request, session.shell().await?, query.shell(), query);
    }
    check_upgrade(&request)?;
    let session = caller.find(&id)?;
    caller.check_shell(&session)?;
    upgrade(request, session.shell().await?)
}

/// Connects a browser; `first` is its first message.
fn show(request: Request, viewer: TerminalViewer, first: ToTerminal, query: TerminalQuery) -> RouteResult<Response> {
    accept(request, LONGEST_INPUT, move |socket| terminal_socket::serve(socket, viewer, first, query.window()))
}

fn check_upgrade(request: &Request) -> RouteResult<()> {
    let asked = request.headers().get(header::UPGRADE).and_then(|value| value.to_str().ok());
    if asked != Some(TERMINAL_PROTOCOL) {
        let advice = format!(
            "connect with the headers `Connection: upgrade` and `Upgrade: {TERMINAL_PROTOCOL}`, or with a WebSocket"
        );
        return Err(ProblemDetails::usage(advice));
    }
    Ok(())
}

fn upgrade(mut request: Request, viewer: TerminalViewer) -> RouteResult<Response> {
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        match upgrade.await {
            Ok(client) => pass_on(TokioIo::new(client), viewer.into_stream()).await,
            Err(error) => tracing::debug!(%error, "a viewer's connection broke off"),
        }
    });
    let response = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(header::CONNECTION, "upgrade")
        .header(header::UPGRADE, TERMINAL_PROTOCOL)
        .body(axum::body::Body::empty());
    response.map_err(|error| ProblemDetails::failed(error.to_string()))
}

/// Passes bytes on in both directions, until the client has left or has all that the terminal had to say. A client may still send
/// when the program has ended: its last messages go nowhere, and the program's exit comes all the same.
async fn pass_on(client: impl AsyncRead + AsyncWrite, viewer: UnixStream) {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_terminal, mut to_terminal) = viewer.into_split();
    let output = async {
        let _ = tokio::io::copy(&mut from_terminal, &mut to_client).await;
        let _ = to_client.shutdown().await;
    };
    tokio::pin!(output);
    tokio::select! {
        () = &mut output => {}
        sent = tokio::io::copy(&mut from_client, &mut to_terminal) => {
            if sent.is_err() {
                output.await;
            }
        }
    }
}
