//! The adapter on recorded conversations of the real agent.

use std::collections::HashSet;

use agents::Action;
use ipc_protocol::Event;

use crate::{
    CALLS_END_WITH_TURN, MAKE, SNAPSHOTS, TRANSCRIPTS,
    recorded::{assert_writes, render, replayed},
};

#[test]
fn every_action_is_as_reviewed() {
    insta::with_settings!({ snapshot_path => SNAPSHOTS }, {
        for (name, transcript) in TRANSCRIPTS {
            insta::assert_snapshot!(name, render(&replayed(MAKE, transcript)));
        }
    });
}

#[test]
fn what_is_written_is_what_the_recording_has() {
    for (_, transcript) in TRANSCRIPTS {
        assert_writes(MAKE, transcript);
    }
}

#[test]
fn calls_and_requests_are_paired() {
    for (name, transcript) in TRANSCRIPTS {
        let (mut begun, mut open) = (HashSet::new(), HashSet::new());
        for action in replayed(MAKE, transcript) {
            match action {
                Action::Event(Event::ToolStart(start)) => assert!(begun.insert(start.id), "{name}: begun twice"),
                Action::Event(Event::ToolUpdate(update)) => assert!(begun.contains(&update.id), "{name}"),
                Action::Event(Event::ToolEnd(end)) => assert!(begun.remove(&end.id), "{name}: ended twice"),
                Action::Event(Event::PermissionRequested(request)) => assert!(open.insert(request.id), "{name}"),
                Action::Event(Event::PermissionResolved { id, .. }) => assert!(open.remove(&id), "{name}"),
                Action::TurnEnded if CALLS_END_WITH_TURN => assert_eq!((begun.len(), open.len()), (0, 0), "{name}"),
                _ => {}
            }
        }
        assert_eq!((begun.len(), open.len()), (0, 0), "{name}");
    }
}
