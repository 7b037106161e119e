//! Directories out of a session's reach: what would make its agent an operator.

use std::{
    ffi::CString,
    fs,
    io::{self, Read as _},
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt as _, net::UnixStream},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use ipc_protocol::{HiddenFiles, errno::errno};
use rustix::io::Errno;

use crate::{
    LandlockScope, UnavailableFeature, landlock_scope_is_available, procfs,
    sys::{self, ExecPlan, HiddenPoint, IdMaps, MAX_SHOWN, MountPlan, ShownDirectory, SpawnStep},
};

/// Time for the namespaces to be made.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Finds the places to mount over. Paths that do not exist have nothing to hide.
pub(crate) fn hidden_points(files: &HiddenFiles) -> Vec<HiddenPoint> {
    let real = |paths: &[String]| paths.iter().filter_map(|path| fs::canonicalize(path).ok()).collect::<Vec<_>>();
    let (mut hidden, shown) = (real(&files.hidden), real(&files.shown));
    hidden.sort();
    hidden.dedup();
    // One below another is hidden with it; the root cannot be.
    let tops: Vec<PathBuf> = hidden
        .iter()
        .filter(|path| path.parent().is_some() && !hidden.iter().any(|other| *path != other && path.starts_with(other)))
        .cloned()
        .collect();
    tops.iter().filter_map(|point| hidden_point(point, &shown)).collect()
}

fn hidden_point(point: &Path, shown: &[PathBuf]) -> Option<HiddenPoint> {
    let cstring = |path: &Path| CString::new(path.as_os_str().as_bytes()).ok();
    let below = shown.iter().filter(|path| path.starts_with(point) && *path != point && path.is_dir());
    let visible = |path: &PathBuf| {
        let mut parents: Vec<_> =
            path.ancestors().take_while(|ancestor| *ancestor != point).filter_map(cstring).collect();
        parents.reverse();
        Some(ShownDirectory { path: cstring(path)?, parents })
    };
    Some(HiddenPoint {
        point: cstring(point)?,
        is_directory: point.is_dir(),
        shown: below.take(MAX_SHOWN).filter_map(visible).collect(),
    })
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
        let holder = sys::clone_mount_holder(&maps, &hidden_points(files), &theirs.into()).map_err(own)?;
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

/// Tries whether these files can be hidden from sessions of this user, in a child that is gone afterwards. Any process may ask,
/// with any number of threads.
///
/// # Errors
/// What is missing, and what would help.
pub fn hiding_is_available(files: &HiddenFiles) -> Result<(), UnavailableFeature> {
    let base = sys::dry_run_exec().map_err(|error| unavailable(SpawnStep::Descriptors, &error))?;
    let exec = if nix::unistd::geteuid().is_root() {
        // Without the domain root finds everything again below /proc/PID/root.
        landlock_scope_is_available()?;
        let landlock = Some(LandlockScope::create()?.into_fd());
        let mounts = MountPlan { hidden: hidden_points(files), ..MountPlan::default() };
        ExecPlan { mounts: Some(mounts), landlock, ..base }
    } else {
        ExecPlan { namespaces: HidingNamespace::create(files)?.into_fds(), ..base }
    };
    sys::dry_run(exec).map_err(|(step, error)| unavailable(step, &error))
}

fn unavailable(step: SpawnStep, error: &io::Error) -> UnavailableFeature {
    let is_root = nix::unistd::geteuid().is_root();
    let advice = match errno(error) {
        Some(Errno::PERM | Errno::ACCESS) if is_root => "it needs CAP_SYS_ADMIN: in a container, --cap-add SYS_ADMIN",
        Some(Errno::PERM | Errno::ACCESS) => {
            "let ordinary users make user namespaces (sysctl kernel.unprivileged_userns_clone=1, \
             kernel.apparmor_restrict_unprivileged_userns=0; in a container, its seccomp filter)"
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
        let files = HiddenFiles {
            hidden: vec![config, state.clone(), gone, socket, "/".into()],
            shown: vec![home.clone(), elsewhere],
        };
        // The root would hide everything below it.
        let points = hidden_points(&files);
        assert!(points.is_empty(), "{points:?}");
        let points = hidden_points(&HiddenFiles { hidden: files.hidden[..4].to_vec(), ..files });
        assert_eq!(points.len(), 2, "{points:?}");
        let text = |string: &CString| string.to_str().expect("UTF-8").to_owned();
        let directory = points.iter().find(|point| point.is_directory).expect("the directory");
        assert_eq!(text(&directory.point), state);
        assert_eq!(directory.shown.len(), 1);
        let parents: Vec<String> = directory.shown[0].parents.iter().map(text).collect();
        assert_eq!(parents, [format!("{state}/homes"), home]);
        fs::remove_dir_all(place).expect("removed");
    }
}
