//! Command `acp`: any agent, for an editor that speaks the Agent Client Protocol on standard input and output.

use std::path::Path;

use proxy_manager::ChildProgram;
use proxy_server::{ProblemDetails, acp::AcpServer};
use serde_json::Value;

use super::{foreground_config::foreground, protocol_backend::serve_with};
use crate::{args::AcpArgs, client::DaemonClient, command_failure::CommandFailure, commands::config, configuration};

/// Serves the editor, to the end of its input.
pub(super) async fn run(
    child: ChildProgram,
    client: &DaemonClient,
    args: AcpArgs,
    directory: Option<&Path>,
) -> Result<(), CommandFailure> {
    let configuration = configuration::read(directory)?;
    let config = foreground(&configuration, args.agent, args.start)?;
    let template = match serde_json::to_value(&config) {
        Ok(Value::Object(mut template)) => {
            // Each of the editor's sessions has its own.
            template.remove("sessionId");
            template.remove("cwd");
            template
        }
        other => {
            return Err(ProblemDetails::failed(format!("the session's configuration is no object: {other:?}")).into());
        }
    };
    serve_with(child, client, directory, |service| {
        AcpServer::new(service, template, config::depth()).serve_client(tokio::io::stdin(), tokio::io::stdout())
    })
    .await
}
