//! Words for viewers that do not read, and terminals that viewers lend.

use std::{
    os::{
        fd::AsFd,
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixStream as StdStream},
    },
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use ipc_protocol::{
    codec::{Inbox, encode},
    terminal::{FromTerminal, KeyboardWish, LoanSecret, ToTerminal},
};
use rustix::{
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
    termios::{OptionalActions, tcgetattr, tcsetattr},
};
use tokio::{io::AsyncReadExt, net::UnixStream};

use super::{screen, size};
use crate::terminal::{
    NewViewer, Pty, SharedTerminal, TerminalNotice, TerminalState, ViewerLink,
    viewer::{FRAME_INTERVAL, serve},
};

fn state() -> TerminalState {
    TerminalState {
        screen: screen(24, 80),
        viewers: Vec::new(),
        next_viewer: 0,
        typist: None,
        controller: None,
        unread: std::collections::VecDeque::new(),
        drops_input: false,
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

/// Viewer at the other end of a link.
struct Peer {
    stream: UnixStream,
    inbox: Inbox,
}

impl Peer {
    fn new() -> (Self, ViewerLink) {
        let (ours, theirs) = StdStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("set");
        let peer = Self { stream: UnixStream::from_std(ours).expect("taken"), inbox: Inbox::default() };
        (peer, ViewerLink::new(theirs.into()).expect("a link"))
    }

    async fn send(&self, message: &ToTerminal) {
        let mut bytes = Vec::new();
        encode(message, &mut bytes).expect("short");
        self.stream.writable().await.expect("open");
        assert_eq!(self.stream.try_write(&bytes).expect("written"), bytes.len());
    }

    /// The next message that is not about the keyboard; `None` at the end.
    async fn next(&mut self) -> Option<FromTerminal> {
        let read = async {
            loop {
                match self.inbox.next_message().expect("whole") {
                    Some(FromTerminal::Keyboard { .. }) => continue,
                    Some(message) => return Some(message),
                    None => {}
                }
                self.stream.readable().await.expect("open");
                match self.stream.try_read(self.inbox.spare()) {
                    Ok(0) => return None,
                    Ok(read) => self.inbox.filled(read),
                    Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), read).await.expect("a message")
    }
}

fn attach_message() -> ToTerminal {
    ToTerminal::Attach { size: size(24, 80), keyboard: KeyboardWish::Type, in_place: false }
}

fn lend_message(socket: &str) -> ToTerminal {
    ToTerminal::Lend {
        socket: socket.to_owned(),
        secret: LoanSecret::new(SECRET),
        detach_keys: Some("ctrl-p,ctrl-q".parse().expect("keys")),
        watches: false,
    }
}

const SECRET: [u8; LoanSecret::LEN] = *b"of this terminal";

/// Gives a descriptor to who connects to this socket, and says the secret.
async fn give(listener: &tokio::net::UnixListener, descriptor: impl AsFd) {
    let (mut stream, _) = listener.accept().await.expect("it connects");
    let mut said = [0; LoanSecret::LEN];
    stream.read_exact(&mut said).await.expect("it says something");
    assert_eq!(said, SECRET);
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(&stream, &[std::io::IoSlice::new(&[0])], &mut ancillary, SendFlags::empty()).expect("sent");
}

fn listener(name: &str) -> tokio::net::UnixListener {
    let address = SocketAddr::from_abstract_name(name).expect("a name");
    let listener = std::os::unix::net::UnixListener::bind_addr(&address).expect("bound");
    listener.set_nonblocking(true).expect("set");
    tokio::net::UnixListener::from_std(listener).expect("taken")
}

#[tokio::test(flavor = "current_thread")]
async fn a_terminal_that_cannot_be_had_is_not_needed() {
    let name = format!("agent-proxy-test-refused-{}", std::process::id());
    // Nobody listens; who listens gives what is no terminal.
    for gives in [false, true] {
        let (mut peer, mut link) = Peer::new();
        let listener = gives.then(|| listener(&name));
        peer.send(&lend_message(&name)).await;
        peer.send(&attach_message()).await;
        let gift = async {
            if let Some(listener) = &listener {
                give(listener, std::fs::File::open("/dev/null").expect("opened")).await;
            }
        };
        let (first, ()) = tokio::join!(link.receive_first(), gift);
        assert_eq!(first, Some(attach_message()), "{gives}");
        assert_eq!(peer.next().await, Some(FromTerminal::Lent { accepted: false }), "{gives}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_lent_terminal_is_read_and_painted_until_the_keys_that_detach() {
    let name = format!("agent-proxy-test-lent-{}", std::process::id());
    let listener = listener(&name);
    let window = Pty::open(size(24, 80)).expect("a terminal");
    let mut modes = tcgetattr(&window.user).expect("its modes");
    modes.make_raw();
    tcsetattr(&window.user, OptionalActions::Now, &modes).expect("set");
    rustix::io::ioctl_fionbio(&window.user, true).expect("set");
    let (mut peer, mut link) = Peer::new();
    peer.send(&lend_message(&name)).await;
    peer.send(&attach_message()).await;
    let (first, ()) = tokio::join!(link.receive_first(), give(&listener, &window.user));
    assert_eq!(first, Some(attach_message()));
    assert_eq!(peer.next().await, Some(FromTerminal::Lent { accepted: true }));
    let shared = SharedTerminal(Arc::new(Mutex::new(state())));
    let viewer = NewViewer { link, size: size(24, 80), keyboard: KeyboardWish::Type, in_place: false };
    let served = tokio::spawn(serve(viewer, 1, shared.clone()));
    assert_eq!(peer.next().await, Some(FromTerminal::Attached { size: size(24, 80), types: true }));
    let deadline = Instant::now() + Duration::from_secs(20);
    let shows = async |text: &str| {
        let mut seen = String::new();
        let mut chunk = [0; 4096];
        while !seen.contains(text) {
            assert!(Instant::now() < deadline, "{seen:?}");
            match rustix::io::read(&window.controller, &mut chunk) {
                Ok(read) => seen.push_str(&String::from_utf8_lossy(&chunk[..read])),
                Err(error) => assert_eq!(error, rustix::io::Errno::AGAIN),
            }
            tokio::task::yield_now().await;
        }
    };
    let paint = |text: &str| {
        let mut terminal = shared.lock();
        terminal.screen.feed(text.as_bytes());
        terminal.apply_effects();
        terminal.changed();
    };
    paint("\x1b[?1049hshown\x07");
    shows("shown").await;
    let told = peer.next().await;
    assert_eq!(told, Some(FromTerminal::Frame { bytes: Vec::new(), alternate: true }), "how it has to be reset");
    let type_keys = |keys: &[u8]| assert_eq!(rustix::io::write(&window.controller, keys), Ok(keys.len()));
    let typed = async |wanted: &[u8]| {
        while shared.lock().unread != wanted {
            assert!(Instant::now() < deadline, "{:?}", shared.lock().unread);
            tokio::task::yield_now().await;
        }
    };
    type_keys(b"ab\x10");
    typed(b"ab").await;
    // While the viewer's shell has the terminal, its keys are the shell's.
    shared.lock().tell_typist(FromTerminal::Stopped);
    shared.lock().changed();
    assert_eq!(peer.next().await, Some(FromTerminal::Stopped));
    type_keys(b"shell");
    paint("\x1b[2Jnot shown");
    peer.send(&ToTerminal::Resize(size(23, 80))).await;
    while shared.lock().screen.size() != size(23, 80) {
        assert!(Instant::now() < deadline, "no resize");
        tokio::task::yield_now().await;
    }
    let mut chunk = [0; 16];
    assert_eq!(rustix::io::read(&window.user, &mut chunk), Ok(5), "they are there to be read");
    peer.send(&ToTerminal::Continue).await;
    shows("not shown").await;
    type_keys(b"c\x10\x11d");
    typed(b"ab\x10c").await;
    assert_eq!(peer.next().await, Some(FromTerminal::Returned { detached: true }));
    assert_eq!(peer.next().await, None);
    served.await.expect("it ends");
}
