//! What cost somebody a day: each trap of the real agent, with a test named after it.

use agents::{Action, claude};
use ipc_protocol::{
    Event, Json, NativeResume, Operation, PermissionAnswer, Prompt, ResolvedBy, StopReason, ToolStatus, WireError,
};
use serde_json::{Value, json};

use crate::replay::{Replay, Transcript, USER, config, events, setup, stored, writes};

fn ready() -> Replay {
    let mut replay = Replay::new(claude::make(setup(config())).expect("an adapter"), Vec::new());
    let id = &writes(&replay.actions)[0]["request_id"];
    let answer =
        json!({ "type": "control_response", "response": { "subtype": "success", "request_id": id, "response": {} } });
    replay.stdout(format!("{answer}\n").as_bytes());
    replay.clear();
    replay
}

/// The turns of a recording: how each ended, by its events.
fn turns(name: &str) -> Vec<Vec<Action>> {
    let mut turns = vec![Vec::new()];
    for action in Transcript::named(name).actions() {
        let end = action == Action::TurnEnded;
        if let Some(turn) = turns.last_mut() {
            turn.push(action);
        }
        if end {
            turns.push(Vec::new());
        }
    }
    turns
}

fn stop(turn: &[Action]) -> Option<StopReason> {
    turn.iter().find_map(|action| match action {
        Action::Event(Event::Complete { stop_reason, .. }) => Some(stop_reason.clone()),
        _ => None,
    })
}

fn text(actions: &[Action]) -> String {
    let words = events(actions).into_iter().filter_map(|event| match event {
        Event::Text { text } => Some(text.as_str()),
        _ => None,
    });
    words.collect()
}

/// A result that answers what it names.
fn result(mut rest: serde_json::Value) -> Vec<u8> {
    let fields = [("type", json!("result")), ("subtype", json!("success")), ("is_error", json!(false))];
    for (key, value) in fields {
        if rest.get(key).is_none() {
            rest[key] = value;
        }
    }
    format!("{rest}\n").into_bytes()
}

#[test]
fn trap_system_init_comes_at_every_turn_and_not_at_the_start() {
    let actions = Transcript::named("turns").actions();
    let ready = actions.iter().position(|action| matches!(action, Action::Ready { .. })).expect("ready");
    assert_eq!(writes(&actions[..ready]).len(), 1, "the answer to initialize is all that it takes");
    let sessions = actions.iter().filter(|action| matches!(action, Action::NativeSession(_))).count();
    assert_eq!(sessions, 1, "five turns, five times init, one conversation");
}

#[test]
fn trap_api_failure_is_success_with_is_error() {
    let turns = turns("errors");
    let error = |turn: &[Action]| {
        events(turn).into_iter().rev().find_map(|event| match event {
            Event::Error { code, retryable, attempt: None, .. } => Some((code.clone(), *retryable)),
            _ => None,
        })
    };
    assert_eq!((error(&turns[0]), stop(&turns[0])), (Some(("400".into(), false)), None));
    assert_eq!((error(&turns[1]), stop(&turns[1])), (Some(("429".into(), true)), None));
    assert_eq!((error(&turns[3]), stop(&turns[3])), (Some(("500".into(), true)), None));
    assert_eq!(
        (error(&turns[2]), stop(&turns[2])),
        (None, Some(StopReason::EndTurn)),
        "it worked at the second attempt"
    );
    assert_eq!(text(&turns[0]), "", "what the agent makes up for a failed request is no answer");
}

#[test]
fn trap_an_attempt_that_failed_is_told_with_its_number() {
    let attempts: Vec<_> = events(&turns("errors")[1])
        .into_iter()
        .filter_map(|event| match event {
            Event::Error { attempt: Some(attempt), retryable: true, .. } => Some(*attempt),
            _ => None,
        })
        .collect();
    assert_eq!(attempts, [1, 2]);
}

/// In the form that its SDK declares; the account of a key has no such limits to record.
#[test]
fn a_usage_limit_is_told_with_its_reset() {
    let told = |info: Value| {
        let mut replay = ready();
        replay.clear();
        let line = json!({ "type": "rate_limit_event", "rate_limit_info": info, "session_id": "s", "uuid": "u" });
        replay.stdout(format!("{line}\n").as_bytes());
        events(&replay.actions).into_iter().cloned().collect::<Vec<_>>()
    };
    let rejected = json!({ "status": "rejected", "resetsAt": 1_795_449_201, "rateLimitType": "five_hour" });
    let limited = Event::UsageLimited {
        limit: "five_hour".into(),
        message: "the account's usage limit is reached: five_hour".into(),
        resets_at: Some(1_795_449_201_000),
        waits: false,
    };
    assert_eq!(told(rejected.clone()), [limited]);
    let mut paid = rejected;
    paid["isUsingOverage"] = true.into();
    for goes_on in [paid, json!({ "status": "allowed_warning", "rateLimitType": "seven_day" })] {
        assert!(matches!(&told(goes_on)[..], [Event::SessionStatus { status, .. }] if status == "rateLimit"));
    }
    assert_eq!(told(json!({ "status": "allowed" })), []);
}

