//! Place of the user's configuration, by the environment.

use std::path::{Path, PathBuf};

/// Name of the file with the first token.
const FIRST_TOKEN: &str = "token";

/// Returns the path of the given directory, or of the one that the environment names; `None` where it names none.
pub(crate) fn directory_path(given: Option<&Path>) -> Option<PathBuf> {
    directory(given, |name| std::env::var_os(name).map(PathBuf::from))
}

/// Returns the file with the first token in this configuration directory.
pub(crate) fn first_token(directory: &Path) -> PathBuf {
    directory.join(FIRST_TOKEN)
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
