//! Processes of a session: list, signal, kill one or a tree.

use std::time::Duration;

use axum::extract::{Path, Query};
use proxy_manager::{KillOptions, KillScope, ProcessDetails, Receipt};
use serde::Deserialize;

use crate::{
    ApiState, ProblemDetails,
    access::Caller,
    api::{SignalRequest, SignalResponse},
    requests::{Body, JsonBody, RouteResult, UrlQuery, parse, to_the_end},
    route_table::api_routes,
};

api_routes! { "Sessions", ApiState;
    /// Lists the processes of a session.
    ///
    /// Those that have ended are there too, for a while. Each has its parent, age, CPU and memory, what it has left, and the ports on which it listens.
    get "/v1/sessions/{id}/processes" list:
        json::<Vec<ProcessDetails>>(200, "The processes.") problems(SESSION) problems(PROXY);
    /// Kills one process of a session, or its tree.
    ///
    /// It goes on if the client leaves.
    delete "/v1/sessions/{id}/processes/{pid}" kill:
        query::<KillQuery>() json::<Receipt>(200, "Receipt: how each process ended.")
        problems(SESSION) problems(PROXY) problems(&["unknown-process", "survivors"]);
    /// Sends a signal to one process of a session.
    ///
    /// It reaches the process that has the pid now, and no other. What the signal does is the business of that process.
    post "/v1/sessions/{id}/processes/{pid}/signal" signal:
        body::<SignalRequest>() json::<SignalResponse>(200, "The signal is sent.")
        problems(SESSION) problems(PROXY) problems(&["unknown-process"]);
}

async fn list(caller: Caller, Path(id): Path<String>) -> RouteResult<JsonBody<Vec<ProcessDetails>>> {
    Ok(JsonBody(caller.find(&id)?.process_details().await?))
}

/// Query of a kill.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct KillQuery {
    /// True to kill everything below the process too.
    tree: bool,
    /// Milliseconds between SIGTERM and SIGKILL; 2000 by default, 0 sends SIGKILL at once.
    grace_ms: Option<u64>,
}

async fn kill(
    caller: Caller,
    Path((id, pid)): Path<(String, String)>,
    query: UrlQuery<KillQuery>,
) -> RouteResult<JsonBody<Receipt>> {
    let Query(KillQuery { tree, grace_ms }) = query.map_err(|error| ProblemDetails::usage(error.to_string()))?;
    let (session, pid) = (caller.find(&id)?, parse_pid(&pid)?);
    let options = grace_ms.map_or_else(KillOptions::default, |ms| KillOptions::grace(Duration::from_millis(ms)));
    let scope = KillScope::Process { pid, tree };
    Ok(JsonBody(to_the_end(async move { session.kill_scope(scope, options).await }).await?))
}

async fn signal(
    caller: Caller,
    Path((id, pid)): Path<(String, String)>,
    body: Body,
) -> RouteResult<JsonBody<SignalResponse>> {
    let SignalRequest { signal, start_time } = parse(body)?;
    let (session, pid) = (caller.find(&id)?, parse_pid(&pid)?);
    let process = to_the_end(async move { session.signal_process(pid, start_time, signal).await }).await?;
    Ok(JsonBody(SignalResponse { process, signal }))
}

fn parse_pid(text: &str) -> RouteResult<u32> {
    let pid = text.parse().ok().filter(|pid| *pid > 0);
    pid.ok_or_else(|| ProblemDetails::usage(format!("pid {text:?} is none: give a number greater than 0")))
}
