//! Output that comes while a line is typed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    harness::{PROGRAM, Place},
    terminal::Terminal,
};

/// Starts a chat with a shell's script, up to the prompt.
fn chat_with(place: &Place, script: &str) -> Terminal {
    let argv = [PROGRAM, "run", "--agent", "command", "--", "/bin/sh", "-c", script];
    let mut terminal = Terminal::start(place, &argv, &[]);
    terminal.until_last(">");
    terminal
}

/// Starts a chat with a script that says two lines once the returned file is there, and then repeats what it reads.
fn chat_that_says_two_lines(place: &Place) -> (Terminal, PathBuf) {
    let now = place.directory.join("now");
    (chat_with(place, &format!("{}; echo one; echo two; exec cat", wait_for(&now))), now)
}

fn wait_for(file: &Path) -> String {
    format!("until [ -e {} ]; do sleep 0.05; done", file.display())
}

/// Types the end of the input.
fn end(mut terminal: Terminal) {
    terminal.until_last(">");
    terminal.press("\x04");
    terminal.end().0.exits(0);
}

#[test]
fn it_comes_above_the_line() {
    let place = Place::new();
    let (mut terminal, now) = chat_that_says_two_lines(&place);
    terminal.press(&"long ".repeat(20));
    // The second row of it.
    terminal.until_last("g long long long long");
    let before = terminal.screen();
    fs::write(now, "").expect("a file");
    terminal.until("\none\ntwo\n> long long");
    let screen = terminal.until_last("g long long long long");
    assert_eq!(screen.matches("> long").count(), 1, "{before}\n---\n{screen}");
    terminal.press("end\r");
    terminal.until("\nlong long long long end\n");
    end(terminal);
}

/// Also where the cursor is in the middle of what was typed, in another row than its end.
#[test]
fn it_comes_above_a_line_whose_cursor_is_within_it() {
    let place = Place::new();
    let (mut terminal, now) = chat_that_says_two_lines(&place);
    let before = terminal.screen();
    terminal.press(&"long ".repeat(20));
    terminal.until_last("g long long long long");
    // To its beginning.
    terminal.press("\x01very ");
    terminal.until("> very long ");
    fs::write(now, "").expect("a file");
    let screen = terminal.until("one\ntwo\n> very long ");
    assert!(screen.starts_with(before.trim_end_matches('>')), "{before}\n---\n{screen}");
    terminal.press("so \r");
    terminal.until("\nvery so long ");
    end(terminal);
}

#[test]
fn it_and_keys_at_the_same_time_stay_apart() {
    const LINES: usize = 400;
    let place = Place::new();
    let script = format!("read -r _; n=0; while [ $n -lt {LINES} ]; do echo line $n; n=$((n+1)); done; exec cat");
    let mut terminal = chat_with(&place, &script);
    terminal.press("go\r");
    // No prompt is awaited: keys are typed at any time.
    for key in "some words are typed".chars() {
        terminal.press(&key.to_string());
        terminal.see_more();
    }
    let screen = terminal.until(&format!("line {}\n> some words are typed", LINES - 1));
    let (output, _) = screen.rsplit_once("\n").expect("lines");
    let expected: Vec<_> = (0..LINES).map(|n| format!("line {n}")).collect();
    let shown: Vec<_> = output.lines().collect();
    assert_eq!(shown, expected[LINES - shown.len()..], "{screen}");
    terminal.press("\r");
    terminal.until("\nsome words are typed\n>");
    end(terminal);
}

/// After Ctrl-V the editor waits for one more key, and takes no notice of anything else.
#[test]
fn an_editor_that_takes_no_notice_holds_up_none_of_it() {
    let place = Place::new();
    let nows = ["one", "two", "three"].map(|name| place.directory.join(name));
    let tell = |now: &PathBuf| format!("{}; echo told by {}", wait_for(now), now.display());
    let mut terminal = chat_with(&place, &format!("{}; exec cat", nows.each_ref().map(tell).join("; ")));
    terminal.press("say\x16");
    for now in &nows {
        fs::write(now, "").expect("a file");
        terminal.until(&format!("\ntold by {}", now.display()));
    }
    terminal.press("!");
    terminal.until_last("> say!");
    terminal.press("\r");
    terminal.until("\nsay!\n>");
    end(terminal);
}

#[test]
fn lines_that_are_typed_at_once_are_read_one_after_the_other() {
    let place = Place::new();
    let mut terminal = chat_with(&place, "exec cat");
    let lines: Vec<_> = (0..60).map(|n| format!("line-{n}")).collect();
    terminal.press(&format!("{}\r", lines.join("\r")));
    terminal.until("\nline-59\n>");
    end(terminal);
}
