//! Who may talk to a daemon over the network.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt as _,
};

use ipc_protocol::Event;
use serde_json::{Value, json};

use crate::harness::{DEADLINE, Daemon, PROGRAM, Place, Running};

/// Status, head and body of an answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    /// `null` for what is no JSON.
    pub(crate) body: Value,
    /// The body as it came.
    pub(crate) text: String,
}

/// Sends a request with these further headers.
#[track_caller]
pub(crate) fn send(address: SocketAddr, request: &str, headers: &[String], body: &str) -> Answer {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("set");
    let host = if headers.iter().any(|header| header.starts_with("Host:")) {
        String::new()
    } else {
        format!("Host: {address}\r\n")
    };
    let head = format!(
        "{request} HTTP/1.1\r\n{host}Connection: close\r\nContent-Length: {}\r\n{}\r\n",
        body.len(),
        headers.iter().map(|header| format!("{header}\r\n")).collect::<String>()
    );
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("its end");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    Answer {
        status,
        head: head.to_owned(),
        body: serde_json::from_str(body).unwrap_or_default(),
        text: body.to_owned(),
    }
}

pub(crate) fn bearer(token: &str) -> Vec<String> {
    vec![format!("Authorization: Bearer {token}")]
}

#[track_caller]
pub(crate) fn token(daemon: &Daemon<'_>, args: &[&str]) -> String {
    let created = daemon.run(&[&["tokens", "create"], args].concat()).exits(0);
    created.stdout.lines().last().expect("the token").to_owned()
}

#[test]
fn each_request_needs_a_token_and_the_first_is_made_at_the_first_start() {
    let place = Place::new();
    let (daemon, address) = place.serve_network(&[]);
    let first = place.config().join("token");
    let admin = fs::read_to_string(&first).expect("the first token");
    for file in [&first, &place.config().join("tokens.json")] {
        assert_eq!(fs::metadata(file).expect("there").permissions().mode() & 0o777, 0o600, "{file:?}");
    }
    for headers in [vec![], bearer("agent_proxy_wrong"), vec!["Authorization: Basic x".to_owned()]] {
        let refused = send(address, "GET /v1/sessions", &headers, "");
        assert_eq!((refused.status, &refused.body["type"]), (401, &json!("unauthorized")));
        assert!(refused.head.to_lowercase().contains("www-authenticate: bearer"), "{}", refused.head);
    }
    assert_eq!(send(address, "GET /v1/sessions", &bearer(admin.trim()), "").status, 200);

    // More of them, valid at once and until they are revoked.
    let reader = token(&daemon, &["dashboard", "--role", "read"]);
    let body = r#"{"agent":"command","command":["cat"]}"#;
    assert_eq!(send(address, "GET /v1/health", &bearer(&reader), "").status, 200);
    let refused = send(address, "POST /v1/sessions", &bearer(&reader), body);
    assert_eq!((refused.status, &refused.body["type"]), (403, &json!("refused")));
    let detail = refused.body["detail"].as_str().expect("text");
    assert!(detail.contains("\"dashboard\" has read") && detail.contains("needs the role operate"), "{detail}");
    let operator = token(&daemon, &["ci"]);
    assert_eq!(send(address, "POST /v1/sessions", &bearer(&operator), body).status, 201);
    assert_eq!(send(address, "POST /v1/stop", &bearer(&operator), "").status, 403);
    let listed = daemon.run(&["tokens", "--json"]).exits(0).json();
    assert_eq!(listed.as_array().expect("tokens").len(), 3);
    assert!(!listed.to_string().contains("agent_proxy_") && !listed.to_string().contains("sha"), "{listed}");
    daemon.run(&["tokens", "revoke", "ci"]).exits(0);
    assert_eq!(send(address, "GET /v1/sessions", &bearer(&operator), "").status, 401);
    daemon.run(&["tokens", "revoke", "ci"]).exits(3);
    assert_eq!(send(address, "POST /v1/stop", &bearer(admin.trim()), "").status, 200);
}

