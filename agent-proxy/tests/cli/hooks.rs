//! Hooks in a user's own settings: what they do to the file, and what they record.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::harness::{Place, Ran, Running};

/// Place with a home.
struct HooksPlace(Place);

impl HooksPlace {
    fn new() -> Self {
        let place = Place::new();
        fs::create_dir_all(place.directory.join(".claude")).expect("created");
        Self(place)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.0.command(args);
        command.env("HOME", &self.0.directory);
        for name in ["CLAUDE_CONFIG_DIR", "XDG_STATE_HOME", "AGENT_PROXY_SESSION"] {
            command.env_remove(name);
        }
        command
    }

    #[track_caller]
    fn run(&self, args: &[&str]) -> Ran {
        Running::new(self.command(args)).end()
    }

    fn settings(&self) -> PathBuf {
        self.0.directory.join(".claude/settings.json")
    }

    fn backup(&self) -> PathBuf {
        self.0.directory.join(".claude/settings.json.before-agent-proxy")
    }

    /// Starts the command that hooks run, and gives it a report.
    fn report(&self, report: &Value, environment: &[(&str, &str)]) -> Running {
        let mut command = self.command(&["hooks", "record", "claude-code"]);
        command.stdin(Stdio::piped()).envs(environment.iter().copied());
        let mut running = Running::new(command);
        running.stdin().write_all(report.to_string().as_bytes()).expect("written");
        running
    }

