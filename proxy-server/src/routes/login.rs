//! Logins of pages: make a link, ask who one is, log out.

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{AppendHeaders, IntoResponse, Response},
};

use crate::{
    ApiState, Identity, LoginLink, ProblemDetails,
    access::{Caller, remove_cookie},
    api::{LoginLinkRequest, LoginLinkResponse, WhoamiResponse},
    requests::{Body, JsonBody, RouteResult, parse},
    route_table::api_routes,
};

api_routes! { "Server", ApiState;
    /// Tells who the caller is.
    get "/v1/whoami" whoami: json::<WhoamiResponse>(200, "The caller.");
    /// Makes a link that logs a browser in, once.
    post "/v1/login-links" create_link:
        body::<LoginLinkRequest>() json::<LoginLinkResponse>(200, "The link.") problems(&["usage", "unsupported"]);
    /// Ends the login of the page that asks.
    post "/v1/logout" log_out: empty(204, "The login is over.");
}

async fn whoami(caller: Caller) -> JsonBody<WhoamiResponse> {
    let Identity { name, role, user } = caller.identity;
    JsonBody(WhoamiResponse { name, role, user })
}

/// Makes a link for a role and a user that the caller has.
async fn create_link(
    State(state): State<ApiState>,
    caller: Caller,
    body: Body,
) -> RouteResult<JsonBody<LoginLinkResponse>> {
    let LoginLinkRequest { role, user } = parse(body)?;
    let own = &caller.identity;
    if role > own.role {
        let detail = format!("role: given is {role}, and {:?} can pass on {} at most", own.name, own.role);
        return Err(ProblemDetails::new("refused", detail));
    }
    if let (Some(user), Some(own_user)) = (&user, &own.user)
        && user != own_user
    {
        let detail = format!("user: given is {user:?}, and {:?} is for {own_user:?} alone", own.name);
        return Err(ProblemDetails::new("refused", detail));
    }
    let user = user.or_else(|| own.user.clone());
    let logins = state
        .logins
        .as_ref()
        .ok_or_else(|| ProblemDetails::new("unsupported", "this server has no logins of pages"))?;
    let name = user.clone().unwrap_or_else(|| "page".to_owned());
    let LoginLink { urls, expires_at } = logins.create_link(Identity { name, role, user })?;
    Ok(JsonBody(LoginLinkResponse { urls, expires_at }))
}

async fn log_out(State(state): State<ApiState>, headers: HeaderMap) -> RouteResult<Response> {
    let ended = state.logins.as_ref().map(|logins| logins.log_out(&headers)).unwrap_or_default();
    let removed = ended.iter().filter_map(|name| remove_cookie(name)).map(|value| (header::SET_COOKIE, value));
    Ok((StatusCode::NO_CONTENT, AppendHeaders(removed.collect::<Vec<_>>())).into_response())
}
