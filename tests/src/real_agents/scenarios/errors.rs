//! What the model does wrong.

use std::sync::Arc;

use ipc_protocol::{StopReason, TimeoutKind};
use proxy_manager::{AbortPolicy, AgentSessionConfig, EnvVars};

use super::{Ran, answers::ended_well, ensure};
use crate::{
    mock_model::{Outcome, Request},
    real_agents::{Failure, Session, Stage, Told, Verdict, session::within},
};

/// How often the model refused with this status.
fn refusals(stage: &Stage, status: u16) -> usize {
    stage.model.requests().iter().filter(|request| request.outcome == Outcome::Refused(status)).count()
}

/// A turn that failed and said so, and a session that goes on.
async fn failed(session: &mut Session, told: &Told) -> Result<(), Failure> {
    ensure!(told.end.error.is_some() && told.complete.is_none(), "it did not fail: {told:?}");
    let Some((code, message, ..)) = told.errors.last() else {
        return Err(Failure::Wrong(format!("no error was told: {told:?}")));
    };
    ensure!(!code.is_empty() && !message.is_empty(), "the error says nothing: {told:?}");
    let next = session.ask("good morning").await?;
    // Some agents say the prompt that failed again, in one piece with this one.
    let answered = next.text.contains("you said: ") && next.text.contains("good morning");
    ensure!(answered, "the next turn: {next:?}");
    ended_well(&next)
}

/// Whether attempts were told of that failed and were made again.
fn retries(told: &Told) -> usize {
    told.errors.iter().filter(|(_, _, retryable, attempt)| *retryable && attempt.is_some()).count()
}

pub(super) async fn refused(stage: Arc<Stage>) -> Ran {
    let mut session = stage.session().await?;
    let told = session.ask("status: 400").await?;
    failed(&mut session, &told).await?;
    ensure!(refusals(&stage, 400) > 0, "the model was not asked");
    let last = told.errors.last();
    ensure!(last.is_some_and(|(_, message, ..)| message.contains("an error of the script")), "what it says: {told:?}");
    let may_go_away = last.is_some_and(|(_, _, retryable, _)| *retryable);
    ensure!(!may_go_away || !stage.agent.retries.judged, "it is no use to try again: {told:?}");
    ensure!(retries(&told) == 0, "it was tried again: {told:?}");
    Ok(Verdict::Pass)
}

pub(super) async fn rate_limited(stage: Arc<Stage>) -> Ran {
    for_good(&stage, 429, stage.agent.retries.rate_limit).await
}

pub(super) async fn broken(stage: Arc<Stage>) -> Ran {
    for_good(&stage, 500, true).await
}

/// A status that does not go away.
async fn for_good(stage: &Stage, status: u16, again: bool) -> Ran {
    let mut session = stage.session().await?;
    let told = session.ask(format!("status: {status}")).await?;
    let asked = refusals(stage, status);
    if stage.agent.retries.patient && told.end.timed_out == Some(TimeoutKind::FirstResponse) {
        ensure!(asked > 1, "it asked once: {told:?}");
        let next = session.ask("good morning").await?;
        ensure!(next.text.contains("good morning"), "the next turn: {next:?}");
        ended_well(&next)?;
        return Ok(Verdict::Lacks("it asks again for longer than a turn may take to begin".into()));
    }
    failed(&mut session, &told).await?;
    ensure!((asked > 1) == again, "asked {asked} times: {told:?}");
    let last = told.errors.last();
    let may_go_away = last.is_some_and(|(_, _, retryable, _)| *retryable);
    ensure!(may_go_away || !stage.agent.retries.judged, "it may work later: {told:?}");
    if again && stage.agent.retries.told {
        ensure!(retries(&told) > 0, "no attempt was told: {told:?}");
    }
    Ok(Verdict::Pass)
}

pub(super) async fn rate_limited_once(stage: Arc<Stage>) -> Ran {
    once(&stage, "status: 429 once", stage.agent.retries.rate_limit, "it does not ask again after a 429").await
}

