//! A session whose user visits the agent's own screen, and takes it back.

use std::sync::Arc;

use proxy_manager::{
    AgentSessionConfig, Event, PermissionMode,
    terminal::{Surface, TerminalConfig},
};
use tokio::time::timeout;

use super::{
    Ran,
    answers::ended_well,
    ensure,
    screen::{ATTEMPT, ATTEMPTS, attached, of_screen, screen_size, text_of},
    turns::remembers,
};
use crate::real_agents::{Failure, Session, Stage, Verdict, session::within};

/// Agents with a command that begins another conversation.
const CLEARING: [&str; 2] = ["claude-code", "gemini"];

/// Agents that report what happens on their screen.
const REPORTING: [&str; 3] = ["claude-code", "codex", "gemini"];

pub(super) async fn visit(stage: Arc<Stage>) -> Ran {
    // No tool is called. Not all hold another mode on their screens.
    let permission_mode = PermissionMode::Ask;
    let config = AgentSessionConfig { surface: Some(Surface::Machine), permission_mode, ..stage.config() };
    let mut session = stage.start(config).await?;
    ended_well(&session.ask("remember the plum").await?)?;
    let id = session.handle.id().clone();
    let terminal = TerminalConfig { size: screen_size(), ..TerminalConfig::default() };
    let visited = within("the visit", stage.manager.visit(&id, terminal)).await??;
    let mut viewer = attached(&visited).await?;
    viewer.shows("plum").await?;
    // Some lose what is typed while they begin.
    viewer.types_until_shown("giraffe").await?;
    viewer.enters_until_shown("said: giraffe").await?;
    let reports = REPORTING.contains(&stage.agent.id);
    if reports {
        session.leave_turn();
        session
            .until("the end of the screen's turn", |event| matches!(event, Event::Complete { .. }).then_some(()))
            .await?;
    }
    session.handle = within("taking it back", stage.manager.take_back(&id)).await??;
    session.leave_turn();
    let told = session.ask("and the pear").await?;
    ensure!(told.text.ends_with("you said: and the pear"), "another text: {told:?}");
    ended_well(&told)?;
    ensure!(remembers(&stage, "remember the plum", "and the pear"), "the model was not told what was before the visit");
    ensure!(remembers(&stage, "giraffe", "and the pear"), "the model was not told of the visit");
    let expected = usize::from(reports);
    let (prompts, are_marked) = of_screen(&session.seen, "giraffe");
    ensure!(prompts == expected && are_marked, "{prompts} prompts of the screen, all marked: {are_marked}");
    let answers = text_of(&session.seen).matches("said: giraffe").count();
    ensure!(answers == expected, "{answers} answers of the screen are in the stream");
    if CLEARING.contains(&stage.agent.id) {
        another_conversation(&stage, &mut session).await?;
    }
    Ok(Verdict::Pass)
}

/// Begins another conversation on the screen: the session goes on in that one.
async fn another_conversation(stage: &Stage, session: &mut Session) -> Result<(), Failure> {
    let native = |session: &Session| session.handle.info().conversation.native_session_id;
    let (id, before) = (session.handle.id().clone(), native(session));
    let terminal = TerminalConfig { size: screen_size(), ..TerminalConfig::default() };
    let visited = within("the visit", stage.manager.visit(&id, terminal)).await??;
    let mut viewer = attached(&visited).await?;
    viewer.shows("pear").await?;
    viewer.types_until_shown("/clear").await?;
    session.leave_turn();
    let mut is_another = false;
    for _ in 0..ATTEMPTS {
        // Some drop it; without any text it does nothing.
        viewer.types("\r").await?;
        let another = session.until("another conversation", |event| match event {
            Event::SessionStatus { status, .. } => (status == "nativeSession").then_some(()),
            _ => None,
        });
        if let Ok(another) = timeout(ATTEMPT, another).await {
            another?;
            is_another = true;
            break;
        }
    }
    ensure!(is_another, "no other conversation: {}", viewer.text());
    viewer.types_until_shown("ostrich").await?;
    viewer.enters_until_shown("said: ostrich").await?;
    session
        .until("the end of the screen's turn", |event| matches!(event, Event::Complete { .. }).then_some(()))
        .await?;
    session.handle = within("taking it back", stage.manager.take_back(&id)).await??;
    session.leave_turn();
    ended_well(&session.ask("and the fig").await?)?;
    ensure!(native(session).is_some() && native(session) != before, "it is the conversation from before: {before:?}");
    ensure!(remembers(stage, "ostrich", "and the fig"), "the model was not told of the other conversation");
    ensure!(!remembers(stage, "giraffe", "and the fig"), "the conversation from before goes on");
    Ok(())
}
