//! Backups of conversations for agents that may destroy what they fail to load: saved before the start, restored after
//! it.
//!
//! The catalog row of such an agent names the directory of its conversations: `protocol_config.backupBeforeLoad`, with
//! `{home}` and `{cwd}` filled in.
//!
//! ```text
//! PLACE/backup-ID/index   original paths of the copies, for the next manager if this one is killed
//! PLACE/backup-ID/0       a copy, and so on
//! ```

use std::{
    fs::{self, File},
    io::{self, Read},
    os::{fd::OwnedFd, unix::fs::DirBuilderExt},
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use ipc_protocol::SessionId;
use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use super::{ConversationError, ResumedConversation, search};
use crate::{AgentSpec, directory_files as files};

/// Prefix of the names of saved conversations.
pub const BACKUP_PREFIX: &str = "backup-";
/// Maximum number of files saved where no conversation is named: the newest ones.
const NEWEST: usize = 16;
/// Largest file that is saved, in bytes.
const LARGEST: u64 = 64 * 1024 * 1024;
/// Suffix for a file that a restored one replaces. No agent looks for it.
const REPLACED: &str = ".replaced";
/// Name of the file with the copies' original paths.
const INDEX: &str = "index";
/// Upper bound of an index, in bytes; indexes are far shorter.
const LONGEST: u64 = 128 * 1024 * 1024;

/// Saved files: the original path and the copy of each.
#[derive(Debug)]
pub struct ConversationBackup {
    directory: PathBuf,
    /// True if the files are all of the conversation to be loaded: nobody else has reason to write to them.
    is_named: bool,
    /// `None` once the copies have been restored or dropped.
    copies: Mutex<Option<Vec<(PathBuf, PathBuf)>>>,
    /// True if the copies stay when this is dropped, since the agent may live on.
    stays: AtomicBool,
}

/// BackupIndex of the copies on disk. A copy's name is the number of its place.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct BackupIndex {
    is_named: bool,
    /// Original paths, free of symbolic links.
    places: Vec<PathBuf>,
}

/// Returns the directory to back up before an agent of `spec` loads a conversation, if its row names one.
pub(super) fn directory(spec: &AgentSpec, home: Option<&str>, cwd: &str) -> Option<PathBuf> {
    let template = spec.protocol_config.get("backupBeforeLoad")?.as_str()?;
    Some(template.replace("{home}", home.unwrap_or_default()).replace("{cwd}", cwd).into())
}

impl ResumedConversation {
    /// Copies the conversation's files to a directory of the session's in `place`, if its agent may destroy them. Returns `None` if
    /// there are none.
    ///
    /// # Errors
    /// A file cannot be saved: the agent must not start.
    pub fn back_up(&self, place: &Path, session: &SessionId) -> Result<Option<ConversationBackup>, ConversationError> {
        let Some(source) = &self.backed_up else { return Ok(None) };
        save(source, self.id.as_deref(), place, session).map_err(|error| ConversationError {
            operation: format!("saving the conversations in {} before one is loaded", source.display()),
            source: error,
        })
    }
}

fn save(source: &Path, id: Option<&str>, place: &Path, session: &SessionId) -> io::Result<Option<ConversationBackup>> {
    let places = originals(source, id)?;
    if places.is_empty() {
        return Ok(None);
    }
    let directory = place.join(format!("{BACKUP_PREFIX}{session}"));
    // An earlier start may have left a backup.
    settle(&directory)?;
    fs::DirBuilder::new().mode(0o700).create(&directory)?;
    let root = files::open(&directory)?;
    // From here on the directory is removed again, whatever happens.
    let is_named = id.is_some();
    let backup = ConversationBackup { directory, is_named, copies: Mutex::new(Some(Vec::new())), stays: false.into() };
    let index = BackupIndex { is_named, places };
    files::write(&root, Path::new(INDEX), &serde_json::to_vec(&index)?)?;
    let mut copies = Vec::new();
    for (n, path) in index.places.into_iter().enumerate() {
        let Some(contents) = search::present(search::read(&path, LARGEST + 1))? else { continue };
        if contents.len() as u64 > LARGEST {
            return Err(io::Error::other(format!("{} has more than {LARGEST} bytes", path.display())));
        }
        let name = n.to_string();
        files::write(&root, Path::new(&name), &contents)?;
        let copy = backup.directory.join(name);
        copies.push((path, copy));
    }
    *backup.copies() = Some(copies);
    Ok(Some(backup))
}

