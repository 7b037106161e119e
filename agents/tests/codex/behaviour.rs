//! What no recording has: single messages, and what the adapter makes of them.

use agents::{
    Action, codex,
    permission::{CompiledPolicy, PolicyVerdict},
};
use ipc_protocol::{
    AgentSandbox, AgentSessionConfig, EnvVars, Event, Json, McpServer, McpTransport, NativeResume, Operation,
    PermissionAnswer, PermissionMode, PermissionPolicy, PermissionRule, Prompt, PromptPart, ResolvedBy, RuleDecision,
    SettingSource, StopReason, WireError, message::AgentFact, terminal::Surface,
};
use serde_json::{Value, json};

use crate::recorded::{Replay, Step, USER, events, kinds, replies, setup, writes};

/// An adapter with the thread `t`, and no actions yet.
pub(crate) fn ready() -> Replay {
    with(AgentSessionConfig::new("codex"))
}

fn with(config: AgentSessionConfig) -> Replay {
    let mut replay = Replay::new(codex::make, setup(config));
    replay.says(&json!({"id": 1, "result": {"userAgent": "x"}}));
    replay.says(&json!({"id": 2, "result": {"thread": {"id": "t"}, "model": "m", "reasoningEffort": null}}));
    let is_ready = |action: &Action| matches!(action, Action::Ready { .. });
    assert!(replay.actions.iter().any(is_ready), "{:?}", replay.actions);
    replay.clear();
    replay
}

/// An adapter in the turn `u`.
pub(crate) fn in_turn() -> Replay {
    let mut replay = ready();
    replay.step(&Step::Prompt("go".into())).expect("ready");
    let id = writes(&replay.actions)[0]["id"].clone();
    replay.says(&json!({"id": id, "result": {"turn": {"id": "u"}}}));
    replay.clear();
    replay
}

/// A notification about the thread `t` and its turn `u`.
pub(crate) fn notification(method: &str, mut params: Value) -> Value {
    params["threadId"] = json!("t");
    params["turnId"] = json!("u");
    json!({"method": method, "params": params})
}

pub(crate) fn completed(status: &str, error: &Value) -> Value {
    json!({"method": "turn/completed", "params": {"threadId": "t", "turn": {"id": "u", "status": status, "error": error}}})
}

fn last_write(replay: &Replay) -> Value {
    writes(&replay.actions).pop().expect("something written")
}

/// What `thread/start` is asked with.
fn thread_start(config: AgentSessionConfig, protocol_config: Value) -> Value {
    let setup = agents::AdapterSetup { protocol_config, ..setup(config) };
    let mut replay = Replay::new(codex::make, setup);
    replay.says(&json!({"id": 1, "result": {}}));
    last_write(&replay)["params"].clone()
}

#[test]
fn a_thread_is_started_with_all_that_the_session_asks_for() {
    let servers = vec![
        McpServer {
            name: "files".into(),
            transport: McpTransport::Stdio {
                command: "/bin/mcp".into(),
                args: vec!["-v".into()],
                env: [("KEY", "secret")].into_iter().collect(),
            },
        },
        McpServer {
            name: "web".into(),
            transport: McpTransport::Http { url: "http://127.0.0.1:1/mcp".into(), headers: EnvVars::default() },
        },
    ];
    let config = AgentSessionConfig {
        cwd: Some("/work".into()),
        model: Some("m".into()),
        system_prompt: Some("Be brief.".into()),
        mcp_servers: servers,
        ephemeral: true,
        agent_sandbox: Some(AgentSandbox::WorkspaceWrite),
        ..AgentSessionConfig::new("codex")
    };
    assert_eq!(
        thread_start(config, json!({})),
        json!({
            "cwd": "/work", "model": "m", "approvalPolicy": "untrusted", "approvalsReviewer": "user",
            "sandbox": "workspace-write", "developerInstructions": "Be brief.", "ephemeral": true,
            "config": {"mcp_servers": {
                "files": {"command": "/bin/mcp", "args": ["-v"], "env": {"KEY": "secret"}},
                "web": {"url": "http://127.0.0.1:1/mcp", "http_headers": {}},
            }},
        })
    );
}

