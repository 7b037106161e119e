//! Records of sessions, living and past.

use axum::{
    extract::{Path, Query, RawQuery, rejection::QueryRejection},
    http::Uri,
    response::{IntoResponse, Response},
};
use proxy_manager::{SessionFilter, SessionRecord};
use serde::Deserialize;

use crate::{
    ApiState, ProblemDetails,
    access::Caller,
    api::RecordChange,
    list_page::{ListPage, next_link},
    requests::{Body, JsonBody, RouteResult, parse},
    route_table::api_routes,
};

api_routes! { "Records", ApiState;
    /// Lists the records of sessions, living and past, by id.
    get "/v1/records" list:
        query::<SessionFilter>() query::<PageQuery>() json::<Vec<SessionRecord>>(200, "The records.") pages();
    /// Describes a record.
    get "/v1/records/{id}" read: json::<SessionRecord>(200, "The record.") problems(SESSION);
    /// Changes the title, the tags, or whether the record is archived.
    post "/v1/records/{id}" change: body::<RecordChange>() json::<SessionRecord>(200, "The record.") problems(SESSION) problems(&["invalid-config"]);
}

/// Page of the records; the rest of the query filters them.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(default)]
struct PageQuery {
    /// Most records of a page; without it all are in one.
    #[cfg_attr(feature = "openapi", schemars(range(min = 1, max = 10_000)))]
    limit: Option<usize>,
    /// Cursor that the page before gave, in its header `Link`.
    cursor: Option<String>,
}

/// Lists records by id.
async fn list(caller: Caller, RawQuery(raw): RawQuery) -> RouteResult<Response> {
    let raw = raw.unwrap_or_default();
    let invalid = |error: QueryRejection| ProblemDetails::usage(error.to_string());
    let (paging, filtering): (Vec<&str>, Vec<&str>) = raw
        .split('&')
        .filter(|part| !part.is_empty())
        .partition(|part| ["limit=", "cursor="].iter().any(|name| part.starts_with(name)));
    let query = |parts: Vec<&str>| Uri::try_from(format!("/?{}", parts.join("&")));
    let uri = |parts| query(parts).map_err(|error| ProblemDetails::usage(format!("the query is not one: {error}")));
    let Query(filter) = Query::<SessionFilter>::try_from_uri(&uri(filtering)?).map_err(invalid)?;
    let Query(PageQuery { limit, cursor }) = Query::<PageQuery>::try_from_uri(&uri(paging)?).map_err(invalid)?;
    let page = ListPage { limit, cursor, descending: false };
    // One more tells whether another page follows.
    let most = limit.map_or(usize::MAX, |limit| limit.saturating_add(1));
    let sees = |record: &SessionRecord| caller.sees(record.config.user_id.as_deref());
    let mut records = caller.manager.records_after(&filter, &page.after()?, most, sees);
    let next = page.cut(&mut records, |record| record.session_id.to_string())?;
    Ok((next_link(&raw, next.as_deref()), JsonBody(records)).into_response())
}

async fn read(caller: Caller, Path(id): Path<String>) -> RouteResult<JsonBody<SessionRecord>> {
    Ok(JsonBody(caller.manager.record(&caller.session_id(&id)?)?))
}

pub(super) async fn change(caller: Caller, Path(id): Path<String>, body: Body) -> RouteResult<JsonBody<SessionRecord>> {
    let id = caller.session_id(&id)?;
    let RecordChange { title, add_tags, remove_tags, archived } = parse(body)?;
    if let Some(title) = title {
        caller.manager.rename_session(&id, Some(title).filter(|title| !title.is_empty())).await?;
    }
    if !add_tags.is_empty() || !remove_tags.is_empty() {
        caller.manager.tag_session(&id, &add_tags, &remove_tags).await?;
    }
    if let Some(archived) = archived {
        caller.manager.archive_session(&id, archived).await?;
    }
    Ok(JsonBody(caller.manager.record(&id)?))
}
