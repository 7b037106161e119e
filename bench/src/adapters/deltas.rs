//! Lines of the agent: a recorded one many times, each with another piece of text.

use super::protocols::PIECE;

/// Typical output of a model: prose, code, and characters that JSON must escape.
const ANSWER: &str = "The test fails because `parse_header` reads past the end of the buffer when the last line has no newline.\n\n\
    I changed the loop so that it stops at the end:\n\n```rust\nfn parse_header(bytes: &[u8]) -> Option<&str> {\n    \
    let end = bytes.iter().position(|byte| *byte == b'\\n').unwrap_or(bytes.len());\n    \
    std::str::from_utf8(&bytes[..end]).ok()\n}\n```\n\n- the old behaviour is kept for `\"quoted\"` values\n\
    - what is no UTF-8 (a naïve café’s menu, say) is refused\n\nAll 42 tests pass now. Shall I go on with the other parsers?\n";

/// Lines, and the text in them.
pub(super) struct DeltaLines {
    bytes: Vec<u8>,
    text: String,
}

impl DeltaLines {
    /// Repeats the recorded line `count` times, with [`PIECE`] replaced by one to eight characters of an answer, as
    /// models send them.
    pub(super) fn new(recorded: &str, count: usize) -> Self {
        let (before, after) = recorded.split_once(PIECE).unwrap_or((recorded, ""));
        let (mut bytes, mut text) = (Vec::new(), String::new());
        let mut answer = ANSWER.chars().cycle();
        for number in 0..count {
            let piece: String = answer.by_ref().take(1 + number * 5 % 8).collect();
            let quoted = serde_json::Value::from(piece.as_str()).to_string();
            bytes.extend([before, &quoted, after].concat().bytes());
            text.push_str(&piece);
        }
        Self { bytes, text }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_json_and_the_pieces_are_the_text() {
        let deltas = DeltaLines::new(&format!("{{\"delta\":{PIECE}}}\n"), 500);
        let lines = std::str::from_utf8(deltas.bytes()).expect("UTF-8").lines();
        let pieces = lines.map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
            line["delta"].as_str().expect("a text").to_owned()
        });
        assert_eq!(pieces.collect::<String>(), deltas.text());
        assert!(deltas.text().contains(ANSWER));
    }
}