#[test]
fn trap_an_abort_is_error_during_execution() {
    let turns = turns("abort");
    for turn in &turns[..5] {
        assert_eq!(stop(turn), Some(StopReason::Cancelled));
        assert!(!events(turn).iter().any(|event| matches!(event, Event::Error { .. })));
    }
    assert_eq!(stop(&turns[5]), Some(StopReason::EndTurn), "and the next turn is as any");
}

#[test]
fn trap_what_was_not_begun_with_has_no_result() {
    // The steer of the second turn and the whole fifth were dropped by the agent.
    let turns = turns("abort");
    assert_eq!(stop(&turns[4]), Some(StopReason::Cancelled));
    assert!(!events(&turns[4]).iter().any(|event| matches!(event, Event::Usage(_))), "nothing was asked of the model");
}

#[test]
fn trap_an_abort_takes_back_the_pending_request() {
    let actions = Transcript::named("abort").actions();
    let by = |wanted: ResolvedBy| {
        let resolved =
            |event: &&Event| matches!(event, Event::PermissionResolved { by, option: None, .. } if *by == wanted);
        events(&actions).into_iter().filter(resolved).count()
    };
    assert_eq!((by(ResolvedBy::Abort), by(ResolvedBy::Agent)), (1, 0));
}

#[test]
fn trap_a_request_that_the_agent_takes_back_is_resolved_by_it() {
    let mut replay = ready();
    replay.prompt("go");
    replay.stdout(b"{\"type\":\"control_request\",\"request_id\":\"r\",\"request\":{\"subtype\":\"can_use_tool\",\"tool_name\":\"X\",\"input\":{}}}\n");
    replay.stdout(b"{\"type\":\"control_cancel_request\",\"request_id\":\"r\"}\n");
    let last = events(&replay.actions).last().map(|event| (*event).clone());
    let resolved = Event::PermissionResolved { id: "permission-1".into(), option: None, by: ResolvedBy::Agent };
    assert_eq!(last, Some(resolved));
    assert_eq!(writes(&replay.actions).len(), 1, "nobody waits for an answer");
}

#[test]
fn trap_one_result_covers_a_turn_and_what_steered_it() {
    let turns = turns("steer");
    // While a tool ran: one result. While the model spoke: two. Either way it is one turn.
    assert_eq!(turns.len(), 4, "three turns, and nothing after them");
    assert_eq!(text(&turns[0]), "1 2 3 4 5 6 7 8 9 10 11 12you said: while you speak [messages 4]");
    let usage = |turn: &[Action]| {
        events(turn).into_iter().find_map(|event| match event {
            Event::Complete { usage, .. } => usage.as_ref()?.input_tokens,
            _ => None,
        })
    };
    assert_eq!((usage(&turns[0]), usage(&turns[1]), usage(&turns[2])), (Some(266), Some(266), Some(133)));
}

#[test]
fn trap_a_result_may_be_of_a_turn_that_nobody_asked_for() {
    let mut replay = ready();
    replay.prompt("go");
    replay.clear();
    replay.stdout(&result(json!({ "origin": { "kind": "task-notification" }, "result": "a background task ended" })));
    replay.stdout(&result(json!({ "user_message_uuids": ["somebody-else's"] })));
    assert!(!replay.actions.contains(&Action::TurnEnded), "{:?}", replay.actions);
    replay.stdout(&result(json!({ "user_message_uuids": ["00000000-0000-4000-8000-000000000001"] })));
    assert!(replay.actions.contains(&Action::TurnEnded));
    // As the real agent does it: the background task ends after its turn, and the next prompt has a turn of its own.
    let recorded = turns("subagent");
    assert_eq!(recorded.len(), 4);
    assert_eq!(stop(&recorded[2]), Some(StopReason::EndTurn));
}

