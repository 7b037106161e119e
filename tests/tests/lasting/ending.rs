//! Suspended sessions that are ended, and what is forgotten.

use std::time::Duration;

use agent_proxy_tests::sessions::{event, soon};
use proxy_manager::{EndReason, Error, Event, KillOptions, Lifecycle, Retention, SessionState, SessionStatus};

use crate::place::{Place, agent};

/// Nothing of it runs: what was ended, and on what proof, the manager knew that suspended it.
#[tokio::test]
async fn a_kill_of_what_an_earlier_manager_left_suspended_says_what_was_ended_then() {
    let mut place = Place::new().await;
    let (asked, shut_down, told_of) = (
        place.start(Lifecycle::default()).await,
        place.start(Lifecycle::default()).await,
        place.start(Lifecycle::default()).await,
    );
    let mut agents = Vec::new();
    for session in [&asked, &shut_down, &told_of] {
        agents.push((session, agent(&place.info(session))));
    }
    for session in [&asked, &told_of] {
        place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
    }
    // What others append after that is not in the way.
    let payload = proxy_manager::Json::null();
    place.manager.append_event(told_of.id(), "slack:received", 1, payload).await.expect("appended");
    for _ in 0..2 {
        place.again().await;
    }
    for (session, agent) in agents {
        let receipt = place.manager.kill_session(session.id(), KillOptions::NOW).await.expect("a receipt");
        assert!(receipt.is_empty() && receipt.session_id == *session.id(), "{receipt}");
        assert!(receipt.processes.iter().any(|entry| entry.id.pid == agent), "{receipt}");
        assert!(matches!(place.info(session).state, SessionState::Ended { reason: EndReason::Killed, .. }));
        let mut events = place.manager.subscribe_from(session.id(), 0).expect("known");
        let told = event(&mut events, "the end", |envelope| match &envelope.event {
            Event::SessionEnded { receipt, .. } => Some(receipt.clone()),
            _ => None,
        });
        assert_eq!(told.await.as_deref(), Some(&receipt));
        // Twice is once.
        assert_eq!(place.manager.kill_session(session.id(), KillOptions::NOW).await.expect("a receipt"), receipt);
    }
    // What its stream does not say any more.
    let session = place.start(Lifecycle::default()).await;
    place.ask(&session, "history").await;
    place.manager.shutdown().await;
    let path = place.scratch.path().join("state/log.sqlite");
    let log = event_log::EventLog::open(path, event_log::LogOptions::default()).expect("a log");
    let retention = Retention { max_age: Some(Duration::ZERO), ..Retention::default() };
    while log.head(session.id()).is_some_and(|head| head.first <= head.last) {
        let (done, over) = std::sync::mpsc::channel();
        log.retain(retention, Box::new(move |result| done.send(result).expect("heard")));
        over.recv().expect("a pass").expect("a pass");
    }
    drop(log);
    place.manager = Place::manager(&place.scratch).await;
    let untold = place.manager.kill_session(session.id(), KillOptions::NOW).await;
    assert!(matches!(untold, Err(Error::Ended { .. })), "{untold:?}");
    assert_eq!(place.manager.record(session.id()).expect("kept").status(), SessionStatus::Ended);
    place.manager.shutdown().await;
}

#[tokio::test]
async fn one_that_was_ended_while_it_was_suspended_is_over_for_the_next_manager_too() {
    let mut place = Place::new().await;
    let session = place.start(Lifecycle::default()).await;
    place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
    place.manager.kill_session(session.id(), KillOptions::NOW).await.expect("ended");
    assert_eq!(place.manager.record(session.id()).expect("kept").status(), SessionStatus::Ended);
    place.again().await;
    assert_eq!(place.manager.record(session.id()).expect("kept").status(), SessionStatus::Ended);
    place.manager.shutdown().await;
}

#[tokio::test]
async fn one_that_was_ended_while_it_was_suspended_is_forgotten_as_others_are() {
    let mut place = Place::new().await;
    place.manager.shutdown().await;
    place.manager = Place::builder(&place.scratch).ended_sessions(1).build().await.expect("built");
    let mut ids = Vec::new();
    for _ in 0..3 {
        let session = place.start(Lifecycle::default()).await;
        place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
        ids.push(session.id().clone());
    }
    assert_eq!(place.manager.list_sessions().len(), 3, "suspended ones stay");
    for id in &ids {
        place.manager.kill_session(id, KillOptions::NOW).await.expect("ended");
    }
    let left: Vec<_> = place.manager.list_sessions().into_iter().map(|info| info.metadata.session_id).collect();
    assert_eq!(left, ids[2..]);
    assert_eq!(place.manager.record(&ids[0]).expect("kept").status(), SessionStatus::Ended);
    place.manager.shutdown().await;
}

#[tokio::test]
async fn what_is_too_much_goes() {
    let place = Place::new().await;
    let session = place.start(Lifecycle::default()).await;
    for _ in 0..5 {
        place.ask(&session, "history").await;
    }
    let (id, last) = (session.id(), place.info(&session).last_offset);
    place.manager.shutdown().await;
    let retention = Retention { max_events_per_session: Some(3), ..Retention::default() };
    let manager = Place::builder(&place.scratch).retention(retention).build().await.expect("built");
    soon("the first pass", async {
        loop {
            let mut events = manager.subscribe_from(id, 0).expect("kept");
            let mut first = events.next().await.expect("the newest stay");
            if matches!(first.event, Event::SessionGap(_)) {
                first = events.next().await.expect("the newest stay");
            }
            if first.offset > 1 {
                break assert!(first.offset <= last + 1, "{first:?}");
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    // The conversation is the agent's, and goes on.
    let place = Place { manager, ..place };
    assert_eq!(place.ask(&session, "history").await, "5 before");
    place.manager.shutdown().await;
}

#[tokio::test]
async fn rules_that_do_nothing_are_refused() {
    let scratch = tempfile::tempdir().expect("a directory");
    let rule = serde_json::from_value(serde_json::json!({"on": "x", "action": "dance"})).expect("a rule");
    let refused = Place::builder(&scratch).rules([rule]).build().await;
    assert!(matches!(refused, Err(Error::InvalidConfig { field: "rule", .. })), "{refused:?}");
}
