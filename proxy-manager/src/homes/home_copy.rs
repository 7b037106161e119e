//! Parts of the user's home that a session's own home begins with.
//!
//! Symbolic links are followed as long as they stay within the user's home; one that leads out of it is an error. Files are for this user
//! only, and nobody ever sees more of them than their names.

use std::{
    fs::File,
    io::{self, Read as _},
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::{Path, PathBuf},
};

use agents::{AgentSpec, HomeFile};
use ipc_protocol::{AgentSessionConfig, EnvVars, HomePart};
use rustix::{
    fs::{Dir, FileType, Mode, OFlags, ResolveFlags},
    io::Errno,
};
use serde_json::{Map, Value};

use super::files;
use crate::error::{Error, Result};

/// Largest sum of the files of a copy, in bytes.
const MAX_BYTES: u64 = 64 << 20;
/// Most files and directories of a copy.
const MAX_ENTRIES: usize = 4096;
/// Deepest directory of a copy.
const MAX_DEPTH: usize = 32;

/// Parts of the user's home, to be copied into a session's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HomeCopy {
    parts: Vec<CopiedPart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct CopiedPart {
    part: HomePart,
    sources: Vec<CopySource>,
}

/// File or directory of the user's.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CopySource {
    /// The user's home, or the directory that a variable has in place of one below it.
    root: PathBuf,
    /// Path within that.
    path: PathBuf,
    /// Path within the session's home.
    target: PathBuf,
    /// Members of the JSON object; empty for the whole file.
    keys: Vec<String>,
}

/// Bounds of a copy that are left.
struct CopyRoom {
    bytes: u64,
    entries: usize,
}

impl HomeCopy {
    /// Plans what `config` asks for. `env` has the user's `HOME`.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if there is no such home, or the agent's row names no such files.
    pub(crate) fn plan(spec: &AgentSpec, config: &AgentSessionConfig, env: &EnvVars) -> Result<Self> {
        if config.home_copy.is_empty() {
            return Ok(Self::default());
        }
        let home = env.0.get("HOME").filter(|home| home.starts_with('/'));
        let home = home.ok_or_else(|| invalid("the manager's environment has no HOME to copy from".to_owned()))?;
        let files = &spec.home_files;
        let source = |file: &HomeFile| {
            let target = if file.to.is_empty() { &file.path } else { &file.to };
            let moved = files.moved_by.iter().find_map(|(variable, directory)| {
                let below = Path::new(target).strip_prefix(directory).ok()?;
                let value = spec.inherited.0.get(variable).or_else(|| env.0.get(variable))?;
                value.starts_with('/').then(|| (PathBuf::from(value), below.to_owned()))
            });
            let (root, path) = moved.unwrap_or_else(|| (home.into(), file.path.clone().into()));
            CopySource { root, path, target: target.into(), keys: file.keys.clone() }
        };
        let mut parts: Vec<CopiedPart> = Vec::new();
        for part in &config.home_copy {
            let sources = match part {
                HomePart::Login => files.login.iter().map(source).collect(),
                HomePart::Skills => files.skills.iter().map(source).collect(),
                HomePart::Path(path) => vec![source(&HomeFile { path: path.clone(), ..HomeFile::default() })],
            };
            if sources.is_empty() {
                let reason =
                    format!("the row of agent {:?} in the catalog names no files for {part} (`home_files`)", spec.id);
                return Err(invalid(reason));
            }
            if !parts.iter().any(|known| known.part == *part) {
                parts.push(CopiedPart { part: part.clone(), sources });
            }
        }
        Ok(Self { parts })
    }

    /// Files of the login, relative to the session's home, whether they will be there or not.
    pub(crate) fn login_files(&self) -> impl Iterator<Item = &Path> {
        let login = self.parts.iter().filter(|part| part.part == HomePart::Login);
        login.flat_map(|part| part.sources.iter().map(|source| source.target.as_path()))
    }

