//! One test for each trap of the server's; and what the server says in them.

mod content;
mod permissions;
mod stream;
mod turns;

use agents::Action;
use ipc_protocol::{Event, StopReason};
use serde_json::{Value, json};

use crate::replay::{Replay, config, ready, requests};

pub(super) const PROMPT: &str = "/session/ses_1/prompt_async";
pub(super) const ABORT: &str = "/session/ses_1/abort";

pub(super) fn status(replay: &mut Replay, status: Value) {
    replay.event("session.status", json!({ "sessionID": "ses_1", "status": status }));
}

pub(super) fn busy(replay: &mut Replay) {
    status(replay, json!({ "type": "busy" }));
}

/// Said as the server says it: as a status, and by itself.
pub(super) fn idle(replay: &mut Replay) {
    status(replay, json!({ "type": "idle" }));
    replay.event("session.idle", json!({ "sessionID": "ses_1" }));
}

/// The server shows a prompt.
pub(super) fn shown(replay: &mut Replay, id: &str) {
    let info = json!({ "id": id, "sessionID": "ses_1", "role": "user", "time": { "created": 1 } });
    replay.event("message.updated", json!({ "sessionID": "ses_1", "info": info }));
}

/// The server shows an answer to a prompt.
pub(super) fn answer(replay: &mut Replay, id: &str, prompt: &str, done: bool) {
    let time = if done { json!({ "created": 1, "completed": 2 }) } else { json!({ "created": 1 }) };
    let finish = done.then_some("stop");
    let info = json!({ "id": id, "sessionID": "ses_1", "role": "assistant", "parentID": prompt, "time": time,
        "providerID": "mock", "modelID": "mock-model", "path": { "cwd": "/srv/repo/sub", "root": "/srv/repo" }, "finish": finish });
    replay.event("message.updated", json!({ "sessionID": "ses_1", "info": info }));
}

pub(super) fn part(replay: &mut Replay, id: &str, message: &str, rest: Value) {
    let mut part = json!({ "id": id, "messageID": message, "sessionID": "ses_1" });
    part.as_object_mut().expect("an object").extend(rest.as_object().expect("an object").clone());
    replay.event("message.part.updated", json!({ "sessionID": "ses_1", "part": part, "time": 1 }));
}

pub(super) fn delta(replay: &mut Replay, id: &str, text: &str) {
    let delta = json!({ "sessionID": "ses_1", "messageID": "msg_2", "partID": id, "field": "text", "delta": text });
    replay.event("message.part.delta", delta);
}

pub(super) fn error(replay: &mut Replay, name: &str, data: Value) {
    replay.event("session.error", json!({ "sessionID": "ses_1", "error": { "name": name, "data": data } }));
}

pub(super) fn asked(replay: &mut Replay, id: &str, rest: Value) {
    let mut asked =
        json!({ "id": id, "sessionID": "ses_1", "permission": "bash", "patterns": ["ls"], "always": ["ls *"] });
    asked.as_object_mut().expect("an object").extend(rest.as_object().expect("an object").clone());
    replay.event("permission.asked", asked);
}

/// A turn that runs: prompt `msg_1`, answer `msg_2`.
pub(super) fn running() -> Replay {
    let mut replay = ready(config());
    run(&mut replay);
    replay
}

pub(super) fn run(replay: &mut Replay) {
    replay.prompt("hi").expect("taken");
    shown(replay, "msg_1");
    busy(replay);
    answer(replay, "msg_2", "msg_1", false);
}

pub(super) fn ends(replay: &Replay) -> usize {
    replay.actions.iter().filter(|action| **action == Action::TurnEnded).count()
}

pub(super) fn sent(replay: &Replay, method: &str, path: &str) -> usize {
    let is_it = |(of, at, _): &&(&str, String, Value)| *of == method && at.split('?').next() == Some(path);
    requests(&replay.actions).iter().filter(is_it).count()
}

/// What was told, without what is of the agent's start.
pub(super) fn told(replay: &Replay) -> Vec<Event> {
    let event = |action: &Action| match action {
        Action::Event(event) => Some(event.clone()),
        _ => None,
    };
    replay.actions.iter().filter_map(event).collect()
}

pub(super) fn text(replay: &Replay) -> String {
    let text = told(replay).into_iter().filter_map(|event| match event {
        Event::Text { text } => Some(text),
        Event::Thinking { text } => Some(format!("<{text}>")),
        _ => None,
    });
    text.collect()
}

pub(super) fn completed(replay: &Replay) -> Vec<StopReason> {
    let complete = |event| match event {
        Event::Complete { stop_reason, .. } => Some(stop_reason),
        _ => None,
    };
    told(replay).into_iter().filter_map(complete).collect()
}

pub(super) fn errors(replay: &Replay) -> Vec<(String, String)> {
    let error = |event| match event {
        Event::Error { code, message, .. } => Some((code, message)),
        _ => None,
    };
    told(replay).into_iter().filter_map(error).collect()
}
