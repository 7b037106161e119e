//! Files of a session: what it reads, writes and cannot see, as mounts of a [`crate::SessionNamespace`].
//!
//! The whole system is read-only. What the session writes is attached over it as it was. `/tmp`, `/var/tmp`, `/run` and `/dev` are
//! the session's own. Another user namespace is made inside all that, so that whoever is in the session, root too, finds every mount
//! locked: it can take none of them away, and see nothing below them.
//!
//! *Carved* directories are those on the way from the user's home to something hidden: each is rebuilt with what it had at the start
//! but for what is hidden and for sockets. So a key that is replaced or made later is not to be seen either.
//!
//! Sockets elsewhere are covered one by one. One that is made later outside `/tmp` and `/run` is in reach.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::CString,
    fs, io,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use ipc_protocol::SandboxSpec;

use crate::{
    file_rules::{FileAccess, FileRules},
    sys::{MountStep, MountSteps, SandboxPlan},
};

/// Directories that a session has for itself, with mode and options of their file system.
const PRIVATE: [(&str, &str); 4] =
    [("/dev", "mode=755,size=1m"), ("/run", "mode=755"), ("/tmp", "mode=1777"), ("/var/tmp", "mode=1777")];
/// Files below them that stay, where they are there.
const SHOWN: [&str; 4] = [RESOLVER, "/run/current-system", "/run/wrappers", "/run/opengl-driver"];
/// Devices that a session has.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// Links in `/dev`.
const DEVICE_LINKS: [(&str, &str); 6] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
    ("/dev/ptmx", "pts/ptmx"),
    ("/dev/core", "/proc/kcore"),
];
/// Files of `/proc` by which root, though without rights over the machine, could change it.
const PROC_READ_ONLY: [&str; 6] =
    ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi"];
/// Keys of the machine, which root could read.
const MACHINE_KEYS: [&str; 4] = ["/etc/shadow", "/etc/gshadow", "/etc/shadow-", "/etc/gshadow-"];
/// File that covers what is hidden.
const COVER: &str = "/dev/.hidden";
/// File that names the session's own name server, and covers the machine's.
const NAME_SERVER: &str = "/dev/.resolv.conf";
const NAME_SERVER_TEXT: &str = "nameserver 127.0.0.1\noptions timeout:2 attempts:1\n";
const RESOLVER: &str = "/etc/resolv.conf";
/// Most entries of a carved directory.
const MAX_ENTRIES: usize = 4096;
/// Options of a file system that shows nothing.
const NOTHING: &str = "mode=000,size=4k,nr_inodes=2";
/// Options of one that shows nothing but what is attached below it.
const PASSAGE: &str = "mode=711,size=1m";

/// Mounts of one session's sandbox.
#[derive(Clone, Debug, Default)]
pub struct SandboxMounts {
    pub(crate) plan: SandboxPlan,
    /// Paths that the session writes.
    pub write: Vec<PathBuf>,
    /// Paths that are there and hidden.
    pub hidden: Vec<PathBuf>,
}

impl SandboxMounts {
    /// Plans the mounts, by what there is now. Blocks for some system calls.
    ///
    /// # Errors
    /// A path cannot be resolved, or a written one is around a hidden one.
    pub fn plan(spec: &SandboxSpec) -> io::Result<Self> {
        Planner::new(spec)?.plan()
    }
}

/// Content of the sandbox at one path.
#[derive(Debug)]
enum Place {
    /// A file system of its own, made read-only at the end where `is_frozen`.
    Own {
        options: &'static str,
        is_frozen: bool,
    },
    /// What is there outside.
    Shown {
        slot: usize,
        is_directory: bool,
    },
    /// A link to this.
    Link(PathBuf),
    Directory {
        mode: u32,
    },
    Hidden {
        is_directory: bool,
    },
    /// The name server of the session's own network.
    NameServer,
}

