//! What `top` shows and what keys do. No I/O: updates and keys in, actions out.

use std::collections::{BTreeMap, HashMap};

use api_types::{OpenPermission, ProcessDetails};
use ipc_protocol::{Envelope, Event, ProcessId, ProcessInfo, ProcessStatus, Receipt, SessionId};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::{
    rows::{RowPhase, SORTS, SessionRow, sort},
    text::SessionText,
};
use crate::{args::TopSort, render::tree};

/// Signals that can be sent, the most usual first.
pub(super) const SIGNALS: [&str; 9] = ["TERM", "INT", "HUP", "KILL", "STOP", "CONT", "USR1", "USR2", "QUIT"];

/// Time between SIGTERM and SIGKILL, in milliseconds.
pub(super) const GRACE_MS: u64 = 2_000;

/// What a key asks for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TopAction {
    Quit,
    /// Look now.
    Refresh,
    /// Follow this session's processes and text; `None` for none.
    Open(Option<SessionId>),
    Kill {
        session: SessionId,
        pid: Option<u32>,
        tree: bool,
    },
    Signal {
        session: SessionId,
        process: ProcessId,
        signal: &'static str,
    },
    /// Answer a permission request: `allow`, `deny`, or an option's id.
    Answer {
        session: SessionId,
        request: String,
        answer: PermissionChoice,
    },
}

/// Answer to a permission request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PermissionChoice {
    Allow,
    Deny,
    Option(String),
}

/// News from the daemon.
#[derive(Debug)]
pub(super) enum TopUpdate {
    Sessions(Result<Vec<SessionRow>, String>),
    Processes(SessionId, Vec<ProcessDetails>),
    Event(SessionId, Box<Envelope>),
    /// A kill is done: its receipt, or why there is none.
    Killed(SessionId, Result<Box<Receipt>, String>),
    /// Something that was asked for is done, or failed.
    Said(String),
}

/// Session that is open.
#[derive(Debug)]
pub(super) struct OpenSession {
    pub(super) id: SessionId,
    pub(super) processes: Vec<ProcessInfo>,
    /// What each has left, and where it listens.
    pub(super) notes: HashMap<ProcessId, Vec<String>>,
    /// True until the first listing has come.
    pub(super) is_loading: bool,
    pub(super) text: SessionText,
    pub(super) focus: SessionPane,
    /// Process that keys are for.
    pub(super) selected: Option<ProcessId>,
}

/// Part of an open session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionPane {
    Processes,
    Text,
}

/// Question or text above the rest.
#[derive(Debug)]
pub(super) enum TopDialog {
    Help,
    /// Text that is typed for the filter.
    Filter(String),
    /// Which of these to kill.
    Kill {
        session: SessionId,
        process: Option<(ProcessId, String)>,
    },
    Signal {
        session: SessionId,
        process: ProcessId,
        command: String,
        at: usize,
    },
    Permission(PermissionDialog),
    Progress(KillProgress),
}

/// Permission request that is shown, to be answered.
#[derive(Debug)]
pub(super) struct PermissionDialog {
    pub(super) session: SessionId,
    pub(super) request: OpenPermission,
    /// Option that is chosen.
    pub(super) at: usize,
    /// Rows of the request above the view, and rows of the view as last drawn.
    pub(super) scroll: usize,
    pub(super) page: usize,
}

/// Kill under way, or done.
#[derive(Debug)]
pub(super) struct KillProgress {
    pub(super) session: SessionId,
    /// Processes by pid: command, and how they ended.
    pub(super) processes: BTreeMap<u32, (String, Option<String>)>,
    pub(super) result: Option<Result<Box<Receipt>, String>>,
}