#[test]
fn trap_suggestions_are_written_to_a_file() {
    let asked = br#"{"type":"control_request","request_id":"r","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{"command":"ls"},"permission_suggestions":[{"type":"addRules","rules":[{"toolName":"Bash","ruleContent":"ls *"}],"behavior":"allow","destination":"localSettings"}]}}"#;
    let answered = |answer: PermissionAnswer, by: ResolvedBy| {
        let mut replay = ready();
        replay.stdout(&[asked.as_slice(), b"\n"].concat());
        let Some(Event::PermissionRequested(request)) = events(&replay.actions).last().copied().cloned() else {
            panic!("no request");
        };
        replay.adapter.permission("permission-1", &answer, by, &mut replay.actions).expect("open");
        let Some(Action::Event(Event::PermissionResolved { option, .. })) = replay.actions.last() else { panic!() };
        (request, option.clone(), writes(&replay.actions)[0]["response"]["response"].clone())
    };
    let (request, option, response) = answered(PermissionAnswer::Allow, USER);
    let name = &request.options.iter().find(|option| option.id == "allowAlways").expect("offered").name;
    assert_eq!(name, "Allow, and always allow Bash(ls *) in .claude/settings.local.json");
    assert_eq!(
        (option.as_deref(), response),
        (Some("allow"), json!({ "behavior": "allow", "updatedInput": { "command": "ls" } }))
    );
    // Nobody but a user has that choice.
    let always = PermissionAnswer::Option("allowAlways".into());
    let (_, option, response) = answered(always.clone(), ResolvedBy::Rule { index: 0 });
    assert_eq!((option.as_deref(), response.get("updatedPermissions")), (Some("allow"), None));
    let (_, option, response) = answered(always, USER);
    assert_eq!(option.as_deref(), Some("allowAlways"));
    assert_eq!(response["updatedPermissions"][0]["rules"][0]["ruleContent"], "ls *");
}

#[test]
fn trap_a_line_that_is_not_json_kills_the_agent() {
    let mut replay = ready();
    replay.prompt("one\ntwo\r\n\u{2028}three");
    let message = Json::new("{\n  \"subtype\": \"mcp_status\"\n}").expect("JSON");
    replay.adapter.operate(1, &Operation::Native { message }, &mut replay.actions).expect("sent");
    replay.stdout(b"{\"type\":\"control_request\",\"request_id\":\"r\",\"request\":{\"subtype\":\"can_use_tool\",\"tool_name\":\"X\",\"input\":{}}}\n");
    let input = Json::new("{\n\"command\":\n\"ls\"}").expect("JSON");
    let answer = PermissionAnswer::AllowWith { input };
    replay.adapter.permission("permission-1", &answer, USER, &mut replay.actions).expect("open");
    // `writes` checks that each is one line, and JSON.
    assert_eq!(writes(&replay.actions).len(), 3);
    let bad = Operation::Native { message: Json::new("[1]").expect("JSON") };
    let refused = replay.adapter.operate(2, &bad, &mut replay.actions);
    assert!(matches!(refused, Err(WireError::Unsupported { .. })));
}

#[test]
fn trap_an_unknown_request_gets_an_error_reply() {
    let actions = Transcript::named("operations").actions();
    let native = actions.iter().any(|action| {
        matches!(action, Action::Reply { reply: Ok(reply), .. }
        if reply.as_str().contains("Unsupported control request subtype"))
    });
    assert!(native, "a native command has the raw reply, whatever it is");
    let mut replay = ready();
    replay.adapter.operate(1, &Operation::SetModel { model: "m".into() }, &mut replay.actions).expect("sent");
    let id = writes(&replay.actions)[0]["request_id"].clone();
    let error = json!({ "type": "control_response", "response": { "subtype": "error", "request_id": id,
        "error": "Unsupported control request subtype: set_model" } });
    replay.stdout(format!("{error}\n").as_bytes());
    let Some(Action::Reply { reply: Err(WireError::Unsupported { .. }), .. }) = replay.actions.last() else {
        panic!("{:?}", replay.actions)
    };
}

#[test]
fn trap_a_missing_conversation_is_an_error_result_and_an_exit() {
    let actions = Transcript::named("resume-missing").actions();
    let Some(Action::Fail(WireError::NativeSessionMissing { id, reason, .. })) = actions.last() else {
        panic!("{actions:?}")
    };
    assert!(id == "missing" && reason.starts_with("No conversation found"), "{reason}");
    // Where the line with the result is not written any more, standard error has it.
    let resume = Some(NativeResume { id: Some("gone".into()), fork: false });
    let mut adapter = claude::make(agents::AdapterSetup { resume, ..setup(config()) }).expect("an adapter");
    let mut out = Vec::new();
    adapter.start(&mut out);
    adapter.stderr(b"No conversation found with session ID: gone\n", &mut out);
    adapter.finish(&mut out);
    assert!(matches!(out.last(), Some(Action::Fail(WireError::NativeSessionMissing { .. }))), "{out:?}");
}

