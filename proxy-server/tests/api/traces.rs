//! Spans, as a collector receives them over OTLP/HTTP.

use std::collections::HashMap;

use axum::{Router, body::Bytes, extract::State, http::HeaderMap, routing::post};
use proxy_server::TraceExport;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::mpsc};

use crate::support::{ApiUnderTest, DEADLINE};

/// Collector on loopback: it gives each body to the test.
async fn collector() -> (String, mpsc::UnboundedReceiver<(HeaderMap, Value)>) {
    let (sender, received) = mpsc::unbounded_channel();
    let take =
        async |State(sender): State<mpsc::UnboundedSender<(HeaderMap, Value)>>, headers: HeaderMap, body: Bytes| {
            let body = serde_json::from_slice(&body).expect("JSON");
            let _ = sender.send((headers, body));
            ([("content-type", "application/json")], "{}")
        };
    let router = Router::new().route("/v1/traces", post(take)).with_state(sender);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, router).await });
    (format!("http://{address}/v1/traces"), received)
}

/// Spans of a request, by name.
fn spans(body: &Value) -> HashMap<String, Value> {
    let spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().expect("spans");
    spans.iter().map(|span| (span["name"].as_str().expect("a name").to_owned(), span.clone())).collect()
}

fn attribute<'a>(span: &'a Value, name: &str) -> &'a Value {
    let attributes = span["attributes"].as_array().expect("attributes");
    let found = attributes.iter().find(|attribute| attribute["key"] == name);
    &found.unwrap_or_else(|| panic!("{name} in {span}"))["value"]
}

#[tokio::test]
async fn a_session_is_a_trace_with_its_turns_and_tool_calls() {
    let api = ApiUnderTest::new().await;
    let (endpoint, mut received) = collector().await;
    let headers = HashMap::from([("x-key".to_owned(), "secret".to_owned())]);
    let export = TraceExport::start(&api.manager, &endpoint, headers).expect("an address");
    api.start("s-1").await;
    api.turn("s-1", "say something private\ntool make\ntokens 30 4").await;
    api.json("POST /v1/sessions/s-1/kill", "{}").await;
    export.finish().await;

    let mut all = HashMap::new();
    while !all.contains_key("session fake") {
        let (headers, body) = tokio::time::timeout(DEADLINE, received.recv()).await.expect("in time").expect("a body");
        assert_eq!(headers.get("x-key").map(|value| value.as_bytes()), Some(&b"secret"[..]));
        assert!(!body.to_string().contains("private"), "no text of a prompt or an answer: {body}");
        let resource = body["resourceSpans"][0]["resource"].to_string();
        assert!(resource.contains("service.name") && resource.contains("agent-proxy"), "{resource}");
        all.extend(spans(&body));
    }
    let (session, turn) = (&all["session fake"], &all["invoke_agent fake"]);
    let tool = all.iter().find(|(name, _)| name.starts_with("execute_tool ")).expect("a tool call").1;
    assert!(session["parentSpanId"].as_str().unwrap_or_default().is_empty(), "{session}");
    assert_eq!((&turn["parentSpanId"], &turn["traceId"]), (&session["spanId"], &session["traceId"]));
    assert_eq!((&tool["parentSpanId"], &tool["traceId"]), (&turn["spanId"], &session["traceId"]));
    for span in [session, turn, tool] {
        assert_eq!(attribute(span, "gen_ai.conversation.id"), &json!({ "stringValue": "s-1" }));
        assert_eq!(attribute(span, "gen_ai.agent.name"), &json!({ "stringValue": "fake" }));
        let time = |name: &str| span[name].as_str().and_then(|time| time.parse::<u64>().ok()).expect("a time");
        assert!(time("startTimeUnixNano") > 0 && time("startTimeUnixNano") <= time("endTimeUnixNano"));
    }
    assert_eq!(attribute(turn, "gen_ai.operation.name"), &json!({ "stringValue": "invoke_agent" }));
    assert_eq!(attribute(tool, "gen_ai.operation.name"), &json!({ "stringValue": "execute_tool" }));
    attribute(tool, "gen_ai.tool.name");
    attribute(tool, "gen_ai.tool.call.id");
    let number =
        |value: &Value| value["intValue"].as_str().map_or(value["intValue"].as_i64(), |text| text.parse().ok());
    assert_eq!(number(attribute(turn, "gen_ai.usage.input_tokens")), Some(30));
    assert_eq!(number(attribute(turn, "gen_ai.usage.output_tokens")), Some(4));
    assert_eq!(number(attribute(session, "agent_proxy.survivors")), Some(0));
    let reasons = &attribute(turn, "gen_ai.response.finish_reasons")["arrayValue"]["values"];
    assert_eq!(reasons, &json!([{ "stringValue": "endTurn" }]));
    api.end().await;
}

#[tokio::test]
async fn a_collector_that_is_away_delays_nobody() {
    let api = ApiUnderTest::new().await;
    let nobody = TcpListener::bind("127.0.0.1:0").await.expect("bound").local_addr().expect("an address");
    let endpoint = format!("http://{nobody}/v1/traces");
    let export = TraceExport::start(&api.manager, &endpoint, HashMap::new()).expect("an address");
    api.start("s-1").await;
    api.turn("s-1", "say one").await;
    tokio::time::timeout(DEADLINE, export.finish()).await.expect("it gives up");
    let problem = TraceExport::start(&api.manager, "collector:4318", HashMap::new()).expect_err("no address");
    assert!(problem.kind == "usage" && problem.detail.contains("http://HOST:4318"), "{}", problem.detail);
    api.end().await;
}
