//! Formatting for a terminal.

pub(crate) mod agents;
pub(crate) mod event;
pub(crate) mod event_printer;
pub(crate) mod marks;
pub(crate) mod receipt;
pub(crate) mod records;
pub(crate) mod sessions;
pub(crate) mod tree;

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};

use crate::term::TermStyle;

/// Formats columns with a heading each, two spaces apart; the columns in `right` are aligned right.
pub(crate) fn table(style: TermStyle, heading: &[&str], right: &[usize], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
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
    fn amounts() {
        assert_eq!(bytes(1000), "1000 B");
        assert_eq!(bytes(114 * 1024), "114.0 KiB");
        assert_eq!(bytes(3 * 1024 * 1024 + 400_000), "3.4 MiB");
        assert_eq!(bytes(5 << 30), "5.0 GiB");
        assert_eq!(duration(Duration::from_micros(3_440)), "3.4 ms");
        assert_eq!(duration(Duration::from_millis(2_010)), "2.0 s");
    }
}
