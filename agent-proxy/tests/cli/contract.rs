//! Exit codes and errors.

use ipc_protocol::LimitKind;

use crate::harness::{PROGRAM, Place, Running, not_run};

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
        &["permit", "s"],
        &["stop"],
        &["restart"],
        &["status"],
        &["status", "s"],
        &["logs", "s"],
        &["wait", "s"],
        &["prune"],
        &["suspend", "s"],
        &["resume", "s"],
        &["attach-command", "s", "--hand-over"],
        &["take-back", "s"],
        &["append", "s", "a:b"],
        &["rename", "s", "x"],
        &["tag", "s", "--add", "x"],
        &["archive", "s"],
        &["queue", "s"],
        &["export", "s"],
        &["import", "/no/such/file"],
        &["sessions", "--all"],
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
        &["kill", "s", "--tree"],
        &["permit", "s", "permission-1"],
        &["permit", "s", "--as", "alice"],
        &["start", "--agent", "command", "--containment", "jail", "--", "cat"],
        &["start", "--agent", "command", "--limit", "ram=2GiB", "--", "cat"],
        &["start", "--agent", "command", "--limit", "memory=2", "--", "cat"],
        &["start", "--agent", "command", "--limit", "pids=2", "--limit", "pids=3", "--", "cat"],
        &["start", "--agent", "command", "--on-limit", "cry", "--", "cat"],
        &["run", "hi", "--landlock", "maybe"],
        &["leaktest"],
        &["leaktest", "--timeout", "soon", "--", "true"],
        &["serve", "--containment", "jail"],
        &["serve", "--idle-suspend", "0s"],
        &["serve", "--retention-age", "30days"],
        &["serve", "--state-dir", "/x", "--on-log-failure", "cry"],
        &["serve", "--rules", "/no/such/file", "--idle-suspend", "soon"],
        &["start", "--agent", "command", "--restart", "always", "--", "cat"],
        &["sessions", "--status", "gone"],
        &["tag", "s"],
        &["append", "s", "a:b", "{}", "--version", "-1"],
        &["start"],
        &["run", "--agent", "acp", "hi", "--timeout", "last=3s"],
        &["run", "--agent", "acp", "hi", "--permission-timeout", "0s"],
        &["run", "--agent", "acp", "hi", "--permission", "perhaps"],
        &["run", "--agent", "acp", "hi", "--deny", "cmd=x"],
        &["run", "--agent", "acp", "hi", "--deny", "path=[a"],
        &["run", "--agent", "acp", "hi", "--resume", "x", "--continue"],
        &["run", "--agent", "acp", "hi", "--resume", "session:a/b"],
        &["run", "--agent", "acp", "hi", "--fork"],
        &["run", "--agent", "acp", "hi", "--on-missing", "new"],
        &["run", "--agent", "acp", "hi", "--continue", "--on-missing", "history"],
        &["run", "--agent", "acp", "--key", "k"],
        &["run", "--agent", "acp", "hi", "--restart", "on-crash"],
        &["run", "--agent", "acp", "hi", "--idle-suspend", "5m"],
        &["ask", "--agent", "acp", "hi", "--key", "k"],
        &["start", "--agent", "acp", "--replace"],
        &["run", "--agent", "acp", "hi", "--continue", "--history", "/no/such/file"],
        &["run", "--agent", "acp", "hi", "--continue", "--on-missing", "new", "--history", "/dev/null"],
        &["run", "--agent", "acp", "hi", "--home", "sweet"],
        &["run", "--agent", "acp", "hi", "--mcp", "/no/such/file"],
        &["run", "--agent", "acp", "hi", "--image", "/no/such/file.png"],
        &["run", "--agent", "acp", "hi", "--image", "/dev/null"],
        &["run", "--agent", "acp", "hi", "--file", "/no/such/file"],
        &["profiles", "create", "x"],
        &["models", "create", "x"],
        &["models", "create", "x", "--provider", "p", "--key", "k"],
    ] {
        place.run(args).exits(2);
        if !args.is_empty() {
            assert_eq!(place.run(&[&["--json"], args].concat()).exits(2).problem()["type"], "usage", "{args:?}");
        }
    }
    let unknown =
        |flag: &str, value: &str| place.run(&["start", "--agent", "command", flag, value, "--", "cat"]).exits(2).stderr;
    for (flag, value, offered) in [
        ("--containment", "jail", "auto, baseline, cgroup, strict"),
        ("--limit", "ram=2GiB", "memory=2GiB, pids=200, cpu-time=30s, cpu=150%, open-files=256, file-size=100MiB"),
        ("--limit", "memory=2G", "B KiB MiB GiB TiB KB MB GB TB"),
        ("--on-limit", "cry", "warn, kill_process, kill_session"),
    ] {
        let said = unknown(flag, value);
        assert!(said.contains(offered), "{flag} {value}: {said}");
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
    let leaktest = place.run(&["leaktest", "--help"]).exits(0).stdout;
    assert!(leaktest.contains("Examples:") && leaktest.contains("Exit codes: 0"), "{leaktest}");
    for (line, part) in [
        ("abort --", "--kill-turn"),
        ("agents --", "--schema"),
        ("models create --", "--key-stdin"),
        ("profiles change --", "--unset"),
        ("start --", "--permission-timeout"),
        ("", "profiles"),
        ("", "models"),
        ("attach-command --", "--hand-over"),
        ("serve --", "--retention-age"),
        ("", "take-back"),
    ] {
        // As the script asks.
        let words: Vec<&str> = ["--", "agent-proxy"].into_iter().chain(line.split(' ')).collect();
        let mut command = place.command(&words);
        command.env("AGENT_PROXY_COMPLETE", "fish");
        let candidates = Running::new(command).end().exits(0).stdout;
        assert!(candidates.lines().any(|line| line.split('\t').next() == Some(part)), "{part} in {candidates}");
    }
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        assert!(place.run(&["completions", shell]).exits(0).stdout.contains("AGENT_PROXY_COMPLETE"), "{shell}");
    }
    for command in [
        "agents",
        "profiles",
        "models",
        "run",
        "start",
        "sessions",
        "suspend",
        "attach-command",
        "append",
        "tag",
        "export",
        "import",
    ] {
        let help = place.run(&[command, "--help"]).exits(0).stdout;
        assert!(help.contains("Examples:"), "{command}: {help}");
    }
    assert!(place.run(&["completions", "bash"]).exits(0).stdout.contains(" -F _agent_proxy_words agent-proxy"));
}

