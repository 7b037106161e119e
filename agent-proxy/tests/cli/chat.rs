//! `run` without a prompt: one turn after the other.

use std::{io::Write, process::Stdio};

use ipc_protocol::Event;
use nix::sys::signal::Signal;
use serde_json::json;

use crate::{
    harness::{PROGRAM, Place, Running, envelope, gone, open_terminal, process},
    terminal::Terminal,
};

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
    // Lines from a pipe are prompts: nobody has seen a request.
    say(&mut stdin, "ask May I?\ny");
    let mut stderr = running.stderr();
    assert!(stderr.until("? denied: May I?: standard input and error are no terminal"));
    assert_eq!(running.line().as_deref(), Some("permission: reject-once"));
    assert_eq!(running.line().as_deref(), Some("y"));
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

/// One without effect at the prompt is none of the next turn's. Without a line editor it is a signal.
#[test]
fn an_interrupt_between_two_turns_is_over_with_the_next_prompt() {
    let place = Place::new();
    let argv = [PROGRAM, "run", "--agent", "acp", "--", PROGRAM, "fake-agent"];
    let mut terminal = Terminal::start(&place, &argv, &[("TERM", "dumb")]);
    terminal.until_last(">");
    terminal.press("\x03");
    terminal.until("no turn runs");
    terminal.press("run sleep 1000\r");
    terminal.until("* sleep 1000");
    terminal.press("\x03");
    terminal.until("the turn was aborted");
    terminal.until_last(">");
    terminal.press("say three\r");
    terminal.until("\nthree\n");
    terminal.press("\x04");
    terminal.end().0.exits(0);
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
    let limit = ["--limit", "wall-clock=3s"];
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

/// A chat with the fake agent on a terminal, at its first prompt.
fn chat_on_terminal(place: &Place, flags: &[&str]) -> Terminal {
    let store = place.directory.join("chats");
    let store = store.to_str().expect("UTF-8");
    let argv = [&[PROGRAM, "run", "--agent", "acp"], flags, &["--", PROGRAM, "fake-agent", "--store", store]].concat();
    let mut terminal = Terminal::start(place, &argv, &[]);
    terminal.until_last(">");
    terminal
}

#[test]
fn a_terminal_has_a_line_editor_and_is_left_as_it_was() {
    let place = Place::new();
    let mut terminal = chat_on_terminal(&place, &[]);
    let before = nix::sys::termios::tcgetattr(&open_terminal((24, 80)).1).expect("settings");
    // A typo, and the key that takes it back.
    terminal.press("say helli\x7fo there\r");
    terminal.until("\nhello there\n>");
    terminal.press("ask May I?\r");
    terminal.until("or a number:");
    terminal.press("n\r");
    terminal.until("\npermission: reject-once\n");
    terminal.until_last(">");
    terminal.press("\x03");
    terminal.until("Ctrl-C again");
    terminal.until_last(">");
    terminal.press("\x03");
    let (ran, _, after) = terminal.end_with_settings();
    ran.exits(130);
    assert_eq!(after.local_flags, before.local_flags);
}

#[test]
fn it_opens_with_what_runs_and_the_keys_and_closes_with_the_receipt() {
    let place = Place::new();
    let cwd = place.directory.to_str().expect("UTF-8");
    let mut terminal = chat_on_terminal(&place, &["--cwd", cwd, "--model", "fake-2"]);
    let screen = terminal.screen();
    let value = |name: &str| {
        let line = screen.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name} in\n{screen}")).trim().to_owned()
    };
    assert_eq!([value("agent"), value("model"), value("directory")], ["acp", "fake-2", cwd]);
    assert!(value("session").len() == 36 && value("keys").ends_with("/help"), "{screen}");
    assert_eq!(screen.lines().count(), 6, "{screen}");
    terminal.press("\x04");
    let (ran, screen) = terminal.end();
    ran.exits(0);
    let last = screen.lines().last().expect("a line");
    assert!(last.starts_with("session ended: 0 survivors, 1 process ended in "), "{screen}");
}

