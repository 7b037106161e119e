//! Releases one after the other on one state directory. `AGENT_PROXY_OLD_RELEASE` is the built `agent-proxy` of the release before
//! (`tests/full` builds one).

use std::{collections::BTreeMap, fs};

use ipc_protocol::{Envelope, Event, ProcessId};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    harness::{Daemon, PROGRAM, Place, Ran, Running, envelope, gone, not_run},
    lasting,
};

/// Pieces of text in the turn that goes on from one release to the next.
const COUNT: u64 = 50_000;

/// The release before, and where it is installed.
struct Old {
    place: Place,
    program: String,
}

impl Old {
    /// `None` where there is none.
    fn installed() -> Option<Self> {
        let Some(built) = std::env::var_os("AGENT_PROXY_OLD_RELEASE") else {
            not_run("a daemon of the release before: AGENT_PROXY_OLD_RELEASE names none (tests/full builds one)");
            return None;
        };
        let place = lasting::place();
        let program = place.directory.join("agent-proxy").into_os_string().into_string().expect("UTF-8");
        fs::copy(built, &program).expect("a program");
        Some(Self { place, program })
    }

    /// This release takes its place, while what it has started runs.
    fn upgrade(&self) {
        let new = self.program.clone() + ".new";
        fs::copy(PROGRAM, &new).and_then(|_| fs::rename(&new, &self.program)).expect("installed");
    }

    fn spawn(&self, args: &[&str]) -> Running {
        self.place.spawn_as(&[&[self.program.as_str()], args].concat())
    }

    fn run(&self, args: &[&str]) -> Ran {
        self.spawn(args).end()
    }

    /// Its daemon, as soon as it answers.
    fn serve(&self) -> Running {
        let mut daemon = self.spawn(&["serve", "--state-dir", &self.state()]);
        assert!(daemon.line().is_some_and(|line| line.starts_with("listening on ")), "{}", daemon.end().stderr);
        daemon
    }

    fn state(&self) -> String {
        self.place.directory.join("state").into_os_string().into_string().expect("UTF-8")
    }
}

/// What starts a session of the fake agent that outlives its daemon. One that a failed test leaves ends itself soon.
fn detached(id: &str) -> [&str; 11] {
    let detach = "--on-host-death=detach";
    ["start", "--id", id, "--agent", "acp", detach, "--fetch-within", "60s", "--", PROGRAM, "fake-agent"]
}

fn kill(daemon: Running) {
    daemon.signal(Signal::SIGKILL);
    daemon.end();
}

/// Where a piece of the flood stands, and its number.
fn piece(envelope: &Envelope) -> Option<(u64, u64)> {
    if let Event::Text { text } = &envelope.event {
        Some((envelope.offset, text.trim_end_matches('.').parse().ok()?))
    } else {
        None
    }
}

fn records(listed: &Ran) -> BTreeMap<String, Value> {
    let listed = listed.json();
    let record = |record: &Value| (record["sessionId"].as_str().expect("an id").to_owned(), record.clone());
    listed.as_array().expect("an array").iter().map(record).collect()
}

fn proxy_of(daemon: &Daemon<'_>, id: &str) -> ProcessId {
    let listed = records(&daemon.run(&["sessions", "--json"]).exits(0));
    serde_json::from_value(listed[id]["proxy"].clone()).expect("a process")
}

