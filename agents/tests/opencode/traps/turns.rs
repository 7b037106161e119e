//! When a turn is over, and when it is not.

use ipc_protocol::{StopReason, WireError};
use serde_json::{Value, json};

use super::*;
use crate::replay::{Replay, config, ready, requests};

#[test]
fn trap_session_idle_twice_after_an_abort_is_one_end() {
    let mut replay = running();
    replay.hold("POST", ABORT);
    replay.abort();
    error(&mut replay, "MessageAbortedError", json!({ "message": "Aborted" }));
    idle(&mut replay);
    assert_eq!(ends(&replay), 0, "too early: a prompt would be overheard");
    replay.answer_to("POST", ABORT, 200, "true");
    assert_eq!(ends(&replay), 0, "what its tools came to is still to come");
    answer(&mut replay, "msg_2", "msg_1", true);
    assert_eq!(ends(&replay), 1);
    idle(&mut replay);
    assert_eq!((ends(&replay), completed(&replay)), (1, vec![StopReason::Cancelled]));
    assert_eq!(errors(&replay), [], "an abort is no error");
}

#[test]
fn trap_session_idle_twice_after_an_error_is_one_end() {
    let mut replay = running();
    replay.hold("POST", ABORT);
    error(&mut replay, "APIError", json!({ "message": "bad", "statusCode": 400, "isRetryable": false }));
    idle(&mut replay);
    assert_eq!((ends(&replay), sent(&replay, "POST", ABORT)), (0, 1), "the run is made sure to be over");
    answer(&mut replay, "msg_2", "msg_1", true);
    idle(&mut replay);
    assert_eq!(ends(&replay), 0);
    replay.answer_to("POST", ABORT, 200, "true");
    assert_eq!((ends(&replay), sent(&replay, "POST", ABORT)), (1, 1));
    assert_eq!(errors(&replay), [("400".to_owned(), "bad".to_owned())]);
    assert_eq!(completed(&replay), [], "an error is no completion");
}

/// The second `session.idle` may come when the next turn has begun.
#[test]
fn trap_an_idle_of_the_run_before_ends_nothing() {
    let mut replay = running();
    replay.abort();
    idle(&mut replay);
    answer(&mut replay, "msg_2", "msg_1", true);
    assert_eq!(ends(&replay), 1);
    replay.prompt("next").expect("taken");
    idle(&mut replay);
    shown(&mut replay, "msg_3");
    idle(&mut replay);
    assert_eq!(ends(&replay), 1);
    busy(&mut replay);
    answer(&mut replay, "msg_4", "msg_3", true);
    idle(&mut replay);
    assert_eq!((ends(&replay), completed(&replay)), (2, vec![StopReason::Cancelled, StopReason::EndTurn]));
}

#[test]
fn trap_an_abort_before_the_run_is_lost() {
    let mut replay = ready(config());
    replay.prompt("hi").expect("taken");
    replay.abort();
    assert_eq!(sent(&replay, "POST", ABORT), 0, "there is nothing to abort yet");
    shown(&mut replay, "msg_1");
    busy(&mut replay);
    assert_eq!(sent(&replay, "POST", ABORT), 1);
    idle(&mut replay);
    assert_eq!(ends(&replay), 1);
}

/// Such errors come without a run, and so without a `session.idle`.
#[test]
fn trap_a_prompt_that_fails_is_never_idle() {
    let mut replay = ready(config());
    replay.prompt("hi").expect("taken");
    error(&mut replay, "UnknownError", json!({ "message": "Agent not found: \"nope\"" }));
    assert_eq!(ends(&replay), 0);
    error(
        &mut replay,
        "UnknownError",
        json!({ "message": "UnknownError: UnknownError\n    at <anonymous> (/x.js:1:2)" }),
    );
    assert_eq!(ends(&replay), 1);
    assert_eq!(errors(&replay).len(), 1, "told once");
}

#[test]
fn trap_an_error_before_the_run_is_not_its_end() {
    let mut replay = ready(config());
    replay.prompt("hi").expect("taken");
    error(&mut replay, "UnknownError", json!({ "message": "File not found: /nope" }));
    shown(&mut replay, "msg_1");
    busy(&mut replay);
    answer(&mut replay, "msg_2", "msg_1", true);
    idle(&mut replay);
    assert_eq!((ends(&replay), completed(&replay), errors(&replay).len()), (1, vec![StopReason::EndTurn], 1));
}

