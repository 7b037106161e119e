//! Listings, ids, commands on several sessions, selected events and help, as a person at a terminal has them.

use std::{fs::File, io::Read, process::Stdio, sync::mpsc, thread};

use ipc_protocol::{Event, Receipt};

use crate::harness::{DEADLINE, PROGRAM, Place, Ran, Running, open_terminal};

/// Runs the program in a terminal, and returns what it shows. Without `stdout` only standard error is one.
#[track_caller]
pub(crate) fn on_screen(place: &Place, args: &[&str], columns: u16, stdout: bool) -> (Ran, String) {
    let (controller, side) = open_terminal((24, columns));
    let mut command = place.command(args);
    command.env("NO_COLOR", "1").env("TERM", "xterm").env_remove("COLUMNS");
    let end = || Stdio::from(side.try_clone().expect("another end"));
    command.stderr(end());
    if stdout {
        command.stdout(end());
    }
    let running = Running::new(command);
    drop(side);
    let mut controller = File::from(controller);
    let (sender, shown) = mpsc::channel();
    thread::spawn(move || {
        let mut text = Vec::new();
        let mut bytes = [0; 4096];
        // The end is an error: nobody has the other end any more.
        while let Ok(read @ 1..) = controller.read(&mut bytes) {
            text.extend_from_slice(&bytes[..read]);
        }
        sender.send(String::from_utf8_lossy(&text).replace("\r\n", "\n"))
    });
    let ran = running.end();
    (ran, shown.recv_timeout(DEADLINE).expect("its end"))
}

#[track_caller]
fn fits(text: &str, columns: usize) {
    for line in text.lines() {
        assert!(line.chars().count() <= columns, "{} columns: {line}\n{text}", line.chars().count());
    }
}

#[test]
fn a_table_fits_the_terminal_and_a_pipe_has_all_of_it() {
    let place = Place::new();
    let deep = place.directory.join("a-directory-with-a-long-name/and-one-more-below-it/project");
    std::fs::create_dir_all(&deep).expect("created");
    let cwd = deep.to_str().expect("UTF-8");
    let daemon = place.serve();
    let start =
        || daemon.run(&["start", "--agent", "command", "--cwd", cwd, "--", "cat"]).exits(0).stdout.trim().to_owned();
    let ids = [start(), start()];
    let (_, shown) = on_screen(&place, &["sessions"], 80, true);
    fits(&shown, 80);
    assert!(shown.contains("/project\n") && !shown.contains("STARTED") && !shown.contains(&ids[0]), "{shown}");
    let (_, wide) = on_screen(&place, &["sessions"], 160, true);
    fits(&wide, 160);
    assert!(wide.contains("STARTED (UTC)") && !wide.contains(&ids[0]), "{wide}");
    let piped = daemon.run(&["sessions"]).exits(0).stdout;
    assert!(ids.iter().all(|id| piped.contains(id)) && piped.contains(cwd) && piped.contains("STARTED"), "{piped}");
    for flags in [&["sessions", "--all"][..], &["agents", "--no-run"], &["profiles"], &["ps"]] {
        fits(on_screen(&place, flags, 80, true).1.split("\n\n").next().unwrap_or_default(), 80);
    }

    // What the table shows of an id stands for it.
    let short: Vec<&str> = shown.lines().skip(1).filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(short.len(), 2, "{shown}");
    for (short, id) in short.iter().zip(&ids) {
        assert!(id.starts_with(short) && short.len() < id.len(), "{short} {id}");
        daemon.run(&["prompt", short, "hello"]).exits(0);
        assert_eq!(daemon.run(&["rename", short, "x", "--json"]).exits(0).json()["sessionId"], **id);
        let receipt: Receipt =
            serde_json::from_value(daemon.run(&["kill", short, "--json"]).exits(0).json()).expect("a receipt");
        assert_eq!(receipt.session_id.as_str(), id);
        assert_eq!(daemon.run(&["delete", short, "--json"]).exits(0).json()["sessionId"], **id);
    }
}