#[test]
fn a_token_of_one_user_is_for_that_user_s_sessions() {
    let place = Place::new();
    let (daemon, address) = place.serve_network(&[]);
    let ada = bearer(&token(&daemon, &["ada", "--user", "ada"]));
    for (id, user) in [("of-ada", "ada"), ("of-bob", "bob")] {
        daemon.run(&["start", "--id", id, "--user", user, "--key", id, "--agent", "command", "--", "cat"]).exits(0);
    }
    let listed = send(address, "GET /v1/sessions", &ada, "").body;
    assert_eq!(listed.as_array().expect("sessions").len(), 1, "{listed}");
    let minted = |user: &str| {
        let start = ["start", "--user", user, "--agent", "command", "--", "cat"];
        daemon.run(&start).exits(0).stdout.trim()[..35].to_owned()
    };
    for (beginning, status) in [(minted("ada"), 200), (minted("bob"), 404), ("of-a".to_owned(), 404)] {
        assert_eq!(send(address, &format!("GET /v1/sessions/{beginning}"), &ada, "").status, status, "{beginning}");
    }
    for request in [
        "GET /v1/sessions/of-bob",
        "GET /v1/sessions/of-bob/events",
        "GET /v1/sessions/of-bob/processes",
        "GET /v1/sessions/of-bob/transcript",
        "GET /v1/records/of-bob",
        "POST /v1/sessions/of-bob/prompt",
        "POST /v1/sessions/of-bob/kill",
        "POST /v1/sessions/of-bob/suspend",
        "POST /v1/sessions/of-bob/events",
        "POST /v1/records/of-bob",
        "DELETE /v1/sessions/of-bob",
    ] {
        let body = if request.ends_with("/events") { r#"{"type":"a:b"}"# } else { r#"{"text":"x"}"# };
        let body = if request.starts_with("POST") && !request.ends_with("prompt") && !request.ends_with("events") {
            "{}"
        } else {
            body
        };
        let answer = send(address, request, &ada, body);
        assert_eq!(
            (answer.status, &answer.body["type"]),
            (404, &json!("unknown-session")),
            "{request}: {}",
            answer.body
        );
    }
    assert_eq!(send(address, "GET /v1/events", &ada, "").status, 403);
    // A session that it starts is its user's.
    let started =
        send(address, "POST /v1/sessions", &ada, r#"{"sessionId":"new","agent":"command","command":["cat"]}"#);
    assert_eq!((started.status, &started.body["userId"]), (201, &json!("ada")), "{}", started.body);
    for body in [
        r#"{"agent":"command","command":["cat"],"userId":"bob"}"#,
        r#"{"agent":"command","command":["cat"],"lifecycle":{"key":"of-bob"}}"#,
        r#"{"agent":"command","command":["cat"],"resume":{"from":{"session":{"id":"of-bob"}}}}"#,
    ] {
        let answer = send(address, "POST /v1/sessions", &ada, body);
        assert!([403, 404].contains(&answer.status), "{body}: {} {}", answer.status, answer.body);
    }
    let bob = daemon.run(&["sessions", "--json"]).exits(0).json();
    assert_eq!(bob.as_array().expect("sessions").len(), 5, "nothing of bob's has changed: {bob}");
}

#[test]
fn a_page_of_another_site_is_refused() {
    let place = Place::new();
    let (daemon, address) = place.serve_network(&["--host", "agents.example", "--origin", "https://ui.example"]);
    let operator = token(&daemon, &["ui"]);
    for (header, expected) in [
        (format!("Origin: http://{address}"), 200),
        ("Origin: https://ui.example".to_owned(), 200),
        ("Origin: https://evil.example".to_owned(), 403),
        ("Origin: null".to_owned(), 403),
        ("Host: agents.example".to_owned(), 200),
        ("Host: evil.example".to_owned(), 403),
    ] {
        let headers = [bearer(&operator), vec![header.clone()]].concat();
        assert_eq!(send(address, "GET /v1/sessions", &headers, "").status, expected, "{header}");
    }
}

/// An agent with the token: somebody has given it.
#[test]
fn an_agent_with_the_token_is_no_operator() {
    let place = Place::new();
    let (daemon, address) = place.serve_network(&[]);
    let admin = fs::read_to_string(place.config().join("token")).expect("the token");
    let script = format!(
        r#"read go
        t={}
        ask() {{
            exec 3<>/dev/tcp/{}/{}
            printf 'GET /v1/sessions HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer %s\r\nConnection: close\r\n\r\n' "$t" >&3
            head -n1 <&3
        }}
        ask
        (setsid bash -c "t=$t; $(declare -f ask); ask" &)
        exec cat"#,
        admin.trim(),
        address.ip(),
        address.port()
    );
    daemon.run(&["start", "--id", "s", "--agent", "command", "--", "bash", "-c", &script]).exits(0);
    let mut events = daemon.spawn(&["events", "s", "--follow", "--json"]);
    daemon.run(&["prompt", "s", "go"]).exits(0);
    let mut refused = 0;
    events.until(|envelope| {
        if let Event::Text { text } = &envelope.event {
            assert!(text.starts_with("HTTP/1.1 403"), "{text}");
            refused += 1;
        }
        (refused == 2).then_some(())
    });
    // Whoever has the token elsewhere is answered.
    assert_eq!(send(address, "GET /v1/sessions", &bearer(admin.trim()), "").status, 200);
    daemon.run(&["kill", "s"]).exits(0);
    events.end();
}

#[test]
fn other_machines_are_listened_to_only_when_that_is_said() {
    let place = Place::new();
    let refused = place.run(&["serve", "--json", "--listen", "0.0.0.0:0"]).exits(2).problem();
    assert!(refused["detail"].as_str().expect("text").contains("--insecure"), "{refused}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = taken.local_addr().expect("an address").to_string();
    let refused = place.run(&["serve", "--json", "--listen", &address]).exits(1).problem();
    assert!(refused["detail"].as_str().expect("text").contains(&address), "{refused}");
}

#[test]
fn a_command_reaches_a_daemon_by_its_url() {
    let place = Place::new();
    let (daemon, address) = place.serve_network(&[]);
    let url = format!("http://{address}");
    let file = place.directory.join("ci.token");
    fs::write(&file, format!("{}\n", token(&daemon, &["ci"]))).expect("written");
    let file = file.to_str().expect("UTF-8");
    // The local socket would answer, too: it is not asked.
    let run = |args: &[&str]| {
        let mut command = place.command(&[&["--url", &url, "--token-file", file], args].concat());
        command.env("AGENT_PROXY_SOCKET", place.directory.join("none.sock"));
        Running::new(command).end()
    };
    run(&["start", "--id", "far", "--agent", "acp", "--cwd", "/", "--", PROGRAM, "fake-agent"]).exits(0);
    assert_eq!(run(&["prompt", "far", "say from afar"]).exits(0).stdout.trim(), "from afar");
    assert_eq!(run(&["sessions", "-q"]).exits(0).stdout.trim(), "far");
    let piped = run(&["shell", "far", "--", "sh", "-c", "echo beside; exit 3"]).exits(3);
    assert_eq!(piped.stdout.trim(), "beside");
    // Its role counts, and a token that is not known.
    assert_eq!(run(&["--json", "stop"]).exits(8).problem()["type"], "refused");
    let wrong = place.directory.join("wrong.token");
    fs::write(&wrong, "agent_proxy_wrong").expect("written");
    let refused = place.run(&["--json", "--url", &url, "--token-file", wrong.to_str().expect("UTF-8"), "sessions"]);
    assert_eq!(refused.exits(8).problem()["type"], "unauthorized");
    // On this machine the first token is at hand. What is said wins over the variable.
    let mut by_variable = place.command(&["sessions", "-q"]);
    by_variable.env("AGENT_PROXY_URL", &url).env("AGENT_PROXY_SOCKET", place.directory.join("none.sock"));
    assert_eq!(Running::new(by_variable).end().exits(0).stdout.trim(), "far");
    let mut by_flag = place.command(&["--socket", place.socket().to_str().expect("UTF-8"), "sessions", "-q"]);
    by_flag.env("AGENT_PROXY_URL", "http://127.0.0.1:1");
    assert_eq!(Running::new(by_flag).end().exits(0).stdout.trim(), "far");
    for (args, code) in [
        (&["--url", &url, "--socket", "/s", "sessions"][..], 2),
        (&["--url", "http://agents.example", "sessions"], 2),
        (&["--url", "https://agents.example", "sessions"], 2),
        (&["--url", &url, "restart"], 2),
        (&["--url", "http://127.0.0.1:1", "--token-file", file, "sessions"], 4),
    ] {
        place.run(args).exits(code);
    }
    run(&["kill", "far"]).exits(0);
}
