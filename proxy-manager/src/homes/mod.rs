//! Home directories that belong to sessions.
//!
//! ```text
//! STATE/homes/s-ID     home of session ID, until that session and those that resumed its conversation are deleted
//! STATE/homes/run-ID   what its agent runs or reads of ours, in whatever home, until it ends
//! ```
//!
//! Without a state directory they are in a temporary directory, which is removed with the manager.
//!
//! Files of a home that hold the key of a model configuration exist only while a session with this home runs.

pub(crate) mod home_copy;
mod shim_dir;
pub(crate) mod temporary_root;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fs::DirBuilder,
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

pub(crate) use agents::directory_files as files;
use agents::provision::ProvisionFile;
use ipc_protocol::SessionId;

use self::home_copy::HomeCopy;
pub(crate) use self::shim_dir::ShimDir;
use self::temporary_root::TemporaryRoot;
use crate::{
    error::{Error, Result},
    session_store::SessionStatus,
};

/// All homes of a manager.
#[derive(Debug)]
pub(crate) struct SessionHomes {
    root: HomesRoot,
    users: Mutex<HomeUsers>,
}

/// Users of each home.
#[derive(Debug, Default)]
struct HomeUsers {
    /// Sessions that have each home (its own, and those that resumed its conversation), each hold with a number.
    holds: HashMap<PathBuf, BTreeSet<(SessionId, u64)>>,
    last: u64,
    /// Homes that are being removed.
    removing: HashSet<PathBuf>,
    /// Homes in which a session runs.
    used: HashMap<PathBuf, HomeInUse>,
}

/// A home in which a session runs.
#[derive(Debug, Default)]
struct HomeInUse {
    /// Holds of the running sessions, true for those that may outlive this manager: the keys stay with them.
    holds: BTreeMap<u64, Arc<AtomicBool>>,
    /// Files with keys, relative to the home.
    keys: BTreeSet<PathBuf>,
}

impl HomeUsers {
    fn add(&mut self, home: &Path, session: &SessionId) -> u64 {
        self.last += 1;
        self.holds.entry(home.to_owned()).or_default().insert((session.clone(), self.last));
        self.last
    }

    /// Removes the holds of `home` that satisfy `given_up`. Returns true if none is left; the home is then marked as
    /// going.
    fn release(&mut self, home: &Path, given_up: impl Fn(&SessionId, u64) -> bool) -> bool {
        let Some(holds) = self.holds.get_mut(home) else { return false };
        let before = holds.len();
        holds.retain(|(session, number)| !given_up(session, *number));
        if !holds.is_empty() || before == 0 {
            return false;
        }
        self.holds.remove(home);
        self.removing.insert(home.to_owned())
    }
}

/// Record of a session's home: see [`crate::records`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordedHome {
    pub(crate) session: SessionId,
    pub(crate) home: PathBuf,
    /// Files within the home that hold a key.
    pub(crate) keys: Vec<PathBuf>,
}

/// Directory of all homes.
#[derive(Debug)]
enum HomesRoot {
    Persistent(PathBuf),
    /// Created in this directory when first needed.
    Temporary {
        parent: PathBuf,
        made: Mutex<Option<TemporaryRoot>>,
    },
}

impl SessionHomes {
    /// Opens homes in this directory, which exists and is this user's alone. `recorded` names the sessions of earlier
    /// managers that have a home. These sessions no longer run, so keys left in their homes are removed. Blocks.
    pub(crate) fn persistent(directory: PathBuf, recorded: impl IntoIterator<Item = RecordedHome>) -> Self {
        let mut users = HomeUsers::default();
        for RecordedHome { session, home, keys } in recorded {
            if let Some(home) = within(&directory, &home) {
                users.add(&home, &session);
                remove_keys(&home, &keys.into_iter().collect());
            }
        }
        Self { root: HomesRoot::Persistent(directory), users: Mutex::new(users) }
    }

