//! Command `start`.

use proxy_manager::AgentSessionConfig;
use serde_json::Value;

use super::config;
use crate::{
    args::StartArgs,
    client::DaemonClient,
    problem::{CommandFailure, ProblemDetails},
    term,
};

/// Starts a session and prints its id once the agent is ready.
pub(super) async fn run(client: &DaemonClient, args: StartArgs, as_json: bool) -> Result<(), CommandFailure> {
    let mut config = AgentSessionConfig {
        max_prompts: args.max_prompts,
        on_agent_exit: args.on_agent_exit.into(),
        on_host_death: args.on_host_death.config(args.fetch_within),
        user_id: args.user,
        workspace_id: args.workspace,
        agent_type: args.agent_type,
        ..config::session(args.agent.as_deref(), args.start)?
    };
    if let Some(id) = args.id {
        config.session_id = id;
    }
    config.lifecycle.replace = args.replace;
    let session: Value = client.post("/v1/sessions", &config).await?;
    if as_json {
        return term::json(&session);
    }
    let id = session.get("sessionId").and_then(Value::as_str);
    term::line(id.ok_or_else(|| ProblemDetails::failed("the daemon started a session without an id"))?)
}
