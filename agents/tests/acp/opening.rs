//! How a session gets its conversation, and what is set before it is ready.

use agents::{Action, ListedFile, acp};
use ipc_protocol::{AgentSessionConfig, EnvVars, McpServer, McpTransport, NativeResume, WireError, message::AgentFact};
use serde_json::{Value, json};

use crate::replay::{Replay, kinds, line, setup, update, writes};

const CLAUDE: &str = "@agentclientprotocol/claude-agent-acp";
const GEMINI: &str = "gemini-cli";

/// An adapter whose agent calls itself `name` and has these capabilities.
fn initialized(config: AgentSessionConfig, resume: Option<(Option<&str>, bool)>, name: &str, can: &Value) -> Replay {
    let mut setup = setup(AgentSessionConfig { cwd: Some("/w".into()), ..config });
    setup.resume = resume.map(|(id, fork)| NativeResume { id: id.map(str::to_owned), fork });
    setup.directories.insert("HOME".into(), "/h".into());
    let mut replay = Replay::new(acp::make(setup).expect("an adapter"));
    replay.clear();
    let result = json!({"protocolVersion": 1, "agentCapabilities": can, "agentInfo": {"name": name, "version": "1"}});
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 1, "result": result})));
    replay
}

fn config() -> AgentSessionConfig {
    AgentSessionConfig::new("agent")
}

fn answer(replay: &mut Replay, result: Value) {
    let id = writes(&replay.actions).last().expect("a request")["id"].clone();
    replay.clear();
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": id, "result": result})));
}

fn refuse(replay: &mut Replay, code: i32, message: &str) {
    let id = writes(&replay.actions).last().expect("a request")["id"].clone();
    replay.clear();
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})));
}

fn asked(replay: &Replay) -> (String, Value) {
    let write = writes(&replay.actions).pop().expect("a request");
    (write["method"].as_str().expect("a method").to_owned(), write["params"].clone())
}

fn failure(replay: &Replay) -> WireError {
    match replay.actions.last() {
        Some(Action::Fail(error)) => error.clone(),
        other => panic!("{other:?}"),
    }
}

fn ready(replay: &Replay) -> &str {
    // It may say of its conversation that it is not kept, and with which settings it begins, and nothing else.
    let before: Vec<&Action> = replay.actions.iter().filter(|action| !is_not_kept(action)).collect();
    match before.last() {
        Some(Action::Ready { native_session_id: Some(id) }) => id,
        other => panic!("{other:?}"),
    }
}

fn is_not_kept(action: &Action) -> bool {
    matches!(action, Action::Fact(AgentFact::NotResumable { .. } | AgentFact::Settings { .. }))
}

fn opening_at_once(config: AgentSessionConfig) -> Replay {
    let mut setup = setup(AgentSessionConfig { cwd: Some("/w".into()), ..config });
    setup.protocol_config = json!({"opensAtOnce": true});
    Replay::new(acp::make(setup).expect("an adapter"))
}

