//! Sessions that are driven by the agent's protocol and on its screen at once.

use agent_proxy_tests::{
    sessions::{event, soon},
    system::{until, with_marker},
};
use proxy_manager::{
    AgentSessionConfig, Error, Event, ExitStatus, KillOptions, PermissionAnswer, PromptMode, SessionHandle, Signal,
    StopReason,
    terminal::{FromTerminal, Surface, TerminalConfig, TerminalViewer, ToTerminal},
};

use crate::{
    place::Place,
    visiting::{attached, shown},
};

/// Waits for the screen that a viewer sees; returns its conversation and its process.
async fn screen(viewer: &mut TerminalViewer) -> (String, u32) {
    let seen = shown(viewer, " shown").await;
    let (_, rest) = seen.split_once("screen of ").expect("a screen");
    let (conversation, rest) = rest.split_once(" pid=").expect("a process");
    let (pid, _) = rest.split_once(" shown").expect("a process");
    (conversation.to_owned(), pid.parse().expect("a number"))
}

/// Waits for the end of the program that a viewer sees.
async fn ended(viewer: &mut TerminalViewer) -> Option<ExitStatus> {
    soon("the screen's end", async {
        loop {
            match viewer.next().await {
                Some(FromTerminal::Ended { exit, .. }) => return exit,
                Some(_) => {}
                None => panic!("the connection broke off"),
            }
        }
    })
    .await
}

async fn detached(session: &SessionHandle, viewers: Vec<TerminalViewer>) {
    let mut events = session.subscribe();
    for viewer in viewers {
        drop(viewer);
        let leave =
            |envelope: &proxy_manager::Envelope| matches!(envelope.event, Event::TerminalDetached { .. }).then_some(());
        event(&mut events, "a leave", leave).await;
    }
}

fn is_gone(pid: u32) {
    until("it is gone", || registry::identify(pid).is_err().then_some(()));
}

#[tokio::test]
async fn prompts_go_on_while_the_screen_is_shown_and_after_its_death() {
    let place = Place::new().await;
    let session = place.started("driven").await;
    let info = place.info(&session);
    assert_eq!(info.metadata.surface, Surface::Both);
    let mut events = place.manager.subscribe_from(session.id(), 0).expect("known");
    let surface = event(&mut events, "the start", |envelope| match &envelope.event {
        Event::SessionStarted { surface, .. } => Some(*surface),
        _ => None,
    });
    assert_eq!(surface.await, Surface::Both);

    let mut first = attached(&session).await;
    let (conversation, pid) = screen(&mut first).await;
    assert_eq!(info.conversation.native_session_id.as_ref(), Some(&conversation));
    let mut second = attached(&session).await;
    assert_eq!(screen(&mut second).await, (conversation.clone(), pid), "both see one screen");
    // A visit is none: nothing of the session ends.
    let visited = place.manager.visit(session.id(), TerminalConfig::default()).await.expect("nothing to do");
    assert_eq!(place.info(&visited).processes, place.info(&session).processes);
    assert_eq!(place.ask(&session, "history").await, "0 before");
    first.send(&ToTerminal::Input(b"hello\r".to_vec())).await.expect("typed");
    assert!(shown(&mut second, "got hello").await.contains("got hello"));

    let turn = place.manager.send_prompt(session.id(), "ask May I?\nsay done", PromptMode::Refuse).await;
    let id = event(&mut events, "a request", |envelope| match &envelope.event {
        Event::PermissionRequested(request) => Some(request.id.clone()),
        _ => None,
    });
    let id = id.await;
    let screen_process = registry::identify(pid).expect("it runs");
    registry::PidFd::open(screen_process).and_then(|process| process.signal(Signal::Kill)).expect("signalled");
    for viewer in [&mut first, &mut second] {
        assert_eq!(ended(viewer).await, Some(ExitStatus::Signal(9)));
    }
    session.respond_permission(&id, PermissionAnswer::Allow).await.expect("answered");
    let end = soon("the turn's end", turn.expect("prompted").wait()).await.expect("ended");
    assert_eq!(end.stop_reason, Some(StopReason::EndTurn));

    // The next viewer starts another one, which stays when all have left.
    let mut third = attached(&session).await;
    let (_, again) = screen(&mut third).await;
    assert_ne!(again, pid);
    detached(&session, vec![third]).await;
    let mut fourth = attached(&session).await;
    assert_eq!(screen(&mut fourth).await.1, again);
    let receipt = session.kill(KillOptions::default()).await.expect("killed");
    assert!(receipt.is_empty() && receipt.processes.iter().any(|entry| entry.id.pid == again), "{receipt:?}");
    assert_eq!(ended(&mut fourth).await, None, "it has not ended by itself");
    until("nothing is left", || with_marker(session.id().as_str()).is_empty().then_some(()));
    place.manager.shutdown().await;
}

#[tokio::test]
async fn the_screen_ends_with_a_suspension_and_comes_back_after_it() {
    let place = Place::new().await;
    let session = place.started("driven").await;
    assert_eq!(place.ask(&session, "history").await, "0 before");
    let mut viewer = attached(&session).await;
    let (conversation, pid) = screen(&mut viewer).await;
    place.manager.suspend_session(session.id(), KillOptions::default()).await.expect("suspended");
    assert_eq!(ended(&mut viewer).await, None);
    is_gone(pid);
    let suspended = place.manager.session(session.id()).expect("known");
    assert!(matches!(suspended.view_terminal().await, Err(Error::Suspended { .. })));
    // A visit of a suspended session resumes it.
    let visited = place.manager.visit(session.id(), TerminalConfig::default()).await.expect("resumed");
    let mut viewer = attached(&visited).await;
    let (same, other) = screen(&mut viewer).await;
    assert!(same == conversation && other != pid);
    assert_eq!(place.ask(&session, "history").await, "1 before");
    place.manager.shutdown().await;
    until("nothing is left", || with_marker(session.id().as_str()).is_empty().then_some(()));
}

#[tokio::test]
async fn a_session_is_driven_as_it_asks_where_its_agent_can() {
    let place = Place::new().await;
    let config = |agent: &str, surface, terminal: bool| AgentSessionConfig {
        cwd: Some("/".into()),
        surface: Some(surface),
        terminal: terminal.then(TerminalConfig::default),
        ..AgentSessionConfig::new(agent)
    };
    let machine = place.manager.start_session(config("driven", Surface::Machine, false)).await.expect("started");
    let refused = machine.view_terminal().await;
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    let both = place.manager.start_session(config("driven", Surface::Both, true)).await.expect("started");
    assert_eq!(place.ask(&both, "history").await, "0 before");
    screen(&mut attached(&both).await).await;
    let refused = place.manager.start_session(config("kept", Surface::Both, false)).await;
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    place.manager.shutdown().await;
}
