//! Command `run` without a prompt: one turn after the other, as they are typed.

use proxy_manager::{EndReason, Error, KillOptions, PromptMode};
use serde_json::json;

use super::{ForegroundSession, TurnWait};
use crate::{
    commands::{input_reader::InputLine, interrupts::InterruptLevel},
    exit::ProgramExit,
    problem::{CommandFailure, ProblemDetails},
    term,
};

/// Prompt for typed input.
const PROMPT: &str = "> ";

impl ForegroundSession {
    /// Reads prompts until the end of standard input, or until Ctrl-C is pressed twice; then kills the session.
    pub(super) async fn chat(mut self) -> Result<(), CommandFailure> {
        let talked = self.chat_loop().await;
        let killed = self.session.kill(KillOptions::default()).await;
        // The last output of an agent comes after its end is known.
        self.print_to_end(&killed).await?;
        if let Some(live) = &mut self.printer {
            live.finish()?;
        }
        let over = match (talked, killed) {
            (talked, Ok(receipt)) => {
                self.print_receipt(&receipt, false);
                talked?
            }
            (_, Err(error @ Error::Survivors(_))) | (Ok(_), Err(error)) => return Err(error.into()),
            // The reason for the session's own end says more.
            (Err(failure), Err(_)) => return Err(failure),
        };
        match over {
            // The session may have ended by itself while nothing more was typed.
            TurnWait::Done if self.resting.as_ref().is_some_and(|rest| rest.reason != EndReason::Killed) => {
                self.session_ended().map(drop)
            }
            TurnWait::Done => Ok(()),
            TurnWait::Interrupted => Err(CommandFailure::Exit(ProgramExit::Interrupted)),
        }
    }

    async fn chat_loop(&mut self) -> Result<TurnWait, CommandFailure> {
        let mut asked_to_end = false;
        loop {
            let text = match self.next_input().await? {
                ChatInput::Typed(InputLine::Line(text)) if text.trim().is_empty() => continue,
                ChatInput::Typed(InputLine::Line(text)) => text,
                ChatInput::Typed(InputLine::End) => return self.hang_up().await,
                ChatInput::Ended => return self.session_ended(),
                ChatInput::Interrupted(InterruptLevel::End) => return Ok(TurnWait::Interrupted),
                ChatInput::Typed(InputLine::Interrupted) | ChatInput::Interrupted(InterruptLevel::Stop) => {
                    if std::mem::replace(&mut asked_to_end, true) {
                        return Ok(TurnWait::Interrupted);
                    }
                    term::error_line("no turn runs; Ctrl-C again, or Ctrl-D, ends the session");
                    continue;
                }
            };
            asked_to_end = false;
            match self.turn(&text).await {
                Ok(TurnWait::Done) => {}
                Ok(TurnWait::Interrupted) => return Ok(TurnWait::Interrupted),
                Err(CommandFailure::Problem(problem)) => {
                    if self.ends || ends_session(&problem) {
                        self.print_until_stopped().await?;
                    }
                    if !self.takes_prompts() {
                        // An agent that exits within a turn is not done, whatever its exit code.
                        let over = self.session_ended()?;
                        return if matches!(over, TurnWait::Done) {
                            Err(CommandFailure::Problem(problem))
                        } else {
                            Ok(over)
                        };
                    }
                    // The next turn may succeed.
                    self.line_start();
                    term::problem(&problem, self.printer.is_none());
                }
                Err(CommandFailure::Exit(ProgramExit::Interrupted)) if self.takes_prompts() => {
                    self.line_start();
                    term::error_line("the turn was aborted");
                }
                Err(failure) => return Err(failure),
            }
            self.interrupts.reset();
        }
    }

    /// Returns true if the session takes prompts, if only after a resume.
    fn takes_prompts(&self) -> bool {
        self.resting.as_ref().is_none_or(|rest| {
            let is_resumed = self.resumes || self.restarts && rest.reason != EndReason::Suspended;
            !rest.is_end && is_resumed
        })
    }

