//! Visits of an agent's own screen, between turns of a session.

use agent_proxy_tests::{
    sessions::{event, soon},
    system::{until, with_marker},
};
use proxy_manager::{
    AgentSessionConfig, Error, Event, KillOptions, PromptMode, SessionHandle,
    terminal::{FromTerminal, KeyboardWish, TerminalConfig, TerminalSize, TerminalViewer, ToTerminal},
};

use crate::place::{Place, resumed};

impl Place {
    pub(crate) async fn started(&self, agent: &str) -> SessionHandle {
        let config = AgentSessionConfig { cwd: Some("/".into()), ..AgentSessionConfig::new(agent) };
        self.manager.start_session(config).await.expect("started")
    }
}

/// Attaches to a session's terminal.
pub(crate) async fn attached(session: &SessionHandle) -> TerminalViewer {
    let mut viewer = soon("a viewer's connection", session.view_terminal()).await.expect("a terminal");
    let (size, keyboard) = (TerminalSize::bounded(24, 80), KeyboardWish::Type);
    viewer.send(&ToTerminal::Attach { size, keyboard, in_place: false }).await.expect("sent");
    viewer
}

/// Waits until the frames show a text, or the program ends; returns all that they held.
pub(crate) async fn shown(viewer: &mut TerminalViewer, text: &str) -> String {
    soon(text, async {
        let mut seen = String::new();
        while !seen.contains(text) {
            match viewer.next().await {
                Some(FromTerminal::Frame { bytes, .. }) => seen.push_str(&String::from_utf8_lossy(&bytes)),
                Some(FromTerminal::Ended { .. }) | None => break,
                Some(_) => {}
            }
        }
        seen
    })
    .await
}

#[tokio::test]
async fn a_session_goes_on_after_a_visit_of_the_agents_own_screen() {
    let place = Place::new().await;
    let session = place.started("shown").await;
    assert_eq!(place.ask(&session, "history").await, "0 before");
    let conversation = place.info(&session).conversation.native_session_id.expect("it has one");

    let visited = place.manager.visit(session.id(), TerminalConfig::default()).await.expect("visited");
    let mut viewer = attached(&visited).await;
    assert!(shown(&mut viewer, &conversation).await.contains("screen of"));
    // Nobody else gets in its way: a prompt is refused, or waits for the end of the visit.
    for mode in [PromptMode::Refuse, PromptMode::Steer] {
        let refused = place.manager.send_prompt(session.id(), "say no", mode).await;
        assert!(matches!(refused, Err(Error::HandedOver { .. })), "{refused:?}");
    }
    let again = place.manager.visit(session.id(), TerminalConfig::default()).await;
    assert!(matches!(again, Err(Error::HandedOver { .. })), "{again:?}");
    let since = place.info(&visited).last_offset;
    let mut events = place.manager.subscribe_from(session.id(), since).expect("known");
    place.manager.send_prompt(session.id(), "history", PromptMode::Queue).await.expect("it waits");

    viewer.send(&ToTerminal::Input(b"bye\r".to_vec())).await.expect("typed");
    assert!(shown(&mut viewer, "got bye").await.contains("got bye"));
    assert_eq!(resumed(&mut events).await, "visitEnded");
    let answer = event(&mut events, "the answer", |envelope| match &envelope.event {
        Event::Text { text } => Some(text.clone()),
        _ => None,
    });
    assert_eq!(answer.await.trim(), "1 before", "the conversation goes on");
    let info = place.info(&session);
    assert_eq!(info.conversation.native_session_id.as_deref(), Some(&*conversation));
    assert!(matches!(visited.view_terminal().await, Err(Error::Unsupported { .. } | Error::Ended { .. })));
    place.manager.shutdown().await;
}

#[tokio::test]
async fn a_visit_that_cannot_begin_changes_nothing() {
    let place = Place::new().await;
    // This one has no screen of its own.
    let session = place.started("kept").await;
    assert_eq!(place.ask(&session, "history").await, "0 before");
    let refused = place.manager.visit(session.id(), TerminalConfig::default()).await;
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    assert_eq!(place.ask(&session, "history").await, "1 before");

    let session = place.started("shown").await;
    let mut events = session.subscribe();
    place.manager.send_prompt(session.id(), "wait", PromptMode::Refuse).await.expect("prompted");
    event(&mut events, "a turn", |envelope| matches!(envelope.event, Event::SessionBusy {}).then_some(())).await;
    let refused = place.manager.visit(session.id(), TerminalConfig::default()).await;
    assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    place.manager.shutdown().await;
}

#[tokio::test]
async fn a_visit_is_ended_by_taking_the_session_back() {
    let place = Place::new().await;
    let session = place.started("shown").await;
    assert_eq!(place.ask(&session, "history").await, "0 before");
    let visited = place.manager.visit(session.id(), TerminalConfig::default()).await.expect("visited");
    let mut viewer = attached(&visited).await;
    shown(&mut viewer, "screen of").await;
    place.manager.take_back(session.id()).await.expect("taken back");
    assert!(matches!(soon("its end", async { while viewer.next().await.is_some() {} }).await, ()));
    assert_eq!(place.ask(&session, "history").await, "1 before");
    place.manager.kill_session(session.id(), KillOptions::NOW).await.expect("killed");
    until("its processes are gone", || with_marker(session.id().as_str()).is_empty().then_some(()));
    place.manager.shutdown().await;
}
