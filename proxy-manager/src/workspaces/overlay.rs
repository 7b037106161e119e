//! Changes of an overlay, as its upper layer has them.
//!
//! What was written is there as it is. What was removed is there as a device 0:0, and a directory that took the place of another one is
//! marked as opaque. A directory of the lower layer that was renamed is there as a copy: the mount asks for that.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{FsWord, statfs};

/// Attributes that mark a directory as opaque: of root, and in a user namespace.
const OPAQUE: [&str; 2] = ["trusted.overlay.opaque", "user.overlay.opaque"];
/// Kind of the file system that an overlay is, by its magic number.
const OVERLAY_MAGIC: FsWord = 0x794c_7630;

/// Changes in an upper layer.
#[derive(Debug, Default)]
pub(super) struct OverlayChanges {
    /// Paths at which nothing of the lower layer shows: that were removed, or are opaque directories.
    covered: BTreeSet<PathBuf>,
    /// All directories.
    directories: BTreeSet<PathBuf>,
    /// Directories with a repository of their own, in either layer.
    pub(super) repositories: Vec<PathBuf>,
}

impl OverlayChanges {
    /// Reads an upper layer. Links are not followed.
    pub(super) fn read(upper: &Path, lower: &Path) -> io::Result<Self> {
        let mut changes = Self::default();
        let mut waiting = vec![PathBuf::new()];
        while let Some(below) = waiting.pop() {
            let directory = upper.join(&below);
            let is_top = below == Path::new("");
            let has_repository = |tree: &Path| tree.join(&below).join(".git").symlink_metadata().is_ok();
            if !is_top && (has_repository(upper) || has_repository(lower)) {
                changes.repositories.push(below);
                continue;
            }
            for entry in fs::read_dir(&directory)? {
                let entry = entry?;
                let (kind, path) = (entry.file_type()?, below.join(entry.file_name()));
                if kind.is_char_device() && entry.metadata()?.rdev() == 0 {
                    changes.covered.insert(path);
                } else if kind.is_dir() && entry.file_name() != ".git" {
                    waiting.push(path);
                }
            }
            if !is_top {
                if is_opaque(&directory)? {
                    changes.covered.insert(below.clone());
                }
                changes.directories.insert(below);
            }
        }
        Ok(changes)
    }

    /// Returns true if a file of the lower layer is gone, or replaced.
    pub(super) fn removes(&self, file: &Path) -> bool {
        self.directories.contains(file) || file.ancestors().any(|path| self.covered.contains(path))
    }
}

fn is_opaque(directory: &Path) -> io::Result<bool> {
    for name in OPAQUE {
        let mut value = [0_u8; 8];
        match rustix::fs::lgetxattr(directory, name, &mut value[..]) {
            Ok(length) if value[..length] == *b"y" => return Ok(true),
            Ok(_) => {}
            Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::RANGE) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}

/// Returns true for a directory on an overlay: the kernel refuses the changes of another one there.
pub(super) fn is_on_overlay(directory: &Path) -> bool {
    let there = directory.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    statfs(there).is_ok_and(|found| found.f_type == OVERLAY_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_of_either_layer_are_found() {
        let scratch = tempfile::tempdir().expect("a directory");
        let (upper, lower) = (scratch.path().join("upper"), scratch.path().join("lower"));
        for path in ["upper/theirs/deep", "upper/ours/.git", "upper/plain", "upper/.git/objects", "lower/theirs/.git"] {
            fs::create_dir_all(scratch.path().join(path)).expect("made");
        }
        let mut changes = OverlayChanges::read(&upper, &lower).expect("read");
        changes.repositories.sort();
        assert_eq!(changes.repositories, [Path::new("ours"), Path::new("theirs")]);
        assert!(changes.removes(Path::new("plain")), "a directory took the place of a file");
        assert!(!changes.removes(Path::new("plain/file")) && !changes.removes(Path::new(".git/objects")));
    }
}
