//! What else is asked of the agent.

use ipc_protocol::{AgentSessionConfig, Json, Operation, WireError};
use serde_json::{Value, json};

use crate::replay::{Replay, config, ready, requests};

fn done(replay: &Replay, request: u64) -> Result<Value, String> {
    match replay.reply(request).expect("a reply") {
        Ok(reply) => Ok(reply.value()),
        Err(error) => Err(error.to_string()),
    }
}

fn operate(replay: &mut Replay, operation: &Operation) -> Result<Value, String> {
    let request = replay.operate(operation).map_err(|error| error.to_string())?;
    done(replay, request)
}

fn prompted(replay: &mut Replay) -> Value {
    replay.prompt("hi").expect("taken");
    requests(&replay.actions).pop().expect("a request").2
}

#[test]
fn the_model_is_changed_if_there_is_one() {
    let mut replay = ready(config());
    let set = |model: &str| Operation::SetModel { model: model.into() };
    assert_eq!(operate(&mut replay, &set("mock/mock-two")), Ok(Value::Null));
    let error = operate(&mut replay, &set("mock/nope")).expect_err("none");
    assert!(error.contains("there are mock/mock-model, mock/mock-two"), "{error}");
    // A bare name is one of the same provider's.
    assert_eq!(operate(&mut replay, &set("mock-model")), Ok(Value::Null));
    assert!(operate(&mut replay, &set("nope")).expect_err("none").contains("there are mock/mock-model"));
    assert!(operate(&mut replay, &set("/nope")).expect_err("no provider").contains("PROVIDER/MODEL"));
    assert_eq!(operate(&mut replay, &set("mock-two")), Ok(Value::Null));
    assert_eq!(prompted(&mut replay)["model"], json!({ "providerID": "mock", "modelID": "mock-two" }));
}

#[test]
fn thinking_is_what_the_model_can() {
    let mut replay = ready(config());
    let set = |level: &str| Operation::SetThinking { level: level.into() };
    assert_eq!(operate(&mut replay, &set("low")), Ok(Value::Null));
    assert!(operate(&mut replay, &set("max")).expect_err("none").contains("it has high, low"));
    // A model that cannot think so is no model for this session until thinking is off.
    let two = Operation::SetModel { model: "mock/mock-two".into() };
    assert!(operate(&mut replay, &two).expect_err("no levels").contains("no levels"));
    assert_eq!(operate(&mut replay, &set("off")), Ok(Value::Null));
    assert_eq!(operate(&mut replay, &two), Ok(Value::Null));
    assert_eq!(prompted(&mut replay)["variant"], Value::Null);
}

#[test]
fn a_mode_comes_with_its_rules() {
    let mut replay = ready(AgentSessionConfig { mode: Some("plan".into()), ..config() });
    let set = |mode: &str| Operation::SetMode { mode: mode.into() };
    assert!(operate(&mut replay, &set("general")).expect_err("a sub-agent").contains("no mode"));
    assert_eq!(operate(&mut replay, &set("build")), Ok(Value::Null));
    let (method, path, body) = requests(&replay.actions).pop().expect("a request");
    assert_eq!((method, path.as_str()), ("PATCH", "/session/ses_1?directory=%2Fsrv%2Fexample%2Fwork"));
    assert_eq!(body["permission"][0], json!({ "permission": "*", "pattern": "*", "action": "ask" }));
    assert!(!body.to_string().contains("deny"), "{body}");
    assert_eq!(operate(&mut replay, &set("plan")), Ok(Value::Null));
    assert!(requests(&replay.actions).pop().expect("a request").2.to_string().contains("deny"));
    assert_eq!(prompted(&mut replay)["agent"], "plan");
}

#[test]
fn choices_are_the_servers_models_agents_and_levels() {
    let mut replay = ready(config());
    let choices = operate(&mut replay, &Operation::ListChoices).expect("an answer");
    let ids = |kind: &str| -> Vec<Value> {
        choices[kind].as_array().into_iter().flatten().map(|choice| choice["id"].clone()).collect()
    };
    assert_eq!(ids("models"), ["mock/mock-model", "mock/mock-two"], "{choices}");
    assert_eq!(ids("modes"), ["build", "plan", "review"], "{choices}");
    assert_eq!(ids("thinking"), ["high", "low"], "{choices}");
}

