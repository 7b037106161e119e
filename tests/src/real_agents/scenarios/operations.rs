//! What is asked of an agent beside prompts.

use std::{cmp::Ordering, sync::Arc};

use proxy_manager::{AgentSessionConfig, Json};
use serde_json::{Value, json};

use super::{
    Ran,
    answers::{asked, ended_well},
    ensure,
    given::request,
};
use crate::{
    mock_model::says,
    real_agents::{Failure, Stage, Verdict, session::within},
};

pub(super) async fn set_model(stage: Arc<Stage>) -> Ran {
    let other = stage.agent.models[1];
    let config = AgentSessionConfig { model: Some(other.into()), ..stage.config() };
    let mut session = stage.start(config).await?;
    ended_well(&session.ask("which?").await?)?;
    asked(&stage, "which?", other)?;
    let [spelled, named] = stage.agent.set_model;
    within("the model is set", session.handle.set_model(spelled)).await??;
    ended_well(&session.ask("and now?").await?)?;
    asked(&stage, "and now?", named)?;
    ensure!(session.handle.info().settings.model.as_deref() == Some(spelled), "{:?}", session.handle.info());
    Ok(Verdict::Pass)
}

pub(super) async fn set_thinking(stage: Arc<Stage>) -> Ran {
    let config = || AgentSessionConfig { thinking: Some("low".into()), ..stage.config() };
    let mut session = stage.start(config()).await?;
    ended_well(&session.ask("remember the plum").await?)?;
    if stage.agent.id == "codex-acp" {
        // Of another model than those that it knows it keeps the level that it began with.
        let model = Some(stage.agent.set_model[0].to_owned());
        session = stage.start(AgentSessionConfig { model, ..config() }).await?;
    }
    within("the level is set", session.handle.set_thinking("high")).await??;
    ended_well(&session.ask("and the pear").await?)?;
    ensure!(session.handle.info().settings.thinking.as_deref() == Some("high"), "{:?}", session.handle.info());
    let [low, high] = [effort(&stage, "remember the plum")?, effort(&stage, "and the pear")?];
    ensure!(low != high, "the model was asked to think alike: {low:?}");
    Ok(Verdict::Pass)
}

/// How hard the model was asked to think.
fn effort(stage: &Stage, prompt: &str) -> Result<Vec<Value>, Failure> {
    let body = request(stage, prompt)?.body;
    let places = [
        "/thinking",
        "/output_config",
        "/reasoning",
        "/reasoning_effort",
        "/reasoningEffort",
        "/generationConfig/thinkingConfig",
    ];
    let found: Vec<Value> = places.iter().filter_map(|place| body.pointer(place).cloned()).collect();
    ensure!(!found.is_empty(), "the model was not asked to think: {:?}", body.as_object().map(|body| body.keys()));
    Ok(found)
}

pub(super) async fn state(stage: Arc<Stage>) -> Ran {
    let session = stage.session().await?;
    let state = within("its state", session.handle.state()).await??.value();
    // Each in its own words: which conversation it is; or, of Claude Code, how much there is room for.
    let native = session.handle.info().conversation.native_session_id;
    let Some(native) = native else { return Err(session.wrong("the agent's id of the conversation is not known")) };
    let told = match stage.agent.id {
        "claude-code" => state["maxTokens"].as_u64().is_some_and(|most| most > 0),
        _ => says(&state, &native),
    };
    ensure!(told, "the conversation {native} is not in it: {state}");
    Ok(Verdict::Pass)
}

pub(super) async fn messages(stage: Arc<Stage>) -> Ran {
    let mut session = stage.session().await?;
    ended_well(&session.ask("remember the plum").await?)?;
    let messages = within("the conversation", session.handle.messages()).await??.value();
    ensure!(says(&messages, "remember the plum"), "the prompt is not in it: {messages}");
    ensure!(says(&messages, "you said: remember the plum"), "the answer is not in it: {messages}");
    Ok(Verdict::Pass)
}

