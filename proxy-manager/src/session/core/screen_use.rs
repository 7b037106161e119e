//! Use of a session's screen, as far as events show it: viewers, and turns that somebody has begun there.

use ipc_protocol::Event;

/// What people do on a session's screen.
#[derive(Debug, Default)]
pub(super) struct ScreenUse {
    viewers: u64,
    /// True while a turn runs that was begun on the screen.
    runs: bool,
}

impl ScreenUse {
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
        let mut screen = ScreenUse::default();
        let mut used = |event| (screen.note(&event), screen.is_used());
        let complete = || Event::Complete { stop_reason: StopReason::EndTurn, usage: None };
        assert_eq!(used(Event::TerminalAttached { viewer: 1, rows: 24, columns: 80 }), (true, true));
        assert_eq!(used(Event::TerminalPrompted { text: "hi".into() }), (true, true));
        assert_eq!(used(Event::TerminalDetached { viewer: 1 }), (true, true));
        assert_eq!(used(Event::Text { text: "yes".into() }), (false, true));
        assert_eq!(used(complete()), (true, false));
        assert_eq!(used(Event::TerminalDetached { viewer: 1 }), (true, false));
    }
}
