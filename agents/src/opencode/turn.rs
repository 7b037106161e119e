//! When a turn is over.
//!
//! The server says that a conversation is idle, and nothing more. It says so twice after an abort or an error (once too early:
//! a prompt that comes between the two is never answered), it says it of the run before, and what comes by the event stream is
//! in no order with what comes by answers to requests. So a turn begins when the server shows its prompt as a message and is
//! then busy; and one that was aborted or failed is over when an abort has been answered, by which time the run is.

/// The running turn.
#[derive(Debug)]
pub(super) struct Turn {
    /// Prompts sent that have not been shown as messages.
    unseen: usize,
    /// The first prompt shown.
    first_prompt: Option<Box<str>>,
    /// The last prompt shown.
    last_prompt: Option<Box<str>>,
    /// The prompt that the last answer is to.
    answered: Option<Box<str>>,
    /// The answer that is being made.
    open_answer: Option<Box<str>>,
    busy: bool,
    /// Idle since it was busy.
    idle: bool,
    aborted: bool,
    failed: bool,
    /// Its failure was told since it was last busy.
    told: bool,
    settling: Settling,
    /// The last prompt that steered, to be said again if the server overheard it.
    steer: Option<Vec<u8>>,
    /// Why the model stopped, as the server said last.
    finish: Option<String>,
    /// Answers in a row that broke off.
    cuts: u32,
}

/// The abort that makes sure that the run is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settling {
    No,
    Asked,
    Done,
}

/// What is to be done about a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Wait,
    /// Abort the run, and say when that is answered.
    Abort,
    /// The server ended its run without having looked at the last prompt: say it again.
    SayAgain,
    End,
}

impl Turn {
    /// A prompt was sent.
    pub(super) fn new() -> Self {
        Self {
            unseen: 1,
            first_prompt: None,
            last_prompt: None,
            answered: None,
            open_answer: None,
            busy: false,
            idle: false,
            aborted: false,
            failed: false,
            told: false,
            settling: Settling::No,
            steer: None,
            finish: None,
            cuts: 0,
        }
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.aborted
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Whether a prompt of it was shown.
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

    /// Another prompt was sent.
    pub(super) fn steered(&mut self, body: Vec<u8>) {
        self.unseen += 1;
        self.steer = Some(body);
    }

    /// A prompt was refused.
    pub(super) fn prompt_refused(&mut self) {
        self.unseen = self.unseen.saturating_sub(1);
        self.steer = None;
    }

    /// The server shows a prompt for the first time.
    pub(super) fn prompt_shown(&mut self, id: &str) {
        self.unseen = self.unseen.saturating_sub(1);
        if self.idle {
            // It came too late for the run that has ended: it gets one of its own.
            (self.busy, self.idle) = (false, false);
        }
        self.first_prompt.get_or_insert_with(|| id.into());
        self.last_prompt = Some(id.into());
    }

    /// The server shows an answer: to which prompt, and whether it is whole.
    pub(super) fn answer_shown(&mut self, id: &str, prompt: Option<&str>, whole: bool, finish: Option<String>) {
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

    /// A step ended: without a word of the model's why (then its answer broke off, and the server asks again), or with one.
    /// How many have broken off in a row.
    pub(super) fn step_ended(&mut self, broken: bool) -> Option<u32> {
        self.cuts = if broken { self.cuts + 1 } else { 0 };
        broken.then_some(self.cuts)
    }

    pub(super) fn abort(&mut self) {
        self.aborted = true;
    }

    /// Whether an error is news: the one of a run is followed by one of its prompt that says the same.
    pub(super) fn tells_error(&mut self) -> bool {
        !std::mem::replace(&mut self.told, true) && !self.aborted
    }

    /// The run failed: it ends, unless the server goes on.
    pub(super) fn failed(&mut self) {
        self.failed = true;
    }

    pub(super) fn is_now_busy(&mut self) {
        // Else it is the end of the run before.
        if self.has_begun() {
            self.busy = true;
            self.idle = false;
            (self.failed, self.told) = (false, false);
            if self.settling == Settling::Done {
                self.settling = Settling::No;
            }
        }
    }

    /// Whether its prompt was shown, and nothing that answers it.
    pub(super) fn is_unanswered(&self) -> bool {
        self.last_prompt.is_some() && self.last_prompt != self.answered && !self.failed && !self.aborted
    }

    /// It has been busy, if it has begun: that was missed.
    pub(super) fn has_run(&mut self) {
        self.busy |= self.has_begun();
    }

    pub(super) fn is_now_idle(&mut self) {
        self.idle = self.busy;
    }

    /// The abort of [`Next::Abort`] was answered, or cannot be.
    pub(super) fn settled(&mut self) {
        self.settling = Settling::Done;
    }

    /// What is to be done. Each but [`Next::Wait`] is said once.
    pub(super) fn next(&mut self) -> Next {
        if self.aborted || self.failed {
            return self.next_to_end();
        }
        if !self.idle || self.unseen > 0 {
            return Next::Wait;
        }
        if self.steer.is_some() && self.last_prompt != self.answered {
            (self.unseen, self.busy, self.idle) = (1, false, false);
            return Next::SayAgain;
        }
        Next::End
    }

    fn next_to_end(&mut self) -> Next {
        match self.settling {
            Settling::Asked => Next::Wait,
            Settling::Done => {
                // What its tools came to is said before the answer is whole; a prompt on its way begins another run.
                let over = (self.idle || !self.busy) && self.open_answer.is_none();
                if over && (self.unseen == 0 || self.failed) { Next::End } else { Next::Wait }
            }
            // None was ever sent.
            Settling::No if self.unseen == 0 && !self.has_begun() => Next::End,
            // An abort does nothing to a run that has not begun, and a run that fails is idle soon.
            Settling::No if !self.busy && !self.failed || self.busy && !self.aborted && !self.idle => Next::Wait,
            Settling::No => {
                self.settling = Settling::Asked;
                Next::Abort
            }
        }
    }

    /// The body of the prompt of [`Next::SayAgain`].
    pub(super) fn take_steer(&mut self) -> Option<Vec<u8>> {
        self.steer.take()
    }
}
