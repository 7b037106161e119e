//! What a session is given at its start.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
};

use ipc_protocol::{McpServer, McpTransport, Prompt, PromptPart, ToolStatus};
use proxy_manager::{AgentSessionConfig, EnvVars, KillOptions};
use serde_json::Value;

use super::{Ran, answers::ended_well, ensure};
use crate::{
    mock_model::{Request, says},
    orchard::Orchard,
    real_agents::{Failure, Stage, Verdict, session::within},
};

/// The first request that carried `prompt` and tools: not one for a title.
pub(super) fn request(stage: &Stage, prompt: &str) -> Result<Request, Failure> {
    let of_prompt = |request: &Request| says(&request.body, prompt) && !tools(&request.body).is_empty();
    let found = stage.model.requests().into_iter().find(of_prompt);
    found.ok_or_else(|| Failure::Wrong(format!("no request has {prompt:?}: {:?}", stage.model.requests())))
}

/// The names of the tools that a request offers.
fn tools(body: &Value) -> Vec<String> {
    let mut names = Vec::new();
    collect(&body["tools"], &mut names);
    names
}

/// The `name` members of objects, at any depth but in schemas.
fn collect(value: &Value, names: &mut Vec<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, names)),
        Value::Object(members) => {
            names.extend(members.get("name").and_then(Value::as_str).map(str::to_owned));
            let inner = ["function", "functionDeclarations", "tools"];
            inner.iter().filter_map(|name| members.get(*name)).for_each(|inner| collect(inner, names));
        }
        _ => {}
    }
}

pub(super) async fn system_prompt(stage: Arc<Stage>) -> Ran {
    let config = AgentSessionConfig { system_prompt: Some("Answer in rhymes only.".into()), ..stage.config() };
    let told = stage.start(config).await?.ask("good morning").await?;
    ended_well(&told)?;
    ensure!(told.prompt == "good morning", "the turn was of another prompt: {told:?}");
    let body = request(&stage, "good morning")?.body;
    ensure!(says(&body, "Answer in rhymes only."), "the model was not told: {body}");
    Ok(Verdict::Pass)
}

pub(super) async fn file(stage: Arc<Stage>) -> Ran {
    let path = stage.work().join("poem.txt");
    fs::write(&path, "a poem of plums\n").map_err(|error| error.to_string())?;
    let file = PromptPart::File { path: "poem.txt".into() };
    let prompt = Prompt { parts: vec![PromptPart::Text("read it".into()), file] };
    let told = stage.session().await?.ask(prompt).await?;
    ensure!(told.end.error.is_none() && told.text.contains("you said: "), "{told:?}");
    let body = request(&stage, "read it")?.body;
    // Some agents read it at once, others point the model at it.
    ensure!(says(&body, "a poem of plums") || says(&body, "poem.txt"), "the model was not told: {body}");
    Ok(Verdict::Pass)
}

pub(super) async fn mcp(stage: Arc<Stage>) -> Ran {
    let command = stage.programs.mcp.to_string_lossy().into_owned();
    // Where a session in a sandbox may write.
    let came = stage.work().join("came");
    let args = vec![came.to_string_lossy().into_owned()];
    picks(&stage, stage.config(), McpTransport::Stdio { command, args, env: EnvVars::default() }).await?;
    let came = fs::read_to_string(&came).map_err(|error| format!("what came: {error}"))?;
    let messages: Vec<Value> = came.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    is_picked(&messages)?;
    Ok(Verdict::Pass)
}

pub(super) async fn mcp_http(stage: Arc<Stage>) -> Ran {
    let orchard = Orchard::start().await.map_err(|error| error.to_string())?;
    let headers = [("authorization", "Bearer of-plums")].into_iter().collect();
    let config = stage.reaching(&orchard.url())?;
    picks(&stage, config, McpTransport::Http { url: orchard.url(), headers }).await?;
    let (logins, messages): (Vec<_>, Vec<_>) = orchard.came().into_iter().unzip();
    is_picked(&messages)?;
    ensure!(logins.iter().all(|login| login.as_deref() == Some("Bearer of-plums")), "its headers: {logins:?}");
    Ok(Verdict::Pass)
}

/// A session with this server, whose model calls the server's tool and is told what that gave.
async fn picks(stage: &Stage, config: AgentSessionConfig, transport: McpTransport) -> Result<(), Failure> {
    let mcp_servers = vec![McpServer { name: "orchard".into(), transport }];
    let mut session = stage.start(AgentSessionConfig { mcp_servers, ..config }).await?;
    ended_well(&session.ask("good morning").await?)?;
    let body = request(stage, "good morning")?.body;
    // Claude Code tells its name, and its schema when the model asks for it.
    ensure!(says(&body, "pick_plum"), "its tool is not offered: {body}");
    let told = session.ask(r#"call: pick_plum {"colour":"purple"}"#).await?;
    ended_well(&told)?;
    ensure!(told.text.contains("a purple plum"), "the model was not told: {told:?}");
    let last = told.calls.last().and_then(|call| call.end.as_ref());
    ensure!(last.is_some_and(|end| end.status == ToolStatus::Completed), "the call: {told:?}");
    Ok(())
}

/// Whether the server was asked for one plum.
fn is_picked(messages: &[Value]) -> Result<(), Failure> {
    let calls: Vec<&Value> = messages.iter().filter(|message| message["method"] == "tools/call").collect();
    let one = matches!(&calls[..], [call] if call["params"]["arguments"]["colour"] == "purple");
    ensure!(one, "what the server was asked for: {messages:?}");
    Ok(())
}

pub(super) async fn tools_given(stage: Arc<Stage>) -> Ran {
    let tools_given = vec![stage.agent.tool.to_owned()];
    let mut session = stage.start(AgentSessionConfig { tools: tools_given, ..stage.config() }).await?;
    ended_well(&session.ask("good morning").await?)?;
    let names = tools(&request(&stage, "good morning")?.body);
    ensure!(names.iter().any(|name| name == stage.agent.tool), "{} is not among {names:?}", stage.agent.tool);
    ensure!(!names.iter().any(|name| name.to_lowercase().contains("bash")), "the shell is among {names:?}");
    Ok(Verdict::Pass)
}

pub(super) async fn ephemeral(stage: Arc<Stage>) -> Ran {
    // Without it the conversation is in the home: else this would show nothing.
    for ephemeral in [false, true] {
        let mut session = stage.start(AgentSessionConfig { ephemeral, ..stage.config() }).await?;
        ended_well(&session.ask("remember the purple plum").await?)?;
        let home = session.handle.info().metadata.home;
        within("the kill", session.handle.kill(KillOptions::default())).await??;
        let Some(home) = home else { return Err(session.wrong("it has no home of its own")) };
        let kept = holding(Path::new(&home), "remember the purple plum").map_err(|error| error.to_string())?;
        ensure!(kept.is_empty() == ephemeral, "ephemeral: {ephemeral}, and the prompt is kept in {kept:?}");
    }
    Ok(Verdict::Pass)
}

/// The files below `directory` that hold `text`. One that goes meanwhile holds nothing: the files with the session's keys go
/// after its receipt.
fn holding(directory: &Path, text: &str) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
        if kind.is_dir() {
            found.append(&mut holding(&path, text)?);
        } else if kind.is_file() {
            let contents = match fs::read(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                contents => contents?,
            };
            if contents.windows(text.len()).any(|window| window == text.as_bytes()) {
                found.push(path);
            }
        }
    }
    Ok(found)
}
