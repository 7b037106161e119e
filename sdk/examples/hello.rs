//! The smallest program that embeds a manager: `cargo run -p agent-proxy-sdk --example hello`

#![expect(clippy::print_stdout, reason = "an example talks")]

use agent_proxy_sdk::{AgentSessionConfig, ChildProgram, Event, KillOptions, PromptMode, ProxyManager};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // First of all: the manager starts this program again as its fork server.
    let token = agent_proxy_sdk::run_if_child();
    tokio::runtime::Runtime::new()?.block_on(hello(ChildProgram::Current(token)))
}

async fn hello(child: ChildProgram) -> Result<(), Box<dyn std::error::Error>> {
    let manager = ProxyManager::builder(child).build().await?;
    let session = manager.start_session(AgentSessionConfig::new("command").with_command(["/bin/cat"])).await?;
    let mut events = session.subscribe();
    session.prompt("hello", PromptMode::Refuse).await?;
    while let Some(envelope) = events.next().await {
        if let Event::Text { text } = &envelope.event {
            print!("{text}");
            break;
        }
    }
    println!("{}", session.kill(KillOptions::default()).await?);
    manager.shutdown().await;
    Ok(())
}
