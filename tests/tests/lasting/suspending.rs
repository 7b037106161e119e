//! Sessions that outlive their processes: suspended, resumed, handed over, gone on with elsewhere.

use std::{fs, time::Duration};

use agent_proxy_tests::{
    sessions::{self, event, said, soon},
    system::is_alive,
};
use proxy_manager::{
    AbortPolicy, AgentSessionConfig, CONVERSATION_NOT_KEPT, EndReason, EnvVars, Error, Event, Home, KillOptions,
    Lifecycle, PromptMode, ProxyManager, ResumeOptions, SessionFilter, SessionHandle, SessionSnapshot, SessionState,
    SessionStatus, WarmTarget,
};

use crate::place::{Place, agent, is_suspended, resumed, suspended};

#[tokio::test]
async fn a_suspended_session_goes_on_with_its_conversation_and_its_events() {
    let place = Place::new().await;
    for home in [None, Some(Home::Own)] {
        let config = AgentSessionConfig { cwd: Some("/".into()), home, ..AgentSessionConfig::new("kept") };
        let first = place.manager.start_session(config).await.expect("started");
        let mut events = first.subscribe();
        assert_eq!(place.ask(&first, "history").await, "0 before");
        let snapshot = place.manager.suspend_session(first.id(), KillOptions::NOW).await.expect("suspended");
        let before = place.info(&first);
        assert!(is_suspended(&before) && !is_alive(agent(&before)), "{before:?}");
        assert_eq!(Some(snapshot.native_session_id), before.conversation.native_session_id);
        assert!(snapshot.receipt.expect("there was something to end").is_empty());
        assert_eq!((snapshot.turns, snapshot.last_offset), (1, before.last_offset));
        // Twice is once; and nobody can do anything with it meanwhile.
        place.manager.suspend_session(first.id(), KillOptions::NOW).await.expect("suspended");
        assert!(matches!(first.prompt("history", PromptMode::Refuse).await, Err(Error::Suspended { .. })));
        assert!(first.processes().await.expect("none").is_empty());
        let second = place.manager.resume_session(first.id()).await.expect("resumed");
        assert!(matches!(place.manager.resume_session(first.id()).await, Err(Error::NotSuspended { .. })));
        assert_eq!(place.ask(&first, "history").await, "1 before");
        let now = second.info();
        assert_eq!((now.turns, &now.conversation, &now.metadata), (2, &before.conversation, &before.metadata));
        // One who listened from the first on hears all of it, without a hole.
        second.kill(KillOptions::NOW).await.expect("killed");
        let all = sessions::all(&mut events).await;
        let offsets: Vec<_> = all.iter().map(|envelope| envelope.offset).collect();
        assert_eq!(offsets, (1..=now.last_offset.max(offsets.len() as u64)).collect::<Vec<_>>());
        let is = |wanted: fn(&Event) -> bool| all.iter().filter(|envelope| wanted(&envelope.event)).count();
        assert_eq!(is(|event| matches!(event, Event::SessionStarted { .. })), 2);
        assert_eq!(is(|event| matches!(event, Event::SessionSuspended { .. })), 1);
        assert_eq!(is(|event| matches!(event, Event::SessionEnded { .. })), 1);
        place.manager.delete_session(first.id()).await.expect("deleted");
    }
    place.manager.shutdown().await;
}

/// The agent and its helpers are older than any turn: before the first one, and before the first one after a resume.
#[tokio::test]
async fn an_abort_before_a_turn_has_begun_ends_nothing() {
    let place = Place::new().await;
    let mut session = place.start(Lifecycle::default()).await;
    for resumes in [true, false] {
        let alive = agent(&place.info(&session));
        let receipt = soon("the abort", session.abort(AbortPolicy::KillTurnProcesses)).await.expect("proven");
        let receipt = receipt.expect("a receipt");
        assert!(receipt.is_empty() && receipt.processes.is_empty(), "{receipt:?}");
        assert_eq!(place.ask(&session, "say still here").await, "still here");
        assert_eq!(agent(&place.info(&session)), alive);
        if resumes {
            place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
            session = place.manager.resume_session(session.id()).await.expect("resumed");
        }
    }
    place.manager.shutdown().await;
}

