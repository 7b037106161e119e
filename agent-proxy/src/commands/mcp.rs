//! Command `mcp`: a server of the Model Context Protocol on standard input and output.

use std::path::Path;

use proxy_manager::{ChildProgram, ProxyManager};
use proxy_server::{
    ConfigurationReloader, ProgramExit, ServerOptions,
    mcp::{self, ApiService, McpServer, ToolNames},
};
use serde_json::Value;

use super::{config, interrupts::InterruptStream};
use crate::{args::McpArgs, client::DaemonClient, command_failure::CommandFailure, configuration, environment};

/// Serves the client, to the end of its input. Its sessions are the daemon's, if there is one; else they end with the client.
pub(super) async fn run(
    child: ChildProgram,
    client: &DaemonClient,
    args: &McpArgs,
    directory: Option<&Path>,
) -> Result<(), CommandFailure> {
    let names = if args.dotted_names { ToolNames::Dots } else { ToolNames::Underscores };
    match client.get::<Value>("/v1/health").await {
        Ok(_) => serve(client.service(), names).await,
        Err(problem) if problem.kind == "no-daemon" && !client.is_remote() => {
            let configuration = configuration::read(directory)?;
            let builder = ProxyManager::builder(child).base_env(environment::base());
            let manager = configuration.apply_to(builder).build().await?;
            let options = ServerOptions::default().with_configuration(ConfigurationReloader::new(configuration));
            let done = serve(mcp::service_of(proxy_server::router(manager.clone(), options)), names).await;
            manager.shutdown().await;
            done
        }
        Err(problem) => Err(problem.into()),
    }
}

async fn serve(service: ApiService, names: ToolNames) -> Result<(), CommandFailure> {
    let mut interrupts = InterruptStream::new()?;
    let server = McpServer::new(service, names, config::depth());
    tokio::select! {
        served = server.serve_client(tokio::io::stdin(), tokio::io::stdout()) => Ok(served?),
        _ = interrupts.next() => Err(CommandFailure::Exit(ProgramExit::Interrupted)),
    }
}