    /// Returns the home that a record names, if it exists. Blocks.
    pub(crate) fn find_recorded(&self, home: &Path) -> Option<PathBuf> {
        within(&self.directory().ok()?, home).filter(|home| home.symlink_metadata().is_ok())
    }

    /// Uses a fresh directory for homes within `parent`. A thread removes the directories that killed managers left
    /// there.
    pub(crate) fn temporary(parent: PathBuf) -> Self {
        temporary_root::sweep_in_background(parent.clone());
        Self { root: HomesRoot::Temporary { parent, made: Mutex::default() }, users: Mutex::default() }
    }

    fn users(&self) -> MutexGuard<'_, HomeUsers> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Path of `session`'s own home. Creates its parent directory if necessary. Blocks.
    ///
    /// # Errors
    /// [`Error::System`].
    pub(crate) fn path(&self, session: &SessionId) -> Result<PathBuf> {
        // The prefix matters: an id may be `..`.
        Ok(self.directory()?.join(format!("s-{session}")))
    }

    /// Directory of all homes. Blocks.
    pub(crate) fn directory(&self) -> Result<PathBuf> {
        match &self.root {
            HomesRoot::Persistent(directory) => Ok(directory.clone()),
            HomesRoot::Temporary { parent, made } => {
                let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(directory) = made.as_ref() {
                    return Ok(directory.path().to_owned());
                }
                let directory = TemporaryRoot::make(parent)
                    .map_err(|error| system("making a directory for homes in", parent, error))?;
                Ok(made.insert(directory).path().to_owned())
            }
        }
    }

    /// Creates `session`'s own home. Blocks.
    ///
    /// # Errors
    /// [`Error::DuplicateSession`] if an earlier session with that id has left one: delete that session first.
    /// [`Error::System`].
    pub(crate) fn make(self: &Arc<Self>, session: &SessionId) -> Result<HomeTenancy> {
        let path = self.path(session)?;
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => self.share(&path, session),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(Error::DuplicateSession { session: session.clone(), status: SessionStatus::Ended })
            }
            Err(error) => Err(system("making the home", &path, error)),
        }
    }

    /// Files with keys in a home in which a session runs, relative to it.
    pub(crate) fn keys(&self, home: &Path) -> BTreeSet<PathBuf> {
        self.users().used.get(home).map(|used| used.keys.clone()).unwrap_or_default()
    }

    /// Adds `session` to the users of this home. Blocks.
    ///
    /// # Errors
    /// [`Error::System`] if the home does not exist, or is being removed.
    pub(crate) fn share(self: &Arc<Self>, home: &Path, session: &SessionId) -> Result<HomeTenancy> {
        let mut users = self.users();
        if users.removing.contains(home) {
            let error = io::Error::new(io::ErrorKind::NotFound, "it is being removed");
            return Err(system("going on in the home", home, error));
        }
        home.symlink_metadata().map_err(|error| system("going on in the home", home, error))?;
        let number = users.add(home, session);
        let stays = Arc::new(AtomicBool::new(false));
        users.used.entry(home.to_owned()).or_default().holds.insert(number, stays.clone());
        let (path, session) = (home.to_owned(), session.clone());
        Ok(HomeTenancy {
            homes: self.clone(),
            path,
            session,
            number,
            is_foreign: false,
            fresh: Mutex::new(true),
            is_retained: stays,
        })
    }

    /// Shares the home of another manager: unless `session` keeps it, it stays that manager's. Blocks.
    ///
    /// # Errors
    /// As [`SessionHomes::share`].
    pub(crate) fn borrow(self: &Arc<Self>, home: &Path, session: &SessionId) -> Result<HomeTenancy> {
        let mut tenancy = self.share(home, session)?;
        tenancy.is_foreign = true;
        Ok(tenancy)
    }

    /// Removes `session` from the users of its home; the last user's removal removes the home. Returns true if there
    /// was a home. Blocks.
    ///
    /// # Errors
    /// [`Error::System`]; the session has the home still.
    pub(crate) fn delete(&self, session: &SessionId) -> Result<bool> {
        let own = self.path(session)?;
        let mut users = self.users();
        let has = |holds: &BTreeSet<(SessionId, u64)>| holds.iter().any(|(holder, _)| holder == session);
        let had: Vec<_> = users.holds.iter().filter(|(_, holds)| has(holds)).map(|(home, _)| home.clone()).collect();
        let mut unused: Vec<_> =
            had.iter().filter(|home| users.release(home, |holder, _| holder == session)).cloned().collect();
        // The session may have had a home under an earlier manager.
        if had.is_empty() && !users.holds.contains_key(&own) && users.removing.insert(own.clone()) {
            unused.push(own);
        }
        // Unlocked first: homes may be large, and others must not wait for their removal.
        drop(users);
        let mut there = !had.is_empty();
        for home in unused {
            there |= home.symlink_metadata().is_ok();
            self.remove(&home, session)?;
        }
        Ok(there)
    }

    /// Removes a home that is marked as going.
    fn remove(&self, home: &Path, session: &SessionId) -> Result<()> {
        let removed = files::remove(home);
        let mut users = self.users();
        users.removing.remove(home);
        removed.map_err(|error| {
            users.add(home, session);
            system("removing the home", home, error)
        })
    }

    /// Removes temporary homes, and the keys from the other ones. No session runs any more, except those that outlive
    /// this manager. Blocks.
    pub(crate) fn close(&self) {
        let used = std::mem::take(&mut self.users().used);
        let stays = |used: &HomeInUse| used.holds.values().any(|stays| stays.load(Ordering::Relaxed));
        for (home, HomeInUse { keys, .. }) in used.into_iter().filter(|(_, used)| !stays(used)) {
            remove_keys(&home, &keys);
        }
        let HomesRoot::Temporary { made, .. } = &self.root else { return };
        let Some(directory) = made.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let path = directory.path().to_owned();
        if let Err(error) = directory.remove() {
            tracing::warn!(?path, %error, "failed to remove the sessions' homes");
        }
    }
}

