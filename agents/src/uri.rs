//! Encoding of URIs.

/// Encodes `text` as a segment of a path, or as a value of a query.
pub(crate) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// Returns the URI of a file, whose path may be relative to `cwd`.
pub(crate) fn file(path: &str, cwd: &str) -> String {
    let whole = if path.starts_with('/') { path.to_owned() } else { format!("{}/{path}", cwd.trim_end_matches('/')) };
    let segments: Vec<String> = whole.split('/').map(encode).collect();
    format!("file://{}", segments.join("/"))
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
