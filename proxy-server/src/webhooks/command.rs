//! Commands that receive webhooks: each run is a session of the agent `command`, contained as any other and gone afterwards.

use std::time::Duration;

use ipc_protocol::ErrorChain;
use proxy_manager::{
    AgentSessionConfig, EndReason, Event, ExitStatus, Json, KillOptions, Limits, ProxyManager, SessionId,
};
use serde_json::json;
use tokio::time::timeout;

/// Beginning of the ids of these sessions, of which no webhook tells.
const PREFIX: &str = "webhook-command-";
/// Longest text of a failure.
const MAX_OUTPUT: usize = 500;

/// Returns true for a session that is a run of a command.
pub(super) fn is_command_session(session: &SessionId) -> bool {
    session.as_str().starts_with(PREFIX)
}

/// Runs a command with a message on its standard input.
///
/// # Errors
/// The reason, with the end of its output, if it does not end with 0 in time.
pub(super) async fn run(
    manager: &ProxyManager,
    argv: &[String],
    message: &[u8],
    deadline: Duration,
) -> Result<(), String> {
    let id = format!("{PREFIX}{}", SessionId::mint());
    let session_id: SessionId = id.parse().map_err(|error| format!("{error:?}"))?;
    let wall_clock_ms = u64::try_from(deadline.as_millis()).ok();
    let config = AgentSessionConfig {
        session_id: session_id.clone(),
        agent_type: Some("webhook".to_owned()),
        limits: Limits { wall_clock_ms, ..Limits::default() },
        ..AgentSessionConfig::new("command").with_command(argv.iter().cloned())
    };
    let session = manager.start_session(config).await.map_err(|error| ErrorChain(&error).to_string())?;
    let mut events = session.subscribe_from(0);
    let text = String::from_utf8_lossy(message).into_owned();
    // One that reads nothing may be over already.
    let _ = session.prompt(text, proxy_manager::PromptMode::Refuse).await;
    let _ = session.native(Json::from(&json!({ "closeInput": true }))).await;
    let end = async {
        let mut output = String::new();
        while let Some(envelope) = events.next().await {
            match &envelope.event {
                Event::Text { text } | Event::Log { text, .. } if output.len() < MAX_OUTPUT => {
                    output.push_str(text.as_str())
                }
                Event::SessionEnded { reason, .. } => return (Some(reason.clone()), output),
                _ => {}
            }
        }
        (None, output)
    };
    // The limit ends it; this is for a limit that fails.
    let ended = timeout(deadline * 2 + Duration::from_secs(5), end).await;
    if ended.is_err() {
        let _ = session.kill(KillOptions::NOW).await;
    }
    if let Err(error) = manager.delete_session(&session_id).await {
        tracing::debug!(%session_id, error = %ErrorChain(&error), "failed to remove the session of a webhook's command");
    }
    match ended {
        Ok((Some(EndReason::AgentExited(Some(ExitStatus::Code(0)))), _)) => Ok(()),
        Ok((reason, output)) => {
            let reason = reason.map_or_else(|| "it was interrupted".to_owned(), |reason| reason.to_string());
            Err(format!("the command failed: {reason}: {}", output.trim()))
        }
        Err(_) => Err("the command did not end in time".to_owned()),
    }
}
