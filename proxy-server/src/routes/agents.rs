//! Agents of the catalog.

use axum::{Router, routing::get};

use crate::{
    ApiState,
    access::Caller,
    installed_agents::InstalledAgent,
    requests::{JsonBody, RouteResult},
};

pub(super) fn routes() -> Router<ApiState> {
    Router::new().route("/v1/agents", get(agents))
}

/// Lists the agents with what is missing, and how each is installed. Starts none, so that a version is only known where a file has it.
async fn agents(caller: Caller) -> RouteResult<JsonBody<Vec<InstalledAgent>>> {
    caller.configured(|configuration| Ok(JsonBody(configuration.agents()))).await
}
