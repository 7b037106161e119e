//! What an agent writes that it should not: lines without an end, ids without number.

use std::time::Duration;

use agents::Action;
use ipc_protocol::Event;
use serde_json::json;

pub(crate) use crate::recorded::Recording as Recorded;
use crate::{
    behaviour::{in_turn, ready},
    calls::endless,
    recorded::{Replay, Step, event_bytes, kinds, writes},
};

/// Number of spoilt recordings that a property is tried with.
pub(crate) const CASES: u32 = 64;

/// Pieces of what the agent says.
pub(crate) const PIECES: [&str; 28] = [
    "\"id\":\"1\",",
    "\"id\":\"3\",",
    "\"id\":7,",
    "\"type\":",
    "\"response\",",
    "\"success\":true,",
    "\"success\":false",
    "\"command\":\"get_state\"",
    "\"data\":{",
    "\"agent_start\"",
    "\"agent_end\"",
    "\"agent_settled\"",
    "\"message_update\",",
    "\"assistantMessageEvent\":{",
    "\"toolcall_start\"",
    "\"text_delta\",",
    "\"delta\":\"x\"",
    "\"tool_execution_start\",",
    "\"toolCallId\":\"c\"",
    "\"extension_ui_request\",",
    "\"method\":\"select\",",
    "\"options\":[]",
    "\"title\":\"{}\"",
    "\"auto_retry_start\"",
    "\"message_end\",",
    "\"message\":{\"role\":\"assistant\"}",
    "\"sessionId\":\"s\"",
    "\"messageCount\":1",
];

/// A line that never ends costs one error. If it was the answer to a command of ours, that is over too.
#[test]
fn an_endless_line_is_dropped_with_a_word() {
    let mut replay = ready();
    replay.step(&Step::Operate(ipc_protocol::Operation::GetMessages)).expect("taken");
    let id = writes(&replay.actions)[0]["id"].as_str().expect("an id").to_owned();
    replay.clear();
    replay.stdout(format!(r#"{{"id":"{id}","type":"response","data":""#).as_bytes());
    let chunk = vec![b'x'; 1024 * 1024];
    for _ in 0..20 {
        replay.stdout(&chunk);
    }
    replay.stdout(b"\"}\n");
    assert_eq!(kinds(&replay.actions), ["stream:error"]);
    assert!(matches!(&replay.actions[..], [_, Action::Reply { reply: Err(_), .. }]), "{:?}", replay.actions);
    replay.clear();
    let delta = json!({"type": "text_delta", "contentIndex": 0, "delta": "x"});
    replay.says(&json!({"type": "message_update", "assistantMessageEvent": delta}));
    assert_eq!(kinds(&replay.actions), ["stream:text"]);
}

/// Nobody waits for what was in a line that is not taken.
#[test]
fn what_a_dropped_line_asks_or_says_is_not_waited_for() {
    let dropped = |beginning: &str| {
        let mut replay = in_turn();
        replay.says(&json!({"type": "tool_execution_start", "toolCallId": "c", "toolName": "bash", "args": {}}));
        replay.clear();
        endless(beginning).for_each(|bytes| replay.stdout(&bytes));
        let first = replay.actions.remove(0);
        assert!(matches!(&first, Action::Event(Event::Error { code, .. }) if code == "line-too-long"), "{first:?}");
        replay.actions.clone()
    };
    let actions = dropped(r#"{"type":"extension_ui_request","id":"d","method":"select","title":""#);
    assert_eq!(writes(&actions), [json!({"type": "extension_ui_response", "id": "d", "cancelled": true})]);
    let actions = dropped(r#"{"type":"tool_execution_end","toolCallId":"c","result":{"x":""#);
    assert!(matches!(&actions[..], [Action::Event(Event::ToolEnd(end))] if end.id == "c"), "it may have ended");
    let actions = dropped(r#"{"type":"agent_end","messages":[{"x":""#);
    assert_eq!(writes(&actions)[0]["type"], "get_state", "whether it is done is asked");
}

/// Each piece of a tool's output is not an event with all of the output before it.
#[test]
fn a_thousand_pieces_of_output_cost_few_bytes() {
    let mut replay = in_turn();
    replay.says(&json!({"type": "tool_execution_start", "toolCallId": "c", "toolName": "bash", "args": {}}));
    replay.clear();
    let mut so_far = String::new();
    for piece in 0..1000 {
        so_far.push_str(&format!("a line of a build, number {piece}\n"));
        // Pi cuts what it sends.
        let text = so_far.get(so_far.len().saturating_sub(20_000)..).expect("ASCII");
        let result = json!({"content": [{"type": "text", "text": text}]});
        let message =
            json!({"type": "tool_execution_update", "toolCallId": "c", "toolName": "bash", "partialResult": result});
        replay.feed(format!("{message}\n").as_bytes());
        replay.wait(Duration::from_micros(100));
    }
    assert!(event_bytes(&replay.actions) < 100 * 1024, "{} bytes", event_bytes(&replay.actions));
    replay.wait(Duration::from_millis(100));
    let Some(Action::Event(Event::ToolUpdate(last))) = replay.actions.last() else { panic!("no update") };
    assert!(last.output.as_ref().is_some_and(|output| output.ends_with("number 999\n")), "the last has all");
}

#[test]
fn aborts_that_are_not_answered_are_bounded() {
    let mut replay = in_turn();
    replay.clear();
    let taken = (0..100).filter(|_| replay.step(&Step::Abort).is_ok()).count();
    assert_eq!((taken, writes(&replay.actions).len()), (8, 8));
}

#[test]
fn the_end_of_a_call_without_an_id_ends_nothing() {
    let mut replay = in_turn();
    replay.says(&json!({"type": "tool_execution_end", "toolName": "bash", "result": {}}));
    assert_eq!(kinds(&replay.actions), Vec::<String>::new());
}

/// Nothing that is remembered grows with what the agent says.
#[test]
fn a_million_ids_are_not_remembered() {
    let mut replay = ready();
    for id in 0..1000 {
        let id = id.to_string();
        replay.says(&json!({"type": "extension_ui_request", "id": id, "method": "confirm", "title": "x"}));
    }
    let opened = |action: &&Action| matches!(action, Action::Event(Event::PermissionRequested(_)));
    assert_eq!(replay.actions.iter().filter(opened).count(), 64);
    assert_eq!(writes(&replay.actions).len(), 936, "the others are dismissed");
    replay.clear();
    let call =
        |kind: &str, id: &str| json!({"type": kind, "toolCallId": id, "toolName": "bash", "args": {"command": "ls"}});
    (0..5000).for_each(|id| replay.says(&call("tool_execution_start", &id.to_string())));
    let end = |replay: &mut Replay, id: &str| {
        replay.clear();
        replay.says(&call("tool_execution_end", id));
        kinds(&replay.actions)
    };
    assert_eq!(end(&mut replay, "4999"), ["stream:tool_end"], "remembered");
    assert_eq!(end(&mut replay, "0"), ["stream:tool_start", "stream:tool_end"], "forgotten");
    assert_eq!(end(&mut replay, &"x".repeat(2000)), Vec::<String>::new(), "an id that is too long");
}
