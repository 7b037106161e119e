//! `ask`: a question and its answer.

use std::path::Path;

use proxy_manager::{Answer, Child, Error, ProxyManager, SessionId, StopReason, StreamOptions};
use serde_json::Value;

use super::{config, handler::Handler, interrupts::Interrupts};
use crate::{
    api::PromptRequest,
    args::AskArgs,
    client::Client,
    configuration::Configuration,
    environment,
    exit::Exit,
    problem::{Failure, Problem},
    render::event::stop,
    saying,
    term::{self, printable},
};

/// Asks in a session of its own, and ends that.
pub(super) async fn alone(child: Child, args: AskArgs, directory: Option<&Path>, as_json: bool) -> Result<(), Failure> {
    let configuration = Configuration::read(directory)?;
    let prompt = saying::prompt(args.prompt(), &args.attachments)?;
    let config = config::foreground(&configuration, args.agent, args.start)?;
    let mut interrupts = Interrupts::new()?;
    let builder = ProxyManager::builder(child).base_env(environment::base());
    let manager = configuration.onto(builder).build().await?;
    let done = async {
        let mut handler = Handler::start(&manager, args.handler.as_deref()).await?;
        let asked = manager.ask_with(config, prompt, &mut handler, StreamOptions::default());
        let asked = tokio::select! {
            asked = asked => asked,
            // Dropping the question ends its session.
            _ = interrupts.next() => return Err(Failure::Exit(Exit::Interrupted)),
        };
        let told = tell(asked, as_json);
        let finished = handler.finish().await;
        told.and(finished)
    };
    let done = done.await;
    manager.shutdown().await;
    done
}

/// Asks a session of the daemon's.
pub(super) async fn daemon(client: &Client, args: AskArgs, as_json: bool) -> Result<(), Failure> {
    let id = args.session().unwrap_or_default();
    let id: SessionId = id.parse().map_err(|error| Problem::usage(format!("{id:?}: {error}")))?;
    if args.handler.is_some() {
        return Err(Problem::usage("--handler is for a session of one's own: leave the id out").into());
    }
    let parts = saying::prompt(args.prompt(), &args.attachments)?.parts;
    let request = PromptRequest { text: String::new(), parts, ..PromptRequest::default() };
    let answer: Value = client.post(&format!("/v1/sessions/{id}/ask"), &request).await?;
    if as_json {
        return term::json(&answer);
    }
    let count = |field: &str| answer[field].as_u64().unwrap_or_default();
    warn(count("missedEvents"), count("cutBytes"));
    reply(answer["reply"].as_str().unwrap_or_default())
}

fn tell(asked: proxy_manager::Result<Answer>, as_json: bool) -> Result<(), Failure> {
    let answer = match asked {
        Ok(answer) => answer,
        Err(Error::TurnFailed { session, reason, answer }) => {
            // What there is of it may be of use.
            if !as_json {
                reply(&answer.reply)?;
            }
            return Err(Error::TurnFailed { session, reason, answer }.into());
        }
        Err(error) => return Err(error.into()),
    };
    if as_json {
        term::json(&answer)?;
    } else {
        for title in &answer.unanswered {
            term::note(format_args!("? denied: {}; see --permission", printable(title, false)));
        }
        warn(answer.missed_events, answer.cut_bytes);
        reply(&answer.reply)?;
    }
    if let Some(why) = &answer.handler_stopped {
        return Err(Problem::failed(format!("the handler was not told all: {why}")).into());
    }
    match &answer.stop_reason {
        None | Some(StopReason::EndTurn) => Ok(()),
        Some(StopReason::Cancelled) => Err(Failure::Exit(Exit::Interrupted)),
        Some(reason) => Err(Problem::failed(format!("the turn ended early: {}", stop(reason))).into()),
    }
}

/// Says that not all is there.
fn warn(missed: u64, cut: u64) {
    if missed > 0 {
        term::note(format_args!("! {missed} events were lost: the reply may not be whole"));
    }
    if cut > 0 {
        term::note(format_args!("! the answer was too long: {cut} bytes are left out"));
    }
}

/// The reply, with a newline at its end.
fn reply(text: &str) -> Result<(), Failure> {
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    term::out(format_args!("{}{end}", term::for_stdout(text)))
}
