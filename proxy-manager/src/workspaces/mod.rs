//! Workspaces of sessions: trees of their own, whose changes the user looks at, applies or drops.
//!
//! ```text
//! STATE/workspaces/s-ID/record.json   what it was made of; `isComplete` is false while it is made or removed
//!                       tree/         where the agent works; of an overlay, what it is mounted on in the session
//!                       upper/, work/ changes of an overlay, and what the kernel has beside them
//!                       git/          a repository of ours, with the tree as it was made and as it was last looked at
//! ```
//!
//! A worktree has an entry in the repository of the user, too (`.git/worktrees/…`). What a killed host was making or removing is removed
//! when the state directory is opened next; a complete workspace stays until it is dropped, or its session is deleted.

mod git;
mod overlay;
mod tree_copy;

use std::{
    ffi::OsStr,
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    time::SystemTime,
};

use agents::directory_files;
pub(crate) use api_types::{ChangedFile, WorkspaceDiff, WorkspaceInfo};
use ipc_protocol::{EnvVars, Event, OverlaySpec, SessionId, WorkspaceKind, WorkspaceStep};
use registry::file_lock;
use serde::{Deserialize, Serialize};

use self::{
    git::{ApplyError, GitProgram, ShadowRepository},
    overlay::OverlayChanges,
};
use crate::{
    blocking::spawn_blocking,
    error::{Error, Result},
};

/// All workspaces in a directory. Its calls block.
#[derive(Clone, Debug)]
pub struct WorkspaceStore {
    directory: PathBuf,
    env: EnvVars,
}

/// Workspace of a session that is about to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkspacePlan {
    record: WorkspaceRecord,
    directory: PathBuf,
    /// True if an earlier incarnation made it.
    pub(crate) exists: bool,
}

/// Record of a workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WorkspaceRecord {
    session_id: SessionId,
    user_id: Option<String>,
    kind: WorkspaceKind,
    source: String,
    /// Working directory below the tree.
    below: String,
    #[serde(with = "ipc_protocol::time_text")]
    created_at: SystemTime,
    /// Snapshot that changes are counted from.
    base: String,
    /// Entry of a worktree in its repository.
    entry: Option<PathBuf>,
    is_complete: bool,
}

/// Removes a workspace when it is dropped, unless the session started.
#[derive(Debug)]
pub(crate) struct NewWorkspace(Option<(WorkspaceStore, SessionId)>);

impl WorkspacePlan {
    /// Tree that the agent works in.
    pub(crate) fn tree(&self) -> PathBuf {
        self.directory.join("tree")
    }

    /// Tree of the user's.
    pub(crate) fn source(&self) -> &Path {
        Path::new(&self.record.source)
    }

    /// Working directory of the agent.
    pub(crate) fn cwd(&self) -> PathBuf {
        if self.record.below.is_empty() { self.tree() } else { self.tree().join(&self.record.below) }
    }

    /// Overlay to mount for the session, if the workspace is one.
    pub(crate) fn overlay(&self) -> Option<OverlaySpec> {
        let path = |name: &str| self.directory.join(name).to_str().map(str::to_owned);
        let is_overlay = self.record.kind == WorkspaceKind::Overlay;
        let [tree, upper, work] = is_overlay.then(|| ["tree", "upper", "work"].map(path))?;
        Some(OverlaySpec { tree: tree?, lower: self.record.source.clone(), upper: upper?, work: work? })
    }

    /// Event that says what was made.
    pub(crate) fn made(&self) -> Event {
        let path = self.tree().display().to_string();
        let (step, kind, source) = (WorkspaceStep::Made, self.record.kind, self.record.source.clone());
        Event::SessionWorkspace { step, kind, source, path, files: 0 }
    }
}

impl NewWorkspace {
    /// Leaves the workspace to its session.
    pub(crate) fn keep(mut self) {
        self.0 = None;
    }

    /// Removes the workspace. Blocks.
    pub(crate) fn remove(mut self) {
        if let Some((store, session)) = self.0.take() {
            remove_failed(&store, &session);
        }
    }
}

impl Drop for NewWorkspace {
    /// Does not wait for the removal: it may be in a runtime's thread.
    fn drop(&mut self) {
        if let Some((store, session)) = self.0.take() {
            let remove = move || remove_failed(&store, &session);
            if let Err(error) = spawn_blocking("removing a workspace", remove) {
                tracing::warn!(error = %error.chain(), "failed to remove the workspace of a failed start");
            }
        }
    }
}

