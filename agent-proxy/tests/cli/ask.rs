//! Questions and their answers.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::{PROGRAM, Place, is_there, process};

fn args<'a>(flags: &[&'a str], prompt: &'a str) -> Vec<&'a str> {
    [&["ask", "--agent", "acp"], flags, &[prompt, "--", PROGRAM, "fake-agent"]].concat()
}

#[test]
fn the_reply_is_all_of_standard_output() {
    let place = Place::new();
    let ran = place.run(&args(&[], "think hm\nsay hello\nrun echo out\nsay bye\nsetsid sleep 300")).exits(0);
    let (before, pid) = ran.stdout.rsplit_once("setsid ").expect("the pid");
    assert_eq!((before, ran.stderr.as_str()), ("hello\n\nbye\n", ""));
    let pid: u32 = pid.trim().parse().expect("a pid");
    assert!(registry::identify(pid).is_err(), "it is gone");
}

#[test]
fn json_is_the_whole_answer() {
    let place = Place::new();
    let answer = place.run(&args(&["--json"], "say hello\nrun echo out")).exits(0).json();
    assert_eq!((&answer["reply"], &answer["stopReason"]), (&"hello\n".into(), &"endTurn".into()));
    assert_eq!(
        (&answer["toolCalls"][0]["state"], &answer["receipt"]["survivors"]),
        (&"completed".into(), &Value::Array(vec![]))
    );
}

#[test]
fn what_goes_wrong_has_its_exit_code() {
    let place = Place::new();
    let ran = place.run(&args(&["--timeout", "turn=2s"], "say up\nwait")).exits(7);
    assert_eq!(ran.stdout, "up\n", "what there was");
    assert_eq!(place.run(&args(&["--json"], "exit 3")).exits(1).problem()["type"], "agent-died");
    let ran = place.run(&args(&[], "ask May I?")).exits(0);
    assert!(ran.stdout == "permission: reject-once\n" && ran.stderr.contains("denied: May I?"), "{ran:?}");
    place.run(&["ask", "s-1", "hello"]).exits(4);
    place.run(&["ask"]).exits(2);
    let running = place.spawn(&args(&["--handler", "read line; echo up >&2; cat"], "say up\nwait"));
    let mut running = running;
    let mut stderr = running.stderr();
    assert!(stderr.until("up"));
    running.signal(Signal::SIGINT);
    running.end().exits(130);
}

#[test]
fn a_session_of_the_daemon_is_asked() {
    let place = Place::new();
    let daemon = place.serve();
    drop(daemon.start_fake("s"));
    assert_eq!(daemon.run(&["ask", "s", "say hello"]).exits(0).stdout, "hello\n");
    let answer = daemon.run(&["ask", "s", "say again", "--json"]).exits(0).json();
    assert_eq!((&answer["reply"], &answer["turn"], &answer["receipt"]), (&"again\n".into(), &2.into(), &Value::Null));
    daemon.run(&["ask", "t", "say hello"]).exits(3);
    // An answer that was broken off is none.
    let mut events = daemon.spawn(&["events", "s", "--follow", "--json"]);
    let mut asks = daemon.spawn(&["ask", "s", "say up\nwait"]);
    events.until_printed(&["up"]);
    daemon.run(&["abort", "s"]).exits(0);
    assert_eq!(asks.line().as_deref(), Some("up"));
    asks.end().exits(130);
}

