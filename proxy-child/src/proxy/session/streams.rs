//! Streams of the agent, and its end.

use std::time::Instant;

use agents::{Action, HttpEvent};
use ipc_protocol::{EndReason, Event, ExitStatus, KillOptions, OnAgentExit, Signal, WireError, message::FromProxy};

use super::{AGENT_EXIT_GRACE, ProxySession, RunningAgent};
use crate::proxy::{
    HIGH_WATER,
    agent::OutputStream,
    http::{HttpOutcome, ResponsePiece},
    link::HostLink,
};

/// Reads of agent output before anything else gets its turn.
const READS: usize = 4;
/// Enough reads for the capacity of a pipe (at most 1 MiB), when its writer is dead.
const DRAIN: usize = 32;

impl ProxySession<'_> {
    /// Passes the agent's output to its adapter, until the host is behind.
    pub(crate) fn read(&mut self, output: OutputStream, link: &mut HostLink) {
        self.read_up_to(output, link, READS, HIGH_WATER);
    }

    fn read_up_to(&mut self, output: OutputStream, link: &mut HostLink, reads: usize, high_water: usize) {
        for _ in 0..reads {
            let Some(running) = &mut self.running else { return };
            let Some(bytes) = running.agent.as_mut().and_then(|agent| agent.read(output)) else { return };
            let mut actions = Vec::new();
            match output {
                OutputStream::Stdout => {
                    running.stdout.push(bytes, &mut actions, |line, out| running.adapter.stdout(line, out));
                }
                OutputStream::Stderr => {
                    running.adapter.stderr(bytes, &mut actions);
                    let text = String::from_utf8_lossy(bytes);
                    if let Some(last) = text.lines().rev().find(|line| !line.trim().is_empty()) {
                        running.last_stderr_line = last.chars().take(300).collect();
                    }
                }
            }
            self.apply_actions_and_report(actions, link);
            link.flush();
            if link.unsent() >= high_water {
                return;
            }
        }
    }

    /// Passes the answers of the agent's server to its adapter, until the host is behind.
    pub(crate) fn read_http(&mut self, link: &mut HostLink) {
        self.read_http_up_to(link, READS, HIGH_WATER);
    }

    fn read_http_up_to(&mut self, link: &mut HostLink, reads: usize, high_water: usize) {
        for _ in 0..reads {
            let Some(ResponsePiece { id, stream, emits_raw: told, outcome }) = self.http.take() else { return };
            let Some(RunningAgent { adapter, events, .. }) = &mut self.running else { return };
            let mut actions = Vec::new();
            let mut line = |line: &[u8], out: &mut Vec<Action>| adapter.http(id, HttpEvent::Body(line), out);
            match &outcome {
                HttpOutcome::Body(bytes) if stream => events.push(bytes, &mut actions, line),
                HttpOutcome::End | HttpOutcome::Failed(_) if stream => {
                    events.finish(&mut actions, &mut line);
                    adapter.http(id, outcome.event(), &mut actions);
                }
                outcome => {
                    if let HttpOutcome::Body(bytes) = outcome
                        && told
                    {
                        events.emit_raw(bytes, &mut actions);
                    }
                    adapter.http(id, outcome.event(), &mut actions);
                }
            }
            self.apply_actions_and_report(actions, link);
            link.flush();
            if link.unsent() >= high_water {
                return;
            }
        }
    }

    /// Writes queued input to the agent.
    pub(crate) fn write_stdin(&mut self, link: &mut HostLink) {
        let Some(agent) = self.running.as_mut().and_then(|running| running.agent.as_mut()) else { return };
        if let Err(error) = agent.flush() {
            let event = Event::ActionFailed { action: "writing to the agent".into(), error: error.to_string() };
            link.send(&FromProxy::Event { turn: self.turn.unwrap_or(0), event });
        }
    }

    /// Reads the output that a dead agent left in its pipes.
    fn drain_output(&mut self, link: &mut HostLink) {
        self.read_up_to(OutputStream::Stdout, link, DRAIN, usize::MAX);
        self.read_up_to(OutputStream::Stderr, link, DRAIN, usize::MAX);
        self.read_http_up_to(link, DRAIN, usize::MAX);
    }

    /// Reads the output that a dead agent left, and lets the adapter end what is open. Later output of survivors that hold the pipes is
    /// not awaited.
    pub(super) fn drain_agent(&mut self, link: &mut HostLink) {
        self.drain_output(link);
        let mut actions = Vec::new();
        if let Some(running) = &mut self.running {
            running.terminal.iter().for_each(|terminal| terminal.end(running.exited));
            running.stdout.finish(&mut actions, |line, out| running.adapter.stdout(line, out));
            // An unfinished stream is emitted to its last byte; its adapter could not use an incomplete line.
            running.events.finish(&mut actions, |_, _| {});
            running.adapter.finish(&mut actions);
        }
        self.apply_actions_and_report(actions, link);
        self.http.close();
        if let Some(running) = &mut self.running {
            let reason = running.exited.map_or_else(|| "the session has ended".to_owned(), |exit| exit.to_string());
            for request in running.operations.take_all() {
                let error = WireError::AgentDied { reason: reason.clone() };
                link.send(&FromProxy::Failed { request, error });
            }
        }
        self.turn = None;
    }

    /// Makes the error for an agent that exited before it was ready.
    pub(super) fn start_exit_error(&self, exit: ExitStatus) -> WireError {
        let words = self.running.as_ref().map(|running| running.last_stderr_line.as_str()).unwrap_or_default();
        let reason = match words {
            "" => format!("{exit} before it was ready"),
            words => format!("{exit} before it was ready; its last words: {words}"),
        };
        WireError::AgentDied { reason }
    }

    /// Checks whether the agent has exited, and handles its exit.
    pub(super) fn check_agent(&mut self, link: &mut HostLink) {
        let Some(running) = &mut self.running else { return };
        if running.exited.is_some() {
            return;
        }
        let Some(exit) = running.agent.as_ref().and_then(|agent| self.registry.exit_of(agent.id())) else { return };
        if self.ending.is_none() && (self.http.drain_deadline().is_some() || self.first_viewer_due().is_some()) {
            return;
        }
        if self.ending.is_none() && exit == ExitStatus::Signal(Signal::Kill.number()) {
            // The kernel may have killed it, for lack of memory in the session's cgroup.
            self.sample_limits(Instant::now(), link);
        }
        let Some(running) = &mut self.running else { return };
        if self.ending.is_some() {
            // The session is being ended, which is reported separately.
            running.exited = Some(exit);
            return;
        }
        // The last output may be the end of its turn.
        self.drain_output(link);
        let Some(running) = &mut self.running else { return };
        running.exited = Some(exit);
        let mut kept = running.on_exit == OnAgentExit::Keep;
        kept &= running.starting.is_none();
        self.drain_agent(link);
        if let Some(running) = &self.running
            && let Some(agent) = &running.agent
        {
            self.registry.explain_error(agent.id(), running.last_stderr_line.trim());
        }
        // For an agent that was not ready, its adapter may have reported the reason already.
        if let Some(request) = self.running.as_mut().and_then(|running| running.starting.take()) {
            let error = self.start_exit_error(exit);
            link.send(&FromProxy::Failed { request, error });
        }
        link.send(&FromProxy::AgentExited { exit, kept });
        if !kept {
            self.end(EndReason::AgentExited(Some(exit)), KillOptions::grace(AGENT_EXIT_GRACE));
        }
    }
}