#[test]
fn a_beginning_of_several_ids_names_them() {
    let place = Place::new();
    let daemon = place.serve();
    for id in ["job-10", "other"] {
        daemon.run(&["start", "--id", id, "--agent", "command", "--", "cat"]).exits(0);
    }
    let minted = || daemon.run(&["start", "--agent", "command", "--", "cat"]).exits(0).stdout.trim().to_owned();
    let (one, two) = (minted(), minted());
    let common: String = one.chars().zip(two.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a).collect();
    let problem = daemon.run(&["kill", &common, "--json"]).exits(2).problem();
    assert_eq!(problem["type"], "ambiguous-id");
    assert!(problem["detail"].as_str().is_some_and(|text| text.contains(&format!("{one}, {two}"))), "{problem}");
    daemon.run(&["ps", &one[..=common.len()]]).exits(0);
    // The beginning of an id that was chosen is another one.
    daemon.run(&["kill", "job-1"]).exits(3);
    daemon.run(&["delete", "job-1"]).exits(3);
    daemon.run(&["abort", "none"]).exits(3);
    let states = daemon.run(&["sessions", "--format", "{status}"]).exits(0).stdout;
    assert_eq!(states, "idle\n".repeat(4));
    let resumed = format!("session:{common}");
    let resumed = ["start", "--agent", "command", "--resume", &resumed, "--", "cat"];
    assert_eq!(daemon.run(&[&["--json"], &resumed[..]].concat()).exits(2).problem()["type"], "ambiguous-id");
    daemon.run(&["kill", "--all"]).exits(0);
}

#[test]
fn a_listing_has_the_form_that_is_asked_for() {
    let place = Place::new();
    let daemon = place.serve();
    daemon.start("s", &["cat"]);
    let listed = |args: &[&str]| daemon.run(args).exits(0).stdout;
    assert_eq!(listed(&["sessions", "--format", r"{id}\t{state}\t{agent}"]), "s\tidle\tcommand\n");
    assert_eq!(listed(&["sessions", "--all", "--format", "{id} {config.agent}"]), "s command\n");
    assert_eq!(listed(&["sessions", "--format", "{metrics.toolCalls}"]), "0\n");
    assert_eq!(listed(&["sessions", "--format", "json"]).lines().count(), 1);
    let line: serde_json::Value = serde_json::from_str(&listed(&["sessions", "--format", "jsonl"])).expect("JSON");
    assert_eq!(line["sessionId"], "s");
    assert_eq!(
        listed(&["ps", "s", "--format", "{pid} {command}"]),
        format!("{}cat\n", listed(&["ps", "-q"]).replace('\n', " "))
    );
    assert!(listed(&["agents", "--no-run", "-q"]).lines().any(|id| id == "claude-code"));
    assert!(listed(&["models", "list", "--format", "{id}"]).is_empty());
    let problem = daemon.run(&["sessions", "--format", "{nonsense}", "--json"]).exits(2).problem();
    assert!(problem["detail"].as_str().is_some_and(|text| text.contains("id, agent, state")), "{problem}");
    daemon.run(&["sessions", "--format", "yaml"]).exits(2);
    daemon.run(&["sessions", "--format", "json", "-q"]).exits(2);
    daemon.run(&["kill", "s"]).exits(0);
}

/// As in `kill --all | head`.
#[test]
fn all_are_killed_whether_anyone_reads_of_it() {
    let place = Place::new();
    let daemon = place.serve();
    let ids: Vec<String> = (0..20).map(|n| format!("s-{n}")).collect();
    for id in &ids {
        daemon.run(&["start", "--id", id, "--agent", "command", "--", "cat"]).exits(0);
    }
    let mut killing = daemon.spawn(&["kill", "--all"]);
    killing.close_stdout();
    killing.end().exits(0);
    assert_eq!(daemon.run(&["sessions", "--format", "{status}"]).exits(0).stdout, "ended\n".repeat(20));
}

