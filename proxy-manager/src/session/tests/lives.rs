//! Sessions that are suspended and resumed: who ends them, and who appends to them.

use super::*;
use crate::{
    session::TranscriptCounts,
    session_store::{RecordState, SessionRecord},
};

/// A session with a conversation, in its first life or in the one after `before`.
async fn kept(before: Option<&ManagedSession>) -> (Arc<ManagedSession>, FakeProxy, FakeForkServer) {
    let launch = plan(AgentSessionConfig::new("acp"), &Arc::default()).expect("valid");
    let description = launch.description.clone();
    let (session, inlets, log) = match before {
        None => ManagedSession::new(description, patient(), &StreamContext::default(), &Arc::default()),
        Some(before) => ManagedSession::resumed(before, description, patient()),
    };
    let task =
        |ours| SessionTask::new(session.clone(), inlets, log, launch, ours, HOST, Arc::default()).expect("a task");
    let (ready, mut fork_server) = run(&session, task);
    session.lives().begin(&session);
    let mut proxy = fork_server.fork().await;
    proxy.start_as("n-1").await;
    soon(ready).await.expect("an answer").expect("ready");
    (session, proxy, fork_server)
}

async fn suspended() -> Arc<ManagedSession> {
    let (session, proxy, fork_server) = kept(None).await;
    session.request_end(KillOptions::NOW, EndReason::Suspended);
    assert_eq!(end(proxy, fork_server, session.id()).await, EndReason::Suspended);
    soon(session.wait_settled()).await.expect("settled");
    assert!(session.is_suspended());
    session
}

fn is_ended(session: &ManagedSession) -> bool {
    matches!(session.info().state, SessionState::Ended { reason: EndReason::Killed, .. })
}

async fn ends(session: &ManagedSession) -> usize {
    let mut events = session.subscribe_from(0);
    let mut ends = 0;
    while let Some(envelope) = soon(events.next()).await {
        ends += usize::from(matches!(envelope.event, Event::SessionEnded { .. }));
    }
    ends
}

#[tokio::test]
async fn a_kill_of_an_older_life_ends_the_one_there_is() {
    let before = suspended().await;
    let (session, proxy, fork_server) = kept(Some(&before)).await;
    // What is appended to it goes where the session is.
    let event = Event::SessionStatus { status: "told".into(), detail: String::new() };
    let offset = soon(before.append(event)).await.expect("appended");
    assert_eq!(offset, session.info().last_offset);
    let (killed, reason) = tokio::join!(soon(before.kill(KillOptions::NOW)), end(proxy, fork_server, session.id()));
    assert_eq!(reason, EndReason::Killed);
    assert!(killed.expect("a receipt").is_empty() && is_ended(&session));
    assert_eq!(ends(&session).await, 1);
}

#[tokio::test]
async fn a_kill_waits_for_a_resume_that_gives_up_for_it() {
    let session = suspended().await;
    let resuming = session.lives().lock_resume().await;
    let mut kill = Box::pin(session.kill(KillOptions::NOW));
    tokio::select! {
        biased;
        killed = &mut kill => panic!("it is being resumed: {killed:?}"),
        reason = soon(session.lives().wait_end_requested(&session)) => assert_eq!(reason, EndReason::Killed),
    }
    assert!(session.is_suspended());
    drop(resuming);
    soon(kill).await.expect("a receipt");
    assert!(is_ended(&session));
    assert_eq!(ends(&session).await, 1);
}

/// Time passes only when nobody has anything to do, and so also while a thread reads the stream.
#[tokio::test(start_paused = true)]
async fn a_kill_is_given_up_when_its_bound_has_passed() {
    let config = AgentSessionConfig::new("acp");
    let state = SessionState::suspended(EndReason::Suspended, None);
    let record = SessionRecord::new(config, RecordState::from(&state));
    let count = TranscriptCounts::from_record(&record);
    let session =
        ManagedSession::restored(&record, state, &count, patient(), &StreamContext::default(), &Arc::default());
    let session = Arc::new(session);
    let _resuming = session.lives().lock_resume().await;
    let begun = tokio::time::Instant::now();
    let killed = session.kill(KillOptions::NOW).await;
    assert!(matches!(killed, Err(Error::Deadline { .. })), "{killed:?}");
    let (took, longest) = (begun.elapsed(), session.longest_kill(KillOptions::NOW));
    assert!(took <= longest + Duration::from_millis(10), "{took:?} of {longest:?}");
}

#[tokio::test]
async fn what_is_being_suspended_is_over_after_a_kill() {
    let (session, proxy, fork_server) = kept(None).await;
    session.request_end(KillOptions::NOW, EndReason::Suspended);
    let (killed, _) = tokio::join!(soon(session.kill(KillOptions::NOW)), end(proxy, fork_server, session.id()));
    killed.expect("a receipt");
    assert!(is_ended(&session));
    assert_eq!(ends(&session).await, 1);
}

fn told() -> Event {
    Event::SessionStatus { status: "told".into(), detail: String::new() }
}

#[tokio::test]
async fn anyone_may_append_while_it_is_being_resumed() {
    let before = suspended().await;
    let resuming = before.lives().lock_resume().await;
    let offset = soon(before.append(told())).await.expect("appended");
    assert_eq!(offset, before.info().last_offset);
    // What comes of the resume goes on behind that.
    let (session, _proxy, _fork_server) = kept(Some(&before)).await;
    drop(resuming);
    let mut events = session.subscribe_from(offset - 1);
    assert_eq!(soon(events.next()).await.expect("kept").event, told());
    let next = soon(before.append(told())).await.expect("appended");
    assert!(next > offset);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_may_append_at_once_while_it_is_suspended() {
    const EACH: u64 = 500;
    let session = suspended().await;
    let before = session.info().last_offset;
    let appenders = [(); 2].map(|()| {
        let session = session.clone();
        tokio::spawn(async move {
            for _ in 0..EACH {
                soon(session.append(told())).await.expect("appended");
            }
        })
    });
    for appender in appenders {
        appender.await.expect("no panic");
    }
    let last = before + 2 * EACH;
    assert_eq!(session.info().last_offset, last);
    let mut events = session.subscribe_from(before);
    for offset in before + 1..=last {
        assert_eq!(soon(events.next()).await.expect("kept").offset, offset);
    }
}
