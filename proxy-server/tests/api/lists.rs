//! Lists of sessions and records: filters, order, pages.

use axum::http::StatusCode;
use serde_json::Value;

use crate::support::ApiUnderTest;

/// Follows the links from page to page, and returns the ids.
async fn walk(api: &ApiUnderTest, path: &str, query: &str) -> Vec<String> {
    let (mut ids, mut query) = (Vec::new(), query.to_owned());
    loop {
        let answer = api.send(&format!("GET {path}?{query}"), &[], "").await;
        assert_eq!(answer.status(), StatusCode::OK, "{query}");
        let link = answer.headers().get("link").map(|link| link.to_str().expect("text").to_owned());
        let page: Value = serde_json::from_str(&crate::support::text(answer).await).expect("JSON");
        let page = page.as_array().expect("a list").clone();
        assert!(page.len() <= 2, "{page:?}");
        ids.extend(page.iter().map(|session| session["sessionId"].as_str().expect("an id").to_owned()));
        match link {
            None => return ids,
            Some(link) => {
                let target = link.strip_prefix("<?").and_then(|link| link.strip_suffix(">; rel=\"next\""));
                query = target.expect("a link").to_owned();
            }
        }
    }
}

#[tokio::test]
async fn lists_have_filters_an_order_and_pages() {
    let api = ApiUnderTest::new().await;
    for (id, user) in [("c", "ada"), ("a", "bob"), ("b", "ada"), ("d", "ada"), ("e", "bob")] {
        let body = format!(r#"{{"sessionId":"{id}","agent":"fake","cwd":"/","userId":"{user}"}}"#);
        let (status, answer) = api.json("POST /v1/sessions", &body).await;
        assert_eq!(status, StatusCode::CREATED, "{answer}");
    }
    api.json("POST /v1/sessions/d/kill", "{}").await;
    assert_eq!(walk(&api, "/v1/sessions", "limit=2").await, ["c", "a", "b", "d", "e"], "as they were started");
    assert_eq!(walk(&api, "/v1/sessions", "limit=2&sort=-startedAt").await, ["e", "d", "b", "a", "c"]);
    assert_eq!(walk(&api, "/v1/sessions", "limit=2&sort=id").await, ["a", "b", "c", "d", "e"]);
    assert_eq!(walk(&api, "/v1/sessions", "limit=2&sort=-id&userId=ada").await, ["d", "c", "b"]);
    assert_eq!(walk(&api, "/v1/sessions", "limit=2&status=idle,busy&userId=ada").await, ["c", "b"]);
    assert_eq!(walk(&api, "/v1/sessions", "limit=2&agent=none").await, [""; 0]);
    assert_eq!(walk(&api, "/v1/records", "limit=2").await, ["a", "b", "c", "d", "e"]);
    assert_eq!(walk(&api, "/v1/records", "limit=2&userId=bob").await, ["a", "e"]);
    for query in ["limit=0", "limit=x", "cursor=%3F", "sort=size", "status=gone", "colour=red"] {
        let (status, problem) = api.json(&format!("GET /v1/sessions?{query}"), "").await;
        assert_eq!((status, &problem["type"]), (StatusCode::BAD_REQUEST, &"usage".into()), "{query}: {problem}");
    }
    for query in ["limit=0", "limit=x", "status=gone", "colour=red"] {
        let (status, problem) = api.json(&format!("GET /v1/records?{query}"), "").await;
        assert_eq!((status, &problem["type"]), (StatusCode::BAD_REQUEST, &"usage".into()), "{query}: {problem}");
    }
    api.end().await;
}

#[tokio::test]
async fn a_session_s_title_and_tags_are_changed() {
    let api = ApiUnderTest::new().await;
    api.start("s-1").await;
    let (status, record) = api.json("PATCH /v1/sessions/s-1", r#"{"title":"Login","addTags":["web"]}"#).await;
    assert_eq!(status, StatusCode::OK, "{record}");
    let lifecycle = &record["config"]["lifecycle"];
    assert_eq!((&lifecycle["title"], &lifecycle["tags"][0]), (&"Login".into(), &"web".into()), "{record}");
    assert_eq!(api.json("PATCH /v1/sessions/s-1", r#"{"colour":"red"}"#).await.0, StatusCode::BAD_REQUEST);
    api.end().await;
}

#[tokio::test]
async fn open_permissions_are_listed_over_all_sessions() {
    let api = ApiUnderTest::new().await;
    api.start("s-1").await;
    assert_eq!(api.json("GET /v1/permissions", "").await.1, serde_json::json!([]));
    let (status, _) = api.json("POST /v1/sessions/s-1/prompt", r#"{"text":"ask Edit"}"#).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let mut events = api.manager.subscribe_from(&"s-1".parse().expect("an id"), 0).expect("there");
    while !matches!(events.next().await.expect("more").event, agent_proxy_sdk::Event::PermissionRequested(_)) {}
    let (_, listed) = api.json("GET /v1/permissions", "").await;
    assert_eq!((&listed[0]["sessionId"], listed.as_array().map(Vec::len)), (&"s-1".into(), Some(1)), "{listed}");
    let id = listed[0]["id"].as_str().expect("an id");
    assert_eq!(api.json("GET /v1/sessions/s-1/permissions", "").await.1, listed);
    let answered = api.json(&format!("POST /v1/sessions/s-1/permissions/{id}"), r#"{"answer":"allow"}"#).await;
    assert_eq!(answered.0, StatusCode::NO_CONTENT);
    api.end().await;
}

#[tokio::test]
async fn a_server_says_its_version_and_whether_it_is_ready() {
    let api = ApiUnderTest::new().await;
    assert_eq!(api.json("GET /v1/version", "").await.1["version"], env!("CARGO_PKG_VERSION"));
    let (status, ready) = api.json("GET /v1/ready", "").await;
    assert_eq!((status, ready), (StatusCode::OK, serde_json::json!({ "ready": true, "degraded": [] })));
    let (status, problem) = api.json("GET /v1/agents", "").await;
    assert_eq!((status, &problem["type"]), (StatusCode::NOT_IMPLEMENTED, &"unsupported".into()));
    api.end().await;
}
