//! Command `sessions`.

use proxy_manager::{QueuedPrompt, SessionInfo};
use serde_json::Value;

use crate::{
    api::Health,
    args::operations::SessionArgs,
    client::Client,
    problem::{Failure, Problem},
    render, term,
};

/// Lists the daemon's sessions.
pub(super) async fn run(client: &Client, as_json: bool) -> Result<(), Failure> {
    let sessions: Value = client.get(if as_json { "/v1/sessions?processUse=true" } else { "/v1/sessions" }).await?;
    if as_json {
        return term::json(&sessions);
    }
    let sessions: Vec<SessionInfo> = parse(sessions)?;
    tell_damage(client).await?;
    if sessions.is_empty() {
        term::note("no sessions: start one with `agent-proxy start`");
        return Ok(());
    }
    term::out(render::sessions::render(&sessions, term::Style::stdout(), term::columns()))
}

/// Says what the daemon could not read, and so does not list.
pub(super) async fn tell_damage(client: &Client) -> Result<(), Failure> {
    let health: Health = parse(client.get("/v1/health").await?)?;
    for damaged in health.damaged {
        term::note(format_args!("damaged, and not listed: {}", term::printable(&damaged, false)));
    }
    Ok(())
}

/// Lists the prompts of a session that wait for their turn.
pub(super) async fn queue(client: &Client, args: &SessionArgs, as_json: bool) -> Result<(), Failure> {
    let mut session: Value = client.get(&format!("/v1/sessions/{}", args.id)).await?;
    if as_json {
        return term::json(&session["queued"].take());
    }
    let SessionInfo { queued, .. } = parse(session)?;
    if queued.is_empty() {
        term::note("nothing waits");
        return Ok(());
    }
    let line = |QueuedPrompt { offset, at, text }: QueuedPrompt| {
        format!("{offset:020}  {}  {}\n", humantime::format_rfc3339_millis(at), term::printable(&text, false))
    };
    term::out(queued.into_iter().map(line).collect::<String>())
}

/// A daemon's answer as what we know of it.
pub(super) fn parse<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, Problem> {
    serde_json::from_value(value).map_err(|error| {
        Problem::failed(format!("the daemon answered something else ({error}): is it of another version?"))
    })
}
