//! Socket of the daemon, with a name that only its owner can reach and no second daemon can take.
//!
//! The directory is ours and 0700, the socket 0600 from its first moment. A lock file beside it is held as long as
//! the daemon lives, so the holder of the lock may remove a socket that a killed daemon left behind.

use std::{
    fs::{self, DirBuilder, Permissions},
    io,
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    },
    path::Path,
};

use interprocess::{
    local_socket::{
        tokio::{Listener, Stream},
        traits::tokio::Listener as _,
    },
    os::unix::uds_local_socket,
};
use listenfd::ListenFd;
use proxy_server::{Peer, ProblemDetails};
use registry::local_socket::{SocketName, SocketNameError};

use super::peers::PeerGuard;
use crate::{socket_path::SocketPath, term};

/// Listening end of the socket.
#[derive(Debug)]
pub(crate) struct BoundSocket {
    listener: Listener,
    /// Guard that refuses processes of our own sessions.
    guard: Option<PeerGuard>,
}

impl BoundSocket {
    /// Sets the guard, which checks every client.
    pub(super) fn guarded(self, guard: PeerGuard) -> Self {
        Self { guard: Some(guard), ..self }
    }
}

/// Takes the socket that a service manager passed on (`LISTEN_FDS`), or else binds it. Keep its name until the daemon ends; one that was
/// passed on has none, as its file is the service manager's.
///
/// # Errors
/// `usage` for a socket with another path, or for several; otherwise as [`bind`].
pub(crate) fn open(socket: &SocketPath) -> Result<(BoundSocket, Option<SocketName>), ProblemDetails> {
    match passed_on(socket)? {
        Some(listener) => Ok((BoundSocket { listener, guard: None }, None)),
        None => bind(socket).map(|(bound, name)| (bound, Some(name))),
    }
}

/// Returns the socket of a service manager, if there is one.
fn passed_on(socket: &SocketPath) -> Result<Option<Listener>, ProblemDetails> {
    let mut descriptors = ListenFd::from_env();
    if descriptors.len() == 0 {
        return Ok(None);
    }
    let failed = |error: io::Error| ProblemDetails::failed(format!("taking the socket of LISTEN_FDS failed: {error}"));
    if descriptors.len() > 1 {
        return Err(ProblemDetails::usage(
            "LISTEN_FDS has several sockets: have one ListenStream= alone, and --listen for the network",
        ));
    }
    let Some(listener) = descriptors.take_unix_listener(0).map_err(failed)? else { return Ok(None) };
    let address = listener.local_addr().map_err(failed)?;
    if address.as_pathname() != Some(&socket.path) {
        return Err(ProblemDetails::usage(format!(
            "the socket of LISTEN_FDS is {address:?}, and clients look for {}: give --socket the path of ListenStream=",
            socket.path.display()
        )));
    }
    listener.set_nonblocking(true).map_err(failed)?;
    let listener = uds_local_socket::tokio::Listener::try_from(OwnedFd::from(listener)).map_err(failed)?;
    Ok(Some(listener.into()))
}

/// Binds the socket. Keep its name until the daemon ends.
///
/// # Errors
/// `daemon-running` when another daemon has the name; `unusable-socket` when the path cannot be used safely.
fn bind(socket: &SocketPath) -> Result<(BoundSocket, SocketName), ProblemDetails> {
    if let Some(why) = socket.unusable() {
        return Err(ProblemDetails::new("unusable-socket", why));
    }
    prepare_directory(socket)?;
    let mut lock = socket.path.as_os_str().to_owned();
    lock.push(".lock");
    let name = SocketName::take(socket.path.clone(), lock.into()).map_err(name_problem)?;
    let listener = name.listen(|options| options.create_tokio()).map_err(name_problem)?;
    Ok((BoundSocket { listener, guard: None }, name))
}

fn name_problem(error: SocketNameError) -> ProblemDetails {
    match error {
        SocketNameError::InUse(path) => ProblemDetails::new(
            "daemon-running",
            format!("a daemon is running on {}: use it, stop it, or give --socket another path", path.display()),
        ),
        SocketNameError::NotSocket(path) => ProblemDetails::new(
            "unusable-socket",
            format!("{} is there and is no socket: remove it, or give --socket another path", path.display()),
        ),
        SocketNameError::System { verb, path, source } => unusable(&path, verb, &source),
    }
}

impl axum::serve::Listener for BoundSocket {
    type Io = Stream;
    type Addr = Peer;

