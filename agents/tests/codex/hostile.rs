//! What an agent writes that it should not: lines without an end, ids without number.

use std::time::Duration;

use agents::Action;
use ipc_protocol::Event;
use serde_json::json;

pub(crate) use crate::recorded::Recording as Recorded;
use crate::{
    behaviour::{completed, in_turn, notification, ready},
    calls::endless,
    recorded::{Replay, Step, event_bytes, kinds, writes},
};

/// Number of spoilt recordings that a property is tried with.
pub(crate) const CASES: u32 = 64;

/// Pieces of what the agent says.
pub(crate) const PIECES: [&str; 23] = [
    "\"id\":0,",
    "\"id\":3,",
    "\"id\":\"x\",",
    "\"method\":",
    "\"params\":{",
    "\"result\":{",
    "\"error\":{",
    "\"item/agentMessage/delta\"",
    "\"item/started\"",
    "\"item/completed\"",
    "\"turn/completed\"",
    "\"turn/started\"",
    "\"item/commandExecution/requestApproval\"",
    "\"item/tool/requestUserInput\"",
    "\"mcpServer/elicitation/request\"",
    "\"thread/tokenUsage/updated\"",
    "\"serverRequest/resolved\"",
    "\"threadId\":\"t\",",
    "\"delta\":\"x\"",
    "\"turn\":{\"id\":\"x\",\"status\":\"interrupted\"}",
    "\"item\":{\"type\":\"commandExecution\",\"id\":\"c\"}",
    "\"tokenUsage\":{\"total\":{},\"last\":{}}",
    "\"questions\":[]",
];

