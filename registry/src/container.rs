//! Removal of containers by the program that runs them.

use std::{
    fs::File,
    io::Read as _,
    os::fd::AsFd as _,
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
/// Most of what the engine says of a failure.
const MAX_WORDS: u64 = 4096;

/// Ends a container with everything in it, and removes it with its mounts and volumes. `program` is the path of `podman` or `docker`.
/// Blocks for as long as that takes. A container that is gone already counts as removed.
///
/// The engine must be no child that somebody else reaps.
pub fn remove_container(program: &str, env: &EnvVars, name: &str) -> ContainerRemoval {
    let mut failure = remove(program, env, name).err();
    for _ in 1..ATTEMPTS {
        if failure.is_some() {
            failure = remove(program, env, name).err();
        }
    }
    ContainerRemoval { name: name.to_owned(), is_removed: failure.is_none(), failure }
}

fn remove(program: &str, env: &EnvVars, name: &str) -> Result<(), String> {
    let is_podman = Path::new(program).file_name().is_some_and(|file| file.as_encoded_bytes().starts_with(b"podman"));
    let words: &[&str] = match is_podman {
        // `--time`: its processes have had their grace.
        true => &["rm", "--force", "--ignore", "--volumes", "--time", "0"],
        false => &["rm", "--force", "--volumes"],
    };
    let request = SpawnRequest {
        argv: std::iter::once(program).chain(words.iter().copied()).chain([name]).map(Into::into).collect(),
        env: env.0.iter().map(|(name, value)| (name.into(), value.into())).collect(),
        cwd: Some("/".into()),
        stderr: SpawnOutput::Pipe,
        ..SpawnRequest::new(program)
    };
    let failed = |error: &(dyn std::error::Error + 'static)| format!("{program} rm {name}: {}", ErrorChain(error));
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
            return Err(format!("{program} rm {name}: it was not done in {} s", TIMEOUT.as_secs()));
        }
        let pause = Timespec::try_from(left).unwrap_or_default();
        // Interrupted or not, it is looked at again.
        let _ = poll(&mut [PollFd::new(&engine.process.as_fd(), PollFlags::IN)], Some(&pause));
    };
    if exit == ExitStatus::Code(0) {
        return Ok(());
    }
    let mut words = Vec::new();
    if let Some(stderr) = engine.stderr.take() {
        // What it wrote is in the pipe, which is non-blocking.
        let _ = File::from(stderr).take(MAX_WORDS).read_to_end(&mut words);
    }
    let words = String::from_utf8_lossy(&words);
    // Docker's words for what is gone.
    if words.contains("No such container") {
        return Ok(());
    }
    Err(format!("{program} rm {name}: {exit}: {}", words.trim()))
}
