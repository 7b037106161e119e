//! Drawing of `top`: everything fits 80 columns and 24 rows.

use std::time::SystemTime;

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Clear, Paragraph},
};

use super::{
    rows::{RowPhase, SessionRow},
    state::{KillProgress, OpenSession, PermissionDialog, SIGNALS, SessionPane, TopDialog, TopState},
};
use crate::{
    commands::status::age,
    render::{self, bytes, tree},
    term::{TermStyle, clip, clip_start, folded, folded_details, printable},
};

/// Keys, with what they do.
const KEYS: [(&str, &str); 17] = [
    ("arrows, PgUp, PgDn", "move, or scroll the text"),
    ("Enter", "open a session: its processes and its text"),
    ("Esc", "back; forget the filter"),
    ("Tab", "from the processes to the text, and back"),
    ("/", "filter by id, title, agent, state, user, model or path"),
    ("s", "sort by the next column"),
    ("S", "reverse the order"),
    ("e", "show or hide sessions that have ended"),
    ("a", "answer a permission request"),
    ("  y, n", "  allow, deny"),
    ("  1 to 9, Enter", "  choose one of its options"),
    ("  PgDn, PgUp", "  see the rest of what it would do"),
    ("x", "send a signal to a process"),
    ("k", "kill a session, a process or a tree"),
    ("  s, t, p", "  the session, the tree, the process"),
    ("r", "look again now"),
    ("q, Ctrl-C", "leave; nothing ends by that"),
];

/// Colours, or none.
#[derive(Clone, Copy, Debug)]
pub(super) struct TopStyle {
    pub(super) has_colour: bool,
}

impl TopStyle {
    fn colour(self, colour: Color) -> Style {
        if self.has_colour { Style::new().fg(colour) } else { Style::new() }
    }

    fn phase(self, phase: RowPhase) -> Style {
        match phase {
            RowPhase::Asking => self.colour(Color::Yellow).add_modifier(Modifier::BOLD),
            RowPhase::Busy => self.colour(Color::Green),
            RowPhase::Starting => self.colour(Color::Cyan),
            RowPhase::Idle => Style::new(),
            RowPhase::Suspended | RowPhase::Ended => Style::new().add_modifier(Modifier::DIM),
        }
    }
}

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const SELECTED: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, state: &mut TopState, style: TopStyle, now: SystemTime) {
    let [head, body, message, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(u16::from(!state.message.is_empty())),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(head_line(state, head.width), head);
    state.page = usize::from(body.height.saturating_sub(1)).max(1);
    match &mut state.open {
        Some(_) => session(frame, body, state, style, now),
        None => list(frame, body, state, style, now),
    }
    let is_error = state.message.starts_with("error: ");
    let shown = Paragraph::new(clip(&state.message, usize::from(message.width)));
    frame.render_widget(shown.style(style.colour(if is_error { Color::Red } else { Color::Yellow })), message);
    frame.render_widget(Paragraph::new(key_line(state)).style(DIM), keys);
    dialog(frame, state, style);
}

fn head_line(state: &TopState, width: u16) -> Paragraph<'static> {
    let living = state.all().iter().filter(|row| row.phase < RowPhase::Suspended);
    let (mut cpu, mut memory, mut processes, mut number, mut busy, mut asking) = (0.0, 0, 0, 0, 0, 0);
    for row in living {
        cpu += row.cpu_percent;
        memory += row.rss_bytes;
        processes += row.processes;
        number += 1;
        busy += usize::from(row.phase == RowPhase::Busy);
        asking += usize::from(row.phase == RowPhase::Asking);
    }
    let mut text = format!("agent-proxy  {number} living, {busy} busy");
    if asking > 0 {
        text.push_str(&format!(", {asking} asking"));
    }
    text.push_str(&format!("  {processes} processes  CPU {cpu:.0}%  {}", bytes(memory)));
    let mut right = format!("by {}", state.sort_name());
    if !state.filter.is_empty() {
        right.push_str(&format!("  /{}", printable(&state.filter, false)));
    }
    let room = usize::from(width).saturating_sub(right.chars().count() + 1);
    let text = clip(&text, room);
    Paragraph::new(Line::from(vec![Span::styled(format!("{text:<room$} "), BOLD), Span::styled(right, DIM)]))
}

