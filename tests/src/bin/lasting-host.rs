//! A host of one session that keeps its conversation, to be killed: `lasting-host LASTING`, which is a
//! [`Lasting`] as JSON.
//!
//! The agent is told the first prompt, and then what brings it to what it is to do. When it is there the host prints the pids of
//! fork server, proxy and agent, and stays.

use std::io::{Read, Write};

use agent_proxy_tests::lasting::Lasting;
use proxy_manager::{Event, PromptMode};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let lasting = std::env::args().nth(1).expect("usage: lasting-host LASTING");
    let lasting: Lasting = serde_json::from_str(&lasting).expect("a session as JSON");
    let manager = lasting.builder().build().await.expect("a manager");
    let session = manager.start_session(lasting.config(&lasting.id)).await.expect("started");
    let turn = session.prompt(lasting.first(), PromptMode::Refuse).await.expect("prompted");
    turn.wait().await.expect("ended");
    if let Some((prompt, is_there)) = lasting.second() {
        let mut events = session.subscribe();
        session.prompt(prompt, PromptMode::Refuse).await.expect("prompted");
        while let Some(envelope) = events.next().await {
            if is_there(&envelope.event) {
                break;
            }
            assert!(!matches!(envelope.event, Event::SessionEnded { .. }), "{envelope:?}");
        }
    }
    let info = session.info();
    let (proxy, agent) = (info.processes.proxy.expect("it runs"), info.processes.agent_process.expect("it runs"));
    writeln!(std::io::stdout(), "{} {} {}", manager.fork_server().pid, proxy.pid, agent.pid).expect("told");
    // Until it is killed, or its test is gone.
    let _ = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0])).await;
}