    /// Copies the parts into `home`; of a home that an earlier session of the conversation had (`is_fresh` false) only the login, which
    /// was removed with that session. `written` are files that the home has from us. Blocks.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a part that is not there, that leads out of the user's home, or that is too large.
    pub(crate) fn copy(&self, home: &Path, is_fresh: bool, written: &[&Path]) -> Result<()> {
        let parts: Vec<_> = self.parts.iter().filter(|part| is_fresh || part.part == HomePart::Login).collect();
        if parts.is_empty() {
            return Ok(());
        }
        let into = files::open(home).map_err(|error| Error::system(format!("opening {}", home.display()), error))?;
        let mut room = CopyRoom { bytes: MAX_BYTES, entries: MAX_ENTRIES };
        for CopiedPart { part, sources } in parts {
            let mut is_there = false;
            for source in sources {
                is_there |= source
                    .copy(&into, written, &mut room)
                    .map_err(|error| invalid(format!("copying {} failed: {error}", source.shown())))?;
            }
            if !is_there {
                let looked_for: Vec<_> = sources.iter().map(CopySource::shown).collect();
                return Err(invalid(format!(
                    "there is no {part} of yours to copy: looked for {}",
                    looked_for.join(", ")
                )));
            }
        }
        Ok(())
    }
}

impl CopySource {
    fn shown(&self) -> String {
        self.root.join(&self.path).display().to_string()
    }

    /// Copies it. Returns `false` if it is not there.
    fn copy(&self, into: &OwnedFd, written: &[&Path], room: &mut CopyRoom) -> io::Result<bool> {
        let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = match rustix::fs::open(&self.root, directory, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(false),
            opened => opened?,
        };
        match open_within(&root, &self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
            Ok(source) => self.copy_entry(&root, source, &self.path, &self.target, (into, written), room, 0),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the state of one recursion")]
    fn copy_entry(
        &self,
        root: &OwnedFd,
        source: OwnedFd,
        path: &Path,
        target: &Path,
        (into, written): (&OwnedFd, &[&Path]),
        room: &mut CopyRoom,
        depth: usize,
    ) -> io::Result<bool> {
        let of = |reason: String| io::Error::other(format!("{}: {reason}", self.root.join(path).display()));
        room.entries = room.entries.checked_sub(1).ok_or_else(|| of(format!("more than {MAX_ENTRIES} files")))?;
        if written.contains(&target) {
            return Err(of("the session has a file of that name already".to_owned()));
        }
        let stat = rustix::fs::fstat(&source)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                let mut contents = Vec::new();
                File::from(source).take(room.bytes + 1).read_to_end(&mut contents)?;
                let len = u64::try_from(contents.len()).unwrap_or(u64::MAX);
                room.bytes =
                    room.bytes.checked_sub(len).ok_or_else(|| of(format!("more than {} MiB", MAX_BYTES >> 20)))?;
                if !self.keys.is_empty() {
                    let Some(chosen) = members(&contents, &self.keys).map_err(|error| of(error.to_string()))? else {
                        return Ok(false);
                    };
                    contents = chosen;
                }
                let is_program = Mode::from_raw_mode(stat.st_mode).contains(Mode::XUSR);
                let write = if is_program { files::write_program } else { files::write };
                write(into, target, &contents)?;
                Ok(true)
            }
            FileType::Directory if self.keys.is_empty() => {
                if depth >= MAX_DEPTH {
                    return Err(of(format!("more than {MAX_DEPTH} directories deep")));
                }
                let mut is_there = false;
                for entry in Dir::read_from(&source)? {
                    let entry = entry?;
                    let name = std::ffi::OsStr::from_bytes(entry.file_name().to_bytes());
                    if name == "." || name == ".." {
                        continue;
                    }
                    let (path, target) = (path.join(name), target.join(name));
                    let below = open_within(root, &path)?;
                    is_there |= self.copy_entry(root, below, &path, &target, (into, written), room, depth + 1)?;
                }
                Ok(is_there)
            }
            _ => Err(of("neither a file nor a directory".to_owned())),
        }
    }
}