impl Drop for SessionHomes {
    fn drop(&mut self) {
        self.close();
    }
}

/// A session's hold on its home while it starts. A session that does not start gives it up.
#[derive(Debug)]
pub(crate) struct HomeTenancy {
    homes: Arc<SessionHomes>,
    path: PathBuf,
    session: SessionId,
    number: u64,
    /// True if another manager may have the home too: discarding then never removes it.
    is_foreign: bool,
    fresh: Mutex<bool>,
    /// True if dropping this does not give the home up.
    is_retained: Arc<AtomicBool>,
}

impl HomeTenancy {
    /// Path of the home.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the agent's files to the home; `keys` names those that hold a key. Blocks.
    ///
    /// # Errors
    /// [`Error::System`], which omits the contents.
    pub(crate) fn write(&self, files: &[ProvisionFile], keys: &[PathBuf]) -> Result<()> {
        self.add_keys(keys);
        write(&self.path, files)
    }

    /// Copies parts of the user's home, beside the files that were written. Blocks.
    ///
    /// # Errors
    /// As [`HomeCopy::copy`].
    pub(crate) fn copy(&self, copy: &HomeCopy, is_fresh: bool, written: &[ProvisionFile]) -> Result<()> {
        let written: Vec<_> = written.iter().map(|file| file.path.as_path()).collect();
        copy.copy(&self.path, is_fresh, &written)
    }

    /// Records files of the home that hold a key.
    pub(crate) fn add_keys(&self, keys: &[PathBuf]) {
        if let Some(used) = self.homes.users().used.get_mut(&self.path) {
            used.keys.extend(keys.iter().cloned());
        }
    }

    /// Ends the session's use of the home: the keys are removed, unless another session runs there. Blocks.
    pub(crate) fn release_keys(&self) {
        let mut users = self.homes.users();
        let Some(used) = users.used.get_mut(&self.path) else { return };
        if used.holds.remove(&self.number).is_some()
            && used.holds.is_empty()
            && let Some(HomeInUse { keys, .. }) = users.used.remove(&self.path)
        {
            // Locked throughout: a session about to resume here waits for the removal, and then writes its own keys.
            remove_keys(&self.path, &keys);
        }
    }

