//! Processes of a session: what is listed, signals, kills.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::support::{ApiUnderTest, DEADLINE};

/// Lists the processes until one fits.
async fn listed(api: &ApiUnderTest, fits: impl Fn(&Value) -> bool) -> Value {
    let look = async {
        loop {
            let (status, processes) = api.json("GET /v1/sessions/s-1/processes", "").await;
            assert_eq!(status, StatusCode::OK, "{processes}");
            if let Some(found) = processes.as_array().and_then(|processes| processes.iter().find(|listed| fits(listed)))
            {
                return found.clone();
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, look).await.expect("listed in time")
}

fn runs(command: &str) -> impl Fn(&Value) -> bool {
    move |listed| listed["command"] == command && listed["status"] == "running"
}

#[tokio::test]
async fn a_process_has_its_age_what_it_left_and_its_ports() {
    let api = ApiUnderTest::new().await;
    api.start("s-1").await;
    let listen = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); time.sleep(600)";
    let program =
        ["/usr/bin/python3", "/usr/bin/perl"].into_iter().find(|program| std::path::Path::new(program).exists());
    let program = program.expect("python3 or perl, to listen on a port");
    let listener = match program {
        "/usr/bin/python3" => format!("setsid exec /usr/bin/python3 -c \"{listen}\""),
        _ => "setsid exec /usr/bin/perl -MIO::Socket::INET -e 'my $s = IO::Socket::INET->new(Listen => 1, LocalAddr => \"127.0.0.1\"); \
              sleep 600'"
            .to_owned(),
    };
    api.turn("s-1", &listener).await;
    let found = listed(&api, |listed| !listed["listening"].as_array().is_none_or(Vec::is_empty)).await;
    let socket = &found["listening"][0];
    assert_eq!((&socket["protocol"], &socket["address"]), (&"tcp".into(), &"127.0.0.1".into()), "{found}");
    assert!(socket["port"].as_u64().is_some_and(|port| port > 0), "{found}");
    assert_eq!(found["marks"], json!(["leftSession"]), "{found}");
    assert!(found["ageMs"].is_u64() && found["ppid"].is_u64(), "{found}");
    api.end().await;
}

#[tokio::test]
async fn one_process_gets_any_signal() {
    let api = ApiUnderTest::new().await;
    api.start("s-1").await;
    api.turn("s-1", "spawn exec sleep 601\nspawn exec sleep 602").await;
    let target = listed(&api, |listed| runs("sleep")(listed) && listed["args"][0] == "601").await;
    let (pid, start_time) = (&target["id"]["pid"], &target["id"]["startTime"]);
    let route = format!("POST /v1/sessions/s-1/processes/{pid}/signal");
    // The process that had the pid before is not this one.
    let (status, problem) = api.json(&route, r#"{"signal":"SIGUSR1","startTime":1}"#).await;
    assert_eq!((status, &problem["type"]), (StatusCode::NOT_FOUND, &"unknown-process".into()), "{problem}");
    for (body, words) in [
        (r#"{"signal":"SIGDANCE"}"#, "SIGDANCE"),
        (r#"{"signal":0}"#, "from 1 to 64"),
        ("{}", "missing field `signal`"),
        (r#"{"signal":"INT","pid":1}"#, "unknown field `pid`"),
    ] {
        let (status, problem) = api.json(&route, body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}: {problem}");
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains(words)), "{body}: {problem}");
    }
    let ours = std::process::id();
    for (pid, status) in [("0".to_owned(), StatusCode::BAD_REQUEST), (ours.to_string(), StatusCode::NOT_FOUND)] {
        let refused = api.json(&format!("POST /v1/sessions/s-1/processes/{pid}/signal"), r#"{"signal":"TERM"}"#).await;
        assert_eq!(refused.0, status, "{}", refused.1);
    }
    let still = listed(&api, |listed| runs("sleep")(listed) && listed["args"][0] == "601").await;
    assert_eq!(&still["id"]["pid"], pid, "nothing was changed");
    // A real-time signal, which a program ends of.
    let body = json!({ "signal": "34", "startTime": start_time }).to_string();
    let (status, sent) = api.json(&route, &body).await;
    assert_eq!((status, &sent["process"], &sent["signal"]), (StatusCode::OK, &target["id"], &"34".into()), "{sent}");
    let gone = listed(&api, |listed| listed["id"]["pid"] == *pid && listed["status"] != "running").await;
    assert_eq!(gone["exit"], json!({ "signal": 34 }), "{gone}");
    assert_eq!((&gone["ageMs"], &gone["listening"]), (&Value::Null, &json!([])));
    listed(&api, |listed| runs("sleep")(listed) && listed["args"][0] == "602").await;
    api.end().await;
}

#[tokio::test]
async fn one_process_or_its_tree_is_killed() {
    let api = ApiUnderTest::new().await;
    api.start("s-1").await;
    api.turn("s-1", "spawn sleep 603 & sleep 604; true").await;
    let top = listed(&api, |listed| runs("/bin/sh")(listed) || runs("sh")(listed)).await;
    listed(&api, |listed| runs("sleep")(listed) && listed["args"][0] == "604").await;
    let route = format!("DELETE /v1/sessions/s-1/processes/{}?tree=true&graceMs=0", top["id"]["pid"]);
    let (status, receipt) = api.json(&route, "").await;
    assert_eq!((status, &receipt["cause"]), (StatusCode::OK, &"killProcess".into()), "{receipt}");
    assert_eq!(receipt["processes"].as_array().map(Vec::len), Some(3), "{receipt}");
    assert_eq!(api.json(&route, "").await.0, StatusCode::NOT_FOUND);
    let (status, problem) = api.json("DELETE /v1/sessions/s-1/processes/1?colour=red", "").await;
    assert_eq!((status, &problem["type"]), (StatusCode::BAD_REQUEST, &"usage".into()), "{problem}");
    api.end().await;
}
