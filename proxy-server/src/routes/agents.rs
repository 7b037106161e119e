//! Agents of the catalog.

use api_types::InstalledAgent;

use crate::{
    ApiState,
    access::Caller,
    requests::{JsonBody, RouteResult},
    route_table::api_routes,
};

api_routes! { "Configuration", ApiState;
    /// Lists the agents of the catalog.
    ///
    /// Each has what is missing, and how it is installed. None is started, so that a version is only known where a file has it.
    get "/v1/agents" list: json::<Vec<InstalledAgent>>(200, "The agents.") problems(CONFIGURATION);
}

/// Lists the agents with what is missing, and how each is installed. Starts none, so that a version is only known where a file has it.
async fn list(caller: Caller) -> RouteResult<JsonBody<Vec<InstalledAgent>>> {
    caller.configured(|configuration| Ok(JsonBody(configuration.agents()))).await
}
