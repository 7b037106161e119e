//! Conversations of agents that may destroy what they cannot load: saved before, brought back after.
//!
//! A catalog row whose agent does that says where its conversations are: `protocol_config.backupBeforeLoad`, a directory in
//! which `{home}` and `{cwd}` are filled in.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use agents::AgentSpec;
use ipc_protocol::{NativeResume, SessionId};

use crate::{
    Error, Result,
    homes::{files, temporary::BACKUP},
};

/// Files that are looked at.
const MOST_FILES: usize = 20_000;
/// Files that are saved where the conversation is not named: the newest.
const NEWEST: usize = 16;
/// Largest file that is saved, in bytes.
const LARGEST: u64 = 64 * 1024 * 1024;
/// How much of a file is looked at to see whose it is: the id is at the beginning.
const HEAD: u64 = 64 * 1024;
/// Directories within one another.
pub(super) const DEEPEST: usize = 16;
/// Ending of the name under which a file is kept that a saved one took the place of. No agent looks for it.
const REPLACED: &str = ".replaced";
/// Agents name files by the beginning of an id.
pub(super) const PREFIX: usize = 8;

/// What is to be saved.
#[derive(Debug)]
pub(super) struct BackupPlan {
    directory: PathBuf,
    /// The conversation; `None` for the most recent.
    id: Option<String>,
}

/// What was saved: each file's own place, and where the copy is.
#[derive(Debug)]
pub(crate) struct Backup {
    directory: PathBuf,
    /// Whether they are all of the conversation that was to be loaded: nobody else has reason to write to them.
    is_named: bool,
    /// `None` when it is settled what becomes of them.
    copies: Mutex<Option<Vec<(PathBuf, PathBuf)>>>,
}

impl BackupPlan {
    /// What is to be saved before an agent of `spec` goes on with `resume`.
    pub(super) fn of(
        spec: &AgentSpec,
        resume: Option<&NativeResume>,
        home: Option<&String>,
        cwd: &str,
    ) -> Option<Self> {
        let template = spec.protocol_config.get("backupBeforeLoad")?.as_str()?;
        let directory = template.replace("{home}", home.map_or("", String::as_str)).replace("{cwd}", cwd);
        resume.map(|resume| Self { directory: directory.into(), id: resume.id.clone() })
    }

    /// Copies the conversation's files to a directory of the session's in `place`. Nothing there is nothing to save. Blocks.
    ///
    /// # Errors
    /// [`Error::System`]: the agent must not be let near what cannot be saved.
    pub(super) fn save(&self, place: &Path, session: &SessionId) -> Result<Option<Backup>> {
        let saved = || {
            let found = self.find()?;
            if found.is_empty() {
                return Ok(None);
            }
            let directory = place.join(format!("{BACKUP}{session}"));
            // One of an attempt that was killed half-way.
            files::remove(&directory)?;
            fs::DirBuilder::new().mode(0o700).create(&directory)?;
            let root = files::open(&directory)?;
            // From here on it is removed again, whatever happens.
            let mut copies = Vec::new();
            let backup = Backup { directory, is_named: self.id.is_some(), copies: Mutex::new(Some(Vec::new())) };
            for (n, path) in found.into_iter().enumerate() {
                let Some(contents) = present(read(&path, LARGEST + 1))? else { continue };
                if contents.len() as u64 > LARGEST {
                    return Err(io::Error::other(format!("{} has more than {LARGEST} bytes", path.display())));
                }
                let name = n.to_string();
                files::write(&root, Path::new(&name), &contents)?;
                let copy = backup.directory.join(name);
                copies.push((path, copy));
            }
            *backup.copies.lock().unwrap_or_else(PoisonError::into_inner) = Some(copies);
            Ok(Some(backup))
        };
        saved().map_err(|error: io::Error| {
            Error::system(
                &format!("saving the conversations in {} before one is loaded", self.directory.display()),
                &error,
            )
        })
    }

    /// The conversation's files, or the newest ones.
    fn find(&self) -> io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        list(&self.directory, DEEPEST, &mut files)?;
        let Some(id) = &self.id else {
            files.sort_by_key(|(_, changed)| std::cmp::Reverse(*changed));
            return Ok(files.into_iter().take(NEWEST).map(|(path, _)| path).collect());
        };
        let prefix: String = id.chars().take(PREFIX).collect();
        let is_named = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().contains(&prefix));
        let mut found = Vec::new();
        for (path, _) in files {
            if is_named(&path) || says(&path, id)? {
                found.push(path);
            }
        }

        Ok(found)
    }
}

