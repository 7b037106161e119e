//! The page for people: static files that hold no data and need no token. What it shows, it asks the API for.
//!
//! All addresses in it are relative, so that it works wherever the router is mounted. The path of each file has the version of the
//! page, so that a browser may keep it for good.

use std::fmt::Write as _;

use axum::{
    Router,
    extract::{OriginalUri, Path, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};

use crate::ProblemDetails;

/// Version of all files together.
const VERSION: &str = include_str!(concat!(env!("OUT_DIR"), "/page_version.txt"));

/// Place of the version in `index.html`.
const PLACEHOLDER: &str = "page/VERSION/";

/// Policy of the page: nothing from elsewhere, no script or style in the document, and no text that becomes markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// Headers of every answer.
const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// File of the page.
#[derive(Debug)]
struct PageFile {
    name: &'static str,
    media_type: &'static str,
    /// Entity tag, in quotes.
    tag: &'static str,
    plain: &'static [u8],
    /// The same, by gzip.
    compressed: &'static [u8],
}

static FILES: &[PageFile] = include!(concat!(env!("OUT_DIR"), "/page_files.rs"));

pub(super) fn routes() -> Router {
    let index = index_page(PLACEHOLDER);
    Router::new().route("/", get(document).with_state(index)).route("/page/{version}/{*path}", get(file))
}

/// Returns true for the paths of the page: what is there is public.
pub(crate) fn is_public(path: &str) -> bool {
    path == "/" || path.starts_with("/page/")
}

/// Returns the document, with its files below this path.
fn index_page(folder: &str) -> String {
    let file = FILES.iter().find(|file| file.name == "index.html");
    let text = file.map(|file| String::from_utf8_lossy(file.plain)).unwrap_or_default();
    text.replace(PLACEHOLDER, &folder.replace("VERSION", VERSION))
}

async fn document(State(at_root): State<String>, OriginalUri(uri): OriginalUri, headers: HeaderMap) -> Response {
    // Mounted as `/agents`, its files are `agents/page/…` from there.
    let (folder, page) = match uri.path().rsplit('/').next().unwrap_or_default() {
        "" => ("", at_root),
        last if last.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~%".contains(&byte)) => {
            (last, index_page(&format!("{last}/{PLACEHOLDER}")))
        }
        _ => return ProblemDetails::new("unknown-route", "no such route").into_response(),
    };
    let mut tag = format!("\"{VERSION}");
    let _ = write!(tag, "-{folder}\"");
    if matches_tag(&headers, &tag) {
        return respond(StatusCode::NOT_MODIFIED, "text/html; charset=utf-8", &tag, "no-cache", Vec::new());
    }
    respond(StatusCode::OK, "text/html; charset=utf-8", &tag, "no-cache", page.into_bytes())
}

