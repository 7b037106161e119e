use ipc_protocol::{
    AgentSessionConfig, PermissionAnswer, PermissionMode, PermissionRule, Prompt, ResolvedBy, RuleDecision, WireError,
    terminal::TerminalConfig,
};
use serde_json::json;

use super::*;
use crate::{Adapter, AdapterSetup};

const CLAUDE: &str = include_str!("claude.jsonl");
const CODEX: &str = include_str!("codex.jsonl");
const GEMINI: &str = include_str!("gemini.jsonl");

fn adapter(family: &str, mode: PermissionMode, rules: Vec<PermissionRule>) -> Box<dyn Adapter> {
    let mut config = AgentSessionConfig { permission_mode: mode, ..AgentSessionConfig::new("x") };
    config.terminal = Some(TerminalConfig::default());
    config.permissions.rules = rules;
    let setup = AdapterSetup {
        config,
        agent: "x".to_owned(),
        protocol_config: json!({ "config": family }),
        fresh_id: "fresh".to_owned(),
        resume: None,
        endpoint: None,
        directories: std::collections::BTreeMap::new(),
    };
    crate::terminal::make(setup).expect("made")
}

/// Words for an action: its kind and the parts that matter here.
fn words(action: &Action) -> String {
    match action {
        Action::NativeSession(id) => format!("conversation {}", &id[..8]),
        Action::OpenHook { id } => format!("open {id}"),
        Action::AnswerHook { id, answer } => format!("answer {id} {}", String::from_utf8_lossy(answer)),
        Action::Event(Event::TerminalPrompted { text }) => format!("prompted {text}"),
        Action::Event(Event::Text { text }) => format!("text {text:?}"),
        Action::Event(Event::ToolStart(start)) => format!("start {} {} {}", start.id, start.kind, start.title),
        Action::Event(Event::ToolEnd(end)) => format!("end {} {:?} {:?}", end.id, end.status, end.output),
        Action::Event(Event::Complete { .. }) => "complete".to_owned(),
        Action::Event(Event::PermissionRequested(request)) => {
            let options: Vec<&str> = request.options.iter().map(|option| &*option.id).collect();
            let call = request.tool_call_id.as_deref().unwrap_or("?");
            let command = request.command.as_deref().unwrap_or("?");
            format!("requested {} for {call}: {command:?} {}", request.id, options.join("|"))
        }
        Action::Event(Event::PermissionResolved { id, option, by }) => {
            format!("resolved {id} {} {by:?}", option.as_deref().unwrap_or("-"))
        }
        other => format!("{other:?}"),
    }
}

/// Feeds the lines, in pieces, and returns what comes of them.
fn told(adapter: &mut dyn Adapter, lines: &str) -> Vec<String> {
    let mut out = Vec::new();
    lines.as_bytes().chunks(100).for_each(|piece| adapter.stdout(piece, &mut out));
    out.iter().map(words).collect()
}

fn answered(adapter: &mut dyn Adapter, id: &str, answer: &PermissionAnswer) -> Vec<String> {
    let mut out = Vec::new();
    adapter.permission(id, answer, ResolvedBy::User { name: None }, &mut out).expect("open");
    out.iter().map(words).collect()
}

/// The lines up to the first that holds `text`.
fn until<'a>(lines: &'a str, text: &str) -> (&'a str, &'a str) {
    let at = lines.find(text).expect("there");
    let end = at + lines[at..].find('\n').expect("a line") + 1;
    lines.split_at(end)
}

