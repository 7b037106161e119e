//! Description of the machine that runs the bench.

use std::{io::Read, path::Path, thread::available_parallelism};

use crate::programs;

/// Formats one line: kernel, processors, Node, and the file system of temporary files, which has the state
/// directories.
pub(crate) fn line() -> String {
    let kernel = nix::sys::utsname::uname()
        .map_or("unknown system".into(), |u| format!("{} {}", u.sysname().display(), u.release().display()));
    let cores = available_parallelism().map_or("?".into(), |n| n.to_string());
    let node = node().unwrap_or_else(|| "not there".into());
    format!("{kernel}, {cores} cores ({}), node {node}, {}", processor(), file_system(&std::env::temp_dir()))
}

/// Returns the type of a directory's file system, as the kernel names it.
fn file_system(directory: &Path) -> String {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    // 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw
    let mounted = mounts.lines().filter_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        Some((Path::new(mount.split(' ').nth(4)?), kind.split(' ').next()?))
    });
    // The longest mount point, and the last of several equal ones, which is on top.
    let found =
        mounted.filter(|(place, _)| directory.starts_with(place)).max_by_key(|(place, _)| place.as_os_str().len());
    format!("{} on {}", directory.display(), found.map_or("unknown", |(_, kind)| kind))
}

fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or("unknown", |(_, name)| name).to_owned()
}

fn node() -> Option<String> {
    let mut child = programs::start("node".as_ref(), &["--version".into()]).ok()?;
    let mut version = String::new();
    child.stdout.take()?.read_to_string(&mut version).ok()?;
    child.wait().ok()?;
    Some(version.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_has_a_name() {
        assert_eq!(file_system(Path::new("/proc")), "/proc on proc");
    }
}
