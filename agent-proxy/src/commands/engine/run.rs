//! Command `run`: one turn of an agent in this terminal, or several in sequence.

mod chat;
mod chat_command;
mod tty;

use std::{path::Path, sync::Arc};

use proxy_manager::{
    AbortPolicy, BudgetAction, ChildProgram, EndReason, Envelope, Error, Event, ExitStatus, KillOptions,
    PermissionAnswer, Prompt, PromptMode, ProxyManager, Receipt, Restart, SessionHandle, SessionState, Subscription,
    TimeoutAction, Turn, TurnEnd, WorkspaceStep,
};
use proxy_server::error_text;
use proxy_server::{ProblemDetails, ProgramExit};

use super::{
    foreground_config::foreground,
    interrupts::{InterruptLevel, InterruptStream},
    permission::{PermissionPrompter, TypedInput},
    workspaces,
};
use crate::{
    args::RunArgs,
    command_failure::CommandFailure,
    commands::prompt::TurnOutcome,
    configuration, environment, prompting,
    render::{self, event_printer::EventPrinter},
    term::{self, TermStyle, printable},
};

/// Runs one turn, then kills the session.
pub(super) async fn run(
    child: ChildProgram,
    args: RunArgs,
    directory: Option<&Path>,
    as_json: bool,
) -> Result<(), CommandFailure> {
    args.start.lifecycle.check_foreground(args.prompt.is_some())?;
    if args.terminal.tty {
        return tty::run(child, args, directory).await;
    }
    let configuration = configuration::read_with_prices(directory, args.prices.as_deref())?;
    let config = foreground(&configuration, args.agent, args.start)?;
    let full = configuration.with_profile(&config)?;
    let prompt = match &args.prompt {
        Some(prompt) => Some(prompting::parts(prompt, &args.attachments)?.into()),
        None if args.attachments.is_empty() => None,
        None => return Err(ProblemDetails::usage("--image and --file go with a prompt: give one").into()),
    };
    let row = configuration.catalog.rows().iter().find(|row| row.id == full.agent);
    let has_turns = row.is_none_or(|row| row.protocol != "command");
    let lifecycle = &config.lifecycle;
    let (resumes, restarts) = (lifecycle.resume_on_prompt, lifecycle.restart != Restart::Never);
    let asker = PermissionPrompter::of(&full, prompt.is_none())?;
    let mut interrupts = InterruptStream::new()?;
    let id = config.session_id.clone();
    let builder = environment::foreground_builder(child, environment::base());
    let manager = configuration.apply_to(builder).build().await?;
    let mut printer = (!as_json).then(EventPrinter::new);
    if let Some(live) = &mut printer {
        live.begin(&full.agent, Some("starting"));
    }
    let started = tokio::select! {
        started = manager.start_session(config) => started.map_err(CommandFailure::from),
        // Dropping the start ends what it began.
        _ = interrupts.next() => Err(CommandFailure::Exit(ProgramExit::Interrupted)),
        never = EventPrinter::animate(printer.as_mut()) => match never {},
    };
    if let Some(live) = &mut printer {
        live.finish()?;
    }
    let done = match started {
        Ok(session) => {
            let foreground = ForegroundSession {
                manager: manager.clone(),
                events: session.subscribe(),
                session,
                last_offset: 0,
                resting: None,
                rests: 0,
                rests_before: 0,
                ends: false,
                has_turns,
                is_chat: prompt.is_none(),
                resumes,
                restarts,
                interrupts,
                asker,
                printer,
                outcome: TurnOutcome::default(),
            };
            match prompt {
                Some(prompt) => foreground.run(prompt).await,
                None => foreground.chat().await,
            }
        }
        Err(failure) => Err(failure),
    };
    manager.shutdown().await;
    workspaces::report(&id);
    done
}

