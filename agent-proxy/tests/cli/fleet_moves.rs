//! Where sessions of a fleet go: after the death of their node, with a move, by their key; and what counts over all nodes.

use std::{fs, path::Path, time::SystemTime};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    engine::Engine,
    fleet::{flags, owner, refused, rows, serve, state, texts, until_alive},
    harness::{Daemon, Place, until},
    lasting,
};

/// Flags of a node that goes on with sessions of others, and more of them.
fn taking<'a>(state: &'a [String; 2], more: &[&'a str]) -> Vec<&'a str> {
    state.iter().map(String::as_str).chain(["--take-over"]).chain(more.iter().copied()).collect()
}

/// Starts a session with a conversation that other nodes can go on with, and has its agent answer once.
#[track_caller]
fn talk(daemon: &Daemon<'_>, id: &str, more: &[&str]) {
    daemon.run(&[&["start", "--id", id, "--agent", "kept", "--home", "own"], more].concat()).exits(0);
    daemon.run(&["prompt", id, "say one"]).exits(0);
}

fn row(daemon: &Daemon<'_>, session: &str) -> Option<Value> {
    rows(daemon, "sessions").into_iter().find(|row| row["sessionId"] == session)
}

#[track_caller]
fn until_stored(daemon: &Daemon<'_>, session: &str) {
    until("its conversation is stored", || row(daemon, session)?["snapshot"].is_string().then_some(()));
}

#[test]
fn sessions_of_a_dead_node_go_where_label_agent_and_room_are() {
    let Some(engine) = Engine::start() else { return };
    let places = [lasting::place(), lasting::place(), lasting::place()];
    // It has neither the agent nor a bound: the least loaded of all.
    let idle = Place::new();
    let states = places.each_ref().map(state);
    let state_idle = state(&idle);
    let a = serve(&places[0], &engine, "a", &taking(&states[0], &["--label", "gpu=1", "--capacity", "2"]));
    let b = serve(&places[1], &engine, "b", &taking(&states[1], &["--label", "gpu=1"]));
    let c = serve(&places[2], &engine, "c", &taking(&states[2], &["--capacity", "1"]));
    let _idle = serve(&idle, &engine, "idle", &taking(&state_idle, &["--label", "gpu=1"]));
    until_alive(&a, 4);
    for (id, more) in [
        ("g-1", &["--node", "b", "--label", "gpu=1"][..]),
        ("over", &["--node", "b"]),
        ("p-1", &["--node", "b"]),
        ("p-2", &["--node", "b"]),
        ("rests", &["--node", "b"]),
        ("waits", &["--node", "b"]),
    ] {
        talk(&a, id, more);
        until_stored(&a, id);
    }
    a.run(&["kill", "over"]).exits(0);
    a.run(&["suspend", "rests"]).exits(0);
    let is_phase = |session: &str, phase: &str| row(&a, session).is_some_and(|row| row["phase"] == phase);
    until("the rows say so", || (is_phase("over", "ended") && is_phase("rests", "suspended")).then_some(()));
    b.end(Signal::SIGKILL);

    // One on a by its label, then one on each of a and c: they are full.
    until("three go on", || {
        ["g-1", "p-1", "p-2"].iter().all(|id| owner(&a, id).is_some_and(|node| node != "b")).then_some(())
    });
    assert_eq!(owner(&a, "g-1").as_deref(), Some("a"));
    let mut others = ["p-1", "p-2"].map(|id| owner(&a, id).expect("it is there"));
    others.sort();
    assert_eq!(others, ["a", "c"], "not both on one node");
    until("the one that was suspended is taken", || (owner(&a, "rests")? != "b").then_some(()));
    for id in ["g-1", "p-1", "p-2"] {
        until("it is resumed", || a.run(&["prompt", id, "say two"]).status.success().then_some(()));
    }
    assert_eq!(row(&a, "rests").expect("there")["phase"], "suspended", "nobody resumes it");
    // What is over stays where it was, and what has no room waits for some.
    assert_eq!((owner(&a, "over").as_deref(), owner(&a, "waits").as_deref()), (Some("b"), Some("b")));
    let on_c = ["p-1", "p-2"].into_iter().find(|id| owner(&a, id).as_deref() == Some("c")).expect("one of them");
    a.run(&["kill", on_c]).exits(0);
    until("it goes on where there is room now", || (owner(&a, "waits")? == "c").then_some(()));
    until("it is resumed", || a.run(&["prompt", "waits", "say two"]).status.success().then_some(()));
    drop(c);
}

#[test]
fn a_move_goes_where_label_and_agent_are_and_says_why_not_elsewhere() {
    let Some(engine) = Engine::start() else { return };
    let places = [lasting::place(), lasting::place(), lasting::place()];
    let states = places.each_ref().map(state);
    let labelled = |at: usize, more: &[&'static str]| -> Vec<String> {
        states[at].iter().cloned().chain(more.iter().map(|flag| (*flag).to_owned())).collect()
    };
    let flags_of = [labelled(0, &["--label", "gpu=1"]), labelled(1, &[]), labelled(2, &["--label", "gpu=1"])];
    let node = |at: usize, name: &'static str| {
        serve(&places[at], &engine, name, &flags_of[at].iter().map(String::as_str).collect::<Vec<_>>())
    };
    let (a, b, c) = (node(0, "a"), node(1, "b"), node(2, "c"));
    for daemon in [&a, &b, &c] {
        until_alive(daemon, 3);
    }
    talk(&b, "s-1", &["--node", "a", "--label", "gpu=1"]);
    let detail = refused(b.run(&["fleet", "move", "s-1", "--to", "b", "--json"]), "no-node");
    assert!(detail.contains("b has no label gpu=1"), "{detail}");
    assert_eq!(b.run(&["fleet", "move", "s-1"]).exits(0).stdout, "c\n", "b has no session, and no label");
    b.run(&["prompt", "s-1", "say two"]).exits(0);
    assert_eq!(row(&b, "s-1").expect("there")["labels"], json!({ "gpu": "1" }), "they go along");
}

