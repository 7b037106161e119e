//! Recordings that are split, cut and spoilt: events or a typed error, the same ones for every split.

use agents::Action;
use ipc_protocol::Event;
use proptest::{collection::vec, prelude::*, sample::Index};

use crate::{
    MAKE, TRANSCRIPTS,
    calls::garbage,
    hostile::PIECES,
    recorded::{Record, Recording, check, recording, split},
};

fn any_recording() -> impl Strategy<Value = Recording> {
    (0..TRANSCRIPTS.len()).prop_map(|index| recording(TRANSCRIPTS[index].1))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn splitting_changes_nothing(recording in any_recording(), splits in vec(any::<Index>(), 1..64)) {
        prop_assert_eq!(split(MAKE, &recording, &splits), split(MAKE, &recording, &[]));
    }

    #[test]
    fn any_prefix_ends_well(recording in any_recording(), lines in any::<Index>(), cut in any::<Index>()) {
        let mut recording = recording;
        recording.records.truncate(lines.index(recording.records.len()) + 1);
        if let Some(Record::Out(line)) = recording.records.last_mut() {
            line.truncate(cut.index(line.len()));
        }
        check(&split(MAKE, &recording, &[]));
    }

    #[test]
    fn a_line_of_garbage_adds_log_lines_only(
        recording in any_recording(), at in any::<Index>(), text in "[^\\pC\\[\\]{}\"0-9-][^\\pC]{0,40}",
    ) {
        let plain = split(MAKE, &recording, &[]).0;
        let mut dirty = recording.clone();
        dirty.records.insert(at.index(recording.records.len()), Record::Out(format!("{text}\n").into_bytes()));
        let noise = Action::Event(Event::Log { stream: "stdout".into(), text: format!("{text}\n") });
        let actions: Vec<_> = split(MAKE, &dirty, &[]).0.into_iter().filter(|action| *action != noise).collect();
        prop_assert_eq!(actions, plain);
    }

    #[test]
    fn garbage_anywhere_ends_well(
        recording in any_recording(), garbage in vec((any::<Index>(), garbage(&PIECES)), 1..8), splits in vec(any::<Index>(), 1..8),
    ) {
        let mut recording = recording;
        for (at, bytes) in garbage {
            recording.records.insert(at.index(recording.records.len()), Record::Out(bytes));
        }
        let actions = split(MAKE, &recording, &splits);
        check(&actions);
        prop_assert_eq!(actions, split(MAKE, &recording, &[]));
    }

    #[test]
    fn flipped_bytes_end_well(
        recording in any_recording(), flips in vec((any::<Index>(), any::<Index>(), any::<u8>()), 1..16),
    ) {
        let mut recording = recording;
        for (record, byte, value) in flips {
            let record = record.index(recording.records.len());
            if let Record::Out(line) = &mut recording.records[record] {
                let byte = byte.index(line.len());
                line[byte] = value;
            }
        }
        check(&split(MAKE, &recording, &[]));
    }
}
