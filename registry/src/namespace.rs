//! A PID and mount namespace whose end is the end of everything in it.

use std::{
    fs,
    io::{self, Read, Write},
    net::SocketAddrV4,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

use ipc_protocol::{Pid, ProcessId, Signal, errno::errno};
use rustix::io::Errno;

use crate::{
    MountView, PidFd, SandboxMounts, UnavailableFeature,
    proc::{self, identify},
    procfs,
    sys::{self, ExecPlan, IdMaps, MountPlan, NamespaceInit, SandboxPlan, SocketPlan, SpawnStep},
};

/// Time for an init to be ready.
const INIT_TIMEOUT: Duration = Duration::from_secs(5);

/// A PID and a mount namespace (for others than root a user namespace too) with a `/proc` of its own, and the init in it.
///
/// The init is a child of this process, and is killed by the kernel when the thread that made it ends; with the init, the
/// kernel kills everything inside. A program comes inside by [`crate::SpawnRequest::namespace`].
#[derive(Debug)]
pub struct SessionNamespace {
    init: PidFd,
    /// In the order in which they have to be entered.
    fds: Vec<OwnedFd>,
    /// Places in `fds` of what has to be entered for the network, if it has one of its own.
    network: Option<Vec<usize>>,
    unmounted: Option<io::Error>,
}

/// Way into the network of a session.
#[derive(Debug)]
pub struct SessionNetwork(Vec<OwnedFd>);

impl SessionNetwork {
    /// Makes sockets that listen in the network, at TCP and at UDP addresses.
    ///
    /// # Errors
    /// When one of them is taken, or no descriptor is left.
    pub fn listen(&self, tcp: &[SocketAddrV4], udp: &[SocketAddrV4]) -> io::Result<(Vec<OwnedFd>, Vec<OwnedFd>)> {
        let plan = |is_stream| move |address: &SocketAddrV4| SocketPlan { is_stream, address: Some(*address) };
        let plans: Vec<_> = tcp.iter().map(plan(true)).chain(udp.iter().map(plan(false))).collect();
        let mut sockets = sys::make_sockets(&self.0, &plans)?;
        let udp = sockets.split_off(tcp.len());
        Ok((sockets, udp))
    }

    /// Name of the network namespace, as links in `/proc` have it.
    ///
    /// # Errors
    /// None that Linux is known to give.
    pub fn name(&self) -> io::Result<String> {
        let network = self.0.last().ok_or(io::ErrorKind::NotFound)?;
        Ok(format!("net:[{}]", rustix::fs::fstat(network)?.st_ino))
    }

    /// Makes a TCP socket that can connect to what listens in the network.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn tcp_socket(&self) -> io::Result<OwnedFd> {
        let made = sys::make_sockets(&self.0, &[SocketPlan { is_stream: true, address: None }])?;
        made.into_iter().next().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl SessionNamespace {
    /// Makes it. The init is a member of `group`, the directory of a cgroup, if one is given.
    ///
    /// # Errors
    /// What the system does not allow here, and what would help.
    pub fn create(group: Option<BorrowedFd<'_>>) -> Result<Self, UnavailableFeature> {
        Self::create_with(group, None, None, libc::SIGCHLD)
    }

    /// The same, in which cgroup files are to be seen as `view` has them, as far as that can be had.
    ///
    /// # Errors
    /// As [`SessionNamespace::create`].
    pub fn create_with_view(group: Option<BorrowedFd<'_>>, view: MountView) -> Result<Self, UnavailableFeature> {
        Self::create_with(group, Some(view.0), None, libc::SIGCHLD)
    }

    /// The same, in which files are as `sandbox` has them. Whoever is inside can change none of that: it has no rights over what it
    /// was made with.
    ///
    /// # Errors
    /// As [`SessionNamespace::create`].
    pub fn create_with_sandbox(
        group: Option<BorrowedFd<'_>>,
        view: MountView,
        sandbox: SandboxMounts,
    ) -> Result<Self, UnavailableFeature> {
        Self::create_with(group, Some(view.0), Some(sandbox.plan), libc::SIGCHLD)
    }

    fn create_with(
        group: Option<BorrowedFd<'_>>,
        mounts: Option<MountPlan>,
        sandbox: Option<SandboxPlan>,
        exit_signal: i32,
    ) -> Result<Self, UnavailableFeature> {
        let needs_user = !nix::unistd::geteuid().is_root();
        let own = |error| refused(SpawnStep::Clone, &error, needs_user);
        let (ours, theirs) = UnixStream::pair().map_err(own)?;
        let maps = needs_user.then(|| {
            let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
            IdMaps { user: format!("{uid} {uid} 1").into_bytes(), group: format!("{gid} {gid} 1").into_bytes() }
        });
        let cgroup = mounts.as_ref().and_then(|plan| plan.own.as_ref()).map(|_| "cgroup");
        let net = sandbox.as_ref().filter(|plan| plan.has_network).map(|_| "net");
        let names: Vec<&str> = match (&sandbox, needs_user) {
            // All but the last two belong to the outer user namespace, if there is one.
            (Some(_), _) => ["pid", "ipc"].into_iter().chain(net).chain(cgroup).chain(["user", "mnt"]).collect(),
            (None, true) => ["user", "pid", "mnt"].into_iter().chain(cgroup).collect(),
            (None, false) => ["pid", "mnt"].into_iter().chain(cgroup).collect(),
        };
        let steps = sandbox.as_ref().map(|plan| plan.mounts.steps.clone()).unwrap_or_default();
        let maps_root = sandbox.is_some() && !needs_user;
        let init = sys::clone_init(group, maps, mounts, sandbox, &theirs.into(), exit_signal).map_err(own)?;
        match await_init(&init, ours, &names, maps_root) {
            Ok((id, mut fds)) => {
                if needs_user && !steps.is_empty() {
                    let outer =
                        sys::owner_of_namespace(&fds[0]).map_err(|error| refused(SpawnStep::Enter, &error, true));
                    fds.insert(0, outer.inspect_err(|_| destroy(&init.pidfd))?);
                }
                let unmounted = init.unmounted();
                // After the outer user namespace come those of processes and IPC.
                let network = net.map(|_| if needs_user { vec![0, 3] } else { vec![2] });
                Ok(Self { init: PidFd::from_parts(init.pidfd, id), fds, network, unmounted })
            }
            Err(error) => {
                let (step, error) = init.failure().unwrap_or((SpawnStep::Enter, error));
                let failed = steps.get(init.failed_mount()).filter(|_| step == SpawnStep::MountSandbox);
                let mut missing = refused(step, &error, needs_user);
                if let Some(failed) = failed {
                    let path = failed.path().to_string_lossy();
                    missing.why = format!("{} ({} {path}): {error}", step.name(), failed.operation());
                }
                destroy(&init.pidfd);
                Err(missing)
            }
        }
    }

    /// The init.
    pub fn init(&self) -> &PidFd {
        &self.init
    }

    /// The network of the session, if it has one of its own.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn network(&self) -> io::Result<Option<SessionNetwork>> {
        let Some(places) = &self.network else { return Ok(None) };
        let fds = places.iter().map(|at| self.fds[*at].try_clone()).collect::<io::Result<_>>()?;
        Ok(Some(SessionNetwork(fds)))
    }

    /// Returns the reason why not all cgroup files are seen as requested.
    pub fn view_failure(&self) -> Option<&io::Error> {
        self.unmounted.as_ref()
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        let fds = self.fds.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        Ok(Self { init: self.init.try_clone()?, fds, network: self.network.clone(), unmounted: None })
    }

    /// Returns whether it has a network of its own.
    pub(crate) fn has_network(&self) -> bool {
        self.network.is_some()
    }

    pub(crate) fn into_fds(self) -> Vec<OwnedFd> {
        self.fds
    }
}

/// The init of the namespaces that a proxy has made: its child that is the first process of a PID namespace right below
/// the proxy's own. What a session makes itself is deeper.
pub fn init_below(proxy: Pid) -> Option<PidFd> {
    let levels = pids_by_level(proxy)?.len();
    let mut children = Vec::new();
    proc::children(proxy, &mut children).ok()?;
    let init = children.into_iter().find(|pid| {
        pids_by_level(*pid).is_some_and(|pids| pids.len() == levels + 1 && pids.last().is_some_and(|pid| *pid == 1))
    })?;
    PidFd::open(identify(init).ok()?).ok()
}

/// The numbers that a process has in its PID namespace and in those around it, outermost first.
fn pids_by_level(pid: Pid) -> Option<Vec<Pid>> {
    let status = proc::status(pid).ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    Some(numbers.split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect())
}

/// Waits for the init, opens its namespaces, and lets it go on.
fn await_init(
    init: &NamespaceInit,
    mut socket: UnixStream,
    names: &[&str],
    maps_root: bool,
) -> io::Result<(ProcessId, Vec<OwnedFd>)> {
    let deadline = Instant::now() + INIT_TIMEOUT;
    let ended = || io::Error::new(io::ErrorKind::UnexpectedEof, "the init has ended");
    read_byte(&mut socket, deadline)?.ok_or_else(ended)?;
    if maps_root {
        for map in ["uid_map", "gid_map"] {
            let ours = fs::read_to_string(format!("/proc/self/{map}"))?;
            fs::write(format!("/proc/{}/{map}", init.pid), identity_map(&ours))?;
        }
        socket.write_all(&[0])?;
        read_byte(&mut socket, deadline)?.ok_or_else(ended)?;
    }
    // While it is dumpable: then they are hidden from others than root.
    let open = |name: &&str| procfs::open_proc_file(&format!("{}/ns/{name}", init.pid)).map(OwnedFd::from);
    let fds = names.iter().map(open).collect::<io::Result<_>>()?;
    socket.write_all(&[0])?;
    // It closes its end once it is not dumpable.
    while read_byte(&mut socket, deadline)?.is_some() {}
    Ok((identify(init.pid)?, fds))
}

/// The map by which a user namespace has the ids of the one around it, whose own map is `around`.
fn identity_map(around: &str) -> String {
    let mut map = String::new();
    for line in around.lines() {
        let mut numbers = line.split_ascii_whitespace();
        if let (Some(first), Some(count)) = (numbers.next(), numbers.nth(1)) {
            map.push_str(&format!("{first} {first} {count}\n"));
        }
    }
    map
}

/// The next byte; `None` when the other end is closed.
fn read_byte(socket: &mut UnixStream, deadline: Instant) -> io::Result<Option<u8>> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        socket.set_read_timeout(Some(left))?;
        let mut byte = [0];
        match socket.read(&mut byte) {
            Ok(0) => return Ok(None),
            Ok(_) => return Ok(Some(byte[0])),
            Err(error) if error.kind() == io::ErrorKind::Interrupted && Instant::now() < deadline => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("the init was not ready in {INIT_TIMEOUT:?}"),
                ));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Kills a child and reaps it.
