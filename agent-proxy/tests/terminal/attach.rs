//! `start --tty` and `attach`.

use std::fs;

use ipc_protocol::{Event, ProcessId};
use nix::sys::signal::Signal;

use crate::{
    harness::{Daemon, PROGRAM, Place, Running, gone, process},
    window::{SIZE, Window},
};

/// Shows its pid, then each line that is typed, with the size at that time.
const SHELL: &str = "echo pid $$.; while read -r line; do echo \"<$line> $(stty size).\"; done";

impl Daemon<'_> {
    /// Starts a session in a terminal. Returns its program and a follower of its events.
    #[track_caller]
    fn start_tty(&self, id: &str, flags: &[&str], script: &str) -> (ProcessId, Running) {
        let command = ["--agent", "command", "--", "bash", "-c", script];
        self.run(&[&["start", "--tty", "--id", id], flags, &command].concat()).exits(0);
        (self.program(id), self.spawn(&["events", id, "--follow", "--json"]))
    }

    /// Program of a session.
    #[track_caller]
    fn program(&self, id: &str) -> ProcessId {
        let listed = self.run(&["ps", id, "--json"]).exits(0).json();
        let processes = listed.as_array().expect("an array");
        let pids = processes.iter().map(|process| process["pid"].as_u64().or_else(|| process["id"]["pid"].as_u64()));
        let pid = pids.flatten().min().unwrap_or_else(|| panic!("{listed}"));
        process(u32::try_from(pid).expect("a pid"))
    }
}

fn attach(place: &Place, size: (u16, u16), args: &[&str]) -> Window {
    Window::program(place, size, &[&["attach"], args].concat())
}

/// Viewer that came, or left.
fn viewer(event: &Event) -> Option<(bool, u64)> {
    match event {
        Event::TerminalAttached { viewer, .. } => Some((true, *viewer)),
        Event::TerminalDetached { viewer } => Some((false, *viewer)),
        _ => None,
    }
}

/// Waits until a viewer has left.
#[track_caller]
fn until_left(events: &mut Running) -> u64 {
    events.until(|envelope| viewer(&envelope.event).and_then(|(came, id)| (!came).then_some(id)))
}

#[test]
fn a_late_viewer_of_another_size_sees_the_screen_at_once() {
    let place = Place::new();
    let daemon = place.serve();
    let paint = r"printf '\033[?1049h\033[2J\033[5;10H\033[31mred\033[m\033[?2004h\033[?1002h\033[7;3Hend'; sleep 1000";
    let (_, mut events) = daemon.start_tty("s", &[], paint);
    let mut first = attach(&place, SIZE, &["s"]);
    first.until("end");
    let mut second = attach(&place, (40, 132), &["s", "--read-only"]);
    assert_eq!(second.until("end"), first.text());
    for window in [&first, &second] {
        let screen = window.screen();
        assert!(screen.alternate_screen() && screen.bracketed_paste(), "{}", window.text());
        assert_eq!(screen.mouse_protocol_mode(), vt100::MouseProtocolMode::ButtonMotion);
        assert_eq!(screen.cursor_position(), (6, 5));
        let cell = screen.cell(4, 9).expect("a cell");
        assert_eq!((cell.contents(), cell.fgcolor()), ("r", vt100::Color::Idx(1)));
    }
    let mut small = attach(&place, (6, 20), &["s", "--read-only"]);
    small.until("end");
    assert!(small.text().lines().any(|line| line.trim() == "red"), "{}", small.text());
    let sizes: Vec<_> = (0..3)
        .map(|_| {
            events.until(|envelope| match envelope.event {
                Event::TerminalAttached { viewer, rows, columns } => Some((viewer, rows, columns)),
                _ => None,
            })
        })
        .collect();
    assert_eq!(sizes, [(1, 24, 80), (2, 40, 132), (3, 6, 20)]);
    daemon.run(&["kill", "s"]).exits(0);
    for window in [&mut first, &mut second, &mut small] {
        window.end();
        window.assert_reset();
    }
}

