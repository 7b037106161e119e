//! Places of cgroups: the mount table, and the lines of `/proc/PID/cgroup`.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::ffi::OsStringExt,
    path::{Component, Path, PathBuf},
};

use ipc_protocol::Pid;

use crate::procfs;

/// A mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CgroupMount {
    /// The group that the mount point shows.
    pub(super) root: PathBuf,
    /// Mount point.
    pub(super) point: PathBuf,
    /// True if nothing can be written there.
    pub(super) is_read_only: bool,
    /// True if it is of version 2.
    pub(super) is_unified: bool,
}

/// Hierarchy of the mount.
#[derive(Clone, Copy, Debug)]
pub(super) enum CgroupHierarchy {
    /// The one of version 2.
    Unified,
    /// The one of version 1 with the controller `freezer`.
    FreezerV1,
    /// All of them.
    Any,
}

impl CgroupMount {
    /// Every place where `hierarchy` is mounted.
    pub(super) fn find(hierarchy: CgroupHierarchy) -> io::Result<Vec<Self>> {
        Ok(Self::parse(&fs::read("/proc/self/mountinfo")?, hierarchy))
    }

    fn parse(mountinfo: &[u8], hierarchy: CgroupHierarchy) -> Vec<Self> {
        mountinfo.split(|b| *b == b'\n').filter_map(|line| Self::parse_line(line, hierarchy)).collect()
    }

    /// `31 23 0:28 ROOT POINT rw,relatime [optional…] - TYPE SOURCE super,options`
    fn parse_line(line: &[u8], hierarchy: CgroupHierarchy) -> Option<Self> {
        let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
        let dash = fields.iter().position(|field| *field == b"-")?;
        let [root, point, options] = fields.get(3..6)? else { return None };
        let [kind, _, super_options] = fields.get(dash + 1..dash + 4)? else { return None };
        let has = |options: &[u8], name: &[u8]| options.split(|b| *b == b',').any(|option| option == name);
        let is_unified = *kind == b"cgroup2";
        let is_wanted = match hierarchy {
            CgroupHierarchy::Unified => is_unified,
            CgroupHierarchy::FreezerV1 => *kind == b"cgroup" && has(super_options, b"freezer"),
            CgroupHierarchy::Any => is_unified || *kind == b"cgroup",
        };
        let is_read_only = has(options, b"ro") || has(super_options, b"ro");
        is_wanted.then(|| Self { root: unescape(root), point: unescape(point), is_read_only, is_unified })
    }

    /// Returns the directory of the group `path`; `None` when it is outside of the mount.
    pub(super) fn directory_of(&self, path: &Path) -> Option<PathBuf> {
        let below = path.strip_prefix(&self.root).ok()?;
        // Above the root of our cgroup namespace, paths begin with `/..`.
        let is_plain = below.components().all(|component| matches!(component, Component::Normal(_)));
        // Joining nothing would add a slash.
        is_plain.then(|| self.point.components().chain(below.components()).collect())
    }

    /// The group that is to be seen at `directory`.
    pub(super) fn group_at(&self, directory: &Path) -> Option<PathBuf> {
        directory.strip_prefix(&self.point).ok().map(|below| self.root.join(below))
    }
}

