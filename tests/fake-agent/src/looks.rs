//! Steps that show what people look at: diffs, plans, slash commands, titles, sub-agents, live output, pictures, long and hostile texts.

use std::{
    io::Write,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    agent::{Agent, Flow},
    samples::{AFTER, BEFORE, HOSTILE, MARKDOWN, PICTURE},
    script::Look,
};

/// Characters in a piece of a long text.
const PIECE: usize = 24;
/// Time between two pieces of a long text.
const PACE: Duration = Duration::from_millis(10);
/// Bytes in the long line of hostile texts.
const LONG_LINE: usize = 5 * 1024 * 1024;

impl<W: Write> Agent<W> {
    /// Shows one of them.
    pub(crate) fn look_like(&mut self, look: &Look) -> Flow {
        match look {
            Look::Edit(path) => self.change(path, Some(BEFORE), AFTER, "edit"),
            Look::Create(path) => self.change(path, None, AFTER, "edit"),
            Look::Delete(path) => self.change(path, Some(BEFORE), "", "delete"),
            Look::PlanOf { done, all } => self.plan_of(*done, *all),
            Look::Commands(names) => self.commands(names),
            Look::Title(title) => self.raw_update(json!({ "sessionUpdate": "session_info_update", "title": title })),
            Look::SwitchMode(mode) => {
                self.setup().mode.clone_from(mode);
                self.raw_update(json!({ "sessionUpdate": "current_mode_update", "currentModeId": mode }))
            }
            Look::SwitchModel(model) => {
                self.setup().model.clone_from(model);
                let options = self.setup().options();
                self.raw_update(json!({ "sessionUpdate": "config_option_update", "configOptions": options }))
            }
            Look::SubAgent(text) => self.sub_agent(text),
            Look::Live { count, pause } => self.live(*count, *pause),
            Look::Image => self.chunk(
                "agent_message_chunk",
                &json!({ "type": "image", "mimeType": "image/png", "data": PICTURE }),
                None,
            ),
            Look::Markdown => self.pieces(MARKDOWN),
            Look::Hostile => self.hostile(),
            Look::LongLine => self.text(&format!("{}\n", "x".repeat(LONG_LINE))),
        }
    }

    fn chunk(&mut self, kind: &str, content: &Value, parent: Option<&str>) -> Flow {
        let mut update = json!({ "sessionUpdate": kind, "content": content });
        if let Some(parent) = parent {
            update["_meta"] = json!({ "claudeCode": { "parentToolUseId": parent } });
        }
        self.raw_update(update)
    }

    fn text(&mut self, text: &str) -> Flow {
        self.chunk("agent_message_chunk", &json!({ "type": "text", "text": text }), None)
    }

    /// A text as a model writes it: in pieces.
    fn pieces(&mut self, text: &str) -> Flow {
        let mut rest = text;
        while !rest.is_empty() && !self.is_cancelled() {
            let at = rest.char_indices().nth(PIECE).map_or(rest.len(), |(at, _)| at);
            let (piece, after) = rest.split_at(at);
            self.text(piece)?;
            rest = after;
            self.pause(PACE)?;
        }
        Ok(())
    }

    /// A tool call that changes a file. (It changes none.)
    fn change(&mut self, path: &str, old: Option<&str>, new: &str, kind: &str) -> Flow {
        let path = if path.starts_with('/') { path.to_owned() } else { format!("{}/{path}", self.directory()?) };
        let id = self.mint_call();
        let diff = json!([{ "type": "diff", "path": path, "oldText": old, "newText": new }]);
        self.raw_update(json!({
            "sessionUpdate": "tool_call", "toolCallId": id, "title": format!("{kind} {path}"), "kind": kind, "name": kind,
            "status": "in_progress", "rawInput": { "path": path }, "content": diff, "locations": [{ "path": path }],
        }))?;
        self.raw_update(json!({
            "sessionUpdate": "tool_call_update", "toolCallId": id, "status": "completed", "content": diff,
        }))
    }

    fn plan_of(&mut self, done: usize, all: usize) -> Flow {
        let entry = |at: usize| {
            let status = match at {
                at if at < done => "completed",
                at if at == done => "in_progress",
                _ => "pending",
            };
            let priority = ["high", "medium", "low"][at % 3];
            json!({ "content": format!("step {}", at + 1), "status": status, "priority": priority })
        };
        self.raw_update(json!({ "sessionUpdate": "plan", "entries": (0..all).map(entry).collect::<Vec<_>>() }))
    }

