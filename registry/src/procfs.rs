//! The `/proc` that this process reads.
//!
//! Root can mount anything over `/proc/PID`: read by that path, a living process is then not there. So a process that may
//! mount reads a procfs of its own, attached nowhere, over which nobody else can mount anything. Without that right the
//! directory `/proc` is opened once; nobody without it can mount either, and what hides all the same is found by
//! [`is_found_by_signals`].

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ipc_protocol::{Pid, errno::is_shortage};
use nix::{sys::signal::kill, unistd::Pid as NixPid};
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, Stat},
    io::Errno,
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags},
};

/// Opened at the first look. A forked child gets it from its parent.
static ROOT: Mutex<Option<Arc<OwnedFd>>> = Mutex::new(None);

fn opened() -> MutexGuard<'static, Option<Arc<OwnedFd>>> {
    ROOT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The directory that stands for `/proc`.
///
/// # Errors
/// The system's, when out of descriptors.
pub(crate) fn root() -> io::Result<Arc<OwnedFd>> {
    let mut root = opened();
    if let Some(root) = &*root {
        return Ok(root.clone());
    }
    let fresh = Arc::new(open_root()?);
    *root = Some(fresh.clone());
    Ok(fresh)
}

/// Returns whether this process reads a procfs over which nobody else can mount anything.
pub fn has_private_proc() -> bool {
    root().is_ok_and(|root| {
        // Attached mounts have a path; a detached one is a root of its own.
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&*root));
        std::fs::read_link(path).is_ok_and(|path| path != std::path::Path::new("/proc"))
    })
}

/// Installs `fd`, a forked child's duplicate of [`root`]; the parent's own number means nothing there.
pub(crate) fn install(fd: Option<OwnedFd>) {
    if let Some(before) = std::mem::replace(&mut *opened(), fd.map(Arc::new)) {
        // Its descriptor was closed by its number, which may be another's by now.
        std::mem::forget(before);
    }
}

fn open_root() -> io::Result<OwnedFd> {
    let fresh = fresh().map_err(io::Error::from);
    match fresh.or_else(|error| if is_shortage(&error) { Err(error) } else { Ok(cloned()?) }) {
        Ok(root) => Ok(root),
        Err(error) if is_shortage(&error) => Err(error),
        Err(_) => Ok(rustix::fs::open("/proc", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?),
    }
}

/// A procfs of this PID namespace, mounted nowhere.
fn fresh() -> Result<OwnedFd, Errno> {
    let context = rustix::mount::fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(context.as_fd())?;
    let attributes =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// The mount at `/proc` once more, without what is mounted over parts of it. A user namespace whose `/proc` is masked may
/// make no fresh one.
fn cloned() -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let root = rustix::mount::open_tree(CWD, "/proc", flags)?;
    match rustix::fs::fstatfs(&root) {
        Ok(fs) if fs.f_type == rustix::fs::PROC_SUPER_MAGIC => Ok(root),
        _ => Err(Errno::NODEV),
    }
}

/// Opens a file below `/proc`, by its path from there.
///
/// # Errors
/// The system's.
pub fn open_proc_file(path: &str) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(&*root()?, path, flags, Mode::empty())?))
}

/// Opens a file below `/proc` for writing.
pub(crate) fn open_to_write(path: &str) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(&*root()?, path, flags, Mode::empty())?))
}

/// The whole of a file below `/proc`.
pub(crate) fn read(path: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_proc_file(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The same as text.
pub(crate) fn read_text(path: &str) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Returns the `stat` of a path below `/proc`.
pub(crate) fn metadata(path: &str, flags: AtFlags) -> io::Result<Stat> {
    Ok(rustix::fs::statat(&*root()?, path, flags)?)
}

/// Returns the target of a link below `/proc`.
pub(crate) fn read_link(path: &str) -> io::Result<OsString> {
    let link = rustix::fs::readlinkat(&*root()?, path, Vec::new())?;
    Ok(OsString::from_vec(link.into_bytes()))
}

/// The numbers among the names in a directory below `/proc` (`.` is `/proc` itself), `most` at most: its processes, the
/// threads or descriptors of one.
///
/// # Errors
/// The system's. Then the numbers are not all.
pub fn numbers_in_proc(path: &str, most: usize) -> io::Result<Vec<Pid>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(&*root()?, path, flags, Mode::empty())?;
    let mut numbers = Vec::new();
    for entry in rustix::fs::Dir::new(directory)? {
        if numbers.len() >= most {
            break;
        }
        numbers.extend(entry?.file_name().to_str().ok().and_then(|name| name.parse::<Pid>().ok()));
    }
    Ok(numbers)
}

/// Returns whether a process that `/proc` does not show is there all the same: something may be mounted over its directory.
pub(crate) fn is_found_by_signals(pid: Pid) -> bool {
    // 0 and less are groups of processes.
    let pid = i32::try_from(pid).ok().filter(|pid| *pid > 0);
    pid.is_some_and(|pid| kill(NixPid::from_raw(pid), None) != Err(nix::errno::Errno::ESRCH))
}
