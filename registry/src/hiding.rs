//! Directories out of a session's reach: what would make its agent an operator.

use std::{
    collections::BTreeSet,
    ffi::{CStr, CString, NulError},
    fs,
    io::{self, Read as _},
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt as _, net::UnixStream},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use ipc_protocol::{FileLayer, HiddenFiles, errno::errno};
use rustix::io::Errno;

use crate::{
    LandlockScope, UnavailableFeature, landlock_scope_is_available, procfs,
    sys::{self, ExecPlan, IdMaps, MountPlan, MountStep, MountSteps, SpawnStep},
};

/// Time for the namespaces to be made.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Options of a file system that shows nothing but what is attached below it.
const EMPTY: &CStr = c"mode=755,size=64k";

/// Canonical paths that are hidden, without those below another one. The root cannot be hidden. Paths that do not exist have nothing to
/// hide.
fn hidden_tops(files: &HiddenFiles) -> Vec<PathBuf> {
    let hidden = real_paths(&files.hidden);
    let is_below_other = |path: &PathBuf| hidden.iter().any(|other| path != other && path.starts_with(other));
    hidden.iter().filter(|path| path.parent().is_some() && !is_below_other(path)).cloned().collect()
}

fn real_paths(paths: &[String]) -> BTreeSet<PathBuf> {
    paths.iter().filter_map(|path| fs::canonicalize(path).ok()).collect()
}

/// Plans the mounts that hide files.
pub(crate) fn hiding_steps(files: &HiddenFiles) -> MountSteps {
    let shown = real_paths(&files.shown);
    let mut plan = MountSteps::default();
    for point in hidden_tops(files) {
        // A path with a zero byte does not exist.
        let _ = add_steps(&mut plan, &point, &shown);
    }
    plan
}

fn add_steps(plan: &mut MountSteps, point: &Path, shown: &BTreeSet<PathBuf>) -> Result<(), NulError> {
    let cstring = |path: &Path| CString::new(path.as_os_str().as_bytes());
    if !point.is_dir() {
        plan.steps.push(MountStep::Cover { with: c"/dev/null".to_owned(), path: cstring(point)? });
        return Ok(());
    }
    let below = shown.iter().filter(|path| path.starts_with(point) && *path != point && path.is_dir());
    let mut attached = Vec::new();
    for path in below {
        let slot = plan.add_slot();
        plan.steps.push(MountStep::Copy { slot, path: cstring(path)? });
        let mut parents: Vec<_> = path.ancestors().take_while(|ancestor| *ancestor != point).collect();
        parents.reverse();
        for parent in parents {
            attached.push(MountStep::Directory { path: cstring(parent)?, mode: 0o755 });
        }
        attached.push(MountStep::Attach { slot, path: cstring(path)? });
    }
    plan.steps.push(MountStep::Own { kind: c"tmpfs", path: cstring(point)?, options: EMPTY.to_owned() });
    plan.steps.append(&mut attached);
    plan.steps.push(MountStep::Freeze { path: cstring(point)?, is_recursive: false });
    Ok(())
}

/// A user and a mount namespace in which directories are hidden, for programs of an ordinary user. Root has them in a
/// [`crate::MountView`].
#[derive(Debug)]
pub struct HidingNamespace(Vec<OwnedFd>);

impl HidingNamespace {
    /// Makes it.
    ///
    /// # Errors
    /// What the system does not allow here, and what would help.
    pub fn create(files: &HiddenFiles) -> Result<Self, UnavailableFeature> {
        let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        let maps = IdMaps { user: format!("{uid} {uid} 1").into_bytes(), group: format!("{gid} {gid} 1").into_bytes() };
        let own = |error: io::Error| unavailable(SpawnStep::Clone, &error);
        let (mut ours, theirs) = UnixStream::pair().map_err(own)?;
        let holder = sys::clone_mount_holder(&maps, hiding_steps(files), &theirs.into()).map_err(own)?;
        let mut wait = || {
            ours.set_read_timeout(Some(TIMEOUT))?;
            ours.read_exact(&mut [0])?;
            let open = |name| procfs::open_proc_file(&format!("{}/ns/{name}", holder.pid)).map(OwnedFd::from);
            Ok(vec![open("user")?, open("mnt")?])
        };
        let made: io::Result<Vec<OwnedFd>> = wait();
        let failure = if made.is_err() { holder.failure() } else { None };
        drop(ours);
        // It can only fail for one that is dead.
        let _ = rustix::process::pidfd_send_signal(&holder.pidfd, rustix::process::Signal::KILL);
        let _ = sys::wait_for(&holder.pidfd);
        made.map(Self).map_err(|error| {
            let (step, error) = failure.unwrap_or((SpawnStep::Enter, error));
            unavailable(step, &error)
        })
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        self.0.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>().map(Self)
    }

