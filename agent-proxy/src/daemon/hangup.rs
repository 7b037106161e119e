//! SIGHUP: opens the log file anew, and reads the configuration and the webhooks again. The end of a terminal sends one too, and ends
//! no daemon.

use agents::ConfigDir;
use proxy_manager::ProxyManager;
use proxy_server::{ConfigurationReloader, Webhooks};
use tokio::signal::unix::Signal;

use super::{log_file::LogFile, webhooks};

/// What is read again.
#[derive(Debug)]
pub(super) struct ReloadTargets {
    pub(super) log: Option<LogFile>,
    pub(super) configuration: ConfigurationReloader,
    pub(super) webhooks: Webhooks,
    /// Directory with the webhooks; `None` where there is no place for one.
    pub(super) directory: Option<ConfigDir>,
}

/// Handles hangups for as long as the daemon runs.
pub(super) async fn follow(mut hangup: Signal, manager: ProxyManager, targets: ReloadTargets) {
    let ReloadTargets { log, configuration, webhooks, directory } = targets;
    while hangup.recv().await.is_some() {
        if let Some(Err(problem)) = log.as_ref().map(LogFile::redirect) {
            tracing::warn!(problem.detail, "SIGHUP: failed to open the log anew");
        }
        match configuration.refresh(&manager).await {
            Ok(()) => tracing::info!("SIGHUP: read the configuration again"),
            Err(problem) => tracing::warn!(problem.detail, "SIGHUP: the configuration stays as it was"),
        }
        let Some(directory) = &directory else { continue };
        match webhooks::reload(&webhooks, &manager, directory).await {
            Ok(changes) if changes.is_empty() => {}
            Ok(changes) => tracing::info!(changes = changes.join(", "), "SIGHUP: read webhooks.toml again"),
            Err(problem) => tracing::warn!(problem.detail, "SIGHUP: the webhooks stay as they were"),
        }
    }
}
