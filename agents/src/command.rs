//! Adapter for any command as an agent: lines in, lines out, no turns.

use ipc_protocol::{Event, Json, Operation, PermissionMode, Prompt, PromptPart, Signal, message::RequestId};

use serde_json::json;

use crate::{
    Action, Adapter, AdapterSetup, LineSplitter, Result,
    kit::{refuse_asked, stderr_line},
};

/// State machine of the adapter, with hardly any state.
#[derive(Debug)]
struct CommandAdapter {
    agent: String,
    stdout: LineSplitter,
    stderr: LineSplitter,
}

/// Makes the adapter.
///
/// # Errors
/// [`WireError::Unsupported`](ipc_protocol::WireError::Unsupported) for a model, a system prompt, tools or MCP servers, since a plain command takes none of them; and for
/// permission rules and modes that refuse, since a command never asks and would not be held back.
pub fn make(setup: AdapterSetup) -> Result<Box<dyn Adapter>> {
    let AdapterSetup { config, agent, .. } = setup;
    let refused = [
        (config.model.is_some(), "take a model"),
        (config.system_prompt.is_some(), "take a system prompt"),
        (!config.tools.is_empty(), "restrict its tools"),
        (!config.mcp_servers.is_empty(), "use MCP servers"),
        (config.mode.is_some(), "take a mode"),
        (config.thinking.is_some(), "think"),
        (config.resume.is_some(), "go on with a conversation"),
        (!config.permissions.rules.is_empty(), "be held to permission rules: it asks for nothing"),
        (
            matches!(config.permission_mode, PermissionMode::Deny | PermissionMode::ReadOnly),
            "be held to a permission mode that refuses: it asks for nothing",
        ),
    ];
    refuse_asked(&agent, &refused)?;
    Ok(Box::new(CommandAdapter { agent, stdout: LineSplitter::default(), stderr: LineSplitter::default() }))
}

fn text(line: &[u8]) -> String {
    String::from_utf8_lossy(line).into_owned()
}

impl Adapter for CommandAdapter {
    fn agent(&self) -> &str {
        &self.agent
    }

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

    fn prompt(&mut self, prompt: &Prompt, out: &mut Vec<Action>) -> Result<()> {
        if prompt.parts.iter().any(|part| matches!(part, PromptPart::Image { .. })) {
            return Err(self.unsupported("take pictures"));
        }
        let words = prompt.parts.iter().filter_map(|part| match part {
            PromptPart::Text(text) => Some(text.as_str()),
            PromptPart::File { path } => Some(path.as_str()),
            PromptPart::Image { .. } => None,
        });
        let mut line = words.collect::<Vec<_>>().join(" ").into_bytes();
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        out.push(Action::Write(line));
        Ok(())
    }

    fn abort(&mut self, out: &mut Vec<Action>) -> Result<()> {
        out.push(Action::Signal(Signal::Int));
        Ok(())
    }

    /// Starts an operation. A command has no protocol of its own. The only message, `{"closeInput":true}`, closes its pipe.
    fn operate(&mut self, request: RequestId, operation: &Operation, out: &mut Vec<Action>) -> Result<()> {
        match operation {
            Operation::Native { message } if message.value() == json!({ "closeInput": true }) => {
                out.extend([Action::CloseInput, Action::Reply { request, reply: Ok(Json::null()) }]);
                Ok(())
            }
            operation => Err(self.unsupported(&operation.describe())),
        }
    }
}
