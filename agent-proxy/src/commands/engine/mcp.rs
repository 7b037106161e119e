//! Command `mcp`: a server of the Model Context Protocol on standard input and output.

use std::path::Path;

use proxy_manager::ChildProgram;
use proxy_server::mcp::{McpServer, ToolNames};

use super::protocol_backend::serve_with;
use crate::{args::McpArgs, client::DaemonClient, command_failure::CommandFailure, commands::config};

/// Serves the client, to the end of its input.
pub(super) async fn run(
    child: ChildProgram,
    client: &DaemonClient,
    args: &McpArgs,
    directory: Option<&Path>,
) -> Result<(), CommandFailure> {
    let names = if args.dotted_names { ToolNames::Dots } else { ToolNames::Underscores };
    serve_with(child, client, directory, |service| {
        McpServer::new(service, names, config::depth()).serve_client(tokio::io::stdin(), tokio::io::stdout())
    })
    .await
}