/// Finds the conversation's files in `source`, or the newest ones.
fn originals(source: &Path, id: Option<&str>) -> io::Result<Vec<PathBuf>> {
    // The user may have linked the directory elsewhere; below it no link is followed, and none on restoring.
    let Some(source) = search::present(fs::canonicalize(source))? else { return Ok(Vec::new()) };
    let files = search::newest_first(&source)?;
    let Some(id) = id else { return Ok(files.take(NEWEST).collect()) };
    let prefix: String = id.chars().take(search::PREFIX).collect();
    let is_named = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().contains(&prefix));
    let mut found = Vec::new();
    for path in files {
        if is_named(&path) || search::head_contains(&path, id)? {
            found.push(path);
        }
    }
    Ok(found)
}

impl ConversationBackup {
    /// Returns the backup of a session that an earlier manager started, if it left one.
    pub fn left(place: &Path, session: &SessionId) -> Option<Self> {
        let directory = place.join(format!("{BACKUP_PREFIX}{session}"));
        let read = Self::read(&directory);
        read.inspect_err(|error| tracing::error!(?directory, %error, "failed to read a saved conversation")).ok()?
    }

    /// Reads a backup by its index. `None` if there is none.
    fn read(directory: &Path) -> io::Result<Option<Self>> {
        let Some(root) = search::present(files::open(directory))? else { return Ok(None) };
        let index = match search::present(search::read(&directory.join(INDEX), LONGEST))? {
            Some(text) => serde_json::from_slice(&text).map_err(io::Error::other),
            None => Err(io::Error::other("it does not say whose place a copy has")),
        };
        let index: BackupIndex = match index {
            Ok(index) => index,
            // The manager was killed before it made a copy.
            Err(_) if matches!(rustix::fs::statat(&root, "0", AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT)) => {
                BackupIndex { is_named: false, places: Vec::new() }
            }
            Err(error) => return Err(error),
        };
        let copy = |(n, path): (usize, PathBuf)| (path, directory.join(n.to_string()));
        let copies = index.places.into_iter().enumerate().map(copy).collect();
        let (directory, copies) = (directory.to_owned(), Mutex::new(Some(copies)));
        Ok(Some(Self { directory, is_named: index.is_named, copies, stays: true.into() }))
    }

    /// Keeps the copies if the start's outcome stays unknown: the agent then outlives this manager, and the next one
    /// decides.
    pub fn stay(&self) {
        self.stays.store(true, Ordering::Relaxed);
    }

    /// Locked while copies are restored or dropped: a second caller finds them gone.
    fn copies(&self) -> MutexGuard<'_, Option<Vec<(PathBuf, PathBuf)>>> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Restores files that are missing or empty, and for a named conversation also those that have become shorter; the
    /// agent's version of these is kept beside the restored file. Other files stay untouched. Only the first call has
    /// an effect.
    pub fn restore(&self) {
        let mut open = self.copies();
        let Some(copies) = open.take() else { return };
        let mut failed = false;
        for (path, copy) in copies {
            match restore(&path, &copy, self.is_named) {
                Ok(true) => {
                    tracing::warn!(?path, "restored a conversation that the agent destroyed on loading it")
                }
                Ok(false) => {}
                Err(error) => {
                    failed = true;
                    tracing::error!(?path, ?copy, %error, "failed to restore a conversation that the agent destroyed");
                }
            }
        }
        if !failed {
            self.remove();
        }
    }

