//! `run` without a prompt: one turn after the other.

use std::{
    fs::File,
    io::{Read, Write},
    process::Stdio,
    sync::mpsc,
    thread,
};

use ipc_protocol::Event;
use nix::{pty::openpty, sys::signal::Signal};

use crate::harness::{DEADLINE, PROGRAM, Place, Running, envelope};

fn chat(place: &Place, flags: &[&str]) -> Running {
    let mut command = place.command(&[&["run", "--agent", "acp"], flags, &["--", PROGRAM, "fake-agent"]].concat());
    command.stdin(Stdio::piped());
    Running::new(command)
}

fn say(running: &mut std::process::ChildStdin, text: &str) {
    writeln!(running, "{text}").expect("it reads");
}

#[test]
fn turns_as_they_are_typed_until_the_end_of_the_input() {
    let place = Place::new();
    let mut running = chat(&place, &[]);
    let mut stdin = running.stdin();
    say(&mut stdin, "say one");
    assert_eq!(running.line().as_deref(), Some("one"));
    say(&mut stdin, "");
    // A request is put to whoever types.
    say(&mut stdin, "ask May I?");
    let mut stderr = running.stderr();
    assert!(stderr.until("May it? May I?"));
    say(&mut stdin, "y");
    assert_eq!(running.line().as_deref(), Some("permission: allow-once"));
    say(&mut stdin, "say last");
    assert_eq!(running.line().as_deref(), Some("last"));
    drop(stdin);
    assert!(stderr.until("session ended: 0 survivors"));
    running.end().exits(0);
}

#[test]
fn an_interrupt_aborts_the_turn_and_a_second_one_ends() {
    let place = Place::new();
    let mut running = chat(&place, &["--json"]);
    let mut stdin = running.stdin();
    for _ in 0..2 {
        say(&mut stdin, "wait");
        running.until(|e| matches!(e.event, Event::SessionBusy {}).then_some(()));
        running.signal(Signal::SIGINT);
        running.until(|e| matches!(e.event, Event::Complete { .. }).then_some(()));
        running.until(|e| matches!(e.event, Event::SessionIdle {}).then_some(()));
    }
    say(&mut stdin, "say on");
    running.until(|e| matches!(&e.event, Event::Text { text } if text == "on\n").then_some(()));
    say(&mut stdin, "say up\nhang");
    say(&mut stdin, "hang");
    running.until(|e| matches!(&e.event, Event::TurnStarted { prompt, .. } if prompt == "hang").then_some(()));
    running.signal(Signal::SIGTERM);
    running.end().exits(130);
}

#[test]
fn a_command_gets_lines_and_the_end_of_its_input() {
    let place = Place::new();
    let mut command = place.command(&["run", "--agent", "command", "--", "sh", "-c", "cat; echo over"]);
    command.stdin(Stdio::piped());
    let mut running = Running::new(command);
    let mut stdin = running.stdin();
    say(&mut stdin, "hello");
    assert_eq!(running.line().as_deref(), Some("hello"));
    drop(stdin);
    assert_eq!(running.end().exits(0).stdout, "over\n");
}

/// It may be done before, while, or after it is told that nothing more is typed.
#[test]
fn a_command_that_is_done_at_once_has_said_what_it_said() {
    let place = Place::new();
    for _ in 0..10 {
        let run = |script: &str| place.run(&["run", "--agent", "command", "--", "sh", "-c", script]);
        assert_eq!(run("echo hi").exits(0).stdout, "hi\n");
        let failed = run("echo last words; exit 3").exits(1);
        assert_eq!(failed.stdout, "last words\n");
        assert!(failed.stderr.contains("exit code 3"), "{}", failed.stderr);
        let mut command = place.command(&["run", "--agent", "command", "--", "echo", "hi"]);
        command.stdin(Stdio::piped());
        let mut running = Running::new(command);
        // Nobody reads it any more, or never did.
        let _ = writeln!(running.stdin(), "one\ntwo");
        assert_eq!(running.end().exits(0).stdout, "hi\n");
    }
}

