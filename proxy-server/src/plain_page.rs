//! Small pages without script or style, for people who followed a link.

use axum::{
    http::{HeaderMap, HeaderName, StatusCode, header},
    response::{IntoResponse, Response},
};

/// Policy of the page: nothing but its own form. Its address goes to no other site.
const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_TYPE, "text/html; charset=utf-8"),
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (header::CACHE_CONTROL, "no-store"),
    (header::REFERRER_POLICY, "same-origin"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
];

/// Answers with a page: a heading, and HTML below it.
pub(crate) fn page(status: StatusCode, title: &str, body: &str) -> Response {
    let text = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{title}</title><h1>{title}</h1>{body}</html>\n"
    );
    (status, HEADERS, text).into_response()
}

/// Returns true for a request of a browser that shows what it gets.
pub(crate) fn is_for_people(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|kind| kind.split(';').next().unwrap_or("").trim() == "text/html")
}

/// Escapes text for HTML.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_text() {
        assert_eq!(escape("<a href=\"x\">&"), "&lt;a href=&quot;x&quot;&gt;&amp;");
    }

    #[test]
    fn browsers_ask_for_pages() {
        let headers = |accept: &'static str| HeaderMap::from_iter([(header::ACCEPT, accept.parse().expect("a value"))]);
        assert!(is_for_people(&headers("text/html,application/xhtml+xml,*/*;q=0.8")));
        assert!(!is_for_people(&headers("application/json")) && !is_for_people(&headers("*/*")));
        assert!(!is_for_people(&HeaderMap::new()));
    }
}
