//! Users of this machine behind a daemon of root's: sessions of each run as that user.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    os::unix::fs::{MetadataExt as _, symlink},
};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::{
    harness::{DEADLINE, Daemon, Place, gone, not_run, process},
    network::{bearer, send, token},
};

/// Accounts that each system has.
const ACCOUNTS: [(&str, u32); 2] = [("nobody", 65534), ("games", 5)];

/// Says for whom it runs, and what it can read of root's and of the other's; then it stays.
const CURIOUS: &str = r#"
id -u
cat "$0/config/token" "$0/config/tokens.json" "$0/state/log.sqlite" "$0/users/games/state/log.sqlite" >/dev/null 2>&1 && echo read
echo "loo"ked
exec sleep 300
"#;

fn serve<'a>(place: &'a Place, flags: &[&str]) -> Option<(Daemon<'a>, SocketAddr)> {
    if !nix::unistd::geteuid().is_root() {
        not_run("users: takes root to become other users");
        return None;
    }
    let (users, state) = (place.directory.join("users"), place.directory.join("state"));
    let own = ["--run-as-user", users.to_str().expect("text"), "--state-dir", state.to_str().expect("text")];
    Some(place.serve_network(&[&own, flags].concat()))
}

fn start(address: SocketAddr, headers: &[String], id: &str, command: &[&str]) -> (u16, String) {
    let body = json!({ "sessionId": id, "agent": "command", "command": command }).to_string();
    let answer = send(address, "POST /v1/sessions", headers, &body);
    (answer.status, answer.text)
}

#[test]
fn each_user_s_sessions_run_as_that_user() {
    let place = Place::new();
    let Some((daemon, address)) = serve(&place, &["--max-sessions", "2"]) else { return };
    let [nobody, games] = ACCOUNTS.map(|(name, _)| bearer(&token(&daemon, &[name, "--user", name])));
    let here = place.directory.to_str().expect("text");
    let (status, said) = start(address, &games, "g-1", &["cat"]);
    assert_eq!(status, 201, "{said}");
    let (status, said) = start(address, &nobody, "n-1", &["sh", "-c", CURIOUS, here]);
    assert_eq!(status, 201, "{said}");

    // What it says is in its stream, which comes through as it happens.
    let path = "GET /v1/sessions/n-1/events?follow=true&raw=false";
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("set");
    let head = format!("{path} HTTP/1.1\r\nHost: {address}\r\n{}\r\n\r\n", nobody[0]);
    stream.write_all(head.as_bytes()).expect("written");
    let text = until(&mut stream, "looked");
    assert!(text.contains("65534") && !text.contains("\"read"), "{text}");

    // Each process is the user's, the daemon and the proxy as well.
    let listed = send(address, "GET /v1/sessions/n-1/processes", &nobody, "").body;
    let pids: Vec<u32> = listed.as_array().unwrap_or_else(|| panic!("{listed}")).iter().map(pid).collect();
    let daemon_of = |headers| {
        let health = send(address, "GET /v1/health", headers, "").body;
        u32::try_from(health["pid"].as_u64().expect("a pid")).expect("a pid")
    };
    let daemons = [daemon_of(&nobody), daemon_of(&games)];
    assert_ne!(daemons[0], daemons[1]);
    for pid in pids.iter().chain([&daemons[0]]) {
        assert_eq!(fs::metadata(format!("/proc/{pid}")).expect("alive").uid(), 65534, "{pid}");
    }

    // Neither sees the other's, and what a token may not, it may not there either.
    assert_eq!(send(address, "GET /v1/sessions/g-1", &nobody, "").status, 404);
    let reader = bearer(&token(&daemon, &["reader", "--role", "read", "--user", "nobody"]));
    assert_eq!(send(address, "GET /v1/sessions/n-1", &reader, "").status, 200);
    assert_eq!(send(address, "POST /v1/sessions/n-1/kill", &reader, "").status, 403);
    // A flag of root's daemon holds for each user.
    assert_eq!(start(address, &nobody, "n-2", &["cat"]).0, 201);
    assert_eq!(start(address, &nobody, "n-3", &["cat"]).0, 429);

    let killed = send(address, "POST /v1/sessions/n-1/kill", &nobody, "");
    assert_eq!((killed.status, &killed.body["survivors"]), (200, &json!([])), "{}", killed.text);
    let living = daemons.map(process);
    drop(daemon);
    living.into_iter().for_each(gone);
}

/// Reads until this has come.
fn until(stream: &mut TcpStream, wanted: &str) -> String {
    let (mut text, mut part) = (String::new(), [0; 4096]);
    while !text.contains(wanted) {
        let len = stream.read(&mut part).expect("it comes");
        assert_ne!(len, 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&part[..len]));
    }
    text
}

fn pid(listed: &serde_json::Value) -> u32 {
    u32::try_from(listed["id"]["pid"].as_u64().expect("a pid")).expect("a pid")
}