/// Nobody else would: it has no processes whose end tells.
#[tokio::test]
async fn the_last_manager_that_is_dropped_ends_the_events_of_a_suspended_session() {
    let place = Place::new().await;
    let session = place.start(Lifecycle::default()).await;
    let mut events = session.subscribe();
    place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
    suspended(&mut events).await;
    let Place { manager, scratch } = place;
    drop(manager);
    let end = soon("the end", events.next()).await;
    assert!(end.is_none(), "{end:?}");
    // Nor does who holds the session hold up the next manager.
    let again = soon("another manager", Place::builder(&scratch).build()).await.expect("built");
    again.resume_session(session.id()).await.expect("resumed");
    again.shutdown().await;
}

#[tokio::test]
async fn a_prompt_resumes_a_session_that_was_idle_for_too_long() {
    let place = Place::new().await;
    let session = place.start(Lifecycle { idle_suspend_ms: Some(1), ..Lifecycle::default() }).await;
    let mut events = session.subscribe();
    assert_eq!(suspended(&mut events).await, EndReason::Suspended);
    assert!(!is_alive(agent(&place.info(&session))), "it is there no more");
    // As often as it is suspended; two at once get one agent.
    let (one, two) = tokio::join!(
        place.manager.send_prompt(session.id(), "history", PromptMode::Queue),
        place.manager.send_prompt(session.id(), "history", PromptMode::Queue)
    );
    for turn in [one, two] {
        soon("the turn's end", turn.expect("prompted").wait()).await.expect("ended");
    }
    assert_eq!(resumed(&mut events).await, "prompt");
    assert_eq!(suspended(&mut events).await, EndReason::Suspended);
    place.manager.shutdown().await;
}

/// Here it is told; when the time is over: proxy-manager/src/manager/tests.rs.
#[tokio::test]
async fn a_session_that_says_nothing_of_it_may_be_idle_for_five_minutes_where_it_is_kept() {
    for (is_kept, after) in [(true, 300_000), (false, 0)] {
        let scratch = tempfile::tempdir().expect("a directory");
        fs::create_dir(scratch.path().join("home")).expect("made");
        let builder = if is_kept { Place::builder(&scratch) } else { Place::without_state(&scratch) };
        let place = Place { manager: builder.build().await.expect("built"), scratch };
        let session = place.start(Lifecycle::default()).await;
        let record = place.manager.record(session.id()).expect("kept");
        assert_eq!(record.config.lifecycle.idle_suspend_ms, Some(after));
        place.manager.shutdown().await;
    }
}

/// Agents make the file of a conversation with the first prompt.
#[tokio::test]
async fn a_session_that_was_told_nothing_goes_on_where_its_agent_has_kept_nothing() {
    let place = Place::new().await;
    let session = place.start(Lifecycle::default()).await;
    let forget = async || {
        place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
        fs::remove_dir_all(place.scratch.path().join("home/chats")).expect("removed");
    };
    let first = session.info();
    forget().await;
    assert_eq!(place.ask(&session, "history").await, "0 before");
    let mut events = place.manager.subscribe_from(session.id(), first.last_offset).expect("known");
    event(&mut events, "that it begins anew", |envelope| match &envelope.event {
        Event::SessionStatus { status, .. } => (status == "resumeFailed").then_some(()),
        _ => None,
    })
    .await;
    assert_ne!(place.info(&session).conversation.native_session_id, first.conversation.native_session_id);
    // Now there is something to lose.
    forget().await;
    let missing = place.manager.resume_session(session.id()).await.expect_err("missing");
    assert!(matches!(missing, Error::NativeSessionMissing { .. }), "{missing}");
    place.manager.shutdown().await;
}

