//! What people look at: diffs, slash commands, title, plan, sub-agents, live output, cost, tokens, settings in use.
//!
//! Each is shown twice: with a model configuration, in a home of the session's own; and with nothing but the agent's id, in the home of a
//! user who has set the agent up. Both have the clocks that users have.

use std::{collections::HashSet, fs, path::Path, sync::Arc};

use proxy_manager::{
    AgentSandbox, AgentSessionConfig, CostSource, Event, FileDiff, Json, PermissionMode, PriceTable, SlashCommand,
};
use serde_json::{Value, json};

use super::{Ran, answers::ended_well, ensure};
use crate::{
    mock_model::says,
    real_agents::{Failure, Session, Stage, Told, Verdict, agents::Counted, session::within},
};

/// Both sessions.
fn configs(stage: &Stage) -> Result<[AgentSessionConfig; 2], Failure> {
    stage.log_in().map_err(|error| format!("setting the agent up: {error}"))?;
    let permission_mode = PermissionMode::Allow;
    let plain = AgentSessionConfig { permission_mode, ..stage.plain(stage.agent.id) };
    // The user's own is to be in a sandbox of a program that this machine has not.
    let agent_sandbox = (stage.agent.id == "codex-acp").then_some(AgentSandbox::None);
    Ok([stage.config(), AgentSessionConfig { agent_sandbox, ..plain }])
}

/// What a scenario comes to where the agent tells something, or does not.
fn verdict(stage: &Stage, scenario: &str, is_told: bool, session: &Session) -> Ran {
    let untold = stage.agent.untold.iter().find(|(name, _)| *name == scenario).map(|(_, reason)| *reason);
    match (is_told, untold) {
        (true, None) => Ok(Verdict::Pass),
        (false, Some(reason)) => Ok(Verdict::Lacks(reason.to_owned())),
        (true, Some(reason)) => Err(Failure::Wrong(format!("it tells it, and is listed as one of which {reason}"))),
        (false, None) => Err(session.wrong(&format!("nothing is told: {scenario}"))),
    }
}

/// A call of an agent's tool, with the arguments of all agents: each takes the one of them that is its own.
fn call(tool: &str, arguments: &Value) -> String {
    format!("call: {tool} {arguments}")
}

fn prompt_that_makes(agent: &str, path: &Path) -> String {
    let arguments = json!({ "file_path": path, "filePath": path, "path": path, "content": "one\ntwo\n" });
    match agent {
        "codex" | "codex-acp" => {
            let path = path.display();
            format!(
                "shell: apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: {path}\n+one\n+two\n*** End Patch\nEOF\n"
            )
        }
        "gemini" | "qwen" => call("write_file", &arguments),
        "claude-code" | "claude-agent-acp" => call("Write", &arguments),
        _ => call("write", &arguments),
    }
}

fn prompt_that_edits(agent: &str, path: &Path) -> String {
    let arguments = json!({
        "file_path": path, "filePath": path, "path": path, "old_string": "two", "oldString": "two", "new_string": "zwei",
        "newString": "zwei", "instruction": "translate", "edits": [{ "oldText": "two", "newText": "zwei" }],
    });
    match agent {
        "codex" | "codex-acp" => {
            let path = path.display();
            format!(
                "shell: apply_patch <<'EOF'\n*** Begin Patch\n*** Update File: {path}\n@@\n one\n-two\n+zwei\n*** End Patch\nEOF\n"
            )
        }
        "gemini" => call("replace", &arguments),
        "claude-code" | "claude-agent-acp" => call("Edit", &arguments),
        _ => call("edit", &arguments),
    }
}

/// Diffs of a turn.
fn diffs<'a>(session: &'a Session, told: &Told) -> Vec<&'a FileDiff> {
    let calls: HashSet<&str> = told.calls.iter().map(|call| call.start.id.as_str()).collect();
    let diff = |event: &'a Event| match event {
        Event::Diff(diff) if calls.contains(diff.tool_call_id.as_str()) => Some(&**diff),
        _ => None,
    };
    session.seen.iter().filter_map(|envelope| diff(&envelope.event)).collect()
}

