//! File with an agent's settings, and the copy of it from before our hooks.

use std::{
    fs, io,
    io::Write as _,
    path::{Path, PathBuf},
};

use proxy_server::ProblemDetails;

use super::hook_settings::{
    HookState, SettingsError, disables_hooks, hook_state, installed_commands, with_hooks, without_hooks,
};

/// End of the copy's name.
const BACKUP_END: &str = ".before-agent-proxy";

/// Settings of an agent.
#[derive(Debug)]
pub(super) struct SettingsFile {
    /// Path as the user has it: it may be a link.
    path: PathBuf,
    /// `None` where there is no file.
    text: Option<String>,
}

/// What has become of the settings.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SettingsChange {
    /// They are as they were.
    Unchanged,
    Written {
        /// Copy from before, if there was a file.
        backup: Option<PathBuf>,
    },
    /// They are as before the installation.
    Restored,
    /// The hooks are removed; the copy from before is kept.
    Removed { backup: Option<PathBuf> },
}

impl SettingsFile {
    /// Reads the file.
    ///
    /// # Errors
    /// `failed` if there is one that cannot be read.
    pub(super) fn read(path: &Path) -> Result<Self, ProblemDetails> {
        let text = match fs::read_to_string(path) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed("reading", path, &error)),
        };
        Ok(Self { path: path.to_owned(), text })
    }

    /// Returns whether our hooks are there.
    ///
    /// # Errors
    /// `failed` if it is not JSON.
    pub(super) fn state(&self, command: &str) -> Result<HookState, ProblemDetails> {
        self.text.as_deref().map_or(Ok(HookState::Absent), |text| {
            hook_state(text, command).map_err(|error| self.unusable("reading", &error))
        })
    }

    /// Returns true if the settings switch all hooks off.
    pub(super) fn disables_hooks(&self) -> bool {
        self.text.as_deref().is_some_and(disables_hooks)
    }

    /// Adds the hooks.
    ///
    /// # Errors
    /// `failed` if they cannot be edited or written: then they are as they were.
    pub(super) fn install(&self, command: &str) -> Result<SettingsChange, ProblemDetails> {
        let before = self.text.as_deref().unwrap_or_default();
        let edited = with_hooks(before, command).map_err(|error| self.unusable("editing", &error))?;
        if self.text.as_deref() == Some(&*edited) {
            return Ok(SettingsChange::Unchanged);
        }
        self.check_writable()?;
        let mut backup = None;
        if let Some(text) = &self.text {
            let is_first = installed_commands(text).is_ok_and(|commands| commands.is_empty());
            let path = self.backup_path();
            if is_first || !path.exists() {
                write_new(&path, text, mode_of(&self.path))
                    .map_err(|error| failed("writing the copy", &path, &error))?;
            }
            backup = Some(path);
        } else if let Some(parent) = self.path.parent() {
            fs::create_dir_all(parent).map_err(|error| failed("creating", parent, &error))?;
        }
        self.write(&edited)?;
        Ok(SettingsChange::Written { backup })
    }

    /// Removes the hooks.
    ///
    /// # Errors
    /// As [`Self::install`].
    pub(super) fn uninstall(&self) -> Result<SettingsChange, ProblemDetails> {
        let Some(text) = &self.text else { return Ok(SettingsChange::Unchanged) };
        let commands = installed_commands(text).map_err(|error| self.unusable("reading", &error))?;
        let Some(command) = commands.first() else { return Ok(SettingsChange::Unchanged) };
        self.check_writable()?;
        let path = self.backup_path();
        let backup = fs::read_to_string(&path).ok();
        // The file is what our edit has made of the copy, or of nothing.
        let is_ours = with_hooks(backup.as_deref().unwrap_or_default(), command).is_ok_and(|made| made == *text);
        match (is_ours, backup) {
            (true, Some(backup)) => {
                self.write(&backup)?;
                fs::remove_file(&path).map_err(|error| failed("removing the copy", &path, &error))?;
                Ok(SettingsChange::Restored)
            }
            (true, None) => {
                fs::remove_file(&self.path).map_err(|error| failed("removing", &self.path, &error))?;
                Ok(SettingsChange::Restored)
            }
            (false, backup) => {
                let edited = without_hooks(text).map_err(|error| self.unusable("editing", &error))?;
                self.write(&edited)?;
                Ok(SettingsChange::Removed { backup: backup.map(|_| path) })
            }
        }
    }

    fn backup_path(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(BACKUP_END);
        name.into()
    }

    /// Checks that its user has not made it read-only: the file is replaced, which that alone would not prevent.
    fn check_writable(&self) -> Result<(), ProblemDetails> {
        let is_read_only = fs::metadata(&self.path).is_ok_and(|metadata| metadata.permissions().readonly());
        if is_read_only {
            let path = self.path.display();
            return Err(ProblemDetails::failed(format!("{path} is read-only: it was not changed (chmod u+w {path})")));
        }
        Ok(())
    }

    /// Replaces the file, unless somebody else has changed it. What it is a link to is replaced.
    fn write(&self, text: &str) -> Result<(), ProblemDetails> {
        let path = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let error = |error: &io::Error| failed("writing", &path, error);
        let folder = path.parent().unwrap_or(Path::new("/"));
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(|problem| error(&problem))?;
        file.write_all(text.as_bytes()).and_then(|()| file.as_file().sync_all()).map_err(|problem| error(&problem))?;
        if let Some(permissions) = mode_of(&path) {
            file.as_file().set_permissions(permissions).map_err(|problem| error(&problem))?;
        }
        if fs::read_to_string(&path).ok() != self.text {
            let detail = format!("{} was changed meanwhile: nothing was written, try again", path.display());
            return Err(ProblemDetails::new("refused", detail));
        }
        file.persist(&path).map_err(|problem| error(&problem.error))?;
        Ok(())
    }

    fn unusable(&self, what: &str, error: &SettingsError) -> ProblemDetails {
        ProblemDetails::failed(format!("{what} {} failed: {error}; it was not changed", self.path.display()))
    }
}

fn mode_of(path: &Path) -> Option<fs::Permissions> {
    fs::metadata(path).ok().map(|metadata| metadata.permissions())
}

fn write_new(path: &Path, text: &str, permissions: Option<fs::Permissions>) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    if let Some(permissions) = permissions {
        file.as_file().set_permissions(permissions)?;
    }
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

fn failed(what: &str, path: &Path, error: &io::Error) -> ProblemDetails {
    ProblemDetails::failed(format!("{what} {} failed: {error}", path.display()))
}
