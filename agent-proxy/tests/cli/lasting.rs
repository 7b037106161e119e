//! Sessions that outlive their processes, and the daemon.

use std::{
    fs,
    process::{Command, Stdio},
};

use ipc_protocol::{EndReason, Envelope, Event, ProcessId};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::harness::{Daemon, PROGRAM, Place, Ran, gone, parent, signalled};

/// A place with an agent that keeps its conversations.
pub(crate) fn place() -> Place {
    let place = Place::new();
    fs::create_dir_all(place.config()).expect("created");
    let row = format!(
        "id = 'kept'\nprotocol = 'acp'\ncmd = ['{PROGRAM}', 'fake-agent', '--modes', '--store', 'chats']\n\
         session_config = {{ attach_command = ['printf', '%s in %s\\n', '{{id}} $HOME', 'x'] }}\n"
    );
    fs::write(place.config().join("agents.toml"), row).expect("written");
    place
}

impl Place {
    /// A daemon that keeps what there is in this place.
    pub(crate) fn keeping(&self, flags: &[&str]) -> Daemon<'_> {
        let state = self.directory.join("state");
        self.serve_with(&[&["--state-dir", state.to_str().expect("UTF-8")], flags].concat())
    }
}

impl Daemon<'_> {
    /// Starts a session that keeps its conversation in a home of its own.
    #[track_caller]
    fn start_kept(&self, id: &str, flags: &[&str]) -> Ran {
        self.run(&[&["start", "--id", id, "--agent", "kept", "--home", "own"], flags].concat()).exits(0)
    }

    /// What the agent answers.
    #[track_caller]
    fn ask(&self, id: &str, prompt: &str) -> String {
        self.run(&["prompt", id, prompt]).exits(0).stdout
    }

    /// What is kept of all sessions that the flags name.
    #[track_caller]
    fn records(&self, flags: &[&str]) -> Vec<Value> {
        let listed = self.run(&[&["sessions", "--json"], flags].concat()).exits(0).json();
        listed.as_array().expect("an array").clone()
    }

    /// The type of the problem that a command ends with.
    #[track_caller]
    pub(crate) fn refuses(&self, args: &[&str], code: i32) -> String {
        let problem = self.run(&[&["--json"], args].concat()).exits(code).problem();
        problem["type"].as_str().expect("a type").to_owned()
    }
}

fn suspended(envelope: &Envelope) -> Option<EndReason> {
    match &envelope.event {
        Event::SessionSuspended { reason, .. } => Some(reason.clone()),
        _ => None,
    }
}

fn resumed(envelope: &Envelope) -> Option<String> {
    match &envelope.event {
        Event::SessionResumed { by, .. } => Some(by.clone()),
        _ => None,
    }
}

fn offsets(envelopes: &[Envelope]) -> Vec<u64> {
    envelopes.iter().map(|envelope| envelope.offset).collect()
}

