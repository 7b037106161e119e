//! Profiles of agents.

use agents::{Profile, SaveMode};
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
    configuration::profile_json,
    requests::{Body, JsonBody, RouteResult, parse},
};

pub(super) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/profiles", get(profiles))
        .route("/v1/profiles/{name}", get(profile).put(put).delete(delete))
}

async fn profiles(caller: Caller) -> RouteResult<JsonBody<Vec<Value>>> {
    caller.configured(|configuration| Ok(JsonBody(configuration.profiles.iter().map(profile_json).collect()))).await
}

async fn profile(caller: Caller, Path(name): Path<String>) -> RouteResult<JsonBody<Value>> {
    caller.configured(move |configuration| Ok(JsonBody(profile_json(configuration.profiles.get(&name)?)))).await
}

/// Creates a profile, or puts it in the place of the stored one.
async fn put(caller: Caller, Path(name): Path<String>, body: Body) -> RouteResult<Response> {
    let profile = Profile { name, ..parse(body)? };
    let (is_new, json) = caller
        .configured(move |configuration| {
            let is_new = configuration.stored_profile(&profile.name).is_err();
            configuration.save_profile(&profile, if is_new { SaveMode::New } else { SaveMode::Changed })?;
            Ok((is_new, profile_json(&profile)))
        })
        .await?;
    caller.refresh().await?;
    Ok((if is_new { StatusCode::CREATED } else { StatusCode::OK }, JsonBody(json)).into_response())
}

async fn delete(caller: Caller, Path(name): Path<String>) -> RouteResult<StatusCode> {
    caller.configured(move |configuration| Ok(configuration.directory()?.delete_profile(&name)?)).await?;
    caller.refresh().await?;
    Ok(StatusCode::NO_CONTENT)
}
