//! Daemons as nodes of a fleet, at a nats-server of the test's own.

use std::thread;

use ipc_protocol::Event;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    documented::documented,
    engine::Engine,
    harness::{Daemon, Place, Ran, gone, process, until},
    lasting,
    network::{bearer, send, token},
};

/// Flags of a node.
pub(crate) fn flags<'a>(address: &'a str, name: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["--fleet", address, "--node", name, "--lease", "6s"], more].concat()
}

pub(crate) fn serve<'a>(place: &'a Place, engine: &Engine, name: &str, more: &[&str]) -> Daemon<'a> {
    place.serve_with(&flags(&engine.address(), name, more))
}

/// Rows of `fleet nodes` or `fleet sessions`.
#[track_caller]
pub(crate) fn rows(daemon: &Daemon<'_>, what: &str) -> Vec<Value> {
    let listed = daemon.run(&["fleet", what, "--json"]).exits(0).json();
    listed.as_array().unwrap_or_else(|| panic!("{listed}")).clone()
}

/// Node that has a session, as a daemon sees it.
#[track_caller]
pub(crate) fn owner(daemon: &Daemon<'_>, session: &str) -> Option<String> {
    let rows = rows(daemon, "sessions");
    let row = rows.iter().find(|row| row["sessionId"] == session)?;
    Some(row["node"].as_str().expect("a name").to_owned())
}

/// Waits until a daemon sees so many nodes alive.
#[track_caller]
pub(crate) fn until_alive(daemon: &Daemon<'_>, nodes: usize) {
    until("the nodes see each other", || {
        let alive = rows(daemon, "nodes").iter().filter(|node| node["presence"] == "alive").count();
        (alive == nodes).then_some(())
    });
}

#[track_caller]
pub(crate) fn refused(ran: Ran, kind: &str) -> String {
    let problem = ran.problem();
    assert_eq!(problem["type"], kind, "{problem}");
    problem["detail"].as_str().expect("text").to_owned()
}

#[test]
fn a_session_starts_where_its_label_is_and_any_node_answers_for_it() {
    let Some(engine) = Engine::start() else { return };
    let (here, there) = (Place::new(), Place::new());
    let a = serve(&here, &engine, "a", &[]);
    let b = serve(&there, &engine, "b", &["--label", "gpu=1", "--capacity", "5"]);
    until_alive(&a, 2);
    a.run(&["start", "--id", "s-1", "--label", "gpu=1", "--agent", "command", "--", "cat"]).exits(0);
    assert_eq!(owner(&a, "s-1").as_deref(), Some("b"));
    assert_eq!(owner(&b, "s-1").as_deref(), Some("b"));

    // All through the node that does not have it: follow, prompt, processes, lists, kill.
    let mut events = a.spawn(&["events", "s-1", "--follow", "--json"]);
    a.run(&["prompt", "s-1", "hello"]).exits(0);
    events.until_printed(&["hello"]);
    let pids = a.run(&["ps", "s-1", "-q"]).exits(0).stdout;
    let cat = process(pids.trim().parse().expect("a pid"));
    for daemon in [&a, &b] {
        assert_eq!(daemon.run(&["sessions", "-q"]).exits(0).stdout, "s-1\n");
    }
    let receipt = a.run(&["kill", "s-1", "--json"]).exits(0).json();
    assert_eq!(receipt["survivors"], json!([]), "{receipt}");
    gone(cat);
    events.until(|envelope| matches!(envelope.event, Event::SessionEnded { .. }).then_some(()));
    events.end().exits(0);

    // Its end is its owner's; once it is deleted it is nobody's.
    a.run(&["delete", "s-1"]).exits(0);
    until("its row is removed", || owner(&a, "s-1").is_none().then_some(()));
    let nodes = documented("fleet nodes", rows(&a, "nodes").into());
    let node = nodes.as_array().expect("rows").iter().find(|node| node["node"] == "b").expect("it is listed");
    assert_eq!((&node["labels"]["gpu"], &node["capacity"], &node["isSelf"]), (&json!("1"), &json!(5), &json!(false)));
}

