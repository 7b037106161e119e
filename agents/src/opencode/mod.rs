//! HTTP client of OpenCode's server (`opencode serve`), with one stream of server-sent events.
//!
//! - The server prints its address on standard output; for a running server the session names the address. The adapter then opens
//!   the event stream, and after `server.connected` the conversation: it creates, finds or copies it.
//! - The session's rules make the server ask before each tool. Sub-agents have the rules of the server's configuration.
//! - Each prompt contains model, mode, thinking and system prompt.
//! - When the event stream is cut, the adapter opens it again and queries what it missed. What sub-agents did meanwhile stays
//!   missing, and a `session:lossy` reports that.
//! - Usage is that of the turn so far, including its sub-agents; see `content.rs`.
//! - A native command is `{"method", "path", "body"}`, its answer `{"status", "body"}`.
//! - A line that the adapter does not understand becomes a `log` event, so that nothing is lost.

mod calls;
mod content;
mod events;
mod models;
mod opening;
mod operations;
mod permissions;
mod remembered;
mod resync;
mod running;
mod settings;
mod turn;
mod wire;

use ipc_protocol::{Endpoint, Operation, PermissionAnswer, Prompt, ResolvedBy, WireError, message::RequestId};

use self::running::Server;
use crate::{
    Action, Adapter, AdapterSetup, HttpEvent, Lines,
    command::stderr_line,
    jsonl::{Line, MessageLines},
};

/// State machine of the protocol, with the readers of its streams.
#[derive(Debug)]
struct OpenCode {
    stdout: Lines,
    stderr: Lines,
    events: MessageLines,
    server: Server,
}

/// Makes the adapter.
///
/// # Errors
/// [`WireError::AgentRefused`] for a model without its provider.
pub fn make(setup: AdapterSetup) -> Result<Box<dyn Adapter>, WireError> {
    let no_endpoint = || Endpoint { url: None, user: "opencode".into(), password: None };
    let mut endpoint = setup.endpoint.clone().unwrap_or_else(no_endpoint);
    if endpoint.user.is_empty() {
        endpoint.user = "opencode".into();
    }
    Ok(Box::new(OpenCode {
        stdout: Lines::default(),
        stderr: Lines::default(),
        events: MessageLines::default(),
        server: Server::new(&setup, endpoint)?,
    }))
}

impl OpenCode {
    fn stream(&mut self, event: HttpEvent<'_>, out: &mut Vec<Action>) {
        let Self { events, server, .. } = self;
        match event {
            HttpEvent::Head(200) => {}
            HttpEvent::Head(status) => server.stream_refused(status, out),
            HttpEvent::Body(bytes) => events.push(bytes, |line| match line {
                Line::Whole(line) => server.counted(out, |server, out| server.line(line, out)),
                Line::TooLong(beginning) => server.dropped(beginning, out),
            }),
            HttpEvent::End | HttpEvent::Failed(_) => {
                // An incomplete line is dropped: its contents are queried again.
                *events = MessageLines::default();
                let why = if let HttpEvent::Failed(why) = event { why } else { "the server ended it" };
                server.stream_cut(why, out);
            }
        }
    }
}

impl Adapter for OpenCode {
    fn start(&mut self, out: &mut Vec<Action>) {
        self.server.start(out);
    }

    fn stdout(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        let Self { stdout, server, .. } = self;
        stdout.push(bytes, |line| server.stdout_line(line, out));
    }

    fn stderr(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        self.stderr.push(bytes, |line| out.push(stderr_line(line)));
    }

    fn http(&mut self, id: u64, event: HttpEvent<'_>, out: &mut Vec<Action>) {
        if self.server.is_stream(id) {
            self.stream(event, out);
        } else {
            self.server.counted(out, |server, out| server.http(id, event, out));
        }
    }

    fn finish(&mut self, out: &mut Vec<Action>) {
        let Self { stdout, stderr, server, .. } = self;
        stdout.finish(|line| server.stdout_line(line, out));
        stderr.finish(|line| out.push(stderr_line(line)));
        server.finish(out);
    }

    fn prompt(&mut self, prompt: &Prompt, out: &mut Vec<Action>) -> Result<(), WireError> {
        self.server.prompt(prompt, out)
    }

    fn steer(&mut self, prompt: &Prompt, out: &mut Vec<Action>) -> Result<(), WireError> {
        self.server.steer(prompt, out)
    }

    fn abort(&mut self, out: &mut Vec<Action>) -> Result<(), WireError> {
        self.server.abort(out);
        Ok(())
    }

    fn permission(
        &mut self,
        id: &str,
        answer: &PermissionAnswer,
        by: ResolvedBy,
        out: &mut Vec<Action>,
    ) -> Result<(), WireError> {
        self.server.permission(id, answer, by, out)
    }

    fn operate(&mut self, request: RequestId, operation: &Operation, out: &mut Vec<Action>) -> Result<(), WireError> {
        self.server.operate(request, operation, out)
    }
}
