//! Bodies of requests as content of streams.

use proxy_manager::{StreamContent, is_json};
use serde::de::IgnoredAny;

use crate::{ProblemDetails, requests::RouteResult};

/// Converts a body to content: in JSON mode its messages, which are the elements of an array, or else the body itself.
///
/// # Errors
/// `usage` if the body is no JSON, and has to be.
pub(super) fn content(content_type: &str, body: &[u8]) -> RouteResult<StreamContent> {
    if body.is_empty() || !is_json(content_type) {
        return Ok(StreamContent::bytes(body.to_vec()));
    }
    let no_json = |why: String| ProblemDetails::usage(format!("the body is no JSON, as the stream has it: {why}"));
    serde_json::from_slice::<IgnoredAny>(body).map_err(|error| no_json(error.to_string()))?;
    // JSON is UTF-8, which the parser checks in strings alone; outside of them all is ASCII.
    str::from_utf8(body).map_err(|error| no_json(error.to_string()))?;
    Ok(StreamContent::messages(split(body.trim_ascii())))
}

/// Splits a document that is JSON into the elements of its array, or else into itself.
fn split(body: &[u8]) -> Vec<&[u8]> {
    let Some(inner) = body.strip_prefix(b"[").and_then(|body| body.strip_suffix(b"]")) else { return vec![body] };
    if inner.trim_ascii().is_empty() {
        return Vec::new();
    }
    let (mut depth, mut is_text, mut is_escaped) = (0_usize, false, false);
    inner
        .split(|byte| {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' => is_escaped = is_text,
                b'"' => is_text = !is_text,
                b'{' | b'[' if !is_text => depth += 1,
                b'}' | b']' if !is_text => depth = depth.saturating_sub(1),
                _ => {}
            }
            *byte == b',' && depth == 0 && !is_text
        })
        .map(<[u8]>::trim_ascii)
        .collect()
}

/// Joins messages, one a line, to an array.
pub(super) fn array(mut lines: Vec<u8>) -> Vec<u8> {
    let mut array = Vec::with_capacity(lines.len() + 2);
    array.push(b'[');
    lines.pop();
    array.extend(lines.iter().map(|byte| if *byte == b'\n' { b',' } else { *byte }));
    array.push(b']');
    array
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_flattened_one_level() {
        let parts = |text: &'static str| -> Vec<String> {
            split(text.as_bytes()).iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect()
        };
        assert_eq!(parts(r#"{"a":[1,2]}"#), [r#"{"a":[1,2]}"#]);
        assert_eq!(parts(r#"[1, "a,\"]", {"b":[3,4]} ]"#), ["1", r#""a,\"]""#, r#"{"b":[3,4]}"#]);
        assert_eq!(parts("[[1,2],[3]]"), ["[1,2]", "[3]"]);
        assert_eq!(parts("[[[1,2]]]"), ["[[1,2]]"]);
        assert!(parts("[ ]").is_empty());
        assert_eq!(parts(r#""[\\]""#), [r#""[\\]""#]);
    }

    #[test]
    fn no_json_is_refused() {
        for wrong in [&b"{"[..], b"1 2", b"[1,]", b"\"\xff\"", b"\xef\xbb\xbf1"] {
            content("application/json; charset=utf-8", wrong).expect_err("no JSON");
        }
        assert_eq!(content("application/json", b" [ ] ").expect("JSON"), StreamContent::default());
        assert_eq!(array(b"1\n{\"a\":2}\n".to_vec()), b"[1,{\"a\":2}]");
        assert_eq!(array(Vec::new()), b"[]");
    }
}
