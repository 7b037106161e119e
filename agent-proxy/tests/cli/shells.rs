//! A shell beside a session's agent, as a person and as a script has it.

use nix::sys::signal::Signal;

use crate::{
    harness::{PROGRAM, Place, gone, process},
    terminal::Terminal,
};

#[test]
fn a_script_gets_output_errors_and_exit() {
    let place = Place::new();
    let daemon = place.serve();
    let _follower = daemon.start("s", &["sleep", "1000"]);
    let ran = daemon.run(&["shell", "s", "--", "sh", "-c", "echo out; echo err >&2; exit 3"]).exits(3);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("out\n", "err\n"));
    let ran = daemon.run(&["shell", "s", "--", "no-such-program"]);
    assert!(ran.stderr.contains("no-such-program"), "{}", ran.stderr);
    let ran = daemon.run(&["shell", "other"]).exits(3);
    assert!(ran.stderr.contains("no session"), "{}", ran.stderr);
    daemon.end(Signal::SIGTERM).exits(0);
}

#[test]
fn a_person_gets_a_terminal() {
    let place = Place::new();
    let daemon = place.serve();
    let _follower = daemon.start("s", &["sleep", "1000"]);
    let mut terminal = Terminal::start(&place, &[PROGRAM, "shell", "s", "--", "sh"], &[("PS1", "$ ")]);
    terminal.press("echo it is $((6 * 7)), pid=$$\r");
    terminal.until("it is 42, pid=");
    terminal.press("exit 5\r");
    let (ran, _) = terminal.end();
    ran.exits(5);
    let shows = daemon.run(&["ps", "s"]).exits(0);
    assert!(shows.stdout.contains("sleep 1000"), "{}", shows.stdout);
    daemon.end(Signal::SIGTERM).exits(0);
}

#[test]
fn a_killed_viewer_leaves_no_shell() {
    let place = Place::new();
    let daemon = place.serve();
    let _follower = daemon.start("s", &["sleep", "1000"]);
    let mut viewer = daemon.spawn(&["shell", "s", "--", "sh", "-c", "echo $$; exec sleep 1000"]);
    let shell = process(viewer.line().expect("its pid").parse().expect("a pid"));
    viewer.signal(Signal::SIGKILL);
    gone(shell);
    drop(viewer);
    daemon.run(&["shell", "s", "--", "true"]).exits(0);
    daemon.end(Signal::SIGTERM).exits(0);
}
