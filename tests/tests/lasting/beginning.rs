//! Starts that fail, ids that are used again, and conversations that are gone.

use std::fs;

use agent_proxy_tests::{
    sessions::{event, shell, soon},
    system::{until, with_marker},
};
use proxy_manager::{
    AgentSessionConfig, Error, Event, Home, KillOptions, Lifecycle, PromptMode, Restart, ResumeFallback, ResumeOptions,
    SessionFilter, SessionId, SessionStatus,
};

use crate::place::{Place, is_suspended};

fn named(id: &str) -> AgentSessionConfig {
    AgentSessionConfig {
        session_id: id.parse().expect("a valid id"),
        cwd: Some("/".into()),
        ..AgentSessionConfig::new("kept")
    }
}

impl Place {
    /// Nothing is known of the session with this id.
    #[track_caller]
    fn knows_nothing_of(&self, id: &SessionId) {
        let listed = self.manager.records(&SessionFilter::default()).iter().any(|record| record.session_id == *id);
        let known = [
            ("session", self.manager.session(id).is_ok()),
            ("record", self.manager.record(id).is_ok()),
            ("stream", self.manager.subscribe_from(id, 0).is_ok()),
            ("list", listed),
            ("file", self.left(id).is_some()),
        ];
        let known: Vec<_> = known.iter().filter(|(_, is_known)| *is_known).map(|(what, _)| *what).collect();
        assert!(known.is_empty(), "{id} is in {known:?}: {:?}", self.manager.session(id).map(|session| session.info()));
    }
}

#[tokio::test]
async fn a_start_that_fails_leaves_no_session_behind() {
    let mut place = Place::new().await;
    for home in [None, Some(Home::Own)] {
        let dies = AgentSessionConfig {
            command: vec!["--exit-at-start".into(), "9".into()],
            home,
            lifecycle: Lifecycle { key: Some("chat".into()), ..Lifecycle::default() },
            ..named("s")
        };
        let died = soon("the error", place.manager.start_session(dies.clone())).await;
        assert!(matches!(died, Err(Error::AgentDied { .. })), "{died:?}");
        place.knows_nothing_of(&dies.session_id);
        assert!(place.manager.list_sessions().is_empty());
        // Its id and its key are free, here and in the next manager.
        place.again().await;
        place.knows_nothing_of(&dies.session_id);
        let session = place.manager.start_session(AgentSessionConfig { command: Vec::new(), ..dies }).await;
        let session = session.expect("its id is free");
        assert_eq!(session.subscribe().next().await.expect("an event").offset, 1);
        session.kill(KillOptions::NOW).await.expect("killed");
        place.manager.delete_session(session.id()).await.expect("deleted");
    }
    place.manager.shutdown().await;
}

