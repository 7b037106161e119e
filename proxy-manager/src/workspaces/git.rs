//! The program `git` on a workspace: what its tree was, what changed, and how that gets into another tree.
//!
//! A workspace has a repository of our own beside its tree, out of its agent's reach. No configuration, hook or filter of the tree is
//! run, and files are stored byte for byte.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read as _, Seek as _},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use agents::discovery::{SearchPaths, executable};
use ipc_protocol::{EnvVars, FileChange};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{PidfdFlags, pidfd_open},
};

use super::{ChangedFile, WorkspaceDiff, overlay::OverlayChanges};
use crate::error::{Error, Result};

/// Time for one run of git.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Longest patch that is shown.
const MAX_PATCH: u64 = 16 << 20;
/// Most of what git says of a failure.
const MAX_MESSAGE: usize = 2000;
/// Attributes that override those of a tree: files are stored as they are.
const ATTRIBUTES: &str = "* -text !eol !crlf !filter !ident !working-tree-encoding\n";
const CONFIG: &str = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n\tautocrlf = false\n\tfilemode = true\n\tsymlinks = true\n\
                      \tquotepath = false\n\tfsmonitor = false\n[gc]\n\tauto = 0\n[apply]\n\twhitespace = nowarn\n";

/// The program and its environment.
#[derive(Clone, Debug)]
pub(super) struct GitProgram {
    program: PathBuf,
    env: EnvVars,
}

/// Output of a run.
struct GitOutput {
    is_success: bool,
    stdout: Vec<u8>,
    stderr: String,
}

impl GitProgram {
    /// Finds it in the `PATH` of this environment.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] where there is none.
    pub(super) fn find(env: &EnvVars) -> Result<Self> {
        let path = env.0.get("PATH").map(|path| std::env::split_paths(path).collect()).unwrap_or_default();
        let program = executable("git", &SearchPaths { path, home: None }).ok_or_else(|| {
            let reason =
                "git is not in PATH, and finds what changed in a workspace: install it, or leave the workspace out";
            Error::InvalidConfig { field: "workspace", reason: reason.to_owned() }
        })?;
        let named = ["PATH", "HOME"].iter().filter_map(|name| Some(((*name).to_owned(), env.0.get(*name)?.clone())));
        let others = [("LC_ALL", "C"), ("GIT_TERMINAL_PROMPT", "0"), ("GIT_OPTIONAL_LOCKS", "0")];
        let others = others.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Ok(Self { program, env: EnvVars(named.chain(others).collect()) })
    }

    /// Runs git in a directory, as its user would.
    pub(super) fn run_in(&self, directory: &Path, arguments: &[&OsStr]) -> Result<Vec<u8>> {
        self.checked(directory, &[], arguments)
    }

    /// The same; `None` where it fails, as for a value that is not set.
    fn ask_in(&self, directory: &Path, arguments: &[&str]) -> Result<Option<PathBuf>> {
        let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
        let output = self.run(directory, &[], &arguments, None)?;
        let text = output.stdout.strip_suffix(b"\n").unwrap_or(&output.stdout);
        Ok((output.is_success && !text.is_empty()).then(|| directory.join(OsStr::from_bytes(text))))
    }

    fn checked(&self, directory: &Path, env: &[(&str, &OsStr)], arguments: &[&OsStr]) -> Result<Vec<u8>> {
        let output = self.run(directory, env, arguments, None)?;
        if output.is_success { Ok(output.stdout) } else { Err(failure(directory, arguments, &output.stderr)) }
    }

    #[expect(clippy::disallowed_methods, reason = "git is no part of a session, and is waited for by its pidfd here")]
    fn run(
        &self,
        directory: &Path,
        env: &[(&str, &OsStr)],
        arguments: &[&OsStr],
        input: Option<&Path>,
    ) -> Result<GitOutput> {
        let failed = |error: io::Error| Error::system(describe(directory, arguments), error);
        let (mut stdout, mut stderr) = (tempfile::tempfile().map_err(failed)?, tempfile::tempfile().map_err(failed)?);
        let mut child = Command::new(&self.program)
            .args(arguments)
            .current_dir(directory)
            .env_clear()
            .envs(&self.env.0)
            .envs(env.iter().copied())
            .stdin(input.map(File::open).transpose().map_err(failed)?.map_or_else(Stdio::null, Stdio::from))
            .stdout(stdout.try_clone().map_err(failed)?)
            .stderr(stderr.try_clone().map_err(failed)?)
            .spawn()
            .map_err(failed)?;
        let is_done = has_exited(child.id());
        if !matches!(is_done, Ok(true)) {
            // It is a child that nobody else reaps.
            let _ = child.kill();
        }
        let status = child.wait().map_err(failed)?;
        if !is_done.map_err(failed)? {
            return Err(Error::Deadline { operation: describe(directory, arguments), after: TIMEOUT });
        }
        let read = |file: &mut File| -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            file.rewind()?;
            file.read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let stderr = String::from_utf8_lossy(&read(&mut stderr).map_err(failed)?).into_owned();
        Ok(GitOutput { is_success: status.success(), stdout: read(&mut stdout).map_err(failed)?, stderr })
    }
}

