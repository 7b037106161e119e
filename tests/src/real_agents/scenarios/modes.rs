//! Each permission mode and a tool that writes: in a home of the session's own, and with the user's own login.

use std::sync::Arc;

use proxy_manager::{
    AgentSandbox, AgentSessionConfig, Error, Event, PermissionAnswer, PermissionMode, PermissionPolicy, PermissionRule,
    ResolvedBy, RuleDecision, Timeouts, UNTRIED_VERSION,
};

use super::{Ran, ensure};
use crate::real_agents::{Failure, Session, Stage, Verdict, agents::NEXT, session::within};

/// All of them.
const MODES: [PermissionMode; 4] =
    [PermissionMode::Allow, PermissionMode::Ask, PermissionMode::Deny, PermissionMode::ReadOnly];

/// With the pinned agent and the newest version of its wrapper, at default clocks.
pub(super) async fn each_mode(stage: Arc<Stage>) -> Ran {
    for agent in agents(&stage) {
        for mode in MODES {
            let config = AgentSessionConfig {
                agent: agent.to_owned(),
                permission_mode: mode,
                agent_sandbox: None,
                timeouts: Timeouts::default(),
                ..stage.config()
            };
            one(&stage, config).await.map_err(|failure| in_words(agent, &format!("{mode:?}"), failure))?;
        }
    }
    Ok(Verdict::Pass)
}

/// The same with nothing but the id, in the home of a user whose settings allow everything; and a rule.
pub(super) async fn own_login(stage: Arc<Stage>) -> Ran {
    stage.log_in().map_err(|error| format!("setting the agent up: {error}"))?;
    for agent in agents(&stage) {
        for mode in MODES {
            let config = AgentSessionConfig { permission_mode: mode, ..stage.plain(agent) };
            one(&stage, config).await.map_err(|failure| in_words(agent, &format!("{mode:?}"), failure))?;
        }
        let command = Some("touch *".to_owned());
        let rule = PermissionRule { tool: None, command, path: None, decision: RuleDecision::Deny };
        let permissions = PermissionPolicy { rules: vec![rule], ..PermissionPolicy::default() };
        let config = AgentSessionConfig { permission_mode: PermissionMode::Allow, permissions, ..stage.plain(agent) };
        one(&stage, config).await.map_err(|failure| in_words(agent, "Allow with a rule that denies", failure))?;
    }
    Ok(Verdict::Pass)
}

/// The pinned agent, and the newest version of its wrapper.
fn agents(stage: &Stage) -> Vec<&'static str> {
    let newest = stage.agent.has_next.then_some(NEXT);
    [stage.agent.id].into_iter().chain(newest).collect()
}

fn in_words(agent: &str, mode: &str, failure: Failure) -> Failure {
    match failure {
        Failure::Wrong(what) => Failure::Wrong(format!("{agent} in mode {mode}: {what}")),
        other => other,
    }
}

async fn one(stage: &Stage, mut config: AgentSessionConfig) -> Result<(), Failure> {
    let (mode, is_ruled) = (config.permission_mode, !config.permissions.rules.is_empty());
    let mut session = match stage.try_start(config.clone()).await? {
        // Its sandbox is made with a program that this machine has not: full access is asked for by name, and not had without.
        Err(error @ Error::InvalidConfig { field: "agentSandbox", .. }) if config.agent == "codex-acp" => {
            ensure!(error.to_string().contains("`agentSandbox`: `none`"), "{error}");
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
        _ if is_ruled => ResolvedBy::Rule { index: 0 },
        mode => ResolvedBy::Mode(mode),
    };
    ensure!(told.answered.iter().all(|(_, answered)| *answered == by), "who answered: {told:?}");
    ensure!(told.asked.len() == told.answered.len(), "a request without an answer: {told:?}");
    let may_run = matches!(mode, PermissionMode::Allow | PermissionMode::Ask) && !is_ruled;
    ensure!(mode == PermissionMode::Allow && !is_ruled || told.asked.len() == 1, "asked once: {told:?}");
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
