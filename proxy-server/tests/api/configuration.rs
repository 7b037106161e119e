//! Agents, profiles and model configurations.

use agents::{ConfigDir, discovery::SearchPaths};
use axum::http::StatusCode;
use proxy_server::{ConfigurationReloader, ConfigurationSource, LoadedConfiguration, ServerOptions};

use crate::support::ApiUnderTest;

#[tokio::test]
async fn profiles_and_models_are_created_read_changed_and_deleted() {
    let directory = tempfile::tempdir().expect("a directory");
    let places = SearchPaths { path: vec!["/usr/bin".into()], home: None };
    let directory_of = Some(ConfigDir::new(directory.path().to_owned()));
    let source = ConfigurationSource { directory: directory_of, prices: None, places, variable: |_| None };
    let configuration = ConfigurationReloader::new(LoadedConfiguration::read(source).expect("readable"));
    let mut api = ApiUnderTest::new().await;
    let options = ServerOptions::default().with_configuration(configuration);
    api.router = proxy_server::router(api.manager.clone(), options);

    let (status, agents) = api.json("GET /v1/agents", "").await;
    assert_eq!(status, StatusCode::OK);
    let claude = agents.as_array().expect("agents").iter().find(|agent| agent["id"] == "claude-code").expect("known");
    assert_eq!((&claude["usable"], claude["install"].is_string()), (&false.into(), true), "{claude}");

    let body = r#"{"name":"main","provider":"anthropic","key":"sk-very-secret"}"#;
    let (status, created) = api.json("POST /v1/models", body).await;
    assert_eq!((status, &created["key"]), (StatusCode::CREATED, &"stored".into()), "{created}");
    assert_eq!(api.json("POST /v1/models", body).await.0, StatusCode::CONFLICT);
    for path in ["/v1/models", "/v1/models/main"] {
        let (_, read) = api.json(&format!("GET {path}"), "").await;
        assert!(read.to_string().contains("anthropic") && !read.to_string().contains("very-secret"), "{read}");
    }
    assert_eq!(api.json("GET /v1/models/none", "").await.0, StatusCode::NOT_FOUND);

    let (status, replaced) = api.json("PUT /v1/models/main", r#"{"provider":"openai","model":"gpt"}"#).await;
    assert_eq!((status, &replaced["key"], &replaced["provider"]), (StatusCode::OK, &"stored".into(), &"openai".into()));
    let stored = std::fs::read_to_string(directory.path().join("models.toml")).expect("readable");
    assert!(stored.contains("sk-very-secret"), "the key stays");
    let (status, changed) = api.json("PATCH /v1/models/main", r#"{"model":null,"keyEnv":"MAIN_KEY"}"#).await;
    assert_eq!(
        (status, &changed["key"], &changed["model"]),
        (StatusCode::OK, &"$MAIN_KEY".into(), &serde_json::Value::Null)
    );
    let stored = std::fs::read_to_string(directory.path().join("models.toml")).expect("readable");
    assert!(!stored.contains("sk-very-secret"), "a key has one place");
    assert_eq!(api.json("PUT /v1/models/other", r#"{"provider":"google"}"#).await.0, StatusCode::CREATED);
    assert_eq!(api.json("PATCH /v1/models/none", "{}").await.0, StatusCode::NOT_FOUND);
    assert_eq!(api.json("PATCH /v1/models/other", r#"{"colour":"red"}"#).await.0, StatusCode::BAD_REQUEST);
    assert_eq!(api.json("DELETE /v1/models/other", "").await.0, StatusCode::NO_CONTENT);

    let body = r#"{"agent":"claude-code","model_config":"main","description":"one"}"#;
    assert_eq!(api.json("PUT /v1/profiles/work", body).await.0, StatusCode::CREATED);
    let (status, changed) = api.json("PUT /v1/profiles/work", &body.replace("one", "two")).await;
    assert_eq!((status, &changed["description"]), (StatusCode::OK, &"two".into()), "{changed}");
    assert_eq!(api.json("GET /v1/profiles/work", "").await.1, changed);
    for (body, kind) in [
        (r#"{"agent":"none"}"#, "unknown-agent"),
        (r#"{"agent":"claude-code","model_config":"none"}"#, "unknown-model"),
        (r#"{"agent":"claude-code","colour":"red"}"#, "usage"),
    ] {
        assert_eq!(api.json("PUT /v1/profiles/work", body).await.1["type"], kind, "{body}");
    }
    assert_eq!(api.json("GET /v1/profiles/work", "").await.1, changed, "nothing has changed");
    let (status, patched) = api.json("PATCH /v1/profiles/work", r#"{"description":null,"model_config":null}"#).await;
    assert_eq!(status, StatusCode::OK, "{patched}");
    assert_eq!(
        (&patched["agent"], &patched["description"]),
        (&"claude-code".into(), &serde_json::Value::Null),
        "{patched}"
    );
    let (status, problem) = api.json("PATCH /v1/profiles/work", r#"{"colour":"red"}"#).await;
    assert_eq!((status, &problem["type"]), (StatusCode::BAD_REQUEST, &"usage".into()), "{problem}");
    assert_eq!(api.json("PATCH /v1/profiles/none", "{}").await.0, StatusCode::NOT_FOUND);
    assert_eq!(api.json("GET /v1/profiles/work", "").await.1, patched, "nothing has changed");
    assert_eq!(api.json("DELETE /v1/profiles/work", "").await.0, StatusCode::NO_CONTENT);
    assert_eq!(api.json("DELETE /v1/profiles/work", "").await.0, StatusCode::NOT_FOUND);
    assert_eq!(api.json("DELETE /v1/models/main", "").await.0, StatusCode::NO_CONTENT);
    assert_eq!(api.json("GET /v1/models", "").await.1, serde_json::json!([]));
    api.end().await;
}
