//! What truly varies on a screen from one start to the next, and is left out of the comparison.

use vt100::{Cell, Color, Parser};

use crate::{
    agents::ScreenAgent,
    pane::{CapturedScreen, Shot},
};

/// Line of ours after the program's end.
const RECEIPT: &str = "session ended: 0 survivors";

/// Puts names in place of what varies.
///
/// Blanks at the ends of lines, with any background, and empty lines at the end of the screen do not count: tmux knows cells that were
/// erased from cells with a blank, and shows neither.
pub(crate) fn normal(agent: &ScreenAgent, screen: CapturedScreen) -> Shot {
    let CapturedScreen { text, colored, width, cursor: (column, row), modes, title } = screen;
    let rows = u16::try_from(colored.len()).unwrap_or(u16::MAX).max(1);
    let columns = 1000;
    let mut parser = Parser::new(
        rows.try_into().unwrap_or(std::num::NonZero::<u16>::MIN),
        columns.try_into().unwrap_or(std::num::NonZero::<u16>::MIN),
        0,
    );
    parser.process(colored.join("\r\n").as_bytes());
    let receipts = text.iter().filter(|line| line.contains(RECEIPT)).count();
    let (mut lines, mut colors) = (Vec::new(), Vec::new());
    for (at, line) in text.iter().enumerate().filter(|(_, line)| !line.contains(RECEIPT)) {
        let varying = agent.varies.iter().find(|(words, _)| line.contains(words)).map(|(_, name)| format!("<{name}>"));
        let row = u16::try_from(at).unwrap_or(u16::MAX);
        let is_colored_anew = agent.colored_anew.iter().any(|end| line.ends_with(end));
        let colored = if is_colored_anew { line.clone() } else { colored_line(&parser, row, columns) };
        colors.push(varying.clone().unwrap_or(colored));
        lines.push(varying.unwrap_or_else(|| line.clone()));
    }
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    colors.truncate(lines.len());
    // Beyond the last column it stands where the next character will not.
    let column = column.min(width.saturating_sub(1));
    let title = agent.titles.iter().fold(title, |title, (words, name)| title.replace(words, name));
    // tmux takes kitty's query for pictures for a title: the program's own is not known then.
    let title = (!title.starts_with("Gi=")).then_some(title);
    // A moving or blinking sign comes first.
    let title = title.map(|title| title.trim_start_matches(|c: char| !c.is_alphanumeric() && c != '[').to_owned());
    Shot {
        receipts,
        text: lines,
        colors,
        modes: format!("cursor {column},{} {modes}", row.saturating_sub(receipts)),
        title,
    }
}

/// Text of a line with its colours and attributes, in runs.
fn colored_line(parser: &Parser, row: u16, columns: u16) -> String {
    let mut line = String::new();
    let mut look = String::new();
    let cells: Vec<&Cell> = (0..columns).map_while(|column| parser.screen().cell(row, column)).collect();
    let is_blank = |cell: &&Cell| matches!(cell.contents(), "" | " ");
    let end = cells.iter().rposition(|cell| !is_blank(cell)).map_or(0, |last| last + 1);
    for cell in &cells[..end] {
        let next = look_of(cell, is_blank(cell));
        if next != look {
            line.push_str(&format!("‹{next}›"));
            look = next;
        }
        line.push_str(if is_blank(cell) && !cell.is_wide_continuation() { " " } else { cell.contents() });
    }
    line
}

fn look_of(cell: &Cell, is_blank: bool) -> String {
    let color = |color: Color| match color {
        Color::Default => "-".to_owned(),
        Color::Idx(index) => index.to_string(),
        Color::Rgb(red, green, blue) => format!("#{red:02x}{green:02x}{blue:02x}"),
    };
    let mut look = if is_blank { String::new() } else { color(cell.fgcolor()) };
    let attributes = [
        (cell.bold() && !is_blank, " bold"),
        (cell.dim() && !is_blank, " dim"),
        (cell.italic() && !is_blank, " italic"),
        (cell.underline(), " underline"),
        (cell.inverse(), " inverse"),
    ];
    look.push_str(&format!(" on {}", color(cell.bgcolor())));
    attributes.iter().filter(|(is_on, _)| *is_on).for_each(|(_, name)| look.push_str(name));
    look
}
