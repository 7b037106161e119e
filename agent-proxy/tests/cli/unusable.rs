//! State directories that a daemon cannot use: each is told, with what to do, and nothing of it is changed.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use nix::sys::signal::Signal;

use crate::harness::{PROGRAM, Place, Ran, Running, not_run};

impl Place {
    fn state(&self) -> PathBuf {
        self.directory.join("state")
    }

    /// The command that starts a daemon which keeps what there is in this place.
    fn begins(&self, flags: &[&str]) -> Command {
        let state = self.state();
        self.command(&[flags, &["serve", "--state-dir", state.to_str().expect("UTF-8")]].concat())
    }

    /// A daemon begins, and ends in order: the state directory is as one leaves it.
    fn is_good(&self) {
        let state = self.state();
        let daemon = self.serve_with(&["--state-dir", state.to_str().expect("UTF-8")]);
        daemon.end(Signal::SIGTERM).exits(0);
    }
}

/// What a daemon says that cannot begin, to people and to programs.
fn refused(ran: [Ran; 2], kind: &str, says: &[&str]) {
    let [text, json] = ran.map(|ran| ran.exits(1));
    let problem = json.problem();
    assert_eq!(problem["type"], kind, "{problem}");
    let detail = problem["detail"].as_str().expect("a text");
    for word in says {
        assert!(detail.contains(word) && text.stderr.contains(word), "{word}: {detail}\n{}", text.stderr);
    }
    assert_eq!((text.stdout.as_str(), json.stdout.as_str()), ("", ""), "it listens to nobody");
}

#[test]
fn a_log_that_is_none_or_is_torn_is_told_and_left_as_it_is() {
    let place = Place::new();
    place.is_good();
    let log = place.state().join("log.sqlite");
    let whole = fs::read(&log).expect("a log");
    let mut torn = whole.clone();
    torn[100..2000].fill(0xa5);
    let path = log.to_str().expect("UTF-8");
    for (bytes, says) in [(b"# Notes\n".repeat(400), "it is no event log"), (torn, "it is damaged")] {
        fs::write(&log, &bytes).expect("written");
        let ran = [&[][..], &["--json"]].map(|flags| Running::new(place.begins(flags)).end());
        refused(ran, "log", &[path, says, "move "]);
        assert!(fs::read(&log).expect("the file") == bytes, "it was changed");
    }
    // As it says: a new one is begun in its place.
    fs::rename(&log, place.directory.join("damaged")).expect("moved away");
    place.is_good();
}

/// The same command, for which this directory cannot be written. Root can write wherever the kernel lets it: there it is mounted so,
/// for the command alone. `None` where that is not allowed.
fn read_only(command: Command, directory: &Path) -> Option<Command> {
    if !nix::unistd::geteuid().is_root() {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o500)).expect("a read-only directory");
        return Some(command);
    }
    let script = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\" || exit 99; exec \"$@\"";
    let mut wrapped = unshared(directory, script);
    wrapped.arg(PROGRAM).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    let can = unshared(directory, "mount --bind \"$0\" \"$0\"").output().is_ok_and(|tried| tried.status.success());
    can.then_some(wrapped)
}

#[expect(clippy::disallowed_methods, reason = "a shell in a mount namespace of its own")]
fn unshared(directory: &Path, script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(directory);
    command
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    command
}

#[test]
fn a_state_directory_that_cannot_be_written_is_told() {
    // One that a daemon has had, and one that none has.
    for is_used in [true, false] {
        let place = Place::new();
        let state = place.state();
        match is_used {
            true => place.is_good(),
            false => fs::create_dir(&state).expect("made"),
        }
        fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).expect("private");
        let lock = state.join("lock");
        let before = fs::read(&lock).ok();
        let commands = [&[][..], &["--json"]].map(|flags| read_only(place.begins(flags), &state));
        let [Some(text), Some(json)] = commands else {
            return not_run("a state directory that is read-only: nothing can be mounted here");
        };
        let ran = [text, json].map(|command| Running::new(command).end());
        fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).expect("writable");
        let path = state.to_str().expect("UTF-8");
        refused(
            ran,
            "system",
            &["the state directory", path, "make it writable for this user, or name another directory"],
        );
        assert_eq!(fs::read(&lock).ok(), before);
        place.is_good();
    }
}
