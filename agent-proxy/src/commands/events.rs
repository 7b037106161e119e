//! Command `events`.

use std::fmt::Write as _;

use proxy_manager::Envelope;

use crate::{args::EventsArgs, client::DaemonClient, problem::CommandFailure, render, term};

/// Prints the events of a session, or of all sessions.
pub(super) async fn run(client: &DaemonClient, args: &EventsArgs, as_json: bool) -> Result<(), CommandFailure> {
    let path = match &args.id {
        Some(id) => format!("/v1/sessions/{id}/events?from={}&follow={}", args.from, args.follow),
        None => format!("/v1/events?from={}", args.from),
    };
    let mut lines = client.get_lines(&path).await?;
    let style = term::TermStyle::stdout();
    while let Some(batch) = lines.next_batch().await? {
        let mut text = String::new();
        for value in batch {
            // Writing to a String cannot fail.
            let _ = if as_json {
                writeln!(text, "{value}")
            } else {
                match Envelope::from_json(value.clone()) {
                    Ok(envelope) => {
                        let line = render::event::line(&envelope, style);
                        match value.get("position").and_then(|position| position.as_str()) {
                            Some(position) => {
                                let position = position.trim_start_matches('0');
                                writeln!(text, "{position:>8}  {}  {line}", envelope.session)
                            }
                            None => writeln!(text, "{line}"),
                        }
                    }
                    // An event that only a newer daemon knows.
                    Err(_) => writeln!(text, "{value}"),
                }
            };
        }
        term::out(text)?;
    }
    Ok(())
}
