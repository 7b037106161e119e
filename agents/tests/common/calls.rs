//! What every adapter is tried with, and what must hold then.

use std::collections::BTreeSet;

use agents::Action;
use ipc_protocol::Event;
use proptest::{collection::vec, prelude::*, sample::Index};

/// What must hold of any sequence of actions, whatever the agent wrote.
pub(crate) fn check(actions: &[Action]) {
    let count = |is: fn(&Action) -> bool| actions.iter().filter(|action| is(action)).count();
    let requested = count(|action| matches!(action, Action::Event(Event::PermissionRequested(_))));
    let resolved = count(|action| matches!(action, Action::Event(Event::PermissionResolved { .. })));
    assert_eq!(requested, resolved, "no request is left open");
    check_calls(actions);
    let said = count(|action| matches!(action, Action::Event(Event::Complete { .. } | Event::Error { .. })));
    assert!(count(|action| *action == Action::TurnEnded) <= said, "a turn does not end without a word");
    assert!(count(|action| matches!(action, Action::Ready { .. })) <= 1);
    assert!(count(|action| matches!(action, Action::Fail(_))) <= 1);
}

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

/// Bytes that are nearly something: pieces of JSON and `pieces` of the protocol.
pub(crate) fn garbage(pieces: &[&str]) -> impl Strategy<Value = Vec<u8>> + use<> {
    const JSON: [&str; 16] = [
        "{",
        "}",
        "[",
        "]",
        "\"",
        ":",
        ",",
        "null",
        "1",
        "-1",
        "1e999",
        "99999999999999999999",
        "\\u0000",
        "\\ud800",
        "\n",
        "\r",
    ];
    let pieces: Vec<_> = JSON.iter().chain(pieces).map(|piece| piece.as_bytes().to_vec()).collect();
    let piece = prop_oneof![
        4 => prop::sample::select(pieces),
        1 => vec(any::<u8>(), 0..8),
    ];
    vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

/// Gives `bytes` away in pieces that end where `splits` say.
pub(crate) fn in_pieces<'a>(
    mut bytes: &[u8],
    splits: &mut impl Iterator<Item = &'a Index>,
    mut give: impl FnMut(&[u8]),
) {
    while !bytes.is_empty() {
        let at = splits.next().map_or(bytes.len(), |split| split.index(bytes.len()) + 1);
        give(&bytes[..at]);
        bytes = &bytes[at..];
    }
}