#[test]
fn whoever_sees_all_users_names_one() {
    let place = Place::new();
    let Some((daemon, address)) = serve(&place, &[]) else { return };
    let operator = bearer(&token(&daemon, &["operator"]));
    let named = |user: &str| [operator.clone(), vec![format!("Agent-Proxy-User: {user}")]].concat();
    let (status, said) = start(address, &operator, "s-1", &["cat"]);
    assert!(status == 403 && said.contains("agent-proxy-user"), "{status} {said}");
    for nobody_s in ["nosuchaccount", "root", "../etc", ""] {
        assert_eq!(start(address, &named(nobody_s), "s-1", &["cat"]).0, 403, "{nobody_s:?}");
    }
    let (status, said) = start(address, &named("nobody"), "s-1", &["cat"]);
    assert_eq!(status, 201, "{said}");
    assert_eq!(send(address, "GET /v1/sessions", &operator, "").body, json!([]), "root has none");
    let listed = send(address, "GET /v1/sessions", &named("nobody"), "").body;
    assert_eq!((listed.as_array().map(Vec::len), &listed[0]["userId"]), (Some(1), &json!("nobody")), "{listed}");
    let other = bearer(&token(&daemon, &["games", "--user", "games"]));
    let refused = [other, vec!["Agent-Proxy-User: nobody".to_owned()]].concat();
    assert_eq!(send(address, "GET /v1/sessions", &refused, "").status, 403);
    // Who is there on the machine uses a user's socket as any other.
    let socket = place.directory.join("users/nobody/daemon.sock");
    let ran = place.run(&["--socket", socket.to_str().expect("text"), "kill", "s-1"]);
    ran.exits(0);
}

#[test]
fn a_socket_that_leads_elsewhere_is_no_user_s() {
    let place = Place::new();
    let Some((daemon, address)) = serve(&place, &[]) else { return };
    let nobody = bearer(&token(&daemon, &["nobody", "--user", "nobody"]));
    assert_eq!(start(address, &nobody, "s-1", &["cat"]).0, 201);
    // As nobody could: its directory is its own, and root's socket answers root.
    let socket = place.directory.join("users/nobody/daemon.sock");
    fs::rename(&socket, socket.with_extension("away")).expect("moved");
    symlink(place.socket(), &socket).expect("linked");
    let (status, said) = start(address, &nobody, "s-2", &["cat"]);
    assert!(status >= 500 && said.contains("nobody"), "{status} {said}");
    assert_eq!(daemon.run(&["sessions", "--json"]).exits(0).json(), json!([]), "root's own daemon was not asked");
    fs::remove_file(&socket).expect("removed");
    fs::rename(socket.with_extension("away"), &socket).expect("moved back");
    assert_eq!(send(address, "GET /v1/sessions/s-1", &nobody, "").status, 200);
}

#[test]
fn the_daemons_of_users_outlive_a_crash_of_root_s() {
    let place = Place::new();
    let Some((daemon, address)) = serve(&place, &[]) else { return };
    let nobody = bearer(&token(&daemon, &["nobody", "--user", "nobody"]));
    assert_eq!(start(address, &nobody, "s-1", &["cat"]).0, 201);
    let listed = send(address, "GET /v1/sessions/s-1/processes", &nobody, "").body;
    let agent = process(pid(&listed[0]));
    daemon.end(Signal::SIGKILL);
    let Some((daemon, address)) = serve(&place, &[]) else { return };
    assert_eq!(send(address, "GET /v1/sessions/s-1", &nobody, "").body["state"], "idle", "as it was");
    assert_eq!(process(agent.pid), agent, "it runs on");
    // The end of root's daemon is that of all.
    drop(daemon);
    gone(agent);
}

#[test]
fn a_websocket_comes_through() {
    let place = Place::new();
    let Some((daemon, address)) = serve(&place, &[]) else { return };
    let nobody = bearer(&token(&daemon, &["nobody", "--user", "nobody"]));
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("set");
    let head = format!(
        "GET /v1/socket HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{}\r\n\r\n",
        nobody[0]
    );
    stream.write_all(head.as_bytes()).expect("written");
    let answer = until(&mut stream, "\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    // A masked ping, whose answer is the user's daemon's.
    stream.write_all(&[0x89, 0x82, 0, 0, 0, 0, b'o', b'k']).expect("written");
    let mut frame = [0; 2];
    stream.read_exact(&mut frame).expect("an answer");
    while frame == [0x89, 0] {
        // It pings as well.
        stream.read_exact(&mut frame).expect("an answer");
    }
    assert_eq!(frame, [0x8a, 2], "a pong");
    // Closed, so that nobody waits for it.
    stream.write_all(&[0x88, 0x80, 0, 0, 0, 0]).expect("written");
}