/// A file is made, and a line of it is replaced.
pub(super) async fn diff(stage: Arc<Stage>) -> Ran {
    let mut verdict_of_last = None;
    for (at, config) in configs(&stage)?.into_iter().enumerate() {
        let path = stage.work().join(format!("made-{at}.txt"));
        let mut session = stage.start(config).await?;
        let made = session.ask(prompt_that_makes(stage.agent.id, &path)).await?;
        let there = fs::read_to_string(&path).unwrap_or_default();
        ensure!(there == "one\ntwo\n", "the file was not made: {there:?} {made:?}");
        ended_well(&made)?;
        let edited = session.ask(prompt_that_edits(stage.agent.id, &path)).await?;
        let there = fs::read_to_string(&path).unwrap_or_default();
        ensure!(there == "one\nzwei\n", "the file was not edited: {there:?} {edited:?}");
        ended_well(&edited)?;
        let [of_made, of_edited] = [diffs(&session, &made), diffs(&session, &edited)];
        let is_told = !of_made.is_empty() && !of_edited.is_empty();
        if is_told {
            let (made, edited) = (of_made[of_made.len() - 1], of_edited[of_edited.len() - 1]);
            let name = format!("made-{at}.txt");
            ensure!(made.path.ends_with(&name) && edited.path.ends_with(&name), "other paths: {made:?} {edited:?}");
            let new: String = made.hunks.iter().filter_map(|hunk| hunk.new_text.clone()).collect();
            ensure!(new.trim_end() == "one\ntwo" && made.omitted_bytes == 0, "another text: {made:?}");
            let [hunk] = &edited.hunks[..] else { return Err(Failure::Wrong(format!("not one hunk: {edited:?}"))) };
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            let (old, new) = (text(&hunk.old_text), text(&hunk.new_text));
            ensure!(old.contains("two") && new.contains("zwei") && !new.contains("two"), "another change: {edited:?}");
        }
        verdict_of_last = Some(verdict(&stage, "diff", is_told, &session)?);
    }
    verdict_of_last.ok_or_else(|| Failure::Wrong("no session".into()))
}

/// The commands of a session, as they were told last.
fn commands(session: &Session) -> Vec<SlashCommand> {
    session.handle.info().agent_status.commands.unwrap_or_default()
}

/// A command that the agent offers, and of which the model is told something when it is called: its name, and that.
fn known_command(agent: &str) -> Option<(&'static str, &'static str)> {
    match agent {
        "opencode" => Some(("init", "Create or update")),
        "pi" => Some(("greet", "Greet the plum kindly")),
        _ => None,
    }
}

pub(super) async fn slash_commands(stage: Arc<Stage>) -> Ran {
    for place in [stage.work().join(".pi/prompts"), stage.folder().join("base/.pi/agent/prompts")] {
        fs::create_dir_all(&place).map_err(|error| error.to_string())?;
        fs::write(place.join("greet.md"), "---\ndescription: Greets\n---\nGreet $1 kindly\n")
            .map_err(|error| error.to_string())?;
    }
    let mut last = None;
    for config in configs(&stage)? {
        let mut session = stage.start(config).await?;
        ended_well(&session.ask("good morning").await?)?;
        if commands(&session).is_empty() && !stage.agent.leaves_out("commands") {
            session.leave_turn();
            let is_told = |event: &Event| matches!(event, Event::SessionCommands { .. }).then_some(());
            session.until("slash commands, which may come after the turn", is_told).await?;
        }
        let offered = commands(&session);
        ensure!(
            offered.iter().all(|command| !command.name.is_empty() && !command.name.starts_with('/')),
            "{offered:?}"
        );
        if let Some((name, told)) = known_command(stage.agent.id) {
            let known = offered.iter().find(|command| command.name == name);
            ensure!(known.is_some_and(|command| command.description.is_some()), "no {name:?}: {offered:?}");
            ended_well(&session.ask(format!("/{name} \"the plum\"")).await?)?;
            let is_asked = stage.model.requests().iter().any(|request| says(&request.body, told));
            ensure!(is_asked, "the command was not called: the model was not told {told:?}");
        }
        last = Some(verdict(&stage, "commands", !offered.is_empty(), &session)?);
    }
    last.ok_or_else(|| Failure::Wrong("no session".into()))
}

