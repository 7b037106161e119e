//! A host that can be killed: `test-host CHILD COUNT SCRIPT [STATE_DIR [CONTAINMENT [CGROUP_PARENT]]]` starts COUNT sessions
//! that run SCRIPT and stays.
//!
//! It prints one line: the pids of the fork server and of the proxies, separated by spaces.

use std::io::{Read, Write};

use proxy_manager::{ChildProgram, ProxyManager};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, child, count, script, rest @ ..] = args.as_slice() else {
        panic!("usage: test-host CHILD COUNT SCRIPT [STATE_DIR [CONTAINMENT [CGROUP_PARENT]]]")
    };
    let mut builder = ProxyManager::builder(ChildProgram::Path(child.into()))
        .base_env([("PATH", "/usr/bin:/bin")].into_iter().collect());
    if let Some(directory) = rest.first().filter(|directory| !directory.is_empty()) {
        builder = builder.state_dir(directory.into());
    }
    if let Some(containment) = rest.get(1) {
        builder = builder.containment(containment.parse().expect("a containment"));
    }
    if let Some(parent) = rest.get(2) {
        builder = builder.cgroup_parent(parent.into());
    }
    let manager = builder.build().await.expect("a manager");
    let mut line = manager.fork_server().pid.to_string();
    let mut sessions = Vec::new();
    for _ in 0..count.parse::<u32>().expect("a number") {
        let session = manager.start_session(agent_proxy_tests::sessions::shell(script)).await.expect("started");
        line += &format!(" {}", session.info().processes.proxy.expect("it runs").pid);
        sessions.push(session);
    }
    writeln!(std::io::stdout(), "{line}").expect("told");
    // Until it is killed, or its test is gone.
    let _ = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0])).await;
}
