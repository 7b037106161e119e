//! SIGHUP: opens the log file anew and reads the configuration again. The end of a terminal sends one too, and ends
//! no daemon.

use proxy_manager::ProxyManager;
use proxy_server::ConfigurationReloader;
use tokio::signal::unix::Signal;

use super::log_file::LogFile;

/// Handles hangups for as long as the daemon runs.
pub(super) async fn follow(
    mut hangup: Signal,
    log: Option<LogFile>,
    manager: ProxyManager,
    configuration: ConfigurationReloader,
) {
    while hangup.recv().await.is_some() {
        if let Some(Err(problem)) = log.as_ref().map(LogFile::redirect) {
            tracing::warn!(problem.detail, "SIGHUP: failed to open the log anew");
        }
        match configuration.refresh(&manager).await {
            Ok(()) => tracing::info!("SIGHUP: read the configuration again"),
            Err(problem) => tracing::warn!(problem.detail, "SIGHUP: the configuration stays as it was"),
        }
    }
}
