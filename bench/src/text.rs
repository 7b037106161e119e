//! Numbered texts of 64 bytes that the event benches send, so that a lost one is noticed.

use crate::error::{Error, Result};

/// Bytes of a text.
pub(crate) const LEN: usize = 64;

const DIGITS: usize = 10;

/// Sequence of texts 0, 1, 2, …: ten digits, then filler.
#[derive(Clone, Debug)]
pub(crate) struct NumberedTexts {
    bytes: Vec<u8>,
    next: u64,
    /// Number of the text at which the digits next restart at 0.
    again: Option<u64>,
    /// Number of texts between two restarts.
    every: u64,
}

impl NumberedTexts {
    /// Texts without a newline.
    pub(crate) fn plain() -> Self {
        Self::with(LEN, b'x')
    }

    /// Lines of `len` bytes, their newline included.
    pub(crate) fn lines(len: usize) -> Self {
        Self::with(len.max(DIGITS + 1), b'\n')
    }

    fn with(len: usize, last: u8) -> Self {
        let mut bytes = vec![b'x'; len];
        bytes[..DIGITS].fill(b'0');
        if let Some(byte) = bytes.last_mut() {
            *byte = last;
        }
        Self { bytes, next: 0, again: None, every: 0 }
    }

    /// Texts of many prompts: after each `count` of them the digits restart at 0.
    pub(crate) fn again_every(self, count: u64) -> Self {
        Self { again: Some(count), every: count, ..self }
    }

    /// Passes the next text to `with`, and moves on.
    pub(crate) fn take<T>(&mut self, with: impl FnOnce(&[u8]) -> T) -> T {
        if self.again == Some(self.next) {
            self.bytes[..DIGITS].fill(b'0');
            self.again = Some(self.next + self.every);
        }
        let taken = with(&self.bytes);
        self.next += 1;
        // Counting up the digits in place costs next to nothing, so that the bench does not measure it.
        for digit in self.bytes[..DIGITS].iter_mut().rev() {
            if *digit < b'9' {
                *digit += 1;
                break;
            }
            *digit = b'0';
        }
        taken
    }

    /// Returns the number of texts taken.
    pub(crate) fn taken(&self) -> u64 {
        self.next
    }

    /// Takes the next text and compares it with the received one.
    ///
    /// # Errors
    /// [`Error::Lost`] when they differ.
    pub(crate) fn check(&mut self, came: &[u8]) -> Result<()> {
        let expected = self.next;
        if self.take(|text| text == came) {
            return Ok(());
        }
        Err(Error::Lost { expected, came: String::from_utf8_lossy(&came[..came.len().min(LEN)]).into_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_text_is_noticed() {
        let mut sent = NumberedTexts::plain();
        let mut expected = NumberedTexts::plain();
        for _ in 0..1234 {
            sent.take(|text| expected.check(text)).expect("none is missing yet");
        }
        assert_eq!(expected.taken(), 1234);
        sent.take(|_| ());
        let error = sent.take(|text| expected.check(text)).expect_err("one is missing");
        assert!(
            matches!(error, Error::Lost { expected: 1234, ref came } if came.starts_with("0000001235x")),
            "{error}"
        );
    }

    #[test]
    fn the_texts_of_many_prompts() {
        let mut all = NumberedTexts::plain().again_every(12);
        for _ in 0..3 {
            let mut one = NumberedTexts::plain();
            for _ in 0..12 {
                one.take(|text| all.check(text)).expect("the next");
            }
        }
        assert_eq!(all.taken(), 36);
        NumberedTexts::plain().take(|text| all.check(text)).expect("of the fourth");
        NumberedTexts::plain().take(|text| all.check(text)).expect_err("the first again");
    }

    #[test]
    fn a_line_ends_with_its_only_newline() {
        NumberedTexts::lines(LEN).take(|line| {
            assert_eq!((line.len(), line.iter().position(|b| *b == b'\n')), (LEN, Some(LEN - 1)));
        });
    }
}
