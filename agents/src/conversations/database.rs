//! The single database in which an agent keeps all its conversations. While it is broken the agent does not start at all, not even
//! for a new conversation. A start that allows a new conversation therefore renames the database.

use std::{
    io,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, RenameFlags},
    io::Errno,
};

use super::{ConversationError, DamagedConversation, ResumedConversation};
use crate::directory_files as files;

/// SQLite's messages for a file that is no database, and for a damaged one.
const BROKEN: [&str; 2] = ["file is not a database", "database disk image is malformed"];
/// Suffixes of a database's files: SQLite finds the others by the name of the first. The main file is renamed last,
/// since an agent that finds it gone creates a new one.
const FILES: [&str; 3] = ["-wal", "-shm", ""];

impl ResumedConversation {
    /// Returns the damage if `last_words`, those of an agent that did not start, say that its database is broken.
    pub fn database_damage(&self, last_words: &str) -> Option<DamagedConversation> {
        let message = BROKEN.iter().find(|message| last_words.contains(**message))?;
        Some(self.damaged("database", self.location.database()?, &format!("broken: {message}")))
    }

    /// Renames the database's files, and returns the new path.
    ///
    /// # Errors
    /// The system's. The database may have lost the files beside it then.
    pub fn set_database_aside(&self) -> Result<PathBuf, ConversationError> {
        let path = self.location.database().unwrap_or(Path::new(""));
        set_aside(path).map_err(|error| ConversationError {
            operation: format!("putting the broken database {} aside", path.display()),
            source: error,
        })
    }
}

fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let (directory, below) = files::nearest(path)?;
    let name = below.to_string_lossy();
    let is_free =
        |name: &String| matches!(rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT));
    let aside = (1..10_000).map(|n| format!("{name}.broken-{n}")).find(is_free);
    let aside = aside.ok_or_else(|| io::Error::other("there are too many beside it"))?;
    for file in FILES {
        let [from, to] = [&*name, &aside].map(|name| format!("{name}{file}"));
        match rustix::fs::renameat_with(&directory, from, &directory, to, RenameFlags::NOREPLACE) {
            Err(Errno::NOENT) if !file.is_empty() => {}
            renamed => renamed?,
        }
    }
    Ok(path.with_file_name(aside))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, os::unix::fs::symlink};

    use ipc_protocol::NativeResume;

    use super::*;
    use crate::{AgentSpec, conversations::ConversationLocation};

    fn of(family: &str) -> ResumedConversation {
        let mut spec = AgentSpec::new("x", "acp", &["x"]);
        spec.protocol_config = serde_json::json!({ "config": family });
        let resume = NativeResume { id: Some("n-1".into()), fork: false };
        let env = [("HOME", "/nowhere")].into_iter().collect();
        ResumedConversation::new(&spec, &resume, "/w", ConversationLocation::new(&spec, &env, Path::new("/w")))
    }

    /// Name and contents of what is in a directory.
    fn all(directory: &Path) -> BTreeMap<String, String> {
        let entries = fs::read_dir(directory).expect("listed").map(|entry| entry.expect("an entry").path());
        let read = |path: PathBuf| {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            (name, fs::read_to_string(&path).expect("read"))
        };
        entries.map(read).collect()
    }

    #[test]
    fn only_what_says_so_of_the_database_is_about_it() {
        let database = of("opencode");
        let damaged = database.database_damage("exit code 1; its last words: file is not a database").expect("broken");
        assert_eq!((damaged.agent.as_str(), damaged.id.as_str()), ("x", "n-1"));
        let path = "/nowhere/.local/share/opencode/opencode.db";
        assert_eq!(damaged.reason, format!("its database {path} is broken: file is not a database"));
        assert!(database.database_damage("database disk image is malformed").is_some());
        assert!(database.database_damage("exit code 1 before it was ready").is_none());
        assert!(of("codex").database_damage("file is not a database").is_none(), "it has none");
    }

    #[test]
    fn it_is_kept_with_what_belongs_to_it_under_a_name_of_its_own() {
        let scratch = tempfile::tempdir().expect("a directory");
        let directory = fs::canonicalize(scratch.path()).expect("there");
        let write = |name: &str, contents: &str| fs::write(directory.join(name), contents).expect("written");
        let database = directory.join("opencode.db");
        for (n, file) in [(1, "one"), (2, "two")] {
            write("opencode.db", file);
            write("opencode.db-wal", &format!("{file} wal"));
            assert_eq!(set_aside(&database).expect("done"), directory.join(format!("opencode.db.broken-{n}")));
        }
        let expected = [
            ("opencode.db.broken-1", "one"),
            ("opencode.db.broken-1-wal", "one wal"),
            ("opencode.db.broken-2", "two"),
            ("opencode.db.broken-2-wal", "two wal"),
        ];
        let expected = expected.map(|(name, contents)| (name.to_owned(), contents.to_owned()));
        assert_eq!(all(&directory), BTreeMap::from(expected.clone()));
        assert!(set_aside(&database).is_err(), "there is none");
        symlink(&directory, directory.join("link")).expect("linked");
        write("opencode.db", "three");
        assert!(set_aside(&directory.join("link/opencode.db")).is_err(), "through a link");
        fs::remove_file(directory.join("link")).expect("removed");
        fs::remove_file(directory.join("opencode.db")).expect("removed");
        assert_eq!(all(&directory), BTreeMap::from(expected));
    }
}