    async fn accept(&mut self) -> (Stream, Peer) {
        loop {
            match self.listener.accept().await {
                Ok(stream) => {
                    let admitted = match &self.guard {
                        Some(guard) => guard.admit(stream),
                        None => Some((stream, Peer::default())),
                    };
                    if let Some(admitted) = admitted {
                        return admitted;
                    }
                }
                Err(error) => {
                    // Out of descriptors, or the client is gone already: neither ends the daemon.
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Peer> {
        Ok(Peer::default())
    }
}

fn unusable(path: &Path, verb: &str, error: &io::Error) -> ProblemDetails {
    ProblemDetails::new("unusable-socket", format!("cannot {verb} {}: {error}", path.display()))
}

/// Creates the directory (0700), or checks an existing one.
pub(super) fn prepare_directory(socket: &SocketPath) -> Result<(), ProblemDetails> {
    let directory = socket.directory();
    let created = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    created.map_err(|error| unusable(directory, "create", &error))?;
    // A link at our default location is a trap; a path that the user named may go through one.
    let found = if socket.default_place { fs::symlink_metadata(directory) } else { fs::metadata(directory) };
    let found = found.map_err(|error| unusable(directory, "look at", &error))?;
    match check_directory(&found, nix::unistd::geteuid().as_raw(), socket.default_place) {
        DirectoryAccess::Private => Ok(()),
        DirectoryAccess::Close => fs::set_permissions(directory, Permissions::from_mode(0o700))
            .map_err(|error| unusable(directory, "close to others", &error)),
        DirectoryAccess::Readable(mode) => {
            term::error_line(format_args!(
                "warning: others can look into {} (mode {mode:04o}); the socket itself is 0600: chmod 700 it, or name a \
                 new directory",
                directory.display()
            ));
            Ok(())
        }
        DirectoryAccess::Refused(why) => Err(ProblemDetails::new(
            "unusable-socket",
            format!("{} {why}: name a socket in a directory of your own that is 0700", directory.display()),
        )),
    }
}

/// Judgement of the directory's owner and mode.
#[derive(Debug, PartialEq)]
enum DirectoryAccess {
    /// The directory is ours and 0700.
    Private,
    /// The directory is ours alone by its name, but open to others: close it.
    Close,
    /// The directory is ours, and others may read it, which does no harm to a socket that is 0600.
    Readable(u32),
    /// Another user could replace the socket.
    Refused(&'static str),
}

fn check_directory(found: &fs::Metadata, uid: u32, default_place: bool) -> DirectoryAccess {
    let mode = found.mode() & 0o7777;
    if !found.is_dir() {
        DirectoryAccess::Refused("is not a directory")
    } else if found.uid() != uid {
        DirectoryAccess::Refused("belongs to another user")
    } else if mode & 0o077 == 0 {
        DirectoryAccess::Private
    } else if default_place {
        DirectoryAccess::Close
    } else if mode & 0o022 != 0 {
        DirectoryAccess::Refused("is writable by others")
    } else {
        DirectoryAccess::Readable(mode)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    struct Directory(PathBuf);

    impl Directory {
        fn new(test: &str, mode: u32) -> Self {
            let path = std::env::temp_dir().join(format!("agent-proxy-socket-{test}-{}", std::process::id()));
            fs::create_dir(&path).expect("a fresh directory");
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("its mode");
            Self(path)
        }

        fn socket(&self, path: &str) -> SocketPath {
            SocketPath { path: self.0.join(path), default_place: false, owner: None }
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).expect("it is there").mode() & 0o777
    }

    #[tokio::test]
    async fn modes_and_names_and_their_end() {
        let directory = Directory::new("modes", 0o700);
        let socket = directory.socket("new/daemon.sock");
        let bound = bind(&socket).expect("binds");
        assert_eq!((mode(&socket.path), mode(socket.directory())), (0o600, 0o700));
        drop(bound);
        assert_eq!(fs::read_dir(socket.directory()).expect("readable").count(), 0, "both names are gone");
    }

    #[tokio::test]
    async fn a_live_name_is_not_stolen() {
        let directory = Directory::new("live", 0o700);
        let socket = directory.socket("daemon.sock");
        let first = bind(&socket).expect("binds");
        assert_eq!(bind(&socket).expect_err("refused").kind, "daemon-running");
        drop(first);
        bind(&socket).expect("the name is free again");
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_without_lock_is_not() {
        let directory = Directory::new("stale", 0o700);
        let socket = directory.socket("daemon.sock");
        let other = std::os::unix::net::UnixListener::bind(&socket.path).expect("binds");
        assert_eq!(bind(&socket).expect_err("refused").kind, "daemon-running");
        drop(other);
        bind(&socket).expect("the stale file is replaced");
    }

    #[tokio::test]
    async fn what_is_no_socket_is_left_alone() {
        let directory = Directory::new("file", 0o700);
        let socket = directory.socket("notes.txt");
        fs::write(&socket.path, "dear diary").expect("written");
        let problem = bind(&socket).expect_err("refused");
        assert_eq!(problem.kind, "unusable-socket");
        assert_eq!(fs::read_to_string(&socket.path).expect("still there"), "dear diary");
    }

    #[tokio::test]
    async fn a_directory_that_others_can_write_is_refused() {
        let directory = Directory::new("open", 0o777);
        let problem = bind(&directory.socket("daemon.sock")).expect_err("refused");
        assert!(problem.detail.contains("writable by others"), "{}", problem.detail);
    }

    #[test]
    fn directories_are_judged_by_owner_and_mode() {
        let directory = Directory::new("judge", 0o755);
        let found = fs::metadata(&directory.0).expect("there");
        let uid = found.uid();
        assert_eq!(check_directory(&found, uid, false), DirectoryAccess::Readable(0o755));
        assert_eq!(check_directory(&found, uid, true), DirectoryAccess::Close);
        assert!(matches!(check_directory(&found, uid + 1, true), DirectoryAccess::Refused(_)));
    }
}
