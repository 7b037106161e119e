//! Table of webhooks.

use api_types::{ProblemDetails, api::WebhookStatus};

use super::listing::{Column, ColumnFit, Listing, ListingRow};
use crate::term::printable;

const COLUMNS: &[Column] = &[
    Column { key: "name", heading: "NAME", fit: ColumnFit::Whole, from: 0 },
    Column { key: "direction", heading: "DIRECTION", fit: ColumnFit::Whole, from: 0 },
    Column { key: "kind", heading: "KIND", fit: ColumnFit::Whole, from: 0 },
    Column { key: "waiting", heading: "WAITING", fit: ColumnFit::Number, from: 0 },
    Column { key: "counts", heading: "COUNTS", fit: ColumnFit::Whole, from: 0 },
    Column { key: "lastError", heading: "LAST FAILURE", fit: ColumnFit::Start, from: 100 },
];

/// Lists senders and receivers.
///
/// # Errors
/// None that is known: each is plain data.
pub(crate) fn listing(webhooks: &[WebhookStatus]) -> Result<Listing, ProblemDetails> {
    let row = |webhook: &WebhookStatus| {
        let counts: Vec<String> =
            webhook.counts.iter().filter(|(_, n)| **n > 0).map(|(outcome, n)| format!("{n} {outcome}")).collect();
        let cells = vec![
            printable(&webhook.name, false),
            webhook.direction.clone(),
            webhook.kind.clone(),
            webhook.waiting.to_string(),
            counts.join(", "),
            webhook.last_error.as_deref().map_or_else(String::new, |error| printable(error, false)),
        ];
        let json = serde_json::to_value(webhook).map_err(|error| ProblemDetails::failed(format!("JSON: {error}")))?;
        Ok(ListingRow { cells, json })
    };
    Ok(Listing { columns: COLUMNS, rows: webhooks.iter().map(row).collect::<Result<_, ProblemDetails>>()? })
}
