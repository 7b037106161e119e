//! Formatting for a terminal.

pub(crate) mod agents;
pub(crate) mod event;
pub(crate) mod event_printer;
pub(crate) mod fleet;
pub(crate) mod listing;
mod live_status;
pub(crate) mod log_text;
pub(crate) mod queue;
pub(crate) mod receipt;
pub(crate) mod records;
pub(crate) mod sessions;
#[cfg(feature = "engine")]
pub(crate) mod shared_terminal;
pub(crate) mod tree;
pub(crate) mod webhooks;
pub(crate) mod workspaces;

use std::time::{Duration, SystemTime};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use crate::term::TermStyle;

/// Formats columns with a heading each, two spaces apart; the columns in `right` are aligned right.
pub(crate) fn table(style: TermStyle, heading: &[&str], right: &[usize], rows: Vec<Vec<String>>) -> String {
    wrapped_table(style, heading, right, rows, None)
}

/// Formats like [`table`], with long cells wrapped in a terminal of `width` columns.
pub(crate) fn wrapped_table(
    style: TermStyle,
    heading: &[&str],
    right: &[usize],
    rows: Vec<Vec<String>>,
    width: Option<usize>,
) -> String {
    let mut table = Table::new();
    if let Some(width) = width {
        // The last column has a space behind it that is cut off.
        let width = u16::try_from(width.saturating_add(1)).unwrap_or(u16::MAX);
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    table.load_style(presets::NOTHING);
    table.set_header(heading.to_vec());
    table.add_rows(rows);
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if at == 0 { 0 } else { 1 }, 1));
        if right.contains(&at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = String::new();
    for (at, line) in table.lines().enumerate() {
        let line = line.trim_end();
        text.push_str(&if at == 0 { style.dim(line) } else { line.to_owned() });
        text.push('\n');
    }
    text
}

/// Formats a size: `3.4 MiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
    let mut value = bytes as f64 / 1024.0;
    for unit in ["KiB", "MiB"] {
        if value < 1000.0 {
            return format!("{value:.1} {unit}");
        }
        value /= 1024.0;
    }
    format!("{value:.1} GiB")
}

/// Formats a duration: `3.4 ms`, `2.0 s`.
pub(crate) fn duration(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        format!("{:.1} ms", duration.as_secs_f64() * 1000.0)
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}

/// Formats a moment in UTC: `2026-01-02 03:04:05`. Seconds are precise enough, and the zone is the same for all.
pub(crate) fn moment(at: SystemTime) -> String {
    humantime::format_rfc3339_seconds(at).to_string().trim_end_matches('Z').replace('T', " ")
}

/// Formats a count: `1 process`, `2 processes`.
pub(crate) fn count(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = vec![vec!["1".into(), "a".into()], vec!["4711".into(), "b  ".into()]];
        assert_eq!(table(TermStyle::PLAIN, &["PID", "COMMAND"], &[0], rows), " PID  COMMAND\n   1  a\n4711  b\n");
    }

    #[test]
    fn long_cells_are_wrapped_in_a_terminal() {
        let rows = vec![vec!["limit".into(), "ok".into(), "the proxy samples the whole tree of processes".into()]];
        let text = wrapped_table(TermStyle::PLAIN, &["WHAT", "", "FOUND"], &[], rows.clone(), Some(40));
        assert!(text.lines().count() > 2 && text.lines().all(|line| line.chars().count() <= 40), "{text}");
        assert_eq!(table(TermStyle::PLAIN, &["WHAT", "", "FOUND"], &[], rows).lines().count(), 2);
    }

    #[test]
    fn amounts() {
        assert_eq!(bytes(1000), "1000 B");
        assert_eq!(bytes(114 * 1024), "114.0 KiB");
        assert_eq!(bytes(3 * 1024 * 1024 + 400_000), "3.4 MiB");
        assert_eq!(bytes(5 << 30), "5.0 GiB");
        assert_eq!(duration(Duration::from_micros(3_440)), "3.4 ms");
        assert_eq!(duration(Duration::from_millis(2_010)), "2.0 s");
    }
}