    /// Keeps home and keys when this is dropped: the session may outlive this manager. Only an owner that knows of the
    /// session's end gives the home up. Takes no lock: others have it while they work with files.
    pub(crate) fn persist(&self) {
        self.is_retained.store(true, Ordering::Relaxed);
    }

    /// Keeps the home until the session is deleted, since the session has started.
    pub(crate) fn retain(&self) {
        *self.fresh.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// Gives the home up, unless it is kept; it is removed if nobody else has it. Blocks.
    pub(crate) fn discard(&self) {
        self.release_keys();
        let mut fresh = self.fresh.lock().unwrap_or_else(PoisonError::into_inner);
        let is_mine = |session: &SessionId, number| *session == self.session && number == self.number;
        if !std::mem::take(&mut *fresh) || !self.homes.users().release(&self.path, is_mine) {
            return;
        }
        if self.is_foreign {
            self.homes.users().removing.remove(&self.path);
        } else if let Err(error) = self.homes.remove(&self.path, &self.session) {
            tracing::warn!(path = ?self.path, %error, "failed to remove the home of a session that did not start");
        }
    }
}

impl Drop for HomeTenancy {
    /// Discards a home that no agent got, or whose owner was dropped.
    fn drop(&mut self) {
        if !self.is_retained.load(Ordering::Relaxed) {
            self.discard();
        }
    }
}

/// Removes files with keys from `home`. Blocks.
pub(crate) fn remove_keys(home: &Path, keys: &BTreeSet<PathBuf>) {
    for path in keys {
        let removed = files::open(home).and_then(|root| files::unlink(&root, path));
        // The home itself may have been deleted meanwhile.
        if let Err(error) = removed
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(?home, ?path, %error, "failed to remove a key from the home of an ended session");
        }
    }
}

fn write(home: &Path, files: &[ProvisionFile]) -> Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    let root = files::open(home).map_err(|error| system("opening the home", home, error))?;
    for file in files {
        files::write(&root, &file.path, file.contents.expose().as_bytes())
            .map_err(|error| system("writing", &home.join(&file.path), error))?;
    }
    Ok(())
}

/// Path of that home in `directory`: the state directory may have been moved, or have another path.
fn within(directory: &Path, home: &Path) -> Option<PathBuf> {
    Some(directory.join(home.file_name()?))
}