#[test]
fn a_conversation_goes_on_over_suspensions_and_daemons() {
    let place = place();
    let daemon = place.keeping(&[]);
    assert_eq!(daemon.start_kept("s", &["--key", "chat", "--title", "First", "--tag", "red"]).stdout, "s\n");
    assert_eq!(daemon.ask("s", "history"), "0 before\n");
    let said = daemon.run(&["suspend", "s"]).exits(0).stdout;
    assert!(said.starts_with("s suspended after 1 turn, last event ") && said.contains(" of kept\n"), "{said}");
    assert!(said.contains("0 survivors"), "{said}");
    // Twice is once.
    let snapshot = daemon.run(&["suspend", "s", "--json"]).exits(0).json();
    assert_eq!((&snapshot["turns"], &snapshot["config"]["agent"]), (&json!(1), &json!("kept")));
    let listed = daemon.run(&["sessions"]).exits(0).stdout;
    assert!(listed.lines().any(|line| line.starts_with("s ") && line.contains("suspended")), "{listed}");
    assert!(daemon.run(&["ps", "s"]).exits(0).stdout.contains("no processes"));
    assert_eq!(daemon.refuses(&["shell", "s", "--", "true"], 8), "suspended");
    assert_eq!(daemon.run(&["ps"]).exits(0).stdout, "");
    assert_eq!(daemon.run(&["resume", "s"]).exits(0).stdout, "s\n");
    assert_eq!(daemon.refuses(&["resume", "s"], 8), "not-suspended");
    assert_eq!(daemon.ask("s", "history"), "1 before\n");
    daemon.end(Signal::SIGTERM).exits(0);

    let daemon = place.keeping(&[]);
    let kept = daemon.records(&["--status", "suspended"]);
    assert_eq!((kept.len(), &kept[0]["sessionId"], &kept[0]["turns"]), (1, &json!("s"), &json!(2)), "{kept:?}");
    assert_eq!(kept[0]["reason"], "shutdown");
    let before = daemon.run(&["events", "s", "--json"]).exits(0).envelopes();
    assert_eq!(offsets(&before), (1..=before.len() as u64).collect::<Vec<_>>());
    let by: Vec<_> = before.iter().filter_map(resumed).collect();
    assert_eq!(by, ["resume"]);
    // Its events go on where they ended, and the prompt's turn is printed to its end.
    let follower = daemon.spawn(&["events", "s", "--from", &before.len().to_string(), "--follow", "--json"]);
    assert_eq!(daemon.ask("s", "history"), "2 before\n");
    assert_eq!(daemon.start_kept("other", &["--key", "chat"]).stdout, "s\n", "the key is its name");
    daemon.run(&["kill", "s"]).exits(0);
    let after = follower.end().exits(0).envelopes();
    assert_eq!(offsets(&after).first(), Some(&(before.len() as u64 + 1)));
    assert_eq!(after.iter().filter_map(resumed).collect::<Vec<_>>(), ["prompt"]);
    daemon.end(Signal::SIGTERM).exits(0);

    // What is over is over; its events are there, and its conversation goes on in another session.
    let daemon = place.keeping(&[]);
    assert_eq!(daemon.run(&["sessions", "--json"]).exits(0).json(), json!([]));
    assert_eq!(daemon.records(&["--all"])[0]["status"], "ended");
    let all = daemon.run(&["events", "s", "--follow", "--json"]).exits(0).envelopes();
    assert_eq!(offsets(&all), (1..=(before.len() + after.len()) as u64).collect::<Vec<_>>());
    assert!(matches!(all.last().expect("some").event, Event::SessionEnded { reason: EndReason::Killed, .. }));
    let rest = daemon.run(&["events", "s", "--from", &(all.len() - 2).to_string(), "--json"]).exits(0).envelopes();
    assert_eq!(rest.len(), 2);
    let text = daemon.run(&["transcript", "s"]).exits(0).stdout;
    assert!(text.starts_with("User: history\n\nAssistant: 0 before\n\nUser: history"), "{text}");
    assert_eq!(daemon.start_kept("t", &["--key", "chat"]).stdout, "t\n");
    assert_eq!(daemon.ask("t", "history"), "3 before\n");
    daemon.run(&["delete", "s"]).exits(0);
    assert_eq!(daemon.refuses(&["events", "s"], 3), "unknown-session");
}

#[test]
fn a_conversation_that_is_gone_is_done_without_where_that_is_asked_for() {
    let place = place();
    let daemon = place.keeping(&[]);
    daemon.start_kept("s", &["--key", "chat"]);
    let forget = || {
        daemon.run(&["suspend", "s"]).exits(0);
        fs::remove_dir_all(place.directory.join("state/homes/s-s/chats")).expect("removed");
    };
    assert_eq!(daemon.ask("s", "say the word is quince"), "the word is quince\n");
    forget();
    let missing = daemon.run(&["resume", "s"]).exits(3).stderr;
    assert!(missing.contains("--on-missing new"), "{missing}");
    assert_eq!(daemon.run(&["resume", "s", "--on-missing", "history"]).exits(0).stdout, "s\n");
    assert!(daemon.ask("s", "system").contains("the word is quince"), "it is told");
    forget();
    daemon.run(&["start", "--agent", "kept", "--key", "chat"]).exits(3);
    assert_eq!(daemon.start_kept("t", &["--key", "chat", "--on-missing", "new"]).stdout, "s\n");
    assert_eq!(daemon.ask("s", "history"), "0 before\n");
}

