//! Status of an agent's screen, where its title alone tells it: Gemini CLI has no status reports.

use ipc_protocol::Event;

use crate::{Action, kit::bounds::MAX_CHARS};

/// First character of a title of Gemini CLI, and the status that it stands for, in the words of OSC 7501.
const STATUSES: [(char, &str); 4] = [('◇', "idle"), ('✦', "working"), ('⏲', "working"), ('✋', "blocked")];

/// Latest status that a title told.
#[derive(Debug)]
pub(super) struct TitleStatus {
    /// True for an agent whose titles tell it.
    is_told: bool,
    latest: Option<(&'static str, String)>,
}

impl TitleStatus {
    pub(super) fn new(is_told: bool) -> Self {
        Self { is_told, latest: None }
    }

    /// Takes a title. One that tells no status says nothing about it.
    pub(super) fn take(&mut self, title: &str, out: &mut Vec<Action>) {
        let begins = |(mark, _): &&(char, &str)| title.starts_with(*mark);
        let Some((mark, status)) = STATUSES.iter().filter(|_| self.is_told).find(begins) else { return };
        let detail: String = title.trim_start_matches(*mark).trim().chars().take(MAX_CHARS).collect();
        let latest = (*status, detail.clone());
        if self.latest.as_ref() != Some(&latest) {
            self.latest = Some(latest);
            let detail = Some(detail).filter(|detail| !detail.is_empty());
            out.push(Action::Event(Event::TerminalStatus { status: (*status).to_owned(), detail }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_of_gemini_tell_a_status_once() {
        let titles = [
            "Gemini CLI (work)",
            "◇  Ready (work)    ",
            "◇  Ready (work)",
            "✦  Working… (work)",
            "⏲  Working… (work)",
            "✋  Action Required (work)",
            "",
            "◇",
        ];
        let told = |is_told| {
            let mut status = TitleStatus::new(is_told);
            let mut out = Vec::new();
            titles.iter().for_each(|title| status.take(title, &mut out));
            let word = |action| match action {
                Action::Event(Event::TerminalStatus { status, detail }) => format!("{status} {detail:?}"),
                other => format!("{other:?}"),
            };
            out.into_iter().map(word).collect::<Vec<_>>()
        };
        let ready = r#"idle Some("Ready (work)")"#;
        let works = r#"working Some("Working… (work)")"#;
        assert_eq!(told(true), [ready, works, r#"blocked Some("Action Required (work)")"#, "idle None"]);
        assert!(told(false).is_empty());
    }
}