    /// Drops the copies, since nothing has to be restored.
    pub fn discard(&self) {
        let mut open = self.copies();
        if open.take().is_some() {
            self.remove();
        }
    }

    fn remove(&self) {
        if let Err(error) = files::remove(&self.directory) {
            tracing::warn!(directory = ?self.directory, %error, "failed to remove the copies of conversations");
        }
    }
}

impl Drop for ConversationBackup {
    /// Restores the files of a start that was refused, or whose result nobody waited for.
    fn drop(&mut self) {
        if !self.stays.load(Ordering::Relaxed) {
            self.restore();
        }
    }
}

/// Restores the backups that killed managers left in `place`, except those of live sessions.
pub fn recover_backups(place: &Path, lives: impl Fn(&str) -> bool) {
    let entries = match fs::read_dir(place) {
        Ok(entries) => entries,
        Err(error) => return tracing::warn!(?place, %error, "failed to look for saved conversations"),
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(session) = name.to_str().and_then(|name| name.strip_prefix(BACKUP_PREFIX)) else { continue };
        if !lives(session)
            && let Err(error) = settle(&entry.path())
        {
            tracing::error!(%session, %error, "failed to restore a conversation that its agent may have destroyed");
        }
    }
}

/// Restores the backup in `directory`, if there is one.
///
/// # Errors
/// An error if the backup is there still.
fn settle(directory: &Path) -> io::Result<()> {
    let left = |error| io::Error::other(format!("there are copies in {}: {error}", directory.display()));
    if let Some(backup) = ConversationBackup::read(directory).map_err(left)? {
        backup.restore();
        if directory.symlink_metadata().is_ok() {
            return Err(left(io::Error::other("bring them back, then remove it")));
        }
    }
    Ok(())
}

/// Restores a file that is missing, empty or, if `is_named`, shorter than its copy. Returns true if it did.
fn restore(path: &Path, copy: &Path, is_named: bool) -> io::Result<bool> {
    // A manager killed while saving had not started the agent yet.
    let Some(contents) = search::present(search::read(copy, LARGEST))? else { return Ok(false) };
    let (directory, below) = files::nearest(path)?;
    let there = match rustix::fs::statat(&directory, &below, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) => Some(there),
        // The directories on the way may be missing too.
        Err(Errno::NOENT) => None,
        Err(error) => return Err(error.into()),
    };
    let mut left = Vec::new();
    if let Some(there) = there {
        let len = u64::try_from(there.st_size).unwrap_or_default();
        if FileType::from_raw_mode(there.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("there is something else in its place"));
        }
        // The file may be the conversation of another agent that changed it since.
        if len >= contents.len() as u64 || (len > 0 && !is_named) {
            return Ok(false);
        }
        left = read_at(&directory, &below)?;
    }
    if !left.is_empty() {
        let mut beside = below.clone().into_os_string();
        beside.push(REPLACED);
        files::write(&directory, Path::new(&beside), &left)?;
    }
    files::write(&directory, &below, &contents)?;
    Ok(true)
}