#[test]
fn an_owner_that_is_killed_is_named_and_carries_a_kill_out_when_it_is_back() {
    let Some(engine) = Engine::start() else { return };
    let (here, there) = (Place::new(), Place::new());
    let state = there.directory.join("state");
    let audit = there.directory.join("audit.jsonl");
    let more = ["--state-dir", state.to_str().expect("text"), "--audit-file", audit.to_str().expect("text")];
    let a = serve(&here, &engine, "a", &[]);
    let b = serve(&there, &engine, "b", &more);
    until_alive(&a, 2);
    a.run(&["start", "--id", "s-1", "--node", "b", "--agent", "command", "--", "cat"]).exits(0);
    let cat = process(a.run(&["ps", "s-1", "-q"]).exits(0).stdout.trim().parse().expect("a pid"));
    b.end(Signal::SIGKILL);
    gone(cat);

    let detail = refused(a.run(&["prompt", "s-1", "hello", "--json"]), "node-silent");
    assert!(detail.contains("node b") && detail.contains("its last beat was at 2"), "{detail}");
    let detail = refused(a.run(&["kill", "s-1", "--json"]), "node-silent");
    assert!(detail.contains("the kill is remembered"), "{detail}");
    let row = rows(&a, "sessions").remove(0);
    assert_eq!((&row["sessionId"], &row["node"], &row["kill"]["atNode"]), (&json!("s-1"), &json!("b"), &json!("a")));
    // A list says what it lacks.
    for list in [&["sessions", "-q"][..], &["sessions", "--all", "-q"], &["ps"]] {
        let listed = a.run(list).exits(0);
        assert!(listed.stdout.is_empty() && listed.stderr.contains("they do not answer: b"), "{listed:?}");
    }

    let b = serve(&there, &engine, "b", &more);
    until("the kill is carried out", || rows(&a, "sessions")[0]["kill"].is_null().then_some(()));
    // Who asked for it, and where, is in its audit log.
    let call = until("it is in the audit log", || {
        let text = std::fs::read_to_string(&audit).expect("the audit log");
        let mut calls = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        calls.find(|call| !call["askedAtNode"].is_null())
    });
    assert_eq!((&call["caller"], &call["askedAtNode"], &call["session"]), (&json!("host"), &json!("a"), &json!("s-1")));
    assert_eq!((&call["route"], &call["outcome"]), (&json!("/v1/sessions/{id}/kill"), &json!("done")), "{call}");
    until_alive(&a, 2);
    let recorded = a.run(&["sessions", "--all", "--json"]).exits(0).json();
    assert_eq!((&recorded[0]["sessionId"], &recorded[0]["status"]), (&json!("s-1"), &json!("ended")), "{recorded}");
    assert_eq!(owner(&b, "s-1").as_deref(), Some("b"));
}

#[test]
fn a_node_that_ends_says_so_and_takes_its_sessions_along() {
    let Some(engine) = Engine::start() else { return };
    let (here, there) = (Place::new(), Place::new());
    let a = serve(&here, &engine, "a", &[]);
    let b = serve(&there, &engine, "b", &[]);
    until_alive(&a, 2);
    a.run(&["start", "--id", "s-1", "--node", "b", "--agent", "command", "--", "cat"]).exits(0);
    b.end(Signal::SIGINT).exits(0);
    until("it is seen to leave", || {
        rows(&a, "nodes").iter().any(|node| node["node"] == "b" && node["presence"] == "left").then_some(())
    });
    // Without a state directory nothing of it is kept.
    until("its session is nobody's", || owner(&a, "s-1").is_none().then_some(()));
    let detail = refused(a.run(&["start", "--node", "b", "--agent", "command", "--json", "--", "cat"]), "no-node");
    assert!(detail.contains("node b is gone"), "{detail}");
}

