//! What is told of an answer.

use agents::{Action, HttpPatience};
use ipc_protocol::{AgentSessionConfig, Event, FileChange, Operation, Usage, message::AgentFact};
use serde_json::{Value, json};

use super::*;
use crate::replay::{Replay, config, ready, requests};

#[test]
fn trap_reasoning_and_text_both_say_field_text() {
    let mut replay = running();
    part(&mut replay, "prt_1", "msg_2", json!({ "type": "reasoning", "text": "", "time": { "start": 1 } }));
    delta(&mut replay, "prt_1", "let me");
    part(
        &mut replay,
        "prt_1",
        "msg_2",
        json!({ "type": "reasoning", "text": "let me", "time": { "start": 1, "end": 2 } }),
    );
    part(&mut replay, "prt_2", "msg_2", json!({ "type": "text", "text": "", "time": { "start": 1 } }));
    delta(&mut replay, "prt_2", "hello");
    // Of a part that was never shown nothing is told: it is not known what it is.
    delta(&mut replay, "prt_3", "?");
    assert_eq!(text(&replay), "<let me>hello");
}

#[test]
fn trap_the_prompt_is_a_text_part_too() {
    let mut replay = running();
    part(&mut replay, "prt_0", "msg_1", json!({ "type": "text", "text": "hi" }));
    delta(&mut replay, "prt_0", "hi");
    assert_eq!(text(&replay), "");
}

#[test]
fn trap_usage_is_on_step_finish_and_comes_again() {
    let mut replay = running();
    let tokens = json!({ "input": 10, "output": 4, "reasoning": 2, "cache": { "read": 3, "write": 1 } });
    let step = json!({ "type": "step-finish", "reason": "tool-calls", "cost": 0.5, "tokens": tokens });
    part(&mut replay, "prt_1", "msg_2", step.clone());
    part(&mut replay, "prt_1", "msg_2", step.clone());
    part(&mut replay, "prt_2", "msg_2", step);
    let usage = Usage {
        input_tokens: Some(28),
        output_tokens: Some(12),
        cache_read_tokens: Some(6),
        cache_write_tokens: Some(2),
        cost_usd: Some(1.0),
        cost_source: None,
    };
    let last = told(&replay).into_iter().rev().find_map(|event| match event {
        Event::Usage(usage) => Some(*usage),
        _ => None,
    });
    assert_eq!(last, Some(usage), "of the turn");
    assert_eq!(told(&replay).last(), Some(&Event::context_window(20, 128_000)), "of the last step");
    answer(&mut replay, "msg_2", "msg_1", true);
    idle(&mut replay);
    replay.prompt("again").expect("taken");
    shown(&mut replay, "msg_3");
    busy(&mut replay);
    idle(&mut replay);
    let usages = told(&replay).into_iter().filter_map(|event| match event {
        Event::Complete { usage, .. } => Some(usage),
        _ => None,
    });
    let usages: Vec<_> = usages.collect();
    assert_eq!(usages, [Some(Box::new(usage)), None], "each turn's own");
}

#[test]
fn trap_a_server_error_is_retried_for_long() {
    let mut replay = running();
    status(&mut replay, json!({ "type": "retry", "attempt": 1, "message": "overloaded", "next": 1 }));
    status(&mut replay, json!({ "type": "retry", "attempt": 2, "message": "overloaded", "next": 1 }));
    let attempt = |attempt| Event::Error {
        code: "retry".into(),
        message: "overloaded".into(),
        retryable: true,
        attempt: Some(attempt),
        delay_ms: None,
    };
    let errors: Vec<_> = told(&replay).into_iter().filter(|event| matches!(event, Event::Error { .. })).collect();
    assert_eq!(errors, [attempt(1), attempt(2)]);
    assert_eq!(ends(&replay), 0);
}

/// It then asks again, and again, and says nothing of it.
#[test]
fn trap_an_answer_that_breaks_off_is_asked_for_again_without_a_word() {
    let mut replay = running();
    let step = |reason: &str| json!({ "type": "step-finish", "reason": reason, "cost": 0, "tokens": { "input": 0, "output": 0 } });
    part(&mut replay, "prt_1", "msg_2", step("unknown"));
    part(&mut replay, "prt_2", "msg_2", step("unknown"));
    part(&mut replay, "prt_3", "msg_2", step("stop"));
    part(&mut replay, "prt_4", "msg_2", step("unknown"));
    let attempts = told(&replay).into_iter().filter_map(|event| match event {
        Event::Error { code, retryable: true, attempt, .. } if code == "broken-off" => attempt,
        _ => None,
    });
    let attempts: Vec<_> = attempts.collect();
    assert_eq!(attempts, [1, 2, 1]);
}

