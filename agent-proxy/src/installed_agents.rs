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
use proxy_manager::{
    AgentSessionConfig, ChildProgram, EndReason, Error, Event, ExitStatus, KillOptions, ProxyManager, Timeouts,
};
use proxy_server::{
    ProblemDetails, ProgramExit,
    installed_agents::{VersionAnswer, describe, node_command},
};
use tokio::task::JoinSet;

use crate::{command_failure::CommandFailure, configuration::places, environment, term::clip};

/// Longest time for a program to print its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(15);
/// Number of programs asked concurrently.
const MAX_CONCURRENT: usize = 4;
/// Longest words of a failure, in characters.
const MAX_WORDS: usize = 160;
/// Bytes of a program's output that are examined.
const MAX_OUTPUT: usize = 4096;

/// Looks for all agents of the catalog. Unless `child` is `None`, starts each to ask for its version: the package of one may be there, and
/// its program fail.
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
) -> Result<BTreeMap<Vec<String>, VersionAnswer>, CommandFailure> {
    if commands.is_empty() {
        return Ok(BTreeMap::new());
    }
    let home = tempfile::tempdir().map_err(|error| {
        ProblemDetails::failed(format!("making a temporary directory for the agents failed: {error}"))
    })?;
    let mut env = environment::base();
    env.0.insert("HOME".to_owned(), home.path().to_string_lossy().into_owned());
    let manager = ProxyManager::builder(child).base_env(env).build().await?;
    let versions = tokio::select! {
        versions = asked_versions(&manager, commands) => Ok(versions),
        // The temporary home goes with it.
        _ = tokio::signal::ctrl_c() => Err(CommandFailure::Exit(ProgramExit::Interrupted)),
    };
    manager.shutdown().await;
    versions
}

async fn asked_versions(
    manager: &ProxyManager,
    commands: BTreeSet<Vec<String>>,
) -> BTreeMap<Vec<String>, VersionAnswer> {
    let mut versions = BTreeMap::new();
    let mut running = JoinSet::new();
    let mut waiting = commands.into_iter();
    loop {
        while running.len() < MAX_CONCURRENT
            && let Some(command) = waiting.next()
        {
            let manager = manager.clone();
            running.spawn(async move { (command.clone(), asked_version(&manager, command).await) });
        }
        match running.join_next().await {
            Some(Ok((command, answer))) => _ = versions.insert(command, answer),
            // Only a bug in the task causes this; the version is unknown then.
            Some(Err(error)) => tracing::warn!("version query task failed: {error}"),
            None => return versions,
        }
    }
}

/// Returns the first version that a command prints within [`VERSION_TIMEOUT`], or that it fails.
async fn asked_version(manager: &ProxyManager, command: Vec<String>) -> VersionAnswer {
    let config = AgentSessionConfig {
        command,
        cwd: Some("/".into()),
        verbatim: Some(false),
        // Keep the usual deadline for the start only.
        timeouts: Timeouts { start_ms: None, ..Timeouts::NONE },
        ..AgentSessionConfig::new("command")
    };
    let session = match manager.start_session(config).await {
        Ok(session) => session,
        // Not the program's fault.
        Err(
            error @ (Error::ForkServerDied
            | Error::ProxyDied { .. }
            | Error::Deadline { .. }
            | Error::FdsExhausted { .. }
            | Error::TooManySessions { .. }
            | Error::ContainmentUnavailable { .. }
            | Error::ShutDown),
        ) => {
            tracing::warn!(error = %ErrorChain(&error), "failed to start a program that was to tell its version");
            return VersionAnswer::Unclear;
        }
        Err(error) => return VersionAnswer::Failed(ErrorChain(&error).to_string()),
    };
    let mut events = session.subscribe_from(0);
    let (mut text, mut last_words, mut exit) = (String::new(), String::new(), None);
    let read = async {
        while let Some(envelope) = events.next().await {
            match &envelope.event {
                Event::Text { text: piece } => text.push_str(piece),
                Event::Log { text: piece, .. } if last_words.len() < MAX_OUTPUT => last_words.push_str(piece),
                Event::SessionEnded { reason, .. } => {
                    exit = Some(reason.clone());
                    break;
                }
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
    match (ProgramVersion::parse(&text), exit) {
        (Some(version), _) => VersionAnswer::Version(version),
        (None, Some(EndReason::AgentExited(Some(exit)))) if exit != ExitStatus::Code(0) => {
            VersionAnswer::Failed(failure(exit, &last_words))
        }
        (None, _) => VersionAnswer::Unclear,
    }
}

/// Describes a failure by the exit status and, of what it wrote, the line that says most: Node.js prints its stack below the error.
fn failure(exit: ExitStatus, words: &str) -> String {
    let lines = || words.lines().map(str::trim).filter(|line| !line.is_empty());
    let line = lines().find(|line| line.contains("rror: ")).or_else(|| lines().next_back());
    line.map_or_else(|| exit.to_string(), |line| format!("{exit}: {}", clip(line, MAX_WORDS)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_by_its_error() {
        let stack = "file:///x/codex.js:76\n    throw new Error(\n          ^\n\nError: Missing optional dependency x\n    at y\n\nNode.js v22\n";
        assert_eq!(failure(ExitStatus::Code(1), stack), "exit code 1: Error: Missing optional dependency x");
        assert_eq!(failure(ExitStatus::Code(2), "a\nb\n"), "exit code 2: b");
        assert_eq!(failure(ExitStatus::Signal(9), ""), "SIGKILL");
    }
}
