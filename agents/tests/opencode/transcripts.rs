//! The adapter on recorded conversations of the real server.

use std::collections::HashSet;

use agents::Action;
use ipc_protocol::{Event, StopReason};

use crate::replay::{Record, Replay, TRANSCRIPTS, records, render};

fn actions(name: &str, transcript: &str) -> Vec<Action> {
    let mut replay = Replay::of(name);
    replay.run(&records(transcript), |replay, event| replay.sse(event));
    replay.finish()
}

#[test]
fn every_action_is_as_reviewed() {
    for (name, transcript) in TRANSCRIPTS {
        insta::assert_snapshot!(name, render(&actions(name, transcript)));
    }
}

#[test]
fn turns_calls_and_requests_are_paired() {
    for (name, transcript) in TRANSCRIPTS {
        let actions = actions(name, transcript);
        let records = records(transcript);
        let is_prompt = |record: &&Record| matches!(record, Record::In(_, path, _) if path.ends_with("/prompt_async"));
        let prompts = records.iter().filter(is_prompt).count();
        let ends = actions.iter().filter(|action| **action == Action::TurnEnded).count();
        // A prompt that steers is part of a turn; one of another session is none.
        let others = match name {
            "steer" | "sample-resume" => 1,
            "sample-abort" => 2,
            _ => 0,
        };
        assert_eq!(ends, prompts - others, "{name}");
        let (mut begun, mut ended, mut open) = (HashSet::new(), HashSet::new(), HashSet::new());
        for action in &actions {
            match action {
                Action::Event(Event::ToolStart(start)) => {
                    assert!(begun.insert(start.id.clone()), "{name}: begun twice");
                    assert!(start.parent.as_ref().is_none_or(|parent| begun.contains(parent)), "{name}: {start:?}");
                }
                Action::Event(Event::ToolUpdate(update)) => {
                    assert!(begun.contains(&update.id) && !ended.contains(&update.id), "{name}");
                }
                Action::Event(Event::ToolEnd(end)) => {
                    assert!(begun.contains(&end.id) && ended.insert(end.id.clone()), "{name}");
                }
                Action::Event(Event::PermissionRequested(request)) => {
                    assert!(open.insert(request.id.clone()), "{name}");
                }
                Action::Event(Event::PermissionResolved { id, .. }) => assert!(open.remove(id), "{name}"),
                Action::TurnEnded => assert!(open.is_empty(), "{name}: a turn's end closes its requests"),
                Action::Event(Event::Log { text, .. }) => panic!("{name}: not understood: {text}"),
                Action::Fail(error) => panic!("{name}: {error}"),
                _ => {}
            }
        }
        assert_eq!(begun, ended, "{name}: each call that begins ends");
    }
}

/// What the answer is, as the deltas say it, is what the whole parts say.
#[test]
fn the_text_is_told_once() {
    let text = |name: &str| {
        let (_, transcript) = TRANSCRIPTS.iter().find(|(known, _)| *known == name).expect("a transcript");
        let mut text = String::new();
        for action in actions(name, transcript) {
            match action {
                Action::Event(Event::Text { text: more }) => text.push_str(&more),
                Action::Event(Event::Thinking { text: more }) => text.push_str(&format!("<{more}>")),
                Action::TurnEnded => text.push('|'),
                _ => {}
            }
        }
        text
    };
    assert_eq!(text("basic"), "Hello from mock |<let ><me ><think>thought about it |");
    // What shortens the conversation is no answer.
    assert_eq!(text("compact"), "Hello from mock |Hello from mock |");
    assert_eq!(text("abort"), "||slow |Hello from mock |");
    // What a sub-agent says is no text of the answer.
    assert!(text("task").starts_with("Hello from mock done: <task id="), "{}", text("task"));
}

#[test]
fn how_turns_end() {
    let ends = |name: &str| {
        let (_, transcript) = TRANSCRIPTS.iter().find(|(known, _)| *known == name).expect("a transcript");
        let end = |action: &Action| match action {
            Action::Event(Event::Complete { stop_reason: StopReason::EndTurn, .. }) => Some("end".to_owned()),
            Action::Event(Event::Complete { stop_reason: StopReason::Cancelled, .. }) => Some("cancelled".into()),
            Action::Event(Event::Error { code, attempt: None, .. }) => Some(format!("error {code}")),
            _ => None,
        };
        actions(name, transcript).iter().filter_map(end).collect::<Vec<_>>()
    };
    assert_eq!(ends("abort"), ["cancelled", "cancelled", "cancelled", "end"]);
    assert_eq!(ends("steer"), ["end"]);
    assert_eq!(ends("cut"), ["cancelled"]);
    assert_eq!(ends("nofile"), ["error UnknownError", "end"]);
    assert_eq!(ends("errors"), ["error 400", "cancelled", "error UnknownError", "error UnknownError", "end"],);
    assert_eq!(ends("reject"), ["end", "end"]);
}
