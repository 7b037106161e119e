//! Profiles of agents.

use agents::{Profile, SaveMode};
use axum::{
    extract::Path,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value};

use crate::{
    ApiState, ProblemDetails,
    access::Caller,
    configuration::profile_json,
    requests::{Body, JsonBody, RouteResult, parse, parse_patch},
    route_table::api_routes,
};

api_routes! { "Configuration", ApiState;
    /// Lists the profiles.
    get "/v1/profiles" list: json::<Vec<crate::configuration::ProfileDescription>>(200, "The profiles.") problems(CONFIGURATION);
    /// Describes a profile.
    get "/v1/profiles/{name}" read:
        json::<crate::configuration::ProfileDescription>(200, "The profile.") problems(CONFIGURATION) problems(&["unknown-profile"]);
    /// Creates a profile, or replaces the stored one.
    put "/v1/profiles/{name}" save:
        body::<Profile>() json::<crate::configuration::ProfileDescription>(201, "The profile is new.")
        json::<crate::configuration::ProfileDescription>(200, "The profile has replaced the stored one.")
        problems(CONFIGURATION) problems(&["unknown-agent", "unknown-model", "unknown-profile"]);
    /// Changes a stored profile.
    ///
    /// The body is a merge patch (RFC 7396): what is given is changed, and `null` removes it.
    patch "/v1/profiles/{name}" change:
        body::<Map<String, Value>>() json::<crate::configuration::ProfileDescription>(200, "The profile.")
        problems(CONFIGURATION) problems(&["unknown-agent", "unknown-model", "unknown-profile"]);
    /// Deletes a profile.
    delete "/v1/profiles/{name}" delete:
        empty(204, "It is deleted.") problems(CONFIGURATION) problems(&["unknown-profile"]);
}

async fn list(caller: Caller) -> RouteResult<JsonBody<Vec<Value>>> {
    caller.configured(|configuration| Ok(JsonBody(configuration.profiles.iter().map(profile_json).collect()))).await
}

async fn read(caller: Caller, Path(name): Path<String>) -> RouteResult<JsonBody<Value>> {
    caller.configured(move |configuration| Ok(JsonBody(profile_json(configuration.profiles.get(&name)?)))).await
}

/// Creates a profile, or puts it in the place of the stored one.
async fn save(caller: Caller, Path(name): Path<String>, body: Body) -> RouteResult<Response> {
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

async fn change(caller: Caller, Path(name): Path<String>, body: Body) -> RouteResult<JsonBody<Value>> {
    let patch = parse_patch(body)?;
    let json = caller
        .configured(move |configuration| {
            let failed = |error: serde_json::Error| ProblemDetails::failed(format!("the stored profile: {error}"));
            let mut json = serde_json::to_value(configuration.stored_profile(&name)?).map_err(failed)?;
            merge(&mut json, patch);
            let unfit =
                |error: serde_json::Error| ProblemDetails::usage(format!("the changed profile does not fit: {error}"));
            let profile = Profile { name, ..serde_json::from_value(json).map_err(unfit)? };
            configuration.save_profile(&profile, SaveMode::Changed)?;
            Ok(profile_json(&profile))
        })
        .await?;
    caller.refresh().await?;
    Ok(JsonBody(json))
}

/// Applies a merge patch (RFC 7396).
fn merge(target: &mut Value, patch: Map<String, Value>) {
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(members) = target else { return };
    for (name, value) in patch {
        match value {
            Value::Null => drop(members.remove(&name)),
            Value::Object(patch) => merge(members.entry(name).or_insert(Value::Null), patch),
            value => drop(members.insert(name, value)),
        }
    }
}

async fn delete(caller: Caller, Path(name): Path<String>) -> RouteResult<StatusCode> {
    caller.configured(move |configuration| Ok(configuration.directory()?.delete_profile(&name)?)).await?;
    caller.refresh().await?;
    Ok(StatusCode::NO_CONTENT)
}