#[test]
fn a_daemon_is_upgraded_in_place() {
    let Some(old) = Old::installed() else { return };
    let daemon = old.serve();
    old.run(&["start", "--id", "kept", "--agent", "kept", "--home", "own", "--title", "First", "--tag", "red"])
        .exits(0);
    assert_eq!(old.run(&["prompt", "kept", "history"]).exits(0).stdout, "0 before\n");
    old.run(&["suspend", "kept"]).exits(0);
    old.run(&["start", "--id", "over", "--agent", "command", "--", "cat"]).exits(0);
    old.run(&["kill", "over"]).exits(0);
    old.run(&detached("idle")).exits(0);
    assert_eq!(old.run(&["prompt", "idle", "say one"]).exits(0).stdout, "one\n");
    old.run(&detached("busy")).exits(0);
    let before = records(&old.run(&["sessions", "--all", "--json"]).exits(0));
    let mut follower = old.spawn(&["events", "busy", "--from", "0", "--follow", "--json"]);
    let prompt = old.spawn(&["prompt", "busy", &format!("flood {COUNT} 16")]);
    let mut shown = Vec::new();
    while shown.last().and_then(piece).is_none_or(|(_, number)| number < COUNT / 5) {
        shown.push(envelope(&follower.line().expect("an event")));
    }
    kill(daemon);
    // What it had said; the last line may be cut off.
    let rest = follower.end().stdout;
    shown.extend(rest.lines().filter_map(|line| Envelope::from_json(serde_json::from_str(line).ok()?).ok()));
    drop(prompt);
    assert!(shown.iter().filter_map(piece).all(|(_, number)| number < COUNT - 1), "nothing was left to go on with");
    old.upgrade();

    let daemon = old.place.keeping(&[]);
    let after = records(&daemon.run(&["sessions", "--all", "--json"]).exits(0));
    for id in ["kept", "over"] {
        for (field, value) in before[id].as_object().expect("a record") {
            assert_eq!(&after[id][field], value, "{field} of {id}");
        }
    }
    let proxies = ["busy", "idle"].map(|id| proxy_of(&daemon, id));
    let mut follower = daemon.spawn(&["events", "busy", "--from", "0", "--follow", "--json"]);
    let mut all = Vec::new();
    while all.last().and_then(piece).is_none_or(|(_, number)| number < COUNT - 1) {
        all.push(envelope(&follower.line().expect("an event")));
    }
    follower.until(|envelope| (envelope.event == Event::SessionIdle {} && envelope.turn == Some(1)).then_some(()));
    let offsets: Vec<_> = all.iter().map(|envelope| envelope.offset).collect();
    assert!(offsets.iter().copied().eq(1..=all.len() as u64), "offsets have no holes: {offsets:?}");
    // None lost, none doubled.
    let pieces: Vec<_> = all.iter().filter_map(piece).map(|(_, number)| number).collect();
    let wrong = pieces.iter().copied().zip(0..).find(|(number, wanted)| number != wanted);
    assert_eq!((wrong, pieces.len() as u64), (None, COUNT));
    assert!(all.starts_with(&shown), "what the old daemon has shown is where it has shown it");
    for id in ["busy", "idle"] {
        assert_eq!(daemon.run(&["prompt", id, "say two"]).exits(0).stdout, "two\n");
    }
    assert_eq!(daemon.run(&["prompt", "kept", "history"]).exits(0).stdout, "1 before\n");
    let ran = daemon.end(Signal::SIGTERM).exits(0);
    for id in ["busy", "idle", "kept"] {
        assert!(ran.stdout.lines().any(|line| line.starts_with(&format!("{id}: 0 survivors"))), "{}", ran.stdout);
    }
    proxies.into_iter().for_each(gone);
}

/// It takes the sessions too, or says that it cannot, and then harms none.
#[test]
fn an_older_daemon_harms_nothing() {
    let Some(old) = Old::installed() else { return };
    let daemon = old.place.keeping(&[]);
    daemon.run(&detached("stays")).exits(0);
    assert_eq!(daemon.run(&["prompt", "stays", "say one"]).exits(0).stdout, "one\n");
    let proxy = proxy_of(&daemon, "stays");
    daemon.end(Signal::SIGKILL);
    let mut tried = old.spawn(&["serve", "--state-dir", &old.state()]);
    if tried.line().is_some() {
        assert_eq!(old.run(&["prompt", "stays", "say two"]).exits(0).stdout, "two\n");
        kill(tried);
    } else {
        let refused = tried.end();
        assert!(!refused.status.success() && refused.stderr.contains("use a newer release"), "{refused:?}");
    }
    let daemon = old.place.keeping(&[]);
    assert_eq!(proxy_of(&daemon, "stays"), proxy);
    assert_eq!(daemon.run(&["prompt", "stays", "say three"]).exits(0).stdout, "three\n");
    daemon.end(Signal::SIGTERM).exits(0);
    gone(proxy);
}