#[test]
fn each_of_several_sessions_is_done_and_reported() {
    let place = crate::lasting::place();
    let daemon = place.keeping(&[]);
    for id in ["a", "b", "c"] {
        daemon.run(&["start", "--id", id, "--agent", "command", "--", "cat"]).exits(0);
    }
    let ran = daemon.run(&["kill", "a", "nope", "b", "a"]).exits(3);
    let names: Vec<&str> = ran.stdout.lines().filter(|line| matches!(*line, "a" | "b")).collect();
    assert_eq!(names, ["a", "b"], "{}", ran.stdout);
    assert_eq!(ran.stdout.matches("0 survivors").count(), 2, "{}", ran.stdout);
    assert!(ran.stderr.contains("no session nope") && ran.stderr.lines().count() == 1, "{}", ran.stderr);
    let receipts = daemon.run(&["kill", "a", "c", "--json"]).exits(0).stdout;
    let killed = |line: &str| serde_json::from_str::<Receipt>(line).expect("a receipt").session_id.to_string();
    assert_eq!(receipts.lines().map(killed).collect::<Vec<_>>(), ["a", "c"]);
    daemon.run(&["kill", "a", "b", "--pid", "1"]).exits(2);
    daemon.run(&["kill", "a", "--all"]).exits(2);
    assert!(daemon.run(&["kill", "--all"]).exits(0).stderr.contains("nothing to do"));

    assert_eq!(daemon.run(&["archive", "a", "b"]).exits(0).stdout, "a\nb\n");
    assert_eq!(daemon.run(&["delete", "--all"]).exits(0).stdout, "c\n", "archived sessions stay");
    assert_eq!(daemon.run(&["archive", "--all", "--undo"]).exits(0).stdout, "a\nb\n");
    let refused = daemon.run(&["delete", "a", "nope", "b", "--json"]).exits(3);
    assert_eq!(refused.problem()["type"], "unknown-session");
    assert_eq!(refused.stdout.lines().count(), 2, "{}", refused.stdout);
    daemon.run(&["delete", "a"]).exits(3);

    for id in ["d", "e"] {
        daemon.run(&["start", "--id", id, "--agent", "kept", "--home", "own"]).exits(0);
        daemon.run(&["prompt", id, "say hi"]).exits(0);
    }
    let ran = daemon.run(&["suspend", "d", "e"]).exits(0);
    assert!(ran.stdout.contains("d suspended after 1 turn") && ran.stdout.contains("e suspended"), "{}", ran.stdout);
    daemon.run(&["prompt", "d", "say again"]).exits(0);
    assert!(daemon.run(&["suspend", "--all"]).exits(0).stdout.starts_with("d suspended after 2 turns"));
    daemon.run(&["kill", "d", "e"]).exits(0);
}

