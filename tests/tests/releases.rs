//! A host, or a fork server, of the release before this one: sessions are handed over all the same.

use std::{
    io::{BufRead, BufReader, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::Path,
};

use agent_proxy_tests::{
    detach::{Host, State, claim_all},
    sessions::{self, event, soon},
    system::{self, DEADLINE},
};
use ipc_protocol::{
    codec::{Inbox, MessageAssembler, encode, encode_packets},
    message::VERSION,
    packet::{recv_bytes, recv_packet, send_packet, stream_pair},
    reattach::AdoptResponse,
};
use nix::poll::{PollFd, PollFlags, poll};
use proxy_manager::{AgentSessionConfig, Event, HostDeath, KillOptions, PromptMode, SessionState};
use registry::{SpawnInput, SpawnRequest};
use serde_json::{Value, json};

/// One that a failed test leaves ends itself soon.
const FETCHED: HostDeath = HostDeath::Detach { fetch_within_ms: 60_000, spool_bytes: 64 << 20 };

/// A connection on which JSON is spoken, whatever it means.
struct Talk {
    socket: OwnedFd,
    inbox: Inbox,
}

impl Talk {
    fn new(socket: OwnedFd) -> Self {
        Self { socket, inbox: Inbox::default() }
    }

    fn say(&self, message: &Value) {
        let mut bytes = Vec::new();
        encode(&message.to_string(), &mut bytes).expect("short");
        assert_eq!(rustix::io::write(&self.socket, &bytes).expect("written"), bytes.len());
    }

    fn hear(&mut self) -> Value {
        loop {
            if let Some(text) = self.inbox.next_message::<String>().expect("a message") {
                return serde_json::from_str(&text).expect("JSON");
            }
            await_readable(&self.socket);
            match rustix::io::read(&self.socket, self.inbox.spare()) {
                Ok(0) => panic!("closed"),
                Ok(read) => self.inbox.filled(read),
                Err(rustix::io::Errno::AGAIN) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The next that has something at this place.
    fn hear_of(&mut self, pointer: &str) -> Value {
        loop {
            let said = self.hear();
            if let Some(found) = said.pointer(pointer) {
                return found.clone();
            }
        }
    }
}

fn await_readable(fd: impl AsFd) {
    let millis = u16::try_from(DEADLINE.as_millis()).expect("it fits");
    let ready = poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], millis).expect("polled");
    assert!(ready > 0, "nothing is said");
}

/// The control connection, packet by packet.
fn packet(control: &OwnedFd) -> (Value, Option<OwnedFd>) {
    let mut buffer = Vec::new();
    await_readable(control);
    let fd = recv_packet(control, &mut buffer).expect("received").expect("open");
    let text: String = MessageAssembler::default().frame(&buffer).expect("a message").expect("one packet");
    (serde_json::from_str(&text).expect("JSON"), fd)
}

fn send(control: &OwnedFd, message: &Value, fd: Option<&OwnedFd>) {
    for packet in encode_packets(&message.to_string()).expect("short") {
        send_packet(control, &packet, fd.map(AsFd::as_fd)).expect("sent");
    }
}

/// This release's fork server and proxy understand the host of the last one, which lacks things and has others.
#[test]
fn a_host_of_the_last_release() {
    let state = State::new();
    let [host, child, fake] =
        [env!("CARGO_BIN_EXE_detach-host"), env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent")];
    let mut host = Host::start(host, child, fake, &state.path());
    let config = AgentSessionConfig { on_host_death: FETCHED, ..sessions::fake() };
    let id = config.session_id.to_string();
    let (proxy, fork_server) = (host.session(&config), host.fork_server);
    host.prompt(&id, "say one");
    host.line("the turn's end", |line| (line["type"] == "session:idle" && line["metadata"]["turn"] == 1).then_some(()));
    host.kill();
    let (verdict, control) = system::until("it is free", || {
        let (verdict, control) = claim_all(&state.detached(), VERSION - 1).remove(0);
        (!matches!(verdict, AdoptResponse::Busy { .. })).then_some((verdict, control))
    });
    assert!(matches!(verdict, AdoptResponse::Owner { described: true, version: VERSION, .. }), "{verdict:?}");
    let own = registry::identify(std::process::id()).expect("alive");
    let hello = json!({ "Hello": { "version": VERSION - 1, "process": own, "was": "longer" } });
    send(&control, &hello, None);
    assert_eq!(packet(&control).0["Hello"]["version"], VERSION);
    let (detached, _) = packet(&control);
    assert_eq!(detached["Detached"][0]["session"], id.as_str());
    assert_eq!(detached["Detached"][0]["card"]["labels"]["agent"], "fake");
    let (ours, theirs) = stream_pair().expect("a pair");
    send(&control, &json!({ "Reconsider": { "session": id } }), None);
    send(&control, &json!({ "Adopt": { "session": id, "gently": true } }), Some(&theirs));
    drop(theirs);
    let mut proxy_of = Talk::new(ours);
    proxy_of.say(&hello);
    assert_eq!(proxy_of.hear()["say"]["Hello"]["version"], VERSION);
    let attached = proxy_of.hear();
    assert_eq!((&attached["seq"], &attached["say"]["Attached"]["turnCount"]), (&json!(0), &json!(1)));
    let next = attached["say"]["Attached"]["nextSeq"].as_u64().expect("a number");
    proxy_of.say(&json!({ "Dance": { "request": 5 } }));
    assert_eq!(proxy_of.hear_of("/say/Failed")["request"], 5);
    let prompt = serde_json::to_value(proxy_manager::Prompt::from("say two")).expect("JSON");
    proxy_of.say(&json!({ "Request": { "request": 6, "command": { "Prompt": { "turn": 2, "prompt": prompt } } } }));
    let mut last = 0;
    loop {
        let said = proxy_of.hear();
        assert_eq!(said.pointer("/say/Failed"), None);
        let seq = said["seq"].as_u64().expect("a number");
        if seq > 0 {
            assert!(seq == last + 1 || (last == 0 && seq >= next), "{seq} after {last}");
            last = seq;
        }
        if said["say"]["TurnEnded"]["turn"] == 2 {
            break;
        }
    }
    proxy_of.say(&json!({ "Ack": { "seq": last } }));
    let options = serde_json::to_value(KillOptions::NOW).expect("JSON");
    let kill = json!({ "scope": "session", "options": options, "reason": "killed" });
    proxy_of.say(&json!({ "Request": { "request": 7, "command": { "Kill": kill } } }));
    assert_eq!(proxy_of.hear_of("/say/Ended")["reason"], "killed");
    proxy_of.say(&json!({ "Ack": { "seq": u64::MAX } }));
    let gone = loop {
        let (said, _) = packet(&control);
        if said.get("ProxyGone").is_some() {
            break said["ProxyGone"].clone();
        }
    };
    assert_eq!(gone["session"], id.as_str());
    drop(control);
    system::until("all have gone", || (![proxy, fork_server].into_iter().any(system::is_alive)).then_some(()));
}

/// Neither side would understand the other.
#[tokio::test]
async fn who_is_two_releases_away_is_refused_and_takes_nothing() {
    let state = State::new();
    let [host, child, fake] =
        [env!("CARGO_BIN_EXE_detach-host"), env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent")];
    let mut host = Host::start(host, child, fake, &state.path());
    let config = AgentSessionConfig { on_host_death: FETCHED, ..sessions::fake() };
    let (proxy, fork_server) = (host.session(&config), host.fork_server);
    host.kill();
    for version in [VERSION.checked_sub(2), Some(VERSION + 2)].into_iter().flatten() {
        // It may not have noticed yet that its host is dead.
        let reason = system::until("an answer", || match claim_all(&state.detached(), version).remove(0).0 {
            AdoptResponse::Refused { reason } => Some(reason),
            AdoptResponse::Busy { .. } => None,
            verdict @ AdoptResponse::Owner { .. } => panic!("{verdict:?}"),
        });
        let (ours, theirs) = (format!("version {VERSION}"), version.to_string());
        assert!(reason.contains(&ours) && reason.ends_with(&theirs), "{reason}");
    }
    let manager = sessions::builder(child, fake).state_dir(state.path()).build().await.expect("built");
    let session = manager.session(&config.session_id).expect("it is there");
    let turn = soon("taken", session.prompt("say on", PromptMode::Refuse)).await.expect("prompted");
    soon("the turn's end", turn.wait()).await.expect("ended");
    manager.shutdown().await;
    state.nothing_left(config.session_id.as_str(), &[proxy, fork_server]);
}

/// A fork server of the last release with its proxy, played by this process; its death is that of a process that stands for it.
fn last_release(directory: &Path, id: &str) -> std::thread::JoinHandle<()> {
    let stands = registry::spawn(SpawnRequest {
        argv: vec!["cat".into()],
        stdin: SpawnInput::Pipe,
        ..SpawnRequest::new("/bin/cat")
    });
    let stands = stands.expect("started");
    let process = stands.process.id();
    let path = directory.join(format!("{}.{}.sock", process.pid, process.start_time));
    let listener = UnixListener::bind(&path).expect("bound");
    let id = id.to_owned();
    std::thread::spawn(move || {
        // All of it: `cat` ends when its input is closed.
        let stands = stands;
        let (stream, _) = listener.accept().expect("a host");
        let control = claimed(&stream);
        let verdict =
            json!({ "owner": { "version": VERSION - 1, "process": process, "described": true, "mood": "good" } });
        writeln!(&stream, "{verdict}").expect("answered");
        send(&control, &json!({ "Hello": { "version": VERSION - 1, "process": process } }), None);
        send(&control, &json!({ "Gossip": {} }), None);
        let card = json!({ "labels": { "agent": "old", "cwd": "/" }, "directory": path.parent() });
        send(&control, &json!({ "Detached": [{ "session": id, "process": process, "card": card }] }), None);
        let socket = loop {
            let (said, fd) = packet(&control);
            if said.get("Adopt").is_some() {
                assert_eq!((&said["Adopt"]["session"], &said["Adopt"]["afterSeq"]), (&json!(id), &json!(0)));
                break fd.expect("a socket");
            }
        };
        let mut host = Talk::new(socket);
        assert_eq!(host.hear()["Hello"]["version"], VERSION);
        let say = |host: &Talk, seq: u64, say: Value| host.say(&json!({ "seq": seq, "say": say, "aside": 1 }));
        say(&host, 0, json!({ "Hello": { "version": VERSION - 1, "process": process } }));
        // What it does not say has a default; what this release does not know is passed over.
        say(
            &host,
            0,
            json!({ "Attached": { "nextSeq": 1, "agent": process, "turns": true, "turn": 3, "aura": "blue" } }),
        );
        say(&host, 1, json!({ "Event": { "turn": 3, "event": { "stream:text": { "text": "hello" } } } }));
        say(&host, 2, json!({ "Event": { "turn": 3, "event": { "stream:smell": { "of": "roses" } } } }));
        say(&host, 3, json!({ "TurnEnded": { "turn": 3 } }));
        // In either order: the end of a turn is told before it is durable, and acknowledged after.
        let (mut is_acknowledged, mut prompt) = (false, Value::Null);
        while !is_acknowledged || prompt.is_null() {
            let mut said = host.hear();
            is_acknowledged |= said.pointer("/Ack/seq") == Some(&json!(3));
            if said.pointer("/Request/command/Prompt").is_some() {
                prompt = said["Request"].take();
            }
        }
        assert_eq!(prompt["command"]["Prompt"]["turn"], 1, "it was told of none");
        say(&host, 0, json!({ "Done": { "request": prompt["request"] } }));
        say(&host, 4, json!({ "TurnEnded": { "turn": 1 } }));
        let reason = host.hear_of("/Request/command/Kill/reason");
        let mut receipt = ipc_protocol::Receipt::begin(id.parse().expect("an id"), ipc_protocol::KillCause::Shutdown);
        receipt.proof = ipc_protocol::Proof::NoChildren;
        let receipt = serde_json::to_value(receipt).expect("JSON");
        say(&host, 5, json!({ "Ended": { "reason": reason, "receipt": receipt } }));
        let gone = json!({ "session": id, "process": process, "exit": null, "receipt": receipt });
        send(&control, &json!({ "ProxyGone": gone }), None);
        let mut buffer = Vec::new();
        loop {
            await_readable(&control);
            if recv_packet(&control, &mut buffer).expect("received").is_none() {
                break;
            }
        }
        drop(listener);
        std::fs::remove_file(&path).expect("removed");
        stands.process.signal(ipc_protocol::Signal::Kill).expect("it lives");
        system::until("its status", || stands.process.try_reap().expect("our child"));
    })
}

/// The first line of a host, and what came beside it.
fn claimed(stream: &UnixStream) -> OwnedFd {
    let (mut buffer, mut line, mut control) = ([0; 4096], Vec::new(), None);
    while !line.contains(&b'\n') {
        let (len, fd) = recv_bytes(stream, &mut buffer).expect("received");
        line.extend_from_slice(&buffer[..len]);
        control = control.or(fd);
    }
    let line = BufReader::new(&line[..]).lines().next().expect("a line").expect("UTF-8");
    let claim: Value = serde_json::from_str(&line).expect("JSON");
    assert!(claim["understood"].as_array().expect("a list").contains(&json!(VERSION - 1)), "{claim}");
    control.expect("a socket")
}

/// The host is upgraded in place: this release goes on with what the last one left.
#[tokio::test]
async fn a_fork_server_of_the_last_release() {
    let state = State::new();
    std::fs::create_dir(state.detached()).expect("made");
    let old = last_release(&state.detached(), "old-1");
    let builder = sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent"));
    let manager = builder.state_dir(state.path()).build().await.expect("built");
    let session = manager.session(&"old-1".parse().expect("an id")).expect("it is there");
    let mut events = session.subscribe();
    let mut heard = Vec::new();
    event(&mut events, "the turn's end", |envelope| {
        heard.push(envelope.event.clone());
        (envelope.event == Event::SessionIdle {}).then_some(())
    })
    .await;
    let (known, unknown) =
        (Event::Text { text: "hello".into() }, |event: &Event| matches!(event, Event::SessionLossy { .. }));
    assert!(heard.contains(&known) && heard.iter().any(unknown), "{heard:?}");
    assert_eq!((session.info().metadata.agent.as_str(), session.info().state), ("old", SessionState::Idle));
    let turn = soon("taken", session.prompt("go on", PromptMode::Refuse)).await.expect("prompted");
    soon("the turn's end", turn.wait()).await.expect("ended");
    let receipts = manager.shutdown().await;
    assert!(receipts.len() == 1 && receipts[0].is_empty(), "{receipts:?}");
    tokio::task::spawn_blocking(|| old.join().expect("all went well")).await.expect("joined");
}
