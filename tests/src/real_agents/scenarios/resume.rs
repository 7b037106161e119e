//! Conversations that go on in a new process, and those that do not.

use std::{fs, sync::Arc};

use ipc_protocol::{ResumeFrom, ResumeRequest};
use proxy_manager::{AgentSessionConfig, Error, Event, KillOptions, OnMissing, SessionId};

use super::{Ran, answers::ended_well, ensure, turns::remembers};
use crate::real_agents::{Failure, Session, Stage, Verdict, session::within};

/// A session with a turn, killed; and the agent's id of its conversation.
async fn ended(stage: &Stage) -> Result<(Session, String), Failure> {
    ended_of(stage, stage.config()).await
}

async fn ended_of(stage: &Stage, config: AgentSessionConfig) -> Result<(Session, String), Failure> {
    let mut session = stage.start(config).await?;
    ended_well(&session.ask("remember the plum").await?)?;
    let native = session.handle.info().conversation.native_session_id;
    let Some(native) = native else { return Err(session.wrong("the agent's id of the conversation is not known")) };
    within("the kill", session.handle.kill(KillOptions::default())).await??;
    session.drain().await?;
    Ok((session, native))
}

fn from(from: ResumeFrom) -> Option<ResumeRequest> {
    Some(ResumeRequest { from, fork: false, on_missing: OnMissing::Fail })
}

pub(super) async fn fork(stage: Arc<Stage>) -> Ran {
    let (before, native) = ended(&stage).await?;
    let from = ResumeFrom::Session { id: before.handle.id().clone() };
    let resume = Some(ResumeRequest { from: from.clone(), fork: true, on_missing: OnMissing::Fail });
    let mut copy = stage.start(AgentSessionConfig { resume, ..stage.config() }).await?;
    ended_well(&copy.ask("and the pear").await?)?;
    ensure!(remembers(&stage, "remember the plum", "and the pear"), "the model was not told what was before");
    let now = copy.handle.info().conversation.native_session_id;
    ensure!(now.is_some() && now.as_ref() != Some(&native), "it is no copy: {now:?}");
    // The original is as it was, and free.
    let resume = Some(ResumeRequest { from, fork: false, on_missing: OnMissing::Fail });
    let mut original = stage.start(AgentSessionConfig { resume, ..stage.config() }).await?;
    ended_well(&original.ask("and the peach").await?)?;
    ensure!(remembers(&stage, "remember the plum", "and the peach"), "the original has forgotten");
    ensure!(!remembers(&stage, "and the pear", "and the peach"), "what the copy was told is in the original");
    Ok(Verdict::Pass)
}

pub(super) async fn resume(stage: Arc<Stage>) -> Ran {
    let (before, native) = ended(&stage).await?;
    let resume = from(ResumeFrom::Session { id: before.handle.id().clone() });
    let mut after = stage.start(AgentSessionConfig { resume, ..stage.config() }).await?;
    let [old, new] = [&before, &after].map(|session| session.handle.info().processes.agent_process);
    ensure!(old != new && new.is_some(), "it is not a new process: {old:?} {new:?}");
    let told = after.ask("and the pear").await?;
    ensure!(told.text.ends_with("you said: and the pear"), "another text: {told:?}");
    ended_well(&told)?;
    let now = after.handle.info().conversation.native_session_id;
    ensure!(now.as_deref() == Some(&native), "another conversation: {now:?} and not {native:?}");
    ensure!(remembers(&stage, "remember the plum", "and the pear"), "the model was not told what was before");
    // What was before is not told again as if it were new.
    let repeated = after.seen.iter().any(|seen| matches!(&seen.event, Event::Text { text } if text.contains("plum")));
    ensure!(!repeated, "the old answer is in the new stream");
    Ok(Verdict::Pass)
}