#[test]
fn ids_are_unique_over_the_fleet_and_beginnings_that_several_have_are_refused() {
    let Some(engine) = Engine::start() else { return };
    let (here, there) = (Place::new(), Place::new());
    let a = serve(&here, &engine, "a", &[]);
    let b = serve(&there, &engine, "b", &[]);
    until_alive(&a, 2);
    until_alive(&b, 2);
    let start = |daemon: &Daemon<'_>, id: &str, node: &str| {
        daemon.run(&["start", "--id", id, "--node", node, "--agent", "command", "--json", "--", "cat"])
    };
    start(&a, "s-1", "a").exits(0);
    let detail = refused(start(&b, "s-1", "b"), "duplicate-session");
    assert!(detail.contains("node a"), "{detail}");
    start(&a, "s-2", "b").exits(0);
    let minted = |node: &str| {
        let start = ["start", "--node", node, "--agent", "command", "--", "cat"];
        a.run(&start).exits(0).stdout.trim().to_owned()
    };
    let (one, two) = (minted("a"), minted("b"));
    until("all are seen", || (rows(&a, "sessions").len() == 4).then_some(()));
    let common: String = one.chars().zip(two.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a).collect();
    let detail = refused(a.run(&["prompt", &common, "hello", "--json"]), "ambiguous-id");
    assert!(detail.contains(&format!("{one}, {two}")), "{detail}");
    let status = a.run(&["status", &two[..=common.len()], "--json"]).exits(0).json();
    assert_eq!(status["session"]["sessionId"], *two, "by a beginning of its id");
    refused(a.run(&["prompt", "s-", "hello", "--json"]), "unknown-session");
    // What has a connection of its own is not passed on.
    let detail = refused(a.run(&["shell", "s-2", "--json", "--", "true"]), "other-node");
    assert!(detail.contains("node b"), "{detail}");
    assert_eq!(refused(a.run(&["prompt", "s-3", "hello", "--json"]), "unknown-session").matches("s-3").count(), 1);
}

#[test]
fn a_start_that_no_node_fits_says_why_of_each() {
    let Some(engine) = Engine::start() else { return };
    let (here, there) = (Place::new(), Place::new());
    let a = serve(&here, &engine, "a", &["--label", "zone=1", "--capacity", "1"]);
    let b = serve(&there, &engine, "b", &["--label", "zone=2", "--capacity", "1"]);
    until_alive(&a, 2);
    until_alive(&b, 2);
    let start = |more: &[&str]| a.run(&[&["start", "--json", "--agent", "command"], more, &["--", "cat"]].concat());
    let detail = refused(start(&["--label", "zone=3"]), "no-node");
    assert!(detail.contains("a has the label zone=1") && detail.contains("b has the label zone=2"), "{detail}");
    assert!(refused(start(&["--node", "z"]), "no-node").contains("node z is none of this fleet"));
    // A full node refuses, and the other one has room; then there is none.
    start(&[]).exits(0);
    start(&[]).exits(0);
    refused(start(&[]), "too-many-sessions");
    assert_eq!(rows(&a, "sessions").len(), 2);
}

#[test]
fn two_starts_with_one_key_at_two_nodes_are_one_session() {
    let Some(engine) = Engine::start() else { return };
    let places = [Place::new(), Place::new()];
    let address = engine.address();
    let nodes =
        [("a", &places[0]), ("b", &places[1])].map(|(name, place)| place.serve_network(&flags(&address, name, &[])));
    for (daemon, _) in &nodes {
        until_alive(daemon, 2);
    }
    let addresses = nodes.each_ref().map(|(daemon, address)| (*address, token(daemon, &["ci"])));
    let started = addresses.map(|(address, token)| {
        thread::spawn(move || {
            let headers = [bearer(&token), vec!["Idempotency-Key: k-1".to_owned()]].concat();
            let body = json!({ "agent": "command", "command": ["cat"] }).to_string();
            send(address, "POST /v1/sessions", &headers, &body)
        })
    });
    let answers = started.map(|start| start.join().expect("answered"));
    let ids =
        answers.each_ref().map(|answer| answer.body["sessionId"].as_str().unwrap_or_else(|| panic!("{}", answer.text)));
    assert_eq!(ids[0], ids[1]);
    assert_eq!(rows(&nodes[0].0, "sessions").len(), 1);
}

