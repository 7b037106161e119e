//! Looks over a program's output before the screen model gets it: picks out the sequences that the model does not know, and
//! bounds those that it would keep in memory.

use std::ops::Range;

/// Most bytes of an operating system command (OSC). A longer one is cut off: the model would keep all of it.
const MAX_OSC: usize = 2048;
/// Most bytes of a command for the clipboard.
const MAX_CLIPBOARD: usize = 128 * 1024;
/// Beginning of a command for the clipboard.
const CLIPBOARD: &[u8] = b"52;";
/// Command of the program status protocol.
const STATUS: &[u8] = b"7501;";

const ESC: u8 = 0x1b;
const BEL: u8 = 0x07;
/// Cancels a sequence.
const CAN: u8 = 0x18;
const SUB: u8 = 0x1a;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GuardState {
    Text,
    Escape,
    /// In an OSC, of which so many bytes came.
    Osc(usize),
    /// In an OSC that is too long.
    Cut,
}

/// Part of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OutputPart {
    /// Bytes of the chunk for the model.
    Bytes(Range<usize>),
    /// A sequence is cut off here: the model gets a CAN.
    Cancel,
    /// Payload of a status report (OSC 7501), whose bytes the model gets, too.
    Status(Vec<u8>),
}

/// State between chunks of output.
#[derive(Debug)]
pub(crate) struct SequenceGuard {
    state: GuardState,
    /// Beginning of the current OSC.
    osc: Vec<u8>,
}

impl SequenceGuard {
    pub(crate) fn new() -> Self {
        Self { state: GuardState::Text, osc: Vec::new() }
    }

    /// Returns the most bytes that the current OSC may have.
    fn most(&self) -> usize {
        if self.osc.starts_with(CLIPBOARD) { MAX_CLIPBOARD } else { MAX_OSC }
    }

    /// Divides a chunk into parts, in order.
    pub(crate) fn divide(&mut self, chunk: &[u8], parts: &mut Vec<OutputPart>) {
        let mut from = 0;
        let mut at = 0;
        while at < chunk.len() {
            let byte = chunk[at];
            match self.state {
                GuardState::Text => {
                    let Some(escape) = memchr::memchr(ESC, &chunk[at..]) else { break };
                    at += escape;
                    self.state = GuardState::Escape;
                }
                GuardState::Escape => {
                    self.state = match byte {
                        b']' => {
                            self.osc.clear();
                            GuardState::Osc(0)
                        }
                        CAN | SUB => GuardState::Text,
                        // As the parser has it: these are done, or dropped, within the sequence.
                        0..0x20 | 0x7f.. => GuardState::Escape,
                        _ => GuardState::Text,
                    };
                }
                GuardState::Osc(len) => match byte {
                    BEL | ESC | CAN | SUB => {
                        self.state = if byte == ESC { GuardState::Escape } else { GuardState::Text };
                        if let (BEL | ESC, Some(status)) = (byte, self.osc.strip_prefix(STATUS)) {
                            let end = if byte == BEL { at + 1 } else { at };
                            parts.push(OutputPart::Bytes(from..end));
                            parts.push(OutputPart::Status(status.to_vec()));
                            from = end;
                        }
                    }
                    _ if len >= self.most() => {
                        parts.push(OutputPart::Bytes(from..at));
                        parts.push(OutputPart::Cancel);
                        self.state = GuardState::Cut;
                    }
                    _ => {
                        if self.osc.len() < MAX_OSC {
                            self.osc.push(byte);
                        }
                        self.state = GuardState::Osc(len + 1);
                    }
                },
                GuardState::Cut => {
                    if matches!(byte, BEL | ESC | CAN | SUB) {
                        from = if byte == ESC { at } else { at + 1 };
                        self.state = if byte == ESC { GuardState::Escape } else { GuardState::Text };
                    } else {
                        from = at + 1;
                    }
                }
            }
            at += 1;
        }
        if self.state != GuardState::Cut && from < chunk.len() {
            parts.push(OutputPart::Bytes(from..chunk.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the model gets, and the reports; `CAN` stands where a sequence is cut off.
    fn divide(chunks: &[&[u8]]) -> (Vec<u8>, Vec<String>) {
        let mut guard = SequenceGuard::new();
        let (mut model, mut reports) = (Vec::new(), Vec::new());
        for chunk in chunks {
            let mut parts = Vec::new();
            guard.divide(chunk, &mut parts);
            for part in parts {
                match part {
                    OutputPart::Bytes(range) => model.extend_from_slice(&chunk[range]),
                    OutputPart::Cancel => model.push(CAN),
                    OutputPart::Status(status) => reports.push(String::from_utf8_lossy(&status).into_owned()),
                }
            }
        }
        (model, reports)
    }

    #[test]
    fn status_reports_are_found_however_they_are_cut() {
        let text = b"a\x1b]7501;state=idle\x07b\x1b]0;title\x07\x1b]7501;?\x1b\\c";
        for at in 0..text.len() {
            let (model, reports) = divide(&[&text[..at], &text[at..]]);
            assert_eq!(model, text, "cut at {at}");
            assert_eq!(reports, ["state=idle", "?"], "cut at {at}");
        }
    }

    #[test]
    fn what_is_cancelled_is_no_report() {
        assert_eq!(divide(&[b"\x1b]7501;idle\x18"]).1, [""; 0]);
        assert_eq!(divide(&[b"\x1b]75010;idle\x07"]).1, [""; 0]);
    }

    #[test]
    fn a_sequence_without_an_end_is_cut_off() {
        let long = vec![b'x'; MAX_OSC + 5000];
        let (model, _) = divide(&[b"\x1b]0;", &long[..1000], &long[1000..], b"\x07after"]);
        assert!(model.len() <= MAX_OSC + 20, "{}", model.len());
        assert!(model.ends_with(b"\x18after"));
        let (model, _) = divide(&[b"\x1b]0;", &long, b"more", b"\x1b\\after"]);
        assert!(model.ends_with(b"\x18\x1b\\after"));
        let (model, _) = divide(&[b"\x1b]52;c;", &long, b"\x07after"]);
        assert_eq!(model.len(), 7 + long.len() + 6, "the clipboard may have more");
    }

    #[test]
    fn a_sequence_begins_behind_what_the_parser_drops() {
        let long = vec![b'x'; MAX_OSC + 5000];
        for between in [&b"\n"[..], b"\0", b"\x7f", b"\xff\x80", b"\x1b"] {
            let (model, _) = divide(&[b"\x1b", between, b"]0;", &long, b"\x07after"]);
            assert!(model.len() <= MAX_OSC + 20 && model.ends_with(b"\x18after"), "{between:?}: {}", model.len());
        }
        for cancel in [&b"\x18"[..], b"\x1a", b"("] {
            let (model, _) = divide(&[b"\x1b", cancel, b"]0;", &long]);
            assert_eq!(model.len(), 5 + long.len(), "{cancel:?}: this is text");
        }
    }
}