/// In the shared home: of two conversations the one that was last gone on with is gone on with. It is not the one that was last
/// begun, nor the one that another directory has.
pub(super) async fn recent(stage: Arc<Stage>) -> Ran {
    let wrong = |error: std::io::Error| Failure::Wrong(format!("setting the agent up: {error}"));
    let config = stage.shared().map_err(wrong)?;
    let elsewhere = stage.folder().join("elsewhere");
    fs::create_dir(&elsewhere).map_err(wrong)?;
    let elsewhere = Some(elsewhere.to_string_lossy().into_owned());
    let fresh = |resume| AgentSessionConfig { session_id: SessionId::mint(), resume, ..config.clone() };
    let plum = said(&stage, fresh(None), "remember the plum").await?;
    said(&stage, fresh(None), "remember the pear").await?;
    let resume = from(ResumeFrom::Native { id: plum.clone() });
    said(&stage, fresh(resume), "and the peach").await?;
    said(&stage, AgentSessionConfig { cwd: elsewhere, ..fresh(None) }, "remember the apple").await?;
    let now = said(&stage, fresh(from(ResumeFrom::MostRecent)), "and the cherry").await?;
    ensure!(now == plum, "another conversation: {now} and not {plum}");
    for before in ["remember the plum", "and the peach"] {
        ensure!(remembers(&stage, before, "and the cherry"), "the model was not told {before:?}");
    }
    for other in ["remember the pear", "remember the apple"] {
        ensure!(!remembers(&stage, other, "and the cherry"), "the model was told {other:?}");
    }
    Ok(Verdict::Pass)
}

/// A session with one turn, killed; the agent's id of its conversation.
async fn said(stage: &Stage, config: AgentSessionConfig, prompt: &str) -> Result<String, Failure> {
    let mut session = stage.start(config).await?;
    ended_well(&session.ask(prompt).await?)?;
    let native = session.handle.info().conversation.native_session_id;
    within("the kill", session.handle.kill(KillOptions::default())).await??;
    native.ok_or_else(|| session.wrong("the agent's id of the conversation is not known"))
}

/// No conversation, and as long as one.
fn garbage() -> String {
    "this is no conversation\n".repeat(1000)
}

/// A session with a turn that has ended; the agent's id of its conversation, and the file of it.
async fn with_file(stage: &Stage) -> Result<(Session, String, String), Failure> {
    filed(ended(stage).await?)
}

fn filed((before, native): (Session, String)) -> Result<(Session, String, String), Failure> {
    match before.handle.info().conversation.native_session_file {
        Some(file) => Ok((before, native, file)),
        None => Err(before.wrong("the file of the conversation is not known")),
    }
}

/// Has `contents` take the place of the file of a conversation; without any it is gone.
fn damage(file: &str, contents: Option<&str>) -> Result<(), String> {
    // A database has its newest pages in a file beside it.
    for ending in ["", "-wal", "-shm"] {
        let path = format!("{file}{ending}");
        if !ending.is_empty() && !fs::exists(&path).map_err(|error| error.to_string())? {
            continue;
        }
        let done = match contents {
            Some(contents) => fs::write(&path, contents),
            None => fs::remove_file(&path),
        };
        done.map_err(|error| format!("{path}: {error}"))?;
    }
    Ok(())
}

pub(super) async fn broken(stage: Arc<Stage>) -> Ran {
    for (is_headed, prompt) in [(true, "and the pear"), (false, "and the peach")] {
        let (before, native, file) = with_file(&stage).await?;
        let contents = if is_headed { headed(&file) } else { garbage() };
        let resume = from(ResumeFrom::Session { id: before.handle.id().clone() });
        let config = AgentSessionConfig { resume, ..stage.config() };
        goes_not_on(&stage, config, (&native, &file), &contents, prompt).await?;
    }
    let config = stage.shared().map_err(|error| Failure::Wrong(format!("setting the agent up: {error}")))?;
    let (_, _, file) = filed(ended_of(&stage, config.clone()).await?)?;
    let contents = headed(&file);
    // Only by some agents' files can be told which one the agent is going to choose.
    if contents.contains("\"cwd\":") {
        let config = AgentSessionConfig { resume: from(ResumeFrom::MostRecent), ..config };
        goes_not_on(&stage, config, ("the most recent", &file), &contents, "and the cherry").await?;
    }
    Ok(Verdict::Pass)
}

/// Only its first line is left of a conversation, which says whose it is. A database has none.
fn headed(file: &str) -> String {
    let whole = fs::read_to_string(file).unwrap_or_default();
    let first = whole.lines().next().filter(|line| line.starts_with('{') && line.ends_with('}'));
    format!("{}\n{}", first.unwrap_or_default(), garbage())
}

