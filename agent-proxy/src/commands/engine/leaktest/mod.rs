//! Command `leaktest`: finds the processes that a command spawns, those that leave its reach, and those left
//! behind.

mod record;
mod report;

use std::time::{Duration, Instant};

use proxy_manager::{
    AgentSessionConfig, ChildProgram, Error, Event, KillOptions, OnAgentExit, ProxyManager, Receipt, SessionHandle,
    Subscription,
};
use proxy_server::{ProblemDetails, ProgramExit};

use self::{
    record::LeakRecord,
    report::{LeakReport, LeakVerdict},
};
use crate::commands::engine::interrupts::InterruptStream;
use crate::{
    args::LeaktestArgs,
    command_failure::CommandFailure,
    environment,
    term::{self, TermStyle},
};

/// Interval between listings of the live processes while the command runs: a process changes group and session
/// after it was first seen.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Interval between listings while started processes may still end by themselves.
const SETTLE_INTERVAL: Duration = Duration::from_millis(10);

/// Longest wait for the last events after the kill.
const LAST_EVENTS: Duration = Duration::from_secs(10);

/// Runs the command, kills the processes it leaves, and reports.
pub(super) async fn run(child: ChildProgram, args: LeaktestArgs, as_json: bool) -> Result<(), CommandFailure> {
    let mut interrupts = InterruptStream::new()?;
    let manager = ProxyManager::builder(child).base_env(environment::all()).build().await?;
    let tested = tokio::select! {
        tested = test(&manager, &args) => tested,
        _ = interrupts.next() => Err(CommandFailure::Exit(ProgramExit::Interrupted)),
    };
    // End everything, whatever happened above.
    let left = manager.shutdown().await;
    let survived = left.iter().find(|receipt| !receipt.is_empty());
    let report = match (tested, survived) {
        (Err(_), Some(receipt)) => return Err(Error::Survivors(Box::new(receipt.clone())).into()),
        (tested, _) => tested?,
    };
    if as_json {
        term::json(&report.json())?;
    } else {
        term::out(report.text(TermStyle::stdout(), term::columns()))?;
    }
    let survived = std::iter::once(&report.receipt).chain(&left).find(|receipt| !receipt.is_empty());
    match (survived, report.verdict()) {
        (Some(receipt), _) => Err(Error::Survivors(Box::new(receipt.clone())).into()),
        (None, LeakVerdict::Clean) => Ok(()),
        (None, _) => Err(CommandFailure::Exit(ProgramExit::Failed)),
    }
}

async fn test(manager: &ProxyManager, args: &LeaktestArgs) -> Result<LeakReport, CommandFailure> {
    let config = AgentSessionConfig {
        command: args.command.clone(),
        cwd: Some(environment::cwd(None)?),
        on_agent_exit: OnAgentExit::Keep,
        containment: args.containment.containment,
        ..AgentSessionConfig::new("command")
    };
    let begin = Instant::now();
    let session = manager.start_session(config).await?;
    let mut test = LeakTest { events: session.subscribe(), session, record: LeakRecord::default() };
    let exited = match tokio::time::timeout(args.timeout, test.until_exit()).await {
        Ok(done) => done.map(|()| true)?,
        Err(_) => false,
    };
    let ran = begin.elapsed();
    if exited {
        test.settle(args.settle).await?;
    } else {
        test.poll().await?;
    }
    test.record.begin_kill();
    let receipt = test.kill(KillOptions::grace(args.grace)).await?;
    test.record.receipt(&receipt);
    Ok(LeakReport { command: args.command.clone(), exited, ran, settle: args.settle, record: test.record, receipt })
}

struct LeakTest {
    session: SessionHandle,
    events: Subscription,
    record: LeakRecord,
}

impl LeakTest {
    /// Records everything until the command has exited.
    async fn until_exit(&mut self) -> Result<(), CommandFailure> {
        let mut look = tokio::time::interval(POLL_INTERVAL);
        loop {
            let mut batch = Vec::new();
            tokio::select! {
                more = self.events.next_batch(&mut batch) => {
                    batch.iter().for_each(|envelope| self.event(&envelope.event));
                    if !more || self.record.agent_exited() {
                        return Ok(());
                    }
                }
                _ = look.tick() => {
                    self.poll().await?;
                }
            }
        }
    }

    /// Waits until no process is left, or for the granted time.
    async fn settle(&mut self, granted: Duration) -> Result<(), CommandFailure> {
        let until = tokio::time::Instant::now() + granted;
        while self.poll().await? > 0 && tokio::time::Instant::now() < until {
            let mut batch = Vec::new();
            // An event causes another listing; without one the next is due all the same.
            let pause = SETTLE_INTERVAL.min(until.saturating_duration_since(tokio::time::Instant::now()));
            let _ = tokio::time::timeout(pause, self.events.next_batch(&mut batch)).await;
            batch.iter().for_each(|envelope| self.event(&envelope.event));
        }
        Ok(())
    }

    /// Lists the live processes. Returns their number, without the command itself.
    async fn poll(&mut self) -> Result<usize, CommandFailure> {
        let listing = self.session.processes().await?;
        Ok(self.record.record_listing(&listing))
    }

    async fn kill(&mut self, options: KillOptions) -> Result<Receipt, CommandFailure> {
        let receipt = match self.session.kill(options).await {
            Ok(receipt) => receipt,
            Err(Error::Survivors(receipt)) => *receipt,
            Err(error) => return Err(error.into()),
        };
        let last = async {
            let mut batch = Vec::new();
            while self.events.next_batch(&mut batch).await {
                batch.drain(..).for_each(|envelope| self.event(&envelope.event));
            }
        };
        if tokio::time::timeout(LAST_EVENTS, last).await.is_err() {
            return Err(ProblemDetails::new("deadline", "the session's last events did not come after its kill").into());
        }
        Ok(receipt)
    }

    fn event(&mut self, event: &Event) {
        if let Event::Text { text } | Event::Log { text, .. } = event {
            // The user's own command, in the user's own terminal: print it unchanged.
            term::error_text(text);
        }
        self.record.event(event);
    }
}
