//! Two agents that hand work over: what the first answers is what the second is asked.
//!
//! `cargo run -p agent-proxy-manager --example handover`

#![expect(clippy::print_stdout, reason = "an example talks")]

use proxy_manager::{
    AgentSessionConfig, AgentSpec, ChildProgram, Event, KillOptions, PermissionMode, PromptMode, ProxyManager,
    SessionHandle,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let token = proxy_child::run_if_child();
    // So that the example needs no agent installed, it brings a fake one along: it does what its prompt says, line by line.
    if std::env::args().nth(1).as_deref() == Some("fake-agent") {
        let reexec = vec!["/proc/self/exe".to_owned(), "fake-agent".to_owned()];
        std::process::exit(fake_agent::run(fake_agent::Config { reexec }, std::env::args().skip(2)));
    }
    tokio::runtime::Runtime::new()?.block_on(work(ChildProgram::Current(token)))
}

async fn work(child: ChildProgram) -> Result<()> {
    let this_program = std::env::current_exe()?.display().to_string();
    let manager = ProxyManager::builder(child)
        .base_env([("PATH", "/usr/bin:/bin")].into_iter().collect())
        .agent(AgentSpec::new("planner", "acp", &[this_program.as_str(), "fake-agent"]))
        .agent(AgentSpec::new("worker", "acp", &[this_program.as_str(), "fake-agent"]))
        .build()
        .await?;
    // Side by side: a start waits for nothing but its own agent.
    let (planner, worker) = tokio::try_join!(start(&manager, "planner"), start(&manager, "worker"))?;

    let plan = ask(&planner, "say run uname -s\nsay setsid exec sleep 600\nsay say all done").await?;
    println!("the planner says:\n{}", plan.trim_end());
    let result = ask(&worker, &plan).await?;
    println!("the worker says:\n{}", result.trim_end());

    // Each is ended by itself, with all that it started: the worker left a process behind that has a session of its own.
    for session in [planner, worker] {
        let receipt = session.kill(KillOptions::default()).await?;
        println!("{}: {receipt}", session.info().metadata.agent);
        for process in &receipt.processes {
            println!("  {}", process.command.as_deref().unwrap_or("[unreadable]"));
        }
        assert!(receipt.is_empty());
    }
    manager.shutdown().await;
    Ok(())
}

async fn start(manager: &ProxyManager, agent: &str) -> proxy_manager::Result<SessionHandle> {
    let config = AgentSessionConfig {
        cwd: Some("/".into()),
        agent_type: Some(agent.into()),
        // Nobody is there to be asked, and what these run is harmless. A real planner is not to be trusted like this.
        permission_mode: PermissionMode::Allow,
        ..AgentSessionConfig::new(agent)
    };
    manager.start_session(config).await
}

/// Prompts the agent and collects what it answers.
async fn ask(session: &SessionHandle, prompt: &str) -> Result<String> {
    // Only what comes from now on.
    let mut events = session.subscribe_from(session.info().last_offset);
    let turn = session.prompt(prompt, PromptMode::Refuse).await?;
    let number = turn.number();
    let mut answer = String::new();
    while let Some(envelope) = events.next().await {
        match &envelope.event {
            Event::Text { text } if envelope.turn == number => answer.push_str(text),
            // The agent is free again: nothing of the turn comes after it.
            Event::SessionIdle {} if envelope.turn == number => break,
            _ => {}
        }
    }
    match turn.wait().await?.error {
        Some(error) => Err(error.into()),
        None => Ok(answer),
    }
}