/// Waits for the exit of a child. Returns false after the timeout.
fn has_exited(pid: u32) -> io::Result<bool> {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let timeout = Timespec { tv_sec: TIMEOUT.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: 0 };
    Ok(poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout))? > 0)
}

fn describe(directory: &Path, arguments: &[&OsStr]) -> String {
    let words: Vec<_> = arguments.iter().take(3).map(|word| word.to_string_lossy()).collect();
    format!("git {} in {}", words.join(" "), directory.display())
}

fn failure(directory: &Path, arguments: &[&OsStr], stderr: &str) -> Error {
    let message: String = stderr.trim().chars().take(MAX_MESSAGE).collect();
    Error::system(describe(directory, arguments), io::Error::other(message))
}

/// The repository of ours beside a workspace's tree.
#[derive(Debug)]
pub(super) struct ShadowRepository<'a> {
    git: &'a GitProgram,
    directory: PathBuf,
}

impl<'a> ShadowRepository<'a> {
    pub(super) fn new(git: &'a GitProgram, directory: PathBuf) -> Self {
        Self { git, directory }
    }

    /// Creates it. Where `source` is a repository it uses the objects there, and ignores the same files.
    pub(super) fn create(&self, source: &Path, is_repository: bool) -> Result<()> {
        let failed = |error: io::Error| Error::system(format!("making {}", self.directory.display()), error);
        for below in ["objects/info", "refs", "info"] {
            fs::create_dir_all(self.directory.join(below)).map_err(failed)?;
        }
        let mut config = CONFIG.to_owned();
        if is_repository {
            if let Some(objects) = self.git.ask_in(source, &["rev-parse", "--git-path", "objects"])? {
                let line = [objects.as_os_str().as_bytes(), b"\n"].concat();
                fs::write(self.directory.join("objects/info/alternates"), line).map_err(failed)?;
            }
            if let Some(exclude) = self.git.ask_in(source, &["rev-parse", "--git-path", "info/exclude"])?
                && exclude.exists()
            {
                fs::copy(exclude, self.directory.join("info/exclude")).map_err(failed)?;
            }
            let excludes = self.git.ask_in(source, &["config", "--type=path", "--get", "core.excludesFile"])?;
            if let Some(path) = excludes.as_deref().and_then(Path::to_str) {
                let quoted = path.replace('\\', "\\\\").replace('"', "\\\"");
                config.push_str(&format!("[core]\n\texcludesFile = \"{quoted}\"\n"));
            }
        }
        for (file, text) in
            [("config", config.as_str()), ("HEAD", "ref: refs/heads/none\n"), ("info/attributes", ATTRIBUTES)]
        {
            fs::write(self.directory.join(file), text).map_err(failed)?;
        }
        Ok(())
    }

    fn run(&self, tree: &Path, arguments: &[&OsStr], input: Option<&Path>) -> Result<GitOutput> {
        let env = [
            ("GIT_DIR", self.directory.as_os_str()),
            ("GIT_WORK_TREE", tree.as_os_str()),
            ("GIT_LITERAL_PATHSPECS", OsStr::new("0")),
            ("GIT_CONFIG_NOSYSTEM", OsStr::new("1")),
            ("GIT_CONFIG_GLOBAL", OsStr::new("/dev/null")),
        ];
        self.git.run(tree, &env, arguments, input)
    }

    fn checked(&self, tree: &Path, arguments: &[&str]) -> Result<Vec<u8>> {
        let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
        let output = self.run(tree, &arguments, None)?;
        if output.is_success { Ok(output.stdout) } else { Err(failure(tree, &arguments, &output.stderr)) }
    }

