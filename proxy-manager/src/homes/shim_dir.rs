//! Folder of what a session's agent runs or reads of ours, in any home; it lasts as long as the session's processes.

use std::{
    fs::DirBuilder,
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use agents::provision::ProvisionFile;
use ipc_protocol::SessionId;

use super::{SessionHomes, files, system};
use crate::error::Result;

/// A directory with programs. Dropping this removes it, unless it stays.
#[derive(Debug)]
pub(crate) struct ShimDir {
    path: PathBuf,
    persists: bool,
}

impl ShimDir {
    /// Path of `session`'s folder. Creates its parent directory if necessary. Blocks.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System).
    pub(crate) fn path(homes: &SessionHomes, session: &SessionId) -> Result<PathBuf> {
        Ok(homes.directory()?.join(format!("run-{session}")))
    }

    /// Path of the directory for temporary files in a folder.
    pub(crate) fn temporary(folder: &Path) -> PathBuf {
        folder.join("tmp")
    }

    /// Creates the folder, and replaces one that a killed manager left. Blocks.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System); nothing is left on the disk then.
    pub(crate) fn make(path: &Path, programs: &[ProvisionFile]) -> Result<Self> {
        let wrong = |error: io::Error| system("making the folder", path, error);
        files::remove(path).map_err(wrong)?;
        DirBuilder::new().mode(0o700).recursive(true).create(Self::temporary(path)).map_err(wrong)?;
        let folder = Self { path: path.to_owned(), persists: false };
        let root = files::open(path).map_err(wrong)?;
        for program in programs {
            files::write_program(&root, &program.path, program.contents.expose().as_bytes()).map_err(wrong)?;
        }
        Ok(folder)
    }
}

impl ShimDir {
    /// The folder of a session that an earlier manager started.
    pub(crate) fn of_earlier_manager(path: PathBuf) -> Self {
        Self { path, persists: true }
    }

    /// Keeps the folder when this is dropped: its session may outlive this manager.
    pub(crate) fn persist(&mut self) {
        self.persists = true;
    }

    /// Removes the folder, since the session is over. Blocks.
    pub(crate) fn remove(mut self) {
        self.persists = false;
    }
}

impl Drop for ShimDir {
    /// Blocks briefly: there are few files.
    fn drop(&mut self) {
        if self.persists {
            return;
        }
        if let Err(error) = files::remove(&self.path) {
            tracing::warn!(path = ?self.path, %error, "failed to remove a session's folder");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::MetadataExt};

    use super::*;

    #[test]
    fn a_folder_has_programs_and_goes_with_what_is_in_it() {
        let scratch = tempfile::tempdir().expect("a directory");
        let homes = SessionHomes::persistent(scratch.path().to_owned(), []);
        let path = ShimDir::path(&homes, &"s-1".parse().expect("an id")).expect("a path");
        fs::create_dir(&path).expect("made");
        fs::write(path.join("left"), "").expect("written");
        let programs = [ProvisionFile { path: "bash".into(), contents: "#!/bin/sh\n".to_owned().into() }];
        let folder = ShimDir::make(&path, &programs).expect("made");
        let mode = |path: &Path| fs::metadata(path).expect("there").mode() & 0o777;
        assert_eq!((mode(&path), mode(&path.join("bash")), path.join("left").exists()), (0o700, 0o700, false));
        drop(folder);
        assert_eq!(fs::read_dir(scratch.path()).expect("listed").count(), 0);
    }
}
