//! Streams of events: server-sent, and as pages.

use axum::http::StatusCode;
use serde_json::Value;

use crate::support::{ApiUnderTest, BodyReader, text};

const SSE: (&str, &str) = ("accept", "text/event-stream");

/// Server-sent event.
#[derive(Debug)]
struct SentEvent {
    id: u64,
    json: Value,
}

impl SentEvent {
    async fn next(reader: &mut BodyReader) -> Self {
        // In silence there are signs of life.
        let block = loop {
            let block = reader.until("\n\n").await;
            if !block.starts_with(':') {
                break block;
            }
        };
        let (id, data) = block.split_once('\n').unwrap_or_else(|| panic!("{block:?}"));
        Self {
            id: id.strip_prefix("id: ").expect("an id").parse().expect("a decimal number"),
            json: serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON"),
        }
    }

    async fn of_type(reader: &mut BodyReader, kind: &str) -> Self {
        loop {
            let event = Self::next(reader).await;
            if event.json["type"] == kind {
                return event;
            }
        }
    }
}

#[tokio::test]
async fn a_session_s_events_come_as_they_happen_and_go_on_after_the_last_that_was_seen() {
    let api = ApiUnderTest::new().await;
    api.start("s-1").await;
    let answer = api.send("GET /v1/sessions/s-1/events?raw=false", &[SSE], "").await;
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let mut reader = BodyReader::new(answer);
    api.turn("s-1", "say one").await;
    let said = SentEvent::of_type(&mut reader, "stream:text").await;
    assert_eq!((said.json["offset"].as_str(), said.id), (Some(format!("{:020}", said.id).as_str()), said.id));
    api.turn("s-1", "say two").await;
    drop(reader);

    let id = said.id.to_string();
    let answer = api.send("GET /v1/sessions/s-1/events?from=3", &[SSE, ("last-event-id", &id)], "").await;
    let mut reader = BodyReader::new(answer);
    assert_eq!(SentEvent::next(&mut reader).await.id, said.id + 1, "the header counts more than the query");
    let said = SentEvent::of_type(&mut reader, "stream:text").await;
    assert_eq!(said.json["payload"]["text"], "two\n");

    // The end of the session is the end of the stream; the last id is that of the last event, selected or not.
    let mut filtered = BodyReader::new(api.send("GET /v1/sessions/s-1/events?type=stream:*", &[SSE], "").await);
    assert_eq!(SentEvent::next(&mut filtered).await.json["type"], "stream:text");
    api.json("POST /v1/sessions/s-1/kill", "{}").await;
    let rest = filtered.rest().await;
    let last = rest.trim_end().rsplit("\n\n").next().expect("a block").strip_prefix("id: ").expect("an id").to_owned();
    assert!(!rest.contains("session:"), "{rest}");
    for from in [last.as_str(), "latest"] {
        let path = format!("GET /v1/sessions/s-1/events?from={from}");
        assert_eq!(api.send(&path, &[SSE], "").await.status(), StatusCode::NO_CONTENT, "a browser would come again");
    }
    let before = last.parse::<u64>().expect("a number") - 1;
    let answer = api.send(&format!("GET /v1/sessions/s-1/events?from={before}"), &[SSE], "").await;
    assert!(text(answer).await.contains("session:ended"));
    api.end().await;
}

#[tokio::test]
async fn the_events_of_all_sessions_have_positions_and_come_as_they_happen() {
    let api = ApiUnderTest::durable().await;
    api.start("a").await;
    let mut reader = BodyReader::new(api.send("GET /v1/events?type=stream:text", &[SSE], "").await);
    let mut late = BodyReader::new(api.send("GET /v1/events?from=latest&type=session:started", &[SSE], "").await);
    api.turn("a", "say one").await;
    let one = SentEvent::next(&mut reader).await;
    api.start("b").await;
    assert_eq!(SentEvent::next(&mut late).await.json["eventStreamId"], "b", "what was there before is left out");
    api.turn("b", "say two").await;
    let two = SentEvent::next(&mut reader).await;
    assert_eq!((one.json["eventStreamId"].as_str(), two.json["eventStreamId"].as_str()), (Some("a"), Some("b")));
    assert!(one.id < two.id, "{one:?} {two:?}");
    let position: u64 = two.json["position"].as_str().expect("a position").parse().expect("digits");
    assert_eq!(position, two.id);

    // Pages over the same events.
    let mut found = Vec::new();
    let mut next = "0".to_owned();
    loop {
        let (status, page) = api.json(&format!("GET /v1/events?type=stream:text&limit=1&from={next}"), "").await;
        assert_eq!(status, StatusCode::OK, "{page}");
        found.extend(page["events"].as_array().expect("events").iter().map(|event| event["eventStreamId"].clone()));
        next = page["next"].as_str().expect("digits").to_owned();
        if page["more"] == false {
            break;
        }
    }
    assert_eq!(found, ["a", "b"]);
    api.end().await;
}

#[tokio::test]
async fn a_page_has_so_many_events_and_says_where_the_next_begins() {
    let api = ApiUnderTest::new().await;
    api.start("s-1").await;
    api.turn("s-1", "say one\nsay two").await;
    let (_, all) = api.json("GET /v1/sessions/s-1/events", "").await;
    let all = all["events"].as_array().expect("events").clone();
    let (mut paged, mut next) = (Vec::new(), "0".to_owned());
    loop {
        let (_, page) = api.json(&format!("GET /v1/sessions/s-1/events?limit=3&from={next}"), "").await;
        let events = page["events"].as_array().expect("events");
        assert!(events.len() <= 3);
        paged.extend(events.iter().cloned());
        next = page["next"].as_str().expect("digits").to_owned();
        if page["more"] == false {
            break;
        }
    }
    assert_eq!(paged[..all.len()], all[..]);
    api.end().await;
}

#[tokio::test]
async fn what_is_no_offset_is_refused() {
    let api = ApiUnderTest::new().await;
    api.start("s-1").await;
    for (path, headers) in [
        ("/v1/sessions/s-1/events?from=noon", vec![SSE]),
        ("/v1/sessions/s-1/events", vec![SSE, ("last-event-id", "-1")]),
        ("/v1/sessions/s-1/events?limit=0", vec![("accept", "application/json")]),
        ("/v1/events?from=0", vec![SSE]),
    ] {
        let answer = api.send(&format!("GET {path}"), &headers, "").await;
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "{path}");
        assert_eq!(answer.headers()["content-type"], "application/problem+json");
    }
    api.end().await;
}

/// A reader that selects nothing that happens gets a sign of life with the last offset that it need not ask for again.
#[tokio::test]
async fn a_silent_stream_shows_that_it_lives() {
    let api = ApiUnderTest::new().await;
    api.start("s-1").await;
    api.turn("s-1", "say one").await;
    let last = api.manager.session(&"s-1".parse().expect("an id")).expect("there").info().last_offset;
    let mut reader = BodyReader::new(api.send("GET /v1/sessions/s-1/events?type=nothing:*", &[SSE], "").await);
    let sign = tokio::time::timeout(std::time::Duration::from_secs(40), reader.until("\n\n")).await;
    let sign = sign.expect("in time");
    let seen = sign.strip_prefix(": heartbeat\nid: ").and_then(|offset| offset.parse::<u64>().ok());
    // What its processes do may be told after the turn.
    assert!(seen.is_some_and(|seen| seen >= last), "{sign} {last}");
    api.end().await;
}
