use std::net::Ipv6Addr;

use agents::HttpPatience;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::oneshot,
    time::timeout,
};

use super::*;

/// Deadline of a test: a test that hangs fails.
const SOON: Duration = Duration::from_secs(120);

fn endpoint(url: impl Into<String>) -> AgentEndpoint {
    AgentEndpoint { url: Some(url.into()), user: "opencode".into(), password: Some("pa:ss".into()) }
}

fn get(id: u64, path: &str, patience: HttpPatience) -> HttpRequest {
    HttpRequest { id, method: "GET", path: path.into(), body: None, patience, emits_raw: false }
}

async fn server() -> (TcpListener, String) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    (listener, url)
}

fn client(url: &str, deadline: Duration) -> HttpClients {
    HttpClients { client: Some(Box::new(HttpClient::new(target(&endpoint(url)), deadline))), network: None }
}

/// Accepts a connection and reads its request to the end of the head.
async fn accept(listener: &TcpListener) -> (TcpStream, String) {
    let (mut stream, _) = timeout(SOON, listener.accept()).await.expect("a connection in time").expect("accepted");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("a byte of the head"));
    }
    (stream, String::from_utf8(head).expect("text"))
}

async fn answer(listener: &TcpListener, text: &str) -> String {
    let (mut stream, head) = accept(listener).await;
    stream.write_all(text.as_bytes()).await.expect("answered");
    head
}

async fn next(http: &mut HttpClients) -> ResponsePiece {
    loop {
        if let Some(answered) = http.take() {
            return answered;
        }
        timeout(SOON, http.readable()).await.expect("an answer in time");
    }
}

/// Returns whether `outcome` is the last of its request.
fn is_last(outcome: &HttpOutcome) -> bool {
    matches!(outcome, HttpOutcome::End | HttpOutcome::Failed(_))
}

async fn outcome(http: &mut HttpClients) -> HttpOutcome {
    next(http).await.outcome
}

async fn failure(http: &mut HttpClients) -> String {
    match outcome(http).await {
        HttpOutcome::Failed(why) => why,
        other => panic!("no failure: {other:?}"),
    }
}

#[tokio::test]
async fn a_request_is_answered_and_carries_the_password() {
    let (listener, url) = server().await;
    let mut http = client(&url, SOON);
    let body = br#"{"a":1}"#;
    let path = "/session?directory=%2Ftmp";
    let request = HttpRequest { method: "POST", body: Some(body.to_vec()), ..get(7, path, HttpPatience::Short) };
    http.request(request);
    let (mut stream, head) = accept(&listener).await;
    let mut sent = [0; 7];
    stream.read_exact(&mut sent).await.expect("the body");
    stream.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 4\r\n\r\ntrue").await.expect("answered");
    assert!(head.starts_with("POST /session?directory=%2Ftmp HTTP/1.1\r\n"), "{head}");
    // base64 of opencode:pa:ss
    assert!(head.contains("authorization: Basic b3BlbmNvZGU6cGE6c3M=\r\n"), "{head}");
    assert!(head.contains("content-type: application/json\r\n"), "{head}");
    assert!(head.contains(&format!("host: {}\r\n", &url["http://".len()..])), "{head}");
    assert_eq!(&sent, body);
    let answered = [next(&mut http).await, next(&mut http).await, next(&mut http).await];
    let expected = [HttpOutcome::Head(201), HttpOutcome::Body("true".into()), HttpOutcome::End];
    assert_eq!(answered, expected.map(|outcome| ResponsePiece { id: 7, stream: false, emits_raw: false, outcome }));
    assert_eq!(http.take(), None);
}

#[tokio::test]
async fn a_stream_comes_as_it_is_written_and_its_cut_is_told() {
    let (listener, url) = server().await;
    let mut http = client(&url, SOON);
    http.request(get(1, "/event", HttpPatience::Stream));
    let (mut stream, _) = accept(&listener).await;
    stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\ndata:\r\n").await.expect("written");
    assert_eq!(outcome(&mut http).await, HttpOutcome::Head(200));
    assert_eq!(
        next(&mut http).await,
        ResponsePiece { id: 1, stream: true, emits_raw: false, outcome: HttpOutcome::Body("data:".into()) }
    );
    stream.write_all(b"3\r\n hi\r\n").await.expect("written");
    assert_eq!(outcome(&mut http).await, HttpOutcome::Body(" hi".into()));
    drop(stream);
    let why = failure(&mut http).await;
    assert!(!why.is_empty());
    assert_eq!(http.take(), None);
}