/// Session in this terminal.
struct ForegroundSession {
    manager: ProxyManager,
    /// Handle of the latest known incarnation.
    session: SessionHandle,
    events: Subscription,
    /// Offset of the last event printed.
    last_offset: u64,
    /// Set while the session has no processes, according to its events.
    resting: Option<RestingState>,
    /// Number of times that its processes have ended, according to its events.
    rests: u64,
    /// That number when the last turn began.
    rests_before: u64,
    /// Set once a budget or a time is used up that ends the session.
    ends: bool,
    /// True if the agent has turns.
    has_turns: bool,
    /// True if one prompt is typed after the other.
    is_chat: bool,
    /// True if a prompt resumes the session.
    resumes: bool,
    /// True if the session is resumed by itself after a crash.
    restarts: bool,
    interrupts: InterruptStream,
    /// Dialog for the permission requests that nobody else answers.
    asker: PermissionPrompter,
    printer: Option<EventPrinter>,
    outcome: TurnOutcome,
}

/// Reason why a session has no processes.
struct RestingState {
    reason: EndReason,
    /// True if the session has ended; else it is suspended.
    is_end: bool,
}

/// Reason to stop waiting.
enum TurnWait {
    /// The turn, or the agent, is done.
    Done,
    /// The user interrupted.
    Interrupted,
}

impl ForegroundSession {
    async fn run(mut self, prompt: Prompt) -> Result<(), CommandFailure> {
        // A session that was idle for too long by now is resumed.
        let turn = match self.manager.send_prompt(self.session.id(), prompt, PromptMode::Refuse).await {
            Ok(turn) => self.follow(turn).await,
            Err(error) if self.is_done(&error) => {
                self.print_up_to(u64::MAX).await?;
                self.session_ended()
            }
            Err(error) => Err(error.into()),
        };
        if let Some(live) = &mut self.printer {
            live.finish()?;
        }
        let killed = self.kill().await;
        if self.printer.is_none() {
            // `session:ended` with the receipt is the last envelope.
            self.print_to_end(&killed).await?;
        }
        let receipt = killed?;
        if let SessionState::Ended {
            reason: reason @ (EndReason::LimitExceeded(_) | EndReason::BudgetExceeded(_)),
            ..
        } = &self.session.info().state
        {
            self.outcome.record_end(reason);
            self.print_receipt(&receipt, false);
            return self.outcome.into_result();
        }
        let interrupted = self.interrupts.was_interrupted();
        self.print_receipt(&receipt, interrupted);
        match turn? {
            TurnWait::Interrupted => Err(CommandFailure::Exit(ProgramExit::Interrupted)),
            TurnWait::Done if interrupted => Err(CommandFailure::Exit(ProgramExit::Interrupted)),
            TurnWait::Done => self.outcome.into_result(),
        }
    }

    /// Prints events to the end of the turn, or of the session if the agent has no turns.
    async fn follow(&mut self, turn: Turn) -> Result<TurnWait, CommandFailure> {
        let has_turns = turn.number().is_some();
        if has_turns {
            self.begin_turn(None);
        }
        let takes_ahead = self.is_chat && self.has_commands();
        let end = turn.wait();
        tokio::pin!(end);
        loop {
            let mut batch = Vec::new();
            tokio::select! {
                more = self.events.next_batch(&mut batch) => {
                    self.print(&batch).await?;
                    if !more {
                        return if has_turns { turn_result(end.await) } else { self.session_ended() };
                    }
                }
                end = &mut end, if has_turns => {
                    let last = self.session.info().last_offset;
                    self.print_up_to(last).await?;
                    return turn_result(end);
                }
                urgency = self.interrupts.next() => match urgency {
                    InterruptLevel::Stop => self.abort().await,
                    InterruptLevel::End => return Ok(TurnWait::Interrupted),
                },
                typed = self.asker.typed(takes_ahead) => match typed {
                    TypedInput::Answer(id, answer) => self.respond(&id, answer).await,
                    TypedInput::Interrupted => self.abort().await,
                    TypedInput::Line(line) => self.take_ahead(line).await,
                    // The next prompt gets it.
                    TypedInput::End => {}
                },
                // The answer is typed where the spinner would be, perhaps to a request that is answered already.
                never = EventPrinter::animate(self.printer.as_mut()), if !self.asker.shows_line() => match never {},
            }
        }
    }

    /// Gives the agent the user's answer.
    async fn respond(&self, id: &str, answer: PermissionAnswer) {
        if let Err(error) = self.session.respond_permission(id, answer).await {
            term::error_line(format_args!("! {}", printable(&error_text(&error), true)));
        }
    }