#[test]
fn codex_asks_for_all_it_can_unless_all_is_allowed() {
    let policy = |mode, rules: &[PermissionRule], sandbox: &str| {
        let permissions = PermissionPolicy { rules: rules.to_vec(), ..PermissionPolicy::default() };
        let config = AgentSessionConfig { permission_mode: mode, permissions, ..AgentSessionConfig::new("codex") };
        thread_start(config, json!({ "sandbox": sandbox }))["approvalPolicy"].clone()
    };
    let full = "danger-full-access";
    let rule = [PermissionRule { tool: None, command: Some("rm *".into()), path: None, decision: RuleDecision::Deny }];
    for mode in [PermissionMode::Ask, PermissionMode::Deny, PermissionMode::ReadOnly] {
        assert_eq!(policy(mode, &[], full), "untrusted");
    }
    assert_eq!(policy(PermissionMode::Allow, &rule, full), "untrusted");
    assert_eq!(policy(PermissionMode::Allow, &[], full), "never");
    // Without asking nothing would ever leave that sandbox.
    assert_eq!(policy(PermissionMode::Allow, &[], "workspace-write"), "on-request");
    // Where nobody names a sandbox it is the user's.
    let config = AgentSessionConfig { permission_mode: PermissionMode::Allow, ..AgentSessionConfig::new("codex") };
    let users = thread_start(config.clone(), json!({}));
    assert_eq!((&users["sandbox"], &users["approvalPolicy"]), (&Value::Null, &json!("on-request")));
    let config = AgentSessionConfig { agent_sandbox: Some(AgentSandbox::None), ..config };
    let none = thread_start(config, json!({ "sandbox": "read-only" }));
    assert_eq!((&none["sandbox"], &none["approvalPolicy"]), (&json!(full), &json!("never")));
}

#[test]
fn what_codex_cannot_do_is_refused_before_it_is_started() {
    let refused = |config: AgentSessionConfig, resume| {
        let error = codex::make(agents::AdapterSetup { resume, ..setup(config) }).err();
        assert!(matches!(error, Some(WireError::Unsupported { .. })), "{error:?}");
    };
    refused(AgentSessionConfig { tools: vec!["shell".into()], ..AgentSessionConfig::new("codex") }, None);
    refused(AgentSessionConfig { mode: Some("yolo".into()), ..AgentSessionConfig::new("codex") }, None);
    let resume = |fork| Some(NativeResume { id: Some("x".into()), fork });
    refused(AgentSessionConfig { ephemeral: true, ..AgentSessionConfig::new("codex") }, resume(false));
    let fork = AgentSessionConfig { ephemeral: true, ..AgentSessionConfig::new("codex") };
    assert!(codex::make(agents::AdapterSetup { resume: resume(true), ..setup(fork) }).is_ok());
}

