//! The page of the HTTP API has every route of the OpenAPI document, and no other.

use std::collections::BTreeSet;

#[test]
fn every_route_is_there() {
    let page = include_str!("../../docs/http.md");
    let of_row = |row: &str| row.strip_prefix("| `")?.split_once('`').map(|(route, _)| route.to_owned());
    let rows: Vec<String> = page.lines().filter_map(of_row).filter(|route| route.contains(" /")).collect();
    let document = crate::routes::document();
    let paths = document["paths"].as_object().expect("paths").iter();
    let methods = |item: &serde_json::Value| item.as_object().expect("operations").keys().cloned().collect::<Vec<_>>();
    let routes: Vec<String> = paths
        .flat_map(|(path, item)| {
            methods(item).into_iter().map(move |method| format!("{} {path}", method.to_uppercase()))
        })
        .collect();
    let set = |list: &[String]| list.iter().cloned().collect::<BTreeSet<String>>();
    assert_eq!(set(&rows), set(&routes));
    assert_eq!(rows.len(), routes.len(), "a route is on the page twice");
}
