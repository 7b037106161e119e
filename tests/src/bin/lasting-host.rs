//! A host of one session that keeps its conversation, to be killed: `lasting-host CHILD FAKE DIR MODE`.
//!
//! The agent is told `say before`, and then, as MODE says, nothing (`idle`), `wait` (`turn`) or to run something (`tool`). When
//! it is there the host prints the pids of fork server, proxy and agent, and stays.

use std::io::{Read, Write};

use agent_proxy_tests::lasting::{SESSION, builder, config, mode_prompt};
use proxy_manager::{Event, PromptMode};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, child, fake, dir, mode] = args.as_slice() else { panic!("usage: lasting-host CHILD FAKE DIR MODE") };
    let manager = builder(child, fake, dir.as_ref()).build().await.expect("a manager");
    let session = manager.start_session(config(SESSION)).await.expect("started");
    let turn = session.prompt("say before", PromptMode::Refuse).await.expect("prompted");
    turn.wait().await.expect("ended");
    if let Some((prompt, is_there)) = mode_prompt(mode) {
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
    let (proxy, agent) = (info.proxy.expect("it runs"), info.agent_process.expect("it runs"));
    writeln!(std::io::stdout(), "{} {} {}", manager.fork_server().pid, proxy.pid, agent.pid).expect("told");
    // Until it is killed, or its test is gone.
    let _ = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0])).await;
}
