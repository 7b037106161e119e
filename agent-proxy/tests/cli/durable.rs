//! What a daemon has accepted, done once or told as failed, whatever kills it; and a log that is damaged.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use ipc_protocol::{Envelope, Event, ProcessId};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::harness::{DEADLINE, Daemon, Place, gone};

/// How often the daemon is killed; `tests/full` has it killed 30 times.
pub(crate) fn kills() -> u64 {
    std::env::var("AGENT_PROXY_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(4)
}

/// Numbers that look random, and are the same in each run.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Status and body of what a daemon answers; `None` if it is dead.
fn post(socket: &Path, path: &str, body: &Value) -> Option<(u16, Value)> {
    request(socket, "POST", path, &body.to_string())
}

fn request(socket: &Path, method: &str, path: &str, body: &str) -> Option<(u16, Value)> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(DEADLINE)).ok()?;
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: agent-proxy\r\nConnection: close\r\nContent-Length: {}", body.len());
    stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, serde_json::from_str(body).ok()?))
}

/// Ends a daemon, and waits until its fork server has given up the state directory.
pub(crate) fn end(place: &Place, daemon: Daemon<'_>, signal: Signal) {
    let (_, health) = request(&place.socket(), "GET", "/v1/health", "").expect("it lives");
    let fork_server = serde_json::from_value::<ProcessId>(health["forkServer"].clone()).expect("a process");
    daemon.end(signal);
    gone(fork_server);
}

/// What is asked of one session.
struct Asked {
    id: String,
    /// Texts that were accepted.
    accepted: BTreeSet<String>,
    count: u64,
}

impl Asked {
    /// Asks for one more prompt, by an event or as a prompt that is queued. `false` if the daemon is dead.
    fn ask(&mut self, socket: &Path, random: &mut Random) -> bool {
        self.count += 1;
        let word = format!("{}-{}", self.id, self.count);
        // Some take longer, so that the others wait.
        let text = if random.below(2) == 0 { format!("sleep 20ms\nsay {word}") } else { format!("say {word}") };
        let (path, body) = match random.below(2) {
            0 => ("events", json!({"type": "agent:action:prompt:called", "payload": {"text": text}})),
            _ => ("prompt", json!({"text": text, "mode": "queue"})),
        };
        match post(socket, &format!("/v1/sessions/{}/{path}", self.id), &body) {
            Some((201 | 202, _)) => assert!(self.accepted.insert(word)),
            // The queue is full.
            Some((409, _)) => {}
            Some(other) => panic!("{other:?}"),
            None => return false,
        }
        true
    }

