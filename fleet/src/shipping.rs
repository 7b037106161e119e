//! Shipping of a session's events to the fleet's log: what each outcome of a publish means. Pure.
//!
//! A batch of consecutive events is one message. Each names the sequence of the message before it in the session's subject, so that a batch
//! is in the log once, whatever became of its acknowledgement, and that nobody writes after an owner of a later epoch.

/// Batch of consecutive events on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventBatch {
    /// Epoch of the owner that ships it.
    pub epoch: u64,
    /// Offset of its first event.
    pub first: u64,
    /// Offset of its last event.
    pub last: u64,
}

/// Last message that the log has of a session, as its leader says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogTail {
    /// Sequence of the message; 0 where there is none.
    pub sequence: u64,
    /// Epoch of its owner.
    pub epoch: u64,
    /// Offset of its last event; 0 where there is none.
    pub last: u64,
}

impl LogTail {
    /// Tail of a session that the log has nothing of.
    pub const EMPTY: Self = Self { sequence: 0, epoch: 0, last: 0 };
}

/// Outcome of a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishOutcome {
    /// It is the message of this sequence.
    Stored(u64),
    /// Nobody knows.
    NoAnswer,
    /// The log's last message of the session was another than the one expected: this one.
    Refused(LogTail),
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShippingStep {
    /// The log has all up to this offset: readers may see it. The next message expects this sequence.
    Acknowledged {
        /// Offset of the last event that the log has.
        through: u64,
        /// Sequence of its last message.
        sequence: u64,
    },
    /// Publish the same batch again, and expect this sequence.
    Again {
        /// Sequence to expect.
        expected: u64,
    },
    /// The log lacks events that it had acknowledged: ship again from this offset, and expect this sequence.
    From {
        /// Offset of the first event that it lacks.
        offset: u64,
        /// Sequence to expect.
        expected: u64,
    },
    /// Another owner has the session: nothing more of it may be shipped or shown.
    Fenced {
        /// Epoch of that owner; this one's own where an earlier owner has written behind its back.
        epoch: u64,
    },
}

impl EventBatch {
    /// Decides what a tail means that was read before anything is published, as after a restart: whether the log has the batch already, and
    /// whose it is.
    pub fn compare(self, tail: LogTail) -> ShippingStep {
        self.decide(tail.sequence, PublishOutcome::Refused(tail))
    }