/// Everything that is shown.
#[derive(Debug)]
pub(super) struct TopState {
    /// All sessions.
    all: Vec<SessionRow>,
    /// Sessions that are shown, in order.
    pub(super) rows: Vec<SessionRow>,
    pub(super) filter: String,
    pub(super) sort: TopSort,
    reversed: bool,
    pub(super) shows_ended: bool,
    /// Session that keys are for, by id: rows move.
    selected: Option<SessionId>,
    pub(super) open: Option<OpenSession>,
    pub(super) dialog: Option<TopDialog>,
    /// Line for people: what was done, what failed.
    pub(super) message: String,
    /// True until the first list has come.
    pub(super) is_loading: bool,
    /// True while the message is that no list comes.
    is_away: bool,
    /// Rows of a page, as last drawn.
    pub(super) page: usize,
}

impl TopState {
    pub(super) fn new(filter: String, sort: TopSort) -> Self {
        Self {
            all: Vec::new(),
            rows: Vec::new(),
            filter,
            sort,
            reversed: false,
            shows_ended: false,
            selected: None,
            open: None,
            dialog: None,
            message: String::new(),
            is_loading: true,
            is_away: false,
            page: 10,
        }
    }

    /// Place of the selected row.
    pub(super) fn selected_at(&self) -> Option<usize> {
        let wanted = self.selected.as_ref()?;
        self.rows.iter().position(|row| row.id == *wanted)
    }

    /// Row of the open session, else of the selected one.
    pub(super) fn current(&self) -> Option<&SessionRow> {
        match &self.open {
            Some(open) => self.all.iter().find(|row| row.id == open.id),
            None => self.rows.get(self.selected_at()?),
        }
    }

    /// All sessions, for the sums in the head.
    pub(super) fn all(&self) -> &[SessionRow] {
        &self.all
    }

    /// Name of the order.
    pub(super) fn sort_name(&self) -> String {
        let name = SORTS.iter().find(|(by, _)| *by == self.sort).map_or("", |(_, name)| name);
        if self.reversed { format!("{name} reversed") } else { name.to_owned() }
    }

    /// Takes news in.
    pub(super) fn update(&mut self, update: TopUpdate) {
        match update {
            TopUpdate::Sessions(Ok(rows)) => {
                if self.is_loading || std::mem::take(&mut self.is_away) {
                    self.message.clear();
                }
                self.is_loading = false;
                self.all = rows;
                self.arrange();
            }
            TopUpdate::Sessions(Err(why)) => {
                self.message = format!("error: {why}");
                self.is_away = true;
            }
            TopUpdate::Said(text) => self.message = text,
            TopUpdate::Processes(id, processes) => {
                if let Some(open) = self.open.as_mut().filter(|open| open.id == id) {
                    open.show(processes);
                }
            }
            TopUpdate::Event(id, envelope) => self.event(&id, &envelope.event),
            TopUpdate::Killed(id, result) => {
                if let Some(TopDialog::Progress(progress)) = &mut self.dialog
                    && progress.session == id
                {
                    if let Ok(receipt) = &result {
                        progress.add_receipt(receipt);
                    }
                    progress.result = Some(result);
                } else {
                    self.message = match result {
                        Ok(receipt) => format!("{id}: {receipt}"),
                        Err(why) => format!("error: {why}"),
                    };
                }
            }
        }
    }

    fn event(&mut self, id: &SessionId, event: &Event) {
        if let (Some(TopDialog::Progress(progress)), Event::ProcessExited { process, command, exit }) =
            (&mut self.dialog, event)
            && progress.session == *id
        {
            let entry = progress.processes.entry(process.pid);
            let (_, ended) = entry.or_insert_with(|| (command.clone().unwrap_or_default(), None));
            *ended = Some(exit.map_or_else(|| "ended".to_owned(), |exit| exit.to_string()));
        }
        if let Some(open) = self.open.as_mut().filter(|open| open.id == *id) {
            open.text.add(event);
        }
    }

    /// Filters and sorts. The selection stays with its session, else with its place.
    fn arrange(&mut self) {
        let at = self.selected_at().unwrap_or(0);
        let shown = |row: &&SessionRow| {
            (self.shows_ended || row.phase != RowPhase::Ended) && (self.filter.is_empty() || row.matches(&self.filter))
        };
        let mut rows: Vec<SessionRow> = self.all.iter().filter(shown).cloned().collect();
        sort(&mut rows, self.sort, self.reversed);
        self.rows = rows;
        if self.selected_at().is_none() {
            self.select(at);
        }
    }

