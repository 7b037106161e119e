//! Files in a directory that an agent had. Nothing here follows a symbolic link that the agent may have left.

use std::{
    ffi::{CStr, CString, OsStr},
    fs::{self, File},
    io::{self, Write},
    os::fd::{AsRawFd, OwnedFd},
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, Dir, Mode, OFlags, RenameFlags},
    io::Errno,
};

/// Flags that open a directory itself and follow no symbolic link.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Flag for a directory of which nothing is read. Elsewhere than on Linux there is none, and reading has to be allowed.
#[cfg(target_os = "linux")]
const PLACE: OFlags = OFlags::PATH;
#[cfg(not(target_os = "linux"))]
const PLACE: OFlags = OFlags::empty();
/// Entries of a directory read at once, before the directory is read again.
const AT_ONCE: usize = 4096;

/// Opens the directory `path`, which must not be a symbolic link.
///
/// # Errors
/// The system's: there is none, or it is a symbolic link.
pub fn open(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, DIRECTORY, Mode::empty())?)
}

/// Opens the nearest existing directory above `path`, and returns the rest of `path` within it. No symbolic link is
/// followed.
///
/// # Errors
/// `FilesystemLoop` if there is a symbolic link on the way.
pub fn nearest(path: &Path) -> io::Result<(OwnedFd, PathBuf)> {
    for above in path.ancestors().skip(1) {
        match open_without_links(above) {
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
            Ok(directory) => return Ok((directory, path.strip_prefix(above).unwrap_or(path).to_owned())),
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("{path:?} is in no directory")))
}

/// Opens a directory with no symbolic link on the way to it.
#[cfg(target_os = "linux")]
fn open_without_links(path: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat2(rustix::fs::CWD, path, DIRECTORY, Mode::empty(), rustix::fs::ResolveFlags::NO_SYMLINKS)
}

/// Refuses: only Linux follows no link on the whole way.
#[cfg(not(target_os = "linux"))]
fn open_without_links(_: &Path) -> rustix::io::Result<OwnedFd> {
    Err(Errno::NOSYS)
}

/// Writes `contents` to `path` within `root`, for this user only, and creates directories on the way. Replaces an
/// existing file.
///
/// # Errors
/// `InvalidInput` for a path that leads out of `root`; else the system's, such as a symbolic link on the way.
pub fn write(root: &OwnedFd, path: &Path, contents: &[u8]) -> io::Result<()> {
    write_as(root, path, contents, Mode::RUSR | Mode::WUSR)
}

/// Writes an executable like [`write()`].
///
/// # Errors
/// As [`write()`].
pub fn write_program(root: &OwnedFd, path: &Path, contents: &[u8]) -> io::Result<()> {
    write_as(root, path, contents, Mode::RWXU)
}

fn write_as(root: &OwnedFd, path: &Path, contents: &[u8], mode: Mode) -> io::Result<()> {
    let (directories, name) = within(path)?;
    let mut directory = rustix::io::fcntl_dupfd_cloexec(root, 0)?;
    for name in directories {
        match rustix::fs::mkdirat(&directory, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        directory = rustix::fs::openat(&directory, name, DIRECTORY, Mode::empty())?;
    }
    unlink_at(&directory, name)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    File::from(rustix::fs::openat(&directory, name, flags, mode)?).write_all(contents)
}

/// Removes the file `path` within `root`. A missing file is no error.
///
/// # Errors
/// As [`write()`].
pub fn unlink(root: &OwnedFd, path: &Path) -> io::Result<()> {
    let (directories, name) = within(path)?;
    let mut directory = rustix::io::fcntl_dupfd_cloexec(root, 0)?;
    for name in directories {
        directory = match rustix::fs::openat(&directory, name, DIRECTORY, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            opened => opened?,
        };
    }
    unlink_at(&directory, name)
}

fn unlink_at(directory: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Splits `path` into the directories on the way and the name of the file.
fn within(path: &Path) -> io::Result<(Vec<&OsStr>, &OsStr)> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name),
            _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{path:?} leads out of it"))),
        }
    }
    let Some(name) = names.pop() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a file without a name"));
    };
    Ok((names, name))
}

/// Removes `path` and everything below it, however deep. A missing path is no error.
///
/// The agent chose the content, so neither the stack nor the number of descriptors may depend on its depth: nested
/// directories are moved to the top before they are emptied.
///
/// # Errors
/// The system's; what could not be removed stays.
pub fn remove(path: &Path) -> io::Result<()> {
    match rustix::fs::open(path, DIRECTORY | PLACE, Mode::empty()) {
        Ok(top) => {
            let top = usable(&top)?;
            let mut moved = 0;
            while !names(&top)?.is_empty() {
                empty(&top, &top, &mut moved)?;
            }
            Ok(fs::remove_dir(path)?)
        }
        Err(Errno::NOENT) => Ok(()),
        Err(Errno::NOTDIR | Errno::LOOP) => fs::remove_file(path),
        Err(error) => Err(error.into()),
    }
}