#[test]
fn a_user_sees_sessions_of_its_own_on_other_nodes_and_no_others() {
    let Some(engine) = Engine::start() else { return };
    let (here, there) = (Place::new(), Place::new());
    let address = engine.address();
    let (a, listens) = here.serve_network(&flags(&address, "a", &[]));
    let _b = serve(&there, &engine, "b", &[]);
    until_alive(&a, 2);
    for (id, user) in [("ada-1", "ada"), ("bob-1", "bob")] {
        a.run(&["start", "--id", id, "--node", "b", "--user", user, "--agent", "command", "--", "cat"]).exits(0);
    }
    let ada = bearer(&token(&a, &["ada", "--user", "ada"]));
    let of = |path: &str| send(listens, path, &ada, "");
    assert_eq!(of("GET /v1/sessions/ada-1").body["sessionId"], "ada-1");
    assert_eq!(of("GET /v1/sessions/bob-1").status, 404);
    assert_eq!(of("POST /v1/sessions/bob-1/kill").status, 404);
    for path in ["GET /v1/sessions", "GET /v1/fleet/sessions"] {
        let listed = of(path).body;
        let ids: Vec<&str> =
            listed.as_array().expect("a list").iter().filter_map(|row| row["sessionId"].as_str()).collect();
        assert_eq!(ids, ["ada-1"], "{path}");
    }
    // A token that may only read may not kill there either.
    let reader = bearer(&token(&a, &["reader", "--role", "read"]));
    assert_eq!(send(listens, "POST /v1/sessions/ada-1/kill", &reader, "").status, 403);
    // Nor start: nothing is claimed for it.
    let start = r#"{"sessionId":"r-1","agent":"command","command":["cat"]}"#;
    assert_eq!(send(listens, "POST /v1/sessions", &reader, start).status, 403);
    assert_eq!(owner(&a, "r-1"), None);
    // Nodes have others take a session, and admins of all users.
    let ada_admin = bearer(&token(&a, &["ada-admin", "--role", "admin", "--user", "ada"]));
    for caller in [&ada, &reader, &ada_admin] {
        assert_eq!(send(listens, "POST /v1/fleet/sessions/ada-1/take?resume=false", caller, "").status, 403);
    }
}

#[test]
fn a_start_that_is_refused_leaves_the_row_of_the_session_that_is_there() {
    let Some(engine) = Engine::start() else { return };
    let (here, there) = (Place::new(), Place::new());
    let a = serve(&here, &engine, "a", &[]);
    let _b = serve(&there, &engine, "b", &[]);
    until_alive(&a, 2);
    let start = |agent: &str| a.run(&["start", "--id", "s-1", "--node", "b", "--agent", agent, "--json", "--", "cat"]);
    start("command").exits(0);
    refused(start("command"), "duplicate-session");
    assert_eq!(owner(&a, "s-1").as_deref(), Some("b"));
    a.run(&["prompt", "s-1", "hello"]).exits(0);
}

#[test]
fn the_key_of_a_node_is_hidden_from_its_sessions() {
    let Some(engine) = Engine::start() else { return };
    let place = Place::new();
    let keys = place.directory.join("keys");
    place.run(&["fleet", "accounts", "--directory", keys.to_str().expect("text"), "a"]).exits(0);
    let key = keys.join("a.nk");
    let key = key.to_str().expect("text");
    let seed = std::fs::read_to_string(key).expect("a seed");
    // Nobody listens: the key alone is a reason.
    let a = serve(&place, &engine, "a", &["--fleet-nkey", key]);
    a.run(&["start", "--id", "s-1", "--agent", "command", "--", "sh"]).exits(0);
    let mut events = a.spawn(&["events", "s-1", "--follow", "--json"]);
    a.run(&["prompt", "s-1", &format!("cat {key} 2>&1; echo it is read")]).exits(0);
    events.until_printed(&["it is read"]);
    let (_, text) = texts(&a, "s-1", "0");
    assert!(text.contains("it is read") && !text.contains(seed.trim()), "{text}");
}

