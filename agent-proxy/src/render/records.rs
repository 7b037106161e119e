//! Table of session records, one a line.

use api_types::SessionRecord;

use serde_json::Value;

use super::{
    listing::{Column, ColumnFit, Listing, ListingRow},
    moment,
};
use crate::term::{clip, printable};

/// Longest title, and longest list of tags.
const LONGEST: usize = 40;

const COLUMNS: &[Column] = &[
    Column { key: "id", heading: "SESSION", fit: ColumnFit::Id, from: 0 },
    Column { key: "agent", heading: "AGENT", fit: ColumnFit::Whole, from: 0 },
    Column { key: "state", heading: "STATUS", fit: ColumnFit::Whole, from: 0 },
    Column { key: "turns", heading: "TURNS", fit: ColumnFit::Number, from: 0 },
    Column { key: "changed", heading: "CHANGED (UTC)", fit: ColumnFit::Whole, from: 110 },
    Column { key: "title", heading: "TITLE", fit: ColumnFit::End, from: 0 },
    Column { key: "tags", heading: "TAGS", fit: ColumnFit::End, from: 100 },
    Column { key: "cwd", heading: "CWD", fit: ColumnFit::Start, from: 0 },
];

/// Lists the records. `json` has each as the daemon sent it.
pub(crate) fn listing(records: &[SessionRecord], json: Vec<Value>) -> Listing {
    let cells = |record: &SessionRecord| {
        let lifecycle = &record.config.lifecycle;
        let text = |text: &str| clip(&printable(text, false), LONGEST);
        vec![
            record.session_id.to_string(),
            record.config.agent.clone(),
            status(record),
            record.turns.to_string(),
            moment(record.updated_at),
            text(lifecycle.title.as_deref().unwrap_or_default()),
            text(&lifecycle.tags.join(",")),
            printable(record.config.cwd.as_deref().unwrap_or_default(), false),
        ]
    };
    let rows = records.iter().map(cells).zip(json).map(|(cells, json)| ListingRow { cells, json });
    Listing { columns: COLUMNS, rows: rows.collect() }
}

fn status(record: &SessionRecord) -> String {
    let status = match &record.waiting_for {
        Some(request) => format!("waiting for {}", printable(request, false)),
        None if record.state.is_handed_over() => "handed over".to_owned(),
        None => record.status().to_string(),
    };
    let archived = if record.archived { ", archived" } else { "" };
    format!("{status}{archived}")
}

#[cfg(test)]
mod tests {
    use api_types::RecordState;
    use ipc_protocol::EndReason;

    use super::*;

    #[test]
    fn a_listing() {
        let record: SessionRecord = serde_json::from_value(serde_json::json!({
            "sessionId": "s-1", "status": "suspended", "reason": "suspended", "archived": true, "handedOver": false,
            "config": {
                "agent": "pi", "cwd": "/x",
                "lifecycle": { "title": "Two\u{1b}[1m words", "tags": ["red", "blue"] },
            },
            "secrets": [], "nativeSessionId": "n", "resumable": true, "home": null, "hostExecutionId": "h", "proxy": null,
            "agentProcess": null, "createdAt": "2026-01-02T03:04:05.678Z", "updatedAt": "2026-01-02T03:04:06.789Z",
            "heartbeat": "2026-01-02T03:04:06.789Z", "turns": 2, "messages": 4, "lastOffset": "00000000000000000007",
            "usage": ipc_protocol::Usage::default(), "turnUsage": api_types::TurnUsage::default(), "queued": 0,
        }))
        .expect("a record");
        let state = RecordState::Suspended { reason: EndReason::Suspended, handed_over: true };
        let handed_over = SessionRecord { state, archived: false, ..record.clone() };
        let listing = listing(&[record, handed_over], vec![Value::Null; 2]);
        let text = listing.table(crate::term::TermStyle::PLAIN, None);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("SESSION  AGENT  STATUS"), "{text}");
        assert!(lines[1].contains("suspended, archived      2  2026-01-02 03:04:06"), "{text}");
        assert!(lines[1].ends_with("red,blue  /x") && !text.contains('\u{1b}'), "{text}");
        assert!(lines[2].contains("handed over "), "{text}");
    }
}
