//! `run --tty`.

use std::path::Path;

use ipc_protocol::ProcessId;
use nix::sys::signal::Signal;

use crate::{
    harness::{PROGRAM, Place, TellingPipe, gone, process},
    window::{SIZE, Window},
};

/// Tells its pid and waits for ever, with a child.
const WAITS: &str = "sleep 1000 & echo pids $$ $!.; wait";

fn run(place: &Place, script: &str) -> Window {
    Window::program(place, SIZE, &["run", "--tty", "--", "sh", "-c", script])
}

/// Processes whose pids are on the screen, after `pids`, before a dot.
#[track_caller]
fn pids(window: &mut Window) -> Vec<ProcessId> {
    let text = window.look("pids", |text| text.split_once("pids ").is_some_and(|(_, rest)| rest.contains('.')));
    let (_, rest) = text.split_once("pids ").expect("looked for");
    let (pids, _) = rest.split_once('.').expect("looked for");
    pids.split_whitespace().map(|pid| process(pid.parse().expect("a pid"))).collect()
}

#[test]
fn the_program_runs_in_place_and_its_code_is_ours() {
    let place = Place::new();
    let script = format!("echo before; {PROGRAM} run --tty -- sh -c 'echo hello; exit 7'");
    let mut window = Window::start(&place, SIZE, &["sh", "-c", &script]);
    window.exits(7);
    let text = window.text();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[..2], ["before", "hello"], "{text}");
    assert!(lines.len() == 3 && lines[2].starts_with("session ended: "), "{text}");
    window.assert_reset();
}

#[test]
fn a_program_that_a_signal_ends_has_the_code_of_a_shell() {
    let place = Place::new();
    for (name, code) in [("HUP", 129), ("KILL", 137), ("TERM", 143)] {
        let mut window = run(&place, &format!("echo hello; kill -{name} $$"));
        window.exits(code);
        window.assert_reset();
        assert!(window.text().starts_with("hello\n"), "{}", window.text());
    }
}

#[test]
fn modes_that_a_dead_program_left_are_reset() {
    let place = Place::new();
    let modes = r"\033[?1049h\033[?1003h\033[?1006h\033[?2004h\033[?1h\033=\033[>7u\033[?25l\033[31mfull";
    let mut window = run(&place, &format!("echo shown; stty raw -echo; printf '{modes}'; read x; kill -KILL $$"));
    window.until("full");
    assert!(window.screen().alternate_screen() && window.screen().bracketed_paste());
    assert_eq!(window.screen().mouse_protocol_mode(), vt100::MouseProtocolMode::AnyMotion);
    window.press("\n");
    window.exits(137);
    window.assert_reset();
    assert!(window.text().starts_with("shown\n"), "{}", window.text());
}

#[test]
fn nothing_is_left_when_run_is_ended() {
    let place = Place::new();
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        let mut window = run(&place, WAITS);
        let pids = pids(&mut window);
        assert!(!window.is_restored(), "raw meanwhile");
        window.signal(signal);
        window.exits(130);
        window.assert_reset();
        pids.into_iter().for_each(gone);
    }
}

/// A start may take minutes: a hook, an image that is pulled.
#[test]
fn a_start_is_ended_by_the_key_and_by_a_signal() {
    let place = Place::new();
    for signal in [None, Some(Signal::SIGTERM)] {
        let begun = TellingPipe::new(place.directory.join(signal.map_or("key", Signal::as_str)));
        let hook = format!("echo $$ >{}; exec sleep 1000", begun.path());
        let argv = [PROGRAM, "run", "--tty", "--before-start", &hook, "--", "true"];
        let mut window = Window::start(&place, SIZE, &argv);
        let hook = begun.process();
        match signal {
            None => window.press("\x03"),
            Some(signal) => window.signal(signal),
        }
        window.exits(130);
        window.assert_reset();
        gone(hook);
    }
}

#[test]
fn nothing_is_left_when_run_is_killed() {
    let place = Place::new();
    let mut window = run(&place, WAITS);
    let pids = pids(&mut window);
    window.signal(Signal::SIGKILL);
    assert_eq!(crate::harness::signalled(&window.end()), Some(9));
    pids.into_iter().for_each(gone);
}

#[test]
fn nothing_is_left_when_the_window_is_closed() {
    let place = Place::new();
    let mut window = run(&place, WAITS);
    let pids = pids(&mut window);
    window.close();
    window.end();
    pids.into_iter().for_each(gone);
}

