//! Words for viewers that do not read.

use std::{
    os::unix::net::UnixStream as StdStream,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use ipc_protocol::{
    codec::Inbox,
    terminal::{FromTerminal, KeyboardWish},
};
use tokio::net::UnixStream;

use super::{screen, size};
use crate::terminal::{
    NewViewer, SharedTerminal, TerminalNotice, TerminalState, ViewerLink,
    viewer::{FRAME_INTERVAL, serve},
};

fn state() -> TerminalState {
    TerminalState {
        screen: screen(24, 80),
        viewers: Vec::new(),
        next_viewer: 0,
        typist: None,
        unread: std::collections::VecDeque::new(),
        drops_input: false,
        new_size: None,
        ended: None,
        notices: std::collections::VecDeque::new(),
        wake: Arc::default(),
        session_wake: Arc::default(),
        changes: tokio::sync::watch::Sender::new(0),
    }
}

#[test]
fn words_for_a_viewer_that_does_not_read_are_bounded() {
    let mut state = state();
    state.attach(1, size(24, 80), KeyboardWish::Type);
    state.attach(2, size(24, 80), KeyboardWish::Watch);
    for number in 0..1000 {
        state.screen.feed(format!("\x07\x1b]52;c;{}\x07", ["YQ==", "Yg=="][number % 2]).as_bytes());
        state.apply_effects();
        state.type_bytes(2, b"x");
    }
    let words = state.take_words(1);
    assert_eq!(words.last(), Some(&FromTerminal::Clipboard("b".to_owned())), "the latest");
    assert!(words.len() <= 3, "{words:?}");
    assert_eq!(state.take_words(2), [FromTerminal::Keyboard { types: false }]);
    assert!(state.unread.is_empty(), "who only watches types nothing");
}

#[test]
fn the_keyboard_goes_to_the_heir_and_to_who_takes_it() {
    let mut state = state();
    for (id, wish) in [(1, KeyboardWish::Type), (2, KeyboardWish::Watch), (3, KeyboardWish::Type)] {
        state.attach(id, size(10, 20 + u16::try_from(id).expect("small")), wish);
    }
    assert_eq!((state.typist, state.screen.size()), (Some(1), size(10, 21)));
    state.detach(1);
    assert_eq!((state.typist, state.screen.size()), (Some(3), size(10, 23)), "who watches is no heir");
    state.attach(4, size(5, 30), KeyboardWish::Take);
    assert_eq!((state.typist, state.screen.size()), (Some(4), size(5, 30)));
    assert_eq!(state.take_words(3).last(), Some(&FromTerminal::Keyboard { types: false }));
    state.detach(4);
    state.detach(3);
    assert_eq!(state.typist, None);
    state.detach(2);
    assert_eq!(state.notices.back(), Some(&TerminalNotice::Detached { viewer: 2, last: true }));
}

#[test]
fn a_program_that_reads_nothing_holds_a_bounded_amount() {
    let mut state = state();
    state.attach(1, size(24, 80), KeyboardWish::Type);
    for _ in 0..100 {
        state.type_bytes(1, &vec![b'x'; 64 * 1024]);
    }
    let unread = state.unread.len();
    assert!(unread <= super::super::MAX_UNREAD);
    let dropped = |state: &mut TerminalState| {
        let notices = std::mem::take(&mut state.notices);
        notices.iter().filter(|notice| **notice == TerminalNotice::InputDropped).count()
    };
    assert_eq!(dropped(&mut state), 1, "the loss has a marker");
    assert_eq!(state.take_words(1).last(), Some(&FromTerminal::Bell), "who types hears of it");
    state.take_unread(unread - 1);
    state.type_bytes(1, &vec![b'x'; 2 << 20]);
    assert_eq!(dropped(&mut state), 0, "it is the same loss");
    state.take_unread(state.unread.len());
    state.type_bytes(1, &vec![b'x'; 2 << 20]);
    assert_eq!(dropped(&mut state), 1, "it is another one");
}

#[test]
fn a_flood_of_statuses_leaves_room_for_viewers() {
    let mut state = state();
    state.attach(1, size(24, 80), KeyboardWish::Type);
    for number in 0..100_000 {
        state.screen.feed(format!("\x1b]7501;state=number{number}\x1b\\\x1b]2;title {number}\x07").as_bytes());
        state.apply_effects();
    }
    state.detach(1);
    let notices: Vec<_> = state.notices.into();
    let attached = TerminalNotice::Attached { viewer: 1, size: size(24, 80) };
    let latest = TerminalNotice::Status(b"state=number99999".to_vec());
    let title = TerminalNotice::Title("title 99999".to_owned());
    assert_eq!(notices, [attached, latest, title, TerminalNotice::Detached { viewer: 1, last: true }]);
}

/// Reads the next frame.
async fn next_frame(stream: &UnixStream, inbox: &mut Inbox) -> String {
    let read = async {
        loop {
            match inbox.next_message().expect("whole") {
                Some(FromTerminal::Frame { bytes, .. }) => return String::from_utf8_lossy(&bytes).into_owned(),
                Some(_) => continue,
                None => {}
            }
            stream.readable().await.expect("open");
            match stream.try_read(inbox.spare()) {
                Ok(read) => inbox.filled(read),
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), read).await.expect("a frame")
}

#[tokio::test(flavor = "current_thread")]
async fn changes_of_one_interval_are_one_frame() {
    const CHANGES: u128 = 5000;
    let shared = SharedTerminal(Arc::new(Mutex::new(state())));
    let (ours, theirs) = StdStream::pair().expect("a pair");
    ours.set_nonblocking(true).expect("set");
    let (ours, mut inbox) = (UnixStream::from_std(ours).expect("taken"), Inbox::default());
    let link = ViewerLink::new(theirs.into()).expect("a link");
    let viewer = NewViewer { link, size: size(24, 80), keyboard: KeyboardWish::Watch, in_place: false };
    let begin = Instant::now();
    let served = tokio::spawn(serve(viewer, 1, shared.clone()));
    next_frame(&ours, &mut inbox).await;
    for number in 0..=CHANGES {
        {
            let mut terminal = shared.lock();
            terminal.screen.feed(format!("change {number}\r\n").as_bytes());
            terminal.changed();
        }
        tokio::task::yield_now().await;
    }
    let mut frames = 1;
    let last = format!("change {CHANGES}");
    loop {
        frames += 1;
        if next_frame(&ours, &mut inbox).await.contains(&last) {
            break;
        }
    }
    let intervals = begin.elapsed().as_millis() / FRAME_INTERVAL.as_millis();
    assert!(frames <= intervals + 2, "{frames} frames in {intervals} intervals");
    drop(ours);
    tokio::time::timeout(Duration::from_secs(20), served).await.expect("it ends").expect("no panic");
}