pub(crate) struct Planner {
    /// Canonical paths.
    write: BTreeSet<PathBuf>,
    read: BTreeSet<PathBuf>,
    hidden: BTreeSet<PathBuf>,
    home: Option<PathBuf>,
    /// Everything hidden that is there.
    seen: Vec<PathBuf>,
    /// Places in order of their paths: what is around something comes before it.
    places: BTreeMap<PathBuf, Place>,
    writable: Vec<MountStep>,
    copies: Vec<MountStep>,
    slots: usize,
    has_network: bool,
}

impl Planner {
    pub(crate) fn new(spec: &SandboxSpec) -> io::Result<Self> {
        let resolve = |paths: &[String]| paths.iter().map(|path| real(Path::new(path))).collect::<io::Result<_>>();
        let home =
            spec.home.as_deref().and_then(|home| fs::canonicalize(home).ok()).filter(|home| home != Path::new("/"));
        let (write, read): (BTreeSet<PathBuf>, BTreeSet<PathBuf>) = (resolve(&spec.write)?, resolve(&spec.read)?);
        // What is not there can be made later: in a carved directory it is not to be seen even so.
        let mut hidden: BTreeSet<_> = spec.hidden.iter().map(|path| real_parent(Path::new(path))).collect();
        hidden.extend(spec.hidden.iter().filter_map(|path| fs::canonicalize(path).ok()));
        if nix::unistd::geteuid().is_root() {
            hidden.extend(other_homes().into_iter().filter(|path| Some(path) != home.as_ref()));
        }
        hidden.retain(|path| !write.contains(path) && !read.contains(path));
        let planner = Self {
            write,
            read,
            hidden,
            home,
            seen: Vec::new(),
            places: BTreeMap::new(),
            writable: Vec::new(),
            copies: Vec::new(),
            slots: 0,
            has_network: spec.network.is_own(),
        };
        planner.check()?;
        Ok(planner)
    }

    /// Refuses what cannot be enforced: in a written directory, hidden files could be made to show by who writes there outside.
    fn check(&self) -> io::Result<()> {
        for path in &self.write {
            if path == Path::new("/") || PRIVATE.iter().any(|(private, _)| path == Path::new(private)) {
                return Err(refused(format!(
                    "{} cannot be written in a sandbox: name a directory below it",
                    path.display()
                )));
            }
            if let Some(inside) = self.hidden.iter().find(|hidden| hidden.starts_with(path)) {
                return Err(refused(format!(
                    "{} is around {}, which a sandbox hides: name a directory beside that",
                    path.display(),
                    inside.display()
                )));
            }
        }
        Ok(())
    }

