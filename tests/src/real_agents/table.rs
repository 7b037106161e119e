//! Tables of cells.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{AGENTS, Cell, Outcome, SCENARIOS};

const PAGE: &str = include_str!("../../../docs/agents.md");
/// Around the table in it.
const BEGIN: &str = "<!-- real agents: begin (tests/real-agents/run --page) -->";
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

/// Where the table of docs/agents.md says something else than these cells, in a line each. Of all agents and scenarios it is the table itself
/// that is compared, of some only their cells. A cell that failed is no matter here.
pub fn unlike_page(cells: &[Cell]) -> Vec<String> {
    unlike(in_page(PAGE), cells)
}

/// The table of a page, with its markers.
fn in_page(page: &str) -> &str {
    let from = page.find(BEGIN).unwrap_or(page.len());
    let to = page[from..].find(END).map_or(page.len(), |at| from + at + END.len());
    &page[from..to]
}

fn unlike(table: &str, cells: &[Cell]) -> Vec<String> {
    let failed = cells.iter().any(|cell| matches!(cell.outcome, Outcome::Fail(_)));
    if cells.len() == AGENTS.len() * SCENARIOS.len() && !failed {
        let ours = markdown(cells);
        let count = table.lines().count().max(ours.lines().count());
        let lines = |text: &str, at| text.lines().nth(at).unwrap_or("(no line)").to_owned();
        let differ =
            (0..count).map(|at| (at, lines(table, at), lines(&ours, at))).filter(|(_, said, ours)| said != ours);
        return differ
            .map(|(at, said, ours)| format!("line {} of the table: {said}\n  and now: {ours}", at + 1))
            .collect();
    }
    let differ = cells.iter().filter_map(|cell| {
        let ours = match &cell.outcome {
            Outcome::Pass => "\u{2713}",
            Outcome::Unsupported(reason) => reason,
            Outcome::Fail(_) => return None,
        };
        let said = said(table, cell).unwrap_or("(no cell)");
        (said != ours).then(|| format!("{} {}: {said}\n  and now: {ours}", cell.agent, cell.scenario))
    });
    differ.collect()
}

/// What a table in Markdown says in the place of `cell`: the reason, where there is one.
fn said<'a>(table: &'a str, cell: &Cell) -> Option<&'a str> {
    let mut rows = table.lines().filter_map(|line| line.strip_prefix('|')).map(|row| row.split('|').map(str::trim));
    let column = rows.next()?.position(|agent| agent == cell.agent)?;
    let text = rows.find_map(|mut row| (row.next() == Some(cell.scenario)).then(|| row.nth(column - 1)))??;
    let Some(number) = text.strip_prefix("\u{2013} (").and_then(|rest| rest.strip_suffix(')')) else {
        return Some(text);
    };
    table.lines().find_map(|line| line.strip_prefix(number)?.strip_prefix(". "))
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
    use std::time::Duration;

    use super::{PAGE, in_page, markdown, said, unlike};
    use crate::real_agents::{AGENTS, Agent, Cell, Outcome, SCENARIOS};

    /// All cells; every third agent cannot do the second scenario.
    fn all() -> Vec<Cell> {
        let cells = AGENTS.iter().enumerate().flat_map(|(column, agent)| {
            SCENARIOS.iter().enumerate().map(move |(row, scenario)| {
                let cannot = row == 1 && column % 3 == 0;
                let outcome = if cannot { Outcome::Unsupported(format!("why {column}")) } else { Outcome::Pass };
                Cell { agent: agent.id, scenario: scenario.name, outcome, took: Duration::ZERO }
            })
        });
        cells.collect()
    }

    #[test]
    fn a_whole_table_is_compared_line_by_line() {
        let cells = all();
        let table = markdown(&cells);
        assert_eq!(unlike(&table, &cells), Vec::<String>::new());
        // A reason, a row, and a row that is not there any more.
        let other = table.replace("2. why 3", "2. for no reason");
        let [line] = &unlike(&other, &cells)[..] else { panic!("{:?}", unlike(&other, &cells)) };
        assert!(line.contains("2. for no reason\n  and now: 2. why 3"), "{line}");
        let mut other = cells.clone();
        other[0].outcome = Outcome::Unsupported("why 3".into());
        assert_eq!(unlike(&table, &other).len(), 4, "two rows, and the order of two reasons");
        let row = format!("| {} |", SCENARIOS[2].name);
        let shorter: Vec<&str> = table.lines().filter(|line| !line.starts_with(&row)).collect();
        assert!(!unlike(&shorter.join("\n"), &cells).is_empty());
        assert!(!unlike("", &cells).is_empty());
    }

    #[test]
    fn of_some_cells_those_are_compared() {
        let cells = all();
        let table = markdown(&cells);
        let some = |at: usize, outcome| [Cell { outcome, ..cells[at].clone() }];
        let why = |why: &str| Outcome::Unsupported(why.into());
        // The second agent's first scenario, and the fourth agent's second.
        for (at, right, wrong) in
            [(SCENARIOS.len(), Outcome::Pass, why("why 3")), (3 * SCENARIOS.len() + 1, why("why 3"), Outcome::Pass)]
        {
            assert_eq!(unlike(&table, &some(at, right)), Vec::<String>::new());
            assert_eq!(unlike(&table, &some(at, wrong)).len(), 1);
            assert_eq!(unlike(&table, &some(at, why("another"))).len(), 1);
            assert_eq!(unlike("", &some(at, why("why 3"))).len(), 1);
        }
        assert_eq!(unlike(&table, &some(0, Outcome::Fail("it is told already".into()))), Vec::<String>::new());
    }

    /// The page's table has each scenario and each agent that there is, in their order, and no other.
    #[test]
    fn the_page_has_every_cell() {
        let table = in_page(PAGE);
        let rows: Vec<Vec<&str>> = table
            .lines()
            .filter_map(|line| line.trim().strip_prefix('|')?.strip_suffix('|'))
            .map(|row| row.split('|').map(str::trim).collect())
            .collect();
        let agents: Vec<&str> = AGENTS.iter().map(|agent| agent.id).collect();
        assert_eq!(rows[0][1..], agents);
        let named: Vec<&str> = rows[2..].iter().map(|row| row[0]).collect();
        let scenarios: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        assert_eq!(named, scenarios, "tests/real-agents/run --page prints it anew");
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
        for cell in all() {
            let cannot = Agent::named(cell.agent).and_then(|agent| agent.cannot(cell.scenario));
            assert!(cannot.is_none() || said(table, &cell) == cannot, "{cell:?}: {:?}", said(table, &cell));
        }
    }

    /// A run that comes to what the page says prints it as it stands there.
    #[test]
    fn the_page_is_as_it_would_be_printed() {
        let table = in_page(PAGE);
        let as_said = |cell: Cell| {
            let outcome = match said(table, &cell) {
                Some("\u{2713}") | None => Outcome::Pass,
                Some(reason) => Outcome::Unsupported(reason.to_owned()),
            };
            Cell { outcome, ..cell }
        };
        let cells: Vec<Cell> = all().into_iter().map(as_said).collect();
        assert_eq!(unlike(table, &cells), Vec::<String>::new());
    }
}
