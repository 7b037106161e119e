//! A session in the foreground.

use ipc_protocol::{Event, KillCause, StopReason};
use nix::sys::signal::Signal;

use crate::{
    harness::{PROGRAM, Place, Running, envelope, is_there, process},
    terminal::Terminal,
};

fn args<'a>(flags: &[&'a str], prompt: &'a str) -> Vec<&'a str> {
    [&["run", "--agent", "acp"], flags, &[prompt, "--", PROGRAM, "fake-agent"]].concat()
}

#[test]
fn one_turn_and_a_receipt() {
    let place = Place::new();
    let ran = place.run(&args(&[], "say hello\nsetsid sleep 300\nsay bye")).exits(0);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(lines.first() == Some(&"hello") && lines.last() == Some(&"bye"), "{lines:?}");
    assert!(ran.stderr.contains("session ended: 0 survivors"), "{}", ran.stderr);
    let sleeper = lines[1].strip_prefix("setsid ").expect("its pid").parse::<u32>().expect("a pid");
    assert!(registry::identify(sleeper).is_err(), "it is gone");
}

#[test]
fn json_is_one_envelope_a_line_and_the_receipt_the_last() {
    let place = Place::new();
    let envelopes = place.run(&args(&["--json"], "say hello")).exits(0).envelopes();
    assert!(envelopes.iter().any(|envelope| matches!(envelope.event, Event::SessionStarted { .. })));
    assert!(envelopes.iter().enumerate().all(|(at, envelope)| envelope.offset == at as u64 + 1));
    let Some(Event::SessionEnded { receipt: Some(receipt), .. }) = envelopes.last().map(|e| &e.event) else {
        panic!("{envelopes:?}")
    };
    assert!(receipt.is_empty() && receipt.cause == KillCause::KillSession, "{receipt:?}");
}

/// Interrupts a turn, which is cancelled and ends the command.
#[track_caller]
fn aborted_by_an_interrupt(mut running: Running) {
    running.signal(Signal::SIGINT);
    let stop = running.until(|e| match &e.event {
        Event::Complete { stop_reason, .. } => Some(stop_reason.clone()),
        _ => None,
    });
    assert_eq!(stop, StopReason::Cancelled);
    running.end().exits(130);
}

#[test]
fn the_first_interrupt_aborts_the_turn() {
    let place = Place::new();
    let mut running = place.spawn(&args(&["--json"], "say up\nwait"));
    running.until(|e| matches!(&e.event, Event::Text { .. }).then_some(()));
    aborted_by_an_interrupt(running);
}

#[test]
fn the_end_of_the_terminal_ends_all_of_it() {
    let place = Place::new();
    let file = |name: &str| place.directory.join(name);
    let touch = |name: &str| format!("touch {}", file(name).display());
    let (before, after) = (touch("before"), touch("after"));
    let mut running = place.spawn(&args(&["--json", "--before-start", &before, "--after-end", &after], "say up\nwait"));
    running.until(|e| matches!(&e.event, Event::Text { .. }).then_some(()));
    assert!(file("before").exists());
    running.signal(Signal::SIGHUP);
    running.end().exits(130);
    assert!(file("after").exists());
    // One that is to outlive its terminal does.
    let argv: Vec<&str> = ["nohup", PROGRAM].into_iter().chain(args(&["--json"], "say up\nwait")).collect();
    let mut running = place.spawn_as(&argv);
    running.until(|e| matches!(&e.event, Event::Text { .. }).then_some(()));
    running.signal(Signal::SIGHUP);
    aborted_by_an_interrupt(running);
}

#[test]
fn clocks_and_budgets_of_turns_are_refused_where_there_are_none() {
    let place = Place::new();
    for flags in [["--timeout", "turn=1s"], ["--max-turns", "3"], ["--max-cost", "1"]] {
        let ran = place.run(&[&["run", "--agent", "command"], &flags[..], &["x", "--", "true"]].concat()).exits(6);
        assert!(ran.stderr.contains("agent \"command\" cannot "), "{}", ran.stderr);
    }
    let ran = place.run(&["run", "--agent", "command", "--timeout", "turn=1s", "x", "--", "true"]);
    assert!(ran.stderr.contains("`--limit wall-clock=`"), "{}", ran.stderr);
    place.run(&["run", "--agent", "command", "--timeout", "turn=off", "x", "--", "true"]).exits(0);
}

