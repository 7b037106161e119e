//! Profiles and model configurations.

use std::{fs, io::Write, os::unix::fs::PermissionsExt, process::Stdio};

use serde_json::json;

use crate::harness::{PROGRAM, Place, Ran, Running};

const CREATE: [&str; 12] = [
    "profiles",
    "create",
    "quick",
    "--agent",
    "acp",
    "--permission",
    "allow",
    "--deny",
    "command=rm *",
    "--limit",
    "pids=50",
    "--timeout=turn=10m",
];

fn run_with(place: &Place, flags: &[&str], prompt: &str) -> Ran {
    place.run(&[&["run"], flags, &[prompt, "--", PROGRAM, "fake-agent"]].concat())
}

#[test]
fn they_are_made_shown_changed_and_deleted() {
    let place = Place::new();
    place.run(&CREATE).exits(0);
    let shown = place.run(&["profiles", "show", "quick"]).exits(0).stdout;
    for part in ["agent = \"acp\"", "mode = \"allow\"", "command = \"rm *\"", "processes = 50", "turn_ms = 600000"] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert!(place.run(&["profiles"]).exits(0).stdout.lines().any(|line| line.starts_with("quick")));
    let listed = place.run(&["profiles", "list", "--json"]).exits(0).json();
    assert!(listed.as_array().expect("an array").iter().any(|profile| profile["name"] == "quick"));

    let change = ["--json", "profiles", "change", "quick", "--unset", "rules", "--unset", "timeouts", "--mode", "plan"];
    let changed = place.run(&change).exits(0).json();
    let expected = json!({
        "name": "quick", "computed": false, "agent": "acp", "mode": "plan",
        "permissions": { "mode": "allow" }, "limits": { "processes": 50 },
    });
    assert_eq!(changed, expected);
    assert_eq!(place.run(&["profiles", "show", "quick", "--json"]).exits(0).json(), expected);

    assert_eq!(place.run(&[&["--json"], &CREATE[..]].concat()).exits(8).problem()["type"], "already-exists");
    place.run(&["profiles", "delete", "quick"]).exits(0);
    for command in ["show", "change", "delete"] {
        assert_eq!(place.run(&["--json", "profiles", command, "quick"]).exits(3).problem()["type"], "unknown-profile");
    }
}

#[test]
fn what_a_profile_names_has_to_be_there() {
    let place = Place::new();
    for (flags, code, kind) in [
        (&["--agent", "nobody"][..], 3, "unknown-agent"),
        (&["--agent", "acp", "--model-config", "none"], 3, "unknown-model"),
        (&["--agent", "acp", "--deny", "path=[a"], 2, "usage"),
        (&["--agent", "acp", "--limit", "pids=1", "--limit", "pids=2"], 2, "usage"),
    ] {
        let args = [&["--json", "profiles", "create", "x"], flags].concat();
        assert_eq!(place.run(&args).exits(code).problem()["type"], kind, "{flags:?}");
    }
    assert_eq!(
        place.run(&["--json", "profiles", "create", "a b", "--agent", "acp"]).exits(2).problem()["type"],
        "invalid-config"
    );
    assert!(!place.config().join("profiles.toml").exists());
}

#[test]
fn each_agent_that_is_found_has_one() {
    let place = Place::new();
    let codex = place.directory.join("bin/codex");
    fs::create_dir_all(codex.parent().expect("in a directory")).expect("created");
    fs::write(&codex, "").expect("written");
    fs::set_permissions(&codex, fs::Permissions::from_mode(0o755)).expect("set");
    let run = |args: &[&str]| {
        let mut command = place.command(args);
        command.env("PATH", place.directory.join("bin"));
        Running::new(command).end()
    };
    let listed = run(&["profiles", "--json"]).exits(0).json();
    assert_eq!(
        listed,
        json!([{ "name": "codex", "computed": true, "agent": "codex", "description": "Codex as it is" }])
    );
    assert!(run(&["profiles", "delete", "codex"]).exits(3).stderr.contains("is in no file"));
    run(&["profiles", "create", "codex", "--agent", "codex", "--mode", "plan"]).exits(0);
    let shown = run(&["profiles", "show", "codex", "--json"]).exits(0).json();
    assert_eq!((&shown["computed"], &shown["mode"]), (&json!(false), &json!("plan")));
}

