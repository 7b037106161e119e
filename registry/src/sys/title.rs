//! Process title: the name and command line that `ps` shows.

use std::{ffi::CString, io, ptr};

/// Memory area of this process's command line, where `ps` reads it: its argv. Looked up once; a forked child has it at
/// the same address.
#[derive(Clone, Copy, Debug)]
pub struct ProcessTitle {
    start: usize,
    room: usize,
}

impl ProcessTitle {
    /// Finds the area. A program that wants long titles is started with padding among its arguments, and must not read
    /// its arguments after using this.
    ///
    /// # Errors
    /// An error of the system call, if `/proc` is not readable.
    pub fn locate() -> io::Result<Self> {
        let stat = crate::proc::stat(std::process::id())?;
        let (start, end) = (stat.arg_start, stat.arg_end);
        let fit = |n: u64| usize::try_from(n).map_err(io::Error::other);
        Ok(Self { start: fit(start)?, room: fit(end.saturating_sub(start))? })
    }

    /// Sets the name (15 bytes) and, as far as there is room, the command line of this process.
    ///
    /// # Errors
    /// `InvalidInput` for a name with a NUL.
    pub fn set(self, name: &str, title: &str) -> io::Result<()> {
        let name =
            CString::new(name).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a NUL in a process name"))?;
        nix::sys::prctl::set_name(&name)?;
        if self.start == 0 || self.room < 2 {
            return Ok(());
        }
        let text = &title.as_bytes()[..title.len().min(self.room - 1)];
        // SAFETY: the kernel said that these `room` bytes are this process's argv area (or, in a fork, its parent's, which
        // is mapped at the same place): mapped, writable, and nobody's Rust object. The last byte stays NUL, so that
        // whoever still reads an argument reads a valid C string.
        unsafe {
            let area = self.start as *mut u8;
            ptr::copy_nonoverlapping(text.as_ptr(), area, text.len());
            ptr::write_bytes(area.add(text.len()), 0, self.room - text.len());
        }
        Ok(())
    }
}
