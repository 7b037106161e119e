//! A program that embeds a manager: start a session, follow it, prompt, abort, kill.
//!
//! `cargo run -p agent-proxy-sdk --features testing --example embed`

#![expect(clippy::print_stdout, reason = "an example talks")]

use agent_proxy_sdk::{
    AgentSessionConfig, ChildProgram, Event, KillOptions, PermissionMode, PromptMode, ProxyManager,
    processes::AbortPolicy, testing,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // First of all: this program is started again as the fork server of its manager.
    let token = agent_proxy_sdk::run_if_child();
    // So that the example needs no agent installed, it brings a fake one along: the feature `testing`.
    testing::run_if_fake_agent();
    tokio::runtime::Runtime::new()?.block_on(embed(ChildProgram::Current(token)))
}

async fn embed(child: ChildProgram) -> Result<(), Box<dyn std::error::Error>> {
    let manager = ProxyManager::builder(child)
        .base_env([("PATH", "/usr/bin:/bin")].into_iter().collect())
        .agent(testing::fake_agent())
        .build()
        .await?;

    // Start a session. Prompts of the fake agent are scripts; of your own, name it here: "claude-code", "codex", …
    let session = manager
        .start_session(AgentSessionConfig {
            session_id: "exec-123".parse()?,
            agent_type: Some("execution".into()),
            user_id: Some("user-1".into()),
            cwd: Some("/".into()),
            system_prompt: Some("You are an execution agent...".into()),
            max_turns: Some(300),
            permission_mode: PermissionMode::Allow,
            ..AgentSessionConfig::new(testing::FAKE)
        })
        .await?;

    // Subscribe to its events.
    let mut events = session.subscribe();
    let follower = tokio::spawn(async move {
        while let Some(envelope) = events.next().await {
            let id = &envelope.session;
            match &envelope.event {
                Event::Text { text } => println!("[{id}] {}", text.trim_end()),
                Event::ProcessSpawned(process) => println!("[{id}] spawned: {}", process.command_line()),
                Event::SessionEnded { reason, .. } => println!("[{id}] ended: {reason}"),
                _ => {}
            }
        }
    });

    // Send a prompt, and wait for the end of the turn.
    let turn = session.prompt("say working on it\nsetsid exec sleep 600", PromptMode::Refuse).await?;
    println!("the turn ended: {:?}", turn.wait().await?.stop_reason);

    // Later: abort if needed.
    let turn = session.prompt("say this takes long\nwait", PromptMode::Refuse).await?;
    session.abort(AbortPolicy::LeaveProcesses).await?;
    println!("the turn ended: {:?}", turn.wait().await?.stop_reason);

    // Or kill entirely: everything the session ever started, wherever it has gone.
    for process in session.processes().await? {
        println!("alive: {}", process.command_line());
    }
    let receipt = session.kill(KillOptions::default()).await?;
    println!("{receipt}");
    assert!(receipt.is_empty());

    follower.await?;
    manager.shutdown().await;
    Ok(())
}
