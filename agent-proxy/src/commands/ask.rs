//! Command `ask`: a question and its answer.

use std::path::Path;

use proxy_manager::{Answer, ChildProgram, Error, ProxyManager, SessionId, StopReason, StreamOptions};
use proxy_server::{
    ProblemDetails, ProgramExit,
    api::{PromptRequest, call},
};
use serde_json::{Value, json};

use super::{
    config,
    handler::AnswerHandler,
    interrupts::{InterruptStream, goes_on},
};
use crate::{
    args::AskArgs,
    client::DaemonClient,
    command_failure::CommandFailure,
    configuration, environment, prompting,
    render::event::stop,
    term::{self, printable},
};

/// Asks in a session started for the question, and ends it afterwards.
pub(super) async fn ask_standalone(
    child: ChildProgram,
    args: AskArgs,
    directory: Option<&Path>,
    as_json: bool,
) -> Result<(), CommandFailure> {
    args.start.lifecycle.check_foreground(true)?;
    let configuration = configuration::read(directory)?;
    let prompt = prompting::parts(args.text(), &args.attachments)?;
    let config = config::foreground(&configuration, args.agent, args.start)?;
    let mut interrupts = InterruptStream::new()?;
    let id = config.session_id.clone();
    let builder = environment::foreground_builder(child, environment::base());
    let manager = configuration.apply_to(builder).build().await?;
    let done = async {
        let mut handler = AnswerHandler::start(&manager, args.handler.as_deref(), args.context).await?;
        let asked = manager.ask_with(config, prompt, &mut handler, StreamOptions::default());
        let asked = tokio::select! {
            asked = asked => asked,
            // Dropping the question ends its session.
            _ = interrupts.next() => return Err(CommandFailure::Exit(ProgramExit::Interrupted)),
        };
        let told = print_answer(asked, as_json);
        let finished = handler.finish().await;
        told.and(finished)
    };
    let done = done.await;
    manager.shutdown().await;
    super::workspaces::report(&id);
    done
}

/// Asks a session of the daemon.
pub(super) async fn ask_daemon(client: &DaemonClient, args: AskArgs, as_json: bool) -> Result<(), CommandFailure> {
    let (id, request) = question(&args)?;
    let answer: Value = client.post(&path(&id), &request).await?;
    print_response(&answer, as_json)
}

/// Asks a session of the daemon, with a handler that runs here and gets its calls from the daemon.
pub(super) async fn ask_with_handler(
    child: ChildProgram,
    client: &DaemonClient,
    args: AskArgs,
    as_json: bool,
) -> Result<(), CommandFailure> {
    let (id, request) = question(&args)?;
    let request = PromptRequest { stream: true, ..request };
    let mut interrupts = InterruptStream::new()?;
    let manager = ProxyManager::builder(child).base_env(environment::base()).build().await?;
    let done = async {
        let mut handler = AnswerHandler::start(&manager, args.handler.as_deref(), args.context).await?;
        let asked = tokio::select! {
            asked = forward_calls(client, &id, &request, &mut handler) => asked,
            _ = interrupts.next() => {
                term::error_line(goes_on(id.as_str()));
                return Err(CommandFailure::Exit(ProgramExit::Interrupted));
            }
        };
        let told = match asked {
            Ok(answer) => print_response(&answer, as_json),
            Err(problem) => {
                handler.send_call(&call("failed", json!({ "error": problem }))).await;
                Err(problem.into())
            }
        };
        let finished = handler.finish().await;
        told.and(finished)
    };
    let done = done.await;
    manager.shutdown().await;
    done
}

fn question(args: &AskArgs) -> Result<(SessionId, PromptRequest), ProblemDetails> {
    let id = args.session().unwrap_or_default();
    let id = id.parse().map_err(|error| ProblemDetails::usage(format!("{id:?}: {error}")))?;
    let parts = prompting::parts(args.text(), &args.attachments)?;
    let (callback, context) = match &args.callback {
        Some(url) => (Some(url.clone()), args.context.clone().unwrap_or_default()),
        None => (None, Value::Null),
    };
    Ok((id, PromptRequest { text: String::new(), parts, callback, context, ..PromptRequest::default() }))
}

fn path(session: &SessionId) -> String {
    format!("/v1/sessions/{session}/ask")
}

/// Passes the daemon's lines on to the handler, up to the answer.
async fn forward_calls(
    client: &DaemonClient,
    session: &SessionId,
    request: &PromptRequest,
    handler: &mut AnswerHandler,
) -> Result<Value, ProblemDetails> {
    let mut lines = client.post_lines(&path(session), request).await?;
    while let Some(batch) = lines.next_batch().await? {
        for mut line in batch {
            if line["call"] == "failed" {
                let problem = serde_json::from_value(line["error"].take());
                return Err(problem
                    .unwrap_or_else(|_| ProblemDetails::failed("the turn failed, and the daemon does not say why")));
            }
            handler.send_call(&line).await;
            if line["call"] == "complete" {
                return Ok(line["answer"].take());
            }
        }
    }
    Err(ProblemDetails::new(
        "no-daemon",
        "the daemon has said no answer to its end: has it ended? `agent-proxy events` has what came",
    ))
}

/// Prints the daemon's form of an answer.
fn print_response(answer: &Value, as_json: bool) -> Result<(), CommandFailure> {
    if as_json {
        term::json(answer)?;
    } else {
        let count = |field: &str| answer[field].as_u64().unwrap_or_default();
        warn(count("missedEvents"), count("cutBytes"));
        reply(answer["reply"].as_str().unwrap_or_default())?;
    }
    let reason = &answer["stopReason"];
    // A newer daemon may know other reasons.
    let Ok(known) = serde_json::from_value::<Option<StopReason>>(reason.clone()) else {
        return Err(
            ProblemDetails::failed(format!("the turn ended early: {}", printable(&reason.to_string(), false))).into()
        );
    };
    judge(answer["handlerStopped"].as_str(), known.as_ref())
}

fn print_answer(asked: proxy_manager::Result<Answer>, as_json: bool) -> Result<(), CommandFailure> {
    let answer = match asked {
        Ok(answer) => answer,
        Err(Error::TurnFailed { session, reason, answer }) => {
            // A partial reply may still be useful.
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
            term::error_line(format_args!("? denied: {}; see --permission", printable(title, false)));
        }
        warn(answer.missed_events, answer.cut_bytes);
        reply(&answer.reply)?;
    }
    judge(answer.handler_stopped.as_deref(), answer.stop_reason.as_ref())
}

/// Fails unless the answer is complete.
fn judge(handler_stopped: Option<&str>, stop_reason: Option<&StopReason>) -> Result<(), CommandFailure> {
    if let Some(why) = handler_stopped {
        return Err(ProblemDetails::failed(format!("the handler was not told all: {why}")).into());
    }
    match stop_reason {
        None | Some(StopReason::EndTurn) => Ok(()),
        Some(StopReason::Cancelled) => Err(CommandFailure::Exit(ProgramExit::Interrupted)),
        Some(reason) => Err(ProblemDetails::failed(format!("the turn ended early: {}", stop(reason))).into()),
    }
}

/// Warns about missing parts of the answer.
fn warn(missed: u64, cut: u64) {
    if missed > 0 {
        term::error_line(format_args!("! {missed} events were lost: the reply may not be whole"));
    }
    if cut > 0 {
        term::error_line(format_args!("! the answer was too long: {cut} bytes are left out"));
    }
}

/// Prints the reply, with a newline at its end.
fn reply(text: &str) -> Result<(), CommandFailure> {
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    term::out(format_args!("{}{end}", term::for_stdout(text)))
}