#[test]
fn a_handler_hears_of_a_session_of_the_daemon() {
    let place = Place::new();
    let daemon = place.serve();
    drop(daemon.start_fake("s"));
    let (file, pid) = (place.directory.join("lines"), place.directory.join("pid"));
    let handler = format!("setsid sleep 300 & echo $! > {}; cat > {}; echo done", pid.display(), file.display());
    let ask = |prompt: &str| daemon.run(&["ask", "s", "--handler", &handler, prompt]);
    let calls = || -> Vec<Value> {
        let text = fs::read_to_string(&file).expect("written");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let ran = ask("say one\nrun echo x\nsay two").exits(0);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("one\n\ntwo\n", "done\n"));
    let lines = calls();
    let names: Vec<_> = lines.iter().map(|line| line["call"].as_str().expect("text")).collect();
    assert!(names[0] == "start" && names.last() == Some(&"complete"), "{names:?}");
    assert!(names[1..names.len() - 1].iter().all(|name| *name == "chunk"), "{names:?}");
    let last = &lines[lines.len() - 2];
    assert_eq!((&last["isFinal"], &last["text"]), (&true.into(), &"one\n\ntwo\n".into()));
    assert_eq!(lines.last().expect("some")["answer"]["reply"], "one\n\ntwo\n");
    let left: u32 = fs::read_to_string(&pid).expect("written").trim().parse().expect("a pid");
    assert!(registry::identify(left).is_err(), "what the handler left is ended");
    // The session goes on; what cannot be asked, and how a handler fails, is told as it is of one's own.
    assert_eq!(daemon.run(&["ask", "s", "--handler", "exit 0", "say on"]).exits(0).stdout, "on\n");
    let ran = daemon.run(&["ask", "s", "--handler", "cat >/dev/null; exit 9", "say on"]).exits(1);
    assert!(ran.stdout == "on\n" && ran.stderr.contains("the handler failed: exit code 9"), "{ran:?}");
    daemon.run(&["ask", "t", "--handler", "cat", "say on"]).exits(3);
    ask("exit 3").exits(1);
    assert_eq!(calls().last().expect("some")["error"]["type"], "agent-died");
}

#[test]
fn who_interrupts_a_handler_leaves_the_turn_and_nothing_else() {
    let place = Place::new();
    let daemon = place.serve();
    let mut events = daemon.start_fake("s");
    let mut running = daemon.spawn(&["ask", "s", "--handler", "read line; echo pid $$ >&2; cat", "say up\nwait"]);
    let mut stderr = running.stderr();
    let handler = loop {
        let line = stderr.line().expect("its pid");
        if let Some(pid) = line.strip_prefix("pid ") {
            break pid.parse().expect("a pid");
        }
    };
    let handler = process(handler);
    events.until_printed(&["up"]);
    running.signal(Signal::SIGINT);
    assert!(stderr.until("agent-proxy abort s"));
    running.end().exits(130);
    assert!(!is_there(handler));
    assert!(daemon.run(&["sessions"]).exits(0).stdout.contains("busy"));
}

#[test]
fn a_handler_gets_a_line_for_each_call_and_leaves_nothing() {
    let place = Place::new();
    let (file, pid) = (place.directory.join("lines"), place.directory.join("pid"));
    let handler = format!("setsid sleep 300 & echo $! > {}; cat > {}; echo done", pid.display(), file.display());
    let ran = place.run(&args(&["--handler", &handler], "say one\nrun echo x\nsay two")).exits(0);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("one\n\ntwo\n", "done\n"));
    let text = fs::read_to_string(&file).expect("written");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let calls: Vec<_> = lines.iter().map(|line| line["call"].as_str().expect("text")).collect();
    assert!(calls[0] == "start" && calls.last() == Some(&"complete"), "{calls:?}");
    let last = &lines[lines.len() - 2];
    assert_eq!((&last["isFinal"], &last["text"]), (&true.into(), &"one\n\ntwo\n".into()));
    assert_eq!(last["toolCalls"][0]["state"], "completed");
    assert_eq!(lines.last().expect("some")["answer"]["reply"], "one\n\ntwo\n");
    let pid: u32 = fs::read_to_string(&pid).expect("written").trim().parse().expect("a pid");
    assert!(registry::identify(pid).is_err(), "what the handler left is ended");
}

#[test]
fn a_handler_that_fails_is_told_after_the_reply() {
    let place = Place::new();
    let ran = place.run(&args(&["--handler", "cat >/dev/null; exit 9"], "say hello")).exits(1);
    assert!(ran.stdout == "hello\n" && ran.stderr.contains("the handler failed: exit code 9"), "{ran:?}");
    // One that has heard enough may leave.
    assert_eq!(place.run(&args(&["--handler", "exit 0"], "say hello")).exits(0).stdout, "hello\n");
}
