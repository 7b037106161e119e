//! One test for each trap that the protocol has.

use agents::{Action, codex};
use ipc_protocol::{Event, Operation, PermissionAnswer, ResolvedBy, StopReason, ToolStatus, WireError};
use serde_json::{Value, json};

use crate::{
    TRANSCRIPTS,
    behaviour::{completed, in_turn, notification, ready},
    recorded::{Step, events, kinds, replayed, writes},
    transcript,
};

fn position(actions: &[Action], is: impl Fn(&Action) -> bool) -> usize {
    actions.iter().position(is).unwrap_or_else(|| panic!("not there: {actions:#?}"))
}

fn method(action: &Action, name: &str) -> bool {
    writes(std::slice::from_ref(action)).first().is_some_and(|message| message["method"] == name)
}

/// The agent's requests are numbered from 0 like ours: an answer is told from a question by its direction.
#[test]
fn trap_ids_of_both_directions_collide() {
    let mut replay = ready();
    replay.step(&Step::Prompt("go".into())).expect("ready");
    let ours = writes(&replay.actions)[0]["id"].clone();
    replay.clear();
    let mut ask = notification("item/commandExecution/requestApproval", json!({"itemId": "c", "command": "ls"}));
    ask["id"] = ours.clone();
    replay.says(&ask);
    replay.says(&json!({"id": ours, "result": {"turn": {"id": "u"}}}));
    assert_eq!(kinds(&replay.actions), ["permission:requested"]);
    replay.step(&Step::Permission("permission-1".into(), PermissionAnswer::Allow)).expect("open");
    assert_eq!(writes(&replay.actions), [json!({"id": ours, "result": {"decision": "accept"}})]);
    replay.says(&completed("completed", &Value::Null));
    assert_eq!(replay.actions.last(), Some(&Action::TurnEnded));
}

/// `turn/interrupt` leaves the command running: its processes are ended before the turn is.
#[test]
fn trap_interrupt_leaves_the_command_running() {
    let actions = replayed(codex::make, transcript("abort"));
    let interrupt = position(&actions, |action| method(action, "turn/interrupt"));
    let clean = position(&actions, |action| method(action, "thread/backgroundTerminals/clean"));
    let end = position(&actions, |action| matches!(action, Action::Event(Event::ToolEnd(_))));
    let complete = position(&actions, |action| {
        matches!(action, Action::Event(Event::Complete { stop_reason: StopReason::Cancelled, .. }))
    });
    assert!(interrupt < clean && clean < end && end < complete, "{interrupt} {clean} {end} {complete}");
}

/// The agent tells the end of an interrupted command when its turn is long over.
#[test]
fn trap_an_interrupted_command_ends_after_its_turn() {
    let mut replay = in_turn();
    let item =
        |status: &str| json!({"item": {"type": "commandExecution", "id": "c", "command": "ls", "status": status}});
    replay.says(&notification("item/started", item("inProgress")));
    replay.step(&Step::Abort).expect("running");
    replay.says(&completed("interrupted", &Value::Null));
    let clean = writes(&replay.actions).pop().expect("the clean")["id"].clone();
    assert_eq!(kinds(&replay.actions), ["stream:tool_start"]);
    replay.clear();
    replay.says(&json!({"id": clean, "result": {}}));
    assert_eq!(kinds(&replay.actions), ["stream:tool_end", "stream:complete"]);
    let [Event::ToolEnd(end), _] = &events(&replay.actions)[..] else { panic!("{:?}", replay.actions) };
    assert_eq!(end.status, ToolStatus::Failed);
    replay.clear();
    replay.says(&notification("item/completed", item("failed")));
    assert_eq!(replay.actions, [], "said already");
}

