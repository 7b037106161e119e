//! HTTP client of OpenCode's server (`opencode serve`), with one stream of server-sent events.
//!
//! - The server prints its address on standard output; for a running server the session names the address. The adapter then opens
//!   the event stream, and after `server.connected` the conversation: it creates, finds or copies it.
//! - The session's rules make the server ask before each tool. Sub-agents have the rules of the server's configuration.
//! - Each prompt contains model, mode, thinking and system prompt.
//! - When the event stream is cut, the adapter opens it again and queries what it missed. What sub-agents did meanwhile stays
//!   missing, and a `session:lossy` reports that.
//! - Usage is that of the turn so far, including its sub-agents; see `content.rs`.
//! - A prompt that begins with the name of a slash command calls that command of the server. A command takes no system prompt.
//! - A sub-agent is a conversation of its own: its text is emitted with the call that started it.
//! - A native command is `{"method", "path", "body"}`, its answer `{"status", "body"}`.
//! - A line that the adapter does not understand becomes a `log` event, so that nothing is lost.

mod calls;
mod content;
mod diffs;
mod events;
mod looks;
mod models;
mod opening;
mod operations;
mod permissions;
mod resync;
mod screen_turn;
mod session;
mod settings;
mod turn;
mod wire;

use std::time::Instant;

use ipc_protocol::{AgentEndpoint, Operation, PermissionAnswer, Prompt, ResolvedBy, WireError, message::RequestId};

use self::{
    calls::OpenCodeRequestPurpose,
    screen_turn::ScreenTurn,
    session::{OpenCodePhase, OpenCodeSession},
    turn::OpenCodeTurn,
};
use crate::{Action, Adapter, AdapterSetup, HttpEvent, Result, kit::json_lines::JsonLinesAgent as _};

/// Most prompts that steer a turn and are not yet accepted.
const MAX_STEERS: usize = 64;

/// Makes the adapter.
///
/// # Errors
/// [`WireError::AgentRefused`] for a model without its provider.
pub fn make(setup: AdapterSetup) -> Result<Box<dyn Adapter>> {
    let no_endpoint = || AgentEndpoint { url: None, user: "opencode".into(), password: None };
    let mut endpoint = setup.endpoint.clone().unwrap_or_else(no_endpoint);
    if endpoint.user.is_empty() {
        endpoint.user = "opencode".into();
    }
    Ok(Box::new(OpenCodeSession::new(&setup, endpoint)?))
}

impl Adapter for OpenCodeSession {
    fn agent(&self) -> &str {
        &self.settings.agent
    }

    fn start(&mut self, out: &mut Vec<Action>) {
        if matches!(self.phase, OpenCodePhase::New) {
            self.phase = OpenCodePhase::Starting;
            if self.endpoint.url.is_some() {
                self.connect(out);
            }
        }
    }

    fn stdout(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        let mut stdout = std::mem::take(&mut self.stdout);
        stdout.push(bytes, |line| self.stdout_line(line, out));
        self.stdout = stdout;
    }

    fn stderr(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        self.read_stderr(bytes, out);
    }

    fn http(&mut self, id: u64, event: HttpEvent<'_>, out: &mut Vec<Action>) {
        if !self.is_stream(id) {
            let before = out.len();
            self.answered(id, event, out);
            self.content.answer.count(&out[before..]);
            return;
        }
        match event {
            HttpEvent::Head(200) => {}
            HttpEvent::Head(status) => self.stream_refused(status, out),
            HttpEvent::Body(bytes) => self.read_messages(bytes, out),
            HttpEvent::End | HttpEvent::Failed(_) => {
                // The contents of an incomplete line are queried again.
                self.output.drop_incomplete();
                let why = if let HttpEvent::Failed(why) = event { why } else { "the server ended it" };
                self.stream_cut(why, out);
            }
        }
    }

    fn tick(&mut self, now: Instant, out: &mut Vec<Action>) -> Option<Instant> {
        self.content.tick(now, out)
    }

    fn finish(&mut self, out: &mut Vec<Action>) {
        std::mem::take(&mut self.stdout).finish(|line| self.stdout_line(line, out));
        self.output.drop_incomplete();
        self.read_rest(out);
        let reason = match self.phase {
            OpenCodePhase::New | OpenCodePhase::Ready | OpenCodePhase::Over => None,
            OpenCodePhase::Starting => Some("it ended before it said where it listens"),
            OpenCodePhase::Connecting => Some("it ended before its event stream was open"),
            OpenCodePhase::Opening => Some("it ended before its conversation was open"),
        };
        self.close(out);
        if let Some(reason) = reason {
            out.push(Action::Fail(WireError::AgentDied { reason: reason.into() }));
        }
    }

    fn prompt(&mut self, prompt: &Prompt, out: &mut Vec<Action>) -> Result<()> {
        if self.phase != OpenCodePhase::Ready {
            return Err(self.unsupported("take a prompt: its session is not ready, or over"));
        }
        if self.turn.is_some() {
            return Err(WireError::Busy);
        }
        self.turns += 1;
        let (purpose, body) = match self.looks.command(prompt) {
            Some((name, input)) => {
                let body = self.settings.command_body(name, input, &prompt.parts[1..]);
                (OpenCodeRequestPurpose::Command(self.turns), body)
            }
            None => (OpenCodeRequestPurpose::Prompt, self.settings.prompt_body(prompt)),
        };
        self.turn = Some(OpenCodeTurn::new());
        // One that runs goes on in this one.
        self.screen = ScreenTurn::default();
        self.content.turn_begins();
        self.send_prompt(purpose, body, out);
        Ok(())
    }

    /// Sends a prompt during a turn: the server reads it before its next step.
    fn steer(&mut self, prompt: &Prompt, out: &mut Vec<Action>) -> Result<()> {
        let Some(turn) = self.turn.as_mut().filter(|turn| !turn.is_aborted()) else {
            return Err(self.unsupported("be steered: no turn runs"));
        };
        if self.waiting.len() >= MAX_STEERS {
            return Err(WireError::Busy);
        }
        let body = self.settings.prompt_body(prompt);
        turn.steered(body.clone());
        self.send_prompt(OpenCodeRequestPurpose::Steer, body, out);
        Ok(())
    }

    fn abort(&mut self, out: &mut Vec<Action>) -> Result<()> {
        self.abort_turn(out);
        Ok(())
    }

    fn permission(&mut self, id: &str, answer: &PermissionAnswer, by: ResolvedBy, out: &mut Vec<Action>) -> Result<()> {
        let send = self.permissions.answer(&self.settings.agent, id, answer, by, out)?;
        self.send_answers(vec![send], out);
        Ok(())
    }

    fn operate(&mut self, request: RequestId, operation: &Operation, out: &mut Vec<Action>) -> Result<()> {
        self.send_operation(request, operation, out)
    }
}