#[test]
fn a_key_goes_with_its_session_and_ends_with_it() {
    let Some(engine) = Engine::start() else { return };
    let (here, there) = (lasting::place(), lasting::place());
    let (state_a, state_b) = (state(&here), state(&there));
    let a = serve(&here, &engine, "a", &state_a.each_ref().map(String::as_str));
    let b = serve(&there, &engine, "b", &state_b.each_ref().map(String::as_str));
    until_alive(&a, 2);
    until_alive(&b, 2);
    let start = |daemon: &Daemon<'_>, id: &str, more: &[&str]| {
        let key = ["start", "--id", id, "--key", "chat", "--agent", "kept", "--home", "own", "--json"];
        daemon.run(&[&key, more].concat())
    };
    let started = |daemon: &Daemon<'_>, id: &str| {
        let started = start(daemon, id, &[]).exits(0).json();
        started["sessionId"].as_str().unwrap_or_else(|| panic!("{started}")).to_owned()
    };
    start(&a, "s-1", &["--node", "b"]).exits(0);
    assert_eq!(started(&a, "other"), "s-1", "the key is its name");
    a.run(&["fleet", "move", "s-1", "--to", "a"]).exits(0);
    until("the other node knows", || (owner(&b, "s-1").as_deref() == Some("a")).then_some(()));
    assert_eq!(started(&b, "other"), "s-1", "where it is now");
    let detail = refused(start(&b, "other", &["--node", "b"]), "usage");
    assert!(detail.contains("the conversation is on node a"), "{detail}");

    // It ends with the session: the next one begins where it is asked for.
    b.run(&["kill", "s-1"]).exits(0);
    b.run(&["delete", "s-1"]).exits(0);
    until("nobody has it", || owner(&b, "s-1").is_none().then_some(()));
    until("the key is free", || start(&b, "s-2", &["--node", "a"]).status.success().then_some(()));
    assert_eq!(owner(&b, "s-2").as_deref(), Some("a"));

    // Its node is gone for good: the error says what to do, and that does it.
    let detail = refused(b.run(&["fleet", "forget", "a", "--json"]), "not-ended");
    assert!(detail.contains("node a is alive"), "{detail}");
    a.end(Signal::SIGKILL);
    let detail = refused(start(&b, "s-3", &[]), "node-silent");
    assert!(detail.contains("\"chat\"") && detail.contains("agent-proxy fleet forget a"), "{detail}");
    let forgotten = until("its lease is over", || {
        let ran = b.run(&["fleet", "forget", "a"]);
        ran.status.success().then_some(ran.stdout)
    });
    assert_eq!(forgotten, "s-2\n");
    assert_eq!(rows(&b, "nodes").len(), 1);
    assert_eq!(started(&b, "s-3"), "s-3");
    assert_eq!(owner(&b, "s-3").as_deref(), Some("b"));
}

