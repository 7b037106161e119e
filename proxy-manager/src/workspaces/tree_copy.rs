//! Copy of a tree: by reflinks where the file system has them.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

/// Most bytes of files that are copied because there are no reflinks.
const MAX_PLAIN_BYTES: u64 = 2 << 30;

/// Copies a tree to a directory that does not exist: files with modes and times, directories, symbolic links. Sockets, pipes and devices
/// are left out.
///
/// # Errors
/// The system's with its path; [`io::ErrorKind::FileTooLarge`] where too much would have to be copied without reflinks.
pub(super) fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    copy_bounded(from, to, MAX_PLAIN_BYTES)
}

fn copy_bounded(from: &Path, to: &Path, max_plain: u64) -> io::Result<()> {
    let mut plain = 0;
    let mut waiting = vec![PathBuf::new()];
    let mut made = Vec::new();
    while let Some(below) = waiting.pop() {
        let directory = from.join(&below);
        let at = |path: &Path, error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let mode = fs::metadata(&directory).map_err(|error| at(&directory, error))?.permissions();
        fs::DirBuilder::new().mode(0o700).create(to.join(&below)).map_err(|error| at(&directory, error))?;
        for entry in fs::read_dir(&directory).map_err(|error| at(&directory, error))? {
            let entry = entry?;
            let (path, name) = (entry.path(), below.join(entry.file_name()));
            let copy = to.join(&name);
            let kind = entry.file_type()?;
            if kind.is_dir() {
                waiting.push(name);
            } else if kind.is_symlink() {
                symlink(fs::read_link(&path)?, &copy).map_err(|error| at(&path, error))?;
            } else if kind.is_file() {
                copy_file(&path, &copy, &mut plain, max_plain).map_err(|error| at(&path, error))?;
            }
        }
        made.push((to.join(&below), mode));
    }
    // A directory that cannot be written is full by now.
    for (directory, mode) in made {
        fs::set_permissions(directory, mode)?;
    }
    Ok(())
}

fn copy_file(path: &Path, copy: &Path, plain: &mut u64, max_plain: u64) -> io::Result<()> {
    let found = fs::metadata(path)?;
    if reflink_copy::reflink(path, copy).is_err() {
        *plain += found.len();
        if *plain > max_plain {
            let reason = format!(
                "more than {max_plain} bytes would have to be copied, since the file system of the state directory has no reflinks \
                 of these files: use the workspace `worktree`, or a state directory on the same Btrfs or XFS"
            );
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
        }
        fs::copy(path, copy)?;
    }
    let file = fs::File::options().write(true).open(copy).or_else(|_| fs::File::open(copy))?;
    file.set_modified(found.modified()?)?;
    fs::set_permissions(copy, fs::Permissions::from_mode(found.permissions().mode() & 0o7777))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_the_same_and_bounded() {
        let scratch = tempfile::tempdir().expect("a directory");
        let from = scratch.path().join("from");
        fs::create_dir_all(from.join("a/closed")).expect("made");
        fs::write(from.join("a/script"), "#!/bin/sh\n").expect("written");
        fs::set_permissions(from.join("a/script"), fs::Permissions::from_mode(0o751)).expect("set");
        fs::write(from.join("a/closed/file"), "x").expect("written");
        fs::set_permissions(from.join("a/closed"), fs::Permissions::from_mode(0o555)).expect("set");
        symlink("nowhere", from.join("link")).expect("linked");
        let to = scratch.path().join("to");
        copy_bounded(&from, &to, 1000).expect("copied");
        let mode = |path: &str| fs::metadata(to.join(path)).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode("a/script"), mode("a/closed")), (0o751, 0o555));
        assert_eq!(fs::read_to_string(to.join("a/closed/file")).expect("read"), "x");
        assert_eq!(fs::read_link(to.join("link")).expect("a link"), Path::new("nowhere"));
        let times = |root: &Path| fs::metadata(root.join("a/script")).expect("there").modified().expect("a time");
        assert_eq!(times(&from), times(&to));
        let bounded = copy_bounded(&from, &scratch.path().join("other"), 3);
        // Where there are reflinks, nothing is copied.
        if let Err(error) = bounded {
            assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
            assert!(error.to_string().contains("worktree"), "{error}");
        }
    }
}
