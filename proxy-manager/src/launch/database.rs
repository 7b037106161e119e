//! The single database in which an agent keeps all its conversations. While it is broken the agent does not start at
//! all, not even for a new conversation. A start that allows a new conversation therefore renames the database.

use std::{
    io,
    path::{Path, PathBuf},
};

use agents::AgentSpec;
use ipc_protocol::{EnvVars, NativeResume};
use rustix::{
    fs::{AtFlags, RenameFlags},
    io::Errno,
};

use super::{family, native_file::DATABASE};
use crate::{
    error::{Error, Result},
    homes::files,
};

/// SQLite's messages for a file that is no database, and for a damaged one.
const BROKEN: [&str; 2] = ["file is not a database", "database disk image is malformed"];
/// Suffixes of a database's files: SQLite finds the others by the name of the first. The main file is renamed last,
/// since an agent that finds it gone creates a new one.
const FILES: [&str; 3] = ["-wal", "-shm", ""];
/// Variable that names OpenCode's database.
const VARIABLE: &str = "OPENCODE_DB";

/// Database with the conversation to resume.
#[derive(Debug)]
pub(crate) struct Database {
    path: PathBuf,
    agent: String,
    /// The agent's id of the conversation; `None` for the most recent one.
    id: Option<String>,
}

impl Database {
    /// Finds the database of an agent of `spec`, which keeps its conversations in `store`. `None` where each
    /// conversation has a file of its own.
    pub(super) fn of(spec: &AgentSpec, resume: &NativeResume, store: Option<&Path>, env: &EnvVars) -> Option<Self> {
        if family(spec) != "opencode" {
            return None;
        }
        let name = env.0.get(VARIABLE).filter(|name| !name.is_empty()).map_or(DATABASE, String::as_str);
        Some(Self { path: store?.join(name), agent: spec.id.clone(), id: resume.id.clone() })
    }

    /// Returns the error to report if the agent did not start because the database is broken.
    pub(crate) fn is_broken(&self, error: &Error) -> Option<Error> {
        let Error::AgentDied { reason, .. } = error else { return None };
        let said = BROKEN.iter().find(|said| reason.contains(**said))?;
        let id = self.id.clone().unwrap_or_else(|| "the most recent".to_owned());
        let reason = format!("its database {} is broken: {said}", self.path.display());
        Some(Error::NativeSessionMissing { agent: self.agent.clone(), id, reason })
    }

    /// Renames its files, and returns the new path. Blocks.
    ///
    /// # Errors
    /// [`Error::System`]. The database may have lost the files beside it then.
    pub(crate) fn put_aside(&self) -> Result<PathBuf> {
        let renamed = || {
            let (directory, below) = files::nearest(&self.path)?;
            let name = below.to_string_lossy();
            let is_free = |name: &String| {
                matches!(rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT))
            };
            let aside = (1..10_000).map(|n| format!("{name}.broken-{n}")).find(is_free);
            let aside = aside.ok_or_else(|| io::Error::other("there are too many beside it"))?;
            for file in FILES {
                let [from, to] = [&*name, &aside].map(|name| format!("{name}{file}"));
                match rustix::fs::renameat_with(&directory, from, &directory, to, RenameFlags::NOREPLACE) {
                    Err(Errno::NOENT) if !file.is_empty() => {}
                    renamed => renamed?,
                }
            }
            Ok(self.path.with_file_name(aside))
        };
        renamed().map_err(|error: io::Error| {
            Error::system(&format!("putting the broken database {} aside", self.path.display()), &error)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, os::unix::fs::symlink};

    use super::*;

    fn of(agent: &str, env: &[(&str, &str)]) -> Option<Database> {
        let mut spec = AgentSpec::new("x", "acp", &["x"]);
        spec.protocol_config = serde_json::json!({ "config": agent });
        let resume = NativeResume { id: Some("n-1".into()), fork: false };
        Database::of(&spec, &resume, Some(Path::new("/h/store")), &env.iter().copied().collect())
    }

    fn at(path: PathBuf) -> Database {
        Database { path, agent: "x".into(), id: None }
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
        assert!(of("codex", &[]).is_none());
        let database = of("opencode", &[("OPENCODE_DB", "")]).expect("it has one");
        let died = |reason: &str| {
            let session = "s-1".parse().expect("a valid id");
            database.is_broken(&Error::AgentDied { session, reason: reason.to_owned() })
        };
        match died("exit code 1; its last words: file is not a database") {
            Some(Error::NativeSessionMissing { agent, id, reason }) => {
                assert_eq!((agent.as_str(), id.as_str()), ("x", "n-1"));
                assert_eq!(reason, "its database /h/store/opencode.db is broken: file is not a database");
            }
            other => panic!("{other:?}"),
        }
        assert!(died("database disk image is malformed").is_some());
        assert!(died("exit code 1 before it was ready").is_none());
        let other = Error::Protocol { reason: "file is not a database".into() };
        assert!(database.is_broken(&other).is_none(), "it did not end");
        let named = |name| of("opencode", &[("OPENCODE_DB", name)]).expect("it has one").path;
        assert_eq!([named("mine.db"), named("/m.db")], ["/h/store/mine.db", "/m.db"].map(PathBuf::from));
    }

    #[test]
    fn it_is_kept_with_what_belongs_to_it_under_a_name_of_its_own() {
        let scratch = tempfile::tempdir().expect("a directory");
        let directory = fs::canonicalize(scratch.path()).expect("there");
        let write = |name: &str, contents: &str| fs::write(directory.join(name), contents).expect("written");
        let database = at(directory.join("opencode.db"));
        for (n, file) in [(1, "one"), (2, "two")] {
            write("opencode.db", file);
            write("opencode.db-wal", &format!("{file} wal"));
            assert_eq!(database.put_aside().expect("done"), directory.join(format!("opencode.db.broken-{n}")));
        }
        let expected = [
            ("opencode.db.broken-1", "one"),
            ("opencode.db.broken-1-wal", "one wal"),
            ("opencode.db.broken-2", "two"),
            ("opencode.db.broken-2-wal", "two wal"),
        ];
        let expected = expected.map(|(name, contents)| (name.to_owned(), contents.to_owned()));
        assert_eq!(all(&directory), BTreeMap::from(expected.clone()));
        assert!(database.put_aside().is_err(), "there is none");
        symlink(&directory, directory.join("link")).expect("linked");
        write("opencode.db", "three");
        assert!(at(directory.join("link/opencode.db")).put_aside().is_err(), "through a link");
        fs::remove_file(directory.join("link")).expect("removed");
        fs::remove_file(directory.join("opencode.db")).expect("removed");
        assert_eq!(all(&directory), BTreeMap::from(expected));
    }
}
