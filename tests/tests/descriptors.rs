//! A host that runs out of descriptors. Alone in its file: it lowers the limit of its whole process.

use agent_proxy_tests::sessions::{builder, shell, soon};
use proxy_manager::{Error, KillOptions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[tokio::test]
async fn out_of_descriptors_is_said_and_survived() {
    let manager =
        builder(env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent")).build().await.expect("built");
    let open = std::fs::read_dir("/proc/self/fd").expect("readable").count() as u64;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(open + 10), ..limit }).expect("lowered");
    let mut sessions = Vec::new();
    let error = loop {
        match soon("a start", manager.start_session(shell("cat"))).await {
            Ok(session) => sessions.push(session),
            Err(error) => break error,
        }
        assert!(sessions.len() < 20, "the limit has no effect");
    };
    assert!(matches!(error, Error::FdsExhausted { .. }), "{error:?}");
    assert!(error.to_string().contains("ulimit -n"), "{error}");
    // Those that run are none the worse for it, and one that ends makes room for another.
    for session in &sessions {
        session.ping().await.expect("it works on");
    }
    let last = sessions.pop().expect("some started");
    assert!(last.kill(KillOptions::NOW).await.expect("killed").is_empty());
    soon("a start", manager.start_session(shell("cat"))).await.expect("there is room again");
    let receipts = manager.shutdown().await;
    assert_eq!(receipts.len(), sessions.len() + 1);
    assert!(receipts.iter().all(|receipt| receipt.is_empty()), "{receipts:?}");
}
