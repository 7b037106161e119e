//! Stream handler that runs a command: it gets a line of JSON for each call on its standard input.
//!
//! The command runs in a session of its own, so that nothing it starts outlives it.

use std::time::Duration;

use ipc_protocol::ErrorChain;
use proxy_manager::{
    AgentSessionConfig, Answer, Chunk, EndReason, Error, Event, ExitStatus, KillOptions, PromptMode, ProxyManager,
    SessionHandle, SessionState, StreamHandler, StreamInfo, Subscription,
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::{
    api::{call, notice},
    environment,
    problem::{Failure, Problem},
    render::event::detail,
    term::{self, clip, printable},
};

/// Longest line about what went wrong, in characters.
const WIDTH: usize = 400;

/// Time for the handler to exit after the last line.
const LAST: Duration = Duration::from_secs(30);

/// Command of the handler, or none.
#[derive(Debug)]
pub(super) struct Handler(Option<Running>);

#[derive(Debug)]
struct Running {
    session: SessionHandle,
    /// Task that prints the command's output.
    output: JoinHandle<()>,
    /// Set once the command has ended; it gets no further lines.
    has_left: bool,
    /// Error of a required line that was not delivered.
    missed: Option<String>,
}

/// Reason why a line was not delivered.
#[derive(Debug, PartialEq, Eq)]
enum Unheard {
    /// The command has ended, which it may do early.
    Left,
    /// The command reads more slowly than the answer grows. The next chunk includes this one.
    Later,
    /// The line was required.
    Missed,
}

fn why_not(line: &Value, error: &Error) -> Unheard {
    match error {
        Error::AgentDied { .. } | Error::Ended { .. } => Unheard::Left,
        Error::System { .. } if line["call"] == "chunk" && line["isFinal"] == false => Unheard::Later,
        _ => Unheard::Missed,
    }
}

impl Handler {
    /// Starts a shell with `command`.
    ///
    /// # Errors
    /// When the shell cannot be started.
    pub(super) async fn start(manager: &ProxyManager, command: Option<&str>) -> Result<Self, Failure> {
        let Some(command) = command else { return Ok(Self(None)) };
        let config = AgentSessionConfig {
            command: vec!["/bin/sh".to_owned(), "-c".to_owned(), command.to_owned()],
            cwd: Some(environment::cwd(None)?),
            env: environment::all(),
            ..AgentSessionConfig::new("command")
        };
        let session = manager.start_session(config).await?;
        let output = tokio::spawn(pass_on(session.subscribe()));
        Ok(Self(Some(Running { session, output, has_left: false, missed: None })))
    }

    /// Sends the line of a call to the command, unless it has ended.
    pub(super) async fn line(&mut self, line: &Value) {
        let Some(Running { session, has_left: has_left @ false, missed, .. }) = &mut self.0 else { return };
        let Err(error) = session.prompt(line.to_string(), PromptMode::Refuse).await else { return };
        match why_not(line, &error) {
            Unheard::Left => *has_left = true,
            Unheard::Later => {}
            Unheard::Missed => *missed = Some(ErrorChain(&error).to_string()),
        }
    }

    /// Closes the command's input, waits for its end, and reports its result.
    ///
    /// # Errors
    /// `failed` if the command did not exit with 0, took too long, or did not get all required lines.
    pub(super) async fn finish(self) -> Result<(), Failure> {
        let Some(Running { session, mut output, missed, .. }) = self.0 else { return Ok(()) };
        // Fails for a command that has ended by itself.
        let _ = session.native(proxy_manager::Json::from(&json!({ "closeInput": true }))).await;
        let in_time = tokio::time::timeout(LAST, &mut output).await.is_ok();
        session.kill(KillOptions::default()).await?;
        if !in_time {
            let problem =
                format!("the handler did not end within {} s after its last line: it was killed", LAST.as_secs());
            return Err(Problem::failed(problem).into());
        }
        if let Some(why) = missed {
            return Err(Problem::failed(format!("the handler was not told all: {why}")).into());
        }
        match session.info().state {
            SessionState::Ended { reason: EndReason::AgentExited(Some(ExitStatus::Code(0))), .. } => Ok(()),
            SessionState::Ended { reason: EndReason::AgentExited(Some(status)), .. } => {
                Err(Problem::failed(format!("the handler failed: {status}")).into())
            }
            state => Err(Problem::failed(format!("the handler failed: {state:?}")).into()),
        }
    }
}

impl StreamHandler for Handler {
    async fn on_stream_start(&mut self, stream: &StreamInfo) {
        self.line(&call("start", json!(stream))).await;
    }

    async fn on_chunk(&mut self, chunk: &Chunk<'_>) {
        if self.0.is_some() {
            self.line(&call("chunk", json!(chunk))).await;
        }
    }

    async fn on_notice(&mut self, event: &Event) {
        // Who waits for an answer is told why it does not come.
        term::note(format_args!("! {}", clip(&printable(&detail(event), false), WIDTH)));
        self.line(&notice(event)).await;
    }

    async fn on_complete(&mut self, answer: &Answer) {
        self.line(&call("complete", json!({ "answer": answer }))).await;
    }

    async fn on_failed(&mut self, error: &Error) {
        self.line(&call("failed", json!({ "error": Problem::from(error.clone()) }))).await;
    }
}

/// Prints the command's output, to its end.
async fn pass_on(mut events: Subscription) {
    while let Some(envelope) = events.next().await {
        match &envelope.event {
            Event::Text { text } | Event::Log { text, .. } => term::part(text),
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
        assert_eq!(why_not(&chunk(false), &full), Unheard::Later);
        for line in [&chunk(true), &complete] {
            assert_eq!(why_not(line, &full), Unheard::Missed);
            assert_eq!(why_not(line, &gone), Unheard::Left);
        }
        assert_eq!(why_not(&chunk(false), &too_long), Unheard::Missed);
    }
}