#[test]
fn the_second_interrupt_kills_the_session_and_prints_the_receipt() {
    let place = Place::new();
    let mut running = place.spawn(&args(&[], "setsid sleep 300\nhang"));
    let line = running.line().expect("the pid");
    let sleeper = process(line.strip_prefix("setsid ").expect("its pid").parse().expect("a pid"));
    running.signal(Signal::SIGINT);
    // Two at once count as one: the first must have been seen.
    let mut stderr = running.stderr();
    assert!(stderr.until("Ctrl-C again kills the session"), "the abort is announced");
    running.signal(Signal::SIGINT);
    assert!(stderr.until("0 survivors"), "the receipt is printed");
    running.end().exits(130);
    assert!(!is_there(sleeper));
}

#[test]
fn an_agent_without_turns_runs_until_it_exits() {
    let place = Place::new();
    let run = |script: &str| place.run(&["run", "--agent", "command", "x", "--", "sh", "-c", script]);
    assert_eq!(run("read line; echo got $line").exits(0).stdout, "got x\n");
    // It may be gone before it was given its line.
    assert_eq!(run("echo already done").exits(0).stdout, "already done\n");
    let ran = run("exit 3").exits(1);
    assert!(ran.stderr.contains("exit code 3"), "{}", ran.stderr);
}

#[test]
fn a_limit_that_ends_the_session_is_told_and_is_a_refusal() {
    let place = Place::new();
    let ran = place.run(&args(&["--limit", "wall-clock=2s"], "say up\nwait")).exits(8);
    assert_eq!(ran.stdout, "up\n");
    for part in ["! limit: wall-clock", "kill_session", "session ended: 0 survivors", "its limit on wall-clock"] {
        assert!(ran.stderr.contains(part), "{part} in {}", ran.stderr);
    }
    let command = ["run", "--json", "--limit", "wall-clock=2s", "--agent", "command", "x", "--", "sleep", "300"];
    let ran = place.run(&command).exits(8);
    assert_eq!(ran.problem()["type"], "ended");
    let passed = |e: &ipc_protocol::Envelope| matches!(&e.event, Event::LimitExceeded(l) if l.measured >= l.value);
    assert!(ran.envelopes().iter().any(passed), "{}", ran.stdout);
}

#[test]
fn interrupts_add_nothing_to_json() {
    let place = Place::new();
    let mut running = place.spawn(&args(&["--json"], "say up\nhang"));
    running.until(|e| matches!(&e.event, Event::Text { .. }).then_some(()));
    running.signal(Signal::SIGTERM);
    let ran = running.end().exits(130);
    assert_eq!(ran.stderr, "");
}

#[test]
fn nobody_to_ask_is_a_denial() {
    let place = Place::new();
    let ran = place.run(&args(&[], "ask May I?")).exits(0);
    assert_eq!(ran.stdout, "permission: reject-once\n");
    assert!(ran.stderr.contains("denied"), "{}", ran.stderr);
    assert_eq!(place.run(&args(&["--permission", "allow"], "ask May I?")).exits(0).stdout, "permission: allow-once\n");
}

#[test]
fn pictures_and_files_go_with_the_words() {
    let place = Place::new();
    let (picture, file) = (place.directory.join("a.PNG"), place.directory.join("b.txt"));
    std::fs::write(&picture, [0; 6]).expect("written");
    std::fs::write(&file, "").expect("written");
    let [picture, file] = [&picture, &file].map(|path| path.to_str().expect("UTF-8"));
    let envelopes = place.run(&args(&["--json", "--image", picture, "--file", file], "say hi")).exits(0).envelopes();
    let said = envelopes.iter().find_map(|envelope| match &envelope.event {
        Event::TurnStarted { prompt, attachments } => Some((prompt.clone(), attachments.clone())),
        _ => None,
    });
    let real = std::fs::canonicalize(file).expect("there").display().to_string();
    assert_eq!(said, Some(("say hi".into(), vec!["image/png (6 bytes)".into(), real])));

    let daemon = place.serve();
    let mut follower = daemon.start_fake("s");
    daemon.run(&["prompt", "s", "say hi", "--image", picture]).exits(0);
    let attachments = follower.until(|envelope| match &envelope.event {
        Event::TurnStarted { attachments, .. } => Some(attachments.clone()),
        _ => None,
    });
    assert_eq!(attachments, ["image/png (6 bytes)"]);
}