    pub(crate) fn into_fds(self) -> Vec<OwnedFd> {
        self.0
    }
}

/// Tries how these files can be hidden from sessions of this user, in a child that is gone afterwards: by mounts, else by Landlock. Any
/// process may ask, with any number of threads.
///
/// # Errors
/// What is missing, and what would help.
pub fn hiding_layer(files: &HiddenFiles) -> Result<FileLayer, UnavailableFeature> {
    let Err(no_mounts) = try_mounts(files) else { return Ok(FileLayer::Mounts) };
    let Err(no_rules) = try_rules(files) else { return Ok(FileLayer::Landlock) };
    let why = format!("{}; and {} ({}) is not there either", no_mounts.why, no_rules.what, no_rules.why);
    Err(UnavailableFeature { why, advice: format!("{}; or {}", no_mounts.advice, no_rules.advice), ..no_mounts })
}

fn try_mounts(files: &HiddenFiles) -> Result<(), UnavailableFeature> {
    let base = sys::dry_run_exec().map_err(|error| unavailable(SpawnStep::Descriptors, &error))?;
    let exec = if nix::unistd::geteuid().is_root() {
        let mounts = MountPlan { hidden: hiding_steps(files), ..MountPlan::default() };
        ExecPlan { mounts: Some(mounts), ..base }
    } else {
        ExecPlan { namespaces: HidingNamespace::create(files)?.into_fds(), ..base }
    };
    sys::dry_run(exec).map_err(|(step, error)| unavailable(step, &error))?;
    // Without the domain root finds everything again below /proc/PID/root.
    if nix::unistd::geteuid().is_root() { landlock_scope_is_available() } else { Ok(()) }
}

fn try_rules(files: &HiddenFiles) -> Result<(), UnavailableFeature> {
    let base = sys::dry_run_exec().map_err(|error| unavailable(SpawnStep::Descriptors, &error))?;
    let landlock = Some(LandlockScope::hide(files)?.into_fd());
    sys::dry_run(ExecPlan { landlock, ..base }).map_err(|(step, error)| unavailable(step, &error))
}

fn unavailable(step: SpawnStep, error: &io::Error) -> UnavailableFeature {
    let is_root = nix::unistd::geteuid().is_root();
    let advice = match errno(error) {
        Some(Errno::PERM | Errno::ACCESS) if is_root => "it needs CAP_SYS_ADMIN: in a container, --cap-add SYS_ADMIN",
        Some(Errno::PERM | Errno::ACCESS) => {
            "let ordinary users make user namespaces (sysctl kernel.unprivileged_userns_clone=1; on Ubuntu the AppArmor profile \
             dist/apparmor/agent-proxy; in a container, its seccomp filter)"
        }
        Some(Errno::NOSPC | Errno::USERS) => {
            "raise the limits in /proc/sys/user (max_user_namespaces, max_mnt_namespaces)"
        }
        _ => "see docs/network.md",
    };
    let what = if is_root { "a mount namespace" } else { "a user and mount namespace" };
    UnavailableFeature { what: what.into(), why: format!("{}: {error}", step.name()), advice: advice.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_below_a_hidden_one_is_hidden_with_it() {
        let place = std::env::temp_dir().join(format!("agent-proxy-hiding-{}", std::process::id()));
        fs::create_dir(&place).expect("a fresh directory");
        let real = fs::canonicalize(&place).expect("there");
        let make = |name: &str| {
            let path = real.join(name);
            fs::create_dir_all(&path).expect("made");
            path.to_str().expect("UTF-8").to_owned()
        };
        let (state, config, home) = (make("state"), make("state/config"), make("state/homes/s-1"));
        let elsewhere = make("elsewhere");
        fs::write(real.join("socket"), "").expect("written");
        let socket = real.join("socket").to_str().expect("UTF-8").to_owned();
        let gone = real.join("gone").to_str().expect("UTF-8").to_owned();
        let mut files = HiddenFiles {
            hidden: vec![config, state.clone(), gone, socket.clone(), "/".into()],
            shown: vec![home.clone(), elsewhere],
            ..HiddenFiles::default()
        };
        // The root would hide everything below it.
        assert!(hidden_tops(&files).is_empty());
        files.hidden.truncate(4);
        let steps: Vec<_> = hiding_steps(&files).steps;
        let step = |step: &MountStep| format!("{} {}", step.operation(), step.path().to_str().expect("UTF-8"));
        let expected = [
            format!("covering {socket}"),
            format!("copying the mount of {home}"),
            format!("mounting on {state}"),
            format!("making {state}/homes"),
            format!("making {home}"),
            format!("attaching {home}"),
            format!("making read-only {state}"),
        ];
        assert_eq!(steps.iter().map(step).collect::<Vec<_>>(), expected);
        fs::remove_dir_all(place).expect("removed");
    }
}