async fn file(Path((version, path)): Path<(String, String)>, headers: HeaderMap) -> Response {
    let Some(file) = FILES.iter().find(|file| file.name == path && path != "index.html") else {
        return ProblemDetails::new("unknown-route", "no such file of the page").into_response();
    };
    // A page from before the server's update asks for files of its own version, and gets those of now: not for good.
    let cache = if version == VERSION { "public, max-age=31536000, immutable" } else { "no-cache" };
    if matches_tag(&headers, file.tag) {
        return respond(StatusCode::NOT_MODIFIED, file.media_type, file.tag, cache, Vec::new());
    }
    let takes_gzip = list_has(&headers, &header::ACCEPT_ENCODING, |value| {
        value.split_once(';').map_or(value, |(name, _)| name).trim() == "gzip" && !value.contains("q=0")
    });
    let body = if takes_gzip { file.compressed } else { file.plain };
    let mut response = respond(StatusCode::OK, file.media_type, file.tag, cache, body);
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if takes_gzip {
        response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

fn matches_tag(headers: &HeaderMap, tag: &str) -> bool {
    list_has(headers, &header::IF_NONE_MATCH, |value| value.trim_start_matches("W/") == tag)
}

fn list_has(headers: &HeaderMap, name: &HeaderName, is_wanted: impl Fn(&str) -> bool) -> bool {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|value| is_wanted(value.trim()))
}

fn respond(
    status: StatusCode,
    media_type: &'static str,
    tag: &str,
    cache: &'static str,
    body: impl IntoResponse,
) -> Response {
    let mut response = (status, body).into_response();
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
    if let Ok(tag) = HeaderValue::from_str(tag) {
        headers.insert(header::ETAG, tag);
    }
    response
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::Request};
    use http_body_util::BodyExt as _;
    use tower::ServiceExt as _;

    use super::*;

    async fn get_with(router: Router, path: &str, name: HeaderName, value: &str) -> (StatusCode, HeaderMap, Vec<u8>) {
        let request = Request::get(path).header(name, value).body(Body::empty()).expect("a request");
        let (parts, body) = router.oneshot(request).await.expect("answered").into_parts();
        (parts.status, parts.headers, body.collect().await.expect("a body").to_bytes().to_vec())
    }

    async fn get_page(router: Router, path: &str) -> (StatusCode, HeaderMap, String) {
        let (status, headers, body) = get_with(router, path, header::ACCEPT, "*/*").await;
        (status, headers, String::from_utf8(body).expect("text"))
    }

    #[tokio::test]
    async fn the_document_finds_its_files_wherever_it_is_mounted() {
        for (router, path, folder) in [
            (routes(), "/", "page/"),
            (Router::new().nest("/agents", routes()), "/agents", "agents/page/"),
            (Router::new().nest("/a/b", routes()), "/a/b", "b/page/"),
        ] {
            let (status, headers, text) = get_page(router, path).await;
            assert_eq!(status, StatusCode::OK, "{path}");
            assert!(text.contains(&format!("src=\"{folder}{VERSION}/main.js\"")), "{text}");
            assert_eq!(headers[header::CONTENT_SECURITY_POLICY], POLICY);
            assert_eq!(headers[header::CACHE_CONTROL], "no-cache");
        }
        assert!(!POLICY.contains("unsafe"));
    }

    #[tokio::test]
    async fn files_have_their_types_and_are_kept() {
        let path = format!("/page/{VERSION}/main.js");
        let (status, headers, plain) = get_page(routes(), &path).await;
        assert_eq!(
            (status, &headers[header::CONTENT_TYPE]),
            (StatusCode::OK, &HeaderValue::from_static("text/javascript; charset=utf-8"))
        );
        assert!(headers[header::CACHE_CONTROL].to_str().expect("text").contains("immutable"));
        let (_, zipped, body) = get_with(routes(), &path, header::ACCEPT_ENCODING, "br, gzip").await;
        assert_eq!(zipped[header::CONTENT_ENCODING], "gzip");
        assert!(body.len() < plain.len() && body.starts_with(&[0x1f, 0x8b]));
        let tag = headers[header::ETAG].to_str().expect("text");
        let (status, _, body) = get_with(routes(), &path, header::IF_NONE_MATCH, tag).await;
        assert_eq!((status, body.len()), (StatusCode::NOT_MODIFIED, 0));
        let (_, headers, _) = get_page(routes(), "/page/000000000000/main.js").await;
        assert_eq!(headers[header::CACHE_CONTROL], "no-cache");
        for missing in ["/page/1/none.js", "/page/1/../lib.rs", "/page/1/index.html"] {
            assert_eq!(get_page(routes(), missing).await.0, StatusCode::NOT_FOUND, "{missing}");
        }
    }

    /// What a browser loads for any view but a terminal.
    #[test]
    fn the_page_is_small() {
        let is_terminal = |name: &str| name.starts_with("vendor/xterm") || name.ends_with(".txt");
        let sizes = FILES.iter().filter(|file| !is_terminal(file.name)).map(|file| file.compressed.len());
        let sum: usize = sizes.sum();
        assert!(sum <= 120 * 1024, "{sum} bytes");
    }

    /// A module that is not announced is asked for only when the one before it is there.
    #[test]
    fn all_modules_of_the_first_view_are_announced() {
        let index = index_page(PLACEHOLDER);
        let (mut seen, mut left) = (Vec::new(), vec!["main.js".to_owned()]);
        while let Some(name) = left.pop() {
            let file = FILES.iter().find(|file| file.name == name).unwrap_or_else(|| panic!("no file {name}"));
            assert!(index.contains(&format!("page/{VERSION}/{name}\"")), "{name} is loaded one step after the other");
            let text = String::from_utf8_lossy(file.plain);
            let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
            for path in
                text.split("from").skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next())
            {
                let path = match (path.strip_prefix("../"), path.strip_prefix("./"), folder) {
                    (Some(above), ..) => above.to_owned(),
                    (None, Some(beside), "") => beside.to_owned(),
                    (None, Some(beside), folder) => format!("{folder}/{beside}"),
                    (None, None, _) => continue,
                };
                if !seen.contains(&path) {
                    seen.push(path.clone());
                    left.push(path);
                }
            }
        }
        assert_eq!(seen.len(), index.matches("modulepreload").count(), "{seen:?}");
    }
}
