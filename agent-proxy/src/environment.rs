//! Environment that agents get from this program. The library reads none: the binary does, here.

#[cfg(feature = "engine")]
mod of_agents;

use std::path::{Path, PathBuf};

use api_types::ProblemDetails;
use ipc_protocol::EnvVars;

#[cfg(feature = "engine")]
pub(crate) use self::of_agents::{all, base, engine, foreground_builder, workspaces};

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
