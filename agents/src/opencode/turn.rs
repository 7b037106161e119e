//! End of a turn: pure decisions from the server's events.
//!
//! The server only reports that a conversation is idle. After an abort or an error it does so twice (the first time too early: a prompt
//! between the two is never answered). It also reports the end of the run before. And the event stream and the answers to requests
//! have no common order. So a turn starts when the server shows its prompt as a message and is busy after that. A turn that was
//! aborted or has failed ends when an abort has been answered: by then the run has ended.

/// Turn in progress.
#[derive(Debug, Default)]
pub(super) struct OpenCodeTurn {
    /// Number of prompts that were sent and not yet shown as messages.
    prompts_not_shown: usize,
    /// The first prompt shown.
    first_prompt: Option<Box<str>>,
    /// The last prompt shown.
    last_prompt: Option<Box<str>>,
    /// Prompt that the last answer belongs to.
    answered: Option<Box<str>>,
    /// Answer in progress.
    open_answer: Option<Box<str>>,
    busy: bool,
    /// True if the server is idle after it was busy.
    idle: bool,
    aborted: bool,
    failed: bool,
    /// True if the failure was emitted since the server was last busy.
    error_is_reported: bool,
    settling: SettlingAbort,
    /// Last prompt that steered, to be sent again if the server missed it.
    steer: Option<Vec<u8>>,
    /// Last stop reason of the model.
    finish: Option<String>,
    /// Number of answers in a row that broke off.
    broken_answers: u32,
}

/// Abort that makes sure that the run has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SettlingAbort {
    #[default]
    No,
    Requested,
    Done,
}

/// Next step of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnAction {
    Wait,
    /// Abort the run, and report when that is answered.
    Abort,
    /// Send the last prompt again, since the server ended its run without reading it.
    Resend,
    End,
}

impl OpenCodeTurn {
    /// Starts a turn whose prompt was sent.
    pub(super) fn new() -> Self {
        Self { prompts_not_shown: 1, ..Self::default() }
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.aborted
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Returns whether the server has shown a prompt of the turn.
    pub(super) fn has_begun(&self) -> bool {
        self.first_prompt.is_some()
    }

    pub(super) fn first_prompt(&self) -> Option<&str> {
        self.first_prompt.as_deref()
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy
    }

    pub(super) fn last_prompt(&self) -> Option<&str> {
        self.last_prompt.as_deref()
    }

    pub(super) fn finish(&self) -> Option<&str> {
        self.finish.as_deref()
    }

    /// Returns whether a prompt that was sent has not been shown yet.
    pub(super) fn awaits_prompt(&self) -> bool {
        self.prompts_not_shown > 0
    }

    /// Records another prompt that was sent.
    pub(super) fn steered(&mut self, body: Vec<u8>) {
        self.prompts_not_shown += 1;
        self.steer = Some(body);
    }

    /// Records that a prompt was refused.
    pub(super) fn prompt_refused(&mut self) {
        self.prompts_not_shown = self.prompts_not_shown.saturating_sub(1);
        self.steer = None;
    }

    /// Records the first showing of a prompt.
    pub(super) fn record_prompt(&mut self, id: &str) {
        self.prompts_not_shown = self.prompts_not_shown.saturating_sub(1);
        if self.idle {
            // The prompt came too late for the run that has ended, and gets a run of its own.
            (self.busy, self.idle) = (false, false);
        }
        self.first_prompt.get_or_insert_with(|| id.into());
        self.last_prompt = Some(id.into());
    }

    /// Records an answer: the prompt that it belongs to, and whether it is complete.
    pub(super) fn record_answer(&mut self, id: &str, prompt: Option<&str>, whole: bool, finish: Option<String>) {
        if prompt.is_some() {
            self.answered = prompt.map(Into::into);
        }
        if !whole {
            self.open_answer = Some(id.into());
        } else if self.open_answer.as_deref() == Some(id) {
            self.open_answer = None;
        }
        if finish.is_some() {
            self.finish = finish;
        }
    }

    /// Records the end of a step. `broken` means that it has no stop reason: its answer broke off, and the server asks the model again.
    /// Returns the number of broken steps in a row for a broken one.
    pub(super) fn step_ended(&mut self, broken: bool) -> Option<u32> {
        self.broken_answers = if broken { self.broken_answers + 1 } else { 0 };
        broken.then_some(self.broken_answers)
    }

    pub(super) fn abort(&mut self) {
        self.aborted = true;
    }

    /// Returns whether an error is new: the error of a run is followed by the same error for its prompt.
    pub(super) fn should_report_error(&mut self) -> bool {
        !std::mem::replace(&mut self.error_is_reported, true) && !self.aborted
    }

    /// Records a failure of the run: the run ends, unless the server continues it.
    pub(super) fn failed(&mut self) {
        self.failed = true;
    }

    pub(super) fn set_busy(&mut self) {
        // Otherwise this belongs to the run before.
        if self.has_begun() {
            self.busy = true;
            self.idle = false;
            (self.failed, self.error_is_reported) = (false, false);
            if self.settling == SettlingAbort::Done {
                self.settling = SettlingAbort::No;
            }
        }
    }

    /// Returns whether the server has shown the last prompt, and no answer to it.
    pub(super) fn is_unanswered(&self) -> bool {
        self.last_prompt.is_some() && self.last_prompt != self.answered && !self.failed && !self.aborted
    }

    /// Records that the turn, if it has begun, was busy: the event was missed.
    pub(super) fn mark_run(&mut self) {
        self.busy |= self.has_begun();
    }

    pub(super) fn set_idle(&mut self) {
        self.idle = self.busy;
    }

    /// Records that the abort of [`TurnAction::Abort`] was answered, or cannot be.
    pub(super) fn settled(&mut self) {
        self.settling = SettlingAbort::Done;
    }

    /// Returns the next step. Each step but [`TurnAction::Wait`] is returned once.
    pub(super) fn next(&mut self) -> TurnAction {
        if self.aborted || self.failed {
            return self.next_to_end();
        }
        if !self.idle || self.prompts_not_shown > 0 {
            return TurnAction::Wait;
        }
        if self.steer.is_some() && self.last_prompt != self.answered {
            (self.prompts_not_shown, self.busy, self.idle) = (1, false, false);
            return TurnAction::Resend;
        }
        TurnAction::End
    }

    fn next_to_end(&mut self) -> TurnAction {
        match self.settling {
            SettlingAbort::Requested => TurnAction::Wait,
            SettlingAbort::Done => {
                // Tool results arrive before the answer is complete; a prompt on its way starts another run.
                let over = (self.idle || !self.busy) && self.open_answer.is_none();
                if over && (self.prompts_not_shown == 0 || self.failed) { TurnAction::End } else { TurnAction::Wait }
            }
            // No prompt has reached the server.
            SettlingAbort::No if self.prompts_not_shown == 0 && !self.has_begun() => TurnAction::End,
            // An abort has no effect on a run that has not started, and a run that fails is idle soon.
            SettlingAbort::No if !self.busy && !self.failed || self.busy && !self.aborted && !self.idle => {
                TurnAction::Wait
            }
            SettlingAbort::No => {
                self.settling = SettlingAbort::Requested;
                TurnAction::Abort
            }
        }
    }

    /// Returns the body of the prompt for [`TurnAction::Resend`].
    pub(super) fn take_steer(&mut self) -> Option<Vec<u8>> {
        self.steer.take()
    }
}
