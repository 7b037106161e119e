//! Requests for permission, and questions.

use ipc_protocol::{Event, PermissionAnswer, ResolvedBy, WireError};
use serde_json::{Value, json};

use super::*;
use crate::replay::{Replay, requests};

#[test]
fn trap_a_pending_permission_stays_listed_after_an_abort() {
    let mut replay = running();
    replay.hold("POST", ABORT);
    asked(&mut replay, "per_1", json!({}));
    replay.event("question.asked", json!({ "id": "que_1", "sessionID": "ses_1", "questions": [] }));
    let before = replay.actions.len();
    replay.abort();
    let after: Vec<_> = requests(&replay.actions[before..]).into_iter().map(|(_, path, body)| (path, body)).collect();
    let path = |path: &str| format!("{path}?directory=%2Fsrv%2Fexample%2Fwork");
    assert_eq!(
        after,
        [
            (path("/permission/per_1/reply"), json!({ "reply": "reject" })),
            (path("/question/que_1/reject"), Value::Null),
            (path(ABORT), Value::Null),
        ]
    );
    let resolved = |id: &str| Event::PermissionResolved { id: id.into(), option: None, by: ResolvedBy::Abort };
    assert!(told(&replay).ends_with(&[resolved("per_1"), resolved("que_1")]));
    // What is asked now is not to be answered either.
    asked(&mut replay, "per_2", json!({}));
    assert_eq!(told(&replay).last(), Some(&resolved("per_2")));
}

#[test]
fn trap_a_reject_takes_the_others_with_it() {
    let mut replay = running();
    asked(&mut replay, "per_1", json!({}));
    asked(&mut replay, "per_2", json!({}));
    replay.permit("per_1", &PermissionAnswer::Deny).expect("open");
    replay.event("permission.replied", json!({ "sessionID": "ses_1", "requestID": "per_1", "reply": "reject" }));
    replay.event("permission.replied", json!({ "sessionID": "ses_1", "requestID": "per_2", "reply": "reject" }));
    let resolved: Vec<_> =
        told(&replay).into_iter().filter(|event| matches!(event, Event::PermissionResolved { .. })).collect();
    let by = |id: &str, by| Event::PermissionResolved { id: id.into(), option: Some("reject".into()), by };
    assert_eq!(resolved, [by("per_1", ResolvedBy::User { name: None }), by("per_2", ResolvedBy::Agent)]);
    let gone = replay.permit("per_2", &PermissionAnswer::Allow);
    assert_eq!(gone, Err(WireError::UnknownPermission { id: "per_2".into() }));
}

#[test]
fn trap_a_bare_reject_ends_the_turn_and_one_with_a_message_does_not() {
    let mut replay = running();
    let body = |replay: &Replay| requests(&replay.actions).pop().expect("a request").2;
    asked(&mut replay, "per_1", json!({}));
    replay.permit("per_1", &PermissionAnswer::DenyWith { message: "use ls".into() }).expect("open");
    assert_eq!(body(&replay), json!({ "reply": "reject", "message": "use ls" }));
    asked(&mut replay, "per_2", json!({}));
    replay.permit("per_2", &PermissionAnswer::Deny).expect("open");
    assert_eq!(body(&replay), json!({ "reply": "reject" }));
    asked(&mut replay, "per_3", json!({}));
    replay.permit("per_3", &PermissionAnswer::Option("always".into())).expect("open");
    assert_eq!(body(&replay), json!({ "reply": "always" }));
    asked(&mut replay, "per_4", json!({}));
    let input = ipc_protocol::Json::null();
    let edited = replay.permit("per_4", &PermissionAnswer::AllowWith { input });
    assert!(matches!(edited, Err(WireError::Unsupported { .. })));
    let unknown = replay.permit("per_4", &PermissionAnswer::Option("maybe".into()));
    assert!(
        matches!(unknown, Err(WireError::UnknownOption { options, .. }) if options == ["once", "always", "reject"])
    );
    replay.permit("per_4", &PermissionAnswer::Allow).expect("still open");
    assert_eq!(body(&replay), json!({ "reply": "once" }));
}

#[test]
fn trap_a_request_comes_before_its_input_and_its_paths_are_relative() {
    let mut replay = running();
    let request = |replay: &Replay| match told(replay).pop() {
        Some(Event::PermissionRequested(request)) => *request,
        other => panic!("{other:?}"),
    };
    let tool = json!({ "messageID": "msg_2", "callID": "call_1" });
    let pending =
        json!({ "type": "tool", "tool": "read", "callID": "call_1", "state": { "status": "pending", "input": {} } });
    part(&mut replay, "prt_1", "msg_2", pending);
    asked(
        &mut replay,
        "per_1",
        json!({ "permission": "read", "patterns": ["../other/x"], "metadata": {}, "tool": tool }),
    );
    let early = request(&replay);
    assert_eq!(
        (early.tool.as_str(), early.kind.as_str(), early.paths),
        ("read", "read", vec!["/srv/other/x".to_owned()])
    );
    assert_eq!(early.tool_call_id.as_deref(), Some("prt_1"));
    let state = json!({ "status": "running", "input": { "filePath": "/srv/repo/y" } });
    part(&mut replay, "prt_1", "msg_2", json!({ "type": "tool", "tool": "read", "callID": "call_1", "state": state }));
    let metadata = json!({ "filepath": "/etc/x", "parentDir": "/etc" });
    let outside =
        json!({ "permission": "external_directory", "patterns": ["/etc/*"], "metadata": metadata, "tool": tool });
    asked(&mut replay, "per_2", outside);
    let outside = request(&replay);
    assert_eq!((outside.kind.as_str(), outside.paths), ("read", vec!["/etc/x".to_owned()]), "what its tool does");
    assert_eq!(outside.input.value(), json!({ "filePath": "/srv/repo/y" }));
}

