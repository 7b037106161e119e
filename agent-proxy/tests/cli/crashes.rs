//! A daemon that is killed between what it has accepted and what that begins: it is begun once at most, and not lost without a word.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    sync::mpsc::{Sender, channel},
};

use ipc_protocol::{Envelope, Event};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    durable::{Random, end, kills, place},
    harness::{DEADLINE, Daemon, Place, envelope},
};

/// Sends a request, with a key if one is given; status and body of its answer. `None` if the daemon is dead.
fn post(socket: &Path, path: &str, key: Option<&str>, body: &Value) -> Option<(u16, Value)> {
    let body = body.to_string();
    let key = key.map(|key| format!("Idempotency-Key: {key}\r\n")).unwrap_or_default();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: agent-proxy\r\nConnection: close\r\n{key}Content-Length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(DEADLINE)).ok()?;
    stream.write_all(format!("{head}{body}").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, serde_json::from_str(body).ok()?))
}

/// Kills the daemon while `work` goes on, once that has told so many times that something was accepted.
fn kill_during(place: &Place, daemon: Daemon<'_>, accepted: u64, work: impl FnOnce(&Sender<()>) + Send) {
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || work(&tell));
        for _ in 0..accepted {
            told.recv_timeout(DEADLINE).expect("accepted in time");
        }
        end(place, daemon, Signal::SIGKILL);
    });
}

/// Reads the events of a stream until the fate of the session that was asked for on it is known.
fn fate(socket: &Path, stream: &str) -> Vec<Envelope> {
    let mut connection = UnixStream::connect(socket).expect("it lives");
    connection.set_read_timeout(Some(DEADLINE)).expect("set");
    let path = format!("/v1/streams/{stream}/events?follow=true&raw=false");
    write!(connection, "GET {path} HTTP/1.0\r\nHost: agent-proxy\r\n\r\n").expect("written");
    let lines = std::io::BufRead::lines(std::io::BufReader::new(connection));
    let mut events = Vec::new();
    for line in lines.map(|line| line.expect("a line")).skip_while(|line| !line.starts_with('{')) {
        events.push(envelope(&line));
        let last = &events[events.len() - 1].event;
        if matches!(
            last,
            Event::SessionStarted { .. }
                | Event::ActionFailed { .. }
                | Event::SessionEnded { .. }
                | Event::SessionSuspended { .. }
        ) {
            return events;
        }
    }
    panic!("{stream} ends without the fate of its session: {events:#?}");
}

#[test]
fn a_session_that_an_event_asks_for_is_started_once_or_told_whatever_kills_the_daemon() {
    let place = Place::new();
    let mut random = Random::new(11);
    let mut accepted = Vec::new();
    let mut sum = BTreeMap::<&str, usize>::new();
    for round in 0..kills() {
        let daemon = place.keeping(&[]);
        let (socket, directory) = (place.socket(), &place.directory);
        let asked = &mut accepted;
        kill_during(&place, daemon, 1 + random.below(8), |tell| {
            for number in 0..100 {
                let stream = format!("chat-{round}-{number}");
                // It says that it was started before it does anything else.
                let script = format!("echo started >> {}; exec cat", directory.join(&stream).display());
                let config = json!({ "agent": "command", "command": ["sh", "-c", script], "cwd": "/" });
                let event = json!({ "type": "agent:action:session-create:called", "payload": { "config": config } });
                match post(&socket, &format!("/v1/streams/{stream}/events"), None, &event) {
                    Some((201, _)) => {
                        asked.push(stream);
                        // Fails where nobody counts any more.
                        let _ = tell.send(());
                    }
                    Some(other) => panic!("{other:?}"),
                    None => return,
                }
            }
        });
    }
    assert!(!accepted.is_empty(), "each daemon was killed before it accepted anything");
    let daemon = place.keeping(&[]);
    for stream in &accepted {
        let events = fate(&place.socket(), stream);
        let started = events.iter().filter(|one| matches!(one.event, Event::SessionStarted { .. })).count();
        let begun = fs::read_to_string(place.directory.join(stream)).unwrap_or_default().lines().count();
        assert!(begun <= 1, "{stream} was started {begun} times: {events:#?}");
        let fate = match (started, begun) {
            (1, _) => "started",
            (0, 0) => "told, not begun",
            (0, _) => "told, begun",
            _ => panic!("{stream}: {events:#?}"),
        };
        *sum.entry(fate).or_default() += 1;
    }
    println!("{} kills, {} accepted: {sum:?}", kills(), accepted.len());
    drop(daemon);
}

