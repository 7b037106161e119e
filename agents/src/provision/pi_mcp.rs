//! MCP servers of a Pi session. Pi has no MCP client: our extension is one, and registers the servers' tools with Pi.
//!
//! The extension and the list of servers, which may hold keys, are in the session's folder: in no argument, not in the environment, and
//! gone with the session.

use ipc_protocol::{McpServer, McpTransport};
use serde_json::{Value, json};

use super::{Provision, ProvisionError, ProvisionFile, ProvisionRequest, Result};
use crate::AgentSpec;

const EXTENSION: &str = "pi-mcp.js";
/// Name that the extension looks for beside itself.
const SERVERS: &str = "pi-mcp.json";

/// Adds the extension and its list of servers, if the session has any.
pub(super) fn bridge(spec: &AgentSpec, request: &ProvisionRequest<'_>, provision: &mut Provision) -> Result<()> {
    let servers = &request.config.mcp_servers;
    if servers.is_empty() {
        return Ok(());
    }
    let folder = request
        .shim_dir
        .ok_or_else(|| ProvisionError::unsupported(spec, "use MCP servers without a folder of the session's own"))?;
    let list = Value::from_iter(servers.iter().map(server));
    for (name, contents) in [(SERVERS, list.to_string()), (EXTENSION, include_str!("pi-mcp.js").to_owned())] {
        provision.programs.push(ProvisionFile { path: name.into(), contents: contents.into() });
    }
    provision.argv.extend(["--extension".to_owned(), folder.join(EXTENSION).to_string_lossy().into_owned()]);
    Ok(())
}

fn server(server: &McpServer) -> Value {
    match &server.transport {
        McpTransport::Stdio { command, args, env } => {
            json!({ "name": server.name, "command": command, "args": args, "env": env.0 })
        }
        McpTransport::Http { url, headers } => json!({ "name": server.name, "url": url, "headers": headers.0 }),
    }
}