fn title_of(session: &Session) -> Option<String> {
    session.handle.info().agent_status.agent_title
}

/// A title that the agent gives, or that it is given by a command of its own.
pub(super) async fn title(stage: Arc<Stage>) -> Ran {
    let mut last = None;
    for config in configs(&stage)? {
        let mut session = stage.start(config).await?;
        ended_well(&session.ask("good morning").await?)?;
        let given = stage.agent.leaves_out("title");
        if !given && title_of(&session).is_none() {
            let what = "a title, which may come after the turn";
            session.leave_turn();
            session.until(what, |event| matches!(event, Event::SessionTitle { .. }).then_some(())).await?;
        }
        if given {
            let native = session.handle.info().conversation.native_session_id.unwrap_or_default();
            let rename = match stage.agent.id {
                "codex" => {
                    Some(json!({ "method": "thread/name/set", "params": { "threadId": native, "name": "Plums" } }))
                }
                "pi" => Some(json!({ "type": "set_session_name", "name": "Plums" })),
                _ => None,
            };
            ensure!(title_of(&session).is_none(), "it gives a title: {:?}", title_of(&session));
            if let Some(rename) = rename {
                within("it is renamed", session.handle.native(Json::from(&rename))).await??;
                ended_well(&session.ask("and now?").await?)?;
                ensure!(
                    title_of(&session).as_deref() == Some("Plums"),
                    "its name is not told: {:?}",
                    title_of(&session)
                );
            }
        }
        last = Some(verdict(&stage, "title", title_of(&session).is_some() && !given, &session)?);
    }
    last.ok_or_else(|| Failure::Wrong("no session".into()))
}

fn prompt_that_plans(agent: &str) -> Option<String> {
    let steps = |step: fn(usize, &str, &str) -> Value| -> Vec<Value> {
        vec![step(1, "peel the plum", "in_progress"), step(2, "eat the plum", "pending")]
    };
    let todos = |step| json!({ "todos": steps(step) });
    Some(match agent {
        "claude-code" | "claude-agent-acp" => {
            call("TaskCreate", &json!({ "subject": "peel the plum", "description": "with care" }))
        }
        "codex" | "codex-acp" => {
            let plan = json!({ "plan": steps(|_, text, status| json!({ "step": text, "status": status })) });
            call("update_plan", &plan)
        }
        "opencode" | "opencode-acp" => {
            let step =
                |_: usize, text: &str, status: &str| json!({ "content": text, "status": status, "priority": "high" });
            call("todowrite", &todos(step))
        }
        "gemini" => {
            let step = |_: usize, text: &str, status: &str| json!({ "description": text, "status": status });
            call("write_todos", &todos(step))
        }
        "qwen" => {
            let step = |at: usize, text: &str, status: &str| json!({ "id": at.to_string(), "content": text, "status": status });
            call("todo_write", &todos(step))
        }
        _ => return None,
    })
}

/// Claude Code and Codex offer their tool for plans to some models, or where they are told to.
fn with_plans(agent: &str, mut config: AgentSessionConfig) -> AgentSessionConfig {
    match agent {
        "claude-code" | "claude-agent-acp" => {
            config.env.0.insert("CLAUDE_CODE_ENABLE_TODO_TOOLS".into(), "1".into());
        }
        "codex" => config.command.extend(["-c".into(), "tools.update_plan={enabled=true}".into()]),
        _ => {}
    }
    config
}

