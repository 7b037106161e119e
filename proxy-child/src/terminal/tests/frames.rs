//! Frames show the screen in another terminal.

use alacritty_terminal::term::TermMode;
use ipc_protocol::terminal::{TerminalConfig, TerminalSize};
use proptest::prelude::*;

use super::{ViewerTerminal, end_update, piece, screen, size};
use crate::terminal::{frame::FrameMaker, screen::Screen};

/// One thing that happens.
#[derive(Clone, Debug)]
enum Step {
    Output(Vec<u8>),
    Frame,
    Resize(TerminalSize),
    ResizeViewer(TerminalSize),
}

fn sizes() -> impl Strategy<Value = TerminalSize> {
    (1..20_u16, 2..50_u16).prop_map(|(rows, columns)| size(rows, columns))
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        30 => piece().prop_map(Step::Output),
        6 => Just(Step::Frame),
        1 => sizes().prop_map(Step::Resize),
        1 => sizes().prop_map(Step::ResizeViewer),
    ];
    proptest::collection::vec(step, 0..120)
}

fn frame(screen: &mut Screen, frames: &mut FrameMaker, viewer: &mut ViewerTerminal) {
    end_update(screen);
    viewer.show(&frames.frame(screen));
    viewer.compare(screen, 0);
    assert_eq!(frames.frame(screen), b"", "nothing has changed since");
}

#[test]
fn what_is_left_of_a_wide_character_is_a_blank() {
    let (mut screen, mut viewer) = (screen(2, 4), ViewerTerminal::new(size(2, 4)));
    let mut frames = FrameMaker::new(viewer.size, false, &screen);
    screen.feed("日本\r\x1b[P\u{300}\u{301}".as_bytes());
    frame(&mut screen, &mut frames, &mut viewer);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// A viewer that comes late, of any size, shows the screen, and goes on showing it.
    #[test]
    fn a_viewer_shows_the_screen(
        first in sizes(), viewed in sizes(), before in proptest::collection::vec(piece(), 0..60), steps in steps(),
        typed in proptest::collection::vec(piece(), 0..3),
    ) {
        let mut screen = screen(first.rows, first.columns);
        before.iter().for_each(|output| screen.feed(output));
        end_update(&mut screen);
        let mut viewer = ViewerTerminal::new(viewed);
        // The viewer's window shows something before: text alone, as a shell leaves it.
        for text in typed.iter().filter(|text| text.is_ascii() && !text.contains(&0x1b)) {
            viewer.show(&text.iter().filter(|byte| **byte >= b' ' && **byte < 0x7f).copied().collect::<Vec<_>>());
        }
        let mut frames = FrameMaker::new(viewed, false, &screen);
        frame(&mut screen, &mut frames, &mut viewer);
        for step in steps {
            match step {
                Step::Output(output) => screen.feed(&output),
                Step::Frame => frame(&mut screen, &mut frames, &mut viewer),
                Step::Resize(size) => screen.resize(size),
                Step::ResizeViewer(size) => {
                    viewer.resize(size);
                    frames.resize(size);
                }
            }
        }
        frame(&mut screen, &mut frames, &mut viewer);
    }

    /// Any bytes at all.
    #[test]
    fn any_bytes_are_shown(chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 0..20)) {
        let mut screen = screen(10, 30);
        let mut viewer = ViewerTerminal::new(size(10, 30));
        let mut frames = FrameMaker::new(viewer.size, false, &screen);
        for chunk in &chunks {
            screen.feed(chunk);
            frame(&mut screen, &mut frames, &mut viewer);
        }
    }

    /// However the output is cut, and whenever frames are made, the last one shows the same; and the lines that scrolled
    /// away are in the viewer's scrollback, once and in order.
    #[test]
    fn lines_scroll_away_once(
        lines in proptest::collection::vec("[a-z ]{0,40}", 0..120), cuts in proptest::collection::vec(1..200_usize, 1..20),
        attached in 0..50_usize, more in 0..10_u16,
    ) {
        let text = lines.iter().map(|line| format!("{line}\r\n")).collect::<String>().into_bytes();
        let mut screen = screen(10, 30);
        let mut viewer = ViewerTerminal::new(size(10 + more, 30));
        viewer.show(b"earlier\r\n");
        let mut frames = None;
        let mut rest = &text[..];
        for (number, cut) in cuts.iter().cycle().enumerate() {
            if number >= attached {
                let frames = frames.get_or_insert_with(|| FrameMaker::new(viewer.size, false, &screen));
                frame(&mut screen, frames, &mut viewer);
            }
            let (now, later) = rest.split_at(rest.len().min(*cut));
            screen.feed(now);
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        let mut frames = frames.unwrap_or_else(|| FrameMaker::new(viewer.size, false, &screen));
        frame(&mut screen, &mut frames, &mut viewer);
        let mut expected = vec!["earlier".to_owned()];
        expected.resize(usize::from(10 + more), String::new());
        expected.extend(screen.scrollback_text());
        prop_assert_eq!(viewer.scrollback(), expected);
    }

    /// In the place where the viewer's terminal is, nothing of what was there before is lost.
    #[test]
    fn rows_above_scroll_away_whole(
        first_row in 0..10_u16, lines in proptest::collection::vec("[a-z]{0,35}", 0..60), every in 1..30_usize,
    ) {
        let (mut screen, mut viewer) = in_place(first_row);
        let mut frames = FrameMaker::new(viewer.size, true, &screen);
        for (number, line) in lines.iter().enumerate() {
            screen.feed(format!("{line}\r\n").as_bytes());
            if number % every == 0 {
                viewer.show(&frames.frame(&screen));
            }
        }
        viewer.show(&frames.frame(&screen));
        let mut bare = ViewerTerminal::new(viewer.size);
        bare.show(&earlier(first_row));
        lines.iter().for_each(|line| bare.show(format!("{line}\r\n").as_bytes()));
        prop_assert_eq!(viewer.scrollback(), bare.scrollback());
        prop_assert_eq!(viewer.lines(), bare.lines());
    }
}

