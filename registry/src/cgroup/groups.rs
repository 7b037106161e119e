//! The directory of one manager.

use std::{
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::DirBuilderExt,
    },
    path::{Path, PathBuf},
};

use ipc_protocol::{ProcessId, SessionId};

use super::{
    CgroupControllers, SessionCgroup,
    dir::OpenDir,
    place::{CgroupParent, CgroupView},
    stale::{self, SweptCgroup},
};
use crate::{UnavailableFeature, file_lock};

/// The cgroup that the sessions of one manager are in. It is the manager's for as long as the lock on it is held: by this
/// process, or by any that has a duplicate of [`ManagerCgroup::lock`].
#[derive(Debug)]
pub struct ManagerCgroup {
    path: PathBuf,
    dir: OpenDir,
    controllers: CgroupControllers,
    lacking: Option<String>,
}

const PREFIX: &str = "agent-proxy.";

/// Returns whether `name` is one that [`ManagerCgroup::create`] makes: `agent-proxy.<pid>.<start time>`, and a number for a further one
/// of the same process.
pub(super) fn is_manager_name(name: &str) -> bool {
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    (2..=3).contains(&rest.split('.').count()) && rest.split('.').all(is_number)
}

impl ManagerCgroup {
    /// Makes a directory for the manager `owner` and takes its lock. With `parent` it is made there; else in our own group,
    /// or in the closest one above it where more of the controllers can be had. Everything that a session will need is
    /// tried: making groups, killing, and the right to put our children there.
    ///
    /// # Errors
    /// What is missing, for each place that was tried, and what to do about it. Nothing is left then.
    pub fn create(parent: Option<&Path>, owner: ProcessId) -> Result<Self, UnavailableFeature> {
        let unavailable = |why: String| UnavailableFeature { what: "a cgroup".to_owned(), why, advice: advice() };
        let view = CgroupView::read().map_err(unavailable)?;
        let Some(parent) = parent else { return Self::in_best_of(&view, owner).map_err(unavailable) };
        let failed = |error: String| unavailable(format!("{}: {error}", parent.display()));
        // As the mount table has it.
        let directory = fs::canonicalize(parent).map_err(|error| failed(error.to_string()))?;
        Self::create_in(&view.place_at(&directory), view.own(), owner).map_err(failed)
    }

    fn in_best_of(view: &CgroupView, owner: ProcessId) -> Result<Self, String> {
        let mut best: Option<Self> = None;
        let mut reasons = Vec::new();
        for place in view.places() {
            let have = best.as_ref().map(|groups| groups.controllers.count());
            // Where no more is offered, nothing needs to be touched.
            if have.is_some_and(|have| offered(&place.directory).count() <= have) {
                continue;
            }
            match Self::create_in(&place, view.own(), owner) {
                Ok(groups) if groups.controllers == CgroupControllers::ALL => return Ok(groups),
                Ok(groups) => {
                    if have.is_none_or(|have| groups.controllers.count() > have) {
                        best = Some(groups);
                    }
                }
                Err(reason) => reasons.push(format!("{}: {reason}", place.directory.display())),
            }
        }
        if reasons.is_empty() {
            let own = view.own().display();
            reasons.push(format!("our own group, {own}, is not in the part of the hierarchy that is mounted"));
        }
        best.ok_or_else(|| reasons.join("; "))
    }

    fn create_in(place: &CgroupParent, own: &Path, owner: ProcessId) -> Result<Self, String> {
        let CgroupParent { directory, common } = place;
        let parent = OpenDir::open(directory).map_err(|error| error.to_string())?;
        check_moves(common.as_deref(), own)?;
        let (path, dir) = make_locked(directory, owner).map_err(|error| format!("making a group: {error}"))?;
        // From here on, dropping it removes what was made.
        let mut groups = Self { path, dir, controllers: CgroupControllers::default(), lacking: None };
        groups.enable_controllers(&parent, directory);
        groups.check_session_group()?;
        Ok(groups)
    }

    /// Has the controllers in the session groups, as many as can be had.
    fn enable_controllers(&mut self, parent: &OpenDir, directory: &Path) {
        if let Err(reason) = enable(parent) {
            self.lacking = Some(format!("{}: {reason}", directory.display()));
        }
        if let Err(reason) = enable(&self.dir)
            && self.lacking.is_none()
        {
            self.lacking = Some(format!("{}: {reason}", self.path.display()));
        }
        self.controllers = CgroupControllers::parse(&self.dir.read("cgroup.subtree_control").unwrap_or_default());
    }

