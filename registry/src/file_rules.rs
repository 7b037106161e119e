//! Rules of Landlock that hide files: what a program may do below which paths.
//!
//! A rule holds for everything below its path, and nothing is taken away again below it. So a directory on the way to something hidden
//! has no rule itself; each of its entries has one. What is made there later has none.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use ipc_protocol::{HiddenFiles, SandboxSpec};

use crate::sandbox::{Planner, real_parent};

/// Most entries of a directory around hidden files.
const MAX_ENTRIES: usize = 4096;

/// Rights over what is at a path and below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileAccess {
    Read,
    /// Reads and writes, and makes nothing.
    Device,
    /// All but devices.
    Write,
    All,
}

/// Rules of one domain.
#[derive(Debug, Default)]
pub struct FileRules {
    pub(crate) rules: Vec<(PathBuf, FileAccess)>,
    /// Paths that a sandbox writes.
    pub write: Vec<PathBuf>,
    /// Paths that are there and hidden.
    pub hidden: Vec<PathBuf>,
}

impl FileRules {
    /// Plans rules by which nothing but these files is hidden, by what there is now.
    pub(crate) fn hiding(files: &HiddenFiles) -> io::Result<Self> {
        let mut hidden: BTreeSet<_> = files.hidden.iter().map(|path| real_parent(Path::new(path))).collect();
        hidden.extend(files.hidden.iter().filter_map(|path| fs::canonicalize(path).ok()));
        hidden.remove(Path::new("/"));
        let mut rules = Self::default();
        rules.carve(Path::new("/"), &hidden, FileAccess::All)?;
        let shown = files.shown.iter().filter_map(|path| fs::canonicalize(path).ok());
        rules.rules.extend(shown.map(|path| (path, FileAccess::All)));
        rules.hidden.extend(hidden.into_iter().filter(|path| path.exists()));
        Ok(rules)
    }

    /// Plans the rules of a sandbox, by what there is now.
    pub(crate) fn sandbox(spec: &SandboxSpec) -> io::Result<Self> {
        Planner::new(spec)?.rules(spec.temporary.as_deref().map(Path::new))
    }

    pub(crate) fn add(&mut self, path: PathBuf, access: FileAccess) {
        self.rules.push((path, access));
    }

    /// Gives access to everything below a directory but what is hidden.
    pub(crate) fn add_around(&mut self, path: &Path, hidden: &BTreeSet<PathBuf>, access: FileAccess) -> io::Result<()> {
        if is_around(path, hidden) {
            return self.carve(path, hidden, access);
        }
        self.add(path.to_owned(), access);
        Ok(())
    }

    fn carve(&mut self, directory: &Path, hidden: &BTreeSet<PathBuf>, access: FileAccess) -> io::Result<()> {
        // Who may not list a directory could reach what is in it by its name: here it cannot.
        let Ok(entries) = fs::read_dir(directory) else { return Ok(()) };
        for (number, entry) in entries.enumerate() {
            if number >= MAX_ENTRIES {
                return Err(io::Error::other(format!(
                    "{} has more than {MAX_ENTRIES} entries, which landlock cannot tell from what is hidden there",
                    directory.display()
                )));
            }
            let Ok(entry) = entry else { continue };
            let path = entry.path();
            // A link leads to something that has a rule or not.
            if hidden.contains(&path) || !entry.file_type().is_ok_and(|kind| !kind.is_symlink()) {
                continue;
            }
            self.add_around(&path, hidden, access)?;
        }
        Ok(())
    }
}

/// Returns whether something hidden is below a path.
fn is_around(path: &Path, hidden: &BTreeSet<PathBuf>) -> bool {
    hidden.range(path.to_owned()..).find(|below| *below != path).is_some_and(|below| below.starts_with(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beside_hidden_files_has_rules_and_what_is_around_them_has_none() {
        let place = std::env::temp_dir().join(format!("agent-proxy-rules-{}", std::process::id()));
        for directory in ["a/state/homes/s-1", "a/state/homes/s-2", "a/other", "b"] {
            fs::create_dir_all(place.join(directory)).expect("made");
        }
        let place = fs::canonicalize(place).expect("there");
        std::os::unix::fs::symlink(place.join("a/state"), place.join("a/link")).expect("linked");
        let text = |below: &str| place.join(below).to_str().expect("UTF-8").to_owned();
        let files = HiddenFiles {
            hidden: vec![text("a/state"), text("a/later")],
            shown: vec![text("a/state/homes/s-1")],
            ..HiddenFiles::default()
        };
        let rules = FileRules::hiding(&files).expect("planned");
        let mut paths: Vec<_> =
            rules.rules.iter().filter_map(|(path, _)| path.strip_prefix(&place).ok()).map(Path::to_owned).collect();
        paths.sort();
        assert_eq!(paths, ["a/other", "a/state/homes/s-1", "b"].map(PathBuf::from));
        assert!(!rules.rules.iter().any(|(path, _)| place.starts_with(path)), "{rules:?}");
        fs::remove_dir_all(place).expect("removed");
    }
}