fn earlier(rows: u16) -> Vec<u8> {
    (0..rows).flat_map(|row| format!("shell {row}\r\n").into_bytes()).collect()
}

/// A screen that begins in a viewer's window below what is there.
fn in_place(first_row: u16) -> (Screen, ViewerTerminal) {
    let size = size(10, 30);
    let screen = Screen::new(&TerminalConfig { size, first_row, ..TerminalConfig::default() });
    let mut viewer = ViewerTerminal::new(size);
    viewer.show(&earlier(first_row));
    (screen, viewer)
}

#[test]
fn rows_above_are_untouched() {
    let (mut screen, mut viewer) = in_place(4);
    let mut frames = FrameMaker::new(viewer.size, true, &screen);
    assert_eq!(frames.frame(&screen), b"\x1b[?2026h\x1b[5;1H\x1b[?2026l", "nothing to paint");
    screen.feed(b"$ one\r\ntwo");
    viewer.show(&frames.frame(&screen));
    assert_eq!(viewer.lines()[..6], ["shell 0", "shell 1", "shell 2", "shell 3", "$ one", "two"]);
    // The alternate screen and back.
    screen.feed(b"\x1b[?1049h\x1b[Hfull");
    viewer.show(&frames.frame(&screen));
    assert_eq!(viewer.lines()[..2], ["full", ""]);
    screen.feed(b"\x1b[?1049l");
    viewer.show(&frames.frame(&screen));
    assert_eq!(viewer.lines()[..6], ["shell 0", "shell 1", "shell 2", "shell 3", "$ one", "two"]);
    viewer.compare(&screen, 4);
}

#[test]
fn rows_above_are_painted_once_the_program_writes_there() {
    let (mut screen, mut viewer) = in_place(4);
    let mut frames = FrameMaker::new(viewer.size, true, &screen);
    screen.feed(b"\x1b[1;1Hfirst\x1b[2;6Hsecond\x1b[3;1H\x1b[2K");
    viewer.show(&frames.frame(&screen));
    assert_eq!(viewer.lines()[..4], ["first", "     second", "", "shell 3"]);
}

#[test]
fn a_cleared_screen_scrolls_away_what_was_there() {
    let (mut screen, mut viewer) = in_place(4);
    let mut frames = FrameMaker::new(viewer.size, true, &screen);
    screen.feed(b"one\r\n\x1b[H\x1b[2Jtwo");
    viewer.show(&frames.frame(&screen));
    assert_eq!(viewer.lines()[..2], ["two", ""]);
    assert_eq!(viewer.scrollback(), ["shell 0", "shell 1", "shell 2", "shell 3", "one"]);
}