fn read_at(directory: &OwnedFd, name: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(directory, name, flags, Mode::empty())?);
    let mut contents = Vec::new();
    file.take(LARGEST).read_to_end(&mut contents)?;
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::symlink, sync::Barrier, thread};

    use super::*;

    const ID: &str = "0f1e2d3c-aaaa-bbbb-cccc-000000000000";

    struct Case {
        scratch: tempfile::TempDir,
        chats: PathBuf,
        place: PathBuf,
    }

    impl Case {
        fn new() -> Self {
            let scratch = tempfile::tempdir().expect("a directory");
            let (chats, place) = (scratch.path().join("tmp/hash/chats"), scratch.path().join("place"));
            fs::create_dir_all(&chats).expect("made");
            fs::create_dir(&place).expect("made");
            fs::write(chats.join("session-0f1e2d3c.json"), "one").expect("written");
            fs::write(chats.join("by-content.json"), format!("{{\"sessionId\":\"{ID}\"}}")).expect("written");
            fs::write(chats.join("session-other.json"), "other").expect("written");
            symlink("/etc/passwd", chats.join("link-0f1e2d3c")).expect("linked");
            Self { scratch, chats, place }
        }

        fn save_as(&self, session: &str, id: Option<&str>) -> io::Result<Option<ConversationBackup>> {
            save(&self.scratch.path().join("tmp"), id, &self.place, &session.parse().expect("a valid id"))
        }

        fn save(&self, id: Option<&str>) -> Option<ConversationBackup> {
            self.save_as("s-1", id).expect("saved")
        }

        fn read(&self, name: &str) -> Option<String> {
            fs::read_to_string(self.chats.join(name)).ok()
        }

        fn is_tidy(&self) -> bool {
            fs::read_dir(&self.place).expect("listed").count() == 0
        }
    }

    #[test]
    fn what_is_destroyed_comes_back_and_what_is_there_stays() {
        let case = Case::new();
        let backup = case.save(Some(ID)).expect("something");
        fs::remove_file(case.chats.join("session-0f1e2d3c.json")).expect("removed");
        let newer = format!("{{\"sessionId\":\"{ID}\",\"more\":1}}");
        fs::write(case.chats.join("by-content.json"), &newer).expect("written");
        fs::remove_file(case.chats.join("session-other.json")).expect("removed");
        backup.restore();
        assert_eq!(case.read("session-0f1e2d3c.json").as_deref(), Some("one"));
        assert_eq!(case.read("by-content.json").as_deref(), Some(&*newer));
        assert_eq!(case.read("session-other.json"), None, "it is no file of that conversation");
        assert!(case.is_tidy());
        // With its directory, and emptied.
        let backup = case.save(None).expect("something");
        fs::remove_dir_all(case.scratch.path().join("tmp")).expect("removed");
        fs::create_dir_all(&case.chats).expect("made");
        fs::write(case.chats.join("by-content.json"), "").expect("written");
        backup.restore();
        backup.restore();
        assert_eq!(case.read("session-0f1e2d3c.json").as_deref(), Some("one"));
        assert_eq!(case.read("by-content.json").as_deref(), Some(&*newer));
        assert!(case.is_tidy());
    }

    #[test]
    fn what_is_written_anew_with_less_in_it_comes_back_where_it_was_named() {
        for id in [None, Some(ID)] {
            let case = Case::new();
            let backup = case.save(id).expect("something");
            fs::write(case.chats.join("session-0f1e2d3c.json"), "1").expect("written");
            backup.restore();
            let (there, beside) = (case.read("session-0f1e2d3c.json"), case.read("session-0f1e2d3c.json.replaced"));
            // Of the newest it is not known whose they are.
            let expected = if id.is_some() { (Some("one"), Some("1")) } else { (Some("1"), None) };
            assert_eq!((there.as_deref(), beside.as_deref()), expected);
            assert!(case.is_tidy());
        }
    }

    #[test]
    fn what_was_loaded_needs_no_copy() {
        let case = Case::new();
        let backup = case.save(Some(ID)).expect("something");
        assert!(!case.is_tidy());
        backup.discard();
        fs::remove_file(case.chats.join("session-0f1e2d3c.json")).expect("removed");
        backup.restore();
        assert!(case.is_tidy() && case.read("session-0f1e2d3c.json").is_none());
        assert!(case.save(Some("unheard-of")).is_none());
        fs::remove_dir_all(case.scratch.path().join("tmp")).expect("removed");
        assert!(case.save(None).is_none(), "nothing to save");
    }

    #[test]
    fn what_a_killed_manager_saved_is_brought_back_by_the_next_unless_its_session_lives() {
        let case = Case::new();
        let backup = case.save(Some(ID)).expect("something");
        // As if its manager had been killed.
        backup.stay();
        drop(backup);
        fs::remove_dir_all(case.scratch.path().join("tmp")).expect("removed");
        recover_backups(&case.place, |session| session == "s-1");
        assert!(case.read("session-0f1e2d3c.json").is_none() && !case.is_tidy());
        recover_backups(&case.place, |_| false);
        assert_eq!(case.read("session-0f1e2d3c.json").as_deref(), Some("one"));
        assert!(case.is_tidy());
        // Killed before there was a copy, and half-way through the first.
        let directory = case.place.join("backup-s-2");
        for file in [None, Some(INDEX)] {
            fs::create_dir(&directory).expect("made");
            file.into_iter().for_each(|file| fs::write(directory.join(file), "{\"isNam").expect("written"));
            recover_backups(&case.place, |_| false);
            assert!(case.is_tidy());
        }
        // Of a release without an index: whose it is nobody knows, and it stays.
        fs::create_dir(&directory).expect("made");
        fs::write(directory.join("0"), "two").expect("written");
        recover_backups(&case.place, |_| false);
        let refused = case.save_as("s-2", None).expect_err("it would be lost");
        assert!(refused.to_string().contains("backup-s-2"), "{refused}");
        assert_eq!(fs::read_to_string(directory.join("0")).expect("there"), "two");
    }

    #[test]
    fn the_only_copy_stays_where_it_cannot_be_brought_back() {
        let case = Case::new();
        let place = case.chats.join("session-0f1e2d3c.json");
        let backup = case.save(Some(ID)).expect("something");
        fs::remove_file(&place).expect("removed");
        fs::create_dir(&place).expect("made");
        backup.restore();
        assert!(!case.is_tidy(), "there is a directory in its place");
        fs::remove_dir(&place).expect("removed");
        recover_backups(&case.place, |_| false);
        assert_eq!(case.read("session-0f1e2d3c.json").as_deref(), Some("one"));
        assert!(case.is_tidy());
    }

    /// Whoever ends a session that did not start, and whoever waits for its start, do so at the same time.
    #[test]
    fn what_is_destroyed_is_back_for_whoever_comes_second() {
        for _ in 0..50 {
            let case = Case::new();
            let backup = case.save(Some(ID)).expect("something");
            fs::remove_file(case.chats.join("session-0f1e2d3c.json")).expect("removed");
            let together = Barrier::new(2);
            let bring_back = || {
                together.wait();
                backup.restore();
                assert_eq!(case.read("session-0f1e2d3c.json").as_deref(), Some("one"));
                assert!(case.is_tidy());
            };
            thread::scope(|threads| {
                threads.spawn(bring_back);
                threads.spawn(bring_back);
            });
        }
    }

    #[test]
    fn nothing_is_brought_back_through_a_link_that_the_agent_left() {
        let outside = tempfile::tempdir().expect("a directory");
        // There is no directory to be made on the way.
        let there = ["chats", "hash/chats"].map(|path| outside.path().join(path));
        there.iter().for_each(|path| fs::create_dir_all(path).expect("made"));
        for link in ["tmp/hash", "tmp"] {
            let case = Case::new();
            let backup = case.save(Some(ID)).expect("something");
            fs::remove_dir_all(case.scratch.path().join(link)).expect("removed");
            symlink(outside.path(), case.scratch.path().join(link)).expect("linked");
            backup.restore();
            assert!(there.iter().all(|path| fs::read_dir(path).expect("listed").count() == 0), "{link}");
            assert!(!case.is_tidy(), "the copy stays");
        }
    }

    #[test]
    fn only_rows_that_say_so_have_a_plan() {
        let mut spec = AgentSpec::new("gemini", "acp", &["gemini"]);
        let plan = |spec: &AgentSpec| directory(spec, Some("/h"), "/w");
        assert_eq!(plan(&spec), None);
        spec.protocol_config = serde_json::json!({ "backupBeforeLoad": "{home}/.gemini{cwd}" });
        assert_eq!(plan(&spec).as_deref(), Some(Path::new("/h/.gemini/w")));
    }
}
