//! Callers of a daemon on the network: pages, users of others, what they may ask for, and what is written down of it.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ipc_protocol::Event;
use serde_json::{Value, json};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, crypto::ring::default_provider,
    pki_types::CertificateDer,
};

use crate::{
    harness::{DEADLINE, Daemon, PROGRAM, Place, Running, not_run},
    network::{Answer, bearer, send, token},
};

/// Removes the privileges of root; part of util-linux.
const SETPRIV: &str = "/usr/bin/setpriv";

/// Start of a session.
const START: &str = r#"{"sessionId":"s","agent":"command","command":["cat"]}"#;

#[track_caller]
fn login_link(daemon: &Daemon<'_>, args: &[&str]) -> String {
    let printed = daemon.run(&[&["login-link"], args].concat()).exits(0).stdout;
    let link = printed.lines().last().expect("a link");
    let (_, path) = link.split_once("://").and_then(|(_, rest)| rest.split_once('/')).expect("a link");
    format!("GET /{path}")
}

/// Follows a link, and returns the header with the cookie.
#[track_caller]
fn log_in(address: SocketAddr, link: &str) -> String {
    let answer = send(address, link, &[], "");
    assert_eq!(answer.status, 303, "{}", answer.head);
    let cookie = answer.head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect("a cookie");
    for attribute in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age="] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    assert!(answer.head.contains("location: /\r\n") && answer.head.contains("no-store"), "{}", answer.head);
    format!("Cookie: {}", cookie.split(';').next().expect("a value"))
}

#[test]
fn a_page_logs_in_by_a_link_that_works_once() {
    let place = Place::new();
    let (daemon, address) = place.serve_network(&[]);
    let link = login_link(&daemon, &["--role", "operate", "--user", "ada"]);
    let cookie = log_in(address, &link);
    assert_eq!(send(address, &link, &[], "").status, 401, "it was used");
    assert_eq!(send(address, "GET /login?code=wrong", &[], "").status, 401);
    // A browser shows a page.
    let page = send(address, &link, &["Accept: text/html,*/*;q=0.8".to_owned()], "");
    assert!(page.status == 401 && page.head.contains("text/html"), "{}", page.head);
    for part in ["was used already", "<pre>agent-proxy login-link</pre>"] {
        assert!(page.text.contains(part), "{part} in {}", page.text);
    }
    let known = send(address, "GET /v1/whoami", std::slice::from_ref(&cookie), "");
    assert_eq!((known.status, known.body), (200, json!({ "name": "ada", "role": "operate", "user": "ada" })));
    let origin = format!("Origin: http://{address}");
    let started = send(address, "POST /v1/sessions", &[cookie.clone(), origin.clone()], START);
    assert_eq!((started.status, &started.body["userId"]), (201, &json!("ada")), "{}", started.body);
    assert_eq!(send(address, "POST /v1/stop", &[cookie.clone(), origin.clone()], "").status, 403, "no admin");
    let out = send(address, "POST /v1/logout", &[cookie.clone(), origin], "");
    assert!(out.status == 204 && out.head.contains("Max-Age=0"), "{}", out.head);
    assert_eq!(send(address, "GET /v1/whoami", &[cookie], "").status, 401);
    // The local socket needs none of it.
    daemon.run(&["kill", "s"]).exits(0);
    place.run(&["login-link", "--role", "root"]).exits(2);
}

#[test]
fn a_page_of_another_site_cannot_use_the_cookie() {
    let place = Place::new();
    let (daemon, address) = place.serve_network(&[]);
    let cookie = log_in(address, &login_link(&daemon, &[]));
    let upgrade = ["Connection: Upgrade", "Upgrade: websocket"].map(str::to_owned);
    for headers in [
        vec![],
        vec!["Origin: https://evil.example".to_owned()],
        vec!["Origin: null".to_owned()],
        vec!["Sec-Fetch-Site: cross-site".to_owned()],
        vec!["Sec-Fetch-Site: same-site".to_owned()],
        vec![format!("Origin: http://{address}"), "Sec-Fetch-Site: cross-site".to_owned()],
    ] {
        let with = |more: &[String]| [std::slice::from_ref(&cookie), headers.as_slice(), more].concat();
        let refused = send(address, "POST /v1/sessions", &with(&[]), START);
        assert_eq!((refused.status, &refused.body["type"]), (403, &json!("refused")), "{headers:?}");
        assert_eq!(send(address, "POST /v1/stop", &with(&[]), "").status, 403, "{headers:?}");
        // A connection that is opened with GET, and types.
        for path in ["GET /v1/sessions/s/shell", "GET /v1/sessions/s/terminal", "GET /v1/socket"] {
            assert_eq!(send(address, path, &with(&upgrade), "").status, 403, "{path} {headers:?}");
        }
    }
    let own = |site: &str| send(address, "GET /v1/sessions", &[cookie.clone(), format!("Sec-Fetch-Site: {site}")], "");
    assert_eq!((own("same-origin").status, own("none").status, own("cross-site").status), (200, 200, 403));
    assert_eq!(own("same-origin").body, json!([]), "nothing was started");
    let origin = "Sec-Fetch-Site: same-origin".to_owned();
    assert_eq!(send(address, "POST /v1/sessions", &[cookie.clone(), origin], START).status, 201);
    daemon.run(&["kill", "s"]).exits(0);
}

