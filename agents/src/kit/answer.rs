//! How much of the model's running answer was sent on, so that it can be voided when the agent asks for all of it again.

use ipc_protocol::Event;

use crate::Action;

/// Most blocks of an answer whose beginnings are remembered.
const MAX_BLOCKS: usize = 1024;

/// Bytes of text and of thinking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TextAmount {
    text: u64,
    thinking: u64,
}

/// The answer to the request that the agent has made of the model last.
#[derive(Debug, Default)]
pub(crate) struct OpenAnswer {
    sent: TextAmount,
    /// What was sent when each block of it began, by its index, where the agent numbers them.
    blocks: Vec<TextAmount>,
    /// It is whole with the line that is being read.
    is_settled: bool,
}

impl OpenAnswer {
    /// Another answer begins: the one before it stands.
    pub(crate) fn begin(&mut self) {
        *self = Self::default();
    }

    /// The answer stands, with what the line that is being read says of it.
    pub(crate) fn settle(&mut self) {
        self.is_settled = true;
    }

    /// The block `index` of it begins.
    pub(crate) fn block(&mut self, index: u64) {
        let Ok(index) = usize::try_from(index) else { return };
        if index < MAX_BLOCKS {
            self.blocks.resize(index, self.sent);
            self.blocks.push(self.sent);
        }
    }

    /// Counts what a line has come to.
    pub(crate) fn count(&mut self, actions: &[Action]) {
        if std::mem::take(&mut self.is_settled) {
            return self.begin();
        }
        for action in actions {
            match action {
                Action::Event(Event::Text { text }) => self.sent.text += text.len() as u64,
                Action::Event(Event::Thinking { text }) => self.sent.thinking += text.len() as u64,
                _ => {}
            }
        }
    }

    /// The agent asks for all of it again: the event that voids what was sent of it, if anything was.
    pub(crate) fn void(&mut self) -> Option<Action> {
        self.void_since(TextAmount::default())
    }

    /// The agent asks again for the blocks from this one on; none where it has not begun.
    pub(crate) fn void_from(&mut self, block: u64) -> Option<Action> {
        let since = self.blocks.get(usize::try_from(block).ok()?).copied()?;
        self.void_since(since)
    }

    fn void_since(&mut self, since: TextAmount) -> Option<Action> {
        let TextAmount { text, thinking } = std::mem::take(&mut self.sent);
        self.blocks.clear();
        let (text_bytes, thinking_bytes) = (text.saturating_sub(since.text), thinking.saturating_sub(since.thinking));
        let is_something = text_bytes > 0 || thinking_bytes > 0;
        is_something.then_some(Action::Event(Event::Voided { text_bytes, thinking_bytes }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Action {
        Action::Event(Event::Text { text: text.to_owned() })
    }

    fn voided(text_bytes: u64, thinking_bytes: u64) -> Option<Action> {
        Some(Action::Event(Event::Voided { text_bytes, thinking_bytes }))
    }

    #[test]
    fn only_the_open_answer_is_voided_and_once() {
        let mut answer = OpenAnswer::default();
        assert_eq!(answer.void(), None, "nothing was said");
        answer.count(&[text("ä"), Action::Event(Event::Thinking { text: "hm".into() }), Action::TurnEnded]);
        answer.count(&[text("b")]);
        assert_eq!(answer.void(), voided(3, 2));
        assert_eq!(answer.void(), None);
        answer.count(&[text("a whole answer")]);
        answer.settle();
        answer.count(&[text("its end")]);
        answer.count(&[text("next")]);
        assert_eq!(answer.void(), voided(4, 0));
        answer.count(&[text("stands")]);
        answer.begin();
        assert_eq!(answer.void(), None);
    }

    #[test]
    fn blocks_before_the_one_that_is_asked_for_again_stand() {
        let mut answer = OpenAnswer::default();
        for (index, said) in [(0, "abc"), (1, "de"), (3, "f")] {
            answer.block(index);
            answer.count(&[text(said)]);
        }
        answer.block(u64::MAX);
        assert_eq!(answer.void_from(1), voided(3, 0));
        answer.block(0);
        answer.count(&[text("abc")]);
        assert_eq!(answer.void_from(1), None, "it has not begun");
        assert_eq!(answer.void_from(0), voided(3, 0));
    }
}