#[test]
fn trap_the_most_recent_conversation_silently_begins_anew() {
    for fork in [false, true] {
        let resume = Some(NativeResume { id: None, fork });
        let make =
            || claude::make(agents::AdapterSetup { resume: resume.clone(), ..setup(config()) }).expect("an adapter");
        let none = Replay::new(make(), Vec::new());
        assert!(matches!(none.actions.last(), Some(Action::Fail(WireError::NativeSessionMissing { .. }))));
        assert_eq!(writes(&none.actions).len(), 0, "it is not even asked");
        let empty = Replay::new(make(), vec![agents::ListedFile { head: Vec::new(), ..stored("empty") }]);
        assert!(matches!(empty.actions.last(), Some(Action::Fail(WireError::NativeSessionMissing { .. }))));
    }
    // The agent may see it otherwise: then it has begun a new one, and says so with the first turn.
    let actions = Transcript::named("continue-none").actions();
    assert!(actions.iter().any(|action| matches!(action, Action::Fail(WireError::NativeSessionMissing { .. }))));
    let continued = Transcript::named("continue").actions();
    assert!(!continued.iter().any(|action| matches!(action, Action::Fail(_) | Action::NativeSession(_))));
}

#[test]
fn trap_totals_of_a_resumed_conversation_have_its_past() {
    for turn in turns("resume").iter().take(2) {
        let complete = events(turn).into_iter().find_map(|event| match event {
            Event::Complete { usage, .. } => usage.as_ref().map(|usage| (usage.input_tokens, usage.cost_usd)),
            _ => None,
        });
        let (input, cost) = complete.expect("usage");
        assert_eq!(input, Some(133));
        assert!(cost.is_some_and(|cost| (cost - 0.001_408_4).abs() < 1e-9), "{cost:?}");
    }
}

#[test]
fn trap_a_message_named_as_one_before_is_passed_over() {
    let mut replay = ready();
    replay.prompt("go");
    replay.stdout(b"{\"type\":\"command_lifecycle\",\"command_uuid\":\"00000000-0000-4000-8000-000000000001\",\"state\":\"completed\"}\n");
    let error = |event: &&Event| matches!(event, Event::Error { code, .. } if code == "message-dropped");
    assert_eq!(events(&replay.actions).into_iter().filter(error).count(), 1);
    assert_eq!(replay.actions.last(), Some(&Action::TurnEnded), "it has no result");
    assert_eq!(stop(&replay.actions), None, "it has failed, and was not cancelled");
    // Names are fresh in each process: they are made of an id that is.
    let mut names: Vec<_> = ["resume", "fork", "continue"]
        .iter()
        .flat_map(|name| writes(&Transcript::named(name).actions()))
        .filter_map(|message| message["uuid"].as_str().map(str::to_owned))
        .collect();
    let all = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), all);
}

#[test]
fn trap_clear_changes_the_conversation() {
    let actions = Transcript::named("operations").actions();
    let ids: Vec<_> = actions.iter().filter(|action| matches!(action, Action::NativeSession(_))).collect();
    assert_eq!(ids.len(), 2, "its first id, and that after /clear: {ids:?}");
}

#[test]
fn trap_commands_answer_without_deltas() {
    let actions = Transcript::named("operations").actions();
    assert!(text(&actions).contains("Estimated cost:"), "/cost is answered by a whole message only");
    let told = text(&Transcript::named("turns").actions());
    assert_eq!(told.matches("you said: hello").count(), 1, "what came in pieces is not told again");
}

#[test]
fn trap_an_answer_that_breaks_off_is_told_again() {
    let turn = &turns("cut")[0];
    let broken = |event: &&Event| matches!(event, Event::Voided { .. });
    let voided = Event::Voided { text_bytes: "a text that is ".len() as u64, thinking_bytes: 0 };
    let told: Vec<_> = events(turn).into_iter().filter(broken).cloned().collect();
    assert_eq!(told, [voided.clone(), voided], "each time its words do not count");
    assert!(text(turn).ends_with("a text that is cut in the middle"));
    let aborted = turns("abort");
    assert_eq!(events(&aborted[0]).into_iter().filter(broken).count(), 0, "nothing is asked for again after an abort");
}

#[test]
fn trap_the_plan_has_two_kinds_of_tools() {
    for (name, plans) in [("plan-todo", 1), ("plan-tasks", 5), ("plan-mode", 1)] {
        let actions = Transcript::named(name).actions();
        let told = events(&actions).into_iter().filter(|event| matches!(event, Event::Plan { .. })).count();
        assert_eq!(told, plans, "{name}");
    }
}

