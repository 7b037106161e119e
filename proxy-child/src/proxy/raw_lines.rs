//! Raw lines of the agent, byte for byte, in addition to the events that an adapter makes of them.

use agents::{Action, LineSplitter};
use ipc_protocol::Event;

/// Longest piece of an answer in one event, in bytes; the same as for a line.
const MAX_PIECE: usize = 1024 * 1024;

/// Output stream of the agent: its standard output, or the endless body of an answer of its server.
///
/// A line is emitted first and then passed to the adapter, so each line comes before its events. The bytes emitted are exactly the
/// bytes passed on.
pub(crate) struct RawLineStream {
    /// Agent whose lines are emitted; `None` if they are not.
    agent: Option<Box<str>>,
    lines: LineSplitter,
}

impl RawLineStream {
    /// Makes the stream of the agent with this catalog id; `None` if its lines are not emitted.
    pub(crate) fn new(agent: Option<Box<str>>) -> Self {
        Self { agent, lines: LineSplitter::default() }
    }

    /// Adds `bytes`: emits the lines that they complete, and passes each to the adapter with `hand`. If lines are emitted, the beginning
    /// of a line waits for its end; a line longer than 1 MiB comes in pieces.
    pub(crate) fn push(&mut self, bytes: &[u8], out: &mut Vec<Action>, mut hand: impl FnMut(&[u8], &mut Vec<Action>)) {
        match &self.agent {
            None => hand(bytes, out),
            Some(agent) => self.lines.push(bytes, |line| {
                out.push(raw_line_action(agent, line));
                hand(line, out);
            }),
        }
    }

    /// Emits a complete answer of the server, which is no line of this stream, in pieces if it is long.
    pub(crate) fn emit_raw(&self, answer: &[u8], out: &mut Vec<Action>) {
        if let Some(agent) = &self.agent {
            out.extend(answer.chunks(MAX_PIECE).map(|piece| raw_line_action(agent, piece)));
        }
    }

    /// Emits and passes on an incomplete last line, since the stream has ended.
    pub(crate) fn finish(&mut self, out: &mut Vec<Action>, mut hand: impl FnMut(&[u8], &mut Vec<Action>)) {
        if let Some(agent) = &self.agent {
            self.lines.finish(|line| {
                out.push(raw_line_action(agent, line));
                hand(line, out);
            });
        }
    }
}

fn raw_line_action(agent: &str, line: &[u8]) -> Action {
    Action::Event(Event::Harness { agent: agent.into(), payload: line.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the emitted lines and the lines passed on.
    fn run(agent: Option<Box<str>>, pieces: &[&[u8]]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let (mut stream, mut out, mut handed) = (RawLineStream::new(agent), Vec::new(), Vec::new());
        for piece in pieces {
            stream.push(piece, &mut out, |line, _| handed.push(line.to_vec()));
        }
        stream.finish(&mut out, |line, _| handed.push(line.to_vec()));
        let told = out.iter().map(|action| match action {
            Action::Event(Event::Harness { agent, payload }) if &**agent == "a" => payload.as_bytes().to_vec(),
            other => panic!("{other:?}"),
        });
        (told.collect(), handed)
    }

    #[test]
    fn what_is_told_is_what_was_written_and_what_is_handed_on() {
        let bytes = b"{\"a\": 1}\r\n\n\xff\xfe\nhalf a line";
        for at in 0..bytes.len() {
            let (head, tail) = bytes.split_at(at);
            let (told, handed) = run(Some("a".into()), &[head, tail]);
            assert_eq!(told.concat(), bytes, "split at {at}");
            assert_eq!((told.len(), told), (4, handed), "split at {at}");
        }
        let long = vec![b'x'; 3 * 1024 * 1024];
        assert_eq!(run(Some("a".into()), &[&long, b"\n"]).0.concat(), [&long[..], b"\n"].concat());
    }

    #[test]
    fn an_answer_is_told_to_its_last_byte_and_leaves_a_line_alone() {
        let (mut stream, mut out) = (RawLineStream::new(Some("a".into())), Vec::new());
        let long = [vec![b'x'; MAX_PIECE], b"\xc3\xbc\n\ny".to_vec()].concat();
        stream.push(b"data: hal", &mut out, |_, _| {});
        stream.emit_raw(&long, &mut out);
        stream.emit_raw(b"", &mut out);
        stream.push(b"f\n", &mut out, |_, _| {});
        assert_eq!(
            out,
            [
                raw_line_action("a", &long[..MAX_PIECE]),
                raw_line_action("a", &long[MAX_PIECE..]),
                raw_line_action("a", b"data: half\n")
            ]
        );
        out.clear();
        RawLineStream::new(None).emit_raw(&long, &mut out);
        assert_eq!(out, []);
    }

    #[test]
    fn where_it_is_off_bytes_go_on_as_they_come() {
        assert_eq!(run(None, &[b"half", b" a line"]), (vec![], vec![b"half".to_vec(), b" a line".to_vec()]));
    }

    #[test]
    fn a_line_comes_before_what_it_became() {
        let (mut stream, mut out) = (RawLineStream::new(Some("a".into())), Vec::new());
        let text = |line: &[u8]| Action::Event(Event::Text { text: String::from_utf8_lossy(line).into_owned() });
        stream.push(b"1\n2\n", &mut out, |line, out| out.push(text(line)));
        assert_eq!(out, [raw_line_action("a", b"1\n"), text(b"1\n"), raw_line_action("a", b"2\n"), text(b"2\n")]);
    }
}
