//! JSON-RPC of Codex's app-server: lines without the `jsonrpc` member, on standard input and output.
//!
//! - The adapter sends `initialize`, `initialized` and `thread/start`, `thread/resume` or `thread/fork` together: Codex handles them
//!   in that order. `thread/list` finds the most recent conversation. Mode and thinking are set before the first prompt.
//! - A system prompt becomes `developerInstructions`, which Codex adds to its own. MCP servers are configuration of the thread.
//! - An abort is `turn/interrupt`, and after the turn's end `thread/backgroundTerminals/clean`: until then its commands run on.
//!   Sub-agents are interrupted too.
//! - Codex's token total is that of the whole conversation. [`Event::Usage`](ipc_protocol::Event::Usage) is that of a turn, and
//!   counts cached tokens as input.
//! - A sub-agent is a thread of its own. Its tool calls and requests are emitted with the call that started it; its text is not
//!   emitted.
//! - If a conversation's file is broken after its first line, Codex continues with the part it can read, and answers `thread/resume`
//!   as if the file were complete: preview and turns are in a separate database. So the host checks the file first.
//! - Notifications without an event of ours remain available as raw lines. A line that is no message becomes a `log` event.

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

/// State machine of the protocol, with the readers of its two streams.
#[derive(Debug)]
struct Codex {
    stdout: MessageLines,
    stderr: Lines,
    session: session::Session,
}

/// Makes the adapter. Its configuration may have `"sandbox"`: the sandbox of Codex's own, where the session asks for none.
///
/// # Errors
/// [`WireError::Unsupported`] for a list of tools, which Codex cannot restrict; for a mode other than `build` and `plan`; and for an
/// ephemeral session that continues a conversation without forking it.
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