/// A line that never ends costs one error. If it was the answer to a request of ours, that is over too.
#[test]
fn an_endless_line_is_dropped_with_a_word() {
    let mut replay = ready();
    replay.step(&crate::recorded::Step::Operate(ipc_protocol::Operation::GetMessages)).expect("taken");
    let id = crate::recorded::writes(&replay.actions)[0]["id"].as_i64().expect("an id");
    replay.clear();
    replay.stdout(format!(r#"{{"id":{id},"result":{{"thread":""#).as_bytes());
    let chunk = vec![b'x'; 1024 * 1024];
    for _ in 0..20 {
        replay.stdout(&chunk);
    }
    replay.stdout(b"\"}}\n");
    assert_eq!(kinds(&replay.actions), ["stream:error"]);
    assert!(matches!(&replay.actions[..], [_, Action::Reply { reply: Err(_), .. }]), "{:?}", replay.actions);
    replay.clear();
    replay
        .says(&json!({"method": "item/agentMessage/delta", "params": {"threadId": "t", "itemId": "i", "delta": "x"}}));
    assert_eq!(kinds(&replay.actions), ["stream:text"]);
}

/// Nobody waits for what was in a line that is not taken.
#[test]
fn what_a_dropped_line_asks_or_says_is_not_waited_for() {
    let dropped = |beginning: &str| {
        let mut replay = in_turn();
        let item = json!({"type": "commandExecution", "id": "c", "command": "ls", "status": "inProgress"});
        replay.says(&notification("item/started", json!({ "item": item })));
        replay.clear();
        endless(beginning).for_each(|bytes| replay.stdout(&bytes));
        let first = replay.actions.remove(0);
        assert!(matches!(&first, Action::Event(Event::Error { code, .. }) if code == "line-too-long"), "{first:?}");
        replay.actions.clone()
    };
    // Its number is one of ours too.
    let asked = r#"{"method":"item/fileChange/requestApproval","id":1,"params":{"threadId":"t","reason":""#;
    let actions = dropped(asked);
    assert_eq!((actions.len(), &writes(&actions)[0]["id"]), (1, &json!(1)));
    assert!(writes(&actions)[0]["error"].is_object());
    let actions = dropped(r#"{"method":"item/completed","params":{"threadId":"t","item":{"id":"c","out":""#);
    assert!(matches!(&actions[..], [Action::Event(Event::ToolEnd(end))] if end.id == "c"), "it may have ended");
    let actions = dropped(r#"{"method":"turn/completed","params":{"threadId":"t","turn":{"id":"u","items":[{"x":""#);
    // All that was said in it came before.
    let [.., Action::Event(Event::Complete { stop_reason, .. }), Action::TurnEnded] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!(*stop_reason, ipc_protocol::StopReason::EndTurn);
}

/// Each piece of a tool's output is not an event with all of the output before it.
#[test]
fn ten_thousand_pieces_of_output_cost_few_bytes() {
    let mut replay = in_turn();
    let item = json!({"type": "commandExecution", "id": "c", "command": "make", "status": "inProgress"});
    replay.says(&notification("item/started", json!({ "item": item })));
    replay.clear();
    for piece in 0..10_000 {
        let delta = format!("a line of a build, number {piece}\n");
        let message = notification("item/commandExecution/outputDelta", json!({"itemId": "c", "delta": delta}));
        replay.feed(format!("{message}\n").as_bytes());
        replay.wait(Duration::from_micros(100));
    }
    assert!(event_bytes(&replay.actions) < 1024 * 1024, "{} bytes", event_bytes(&replay.actions));
    replay.wait(Duration::from_millis(100));
    let Some(Action::Event(Event::ToolUpdate(last))) = replay.actions.last() else { panic!("no update") };
    assert!(last.output.as_ref().is_some_and(|output| output.ends_with("number 9999\n")), "the last has all");
}

#[test]
fn aborts_that_are_not_answered_are_bounded() {
    let mut replay = in_turn();
    for thread in 0..64 {
        let item = json!({"type": "collabAgentToolCall", "id": format!("c{thread}"), "tool": "spawn",
            "receiverThreadIds": [format!("s{thread}")], "status": "inProgress"});
        replay.says(&notification("item/started", json!({ "item": item })));
        let turn = json!({"id": format!("u{thread}"), "status": "inProgress"});
        replay.says(&json!({"method": "turn/started", "params": {"threadId": format!("s{thread}"), "turn": turn}}));
    }
    replay.clear();
    (0..100).for_each(|_| replay.step(&Step::Abort).expect("taken"));
    let writes = writes(&replay.actions);
    assert!((65..=257).contains(&writes.len()), "{}", writes.len());
    assert!(writes.iter().any(|write| write["params"]["threadId"] == "t"), "its own turn is among them");
}

#[test]
fn an_answer_without_an_id_still_lets_the_turn_end() {
    let mut replay = ready();
    replay.step(&Step::Prompt("go".into())).expect("ready");
    let ours = writes(&replay.actions)[0]["id"].clone();
    replay.says(&json!({"id": ours, "result": {"turn": {"id": ""}}}));
    replay.says(&completed("completed", &json!(null)));
    assert_eq!(replay.actions.last(), Some(&Action::TurnEnded));
}

/// Nothing that is remembered grows with what the agent says.
#[test]
fn a_million_ids_are_not_remembered() {
    let mut replay = ready();
    let ask = |id: usize| {
        let params = json!({"threadId": "t", "turnId": "u", "itemId": "c", "command": "ls"});
        json!({"method": "item/commandExecution/requestApproval", "id": id, "params": params})
    };
    (0..1000).for_each(|id| replay.says(&ask(id)));
    let opened = |action: &&Action| matches!(action, Action::Event(Event::PermissionRequested(_)));
    assert_eq!(replay.actions.iter().filter(opened).count(), 64, "the others are refused");
    replay.clear();
    let item = |method: &str, id: &str| {
        let item = json!({"type": "commandExecution", "id": id, "command": "ls", "status": "completed"});
        json!({"method": method, "params": {"threadId": "t", "turnId": "u", "item": item}})
    };
    (0..5000).for_each(|id| replay.says(&item("item/started", &id.to_string())));
    let end = |replay: &mut Replay, id: &str| {
        replay.clear();
        replay.says(&item("item/completed", id));
        kinds(&replay.actions)
    };
    assert_eq!(end(&mut replay, "4999"), ["stream:tool_end"], "remembered");
    assert_eq!(end(&mut replay, "0"), ["stream:tool_start", "stream:tool_end"], "forgotten");
    assert_eq!(end(&mut replay, &"x".repeat(2000)), Vec::<String>::new(), "an id that is too long");
    replay.clear();
    for id in 0..1000 {
        let turn = json!({"id": "u", "status": "inProgress"});
        replay.says(&json!({"method": "turn/started", "params": {"threadId": id.to_string(), "turn": turn}}));
    }
    assert_eq!(kinds(&replay.actions), Vec::<String>::new());
}
