//! What the model does next: the part that is the same in all dialects.

use std::time::Duration;

use axum::http::StatusCode;
use serde_json::{Map, Value, json};

use super::conversation::{Conversation, Tool, items};

/// Between two events of a slow answer.
const SLOW: Duration = Duration::from_millis(50);
/// The most deltas of a slow answer, and the most bytes of a big one.
const MAX_DELTAS: usize = 10_000;
const MAX_BYTES: usize = 64 * 1024 * 1024;
/// Bytes of one delta of a big answer.
const BIG_DELTA: usize = 1024;

/// The model's next step.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reply {
    /// An answer.
    Turn(Turn),
    /// An HTTP error.
    Refusal(StatusCode),
}

/// An answer. Without a pause and uncut unless the script says so.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Turn {
    /// What it thinks, one delta each.
    pub(super) thinking: Vec<String>,
    /// What it says after that, one delta each.
    pub(super) text: Vec<String>,
    /// The tools that it calls after that.
    pub(super) calls: Vec<Call>,
    /// Between two events.
    pub(super) pause: Option<Duration>,
    /// The connection breaks in mid-stream.
    pub(super) cut: bool,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    /// The tool's name.
    pub(super) tool: String,
    /// Its arguments.
    pub(super) arguments: Value,
}

/// What a prompt asks for.
#[derive(Clone, Debug, PartialEq)]
enum Directive<'a> {
    Think(&'a str),
    Shell(Vec<&'a str>),
    Call(&'a str, Map<String, Value>),
    Slow(usize),
    Big(usize),
    Status(StatusCode, bool),
    Cut(bool),
    Echo,
}

/// Reads a prompt. What is no directive, or none that makes sense, is echoed.
fn parse(prompt: &str) -> Directive<'_> {
    let (word, rest) = prompt.split_once(':').map_or((prompt, ""), |(word, rest)| (word, rest.trim()));
    let number = || rest.parse::<usize>().ok();
    match word {
        "think" => Directive::Think(rest),
        "shell" => Directive::Shell(vec![rest]),
        "parallel" => Directive::Shell(rest.split(" || ").map(str::trim).collect()),
        "call" => {
            let (tool, arguments) = rest.split_once(' ').unwrap_or((rest, "{}"));
            serde_json::from_str(arguments).map_or(Directive::Echo, |arguments| Directive::Call(tool, arguments))
        }
        "slow" => number().map_or(Directive::Echo, |deltas| Directive::Slow(deltas.min(MAX_DELTAS))),
        "big" => number().map_or(Directive::Echo, |bytes| Directive::Big(bytes.min(MAX_BYTES))),
        "status" => {
            let (code, once) = rest.strip_suffix(" once").map_or((rest, false), |code| (code, true));
            let code = code.parse().ok().filter(|code: &StatusCode| code.is_client_error() || code.is_server_error());
            code.map_or(Directive::Echo, |code| Directive::Status(code, once))
        }
        "cut" => Directive::Cut(false),
        "cut once" => Directive::Cut(true),
        _ => Directive::Echo,
    }
}

/// Decides the reply. `first` says that this very request was not made before.
pub(super) fn next(conversation: &Conversation, first: bool) -> Reply {
    let asked = conversation.asked();
    let prompt = asked.prompt.trim();
    if conversation.schema.is_object() {
        return Reply::Turn(say(&fitting(&conversation.schema).to_string()));
    }
    if conversation.is_aside() {
        return Reply::Turn(echo(prompt, &[]));
    }
    let first = first && !conversation.is_continuation();
    let turn = match parse(prompt) {
        Directive::Status(code, once) if first || !once => return Reply::Refusal(code),
        Directive::Cut(once) if first || !once => Turn { cut: true, ..say("the connection breaks before the end") },
        Directive::Think(text) => {
            Turn { thinking: words(&format!("thinking of {text}")), ..echo(prompt, &asked.before) }
        }
        Directive::Shell(commands) if asked.outputs.is_empty() => call(&commands, &conversation.tools),
        // What a search for tools finds is no text.
        Directive::Call(tool, arguments) if asked.outputs.iter().all(|output| output.is_empty()) => {
            call_by_name(tool, arguments, &conversation.tools)
        }
        Directive::Shell(_) | Directive::Call(..) => {
            let first = |output: &&str| printed(output).chars().take(100).collect::<String>();
            say(&format!("done: {}", asked.outputs.iter().map(first).collect::<Vec<_>>().join(" | ")))
        }
        Directive::Slow(deltas) => {
            Turn { text: (1..=deltas).map(|n| format!("{n} ")).collect(), pause: Some(SLOW), ..Turn::default() }
        }
        Directive::Big(bytes) => Turn { text: big(bytes), ..Turn::default() },
        Directive::Status(..) | Directive::Cut(_) | Directive::Echo => echo(prompt, &asked.before),
    };
    Reply::Turn(turn)
}

/// Says the prompt, and those before it that are still without an answer of their own.
fn echo(prompt: &str, before: &[String]) -> Turn {
    let before: String = before.iter().map(|prompt| format!(" (after {prompt})")).collect();
    say(&format!("you said: {prompt}{before}"))
}

/// Calls the agent's shell tool for each of the commands.
fn call(commands: &[&str], tools: &[Tool]) -> Turn {
    let calls: Vec<Call> =
        commands.iter().filter_map(|command| tools.iter().find_map(|tool| shell_call(tool, command))).collect();
    if calls.is_empty() { none("shell", tools) } else { Turn { calls, ..Turn::default() } }
}

fn none(wanted: &str, tools: &[Tool]) -> Turn {
    let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
    say(&format!("no {wanted} among the tools: {}", names.join(", ")))
}

/// Calls the tool whose name ends with the words `name`, with those of the arguments that it takes. Claude Code has to be asked
/// for tools that it only names.
fn call_by_name(name: &str, arguments: Map<String, Value>, tools: &[Tool]) -> Turn {
    // Not `todowrite` for `write`.
    let is_named =
        |tool: &&Tool| tool.name.strip_suffix(name).is_some_and(|before| !before.ends_with(char::is_alphanumeric));
    let search = || tools.iter().find(|tool| tool.name == "ToolSearch");
    let call = match tools.iter().find(is_named) {
        Some(tool) => {
            let takes = |argument: &String| tool.parameters["properties"].get(argument).is_some();
            let arguments = arguments.into_iter().filter(|(argument, _)| takes(argument)).collect();
            Call { tool: tool.name.clone(), arguments }
        }
        None => match search() {
            Some(search) => Call { tool: search.name.clone(), arguments: json!({ "query": name }) },
            None => return none(name, tools),
        },
    };
    Turn { calls: vec![call], ..Turn::default() }
}

/// The call that runs `command`, if `tool` is a shell tool that we know.
fn shell_call(tool: &Tool, command: &str) -> Option<Call> {
    let mut arguments = match tool.name.as_str() {
        // codex, by its model and settings
        "exec_command" => json!({ "cmd": command }),
        "shell" => json!({ "command": ["bash", "-c", command] }),
        // codex, Claude Code, opencode and pi, gemini
        "shell_command" | "Bash" | "bash" | "run_shell_command" => json!({ "command": command }),
        _ => return None,
    };
    if tool.parameters["properties"]["description"].is_object() {
        arguments["description"] = json!("a command of the script");
    }
    Some(Call { tool: tool.name.clone(), arguments })
}

/// What the command printed, without what codex, gemini and qwen put around it.
fn printed(output: &str) -> &str {
    if let Some(gemini) = output.strip_prefix("<untrusted_context>\nOutput: ") {
        return gemini.split("\nProcess Group PGID: ").next().unwrap_or_default();
    }
    if let Some((_, qwen)) = output.strip_prefix("Command: ").and_then(|rest| rest.split_once("\nOutput: ")) {
        return qwen.split("\nError: ").next().unwrap_or_default();
    }
    let codex = ["Chunk ID: ", "Exit code: "].iter().any(|start| output.starts_with(start));
    output.split_once("\nOutput:\n").filter(|_| codex).map_or(output, |(_, printed)| printed)
}

/// A value that fits a schema, as far as the schemas of agents go: its required members, and in them as little as may be.
fn fitting(schema: &Value) -> Value {
    match schema["type"].as_str() {
        Some("object") => items(&schema["required"])
            .iter()
            .filter_map(Value::as_str)
            .map(|name| (name.to_owned(), fitting(&schema["properties"][name])))
            .collect(),
        Some("array") => json!([]),
        Some("boolean") => json!(false),
        Some("number" | "integer") => json!(0),
        _ => schema["enum"].get(0).cloned().unwrap_or_else(|| json!("mock")),
    }
}

fn say(text: &str) -> Turn {
    Turn { text: words(text), ..Turn::default() }
}

/// Splits `text` after its spaces.
fn words(text: &str) -> Vec<String> {
    text.split_inclusive(' ').map(str::to_owned).collect()
}

/// A text of so many bytes whose lines are numbered, so that a gap shows.
fn big(bytes: usize) -> Vec<String> {
    let mut text = String::with_capacity(bytes + 8);
    for line in 0.. {
        if text.len() >= bytes {
            break;
        }
        text += &format!("{line:07}\n");
    }
    text.truncate(bytes);
    // It is ASCII: any cut is one between characters.
    text.as_bytes().chunks(BIG_DELTA).map(|delta| String::from_utf8_lossy(delta).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::conversation::Entry, *};

    fn tool(name: &str, described: bool) -> Tool {
        let properties = if described { json!({ "description": {} }) } else { json!({}) };
        Tool { name: name.into(), parameters: json!({ "properties": properties }) }
    }

    fn conversation(entries: &[Entry], tool: Tool) -> Conversation {
        Conversation { entries: entries.to_vec(), tools: vec![tool], schema: Value::Null }
    }

    fn asked(entries: &[Entry]) -> Turn {
        turn(next(&conversation(entries, tool("bash", false)), true))
    }

    fn turn(reply: Reply) -> Turn {
        let Reply::Turn(turn) = reply else { panic!("an error: {reply:?}") };
        turn
    }

    fn user(text: &str) -> Entry {
        Entry::User(vec![text.into()])
    }

    #[test]
    fn a_prompt_without_a_directive_is_echoed() {
        assert_eq!(asked(&[user("good morning")]).text, ["you ", "said: ", "good ", "morning"]);
        for odd in ["slow: many", "big: -1", "status: 200", "status: x once", "cut off", "note: this"] {
            assert_eq!(asked(&[user(odd)]), say(&format!("you said: {odd}")));
        }
    }

    #[test]
    fn each_agents_shell_is_called_in_its_own_form() {
        for (tool, arguments) in [
            (tool("exec_command", false), json!({ "cmd": "ls -l" })),
            (tool("shell", false), json!({ "command": ["bash", "-c", "ls -l"] })),
            (tool("shell_command", false), json!({ "command": "ls -l" })),
            (tool("bash", false), json!({ "command": "ls -l" })),
            (tool("Bash", true), json!({ "command": "ls -l", "description": "a command of the script" })),
            (tool("run_shell_command", true), json!({ "command": "ls -l", "description": "a command of the script" })),
        ] {
            let called = turn(next(&conversation(&[user("shell: ls -l")], tool.clone()), true));
            assert_eq!(called.calls, [Call { tool: tool.name, arguments }]);
        }
        let none = turn(next(&conversation(&[user("shell: ls")], tool("edit", true)), true));
        assert_eq!(none, say("no shell among the tools: edit"));
    }

    #[test]
    fn a_tool_is_called_by_the_end_of_its_name_with_what_it_takes() {
        let parameters = json!({ "properties": { "colour": {} } });
        let offered = Tool { name: "mcp__orchard__pick_plum".into(), parameters };
        let prompt = user(r#"call: pick_plum {"colour": "red", "size": 1}"#);
        let called = |tool: &Tool| turn(next(&conversation(std::slice::from_ref(&prompt), tool.clone()), true)).calls;
        assert_eq!(called(&offered), [Call { tool: offered.name.clone(), arguments: json!({ "colour": "red" }) }]);
        assert_eq!(called(&tool("handpick_plum", false)), []);
        let search = tool("ToolSearch", false);
        let searched = Call { tool: "ToolSearch".into(), arguments: json!({ "query": "pick_plum" }) };
        assert_eq!(called(&search), [searched]);
        let entries = |output: &str| [prompt.clone(), Entry::Call, Entry::Output(output.into())];
        let found = turn(next(&conversation(&entries(""), offered.clone()), true));
        assert_eq!(found.calls[0].tool, offered.name);
        assert_eq!(turn(next(&conversation(&entries("a plum"), offered), true)), say("done: a plum"));
        assert_eq!(asked(&[user("call: pick_plum")]), say("no pick_plum among the tools: bash"));
        assert_eq!(asked(&[user("call: me later")]), say("you said: call: me later"));
    }

    #[test]
    fn the_output_of_a_tool_is_told_once_it_is_there() {
        let codex = "Chunk ID: 1\nProcess exited with code 0\nOutput:\nhi\n";
        let gemini = "<untrusted_context>\nOutput: hi\nProcess Group PGID: 7\n</untrusted_context>";
        let long = "x".repeat(500);
        for (output, told) in
            [("b\nOutput:\nc", "b\nOutput:\nc"), (codex, "hi\n"), (gemini, "hi"), (&long, &long[..100])]
        {
            let entries = [user("shell: ls"), Entry::Call, Entry::Output(output.into())];
            assert_eq!(asked(&entries), say(&format!("done: {told}")));
        }
    }

    #[test]
    fn parallel_commands_are_calls_of_one_answer() {
        let mut entries = vec![user("parallel: echo a || echo b"), Entry::Call, Entry::Call];
        let calls = asked(&entries[..1]).calls;
        let commands: Vec<_> = calls.iter().map(|call| call.arguments["command"].as_str()).collect();
        assert_eq!(commands, [Some("echo a"), Some("echo b")]);
        entries.extend([Entry::Output("a".into()), Entry::Output("b".into())]);
        assert_eq!(asked(&entries), say("done: a | b"));
    }

    #[test]
    fn think_slow_and_big_have_their_shapes() {
        let think = asked(&[user("think: cheese")]);
        assert_eq!(
            (think.thinking.concat().as_str(), think.text.concat().as_str()),
            ("thinking of cheese", "you said: think: cheese")
        );
        let slow = asked(&[user("slow: 3")]);
        assert_eq!((slow.text, slow.pause), (vec!["1 ".into(), "2 ".into(), "3 ".into()], Some(SLOW)));
        for bytes in [0, 1, 8, 1024, 5000] {
            let text = asked(&[user(&format!("big: {bytes}"))]).text.concat();
            assert_eq!(text.len(), bytes);
            assert!(text.lines().enumerate().all(|(at, line)| format!("{at:07}").starts_with(line)), "{text}");
        }
    }

    #[test]
    fn failures_are_for_good_or_for_once() {
        let reply = |prompt, first| next(&conversation(&[user(prompt)], tool("bash", false)), first);
        assert_eq!(reply("status: 400", false), Reply::Refusal(StatusCode::BAD_REQUEST));
        assert_eq!(reply("status: 429 once", true), Reply::Refusal(StatusCode::TOO_MANY_REQUESTS));
        assert_eq!(turn(reply("status: 429 once", false)), say("you said: status: 429 once"));
        let cut = |prompt, first| turn(reply(prompt, first)).cut;
        assert!(cut("cut", false) && cut("cut once", true) && !cut("cut once", false));
    }

    #[test]
    fn a_steered_answer_mentions_both_prompts() {
        assert_eq!(asked(&[user("slow: 9"), Entry::Said, user("faster")]), say("you said: faster (after slow: 9)"));
        let entries = [user("shell: ls"), Entry::Call, Entry::Output("a".into()), user("stop")];
        assert_eq!(asked(&entries), say("you said: stop (after shell: ls)"));
        assert_eq!(asked(&[user("one"), Entry::Said, user("two")]), say("you said: two"));
    }

    #[test]
    fn an_aside_follows_no_directive_and_fits_its_schema() {
        let title = Conversation { entries: vec![user("title?"), user("status: 500")], ..Conversation::default() };
        assert_eq!(turn(next(&title, true)), say("you said: status: 500"));
        let schema = json!({ "type": "object", "required": ["title", "sure", "kind"], "properties": {
            "title": { "type": "string" }, "sure": { "type": "boolean" }, "kind": { "enum": ["a", "b"] },
            "more": { "type": "array" },
        } });
        let text = turn(next(&Conversation { schema, ..title }, true)).text.concat();
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value, json!({ "title": "mock", "sure": false, "kind": "a" }));
    }
}