/// Suspended it would be lost.
#[tokio::test]
async fn a_conversation_that_ends_with_its_process_is_not_suspended() {
    let mut place = Place::new().await;
    let lifecycle = || Lifecycle { idle_suspend_ms: Some(1), ..Lifecycle::default() };
    let with = |agent: &str| AgentSessionConfig {
        cwd: Some("/".into()),
        lifecycle: lifecycle(),
        ..AgentSessionConfig::new(agent)
    };
    // It can load none, as it says; and its row says so.
    let mut sessions = Vec::new();
    for agent in ["fake", "passing"] {
        let session = place.manager.start_session(with(agent)).await.expect("started");
        assert!(session.info().conversation.native_session_id.is_some());
        sessions.push(session);
    }
    let mut events = sessions[0].subscribe();
    event(&mut events, "that it is not kept", |envelope| match &envelope.event {
        Event::SessionStatus { status, .. } => (status == CONVERSATION_NOT_KEPT).then_some(()),
        _ => None,
    })
    .await;
    // One that is kept was idle for no longer than these.
    let kept = place.start(lifecycle()).await;
    assert_eq!(suspended(&mut kept.subscribe()).await, EndReason::Suspended);
    for session in &sessions {
        let turn = session.prompt("say hello", PromptMode::Refuse).await.expect("prompted");
        soon("the turn's end", turn.wait()).await.expect("ended");
        let id = session.id();
        let refused = place.manager.suspend_session(id, KillOptions::NOW).await.expect_err("it would be lost");
        assert!(
            matches!(&refused, Error::Unsupported { agent, .. } if *agent == session.info().metadata.agent),
            "{refused}"
        );
        let refused = place.manager.hand_over(id, KillOptions::NOW).await.expect_err("it would be lost");
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        let info = place.info(session);
        assert!(info.state == SessionState::Idle && !info.conversation.resumable && is_alive(agent(&info)), "{info:?}");
    }
    // Nor does it pretend to outlive its host.
    place.manager.shutdown().await;
    place.again().await;
    for session in &sessions {
        let record = place.manager.record(session.id()).expect("kept");
        assert!(record.status() == SessionStatus::Ended && !record.conversation.resumable, "{record:?}");
    }
    assert_eq!(place.manager.record(kept.id()).expect("kept").status(), SessionStatus::Suspended);
    place.manager.shutdown().await;
}

#[tokio::test]
async fn a_question_resumes_it_too() {
    let place = Place::new().await;
    let session = place.start(Lifecycle::default()).await;
    place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
    let awake = place.manager.awake(session.id()).await.expect("resumed");
    assert_eq!(awake.ask("history").await.expect("answered").reply.trim(), "0 before");
    place.manager.shutdown().await;
}

#[tokio::test]
async fn one_that_does_not_want_to_be_resumed_by_a_prompt_refuses_it() {
    let place = Place::new().await;
    let session = place.start(Lifecycle { resume_on_prompt: false, ..Lifecycle::default() }).await;
    place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
    let refused = place.manager.send_prompt(session.id(), "history", PromptMode::Refuse).await;
    assert!(matches!(refused, Err(Error::Suspended { .. })), "{refused:?}");
    assert!(matches!(
        place.manager.awake(session.id()).await.expect("known").ask("history").await,
        Err(Error::Suspended { .. })
    ));
    // A kill ends it for good.
    let receipt = place.manager.kill_session(session.id(), KillOptions::NOW).await.expect("ended");
    assert!(receipt.is_empty());
    assert!(matches!(place.info(&session).state, SessionState::Ended { reason: EndReason::Killed, .. }));
    assert!(matches!(place.manager.resume_session(session.id()).await, Err(Error::NotSuspended { .. })));
    place.manager.shutdown().await;
}

#[tokio::test]
async fn one_whose_conversation_is_gone_stays_suspended() {
    let place = Place::new().await;
    let session = place.start(Lifecycle::default()).await;
    assert_eq!(place.ask(&session, "history").await, "0 before");
    place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
    let chats = place.scratch.path().join("home/chats");
    fs::rename(&chats, place.scratch.path().join("elsewhere")).expect("moved");
    let error = place.manager.resume_session(session.id()).await.expect_err("gone");
    assert!(matches!(error, Error::NativeSessionMissing { .. }), "{error}");
    assert!(is_suspended(&place.info(&session)));
    fs::remove_dir_all(&chats).ok();
    fs::rename(place.scratch.path().join("elsewhere"), &chats).expect("moved back");
    place.manager.resume_session(session.id()).await.expect("resumed");
    assert_eq!(place.ask(&session, "history").await, "1 before");
    place.manager.shutdown().await;
}