    /// Makes a group as a session will, looks at all it will need, and removes it.
    fn check_session_group(&self) -> Result<(), String> {
        let group = SessionCgroup::create(&self.path.join("probe")).map_err(|error| error.to_string())?;
        let checked = check_group(&group);
        let removed = group.remove().map_err(|error| error.to_string());
        checked.and(removed)
    }

    /// Returns the manager's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of a session's group. No id clashes with the kernel's own files (`cgroup.kill`) or with `.` and
    /// `..`.
    pub fn session(&self, id: &SessionId) -> PathBuf {
        self.path.join(format!("s-{id}"))
    }

    /// Returns the descriptor that holds the lock, until its last duplicate is closed, in whatever process.
    pub fn lock(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Returns the controllers of the groups of sessions.
    pub fn controllers(&self) -> CgroupControllers {
        self.controllers
    }

    /// Returns the reason why [`ManagerCgroup::controllers`] are not all; `None` when they are.
    pub fn lacking(&self) -> Option<&str> {
        self.lacking.as_deref()
    }

    /// Ends and removes what dead managers left beside this one's directory: those whose lock can be taken. It waits some
    /// seconds at most for each.
    pub fn sweep_stale(&self) -> Vec<SweptCgroup> {
        stale::sweep(&self.path)
    }
}

impl Drop for ManagerCgroup {
    /// Removes the directory if it is empty.
    fn drop(&mut self) {
        if file_lock::is_at(&self.dir, &self.path) {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

fn advice() -> String {
    if nix::unistd::geteuid().is_root() {
        "mount cgroup version 2 writable (mount -t cgroup2 none DIR; in a container: a private cgroup namespace and a \
         writable /sys/fs/cgroup), or name a directory of one that is"
    } else {
        "start under `systemd-run --user --scope -p Delegate=yes COMMAND`, or have root make a cgroup, give it and its \
         cgroup.procs, cgroup.subtree_control and cgroup.threads to this user, and start in there"
    }
    .to_owned()
}

fn offered(directory: &Path) -> CgroupControllers {
    CgroupControllers::parse(&fs::read_to_string(directory.join("cgroup.controllers")).unwrap_or_default())
}

/// Returns whether our children can be put below `common`, seen from our own group. The kernel asks for this right when a process
/// is moved or made there.
fn check_moves(common: Option<&Path>, own: &Path) -> Result<(), String> {
    let Some(common) = common else {
        // It takes rights on a directory that we cannot see; root has them all.
        if nix::unistd::geteuid().is_root() {
            return Ok(());
        }
        return Err(format!(
            "no process can be moved there from our own group, {}: it is not to be seen",
            own.display()
        ));
    };
    OpenDir::open(common).and_then(|dir| dir.check_writable("cgroup.procs")).map_err(|error| {
        let file = common.join("cgroup.procs");
        format!(
            "no process can be moved there from our own group, {}: writing {}: {error}",
            own.display(),
            file.display()
        )
    })
}

/// Makes the manager's directory. Between making and locking, a sweeper may take it for a dead manager's.
fn make_locked(parent: &Path, owner: ProcessId) -> io::Result<(PathBuf, OpenDir)> {
    const TRIES: u32 = 1000;
    for number in 0..TRIES {
        let ProcessId { pid, start_time } = owner;
        let name = if number == 0 {
            format!("{PREFIX}{pid}.{start_time}")
        } else {
            format!("{PREFIX}{pid}.{start_time}.{number}")
        };
        let path = parent.join(name);
        // Other users may look into a group that they know, but open none to lock it.
        match fs::DirBuilder::new().mode(0o711).create(&path) {
            // Another manager of the same process has it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            made => made?,
        }
        if let Some(dir) = lock(&path)? {
            return Ok((path, dir));
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{TRIES} groups of this process are there")))
}

/// Takes the lock on a manager's directory. `None` when somebody has it, or it is gone.
pub(super) fn lock(path: &Path) -> io::Result<Option<OpenDir>> {
    let dir = match OpenDir::open_made(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        dir => dir?,
    };
    // Whoever had the lock before may have removed it.
    Ok((file_lock::try_lock(&dir)? && file_lock::is_at(&dir, path)).then_some(dir))
}

/// Hands the controllers that a group has to those in it.
fn enable(dir: &OpenDir) -> Result<(), String> {
    let read = |file: &str| dir.read(file).map_err(|error| format!("reading {file}: {error}"));
    let offered = CgroupControllers::parse(&read("cgroup.controllers")?);
    let missing = offered.without(CgroupControllers::parse(&read("cgroup.subtree_control")?));
    // Only the root of the hierarchy may have processes and children with controllers. Elsewhere the kernel refuses, or
    // (cpu and pids) accepts and makes the children unusable.
    let is_root = dir.read("cgroup.type").is_err();
    if missing.count() > 0 && !is_root && !read("cgroup.procs")?.is_empty() {
        return Err(
            "it has processes of its own, so it cannot hand out controllers; start in a sub-group of it".to_owned()
        );
    }
    let mut failed = Vec::new();
    for name in missing.names() {
        if let Err(error) = dir.write("cgroup.subtree_control", &format!("+{name}")) {
            failed.push(format!("enabling {name}: {error}"));
        }
    }
    let not_offered: Vec<_> = CgroupControllers::ALL.without(offered).names().collect();
    if !not_offered.is_empty() {
        failed.push(format!("not offered: {}", not_offered.join(" ")));
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join(", ")) }
}

/// Looks at what a session needs of its group.
fn check_group(group: &SessionCgroup) -> Result<(), String> {
    let dir = group.dir();
    let kind = dir.read("cgroup.type").map_err(|error| format!("reading cgroup.type: {error}"))?;
    if kind.trim() != "domain" {
        return Err(format!("a group in there is of type {:?}, which can have no processes", kind.trim()));
    }
    for file in ["cgroup.procs", "cgroup.kill", "cgroup.freeze"] {
        dir.check_writable(file).map_err(|error| format!("writing {file} of a group in there: {error}"))?;
    }
    match dir.value("cgroup.events", "populated") {
        Ok(Some(0)) => Ok(()),
        Ok(value) => Err(format!("a new group's cgroup.events says populated {value:?}")),
        Err(error) => Err(format!("reading cgroup.events of a group in there: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::fake::FakeCgroupFs, *};

    const DOMAIN: (&str, &str) = ("cgroup.type", "domain\n");

    fn handing_out(name: &str, files: &[(&str, &str)]) -> (Result<(), String>, String) {
        let fake = FakeCgroupFs::new(name, files);
        let result = enable(&fake.dir());
        (result, fake.text("cgroup.subtree_control"))
    }

    #[test]
    fn what_is_missing_is_handed_out() {
        let all = ("cgroup.controllers", "cpuset cpu io memory pids\n");
        let files = [DOMAIN, all, ("cgroup.subtree_control", "cpu pids"), ("cgroup.procs", "")];
        let (result, text) = handing_out("missing", &files);
        assert_eq!((result, text.starts_with("+memory")), (Ok(()), true));
    }

    #[test]
    fn processes_are_in_the_way_of_controllers_but_at_the_root() {
        let all = ("cgroup.controllers", "memory");
        let files = [DOMAIN, all, ("cgroup.subtree_control", ""), ("cgroup.procs", "12\n")];
        let (result, text) = handing_out("busy", &files);
        assert!(result.is_err_and(|reason| reason.contains("processes of its own")));
        assert_eq!(text, "", "not even tried: what the kernel accepts there makes the children unusable");
        let (result, text) = handing_out("root", &files[1..]);
        assert_eq!((result, text.as_str()), (Err("not offered: pids cpu".to_owned()), "+memory"));
        // Nothing to be handed out: nothing in the way.
        let files = [DOMAIN, ("cgroup.controllers", "cpu memory pids"), ("cgroup.subtree_control", "memory pids cpu")];
        assert_eq!(handing_out("there", &files).0, Ok(()));
    }

    #[test]
    fn managers_are_known_by_their_names() {
        for name in ["agent-proxy.1.2", "agent-proxy.4194304.18446744073709551615", "agent-proxy.1.2.3"] {
            assert!(is_manager_name(name), "{name}");
        }
        for name in [
            "agent-proxy",
            "agent-proxy.",
            "agent-proxy.1",
            "agent-proxy.1.",
            "agent-proxy.1.2.3.4",
            "agent-proxy.service",
        ] {
            assert!(!is_manager_name(name), "{name}");
        }
    }
}
