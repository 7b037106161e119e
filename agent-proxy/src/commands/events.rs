//! `events`.

use std::fmt::Write as _;

use proxy_manager::Envelope;

use crate::{args::EventsArgs, client::Client, problem::Failure, render, term};

/// Prints a session's events.
pub(super) async fn run(client: &Client, args: &EventsArgs, as_json: bool) -> Result<(), Failure> {
    let path = format!("/v1/sessions/{}/events?from={}&follow={}", args.id, args.from, args.follow);
    let mut lines = client.get_lines(&path).await?;
    let style = term::Style::stdout();
    while let Some(batch) = lines.next_batch().await? {
        let mut text = String::new();
        for value in batch {
            // Writing to a String cannot fail.
            let _ = if as_json {
                writeln!(text, "{value}")
            } else {
                match Envelope::from_json(value.clone()) {
                    Ok(envelope) => writeln!(text, "{}", render::event::line(&envelope, style)),
                    // One that a newer daemon knows.
                    Err(_) => writeln!(text, "{value}"),
                }
            };
        }
        term::out(text)?;
    }
    Ok(())
}