/// The files of the conversation hold garbage: that is said, each time and not only the first, and they stay as they are; or what
/// was before is told to the model all the same.
async fn goes_not_on(
    stage: &Stage,
    config: AgentSessionConfig,
    (native, file): (&str, &str),
    contents: &str,
    prompt: &str,
) -> Result<(), Failure> {
    damage(file, Some(contents))?;
    for _ in 0..2 {
        let config = AgentSessionConfig { session_id: SessionId::mint(), ..config.clone() };
        let mut after = match stage.try_start(config).await? {
            Err(Error::NativeSessionMissing { id, reason, .. }) => {
                ensure!(id == native && !reason.is_empty(), "{id} {reason}");
                let left = fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
                ensure!(left == contents, "{file} is another one now: {}", left.replace(&garbage(), "… "));
                continue;
            }
            Err(error) => return Err(Failure::Wrong(format!("{error}: {error:?}"))),
            Ok(session) => session,
        };
        let told = after.ask(prompt).await?;
        ensure!(remembers(stage, "remember the plum", prompt), "a fresh conversation, without a word: {told:?}");
        return Ok(());
    }
    Ok(())
}

pub(super) async fn anew(stage: Arc<Stage>) -> Ran {
    new_one(&stage, OnMissing::StartAnew).await
}

pub(super) async fn inject(stage: Arc<Stage>) -> Ran {
    new_one(&stage, OnMissing::Inject { history: "User: the word is quince".into() }).await
}

/// A new conversation where the old one is gone, and where it is broken.
async fn new_one(stage: &Stage, on_missing: OnMissing) -> Ran {
    let is_told = matches!(on_missing, OnMissing::Inject { .. });
    for (contents, prompt) in [(None, "and the pear"), (Some(garbage()), "and the peach")] {
        let (before, native, file) = with_file(stage).await?;
        damage(&file, contents.as_deref())?;
        let from = ResumeFrom::Session { id: before.handle.id().clone() };
        let resume = Some(ResumeRequest { from, fork: false, on_missing: on_missing.clone() });
        let mut after = stage.start(AgentSessionConfig { resume, ..stage.config() }).await?;
        ended_well(&after.ask(prompt).await?)?;
        let knows = remembers(stage, "remember the plum", prompt);
        let said = after.seen.iter().find_map(|seen| match &seen.event {
            Event::SessionStatus { status, detail } if status == "resumeFailed" => Some(detail.clone()),
            _ => None,
        });
        let Some(said) = said else {
            ensure!(knows && contents.is_some(), "a fresh conversation, without a word");
            continue;
        };
        ensure!(said.contains(&native), "the conversation {native} is not named: {said}");
        ensure!(!knows, "it has what is said to be lost: {said}");
        ensure!(remembers(stage, "the word is quince", prompt) == is_told, "whether the history is told: {is_told}");
        // What was there is kept, under a name that is told where it is another.
        let is_kept = |path: &str| fs::read_to_string(path).ok() == contents;
        let aside = said.rsplit_once("is kept as ").map_or(file.as_str(), |(_, path)| path);
        ensure!(contents.is_none() || is_kept(aside), "what was in {file} is lost: {said}");
    }
    Ok(Verdict::Pass)
}

pub(super) async fn missing(stage: Arc<Stage>) -> Ran {
    for id in ["01890a5d-ac96-774b-bcce-b302099a8057"].into_iter().chain(stage.agent.absent) {
        let resume = from(ResumeFrom::Native { id: id.to_owned() });
        match stage.try_start(AgentSessionConfig { resume, ..stage.config() }).await? {
            Err(Error::NativeSessionMissing { agent, id: named, reason }) => {
                ensure!(agent == stage.agent.id && named == id && !reason.is_empty(), "{agent} {named} {reason}");
            }
            Err(error) => return Err(error.into()),
            Ok(session) => return Err(session.wrong("it started, with no conversation to go on with")),
        }
    }
    ensure!(stage.model.requests().is_empty(), "the model was asked: {:?}", stage.model.requests());
    Ok(Verdict::Pass)
}

pub(super) async fn list(stage: Arc<Stage>) -> Ran {
    let mut session = stage.session().await?;
    ended_well(&session.ask("remember the plum").await?)?;
    let native = session.handle.info().conversation.native_session_id;
    let listed = within("the list", session.handle.native_sessions()).await??.value();
    let Some(all) = listed.as_array() else { return Err(Failure::Wrong(format!("it is no list: {listed}"))) };
    ensure!(all.iter().all(|one| one["id"].is_string()), "one has no id: {listed}");
    let own = all.iter().any(|one| one["id"].as_str() == native.as_deref());
    ensure!(own && native.is_some(), "the conversation {native:?} is not in {listed}");
    Ok(Verdict::Pass)
}