#[test]
fn an_id_that_was_deleted_shows_the_new_events_alone() {
    let Some(engine) = Engine::start() else { return };
    let (here, there) = (Place::new(), Place::new());
    let (state_a, state_b) = (state(&here), state(&there));
    let a = serve(&here, &engine, "a", &state_a.each_ref().map(String::as_str));
    let b = serve(&there, &engine, "b", &state_b.each_ref().map(String::as_str));
    until_alive(&a, 2);
    for text in ["old", "new"] {
        a.run(&["start", "--id", "s-1", "--node", "b", "--agent", "command", "--", "cat"]).exits(0);
        let mut events = a.spawn(&["events", "s-1", "--follow", "--json"]);
        a.run(&["prompt", "s-1", text]).exits(0);
        events.until_printed(&[text]);
        if text == "old" {
            a.run(&["kill", "s-1"]).exits(0);
            a.run(&["delete", "s-1"]).exits(0);
        }
    }
    assert_eq!(texts(&a, "s-1", "0").1, "new\n");
    b.end(Signal::SIGKILL);
    assert_eq!(texts(&a, "s-1", "0").1, "new\n", "of the fleet's log");
}

#[test]
fn an_event_that_is_too_long_for_the_log_ends_its_session_alone() {
    let Some(engine) = Engine::start_with("max_payload: 32KB") else { return };
    let place = Place::new();
    let state = state(&place);
    let a = serve(&place, &engine, "a", &state.each_ref().map(String::as_str));
    for id in ["long", "short"] {
        a.run(&["start", "--id", id, "--agent", "command", "--", "cat"]).exits(0);
    }
    let cat = process(a.run(&["ps", "long", "-q"]).exits(0).stdout.trim().parse().expect("a pid"));
    let _ = a.run(&["prompt", "long", &"x".repeat(60_000)]);
    gone(cat);
    until("it is over", || (a.run(&["sessions", "-q"]).exits(0).stdout == "short\n").then_some(()));
    let mut events = a.spawn(&["events", "short", "--follow", "--json"]);
    a.run(&["prompt", "short", "hello"]).exits(0);
    events.until_printed(&["hello"]);
}

#[test]
fn a_name_that_is_taken_and_a_fleet_that_is_not_there_end_a_daemon_at_once() {
    let place = Place::new();
    let refused_start = |address: &str| place.run(&[&["serve", "--json"][..], &flags(address, "a", &[])].concat());
    let detail = refused(refused_start("nats://127.0.0.1:1"), "fleet-unreachable");
    assert!(detail.contains("nats://127.0.0.1:1"), "{detail}");
    let Some(engine) = Engine::start() else { return };
    let other = Place::new();
    let _a = serve(&other, &engine, "a", &[]);
    assert!(refused(refused_start(&engine.address()), "already-exists").contains("node a is in the fleet already"));
}

#[test]
fn a_daemon_without_a_fleet_says_so() {
    let place = Place::new();
    let daemon = place.serve();
    assert!(refused(daemon.run(&["fleet", "nodes", "--json"]), "unsupported").contains("--fleet"));
    let started = daemon.run(&["start", "--node", "b", "--agent", "command", "--json", "--", "cat"]);
    assert!(refused(started, "unsupported").contains("no fleet"));
}

pub(crate) fn state(place: &Place) -> [String; 2] {
    ["--state-dir".to_owned(), place.directory.join("state").to_str().expect("text").to_owned()]
}

/// Text of a session's events, as a daemon has them.
#[track_caller]
pub(crate) fn texts(daemon: &Daemon<'_>, session: &str, from: &str) -> (Vec<u64>, String) {
    let events = daemon.run(&["events", session, "--json", "--from", from]).exits(0).envelopes();
    let text = events.iter().filter_map(|envelope| match &envelope.event {
        Event::Text { text } => Some(text.as_str()),
        _ => None,
    });
    (events.iter().map(|envelope| envelope.offset).collect(), text.collect())
}

