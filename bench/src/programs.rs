//! Only place of the bench that starts programs without the registry: the product must not measure itself.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use crate::error::{Error, Result};

/// Longest time for anything that should end at once.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Starts a program with pipes for its standard input and output; its standard error is ours.
///
/// # Errors
/// The system's; `NotFound` when there is no such program.
pub(crate) fn start(program: &OsStr, args: &[OsString]) -> std::io::Result<Child> {
    #[expect(clippy::disallowed_methods, reason = "the bench measures what it compares with")]
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn()
}

/// Finds `program` in `PATH`.
///
/// # Errors
/// When `PATH` does not have it.
pub(crate) fn find(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file());
    found.ok_or_else(|| Error::answer(program, "is not in PATH"))
}

/// Path of this executable.
///
/// # Errors
/// The system's.
pub(crate) fn own() -> Result<PathBuf> {
    std::env::current_exe().map_err(Error::system("finding this executable"))
}

/// Builds the argv of this executable as an agent that writes as many lines of `len` bytes as each line of its
/// input asks for.
///
/// # Errors
/// The system's; when the path is no UTF-8.
pub(crate) fn lines_argv(len: usize) -> Result<Vec<String>> {
    own_argv(["lines".into(), len.to_string()])
}

/// Builds the argv of this executable as an agent that writes as many lines as its input asks for, `lines` of them
/// every `interval_ms`.
///
/// # Errors
/// Same as [`lines_argv`].
pub(crate) fn paced_argv(lines: u64, interval_ms: u64) -> Result<Vec<String>> {
    own_argv(["paced".into(), lines.to_string(), interval_ms.to_string()])
}

/// Builds the argv of this executable as an agent that writes `per_second` lines a second, each with its time.
///
/// # Errors
/// Same as [`lines_argv`].
pub(crate) fn ticks_argv(per_second: u64) -> Result<Vec<String>> {
    own_argv(["ticks".into(), per_second.to_string()])
}

fn own_argv<const N: usize>(args: [String; N]) -> Result<Vec<String>> {
    let own = own()?.into_os_string().into_string();
    let own = own.map_err(|path| Error::answer(path.display().to_string(), "is a path that is not UTF-8"))?;
    Ok([own].into_iter().chain(args).collect())
}

/// Starts a program as leader of a session, whose controlling terminal is `terminal`.
///
/// # Errors
/// The system's.
pub(crate) fn start_in_terminal(
    argv: &[OsString],
    environment: &[(OsString, OsString)],
    terminal: OwnedFd,
) -> std::io::Result<Child> {
    #[expect(clippy::disallowed_methods, reason = "the bench measures what it compares with")]
    let mut command = Command::new("setsid");
    command.arg("--ctty").args(argv).env_clear().envs(environment.iter().cloned());
    command.stdin(terminal.try_clone()?).stdout(terminal.try_clone()?).stderr(terminal).spawn()
}

/// Runs a program to its end.
///
/// # Errors
/// The system's.
pub(crate) fn output(program: &Path, args: &[&str], environment: &[(OsString, OsString)]) -> std::io::Result<Output> {
    #[expect(clippy::disallowed_methods, reason = "the bench measures what it compares with")]
    let mut command = Command::new(program);
    command.args(args).env_clear().envs(environment.iter().cloned()).stdin(Stdio::null()).output()
}

/// Starts a server: its standard output is a pipe, its standard error goes to a file.
///
/// # Errors
/// The system's.
pub(crate) fn serve(
    program: &Path,
    args: &[OsString],
    environment: &[(OsString, OsString)],
    log: &Path,
) -> std::io::Result<Child> {
    #[expect(clippy::disallowed_methods, reason = "the bench measures what it compares with")]
    let mut command = Command::new(program);
    command.args(args).env_clear().envs(environment.iter().cloned()).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(File::create(log)?).spawn()
}
