//! MCP servers from a file, in the form that most clients use.

use std::{collections::BTreeMap, fs, path::Path};

use ipc_protocol::{EnvVars, McpServer, McpTransport};
use serde::Deserialize;

use api_types::ProblemDetails;

/// File of MCP servers: `{"mcpServers": {"NAME": {"command": …, "args": […], "env": {…}}, "OTHER": {"url": …,
/// "headers": {…}}}}`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct McpFile {
    mcp_servers: BTreeMap<String, McpServerEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct McpServerEntry {
    /// Transport, `stdio` or `http`, which the other fields show too.
    #[serde(default, rename = "type")]
    kind: Option<String>,
    command: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: EnvVars,
    url: Option<String>,
    #[serde(default)]
    headers: EnvVars,
}

/// Reads the servers of a file.
///
/// # Errors
/// `usage` with the file, and the server that is invalid.
pub(crate) fn read(path: &Path) -> Result<Vec<McpServer>, ProblemDetails> {
    let text = fs::read_to_string(path);
    let text = text.map_err(|error| ProblemDetails::usage(format!("reading {} failed: {error}", path.display())))?;
    parse(&text)
        .map_err(|reason| ProblemDetails::usage(format!("{} is no list of MCP servers: {reason}", path.display())))
}

fn parse(text: &str) -> Result<Vec<McpServer>, String> {
    let file: McpFile = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let server = |(name, server): (String, McpServerEntry)| {
        let kind = server.kind.as_deref();
        let transport = match (server.command, server.url) {
            (Some(command), None) if matches!(kind, None | Some("stdio")) => {
                McpTransport::Stdio { command, args: server.args, env: server.env }
            }
            (None, Some(url)) if matches!(kind, None | Some("http" | "streamable-http")) => {
                McpTransport::Http { url, headers: server.headers }
            }
            _ => return Err(format!("{name:?} has to have a `command` (type stdio) or a `url` (type http)")),
        };
        Ok(McpServer { name, transport })
    };
    file.mcp_servers.into_iter().map(server).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds() {
        let text = r#"{"mcpServers":{
            "a":{"command":"npx","args":["x"],"env":{"K":"v"}},
            "b":{"type":"http","url":"http://127.0.0.1:1/mcp","headers":{"Authorization":"hunter2"}}}}"#;
        let servers = parse(text).expect("parses");
        let stdio = McpTransport::Stdio {
            command: "npx".into(),
            args: vec!["x".into()],
            env: [("K", "v")].into_iter().collect(),
        };
        assert_eq!(servers[0], McpServer { name: "a".into(), transport: stdio });
        assert!(matches!(&servers[1].transport, McpTransport::Http { url, .. } if url.ends_with("/mcp")));
        for (text, part) in [
            (r#"{"mcpServers":{"a":{}}}"#, "\"a\" has to have"),
            (r#"{"mcpServers":{"a":{"type":"sse","url":"http://x"}}}"#, "\"a\" has to have"),
            (r#"{"mcpServers":{"a":{"cmd":"x"}}}"#, "cmd"),
            ("{}", "mcpServers"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