    fn plan(mut self) -> io::Result<SandboxMounts> {
        for (path, options) in PRIVATE {
            // A link leads to another of them.
            if fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir()) {
                self.places.insert(path.into(), Place::Own { options, is_frozen: path == "/dev" });
            }
        }
        self.add_runtime_directory();
        for path in SHOWN.iter().filter_map(|path| fs::canonicalize(path).ok()) {
            if PRIVATE.iter().any(|(private, _)| path.starts_with(private)) {
                self.show(&path, false)?;
            }
        }
        for name in DEVICES {
            let path = Path::new("/dev").join(name);
            if fs::symlink_metadata(&path).is_ok() {
                self.show(&path, false)?;
            }
        }
        for (path, target) in DEVICE_LINKS {
            self.places.insert(path.into(), Place::Link(target.into()));
        }
        self.places.insert("/dev/shm".into(), Place::Own { options: "mode=1777", is_frozen: false });
        self.carve_home()?;
        for path in self.read.clone() {
            let is_in_hidden = path.ancestors().any(|around| self.hidden.contains(around));
            if is_in_hidden || !self.is_outside(&path) {
                self.show(&path, false)?;
            }
        }
        for path in self.write.clone() {
            self.show(&path, true)?;
        }
        for path in self.hidden.clone() {
            self.hide(&path);
        }
        for path in named_sockets() {
            self.hide_socket(&path);
        }
        if let Some(path) = fs::canonicalize(RESOLVER).ok().filter(|_| self.has_network) {
            self.places.insert(path, Place::NameServer);
        }
        let steps = self.steps()?;
        let mounts = MountSteps { steps, slots: vec![-1; self.slots] };
        let plan = SandboxPlan { mounts, has_network: self.has_network };
        Ok(SandboxMounts { plan, write: self.write.into_iter().collect(), hidden: self.seen })
    }

    /// The same as rules of Landlock: `/tmp` and the like are out of reach, but for the directory for temporary files.
    pub(crate) fn rules(mut self, temporary: Option<&Path>) -> io::Result<FileRules> {
        let is_root = nix::unistd::geteuid().is_root();
        let keys = MACHINE_KEYS.iter().map(Path::new).filter(|_| is_root);
        self.hidden.extend(keys.map(Path::to_owned));
        let mut rules = FileRules::default();
        let mut around = self.hidden.clone();
        around.extend(PRIVATE.iter().map(|(path, _)| PathBuf::from(path)));
        rules.add_around(Path::new("/"), &around, FileAccess::Read)?;
        let is_private = |path: &Path| PRIVATE.iter().any(|(private, _)| path.starts_with(private));
        for path in self.home.iter().filter(|home| is_private(home)).chain(&self.read) {
            rules.add_around(path, &self.hidden, FileAccess::Read)?;
        }
        for path in SHOWN.iter().filter_map(|path| fs::canonicalize(path).ok()).filter(|path| is_private(path)) {
            rules.add(path, FileAccess::Read);
        }
        // By the multiplexer a program gets terminals of its own; those of others have names that it cannot open.
        for name in DEVICES.iter().chain(&["ptmx"]) {
            rules.add(Path::new("/dev").join(name), FileAccess::Device);
        }
        for path in self.write.iter().cloned().chain(temporary.map(Path::to_owned)) {
            rules.write.push(path.clone());
            rules.add(path, FileAccess::Write);
        }
        rules.hidden = self.hidden.into_iter().filter(|path| fs::symlink_metadata(path).is_ok()).collect();
        Ok(rules)
    }

    /// Makes the user's directory in `/run`.
    fn add_runtime_directory(&mut self) {
        let uid = nix::unistd::geteuid();
        if fs::metadata(format!("/run/user/{uid}")).is_ok() {
            self.places.insert("/run/user".into(), Place::Directory { mode: 0o755 });
            self.places.insert(format!("/run/user/{uid}").into(), Place::Directory { mode: 0o700 });
        }
    }

    /// Shows a path as it is outside.
    fn show(&mut self, path: &Path, is_writable: bool) -> io::Result<()> {
        let is_directory = fs::metadata(path)?.is_dir();
        let slot = self.slots;
        self.slots += 1;
        let copy = MountStep::Copy { slot, path: cstring(path)? };
        if is_writable {
            self.writable.push(copy)
        } else {
            self.copies.push(copy)
        }
        self.places.insert(path.to_owned(), Place::Shown { slot, is_directory });
        Ok(())
    }

    fn hide(&mut self, path: &Path) {
        let Ok(meta) = fs::symlink_metadata(path) else { return };
        self.seen.push(path.to_owned());
        // A link leads to something that is hidden as well.
        if !meta.is_symlink() && self.is_outside(path) {
            self.places.insert(path.to_owned(), Place::Hidden { is_directory: meta.is_dir() });
        }
    }

    fn hide_socket(&mut self, path: &Path) {
        let is_chosen = self.read.contains(path) || self.write.contains(path);
        let is_socket = fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
        if is_socket && !is_chosen && self.is_outside(path) {
            self.seen.push(path.to_owned());
            self.places.insert(path.to_owned(), Place::Hidden { is_directory: false });
        }
    }

    /// Returns whether a path shows what is outside, so far.
    fn is_outside(&self, path: &Path) -> bool {
        matches!(self.around(path), None | Some(Place::Shown { .. }))
    }

    /// The nearest place around a path.
    fn around(&self, path: &Path) -> Option<&Place> {
        path.ancestors().skip(1).find_map(|around| self.places.get(around))
    }

    /// Rebuilds the home without what is hidden.
    fn carve_home(&mut self) -> io::Result<()> {
        let Some(home) = self.home.clone() else { return Ok(()) };
        if !self.hidden.iter().any(|path| path.starts_with(&home)) {
            return Ok(());
        }
        self.places.insert(home.clone(), Place::Own { options: "mode=755", is_frozen: true });
        self.carve(&home)
    }

    fn carve(&mut self, directory: &Path) -> io::Result<()> {
        for (number, entry) in fs::read_dir(directory)?.enumerate() {
            let path = entry?.path();
            if number >= MAX_ENTRIES {
                let reason = format!(
                    "{} has more than {MAX_ENTRIES} entries, which a sandbox cannot show one by one",
                    directory.display()
                );
                return Err(refused(reason));
            }
            if self.hidden.contains(&path) || self.write.contains(&path) || self.read.contains(&path) {
                continue;
            }
            let Ok(meta) = fs::symlink_metadata(&path) else { continue };
            let kind = meta.file_type();
            if kind.is_symlink() {
                self.places.insert(path.clone(), Place::Link(fs::read_link(&path)?));
            } else if kind.is_dir() && self.hidden.iter().any(|hidden| hidden.starts_with(&path)) {
                self.places.insert(path.clone(), Place::Directory { mode: meta.mode() & 0o777 });
                self.carve(&path)?;
            } else if !kind.is_socket() {
                self.show(&path, false)?;
            }
        }
        Ok(())
    }

    /// Orders everything into steps.
    fn steps(&mut self) -> io::Result<Vec<MountStep>> {
        let frozen = |path: &Path| Ok::<_, io::Error>(MountStep::Freeze { path: cstring(path)?, is_recursive: false });
        // Copies of what is written are made while it is writable, those of all else afterwards.
        let mut steps = std::mem::take(&mut self.writable);
        steps.push(MountStep::Freeze { path: c"/".to_owned(), is_recursive: true });
        steps.append(&mut self.copies);
        steps.push(MountStep::Own { kind: c"proc", path: c"/proc".to_owned(), options: CString::default() });
        // What covers others has to be there first.
        steps.push(own(Path::new("/dev"), PRIVATE[0].1)?);
        steps.push(MountStep::File { path: CString::new(COVER)?, mode: 0o000, text: "" });
        if self.has_network {
            steps.push(MountStep::File { path: CString::new(NAME_SERVER)?, mode: 0o444, text: NAME_SERVER_TEXT });
        }
        let mut last = vec![frozen(Path::new("/dev"))?];
        let mut made = BTreeSet::new();
        for (path, place) in self.places.iter().filter(|(path, _)| *path != Path::new("/dev")) {
            let is_new = !self.is_outside(path);
            if is_new {
                self.add_parents(path, &mut made, &mut steps)?;
            }
            match place {
                Place::Own { options, is_frozen } => {
                    if is_new {
                        steps.push(MountStep::Directory { path: cstring(path)?, mode: 0o755 });
                    }
                    steps.push(own(path, options)?);
                    if *is_frozen {
                        last.push(frozen(path)?);
                    }
                }
                Place::Directory { mode } => steps.push(MountStep::Directory { path: cstring(path)?, mode: *mode }),
                Place::Link(target) => steps.push(MountStep::Link { path: cstring(path)?, target: cstring(target)? }),
                Place::Shown { slot, is_directory } => {
                    match (is_new, is_directory) {
                        (true, true) => steps.push(MountStep::Directory { path: cstring(path)?, mode: 0o755 }),
                        (true, false) => steps.push(MountStep::File { path: cstring(path)?, mode: 0o644, text: "" }),
                        (false, _) => {}
                    }
                    steps.push(MountStep::Attach { slot: *slot, path: cstring(path)? });
                }
                Place::NameServer => {
                    if is_new {
                        steps.push(MountStep::File { path: cstring(path)?, mode: 0o644, text: "" });
                    }
                    steps.push(MountStep::Cover { with: CString::new(NAME_SERVER)?, path: cstring(path)? });
                }
                Place::Hidden { is_directory: true } => {
                    steps.push(own(path, if self.shows_below(path) { PASSAGE } else { NOTHING })?);
                    last.push(frozen(path)?);
                }
                Place::Hidden { is_directory: false } => {
                    steps.push(MountStep::Cover { with: CString::new(COVER)?, path: cstring(path)? });
                }
            }
        }
        let (path, mode) = (c"/dev/pts".to_owned(), 0o755);
        steps.push(MountStep::Directory { path: path.clone(), mode });
        let options = c"newinstance,ptmxmode=0666,mode=620".to_owned();
        steps.push(MountStep::Own { kind: c"devpts", path, options });
        if nix::unistd::geteuid().is_root() {
            add_root_steps(&mut steps)?;
        }
        // Inner ones first: a directory has to be written until everything in it is there.
        last.reverse();
        steps.append(&mut last);
        Ok(steps)
    }

    /// Makes the directories between a path and the nearest place around it.
    fn add_parents(&self, path: &Path, made: &mut BTreeSet<PathBuf>, steps: &mut Vec<MountStep>) -> io::Result<()> {
        let missing: Vec<_> =
            path.ancestors().skip(1).take_while(|around| !self.places.contains_key(*around)).collect();
        for around in missing.into_iter().rev() {
            if made.insert(around.to_owned()) {
                steps.push(MountStep::Directory { path: cstring(around)?, mode: 0o755 });
            }
        }
        Ok(())
    }

    fn shows_below(&self, path: &Path) -> bool {
        self.places.range(path.to_owned()..).skip(1).take_while(|(below, _)| below.starts_with(path)).next().is_some()
    }
}

