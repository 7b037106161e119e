//! Processes of a session.

use axum::extract::Path;
use proxy_manager::ProcessInfo;

use crate::{
    ApiState,
    access::Caller,
    requests::{JsonBody, RouteResult},
    route_table::api_routes,
};

api_routes! { "Sessions", ApiState;
    /// Lists the processes of a session.
    get "/v1/sessions/{id}/processes" list:
        json::<Vec<ProcessInfo>>(200, "The processes.") problems(SESSION) problems(PROXY);
}

async fn list(caller: Caller, Path(id): Path<String>) -> RouteResult<JsonBody<Vec<ProcessInfo>>> {
    Ok(JsonBody(caller.find(&id)?.processes().await?))
}
