//! Configuration while the daemon runs.

use std::sync::Arc;

use proxy_manager::ProxyManager;
use tokio::{sync::Mutex, task::spawn_blocking};

use crate::{LoadedConfiguration, ProblemDetails};

/// Configuration that the manager uses.
#[derive(Clone, Debug)]
pub struct ConfigurationReloader(Arc<Mutex<LoadedConfiguration>>);

impl ConfigurationReloader {
    /// Creates one of what was read, and the manager has.
    pub fn new(configuration: LoadedConfiguration) -> Self {
        Self(Arc::new(Mutex::new(configuration)))
    }

    /// Passes changes of the configuration files to the manager. One thread at a time looks at the files.
    ///
    /// # Errors
    /// Same as [`LoadedConfiguration::read`]: the manager keeps its configuration, and this fails until the files are
    /// valid.
    pub async fn refresh(&self, manager: &ProxyManager) -> Result<(), ProblemDetails> {
        let mut current = self.0.clone().lock_owned().await;
        let manager = manager.clone();
        let look = move || {
            if !current.has_changed() {
                return Ok(());
            }
            let changed = current.reload().map_err(|problem| ProblemDetails {
                detail: format!("the configuration was changed, and cannot be used: {}", problem.detail),
                ..problem
            })?;
            let models = changed.usable_models();
            manager.configure(changed.catalog.clone(), changed.profiles.clone(), models);
            manager.set_prices(changed.prices.clone());
            tracing::info!("reloaded the changed configuration");
            *current = changed;
            Ok(())
        };
        let looked = spawn_blocking(look).await;
        looked.map_err(|error| ProblemDetails::failed(format!("failed to look at the configuration: {error}")))?
    }

    /// Runs `work` on the configuration as the files have it now. One at a time.
    ///
    /// # Errors
    /// As [`ConfigurationReloader::refresh`], and those of `work`.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        manager: &ProxyManager,
        work: impl FnOnce(&LoadedConfiguration) -> Result<T, ProblemDetails> + Send + 'static,
    ) -> Result<T, ProblemDetails> {
        self.refresh(manager).await?;
        let current = self.0.clone().lock_owned().await;
        let done = spawn_blocking(move || work(&current)).await;
        done.map_err(|error| ProblemDetails::failed(format!("the work on the configuration broke off: {error}")))?
    }
}