fn system(doing: &str, path: &Path, error: io::Error) -> Error {
    Error::system(format!("{doing} {}", path.display()), error)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    fn session(id: &str) -> SessionId {
        id.parse().expect("a valid id")
    }

    fn kept() -> (TempDir, Arc<SessionHomes>) {
        let scratch = tempfile::tempdir().expect("a directory");
        let homes = Arc::new(SessionHomes::persistent(scratch.path().to_owned(), []));
        (scratch, homes)
    }

    #[test]
    fn a_home_lives_as_long_as_its_session_is_not_deleted() {
        let (_scratch, homes) = kept();
        let id = session("...");
        let path = homes.path(&id).expect("a path");
        assert!(path.ends_with("s-..."), "{path:?}");
        homes.make(&id).expect("made").discard();
        assert!(!path.exists(), "the session did not start");
        drop(homes.make(&id).expect("made"));
        assert!(!path.exists(), "nor did this one");
        homes.make(&id).expect("made").retain();
        write(&path, &[ProvisionFile { path: "a/b".into(), contents: "x".to_owned().into() }]).expect("written");
        assert!(path.join("a/b").exists());
        assert!(matches!(homes.make(&id), Err(Error::DuplicateSession { .. })));
        // Another manager with the same directory knows nothing of it.
        let later = SessionHomes::persistent(homes.directory().expect("there"), []);
        assert!(later.delete(&id).expect("deleted"));
        assert!(!path.exists());
        assert!(!later.delete(&id).expect("nothing to delete"));
    }

    #[test]
    fn a_shared_home_goes_with_the_last_that_has_it() {
        let (_scratch, homes) = kept();
        let (first, second) = (session("first"), session("second"));
        homes.make(&first).expect("made").retain();
        let path = homes.path(&first).expect("a path");
        homes.share(&path, &second).expect("there").retain();
        // One that did not start has no say.
        homes.share(&path, &session("third")).expect("there").discard();
        assert!(homes.delete(&first).expect("deleted"));
        assert!(path.exists());
        assert!(homes.delete(&second).expect("deleted"));
        assert!(!path.exists() && homes.users().holds.is_empty() && homes.users().removing.is_empty());
        assert!(homes.share(&path, &second).is_err(), "it is gone");
    }

    #[test]
    fn a_shared_home_goes_with_the_last_of_another_manager_s_too() {
        let (_scratch, homes) = kept();
        let (first, second, other) = (session("first"), session("second"), session("other"));
        homes.make(&first).expect("made").retain();
        homes.make(&other).expect("made").retain();
        let path = homes.path(&first).expect("a path");
        // By another path to the same directory, and what is no home.
        let named = Path::new("/elsewhere/homes").join(path.file_name().expect("named"));
        for file in ["key", "other"] {
            fs::write(path.join(file), "x").expect("written");
        }
        let recorded = |session: &SessionId, home: &Path| {
            let keys = vec!["key".into(), "../other".into()];
            RecordedHome { session: session.clone(), home: home.to_owned(), keys }
        };
        let recorded = [recorded(&first, &path), recorded(&second, &named), recorded(&other, Path::new("/.."))];
        let later = SessionHomes::persistent(homes.directory().expect("there"), recorded);
        assert!(!path.join("key").exists() && path.join("other").exists());
        assert!(later.delete(&first).expect("deleted"));
        assert!(path.exists(), "the second has it still");
        assert!(later.delete(&second).expect("deleted"));
        assert!(!path.exists());
        // Without a home in its record it has the one that is called after it.
        assert!(later.delete(&other).expect("deleted"));
        assert!(!homes.path(&other).expect("a path").exists());
    }

    #[test]
    fn what_is_another_manager_s_goes_only_once_it_is_kept() {
        let (_theirs, theirs) = kept();
        let (_ours, ours) = kept();
        let id = session("s-1");
        theirs.make(&id).expect("made").retain();
        let path = theirs.path(&id).expect("a path");
        drop(ours.borrow(&path, &id).expect("there"));
        assert!(path.exists() && ours.users().holds.is_empty() && ours.users().removing.is_empty());
        assert!(!ours.delete(&id).expect("nothing to delete"));
        assert!(path.exists());
        ours.borrow(&path, &id).expect("there").retain();
        assert!(ours.delete(&id).expect("deleted"));
        assert!(!path.exists());
    }

    #[test]
    fn a_start_that_is_refused_gives_back_only_what_it_took() {
        let (_scratch, homes) = kept();
        let (living, ended) = (session("living"), session("ended"));
        homes.make(&living).expect("made").retain();
        homes.make(&ended).expect("made").retain();
        let (own, other) = (homes.path(&living).expect("a path"), homes.path(&ended).expect("a path"));
        // Under an id that is used, in its own home and in another.
        homes.share(&own, &living).expect("there").discard();
        homes.share(&other, &living).expect("there").discard();
        assert!(own.exists() && other.exists());
        assert!(homes.delete(&living).expect("deleted"));
        assert!(!own.exists() && other.exists());
        // What somebody else still has does not go with the session that made it.
        homes.share(&other, &living).expect("there").retain();
        assert!(homes.delete(&ended).expect("deleted"));
        assert!(!homes.delete(&ended).expect("it has none any more"));
        assert!(other.exists());
    }

    #[test]
    fn a_key_goes_with_the_last_session_that_runs() {
        let (_scratch, homes) = kept();
        let (first, second) = (session("first"), session("second"));
        let file = |path: &str| ProvisionFile { path: path.into(), contents: "x".to_owned().into() };
        let tenancy = homes.make(&first).expect("made");
        let path = homes.path(&first).expect("a path");
        tenancy.write(&[file("a/key"), file("settings")], &["a/key".into(), "unwritten".into()]).expect("written");
        tenancy.retain();
        let other = homes.share(&path, &second).expect("there");
        other.write(&[file("key")], &["key".into()]).expect("written");
        tenancy.release_keys();
        assert!(path.join("a/key").exists() && path.join("key").exists(), "the second runs");
        other.retain();
        drop(other);
        assert!(!path.join("a/key").exists() && !path.join("key").exists() && path.join("settings").exists());
        // Of one that goes on there; the first has no say in it any more.
        let again = homes.share(&path, &second).expect("there");
        again.write(&[file("a/key")], &["a/key".into()]).expect("written");
        drop(tenancy);
        assert!(path.join("a/key").exists());
        again.retain();
        homes.close();
        assert!(!path.join("a/key").exists() && homes.users().used.is_empty());
    }

    #[test]
    fn the_keys_of_a_session_that_may_outlive_the_manager_go_with_it_alone() {
        let (_scratch, homes) = kept();
        let (first, second) = (session("first"), session("second"));
        let key = [ProvisionFile { path: "key".into(), contents: "x".to_owned().into() }];
        let staying = homes.make(&first).expect("made");
        let path = homes.path(&first).expect("a path");
        staying.write(&key, &["key".into()]).expect("written");
        staying.persist();
        staying.retain();
        let other = homes.share(&path, &second).expect("there");
        other.write(&key, &["key".into()]).expect("written");
        other.release_keys();
        assert!(path.join("key").exists(), "the first runs");
        drop(other);
        staying.release_keys();
        assert!(!path.join("key").exists() && homes.users().used.is_empty());
        // The manager goes before it.
        let again = homes.share(&path, &first).expect("there");
        again.write(&key, &["key".into()]).expect("written");
        again.persist();
        homes.close();
        drop(again);
        assert!(path.join("key").exists());
    }

    #[test]
    fn the_home_of_a_session_that_may_live_on_goes_only_when_it_is_said_to_be_over() {
        let (_scratch, homes) = kept();
        let path = homes.path(&session("first")).expect("a path");
        let tenancy = homes.make(&session("first")).expect("made");
        tenancy.persist();
        // Its host goes before the agent is ready.
        drop(tenancy);
        assert!(path.exists());
        let path = homes.path(&session("second")).expect("a path");
        let tenancy = homes.make(&session("second")).expect("made");
        tenancy.persist();
        tenancy.discard();
        assert!(!path.exists(), "it did not start");
    }

    #[test]
    fn homes_that_are_not_kept_go_with_the_manager() {
        let scratch = tempfile::tempdir().expect("a directory");
        let homes = Arc::new(SessionHomes::temporary(scratch.path().to_owned()));
        assert_eq!(fs::read_dir(scratch.path()).expect("listed").count(), 0, "made when it is needed");
        homes.make(&session("s-1")).expect("made").retain();
        assert!(homes.path(&session("s-1")).expect("a path").exists());
        drop(homes);
        assert_eq!(fs::read_dir(scratch.path()).expect("listed").count(), 0);
    }

    #[test]
    fn an_error_names_the_file_and_not_what_is_in_it() {
        let (_scratch, homes) = kept();
        let id = session("s-1");
        homes.make(&id).expect("made").retain();
        let path = homes.path(&id).expect("a path");
        fs::write(path.join("file"), "").expect("written");
        let files = [ProvisionFile { path: "file/settings".into(), contents: "hunter2".to_owned().into() }];
        let error = write(&path, &files).expect_err("a file is no directory").to_string();
        assert!(error.contains("file/settings") && !error.contains("hunter2"), "{error}");
    }
}
