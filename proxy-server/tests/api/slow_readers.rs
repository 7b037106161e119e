//! Readers that do not read.

use axum::http::StatusCode;

use crate::support::{ApiUnderTest, BodyReader, DEADLINE};

/// Resident memory of this process, in bytes.
fn memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("readable");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") * 1024
}

/// A reader that stalls delays nobody, costs a bounded buffer, and gets all events or one gap for what is missing.
#[tokio::test]
async fn a_reader_that_stalls_delays_nobody_and_gets_all_or_one_gap() {
    const EVENTS: usize = 20_000;
    const STALLED: usize = 20;
    let api = ApiUnderTest::new().await;
    api.start("s-1").await;
    let open = async || {
        let accept = [("accept", "text/event-stream")];
        let answer = api.send("GET /v1/sessions/s-1/events?type=stream:text", &accept, "").await;
        assert_eq!(answer.status(), StatusCode::OK);
        answer
    };
    let mut stalled = Vec::new();
    for _ in 0..STALLED {
        stalled.push(open().await);
    }
    // What the history itself holds is there after the first flood.
    api.turn("s-1", &format!("flood {EVENTS} 1000")).await;
    let before = memory();
    let mut quick = BodyReader::new(open().await);
    let (_, page) = api.json("GET /v1/sessions/s-1", "").await;
    assert_eq!(page["state"], "idle");
    api.turn("s-1", &format!("flood {EVENTS} 1000\nsay the end")).await;
    let read = async { quick.until("the end").await };
    tokio::time::timeout(DEADLINE, read).await.expect("who reads is not held up");
    let grown = memory().saturating_sub(before);
    assert!(
        grown < 96 * 1024 * 1024,
        "{STALLED} readers that stall cost {grown} bytes, of {} MB sent to them",
        2 * EVENTS / 1000
    );

    let mut late = BodyReader::new(stalled.pop().expect("one"));
    let all = tokio::time::timeout(DEADLINE, late.until("the end")).await.expect("it reads on");
    let ids: Vec<u64> = all.lines().filter_map(|line| line.strip_prefix("id: ")?.parse().ok()).collect();
    assert!(ids.is_sorted(), "in order");
    let gaps = all.matches("session:gap").count();
    let texts = all.matches("stream:text").count();
    assert!(gaps <= 1, "{gaps} gaps");
    assert!(gaps == 1 || texts >= 2 * EVENTS, "{texts} of {} events, and no gap", 2 * EVENTS);
    api.end().await;
}