    /// Offers slash commands: those that are named, or some.
    fn commands(&mut self, names: &[String]) -> Flow {
        let named: Vec<Value> = match names {
            [] => vec![
                json!({ "name": "review", "description": "Review the changes", "input": { "hint": "files or a branch" } }),
                json!({ "name": "test", "description": "Run the tests", "input": { "hint": "filter" } }),
                json!({ "name": "compact", "description": "Shorten the conversation" }),
            ],
            names => names.iter().map(|name| json!({ "name": name, "description": format!("Does {name}") })).collect(),
        };
        self.raw_update(json!({ "sessionUpdate": "available_commands_update", "availableCommands": named }))
    }

    /// A sub-agent that thinks, says `text` and calls a tool.
    fn sub_agent(&mut self, text: &str) -> Flow {
        let (task, call) = (self.mint_call(), self.mint_call());
        self.raw_update(json!({
            "sessionUpdate": "tool_call", "toolCallId": task, "title": format!("Task {text}"), "kind": "think",
            "name": "Task", "status": "in_progress", "rawInput": { "prompt": text },
        }))?;
        let parent = Some(task.as_str());
        self.chunk("agent_thought_chunk", &json!({ "type": "text", "text": "I am asked to look. " }), parent)?;
        let meta = json!({ "claudeCode": { "parentToolUseId": task, "toolName": "Read" } });
        self.raw_update(json!({
            "sessionUpdate": "tool_call", "toolCallId": call, "title": "Read src/main.rs", "kind": "read", "status": "in_progress",
            "rawInput": { "path": "src/main.rs" }, "_meta": meta,
        }))?;
        self.raw_update(json!({
            "sessionUpdate": "tool_call_update", "toolCallId": call, "status": "completed", "_meta": meta,
            "content": [{ "type": "content", "content": { "type": "text", "text": BEFORE } }],
        }))?;
        for word in text.split_inclusive(' ') {
            self.chunk("agent_message_chunk", &json!({ "type": "text", "text": word }), parent)?;
        }
        self.raw_update(json!({
            "sessionUpdate": "tool_call_update", "toolCallId": task, "status": "completed",
            "content": [{ "type": "content", "content": { "type": "text", "text": format!("It found: {text}") } }],
        }))
    }

    /// A tool call whose output grows by a line each time.
    fn live(&mut self, count: u32, pause: Duration) -> Flow {
        let id = self.mint_call();
        self.raw_update(json!({
            "sessionUpdate": "tool_call", "toolCallId": id, "title": "make", "kind": "execute", "name": "shell",
            "status": "in_progress", "rawInput": { "command": "make" },
        }))?;
        let mut output = String::new();
        for line in 1..=count {
            if self.is_cancelled() {
                break;
            }
            output.push_str(&format!("line {line} of {count}\n"));
            let content = json!([{ "type": "content", "content": { "type": "text", "text": output } }]);
            self.raw_update(json!({ "sessionUpdate": "tool_call_update", "toolCallId": id, "content": content }))?;
            self.pause(pause)?;
        }
        let content = json!([{ "type": "content", "content": { "type": "text", "text": output } }]);
        self.raw_update(json!({
            "sessionUpdate": "tool_call_update", "toolCallId": id, "status": "completed", "content": content,
        }))
    }

    /// Hostile texts wherever an agent's text is shown.
    fn hostile(&mut self) -> Flow {
        for text in HOSTILE {
            self.text(&format!("{text}\n\n"))?;
            self.chunk("agent_thought_chunk", &json!({ "type": "text", "text": format!("{text}\n") }), None)?;
            let id = self.mint_call();
            let content = json!([
                { "type": "content", "content": { "type": "text", "text": text } },
                { "type": "diff", "path": format!("/tmp/{text}"), "oldText": text, "newText": format!("{text} {text}") },
            ]);
            self.raw_update(json!({
                "sessionUpdate": "tool_call", "toolCallId": id, "title": text, "kind": "execute", "name": text,
                "status": "in_progress", "rawInput": { "command": text },
            }))?;
            self.raw_update(json!({
                "sessionUpdate": "tool_call_update", "toolCallId": id, "status": "completed", "content": content,
            }))?;
            self.raw_update(json!({ "sessionUpdate": "session_info_update", "title": text }))?;
        }
        let entries: Vec<Value> =
            HOSTILE.iter().map(|text| json!({ "content": text, "status": "pending", "priority": "high" })).collect();
        self.raw_update(json!({ "sessionUpdate": "plan", "entries": entries }))?;
        let commands: Vec<Value> = HOSTILE
            .iter()
            .map(|text| json!({ "name": text, "description": text, "input": { "hint": text } }))
            .collect();
        self.raw_update(json!({ "sessionUpdate": "available_commands_update", "availableCommands": commands }))
    }

    /// Waits, unless cancelled.
    fn pause(&mut self, time: Duration) -> Flow {
        self.until_cancelled(Instant::now().checked_add(time))
    }
}
