//! The file that a terminal is recorded to.

use std::{fs, io, path::Path};

use ipc_protocol::terminal::TerminalConfig;

use super::invalid;
use crate::{blocking::blocking, error::Result};

const FIELD: &str = "terminal.record";

/// Checks that a recording can be begun: the proxy creates its file, and never writes to one that is there.
///
/// # Errors
/// [`Error::InvalidConfig`](crate::Error::InvalidConfig).
pub(crate) async fn check_recording(terminal: Option<&TerminalConfig>) -> Result<()> {
    let Some(path) = terminal.and_then(|terminal| terminal.record.clone()) else { return Ok(()) };
    blocking("looking for the file of a recording", move || check_path(&path)).await?
}

fn check_path(path: &str) -> Result<()> {
    let refused = |why: String| Err(invalid(FIELD, format!("{path:?} {why}")));
    if !path.starts_with('/') || path.contains('\0') {
        return refused("is no absolute path".to_owned());
    }
    match fs::symlink_metadata(path) {
        Ok(_) => return refused("exists: name a file that does not, or remove it".to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return refused(format!("cannot be created ({error})")),
    }
    match Path::new(path).parent() {
        Some(folder) if folder.is_dir() => Ok(()),
        _ => refused("is in no directory that exists: create it, or name another".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn only_a_new_file_in_a_directory_is_recorded_to() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
        check_path(&path("new.cast")).expect("it can be created");
        fs::write(path("old.cast"), "").expect("written");
        std::os::unix::fs::symlink("nowhere", path("link.cast")).expect("linked");
        for (path, words) in [
            (path("old.cast"), "exists"),
            (path("link.cast"), "exists"),
            (path("none/new.cast"), "no directory"),
            (path("old.cast/new.cast"), "cannot be created"),
            ("new.cast".to_owned(), "no absolute path"),
            ("/".to_owned(), "exists"),
        ] {
            match check_path(&path) {
                Err(Error::InvalidConfig { field, reason }) => {
                    assert_eq!(field, FIELD);
                    assert!(reason.contains(words), "{reason}");
                }
                other => panic!("{path}: {other:?}"),
            }
        }
    }
}
