//! Encoding of URIs.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// All characters but the unreserved ones of RFC 3986.
const RESERVED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// Characters to escape in a whole path.
const IN_PATH: AsciiSet = RESERVED.remove(b'/');

/// Encodes `text` as a segment of a path, or as a value of a query.
pub(crate) fn encode(text: &str) -> String {
    utf8_percent_encode(text, &RESERVED).to_string()
}

/// Returns the URI of a file, whose path may be relative to `cwd`.
pub(crate) fn file(path: &str, cwd: &str) -> String {
    let whole = if path.starts_with('/') { path.to_owned() } else { format!("{}/{path}", cwd.trim_end_matches('/')) };
    format!("file://{}", utf8_percent_encode(&whole, &IN_PATH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_encoded() {
        assert_eq!(encode("/a b/ü?#"), "%2Fa%20b%2F%C3%BC%3F%23");
        assert_eq!(file("/a b/c#1.rs", "/w"), "file:///a%20b/c%231.rs");
        assert_eq!((file("a.txt", "/w"), file("a.txt", "/")), ("file:///w/a.txt".into(), "file:///a.txt".into()));
    }
}
