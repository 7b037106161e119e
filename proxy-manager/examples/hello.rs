//! The smallest program that embeds a manager: `cargo run -p agent-proxy-manager --example hello`

#![expect(clippy::print_stdout, reason = "an example prints")]

use proxy_manager::{AgentSessionConfig, ChildProgram, Event, KillOptions, PromptMode, ProxyManager};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Before any thread or runtime: the manager starts this program again, as its fork server.
    let child = ChildProgram::Current(proxy_child::run_if_child());
    tokio::runtime::Runtime::new()?.block_on(hello(child))
}

async fn hello(child: ChildProgram) -> Result<(), Box<dyn std::error::Error>> {
    let manager = ProxyManager::builder(child).build().await?;
    let cat = AgentSessionConfig { command: vec!["/bin/cat".into()], ..AgentSessionConfig::new("command") };
    let session = manager.start_session(cat).await?;
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
