//! Command `events`.

use std::fmt::Write as _;

use api_types::api::path_segment;
use ipc_protocol::Envelope;

use crate::{
    args::EventsArgs,
    client::DaemonClient,
    command_failure::CommandFailure,
    render::{self, listing::short_ids},
    term,
};

/// Prints the events of a session, or of all sessions.
pub(super) async fn run(client: &DaemonClient, args: &EventsArgs, as_json: bool) -> Result<(), CommandFailure> {
    let path = match &args.id {
        Some(id) => format!("/v1/sessions/{id}/events{}", query(args, as_json)),
        None => format!("/v1/events{}", query(args, as_json)),
    };
    let mut lines = client.get_lines(&path).await?;
    let style = term::TermStyle::stdout();
    let is_terminal = term::columns().is_some();
    while let Some(batch) = lines.next_batch_to_print().await? {
        let mut text = String::new();
        for value in batch {
            // Writing to a String cannot fail.
            let _ = if as_json {
                writeln!(text, "{}", term::json_for_stdout(&value.to_string()))
            } else {
                match Envelope::from_json(value.clone()) {
                    Ok(envelope) => {
                        let line = render::event::line(&envelope, style);
                        match value.get("position").and_then(|position| position.as_str()) {
                            Some(position) => {
                                let position = position.trim_start_matches('0');
                                let id = envelope.session.as_str();
                                let id = if is_terminal { short_ids(&[id]).concat() } else { id.to_owned() };
                                writeln!(text, "{position:>8}  {id}  {line}")
                            }
                            None => writeln!(text, "{line}"),
                        }
                    }
                    // An event that only a newer daemon knows.
                    Err(_) => writeln!(text, "{}", term::json_for_stdout(&value.to_string())),
                }
            };
        }
        term::out(text)?;
    }
    Ok(())
}

/// Formats the selection as a query. People do not get the agent's own lines unless they ask; JSON is complete.
fn query(args: &EventsArgs, as_json: bool) -> String {
    let EventsArgs { id: _, all: _, from, follow, types, tail, since, raw } = args;
    let mut query = format!("?from={from}&follow={follow}&raw={}", *raw || as_json);
    if !types.is_empty() {
        query.push_str(&format!("&type={}", path_segment(&types.join(","))));
    }
    if let Some(tail) = tail {
        query.push_str(&format!("&tail={tail}"));
    }
    if let Some(since) = since {
        query.push_str(&format!("&since={}", path_segment(&humantime::format_rfc3339_millis(*since).to_string())));
    }
    query
}
