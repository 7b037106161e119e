//! Prompts and MCP servers in the agent's form.

use ipc_protocol::{AgentSessionConfig, McpTransport, Prompt, PromptPart};
use serde_json::{Map, Value, json};

/// Converts a prompt to message content. Its last text names the files: the agent looks for `@` nowhere else.
pub(super) fn content(prompt: &Prompt) -> Value {
    let mut blocks = Vec::new();
    let mut words = Vec::new();
    for part in &prompt.parts {
        match part {
            PromptPart::Text(text) => words.push(text.clone()),
            PromptPart::File { path } => words.push(mention(path)),
            PromptPart::Image { mime_type, data } => blocks.push(json!({
                "type": "image", "source": { "type": "base64", "media_type": mime_type, "data": data },
            })),
        }
    }
    if !words.is_empty() || blocks.is_empty() {
        blocks.push(json!({ "type": "text", "text": words.join("\n") }));
    }
    Value::Array(blocks)
}

/// Writes a path so that the agent finds the file in a text. A path that `@` cannot express is written as it is.
fn mention(path: &str) -> String {
    if path.contains(|c: char| c == '"' || c.is_control()) {
        path.to_owned()
    } else if path.contains(char::is_whitespace) {
        format!("@\"{path}\"")
    } else {
        format!("@{path}")
    }
}

/// Converts the MCP servers to the agent's form.
pub(super) fn servers(config: &AgentSessionConfig) -> Value {
    let server = |transport: &McpTransport| match transport {
        McpTransport::Stdio { command, args, env } => {
            json!({ "type": "stdio", "command": command, "args": args, "env": env.0 })
        }
        McpTransport::Http { url, headers } => json!({ "type": "http", "url": url, "headers": headers.0 }),
    };
    let servers = config.mcp_servers.iter().map(|named| (named.name.clone(), server(&named.transport)));
    Value::Object(servers.collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trap_files_are_found_only_in_the_last_text() {
        let image = PromptPart::Image { mime_type: "image/png".into(), data: "aGk=".into() };
        let file = |path: &str| PromptPart::File { path: path.into() };
        let prompt =
            Prompt::from(vec![file("a.rs"), image, PromptPart::Text("compare".into()), file("b c"), file("d\"e")]);
        let blocks = content(&prompt);
        assert_eq!(blocks[0]["source"]["media_type"], "image/png");
        assert_eq!(blocks[1], json!({ "type": "text", "text": "@a.rs\ncompare\n@\"b c\"\nd\"e" }));
        assert_eq!(blocks.as_array().map(Vec::len), Some(2));
        assert_eq!(content(&Prompt::default()), json!([{ "type": "text", "text": "" }]));
    }
}
