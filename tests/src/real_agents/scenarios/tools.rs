//! Tools, and whether they may.

use std::sync::Arc;

use ipc_protocol::ToolStatus;
use proxy_manager::{
    AgentSessionConfig, Event, PermissionAnswer, PermissionMode, PermissionOptionKind, PermissionRequest, ResolvedBy,
};

use super::{Ran, answers::ended_well, ensure};
use crate::real_agents::{
    Failure, Session, Stage, Told, Verdict,
    session::{Call, within},
};

pub(super) async fn tool(stage: Arc<Stage>) -> Ran {
    let told = stage.session().await?.ask("shell: echo made > made; expr 40 + 2").await?;
    let [call] = told.calls.as_slice() else { return Err(Failure::Wrong(format!("not one call: {told:?}"))) };
    check(&stage, call, "echo made > made; expr 40 + 2", "42")?;
    ensure!(stage.work().join("made").exists(), "it did not run in the working directory: {call:?}");
    ensure!(told.text.contains("done: 42"), "the model was not told: {told:?}");
    ended_well(&told)?;
    if !stage.agent.tells_tools {
        return Ok(Verdict::Lacks(
            "of a tool it tells command line, begin and end, but not what it is given and says".into(),
        ));
    }
    Ok(Verdict::Pass)
}

/// A call that ran.
fn check(stage: &Stage, call: &Call, command: &str, output: &str) -> Result<(), Failure> {
    ensure!(call.start.kind == "execute", "of another kind: {call:?}");
    ensure!(!call.start.id.is_empty() && !call.start.name.is_empty() && !call.start.title.is_empty(), "{call:?}");
    let Some(end) = &call.end else { return Err(Failure::Wrong(format!("it did not end: {call:?}"))) };
    ensure!(end.status == ToolStatus::Completed, "it did not end well: {call:?}");
    if stage.agent.tells_tools {
        ensure!(call.input().as_str().contains(command), "another input: {call:?}");
        ensure!(end.output.contains(output), "another output: {call:?}");
    } else {
        ensure!(call.start.title == command, "another title: {call:?}");
        ensure!(call.input().as_str() == "null" && end.output.is_empty(), "it is said not to tell: {call:?}");
    }
    Ok(())
}

pub(super) async fn parallel(stage: Arc<Stage>) -> Ran {
    let told = stage.session().await?.ask("parallel: expr 40 + 2 || expr 50 + 3").await?;
    let [first, second] = told.calls.as_slice() else {
        return Err(Failure::Wrong(format!("not two calls: {told:?}")));
    };
    ensure!(first.start.id != second.start.id, "one id for both: {told:?}");
    // They may begin in any order.
    let is_first = first.start.title.contains("40 + 2") || first.input().as_str().contains("40 + 2");
    let (first, second) = if is_first { (first, second) } else { (second, first) };
    check(&stage, first, "expr 40 + 2", "42")?;
    check(&stage, second, "expr 50 + 3", "53")?;
    ensure!(told.text.contains("42") && told.text.contains("53"), "the model was not told: {told:?}");
    ended_well(&told)?;
    Ok(Verdict::Pass)
}

/// A session that asks before a tool makes a file; and the request.
async fn asking(stage: &Stage) -> Result<(Session, PermissionRequest), Failure> {
    let config = AgentSessionConfig { permission_mode: PermissionMode::Ask, ..stage.config() };
    let mut session = stage.start(config).await?;
    session.begin("shell: touch made && expr 40 + 2").await?;
    let request = session.permission().await?;
    let command = request.command.as_deref().unwrap_or_default();
    ensure!(command.contains("touch made"), "the command is not told: {request:?}");
    ensure!(request.kind == "execute" && !request.title.is_empty() && !request.tool.is_empty(), "{request:?}");
    let has = |kind| request.options.iter().any(|option| option.kind == kind);
    ensure!(has(PermissionOptionKind::AllowOnce) && has(PermissionOptionKind::RejectOnce), "{request:?}");
    ensure!(!stage.work().join("made").exists(), "it ran before it was allowed");
    Ok((session, request))
}

async fn answer(session: &Session, request: &PermissionRequest, answer: PermissionAnswer) -> Result<(), Failure> {
    let answered = session.handle.respond_permission_as("tester", &request.id, answer);
    Ok(within("the answer is taken", answered).await??)
}

fn check_answer(told: &Told, allowed: bool) -> Result<(), Failure> {
    ensure!(told.asked.len() == 1 && told.answered.len() == 1, "asked and answered once: {told:?}");
    ensure!(told.answered[0].1 == ResolvedBy::User { name: Some("tester".into()) }, "by whom: {told:?}");
    if let Some(option) = told.chosen() {
        let kinds = if allowed {
            [PermissionOptionKind::AllowOnce, PermissionOptionKind::AllowAlways]
        } else {
            [PermissionOptionKind::RejectOnce, PermissionOptionKind::RejectAlways]
        };
        ensure!(kinds.contains(&option.kind), "another option was chosen: {told:?}");
    }
    Ok(())
}