#[test]
fn a_user_s_cap_counts_the_sessions_of_all_nodes() {
    let Some(engine) = Engine::start() else { return };
    let (here, there) = (Place::new(), Place::new());
    let a = serve(&here, &engine, "a", &["--max-per-user", "2"]);
    let b = serve(&there, &engine, "b", &["--max-per-user", "2"]);
    until_alive(&a, 2);
    until_alive(&b, 2);
    let start = |daemon: &Daemon<'_>, id: &str, user: &str, node: &str| {
        let more = ["--node", node, "--user", user, "--agent", "command", "--json", "--", "cat"];
        daemon.run(&[&["start", "--id", id], &more[..]].concat())
    };
    start(&a, "ada-1", "ada", "a").exits(0);
    start(&a, "ada-2", "ada", "b").exits(0);
    for (daemon, node) in [(&a, "a"), (&a, "b"), (&b, "a"), (&b, "b")] {
        let detail = refused(start(daemon, "ada-3", "ada", node), "too-many-sessions");
        assert!(detail.contains("user ada has 2 sessions on the nodes of the fleet, and may have 2"), "{detail}");
        assert_eq!(owner(daemon, "ada-3"), None, "nothing is claimed for it");
    }
    start(&a, "bob-1", "bob", "b").exits(0);
    b.run(&["kill", "ada-1"]).exits(0);
    until("there is room again", || start(&b, "ada-3", "ada", "b").status.success().then_some(()));
}

#[test]
fn the_events_of_all_sessions_of_all_nodes_are_in_one_order() {
    let Some(engine) = Engine::start() else { return };
    let (here, there) = (Place::new(), Place::new());
    let (state_a, state_b) = (state(&here), state(&there));
    let a = serve(&here, &engine, "a", &state_a.each_ref().map(String::as_str));
    let b = serve(&there, &engine, "b", &state_b.each_ref().map(String::as_str));
    until_alive(&a, 2);
    let mut followers = [("on-a", "a"), ("on-b", "b")].map(|(id, node)| {
        a.run(&["start", "--id", id, "--node", node, "--agent", "command", "--", "cat"]).exits(0);
        a.spawn(&["events", id, "--follow", "--json"])
    });
    for (at, id, text) in [(1, "on-b", "one"), (0, "on-a", "two"), (1, "on-b", "three")] {
        b.run(&["prompt", id, text]).exits(0);
        followers[at].until_printed(&[text]);
    }
    let lines = |daemon: &Daemon<'_>, more: &[&str]| -> Vec<Value> {
        let ran = daemon.run(&[&["events", "--all", "--json"], more].concat()).exits(0);
        ran.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let (of_a, of_b) = (lines(&a, &[]), lines(&b, &[]));
    let places = |events: &[Value]| -> Vec<String> {
        events.iter().map(|event| event["position"].as_str().expect("a position").to_owned()).collect()
    };
    let least = of_a.len().min(of_b.len());
    assert_eq!(of_a[..least], of_b[..least], "the same at each node");
    assert!(places(&of_a).is_sorted_by(|a, b| a < b), "{:?}", places(&of_a));
    for (id, most) in [("on-a", 1), ("on-b", 2)] {
        let own: Vec<&Value> = of_a.iter().filter(|event| event["eventStreamId"] == id).collect();
        let texts = own.iter().filter(|event| event["type"] == "stream:text").count();
        assert_eq!(texts, most, "{id}");
        let offsets: Vec<u64> =
            own.iter().map(|event| event["offset"].as_str().expect("an offset").parse().expect("a number")).collect();
        assert_eq!(offsets, (1..=offsets.len() as u64).collect::<Vec<_>>(), "{id}");
    }
    // From any position on, also within a message.
    for at in 0..least {
        let rest = lines(&b, &["--from", of_a[at]["position"].as_str().expect("a position")]);
        assert_eq!(rest[..least - at - 1], of_a[at + 1..least], "after {at}");
    }
    let has_some = |path: &str| b.get(path).contains("eventStreamId");
    assert!(has_some("/v1/events") && !has_some("/v1/events?from=latest"));
}

