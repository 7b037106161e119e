//! Command `sessions`.

use proxy_manager::{QueuedPrompt, SessionInfo};
use serde_json::Value;

use crate::{
    api::HealthResponse,
    args::operations::SessionArgs,
    client::DaemonClient,
    problem::{CommandFailure, ProblemDetails},
    render, term,
};

/// Lists the daemon's sessions.
pub(super) async fn run(client: &DaemonClient, as_json: bool) -> Result<(), CommandFailure> {
    let sessions: Value = client.get(if as_json { "/v1/sessions?processUse=true" } else { "/v1/sessions" }).await?;
    if as_json {
        return term::json(&sessions);
    }
    let sessions: Vec<SessionInfo> = parse(sessions)?;
    tell_damage(client).await?;
    if sessions.is_empty() {
        term::error_line("no sessions: start one with `agent-proxy start`");
        return Ok(());
    }
    term::out(render::sessions::render(&sessions, term::TermStyle::stdout(), term::columns()))
}

/// Says what the daemon could not read, and so does not list.
pub(super) async fn tell_damage(client: &DaemonClient) -> Result<(), CommandFailure> {
    let health: HealthResponse = parse(client.get("/v1/health").await?)?;
    for damaged in health.damaged {
        term::error_line(format_args!("damaged, and not listed: {}", term::printable(&damaged, false)));
    }
    Ok(())
}

/// Lists the prompts of a session that wait for their turn.
pub(super) async fn queue(client: &DaemonClient, args: &SessionArgs, as_json: bool) -> Result<(), CommandFailure> {
    let mut session: Value = client.get(&format!("/v1/sessions/{}", args.id)).await?;
    if as_json {
        return term::json(&session["queued"].take());
    }
    let SessionInfo { queued, .. } = parse(session)?;
    if queued.is_empty() {
        term::error_line("nothing waits");
        return Ok(());
    }
    let line = |QueuedPrompt { offset, at, text }: QueuedPrompt| {
        format!("{offset:>6}  {}  {}\n", humantime::format_rfc3339_millis(at), term::printable(&text, false))
    };
    term::out(queued.into_iter().map(line).collect::<String>())
}

/// A daemon's answer as what we know of it.
pub(super) fn parse<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, ProblemDetails> {
    serde_json::from_value(value).map_err(|error| {
        ProblemDetails::failed(format!("the daemon answered something else ({error}): is it of another version?"))
    })
}