    /// Shows on a terminal that something happens, until the printer is told of the end.
    fn begin_turn(&mut self, waiting_for: Option<&str>) {
        if let Some(live) = &mut self.printer {
            live.begin(&self.session.info().metadata.agent, waiting_for);
        }
    }

    /// Returns true if a call failed because a command ended before: its output and exit status count all the same.
    fn is_done(&self, error: &Error) -> bool {
        !self.has_turns && matches!(error, Error::Ended { .. } | Error::AgentDied { .. })
    }

    /// Judges a session that ended by itself: done, if its agent exited with 0.
    fn session_ended(&self) -> Result<TurnWait, CommandFailure> {
        match &self.resting {
            Some(RestingState { reason: EndReason::AgentExited(Some(ExitStatus::Code(0))), is_end: true }) => {
                Ok(TurnWait::Done)
            }
            // The first Ctrl-C is a SIGINT to an agent without turns: an end from that is an interruption, not a
            // failure.
            Some(RestingState { is_end: true, .. }) if self.interrupts.was_interrupted() => Ok(TurnWait::Interrupted),
            Some(RestingState { reason, is_end: true }) => {
                let info = self.session.info();
                // A home for the session alone is removed with it.
                let conversation = info.conversation.native_session_id.filter(|_| info.metadata.home.is_none());
                Err(end_problem(reason, conversation.as_deref()).into())
            }
            Some(RestingState { reason, is_end: false }) => {
                let why = if *reason == EndReason::Suspended { "it was idle".to_owned() } else { reason.to_string() };
                let problem =
                    format!("the session is suspended ({why}) and takes no prompt: leave --no-resume-on-prompt out");
                Err(ProblemDetails::new("suspended", problem).into())
            }
            None => Err(Error::ShutDown.into()),
        }
    }

    async fn abort(&mut self) {
        self.asker.edit_held();
        let aborted = self.session.abort(AbortPolicy::LeaveProcesses).await;
        // With --json the events report this.
        let Some(live) = &mut self.printer else { return };
        live.line_start();
        match aborted {
            Ok(_) => term::error_line("aborting the turn; Ctrl-C again kills the session"),
            Err(error) => {
                let why = printable(&error_text(&error), true);
                term::error_line(format_args!("the turn cannot be aborted: {why}; Ctrl-C again kills the session"))
            }
        }
    }

    /// Prints events up to an offset, or to the end of the session.
    async fn print_up_to(&mut self, last: u64) -> Result<(), CommandFailure> {
        while self.last_offset < last {
            let mut batch = Vec::new();
            if !self.events.next_batch(&mut batch).await {
                break;
            }
            self.print(&batch).await?;
        }
        Ok(())
    }

    /// Prints events up to the end of the session, if it has one: a kill that was not done in time leaves none.
    async fn print_to_end(&mut self, killed: &proxy_manager::Result<Receipt>) -> Result<(), CommandFailure> {
        match killed {
            Ok(_) | Err(Error::Survivors(_) | Error::Ended { .. }) => self.print_up_to(u64::MAX).await,
            Err(_) => Ok(()),
        }
    }

    /// Prints events, above the prompt that is being edited.
    async fn print(&mut self, batch: &[Arc<Envelope>]) -> Result<(), CommandFailure> {
        if let Some(live) = &mut self.printer {
            live.begin_above(self.asker.terminal());
        }
        let printed = self.print_events(batch).await;
        self.printer.iter_mut().for_each(EventPrinter::end_above);
        printed
    }

