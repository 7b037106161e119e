//! Changes of modes, owners and times by programs of a sandbox that has no mounts.
//!
//! Landlock has no right for them. The filter of such a program passes these calls on to a thread here, which opens the file, looks where
//! it is, and makes the change itself if the session writes there. So nobody can put another file in its place between look and change.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::{ffi::OsStringExt, fs::FileExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use ipc_protocol::{errno::errno, packet};
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid},
    io::Errno,
};

use crate::sys::{FCHMODAT2, PassedCall, answer_call, is_call_waiting, take_call};

/// Longest path, its end included.
const PATH_MAX: usize = 4096;
/// Stack of a guard's thread, in bytes.
const STACK: usize = 128 * 1024;
/// Names by which a program has its own descriptors.
const OWN_DESCRIPTORS: [&str; 3] = ["/proc/self/fd/", "/proc/thread-self/fd/", "/dev/fd/"];

/// Carries out the calls of one program and all that it starts.
pub(crate) struct MetadataGuard {
    listener: OwnedFd,
    /// Canonical paths below which changes are made.
    write: Arc<[PathBuf]>,
}

/// File that a call is about.
enum CallTarget {
    Path { directory: i32, address: u64, follows: bool },
    Descriptor(i32),
}

/// Change that a call asks for.
enum CallChange {
    Mode(u32),
    Owner(u32, u32),
    Times(Timestamps),
}

impl MetadataGuard {
    /// Takes the listener that a program has sent, and serves it on a thread of its own, which ends with the last process that has the
    /// filter.
    pub(crate) fn start(socket: &OwnedFd, write: Arc<[PathBuf]>) -> io::Result<()> {
        let mut byte = Vec::new();
        let received = packet::recv_packet(socket, &mut byte)?.flatten();
        let listener = received.ok_or_else(|| io::Error::other("the program has sent no listener"))?;
        let guard = Self { listener, write };
        thread::Builder::new().name("ap metadata".into()).stack_size(STACK).spawn(move || guard.serve())?;
        Ok(())
    }

    fn serve(self) {
        loop {
            let mut ready = [PollFd::new(&self.listener, PollFlags::IN)];
            match poll(&mut ready, None) {
                Ok(_) if ready[0].revents().contains(PollFlags::IN) => {}
                Err(Errno::INTR) => continue,
                _ => return,
            }
            match take_call(&self.listener) {
                Ok(call) => {
                    let result = self.carry_out(&call).map_or_else(Errno::raw_os_error, |()| 0);
                    answer_call(&self.listener, call.id, result);
                }
                // The caller has gone.
                Err(error) if matches!(errno(&error), Some(Errno::NOENT | Errno::INTR)) => {}
                Err(_) => return,
            }
        }
    }

    fn carry_out(&self, call: &PassedCall) -> Result<(), Errno> {
        let memory = File::open(format!("/proc/{}/mem", call.thread)).map_err(|_| Errno::PERM)?;
        let (target, change) = parse(call, &memory)?;
        let file = self.open(call, &target, &memory)?;
        // A thread of another session could have the number by now. Root does not lend its rights to whom it has become.
        if !is_call_waiting(&self.listener, call.id) || !is_own_user(call.thread) {
            return Err(Errno::PERM);
        }
        let stat = rustix::fs::fstat(&file)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        let path = std::fs::read_link(&name).map_err(|_| Errno::PERM)?;
        // Pipes and the like have no path; shared memory without a name belongs to who has it open.
        let is_nameless = !path.is_absolute() || stat.st_nlink == 0 && path.starts_with("/memfd:");
        if !is_nameless && !self.write.iter().any(|write| path.starts_with(write)) {
            return Err(Errno::PERM);
        }
        let id = |number: u32| (number != u32::MAX).then_some(number);
        match change {
            CallChange::Mode(_) if kind == FileType::Symlink => Err(Errno::OPNOTSUPP),
            CallChange::Mode(mode) => rustix::fs::chmod(&name, Mode::from_raw_mode(mode & 0o7777)),
            CallChange::Owner(user, group) => {
                let (user, group) = (id(user).map(Uid::from_raw), id(group).map(Gid::from_raw));
                rustix::fs::chownat(&file, "", user, group, AtFlags::EMPTY_PATH)
            }
            CallChange::Times(times) if kind == FileType::Symlink => {
                rustix::fs::utimensat(&file, "", &times, AtFlags::EMPTY_PATH)
            }
            CallChange::Times(times) => rustix::fs::utimensat(CWD, &name, &times, AtFlags::empty()),
        }
    }

    fn open(&self, call: &PassedCall, target: &CallTarget, memory: &File) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let descriptor = |number: i32| {
            let opened = rustix::fs::open(format!("/proc/{}/fd/{number}", call.thread), flags, Mode::empty());
            opened.map_err(|error| if error == Errno::NOENT { Errno::BADF } else { error })
        };
        let (directory, address, follows) = match *target {
            CallTarget::Descriptor(number) => return descriptor(number),
            CallTarget::Path { directory, address, follows } => (directory, address, follows),
        };
        let path = read_path(memory, address)?;
        let own = path.to_str().and_then(|path| OWN_DESCRIPTORS.iter().find_map(|names| path.strip_prefix(names)));
        if let Some(number) = own.and_then(|number| number.parse().ok()) {
            return descriptor(number);
        }
        let flags = if follows { flags } else { flags | OFlags::NOFOLLOW };
        // Of a link below `/proc` it is this process that would be meant.
        let resolve = ResolveFlags::NO_MAGICLINKS;
        if path.is_absolute() {
            let root = rustix::fs::open(format!("/proc/{}/root", call.thread), OFlags::PATH, Mode::empty())?;
            return rustix::fs::openat2(root, &path, flags, Mode::empty(), resolve | ResolveFlags::IN_ROOT);
        }
        let directory = match directory {
            libc::AT_FDCWD => rustix::fs::open(format!("/proc/{}/cwd", call.thread), OFlags::PATH, Mode::empty())?,
            number => descriptor(number)?,
        };
        rustix::fs::openat2(directory.as_fd(), &path, flags, Mode::empty(), resolve)
    }
}

