//! Use of a session's screen, as far as events show it: viewers, and turns that somebody has begun there.

use ipc_protocol::{Event, ResolvedBy, terminal::Surface};

/// What people do on a session's screen.
#[derive(Debug)]
pub(super) struct ScreenUse {
    /// True if the session is driven on its screen alone.
    is_alone: bool,
    viewers: u64,
    /// True while a turn runs that was begun on the screen.
    runs: bool,
}

impl ScreenUse {
    pub(super) fn new(surface: Surface) -> Self {
        Self { is_alone: surface == Surface::Terminal, viewers: 0, runs: false }
    }

    /// Returns [`Surface::Terminal`] for an event of the screen. Called before [`ScreenUse::note`], since an end is of its turn. A turn
    /// of the protocol is not the screen's, whoever has joined it.
    pub(super) fn surface_of(&self, turn: u64, event: &Event) -> Option<Surface> {
        let is_of_screen = match event {
            Event::TerminalAttached { .. }
            | Event::TerminalDetached { .. }
            | Event::TerminalPrompted { .. }
            | Event::TerminalStatus { .. }
            | Event::PermissionResolved { by: ResolvedBy::Terminal, .. } => true,
            event if self.is_alone || (turn == 0 && self.runs) => {
                let kind = event.kind();
                kind.starts_with("stream:") || kind.starts_with("permission:")
            }
            _ => false,
        };
        is_of_screen.then_some(Surface::Terminal)
    }

    /// Returns the status of the screen after an event, if the event tells it: the program's own word, or whether a turn runs that was
    /// begun there.
    pub(super) fn status_of(&self, turn: u64, event: &Event) -> Option<String> {
        match event {
            Event::TerminalStatus { status, .. } => Some(status.clone()),
            Event::TerminalPrompted { .. } => Some("working".to_owned()),
            Event::Complete { .. } if turn == 0 || self.runs => Some("idle".to_owned()),
            _ => None,
        }
    }

    /// Records an event. Returns true if it changes the use.
    pub(super) fn note(&mut self, event: &Event) -> bool {
        match event {
            Event::TerminalAttached { .. } => self.viewers += 1,
            Event::TerminalDetached { .. } => self.viewers = self.viewers.saturating_sub(1),
            Event::TerminalPrompted { .. } => self.runs = true,
            // Of its own, or of ours that it has joined.
            Event::Complete { .. } => self.runs = false,
            _ => return false,
        }
        true
    }

    pub(super) fn is_used(&self) -> bool {
        self.viewers > 0 || self.runs
    }
}

#[cfg(test)]
mod tests {
    use ipc_protocol::StopReason;

    use super::*;

    #[test]
    fn a_screen_is_used_by_viewers_and_by_turns_that_were_begun_there() {
        let mut screen = ScreenUse::new(Surface::Both);
        let mut used = |event| (screen.note(&event), screen.is_used());
        let complete = || Event::Complete { stop_reason: StopReason::EndTurn, usage: None };
        assert_eq!(used(Event::TerminalAttached { viewer: 1, rows: 24, columns: 80 }), (true, true));
        assert_eq!(used(Event::TerminalPrompted { text: "hi".into() }), (true, true));
        assert_eq!(used(Event::TerminalDetached { viewer: 1 }), (true, true));
        assert_eq!(used(Event::Text { text: "yes".into() }), (false, true));
        assert_eq!(used(complete()), (true, false));
        assert_eq!(used(Event::TerminalDetached { viewer: 1 }), (true, false));
    }

    #[test]
    fn events_of_the_screen_are_marked() {
        let text = || Event::Text { text: "hi".into() };
        let complete = || Event::Complete { stop_reason: StopReason::EndTurn, usage: None };
        let of_terminal = Some(Surface::Terminal);
        let mut both = ScreenUse::new(Surface::Both);
        let mut surface = |turn, event| {
            let surface = both.surface_of(turn, &event);
            both.note(&event);
            surface
        };
        assert_eq!(surface(0, text()), None, "before a turn of the screen");
        assert_eq!(surface(0, Event::TerminalPrompted { text: "hi".into() }), of_terminal);
        assert_eq!(surface(0, text()), of_terminal);
        assert_eq!(surface(3, text()), None, "of the protocol");
        assert_eq!(surface(0, Event::SessionIdle {}), None, "of the host");
        assert_eq!(surface(0, complete()), of_terminal);
        assert_eq!(surface(0, text()), None, "after it");
        let by = ResolvedBy::Terminal;
        assert_eq!(surface(3, Event::PermissionResolved { id: "1".into(), option: None, by }), of_terminal);
        let alone = ScreenUse::new(Surface::Terminal);
        assert_eq!(alone.surface_of(0, &text()), of_terminal);
        let status = |turn, event: Event| alone.status_of(turn, &event);
        let blocked = Event::TerminalStatus { status: "blocked".into(), detail: None };
        assert_eq!(status(0, blocked).as_deref(), Some("blocked"));
        assert_eq!(status(0, Event::TerminalPrompted { text: "hi".into() }).as_deref(), Some("working"));
        assert_eq!(status(0, complete()).as_deref(), Some("idle"));
        assert_eq!((status(1, complete()), status(0, text())), (None, None));
        let joined = ScreenUse { runs: true, ..ScreenUse::new(Surface::Both) };
        assert_eq!(joined.status_of(1, &complete()).as_deref(), Some("idle"), "it had joined the turn");
        assert_eq!(ScreenUse::new(Surface::Machine).surface_of(0, &text()), None);
    }
}