pub(super) async fn plan(stage: Arc<Stage>) -> Ran {
    let mut last = None;
    for config in configs(&stage)? {
        let mut session = stage.start(with_plans(stage.agent.id, config)).await?;
        let told = session.ask(prompt_that_plans(stage.agent.id).unwrap_or_else(|| "good morning".into())).await?;
        ended_well(&told)?;
        let mut plans = session.seen.iter().filter_map(|envelope| match &envelope.event {
            Event::Plan { entries } => Some(entries),
            _ => None,
        });
        let entries = plans.next_back().cloned().unwrap_or_default();
        if let Some(first) = entries.first() {
            ensure!(first.content == "peel the plum" && !first.status.is_empty(), "another plan: {entries:?}");
        }
        last = Some(verdict(&stage, "plan", !entries.is_empty(), &session)?);
    }
    last.ok_or_else(|| Failure::Wrong("no session".into()))
}

/// The task of a sub-agent is a prompt of the mock's.
fn prompt_that_delegates(agent: &str) -> Option<String> {
    let task = "shell: expr 40 + 2";
    let arguments = json!({
        "description": "count", "prompt": task, "message": task, "subagent_type": "general-purpose", "run_in_background": false,
    });
    Some(match agent {
        "claude-code" | "claude-agent-acp" => call("Agent", &arguments),
        "opencode" => call("task", &json!({ "description": "count", "prompt": task, "subagent_type": "general" })),
        // What a sub-agent asks for would wait for ever.
        "opencode-acp" => {
            call("task", &json!({ "description": "greet", "prompt": "good evening", "subagent_type": "general" }))
        }
        "qwen" => call("agent", &arguments),
        "codex" => call("spawn_agent", &arguments),
        _ => return None,
    })
}

fn text_of_subagents(session: &Session) -> String {
    let text = |event: &'_ Event| match event {
        Event::SubagentText { text, .. } => Some(text.clone()),
        _ => None,
    };
    session.seen.iter().filter_map(|envelope| text(&envelope.event)).collect()
}

pub(super) async fn subagents(stage: Arc<Stage>) -> Ran {
    let mut last = None;
    for config in configs(&stage)? {
        let mut session = stage.start(config).await?;
        let prompt = prompt_that_delegates(stage.agent.id);
        let told = session.ask(prompt.unwrap_or_else(|| "good morning".into())).await?;
        ended_well(&told)?;
        let mut said = text_of_subagents(&session);
        if stage.agent.id == "codex" && !said.contains("done: 42") {
            // It goes on without the turn.
            session.leave_turn();
            let is_said = |event: &Event| {
                if let Event::SubagentText { text, .. } = event {
                    said.push_str(text);
                }
                said.contains("done: 42").then_some(())
            };
            session.until("the sub-agent's answer", is_said).await?;
        }
        let calls: HashSet<&str> = told.calls.iter().map(|call| call.start.id.as_str()).collect();
        let text = text_of_subagents(&session);
        let mut has_call = false;
        for envelope in &session.seen {
            match &envelope.event {
                Event::SubagentText { parent, .. } => {
                    ensure!(calls.contains(parent.as_str()), "text of an unknown call: {parent:?} {told:?}");
                }
                Event::ToolStart(start) => has_call |= start.parent.as_deref().is_some_and(|it| calls.contains(it)),
                _ => {}
            }
        }
        ensure!(text.is_empty() || text.contains("done: 42"), "another text: {text:?}");
        ensure!(!told.text.starts_with("done: 42"), "its text is the answer's: {told:?}");
        last = Some(verdict(&stage, "subagents", !text.is_empty() && has_call, &session)?);
    }
    last.ok_or_else(|| Failure::Wrong("no session".into()))
}

pub(super) async fn live_output(stage: Arc<Stage>) -> Ran {
    let mut last = None;
    for config in configs(&stage)? {
        let mut session = stage.start(config).await?;
        let told = session.ask("shell: sleep 1; echo first; sleep 3; echo second").await?;
        ended_well(&told)?;
        let [call] = told.calls.as_slice() else { return Err(Failure::Wrong(format!("not one call: {told:?}"))) };
        let outputs: Vec<&String> = call.updates.iter().filter_map(|update| update.output.as_ref()).collect();
        let is_live = outputs.iter().any(|output| output.contains("first") && !output.contains("second"));
        last = Some(verdict(&stage, "live output", is_live, &session)?);
    }
    last.ok_or_else(|| Failure::Wrong("no session".into()))
}