#[test]
fn events_are_read_where_their_owner_is_dead() {
    let Some(engine) = Engine::start() else { return };
    let (here, there) = (Place::new(), Place::new());
    let (state_a, state_b) = (state(&here), state(&there));
    let a = serve(&here, &engine, "a", &state_a.each_ref().map(String::as_str));
    let b = serve(&there, &engine, "b", &state_b.each_ref().map(String::as_str));
    until_alive(&a, 2);
    a.run(&["start", "--id", "s-1", "--node", "b", "--agent", "command", "--", "cat"]).exits(0);
    let mut events = a.spawn(&["events", "s-1", "--follow", "--json"]);
    for text in ["one", "two", "three"] {
        a.run(&["prompt", "s-1", text]).exits(0);
        events.until_printed(&[text]);
    }
    let (offsets, text) = texts(&a, "s-1", "0");
    assert_eq!(text, "one\ntwo\nthree\n");
    b.end(Signal::SIGKILL);
    let (logged, text) = texts(&a, "s-1", "0");
    assert_eq!((&logged[..offsets.len()], text.as_str()), (&offsets[..], "one\ntwo\nthree\n"));
    let (rest, _) = texts(&a, "s-1", &offsets[3].to_string());
    assert_eq!(rest, logged[4..]);
}

#[test]
fn the_last_events_of_a_node_that_ends_are_in_the_fleets_log() {
    let Some(engine) = Engine::start() else { return };
    let (here, there) = (Place::new(), Place::new());
    let (state_a, state_b) = (state(&here), state(&there));
    let a = serve(&here, &engine, "a", &state_a.each_ref().map(String::as_str));
    let b = serve(&there, &engine, "b", &state_b.each_ref().map(String::as_str));
    until_alive(&a, 2);
    for id in ["s-1", "s-2", "s-3"] {
        a.run(&["start", "--id", id, "--node", "b", "--agent", "command", "--", "cat"]).exits(0);
        a.run(&["prompt", id, "hello"]).exits(0);
    }
    b.end(Signal::SIGTERM).exits(0);
    for id in ["s-1", "s-2", "s-3"] {
        let events = a.run(&["events", id, "--json"]).exits(0).envelopes();
        let offsets: Vec<u64> = events.iter().map(|envelope| envelope.offset).collect();
        assert_eq!(offsets, (1..=events.len() as u64).collect::<Vec<_>>());
        let last = &events.last().expect("some").event;
        assert!(matches!(last, Event::SessionEnded { .. }), "{id}: {last:?}");
    }
}

#[test]
fn a_session_moves_with_its_conversation_and_its_events_go_on() {
    let Some(engine) = Engine::start() else { return };
    let (here, there) = (lasting::place(), lasting::place());
    let (state_a, state_b) = (state(&here), state(&there));
    let a = serve(&here, &engine, "a", &state_a.each_ref().map(String::as_str));
    let b = serve(&there, &engine, "b", &state_b.each_ref().map(String::as_str));
    until_alive(&a, 2);
    until_alive(&b, 2);
    a.run(&["start", "--id", "s-1", "--node", "b", "--agent", "kept", "--home", "own"]).exits(0);
    a.run(&["prompt", "s-1", "say one"]).exits(0);
    let (before, _) = texts(&a, "s-1", "0");
    assert_eq!(a.run(&["fleet", "move", "s-1", "--to", "a"]).exits(0).stdout, "a\n");
    assert_eq!(owner(&b, "s-1").as_deref(), Some("a"));
    b.run(&["prompt", "s-1", "say two"]).exits(0);
    // One stream, without a hole, from either node.
    let (after, _) = texts(&b, "s-1", "0");
    assert_eq!(after, (1..=*after.last().expect("some")).collect::<Vec<_>>());
    assert!(after.len() > before.len());
    let messages = documented("fleet sessions", b.run(&["fleet", "sessions", "--json"]).exits(0).json());
    assert_eq!(messages[0]["epoch"], 2, "{messages}");
    // And away again, with all that the node has.
    let drained = b.run(&["fleet", "drain", "a", "--json"]).exits(0).json();
    assert_eq!((&drained["moved"][0]["to"], &drained["stay"]), (&json!("b"), &json!([])), "{drained}");
    assert_eq!(owner(&a, "s-1").as_deref(), Some("b"));
    b.run(&["prompt", "s-1", "say three"]).exits(0);
}

