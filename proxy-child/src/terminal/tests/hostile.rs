//! Output that means harm.

use super::{ViewerTerminal, screen, size};
use crate::terminal::{
    frame::FrameMaker,
    screen::{Screen, ScreenEffect},
};

/// Answers that the program gets.
fn answers(screen: &mut Screen) -> Vec<String> {
    let effects = screen.take_effects().into_iter();
    let answer = |effect| match effect {
        ScreenEffect::Answer(bytes) => Some(String::from_utf8(bytes).expect("text")),
        _ => None,
    };
    effects.filter_map(answer).collect()
}

#[test]
fn nothing_that_the_program_chose_is_typed() {
    let mut screen = screen(24, 80);
    // Its title, its settings, the clipboard, its own text.
    screen.feed(b"\x1b]0;rm -rf /\x07\x1b[21t\x1b[20t\x1bP$qm\x1b\\\x1bP$q q\x1b\\\x1bP+q544e\x1b\\\x1b[>q\x1b]52;c;?\x07\x1b]52;c;cm0=\x07\x1b]52;c;?\x07\x1b[0x\x1b[?15n\x05");
    assert_eq!(answers(&mut screen), [""; 0]);
    screen.feed(b"\x1b[22t\x1b]0;other\x07\x1b[23t\x1b[21t");
    assert_eq!(answers(&mut screen), [""; 0]);
    assert_eq!(screen.title(), Some("rm -rf /"));
}

#[test]
fn the_status_query_is_answered_before_a_query_after_it() {
    let query = b"\x1b]7501;?\x1b\\\x1b[c";
    let mut expected = None;
    for cut in 0..query.len() {
        let mut screen = screen(24, 80);
        screen.feed(&query[..cut]);
        screen.feed(&query[cut..]);
        let answers = answers(&mut screen);
        assert_eq!(answers.len(), 2, "cut at {cut}: {answers:?}");
        assert_eq!(answers[0], "\x1b]7501;?\x1b\\", "cut at {cut}");
        assert_eq!(*expected.get_or_insert(answers.clone()), answers);
    }
    // In a synchronized update, too.
    let mut screen = screen(24, 80);
    screen.feed(&[b"\x1b[?2026h", &query[..], b"\x1b[?2026l"].concat());
    assert_eq!(Some(answers(&mut screen)), expected);
}

#[test]
fn floods_of_stacks_are_bounded() {
    let mut screen = screen(24, 80);
    // More than the model itself survives, on both screens, in an update and outside.
    for around in [[&b""[..], b""], [b"\x1b[?2026h", b"\x1b[?2026l"]] {
        for switch in [&b""[..], b"\x1b[?1049h", b"\x1b[?1049l"] {
            let flood = b"\x1b[>1u".repeat(6000);
            screen.feed(&[around[0], switch, &flood, b"\x1b[22t".repeat(6000).as_slice(), around[1]].concat());
        }
    }
    screen.feed(b"\x1b[>5u\x1b[?u");
    assert_eq!(answers(&mut screen), ["\x1b[?5u"]);
    screen.feed(b"\x1b[<u\x1b[<u\x1b[?u\x1b[<9999u\x1b[?u");
    assert_eq!(answers(&mut screen), ["\x1b[?1u", "\x1b[?0u"]);
    // The other screen's pops do not count for this one's.
    for _ in 0..200 {
        screen.feed(&b"\x1b[>1u".repeat(60));
        screen.feed(b"\x1b[?1049h\x1b[<9999u\x1b[?1049l");
    }
}

#[test]
fn titles_are_bounded() {
    let mut screen = screen(24, 80);
    screen.feed(format!("\x1b]0;{}\x1b]2;evil\u{9b}21t\n\x07", "x".repeat(100_000)).as_bytes());
    assert!(screen.title().is_some_and(|title| title.len() <= 256 && !title.contains(char::is_control)));
    screen.feed(format!("\x1b]2;{}\x07", "é".repeat(1000)).as_bytes());
    assert_eq!(screen.title().map(|title| title.chars().count()), Some(256));
}