    /// Prints events up to the end of the processes, which has begun; Ctrl-C stops waiting.
    async fn print_until_stopped(&mut self) -> Result<(), CommandFailure> {
        while self.resting.is_none() {
            let mut batch = Vec::new();
            tokio::select! {
                more = self.events.next_batch(&mut batch) => {
                    self.print(&batch).await?;
                    if !more {
                        break;
                    }
                }
                _ = self.interrupts.next() => break,
            }
        }
        Ok(())
    }

    fn line_start(&mut self) {
        self.printer.iter_mut().for_each(|live| live.line_start());
    }

    /// Runs one turn to its end. An agent without turns only gets the text; its output comes at any time.
    async fn turn(&mut self, text: &str) -> Result<TurnWait, CommandFailure> {
        self.outcome = Default::default();
        let id = self.session.id().clone();
        self.session = tokio::select! {
            awake = self.manager.awake(&id) => awake?,
            // Giving up the wait leaves the session suspended.
            urgency = self.interrupts.next() => return match urgency {
                InterruptLevel::Stop => Err(CommandFailure::Exit(ProgramExit::Interrupted)),
                InterruptLevel::End => Ok(TurnWait::Interrupted),
            },
        };
        let turn = match self.manager.send_prompt(&id, text, PromptMode::Refuse).await {
            Ok(turn) if turn.number().is_none() => return Ok(TurnWait::Done),
            Ok(turn) => turn,
            // The session's end comes with the events.
            Err(error) if self.is_done(&error) => return Ok(TurnWait::Done),
            Err(error) => return Err(error.into()),
        };
        let over = self.follow(turn).await?;
        if let Some(live) = &mut self.printer {
            live.finish()?;
        }
        if matches!(over, TurnWait::Done) {
            std::mem::take(&mut self.outcome).into_result()?;
        }
        Ok(over)
    }

    /// Waits for typed input, and prints the session's events meanwhile.
    async fn next_input(&mut self) -> Result<ChatInput, CommandFailure> {
        loop {
            let mut batch = Vec::new();
            tokio::select! {
                more = self.events.next_batch(&mut batch) => {
                    self.print(&batch).await?;
                    if !more || !self.takes_prompts() {
                        return Ok(ChatInput::Ended);
                    }
                }
                typed = self.asker.line(PROMPT) => return Ok(ChatInput::Typed(typed)),
                urgency = self.interrupts.next() => return Ok(ChatInput::Interrupted(urgency)),
            }
        }
    }

    /// Handles the end of input: an agent without turns gets the end of its own input, and may finish its output.
    async fn hang_up(&mut self) -> Result<TurnWait, CommandFailure> {
        if self.has_turns {
            return Ok(TurnWait::Done);
        }
        let message = proxy_manager::Json::from(&json!({ "closeInput": true }));
        match self.session.native(message).await {
            Err(Error::Unsupported { .. }) => return Ok(TurnWait::Done),
            Err(error) if self.takes_prompts() && !self.is_done(&error) => return Err(error.into()),
            Err(_) | Ok(_) => {}
        }
        loop {
            let mut batch = Vec::new();
            tokio::select! {
                more = self.events.next_batch(&mut batch) => {
                    self.print(&batch).await?;
                    if !more {
                        return self.session_ended();
                    }
                }
                _ = self.interrupts.next() => return Ok(TurnWait::Interrupted),
            }
        }
    }
}

/// Returns true if such a failure of a turn means that the session's processes end or have ended.
fn ends_session(problem: &ProblemDetails) -> bool {
    matches!(
        problem.kind.as_str(),
        "agent-died" | "proxy-died" | "fork-server-died" | "ended" | "suspended" | "protocol"
    )
}

/// Input between two turns, from the user or the session.
enum ChatInput {
    Typed(InputLine),
    Interrupted(InterruptLevel),
    /// The session has ended.
    Ended,
}