    /// Stores a tree as it is now. Returns its id, and the repositories in it, which are left out.
    pub(super) fn snapshot(&self, tree: &Path) -> Result<(String, Vec<String>)> {
        // A run that was killed has left it; the caller has the workspace for itself.
        let _ = fs::remove_file(self.directory.join("index.lock"));
        let mut nested = Vec::new();
        find_repositories(tree, Path::new(""), &mut nested)
            .map_err(|error| Error::system(format!("reading {}", tree.display()), error))?;
        self.write_snapshot(tree, &nested, &["add", "-A"])
    }

    /// Stores the tree that `base` is with the changes of an overlay. Returns its id, and the repositories in it, which are left out.
    pub(super) fn snapshot_overlay(
        &self,
        upper: &Path,
        changes: &OverlayChanges,
        base: &str,
    ) -> Result<(String, Vec<String>)> {
        let _ = fs::remove_file(self.directory.join("index.lock"));
        self.checked(upper, &["read-tree", base])?;
        let listed = self.checked(upper, &["ls-files", "-z"])?;
        let (mut removed, mut unseen) = (Vec::new(), Vec::new());
        for name in listed.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let path = Path::new(OsStr::from_bytes(name));
            if changes.removes(path) {
                removed.extend([name, b"\0"].concat());
            } else if path.ends_with(".gitignore") && upper.join(path).symlink_metadata().is_err() {
                unseen.extend([name, b"\0"].concat());
            }
        }
        self.update_index(upper, "--force-remove", &removed)?;
        // Git reads what these ignore from its index, since they are not in this layer.
        self.update_index(upper, "--skip-worktree", &unseen)?;
        self.write_snapshot(upper, &changes.repositories, &["add", "--ignore-removal"])
    }

    fn update_index(&self, tree: &Path, change: &str, paths: &[u8]) -> Result<()> {
        if paths.is_empty() {
            return Ok(());
        }
        let list = self.write_list(paths)?;
        let arguments = ["update-index", change, "-z", "--stdin"].map(OsStr::new);
        let output = self.run(tree, &arguments, Some(&list))?;
        if output.is_success { Ok(()) } else { Err(failure(tree, &arguments, &output.stderr)) }
    }

    fn write_snapshot(&self, tree: &Path, nested: &[PathBuf], add: &[&str]) -> Result<(String, Vec<String>)> {
        let mut paths = b".\0".to_vec();
        for path in nested {
            paths.extend([b":(exclude,literal)", path.as_os_str().as_bytes(), b"\0"].concat());
        }
        self.add(tree, &paths, add)?;
        let id = self.checked(tree, &["write-tree"])?;
        let nested = nested.iter().map(|path| path.to_string_lossy().into_owned()).collect();
        Ok((String::from_utf8_lossy(&id).trim().to_owned(), nested))
    }

    /// Adds files of a repository that it has although it ignores them.
    pub(super) fn add_ignored(&self, tree: &Path, source: &Path) -> Result<()> {
        let list = ["ls-files", "-z", "--cached", "--ignored", "--exclude-standard"].map(OsStr::new);
        let listed = self.git.run_in(source, &list)?;
        let mut paths = Vec::new();
        for path in listed.split(|byte| *byte == 0).filter(|path| !path.is_empty()) {
            if tree.join(OsStr::from_bytes(path)).symlink_metadata().is_ok() {
                paths.extend([b":(literal)", path, b"\0"].concat());
            }
        }
        if paths.is_empty() { Ok(()) } else { self.add(tree, &paths, &["add", "--force"]) }
    }

    fn add(&self, tree: &Path, paths: &[u8], command: &[&str]) -> Result<()> {
        let list = self.write_list(paths)?;
        let from = format!("--pathspec-from-file={}", list.display());
        self.checked(tree, &[command, &[from.as_str(), "--pathspec-file-nul"]].concat()).map(drop)
    }

    /// Writes a list of paths for git.
    fn write_list(&self, paths: &[u8]) -> Result<PathBuf> {
        let list = self.directory.join("paths");
        fs::write(&list, paths).map_err(|error| Error::system(format!("writing {}", list.display()), error))?;
        Ok(list)
    }

    /// Writes the files of the last snapshot to a tree.
    pub(super) fn check_out(&self, tree: &Path) -> Result<()> {
        self.checked(tree, &["checkout-index", "--all", "--force", "--index", "--quiet"]).map(drop)
    }

    /// Lists what changed between two snapshots.
    pub(super) fn changes(&self, tree: &Path, from: &str, to: &str) -> Result<Vec<ChangedFile>> {
        let listed = self.checked(tree, &["diff", "--name-status", "-z", "-M", "--no-ext-diff", from, to])?;
        let mut words = listed.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
        let mut changes = Vec::new();
        while let Some(status) = words.next().filter(|status| !status.is_empty()) {
            let Some(path) = words.next() else { break };
            changes.push(match status.as_bytes()[0] {
                b'A' => ChangedFile { path, change: FileChange::Created, moved_from: None },
                b'D' => ChangedFile { path, change: FileChange::Deleted, moved_from: None },
                b'R' => {
                    let to = words.next().unwrap_or_default();
                    ChangedFile { path: to, change: FileChange::Moved, moved_from: Some(path) }
                }
                _ => ChangedFile { path, change: FileChange::Modified, moved_from: None },
            });
        }
        Ok(changes)
    }

    /// What changed between two snapshots, with its text.
    pub(super) fn diff(&self, tree: &Path, from: &str, to: &str) -> Result<WorkspaceDiff> {
        let files = self.changes(tree, from, to)?;
        let file = self.write_patch(tree, "-M", from, to)?;
        let failed = |error: io::Error| Error::system(format!("reading {}", file.display()), error);
        let patch = match fs::metadata(&file).map_err(failed)?.len() {
            ..=MAX_PATCH => Some(String::from_utf8_lossy(&fs::read(&file).map_err(failed)?).into_owned()),
            _ => None,
        };
        Ok(WorkspaceDiff { files, patch, left_out: Vec::new() })
    }

    fn write_patch(&self, tree: &Path, renames: &str, from: &str, to: &str) -> Result<PathBuf> {
        let file = self.directory.join("patch");
        let output = format!("--output={}", file.display());
        let form = ["diff", "--binary", "--full-index", "--no-ext-diff", "--no-textconv", "--no-color"];
        self.checked(tree, &[&form[..], &[renames, output.as_str(), from, to]].concat())?;
        Ok(file)
    }

    /// Writes what changed between two snapshots into `target`: all of it, or nothing.
    ///
    /// # Errors
    /// As [`ApplyError`].
    pub(super) fn apply(&self, target: &Path, from: &str, to: &str) -> Result<(), ApplyError> {
        let patch = self.write_patch(target, "--no-renames", from, to)?;
        let apply = |flags: &[&str]| {
            let words = [&["apply", "--binary"], flags].concat();
            let words = words.into_iter().map(OsStr::new).chain([patch.as_os_str()]);
            self.run(target, &words.collect::<Vec<_>>(), None)
        };
        let check = apply(&["--check"])?;
        if !check.is_success {
            // A host that was killed between the two has written it already.
            if apply(&["--check", "--reverse"])?.is_success {
                return Ok(());
            }
            let files = self.changes(target, from, to)?;
            let names = files.iter().flat_map(|file| [Some(&file.path), file.moved_from.as_ref()]).flatten();
            let is_named = |path: &&String| {
                let marks = [format!("error: {path}: "), format!("error: patch failed: {path}:")];
                let quoted = format!("'{path}'");
                check
                    .stderr
                    .lines()
                    .any(|line| marks.iter().any(|mark| line.starts_with(mark)) || line.contains(&quoted))
            };
            let paths = names.filter(is_named).cloned().collect();
            return Err(ApplyError::Conflict { paths, message: check.stderr });
        }
        let applied = apply(&[])?;
        match applied.is_success {
            true => Ok(()),
            false => Err(failure(target, &[OsStr::new("apply")], &applied.stderr).into()),
        }
    }
}

/// Failure of [`ShadowRepository::apply`].
pub(super) enum ApplyError {
    /// The target has changed at these paths, and is as it was.
    Conflict { paths: Vec<String>, message: String },
    /// Another failure.
    Other(Error),
}

impl From<Error> for ApplyError {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// Finds directories with a repository of their own below a tree. Links are not followed.
fn find_repositories(tree: &Path, below: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut waiting = vec![below.to_owned()];
    while let Some(below) = waiting.pop() {
        let directory = tree.join(&below);
        if below != Path::new("") && directory.join(".git").symlink_metadata().is_ok() {
            found.push(below);
            continue;
        }
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() && entry.file_name() != ".git" {
                waiting.push(below.join(entry.file_name()));
            }
        }
    }
    Ok(())
}
