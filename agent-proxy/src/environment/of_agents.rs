//! Environment of agents and of container engines, from this process's.

use std::{ffi::OsString, path::PathBuf};

use proxy_manager::{ChildProgram, EnvVars, ManagerBuilder, ProxyManager};

/// Variables that every agent needs and that are not secret. `LC_*` is added.
const BASE: [&str; 7] = ["PATH", "HOME", "USER", "SHELL", "LANG", "TZ", "TMPDIR"];

/// Returns the base environment of agents, from this process's.
pub(crate) fn base() -> EnvVars {
    base_of(std::env::vars_os())
}

/// Variables by which container engines find their daemon, their files and their login, besides those of [`BASE`].
const ENGINE: [&str; 8] = ["CONTAINERS_", "CONTAINER_", "DBUS_", "DOCKER_", "PODMAN_", "REGISTRY_", "STORAGE_", "XDG_"];

/// Returns the environment of container engines, from this process's.
pub(crate) fn engine() -> EnvVars {
    let is_engines = |name: &str| {
        ENGINE.iter().any(|prefix| name.starts_with(prefix)) || name.to_ascii_lowercase().ends_with("_proxy")
    };
    let others = all().0.into_iter().filter(|(name, _)| is_engines(name));
    EnvVars(base().0.into_iter().chain(others).collect())
}

/// Returns the directory of workspaces of sessions without a daemon; `None` where there is no home.
pub(crate) fn workspaces() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/state")));
    state.map(|state| state.join("agent-proxy/run-workspaces"))
}

/// Returns the builder of a manager for sessions in this terminal.
pub(crate) fn foreground_builder(child: ChildProgram, env: EnvVars) -> ManagerBuilder {
    let builder = ProxyManager::builder(child).base_env(env).engine_env(engine());
    match workspaces() {
        Some(directory) => builder.workspaces(directory),
        None => builder,
    }
}

/// Returns this process's complete environment, where it is UTF-8: for a command that the user runs in the
/// foreground.
pub(crate) fn all() -> EnvVars {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

fn base_of(vars: impl Iterator<Item = (OsString, OsString)>) -> EnvVars {
    vars.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| BASE.contains(&name.as_str()) || name.starts_with("LC_"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_base_is_taken() {
        let vars = [("PATH", "/bin"), ("LC_ALL", "C"), ("API_KEY", "hunter2"), ("LCD", "x"), ("TZ", "UTC")];
        let base = base_of(vars.iter().map(|(k, v)| ((*k).into(), (*v).into())));
        assert_eq!(base.0.keys().map(String::as_str).collect::<Vec<_>>(), ["LC_ALL", "PATH", "TZ"]);
    }
}
