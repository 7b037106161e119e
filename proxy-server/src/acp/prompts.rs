//! Prompts of the editor.

use serde_json::{Value, json};

use super::connection::AcpError;

/// Makes parts of a prompt of the editor's content blocks.
///
/// # Errors
/// Which block cannot be passed on, and why.
pub(super) fn parts(blocks: &Value) -> Result<Vec<Value>, AcpError> {
    let blocks = blocks.as_array().filter(|blocks| !blocks.is_empty());
    let blocks = blocks.ok_or_else(|| AcpError::invalid("prompt: give a list of content blocks".to_owned()))?;
    blocks.iter().enumerate().map(|(at, block)| part(at, block)).collect()
}

fn part(at: usize, block: &Value) -> Result<Value, AcpError> {
    let text = |name: &str| block[name].as_str();
    let missing = |name: &str| AcpError::invalid(format!("prompt[{at}]: it has no {name}"));
    match text("type").unwrap_or_default() {
        "text" => Ok(json!({ "text": text("text").ok_or_else(|| missing("text"))? })),
        "image" => {
            let (mime_type, data) =
                (text("mimeType").ok_or_else(|| missing("mimeType"))?, text("data").ok_or_else(|| missing("data"))?);
            Ok(json!({ "image": { "mimeType": mime_type, "data": data } }))
        }
        "resource_link" => {
            let uri = text("uri").ok_or_else(|| missing("uri"))?;
            Ok(match path_of(uri) {
                Some(path) => json!({ "file": { "path": path } }),
                None => json!({ "text": uri }),
            })
        }
        "resource" => {
            let resource = &block["resource"];
            let uri = resource["uri"].as_str().unwrap_or_default();
            match resource["text"].as_str() {
                // As editors put it themselves for agents that take no resources.
                Some(text) => Ok(json!({ "text": format!("<context ref=\"{uri}\">\n{text}\n</context>") })),
                None => Err(AcpError::invalid(format!(
                    "prompt[{at}]: the resource {uri:?} has no text, and its bytes go to no agent"
                ))),
            }
        }
        kind => Err(AcpError::invalid(format!(
            "prompt[{at}]: content of the type {kind:?} goes to no agent: text, images and resources do"
        ))),
    }
}

/// Returns the path of a file's address.
fn path_of(uri: &str) -> Option<String> {
    let path = uri.strip_prefix("file://")?;
    let path = percent_encoding::percent_decode_str(path).decode_utf8().ok()?;
    path.starts_with('/').then(|| path.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_become_parts() {
        let blocks = json!([
            { "type": "text", "text": "read" },
            { "type": "resource_link", "name": "a b", "uri": "file:///work/a%20b.rs" },
            { "type": "resource_link", "name": "x", "uri": "https://example.com" },
            { "type": "image", "mimeType": "image/png", "data": "AAAA" },
            { "type": "resource", "resource": { "uri": "file:///c", "text": "c" } },
        ]);
        let expected = json!([
            { "text": "read" },
            { "file": { "path": "/work/a b.rs" } },
            { "text": "https://example.com" },
            { "image": { "mimeType": "image/png", "data": "AAAA" } },
            { "text": "<context ref=\"file:///c\">\nc\n</context>" },
        ]);
        assert_eq!(json!(parts(&blocks).expect("parts")), expected);
        for (blocks, wanted) in [
            (json!(null), "list of content blocks"),
            (json!([]), "list of content blocks"),
            (json!([{ "type": "text" }]), "prompt[0]: it has no text"),
            (
                json!([{ "type": "text", "text": "" }, { "type": "audio", "data": "" }]),
                "prompt[1]: content of the type \"audio\"",
            ),
            (json!([{ "type": "resource", "resource": { "uri": "x", "blob": "AA" } }]), "has no text"),
        ] {
            let error = format!("{:?}", parts(&blocks).expect_err("refused"));
            assert!(error.contains(&wanted.replace('"', "\\\"")), "{error}");
        }
    }
}
