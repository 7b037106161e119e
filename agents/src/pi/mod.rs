//! Pi's RPC: lines of JSON on standard input and output; commands with ids, their responses, and events.
//!
//! - There is no handshake: `get_state` is answered when the agent is ready. What was asked for in its arguments is checked
//!   then: Pi begins a new conversation where it finds none, and thinks less where its model cannot.
//! - A turn ends with `agent_settled`; how that is told of older agents is said in `turn.rs`.
//! - Pi asks for no permission. An extension of ours does, before each tool call: `provision/pi-permissions.js`.
//! - [`Event::Usage`](ipc_protocol::Event::Usage) is the sum over the requests of a turn, without what came from the cache among
//!   the input. The context window is that of the last request.
//! - Its conversations are listed from the files that it keeps.
//! - Events that have none of ours are left to the agent's own lines. A line that is no message is a `log` event.

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

/// The state machine, and the lines that it takes.
#[derive(Debug)]
struct Pi {
    stdout: MessageLines,
    stderr: Lines,
    session: session::Session,
}

/// Makes the adapter.
///
/// # Errors
/// [`WireError::Unsupported`] for MCP servers and for a mode: Pi has neither; for a conversation that is gone on with and of which
/// nothing is to be kept.
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