pub(super) async fn compact(stage: Arc<Stage>) -> Ran {
    let mut session = stage.session().await?;
    // Long enough to be worth it.
    for prompt in ["big: 100000", "big: 100001", "remember the plum"] {
        ended_well(&session.ask(prompt).await?)?;
    }
    let before = stage.model.requests().len();
    within("it is compacted", session.handle.compact()).await??;
    ensure!(stage.model.requests().len() > before, "the model was not asked for a summary");
    let told = session.ask("good morning").await?;
    ensure!(told.text.contains("good morning"), "the next turn: {told:?}");
    ended_well(&told)?;
    // What was said is not told again; a summary by the mock may be as long. Where prompts are kept, the answers are not.
    let told = |prompt| Ok::<_, Failure>(request(&stage, prompt)?.body.to_string());
    let (before, after) = (told("remember the plum")?, told("good morning")?);
    let has_prompt = |body: &str| body.contains("\"big: 100000\"");
    ensure!(has_prompt(&before), "the model was not told the conversation");
    let (long, short) = (before.len(), after.len());
    ensure!(!has_prompt(&after) || short + 100_000 < long, "it is told {short} bytes, and was told {long} before");
    Ok(Verdict::Pass)
}

pub(super) async fn compact_with(stage: Arc<Stage>) -> Ran {
    let mut session = stage.session().await?;
    for prompt in ["big: 100000", "big: 100001", "remember the plum"] {
        ended_well(&session.ask(prompt).await?)?;
    }
    let instructions = "Retain the stones of all plums.";
    within("it is compacted", session.handle.compact_with(instructions)).await??;
    let asked = stage.model.requests().into_iter().any(|request| says(&request.body, instructions));
    ensure!(asked, "no request for a summary has the instructions");
    ended_well(&session.ask("good morning").await?)?;
    Ok(Verdict::Pass)
}

pub(super) async fn mode(stage: Arc<Stage>) -> Ran {
    let [first, other] = stage.agent.modes;
    let config = AgentSessionConfig { mode: Some(first.into()), ..stage.config() };
    let mut session = stage.start(config).await?;
    for (mode, prompt) in [(first, "remember the plum"), (other, "and the pear"), (first, "and the peach")] {
        if prompt != "remember the plum" {
            within("the mode is set", session.handle.set_mode(mode)).await??;
        }
        ensure!(session.handle.info().settings.mode.as_deref() == Some(mode), "{:?}", session.handle.info());
        ended_well(&session.ask(prompt).await?)?;
        ensure!(session.handle.info().settings.mode.as_deref() == Some(mode), "{:?}", session.handle.info());
        let told = mode_told(&stage, prompt)?;
        ensure!(told == Some(mode), "in mode {mode} the model was told of {told:?}");
    }
    Ok(Verdict::Pass)
}

/// The mode that the request of `prompt` tells the model last.
fn mode_told(stage: &Stage, prompt: &str) -> Result<Option<&'static str>, Failure> {
    let body = request(stage, prompt)?.body.to_string();
    let [first, other] = stage.agent.modes_told.map(|words| body.rfind(words));
    let [first_mode, other_mode] = stage.agent.modes;
    Ok(match first.cmp(&other) {
        Ordering::Greater => Some(first_mode),
        Ordering::Less => Some(other_mode),
        Ordering::Equal => None,
    })
}

/// A message of each protocol, and a member that its reply has.
pub(super) async fn native(stage: Arc<Stage>) -> Ran {
    let mut session = stage.session().await?;
    // A conversation in which nothing was said is in no list.
    ended_well(&session.ask("good morning").await?)?;
    let native = session.handle.info().conversation.native_session_id.unwrap_or_default();
    let (message, pointer) = match stage.agent.id {
        "claude-code" => {
            (json!({ "type": "control_request", "request": { "subtype": "mcp_status" } }), "/response/mcpServers")
        }
        "codex" => (json!({ "method": "model/list", "params": {} }), "/result/data"),
        "opencode" => (json!({ "method": "GET", "path": "/path" }), "/body/directory"),
        "pi" => (json!({ "type": "get_session_stats" }), "/data/sessionId"),
        // It has no list.
        "gemini" => {
            let params = json!({ "sessionId": native, "modeId": stage.agent.modes[0] });
            (json!({ "method": "session/set_mode", "params": params }), "/result")
        }
        _ => (json!({ "method": "session/list", "params": { "cwd": stage.work() } }), "/result/sessions/0/sessionId"),
    };
    let reply = within("the reply", session.handle.native(Json::from(&message))).await??;
    let value = reply.value();
    let found = value.pointer(pointer).filter(|member| !member.is_null());
    ensure!(found.is_some() && value["error"].is_null(), "the reply to {message}: {value}");
    if stage.row.protocol == "acp" {
        ensure!(value["jsonrpc"] == "2.0" && !value["id"].is_null(), "it is no whole reply: {value}");
        ensure!(pointer == "/result" || found == Some(&native.into()), "another conversation is in it: {value}");
    }
    Ok(Verdict::Pass)
}