fn destroy(child: &OwnedFd) {
    // It can only fail for one that is dead.
    let _ = rustix::process::pidfd_send_signal(child, rustix::process::Signal::KILL);
    let _ = sys::wait_for(child);
}

fn refused(step: SpawnStep, error: &io::Error, with_user: bool) -> UnavailableFeature {
    let advice = match (step, errno(error)) {
        (SpawnStep::MountProc, Some(Errno::PERM)) => {
            "a container masks parts of /proc: run it with these unmasked (Docker: --security-opt systempaths=unconfined), \
             or choose another containment"
        }
        (SpawnStep::MountOverlay, Some(error)) if error != Errno::PERM => {
            "the kernel needs overlayfs, and a state directory on a file system that it makes one on (ext4, XFS, Btrfs, and no overlay): \
             use the workspace `copy` or `worktree`, or another state directory"
        }
        (SpawnStep::Clone, Some(Errno::NOSPC | Errno::USERS)) => {
            "raise the limits in /proc/sys/user (max_user_namespaces, max_pid_namespaces, max_mnt_namespaces)"
        }
        (_, Some(Errno::PERM | Errno::ACCESS)) if with_user => {
            "let ordinary users make user namespaces (sysctl kernel.unprivileged_userns_clone=1; on Ubuntu the AppArmor profile \
             dist/apparmor/agent-proxy; in a container, its seccomp filter), or run as root"
        }
        (_, Some(Errno::PERM | Errno::ACCESS)) => "it needs CAP_SYS_ADMIN: in a container, --cap-add SYS_ADMIN",
        _ => "choose another containment",
    };
    let what = if with_user { "a user, PID and mount namespace" } else { "a PID and mount namespace" };
    UnavailableFeature { what: what.into(), why: format!("{}: {error}", step.name()), advice: advice.into() }
}

/// Tries whether strict containment can be had: makes a namespace, sends a child inside, and leaves nothing. Any process
/// may ask, with any number of threads; none of the children can be seen by a `wait` that does not say `__WALL`.
///
/// # Errors
/// Why not.
pub fn strict_is_available() -> Result<(), UnavailableFeature> {
    let with_user = !nix::unistd::geteuid().is_root();
    let namespace = SessionNamespace::create_with(None, None, None, 0)?;
    let init = namespace.init.try_clone();
    let entered = sys::dry_run_exec()
        .map_err(|error| (SpawnStep::Descriptors, error))
        .and_then(|exec| sys::dry_run(ExecPlan { namespaces: namespace.into_fds(), ..exec }));
    let init = init.map_err(|error| refused(SpawnStep::Descriptors, &error, with_user))?;
    let _ = init.signal(Signal::Kill);
    let _ = sys::wait_for(&init.as_fd());
    entered.map_err(|(step, error)| refused(step, &error, with_user))
}