    /// What became of all that was accepted, once a prompt behind all of it has come to its end.
    fn check(&self, daemon: &Daemon<'_>) -> BTreeMap<&'static str, usize> {
        let last = format!("{}-last", self.id);
        daemon.run(&["prompt", &self.id, &format!("say {last}"), "--queue"]).exits(0);
        let mut events = daemon.spawn(&["events", &self.id, "--follow", "--json"]);
        // (offset of its event, turns begun, turns ended, times told as failed)
        let mut fates: BTreeMap<String, (String, u64, u64, u64)> = BTreeMap::new();
        let mut turns = BTreeMap::new();
        events.until(|Envelope { offset, turn, event, .. }| {
            match event {
                Event::External { payload, .. } => {
                    let payload = payload.value();
                    let text = payload["text"].as_str().or_else(|| payload["prompt"][0]["text"].as_str());
                    let word = word_of(text.unwrap_or_default());
                    fates.entry(word).or_default().0 = format!(" at {offset:020}");
                }
                Event::TurnStarted { prompt, .. } => {
                    fates.entry(word_of(prompt)).or_default().1 += 1;
                    turns.insert(turn.unwrap_or(0), word_of(prompt));
                }
                Event::Complete { .. } => {
                    let word = turns.get(&turn.unwrap_or(0)).cloned().unwrap_or_default();
                    fates.entry(word).or_default().2 += 1;
                }
                Event::ActionFailed { action, .. } => {
                    let failed = fates.iter_mut().find(|(_, fate)| !fate.0.is_empty() && action.ends_with(&fate.0));
                    if let Some((_, fate)) = failed {
                        fate.3 += 1;
                    }
                }
                _ => {}
            }
            fates.get(&last).is_some_and(|fate| fate.2 == 1).then_some(())
        });
        let mut sum = BTreeMap::new();
        for word in &self.accepted {
            let (_, begun, ended, failed) = &fates[word];
            let fate = match (begun, ended, failed) {
                (1, 1, 0) => "done",
                (0, 0, 1) => "told as failed, not begun",
                (1, 0, 1) => "told as failed, begun",
                other => panic!("{word}, {}: {other:?}; {fates:?}", fates[word].0),
            };
            *sum.entry(fate).or_default() += 1;
        }
        sum
    }
}

fn word_of(text: &str) -> String {
    text.rsplit_once("say ").map_or(text, |(_, word)| word).to_owned()
}

/// A place whose agent keeps its conversations, in homes of the sessions' own.
pub(crate) fn place(ids: &[&str]) -> Place {
    let place = crate::lasting::place();
    let daemon = place.keeping(&[]);
    for id in ids {
        daemon.run(&["start", "--id", id, "--agent", "kept", "--home", "own"]).exits(0);
        // From its first turn on there is a conversation.
        daemon.run(&["prompt", id, "say first"]).exits(0);
    }
    daemon.end(Signal::SIGTERM).exits(0);
    place
}

fn session(daemon: &Daemon<'_>, id: &str) -> Value {
    let listed = daemon.run(&["sessions", "--json"]).exits(0).json();
    let found = listed.as_array().expect("an array").iter().find(|session| session["sessionId"] == id);
    found.unwrap_or_else(|| panic!("{id} is not listed: {listed}")).clone()
}

#[test]
fn what_was_accepted_is_done_once_or_told_as_failed_whatever_kills_the_daemon() {
    let ids = ["a", "b"];
    let place = place(&ids);
    let mut asked = ids.map(|id| Asked { id: id.to_owned(), accepted: BTreeSet::new(), count: 0 });
    let mut random = Random(7);
    for round in 0..kills() {
        let daemon = place.keeping(&["--drain", "2s"]);
        for one in &asked {
            let state = session(&daemon, &one.id);
            assert!(state["state"]["suspended"].is_object(), "{state}");
            // By hand; else the first prompt of the round does it.
            if random.below(2) == 0 {
                daemon.run(&["resume", &one.id]).exits(0);
            }
        }
        for _ in 0..5 + random.below(40) {
            let at = random.below(2) as usize;
            assert!(asked[at].ask(&place.socket(), &mut random), "it lives");
        }
        // Some are asked while it dies.
        let signal = if round % 4 == 3 { Signal::SIGTERM } else { Signal::SIGKILL };
        let socket = place.socket();
        std::thread::scope(|scope| {
            let [first, second] = &mut asked;
            let mut other = Random(round);
            scope.spawn({
                let socket = &socket;
                move || while_it_lives(first, second, socket, &mut other)
            });
            std::thread::sleep(Duration::from_millis(random.below(30)));
            end(&place, daemon, signal);
        });
    }
    let daemon = place.keeping(&[]);
    let mut sum = BTreeMap::<_, usize>::new();
    for one in &asked {
        let waiting = daemon.run(&["--json", "queue", &one.id]).exits(0).json();
        assert_eq!(session(&daemon, &one.id)["queued"], waiting);
        daemon.run(&["resume", &one.id]).exits(0);
        for (fate, count) in one.check(&daemon) {
            *sum.entry(fate).or_default() += count;
        }
    }
    let accepted = asked.iter().map(|one| one.accepted.len()).sum::<usize>();
    println!("{} kills, {accepted} accepted: {sum:?}", kills());
    assert!(sum["done"] * 2 > accepted, "{sum:?} of {accepted}");
}

/// Asks until nobody answers. What is refused since the daemon is about to end is not accepted.
fn while_it_lives(first: &mut Asked, second: &mut Asked, socket: &Path, random: &mut Random) {
    for n in 0..400 {
        let one = if n % 2 == 0 { &mut *first } else { &mut *second };
        one.count += 1;
        let word = format!("{}-{}", one.id, one.count);
        let (path, body) = match random.below(2) {
            0 => ("events", json!({"type": "agent:action:prompt:called", "payload": {"text": format!("say {word}")}})),
            _ => ("prompt", json!({"text": format!("say {word}"), "mode": "queue"})),
        };
        match post(socket, &format!("/v1/sessions/{}/{path}", one.id), &body) {
            Some((201 | 202, _)) => assert!(one.accepted.insert(word)),
            Some(_) => {}
            None => return,
        }
    }
}

/// Changes what is in the log's file, as flipped bits would.
fn flip(state: &Path, sql: &str) {
    let file = rusqlite::Connection::open(state.join("log.sqlite")).expect("the file");
    file.execute_batch(sql).expect("changed");
}

#[test]
fn a_daemon_starts_with_what_is_whole_and_says_what_is_not() {
    let place = place(&["a", "b", "c"]);
    let state = place.directory.join("state");
    let path = state.to_str().expect("UTF-8");
    let whole = place.run(&["log", "check", path, "--json"]).exits(0).json();
    assert_eq!((&whole["records"], &whole["streams"], &whole["damage"]), (&3.into(), &3.into(), &json!([])));
    for relative in ["state", "state/log.sqlite"] {
        let mut check = place.command(&["log", "check", relative, "--json"]);
        let checked = check.current_dir(&place.directory).output().expect("run");
        assert_eq!(
            serde_json::from_slice::<serde_json::Value>(&checked.stdout).ok().as_ref(),
            Some(&whole),
            "{checked:?}"
        );
    }
    flip(&state, "UPDATE sessions SET record = CAST(replace(record, '\"kept\"', x'ff') AS TEXT) WHERE id = 'a'");
    flip(&state, "UPDATE streams SET name = 'b/' WHERE name = 'b'");
    flip(
        &state,
        "UPDATE batches SET sum = sum + 1 WHERE gid = (SELECT max(gid) FROM batches JOIN streams ON streams.id = stream WHERE name = 'c')",
    );
    let checked = place.run(&["log", "check", path, "--json"]).exits(1).json();
    let parts: Vec<_> = checked["damage"].as_array().expect("a list").iter().map(|one| &one["part"]).collect();
    assert_eq!(parts, ["stream", "events", "record"], "{checked}");
    let text = place.run(&["log", "check", path]).exits(1).stdout;
    assert!(text.contains("damaged: the record of session a: it is no text"), "{text}");
    for _ in 0..2 {
        let daemon = place.keeping(&[]);
        let listed = daemon.run(&["sessions"]).exits(0);
        assert!(listed.stderr.contains("the record of session a") && listed.stderr.contains("\"b/\""), "{listed:?}");
        let events = daemon.run(&["events", "c", "--json"]).exits(0);
        assert!(events.stdout.contains("session:gap"), "{events:?}");
        // What lacks its record is not listed, and can be read.
        assert!(daemon.run(&["export", "a"]).exits(0).stdout.contains("session:started"));
        let checks = daemon.run(&["doctor", "--json"]).json();
        let log = checks.as_array().expect("a list").iter().find(|check| check["name"] == "event log");
        assert_eq!(log.expect("it is checked")["verdict"], "missing", "{checks}");
        daemon.end(Signal::SIGTERM).exits(0);
    }
    let new = place.directory.join("new.sqlite");
    let new = new.to_str().expect("UTF-8");
    let salvaged = place.run(&["log", "salvage", path, new]).exits(0).stdout;
    assert!(salvaged.contains("not salvaged: the record of session a"), "{salvaged}");
    assert_eq!(place.run(&["log", "check", new, "--json"]).exits(0).json()["damage"], json!([]));
    // Never over anything, and nothing of what is not there.
    place.run(&["log", "salvage", path, new]).exits(1);
    place.run(&["log", "check", "/no/such/file"]).exits(3);
    for end in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(state.join(format!("log.sqlite{end}")));
    }
    fs::rename(new, state.join("log.sqlite")).expect("moved");
    let daemon = place.keeping(&[]);
    let streams = daemon.run(&["sessions"]).exits(0);
    assert!(!streams.stderr.contains("damaged"), "{streams:?}");
    daemon.end(Signal::SIGTERM).exits(0);
}
