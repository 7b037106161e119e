//! Sessions through the daemon's clients.

use std::collections::BTreeSet;

use ipc_protocol::{Event, ProcessOutcome, Receipt, StopReason};

use crate::documented::documented;
use crate::harness::{Place, gone, is_there, process};

#[test]
fn from_start_to_receipt() {
    let place = Place::new();
    let daemon = place.serve();
    let script = "(echo a; exec sleep 301) & setsid sh -c 'echo b; exec sleep 302' & exec cat";
    let mut events = daemon.start("s", &["sh", "-c", script]);
    events.until_printed(&["a", "b"]);

    let tree = daemon.run(&["ps", "s"]).exits(0).stdout;
    assert!(tree.starts_with("s  command  idle"), "{tree}");
    assert!(tree.contains("├─ "), "{tree}");
    assert!(tree.lines().any(|line| line.contains("sleep 302") && line.ends_with("[left session]")), "{tree}");
    let listed = daemon.run(&["ps", "s", "--json"]).exits(0).json();
    let listed: BTreeSet<u64> =
        listed.as_array().expect("an array").iter().filter_map(|p| p["id"]["pid"].as_u64()).collect();
    let pids = daemon.run(&["ps", "s", "--pids"]).exits(0).stdout;
    let pids: BTreeSet<u64> = pids.lines().map(|pid| pid.parse().expect("a pid")).collect();
    assert_eq!(pids, listed);
    assert_eq!(pids.len(), 3);

    daemon.run(&["prompt", "s", "hello"]).exits(0);
    let offset = events.until(|envelope| match &envelope.event {
        Event::Text { text } if text == "hello\n" => Some(envelope.offset),
        _ => None,
    });
    let history = daemon.run(&["events", "s", "--json"]).exits(0).envelopes();
    assert!(history.iter().enumerate().all(|(at, envelope)| envelope.offset == at as u64 + 1));
    let rest = daemon.run(&["events", "s", "--from", &(offset - 1).to_string(), "--json"]).exits(0).envelopes();
    assert_eq!(rest.first().map(|envelope| envelope.offset), Some(offset));
    assert!(daemon.run(&["events", "s"]).exits(0).stdout.contains(r#"stream:text           "hello\n""#));
    assert_eq!(daemon.run(&["events", "s", "--from", "999"]).exits(0).stdout, "");

    let processes: Vec<_> = pids.iter().map(|pid| process(u32::try_from(*pid).expect("a pid"))).collect();
    let receipt: Receipt =
        serde_json::from_value(daemon.run(&["kill", "s", "--json"]).exits(0).json()).expect("a receipt");
    assert!(receipt.is_empty());
    for process in processes {
        assert!(receipt.processes.iter().any(|entry| entry.id == process), "{process} in {receipt:?}");
        assert!(!is_there(process));
    }
    let last = events.end().exits(0).envelopes().pop().expect("events");
    assert!(matches!(last.event, Event::SessionEnded { .. }));

    // On an ended session: the stored receipt and an empty list.
    assert_eq!(daemon.run(&["kill", "s", "--json"]).exits(0).json(), serde_json::to_value(&receipt).expect("JSON"));
    assert_eq!(daemon.run(&["ps", "s", "--json"]).exits(0).stdout, "[]\n");
    assert_eq!(daemon.run(&["ps", "s", "--pids"]).exits(0).stdout, "");
    assert!(daemon.run(&["sessions"]).exits(0).stdout.contains("ended: killed"));
}

/// A kill with a long grace, of somebody who ignores it: its processes are there, and can be seen.
#[test]
fn the_processes_of_a_session_that_ends_are_listed() {
    let place = Place::new();
    let daemon = place.serve();
    let script = r#"trap "echo asked" TERM; echo ready; while :; do sleep 307 & wait $!; done"#;
    let mut events = daemon.start("s", &["sh", "-c", script]);
    events.until_printed(&["ready"]);
    let kill = daemon.spawn(&["kill", "s", "--grace", "50s"]);
    events.until_printed(&["asked"]);
    let listed = daemon.run(&["ps", "s"]).exits(0).stdout;
    assert!(listed.starts_with("s  command  idle (ending)") && listed.contains("sleep 307"), "{listed}");
    assert!(daemon.run(&["ps"]).exits(0).stdout.contains("sleep 307"));
    let listing = daemon.run(&["sessions", "--json"]).exits(0).json();
    assert_eq!((&listing[0]["state"], &listing[0]["ending"]), (&"idle".into(), &true.into()), "{listing}");
    daemon.run(&["kill", "s", "--signal", "KILL"]).exits(0);
    kill.end().exits(0);
    assert_eq!(daemon.run(&["ps", "s", "--json"]).exits(0).stdout, "[]\n");
}

#[test]
fn an_abort_with_nothing_to_end_does_not_say_that_no_process_is_left() {
    let place = Place::new();
    let daemon = place.serve();
    let mut events = daemon.start_fake("s");
    let turn = daemon.spawn(&["prompt", "s", "say up\nwait"]);
    events.until(|e| matches!(&e.event, Event::Text { text } if text == "up\n").then_some(()));
    let receipt = daemon.run(&["abort", "s", "--kill-turn"]).exits(0).stdout;
    turn.end().exits(130);
    assert!(receipt.starts_with("nothing had to be ended"), "{receipt}");
    assert!(receipt.contains("which goes on") && !receipt.contains("process of the session left"), "{receipt}");
    assert!(!daemon.run(&["ps", "s", "--pids"]).exits(0).stdout.is_empty(), "its agent lives");
}

#[test]
fn one_process_can_be_killed() {
    let place = Place::new();
    let daemon = place.serve();
    let mut events = daemon.start("s", &["sh", "-c", "sh -c 'echo $$; exec sleep 301' & exec cat"]);
    let pid = events.until(|envelope| match &envelope.event {
        Event::Text { text } => Some(text.trim().to_owned()),
        _ => None,
    });
    let sleeper = process(pid.parse().expect("a pid"));
    let text = daemon.run(&["kill", "s", "--pid", &pid, "--signal", "KILL"]).exits(0).stdout;
    assert!(text.contains("SIGKILL") && text.contains("0 survivors"), "{text}");
    gone(sleeper);
    daemon.run(&["kill", "s", "--pid", &pid]).exits(3);
    assert_eq!(daemon.run(&["sessions", "--json"]).exits(0).json()[0]["state"], "idle");
    daemon.run(&["kill", "s"]).exits(0);
    events.end();
}

#[test]
fn a_process_can_be_killed_with_all_below_it() {
    let place = Place::new();
    let daemon = place.serve();
    let script = "sh -c 'echo $$; sleep 301 & exec sleep 302' & exec cat";
    let mut events = daemon.start("s", &["sh", "-c", script]);
    let top = events.until(|envelope| match &envelope.event {
        Event::Text { text } => Some(text.trim().to_owned()),
        _ => None,
    });
    // Both sleeps, before they are to go.
    let mut below = BTreeSet::new();
    let begin = std::time::Instant::now();
    while below.len() < 2 {
        assert!(begin.elapsed() < crate::harness::DEADLINE, "{below:?}");
        let listed = daemon.run(&["ps", "s", "--json"]).exits(0).json();
        let sleeps = listed.as_array().expect("an array").iter().filter(|p| p["command"] == "sleep");
        below = sleeps.filter_map(|p| p["id"]["pid"].as_u64()).collect();
    }
    let processes: Vec<_> = below.iter().map(|pid| process(u32::try_from(*pid).expect("a pid"))).collect();
    let receipt = daemon.run(&["kill", "s", "--pid", &top, "--tree", "--json"]).exits(0).json();
    for field in ["layers", "omitted", "proof", "unattributed", "cgroupEmpty", "unmarked"] {
        assert!(receipt.get(field).is_some(), "{field} in {receipt}");
    }
    let receipt: Receipt = serde_json::from_value(receipt).expect("a receipt");
    for process in processes {
        assert!(receipt.processes.iter().any(|entry| entry.id == process), "{process} in {receipt:?}");
        gone(process);
    }
    assert_eq!(daemon.run(&["ps", "s", "--pids"]).exits(0).stdout.lines().count(), 1, "the agent stays");
    daemon.run(&["kill", "s"]).exits(0);
    events.end();
}

#[test]
fn an_abort_can_end_what_the_turn_has_started() {
    let place = Place::new();
    let daemon = place.serve();
    let events = daemon.start_fake("s");
    let started = |text: &str, word: &str| {
        let pid = text.strip_prefix(word).expect("its pid");
        process(pid.trim().parse().expect("a pid"))
    };
    let before = daemon.run(&["prompt", "s", "spawn exec sleep 301"]).exits(0).stdout;
    let before = started(&before, "spawn ");
    let mut turn = daemon.spawn(&["prompt", "s", "setsid exec sleep 302\nwait"]);
    let during = started(&turn.line().expect("its pid"), "setsid ");
    let receipt = daemon.run(&["abort", "s", "--kill-turn", "--json"]).exits(0).json();
    let receipt: Receipt = serde_json::from_value(receipt).expect("a receipt");
    turn.end().exits(130);
    assert!(receipt.is_empty(), "{receipt:?}");
    assert!(receipt.processes.iter().any(|entry| entry.id == during), "{receipt:?}");
    assert_eq!(receipt.cause, ipc_protocol::KillCause::AbortTurn);
    assert!(receipt.processes.iter().all(|entry| entry.id != before), "{receipt:?}");
    assert!(is_there(before));
    gone(during);
    daemon.run(&["kill", "s"]).exits(0);
    events.end();
}

#[test]
fn ps_marks_what_left_the_agent() {
    let place = Place::new();
    let daemon = place.serve();
    // A job of its own group, a session of its own, and a daemon: its parent is gone.
    let script = "set -m; sleep 301 & set +m; setsid sh -c 'echo b; exec sleep 302' & \
                  (setsid sh -c 'echo c; exec sleep 303' &); echo a; exec cat";
    let mut events = daemon.start("s", &["bash", "-c", script]);
    events.until_printed(&["a", "b", "c"]);
    let marks = || {
        let listed = daemon.run(&["ps", "s", "--json"]).exits(0).json();
        let listed = listed.as_array().expect("an array").clone();
        move |arg: &str| {
            let found = listed.iter().find(|p| p["args"].as_array().is_some_and(|args| args.iter().any(|a| a == arg)));
            found.map(|process| process["marks"].clone()).unwrap_or_default()
        }
    };
    // They print before the exec that gives them their last name.
    let begin = std::time::Instant::now();
    let mut of = marks();
    while ["301", "302", "303"].iter().any(|arg| of(arg).is_null()) {
        assert!(begin.elapsed() < crate::harness::DEADLINE, "{}", daemon.run(&["ps", "s"]).stdout);
        of = marks();
    }
    assert_eq!(of("301"), serde_json::json!(["leftGroup"]));
    assert_eq!(of("302"), serde_json::json!(["leftSession"]));
    assert_eq!(of("303"), serde_json::json!(["leftSession", "reParented"]));
    let tree = daemon.run(&["ps", "s"]).exits(0).stdout;
    for (command, mark) in
        [("sleep 301", "[left group]"), ("sleep 302", "[left session]"), ("sleep 303", "[left session, re-parented]")]
    {
        assert!(tree.lines().any(|line| line.contains(command) && line.ends_with(mark)), "{command} {mark}: {tree}");
    }
    daemon.run(&["kill", "s"]).exits(0);
    events.end();
}

#[test]
fn a_session_that_keeps_what_its_agent_left_says_that_it_is_gone() {
    let place = Place::new();
    let daemon = place.serve();
    let argv = ["start", "--id", "s", "--agent", "command", "--on-agent-exit", "keep", "--", "sh", "-c", "sleep 300 &"];
    daemon.run(&argv).exits(0);
    let mut events = daemon.spawn(&["events", "s", "--follow", "--json"]);
    events.until(|e| matches!(&e.event, Event::SessionStatus { status, .. } if status == "agentExited").then_some(()));
    let listing = daemon.run(&["sessions"]).exits(0).stdout;
    assert!(listing.contains("idle (agent exited)"), "{listing}");
    assert_eq!(daemon.run(&["sessions", "--json"]).exits(0).json()[0]["state"], "idle");
    // It may have its shell's name yet.
    let tree = crate::harness::until("what its agent left", || {
        let tree = daemon.run(&["ps", "s"]).exits(0).stdout;
        tree.contains("sleep 300  [re-parented]").then_some(tree)
    });
    assert!(tree.contains("idle (agent exited)"), "{tree}");
    daemon.run(&["kill", "s"]).exits(0);
    events.end();
}

#[test]
fn a_limit_that_warns_is_an_event_and_the_session_goes_on() {
    let place = Place::new();
    let daemon = place.serve();
    let start = ["start", "--id", "s", "--agent", "acp", "--limit", "pids=3", "--on-limit", "warn", "--"];
    daemon.run(&[&start[..], &[crate::harness::PROGRAM, "fake-agent"]].concat()).exits(0);
    let mut events = daemon.spawn(&["events", "s", "--follow", "--json"]);
    daemon.run(&["prompt", "s", "spawn sleep 300\nspawn sleep 300\nspawn sleep 300\nspawn sleep 300"]).exits(0);
    events.until(|e| matches!(&e.event, Event::LimitExceeded(_)).then_some(()));
    let history = daemon.run(&["events", "s"]).exits(0).stdout;
    let line = |kind: &str| history.lines().find(|line| line.contains(kind)).unwrap_or_else(|| panic!("{history}"));
    assert!(line("limit:exceeded").contains(" of 3") && line("limit:exceeded").ends_with("warn"), "{history}");
    assert!(line("session:started").contains("pids 3 ("), "{history}");
    assert!(daemon.run(&["sessions"]).exits(0).stdout.contains("idle"));
    daemon.run(&["kill", "s"]).exits(0);
    events.end();
}

#[test]
fn a_failed_resume_is_listed_in_little_room() {
    let place = crate::lasting::place();
    let daemon = place.keeping(&[]);
    daemon.run(&["start", "--id", "s", "--agent", "kept"]).exits(0);
    daemon.run(&["suspend", "s"]).exits(0);
    let program = format!("/no/such/{}", "x".repeat(300));
    let row = format!("id = 'kept'\nprotocol = 'acp'\ncmd = ['{program}']\n");
    std::fs::write(place.config().join("agents.toml"), row).expect("written");
    daemon.run(&["resume", "s"]).exits(3);
    let listing = daemon.run(&["sessions"]).exits(0).stdout;
    let line = listing.lines().find(|line| line.starts_with("s ")).expect("it is listed");
    assert!(line.contains("suspended: failed") && line.contains('…'), "{line}");
    let full = daemon.run(&["sessions", "--json"]).exits(0).stdout;
    assert!(full.contains(&program), "{full}");
}

#[test]
fn the_grace_of_a_kill_is_kept() {
    let place = Place::new();
    let daemon = place.serve();
    // It needs a second to leave, and the agent itself leaves at once.
    let slow = "trap 'i=0; while [ $i -lt 10 ]; do sleep 0.1; i=$((i+1)); done; exit 7' TERM; echo up; while :; do sleep 0.05; done";
    let mut events = daemon.start("s", &["sh", "-c", "setsid sh -c \"$0\" & exec cat", slow]);
    events.until_printed(&["up"]);
    let receipt: Receipt =
        serde_json::from_value(daemon.run(&["kill", "s", "--grace", "30s", "--json"]).exits(0).json())
            .expect("a receipt");
    let exits = receipt.processes.iter().map(|entry| entry.outcome);
    assert!(exits.into_iter().any(|o| o == ProcessOutcome::Ended(ipc_protocol::ExitStatus::Code(7))), "{receipt:?}");
    events.end();
}

#[test]
fn turns_are_waited_for_refused_queued_and_aborted() {
    let place = Place::new();
    let daemon = place.serve();
    let mut events = daemon.start_fake("s");
    let ran = daemon.run(&["prompt", "s", "think hm\nsay hello\nrun echo out\nsay bye"]).exits(0);
    assert_eq!(ran.stdout, "hello\nbye\n");
    assert!(ran.stderr.contains("echo out: out"), "{}", ran.stderr);
    let turn = daemon.run(&["prompt", "s", "say hi", "--json"]).exits(0).envelopes();
    assert!(turn.iter().all(|envelope| envelope.turn == Some(2)), "{turn:?}");
    assert!(turn.iter().any(|e| matches!(&e.event, Event::Complete { stop_reason: StopReason::EndTurn, .. })));

    let waiting = daemon.spawn(&["prompt", "s", "say waiting\nwait"]);
    events.until(|e| matches!(&e.event, Event::Text { text } if text == "waiting\n").then_some(()));
    assert_eq!(daemon.run(&["prompt", "s", "say no", "--json"]).exits(8).problem()["type"], "busy");
    assert_eq!(daemon.run(&["prompt", "s", "say no", "--steer", "--json"]).exits(6).problem()["type"], "unsupported");
    let queued = daemon.run(&["prompt", "s", "say first in line", "--queue", "--no-wait", "--json"]).exits(0).json();
    assert_eq!(queued["turn"], 4, "it will be the fourth");
    let listed = daemon.run(&["queue", "s", "--json"]).exits(0).json();
    documented("queue", listed.clone());
    let number = listed[0]["offset"].as_str().and_then(|offset| offset.parse::<u64>().ok()).expect("an offset");
    let table = daemon.run(&["queue", "s"]).exits(0).stdout;
    assert!(table.starts_with("NUMBER") && table.contains(&format!("\n{number:>6}  ")), "{table}");
    assert_eq!(daemon.run(&["queue", "s", "-q"]).exits(0).stdout, format!("{number}\n"));
    let form = ["queue", "s", "--format", "{offset} {text}"];
    assert_eq!(daemon.run(&form).exits(0).stdout, format!("{number} say first in line\n"));
    let followed = daemon.spawn(&["prompt", "s", "say queued", "--queue"]);
    daemon.run(&["abort", "s"]).exits(0);
    assert_eq!(waiting.end().exits(130).stdout, "waiting\n");
    // Only its own turn, not the one that was queued before it.
    let ran = followed.end().exits(0);
    assert!(ran.stdout == "queued\n", "{ran:?}");
    daemon.run(&["kill", "s"]).exits(0);
    events.end();
}

#[test]
fn a_session_that_ends_under_a_prompt_fails_it() {
    let place = Place::new();
    let daemon = place.serve();
    let events = daemon.start_fake("s");
    let ran = daemon.run(&["prompt", "s", "say before\ncrash", "--json"]).exits(1);
    assert_eq!(ran.problem()["type"], "agent-died");
    assert!(ran.stdout.contains("before"), "{}", ran.stdout);
    let last = events.end().exits(0).envelopes().pop().expect("events");
    assert!(matches!(last.event, Event::SessionEnded { .. }));
}

#[test]
fn permissions_are_asked_and_given() {
    let place = Place::new();
    let daemon = place.serve();
    let mut events = daemon.start_fake("s");
    for (answer, said) in [("allow", "permission: allow-once\n"), ("deny", "permission: reject-once\n")] {
        let turn = daemon.spawn(&["prompt", "s", "ask May I?"]);
        let request = events.until(|envelope| match &envelope.event {
            Event::PermissionRequested(request) => Some(request.id.clone()),
            _ => None,
        });
        daemon.run(&["permit", "s", &request, "no such option"]).exits(3);
        daemon.run(&["permit", "s", &request, answer]).exits(0);
        assert_eq!(turn.end().exits(0).stdout, said);
        daemon.run(&["permit", "s", &request, answer]).exits(3);
    }
    daemon.run(&["kill", "s"]).exits(0);
    events.end();
}

#[test]
fn labels_and_limits_of_a_session() {
    let place = Place::new();
    let daemon = place.serve();
    let id = daemon
        .run(&[
            "start",
            "--agent",
            "acp",
            "--max-prompts",
            "1",
            "--user",
            "u",
            "--workspace-label",
            "w",
            "--type",
            "execution",
            "--permission",
            "deny",
            "--cwd",
            "/",
            "--",
            crate::harness::PROGRAM,
            "fake-agent",
        ])
        .exits(0)
        .stdout;
    let id = id.trim();
    assert_eq!(id.len(), 36, "a UUID");
    let session = &daemon.run(&["sessions", "--json"]).exits(0).json()[0];
    assert_eq!(
        (&session["userId"], &session["workspaceId"], &session["agentType"], &session["cwd"]),
        (&"u".into(), &"w".into(), &"execution".into(), &"/".into())
    );
    assert_eq!(daemon.run(&["prompt", id, "ask May I?"]).exits(0).stdout, "permission: reject-once\n");
    assert_eq!(daemon.run(&["prompt", id, "say more", "--json"]).exits(8).problem()["type"], "max-prompts");
    daemon.run(&["kill", id]).exits(0);
}

#[test]
fn a_flood_is_printed_whole() {
    let place = Place::new();
    let daemon = place.serve();
    let mut events = daemon.start_fake("s");
    let ran = daemon.run(&["prompt", "s", "flood 10000 64"]).exits(0);
    assert!(ran.stdout.len() >= 10_000 * 64, "{} bytes", ran.stdout.len());
    let mut next = 1;
    events.until(|envelope| {
        assert_eq!(envelope.offset, next);
        next += 1;
        matches!(envelope.event, Event::Complete { .. }).then_some(())
    });
    daemon.run(&["kill", "s"]).exits(0);
    events.end();
}