/// Its own cost; and where it tells none, one by prices. With a user's settings, which may have prices of the agent's own.
pub(super) async fn cost(stage: Arc<Stage>) -> Ran {
    let [_, config] = configs(&stage)?;
    let mut session = stage.start(config).await?;
    let told = session.ask("one").await?;
    ended_well(&told)?;
    let usage = told.usage.unwrap_or_default();
    let is_told = usage.cost_usd.is_some();
    ensure!(!is_told || usage.cost_source == Some(CostSource::Agent), "another source: {usage:?}");
    let model = session.handle.info().agent_status.current_model.or(session.handle.info().settings.model);
    let model = model.unwrap_or_default();
    let prices = format!("[models.{model:?}]\ninput = 1000\noutput = 1000\n");
    stage.manager.set_prices(PriceTable::parse(&prices).map_err(|error| error.to_string())?);
    let told = session.ask("two").await?;
    ended_well(&told)?;
    let priced = told.usage.unwrap_or_default();
    match (is_told, priced.input_tokens.zip(priced.output_tokens)) {
        (true, _) => ensure!(priced.cost_source == Some(CostSource::Agent), "a price takes its place: {priced:?}"),
        (false, None) => ensure!(priced.cost_usd.is_none(), "a cost of nothing: {priced:?}"),
        (false, Some((input, output))) => {
            let cost = Some((input + output) as f64 / 1000.0);
            let is_right = priced.cost_source == Some(CostSource::Prices) && priced.cost_usd == cost;
            ensure!(is_right, "model {model:?} by prices: {priced:?}");
        }
    }
    verdict(&stage, "cost", is_told, &session)
}

/// Input has all of it, with what came from a cache as a part.
pub(super) async fn input_tokens(stage: Arc<Stage>) -> Ran {
    let mut last = None;
    for config in configs(&stage)? {
        let mut session = stage.start(config).await?;
        let told = session.ask("one").await?;
        ended_well(&told)?;
        if let Some(usage) = told.usage {
            let Some(Counted(input, _, cached, written)) = stage.agent.usage else {
                return Err(Failure::Wrong(format!("it is said to tell none: {usage:?}")));
            };
            let counted = (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens);
            ensure!(counted == (input, cached, written), "counted otherwise: {usage:?}");
            let parts = cached.unwrap_or_default() + written.unwrap_or_default();
            ensure!(input.is_some_and(|input| input > parts), "a part is more than the whole: {usage:?}");
        }
        last = Some(verdict(&stage, "input tokens", told.usage.is_some(), &session)?);
    }
    last.ok_or_else(|| Failure::Wrong("no session".into()))
}

/// Which model, mode and thinking level it tells to be in use, without being asked.
async fn in_use(stage: Arc<Stage>, scenario: &str, value: fn(&Session) -> Option<String>) -> Ran {
    let mut last = None;
    for config in configs(&stage)? {
        let mut session = stage.start(config).await?;
        ended_well(&session.ask("one").await?)?;
        last = Some(verdict(&stage, scenario, value(&session).is_some(), &session)?);
    }
    last.ok_or_else(|| Failure::Wrong("no session".into()))
}

pub(super) async fn model_in_use(stage: Arc<Stage>) -> Ran {
    in_use(stage, "model in use", |session| session.handle.info().agent_status.current_model).await
}

pub(super) async fn mode_in_use(stage: Arc<Stage>) -> Ran {
    in_use(stage, "mode in use", |session| session.handle.info().agent_status.current_mode).await
}

pub(super) async fn thinking_in_use(stage: Arc<Stage>) -> Ran {
    in_use(stage, "thinking in use", |session| session.handle.info().agent_status.current_thinking).await
}
