//! Removal of containers whose host was killed together with all supervisors. Without a state directory no journal names them: their
//! labels do.

use std::{
    collections::BTreeSet,
    sync::{Arc, PoisonError, atomic::Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use ipc_protocol::{EnvVars, HOST_LABEL};
use registry::LabeledContainer;

use super::ManagerInner;
use crate::{blocking::ENDING, container_host::ContainerHost, launch::installed_engines};

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
        self.runtime.spawn(async move {
            let work = move || installed_engines(&env).iter().for_each(|program| remove_dead(program, &env));
            if let Err(error) = ENDING.run("looking for containers of dead hosts", work).await {
                tracing::warn!(%error, "failed to look for containers of dead hosts");
            }
        });
    }
}

/// The same where an engine of a dead host still runs: a look at the command lines of processes starts none.
pub(super) fn start(inner: &Arc<ManagerInner>) {
    let inner = Arc::downgrade(inner);
    tokio::spawn(async move {
        let found = ENDING.run("looking for engines of dead hosts", has_dead_engine).await;
        if let (Ok(true), Some(inner)) = (found, inner.upgrade()) {
            inner.remove_dead_containers();
        }
    });
}

/// Returns whether a process has the label of a dead host in its command line, as `podman run` and `docker run` have.
fn has_dead_engine() -> bool {
    let prefix = format!("{HOST_LABEL}=");
    let names_dead_host = |argv: Vec<String>| {
        argv.iter().filter_map(|word| word.strip_prefix(&prefix)).any(|value| is_dead(value, true).unwrap_or(false))
    };
    let pids = registry::numbers_in_proc(".", usize::MAX).unwrap_or_default();
    pids.into_iter().filter_map(registry::command_line).any(names_dead_host)
}

/// Removes the containers of dead hosts, when their supervisors have had time to.
fn remove_dead(program: &str, env: &EnvVars) {
    let until = Instant::now() + IN_ORDER;
    let mut dead = dead_containers(program, env);
    while !dead.is_empty() && Instant::now() < until {
        sleep(INTERVAL);
        let still = dead_containers(program, env);
        dead.retain(|id| still.contains(id));
    }
    for id in dead {
        let removal = registry::remove_container(program, env, &id);
        match removal.failure {
            None => tracing::info!(container = id, "removed a container whose supervisors had died"),
            Some(failure) => tracing::warn!(container = id, failure, "failed to remove a container of a dead host"),
        }
    }
}

fn dead_containers(program: &str, env: &EnvVars) -> BTreeSet<String> {
    let found = registry::labeled_containers(program, env, HOST_LABEL).unwrap_or_else(|failure| {
        tracing::debug!(failure, "failed to list the containers of dead hosts");
        Vec::new()
    });
    let is_over = |container: &LabeledContainer| matches!(container.state.as_str(), "exited" | "stopped" | "dead");
    let dead = found.into_iter().filter(|container| is_dead(&container.value, !is_over(container)).unwrap_or(false));
    dead.map(|container| container.id).collect()
}

/// Returns whether the host that a label names is dead; `None` for no label of ours.
fn is_dead(label: &str, is_running: bool) -> Option<bool> {
    let host: ContainerHost = label.parse().ok()?;
    Some(host.is_dead(is_running))
}
