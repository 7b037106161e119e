//! Recordings that are split, cut and spoilt: events or a typed error, the same ones for every split. Each adapter's recordings are
//! [`Spoilable`], as `crate::hostile::Recorded`.

use agents::Action;
use ipc_protocol::Event;
use proptest::{collection::vec, prelude::*, sample::Index};

use crate::{
    calls::garbage,
    hostile::{CASES, PIECES, Recorded},
};

/// What an adapter did, and how many operations it took.
pub(crate) type Played = (Vec<Action>, u64);

/// Recorded conversation.
pub(crate) trait Spoilable: Clone + std::fmt::Debug {
    /// What happened in it.
    type Record: Clone + std::fmt::Debug;
    /// Number of recordings.
    const COUNT: usize;
    /// First place where the agent can have written something else.
    const BEGIN: usize = 0;

    /// Reads a recording.
    fn nth(index: usize) -> Self;

    fn records(&mut self) -> &mut Vec<Self::Record>;

    /// Returns what the agent wrote.
    fn output(record: &mut Self::Record) -> Option<&mut Vec<u8>>;

    /// Makes the record of something else that the agent wrote.
    fn written(bytes: Vec<u8>) -> Self::Record;

    /// Replays with what the agent wrote between two other records split at `splits`.
    fn play(&self, splits: &[Index]) -> Played;

    /// What must hold, whatever the agent wrote.
    fn check(played: &Played) {
        crate::calls::check(&played.0);
    }

    /// Replaces a byte of what the agent wrote.
    fn flip(record: &mut Self::Record, byte: Index, value: u8) {
        if let Some(line) = Self::output(record) {
            let byte = byte.index(line.len());
            line[byte] = value;
        }
    }

    /// Makes garbage what the agent can have written.
    fn garbage(bytes: Vec<u8>) -> Vec<u8> {
        bytes
    }

    /// Returns `text` as lines that are no messages, and the number of log lines that they become; `None` if it may be one.
    fn noise(text: &str) -> Option<(Vec<u8>, usize)> {
        Some((format!("{text}\n").into_bytes(), usize::from(!text.trim_ascii().is_empty())))
    }

    fn is_noise(action: &Action, text: &str) -> bool {
        *action == Action::Event(Event::Log { stream: "stdout".into(), text: format!("{text}\n") })
    }
}

fn any_recording() -> impl Strategy<Value = Recorded> {
    (0..Recorded::COUNT).prop_map(Recorded::nth)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn splitting_changes_nothing(recording in any_recording(), splits in vec(any::<Index>(), 1..64)) {
        prop_assert_eq!(recording.play(&splits), recording.play(&[]));
    }

    #[test]
    fn any_prefix_ends_well(mut recording in any_recording(), lines in any::<Index>(), cut in any::<Index>()) {
        let records = recording.records();
        records.truncate(lines.index(records.len()) + 1);
        if let Some(line) = records.last_mut().and_then(Recorded::output) {
            line.truncate(cut.index(line.len()));
        }
        Recorded::check(&recording.play(&[]));
    }

    #[test]
    fn a_line_of_garbage_adds_log_lines_only(
        mut recording in any_recording(), at in any::<Index>(), text in "[^\\pC\\[\\]{}\"0-9-][^\\pC]{0,40}",
    ) {
        let noise = Recorded::noise(&text);
        prop_assume!(noise.is_some());
        let (lines, logs) = noise.expect("assumed");
        let plain = recording.play(&[]).0;
        let records = recording.records();
        let at = Recorded::BEGIN + at.index(records.len() - Recorded::BEGIN);
        records.insert(at, Recorded::written(lines));
        let mut actions = recording.play(&[]).0;
        let all = actions.len();
        actions.retain(|action| !Recorded::is_noise(action, &text));
        prop_assert_eq!((all - actions.len(), actions), (logs, plain));
    }

    #[test]
    fn garbage_anywhere_ends_well(
        mut recording in any_recording(), garbage in vec((any::<Index>(), garbage(&PIECES)), 1..8), splits in vec(any::<Index>(), 1..8),
    ) {
        for (at, bytes) in garbage {
            let records = recording.records();
            records.insert(at.index(records.len()), Recorded::written(Recorded::garbage(bytes)));
        }
        let played = recording.play(&splits);
        Recorded::check(&played);
        prop_assert_eq!(played, recording.play(&[]));
    }

    #[test]
    fn flipped_bytes_end_well(
        mut recording in any_recording(), flips in vec((any::<Index>(), any::<Index>(), any::<u8>()), 1..16),
    ) {
        for (at, byte, value) in flips {
            let records = recording.records();
            let at = at.index(records.len());
            Recorded::flip(&mut records[at], byte, value);
        }
        Recorded::check(&recording.play(&[]));
    }
}
