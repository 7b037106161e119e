//! What an embedder writes: a function on a manager, and an adapter of its own.

use agent_proxy_sdk::{
    AgentSessionConfig, Error, Event, KillOptions, ProxyManager, Receipt,
    adapter::{Action, Adapter, AdapterSetup, Adapters, LineSplitter, WireError},
    events::StopReason,
};

/// Asks an agent one thing, and ends its session.
pub async fn ask_once(manager: &ProxyManager, config: AgentSessionConfig, prompt: &str) -> Result<(String, Receipt), Error> {
    let session = manager.start_session(config).await?;
    let answer = session.ask(prompt).await?;
    Ok((answer.reply, session.kill(KillOptions::default()).await?))
}

/// The built-in protocols and `echo`.
pub fn adapters() -> Adapters {
    Adapters::default().with("echo", make)
}

/// Protocol of `cat`: a line is a turn.
struct Echo {
    agent: String,
    stdout: LineSplitter,
}

fn make(setup: AdapterSetup) -> Result<Box<dyn Adapter>, WireError> {
    Ok(Box::new(Echo { agent: setup.agent, stdout: LineSplitter::default() }))
}

impl Adapter for Echo {
    fn agent(&self) -> &str {
        &self.agent
    }

    fn start(&mut self, out: &mut Vec<Action>) {
        out.push(Action::Ready { native_session_id: None });
    }

    fn stdout(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        self.stdout.push(bytes, |line| {
            out.push(Action::Event(Event::Text { text: String::from_utf8_lossy(line).into_owned() }));
            out.push(Action::Event(Event::Complete { stop_reason: StopReason::EndTurn, usage: None }));
            out.push(Action::TurnEnded);
        });
    }

    fn stderr(&mut self, _: &[u8], _: &mut Vec<Action>) {}

    fn finish(&mut self, _: &mut Vec<Action>) {}

    fn prompt(&mut self, prompt: &agent_proxy_sdk::Prompt, out: &mut Vec<Action>) -> Result<(), WireError> {
        out.push(Action::Write(format!("{}\n", prompt.text()).into_bytes()));
        Ok(())
    }
}
