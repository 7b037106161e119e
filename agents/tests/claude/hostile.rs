//! Whatever an agent writes, and however it arrives: events or a typed error, the same ones for every split.

use agents::{Action, claude};
use ipc_protocol::{Event, StopReason};
use proptest::sample::Index;

use crate::calls::{self, check_calls, endless, in_pieces};
use crate::replay::{Record, Replay, TRANSCRIPTS, Transcript, config, events, setup, writes};
use crate::spoilt::{Played, Spoilable};

/// A recording.
#[derive(Clone, Debug)]
pub(crate) struct Recorded(Transcript, Vec<Record>);

impl Spoilable for Recorded {
    type Record = Record;
    const COUNT: usize = TRANSCRIPTS.len();

    fn nth(index: usize) -> Self {
        Self(TRANSCRIPTS[index], TRANSCRIPTS[index].records())
    }

    fn records(&mut self) -> &mut Vec<Record> {
        &mut self.1
    }

    fn output(record: &mut Record) -> Option<&mut Vec<u8>> {
        if let Record::Out(line) = record { Some(line) } else { None }
    }

    fn written(bytes: Vec<u8>) -> Record {
        Record::Out(bytes)
    }

    fn play(&self, splits: &[Index]) -> Played {
        let mut replay = Replay::of(&self.0);
        let mut bytes = Vec::new();
        let mut splits = splits.iter().cycle();
        let mut flush = |bytes: &mut Vec<u8>, replay: &mut Replay| {
            in_pieces(bytes, &mut splits, |piece| replay.stdout(piece));
            bytes.clear();
        };
        for record in &self.1 {
            match record {
                Record::Out(line) => bytes.extend_from_slice(&replay.line(line)),
                other => {
                    flush(&mut bytes, &mut replay);
                    replay.record(other);
                }
            }
        }
        flush(&mut bytes, &mut replay);
        (replay.finish(), 0)
    }

    fn check((actions, _): &Played) {
        check(actions);
    }
}

/// What must hold of any sequence of actions, whatever the agent wrote.
fn check(actions: &[Action]) {
    calls::check(actions);
    let ready = actions.iter().position(|action| matches!(action, Action::Ready { .. })).unwrap_or(actions.len());
    let early = events(&actions[..ready]);
    let logs = early.iter().filter(|event| matches!(event, Event::Log { .. })).count();
    assert_eq!(early.len(), logs, "nothing is told before it is ready");
    let mut answered: Vec<_> = actions
        .iter()
        .filter_map(|action| match action {
            Action::Reply { request, .. } => Some(*request),
            _ => None,
        })
        .collect();
    let replies = answered.len();
    answered.sort_unstable();
    answered.dedup();
    assert_eq!(answered.len(), replies, "each operation is answered once");
    // Each is one line of JSON.
    writes(actions);
}

/// Number of spoilt recordings that a property is tried with.
pub(crate) const CASES: u32 = 256;

/// Pieces of what the agent says.
pub(crate) const PIECES: [&str; 17] = [
    "{\"type\":\"stream_event\",\"event\":{\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"t\"}}}\n",
    "{\"type\":\"result\",\"subtype\":\"success\"}\n",
    "{\"type\":\"result\",\"is_error\":true,\"user_message_uuids\":[\"00000000-0000-4000-8000-000000000001\"]}\n",
    "{\"type\":\"control_response\",\"response\":{\"subtype\":\"success\",\"request_id\":\"agent-proxy-1\"}}\n",
    "{\"type\":\"control_response\",\"response\":{\"subtype\":\"error\",\"request_id\":\"agent-proxy-2\"}}\n",
    "{\"type\":\"control_request\",\"request_id\":\"x\",\"request\":{\"subtype\":\"can_use_tool\",\"tool_name\":\"X\"}}\n",
    "{\"type\":\"control_cancel_request\",\"request_id\":\"x\"}\n",
    "{\"type\":\"command_lifecycle\",\"command_uuid\":\"00000000-0000-4000-8000-000000000001\",\"state\":\"cancelled\"}\n",
    "{\"type\":\"assistant\",\"message\":{\"id\":\"m\",\"content\":[{\"type\":\"tool_use\",\"id\":\"x\",\"name\":\"X\",\"input\":{}}]}}\n",
    "{\"type\":\"user\",\"message\":{\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"x\"}]}}\n",
    "{\"type\":\"system\",\"subtype\":\"init\",\"session_id\":\"s\",\"tools\":null}\n",
    "{\"type\":\"system\",\"subtype\":\"api_retry\",\"retry_delay_ms\":-1e308}\n",
    "\"type\":",
    "\"message\":{",
    "\"content\":[",
    "\"parent_tool_use_id\":\"p\"",
    "\"modelUsage\":{\"m\":{\"inputTokens\":18446744073709551615}}",
];

