//! Listings: tables that fit the terminal, JSON, ids alone, or a template.

use api_types::ProblemDetails;
use ipc_protocol::SessionId;
use serde_json::Value;

use super::table;
use crate::{
    args::{ListingFormat, TemplatePart},
    command_failure::CommandFailure,
    term::{self, TermStyle, clip, clip_start},
};

/// Shortest form of a long id. The ids that we mint begin with the time of their creation: so much of it tells
/// sessions apart that began 16 ms apart.
const SHORT_ID: usize = 12;

/// Narrowest column that was cut to fit.
const NARROWEST: usize = 8;

/// Spaces between two columns.
const GAP: usize = 2;

/// Column of a listing.
#[derive(Debug)]
pub(crate) struct Column {
    /// Name in a template.
    pub(crate) key: &'static str,
    /// Name in a table.
    pub(crate) heading: &'static str,
    /// Form in a narrow terminal.
    pub(crate) fit: ColumnFit,
    /// Width of the narrowest terminal that shows the column.
    pub(crate) from: usize,
}

/// Form of a column in a narrow terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnFit {
    /// Beginning of an id that tells it from the others.
    Id,
    /// Whole, always.
    Whole,
    /// Whole, and aligned right.
    Number,
    /// Cut at its end.
    End,
    /// Cut at its beginning: the end of a path says more.
    Start,
}

/// Row of a listing.
#[derive(Clone, Debug)]
pub(crate) struct ListingRow {
    /// Text of each column; the id is the first.
    pub(crate) cells: Vec<String>,
    /// Everything that is known.
    pub(crate) json: Value,
}

/// Rows and their columns.
#[derive(Debug)]
pub(crate) struct Listing {
    /// Columns, the most important first.
    pub(crate) columns: &'static [Column],
    /// Rows in the order of the list.
    pub(crate) rows: Vec<ListingRow>,
}

impl Listing {
    /// A listing that is printed by its JSON only: what the daemon sent, as it came.
    pub(crate) fn of_json(rows: Vec<Value>) -> Self {
        Self { columns: &[], rows: rows.into_iter().map(|json| ListingRow { cells: Vec::new(), json }).collect() }
    }

    /// Prints the listing to standard output; `empty` to standard error where a table would have no row.
    ///
    /// # Errors
    /// `usage` for a field that no row has; those of standard output.
    pub(crate) fn print(&self, form: &ListingFormat, empty: &str) -> Result<(), CommandFailure> {
        match form {
            ListingFormat::Table if self.rows.is_empty() => {
                term::error_line(empty);
                Ok(())
            }
            ListingFormat::Table => term::out(self.table(TermStyle::stdout(), term::columns())),
            ListingFormat::Json => term::json(&self.rows.iter().map(|row| &row.json).collect::<Vec<_>>()),
            ListingFormat::JsonLines => self.rows.iter().try_for_each(|row| term::json(&row.json)),
            ListingFormat::Ids => {
                term::out(self.rows.iter().map(|row| format!("{}\n", row.cells[0])).collect::<String>())
            }
            ListingFormat::Template(parts) => {
                let lines = self.rows.iter().map(|row| self.fill(parts, row)).collect::<Result<String, _>>()?;
                term::out(term::for_stdout(&lines))
            }
        }
    }

    /// Formats the table for a terminal of `width` columns; all of it without one.
    pub(crate) fn table(&self, style: TermStyle, width: Option<usize>) -> String {
        let is_shown = |(at, column): &(usize, &Column)| {
            let Some(width) = width else { return true };
            // What no row has is no column in little room.
            width >= column.from && (*at == 0 || self.rows.iter().any(|row| !row.cells[*at].is_empty()))
        };
        let shown: Vec<(usize, &Column)> = self.columns.iter().enumerate().filter(is_shown).collect();
        let mut rows: Vec<Vec<String>> =
            self.rows.iter().map(|row| shown.iter().map(|(at, _)| row.cells[*at].clone()).collect()).collect();
        if let Some(width) = width {
            fit(&shown, &mut rows, width);
        }
        let headings: Vec<&str> = shown.iter().map(|(_, column)| column.heading).collect();
        let right = shown.iter().enumerate().filter(|(_, (_, column))| column.fit == ColumnFit::Number);
        table(style, &headings, &right.map(|(at, _)| at).collect::<Vec<_>>(), rows)
    }

