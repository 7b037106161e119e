//! The OpenAPI document and the router have the same routes.

use std::path::Path;

use axum::http::StatusCode;
use proxy_server::{ServerMetrics, ServerOptions, StopProgress};
use serde_json::Value;

use crate::support::{ApiUnderTest, text};

#[tokio::test]
async fn the_router_has_every_route_of_the_document() {
    let mut api = ApiUnderTest::new().await;
    let (progress, _requests) = StopProgress::new();
    let options = ServerOptions::default().with_metrics(ServerMetrics::start(&api.manager)).with_stop(progress);
    api.router = proxy_server::router(api.manager.clone(), options);

    let answer = api.send("GET /v1/openapi.json", &[], "").await;
    let document: Value = serde_json::from_str(&text(answer).await).expect("JSON");
    assert_eq!(document["openapi"], "3.1.0");
    let mut count = 0;
    for (path, item) in document["paths"].as_object().expect("paths") {
        for method in item.as_object().expect("operations").keys() {
            let path = path.replace("{id}", "nobody").replace("{name}", "none").replace("{request}", "none");
            // No JSON: nothing is begun by it.
            let answer =
                api.send(&format!("{} {path}", method.to_uppercase()), &[("accept", "application/json")], "{").await;
            let status = answer.status();
            assert_ne!(status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
            if status == StatusCode::NOT_FOUND {
                let problem: Value = serde_json::from_str(&text(answer).await).expect("a problem");
                assert_ne!(problem["type"], "unknown-route", "{method} {path}");
            }
            count += 1;
        }
    }
    assert!(count >= 40, "{count}");
    api.end().await;
}

/// Collects the sources of a folder.
fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push((path.display().to_string(), std::fs::read_to_string(&path).expect("readable")));
        }
    }
}

/// A route of a table is in the document, since one macro reads both from it: so no route of the API may be added in another way. The
/// files of the page are no part of it, nor are endpoints of other protocols.
#[test]
fn every_route_is_in_a_table() {
    let mut found = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    let mut adding: Vec<&str> = Vec::new();
    for (path, source) in found.iter().filter(|(_, source)| source.contains(".route(")) {
        adding.push(path);
        let is_other =
            ["/routes/page.rs", "/mcp/http.rs", "/durable_streams/mod.rs"].iter().any(|file| path.ends_with(file));
        assert!(
            is_other && !source.contains(".route(\"/v1") || path.ends_with("/route_table.rs"),
            "{path} adds a route beside the tables"
        );
    }
    assert_eq!(adding.len(), 4, "{adding:?}");
}
