//! What is asked of an agent beside prompts.

use std::sync::Arc;

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
    real_agents::{Failure, Session, Stage, Verdict, session::within},
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
    ensure!(session.handle.info().model.as_deref() == Some(spelled), "{:?}", session.handle.info());
    Ok(Verdict::Pass)
}

pub(super) async fn set_thinking(stage: Arc<Stage>) -> Ran {
    let config = AgentSessionConfig { thinking: Some("low".into()), ..stage.config() };
    let mut session = stage.start(config).await?;
    ended_well(&session.ask("remember the plum").await?)?;
    within("the level is set", session.handle.set_thinking("high")).await??;
    ended_well(&session.ask("and the pear").await?)?;
    ensure!(session.handle.info().thinking.as_deref() == Some("high"), "{:?}", session.handle.info());
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
    ensure!(state.as_object().is_some_and(|state| !state.is_empty()), "it tells nothing: {state}");
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
    Ok(Verdict::Pass)
}

pub(super) async fn mode(stage: Arc<Stage>) -> Ran {
    let [first, other] = stage.agent.modes;
    let config = AgentSessionConfig { mode: Some(first.into()), ..stage.config() };
    let mut session = stage.start(config).await?;
    let is = |session: &Session, mode| session.handle.info().mode.as_deref() == Some(mode);
    ensure!(is(&session, first), "{:?}", session.handle.info());
    ended_well(&session.ask("remember the plum").await?)?;
    within("the mode is set", session.handle.set_mode(other)).await??;
    ensure!(is(&session, other), "{:?}", session.handle.info());
    ended_well(&session.ask("and the pear").await?)?;
    within("the mode is set", session.handle.set_mode(first)).await??;
    ended_well(&session.ask("and the peach").await?)?;
    ensure!(is(&session, first), "{:?}", session.handle.info());
    Ok(Verdict::Pass)
}

/// A message of each protocol, and a member that its reply has.
pub(super) async fn native(stage: Arc<Stage>) -> Ran {
    let (message, pointer) = match stage.agent.id {
        "claude-code" => (json!({ "type": "control_request", "request": { "subtype": "mcp_status" } }), ""),
        "codex" => (json!({ "method": "model/list", "params": {} }), "/result/data"),
        "opencode" => (json!({ "method": "GET", "path": "/path" }), ""),
        "pi" => (json!({ "type": "get_session_stats" }), ""),
        _ => (json!({ "method": "authenticate", "params": { "methodId": "no-such-method" } }), ""),
    };
    let session = stage.session().await?;
    let reply = within("the reply", session.handle.native(Json::from(&message))).await??;
    let value = reply.value();
    ensure!(value.pointer(pointer).is_some_and(|member| !member.is_null()), "the reply to {message}: {value}");
    Ok(Verdict::Pass)
}