#[test]
fn an_ended_session_is_replaced_and_a_start_that_failed_leaves_none() {
    let place = place();
    let daemon = place.keeping(&[]);
    daemon.run(&["start", "--id", "s", "--agent", "kept", "--", "--exit-at-start", "9"]).exits(1);
    assert_eq!(daemon.run(&["sessions"]).exits(0).stdout, "");
    assert!(daemon.records(&["--all"]).is_empty());
    daemon.start_kept("s", &[]);
    assert_eq!(daemon.refuses(&["start", "--id", "s", "--agent", "kept", "--replace"], 8), "duplicate-session");
    daemon.run(&["kill", "s"]).exits(0);
    let taken = daemon.run(&["start", "--id", "s", "--agent", "kept"]).exits(8).stderr;
    assert!(taken.contains("`agent-proxy delete s`") && taken.contains("`start --replace`"), "{taken}");
    assert_eq!(daemon.start_kept("s", &["--replace"]).stdout, "s\n");
    assert_eq!(daemon.ask("s", "history"), "0 before\n");
    // A command has no conversation: that is listed, and a restart of it is refused.
    daemon.run(&["start", "--id", "c", "--agent", "command", "--", "cat"]).exits(0);
    let listed = daemon.run(&["sessions", "--json"]).exits(0).json();
    let resumable = |id: &str| {
        listed.as_array().and_then(|all| all.iter().find(|one| one["sessionId"] == id)).expect("listed")["resumable"]
            .clone()
    };
    assert_eq!((resumable("s"), resumable("c")), (json!(true), json!(false)));
    let refused = daemon.run(&["start", "--agent", "command", "--restart", "on-crash", "--", "cat"]).exits(2).stderr;
    assert!(refused.contains("leave `--restart` out"), "{refused}");
}

#[test]
fn what_is_exported_can_be_imported_elsewhere() {
    let here = place();
    let daemon = here.keeping(&[]);
    daemon.start_kept("s", &[]);
    assert_eq!(daemon.ask("s", "history"), "0 before\n");
    daemon.run(&["kill", "s"]).exits(0);
    // It is committed when it has been seen.
    let events = daemon.run(&["events", "s", "--follow", "--json"]).exits(0).envelopes();
    let file = here.directory.join("s.jsonl");
    let path = file.to_str().expect("UTF-8");
    daemon.run(&["export", "s", path]).exits(0);
    let written = fs::read_to_string(&file).expect("written");
    assert_eq!(written, daemon.run(&["export", "s"]).exits(0).stdout);
    assert_eq!(daemon.refuses(&["import", path], 8), "duplicate-session");

    let there = place();
    let other = there.keeping(&[]);
    assert_eq!(other.run(&["import", path]).exits(0).stdout, "s\n");
    assert_eq!(other.run(&["export", "s"]).exits(0).stdout, written);
    assert_eq!(other.run(&["events", "s", "--follow", "--json"]).exits(0).envelopes(), events);
    assert!(other.run(&["transcript", "s"]).exits(0).stdout.contains("Assistant: 0 before"));
    let imported = &other.records(&["--all", "--tag", "imported"])[0];
    assert_eq!((imported["sessionId"].as_str(), imported["status"].as_str()), (Some("s"), Some("ended")));
    assert_eq!((imported["reason"].as_str(), imported["config"]["agent"].as_str()), (Some("killed"), Some("kept")));
    let original = &daemon.records(&["--all"])[0];
    for field in ["turns", "messages", "usage", "lastOffset"] {
        assert_eq!(imported[field], original[field], "{field}");
    }
    assert_eq!(other.refuses(&["start", "--id", "s", "--agent", "kept", "--home", "own"], 8), "duplicate-session");
    other.run(&["delete", "s"]).exits(0);
    assert!(other.records(&["--all"]).is_empty());
    let (line, _) = written.split_once('\n').expect("lines");
    fs::write(&file, format!("{line}\n{line}\n")).expect("written");
    let problem = other.run(&["--json", "import", path]).exits(2).problem();
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("line 2")), "{problem}");
    assert_eq!(other.refuses(&["events", "s"], 3), "unknown-session");
    for none in ["/no/such/file", "/dev/zero", "/tmp"] {
        assert_eq!(other.refuses(&["import", none], 2), "usage");
    }
    assert_eq!(there.run(&["export", "nobody", path, "--json"]).exits(3).problem()["type"], "unknown-session");
    assert!(fs::read_to_string(&file).expect("it is as it was").starts_with(line));
}

