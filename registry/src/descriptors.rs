//! The limit on open files: raised for us, left as it was for what we start.

use std::{fs, io, os::unix::fs::MetadataExt, sync::OnceLock};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More than this nobody needs, and a table of that size takes memory.
const MOST: u64 = 1 << 20;

/// The soft limit before it was raised; `None` for no limit.
static BEFORE: OnceLock<Option<u64>> = OnceLock::new();

/// Raises this process's soft limit on open files to its hard limit, and remembers the soft one: programs that
/// [`crate::spawn()`] starts get that, since some of them count on it (`select`, loops over all descriptors).
///
/// # Errors
/// The system's. The limit is as it was then.
pub fn raise_descriptor_limit() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(MOST).min(MOST);
    if limit.current.is_none_or(|current| current >= most) {
        return Ok(());
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit })?;
    let _ = BEFORE.set(limit.current);
    Ok(())
}

/// The soft limit on open files of a program that is started: what this process had before it raised its own.
pub(crate) fn soft_limit_of_programs() -> Option<(u64, u64)> {
    let before = (*BEFORE.get()?)?;
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    Some((before.min(most), most))
}

/// Descriptors of a process: how many it may have, and how many more it can open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorUse {
    /// The soft limit.
    pub limit: u64,
    /// Of these not open.
    pub free: u64,
}

/// The descriptors of this process.
///
/// # Errors
/// The system's.
pub fn descriptors() -> io::Result<DescriptorUse> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    // Since Linux 6.2 the size of the directory is their number.
    let open = match fs::metadata("/proc/self/fd")?.size() {
        0 => fs::read_dir("/proc/self/fd")?.count() as u64,
        open => open,
    };
    Ok(DescriptorUse { limit, free: limit.saturating_sub(open) })
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn open_descriptors_are_counted() {
        // Other tests open some meanwhile.
        let before = descriptors().expect("read").free;
        let files: Vec<_> = (0..200).map(|_| File::open("/dev/null").expect("opened")).collect();
        let with_files = descriptors().expect("read").free;
        assert!(with_files + 100 < before, "{before} {with_files}");
        drop(files);
    }
}
