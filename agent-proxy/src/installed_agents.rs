//! Discovery of installed agents and their versions. Only sessions may start programs, so agents are asked for
//! their versions in sessions.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use agents::{
    AgentSpec, Catalog,
    discovery::{self, FoundAgent, ProgramVersion},
};
use api_types::InstalledAgent;
use ipc_protocol::ErrorChain;
use proxy_manager::{AgentSessionConfig, ChildProgram, Event, KillOptions, ProxyManager, Timeouts};
use proxy_server::{
    ProblemDetails,
    installed_agents::{describe, node_command},
};
use tokio::task::JoinSet;

use crate::{command_failure::CommandFailure, configuration::places, environment};

/// Longest time for a program to print its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(15);
/// Number of programs asked concurrently.
const MAX_CONCURRENT: usize = 4;
/// Bytes of a program's output that are examined.
const MAX_OUTPUT: usize = 4096;

/// Looks for all agents of the catalog. Unless `child` is `None`, starts those whose version is in no file, to ask
/// for it.
///
/// # Errors
/// The manager's, when it cannot be started for that.
pub(crate) async fn installed(
    catalog: &Catalog,
    child: Option<ChildProgram>,
) -> Result<Vec<InstalledAgent>, CommandFailure> {
    let places = places();
    let found: Vec<(&AgentSpec, FoundAgent)> =
        catalog.rows().iter().map(|row| (row, discovery::discover(row, &places))).collect();
    let commands: BTreeSet<Vec<String>> =
        found.iter().flat_map(|(_, found)| [found.version_command.clone(), node_command(found)]).flatten().collect();
    let versions = match child {
        Some(child) => Some(run_version_commands(child, commands).await?),
        None => None,
    };
    let env = environment::all();
    Ok(found.into_iter().map(|(row, found)| describe(row, found, &env, versions.as_ref())).collect())
}

/// Runs each command in a session of its own, and parses the version from its output. Some programs write to their
/// home even for that, so they get a temporary one.
async fn run_version_commands(
    child: ChildProgram,
    commands: BTreeSet<Vec<String>>,
) -> Result<BTreeMap<Vec<String>, ProgramVersion>, CommandFailure> {
    if commands.is_empty() {
        return Ok(BTreeMap::new());
    }
    let home = tempfile::tempdir().map_err(|error| {
        ProblemDetails::failed(format!("making a temporary directory for the agents failed: {error}"))
    })?;
    let mut env = environment::base();
    env.0.insert("HOME".to_owned(), home.path().to_string_lossy().into_owned());
    let manager = ProxyManager::builder(child).base_env(env).build().await?;
    let mut versions = BTreeMap::new();
    let mut running = JoinSet::new();
    let mut waiting = commands.into_iter();
    loop {
        while running.len() < MAX_CONCURRENT
            && let Some(command) = waiting.next()
        {
            let manager = manager.clone();
            running.spawn(async move { (command.clone(), printed_version(&manager, command).await) });
        }
        match running.join_next().await {
            Some(Ok((command, version))) => versions.extend(version.map(|version| (command, version))),
            // Only a bug in the task causes this; the version is unknown then.
            Some(Err(error)) => tracing::warn!("version query task failed: {error}"),
            None => break,
        }
    }
    manager.shutdown().await;
    Ok(versions)
}

/// Returns the first version that a command prints within [`PATIENCE`].
async fn printed_version(manager: &ProxyManager, command: Vec<String>) -> Option<ProgramVersion> {
    let config = AgentSessionConfig {
        command,
        cwd: Some("/".into()),
        verbatim: Some(false),
        // Keep the usual deadline for the start only.
        timeouts: Timeouts { start_ms: None, ..Timeouts::NONE },
        ..AgentSessionConfig::new("command")
    };
    let session = manager.start_session(config).await.ok()?;
    let mut events = session.subscribe_from(0);
    let mut text = String::new();
    let read = async {
        while let Some(envelope) = events.next().await {
            match &envelope.event {
                Event::Text { text: piece } => text.push_str(piece),
                Event::SessionEnded { .. } => break,
                _ => {}
            }
            if text.len() > MAX_OUTPUT {
                break;
            }
        }
    };
    // Use the output received before a timeout.
    let _ = tokio::time::timeout(VERSION_TIMEOUT, read).await;
    if let Err(error) = session.kill(KillOptions::NOW).await {
        tracing::warn!(error = %ErrorChain(&error), "failed to end a version query session");
    }
    ProgramVersion::parse(&text)
}