/// More than a proxy can be sent.
fn too_long() -> EnvVars {
    [("LONG", "x".repeat(17 << 20))].into_iter().collect()
}

#[tokio::test]
async fn a_resume_that_is_refused_before_it_begins_leaves_it_suspended_and_its_stream_open() {
    for is_durable in [true, false] {
        let scratch = tempfile::tempdir().expect("a directory");
        fs::create_dir(scratch.path().join("home")).expect("made");
        let builder = if is_durable { Place::builder(&scratch) } else { Place::without_state(&scratch) };
        let place = Place { manager: builder.max_sessions(1).build().await.expect("built"), scratch };
        let own =
            AgentSessionConfig { cwd: Some("/".into()), home: Some(Home::Own), ..AgentSessionConfig::new("kept") };
        let session = place.manager.start_session(own).await.expect("started");
        assert_eq!(place.ask(&session, "history").await, "0 before");
        let (manager, id) = (&place.manager, session.id());
        let last = manager.suspend_session(id, KillOptions::NOW).await.expect("suspended").last_offset;
        let mut events = manager.subscribe_from(id, last).expect("known");
        let is_as_it_was = || {
            let info = place.info(&session);
            assert!(is_suspended(&info) && info.last_offset == last, "{info:?}");
        };
        let other = place.start(Lifecycle::default()).await;
        let full = manager.resume_session(id).await;
        assert!(matches!(full, Err(Error::TooManySessions { .. })), "{full:?}");
        is_as_it_was();
        other.kill(KillOptions::NOW).await.expect("killed");
        let home = place.info(&session).metadata.home.expect("its own");
        fs::rename(&home, format!("{home}-moved")).expect("moved");
        manager.resume_session(id).await.expect_err("its home is gone");
        is_as_it_was();
        fs::rename(format!("{home}-moved"), &home).expect("moved back");
        let long = ResumeOptions { env: too_long(), ..ResumeOptions::default() };
        let long = manager.resume_session_with(id, long).await;
        assert!(matches!(long, Err(Error::InvalidConfig { .. })), "{long:?}");
        is_as_it_was();
        // The next one is heard by who has listened all the time.
        assert_eq!(place.ask(&session, "history").await, "1 before");
        let first = soon("an event", events.next()).await.expect("the stream is open");
        assert_eq!(first.offset, last + 1);
        assert!(matches!(first.event, Event::SessionResumed { .. }), "{first:?}");
        manager.kill_session(id, KillOptions::NOW).await.expect("killed");
        let rest = sessions::all(&mut events).await;
        let is_at_rest = |event: &Event| matches!(event, Event::SessionSuspended { .. } | Event::SessionEnded { .. });
        assert_eq!(rest.iter().filter(|envelope| is_at_rest(&envelope.event)).count(), 1, "{rest:?}");
        manager.shutdown().await;
    }
}

#[tokio::test]
async fn a_start_that_is_refused_before_it_begins_leaves_its_id_free() {
    let place = Place::new().await;
    let config = AgentSessionConfig {
        session_id: "mine".parse().expect("a valid id"),
        cwd: Some("/".into()),
        home: Some(Home::Own),
        ..AgentSessionConfig::new("kept")
    };
    let long = AgentSessionConfig { env: too_long(), ..config.clone() };
    let refused = place.manager.start_session(long).await;
    assert!(matches!(refused, Err(Error::InvalidConfig { .. })), "{refused:?}");
    assert_eq!(place.manager.list_sessions(), []);
    let session = place.manager.start_session(config).await.expect("its id is free");
    assert_eq!(session.subscribe().next().await.expect("an event").offset, 1);
    place.manager.shutdown().await;
}

