//! Model configurations. Their keys are written, and never read.

use agents::StoredModel;
use axum::{
    extract::Path,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::Value;

use crate::{
    ApiState,
    access::Caller,
    api::NewModel,
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

async fn delete(caller: Caller, Path(name): Path<String>) -> RouteResult<StatusCode> {
    caller.configured(move |configuration| Ok(configuration.directory()?.delete_model(&name)?)).await?;
    caller.refresh().await?;
    Ok(StatusCode::NO_CONTENT)
}
