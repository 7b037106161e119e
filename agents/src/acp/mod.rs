//! The Agent Client Protocol, version 1: JSON-RPC lines on standard input and output.
//!
//! - The handshake is `initialize`, `session/new` and, where the configuration names a model, the request that sets it.
//! - A system prompt has no place in the protocol: it is the first text block of the first prompt.
//! - The tools of an agent cannot be restricted through the protocol: a configuration that does is refused.
//! - A line that is not understood becomes a `log` event, so that nothing is lost.

mod handshake;
mod permissions;
mod session;
mod updates;
mod wire;

use ipc_protocol::{Event, PermissionAnswer, WireError};

use crate::{Action, Adapter, AdapterSetup, Lines, command::stderr_line};

/// The state machine, and the lines that it takes.
#[derive(Debug)]
struct Acp {
    stdout: Lines,
    stderr: Lines,
    /// The rest of a line that was too long is dropped.
    dropping: bool,
    session: session::Session,
}

/// Makes the adapter.
///
/// # Errors
/// [`WireError::Unsupported`] for tools: the protocol cannot restrict them.
pub fn make(setup: AdapterSetup) -> Result<Box<dyn Adapter>, WireError> {
    let AdapterSetup { config, agent, steer_by_prompt } = setup;
    if !config.tools.is_empty() {
        return Err(WireError::Unsupported { agent, operation: "restrict its tools".to_owned() });
    }
    Ok(Box::new(Acp {
        stdout: Lines::with_limit(wire::MAX_MESSAGE_LINE),
        stderr: Lines::default(),
        dropping: false,
        session: session::Session::new(agent, config, steer_by_prompt),
    }))
}

impl Adapter for Acp {
    fn start(&mut self, out: &mut Vec<Action>) {
        self.session.start(out);
    }

    fn stdout(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        let Self { stdout, dropping, session, .. } = self;
        stdout.push(bytes, |line| {
            let whole = line.ends_with(b"\n");
            if *dropping {
                *dropping = !whole;
            } else if whole {
                session.line(line, out);
            } else {
                *dropping = true;
                out.push(Action::Event(Event::Error {
                    code: "line-too-long".to_owned(),
                    message: format!("the agent wrote a line of more than {} bytes: dropped", wire::MAX_MESSAGE_LINE),
                    retryable: false,
                }));
            }
        });
    }

    fn stderr(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        self.stderr.push(bytes, |line| out.push(stderr_line(line)));
    }

    fn finish(&mut self, out: &mut Vec<Action>) {
        let Self { stdout, stderr, dropping, session } = self;
        stdout.finish(|line| {
            if !*dropping {
                session.line(line, out);
            }
        });
        stderr.finish(|line| out.push(stderr_line(line)));
        session.finish(out);
    }

    fn prompt(&mut self, text: &str, out: &mut Vec<Action>) -> Result<(), WireError> {
        self.session.prompt(text, out)
    }

    fn steer(&mut self, text: &str, out: &mut Vec<Action>) -> Result<(), WireError> {
        self.session.steer(text, out)
    }

    fn abort(&mut self, out: &mut Vec<Action>) -> Result<(), WireError> {
        self.session.abort(out);
        Ok(())
    }

    fn permission(&mut self, id: &str, answer: &PermissionAnswer, out: &mut Vec<Action>) -> Result<(), WireError> {
        self.session.permission(id, answer, out)
    }
}