#[test]
fn rules_decide_in_their_order_before_the_mode() {
    let place = Place::new();
    let run = |flags: &[&str]| place.run(&args(flags, "ask May I?")).exits(0).stdout;
    assert_eq!(run(&["--permission", "read-only"]), "permission: reject-once\n");
    assert_eq!(run(&["--permission", "deny", "--allow", "*"]), "permission: allow-once\n");
    assert_eq!(run(&["--permission", "allow", "--deny", "*", "--allow", "*"]), "permission: reject-once\n");
    // Of a daemon nobody is asked: what nobody answers is decided when it has waited long enough.
    let daemon = place.serve();
    for (id, timeout, said) in [("a", "50ms,allow", "allow-once"), ("b", "50ms", "reject-once")] {
        let start =
            ["start", "--id", id, "--agent", "acp", "--permission-timeout", timeout, "--", PROGRAM, "fake-agent"];
        daemon.run(&start).exits(0);
        assert_eq!(daemon.run(&["prompt", id, "ask May I?"]).exits(0).stdout, format!("permission: {said}\n"));
    }
}

#[test]
fn without_any_agent_it_says_how_to_name_one() {
    let place = Place::new();
    let mut command = place.command(&["run", "hello"]);
    command.env("PATH", &place.directory);
    let ran = Running::new(command).end().exits(3);
    assert!(ran.stderr.contains("--agent"), "{}", ran.stderr);
}

#[test]
fn a_reader_that_leaves_ends_the_session_quietly() {
    let place = Place::new();
    let mut running = place.spawn(&args(&["--json"], "say up\nflood 100000 64\nwait"));
    let agent = loop {
        let envelope = envelope(&running.line().expect("it runs"));
        if let Event::SessionStarted { process, .. } = envelope.event {
            break process;
        }
    };
    running.close_stdout();
    let ran = running.end().exits(0);
    assert_eq!(ran.stderr, "");
    assert!(!is_there(agent));
}

/// What scripts read has neither a spinner nor marks of a terminal.
#[test]
fn in_a_pipe_the_lines_are_as_they_were() {
    let place = Place::new();
    let ran = place.run(&args(&[], "think of it\nrun echo found it\nrun exit 3\nsay so")).exits(0);
    assert_eq!(ran.stdout, "so\n");
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert_eq!(
        lines[..5],
        ["of it", "* echo found it", "= echo found it: found it", "* exit 3", "x exit 3: exit code 3"]
    );
    assert!(lines[5].starts_with("session ended: 0 survivors") && lines.len() == 6, "{lines:?}");
}

#[test]
fn on_a_terminal_a_prompt_shows_that_something_happens() {
    let place = Place::new();
    let argv = [PROGRAM, "run", "--agent", "acp", "run sleep 2.5\nsay so", "--", PROGRAM, "fake-agent"];
    let mut terminal = Terminal::start(&place, &argv, &[]);
    terminal.until("⏵ sleep 2.5");
    terminal.until("acp · 1 s");
    let (ran, screen) = terminal.end();
    ran.exits(0);
    let lines: Vec<&str> = screen.lines().collect();
    assert!(lines[0].starts_with("✓ sleep 2.5 ") && lines[1] == "so", "{screen}");
    assert!(lines[2].starts_with("session ended: 0 survivors") && lines.len() == 3, "{screen}");

    let daemon = place.serve();
    let mut follower = daemon.start_fake("s");
    let mut terminal = Terminal::start(&place, &[PROGRAM, "prompt", "s", "ask May I?\nsay so"], &[]);
    let request = follower.until(|envelope| match &envelope.event {
        Event::PermissionRequested(request) => Some(request.id.clone()),
        _ => None,
    });
    terminal.until(&format!(" s · waiting for {request}"));
    // There is no keyboard that answers here.
    terminal.until(&format!("\n  agent-proxy permit s {request} allow|deny answers\n"));
    assert_eq!(terminal.bells, 1);
    daemon.run(&["permit", "s", &request, "allow"]).exits(0);
    let (ran, screen) = terminal.end();
    ran.exits(0);
    assert!(screen.contains("\npermission: allow-once\nso\n"), "{screen}");
    assert!(!screen.contains("acp · "), "{screen}");
}
