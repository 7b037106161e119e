//! The adapter on recorded conversations of the real agent.

use std::collections::HashSet;

use agents::Action;
use ipc_protocol::Event;
use serde_json::Value;

use crate::replay::{Record, TRANSCRIPTS, Transcript, render, writes};

#[test]
fn every_action_is_as_reviewed() {
    for transcript in TRANSCRIPTS {
        insta::assert_snapshot!(transcript.name, render(&transcript.actions()));
    }
}

#[test]
fn what_is_written_is_what_the_recording_has() {
    // A driver without names, and one that goes on where the adapter gives up.
    let own = TRANSCRIPTS.iter().filter(|transcript| !transcript.name.starts_with("unnamed"));
    for transcript in own.filter(|transcript| transcript.name != "continue-none") {
        let recorded = transcript.records().into_iter().filter_map(|record| match record {
            Record::In(message) => Some(message),
            _ => None,
        });
        // What the model is told of a rejection is ours to word.
        let plain = |mut message: Value| {
            if message["response"]["response"]["interrupt"] == true {
                message["response"]["response"]["message"] = Value::Null;
            }
            message.to_string()
        };
        let recorded: Vec<_> = recorded.map(plain).collect();
        let written: Vec<_> = writes(&transcript.actions()).into_iter().map(plain).collect();
        assert_eq!(written, recorded, "{}", transcript.name);
    }
}

#[test]
fn turns_calls_and_requests_are_paired() {
    for transcript in TRANSCRIPTS {
        let name = transcript.name;
        if name.ends_with("missing") || name == "continue-none" {
            continue;
        }
        let (mut begun, mut open) = (HashSet::new(), HashSet::new());
        let mut turns = 0;
        for action in transcript.actions() {
            match action {
                Action::Event(Event::ToolStart(start)) => {
                    assert!(begun.insert(start.id.clone()), "{name}: begun twice");
                }
                Action::Event(Event::ToolUpdate(update)) => assert!(begun.contains(&update.id), "{name}"),
                Action::Event(Event::ToolEnd(end)) => assert!(begun.remove(&end.id), "{name}: ended twice"),
                Action::Event(Event::PermissionRequested(request)) => {
                    assert!(open.insert(request.id.clone()), "{name}");
                }
                Action::Event(Event::PermissionResolved { id, .. }) => assert!(open.remove(&id), "{name}"),
                Action::TurnEnded => turns += 1,
                Action::Fail(error) => panic!("{name}: {error}"),
                _ => {}
            }
        }
        assert!(begun.is_empty() && open.is_empty(), "{name}: {begun:?} {open:?} left open");
        assert!(turns > 0, "{name}");
    }
}

/// The stream says everything that the answers said, in order.
#[test]
fn the_words_are_those_of_the_results() {
    let transcript = Transcript::named("turns");
    let mut told = String::new();
    let mut turns = Vec::new();
    for action in transcript.actions() {
        match action {
            Action::Event(Event::Text { text }) => told.push_str(&text),
            Action::TurnEnded => turns.push(std::mem::take(&mut told)),
            _ => {}
        }
    }
    let results = transcript.records().into_iter().filter_map(|record| match record {
        Record::Out(line) => {
            let line: Value = serde_json::from_slice(&line).ok()?;
            (line["type"] == "result").then(|| line["result"].as_str().unwrap_or_default().to_owned())
        }
        _ => None,
    });
    for (told, result) in turns.iter().zip(results) {
        assert!(told.ends_with(&result), "{told:?} does not end with {result:?}");
    }
    assert_eq!(turns.len(), 5);
}