    fn select(&mut self, at: usize) {
        self.selected = self.rows.get(at.min(self.rows.len().saturating_sub(1))).map(|row| row.id.clone());
    }

    /// Does what a key asks for.
    pub(super) fn key(&mut self, key: KeyEvent) -> Option<TopAction> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return matches!(key.code, KeyCode::Char('c')).then_some(TopAction::Quit);
        }
        if let Some(dialog) = self.dialog.take() {
            return self.dialog_key(dialog, key.code);
        }
        match key.code {
            KeyCode::Char('q') => return Some(TopAction::Quit),
            KeyCode::Char('?') => self.dialog = Some(TopDialog::Help),
            KeyCode::Char('r') => return Some(TopAction::Refresh),
            KeyCode::Char('a') => self.ask_permission(),
            KeyCode::Char('k') | KeyCode::Delete => self.ask_kill(),
            code if self.open.is_some() => return self.session_key(code),
            code => return self.list_key(code),
        }
        None
    }

    fn list_key(&mut self, code: KeyCode) -> Option<TopAction> {
        let at = self.selected_at().unwrap_or(0);
        match code {
            KeyCode::Up => self.select(at.saturating_sub(1)),
            KeyCode::Down => self.select(at + 1),
            KeyCode::PageUp => self.select(at.saturating_sub(self.page)),
            KeyCode::PageDown => self.select(at + self.page),
            KeyCode::Home => self.select(0),
            KeyCode::End => self.select(usize::MAX),
            KeyCode::Char('/') => self.dialog = Some(TopDialog::Filter(self.filter.clone())),
            KeyCode::Esc if !self.filter.is_empty() => {
                self.filter.clear();
                self.arrange();
            }
            KeyCode::Char('s') => {
                let next = SORTS.iter().position(|(by, _)| *by == self.sort).map_or(0, |at| (at + 1) % SORTS.len());
                self.sort = SORTS[next].0;
                self.arrange();
            }
            KeyCode::Char('S') => {
                self.reversed = !self.reversed;
                self.arrange();
            }
            KeyCode::Char('e') => {
                self.shows_ended = !self.shows_ended;
                self.arrange();
            }
            KeyCode::Enter => {
                let id = self.current()?.id.clone();
                self.open = Some(OpenSession::new(id.clone()));
                self.message.clear();
                return Some(TopAction::Open(Some(id)));
            }
            _ => {}
        }
        None
    }

    fn session_key(&mut self, code: KeyCode) -> Option<TopAction> {
        let page = self.page;
        let open = self.open.as_mut()?;
        match (code, open.focus) {
            (KeyCode::Esc | KeyCode::Backspace, _) => {
                self.open = None;
                return Some(TopAction::Open(None));
            }
            (KeyCode::Tab | KeyCode::BackTab, SessionPane::Processes) => open.focus = SessionPane::Text,
            (KeyCode::Tab | KeyCode::BackTab, SessionPane::Text) => open.focus = SessionPane::Processes,
            (KeyCode::Up, SessionPane::Processes) => open.move_selection(-1),
            (KeyCode::Down, SessionPane::Processes) => open.move_selection(1),
            (KeyCode::Char('x'), _) => {
                let (process, command) = open.selected_process()?;
                let session = open.id.clone();
                self.dialog = Some(TopDialog::Signal { session, process, command, at: 0 });
            }
            (KeyCode::Up, SessionPane::Text) => open.text.scroll = open.text.scroll.saturating_add(1),
            (KeyCode::Down, SessionPane::Text) => open.text.scroll = open.text.scroll.saturating_sub(1),
            (KeyCode::PageUp, _) => open.text.scroll = open.text.scroll.saturating_add(page),
            (KeyCode::PageDown, _) => open.text.scroll = open.text.scroll.saturating_sub(page),
            (KeyCode::Home, _) => open.text.scroll = usize::MAX,
            (KeyCode::End, _) => open.text.scroll = 0,
            _ => {}
        }
        None
    }

    fn ask_permission(&mut self) {
        let asking = self.current().and_then(|row| Some((row.id.clone(), row.permissions.first()?.clone())));
        match asking {
            Some((session, request)) => {
                let dialog = PermissionDialog { session, request, at: 0, scroll: 0, page: 1 };
                self.dialog = Some(TopDialog::Permission(dialog));
            }
            None => self.message = "no permission request waits here".to_owned(),
        }
    }

    fn ask_kill(&mut self) {
        let Some(row) = self.current() else { return };
        let session = row.id.clone();
        let process = self.open.as_ref().filter(|open| open.focus == SessionPane::Processes);
        let process = process.and_then(OpenSession::selected_process);
        self.dialog = Some(TopDialog::Kill { session, process });
    }

    fn dialog_key(&mut self, dialog: TopDialog, code: KeyCode) -> Option<TopAction> {
        match dialog {
            TopDialog::Help => None,
            TopDialog::Filter(text) => self.filter_key(text, code),
            TopDialog::Kill { session, process } => self.kill_key(session, process, code),
            TopDialog::Signal { session, process, command, at } => {
                let at = match code {
                    KeyCode::Esc => return None,
                    KeyCode::Enter => {
                        return Some(TopAction::Signal { session, process, signal: SIGNALS[at] });
                    }
                    KeyCode::Up => at.saturating_sub(1),
                    KeyCode::Down => (at + 1).min(SIGNALS.len() - 1),
                    KeyCode::Char(digit) => match digit.to_digit(10).and_then(|digit| usize::try_from(digit).ok()) {
                        Some(number) if (1..=SIGNALS.len()).contains(&number) => number - 1,
                        _ => at,
                    },
                    _ => at,
                };
                self.dialog = Some(TopDialog::Signal { session, process, command, at });
                None
            }
            TopDialog::Permission(dialog) => self.permission_key(dialog, code),
            TopDialog::Progress(progress) => {
                // A kill goes on whether or not somebody watches.
                if !matches!(code, KeyCode::Esc | KeyCode::Enter | KeyCode::Char('q')) {
                    self.dialog = Some(TopDialog::Progress(progress));
                }
                None
            }
        }
    }

    fn filter_key(&mut self, mut text: String, code: KeyCode) -> Option<TopAction> {
        match code {
            KeyCode::Enter => return None,
            KeyCode::Esc => text.clear(),
            KeyCode::Backspace => _ = text.pop(),
            KeyCode::Char(c) => text.push(c),
            _ => {}
        }
        self.filter.clone_from(&text);
        self.arrange();
        if code != KeyCode::Esc {
            self.dialog = Some(TopDialog::Filter(text));
        }
        None
    }

    fn kill_key(
        &mut self,
        session: SessionId,
        process: Option<(ProcessId, String)>,
        code: KeyCode,
    ) -> Option<TopAction> {
        let pid = process.as_ref().map(|(process, _)| process.pid);
        let (pid, tree) = match (code, pid) {
            (KeyCode::Char('s'), _) => (None, false),
            // Without a process there is one question only: yes.
            (KeyCode::Char('y') | KeyCode::Enter, None) => (None, false),
            (KeyCode::Char('p'), Some(pid)) => (Some(pid), false),
            (KeyCode::Char('t'), Some(pid)) => (Some(pid), true),
            (KeyCode::Esc | KeyCode::Char('n'), _) => return None,
            _ => {
                self.dialog = Some(TopDialog::Kill { session, process });
                return None;
            }
        };
        let known = self.open.as_ref().filter(|open| open.id == session).map(|open| &open.processes[..]);
        let running = known.unwrap_or_default().iter().filter(|process| process.status == ProcessStatus::Running);
        let running = running.filter(|process| pid.is_none_or(|pid| tree || process.id.pid == pid));
        let processes = running.map(|process| (process.id.pid, (process.command_line(), None)));
        let processes = if tree { BTreeMap::new() } else { processes.collect() };
        self.dialog = Some(TopDialog::Progress(KillProgress { session: session.clone(), processes, result: None }));
        Some(TopAction::Kill { session, pid, tree })
    }

    fn permission_key(&mut self, mut dialog: PermissionDialog, code: KeyCode) -> Option<TopAction> {
        let PermissionDialog { session, request, at, scroll, page } = &mut dialog;
        let answer = |answer| Some(TopAction::Answer { session: session.clone(), request: request.id.clone(), answer });
        match code {
            KeyCode::Esc => return None,
            KeyCode::Char('y') => return answer(PermissionChoice::Allow),
            KeyCode::Char('n') => return answer(PermissionChoice::Deny),
            KeyCode::Enter => {
                let option = request.options.get(*at)?;
                return answer(PermissionChoice::Option(option.id.clone()));
            }
            KeyCode::Up => *at = at.saturating_sub(1),
            KeyCode::Down => *at = (*at + 1).min(request.options.len().saturating_sub(1)),
            KeyCode::PageUp => *scroll = scroll.saturating_sub(*page),
            KeyCode::PageDown | KeyCode::Char(' ') => *scroll = scroll.saturating_add(*page),
            KeyCode::Home => *scroll = 0,
            KeyCode::End => *scroll = usize::MAX,
            KeyCode::Char(digit) => {
                let number = digit.to_digit(10).and_then(|digit| usize::try_from(digit).ok());
                if let Some(number) = number.filter(|number| (1..=request.options.len()).contains(number)) {
                    *at = number - 1;
                }
            }
            _ => {}
        }
        self.dialog = Some(TopDialog::Permission(dialog));
        None
    }
}

