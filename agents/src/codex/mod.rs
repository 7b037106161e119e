//! Codex's app-server: JSON-RPC lines without the `jsonrpc` member, on standard input and output.
//!
//! - It begins with `initialize`, `initialized` and `thread/start`, `thread/resume` or `thread/fork`, sent together: it takes them
//!   in their order. The most recent conversation is looked up with `thread/list`. Mode and thinking are set before the first prompt.
//! - A system prompt is `developerInstructions`: it is added to Codex's own. MCP servers are configuration of the thread.
//! - An abort is `turn/interrupt`, and when the turn is over `thread/backgroundTerminals/clean`: until then its commands run.
//!   Sub-agents are interrupted too.
//! - Its total of tokens is for the whole conversation; [`Event::Usage`](ipc_protocol::Event::Usage) is per turn, and has the
//!   tokens from the cache among the input.
//! - A sub-agent is a thread of its own. Its tool calls and requests are passed on with the call that began it; what it says is
//!   not.
//! - Of a conversation whose file is broken behind its first line it goes on with what it can read, and answers `thread/resume` as if it
//!   were whole: preview and turns are in a database beside it. So the host looks at the file first.
//! - Notifications that have no event of ours are left to the agent's own lines. A line that is no message is a `log` event.

mod agents;
mod approvals;
mod items;
mod operations;
mod session;
mod start;
mod turn;
mod usage;
mod wire;

pub(crate) use start::{effort, sandbox};

use ipc_protocol::{Operation, PermissionAnswer, Prompt, PromptPart, ResolvedBy, WireError, message::RequestId};

use crate::{
    Action, Adapter, AdapterSetup, Lines,
    command::stderr_line,
    jsonl::{Line, MessageLines},
};

/// The state machine, and the lines that it takes.
#[derive(Debug)]
struct Codex {
    stdout: MessageLines,
    stderr: Lines,
    session: session::Session,
}

/// Makes the adapter. Its configuration may have `"sandbox"`: the sandbox of Codex's own, where the session asks for none.
///
/// # Errors
/// [`WireError::Unsupported`] for tools, which Codex cannot restrict; for a mode that is neither `build` nor `plan`; for a
/// conversation that is gone on with, not forked, and of which nothing is to be kept.
pub fn make(setup: AdapterSetup) -> Result<Box<dyn Adapter>, WireError> {
    start::check(&setup)?;
    Ok(Box::new(Codex {
        stdout: MessageLines::default(),
        stderr: Lines::default(),
        session: session::Session::new(setup),
    }))
}

impl Adapter for Codex {
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
        self.stderr.push(bytes, |line| out.push(stderr_line(line)));
    }

    fn finish(&mut self, out: &mut Vec<Action>) {
        let Self { stdout, stderr, session } = self;
        stdout.finish(|line| session.counted_line(line, out));
        stderr.finish(|line| out.push(stderr_line(line)));
        session.finish(out);
    }

    fn prompt(&mut self, prompt: &Prompt, out: &mut Vec<Action>) -> Result<(), WireError> {
        self.session.prompt(prompt, out)
    }

    fn steer(&mut self, prompt: &Prompt, out: &mut Vec<Action>) -> Result<(), WireError> {
        self.session.steer(prompt, out)
    }

    fn abort(&mut self, out: &mut Vec<Action>) -> Result<(), WireError> {
        self.session.abort(out);
        Ok(())
    }

    fn permission(
        &mut self,
        id: &str,
        answer: &PermissionAnswer,
        by: ResolvedBy,
        out: &mut Vec<Action>,
    ) -> Result<(), WireError> {
        let session = &mut self.session;
        if let Some(reason) = session.approvals.answer(&session.agent, id, answer, by, out)? {
            let input = start::input(&[PromptPart::Text(reason.message)], "/");
            session.send_steer(&reason.thread, &reason.turn, &input, out);
        }
        Ok(())
    }

    fn operate(&mut self, request: RequestId, operation: &Operation, out: &mut Vec<Action>) -> Result<(), WireError> {
        self.session.operate(request, operation, out)
    }
}
