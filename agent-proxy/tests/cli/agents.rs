//! Which agents there are.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::{Place, Running, TellingPipe, gone, names};

fn program(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("in a directory")).expect("created");
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("set");
}

/// The program, with nothing in PATH but what the test put there.
fn command(place: &Place, args: &[&str]) -> Command {
    let mut command = place.command(args);
    command.env("PATH", place.directory.join("bin")).env("HOME", place.directory.join("home"));
    command
}

fn agents(place: &Place, flags: &[&str]) -> Vec<Value> {
    let ran = Running::new(command(place, &[&["agents", "--json"], flags].concat())).end().exits(0);
    ran.json().as_array().expect("an array").clone()
}

#[track_caller]
fn agent<'a>(agents: &'a [Value], id: &str) -> &'a Value {
    agents.iter().find(|agent| agent["id"] == id).unwrap_or_else(|| panic!("{id} in {agents:?}"))
}

#[test]
fn what_is_installed_tells_its_version_and_leaves_nothing() {
    let place = Place::new();
    let home = place.directory.join("home");
    fs::create_dir_all(home.join(".pi/agent")).expect("created");
    // It is asked; like some real ones it makes itself at home.
    program(
        &place.directory.join("bin/opencode"),
        "#!/bin/sh\n: > \"$HOME/.opencode\"\n[ \"$1\" = --version ] && echo 1.2.3\n",
    );
    // It is a script for Node.js, of a version that is too old.
    program(&place.directory.join("bin/pi"), "#!/usr/bin/env node\n");
    program(&place.directory.join("bin/node"), "#!/bin/sh\necho v18.0.0\n");
    // It says nothing, to nobody.
    program(&place.directory.join("bin/qwen"), "#!/bin/sh\nexit 0\n");
    // Its package is there, and its part for this platform is not.
    let package = place.directory.join("lib/node_modules/@google/gemini-cli");
    program(&package.join("cli.js"), "#!/bin/sh\necho 'Error: no part for this platform' >&2\nexit 1\n");
    fs::write(package.join("package.json"), r#"{"name":"@google/gemini-cli","version":"0.61.0"}"#).expect("written");
    std::os::unix::fs::symlink(package.join("cli.js"), place.directory.join("bin/gemini")).expect("linked");

    let found = agents(&place, &[]);
    let opencode = agent(&found, "opencode");
    assert_eq!((&opencode["found"], &opencode["version"]), (&true.into(), &"1.2.3".into()), "{opencode}");
    assert!(opencode["usable"] == true && opencode["missing"] == serde_json::json!([]), "{opencode}");
    let pi = agent(&found, "pi");
    assert!(pi["usable"] == false && pi["missing"][0].as_str().is_some_and(|text| text.contains("18.0.0")), "{pi}");
    assert_eq!(pi["files"], serde_json::json!([home.join(".pi/agent")]));
    let gemini = agent(&found, "gemini");
    assert!(gemini["found"] == true && gemini["version"] == "0.61.0" && gemini["usable"] == false, "{gemini}");
    let why = gemini["missing"][0].as_str().expect("text");
    assert!(
        why.contains("--version` fails (exit code 1: Error: no part for this platform): install it again"),
        "{why}"
    );
    let qwen = agent(&found, "qwen");
    assert!(qwen["found"] == true && qwen["version"].is_null(), "{qwen}");
    let claude = agent(&found, "claude-code");
    assert!(
        claude["found"] == false && claude["install"].as_str().is_some_and(|text| text.starts_with("npm ")),
        "{claude}"
    );
    let any = agent(&found, "acp");
    assert!(any["usable"] == true && any["anyProgram"] == true, "{any}");
    assert_eq!(crate::harness::names(&home), [".pi"], "nobody was let into the real home");

    let text = Running::new(command(&place, &["agents"])).end().exits(0).stdout;
    assert!(
        text.contains("claude-code: claude is not in PATH\n    npm install --global @anthropic-ai/claude-code@"),
        "{text}"
    );
    let doctor = Running::new(command(&place, &["doctor"])).end().stdout;
    let line = |id: &str| doctor.lines().find(|line| line.contains(&format!(" {id}: "))).map(str::to_owned);
    let gemini = line("gemini").expect("a line");
    assert!(
        gemini.starts_with("agent ") && !gemini.contains(" ok ") && gemini.contains("fails (exit code 1"),
        "{gemini}"
    );
    assert!(line("opencode").is_some_and(|line| line.contains(" ok ")), "{doctor}");
    let unasked = agents(&place, &["--no-run"]);
    assert!(agent(&unasked, "opencode")["version"].is_null() && agent(&unasked, "pi")["usable"] == true);
}

#[test]
fn an_interrupt_while_programs_are_asked_leaves_nothing() {
    let place = Place::new();
    let asked = TellingPipe::new(place.directory.join("asked"));
    let script = format!("#!/bin/sh\necho $$ >{}\nexec sleep 1000\n", asked.path());
    program(&place.directory.join("bin/opencode"), &script);
    std::os::unix::fs::symlink("/bin/sleep", place.directory.join("bin/sleep")).expect("linked");
    let temporary = place.directory.join("tmp");
    fs::create_dir(&temporary).expect("created");
    let mut command = command(&place, &["agents"]);
    command.env("TMPDIR", &temporary);
    let running = Running::new(command);
    let process = asked.process();
    running.signal(Signal::SIGINT);
    running.end().exits(130);
    gone(process);
    assert_eq!(names(&temporary), [""; 0]);
}

#[test]
fn rows_of_one_s_own_are_listed_and_started() {
    let place = Place::new();
    fs::create_dir_all(place.config().join("agents.d")).expect("created");
    let row = "id = 'mine'\nprotocol = 'command'\ncmd = ['sh', '-c', 'echo $GREETING $GIVEN $KEPT']\nrequired_env = ['GIVEN']\n\
               env = { GREETING = 'hello' }\n";
    fs::write(place.config().join("agents.toml"), row).expect("written");
    let off = r#"{"agents":[{"id":"off","protocol":"acp","cmd":["sh"],"enabled":false,"image":"x/y"}]}"#;
    fs::write(place.config().join("agents.d/off.json"), off).expect("written");
    let found = place.run(&["agents", "--json"]).exits(0).json();
    let found = found.as_array().expect("an array");
    assert_eq!(agent(found, "mine")["missing"], serde_json::json!(["GIVEN is not in the environment"]));
    assert!(agent(found, "off")["enabled"] == false && agent(found, "off")["usable"] == false);

    let mut command = place.command(&["run", "--agent", "mine", "x"]);
    command.env("GIVEN", "to you").env("KEPT", "back");
    assert_eq!(Running::new(command).end().exits(0).stdout, "hello to you\n");
    let problem = place.run(&["run", "--json", "--agent", "mine", "x"]).exits(2).problem();
    assert!(problem["detail"].as_str().is_some_and(|text| text.contains("GIVEN")), "{problem}");
    let problem = place.run(&["run", "--json", "--agent", "off", "x"]).exits(2).problem();
    assert!(problem["detail"].as_str().is_some_and(|text| text.contains("switched off")), "{problem}");
}

#[test]
fn a_wrong_row_names_file_row_and_field() {
    let place = Place::new();
    fs::create_dir_all(place.config()).expect("created");
    fs::write(place.config().join("agents.json"), r#"[{"id":"x","protocol":"acp","modelflag":""}]"#).expect("written");
    for args in [&["agents"][..], &["run", "--agent", "x", "hi"], &["profiles"]] {
        let problem = place.run(&[&["--json"], args].concat()).exits(2).problem();
        let detail = problem["detail"].as_str().expect("text");
        assert_eq!(problem["type"], "invalid-config");
        assert!(
            detail.contains("agents.json, agent \"x\", field modelflag: ") && detail.contains("model_flag"),
            "{detail}"
        );
    }
}

#[test]
fn the_schema_is_one() {
    let place = Place::new();
    let schema = place.run(&["agents", "--schema"]).exits(0).json();
    assert_eq!(schema["$defs"]["AgentSpec"]["required"], serde_json::json!(["id", "protocol"]));
}

#[test]
fn an_unknown_agent_says_what_there_is() {
    let place = Place::new();
    let problem = place.run(&["run", "--json", "--agent", "claud", "hi"]).exits(3).problem();
    assert_eq!(problem["type"], "unknown-agent");
    assert!(problem["detail"].as_str().is_some_and(|text| text.contains("claude-code")), "{problem}");
}