#[test]
fn prompts_that_wait_go_on_waiting_at_the_next_owner() {
    let Some(engine) = Engine::start() else { return };
    let (here, there) = (lasting::place(), lasting::place());
    let (state_a, state_b) = (state(&here), state(&there));
    let a = serve(&here, &engine, "a", &state_a.each_ref().map(String::as_str));
    let b = serve(&there, &engine, "b", &state_b.each_ref().map(String::as_str));
    until_alive(&a, 2);
    until_alive(&b, 2);
    a.run(&["start", "--id", "s-1", "--node", "b", "--agent", "kept", "--home", "own"]).exits(0);
    a.run(&["prompt", "s-1", "say one", "--queue"]).exits(0);
    let mut events = a.spawn(&["events", "s-1", "--follow", "--json"]);
    a.run(&["prompt", "s-1", "say two\nwait", "--no-wait"]).exits(0);
    events.until(|e| matches!(&e.event, Event::Text { text } if text == "two\n").then_some(()));
    for text in ["say three", "say four"] {
        a.run(&["prompt", "s-1", text, "--queue", "--no-wait"]).exits(0);
    }
    a.run(&["fleet", "move", "s-1", "--to", "a"]).exits(0);
    until("both are done", || texts(&a, "s-1", "0").1.ends_with("three\nfour\n").then_some(()));
    let (offsets, text) = texts(&b, "s-1", "0");
    assert_eq!(offsets, (1..=*offsets.last().expect("some")).collect::<Vec<_>>(), "one stream, without a hole");
    assert_eq!(text, "one\ntwo\nthree\nfour\n", "each once");
}

#[test]
fn a_session_of_a_node_that_died_goes_on_elsewhere() {
    let Some(engine) = Engine::start() else { return };
    let (here, there) = (lasting::place(), lasting::place());
    let (state_a, state_b) = (state(&here), state(&there));
    let flags_a: Vec<&str> = state_a.iter().map(String::as_str).chain(["--take-over"]).collect();
    let flags_b: Vec<&str> = state_b.iter().map(String::as_str).chain(["--take-over"]).collect();
    let a = serve(&here, &engine, "a", &flags_a);
    let b = serve(&there, &engine, "b", &flags_b);
    until_alive(&a, 2);
    a.run(&["start", "--id", "s-1", "--node", "b", "--agent", "kept", "--home", "own"]).exits(0);
    a.run(&["prompt", "s-1", "say one"]).exits(0);
    until("its conversation is stored", || rows(&a, "sessions")[0]["snapshot"].is_string().then_some(()));
    b.end(Signal::SIGKILL);
    until("the other node has it", || (owner(&a, "s-1").as_deref() == Some("a")).then_some(()));
    until("it is resumed", || {
        let listed = a.run(&["sessions", "--json"]).exits(0).json();
        (listed[0]["state"] == "idle" || listed[0]["status"] == "idle").then_some(())
    });
    a.run(&["prompt", "s-1", "say two"]).exits(0);
    let (offsets, _) = texts(&a, "s-1", "0");
    assert_eq!(offsets, (1..=*offsets.last().expect("some")).collect::<Vec<_>>(), "one stream, without a hole");

    // The one that died comes back, and leaves it alone.
    let b = serve(&there, &engine, "b", &flags_b);
    until_alive(&b, 2);
    until("it is not there any more", || {
        (rows(&b, "sessions")[0]["node"] == "a" && b.run(&["status", "s-1", "--json"]).status.success()).then_some(())
    });
    b.run(&["prompt", "s-1", "say three"]).exits(0);
}

