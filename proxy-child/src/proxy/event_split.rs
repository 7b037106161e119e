//! Splitting of texts that are too long for one event.

use ipc_protocol::Event;

/// Most bytes of text in one event. An agent may send megabytes at once; readers, rings and the log rely on small events.
const MAX_TEXT: usize = 256 * 1024;

/// Calls `take` with the event. A text longer than [`MAX_TEXT`] becomes several events, cut between characters.
pub(crate) fn split_event(event: Event, mut take: impl FnMut(Event)) {
    let (text, make): (&str, &dyn Fn(String) -> Event) = match &event {
        Event::Text { text } if text.len() > MAX_TEXT => (text, &|text| Event::Text { text }),
        Event::Thinking { text } if text.len() > MAX_TEXT => (text, &|text| Event::Thinking { text }),
        Event::SubagentText { text, parent } if text.len() > MAX_TEXT => {
            (text, &|text| Event::SubagentText { text, parent: parent.clone() })
        }
        Event::SubagentThinking { text, parent } if text.len() > MAX_TEXT => {
            (text, &|text| Event::SubagentThinking { text, parent: parent.clone() })
        }
        _ => return take(event),
    };
    let mut rest = text;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.floor_char_boundary(MAX_TEXT));
        take(make(piece.to_owned()));
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the texts of the events that an event becomes.
    fn texts(event: Event) -> Vec<String> {
        let (kind, mut texts) = (std::mem::discriminant(&event), Vec::new());
        split_event(event, |piece| {
            assert_eq!(std::mem::discriminant(&piece), kind);
            match piece {
                Event::Text { text } | Event::Thinking { text } => texts.push(text),
                other => panic!("{other:?}"),
            }
        });
        texts
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn pieces_are_bounded_and_together_the_text(word in "[a-zß語🦀]{1,9}", len in 0..4 * MAX_TEXT, thinks: bool) {
            let text = word.repeat(len / word.len());
            let event = if thinks { Event::Thinking { text: text.clone() } } else { Event::Text { text: text.clone() } };
            let texts = texts(event);
            prop_assert!(texts.iter().all(|piece| piece.len() <= MAX_TEXT));
            // Only the last text is short.
            prop_assert!(texts.iter().rev().skip(1).all(|piece| piece.len() > MAX_TEXT - 4));
            prop_assert_eq!(texts.concat(), text);
        }
    }

    #[test]
    fn what_fits_is_left_as_it_is() {
        for len in [0, 1, MAX_TEXT] {
            assert_eq!(texts(Event::Text { text: "x".repeat(len) }).len(), 1);
        }
        assert_eq!(texts(Event::Text { text: "x".repeat(MAX_TEXT + 1) }).len(), 2);
        let log = Event::Log { stream: "stderr".into(), text: "x".repeat(MAX_TEXT + 1) };
        let mut given = Vec::new();
        split_event(log.clone(), |event| given.push(event));
        assert_eq!(given, [log]);
    }
}
