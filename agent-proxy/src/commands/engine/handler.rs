//! Stream handler that runs a command: it gets a line of JSON for each call on its standard input.
//!
//! The command runs in a session of its own, so that nothing it starts outlives it.

use std::time::Duration;

use proxy_manager::{
    AgentSessionConfig, Answer, AnswerChunk, EndReason, Error, Event, ExitStatus, KillOptions, PromptMode,
    ProxyManager, SessionHandle, SessionState, StreamHandler, StreamInfo, Subscription,
};
use proxy_server::error_text;
use proxy_server::{
    ProblemDetails,
    api::{call, notice},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::{
    command_failure::CommandFailure,
    environment,
    render::event::detail,
    term::{self, clip, printable},
};

/// Longest line about what went wrong, in characters.
const WIDTH: usize = 400;

/// Time for the handler to exit after the last line.
const EXIT_TIMEOUT: Duration = Duration::from_secs(30);

/// Command of the handler, or none.
#[derive(Debug)]
pub(super) struct AnswerHandler(Option<RunningHandler>);

#[derive(Debug)]
struct RunningHandler {
    session: SessionHandle,
    /// Fields of the caller's own, which each line has.
    context: Option<Value>,
    /// Task that prints the command's output.
    output: JoinHandle<()>,
    /// Set once the command has ended; it gets no further lines.
    has_exited: bool,
    /// Error of a required line that was not delivered.
    missed: Option<String>,
}

/// Reason why a line was not delivered.
#[derive(Debug, PartialEq, Eq)]
enum HandlerFailure {
    /// The command has ended, which it may do early.
    Exited,
    /// The command reads more slowly than the answer grows. The next chunk includes this one.
    Backpressure,
    /// The line was required.
    Missed,
}

fn classify(line: &Value, error: &Error) -> HandlerFailure {
    match error {
        Error::AgentDied { .. } | Error::Ended { .. } => HandlerFailure::Exited,
        Error::System { .. } if line["call"] == "chunk" && line["isFinal"] == false => HandlerFailure::Backpressure,
        _ => HandlerFailure::Missed,
    }
}

impl AnswerHandler {
    /// Starts a shell with `command`.
    ///
    /// # Errors
    /// When the shell cannot be started.
    pub(super) async fn start(
        manager: &ProxyManager,
        command: Option<&str>,
        context: Option<Value>,
    ) -> Result<Self, CommandFailure> {
        let Some(command) = command else { return Ok(Self(None)) };
        let config = AgentSessionConfig {
            command: vec!["/bin/sh".to_owned(), "-c".to_owned(), command.to_owned()],
            cwd: Some(environment::cwd(None)?),
            env: environment::all(),
            ..AgentSessionConfig::new("command")
        };
        let session = manager.start_session(config).await?;
        let output = tokio::spawn(forward_output(session.subscribe()));
        Ok(Self(Some(RunningHandler { session, context, output, has_exited: false, missed: None })))
    }

    /// Sends the line of a call to the command, unless it has ended.
    pub(super) async fn send_call(&mut self, line: &Value) {
        let Some(RunningHandler { session, context, has_exited: has_left @ false, missed, .. }) = &mut self.0 else {
            return;
        };
        let text = match context {
            Some(context) => call_with(line, context).to_string(),
            None => line.to_string(),
        };
        let Err(error) = session.prompt(text, PromptMode::Refuse).await else { return };
        match classify(line, &error) {
            HandlerFailure::Exited => *has_left = true,
            HandlerFailure::Backpressure => {}
            HandlerFailure::Missed => *missed = Some(error_text(&error)),
        }
    }

    /// Closes the command's input, waits for its end, and reports its result.
    ///
    /// # Errors
    /// `failed` if the command did not exit with 0, took too long, or did not get all required lines.
    pub(super) async fn finish(self) -> Result<(), CommandFailure> {
        let Some(RunningHandler { session, mut output, missed, .. }) = self.0 else { return Ok(()) };
        // Fails for a command that has ended by itself.
        let _ = session.native(proxy_manager::Json::from(&json!({ "closeInput": true }))).await;
        let in_time = tokio::time::timeout(EXIT_TIMEOUT, &mut output).await.is_ok();
        session.kill(KillOptions::default()).await?;
        if !in_time {
            let problem = format!(
                "the handler did not end within {} s after its last line: it was killed",
                EXIT_TIMEOUT.as_secs()
            );
            return Err(ProblemDetails::failed(problem).into());
        }
        if let Some(why) = missed {
            return Err(ProblemDetails::failed(format!("the handler was not told all: {why}")).into());
        }
        match session.info().state {
            SessionState::Ended { reason: EndReason::AgentExited(Some(ExitStatus::Code(0))), .. } => Ok(()),
            SessionState::Ended { reason: EndReason::AgentExited(Some(status)), .. } => {
                Err(ProblemDetails::failed(format!("the handler failed: {status}")).into())
            }
            state => Err(ProblemDetails::failed(format!("the handler failed: {state:?}")).into()),
        }
    }
}

impl StreamHandler for AnswerHandler {
    async fn on_stream_start(&mut self, stream: &StreamInfo) {
        self.send_call(&call("start", json!(stream))).await;
    }

    async fn on_chunk(&mut self, chunk: &AnswerChunk<'_>) {
        if self.0.is_some() {
            self.send_call(&call("chunk", json!(chunk))).await;
        }
    }

    async fn on_notice(&mut self, event: &Event) {
        // Who waits for an answer is told why it does not come.
        term::error_line(format_args!("! {}", clip(&printable(&detail(event), false), WIDTH)));
        self.send_call(&notice(event)).await;
    }

    async fn on_complete(&mut self, answer: &Answer) {
        self.send_call(&call("complete", json!({ "answer": answer }))).await;
    }

    async fn on_failed(&mut self, error: &Error) {
        self.send_call(&call("failed", json!({ "error": ProblemDetails::from(error.clone()) }))).await;
    }
}

/// Adds the caller's fields to a line.
fn call_with(line: &Value, context: &Value) -> Value {
    let mut line = line.clone();
    line["context"] = context.clone();
    line
}

/// Prints the command's output, to its end.
async fn forward_output(mut events: Subscription) {
    while let Some(envelope) = events.next().await {
        match &envelope.event {
            Event::Text { text } | Event::Log { text, .. } => term::error_text(text),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use ipc_protocol::ErrorCause;

    use super::*;

    #[test]
    fn only_a_chunk_that_comes_again_is_left_out_for_who_reads_slowly() {
        let session: proxy_manager::SessionId = "s-1".parse().expect("an id");
        let full =
            Error::System { operation: "writing to the agent".into(), source: ErrorCause::new("it has not read") };
        let gone = Error::AgentDied { session: session.clone(), reason: "it left".into() };
        let too_long = Error::Unsupported { agent: "command".into(), operation: "a prompt of that length".into() };
        let chunk = |is_final| call("chunk", json!({ "text": "x", "isFinal": is_final }));
        let complete = call("complete", json!({ "answer": {} }));
        assert_eq!(classify(&chunk(false), &full), HandlerFailure::Backpressure);
        for line in [&chunk(true), &complete] {
            assert_eq!(classify(line, &full), HandlerFailure::Missed);
            assert_eq!(classify(line, &gone), HandlerFailure::Exited);
        }
        assert_eq!(classify(&chunk(false), &too_long), HandlerFailure::Missed);
    }
}
