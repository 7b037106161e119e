//! The way out, between a client and a server of the test's own.

use tokio::task::JoinHandle;

use super::{client_hello::tests::client_hello, *};

/// A way out with these rules, for sockets of this process.
fn shared(rules: &[String]) -> Arc<EgressShared> {
    let rules = rules.iter().map(|rule| rule.parse().expect("a rule")).collect();
    Arc::new(EgressShared::new(rules, "net:[1]".to_owned(), Arc::default()))
}

/// A server that answers one connection once what it got ends with `awaited`, and returns all that it got.
async fn server(awaited: &'static [u8], answer: &'static str) -> (u16, JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let port = listener.local_addr().expect("an address").port();
    let task = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("accepted");
        let mut got = Vec::new();
        while !got.ends_with(awaited) && stream.read_buf(&mut got).await.unwrap_or(0) > 0 {}
        stream.write_all(answer.as_bytes()).await.expect("answered");
        got
    });
    (port, task)
}

/// Sends a request to the proxy, and returns all that comes back.
async fn ask(shared: &Arc<EgressShared>, request: &[u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("an address");
    let (ours, theirs) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (mut client, (theirs, _)) = (ours.expect("connected"), theirs.expect("accepted"));
    let shared = shared.clone();
    let served = tokio::spawn(async move { shared.serve_proxy(theirs, None).await });
    client.write_all(request).await.expect("sent");
    let mut text = Vec::new();
    let _ = timeout(Duration::from_secs(20), client.read_to_end(&mut text)).await.expect("an end");
    served.abort();
    String::from_utf8_lossy(&text).into_owned()
}

/// Hosts and reasons of refusals so far.
fn refusals(shared: &EgressShared) -> Vec<(String, u16, String)> {
    let refused = |event: Event| match event {
        Event::NetworkRefused(refusal) => Some((refusal.host, refusal.port, refusal.reason)),
        _ => None,
    };
    shared.events().drain(..).filter_map(refused).collect()
}

#[tokio::test]
async fn a_host_without_a_rule_is_refused() {
    let shared = shared(&["allowed.example".into(), "*.below.example".into()]);
    for (request, host, port) in [
        ("CONNECT evil.example:443 HTTP/1.1\r\n\r\n", "evil.example", 443),
        ("CONNECT allowed.example:22 HTTP/1.1\r\n\r\n", "allowed.example", 22),
        ("CONNECT allowed.example.evil.example:443 HTTP/1.1\r\n\r\n", "allowed.example.evil.example", 443),
        ("CONNECT below.example:443 HTTP/1.1\r\n\r\n", "below.example", 443),
        ("CONNECT 169.254.169.254:80 HTTP/1.1\r\n\r\n", "169.254.169.254", 80),
        ("CONNECT [::ffff:169.254.169.254]:80 HTTP/1.1\r\n\r\n", "169.254.169.254", 80),
        ("GET http://evil.example/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n", "evil.example", 80),
        ("GET http://[::1]:8080/ HTTP/1.1\r\n\r\n", "::1", 8080),
    ] {
        let answer = ask(&shared, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{request}: {answer}");
        assert_eq!(refusals(&shared), [(host.to_owned(), port, "no rule allows it".to_owned())]);
    }
    for request in [
        "CONNECT user@allowed.example:443 HTTP/1.1\r\n\r\n",
        "CONNECT allowed.example HTTP/1.1\r\n\r\n",
        "GET http://allowed.example@evil.example/ HTTP/1.1\r\n\r\n",
        "GET https://allowed.example/ HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n",
    ] {
        let answer = ask(&shared, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{request}: {answer}");
    }
}

#[tokio::test]
async fn a_plain_request_goes_alone_and_with_the_host_that_was_allowed() {
    let (port, server) = server(b"abc", "HTTP/1.1 200 OK\r\n\r\nanswer").await;
    let shared = shared(&[format!("localhost:{port}")]);
    let request = format!(
        "POST http://localhost:{port}/path HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"
    );
    let answer = ask(&shared, request.as_bytes()).await;
    assert_eq!(answer, "HTTP/1.1 200 OK\r\n\r\nanswer");
    let got = String::from_utf8(server.await.expect("served")).expect("text");
    let expected =
        format!("POST /path HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc");
    assert_eq!(got, expected);
    let events: Vec<Event> = shared.events().drain(..).collect();
    let [Event::NetworkConnection(connection)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((connection.host.as_str(), connection.port), ("localhost", port));
    assert_eq!((connection.sent, connection.received), (got.len() as u64, answer.len() as u64));
}

#[tokio::test]
async fn a_tunnel_leads_to_its_host() {
    let (port, server) = server(b"ping", "pong").await;
    let shared = shared(&[format!("localhost:{port}")]);
    let answer = ask(&shared, format!("CONNECT localhost:{port} HTTP/1.1\r\n\r\nping").as_bytes()).await;
    assert_eq!(answer, "HTTP/1.1 200 Connection established\r\n\r\npong");
    assert_eq!(server.await.expect("served"), b"ping");
}

#[tokio::test]
async fn a_greeting_names_the_host_of_its_tunnel() {
    let ((port, first), (next_port, second)) = (server(b"never", "").await, server(b"never", "").await);
    let shared = shared(&[format!("localhost:{port}"), format!("localhost:{next_port}"), "localhost".into()]);
    let reason = "the TLS greeting names another host".to_owned();
    for port in [443, port] {
        let request =
            [format!("CONNECT localhost:{port} HTTP/1.1\r\n\r\n").as_bytes(), &client_hello("evil.example")].concat();
        let answer = ask(&shared, &request).await;
        assert_eq!(answer, "HTTP/1.1 200 Connection established\r\n\r\n");
        assert_eq!(refusals(&shared), [("localhost".to_owned(), port, reason.clone())]);
    }
    // What cannot be understood, where anything but TLS could be.
    let request =
        [format!("CONNECT localhost:{next_port} HTTP/1.1\r\n\r\n").as_bytes(), &[0x16, 3, 1, 0, 4, 9, 0, 0, 0]]
            .concat();
    ask(&shared, &request).await;
    let reason = "the TLS greeting cannot be understood".to_owned();
    assert_eq!(refusals(&shared), [("localhost".to_owned(), next_port, reason)]);
    for server in [first, second] {
        assert!(server.await.expect("served").is_empty(), "nothing of it came through");
    }
    let plain = ask(&shared, b"CONNECT localhost:443 HTTP/1.1\r\n\r\nSSH-2.0-x\r\n").await;
    assert_eq!(plain, "HTTP/1.1 200 Connection established\r\n\r\n");
    assert_eq!(refusals(&shared)[0].2, "a connection to port 443 begins with a TLS greeting");
    let other =
        ask(&shared, b"CONNECT localhost:80 HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n").await;
    assert!(other.contains("HTTP/1.1 403 "), "{other}");
}

#[tokio::test]
async fn a_name_that_leads_to_this_machine_is_refused() {
    let shared = shared(&["localhost.localdomain:1".into(), "*.localhost:1".into()]);
    for (host, is_exact) in [("localhost.localdomain", true), ("a.localhost", false)] {
        let found = shared.look_up(&Authority { host: host.into(), port: 1 }, is_exact).await;
        // Not every machine knows the name.
        assert!(found.as_ref().is_ok_and(Vec::is_empty) || found.is_err(), "{found:?}");
    }
}

#[tokio::test]
async fn events_are_bounded_and_their_loss_is_told() {
    let egress = SessionEgress { shared: shared(&[]), _tasks: JoinSet::new() };
    for number in 0..MAX_EVENTS + 3 {
        egress.shared.refuse(&format!("{number}.example"), 0, "the network is off", None);
    }
    let events = egress.take_events();
    assert_eq!(events.len(), MAX_EVENTS + 1);
    assert!(matches!(events.last(), Some(Event::SessionLossy { reason }) if reason.starts_with("3 events")));
}