/// An interrupt before the turn has begun is refused: it is sent again when it has.
#[test]
fn trap_an_interrupt_that_is_too_early_is_refused() {
    let mut replay = ready();
    replay.step(&Step::Prompt("go".into())).expect("ready");
    replay.step(&Step::Abort).expect("running");
    assert_eq!(writes(&replay.actions).len(), 1, "the turn has no id yet");
    replay.says(&json!({"id": 3, "result": {"turn": {"id": "u"}}}));
    replay.says(&json!({"id": 4, "error": {"code": -32600, "message": "no active turn to interrupt"}}));
    replay.says(&json!({"method": "turn/started", "params": {"threadId": "t", "turn": {"id": "u"}}}));
    let interrupts = writes(&replay.actions).iter().filter(|message| message["method"] == "turn/interrupt").count();
    assert_eq!(interrupts, 2);
}

/// The last count comes again when a request fails: the tokens of a turn are what the total grows by.
#[test]
fn trap_counts_of_tokens_come_twice() {
    let mut replay = in_turn();
    let count = |total: u64| json!({"totalTokens": total, "inputTokens": total, "outputTokens": 1});
    let update = |total: u64, last: u64| {
        let usage = json!({"total": count(total), "last": count(last), "modelContextWindow": 1000});
        notification("thread/tokenUsage/updated", json!({ "tokenUsage": usage }))
    };
    for (total, last) in [(100, 100), (100, 100), (150, 50)] {
        replay.says(&update(total, last));
    }
    replay.says(&completed("completed", &Value::Null));
    let usages: Vec<_> = events(&replay.actions)
        .iter()
        .filter_map(|event| match event {
            Event::Usage(usage) => usage.input_tokens,
            Event::Complete { usage, .. } => usage.as_ref().and_then(|usage| usage.input_tokens),
            _ => None,
        })
        .collect();
    assert_eq!(usages, [100, 150, 150]);
}

/// A conversation that is gone on with has tokens of its own already.
#[test]
fn trap_a_resumed_conversation_counts_on() {
    for name in ["most-recent", "fork"] {
        let usage = replayed(codex::make, transcript(name)).into_iter().find_map(|action| match action {
            Action::Event(Event::Complete { usage, .. }) => usage,
            _ => None,
        });
        assert_eq!(usage.and_then(|usage| usage.input_tokens), Some(100), "{name}: of one request");
    }
}

/// An error is told twice, as a notification and with the end of the turn; those that are tried again are no end.
#[test]
fn trap_errors_are_told_twice_and_retried() {
    let actions = replayed(codex::make, transcript("errors"));
    let mut turns = actions.split(|action| *action == Action::TurnEnded).map(|turn| {
        let error = |event: Event| match event {
            Event::Error { code, attempt, retryable, .. } => Some((code, attempt, retryable)),
            _ => None,
        };
        events(turn).into_iter().filter_map(error).collect::<Vec<_>>()
    });
    let error = |code: &str, attempt, retryable| (code.to_owned(), attempt, retryable);
    assert_eq!(turns.next(), Some(vec![error("other", None, false)]), "400");
    assert_eq!(turns.next(), Some(vec![error("responseTooManyFailedAttempts", None, true)]), "429");
    let mut retried: Vec<_> = (1..=5).map(|attempt| error("responseStreamDisconnected", Some(attempt), true)).collect();
    retried.push(error("internalServerError", None, true));
    assert_eq!(turns.next(), Some(retried), "500");
    assert_eq!(turns.next(), Some(vec![error("responseStreamDisconnected", Some(1), true)]), "cut once");
    assert_eq!(turns.next(), Some(Vec::new()), "500 once, which is tried again silently");
}

/// As it said it to a model server that answers 429 with `usage_limit_reached`.
#[test]
fn a_usage_limit_is_told_with_its_reset() {
    let mut replay = in_turn();
    let primary = json!({"usedPercent": 100, "windowDurationMins": 300, "resetsAt": 1_795_449_201});
    let limits = json!({"limitId": "codex", "primary": primary, "secondary": null, "planType": null});
    replay.says(&json!({"method": "account/rateLimits/updated", "params": {"rateLimits": limits}}));
    let message = "You’ve hit your usage limit. Upgrade to Pro or try again at 3:53 PM.";
    let error = json!({"message": message, "codexErrorInfo": "usageLimitExceeded", "additionalDetails": null});
    replay.says(&notification("error", json!({"error": error, "willRetry": false})));
    let limited = Event::UsageLimited {
        limit: "usageLimitExceeded".into(),
        message: message.into(),
        resets_at: Some(1_795_449_201_000),
        waits: false,
    };
    assert_eq!(events(&replay.actions), [limited, Event::error("usageLimitExceeded", message, true)]);
}