/// It takes what it is sent in order.
#[test]
fn the_handshake_is_sent_at_once() {
    let of = |resume| {
        let setup = agents::AdapterSetup { resume, ..setup(AgentSessionConfig::new("codex")) };
        let sent = writes(&Replay::new(codex::make, setup).actions);
        sent.iter().map(|line| line["method"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(of(None), ["initialize", "initialized", "thread/start"]);
    let this = |id: Option<&str>| Some(NativeResume { id: id.map(str::to_owned), fork: false });
    assert_eq!(of(this(Some("t"))), ["initialize", "initialized", "thread/resume"]);
    assert_eq!(of(this(None)), ["initialize", "initialized", "thread/list"]);
}

#[test]
fn a_handshake_that_fails_says_why() {
    let error = json!({"code": -32000, "message": "no", "data": {"x": 1}});
    let mut replay = Replay::new(codex::make, setup(AgentSessionConfig::new("codex")));
    replay.says(&json!({"id": 1, "error": error}));
    let Some(Action::Fail(WireError::AgentRefused { reason, .. })) = replay.actions.last() else {
        panic!("{:?}", replay.actions)
    };
    assert!(reason.contains("initialize") && reason.contains("no: {\"x\":1}"), "{reason}");
    replay.clear();
    replay.says(&json!({"id": 2, "result": {"thread": {"id": "t"}}}));
    assert_eq!(kinds(&replay.actions), ["log"], "after a failure nothing is believed");

    let mut replay = Replay::new(codex::make, setup(AgentSessionConfig::new("codex")));
    replay.says(&json!({"id": 1, "result": {}}));
    replay.says(&json!({"id": 2, "result": {"thread": {}}}));
    assert!(matches!(replay.actions.last(), Some(Action::Fail(WireError::AgentProtocol { .. }))));
    let actions = Replay::new(codex::make, setup(AgentSessionConfig::new("codex"))).finish();
    assert!(matches!(actions.last(), Some(Action::Fail(WireError::AgentDied { .. }))), "{actions:?}");
}

#[test]
fn every_part_of_a_prompt_is_passed_on() {
    let mut replay = with(AgentSessionConfig { cwd: Some("/work".into()), ..AgentSessionConfig::new("codex") });
    let parts = vec![
        PromptPart::Text("look".into()),
        PromptPart::Image { mime_type: "image/png".into(), data: "aGkh".into() },
        PromptPart::File { path: "shot.PNG".into() },
        PromptPart::File { path: "/a/b.rs".into() },
    ];
    replay.step(&Step::Prompt(Prompt { parts })).expect("ready");
    assert_eq!(
        last_write(&replay)["params"]["input"],
        json!([
            {"type": "text", "text": "look", "text_elements": []},
            {"type": "image", "url": "data:image/png;base64,aGkh"},
            {"type": "localImage", "path": "/work/shot.PNG"},
            {"type": "text", "text": "@/a/b.rs", "text_elements": []},
        ])
    );
}

#[test]
fn one_turn_at_a_time() {
    let mut replay = ready();
    assert!(matches!(replay.step(&Step::Steer("left".into())), Err(WireError::Unsupported { .. })));
    replay.step(&Step::Abort).expect("nothing to abort is fine");
    assert_eq!(replay.actions, []);
    replay.step(&Step::Prompt("go".into())).expect("ready");
    assert_eq!(replay.step(&Step::Prompt("again".into())), Err(WireError::Busy));
    assert_eq!(replay.step(&Step::Operate(Operation::Compact)), Err(WireError::Busy));
    let mut replay = ready();
    let with = Operation::CompactWith { instructions: "retain the plum".to_owned() };
    assert!(matches!(replay.step(&Step::Operate(with)), Err(WireError::Unsupported { .. })), "it takes none");
    replay.step(&Step::Operate(Operation::Compact)).expect("taken");
    assert_eq!(replay.step(&Step::Prompt("go".into())), Err(WireError::Busy), "while it compacts");
    let mut replay = Replay::new(codex::make, setup(AgentSessionConfig::new("codex")));
    assert!(matches!(replay.step(&Step::Prompt("go".into())), Err(WireError::Unsupported { .. })), "not ready");
    assert!(matches!(replay.step(&Step::Operate(Operation::GetState)), Err(WireError::Unsupported { .. })));
}

#[test]
fn a_turn_that_is_refused_ends() {
    let mut replay = ready();
    replay.step(&Step::Prompt("go".into())).expect("ready");
    replay.clear();
    replay.says(&json!({"id": 3, "error": {"code": -32001, "message": "Server overloaded; retry later."}}));
    let expected = Event::error("-32001", "Server overloaded; retry later.", true);
    assert_eq!(replay.actions, [Action::Event(expected), Action::TurnEnded]);
}

#[test]
fn a_plan_is_told_whole() {
    let mut replay = in_turn();
    let plan = json!([{"step": "a", "status": "inProgress"}, {"step": "b", "status": "pending"}, {"odd": 1}]);
    replay.says(&notification("turn/plan/updated", json!({"explanation": null, "plan": plan})));
    let [Event::Plan { entries }] = &events(&replay.actions)[..] else { panic!("{:?}", replay.actions) };
    let entries: Vec<_> = entries.iter().map(|entry| (entry.content.as_str(), entry.status.as_str())).collect();
    assert_eq!(entries, [("a", "in_progress"), ("b", "pending")]);
}

#[test]
fn thinking_comes_as_summary_and_as_it_is() {
    let mut replay = in_turn();
    let delta = |index: u32, text: &str| json!({"itemId": "r", "summaryIndex": index, "delta": text});
    replay.says(&notification("item/reasoning/summaryPartAdded", json!({"itemId": "r", "summaryIndex": 0})));
    replay.says(&notification("item/reasoning/summaryTextDelta", delta(0, "a")));
    replay.says(&notification("item/reasoning/summaryPartAdded", json!({"itemId": "r", "summaryIndex": 1})));
    replay.says(&notification("item/reasoning/textDelta", delta(1, "b")));
    let item = json!({"type": "reasoning", "id": "r", "summary": ["a"], "content": ["b"]});
    replay.says(&notification("item/completed", json!({ "item": item })));
    let item = json!({"type": "reasoning", "id": "whole", "summary": ["c", "d"], "content": []});
    replay.says(&notification("item/completed", json!({ "item": item })));
    let thought = |text: &str| Event::Thinking { text: text.into() };
    assert_eq!(events(&replay.actions), [thought("a"), thought("\n\n"), thought("b"), thought("c\n\nd")]);
}

#[test]
fn a_question_that_has_no_options_is_answered_with_input() {
    let mut replay = in_turn();
    let questions = json!([{"id": "a", "question": "which?", "options": []}, {"id": "b", "question": "why?"}]);
    let mut asked = notification("item/tool/requestUserInput", json!({"itemId": "c", "questions": questions}));
    asked["id"] = json!(0);
    replay.says(&asked);
    let [Event::PermissionRequested(request)] = &events(&replay.actions)[..] else { panic!("{:?}", replay.actions) };
    assert_eq!((request.kind.as_str(), request.title.as_str()), ("question", "which? / why?"));
    let allow = Step::Permission(request.id.clone(), PermissionAnswer::Allow);
    assert!(matches!(replay.step(&allow), Err(WireError::UnknownOption { .. })), "there is nothing to choose");
    let answers = r#"{"answers":{"a":{"answers":["x"]},"b":{"answers":["y"]}}}"#;
    let answer = PermissionAnswer::AllowWith { input: Json::new(answers).expect("JSON") };
    replay.step(&Step::Permission(request.id.clone(), answer)).expect("open");
    assert_eq!(last_write(&replay)["result"]["answers"]["b"]["answers"], json!(["y"]));
}

#[test]
fn more_permissions_are_granted_as_asked_or_not_at_all() {
    let mut replay = in_turn();
    let asked = json!({"network": null, "fileSystem": {"read": null, "write": ["/etc"]}});
    for (answer, expected) in [
        (
            PermissionAnswer::Allow,
            json!({"permissions": {"fileSystem": {"read": null, "write": ["/etc"]}}, "scope": "turn"}),
        ),
        (PermissionAnswer::Deny, json!({"permissions": {}, "scope": "turn"})),
        (PermissionAnswer::Cancelled, json!({"permissions": {}, "scope": "turn"})),
    ] {
        replay.clear();
        let params = json!({"itemId": "c", "cwd": "/", "reason": "to set it up", "permissions": asked});
        let mut request = notification("item/permissions/requestApproval", params);
        request["id"] = json!(7);
        replay.says(&request);
        let [Event::PermissionRequested(request)] = &events(&replay.actions)[..] else {
            panic!("{:?}", replay.actions)
        };
        assert_eq!(request.paths, ["/etc"]);
        replay.step(&Step::Permission(request.id.clone(), answer)).expect("open");
        assert_eq!(last_write(&replay), json!({"id": 7, "result": expected}));
    }
}

/// One answer grants all of it.
#[test]
fn a_rule_on_one_thing_that_is_asked_for_does_not_allow_the_others() {
    let allow = |tool: &str| PermissionRule {
        tool: Some(tool.into()),
        command: None,
        path: None,
        decision: RuleDecision::Allow,
    };
    let more = json!({"network": {"enabled": true}, "fileSystem": {"write": ["/etc"]}});
    for (method, params, parts) in [
        ("item/permissions/requestApproval", json!({"permissions": more}), vec!["fetch", "other"]),
        (
            "item/commandExecution/requestApproval",
            json!({"command": "make", "additionalPermissions": more}),
            vec!["execute", "fetch", "other"],
        ),
        (
            "item/commandExecution/requestApproval",
            json!({"command": "make", "networkApprovalContext": {"host": "a.example"}}),
            vec!["execute", "fetch"],
        ),
    ] {
        let mut replay = in_turn();
        let mut request = notification(method, params);
        request["id"] = json!(7);
        replay.says(&request);
        let [Event::PermissionRequested(request)] = &events(&replay.actions)[..] else {
            panic!("{:?}", replay.actions)
        };
        let verdict = |rules: Vec<PermissionRule>| {
            let policy = PermissionPolicy { rules, ..PermissionPolicy::default() };
            CompiledPolicy::new(&policy, PermissionMode::Ask, "/").expect("a policy").decide(request)
        };
        for missing in &parts {
            let rest = parts.iter().filter(|part| *part != missing);
            assert_eq!(
                verdict(rest.map(|part| allow(part)).collect()),
                PolicyVerdict::Ask,
                "all but {missing}: {request:?}"
            );
        }
        let all = verdict(parts.iter().map(|part| allow(part)).collect());
        assert!(matches!(all, PolicyVerdict::Allow(_)), "{all:?}");
        for part in &parts {
            let deny = PermissionRule { decision: RuleDecision::Deny, ..allow(part) };
            let denied = verdict(vec![deny, allow("*")]);
            assert!(matches!(denied, PolicyVerdict::Deny(_)), "{part}: {denied:?}");
        }
    }
}

#[test]
fn forms_of_mcp_servers_are_questions() {
    let mut replay = in_turn();
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    let params =
        json!({"serverName": "files", "mode": "form", "message": "who?", "requestedSchema": schema, "_meta": null});
    let mut request = notification("mcpServer/elicitation/request", params);
    request["id"] = json!(0);
    replay.says(&request);
    let [Event::PermissionRequested(request)] = &events(&replay.actions)[..] else { panic!("{:?}", replay.actions) };
    assert_eq!((request.kind.as_str(), request.title.as_str()), ("question", "files: who?"));
    let allow = Step::Permission(request.id.clone(), PermissionAnswer::Allow);
    assert!(matches!(replay.step(&allow), Err(WireError::UnknownOption { .. })), "its field would be empty");
    let answer = PermissionAnswer::AllowWith { input: Json::new(r#"{"name":"x"}"#).expect("JSON") };
    replay.step(&Step::Permission(request.id.clone(), answer)).expect("open");
    assert_eq!(last_write(&replay)["result"], json!({"action": "accept", "content": {"name": "x"}, "_meta": null}));
}

#[test]
fn an_amendment_is_an_option_with_all_it_needs() {
    let mut replay = in_turn();
    let decisions = json!(["accept", {"acceptWithExecpolicyAmendment": {"execpolicy_amendment": ["touch", "x"]}},
        {"applyNetworkPolicyAmendment": {"network_policy_amendment": {"host": "a.example", "action": "deny"}}}, {}, 7]);
    let params = json!({"itemId": "c", "command": "/bin/sh -c 'touch x'", "availableDecisions": decisions});
    let mut request = notification("item/commandExecution/requestApproval", params);
    request["id"] = json!(0);
    replay.says(&request);
    let [Event::PermissionRequested(request)] = &events(&replay.actions)[..] else { panic!("{:?}", replay.actions) };
    assert_eq!(request.command.as_deref(), Some("touch x"));
    let ids: Vec<_> = request.options.iter().map(|option| option.id.as_str()).collect();
    let expected = [
        "accept",
        "acceptForSession",
        "decline",
        "cancel",
        "acceptWithExecpolicyAmendment",
        "applyNetworkPolicyAmendment:never",
    ];
    assert_eq!(ids, expected);
    let answer = PermissionAnswer::Option("acceptWithExecpolicyAmendment".into());
    replay.step(&Step::Permission(request.id.clone(), answer)).expect("open");
    assert_eq!(last_write(&replay)["result"]["decision"], decisions[1]);
}

#[test]
fn the_agent_may_take_a_request_back() {
    let mut replay = in_turn();
    let mut request = notification("item/fileChange/requestApproval", json!({"itemId": "c"}));
    request["id"] = json!(4);
    replay.says(&request);
    replay.says(&json!({"method": "serverRequest/resolved", "params": {"threadId": "t", "requestId": 4}}));
    let resolved = events(&replay.actions).pop().expect("an event");
    assert!(matches!(resolved, Event::PermissionResolved { option: None, by: ResolvedBy::Agent, .. }), "{resolved:?}");
    let late = replay.adapter.permission("permission-1", &PermissionAnswer::Allow, USER, &mut Vec::new());
    assert!(matches!(late, Err(WireError::UnknownPermission { .. })));
}

#[test]
fn a_native_message_needs_a_method_and_gets_the_reply_as_it_stands() {
    let mut replay = ready();
    let native = |text: &str| Step::Operate(Operation::Native { message: Json::new(text).expect("JSON") });
    assert!(matches!(replay.step(&native(r#"{"params":{}}"#)), Err(WireError::Protocol { .. })));
    replay.step(&native(r#"{"id":99,"method":"model/list","params":{"limit":1}}"#)).expect("taken");
    assert_eq!(last_write(&replay), json!({"id": 3, "method": "model/list", "params": {"limit": 1}}));
    replay.stdout(b"{\"id\":3,\"result\":{\"data\":[1.50]}}\n");
    let Some(Action::Reply { reply: Ok(reply), .. }) = replay.actions.last() else { panic!("{:?}", replay.actions) };
    assert_eq!(reply.as_str(), r#"{"id":3,"result":{"data":[1.50]}}"#);
}

#[test]
fn choices_are_the_models_and_the_levels_of_the_one_in_use() {
    let mut replay = ready();
    replay.step(&Step::Operate(Operation::ListChoices)).expect("taken");
    assert_eq!(last_write(&replay), json!({"id": 3, "method": "model/list", "params": {"limit": 100}}));
    let levels = json!([{"reasoningEffort": "low", "description": "fast"}, {"reasoningEffort": "high"}]);
    replay.says(&json!({"id": 3, "result": {"data": [
        {"id": "one", "model": "one", "displayName": "One", "description": "", "supportedReasoningEfforts": []},
        {"id": "mine", "model": "m", "displayName": "", "supportedReasoningEfforts": levels},
        {"id": "old", "model": "old", "hidden": true},
    ]}}));
    let [Ok(choices)] = &replies(&replay.actions)[..] else { panic!("{:?}", replay.actions) };
    assert_eq!(choices["models"], json!([{"id": "one", "name": "One"}, {"id": "m", "name": "m"}]));
    assert_eq!(
        choices["thinking"],
        json!([{"id": "low", "name": "low", "description": "fast"}, {"id": "high", "name": "high"}])
    );
    assert_eq!(choices["modes"], json!([{"id": "default", "name": "default"}, {"id": "plan", "name": "plan"}]));
}

#[test]
fn what_is_asked_for_in_vain_is_answered_too() {
    let mut replay = ready();
    for operation in [Operation::Compact, Operation::SetModel { model: "x".into() }, Operation::GetMessages] {
        replay.step(&Step::Operate(operation)).expect("taken");
    }
    let mode = Step::Operate(Operation::SetMode { mode: "yolo".into() });
    assert!(matches!(replay.step(&mode), Err(WireError::Unsupported { .. })));
    replay.says(&json!({"id": 3, "error": {"code": -32600, "message": "not now"}}));
    replay.says(&json!({"id": 4, "result": {}}));
    let died = WireError::AgentDied { reason: "its output ended before it answered".into() };
    let refused = WireError::AgentRefused { agent: "codex".into(), reason: "not now".into() };
    assert_eq!(replies(&replay.finish()), [Err(refused), Ok(Value::Null), Err(died)]);
}

#[test]
fn a_compaction_that_fails_says_so() {
    let mut replay = ready();
    replay.step(&Step::Operate(Operation::Compact)).expect("taken");
    replay.says(&json!({"id": 3, "result": {}}));
    assert_eq!(replies(&replay.actions), []);
    replay.says(&completed("failed", &json!({"message": "no model", "codexErrorInfo": "other"})));
    let refused = WireError::AgentRefused { agent: "codex".into(), reason: "no model".into() };
    assert_eq!(replies(&replay.actions), [Err(refused)]);
    replay.step(&Step::Prompt("go".into())).expect("ready again");
}

#[test]
fn the_end_of_the_agent_ends_what_is_open() {
    let mut replay = in_turn();
    let mut request = notification("item/fileChange/requestApproval", json!({"itemId": "c"}));
    request["id"] = json!(4);
    replay.says(&request);
    replay.clear();
    // Half a line, which is a whole message.
    replay
        .stdout(notification("item/agentMessage/delta", json!({"itemId": "m", "delta": "bye"})).to_string().as_bytes());
    let actions = replay.finish();
    assert_eq!(kinds(&actions), ["stream:text", "permission:resolved", "stream:error"]);
    assert_eq!(actions.last(), Some(&Action::TurnEnded));
    assert_eq!(writes(&actions), Vec::<Value>::new(), "nobody reads any more");
    assert_eq!(ready().finish(), [], "nothing is open");
}

#[test]
fn what_is_not_understood_is_logged_and_what_is_not_ours_is_not() {
    let mut replay = in_turn();
    for text in ["plain words\n", "[1,2]\n", "{}\n", "{\"id\":99,\"result\":{}}\n", "{\"id\":\"1\",\"result\":{}}\n"] {
        replay.clear();
        replay.stdout(text.as_bytes());
        assert_eq!(events(&replay.actions), [Event::Log { stream: "stdout".into(), text: text.into() }]);
    }
    replay.clear();
    replay.adapter.stderr(b"warning\n", &mut replay.actions);
    assert_eq!(events(&replay.actions), [Event::Log { stream: "stderr".into(), text: "warning\n".into() }]);
    replay.clear();
    replay.stdout(b"\n  \r\n");
    replay.says(&json!({"method": "skills/changed", "params": {}}));
    replay.says(
        &json!({"method": "item/agentMessage/delta", "params": {"threadId": "other", "itemId": "i", "delta": "x"}}),
    );
    replay.says(&json!({"method": "turn/completed", "params": {"threadId": "t", "turn": {"id": "another", "status": "completed"}}}));
    assert_eq!(replay.actions, []);
    replay.says(&completed("completed", &Value::Null));
    let complete = Event::Complete { stop_reason: StopReason::EndTurn, usage: None };
    assert_eq!(replay.actions, [Action::Event(complete), Action::TurnEnded]);
}

/// What a turn of the thread `t` that nobody here has begun is reported with.
fn elsewhere(method: &str, mut turn: Value) -> Value {
    turn["id"] = json!("s");
    json!({"method": method, "params": {"threadId": "t", "turn": turn}})
}

#[test]
fn a_turn_that_was_begun_on_the_screen_is_reported_without_one() {
    let mut replay = ready();
    let typed = |text: &str| {
        let item = json!({"type": "userMessage", "id": "i", "content": [{"type": "text", "text": text}]});
        notification("item/completed", json!({ "item": item }))
    };
    replay.says(&elsewhere("turn/started", json!({})));
    replay.says(&typed("hi"));
    let delta = json!({"itemId": "a", "delta": "yes"});
    replay.says(&notification("item/agentMessage/delta", delta));
    let mut ask = notification("item/commandExecution/requestApproval", json!({"itemId": "c", "command": "ls"}));
    ask["id"] = json!(0);
    replay.says(&ask);
    // It is answered there.
    replay.says(&notification("serverRequest/resolved", json!({"requestId": 0})));
    // Ours waits: Codex would add it to that turn.
    replay.step(&Step::Prompt("go".into())).expect("ready");
    assert!(writes(&replay.actions).is_empty(), "{:?}", replay.actions);
    replay.says(&elsewhere("turn/completed", json!({"status": "completed"})));
    let expected =
        ["terminal:prompted", "stream:text", "permission:requested", "permission:resolved", "stream:complete"];
    assert_eq!(kinds(&replay.actions), expected);
    assert_eq!(last_write(&replay)["method"], "turn/start");
    let id = last_write(&replay)["id"].clone();
    replay.says(&json!({"id": id, "result": {"turn": {"id": "u"}}}));
    replay.clear();
    replay.says(&typed("go"));
    replay.says(&completed("completed", &Value::Null));
    assert_eq!(kinds(&replay.actions), ["stream:complete"], "our own prompt is none of the screen's");
    assert_eq!(replay.actions.last(), Some(&Action::TurnEnded));
}

#[test]
fn a_prompt_that_waits_for_the_screen_is_aborted_at_once() {
    let mut replay = ready();
    replay.says(&elsewhere("turn/started", json!({})));
    replay.step(&Step::Prompt("go".into())).expect("ready");
    replay.step(&Step::Abort).expect("it waits");
    assert_eq!(kinds(&replay.actions), ["stream:complete"]);
    assert_eq!(replay.actions.last(), Some(&Action::TurnEnded));
    assert!(writes(&replay.actions).is_empty(), "the screen's turn goes on: {:?}", replay.actions);
    replay.clear();
    replay.says(&elsewhere("turn/completed", json!({"status": "interrupted"})));
    assert_eq!(kinds(&replay.actions), ["stream:complete"]);
}

#[test]
fn a_conversation_has_a_file_before_its_screen_comes() {
    let both = AgentSessionConfig { surface: Some(Surface::Both), ..AgentSessionConfig::new("codex") };
    let mut replay = Replay::new(codex::make, setup(both));
    replay.says(&json!({"id": 1, "result": {"userAgent": "x"}}));
    replay.says(&json!({"id": 2, "result": {"thread": {"id": "t"}, "model": "m", "reasoningEffort": null}}));
    assert_eq!(last_write(&replay)["method"], "thread/name/set");
}

/// Settings of actions, in words.
fn settings_of(actions: &[Action]) -> Vec<String> {
    let setting = |action: &Action| match action {
        Action::Event(Event::SessionModel { model, .. }) => Some(format!("model {model}")),
        Action::Event(Event::SessionMode { mode, .. }) => Some(format!("mode {mode}")),
        Action::Event(Event::SessionThinking { level, .. }) => Some(format!("thinks {level}")),
        Action::Fact(AgentFact::Settings { model, mode, thinking }) => {
            Some(format!("begins {model:?} {mode:?} {thinking:?}"))
        }
        _ => None,
    };
    actions.iter().filter_map(setting).collect()
}

#[test]
fn settings_are_told_once_whoever_changes_them() {
    let mut replay = ready();
    let told = |replay: &mut Replay, model: &str, mode: &str, effort: Value| {
        let settings = json!({"model": model, "effort": effort, "collaborationMode": {"mode": mode}});
        replay.says(&notification("thread/settings/updated", json!({ "threadSettings": settings })));
    };
    told(&mut replay, "m", "default", Value::Null);
    assert_eq!(settings_of(&replay.actions), ["begins None Some(\"default\") None"]);
    replay.clear();
    // Two operations, whose notifications come late.
    for operation in [Operation::SetMode { mode: "plan".into() }, Operation::SetModel { model: "n".into() }] {
        replay.step(&Step::Operate(operation)).expect("taken");
        let id = writes(&replay.actions).last().expect("a request")["id"].clone();
        replay.says(&json!({"id": id, "result": {}}));
    }
    told(&mut replay, "m", "plan", Value::Null);
    told(&mut replay, "n", "plan", Value::Null);
    assert_eq!(settings_of(&replay.actions), ["mode plan", "model n"]);
    replay.clear();
    told(&mut replay, "o", "plan", json!("low"));
    told(&mut replay, "o", "plan", json!("high"));
    assert_eq!(settings_of(&replay.actions), ["model o", "begins None None Some(\"low\")", "thinks high"]);
}

#[test]
fn a_name_is_a_title_unless_it_is_ours() {
    let mut replay =
        with(AgentSessionConfig { session_id: "s-7".parse().expect("an id"), ..AgentSessionConfig::new("codex") });
    for name in ["s-7", "Plums"] {
        replay.says(&notification("thread/name/updated", json!({ "threadName": name })));
    }
    let title = Event::SessionTitle { title: "Plums".into(), by: SettingSource::Agent };
    let status = Event::SessionStatus { status: "title".into(), detail: "Plums".into() };
    assert_eq!(events(&replay.actions), [status, title]);
}

/// Text of a sub-agent comes in pieces or whole, and belongs to the call that started it.
#[test]
fn the_text_of_a_sub_agent_has_its_parent() {
    let mut replay = in_turn();
    let call = json!({"type": "collabAgentToolCall", "id": "c", "tool": "spawnAgent", "receiverThreadIds": ["sub"], "prompt": "look"});
    replay.says(&notification("item/completed", json!({ "item": call })));
    replay.clear();
    let of = |method: &str, thread: &str, params: Value| {
        let mut params = params;
        params["threadId"] = json!(thread);
        json!({ "method": method, "params": params })
    };
    let piece = |id: &str, text: &str| json!({ "itemId": id, "delta": text });
    replay.says(&of("item/agentMessage/delta", "sub", piece("a", "hel")));
    replay.says(&of("item/reasoning/summaryTextDelta", "sub", piece("r", "hm")));
    for item in [
        json!({"type": "agentMessage", "id": "a", "text": "hel"}),
        json!({"type": "agentMessage", "id": "b", "text": "whole"}),
        json!({"type": "reasoning", "id": "q", "summary": ["so"], "content": []}),
        json!({"type": "userMessage", "id": "u", "content": [{"type": "text", "text": "look"}]}),
    ] {
        replay.says(&of("item/completed", "sub", json!({ "item": item })));
    }
    replay.says(&of("item/agentMessage/delta", "of nobody", piece("z", "?")));
    let text = |text: &str| Event::SubagentText { parent: "c".into(), text: text.into() };
    let thinking = |text: &str| Event::SubagentThinking { parent: "c".into(), text: text.into() };
    assert_eq!(events(&replay.actions), [text("hel"), thinking("hm"), text("whole"), thinking("so")]);
}

#[test]
fn a_picture_that_a_tool_returns_is_told() {
    let mut replay = in_turn();
    let content =
        json!([{"type": "text", "text": "x"}, {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}]);
    let item = json!({"type": "mcpToolCall", "id": "c", "server": "s", "tool": "t", "status": "completed", "result": {"content": content}});
    replay.says(&notification("item/completed", json!({ "item": item })));
    let pictures: Vec<_> = events(&replay.actions)
        .into_iter()
        .filter_map(|event| match event {
            Event::Image(image) => Some((image.mime_type, image.bytes, image.tool_call_id)),
            _ => None,
        })
        .collect();
    assert_eq!(pictures, [("image/png".to_owned(), 8, Some("c".to_owned()))]);
}