    fn streams(&self) -> PathBuf {
        self.0.directory.join(".local/state/agent-proxy/outside/claude-code")
    }
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn prompt(conversation: &str, text: &str) -> Value {
    json!({ "session_id": conversation, "cwd": "/src", "hook_event_name": "UserPromptSubmit", "prompt": text })
}

const INSTALL: [&str; 3] = ["hooks", "install", "claude-code"];
const UNINSTALL: [&str; 3] = ["hooks", "uninstall", "claude-code"];

/// Settings of a user, by hand.
const SETTINGS: [&str; 6] = [
    "{\n\t\"model\": \"opus\",\n\t\"env\": {\"B\": \"2\",   \"A\": \"1\"}\n}",
    "{}",
    "",
    "{\n  // mine\n  \"hooks\": {\n    \"PreToolUse\": [{ \"matcher\": \"Bash\", \"hooks\": [{ \"type\": \"command\", \"command\": \"check\" }] }],\n  },\n}\n",
    "{\"hooks\":{\"Stop\":[]}}\n",
    "{\r\n  \"a\": [1,\r\n 2]\r\n}\r\n",
];

#[test]
fn uninstall_gives_the_settings_back_byte_for_byte() {
    for before in SETTINGS {
        let place = HooksPlace::new();
        fs::write(place.settings(), before).expect("written");
        fs::set_permissions(place.settings(), fs::Permissions::from_mode(0o640)).expect("set");
        let added = place.run(&INSTALL).exits(0).stdout;
        assert!(added.contains(place.backup().to_str().expect("UTF-8")), "{added}");
        let with = text(&place.settings());
        assert_eq!(with.matches("hooks record claude-code || true").count(), 7, "{with}");
        assert_eq!(text(&place.backup()), before);
        assert_eq!(fs::metadata(place.settings()).expect("there").permissions().mode() & 0o777, 0o640);
        assert!(place.run(&INSTALL).exits(0).stdout.contains("already"), "twice is once");
        assert_eq!(text(&place.settings()), with);
        place.run(&UNINSTALL).exits(0);
        assert_eq!(text(&place.settings()), before);
        assert!(!place.backup().exists());
        place.run(&UNINSTALL).exits(0);
    }
}

#[test]
fn a_file_that_was_not_there_is_gone_again() {
    let place = HooksPlace::new();
    place.run(&INSTALL).exits(0);
    let settings: Value = serde_json::from_str(&text(&place.settings())).expect("JSON");
    assert_eq!(settings["hooks"].as_object().expect("an object").len(), 7);
    place.run(&UNINSTALL).exits(0);
    assert!(!place.settings().exists() && !place.backup().exists());
    // Elsewhere.
    let file = place.0.directory.join("other/settings.json");
    let named = ["--settings", file.to_str().expect("UTF-8")];
    place.run(&[&INSTALL[..], &named].concat()).exits(0);
    assert!(file.exists() && !place.settings().exists());
    let mut command = place.command(&["hooks", "--json"]);
    command.env("CLAUDE_CONFIG_DIR", file.parent().expect("a folder"));
    assert_eq!(Running::new(command).end().exits(0).json()["agents"][0]["installed"], "yes");
    assert_eq!(place.run(&["hooks", "list", "--json"]).exits(0).json()["agents"][0]["installed"], "no");
}

#[test]
fn what_was_changed_since_stays() {
    let before = "{\n  // mine\n  \"hooks\": {\n    \"PreToolUse\": [\n      { \"matcher\": \"Bash\", \"hooks\": [] }\n    ]\n  }\n}\n";
    let place = HooksPlace::new();
    fs::write(place.settings(), before).expect("written");
    place.run(&INSTALL).exits(0);
    let changed = text(&place.settings()).replace("// mine", "// mine, too");
    fs::write(place.settings(), changed).expect("written");
    let removed = place.run(&UNINSTALL).exits(0).stdout;
    assert!(removed.contains(place.backup().to_str().expect("UTF-8")), "{removed}");
    assert_eq!(text(&place.settings()), before.replace("// mine", "// mine, too"));
    assert_eq!(text(&place.backup()), before);
}

#[test]
fn settings_that_cannot_be_edited_stay_as_they_are() {
    for (before, wrong) in [
        ("{ \"a\": ", "not JSON"),
        ("[]", "not an object"),
        ("{ \"hooks\": [] }", "not an object"),
        ("{ \"hooks\": { \"PreToolUse\": 1 } }", "not an array"),
    ] {
        let place = HooksPlace::new();
        fs::write(place.settings(), before).expect("written");
        let ran = place.run(&INSTALL).exits(1);
        assert!(ran.stderr.contains(wrong) && ran.stderr.contains("settings.json"), "{ran:?}");
        assert_eq!(text(&place.settings()), before);
        assert!(!place.backup().exists());
    }
    let place = HooksPlace::new();
    fs::write(place.settings(), "{}").expect("written");
    fs::set_permissions(place.settings(), fs::Permissions::from_mode(0o444)).expect("set");
    let ran = place.run(&INSTALL).exits(1);
    assert!(ran.stderr.contains("read-only"), "{ran:?}");
    assert_eq!(text(&place.settings()), "{}");
}

#[test]
fn a_link_stays_a_link() {
    let place = HooksPlace::new();
    let target = place.0.directory.join("dotfiles.json");
    fs::write(&target, "{ \"model\": \"opus\" }\n").expect("written");
    symlink(&target, place.settings()).expect("linked");
    place.run(&INSTALL).exits(0);
    assert!(fs::symlink_metadata(place.settings()).expect("there").is_symlink());
    assert!(text(&target).contains("hooks record claude-code"));
    place.run(&UNINSTALL).exits(0);
    assert_eq!(text(&target), "{ \"model\": \"opus\" }\n");
}

#[test]
fn reports_become_the_streams_of_their_conversations() {
    let place = HooksPlace::new();
    let tool = json!({ "session_id": "c-1", "cwd": "/src", "hook_event_name": "PreToolUse", "tool_use_id": "t",
        "tool_name": "Bash", "tool_input": { "command": "ls" } });
    for report in [prompt("c-1", "hello"), tool, prompt("c-2", "other")] {
        let ran = place.report(&report, &[]).end().exits(0);
        assert_eq!((&*ran.stdout, &*ran.stderr), ("", ""));
    }
    // Nothing of it is an error of the agent's, and our own sessions are not recorded.
    for report in [json!("no report"), json!({ "session_id": "../c" })] {
        let ran = place.report(&report, &[]).end().exits(0);
        assert_eq!((&*ran.stdout, &*ran.stderr), ("", ""));
    }
    place.report(&prompt("c-1", "ours"), &[("AGENT_PROXY_SESSION", "s-1")]).end().exits(0);
    let listed = place.run(&["hooks", "list", "--json"]).exits(0).json();
    let streams = listed["streams"].as_array().expect("an array");
    let find = |id: &str| streams.iter().find(|stream| stream["conversation"] == id).expect("listed");
    assert_eq!((streams.len(), &find("c-1")["events"], &find("c-1")["directory"]), (2, &json!(3), &json!("/src")));
    let table = place.run(&["hooks"]).exits(0).stdout;
    assert!(table.contains("c-2") && table.contains("claude-code"), "{table}");
    let events = place.run(&["hooks", "events", "c-1", "--json"]).exits(0).envelopes();
    let offsets: Vec<u64> = events.iter().map(|envelope| envelope.offset).collect();
    assert_eq!(offsets, [1, 2, 3]);
    let shown = place.run(&["hooks", "events", "c-1"]).exits(0).stdout;
    assert!(shown.contains("terminal:prompted") && shown.contains("ls (execute)"), "{shown}");
    assert_eq!(place.run(&["hooks", "events", "c-"]).status.code(), Some(2));
    assert_eq!(place.run(&["hooks", "events", "d", "--json"]).exits(3).problem()["type"], "unknown-session");
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!((mode(&place.streams()), mode(&place.streams().join("c-1.jsonl"))), (0o700, 0o600));
}

#[test]
fn reports_at_once_are_all_recorded() {
    let place = HooksPlace::new();
    let running: Vec<_> = (0..12).map(|at| place.report(&prompt("c-1", &format!("prompt {at}")), &[])).collect();
    running.into_iter().for_each(|running| drop(running.end().exits(0)));
    let events = place.run(&["hooks", "events", "c-1", "--json"]).exits(0).envelopes();
    let offsets: Vec<u64> = events.iter().map(|envelope| envelope.offset).collect();
    assert_eq!(offsets, (1..=13).collect::<Vec<_>>());
}

#[test]
fn a_follower_gets_what_comes() {
    let place = HooksPlace::new();
    place.report(&prompt("c-1", "one"), &[]).end().exits(0);
    let mut follower = Running::new(place.command(&["hooks", "events", "c-1", "--follow", "--json"]));
    let read = |follower: &mut Running| crate::harness::envelope(&follower.line().expect("a line")).offset;
    assert_eq!((read(&mut follower), read(&mut follower)), (1, 2));
    place.report(&prompt("c-1", "two"), &[]).end().exits(0);
    assert_eq!(read(&mut follower), 3);
    follower.signal(Signal::SIGINT);
    follower.end().exits(130);
}

#[test]
fn a_hook_without_input_does_not_hold_up_the_agent() {
    let place = HooksPlace::new();
    let mut command = place.command(&["hooks", "record", "claude-code"]);
    command.stdin(Stdio::piped());
    let begin = Instant::now();
    let mut running = Running::new(command);
    let open = running.stdin();
    running.end().exits(0);
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    drop(open);
}
