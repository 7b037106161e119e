//! Location of the daemon's socket.

use std::{
    ffi::OsString,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Longest path of a socket, in bytes: `sun_path` less its terminating zero.
const MAX_LEN: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

/// Path of the socket, and the origin of its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SocketPath {
    /// Path of the socket.
    pub(crate) path: PathBuf,
    /// True for the default location, in a directory for agent-proxy alone.
    pub(crate) default_place: bool,
    /// User whose daemon has to listen there; `None` for anybody's.
    pub(crate) owner: Option<u32>,
}

impl SocketPath {
    /// Finds the path from `--socket`, else from this process's environment and user.
    pub(crate) fn find(flag: Option<&Path>) -> Self {
        let uid = nix::unistd::getuid().as_raw();
        Self::from_parts(flag, |name| std::env::var_os(name), &std::env::temp_dir(), uid)
    }

    /// Takes `flag`, else `AGENT_PROXY_SOCKET`, else `$XDG_RUNTIME_DIR/agent-proxy/daemon.sock`, else
    /// `agent-proxy-$UID/daemon.sock` in `temp`. An empty variable counts as unset.
    fn from_parts(flag: Option<&Path>, var: impl Fn(&str) -> Option<OsString>, temp: &Path, uid: u32) -> Self {
        let var = |name: &str| var(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(path) = flag.map(Path::to_owned).or_else(|| var("AGENT_PROXY_SOCKET")) {
            return Self { path, default_place: false, owner: None };
        }
        // The specification of XDG_RUNTIME_DIR requires relative values to be ignored.
        let directory = match var("XDG_RUNTIME_DIR").filter(|path| path.is_absolute()) {
            Some(runtime) => runtime.join("agent-proxy"),
            None => temp.join(format!("agent-proxy-{uid}")),
        };
        Self { path: directory.join("daemon.sock"), default_place: true, owner: None }
    }

    /// Names the socket of this user's daemon, whoever could put another in its place.
    #[cfg(feature = "engine")]
    pub(crate) fn of_user(path: PathBuf, user: u32) -> Self {
        Self { path, default_place: false, owner: Some(user) }
    }

    /// Returns the directory of the socket.
    pub(crate) fn directory(&self) -> &Path {
        match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        }
    }

    /// Returns the reason not to trust the listener here, if there is one. In a temporary directory another user
    /// may have created our directory first, and a client sends prompts and environments.
    pub(crate) fn untrusted(&self) -> Option<String> {
        if !self.default_place {
            return None;
        }
        let directory = self.directory();
        let found = std::fs::symlink_metadata(directory).ok()?;
        let ours = found.is_dir() && found.uid() == nix::unistd::geteuid().as_raw();
        (!ours).then(|| format!("{} is not a directory of yours: somebody else made it", directory.display()))
    }

    /// Returns the reason why no socket can have this path, if there is one.
    pub(crate) fn unusable(&self) -> Option<String> {
        let len = self.path.as_os_str().len();
        let path = self.path.display();
        if self.path.file_name().is_none() {
            return Some(format!("{path} names no file: give --socket the path of a socket"));
        }
        (len > MAX_LEN).then(|| {
            format!("{path} is {len} bytes long and a socket's path at most {MAX_LEN}: use a shorter --socket")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(flag: Option<&str>, vars: &[(&str, &str)]) -> (String, bool) {
        let var = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v));
        let found = SocketPath::from_parts(flag.map(Path::new), var, Path::new("/tmp"), 1000);
        (found.path.display().to_string(), found.default_place)
    }

    #[test]
    fn the_first_that_is_set_wins() {
        let all = [("AGENT_PROXY_SOCKET", "/e/s"), ("XDG_RUNTIME_DIR", "/run/user/1000")];
        assert_eq!(find(Some("/f/s"), &all), ("/f/s".into(), false));
        assert_eq!(find(None, &all), ("/e/s".into(), false));
        assert_eq!(find(None, &all[1..]), ("/run/user/1000/agent-proxy/daemon.sock".into(), true));
        assert_eq!(find(None, &[]), ("/tmp/agent-proxy-1000/daemon.sock".into(), true));
    }

    #[test]
    fn empty_and_relative_variables_count_as_unset() {
        let vars = [("AGENT_PROXY_SOCKET", ""), ("XDG_RUNTIME_DIR", "run")];
        assert_eq!(find(None, &vars), ("/tmp/agent-proxy-1000/daemon.sock".into(), true));
    }

    #[test]
    fn a_directory_that_is_a_link_is_not_trusted() {
        let link = std::env::temp_dir().join(format!("agent-proxy-link-{}", std::process::id()));
        std::os::unix::fs::symlink("/", &link).expect("a fresh link");
        let at = |default_place| SocketPath { path: link.join("daemon.sock"), default_place, owner: None };
        let (default, asked_for) = (at(true).untrusted(), at(false).untrusted());
        std::fs::remove_file(&link).expect("it is there");
        assert!(default.is_some_and(|why| why.contains("somebody else")));
        assert_eq!(asked_for, None);
        let nowhere = SocketPath { path: "/no/such/place/daemon.sock".into(), default_place: true, owner: None };
        assert_eq!(nowhere.untrusted(), None);
    }

    #[test]
    fn a_path_too_long_for_a_socket_says_so() {
        let path = |path: String| SocketPath { path: path.into(), default_place: false, owner: None };
        assert_eq!(path(format!("/{}", "x".repeat(106))).unusable(), None);
        assert!(path(format!("/{}", "x".repeat(107))).unusable().is_some_and(|why| why.contains("107")));
        assert!(path("/".into()).unusable().is_some());
        assert_eq!(path("s".into()).directory(), Path::new("."));
    }
}