fn remove_failed(store: &WorkspaceStore, session: &SessionId) {
    if let Err(error) = store.remove(session) {
        tracing::warn!(%session, error = %error.chain(), "failed to remove the workspace of a failed start");
    }
}

/// Lock of a workspace: one call at a time looks at it or changes it.
struct WorkspaceLock(File);

impl Drop for WorkspaceLock {
    fn drop(&mut self) {
        file_lock::unlock(&self.0);
    }
}

impl WorkspaceStore {
    /// Opens the workspaces in a directory, which is made when the first workspace is. Of `env`, the environment of the user, git gets
    /// `PATH` and `HOME`.
    pub fn new(directory: PathBuf, env: EnvVars) -> Self {
        Self { directory, env }
    }

    /// Removes what a killed host was making or removing. Only for the one host that has the directory.
    pub(crate) fn recover(&self) {
        for directory in self.directories() {
            if read_record(&directory).is_some_and(|record| record.is_complete) {
                continue;
            }
            tracing::info!(?directory, "removing a workspace that a killed host left unfinished");
            if let Err(error) = remove_files(&directory) {
                tracing::warn!(?directory, error = %error.chain(), "failed to remove an unfinished workspace");
            }
        }
    }

    fn directories(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let mut paths: Vec<_> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
        paths.sort();
        paths
    }

    fn path(&self, session: &SessionId) -> PathBuf {
        // The prefix matters: an id may be `..`.
        self.directory.join(format!("s-{session}"))
    }

    /// Plans the workspace of a session that works in `cwd`: the one that it has, or another.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`].
    pub(crate) fn plan(
        &self,
        (session, user): (&SessionId, Option<&str>),
        kind: WorkspaceKind,
        cwd: &str,
    ) -> Result<WorkspacePlan> {
        let directory = self.path(session);
        if let Some(record) = read_record(&directory).filter(|record| record.is_complete) {
            return Ok(WorkspacePlan { record, directory, exists: true });
        }
        GitProgram::find(&self.env)?;
        let real = fs::canonicalize(cwd).map_err(|error| invalid(format!("{cwd}: {error}")))?;
        let repository = repository_of(&real);
        let source = repository.unwrap_or(&real);
        if self.directory.starts_with(source) || source == Path::new("/") {
            let reason = format!(
                "{} is around the state directory {}: choose another",
                source.display(),
                self.directory.display()
            );
            return Err(invalid(reason));
        }
        match (kind, repository) {
            (WorkspaceKind::Worktree, None) => {
                return Err(invalid(format!(
                    "{cwd} is in no git repository, and `worktree` is made of one: use `copy`"
                )));
            }
            (WorkspaceKind::Overlay, _) if overlay::is_on_overlay(&self.directory) => {
                return Err(invalid(format!(
                    "the state directory {} is on an overlay itself, on which the kernel makes no other: use `copy` or `worktree`, or \
                     another state directory",
                    self.directory.display()
                )));
            }
            (WorkspaceKind::Copy | WorkspaceKind::Overlay, Some(repository)) if !repository.join(".git").is_dir() => {
                let reason = format!(
                    "{} is a worktree or submodule itself: git in another tree would change the original; use `worktree`",
                    repository.display()
                );
                return Err(invalid(reason));
            }
            _ => {}
        }
        let below = real.strip_prefix(source).unwrap_or(Path::new(""));
        let text =
            |path: &Path| path.to_str().map(str::to_owned).ok_or_else(|| invalid(format!("{path:?} is not UTF-8")));
        let record = WorkspaceRecord {
            session_id: session.clone(),
            user_id: user.map(str::to_owned),
            kind,
            source: text(source)?,
            below: text(below)?,
            created_at: SystemTime::now(),
            base: String::new(),
            entry: None,
            is_complete: false,
        };
        Ok(WorkspacePlan { record, directory, exists: false })
    }

    /// Makes a planned workspace. Nothing is left of it on an error.
    ///
    /// # Errors
    /// [`Error::System`], [`Error::Deadline`], [`Error::InvalidConfig`].
    pub(crate) fn make(&self, plan: &WorkspacePlan) -> Result<NewWorkspace> {
        let failed = |error| system("making the workspace", &plan.directory, error);
        DirBuilder::new().mode(0o700).recursive(true).create(&self.directory).map_err(failed)?;
        // A host that shares the directory may have been killed.
        remove_files(&plan.directory)?;
        DirBuilder::new().mode(0o700).create(&plan.directory).map_err(failed)?;
        write_record(&plan.directory, &plan.record)?;
        let made = NewWorkspace(Some((self.clone(), plan.record.session_id.clone())));
        match self.fill(plan) {
            Ok(()) => Ok(made),
            Err(error) => {
                made.remove();
                Err(error)
            }
        }
    }