fn sent(replay: &Replay) -> Vec<String> {
    writes(&replay.actions).iter().map(|line| line["method"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn where_the_row_says_so_a_new_conversation_is_asked_for_at_once() {
    let initialized = |version: u16| line(&json!({"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": version}}));
    let opened = line(&json!({"jsonrpc": "2.0", "id": 2, "result": {"sessionId": "c"}}));
    let mut replay = opening_at_once(config());
    assert_eq!(sent(&replay), ["initialize", "session/new"]);
    assert_eq!(asked(&replay).1, json!({"cwd": "/w", "mcpServers": []}));
    replay.clear();
    replay.stdout(&initialized(1));
    assert_eq!(replay.actions, [], "nothing more is asked");
    replay.stdout(&opened);
    assert_eq!(ready(&replay), "c");

    // The first answer still decides.
    let mut replay = opening_at_once(config());
    replay.stdout(&initialized(7));
    assert!(failure(&replay).to_string().contains("version 7"), "{:?}", replay.actions);
    replay.clear();
    replay.stdout(&opened);
    assert_eq!(kinds(&replay.actions), ["log"], "after a failure nothing is believed");
    let mut replay = opening_at_once(config());
    replay.stdout(&opened);
    assert!(failure(&replay).to_string().contains("before initialize"), "{:?}", replay.actions);

    // One that takes nothing else before it is initialized is asked again.
    let mut replay = opening_at_once(config());
    refuse(&mut replay, -32600, "must be initialized before session/new");
    assert_eq!(replay.actions, []);
    replay.stdout(&initialized(1));
    assert_eq!(sent(&replay), ["session/new"]);
    answer(&mut replay, json!({"sessionId": "d"}));
    assert_eq!(ready(&replay), "d");
}

/// In `auto` a model of the agent's answers what somebody should be asked.
#[test]
fn where_nobody_names_a_mode_an_agent_does_not_begin_in_auto() {
    let modes = |current: &str| {
        let modes = ["default", "acceptEdits", "auto"].map(|id| json!({"id": id, "name": id}));
        json!({"sessionId": "s", "modes": {"currentModeId": current, "availableModes": modes}})
    };
    let begun = |config: AgentSessionConfig, name: &str, current: &str| {
        let mut replay = initialized(config, None, name, &json!({}));
        answer(&mut replay, modes(current));
        replay
    };
    let mut replay = begun(config(), CLAUDE, "auto");
    assert_eq!(asked(&replay), ("session/set_mode".into(), json!({"sessionId": "s", "modeId": "default"})));
    answer(&mut replay, json!({}));
    assert_eq!(ready(&replay), "s");
    for (config, name, current) in [
        (config(), CLAUDE, "acceptEdits"),
        (AgentSessionConfig { mode: Some("auto".into()), ..config() }, CLAUDE, "auto"),
        (config(), "another", "auto"),
    ] {
        assert_eq!(ready(&begun(config, name, current)), "s", "{current}");
    }
}

#[test]
fn what_depends_on_the_agents_answer_waits_for_it() {
    let server = McpServer {
        name: "s".into(),
        transport: McpTransport::Stdio { command: "s".into(), args: Vec::new(), env: EnvVars::default() },
    };
    for config in [
        AgentSessionConfig { system_prompt: Some("be brief".into()), ..config() },
        AgentSessionConfig { mcp_servers: vec![server], ..config() },
        AgentSessionConfig { tools: vec!["Read".into()], ..config() },
        AgentSessionConfig { ephemeral: true, ..config() },
    ] {
        assert_eq!(sent(&opening_at_once(config.clone())), ["initialize"], "{config:?}");
    }
    let mut setup = setup(config());
    setup.protocol_config = json!({"opensAtOnce": true});
    setup.resume = Some(NativeResume { id: Some("c".into()), fork: false });
    assert_eq!(sent(&Replay::new(acp::make(setup).expect("an adapter"))), ["initialize"]);
}

/// Its session may not be suspended: nobody could go on with it.
#[test]
fn an_agent_that_can_go_on_with_no_conversation_says_so_once_it_is_ready() {
    let fork = json!({"sessionCapabilities": {"fork": {}, "list": {}}});
    let resume = json!({"sessionCapabilities": {"resume": {}}});
    for (can, is_kept) in [(json!({}), false), (fork, false), (resume, true), (json!({"loadSession": true}), true)] {
        let mut replay = initialized(config(), None, "x", &can);
        answer(&mut replay, json!({"sessionId": "c"}));
        assert_eq!(ready(&replay), "c");
        assert_eq!(replay.actions.last().map(is_not_kept), Some(!is_kept), "{can}: {:?}", replay.actions);
    }
}

#[test]
fn a_conversation_is_gone_on_with_as_the_agent_can() {
    let all = json!({"loadSession": true, "sessionCapabilities": {"resume": {}, "fork": {}, "list": {}}});
    for (can, fork, method) in [
        (&all, false, "session/resume"),
        (&all, true, "session/fork"),
        (&json!({"loadSession": true}), false, "session/load"),
    ] {
        let mut replay = initialized(config(), Some((Some("c"), fork)), "x", can);
        let params = json!({"sessionId": "c", "cwd": "/w", "mcpServers": []});
        assert_eq!(asked(&replay), (method.to_owned(), params));
        answer(&mut replay, if fork { json!({"sessionId": "copy"}) } else { json!({}) });
        assert_eq!(ready(&replay), if fork { "copy" } else { "c" });
    }
    for (can, fork) in [(&json!({}), false), (&json!({"loadSession": true}), true)] {
        let replay = initialized(config(), Some((Some("c"), fork)), "x", can);
        assert!(matches!(failure(&replay), WireError::Unsupported { .. }), "{can}");
    }
}

#[test]
fn what_is_missing_is_never_begun_anew() {
    let can = json!({"sessionCapabilities": {"resume": {}}});
    let mut replay = initialized(config(), Some((Some("c"), false)), "x", &can);
    refuse(&mut replay, -32002, "Resource not found");
    let missing = WireError::NativeSessionMissing {
        agent: "recorded".into(),
        id: "c".into(),
        reason: "Resource not found".into(),
    };
    assert_eq!(failure(&replay), missing);
    assert_eq!(writes(&replay.actions), Vec::<Value>::new(), "nothing more is asked");
    let mut replay = initialized(config(), Some((Some("c"), false)), "x", &can);
    refuse(&mut replay, -32000, "Authentication required");
    assert!(matches!(failure(&replay), WireError::AgentRefused { .. }), "a login is something else");
    let mut replay = initialized(config(), None, "x", &can);
    answer(&mut replay, json!({}));
    assert!(failure(&replay).to_string().contains("names no session"), "a new one has to have a name");
}

#[test]
fn the_most_recent_conversation_is_the_one_last_updated() {
    let can = json!({"sessionCapabilities": {"resume": {}, "list": {}}});
    let mut replay = initialized(config(), Some((None, false)), "x", &can);
    assert_eq!(asked(&replay), ("session/list".to_owned(), json!({"cwd": "/w"})));
    let page = json!({"sessions": [{"sessionId": "a", "cwd": "/w", "updatedAt": "2026-01-02"}], "nextCursor": "more"});
    answer(&mut replay, page);
    assert_eq!(asked(&replay), ("session/list".to_owned(), json!({"cwd": "/w", "cursor": "more"})));
    answer(&mut replay, json!({"sessions": [{"sessionId": "b", "cwd": "/w", "updatedAt": "2026-01-03"}]}));
    assert_eq!(asked(&replay).1["sessionId"], "b");

    let mut replay = initialized(config(), Some((None, false)), "x", &can);
    answer(&mut replay, json!({"sessions": []}));
    assert!(matches!(failure(&replay), WireError::NativeSessionMissing { id, .. } if id == "the most recent"));
    let replay = initialized(config(), Some((None, false)), "x", &json!({"loadSession": true}));
    assert!(matches!(failure(&replay), WireError::Unsupported { .. }), "it does not list them");
}

/// What the agent tells of a conversation that it loads was said before.
#[test]
fn trap_load_tells_the_history_again() {
    let mut replay = initialized(config(), Some((Some("s"), false)), "x", &json!({"loadSession": true}));
    replay.clear();
    let old = |text: &str| {
        update(&json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}))
    };
    let call = update(&json!({"sessionUpdate": "tool_call", "toolCallId": "a", "title": "t", "status": "completed"}));
    replay.stdout(&old("old"));
    replay.stdout(&call);
    assert_eq!(replay.actions, []);
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 2, "result": {}})));
    assert_eq!(ready(&replay), "s");
    replay.clear();
    replay.stdout(&old("late"));
    assert_eq!(replay.actions, []);
    replay.adapter.prompt(&"go".into(), &mut replay.actions).expect("ready");
    replay.clear();
    replay.stdout(&old("new"));
    assert_eq!(kinds(&replay.actions), ["stream:text"]);
}

