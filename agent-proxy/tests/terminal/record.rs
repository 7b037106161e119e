//! Recordings.

use std::{fs, num::NonZero, os::unix::fs::PermissionsExt};

use serde_json::Value;

use crate::{
    harness::Place,
    window::{SIZE, Window},
};

/// A recording that was played to its end.
struct Played {
    parser: vt100::Parser,
    code: Option<String>,
    sizes: Vec<String>,
}

/// Plays an asciicast of version 3, and checks each line of it.
#[track_caller]
fn play(text: &str) -> Played {
    let mut lines = text.lines();
    let header: Value = serde_json::from_str(lines.next().expect("a header")).expect("JSON");
    assert_eq!(header["version"], 3);
    assert!(header["timestamp"].is_u64());
    let [rows, columns] = ["rows", "cols"].map(|name| {
        let number = header["term"][name].as_u64().and_then(|number| u16::try_from(number).ok());
        number.and_then(NonZero::new).expect("a size")
    });
    let mut played = Played { parser: vt100::Parser::new(rows, columns, 1000), code: None, sizes: Vec::new() };
    for line in lines {
        assert_eq!(played.code, None, "nothing comes after the exit");
        let event: Value = serde_json::from_str(line).expect("JSON");
        assert!(event[0].as_f64().is_some_and(|since| since >= 0.0), "{line}");
        let data = event[2].as_str().expect("text");
        match event[1].as_str().expect("a kind") {
            "o" => played.parser.process(data.as_bytes()),
            "r" => {
                played.sizes.push(data.to_owned());
                let (columns, rows) = data.split_once('x').expect("a size");
                let [rows, columns] = [rows, columns].map(|number| number.parse().expect("a number"));
                played.parser.screen_mut().set_size(rows, columns);
            }
            "x" => played.code = Some(data.to_owned()),
            kind => panic!("{kind}: {line}"),
        }
    }
    played
}

fn text(screen: &vt100::Screen) -> String {
    screen.contents().trim_end().to_owned()
}

#[test]
fn a_recording_shows_the_same_without_what_was_not_echoed() {
    let place = Place::new();
    let file = place.directory.join("session.cast");
    let script = "printf 'name: '; read name; stty -echo; printf 'password: '; read x; stty echo; echo; \
                  sleep 1000 & trap 'echo big; kill $!' WINCH; \
                  printf '\\033[32mgreen\\033[m %s\\n' \"$name\"; wait; seq 1 12; exit 6";
    let args = ["run", "--tty", "--record", file.to_str().expect("UTF-8"), "--", "bash", "-c", script];
    let mut window = Window::program(&place, SIZE, &args);
    window.until("name:");
    window.press("somebody\r");
    window.until("password:");
    window.press("hunter2\r");
    window.until("green somebody");
    window.resize(20, 60);
    window.exits(6);
    let recording = fs::read_to_string(&file).expect("a recording");
    assert!(recording.contains("somebody") && !recording.contains("hunter2"), "{recording}");
    assert_eq!(fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o600);
    let played = play(&recording);
    assert_eq!((played.code.as_deref(), played.sizes.as_slice()), (Some("6"), ["60x20".to_owned()].as_slice()));
    let shown = text(window.screen());
    let (shown, _) = shown.split_once("\nsession ended: ").expect("the receipt");
    assert_eq!(text(played.parser.screen()), shown);
    // Nobody's recording is written over.
    let mut window = Window::program(&place, SIZE, &args);
    let ran = window.end();
    assert_ne!(ran.status.code(), Some(0), "{}", window.text());
    window.assert_reset();
    assert_eq!(fs::read_to_string(&file).expect("a recording"), recording);
}
