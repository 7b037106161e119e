//! Answer of a model on its way to the client, so that its end is known. Pure.
//!
//! Clients take the end of a connection for the end of an answer where that says `Connection: close`, Node.js even within a body in chunks.
//! So an answer whose length is told does not say so: one that breaks off is the end of a connection that was to go on.

use std::fmt::Write as _;

/// Longest head that is looked at; a longer one is passed on with all that follows.
const MAX_HEAD: usize = 64 * 1024;
/// Longest line between chunks.
const MAX_LINE: usize = 4096;

/// Answer that is passed on, piece by piece.
#[derive(Debug)]
pub(super) struct AnswerFilter {
    /// True for the answer to a HEAD request, which has no body.
    is_bodiless: bool,
    /// True if the client's connection goes on behind a whole answer.
    goes_on: bool,
    state: AnswerState,
}

#[derive(Debug)]
enum AnswerState {
    /// What has come of the head.
    Head(Vec<u8>),
    /// Size of a chunk, as far as it has come.
    Size(Vec<u8>),
    /// Bytes of the chunk that are to come.
    Data(u64),
    /// Bytes of the line's end behind a chunk that are to come.
    DataEnd(u8),
    /// Line behind the last chunk.
    Trailer(Vec<u8>),
    /// Bytes of a body of known length that are to come.
    Fixed(u64),
    /// All of it was passed on.
    Done,
    /// Its chunks are none.
    Broken,
    /// A body that the connection's end ends.
    Raw,
}

impl AnswerFilter {
    pub(super) fn new(method: &str, goes_on: bool) -> Self {
        Self { is_bodiless: method == "HEAD", goes_on, state: AnswerState::Head(Vec::new()) }
    }

    /// Takes bytes of the server, and adds to `out` what the client gets for them.
    pub(super) fn pass(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while let Some(first) = bytes.first().copied().filter(|_| !self.is_over()) {
            let taken = match &mut self.state {
                AnswerState::Raw => bytes.len(),
                AnswerState::Data(left) | AnswerState::Fixed(left) => {
                    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    *left -= taken as u64;
                    taken
                }
                _ => 1,
            };
            match self.state {
                AnswerState::Head(_) => {}
                _ => out.extend_from_slice(&bytes[..taken]),
            }
            self.advance(first, out);
            bytes = &bytes[taken..];
        }
    }

    /// Adds to `out` what the client gets at the end of the server's connection.
    pub(super) fn end(&mut self, out: &mut Vec<u8>) {
        if let AnswerState::Head(head) = &self.state {
            out.extend_from_slice(head);
        }
    }

    /// Returns whether all of the answer was passed on, and the client knows it.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.state, AnswerState::Done)
    }

    /// Returns whether nothing more of the server's is passed on.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, AnswerState::Done | AnswerState::Broken)
    }

    fn advance(&mut self, byte: u8, out: &mut Vec<u8>) {
        let next = match &mut self.state {
            AnswerState::Head(head) => {
                head.push(byte);
                if head.ends_with(b"\r\n\r\n") {
                    let (text, next) = read_head(head, self.is_bodiless);
                    out.extend_from_slice(if self.goes_on { &text } else { head });
                    next
                } else if head.len() >= MAX_HEAD {
                    out.extend_from_slice(head);
                    AnswerState::Raw
                } else {
                    return;
                }
            }
            AnswerState::Size(line) => match finish_line(line, byte) {
                Some(Some(size)) => match parse_size(&size) {
                    Some(0) => AnswerState::Trailer(Vec::new()),
                    Some(size) => AnswerState::Data(size),
                    None => AnswerState::Broken,
                },
                Some(None) => AnswerState::Broken,
                None => return,
            },
            AnswerState::Data(0) => AnswerState::DataEnd(2),
            AnswerState::Fixed(0) => AnswerState::Done,
            AnswerState::DataEnd(left) => match (*left, byte) {
                (2, b'\r') => AnswerState::DataEnd(1),
                (1, b'\n') => AnswerState::Size(Vec::new()),
                _ => AnswerState::Broken,
            },
            AnswerState::Trailer(line) => match finish_line(line, byte) {
                Some(Some(line)) if line.is_empty() => AnswerState::Done,
                Some(Some(_)) => AnswerState::Trailer(Vec::new()),
                Some(None) => AnswerState::Broken,
                None => return,
            },
            AnswerState::Data(_) | AnswerState::Fixed(_) => return,
            AnswerState::Done | AnswerState::Broken | AnswerState::Raw => return,
        };
        self.state = next;
    }
}

/// Adds a byte to a line. Returns the line once it is whole; `Some(None)` for what is none.
fn finish_line(line: &mut Vec<u8>, byte: u8) -> Option<Option<Vec<u8>>> {
    line.push(byte);
    if let Some(text) = line.strip_suffix(b"\r\n") {
        return Some(Some(text.to_vec()));
    }
    (line.len() > MAX_LINE || byte == b'\n').then_some(None)
}

