//! The test program is its own child program and fake agent, under libtest's `main`.

use agent_proxy_sdk::{Event, KillOptions, PromptMode, test_child, testing};

test_child!();

#[tokio::test]
async fn the_fake_agent_answers_and_nothing_is_left() {
    let manager = testing::manager().await;
    let session = manager.start_session(testing::fake()).await.expect("started");
    assert_eq!(session.ask("say hello").await.expect("an answer").reply, "hello\n");
    session.prompt("setsid exec sleep 600", PromptMode::Refuse).await.expect("accepted").wait().await.expect("ended");
    let receipt = session.kill(KillOptions::default()).await.expect("killed");
    assert!(receipt.is_empty() && receipt.processes.len() >= 2, "{receipt}");
    manager.shutdown().await;
}

#[tokio::test]
async fn sessions_of_several_tests_do_not_meet() {
    let manager = testing::manager().await;
    let session = manager.start_session(testing::fake().with_session_id("the-same".parse().expect("an id"))).await;
    let session = session.expect("started");
    assert!(session.subscribe().next().await.is_some_and(|first| !matches!(first.event, Event::SessionEnded { .. })));
    assert_eq!(manager.list_sessions().len(), 1);
    manager.shutdown().await;
}
