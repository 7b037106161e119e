//! Command `start`.

use api_types::{ProblemDetails, api::path_segment};
use ipc_protocol::AgentSessionConfig;
use serde_json::Value;

use super::config;
use crate::{args::StartArgs, client::DaemonClient, command_failure::CommandFailure, render::listing::short_ids, term};

/// Starts a session and prints its id once the agent is ready.
pub(super) async fn run(client: &DaemonClient, args: StartArgs, as_json: bool) -> Result<(), CommandFailure> {
    let mut config = AgentSessionConfig {
        max_prompts: args.max_prompts,
        on_agent_exit: args.on_agent_exit.into(),
        on_host_death: args.on_host_death.config(args.fetch_within),
        user_id: args.user,
        workspace_id: args.workspace_label,
        agent_type: args.agent_type,
        terminal: args.terminal.config()?,
        surface: args.terminal.surface(),
        ..config::session(args.agent.as_deref(), args.start)?
    };
    config.lifecycle.replace = args.replace;
    let named = args.id.is_some();
    if let Some(id) = args.id {
        config.session_id = id;
    }
    let mut config = serde_json::to_value(&config).map_err(|error| ProblemDetails::failed(error.to_string()))?;
    // Without an id it may be a session that is warm.
    if let (false, Some(fields)) = (named, config.as_object_mut()) {
        fields.remove("sessionId");
    }
    let query = args.placement.query();
    let pairs = [("node", query.node.unwrap_or_default()), ("label", query.label)];
    let pairs: Vec<String> = pairs
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("{name}={}", path_segment(&value)))
        .collect();
    let path = if pairs.is_empty() { "/v1/sessions".to_owned() } else { format!("/v1/sessions?{}", pairs.join("&")) };
    let session: Value = client.post(&path, &config).await?;
    if as_json {
        return term::json(&session);
    }
    let id = session.get("sessionId").and_then(Value::as_str);
    let id = id.ok_or_else(|| ProblemDetails::failed("the daemon started a session without an id"))?;
    term::line(id)?;
    let short = short_ids(&[id]).pop().unwrap_or_default();
    term::tip(&[
        (format!("agent-proxy prompt {short} 'hello'"), "send it a prompt"),
        (format!("agent-proxy events {short} --follow"), "see what happens in it"),
        (format!("agent-proxy kill {short}"), "end it, with a receipt"),
    ]);
    Ok(())
}