#[tokio::test]
async fn a_start_that_nobody_waits_for_any_more_leaves_no_session_behind() {
    let place = Place::new().await;
    // A name of its own: its processes are looked for on the whole machine.
    let id = SessionId::mint();
    let config = AgentSessionConfig { command: vec!["--no-handshake".into()], ..named(id.as_str()) };
    let start = tokio::spawn({
        let manager = place.manager.clone();
        async move { manager.start_session(config).await }
    });
    soon("the agent runs", async {
        while with_marker(id.as_str()).is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    start.abort();
    soon("nothing is known of it", async {
        while !place.manager.list_sessions().is_empty() || place.left(&id).is_some() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    until("its processes are gone", || with_marker(id.as_str()).is_empty().then_some(()));
    soon("its id is free", async {
        // It is taken until the last file of the start is removed.
        while let Err(error) = place.manager.start_session(named(id.as_str())).await {
            assert!(matches!(error, Error::DuplicateSession { status: SessionStatus::Starting, .. }), "{error}");
            tokio::task::yield_now().await;
        }
    })
    .await;
    place.manager.shutdown().await;
}

#[tokio::test]
async fn an_ended_session_is_replaced_and_no_other() {
    let mut place = Place::new().await;
    let replacing = || {
        let lifecycle = Lifecycle { replace: true, ..Lifecycle::default() };
        AgentSessionConfig { lifecycle, home: Some(Home::Own), ..named("s") }
    };
    // There need not be one.
    let first = place.manager.start_session(replacing()).await.expect("started");
    assert!(!place.manager.record(first.id()).expect("kept").config.lifecycle.replace, "it is of one start");
    let status = async |manager: &proxy_manager::ProxyManager| match manager.start_session(replacing()).await {
        Err(Error::DuplicateSession { status, .. }) => status,
        other => panic!("{other:?}"),
    };
    assert_eq!(status(&place.manager).await, SessionStatus::Idle);
    place.ask(&first, "history").await;
    place.manager.suspend_session(first.id(), KillOptions::NOW).await.expect("suspended");
    assert_eq!(status(&place.manager).await, SessionStatus::Suspended);
    place.manager.kill_session(first.id(), KillOptions::NOW).await.expect("killed");
    // Without it, the error says what there is to do.
    let taken = place.manager.start_session(named("s")).await.expect_err("taken");
    assert!(matches!(&taken, Error::DuplicateSession { status: SessionStatus::Ended, .. }), "{taken:?}");
    assert!(taken.to_string().contains("delete it") && taken.to_string().contains("`lifecycle.replace`"), "{taken}");
    for is_next in [false, true] {
        if is_next {
            place.again().await;
        }
        let second = place.manager.start_session(replacing()).await.expect("replaced");
        assert_eq!(second.subscribe().next().await.expect("an event").offset, 1);
        assert_eq!(place.ask(&second, "history").await, "0 before");
        second.kill(KillOptions::NOW).await.expect("killed");
    }
    place.manager.shutdown().await;
}

#[tokio::test]
async fn a_session_whose_conversation_is_gone_goes_on_with_a_new_one_where_that_is_asked_for() {
    let place = Place::new().await;
    for (home, fallback) in [
        (None, ResumeFallback::New),
        (None, ResumeFallback::History),
        (Some(Home::Own), ResumeFallback::New),
        (Some(Home::Own), ResumeFallback::History),
    ] {
        let config = AgentSessionConfig { cwd: Some("/".into()), home, ..AgentSessionConfig::new("kept") };
        let session = place.manager.start_session(config).await.expect("started");
        let first = session.info();
        assert_eq!(place.ask(&session, "say the word is quince").await, "the word is quince");
        place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
        let gone = match &first.metadata.home {
            Some(home) => home.into(),
            None => place.scratch.path().join("home/chats"),
        };
        fs::remove_dir_all(gone).expect("removed");
        let missing = place.manager.resume_session(session.id()).await.expect_err("missing");
        assert!(matches!(missing, Error::NativeSessionMissing { .. }), "{missing}");
        assert!(missing.to_string().contains("`resume.onMissing`"), "{missing}");
        assert!(is_suspended(&place.info(&session)));
        let last = place.info(&session).last_offset;
        let options = ResumeOptions { on_missing: fallback, ..ResumeOptions::default() };
        let resumed = place.manager.resume_session_with(session.id(), options).await.expect("resumed");
        let mut events = place.manager.subscribe_from(session.id(), last).expect("known");
        event(&mut events, "that it begins anew", |envelope| match &envelope.event {
            Event::SessionStatus { status, .. } => (status == "resumeFailed").then_some(()),
            _ => None,
        })
        .await;
        let now = resumed.info();
        assert!(now.turns == 1 && now.metadata == first.metadata, "{now:?}");
        assert_ne!(now.conversation.native_session_id, first.conversation.native_session_id);
        let told = place.ask(&session, "system").await;
        assert_eq!(told.contains("the word is quince"), fallback == ResumeFallback::History, "{told}");
        // It is a conversation like any other from now on.
        place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
        place.manager.resume_session(session.id()).await.expect("resumed");
        assert_eq!(place.ask(&session, "history").await, "1 before");
        place.manager.kill_session(session.id(), KillOptions::NOW).await.expect("killed");
        place.manager.delete_session(session.id()).await.expect("deleted");
    }
    place.manager.shutdown().await;
}

#[tokio::test]
async fn a_key_whose_conversation_is_gone_goes_on_with_a_new_one_where_that_is_asked_for() {
    let mut place = Place::new().await;
    let with_key = |on_missing| AgentSessionConfig {
        session_id: SessionId::mint(),
        lifecycle: Lifecycle { key: Some("chat".into()), on_missing, ..Lifecycle::default() },
        ..named("s")
    };
    let session = place.manager.start_session(with_key(ResumeFallback::Fail)).await.expect("started");
    place.ask(&session, "history").await;
    // In this manager, and in the next.
    for fallback in [ResumeFallback::New, ResumeFallback::History] {
        place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
        fs::remove_dir_all(place.scratch.path().join("home/chats")).expect("removed");
        place.again().await;
        let missing = place.manager.start_session(with_key(ResumeFallback::Fail)).await.expect_err("missing");
        assert!(matches!(missing, Error::NativeSessionMissing { .. }), "{missing}");
        let again = place.manager.start_session(with_key(fallback)).await.expect("resumed");
        assert_eq!(again.id(), session.id());
        assert_eq!(place.ask(&session, "history").await, "0 before");
        let record = place.manager.record(session.id()).expect("kept");
        assert_eq!(record.config.lifecycle.on_missing, ResumeFallback::Fail, "it is of one start");
    }
    place.manager.shutdown().await;
}

#[tokio::test]
async fn what_has_no_conversation_is_not_said_to_be_resumable_and_is_not_restarted() {
    let place = Place::new().await;
    let session = place.manager.start_session(shell("cat")).await.expect("started");
    assert!(!session.info().conversation.resumable);
    assert!(!place.manager.record(session.id()).expect("kept").conversation.resumable);
    let refused = place.manager.suspend_session(session.id(), KillOptions::NOW).await;
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    session.prompt("it goes on", PromptMode::Refuse).await.expect("taken");
    let restarts = || Lifecycle { restart: Restart::OnCrash { max: 1, backoff_ms: 1 }, ..Lifecycle::default() };
    for config in [
        shell("cat"),
        AgentSessionConfig { ephemeral: true, ..AgentSessionConfig::new("kept") },
        AgentSessionConfig::new("passing"),
    ] {
        let config = AgentSessionConfig { lifecycle: restarts(), ..config };
        let refused = place.manager.start_session(config).await.expect_err("it would have no effect");
        assert!(matches!(refused, Error::InvalidConfig { field: "lifecycle.restart", .. }), "{refused:?}");
        assert!(refused.to_string().contains("leave `lifecycle.restart` out"), "{refused}");
    }
    place.manager.shutdown().await;
}