/// Unlinks the entries of `directory`, up to [`AT_ONCE`]. Directories in it are moved to `top`; those already in `top`
/// are emptied this way and removed.
fn empty(directory: &OwnedFd, top: &OwnedFd, moved: &mut u64) -> io::Result<()> {
    let at_top = std::ptr::eq(directory, top);
    for name in names(directory)? {
        match rustix::fs::unlinkat(directory, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => continue,
            Err(Errno::ISDIR) => {}
            Err(error) => return Err(error.into()),
        }
        let below = rustix::fs::openat(directory, &name, DIRECTORY | PLACE, Mode::empty())?;
        // A read-only directory can be neither emptied nor moved.
        let below = usable(&below)?;
        if !at_top {
            hoist(directory, &name, top, moved)?;
            continue;
        }
        loop {
            empty(&below, top, moved)?;
            match rustix::fs::unlinkat(top, &name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => break,
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Moves the directory `name` to `top`, under a name that is free there.
fn hoist(directory: &OwnedFd, name: &CStr, top: &OwnedFd, moved: &mut u64) -> io::Result<()> {
    loop {
        *moved += 1;
        let free = format!(".agent-proxy-removed-{moved}");
        match rustix::fs::renameat_with(directory, name, top, &*free, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(()),
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Names in `directory`, at most [`AT_ONCE`].
fn names(directory: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if entry.file_name() != c"." && entry.file_name() != c".." {
            names.push(entry.file_name().to_owned());
        }
        if names.len() >= AT_ONCE {
            break;
        }
    }
    Ok(names)
}

/// Opens a directory for emptying: caches are often made read-only.
fn usable(directory: &OwnedFd) -> io::Result<OwnedFd> {
    // A directory that cannot even be opened is changed through its descriptor in /proc, which names this very
    // directory.
    rustix::fs::chmod(format!("/proc/self/fd/{}", directory.as_raw_fd()), Mode::RWXU)?;
    Ok(rustix::fs::openat(directory, c".", DIRECTORY, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("there").mode() & 0o777
    }

    #[test]
    fn files_are_ours_alone_and_replace_what_was_there() {
        let scratch = tempfile::tempdir().expect("a directory");
        let root = open(scratch.path()).expect("opened");
        let path = Path::new(".config/agent/settings.json");
        for contents in ["one", "two"] {
            write(&root, path, contents.as_bytes()).expect("written");
            let whole = scratch.path().join(path);
            assert_eq!(fs::read_to_string(&whole).expect("there"), contents);
            assert_eq!((mode(&whole), mode(&scratch.path().join(".config"))), (0o600, 0o700));
            fs::set_permissions(&whole, fs::Permissions::from_mode(0o644)).expect("changed");
        }
    }

    #[test]
    fn nothing_is_written_through_a_link_or_out_of_the_home() {
        let scratch = tempfile::tempdir().expect("a directory");
        let (home, outside) = (scratch.path().join("home"), scratch.path().join("outside"));
        fs::create_dir(&home).expect("made");
        fs::create_dir(&outside).expect("made");
        fs::write(outside.join("file"), "mine").expect("written");
        symlink(&outside, home.join("dir")).expect("linked");
        symlink(outside.join("file"), home.join("file")).expect("linked");
        let root = open(&home).expect("opened");
        assert!(write(&root, Path::new("dir/file"), b"theirs").is_err());
        for out in ["../outside/file", "/etc/x", ""] {
            assert!(write(&root, Path::new(out), b"theirs").is_err(), "{out:?}");
        }
        assert!(unlink(&root, Path::new("dir/file")).is_err() && unlink(&root, Path::new("../outside/file")).is_err());
        write(&root, Path::new("file"), b"theirs").expect("in place of the link");
        for there in [true, false] {
            assert_eq!(home.join("file").exists(), there);
            unlink(&root, Path::new("file")).expect("removed, or not there");
        }
        unlink(&root, Path::new("no/file")).expect("not there");
        assert_eq!(fs::read_to_string(outside.join("file")).expect("there"), "mine");
        symlink(&home, scratch.path().join("link")).expect("linked");
        assert!(open(&scratch.path().join("link")).is_err());
    }

    #[test]
    fn removal_takes_what_is_read_only_and_leaves_what_is_linked() {
        let scratch = tempfile::tempdir().expect("a directory");
        let (home, outside) = (scratch.path().join("home"), scratch.path().join("outside"));
        fs::create_dir_all(home.join("cache/module/deep")).expect("made");
        fs::write(home.join("cache/module/deep/file"), "x").expect("written");
        fs::create_dir(&outside).expect("made");
        fs::write(outside.join("file"), "mine").expect("written");
        symlink(&outside, home.join("cache/link")).expect("linked");
        for (path, mode) in [("cache/module/deep", 0o555), ("cache/module", 0o000), ("cache", 0o555)] {
            fs::set_permissions(home.join(path), fs::Permissions::from_mode(mode)).expect("changed");
        }
        remove(&home).expect("removed");
        assert!(!home.exists());
        assert_eq!(fs::read_to_string(outside.join("file")).expect("there"), "mine");
        remove(&home).expect("there is none any more");
        // A link in its place goes, and nothing else.
        symlink(&outside, &home).expect("linked");
        remove(&home).expect("removed");
        assert!(fs::symlink_metadata(&home).is_err() && outside.join("file").exists());
    }

    #[test]
    fn removal_takes_what_is_very_deep_and_what_is_very_many() {
        let scratch = tempfile::tempdir().expect("a directory");
        let home = scratch.path().join("home");
        fs::create_dir(&home).expect("made");
        for n in 0..AT_ONCE + 10 {
            fs::write(home.join(n.to_string()), "").expect("written");
        }
        let mut at = open(&home).expect("opened");
        for _ in 0..20_000 {
            rustix::fs::mkdirat(&at, c"d", Mode::RWXU).expect("made");
            at = rustix::fs::openat(&at, c"d", DIRECTORY, Mode::empty()).expect("opened");
            rustix::fs::mkdirat(&at, c".agent-proxy-removed-3", Mode::empty()).expect("made");
        }
        drop(at);
        remove(&home).expect("removed");
        assert!(!home.exists());
    }
}