#[test]
fn a_full_row_leaves_nothing_beside_it() {
    // Another viewer's window has made the screen narrower.
    let mut screen = screen(3, 20);
    let mut viewer = ViewerTerminal::new(size(3, 20));
    let mut frames = FrameMaker::new(viewer.size, false, &screen);
    screen.feed(b"aaaaaaaaaaaaaaaaaaaa\r\nbbbbbbbbbbbbbbbbbbbb");
    frame(&mut screen, &mut frames, &mut viewer);
    screen.resize(size(3, 10));
    frame(&mut screen, &mut frames, &mut viewer);
}

#[test]
fn rows_that_come_in_have_no_colour() {
    let mut screen = screen(3, 5);
    let mut viewer = ViewerTerminal::new(size(3, 5));
    let mut frames = FrameMaker::new(viewer.size, false, &screen);
    for _ in 0..5 {
        screen.feed(b"\x1b[41maaaaa\x1b[m\r\n");
        frame(&mut screen, &mut frames, &mut viewer);
    }
}

#[test]
fn each_screen_has_keyboard_modes_of_its_own() {
    let mut screen = screen(5, 20);
    let mut viewer = ViewerTerminal::new(size(5, 20));
    // The shell's own.
    viewer.show(b"\x1b[>1u");
    let mut frames = FrameMaker::new(viewer.size, false, &screen);
    for output in [&b"\x1b[?1049h\x1b[>7u"[..], b"\x1b[?1049l", b"\x1b[>5u", b"\x1b[?1049h", b"\x1b[<u", b"\x1b[?1049l"]
    {
        screen.feed(output);
        viewer.show(&frames.frame(&screen));
        let wanted = screen.mode() & TermMode::KITTY_KEYBOARD_PROTOCOL;
        // Where the program sets none, the shell's may be on.
        assert!(wanted.is_empty() || viewer.keyboard() == wanted, "{output:?}: {:?}", viewer.keyboard());
    }
    viewer.show(b"\x1b[<u");
    assert_eq!(viewer.keyboard(), TermMode::DISAMBIGUATE_ESC_CODES, "the shell's are left");
}

#[test]
fn halves_of_wide_characters_are_blanks() {
    for output in [
        "日本\x1b[1;2H\x1b[P",
        "日本\x1b[1;2H\x1b[@",
        "日本\x1b[1;2H\x1b[X",
        "日本\x1b[1;3H\x1b[1P",
        "a日本\x1b[1;1H\x1b[4h日",
    ] {
        let mut screen = screen(2, 5);
        let mut viewer = ViewerTerminal::new(size(2, 5));
        let mut frames = FrameMaker::new(viewer.size, false, &screen);
        screen.feed(output.as_bytes());
        frame(&mut screen, &mut frames, &mut viewer);
    }
}

#[test]
fn a_wide_character_that_a_narrower_window_cuts_takes_nothing_with_it() {
    let mut screen = screen(1, 10);
    let mut viewer = ViewerTerminal::new(size(1, 10));
    let mut frames = FrameMaker::new(viewer.size, false, &screen);
    // The alternate screen: its lines are cut, not wrapped.
    screen.feed("\x1b[?1049h\x1b[1;9H日".as_bytes());
    frame(&mut screen, &mut frames, &mut viewer);
    viewer.resize(size(1, 9));
    frames.resize(size(1, 9));
    screen.feed("\x1b[1;8Hab".as_bytes());
    frame(&mut screen, &mut frames, &mut viewer);
}

#[test]
fn a_much_narrower_window_has_all_of_a_long_line() {
    let mut screen = screen(5, 1000);
    let text: String = ('a'..='z').cycle().take(900).collect();
    screen.feed(text.as_bytes());
    let shown = |screen: &Screen| [screen.scrollback_text(), screen.text()].concat().concat();
    screen.resize(size(5, 7));
    assert_eq!(shown(&screen), text);
    screen.resize(size(5, 1000));
    assert_eq!(shown(&screen), text);
}