impl Backup {
    fn take(&self) -> Option<Vec<(PathBuf, PathBuf)>> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Brings back what is gone or emptied, and of a conversation that was named what has become shorter; what the agent made
    /// of that is kept beside it. The rest is not touched. Once. Blocks.
    pub(crate) fn restore(&self) {
        let Some(copies) = self.take() else { return };
        let mut failed = false;
        for (path, copy) in copies {
            match restore(&path, &copy, self.is_named) {
                Ok(true) => {
                    tracing::warn!(?path, "the agent destroyed a conversation that it could not load: restored")
                }
                Ok(false) => {}
                Err(error) => {
                    failed = true;
                    tracing::error!(?path, ?copy, %error, "a conversation that the agent destroyed cannot be restored");
                }
            }
        }
        if !failed {
            self.remove();
        }
    }

    /// Nothing has to be brought back. Blocks.
    pub(crate) fn drop_it(&self) {
        if self.take().is_some() {
            self.remove();
        }
    }

    fn remove(&self) {
        if let Err(error) = files::remove(&self.directory) {
            tracing::warn!(directory = ?self.directory, %error, "the copies of conversations stay");
        }
    }
}

impl Drop for Backup {
    /// Nobody said how the start went: it was refused, or not waited for.
    fn drop(&mut self) {
        self.restore();
    }
}

/// Whether it was gone, emptied, or, if `is_named`, shortened.
fn restore(path: &Path, copy: &Path, is_named: bool) -> io::Result<bool> {
    let contents = read(copy, LARGEST)?;
    let left = match fs::symlink_metadata(path) {
        Ok(there) if !there.is_file() || there.len() >= contents.len() as u64 => return Ok(false),
        // Who knows what another agent makes of its conversation.
        Ok(there) if there.len() > 0 && !is_named => return Ok(false),
        Ok(_) => present(read(path, LARGEST))?.unwrap_or_default(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { return Ok(false) };
    fs::create_dir_all(directory)?;
    let directory = files::open(directory)?;
    if !left.is_empty() {
        let mut beside = name.to_owned();
        beside.push(REPLACED);
        files::write(&directory, Path::new(&beside), &left)?;
    }
    files::write(&directory, Path::new(name), &contents)?;
    Ok(true)
}

/// Whether a file has this at its beginning.
pub(super) fn says(path: &Path, id: &str) -> io::Result<bool> {
    Ok(present(read(path, HEAD))?.is_some_and(|head| contains(&head, id.as_bytes())))
}

/// Appends the files below `directory` with the times of their last changes. Links are not followed.
pub(super) fn list(directory: &Path, depth: usize, out: &mut Vec<(PathBuf, SystemTime)>) -> io::Result<()> {
    let Some(depth) = depth.checked_sub(1) else { return Ok(()) };
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let Some(metadata) = present(entry.metadata())? else { continue };
        if metadata.is_dir() {
            list(&entry.path(), depth, out)?;
        } else if metadata.is_file() {
            out.push((entry.path(), metadata.modified()?));
        }
        if out.len() > MOST_FILES {
            return Err(io::Error::other(format!("there are more than {MOST_FILES} files")));
        }
    }
    Ok(())
}

/// What another agent has just removed is not there, and no reason to fail.
fn present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let mut contents = Vec::new();
    file.take(limit).read_to_end(&mut contents)?;
    Ok(contents)
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    !needle.is_empty() && haystack.windows(needle.len()).any(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

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

        fn save(&self, id: Option<&str>) -> Option<Backup> {
            let plan = BackupPlan { directory: self.scratch.path().join("tmp"), id: id.map(str::to_owned) };
            plan.save(&self.place, &"s-1".parse().expect("a valid id")).expect("saved")
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
        backup.drop_it();
        fs::remove_file(case.chats.join("session-0f1e2d3c.json")).expect("removed");
        backup.restore();
        assert!(case.is_tidy() && case.read("session-0f1e2d3c.json").is_none());
        assert!(case.save(Some("unheard-of")).is_none());
        fs::remove_dir_all(case.scratch.path().join("tmp")).expect("removed");
        assert!(case.save(None).is_none(), "nothing to save");
    }

    #[test]
    fn only_rows_that_say_so_have_a_plan() {
        let mut spec = AgentSpec::new("gemini", "acp", &["gemini"]);
        let resume = NativeResume { id: Some(ID.into()), fork: false };
        let home = "/h".to_owned();
        let plan = |spec: &AgentSpec, resume| BackupPlan::of(spec, resume, Some(&home), "/w");
        assert!(plan(&spec, Some(&resume)).is_none());
        spec.protocol_config = serde_json::json!({ "backupBeforeLoad": "{home}/.gemini{cwd}" });
        assert!(plan(&spec, None).is_none());
        assert_eq!(plan(&spec, Some(&resume)).expect("a plan").directory, Path::new("/h/.gemini/w"));
    }
}
