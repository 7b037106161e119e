//! Tables of a fleet's nodes and sessions.

use serde_json::Value;

use super::listing::{Column, ColumnFit, Listing, ListingRow};
use crate::term::printable;

const NODES: &[Column] = &[
    Column { key: "id", heading: "NODE", fit: ColumnFit::Whole, from: 0 },
    Column { key: "presence", heading: "STATE", fit: ColumnFit::Whole, from: 0 },
    Column { key: "sessions", heading: "SESSIONS", fit: ColumnFit::Number, from: 0 },
    Column { key: "silent", heading: "LAST BEAT", fit: ColumnFit::Number, from: 0 },
    Column { key: "labels", heading: "LABELS", fit: ColumnFit::End, from: 0 },
    Column { key: "agents", heading: "AGENTS", fit: ColumnFit::End, from: 80 },
    Column { key: "layers", heading: "LAYERS", fit: ColumnFit::End, from: 120 },
    Column { key: "backlog", heading: "BACKLOG", fit: ColumnFit::Number, from: 120 },
    Column { key: "version", heading: "VERSION", fit: ColumnFit::Whole, from: 120 },
    Column { key: "addresses", heading: "ADDRESSES", fit: ColumnFit::End, from: 120 },
];

const SESSIONS: &[Column] = &[
    Column { key: "id", heading: "SESSION", fit: ColumnFit::Id, from: 0 },
    Column { key: "node", heading: "NODE", fit: ColumnFit::Whole, from: 0 },
    Column { key: "presence", heading: "STATE OF NODE", fit: ColumnFit::Whole, from: 0 },
    Column { key: "silent", heading: "LAST BEAT", fit: ColumnFit::Number, from: 0 },
    Column { key: "user", heading: "USER", fit: ColumnFit::End, from: 0 },
    Column { key: "kill", heading: "KILL ASKED BY", fit: ColumnFit::End, from: 0 },
];

/// Lists nodes as the daemon describes them.
pub(crate) fn nodes(nodes: Vec<Value>) -> Listing {
    let row = |node: Value| {
        let capacity = node["capacity"].as_u64().map_or_else(String::new, |capacity| format!("/{capacity}"));
        let presence = match node["presence"].as_str() {
            Some("alive") if node["draining"] == true => "draining".to_owned(),
            _ => text(&node["presence"]),
        };
        let labels = node["labels"].as_object().into_iter().flatten();
        let labels: Vec<String> = labels.map(|(key, value)| format!("{key}={}", text(value))).collect();
        let cells = vec![
            text(&node["node"]),
            presence,
            format!("{}{capacity}", node["sessions"].as_u64().unwrap_or_default()),
            ago(&node),
            printable(&labels.join(" "), false),
            words(&node["agents"]),
            words(&node["layers"]),
            node["backlog"].as_u64().unwrap_or_default().to_string(),
            text(&node["version"]),
            words(&node["addresses"]),
        ];
        ListingRow { cells, json: node }
    };
    Listing { columns: NODES, rows: nodes.into_iter().map(row).collect() }
}

/// Lists sessions as the daemon describes them.
pub(crate) fn sessions(sessions: Vec<Value>) -> Listing {
    let row = |session: Value| {
        let presence = if session["presence"].is_null() { "unknown".to_owned() } else { text(&session["presence"]) };
        let cells = vec![
            text(&session["sessionId"]),
            text(&session["node"]),
            presence,
            ago(&session),
            text(&session["userId"]),
            text(&session["kill"]["by"]),
        ];
        ListingRow { cells, json: session }
    };
    Listing { columns: SESSIONS, rows: sessions.into_iter().map(row).collect() }
}

fn ago(row: &Value) -> String {
    row["silentSeconds"].as_u64().map_or_else(String::new, |seconds| format!("{seconds} s ago"))
}

fn words(list: &Value) -> String {
    let words = list.as_array().into_iter().flatten();
    words.map(text).collect::<Vec<_>>().join(" ")
}

fn text(value: &Value) -> String {
    printable(value.as_str().unwrap_or_default(), false)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_is_a_row() {
        let node = json!({
            "node": "b", "presence": "alive", "sessions": 3, "capacity": 40, "silentSeconds": 2, "labels": { "gpu": "1" },
            "agents": ["command", "pi"], "layers": ["baseline", "cgroup"], "backlog": 7, "version": "0.1.0", "addresses": [], "draining": false
        });
        assert_eq!(
            nodes(vec![node]).rows[0].cells,
            ["b", "alive", "3/40", "2 s ago", "gpu=1", "command pi", "baseline cgroup", "7", "0.1.0", ""]
        );
    }

    #[test]
    fn a_session_of_a_silent_node_says_so() {
        let session = json!({ "sessionId": "s", "node": "b", "presence": "silent", "silentSeconds": 40, "kill": { "by": "ada" } });
        assert_eq!(sessions(vec![session]).rows[0].cells, ["s", "b", "silent", "40 s ago", "", "ada"]);
    }
}