fn key_line(state: &TopState) -> &'static str {
    match (&state.dialog, &state.open) {
        (Some(TopDialog::Filter(_)), _) => "Enter keeps the filter  Esc forgets it",
        (Some(_), _) => "Esc closes",
        (None, Some(_)) => "Esc back  Tab pane  arrows move  a answer  x signal  k kill  ? keys  q quit",
        (None, None) => "Enter open  / filter  s sort  e ended  a answer  k kill  ? keys  q quit",
    }
}

/// Columns of numbers: heading, width, aligned right. The last ones give way to titles, and to ids that need more room.
const NUMBERS: [(&str, usize, bool); 6] = [
    ("CPU%", 5, true),
    ("MEMORY", 9, true),
    ("AGE", 6, true),
    ("PROC", 4, true),
    ("TURN", 4, true),
    ("TOKENS", 6, true),
];
/// Places of the numbers on the screen.
const NUMBER_ORDER: [usize; 6] = [0, 1, 3, 4, 5, 2];
/// Widths of the first three columns where there is room, and the least of them.
const ID_WIDTH: usize = 12;
const LONGEST_ID: usize = 36;
const AGENT_WIDTH: usize = 11;
const STATE_WIDTH: usize = 14;
const LEAST_WIDTH: usize = 5;
/// Least and most room for titles.
const LEAST_TITLE: usize = 16;
const MOST_TITLE: usize = 40;
/// Least room for directories.
const LEAST_DIRECTORY: usize = 9;
/// Space before titles and directories.
const WIDE_GAP: usize = 2;

/// Columns of the list in a window.
#[derive(Debug)]
struct ListColumns {
    id: usize,
    agent: usize,
    state: usize,
    /// Number of [`NUMBERS`] that are shown.
    numbers: usize,
    /// Room for titles; 0 without.
    title: usize,
    /// Room for directories; 0 without.
    directory: usize,
}

impl ListColumns {
    /// Fits the columns to the sessions and the window: ids are told apart first, then come titles where there are any.
    fn fit(rows: &[SessionRow], ids: &[String], width: usize) -> Self {
        let longest =
            |lengths: &mut dyn Iterator<Item = usize>, least, most| lengths.max().unwrap_or(0).clamp(least, most);
        let id = longest(&mut ids.iter().map(|id| id.chars().count()), ID_WIDTH, LONGEST_ID);
        let titles = rows.iter().filter_map(|row| row.title.as_ref()).map(|title| title.chars().count()).max();
        let title = titles.map_or(0, |title| title.clamp(LEAST_TITLE.min(title), LEAST_TITLE));
        let mut columns =
            Self { id, agent: AGENT_WIDTH, state: STATE_WIDTH, numbers: NUMBERS.len(), title, directory: 0 };
        if columns.width() > width {
            columns.agent = longest(&mut rows.iter().map(|row| row.agent.chars().count()), LEAST_WIDTH, AGENT_WIDTH);
            columns.state = longest(&mut rows.iter().map(|row| row.state.chars().count()), LEAST_WIDTH, STATE_WIDTH);
        }
        while columns.width() > width && columns.numbers > 2 {
            columns.numbers -= 1;
        }
        // What is left is for titles, and for directories behind them.
        let left = width.saturating_sub(columns.width());
        if let Some(titles) = titles {
            let wanted = titles.min(MOST_TITLE).saturating_sub(columns.title);
            columns.title += if left >= wanted + WIDE_GAP + LEAST_DIRECTORY { wanted } else { wanted.min(left) };
        }
        let left = width.saturating_sub(columns.width());
        columns.directory = left.checked_sub(WIDE_GAP).filter(|left| *left >= LEAST_DIRECTORY).unwrap_or(0);
        columns
    }

    fn width(&self) -> usize {
        let numbers: usize = NUMBERS[..self.numbers].iter().map(|(_, width, _)| width + 1).sum();
        let wide = |room: usize| if room == 0 { 0 } else { WIDE_GAP + room };
        self.id + 1 + self.agent + 1 + self.state + numbers + wide(self.title) + wide(self.directory)
    }

