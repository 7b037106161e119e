//! Command `sessions`.

use api_types::{ProblemDetails, QueuedPrompt, SessionInfo, api::HealthResponse};
use serde_json::Value;

use crate::{
    args::{ListingFormat, QueueArgs},
    client::DaemonClient,
    command_failure::CommandFailure,
    render::{self, listing::Listing},
    term,
};

/// Lists the daemon's sessions.
pub(super) async fn run(client: &DaemonClient, form: &ListingFormat) -> Result<(), CommandFailure> {
    let path = if form.prints("processUse") { "/v1/sessions?processUse=true" } else { "/v1/sessions" };
    let json: Vec<Value> = client.get_list(path).await?;
    let sessions: Vec<SessionInfo> = if form.is_json() { Vec::new() } else { parse(Value::Array(json.clone()))? };
    if *form == ListingFormat::Table {
        tell_damage(client).await?;
    }
    let listing = if form.is_json() { Listing::of_json(json) } else { render::sessions::listing(&sessions, json) };
    listing.print(form, "no sessions: start one with `agent-proxy start`")
}

/// Says what the daemon could not read, and so does not list.
pub(super) async fn tell_damage(client: &DaemonClient) -> Result<(), CommandFailure> {
    let health: HealthResponse = parse(client.get("/v1/health").await?)?;
    for damaged in health.damaged {
        term::error_line(format_args!("damaged, and not listed: {}", term::printable(&damaged, false)));
    }
    Ok(())
}

/// Lists the prompts of a session that wait for their turn, or drops some.
pub(super) async fn queue(client: &DaemonClient, args: &QueueArgs, as_json: bool) -> Result<(), CommandFailure> {
    let path = format!("/v1/sessions/{}/queue", args.id);
    for prompt in &args.drop {
        client.delete(&format!("{path}/{prompt}")).await?;
    }
    if !args.drop.is_empty() {
        return Ok(());
    }
    let listed: Vec<Value> = if args.drop_all { client.delete_json(&path).await? } else { client.get(&path).await? };
    let form = args.format.form(as_json);
    let queued: Vec<QueuedPrompt> = if form.is_json() { Vec::new() } else { parse(Value::Array(listed.clone()))? };
    let listing = if form.is_json() { Listing::of_json(listed) } else { render::queue::listing(queued, listed) };
    listing.print(&form, "nothing waits")
}

/// A daemon's answer as what we know of it.
pub(super) fn parse<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, ProblemDetails> {
    serde_json::from_value(value).map_err(|error| {
        ProblemDetails::failed(format!("the daemon answered something else ({error}): is it of another version?"))
    })
}