#[test]
fn trap_the_model_goes_with_each_prompt() {
    let mut replay = running();
    answer(&mut replay, "msg_2", "msg_1", true);
    idle(&mut replay);
    let model = "mock/mock-two".to_owned();
    replay.operate(&Operation::SetModel { model }).expect("asked");
    replay.prompt("again").expect("taken");
    let models: Vec<_> = requests(&replay.actions)
        .into_iter()
        .filter(|(_, path, _)| path.contains("prompt_async"))
        .map(|(_, _, body)| body["model"]["modelID"].clone())
        .collect();
    assert_eq!(models, ["mock-model", "mock-two"]);
}

#[test]
fn trap_a_sub_agent_is_a_session_of_its_own() {
    let mut replay = running();
    let state = |state: Value| json!({ "type": "tool", "tool": "task", "callID": "call_1", "state": state });
    part(&mut replay, "prt_task", "msg_2", state(json!({ "status": "running", "input": { "description": "look" } })));
    replay.event("session.created", json!({ "info": { "id": "ses_child", "parentID": "ses_1" } }));
    let metadata = json!({ "sessionId": "ses_child", "parentSessionId": "ses_1" });
    let running =
        json!({ "status": "running", "input": { "description": "look" }, "title": "look", "metadata": metadata });
    part(&mut replay, "prt_task", "msg_2", state(running));
    let info = json!({ "id": "msg_c", "sessionID": "ses_child", "role": "assistant", "parentID": "msg_b", "time": {} });
    replay.event("message.updated", json!({ "sessionID": "ses_child", "info": info }));
    let child = |replay: &mut Replay, id: &str, rest: Value| {
        let mut part = json!({ "id": id, "messageID": "msg_c", "sessionID": "ses_child" });
        part.as_object_mut().expect("an object").extend(rest.as_object().expect("an object").clone());
        replay.event("message.part.updated", json!({ "sessionID": "ses_child", "part": part }));
    };
    let before = replay.actions.len();
    child(&mut replay, "prt_1", json!({ "type": "text", "text": "" }));
    let piece = json!({ "sessionID": "ses_child", "messageID": "msg_c", "partID": "prt_1", "field": "text", "delta": "its own " });
    replay.event("message.part.delta", piece);
    child(&mut replay, "prt_1", json!({ "type": "text", "text": "its own words", "time": { "end": 1 } }));
    let of_child = |text: &str| Action::Event(Event::SubagentText { parent: "prt_task".into(), text: text.into() });
    assert_eq!(replay.actions[before..], [of_child("its own "), of_child("words")], "no text of the answer");
    let task = json!({ "id": "msg_b", "sessionID": "ses_child", "role": "user", "time": {} });
    replay.event("message.updated", json!({ "sessionID": "ses_child", "info": task }));
    let asked_of_it =
        json!({ "id": "prt_b", "messageID": "msg_b", "sessionID": "ses_child", "type": "text", "text": "look" });
    replay.event("message.part.updated", json!({ "sessionID": "ses_child", "part": asked_of_it }));
    assert_eq!(replay.actions[before + 2..], [], "its task is no text of its own");
    let ls = json!({ "status": "running", "input": { "command": "ls" } });
    child(&mut replay, "prt_2", json!({ "type": "tool", "tool": "bash", "callID": "call_2", "state": ls }));
    asked(&mut replay, "per_1", json!({ "sessionID": "ses_child", "tool": { "callID": "call_2" } }));
    let parents = told(&replay).into_iter().filter_map(|event| match event {
        Event::ToolStart(start) => Some((start.id, start.parent)),
        Event::PermissionRequested(request) => Some((request.id, request.parent)),
        _ => None,
    });
    let parents: Vec<_> = parents.collect();
    let task = Some("prt_task".to_owned());
    assert_eq!(parents, [("prt_task".into(), None), ("prt_2".into(), task.clone()), ("per_1".into(), task)]);
    // Its end is not the turn's.
    replay.event("session.idle", json!({ "sessionID": "ses_child" }));
    assert_eq!(ends(&replay), 0);
}

/// What takes as long as the model does has no deadline.
#[test]
fn trap_a_compaction_answers_when_the_model_is_done() {
    let mut replay = ready(config());
    replay.operate(&Operation::Compact).expect("asked");
    let patience = replay.actions.iter().rev().find_map(|action| match action {
        Action::Http(request) if request.path.contains("/summarize") => Some(request.patience),
        _ => None,
    });
    assert_eq!(patience, Some(HttpPatience::Long));
}

