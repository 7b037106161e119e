//! Removal of containers whose host was killed together with all supervisors. Without a state directory no journal names them: their
//! labels do.

use std::{
    collections::BTreeSet,
    os::unix::fs::MetadataExt as _,
    sync::{Arc, PoisonError, atomic::Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use ipc_protocol::{EnvVars, HOST_LABEL, Pid};
use registry::LabeledContainer;

use super::ManagerInner;
use crate::{
    blocking::ENDING,
    container_host::ContainerHost,
    launch::{NAME_PREFIX, installed_engines},
};

/// Time for supervisors that outlived their host to end their sessions themselves, in order.
const IN_ORDER: Duration = Duration::from_secs(5);
/// Pause between two looks at what they have left.
const INTERVAL: Duration = Duration::from_millis(250);

impl ManagerInner {
    /// Looks once for containers of dead hosts, in the background, and removes them.
    pub(super) fn remove_dead_containers(&self) {
        if self.has_swept_containers.swap(true, Ordering::Relaxed) {
            return;
        }
        let env = self.agent_defaults.lock().unwrap_or_else(PoisonError::into_inner).engine_env().clone();
        self.runtime.handle().spawn(async move {
            let work = move || installed_engines(&env).iter().for_each(|program| remove_dead(program, &env));
            if let Err(error) = ENDING.run("looking for containers of dead hosts", work).await {
                tracing::warn!(%error, "failed to look for containers of dead hosts");
            }
        });
    }
}

/// The same where an engine still runs a container of ours: a look at the command lines of processes starts none.
pub(super) fn start(inner: &Arc<ManagerInner>) {
    let inner = Arc::downgrade(inner);
    tokio::spawn(async move {
        let found = ENDING.run("looking for engines that run containers", has_engine).await;
        if let (Ok(true), Some(inner)) = (found, inner.upgrade()) {
            inner.remove_dead_containers();
        }
    });
}

/// Returns whether a process of this user's is an engine with a container of a session.
fn has_engine() -> bool {
    let own = nix::unistd::geteuid().as_raw();
    let is_own = |pid: &Pid| std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|process| process.uid() == own);
    let pids = registry::numbers_in_proc(".", usize::MAX).unwrap_or_default();
    pids.into_iter().filter(is_own).filter_map(registry::command_line).any(|argv| is_engine(&argv))
}

/// Returns whether a command line is one of an engine with a container of a session: `podman run` and `docker run` have its label, and
/// Podman's monitor, which outlives them, its name.
fn is_engine(argv: &[String]) -> bool {
    let label = format!("{HOST_LABEL}=");
    let names = argv.windows(2).filter(|pair| pair[0] == "-n").any(|pair| pair[1].starts_with(NAME_PREFIX));
    names || argv.iter().any(|word| word.starts_with(&label))
}

/// Removes the containers of dead hosts, when their supervisors have had time to.
fn remove_dead(program: &str, env: &EnvVars) {
    let until = Instant::now() + IN_ORDER;
    let mut dead = match dead_containers(program, env) {
        Ok(dead) => dead,
        // Docker may be installed and not run.
        Err(failure) => return tracing::info!(failure, "failed to list the containers of dead hosts"),
    };
    while !dead.is_empty() && Instant::now() < until {
        sleep(INTERVAL);
        if let Ok(still) = dead_containers(program, env) {
            dead.retain(|id| still.contains(id));
        }
    }
    for id in dead {
        let removal = registry::remove_container(program, env, &id);
        match removal.failure {
            None => tracing::info!(container = id, "removed a container whose supervisors had died"),
            Some(failure) => tracing::warn!(container = id, failure, "failed to remove a container of a dead host"),
        }
    }
}

fn dead_containers(program: &str, env: &EnvVars) -> Result<BTreeSet<String>, String> {
    let is_over = |container: &LabeledContainer| matches!(container.state.as_str(), "exited" | "stopped" | "dead");
    let is_dead = |container: &LabeledContainer| is_dead(&container.value, !is_over(container)).unwrap_or(false);
    let found = registry::labeled_containers(program, env, HOST_LABEL)?;
    Ok(found.into_iter().filter(is_dead).map(|container| container.id).collect())
}

/// Returns whether the host that a label names is dead; `None` for no label of ours.
fn is_dead(label: &str, is_running: bool) -> Option<bool> {
    let host: ContainerHost = label.parse().ok()?;
    Some(host.is_dead(is_running))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_of_ours_are_known_by_their_command_lines() {
        for (line, expected) in [
            ("podman run --label agent-proxy.host=0/b/p/1/2 image sh", true),
            ("/usr/bin/conmon --api-version 1 -c 12ab -n agent-proxy-34cd --exit-dir /run", true),
            ("/usr/bin/conmon --api-version 1 -c 12ab -n web --exit-dir /run", false),
            ("agent-proxy-server -n 4", false),
            ("podman run --label other.host=1 image", false),
        ] {
            let argv: Vec<_> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(is_engine(&argv), expected, "{line}");
        }
    }
}