#[test]
fn a_turn_shows_that_something_happens() {
    let place = Place::new();
    let mut terminal = chat_on_terminal(&place, &[]);
    terminal.press("think of it\nsleep 2500ms\nsay so".replace('\n', "\x16\n").as_str());
    terminal.press("\r");
    terminal.until("⏵ thinking: of it");
    terminal.until("acp · 1 s");
    let screen = terminal.until("so\n>");
    assert!(screen.contains("\n✓ thought ") && !screen.contains("acp · "), "{screen}");
    terminal.press("wait\r");
    terminal.until("acp · 3 s · last sign of life 3 s ago");
    // Impatience leaves no copies of the spinner.
    terminal.press("\r");
    terminal.until(" · last sign of life 4 s ago");
    terminal.press("\x03");
    let screen = terminal.until("the turn was aborted\n>");
    assert!(!screen.contains("acp · ") && screen.contains("aborting the turn; Ctrl-C again kills"), "{screen}");
    // Twice ends it.
    terminal.press("\x0changing\x7f\x7f\x7f\r");
    terminal.until("acp · ");
    terminal.press("\x03");
    terminal.until("Ctrl-C again kills the session\n");
    terminal.press("\x03");
    let (ran, screen) = terminal.end();
    ran.exits(130);
    assert!(screen.lines().last().is_some_and(|line| line.starts_with("session ended: 0 survivors")), "{screen}");
}

#[test]
fn tool_calls_are_lines_that_finish() {
    let place = Place::new();
    let mut terminal = chat_on_terminal(&place, &[]);
    terminal.press("run sleep 2.5; echo found it\r");
    terminal.until("⏵ sleep 2.5; echo found it");
    terminal.until("⏵ sleep 2.5; echo found it 1 s\n");
    let screen = terminal.until_last(">");
    assert!(screen.contains("\n✓ sleep 2.5; echo found it ") && screen.contains(" s · found it\n"), "{screen}");
    assert!(!screen.contains('⏵'), "{screen}");
    terminal.press("run exit 3\r");
    terminal.until("\n✗ exit 3 ");
    terminal.until_last(">");
    terminal.press("run sleep 300\r");
    terminal.until("⏵ sleep 300");
    terminal.press("\x03");
    let screen = terminal.until("the turn was aborted\n>");
    assert!(!screen.contains('⏵') && screen.contains("sleep 300 "), "{screen}");
    terminal.press("\x04");
    terminal.end().0.exits(0);
}

/// The spinner is below it meanwhile.
#[test]
fn an_answer_goes_on_where_it_paused() {
    let place = Place::new();
    let mut terminal = chat_on_terminal(&place, &[]);
    terminal.paste("flood 1 20\nsleep 2s\nflood 1 20");
    terminal.press("\r");
    let line = format!("0000000000{}", ".".repeat(10));
    let screen = terminal.until(" acp · 1 s");
    assert!(screen.lines().rev().nth(1) == Some(&line), "{screen}");
    let screen = terminal.until_last(">");
    assert!(screen.contains(&format!("\n{line}{line}\n")) && !screen.contains("acp · "), "{screen}");
    terminal.press("\x04");
    terminal.end().0.exits(0);
}

#[test]
fn several_pasted_lines_are_one_prompt() {
    let place = Place::new();
    let mut terminal = chat_on_terminal(&place, &[]);
    terminal.press("say one\r");
    terminal.until("\none\n>");
    terminal.paste("say two\nhistory\n");
    terminal.press("\r");
    terminal.until("\ntwo\n1 before\n>");
    terminal.press("\x04");
    terminal.end().0.exits(0);
}

#[test]
fn commands_begin_with_a_slash() {
    let place = Place::new();
    let mut terminal = chat_on_terminal(&place, &[]);
    let mut types = |typed: &str, expected: &str| {
        terminal.press(&format!("\x0c{typed}\r"));
        terminal.until(expected);
        terminal.until_last(">")
    };
    let help = types("/help", "//TEXT");
    for name in ["/help", "/model NAME", "/mode NAME", "/compact", "/ps", "/kill PID", "/quit"] {
        assert!(help.contains(&format!("\n  {name}")), "{name} in\n{help}");
    }
    types("/init", "no command /init; //init sends it as a prompt. There are\n  /help /model /mode ");
    types("//init", "\n/init\n>");
    types("/etc/hosts", "\n/etc/hosts\n>");
    types("/model fake-2", "\nmodel: fake-2\n>");
    types("model", "\nfake-2\n>");
    types("/model", "\nmodel: fake-2\n>");
    types("/compact", "error: agent \"acp\" cannot compact its conversation");
    let started = types("setsid sleep 300", "\nsetsid ");
    let pid = started.lines().find_map(|line| line.strip_prefix("setsid ")?.parse::<u32>().ok()).expect("a pid");
    let sleeper = process(pid);
    let tree = types("/ps", "sleep 300  [left session");
    assert!(tree.contains(&format!("\n{pid:>7}")) || tree.contains(&pid.to_string()), "{tree}");
    types(&format!("/kill {pid}"), "0 survivors, ");
    gone(sleeper);
    terminal.press("/quit\r");
    let (ran, screen) = terminal.end();
    ran.exits(0);
    assert!(screen.contains("session ended: 0 survivors"), "{screen}");
}