#[test]
fn a_session_whose_lease_was_over_goes_on_at_its_node_where_nobody_has_taken_it() {
    let Some(engine) = Engine::start() else { return };
    let place = lasting::place();
    let state = state(&place);
    let flags: Vec<&str> = state.iter().map(String::as_str).chain(["--take-over"]).collect();
    let a = serve(&place, &engine, "a", &flags);
    a.run(&["start", "--id", "s-1", "--agent", "kept", "--home", "own"]).exits(0);
    a.run(&["prompt", "s-1", "say one"]).exits(0);
    let agent = a.run(&["ps", "s-1", "-q"]).exits(0).stdout;
    let agent = process(agent.lines().next().expect("a process").parse().expect("a pid"));

    // Nobody acknowledges its beats: its own fork server ends the session.
    let server = nix::unistd::Pid::from_raw(engine.pid(0));
    nix::sys::signal::kill(server, Signal::SIGSTOP).expect("it is there");
    gone(agent);
    nix::sys::signal::kill(server, Signal::SIGCONT).expect("it is there");
    until("a prompt resumes it", || a.run(&["prompt", "s-1", "history"]).status.success().then_some(()));
    let (offsets, text) = texts(&a, "s-1", "0");
    assert_eq!(offsets, (1..=*offsets.last().expect("some")).collect::<Vec<_>>());
    assert!(text.contains("1 before"), "{text}");
}

#[test]
fn a_session_that_was_deleted_is_not_taken_over_from_what_was_stored_of_it() {
    let Some(engine) = Engine::start() else { return };
    let place = lasting::place();
    let state = state(&place);
    let flags: Vec<&str> = state.iter().map(String::as_str).chain(["--take-over"]).collect();
    let a = serve(&place, &engine, "a", &flags);
    for round in 0..3 {
        a.run(&["start", "--id", "s-1", "--agent", "kept", "--home", "own"]).exits(0);
        a.run(&["prompt", "s-1", &format!("say {round}")]).exits(0);
        let text = texts(&a, "s-1", "0").1;
        assert!(text.contains(&round.to_string()), "{text}");
        assert!((0..round).all(|before| !text.contains(&before.to_string())), "{text}");
        until("its conversation is stored", || rows(&a, "sessions")[0]["snapshot"].is_string().then_some(()));
        a.run(&["kill", "s-1"]).exits(0);
        a.run(&["delete", "s-1"]).exits(0);
        // The second start comes before the first deletion may be carried out.
        if round > 0 {
            until("its row is removed", || owner(&a, "s-1").is_none().then_some(()));
            assert_eq!(a.run(&["sessions", "--all", "-q"]).exits(0).stdout, "");
        }
    }
}

#[test]
fn a_node_that_was_stopped_finds_its_sessions_elsewhere_when_it_goes_on() {
    let Some(engine) = Engine::start() else { return };
    let (here, there) = (lasting::place(), lasting::place());
    let (state_a, state_b) = (state(&here), state(&there));
    let flags_a: Vec<&str> = state_a.iter().map(String::as_str).chain(["--take-over"]).collect();
    let flags_b: Vec<&str> = state_b.iter().map(String::as_str).chain(["--take-over"]).collect();
    let a = serve(&here, &engine, "a", &flags_a);
    let b = serve(&there, &engine, "b", &flags_b);
    until_alive(&a, 2);
    a.run(&["start", "--id", "s-1", "--node", "b", "--agent", "kept", "--home", "own"]).exits(0);
    a.run(&["prompt", "s-1", "say one"]).exits(0);
    until("its conversation is stored", || rows(&a, "sessions")[0]["snapshot"].is_string().then_some(()));
    let agent = a.run(&["ps", "s-1", "-q"]).exits(0).stdout;
    let agent = process(agent.lines().next().expect("a process").parse().expect("a pid"));

    // The daemon is stopped, and its fork server is not: that ends the session before anybody else goes on with it.
    b.signal(Signal::SIGSTOP);
    gone(agent);
    assert_eq!(owner(&a, "s-1").as_deref(), Some("b"), "nobody has it yet");
    until("the other node has it", || (owner(&a, "s-1").as_deref() == Some("a")).then_some(()));
    b.signal(Signal::SIGCONT);
    until_alive(&a, 2);
    until("the one that was stopped knows it", || (owner(&b, "s-1").as_deref() == Some("a")).then_some(()));
    until("it is resumed", || b.run(&["prompt", "s-1", "say two"]).status.success().then_some(()));
    let (offsets, text) = texts(&b, "s-1", "0");
    assert_eq!(offsets, (1..=*offsets.last().expect("some")).collect::<Vec<_>>(), "one stream, without a hole");
    assert!(text.contains("one") && text.contains("two"), "{text}");
}