/// Its command would begin without the session's model configuration, and send the conversation to whatever is the default there.
#[tokio::test]
async fn a_session_in_a_home_of_its_own_is_not_handed_over() {
    let place = Place::new().await;
    let config = AgentSessionConfig { cwd: Some("/".into()), home: Some(Home::Own), ..AgentSessionConfig::new("kept") };
    let session = place.manager.start_session(config).await.expect("started");
    assert_eq!(place.ask(&session, "history").await, "0 before");
    let refused = |error: Error| {
        assert!(matches!(error, Error::Unsupported { .. }) && error.to_string().contains("shared home"), "{error}");
    };
    refused(place.manager.attach_command(session.id()).expect_err("it would leak"));
    refused(place.manager.hand_over(session.id(), KillOptions::NOW).await.expect_err("it would leak"));
    assert_eq!(place.info(&session).state, SessionState::Idle, "it runs on");
    assert_eq!(place.ask(&session, "history").await, "1 before");
}

#[tokio::test]
async fn what_is_handed_over_takes_no_prompt_until_it_is_taken_back() {
    let mut place = Place::new().await;
    let session = place.start(Lifecycle::default()).await;
    let mut events = session.subscribe();
    // Somebody prompts it as soon as it is suspended.
    let at_once = async {
        suspended(&mut events).await;
        place.manager.send_prompt(session.id(), "history", PromptMode::Refuse).await
    };
    let (command, prompted) = tokio::join!(place.manager.hand_over(session.id(), KillOptions::NOW), at_once);
    let command = command.expect("handed over");
    let record = place.left_of(&session);
    assert!(record["handedOver"] == true, "{record}");
    // It came before the mark, or behind it.
    assert!(matches!(prompted, Err(Error::HandedOver { .. } | Error::Suspended { .. })), "{prompted:?}");
    let info = place.info(&session);
    assert_eq!(command, ["kept", "--resume", info.conversation.native_session_id.as_deref().expect("known")]);
    assert!(info.state.is_handed_over() && is_suspended(&info));
    let refused = place.manager.send_prompt(session.id(), "history", PromptMode::Refuse).await;
    assert!(matches!(refused, Err(Error::HandedOver { .. })), "{refused:?}");
    assert!(matches!(place.manager.resume_session(session.id()).await, Err(Error::HandedOver { .. })));
    // A later manager keeps it so.
    place.again().await;
    let refused = place.manager.send_prompt(session.id(), "history", PromptMode::Refuse).await;
    assert!(matches!(refused, Err(Error::HandedOver { .. })), "{refused:?}");
    place.manager.take_back(session.id()).await.expect("taken back");
    assert!(!place.info(&session).state.is_handed_over());
    assert_eq!(place.ask(&session, "history").await, "0 before");
    place.manager.shutdown().await;
}