    fn line(&self, [id, agent, state]: [&str; 3], numbers: [String; 6], title: &str, directory: &str) -> String {
        let mut line = [(id, self.id), (agent, self.agent), (state, self.state)]
            .map(|(text, width)| cell(text, width, false))
            .join(" ");
        for at in NUMBER_ORDER.into_iter().filter(|at| *at < self.numbers) {
            let (_, width, right) = NUMBERS[at];
            line.push_str(&format!(" {}", cell(&numbers[at], width, right)));
        }
        if self.title > 0 {
            line.push_str(&format!("  {}", cell(title, self.title, false)));
        }
        if self.directory > 0 {
            line.push_str(&format!("  {}", clip_start(directory, self.directory)));
        }
        line
    }
}

fn list(frame: &mut Frame<'_>, area: Rect, state: &TopState, style: TopStyle, now: SystemTime) {
    let width = usize::from(area.width);
    let ids: Vec<&str> = state.rows.iter().map(|row| row.id.as_str()).collect();
    let ids = render::listing::short_ids(&ids);
    let columns = ListColumns::fit(&state.rows, &ids, width);
    let headings =
        columns.line(["SESSION", "AGENT", "STATE"], NUMBERS.map(|(name, ..)| name.to_owned()), "TITLE", "DIRECTORY");
    let mut lines = vec![Line::styled(clip(headings.trim_end(), width), DIM)];
    let height = usize::from(area.height.saturating_sub(1)).max(1);
    let at = state.selected_at().unwrap_or(0);
    // The selection is in view, and the list is filled.
    let first = (at + 1).saturating_sub(height);
    for (place, row) in state.rows.iter().enumerate().skip(first).take(height) {
        let text = clip(&session_line(row, &ids[place], &columns, now), width);
        let shown = if place == at { style.phase(row.phase).patch(SELECTED) } else { style.phase(row.phase) };
        lines.push(Line::styled(format!("{text:<width$}"), shown));
    }
    if state.rows.is_empty() {
        let text = match (state.is_loading, state.filter.is_empty()) {
            (true, _) => "waiting for the daemon …",
            (false, true) => "no sessions: start one with `agent-proxy start`; e shows those that have ended",
            (false, false) => "no session fits the filter: Esc forgets it",
        };
        lines.push(Line::styled(clip(text, width), DIM));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn session_line(row: &SessionRow, id: &str, columns: &ListColumns, now: SystemTime) -> String {
    let cpu = if row.processes == 0 { "-".to_owned() } else { format!("{:.0}", row.cpu_percent) };
    let memory = if row.processes == 0 { "-".to_owned() } else { bytes(row.rss_bytes) };
    let age = age(now.duration_since(row.started_at).unwrap_or_default());
    let numbers = [
        cpu,
        memory,
        age.split(' ').next().unwrap_or_default().to_owned(),
        row.processes.to_string(),
        row.turns.to_string(),
        amount(row.tokens),
    ];
    columns.line([id, &row.agent, &row.state], numbers, row.title.as_deref().unwrap_or_default(), &row.cwd)
}

fn cell(text: &str, width: usize, right: bool) -> String {
    let text = clip(text, width);
    if right { format!("{text:>width$}") } else { format!("{text:<width$}") }
}

/// Formats a number of tokens in at most six characters.
fn amount(number: u64) -> String {
    match number {
        0..=99_999 => number.to_string(),
        100_000..=99_999_999 => format!("{}k", number / 1_000),
        _ => format!("{}M", number / 1_000_000),
    }
}

fn session(frame: &mut Frame<'_>, area: Rect, state: &mut TopState, style: TopStyle, now: SystemTime) {
    let row = state.current().cloned();
    let Some(open) = &mut state.open else { return };
    let asking = row.as_ref().and_then(|row| row.permissions.first());
    let tree_height = u16::try_from(open.processes.len() + 1).unwrap_or(u16::MAX);
    let [title, request, processes, text] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(u16::from(asking.is_some())),
        Constraint::Length(tree_height.clamp(2, (area.height / 2).max(3))),
        Constraint::Min(3),
    ])
    .areas(area);
    let line = row.as_ref().map_or_else(
        || format!("{}  not listed any more", open.id),
        |row| {
            let model = row.model.as_ref().map_or_else(String::new, |model| format!("  {model}"));
            let age = age(now.duration_since(row.started_at).unwrap_or_default());
            let title = row.title.as_ref().map_or_else(String::new, |title| format!("  {title}"));
            format!("{}  {}{model}  {}  {} tokens  {age}{title}", row.id, row.agent, row.state, amount(row.tokens))
        },
    );
    let shown = row.as_ref().map_or(BOLD, |row| style.phase(row.phase).patch(BOLD));
    frame.render_widget(Paragraph::new(clip(&line, usize::from(title.width))).style(shown), title);
    if let Some(asking) = asking {
        let line = format!("? {}: {} (a answers)", printable(&asking.tool, false), printable(&asking.title, false));
        frame.render_widget(
            Paragraph::new(clip(&line, usize::from(request.width))).style(style.phase(RowPhase::Asking)),
            request,
        );
    }
    process_tree(frame, processes, open);
    let block = Block::bordered().borders(ratatui::widgets::Borders::TOP).title(match open.text.scroll {
        0 => " text ".to_owned(),
        rows => format!(" text, {rows} rows above its end "),
    });
    let block = if open.focus == SessionPane::Text { block.border_style(BOLD) } else { block.border_style(DIM) };
    let inner = block.inner(text);
    frame.render_widget(block, text);
    let lines = open.text.rows(usize::from(inner.width), usize::from(inner.height));
    frame.render_widget(Paragraph::new(lines.into_iter().map(Line::raw).collect::<Vec<_>>()), inner);
}