impl OpenSession {
    fn new(id: SessionId) -> Self {
        let (text, focus) = (SessionText::new(), SessionPane::Processes);
        Self { id, processes: Vec::new(), notes: HashMap::new(), is_loading: true, text, focus, selected: None }
    }

    /// Takes a listing in. A selection whose process is gone goes to the first.
    fn show(&mut self, mut listed: Vec<ProcessDetails>) {
        listed.retain(|listed| listed.process.status == ProcessStatus::Running);
        self.notes = listed.iter().map(|listed| (listed.process.id, tree::notes_of(listed))).collect();
        self.processes = listed.into_iter().map(|listed| listed.process).collect();
        self.is_loading = false;
        let order: Vec<ProcessId> = tree::arrange(&self.processes).iter().map(|node| node.process.id).collect();
        if !self.selected.is_some_and(|selected| order.contains(&selected)) {
            self.selected = order.first().copied();
        }
    }

    /// Place of the selected process in the tree.
    pub(super) fn selected_at(&self) -> Option<usize> {
        tree::arrange(&self.processes).iter().position(|node| Some(node.process.id) == self.selected)
    }

    fn selected_process(&self) -> Option<(ProcessId, String)> {
        let process = self.processes.iter().find(|process| Some(process.id) == self.selected)?;
        Some((process.id, process.command_line()))
    }