    fn fill(&self, parts: &[TemplatePart], row: &ListingRow) -> Result<String, ProblemDetails> {
        let mut text = String::new();
        for part in parts {
            match part {
                TemplatePart::Text(plain) => text.push_str(plain),
                TemplatePart::Field(path) => match self.columns.iter().position(|column| column.key == path) {
                    Some(at) => text.push_str(&row.cells[at]),
                    None => match find(&row.json, path) {
                        Some(Value::String(value)) => text.push_str(value),
                        Some(Value::Null) => {}
                        Some(value) => text.push_str(&value.to_string()),
                        // An optional field that other rows have.
                        None if self.rows.iter().any(|row| find(&row.json, path).is_some()) => {}
                        None => return Err(self.no_field(path)),
                    },
                },
            }
        }
        text.push('\n');
        Ok(text)
    }

    fn no_field(&self, path: &str) -> ProblemDetails {
        let keys: Vec<&str> = self.columns.iter().map(|column| column.key).filter(|key| !key.is_empty()).collect();
        let columns = match keys.is_empty() {
            true => String::new(),
            false => format!(" columns are {};", keys.join(", ")),
        };
        ProblemDetails::usage(format!("--format: there is no field {path:?}:{columns} --format json shows all fields"))
    }
}

/// Finds a field by its path.
fn find<'a>(json: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(json, |value, name| match value {
        Value::Array(items) => items.get(name.parse::<usize>().ok()?),
        value => value.get(name),
    })
}

/// Shortens the cells until the rows fit into `width` columns.
fn fit(columns: &[(usize, &Column)], rows: &mut [Vec<String>], width: usize) {
    for (at, _) in columns.iter().enumerate().filter(|(_, (_, column))| column.fit == ColumnFit::Id) {
        let ids: Vec<&str> = rows.iter().map(|row| row[at].as_str()).collect();
        let short = short_ids(&ids);
        rows.iter_mut().zip(short).for_each(|(row, short)| row[at] = short);
    }
    let width_of = |at: usize, rows: &[Vec<String>]| {
        let heading = columns[at].1.heading.chars().count();
        rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0).max(heading)
    };
    let mut widths: Vec<usize> = (0..columns.len()).map(|at| width_of(at, rows)).collect();
    let gaps = GAP * columns.len().saturating_sub(1);
    let flexible = |at: &usize| matches!(columns[*at].1.fit, ColumnFit::End | ColumnFit::Start);
    while widths.iter().sum::<usize>() + gaps > width {
        let widest =
            (0..columns.len()).filter(flexible).filter(|at| widths[*at] > NARROWEST).max_by_key(|at| widths[*at]);
        let Some(widest) = widest else { break };
        widths[widest] -= 1;
    }
    for row in rows {
        for (at, cell) in row.iter_mut().enumerate().filter(|(at, _)| flexible(at)) {
            *cell = if columns[at].1.fit == ColumnFit::Start {
                clip_start(cell, widths[at])
            } else {
                clip(cell, widths[at])
            };
        }
    }
}

