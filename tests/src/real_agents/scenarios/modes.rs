//! Each permission mode and a tool that writes.

use std::sync::Arc;

use proxy_manager::{
    AgentSandbox, AgentSessionConfig, Error, Event, PermissionAnswer, PermissionMode, ResolvedBy, Timeouts,
    UNTRIED_VERSION,
};

use super::{Ran, ensure};
use crate::real_agents::{Failure, Session, Stage, Verdict, agents::NEXT, session::within};

/// With the pinned agent and the newest version of its wrapper, at default clocks.
pub(super) async fn each_mode(stage: Arc<Stage>) -> Ran {
    let pinned = stage.agent.id;
    let agents = if stage.agent.has_next { &[pinned, NEXT][..] } else { &[pinned][..] };
    for agent in agents {
        for mode in [PermissionMode::Allow, PermissionMode::Ask, PermissionMode::Deny, PermissionMode::ReadOnly] {
            one(&stage, agent, mode).await.map_err(|failure| in_words(agent, mode, failure))?;
        }
    }
    Ok(Verdict::Pass)
}

fn in_words(agent: &str, mode: PermissionMode, failure: Failure) -> Failure {
    match failure {
        Failure::Wrong(what) => Failure::Wrong(format!("{agent} in mode {mode:?}: {what}")),
        other => other,
    }
}

async fn one(stage: &Stage, agent: &str, mode: PermissionMode) -> Result<(), Failure> {
    let mut config = AgentSessionConfig {
        agent: agent.to_owned(),
        permission_mode: mode,
        agent_sandbox: None,
        timeouts: Timeouts::default(),
        ..stage.config()
    };
    let mut session = match stage.try_start(config.clone()).await? {
        // Its sandbox is made with a program that this machine has not: full access is asked for by name, and not had without.
        Err(Error::InvalidConfig { field: "agentSandbox", .. }) if agent == "codex-acp" => {
            config.agent_sandbox = Some(AgentSandbox::None);
            stage.start(config).await?
        }
        started => started?,
    };
    let made = stage.work().join("made");
    session.begin("shell: touch made && echo made").await?;
    if mode == PermissionMode::Ask {
        let request = session.permission().await?;
        ensure!(!made.exists(), "it ran before it was allowed");
        let answered = session.handle.respond_permission_as("tester", &request.id, PermissionAnswer::Allow);
        within("the answer is taken", answered).await??;
    }
    let told = session.finish().await?;
    let by = match mode {
        PermissionMode::Ask => ResolvedBy::User { name: Some("tester".into()) },
        mode => ResolvedBy::Mode(mode),
    };
    ensure!(told.answered.iter().all(|(_, answered)| *answered == by), "who answered: {told:?}");
    ensure!(told.asked.len() == told.answered.len(), "a request without an answer: {told:?}");
    let may_run = matches!(mode, PermissionMode::Allow | PermissionMode::Ask);
    ensure!(mode == PermissionMode::Allow || told.asked.len() == 1, "asked once: {told:?}");
    ensure!(made.exists() == may_run, "whether it ran: {told:?}");
    let mut events = session.handle.subscribe_from(0);
    while let Some(envelope) = within("the end of the turn, again", events.next()).await? {
        match &envelope.event {
            Event::SessionStatus { status, detail } if status == UNTRIED_VERSION => {
                return Err(Failure::Wrong(detail.clone()));
            }
            Event::PermissionBypassed(bypassed) => return Err(Failure::Wrong(format!("{bypassed:?}"))),
            Event::Complete { .. } => break,
            _ => {}
        }
    }
    if made.exists() {
        std::fs::remove_file(&made).map_err(|error| error.to_string())?;
    }
    end(&session).await
}

async fn end(session: &Session) -> Result<(), Failure> {
    let receipt = within("the end", session.handle.kill(proxy_manager::KillOptions::NOW)).await??;
    ensure!(receipt.is_empty(), "left: {receipt:?}");
    Ok(())
}