fn process_tree(frame: &mut Frame<'_>, area: Rect, open: &OpenSession) {
    let nodes = tree::arrange(&open.processes);
    let height = usize::from(area.height.saturating_sub(1)).max(1);
    let at = open.selected_at().unwrap_or(0);
    let first = (at + 1).saturating_sub(height);
    let width = usize::from(area.width);
    let room = width.saturating_sub(7 + 2 + 5 + 2 + 9 + 2);
    let mut lines = vec![Line::styled(format!("{:>7}  {:>5}  {:>9}  COMMAND", "PID", "CPU%", "RSS"), DIM)];
    for (place, node) in nodes.iter().enumerate().skip(first).take(height) {
        let process = node.process;
        let notes = open.notes.get(&process.id).cloned().unwrap_or_default();
        let text = format!(
            "{:>7}  {:>5}  {:>9}  {}",
            process.id.pid,
            process.cpu_percent.map_or_else(|| "-".to_owned(), |cpu| format!("{cpu:.1}")),
            process.rss_bytes.map_or_else(|| "-".to_owned(), bytes),
            tree::describe(node, notes, TermStyle::without_colour(), Some(room))
        );
        let is_selected = place == at && open.focus == SessionPane::Processes;
        lines.push(Line::styled(format!("{text:<width$}"), if is_selected { SELECTED } else { Style::new() }));
    }
    if nodes.is_empty() {
        lines.push(Line::styled(if open.is_loading { "looking …" } else { "no processes" }, DIM));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn dialog(frame: &mut Frame<'_>, state: &mut TopState, style: TopStyle) {
    let Some(dialog) = &mut state.dialog else { return };
    let width = usize::from(frame.area().width.saturating_sub(4)).min(76);
    let plain = |text: String| Line::raw(clip(&text, width));
    let choice = |place: usize, at: usize, text: String| {
        let text = clip(&text, width);
        if place == at { Line::styled(format!("{text:<width$}"), SELECTED) } else { Line::raw(text) }
    };
    let (title, lines) = match dialog {
        TopDialog::Filter(text) => {
            let area = frame.area();
            let line = Rect { y: area.bottom().saturating_sub(1), height: 1, ..area };
            frame.render_widget(Clear, line);
            let text = format!("/{}", printable(text, false));
            let column = u16::try_from(text.chars().count()).unwrap_or(u16::MAX).min(line.width.saturating_sub(1));
            frame.render_widget(Paragraph::new(text).style(BOLD), line);
            frame.set_cursor_position((line.x + column, line.y));
            return;
        }
        TopDialog::Help => {
            ("Keys", KEYS.iter().map(|(key, what)| plain(format!("{key:<20}{what}"))).collect::<Vec<_>>())
        }
        TopDialog::Kill { session, process: None } => (
            "Kill",
            vec![plain(format!("Kill session {session} and all that it started?")), plain("[y]es  [n]o".into())],
        ),
        TopDialog::Kill { session, process: Some((process, command)) } => (
            "Kill",
            vec![
                plain(format!("{} {}", process.pid, printable(command, false))),
                plain("[p]rocess alone, with its [t]ree, or the whole".into()),
                plain(format!("[s]ession {session}; [n]o")),
            ],
        ),
        TopDialog::Signal { process, command, at, .. } => {
            let mut lines = vec![plain(format!("{} {}", process.pid, printable(command, false)))];
            let signals = SIGNALS.iter().enumerate();
            lines.extend(signals.map(|(place, name)| choice(place, *at, format!("{} SIG{name}", place + 1))));
            ("Signal, Enter sends it", lines)
        }
        TopDialog::Permission(dialog) => ("Permission", permission_lines(dialog, width, frame.area().height)),
        TopDialog::Progress(progress) => ("Kill", progress_lines(progress, width, frame.area().height, style)),
    };
    let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX);
    let area = centre(frame.area(), u16::try_from(width + 2).unwrap_or(u16::MAX), height);
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(format!(" {title} "))), area);
}

