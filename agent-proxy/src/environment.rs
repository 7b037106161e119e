//! Environment that agents get from this program. The library reads none: the binary does, here.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use proxy_manager::{ChildProgram, EnvVars, ManagerBuilder, ProxyManager};

use proxy_server::ProblemDetails;

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

/// Parses the values of `--env`: `K=V`, or `K` alone for this process's own value.
///
/// # Errors
/// `usage` for any other text, or for a `K` that is not set here.
pub(crate) fn parse(given: &[String]) -> Result<EnvVars, ProblemDetails> {
    parse_with(given, |name| std::env::var(name).ok())
}

fn parse_with(given: &[String], own: impl Fn(&str) -> Option<String>) -> Result<EnvVars, ProblemDetails> {
    let mut vars = EnvVars::default();
    for text in given {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => {
                let value = own(text).ok_or_else(|| {
                    ProblemDetails::usage(format!("--env {text}: it is not set here; write {text}=VALUE, or export it"))
                })?;
                (text.as_str(), value)
            }
        };
        if name.is_empty() {
            return Err(ProblemDetails::usage(format!("--env {text}: a variable needs a name, as in K=V")));
        }
        vars.0.insert(name.to_owned(), value);
    }
    Ok(vars)
}

/// Makes a path absolute.
///
/// # Errors
/// `usage` if there is no current directory any more, or the path is not UTF-8.
pub(crate) fn absolute(path: &Path) -> Result<String, ProblemDetails> {
    let absolute = std::path::absolute(path);
    let absolute = absolute.map_err(|error| ProblemDetails::usage(format!("{}: {error}", path.display())))?;
    absolute
        .into_os_string()
        .into_string()
        .map_err(|path| ProblemDetails::usage(format!("{} is not UTF-8", PathBuf::from(path).display())))
}

/// Resolves `--cwd`, or the current directory, to an absolute path.
///
/// # Errors
/// `usage` if there is no current directory any more, or the path is not UTF-8.
pub(crate) fn cwd(given: Option<&Path>) -> Result<String, ProblemDetails> {
    let path = match given {
        Some(path) => std::path::absolute(path),
        None => std::env::current_dir(),
    };
    let path = path.map_err(|error| ProblemDetails::usage(format!("no working directory ({error}): give --cwd")))?;
    path.into_os_string().into_string().map_err(|path| {
        ProblemDetails::usage(format!("working directory {} is not UTF-8", PathBuf::from(path).display()))
    })
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

    #[test]
    fn env_flags() {
        let own = |name: &str| (name == "KEY").then(|| "mine".to_owned());
        let given = ["A=b=c".to_owned(), "E=".to_owned(), "KEY".to_owned()];
        let vars = parse_with(&given, own).expect("parses");
        assert_eq!(vars, [("A", "b=c"), ("E", ""), ("KEY", "mine")].into_iter().collect());
        for bad in ["=x", "MISSING", ""] {
            assert_eq!(parse_with(&[bad.to_owned()], own).expect_err("refused").kind, "usage", "{bad:?}");
        }
    }

    #[test]
    fn a_relative_directory_becomes_absolute() {
        let cwd = cwd(Some(Path::new("x"))).expect("there is a current directory");
        assert!(cwd.starts_with('/') && cwd.ends_with("/x"), "{cwd}");
    }
}