/// Opens `path` below `root`. A symbolic link is followed if what it names is below `root` too.
fn open_within(root: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, flags, Mode::empty(), resolve).map_err(|error| match error {
        Errno::XDEV => io::Error::other(format!("{}: a symbolic link leads out of the home", path.display())),
        Errno::NOENT => error.into(),
        error => io::Error::other(format!("{}: {}", path.display(), io::Error::from(error))),
    })
}

/// Returns these members of the JSON object; `None` if it has none of them.
fn members(contents: &[u8], keys: &[String]) -> serde_json::Result<Option<Vec<u8>>> {
    let all: Map<String, Value> = serde_json::from_slice(contents)?;
    let chosen: Map<String, Value> = all.into_iter().filter(|(key, _)| keys.contains(key)).collect();
    if chosen.is_empty() { Ok(None) } else { serde_json::to_vec(&chosen).map(Some) }
}

fn invalid(reason: String) -> Error {
    Error::InvalidConfig { field: "homeCopy", reason }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt as _, symlink},
    };

    use agents::Catalog;

    use super::*;

    /// The user's home, and one of a session's.
    struct Homes {
        _scratch: tempfile::TempDir,
        theirs: PathBuf,
        own: PathBuf,
    }

    impl Homes {
        fn new() -> Self {
            let scratch = tempfile::tempdir().expect("a directory");
            let [theirs, own] = ["theirs", "own"].map(|name| scratch.path().join(name));
            fs::create_dir(&theirs).expect("made");
            fs::create_dir(&own).expect("made");
            Self { _scratch: scratch, theirs, own }
        }

        fn write(&self, path: &str, contents: &str) {
            let path = self.theirs.join(path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            fs::write(path, contents).expect("written");
        }

        fn plan(&self, agent: &str, parts: &[&str], env: &[(&str, &str)]) -> Result<HomeCopy> {
            let catalog = Catalog::default();
            let home_copy = parts.iter().map(|part| part.parse().expect("a part")).collect();
            let config = AgentSessionConfig { home_copy, ..AgentSessionConfig::new(agent) };
            let home = [("HOME", self.theirs.to_str().expect("UTF-8"))];
            let env = home.iter().chain(env).copied().collect();
            HomeCopy::plan(catalog.get(agent).expect("its row"), &config, &env)
        }

        fn copy(&self, agent: &str, parts: &[&str]) -> Result<()> {
            self.plan(agent, parts, &[])?.copy(&self.own, true, &[Path::new(".codex/config.toml")])
        }

        fn refusal(&self, agent: &str, parts: &[&str]) -> String {
            match self.copy(agent, parts) {
                Err(Error::InvalidConfig { field: "homeCopy", reason }) => reason,
                other => panic!("{other:?}"),
            }
        }

        fn own(&self, path: &str) -> String {
            fs::read_to_string(self.own.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
        }
    }

    #[test]
    fn a_login_is_this_user_s_alone_and_part_of_a_file_where_that_has_more() {
        let homes = Homes::new();
        homes.write(".claude/.credentials.json", "token");
        homes.write(".claude.json", r#"{"projects":{"/secret":{}},"userID":"u","oauthAccount":{"uuid":"x"}}"#);
        homes.copy("claude-code", &["login"]).expect("copied");
        assert_eq!(homes.own(".claude/.credentials.json"), "token");
        let mode = |path: &str| fs::metadata(homes.own.join(path)).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(".claude"), mode(".claude/.credentials.json")), (0o700, 0o600));
        let parts: Value = serde_json::from_str(&homes.own(".claude/.claude.json")).expect("JSON");
        assert_eq!(parts, serde_json::json!({ "userID": "u", "oauthAccount": { "uuid": "x" } }));
        let plan = homes.plan("claude-code", &["login"], &[]).expect("planned");
        let login: Vec<_> = plan.login_files().collect();
        assert_eq!(login, [Path::new(".claude/.credentials.json"), Path::new(".claude/.claude.json")]);
    }

    #[test]
    fn skills_come_with_their_programs_and_later_sessions_get_the_login_only() {
        let homes = Homes::new();
        homes.write(".codex/auth.json", "{}");
        homes.write("dotfiles/plum/SKILL.md", "plums");
        homes.write("dotfiles/plum/run.sh", "#!/bin/sh");
        let program = homes.theirs.join("dotfiles/plum/run.sh");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("set");
        fs::create_dir_all(homes.theirs.join(".codex/skills")).expect("made");
        symlink("../../dotfiles/plum", homes.theirs.join(".codex/skills/plum")).expect("linked");
        homes.copy("codex", &["login", "skills", "~/dotfiles/plum/SKILL.md"]).expect("copied");
        assert_eq!(homes.own(".codex/skills/plum/SKILL.md"), "plums");
        assert_eq!(homes.own("dotfiles/plum/SKILL.md"), "plums");
        let copied = fs::symlink_metadata(homes.own.join(".codex/skills/plum")).expect("there");
        assert!(copied.is_dir(), "what a link names is copied");
        let mode = fs::metadata(homes.own.join(".codex/skills/plum/run.sh")).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        fs::remove_dir_all(homes.own.join(".codex")).expect("removed");
        let plan = homes.plan("codex", &["login", "skills"], &[]).expect("planned");
        plan.copy(&homes.own, false, &[]).expect("copied");
        assert!(homes.own.join(".codex/auth.json").exists() && !homes.own.join(".codex/skills").exists());
    }

    #[test]
    fn nothing_outside_of_the_home_is_copied() {
        let homes = Homes::new();
        homes.write("../outside/secret", "x");
        fs::create_dir_all(homes.theirs.join(".codex")).expect("made");
        let out = homes.theirs.join("../outside/secret");
        symlink(&out, homes.theirs.join(".codex/auth.json")).expect("linked");
        assert!(homes.refusal("codex", &["login"]).contains("leads out of the home"));
        fs::create_dir_all(homes.theirs.join(".codex/skills")).expect("made");
        symlink("../../../outside", homes.theirs.join(".codex/skills/evil")).expect("linked");
        assert!(homes.refusal("codex", &["skills"]).contains("leads out of the home"));
        symlink("loop", homes.theirs.join("loop")).expect("linked");
        assert!(homes.refusal("codex", &["loop"]).contains("loop"));
        nix::unistd::mkfifo(&homes.theirs.join("fifo"), nix::sys::stat::Mode::S_IRWXU).expect("made");
        assert!(homes.refusal("codex", &["fifo"]).contains("neither a file nor a directory"));
        assert!(fs::read_dir(&homes.own).expect("listed").next().is_none(), "nothing was copied");
    }

    #[test]
    fn what_is_missing_too_large_or_taken_is_said() {
        let homes = Homes::new();
        let missing = homes.refusal("codex", &["login"]);
        assert!(missing.contains("no login of yours") && missing.ends_with("/theirs/.codex/auth.json"), "{missing}");
        assert!(homes.refusal("command", &["login"]).contains("home_files"));
        homes.write(".codex/config.toml", "");
        assert!(homes.refusal("codex", &[".codex/config.toml"]).contains("has a file of that name already"));
        let large = fs::File::create(homes.theirs.join("large")).expect("made");
        large.set_len(MAX_BYTES + 1).expect("sparse");
        assert!(homes.refusal("codex", &["large"]).contains("more than 64 MiB"));
        let deep = "d/".repeat(MAX_DEPTH + 1);
        homes.write(&format!("{deep}file"), "");
        assert!(homes.refusal("codex", &["d"]).contains("directories deep"));
        // A directory that a variable of the agent's has in its place.
        let elsewhere = homes.theirs.join("elsewhere");
        homes.write("elsewhere/auth.json", "{}");
        let moved = homes.plan("codex", &["login"], &[("CODEX_HOME", elsewhere.to_str().expect("UTF-8"))]);
        moved.expect("planned").copy(&homes.own, true, &[]).expect("copied");
        assert_eq!(homes.own(".codex/auth.json"), "{}");
    }
}
