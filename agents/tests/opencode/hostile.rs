//! Whatever the server says, and however it arrives: events or a typed error, the same ones for every split.

use agents::{Action, HttpEvent};
use ipc_protocol::Event;
use proptest::{collection::vec, prelude::*, sample::Index};
use serde_json::json;

use crate::calls::{check, endless, in_pieces};
use crate::replay::{Record, Replay, TRANSCRIPTS, config, ready, records};
use crate::spoilt::{Played, Spoilable};

/// A recording, with its name.
#[derive(Clone, Debug)]
pub(crate) struct Recorded(&'static str, Vec<Record>);

impl Spoilable for Recorded {
    type Record = Record;
    const COUNT: usize = TRANSCRIPTS.len();
    // The server's own line is the first: before it there is no stream to put anything on.
    const BEGIN: usize = 1;

    fn nth(index: usize) -> Self {
        Self(TRANSCRIPTS[index].0, records(TRANSCRIPTS[index].1))
    }

    fn records(&mut self) -> &mut Vec<Record> {
        &mut self.1
    }

    fn output(record: &mut Record) -> Option<&mut Vec<u8>> {
        if let Record::Sse(line) = record { Some(line) } else { None }
    }

    fn written(bytes: Vec<u8>) -> Record {
        Record::Sse(bytes)
    }

    fn play(&self, splits: &[Index]) -> Played {
        let mut replay = Replay::of(self.0);
        let mut splits = splits.iter().cycle();
        replay.run(&self.1, |replay, event| in_pieces(event, &mut splits, |piece| replay.feed(piece)));
        (replay.finish(), 0)
    }

    fn flip(record: &mut Record, byte: Index, value: u8) {
        match record {
            Record::Sse(line) | Record::Stdout(line) => {
                let byte = byte.index(line.len());
                line[byte] = value;
            }
            Record::Out(status, body) => {
                *status = status.wrapping_add(value.into());
                body.truncate(byte.index(body.len() + 1).min(body.len()));
                while !body.is_char_boundary(body.len()) {
                    body.pop();
                }
            }
            Record::In(..) => {}
        }
    }

    fn garbage(bytes: Vec<u8>) -> Vec<u8> {
        [b"data: ", &bytes[..], b"\n"].concat()
    }

    fn noise(text: &str) -> Option<(Vec<u8>, usize)> {
        let is_plain = !text.trim_ascii().is_empty() && !text.starts_with("data") && !text.starts_with(':');
        is_plain.then(|| (format!("{text}\ndata: {text}\n").into_bytes(), 2))
    }

    fn is_noise(action: &Action, text: &str) -> bool {
        matches!(action, Action::Event(Event::Log { stream, text: log }) if stream == "events" && log.contains(text))
    }
}

/// Number of spoilt recordings that a property is tried with.
pub(crate) const CASES: u32 = 128;

/// Pieces of what the agent says.
pub(crate) const PIECES: [&str; 24] = [
    "data: ",
    "data:",
    "event: x",
    "id: 1",
    ": ",
    "\"type\":",
    "\"properties\":{",
    "\"session.idle\"",
    "\"session.error\"",
    "\"session.status\"",
    "\"message.updated\"",
    "\"message.part.updated\"",
    "\"message.part.delta\"",
    "\"permission.asked\"",
    "\"question.asked\"",
    "\"sessionID\":\"ses_1\"",
    "\"info\":{",
    "\"part\":{",
    "\"role\":\"user\"",
    "\"role\":\"assistant\"",
    "\"status\":{\"type\":\"busy\"}",
    "\"delta\":\"t\"",
    "\"tokens\":{\"input\":-1}",
    "\"state\":{\"status\":\"running\"}",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_end_well(bytes in vec(any::<u8>(), 0..2000), answer in vec(any::<u8>(), 0..200)) {
        let mut replay = ready(config());
        replay.prompt("hi").expect("taken");
        replay.sse(&bytes);
        replay.hold("POST", "/session/ses_1/abort");
        replay.abort();
        for request in std::mem::take(&mut replay.waiting) {
            replay.adapter.http(request.id, HttpEvent::Head(200), &mut replay.actions);
            replay.adapter.http(request.id, HttpEvent::Body(&answer), &mut replay.actions);
            replay.adapter.http(request.id, HttpEvent::End, &mut replay.actions);
        }
        check(&replay.finish());
    }
}

/// A line that never ends costs one error, and what comes after it is understood.
#[test]
fn an_endless_line_is_dropped_with_a_word() {
    let mut replay = ready(config());
    replay.prompt("hi").expect("taken");
    let before = replay.actions.len();
    let chunk = vec![b'x'; 1024 * 1024];
    for _ in 0..20 {
        replay.sse(&chunk);
    }
    replay.sse(b"\n");
    assert!(
        matches!(&replay.actions[before..], [Action::Event(Event::Error { code, .. })] if code == "line-too-long"),
        "{} actions",
        replay.actions.len()
    );
    replay.event("todo.updated", json!({ "sessionID": "ses_1", "todos": [] }));
    assert_eq!(replay.actions.last(), Some(&Action::Event(Event::Plan { entries: Vec::new() })));
}

/// A turn with a call that runs.
fn in_tool() -> Replay {
    let mut replay = ready(config());
    replay.prompt("hi").expect("taken");
    let info = json!({ "id": "msg_1", "sessionID": "ses_1", "role": "assistant", "parentID": "msg_0", "time": {} });
    replay.event("message.updated", json!({ "sessionID": "ses_1", "info": info }));
    let part = json!({ "id": "prt_1", "messageID": "msg_1", "sessionID": "ses_1", "type": "tool", "tool": "bash",
        "callID": "c", "state": { "status": "running", "input": {} } });
    replay.event("message.part.updated", json!({ "sessionID": "ses_1", "part": part }));
    replay
}

/// Nobody waits for what was in a line that is not taken.
#[test]
fn what_a_dropped_line_asks_or_says_is_not_waited_for() {
    let dropped = |beginning: &str| {
        let mut replay = in_tool();
        let before = replay.actions.len();
        endless(beginning).for_each(|bytes| replay.sse(&bytes));
        let first = replay.actions.remove(before);
        assert!(matches!(&first, Action::Event(Event::Error { code, .. }) if code == "line-too-long"), "{first:?}");
        replay.actions.split_off(before)
    };
    let event = |kind: &str, rest: &str| format!(r#"data: {{"id":"evt_1","type":"{kind}","properties":{{{rest}"x":""#);
    let actions = dropped(&event("permission.asked", r#""id":"per_1","sessionID":"ses_1","permission":"edit","#));
    let refused = crate::replay::requests(&actions);
    assert_eq!((actions.len(), refused[0].1.split('?').next()), (1, Some("/permission/per_1/reply")));
    assert_eq!(refused[0].2["reply"], "reject");
    let actions = dropped(&event("question.asked", r#""id":"que_1","sessionID":"ses_1","#));
    assert_eq!(crate::replay::requests(&actions)[0].1.split('?').next(), Some("/question/que_1/reject"));
    let actions = dropped(&event("message.part.updated", r#""sessionID":"ses_1","#));
    assert!(matches!(&actions[..], [Action::Event(Event::ToolEnd(end))] if end.id == "prt_1"), "it may have ended");
}

/// A list of what is asked that cannot be had is no list of nothing: its calls are not waited for.
#[test]
fn what_is_asked_and_cannot_be_looked_up_is_not_waited_for() {
    let mut replay = in_tool();
    replay.hold("GET", "/permission");
    let stream = replay.stream.expect("a stream");
    replay.adapter.http(stream, HttpEvent::End, &mut replay.actions);
    replay.follow();
    replay.event("server.connected", json!({}));
    replay.answer_to("GET", "/permission", 500, "");
    let ended = |action: &Action| matches!(action, Action::Event(Event::ToolEnd(end)) if end.id == "prt_1");
    assert!(replay.actions.iter().any(ended), "{:?}", replay.actions);
}

/// Nothing that is remembered grows with what the server says.
#[test]
fn a_million_ids_are_not_remembered() {
    let mut replay = ready(config());
    replay.prompt("hi").expect("taken");
    let before = replay.actions.len();
    for id in 0..1000 {
        let asked =
            json!({ "id": format!("per_{id}"), "sessionID": "ses_1", "permission": "bash", "patterns": ["ls"] });
        replay.event("permission.asked", asked);
    }
    let opened = |action: &&Action| matches!(action, Action::Event(Event::PermissionRequested(_)));
    assert_eq!(replay.actions[before..].iter().filter(opened).count(), 64, "the others are refused");
    let refused = crate::replay::requests(&replay.actions[before..]);
    assert_eq!(refused.len(), 1000 - 64);
    assert_eq!(refused[0].2, json!({ "reply": "reject", "message": "too many open requests" }));

    let info = json!({ "id": "msg_1", "sessionID": "ses_1", "role": "assistant", "parentID": "msg_0", "time": {} });
    replay.event("message.updated", json!({ "sessionID": "ses_1", "info": info }));
    let call = |replay: &mut Replay, id: &str| {
        let part = json!({ "id": id, "messageID": "msg_1", "sessionID": "ses_1", "type": "tool", "tool": "bash",
            "callID": id, "state": { "status": "running", "input": {} } });
        let before = replay.actions.len();
        replay.event("message.part.updated", json!({ "sessionID": "ses_1", "part": part }));
        replay.actions.len() - before
    };
    for id in 0..5000 {
        let forgotten = usize::from(id >= 1024);
        assert_eq!(call(&mut replay, &format!("prt_{id}")), 1 + forgotten, "what is forgotten is ended");
    }
    assert_eq!(call(&mut replay, "prt_4999"), 0, "remembered, and nothing new");
    assert_eq!(call(&mut replay, "prt_0"), 2, "forgotten");
    assert_eq!(call(&mut replay, &"x".repeat(2000)), 0, "an id that is too long");
    check(&replay.finish());
}

/// Answers are bounded too.
#[test]
fn an_endless_answer_is_dropped_with_a_word() {
    let mut replay = ready(config());
    replay.hold("GET", "/session/ses_1/message");
    let request = replay.operate(&ipc_protocol::Operation::GetMessages).expect("asked");
    let id = replay.waiting.pop().expect("a request").id;
    replay.adapter.http(id, HttpEvent::Head(200), &mut replay.actions);
    let chunk = vec![b' '; 1024 * 1024];
    for _ in 0..20 {
        replay.adapter.http(id, HttpEvent::Body(&chunk), &mut replay.actions);
    }
    replay.adapter.http(id, HttpEvent::End, &mut replay.actions);
    let reply = replay.reply(request).expect("a reply").as_ref().expect_err("too long");
    assert!(reply.to_string().contains("longer than"), "{reply}");
}
