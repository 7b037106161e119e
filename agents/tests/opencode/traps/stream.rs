//! The event stream, and what is not on it.

use agents::{Action, AdapterSetup, HttpEvent};
use ipc_protocol::{AgentEndpoint, Event, NativeResume, PermissionAnswer, ResolvedBy, StopReason, WireError};
use serde_json::json;

use super::*;
use crate::replay::{Replay, config, ready, setup};

#[test]
fn trap_resume_of_a_missing_conversation_is_404() {
    for (id, status) in [(Some("ses_gone"), 404), (Some("not an id"), 400), (Some("no-id"), 500), (None, 200)] {
        let resume = Some(NativeResume { id: id.map(str::to_owned), fork: false });
        let mut replay = Replay::new(AdapterSetup { resume, ..setup(config()) });
        let path = id.map_or("/session".to_owned(), |id| format!("/session/{}", id.replace(' ', "%20")));
        replay.hold("GET", &path);
        replay.stdout(b"opencode server listening on http://127.0.0.1:4096\n");
        replay.event("server.connected", json!({}));
        replay.answer_to("GET", &path, status, if id.is_some() { r#"{"data":{"message":"no such"}}"# } else { "[]" });
        let Some(Action::Fail(WireError::NativeSessionMissing { agent, id: missing, reason })) = replay.actions.last()
        else {
            panic!("{:?}", replay.actions.last())
        };
        assert_eq!((agent.as_str(), missing.as_str()), ("opencode", id.unwrap_or("the most recent")));
        assert!(!reason.is_empty());
        assert_eq!(sent(&replay, "POST", "/session"), 0, "never a fresh one");
    }
}

#[test]
fn trap_the_stream_has_events_of_other_sessions() {
    let endpoint = AgentEndpoint { url: Some("http://127.0.0.1:1".into()), user: String::new(), password: None };
    let mut replay = Replay::new(AdapterSetup { endpoint: Some(endpoint), ..setup(config()) });
    replay.event("server.connected", json!({}));
    run(&mut replay);
    let before = replay.actions.len();
    let other = "ses_other";
    replay.event("session.idle", json!({ "sessionID": other }));
    replay.event("session.error", json!({ "sessionID": other, "error": { "name": "APIError", "data": {} } }));
    replay.event("session.error", json!({ "error": { "name": "UnknownError", "data": {} } }));
    asked(&mut replay, "per_1", json!({ "sessionID": other }));
    replay.event("todo.updated", json!({ "sessionID": other, "todos": [] }));
    let info = json!({ "id": "msg_9", "sessionID": other, "role": "user", "time": {} });
    replay.event("message.updated", json!({ "sessionID": other, "info": info }));
    let part = json!({ "id": "prt_9", "messageID": "msg_2", "sessionID": other, "type": "text", "text": "no" });
    replay.event("message.part.updated", json!({ "sessionID": other, "part": part }));
    replay.event("session.created", json!({ "info": { "id": "ses_x", "parentID": other } }));
    replay.event("plugin.added", json!({ "id": "x" }));
    assert_eq!(replay.actions[before..], []);
}

/// On a server of the session's own there is nobody else: what a sub-agent asks that was missed, or forgotten, is answered.
#[test]
fn trap_a_request_may_be_of_a_sub_agent_that_was_missed() {
    let mut replay = running();
    let before = replay.actions.len();
    asked(&mut replay, "per_1", json!({ "sessionID": "ses_missed" }));
    assert!(
        matches!(&replay.actions[before..], [Action::Event(Event::PermissionRequested(request))] if request.id == "per_1")
    );
    replay.permit("per_1", &PermissionAnswer::Allow).expect("open");
    assert_eq!(sent(&replay, "POST", "/permission/per_1/reply"), 1);
}

/// What the event stream does not say any more is asked for, and told once.
#[test]
fn trap_what_is_said_while_the_stream_is_cut_is_not_sent_again() {
    let mut replay = running();
    part(&mut replay, "prt_1", "msg_2", json!({ "type": "text", "text": "", "time": { "start": 1 } }));
    delta(&mut replay, "prt_1", "one ");
    asked(&mut replay, "per_1", json!({}));
    let cut = replay.stream.expect("a stream");
    replay.hold("GET", "/session/ses_1/message");
    replay.hold("GET", "/permission");
    replay.adapter.http(cut, HttpEvent::Failed("reset"), &mut replay.actions);
    replay.follow();
    assert_ne!(replay.stream, Some(cut), "opened again");
    replay.event("server.connected", json!({}));
    // A piece behind the hole cannot be told, and the end has to wait for what is in it.
    delta(&mut replay, "prt_1", "three ");
    let messages = json!([
        { "info": { "id": "msg_1", "sessionID": "ses_1", "role": "user", "time": {} }, "parts": [] },
        { "info": { "id": "msg_2", "sessionID": "ses_1", "role": "assistant", "parentID": "msg_1", "finish": "length",
                    "time": { "completed": 1 } },
          "parts": [
            { "id": "prt_1", "messageID": "msg_2", "sessionID": "ses_1", "type": "text", "text": "one two three four",
              "time": { "start": 1, "end": 2 } },
            { "id": "prt_2", "messageID": "msg_2", "sessionID": "ses_1", "type": "tool", "tool": "bash", "callID": "c",
              "state": { "status": "completed", "input": { "command": "ls" }, "output": "a", "title": "ls" } } ] },
    ]);
    replay.answer_to("GET", "/session/ses_1/message", 200, &messages.to_string());
    assert_eq!(text(&replay), "one two three four");
    let listed = json!([{ "id": "per_2", "sessionID": "ses_1", "permission": "bash", "patterns": ["ls"] }]);
    assert_eq!(ends(&replay), 0);
    replay.answer_to("GET", "/permission", 200, &listed.to_string());
    let by = |id: &str, by| Event::PermissionResolved { id: id.into(), option: None, by };
    assert!(told(&replay).contains(&by("per_1", ResolvedBy::Agent)), "answered by somebody else meanwhile");
    assert!(told(&replay).contains(&by("per_2", ResolvedBy::Abort)), "asked meanwhile, and over with the turn");
    // No run: the turn has ended, and nobody said so.
    assert_eq!((ends(&replay), completed(&replay)), (1, vec![StopReason::MaxTokens]));
    let tools = |event: &Event| matches!(event, Event::ToolStart(_) | Event::ToolEnd(_));
    assert_eq!(told(&replay).iter().filter(|event| tools(event)).count(), 2);
    assert!(!told(&replay).iter().any(|event| matches!(event, Event::SessionLossy { .. })), "nothing is lost");
}

#[test]
fn trap_a_cut_while_the_run_goes_on_loses_nothing() {
    let mut replay = running();
    part(&mut replay, "prt_1", "msg_2", json!({ "type": "text", "text": "", "time": { "start": 1 } }));
    delta(&mut replay, "prt_1", "one ");
    replay.hold("GET", "/session/status");
    let cut = replay.stream.expect("a stream");
    replay.adapter.http(cut, HttpEvent::End, &mut replay.actions);
    replay.follow();
    replay.event("server.connected", json!({}));
    replay.answer_to("GET", "/session/status", 200, r#"{"ses_1":{"type":"busy"}}"#);
    delta(&mut replay, "prt_1", "three");
    part(
        &mut replay,
        "prt_1",
        "msg_2",
        json!({ "type": "text", "text": "one two three", "time": { "start": 1, "end": 2 } }),
    );
    answer(&mut replay, "msg_2", "msg_1", true);
    idle(&mut replay);
    assert_eq!((text(&replay).as_str(), ends(&replay)), ("one two three", 1));
}

#[test]
fn trap_what_cannot_be_looked_up_is_marked() {
    let mut replay = ready(config());
    replay.prompt("hi").expect("taken");
    shown(&mut replay, "msg_1");
    busy(&mut replay);
    replay.hold("GET", "/session/ses_1/message");
    replay.hold("GET", "/session/status");
    let cut = replay.stream.expect("a stream");
    replay.adapter.http(cut, HttpEvent::End, &mut replay.actions);
    replay.follow();
    replay.event("server.connected", json!({}));
    replay.answer_to("GET", "/session/ses_1/message", 500, "");
    let lossy = |event: &Event| matches!(event, Event::SessionLossy { reason } if reason.contains("status 500"));
    assert_eq!(told(&replay).iter().filter(|event| lossy(event)).count(), 1);
    // The prompt was shown and nothing answers it: it may be about to, so it is looked at again, and not for ever.
    let mut looks = 0;
    while ends(&replay) == 0 {
        replay.answer_to("GET", "/session/status", 200, "{}");
        looks += 1;
        assert!(looks < 200, "for ever");
    }
    assert!(looks > 1);
    assert_eq!(errors(&replay)[0].0, "no-answer");
}

#[test]
fn trap_a_server_that_is_gone_is_not_called_for_ever() {
    let mut replay = running();
    let mut opened = 0;
    while !replay.actions.iter().any(|action| matches!(action, Action::Fail(_))) {
        let stream = replay.stream.take().expect("opened again");
        opened += 1;
        assert!(opened < 20, "for ever");
        replay.adapter.http(stream, HttpEvent::Failed("refused"), &mut replay.actions);
        replay.follow();
    }
    assert!(matches!(replay.actions.last(), Some(Action::Fail(WireError::AgentDied { .. }))));
    assert_eq!(ends(&replay), 1);
}