/// Reads what a call asks for.
fn parse(call: &PassedCall, memory: &File) -> Result<(CallTarget, CallChange), Errno> {
    let [first, second, third, fourth, fifth, _] = call.args;
    let int = |value: u64| value as u32 as i32;
    let path = |directory, address, flags: i32| CallTarget::Path {
        directory,
        address,
        follows: flags & libc::AT_SYMLINK_NOFOLLOW == 0,
    };
    let at = |directory: u64, address: u64, flags: i32| -> Result<CallTarget, Errno> {
        let is_descriptor = flags & libc::AT_EMPTY_PATH != 0 && read_path(memory, address)?.as_os_str().is_empty();
        if is_descriptor && int(directory) != libc::AT_FDCWD {
            return Ok(CallTarget::Descriptor(int(directory)));
        }
        Ok(path(int(directory), address, flags))
    };
    let mode = |mode: u64| CallChange::Mode(mode as u32);
    let owner = |user: u64, group: u64| CallChange::Owner(user as u32, group as u32);
    Ok(match call.number {
        libc::SYS_fchmod => (CallTarget::Descriptor(int(first)), mode(second)),
        libc::SYS_fchmodat => (path(int(first), second, 0), mode(third)),
        FCHMODAT2 => (at(first, second, int(fourth))?, mode(third)),
        libc::SYS_fchown => (CallTarget::Descriptor(int(first)), owner(second, third)),
        libc::SYS_fchownat => (at(first, second, int(fifth))?, owner(third, fourth)),
        libc::SYS_utimensat => {
            let target = if second == 0 { CallTarget::Descriptor(int(first)) } else { at(first, second, int(fourth))? };
            (target, CallChange::Times(read_times(memory, third, 1)?))
        }
        #[cfg(target_arch = "x86_64")]
        number => match number {
            libc::SYS_chmod => (path(libc::AT_FDCWD, first, 0), mode(second)),
            libc::SYS_chown => (path(libc::AT_FDCWD, first, 0), owner(second, third)),
            libc::SYS_lchown => (path(libc::AT_FDCWD, first, libc::AT_SYMLINK_NOFOLLOW), owner(second, third)),
            libc::SYS_utime => {
                let times = match second {
                    0 => now(),
                    address => {
                        let [accessed, modified] = read_numbers::<2>(memory, address)?;
                        timestamps(accessed, 0, modified, 0)
                    }
                };
                (path(libc::AT_FDCWD, first, 0), CallChange::Times(times))
            }
            libc::SYS_utimes => (path(libc::AT_FDCWD, first, 0), CallChange::Times(read_times(memory, second, 1000)?)),
            libc::SYS_futimesat => {
                let target = if second == 0 { CallTarget::Descriptor(int(first)) } else { path(int(first), second, 0) };
                (target, CallChange::Times(read_times(memory, third, 1000)?))
            }
            _ => return Err(Errno::NOSYS),
        },
        #[cfg(not(target_arch = "x86_64"))]
        _ => return Err(Errno::NOSYS),
    })
}

/// Reads two times, whose second parts are in units of `unit` nanoseconds; now, where there is no address.
fn read_times(memory: &File, address: u64, unit: i64) -> Result<Timestamps, Errno> {
    if address == 0 {
        return Ok(now());
    }
    let [accessed, accessed_part, modified, modified_part] = read_numbers::<4>(memory, address)?;
    let part = |part: i64| part.checked_mul(unit).ok_or(Errno::INVAL);
    Ok(timestamps(accessed, part(accessed_part)?, modified, part(modified_part)?))
}

fn timestamps(accessed: i64, accessed_part: i64, modified: i64, modified_part: i64) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: accessed, tv_nsec: accessed_part },
        last_modification: Timespec { tv_sec: modified, tv_nsec: modified_part },
    }
}

fn now() -> Timestamps {
    timestamps(0, libc::UTIME_NOW, 0, libc::UTIME_NOW)
}

fn read_numbers<const COUNT: usize>(memory: &File, address: u64) -> Result<[i64; COUNT], Errno> {
    let mut numbers = [0; COUNT];
    for (number, at) in numbers.iter_mut().zip(0..) {
        let mut bytes = [0; 8];
        memory.read_exact_at(&mut bytes, address.wrapping_add(at * 8)).map_err(|_| Errno::FAULT)?;
        *number = i64::from_ne_bytes(bytes);
    }
    Ok(numbers)
}

fn read_path(memory: &File, address: u64) -> Result<PathBuf, Errno> {
    let mut bytes = vec![0; PATH_MAX];
    let length = memory.read_at(&mut bytes, address).map_err(|_| Errno::FAULT)?;
    bytes.truncate(length);
    let end = bytes.iter().position(|byte| *byte == 0);
    bytes.truncate(end.ok_or(if length == PATH_MAX { Errno::NAMETOOLONG } else { Errno::FAULT })?);
    Ok(PathBuf::from(std::ffi::OsString::from_vec(bytes)))
}

/// Returns whether a thread has this process's user.
fn is_own_user(thread: u32) -> bool {
    let status =
        std::fs::read_to_string(Path::new("/proc").join(thread.to_string()).join("status")).unwrap_or_default();
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    let own = nix::unistd::geteuid().as_raw();
    // Of the four the last is that for files.
    uids.split_ascii_whitespace().nth(3).and_then(|uid| uid.parse().ok()) == Some(own)
}
