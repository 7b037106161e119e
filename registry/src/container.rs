//! Listing and removal of containers by the program that runs them.

use std::{
    fs::File,
    io::Read as _,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

use ipc_protocol::{ContainerRemoval, EnvVars, ErrorChain, ExitStatus, Signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{SpawnOutput, SpawnRequest, spawn};

/// Longest wait for the engine. Podman takes some 0.1 s.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Runs of the engine. Podman refuses a container whose processes have died since it last looked (`container state improper`),
/// and knows that in the next run.
const ATTEMPTS: usize = 3;
/// Most that is read of what the engine prints.
const MAX_WORDS: u64 = 32 << 10;
/// Podman's words where it finds no process of its user's namespaces, and what it believes to run does not.
const FORGOTTEN: &str = "could not find any running process";
/// Words of both engines, in lower case, for a container that is gone.
const GONE: &str = "no such container";
/// Pause before it is asked again to remove a container that another call is removing.
const PAUSE: Duration = Duration::from_millis(100);

/// Ends a container with everything in it, and removes it with its mounts and volumes. `program` is the path of `podman` or `docker`.
/// Blocks for as long as that takes. A container that is gone already counts as removed.
///
/// The engine must be no child that somebody else reaps.
pub fn remove_container(program: &str, env: &EnvVars, name: &str) -> ContainerRemoval {
    let until = Instant::now() + TIMEOUT;
    let mut failure = remove(program, env, name).err();
    let mut attempts = 1;
    while let Some(words) = &failure {
        // Docker's words while another call removes it.
        if words.contains("already in progress") && Instant::now() < until {
            std::thread::sleep(PAUSE);
        } else if attempts == ATTEMPTS {
            break;
        } else {
            attempts += 1;
        }
        failure = remove(program, env, name).err();
    }
    ContainerRemoval { name: name.to_owned(), is_removed: failure.is_none(), failure }
}

/// Container that has a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabeledContainer {
    /// Id that the engine gave it.
    pub id: String,
    /// State in the engine's words: `running`, `exited`.
    pub state: String,
    /// Value of the label.
    pub value: String,
}

/// Lists the containers with a label, running or not. `program` is the path of `podman` or `docker`. Blocks for as long as that takes.
///
/// The engine must be no child that somebody else reaps.
///
/// # Errors
/// What the engine said each time it was asked, for whoever reads the log: what it has is not known then.
pub fn labeled_containers(program: &str, env: &EnvVars, label: &str) -> Result<Vec<LabeledContainer>, String> {
    let mut listed = list(program, env, label);
    for _ in 1..ATTEMPTS {
        if listed.is_ok() {
            break;
        }
        listed = list(program, env, label);
    }
    listed
}

fn list(program: &str, env: &EnvVars, label: &str) -> Result<Vec<LabeledContainer>, String> {
    let filter = format!("label={label}");
    let ids = run_engine(program, env, &["ps", "--all", "--quiet", "--filter", &filter])?;
    let format = format!("{{{{.State.Status}}}} {{{{index .Config.Labels {label:?}}}}}");
    let inspect =
        |id: &str| match run_engine(program, env, &["inspect", "--type", "container", "--format", &format, id]) {
            Ok(line) => {
                let (state, value) = line.trim().split_once(' ')?;
                Some(Ok(LabeledContainer { id: id.to_owned(), state: state.to_owned(), value: value.to_owned() }))
            }
            // One that is gone meanwhile is no container any more.
            Err(failure) if failure.to_ascii_lowercase().contains(GONE) => None,
            Err(failure) => Some(Err(failure)),
        };
    ids.split_whitespace().filter_map(inspect).collect()
}

/// Readies the engine for a container. Blocks for as long as that takes. Of podman, what fails here fails again, with its reason, when it
/// starts the container. Docker's program is started before its daemon is asked for anything, so that is asked here.
///
/// Podman without root has a process that holds its user's namespaces, which the first call of all starts. Were that a session's, the kill
/// of the session would end it, and podman would find its other containers no more.
///
/// The engine must be no child that somebody else reaps.
///
/// # Errors
/// Docker's words where its daemon does not answer.
pub fn prepare_engine(program: &str, env: &EnvVars) -> Result<(), String> {
    if !is_podman(program) {
        return run_engine(program, env, &["ps", "--quiet"]).map(drop);
    }
    if !nix::unistd::geteuid().is_root() {
        let _ = run_engine(program, env, &["unshare", "true"]);
    }
    Ok(())
}

fn is_podman(program: &str) -> bool {
    Path::new(program).file_name().is_some_and(|file| file.as_encoded_bytes().starts_with(b"podman"))
}

fn remove(program: &str, env: &EnvVars, name: &str) -> Result<(), String> {
    let words: &[&str] = match is_podman(program) {
        // `--time`: its processes have had their grace.
        true => &["rm", "--force", "--ignore", "--volumes", "--time", "0", name],
        false => &["rm", "--force", "--volumes", name],
    };
    match run_engine(program, env, words) {
        Err(failure) if failure.to_ascii_lowercase().contains(GONE) => Ok(()),
        // Podman's words where the process that held the user's namespaces is gone, and every container with it.
        Err(failure) if failure.contains(FORGOTTEN) => {
            run_engine(program, env, &["system", "migrate"])?;
            run_engine(program, env, words).map(drop)
        }
        done => done.map(drop),
    }
}

/// Runs the engine to its end, and returns what it printed.
fn run_engine(program: &str, env: &EnvVars, words: &[&str]) -> Result<String, String> {
    let request = SpawnRequest {
        argv: std::iter::once(program).chain(words.iter().copied()).map(Into::into).collect(),
        env: env.0.iter().map(|(name, value)| (name.into(), value.into())).collect(),
        cwd: Some("/".into()),
        stdout: SpawnOutput::Pipe,
        stderr: SpawnOutput::Pipe,
        ..SpawnRequest::new(program)
    };
    let call = || format!("{program} {}", words.join(" "));
    let failed = |error: &(dyn std::error::Error + 'static)| format!("{}: {}", call(), ErrorChain(error));
    let mut engine = spawn(request).map_err(|error| failed(&error))?;
    let until = Instant::now() + TIMEOUT;
    let exit = loop {
        if let Some(exit) = engine.process.try_reap().map_err(|error| failed(&error))? {
            break exit;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            // A child of this process: it is there until it is reaped.
            let _ = engine.process.signal(Signal::Kill);
            return Err(format!("{}: it was not done in {} s", call(), TIMEOUT.as_secs()));
        }
        let pause = Timespec::try_from(left).unwrap_or_default();
        // Interrupted or not, it is looked at again.
        let _ = poll(&mut [PollFd::new(&engine.process.as_fd(), PollFlags::IN)], Some(&pause));
    };
    // What it wrote is in the pipes, which are non-blocking, and hold more than that.
    let text = |pipe: Option<OwnedFd>| {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            let _ = File::from(pipe).take(MAX_WORDS).read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (stdout, stderr) = (text(engine.stdout.take()), text(engine.stderr.take()));
    match exit {
        ExitStatus::Code(0) => Ok(stdout),
        exit => Err(format!("{}: {exit}: {}", call(), stderr.trim())),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    /// Lists with an engine that counts its calls in `calls`, and does `script` with their number in `n`.
    fn listed(script: &str) -> (Result<Vec<LabeledContainer>, String>, usize) {
        with_engine("podman", script, |program, env| labeled_containers(program, env, "a.label"))
    }

    /// Calls something with an engine, and returns how often that was started.
    fn with_engine<T>(name: &str, script: &str, call: impl FnOnce(&str, &EnvVars) -> T) -> (T, usize) {
        let directory = tempfile::tempdir().expect("a directory");
        let (program, calls) = (directory.path().join(name), directory.path().join("calls"));
        let script = format!("#!/bin/sh\necho $1 >>{0}\nn=$(grep -c . {0})\n{script}\n", calls.display());
        // Written by another process: one that is forked meanwhile by another test would hold a descriptor that writes.
        let source = directory.path().join("source");
        fs::write(&source, script).expect("written");
        let env = [("PATH", "/usr/bin:/bin".to_owned())].into_iter().collect();
        let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        run_engine("/bin/cp", &env, &[&text(&source), &text(&program)]).expect("copied");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).expect("set");
        let called = call(&text(&program), &env);
        (called, fs::read_to_string(calls).expect("called").lines().count())
    }

    fn container(id: &str) -> LabeledContainer {
        LabeledContainer { id: id.to_owned(), state: "running".to_owned(), value: "a value".to_owned() }
    }

    #[test]
    fn a_listing_that_fails_is_tried_again() {
        let ids = "case $1 in ps) echo a b;; *) echo running a value;; esac";
        assert_eq!(listed(ids), (Ok(vec![container("a"), container("b")]), 3));
        assert_eq!(listed(&format!("[ $n = 1 ] && exit 1\n{ids}")), (Ok(vec![container("a"), container("b")]), 4));
        assert_eq!(listed(&format!("[ $n = 2 ] && exit 1\n{ids}")), (Ok(vec![container("a"), container("b")]), 5));
    }

    #[test]
    fn docker_without_its_daemon_is_told() {
        let (answered, _) = with_engine("docker", "exit 0", prepare_engine);
        assert_eq!(answered, Ok(()));
        let (refused, _) =
            with_engine("docker", "echo 'Cannot connect to the Docker daemon' >&2; exit 1", prepare_engine);
        assert!(refused.as_ref().is_err_and(|failure| failure.contains("Cannot connect")), "{refused:?}");
    }

    #[test]
    fn what_cannot_be_listed_is_no_empty_list() {
        let (listed, calls) = listed("echo locked >&2; exit 125");
        assert!(
            listed.as_ref().is_err_and(|failure| failure.contains("ps --all") && failure.contains("locked")),
            "{listed:?}"
        );
        assert_eq!(calls, ATTEMPTS);
    }

    #[test]
    fn a_container_that_goes_meanwhile_is_none() {
        let script = "case $1,$n in ps,*) echo a b;; *,2) echo 'Error: No such container: a' >&2; exit 1;; *) echo running a value;; esac";
        assert_eq!(listed(script), (Ok(vec![container("b")]), 3));
    }
}
