//! Messages between a terminal and its viewers.

use ipc_protocol::terminal::{DetachKeys, FromTerminal, KeyboardWish, LoanSecret, TerminalSize, ToTerminal};
use proptest::{collection::vec, option::of, prelude::*};

use super::{exit_status, one_of, terminal, text, wire_error};

fn size() -> impl Strategy<Value = TerminalSize> {
    (any::<u16>(), any::<u16>()).prop_map(|(rows, columns)| TerminalSize::bounded(rows, columns))
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..40)
}

fn detach_keys() -> impl Strategy<Value = DetachKeys> {
    one_of(&["ctrl-p,ctrl-q", "ctrl-]", "ctrl-b,d"]).prop_map(|keys| keys.parse().expect("keys"))
}

pub(crate) fn to_terminal() -> BoxedStrategy<ToTerminal> {
    let wish = || one_of(&[KeyboardWish::Watch, KeyboardWish::Type, KeyboardWish::Take]);
    prop_oneof![
        (size(), wish(), any::<bool>()).prop_map(|(size, keyboard, in_place)| ToTerminal::Attach {
            size,
            keyboard,
            in_place
        }),
        bytes().prop_map(ToTerminal::Input),
        size().prop_map(ToTerminal::Resize),
        Just(ToTerminal::Take),
        Just(ToTerminal::Continue),
        (vec(text(), 0..3), of(terminal().prop_map(Box::new)), any::<bool>())
            .prop_map(|(argv, terminal, in_place)| ToTerminal::Shell { argv, terminal, in_place }),
        Just(ToTerminal::EndOfInput),
        (text(), any::<[u8; LoanSecret::LEN]>(), of(detach_keys()), any::<bool>()).prop_map(
            |(socket, secret, detach_keys, watches)| {
                let secret = LoanSecret::new(secret);
                ToTerminal::Lend { socket, secret, detach_keys, watches }
            }
        ),
    ]
    .boxed()
}

pub(crate) fn from_terminal() -> BoxedStrategy<FromTerminal> {
    prop_oneof![
        (size(), any::<bool>()).prop_map(|(size, types)| FromTerminal::Attached { size, types }),
        (bytes(), any::<bool>()).prop_map(|(bytes, alternate)| FromTerminal::Frame { bytes, alternate }),
        any::<bool>().prop_map(|types| FromTerminal::Keyboard { types }),
        Just(FromTerminal::Bell),
        text().prop_map(FromTerminal::Clipboard),
        Just(FromTerminal::Stopped),
        (of(exit_status()), any::<bool>()).prop_map(|(exit, in_line)| FromTerminal::Ended { exit, in_line }),
        wire_error().prop_map(FromTerminal::Refused),
        (any::<bool>(), bytes()).prop_map(|(is_error, bytes)| FromTerminal::Output { is_error, bytes }),
        any::<bool>().prop_map(|accepted| FromTerminal::Lent { accepted }),
        any::<bool>().prop_map(|detached| FromTerminal::Returned { detached }),
    ]
    .boxed()
}