pub(super) async fn cut(stage: Arc<Stage>) -> Ran {
    let lacks = "it does not ask again when an answer breaks off";
    match once(&stage, "cut once", stage.agent.retries.cut, lacks).await? {
        Verdict::Pass if !stage.agent.retries.voided && !stage.agent.retries.continues => {
            Ok(Verdict::Lacks("it asks again without a word: the half that broke off stands before the answer".into()))
        }
        verdict => Ok(verdict),
    }
}

/// A model that fails for good, and an agent that asks again as often and for as long as it does by default: the clock that runs out
/// then says why.
pub(super) async fn default_clocks(stage: Arc<Stage>) -> Ran {
    let config = AgentSessionConfig { command: Vec::new(), env: EnvVars::default(), ..stage.config() };
    let trust = stage.agent.env.iter().filter(|(name, _)| name.ends_with("_TRUST_WORKSPACE")).copied();
    let env = trust.collect();
    let mut session = stage.start(AgentSessionConfig { env, ..config }).await?;
    let told = session.ask("status: 500").await?;
    ensure!(refusals(&stage, 500) > 1, "it asked once: {told:?}");
    let Some(clock) = told.end.timed_out else {
        ensure!(told.end.error.is_some(), "it neither failed nor took too long: {told:?}");
        return Ok(Verdict::Pass);
    };
    ensure!(clock == TimeoutKind::FirstResponse, "another clock: {told:?}");
    match &told.end.last_words {
        // Its standard error may have a line by then, and what that says changes from run to run.
        _ if stage.agent.retries.patient && !stage.agent.retries.told => {
            Ok(Verdict::Lacks("it asks again without a word, until the clock runs out".into()))
        }
        Some(words) if !words.is_empty() => Ok(Verdict::Pass),
        _ => Err(Failure::Wrong(format!("the clock gives no reason: {told:?}"))),
    }
}

/// Each answer breaks off. An agent that asks again for ever is stopped.
pub(super) async fn cut_for_good(stage: Arc<Stage>) -> Ran {
    let mut session = stage.session().await?;
    session.begin("cut").await?;
    if !stage.agent.retries.for_ever {
        let told = session.finish().await?;
        failed(&mut session, &told).await?;
        return Ok(Verdict::Pass);
    }
    let cut = |requests: &[Request]| requests.iter().filter(|request| request.outcome == Outcome::Cut).count() > 2;
    within("it is asked for again and again", stage.model.until(cut)).await?;
    within("the agent is told to abort", session.handle.abort(AbortPolicy::LeaveProcesses)).await??;
    let told = session.finish().await?;
    let next = session.ask("good morning").await?;
    ensure!(next.text.contains("good morning"), "the next turn: {next:?}");
    ended_well(&next)?;
    match told.end.stop_reason {
        Some(StopReason::Cancelled) => Ok(Verdict::Pass),
        Some(StopReason::EndTurn) if !stage.agent.retries.told => {
            Ok(Verdict::Lacks("aborted while it asks again, it calls the turn done".into()))
        }
        _ => Err(Failure::Wrong(format!("another end: {told:?}"))),
    }
}

/// Something that goes wrong once.
async fn once(stage: &Stage, prompt: &str, again: bool, lacks: &str) -> Ran {
    let mut session = stage.session().await?;
    let told = session.ask(prompt).await?;
    if !again {
        failed(&mut session, &told).await?;
        return Ok(Verdict::Lacks(lacks.to_owned()));
    }
    ensure!(told.text.ends_with(&format!("you said: {prompt}")), "the second attempt did not answer: {told:?}");
    if stage.agent.retries.voided {
        ensure!(told.text == format!("you said: {prompt}"), "the answer is not there once: {told:?}");
    }
    ensure!(told.end.error.is_none() && told.complete.is_some(), "it failed: {told:?}");
    if stage.agent.retries.told {
        ensure!(retries(&told) > 0, "the attempt that failed was not told: {told:?}");
    }
    Ok(Verdict::Pass)
}
