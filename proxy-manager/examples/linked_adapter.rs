//! A new agent whose protocol is new as well: an adapter of one's own, linked in. Here the agent is a shell that stays: each prompt
//! is a script, and the end of the turn is a line that says how the script ended.
//!
//! `cargo run -p agent-proxy-manager --example linked_adapter`

#![expect(clippy::print_stdout, reason = "an example talks")]

use agents::{Action, Adapter, AdapterSetup, Adapters, LineSplitter};
use ipc_protocol::WireError;
use proxy_manager::{
    AgentSessionConfig, AgentSpec, ChildProgram, Event, KillOptions, Prompt, PromptMode, ProxyManager, StopReason,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Adapters run in the proxies, so it is here that they are named. The manager knows them from the catalog's rows only.
    let token = proxy_child::run_if_child_with(&Adapters::default().with("shell", make));
    tokio::runtime::Runtime::new()?.block_on(talk(ChildProgram::Current(token)))
}

async fn talk(child: ChildProgram) -> Result<(), Box<dyn std::error::Error>> {
    let manager = ProxyManager::builder(child)
        .base_env([("PATH", "/usr/bin:/bin")].into_iter().collect())
        .agent(AgentSpec::new("shell", "shell", &["/bin/sh"]))
        .build()
        .await?;
    let session = manager.start_session(AgentSessionConfig::new("shell")).await?;
    let mut events = session.subscribe();
    for script in [
        "greeting=hello",
        "echo $greeting from the same shell; sleep 600 & while read name </proc/$!/comm && [ $name != sleep ]; do :; done",
        "exit_code() { return 3; }; exit_code",
    ] {
        let end = session.prompt(script, PromptMode::Refuse).await?.wait().await?;
        println!("{script:?} ended: {:?}, error {:?}", end.stop_reason, end.error);
    }
    let receipt = session.kill(KillOptions::default()).await?;
    while let Some(envelope) = events.next().await {
        if let Event::Text { text } = &envelope.event {
            print!("the shell says: {text}");
        }
    }
    println!("{receipt}");
    for process in &receipt.processes {
        println!("  {}", process.command.as_deref().unwrap_or("[unreadable]"));
    }
    assert!(receipt.is_empty());
    manager.shutdown().await;
    Ok(())
}

/// Before the status of a script on the line that ends a turn. A script that prints it itself ends its turn early: a real
/// protocol has a better mark.
const END: &str = "\u{4}turn ended: ";

/// The state machine. It does no I/O: bytes and prompts in, actions out.
#[derive(Debug)]
struct Shell {
    agent: String,
    stdout: LineSplitter,
    stderr: LineSplitter,
    in_turn: bool,
}

fn make(setup: AdapterSetup) -> Result<Box<dyn Adapter>, WireError> {
    let AdapterSetup { agent, config, .. } = setup;
    // What it is asked for and has no place for is refused, never dropped.
    if config.model.is_some() {
        return Err(WireError::Unsupported { agent, operation: "take a model".into() });
    }
    Ok(Box::new(Shell { agent, stdout: LineSplitter::default(), stderr: LineSplitter::default(), in_turn: false }))
}

/// What a line of the shell's means.
fn line(line: &[u8], in_turn: &mut bool, out: &mut Vec<Action>) {
    let text = String::from_utf8_lossy(line).into_owned();
    match text.trim_end().strip_prefix(END) {
        Some(status) if std::mem::take(in_turn) => {
            out.push(Action::Event(match status {
                "0" => Event::Complete { stop_reason: StopReason::EndTurn, usage: None },
                status => Event::error("exit-status", format!("the script ended with status {status}"), false),
            }));
            out.push(Action::TurnEnded);
        }
        _ => out.push(Action::Event(Event::Text { text })),
    }
}

impl Adapter for Shell {
    fn agent(&self) -> &str {
        &self.agent
    }

    fn start(&mut self, out: &mut Vec<Action>) {
        out.push(Action::Ready { native_session_id: None });
    }

    fn stdout(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        let Self { stdout, in_turn, .. } = self;
        stdout.push(bytes, |bytes| line(bytes, in_turn, out));
    }

    fn stderr(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        self.stderr.push(bytes, |line| {
            let text = String::from_utf8_lossy(line).into_owned();
            out.push(Action::Event(Event::Log { stream: "stderr".into(), text }));
        });
    }

    fn finish(&mut self, out: &mut Vec<Action>) {
        let Self { stdout, in_turn, .. } = self;
        stdout.finish(|bytes| line(bytes, in_turn, out));
    }

    fn prompt(&mut self, prompt: &Prompt, out: &mut Vec<Action>) -> Result<(), WireError> {
        self.in_turn = true;
        out.push(Action::Write(format!("{}\nprintf '{END}%d\\n' $?\n", prompt.text()).into_bytes()));
        Ok(())
    }

    fn abort(&mut self, _: &mut Vec<Action>) -> Result<(), WireError> {
        if self.in_turn { Err(self.unsupported("abort a script")) } else { Ok(()) }
    }
}
