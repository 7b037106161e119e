//! Claude Code in stream-json: JSON lines on standard input and output, turns by `user` and `result`, everything else by
//! control requests in both directions.
//!
//! - It is ready when it has answered `initialize`. `system/init` says the rest, at the beginning of every turn.
//! - A system prompt, MCP servers and how hard it thinks are part of the handshake, so that they are in no argument. Model, mode,
//!   tools and the conversation to go on with are arguments: `../provision/claude.rs`.
//! - Every message of ours has a name, and a turn is over when the agent has answered all of its: `turn.rs`.
//! - What its numbers mean: `usage.rs`.
//! - A line that is not understood becomes a `log` event, so that nothing is lost.

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

/// The state machine, and the lines that it takes.
#[derive(Debug)]
struct Claude {
    stdout: MessageLines,
    stderr: Lines,
    session: session::Session,
}

/// Makes the adapter.
///
/// # Errors
/// [`WireError::Unsupported`] for a way to think that it does not have.
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