#[test]
fn combining_characters_are_bounded() {
    for around in [[&b""[..], b""], [b"\x1b[?2026h", b"\x1b[?2026l"]] {
        let mut screen = screen(4, 20);
        let flood = "a".to_owned() + &"\u{301}".repeat(2000);
        screen.feed(&[around[0], flood.repeat(30).as_bytes(), "日".as_bytes(), flood.as_bytes(), around[1]].concat());
        let most = screen.text().iter().map(|line| line.chars().count()).max();
        assert!(most.is_some_and(|most| most <= 20 * 17), "{most:?}");
        let mut viewer = ViewerTerminal::new(size(4, 20));
        viewer.show(&FrameMaker::new(viewer.size, false, &screen).frame(&screen));
        viewer.compare(&screen, 0);
    }
}

#[test]
fn repeats_are_bounded() {
    let mut screen = screen(50, 200);
    let begin = std::time::Instant::now();
    screen.feed(&[&b"a"[..], &b"\x1b[65535b".repeat(1024)].concat());
    assert!(begin.elapsed() < std::time::Duration::from_secs(20), "{:?}", begin.elapsed());
    // A line of it is whole.
    screen.feed(b"\x1b[2J\x1b[Hx\x1b[199b");
    assert_eq!(screen.text()[0], "x".repeat(200));
}

#[test]
fn answers_of_a_flood_are_bounded() {
    let mut screen = screen(24, 80);
    screen.feed(&b"\x1b[c".repeat(100_000));
    assert!(answers(&mut screen).len() <= 256);
    screen.feed(&[&b"\x1b[?2026h"[..], &b"\x1b[c".repeat(100_000), b"\x1b[?2026l"].concat());
    assert!(answers(&mut screen).len() <= 256);
    screen.feed(&b"\x1b]7501;?\x07\x1b]7501;state=idle\x07".repeat(10_000));
    assert!(screen.take_effects().len() <= 256);
}

#[test]
fn sequences_without_end_and_with_too_much_do_no_harm() {
    let long = vec![b'7'; 3 << 20];
    let many = b"1;".repeat(100_000);
    let parts: [&[u8]; 12] = [
        b"\x1bP",
        &long,
        b"\x1b\\\x1bPq#0;2;0;0;0",
        &long,
        b"\x18\x1b_G",
        &long,
        b"\x1b\\\x1b]",
        &long,
        b"\x07\x1b[",
        &many,
        b"m",
        b"\x1b^\x1b\\\x90\x9b\x9d\x9f\x1b[Hend",
    ];
    let mut screen = screen(24, 80);
    parts.iter().for_each(|part| screen.feed(part));
    assert!(screen.text()[0].ends_with("end"), "{:?}", screen.text()[0]);
    assert_eq!(answers(&mut screen), [""; 0]);
}

#[test]
fn harmless_hyperlinks_are_passed_on() {
    let frame = |address: &str| {
        let mut screen = screen(2, 20);
        screen.feed(format!("\x1b]8;id=1;{address}\x1b\\text\x1b]8;;\x1b\\.").as_bytes());
        assert_eq!(screen.text()[0], "text.");
        let frame = FrameMaker::new(screen.size(), false, &screen).frame(&screen);
        String::from_utf8_lossy(&frame).into_owned()
    };
    for address in ["http://a/?b;c", "https://a", "file:///tmp/a%20b"] {
        let expected = format!("\x1b]8;id=l1;{address}\x1b\\text\x1b]8;;\x1b\\");
        assert!(frame(address).contains(&expected), "{address}");
    }
    let long = format!("https://a/{}", "b".repeat(1100));
    for address in ["javascript:alert(1)", "mailto:a@b", "http:a", "https://a b", "https://\u{e9}", &*long] {
        assert!(!frame(address).contains("\x1b]8;"), "{address}");
    }
}

#[test]
fn links_are_bounded_and_forgotten_with_their_cells() {
    let mut screen = screen(100, 100);
    let link = |at: usize| format!("\x1b]8;;http://host/{at}\x1b\\x");
    let links = |screen: &Screen| {
        let frame = FrameMaker::new(screen.size(), false, screen).frame(screen);
        String::from_utf8_lossy(&frame).matches("http://").count()
    };
    // More than there may be, on one screen.
    (0..100 * 100).for_each(|at| screen.feed(link(at).as_bytes()));
    assert_eq!(links(&screen), 8192);
    screen.feed(b"\x1b]8;;\x1b\\\x1bc");
    assert_eq!(links(&screen), 0);
    // Once nobody has the old ones, there is room for others.
    (0..20_000).for_each(|at| screen.feed(format!("\x1b[H{}", link(20_000 + at)).as_bytes()));
    assert_eq!(links(&screen), 1);
}