#[test]
fn what_ends_the_session_ends_the_talk() {
    let place = Place::new();
    let mut running = chat(&place, &[]);
    let mut stdin = running.stdin();
    say(&mut stdin, "exit 3");
    let ran = running.end().exits(1);
    assert!(ran.stderr.contains("error:"), "{}", ran.stderr);
    place.run(&["run", "--agent", "acp", "--file", "/etc/hostname", "--", PROGRAM, "fake-agent"]).exits(2);
}

/// The fake agent with a store: its conversations can be gone on with.
fn keeper(place: &Place, flags: &[&str]) -> Running {
    let store = place.directory.join("chats");
    let store = store.to_str().expect("UTF-8");
    let agent = ["--", PROGRAM, "fake-agent", "--store", store];
    let mut command = place.command(&[&["run", "--agent", "acp"], flags, &agent].concat());
    command.stdin(Stdio::piped());
    Running::new(command)
}

#[test]
fn a_prompt_resumes_what_was_idle_for_too_long() {
    let place = Place::new();
    for as_json in [false, true] {
        let flags: &[&str] =
            if as_json { &["--idle-suspend", "100ms", "--json"] } else { &["--idle-suspend", "100ms"] };
        let mut running = keeper(&place, flags);
        let mut stdin = running.stdin();
        if as_json {
            running.until(|e| matches!(e.event, Event::SessionSuspended { .. }).then_some(()));
            say(&mut stdin, "say on");
            running.until(|e| matches!(&e.event, Event::Text { text } if text == "on\n").then_some(()));
        } else {
            let mut stderr = running.stderr();
            assert!(stderr.until("suspended: it was idle; the next prompt resumes it"));
            say(&mut stdin, "say on");
            assert_eq!(running.line().as_deref(), Some("on"));
            say(&mut stdin, "history");
            assert_eq!(running.line().as_deref(), Some("1 before"));
        }
        drop(stdin);
        running.end().exits(0);
    }
}

#[test]
fn what_is_suspended_and_takes_no_prompt_says_so() {
    let place = Place::new();
    let mut running = keeper(&place, &["--idle-suspend", "100ms", "--no-resume-on-prompt"]);
    let _stdin = running.stdin();
    let ran = running.end().exits(8);
    assert!(ran.stderr.contains("is suspended (it was idle)") && !ran.stderr.contains("shut down"), "{}", ran.stderr);
}

#[test]
fn an_agent_that_crashes_is_started_again_and_the_talk_goes_on() {
    let place = Place::new();
    let mut running = keeper(&place, &["--restart", "on-crash"]);
    let mut stdin = running.stdin();
    let mut stderr = running.stderr();
    say(&mut stdin, "say one");
    assert_eq!(running.line().as_deref(), Some("one"));
    say(&mut stdin, "exit 3");
    assert!(stderr.until("suspended: the agent exited (exit code 3); the next prompt resumes it"));
    assert!(stderr.until("has died: the agent exited (exit code 3)"));
    say(&mut stdin, "say on");
    assert_eq!(running.line().as_deref(), Some("on"));
    drop(stdin);
    running.end().exits(0);
}

#[test]
fn an_agent_that_crashes_is_waited_for_where_no_prompt_resumes_it() {
    let place = Place::new();
    let mut running = keeper(&place, &["--restart", "on-crash", "--no-resume-on-prompt"]);
    let mut stdin = running.stdin();
    let mut stderr = running.stderr();
    say(&mut stdin, "exit 3");
    assert!(stderr.until("suspended: the agent exited (exit code 3); it is resumed in a moment"));
    assert!(stderr.until("- resumed"));
    say(&mut stdin, "say on");
    assert_eq!(running.line().as_deref(), Some("on"));
    drop(stdin);
    running.end().exits(0);
}