    /// Makes the tree of a workspace, and the repository beside it.
    fn fill(&self, plan: &WorkspacePlan) -> Result<()> {
        let git = GitProgram::find(&self.env)?;
        let mut record = plan.record.clone();
        let (tree, source) = (plan.tree(), plan.source());
        let shadow = ShadowRepository::new(&git, plan.directory.join("git"));
        let is_repository = source.join(".git").symlink_metadata().is_ok();
        shadow.create(source, is_repository)?;
        if record.kind == WorkspaceKind::Overlay {
            let mode = fs::metadata(source).map_err(|error| system("reading", source, error))?.permissions();
            for name in ["tree", "upper", "work"] {
                let path = plan.directory.join(name);
                let made = DirBuilder::new().mode(0o700).create(&path);
                made.and_then(|()| fs::set_permissions(&path, mode.clone()))
                    .map_err(|error| system("making", &path, error))?;
            }
            if is_repository {
                shadow.add_ignored(source, source)?;
            }
        } else if record.kind == WorkspaceKind::Worktree {
            let head = ["rev-parse", "--verify", "--quiet", "HEAD"].map(OsStr::new);
            if git.run_in(source, &head).is_err() {
                return Err(invalid(format!("{} has no commit to make a worktree of: use `copy`", source.display())));
            }
            let add = ["worktree", "add", "--quiet", "--detach", "--no-checkout"].map(OsStr::new);
            git.run_in(source, &[&add[..], &[tree.as_os_str(), OsStr::new("HEAD")]].concat())?;
            record.entry = entry_of(&tree);
            write_record(&plan.directory, &record)?;
            shadow.snapshot(source)?;
            shadow.add_ignored(source, source)?;
            shadow.check_out(&tree)?;
            git.run_in(&tree, &["read-tree", "HEAD"].map(OsStr::new))?;
        } else {
            tree_copy::copy_tree(source, &tree).map_err(|error| match error.kind() {
                io::ErrorKind::FileTooLarge => invalid(error.to_string()),
                _ => system("copying", source, error),
            })?;
            if is_repository {
                shadow.add_ignored(&tree, source)?;
            }
        }
        let seen = if record.kind == WorkspaceKind::Overlay { source } else { &tree };
        record.base = shadow.snapshot(seen)?.0;
        let cwd = plan.cwd();
        DirBuilder::new().recursive(true).create(&cwd).map_err(|error| system("making", &cwd, error))?;
        record.is_complete = true;
        write_record(&plan.directory, &record)
    }

    /// Lists all workspaces, by the id of their session.
    pub fn list(&self) -> Vec<WorkspaceInfo> {
        let records = self.directories().into_iter().filter_map(|directory| read_record(&directory));
        records.filter(|record| record.is_complete).map(|record| self.describe(record)).collect()
    }

    /// Lists the sessions that have a workspace.
    pub fn sessions(&self) -> Vec<SessionId> {
        let records = self.directories().into_iter().filter_map(|directory| read_record(&directory));
        records.filter(|record| record.is_complete).map(|record| record.session_id).collect()
    }

    /// Describes the workspace of a session; `None` if there is none.
    pub fn find(&self, session: &SessionId) -> Option<WorkspaceInfo> {
        let record = read_record(&self.path(session)).filter(|record| record.is_complete)?;
        Some(self.describe(record))
    }

    /// Number of changed files in a session's workspace; 0 if there is none.
    ///
    /// # Errors
    /// As [`WorkspaceStore::diff`].
    pub(crate) fn changed_files(&self, session: &SessionId) -> Result<u64> {
        let Some(record) = read_record(&self.path(session)).filter(|record| record.is_complete) else { return Ok(0) };
        let (files, _) = self.diff_of(&record, |shadow, tree, base, now| shadow.changes(tree, base, now))?;
        Ok(files.len() as u64)
    }