/// Size of a chunk, without its extensions.
fn parse_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next()?.trim_ascii();
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    u64::from_str_radix(std::str::from_utf8(digits).ok().filter(|_| is_number)?, 16).ok()
}

/// Reads a whole head. Returns what the client gets of it, and what follows.
fn read_head(head: &[u8], is_bodiless: bool) -> (Vec<u8>, AnswerState) {
    let as_it_is = |state| (head.to_vec(), state);
    let Ok(text) = std::str::from_utf8(head) else { return as_it_is(AnswerState::Raw) };
    let mut lines = text.trim_end_matches("\r\n").split("\r\n");
    let first = lines.next().unwrap_or_default();
    let (mut length, mut is_chunked) = (None, false);
    let mut kept = format!("{first}\r\n");
    for line in lines {
        let (name, value) = line.split_once(':').map_or((line, ""), |(name, value)| (name, value.trim()));
        if name.eq_ignore_ascii_case("transfer-encoding") {
            is_chunked = value.rsplit(',').next().is_some_and(|last| last.trim().eq_ignore_ascii_case("chunked"));
        } else if name.eq_ignore_ascii_case("content-length") {
            length = value.parse::<u64>().ok();
        }
        if !["connection", "keep-alive"].iter().any(|hop| name.eq_ignore_ascii_case(hop)) {
            let _ = write!(kept, "{line}\r\n");
        }
    }
    kept.push_str("\r\n");
    let kept = kept.into_bytes();
    match first.split(' ').nth(1) {
        // The answer comes behind it.
        Some(status) if status.starts_with('1') && status != "101" => as_it_is(AnswerState::Head(Vec::new())),
        None | Some("101") => as_it_is(AnswerState::Raw),
        // Whose clients end an answer with its connection.
        Some(_) if !first.starts_with("HTTP/1.1 ") => as_it_is(AnswerState::Raw),
        Some("204" | "304") => (kept, AnswerState::Done),
        Some(_) if is_bodiless => (kept, AnswerState::Done),
        Some(_) if is_chunked => (kept, AnswerState::Size(Vec::new())),
        Some(_) => match length {
            Some(0) => (kept, AnswerState::Done),
            Some(length) => (kept, AnswerState::Fixed(length)),
            None => as_it_is(AnswerState::Raw),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

    /// What the client gets, and whether it knows that this is all, whatever the pieces in which the answer comes.
    fn passed(method: &str, answer: &str) -> (String, bool) {
        let through = |piece: usize| {
            let (mut filter, mut out) = (AnswerFilter::new(method, true), Vec::new());
            for piece in answer.as_bytes().chunks(piece) {
                filter.pass(piece, &mut out);
            }
            filter.end(&mut out);
            (String::from_utf8(out).expect("text"), filter.is_done())
        };
        let whole = through(usize::MAX);
        assert_eq!(through(1), whole);
        assert_eq!(through(3), whole);
        whole
    }

    #[test]
    fn the_end_of_an_answer_is_known() {
        for body in ["5\r\nhello\r\n0\r\n\r\n", "A;x=y\r\n0123456789\r\n00\r\nTrailer: x\r\n\r\n", "0\r\n\r\n"] {
            let answer = format!("{CHUNKED}{body}");
            assert_eq!(passed("POST", &format!("{answer}more")), (answer, true));
        }
        for (method, answer) in [
            ("POST", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"),
            ("POST", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
            ("HEAD", CHUNKED),
            ("GET", "HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n"),
            ("POST", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"),
        ] {
            assert_eq!(passed(method, &format!("{answer}more")), (answer.to_owned(), true));
        }
    }

    #[test]
    fn an_answer_that_breaks_off_has_no_end() {
        for body in ["", "5\r\nhello\r\n", "5\r\nhel", "5\r\nhello\r\n0\r\n"] {
            let answer = format!("{CHUNKED}{body}");
            assert_eq!(passed("POST", &answer), (answer, false));
        }
        for (broken, shown) in [("5\r\nhello!\r\n0\r\n\r\n", "5\r\nhello!"), ("-1\r\nhello", "-1\r\n"), ("\n0", "\n")] {
            assert_eq!(passed("POST", &format!("{CHUNKED}{broken}")), (format!("{CHUNKED}{shown}"), false));
        }
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel".to_owned();
        assert_eq!(passed("POST", &answer), (answer, false));
    }

    #[test]
    fn an_answer_of_known_length_does_not_end_its_connection() {
        let answer =
            "HTTP/1.1 200 OK\r\nconnection: close\r\nKeep-Alive: timeout=1\r\nContent-Length: 1\r\nX: y\r\n\r\nz";
        let expected = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nX: y\r\n\r\nz".to_owned();
        assert_eq!(passed("POST", answer), (expected, true));
        for (answer, is_done) in [
            ("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello".to_owned(), false),
            ("HTTP/1.0 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx".to_owned(), false),
            ("HTTP/1.1 200 O".to_owned(), false),
            ("x".repeat(MAX_HEAD + 9), false),
        ] {
            assert_eq!(passed("GET", &answer), (answer, is_done));
        }
    }
}