#[test]
fn all_of_a_request_is_shown_and_nothing_in_it_is_taken_for_ours() {
    let place = Place::new();
    let mut terminal = chat_on_terminal(&place, &[]);
    let command =
        r#"{"title":"ls …","kind":"execute","rawInput":{"command":"ls\nrm -rf \u001b[2J\u202ex","why":"tidy\nup"}}"#;
    terminal.press(&format!("\x0cask-call {command}\r"));
    let screen = terminal.until("or a number:");
    let request = "\nMay it? ls … execute\n  command  ls\n           rm -rf \\u{1b}[2J\\u{202e}x\n  why  tidy\n       up\n  1  Allow once\n";
    assert!(screen.contains(request), "{screen}");
    assert_eq!(terminal.bells, 1);
    terminal.press("n\r");
    terminal.until("\npermission: reject-once\n");
    terminal.until_last(">");
    let edit = r#"{"title":"Edit a","kind":"edit","locations":[{"path":"/etc/a"}],"content":[{"type":"diff","path":"/etc/a","oldText":"one\ntwo\n","newText":"one\n2\n"}]}"#;
    terminal.press(&format!("\x0cask-call {edit}\r"));
    terminal.until("\nMay it? Edit a edit\n");
    let screen = terminal.until_last("  y = allow once, n = deny, or a number:");
    assert!(
        screen.contains("\n    path  /etc/a\n") && screen.contains("\n      one\n    - two\n    + 2\n"),
        "{screen}"
    );
    terminal.press("1\r");
    terminal.until("\npermission: allow-once\n");
    terminal.until_last(">");
    terminal.press("\x04");
    terminal.end().0.exits(0);
}

/// An agent that is resumed begins the ids of its requests anew.
#[test]
fn a_request_after_a_resume_is_shown() {
    let place = Place::new();
    let mut terminal = chat_on_terminal(&place, &["--idle-suspend", "100ms"]);
    for title in ["First?", "Second?"] {
        terminal.press(&format!("ask {title}\r"));
        terminal.until(&format!("\nMay it? {title}"));
        terminal.until_last("  y = allow once, n = deny, or a number:");
        terminal.press("n\r");
        terminal.until("permission: reject-once\n");
        terminal.until("suspended: it was idle; the next prompt resumes it\n>");
        terminal.press("\x0c");
        terminal.until_screen(">");
    }
    terminal.press("\x04");
    terminal.end().0.exits(0);
}

#[test]
fn what_is_typed_ahead_is_the_next_prompt_and_answers_nothing() {
    let place = Place::new();
    let mut terminal = chat_on_terminal(&place, &[]);
    terminal.paste("say begun\nsleep 3s\nask May I?");
    terminal.press("\r");
    terminal.until("\nbegun\n");
    terminal.until("acp · ");
    // Somebody is within a line when the question comes.
    terminal.press("y\rsay la");
    terminal.until("\nnext: y\n");
    let screen = terminal.until("or a number:");
    assert!(!screen.contains("permission: ") && screen.ends_with("or a number:"), "{screen}");
    terminal.press("n\r");
    terminal.until("\npermission: reject-once\n");
    terminal.until("\n> y\ny\n");
    terminal.until_last("> say la");
    terminal.press("st\r");
    terminal.until("\nlast\n>");
    // What was typed before an abort is edited first.
    terminal.press("wait\r");
    terminal.until("acp · ");
    terminal.press("say edited\r");
    terminal.until("\nnext: say edited\n");
    terminal.press("\x03");
    terminal.until("the turn was aborted\n> say edited");
    terminal.press("\x7f\r");
    terminal.until("\nedite\n>");
    terminal.press("\x04");
    terminal.end().0.exits(0);
}