#[test]
fn what_a_killed_daemon_left_running_is_gone_on_with() {
    let place = place();
    let daemon = place.keeping(&[]);
    daemon.start_kept("s", &[]);
    assert_eq!(daemon.ask("s", "history"), "0 before\n");
    let session = &daemon.run(&["sessions", "--json"]).exits(0).json()[0];
    let process = |name: &str| serde_json::from_value::<ProcessId>(session[name].clone()).expect("a process");
    let (proxy, agent) = (process("proxy"), process("agentProcess"));
    let fork_server = crate::harness::process(parent(proxy.pid));
    assert_eq!(signalled(&daemon.end(Signal::SIGKILL)), Some(9));
    [agent, proxy, fork_server].into_iter().for_each(gone);

    let daemon = place.keeping(&[]);
    let record = &daemon.records(&["--status", "suspended"])[0];
    assert_eq!((&record["sessionId"], &record["reason"]), (&json!("s"), &json!("hostDied")));
    assert_eq!(daemon.ask("s", "history"), "1 before\n");
    let events = daemon.run(&["events", "s", "--json"]).exits(0).envelopes();
    assert_eq!(offsets(&events), (1..=events.len() as u64).collect::<Vec<_>>());
    assert_eq!(events.iter().filter_map(suspended).collect::<Vec<_>>(), [EndReason::HostDied]);
}

