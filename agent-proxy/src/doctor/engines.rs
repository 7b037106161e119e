//! Checks of container engines, by asking each that is installed.

use std::time::Duration;

use agents::discovery::executable;
use proxy_manager::{AgentSessionConfig, ContainerEngine, Event, KillOptions, ProxyManager};

use super::DoctorCheck;
use crate::{configuration::places, environment};

const NAME: &str = "containers";
/// Longest time for an engine's answer.
const DEADLINE: Duration = Duration::from_secs(15);

/// Checks each engine.
pub(super) async fn examine(manager: &ProxyManager) -> Vec<DoctorCheck> {
    let places = places();
    let mut checks = Vec::new();
    for (engine, name) in ContainerEngine::ALL {
        if executable(name, &places).is_some() {
            checks.push(check(manager, engine).await);
        }
    }
    if checks.is_empty() {
        let advice = "`--container` needs one of them".to_owned();
        checks.push(DoctorCheck::note(NAME, "neither podman nor docker is in PATH", Some(advice)));
    }
    checks
}

async fn check(manager: &ProxyManager, engine: ContainerEngine) -> DoctorCheck {
    let format = match engine {
        ContainerEngine::Podman => "version {{.Version.Version}}, rootless {{.Host.Security.Rootless}}",
        ContainerEngine::Docker => "version {{.ServerVersion}}, security options {{.SecurityOptions}}",
    };
    let command = [&engine.to_string(), "info", "--format", format].map(str::to_owned).to_vec();
    let words = output(manager, command).await;
    match words.lines().find(|line| line.starts_with("version ") && !line.starts_with("version ,")) {
        Some(found) => DoctorCheck::ok(NAME, format!("{engine}, {found}")),
        None => {
            let why = words.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no answer");
            let advice = format!("`{engine} info` says more; `--engine` names the other one");
            DoctorCheck::note(NAME, format!("{engine} does not work: {why}"), Some(advice))
        }
    }
}

/// Returns what a command writes, on either stream.
async fn output(manager: &ProxyManager, command: Vec<String>) -> String {
    let config = AgentSessionConfig {
        command,
        cwd: Some("/".into()),
        env: environment::engine(),
        verbatim: Some(false),
        ..AgentSessionConfig::new("command")
    };
    let session = match manager.start_session(config).await {
        Ok(session) => session,
        Err(error) => return error.to_string(),
    };
    let mut events = session.subscribe_from(0);
    let mut text = String::new();
    let read = async {
        while let Some(envelope) = events.next().await {
            match &envelope.event {
                Event::Text { text: piece } | Event::Log { text: piece, .. } => text.push_str(piece),
                Event::SessionEnded { .. } => break,
                _ => {}
            }
        }
    };
    // What came by then is the answer.
    let _ = tokio::time::timeout(DEADLINE, read).await;
    // It may have ended by itself.
    let _ = session.kill(KillOptions::NOW).await;
    text
}
