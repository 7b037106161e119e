//! What is said and counted.

use std::sync::Arc;

use ipc_protocol::{Prompt, PromptPart, StopReason};
use proxy_manager::AgentSessionConfig;

use super::{Ran, ensure};
use crate::{
    mock_model::{Request, says},
    real_agents::{Failure, Stage, Told, Verdict, agents::Counted},
};

/// A picture of one pixel.
const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";

pub(super) async fn text(stage: Arc<Stage>) -> Ran {
    let told = stage.session().await?.ask("good morning").await?;
    ensure!(told.prompt == "good morning", "the turn was of another prompt: {told:?}");
    ensure!(told.text.ends_with("you said: good morning"), "another text: {told:?}");
    ensure!(told.pieces > 1, "the text is in one piece, and the model sent several: {told:?}");
    ended_well(&told)?;
    Ok(Verdict::Pass)
}

/// Whether a turn came to its end as it should.
pub(super) fn ended_well(told: &Told) -> Result<(), Failure> {
    ensure!(told.end.stop_reason == Some(StopReason::EndTurn), "another end: {told:?}");
    ensure!(told.complete == Some(StopReason::EndTurn), "the stream tells of another end: {told:?}");
    ensure!(told.end.error.is_none() && told.errors.is_empty(), "there were errors: {told:?}");
    Ok(())
}

pub(super) async fn thinking(stage: Arc<Stage>) -> Ran {
    let told = stage.session().await?.ask("think: cheese").await?;
    ensure!(told.thinking.contains("thinking of cheese"), "no such thoughts: {told:?}");
    ensure!(told.text.ends_with("you said: think: cheese"), "another text: {told:?}");
    ensure!(!told.text.contains("thinking of"), "the thoughts are text: {told:?}");
    ended_well(&told)?;
    Ok(Verdict::Pass)
}

pub(super) async fn usage(stage: Arc<Stage>) -> Ran {
    let mut session = stage.session().await?;
    for (turn, prompt) in (1..).zip(["one", "two"]) {
        let told = session.ask(prompt).await?;
        ended_well(&told)?;
        let Some(expected) = stage.agent.usage else {
            ensure!(told.usage.is_none(), "it is said to tell none: {told:?}");
            return Ok(Verdict::Lacks("it tells no usage".into()));
        };
        let Some(usage) = told.usage else { return Err(session.wrong("no usage was told")) };
        let counted =
            Counted(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens);
        ensure!(counted == expected, "turn {}: {counted:?} and not {expected:?}", turn);
        let costs = usage.cost_usd.is_some_and(|cost| cost > 0.0);
        ensure!(costs == stage.agent.tells_cost, "whether it tells what it costs: {usage:?}");
    }
    Ok(Verdict::Pass)
}

pub(super) async fn context_window(stage: Arc<Stage>) -> Ran {
    let told = stage.session().await?.ask("one").await?;
    ended_well(&told)?;
    if !stage.agent.tells_window {
        ensure!(told.window.is_none(), "it is said to tell none: {told:?}");
        return Ok(Verdict::Lacks("it does not tell how large its context window is".into()));
    }
    let Some((used, size, remaining)) = told.window else {
        return Err(Failure::Wrong(format!("none was told: {told:?}")));
    };
    ensure!(0 < used && used < size && remaining == size - used, "{used} of {size}, and {remaining} remain");
    Ok(Verdict::Pass)
}

pub(super) async fn model(stage: Arc<Stage>) -> Ran {
    // That of the model configuration, and one of the session's own.
    let [configured, other] = stage.agent.models;
    let told = stage.session().await?.ask("which?").await?;
    ended_well(&told)?;
    asked(&stage, "which?", configured)?;
    let config = AgentSessionConfig { model: Some(other.into()), ..stage.config() };
    let told = stage.start(config).await?.ask("and now?").await?;
    ended_well(&told)?;
    asked(&stage, "and now?", other)?;
    Ok(Verdict::Pass)
}

/// Whether the model that answered `prompt` was this one.
pub(super) fn asked(stage: &Stage, prompt: &str, model: &str) -> Result<(), Failure> {
    let requests = stage.model.requests();
    let of_prompt: Vec<&Request> = requests.iter().filter(|request| says(&request.body, prompt)).collect();
    let Some(last) = of_prompt.last() else {
        return Err(Failure::Wrong(format!("no request has {prompt:?}: {} requests", requests.len())));
    };
    let named = last.body["model"].as_str();
    ensure!(
        named.is_some_and(|named| named.contains(model)) || last.path.contains(&format!("/{model}:")),
        "{} was asked for {named:?} and not for {model:?}",
        last.path
    );
    Ok(())
}

pub(super) async fn image(stage: Arc<Stage>) -> Ran {
    let mut session = stage.session().await?;
    let picture = PromptPart::Image { mime_type: "image/png".into(), data: PIXEL.into() };
    let told = session.ask(Prompt { parts: vec![PromptPart::Text("what is it?".into()), picture] }).await?;
    ended_well(&told)?;
    ensure!(told.text.contains("what is it?"), "another text: {told:?}");
    let requests = stage.model.requests();
    // Its first bytes say that it is a PNG; agents may scale it.
    let shown = requests.iter().any(|request| says(&request.body, &PIXEL[..11]) && says(&request.body, "what is it?"));
    ensure!(shown, "the model was shown no picture: {requests:?}");
    Ok(Verdict::Pass)
}