/// Two managers that see the same files, each with a state directory of its own.
#[tokio::test]
async fn a_snapshot_goes_on_in_another_manager() {
    let place = Place::new().await;
    let state = place.scratch.path().join("other");
    let other = Place::builder(&place.scratch).state_dir(state.clone()).build().await.expect("built");
    for home in [None, Some(Home::Own)] {
        let env = [("API_KEY", "hunter2")].into_iter().collect();
        let config = AgentSessionConfig { cwd: Some("/".into()), home, env, ..AgentSessionConfig::new("kept") };
        let first = place.manager.start_session(config).await.expect("started");
        assert_eq!(place.ask(&first, "history").await, "0 before");
        let snapshot = place.manager.suspend_session(first.id(), KillOptions::NOW).await.expect("suspended");
        let text = serde_json::to_string(&snapshot).expect("JSON");
        assert!(!text.contains("hunter2") && snapshot.secrets == ["API_KEY"], "{text}");
        let snapshot: SessionSnapshot = serde_json::from_str(&text).expect("a snapshot");
        let missing = other.resume_snapshot(snapshot.clone(), ResumeOptions::default()).await;
        assert!(matches!(missing, Err(Error::SecretsMissing { .. })), "{missing:?}");
        let env = [("API_KEY", "hunter3")].into_iter().collect();
        let options = ResumeOptions { env, ..ResumeOptions::default() };
        let second = other.resume_snapshot(snapshot.clone(), options).await.expect("resumed");
        let info = second.info();
        assert_eq!((second.id(), info.turns, info.metadata.home), (first.id(), 1, snapshot.home.clone()));
        let mut events = second.subscribe();
        assert_eq!(resumed(&mut events).await, "resume");
        let turn = second.prompt("history", PromptMode::Refuse).await.expect("prompted");
        assert_eq!(said(&mut events, "").await.trim(), "1 before");
        assert_eq!(soon("the turn's end", turn.wait()).await.expect("ended").turn, Some(2));
        let again = other.resume_snapshot(snapshot.clone(), ResumeOptions::default()).await;
        assert!(matches!(again, Err(Error::NotSuspended { .. })), "{again:?}");
        // Whoever writes snapshots does not name what is removed with a session.
        let mut forged = snapshot;
        forged.config.session_id = "forged".parse().expect("an id");
        forged.home = Some(place.scratch.path().to_str().expect("UTF-8").to_owned());
        let refused = other.resume_snapshot(forged, ResumeOptions::default()).await;
        assert!(matches!(refused, Err(Error::InvalidConfig { field: "home", .. })), "{refused:?}");
    }
    other.shutdown().await;
    // It is the other one's, over its end too.
    let other = Place::builder(&place.scratch).state_dir(state).build().await.expect("built");
    assert_eq!(other.records(&SessionFilter::default()).len(), 2);
    other.shutdown().await;
    place.manager.shutdown().await;
}

#[tokio::test]
async fn a_resume_that_nobody_waits_for_leaves_it_suspended() {
    let place = Place::new().await;
    let session = place.start(Lifecycle::default()).await;
    assert_eq!(place.ask(&session, "history").await, "0 before");
    loop {
        place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
        let mut events = place.manager.subscribe_from(session.id(), place.info(&session).last_offset).expect("known");
        let given_up = tokio::select! {
            biased;
            _ = resumed(&mut events) => true,
            done = place.manager.resume_session(session.id()) => {
                done.expect("resumed");
                false
            }
        };
        // The agent may be ready before anyone hears of it; then once more.
        if given_up {
            assert_eq!(suspended(&mut events).await, EndReason::Suspended);
            break;
        }
    }
    assert_eq!(place.ask(&session, "history").await, "1 before");
    place.manager.shutdown().await;
}

/// A suspended session, and another one that has the only place.
async fn crowded() -> (Place, SessionHandle, SessionHandle) {
    let scratch = tempfile::tempdir().expect("a directory");
    fs::create_dir(scratch.path().join("home")).expect("made");
    let builder = Place::builder(&scratch).max_sessions(1).queue(1, Duration::from_secs(60));
    let place = Place { manager: builder.build().await.expect("built"), scratch };
    let session = place.start(Lifecycle::default()).await;
    place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
    let other = place.start(Lifecycle::default()).await;
    (place, session, other)
}

/// Has `resume` wait for a place.
async fn waits(manager: &ProxyManager, resume: &mut (impl Future<Output = Result<SessionHandle, Error>> + Unpin)) {
    while manager.occupancy().waiting == 0 {
        tokio::select! {
            biased;
            resumed = &mut *resume => panic!("there is no room: {resumed:?}"),
            () = tokio::task::yield_now() => {}
        }
    }
}

#[tokio::test]
async fn a_resume_gives_up_for_who_wants_it_suspended() {
    let (place, session, other) = crowded().await;
    let (manager, id) = (place.manager.clone(), session.id().clone());
    let last = place.info(&session).last_offset;
    for hands_over in [false, true] {
        let mut resume = Box::pin(manager.resume_session(&id));
        waits(&manager, &mut resume).await;
        let suspend = async {
            if hands_over {
                manager.hand_over(&id, KillOptions::NOW).await.map(drop)
            } else {
                manager
                    .suspend_session(&id, KillOptions::NOW)
                    .await
                    .map(|snapshot| assert_eq!(snapshot.last_offset, last))
            }
        };
        let both = async { tokio::join!(suspend, resume) };
        let (suspended, resumed) = soon("both", both).await;
        suspended.expect("suspended");
        assert!(matches!(resumed, Err(Error::Suspended { .. })), "{resumed:?}");
        let info = place.info(&session);
        assert!(
            is_suspended(&info) && info.last_offset == last && info.state.is_handed_over() == hands_over,
            "{info:?}"
        );
        assert_eq!(manager.occupancy().waiting, 0);
    }
    other.kill(KillOptions::NOW).await.expect("killed");
    manager.take_back(&id).await.expect("resumed");
    assert_eq!(place.ask(&session, "history").await, "0 before");
    manager.shutdown().await;
}