#[test]
fn events_of_all_sessions_have_one_order_over_daemons() {
    let place = place();
    let daemon = place.keeping(&[]);
    for id in ["one", "two"] {
        daemon.start_kept(id, &[]);
    }
    for id in ["one", "two", "one"] {
        daemon.ask(id, "say hello");
    }
    daemon.end(Signal::SIGTERM).exits(0);
    let daemon = place.keeping(&[]);
    daemon.ask("two", "say hello");
    let all = |from: &str| -> Vec<Value> {
        let printed = daemon.run(&["events", "--all", "--from", from, "--json"]).exits(0).stdout;
        printed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    // Nothing more is to come, of the other one neither.
    daemon.run(&["suspend", "two"]).exits(0);
    let found = all("0");
    assert!(found.is_sorted_by(|a, b| a["position"].as_str() < b["position"].as_str()), "{found:#?}");
    for id in ["one", "two"] {
        let own: Vec<_> = found.iter().filter(|event| event["eventStreamId"] == id).cloned().collect();
        let own: Vec<_> = own.into_iter().map(|event| Envelope::from_json(event).expect("an event")).collect();
        assert_eq!(own, daemon.run(&["events", id, "--json"]).exits(0).envelopes());
    }
    let said = |event: &Value| (event["type"] == "turn:started").then(|| event["eventStreamId"].clone());
    assert_eq!(found.iter().filter_map(said).collect::<Vec<_>>(), ["one", "two", "one", "two"]);
    let middle = found[found.len() / 2]["position"].as_str().expect("a position");
    assert_eq!(all(middle), found[found.len() / 2 + 1..]);
    let text = daemon.run(&["events", "--all", "--raw"]).exits(0).stdout;
    assert!(text.lines().count() == found.len() && text.contains("  two   "), "{text}");
    daemon.end(Signal::SIGTERM).exits(0);
    let daemon = place.serve();
    assert_eq!(daemon.refuses(&["events", "--all"], 2), "invalid-config");
    daemon.run(&["events"]).exits(2);
}

#[test]
fn a_snapshot_goes_on_with_another_daemon() {
    let place = place();
    let daemon = place.keeping(&[]);
    daemon.start_kept("s", &[]);
    assert_eq!(daemon.ask("s", "history"), "0 before\n");
    let file = place.directory.join("s.json");
    fs::write(&file, daemon.run(&["suspend", "s", "--json"]).exits(0).stdout).expect("written");
    let file = file.to_str().expect("UTF-8");
    daemon.end(Signal::SIGTERM).exits(0);
    let state = place.directory.join("other");
    let daemon = place.serve_with(&["--state-dir", state.to_str().expect("UTF-8")]);
    assert_eq!(daemon.run(&["resume", "--snapshot", file]).exits(0).stdout, "s\n");
    assert_eq!(daemon.ask("s", "history"), "1 before\n");
    assert_eq!(daemon.refuses(&["resume", "--snapshot", file], 8), "not-suspended");
    daemon.run(&["resume", "s", "--snapshot", file]).exits(2);
    daemon.run(&["resume"]).exits(2);
    let none = place.directory.join("config");
    daemon.run(&["resume", "--snapshot", none.to_str().expect("UTF-8")]).exits(2);
}

#[test]
fn a_session_is_handed_over_and_taken_back() {
    let place = place();
    let daemon = place.keeping(&[]);
    // In a home of its own the command would be without the session's model.
    daemon.start_kept("own", &[]);
    assert_eq!(daemon.refuses(&["attach-command", "own"], 6), "unsupported");
    assert_eq!(daemon.refuses(&["attach-command", "own", "--hand-over"], 6), "unsupported");
    daemon.run(&["kill", "own"]).exits(0);
    daemon.run(&["start", "--id", "s", "--agent", "kept", "--home", "shared", "--cwd", "/tmp"]).exits(0);
    let attach = daemon.run(&["attach-command", "s", "--json"]).exits(0).json();
    let info = &daemon.run(&["sessions", "--json"]).exits(0).json();
    let info = info.as_array().expect("an array").iter().find(|info| info["sessionId"] == "s").expect("listed");
    assert_eq!((&attach["cwd"], &attach["home"]), (&info["cwd"], &info["home"]));
    daemon.ask("s", "history");
    let ran = daemon.run(&["attach-command", "s", "--hand-over", "--grace", "1s"]).exits(0);
    let line = ran.stdout.trim_end();
    assert_eq!(daemon.refuses(&["prompt", "s", "history"], 8), "handed-over");
    assert_eq!(daemon.refuses(&["resume", "s"], 8), "handed-over");
    assert!(daemon.run(&["sessions", "--all"]).exits(0).stdout.contains("handed over"));
    // A shell runs it as it stands, in the right place, and makes nothing of what is in an argument.
    #[expect(clippy::disallowed_methods, reason = "tests do what a shell does")]
    let shell = Command::new("sh").args(["-c", &format!("{line} && pwd && echo $HOME")]).stdin(Stdio::null()).output();
    let native = info["nativeSessionId"].as_str().expect("an id");
    let printed = String::from_utf8(shell.expect("it runs").stdout).expect("text");
    assert!(printed.starts_with(&format!("{native} $HOME in x\n/tmp\n")), "{line}: {printed}");
    assert!(info["home"].is_null() && !line.contains("HOME="), "{line}");
    assert_eq!(daemon.run(&["take-back", "s"]).exits(0).stdout, "s\n");
    assert_eq!(daemon.ask("s", "history"), "1 before\n");
    daemon.start("c", &["cat"]);
    assert_eq!(daemon.refuses(&["attach-command", "c"], 6), "unsupported");
    assert_eq!(daemon.refuses(&["suspend", "c"], 6), "unsupported");
}

#[test]
fn one_that_waits_for_a_resume_refuses_prompts_and_can_be_ended() {
    let place = place();
    let daemon = place.keeping(&[]);
    daemon.start_kept("s", &["--no-resume-on-prompt"]);
    daemon.run(&["suspend", "s", "--grace", "0s"]).exits(0);
    assert_eq!(daemon.refuses(&["prompt", "s", "history"], 8), "suspended");
    daemon.run(&["kill", "s"]).exits(0);
    assert_eq!(daemon.refuses(&["resume", "s"], 8), "not-suspended");
    daemon.end(Signal::SIGTERM).exits(0);
    let daemon = place.keeping(&[]);
    assert_eq!(daemon.records(&["--all"])[0]["status"], "ended");
}

#[test]
fn idle_sessions_are_suspended_and_crashed_ones_started_again() {
    let place = place();
    let daemon = place.serve_with(&["--idle-suspend", "200ms"]);
    daemon.start_kept("s", &[]);
    let mut events = daemon.spawn(&["events", "s", "--follow", "--json"]);
    assert_eq!(events.until(suspended), EndReason::Suspended);
    assert_eq!(daemon.ask("s", "history"), "0 before\n");
    assert_eq!(events.until(resumed), "prompt");
    assert_eq!(events.until(suspended), EndReason::Suspended);

    daemon.start_kept("t", &["--idle-suspend", "never", "--restart", "on-crash:2"]);
    let mut events = daemon.spawn(&["events", "t", "--follow", "--json"]);
    let sessions = daemon.run(&["sessions", "--json"]).exits(0).json();
    let started = sessions.as_array().expect("an array").iter().find(|session| session["sessionId"] == "t");
    let agent: ProcessId =
        serde_json::from_value(started.expect("it is listed")["agentProcess"].clone()).expect("a process");
    registry::PidFd::open(agent).and_then(|agent| agent.signal(ipc_protocol::Signal::Kill)).expect("killed");
    assert!(matches!(events.until(suspended), EndReason::AgentExited(_)));
    assert_eq!(events.until(resumed), "restart");
    daemon.run(&["kill", "t"]).exits(0);
}

/// How long a session may be idle is its daemon's to say, unless it says so itself.
#[test]
fn where_sessions_last_they_may_be_idle_for_five_minutes() {
    let place = place();
    let told = |daemon: &Daemon<'_>, id: &str, flags: &[&str]| {
        daemon.start_kept(id, flags);
        let records = daemon.records(&["--all"]);
        let record = records.iter().find(|record| record["sessionId"] == id).expect("it has a record");
        record["config"]["lifecycle"]["idleSuspendMs"].clone()
    };
    let daemon = place.keeping(&[]);
    assert_eq!(told(&daemon, "a", &[]), 300_000);
    assert_eq!(told(&daemon, "b", &["--idle-suspend", "1m"]), 60_000);
    assert_eq!(told(&daemon, "c", &["--idle-suspend", "never"]), 0);
    daemon.end(Signal::SIGINT).exits(0);
    let daemon = place.keeping(&["--idle-suspend", "never"]);
    assert_eq!(told(&daemon, "d", &[]), 0);
    daemon.end(Signal::SIGINT).exits(0);
    // With this one a suspended session would go.
    let daemon = place.serve();
    assert_eq!(told(&daemon, "a", &[]), 0);
    daemon.end(Signal::SIGINT).exits(0);
    let daemon = place.serve_with(&["--idle-suspend", "1m"]);
    assert_eq!(told(&daemon, "a", &[]), 60_000);
}