#[test]
fn claude_tells_and_asks_while_its_dialog_is_shown() {
    let mut adapter = adapter("claude", PermissionMode::Ask, Vec::new());
    assert_eq!(
        told(&mut *adapter, CLAUDE),
        [
            "conversation 0a97f14d",
            "prompted shell: touch yes",
            "start toolu_1_0 execute touch yes",
            "open 12473",
            "requested permission-1 for toolu_1_0: \"touch yes\" allow|reject|rejectAndStop",
            // Answered on the screen.
            "answer 12473 ",
            "resolved permission-1 - Terminal",
            "end toolu_1_0 Completed \"\"",
            "text \"done: (Bash completed with no output)\\n\"",
            "complete",
            "prompted shell: touch esc",
            "start toolu_3_0 execute touch esc",
            "open 12639",
            "requested permission-2 for toolu_3_0: \"touch esc\" allow|reject|rejectAndStop",
            // Neither an end nor a stop is reported of what was refused there.
            "answer 12639 ",
            "resolved permission-2 - Terminal",
            "end toolu_3_0 Failed \"\"",
            "prompted shell: false",
            "start toolu_4_0 execute false",
            "end toolu_4_0 Failed \"Exit code 1\"",
            "complete",
            "conversation fd772058",
        ]
    );
}