#[test]
fn events_are_selected() {
    let place = Place::new();
    let daemon = place.serve();
    let mut events = daemon.start_fake("s");
    daemon.run(&["prompt", "s", "say one\nsay two"]).exits(0);
    events.until(|e| matches!(&e.event, Event::Complete { .. }).then_some(()));
    let listed = |flags: &[&str]| daemon.run(&[&["events", "s"], flags].concat()).exits(0).stdout;
    assert!(!listed(&[]).contains("harness:") && listed(&[]).contains("stream:text"), "{}", listed(&[]));
    assert!(listed(&["--raw"]).contains("harness:acp:event-received"));
    assert!(listed(&["--json"]).contains("harness:acp:event-received"), "JSON is complete");
    assert!(listed(&["--type", "harness"]).lines().all(|line| line.contains("harness:")));
    let text = listed(&["--type", "stream:text"]);
    assert!(text.lines().count() >= 2 && text.lines().all(|line| line.contains("stream:text")), "{text}");
    let last = listed(&["--type", "stream:text", "--tail", "1"]);
    assert_eq!(Some(last.trim_end()), text.lines().last());
    let groups = listed(&["--type", "session,turn:*"]);
    assert!(groups.lines().all(|line| line.contains("session:") || line.contains("turn:")), "{groups}");
    assert_eq!(listed(&["--since", "1h"]), listed(&[]));
    assert_eq!(listed(&["--since", "2200-01-01T00:00:00Z"]), "");
    assert_eq!(daemon.run(&["events", "s", "-n", "3", "--json"]).exits(0).envelopes().len(), 3);
    daemon.run(&["events", "s", "--since", "noon"]).exits(2);
    assert_eq!(listed(&["--since", "2026-01-01"]), listed(&[]));
    assert_eq!(listed(&["--since", "2200-01-01 14:00"]), "");
    // A slip of the keys would print nothing, ever.
    let refused = daemon.run(&["events", "s", "--type", "stream:txt"]).exits(2).stderr;
    assert!(refused.contains("near are stream:text") && refused.contains("'stream:txt*'"), "{refused}");
    daemon.run(&["events", "s", "--type", "nosuch"]).exits(2);
    daemon.run(&["append", "s", "nosuch:own", "{}"]).exits(0);
    assert!(
        listed(&["--type", "nosuch:own"]).contains("nosuch:own") && listed(&["--type", "nos*"]).contains("nosuch:own")
    );
    daemon.run(&["events", "s", "--tail", "0"]).exits(2);

    // The last of those that exist, and then those that come.
    let mut follower = daemon.spawn(&["events", "s", "--json", "--type", "stream:text", "-n", "1", "--follow"]);
    let words = |follower: &mut Running| {
        follower.until(|e| match &e.event {
            Event::Text { text } => Some(text.clone()),
            _ => None,
        })
    };
    assert_eq!(words(&mut follower), "two\n");
    daemon.run(&["prompt", "s", "say three"]).exits(0);
    assert_eq!(words(&mut follower), "three\n");
    daemon.run(&["kill", "s"]).exits(0);
    follower.end().exits(0);
    events.end();
}

#[test]
fn what_one_does_next_is_said_on_a_terminal_only() {
    let place = crate::lasting::place();
    let daemon = place.keeping(&[]);
    let start = ["start", "--id", "s", "--agent", "kept", "--home", "own"];
    let (ran, tip) = on_screen(&place, &start, 80, false);
    assert_eq!(ran.exits(0).stdout, "s\n");
    assert!(tip.contains("agent-proxy prompt s ") && tip.contains("agent-proxy kill s"), "{tip}");
    fits(&tip, 80);
    daemon.run(&["prompt", "s", "say hi"]).exits(0);
    let (_, tip) = on_screen(&place, &["suspend", "s"], 80, false);
    assert!(tip.contains("agent-proxy resume s"), "{tip}");
    let (_, tip) = on_screen(&place, &["kill", "s"], 80, false);
    assert!(tip.contains("agent-proxy delete s"), "{tip}");
    let (_, tip) = on_screen(&place, &["kill", "s", "--json"], 80, false);
    assert_eq!(tip, "");
    assert_eq!(daemon.run(&["kill", "s"]).exits(0).stderr, "");
}

#[test]
fn help_is_as_wide_as_the_terminal_and_has_two_depths() {
    let place = Place::new();
    for args in [&["--help"][..], &["run", "--help"], &["start", "-h"], &["help", "limits"], &["help", "kill"]] {
        for columns in [60, 80] {
            let (ran, shown) = on_screen(&place, args, columns, true);
            ran.exits(0);
            fits(&shown, usize::from(columns));
        }
        let mut command = place.command(args);
        command.env("COLUMNS", "70");
        fits(&Running::new(command).end().exits(0).stdout, 70);
    }
    let help = |args: &[&str]| place.run(args).exits(0).stdout;
    for command in ["run", "start"] {
        let short = help(&[command, "--help"]);
        assert!(short.lines().count() < 80, "{} lines", short.lines().count());
        assert!(!short.contains("--core-dumps") && short.contains("help TOPIC"), "{short}");
        assert!(short.find("Examples:") < short.find("Options:"), "{short}");
        assert!(help(&[command, "--help-all"]).contains("--core-dumps"));
    }
    let first = help(&["--help"]);
    for group in ["Agents in this terminal:", "Processes:", "Setup:", "Topics"] {
        assert!(first.contains(group), "{group} in {first}");
    }
    assert_eq!(help(&["help", "kill"]), help(&["kill", "--help"]));
    assert!(help(&["help", "permissions"]).contains("--permission-timeout"));
    assert!(place.run(&["help", "nonsense"]).exits(2).stderr.contains("permissions, limits"));
}