#[test]
fn one_viewer_has_the_keyboard_and_an_heir() {
    let place = Place::new();
    let daemon = place.serve();
    let (_, mut events) = daemon.start_tty("s", &[], SHELL);
    let mut first = attach(&place, SIZE, &["s"]);
    first.until("pid ");
    let mut heir = attach(&place, (20, 70), &["s"]);
    let mut reader = attach(&place, (22, 75), &["s", "--read-only"]);
    heir.until("pid ");
    reader.until("pid ");
    // Dropped: another has the keyboard.
    heir.press("by the heir\r");
    reader.press("by the reader\r");
    first.press("by the first\r");
    for window in [&mut first, &mut heir, &mut reader] {
        let text = window.until("<by the first>");
        assert!(!text.contains("heir") && !text.contains("reader"), "{text}");
    }
    // The heir gets it, and the terminal gets the heir's size.
    first.press("\x10\x11");
    first.exits(0);
    assert!(first.text().contains("which goes on"), "{}", first.text());
    first.assert_reset();
    assert_eq!(until_left(&mut events), 1);
    heir.press("inherited\r");
    reader.until("<inherited> 20 70.");
    // Until it is taken.
    let mut taker = attach(&place, (21, 71), &["s", "--take"]);
    taker.until("<inherited>");
    heir.press("late\r");
    taker.press("taken\r");
    assert!(!taker.until("<taken> 21 71.").contains("late"));
    heir.until("<taken> 21 71.");
    // Who watches leaves by Ctrl-C.
    reader.press("\x03");
    reader.exits(0);
    daemon.run(&["kill", "s"]).exits(0);
    for window in [&mut heir, &mut taker] {
        window.end();
        window.assert_reset();
    }
}

#[test]
fn keys_that_detach() {
    let place = Place::new();
    let daemon = place.serve();
    let (program, mut events) = daemon.start_tty("s", &[], SHELL);
    for (flags, typed) in [
        (&["s"][..], "\x10\x11"),
        (&["s"], "\x1b[112;5u\x1b[113;5u"),
        (&["s"], "\x1b[27;5;112~\x1b[27;5;113~"),
        (&["s", "--detach-keys", "ctrl-b,d"], "\x02d"),
        (&["s", "--detach-keys", "ctrl-]"], "\x1d"),
    ] {
        let mut window = attach(&place, SIZE, flags);
        window.until("pid ");
        window.press(typed);
        window.exits(0);
        window.assert_reset();
        until_left(&mut events);
    }
    let ran = place.run(&["attach", "s", "--detach-keys", "nonsense"]).exits(2);
    assert!(ran.stderr.contains("is no key"), "{ran:?}");
    let ran = place.run(&["attach", "s"]).exits(2);
    assert!(ran.stderr.contains("needs a terminal"), "{ran:?}");
    assert!(crate::harness::is_there(program));
    daemon.run(&["kill", "s"]).exits(0);
}

#[test]
fn on_the_same_machine_no_viewer_stands_between_the_window_and_the_session() {
    let place = Place::new();
    let daemon = place.serve();
    daemon.start_tty("s", &[], SHELL);
    let mut attached = attach(&place, SIZE, &["s"]);
    attached.until("pid ");
    let mut ran = Window::program(
        &place,
        SIZE,
        &["run", "--tty", "--", "sh", "-c", "echo begun; while read l; do echo \"<$l>\"; done"],
    );
    ran.until("begun");
    for window in [&mut attached, &mut ran] {
        // One that passes keys and frames on could not.
        window.signal(Signal::SIGSTOP);
        window.press("typed\r");
    }
    attached.until("<typed>");
    ran.until("<typed>");
    for window in [&mut attached, &mut ran] {
        window.signal(Signal::SIGCONT);
    }
    attached.press("\x10\x11");
    attached.exits(0);
    ran.press("\x04");
    ran.exits(0);
    for window in [&mut attached, &mut ran] {
        window.assert_reset();
    }
    daemon.run(&["kill", "s"]).exits(0);
}

