//! Command `run`: one turn of an agent in this terminal, or several in sequence.

mod chat;

use std::{path::Path, sync::Arc};

use ipc_protocol::ErrorChain;
use proxy_manager::{
    AbortPolicy, BudgetAction, Child, EndReason, Envelope, Error, Event, ExitStatus, KillOptions, Prompt, PromptMode,
    ProxyManager, Receipt, Restart, SessionHandle, SessionState, Subscription, TimeoutAction, Turn, TurnEnd,
};

use super::{
    config,
    interrupts::{Interrupts, Urgency},
    permission::Asker,
    prompt::Outcome,
};
use crate::{
    args::RunArgs,
    configuration::Configuration,
    environment,
    exit::Exit,
    problem::{Failure, Problem},
    render::{self, live::Live},
    saying,
    term::{self, Style},
};

/// Runs one turn, then kills the session.
pub(super) async fn run(child: Child, args: RunArgs, directory: Option<&Path>, as_json: bool) -> Result<(), Failure> {
    let configuration = Configuration::read(directory)?;
    let config = config::foreground(&configuration, args.agent, args.start)?;
    let full = configuration.with_profile(&config)?;
    let prompt = match &args.prompt {
        Some(prompt) => Some(saying::parts(prompt, &args.attachments)?.into()),
        None if args.attachments.is_empty() => None,
        None => return Err(Problem::usage("--image and --file go with a prompt: give one").into()),
    };
    let row = configuration.catalog.rows().iter().find(|row| row.id == full.agent);
    let has_turns = row.is_none_or(|row| row.protocol != "command");
    let lifecycle = &config.lifecycle;
    let (resumes, restarts) = (lifecycle.resume_on_prompt, lifecycle.restart != Restart::Never);
    let asker = Asker::of(&full, prompt.is_none())?;
    let mut interrupts = Interrupts::new()?;
    let builder = ProxyManager::builder(child).base_env(environment::base());
    let manager = configuration.onto(builder).build().await?;
    let started = tokio::select! {
        started = manager.start_session(config) => started.map_err(Failure::from),
        // Dropping the start ends what it began.
        _ = interrupts.next() => Err(Failure::Exit(Exit::Interrupted)),
    };
    let done = match started {
        Ok(session) => {
            let foreground = Foreground {
                manager: manager.clone(),
                events: session.subscribe(),
                session,
                seen: 0,
                rest: None,
                ends: false,
                has_turns,
                resumes,
                restarts,
                interrupts,
                asker,
                live: (!as_json).then(Live::new),
                outcome: Outcome::default(),
            };
            match prompt {
                Some(prompt) => foreground.run(prompt).await,
                None => foreground.chat().await,
            }
        }
        Err(failure) => Err(failure),
    };
    manager.shutdown().await;
    done
}

/// Session in this terminal.
struct Foreground {
    manager: ProxyManager,
    /// Handle of the latest known incarnation.
    session: SessionHandle,
    events: Subscription,
    /// Offset of the last event printed.
    seen: u64,
    /// Set while the session has no processes, according to its events.
    rest: Option<Rest>,
    /// Set once a budget or a time is used up that ends the session.
    ends: bool,
    /// True if the agent has turns.
    has_turns: bool,
    /// True if a prompt resumes the session.
    resumes: bool,
    /// True if the session is resumed by itself after a crash.
    restarts: bool,
    interrupts: Interrupts,
    /// Dialog for the permission requests that nobody else answers.
    asker: Asker,
    live: Option<Live>,
    outcome: Outcome,
}

/// Reason why a session has no processes.
struct Rest {
    reason: EndReason,
    /// True if the session has ended; else it is suspended.
    is_end: bool,
}

/// Reason to stop waiting.
enum Over {
    /// The turn, or the agent, is done.
    Done,
    /// The user interrupted.
    Interrupted,
}

