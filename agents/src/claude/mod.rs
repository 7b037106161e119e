//! Claude Code in stream-json: JSON lines on standard input and output. Turns are `user` and `result` messages; everything else is
//! control requests in both directions.
//!
//! - The agent is ready when it has answered `initialize`. `system/init`, at the start of every turn, contains the rest.
//! - System prompt, MCP servers and thinking level are part of the handshake, so that no argument contains them. Model, mode, tools
//!   and the conversation to continue are arguments: `../provision/claude.rs`.
//! - Each of our messages has a name, and a turn ends when the agent has answered all messages of the turn: `turn.rs`.
//! - The meaning of the agent's numbers: `usage.rs`.
//! - A line that the adapter does not understand becomes a `log` event, so that nothing is lost.

mod messages;
mod operations;
mod outgoing;
mod permissions;
mod plan;
mod session;
mod stored;
mod system;
mod tools;
mod turn;
mod usage;
mod wire;

use ipc_protocol::{Operation, PermissionAnswer, Prompt, ResolvedBy, WireError, message::RequestId};

use crate::{
    Action, Adapter, AdapterSetup, Lines, ListedFile,
    command::stderr_line,
    jsonl::{Line, MessageLines},
};

/// State machine of the protocol, with the readers of its two streams.
#[derive(Debug)]
struct Claude {
    stdout: MessageLines,
    stderr: Lines,
    session: session::Session,
}

/// Makes the adapter.
///
/// # Errors
/// [`WireError::Unsupported`] for a thinking level that the agent does not have.
pub fn make(setup: AdapterSetup) -> Result<Box<dyn Adapter>, WireError> {
    let agent = setup.agent.clone();
    let session = session::Session::new(setup).map_err(|operation| WireError::Unsupported { agent, operation })?;
    Ok(Box::new(Claude { stdout: MessageLines::default(), stderr: Lines::default(), session }))
}

impl Claude {
    fn complained(session: &mut session::Session, line: &[u8], out: &mut Vec<Action>) {
        session.complained(line);
        out.push(stderr_line(line));
    }
}

impl Adapter for Claude {
    fn start(&mut self, out: &mut Vec<Action>) {
        self.session.start(out);
    }

    fn stdout(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        let Self { stdout, session, .. } = self;
        stdout.push(bytes, |line| match line {
            Line::Whole(line) => session.counted_line(line, out),
            Line::TooLong(beginning) => session.line_dropped(beginning, out),
        });
    }

    fn stderr(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        let Self { stderr, session, .. } = self;
        stderr.push(bytes, |line| Self::complained(session, line, out));
    }

    fn listed(&mut self, id: u64, files: Vec<ListedFile>, out: &mut Vec<Action>) {
        self.session.listed(id, &files, out);
    }

    fn finish(&mut self, out: &mut Vec<Action>) {
        let Self { stdout, stderr, session } = self;
        stdout.finish(|line| session.counted_line(line, out));
        stderr.finish(|line| Self::complained(session, line, out));
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
        self.session.permission(id, answer, by, out)
    }

    fn operate(&mut self, request: RequestId, operation: &Operation, out: &mut Vec<Action>) -> Result<(), WireError> {
        self.session.operate(request, operation, out)
    }
}
