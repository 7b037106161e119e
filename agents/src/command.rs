//! Any command as an agent: lines in, lines out, no turns.

use ipc_protocol::{Event, PermissionAnswer, Signal, WireError};

use crate::{Action, Adapter, AdapterSetup, Lines};

/// The state machine: it has next to no state.
#[derive(Debug)]
struct Command {
    agent: String,
    stdout: Lines,
    stderr: Lines,
}

/// Makes the adapter.
///
/// # Errors
/// [`WireError::Unsupported`] for a model, a system prompt, tools or MCP servers: a plain command has no place for them.
pub fn make(setup: AdapterSetup) -> Result<Box<dyn Adapter>, WireError> {
    let AdapterSetup { config, agent, .. } = setup;
    let refused = [
        (config.model.is_some(), "take a model"),
        (config.system_prompt.is_some(), "take a system prompt"),
        (!config.tools.is_empty(), "restrict its tools"),
        (!config.mcp_servers.is_empty(), "use MCP servers"),
    ];
    if let Some((_, operation)) = refused.iter().find(|(asked, _)| *asked) {
        return Err(WireError::Unsupported { agent, operation: (*operation).to_owned() });
    }
    Ok(Box::new(Command { agent, stdout: Lines::default(), stderr: Lines::default() }))
}

fn text(line: &[u8]) -> String {
    String::from_utf8_lossy(line).into_owned()
}

impl Adapter for Command {
    fn has_turns(&self) -> bool {
        false
    }

    fn start(&mut self, out: &mut Vec<Action>) {
        out.push(Action::Ready { native_session_id: None });
    }

    fn stdout(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        self.stdout.push(bytes, |line| out.push(Action::Event(Event::Text { text: text(line) })));
    }

    fn stderr(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        self.stderr.push(bytes, |line| out.push(stderr_line(line)));
    }

    fn finish(&mut self, out: &mut Vec<Action>) {
        self.stdout.finish(|line| out.push(Action::Event(Event::Text { text: text(line) })));
        self.stderr.finish(|line| out.push(stderr_line(line)));
    }

    fn prompt(&mut self, text: &str, out: &mut Vec<Action>) -> Result<(), WireError> {
        let mut line = text.as_bytes().to_vec();
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        out.push(Action::Write(line));
        Ok(())
    }

    fn steer(&mut self, _: &str, _: &mut Vec<Action>) -> Result<(), WireError> {
        Err(WireError::Unsupported { agent: self.agent.clone(), operation: "be steered: it has no turns".into() })
    }

    fn abort(&mut self, out: &mut Vec<Action>) -> Result<(), WireError> {
        out.push(Action::Signal(Signal::Int));
        Ok(())
    }

    fn permission(&mut self, id: &str, _: &PermissionAnswer, _: &mut Vec<Action>) -> Result<(), WireError> {
        Err(WireError::UnknownPermission { id: id.to_owned() })
    }
}

/// A line of standard error as a `log` event.
pub(crate) fn stderr_line(line: &[u8]) -> Action {
    Action::Event(Event::Log { stream: "stderr".into(), text: text(line) })
}