impl Foreground {
    async fn run(mut self, prompt: Prompt) -> Result<(), Failure> {
        // A session that was idle for too long by now is resumed.
        let turn = match self.manager.send_prompt(self.session.id(), prompt, PromptMode::Refuse).await {
            Ok(turn) => self.follow(turn).await,
            Err(error) if self.is_done(&error) => {
                self.print_up_to(u64::MAX).await?;
                self.session_over()
            }
            Err(error) => Err(error.into()),
        };
        if let Some(live) = &mut self.live {
            live.finish()?;
        }
        let killed = self.kill().await;
        if self.live.is_none() {
            // `session:ended` with the receipt is the last envelope.
            self.print_rest(&killed).await?;
        }
        let receipt = killed?;
        if let SessionState::Ended {
            reason: reason @ (EndReason::LimitExceeded(_) | EndReason::BudgetExceeded(_)),
            ..
        } = &self.session.info().state
        {
            self.outcome.ended(reason);
            self.tell(&receipt, false);
            return self.outcome.verdict();
        }
        let interrupted = self.interrupts.seen();
        self.tell(&receipt, interrupted);
        match turn? {
            Over::Interrupted => Err(Failure::Exit(Exit::Interrupted)),
            Over::Done if interrupted => Err(Failure::Exit(Exit::Interrupted)),
            Over::Done => self.outcome.verdict(),
        }
    }

    /// Prints events to the end of the turn, or of the session if the agent has no turns.
    async fn follow(&mut self, turn: Turn) -> Result<Over, Failure> {
        let has_turns = turn.number().is_some();
        let end = turn.wait();
        tokio::pin!(end);
        loop {
            let mut batch = Vec::new();
            tokio::select! {
                more = self.events.next_batch(&mut batch) => {
                    self.print(&batch).await?;
                    if !more {
                        return if has_turns { turn_over(end.await) } else { self.session_over() };
                    }
                }
                end = &mut end, if has_turns => {
                    let last = self.session.info().last_offset;
                    self.print_up_to(last).await?;
                    return turn_over(end);
                }
                urgency = self.interrupts.next() => match urgency {
                    Urgency::Stop => self.abort().await,
                    Urgency::End => return Ok(Over::Interrupted),
                },
                answer = self.asker.answer() => {
                    let Some((id, answer)) = answer else {
                        self.abort().await;
                        continue;
                    };
                    if let Err(error) = self.session.respond_permission(&id, answer).await {
                        term::note(format_args!("! {}", ErrorChain(&error)));
                    }
                }
            }
        }
    }

    /// Returns true if a call failed because a command ended before: its output and exit status count all the same.
    fn is_done(&self, error: &Error) -> bool {
        !self.has_turns && matches!(error, Error::Ended { .. } | Error::AgentDied { .. })
    }

    /// Judges a session that ended by itself: done, if its agent exited with 0.
    fn session_over(&self) -> Result<Over, Failure> {
        match &self.rest {
            Some(Rest { reason: EndReason::AgentExited(Some(ExitStatus::Code(0))), is_end: true }) => Ok(Over::Done),
            // The first Ctrl-C is a SIGINT to an agent without turns: an end from that is an interruption, not a
            // failure.
            Some(Rest { is_end: true, .. }) if self.interrupts.seen() => Ok(Over::Interrupted),
            Some(Rest { reason, is_end: true }) => {
                let info = self.session.info();
                // A home for the session alone is removed with it.
                let conversation = info.conversation.native_session_id.filter(|_| info.metadata.home.is_none());
                Err(over(reason, conversation.as_deref()).into())
            }
            Some(Rest { reason, is_end: false }) => {
                let why = if *reason == EndReason::Suspended { "it was idle".to_owned() } else { reason.to_string() };
                let problem =
                    format!("the session is suspended ({why}) and takes no prompt: leave --no-resume-on-prompt out");
                Err(Problem::new("suspended", problem).into())
            }
            None => Err(Error::ShutDown.into()),
        }
    }

    async fn abort(&mut self) {
        let aborted = self.session.abort(AbortPolicy::LeaveProcesses).await;
        // With --json the events report this.
        let Some(live) = &mut self.live else { return };
        live.line_start();
        match aborted {
            Ok(_) => term::note("aborting the turn; Ctrl-C again kills the session"),
            Err(error) => {
                let why = ErrorChain(&error);
                term::note(format_args!("the turn cannot be aborted: {why}; Ctrl-C again kills the session"))
            }
        }
    }