/// A context that is too long is an error, and then the server shortens it and goes on.
#[test]
fn trap_an_overflow_is_no_end() {
    let mut replay = running();
    error(&mut replay, "ContextOverflowError", json!({ "message": "too long" }));
    answer(&mut replay, "msg_2", "msg_1", true);
    busy(&mut replay);
    let info = json!({ "id": "msg_3", "sessionID": "ses_1", "role": "user", "time": {} });
    replay.event("message.updated", json!({ "sessionID": "ses_1", "info": info }));
    let info = json!({ "id": "msg_4", "sessionID": "ses_1", "role": "assistant", "parentID": "msg_3", "summary": true, "time": {} });
    replay.event("message.updated", json!({ "sessionID": "ses_1", "info": info }));
    part(
        &mut replay,
        "prt_1",
        "msg_4",
        json!({ "type": "text", "text": "what was said so far", "time": { "end": 1 } }),
    );
    replay.event("session.compacted", json!({ "sessionID": "ses_1" }));
    busy(&mut replay);
    answer(&mut replay, "msg_5", "msg_3", false);
    part(&mut replay, "prt_2", "msg_5", json!({ "type": "text", "text": "done", "time": { "end": 1 } }));
    answer(&mut replay, "msg_5", "msg_3", true);
    idle(&mut replay);
    assert_eq!((ends(&replay), completed(&replay)), (1, vec![StopReason::EndTurn]));
    assert_eq!((text(&replay).as_str(), errors(&replay).len()), ("done", 1), "the summary is no answer");
}

#[test]
fn trap_a_prompt_while_busy_is_taken_and_one_idle_covers_both() {
    let mut replay = running();
    replay.steer("and this").expect("taken");
    assert_eq!(sent(&replay, "POST", PROMPT), 2);
    shown(&mut replay, "msg_3");
    answer(&mut replay, "msg_2", "msg_1", true);
    busy(&mut replay);
    answer(&mut replay, "msg_4", "msg_3", true);
    idle(&mut replay);
    assert_eq!((ends(&replay), completed(&replay)), (1, vec![StopReason::EndTurn]));
    assert!(matches!(replay.steer("late"), Err(WireError::Unsupported { .. })));
}

#[test]
fn trap_prompts_overtake_each_other_on_their_connections() {
    let mut replay = running();
    replay.hold("POST", PROMPT);
    for text in ["one", "two", "three"] {
        replay.steer(text).expect("taken");
    }
    let said = |replay: &Replay| requests(&replay.actions).pop().expect("a request").2["parts"][0]["text"].clone();
    for text in ["one", "two", "three"] {
        assert_eq!((said(&replay), replay.waiting.len()), (json!(text), 1));
        replay.answer_to("POST", PROMPT, 204, "");
    }
    replay.steer("four").expect("taken");
    replay.steer("never").expect("taken");
    replay.abort();
    assert_eq!(said(&replay), Value::Null, "what was not sent is not sent after an abort");
    assert_eq!(sent(&replay, "POST", PROMPT), 5);
}

#[test]
fn trap_a_steer_that_comes_as_the_run_ends_is_still_on_its_way() {
    let mut replay = running();
    replay.hold("POST", PROMPT);
    replay.steer("and this").expect("taken");
    answer(&mut replay, "msg_2", "msg_1", true);
    idle(&mut replay);
    assert_eq!(ends(&replay), 0, "its run is still to come");
    replay.answer_to("POST", PROMPT, 204, "");
    shown(&mut replay, "msg_3");
    busy(&mut replay);
    answer(&mut replay, "msg_4", "msg_3", true);
    idle(&mut replay);
    assert_eq!((ends(&replay), completed(&replay)), (1, vec![StopReason::EndTurn]));
}

#[test]
fn trap_a_steer_that_is_overheard_is_said_again() {
    let mut replay = running();
    replay.steer("and this").expect("taken");
    shown(&mut replay, "msg_3");
    // The run that was ending took it in, and did not look at it.
    answer(&mut replay, "msg_2", "msg_1", true);
    idle(&mut replay);
    assert_eq!((ends(&replay), sent(&replay, "DELETE", "/session/ses_1/message/msg_3")), (0, 1));
    assert_eq!(requests(&replay.actions).pop().expect("a request").2["parts"][0]["text"], "and this");
    assert_eq!(sent(&replay, "POST", PROMPT), 3);
    shown(&mut replay, "msg_4");
    busy(&mut replay);
    answer(&mut replay, "msg_5", "msg_4", true);
    idle(&mut replay);
    assert_eq!((ends(&replay), sent(&replay, "POST", PROMPT)), (1, 3));
}

#[test]
fn trap_a_steer_that_is_refused_ends_nothing() {
    let mut replay = running();
    replay.hold("POST", PROMPT);
    replay.steer("and this").expect("taken");
    replay.answer_to("POST", PROMPT, 500, "");
    assert_eq!(errors(&replay), [("steer-refused".to_owned(), "status 500".to_owned())]);
    answer(&mut replay, "msg_2", "msg_1", true);
    idle(&mut replay);
    assert_eq!((ends(&replay), completed(&replay)), (1, vec![StopReason::EndTurn]));
}

