//! Open conversations of all managers of this user: a file for each, in a directory known to all of them.
//!
//! A file names the session, and a few processes; the conversation may be open for as long as one of them lives.
//! Whoever reads or replaces a file locks the directory (`flock`) meanwhile; nobody keeps a descriptor. The manager
//! removes the file when the session is over. A killed manager's file means nothing once its processes are gone; the
//! next manager removes it.

use std::{
    collections::HashSet,
    fs::{self, File},
    io::{self, ErrorKind, Read, Write},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use ipc_protocol::{ProcessId, SessionId};
use registry::file_lock;
use rustix::{
    fs::{AtFlags, Mode, OFlags, fstat, mkdir, openat, renameat, unlinkat},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use super::{ConversationKey, LockKeeper};
use crate::{blocking::OrderedWork, error::Result, homes::files};

/// Longest wait for the lock. It is held for a few system calls only, so a holder that is stopped in between delays
/// others no longer than this.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// Time between two attempts to take it.
const LOCK_PAUSE: Duration = Duration::from_millis(1);
/// Ending of the name of a file that is being written; the lock is held meanwhile.
const UNFINISHED: &str = ".new";

/// The directory of claims, and the processes of this manager.
#[derive(Debug)]
pub(crate) struct SharedLocks {
    directory: PathBuf,
    host: ProcessId,
    /// Replaced when it dies.
    fork_server: Mutex<ProcessId>,
    /// Conversations that this manager has claimed.
    claimed: Mutex<HashSet<ConversationKey>>,
}

/// Claims handed over by those who cannot wait. Of all managers of this process: one may free a conversation that
/// another takes next.
static LATER: LazyLock<Arc<OrderedWork>> = LazyLock::new(Arc::default);

/// Session that has a conversation open.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LockHolder {
    pub(crate) session: SessionId,
    /// Processes that keep the conversation open for as long as one of them lives.
    pub(crate) processes: Vec<ProcessId>,
}

impl SharedLocks {
    /// Opens the claims of this user's managers that see each other's processes: they share one directory, whatever
    /// their environment. A thread removes the files of dead managers meanwhile.
    pub(crate) fn new(host: ProcessId, fork_server: ProcessId) -> Option<Self> {
        let uid = nix::unistd::geteuid().as_raw();
        let namespace = fs::read_link("/proc/self/ns/pid");
        let namespace = namespace.inspect_err(|error| tracing::warn!(%error, "failed to read the PID namespace"));
        let number: String = namespace.ok()?.to_str()?.chars().filter(char::is_ascii_digit).collect();
        let claims = Self::within(format!("/tmp/agent-proxy-conversations-{uid}-{number}").into(), host, fork_server);
        let swept = thread::Builder::new().name("agent-proxy".to_owned()).spawn({
            let directory = claims.directory.clone();
            move || sweep(&directory)
        });
        let _ = swept.inspect_err(|error| tracing::warn!(%error, "failed to sweep dead managers' conversations"));
        Some(claims)
    }

    pub(crate) fn within(directory: PathBuf, host: ProcessId, fork_server: ProcessId) -> Self {
        Self { directory, host, fork_server: Mutex::new(fork_server), claimed: Mutex::default() }
    }

    fn fork_server(&self) -> MutexGuard<'_, ProcessId> {
        self.fork_server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This manager has another fork server from now on.
    pub(crate) fn guarded_by(&self, fork_server: ProcessId) {
        *self.fork_server() = fork_server;
    }

    fn claimed(&self) -> MutexGuard<'_, HashSet<ConversationKey>> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `work` in a thread, after what was handed over before it.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if it is not done.
    pub(super) fn later(self: &Arc<Self>, work: impl FnOnce(&Self) + Send + 'static) -> Result<()> {
        let this = self.clone();
        LATER.push("claiming a conversation", move || work(&this))
    }

    /// Records that `session` has the conversation open, or returns the other session that has. With `by_force`, or if
    /// this manager has claimed it, the session is known to have it, and the file is replaced. Blocks for some system
    /// calls.
    ///
    /// # Errors
    /// Any error of a file. No holder is known then, and nothing is recorded.
    pub(crate) fn acquire(
        &self,
        conversation: &ConversationKey,
        session: &SessionId,
        keeper: Option<LockKeeper>,
        by_force: bool,
    ) -> io::Result<Option<LockHolder>> {
        let directory = match locked(&self.directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                match mkdir(&self.directory, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                locked(&self.directory)?
            }
            locked => locked?,
        };
        let name = name(conversation);
        let is_ours = by_force || self.claimed().contains(conversation);
        if !is_ours && let Some(holder) = holder(&directory, &name)? {
            return Ok(Some(holder));
        }
        // An adopted session's claim names its proxy already: until its keeper is set, nobody else's processes stand for it.
        let adopted = if by_force && keeper.is_none() { holder(&directory, &name)? } else { None };
        let processes = match (keeper, adopted.filter(|holder| holder.session == *session)) {
            (None, Some(holder)) => holder.processes,
            (None, None) => vec![self.host, *self.fork_server()],
            (Some(LockKeeper { proxy, may_outlive_host: false }), _) => vec![self.host, proxy],
            (Some(LockKeeper { proxy, may_outlive_host: true }), _) => vec![proxy],
        };
        replace(&directory, &name, &serde_json::to_vec(&LockHolder { session: session.clone(), processes })?)?;
        self.claimed().insert(conversation.clone());
        Ok(None)
    }

    /// Leaves the claim to a session that outlives this manager.
    pub(crate) fn forget(&self, conversation: &ConversationKey) {
        self.claimed().remove(conversation);
    }

    /// Releases the claim of `session`, the last of this manager that had the conversation open. A file that named only
    /// a proxy, dead by now, may have been replaced by another manager; that manager's file stays.
    pub(crate) fn release(&self, conversation: &ConversationKey, session: &SessionId) {
        if !self.claimed().remove(conversation) {
            return;
        }
        let name = name(conversation);
        let left = locked(&self.directory).and_then(|directory| match holder(&directory, &name)? {
            Some(holder) if !holder.processes.contains(&self.host) && holder.session != *session => Ok(()),
            _ => Ok(unlinkat(&directory, &name, AtFlags::empty())?),
        });
        if let Err(error) = left {
            tracing::debug!(directory = ?self.directory, name, %error, "failed to remove the file of a closed conversation");
        }
    }
}

/// Opens and locks the directory, which must be this user's alone. The lock lasts until the result is dropped.
fn locked(directory: &Path) -> io::Result<OwnedFd> {
    let opened = files::open(directory)?;
    let found = fstat(&opened)?;
    if found.st_uid != nix::unistd::geteuid().as_raw() || found.st_mode & 0o077 != 0 {
        return Err(io::Error::new(ErrorKind::PermissionDenied, format!("{directory:?} is not this user's alone")));
    }
    let until = Instant::now() + LOCK_TIMEOUT;
    while !file_lock::try_lock(&opened)? {
        if Instant::now() >= until {
            return Err(io::Error::new(ErrorKind::WouldBlock, format!("somebody has {directory:?} locked")));
        }
        thread::sleep(LOCK_PAUSE);
    }
    Ok(opened)
}

/// Name of a conversation's file: its FNV-1a hash, the same in each release.
fn name(ConversationKey { family, store, id, .. }: &ConversationKey) -> String {
    let store = store.as_deref().unwrap_or(Path::new("")).as_os_str().as_bytes();
    let bytes = [family.as_bytes(), store, id.as_bytes()].join(&0);
    let step = |hash: u128, byte: &u8| (hash ^ u128::from(*byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b);
    format!("{:032x}", bytes.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, step))
}

/// Replaces the file `name` as a whole. If it cannot be written, the file before it stays: a claim that is cut short
/// would read as free. The caller has the lock.
fn replace(directory: &OwnedFd, name: &str, contents: &[u8]) -> io::Result<()> {
    let draft = format!("{name}{UNFINISHED}");
    // A killed writer leaves one.
    match unlinkat(directory, &draft, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // Programs that clean up /tmp by age spare sticky files.
    let file = openat(directory, &draft, flags, Mode::RUSR | Mode::WUSR | Mode::SVTX)?;
    let written = File::from(file).write_all(contents);
    written.and_then(|()| Ok(renameat(directory, &draft, directory, name)?)).inspect_err(|_| {
        // The error of the write says more than one of this.
        let _ = unlinkat(directory, &draft, AtFlags::empty());
    })
}

/// Reads the holder of a conversation from its file; `None` if no process of it lives.
fn holder(directory: &OwnedFd, name: &str) -> io::Result<Option<LockHolder>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut text = Vec::new();
    match openat(directory, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => _ = File::from(opened?).read_to_end(&mut text)?,
    }
    // A killed manager may leave an incomplete file beside a whole one.
    let Ok(mut holder) = serde_json::from_slice::<LockHolder>(&text) else { return Ok(None) };
    let mut living = Vec::new();
    for process in std::mem::take(&mut holder.processes) {
        match registry::identify(process.pid) {
            Ok(now) if now == process && !registry::is_exiting(process) => living.push(process),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok((!living.is_empty()).then_some(LockHolder { processes: living, ..holder }))
}

/// Removes the files that name no living process.
fn sweep(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        // Locks for each file anew, so that nobody waits for the whole sweep.
        let removed = locked(directory).and_then(|locked| match holder(&locked, &name)? {
            Some(_) => Ok(()),
            None => Ok(unlinkat(&locked, &name, AtFlags::empty())?),
        });
        if let Err(error) = removed {
            tracing::debug!(?directory, name, %error, "failed to remove a dead manager's conversation file");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::fs::{PermissionsExt, symlink},
        sync::mpsc,
    };

    use super::*;

    /// Alive as long as the test is, and nobody.
    const NOBODY: ProcessId = ProcessId { pid: 1, start_time: u64::MAX };

    impl SharedLocks {
        /// Has what is handed over hang until the result is dropped. This is of all tests: not for long.
        pub(crate) fn hang() -> mpsc::Sender<()> {
            let (release, released) = mpsc::channel();
            LATER.push("hanging", move || _ = released.recv()).expect("handed over");
            release
        }
    }

    fn me() -> ProcessId {
        registry::identify(std::process::id()).expect("alive")
    }

    fn conversation(id: &str) -> ConversationKey {
        ConversationKey { family: "claude".into(), store: Some("/h".into()), is_shared: true, id: id.into() }
    }

    fn session(id: &str) -> SessionId {
        id.parse().expect("a valid id")
    }

    fn files(directory: &Path) -> usize {
        fs::read_dir(directory).expect("there").count()
    }

    #[test]
    fn one_is_open_as_long_as_a_process_of_its_session_lives() {
        let scratch = tempfile::tempdir().expect("a directory");
        let place = scratch.path().join("claims");
        let claims = |host, fork_server| SharedLocks::within(place.clone(), host, fork_server);
        let keeper = |proxy, outlives| Some(LockKeeper { proxy, may_outlive_host: outlives });
        let (one, ours) = (conversation("c"), session("s-1"));
        for (host, fork_server, keeper, is_open) in [
            (me(), NOBODY, None, true),
            (NOBODY, me(), None, true),
            (NOBODY, NOBODY, None, false),
            (me(), NOBODY, keeper(NOBODY, false), true),
            (NOBODY, NOBODY, keeper(me(), false), true),
            (NOBODY, me(), keeper(NOBODY, false), false),
            (NOBODY, NOBODY, keeper(me(), true), true),
            // Without its host it lives as long as its proxy, and so it does with it.
            (me(), me(), keeper(NOBODY, true), false),
        ] {
            let first = claims(host, fork_server);
            assert_eq!(first.acquire(&one, &ours, keeper, false).expect("taken"), None);
            let other = claims(me(), me());
            let found = other.acquire(&one, &session("s-2"), None, false).expect("known").map(|holder| holder.session);
            assert_eq!(found, is_open.then(|| ours.clone()), "{first:?} {keeper:?}");
            // Another conversation is nobody's.
            assert_eq!(other.acquire(&conversation("d"), &ours, None, false).expect("taken"), None);
            first.release(&one, &ours);
            other.release(&conversation("d"), &ours);
            other.release(&one, &session("s-2"));
            assert_eq!(files(&place), 0);
        }
    }

    #[test]
    fn what_another_manager_has_open_meanwhile_stays_when_this_one_s_session_is_over() {
        let scratch = tempfile::tempdir().expect("a directory");
        let place = scratch.path().join("claims");
        let (one, ours, theirs) = (conversation("c"), session("s-1"), session("s-2"));
        // The other one has a host of its own; here it has to be alive, and not this one.
        let (this, other) =
            (SharedLocks::within(place.clone(), NOBODY, NOBODY), SharedLocks::within(place.clone(), me(), NOBODY));
        let keeper = LockKeeper { proxy: NOBODY, may_outlive_host: true };
        assert_eq!(this.acquire(&one, &ours, Some(keeper), false).expect("taken"), None);
        assert_eq!(other.acquire(&one, &theirs, None, false).expect("its proxy is dead"), None);
        this.release(&one, &ours);
        let found = this.acquire(&one, &ours, None, false).expect("known").expect("it is open");
        assert_eq!(found.session, theirs);
        other.release(&one, &theirs);
        assert_eq!(files(&place), 0);
    }

    #[test]
    fn what_dead_managers_left_goes_and_the_rest_stays() {
        let scratch = tempfile::tempdir().expect("a directory");
        let place = scratch.path().join("claims");
        let take = |host, id| {
            SharedLocks::within(place.clone(), host, NOBODY).acquire(&conversation(id), &session("s"), None, false)
        };
        take(NOBODY, "dead").expect("taken");
        take(me(), "alive").expect("taken");
        fs::write(place.join(name(&conversation("half"))), "{\"session\":").expect("written");
        sweep(&place);
        assert_eq!(files(&place), 1);
        assert!(take(me(), "alive").expect("known").is_some());
    }

    /// Runs a test of this module once more, in a process that can write no byte to a file.
    #[expect(clippy::disallowed_methods, reason = "this test itself, and no program under test")]
    fn run_where_nothing_can_be_written(test: &str, place: &Path) {
        let exe = std::env::current_exe().expect("a path");
        let script = r#"trap "" XFSZ; ulimit -f 0; exec "$0" --exact "$1" --nocapture"#;
        let test = format!("{}::{test}", module_path!().split_once("::").expect("in a crate").1);
        let mut command = std::process::Command::new("/bin/sh");
        command.args(["-c", script]).arg(exe).arg(test).env(FULL, place);
        let output = command.output().expect("started");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Variable with the directory of claims, in the process that cannot write.
    const FULL: &str = "AGENT_PROXY_TEST_FULL";

    #[test]
    fn a_claim_that_cannot_be_written_leaves_the_one_before() {
        let again = |place: &Path| {
            let keeper = LockKeeper { proxy: me(), may_outlive_host: false };
            SharedLocks::within(place.into(), me(), NOBODY).acquire(
                &conversation("c"),
                &session("s-1"),
                Some(keeper),
                true,
            )
        };
        if let Some(place) = std::env::var_os(FULL) {
            again(Path::new(&place)).expect_err("the disk is full");
            return;
        }
        let scratch = tempfile::tempdir().expect("a directory");
        let place = scratch.path().join("claims");
        assert_eq!(again(&place).expect("taken"), None);
        run_where_nothing_can_be_written("a_claim_that_cannot_be_written_leaves_the_one_before", &place);
        assert_eq!(files(&place), 1);
        let other = SharedLocks::within(place.clone(), NOBODY, NOBODY);
        let holder = other.acquire(&conversation("c"), &session("s-2"), None, false).expect("known");
        assert_eq!(holder.map(|holder| holder.session), Some(session("s-1")), "it is open still");
        // What a writer that was killed left is in nobody's way.
        fs::write(place.join(format!("{}{UNFINISHED}", name(&conversation("c")))), "{\"ses").expect("written");
        assert_eq!(again(&place).expect("taken"), None);
        assert_eq!(files(&place), 1);
    }

    #[test]
    fn a_place_that_may_be_another_s_is_not_used() {
        let scratch = tempfile::tempdir().expect("a directory");
        let place = scratch.path().join("claims");
        let take =
            || SharedLocks::within(place.clone(), me(), NOBODY).acquire(&conversation("c"), &session("s"), None, false);
        let target = scratch.path().join("theirs");
        fs::create_dir(&target).expect("made");
        symlink(&target, &place).expect("linked");
        take().expect_err("a link");
        fs::remove_file(&place).expect("removed");
        fs::create_dir(&place).expect("made");
        fs::set_permissions(&place, fs::Permissions::from_mode(0o770)).expect("opened");
        assert_eq!(take().expect_err("open to others").kind(), ErrorKind::PermissionDenied);
        fs::set_permissions(&place, fs::Permissions::from_mode(0o700)).expect("closed");
        // Who is stopped with the lock holds up nobody for ever.
        let lock = locked(&place).expect("locked");
        assert_eq!(take().expect_err("locked").kind(), ErrorKind::WouldBlock);
        drop(lock);
        // A link in it is followed by nobody.
        let file = place.join(name(&conversation("c")));
        symlink(target.join("file"), &file).expect("linked");
        take().expect_err("a link");
        assert_eq!(files(&target), 0);
        fs::remove_file(&file).expect("removed");
        take().expect("taken");
        assert_eq!(fs::metadata(&file).expect("there").permissions().mode() & 0o7777, 0o1600);
    }

    #[test]
    fn names_are_the_same_in_each_release() {
        assert_eq!(name(&conversation("c")), "6250e41b7ceb07ef99cd82df203c14b7");
    }
}
