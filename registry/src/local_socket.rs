//! Local sockets with a name that no second process can take, and the processes that connect to them.
//!
//! The socket has mode 0600 from its first moment. Beside it is a lock file, which its owner has locked (`flock`) as long as
//! it lives: the holder of the lock may remove a socket that a killed process left behind.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::{FileTypeExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use interprocess::{
    ConnectWaitMode,
    local_socket::{ConnectOptions, GenericFilePath, ListenerOptions, Stream, ToFsName},
    os::unix::local_socket::ListenerOptionsExt,
};
use ipc_protocol::{Pid, ProcessId};
use nix::{
    errno::Errno,
    sys::socket::{getsockopt, sockopt},
};
use rustix::fs::OFlags;

use crate::{PidFd, ancestry::is_below, file_lock, proc};

/// Longest path of a socket on Linux, in bytes: `sun_path` less its terminating zero.
pub const MAX_SOCKET_PATH: usize = 107;

/// Attempts to lock a lock file that its last owner removes meanwhile.
const TRIES: usize = 100;

/// Failure to take the name of a socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketNameError {
    /// A living process has the name.
    #[error("another process listens on {0:?}")]
    InUse(PathBuf),
    /// The name is that of another file.
    #[error("{0:?} is there and is no socket")]
    NotSocket(PathBuf),
    /// A system call failed.
    #[error("cannot {verb} {path:?}")]
    System {
        /// Operation that was tried.
        verb: &'static str,
        /// Path it was tried on.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

/// Name of a socket in the file system, held by a lock. Dropping it removes the files; the lock's goes last.
#[derive(Debug)]
pub struct SocketName {
    socket: PathBuf,
    lock_path: PathBuf,
    _lock: File,
}

impl SocketName {
    /// Takes the name `socket`, whose lock file is `lock_path`. Removes the socket of a dead process. The directory must be
    /// this user's alone.
    ///
    /// # Errors
    /// [`SocketNameError`].
    pub fn take(socket: PathBuf, lock_path: PathBuf) -> Result<Self, SocketNameError> {
        let Some(lock) = lock_file(&lock_path)? else { return Err(SocketNameError::InUse(socket)) };
        remove_stale(&socket)?;
        Ok(Self { socket, lock_path, _lock: lock })
    }

    /// Creates the listener with `create`, which may set further options.
    ///
    /// # Errors
    /// The error of the system.
    pub fn listen<L>(&self, create: impl FnOnce(ListenerOptions<'_>) -> io::Result<L>) -> Result<L, SocketNameError> {
        let listener = with_short_path(&self.socket, |path| {
            let options = ListenerOptions::new()
                .name(path.to_fs_name::<GenericFilePath>()?)
                // Set before the name appears, so that other users can never connect.
                .mode(0o600)
                // interprocess would unlink the name without our lock.
                .reclaim_name(false);
            create(options)
        });
        listener.map_err(|source| failed("bind", &self.socket, source))
    }

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.socket
    }
}

impl Drop for SocketName {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
        let _ = fs::remove_file(&self.lock_path);
    }
}

/// Connects to a local socket. Does not wait for a listener with a full backlog.
///
/// # Errors
/// The error of the system.
pub fn connect(socket: &Path) -> io::Result<Stream> {
    with_short_path(socket, |path| {
        let name = path.to_fs_name::<GenericFilePath>()?;
        ConnectOptions::new().name(name).wait_mode(ConnectWaitMode::Deferred).connect_sync()
    })
}

/// Calls `with` with a path of the socket that is short enough for one, whatever the length of its directory.
fn with_short_path<T>(socket: &Path, with: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    match (socket.parent(), socket.file_name()) {
        (Some(directory), Some(name)) if socket.as_os_str().len() > MAX_SOCKET_PATH => {
            let directory = File::open(directory)?;
            with(&Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name))
        }
        _ => with(socket),
    }
}

fn failed(verb: &'static str, path: &Path, source: io::Error) -> SocketNameError {
    SocketNameError::System { verb, path: path.to_owned(), source }
}

/// Creates and locks a lock file; `None` if a living process has it.
fn lock_file(path: &Path) -> Result<Option<File>, SocketNameError> {
    // The last owner unlinks its lock file: the locked file may be that one, and no longer the visible one.
    for _ in 0..TRIES {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        let file = options.open(path).map_err(|error| failed("open", path, error))?;
        if !file_lock::try_lock(&file).map_err(|error| failed("lock", path, error))? {
            return Ok(None);
        }
        if file_lock::is_at(&file, path) {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

/// Removes the socket of a dead process. Call it with the lock held.
fn remove_stale(path: &Path) -> Result<(), SocketNameError> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("look at", path, error)),
    };
    if !found.file_type().is_socket() {
        return Err(SocketNameError::NotSocket(path.to_owned()));
    }
    // A program that ignores our lock may listen there. Only a refused connection proves that nobody does.
    match connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(?path, "removing the stale socket of a killed process");
            fs::remove_file(path).map_err(|error| failed("remove the stale socket", path, error))
        }
        Ok(_) | Err(_) => Err(SocketNameError::InUse(path.to_owned())),
    }
}