#[test]
fn a_command_needs_no_dashes_before_it() {
    let place = Place::new();
    assert!(place.run(&["leaktest", "true"]).exits(0).stdout.contains("CLEAN"));
    let ran = place.run(&["leaktest", "--timeout", "30s", "sh", "-c", "exit 7", "--json"]).exits(0);
    assert!(ran.stdout.contains("exit code 7"), "its own flags: {}", ran.stdout);
    place.run(&["leaktest", "--no-such-flag", "true"]).exits(2);
    assert_eq!(place.run(&["leaktest", "--json", "--", PROGRAM, "--version"]).exits(0).json()["verdict"], "clean");
}

#[test]
fn logs_end_with_as_many_lines_as_are_asked_for() {
    let place = Place::new();
    let daemon = place.serve();
    let mut events = daemon.start_fake("s");
    daemon.run(&["prompt", "s", "say one\nsay two"]).exits(0);
    events.until(|e| matches!(&e.event, Event::Complete { .. }).then_some(()));
    let last = |number: &str| daemon.run(&["logs", "s", "-n", number]).exits(0).stdout;
    let whole = daemon.run(&["logs", "s"]).exits(0).stdout;
    assert!(whole.ends_with("one\ntwo\n"), "{whole}");
    assert_eq!((last("1").as_str(), last("2").as_str()), ("two\n", "one\ntwo\n"));
    assert_eq!((last("0").as_str(), last("10000").as_str()), ("", whole.as_str()));
    assert_eq!(daemon.run(&["logs", "s", "-n", "3", "--json"]).exits(0).envelopes().len(), 3);
    // And then what is to come.
    let mut follower = daemon.spawn(&["logs", "s", "-f", "-n", "1"]);
    assert_eq!(follower.line().as_deref(), Some("two"));
    daemon.run(&["prompt", "s", "say three"]).exits(0);
    assert_eq!(follower.line().as_deref(), Some("> say three"));
    assert_eq!(follower.line().as_deref(), Some("three"));
    daemon.run(&["kill", "s"]).exits(0);
    follower.end().exits(0);
}

#[test]
fn titles_are_listed_and_do_nothing_to_the_terminal() {
    let place = Place::new();
    let daemon = place.serve();
    daemon.run(&["start", "--session-id", "s", "--agent", "command", "--", "cat"]).exits(0);
    assert!(!on_screen(&place, &["sessions"], 80, true).1.contains("TITLE"), "nobody has one");
    daemon.run(&["rename", "s", "Fix \u{202e} the login"]).exits(0);
    let (_, shown) = on_screen(&place, &["sessions"], 80, true);
    fits(&shown, 80);
    assert!(shown.contains("TITLE") && shown.contains("Fix \\u{202e} the login"), "{shown}");
    let (_, json) = on_screen(&place, &["sessions", "--json"], 80, true);
    assert!(!json.contains('\u{202e}') && json.contains("Fix \\u202e the login"), "{json}");
    let title = &daemon.run(&["sessions", "--json"]).exits(0).json()[0]["title"];
    assert_eq!(title, "Fix \u{202e} the login");
    assert!(on_screen(&place, &["status", "s"], 80, true).1.contains("s - Fix \\u{202e} the login"));
    daemon.run(&["kill", "s"]).exits(0);
}
