//! For tests of a log that becomes read-only, here and in the crates above.

use std::{fs::File, io::Write as _, path::Path};

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

/// A file that nobody can write, not even who has it open; until this is dropped.
pub(crate) struct Immutable(File);

impl Immutable {
    /// `None` where nobody can be kept from that: it takes root, and a file system that looks at the flag at each write.
    pub(crate) fn new(path: &Path) -> Option<Self> {
        // One that is of no use shows whether it holds.
        let probe = tempfile::tempfile_in(path.parent()?).expect("a file");
        let held = Self::set(&probe).and_then(|probe| (&probe.0).write(b"x").is_err().then_some(()));
        held.and_then(|()| Self::set(&File::open(path).expect("the file")))
    }

    fn set(file: &File) -> Option<Self> {
        let flags = ioctl_getflags(file).ok()?;
        ioctl_setflags(file, flags | IFlags::IMMUTABLE).ok()?;
        Some(Self(file.try_clone().expect("a descriptor")))
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        let flags = ioctl_getflags(&self.0).expect("flags");
        ioctl_setflags(&self.0, flags - IFlags::IMMUTABLE).expect("it can be written again");
    }
}
