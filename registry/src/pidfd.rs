//! Handle of a process that cannot be mistaken for another.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use ipc_protocol::{ExitStatus, Pid, ProcessId, Signal, SignalNumber};
use rustix::process::{PidfdFlags, WaitIdOptions};

use crate::{proc::identify, sys};

/// A process, held by a pidfd that was opened and then checked against the start time. Signals reach that process or
/// none. The pidfd is readable (for poll) once the process is dead.
#[derive(Debug)]
pub struct PidFd {
    fd: OwnedFd,
    id: ProcessId,
}

impl PidFd {
    /// Opens the process `id`.
    ///
    /// # Errors
    /// `NotFound` when it is gone, or its pid is another process's by now. Any other says nothing about it.
    pub fn open(id: ProcessId) -> io::Result<Self> {
        let fd = open_raw(id.pid)?;
        match identify(id.pid) {
            Ok(now) if now == id => return Ok(Self { fd, id }),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Err(io::Error::new(io::ErrorKind::NotFound, format!("process {id} is gone")))
    }

    /// Opens the child `pid` of this process, which must not have been reaped: until then its pid cannot be reused.
    ///
    /// # Errors
    /// `NotFound` when there is no such child.
    pub fn of_child(pid: Pid) -> io::Result<Self> {
        Ok(Self { fd: open_raw(pid)?, id: identify(pid)? })
    }

    /// Wraps a pidfd that another process of ours opened for `id` and sent here.
    pub fn from_parts(fd: OwnedFd, id: ProcessId) -> Self {
        Self { fd, id }
    }

    /// Identity of the process.
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// `NotFound` when the process is gone; `PermissionDenied` when it is another user's.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let number = rustix_signal(signal);
        rustix::process::pidfd_send_signal(&self.fd, number).map_err(gone_is_not_found)
    }

    /// Sends any signal, by its number.
    ///
    /// # Errors
    /// As [`PidFd::signal`].
    pub fn signal_number(&self, signal: SignalNumber) -> io::Result<()> {
        rustix::process::pidfd_send_signal(&self.fd, sys::any_signal(signal)).map_err(gone_is_not_found)
    }

    /// Reaps the process, if it is a child of this process and dead. `Ok(None)` while it lives.
    ///
    /// # Errors
    /// An error of the system call; `ECHILD` when it is no child, or was reaped.
    pub fn try_reap(&self) -> io::Result<Option<ExitStatus>> {
        let status = rustix::process::waitid(
            rustix::process::WaitId::PidFd(self.fd.as_fd()),
            WaitIdOptions::EXITED | WaitIdOptions::NOHANG,
        )?;
        Ok(status.map(|status| match status.exit_status() {
            Some(code) => ExitStatus::Code(code),
            None => ExitStatus::Signal(status.terminating_signal().unwrap_or(0)),
        }))
    }

    /// Duplicates the descriptor.
    ///
    /// # Errors
    /// An error of the system call, when out of descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()?, id: self.id })
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<PidFd> for OwnedFd {
    fn from(process: PidFd) -> Self {
        process.fd
    }
}

impl std::os::fd::AsRawFd for PidFd {
    fn as_raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

fn open_raw(pid: Pid) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "0 is no pid"))?;
    rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK).map_err(gone_is_not_found)
}

fn gone_is_not_found(error: rustix::io::Errno) -> io::Error {
    if error == rustix::io::Errno::SRCH {
        io::Error::new(io::ErrorKind::NotFound, "the process is gone")
    } else {
        error.into()
    }
}

fn rustix_signal(signal: Signal) -> rustix::process::Signal {
    use rustix::process::Signal as R;
    match signal {
        Signal::Hup => R::HUP,
        Signal::Int => R::INT,
        Signal::Quit => R::QUIT,
        Signal::Kill => R::KILL,
        Signal::Usr1 => R::USR1,
        Signal::Usr2 => R::USR2,
        Signal::Term => R::TERM,
        Signal::Cont => R::CONT,
        Signal::Stop => R::STOP,
    }
}
