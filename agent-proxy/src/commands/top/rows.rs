//! Sessions as rows: what a line shows, sorting, filtering.

use std::time::SystemTime;

use api_types::{OpenPermission, SessionInfo, SessionState};
use ipc_protocol::SessionId;

use crate::{args::TopSort, render, term::printable};

/// Session in a line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SessionRow {
    pub(super) id: SessionId,
    pub(super) title: Option<String>,
    pub(super) agent: String,
    pub(super) state: String,
    pub(super) phase: RowPhase,
    pub(super) user: Option<String>,
    pub(super) model: Option<String>,
    pub(super) cwd: String,
    pub(super) turns: u64,
    pub(super) tokens: u64,
    pub(super) started_at: SystemTime,
    pub(super) cpu_percent: f32,
    pub(super) rss_bytes: u64,
    pub(super) processes: usize,
    pub(super) permissions: Vec<OpenPermission>,
}

/// State as one word, in the order in which it wants attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RowPhase {
    Asking,
    Busy,
    Starting,
    Idle,
    Suspended,
    Ended,
}

impl SessionRow {
    pub(super) fn of(session: SessionInfo) -> Self {
        let state = printable(&render::sessions::state(&session), false);
        let phase = match &session.state {
            SessionState::Ended { .. } => RowPhase::Ended,
            SessionState::Suspended { .. } => RowPhase::Suspended,
            _ if !session.open_permissions.is_empty() => RowPhase::Asking,
            SessionState::Busy { .. } => RowPhase::Busy,
            SessionState::Starting => RowPhase::Starting,
            SessionState::Idle => RowPhase::Idle,
        };
        let usage = session.metrics.usage;
        let used = session.process_use.unwrap_or_default();
        Self {
            title: session.title.map(|title| printable(&title, false)),
            agent: printable(&session.metadata.agent, false),
            state,
            phase,
            user: session.metadata.user_id.map(|user| printable(&user, false)),
            model: session.settings.model.map(|model| printable(&model, false)),
            cwd: printable(&session.metadata.cwd, false),
            turns: session.turns,
            tokens: usage.input_tokens.unwrap_or_default().saturating_add(usage.output_tokens.unwrap_or_default()),
            started_at: session.metadata.started_at,
            cpu_percent: used.cpu_percent,
            rss_bytes: used.rss_bytes,
            processes: used.processes,
            permissions: session.open_permissions,
            id: session.metadata.session_id,
        }
    }

    /// Returns true if one of its texts has this one, in any case.
    pub(super) fn matches(&self, filter: &str) -> bool {
        let filter = filter.to_lowercase();
        let texts = [Some(self.id.as_str()), Some(&self.agent), Some(&self.state), Some(&self.cwd)];
        let more = [self.title.as_deref(), self.user.as_deref(), self.model.as_deref()];
        texts.into_iter().chain(more).flatten().any(|text| text.to_lowercase().contains(&filter))
    }
}

/// Columns to sort by, in the order in which a key goes through them.
pub(super) const SORTS: [(TopSort, &str); 7] = [
    (TopSort::Cpu, "cpu"),
    (TopSort::Memory, "memory"),
    (TopSort::Processes, "processes"),
    (TopSort::State, "state"),
    (TopSort::Age, "age"),
    (TopSort::Tokens, "tokens"),
    (TopSort::Id, "id"),
];

/// Sorts rows. Those without processes stand last in any order. Equal ones go by id, so that none jumps.
pub(super) fn sort(rows: &mut [SessionRow], by: TopSort, reversed: bool) {
    // Suspended ones before those that have ended.
    let rest = |row: &SessionRow| row.phase.max(RowPhase::Idle);
    rows.sort_by(|one, other| {
        let order = match by {
            TopSort::Cpu => other.cpu_percent.total_cmp(&one.cpu_percent),
            TopSort::Memory => other.rss_bytes.cmp(&one.rss_bytes),
            TopSort::Processes => other.processes.cmp(&one.processes),
            TopSort::State => one.phase.cmp(&other.phase),
            TopSort::Age => other.started_at.cmp(&one.started_at),
            TopSort::Tokens => other.tokens.cmp(&one.tokens),
            TopSort::Id => std::cmp::Ordering::Equal,
        };
        let order = order.then_with(|| one.id.as_str().cmp(other.id.as_str()));
        rest(one).cmp(&rest(other)).then(if reversed { order.reverse() } else { order })
    });
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;

    /// Creates a row whose numbers follow from `number`.
    pub(in super::super) fn row(number: u16, phase: RowPhase) -> SessionRow {
        SessionRow {
            id: format!("s-{number:03}").parse().expect("an id"),
            title: None,
            agent: "acp".into(),
            state: format!("{phase:?}").to_lowercase(),
            phase,
            user: Some("ada".into()),
            model: None,
            cwd: "/home/ada/project".into(),
            turns: u64::from(number),
            tokens: u64::from(number) * 1000,
            started_at: SystemTime::UNIX_EPOCH + Duration::from_secs(u64::from(number)),
            cpu_percent: f32::from(number),
            rss_bytes: u64::from(number) << 20,
            processes: usize::from(number),
            permissions: Vec::new(),
        }
    }

    #[test]
    fn rows_are_sorted_and_none_jumps() {
        let ids = |by, reversed| {
            let mut rows = vec![row(1, RowPhase::Idle), row(3, RowPhase::Busy), row(2, RowPhase::Asking)];
            sort(&mut rows, by, reversed);
            rows.iter().map(|row| row.id.to_string()).collect::<Vec<_>>()
        };
        for by in [TopSort::Cpu, TopSort::Memory, TopSort::Processes, TopSort::Age, TopSort::Tokens] {
            assert_eq!(ids(by, false), ["s-003", "s-002", "s-001"], "{by:?}");
            assert_eq!(ids(by, true), ["s-001", "s-002", "s-003"], "{by:?}");
        }
        assert_eq!(ids(TopSort::State, false), ["s-002", "s-003", "s-001"]);
        assert_eq!(ids(TopSort::Id, false), ["s-001", "s-002", "s-003"]);
        let rows = [(1, RowPhase::Idle), (4, RowPhase::Ended), (3, RowPhase::Suspended), (2, RowPhase::Busy)];
        for (by, _) in SORTS {
            for reversed in [false, true] {
                let mut rows = rows.map(|(number, phase)| row(number, phase));
                sort(&mut rows, by, reversed);
                assert_eq!((rows[2].id.as_str(), rows[3].id.as_str()), ("s-003", "s-004"), "{by:?} {reversed}");
            }
        }
        let mut equal = vec![row(2, RowPhase::Idle), row(1, RowPhase::Idle)];
        equal.iter_mut().for_each(|row| row.cpu_percent = 0.0);
        sort(&mut equal, TopSort::Cpu, false);
        assert_eq!(equal[0].id.as_str(), "s-001");
    }

    #[test]
    fn a_filter_finds_text_in_any_case() {
        let row = SessionRow { title: Some("Fix the login".into()), ..row(7, RowPhase::Busy) };
        for filter in ["S-007", "ada", "busy", "PROJECT", "acp", "the LOGIN", ""] {
            assert!(row.matches(filter), "{filter}");
        }
        assert!(!row.matches("codex"));
    }
}
