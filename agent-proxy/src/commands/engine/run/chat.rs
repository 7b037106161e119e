//! Command `run` without a prompt: one turn after the other, as they are typed.

use std::io::{self, IsTerminal};

use proxy_manager::{EndReason, Error, KillOptions, KillScope, Operation, ProcessStatus, PromptMode};
use proxy_server::{ProblemDetails, ProgramExit};
use serde_json::json;

use super::{
    ForegroundSession, TurnWait,
    chat_command::{self, ChatCommand, ChatEntry},
};
use crate::{
    command_failure::CommandFailure,
    commands::engine::{interrupts::InterruptLevel, permission::TypedInput},
    render::{self, event_printer::EventPrinter, shared_terminal::SharedTerminal},
    term::{self, TermStyle, printable},
};

/// Prompt for typed input.
const PROMPT: &str = "> ";

impl ForegroundSession {
    /// Reads prompts until the end of standard input, or until Ctrl-C is pressed twice; then kills the session.
    pub(super) async fn chat(mut self) -> Result<(), CommandFailure> {
        self.greet();
        let talked = self.chat_loop().await;
        // Nothing that is typed is read any more.
        self.asker.terminal().iter().for_each(SharedTerminal::close);
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

    /// Returns true if a person types on a terminal: then there are commands beside the prompts. An agent without turns
    /// gets each line as it is.
    pub(super) fn has_commands(&self) -> bool {
        self.has_turns && self.is_on_terminal()
    }

    fn is_on_terminal(&self) -> bool {
        self.printer.is_some() && io::stdin().is_terminal() && io::stdout().is_terminal() && io::stderr().is_terminal()
    }

    /// Shows on a terminal what runs, and the keys.
    fn greet(&self) {
        if !self.is_on_terminal() {
            return;
        }
        let (style, info) = (TermStyle::stderr(), self.session.info());
        for (name, value) in [
            ("agent", info.metadata.agent.as_str()),
            ("model", info.settings.model.as_deref().unwrap_or("the agent's own choice")),
            ("directory", &info.metadata.cwd),
            ("session", info.metadata.session_id.as_str()),
        ] {
            term::error_line(format_args!("{} {}", style.dim(format_args!("{name:<10}")), printable(value, false)));
        }
        let keys = match self.has_turns {
            true => "Enter sends · Ctrl-C aborts, twice ends · Ctrl-D ends · /help",
            false => "Enter sends a line · Ctrl-C twice ends · Ctrl-D ends the input",
        };
        term::error_line(format_args!("{} {keys}", style.dim(format_args!("{:<10}", "keys"))));
    }

    async fn chat_loop(&mut self) -> Result<TurnWait, CommandFailure> {
        let mut asked_to_end = false;
        loop {
            let text = match self.next_input().await? {
                ChatInput::Typed(TypedInput::Line(text)) if text.trim().is_empty() => continue,
                ChatInput::Typed(TypedInput::Line(text)) => text,
                ChatInput::Typed(TypedInput::Answer(id, answer)) => {
                    self.respond(&id, answer).await;
                    continue;
                }
                ChatInput::Typed(TypedInput::End) => return self.hang_up().await,
                ChatInput::Ended => return self.session_ended(),
                ChatInput::Interrupted(InterruptLevel::End) => return Ok(TurnWait::Interrupted),
                ChatInput::Typed(TypedInput::Interrupted) | ChatInput::Interrupted(InterruptLevel::Stop) => {
                    if std::mem::replace(&mut asked_to_end, true) {
                        return Ok(TurnWait::Interrupted);
                    }
                    term::error_line("no turn runs; Ctrl-C again, or Ctrl-D, ends the session");
                    continue;
                }
            };
            asked_to_end = false;
            self.interrupts.reset();
            let entry = if self.has_commands() { ChatEntry::parse(&text) } else { ChatEntry::Prompt(text) };
            self.rests_before = self.rests;
            let done = match entry {
                ChatEntry::Prompt(text) => self.turn(&text).await,
                ChatEntry::Command(ChatCommand::Quit) => return self.hang_up().await,
                ChatEntry::Command(command) => self.carry_out(command).await.map(|()| TurnWait::Done),
                ChatEntry::Refused(why) => {
                    term::error_line(why);
                    continue;
                }
            };
            match done {
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

    /// Prints events up to the end of the turn's processes, which has begun; Ctrl-C stops waiting. The session may be resumed at once.
    async fn print_until_stopped(&mut self) -> Result<(), CommandFailure> {
        while self.resting.is_none() && self.rests == self.rests_before {
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

    /// Erases the lines of a running turn.
    fn end_turn(&mut self) {
        self.printer.iter_mut().for_each(EventPrinter::end_turn);
    }

    fn line_start(&mut self) {
        self.printer.iter_mut().for_each(|live| live.line_start());
    }

    /// Runs one turn to its end. An agent without turns only gets the text; its output comes at any time.
    async fn turn(&mut self, text: &str) -> Result<TurnWait, CommandFailure> {
        self.outcome = Default::default();
        let id = self.session.id().clone();
        if self.resting.is_some() {
            self.begin_turn(Some("resuming"));
        }
        let awake = tokio::select! {
            awake = self.manager.awake(&id) => Ok(awake),
            // Giving up the wait leaves the session suspended.
            urgency = self.interrupts.next() => Err(urgency),
            never = EventPrinter::animate(self.printer.as_mut()) => match never {},
        };
        self.end_turn();
        self.session = match awake {
            Ok(awake) => awake?,
            Err(InterruptLevel::Stop) => return Err(CommandFailure::Exit(ProgramExit::Interrupted)),
            Err(InterruptLevel::End) => return Ok(TurnWait::Interrupted),
        };
        let turn = match self.manager.send_prompt(&id, text, PromptMode::Refuse).await {
            Ok(turn) if turn.number().is_none() => return Ok(TurnWait::Done),
            Ok(turn) => turn,
            // The session's end comes with the events.
            Err(error) if self.is_done(&error) => return Ok(TurnWait::Done),
            Err(error) => return Err(error.into()),
        };
        let over = self.follow(turn).await;
        self.end_turn();
        let over = over?;
        if let Some(live) = &mut self.printer {
            live.finish()?;
        }
        if matches!(over, TurnWait::Done) {
            std::mem::take(&mut self.outcome).into_result()?;
        }
        Ok(over)
    }

    /// Takes a line that is typed while a turn runs: a command about the session's processes is carried out at once, anything else is the
    /// next prompt.
    pub(super) async fn take_ahead(&mut self, line: String) {
        let done = match ChatEntry::parse(&line) {
            ChatEntry::Command(command @ (ChatCommand::Help | ChatCommand::Processes | ChatCommand::Kill(_))) => {
                self.line_start();
                self.carry_out(command).await
            }
            _ => {
                self.line_start();
                term::error_line(TermStyle::stderr().dim(format_args!("next: {}", printable(&line, true))));
                self.asker.hold(line);
                return;
            }
        };
        if let Err(CommandFailure::Problem(problem)) = done {
            term::problem(&problem, false);
        }
    }

    /// Carries out a command between two turns.
    async fn carry_out(&mut self, command: ChatCommand) -> Result<(), CommandFailure> {
        let (style, settings) = (TermStyle::stderr(), self.session.info().settings);
        match command {
            ChatCommand::Help => term::error_text(chat_command::help()),
            // The end of the input does the same.
            ChatCommand::Quit => {}
            ChatCommand::Model(None) => show_setting("model", settings.model),
            ChatCommand::Mode(None) => show_setting("mode", settings.mode),
            ChatCommand::Thinking(None) => show_setting("thinking", settings.thinking),
            ChatCommand::Model(Some(model)) => {
                self.operate(Operation::SetModel { model: model.clone() }).await?;
                show_setting("model", Some(model));
            }
            ChatCommand::Mode(Some(mode)) => {
                self.operate(Operation::SetMode { mode: mode.clone() }).await?;
                show_setting("mode", Some(mode));
            }
            ChatCommand::Thinking(Some(level)) => {
                self.operate(Operation::SetThinking { level: level.clone() }).await?;
                show_setting("thinking", Some(level));
            }
            ChatCommand::Compact(instructions) => {
                let compact =
                    instructions.map_or(Operation::Compact, |instructions| Operation::CompactWith { instructions });
                self.operate(compact).await?;
                term::error_line(style.dim("compacted"));
            }
            ChatCommand::Processes => {
                let mut processes = self.session.processes().await?;
                processes.retain(|process| process.status == ProcessStatus::Running);
                term::error_text(render::tree::render(&processes, style, term::columns()));
            }
            ChatCommand::Kill(pid) => {
                let scope = pid.map_or(KillScope::AllButAgent, |pid| KillScope::Process { pid, tree: true });
                let receipt = self.session.kill_scope(scope, KillOptions::default()).await?;
                term::error_line(render::receipt::summary(&receipt, style));
            }
        }
        Ok(())
    }

    /// Performs an operation of the agent, and prints the session's events meanwhile. Ctrl-C stops waiting.
    async fn operate(&mut self, operation: Operation) -> Result<(), CommandFailure> {
        self.session = self.manager.awake(self.session.id()).await?;
        self.begin_turn(None);
        let session = self.session.clone();
        let reply = session.operate(operation);
        tokio::pin!(reply);
        let mut has_events = true;
        let done = loop {
            let mut batch = Vec::new();
            tokio::select! {
                more = self.events.next_batch(&mut batch), if has_events => {
                    self.print(&batch).await?;
                    has_events = more;
                }
                reply = &mut reply => break reply.map(drop).map_err(CommandFailure::from),
                _ = self.interrupts.next() => {
                    break Err(ProblemDetails::failed("not waited for any longer; the agent may do it yet").into());
                }
                never = EventPrinter::animate(self.printer.as_mut()) => match never {},
            }
        };
        self.end_turn();
        done
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

fn show_setting(name: &str, value: Option<String>) {
    let value = value.map_or_else(|| "the agent's own choice".to_owned(), |value| printable(&value, false));
    term::error_line(TermStyle::stderr().dim(format_args!("{name}: {value}")));
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
    Typed(TypedInput),
    Interrupted(InterruptLevel),
    /// The session has ended.
    Ended,
}
