//! Tables of cells.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{Cell, Outcome};

/// Around the table in the README.
const BEGIN: &str = "<!-- real agents: begin (tests/real-agents/run --readme) -->";
const END: &str = "<!-- real agents: end -->";

/// A table for a terminal: a line for each agent, then what is not a pass.
pub fn plain(cells: &[Cell]) -> String {
    let (agents, scenarios) = axes(cells);
    let width = |names: &[&str]| names.iter().map(|name| name.len()).max().unwrap_or_default();
    let wide = width(&scenarios);
    let mut out = String::new();
    let _ = write!(out, "{:wide$}", "");
    for agent in &agents {
        let _ = write!(out, "  {agent}");
    }
    out.push('\n');
    for scenario in &scenarios {
        let _ = write!(out, "{scenario:wide$}");
        for agent in &agents {
            let word = find(cells, agent, scenario).map_or("", |cell| word(&cell.outcome));
            let _ = write!(out, "  {word:width$}", width = agent.len());
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
    }
    for cell in cells {
        match &cell.outcome {
            Outcome::Pass => {}
            Outcome::Unsupported(reason) => {
                let _ = writeln!(out, "unsupported: {} {}: {reason}", cell.agent, cell.scenario);
            }
            Outcome::Fail(what) => {
                let _ = writeln!(out, "FAIL: {} {}: {what}", cell.agent, cell.scenario);
            }
        }
    }
    out
}

/// A table in Markdown, with the reasons as notes below it.
pub fn markdown(cells: &[Cell]) -> String {
    let (agents, scenarios) = axes(cells);
    let mut out = format!("{BEGIN}\n| | {} |\n|---|{}\n", agents.join(" | "), "---|".repeat(agents.len()));
    let mut notes: Vec<&str> = Vec::new();
    for scenario in &scenarios {
        let _ = write!(out, "| {scenario} |");
        for agent in &agents {
            let text = match find(cells, agent, scenario).map(|cell| &cell.outcome) {
                None => String::new(),
                Some(Outcome::Pass) => "✓".to_owned(),
                Some(Outcome::Fail(_)) => "**FAIL**".to_owned(),
                Some(Outcome::Unsupported(reason)) => {
                    let known = notes.iter().position(|note| note == reason);
                    let at = known.unwrap_or_else(|| {
                        notes.push(reason);
                        notes.len() - 1
                    });
                    format!("– ({})", at + 1)
                }
            };
            let _ = write!(out, " {text} |");
        }
        out.push('\n');
    }
    out.push('\n');
    for (at, note) in notes.iter().enumerate() {
        let _ = writeln!(out, "{}. {note}", at + 1);
    }
    out.push_str(END);
    out
}

/// The cells as JSON.
pub fn json(cells: &[Cell]) -> Value {
    let cell = |cell: &Cell| {
        let (outcome, reason) = match &cell.outcome {
            Outcome::Pass => ("pass", None),
            Outcome::Unsupported(reason) => ("unsupported", Some(reason)),
            Outcome::Fail(what) => ("fail", Some(what)),
        };
        json!({ "agent": cell.agent, "scenario": cell.scenario, "outcome": outcome, "reason": reason,
                "ms": u64::try_from(cell.took.as_millis()).unwrap_or(u64::MAX) })
    };
    cells.iter().map(cell).collect()
}

/// Which agents and scenarios there are, each in the order of its first cell.
fn axes(cells: &[Cell]) -> (Vec<&'static str>, Vec<&'static str>) {
    let mut axes: (Vec<&'static str>, Vec<&'static str>) = Default::default();
    for cell in cells {
        if !axes.0.contains(&cell.agent) {
            axes.0.push(cell.agent);
        }
        if !axes.1.contains(&cell.scenario) {
            axes.1.push(cell.scenario);
        }
    }
    axes
}

fn find<'a>(cells: &'a [Cell], agent: &str, scenario: &str) -> Option<&'a Cell> {
    cells.iter().find(|cell| cell.agent == agent && cell.scenario == scenario)
}

fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Pass => "pass",
        Outcome::Unsupported(_) => "unsupported",
        Outcome::Fail(_) => "FAIL",
    }
}

#[cfg(test)]
mod tests {
    use super::{BEGIN, END};
    use crate::real_agents::{AGENTS, SCENARIOS};

    /// The README's table has each scenario and each agent that there is, in their order, and no other.
    #[test]
    fn the_readme_has_every_cell() {
        let readme = include_str!("../../../README.md");
        let (_, table) = readme.split_once(BEGIN).expect("its beginning");
        let (table, _) = table.split_once(END).expect("its end");
        let rows: Vec<Vec<&str>> = table
            .lines()
            .filter_map(|line| line.trim().strip_prefix('|')?.strip_suffix('|'))
            .map(|row| row.split('|').map(str::trim).collect())
            .collect();
        let agents: Vec<&str> = AGENTS.iter().map(|agent| agent.id).collect();
        assert_eq!(rows[0][1..], agents);
        let named: Vec<&str> = rows[2..].iter().map(|row| row[0]).collect();
        let scenarios: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        assert_eq!(named, scenarios, "tests/real-agents/run --readme prints it anew");
        for row in &rows[2..] {
            for (agent, cell) in AGENTS.iter().zip(&row[1..]) {
                let cannot = agent.cannot(row[0]).is_some();
                assert!(
                    *cell == "\u{2713}" && !cannot || cell.starts_with("\u{2013} ("),
                    "{} {}: {cell}",
                    row[0],
                    agent.id
                );
            }
            assert_eq!(row.len(), 1 + AGENTS.len(), "{}", row[0]);
        }
    }
}