#[test]
fn a_prompt_with_a_key_is_begun_once_or_told_whatever_kills_the_daemon() {
    let place = place(&["a"]);
    let mut random = Random::new(13);
    // Answers by key; none where the daemon died before it.
    let mut asked: BTreeMap<String, Option<(u16, Value)>> = BTreeMap::new();
    let prompt = |socket: &Path, word: &str| {
        let body = json!({ "text": format!("say {word}"), "mode": "queue" });
        post(socket, "/v1/sessions/a/prompt", Some(word), &body)
    };
    let again = |asked: &mut BTreeMap<String, Option<(u16, Value)>>, socket: &Path| {
        for (word, answer) in asked {
            let now = prompt(socket, word).expect("it lives");
            // What was answered once has the same answer for good.
            match answer {
                Some(first) if first.0 == 202 => assert_eq!(&now, first, "{word}"),
                _ => *answer = Some(now),
            }
        }
    };
    for _ in 0..kills() {
        let daemon = place.keeping(&[]);
        daemon.run(&["resume", "a"]).exits(0);
        again(&mut asked, &place.socket());
        let (socket, keys) = (place.socket(), &mut asked);
        let first = keys.len();
        kill_during(&place, daemon, 1 + random.below(8), |tell| {
            for number in first..first + 60 {
                let word = format!("a-{number:04}");
                let answer = prompt(&socket, &word);
                let is_dead = answer.is_none();
                keys.insert(word, answer);
                if is_dead {
                    return;
                }
                let _ = tell.send(());
            }
        });
    }
    let daemon = place.keeping(&[]);
    daemon.run(&["resume", "a"]).exits(0);
    again(&mut asked, &place.socket());
    daemon.run(&["prompt", "a", "say last", "--queue"]).exits(0);
    let mut events = daemon.spawn(&["events", "a", "--follow", "--json"]);
    // Of each word: times accepted with an event, begun, told as failed.
    let mut fates: BTreeMap<String, (Option<u64>, u64, u64)> = BTreeMap::new();
    events.until(|Envelope { offset, event, .. }| {
        match event {
            Event::External { payload, .. } => {
                let payload = payload.value();
                let text = payload["text"].as_str().or_else(|| payload["prompt"][0]["text"].as_str());
                let word = text.unwrap_or_default().trim_start_matches("say ").to_owned();
                fates.entry(word).or_default().0 = Some(*offset);
            }
            Event::TurnStarted { prompt, .. } => {
                fates.entry(prompt.trim_start_matches("say ").to_owned()).or_default().1 += 1;
            }
            Event::ActionFailed { action, .. } => {
                let of =
                    fates.values_mut().find(|fate| fate.0.is_some_and(|at| action.ends_with(&format!(" at {at:020}"))));
                if let Some(fate) = of {
                    fate.2 += 1;
                }
            }
            _ => {}
        }
        fates.get("last").is_some_and(|fate| fate.1 == 1).then_some(())
    });
    let mut sum = BTreeMap::<String, usize>::new();
    for (word, answer) in &asked {
        let (status, body) = answer.as_ref().expect("it was asked again");
        let (_, begun, failed) = fates.get(word).copied().unwrap_or_default();
        assert!(begun <= 1, "{word} was begun {begun} times");
        let fate = match (status, body["type"].as_str()) {
            (202, _) => {
                assert!(
                    begun + failed >= 1 && failed <= 1,
                    "{word} was accepted and lost: {begun} begun, {failed} failed"
                );
                if failed == 0 { "done" } else { "told as failed" }
            }
            (409, Some("interrupted")) => "told as interrupted",
            // The queue is full: it has done nothing.
            (409, Some("busy")) => {
                assert_eq!((begun, failed), (0, 0), "{word} was refused");
                "refused"
            }
            other => panic!("{word}: {other:?} {body}"),
        };
        *sum.entry(fate.to_owned()).or_default() += 1;
    }
    println!("{} kills, {} asked: {sum:?}", kills(), asked.len());
    assert!(sum.contains_key("done"), "{sum:?}");
}