/// Spaces and such are written as `\040`.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, after)) = rest.split_first() {
        let octal = (*byte == b'\\')
            .then(|| after.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(escaped) = octal {
            bytes.push(escaped);
            rest = &after[3..];
        } else {
            bytes.push(*byte);
            rest = after;
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// The group of `pid` in `hierarchy`; `None` when it is in none.
pub(super) fn group_of(pid: Pid, hierarchy: CgroupHierarchy) -> io::Result<Option<PathBuf>> {
    Ok(parse_group(&procfs::read(&format!("{pid}/cgroup"))?, hierarchy))
}

/// From lines of `ID:CONTROLLERS:PATH`.
fn parse_group(text: &[u8], hierarchy: CgroupHierarchy) -> Option<PathBuf> {
    text.split(|b| *b == b'\n').find_map(|line| {
        let mut fields = line.splitn(3, |b| *b == b':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_wanted = match hierarchy {
            CgroupHierarchy::Unified => id == b"0" && controllers.is_empty(),
            CgroupHierarchy::FreezerV1 => controllers.split(|b| *b == b',').any(|name| name == b"freezer"),
            CgroupHierarchy::Any => true,
        };
        is_wanted.then(|| PathBuf::from(OsString::from_vec(path.to_vec())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &[u8] = b"\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime shared:7 - cgroup cgroup rw,freezer
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const PURE: &[u8] = b"\
24 1 0:22 / /sys rw,nosuid shared:2 - sysfs sysfs rw
29 24 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 master:1 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
";
    const CONTAINER: &[u8] = b"\
620 619 0:26 /system.slice/docker-1f.scope /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,nsdelegate
";

    fn mount(root: &str, point: &str, is_read_only: bool) -> CgroupMount {
        CgroupMount { root: root.into(), point: point.into(), is_read_only, is_unified: true }
    }

    #[test]
    fn version_2_is_found_wherever_it_is() {
        assert_eq!(CgroupMount::parse(HYBRID, CgroupHierarchy::Unified), [mount("/", "/sys/fs/cgroup/unified", false)]);
        assert_eq!(CgroupMount::parse(PURE, CgroupHierarchy::Unified), [mount("/", "/sys/fs/cgroup", false)]);
        let container = CgroupMount::parse(CONTAINER, CgroupHierarchy::Unified);
        assert_eq!(container, [mount("/system.slice/docker-1f.scope", "/sys/fs/cgroup", true)]);
        assert!(CgroupMount::parse(b"", CgroupHierarchy::Unified).is_empty());
        assert!(CgroupMount::parse(b"31 23 0:28 / /x rw - \n- - -\n\xff\n", CgroupHierarchy::Unified).is_empty());
    }

    #[test]
    fn the_freezer_is_found() {
        let freezer = CgroupMount { is_unified: false, ..mount("/", "/sys/fs/cgroup/freezer", false) };
        assert_eq!(CgroupMount::parse(HYBRID, CgroupHierarchy::FreezerV1), [freezer]);
        assert_eq!(CgroupMount::parse(HYBRID, CgroupHierarchy::Any).len(), 4);
        assert!(CgroupMount::parse(PURE, CgroupHierarchy::FreezerV1).is_empty());
    }

    #[test]
    fn odd_mount_points_are_read() {
        let line = b"1 2 0:3 / /mnt/a\\040b\\134c rw - cgroup2 none rw";
        assert_eq!(CgroupMount::parse(line, CgroupHierarchy::Unified), [mount("/", "/mnt/a b\\c", false)]);
    }

    #[test]
    fn groups_are_mapped_through_the_root_of_the_mount() {
        let whole = mount("/", "/sys/fs/cgroup", false);
        assert_eq!(whole.directory_of(Path::new("/user.slice/a")), Some("/sys/fs/cgroup/user.slice/a".into()));
        assert_eq!(whole.directory_of(Path::new("/")), Some("/sys/fs/cgroup".into()));
        assert!(!format!("{:?}", whole.directory_of(Path::new("/"))).contains("cgroup/"));
        let part = mount("/system.slice/docker-1f.scope", "/sys/fs/cgroup", false);
        assert_eq!(part.directory_of(Path::new("/system.slice/docker-1f.scope/x")), Some("/sys/fs/cgroup/x".into()));
        assert_eq!(part.directory_of(Path::new("/system.slice")), None);
        assert_eq!(part.directory_of(Path::new("/")), None);
        assert_eq!(part.group_at(Path::new("/sys/fs/cgroup/x")), Some("/system.slice/docker-1f.scope/x".into()));
        // Outside of our cgroup namespace.
        assert_eq!(whole.directory_of(Path::new("/../other")), None);
    }

    #[test]
    fn the_own_group_is_read() {
        let hybrid = b"9:name=systemd:/a\n6:cpu,freezer:/box\n0::/b:c\n";
        assert_eq!(parse_group(hybrid, CgroupHierarchy::Unified), Some("/b:c".into()));
        assert_eq!(parse_group(hybrid, CgroupHierarchy::FreezerV1), Some("/box".into()));
        assert_eq!(parse_group(b"6:freezer:/\n", CgroupHierarchy::Unified), None);
        assert_eq!(parse_group(b"0::/\n", CgroupHierarchy::FreezerV1), None);
    }
}
