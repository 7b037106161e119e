//! The documentation has every route.

#[test]
fn every_route_is_there() {
    let page = include_str!("../../docs/http.md");
    let sources = [
        include_str!("routes/agents.rs"),
        include_str!("routes/events.rs"),
        include_str!("routes/health.rs"),
        include_str!("routes/metrics.rs"),
        include_str!("routes/models.rs"),
        include_str!("routes/permissions.rs"),
        include_str!("routes/processes.rs"),
        include_str!("routes/profiles.rs"),
        include_str!("routes/prompts.rs"),
        include_str!("routes/records.rs"),
        include_str!("routes/sessions.rs"),
        include_str!("routes/stop.rs"),
        include_str!("routes/suspension.rs"),
        include_str!("routes/terminal.rs"),
    ];
    let routes = sources.iter().flat_map(|source| source.split(".route(\"").skip(1));
    let mut count = 0;
    for (path, calls) in routes.filter_map(|rest| rest.split_once("\", ")) {
        let calls = calls.split_once('\n').map_or(calls, |(line, _)| line);
        for (method, call) in
            [("GET", "get("), ("POST", "post("), ("PUT", "put("), ("PATCH", "patch("), ("DELETE", "delete(")]
        {
            let row = format!("`{method} {path}`");
            assert!(!calls.contains(call) || page.contains(&row), "{row}");
            count += usize::from(calls.contains(call));
        }
    }
    let rows = ["GET", "POST", "PUT", "PATCH", "DELETE"].map(|method| page.matches(&format!("| `{method} /")).count());
    assert_eq!(rows.iter().sum::<usize>(), count);
}