/// Sends a WebSocket's handshake with subprotocols, as a page does, and returns the head of the answer.
fn handshake(address: SocketAddr, path: &str, protocols: &str, more: &[String]) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("set");
    let more: String = more.iter().map(|header| format!("{header}\r\n")).collect();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: {protocols}\r\n{more}\r\n"
    );
    stream.write_all(request.as_bytes()).expect("written");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a head");
        head.push(byte[0]);
    }
    String::from_utf8(head).expect("UTF-8")
}

#[test]
fn a_page_sends_its_token_with_a_websocket() {
    let place = Place::new();
    let (daemon, address) = place.serve_network(&[]);
    let (ci, reader) = (token(&daemon, &["ci"]), token(&daemon, &["dashboard", "--role", "read"]));
    assert_eq!(send(address, "POST /v1/sessions", &bearer(&ci), START).status, 201);
    let subprotocols = |token: &str| format!("agent-proxy, agent-proxy.bearer.{}", URL_SAFE_NO_PAD.encode(token));
    let (shell, own) = ("/v1/sessions/s/shell", [format!("Origin: http://{address}")]);
    let head = handshake(address, shell, &subprotocols(&ci), &own);
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    // The token stays with who sent it.
    assert!(head.contains("sec-websocket-protocol: agent-proxy\r\n"), "{head}");
    for (why, protocols, headers, status) in [
        ("no token", "agent-proxy".to_owned(), &own[..], 401),
        ("a wrong one", subprotocols("agent_proxy_guess"), &own, 401),
        ("none that can be read", "agent-proxy.bearer.*".to_owned(), &own, 401),
        ("a role that is too small", subprotocols(&reader), &own, 403),
        ("another site's page", subprotocols(&ci), &["Origin: https://evil.example".to_owned()], 403),
    ] {
        let head = handshake(address, shell, &protocols, headers);
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{why}: {head}");
    }
    assert!(handshake(address, "/v1/socket", &subprotocols(&reader), &own).starts_with("HTTP/1.1 101"));
    // Where a header can be sent, that is the way.
    let plain = [format!("Sec-WebSocket-Protocol: {}", subprotocols(&ci))];
    assert_eq!(send(address, "GET /v1/sessions", &plain, "").status, 401);
    daemon.run(&["kill", "s"]).exits(0);
}