/// Most rows of a request's title that are always shown.
const MAX_TITLE_ROWS: usize = 3;

/// Formats a request: its head, as much of what it would do as there is room for, and its options.
fn permission_lines(dialog: &mut PermissionDialog, width: usize, height: u16) -> Vec<Line<'static>> {
    let PermissionDialog { session, request, at, scroll, page } = dialog;
    let fold = |text: String, indent| folded(&text, width, indent);
    let mut lines: Vec<_> = fold(format!("{session} asks to use {}", printable(&request.tool, false)), 2)
        .into_iter()
        .map(Line::raw)
        .collect();
    // A long one is scrolled with the rest.
    let (title, mut details) = (fold(printable(&request.title, false), 2), Vec::new());
    if title.len() <= MAX_TITLE_ROWS {
        lines.extend(title.into_iter().map(|row| Line::styled(row, BOLD)));
    } else {
        details = title;
    }
    let (mut below, mut first_selected) = (Vec::new(), 0);
    for (place, option) in request.options.iter().enumerate() {
        let rows = fold(format!("{} {}", place + 1, printable(&option.name, false)), 2).into_iter();
        let style = if place == *at { SELECTED } else { Style::new() };
        if place == *at {
            first_selected = below.len();
        }
        below.extend(rows.map(|row| Line::styled(format!("{row:<width$}"), style)));
    }
    // As many as leave half of the room to what is asked.
    let most = (usize::from(height) / 2).max(1);
    if below.len() > most {
        below = below.split_off(first_selected.min(below.len() - most));
        below.truncate(most);
    }
    below.push(Line::raw(clip("[y] allow  [n] deny  Enter: the option", width)));
    details.extend(folded_details(&request.details(), Some(width)));
    // The border takes two rows.
    let room = usize::from(height).saturating_sub(2 + lines.len() + below.len());
    if details.len() <= room {
        lines.extend(details.into_iter().map(Line::raw));
    } else {
        *page = room.saturating_sub(1).max(1);
        *scroll = (*scroll).min(details.len() - *page);
        let last = *scroll + *page;
        lines.extend(details[*scroll..last].iter().cloned().map(Line::raw));
        let text = format!("rows {} to {last} of {}: PgDn, PgUp", *scroll + 1, details.len());
        lines.push(Line::styled(clip(&text, width), BOLD));
    }
    lines.extend(below);
    lines
}