#[test]
fn a_window_is_left_while_the_daemon_hangs() {
    let place = Place::new();
    let daemon = place.serve();
    let (program, _) = daemon.start_tty("s", &[], SHELL);
    let mut windows = [(&["s"][..], "\x10\x11"), (&["s", "--read-only"], "\x03")].map(|(flags, keys)| {
        let mut window = attach(&place, SIZE, flags);
        window.until("pid ");
        (window, keys)
    });
    daemon.signal(Signal::SIGSTOP);
    for (window, keys) in &mut windows {
        window.press(keys);
        window.exits(0);
        window.assert_reset();
    }
    daemon.signal(Signal::SIGCONT);
    assert!(crate::harness::is_there(program));
    daemon.run(&["kill", "s"]).exits(0);
}

#[test]
fn a_session_ends_with_its_last_viewer_if_that_is_asked_for() {
    let place = Place::new();
    let daemon = place.serve();
    let (program, events) = daemon.start_tty("s", &["--on-detach", "end"], SHELL);
    let mut first = attach(&place, SIZE, &["s"]);
    first.until("pid ");
    let mut second = attach(&place, SIZE, &["s"]);
    second.until("pid ");
    first.press("\x10\x11");
    first.exits(0);
    assert!(crate::harness::is_there(program), "one is left");
    // However it leaves.
    second.signal(Signal::SIGKILL);
    second.end();
    gone(program);
    let last = events.end().exits(0).envelopes().pop().expect("events");
    assert!(
        matches!(&last.event, Event::SessionEnded { receipt: Some(receipt), .. } if receipt.is_empty()),
        "{last:?}"
    );
}

#[test]
fn viewers_that_die_and_viewers_that_read_nothing_hold_up_nobody() {
    let place = Place::new();
    let daemon = place.serve();
    // Writes far more than any buffer between it and a viewer takes.
    let flood = "read -r line; for i in {1..200}; do printf '%0100000d\\n' $i; done; echo; echo done; read -r line; echo \"<$line>\"; sleep 1000";
    let (program, mut events) = daemon.start_tty("s", &[], flood);
    let mut slow = attach(&place, SIZE, &["s", "--read-only"]);
    let mut dead = attach(&place, SIZE, &["s", "--read-only"]);
    let mut typist = attach(&place, SIZE, &["s"]);
    for came in 0..3 {
        assert!(events.until(|envelope| viewer(&envelope.event)).0, "{came}");
    }
    // `slow` is not looked at from here on.
    typist.press("go\r");
    dead.signal(Signal::SIGKILL);
    dead.end();
    until_left(&mut events);
    typist.until("done");
    typist.press("still here\r");
    typist.until("<still here>");
    // It sees the present, not all that was before.
    slow.until("<still here>");
    assert!(slow.output.len() < 2_000_000, "{}", slow.output.len());
    assert!(crate::harness::is_there(program));
    daemon.run(&["kill", "s"]).exits(0);
    gone(program);
    slow.end();
    typist.end();
    slow.assert_reset();
}

#[test]
fn viewers_are_told_of_the_end() {
    let place = Place::new();
    let daemon = place.serve();
    daemon.start_tty("s", &[], "printf '\\033[?1049hfull'; read -r line; exit 7");
    let mut window = attach(&place, SIZE, &["s"]);
    window.until("full");
    window.press("\r");
    window.exits(7);
    window.assert_reset();
    assert!(window.text().contains("its program ended with"), "{}", window.text());
    // Viewed no more.
    let mut window = attach(&place, SIZE, &["s"]);
    let ran = window.end();
    assert_ne!(ran.status.code(), Some(0));
    window.assert_reset();
    let mut window = attach(&place, SIZE, &["nobody"]);
    window.exits(3);
}

#[test]
fn a_session_without_a_terminal_is_not_viewed() {
    let place = Place::new();
    let daemon = place.serve();
    daemon.start("s", &["cat"]);
    let mut window = attach(&place, SIZE, &["s"]);
    assert_ne!(window.end().status.code(), Some(0));
    assert!(window.text().contains("started without a"), "{}", window.text());
    window.assert_reset();
}

