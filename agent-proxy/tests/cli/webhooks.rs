//! Webhooks of a daemon: taken once, sent at least once and in order, whatever kills it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    durable::{end, kills},
    harness::{DEADLINE, PROGRAM, Place},
    network::{bearer, send},
};

/// Base64 of the secret of all webhooks here: `secret`.
const SECRET: &str = "whsec_c2VjcmV0";

fn configure(place: &Place, text: &str) {
    fs::create_dir_all(place.config()).expect("a directory");
    let secret = place.config().join("hook.secret");
    fs::write(&secret, SECRET).expect("written");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("private");
    fs::write(place.config().join("webhooks.toml"), text).expect("written");
}

/// Message that a receiver got.
#[derive(Debug)]
struct Received {
    id: String,
    body: Value,
    is_answered: bool,
}

impl Received {
    fn session(&self) -> String {
        self.body["data"]["session"]["id"].as_str().expect("an id").to_owned()
    }

    fn offset(&self) -> String {
        self.body["data"]["offset"].as_str().expect("an offset").to_owned()
    }
}

/// Receiver of webhooks, which answers while `answers` is set. It ends with the test's process.
struct Receiver {
    address: SocketAddr,
    answers: Arc<AtomicBool>,
    messages: mpsc::Receiver<Received>,
}

impl Receiver {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let (address, answers) = (listener.local_addr().expect("an address"), Arc::new(AtomicBool::new(true)));
        let (sender, messages) = mpsc::channel();
        let is_answering = answers.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (sender, is_answering) = (sender.clone(), is_answering.clone());
                thread::spawn(move || receive(stream, &sender, &is_answering));
            }
        });
        Self { address, answers, messages }
    }

    #[track_caller]
    fn next(&self) -> Received {
        self.messages.recv_timeout(DEADLINE).expect("a message in time")
    }
}

fn receive(mut stream: TcpStream, sender: &mpsc::Sender<Received>, answers: &AtomicBool) {
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let Ok(read @ 1..) = stream.read(&mut buffer) else { return };
        text.extend_from_slice(&buffer[..read]);
        let whole = String::from_utf8_lossy(&text).into_owned();
        let Some((head, body)) = whole.split_once("\r\n\r\n") else { continue };
        let header = |name: &str| {
            let line = head.lines().find(|line| line.to_ascii_lowercase().starts_with(&format!("{name}: ")));
            line.map(|line| line[name.len() + 2..].to_owned()).unwrap_or_default()
        };
        if body.len() < header("content-length").parse().unwrap_or(0) {
            continue;
        }
        assert!(header("webhook-signature").starts_with("v1,") && !header("webhook-timestamp").is_empty(), "{head}");
        let is_answered = answers.load(Ordering::SeqCst);
        let body = serde_json::from_str(body).expect("JSON");
        let id = header("webhook-id");
        if is_answered {
            // What its sender makes of that is seen by what it sends next.
            _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
        }
        if sender.send(Received { id, body, is_answered }).is_err() || is_answered {
            return;
        }
        // Until the sender is dead.
        while matches!(stream.read(&mut buffer), Ok(1..)) {}
        return;
    }
}

#[test]
fn each_message_arrives_once_or_more_with_one_id_and_in_order_whatever_kills_the_daemon() {
    let (place, receiver) = (Place::new(), Receiver::new());
    let toml = format!(
        "[out.ops]\nurl = 'http://{}/hook'\nsecret_file = 'hook.secret'\nevents = ['turn:ended', 'session:ended']\nretry_after = '20ms'\n",
        receiver.address
    );
    configure(&place, &toml);
    let state = place.directory.join("state").display().to_string();
    let (mut received, mut expected) = (Vec::new(), BTreeSet::new());
    for round in 0..kills() {
        let daemon = place.serve_with(&["--state-dir", &state]);
        // Killed while a message is on its way that was not answered.
        receiver.answers.store(false, Ordering::SeqCst);
        let session = format!("s-{round}");
        daemon.run(&["start", "--id", &session, "--agent", "acp", "--", PROGRAM, "fake-agent"]).exits(0);
        for text in ["say one", "say two"] {
            daemon.run(&["prompt", &session, text]).exits(0);
        }
        expected.insert(session.clone());
        loop {
            let message = receiver.next();
            let is_new = message.session() == session;
            received.push(message);
            if is_new {
                break;
            }
        }
        end(&place, daemon, Signal::SIGKILL);
        receiver.answers.store(true, Ordering::SeqCst);
    }
    let daemon = place.serve_with(&["--state-dir", &state]);
    let is_last = |message: &Received| message.is_answered && message.body["type"] == "session:ended";
    let mut open = expected.clone();
    for message in received.iter().filter(|message| is_last(message)) {
        open.remove(&message.session());
    }
    while !open.is_empty() {
        let message = receiver.next();
        if is_last(&message) {
            open.remove(&message.session());
        }
        received.push(message);
    }
    drop(daemon);

    let mut ids = BTreeMap::new();
    let mut of_sessions: BTreeMap<String, Vec<(String, bool)>> = BTreeMap::new();
    for message in &received {
        let event = (message.session(), message.offset());
        assert_eq!(ids.entry(event).or_insert_with(|| message.id.clone()), &message.id, "{message:?}");
        of_sessions.entry(message.session()).or_default().push((message.offset(), message.is_answered));
    }
    assert_eq!(ids.values().collect::<BTreeSet<_>>().len(), ids.len(), "an id is one message's");
    for session in &expected {
        let got = &of_sessions[session];
        assert!(got.is_sorted(), "{session}: {got:?}");
        let answered: BTreeSet<&String> =
            got.iter().filter(|(_, is_answered)| *is_answered).map(|(at, _)| at).collect();
        assert_eq!(answered.len(), 3, "two turns and the end of {session}: {got:?}");
    }
    let again = received.iter().filter(|message| !message.is_answered).count();
    assert!(again as u64 >= kills(), "{again} messages were on their way when the daemon was killed");
}