/// Shortens minted ids to beginnings that tell them from each other.
pub(crate) fn short_ids(ids: &[&str]) -> Vec<String> {
    let is_minted = |id: &str| id.parse::<SessionId>().is_ok_and(|id| id.is_minted());
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let common = |a: &str, b: &str| a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let short = |id: &&str| {
        let at = sorted.partition_point(|other| other < id);
        let before = at.checked_sub(1).map_or(0, |before| common(sorted[before], id));
        let after = sorted.get(at + 1).map_or(0, |after| common(after, id));
        if !is_minted(id) {
            return (*id).to_owned();
        }
        let needed = (before.max(after) + 1).max(SHORT_ID);
        // An id that would lose a few characters only stays whole.
        if needed + 2 < id.len() { id.get(..needed).unwrap_or(id).to_owned() } else { (*id).to_owned() }
    };
    ids.iter().map(short).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const COLUMNS: &[Column] = &[
        Column { key: "id", heading: "SESSION", fit: ColumnFit::Id, from: 0 },
        Column { key: "state", heading: "STATE", fit: ColumnFit::End, from: 0 },
        Column { key: "turns", heading: "TURNS", fit: ColumnFit::Number, from: 0 },
        Column { key: "started", heading: "STARTED (UTC)", fit: ColumnFit::Whole, from: 100 },
        Column { key: "cwd", heading: "CWD", fit: ColumnFit::Start, from: 0 },
    ];

    fn listing() -> Listing {
        let row = |id: &str, cwd: &str| ListingRow {
            cells: [id, "ended: the agent exited by itself", "2", "2026-01-02 03:04:05", cwd]
                .map(str::to_owned)
                .to_vec(),
            json: json!({ "sessionId": id, "metrics": { "usage": { "inputTokens": 7 } }, "tags": ["a"], "model": null }),
        };
        let rows = vec![
            row("019ab3f2-7c41-7d3e-8a12-0123456789ab", "/home/somebody/projects/with/a/long/path/frontend"),
            row("019ab3f2-7c41-7d3f-8a12-0123456789ab", "/x"),
            row("build-7", "/y"),
        ];
        Listing { columns: COLUMNS, rows }
    }

    #[test]
    fn tables_fit_the_terminal() {
        for width in [60, 80, 100, 200] {
            let text = listing().table(TermStyle::PLAIN, Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
            assert_eq!(text.contains("STARTED"), width >= 100, "{text}");
        }
        let text = listing().table(TermStyle::PLAIN, Some(80));
        assert!(text.contains("019ab3f2-7c41-7d3e  ended") && text.contains("/frontend\n"), "{text}");
        assert!(text.contains("\nbuild-7 "), "{text}");
    }

    #[test]
    fn a_column_without_text_takes_no_room() {
        let mut listing = listing();
        listing.rows.iter_mut().for_each(|row| row.cells[4].clear());
        assert!(!listing.table(TermStyle::PLAIN, Some(80)).contains("CWD"));
        assert!(listing.table(TermStyle::PLAIN, None).contains("CWD"));
    }

    #[test]
    fn a_pipe_has_all_of_it() {
        let text = listing().table(TermStyle::PLAIN, None);
        assert!(text.contains("019ab3f2-7c41-7d3e-8a12-0123456789ab  ended: the agent exited by itself"), "{text}");
        assert!(text.contains("2026-01-02") && text.contains("/home/somebody/projects"), "{text}");
    }

    #[test]
    fn templates_name_columns_and_fields() {
        let listing = listing();
        let filled = |text: &str| {
            let ListingFormat::Template(parts) = text.parse().expect("a template") else { panic!("{text}") };
            listing.fill(&parts, &listing.rows[2])
        };
        assert_eq!(filled(r"{id}\t{turns}").as_deref(), Ok("build-7\t2\n"));
        assert_eq!(filled("{metrics.usage.inputTokens} {tags.0} {tags} [{model}]").as_deref(), Ok("7 a [\"a\"] []\n"));
        let problem = filled("{nonsense}").expect_err("unknown");
        assert!(problem.kind == "usage" && problem.detail.contains("id, state, turns"), "{}", problem.detail);
    }

    #[test]
    fn short_ids_tell_ids_apart() {
        let ids = [
            "019ab3f2-7c41-7d3e-8a12-0123456789ab",
            "019ab3f2-7c41-7d3e-9a12-0123456789ab",
            "01aab3f2-7c41-7d3e-8a12-0123456789ab",
            "job-with-a-long-name-of-my-own",
        ];
        assert_eq!(short_ids(&ids), ["019ab3f2-7c41-7d3e-8", "019ab3f2-7c41-7d3e-9", "01aab3f2-7c4", ids[3]]);
    }

    proptest::proptest! {
        #[test]
        fn a_short_id_is_the_beginning_of_one_id(
            ids in proptest::collection::btree_set("[ab]{8}-[ab]{4}-[ab]{4}-[ab]{4}-[ab]{12}|[ab-]{1,40}", 1..20),
        ) {
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            for (short, id) in short_ids(&ids).iter().zip(&ids) {
                proptest::prop_assert!(id.starts_with(short.as_str()));
                let others = ids.iter().filter(|other| *other != id && other.starts_with(short.as_str()));
                let others = others.filter(|other| other.parse::<SessionId>().is_ok_and(|other| other.is_minted()));
                proptest::prop_assert!(short == id || others.count() == 0);
            }
        }
    }
}
