//! JSON lines of Pi's RPC on standard input and output: commands with ids, their responses, and events.
//!
//! - There is no handshake: Pi answers `get_state` when it is ready. The adapter then checks the values of Pi's arguments: Pi starts
//!   a new conversation if it does not find the old one, and thinks at a lower level if its model has no higher one.
//! - A turn ends with `agent_settled`; `turn.rs` says how the end is detected with older agents.
//! - Pi asks for no permission. Our extension does, before each tool call: `provision/pi-permissions.js`.
//! - [`Event::Usage`](ipc_protocol::Event::Usage) is the sum over the requests of a turn, and excludes cached tokens from the
//!   input. The context window is that of the last request.
//! - Conversations are listed from the files that Pi writes.
//! - Events without an event of ours remain available as raw lines. A line that is no message becomes a `log` event.

mod dialogs;
mod operations;
mod session;
mod tools;
mod turn;
mod wire;

use ipc_protocol::{Operation, PermissionAnswer, Prompt, ResolvedBy, WireError, message::RequestId};

use crate::{
    Action, Adapter, AdapterSetup, Lines, ListedFile,
    command::stderr_line,
    jsonl::{Line, MessageLines},
};

/// State machine of the protocol, with the readers of its two streams.
#[derive(Debug)]
struct Pi {
    stdout: MessageLines,
    stderr: Lines,
    session: session::Session,
}

/// Makes the adapter.
///
/// # Errors
/// [`WireError::Unsupported`] for MCP servers and for a mode, since Pi has neither; and for an ephemeral session that continues a
/// conversation.
pub fn make(setup: AdapterSetup) -> Result<Box<dyn Adapter>, WireError> {
    let config = &setup.config;
    let refused = [
        (!config.mcp_servers.is_empty(), "use MCP servers"),
        (config.mode.is_some(), "take a mode"),
        (config.ephemeral && setup.resume.is_some(), "keep nothing of a conversation that it goes on with"),
    ];
    if let Some((_, operation)) = refused.iter().find(|(asked, _)| *asked) {
        return Err(WireError::Unsupported { agent: setup.agent, operation: (*operation).to_owned() });
    }
    Ok(Box::new(Pi {
        stdout: MessageLines::default(),
        stderr: Lines::default(),
        session: session::Session::new(setup),
    }))
}

impl Adapter for Pi {
    fn start(&mut self, out: &mut Vec<Action>) {
        self.session.start(out);
    }

    fn stdout(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        let Self { stdout, session, .. } = self;
        stdout.push(bytes, |line| match line {
            Line::Whole(line) => session.counted_line(line, out),
            Line::TooLong(beginning) => session.dropped(beginning, out),
        });
    }

    fn stderr(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        let Self { stderr, session, .. } = self;
        stderr.push(bytes, |line| {
            session.said(line);
            out.push(stderr_line(line));
        });
    }

    fn listed(&mut self, id: u64, files: Vec<ListedFile>, out: &mut Vec<Action>) {
        self.session.listed(id, &files, out);
    }

    fn finish(&mut self, out: &mut Vec<Action>) {
        let Self { stdout, stderr, session } = self;
        stdout.finish(|line| session.counted_line(line, out));
        stderr.finish(|line| {
            session.said(line);
            out.push(stderr_line(line));
        });
        session.finish(out);
    }

    fn prompt(&mut self, prompt: &Prompt, out: &mut Vec<Action>) -> Result<(), WireError> {
        self.session.prompt(prompt, out)
    }

    fn steer(&mut self, prompt: &Prompt, out: &mut Vec<Action>) -> Result<(), WireError> {
        self.session.steer(prompt, out)
    }

    fn abort(&mut self, out: &mut Vec<Action>) -> Result<(), WireError> {
        self.session.abort(out)
    }

    fn permission(
        &mut self,
        id: &str,
        answer: &PermissionAnswer,
        by: ResolvedBy,
        out: &mut Vec<Action>,
    ) -> Result<(), WireError> {
        let session = &mut self.session;
        session.dialogs.answer(&session.agent, id, answer, by, out)
    }

    fn operate(&mut self, request: RequestId, operation: &Operation, out: &mut Vec<Action>) -> Result<(), WireError> {
        self.session.operate(request, operation, out)
    }
}