fn progress_lines(progress: &KillProgress, width: usize, height: u16, style: TopStyle) -> Vec<Line<'static>> {
    let alive = progress.processes.values().filter(|(_, ended)| ended.is_none()).count();
    let mut lines = vec![Line::raw(clip(
        &match &progress.result {
            None => format!(
                "{}: ending, {} of {} gone",
                progress.session,
                progress.processes.len() - alive,
                progress.processes.len()
            ),
            Some(Ok(receipt)) => {
                format!("{}: {}", progress.session, render::receipt::summary(receipt, TermStyle::without_colour()))
            }
            Some(Err(why)) => format!("{}: {}", progress.session, printable(why, false)),
        },
        width,
    ))];
    let verdict: Vec<String> = match &progress.result {
        Some(Ok(receipt)) => {
            let verdict = render::receipt::verdict(receipt, TermStyle::without_colour());
            verdict.lines().skip(1).map(str::to_owned).collect()
        }
        _ => Vec::new(),
    };
    let room = usize::from(height).saturating_sub(5 + verdict.len()).max(1);
    for (at, (pid, (command, ended))) in progress.processes.iter().enumerate() {
        if at + 1 == room && progress.processes.len() > room {
            lines.push(Line::styled(format!("and {} more", progress.processes.len() - at), DIM));
            break;
        }
        let (word, shown) = match ended {
            None => ("alive", style.colour(Color::Yellow)),
            Some(ended) => (ended.as_str(), Style::new()),
        };
        let text = clip(&format!("{pid:>7}  {word:<12} {}", printable(command, false)), width);
        lines.push(Line::styled(text, shown));
    }
    let is_proven = matches!(&progress.result, Some(Ok(receipt)) if receipt.is_empty());
    let shown = style.colour(if is_proven { Color::Green } else { Color::Red });
    lines.extend(verdict.into_iter().map(|line| Line::styled(clip(&line, width), shown)));
    lines
}

