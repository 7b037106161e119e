//! Program that runs as the fork server.

use std::path::PathBuf;

use proxy_child::ChildToken;

/// Program that runs as the fork server. It must call `proxy_child::run_if_child` first in `main`.
///
/// ```no_run
/// use proxy_manager::ChildProgram;
///
/// // This program itself:
/// let child = ChildProgram::Current(proxy_child::run_if_child());
/// // Another one, which calls `run_if_child` too:
/// let child = ChildProgram::Path("/usr/libexec/my-child".into());
/// ```
#[derive(Clone, Debug)]
pub enum ChildProgram {
    /// A path to the program.
    Path(PathBuf),
    /// The executable that runs now. The token proves that it can be a fork server.
    Current(ChildToken),
}

impl ChildProgram {
    /// The path to start.
    pub(crate) fn program(&self) -> PathBuf {
        match self {
            // A bare name is a file in the working directory; no PATH is searched.
            Self::Path(path) => std::path::absolute(path).unwrap_or_else(|_| path.clone()),
            // Works even if the file has been replaced or removed.
            Self::Current(_) => PathBuf::from("/proc/self/exe"),
        }
    }
}
