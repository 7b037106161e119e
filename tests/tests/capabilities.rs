//! What a machine offers is tried where the host does not notice. One test: what it looks at is the whole program's.

use std::fs;

use agent_proxy_tests::sessions::{self, event, shell, soon};
use proxy_manager::{AgentSessionConfig, Containment, ContainmentLayer, Error, Event, KillOptions};

const FAKE: &str = env!("CARGO_BIN_EXE_fake-agent");

/// Page faults of the children that this process has waited for: any child has some.
fn faults_of_children() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("there");
    let fields = stat.rsplit_once(')').expect("a name").1;
    fields.split_ascii_whitespace().nth(8).expect("as proc(5) has it").parse().expect("a number")
}

#[tokio::test]
async fn a_host_has_no_child_but_its_fork_server() {
    let mut tried = Vec::new();
    // As a copy of the fork server, and where that has a second thread by exec.
    for child in [env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_threaded-child")] {
        let before = faults_of_children();
        let manager = soon("the manager", sessions::builder(child, FAKE).build()).await.expect("built");
        let offered = soon("what there is", manager.capabilities()).await.expect("tried");
        // The first session of that kind asks for it too, and so does a manager that gives it to all.
        let config = AgentSessionConfig { containment: Some(Containment::Strict), ..shell("exec sleep 300") };
        match soon("a strict session", manager.start_session(config)).await {
            Ok(session) => drop(session.kill(KillOptions::NOW).await.expect("killed")),
            Err(error) => assert!(matches!(error, Error::ContainmentUnavailable { .. }), "{error}"),
        }
        // What a session has that asks for nothing: a group where there are groups, and never a namespace.
        let session = soon("a session", manager.start_session(shell("exec sleep 300"))).await.expect("started");
        let layers = event(&mut session.subscribe(), "its start", |envelope| match &envelope.event {
            Event::SessionStarted { measures, .. } => Some(measures.layers.clone()),
            _ => None,
        })
        .await;
        let expected = [Some(ContainmentLayer::Baseline), offered.cgroup.is_ok().then_some(ContainmentLayer::Cgroup)];
        assert!(layers.iter().eq(expected.iter().flatten()), "{layers:?} of {offered:?}");
        drop(session.kill(KillOptions::NOW).await.expect("killed"));
        assert_eq!(faults_of_children(), before, "only the fork server is its child, and that runs");
        let strict = sessions::builder(child, FAKE).containment(Containment::Strict);
        let built = soon("the manager", strict.build()).await;
        match &offered.strict {
            Ok(()) => drop(built.expect("built").shutdown().await),
            Err(_) => assert!(matches!(built, Err(Error::ContainmentUnavailable { .. })), "{built:?}"),
        }
        manager.shutdown().await;
        tried.push((child, offered));
    }
    // It is what this process finds out itself.
    let before = faults_of_children();
    let (strict, connector) = (registry::strict_is_available(), registry::ProcConnector::probe());
    assert!(faults_of_children() > before, "it would have been noticed");
    for (child, offered) in tried {
        assert_eq!((offered.strict, offered.connector), (strict.clone(), connector.clone()), "{child}");
    }
}
