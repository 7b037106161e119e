//! Webhooks of a daemon: taken once, sent at least once and in order, whatever kills it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
        mpsc,
    },
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use ipc_protocol::Event;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    documented::documented,
    durable::{end, kills},
    harness::{DEADLINE, PROGRAM, Place, until},
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

/// Receiver of webhooks, which answers with this status, and not at all with 0. It ends with the test's process.
struct Receiver {
    address: SocketAddr,
    answer: Arc<AtomicU16>,
    messages: mpsc::Receiver<Received>,
}

impl Receiver {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let (address, answer) = (listener.local_addr().expect("an address"), Arc::new(AtomicU16::new(204)));
        let (sender, messages) = mpsc::channel();
        let status = answer.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (sender, status) = (sender.clone(), status.clone());
                thread::spawn(move || receive(stream, &sender, &status));
            }
        });
        Self { address, answer, messages }
    }

    #[track_caller]
    fn next(&self) -> Received {
        self.messages.recv_timeout(DEADLINE).expect("a message in time")
    }
}

fn receive(mut stream: TcpStream, sender: &mpsc::Sender<Received>, answer: &AtomicU16) {
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
        let status = answer.load(Ordering::SeqCst);
        let is_answered = status != 0;
        let body = serde_json::from_str(body).expect("JSON");
        let id = header("webhook-id");
        if is_answered {
            // What its sender makes of that is seen by what it sends next.
            let text = format!(
                "HTTP/1.1 {status} Answered\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
            _ = stream.write_all(text.as_bytes());
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
        receiver.answer.store(0, Ordering::SeqCst);
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
        receiver.answer.store(204, Ordering::SeqCst);
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
        .until(|event| matches!(event.event, Event::SessionStarted { .. }).then_some(()));
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

/// Hexadecimal HMAC-SHA256 with the secret.
fn hex(text: &str) -> String {
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, b"secret");
    ring::hmac::sign(&key, text.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn webhooks_are_taken_as_github_and_slack_sign_them() {
    let place = Place::new();
    let toml = "[in.github]\nsender = 'github'\nsecret_file = 'hook.secret'\n\
                [in.slack]\nsender = 'slack'\nsecret_file = 'hook.secret'\n";
    configure(&place, toml);
    let state = place.directory.join("state").display().to_string();
    let (daemon, address) = place.serve_network(&["--state-dir", &state, "--insecure"]);
    let github = |id: &str, body: &str| {
        let headers = [
            format!("X-Hub-Signature-256: sha256={}", hex(body)),
            format!("X-GitHub-Delivery: {id}"),
            "X-GitHub-Event: issues".to_owned(),
            "Content-Type: application/json".to_owned(),
        ];
        send(address, "POST /v1/hooks/github", &headers, body)
    };
    let body = r#"{"action":"opened","issue":{"number":7}}"#;
    assert_eq!(github("g-1", body).body["outcome"], "accepted");
    assert_eq!(github("g-1", body).body["outcome"], "duplicate");
    let replayed = github("g-2", body);
    assert!(replayed.status == 401 && replayed.text.contains("replay"), "{}", replayed.text);

    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let slack = |at: u64, body: &str| {
        let headers = [
            format!("X-Slack-Signature: v0={}", hex(&format!("v0:{at}:{body}"))),
            format!("X-Slack-Request-Timestamp: {at}"),
            "Content-Type: application/json".to_owned(),
        ];
        send(address, "POST /v1/hooks/slack", &headers, body)
    };
    let asked = slack(now, r#"{"type":"url_verification","challenge":"c-1"}"#);
    assert_eq!((asked.status, asked.text.as_str()), (200, "c-1"));
    let event = r#"{"type":"event_callback","event_id":"e-1","event":{"type":"app_mention","text":"hi"}}"#;
    assert_eq!(slack(now, event).body["outcome"], "accepted");
    assert_eq!(slack(now + 1, event).body["outcome"], "duplicate");
    assert_eq!(slack(now - 1000, event).status, 401);

    let token = fs::read_to_string(place.config().join("token")).expect("the first token");
    let read = |stream: &str| {
        let answer = send(address, &format!("GET /v1/streams/hooks/{stream}?offset=-1"), &bearer(token.trim()), "");
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.body
    };
    let (issues, mentions) = (read("github"), read("slack"));
    assert_eq!((issues.as_array().map(Vec::len), mentions.as_array().map(Vec::len)), (Some(1), Some(1)));
    assert_eq!(issues[0]["type"], "github:webhook-received");
    assert_eq!(
        (&issues[0]["payload"]["event"], &issues[0]["payload"]["body"]["issue"]["number"]),
        (&json!("issues"), &json!(7))
    );
    assert_eq!(mentions[0]["payload"]["event"], "app_mention");
    let listed = documented("webhooks", daemon.run(&["webhooks", "--json"]).exits(0).json());
    let github = listed.as_array().expect("a list").iter().find(|one| one["name"] == "github").expect("there").clone();
    assert_eq!((&github["counts"]["accepted"], &github["counts"]["refused"]), (&json!(1), &json!(1)), "{github}");
    let table = daemon.run(&["webhooks"]).exits(0).stdout;
    assert!(table.contains("github") && table.contains("1 accepted"), "{table}");
}

#[test]
fn a_link_answers_a_permission_request_once_and_looking_at_it_answers_nothing() {
    let (place, receiver) = (Place::new(), Receiver::new());
    let toml = format!(
        "[out.ops]\nurl = 'http://{}/hook'\nsecret_file = 'hook.secret'\nevents = ['permission:requested', 'turn:ended']\n\
         [links]\nbase_url = 'https://agents.example'\n",
        receiver.address
    );
    configure(&place, &toml);
    let state = place.directory.join("state").display().to_string();
    let (daemon, address) = place.serve_network(&["--state-dir", &state, "--insecure"]);
    daemon.run(&["start", "--id", "s", "--agent", "acp", "--", PROGRAM, "fake-agent"]).exits(0);
    let prompt = daemon.spawn(&["prompt", "s", "ask Shall I?"]);
    let asked = receiver.next();
    assert_eq!(asked.body["type"], "permission:requested");
    let link = |verb: &str| {
        let link = asked.body["data"]["links"][verb].as_str().expect("a link");
        link.strip_prefix("https://agents.example").expect("its base").to_owned()
    };
    let (allow, deny) = (link("allow"), link("deny"));
    let token = |link: &str| link.split_once("?token=").expect("a token").1.to_owned();
    let look = |link: &str| send(address, &format!("GET {link}"), &[], "");
    let press = |link: &str| {
        let form = ["Content-Type: application/x-www-form-urlencoded".to_owned()];
        send(address, "POST /v1/permission-link", &form, &format!("token={}", token(link)))
    };
    for _ in 0..2 {
        let page = look(&allow);
        assert!(page.status == 200 && page.text.contains("<button>Allow</button>"), "{}", page.text);
        assert!(page.head.to_lowercase().contains("content-security-policy: default-src 'none'"), "{}", page.head);
    }
    assert_eq!(look("/v1/permission-link?token=e30.AAAA").status, 404);
    assert_eq!(press(&allow).status, 200);
    let ended = receiver.next();
    assert_eq!((&ended.body["type"], &ended.body["data"]["stopReason"]), (&json!("turn:ended"), &json!("endTurn")));
    assert_eq!((press(&allow).status, press(&deny).status, look(&deny).status), (410, 410, 410), "it was answered");
    prompt.end().exits(0);
    let events = daemon.run(&["events", "s", "--json", "--type", "permission"]).exits(0).stdout;
    assert!(events.contains("link"), "who answered: {events}");
}

#[test]
fn receivers_get_what_their_labels_say_by_command_or_callback() {
    let (place, receiver) = (Place::new(), Receiver::new());
    let taken = place.directory.join("taken");
    let toml = format!(
        "[out.note]\ncommand = ['sh', '-c', 'cat >>{0}; echo >>{0}']\nevents = ['turn:ended']\nlabels = {{ user = 'ada' }}\n\
         [out.ops]\nurl = 'http://{1}/hook'\nsecret_file = 'hook.secret'\nevents = ['session:ended']\n\
         [callbacks]\nhosts = ['{1}']\nsecret_file = 'hook.secret'\n",
        taken.display(),
        receiver.address
    );
    configure(&place, &toml);
    let state = place.directory.join("state").display().to_string();
    let (daemon, address) = place.serve_network(&["--state-dir", &state, "--insecure"]);
    for user in ["bob", "ada"] {
        daemon.run(&["start", "--id", user, "--user", user, "--agent", "acp", "--", PROGRAM, "fake-agent"]).exits(0);
        daemon.run(&["prompt", user, "say hello"]).exits(0);
    }
    let token = fs::read_to_string(place.config().join("token")).expect("the first token");
    let ask =
        json!({"text": "say done", "callback": format!("http://{}/back", receiver.address), "context": {"ticket": 7}});
    let answer = send(address, "POST /v1/sessions/bob/ask", &bearer(token.trim()), &ask.to_string());
    assert_eq!(answer.status, 200, "{}", answer.text);
    let called = receiver.next();
    assert_eq!((&called.body["type"], &called.body["data"]["context"]), (&json!("ask:ended"), &json!({"ticket": 7})));
    assert_eq!(called.body["data"]["text"].as_str().map(str::trim), Some("done"));
    for user in ["bob", "ada"] {
        daemon.run(&["kill", user]).exits(0);
        assert_eq!((receiver.next().session().as_str(), user), (user, user));
    }
    // One that is cut off is run again.
    let noted = |told: &Value| told["name"] == "note" && told["waiting"] == 0 && told["counts"]["delivered"] == 1;
    until("the note is taken", || {
        let told = daemon.run(&["webhooks", "--json"]).exits(0).json();
        told.as_array().expect("a list").iter().any(noted).then_some(())
    });
    // Its runs are sessions that are gone afterwards; nobody is told of them.
    end(&place, daemon, Signal::SIGTERM);
    let daemon = place.serve_with(&["--state-dir", &state]);
    let waiting = || {
        let listed = daemon.run(&["webhooks", "--json"]).exits(0).json();
        listed.as_array().expect("a list").iter().any(|one| one["waiting"] != json!(0))
    };
    while waiting() {}
    let text = fs::read_to_string(&taken).expect("written");
    let messages: Vec<Value> =
        text.lines().filter(|line| !line.is_empty()).map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |message: &Value| message["data"]["session"]["user"].as_str().map(str::to_owned);
    assert_eq!(messages.iter().map(of).collect::<Vec<_>>(), [Some("ada".to_owned())], "{text}");
    assert_eq!(messages[0]["data"]["text"].as_str().map(str::trim), Some("hello"));
}

#[test]
fn what_a_receiver_refuses_is_tried_again_or_given_up_with_a_marker_and_no_redirection_is_followed() {
    let (place, receiver) = (Place::new(), Receiver::new());
    let toml = format!(
        "[out.ops]\nurl = 'http://{}/hook'\nsecret_file = 'hook.secret'\nevents = ['turn:ended']\nretry_after = '10ms'\n",
        receiver.address
    );
    configure(&place, &toml);
    let state = place.directory.join("state").display().to_string();
    let daemon = place.serve_with(&["--state-dir", &state]);
    let mut events = daemon.start_fake("s");
    // Told to go elsewhere, it comes back here with the same message.
    receiver.answer.store(302, Ordering::SeqCst);
    daemon.run(&["prompt", "s", "say one"]).exits(0);
    let (first, again) = (receiver.next(), receiver.next());
    assert_eq!((&first.id, first.offset()), (&again.id, again.offset()));
    receiver.answer.store(410, Ordering::SeqCst);
    let marker = events.until(|envelope| match &envelope.event {
        Event::External { kind, payload, .. } if kind.to_string() == "webhook:abandoned" => Some(payload.value()),
        _ => None,
    });
    assert_eq!((&marker["hook"], &marker["id"]), (&json!("ops"), &json!(first.id)));
    assert!(marker["error"].as_str().is_some_and(|error| error.contains("410")), "{marker}");
    // The next one goes.
    receiver.answer.store(204, Ordering::SeqCst);
    daemon.run(&["prompt", "s", "say two"]).exits(0);
    let next = loop {
        let next = receiver.next();
        if next.id != first.id {
            break next;
        }
    };
    assert_eq!(next.body["data"]["text"].as_str().map(str::trim), Some("two"));
}

#[test]
fn a_sender_has_its_rate_and_who_has_no_secret_uses_up_nothing_of_it() {
    let place = Place::new();
    configure(&place, "[in.ci]\nsender = 'hmac'\nsecret_file = 'hook.secret'\nper_minute = 2\n");
    let state = place.directory.join("state").display().to_string();
    let (daemon, address) = place.serve_network(&["--state-dir", &state, "--insecure"]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let post = |id: &str| send(address, "POST /v1/hooks/ci", &signed(id, now, "{}"), "{}");
    for at in 0..10 {
        let mut wrong = signed(&format!("wrong-{at}"), now, "{}");
        wrong[2] = "webhook-signature: v1,AAAA".to_owned();
        assert_eq!(send(address, "POST /v1/hooks/ci", &wrong, "{}").status, 401);
    }
    assert_eq!((post("d-1").status, post("d-2").status), (202, 202));
    let limited = post("d-3");
    assert_eq!((limited.status, &limited.body["type"]), (429, &json!("rate-limited")), "{}", limited.text);
    assert!(limited.text.contains("per_minute of [in.ci]"), "{}", limited.text);
    let after = limited.head.to_lowercase();
    let after = after.lines().find_map(|line| line.strip_prefix("retry-after: ")).expect("a time").trim().to_owned();
    assert!((1..=30).contains(&after.parse::<u64>().expect("seconds")), "{after}");
    let listed = daemon.run(&["webhooks", "--json"]).exits(0).json();
    assert_eq!(listed[0]["counts"], json!({"accepted": 2, "limited": 1, "refused": 10}), "{listed}");
}

#[test]
fn webhooks_are_read_again_on_a_hangup_and_a_bad_file_changes_nothing() {
    let (place, old, new) = (Place::new(), Receiver::new(), Receiver::new());
    let state = place.directory.join("state").display().to_string();
    let (mut daemon, address) = place.serve_network(&["--state-dir", &state, "--insecure", "-v"]);
    let mut log = daemon.stderr();
    let hook = |id: &str| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        send(address, "POST /v1/hooks/ci", &signed(id, now, "{}"), "{}").status
    };
    assert_eq!(hook("d-1"), 501);
    let incoming = "[in.ci]\nsender = 'hmac'\nsecret_file = 'hook.secret'\n";
    let file = |receiver: &Receiver| {
        format!(
            "{incoming}[out.ops]\nurl = 'http://{}/hook'\nsecret_file = 'hook.secret'\nevents = ['turn:ended']\nretry_after = '10ms'\n",
            receiver.address
        )
    };
    configure(&place, &file(&old));
    daemon.signal(Signal::SIGHUP);
    assert!(log.until("changes=\"in.ci added, out.ops added\""), "it was read");
    assert_eq!(hook("d-1"), 202);

    // What the old one did not take, the new one gets, with its id; and then the next.
    old.answer.store(503, Ordering::SeqCst);
    drop(daemon.start_fake("s"));
    daemon.run(&["prompt", "s", "say one"]).exits(0);
    let tried = old.next();
    configure(&place, &file(&new));
    daemon.signal(Signal::SIGHUP);
    assert!(log.until("changes=\"out.ops changed\""), "it was read");
    let taken = new.next();
    assert_eq!((&taken.id, taken.offset()), (&tried.id, tried.offset()));
    daemon.run(&["prompt", "s", "say two"]).exits(0);
    assert_eq!(new.next().body["data"]["text"].as_str().map(str::trim), Some("two"));

    // A secret that is missing, and a word that is none: what was in use stays, with its counts.
    for wrong in ["[in.ci]\nsender = 'hmac'\nsecret_file = 'none.secret'\n", "[in.ci]\nsender = 'nobody'\n"] {
        fs::write(place.config().join("webhooks.toml"), wrong).expect("written");
        daemon.signal(Signal::SIGHUP);
        assert!(log.until("the webhooks stay as they were"), "{wrong}");
    }
    assert_eq!(hook("d-2"), 202);
    let listed = daemon.run(&["webhooks", "--json"]).exits(0).json();
    let counts: Vec<&Value> = listed.as_array().expect("a list").iter().map(|one| &one["counts"]).collect();
    assert_eq!(counts[1], &json!({"accepted": 2}), "{listed}");
    assert_eq!(counts[0]["delivered"], 2, "{listed}");

    fs::remove_file(place.config().join("webhooks.toml")).expect("there");
    daemon.signal(Signal::SIGHUP);
    assert!(log.until("changes=\"in.ci removed, out.ops removed\""), "it was read");
    assert_eq!(hook("d-3"), 501);
    assert_eq!(daemon.run(&["webhooks", "--json"]).exits(0).json(), json!([]));
}

#[test]
fn an_ask_of_the_command_line_has_a_callback_with_its_context() {
    let (place, receiver) = (Place::new(), Receiver::new());
    let toml = format!("[callbacks]\nhosts = ['{}']\nsecret_file = 'hook.secret'\n", receiver.address);
    configure(&place, &toml);
    let state = place.directory.join("state").display().to_string();
    let daemon = place.serve_with(&["--state-dir", &state]);
    drop(daemon.start_fake("s"));
    let (url, context) = (format!("http://{}/back", receiver.address), r#"{"ticket":7}"#);
    let ran = daemon.run(&["ask", "s", "say done", "--callback", &url, "--context", context]).exits(0);
    assert_eq!(ran.stdout, "done\n");
    let called = receiver.next();
    assert_eq!((&called.body["type"], &called.body["data"]["context"]), (&json!("ask:ended"), &json!({"ticket": 7})));
    // Each call of a handler has it too.
    let file = place.directory.join("calls");
    let handler = format!("cat >{}", file.display());
    daemon.run(&["ask", "s", "say done", "--handler", &handler, "--context", context]).exits(0);
    let calls = fs::read_to_string(&file).expect("written");
    let lines: Vec<Value> = calls.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(lines.len() >= 2 && lines.iter().all(|line| line["context"] == json!({"ticket": 7})), "{calls}");
    let refused = daemon.run(&["ask", "s", "say done", "--callback", "http://10.0.0.1/x"]).exits(8);
    assert!(refused.stderr.contains("[callbacks]"), "{}", refused.stderr);
    daemon.run(&["ask", "say done", "--callback", &url]).exits(2);
}
