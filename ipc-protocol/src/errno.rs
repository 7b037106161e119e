//! Classes of system errors: what an errno says about this process, and about what it looked at.

use std::io;

use rustix::io::Errno;

/// Returns true if this process, or the machine, is out of file descriptors.
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(errno(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Returns true if this process is out of something: the error says nothing about what it looked at.
pub fn is_shortage(error: &io::Error) -> bool {
    is_out_of_descriptors(error) || errno(error) == Some(Errno::NOMEM)
}

/// Returns true if the process that was looked at is gone.
pub fn is_process_gone(error: &io::Error) -> bool {
    matches!(errno(error), Some(Errno::NOENT | Errno::SRCH))
}

/// Returns true if the cgroup that was looked at is gone.
pub fn is_group_gone(error: &io::Error) -> bool {
    matches!(errno(error), Some(Errno::NOENT | Errno::NODEV))
}

/// Error number of the system, if the error has one.
pub fn errno(error: &io::Error) -> Option<Errno> {
    Errno::from_io_error(error)
}
