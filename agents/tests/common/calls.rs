//! What must hold of tool calls, and lines that are too long.

use std::collections::BTreeSet;

use agents::Action;
use ipc_protocol::Event;

/// Each call that begins ends, once, and no other.
pub(crate) fn check_calls(actions: &[Action]) {
    let mut open = BTreeSet::new();
    for action in actions {
        match action {
            Action::Event(Event::ToolStart(start)) => assert!(open.insert(&start.id), "{} begins twice", start.id),
            Action::Event(Event::ToolEnd(end)) => assert!(open.remove(&end.id), "{} has not begun", end.id),
            _ => {}
        }
    }
    assert!(open.is_empty(), "without an end: {open:?}");
}

/// A line that begins so and is too long to be taken, in pieces.
pub(crate) fn endless(beginning: &str) -> impl Iterator<Item = Vec<u8>> + use<> {
    let filler = std::iter::repeat_n(vec![b'x'; 1024 * 1024], 9);
    std::iter::once(beginning.as_bytes().to_vec()).chain(filler).chain([b"\"}}}\n".to_vec()])
}
