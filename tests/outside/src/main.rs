//! Hello world. Without the feature `sqlite` a state directory is refused, which `--state-dir` shows.

use agent_proxy_sdk::{AgentSessionConfig, ChildProgram, Event, KillOptions, PromptMode, ProxyManager};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let token = agent_proxy_sdk::run_if_child();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(hello(ChildProgram::Current(token)))
}

async fn hello(child: ChildProgram) -> Result<(), Box<dyn std::error::Error>> {
    let mut builder = ProxyManager::builder(child);
    if std::env::args().nth(1).as_deref() == Some("--state-dir") {
        builder = builder.state_dir(std::env::temp_dir().join("agent-proxy-outside"));
    }
    let manager = builder.build().await?;
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
