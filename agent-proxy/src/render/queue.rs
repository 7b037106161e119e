//! Table of the prompts that wait.

use api_types::QueuedPrompt;
use serde_json::Value;

use super::listing::{Column, ColumnFit, Listing, ListingRow};
use crate::term::printable;

const COLUMNS: &[Column] = &[
    Column { key: "offset", heading: "NUMBER", fit: ColumnFit::Number, from: 0 },
    Column { key: "at", heading: "SINCE", fit: ColumnFit::Whole, from: 0 },
    Column { key: "by", heading: "BY", fit: ColumnFit::End, from: 0 },
    Column { key: "text", heading: "PROMPT", fit: ColumnFit::End, from: 0 },
];

/// Lists prompts, each with its JSON.
pub(crate) fn listing(prompts: Vec<QueuedPrompt>, json: Vec<Value>) -> Listing {
    let row = |(QueuedPrompt { offset, at, text, by }, json)| {
        let cells = vec![
            offset.to_string(),
            humantime::format_rfc3339_seconds(at).to_string(),
            by.map_or_else(String::new, |by| printable(&by, false)),
            printable(&text, false),
        ];
        ListingRow { cells, json }
    };
    Listing { columns: COLUMNS, rows: prompts.into_iter().zip(json).map(row).collect() }
}
