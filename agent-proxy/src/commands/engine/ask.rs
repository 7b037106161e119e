//! Command `ask` without a daemon, and with a handler, which runs here.

use std::path::Path;

use proxy_child::ChildToken;
use proxy_manager::{Answer, ChildProgram, Error, ProxyManager, SessionId, StreamOptions};
use proxy_server::{
    ProblemDetails, ProgramExit,
    api::{PromptRequest, call},
};
use serde_json::{Value, json};

use super::{foreground_config::foreground, handler::AnswerHandler, interrupts::InterruptStream, workspaces};
use crate::{
    args::{AskArgs, GlobalArgs},
    client::DaemonClient,
    command_failure::CommandFailure,
    commands::{
        ask::{judge, path, print_response, question, reply, warn},
        client, goes_on,
    },
    configuration, environment, prompting,
    term::{self, printable},
};

/// Asks in a session of this process, or one of the daemon's with a handler that runs here.
///
/// # Errors
/// The problem to report, or the exit code that is left.
pub(crate) async fn run(token: ChildToken, args: AskArgs, global: &GlobalArgs) -> Result<(), CommandFailure> {
    let child = ChildProgram::Current(token);
    if args.session().is_none() {
        return ask_standalone(child, args, global.config_dir.as_deref(), global.json).await;
    }
    ask_with_handler(child, &client(global)?, args, global.json).await
}

/// Asks in a session started for the question, and ends it afterwards.
async fn ask_standalone(
    child: ChildProgram,
    args: AskArgs,
    directory: Option<&Path>,
    as_json: bool,
) -> Result<(), CommandFailure> {
    args.start.lifecycle.check_foreground(true)?;
    let configuration = configuration::read(directory)?;
    let prompt = prompting::parts(args.text(), &args.attachments)?;
    let config = foreground(&configuration, args.agent, args.start)?;
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
    workspaces::report(&id);
    done
}

/// Asks a session of the daemon, with a handler that runs here and gets its calls from the daemon.
async fn ask_with_handler(
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