/// An adapter that is ready.
fn ready() -> Replay {
    let mut replay = Replay::new(claude::make(setup(config())).expect("an adapter"), Vec::new());
    replay.stdout(
        b"{\"type\":\"control_response\",\"response\":{\"subtype\":\"success\",\"request_id\":\"agent-proxy-1\"}}\n",
    );
    replay.clear();
    replay
}

#[test]
fn a_line_without_an_end_is_dropped_and_told_once() {
    let mut replay = ready();
    for _ in 0..20 {
        replay.stdout(&[b'x'; 1024 * 1024]);
    }
    replay.stdout(b"\n{\"type\":\"keep_alive\"}\n");
    let codes: Vec<_> = events(&replay.actions)
        .into_iter()
        .map(|event| match event {
            Event::Error { code, .. } => code.as_str(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(codes, ["line-too-long"]);
}

#[test]
fn what_an_agent_leaves_open_is_bounded() {
    let mut replay = ready();
    replay.prompt("go");
    replay.clear();
    for number in 0..200 {
        let asked = format!(
            r#"{{"type":"control_request","request_id":"{number}","request":{{"subtype":"can_use_tool","tool_name":"X","input":{{}}}}}}"#
        );
        replay.stdout(format!("{asked}\n").as_bytes());
    }
    let requested = |event: &&Event| matches!(event, Event::PermissionRequested(_));
    assert_eq!(events(&replay.actions).into_iter().filter(requested).count(), 64);
    let denied =
        writes(&replay.actions).iter().filter(|write| write["response"]["response"]["behavior"] == "deny").count();
    assert_eq!(denied, 136, "each of the others is answered");
    replay.clear();
    for number in 0..2000 {
        let block = format!(r#"{{"type":"tool_use","id":"t{number}","name":"X","input":{{}}}}"#);
        let line = format!(r#"{{"type":"assistant","message":{{"id":"m{number}","content":[{block}]}}}}"#);
        replay.stdout(format!("{line}\n").as_bytes());
    }
    let actions = replay.finish();
    check_calls(&actions);
    let ended = events(&actions).into_iter().filter(|event| matches!(event, Event::ToolEnd(_))).count();
    assert_eq!(ended, 2000, "what is forgotten is ended too");
}

/// A turn with a call that runs.
fn in_tool() -> Replay {
    let mut replay = ready();
    replay.prompt("go");
    replay.stdout(
        b"{\"type\":\"assistant\",\"message\":{\"id\":\"m\",\"content\":[{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"X\",\"input\":{}}]}}\n",
    );
    replay.clear();
    replay
}

fn dropped(replay: &mut Replay, beginning: &str) {
    endless(beginning).for_each(|bytes| replay.stdout(&bytes));
    let first = replay.actions.remove(0);
    assert!(matches!(&first, Action::Event(Event::Error { code, .. }) if code == "line-too-long"), "{first:?}");
}

/// Nobody waits for what was in a line that is not taken.
#[test]
fn what_a_dropped_line_asks_or_says_is_not_waited_for() {
    let mut replay = in_tool();
    dropped(
        &mut replay,
        r#"{"type":"control_request","request_id":"r","request":{"subtype":"can_use_tool","tool_name":"Write","input":{"x":""#,
    );
    let refused = &writes(&replay.actions)[0]["response"];
    assert_eq!((&refused["subtype"], &refused["request_id"]), (&"error".into(), &"r".into()));
    assert_eq!(replay.actions.len(), 1);

    let mut replay = in_tool();
    dropped(&mut replay, r#"{"type":"user","message":{"role":"user","content":[{"type":"tool_result","content":""#);
    assert!(matches!(&replay.actions[..], [Action::Event(Event::ToolEnd(end))] if end.id == "t"), "it may have ended");

    let mut replay = in_tool();
    dropped(&mut replay, r#"{"type":"result","subtype":"success","is_error":false,"result":""#);
    assert_eq!(replay.actions.last(), Some(&Action::TurnEnded));

    // As the agent writes it: what it is stands behind the answer. All of that came in pieces before.
    let mut replay = in_tool();
    dropped(&mut replay, r#"{"duration_api_ms":649,"stop_reason":"end_turn","session_id":"s","result":""#);
    assert_eq!(replay.actions.last(), Some(&Action::TurnEnded));
    let ends_well = |event: &&Event| matches!(event, Event::Complete { stop_reason: StopReason::EndTurn, .. });
    assert!(events(&replay.actions).into_iter().any(|event| ends_well(&event)), "{:?}", replay.actions);

    let mut replay = ready();
    replay.adapter.operate(7, &ipc_protocol::Operation::GetState, &mut replay.actions).expect("taken");
    let id = writes(&replay.actions)[0]["request_id"].to_string();
    replay.clear();
    dropped(
        &mut replay,
        &format!(
            r#"{{"type":"control_response","response":{{"subtype":"success","request_id":{id},"response":{{"x":""#
        ),
    );
    assert!(matches!(&replay.actions[..], [Action::Reply { reply: Err(_), .. }]), "{:?}", replay.actions);
}

/// What an agent asks before it is ready is refused: nobody is told of it.
#[test]
fn what_is_asked_too_early_is_refused() {
    let mut replay = Replay::new(claude::make(setup(config())).expect("an adapter"), Vec::new());
    replay.clear();
    for number in 0..1000 {
        let line = format!(
            r#"{{"type":"assistant","message":{{"id":"m{number}","content":[{{"type":"text","text":"x"}}]}}}}"#
        );
        replay.stdout(format!("{line}\n").as_bytes());
    }
    replay.stdout(b"{\"type\":\"control_request\",\"request_id\":\"r\",\"request\":{\"subtype\":\"can_use_tool\",\"tool_name\":\"X\"}}\n");
    let refused = &writes(&replay.actions)[0]["response"];
    assert_eq!((&refused["subtype"], &refused["request_id"]), (&"error".into(), &"r".into()));
}

/// What is said before the agent is ready is held, up to a bound; what is lost is told, once.
#[test]
fn what_is_said_too_early_and_lost_is_told() {
    for (said, lossy) in [(256, None), (257, Some("1 events")), (1000, Some("744 events"))] {
        let mut replay = Replay::new(claude::make(setup(config())).expect("an adapter"), Vec::new());
        replay.clear();
        for _ in 0..said {
            replay.stdout(b"{\"type\":\"conversation_reset\"}\n");
        }
        assert_eq!(events(&replay.actions).len(), 0, "not ready");
        replay.stdout(
            b"{\"type\":\"control_response\",\"response\":{\"subtype\":\"success\",\"request_id\":\"agent-proxy-1\"}}\n",
        );
        let told = events(&replay.actions);
        let reasons: Vec<_> = told
            .iter()
            .filter_map(|event| match event {
                Event::SessionLossy { reason } => Some(reason.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(told.len(), 256 + reasons.len());
        match lossy {
            None => assert!(reasons.is_empty(), "{reasons:?}"),
            Some(lossy) => assert!(reasons.len() == 1 && reasons[0].starts_with(lossy), "{reasons:?}"),
        }
    }
}

/// An abort has room of its own, and one that is not sent says so.
#[test]
fn aborts_that_are_not_answered_are_bounded() {
    let mut replay = ready();
    replay.prompt("go");
    for request in 0..64 {
        replay.adapter.operate(request, &ipc_protocol::Operation::GetState, &mut replay.actions).expect("taken");
    }
    replay.clear();
    let taken = (0..100).filter(|_| replay.adapter.abort(&mut replay.actions).is_ok()).count();
    assert_eq!((taken, writes(&replay.actions).len()), (8, 8));
}

#[test]
fn an_input_that_is_too_large_to_be_passed_on_still_goes_back() {
    let mut replay = ready();
    replay.prompt("go");
    replay.clear();
    let content = "x".repeat(2 * 1024 * 1024);
    let asked = serde_json::json!({ "type": "control_request", "request_id": "r", "request": {
        "subtype": "can_use_tool", "tool_name": "Write", "input": { "content": content } } });
    replay.stdout(format!("{asked}\n").as_bytes());
    let Some(Event::PermissionRequested(request)) = events(&replay.actions).last().copied().cloned() else { panic!() };
    assert!(request.input.as_str().starts_with("\"left out: 2097"), "{:?}", request.input);
    let allow = ipc_protocol::PermissionAnswer::Allow;
    replay.adapter.permission(&request.id, &allow, crate::replay::USER, &mut replay.actions).expect("open");
    let written = &writes(&replay.actions)[0]["response"]["response"]["updatedInput"]["content"];
    assert_eq!(written.as_str().map(str::len), Some(content.len()));
}
