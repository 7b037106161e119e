//! Metadata of configuration files, to detect changes.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use agents::{ConfigDir, KeySource, StoredModel};

/// Files that [`ConfigDir`] reads besides the directory of rows.
const FILES: [&str; 5] = ["agents.toml", "agents.json", "profiles.toml", "models.toml", "prices.toml"];
/// Name of the directory of rows.
const ROWS: &str = "agents.d";

/// Metadata of each existing file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FileStamps(BTreeMap<PathBuf, FileStamp>);

#[derive(Debug, PartialEq, Eq)]
struct FileStamp {
    file: (u64, u64),
    len: u64,
    written: (i64, i64),
    /// Time of the last change of data, mode or owner.
    changed: (i64, i64),
}

impl FileStamps {
    /// Reads the metadata of a directory's files.
    pub(crate) fn of(directory: &ConfigDir) -> Self {
        let mut stamps = Self::default();
        for name in FILES {
            stamps.add(directory.path().join(name));
        }
        let rows = directory.path().join(ROWS);
        for entry in fs::read_dir(&rows).into_iter().flatten().flatten() {
            stamps.add(entry.path());
        }
        stamps
    }

    /// Adds the metadata of a file with prices outside of the directory.
    pub(crate) fn with_prices(mut self, file: Option<&Path>) -> Self {
        if let Some(file) = file {
            self.add(file.to_owned());
        }
        self
    }

    /// Adds the metadata of the key files.
    pub(crate) fn with_keys<'a>(
        mut self,
        directory: &ConfigDir,
        models: impl IntoIterator<Item = &'a StoredModel>,
    ) -> Self {
        for model in models {
            if let KeySource::File(path) = model.key_source() {
                self.add(directory.path().join(path));
            }
        }
        self
    }

    fn add(&mut self, path: PathBuf) {
        if let Some(stamp) = stamp(&path) {
            self.0.insert(path, stamp);
        }
    }
}

fn stamp(path: &Path) -> Option<FileStamp> {
    let file = fs::metadata(path).ok()?;
    Some(FileStamp {
        file: (file.dev(), file.ino()),
        len: file.len(),
        written: (file.mtime(), file.mtime_nsec()),
        changed: (file.ctime(), file.ctime_nsec()),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn any_change_is_seen() {
        let scratch = tempfile::tempdir().expect("a directory");
        let directory = ConfigDir::new(scratch.path().join("config"));
        let model: StoredModel =
            serde_json::from_value(serde_json::json!({ "provider": "openai", "key_file": "key" })).expect("parses");
        let mut last = FileStamps::of(&directory).with_keys(&directory, [&model]);
        assert_eq!(last, FileStamps::default(), "there is nothing");
        let at = |name: &str| directory.path().join(name);
        let mut changes = |what: &str| {
            let now = FileStamps::of(&directory).with_keys(&directory, [&model]);
            assert_ne!(now, last, "{what}");
            last = now;
            assert_eq!(last, FileStamps::of(&directory).with_keys(&directory, [&model]), "{what}, and nothing else");
        };
        fs::create_dir_all(at(ROWS)).expect("made");
        for name in ["agents.toml", "profiles.toml", "models.toml", "prices.toml", "agents.d/one.json", "key"] {
            fs::write(at(name), "").expect("written");
            changes(&format!("{name} is there"));
            fs::write(at(name), "x").expect("written");
            changes(&format!("{name} has text"));
        }
        fs::set_permissions(at("models.toml"), fs::Permissions::from_mode(0o400)).expect("set");
        changes("another mode");
        fs::write(at("new"), "y").expect("written");
        fs::rename(at("new"), at("profiles.toml")).expect("renamed");
        changes("another file of the same length");
        fs::remove_file(at("agents.d/one.json")).expect("removed");
        changes("one is gone");
    }
}
