//! Whatever an agent writes, and however it arrives: events or a typed error, the same ones for every split.

use agents::Action;
use ipc_protocol::Event;
use proptest::sample::Index;
use serde_json::json;

use crate::calls::{endless, in_pieces};
use crate::replay::{Record, Replay, TRANSCRIPTS, adapter, kinds, ready, records, update, writes};
use crate::spoilt::{Played, Spoilable};

/// A recording.
#[derive(Clone, Debug)]
pub(crate) struct Recorded(Vec<Record>);

impl Spoilable for Recorded {
    type Record = Record;
    const COUNT: usize = TRANSCRIPTS.len();

    fn nth(index: usize) -> Self {
        Self(records(TRANSCRIPTS[index].1))
    }

    fn records(&mut self) -> &mut Vec<Record> {
        &mut self.0
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
            in_pieces(bytes, &mut splits, |piece| replay.feed(piece));
            bytes.clear();
        };
        for record in &self.0 {
            match record {
                Record::Out(line) => bytes.extend_from_slice(line),
                other => {
                    flush(&mut bytes, &mut replay);
                    replay.record(other);
                }
            }
        }
        flush(&mut bytes, &mut replay);
        (replay.finish(), 0)
    }
}

/// Number of spoilt recordings that a property is tried with.
pub(crate) const CASES: u32 = 256;

/// Pieces of what the agent says.
pub(crate) const PIECES: [&str; 22] = [
    "\"jsonrpc\":\"2.0\"",
    "\"id\":",
    "\"id\":1,",
    "\"id\":2,",
    "\"id\":3,",
    "\"method\":",
    "\"session/update\"",
    "\"session/request_permission\"",
    "\"params\":{",
    "\"result\":",
    "\"error\":",
    "\"sessionId\":\"s\"",
    "\"update\":{",
    "\"sessionUpdate\":\"agent_message_chunk\"",
    "\"sessionUpdate\":\"tool_call\"",
    "\"toolCallId\":\"x\"",
    "\"content\":{\"type\":\"text\",\"text\":\"t\"}",
    "\"options\":[]",
    "\"toolCall\":{",
    "\"rawInput\":",
    "\"stopReason\":\"end_turn\"",
    "\"protocolVersion\":1",
];

/// A line that never ends costs one error, and what comes after it is understood.
#[test]
fn an_endless_line_is_dropped_with_a_word() {
    let recorded = Recorded::nth(0);
    let plain = recorded.play(&[]).0;
    let mut replay = Replay::new(adapter());
    let chunk = vec![b'x'; 1024 * 1024];
    for _ in 0..20 {
        replay.stdout(&chunk);
    }
    replay.stdout(b"\n");
    assert!(
        matches!(&replay.actions[1..], [Action::Event(Event::Error { code, .. })] if code == "line-too-long"),
        "{} actions",
        replay.actions.len()
    );
    replay.actions.remove(1);
    replay.follow();
    recorded.0.iter().for_each(|record| replay.record(record));
    assert_eq!(replay.finish(), plain);
}

fn dropped(replay: &mut Replay, beginning: &str) {
    replay.clear();
    endless(beginning).for_each(|bytes| replay.stdout(&bytes));
    let first = replay.actions.remove(0);
    assert!(matches!(&first, Action::Event(Event::Error { code, .. }) if code == "line-too-long"), "{first:?}");
}

/// Nobody waits for what was in a line that is not taken.
#[test]
fn what_a_dropped_line_asks_or_says_is_not_waited_for() {
    let in_tool = || {
        let mut replay = ready();
        replay.adapter.prompt(&"go".into(), &mut replay.actions).expect("ready");
        replay.stdout(&update(&json!({"sessionUpdate": "tool_call", "toolCallId": "c", "title": "x"})));
        replay
    };
    let mut replay = in_tool();
    let asked =
        r#"{"jsonrpc":"2.0","id":5,"method":"session/request_permission","params":{"sessionId":"s","toolCall":{"x":""#;
    dropped(&mut replay, asked);
    let refused = &writes(&replay.actions)[0];
    assert_eq!((replay.actions.len(), &refused["id"]), (1, &json!(5)));
    assert!(refused["error"].is_object(), "{refused}");
    let said = r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"x":""#;
    dropped(&mut replay, said);
    assert!(matches!(&replay.actions[..], [Action::Event(Event::ToolEnd(end))] if end.id == "c"), "it may have ended");

    let mut replay = in_tool();
    let prompt = writes(&replay.actions)
        .iter()
        .find_map(|write| write["params"]["prompt"].is_array().then(|| write["id"].clone()));
    dropped(&mut replay, &format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{"x":""#, prompt.expect("a prompt")));
    assert_eq!(replay.actions.last(), Some(&Action::TurnEnded));
    assert_eq!(kinds(&replay.actions), ["stream:error", "stream:tool_end"]);
}

/// Nothing that is remembered grows with what the agent says.
#[test]
fn a_million_ids_are_not_remembered() {
    let mut replay = Replay::new(adapter());
    let (_, gemini) = TRANSCRIPTS.iter().find(|(name, _)| *name == "gemini-basic").expect("a recording");
    for record in &records(gemini)[..6] {
        replay.record(record);
    }
    let Some(session) = replay.actions.iter().find_map(|action| match action {
        Action::Ready { native_session_id } => native_session_id.clone(),
        _ => None,
    }) else {
        panic!("not ready: {:?}", replay.actions)
    };
    replay.clear();
    let ask = |id: usize| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"session/request_permission","params":{{"sessionId":"{session}","toolCall":{{"toolCallId":"c"}},"options":[]}}}}"#
        ) + "\n"
    };
    for id in 0..1000 {
        replay.stdout(ask(id).as_bytes());
    }
    let opened = |action: &&Action| matches!(action, Action::Event(Event::PermissionRequested(_)));
    assert_eq!(replay.actions.iter().filter(opened).count(), 64, "the others are refused");
    replay.clear();
    let call = |id: &str| {
        let update = format!(r#"{{"sessionUpdate":"tool_call_update","toolCallId":"{id}"}}"#);
        format!(
            r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"{session}","update":{update}}}}}"#
        ) + "\n"
    };
    for id in 0..5000 {
        replay.stdout(call(&id.to_string()).as_bytes());
    }
    replay.clear();
    replay.stdout(call("4999").as_bytes());
    assert_eq!(replay.actions, [], "remembered, and nothing new");
    replay.stdout(call("0").as_bytes());
    let [Action::Event(Event::ToolStart(_)), Action::Event(Event::ToolEnd(end))] = &replay.actions[..] else {
        panic!("forgotten: {:?}", replay.actions)
    };
    assert_eq!(end.id, "3976", "as this one is now");
    replay.clear();
    replay.stdout(call(&"x".repeat(2000)).as_bytes());
    assert!(matches!(&replay.actions[..], [Action::Event(Event::Log { .. })]), "an id that is too long");
}