    /// Returns the changes that are not applied.
    ///
    /// # Errors
    /// [`Error::UnknownWorkspace`]; [`Error::WorkspaceBusy`]; [`Error::System`] and [`Error::Deadline`] of git.
    pub fn diff(&self, session: &SessionId) -> Result<WorkspaceDiff> {
        let record = self.record(session)?;
        let (diff, left_out) = self.diff_of(&record, |shadow, tree, base, now| shadow.diff(tree, base, now))?;
        Ok(WorkspaceDiff { left_out, ..diff })
    }

    /// Writes the changes to the user's tree: all of them, or none.
    ///
    /// # Errors
    /// [`Error::WorkspaceConflict`] if the user's tree has changed in the same places; else as [`WorkspaceStore::diff`].
    pub fn apply(&self, session: &SessionId) -> Result<Event> {
        let mut record = self.record(session)?;
        let (_lock, git) = (self.lock(session)?, GitProgram::find(&self.env)?);
        let directory = self.path(session);
        let (shadow, tree) = (ShadowRepository::new(&git, directory.join("git")), directory.join("tree"));
        let (now, _) = take_snapshot(&shadow, &directory, &record)?;
        let files = shadow.changes(&tree, &record.base, &now)?.len() as u64;
        if files > 0 {
            let source = PathBuf::from(&record.source);
            shadow.apply(&source, &record.base, &now).map_err(|error| match error {
                ApplyError::Other(error) => error,
                ApplyError::Conflict { paths, message } => Error::WorkspaceConflict {
                    session: session.clone(),
                    source_tree: record.source.clone(),
                    paths,
                    message,
                },
            })?;
            record.base = now;
            write_record(&directory, &record)?;
        }
        Ok(step(&record, &tree, WorkspaceStep::Applied, files))
    }

    /// Removes a workspace with all changes in it.
    ///
    /// # Errors
    /// [`Error::UnknownWorkspace`], [`Error::WorkspaceBusy`], [`Error::System`]: what could not be removed is removed by the next call.
    pub fn remove(&self, session: &SessionId) -> Result<Event> {
        let directory = self.path(session);
        let Some(mut record) = read_record(&directory) else {
            return Err(Error::UnknownWorkspace { session: session.clone() });
        };
        let files = if record.is_complete { self.changed_files(session).unwrap_or_default() } else { 0 };
        let _lock = self.lock(session)?;
        record.is_complete = false;
        write_record(&directory, &record)?;
        remove_files(&directory)?;
        Ok(step(&record, &directory.join("tree"), WorkspaceStep::Dropped, files))
    }

    fn describe(&self, record: WorkspaceRecord) -> WorkspaceInfo {
        let changed_files = self.diff_of(&record, |shadow, tree, base, now| shadow.changes(tree, base, now));
        let directory = self.path(&record.session_id);
        let plan = WorkspacePlan { record: record.clone(), directory, exists: true };
        WorkspaceInfo {
            session_id: record.session_id,
            user_id: record.user_id,
            kind: record.kind,
            source: record.source,
            path: plan.tree().display().to_string(),
            cwd: plan.cwd().display().to_string(),
            created_at: record.created_at,
            changed_files: changed_files.ok().map(|(files, _)| files.len() as u64),
        }
    }

    fn record(&self, session: &SessionId) -> Result<WorkspaceRecord> {
        let record = read_record(&self.path(session)).filter(|record| record.is_complete);
        record.ok_or_else(|| Error::UnknownWorkspace { session: session.clone() })
    }

    fn lock(&self, session: &SessionId) -> Result<WorkspaceLock> {
        let path = self.path(session);
        let directory = File::open(&path).map_err(|error| system("opening", &path, error))?;
        match file_lock::try_lock(&directory).map_err(|error| system("locking", &path, error))? {
            true => Ok(WorkspaceLock(directory)),
            false => Err(Error::WorkspaceBusy { session: session.clone() }),
        }
    }