/// The input is the model's, with keys that the tool does not have; the patterns are the server's.
#[test]
fn trap_the_server_says_which_file_whatever_the_input_has() {
    let mut replay = running();
    let tool = json!({ "messageID": "msg_2", "callID": "call_1" });
    let input = json!({ "filePath": "/srv/repo/secrets/key", "filepath": "/srv/repo/src/ok" });
    let state = json!({ "status": "running", "input": input });
    part(&mut replay, "prt_1", "msg_2", json!({ "type": "tool", "tool": "read", "callID": "call_1", "state": state }));
    for (id, permission, patterns, paths) in [
        ("per_1", "read", ["secrets/key"], vec!["/srv/repo/secrets/key"]),
        ("per_2", "edit", ["secrets/other"], vec!["/srv/repo/secrets/key", "/srv/repo/secrets/other"]),
        ("per_3", "external_directory", ["/etc/*"], vec!["/etc/*"]),
    ] {
        let rest = json!({ "permission": permission, "patterns": patterns, "metadata": {}, "tool": tool });
        asked(&mut replay, id, rest);
        let Some(Event::PermissionRequested(request)) = told(&replay).pop() else { panic!("{:?}", told(&replay)) };
        assert_eq!(request.paths, paths, "{permission}");
    }
}

/// A policy has to know all paths: what has too many, or one that is too long, is refused, not cut.
#[test]
fn a_request_of_which_not_all_paths_are_taken_is_refused() {
    let mut replay = running();
    let long = format!("{}etc/x", "a/../".repeat(1000));
    let many: Vec<_> = (0..1000).map(|number| format!("src/{number}")).chain(["/etc/x".to_owned()]).collect();
    for (id, patterns) in [("per_1", vec![long]), ("per_2", many.clone())] {
        asked(&mut replay, id, json!({ "permission": "edit", "patterns": patterns, "metadata": {} }));
        assert!(!matches!(told(&replay).pop(), Some(Event::PermissionRequested(_))), "{id}");
        let (_, path, body) = requests(&replay.actions).pop().expect("a request");
        assert!(path.starts_with(&format!("/permission/{id}/reply")), "{path}");
        assert_eq!(body["reply"], "reject", "{body}");
    }
    let most = &many[1..];
    asked(&mut replay, "per_3", json!({ "permission": "edit", "patterns": most, "metadata": {} }));
    let Some(Event::PermissionRequested(request)) = told(&replay).pop() else { panic!("{:?}", told(&replay)) };
    assert_eq!(request.paths.len(), 1000);
}

#[test]
fn trap_questions_take_the_way_of_permissions() {
    let question = |replay: &mut Replay, id: &str, questions: Value| {
        replay.event("question.asked", json!({ "id": id, "sessionID": "ses_1", "questions": questions }));
    };
    let one = json!([{ "question": "Which?", "options": [{ "label": "A" }, { "label": "B" }] }]);
    let last = |replay: &Replay| {
        let (_, path, body) = requests(&replay.actions).pop().expect("a request");
        (path.split('?').next().expect("a path").to_owned(), body)
    };
    let mut replay = running();
    question(&mut replay, "que_1", one.clone());
    let Some(Event::PermissionRequested(request)) = told(&replay).pop() else { panic!("no request") };
    assert_eq!((request.kind.as_str(), request.title.as_str()), ("question", "Which?"));
    let options: Vec<_> = request.options.iter().map(|option| (option.id.as_str(), option.name.as_str())).collect();
    assert_eq!(options, [("answer-1", "A"), ("answer-2", "B"), ("reject", "Do not answer")]);
    assert!(replay.permit("que_1", &PermissionAnswer::Allow).is_err(), "to be allowed is no answer");
    replay.permit("que_1", &PermissionAnswer::Option("answer-2".into())).expect("open");
    assert_eq!(last(&replay), ("/question/que_1/reply".to_owned(), json!({ "answers": [["B"]] })));

    question(&mut replay, "que_2", one.clone());
    replay.permit("que_2", &PermissionAnswer::Deny).expect("open");
    assert_eq!(last(&replay), ("/question/que_2/reject".to_owned(), Value::Null));

    let several = json!([{ "question": "P?", "multiple": true, "options": [{ "label": "x" }] }, { "question": "Q?" }]);
    question(&mut replay, "que_3", several);
    let input = ipc_protocol::Json::from(&json!({ "answers": { "Q?": "free words", "P?": ["x", "y"] } }));
    replay.permit("que_3", &PermissionAnswer::AllowWith { input }).expect("open");
    assert_eq!(last(&replay), ("/question/que_3/reply".to_owned(), json!({ "answers": [["x", "y"], ["free words"]] })));
}
