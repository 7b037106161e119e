//! Tools, and whether they may.

use std::{fs, path::Path, sync::Arc};

use ipc_protocol::ToolStatus;
use proxy_manager::{
    AgentSessionConfig, Event, PermissionAnswer, PermissionMode, PermissionOptionKind, PermissionRequest, ResolvedBy,
};
use serde_json::json;

use super::{Ran, answers::ended_well, ensure};
use crate::{
    mock_model::says,
    real_agents::{
        Failure, Session, Stage, Told, Verdict,
        session::{Call, within},
    },
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
    let mut session = in_mode(&stage, PermissionMode::Deny).await?;
    refused(&stage, &mut session, PermissionMode::Deny, "shell: touch made && echo made").await?;
    Ok(Verdict::Pass)
}

/// Its tool that reads a file may, its tool that writes one and its shell may not.
pub(super) async fn policy_read_only(stage: Arc<Stage>) -> Ran {
    let mode = PermissionMode::ReadOnly;
    let [poem, made] = ["poem.txt", "made"].map(|name| stage.work().join(name));
    fs::write(&poem, "a poem of plums\n").map_err(|error| error.to_string())?;
    let mut session = in_mode(&stage, mode).await?;
    refused(&stage, &mut session, mode, "shell: touch made && echo made").await?;
    let reads = stage.agent.tool;
    match stage.agent.id {
        "codex" => {
            refused(&stage, &mut session, mode, "shell: cat poem.txt").await?;
            return Ok(Verdict::Lacks("it reads by commands, which the policy refuses".into()));
        }
        // It asks for no command that it knows to do nothing but read.
        "codex-acp" => {
            let told = session.ask("shell: cat poem.txt").await?;
            ensure!(told.asked.is_empty() && told.text.contains("a poem of plums"), "reading by a command: {told:?}");
            ended_well(&told)?;
            return Ok(Verdict::Pass);
        }
        _ => {}
    }
    let call = |tool: &str, path: &Path| {
        // Each takes the one of them that is its own.
        let arguments = json!({ "file_path": path, "filePath": path, "path": path, "content": "made" });
        format!("call: {tool} {arguments}")
    };
    let told = session.ask(call(reads, &poem)).await?;
    let is_told = stage.model.requests().iter().any(|request| says(&request.body, "a poem of plums"));
    ensure!(is_told, "the model was not told: {told:?}");
    ensure!(told.asked.len() == 1 && answerers(&told) == [&ResolvedBy::Mode(mode)], "who answered: {told:?}");
    let ends: Vec<_> = told.calls.iter().map(|call| call.end.as_ref().map(|end| end.status)).collect();
    ensure!(ends == [Some(ToolStatus::Completed)], "the call that reads: {told:?}");
    ended_well(&told)?;
    let writes = reads.replace("read", "write").replace("Read", "Write");
    refused(&stage, &mut session, mode, &call(&writes, &made)).await?;
    Ok(Verdict::Pass)
}

async fn in_mode(stage: &Stage, mode: PermissionMode) -> Result<Session, Failure> {
    stage.start(AgentSessionConfig { permission_mode: mode, ..stage.config() }).await
}

/// Who answered what was asked for.
fn answerers(told: &Told) -> Vec<&ResolvedBy> {
    told.answered.iter().map(|(_, by)| by).collect()
}

/// The prompt has a tool called that the mode refuses; the session goes on.
async fn refused(stage: &Stage, session: &mut Session, mode: PermissionMode, prompt: &str) -> Result<(), Failure> {
    let told = session.ask(prompt).await?;
    ensure!(!stage.work().join("made").exists(), "it was refused and ran: {told:?}");
    ensure!(told.asked.len() == 1 && answerers(&told) == [&ResolvedBy::Mode(mode)], "who answered: {told:?}");
    for call in &told.calls {
        let status = call.end.as_ref().map(|end| end.status);
        ensure!(status == Some(ToolStatus::Failed), "a call that was refused did not fail: {told:?}");
    }
    let next = session.ask("good morning").await?;
    ensure!(next.text.contains("you said: good morning"), "the next turn: {next:?}");
    ended_well(&next)?;
    ensure!(!stage.work().join("made").exists(), "it was refused and ran later");
    Ok(())
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
