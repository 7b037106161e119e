//! A host that can be killed: `config-host CHILD STATE_DIR ENV CONFIG` starts the session that CONFIG says, with the container engines'
//! environment ENV (both JSON), and stays. With `-` for STATE_DIR it has none.
//!
//! It prints one line: the pids of the fork server and of the proxy, separated by a space.

use std::io::{Read, Write};

use proxy_manager::{ChildProgram, ProxyManager};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, child, state, env, config] = args.as_slice() else {
        panic!("usage: config-host CHILD STATE_DIR ENV CONFIG")
    };
    let builder = ProxyManager::builder(ChildProgram::Path(child.into()))
        .base_env([("PATH", "/usr/bin:/bin")].into_iter().collect())
        .engine_env(serde_json::from_str(env).expect("an environment"));
    let builder = if state == "-" { builder } else { builder.state_dir(state.into()) };
    let manager = builder.build().await.expect("a manager");
    let config = serde_json::from_str(config).expect("a configuration");
    let session = manager.start_session(config).await.expect("started");
    let proxy = session.info().processes.proxy.expect("it runs");
    writeln!(std::io::stdout(), "{} {}", manager.fork_server().pid, proxy.pid).expect("told");
    // Until it is killed, or its test is gone.
    let _ = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0])).await;
}
