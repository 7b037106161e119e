//! Place of the user's configuration, by the environment.

use std::path::{Path, PathBuf};

use agents::{ConfigDir, discovery::SearchPaths};
use proxy_server::{ConfigurationSource, LoadedConfiguration, ProblemDetails};

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

/// Returns the path of the given directory, or of the one that the environment names; `None` where it names none.
pub(crate) fn directory_path(given: Option<&Path>) -> Option<PathBuf> {
    directory(given, |name| std::env::var_os(name).map(PathBuf::from))
}

/// Returns the search paths in this process's environment.
pub(crate) fn places() -> SearchPaths {
    let path = std::env::var_os("PATH").unwrap_or_default();
    SearchPaths { path: std::env::split_paths(&path).collect(), home: std::env::var_os("HOME").map(PathBuf::from) }
}

fn directory(given: Option<&Path>, variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    // The XDG specification says that an empty or relative value counts as unset.
    let absolute = |name: &str| variable(name).filter(|path| path.is_absolute());
    let given = given.map(Path::to_owned).or_else(|| variable("AGENT_PROXY_CONFIG_DIR").filter(|path| path != ""));
    given
        .map(|path| std::path::absolute(&path).unwrap_or(path))
        .or_else(|| absolute("XDG_CONFIG_HOME").map(|path| path.join("agent-proxy")))
        .or_else(|| absolute("HOME").map(|path| path.join(".config/agent-proxy")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_configuration_is() {
        let place = |given: Option<&str>, vars: &[(&str, &str)]| {
            let variable = |name: &str| vars.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
            directory(given.map(Path::new), variable).map(|path| path.display().to_string())
        };
        let all = [("AGENT_PROXY_CONFIG_DIR", "/a"), ("XDG_CONFIG_HOME", "/x"), ("HOME", "/h")];
        assert_eq!(place(Some("/given"), &all).as_deref(), Some("/given"));
        assert_eq!(place(None, &all).as_deref(), Some("/a"));
        assert_eq!(place(None, &all[1..]).as_deref(), Some("/x/agent-proxy"));
        assert_eq!(place(None, &[("XDG_CONFIG_HOME", "relative"), all[2]]).as_deref(), Some("/h/.config/agent-proxy"));
        assert_eq!(place(None, &[("AGENT_PROXY_CONFIG_DIR", ""), all[2]]).as_deref(), Some("/h/.config/agent-proxy"));
        assert_eq!(place(None, &[]), None);
        assert!(place(Some("here"), &[]).is_some_and(|path| path.starts_with('/') && path.ends_with("/here")));
    }
}