#[test]
fn anyone_appends_and_rules_make_actions_of_it() {
    let place = place();
    let rules = place.directory.join("rules.json");
    let path = rules.to_str().expect("UTF-8");
    fs::write(&rules, r#"[{"on":"x","action":"dance"}]"#).expect("written");
    let problem = place.run(&["--json", "serve", "--rules", path]).exits(2).problem();
    let detail = problem["detail"].as_str().expect("text");
    assert!(problem["type"] == "invalid-config" && detail.contains("rules.json: rule 1: "), "{problem}");
    fs::write(&rules, r#"[{"on":"slack:*","action":"prompt","payload":{"content":"say {user}: {text}"}}]"#)
        .expect("written");

    let daemon = place.serve_with(&["--rules", path]);
    let mut events = daemon.start_fake("s");
    let offset = daemon.run(&["append", "s", "mail:received", r#"{"n":1}"#, "--version", "3"]).exits(0).stdout;
    let offset: u64 = offset.trim().parse().expect("an offset");
    let kept = events.until(|envelope| match &envelope.event {
        Event::External { kind, version, payload } if envelope.offset == offset => {
            Some((kind.to_string(), *version, payload.value()))
        }
        _ => None,
    });
    assert_eq!(kept, ("mail:received".to_owned(), 3, json!({"n": 1})));
    daemon.run(&["append", "s", "slack:received", r#"{"user":"ada","text":"hi"}"#]).exits(0);
    events.until_printed(&["ada: hi"]);
    let appended = daemon.run(&["append", "s", "agent:action:abort:called", "--json"]).exits(0).json();
    assert_eq!(appended["offset"].as_str().map(str::len), Some(20), "{appended}");
    assert_eq!(daemon.refuses(&["append", "s", "session:ended"], 2), "invalid-config");
    assert_eq!(daemon.refuses(&["append", "s", "a:b", "{"], 2), "usage");
    assert_eq!(daemon.refuses(&["append", "nobody", "a:b"], 3), "unknown-session");
}

#[test]
fn sessions_are_named_tagged_put_aside_and_found() {
    let place = place();
    let daemon = place.keeping(&[]);
    daemon.start_kept("one", &["--title", "First", "--tag", "red", "--user", "ada"]);
    daemon.start_kept("two", &["--workspace-label", "w"]);
    let found = |flags: &[&str]| -> Vec<String> {
        let id = |record: &Value| record["sessionId"].as_str().expect("an id").to_owned();
        daemon.records(flags).iter().map(id).collect()
    };
    daemon.run(&["rename", "two", "Second & last"]).exits(0);
    daemon.run(&["tag", "two", "--add", "red", "--add", "big"]).exits(0);
    daemon.run(&["tag", "one", "--remove", "red"]).exits(0);
    for (flags, expected) in [
        (&["--all"][..], &["one", "two"][..]),
        (&["--text", "second & LAST"], &["two"]),
        (&["--tag", "red"], &["two"]),
        (&["--user", "ada"], &["one"]),
        (&["--workspace-label", "w", "--agent", "kept"], &["two"]),
        (&["--key", "none"], &[]),
        (&["--status", "ended"], &[]),
    ] {
        assert_eq!(found(flags), expected, "{flags:?}");
    }
    let text = daemon.run(&["sessions", "--all"]).exits(0).stdout;
    assert!(text.contains("Second & last") && text.contains("red,big"), "{text}");
    // One vocabulary, and one form of offsets.
    for session in daemon.run(&["sessions", "--json"]).exits(0).json().as_array().expect("an array") {
        let record = &daemon.records(&["--text", session["sessionId"].as_str().expect("an id")])[0];
        assert_eq!([&session["state"], &session["status"], &record["status"]], [&json!("idle"); 3]);
        assert_eq!(session["lastOffset"], record["lastOffset"]);
        assert!(session["lastOffset"].as_str().is_some_and(|offset| offset.len() == 20), "{session}");
    }
    assert_eq!((found(&["--status", "idle,busy"]).len(), found(&["--status", "busy"]).len()), (2, 0));
    let record = daemon.run(&["archive", "one", "--json"]).exits(0).json();
    assert_eq!(record["archived"], true);
    assert_eq!((found(&["--all"]), found(&["--archived"])), (vec!["two".into()], vec!["one".into(), "two".into()]));
    assert_eq!(found(&[]), ["two"], "the short list has no archived ones either");
    daemon.run(&["archive", "one", "--undo"]).exits(0);
    assert_eq!(found(&["--all"]).len(), 2);
    daemon.run(&["rename", "one", ""]).exits(0);
    assert!(found(&["--text", "first"]).is_empty());
    assert_eq!(daemon.refuses(&["rename", "nobody", "x"], 3), "unknown-session");
    assert_eq!(daemon.refuses(&["rename", "one", "two\nlines"], 2), "invalid-config");
}