#[test]
fn a_prompt_is_typed_and_status_reports_are_events() {
    let place = Place::new();
    let daemon = place.serve();
    let script = "printf '\\033]7501;state=idle\\033\\\\'; read -r line; echo \"<$line>\"; \
                  printf '\\033]7501;state=blocked:kind=permission:msg=YXNrcw==\\007'; sleep 1000";
    let (_, mut events) = daemon.start_tty("s", &[], script);
    let status = |event: &Event| match event {
        Event::TerminalStatus { status, detail } => Some((status.clone(), detail.clone())),
        _ => None,
    };
    assert_eq!(events.until(|envelope| status(&envelope.event)), ("idle".to_owned(), None));
    daemon.run(&["prompt", "s", "--no-wait", "from outside"]).exits(0);
    let blocked = events.until(|envelope| status(&envelope.event));
    assert_eq!(blocked, ("blocked".to_owned(), Some("asks".to_owned())));
    let mut window = attach(&place, SIZE, &["s"]);
    window.until("<from outside>");
    daemon.run(&["kill", "s"]).exits(0);
    window.end();
}

#[test]
fn the_next_daemon_shows_the_same_screen() {
    let place = Place::new();
    let state = place.directory.join("state");
    fs::create_dir(&state).expect("created");
    let flags = ["--state-dir", state.to_str().expect("UTF-8")];
    let daemon = place.serve_with(&flags);
    let (program, events) = daemon.start_tty("s", &["--on-host-death", "detach"], SHELL);
    let mut window = attach(&place, SIZE, &["s"]);
    window.until("pid ");
    window.press("before\r");
    let shown = window.until("<before> 24 80.");
    daemon.end(Signal::SIGKILL);
    drop(events);
    window.end();
    window.assert_reset();
    assert!(window.text().contains("broke off"), "{}", window.text());

    let daemon = place.serve_with(&flags);
    assert!(crate::harness::is_there(program));
    let mut window = attach(&place, SIZE, &["s"]);
    assert_eq!(window.until("<before> 24 80."), shown);
    window.press("after\r");
    window.until("<after>");
    let receipt = daemon.run(&["kill", "s", "--json"]).exits(0).json();
    assert_eq!(receipt["survivors"], serde_json::json!([]), "{receipt}");
    gone(program);
    window.end();
    window.assert_reset();
}

#[test]
fn many_viewers_come_and_go() {
    let place = Place::new();
    let daemon = place.serve();
    let (program, _events) = daemon.start_tty("s", &[], SHELL);
    for round in 0..10 {
        let mut windows: Vec<_> = (0..3).map(|_| attach(&place, SIZE, &["s"])).collect();
        for window in &mut windows {
            window.until("pid ");
        }
        for (number, mut window) in windows.into_iter().enumerate() {
            match (round + number) % 3 {
                0 => window.signal(Signal::SIGKILL),
                1 => window.close(),
                _ => window.press("\x10\x11"),
            }
            window.end();
        }
    }
    assert!(crate::harness::is_there(program));
    daemon.run(&["kill", "s"]).exits(0);
    gone(program);
}

#[test]
fn a_visit_has_the_code_of_its_program_and_says_what_helps() {
    let place = Place::new();
    fs::create_dir_all(place.config()).expect("made");
    let row = r#"
        [[agents]]
        id = "shown"
        protocol = "acp"
        cmd = ["PROGRAM", "fake-agent", "--store", "chats"]
        terminal_cmd = ["/bin/sh"]

        [agents.session_config]
        session_dir_template = "{home}/chats"
        attach_command = ["/bin/sh", "-c", "echo no such conversation; read -r line; exit 3", "{id}"]
    "#;
    fs::write(place.config().join("agents.toml"), row.replace("PROGRAM", PROGRAM)).expect("written");
    let daemon = place.serve();
    daemon.run(&["start", "--id", "s", "--agent", "shown"]).exits(0);
    let mut window = attach(&place, SIZE, &["s", "--native"]);
    window.until("no such conversation");
    window.press("\r");
    window.exits(3);
    let text = window.text();
    for part in ["its program ended with exit code 3", "before the first turn", "agent-proxy prompt s 'hello'"] {
        assert!(text.replace('\n', " ").contains(part), "{part} in\n{text}");
    }
    window.assert_reset();
    assert_eq!(daemon.run(&["prompt", "s", "say on"]).exits(0).stdout, "on\n");
}
