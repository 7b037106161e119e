//! Lists of what all nodes have: each node's own list, put together. Pure.

use std::time::UNIX_EPOCH;

use axum::{
    extract::Query,
    http::{HeaderMap, Uri},
};
use serde::Deserialize;
use serde_json::Value;

use super::target::FleetList;
use crate::{
    ProblemDetails,
    list_page::{ListPage, next_link},
    requests::RouteResult,
};

/// What the query of a list says of its order and its page. Each node has filtered and cut its own by all of the query.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MergeQuery {
    sort: String,
    limit: Option<usize>,
}

/// Puts the lists of nodes together: one page in the order that the query asks for. Returns it with the link to the next.
pub(super) fn merge(list: FleetList, uri: &Uri, lists: Vec<Vec<Value>>) -> RouteResult<(HeaderMap, Vec<Value>)> {
    let query = Query::<MergeQuery>::try_from_uri(uri);
    let Query(MergeQuery { sort, limit }) = query.map_err(|error| ProblemDetails::usage(error.to_string()))?;
    let mut members: Vec<Value> = lists.into_iter().flatten().collect();
    // What is after the cursor each node has seen to.
    let page = ListPage { limit, cursor: None, descending: sort.starts_with('-') };
    let by_time = list == FleetList::Sessions && !sort.ends_with("id");
    let next = match list {
        // In each node's own order, node by node; this list has no pages.
        FleetList::Permissions => None,
        FleetList::Sessions | FleetList::Records => page.cut(&mut members, |member| key(member, by_time))?,
    };
    Ok((next_link(uri.query().unwrap_or_default(), next.as_deref()), members))
}

/// Key of a member, as the routes have it.
fn key(member: &Value, by_time: bool) -> String {
    let text = |name: &str| member[name].as_str().unwrap_or_default();
    match by_time {
        false => text("sessionId").to_owned(),
        true => {
            let began = humantime::parse_rfc3339(text("startedAt")).ok();
            let began = began.and_then(|began| began.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
            crate::routes::start_key(began, text("sessionId"))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn session(id: &str, second: u32) -> Value {
        json!({ "sessionId": id, "startedAt": format!("2026-01-01T00:00:{second:02}.000Z") })
    }

    fn ids(list: FleetList, query: &str, lists: Vec<Vec<Value>>) -> (Vec<String>, bool) {
        let uri: Uri = format!("/v1/sessions{query}").parse().expect("a URI");
        let (headers, members) = merge(list, &uri, lists).expect("merged");
        let ids = members.iter().map(|member| member["sessionId"].as_str().unwrap_or_default().to_owned());
        (ids.collect(), headers.contains_key("link"))
    }

    #[test]
    fn sessions_of_all_nodes_are_in_one_order_and_in_pages() {
        let lists = || vec![vec![session("c", 1), session("a", 3)], vec![session("b", 2)], vec![]];
        assert_eq!(ids(FleetList::Sessions, "", lists()).0, ["c", "b", "a"], "by the time of their start");
        assert_eq!(ids(FleetList::Sessions, "?sort=-startedAt", lists()).0, ["a", "b", "c"]);
        assert_eq!(ids(FleetList::Sessions, "?sort=id", lists()).0, ["a", "b", "c"]);
        assert_eq!(ids(FleetList::Records, "", lists()).0, ["a", "b", "c"]);
        let (page, has_next) = ids(FleetList::Sessions, "?sort=id&limit=2", lists());
        assert!(page == ["a", "b"] && has_next, "{page:?}");
    }

    #[test]
    fn permission_requests_stay_in_the_order_of_their_nodes() {
        let lists = vec![vec![session("z", 1)], vec![session("a", 1)]];
        assert_eq!(ids(FleetList::Permissions, "", lists), (vec!["z".into(), "a".into()], false));
    }
}