#[tokio::test]
async fn a_stream_that_ends_as_it_should_ends() {
    let (listener, url) = server().await;
    let mut http = client(&url, SOON);
    http.request(get(1, "/event", HttpPatience::Stream));
    answer(&listener, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n").await;
    let outcomes = [outcome(&mut http).await, outcome(&mut http).await, outcome(&mut http).await];
    assert_eq!(outcomes, [HttpOutcome::Head(200), HttpOutcome::Body("hi".into()), HttpOutcome::End]);
}

/// A client that does not take the answer blocks the server: the server cannot write for ever.
#[tokio::test]
async fn a_stream_that_nobody_takes_is_not_read() {
    let (listener, url) = server().await;
    let mut http = client(&url, SOON);
    http.request(get(1, "/event", HttpPatience::Stream));
    let (mut stream, _) = accept(&listener).await;
    stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n").await.expect("written");
    let total = 64 * 1024 * 1024;
    let (stuck, is_stuck) = oneshot::channel();
    let writer = tokio::spawn(async move {
        let (block, mut written, mut stuck, mut idle) = (vec![b'x'; 64 * 1024], 0, Some(stuck), 0);
        while written < total {
            match stream.try_write(&block) {
                Ok(some) => (written, idle) = (written + some, 0),
                // No amount of other work makes room.
                Err(_would_block) if idle < 1000 => {
                    idle += 1;
                    tokio::task::yield_now().await;
                }
                Err(_would_block) => {
                    if let Some(stuck) = stuck.take() {
                        let _ = stuck.send(written);
                    }
                    stream.writable().await.expect("writable");
                }
            }
        }
    });
    let written = timeout(SOON, is_stuck).await.expect("stuck in time").expect("it said so");
    assert!(written < total, "{written}");
    let mut seen = 0;
    while seen < total {
        match outcome(&mut http).await {
            HttpOutcome::Head(200) => {}
            HttpOutcome::Body(bytes) => {
                assert!(bytes.len() <= 2 * CHUNK, "a piece of {}", bytes.len());
                seen += bytes.len();
            }
            other => panic!("{other:?}"),
        }
    }
    writer.await.expect("all written");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_too_late_is_a_failure() {
    let (listener, url) = server().await;
    // Without a head, with half a body, and a stream without a head: the paused clock advances when all tasks wait.
    for (patience, text) in [
        (HttpPatience::Short, ""),
        (HttpPatience::Short, "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ntr"),
        (HttpPatience::Stream, ""),
    ] {
        let mut http = client(&url, DEADLINE);
        http.request(get(1, "/slow", patience));
        let (mut stream, _) = accept(&listener).await;
        stream.write_all(text.as_bytes()).await.expect("written");
        assert_eq!(failure(&mut http).await, "no answer within 30000 ms", "{text:?}");
        drop(stream);
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_answer_may_take_longer_and_a_stream_as_long_as_it_likes() {
    let (listener, url) = server().await;
    let mut http = client(&url, DEADLINE);
    http.request(get(1, "/summarize", HttpPatience::Long));
    let (mut stream, _) = accept(&listener).await;
    tokio::time::advance(LONG_DEADLINE - DEADLINE).await;
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ntrue").await.expect("written");
    assert_eq!(outcome(&mut http).await, HttpOutcome::Head(200));
    http.request(get(2, "/event", HttpPatience::Stream));
    let (mut stream, _) = accept(&listener).await;
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.expect("written");
    let rest = [outcome(&mut http).await, outcome(&mut http).await, outcome(&mut http).await];
    assert_eq!(rest, [HttpOutcome::Body("true".into()), HttpOutcome::End, HttpOutcome::Head(200)]);
    tokio::time::advance(DEADLINE * 20).await;
    stream.write_all(b"data").await.expect("written");
    assert_eq!(outcome(&mut http).await, HttpOutcome::Body("data".into()));
}

#[tokio::test(start_paused = true)]
async fn hung_requests_end_and_a_short_one_waits_for_none_of_the_long() {
    let (listener, url) = server().await;
    let mut http = client(&url, DEADLINE);
    http.client.as_mut().expect("there").long_deadline = DEADLINE * 2;
    let many = u64::try_from(CONCURRENT).expect("small");
    let mut hung = Vec::new();
    for id in 0..=many {
        http.request(get(id, "/summarize", HttpPatience::Long));
    }
    for _ in 0..CONCURRENT {
        hung.push(accept(&listener).await.0);
    }
    http.request(get(99, "/abort", HttpPatience::Short));
    answer(&listener, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let head = next(&mut http).await;
    assert_eq!((head.id, head.outcome), (99, HttpOutcome::Head(200)));
    // Short requests wait for others of their kind, with no connection yet.
    for id in 100..=100 + many {
        http.request(get(id, "/hangs", HttpPatience::Short));
    }
    for _ in 0..CONCURRENT {
        hung.push(accept(&listener).await.0);
    }
    let (mut short, mut long) = (0, 0);
    while short + long < 2 * CONCURRENT + 2 {
        let answered = next(&mut http).await;
        match (&answered.outcome, answered.id) {
            (HttpOutcome::Failed(why), 100..) if why == "no answer within 30000 ms" => short += 1,
            (HttpOutcome::Failed(why), ..99) if why == "no answer within 60000 ms" => long += 1,
            (_, 99) => {}
            _ => panic!("{answered:?}"),
        }
    }
    assert_eq!((short, long), (CONCURRENT + 1, CONCURRENT + 1));
}

#[tokio::test]
async fn an_answer_longer_than_the_bound_is_a_failure() {
    let (listener, url) = server().await;
    let mut http = client(&url, SOON);
    http.request(get(1, "/huge", HttpPatience::Short));
    let (mut stream, _) = accept(&listener).await;
    let writer = tokio::spawn(async move {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n").await;
        let block = vec![b'x'; 1024 * 1024];
        // Until the client closes the connection.
        while stream.write_all(&block).await.is_ok() {}
    });
    assert_eq!(failure(&mut http).await, "its answer is longer than 8388608 bytes");
    timeout(SOON, writer).await.expect("the connection is closed").expect("no panic");
}

#[tokio::test]
async fn what_is_not_on_this_machine_is_refused() {
    for url in [
        "http://192.0.2.1:4096",
        "http://example.com:4096",
        "http://[2001:db8::1]:1",
        "http://0.0.0.0:1",
        "http://127.0.0.1.example.com:1",
        "https://127.0.0.1:1",
        "http://127.0.0.1:1/path",
        "http://user:secret@127.0.0.1:1",
        "127.0.0.1:1",
        "nonsense",
        "",
    ] {
        let mut http = HttpClients::default();
        http.connect(&endpoint(url));
        http.request(get(1, "/", HttpPatience::Short));
        let why = failure(&mut http).await;
        assert!(!why.contains("secret") && !why.contains("pa:ss"), "{why}");
        assert_eq!(http.take(), None, "{url}");
    }
    for (url, ip) in [
        ("http://127.0.0.1:4096", IpAddr::V4(Ipv4Addr::LOCALHOST)),
        ("http://127.8.9.1:4096/", IpAddr::V4(Ipv4Addr::new(127, 8, 9, 1))),
        ("http://localhost:4096", IpAddr::V4(Ipv4Addr::LOCALHOST)),
        ("http://[::1]:4096", IpAddr::V6(Ipv6Addr::LOCALHOST)),
    ] {
        assert_eq!(target(&endpoint(url)).expect(url).address, SocketAddr::new(ip, 4096), "{url}");
    }
    let shown = format!("{:?}", target(&endpoint("http://127.0.0.1:1")));
    assert!(shown.contains("Sensitive") && !shown.contains("b3Blb"), "{shown}");
}

#[tokio::test]
async fn a_request_without_a_server_fails() {
    let mut http = HttpClients::default();
    http.request(get(3, "/", HttpPatience::Short));
    let answered = next(&mut http).await;
    assert_eq!(
        answered,
        ResponsePiece {
            id: 3,
            stream: false,
            emits_raw: false,
            outcome: HttpOutcome::Failed("no server is known yet".into())
        }
    );
    // A port without a listener.
    let (listener, url) = server().await;
    drop(listener);
    http.connect(&endpoint(url.as_str()));
    http.request(get(4, "/", HttpPatience::Short));
    let why = failure(&mut http).await;
    assert!(why.contains(&url["http://".len()..]), "{why}");
    // A server that speaks no HTTP.
    let (listener, url) = server().await;
    http.connect(&endpoint(url.as_str()));
    http.request(get(5, "/", HttpPatience::Short));
    answer(&listener, "SSH-2.0-OpenSSH\r\n\r\n").await;
    failure(&mut http).await;
    http.request(get(6, "no slash", HttpPatience::Short));
    failure(&mut http).await;
    assert_eq!(http.take(), None);
}

#[tokio::test]
async fn requests_are_concurrent_up_to_a_bound() {
    let (listener, url) = server().await;
    let mut http = client(&url, SOON);
    let all = u64::try_from(MAX_REQUESTS).expect("small") + 1;
    for id in 0..all {
        http.request(get(id, &format!("/{id}"), HttpPatience::Short));
    }
    let refused = next(&mut http).await;
    assert_eq!(refused.id, all - 1);
    assert!(matches!(refused.outcome, HttpOutcome::Failed(why) if why.contains("256 requests")));
    let mut streams = Vec::new();
    for _ in 0..CONCURRENT {
        streams.push(accept(&listener).await.0);
    }
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert!(timeout(Duration::ZERO, listener.accept()).await.is_err(), "one more than the bound");
    let ok = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    let answers = tokio::spawn(async move {
        for mut stream in streams {
            stream.write_all(ok).await.expect("answered");
        }
        for _ in CONCURRENT..MAX_REQUESTS {
            let (mut stream, _) = accept(&listener).await;
            stream.write_all(ok).await.expect("answered");
        }
    });
    let mut ended = std::collections::BTreeSet::new();
    while ended.len() < MAX_REQUESTS {
        let answered = next(&mut http).await;
        if is_last(&answered.outcome) {
            assert_eq!(answered.outcome, HttpOutcome::End, "{}", answered.id);
            assert!(ended.insert(answered.id), "{} ended twice", answered.id);
        }
    }
    answers.await.expect("all answered");
}

#[tokio::test]
async fn closing_drops_the_connections() {
    let (listener, url) = server().await;
    let mut http = client(&url, SOON);
    http.request(get(1, "/event", HttpPatience::Stream));
    let (mut stream, _) = accept(&listener).await;
    http.close();
    let read = timeout(SOON, stream.read(&mut [0; 1])).await.expect("closed in time");
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
}

#[tokio::test(start_paused = true)]
async fn the_last_words_of_a_dead_server_are_waited_for_a_moment() {
    let (listener, url) = server().await;
    let mut http = client(&url, SOON);
    assert_eq!(http.drain_deadline(), None, "nothing is open");
    http.request(get(1, "/event", HttpPatience::Stream));
    let (mut stream, _) = accept(&listener).await;
    let until = http.drain_deadline().expect("a stream is open");
    assert_eq!(http.next_due(), Some(until));
    stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nbye").await.expect("written");
    drop(stream);
    while !is_last(&outcome(&mut http).await) {}
    assert_eq!((http.drain_deadline(), http.next_due()), (None, None), "said");
}

/// A server may be restarting; the client gives up on one that never comes.
#[tokio::test]
async fn a_stream_waits_for_a_server_that_is_not_there_yet() {
    // No other test uses this port.
    let listener = TcpListener::bind("127.77.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let mut http = client(&format!("http://{address}"), SOON);
    http.request(get(1, "/event", HttpPatience::Stream));
    http.request(get(2, "/other", HttpPatience::Short));
    assert_eq!(next(&mut http).await.id, 2, "any other fails at once");
    assert_eq!(http.drain_deadline(), None, "nobody has said anything");
    let listener = TcpListener::bind(address).await.expect("the same port");
    answer(&listener, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    assert_eq!([outcome(&mut http).await, outcome(&mut http).await], [HttpOutcome::Head(200), HttpOutcome::End]);
    drop(listener);
    http.request(get(3, "/event", HttpPatience::Stream));
    assert!(failure(&mut http).await.contains("no connection"));
}