fn centre(area: Rect, width: u16, height: u16) -> Rect {
    let (width, height) = (width.min(area.width), height.min(area.height));
    Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use api_types::OpenPermission;
    use ipc_protocol::KillCause;
    use ipc_protocol::{Event, PermissionOption, PermissionOptionKind, Receipt};
    use ratatui::{Terminal, backend::TestBackend};

    use super::{
        super::{
            rows::tests::row,
            state::{
                TopUpdate,
                tests::{press, state},
            },
        },
        *,
    };
    use crate::render::tree::tests::{family, listed};

    /// Draws on 80 columns and 24 rows, and returns the rows without what is blank behind them.
    fn screen(state: &mut TopState) -> Vec<String> {
        sized(state, 80, 24)
    }

    fn sized(state: &mut TopState, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(3_700);
        terminal.draw(|frame| draw(frame, state, TopStyle { has_colour: true }, now)).expect("drawn");
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(line).collect()
    }

    fn asking() -> OpenPermission {
        let option = |id: &str, kind| PermissionOption { id: id.into(), name: id.into(), kind };
        let options =
            vec![option("Allow", PermissionOptionKind::AllowOnce), option("Reject", PermissionOptionKind::RejectOnce)];
        OpenPermission {
            id: "p-1".into(),
            title: "Run make".into(),
            tool: "shell".into(),
            kind: "execute".into(),
            command: Some("make -j2".into()),
            paths: Vec::new(),
            input: ipc_protocol::Json::null(),
            options,
        }
    }

    #[test]
    fn a_list_at_80_by_24() {
        let rows = vec![
            row(1, RowPhase::Idle),
            SessionRow { permissions: vec![asking()], ..row(2, RowPhase::Asking) },
            SessionRow { processes: 0, ..row(3, RowPhase::Suspended) },
        ];
        let mut top = state(rows);
        let lines = screen(&mut top);
        assert_eq!(lines[0], "agent-proxy  2 living, 0 busy, 1 asking  3 processes  CPU 3%  3.0 MiB      by id");
        assert_eq!(lines[1], "SESSION      AGENT       STATE           CPU%    MEMORY PROC TURN TOKENS    AGE");
        assert_eq!(lines[2], "s-001        acp         idle               1   1.0 MiB    1    1   1000     1h");
        assert_eq!(lines[3], "s-002        acp         asking             2   2.0 MiB    2    2   2000     1h");
        assert_eq!(lines[4], "s-003        acp         suspended          -         -    0    3   3000     1h");
        assert_eq!(lines[23], "Enter open  / filter  s sort  e ended  a answer  k kill  ? keys  q quit");
        assert!(lines[5..23].iter().all(String::is_empty));
        let wide = sized(&mut top, 120, 24);
        assert!(wide[2].ends_with("  /home/ada/project"), "{}", wide[2]);
    }

    #[test]
    fn sessions_are_told_apart_by_ids_and_titles() {
        let id = |number| format!("019ab3f2-7c41-7d3{number}-8a12-0123456789ab").parse().expect("an id");
        let titled = |number: u16, title: Option<&str>| SessionRow {
            id: id(number),
            title: title.map(str::to_owned),
            ..row(number, RowPhase::Idle)
        };
        let mut top = state(vec![titled(1, Some("Fix the login form")), titled(2, None)]);
        let lines = screen(&mut top);
        assert_eq!(lines[1], "SESSION            AGENT STATE  CPU%    MEMORY PROC    AGE  TITLE");
        assert_eq!(lines[2], "019ab3f2-7c41-7d31 acp   idle      1   1.0 MiB    1     1h  Fix the login form");
        assert_eq!(lines[3], "019ab3f2-7c41-7d32 acp   idle      2   2.0 MiB    2     1h");
        let wide = sized(&mut top, 140, 24);
        assert!(wide[1].ends_with("  TITLE               DIRECTORY") && wide[1].contains("TOKENS"), "{}", wide[1]);
        assert!(wide[2].ends_with("  Fix the login form  /home/ada/project"), "{}", wide[2]);
        let long = "whose id is longer than all others, and whose title is longer still, and goes on";
        let mut top = state(vec![
            SessionRow { id: "a".repeat(64).parse().expect("an id"), ..titled(1, Some(long)) },
            SessionRow { id: format!("{}b", "a".repeat(63)).parse().expect("an id"), ..titled(2, Some("x")) },
        ]);
        for width in [20, 40, 80, 100, 200] {
            assert!(sized(&mut top, width, 24).iter().all(|line| line.chars().count() <= usize::from(width)));
        }
        press(&mut top, "/ l o n g e r");
        assert_eq!(top.rows.len(), 1, "titles are looked through");
        press(&mut top, "enter enter");
        assert!(sized(&mut top, 200, 24)[1].contains("  whose id is longer"), "the open session has it, too");
    }

    #[test]
    fn a_long_list_has_its_selection_in_view() {
        let mut top = state((0..300).map(|number| row(number, RowPhase::Idle)).collect());
        press(&mut top, "end");
        let lines = screen(&mut top);
        assert!(lines[22].starts_with("s-299") && lines[2].starts_with("s-279"), "{lines:#?}");
        press(&mut top, "pgup");
        assert_eq!(top.selected_at(), Some(299 - 21));
        press(&mut top, "home");
        assert!(screen(&mut top)[2].starts_with("s-000"));
    }

    #[test]
    fn an_open_session_has_its_tree_and_its_text() {
        let mut top = state(vec![SessionRow { permissions: vec![asking()], ..row(1, RowPhase::Asking) }]);
        press(&mut top, "enter");
        let id = top.open.as_ref().expect("open").id.clone();
        top.update(TopUpdate::Processes(id.clone(), listed(family())));
        let open = top.open.as_mut().expect("open");
        open.text.add(&Event::TurnStarted { prompt: "go".into(), attachments: Vec::new() });
        open.text.add(&Event::Text { text: format!("{}\nlast", "x".repeat(90)) });
        let lines = screen(&mut top);
        assert_eq!(lines[1], "s-001  acp  asking  1000 tokens  1h 1m");
        assert_eq!(lines[2], "? shell: Run make (a answers)");
        assert_eq!(lines[3], "    PID   CPU%        RSS  COMMAND");
        assert_eq!(lines[4], "     10    0.2    1.0 MiB  agent");
        assert_eq!(lines[6], "     12    0.2    1.0 MiB  │  └─ sleep 1  [listens on tcp 127.0.0.1:8000]");
        assert_eq!(lines[8], "     14    0.2    1.0 MiB  sleep 5  [left session, re-parented]");
        assert!(lines[9].starts_with("─ text ──") || lines[9].starts_with(" text ──"), "{}", lines[9]);
        assert_eq!(lines[10], "> go");
        assert_eq!((lines[11].len(), lines[12].as_str(), lines[13].as_str()), (80, "xxxxxxxxxx", "last"));
        assert!(lines[23].starts_with("Esc back  Tab pane"));
    }

    #[test]
    fn questions_are_above_the_rest() {
        let mut top = state(vec![SessionRow { permissions: vec![asking()], ..row(1, RowPhase::Asking) }]);
        press(&mut top, "a");
        let text = screen(&mut top).join("\n");
        for part in
            ["s-001 asks to use shell", "Run make", "  command  make -j2", "1 Allow", "2 Reject", "[y] allow  [n] deny"]
        {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        press(&mut top, "esc ?");
        let text = screen(&mut top).join("\n");
        assert!(KEYS.iter().all(|(key, what)| text.contains(key) && text.contains(what)), "{text}");
        press(&mut top, "esc / a b");
        assert_eq!(screen(&mut top)[23], "/ab");
        press(&mut top, "esc enter");
        let id = top.open.as_ref().expect("open").id.clone();
        top.update(TopUpdate::Processes(id.clone(), listed(family())));
        press(&mut top, "x");
        assert!(screen(&mut top).join("\n").contains("1 SIGTERM"));
        press(&mut top, "esc k");
        assert!(screen(&mut top).join("\n").contains("[p]rocess alone"));
        press(&mut top, "s");
        assert!(screen(&mut top).join("\n").contains("s-001: ending, 0 of 5 gone"));
        let receipt = Receipt::begin(id.clone(), KillCause::KillSession);
        top.update(TopUpdate::Killed(id, Ok(Box::new(receipt))));
        let text = screen(&mut top).join("\n");
        assert!(text.contains("proof: NONE"), "{text}");
    }

    #[test]
    fn all_of_a_request_can_be_seen() {
        let command = (0..100).map(|number| format!("step {number} {}\n", "x".repeat(80))).collect::<String>();
        let request = OpenPermission { command: Some(command), ..asking() };
        let mut top = state(vec![SessionRow { permissions: vec![request], ..row(1, RowPhase::Asking) }]);
        press(&mut top, "a");
        let mut seen = String::new();
        for _ in 0..20 {
            let text = screen(&mut top).join("\n");
            assert!(text.contains("of 200: PgDn, PgUp") && text.contains("[y] allow"), "{text}");
            seen.push_str(&text);
            press(&mut top, "pgdn");
        }
        // The end of the text is the end of the way down.
        screen(&mut top);
        assert!((0..100).all(|number| seen.contains(&format!(" step {number} x"))), "{seen}");
        press(&mut top, "pgup");
        let text = screen(&mut top).join("\n");
        assert!(!text.contains("to 200 of 200"), "{text}");
        press(&mut top, "home");
        assert!(screen(&mut top).join("\n").contains("command  step 0 x"));
    }

    #[test]
    fn a_long_title_and_many_options_leave_the_keys_in_sight() {
        let option = |number| PermissionOption {
            id: format!("{number}"),
            name: format!("option-{number}-{}", "x".repeat(200)),
            kind: PermissionOptionKind::AllowOnce,
        };
        let title = (0..200).map(|number| format!("word-{number} and-more")).collect::<Vec<_>>().join(" ");
        let request = OpenPermission { title, options: (0..64).map(option).collect(), ..asking() };
        let mut top = state(vec![SessionRow { permissions: vec![request], ..row(1, RowPhase::Asking) }]);
        press(&mut top, "a");
        let mut seen = Vec::new();
        for _ in 0..20 {
            let text = screen(&mut top).join("\n");
            assert!(text.contains("PgDn, PgUp") && text.contains("[y] allow"), "{text}");
            seen.push(text);
            press(&mut top, "pgdn");
        }
        let (first, last) = (&seen[0], &seen[19]);
        assert!(first.contains("│word-0 and-more") && last.contains(" 49 of 49"), "{first}\n{last}");
        for number in 0..64 {
            let text = screen(&mut top).join("\n");
            assert!(text.contains(&format!("option-{number}-")), "{number}: {text}");
            press(&mut top, "down");
        }
    }

    #[test]
    fn nothing_is_drawn_outside_of_a_small_window() {
        let mut top = state(vec![SessionRow { permissions: vec![asking()], ..row(1, RowPhase::Asking) }]);
        for keys in ["?", "esc enter", "k", "esc a"] {
            press(&mut top, keys);
            for (width, height) in [(20, 5), (1, 1), (40, 10)] {
                assert_eq!(sized(&mut top, width, height).len(), usize::from(height));
            }
        }
    }

    #[test]
    fn without_a_daemon_it_says_so() {
        let mut top = TopState::new(String::new(), crate::args::TopSort::Cpu);
        assert!(screen(&mut top).join("\n").contains("waiting for the daemon"));
        top.update(TopUpdate::Sessions(Err("no daemon answers".into())));
        assert!(screen(&mut top)[22].starts_with("error: no daemon answers"));
    }
}