    /// Prints events up to an offset, or to the end of the session.
    async fn print_up_to(&mut self, last: u64) -> Result<(), Failure> {
        while self.seen < last {
            let mut batch = Vec::new();
            if !self.events.next_batch(&mut batch).await {
                break;
            }
            self.print(&batch).await?;
        }
        Ok(())
    }

    /// Prints events up to the end of the session, if it has one: a kill that was not done in time leaves none.
    async fn print_rest(&mut self, killed: &proxy_manager::Result<Receipt>) -> Result<(), Failure> {
        match killed {
            Ok(_) | Err(Error::Survivors(_) | Error::Ended { .. }) => self.print_up_to(u64::MAX).await,
            Err(_) => Ok(()),
        }
    }

    async fn print(&mut self, batch: &[Arc<Envelope>]) -> Result<(), Failure> {
        for envelope in batch {
            self.seen = envelope.offset;
            self.outcome.note(&envelope.event);
            let asked = matches!(&envelope.event, Event::PermissionRequested(request) if self.asker.is_for(request));
            match &mut self.live {
                Some(live) if asked => live.line_start(),
                Some(live) => live.event(&envelope.event)?,
                None => term::json(&envelope.to_json().unwrap_or_default())?,
            }
            match &envelope.event {
                Event::SessionEnded { reason, .. } => self.rest = Some(Rest { reason: reason.clone(), is_end: true }),
                Event::SessionSuspended { reason, .. } => self.suspended(reason),
                Event::BudgetExceeded(spent) => self.ends |= spent.action == BudgetAction::EndSession,
                Event::TimeoutFired { action: TimeoutAction::KillSession, .. } => self.ends = true,
                Event::SessionResumed { by, .. } => {
                    if let Some(live) = self.live.as_mut().filter(|_| by == "restart") {
                        live.line_start();
                        term::note(Style::stderr().dim("- resumed"));
                    }
                    (self.rest, self.ends) = (None, false);
                    self.session = self.manager.session(self.session.id())?;
                }
                Event::PermissionRequested(request) if asked => {
                    if let Some(answer) = self.asker.ask(request) {
                        self.session.respond_permission(&request.id, answer).await?;
                    }
                }
                Event::PermissionResolved { id, .. } => self.asker.forget(id),
                _ => {}
            }
        }
        Ok(())
    }

    fn suspended(&mut self, reason: &EndReason) {
        self.rest = Some(Rest { reason: reason.clone(), is_end: false });
        // With --json the events report this.
        let Some(live) = &mut self.live else { return };
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
        term::note(Style::stderr().dim(format_args!("- suspended: {why}{next}")));
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
    fn tell(&self, receipt: &Receipt, in_full: bool) {
        if self.live.is_none() {
            return;
        }
        let style = Style::stderr();
        if in_full {
            term::part(render::receipt::render(receipt, style, term::columns()));
        } else {
            term::note(style.dim(format_args!("session ended: {}", render::receipt::summary(receipt, style))));
        }
    }
}

/// Creates the problem for a session that ended without a request, with advice.
fn over(reason: &EndReason, conversation: Option<&str>) -> Problem {
    let (kind, flags) = match reason {
        EndReason::LimitExceeded(_) => ("ended", "; see --limit and --on-limit"),
        EndReason::BudgetExceeded(_) => ("budget-exceeded", "; see --on-budget"),
        EndReason::TimedOut(_) => ("deadline", "; see --timeout"),
        EndReason::AgentExited(_) => ("agent-died", ""),
        EndReason::ProxyDied(_) | EndReason::Unresponsive(_) => ("proxy-died", ""),
        EndReason::ForkServerDied => ("fork-server-died", ""),
        EndReason::Killed | EndReason::Failed(_) | EndReason::HostDied | EndReason::Shutdown | EndReason::Suspended => {
            ("ended", "")
        }
    };
    let next = conversation.map_or_else(String::new, |id| {
        format!("; --resume {id} goes on with its conversation, if the agent has kept it")
    });
    Problem::new(kind, format!("the session ended: {reason}{flags}{next}"))
}

fn turn_over(end: proxy_manager::Result<TurnEnd>) -> Result<Over, Failure> {
    end.map(|_| Over::Done).map_err(Failure::from)
}