#[test]
fn trap_a_sub_agents_words_are_no_answer() {
    let actions = Transcript::named("subagent").actions();
    assert!(!text(&actions).contains("touch sub"), "{}", text(&actions));
    let permissions: Vec<_> = events(&actions)
        .into_iter()
        .filter_map(|event| match event {
            Event::PermissionRequested(request) => Some(request.parent.clone()),
            _ => None,
        })
        .collect();
    let tasks: Vec<_> = events(&actions)
        .into_iter()
        .filter_map(|event| match event {
            Event::ToolStart(start) if start.name == "Task" => Some(Some(start.id.clone())),
            _ => None,
        })
        .collect();
    assert_eq!(permissions, tasks, "each is of the call that started its sub-agent");
    let ends = events(&actions)
        .into_iter()
        .filter(|event| matches!(event, Event::ToolEnd(end) if end.status == ToolStatus::Completed));
    assert_eq!(ends.count(), 4, "two sub-agents, and a call of each");
}

#[test]
fn trap_unknown_tools_are_left_out_without_a_word() {
    let tools = ["Bash", "Nonsense", "Agent", "mcp__files__echo"].map(str::to_owned).to_vec();
    let config = ipc_protocol::AgentSessionConfig { tools, ..config() };
    let mut replay = Replay::new(claude::make(setup(config)).expect("an adapter"), Vec::new());
    Transcript::named("turns").records().iter().for_each(|record| replay.record(record));
    let missing: Vec<_> = events(&replay.actions)
        .into_iter()
        .filter_map(|event| match event {
            Event::Error { code, message, .. } if code == "unknown-tool" => Some(message.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(missing, ["the agent has no tool Nonsense"], "once, and no tool that it has under another name");
}

#[test]
fn trap_an_effort_that_it_does_not_know_is_accepted_and_ignored() {
    let thinking = |level: &str| ipc_protocol::AgentSessionConfig { thinking: Some(level.into()), ..config() };
    let error = claude::make(setup(thinking("hard"))).err().expect("refused");
    assert!(error.to_string().contains("xhigh"), "{error}");
    let mut replay = ready();
    let operation = Operation::SetThinking { level: "hard".into() };
    assert!(matches!(replay.adapter.operate(1, &operation, &mut replay.actions), Err(WireError::Unsupported { .. })));
    for level in ["off", "low", "max", "4000"] {
        claude::make(setup(thinking(level))).expect("it has that");
    }
}

#[test]
fn trap_servers_that_cannot_be_reached_are_told_when_it_is_ready() {
    let actions = Transcript::named("operations").actions();
    let ready = actions.iter().position(|action| matches!(action, Action::Ready { .. })).expect("ready");
    assert!(events(&actions[..ready]).is_empty(), "no event before it is ready");
    let Action::Event(Event::Error { code, message, .. }) = &actions[ready + 1] else { panic!("{actions:?}") };
    assert!(code == "mcp-server" && message.contains("web"), "{message}");
}

#[test]
fn trap_a_question_is_a_permission_request() {
    let mut replay = ready();
    replay.prompt("go");
    replay.clear();
    let asked = json!({ "type": "control_request", "request_id": "r", "request": { "subtype": "can_use_tool",
        "tool_name": "AskUserQuestion", "tool_use_id": "t", "input": { "questions": [
            { "question": "Which?", "options": [{ "label": "A" }, { "label": "B" }], "multiSelect": false }] } } });
    replay.stdout(format!("{asked}\n").as_bytes());
    let Some(Event::PermissionRequested(request)) = events(&replay.actions).last().copied().cloned() else { panic!() };
    assert_eq!((request.kind.as_str(), request.title.as_str()), ("question", "Which?"));
    let choose = PermissionAnswer::Option("choose:B".into());
    replay.adapter.permission(&request.id, &choose, USER, &mut replay.actions).expect("open");
    let input = &writes(&replay.actions)[0]["response"]["response"]["updatedInput"];
    assert_eq!(input["answers"], json!({ "Which?": "B" }));
    assert_eq!(input["questions"], asked["request"]["input"]["questions"], "the whole input of the tool");
}

#[test]
fn trap_a_prompt_while_a_turn_runs_is_a_steer() {
    let mut replay = ready();
    replay.prompt("one");
    let error = replay.adapter.prompt(&Prompt::from("two"), &mut replay.actions).expect_err("a turn runs");
    assert_eq!(error, WireError::Busy);
    assert_eq!(writes(&replay.actions).len(), 1);
}
