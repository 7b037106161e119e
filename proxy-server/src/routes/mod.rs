//! Routes, a module each resource, all under `/v1`. Handlers only translate: a request into calls of the manager, its result into JSON.

mod agents;
mod doctor;
mod document;
mod events;
#[cfg(feature = "fleet")]
mod fleet;
mod health;
mod hold;
mod instances;
mod login;
mod metrics;
mod models;
mod page;
mod permissions;
mod processes;
mod profiles;
mod prompts;
mod queue;
mod receipts;
mod records;
mod sessions;
mod socket;
mod stop;
mod suspension;
mod terminal;
mod webhooks;
mod workspaces;

use std::time::{Duration, Instant};

use axum::{
    Router,
    extract::{DefaultBodyLimit, MatchedPath, Request, State},
    http::StatusCode,
    middleware::{Next, from_fn, from_fn_with_state},
    response::{IntoResponse as _, Response},
};

use self::socket::SocketState;
pub use self::stop::{StopMode, StopOrder, StopProgress, StopRequests};
pub(crate) use self::{document::DOCUMENT, hold::HeldSessions, page::is_public};
#[cfg(feature = "fleet")]
pub(crate) use self::{events::last_event_id, sessions::start_key};
use crate::{
    ApiState, ProblemDetails, ServerMetrics,
    access::{AuditState, check_role, record},
    durable_streams,
    request_bounds::bound,
    requests::MAX_BODY,
};

/// Builds the router of all routes.
pub(crate) fn router(state: ApiState) -> Router {
    let (stop, metrics, has_page) = (state.stop.clone(), state.metrics.clone(), state.page);
    let audit = state.audit.clone().map(|log| AuditState { log, api: state.clone() });
    let routes = session_routes().merge(durable_streams::routes());
    #[cfg(feature = "fleet")]
    let routes = routes.merge(fleet::routes());
    let routes = routes.with_state(state.clone());
    #[cfg(feature = "fleet")]
    let gateway = state.fleet.clone();
    #[cfg(feature = "fleet")]
    if let Some(gateway) = &gateway {
        state.audit.iter().for_each(|audit| gateway.audit_in(audit));
        if let Some(metrics) = &metrics {
            let gateway = gateway.clone();
            metrics.set_fleet_probe(move || gateway.figures());
        }
    }
    let surroundings = RouteSurroundings { answer_time: state.answer_time, audit };
    let counted = metrics.clone();
    let router = stop
        .map_or_else(Router::new, |stop| stop::routes().with_state(stop))
        .merge(metrics.map_or_else(Router::new, |metrics| metrics::routes().with_state(metrics)))
        .merge(if has_page { page::routes() } else { Router::new() })
        .merge(routes)
        .fallback(async || {
            ProblemDetails::new("unknown-route", "no such route: they start with /v1, see GET /v1/health")
        })
        .method_not_allowed_fallback(async |request: Request| durable_streams::wrong_method(&request))
        // Around routes that were found alone: what there is not needs no role.
        .route_layer(from_fn_with_state(surroundings, surround))
        .layer(DefaultBodyLimit::max(MAX_BODY));
    #[cfg(feature = "fleet")]
    let router = match gateway.clone() {
        Some(gateway) => gateway.in_front_of(router),
        None => router,
    };
    // Each request on a socket goes through all of that by itself.
    #[cfg(feature = "mcp")]
    let inner = router.clone();
    let sockets = socket::routes().with_state(SocketState { api: state, routes: router.clone() });
    let sockets = sockets.route_layer(from_fn(checked));
    #[cfg(feature = "fleet")]
    let sockets = match gateway {
        Some(gateway) => gateway.in_front_of(sockets),
        None => sockets,
    };
    let router = router.merge(sockets);
    #[cfg(feature = "mcp")]
    let router = router.merge(crate::mcp::routes(inner).route_layer(from_fn(noted)));
    match counted {
        Some(metrics) => router.layer(from_fn_with_state(metrics, count_requests)),
        None => router,
    }
}

/// Names the modules whose routes are about the manager.
macro_rules! session_routes {
    ($($module:ident),+) => {
        fn session_routes() -> Router<ApiState> {
            Router::new()$(.merge($module::routes()))+
        }

        /// Describes all routes.
        #[cfg(feature = "openapi")]
        pub(crate) fn document() -> serde_json::Value {
            let mut document = crate::openapi::DocumentBuilder::new();
            $($module::describe(&mut document);)+
            fleet::describe(&mut document);
            metrics::describe(&mut document);
            socket::describe(&mut document);
            stop::describe(&mut document);
            document.finish()
        }
    };
}

session_routes!(
    agents,
    doctor,
    document,
    events,
    health,
    hold,
    instances,
    login,
    models,
    permissions,
    processes,
    profiles,
    prompts,
    queue,
    receipts,
    records,
    sessions,
    suspension,
    terminal,
    webhooks,
    workspaces
);

/// Pattern of the route that answered, for its count.
#[derive(Clone, Debug)]
struct CountedRoute(String);

/// What [`surround`] needs.
#[derive(Clone, Debug)]
struct RouteSurroundings {
    answer_time: Duration,
    audit: Option<AuditState>,
}

/// Goes around each route. It is one layer, since a router boxes a layer and copies all that is within, for each request anew.
async fn surround(State(around): State<RouteSurroundings>, request: Request, next: Next) -> Response {
    // The record of a request whose client leaves has its outcome: it is within.
    let recorded = |request| async {
        match around.audit {
            Some(audit) => record(audit, request, |request| checked(request, next)).await,
            None => checked(request, next).await,
        }
    };
    note_route(request, |request| bound(around.answer_time, request, recorded)).await
}

async fn checked(request: Request, next: Next) -> Response {
    match check_role(&request) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

async fn noted(request: Request, next: Next) -> Response {
    note_route(request, |request| next.run(request)).await
}

async fn note_route<A: Future<Output = Response>>(request: Request, next: impl FnOnce(Request) -> A) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let mut response = next(request).await;
    if let Some(route) = route {
        response.extensions_mut().insert(CountedRoute(route));
    }
    response
}

async fn count_requests(State(metrics): State<ServerMetrics>, request: Request, next: Next) -> Response {
    let (begin, method) = (Instant::now(), request.method().clone());
    let response = next.run(request).await;
    let route = response.extensions().get::<CountedRoute>();
    // What there is not is one route: a scan must not make a series of each path.
    let route = route.map_or("none", |CountedRoute(route)| route.as_str());
    metrics.count_request(&method, route, response.status(), begin.elapsed());
    if matches!(response.status(), StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS) {
        metrics.count_refusal(response.status());
    }
    response
}
