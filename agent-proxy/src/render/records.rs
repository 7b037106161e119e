//! Table of session records, one a line.

use proxy_manager::SessionRecord;

use super::table;
use crate::term::{TermStyle, clip, printable};

/// Longest title, and longest list of tags, if there is no terminal width.
const LONGEST: usize = 40;

/// Formats the records, clipped to `width` columns.
pub(crate) fn render(records: &[SessionRecord], style: TermStyle, width: Option<usize>) -> String {
    let room = width.map_or(usize::MAX, |width| width / 4);
    let rows = records
        .iter()
        .map(|record| {
            let lifecycle = &record.config.lifecycle;
            let text = |text: &str| clip(&printable(text, false), room.min(LONGEST));
            let updated = humantime::format_rfc3339_seconds(record.updated_at).to_string();
            vec![
                record.session_id.to_string(),
                record.config.agent.clone(),
                status(record),
                record.turns.to_string(),
                updated.trim_end_matches('Z').replace('T', " "),
                text(lifecycle.title.as_deref().unwrap_or_default()),
                text(&lifecycle.tags.join(",")),
                clip(&printable(record.config.cwd.as_deref().unwrap_or_default(), false), room),
            ]
        })
        .collect();
    table(style, &["SESSION", "AGENT", "STATUS", "TURNS", "CHANGED (UTC)", "TITLE", "TAGS", "CWD"], &[3], rows)
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
    use proxy_manager::{EndReason, RecordState};

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
            "usage": proxy_manager::Usage::default(), "turnUsage": proxy_manager::TurnUsage::default(), "queued": 0,
        }))
        .expect("a record");
        let state = RecordState::Suspended { reason: EndReason::Suspended, handed_over: true };
        let handed_over = SessionRecord { state, archived: false, ..record.clone() };
        let text = render(&[record, handed_over], TermStyle::PLAIN, None);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("SESSION  AGENT  STATUS"), "{text}");
        assert!(lines[1].contains("suspended, archived      2  2026-01-02 03:04:06"), "{text}");
        assert!(lines[1].ends_with("red,blue  /x") && !text.contains('\u{1b}'), "{text}");
        assert!(lines[2].contains("handed over "), "{text}");
    }
}