/// A hook that writes what it is told, waits as long as the file `hold` is beside it, and fails where `refuse` is.
fn hook(directory: &Path) -> String {
    let directory = directory.display();
    format!(
        "echo \"$AGENT_PROXY_OF_SESSION $AGENT_PROXY_FROM_NODE $AGENT_PROXY_TO_NODE $AGENT_PROXY_OF_CWD\" >> {directory}/told; \
         while test -e {directory}/hold; do sleep 0.05; done; if test -e {directory}/refuse; then echo no such branch; exit 3; fi"
    )
}

#[test]
fn a_hook_brings_the_workspace_before_a_session_goes_on() {
    let Some(engine) = Engine::start() else { return };
    let (here, there) = (lasting::place(), lasting::place());
    let (state_a, state_b) = (state(&here), state(&there));
    let (hook_a, hook_b) = (hook(&here.directory), hook(&there.directory));
    let a = serve(&here, &engine, "a", &taking(&state_a, &["--workspace-hook", &hook_a]));
    let b = serve(&there, &engine, "b", &taking(&state_b, &["--workspace-hook", &hook_b]));
    until_alive(&a, 2);
    until_alive(&b, 2);
    let work = here.directory.join("work");
    fs::create_dir_all(&work).expect("created");
    let work = work.to_str().expect("text");
    talk(&a, "s-1", &["--node", "a", "--cwd", work]);
    a.run(&["fleet", "move", "s-1", "--to", "b"]).exits(0);
    let told = |place: &Place| fs::read_to_string(place.directory.join("told")).unwrap_or_default();
    assert_eq!((told(&here), told(&there)), (String::new(), format!("s-1 a b {work}\n")));
    b.run(&["prompt", "s-1", "say two"]).exits(0);
    // And back again. What would have the session go on waits for the hook; a kill would not.
    fs::write(here.directory.join("hold"), "").expect("written");
    let moving = b.spawn(&["fleet", "move", "s-1", "--to", "a"]);
    until("the hook runs", || (told(&here) == format!("s-1 b a {work}\n")).then_some(()));
    let prompt = a.spawn(&["prompt", "s-1", "say held"]);
    assert!(a.run(&["sessions"]).exits(0).stdout.contains("suspended"));
    let released = SystemTime::now();
    fs::remove_file(here.directory.join("hold")).expect("removed");
    moving.end().exits(0);
    prompt.end().exits(0);
    let events = a.run(&["events", "s-1", "--json", "--type", "turn:started"]).exits(0).envelopes();
    assert!(events.last().expect("the prompt").created_at >= released, "it did not wait");
    assert_eq!(a.run(&["sessions", "-q"]).exits(0).stdout, "s-1\n", "the hook's own sessions are gone");

    // Where it fails the session is there, suspended, and the answer says why.
    fs::write(there.directory.join("refuse"), "").expect("written");
    let detail = refused(a.run(&["fleet", "move", "s-1", "--to", "b", "--json"]), "command-failed");
    assert!(detail.contains("no such branch"), "{detail}");
    assert_eq!(owner(&a, "s-1").as_deref(), Some("b"));
    until("it is suspended there", || (row(&a, "s-1")?["phase"] == "suspended").then_some(()));
    a.run(&["resume", "s-1"]).exits(0);
    fs::remove_file(there.directory.join("refuse")).expect("removed");

    // Of a node that is dead, too.
    a.run(&["prompt", "s-1", "say three"]).exits(0);
    until_stored(&a, "s-1");
    b.end(Signal::SIGKILL);
    until("it goes on", || (owner(&a, "s-1")? == "a").then_some(()));
    until("it is resumed", || a.run(&["prompt", "s-1", "say four"]).status.success().then_some(()));
    assert_eq!(told(&here).lines().last(), Some(&*format!("s-1 b a {work}")));
    let (offsets, _) = texts(&a, "s-1", "0");
    assert_eq!(offsets, (1..=*offsets.last().expect("some")).collect::<Vec<_>>(), "one stream, without a hole");
}

