//! Instances of an agent's own server, one for each model configuration: for programs that speak to that server themselves.

use axum::extract::Path;

use crate::{
    ApiState, ProblemDetails,
    access::Caller,
    instances::{AgentInstance, InstancePool},
    requests::{JsonBody, RouteResult},
    route_table::api_routes,
};

api_routes! { "Instances", ApiState;
    /// Returns the instance of a model configuration, ready for requests. It is started where it does not run.
    ///
    /// An instance that nobody asks for is stopped after a while; its conversations are there again when it is started the next time.
    get "/instance/{name}" ready:
        json::<AgentInstance>(200, "The instance.") problems(MANAGER) problems(START);
    /// Lists the instances that run.
    get "/instances" list: json::<Vec<AgentInstance>>(200, "The instances.") problems(&["unsupported"]);
    /// Stops an instance.
    post "/instance/{name}/stop" stop:
        json::<AgentInstance>(200, "The instance is stopped.") problems(MANAGER) problems(&["usage", "unsupported", "unknown-session", "survivors", "deadline"]);
}

fn pool(caller: &Caller) -> RouteResult<InstancePool> {
    caller.check_all_users("an instance")?;
    let none = || ProblemDetails::new("unsupported", "this server has no instances");
    caller.instances().cloned().ok_or_else(none)
}

async fn ready(caller: Caller, Path(name): Path<String>) -> RouteResult<JsonBody<AgentInstance>> {
    let pool = pool(&caller)?;
    caller.refresh().await?;
    pool.ready(caller, &name).await.map(JsonBody)
}

async fn list(caller: Caller) -> RouteResult<JsonBody<Vec<AgentInstance>>> {
    Ok(JsonBody(pool(&caller)?.list()))
}

async fn stop(caller: Caller, Path(name): Path<String>) -> RouteResult<JsonBody<AgentInstance>> {
    pool(&caller)?.stop(&name).await.map(JsonBody)
}
