//! `sessions`.

use serde_json::Value;

use crate::{
    api::SessionView,
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
    let sessions: Vec<SessionView> = parse(sessions)?;
    if sessions.is_empty() {
        term::note("no sessions: start one with `agent-proxy start`");
        return Ok(());
    }
    term::out(render::sessions::render(&sessions, term::Style::stdout(), term::columns()))
}

/// A daemon's answer as what we know of it.
pub(super) fn parse<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, Problem> {
    serde_json::from_value(value).map_err(|error| {
        Problem::failed(format!("the daemon answered something else ({error}): is it of another version?"))
    })
}