/// The number of an attempt is the agent's: it leaves some out.
#[test]
fn trap_attempts_are_numbered_by_the_agent() {
    let mut replay = in_turn();
    let error = |message: &str| json!({"error": {"message": message, "codexErrorInfo": "other"}, "willRetry": true});
    for message in ["Reconnecting... 2/5", "Reconnecting... 4/5", "once more"] {
        replay.says(&notification("error", error(message)));
    }
    let attempts: Vec<_> = events(&replay.actions)
        .iter()
        .map(|event| match event {
            Event::Error { attempt, .. } => *attempt,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(attempts, [Some(2), Some(4), Some(5)]);
}

/// `turn/start` in a turn is merged with it: what is said meanwhile is a steer, with the turn that is meant.
#[test]
fn trap_a_prompt_while_busy_is_merged() {
    let mut replay = in_turn();
    assert_eq!(replay.step(&Step::Prompt("again".into())), Err(WireError::Busy));
    replay.step(&Step::Steer("left".into())).expect("running");
    let steer = writes(&replay.actions).pop().expect("written");
    assert_eq!((steer["method"].as_str(), steer["params"]["expectedTurnId"].as_str()), (Some("turn/steer"), Some("u")));
    replay.clear();
    replay.says(&json!({"id": steer["id"], "error": {"code": -32600, "message": "no active turn to steer"}}));
    assert_eq!(kinds(&replay.actions), ["action:failed"]);
}

/// Before the answer to `turn/start` there is no turn to name.
#[test]
fn trap_a_steer_before_the_turn_has_an_id_waits_for_it() {
    let mut replay = ready();
    replay.step(&Step::Prompt("go".into())).expect("ready");
    replay.step(&Step::Steer("left".into())).expect("running");
    assert_eq!(writes(&replay.actions).len(), 1);
    replay.says(&json!({"id": 3, "result": {"turn": {"id": "u"}}}));
    assert_eq!(writes(&replay.actions)[1]["params"]["expectedTurnId"], "u");
}

/// A conversation that is not there is an error, and never a new one.
#[test]
fn trap_a_missing_conversation_is_no_new_one() {
    for (name, id) in [("missing", "01a1ff8a-7d8e-7dc2-adf3-000000000000"), ("missing-recent", "the most recent")] {
        let actions = replayed(codex::make, transcript(name));
        assert!(!writes(&actions).iter().any(|message| message["method"] == "thread/start"), "{name}");
        let missing = |action: &Action| matches!(action, Action::Fail(WireError::NativeSessionMissing { id: named, .. }) if named == id);
        assert!(actions.iter().any(missing), "{name}: {actions:?}");
    }
}

/// A request that nobody answers is waited for without end.
#[test]
fn trap_requests_that_are_not_known_are_refused() {
    let mut replay = in_turn();
    for (id, method) in [(0, "item/tool/call"), (1, "account/chatgptAuthTokens/refresh"), (2, "brand/new")] {
        replay.says(&json!({"id": id, "method": method, "params": {"threadId": "t"}}));
    }
    let codes: Vec<_> = writes(&replay.actions).iter().map(|message| message["error"]["code"].clone()).collect();
    assert_eq!(codes, [-32601, -32601, -32601]);
    assert_eq!(kinds(&replay.actions), ["log"; 3]);
}

/// Several requests may be open, and a sub-agent's among them; an interrupted turn answers them all first.
#[test]
fn trap_an_abort_answers_what_is_pending_first() {
    let mut replay = in_turn();
    for (id, thread) in [(0, "t"), (1, "t"), (2, "sub")] {
        let params = json!({"threadId": thread, "turnId": "u", "itemId": "c", "command": "ls"});
        replay.says(&json!({"id": id, "method": "item/commandExecution/requestApproval", "params": params}));
    }
    replay.step(&Step::Permission("permission-2".into(), PermissionAnswer::Deny)).expect("open");
    replay.clear();
    replay.step(&Step::Abort).expect("running");
    let written = writes(&replay.actions);
    let decisions: Vec<_> = written.iter().map(|message| (&message["id"], &message["result"]["decision"])).collect();
    assert_eq!(decisions[..2], [(&json!(0), &json!("cancel")), (&json!(2), &json!("cancel"))]);
    assert_eq!(written[2]["method"], "turn/interrupt");
    replay.clear();
    replay.says(&json!({"id": 3, "method": "item/fileChange/requestApproval", "params": {"threadId": "t"}}));
    assert_eq!(kinds(&replay.actions), ["permission:requested", "permission:resolved"], "too late to be asked");
    let last = events(&replay.actions).pop();
    assert!(matches!(last, Some(Event::PermissionResolved { by: ResolvedBy::Abort, .. })));
}

/// A sub-agent is a thread of its own: what it says is not the answer, and the end of its turn is not the turn's.
#[test]
fn trap_sub_agents_speak_on_the_same_wire() {
    let actions = replayed(codex::make, transcript("sub-agent"));
    let request = actions.iter().find_map(|action| match action {
        Action::Event(Event::PermissionRequested(request)) => Some(request.clone()),
        _ => None,
    });
    let spawn = actions.iter().find_map(|action| match action {
        Action::Event(Event::ToolStart(start)) if start.name == "spawnAgent" => Some(start.id.clone()),
        _ => None,
    });
    let request = request.expect("the sub-agent asks");
    assert!(spawn.is_some());
    assert_eq!(request.parent, spawn);
    assert_eq!(actions.iter().filter(|action| **action == Action::TurnEnded).count(), 1);

    let mut replay = in_turn();
    let turn = json!({"id": "v", "status": "inProgress"});
    replay.says(&json!({"method": "turn/started", "params": {"threadId": "sub", "turn": turn}}));
    replay.step(&Step::Abort).expect("running");
    let interrupted: Vec<_> = writes(&replay.actions)
        .iter()
        .filter(|message| message["method"] == "turn/interrupt")
        .map(|message| message["params"]["turnId"].clone())
        .collect();
    assert_eq!(interrupted, ["v", "u"]);
}

/// A model that does not stream: the text is only in the item.
#[test]
fn trap_text_that_does_not_come_in_pieces_comes_whole() {
    let mut replay = in_turn();
    let item = |id: &str| json!({"item": {"type": "agentMessage", "id": id, "text": "hello"}});
    replay.says(&notification("item/completed", item("a")));
    replay.says(&notification("item/agentMessage/delta", json!({"itemId": "b", "delta": "hel"})));
    replay.says(&notification("item/agentMessage/delta", json!({"itemId": "b", "delta": "lo"})));
    replay.says(&notification("item/completed", item("b")));
    let text = |text: &str| Event::Text { text: text.into() };
    assert_eq!(events(&replay.actions), [text("hello"), text("hel"), text("lo")]);
}

/// Output comes in pieces here, and as the whole so far elsewhere: an update has what came so far.
#[test]
fn trap_output_comes_in_pieces() {
    let mut replay = in_turn();
    let item = json!({"item": {"type": "commandExecution", "id": "c", "command": "ls", "status": "inProgress"}});
    replay.says(&notification("item/started", item));
    replay.clear();
    for piece in ["a\n", "b\n", &"ñ".repeat(20_000)] {
        let delta = json!({"itemId": "c", "delta": piece});
        replay.says(&notification("item/commandExecution/outputDelta", delta));
    }
    let outputs: Vec<_> = events(&replay.actions)
        .iter()
        .map(|event| match event {
            Event::ToolUpdate(update) => update.output.clone().expect("output"),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(outputs[..2], ["a\n", "a\nb\n"]);
    assert_eq!(outputs[2], "ñ".repeat(8192), "its end only");
}

/// Compacting is a turn of the agent's, not of the session's: the operation ends with it.
#[test]
fn trap_compacting_is_a_turn_of_its_own() {
    let actions = replayed(codex::make, transcript("operations"));
    let compact = position(&actions, |action| method(action, "thread/compact/start"));
    let reply = compact + position(&actions[compact..], |action| matches!(action, Action::Reply { .. }));
    assert_eq!(kinds(&actions[compact..reply]).iter().filter(|kind| *kind == "session:status").count(), 2);
    assert!(!actions[compact..reply].contains(&Action::TurnEnded));
}

/// The mode holds model and effort too: what was set before stays.
#[test]
fn trap_a_mode_takes_model_and_effort_with_it() {
    let mut replay = ready();
    let settings = json!({"model": "big", "effort": "high"});
    replay.says(&json!({"method": "thread/settings/updated", "params": {"threadId": "t", "threadSettings": settings}}));
    replay.step(&Step::Operate(Operation::SetMode { mode: "plan".into() })).expect("taken");
    let mode = &writes(&replay.actions)[0]["params"]["collaborationMode"];
    assert_eq!(
        *mode,
        json!({"mode": "plan", "settings": {"model": "big", "reasoning_effort": "high", "developer_instructions": null}})
    );
}

/// `cancel` would interrupt the turn: who denies a command says `decline`, and the turn goes on.
#[test]
fn trap_cancel_interrupts_the_turn() {
    let mut replay = in_turn();
    let decisions = json!(["accept", "decline", "cancel"]);
    let mut ask = notification(
        "item/commandExecution/requestApproval",
        json!({"itemId": "c", "command": "ls", "availableDecisions": decisions}),
    );
    ask["id"] = json!(0);
    replay.says(&ask);
    replay.clear();
    replay.step(&Step::Permission("permission-1".into(), PermissionAnswer::Deny)).expect("open");
    assert_eq!(writes(&replay.actions), [json!({"id": 0, "result": {"decision": "decline"}})]);
    assert!(!replay.actions.contains(&Action::TurnEnded));
}

/// What is no JSON it complains of on its standard error, and nobody would hear: each line that it gets is one message.
#[test]
fn trap_bad_json_gets_no_reply() {
    let mut replay = ready();
    replay.step(&Step::Prompt("two\nlines, \u{2028} and \" and \0".into())).expect("ready");
    let [prompt] = &writes(&replay.actions)[..] else { panic!("not one line: {:?}", replay.actions) };
    assert_eq!(prompt["params"]["input"][0]["text"], "two\nlines, \u{2028} and \" and \0");
    replay.clear();
    replay.adapter.stderr(b"Failed to deserialize JSONRPCMessage\n", &mut replay.actions);
    let log = Event::Log { stream: "stderr".into(), text: "Failed to deserialize JSONRPCMessage\n".into() };
    assert_eq!(events(&replay.actions), [log]);
}

/// It leaves the member out, and so do we.
#[test]
fn trap_messages_have_no_jsonrpc_member() {
    for (name, transcript) in TRANSCRIPTS {
        let written = writes(&replayed(codex::make, transcript));
        assert!(!written.is_empty() && written.iter().all(|message| message.get("jsonrpc").is_none()), "{name}");
        assert!(!transcript.contains(r#"\"jsonrpc\":"#), "{name}");
    }
}

/// Without the experimental API the processes of an interrupted turn cannot be ended.
#[test]
fn trap_the_cleaning_is_experimental() {
    let actions = replayed(codex::make, transcript("abort"));
    let begin = writes(&actions).into_iter().find(|message| message["method"] == "initialize").expect("it begins");
    assert_eq!(begin.pointer("/params/capabilities/experimentalApi"), Some(&json!(true)));
}
