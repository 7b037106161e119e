//! Exit codes and errors.

use crate::harness::Place;

#[test]
fn without_a_daemon_clients_exit_4_and_name_serve() {
    let place = Place::new();
    for args in [
        &["sessions"][..],
        &["ps"],
        &["ps", "s"],
        &["start", "--agent", "command", "--", "cat"],
        &["prompt", "s", "hi"],
        &["events", "s", "--follow"],
        &["abort", "s"],
        &["kill", "s"],
        &["permit", "s", "r", "allow"],
    ] {
        let ran = place.run(args).exits(4);
        assert!(ran.stderr.contains("agent-proxy serve") && ran.stdout.is_empty(), "{args:?}: {ran:?}");
        let problem = place.run(&[&["--json"], args].concat()).exits(4).problem();
        assert_eq!((&problem["type"], &problem["status"]), (&"no-daemon".into(), &503.into()), "{args:?}");
    }
}

#[test]
fn a_command_line_that_makes_no_sense_exits_2() {
    let place = Place::new();
    for args in [
        &[][..],
        &["frobnicate"],
        &["kill"],
        &["kill", "s", "--signal", "INT"],
        &["kill", "s", "--grace", "soon"],
        &["ps", "no/slash"],
        &["start", "--id", "with space", "--agent", "command"],
        &["start", "--agent", "command", "--env", "=x", "--", "cat"],
        &["start", "--agent", "command", "--env", "AGENT_PROXY_TEST_NOT_SET", "--", "cat"],
        &["prompt", "s", "hi", "--queue", "--steer"],
    ] {
        place.run(args).exits(2);
        if !args.is_empty() {
            assert_eq!(place.run(&[&["--json"], args].concat()).exits(2).problem()["type"], "usage", "{args:?}");
        }
    }
    let long = format!("/tmp/{}", "x".repeat(200));
    place.run(&["sessions", "--socket", &long]).exits(2);
}

#[test]
fn help_and_version_exit_0() {
    let place = Place::new();
    assert!(place.run(&["--help"]).exits(0).stdout.contains("Exit codes:"));
    assert!(place.run(&["--version"]).exits(0).stdout.starts_with("agent-proxy "));
    assert!(place.run(&["start", "--help"]).exits(0).stdout.contains("Examples:"));
    assert!(place.run(&["completions", "bash"]).exits(0).stdout.contains("complete -F"));
}

#[test]
fn what_the_daemon_refuses_has_the_code_of_its_kind() {
    let place = Place::new();
    let daemon = place.serve();
    let follower = daemon.start("s", &["cat"]);
    for (args, code, kind) in [
        (&["start", "--id", "s", "--agent", "command", "--", "cat"][..], 8, "duplicate-session"),
        (&["start", "--agent", "nobody"], 3, "unknown-agent"),
        (&["start", "--agent", "command", "--", "/no/such/program"], 1, "program-not-found"),
        (&["start", "--agent", "command", "--cwd", "/no/such/place", "--", "cat"], 1, "cwd-missing"),
        (&["start", "--agent", "command"], 2, "invalid-config"),
        (&["start", "--agent", "command", "--model", "m", "--", "cat"], 6, "unsupported"),
        (&["ps", "nope"], 3, "unknown-session"),
        (&["prompt", "nope", "hi"], 3, "unknown-session"),
        (&["events", "nope"], 3, "unknown-session"),
        (&["abort", "nope"], 3, "unknown-session"),
        (&["kill", "nope"], 3, "unknown-session"),
        (&["kill", "s", "--pid", "1"], 3, "unknown-process"),
        (&["permit", "s", "r", "allow"], 3, "unknown-permission"),
    ] {
        let ran = daemon.run(&[&["--json"], args].concat()).exits(code);
        let problem = ran.problem();
        assert_eq!(problem["type"], kind, "{args:?}");
        assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{problem}");
        assert!(daemon.run(args).exits(code).stderr.starts_with("error: "), "{args:?}");
    }
    daemon.run(&["kill", "s"]).exits(0);
    daemon.run(&["prompt", "s", "hi"]).exits(8);
    follower.end().exits(0);
}

#[test]
fn doctor_finds_the_baseline_without_a_daemon() {
    let place = Place::new();
    let checks = place.run(&["doctor", "--json"]).exits(0).json();
    let checks = checks.as_array().expect("an array");
    let verdict = |name: &str| {
        let check = checks.iter().find(|check| check["name"] == name);
        check.unwrap_or_else(|| panic!("{name} is there"))["verdict"].clone()
    };
    for name in ["kernel", "pidfd", "subreaper", "test session"] {
        assert_eq!(verdict(name), "ok", "{name}");
    }
    let text = place.run(&["doctor"]).exits(0).stdout;
    assert!(text.contains("layer A (baseline) is usable"), "{text}");
}