    async fn print_events(&mut self, batch: &[Arc<Envelope>]) -> Result<(), CommandFailure> {
        for envelope in batch {
            self.last_offset = envelope.offset;
            self.outcome.record(&envelope.event);
            let asked = matches!(&envelope.event, Event::PermissionRequested(request) if self.asker.is_for(request));
            match (&mut self.printer, &envelope.event) {
                (Some(live), Event::PermissionRequested(request)) if asked => live.begin_request(request),
                (Some(live), event) => live.event(event)?,
                (None, _) => term::json(&envelope.to_json().unwrap_or_default())?,
            }
            match &envelope.event {
                Event::SessionEnded { reason, .. } => {
                    self.resting = Some(RestingState { reason: reason.clone(), is_end: true });
                    self.rests += 1;
                }
                Event::SessionSuspended { reason, .. } => self.record_suspended(reason),
                Event::TurnStarted { .. } => self.rests_before = self.rests,
                Event::BudgetExceeded(spent) => self.ends |= spent.action == BudgetAction::EndSession,
                Event::TimeoutFired { action: TimeoutAction::KillSession, .. } => self.ends = true,
                Event::SessionResumed { by, .. } => {
                    if let Some(live) = self.printer.as_mut().filter(|_| by == "restart") {
                        live.line_start();
                        term::error_line(TermStyle::stderr().dim("- resumed"));
                    }
                    (self.resting, self.ends) = (None, false);
                    self.session = self.manager.session(self.session.id())?;
                }
                Event::PermissionRequested(request) if asked => {
                    if let Some(answer) = self.asker.ask(request) {
                        self.respond(&request.id, answer).await;
                    } else if self.asker.reads_prompt() {
                        term::error_line("press Enter to answer; what is typed by then is held");
                    }
                }
                Event::PermissionResolved { id, .. } => self.asker.forget(id),
                Event::SessionWorkspace { step: WorkspaceStep::Made, source, path, .. } => {
                    self.asker.work_in(source, path)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn record_suspended(&mut self, reason: &EndReason) {
        self.resting = Some(RestingState { reason: reason.clone(), is_end: false });
        self.rests += 1;
        // With --json the events report this.
        let Some(live) = &mut self.printer else { return };
        live.line_start();
        let why = if *reason == EndReason::Suspended { "it was idle".to_owned() } else { reason.to_string() };
        let next = match reason {
            // Suspended while it was being resumed.
            EndReason::Failed(_) if self.resumes => "; the next prompt tries again",
            _ if self.resumes => "; the next prompt resumes it",
            EndReason::Suspended => "",
            _ if self.restarts => "; it is resumed in a moment",
            _ => "",
        };
        term::error_line(TermStyle::stderr().dim(format_args!("- suspended: {}{next}", printable(&why, true))));
    }

    /// Ends the session. Another Ctrl-C meanwhile ends the grace.
    async fn kill(&mut self) -> proxy_manager::Result<Receipt> {
        let session = self.session.clone();
        let polite = session.kill(KillOptions::default());
        tokio::pin!(polite);
        tokio::select! {
            killed = &mut polite => killed,
            _ = self.interrupts.next() => session.kill(KillOptions::NOW).await,
        }
    }

    /// Reports the receipt: in full if the user requested the kill, else in a line.
    fn print_receipt(&self, receipt: &Receipt, in_full: bool) {
        if self.printer.is_none() {
            return;
        }
        let style = TermStyle::stderr();
        if in_full {
            term::error_text(render::receipt::render(receipt, style, term::columns()));
        } else {
            term::error_line(style.dim(format_args!("session ended: {}", render::receipt::summary(receipt, style))));
        }
    }
}

/// Creates the problem for a session that ended without a request, with advice.
fn end_problem(reason: &EndReason, conversation: Option<&str>) -> ProblemDetails {
    let (kind, flags) = match reason {
        EndReason::LimitExceeded(_) => ("ended", "; see --limit and --on-limit"),
        EndReason::BudgetExceeded(_) => ("budget-exceeded", "; see --on-budget"),
        EndReason::TimedOut(_) => ("deadline", "; see --timeout"),
        EndReason::AgentExited(_) => ("agent-died", ""),
        EndReason::ProxyDied(_) | EndReason::Unresponsive(_) => ("proxy-died", ""),
        EndReason::ForkServerDied => ("fork-server-died", ""),
        _ => ("ended", ""),
    };
    let next = conversation.map_or_else(String::new, |id| {
        format!("; --resume {id} goes on with its conversation, if the agent has kept it")
    });
    ProblemDetails::new(kind, format!("the session ended: {reason}{flags}{next}"))
}

fn turn_result(end: proxy_manager::Result<TurnEnd>) -> Result<TurnWait, CommandFailure> {
    end.map(|_| TurnWait::Done).map_err(CommandFailure::from)
}