#[test]
fn a_request_of_claude_is_answered_here() {
    let (asked, _) = until(CLAUDE, "12473");
    let decision = |answer: &PermissionAnswer| {
        let mut adapter = adapter("claude", PermissionMode::Ask, Vec::new());
        told(&mut *adapter, asked);
        answered(&mut *adapter, "permission-1", answer)
    };
    let allowed = decision(&PermissionAnswer::Allow);
    let text: Value = serde_json::from_str(allowed[0].strip_prefix("answer 12473 ").expect("its hook")).expect("JSON");
    let output = json!({ "hookEventName": "PermissionRequest", "decision": { "behavior": "allow" } });
    assert_eq!(text, json!({ "hookSpecificOutput": output }));
    assert_eq!(allowed[1], "resolved permission-1 allow User { name: None }");
    let denied = decision(&PermissionAnswer::DenyWith { message: "not now".into() });
    assert!(denied[0].contains(r#""behavior":"deny""#) && denied[0].contains(r#""message":"not now""#), "{denied:?}");
    let stopped = decision(&PermissionAnswer::Option("rejectAndStop".into()));
    assert!(stopped[0].contains(r#""interrupt":true"#), "{stopped:?}");
    assert_eq!(decision(&PermissionAnswer::Cancelled)[0], "answer 12473 ", "it is left to the screen");
    let mut adapter = adapter("claude", PermissionMode::Ask, Vec::new());
    told(&mut *adapter, asked);
    let other = PermissionAnswer::AllowWith { input: Json::from(&json!({ "command": "ls" })) };
    let refused = adapter.permission("permission-1", &other, ResolvedBy::Abort, &mut Vec::new());
    assert!(matches!(refused, Err(WireError::Unsupported { .. })), "{refused:?}");
}

#[test]
fn a_request_ends_with_its_dialog_and_with_its_hook() {
    let (asked, _) = until(CLAUDE, "12473");
    let done = ["answer 12473 ", "resolved permission-1 - Terminal"];
    let ended = |work: &dyn Fn(&mut dyn Adapter, &mut Vec<Action>)| {
        let mut adapter = adapter("claude", PermissionMode::Ask, Vec::new());
        told(&mut *adapter, asked);
        let mut out = Vec::new();
        work(&mut *adapter, &mut out);
        out.iter().map(words).collect::<Vec<_>>()
    };
    let statuses = |statuses: &'static [&str]| {
        move |adapter: &mut dyn Adapter, out: &mut Vec<Action>| {
            statuses.iter().for_each(|status| adapter.terminal_status(status, out));
        }
    };
    assert_eq!(ended(&statuses(&["working", "blocked"])), [""; 0]);
    assert_eq!(ended(&statuses(&["blocked", "working"])), done);
    assert_eq!(ended(&|adapter, out| adapter.hook_ended(12473, out)), done);
    assert_eq!(ended(&|adapter, out| adapter.hook_ended(1, out)), [""; 0]);
    let end = ended(&|adapter, out| adapter.finish(out));
    assert_eq!(end, ["resolved permission-1 - Abort", "end toolu_1_0 Failed \"\"", "complete"]);
}

#[test]
fn codex_and_gemini_get_the_policys_decision_at_once() {
    let mut ask = adapter("codex", PermissionMode::Ask, Vec::new());
    assert_eq!(
        told(&mut *ask, CODEX),
        [
            "conversation 01a20b8c",
            "prompted say hi",
            "text \"you said: say hi\"",
            "complete",
            "prompted shell: touch a",
            "open 1",
            "start call_26_0 execute touch a",
            "answer 1 ",
            "open 2",
            // Its own dialog comes after the hook.
            "answer 2 ",
            "end call_26_0 Completed \"\"",
            "text \"done: \"",
            "complete",
        ]
    );
    let (called, rest) = until(CODEX, "\"ask\":1");
    let (dialog, _) = until(rest, "\"ask\":2");
    let mut deny = adapter("codex", PermissionMode::Deny, Vec::new());
    let denied = told(&mut *deny, called);
    assert_eq!(denied.last().expect("asked"), "requested permission-1 for call_26_0: \"touch a\" allow|reject");
    let denied = answered(&mut *deny, "permission-1", &PermissionAnswer::Deny);
    assert!(denied[0].contains(r#""permissionDecision":"deny""#), "{denied:?}");
    let rule =
        PermissionRule { tool: None, command: Some("touch *".into()), path: None, decision: RuleDecision::Allow };
    let mut allow = adapter("codex", PermissionMode::Ask, vec![rule]);
    assert_eq!(told(&mut *allow, called).last().expect("told"), "answer 1 ", "a call that is not denied goes on");
    let asked = told(&mut *allow, dialog);
    assert_eq!(asked[1], "requested permission-1 for call_26_0: \"touch a\" allow|reject");
    let allowed = answered(&mut *allow, "permission-1", &PermissionAnswer::Allow);
    assert!(allowed[0].contains(r#""behavior":"allow""#), "{allowed:?}");

    let mut ask = adapter("gemini", PermissionMode::Ask, Vec::new());
    assert_eq!(
        told(&mut *ask, GEMINI),
        [
            "conversation 2e90a4e9",
            "prompted shell: touch a",
            "open 1",
            "start call-1 execute touch a",
            "answer 1 ",
            "end call-1 Completed \"Output: (empty)\\nProcess Group PGID: 10395\"",
            "text \"done: (empty)\"",
            "complete",
            "conversation 2f0096d0",
        ]
    );
    let mut deny = adapter("gemini", PermissionMode::ReadOnly, Vec::new());
    told(&mut *deny, until(GEMINI, "\"ask\":1").0);
    let denied = answered(&mut *deny, "permission-1", &PermissionAnswer::Deny);
    assert!(denied[0].contains(r#""decision":"deny""#), "{denied:?}");
}

#[test]
fn what_is_no_report_or_too_long_leaves_the_agent_alone() {
    let mut adapter = adapter("claude", PermissionMode::Ask, Vec::new());
    for line in ["\n", "no report\n", "{\"report\":7}\n", "{\"ask\":\"x\",\"report\":{}}\n"] {
        assert_eq!(told(&mut *adapter, line), [""; 0], "{line:?}");
    }
    assert_eq!(told(&mut *adapter, "{\"ask\":3,\"report\":{\"x\":1}}\n"), ["open 3", "answer 3 "]);
    let long = format!("{{\"ask\":77,\"report\":{{\"x\":\"{}\"}}}}\n", "x".repeat(5 << 20));
    let lost = told(&mut *adapter, &long);
    assert_eq!(lost[..2], ["open 77", "answer 77 "]);
    assert!(lost.len() == 3 && lost[2].contains("left out"), "{lost:?}");
    let (first, _) = until(CLAUDE, "SessionStart");
    assert_eq!(told(&mut *adapter, first), ["conversation 0a97f14d"], "the next line is whole again");
    let mut out = Vec::new();
    adapter.prompt(&Prompt::from("hi"), &mut out).expect("typed");
    assert_eq!(out, [Action::Write(b"hi".to_vec())]);
}

/// Conversation with one turn of the machine (`say machine`) and four of the screen, of which the third was interrupted.
const CONVERSATION: &str = include_str!("claude-conversation.jsonl");
const ID: &str = "01a20bb7-2c0e-72f8-be81-4ea2211239fd";
const PATH: &str = "/h/.claude/projects/-w/01a20bb7-2c0e-72f8-be81-4ea2211239fd.jsonl";

/// Feeds a report of that conversation, with a file that has `len` bytes by now.
fn reported(
    adapter: &mut dyn Adapter,
    event: &str,
    prompt: &str,
    more: &Value,
    read: &mut u64,
    len: u64,
) -> Vec<String> {
    let mut report = json!({
        "session_id": ID, "transcript_path": PATH, "prompt_id": prompt, "hook_event_name": event,
    });
    report.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let mut out = Vec::new();
    adapter.stdout(format!("{}\n", json!({ "report": report })).as_bytes(), &mut out);
    performed(adapter, out, read, len)
}

/// Reads what the actions ask for, and returns words for the others.
fn performed(adapter: &mut dyn Adapter, actions: Vec<Action>, read: &mut u64, len: u64) -> Vec<String> {
    let mut actions = VecDeque::from(actions);
    let mut told = Vec::new();
    while let Some(action) = actions.pop_front() {
        if let Action::ReadFile { path, offset } = &action {
            assert_eq!(path, PATH);
            let from = offset.unwrap_or(len);
            let until = len.min(from + 1000);
            let bytes =
                &CONVERSATION.as_bytes()[usize::try_from(from).expect("short")..usize::try_from(until).expect("short")];
            *read = until;
            let mut out = Vec::new();
            adapter.file_read(until, bytes, &mut out);
            out.into_iter().rev().for_each(|action| actions.push_front(action));
        } else {
            told.push(match &action {
                Action::Event(Event::Usage(usage)) => {
                    format!("usage {:?} {:?}", usage.input_tokens.expect("known"), usage.output_tokens.expect("known"))
                }
                Action::Event(Event::Complete { stop_reason, .. }) => format!("complete {stop_reason:?}"),
                action => words(action),
            });
        }
    }
    told
}

#[test]
fn tokens_results_and_ends_come_from_the_conversation_file() {
    let mut config = AgentSessionConfig::new("x");
    config.terminal = Some(TerminalConfig::default());
    let setup = AdapterSetup {
        config,
        agent: "x".to_owned(),
        protocol_config: json!({ "config": "claude" }),
        fresh_id: "fresh".to_owned(),
        resume: None,
        endpoint: None,
        directories: [("CLAUDE_CONFIG_DIR".to_owned(), "/h/.claude".to_owned())].into(),
    };
    let mut adapter = crate::terminal::make(setup).expect("made");
    let adapter = &mut *adapter;
    let place = |text: &str| {
        let at = CONVERSATION.find(text).unwrap_or_else(|| panic!("{text}"));
        u64::try_from(at + CONVERSATION[at..].find('\n').expect("a line") + 1).expect("short")
    };
    let whole = CONVERSATION.len() as u64;
    let mut read = 0;
    // The turn of the machine is there already.
    let begun = place("msg_80");
    assert_eq!(reported(adapter, "SessionStart", "", &json!({}), &mut read, begun), ["conversation 01a20bb7"]);
    assert_eq!(read, begun);
    let (one, two, three, four) = (
        "df484b39-17d5-413c-a9d6-c5ce8b5ef1d2",
        "7ece392e-0636-4e32-8e28-81b18a884178",
        "cae99660-337d-4863-9fc8-cfa790f1d1a3",
        "c7552319-5fc0-4c0a-a642-e38e53f8e26e",
    );
    let call = |id: &str| json!({ "tool_name": "Bash", "tool_input": { "command": "echo one" }, "tool_use_id": id });
    reported(adapter, "UserPromptSubmit", one, &json!({ "prompt": "shell: echo one" }), &mut read, begun);
    reported(adapter, "PreToolUse", one, &call("toolu_81_0"), &mut read, begun);
    let made = reported(adapter, "PostToolUse", one, &call("toolu_81_0"), &mut read, place("\"toolu_81_0\",\"type\""));
    assert_eq!(made, ["end toolu_81_0 Completed \"\"", "usage 1417 23"]);
    let now = Instant::now();
    let tick = |adapter: &mut dyn Adapter, after: u64, read: &mut u64, len: u64| {
        let mut out = Vec::new();
        let next = adapter.tick(now + std::time::Duration::from_millis(after), &mut out);
        (next.is_some(), performed(adapter, out, read, len))
    };
    assert_eq!(reported(adapter, "Stop", one, &json!({}), &mut read, place("msg_82")), [""; 0]);
    assert_eq!(tick(adapter, 0, &mut read, place("msg_82")), (true, vec![]));
    assert_eq!(tick(adapter, 100, &mut read, place("msg_82")), (true, vec!["usage 2834 46".to_owned()]));
    let ended = place("26132880-a917-4d76-ad6b-132da87f33bd");
    assert_eq!(tick(adapter, 200, &mut read, ended), (true, vec!["complete EndTurn".to_owned()]));
    assert_eq!(tick(adapter, 300, &mut read, ended), (false, vec![]));

    // One message has two lines, and the file has no end of the turn in time.
    reported(adapter, "UserPromptSubmit", two, &json!({ "prompt": "think: hard" }), &mut read, ended);
    reported(adapter, "Stop", two, &json!({}), &mut read, ended);
    let thought = place("c48bf536-21d1-4273-b1c5-d65fbc3e04a9");
    let told: Vec<String> = (0..25).flat_map(|look| tick(adapter, 1000 + 100 * look, &mut read, thought).1).collect();
    assert_eq!(told, ["usage 4251 69", "complete EndTurn"]);

    // What was refused on the screen has a result, and the turn an end.
    reported(adapter, "UserPromptSubmit", three, &json!({ "prompt": "shell: touch zz-esc" }), &mut read, thought);
    reported(adapter, "PreToolUse", three, &call("toolu_84_0"), &mut read, thought);
    let mut out = Vec::new();
    adapter.terminal_status("idle", &mut out);
    assert_eq!(out, []);
    tick(adapter, 5000, &mut read, thought);
    let (_, told) = tick(adapter, 5100, &mut read, place("[Request interrupted by user for tool use]\"}]"));
    assert!(told[0] == "usage 5668 92" && told[2] == "complete Cancelled" && told.len() == 3, "{told:?}");
    assert!(told[1].starts_with("end toolu_84_0 Failed \"The user doesn't want"), "{told:?}");

    // The next prompt comes before the file was looked at.
    reported(adapter, "UserPromptSubmit", four, &json!({ "prompt": "say last" }), &mut read, whole);
    reported(adapter, "Stop", four, &json!({}), &mut read, whole);
    let told = reported(adapter, "UserPromptSubmit", "x", &json!({ "prompt": "more" }), &mut read, whole);
    assert_eq!(told, ["complete EndTurn", "prompted more"]);
    // Nothing else is read.
    for path in ["/etc/passwd", "/h/.claude/projects/../../../etc/ID.jsonl", "/h/.claude/projects/-w/other.jsonl"] {
        let more = json!({ "transcript_path": path.replace("ID", ID) });
        reported(adapter, "Notification", "x", &more, &mut read, whole);
    }
}