    fn move_selection(&mut self, by: isize) {
        let order: Vec<ProcessId> = tree::arrange(&self.processes).iter().map(|node| node.process.id).collect();
        let at = order.iter().position(|id| Some(*id) == self.selected).unwrap_or(0);
        self.selected = order.get(at.saturating_add_signed(by).min(order.len().saturating_sub(1))).copied();
    }
}

impl KillProgress {
    fn add_receipt(&mut self, receipt: &Receipt) {
        for entry in &receipt.processes {
            let (_, ended) =
                self.processes.entry(entry.id.pid).or_insert_with(|| (entry.command.clone().unwrap_or_default(), None));
            *ended = Some(crate::render::receipt::outcome_text(entry));
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use ipc_protocol::{ExitStatus, PermissionOption, PermissionOptionKind};

    use super::{super::rows::tests::row, *};
    use crate::render::tree::tests::{family, listed};

    pub(in super::super) fn state(rows: Vec<SessionRow>) -> TopState {
        let mut state = TopState::new(String::new(), TopSort::Id);
        state.update(TopUpdate::Sessions(Ok(rows)));
        state
    }

    pub(in super::super) fn press(state: &mut TopState, keys: &str) -> Vec<TopAction> {
        let code = |word: &str| match word {
            "up" => KeyCode::Up,
            "down" => KeyCode::Down,
            "enter" => KeyCode::Enter,
            "esc" => KeyCode::Esc,
            "tab" => KeyCode::Tab,
            "end" => KeyCode::End,
            "home" => KeyCode::Home,
            "pgup" => KeyCode::PageUp,
            "pgdn" => KeyCode::PageDown,
            "back" => KeyCode::Backspace,
            word => KeyCode::Char(word.chars().next().expect("a key")),
        };
        keys.split(' ').filter_map(|word| state.key(KeyEvent::new(code(word), KeyModifiers::NONE))).collect()
    }

    fn asking() -> OpenPermission {
        let option = |id: &str, kind| PermissionOption { id: id.into(), name: id.into(), kind };
        OpenPermission {
            id: "permission-1".into(),
            title: "Run make".into(),
            tool: "shell".into(),
            kind: "execute".into(),
            command: Some("make".into()),
            paths: Vec::new(),
            input: ipc_protocol::Json::null(),
            options: vec![
                option("once", PermissionOptionKind::AllowOnce),
                option("always", PermissionOptionKind::AllowAlways),
                option("no", PermissionOptionKind::RejectOnce),
            ],
        }
    }

    #[test]
    fn the_selection_stays_with_its_session() {
        let rows = || vec![row(1, RowPhase::Idle), row(2, RowPhase::Busy), row(3, RowPhase::Ended)];
        let mut top = state(rows());
        assert_eq!(top.rows.len(), 2, "ended ones are hidden");
        press(&mut top, "down");
        assert_eq!(top.current().expect("a row").id.as_str(), "s-002");
        press(&mut top, "S");
        assert_eq!((top.selected_at(), top.current().expect("a row").id.as_str()), (Some(0), "s-002"));
        press(&mut top, "e");
        assert_eq!(top.rows.len(), 3);
        press(&mut top, "end down home up");
        assert_eq!(top.selected_at(), Some(0));
        top.update(TopUpdate::Sessions(Ok(vec![row(9, RowPhase::Idle)])));
        assert_eq!(top.current().expect("a row").id.as_str(), "s-009");
        top.update(TopUpdate::Sessions(Ok(Vec::new())));
        assert!(top.current().is_none() && press(&mut top, "enter k down").is_empty());
    }

    #[test]
    fn a_filter_is_typed_and_taken_back() {
        let mut top = state(vec![row(1, RowPhase::Idle), row(2, RowPhase::Busy)]);
        press(&mut top, "/ b u x back");
        assert_eq!((top.rows.len(), top.filter.as_str()), (1, "bu"));
        assert!(matches!(top.dialog, Some(TopDialog::Filter(_))));
        press(&mut top, "enter");
        assert!(top.dialog.is_none() && press(&mut top, "q") == [TopAction::Quit]);
        press(&mut top, "esc");
        assert_eq!(top.rows.len(), 2);
    }

    #[test]
    fn the_order_goes_through_all_columns() {
        let mut top = state(vec![row(1, RowPhase::Idle)]);
        let mut seen = Vec::new();
        for _ in SORTS {
            seen.push(top.sort_name());
            press(&mut top, "s");
        }
        seen.sort();
        seen.dedup();
        assert_eq!((seen.len(), top.sort), (SORTS.len(), TopSort::Id));
    }

    #[test]
    fn permissions_are_answered() {
        let mut top = state(vec![SessionRow { permissions: vec![asking()], ..row(1, RowPhase::Asking) }]);
        let answer = |answer| {
            let (session, request) = ("s-001".parse().expect("an id"), "permission-1".into());
            TopAction::Answer { session, request, answer }
        };
        assert_eq!(press(&mut top, "a y"), [answer(PermissionChoice::Allow)]);
        assert_eq!(press(&mut top, "a n"), [answer(PermissionChoice::Deny)]);
        assert_eq!(press(&mut top, "a down enter"), [answer(PermissionChoice::Option("always".into()))]);
        assert_eq!(press(&mut top, "a 3 enter"), [answer(PermissionChoice::Option("no".into()))]);
        assert!(press(&mut top, "a esc").is_empty() && top.dialog.is_none());
        let mut quiet = state(vec![row(1, RowPhase::Idle)]);
        assert!(press(&mut quiet, "a").is_empty() && quiet.message.contains("no permission"));
    }

    #[test]
    fn processes_are_signalled_and_killed() {
        let mut top = state(vec![row(1, RowPhase::Busy)]);
        let id: SessionId = "s-001".parse().expect("an id");
        assert_eq!(press(&mut top, "enter"), [TopAction::Open(Some(id.clone()))]);
        top.update(TopUpdate::Processes(id.clone(), listed(family())));
        let open = top.open.as_ref().expect("open");
        assert_eq!(open.selected.map(|process| process.pid), Some(10), "the agent is first");
        press(&mut top, "down");
        let process = ProcessId { pid: 11, start_time: 11 };
        let signalled = TopAction::Signal { session: id.clone(), process, signal: "KILL" };
        assert_eq!(press(&mut top, "x 4 enter"), [signalled]);
        let kill = |pid, tree| TopAction::Kill { session: id.clone(), pid, tree };
        assert_eq!(press(&mut top, "k t esc"), [kill(Some(11), true)]);
        assert_eq!(press(&mut top, "k p esc"), [kill(Some(11), false)]);
        assert!(press(&mut top, "k y").is_empty(), "of one process, or a tree, or all?");
        assert!(press(&mut top, "n").is_empty() && top.dialog.is_none());
        assert_eq!(press(&mut top, "k s"), [kill(None, false)]);
        let exited = Event::ProcessExited { process, command: None, exit: Some(ExitStatus::Signal(15)) };
        top.event(&id, &exited);
        let Some(TopDialog::Progress(progress)) = &top.dialog else { panic!("{:?}", top.dialog) };
        assert_eq!(progress.processes.len(), 5);
        assert_eq!(progress.processes[&11].1.as_deref(), Some("SIGTERM"));
        assert_eq!(progress.processes[&12].1, None);
        let receipt = Receipt::begin(id.clone(), ipc_protocol::KillCause::KillSession);
        top.update(TopUpdate::Killed(id.clone(), Ok(Box::new(receipt))));
        let Some(TopDialog::Progress(progress)) = &top.dialog else { panic!("{:?}", top.dialog) };
        assert!(matches!(progress.result, Some(Ok(_))));
        press(&mut top, "enter");
        assert!(top.dialog.is_none());
        assert_eq!(press(&mut top, "esc"), [TopAction::Open(None)]);
    }

    #[test]
    fn text_scrolls_in_its_pane() {
        let mut top = state(vec![row(1, RowPhase::Busy)]);
        press(&mut top, "enter tab up up down");
        assert_eq!(top.open.as_ref().expect("open").text.scroll, 1);
        press(&mut top, "pgup");
        assert_eq!(top.open.as_ref().expect("open").text.scroll, 1 + top.page);
        press(&mut top, "end");
        assert_eq!(top.open.as_ref().expect("open").text.scroll, 0);
    }

    #[test]
    fn a_daemon_that_is_away_is_said_until_it_is_back() {
        let mut top = state(vec![row(1, RowPhase::Idle)]);
        top.update(TopUpdate::Sessions(Err("no daemon answers".into())));
        assert_eq!((top.message.as_str(), top.rows.len()), ("error: no daemon answers", 1));
        top.update(TopUpdate::Sessions(Ok(vec![row(1, RowPhase::Idle)])));
        assert_eq!(top.message, "");
        // What was refused is said until something else is.
        top.update(TopUpdate::Said("error: it was answered".into()));
        top.update(TopUpdate::Sessions(Ok(vec![row(1, RowPhase::Idle)])));
        assert_eq!(top.message, "error: it was answered");
    }
}