    /// Takes a snapshot of a workspace and compares it with its base. Returns the repositories that are left out, too.
    fn diff_of<T>(
        &self,
        record: &WorkspaceRecord,
        compare: impl FnOnce(&ShadowRepository<'_>, &Path, &str, &str) -> Result<T>,
    ) -> Result<(T, Vec<String>)> {
        // Its objects are borrowed from there.
        if let Err(error) = fs::metadata(&record.source) {
            let action = "looking for what the workspace was made of (put it back, or drop the workspace) in";
            return Err(system(action, Path::new(&record.source), error));
        }
        let (_lock, git) = (self.lock(&record.session_id)?, GitProgram::find(&self.env)?);
        let directory = self.path(&record.session_id);
        let (shadow, tree) = (ShadowRepository::new(&git, directory.join("git")), directory.join("tree"));
        let (now, left_out) = take_snapshot(&shadow, &directory, record)?;
        Ok((compare(&shadow, &tree, &record.base, &now)?, left_out))
    }
}

/// Stores a workspace's tree as it is now. Returns its id, and the repositories that are left out.
fn take_snapshot(
    shadow: &ShadowRepository<'_>,
    directory: &Path,
    record: &WorkspaceRecord,
) -> Result<(String, Vec<String>)> {
    if record.kind != WorkspaceKind::Overlay {
        return shadow.snapshot(&directory.join("tree"));
    }
    let upper = directory.join("upper");
    let changes = OverlayChanges::read(&upper, Path::new(&record.source));
    let changes = changes.map_err(|error| system("reading", &upper, error))?;
    shadow.snapshot_overlay(&upper, &changes, &record.base)
}

/// Top of the repository that a canonical path is in.
fn repository_of(real: &Path) -> Option<&Path> {
    real.ancestors().find(|path| path.join(".git").symlink_metadata().is_ok())
}

/// Returns the tree that the workspace of a session in `cwd` is made of: the repository, or the directory itself where there is none.
pub fn workspace_source(cwd: &Path) -> io::Result<PathBuf> {
    let real = fs::canonicalize(cwd)?;
    Ok(repository_of(&real).unwrap_or(&real).to_owned())
}

fn step(record: &WorkspaceRecord, tree: &Path, step: WorkspaceStep, files: u64) -> Event {
    let path = tree.display().to_string();
    Event::SessionWorkspace { step, kind: record.kind, source: record.source.clone(), path, files }
}

fn read_record(directory: &Path) -> Option<WorkspaceRecord> {
    serde_json::from_slice(&fs::read(directory.join("record.json")).ok()?).ok()
}

fn write_record(directory: &Path, record: &WorkspaceRecord) -> Result<()> {
    let (path, new) = (directory.join("record.json"), directory.join("record.new"));
    let failed = |error| system("writing", &path, error);
    let text = serde_json::to_vec(record).map_err(|error| failed(error.into()))?;
    fs::write(&new, text).and_then(|()| fs::rename(&new, &path)).map_err(failed)
}

/// Removes the files of a workspace that is marked as incomplete, its entry in a repository first.
fn remove_files(directory: &Path) -> Result<()> {
    let tree = directory.join("tree");
    // One that was being made has no agent yet that could have written its `.git`.
    let record = read_record(directory);
    let is_worktree = record.as_ref().is_some_and(|record| record.kind == WorkspaceKind::Worktree);
    let entry = record.and_then(|record| record.entry).or_else(|| entry_of(&tree).filter(|_| is_worktree));
    if let Some(entry) = entry {
        remove_entry(&entry, &tree).map_err(|error| system("removing the worktree's entry", &entry, error))?;
    }
    let failed = |error| system("removing the workspace", directory, error);
    for part in ["tree", "upper", "work", "git"] {
        directory_files::remove(&directory.join(part)).map_err(failed)?;
    }
    directory_files::remove(directory).map_err(failed)
}

/// Entry of a worktree in its repository, as its file `.git` names it.
fn entry_of(tree: &Path) -> Option<PathBuf> {
    let text = fs::read_to_string(tree.join(".git")).ok()?;
    Some(PathBuf::from(text.strip_prefix("gitdir: ")?.trim_end()))
}

/// Removes the entry of a worktree, as `git worktree remove` does. Nothing happens to the entry of another one.
fn remove_entry(entry: &Path, tree: &Path) -> io::Result<()> {
    let Some(entries) = entry.parent().filter(|entries| entries.ends_with("worktrees")) else { return Ok(()) };
    let names_tree = fs::read_to_string(entry.join("gitdir"));
    if names_tree.is_ok_and(|path| Path::new(path.trim_end()) == tree.join(".git")) {
        directory_files::remove(entry)?;
        // It stays while there are others.
        let _ = fs::remove_dir(entries);
    }
    Ok(())
}

fn invalid(reason: String) -> Error {
    Error::InvalidConfig { field: "workspace", reason }
}

fn system(operation: &str, path: &Path, error: io::Error) -> Error {
    Error::system(format!("{operation} {}", path.display()), error)
}

#[cfg(test)]
mod tests;
