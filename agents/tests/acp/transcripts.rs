//! The ACP adapter on recorded conversations of four real agents.

use std::collections::HashSet;

use crate::replay::{Record, Replay, TRANSCRIPTS, records, render, writes};
use agents::Action;
use ipc_protocol::{Event, ResolvedBy, StopReason};

fn actions(transcript: &str) -> Vec<Action> {
    let records = records(transcript);
    let mut replay = Replay::of(&records);
    records.iter().for_each(|record| replay.record(record));
    replay.finish()
}

#[test]
fn every_action_is_as_reviewed() {
    for (name, transcript) in TRANSCRIPTS {
        insta::assert_snapshot!(name, render(&actions(transcript)));
    }
}

#[test]
fn what_is_written_is_what_the_recording_has() {
    for (name, transcript) in TRANSCRIPTS {
        let mut written = writes(&actions(transcript));
        for record in records(transcript) {
            let Record::In(message) = record else { continue };
            let same = |own: &serde_json::Value| {
                let params = message["method"] == "initialize"
                    || message["method"] == "session/new"
                    || own["params"] == message["params"];
                own["method"] == message["method"]
                    && own["id"] == message["id"]
                    && own["result"] == message["result"]
                    && params
            };
            match written.iter().position(same) {
                Some(at) => drop(written.remove(at)),
                // A cancel between turns has nothing to cancel.
                None => assert_eq!(message["method"], "session/cancel", "{name}: not written: {message}"),
            }
        }
        assert_eq!(written, Vec::<serde_json::Value>::new(), "{name}: written beyond the recording");
    }
}

#[test]
fn turns_calls_and_requests_are_paired() {
    for (name, transcript) in TRANSCRIPTS {
        let actions = actions(transcript);
        let prompts = writes(&actions).iter().filter(|message| message["method"] == "session/prompt").count();
        let ends = actions.iter().filter(|action| matches!(action, Action::TurnEnded)).count();
        let steered = name.ends_with("abort");
        assert_eq!(ends, prompts - usize::from(steered), "{name}");
        let (mut begun, mut open) = (HashSet::new(), HashSet::new());
        for action in &actions {
            match action {
                Action::Event(Event::ToolStart(start)) => {
                    assert!(begun.insert(start.id.clone()), "{name}: begun twice")
                }
                Action::Event(Event::ToolUpdate(update)) => assert!(begun.contains(&update.id), "{name}"),
                Action::Event(Event::ToolEnd(end)) => assert!(begun.contains(&end.id), "{name}"),
                Action::Event(Event::PermissionRequested(request)) => {
                    assert!(open.insert(request.id.clone()), "{name}")
                }
                Action::Event(Event::PermissionResolved { id, .. }) => assert!(open.remove(id), "{name}"),
                Action::TurnEnded => assert!(open.is_empty(), "{name}: a turn's end closes its requests"),
                Action::Fail(error) => assert!(name.ends_with("missing"), "{name}: {error}"),
                _ => {}
            }
        }
    }
}

/// An agent that waits for the answer to a permission request does not hear the cancellation: the answer comes first.
#[test]
fn an_abort_answers_open_requests_before_it_cancels() {
    for (name, transcript) in TRANSCRIPTS.iter().filter(|(name, _)| name.ends_with("permission")) {
        let actions = actions(transcript);
        let aborted = |action: &Action| {
            matches!(action, Action::Event(Event::PermissionResolved { by: ResolvedBy::Abort, option: None, .. }))
        };
        let at = actions.iter().position(aborted).unwrap_or_else(|| panic!("{name}: no abort"));
        let [answer, cancel] =
            [&actions[at - 1], &actions[at + 1]].map(|write| writes(std::slice::from_ref(write)).remove(0));
        assert_eq!(answer["result"]["outcome"]["outcome"], "cancelled", "{name}");
        assert_eq!(cancel["method"], "session/cancel", "{name}");
        let complete = actions[at..].iter().find_map(|action| match action {
            Action::Event(Event::Complete { stop_reason, .. }) => Some(stop_reason),
            _ => None,
        });
        assert_eq!(complete, Some(&StopReason::Cancelled), "{name}");
    }
}
