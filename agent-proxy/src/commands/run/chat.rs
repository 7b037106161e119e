//! Command `run` without a prompt: one turn after the other, as they are typed.

use proxy_manager::{EndReason, Error, KillOptions, PromptMode};
use serde_json::json;

use super::{Foreground, Over};
use crate::{
    commands::{interrupts::Urgency, lines::Typed},
    exit::Exit,
    problem::{Failure, Problem},
    term,
};

/// Prompt for typed input.
const PROMPT: &str = "> ";

impl Foreground {
    /// Reads prompts until the end of standard input, or until Ctrl-C is pressed twice; then kills the session.
    pub(super) async fn chat(mut self) -> Result<(), Failure> {
        let talked = self.talk().await;
        let killed = self.session.kill(KillOptions::default()).await;
        // The last output of an agent comes after its end is known.
        self.print_rest(&killed).await?;
        if let Some(live) = &mut self.live {
            live.finish()?;
        }
        let over = match (talked, killed) {
            (talked, Ok(receipt)) => {
                self.tell(&receipt, false);
                talked?
            }
            (_, Err(error @ Error::Survivors(_))) | (Ok(_), Err(error)) => return Err(error.into()),
            // The reason for the session's own end says more.
            (Err(failure), Err(_)) => return Err(failure),
        };
        match over {
            // The session may have ended by itself while nothing more was typed.
            Over::Done if self.rest.as_ref().is_some_and(|rest| rest.reason != EndReason::Killed) => {
                self.session_over().map(drop)
            }
            Over::Done => Ok(()),
            Over::Interrupted => Err(Failure::Exit(Exit::Interrupted)),
        }
    }

    async fn talk(&mut self) -> Result<Over, Failure> {
        let mut asked_to_end = false;
        loop {
            let text = match self.typed().await? {
                Heard::Typed(Typed::Line(text)) if text.trim().is_empty() => continue,
                Heard::Typed(Typed::Line(text)) => text,
                Heard::Typed(Typed::End) => return self.hang_up().await,
                Heard::Over => return self.session_over(),
                Heard::Interrupted(Urgency::End) => return Ok(Over::Interrupted),
                Heard::Typed(Typed::Interrupted) | Heard::Interrupted(Urgency::Stop) => {
                    if std::mem::replace(&mut asked_to_end, true) {
                        return Ok(Over::Interrupted);
                    }
                    term::note("no turn runs; Ctrl-C again, or Ctrl-D, ends the session");
                    continue;
                }
            };
            asked_to_end = false;
            match self.turn(&text).await {
                Ok(Over::Done) => {}
                Ok(Over::Interrupted) => return Ok(Over::Interrupted),
                Err(Failure::Problem(problem)) => {
                    if self.ends || ends(&problem) {
                        self.print_to_rest().await?;
                    }
                    if !self.lives() {
                        // An agent that exits within a turn is not done, whatever its exit code.
                        let over = self.session_over()?;
                        return if matches!(over, Over::Done) { Err(Failure::Problem(problem)) } else { Ok(over) };
                    }
                    // The next turn may succeed.
                    self.line_start();
                    term::problem(&problem, self.live.is_none());
                }
                Err(Failure::Exit(Exit::Interrupted)) if self.lives() => {
                    self.line_start();
                    term::note("the turn was aborted");
                }
                Err(failure) => return Err(failure),
            }
            self.interrupts.forget();
        }
    }

    /// Returns true if the session takes prompts, if only after a resume.
    fn lives(&self) -> bool {
        self.rest.as_ref().is_none_or(|rest| {
            let is_resumed = self.resumes || self.restarts && rest.reason != EndReason::Suspended;
            !rest.is_end && is_resumed
        })
    }

    /// Prints events up to the end of the processes, which has begun; Ctrl-C stops waiting.
    async fn print_to_rest(&mut self) -> Result<(), Failure> {
        while self.rest.is_none() {
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
        self.live.iter_mut().for_each(|live| live.line_start());
    }

    /// Runs one turn to its end. An agent without turns only gets the text; its output comes at any time.
    async fn turn(&mut self, text: &str) -> Result<Over, Failure> {
        self.outcome = Default::default();
        let id = self.session.id().clone();
        self.session = tokio::select! {
            awake = self.manager.awake(&id) => awake?,
            // Giving up the wait leaves the session suspended.
            urgency = self.interrupts.next() => return match urgency {
                Urgency::Stop => Err(Failure::Exit(Exit::Interrupted)),
                Urgency::End => Ok(Over::Interrupted),
            },
        };
        let turn = match self.manager.send_prompt(&id, text, PromptMode::Refuse).await {
            Ok(turn) if turn.number().is_none() => return Ok(Over::Done),
            Ok(turn) => turn,
            // The session's end comes with the events.
            Err(error) if self.is_done(&error) => return Ok(Over::Done),
            Err(error) => return Err(error.into()),
        };
        let over = self.follow(turn).await?;
        if let Some(live) = &mut self.live {
            live.finish()?;
        }
        if matches!(over, Over::Done) {
            std::mem::take(&mut self.outcome).verdict()?;
        }
        Ok(over)
    }

    /// Waits for typed input, and prints the session's events meanwhile.
    async fn typed(&mut self) -> Result<Heard, Failure> {
        loop {
            let mut batch = Vec::new();
            tokio::select! {
                more = self.events.next_batch(&mut batch) => {
                    self.print(&batch).await?;
                    if !more || !self.lives() {
                        return Ok(Heard::Over);
                    }
                }
                typed = self.asker.line(PROMPT) => return Ok(Heard::Typed(typed)),
                urgency = self.interrupts.next() => return Ok(Heard::Interrupted(urgency)),
            }
        }
    }

    /// Handles the end of input: an agent without turns gets the end of its own input, and may finish its output.
    async fn hang_up(&mut self) -> Result<Over, Failure> {
        if self.has_turns {
            return Ok(Over::Done);
        }
        let message = proxy_manager::Json::from(&json!({ "closeInput": true }));
        match self.session.native(message).await {
            Err(Error::Unsupported { .. }) => return Ok(Over::Done),
            Err(error) if self.lives() && !self.is_done(&error) => return Err(error.into()),
            Err(_) | Ok(_) => {}
        }
        loop {
            let mut batch = Vec::new();
            tokio::select! {
                more = self.events.next_batch(&mut batch) => {
                    self.print(&batch).await?;
                    if !more {
                        return self.session_over();
                    }
                }
                _ = self.interrupts.next() => return Ok(Over::Interrupted),
            }
        }
    }
}

/// Returns true if such a failure of a turn means that the session's processes end or have ended.
fn ends(problem: &Problem) -> bool {
    matches!(
        problem.kind.as_str(),
        "agent-died" | "proxy-died" | "fork-server-died" | "ended" | "suspended" | "protocol"
    )
}

/// Input between two turns, from the user or the session.
enum Heard {
    Typed(Typed),
    Interrupted(Urgency),
    /// The session has ended.
    Over,
}