/// Signs as the sender of a plain HMAC does.
fn signed(id: &str, seconds: u64, body: &str) -> Vec<String> {
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, b"secret");
    let tag = ring::hmac::sign(&key, format!("{id}.{seconds}.{body}").as_bytes());
    let signature = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, tag.as_ref());
    vec![
        format!("webhook-id: {id}"),
        format!("webhook-timestamp: {seconds}"),
        format!("webhook-signature: v1,{signature}"),
        "content-type: application/json".to_owned(),
    ]
}

#[test]
fn a_webhook_is_taken_once_and_refused_with_a_reason() {
    let place = Place::new();
    configure(&place, "[in.ci]\nsender = 'hmac'\nsecret_file = 'hook.secret'\n");
    let state = place.directory.join("state").display().to_string();
    let rules = place.directory.join("rules.json");
    let rule = json!([{"on": "ci:*", "when": {"event": "deploy"}, "action": "session-create",
        "payload": {"config": {"agent": "command", "command": ["cat"], "cwd": "/", "sessionId": "{body.name}"}}}]);
    fs::write(&rules, rule.to_string()).expect("written");
    let flags = ["--state-dir", &state, "--rules", rules.to_str().expect("UTF-8"), "--insecure"];
    let (daemon, address) = place.serve_network(&flags);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let body = r#"{"type":"deploy","name":"of-hook"}"#;
    let post = |headers: &[String], body: &str| send(address, "POST /v1/hooks/ci", headers, body);
    let first = post(&signed("d-1", now, body), body);
    assert_eq!((first.status, &first.body["outcome"]), (202, &json!("accepted")), "{}", first.text);
    let again = post(&signed("d-1", now + 1, body), body);
    assert_eq!((again.status, &again.body["outcome"]), (202, &json!("duplicate")), "{}", again.text);
    let mut wrong = signed("d-2", now, body);
    wrong[2] = "webhook-signature: v1,AAAA".to_owned();
    for (headers, reason) in [
        (signed("d-1", now, body), "it is a replay"),
        (signed("d-2", now - 1000, body), "s ago or in the future"),
        (wrong, "not that of this body"),
        (Vec::new(), "the header webhook-id is missing"),
    ] {
        let refused = post(&headers, body);
        let detail = refused.body["detail"].as_str().unwrap_or_default();
        assert!(refused.status == 401 && detail.contains(reason), "{}", refused.text);
    }
    let long = "x".repeat(2 << 20);
    assert_eq!(post(&signed("d-3", now, body), &long).status, 413);
    assert_eq!(send(address, "POST /v1/hooks/other", &[], body).status, 404);
    // It has become a session, by a rule.
    daemon
        .spawn(&["events", "of-hook", "--follow", "--json"])
        .until(|event| matches!(event.event, ipc_protocol::Event::SessionStarted { .. }).then_some(()));
    // A callback goes to hosts alone that the configuration names.
    let token = fs::read_to_string(place.config().join("token")).expect("the first token");
    let ask = r#"{"text":"hi","callback":"http://10.0.0.1/x"}"#;
    let refused = send(address, "POST /v1/sessions/of-hook/ask", &bearer(token.trim()), ask);
    assert!(refused.status == 403 && refused.text.contains("[callbacks]"), "{}", refused.text);
    drop(daemon);
    let audit = fs::read_to_string(place.directory.join("state/audit.jsonl")).expect("the audit log");
    let calls: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let refused = |call: &&Value| {
        (&call["caller"], &call["status"], &call["outcome"]) == (&json!("hook:ci"), &json!(401), &json!("refused"))
    };
    assert_eq!(calls.iter().filter(refused).count(), 4, "{audit}");
    assert!(!audit.contains(SECRET), "{audit}");
}
