//! A daemon that is killed between appends to a free stream: each that it acknowledged is there once, and so is what rules make of it.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    sync::mpsc::channel,
    time::Instant,
};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    durable::{Random, end, kills},
    harness::{DEADLINE, Place},
};

/// Sends a request; status and body of its answer, `None` if the daemon is dead.
fn ask(socket: &Path, request: &str, headers: &str, body: &str) -> Option<(u16, Value)> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(DEADLINE)).ok()?;
    let head = format!(
        "{request} HTTP/1.1\r\nHost: agent-proxy\r\nConnection: close\r\nContent-Type: application/json\r\n{headers}"
    );
    stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, serde_json::from_str(body).unwrap_or_default()))
}

/// Numbers of the messages in the order in which a list has them.
fn numbers(list: &Value) -> Vec<u64> {
    let events = list.as_array().expect("a list").iter();
    events
        .filter(|event| event["type"] == "hook:said")
        .map(|event| event["payload"]["n"].as_u64().expect("a number"))
        .collect()
}

#[test]
fn each_append_is_there_once_whatever_kills_the_daemon() {
    let place = Place::new();
    let mut random = Random::new(7);
    let rules = place.directory.join("rules.json");
    fs::write(&rules, r#"[{"on":"hook:*","action":"prompt","payload":{"content":"say {n}"}}]"#).expect("written");
    let args = ["--rules", rules.to_str().expect("UTF-8")];
    // The first number that was not acknowledged.
    let mut next = 0_u64;
    for _ in 0..kills() {
        let daemon = place.keeping(&args);
        let socket = place.socket();
        ask(&socket, "PUT /v1/streams/hooks/a", "", "").expect("it lives");
        let (tell, told) = channel();
        let count = &mut next;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                loop {
                    let headers = format!("Producer-Id: p\r\nProducer-Epoch: 0\r\nProducer-Seq: {count}\r\n");
                    let body = format!(r#"{{"type":"hook:said","payload":{{"n":{count}}}}}"#);
                    match ask(&socket, "POST /v1/streams/hooks/a", &headers, &body) {
                        // One that was not acknowledged is sent again: it may be there.
                        Some((200 | 204, _)) => *count += 1,
                        Some(other) => panic!("{other:?}"),
                        None => return,
                    }
                    // Fails where nobody counts any more.
                    let _ = tell.send(());
                }
            });
            for _ in 0..=random.below(20) {
                told.recv_timeout(DEADLINE).expect("acknowledged in time");
            }
            end(&place, daemon, Signal::SIGKILL);
        });
    }
    let daemon = place.keeping(&args);
    let socket = place.socket();
    let (_, stored) = ask(&socket, "GET /v1/streams/hooks/a", "", "").expect("it lives");
    let stored = numbers(&stored);
    assert!(stored.len() as u64 == next || stored.len() as u64 == next + 1, "{next} were acknowledged: {stored:?}");
    assert!(stored.iter().copied().eq(0..stored.len() as u64), "{stored:?}");
    let begin = Instant::now();
    let mut mapped = Vec::new();
    // What was left undone is done meanwhile.
    while mapped.len() < stored.len() && begin.elapsed() < DEADLINE {
        let request = "GET /v1/streams/hooks.a/events?type=hook:said&limit=1000";
        let (_, page) = ask(&socket, request, "Accept: application/json\r\n", "").expect("it lives");
        mapped = numbers(&page["events"]);
        std::thread::yield_now();
    }
    assert_eq!(mapped, stored, "each became an event, once, in its order");
    println!("{} kills, {next} acknowledged", kills());
    drop(daemon);
}