/// The server copies the messages of a fork one by one, also after it has answered: copies keep the time at which they were made.
#[test]
fn trap_messages_that_a_fork_copies_are_not_told_again() {
    let mut setup = crate::replay::setup(config());
    setup.resume = Some(ipc_protocol::NativeResume { id: Some("ses_old".into()), fork: true });
    let mut replay = Replay::new(setup);
    replay.hold("POST", "/session/ses_old/fork");
    replay.stdout(b"opencode server listening on http://127.0.0.1:4096\n");
    replay.event("server.connected", json!({}));
    let copy = r#"{"id":"ses_1","time":{"created":1000,"updated":1000}}"#;
    replay.answer_to("POST", "/session/ses_old/fork", 200, copy);
    assert_eq!(replay.session, "ses_1");
    replay.prompt("next").expect("taken");
    let message = |replay: &mut Replay, id: &str, parent: Option<&str>, created: u64| {
        let role = if parent.is_some() { "assistant" } else { "user" };
        let time = json!({ "created": created, "completed": parent.map(|_| created + 1) });
        let info = json!({ "id": id, "sessionID": "ses_1", "role": role, "parentID": parent, "time": time,
            "finish": parent.map(|_| "stop") });
        replay.event("message.updated", json!({ "sessionID": "ses_1", "info": info }));
    };
    let says = |replay: &mut Replay, message: &str, text: &str| {
        part(
            replay,
            &format!("text-{message}"),
            message,
            json!({ "type": "text", "text": text, "time": { "end": 1 } }),
        );
        let tokens = json!({ "input": 7, "output": 5, "reasoning": 0, "cache": { "read": 0, "write": 0 } });
        part(
            replay,
            &format!("end-{message}"),
            message,
            json!({ "type": "step-finish", "reason": "stop", "tokens": tokens }),
        );
    };
    message(&mut replay, "msg_copied_prompt", None, 10);
    message(&mut replay, "msg_prompt", None, 2000);
    busy(&mut replay);
    message(&mut replay, "msg_copied_answer", Some("msg_copied_prompt"), 20);
    says(&mut replay, "msg_copied_answer", "old");
    assert_eq!((text(&replay).as_str(), ends(&replay)), ("", 0));
    message(&mut replay, "msg_answer", Some("msg_prompt"), 2001);
    says(&mut replay, "msg_answer", "new");
    idle(&mut replay);
    assert_eq!((text(&replay).as_str(), ends(&replay)), ("new", 1));
    let usage = told(&replay).into_iter().find_map(|event| match event {
        Event::Complete { usage, .. } => usage,
        _ => None,
    });
    assert_eq!(usage.and_then(|usage| usage.output_tokens), Some(5), "of the new answer alone");
}

#[test]
fn a_prompt_with_the_name_of_a_command_calls_it() {
    let mut replay = ready(config());
    let command = "/session/ses_1/command";
    replay.hold("POST", command);
    replay.prompt(" /review main and more").expect("taken");
    let (method, path, body) = requests(&replay.actions).pop().expect("a request");
    assert_eq!((method, path.split('?').next()), ("POST", Some(command)));
    let expected = json!({ "command": "review", "arguments": "main and more", "model": "mock/mock-model" });
    assert_eq!(body, expected);
    replay.steer("and the tests").expect("taken");
    assert_eq!(sent(&replay, "POST", PROMPT), 0, "it would overtake the command");
    shown(&mut replay, "msg_1");
    busy(&mut replay);
    assert_eq!(sent(&replay, "POST", PROMPT), 1);
    shown(&mut replay, "msg_2");
    answer(&mut replay, "msg_3", "msg_2", true);
    idle(&mut replay);
    assert_eq!(ends(&replay), 1, "its answer may come later");
    replay.prompt("/nothing of the kind").expect("taken");
    assert_eq!(sent(&replay, "POST", PROMPT), 2, "no command of that name");
    replay.answer_to("POST", command, 500, "{}");
    assert_eq!((ends(&replay), errors(&replay)), (1, Vec::new()), "of a turn that is over");
}

#[test]
fn a_command_that_is_refused_ends_its_turn() {
    let mut replay = ready(config());
    replay.hold("POST", "/session/ses_1/command");
    replay.prompt("/init").expect("taken");
    replay.answer_to("POST", "/session/ses_1/command", 400, r#"{"message":"no"}"#);
    assert_eq!(errors(&replay), [("prompt-refused".to_owned(), "status 400: no".to_owned())]);
    assert_eq!(ends(&replay), 1);
}
