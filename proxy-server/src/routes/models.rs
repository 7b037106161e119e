//! Model configurations. Their keys are written, and never read.

use agents::StoredModel;
use axum::{
    Router,
    extract::Path,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::Value;

use crate::{
    ApiState,
    access::Caller,
    api::NewModel,
    configuration::model_json,
    requests::{Body, JsonBody, RouteResult, parse},
};

pub(super) fn routes() -> Router<ApiState> {
    Router::new().route("/v1/models", get(models).post(create)).route("/v1/models/{name}", get(model).delete(delete))
}

async fn models(caller: Caller) -> RouteResult<JsonBody<Vec<Value>>> {
    let list = caller.configured(|configuration| {
        Ok(configuration.models.iter().map(|(name, stored)| model_json(name, stored)).collect())
    });
    Ok(JsonBody(list.await?))
}

async fn model(caller: Caller, Path(name): Path<String>) -> RouteResult<JsonBody<Value>> {
    let find = move |configuration: &crate::LoadedConfiguration| {
        Ok(JsonBody(model_json(&name, configuration.stored_model(&name)?)))
    };
    caller.configured(find).await
}

async fn create(caller: Caller, body: Body) -> RouteResult<Response> {
    let NewModel { name, provider, api, base_url, model, key, key_env } = parse(body)?;
    let stored = StoredModel { provider, api, base_url, model, key, key_env, key_file: None };
    let json = caller
        .configured(move |configuration| {
            configuration.directory()?.create_model(&name, &stored)?;
            Ok(model_json(&name, &stored))
        })
        .await?;
    caller.refresh().await?;
    Ok((StatusCode::CREATED, JsonBody(json)).into_response())
}

async fn delete(caller: Caller, Path(name): Path<String>) -> RouteResult<StatusCode> {
    caller.configured(move |configuration| Ok(configuration.directory()?.delete_model(&name)?)).await?;
    caller.refresh().await?;
    Ok(StatusCode::NO_CONTENT)
}