#[test]
fn a_question_between_two_turns_is_answered_there() {
    let place = Place::new();
    let now = place.directory.join("now");
    let request = json!({
        "jsonrpc": "2.0", "id": 900, "method": "session/request_permission",
        "params": {
            "sessionId": "fake-session", "toolCall": { "toolCallId": "late", "title": "Late" },
            "options": [{ "optionId": "yes", "name": "Allow", "kind": "allow_once" }],
        },
    });
    let waits = format!("(until [ -e {} ]; do sleep 0.05; done; echo '{request}') & exec \"$@\"", now.display());
    let argv = [PROGRAM, "run", "--agent", "acp", "--", "/bin/sh", "-c", &waits, "sh", PROGRAM, "fake-agent"];
    let mut terminal = Terminal::start(&place, &argv, &[]);
    terminal.until_last(">");
    terminal.press("say one\r");
    terminal.until("\none\n>");
    terminal.press("say tw");
    terminal.until_last("> say tw");
    std::fs::write(&now, "").expect("a file");
    terminal.until("\nMay it? Late");
    // The line that is edited stays below.
    terminal.until("\npress Enter to answer; what is typed by then is held\n> say tw");
    assert!(!terminal.screen().contains("\n> say tw* Late"), "{}", terminal.screen());
    terminal.press("o\r");
    terminal.until_last("  y = allow once, n = deny, or a number:");
    terminal.press("y\r");
    terminal.until("answered: yes, by");
    // What was held is the next prompt.
    terminal.until("\n> say two");
    terminal.until("\ntwo\n>");
    terminal.press("\x04");
    terminal.end().0.exits(0);
}

#[test]
fn a_line_that_is_handed_over_unended_holds_up_no_question() {
    let place = Place::new();
    let mut terminal = chat_on_terminal(&place, &[]);
    terminal.paste("say begun\nsleep 3s\nask May I?");
    terminal.press("\r");
    terminal.until("\nbegun\n");
    terminal.until("acp · ");
    terminal.press("say la\x04");
    terminal.until("or a number:");
    terminal.press("n\r");
    terminal.until("\npermission: reject-once\n");
    terminal.until_last("> say la");
    terminal.press("st\r");
    terminal.until("\nlast\n>");
    terminal.press("\x04");
    terminal.end().0.exits(0);
}

#[test]
fn an_interrupt_clears_a_line_with_text_first() {
    let place = Place::new();
    let mut terminal = chat_on_terminal(&place, &[]);
    terminal.press("half");
    terminal.until_last("> half");
    terminal.press("\x03");
    terminal.until_last(">");
    terminal.press("\x03");
    terminal.until("Ctrl-C again, or Ctrl-D, ends the session\n>");
    terminal.press("more\x03");
    terminal.until_prompts(">", 4);
    terminal.press("say on\r");
    terminal.until("\non\n>");
    terminal.press("\x04");
    terminal.end().0.exits(0);
}

#[test]
fn processes_are_seen_and_ended_while_a_turn_runs() {
    let place = Place::new();
    let mut terminal = chat_on_terminal(&place, &[]);
    terminal.press("setsid sleep 300\r");
    terminal.until("\nsetsid ");
    let started = terminal.until_last(">");
    terminal.press("wait\r");
    terminal.until("acp · ");
    let pid = started.lines().find_map(|line| line.strip_prefix("setsid ")?.parse::<u32>().ok()).expect("a pid");
    let sleeper = process(pid);
    terminal.press("/ps\r");
    terminal.until("sleep 300  [left session");
    terminal.press(&format!("/kill {pid}\r"));
    terminal.until("0 survivors, ");
    gone(sleeper);
    terminal.until("acp · ");
    terminal.press("\x03");
    terminal.until("the turn was aborted\n>");
    terminal.press("\x04");
    terminal.end().0.exits(0);
}

#[test]
fn reasons_are_whole() {
    let place = Place::new();
    let mut terminal = chat_on_terminal(&place, &[]);
    terminal.press(&format!("\x0craw {}end of it\r", "words ".repeat(20)));
    let screen = terminal.until("end of it\n>");
    assert!(screen.lines().all(|line| line.chars().count() <= 80) && !screen.contains('…'), "{screen}");
    terminal.press("\x04");
    terminal.end().0.exits(0);
}

/// A shell's own words begin with a slash too.
#[test]
fn a_command_gets_each_line_as_it_is() {
    let place = Place::new();
    let mut terminal =
        Terminal::start(&place, &[PROGRAM, "run", "--agent", "command", "--", "sed", "-u", "s/quit/left/"], &[]);
    terminal.until_last(">");
    terminal.press("/quit\r");
    terminal.until("\n> /quit\n/left\n>");
    terminal.press("\x04");
    terminal.end().0.exits(0);
}
