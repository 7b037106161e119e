//! Command `ask`: a question and its answer.

use api_types::{ProblemDetails, ProgramExit, api::PromptRequest};
use ipc_protocol::{SessionId, StopReason};
use serde_json::Value;

use crate::{
    args::AskArgs,
    client::DaemonClient,
    command_failure::CommandFailure,
    prompting,
    render::event::stop,
    term::{self, printable},
};

/// Asks a session of the daemon.
pub(super) async fn ask_daemon(client: &DaemonClient, args: AskArgs, as_json: bool) -> Result<(), CommandFailure> {
    let (id, request) = question(&args)?;
    let answer: Value = client.post(&path(&id), &request).await?;
    print_response(&answer, as_json)
}

/// Builds the request of a question to a session.
///
/// # Errors
/// `usage` for an invalid id or attachment.
pub(super) fn question(args: &AskArgs) -> Result<(SessionId, PromptRequest), ProblemDetails> {
    let id = args.session().unwrap_or_default();
    let id = id.parse().map_err(|error| ProblemDetails::usage(format!("{id:?}: {error}")))?;
    let parts = prompting::parts(args.text(), &args.attachments)?;
    let (callback, context) = match &args.callback {
        Some(url) => (Some(url.clone()), args.context.clone().unwrap_or_default()),
        None => (None, Value::Null),
    };
    Ok((id, PromptRequest { text: String::new(), parts, callback, context, ..PromptRequest::default() }))
}

/// Returns the path of a session's questions.
pub(super) fn path(session: &SessionId) -> String {
    format!("/v1/sessions/{session}/ask")
}

/// Prints the daemon's form of an answer.
///
/// # Errors
/// As [`judge`].
pub(super) fn print_response(answer: &Value, as_json: bool) -> Result<(), CommandFailure> {
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

/// Fails unless the answer is complete.
///
/// # Errors
/// The reason why it is not.
pub(super) fn judge(handler_stopped: Option<&str>, stop_reason: Option<&StopReason>) -> Result<(), CommandFailure> {
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
pub(super) fn warn(missed: u64, cut: u64) {
    if missed > 0 {
        term::error_line(format_args!("! {missed} events were lost: the reply may not be whole"));
    }
    if cut > 0 {
        term::error_line(format_args!("! the answer was too long: {cut} bytes are left out"));
    }
}

/// Prints the reply, with a newline at its end.
///
/// # Errors
/// As [`term::out`].
pub(super) fn reply(text: &str) -> Result<(), CommandFailure> {
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    term::out(format_args!("{}{end}", term::for_stdout(text)))
}
