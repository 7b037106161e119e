//! Search of an offset in a session's messages, which lie among those of all other sessions. Pure.
//!
//! The engine answers one question: the first message of a session at or after a sequence. Interpolation finds an offset in a few of them
//! where the session wrote at an even rate; every other step halves what is left, so that no rate makes it slow.

/// Message of a session: its sequence, and the offsets that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogMessage {
    /// Sequence in the log.
    pub sequence: u64,
    /// Offset of its first event.
    pub first: u64,
    /// Offset of its last event.
    pub last: u64,
}

/// Step of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SearchStep {
    /// Ask for the first message at or after this sequence.
    Probe(u64),
    /// This is the sequence of the message with the offset, or of the first after it.
    Found(u64),
}

/// Search of one offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OffsetSearch {
    offset: u64,
    /// Message known to be before the offset.
    before: LogMessage,
    /// Message known to have it, or to be after it.
    at: LogMessage,
    /// Sequence below which, and above `before`, there may be messages that are not known.
    end: u64,
    steps: u32,
}

impl OffsetSearch {
    /// Begins a search between the first and the last message of a session. `None` for an offset that is after the last: it is still to come.
    pub(crate) fn new(offset: u64, first: LogMessage, last: LogMessage) -> Option<Result<Self, u64>> {
        if offset > last.last {
            return None;
        }
        if offset <= first.last {
            return Some(Err(first.sequence));
        }
        Some(Ok(Self { offset, before: first, at: last, end: last.sequence, steps: 0 }))
    }

    /// Returns what to do next.
    pub(crate) fn step(&self) -> SearchStep {
        let (low, high) = (self.before.sequence + 1, self.end);
        // Messages have consecutive offsets: the one that has it is the one.
        if low >= high || self.at.first <= self.offset {
            return SearchStep::Found(self.at.sequence);
        }
        let span = high - low;
        let probe = if self.steps.is_multiple_of(2) {
            let offsets = self.at.first.saturating_sub(self.before.last).max(1);
            let wanted = self.offset.saturating_sub(self.before.last).min(offsets);
            let share = u128::from(span) * u128::from(wanted) / u128::from(offsets);
            low + u64::try_from(share).unwrap_or(span).min(span - 1)
        } else {
            low + span / 2
        };
        SearchStep::Probe(probe)
    }

    /// Takes the message that the probe of a sequence found.
    pub(crate) fn answer(&mut self, probe: u64, found: LogMessage) {
        self.steps += 1;
        if found.last < self.offset {
            self.before = found;
        } else {
            // Nothing of the session is between the probe and what it found.
            (self.at, self.end) = (found, probe);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Finds an offset in these messages. Returns the sequence, and the number of questions.
    fn find(messages: &[LogMessage], offset: u64) -> (Option<u64>, u32) {
        let (first, last) = (messages[0], messages[messages.len() - 1]);
        let mut search = match OffsetSearch::new(offset, first, last) {
            None => return (None, 0),
            Some(Err(sequence)) => return (Some(sequence), 0),
            Some(Ok(search)) => search,
        };
        for asked in 0.. {
            match search.step() {
                SearchStep::Found(sequence) => return (Some(sequence), asked),
                SearchStep::Probe(probe) => {
                    let found =
                        messages.iter().find(|message| message.sequence >= probe).expect("the last is after it");
                    search.answer(probe, *found);
                }
            }
        }
        unreachable!("it ends");
    }

    proptest! {
        #[test]
        fn the_message_with_the_offset_is_found_in_few_questions(gaps in proptest::collection::vec((1_u64..1000, 1_u64..50), 1..300), part in 0_u64..110) {
            let (mut sequence, mut next) = (0, 1);
            let messages: Vec<LogMessage> = gaps.iter().map(|(gap, count)| {
                sequence += gap;
                let message = LogMessage { sequence, first: next, last: next + count - 1 };
                next += count;
                message
            }).collect();
            let offset = 1 + (next - 1) * part / 100;
            let (found, asked) = find(&messages, offset);
            let expected = messages.iter().find(|message| message.last >= offset).map(|message| message.sequence);
            prop_assert_eq!(found, expected);
            // Halving alone would need as many as the span has bits; every other question halves.
            prop_assert!(asked <= 2 * 19 + 2, "{} questions", asked);
        }
    }

    #[test]
    fn an_even_log_takes_a_handful_of_questions() {
        let messages: Vec<LogMessage> = (0..50)
            .map(|at| LogMessage { sequence: 10_000 * at + 17, first: 64 * at + 1, last: 64 * at + 64 })
            .collect();
        let asked: Vec<u32> = (1..3200).map(|offset| find(&messages, offset).1).collect();
        assert!(asked.iter().all(|asked| *asked <= 28), "{:?}", asked.iter().max());
    }
}