#[test]
fn the_metrics_of_a_node_tell_of_its_fleet() {
    let Some(engine) = Engine::start() else { return };
    let (here, there) = (lasting::place(), lasting::place());
    let (state_a, state_b) = (state(&here), state(&there));
    let address = engine.address();
    let a = here.serve_with(&flags(&address, "a", &state_a.each_ref().map(String::as_str)));
    let b = there.serve_with(&flags(
        &address,
        "b",
        &[state_b.each_ref().map(String::as_str), ["--capacity", "7"]].concat(),
    ));
    until_alive(&a, 2);
    until_alive(&b, 2);
    let value = |series: &str| {
        let text = a.get("/metrics");
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("agent_proxy_fleet_")?.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {series} in {text}")).parse::<f64>().expect("a number")
    };
    assert_eq!((value("nodes{state=\"alive\"}"), value("nodes{state=\"silent\"}")), (2.0, 0.0));
    assert_eq!(value("capacity{node=\"b\"}"), 7.0);
    assert_eq!(value("lease_fence_seconds"), 4.0);
    assert!(value("lease_age_seconds") < 4.0);
    let before = value("requests_total{outcome=\"answered\"}");
    talk(&a, "s-1", &["--node", "b"]);
    assert!(value("requests_total{outcome=\"answered\"}") >= before + 2.0, "a start and a prompt");
    b.run(&["fleet", "move", "s-1", "--to", "a"]).exits(0);
    a.run(&["fleet", "move", "s-1", "--to", "b"]).exits(0);
    assert_eq!(value("moves_total{outcome=\"done\"}"), 1.0, "away from this one");
    a.run(&["fleet", "move", "s-1", "--to", "z", "--json"]).exits(8);
    until("nothing waits for the log", || (value("backlog_events") == 0.0).then_some(()));
    until("the beat tells its load", || (value("sessions{node=\"b\"}") == 1.0).then_some(()));
    b.end(Signal::SIGKILL);
    until("it is silent", || (value("nodes{state=\"silent\"}") == 1.0).then_some(()));
    refused(a.run(&["prompt", "s-1", "say two", "--json"]), "node-silent");
    assert!(value("requests_total{outcome=\"silent\"}") >= 1.0);
    let nodes = rows(&a, "nodes");
    let layers = nodes[0]["layers"].as_array().expect("a list");
    assert!(layers.contains(&json!("baseline")), "{nodes:?}");
    assert!(nodes.iter().all(|node| node["backlog"].is_u64() && node["takesOver"] == json!(false)), "{nodes:?}");
}
