//! Mounts that hide files: of a sandbox, made by the init of its namespaces, and of whoever has none.

use std::{
    ffi::{CStr, CString, c_int, c_uint},
    os::fd::RawFd,
    ptr,
};

use super::errno;

/// Step towards the mounts of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MountStep {
    /// Copies what is mounted at a path and below it, to attach it later.
    Copy { slot: usize, path: CString },
    /// Makes a mount read-only, with all below it where `is_recursive`.
    Freeze { path: CString, is_recursive: bool },
    /// Mounts a file system of the sandbox's own.
    Own { kind: &'static CStr, path: CString, options: CString },
    /// Makes a directory with exactly this mode, unless it is there.
    Directory { path: CString, mode: u32 },
    /// Makes a file with a text.
    File { path: CString, mode: u32, text: &'static str },
    /// Makes a symbolic link.
    Link { path: CString, target: CString },
    /// Attaches a copy.
    Attach { slot: usize, path: CString },
    /// Puts a file over another one, read-only. Nothing happens where that is not there.
    Cover { with: CString, path: CString },
}

impl MountStep {
    /// Path that the step is about.
    pub(crate) fn path(&self) -> &CStr {
        match self {
            Self::Copy { path, .. }
            | Self::Freeze { path, .. }
            | Self::Own { path, .. }
            | Self::Directory { path, .. }
            | Self::File { path, .. }
            | Self::Link { path, .. }
            | Self::Attach { path, .. }
            | Self::Cover { path, .. } => path,
        }
    }

    /// Operation of the step, for errors.
    pub(crate) fn operation(&self) -> &'static str {
        match self {
            Self::Copy { .. } => "copying the mount of",
            Self::Freeze { .. } => "making read-only",
            Self::Own { .. } => "mounting on",
            Self::Directory { .. } | Self::File { .. } | Self::Link { .. } => "making",
            Self::Attach { .. } => "attaching",
            Self::Cover { .. } => "covering",
        }
    }
}

/// Steps with room for the descriptors of copies.
#[derive(Clone, Debug, Default)]
pub(crate) struct MountSteps {
    pub steps: Vec<MountStep>,
    /// A place for each [`MountStep::Copy`].
    pub slots: Vec<RawFd>,
}

impl MountSteps {
    /// Makes room for a copy, and returns its place.
    pub(crate) fn add_slot(&mut self) -> usize {
        self.slots.push(-1);
        self.slots.len() - 1
    }
}

/// Steps of a sandbox.
#[derive(Clone, Debug, Default)]
pub(crate) struct SandboxPlan {
    pub mounts: MountSteps,
    /// True for a network namespace, too.
    pub has_network: bool,
}

/// Carries out the steps. The error has the number of the step.
///
/// # Safety
/// Only in a child with a mount namespace of its own. Async-signal-safe.
pub(super) unsafe fn mount_steps(plan: &mut MountSteps) -> Result<(), (usize, c_int)> {
    let MountSteps { steps, slots } = plan;
    let mut at = 0;
    while at < steps.len() {
        // SAFETY: the caller's promise.
        unsafe { mount_step(&steps[at], slots) }.map_err(|errno| (at, errno))?;
        at += 1;
    }
    for slot in slots {
        // SAFETY: closes what a step has opened.
        unsafe { libc::close(*slot) };
    }
    Ok(())
}

/// # Safety
/// As [`mount_steps`].
unsafe fn mount_step(step: &MountStep, slots: &mut [RawFd]) -> Result<(), c_int> {
    let check = |result: libc::c_long| if result < 0 { Err(errno()) } else { Ok(result) };
    // SAFETY: system calls on C strings that live as long as the steps, on constants, and on descriptors of our own.
    unsafe {
        match step {
            MountStep::Copy { slot, path } => {
                let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | libc::AT_RECURSIVE as c_uint;
                let tree = check(libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags))?;
                slots[*slot] = tree as RawFd;
            }
            MountStep::Freeze { path, is_recursive } => {
                set_read_only(libc::AT_FDCWD, path, if *is_recursive { libc::AT_RECURSIVE } else { 0 })?;
            }
            MountStep::Own { kind, path, options } => {
                let runs_programs = *kind == c"tmpfs" || *kind == c"overlay";
                let noexec = if runs_programs { 0 } else { libc::MS_NOEXEC };
                let nodev = if *kind == c"devpts" { 0 } else { libc::MS_NODEV };
                let flags = libc::MS_NOSUID | noexec | nodev;
                check(libc::mount(kind.as_ptr(), path.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast()).into())?;
            }
            MountStep::Directory { path, mode } => {
                match check(libc::mkdir(path.as_ptr(), *mode).into()) {
                    // The mask of file modes is the proxy's.
                    Ok(_) => check(libc::chmod(path.as_ptr(), *mode).into())?,
                    Err(libc::EEXIST) => 0,
                    Err(errno) => return Err(errno),
                };
            }
            MountStep::File { path, mode, text } => {
                let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW;
                let fd = check(libc::open(path.as_ptr(), flags, *mode).into())? as c_int;
                let written = check(libc::write(fd, text.as_ptr().cast(), text.len()) as libc::c_long);
                libc::close(fd);
                written?;
            }
            MountStep::Link { path, target } => {
                check(libc::symlink(target.as_ptr(), path.as_ptr()).into())?;
            }
            MountStep::Attach { slot, path } => move_mount(slots[*slot], path)?,
            MountStep::Cover { with, path } => {
                let tree = check(libc::syscall(
                    libc::SYS_open_tree,
                    libc::AT_FDCWD,
                    with.as_ptr(),
                    libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC,
                ))? as RawFd;
                let done = set_read_only(tree, c"", libc::AT_EMPTY_PATH).and_then(|()| move_mount(tree, path));
                libc::close(tree);
                match done {
                    Err(libc::ENOENT) => {}
                    done => done?,
                }
            }
        }
    }
    Ok(())
}

/// # Safety
/// As [`mount_steps`].
unsafe fn move_mount(tree: RawFd, path: &CStr) -> Result<(), c_int> {
    let flags = libc::MOVE_MOUNT_F_EMPTY_PATH;
    // SAFETY: a system call on a descriptor and C strings.
    let done = unsafe { libc::syscall(libc::SYS_move_mount, tree, c"".as_ptr(), libc::AT_FDCWD, path.as_ptr(), flags) };
    if done < 0 { Err(errno()) } else { Ok(()) }
}

/// # Safety
/// As [`mount_steps`].
unsafe fn set_read_only(at: RawFd, path: &CStr, flags: c_int) -> Result<(), c_int> {
    let attributes = libc::mount_attr { attr_set: libc::MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: the call reads a path and a struct whose size is given.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            at,
            path.as_ptr(),
            flags,
            ptr::from_ref(&attributes),
            size_of::<libc::mount_attr>(),
        )
    };
    if done < 0 { Err(errno()) } else { Ok(()) }
}
