//! Turn that was begun elsewhere than here: by a person on the agent's screen, or by another client of the server. Pure.
//!
//! A message of the user that no prompt of ours explains is the other's, once its text is shown: an old message that the server
//! changes later shows none. The turn ends when the conversation is idle after it was busy.

use ipc_protocol::StopReason;

use super::session::stop_reason;

/// State of such a turn.
#[derive(Debug, Default)]
pub(super) struct ScreenTurn {
    /// Message of the user whose text was not shown yet.
    prompt: Option<Box<str>>,
    runs: bool,
    busy: bool,
    aborted: bool,
    /// Last stop reason of the model.
    finish: Option<String>,
}

impl ScreenTurn {
    /// Records a message of the user that is not ours.
    pub(super) fn prompt_shown(&mut self, id: &str) {
        self.prompt = Some(id.into());
    }

    /// Returns whether a text is that of the message, which has one text.
    pub(super) fn takes_prompt(&mut self, message: &str) -> bool {
        self.prompt.take_if(|prompt| **prompt == *message).is_some()
    }

    /// Begins a turn.
    pub(super) fn begin(&mut self) {
        *self = Self { runs: true, busy: self.busy, ..Self::default() };
    }

    pub(super) fn is_running(&self) -> bool {
        self.runs
    }

    /// Records that the conversation is busy. It may be before the prompt's text is shown.
    pub(super) fn set_busy(&mut self) {
        self.busy = true;
    }

    /// Records a part of the answer.
    pub(super) fn answered(&mut self, finish: Option<&str>) {
        if let Some(finish) = finish {
            self.finish = Some(finish.chars().take(200).collect());
        }
    }

    /// Records an error of the run. Returns true if it is to be reported.
    pub(super) fn failed(&mut self, is_abort: bool) -> bool {
        self.aborted |= is_abort;
        self.runs && !is_abort
    }

    /// Ends the turn, since the conversation is idle. Returns its stop reason, if one ran.
    pub(super) fn end(&mut self) -> Option<StopReason> {
        let Self { runs, busy, aborted, finish, .. } = std::mem::take(self);
        let reason = || if aborted { StopReason::Cancelled } else { stop_reason(finish.as_deref()) };
        (runs && busy).then(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_from_the_text_of_a_prompt_until_the_conversation_is_idle() {
        let mut turn = ScreenTurn::default();
        assert!(!turn.takes_prompt("m1"), "an old message");
        turn.set_busy();
        assert_eq!(turn.end(), None, "a run of another kind");
        turn.prompt_shown("m1");
        assert!(!turn.takes_prompt("m0") && turn.takes_prompt("m1") && !turn.takes_prompt("m1"));
        turn.begin();
        turn.set_busy();
        assert!(turn.failed(false));
        turn.answered(Some("length"));
        assert_eq!(turn.end(), Some(StopReason::MaxTokens));
        assert_eq!(turn.end(), None, "idle is reported twice");
        turn.prompt_shown("m2");
        assert!(turn.takes_prompt("m2"));
        turn.begin();
        turn.set_busy();
        assert!(!turn.failed(true));
        assert_eq!(turn.end(), Some(StopReason::Cancelled));
    }
}