/// Whatever else comes at the same moment.
#[test]
fn what_ends_the_session_is_told_once_and_has_its_exit_code() {
    let place = Place::new();
    let limit = ["--limit", "wall-clock=1s"];
    let budget = ["--max-tokens", "10", "--on-budget", "end-session"];
    let late = ["--timeout", "turn=200ms,action=kill"];
    for (flags, prompts, code, kind, why) in [
        (&[][..], "exit 3\nsay more\n", 1, "agent-died", "exit code 3"),
        (&[], "crash\n", 1, "agent-died", "the agent exited (signal 6)"),
        (&limit, "wait\nsay more\n", 8, "ended", "its limit on wall-clock; see --limit"),
        (&budget, "tokens 7 8\nsay more\n", 8, "budget-exceeded", "its budget of tokens; see --on-budget"),
        (&late, "wait\nsay more\n", 7, "deadline", "its turn took too long; see --timeout"),
    ] {
        let mut running = chat(&place, &[flags, &["--json"]].concat());
        let mut stdin = running.stdin();
        // It may be gone by the second line.
        let _ = stdin.write_all(prompts.as_bytes());
        drop(stdin);
        let ran = running.end().exits(code);
        let problem = ran.problem();
        let detail = problem["detail"].as_str().expect("text");
        assert!(problem["type"] == kind && detail.contains(why), "{flags:?}: {}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{flags:?}: {}", ran.stderr);
        let last = ran.stdout.lines().last().map(envelope).expect("some");
        assert!(matches!(last.event, Event::SessionEnded { .. }), "{flags:?}: {last:?}");
    }
    // Between two turns, and without turns.
    for argv in [&[PROGRAM, "fake-agent"][..], &["cat"]] {
        let agent = if argv == ["cat"] { "command" } else { "acp" };
        let mut command = place.command(&[&["run", "--agent", agent], &limit[..], &["--"], argv].concat());
        command.stdin(Stdio::piped());
        let mut running = Running::new(command);
        let _stdin = running.stdin();
        let ran = running.end().exits(8);
        assert!(ran.stderr.contains("its limit on wall-clock; see --limit"), "{}", ran.stderr);
    }
}

/// Reads from the terminal until `wanted` comes.
fn until(screen: &mpsc::Receiver<u8>, wanted: &str) -> String {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(wanted) {
        match screen.recv_timeout(DEADLINE) {
            Ok(byte) => seen.push(byte),
            Err(error) => panic!("{error}; no {wanted:?} in {:?}", String::from_utf8_lossy(&seen)),
        }
    }
    String::from_utf8_lossy(&seen).into_owned()
}

#[test]
fn a_terminal_has_a_line_editor_and_is_left_as_it_was() {
    let place = Place::new();
    let pty = openpty(None, None).expect("a terminal");
    let before = nix::sys::termios::tcgetattr(&pty.slave).expect("its settings");
    let mut command = place.command(&["run", "--agent", "acp", "--", PROGRAM, "fake-agent"]);
    let end = || Stdio::from(pty.slave.try_clone().expect("another end"));
    command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm");
    let running = Running::new(command);
    let mut master = File::from(pty.master);
    let (sender, screen) = mpsc::channel();
    let mut reader = master.try_clone().expect("another end");
    thread::spawn(move || {
        let mut byte = [0];
        while reader.read(&mut byte).is_ok_and(|read| read == 1) && sender.send(byte[0]).is_ok() {}
    });
    let mut typed = |keys: &str| master.write_all(keys.as_bytes()).expect("it is there");
    until(&screen, "> ");
    // A typo, and the key that takes it back.
    typed("say helli\x7fo there\r");
    until(&screen, "\r\nhello there\r\n");
    until(&screen, "> ");
    typed("ask May I?\r");
    until(&screen, "or a number: ");
    typed("n\r");
    until(&screen, "permission: reject-once");
    // Before that the terminal is nobody's.
    until(&screen, "> ");
    typed("\x03");
    until(&screen, "Ctrl-C again");
    until(&screen, "> ");
    typed("\x03");
    running.end().exits(130);
    let after = nix::sys::termios::tcgetattr(&pty.slave).expect("its settings");
    assert_eq!(after.local_flags, before.local_flags);
}
