//! OpenAPI document of the routes.

use axum::{
    http::header,
    response::{IntoResponse, Response},
};

use crate::{ApiState, docs_page, route_table::api_routes};

/// Document as it is checked in: what [the tables of routes](crate::route_table) and the types of bodies give, in a build that has their
/// schemas.
pub(crate) const DOCUMENT: &str = include_str!("../../openapi.json");

api_routes! { "Server", ApiState;
    /// Reads this document.
    get "/v1/openapi.json" read: json::<serde_json::Value>(200, "OpenAPI document of all routes.");
    /// Shows this document as a page, for people.
    get "/v1/docs" page: text(200, "The page. It has no script, and loads nothing.", "text/html; charset=utf-8");
}

async fn page() -> Response {
    docs_page::response()
}

async fn read() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT).into_response()
}