/// The catalog knows how to get it.
#[test]
fn an_agent_that_is_not_installed_exits_3_with_what_installs_it() {
    let place = Place::new();
    let nowhere = place.directory.join("bin");
    let ran = |args: &[&str]| {
        let mut command = place.command(args);
        command.env("PATH", &nowhere).env("HOME", &place.directory);
        crate::harness::Running::new(command)
    };
    let mut serve = ran(&["serve"]);
    serve.line().expect("it listens");
    for args in [
        &["run", "--agent", "codex", "--permission", "allow", "hi"][..],
        &["ask", "--agent", "codex", "hi"],
        &["start", "--agent", "codex"],
    ] {
        let missing = ran(args).end().exits(3);
        assert!(missing.stderr.contains("npm install --global @openai/codex"), "{args:?}: {}", missing.stderr);
    }
    ran(&["run", "hi"]).end().exits(3);
    ran(&["stop"]).end().exits(0);
    serve.end().exits(0);
}

#[test]
fn what_the_daemon_refuses_has_the_code_of_its_kind() {
    let place = Place::new();
    let daemon = place.serve();
    let follower = daemon.start("s", &["cat"]);
    for (args, code, kind) in [
        (&["start", "--id", "s", "--agent", "command", "--", "cat"][..], 8, "duplicate-session"),
        (&["start", "--agent", "nobody"], 3, "unknown-agent"),
        (&["start", "--agent", "command", "--", "/no/such/program"], 3, "program-not-found"),
        (&["start", "--agent", "command", "--cwd", "/no/such/place", "--", "cat"], 1, "cwd-missing"),
        (&["start", "--agent", "command"], 2, "invalid-config"),
        (&["start", "--agent", "command", "--model", "m", "--", "cat"], 6, "unsupported"),
        (&["start", "--agent", "command", "--permission", "deny", "--", "cat"], 6, "unsupported"),
        (&["start", "--agent", "command", "--deny", "tool=bash", "--", "cat"], 6, "unsupported"),
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
fn a_layer_that_cannot_be_had_is_refused_and_one_that_can_is_shown() {
    let place = Place::new();
    let checks = place.run(&["doctor", "--json"]).exits(0).json();
    let available = |layer: &str| {
        let name = format!("layer {layer}");
        checks.as_array().expect("an array").iter().any(|check| check["name"] == *name && check["verdict"] == "ok")
    };
    let daemon = place.serve();
    for (layer, shown) in [("baseline", "baseline"), ("cgroup", "cgroup"), ("strict", "namespaces")] {
        let start = ["start", "--json", "--id", layer, "--agent", "command", "--containment", layer, "--", "cat"];
        let ran = daemon.run(&start);
        if !available(layer) {
            assert_eq!(ran.exits(6).problem()["type"], "containment-unavailable");
            not_run(format_args!("layer {layer}"));
            continue;
        }
        ran.exits(0);
        let events = daemon.run(&["events", layer]).exits(0).stdout;
        let started = events.lines().find(|line| line.contains("session:started")).expect("it started");
        assert!(started.contains(shown), "{started}");
        let receipt = daemon.run(&["kill", layer]).exits(0).stdout;
        assert!(receipt.lines().any(|line| line.contains("rounds") && line.contains(shown)), "{receipt}");
    }
    // Paths are of no use without a sandbox, which a profile may give.
    for flag in ["--read", "--write"] {
        let problem =
            place.run(&["run", "--json", "--agent", "command", flag, "/tmp", "--", "true"]).exits(2).problem();
        assert!(problem["detail"].as_str().is_some_and(|why| why.contains("without a sandbox")), "{problem}");
    }
    // Tokens are those of this machine.
    for command in [&["tokens", "create", "x"][..], &["tokens"], &["tokens", "revoke", "x"]] {
        let problem = place.run(&[&["--json", "--url", "https://agents.example"], command].concat()).exits(2).problem();
        assert!(problem["detail"].as_str().is_some_and(|why| why.contains("where their daemon runs")), "{problem}");
    }
    // Below something that is no cgroup there are none, and that is said.
    let path = place.directory.to_str().expect("UTF-8").to_owned();
    let other = Place::new();
    let flags = ["serve", "--json", "--cgroup-parent", &path];
    for layer in [&[][..], &["--containment", "cgroup"]] {
        let problem = other.run(&[&flags[..], layer].concat()).exits(6).problem();
        assert_eq!(problem["type"], "containment-unavailable", "{problem}");
    }
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
    for name in ["kernel", "pidfd", "subreaper", "test session", "layer baseline", "observer polling"] {
        assert_eq!(verdict(name), "ok", "{name}");
    }
    // What the registry finds here, and that only.
    let own = registry::identify(std::process::id()).expect("alive");
    let found = [
        ("layer cgroup", registry::ManagerCgroup::create(None, own).map(drop)),
        ("layer strict", registry::strict_is_available()),
        ("observer connector", registry::ProcConnector::probe()),
        ("landlock scope", registry::landlock_scope_is_available()),
    ];
    for (name, found) in found {
        assert_eq!(verdict(name), if found.is_ok() { "ok" } else { "missing" }, "{name}: {found:?}");
    }
    // Each limit is kept in one way or another.
    for (_, name) in LimitKind::ALL {
        assert_eq!(verdict(&format!("limit {name}")), "ok", "{name}");
    }
    // Each of these is there whatever came out, and what is missing says what would help.
    for name in
        ["controller memory", "controller pids", "controller cpu", "undumpable proxy", "no_new_privs", "core dumps"]
    {
        match verdict(name).as_str() {
            Some("ok" | "note") => {}
            Some("missing") => not_run(name),
            other => panic!("{name}: {other:?}"),
        }
    }
    for check in checks.iter().filter(|check| check["verdict"] == "missing") {
        assert!(check["advice"].is_string() && check["found"] != "", "{check}");
    }
    let text = place.run(&["doctor"]).exits(0).stdout;
    assert!(text.contains("layer A (baseline) is usable"), "{text}");
}

/// Where the kernel takes the subscription and says nothing, as only the connector's self-test can tell.
#[test]
fn doctor_says_why_there_is_no_connector_and_what_that_takes_away() {
    let place = Place::new();
    let doctor = |program: &[&str]| {
        let ran = place.run_as(&[program, &[PROGRAM, "doctor", "--json"]].concat());
        let checks = ran.exits(0).json();
        let check = |name: &str| {
            let found = checks.as_array().expect("an array").iter().find(|check| check["name"] == name);
            found.unwrap_or_else(|| panic!("{name} in {checks}")).clone()
        };
        ["observer connector", "limit file-size"].map(check)
    };
    let [connector, file_size] = doctor(&[zoo::PROGRAM, ":without", "connector"]);
    assert_eq!((&connector["verdict"], connector["advice"].is_string()), (&"missing".into(), true), "{connector}");
    let found = connector["found"].as_str().expect("text");
    // In a namespace of its own that is the reason.
    assert!(found.contains("were not told") || found.contains("namespace"), "{found}");
    assert!(file_size["found"].as_str().is_some_and(|found| found.contains("without the connector")), "{file_size}");
    if let Err(why) = registry::ProcConnector::probe() {
        return not_run(why);
    }
    let [connector, file_size] = doctor(&[]);
    assert_eq!(connector["verdict"], "ok", "{connector}");
    assert!(file_size["found"].as_str().is_some_and(|found| !found.contains("connector")), "{file_size}");
}
