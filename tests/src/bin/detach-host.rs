//! A host that can be killed, and told what to do: `detach-host CHILD FAKE STATE_DIR`.
//!
//! It reads a line of JSON for each thing to do: `{"start":CONFIG}`, `{"prompt":[ID,TEXT]}`, `{"suspend":ID}`,
//! `{"append":[ID,TYPE,PAYLOAD]}`, `{"lease":MS}`. It prints lines of JSON: first `{"forkServer":PID}`, `{"started":ID}`, `{"prompted":ID}`,
//! `{"suspended":ID}`, `{"appended":OFFSET}` and `{"leased":MS}` in answer; for a start that fails `{"refused":ERROR}`; and each event of each session as its envelope.

use std::{
    io::{self, BufRead, Write},
    time::Duration,
};

use agent_proxy_tests::detach;
use ipc_protocol::ErrorChain;
use proxy_manager::{AgentSessionConfig, Json, KillOptions, PromptMode, SessionId, replication::LeaseDeadline};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum Todo {
    Start(Box<AgentSessionConfig>),
    Prompt(SessionId, String),
    Suspend(SessionId),
    Append(SessionId, String, Value),
    Lease(u64),
}

fn say(line: &Value) {
    // Its reader may be gone, and is about to kill it.
    let _ = writeln!(io::stdout(), "{line}");
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, child, fake, state] = args.as_slice() else { panic!("usage: detach-host CHILD FAKE STATE_DIR") };
    let builder =
        agent_proxy_tests::sessions::builder(child, fake).agent(detach::kept(fake, state)).state_dir(state.into());
    let manager = builder.build().await.expect("a manager");
    let mut events = manager.subscribe_all();
    tokio::spawn(async move {
        let mut batch = Vec::new();
        while events.next_batch(&mut batch).await {
            let mut text = Vec::new();
            for envelope in batch.drain(..) {
                let line = envelope.to_json().expect("JSON");
                writeln!(text, "{line}").expect("it takes all");
            }
            let _ = io::stdout().write_all(&text);
        }
    });
    say(&json!({ "forkServer": manager.fork_server().pid }));
    let (todo, mut todos) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            let _ = todo.send(serde_json::from_str::<Todo>(&line).expect("something to do"));
        }
    });
    let mut turns = Vec::new();
    while let Some(todo) = todos.recv().await {
        match todo {
            Todo::Start(config) => {
                let info = match manager.start_session(*config).await {
                    Ok(session) => session.info(),
                    Err(error) => {
                        say(&json!({ "refused": ErrorChain(&error).to_string() }));
                        continue;
                    }
                };
                let proxy = info.processes.proxy.expect("it runs").pid;
                say(&json!({ "started": info.metadata.session_id, "proxy": proxy }));
            }
            Todo::Prompt(id, text) => {
                let turn = manager.send_prompt(&id, text, PromptMode::Refuse).await.expect("prompted");
                turns.push(turn);
                say(&json!({ "prompted": id }));
            }
            Todo::Suspend(id) => {
                manager.suspend_session(&id, KillOptions::NOW).await.expect("suspended");
                say(&json!({ "suspended": id }));
            }
            Todo::Append(id, kind, payload) => {
                let offset = manager.append_event(&id, &kind, 1, Json::from(&payload)).await.expect("appended");
                say(&json!({ "appended": offset }));
            }
            Todo::Lease(lasts_ms) => {
                manager.renew_lease(LeaseDeadline(LeaseDeadline::now() + Duration::from_millis(lasts_ms)));
                say(&json!({ "leased": lasts_ms }));
            }
        }
    }
    manager.shutdown().await;
}
