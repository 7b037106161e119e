//! The user's configuration: agents, profiles, models and prices.

use std::path::{Path, PathBuf};

use agents::{ConfigDir, discovery::SearchPaths};
use proxy_server::{ConfigurationSource, LoadedConfiguration, ProblemDetails};

use crate::config_dir::directory_path;

/// Reads the given directory, or the one that the environment names.
///
/// # Errors
/// `invalid-config` with file, entry and field.
pub(crate) fn read(given: Option<&Path>) -> Result<LoadedConfiguration, ProblemDetails> {
    read_with_prices(given, None)
}

/// Reads the same, with the prices of this file.
///
/// # Errors
/// As [`read`]; `system` if there is no such file.
pub(crate) fn read_with_prices(
    given: Option<&Path>,
    prices: Option<&Path>,
) -> Result<LoadedConfiguration, ProblemDetails> {
    let prices = prices.map(|path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
    let directory = directory_path(given).map(ConfigDir::new);
    let variable = |name: &str| std::env::var(name).ok();
    LoadedConfiguration::read(ConfigurationSource { directory, prices, places: places(), variable })
}

/// Returns the search paths in this process's environment.
pub(crate) fn places() -> SearchPaths {
    let path = std::env::var_os("PATH").unwrap_or_default();
    SearchPaths { path: std::env::split_paths(&path).collect(), home: std::env::var_os("HOME").map(PathBuf::from) }
}
