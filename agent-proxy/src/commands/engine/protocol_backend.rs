//! Sessions of a protocol's client: the daemon's, or those of a manager in this process.

use std::{future::Future, path::Path};

use proxy_manager::{ChildProgram, ProxyManager};
use proxy_server::{ApiService, ConfigurationReloader, ProblemDetails, ProgramExit, ServerOptions};
use serde_json::Value;

use crate::{
    client::DaemonClient, command_failure::CommandFailure, commands::engine::interrupts::InterruptStream,
    configuration, environment,
};

/// Serves a client with the daemon's API, if a daemon answers; else with that of a manager in this process, whose sessions end with it.
pub(super) async fn serve_with<Served>(
    child: ChildProgram,
    client: &DaemonClient,
    directory: Option<&Path>,
    serve: impl FnOnce(ApiService) -> Served,
) -> Result<(), CommandFailure>
where
    Served: Future<Output = Result<(), ProblemDetails>>,
{
    match client.get::<Value>("/v1/health").await {
        Ok(_) => interruptible(serve(client.service())).await,
        Err(problem) if problem.kind == "no-daemon" && !client.is_remote() => {
            let configuration = configuration::read(directory)?;
            let builder = ProxyManager::builder(child).base_env(environment::base()).engine_env(environment::engine());
            let manager = configuration.apply_to(builder).build().await?;
            let options = ServerOptions::default().with_configuration(ConfigurationReloader::new(configuration));
            let done =
                interruptible(serve(proxy_server::service_of(proxy_server::router(manager.clone(), options)))).await;
            manager.shutdown().await;
            done
        }
        Err(problem) => Err(problem.into()),
    }
}

async fn interruptible(serve: impl Future<Output = Result<(), ProblemDetails>>) -> Result<(), CommandFailure> {
    let mut interrupts = InterruptStream::new()?;
    tokio::select! {
        served = serve => Ok(served?),
        _ = interrupts.next() => Err(CommandFailure::Exit(ProgramExit::Interrupted)),
    }
}
