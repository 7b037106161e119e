//! What a command leaves behind.

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::{Place, Ran, is_there, not_run};

fn leaktest(place: &Place, flags: &[&str], script: &str) -> Ran {
    place.run(&[&["leaktest"], flags, &["--", "sh", "-c", script]].concat())
}

fn with_args<'a>(report: &'a Value, arg: &str) -> &'a Value {
    let processes = report["processes"].as_array().expect("an array");
    let found = processes.iter().find(|p| p["args"].as_array().is_some_and(|args| args.iter().any(|a| a == arg)));
    found.unwrap_or_else(|| panic!("{arg} in {report}"))
}

#[test]
fn a_command_that_cleans_up_is_clean() {
    let place = Place::new();
    let ran = leaktest(&place, &[], "echo said; echo told >&2; sleep 0.2; exit 7").exits(0);
    for part in ["it ended by itself after", "exit code 7", "CLEAN", "held by baseline"] {
        assert!(ran.stdout.contains(part), "{part} in {}", ran.stdout);
    }
    assert!(!ran.stdout.contains("LEAKED"), "{}", ran.stdout);
    let mut lines: Vec<&str> = ran.stderr.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["said", "told"]);
    let report = leaktest(&place, &["--json"], "sleep 0.2").exits(0).json();
    assert_eq!((&report["verdict"], &report["exited"]), (&"clean".into(), &true.into()));
    assert_eq!((&report["exit"], &report["left"]), (&serde_json::json!({"code": 0}), &serde_json::json!([])));
    assert_eq!(report["receipt"]["survivors"], serde_json::json!([]));
    assert!(report["measures"]["layers"].is_array() && report["killUs"].is_u64(), "{report}");
}

#[test]
fn a_leak_is_named_with_how_it_got_away() {
    let place = Place::new();
    // They tell when they are there; the command waits for it.
    let script = "mkfifo f g; (setsid sh -c 'echo >f; exec sleep 301' &); read _ <f; \
                  bash -c 'set -m; sh -c \"echo >g; exec sleep 302\" & exit' & read _ <g; wait; rm f g; exit 3";
    let script = format!("cd {}; {script}", place.directory.display());
    let report = leaktest(&place, &["--json"], &script).exits(1).json();
    assert_eq!((&report["verdict"], &report["exit"]), (&"leaks".into(), &serde_json::json!({"code": 3})));
    assert_eq!(report["left"].as_array().map(Vec::len), Some(2), "{report}");
    let (daemon, job) = (with_args(&report, "301"), with_args(&report, "302"));
    assert_eq!((&daemon["left"], &job["left"]), (&true.into(), &true.into()));
    assert!(daemon["marks"].as_array().is_some_and(|marks| marks.contains(&"leftSession".into())), "{daemon}");
    assert!(job["marks"].as_array().is_some_and(|marks| marks.contains(&"leftGroup".into())), "{job}");
    assert_eq!((&report["leftSession"], &report["leftGroup"]), (&1.into(), &1.into()));
    assert!(report["spawned"].as_u64() >= Some(2), "{report}");
    for left in report["left"].as_array().expect("an array") {
        assert!(!is_there(serde_json::from_value(left.clone()).expect("a process")), "it was killed");
    }
    let text = leaktest(&place, &[], &script).exits(1).stdout;
    for part in ["LEAKS: 2 processes", "left session", "left group", "LEAKED]", "0 survivors", "proof:"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

/// The shell that started it is gone, or it is the command's own child and the command is gone.
#[test]
fn what_is_left_behind_has_lost_its_parent() {
    let place = Place::new();
    for (script, lost) in [
        ("(sleep 303 &)", 1),
        ("sleep 303 &", 1),
        ("(sleep 303 &) ; sleep 0.2", 1),
        ("sh -c 'sleep 303 & wait' & exit", 1),
        ("sleep 0.1", 0),
    ] {
        let report = leaktest(&place, &["--json"], script).json();
        assert_eq!(report["reParented"], lost, "{script}: {report}");
    }
    let text = leaktest(&place, &[], "(sleep 303 &)").exits(1).stdout;
    assert!(text.contains("1 lost its parent"), "{text}");
}

#[test]
fn the_init_of_a_namespace_is_no_leak() {
    if let Err(why) = registry::strict_is_available() {
        return not_run(why);
    }
    let place = Place::new();
    let strict = ["--json", "--containment", "strict"];
    let report = leaktest(&place, &strict, "sleep 0.2").exits(0).json();
    assert_eq!((&report["verdict"], &report["left"]), (&"clean".into(), &serde_json::json!([])));
    assert!(report["receipt"]["layers"].as_array().is_some_and(|layers| layers.contains(&"strict".into())), "{report}");
    let report = leaktest(&place, &strict, "setsid sleep 301 & sleep 0.2").exits(1).json();
    assert_eq!(report["left"].as_array().map(Vec::len), Some(1), "{report}");
    assert_eq!(with_args(&report, "301")["marks"], serde_json::json!(["leftSession"]));
}

#[test]
fn what_only_needs_a_moment_is_no_leak() {
    let place = Place::new();
    let report = leaktest(&place, &["--json", "--settle", "60s"], "sleep 0.3 & exit 0").exits(0).json();
    assert_eq!((&report["verdict"], &report["left"]), (&"clean".into(), &serde_json::json!([])));
}

#[test]
fn a_command_that_does_not_end_is_killed() {
    let place = Place::new();
    let ran = leaktest(&place, &["--timeout", "300ms", "--grace", "0s"], "sleep 300 & wait").exits(1);
    assert!(ran.stdout.contains("it still ran after") && ran.stdout.contains("TIMED OUT"), "{}", ran.stdout);
    assert!(ran.stdout.contains("SIGKILL"), "{}", ran.stdout);
    let report = leaktest(&place, &["--timeout", "300ms", "--json"], "sleep 300 & wait").exits(1).json();
    assert_eq!((&report["verdict"], &report["exited"]), (&"timedOut".into(), &false.into()));
}

#[test]
fn a_command_that_is_not_there_says_so() {
    let place = Place::new();
    assert_eq!(place.run(&["leaktest", "--json", "--", "/no/such"]).exits(3).problem()["type"], "program-not-found");
}

#[test]
fn an_interrupt_leaves_nothing() {
    let place = Place::new();
    let mut running = place.spawn(&["leaktest", "--timeout", "60s", "--", "sh", "-c", "echo $$; exec sleep 300"]);
    let mut stderr = running.stderr();
    let pid = stderr.line().expect("its pid").parse().expect("a pid");
    let process = crate::harness::process(pid);
    running.signal(Signal::SIGINT);
    running.end().exits(130);
    assert!(!is_there(process));
}