/// Gemini answers `session/load` at its beginning, and goes on telling.
#[test]
fn trap_gemini_tells_a_conversation_after_it_was_loaded() {
    let mut replay = initialized(config(), Some((Some("s"), false)), GEMINI, &json!({"loadSession": true}));
    replay.adapter.listed(2, Vec::new(), &mut replay.actions);
    assert_eq!(asked(&replay).0, "session/load");
    answer(&mut replay, json!({}));
    let old = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "old"}});
    replay.stdout(&update(&old));
    assert_eq!(replay.actions, [], "not ready yet, and nothing new");
    replay.stdout(&update(&json!({"sessionUpdate": "available_commands_update", "availableCommands": []})));
    assert_eq!(ready(&replay), "s");
    let looks = matches!(&replay.actions[..], [Action::List { directory, .. }, Action::Ready { .. }] if directory == "/h/.gemini");
    assert!(looks, "for what it left: {:?}", replay.actions);
}

/// Its `session/load` begins a file for the conversation first: in the minute of the last file it empties that.
#[test]
fn trap_gemini_empties_the_conversation_that_it_is_to_load() {
    let list = |directory: &str, suffix| Action::List { id: 2, directory: directory.into(), suffix };
    let file = |path: &str, text: &str| ListedFile { path: path.into(), modified_ms: 1, head: text.into() };
    let chat = "{\"sessionId\":\"12345678-x\"}\n{\"type\":\"user\",\"content\":[{\"text\":\"hi\"}]}\n";
    for named in [Some("12345678-x"), None] {
        let mut replay = initialized(config(), Some((named, false)), GEMINI, &json!({"loadSession": true}));
        let program = Action::Program("gemini-cli 1".into());
        assert_eq!(replay.actions, [program, list("/h/.gemini", "projects.json")]);
        replay.clear();
        let projects = file("/h/.gemini/projects.json", r#"{"projects": {"/w": "work"}}"#);
        replay.adapter.listed(2, vec![projects], &mut replay.actions);
        assert_eq!(replay.actions, [list("/h/.gemini/tmp/work/chats", ".jsonl")]);
        replay.clear();
        let path = "/h/.gemini/tmp/work/chats/session-2026-11-21T19-39-12345678.jsonl";
        replay.adapter.listed(2, vec![file(path, chat)], &mut replay.actions);
        let name = "session-1970-01-01T00-00-12345678.jsonl".to_owned();
        assert_eq!(replay.actions[0], Action::Rename { path: path.to_owned(), name });
        assert_eq!(asked(&replay).1["sessionId"], "12345678-x");
        replay.adapter.listed(2, Vec::new(), &mut replay.actions);
        assert_eq!(replay.actions.len(), 2, "each list is answered once");
    }
    let mut replay = initialized(config(), Some((None, false)), GEMINI, &json!({"loadSession": true}));
    replay.adapter.listed(2, Vec::new(), &mut replay.actions);
    assert!(matches!(failure(&replay), WireError::NativeSessionMissing { .. }));
}

fn offer() -> Value {
    json!({"sessionId": "s", "configOptions": [
        {"id": "m", "name": "", "category": "model", "type": "select", "currentValue": "one",
         "options": [{"value": "one", "name": ""}, {"value": "two", "name": ""}]},
        {"id": "mode", "name": "", "category": "mode", "type": "select", "currentValue": "plan",
         "options": [{"value": "default", "name": ""}, {"value": "plan", "name": ""}]},
        {"id": "t", "name": "", "category": "thought_level", "type": "select", "currentValue": "low",
         "options": [{"value": "none", "name": ""}, {"value": "low", "name": ""}, {"value": "high", "name": ""}]},
    ]})
}

fn chooses(model: Option<&str>, mode: Option<&str>, thinking: Option<&str>) -> AgentSessionConfig {
    let text = |text: Option<&str>| text.map(str::to_owned);
    AgentSessionConfig { model: text(model), mode: text(mode), thinking: text(thinking), ..config() }
}

#[test]
fn model_mode_and_thinking_are_set_before_it_is_ready() {
    let mut replay = initialized(chooses(Some("two"), Some("build"), Some("off")), None, "x", &json!({}));
    answer(&mut replay, offer());
    for (option, value) in [("m", "two"), ("mode", "default"), ("t", "none")] {
        let params = json!({"sessionId": "s", "configId": option, "value": value});
        assert_eq!(asked(&replay), ("session/set_config_option".to_owned(), params));
        answer(&mut replay, json!({}));
    }
    assert_eq!(ready(&replay), "s");
    let mut replay = initialized(chooses(Some("one"), Some("plan"), Some("low")), None, "x", &json!({}));
    answer(&mut replay, offer());
    assert_eq!(ready(&replay), "s", "it is so already");
}

#[test]
fn modes_may_have_a_request_of_their_own() {
    let modes = json!({"currentModeId": "default", "availableModes": [{"id": "default", "name": ""}, {"id": "plan", "name": ""}]});
    let opened = json!({"sessionId": "s", "modes": modes, "models": {"currentModelId": "a", "availableModels": []}});
    let mut replay = initialized(chooses(Some("b"), Some("Plan"), None), None, "x", &json!({}));
    answer(&mut replay, opened.clone());
    assert_eq!(asked(&replay), ("session/set_model".to_owned(), json!({"sessionId": "s", "modelId": "b"})));
    answer(&mut replay, json!({}));
    assert_eq!(asked(&replay), ("session/set_mode".to_owned(), json!({"sessionId": "s", "modeId": "plan"})));
    answer(&mut replay, json!({}));
    assert_eq!(ready(&replay), "s");
    let mut replay = initialized(chooses(Some("a"), Some("build"), None), None, "x", &json!({}));
    answer(&mut replay, opened);
    assert_eq!(ready(&replay), "s", "it is so already");
}

#[test]
fn our_words_for_modes_are_found_in_those_of_agents() {
    for (offered, wanted, chosen) in [
        (["build", "plan"], "plan", "plan"),
        (["default", "plan"], "build", "default"),
        (["read-only", "auto"], "build", "auto"),
        (["read-only", "auto"], "plan", "read-only"),
        (["Code", "Ask"], "build", "Code"),
    ] {
        let available: Vec<_> = offered.iter().map(|id| json!({"id": id, "name": ""})).collect();
        let modes = json!({"currentModeId": "x", "availableModes": available});
        let mut replay = initialized(chooses(None, Some(wanted), None), None, "x", &json!({}));
        answer(&mut replay, json!({"sessionId": "s", "modes": modes}));
        assert_eq!(asked(&replay).1["modeId"], chosen, "{wanted} of {offered:?}");
    }
}

#[test]
fn what_is_not_offered_is_refused_with_what_is() {
    for (config, named) in [
        (chooses(Some("three"), None, None), "one, two"),
        (chooses(None, Some("yolo"), None), "default, plan"),
        (chooses(None, None, Some("max")), "none, low, high"),
    ] {
        let mut replay = initialized(config, None, "x", &json!({}));
        answer(&mut replay, offer());
        let error = failure(&replay);
        assert!(matches!(&error, WireError::Unsupported { .. }) && error.to_string().contains(named), "{error}");
    }
    for config in [chooses(Some("x"), None, None), chooses(None, Some("plan"), None), chooses(None, None, Some("low"))]
    {
        let mut replay = initialized(config, None, "x", &json!({}));
        answer(&mut replay, json!({"sessionId": "s"}));
        assert!(matches!(failure(&replay), WireError::Unsupported { .. }));
    }
    let mut replay = initialized(chooses(Some("two"), None, None), None, "x", &json!({}));
    answer(&mut replay, offer());
    refuse(&mut replay, -32602, "not that one");
    let error = failure(&replay).to_string();
    assert!(error.contains("two") && error.contains("not that one"), "{error}");
}

#[test]
fn a_system_prompt_goes_where_the_agent_takes_it() {
    let config = || AgentSessionConfig { system_prompt: Some("be brief".into()), ..config() };
    let can = json!({"sessionCapabilities": {"systemPrompt": {"mode": {"override": {}}}}});
    let mut replay = initialized(config(), None, "x", &can);
    let said = json!({"mode": "append", "content": [{"type": "text", "text": "be brief"}]});
    assert_eq!(asked(&replay).1["systemPrompt"], said);
    answer(&mut replay, json!({"sessionId": "s"}));
    replay.clear();
    replay.adapter.prompt(&"go".into(), &mut replay.actions).expect("ready");
    assert_eq!(asked(&replay).1["prompt"], json!([{"type": "text", "text": "go"}]));

    let mut replay = initialized(config(), None, "x", &json!({}));
    assert_eq!(asked(&replay).1.get("systemPrompt"), None);
    answer(&mut replay, json!({"sessionId": "s"}));
    replay.clear();
    replay.adapter.prompt(&"go".into(), &mut replay.actions).expect("ready");
    assert_eq!(asked(&replay).1["prompt"].as_array().map(Vec::len), Some(2), "before the first prompt");
}

#[test]
fn the_wrapper_of_claude_code_takes_what_the_protocol_has_no_word_for() {
    let config = AgentSessionConfig { tools: vec!["Read".into()], max_turns: Some(300), ephemeral: true, ..config() };
    let replay = initialized(config.clone(), None, CLAUDE, &json!({}));
    let mut meta = asked(&replay).1["_meta"].clone();
    let settings = meta["claudeCode"]["options"].as_object_mut().and_then(|options| options.remove("settings"));
    let settings = settings.expect("what makes it ask, in any home");
    assert!(
        settings["permissions"]["ask"].as_array().is_some_and(|tools| tools.contains(&json!("Bash"))),
        "{settings}"
    );
    let options = json!({"claudeCode": {"options": {"tools": ["Read"], "maxTurns": 300, "persistSession": false}}});
    assert_eq!(meta, options);
    let replay = initialized(config, None, "x", &json!({}));
    assert!(matches!(failure(&replay), WireError::Unsupported { .. }));
}

#[test]
fn what_was_written_to_a_file_is_not_refused() {
    let mut setup = setup(AgentSessionConfig { tools: vec!["read_file".into()], ..config() });
    setup.protocol_config = json!({"provisions": ["tools"]});
    let mut replay = Replay::new(acp::make(setup).expect("an adapter"));
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": 1}})));
    assert_eq!(asked(&replay).0, "session/new");
}

/// Codex tells of levels where it knows the model.
#[test]
fn a_level_of_thinking_that_is_an_argument_is_set_only_where_there_is_a_choice() {
    for (is_argument, options, is_set) in
        [(true, json!([]), false), (true, offer()["configOptions"].clone(), true), (false, json!([]), false)]
    {
        let mut setup = setup(chooses(None, None, Some("high")));
        setup.protocol_config = json!({"provisions": if is_argument { &["thinking"][..] } else { &[] }});
        let mut replay = Replay::new(acp::make(setup).expect("an adapter"));
        replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": 1}})));
        answer(&mut replay, json!({"sessionId": "s", "configOptions": options}));
        match (is_argument, is_set) {
            (true, true) => assert_eq!(asked(&replay).1["value"], "high"),
            (true, false) => assert_eq!(ready(&replay), "s"),
            (false, _) => assert!(matches!(failure(&replay), WireError::Unsupported { .. })),
        }
    }
}

#[test]
fn an_agent_that_dies_on_the_way_says_at_what() {
    let all = json!({"loadSession": true, "sessionCapabilities": {"list": {}}});
    for (resume, name, at) in [
        (None, "x", "session/new"),
        (Some((Some("c"), false)), "x", "session/load"),
        (Some((None, false)), "x", "session/list"),
        (Some((None, false)), GEMINI, "files"),
    ] {
        let actions = initialized(config(), resume, name, &all).finish();
        let Some(Action::Fail(WireError::AgentDied { reason })) = actions.last() else { panic!("{actions:?}") };
        assert!(reason.contains(at), "{reason}");
    }
}
