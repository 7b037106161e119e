//! Configuration while the daemon runs.

use std::sync::{Arc, Mutex, PoisonError};

use proxy_manager::ProxyManager;

use crate::{configuration::Configuration, problem::Problem};

/// Configuration that the manager uses.
#[derive(Clone, Debug)]
pub(super) struct Configured(Arc<Mutex<Configuration>>);

impl Configured {
    pub(super) fn new(configuration: Configuration) -> Self {
        Self(Arc::new(Mutex::new(configuration)))
    }

    /// Passes changes of the configuration files to the manager. Blocks for a few file accesses.
    ///
    /// # Errors
    /// Same as [`Configuration::read`]: the manager keeps its configuration, and this fails until the files are
    /// valid.
    pub(super) fn refresh(&self, manager: &ProxyManager) -> Result<(), Problem> {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !current.has_changed() {
            return Ok(());
        }
        let changed = current.read_again().map_err(|problem| Problem {
            detail: format!("the configuration was changed, and cannot be used: {}", problem.detail),
            ..problem
        })?;
        let models = changed.usable_models();
        manager.configure(changed.catalog.clone(), changed.profiles.clone(), models);
        tracing::info!("reloaded the changed configuration");
        *current = changed;
        Ok(())
    }
}