#[test]
fn a_window_that_takes_nothing_keeps_nothing_alive() {
    let place = Place::new();
    let mut window = run(&place, "sleep 1000 & echo pids $$ $!.; read line; exec yes");
    let pids = pids(&mut window);
    window.press("\r");
    window.signal(Signal::SIGTERM);
    window.end_unseen();
    assert!(window.is_restored());
    pids.into_iter().for_each(gone);
}

#[test]
fn keys_go_to_the_program() {
    let place = Place::new();
    let mut window =
        run(&place, "trap 'echo interrupted; exit 5' INT; echo ready; read line; echo \"<$line>\"; read line");
    window.until("ready");
    window.press("typed\r");
    window.until("<typed>");
    window.press("\x03");
    window.exits(5);
    assert!(window.text().contains("interrupted"), "{}", window.text());
    window.assert_reset();
}

#[test]
fn the_program_is_stopped_and_continued_by_the_shell() {
    let place = Place::new();
    let shell = ["bash", "--norc", "--noprofile", "--noediting", "-i"];
    let mut window = Window::start_with(&place, SIZE, &shell, &[("PS1", "shell> "), ("INPUTRC", "/dev/null")]);
    window.until("shell>");
    window.press(&format!("{PROGRAM} run --tty -- sh -c 'echo begun.; read line; echo \"<$line>\"; exit 3'\r"));
    window.look("the program", |text| text.lines().any(|line| line == "begun."));
    window.press("\x1a");
    window.look("the shell", |text| text.contains("Stopped") && text.lines().last() == Some("shell>"));
    // The shell has its terminal whole.
    window.press("echo $((20 + 3))\r");
    window.look("the shell's own", |text| text.lines().any(|line| line == "23"));
    window.press("fg\r");
    window.look("continued", |text| text.lines().filter(|line| *line == "begun.").count() == 1);
    window.press("more\r");
    window.until("<more>");
    window.until("session ended: ");
    window.press("echo code $?; exit\r");
    window.until("code 3");
    window.exits(0);
    window.assert_reset();
}

#[test]
fn the_program_gets_the_windows_size() {
    let place = Place::new();
    let mut window = run(&place, "trap 'stty size' WINCH; stty size; while :; do sleep 1000 & wait $!; kill $!; done");
    window.until("24 80");
    for (rows, columns) in [(30, 100), (10, 40), (24, 80)] {
        window.resize(rows, columns);
        window.look("the size", |text| text.lines().any(|line| line == format!("{rows} {columns}")));
    }
    window.signal(Signal::SIGTERM);
    window.end();
}

#[test]
fn the_program_has_what_the_bare_command_would() {
    let place = Place::new();
    let script = format!(
        "cd '{}'; {PROGRAM} run --tty -- sh -c 'echo \"$HOME|$PWD|$MARK|$TERM.\"; [ -t 0 ] && [ -t 2 ] && tty; stty -a'",
        place.directory.display()
    );
    let environment = [("HOME", "/nowhere"), ("MARK", "kept"), ("SECRET_KEY", "x")];
    let mut window = Window::start_with(&place, (30, 200), &["sh", "-c", &script], &environment);
    window.exits(0);
    let text = window.text();
    let directory = Path::new(&place.directory).display();
    assert!(text.starts_with(&format!("/nowhere|{directory}|kept|xterm-256color.\n/dev/pts/")), "{text}");
    assert!(text.contains(" icanon") && text.contains(" echo ") && text.contains("intr = ^C"), "{text}");
}

#[test]
fn output_is_shown_whole_and_can_be_scrolled_back_to() {
    let place = Place::new();
    let mut window = run(&place, "seq 1 500");
    window.exits(0);
    let shown: Vec<_> = String::from_utf8_lossy(&window.output)
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|number| number.parse::<u32>().ok())
        .collect();
    assert!(shown.contains(&500));
    let mut lines = Vec::new();
    for offset in (0..=1000).rev() {
        window.scroll_back(offset);
        lines.extend(window.text().lines().next().map(str::to_owned));
        if offset == 0 {
            lines.extend(window.text().lines().skip(1).map(str::to_owned));
        }
    }
    lines.dedup();
    let numbers: Vec<u32> = lines.iter().filter_map(|line| line.parse().ok()).collect();
    assert_eq!(numbers, (1..=500).collect::<Vec<_>>());
}

#[test]
fn without_a_terminal_it_is_a_usage_error() {
    let place = Place::new();
    let ran = place.run(&["run", "--tty", "--", "true"]).exits(2);
    assert!(ran.stderr.contains("needs a terminal"), "{ran:?}");
    let ran = place.run(&["--json", "run", "--tty", "--", "true"]).exits(2);
    assert_eq!(ran.problem()["type"], "usage");
}