#[test]
fn a_link_passes_on_no_more_than_its_maker_has() {
    let place = Place::new();
    let (daemon, address) = place.serve_network(&[]);
    let ada = bearer(&token(&daemon, &["ada", "--role", "operate", "--user", "ada"]));
    for (body, status) in [
        (r#"{"role":"admin"}"#, 403),
        ("{}", 403),
        (r#"{"role":"read","user":"bob"}"#, 403),
        (r#"{"role":"root"}"#, 400),
        (r#"{"role":"read","x":1}"#, 400),
        (r#"{"role":"read"}"#, 200),
    ] {
        let answer = send(address, "POST /v1/login-links", &ada, body);
        assert_eq!(answer.status, status, "{body}: {}", answer.body);
        if status == 200 {
            let link = answer.body["urls"][0].as_str().expect("a link");
            let path = link.strip_prefix(&format!("http://{address}")).expect("of this server");
            let cookie = log_in(address, &format!("GET {path}"));
            let known = send(address, "GET /v1/whoami", &[cookie], "").body;
            assert_eq!(known, json!({ "name": "ada", "role": "read", "user": "ada" }));
        }
    }
    drop(daemon);
    // A daemon without an address for a browser.
    let daemon = place.serve();
    daemon.run(&["login-link"]).exits(6);
}

fn audited(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("the audit log");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn who_does_what_is_written_down() {
    let place = Place::new();
    let state = place.directory.join("state");
    let (daemon, address) = place.serve_network(&["--state-dir", state.to_str().expect("UTF-8")]);
    let (ci, reader) = (bearer(&token(&daemon, &["ci"])), bearer(&token(&daemon, &["dashboard", "--role", "read"])));
    assert_eq!(send(address, "POST /v1/sessions", &ci, START).status, 201);
    let mut events = daemon.spawn(&["events", "s", "--follow", "--json"]);
    assert_eq!(send(address, "POST /v1/sessions/s/prompt", &ci, r#"{"text":"secret words"}"#).status, 202);
    assert_eq!(send(address, "POST /v1/sessions/s/kill", &reader, "{}").status, 403);
    assert_eq!(send(address, "POST /v1/sessions/s/kill", &bearer("agent_proxy_wrong"), "{}").status, 401);
    assert_eq!(send(address, "GET /v1/sessions", &reader, "").status, 200);
    assert_eq!(send(address, "POST /v1/sessions/s/events", &ci, r#"{"type":"audit:call"}"#).status, 403, "no forgery");
    daemon.run(&["kill", "s"]).exits(0);
    let mut calls = Vec::new();
    events.until(|envelope| match &envelope.event {
        Event::External { kind, payload, .. } if &**kind == "audit:call" => {
            calls.push(payload.value());
            None
        }
        Event::SessionEnded { .. } => Some(()),
        _ => None,
    });
    events.end();
    let brief = |call: &Value| {
        let text = |name: &str| call[name].as_str().unwrap_or("-").to_owned();
        format!("{} {} {} {}", text("caller"), text("method"), text("route"), text("outcome"))
    };
    let expected = [
        "ci POST /v1/sessions done",
        "ci POST /v1/sessions/{id}/prompt done",
        "host POST /v1/sessions/{id}/kill asked",
    ];
    assert_eq!(calls.iter().map(brief).collect::<Vec<_>>(), expected);
    drop(daemon);

    let path = state.join("audit.jsonl");
    assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
    let lines = audited(&path);
    let expected = [
        "ci POST /v1/sessions done",
        "ci POST /v1/sessions/{id}/prompt done",
        "dashboard POST /v1/sessions/{id}/kill refused",
        "- POST /v1/sessions/{id}/kill refused",
        "ci POST /v1/sessions/{id}/events refused",
        "host POST /v1/sessions/{id}/kill done",
    ];
    assert_eq!(lines.iter().map(brief).collect::<Vec<_>>(), expected, "{lines:#?}");
    let us = std::process::id();
    let started = &lines[0];
    assert_eq!(
        (&started["session"], &started["status"], &started["role"]),
        (&json!("s"), &json!(201), &json!("operate"))
    );
    assert_eq!(started["pid"], json!(us), "the test's own process has asked: {started}");
    assert!(started["address"].as_str().expect("an address").starts_with("127.0.0.1:"), "{started}");
    assert!(lines[5]["pid"].is_u64() && lines[5]["address"].is_null(), "by the local socket: {}", lines[5]);
    let text = fs::read_to_string(&path).expect("readable");
    assert!(!text.contains("secret words") && !text.contains("agent_proxy_"), "neither prompts nor tokens");
}

#[test]
fn a_session_beyond_the_policy_is_refused_and_says_why() {
    let place = Place::new();
    let (file, work) = (place.directory.join("policy.toml"), place.directory.join("work"));
    fs::create_dir_all(work.join("deep")).expect("made");
    let policy = format!(
        "[policy]\ncwd = [{work:?}]\nagents = [\"command\"]\npermission-modes = [\"ask\"]\nmax-sessions = 2\n\
         [policy.limits]\nprocesses = 50\n[policy.users.bob]\nagents = []\n",
    );
    fs::write(&file, policy).expect("written");
    let (daemon, address) = place.serve_network(&["--policy", file.to_str().expect("UTF-8")]);
    let ci = bearer(&token(&daemon, &["ci"]));
    let start = |change: &Value| {
        let mut body = json!({ "agent": "command", "command": ["cat"], "cwd": work.join("deep") });
        for (name, value) in change.as_object().expect("an object") {
            body[name] = value.clone();
        }
        send(address, "POST /v1/sessions", &ci, &body.to_string())
    };
    for (change, words) in [
        (json!({ "cwd": "/" }), ["cwd", "\"/\"", "/work"]),
        (json!({ "cwd": null }), ["cwd", "null", "/work"]),
        (json!({ "agent": "acp" }), ["agent", "\"acp\"", "[\"command\"]"]),
        (json!({ "permissionMode": "allow" }), ["permissionMode", "\"allow\"", "[\"ask\"]"]),
        (json!({ "limits": { "processes": 51 } }), ["limits.processes", "51", "50"]),
        (json!({ "userId": "bob" }), ["agent", "policy.users.bob", "[]"]),
    ] {
        let Answer { status, body, .. } = start(&change);
        assert_eq!((status, &body["type"]), (403, &json!("refused")), "{change}: {body}");
        let detail = body["detail"].as_str().expect("text");
        assert!(words.iter().all(|word| detail.contains(word)), "{change}: {detail}");
    }
    assert_eq!(send(address, "GET /v1/sessions", &ci, "").body, json!([]), "nothing has started");
    // The local socket is no way around it, nor is an event that asks for a session.
    daemon.run(&["start", "--agent", "command", "--cwd", "/", "--", "cat"]).exits(8);
    let first = start(&json!({ "sessionId": "s" }));
    assert_eq!(first.status, 201, "{}", first.body);
    let event = r#"{"type":"agent:action:session-create:called","payload":{"config":{"agent":"command","command":["cat"],"cwd":"/"}}}"#;
    for stream in ["sessions/s", "streams/s", "streams/before-its-session"] {
        assert_eq!(send(address, &format!("POST /v1/{stream}/events"), &ci, event).status, 403, "{stream}");
    }
    assert_eq!(start(&json!({ "sessionId": "t" })).status, 201);
    let third = start(&json!({}));
    assert!(
        third.status == 403 && third.body["detail"].as_str().expect("text").contains("max-sessions"),
        "{}",
        third.body
    );
    daemon.run(&["kill", "s", "t"]).exits(0);
    drop(daemon);
    fs::write(&file, "[policy]\ncwds = []\n").expect("written");
    let refused = place.run(&["serve", "--json", "--policy", file.to_str().expect("UTF-8")]).exits(2).problem();
    assert!(refused["detail"].as_str().expect("text").contains("cwds"), "{refused}");
}

#[test]
fn a_user_of_a_trusted_proxy_has_sessions_of_its_own() {
    let place = Place::new();
    let (daemon, address) = place.serve_network(&["--trust-header", "X-Forwarded-User", "--trust-from", "127.0.0.1"]);
    let ada = ["X-Forwarded-User: ada".to_owned(), "Sec-Fetch-Site: same-origin".to_owned()];
    let known = send(address, "GET /v1/whoami", &ada, "").body;
    assert_eq!(known, json!({ "name": "ada", "role": "operate", "user": "ada" }));
    assert_eq!(send(address, "POST /v1/sessions", &ada, START).status, 201);
    assert_eq!(send(address, "GET /v1/sessions/s", &["X-Forwarded-User: bob".to_owned()], "").status, 404);
    assert_eq!(send(address, "GET /v1/sessions", &[], "").status, 401);
    daemon.run(&["kill", "s"]).exits(0);
    drop(daemon);
    let (_daemon, address) = place.serve_network(&["--trust-header", "X-Forwarded-User", "--trust-from", "192.0.2.1"]);
    assert_eq!(send(address, "GET /v1/whoami", &ada, "").status, 401, "it comes from elsewhere");
}

#[test]
fn a_caller_that_asks_too_often_waits_and_its_kill_does_not() {
    let place = Place::new();
    let (daemon, address) = place.serve_network(&["--max-request-rate", "1"]);
    let (fast, other) = (bearer(&token(&daemon, &["fast"])), bearer(&token(&daemon, &["other"])));
    assert_eq!(send(address, "POST /v1/sessions", &fast, START).status, 201);
    // On one connection, faster than the rate whatever else this machine does.
    let many = |caller: &[String]| {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("set");
        for number in 1..=60 {
            let end = if number == 60 { "Connection: close\r\n" } else { "" };
            let request = format!("GET /v1/version HTTP/1.1\r\nHost: {address}\r\n{}\r\n{end}\r\n", caller[0]);
            stream.write_all(request.as_bytes()).expect("written");
        }
        let mut answers = String::new();
        stream.read_to_string(&mut answers).expect("its end");
        answers
    };
    let answers = many(&fast);
    assert!(answers.contains("HTTP/1.1 429") && answers.contains("rate-limited"), "{answers}");
    assert!(answers.contains("retry-after: 1"), "{answers}");
    assert_eq!(send(address, "GET /v1/health", &other, "").status, 200, "another caller");
    assert_eq!(send(address, "POST /v1/sessions/s/kill", &fast, "{}").status, 200);
    // Whoever guesses learns nothing, and shuts out nobody who has a token.
    let answers = many(&bearer("agent_proxy_guess"));
    assert_eq!(answers.matches("HTTP/1.1 401").count(), 60, "{answers}");
    let status = send(address, "POST /v1/sessions/s/kill", &other, "{}").status;
    assert!(![401, 429].contains(&status), "{status}");
}

#[test]
fn connections_are_encrypted_with_a_certificate() {
    let place = Place::new();
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("a certificate");
    let (cert, key) = (place.directory.join("cert.pem"), place.directory.join("key.pem"));
    fs::write(&cert, made.cert.pem()).expect("written");
    fs::write(&key, made.signing_key.serialize_pem()).expect("written");
    let (cert, key) = (cert.to_str().expect("UTF-8"), key.to_str().expect("UTF-8"));
    let (daemon, address) = place.serve_network(&["--tls-cert", cert, "--tls-key", key]);
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(made.cert.der().to_vec())).expect("a root");
    let config =
        ClientConfig::builder_with_provider(Arc::new(default_provider())).with_safe_default_protocol_versions();
    let config = Arc::new(config.expect("versions").with_root_certificates(roots).with_no_client_auth());
    let ask = |request: &str| {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("set");
        let name = "127.0.0.1".try_into().expect("a name");
        let mut stream = StreamOwned::new(ClientConnection::new(config.clone(), name).expect("a client"), stream);
        write!(stream, "{request} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n").expect("written");
        stream.write_all(b"\r\n").expect("written");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("its end");
        answer
    };
    assert!(ask("GET /v1/sessions").starts_with("HTTP/1.1 401"));
    let printed = daemon.run(&["login-link"]).exits(0).stdout;
    let path = printed.trim().strip_prefix(&format!("https://{address}")).expect("encrypted");
    // A command trusts what the system trusts, and nothing else.
    let url = format!("https://{address}");
    let command = |authorities: &str| {
        let mut command = place.command(&["--url", &url, "sessions", "--json"]);
        command.env("SSL_CERT_FILE", authorities).env_remove("SSL_CERT_DIR");
        Running::new(command).end()
    };
    assert_eq!(command(cert).exits(0).json(), json!([]));
    let refused = command(key).exits(4).problem();
    assert!(refused["detail"].as_str().expect("text").contains("certificates"), "{refused}");
    let answer = ask(&format!("GET {path}"));
    assert!(answer.starts_with("HTTP/1.1 303") && answer.contains("; Secure\r\n"), "{answer}");
    // One that does not encrypt gets nothing.
    let mut plain = TcpStream::connect(address).expect("it listens");
    plain.set_read_timeout(Some(DEADLINE)).expect("set");
    plain.write_all(format!("GET /v1/sessions HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).expect("written");
    let mut answer = Vec::new();
    // A reset is an end, too.
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/"), "{answer:?}");
    drop(daemon);
    for flags in [["--tls-cert", key, "--tls-key", key], ["--tls-cert", cert, "--tls-key", cert]] {
        let serve = [&["serve", "--json", "--listen", "127.0.0.1:0"], flags.as_slice()].concat();
        let refused = place.run(&serve).exits(2).problem();
        assert!(refused["detail"].as_str().expect("text").contains(".pem has no"), "{refused}");
    }
    // Encrypted, other machines are listened to.
    let all = ["serve", "--json", "--listen", "0.0.0.0:0", "--tls-cert", cert, "--tls-key", key];
    let mut running = place.spawn(&all);
    assert!(running.line().is_some_and(|line| line.contains("0.0.0.0")), "{}", running.end().stderr);
}

#[test]
fn where_nothing_can_be_hidden_there_is_no_network() {
    if !nix::unistd::geteuid().is_root() || !Path::new(SETPRIV).exists() {
        return not_run("access: takes root, and setpriv");
    }
    let place = Place::new();
    let bare = [
        zoo::PROGRAM,
        ":without",
        "landlock",
        SETPRIV,
        "--bounding-set",
        "-all",
        "--inh-caps",
        "-all",
        PROGRAM,
        "serve",
        "--json",
        "--listen",
        "127.0.0.1:0",
    ];
    let refused = place.run_as(&bare).exits(6).problem();
    let detail = refused["detail"].as_str().expect("text");
    assert!(refused["type"] == "containment-unavailable" && detail.contains("--insecure"), "{detail}");
    assert!(detail.contains("CAP_SYS_ADMIN"), "it says what is missing: {detail}");
    assert!(detail.contains("hidden files by landlock"), "of both layers: {detail}");
    let mut running = place.spawn_as(&[&bare[..], &["--insecure"]].concat());
    assert!(running.line().is_some_and(|line| line.contains("127.0.0.1")), "{}", running.end().stderr);
}
