//! What an agent's own screen (TUI) cannot be started with.

use ipc_protocol::terminal::Surface;

use super::{ProvisionError, ProvisionRequest, Result};
use crate::AgentSpec;

/// Refuses what only the agent's protocol can be told.
pub(super) fn check(spec: &AgentSpec, request: &ProvisionRequest<'_>) -> Result<()> {
    let config = request.config;
    if spec.terminal_cmd.is_empty() {
        let operation = "be shown in a terminal: its row in the catalog has no `terminal_cmd`";
        return Err(ProvisionError::unsupported(spec, operation));
    }
    if config.driving_surface() == Surface::Both {
        // Its screen speaks the protocol, too.
        return Ok(());
    }
    let family = spec.family().unwrap_or_default();
    let is_one_of = |families: &[&str]| families.contains(&family);
    let refused = [
        (
            super::is_bound(config) && !is_one_of(&["claude", "codex", "gemini"]),
            "be held to permission rules or another mode than `ask` on its own screen: its user answers there",
        ),
        (config.max_turns.is_some(), "have its model replies bounded on its own screen"),
        (config.thinking.is_some() && !is_one_of(&["pi"]), "be given a thinking level on its own screen"),
        (config.mode.is_some() && !is_one_of(&["claude"]), "be given a mode on its own screen"),
        (config.system_prompt.is_some() && !is_one_of(&["claude", "pi"]), "be given a system prompt on its own screen"),
        (!config.tools.is_empty() && !is_one_of(&["claude", "gemini", "pi"]), "restrict its tools on its own screen"),
        (!config.mcp_servers.is_empty() && !is_one_of(&["opencode", "pi"]), "be given MCP servers on its own screen"),
        (config.endpoint.is_some(), "be connected to a running server on its own screen"),
        (
            config.ephemeral && !is_one_of(&["opencode", "pi", "qwen"]),
            "keep nothing of a conversation on its own screen",
        ),
    ];
    match refused.iter().find(|(asked, _)| *asked) {
        Some((_, operation)) => Err(ProvisionError::unsupported(spec, *operation)),
        None => Ok(()),
    }
}
