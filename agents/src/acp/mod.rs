//! The Agent Client Protocol, version 1: JSON-RPC lines on standard input and output.
//!
//! - The handshake is `initialize`, then `session/new` or a request that continues a conversation (`session/resume`, `session/load`,
//!   `session/fork`), and then the requests that set model, mode and thinking, where the configuration names them.
//!   The row may allow `session/new` to be sent together with `initialize`; this is done only if nothing depends on the answer.
//! - A system prompt is the first text block of the first prompt, unless the agent says that it takes one.
//! - A configured value that the agent does not offer is refused.
//! - A line that the adapter does not understand becomes a `log` event, so that nothing is lost.
//!
//! The numbers: `stream:usage` and the usage of `stream:complete` are those of the turn. Tokens are the numbers in the agent's answer
//! to the prompt (OpenCode counts its last request to the model only; Gemini counts cached tokens as input). The cost is the increase
//! of the sum that the agent reports; it is unknown for the first turn of a continued conversation.
//!
//! A row's `protocol_config` may say: `steerByPrompt` (`true`: a prompt while a turn runs steers it, and each is answered;
//! `"unanswered"`: only one of them is), `compactCommand` (what has the agent compact its conversation, where it does not offer a
//! command of that name), `opensAtOnce` (`true`: it takes `session/new` before it has answered `initialize`, and answers in that
//! order), `provisions` (fields of the configuration that the agent has from its files or arguments: `tools`, `ephemeral`;
//! `thinking`, where it offers no choice of levels), `login` (how it is logged in, for people), `sessionFailures` (`true`: it says in `_meta` what fails, and that it asks
//! again, to who declares to understand it: `failures.rs`).

mod details;
mod errors;
mod failures;
mod gemini;
mod handshake;
mod offer;
mod opening;
mod operations;
mod permissions;
mod quirks;
mod session;
mod tools;
mod turn;
mod updates;
mod wire;

use ipc_protocol::{Operation, PermissionAnswer, Prompt, ResolvedBy, WireError, message::RequestId};

use crate::{
    Action, Adapter, AdapterSetup, Lines, ListedFile,
    jsonl::{Line, MessageLines},
};

/// State machine of the protocol, with the readers of its two streams.
#[derive(Debug)]
struct Acp {
    stdout: MessageLines,
    stderr: Lines,
    session: session::Session,
}

/// Makes the adapter. The agent's limits are known once it has answered `initialize`.
///
/// # Errors
/// None now.
pub fn make(setup: AdapterSetup) -> Result<Box<dyn Adapter>, WireError> {
    Ok(Box::new(Acp {
        stdout: MessageLines::default(),
        stderr: Lines::default(),
        session: session::Session::new(setup),
    }))
}

impl Adapter for Acp {
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
        stderr.push(bytes, |line| session.complained(line, out));
    }

    fn listed(&mut self, id: u64, files: Vec<ListedFile>, out: &mut Vec<Action>) {
        self.session.listed(id, &files, out);
    }

    fn finish(&mut self, out: &mut Vec<Action>) {
        let Self { stdout, stderr, session } = self;
        stdout.finish(|line| session.counted_line(line, out));
        stderr.finish(|line| session.complained(line, out));
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
        self.session.permission(id, answer, by, out)
    }

    fn operate(&mut self, request: RequestId, operation: &Operation, out: &mut Vec<Action>) -> Result<(), WireError> {
        self.session.operate(request, operation, out)
    }
}