#[test]
fn a_session_is_started_by_one_and_what_it_says_itself_wins() {
    let place = Place::new();
    place.run(&CREATE).exits(0);
    assert_eq!(run_with(&place, &["--profile", "quick"], "ask May I?").exits(0).stdout, "permission: allow-once\n");
    let denied = ["--profile", "quick", "--permission", "deny"];
    assert_eq!(run_with(&place, &denied, "ask May I?").exits(0).stdout, "permission: reject-once\n");
    // `ask` is the default, and means it where it is said: nobody is there, so nobody allows it.
    let ask = ["--profile", "quick", "--permission", "ask"];
    let ran = run_with(&place, &ask, "ask May I?").exits(0);
    assert!(ran.stdout == "permission: reject-once\n" && ran.stderr.contains("nobody can be asked"), "{ran:?}");

    let problem = run_with(&place, &["--json", "--profile", "quick", "--agent", "command"], "x").exits(2).problem();
    assert!(problem["detail"].as_str().is_some_and(|text| text.contains("\"quick\"")), "{problem}");
    let problem = run_with(&place, &["--json", "--profile", "quik"], "x").exits(3).problem();
    assert_eq!(problem["type"], "unknown-profile");
}

#[test]
fn the_daemon_has_them_too() {
    let place = Place::new();
    place.run(&CREATE).exits(0);
    let daemon = place.serve();
    daemon.run(&["start", "--id", "s", "--profile", "quick", "--", PROGRAM, "fake-agent"]).exits(0);
    assert_eq!(daemon.run(&["prompt", "s", "ask May I?"]).exits(0).stdout, "permission: allow-once\n");
    daemon.run(&["kill", "s"]).exits(0);
    // One code and one type, whoever finds out: `run` does it itself.
    for (flags, kind) in [(["--profile", "none"], "unknown-profile"), (["--model-config", "none"], "unknown-model")] {
        let args = [&["--json", "start", "--agent", "acp"][..], &flags, &["--", PROGRAM, "fake-agent"]].concat();
        assert_eq!(daemon.run(&args).exits(3).problem()["type"], kind);
        let problem = run_with(&place, &[&["--json", "--agent", "acp"][..], &flags].concat(), "x").exits(3).problem();
        assert_eq!(problem["type"], kind);
    }
    let problem = daemon.run(&["--json", "start", "--profile", "none", "--", PROGRAM, "fake-agent"]).exits(3).problem();
    assert!(problem["detail"].as_str().is_some_and(|text| text.contains("no profile is called \"none\"")), "{problem}");
}

#[test]
fn the_daemon_takes_what_is_changed_while_it_runs_and_says_what_is_wrong_with_it() {
    let place = Place::new();
    let daemon = place.serve();
    let start = |id: &str, rest: &[&str]| {
        let args = [&["--json", "start", "--id", id][..], rest, &["--", PROGRAM, "fake-agent"]].concat();
        daemon.run(&args)
    };
    assert_eq!(start("a", &["--profile", "quick"]).exits(3).problem()["type"], "unknown-profile");
    place.run(&CREATE).exits(0);
    start("b", &["--profile", "quick"]).exits(0);
    place.run(&["profiles", "change", "quick", "--permission", "deny"]).exits(0);
    start("c", &["--profile", "quick"]).exits(0);
    // Sessions that have started stay as they are.
    assert_eq!(daemon.run(&["prompt", "b", "ask May I?"]).exits(0).stdout, "permission: allow-once\n");
    assert_eq!(daemon.run(&["prompt", "c", "ask May I?"]).exits(0).stdout, "permission: reject-once\n");

    let row = json!([{ "id": "mine", "protocol": "acp", "cmd": [PROGRAM, "fake-agent"] }]).to_string();
    let rows = place.config().join("agents.json");
    fs::write(&rows, &row[..row.len() - 1]).expect("written");
    // It does not go on with the old one in silence.
    for id in ["d", "e"] {
        let problem = start(id, &["--agent", "acp"]).exits(2).problem();
        let says = problem["detail"].as_str().is_some_and(|text| text.contains("agents.json"));
        assert!(says && problem["type"] == "invalid-config", "{problem}");
    }
    assert_eq!(daemon.run(&["prompt", "b", "say still here"]).exits(0).stdout, "still here\n");
    fs::write(&rows, &row).expect("written");
    daemon.run(&["start", "--id", "f", "--agent", "mine"]).exits(0);
    place.run(&["profiles", "delete", "quick"]).exits(0);
    assert_eq!(start("g", &["--profile", "quick"]).exits(3).problem()["type"], "unknown-profile");
}