#[test]
fn trap_without_a_model_the_server_takes_its_own() {
    let mut replay = ready(AgentSessionConfig::new("opencode"));
    replay.prompt("hi").expect("taken");
    assert_eq!(
        requests(&replay.actions).pop().expect("a request").2,
        json!({ "parts": [{ "type": "text", "text": "hi" }] })
    );
}

#[test]
fn diffs_are_told_as_they_become_known() {
    let mut replay = running();
    let write = |status: &str, metadata: Value| {
        let input = json!({ "filePath": "/srv/repo/a", "content": "one\n" });
        let state = json!({ "status": status, "input": input, "metadata": metadata });
        json!({ "type": "tool", "tool": "write", "callID": "call_1", "state": state })
    };
    part(&mut replay, "prt_w", "msg_2", write("running", json!({})));
    let diff = "--- /srv/repo/a\n+++ /srv/repo/a\n@@ -1,1 +1,1 @@\n-zero\n+one\n";
    let metadata = json!({ "filepath": "/srv/repo/a", "diff": diff });
    asked(&mut replay, "per_1", json!({ "permission": "edit", "metadata": metadata, "tool": { "callID": "call_1" } }));
    part(&mut replay, "prt_w", "msg_2", write("completed", json!({ "exists": true })));
    let found: Vec<_> = told(&replay)
        .into_iter()
        .filter_map(|event| match event {
            Event::Diff(diff) => {
                assert_eq!((diff.tool_call_id.as_str(), diff.path.as_str()), ("prt_w", "/srv/repo/a"));
                let [hunk] = &diff.hunks[..] else { panic!("{diff:?}") };
                Some((diff.change, hunk.old_text.clone(), hunk.new_text.clone()))
            }
            _ => None,
        })
        .collect();
    let one = || Some("one\n".to_owned());
    assert_eq!(found, [(None, None, one()), (Some(FileChange::Modified), Some("zero\n".to_owned()), one())]);
}

#[test]
fn pictures_are_told() {
    let mut replay = running();
    let url = "data:image/png;base64,iVBORw0KGgo=";
    let attachments =
        json!([{ "type": "file", "mime": "image/png", "url": url }, { "mime": "text/plain", "url": url }]);
    let state = json!({ "status": "completed", "input": {}, "output": "read", "attachments": attachments });
    part(&mut replay, "prt_r", "msg_2", json!({ "type": "tool", "tool": "read", "callID": "call_1", "state": state }));
    for _ in 0..2 {
        part(&mut replay, "prt_f", "msg_2", json!({ "type": "file", "mime": "image/png", "url": url }));
    }
    let calls: Vec<_> = told(&replay)
        .into_iter()
        .filter_map(|event| match event {
            Event::Image(image) => Some((image.mime_type, image.bytes, image.tool_call_id)),
            _ => None,
        })
        .collect();
    let picture = |call: Option<&str>| ("image/png".to_owned(), 8, call.map(str::to_owned));
    assert_eq!(calls, [picture(Some("prt_r")), picture(None)]);
}

#[test]
fn model_and_mode_are_those_of_the_last_prompt() {
    let mut replay = ready(config());
    let prompt = |replay: &mut Replay, id: &str, mode: &str, model: &str| {
        replay.prompt("hi").expect("taken");
        let model = json!({ "providerID": "mock", "modelID": model });
        let info = json!({ "id": id, "sessionID": "ses_1", "role": "user", "time": {}, "agent": mode, "model": model });
        for _ in 0..2 {
            replay.event("message.updated", json!({ "sessionID": "ses_1", "info": info }));
        }
        busy(replay);
        answer(replay, &format!("{id}-a"), id, true);
        idle(replay);
    };
    prompt(&mut replay, "msg_1", "build", "mock-model");
    let before = replay.actions.len();
    prompt(&mut replay, "msg_3", "build", "mock-model");
    prompt(&mut replay, "msg_5", "plan", "mock-two");
    let settings = |actions: &[Action]| -> Vec<String> {
        let setting = |action: &Action| match action {
            Action::Event(Event::SessionModel { model, .. }) => Some(format!("model {model}")),
            Action::Event(Event::SessionMode { mode, .. }) => Some(format!("mode {mode}")),
            Action::Fact(AgentFact::Settings { model, mode, .. }) => Some(format!("begins {model:?} {mode:?}")),
            _ => None,
        };
        actions.iter().filter_map(setting).collect()
    };
    let begins = ["begins Some(\"mock/mock-model\") None", "begins None Some(\"build\")"];
    assert_eq!(settings(&replay.actions[..before]), begins);
    assert_eq!(settings(&replay.actions[before..]), ["model mock/mock-two", "mode plan"]);
}
