//! What becomes of a session after a crash of its agent or its proxy.

use std::time::{Duration, SystemTime};

use agent_proxy_tests::{
    sessions::{self, event},
    system::with_marker,
};
use proxy_manager::{
    EndReason, Envelope, Error, Event, ExitStatus, KillOptions, Lifecycle, PromptMode, Restart, SessionState,
    SessionStatus, Subscription,
};

use crate::place::{Place, idle, is_suspended, kill, resumed, suspended};

#[tokio::test]
async fn a_session_that_crashes_is_started_again_until_it_crashes_too_often() {
    let place = Place::new().await;
    let restart = Restart::OnCrash { max: 2, backoff_ms: 1 };
    let session = place.start(Lifecycle { restart, ..Lifecycle::default() }).await;
    let mut events = session.subscribe();
    idle(&mut events).await;
    assert_eq!(place.ask(&session, "history").await, "0 before");
    idle(&mut events).await;
    // Its agent first, then its proxy.
    kill(place.info(&session).processes.agent_process);
    assert_eq!(suspended(&mut events).await, EndReason::AgentExited(Some(ExitStatus::Signal(9))));
    assert_eq!(resumed(&mut events).await, "restart");
    idle(&mut events).await;
    assert_eq!(place.ask(&session, "history").await, "1 before");
    kill(place.info(&session).processes.proxy);
    assert!(matches!(suspended(&mut events).await, EndReason::ProxyDied(_)));
    assert_eq!(resumed(&mut events).await, "restart");
    idle(&mut events).await;
    kill(place.info(&session).processes.agent_process);
    let rest = sessions::all(&mut events).await;
    let gave_up = |envelope: &Envelope| matches!(&envelope.event, Event::ActionFailed { error, .. } if error == "it crashed 3 times");
    assert!(rest.iter().any(|envelope| gave_up(envelope)), "{rest:?}");
    assert!(matches!(rest.last().expect("an end").event, Event::SessionEnded { .. }));
    place.manager.shutdown().await;
}

#[tokio::test]
async fn one_that_is_suspended_before_it_is_started_again_stays_suspended() {
    let place = Place::new().await;
    let restart = Restart::OnCrash { max: 2, backoff_ms: 1000 };
    let start = || place.start(Lifecycle { restart, ..Lifecycle::default() });
    let (left, gone_on_with, last) = (start().await, start().await, start().await);
    for session in [&left, &gone_on_with, &last] {
        let mut events = session.subscribe();
        idle(&mut events).await;
        kill(place.info(session).processes.agent_process);
        assert_eq!(suspended(&mut events).await, EndReason::AgentExited(Some(ExitStatus::Signal(9))));
        let id = session.id();
        if id == gone_on_with.id() {
            place.manager.resume_session(id).await.expect("resumed");
        }
        if id != last.id() {
            place.manager.suspend_session(id, KillOptions::NOW).await.expect("suspended");
        }
    }
    // This one's pause began after theirs.
    let mut events = place.manager.subscribe_from(last.id(), 0).expect("known");
    assert_eq!(resumed(&mut events).await, "restart");
    idle(&mut events).await;
    for session in [&left, &gone_on_with] {
        let info = place.info(session);
        assert!(is_suspended(&info), "{info:?}");
    }
    place.manager.shutdown().await;
}

#[tokio::test]
async fn a_session_that_is_not_to_be_started_again_ends_with_its_agent_or_its_proxy() {
    let mut place = Place::new().await;
    let mut ended = Vec::new();
    for kills_agent in [true, false] {
        let session = place.start(Lifecycle { restart: Restart::Never, ..Lifecycle::default() }).await;
        let (id, mut events) = (session.id().clone(), session.subscribe());
        place.ask(&session, "say one").await;
        let info = session.info();
        assert!(
            info.conversation.resumable && info.conversation.native_session_id.is_some(),
            "there is something to go on with: {info:?}"
        );
        kill(if kills_agent { info.processes.agent_process } else { info.processes.proxy });
        // The stream ends with it.
        let all = sessions::all(&mut events).await;
        let is = |wanted: fn(&Event) -> bool| all.iter().filter(|envelope| wanted(&envelope.event)).count();
        let lives = is(|event| matches!(event, Event::SessionStarted { .. }));
        let rests = is(|event| matches!(event, Event::SessionSuspended { .. } | Event::SessionResumed { .. }));
        assert_eq!((lives, rests), (1, 0), "{all:?}");
        let Event::SessionEnded { reason, receipt } = &all.last().expect("an end").event else { panic!("{all:?}") };
        let is_of_it = match reason {
            EndReason::AgentExited(exit) => kills_agent && *exit == Some(ExitStatus::Signal(9)),
            EndReason::ProxyDied(_) => !kills_agent,
            _ => false,
        };
        assert!(is_of_it && receipt.as_ref().is_some_and(|receipt| receipt.is_empty()), "{reason}: {receipt:?}");
        assert!(matches!(session.info().state, SessionState::Ended { .. }));
        for resumed in [
            place.manager.resume_session(&id).await.map(drop),
            place.manager.send_prompt(&id, "say two", PromptMode::Refuse).await.map(drop),
        ] {
            assert!(matches!(resumed, Err(Error::NotSuspended { .. } | Error::Ended { .. })), "{resumed:?}");
        }
        assert_eq!((place.manager.occupancy().running, with_marker(id.as_str())), (0, vec![]));
        ended.push(id);
    }
    // Nor does a later manager go on with it.
    place.again().await;
    for id in ended {
        let record = place.manager.record(&id).expect("kept");
        assert_eq!((record.status(), with_marker(id.as_str())), (SessionStatus::Ended, vec![]), "{record:?}");
    }
    place.manager.shutdown().await;
}

/// When the next event like this was made.
async fn made(events: &mut Subscription, what: &str, wanted: fn(&Event) -> bool) -> SystemTime {
    let made = |envelope: &Envelope| wanted(&envelope.event).then_some(envelope.created_at);
    event(events, what, made).await
}

/// By the times that its events tell.
#[tokio::test]
async fn the_pause_before_a_restart_is_waited_and_doubles() {
    const FIRST: Duration = Duration::from_millis(300);
    let place = Place::new().await;
    let restart = Restart::OnCrash { max: 3, backoff_ms: FIRST.as_millis().try_into().expect("few") };
    let session = place.start(Lifecycle { restart, ..Lifecycle::default() }).await;
    let mut events = session.subscribe();
    for crash in 0..3 {
        made(&mut events, "idle", |event| matches!(event, Event::SessionIdle {})).await;
        kill(place.manager.session(session.id()).expect("known").info().processes.agent_process);
        let crashed = made(&mut events, "a crash", |event| matches!(event, Event::SessionSuspended { .. })).await;
        let again = made(&mut events, "a restart", |event| matches!(event, Event::SessionResumed { .. })).await;
        let pause = again.duration_since(crashed).expect("it is later");
        assert!(pause >= FIRST * (1 << crash), "{crash}: {pause:?}");
    }
    place.manager.shutdown().await;
}