/// Keeps root, which has no rights over the machine, from what it could do as the owner of files.
fn add_root_steps(steps: &mut Vec<MountStep>) -> io::Result<()> {
    for path in PROC_READ_ONLY.iter().filter(|path| fs::symlink_metadata(path).is_ok()) {
        let path = CString::new(*path)?;
        steps.push(MountStep::Cover { with: path.clone(), path });
    }
    for path in MACHINE_KEYS.iter().filter(|path| fs::symlink_metadata(path).is_ok()) {
        steps.push(MountStep::Cover { with: CString::new(COVER)?, path: CString::new(*path)? });
    }
    Ok(())
}

fn own(path: &Path, options: &str) -> io::Result<MountStep> {
    Ok(MountStep::Own { kind: c"tmpfs", path: cstring(path)?, options: CString::new(options)? })
}

/// Homes of the machine's users, which root could read.
fn other_homes() -> Vec<PathBuf> {
    let table = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let home = |line: &str| {
        let fields: Vec<&str> = line.split(':').collect();
        let is_person = fields.get(2)?.parse::<u32>().is_ok_and(|uid| (1000..65534).contains(&uid));
        fs::canonicalize(fields.get(5)?).ok().filter(|home| is_person && home.components().count() > 2)
    };
    table.lines().filter_map(home).collect()
}

/// Paths of the sockets that have one.
fn named_sockets() -> BTreeSet<PathBuf> {
    let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let paths = table.lines().skip(1).filter_map(|line| line.splitn(8, ' ').nth(7)).map(str::trim_start);
    let paths = paths.filter_map(|rest| rest.find('/').map(|at| &rest[at..]).filter(|_| !rest.contains('@')));
    paths.filter_map(|path| fs::canonicalize(path).ok()).collect()
}

/// The canonical form of a path.
fn real(path: &Path) -> io::Result<PathBuf> {
    fs::canonicalize(path).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// The canonical form of as much of a path as there is.
pub(crate) fn real_parent(path: &Path) -> PathBuf {
    let there = path.ancestors().skip(1).find_map(|around| Some((around, fs::canonicalize(around).ok()?)));
    let rest = there.as_ref().and_then(|(around, _)| path.strip_prefix(around).ok());
    match (&there, rest) {
        (Some((_, real)), Some(rest)) => real.join(rest),
        _ => path.to_owned(),
    }
}

fn cstring(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn refused(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}