/// Process that made a connection.
#[derive(Debug)]
pub struct SocketPeer {
    /// Its user.
    pub user: u32,
    /// Its pid.
    pub pid: Pid,
    process: OwnedFd,
}

impl SocketPeer {
    /// Finds the process at the other end of a connection.
    ///
    /// # Errors
    /// The reason why it is not known, for the user who runs it.
    pub fn of(socket: &impl AsFd) -> Result<Self, String> {
        let peer = getsockopt(socket, sockopt::PeerCredentials);
        let peer = peer.map_err(|error| format!("the kernel does not say who you are ({error})"))?;
        // The kernel reports 0 for a process of another PID namespace.
        let pid = Pid::try_from(peer.pid()).ok().filter(|pid| *pid != 0);
        let pid = pid.ok_or_else(|| "the kernel does not say which process you are".to_owned())?;
        let process = match getsockopt(socket, sockopt::PeerPidfd) {
            Ok(process) => Ok(process),
            // Kernels before 6.5 lack the option.
            Err(Errno::ENOPROTOOPT) => proc::identify(pid).and_then(PidFd::open).map(OwnedFd::from),
            Err(error) => Err(error.into()),
        };
        let process = process.map_err(|error| format!("your process {pid} is gone, or cannot be seen ({error})"))?;
        Ok(Self { user: peer.uid(), pid, process })
    }

    /// Checks that the process is not below any of `tops`, and returns its pidfd. `sessions` says whose sessions those are.
    ///
    /// # Errors
    /// The reason why it is, or why that is unknown, for the user who runs it.
    pub fn outside(self, tops: &[ProcessId], sessions: &str) -> Result<OwnedFd, String> {
        let pid = self.pid;
        if is_below(pid, tops)? {
            return Err(format!("your process {pid} belongs to one of {sessions}"));
        }
        // The pidfd still names this pid, so the number belonged to no other process in between.
        match proc::pid_of_pidfd(self.process.as_fd()) {
            Ok(now) if now == pid => Ok(self.process),
            _ => Err(format!("your process {pid} is gone")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::{
        fs::{MetadataExt, PermissionsExt},
        net::UnixListener,
    };

    use super::*;

    struct Directory(PathBuf);

    impl Directory {
        fn new(test: &str) -> Self {
            let path = std::env::temp_dir().join(format!("agent-proxy-local-socket-{test}-{}", std::process::id()));
            fs::create_dir(&path).expect("a fresh directory");
            Self(path)
        }

        fn take(&self, name: &str) -> Result<SocketName, SocketNameError> {
            SocketName::take(self.0.join(name), self.0.join(format!("{name}.lock")))
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn both_files_are_private_and_go_with_the_name() {
        let directory = Directory::new("modes");
        let name = directory.take("a.sock").expect("taken");
        let _listener = name.listen(|options| options.create_sync()).expect("bound");
        for path in [&name.socket, &name.lock_path] {
            assert_eq!(fs::metadata(path).expect("it is there").permissions().mode() & 0o7777, 0o600, "{path:?}");
        }
        drop(name);
        assert_eq!(fs::read_dir(&directory.0).expect("readable").count(), 0);
    }

    #[test]
    fn a_name_in_use_is_not_taken_and_a_stale_one_is() {
        let directory = Directory::new("names");
        let in_use = |taken: Result<SocketName, SocketNameError>| matches!(taken, Err(SocketNameError::InUse(_)));
        let first = directory.take("a.sock").expect("taken");
        assert!(in_use(directory.take("a.sock")), "locked");
        drop(first);
        let other = UnixListener::bind(directory.0.join("a.sock")).expect("bound");
        assert!(in_use(directory.take("a.sock")), "it listens without a lock");
        drop(other);
        // Programs that other tests start have the listener too, until their exec.
        crate::socket_diag::tests::until("nobody listens there", || directory.take("a.sock").is_ok());
        fs::write(directory.0.join("notes"), "dear diary").expect("written");
        assert!(matches!(directory.take("notes"), Err(SocketNameError::NotSocket(_))));
        assert_eq!(fs::read(directory.0.join("notes")).expect("still there"), b"dear diary");
    }

    #[test]
    fn a_long_path_is_no_obstacle() {
        let directory = Directory::new("long");
        let deep = directory.0.join("d".repeat(MAX_SOCKET_PATH));
        fs::create_dir(&deep).expect("made");
        let name = SocketName::take(deep.join("a.sock"), deep.join("a.lock")).expect("taken");
        let _listener = name.listen(|options| options.create_sync()).expect("bound");
        assert!(fs::symlink_metadata(name.path()).expect("there").mode() & 0o7777 == 0o600);
        connect(name.path()).expect("connected");
    }

    #[test]
    fn a_peer_is_outside_until_its_pid_is_another_s() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let peer = || SocketPeer::of(&ours).expect("this process");
        assert_eq!(peer().pid, std::process::id());
        peer().outside(&[], "").expect("below nobody");
        let own = proc::identify(std::process::id()).expect("alive");
        let refused = peer().outside(&[own], "our own sessions").expect_err("below itself");
        assert!(refused.contains("one of our own sessions"), "{refused}");
        // As if the pid had been recycled meanwhile.
        let recycled = SocketPeer { pid: own.pid + 1, ..peer() };
        recycled.outside(&[], "").expect_err("gone");
    }
}