    /// Decides what the outcome of a publish that expected `expected` means.
    pub fn decide(self, expected: u64, outcome: PublishOutcome) -> ShippingStep {
        let tail = match outcome {
            PublishOutcome::Stored(sequence) => return ShippingStep::Acknowledged { through: self.last, sequence },
            // If it was stored, the same again is refused, and the tail says why.
            PublishOutcome::NoAnswer => return ShippingStep::Again { expected },
            PublishOutcome::Refused(tail) => tail,
        };
        match tail {
            LogTail { epoch, .. } if epoch > self.epoch => ShippingStep::Fenced { epoch },
            // An attempt of ours arrived and its acknowledgement did not.
            LogTail { epoch, last, sequence } if last >= self.first && epoch == self.epoch => {
                ShippingStep::Acknowledged { through: last, sequence }
            }
            LogTail { last, .. } if last >= self.first => ShippingStep::Fenced { epoch: self.epoch },
            LogTail { last, sequence, .. } if last + 1 == self.first => ShippingStep::Again { expected: sequence },
            LogTail { last, sequence, .. } => ShippingStep::From { offset: last + 1, expected: sequence },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const BATCH: EventBatch = EventBatch { epoch: 2, first: 11, last: 20 };

    fn tail(sequence: u64, epoch: u64, last: u64) -> PublishOutcome {
        PublishOutcome::Refused(LogTail { sequence, epoch, last })
    }

    #[test]
    fn what_each_outcome_means() {
        for (outcome, step) in [
            (PublishOutcome::Stored(8), ShippingStep::Acknowledged { through: 20, sequence: 8 }),
            (PublishOutcome::NoAnswer, ShippingStep::Again { expected: 7 }),
            (tail(9, 3, 15), ShippingStep::Fenced { epoch: 3 }),
            (tail(8, 2, 20), ShippingStep::Acknowledged { through: 20, sequence: 8 }),
            (tail(5, 2, 10), ShippingStep::Again { expected: 5 }),
            (tail(5, 1, 10), ShippingStep::Again { expected: 5 }),
            (tail(4, 2, 7), ShippingStep::From { offset: 8, expected: 4 }),
            (tail(0, 0, 0), ShippingStep::From { offset: 1, expected: 0 }),
            (tail(9, 1, 12), ShippingStep::Fenced { epoch: 2 }),
        ] {
            assert_eq!(BATCH.decide(7, outcome), step, "{outcome:?}");
        }
    }

    /// Log with compare-and-set, at which messages arrive late and acknowledgements are lost.
    #[derive(Default)]
    struct ModelLog {
        messages: Vec<EventBatch>,
        late: VecDeque<(EventBatch, u64)>,
    }

    impl ModelLog {
        fn tail(&self) -> LogTail {
            self.messages.last().map_or(LogTail::EMPTY, |batch| LogTail {
                sequence: self.messages.len() as u64,
                epoch: batch.epoch,
                last: batch.last,
            })
        }

        fn publish(&mut self, batch: EventBatch, expected: u64, fault: u8) -> PublishOutcome {
            match fault {
                // It arrives some time later.
                0 => {
                    self.late.push_back((batch, expected));
                    return PublishOutcome::NoAnswer;
                }
                1 => self.arrive(),
                _ => {}
            }
            if expected != self.tail().sequence {
                return PublishOutcome::Refused(self.tail());
            }
            self.messages.push(batch);
            if fault == 2 { PublishOutcome::NoAnswer } else { PublishOutcome::Stored(self.messages.len() as u64) }
        }

        fn arrive(&mut self) {
            if let Some((batch, expected)) = self.late.pop_front()
                && expected == self.tail().sequence
            {
                self.messages.push(batch);
            }
        }
    }

    /// Node that ships a session's events, with what it has on its disk and what it only remembers.
    #[derive(Debug)]
    struct ModelOwner {
        epoch: u64,
        /// Offset of the first event that its disk does not have as acknowledged.
        next: u64,
        /// Sequence that it expects; none after a restart.
        known: Option<u64>,
        is_fenced: bool,
    }

    impl ModelOwner {
        /// Ships a batch. With `dies` it is killed between the log's answer and its note of that.
        fn ship(&mut self, log: &mut ModelLog, size: u64, fault: u8, dies: bool) {
            let batch = EventBatch { epoch: self.epoch, first: self.next, last: self.next + size - 1 };
            let step = match self.known {
                Some(expected) => batch.decide(expected, log.publish(batch, expected, fault)),
                None => match batch.compare(log.tail()) {
                    ShippingStep::Again { expected } => batch.decide(expected, log.publish(batch, expected, fault)),
                    step => step,
                },
            };
            match step {
                _ if dies => self.known = None,
                ShippingStep::Acknowledged { through, sequence } => {
                    assert!(log.tail().last >= through);
                    (self.next, self.known) = (through + 1, Some(sequence));
                }
                ShippingStep::Again { expected } => self.known = Some(expected),
                ShippingStep::From { .. } => panic!("this log loses nothing"),
                ShippingStep::Fenced { .. } => self.is_fenced = true,
            }
        }
    }

    #[test]
    fn after_a_restart_nothing_is_doubled_and_a_dead_epoch_is_fenced() {
        let mut log = ModelLog::default();
        let mut owner = ModelOwner { epoch: 1, next: 1, known: None, is_fenced: false };
        owner.ship(&mut log, 3, 9, true);
        owner.ship(&mut log, 5, 9, false);
        assert_eq!((log.messages.len(), owner.next), (1, 4), "the log has the first three already");
        let mut later = ModelOwner { epoch: 2, next: 4, known: None, is_fenced: false };
        later.ship(&mut log, 1, 9, false);
        owner.known = None;
        owner.ship(&mut log, 5, 9, false);
        assert!(owner.is_fenced && log.messages.len() == 2, "{owner:?} {:?}", log.messages);
    }

    proptest! {
        /// An owner ships and is killed now and then, another one takes over at some time, the first goes on without knowing it: the log
        /// has every offset once, in order, and nothing of the first after the second.
        #[test]
        fn the_log_has_each_offset_once_and_in_order(
            faults in proptest::collection::vec(0_u8..6, 60),
            deaths in proptest::collection::vec(0_u8..5, 60),
            sizes in proptest::collection::vec(1_u64..5, 60),
            takeover in 0_usize..40,
        ) {
            let mut log = ModelLog::default();
            let mut owners = vec![ModelOwner { epoch: 1, next: 1, known: None, is_fenced: false }];
            for (at, ((fault, death), size)) in faults.iter().zip(&deaths).zip(&sizes).enumerate() {
                if at == takeover {
                    // The new owner's first batch is one event after the tail that it read.
                    let tail = log.tail();
                    let next = tail.last + 1;
                    owners.push(ModelOwner { epoch: 2, next, known: Some(tail.sequence), is_fenced: false });
                }
                for owner in owners.iter_mut().filter(|owner| !owner.is_fenced) {
                    owner.ship(&mut log, *size, *fault, *death == 0);
                }
                log.arrive();
            }
            let (mut next, mut epoch) = (1, 1);
            for batch in &log.messages {
                prop_assert_eq!(batch.first, next);
                prop_assert!(batch.epoch >= epoch);
                (next, epoch) = (batch.last + 1, batch.epoch);
            }
        }
    }
}