fn piped(place: &Place, args: &[&str], input: &str) -> Ran {
    let mut command = place.command(args);
    command.stdin(Stdio::piped());
    let mut running = Running::new(command);
    running.stdin().write_all(input.as_bytes()).expect("it reads");
    running.end()
}

#[test]
fn model_configurations_keep_their_keys_to_themselves() {
    let place = Place::new();
    piped(&place, &["models", "create", "a", "--provider", "openai", "--key-stdin"], "sk-hunter2\n").exits(0);
    let stored = place.config().join("models.toml");
    assert!(fs::read_to_string(&stored).expect("there").contains("sk-hunter2"));
    assert_eq!(fs::metadata(&stored).expect("there").permissions().mode() & 0o777, 0o600);
    let create =
        ["models", "create", "b", "--provider", "ollama", "--base-url", "http://127.0.0.1:1/v1", "--key-env", "B_KEY"];
    place.run(&create).exits(0);

    let shown = place.run(&["--json", "models", "show", "b"]).exits(0).json();
    let expected = json!({
        "name": "b", "provider": "ollama", "api": "openai-chat", "baseUrl": "http://127.0.0.1:1/v1", "model": null, "key": "$B_KEY",
    });
    assert_eq!(shown, expected);
    let listed = place.run(&["models", "--json"]).exits(0);
    assert_eq!(listed.json().as_array().expect("an array").len(), 2);
    for args in [&["models"][..], &["models", "--json"], &["models", "show", "a"], &["models", "show", "a", "--json"]] {
        let ran = place.run(args).exits(0);
        assert!(ran.stdout.contains("stored") && !format!("{ran:?}").contains("hunter2"), "{ran:?}");
    }
    assert_eq!(place.run(&[&["--json"], &create[..]].concat()).exits(8).problem()["type"], "already-exists");
    place.run(&["models", "delete", "a"]).exits(0);
    assert!(!fs::read_to_string(&stored).expect("there").contains("sk-hunter2"));
    assert_eq!(place.run(&["--json", "models", "show", "a"]).exits(3).problem()["type"], "unknown-model");

    for (args, input) in [
        (&["models", "create", "c", "--provider", "openai", "--key-stdin"][..], ""),
        (&["models", "create", "c", "--provider", "openai", "--key-stdin", "--key-env", "K"], "k"),
        (&["models", "create", "c", "--provider", "openai", "--api", "morse"], ""),
        (&["models", "create", "c", "--provider", "openai", "--base-url", "here"], ""),
    ] {
        piped(&place, args, input).exits(2);
    }
}

#[test]
fn a_key_that_others_may_read_is_refused() {
    let place = Place::new();
    piped(&place, &["models", "create", "a", "--provider", "openai", "--key-stdin"], "sk-hunter2").exits(0);
    let stored = place.config().join("models.toml");
    fs::set_permissions(&stored, fs::Permissions::from_mode(0o644)).expect("set");
    let ran = place.run(&["--json", "models"]).exits(2);
    assert!(ran.problem()["detail"].as_str().is_some_and(|text| text.contains("chmod 600")), "{ran:?}");
    assert!(!format!("{ran:?}").contains("hunter2"));
}

#[test]
fn a_model_configuration_that_cannot_be_used_says_why() {
    let place = Place::new();
    let run = |name: &str| run_with(&place, &["--json", "--agent", "acp", "--model-config", name], "x");
    assert_eq!(run("none").exits(3).problem()["type"], "unknown-model");
    place.run(&["models", "create", "b", "--provider", "openai", "--key-env", "AGENT_PROXY_TEST_NOT_SET"]).exits(0);
    let problem = run("b").exits(2).problem();
    assert!(problem["detail"].as_str().is_some_and(|text| text.contains("AGENT_PROXY_TEST_NOT_SET")), "{problem}");
}
