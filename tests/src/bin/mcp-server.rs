//! An MCP server with one tool, for agents that are given one: JSON-RPC by lines, until its standard input closes.

use std::io::{self, BufRead, Write};

use serde_json::{Value, json};

fn main() -> io::Result<()> {
    for line in io::stdin().lock().lines() {
        let Ok(request) = serde_json::from_str::<Value>(&line?) else { continue };
        // A notification has no id, and no answer.
        let Some(id) = request.get("id") else { continue };
        let result = match request["method"].as_str() {
            Some("initialize") => json!({
                "protocolVersion": request["params"]["protocolVersion"], "capabilities": { "tools": {} },
                "serverInfo": { "name": "orchard", "version": "1.0.0" },
            }),
            Some("tools/list") => json!({ "tools": [{
                "name": "pick_plum", "description": "Picks a plum.", "inputSchema": { "type": "object", "properties": {} },
            }] }),
            Some("tools/call") => json!({ "content": [{ "type": "text", "text": "a plum" }] }),
            Some("ping") => json!({}),
            _ => {
                let error = json!({ "code": -32601, "message": "no such method" });
                writeln!(io::stdout(), "{}", json!({ "jsonrpc": "2.0", "id": id, "error": error }))?;
                continue;
            }
        };
        writeln!(io::stdout(), "{}", json!({ "jsonrpc": "2.0", "id": id, "result": result }))?;
    }
    Ok(())
}
