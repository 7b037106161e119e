//! Model configurations. Their keys are written, and never read.

use agents::{SaveMode, StoredModel};
use axum::{
    extract::Path,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::Value;

use crate::{
    ApiState,
    access::Caller,
    api::{ModelChange, ModelSettings, NewModel},
    configuration::model_json,
    requests::{Body, JsonBody, RouteResult, parse},
    route_table::api_routes,
};

api_routes! { "Configuration", ApiState;
    /// Lists the model configurations, without their keys.
    get "/v1/models" list: json::<Vec<crate::configuration::ModelDescription>>(200, "The model configurations.") problems(CONFIGURATION);
    /// Creates a model configuration.
    ///
    /// The key is written to a file that the server's user alone can read, and is in no answer.
    post "/v1/models" create:
        body::<NewModel>() json::<crate::configuration::ModelDescription>(201, "The model configuration.")
        problems(CONFIGURATION) problems(&["already-exists"]);
    /// Describes a model configuration.
    get "/v1/models/{name}" read:
        json::<crate::configuration::ModelDescription>(200, "The model configuration.") problems(CONFIGURATION) problems(&["unknown-model"]);
    /// Creates a model configuration, or replaces the stored one.
    ///
    /// Without `key` and `keyEnv` the key of the stored one stays.
    put "/v1/models/{name}" save:
        body::<ModelSettings>() json::<crate::configuration::ModelDescription>(201, "The model configuration is new.")
        json::<crate::configuration::ModelDescription>(200, "It has replaced the stored one.") problems(CONFIGURATION);
    /// Changes a model configuration.
    ///
    /// What is given is changed; `null` removes it.
    patch "/v1/models/{name}" change:
        body::<ModelChange>() json::<crate::configuration::ModelDescription>(200, "The model configuration.")
        problems(CONFIGURATION) problems(&["unknown-model"]);
    /// Deletes a model configuration.
    delete "/v1/models/{name}" delete:
        empty(204, "It is deleted.") problems(CONFIGURATION) problems(&["unknown-model"]);
}

async fn list(caller: Caller) -> RouteResult<JsonBody<Vec<Value>>> {
    let list = caller.configured(|configuration| {
        Ok(configuration.models.iter().map(|(name, stored)| model_json(name, stored)).collect())
    });
    Ok(JsonBody(list.await?))
}

async fn read(caller: Caller, Path(name): Path<String>) -> RouteResult<JsonBody<Value>> {
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

/// Creates a model configuration, or puts it in the place of the stored one, whose key it keeps where it has none.
async fn save(caller: Caller, Path(name): Path<String>, body: Body) -> RouteResult<Response> {
    let ModelSettings { provider, api, base_url, model, key, key_env } = parse(body)?;
    let mut stored = StoredModel { provider, api, base_url, model, key, key_env, key_file: None };
    let (is_new, json) = caller
        .configured(move |configuration| {
            let before = configuration.stored_model(&name).ok();
            if let Some(before) = before.filter(|_| stored.key.is_none() && stored.key_env.is_none()) {
                (stored.key, stored.key_env) = (before.key.clone(), before.key_env.clone());
                stored.key_file.clone_from(&before.key_file);
            }
            let mode = if before.is_none() { SaveMode::New } else { SaveMode::Changed };
            configuration.directory()?.save_model(&name, &stored, mode)?;
            Ok((before.is_none(), model_json(&name, &stored)))
        })
        .await?;
    caller.refresh().await?;
    Ok((if is_new { StatusCode::CREATED } else { StatusCode::OK }, JsonBody(json)).into_response())
}

async fn change(caller: Caller, Path(name): Path<String>, body: Body) -> RouteResult<JsonBody<Value>> {
    let change: ModelChange = parse(body)?;
    let json = caller
        .configured(move |configuration| {
            let stored = apply(configuration.stored_model(&name)?.clone(), change);
            configuration.directory()?.save_model(&name, &stored, SaveMode::Changed)?;
            Ok(model_json(&name, &stored))
        })
        .await?;
    caller.refresh().await?;
    Ok(JsonBody(json))
}

/// Applies a change. A key has one place.
fn apply(mut stored: StoredModel, change: ModelChange) -> StoredModel {
    let ModelChange { provider, api, base_url, model, key, key_env } = change;
    stored.provider = provider.unwrap_or(stored.provider);
    stored.api = api.unwrap_or(stored.api);
    stored.base_url = base_url.unwrap_or(stored.base_url);
    stored.model = model.unwrap_or(stored.model);
    if key.is_some() || key_env.is_some() {
        (stored.key, stored.key_env, stored.key_file) = (key.flatten(), key_env.flatten(), None);
    }
    stored
}

async fn delete(caller: Caller, Path(name): Path<String>) -> RouteResult<StatusCode> {
    caller.configured(move |configuration| Ok(configuration.directory()?.delete_model(&name)?)).await?;
    caller.refresh().await?;
    Ok(StatusCode::NO_CONTENT)
}