#[tokio::test]
async fn a_kill_ends_what_is_about_to_be_resumed() {
    let (place, session, other) = crowded().await;
    let (manager, id) = (place.manager.clone(), session.id().clone());
    let mut resume = Box::pin(manager.resume_session(&id));
    waits(&manager, &mut resume).await;
    let (killed, resumed) = tokio::join!(place.manager.kill_session(&id, KillOptions::NOW), resume);
    assert!(killed.expect("a receipt").is_empty());
    assert!(matches!(resumed, Err(Error::Ended { .. })), "{resumed:?}");
    other.kill(KillOptions::NOW).await.expect("killed");
    // Though there is room now, nothing is started any more.
    assert!(matches!(place.info(&session).state, SessionState::Ended { reason: EndReason::Killed, .. }));
    assert!(matches!(place.manager.resume_session(&id).await, Err(Error::NotSuspended { .. })));
    assert_eq!(place.manager.occupancy().running, 0);
    place.manager.shutdown().await;
}

#[tokio::test]
async fn one_of_an_earlier_manager_is_suspended_already() {
    let mut place = Place::new().await;
    let (suspended, shut_down) = (place.start(Lifecycle::default()).await, place.start(Lifecycle::default()).await);
    place.manager.suspend_session(suspended.id(), KillOptions::NOW).await.expect("suspended");
    place.again().await;
    for session in [&suspended, &shut_down] {
        let snapshot = place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("it is");
        assert!(is_suspended(&place.info(session)) && snapshot.receipt.is_none());
        // It is not this manager that was shut down.
        let refused = place.manager.session(session.id()).expect("known").steer("say x").await;
        assert!(matches!(refused, Err(Error::Suspended { .. })), "{refused:?}");
    }
    place.manager.hand_over(shut_down.id(), KillOptions::NOW).await.expect("handed over");
    place.manager.shutdown().await;
}

/// What waits for a start is not idle: that clock begins when the session is somebody's.
#[tokio::test]
async fn a_warm_session_is_suspended_only_once_it_is_claimed() {
    let scratch = tempfile::tempdir().expect("a directory");
    fs::create_dir(scratch.path().join("home")).expect("made");
    let config = || AgentSessionConfig { cwd: Some("/".into()), ..AgentSessionConfig::new("kept") };
    let builder = Place::builder(&scratch).idle_suspend(Duration::from_millis(100));
    let manager = builder.warm([WarmTarget { config: config(), sessions: 1 }]).build().await.expect("built");
    let is_warm = async {
        while manager.warm_sessions() == 0 {
            tokio::task::yield_now().await;
        }
    };
    soon("a warm session", is_warm).await;
    // One that began later is suspended meanwhile.
    let other = manager.start_session(config()).await.expect("started");
    suspended(&mut other.subscribe()).await;
    assert_eq!(manager.warm_sessions(), 1);
    let given = config();
    let claimed = manager.start_or_claim(given.clone()).await.expect("started");
    assert_ne!(*claimed.id(), given.session_id);
    let mut events = claimed.subscribe();
    let mut is_claimed = false;
    event(&mut events, "the suspension", |envelope| {
        is_claimed |= matches!(envelope.event, Event::SessionClaimed { .. });
        matches!(envelope.event, Event::SessionSuspended { .. }).then_some(())
    })
    .await;
    assert!(is_claimed, "and not before");
    manager.resume_session(claimed.id()).await.expect("resumed");
    manager.shutdown().await;
}