#[test]
fn state_and_messages_are_as_the_server_says_them() {
    let mut replay = ready(config());
    assert_eq!(operate(&mut replay, &Operation::GetState), Ok(json!({ "id": "ses_1" })));
    replay.hold("GET", "/session/ses_1/message");
    let request = replay.operate(&Operation::GetMessages).expect("asked");
    replay.answer_to("GET", "/session/ses_1/message", 200, r#"[{"info":{"id":"msg_1"},"parts":[]}]"#);
    assert_eq!(done(&replay, request), Ok(json!([{ "info": { "id": "msg_1" }, "parts": [] }])));
    let request = replay.operate(&Operation::GetMessages).expect("asked");
    replay.answer_to("GET", "/session/ses_1/message", 404, r#"{"name":"NotFoundError","data":{"message":"gone"}}"#);
    let error = done(&replay, request).expect_err("gone");
    assert!(error.contains("GET /session/ses_1/message: status 404: gone"), "{error}");
}

#[test]
fn conversations_are_listed() {
    let mut replay = ready(config());
    replay.hold("GET", "/session");
    let request = replay.operate(&Operation::ListSessions).expect("asked");
    let listed = r#"[{"id":"a","title":"T","directory":"/w","time":{"created":1,"updated":1795199138663}},{"id":"b"}]"#;
    replay.answer_to("GET", "/session", 200, listed);
    assert_eq!(
        done(&replay, request),
        Ok(json!([
            { "id": "a", "title": "T", "updatedAt": "2026-11-20T18:25:38.663Z", "cwd": "/w" },
            { "id": "b", "title": null, "updatedAt": null, "cwd": null },
        ]))
    );
}

#[test]
fn a_native_command_goes_as_it_stands() {
    let mut replay = ready(config());
    let native = |message: Value| Operation::Native { message: Json::from(&message) };
    let message = json!({ "method": "post", "path": "/mcp?x=1", "body": { "name": "m" } });
    replay.hold("POST", "/mcp");
    let request = replay.operate(&native(message)).expect("asked");
    assert_eq!(requests(&replay.actions).pop(), Some(("POST", "/mcp?x=1".into(), json!({ "name": "m" }))));
    replay.answer_to("POST", "/mcp", 418, "no JSON");
    assert_eq!(done(&replay, request), Ok(json!({ "status": 418, "body": "no JSON" })));
    for wrong in [
        json!({ "method": "BREW", "path": "/" }),
        json!({ "method": "GET", "path": "nowhere" }),
        json!({ "method": "GET" }),
        json!({ "method": "GET", "path": "/", "bodi": 1 }),
        json!([]),
    ] {
        let error = operate(&mut replay, &native(wrong)).expect_err("no command");
        assert!(error.contains("it takes {"), "{error}");
    }
}

#[test]
fn operations_are_bounded() {
    let mut replay = ready(config());
    replay.hold("GET", "/session/ses_1");
    let refused = (0..100).filter_map(|_| replay.operate(&Operation::GetState).err()).count();
    assert_eq!(refused, 100 - 16);
    assert!(matches!(replay.operate(&Operation::GetState), Err(WireError::Busy)));
}

/// One that was never sent has no run to be ended.
#[test]
fn a_prompt_that_waits_for_a_compaction_can_be_aborted() {
    let mut replay = ready(config());
    replay.hold("POST", "/session/ses_1/summarize");
    replay.operate(&Operation::Compact).expect("asked");
    replay.prompt("hi").expect("taken");
    replay.abort();
    assert_eq!(replay.actions.last(), Some(&agents::Action::TurnEnded));
    replay.answer_to("POST", "/session/ses_1/summarize", 500, "");
    assert!(requests(&replay.actions).iter().all(|(_, path, _)| !path.contains("prompt_async")));
}

/// A compaction is a run of the server's: what it says late would be taken for the next turn's.
#[test]
fn a_prompt_waits_for_the_end_of_a_compaction() {
    let mut replay = ready(config());
    replay.hold("POST", "/session/ses_1/summarize");
    let request = replay.operate(&Operation::Compact).expect("asked");
    assert!(matches!(replay.operate(&Operation::Compact), Err(WireError::Busy)));
    replay.prompt("hi").expect("taken");
    let sent =
        |replay: &Replay| requests(&replay.actions).iter().filter(|(_, path, _)| path.contains("prompt_async")).count();
    replay.answer_to("POST", "/session/ses_1/summarize", 200, "true");
    assert_eq!((sent(&replay), replay.reply(request)), (0, None), "its events are still to come");
    let status = |replay: &mut Replay, kind: &str| {
        replay.event("session.status", json!({ "sessionID": "ses_1", "status": { "type": kind } }));
    };
    status(&mut replay, "busy");
    assert_eq!(sent(&replay), 0);
    status(&mut replay, "idle");
    assert_eq!((sent(&replay), done(&replay, request)), (1, Ok(Value::Null)));
}

#[test]
fn a_compaction_that_is_refused_says_so() {
    let mut replay = ready(AgentSessionConfig::new("opencode"));
    let with = Operation::CompactWith { instructions: "retain the plum".to_owned() };
    assert!(matches!(replay.operate(&with), Err(WireError::Unsupported { .. })), "it takes none");
    replay.hold("POST", "/session/ses_1/summarize");
    let request = replay.operate(&Operation::Compact).expect("asked");
    // No model is named: the server's default is looked up.
    assert_eq!(
        requests(&replay.actions).pop().expect("a request").2,
        json!({ "providerID": "mock", "modelID": "mock-model" })
    );
    replay.answer_to("POST", "/session/ses_1/summarize", 400, r#"{"name":"BadRequest"}"#);
    assert!(done(&replay, request).expect_err("refused").contains("status 400: BadRequest"));
    replay.prompt("hi").expect("nothing waits");
    assert!(requests(&replay.actions).pop().expect("a request").1.contains("prompt_async"));
}
