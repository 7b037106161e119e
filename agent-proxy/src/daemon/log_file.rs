//! Log file of a daemon: what it prints, on standard output and standard error alike.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use proxy_server::ProblemDetails;

/// Path of a log file.
#[derive(Clone, Debug)]
pub(super) struct LogFile(PathBuf);

impl LogFile {
    pub(super) fn new(path: &Path) -> Result<Self, ProblemDetails> {
        super::absolute(path.to_owned()).map(Self)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Opens the file to append to it. A new one is this user's alone.
    ///
    /// # Errors
    /// `failed` with the reason of the system.
    pub(super) fn open(&self) -> Result<File, ProblemDetails> {
        let mut options = OpenOptions::new();
        options.create(true).append(true).read(true).mode(0o600);
        options.open(&self.0).map_err(|error| {
            let path = self.0.display();
            ProblemDetails::failed(format!("opening the log {path} failed ({error}): give --log-file another path"))
        })
    }

    /// Has this process print to the file. Called again, it follows a file that was renamed or removed.
    ///
    /// # Errors
    /// `failed` with the reason of the system: everything is printed where it was before.
    pub(super) fn redirect(&self) -> Result<(), ProblemDetails> {
        let file = self.open()?;
        let redirected = rustix::stdio::dup2_stdout(&file).and_then(|()| rustix::stdio::dup2_stderr(&file));
        redirected.map_err(|error| {
            ProblemDetails::failed(format!(
                "printing to the log {} failed: {}",
                self.0.display(),
                io::Error::from(error)
            ))
        })
    }
}