pub(super) async fn allow(stage: Arc<Stage>) -> Ran {
    let (mut session, request) = asking(&stage).await?;
    answer(&session, &request, PermissionAnswer::Allow).await?;
    let told = session.finish().await?;
    check_answer(&told, true)?;
    ensure!(told.chosen().is_some(), "no option was chosen: {told:?}");
    let [call] = told.calls.as_slice() else { return Err(Failure::Wrong(format!("not one call: {told:?}"))) };
    check(&stage, call, "touch made && expr 40 + 2", "42")?;
    if let Some(id) = &request.tool_call_id {
        ensure!(*id == call.start.id, "the request is of another call: {request:?} {call:?}");
    }
    ensure!(stage.work().join("made").exists(), "it was allowed and did not run: {told:?}");
    ensure!(told.text.contains("done: 42"), "the model was not told: {told:?}");
    ended_well(&told)?;
    Ok(Verdict::Pass)
}

pub(super) async fn deny(stage: Arc<Stage>) -> Ran {
    let (mut session, request) = asking(&stage).await?;
    answer(&session, &request, PermissionAnswer::Deny).await?;
    let told = session.finish().await?;
    check_answer(&told, false)?;
    for call in &told.calls {
        let status = call.end.as_ref().map(|end| end.status);
        ensure!(status == Some(ToolStatus::Failed), "a call that was denied did not fail: {told:?}");
    }
    let goes_on = told.text.contains("done: ");
    ensure!(goes_on == stage.agent.goes_on_after_deny, "whether the turn goes on: {told:?}");
    let next = session.ask("good morning").await?;
    ensure!(next.text.contains("you said: good morning"), "the next turn: {next:?}");
    ended_well(&next)?;
    ensure!(!stage.work().join("made").exists(), "it was denied and ran");
    let requested = session.seen.iter().filter(|seen| matches!(seen.event, Event::PermissionRequested(_))).count();
    ensure!(requested == 1, "asked {requested} times");
    Ok(Verdict::Pass)
}

pub(super) async fn policy_deny(stage: Arc<Stage>) -> Ran {
    policy(&stage, PermissionMode::Deny).await
}

pub(super) async fn policy_read_only(stage: Arc<Stage>) -> Ran {
    policy(&stage, PermissionMode::ReadOnly).await
}

/// A mode that refuses what a tool does to a file.
async fn policy(stage: &Stage, mode: PermissionMode) -> Ran {
    let config = AgentSessionConfig { permission_mode: mode, ..stage.config() };
    let mut session = stage.start(config).await?;
    let told = session.ask("shell: touch made && echo made").await?;
    ensure!(!stage.work().join("made").exists(), "it was refused and ran: {told:?}");
    let by: Vec<&ResolvedBy> = told.answered.iter().map(|(_, by)| by).collect();
    ensure!(told.asked.len() == 1 && by == [&ResolvedBy::Mode(mode)], "who answered: {told:?}");
    for call in &told.calls {
        let status = call.end.as_ref().map(|end| end.status);
        ensure!(status == Some(ToolStatus::Failed), "a call that was refused did not fail: {told:?}");
    }
    let next = session.ask("good morning").await?;
    ensure!(next.text.contains("you said: good morning"), "the next turn: {next:?}");
    ended_well(&next)?;
    ensure!(!stage.work().join("made").exists(), "it was refused and ran later");
    Ok(Verdict::Pass)
}

/// Two calls of one answer, each with a request of its own: where both wait at once they are answered in reverse.
pub(super) async fn several(stage: Arc<Stage>) -> Ran {
    let config = AgentSessionConfig { permission_mode: PermissionMode::Ask, ..stage.config() };
    let mut session = stage.start(config).await?;
    session.begin("parallel: touch one && echo one || touch two && echo two").await?;
    let of = |request: &PermissionRequest| request.command.clone().unwrap_or_default();
    let first = session.permission().await?;
    if !stage.agent.asks_at_once {
        answer(&session, &first, PermissionAnswer::Allow).await?;
    }
    let second = session.permission().await?;
    ensure!(first.id != second.id && of(&first) != of(&second), "one request for both: {first:?} {second:?}");
    answer(&session, &second, PermissionAnswer::Allow).await?;
    if stage.agent.asks_at_once {
        answer(&session, &first, PermissionAnswer::Allow).await?;
    }
    let told = session.finish().await?;
    ensure!(told.asked.len() == 2 && told.answered.len() == 2, "asked and answered twice: {told:?}");
    for name in ["one", "two"] {
        ensure!(stage.work().join(name).exists(), "{name} was allowed and did not run: {told:?}");
        ensure!(told.text.contains(name), "the model was not told of {name}: {told:?}");
    }
    ended_well(&told)?;
    Ok(Verdict::Pass)
}
