//! Turns that are cancelled, follow each other, or are spoken into.

use std::sync::Arc;

use ipc_protocol::StopReason;
use proxy_manager::{AbortPolicy, AgentSessionConfig, PermissionMode, ResolvedBy};

use super::{Ran, answers::ended_well, ensure, killing::Naps};
use crate::{
    mock_model::{Outcome, says},
    real_agents::{Failure, Session, Stage, Told, Verdict, session::within},
    system::{sleeping, with_word},
};

async fn cancel(session: &mut Session, policy: AbortPolicy) -> Result<Told, Failure> {
    within("the agent is told to abort", session.handle.abort(policy)).await??;
    let told = session.finish().await?;
    ensure!(told.end.stop_reason == Some(StopReason::Cancelled), "another end: {told:?}");
    ensure!(told.complete == Some(StopReason::Cancelled), "the stream tells of another end: {told:?}");
    Ok(told)
}

async fn next_works(session: &mut Session) -> Result<(), Failure> {
    let told = session.ask("good morning").await?;
    ensure!(told.text.contains("you said: good morning"), "the next turn: {told:?}");
    ended_well(&told)
}

pub(super) async fn abort(stage: Arc<Stage>) -> Ran {
    let mut session = stage.session().await?;
    session.begin("slow: 600").await?;
    session.counting().await?;
    cancel(&mut session, AbortPolicy::LeaveProcesses).await?;
    let hung_up = stage.model.until(|requests| requests.iter().any(|request| request.outcome == Outcome::Dropped));
    within("the model is hung up on", hung_up).await?;
    next_works(&mut session).await?;
    Ok(Verdict::Pass)
}

/// Codex leaves a tool running that is aborted.
pub(super) async fn trap_an_abort_leaves_the_tool_running(stage: Arc<Stage>) -> Ran {
    let mut session = stage.session().await?;
    let mut naps = Naps::new(&stage)?;
    let (background, foreground) = (naps.nap(), naps.nap());
    session.begin(format!("shell: ./nap {background} & ./nap {foreground}")).await?;
    naps.all_sleep().await?;
    // What Codex leaves running its adapter has it end: that is shown where nothing else does.
    let policy = match stage.agent.id {
        "codex" => AbortPolicy::LeaveProcesses,
        _ => AbortPolicy::KillTurnProcesses,
    };
    cancel(&mut session, policy).await?;
    for seconds in [background, foreground] {
        ensure!(sleeping(&seconds).is_empty() && with_word(&seconds).is_empty(), "sleep {seconds} is left");
    }
    next_works(&mut session).await?;
    Ok(Verdict::Pass)
}

/// A tool that is over while a process of it still has its output: its turn ends; or, OpenCode's, it hangs for more than 20 s, and an
/// abort ends both.
pub(super) async fn trap_a_tool_hangs_while_its_output_is_held(stage: Arc<Stage>) -> Ran {
    let mut session = stage.session().await?;
    let mut naps = Naps::new(&stage)?;
    let seconds = naps.nap();
    session.begin(format!("shell: ./nap {seconds} & until [ -e {seconds} ]; do :; done; echo left behind")).await?;
    naps.all_sleep().await?;
    if stage.agent.waits_for_output {
        ensure!(!sleeping(&seconds).is_empty(), "sleep {seconds} does not sleep before the abort");
        cancel(&mut session, AbortPolicy::KillTurnProcesses).await?;
        ensure!(sleeping(&seconds).is_empty() && with_word(&seconds).is_empty(), "sleep {seconds} is left");
    } else {
        let told = session.finish().await?;
        ensure!(told.text.contains("done: "), "the model was not told: {told:?}");
        ended_well(&told)?;
    }
    next_works(&mut session).await?;
    Ok(Verdict::Pass)
}

pub(super) async fn abort_asking(stage: Arc<Stage>) -> Ran {
    let config = AgentSessionConfig { permission_mode: PermissionMode::Ask, ..stage.config() };
    let mut session = stage.start(config).await?;
    session.begin("shell: touch made && echo made").await?;
    session.permission().await?;
    let told = cancel(&mut session, AbortPolicy::LeaveProcesses).await?;
    let by: Vec<&ResolvedBy> = told.answered.iter().map(|(_, by)| by).collect();
    ensure!(matches!(by.as_slice(), [ResolvedBy::Abort | ResolvedBy::Agent]), "who answered it: {told:?}");
    next_works(&mut session).await?;
    ensure!(!stage.work().join("made").exists(), "it was cancelled and ran");
    Ok(Verdict::Pass)
}

pub(super) async fn second(stage: Arc<Stage>) -> Ran {
    let mut session = stage.session().await?;
    session.begin("remember the plum").await?;
    let queued = session.queue("and the pear").await?;
    let first = session.finish().await?;
    ended_well(&first)?;
    session.follow(queued);
    let second = session.finish().await?;
    ended_well(&second)?;
    ensure!((first.end.turn, second.end.turn) == (Some(1), Some(2)), "other turns: {first:?} {second:?}");
    ensure!(!first.text.contains("pear"), "the second prompt is in the first turn: {first:?}");
    ensure!(second.text.ends_with("you said: and the pear"), "another text: {second:?}");
    ensure!(remembers(&stage, "remember the plum", "and the pear"), "the model was not told of the first prompt");
    Ok(Verdict::Pass)
}

/// Whether the request of prompt `now` carries the prompt `before`.
pub(super) fn remembers(stage: &Stage, before: &str, now: &str) -> bool {
    let requests = stage.model.requests();
    requests.iter().any(|request| says(&request.body, before) && says(&request.body, now))
}

pub(super) async fn steer(stage: Arc<Stage>) -> Ran {
    let mut session = stage.session().await?;
    session.begin("slow: 100").await?;
    session.counting().await?;
    within("it is steered", session.handle.steer("to the left")).await??;
    let told = session.finish().await?;
    ended_well(&told)?;
    ensure!(told.text.contains("you said: to the left (after slow: 100)"), "it was not heard: {told:?}");
    ensure!(session.handle.info().turns == 1, "it was a turn of its own");
    // It is ready for the next one: nothing of the turn is left.
    let next = session.ask("good morning").await?;
    ensure!(next.text.ends_with("you said: good morning"), "the next turn: {next:?}");
    ended_well(&next)?;
    Ok(Verdict::Pass)
}
